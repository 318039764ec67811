//! Copies in order with the program's own streams.
//!
//! ```text
//! the program's stream   ...kernel ─┐ after                     ┌ then ─ kernel...
//!                                   ▼                           │
//! a stream of the engine        reported, then: copy ── copy ── event
//! ```
//!
//! What comes before is waited for by a stream of the engine's, which reports it; only then are copies begun, so that no other copy stands behind a
//! kernel that takes long. What comes after is made to wait by the engine, once all copies are in the device's hands: for an event behind them, or for
//! a word that the driver's own thread sets. Nothing is ever held for a worker to release, so nothing is left behind by an operation that fails, is
//! dropped, or loses its worker.
//! Where bytes go on by the processor, or by another accelerator than the stream's, the operation counts as queued when it is over: then nothing is
//! left to wait for.

use crate::{
    error::{Error, ErrorKind},
    transport::{DevicePlace, DeviceStream},
};

/// The order that a copy keeps with the program's streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    /// Places that it comes after, and that nobody was asked about yet.
    pub(crate) after: Vec<DevicePlace>,
    /// Streams that come after it, and do not wait for it yet.
    pub(crate) then: Vec<DeviceStream>,
    /// Places that were asked about and not reported.
    pub(in crate::worker) waits: usize,
    /// All streams wait for what is left of it.
    pub(in crate::worker) is_queued: bool,
}

impl Order {
    pub(crate) fn is_none(&self) -> bool {
        self.after.is_empty() && self.then.is_empty()
    }

    /// The accelerators that it names.
    pub(crate) fn accelerators(&self) -> impl Iterator<Item = &'static str> {
        let before = self.after.iter().map(DevicePlace::accelerator);
        before.chain(self.then.iter().map(DeviceStream::accelerator))
    }
}

/// No engine takes such a stream.
#[cold]
pub(crate) fn unknown(name: &str) -> Error {
    let text = format!("a stream of {name}, which is not in use by this context");
    Error::new(ErrorKind::Unsupported, text)
}

/// What engines have of an operation.
pub(in crate::worker) enum Begun {
    /// This engine all of it, under these tokens.
    All(Vec<u64>),
    /// Some of it waits for room.
    NotAll,
    /// Another has some of it.
    Elsewhere,
}
