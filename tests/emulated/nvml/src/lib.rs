#![allow(unsafe_code)]
//! The functions of `libnvidia-ml.so.1` that programs on the emulated CUDA driver ask for: how many devices, where on PCI.
//! There is no NVLink and no fabric.
//!
//! `EMULATED_CUDA_DEVICES` is the number of devices, as for the driver beside it.
//!
//! # Safety
//! The pointers come from a C caller, whose duty is that they are null or good for the call; null is checked.

use std::{
    ffi::{CStr, c_char},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

const SUCCESS: u32 = 0;
const UNINITIALIZED: u32 = 1;
const INVALID_ARGUMENT: u32 = 2;
const NOT_SUPPORTED: u32 = 3;
const NOT_FOUND: u32 = 6;

/// `nvmlPciInfo_t`.
#[repr(C)]
struct PciInfo {
    legacy: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    id: u32,
    subsystem: u32,
    name: [u8; 32],
}

const _: () = assert!(size_of::<PciInfo>() == 68);

static READY: AtomicBool = AtomicBool::new(false);

/// A device's handle is 0x0D00 and its number from 1 on: no address.
const HANDLE: usize = 0x0D00;

fn devices() -> u32 {
    let count = std::env::var("EMULATED_CUDA_DEVICES").ok();
    count
        .and_then(|count| count.parse().ok())
        .unwrap_or(2)
        .min(16)
}

fn give<T>(to: *mut T, value: T) -> u32 {
    if !READY.load(SeqCst) {
        return UNINITIALIZED;
    }
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null; the caller's room for a T.
    unsafe { to.write(value) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> u32 {
    READY.store(true, SeqCst);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> u32 {
    READY.store(false, SeqCst);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: u32) -> *const c_char {
    let text: &CStr = match code {
        SUCCESS => c"Success",
        UNINITIALIZED => c"Uninitialized",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        NOT_FOUND => c"Not Found",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(count: *mut u32) -> u32 {
    give(count, devices())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: u32, handle: *mut usize) -> u32 {
    if index >= devices() {
        return INVALID_ARGUMENT;
    }
    give(handle, HANDLE + 1 + index as usize)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(name: *const c_char, handle: *mut usize) -> u32 {
    if name.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null; the caller's string ends with a zero byte.
    let name = unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .to_uppercase();
    // The domain has four digits or eight.
    let found = (0..devices()).find(|index| {
        let short = format!("0000:{:02X}:00.0", bus(*index));
        name == short || name == format!("0000{short}")
    });
    match found {
        Some(index) => give(handle, HANDLE + 1 + index as usize),
        None => NOT_FOUND,
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(handle: usize, info: *mut PciInfo) -> u32 {
    let Some(index) = handle.checked_sub(HANDLE + 1) else {
        return INVALID_ARGUMENT;
    };
    if index >= devices() as usize {
        return INVALID_ARGUMENT;
    }
    let bus = bus(index as u32);
    let mut legacy = [0; 16];
    let mut name = [0; 32];
    put(&mut legacy, &format!("0000:{bus:02X}:00.0"));
    put(&mut name, &format!("00000000:{bus:02X}:00.0"));
    give(
        info,
        PciInfo {
            legacy,
            domain: 0,
            bus,
            device: 0,
            id: 0,
            subsystem: 0,
            name,
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetFieldValues() -> u32 {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2() -> u32 {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuFabricInfo() -> u32 {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuFabricInfoV() -> u32 {
    NOT_SUPPORTED
}

/// As the driver beside it says.
const fn bus(index: u32) -> u32 {
    0x1B + 0x10 * index
}

fn put(to: &mut [u8], text: &str) {
    for (place, byte) in to.iter_mut().zip(text.bytes()) {
        *place = byte;
    }
}
