//! Where events are told.
//!
//! # Safety
//! A channel is made once and destroyed once, after its identifiers, which keep it; see `rdmacm`.
#![allow(unsafe_code)]

use std::{
    fmt,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    ptr::NonNull,
    sync::Arc,
};

use super::{RdmaCm, driver::NO_DEVICE, sys};
use crate::{
    driver::verbs::{self, failure},
    error::{Error, ErrorKind, Result},
};

/// Where events of identifiers are told.
#[derive(Clone)]
pub(crate) struct EventChannel(pub(super) Arc<Channel>);

pub(super) struct Channel {
    pub(super) cm: &'static RdmaCm,
    pub(super) raw: NonNull<sys::RawEventChannel>,
    fd: RawFd,
    process: u32,
}

// SAFETY: the library allows every call on a channel from every thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    /// In a child made by `fork` nothing of it may be touched.
    pub(super) fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    pub(super) fn usable(&self) -> Result<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Forked,
            "the connection manager was opened before this process was forked",
        ))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: made once; its identifiers, which keep it, are gone.
            unsafe { (self.cm.api.rdma_destroy_event_channel)(self.raw.as_ptr()) };
        }
    }
}

impl RdmaCm {
    /// A new channel for events. Its descriptor does not block.
    /// Errors: `Unsupported`: the kernel has no such connections, or there is no device.
    pub(crate) fn event_channel(&'static self) -> Result<EventChannel> {
        // SAFETY: takes nothing.
        let raw = unsafe { (self.api.rdma_create_event_channel)() };
        let Some(raw) = NonNull::new(raw) else {
            return Err(match failure::last() {
                libc::ENODEV | libc::ENOENT | libc::ENOSYS => Error::new(
                    ErrorKind::Unsupported,
                    "there is no RDMA device to connect by, or the kernel has no rdma_ucm (modprobe rdma_ucm)",
                ),
                errno => failure::failed("rdma_create_event_channel", NO_DEVICE, errno),
            });
        };
        // SAFETY: a field that does not change.
        let fd = unsafe { (&raw const (*raw.as_ptr()).fd).read() };
        let channel = EventChannel(Arc::new(Channel {
            cm: self,
            raw,
            fd,
            process: std::process::id(),
        }));
        verbs::set_nonblocking(fd, NO_DEVICE)?;
        Ok(channel)
    }
}

impl AsRawFd for EventChannel {
    /// Readable when there is an event. To be taken by [`EventChannel::next`], never read.
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel is.
        unsafe { BorrowedFd::borrow_raw(self.0.fd) }
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventChannel").field(&self.0.fd).finish()
    }
}
