//! What the HSA runtime answers: `hsa_status_t` as a newtype, so that codes which are not known here survive.

use std::fmt;

use crate::{
    driver::status::{status, statuses},
    error::ErrorKind,
};

/// An `hsa_status_t`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub(crate) struct Status(pub(crate) u32);

// Names, numbers, kinds and phrases, from `hsa.h` and `hsa_ext_amd.h`.
statuses! {
    SUCCESS = 0, Io, "no error";
    INFO_BREAK = 1, Io, "the iteration was ended";
    ERROR_INVALID_MEMORY_POOL = 40, InvalidArgument, "there is no such memory pool";
    ERROR_MEMORY_APERTURE_VIOLATION = 41, DeviceLost, "the device left its memory's bounds";
    ERROR_ILLEGAL_INSTRUCTION = 42, DeviceLost, "a kernel met an illegal instruction";
    ERROR_MEMORY_FAULT = 43, DeviceLost, "the device met an address that it cannot reach";
    ERROR_RESOURCE_BUSY = 46, Exhausted, "the resource is in use";
    ERROR = 0x1000, Io, "the runtime does not say what failed";
    ERROR_INVALID_ARGUMENT = 0x1001, InvalidArgument, "an argument is not one that the runtime takes";
    ERROR_INVALID_QUEUE_CREATION = 0x1002, InvalidArgument, "the queue is not possible";
    ERROR_INVALID_ALLOCATION = 0x1003, InvalidArgument, "there is no such allocation, or it is not possible";
    ERROR_INVALID_AGENT = 0x1004, InvalidArgument, "there is no such agent, or not one for this";
    ERROR_INVALID_REGION = 0x1005, InvalidArgument, "there is no such memory region";
    ERROR_INVALID_SIGNAL = 0x1006, InvalidArgument, "there is no such signal";
    ERROR_INVALID_QUEUE = 0x1007, InvalidArgument, "there is no such queue";
    ERROR_OUT_OF_RESOURCES = 0x1008, Exhausted, "out of memory, threads or other resources";
    ERROR_INVALID_PACKET_FORMAT = 0x1009, Io, "a packet is not well formed";
    ERROR_RESOURCE_FREE = 0x100A, Io, "releasing a resource failed";
    ERROR_NOT_INITIALIZED = 0x100B, Closed, "the runtime is not initialised, or was shut down more often than initialised";
    ERROR_REFCOUNT_OVERFLOW = 0x100C, Exhausted, "the runtime was initialised too often";
    ERROR_INCOMPATIBLE_ARGUMENTS = 0x100D, InvalidArgument, "the arguments do not go together";
    ERROR_INVALID_INDEX = 0x100E, InvalidArgument, "there is no such index";
    ERROR_EXCEPTION = 0x1016, DeviceLost, "the device met an exception";
    ERROR_INVALID_RUNTIME_STATE = 0x1025, Io, "the runtime is in no state for it";
    ERROR_FATAL = 0x1026, DeviceLost, "a failure that cannot be mended";
}

status!(Status, success: Self::SUCCESS);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some(("SUCCESS", _, phrase)) => f.write_str(phrase),
            Some((name, _, phrase)) => write!(f, "{phrase} (HSA_STATUS_{name}, {:#x})", self.0),
            None => write!(f, "HSA status {:#x}", self.0),
        }
    }
}
