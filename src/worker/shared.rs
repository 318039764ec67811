//! What the handles of a worker share: the engine behind its lock, and how a future waits on it.
//!
//! ```text
//! poll ─▶ lock ─▶ disarm ─▶ is it there? ─▶ one pass ─▶ is it there? ─▶ unlock ─▶ Ready
//!            ▲                                              │ no
//!            └───────── lap, while the window lasts ◀───────┤
//!                                                           ▼ window over
//!                                     leave the waker in the table, arm, one more look, unlock, Pending
//! ```
//!
//! Whoever parks has armed. Whoever leaves with something else still pending asks the reactor to look after it.

use std::{
    future::Future,
    os::fd::OwnedFd,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context as TaskContext, Poll, Waker},
    time::Instant,
};

use futures::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};

use crate::{
    Context,
    error::{Error, Result},
    memory::region::RegionWatcher,
    sys::{eventfd::EventFd, fork},
    transport::{Connector, Reach},
    types::{LinkId, OpKey, WorkerId},
    worker::{
        core::Kept,
        engine::Engine,
        metrics::Dialling,
        operations::Outcome,
        spin::{LingerPolicy, Luck, Spin, SpinPolicy},
        wireup::Wireup,
    },
};

/// Laps between two looks at the fds (a system call, 0.8 µs), so that futures which never let the runtime's driver run still hear of
/// new sockets, of room on them, and of peers that went.
const FDS_EVERY: u64 = 256;

/// Completions between two looks at the runtime's own budget.
const COOP_EVERY: u32 = 32;

pub(crate) struct Transport {
    pub(crate) name: &'static str,
    pub(crate) reach: Reach,
    pub(crate) connector: Arc<dyn Connector>,
}

pub(crate) struct Shared {
    engine: Mutex<Engine>,
    pub(crate) id: WorkerId,
    pub(crate) context: Context,
    pub(crate) transports: Vec<Transport>,
    pub(crate) spin: SpinPolicy,
    pub(crate) linger: LingerPolicy,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) wireup: Wireup,
    /// The doorbell and the fd of the worker's poll, as the reactor waits on them.
    pub(crate) doorbell: Option<EventFd>,
    pub(crate) poll_fd: OwnedFd,
    pub(crate) reactor: AtomicWaker,
    /// Wakes the worker's own thread, when it has one.
    pub(crate) kick: EventFd,
    pub(crate) stopping: AtomicBool,
    pub(crate) stopped: tokio::sync::watch::Sender<bool>,
    completions: AtomicU32,
    pub(crate) dialling: Dialling,
}

impl Shared {
    pub(crate) fn new(
        engine: Engine,
        id: WorkerId,
        context: Context,
        transports: Vec<Transport>,
        runtime: tokio::runtime::Handle,
        wireup: Wireup,
    ) -> Result<Self> {
        let doorbell = engine
            .doorbell()
            .map(EventFd::from_owned)
            .transpose()
            .map_err(|error| Error::io("the doorbell", error))?;
        let poll_fd = engine.poll_fd()?;
        let spin = SpinPolicy::new(context.config().progress.value);
        Ok(Self {
            engine: Mutex::new(engine),
            id,
            linger: LingerPolicy::new(context.config().progress.value),
            context,
            transports,
            spin,
            runtime,
            wireup,
            doorbell,
            poll_fd,
            reactor: AtomicWaker::new(),
            kick: EventFd::new().map_err(|error| Error::io("an eventfd", error))?,
            stopping: AtomicBool::new(false),
            stopped: tokio::sync::watch::Sender::new(false),
            completions: AtomicU32::new(0),
            dialling: Dialling::default(),
        })
    }

    /// The engine. Give it back by [`Shared::leave`], which wakes whom it has to.
    #[inline]
    pub(crate) fn enter(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock()
    }

    /// Lets go of the engine and wakes the tasks that its state woke. Wakers are never called under the lock.
    #[inline]
    pub(crate) fn leave(&self, mut engine: MutexGuard<'_, Engine>) {
        let due = engine.needs_reactor();
        if due {
            engine.reactor_due = true;
        }
        self.leave_lap(engine);
        if due {
            self.wake_reactor();
        }
    }

    /// Makes the reactor run.
    pub(crate) fn wake_reactor(&self) {
        if self.spin.is_thread() {
            self.kick.ring();
        } else {
            self.reactor.wake();
        }
    }

    /// Does something with the engine, then wakes whom it woke.
    #[inline]
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> R {
        let mut engine = self.enter();
        let result = act(&mut engine);
        self.leave(engine);
        result
    }

    /// Drives the engine from a future: `attempt` looks, after whatever passes it makes; when the window is over `park` leaves the waker.
    pub(crate) fn drive<R>(
        &self,
        cx: &mut TaskContext<'_>,
        mut attempt: impl FnMut(&mut Engine) -> Option<R>,
        mut park: impl FnMut(&mut Engine, &Waker),
    ) -> Poll<R> {
        let mut spin = self.spin.begin();
        loop {
            let mut engine = self.enter();
            self.begin_lap(&mut engine);
            if let Some(result) = attempt(&mut engine) {
                match spin.has_spun() {
                    false => engine.core.counts.found_at_once += 1,
                    true => engine.core.counts.found_spinning += 1,
                }
                self.leave(engine);
                self.completed(&spin, cx);
                return Poll::Ready(result);
            }
            if self.spin.again(&mut spin) {
                self.leave_lap(engine);
                continue;
            }
            park(&mut engine, cx.waker());
            if self.spin.is_busy() {
                self.leave_lap(engine);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.spin.is_thread() || engine.arm() {
                engine.core.counts.parked += 1;
                self.leave(engine);
                return Poll::Pending;
            }
            // Something arrived between the last look and the arming.
            self.leave_lap(engine);
        }
    }

    /// As [`Shared::drive`], for a task that may have other things to do before what it waits for can come: unless looking longer has had
    /// success of late it looks once, and leaves it to the reactor to go on looking, between the turns of other tasks, before it arms.
    pub(crate) fn glance<R>(
        &self,
        cx: &mut TaskContext<'_>,
        luck: &mut Luck,
        mut attempt: impl FnMut(&mut Engine) -> Option<R>,
        mut park: impl FnMut(&mut Engine, &Waker),
    ) -> Poll<R> {
        let mut look = self.spin.look();
        loop {
            let mut engine = self.enter();
            if let Some(result) = attempt(&mut engine) {
                match look.has_spun() {
                    false => engine.core.counts.found_at_once += 1,
                    true => engine.core.counts.found_spinning += 1,
                }
                self.leave(engine);
                self.linger.found(&look, luck);
                self.count(cx);
                return Poll::Ready(result);
            }
            if self.spin.look_again(&mut look, luck) {
                self.begin_lap(&mut engine);
                self.leave_lap(engine);
                continue;
            }
            park(&mut engine, cx.waker());
            if self.spin.is_busy() {
                self.begin_lap(&mut engine);
                self.leave_lap(engine);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            engine.linger = self.linger.parked(luck);
            if engine.linger.is_some() {
                engine.disarm();
                // It may be taking a nap.
                engine.reactor_due = false;
            } else if !self.spin.is_thread() && !engine.arm() {
                // Something arrived between the look and the arming.
                self.leave_lap(engine);
                continue;
            }
            engine.core.counts.parked += 1;
            self.leave(engine);
            return Poll::Pending;
        }
    }

    /// Before a lap: whoever drives needs no doorbell.
    #[inline]
    pub(crate) fn begin_lap(&self, engine: &mut Engine) {
        engine.laps = engine.laps.wrapping_add(1);
        if !self.spin.is_thread() {
            engine.disarm();
            if engine.laps.is_multiple_of(FDS_EVERY) {
                engine.poll_fds();
            }
        }
    }

    /// Between two laps of one future, nobody else needs to be told to look.
    #[inline]
    fn leave_lap(&self, mut engine: MutexGuard<'_, Engine>) {
        if engine.core.wakes.is_empty() && engine.core.buried.is_empty() {
            drop(engine);
        } else {
            let wakes = std::mem::take(&mut engine.core.wakes);
            engine.core.counts.wakes += wakes.len() as u64;
            // One is the rule: the list keeps its memory.
            let buried = engine.core.buried.pop();
            let more = if engine.core.buried.is_empty() {
                Vec::new()
            } else {
                std::mem::take(&mut engine.core.buried)
            };
            drop(engine);
            wakes.into_iter().for_each(Waker::wake);
            drop((buried, more));
        }
    }

    /// Accounts for a completion that needed no wait.
    #[inline]
    pub(crate) fn count(&self, cx: &mut TaskContext<'_>) {
        self.completed(&self.spin.begin(), cx);
    }

    /// Accounts for a completion: the mean wait, and now and then the runtime's budget, so that a loop that never waits lets others run.
    #[inline]
    fn completed(&self, spin: &Spin, cx: &mut TaskContext<'_>) {
        if let Some(waited) = spin.waited() {
            self.spin.learn(waited);
        } else {
            let count = self.completions.load(Ordering::Relaxed).wrapping_add(1);
            self.completions.store(count, Ordering::Relaxed);
            if count.is_multiple_of(COOP_EVERY) {
                self.spin.learn(std::time::Duration::ZERO);
                if count.is_multiple_of(COOP_EVERY * 32) {
                    self.with(|engine| {
                        engine.poll_fds();
                        engine.progress()
                    });
                }
                // Pending means that the budget is spent; the next poll of any budgeted future yields.
                let _ = pin!(tokio::task::consume_budget()).poll(cx);
            }
        }
    }

    /// Whether the runtime wants this task to give way; its waker has been called then.
    #[inline]
    pub(crate) fn must_yield(&self, cx: &TaskContext<'_>) -> bool {
        if tokio::task::coop::has_budget_remaining() {
            return false;
        }
        cx.waker().wake_by_ref();
        true
    }

    /// Waits for the outcome of an operation in the table.
    pub(crate) fn poll_outcome(&self, cx: &mut TaskContext<'_>, key: OpKey) -> Poll<Outcome> {
        self.drive(
            cx,
            |engine| {
                if let Some(entry) = engine.core.operations.get(key)
                    && entry.outcome.is_none()
                {
                    // Its own progress must not wake it.
                    entry.waker.take();
                    engine.peek(|core| {
                        core.operations
                            .get(key)
                            .is_none_or(|entry| entry.outcome.is_some())
                    });
                }
                match engine.core.operations.get(key) {
                    Some(entry) => {
                        entry.outcome.as_ref()?;
                        if let Some(since) = entry.since {
                            self.spin.learn(since.elapsed());
                        }
                        engine.core.take_outcome(key)
                    }
                    // Taken already; a future polled after its end.
                    None => Some(Outcome::Done(Err(Error::new(
                        crate::ErrorKind::InvalidArgument,
                        "polled after completion",
                    )))),
                }
            },
            |engine, waker| {
                if let Some(entry) = engine.core.operations.get(key) {
                    entry.waker.leave(waker);
                    entry.since.get_or_insert_with(Instant::now);
                }
            },
        )
    }

    /// Waits until the program's streams come after a copy, or it is over. `false`: it has failed.
    pub(crate) fn poll_queued(&self, cx: &mut TaskContext<'_>, key: OpKey) -> Poll<bool> {
        self.drive(
            cx,
            |engine| {
                if !engine.core.is_queued(key) {
                    // Its own progress must not wake it.
                    if let Some(entry) = engine.core.operations.get(key) {
                        entry.waker.take();
                    }
                    engine.peek(|core| core.is_queued(key));
                }
                engine.core.is_queued(key).then(|| {
                    let entry = engine.core.operations.get(key);
                    let outcome = entry.and_then(|entry| entry.outcome.as_ref());
                    !matches!(outcome, Some(Outcome::Buffer { result: Err(_), .. }))
                })
            },
            |engine, waker| {
                if let Some(entry) = engine.core.operations.get(key) {
                    entry.waker.leave(waker);
                }
            },
        )
    }

    /// A future goes before its operation has ended.
    pub(crate) fn drop_future(&self, key: OpKey) {
        if fork::forked() {
            return;
        }
        self.with(|engine| engine.core.drop_future(key));
    }
}

impl RegionWatcher for Shared {
    fn publish(&self, slot: u32, generation: u64) {
        self.each_pair(|pair| pair.publish_generation(slot, generation));
    }

    fn revoke(&self, slot: u32) {
        self.each_pair(|pair| pair.publish_generation(slot, 0));
        self.with(|engine| engine.core.withdraw(slot));
    }

    fn is_quiet(&self) -> bool {
        let mut quiet = true;
        self.each_pair(|pair| quiet &= !pair.peer_active() || pair.peer_exited());
        // After the others: a connection that ends meanwhile goes from there to here.
        quiet && self.with(|engine| engine.core.kept.iter().all(Kept::is_over))
    }
}

impl Shared {
    fn each_pair(&self, mut act: impl FnMut(&crate::transport::shm::Pair)) {
        let engine = self.enter();
        for peer in engine.core.peers.iter().flatten() {
            if let Some(one_copy) = &peer.one_copy {
                act(&one_copy.pair);
            }
        }
        self.leave(engine);
    }

    /// Starts the closing of a connection whose last handle is gone.
    pub(crate) fn release_endpoint(&self, link: LinkId, id: crate::EndpointId) {
        if fork::forked() {
            return;
        }
        self.with(|engine| {
            if let Some(peer) = engine.core.endpoint(link, id) {
                peer.handles = peer.handles.saturating_sub(1);
                if peer.handles > 0 {
                    return;
                }
                match peer.status {
                    // It was only answered on.
                    crate::worker::peer::Status::Open if !peer.claimed => {}
                    crate::worker::peer::Status::Open => engine.core.begin_close(link),
                    crate::worker::peer::Status::Closed(_) => engine.core.forget(link),
                    crate::worker::peer::Status::Closing { .. } => {}
                }
            }
        });
    }
}
