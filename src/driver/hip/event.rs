//! Places in streams.
//!
//! # Safety
//! As of the room's door. An event is destroyed once, by its drop.
#![allow(unsafe_code)]

use std::fmt;

use super::runtime::{Hip, OnDevice, RawEvent, RawStream, check};
use crate::error::Result;

/// `hipErrorNotReady`.
const NOT_READY: u32 = 600;
/// `hipEventDisableTiming`.
const DISABLE_TIMING: u32 = 2;

/// A place in a stream. Destroyed on drop.
pub(crate) struct HipEvent {
    hip: Hip,
    raw: RawEvent,
}

impl Hip {
    /// Marks the end of a stream as it is now. Microseconds.
    /// Errors: `Exhausted`: no event; `InvalidArgument`: the stream captures a graph, or is none.
    ///
    /// # Safety
    /// The stream is one of this HIP, and is not destroyed during the call.
    pub(crate) unsafe fn mark(self, stream: RawStream) -> Result<HipEvent> {
        // Events are of the thread's current device, and recorded in streams of it only.
        // SAFETY: of the stream the caller vouches.
        let _device = unsafe { OnDevice::of(self, stream) };
        let mut raw = 0;
        // SAFETY: writes one handle.
        let code = unsafe { (self.api.hipEventCreateWithFlags)(&raw mut raw, DISABLE_TIMING) };
        check(code, "hipEventCreateWithFlags")?;
        let event = HipEvent { hip: self, raw };
        // SAFETY: an event of the stream's device; of the stream the caller vouches.
        let code = unsafe { (self.api.hipEventRecord)(event.raw, stream) };
        check(code, "hipEventRecord")?;
        Ok(event)
    }
}

impl HipEvent {
    /// Whether all that was in the stream is done. A call each time.
    /// Errors: `DeviceLost` and others: the work failed.
    pub(crate) fn is_done(&self) -> Result<bool> {
        // SAFETY: an event that lives.
        match unsafe { (self.hip.api.hipEventQuery)(self.raw) } {
            NOT_READY => Ok(false),
            code => check(code, "hipEventQuery").map(|()| true),
        }
    }
}

impl Drop for HipEvent {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once; the runtime keeps what it needs.
        let code = unsafe { (self.hip.api.hipEventDestroy)(self.raw) };
        if let Err(error) = check(code, "hipEventDestroy") {
            tracing::debug!(target: "wharf::rocm", "{error}");
        }
    }
}

impl fmt::Debug for HipEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HIP event {:#x}", self.raw)
    }
}
