#![allow(unsafe_code)]
//! Synapse as a program sees it that was made from the vendor's header alone: nothing is shared with the emulator.
//!
//! # Safety
//! Each function's type is written from the public header; the pointers that tests pass live through the call.

#![allow(non_snake_case)]

use std::{
    ffi::{CString, c_char, c_void},
    mem::offset_of,
    sync::OnceLock,
};

use crate::support::{again, emulated, passes};

/// `synStatus`: the numbers that a copying program meets.
pub(crate) const INVALID_ARGUMENT: i32 = 1;
pub(crate) const OUT_OF_DEVICE_MEMORY: i32 = 4;
pub(crate) const NOT_INITIALISED_OBJECT: i32 = 6;
pub(crate) const NO_DEVICE: i32 = 8;
pub(crate) const TYPE_MISMATCH: i32 = 9;
pub(crate) const DEVICE_RESET: i32 = 17;
pub(crate) const UNSUPPORTED: i32 = 18;
pub(crate) const ALREADY_ACQUIRED: i32 = 20;
pub(crate) const BUSY: i32 = 22;
pub(crate) const FAIL: i32 = 26;
pub(crate) const UNINITIALISED: i32 = 28;
pub(crate) const ALREADY_INITIALISED: i32 = 29;
pub(crate) const INVALID_EVENT: i32 = 33;
pub(crate) const NOT_MAPPED: i32 = 34;

/// `synDmaDir`.
pub(crate) const TO_DEVICE: u32 = 0;
pub(crate) const TO_HOST: u32 = 1;
pub(crate) const WITHIN: u32 = 2;

/// `synDeviceType`.
pub(crate) const GAUDI2: u32 = 4;
pub(crate) const GAUDI3: u32 = 5;
pub(crate) const ANY_TYPE: u32 = 7;
pub(crate) const TYPES: usize = 8;

/// `eventCreateFlags`.
pub(crate) const COLLECT_TIME: u32 = 1;

/// `STATUS_DESCRIPTION_MAX_SIZE`, `SYN_INVALID_DEVICE_ID`.
pub(crate) const DESCRIPTION: usize = 56;
pub(crate) const NO_ID: u32 = u32::MAX;

/// `synDeviceAttribute`.
pub(crate) mod attribute {
    pub(crate) const SRAM_BASE: u32 = 0;
    pub(crate) const DRAM_SIZE: u32 = 3;
    pub(crate) const DRAM_FREE: u32 = 4;
    pub(crate) const DEVICE_TYPE: u32 = 7;
    pub(crate) const CLOCK_RATE: u32 = 8;
    pub(crate) const ALIGNMENT: u32 = 11;
    pub(crate) const MAX_DIMS: u32 = 12;
}

/// `synDeviceInfoV2`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Info {
    pub(crate) sram_base: u64,
    pub(crate) dram_base: u64,
    pub(crate) sram_size: u32,
    pub(crate) dram_size: u64,
    pub(crate) tpc_mask: u64,
    pub(crate) dram_enabled: u8,
    pub(crate) device_id: u32,
    pub(crate) fd: u32,
    pub(crate) kind: u32,
    pub(crate) index: u8,
    pub(crate) hbm_base: u64,
}

// As a C compiler lays the header's struct out.
const _: () = {
    assert!(size_of::<Info>() == 72 && align_of::<Info>() == 8);
    assert!(offset_of!(Info, sram_base) == 0 && offset_of!(Info, dram_base) == 8);
    assert!(offset_of!(Info, sram_size) == 16 && offset_of!(Info, dram_size) == 24);
    assert!(offset_of!(Info, tpc_mask) == 32 && offset_of!(Info, dram_enabled) == 40);
    assert!(offset_of!(Info, device_id) == 44 && offset_of!(Info, fd) == 48);
    assert!(offset_of!(Info, kind) == 52 && offset_of!(Info, index) == 56);
    assert!(offset_of!(Info, hbm_base) == 64);
};

fn handle() -> *mut c_void {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let handle = HANDLE.get_or_init(|| {
        let path = emulated::synapse();
        let name = CString::new(path.to_str().expect("a path in UTF-8")).expect("no zero bytes");
        // SAFETY: a C string; the library's start does nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} does not load", path.display());
        handle.expose_provenance()
    });
    std::ptr::with_exposed_provenance_mut(*handle)
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(pub(crate) fn $name($($argument: $type),*) -> i32 {
            // SAFETY: an open library and a C string.
            let address = unsafe { libc::dlsym(handle(), concat!(stringify!($name), "\0").as_ptr().cast()) };
            assert!(!address.is_null(), concat!(stringify!($name), " is missing"));
            // SAFETY: the type is the public header's.
            let function: extern "C" fn($($type),*) -> i32 = unsafe { std::mem::transmute(address) };
            function($($argument),*)
        })*
    };
}

functions! {
    synInitialize();
    synDestroy();
    synDriverGetVersion(version: *mut c_char, len: i32);
    synStatusGetBriefDescription(status: i32, text: *mut c_char, len: usize);
    synDeviceGetCount(count: *mut u32);
    synDeviceGetCountByDeviceType(count: *mut u32, kind: u32);
    synDeviceCount(counts: *mut u32);
    synDeviceGetModuleIDs(modules: *mut u32, len: *mut u32);
    synDeviceAcquire(id: *mut u32, address: *const c_char);
    synDeviceAcquireByModuleId(id: *mut u32, module: u32);
    synDeviceAcquireByDeviceType(id: *mut u32, kind: u32);
    synDeviceRelease(id: u32);
    synDeviceSynchronize(id: u32);
    synDeviceGetInfoV2(id: u32, info: *mut Info);
    synDeviceGetName(name: *mut c_char, len: i32, id: u32);
    synDeviceGetPCIBusId(address: *mut c_char, len: i32, id: u32);
    synDeviceGetMemoryInfo(id: u32, free: *mut u64, total: *mut u64);
    synDeviceGetAttribute(values: *mut u64, which: *const u32, count: u32, id: u32);
    synDeviceGetAttributeByModuleId(values: *mut u64, which: *const u32, count: u32, module: u32);
    synDeviceTypeGetAttribute(values: *mut u64, which: *const u32, count: u32, kind: u32);
    synDeviceMalloc(id: u32, len: u64, wanted: u64, flags: u32, address: *mut u64);
    synDeviceFree(id: u32, address: u64, flags: u32);
    synHostMalloc(id: u32, len: u64, flags: u32, start: *mut *mut c_void);
    synHostFree(id: u32, start: *const c_void, flags: u32);
    synHostMap(id: u32, len: u64, start: *const c_void);
    synHostUnmap(id: u32, start: *const c_void);
    synStreamCreateGeneric(stream: *mut usize, id: u32, flags: u32);
    synStreamDestroy(stream: usize);
    synStreamWaitEvent(stream: usize, event: usize, flags: u32);
    synStreamSynchronize(stream: usize);
    synStreamQuery(stream: usize);
    synEventCreate(event: *mut usize, id: u32, flags: u32);
    synEventDestroy(event: usize);
    synEventRecord(event: usize, stream: usize);
    synEventQuery(event: usize);
    synEventSynchronize(event: usize);
    synEventElapsedTime(nanos: *mut u64, start: usize, end: usize);
    synMemCopyAsync(stream: usize, from: u64, len: u64, to: u64, direction: u32);
    synMemCopyAsyncMultiple(
        stream: usize, from: *const u64, len: *const u64, to: *const u64, direction: u32, count: u64
    );
    synMemsetD8Async(to: u64, value: u8, count: usize, stream: usize);
    synMemsetD16Async(to: u64, value: u16, count: usize, stream: usize);
    synMemsetD32Async(to: u64, value: u32, count: usize, stream: usize);
}

/// A command to the emulator; its answer.
pub(crate) fn control(command: &str) -> String {
    emulated::control_of(&emulated::synapse(), command)
}

/// Demands success.
#[track_caller]
pub(crate) fn ok(status: i32) {
    assert_eq!(status, 0, "the call should succeed");
}

/// Runs a test again, in a process of its own.
pub(crate) fn alone(test: &str, variables: &[(&str, &str)]) {
    passes(again(test).envs(variables.iter().copied()));
}

/// `synInitialize`, and the first card that is free.
#[track_caller]
pub(crate) fn acquired() {
    ok(synInitialize());
    let mut id = NO_ID;
    ok(synDeviceAcquireByDeviceType(&mut id, GAUDI2));
    assert_eq!(id, 0);
}

/// Device memory.
#[track_caller]
pub(crate) fn malloc(len: u64) -> u64 {
    let mut address = 0;
    ok(synDeviceMalloc(0, len, 0, 0, &mut address));
    address
}

/// A stream.
#[track_caller]
pub(crate) fn stream() -> usize {
    let mut stream = 0;
    ok(synStreamCreateGeneric(&mut stream, 0, 0));
    stream
}

/// An event, which takes times or does not.
#[track_caller]
pub(crate) fn event(flags: u32) -> usize {
    let mut event = 0;
    ok(synEventCreate(&mut event, 0, flags));
    event
}

/// Host memory of the program's own, whole pages of it, mapped or not. Nobody takes it away, so nothing is wild that is
/// copied late.
pub(crate) struct Host {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
}

impl Host {
    pub(crate) fn new(len: usize) -> Self {
        // SAFETY: no fixed address.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        let start = start.cast();
        Self { start, len }
    }

    #[track_caller]
    pub(crate) fn mapped(len: usize) -> Self {
        let host = Self::new(len);
        ok(synHostMap(0, len as u64, host.pointer()));
        host
    }

    /// Of `synHostMalloc`.
    #[track_caller]
    pub(crate) fn pinned(len: usize) -> Self {
        let mut start = std::ptr::null_mut();
        ok(synHostMalloc(0, len as u64, 0, &mut start));
        assert!(!start.is_null());
        let start = start.cast();
        Self { start, len }
    }

    pub(crate) fn pointer(&self) -> *const c_void {
        self.start.cast_const().cast()
    }

    pub(crate) fn address(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    /// What is there. No copy may be under way.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: memory of that length; the test has waited for the copies.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// The first byte, which a device may be writing.
    pub(crate) fn first(&self) -> u8 {
        // SAFETY: within the memory.
        unsafe { self.start.read_volatile() }
    }
}

/// Bytes that tell where they are from.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| ((at * 31 + seed * 17 + 5) >> 2) as u8)
        .collect()
}

/// A text that a function writes.
pub(crate) fn text(len: usize, write: impl FnOnce(*mut c_char)) -> String {
    let mut room = vec![0x7F_u8; len + 1];
    write(room.as_mut_ptr().cast());
    assert_eq!(room[len], 0x7F, "no further than there is room");
    let end = room.iter().position(|byte| *byte == 0).expect("it ends");
    room.truncate(end);
    String::from_utf8(room).expect("text")
}

/// Demands that all was given back, that the device can be released, and that nothing else was noticed than `misuses`.
#[track_caller]
pub(crate) fn released(misuses: &[&str]) {
    assert_eq!(
        control("live"),
        "streams 0\nevents 0\nallocations 0\nmapped 0\npinned 0\nbytes 0"
    );
    ok(synDeviceRelease(0));
    noticed(misuses);
}

/// Demands that so much was noticed that must not be done, and nothing else.
#[track_caller]
pub(crate) fn noticed(misuses: &[&str]) {
    let told = control("misuses");
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), misuses.len(), "{told}");
    for (line, misuse) in lines.iter().zip(misuses) {
        assert!(line.contains(misuse), "{line:?} is not about {misuse:?}");
    }
}

/// The status of `run` in a forked child.
pub(crate) fn forked(run: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls one function of the emulator's that answers at once, and ends without a clean-up.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let status = run();
        // SAFETY: it does not return.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: a child of this process.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    libc::WEXITSTATUS(status)
}
