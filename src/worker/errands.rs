//! What is done off the lock: opening engines and ways to device memory, registering, bringing engines to rest. On threads that may block.

use std::{
    future::poll_fn,
    sync::{Arc, Weak},
    task::Poll,
    time::Duration,
};

use tokio::time::timeout;

use crate::{
    error::{Error, ErrorKind, Result},
    sys::fork,
    transport::{Accelerator, LocalKeys, Registering},
    types::{EndpointId, LinkId, OpKey},
    util::tasks::{spawn, spawn_blocking},
    worker::{
        core::Core,
        device::{Open, engines::Reports, pool::Pinned, route::What},
        engine::Engine,
        movers::{Errand, Movers, Told},
        operations::Operations,
        shared::Shared,
    },
};

/// How often a connection is looked after that closes and that nobody holds.
const MINUTE: Duration = Duration::from_secs(60);
/// Between two looks at who holds what others wait for.
const ATTENTION: Duration = Duration::from_secs(5);

impl Shared {
    /// Begins what was put off until the lock was gone, if the worker is still there, and not in a child.
    #[cold]
    pub(in crate::worker) fn begin_errand(&self, errand: Errand) {
        let me = self.me.get().filter(|me| me.strong_count() > 0);
        let Some(worker) = me.cloned().filter(|_| !fork::forked()) else {
            return;
        };
        match errand {
            Errand::Open(slot) => self.open_engine(worker, slot),
            Errand::Route(slot, what) => self.find_way(worker, slot, what),
            Errand::Wait(work) => self.wait(worker, work),
            Errand::Clear(link, key, made) => self.clear(worker, link, key, made),
            Errand::Attend => self.wait(worker, async {
                tokio::time::sleep(ATTENTION).await;
                Box::new(Movers::make_way) as Told
            }),
            Errand::SeeOff(link, id, said) => self.cut_late(worker, link, id, said),
        }
    }

    fn open_engine(&self, worker: Weak<Self>, slot: usize) {
        let accelerator = self.context.accelerators()[slot].clone();
        let text = "the opening of the accelerator was broken off";
        let opening = Tells::new(worker, text, move |engine, opened: Result<Opened>| {
            engine
                .opened(slot, opened.map(Opened::take))
                .map(Opened::new)
        });
        let _task = spawn_blocking(&self.runtime, move || {
            let opened = open(&*accelerator).map_err(|error| error.over(accelerator.name()));
            opening.end(opened);
        });
    }

    fn find_way(&self, worker: Weak<Self>, slot: usize, what: What) {
        let accelerator = self.context.accelerators()[slot].clone();
        let text = "the way to device memory was not found before its runtime ended";
        match what {
            What::Export {
                address,
                length,
                source,
                loan,
            } => {
                let found = Tells::new(worker, text, move |engine, result| {
                    engine.told(|movers| movers.ctx.export_ended(loan, result));
                    None
                });
                let _task = spawn_blocking(&self.runtime, move || {
                    let exported = accelerator.export(address, length);
                    // Before anybody is told, and without the lock.
                    drop(source);
                    found.end(exported);
                });
            }
            What::Import {
                descriptor,
                peer,
                key,
            } => {
                let found = Tells::new(worker, text, move |engine, result| {
                    engine.told(|movers| movers.import_ended(key, result));
                    None
                });
                let _task = spawn(&self.runtime, async move {
                    found.end(accelerator.import(&descriptor, &peer).await);
                });
            }
        }
    }

    fn wait(&self, worker: Weak<Self>, work: impl Future<Output = Told> + Send + 'static) {
        spawn(&self.runtime, async move {
            let told = work.await;
            if let Some(shared) = worker.upgrade() {
                shared.with(|engine| engine.told(told));
            }
        });
    }

    fn clear(&self, worker: Weak<Self>, link: LinkId, key: OpKey, made: Registering<LocalKeys>) {
        let clearer = worker.clone();
        self.wait(worker, async move {
            let mut next = 0;
            let result = loop {
                let clear = |shared: Arc<Self>| {
                    shared.with(|engine| engine.core.movers.ctx.clear_written(link, key, next))
                };
                match clearer.upgrade().and_then(clear) {
                    Some(0) => break made.await,
                    Some(cleared) => next += cleared,
                    None => {
                        let text = "the receive has ended";
                        break Err(Error::new(ErrorKind::Canceled, text));
                    }
                }
                tokio::task::yield_now().await;
            };
            Box::new(move |movers: &mut Movers| movers.registered(link, key, result)) as Told
        });
    }

    fn cut_late(&self, worker: Weak<Self>, link: LinkId, id: EndpointId, said: bool) {
        spawn(&self.runtime, async move {
            let mut ticket = None;
            loop {
                let over = poll_fn(|cx| {
                    let polled = worker.upgrade().map(|shared| {
                        shared.with(|engine| match engine.ctx().endpoint(link, id) {
                            Some(peer) if peer.is_alive() => {
                                let before = peer.ending.leave(&mut ticket, cx.waker());
                                engine.ctx().drop_later(before);
                                Poll::Pending
                            }
                            _ => Poll::Ready(()),
                        })
                    });
                    polled.unwrap_or(Poll::Ready(()))
                });
                let is_over = timeout(MINUTE, over).await.is_ok();
                let cut =
                    |shared: Arc<Self>| shared.with(|engine| engine.overstays(link, id, said));
                if is_over || worker.upgrade().is_none_or(cut) {
                    return;
                }
            }
        });
    }
}

/// Tells the worker what an errand came to when it is dropped, on a runtime that has ended, too. `tell` gives back what is not of use.
struct Tells<T, F: FnMut(&mut Engine, Result<T>) -> Option<T>> {
    worker: Weak<Shared>,
    result: Option<Result<T>>,
    tell: F,
}

impl<T, F: FnMut(&mut Engine, Result<T>) -> Option<T>> Tells<T, F> {
    /// `text`: what is told where the errand comes to nothing.
    fn new(worker: Weak<Shared>, text: &'static str, tell: F) -> Self {
        let result = Some(Err(Error::new(ErrorKind::Canceled, text)));
        Self {
            worker,
            result,
            tell,
        }
    }

    fn end(mut self, result: Result<T>) {
        self.result = Some(result);
    }
}

impl<T, F: FnMut(&mut Engine, Result<T>) -> Option<T>> Drop for Tells<T, F> {
    fn drop(&mut self) {
        if let (Some(shared), Some(result)) = (self.worker.upgrade(), self.result.take()) {
            // Without the lock, and on this thread, which may block.
            let _left = shared.with(|engine| (self.tell)(engine, result));
        }
    }
}

/// An engine on its way to the worker. One that nobody takes, as the worker has ended meanwhile, is brought to rest like any other.
struct Opened(Option<Box<Open>>);

impl Opened {
    fn new(open: Box<Open>) -> Self {
        Self(Some(open))
    }

    fn take(mut self) -> Box<Open> {
        self.0.take().expect("it is taken once")
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(open) = &mut self.0 {
            open.quiesce();
        }
    }
}

fn open(accelerator: &dyn Accelerator) -> Result<Opened> {
    let engine = accelerator.open()?;
    let attributes = engine.attributes();
    let pinned = Pinned::new(
        &accelerator.domain(),
        attributes.fragment,
        attributes.pageable_from.is_some(),
    );
    Ok(Opened::new(Box::new(Open::new(engine, pinned))))
}

impl Shared {
    /// Brings all engines to rest, on a thread of its own; what they use stays until then.
    pub(crate) fn end_devices(self: &Arc<Self>) {
        let engines = self.with(|engine| engine.core.movers.devices.close());
        if engines.is_empty() {
            return;
        }
        let shared = self.clone();
        let end = move || {
            for (slot, mut open) in engines {
                open.quiesce();
                let mut reports = Reports::default();
                while open.engine.progress(usize::MAX, &mut reports) > 0 {}
                // Ends all use of memory.
                let pinned = open.pinned.ok();
                drop(open.engine);
                shared.with(|engine| {
                    engine.core.movers.take_reports(slot, &mut reports);
                    engine.core.movers.engine_ended(slot);
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

/// The last of a worker, whose runtime was gone before it could be stopped.
impl Drop for Core {
    fn drop(&mut self) {
        if fork::forked() {
            // Engines and their memory are the parent's.
            let devices = std::mem::take(&mut self.movers.devices);
            let _kept = std::mem::ManuallyDrop::new(devices);
            return;
        }
        let engines = self.movers.devices.close();
        if engines.is_empty() {
            return;
        }
        // Links first: they use memory of operations as well.
        self.movers.ctx.peers.clear();
        let operations = std::mem::take::<Operations>(&mut self.movers.ctx.operations);
        let deferred = std::mem::take(&mut self.movers.ctx.deferred);
        let errands = std::mem::take(&mut self.movers.errands);
        on_thread(move || {
            for (_, mut open) in engines {
                open.quiesce();
            }
            drop((operations, deferred, errands));
        });
    }
}
