#![allow(unsafe_code)]
//! The driver API's types as the public header `cuda.h` (CUDA 12.9 and 13.5) lays them out, and its numbers.
//!
//! # Safety
//! [`Out`] and [`In`] are pointers that a C caller passed. The header's contract makes them null or good for the call;
//! null is checked here, the rest is the caller's duty, as towards the real driver.

use std::{ffi::c_void, mem::offset_of};

/// `CUresult`: a newtype, so that codes unknown here survive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Status(pub(crate) u32);

/// What a call gives: a status that is never [`Status::SUCCESS`] is the error.
pub(crate) type Outcome<T = ()> = Result<T, Status>;

macro_rules! codes {
    ($($name:ident $c_name:literal $code:literal $phrase:literal)*) => {
        impl Status {
            $(pub(crate) const $name: Self = Self($code);)*

            /// Its name in the header and a phrase, as C strings.
            pub(crate) const fn words(self) -> Option<(&'static std::ffi::CStr, &'static std::ffi::CStr)> {
                match self.0 {
                    $($code => Some((
                        match std::ffi::CStr::from_bytes_with_nul(concat!($c_name, "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => return None,
                        },
                        match std::ffi::CStr::from_bytes_with_nul(concat!($phrase, "\0").as_bytes()) {
                            Ok(phrase) => phrase,
                            Err(_) => return None,
                        },
                    )),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    SUCCESS "CUDA_SUCCESS" 0 "no error"
    INVALID_VALUE "CUDA_ERROR_INVALID_VALUE" 1 "invalid argument"
    OUT_OF_MEMORY "CUDA_ERROR_OUT_OF_MEMORY" 2 "out of memory"
    NOT_INITIALIZED "CUDA_ERROR_NOT_INITIALIZED" 3 "initialization error"
    _DEINITIALIZED "CUDA_ERROR_DEINITIALIZED" 4 "driver shutting down"
    _STUB_LIBRARY "CUDA_ERROR_STUB_LIBRARY" 34 "CUDA driver is a stub library"
    NO_DEVICE "CUDA_ERROR_NO_DEVICE" 100 "no CUDA-capable device is detected"
    INVALID_DEVICE "CUDA_ERROR_INVALID_DEVICE" 101 "invalid device ordinal"
    INVALID_IMAGE "CUDA_ERROR_INVALID_IMAGE" 200 "device kernel image is invalid"
    INVALID_CONTEXT "CUDA_ERROR_INVALID_CONTEXT" 201 "invalid device context"
    MAP_FAILED "CUDA_ERROR_MAP_FAILED" 205 "mapping of buffer object failed"
    ALREADY_MAPPED "CUDA_ERROR_ALREADY_MAPPED" 208 "resource already mapped"
    PEER_ACCESS_UNSUPPORTED "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" 217 "peer access is not supported between these two devices"
    INVALID_PTX "CUDA_ERROR_INVALID_PTX" 218 "a PTX JIT compilation failed"
    _JIT_COMPILER_NOT_FOUND "CUDA_ERROR_JIT_COMPILER_NOT_FOUND" 221 "PTX JIT compiler library not found"
    OPERATING_SYSTEM "CUDA_ERROR_OPERATING_SYSTEM" 304 "OS call failed or operation not supported on this OS"
    INVALID_HANDLE "CUDA_ERROR_INVALID_HANDLE" 400 "invalid resource handle"
    NOT_FOUND "CUDA_ERROR_NOT_FOUND" 500 "named symbol not found"
    NOT_READY "CUDA_ERROR_NOT_READY" 600 "device not ready"
    ILLEGAL_ADDRESS "CUDA_ERROR_ILLEGAL_ADDRESS" 700 "an illegal memory access was encountered"
    PEER_ACCESS_ALREADY_ENABLED "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED" 704 "peer access is already enabled"
    PEER_ACCESS_NOT_ENABLED "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED" 705 "peer access has not been enabled"
    PRIMARY_CONTEXT_ACTIVE "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE" 708 "cannot set while device is active in this process"
    CONTEXT_IS_DESTROYED "CUDA_ERROR_CONTEXT_IS_DESTROYED" 709 "context is destroyed"
    _TOO_MANY_PEERS "CUDA_ERROR_TOO_MANY_PEERS" 711 "peer mapping resources exhausted"
    HOST_MEMORY_ALREADY_REGISTERED "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" 712 "part or all of the requested memory range is already mapped"
    HOST_MEMORY_NOT_REGISTERED "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" 713 "pointer does not correspond to a registered memory region"
    MISALIGNED_ADDRESS "CUDA_ERROR_MISALIGNED_ADDRESS" 716 "misaligned address"
    LAUNCH_FAILED "CUDA_ERROR_LAUNCH_FAILED" 719 "unspecified launch failure"
    NOT_PERMITTED "CUDA_ERROR_NOT_PERMITTED" 800 "operation not permitted"
    NOT_SUPPORTED "CUDA_ERROR_NOT_SUPPORTED" 801 "operation not supported"
    _SYSTEM_NOT_READY "CUDA_ERROR_SYSTEM_NOT_READY" 802 "system not yet initialized"
    _SYSTEM_DRIVER_MISMATCH "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" 803 "system has unsupported display driver / cuda driver combination"
    _UNKNOWN "CUDA_ERROR_UNKNOWN" 999 "unknown error"
}

/// A pointer to where the caller wants a result.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result.
    pub(crate) fn set(&self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, and the C caller's duty is that it points to room for a T; it may be unaligned.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the result if the caller wants it.
    pub(crate) fn offer(&self, value: T) {
        let _ = self.set(value);
    }

    /// Writes `values` one after the other.
    pub(crate) fn set_all(&self, values: &[T]) -> Outcome
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        for (index, value) in values.iter().enumerate() {
            // SAFETY: the C caller's duty is that it points to room for as many as the header says.
            unsafe { self.0.add(index).write_unaligned(*value) };
        }
        Ok(())
    }

    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// The same place for a value of another type.
    pub(crate) const fn cast<U>(&self) -> Out<U> {
        Out(self.0.cast())
    }

    /// A place by its address, which a caller passed in a list.
    pub(crate) fn at(address: u64) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(address as usize))
    }
}

/// A pointer to what the caller gives.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads the value.
    pub(crate) fn get(&self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, and the C caller's duty is that it points to a T; it may be unaligned.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads `count` values.
    pub(crate) fn list(&self, count: usize) -> Outcome<Vec<T>> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the C caller's duty is that it points to `count` values.
        let read = |index| unsafe { self.0.add(index).read_unaligned() };
        Ok((0..count).map(read).collect())
    }

    /// A place by its address, which a caller passed in a list.
    pub(crate) fn at(address: u64) -> Self {
        Self(std::ptr::with_exposed_provenance(address as usize))
    }

    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// The same place holding a value of another type.
    pub(crate) const fn cast<U>(&self) -> In<U> {
        In(self.0.cast())
    }
}

impl In<std::ffi::c_char> {
    /// Reads a C string.
    pub(crate) fn text(&self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, and the C caller's duty is that it ends with a zero byte.
        let text = unsafe { std::ffi::CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// `CUhostFn`.
pub(crate) type HostFn = Option<extern "C" fn(*mut c_void)>;
/// `CUstreamCallback`.
pub(crate) type StreamCallback = Option<extern "C" fn(u64, u32, *mut c_void)>;

/// 64 opaque bytes: `CUipcMemHandle`, `CUipcEventHandle`, `CUmemFabricHandle`, `CUmemPoolPtrExportData`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opaque(pub(crate) [u8; 64]);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationProp {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) win32: u64,
    pub(crate) compression: u8,
    pub(crate) rdma_capable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MulticastProp {
    pub(crate) devices: u32,
    pub(crate) size: usize,
    pub(crate) handle_types: u64,
    pub(crate) flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessDesc {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolProps {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) win32: u64,
    pub(crate) max_size: usize,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 54],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchMemOp {
    pub(crate) operation: u32,
    pub(crate) address: u64,
    pub(crate) value: u64,
    pub(crate) flags: u32,
    pub(crate) alias: u64,
    pub(crate) pad: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyAttributes {
    pub(crate) source_order: u32,
    pub(crate) source_hint: Location,
    pub(crate) target_hint: Location,
    pub(crate) flags: u32,
}

const _: () = {
    assert!(size_of::<Opaque>() == 64 && align_of::<Opaque>() == 1);
    assert!(size_of::<Location>() == 8);
    assert!(size_of::<AllocationProp>() == 32 && offset_of!(AllocationProp, win32) == 16);
    assert!(
        offset_of!(AllocationProp, rdma_capable) == 25 && offset_of!(AllocationProp, usage) == 26
    );
    assert!(size_of::<AccessDesc>() == 12 && offset_of!(AccessDesc, flags) == 8);
    assert!(size_of::<PoolProps>() == 88 && offset_of!(PoolProps, max_size) == 24);
    assert!(offset_of!(PoolProps, usage) == 32);
    assert!(size_of::<BatchMemOp>() == 48 && offset_of!(BatchMemOp, value) == 16);
    assert!(offset_of!(BatchMemOp, address) == 8 && offset_of!(BatchMemOp, flags) == 24);
    assert!(size_of::<CopyAttributes>() == 24 && offset_of!(CopyAttributes, flags) == 20);
};

/// `CUmemAllocationHandleType`.
pub(crate) mod handle_type {
    pub(crate) const NONE: u32 = 0;
    pub(crate) const POSIX_FD: u32 = 1;
    pub(crate) const FABRIC: u32 = 8;
}

/// `CUmemLocationType`.
pub(crate) mod location {
    pub(crate) const DEVICE: u32 = 1;
    pub(crate) const HOST: u32 = 2;
    pub(crate) const HOST_NUMA: u32 = 3;
    pub(crate) const HOST_NUMA_CURRENT: u32 = 4;
}
