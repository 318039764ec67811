//! The types of `synapse_api.h` (2025) as the public header lays them out, and its numbers.

use std::mem::offset_of;

/// `synStatus`: a newtype, so that codes unknown here survive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Status(pub(crate) i32);

/// What a call gives: a status that is never success is the error.
pub(crate) type Outcome<T = ()> = Result<T, Status>;

impl Status {
    pub(crate) const INVALID_ARGUMENT: Self = Self(1);
    pub(crate) const OUT_OF_DEVICE_MEMORY: Self = Self(4);
    pub(crate) const NO_DEVICE_FOUND: Self = Self(8);
    pub(crate) const DEVICE_RESET: Self = Self(17);
    pub(crate) const DEVICE_ALREADY_ACQUIRED: Self = Self(20);
    pub(crate) const BUSY: Self = Self(22);
    pub(crate) const ALL_RESOURCES_TAKEN: Self = Self(23);
    pub(crate) const FAIL: Self = Self(26);
    pub(crate) const UNINITIALIZED: Self = Self(28);
    pub(crate) const ALREADY_INITIALIZED: Self = Self(29);
    pub(crate) const INVALID_EVENT_HANDLE: Self = Self(33);
    pub(crate) const MAPPING_NOT_FOUND: Self = Self(34);
}

/// `synDeviceInfo`.
#[derive(Clone, Copy, Debug)]
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
}

/// `synDeviceInfoV2`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct InfoV2 {
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
    pub(crate) global_hbm_base: u64,
}

/// `synDeviceInfo` of SynapseAI_Core.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SmallInfo {
    pub(crate) sram_base: u64,
    pub(crate) dram_base: u64,
    pub(crate) sram_size: u32,
    pub(crate) dram_size: u64,
    pub(crate) tpc_mask: u16,
    pub(crate) dram_enabled: u8,
    pub(crate) device_id: u32,
    pub(crate) fd: u32,
    pub(crate) kind: u32,
}

const _: () = {
    assert!(size_of::<Info>() == 56 && offset_of!(Info, tpc_mask) == 32);
    assert!(offset_of!(Info, device_id) == 44 && offset_of!(Info, fd) == 48);
    assert!(offset_of!(Info, kind) == 52 && offset_of!(Info, dram_enabled) == 40);
    assert!(size_of::<InfoV2>() == 72 && offset_of!(InfoV2, fd) == 48);
    assert!(offset_of!(InfoV2, index) == 56 && offset_of!(InfoV2, global_hbm_base) == 64);
    assert!(size_of::<SmallInfo>() == 48 && offset_of!(SmallInfo, fd) == 40);
};
