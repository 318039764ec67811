//! The types of `synapse_api.h` (2025) as the public header lays them out, and its numbers.

use std::mem::offset_of;

/// `synStatus`: a newtype, so that codes unknown here survive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Status(pub(crate) i32);

/// What a call gives: a status that is never success is the error.
pub(crate) type Outcome<T = ()> = Result<T, Status>;

impl Status {
    pub(crate) const INVALID_ARGUMENT: Self = Self(1);
    pub(crate) const OUT_OF_HOST_MEMORY: Self = Self(3);
    pub(crate) const OUT_OF_DEVICE_MEMORY: Self = Self(4);
    pub(crate) const NOT_RECORDED: Self = Self(6);
    pub(crate) const NO_DEVICE_FOUND: Self = Self(8);
    pub(crate) const TYPE_MISMATCH: Self = Self(9);
    pub(crate) const DEVICE_RESET: Self = Self(17);
    pub(crate) const UNSUPPORTED: Self = Self(18);
    pub(crate) const DEVICE_ALREADY_ACQUIRED: Self = Self(20);
    pub(crate) const BUSY: Self = Self(22);
    pub(crate) const ALL_RESOURCES_TAKEN: Self = Self(23);
    pub(crate) const FAIL: Self = Self(26);
    pub(crate) const UNINITIALIZED: Self = Self(28);
    pub(crate) const ALREADY_INITIALIZED: Self = Self(29);
    pub(crate) const INVALID_EVENT_HANDLE: Self = Self(33);
    pub(crate) const MAPPING_NOT_FOUND: Self = Self(34);
}

/// The statuses' names, by their numbers.
pub(crate) const STATUSES: [&str; 44] = [
    "synSuccess",
    "synInvalidArgument",
    "synCbFull",
    "synOutOfHostMemory",
    "synOutOfDeviceMemory",
    "synObjectAlreadyInitialized",
    "synObjectNotInitialized",
    "synCommandSubmissionFailure",
    "synNoDeviceFound",
    "synDeviceTypeMismatch",
    "synFailedToInitializeCb",
    "synFailedToFreeCb",
    "synFailedToMapCb",
    "synFailedToUnmapCb",
    "synFailedToAllocateDeviceMemory",
    "synFailedToFreeDeviceMemory",
    "synFailedNotEnoughDevicesFound",
    "synDeviceReset",
    "synUnsupported",
    "synWrongParamsFile",
    "synDeviceAlreadyAcquired",
    "synNameIsAlreadyUsed",
    "synBusy",
    "synAllResourcesTaken",
    "synUnavailable",
    "synInvalidTensorDimensions",
    "synFail",
    "synOutOfResources",
    "synUninitialized",
    "synAlreadyInitialized",
    "synFailedSectionValidation",
    "synSynapseTerminated",
    "synAssertAsync",
    "synInvalidEventHandle",
    "synMappingNotFound",
    "synFailedDynamicPatching",
    "synFailedStaticPatching",
    "synFailedToSubmitWorkload",
    "synInvalidSectionsDefinition",
    "synInvalidTensorProperties",
    "synFailHccl",
    "synFailedToCollectTime",
    "synTimeout",
    "synResourceBadUsage",
];

/// `synDeviceType` of a generation's cards.
pub(crate) const fn device_type(generation: u64) -> u32 {
    match generation {
        1 => 2,
        2 => 4,
        _ => 5,
    }
}

/// `synDeviceTypeInvalid`: any device, to those that acquire one.
pub(crate) const ANY_TYPE: u32 = 7;

/// `synDeviceAttribute`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Attribute {
    SramBase,
    DramBase,
    SramSize,
    DramSize,
    DramFree,
    TpcMask,
    DramEnabled,
    Type,
    ClockRate,
    StreamsMemory,
    Alignment,
    MaxDims,
}

impl Attribute {
    /// The attribute of a number. What graphs alone ask for is not among them.
    pub(crate) const fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::SramBase,
            1 => Self::DramBase,
            2 => Self::SramSize,
            3 => Self::DramSize,
            4 => Self::DramFree,
            5 => Self::TpcMask,
            6 => Self::DramEnabled,
            7 => Self::Type,
            8 => Self::ClockRate,
            10 => Self::StreamsMemory,
            11 => Self::Alignment,
            12 => Self::MaxDims,
            _ => return None,
        })
    }
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
