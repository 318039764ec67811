//! What every exported function asks first: whether the fault plan has it fail.
//!
//! # Safety
//! Pointers come from a C caller; see the crate.

use std::{ffi::c_int, ptr};

use wharf_emulated_common::faults::Fault;

use crate::world::{FAULTS, JOURNAL};

/// The code with which a call of `name` is to fail.
pub(crate) fn struck(name: &'static str) -> Option<u32> {
    JOURNAL.call(name, [0; 4], 0);
    let mut code = None;
    for fault in FAULTS.strike(name, None) {
        match fault {
            Fault::Code(errno) | Fault::Die(errno) | Fault::Late(errno) => code = Some(errno),
            Fault::Skip => code = Some(0),
        }
    }
    code
}

pub(crate) fn errno(code: c_int) {
    // SAFETY: this thread's variable.
    unsafe { *libc::__errno_location() = code };
}

pub(crate) fn null<T>(code: c_int) -> *mut T {
    errno(code);
    ptr::null_mut()
}

/// Returns what the plan says.
macro_rules! plan {
    ($name:literal, pointer) => {
        if let Some(code) = $crate::plan::struck($name) {
            return $crate::plan::null(code as std::ffi::c_int);
        }
    };
    ($name:literal, number) => {
        if let Some(code) = $crate::plan::struck($name) {
            return code as std::ffi::c_int;
        }
    };
}
pub(crate) use plan;
