//! What `gdrapi.h` says. The source is the header of GDRCopy 2.6 (`include/gdrapi.h`); the sizes were printed by a C compiler.

use std::{ffi::c_void, mem::offset_of};

use crate::driver::library::symbols;

/// `gdr_t`, an opaque pointer.
pub(super) type RawGdr = usize;

/// `gdr_mh_t`, given and taken by value.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct RawHandle(pub(super) u64);

/// What asks for [`Info`].
pub(super) type GetInfo = unsafe extern "C" fn(RawGdr, RawHandle, *mut Info) -> i32;

/// `gdr_info_v2_t`; `gdr_info_t`, of 40 bytes, ends before `mapping_type`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Info {
    pub(super) address: u64,
    pub(super) mapped_len: u64,
    pub(super) page_size: u32,
    pub(super) cycles: u64,
    pub(super) cycles_per_ms: u32,
    /// Bit 0: mapped; bit 1: write combining.
    pub(super) flags: u32,
    pub(super) mapping_type: u32,
}

const _: () = {
    assert!(size_of::<RawHandle>() == 8);
    assert!(size_of::<Info>() == 48 && offset_of!(Info, page_size) == 16);
    assert!(offset_of!(Info, cycles) == 24 && offset_of!(Info, cycles_per_ms) == 32);
    assert!(offset_of!(Info, flags) == 36 && offset_of!(Info, mapping_type) == 40);
};

symbols! {
    /// The functions of `libgdrapi.so.2`. `since` is 1000 × major + 10 × minor of the library.
    struct Symbols;
    required {
        gdr_open() -> RawGdr, since 2000;
        gdr_close(RawGdr) -> i32, since 2000;
        gdr_pin_buffer(RawGdr, u64, usize, u64, u32, *mut RawHandle) -> i32, since 2000;
        gdr_unpin_buffer(RawGdr, RawHandle) -> i32, since 2000;
        gdr_map(RawGdr, RawHandle, *mut *mut c_void, usize) -> i32, since 2000;
        gdr_unmap(RawGdr, RawHandle, *mut c_void, usize) -> i32, since 2000;
        gdr_copy_to_mapping(RawHandle, *mut c_void, *const c_void, usize) -> i32, since 2000;
        gdr_copy_from_mapping(RawHandle, *mut c_void, *const c_void, usize) -> i32, since 2000;
        gdr_runtime_get_version(*mut i32, *mut i32), since 2000;
    }
    optional {
        gdr_get_info(RawGdr, RawHandle, *mut Info) -> i32, since 2000;
        gdr_get_info_v2(RawGdr, RawHandle, *mut Info) -> i32, since 2040;
    }
}
