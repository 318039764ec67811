//! What a process needs before it can have a monitor of a kind.
//!
//! # Safety
//! Hooks are installed while nothing else changes code. UCX's functions have the types that `ucm/api/ucm.h` gives them.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_int, c_void},
    sync::atomic::Ordering::SeqCst,
};

use wharf::memory::{MonitorKind, install_hooks};

use crate::allocator;

/// # Errors
/// Why this machine, or this build, has no such monitor.
pub(crate) fn prepare(kind: MonitorKind) -> Result<(), String> {
    match kind {
        // SAFETY: a process of its own.
        MonitorKind::Hooks => unsafe { install_hooks() }.map_err(|error| error.to_string()),
        MonitorKind::Alloc => {
            allocator::IS_TRACKED.store(true, SeqCst);
            Ok(())
        }
        MonitorKind::Imported => ucx_watches_memory(),
        _ => Ok(()),
    }
}

type Handler = extern "C" fn(c_int, *mut c_void, *mut c_void);
type SetHandler = unsafe extern "C" fn(c_int, c_int, Handler, *mut c_void) -> i8;

extern "C" fn nothing(_: c_int, _: *mut c_void, _: *mut c_void) {}

/// Loads UCX's library of memory events.
pub(crate) fn load_ucx() -> Result<*mut c_void, String> {
    // libucm wants symbols of libucs, which is linked to it.
    // SAFETY: libraries whose constructors change nothing here.
    let library = unsafe {
        libc::dlopen(c"libucs.so.0".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
        libc::dlopen(c"libucm.so.0".as_ptr(), libc::RTLD_LAZY)
    };
    if library.is_null() {
        // SAFETY: why the call above failed, as a string.
        let why = unsafe { CStr::from_ptr(libc::dlerror()) };
        return Err(format!("package libucx0: {}", why.to_string_lossy()));
    }
    Ok(library)
}

/// What UCX does in a program that uses it: it patches libc.
pub(crate) fn ucx_watches_memory() -> Result<(), String> {
    const VM_UNMAPPED: c_int = 1 << 17;
    let library = load_ucx()?;
    let name: &CStr = c"ucm_set_event_handler";
    // SAFETY: a string that ends with a zero.
    let set = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!set.is_null(), "a libucm without {name:?}");
    // SAFETY: see the head of the file.
    let status = unsafe {
        let set: SetHandler = std::mem::transmute(set);
        set(VM_UNMAPPED, 0, nothing, std::ptr::null_mut())
    };
    match status {
        0 => Ok(()),
        status => Err(format!("UCX cannot watch memory here: {status}")),
    }
}
