//! The list of devices.
//!
//! # Safety
//! A list stays until the last device of it is dropped; see `verbs`.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_char},
    fmt, ptr,
    sync::Arc,
};

use super::{Context, Transport, Verbs, failure, sys};
use crate::error::{Error, ErrorKind, Result};

/// A device that can be opened.
#[derive(Clone)]
pub(crate) struct Device {
    list: Arc<List>,
    raw: *mut sys::RawDevice,
    name: Arc<str>,
}

// SAFETY: a device of a list that lives is only read, and opened, which the library does under its own lock.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

struct List {
    verbs: &'static Verbs,
    raw: *mut *mut sys::RawDevice,
}

// SAFETY: an array that is not written; freed once.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_get_device_list`; no device of it is left, and open ones hold what they need.
        unsafe { (self.verbs.api.ibv_free_device_list)(self.raw) };
    }
}

impl Verbs {
    /// The devices of this machine, at least one.
    /// Errors: `Unsupported`: there is none, or the kernel has no InfiniBand support, with what to do.
    pub(crate) fn devices(&'static self) -> Result<Vec<Device>> {
        /// More are taken for a broken library.
        const MOST: usize = 4096;
        let mut count = 0;
        // SAFETY: writes one number.
        let raw = unsafe { (self.api.ibv_get_device_list)(&raw mut count) };
        if raw.is_null() {
            return Err(match failure::last() {
                libc::ENOSYS | libc::ENODEV | libc::ENOENT => Error::new(
                    ErrorKind::Unsupported,
                    "the kernel has no InfiniBand support: load the device's driver and ib_uverbs, or give this container /dev/infiniband",
                ),
                errno => failure::failed("ibv_get_device_list", self.library(), errno),
            });
        }
        let list = Arc::new(List { verbs: self, raw });
        let count = usize::try_from(count).unwrap_or(0).min(MOST);
        let mut devices = Vec::with_capacity(count);
        for index in 0..count {
            // SAFETY: the array has `count` entries.
            let raw = unsafe { list.raw.add(index).read() };
            if raw.is_null() {
                break;
            }
            // SAFETY: a device of a list that lives.
            let name = unsafe { text((self.api.ibv_get_device_name)(raw)) };
            devices.push(Device {
                list: Arc::clone(&list),
                raw,
                name: name.into(),
            });
        }
        if devices.is_empty() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "there is no InfiniBand or RoCE device (rdma link shows those of the kernel)",
            ));
        }
        Ok(devices)
    }

    /// The name of a device that the library knows.
    ///
    /// # Safety
    /// The device is one of this library's, and lives.
    pub(in crate::driver) unsafe fn name_of(&self, device: *mut sys::RawDevice) -> String {
        // SAFETY: the caller says so.
        unsafe { text((self.api.ibv_get_device_name)(device)) }
    }
}

impl Device {
    /// Its name, `mlx5_0` or `rxe0`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its number for all the world, big-endian as the library gives it.
    pub(crate) fn guid(&self) -> u64 {
        // SAFETY: a device of a list that lives.
        u64::from_be(unsafe { (self.list.verbs.api.ibv_get_device_guid)(self.raw) })
    }

    /// Which protocol it speaks.
    pub(crate) fn transport(&self) -> Transport {
        // SAFETY: a device of a list that lives.
        Transport(unsafe { ptr::read(&raw const (*self.raw).transport_type) })
    }

    /// Opens it.
    /// Errors: `PermissionDenied`: no right to its file; `DeviceLost`: it went away; `Unsupported`: it lacks calls that are needed.
    pub(crate) fn open(&self) -> Result<Context> {
        // SAFETY: a device of a list that lives.
        let raw = unsafe { (self.list.verbs.api.ibv_open_device)(self.raw) };
        if raw.is_null() {
            return Err(failure::failed(
                "ibv_open_device",
                &self.name,
                failure::last(),
            ));
        }
        // SAFETY: just opened, and owned from here on.
        unsafe { Context::own(self.list.verbs, raw, Arc::clone(&self.name)) }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name()).finish()
    }
}

/// A text of the library's, or nothing.
///
/// # Safety
/// Null, or a text that ends with a zero.
unsafe fn text(raw: *const c_char) -> String {
    if raw.is_null() {
        return String::new();
    }
    // SAFETY: the caller says so.
    unsafe { CStr::from_ptr(raw) }
        .to_string_lossy()
        .into_owned()
}
