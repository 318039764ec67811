//! What `hsa.h` and `hsa_ext_amd.h` say. The sources are the headers of ROCm 5.2.3 (Debian 12) and of ROCR-Runtime of October 2024 for what
//! came later; sizes and offsets were printed by a C compiler.

use std::{
    ffi::{c_int, c_void},
    mem::offset_of,
};

use super::Status;
use crate::driver::library::symbols;

/// `hsa_agent_t`, given and taken by value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub(crate) struct RawAgent(pub(crate) u64);

/// `hsa_amd_memory_pool_t`, given and taken by value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct RawPool(pub(crate) u64);

/// `hsa_signal_t`, given and taken by value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct RawSignal(pub(crate) u64);

/// `hsa_amd_pointer_info_t`. It may grow; `size` says how far both sides know it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct RawPointerInfo {
    pub(super) size: u32,
    pub(super) kind: u32,
    pub(super) agent_base: u64,
    pub(super) host_base: u64,
    pub(super) len: usize,
    pub(super) user_data: u64,
    pub(super) owner: RawAgent,
    pub(super) flags: u32,
}

impl RawPointerInfo {
    /// Asked for in this size; nothing known yet.
    pub(super) const EMPTY: Self = Self {
        size: size_of::<Self>() as u32,
        kind: pointer::UNKNOWN,
        agent_base: 0,
        host_base: 0,
        len: 0,
        user_data: 0,
        owner: RawAgent(0),
        flags: 0,
    };
}

/// `hsa_amd_ipc_memory_t`: 32 bytes that mean memory of one process in another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct IpcHandle(pub(crate) [u32; 8]);

impl IpcHandle {
    /// The bytes, as they travel.
    pub(crate) fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (place, word) in bytes.chunks_exact_mut(4).zip(self.0) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// What came.
    pub(crate) fn from_bytes(bytes: &[u8; 32]) -> Self {
        let mut words = [0; 8];
        for (word, place) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = u32::from_ne_bytes(*place);
        }
        Self(words)
    }
}

/// `hsa_amd_event_t` with the members of its union, which all have these fields first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct RawEvent {
    pub(super) event_type: u32,
    pub(super) agent: RawAgent,
    /// The address of a memory fault or error; two words of flags for a hardware exception.
    pub(super) address: u64,
    /// Why, for memory faults and errors. Not there for a hardware exception.
    pub(super) reason: u32,
}

/// `hsa_amd_svm_attribute_pair_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct SvmPair {
    pub(super) attribute: u64,
    pub(super) value: u64,
}

/// `hsa_amd_svm_attribute_t`.
pub(super) mod svm {
    /// An agent's handle; 0 for none.
    pub(in super::super) const PREFERRED_LOCATION: u64 = 4;
}

const _: () = {
    assert!(size_of::<SvmPair>() == 16);
    assert!(size_of::<Status>() == 4);
    assert!(size_of::<RawAgent>() == 8 && size_of::<RawPool>() == 8 && size_of::<RawSignal>() == 8);
    assert!(size_of::<RawPointerInfo>() == 56 && align_of::<RawPointerInfo>() == 8);
    assert!(offset_of!(RawPointerInfo, kind) == 4);
    assert!(offset_of!(RawPointerInfo, agent_base) == 8);
    assert!(offset_of!(RawPointerInfo, host_base) == 16);
    assert!(offset_of!(RawPointerInfo, len) == 24);
    assert!(offset_of!(RawPointerInfo, user_data) == 32);
    assert!(offset_of!(RawPointerInfo, owner) == 40);
    assert!(offset_of!(RawPointerInfo, flags) == 48);
    assert!(size_of::<IpcHandle>() == 32 && align_of::<IpcHandle>() == 4);
    assert!(size_of::<RawEvent>() == 32 && offset_of!(RawEvent, agent) == 8);
    assert!(offset_of!(RawEvent, address) == 16 && offset_of!(RawEvent, reason) == 24);
};

/// `hsa_agent_info_t` and `hsa_amd_agent_info_t`.
pub(super) mod agent {
    /// 64 characters.
    pub(in super::super) const NAME: u32 = 0;
    /// u32: `DEVICE_CPU`, `DEVICE_GPU` or another.
    pub(in super::super) const DEVICE: u32 = 17;
    /// u32: bus 8 bits, device 5, function 3.
    pub(in super::super) const BDF: u32 = 0xA006;
    /// 64 characters.
    pub(in super::super) const PRODUCT_NAME: u32 = 0xA009;
    /// Two pointers to u32: registers that flush what the host wrote through the BAR.
    pub(in super::super) const HDP_FLUSH: u32 = 0xA00E;
    /// u32.
    pub(in super::super) const DOMAIN: u32 = 0xA00F;
    /// 21 characters: `GPU-` and 16 hexadecimal digits, or `GPU-XX` for none.
    pub(in super::super) const UUID: u32 = 0xA011;
}

/// `HSA_DEVICE_TYPE_CPU` and `.._GPU`.
pub(super) const DEVICE_CPU: u32 = 0;
pub(super) const DEVICE_GPU: u32 = 1;

/// `hsa_amd_memory_pool_info_t`.
pub(super) mod pool {
    /// u32.
    pub(in super::super) const SEGMENT: u32 = 0;
    /// u32.
    pub(in super::super) const GLOBAL_FLAGS: u32 = 1;
    /// usize.
    pub(in super::super) const SIZE: u32 = 2;
    /// bool.
    pub(in super::super) const ALLOC_ALLOWED: u32 = 5;
}

/// `HSA_AMD_SEGMENT_GLOBAL`.
pub(super) const SEGMENT_GLOBAL: u32 = 0;
/// `HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_*`.
pub(super) const POOL_KERNARG: u32 = 1;
pub(super) const POOL_FINE: u32 = 2;
pub(super) const POOL_COARSE: u32 = 4;

/// `hsa_amd_agent_memory_pool_info_t`: how an agent reaches a pool.
pub(super) mod reach {
    /// u32.
    pub(in super::super) const ACCESS: u32 = 0;
}

/// `hsa_amd_pointer_type_t`.
pub(super) mod pointer {
    pub(in super::super) const UNKNOWN: u32 = 0;
    pub(in super::super) const ALLOCATED: u32 = 1;
    pub(in super::super) const LOCKED: u32 = 2;
    pub(in super::super) const GRAPHICS: u32 = 3;
    pub(in super::super) const IPC: u32 = 4;
    pub(in super::super) const RESERVED: u32 = 5;
}

/// `hsa_system_info_t` and `hsa_amd_system_info_t`.
pub(super) mod system {
    /// u16.
    pub(in super::super) const VERSION_MAJOR: u32 = 0;
    /// bool.
    pub(in super::super) const SVM_SUPPORTED: u32 = 0x201;
    /// bool; `INVALID_ARGUMENT` where it is not known.
    pub(in super::super) const DMABUF_SUPPORTED: u32 = 0x204;
}

/// `HSA_SIGNAL_CONDITION_LT`.
pub(super) const CONDITION_LESS: u32 = 2;
/// `HSA_WAIT_STATE_BLOCKED`.
pub(super) const WAIT_BLOCKED: u32 = 0;

/// `hsa_amd_event_type_t`.
pub(super) const EVENT_MEMORY_FAULT: u32 = 0;
pub(super) const EVENT_HARDWARE_EXCEPTION: u32 = 1;
pub(super) const EVENT_MEMORY_ERROR: u32 = 2;

/// A function that iterating calls for each agent.
pub(super) type OnAgent = unsafe extern "C" fn(RawAgent, *mut c_void) -> Status;
/// A function that iterating calls for each pool.
pub(super) type OnPool = unsafe extern "C" fn(RawPool, *mut c_void) -> Status;
/// `hsa_amd_signal_handler`: gets the value, and says whether to be called again.
pub(super) type OnSignal = unsafe extern "C" fn(i64, *mut c_void) -> bool;
/// `hsa_amd_deallocation_callback_t`.
pub(super) type OnFree = unsafe extern "C" fn(*mut c_void, *mut c_void);
/// `hsa_amd_system_event_callback_t`.
pub(super) type OnEvent = unsafe extern "C" fn(*const RawEvent, *mut c_void) -> Status;

symbols! {
    /// The functions of `libhsa-runtime64.so.1`. `since` is 1000 for what ROCm 5.2.3 has, and 1000 + n for what minor version n of the AMD
    /// extension's interface brought after it.
    struct Symbols;
    required {
        hsa_init() -> Status, since 1000;
        hsa_system_get_info(u32, *mut c_void) -> Status, since 1000;
        hsa_iterate_agents(OnAgent, *mut c_void) -> Status, since 1000;
        hsa_agent_get_info(RawAgent, u32, *mut c_void) -> Status, since 1000;
        hsa_signal_create(i64, u32, *const RawAgent, *mut RawSignal) -> Status, since 1000;
        hsa_signal_destroy(RawSignal) -> Status, since 1000;
        hsa_signal_load_scacquire(RawSignal) -> i64, since 1000;
        hsa_signal_store_screlease(RawSignal, i64), since 1000;
        hsa_signal_wait_scacquire(RawSignal, u32, i64, u64, u32) -> i64, since 1000;
        hsa_amd_agent_iterate_memory_pools(RawAgent, OnPool, *mut c_void) -> Status, since 1000;
        hsa_amd_memory_pool_get_info(RawPool, u32, *mut c_void) -> Status, since 1000;
        hsa_amd_agent_memory_pool_get_info(RawAgent, RawPool, u32, *mut c_void) -> Status, since 1000;
        hsa_amd_memory_pool_allocate(RawPool, usize, u32, *mut *mut c_void) -> Status, since 1000;
        hsa_amd_memory_pool_free(*mut c_void) -> Status, since 1000;
        hsa_amd_agents_allow_access(u32, *const RawAgent, *const u32, *const c_void) -> Status, since 1000;
        hsa_amd_memory_lock(*mut c_void, usize, *mut RawAgent, c_int, *mut *mut c_void) -> Status, since 1000;
        hsa_amd_memory_unlock(*mut c_void) -> Status, since 1000;
        hsa_amd_pointer_info(*const c_void, *mut RawPointerInfo, *const c_void, *mut u32, *mut *mut RawAgent) -> Status, since 1000;
        hsa_amd_memory_async_copy(*mut c_void, RawAgent, *const c_void, RawAgent, usize, u32, *const RawSignal, RawSignal) -> Status, since 1000;
        hsa_amd_signal_async_handler(RawSignal, u32, i64, OnSignal, *mut c_void) -> Status, since 1000;
        hsa_amd_ipc_memory_create(*mut c_void, usize, *mut IpcHandle) -> Status, since 1000;
        hsa_amd_ipc_memory_attach(*const IpcHandle, usize, u32, *const RawAgent, *mut *mut c_void) -> Status, since 1000;
        hsa_amd_ipc_memory_detach(*mut c_void) -> Status, since 1000;
        hsa_amd_register_deallocation_callback(*mut c_void, OnFree, *mut c_void) -> Status, since 1000;
        hsa_amd_deregister_deallocation_callback(*mut c_void, OnFree) -> Status, since 1000;
    }
    optional {
        hsa_amd_register_system_event_handler(OnEvent, *mut c_void) -> Status, since 1000;
        hsa_amd_memory_fill(*mut c_void, u32, usize) -> Status, since 1000;
        hsa_amd_svm_attributes_set(*mut c_void, usize, *mut SvmPair, usize) -> Status, since 1000;
        hsa_amd_svm_attributes_get(*mut c_void, usize, *mut SvmPair, usize) -> Status, since 1000;
        hsa_amd_svm_prefetch_async(*mut c_void, usize, RawAgent, u32, *const RawSignal, RawSignal) -> Status, since 1000;
        hsa_amd_interop_map_buffer(u32, *mut RawAgent, c_int, u32, *mut usize, *mut *mut c_void, *mut usize, *mut *const c_void) -> Status, since 1000;
        hsa_amd_interop_unmap_buffer(*mut c_void) -> Status, since 1000;
        hsa_amd_portable_export_dmabuf(*const c_void, usize, *mut c_int, *mut u64) -> Status, since 1001;
        hsa_amd_portable_close_dmabuf(c_int) -> Status, since 1001;
    }
}
