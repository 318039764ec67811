//! Copies in order with the program's own streams, step by step.

use crate::{
    error::{ErrorKind, Result},
    transport::SendError,
    types::OpKey,
    worker::{
        ctx::Ctx,
        device::{
            engines::Devices,
            order::{Begun, Order, unknown},
            pipe::Stage,
        },
        movers::Movers,
    },
};

impl Ctx {
    /// The order of an operation that goes on.
    fn order(&mut self, key: OpKey) -> Option<&mut Order> {
        self.pipe(key)?;
        let staged = self.operations.get(key)?.staged.as_mut()?;
        staged.order.as_deref_mut()
    }

    /// Whether streams come after a copy.
    pub(in crate::worker) fn has_then(&mut self, key: OpKey) -> bool {
        self.order(key).is_some_and(|order| !order.then.is_empty())
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

impl Movers {
    /// Whether a copy may begin. `false`: it is stepped again when a place was reached, or has failed.
    pub(in crate::worker) fn in_order(&mut self, key: OpKey) -> bool {
        while let Some(order) = self.ctx.order(key) {
            let Some(place) = order.after.last().copied() else {
                return order.waits == 0;
            };
            let slot = self.devices.slot_named(place.accelerator());
            match slot.and_then(|slot| Ok(self.engine_ready(slot, key)?.then_some(slot))) {
                Ok(Some(slot)) => {
                    if let Some(order) = self.ctx.order(key) {
                        order.after.pop();
                        order.waits += 1;
                    }
                    self.devices.push_place(slot, key, place);
                }
                Ok(None) => {
                    self.ctx.waits(key, true);
                    return false;
                }
                Err(error) => {
                    self.ctx.staging_failed(key, error);
                    return false;
                }
            }
        }
        true
    }

    /// An engine has reported a place.
    pub(in crate::worker) fn place_reached(&mut self, key: OpKey, result: Result<()>) {
        match result {
            Ok(()) => {
                if let Some(order) = self.ctx.order(key) {
                    order.waits = order.waits.saturating_sub(1);
                }
                self.step_staged(key);
            }
            Err(error) => self.ctx.staging_failed(key, error),
        }
    }

    /// Has streams wait for copies that are now in the hands of their devices.
    pub(in crate::worker) fn queue_streams(&mut self) {
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
        let Some(pipe) = self.ctx.pipe(key) else {
            return true;
        };
        let begun = pipe.has_begun();
        // What is in the last stage is nobody's but its engine's.
        if !begun || pipe.parts.iter().any(|part| part.stage != Stage::Storing) {
            return false;
        }
        while let Some(order) = self.ctx.order(key) {
            let Some(stream) = order.then.last().copied() else {
                order.is_queued = true;
                if let Some(entry) = self.ctx.operations.get(key) {
                    self.ctx.wakes.extend(entry.waker.take());
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
                    if let Some(order) = self.ctx.order(key) {
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
                    self.ctx.staging_failed(key, error);
                    return true;
                }
            }
        }
        true
    }
}

impl Devices {
    /// The engine of the accelerator of this name.
    pub(in crate::worker) fn slot_named(&self, name: &str) -> Result<usize> {
        let context = self.context();
        let found = context.and_then(|context| {
            let mut accelerators = context.accelerators().iter();
            accelerators.position(|accelerator| accelerator.name() == name)
        });
        found.ok_or_else(|| unknown(name))
    }
}
