//! What `scal.h` says. The source is the public header of Intel's SCAL (2024) and its copy in HCL (2025); sizes were printed by a C compiler.

use std::{ffi::c_char, mem::offset_of};

use crate::driver::library::symbols;

/// `scal_handle_t`, an opaque pointer.
pub(super) type RawHandle = usize;
/// `scal_pool_handle_t`, an opaque pointer that lives as long as its handle.
pub(super) type RawPool = usize;

/// `scal_memory_pool_infoV2`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct RawPoolInfo {
    pub(super) scal: usize,
    pub(super) name: usize,
    pub(super) index: u32,
    pub(super) device_base: u64,
    pub(super) host_base: usize,
    pub(super) core_base: u32,
    pub(super) total: u64,
    pub(super) free: u64,
    pub(super) device_allocated_base: u64,
}

/// Room for an info that is longer than the one that is known here.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct InfoRoom {
    pub(super) info: RawPoolInfo,
    pub(super) rest: [u64; 503],
}

impl InfoRoom {
    /// All zero.
    pub(super) fn zero() -> Self {
        Self {
            info: RawPoolInfo::default(),
            rest: [0; 503],
        }
    }
}

const _: () = {
    assert!(size_of::<RawPoolInfo>() == 72 && align_of::<RawPoolInfo>() == 8);
    assert!(offset_of!(RawPoolInfo, name) == 8 && offset_of!(RawPoolInfo, index) == 16);
    assert!(offset_of!(RawPoolInfo, device_base) == 24 && offset_of!(RawPoolInfo, host_base) == 32);
    assert!(offset_of!(RawPoolInfo, core_base) == 40 && offset_of!(RawPoolInfo, total) == 48);
    assert!(offset_of!(RawPoolInfo, free) == 56);
    assert!(offset_of!(RawPoolInfo, device_allocated_base) == 64);
    assert!(size_of::<InfoRoom>() == 4096 && offset_of!(InfoRoom, info) == 0);
};

symbols! {
    /// The functions of `libscal.so`. There is no version to ask for: `since` is 0 throughout.
    struct Symbols;
    required {
        scal_get_handle_from_fd(i32, *mut RawHandle) -> i32, since 0;
        scal_get_pool_handle_by_name(RawHandle, *const c_char, *mut RawPool) -> i32, since 0;
        scal_pool_get_infoV2(RawPool, *mut RawPoolInfo) -> i32, since 0;
    }
    optional {
    }
}
