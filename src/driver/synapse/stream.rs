//! Streams and events: copies, their order, and how one learns that they are done.
//!
//! ```text
//! stream ──► host to device ─► engine ─┐
//!        ──► device to host ─► engine ─┼─► in any order to each other, but for events
//!        ──► within device  ─► engine ─┘
//! ```
//! Copies of one direction in one stream are done in order. An event recorded in a stream marks what all its directions have been given so far: the host
//! asks whether it was reached, a stream waits for it.
//!
//! # Safety
//! Streams and events are destroyed once, by drop, and hold their device. That a copy's memory stays is for its caller to see to.
#![allow(unsafe_code)]

use std::fmt;

use super::{
    Device,
    device::warn,
    sys::{RawEvent, RawStream},
};
use crate::error::{Error, ErrorKind, Result};

/// The most bytes of one copy: the engines' packets count them in 32 bits. Split longer ones.
pub(crate) const MAX_COPY: u64 = (4 << 30) - 1;

/// Which way a copy goes: `synDmaDir`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub(crate) enum Direction {
    /// From mapped host memory to the device.
    ToDevice = 0,
    /// From the device to mapped host memory.
    ToHost = 1,
    /// Within the device.
    Within = 2,
}

/// A queue of copies. Safe to use from several threads; whose copy comes first is then left open.
pub(crate) struct Stream {
    device: Device,
    raw: RawStream,
}

/// A place in a stream. It may be recorded again and again; a query is about the last time.
pub(crate) struct Event {
    device: Device,
    raw: RawEvent,
}

impl Device {
    /// Makes a stream that takes copies of every direction.
    /// Errors: `Exhausted`, `DeviceLost`, `Forked`.
    pub(crate) fn stream(&self) -> Result<Stream> {
        self.usable()?;
        let mut raw = 0;
        // SAFETY: writes one handle.
        let status = unsafe { (self.api().synStreamCreateGeneric)(&raw mut raw, self.id(), 0) };
        status.check("synStreamCreateGeneric")?;
        Ok(Stream {
            device: self.clone(),
            raw,
        })
    }

    /// Makes an event, which takes no times.
    /// Errors: `Exhausted`, `DeviceLost`, `Forked`.
    pub(crate) fn event(&self) -> Result<Event> {
        self.usable()?;
        let mut raw = 0;
        // SAFETY: writes one handle.
        let status = unsafe { (self.api().synEventCreate)(&raw mut raw, self.id(), 0) };
        status.check("synEventCreate")?;
        Ok(Event {
            device: self.clone(),
            raw,
        })
    }
}

impl Stream {
    /// Enqueues a copy of at most [`MAX_COPY`] bytes. An address of the host's is the number that its pointer is.
    /// Errors: `InvalidArgument`: too long, or host memory that is not mapped for the device; `Exhausted`: wait for others first; `DeviceLost`, `Forked`.
    ///
    /// # Safety
    /// Both ranges stay allocated and mapped, and nobody else uses the target nor changes the source, until an event that is recorded behind the copy is done.
    pub(crate) unsafe fn copy(
        &self,
        direction: Direction,
        source: u64,
        len: u64,
        target: u64,
    ) -> Result<()> {
        fits(len)?;
        self.device.usable()?;
        let call = self.device.api().synMemCopyAsync;
        // SAFETY: the caller vouches for both ranges.
        let status = unsafe { call(self.raw, source, len, target, direction as u32) };
        status.check("synMemCopyAsync")
    }

    /// Enqueues that each of `len` bytes of device memory becomes `value`, in order with the copies within the device.
    /// Errors: as of [`Stream::copy`].
    ///
    /// # Safety
    /// As of [`Stream::copy`], of the target.
    pub(crate) unsafe fn fill(&self, target: u64, value: u8, len: u64) -> Result<()> {
        fits(len)?;
        self.device.usable()?;
        let call = self.device.api().synMemsetD8Async;
        // SAFETY: the caller vouches for the range.
        let status = unsafe { call(target, value, len as usize, self.raw) };
        status.check("synMemsetD8Async")
    }

    /// Marks, with the event, the end of all that is enqueued so far.
    /// Errors: `InvalidArgument`: an event of another device; `DeviceLost`, `Forked`.
    pub(crate) fn record(&self, event: &Event) -> Result<()> {
        self.check(event)?;
        // SAFETY: both handles live.
        let status = unsafe { (self.device.api().synEventRecord)(event.raw, self.raw) };
        status.check("synEventRecord")
    }

    /// Whether all that was enqueued is done.
    /// Errors: `DeviceLost`, `Forked`, `Io`.
    pub(crate) fn is_idle(&self) -> Result<bool> {
        self.device.usable()?;
        // SAFETY: the handle lives.
        let status = unsafe { (self.device.api().synStreamQuery)(self.raw) };
        status.done("synStreamQuery")
    }

    fn check(&self, event: &Event) -> Result<()> {
        self.device.usable()?;
        if self.device != event.device {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the event is of another device than the stream",
            ));
        }
        Ok(())
    }
}

impl Event {
    /// The device that it is of.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Whether its last record was reached. It must have been recorded. One call, a fraction of a microsecond.
    /// Errors: `DeviceLost`, `Forked`, `Io`.
    pub(crate) fn is_done(&self) -> Result<bool> {
        self.device.usable()?;
        // SAFETY: the handle lives.
        let status = unsafe { (self.device.api().synEventQuery)(self.raw) };
        status.done("synEventQuery")
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:#x})", self.raw)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:#x})", self.raw)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.usable().is_ok() {
            // SAFETY: made once, destroyed once.
            let status = unsafe { (self.device.api().synStreamDestroy)(self.raw) };
            warn(status, "synStreamDestroy");
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.usable().is_ok() {
            // SAFETY: made once, destroyed once.
            let status = unsafe { (self.device.api().synEventDestroy)(self.raw) };
            warn(status, "synEventDestroy");
        }
    }
}

/// That a copy is not too long for the engines.
fn fits(len: u64) -> Result<()> {
    if len > MAX_COPY {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("a copy of {len} bytes is longer than the {MAX_COPY} that one takes: split it"),
        ));
    }
    Ok(())
}
