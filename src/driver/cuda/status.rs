//! What the CUDA driver answers: `CUresult` as a newtype, so that codes which are not known here survive.

use std::fmt;

use crate::{
    driver::status::{status, statuses},
    error::ErrorKind,
};

/// A `CUresult`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub(crate) struct Status(pub(crate) u32);

// Names, numbers, kinds and phrases, from the `cudaError_enum` of `cuda.h` (13.5, and the same in 12.9 as far as it goes).
statuses! {
    SUCCESS = 0, Io, "no error";
    INVALID_VALUE = 1, InvalidArgument, "an argument is not one that the driver takes";
    OUT_OF_MEMORY = 2, Exhausted, "out of memory";
    NOT_INITIALIZED = 3, Io, "the driver is not initialised in this process";
    DEINITIALIZED = 4, Closed, "the driver is shutting down with the process";
    STUB_LIBRARY = 34, Unsupported, "this is the toolkit's stub to link against, not the driver: give the driver's own libcuda.so.1 (WHARF_LIBCUDA)";
    CALL_REQUIRES_NEWER_DRIVER = 36, Unsupported, "the call needs a newer driver";
    DEVICE_UNAVAILABLE = 46, Exhausted, "the device is busy or in an exclusive mode";
    NO_DEVICE = 100, Unsupported, "the driver sees no device (CUDA_VISIBLE_DEVICES may hide them)";
    INVALID_DEVICE = 101, InvalidArgument, "there is no such device";
    DEVICE_NOT_LICENSED = 102, PermissionDenied, "the device has no licence";
    INVALID_IMAGE = 200, Unsupported, "the driver does not understand the kernels' text";
    INVALID_CONTEXT = 201, InvalidArgument, "no context is current, or not this one";
    MAP_FAILED = 205, Io, "mapping failed";
    UNMAP_FAILED = 206, Io, "unmapping failed";
    ALREADY_MAPPED = 208, InvalidArgument, "it is mapped already";
    NOT_MAPPED = 211, InvalidArgument, "it is not mapped";
    NO_BINARY_FOR_GPU = 209, Unsupported, "the kernels' text cannot be made into code for this device";
    ECC_UNCORRECTABLE = 214, DeviceLost, "the device's memory failed beyond correction";
    CONTEXT_ALREADY_IN_USE = 216, InvalidArgument, "the context is in use by another thread";
    PEER_ACCESS_UNSUPPORTED = 217, Unsupported, "the devices cannot reach each other";
    INVALID_PTX = 218, Unsupported, "the driver's compiler refused the kernels' text";
    NVLINK_UNCORRECTABLE = 220, DeviceLost, "an NVLink failed beyond correction";
    JIT_COMPILER_NOT_FOUND = 221, Unsupported, "the driver's compiler was not found: libnvidia-ptxjitcompiler.so.1 belongs beside libcuda.so.1 (containers may lack it)";
    UNSUPPORTED_PTX_VERSION = 222, Unsupported, "the driver's compiler is older than the kernels' text";
    JIT_COMPILATION_DISABLED = 223, Unsupported, "the driver's compiler is turned off (CUDA_DISABLE_PTX_JIT)";
    CONTAINED = 226, DeviceLost, "the device's memory failed, and the failure was contained";
    OPERATING_SYSTEM = 304, Io, "a system call of the driver failed";
    INVALID_HANDLE = 400, InvalidArgument, "the stream, event or handle is not valid here";
    ILLEGAL_STATE = 401, InvalidArgument, "the object is not in a state for it";
    NOT_FOUND = 500, InvalidArgument, "the driver does not find it";
    NOT_READY = 600, WouldBlock, "work is still under way";
    ILLEGAL_ADDRESS = 700, DeviceLost, "the device met an address that is not mapped, and the context is lost";
    LAUNCH_OUT_OF_RESOURCES = 701, Exhausted, "the device has no resources for it";
    LAUNCH_TIMEOUT = 702, DeviceLost, "a kernel ran too long, and the context is lost";
    PEER_ACCESS_ALREADY_ENABLED = 704, InvalidArgument, "peer access is on already";
    PEER_ACCESS_NOT_ENABLED = 705, InvalidArgument, "peer access is not on";
    PRIMARY_CONTEXT_ACTIVE = 708, InvalidArgument, "the primary context is active already";
    CONTEXT_IS_DESTROYED = 709, DeviceLost, "the context was destroyed";
    ASSERT = 710, DeviceLost, "a kernel's assertion failed, and the context is lost";
    TOO_MANY_PEERS = 711, Exhausted, "the device has no room for another peer";
    HOST_MEMORY_ALREADY_REGISTERED = 712, InvalidArgument, "the host memory is registered already";
    HOST_MEMORY_NOT_REGISTERED = 713, InvalidArgument, "the host memory is not registered at this address";
    HARDWARE_STACK_ERROR = 714, DeviceLost, "a kernel's stack broke, and the context is lost";
    ILLEGAL_INSTRUCTION = 715, DeviceLost, "a kernel met an illegal instruction, and the context is lost";
    MISALIGNED_ADDRESS = 716, DeviceLost, "the device met a misaligned address, and the context is lost";
    INVALID_ADDRESS_SPACE = 717, DeviceLost, "a kernel used a wrong address space, and the context is lost";
    INVALID_PC = 718, DeviceLost, "a kernel lost its way, and the context is lost";
    LAUNCH_FAILED = 719, DeviceLost, "a kernel failed, and the context is lost";
    TENSOR_MEMORY_LEAK = 721, DeviceLost, "a kernel left tensor memory, and the context is lost";
    NOT_PERMITTED = 800, PermissionDenied, "this is not permitted (within a callback no call is)";
    NOT_SUPPORTED = 801, Unsupported, "this device or system does not have it";
    SYSTEM_NOT_READY = 802, Unsupported, "the system is not ready: its services (the fabric manager) must run first";
    SYSTEM_DRIVER_MISMATCH = 803, Unsupported, "the library and the kernel's driver are of different versions: load the kernel's anew, or give the library that belongs to it";
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, Unsupported, "the compatibility library does not serve this device";
    MPS_CONNECTION_FAILED = 805, Unreachable, "the MPS server does not answer";
    MPS_RPC_FAILURE = 806, Io, "the MPS server failed";
    MPS_SERVER_NOT_READY = 807, Unreachable, "the MPS server is not ready";
    MPS_MAX_CLIENTS_REACHED = 808, Exhausted, "the MPS server takes no more clients";
    MPS_MAX_CONNECTIONS_REACHED = 809, Exhausted, "the device takes no more MPS connections";
    MPS_CLIENT_TERMINATED = 810, DeviceLost, "the MPS server ended this client";
    STREAM_CAPTURE_UNSUPPORTED = 900, InvalidArgument, "the stream is capturing a graph, where this is not allowed";
    STREAM_CAPTURE_INVALIDATED = 901, InvalidArgument, "the stream's capture of a graph is broken";
    STREAM_CAPTURE_IMPLICIT = 906, InvalidArgument, "this would depend on a stream that is capturing a graph";
    CAPTURED_EVENT = 907, InvalidArgument, "the event belongs to the capture of a graph";
    TIMEOUT = 909, DeadlineExceeded, "the driver's time for it ran out";
    EXTERNAL_DEVICE = 911, DeviceLost, "a device outside CUDA failed";
    FABRIC_NOT_READY = 919, Unsupported, "the fabric between the devices is not ready";
    UNKNOWN = 999, Io, "the driver does not say what failed";
}

impl Status {
    /// Whether, said to a call with objects of our own, it means that the context is lost or was destroyed: no later call can succeed.
    pub(crate) const fn is_end(self) -> bool {
        matches!(self.kind(), ErrorKind::DeviceLost)
            || matches!(
                self,
                Self::DEINITIALIZED | Self::INVALID_CONTEXT | Self::INVALID_HANDLE
            )
    }
}

status!(Status, success: Self::SUCCESS);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some(("SUCCESS", _, phrase)) => f.write_str(phrase),
            Some((name, _, phrase)) => write!(f, "{phrase} (CUDA_ERROR_{name}, {})", self.0),
            None => write!(f, "CUDA error {}", self.0),
        }
    }
}
