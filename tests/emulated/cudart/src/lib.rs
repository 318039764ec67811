#![allow(unsafe_code)]
//! The functions of `libcudart.so.12` that `ucx_perftest` asks for to allocate and clear its buffers, over `libcuda.so.1`.
//!
//! The vendor's own runtime asks the driver for tables that are nowhere documented, so it does not run on an emulated driver. This stands in
//! for it: one current device for each thread, its primary context, memory, copies. Kernels are registered and never run: launching one is
//! not supported (801).
//!
//! # Safety
//! The pointers come from a C caller, whose duty is that they are good for the call, as the header says; null is checked where the header
//! allows it. The driver's functions have the types of the public header.

use std::{
    cell::Cell,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr,
};

const INVALID_VALUE: u32 = 1;
const SHARED_LIBRARY: u32 = 302;
const NOT_SUPPORTED: u32 = 801;

thread_local! {
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
    static LAST: Cell<u32> = const { Cell::new(0) };
}

/// A function of the driver; null when there is no driver, or no such function.
fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a C string; the library's start does nothing. Opened again it is the same one.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: an open library and a C string.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// Calls a function of the driver by its exported name; the runtime's numbers for errors are the driver's.
macro_rules! driver {
    ($name:literal($($argument:expr => $type:ty),*)) => {{
        let address = symbol($name);
        if address.is_null() {
            SHARED_LIBRARY
        } else {
            // SAFETY: the type is the public header's.
            let function: extern "C" fn($($type),*) -> u32 = unsafe { std::mem::transmute(address) };
            function($($argument),*)
        }
    }};
}

/// Keeps the error for `cudaGetLastError`.
fn told(code: u32) -> u32 {
    if code != 0 {
        LAST.set(code);
    }
    code
}

/// Both, in turn; the first error.
fn then(code: u32, next: impl FnOnce() -> u32) -> u32 {
    if code == 0 { next() } else { code }
}

/// Makes the device's primary context current, as the first call that needs one does.
fn context() -> u32 {
    let mut context: *mut c_void = ptr::null_mut();
    then(driver!(c"cuInit"(0 => c_uint)), || {
        let current = driver!(c"cuCtxGetCurrent"(&raw mut context => *mut *mut c_void));
        if current != 0 || !context.is_null() {
            return current;
        }
        select(DEVICE.get())
    })
}

fn select(device: c_int) -> u32 {
    let mut context: *mut c_void = ptr::null_mut();
    let retained =
        driver!(c"cuDevicePrimaryCtxRetain"(&raw mut context => *mut *mut c_void, device => c_int));
    then(
        retained,
        || driver!(c"cuCtxSetCurrent"(context => *mut c_void)),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetDeviceCount(count: *mut c_int) -> u32 {
    told(then(
        driver!(c"cuInit"(0 => c_uint)),
        || driver!(c"cuDeviceGetCount"(count => *mut c_int)),
    ))
}

#[unsafe(no_mangle)]
extern "C" fn cudaSetDevice(device: c_int) -> u32 {
    told(then(driver!(c"cuInit"(0 => c_uint)), || {
        then(select(device), || {
            DEVICE.set(device);
            0
        })
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceSynchronize() -> u32 {
    told(then(context(), || driver!(c"cuCtxSynchronize"())))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMalloc(address: *mut u64, len: usize) -> u32 {
    told(then(
        context(),
        || driver!(c"cuMemAlloc_v2"(address => *mut u64, len => usize)),
    ))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMallocManaged(address: *mut u64, len: usize, flags: c_uint) -> u32 {
    told(then(
        context(),
        || driver!(c"cuMemAllocManaged"(address => *mut u64, len => usize, flags => c_uint)),
    ))
}

#[unsafe(no_mangle)]
extern "C" fn cudaFree(address: u64) -> u32 {
    if address == 0 {
        return told(context());
    }
    told(then(context(), || driver!(c"cuMemFree_v2"(address => u64))))
}

#[unsafe(no_mangle)]
extern "C" fn cudaHostAlloc(address: *mut *mut c_void, len: usize, flags: c_uint) -> u32 {
    told(then(
        context(),
        || driver!(c"cuMemHostAlloc"(address => *mut *mut c_void, len => usize, flags => c_uint)),
    ))
}

#[unsafe(no_mangle)]
extern "C" fn cudaFreeHost(address: *mut c_void) -> u32 {
    if address.is_null() {
        return told(context());
    }
    told(then(
        context(),
        || driver!(c"cuMemFreeHost"(address => *mut c_void)),
    ))
}

#[unsafe(no_mangle)]
extern "C" fn cudaHostGetDevicePointer(device: *mut u64, host: *mut c_void, flags: c_uint) -> u32 {
    told(then(
        context(),
        || driver!(c"cuMemHostGetDevicePointer_v2"(device => *mut u64, host => *mut c_void, flags => c_uint)),
    ))
}

/// The kind only matters without unified addresses.
#[unsafe(no_mangle)]
extern "C" fn cudaMemcpy(to: u64, from: u64, len: usize, kind: c_uint) -> u32 {
    if kind > 4 {
        return told(INVALID_VALUE);
    }
    told(then(
        context(),
        || driver!(c"cuMemcpy"(to => u64, from => u64, len => usize)),
    ))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemset(to: u64, byte: c_int, len: usize) -> u32 {
    // The header: the lowest byte of the value.
    let byte = byte.to_le_bytes()[0];
    told(then(
        context(),
        || driver!(c"cuMemsetD8_v2"(to => u64, byte => u8, len => usize)),
    ))
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> u32 {
    LAST.replace(0)
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(code: u32) -> *const c_char {
    let mut text: *const c_char = ptr::null();
    let known = driver!(c"cuGetErrorString"(code => u32, &raw mut text => *mut *const c_char));
    if known == 0 && !text.is_null() {
        text
    } else {
        c"unrecognized error code".as_ptr()
    }
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetSymbolSize(_size: *mut usize, _symbol: *const c_void) -> u32 {
    told(NOT_SUPPORTED)
}

// What a compiler puts into programs with kernels.

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinary(code: *mut c_void) -> *mut c_void {
    // A handle that is only given back.
    code
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinaryEnd(_handle: *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn __cudaUnregisterFatBinary(_handle: *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFunction() {}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterVar() {}

#[unsafe(no_mangle)]
extern "C" fn __cudaPushCallConfiguration() -> u32 {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn __cudaPopCallConfiguration() -> u32 {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn cudaLaunchKernel() -> u32 {
    told(NOT_SUPPORTED)
}
