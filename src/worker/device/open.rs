//! Opening an engine, and bringing all of them to rest: on threads that may block.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use crate::{
    error::{Error, ErrorKind, Result},
    sys::fork,
    transport::Accelerator,
    worker::{core::Core, operations::Operations, pressure::Buried, shared::Shared},
};

use super::{
    engines::{Open, Reports},
    pool::Pinned,
};

/// What opens engines for a worker.
#[derive(Clone)]
pub(crate) struct Opener(Weak<Shared>);

impl Opener {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self(Arc::downgrade(shared))
    }

    /// The worker.
    pub(super) fn worker(&self) -> &Weak<Shared> {
        &self.0
    }

    /// The opening of an engine, as something to do once the lock is gone.
    pub(super) fn errand(&self, slot: usize) -> Errand {
        Errand(self.clone(), slot)
    }
}

/// Begins to open an engine when it is dropped: without the lock, as all that is buried.
pub(crate) struct Errand(Opener, usize);

impl Drop for Errand {
    fn drop(&mut self) {
        let (Some(shared), slot) = (self.0.0.upgrade(), self.1) else {
            return;
        };
        if fork::forked() {
            return;
        }
        let accelerator = shared.context.accelerators()[slot].clone();
        let mut opening = Opening {
            worker: self.0.0.clone(),
            slot,
            opened: None,
        };
        // On a runtime that is gone it is dropped, and says so.
        let _task = shared.runtime.spawn_blocking(move || {
            let opened = open(&*accelerator).map_err(|error| error.over(accelerator.name()));
            opening.end(opened);
        });
    }
}

fn open(accelerator: &dyn Accelerator) -> Result<Box<Open>> {
    let engine = accelerator.open()?;
    let attributes = engine.attributes();
    let pinned = Pinned::new(
        &accelerator.domain(),
        attributes.fragment,
        attributes.takes_pageable,
    );
    Ok(Box::new(Open::new(engine, pinned)))
}

/// An engine that is being opened. Tells the worker what came of it, when it is dropped.
struct Opening {
    worker: Weak<Shared>,
    slot: usize,
    opened: Option<Result<Box<Open>>>,
}

impl Opening {
    fn end(&mut self, opened: Result<Box<Open>>) {
        self.opened = Some(opened);
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let opened = self.opened.take().unwrap_or_else(|| {
            let text = "the opening of the accelerator was broken off";
            Err(Error::new(ErrorKind::Canceled, text))
        });
        let left = match self.worker.upgrade() {
            Some(shared) => shared.with(|engine| engine.opened(self.slot, opened)),
            None => opened.ok(),
        };
        // On this thread, which may block.
        drop(left);
    }
}

impl Shared {
    /// Brings all engines to rest, on a thread of its own; what they use stays until then.
    pub(crate) fn end_devices(self: &Arc<Self>) {
        let engines = self.with(|engine| engine.core.devices.close());
        if engines.is_empty() {
            return;
        }
        let shared = self.clone();
        let end = move || {
            for (slot, mut open) in engines {
                open.engine.quiesce();
                let mut reports = Reports::default();
                while open.engine.progress(usize::MAX, &mut reports) > 0 {}
                // Ends all use of memory.
                let pinned = open.pinned.ok();
                drop(open.engine);
                shared.with(|engine| {
                    engine.core.take_reports(slot, &mut reports);
                    engine.core.engine_ended(slot);
                });
                drop(pinned);
            }
        };
        on_thread(end);
    }
}

/// Runs `end` on a thread, or here when there can be none.
fn on_thread(end: impl FnOnce() + Send + 'static) {
    let (give, take) = std::sync::mpsc::channel::<Box<dyn FnOnce() + Send>>();
    let thread = std::thread::Builder::new().name("wharf-quiesce".into());
    let spawned = thread.spawn(move || {
        if let Ok(end) = take.recv() {
            end();
        }
    });
    let end: Box<dyn FnOnce() + Send> = Box::new(end);
    match spawned {
        Ok(_) => drop(give.send(end)),
        Err(error) => {
            tracing::warn!(target: "wharf::worker", %error, "no thread to bring engines to rest on; this one waits");
            end();
        }
    }
}

impl Core {
    pub(super) fn bury_errand(&mut self, errand: Errand) {
        self.buried.push(Buried::Errand(errand));
    }
}

/// The last of a worker, whose runtime was gone before it could be stopped.
impl Drop for Core {
    fn drop(&mut self) {
        if fork::forked() {
            // Engines and their memory are the parent's.
            let devices = std::mem::take(&mut self.devices);
            let _kept = std::mem::ManuallyDrop::new(devices);
            return;
        }
        let engines = self.devices.close();
        if engines.is_empty() {
            return;
        }
        // Links first: they use memory of operations as well.
        self.peers.clear();
        let operations = std::mem::take::<Operations>(&mut self.operations);
        let deferred = std::mem::take(&mut self.buried);
        on_thread(move || {
            for (_, mut open) in engines {
                open.engine.quiesce();
            }
            drop((operations, deferred));
        });
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opener")
    }
}
