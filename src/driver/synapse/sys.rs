//! What `synapse_api.h` says: types, numbers, structs and the table of functions.
//!
//! The source is the public headers `synapse_api.h`, `synapse_api_types.h` and `synapse_common_types.h` as Intel ships them with HCL (2025); sizes
//! and offsets were printed by a C compiler.

use std::{
    ffi::{c_char, c_void},
    mem::offset_of,
};

use super::status::Status;
use crate::driver::library::symbols;

/// `synStreamHandle`, an opaque pointer.
pub(super) type RawStream = usize;
/// `synEventHandle`, an opaque pointer.
pub(super) type RawEvent = usize;
/// `synDeviceId`: the process's number of a device that it has acquired.
pub(super) type DeviceId = u32;

/// For [`Symbols::synDeviceGetInfoV2`]: the number is not looked at, the one device of the process is meant.
pub(super) const THE_DEVICE: DeviceId = u32::MAX;

/// `synDeviceInfoV2`. Older runtimes call its last word reserved and leave it 0.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct RawInfo {
    pub(super) sram_base: u64,
    pub(super) dram_base: u64,
    pub(super) sram_size: u32,
    pub(super) dram_size: u64,
    pub(super) tpc_mask: u64,
    pub(super) dram_enabled: u8,
    pub(super) device_id: u32,
    pub(super) fd: u32,
    pub(super) device_type: u32,
    pub(super) device_index: u8,
    pub(super) global_hbm_base: u64,
}

/// Room for an info that is longer than the one that is known here.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct InfoRoom {
    pub(super) info: RawInfo,
    pub(super) rest: [u64; 503],
}

impl InfoRoom {
    /// All zero.
    pub(super) const ZERO: Self = Self {
        info: RawInfo {
            sram_base: 0,
            dram_base: 0,
            sram_size: 0,
            dram_size: 0,
            tpc_mask: 0,
            dram_enabled: 0,
            device_id: 0,
            fd: 0,
            device_type: 0,
            device_index: 0,
            global_hbm_base: 0,
        },
        rest: [0; 503],
    };
}

const _: () = {
    assert!(size_of::<Status>() == 4 && size_of::<RawStream>() == size_of::<*mut c_void>());
    assert!(size_of::<RawInfo>() == 72 && align_of::<RawInfo>() == 8);
    assert!(offset_of!(RawInfo, dram_base) == 8 && offset_of!(RawInfo, sram_size) == 16);
    assert!(offset_of!(RawInfo, dram_size) == 24 && offset_of!(RawInfo, tpc_mask) == 32);
    assert!(offset_of!(RawInfo, dram_enabled) == 40 && offset_of!(RawInfo, device_id) == 44);
    assert!(offset_of!(RawInfo, fd) == 48 && offset_of!(RawInfo, device_type) == 52);
    assert!(offset_of!(RawInfo, device_index) == 56 && offset_of!(RawInfo, global_hbm_base) == 64);
    assert!(size_of::<InfoRoom>() == 4096 && offset_of!(InfoRoom, info) == 0);
};

symbols! {
    /// The functions of `libSynapse.so`. There is no version to ask for: `since` is 0 throughout. `synDestroy` is not among them: it ends Synapse
    /// for everybody in the process, and hangs where there is no device.
    struct Symbols;
    required {
        synInitialize() -> Status, since 0;
        synDeviceAcquire(*mut DeviceId, *const c_char) -> Status, since 0;
        synDeviceRelease(DeviceId) -> Status, since 0;
        synDeviceGetInfoV2(DeviceId, *mut RawInfo) -> Status, since 0;
        synDeviceGetMemoryInfo(DeviceId, *mut u64, *mut u64) -> Status, since 0;
        synDeviceMalloc(DeviceId, u64, u64, u32, *mut u64) -> Status, since 0;
        synDeviceFree(DeviceId, u64, u32) -> Status, since 0;
        synHostMap(DeviceId, u64, *const c_void) -> Status, since 0;
        synHostUnmap(DeviceId, *const c_void) -> Status, since 0;
        synStreamCreateGeneric(*mut RawStream, DeviceId, u32) -> Status, since 0;
        synStreamDestroy(RawStream) -> Status, since 0;
        synStreamQuery(RawStream) -> Status, since 0;
        synEventCreate(*mut RawEvent, DeviceId, u32) -> Status, since 0;
        synEventDestroy(RawEvent) -> Status, since 0;
        synEventRecord(RawEvent, RawStream) -> Status, since 0;
        synEventQuery(RawEvent) -> Status, since 0;
        synMemCopyAsync(RawStream, u64, u64, u64, u32) -> Status, since 0;
        synMemsetD8Async(u64, u8, usize, RawStream) -> Status, since 0;
    }
    optional {
    }
}
