#![allow(unsafe_code)]
//! The emulated CUDA drivers of this process.
//!
//! # Safety
//! See `lib.rs`.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    fs::File,
    os::fd::FromRawFd,
};

use wharf_emulated_common::loaded::Library;

/// One driver: there is one for each file that was loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Driver(Library);

/// Pinned pages.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) driver: Driver,
    pub(crate) number: u64,
    /// Their bytes.
    pub(crate) file: File,
    /// Where they begin in it.
    pub(crate) offset: u64,
}

type Pin = extern "C" fn(u64, u64, u64, extern "C" fn(u64), *mut c_int, *mut u64) -> c_int;

impl Driver {
    /// All of them.
    pub(crate) fn all() -> Vec<Self> {
        let found = Library::with(c"wharf_emulated_pin");
        found.into_iter().map(Self).collect()
    }

    fn symbol(self, name: &CStr) -> *mut c_void {
        self.0.symbol(name)
    }

    /// Pins pages under a number that `revoked` is told when they go.
    ///
    /// # Errors
    /// An errno.
    pub(crate) fn pin(
        self,
        number: u64,
        address: u64,
        len: u64,
        revoked: extern "C" fn(u64),
    ) -> Result<Pinned, c_int> {
        let (mut fd, mut offset) = (-1, 0);
        // SAFETY: the type is the emulator's.
        let pin: Pin = unsafe { std::mem::transmute(self.symbol(c"wharf_emulated_pin")) };
        match pin(number, address, len, revoked, &raw mut fd, &raw mut offset) {
            0 => Ok(Pinned {
                driver: self,
                number,
                // SAFETY: a descriptor that the call gave to this one.
                file: unsafe { File::from_raw_fd(fd) },
                offset,
            }),
            code => Err(code),
        }
    }

    /// Whether all bytes are of one live allocation.
    pub(crate) fn is_live(self, address: u64, len: u64) -> bool {
        // SAFETY: the type is the emulator's.
        let is_live: extern "C" fn(u64, u64) -> c_int =
            unsafe { std::mem::transmute(self.symbol(c"wharf_emulated_is_live")) };
        is_live(address, len) != 0
    }
}

impl Pinned {
    /// Nobody is told any more.
    pub(crate) fn unpin(&self) {
        // SAFETY: the type is the emulator's.
        let unpin: extern "C" fn(u64) =
            unsafe { std::mem::transmute(self.driver.symbol(c"wharf_emulated_unpin")) };
        unpin(self.number);
    }
}

/// Counts a call; the errno of a fault that strikes, or 0.
pub(crate) fn enter(name: &'static CStr, arguments: [u64; 4]) -> c_int {
    let Some(driver) = Driver::all().first().copied() else {
        return 0;
    };
    type Enter = extern "C" fn(*const c_char, *const u64) -> c_int;
    // SAFETY: the type is the emulator's.
    let enter: Enter = unsafe { std::mem::transmute(driver.symbol(c"wharf_emulated_enter")) };
    enter(name.as_ptr(), arguments.as_ptr())
}

/// Writes a misuse down.
pub(crate) fn misuse(text: &str) {
    let (Some(driver), Ok(text)) = (Driver::all().first().copied(), CString::new(text)) else {
        return;
    };
    // SAFETY: the type is the emulator's.
    let misuse: extern "C" fn(*const c_char) =
        unsafe { std::mem::transmute(driver.symbol(c"wharf_emulated_misuse")) };
    misuse(text.as_ptr());
}
