//! Copies in order with the program's own streams.
//!
//! ```text
//! the program's stream   ...kernel ─┐ after                     ┌ then ─ kernel...
//!                                   ▼                           │
//! a lane of the engine          reported, then: copy ── copy ── event
//! ```
//!
//! What comes before is waited for by a stream of the engine's, which reports it; only then are copies begun, so that no other copy stands behind a
//! kernel that takes long. What comes after is made to wait by the device itself: an event behind the copies, once all of them are in the device's
//! hands. Nothing is ever held for the host to release, so nothing is left behind by an operation that fails, is dropped, or loses its worker.
//! Where bytes go on by the processor, or by another accelerator than the stream's, the operation counts as queued when it is over: then nothing is
//! left to wait for.

use crate::{
    error::{Error, ErrorKind, Result},
    transport::{DevicePlace, DeviceStream, SendError},
    types::OpKey,
    worker::core::Core,
};

use super::{
    engines::{Devices, Ready},
    pipe::Stage,
};

/// The order that a copy keeps with the program's streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    /// Places that it comes after, and that nobody was asked about yet.
    pub(crate) after: Vec<DevicePlace>,
    /// Streams that come after it, and do not wait for it yet.
    pub(crate) then: Vec<DeviceStream>,
    /// Places that were asked about and not reported.
    pub(super) waits: usize,
    /// All streams wait for what is left of it.
    pub(super) is_queued: bool,
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

impl Devices {
    /// The engine of the accelerator of this name.
    fn slot_named(&self, name: &str) -> Result<usize> {
        let context = self.context();
        let found = context.and_then(|context| {
            let mut accelerators = context.accelerators().iter();
            accelerators.position(|accelerator| accelerator.name() == name)
        });
        found.ok_or_else(|| unknown(name))
    }
}

/// No engine takes such a stream.
#[cold]
pub(crate) fn unknown(name: &str) -> Error {
    let text = format!("a stream of {name}, which is not in use by this context");
    Error::new(ErrorKind::Unsupported, text)
}

impl Core {
    /// The order of an operation that goes on.
    fn order(&mut self, key: OpKey) -> Option<&mut Order> {
        self.pipe(key)?;
        let staged = self.operations.get(key)?.staged.as_mut()?;
        staged.order.as_deref_mut()
    }

    /// Whether streams come after a copy.
    pub(super) fn has_then(&mut self, key: OpKey) -> bool {
        self.order(key).is_some_and(|order| !order.then.is_empty())
    }

    /// Whether a copy may begin. `false`: it is stepped again when a place was reached, or has failed.
    pub(super) fn in_order(&mut self, key: OpKey) -> bool {
        while let Some(order) = self.order(key) {
            let Some(place) = order.after.last().copied() else {
                return order.waits == 0;
            };
            let ready = match self.devices.slot_named(place.accelerator()) {
                Ok(slot) => (self.engine_ready(slot, key), slot),
                Err(error) => (Ready::Never(error), 0),
            };
            match ready {
                (Ready::Now, slot) => {
                    if let Some(order) = self.order(key) {
                        order.after.pop();
                        order.waits += 1;
                    }
                    self.devices.push_place(slot, key, place);
                }
                (Ready::Later, _) => {
                    self.waits(key, true);
                    return false;
                }
                (Ready::Never(error), _) => {
                    self.staging_failed(key, error);
                    return false;
                }
            }
        }
        true
    }

    /// An engine has reported a place.
    pub(super) fn place_reached(&mut self, key: OpKey, result: Result<()>) {
        match result {
            Ok(()) => {
                if let Some(order) = self.order(key) {
                    order.waits = order.waits.saturating_sub(1);
                }
                self.step_staged(key);
            }
            Err(error) => self.staging_failed(key, error),
        }
    }

    /// Has streams wait for copies that are now in the hands of their devices.
    pub(super) fn queue_streams(&mut self) {
        if self.devices.thens.is_empty() {
            return;
        }
        for key in std::mem::take(&mut self.devices.thens) {
            if !self.queue_streams_of(key) {
                self.devices.thens.push(key);
            }
        }
    }

    /// `false`: not yet.
    fn queue_streams_of(&mut self, key: OpKey) -> bool {
        let Some(pipe) = self.pipe(key) else {
            return true;
        };
        let begun = pipe.next == pipe.total;
        // What is in the last stage is nobody's but its engine's.
        if !begun || pipe.parts.iter().any(|part| part.stage != Stage::Storing) {
            return false;
        }
        while let Some(order) = self.order(key) {
            let Some(stream) = order.then.last().copied() else {
                order.is_queued = true;
                if let Some(entry) = self.operations.get(key) {
                    self.wakes.extend(entry.waker.take());
                }
                return true;
            };
            if order.waits > 0 || !order.after.is_empty() {
                return false;
            }
            let Ok(slot) = self.devices.slot_named(stream.accelerator()) else {
                return true;
            };
            let tokens = match self.devices.begun(key, slot) {
                Begun::All(tokens) => tokens,
                Begun::NotAll => return false,
                Begun::Elsewhere => return true,
            };
            let Some(open) = self.devices.open(slot) else {
                return true;
            };
            match open.engine.then(stream, &tokens) {
                Ok(()) => {
                    if let Some(order) = self.order(key) {
                        order.then.pop();
                    }
                }
                Err(SendError::Full) => return false,
                // Its end is waited for instead.
                Err(SendError::Failed(error)) if error.kind() == ErrorKind::Unsupported => {
                    tracing::debug!(target: "wharf::worker", %error, "the host waits for a copy in a stream's stead");
                    return true;
                }
                Err(SendError::Failed(error)) => {
                    self.staging_failed(key, error);
                    return true;
                }
            }
        }
        true
    }

    /// Whether the streams that come after a copy wait for it, or it is over.
    pub(crate) fn is_queued(&mut self, key: OpKey) -> bool {
        match self.operations.get(key) {
            Some(entry) if entry.outcome.is_none() => {
                let order = entry
                    .staged
                    .as_ref()
                    .and_then(|staged| staged.order.as_ref());
                order.is_some_and(|order| order.is_queued)
            }
            _ => true,
        }
    }
}

/// What engines have of an operation.
pub(super) enum Begun {
    /// This engine all of it, under these tokens.
    All(Vec<u64>),
    /// Some of it waits for room.
    NotAll,
    /// Another has some of it.
    Elsewhere,
}
