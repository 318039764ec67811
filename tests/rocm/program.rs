//! The program's own use of the HSA runtime, by the functions that it exports: nothing of it goes through wharf.
//!
//! # Safety
//! Functions have the types of the public headers, in a library that is never unloaded; pointers are to live locals. What is allocated is freed
//! once; what is locked its owner keeps.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    ptr::{self, NonNull},
    sync::OnceLock,
};

use libloading::Library;

/// `HSA_DEVICE_TYPE_CPU` and `.._GPU`.
const CPU: u32 = 0;
const GPU: u32 = 1;
/// `HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED`.
const COARSE: u32 = 4;

type Each = unsafe extern "C" fn(u64, *mut c_void) -> u32;
type GetInfo = unsafe extern "C" fn(u64, u32, *mut c_void) -> u32;

/// The emulated runtime, loaded for as long as this process lives.
pub(crate) fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: the emulator runs nothing when it is loaded.
        let library = unsafe { Library::new(crate::fixture::library()) };
        library.expect("the emulated runtime loads")
    })
}

/// An exported function.
fn function<F: Copy>(name: &str) -> F {
    // SAFETY: the callers give the type of the header.
    *unsafe { library().get::<F>(name) }.expect(name)
}

#[track_caller]
fn ok(status: u32) {
    assert_eq!(status, 0, "the runtime's status");
}

/// All handles that an iteration gives.
fn all(iterate: impl FnOnce(Each, *mut c_void) -> u32) -> Vec<u64> {
    unsafe extern "C" fn each(handle: u64, list: *mut c_void) -> u32 {
        // SAFETY: the list below, which nobody else uses during the call.
        unsafe { (*list.cast::<Vec<u64>>()).push(handle) };
        0
    }
    let mut found = Vec::new();
    ok(iterate(each, (&raw mut found).cast()));
    found
}

/// A number that describes an agent or a pool.
fn number(get: &str, handle: u64, what: u32) -> u32 {
    let get: GetInfo = function(get);
    let mut value = 0_u64;
    // SAFETY: what is asked for is at most 8 bytes wide.
    ok(unsafe { get(handle, what, (&raw mut value).cast()) });
    value as u32
}

/// The agents of a kind.
fn agents(kind: u32) -> Vec<u64> {
    static INITIALISED: OnceLock<()> = OnceLock::new();
    INITIALISED.get_or_init(|| {
        let init: unsafe extern "C" fn() -> u32 = function("hsa_init");
        // SAFETY: takes nothing.
        ok(unsafe { init() });
    });
    let iterate: unsafe extern "C" fn(Each, *mut c_void) -> u32 = function("hsa_iterate_agents");
    // SAFETY: as of `all`.
    let mut found = all(|each, list| unsafe { iterate(each, list) });
    // 17: `HSA_AGENT_INFO_DEVICE`.
    found.retain(|agent| number("hsa_agent_get_info", *agent, 17) == kind);
    found
}

/// Memory of a pool. Freed on drop.
#[derive(Debug)]
pub(crate) struct Allocation {
    address: u64,
}

impl Allocation {
    fn new(agent: u64, len: usize) -> Self {
        let iterate: unsafe extern "C" fn(u64, Each, *mut c_void) -> u32 =
            function("hsa_amd_agent_iterate_memory_pools");
        // SAFETY: as of `all`.
        let pools = all(|each, list| unsafe { iterate(agent, each, list) });
        let info = |pool: u64, what| number("hsa_amd_memory_pool_get_info", pool, what);
        // Of the global segment, and of coarse grain.
        let coarse = |pool: &u64| info(*pool, 0) == 0 && info(*pool, 1) & COARSE != 0;
        let pool = pools.into_iter().find(coarse).expect("a coarse pool");
        let allocate: unsafe extern "C" fn(u64, usize, u32, *mut *mut c_void) -> u32 =
            function("hsa_amd_memory_pool_allocate");
        let mut at: *mut c_void = ptr::null_mut();
        // SAFETY: writes one pointer.
        ok(unsafe { allocate(pool, len, 0, &raw mut at) });
        let address = at.expose_provenance() as u64;
        Self { address }
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let free: unsafe extern "C" fn(*mut c_void) -> u32 = function("hsa_amd_memory_pool_free");
        // SAFETY: allocated once, freed once. A test may have the call fail.
        unsafe { free(ptr::with_exposed_provenance_mut(self.address as usize)) };
    }
}

/// The devices.
pub(crate) fn devices() -> Vec<u64> {
    agents(GPU)
}

/// The host.
pub(crate) fn host() -> u64 {
    agents(CPU)[0]
}

/// Of memory of the host that moves: which agent it prefers, and to which it was prefetched; 0 for none.
pub(crate) fn svm(address: u64, len: usize) -> [u64; 2] {
    type Get = unsafe extern "C" fn(*mut c_void, usize, *mut [u64; 2], usize) -> u32;
    let get: Get = function("hsa_amd_svm_attributes_get");
    let mut pairs = [[4, 7], [5, 7]];
    let at = ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: a list of two pairs.
    ok(unsafe { get(at, len, pairs.as_mut_ptr(), pairs.len()) });
    pairs.map(|[_, value]| value)
}

/// As `hipMemAdvise`.
pub(crate) fn prefer(address: u64, len: usize, agent: u64) {
    type Set = unsafe extern "C" fn(*mut c_void, usize, *mut [u64; 2], usize) -> u32;
    let set: Set = function("hsa_amd_svm_attributes_set");
    let mut pair = [4, agent];
    let at = ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: a list of one pair.
    ok(unsafe { set(at, len, &raw mut pair, 1) });
}

/// Memory of a device.
pub(crate) fn on_device(device: u16, len: usize) -> Allocation {
    Allocation::new(agents(GPU)[usize::from(device)], len)
}

/// Memory of the host's coarse pool.
pub(crate) fn on_host(len: usize) -> Allocation {
    Allocation::new(agents(CPU)[0], len)
}

/// Host memory that is locked for all devices. Undone on drop.
#[derive(Debug)]
pub(crate) struct Locked {
    host: NonNull<u8>,
    /// Where devices have it.
    pub(crate) agent_address: u64,
}

/// Locks host memory, which its owner keeps until the result is dropped.
pub(crate) fn lock(memory: &mut [u8]) -> Locked {
    type Lock = unsafe extern "C" fn(*mut c_void, usize, *const u64, i32, *mut *mut c_void) -> u32;
    let host = NonNull::from(&mut *memory).cast::<u8>();
    let lock: Lock = function("hsa_amd_memory_lock");
    let mut at: *mut c_void = ptr::null_mut();
    // SAFETY: no agents are listed: all; writes one pointer.
    ok(unsafe {
        lock(
            host.as_ptr().cast(),
            memory.len(),
            ptr::null(),
            0,
            &raw mut at,
        )
    });
    Locked {
        host,
        agent_address: at.expose_provenance() as u64,
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let unlock: unsafe extern "C" fn(*mut c_void) -> u32 = function("hsa_amd_memory_unlock");
        // SAFETY: locked once, unlocked once.
        ok(unsafe { unlock(self.host.as_ptr().cast()) });
    }
}
