#![allow(unsafe_code)]
//! The other emulated libraries of this process, found among what the loader has loaded.
//!
//! # Safety
//! The loader's structs and strings live through the calls that are given them; libraries are opened only where they are loaded, and never closed.

use std::{
    ffi::{CStr, CString, c_int, c_void},
    ptr,
};

/// A library.
#[derive(Clone, Copy, Debug)]
pub struct Library(usize);

impl Library {
    /// All that export this name.
    #[must_use]
    pub fn with(name: &CStr) -> Vec<Self> {
        let mut names: Vec<CString> = Vec::new();
        // SAFETY: the function below has the type that is asked for, and its data lives through the call.
        unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut names).cast()) };
        let opened = names.iter().map(|name| {
            // SAFETY: a C string; opens only what is loaded.
            unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) }
        });
        let opened = opened.filter(|library| !library.is_null());
        let opened = opened.map(|library| Self(library.expose_provenance()));
        opened
            .filter(|library| !library.symbol(name).is_null())
            .collect()
    }

    /// Where it has this name; null: nowhere.
    #[must_use]
    pub fn symbol(self, name: &CStr) -> *mut c_void {
        // SAFETY: an open library, which is never closed, and a C string.
        unsafe { libc::dlsym(ptr::with_exposed_provenance_mut(self.0), name.as_ptr()) }
    }
}

unsafe extern "C" fn collect(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the loader's struct, and the vector of the only caller.
    let (info, names) = unsafe { (&*info, &mut *data.cast::<Vec<CString>>()) };
    if !info.dlpi_name.is_null() {
        // SAFETY: the loader's string.
        let name = unsafe { CStr::from_ptr(info.dlpi_name) };
        if !name.is_empty() {
            names.push(name.to_owned());
        }
    }
    0
}
