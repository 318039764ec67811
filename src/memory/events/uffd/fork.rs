//! What a child made by `fork` does with the descriptors that its parent reads events from: it closes them at once.
//!
//! As long as a child holds one open, closing it in the parent ends nothing: the parent's next `munmap` of a watched range would wait for a
//! reader that is no more.
//!
//! # Safety
//! The handler runs in a child, see [`fork`], and calls `close`, which is allowed there.
#![allow(unsafe_code)]

use std::{
    os::fd::RawFd,
    sync::atomic::{AtomicI32, Ordering::SeqCst},
};

use crate::{
    error::{Error, ErrorKind, Operation, Result},
    sys::fork,
};

/// A descriptor that a child closes.
#[derive(Debug)]
pub(super) struct ClosedInChild(&'static AtomicI32);

impl ClosedInChild {
    /// Closes `fd` in children from now on, until it is dropped, which has to be before the descriptor is closed here.
    /// Errors: `Exhausted`: there are 16 already, or too many handlers of forks.
    pub(super) fn new(fd: RawFd) -> Result<Self> {
        fork::at_fork_in_child(close_all)?;
        FDS.iter()
            .find(|place| place.compare_exchange(-1, fd, SeqCst, SeqCst).is_ok())
            .map(Self)
            .ok_or_else(|| {
                Error::new(ErrorKind::Exhausted, "16 monitors of memory are open")
                    .during(Operation::Memory)
            })
    }
}

impl Drop for ClosedInChild {
    fn drop(&mut self) {
        self.0.store(-1, SeqCst);
    }
}

static FDS: [AtomicI32; 16] = [const { AtomicI32::new(-1) }; 16];

fn close_all() {
    for place in &FDS {
        let fd = place.swap(-1, SeqCst);
        if fd >= 0 {
            // SAFETY: kept here while it is open; nobody uses it in a child, where every call asks for that first.
            unsafe { libc::close(fd) };
        }
    }
}
