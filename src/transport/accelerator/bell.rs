//! What wakes a worker that is parked.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst, fence};

use crate::{
    error::{Error, Result},
    sys::eventfd::EventFd,
};

/// A doorbell of one engine. A device's side writes what it has to say, then rings.
#[derive(Debug)]
pub(in crate::transport) struct Bell {
    pub(super) fd: EventFd,
    /// Whether anybody wants to be woken.
    armed: AtomicBool,
}

impl Bell {
    pub(in crate::transport) fn new() -> Result<Self> {
        let fd = EventFd::new().map_err(|error| Error::io("a doorbell", error))?;
        Ok(Self {
            fd,
            armed: AtomicBool::new(false),
        })
    }

    /// Wakes the worker if it is parked. What was written before is seen by its look after [`Bell::arm`], or this sees that it is armed.
    pub(in crate::transport) fn ring(&self) {
        fence(SeqCst);
        if self.armed.load(SeqCst) {
            self.fd.ring();
        }
    }

    /// Wakes the worker, or the next that parks.
    pub(super) fn ring_always(&self) {
        self.fd.ring();
    }

    /// From now on it is to be rung. Look for what was written before after this.
    pub(super) fn arm(&self) {
        self.armed.store(true, SeqCst);
        fence(SeqCst);
    }

    pub(super) fn disarm(&self) {
        self.armed.store(false, SeqCst);
    }
}
