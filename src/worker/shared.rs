//! What the handles of a worker share: the engine behind its lock, and how a future waits on it.
//!
//! ```text
//! poll ─▶ lock ─▶ disarm ─▶ is it there? ─▶ one pass ─▶ is it there? ─▶ unlock ─▶ Ready
//!            ▲                                              │ no
//!            └───────── lap, while the window lasts ◀───────┤
//!                                                           ▼ window over, or others were woken
//!                leave the waker in the table; let the reactor linger, or arm and look once more; unlock, Pending
//! ```
//!
//! Whoever parks has armed, or has the reactor look ([`SpinPolicy`]). Whoever leaves with something else still pending asks the reactor to look after it.

use std::{
    future::{Future, poll_fn},
    os::fd::{AsFd, OwnedFd},
    pin::pin,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context as TaskContext, Poll, Waker, ready},
    time::{Duration, Instant},
};

use futures::{FutureExt, task::AtomicWaker};

use crate::{
    Context,
    error::{Error, ErrorKind, Operation, Result},
    memory::region::{Guest, RegionWatcher},
    protocol::{goodbye::Leaves, keys::PrivateKey},
    sys::{
        biased::{Biased, Guard, OwnerGuard},
        eventfd::EventFd,
        fork,
    },
    transport::{Connector, Pair, Reach},
    types::{LinkId, OpKey, WorkerId},
    util::{lock::RwLock, tasks::spawn, wake::wake_all},
    worker::{
        connect::{Accepted, wireup::Wireup},
        drivers::Driver,
        engine::Engine,
        metrics::Dialling,
        operations::{Outcome, wrong},
        spin::{LingerPolicy, Spin, SpinPolicy, SpinRecord},
        turn,
    },
};

/// Why nothing begins on a worker any more that nobody shut down.
pub(in crate::worker) const RUNTIME_ENDED: &str = "the worker's Tokio runtime has ended";

/// Laps between two looks at the fds (a system call, 0.8 µs), so that futures which never let the runtime's driver run still hear of
/// new sockets, of room on them, and of peers that went.
const FDS_EVERY: u64 = 256;

/// For how long a runtime that ends waits for who uses its timers from outside. What panics after that would have panicked without.
const USED_FOR: Duration = Duration::from_secs(1);

pub(crate) struct Transport {
    pub(crate) name: &'static str,
    pub(crate) reach: Reach,
    pub(crate) connector: Arc<dyn Connector>,
}

pub(crate) struct Shared {
    /// Itself, once it stands.
    pub(crate) me: OnceLock<Weak<Self>>,
    engine: Biased<Engine>,
    pub(crate) id: WorkerId,
    /// Proves to peers that this is the worker of that id.
    pub(crate) key: PrivateKey,
    pub(crate) context: Context,
    /// Posted operations that a connection may have under way, as the configuration has it.
    pub(crate) ops_window: usize,
    pub(crate) transports: Vec<Transport>,
    pub(crate) spin: SpinPolicy,
    pub(crate) linger: LingerPolicy,
    pub(crate) runtime: tokio::runtime::Handle,
    /// Read by who uses the runtime's timers from outside of it: see [`Shared::while_it_runs`].
    uses_runtime: RwLock<()>,
    pub(crate) wireup: Wireup,
    /// The doorbell and the fd of the worker's poll, as the reactor waits on them.
    pub(crate) doorbell: Option<OwnedFd>,
    pub(crate) poll_fd: OwnedFd,
    /// What loops that are not Tokio's wait on.
    pub(crate) watch_fd: OwnedFd,
    /// Whether anybody has asked for it.
    pub(crate) watched: AtomicBool,
    pub(crate) reactor: AtomicWaker,
    /// Wakes the worker's own thread, when it has one.
    pub(crate) kick: EventFd,
    pub(crate) stopping: AtomicBool,
    pub(crate) stopped: tokio::sync::watch::Sender<bool>,
    completions: AtomicU32,
    /// Tells this process from its children.
    pub(in crate::worker) mark: fork::Mark,
    pub(crate) dialling: Dialling,
    pub(crate) accepted: Arc<Accepted>,
}

impl Shared {
    pub(crate) fn new(
        engine: Engine,
        key: PrivateKey,
        context: Context,
        transports: Vec<Transport>,
        runtime: tokio::runtime::Handle,
        wireup: Wireup,
    ) -> Result<Self> {
        let doorbell = engine.doorbell();
        let poll_fd = engine.poll_fd()?;
        let watch_fd = engine.watch.fd()?;
        if let Some(doorbell) = &doorbell {
            engine.watch.add(doorbell.as_fd())?;
        }
        let spin = SpinPolicy::new(context.config().progress.value);
        Ok(Self {
            me: OnceLock::new(),
            engine: Biased::new(engine),
            id: key.public().worker(),
            key,
            linger: LingerPolicy::new(context.config().progress.value),
            ops_window: context.config().ops_window.value,
            context,
            transports,
            spin,
            runtime,
            uses_runtime: RwLock::default(),
            wireup,
            doorbell,
            poll_fd,
            watch_fd,
            watched: AtomicBool::new(false),
            reactor: AtomicWaker::new(),
            kick: EventFd::new().map_err(|error| Error::io("an eventfd", error))?,
            stopping: AtomicBool::new(false),
            stopped: tokio::sync::watch::Sender::new(false),
            completions: AtomicU32::new(0),
            mark: fork::Mark::here(),
            dialling: Dialling::default(),
            accepted: Arc::default(),
        })
    }

    /// The engine. Give it back by [`Shared::leave`], which wakes whom it has to.
    #[inline]
    pub(in crate::worker) fn enter(&self) -> Guard<'_, Engine> {
        self.engine.lock()
    }

    /// The same, where this thread need not wait for it.
    #[inline(always)]
    pub(in crate::worker) fn enter_as_owner(&self) -> Option<OwnerGuard<'_, Engine>> {
        self.engine.lock_as_owner()
    }

    /// Lets go of the engine and wakes the tasks that its state woke. Wakers are never called under the lock.
    #[inline(always)]
    pub(in crate::worker) fn leave(&self, engine: Guard<'_, Engine>) {
        if engine.needs_reactor() {
            self.leave_to_reactor(engine);
        } else {
            self.leave_lap(engine);
        }
    }

    /// The same, where the reactor has to be asked.
    #[inline(never)]
    fn leave_to_reactor(&self, mut engine: Guard<'_, Engine>) {
        engine.core.act();
        if !engine.needs_reactor() {
            return self.leave_lap(engine);
        }
        engine.reactor_due = true;
        engine.reactor_called = true;
        self.leave_lap(engine);
        self.wake_reactor();
    }

    /// Does what only a worker that goes on can do, in the context of the runtime that is there, or of the worker's outside of all.
    /// Errors: `Closed` when it has been shut down or its runtime has ended, before or meanwhile; else what `future` says.
    pub(crate) async fn unless_stopped<T>(
        &self,
        operation: Operation,
        future: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut stopped = self.stopped.subscribe();
        let mut ends = pin!(stopped.wait_for(|stopped| *stopped));
        let mut future = pin!(future);
        let closed = || self.with(|engine| engine.closed()).during(operation);
        poll_fn(|cx| {
            if ends.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(closed()));
            }
            let drivers = [Driver::Timers, Driver::Io];
            let polled = self.while_it_runs(&drivers, || future.as_mut().poll(cx));
            let result = ready!(polled.unwrap_or_else(|| Poll::Ready(Err(closed()))));
            Poll::Ready(result.map_err(|error| self.runtime_or(error, operation)))
        })
        .await
    }

    /// Does something with these drivers, in the context of the runtime that is there and has them, or else of the worker's. Tokio's panic when they are polled once their runtime has ended, and it may end on
    /// another thread at any moment: it waits for what is done here. `None`: the worker was stopped, as it is before its runtime ends.
    pub(crate) fn while_it_runs<R>(
        &self,
        drivers: &[Driver],
        act: impl FnOnce() -> R,
    ) -> Option<R> {
        // Who has it alone has stopped the worker before.
        let _stays = self.uses_runtime.try_read()?;
        if self.stopping.load(Ordering::Acquire) {
            return None;
        }
        let own = self.runtime.id();
        let are_here = drivers.iter().all(|driver| driver.is_at_hand(own));
        let _within = (!are_here).then(|| self.runtime.enter());
        Some(act())
    }

    /// The runtime drops its tasks, as it does before its timers: waits for those who use them, since the worker was stopped for one poll of each at
    /// most. Not for ever: one of them may be what drops the runtime, or may wait for that (a waker of the program's).
    pub(in crate::worker) fn runtime_ends(&self) {
        let end = Instant::now() + USED_FOR;
        while self.uses_runtime.try_write().is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// That the runtime has ended, where that is why something failed: its sockets may say so, in words of their own, before the worker
    /// has been told.
    #[cold]
    fn runtime_or(&self, error: Error, operation: Operation) -> Error {
        // A runtime that is ending takes no task.
        let refused = spawn(&self.runtime, async {}).now_or_never();
        match refused {
            Some(Err(refused)) if refused.is_cancelled() => {
                Error::new(ErrorKind::Closed, RUNTIME_ENDED).during(operation)
            }
            _ => error,
        }
    }

    /// Whether there is a transport of this reach.
    pub(in crate::worker) fn reaches(&self, reach: Reach) -> bool {
        let mut own = self.transports.iter();
        own.any(|own| own.reach == reach)
    }

    /// Whether there is one that a peer with these has, too.
    pub(in crate::worker) fn shares(&self, reach: Reach, theirs: &[String]) -> bool {
        let mut own = self.transports.iter();
        own.any(|own| own.reach == reach && theirs.iter().any(|other| other == own.name))
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
    pub(in crate::worker) fn with<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> R {
        let mut engine = self.enter();
        let result = act(&mut engine);
        self.leave(engine);
        result
    }

    /// Drives the engine from a future: `attempt` looks, after whatever passes it makes; when the window is over `park` leaves the waker.
    pub(in crate::worker) fn drive<R>(
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
                engine.found(spin.has_spun());
                self.leave(engine);
                self.completed(&spin, cx);
                return Poll::Ready(result);
            }
            // Those who were woken may wait for this thread.
            if self.spin.again(&mut spin, || engine.looks_cost()) && engine.woken == 0 {
                self.leave_lap(engine);
                continue;
            }
            park(&mut engine, cx.waker());
            engine.woken = 0;
            if self.spin.is_busy() {
                self.leave_lap(engine);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let lingers = self.spin.lingers(|| engine.looks_cost());
            if self.parks(&mut engine, lingers) {
                self.leave(engine);
                return Poll::Pending;
            }
            // Something arrived between the last look and the arming.
            self.leave_lap(engine);
        }
    }

    /// A future is about to sleep, and has left its waker. `false`: something is here already.
    fn parks(&self, engine: &mut Engine, lingers: Option<Duration>) -> bool {
        if lingers.is_some() {
            engine.linger = lingers;
            engine.disarm();
            // It may be taking a nap.
            engine.reactor_due = false;
        } else if !self.spin.is_thread() && !engine.arm_or_leave() {
            return false;
        }
        engine.core.movers.ctx.counts.parked += 1;
        true
    }

    /// As [`Shared::drive`], for a task that may have other things to do before what it waits for can come: unless looking longer has had
    /// success of late it looks once, and leaves it to the reactor to go on looking, between the turns of other tasks, before it arms.
    /// `attempt` is told whether it may wait for a moment.
    pub(in crate::worker) fn glance<R>(
        &self,
        cx: &mut TaskContext<'_>,
        record: &mut SpinRecord,
        mut attempt: impl FnMut(&mut Engine, bool) -> Option<R>,
        mut park: impl FnMut(&mut Engine, &Waker),
    ) -> Poll<R> {
        let mut look = self.spin.look();
        let mut patient = record.pays();
        loop {
            let mut engine = self.enter();
            if let Some(result) = attempt(&mut engine, patient) {
                engine.found(look.has_spun());
                self.leave(engine);
                self.linger.found(&look, record);
                self.count(cx);
                return Poll::Ready(result);
            }
            // Those who were woken may wait for this thread.
            if engine.woken == 0
                && self
                    .spin
                    .look_again(&mut look, record, || engine.looks_cost())
            {
                patient = true;
                self.begin_lap(&mut engine);
                self.leave_lap(engine);
                continue;
            }
            park(&mut engine, cx.waker());
            engine.woken = 0;
            if self.spin.is_busy() {
                self.begin_lap(&mut engine);
                self.leave_lap(engine);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.parks(&mut engine, self.linger.parked(record)) {
                self.leave(engine);
                return Poll::Pending;
            }
            // Something arrived between the look and the arming.
            self.leave_lap(engine);
        }
    }

    /// Before a lap: whoever drives needs no doorbell.
    #[inline]
    pub(in crate::worker) fn begin_lap(&self, engine: &mut Engine) {
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
    pub(in crate::worker) fn leave_lap(&self, engine: Guard<'_, Engine>) {
        if engine.core.movers.ctx.wakes.len() | engine.core.movers.ctx.deferred.len() == 0 {
            drop(engine);
        } else {
            self.leave_and_wake(engine);
        }
    }

    /// Accounts for a completion that needed no wait: now and then the runtime's budget and the time that its driver has waited, so that a
    /// loop that never sleeps lets others run. `true`: it was now, and the task may have to give way.
    #[inline]
    pub(in crate::worker) fn count(&self, cx: &mut TaskContext<'_>) -> bool {
        let count = self.count_one();
        let due = count.is_multiple_of(turn::EVERY);
        if due {
            self.account(count, cx);
        }
        due
    }

    /// Whether the next completion is to be accounted for.
    #[inline(always)]
    pub(crate) fn is_count_due(&self) -> bool {
        let count = self.completions.load(Ordering::Relaxed).wrapping_add(1);
        count.is_multiple_of(turn::EVERY)
    }

    /// Counts a completion, and accounts for nothing: how many there have been.
    #[inline(always)]
    pub(in crate::worker) fn count_one(&self) -> u32 {
        let count = self.completions.load(Ordering::Relaxed).wrapping_add(1);
        self.completions.store(count, Ordering::Relaxed);
        count
    }

    #[cold]
    fn account(&self, count: u32, cx: &mut TaskContext<'_>) {
        let late = self.with(|engine| std::mem::take(&mut engine.late));
        self.spin.found_in_a_lap(late);
        if count.is_multiple_of(turn::EVERY * 32) {
            self.with(|engine| {
                engine.poll_fds();
                engine.progress()
            });
        }
        // Pending means that the budget is spent; the next poll of any budgeted future yields.
        let _ = pin!(tokio::task::consume_budget()).poll(cx);
        turn::completed(Instant::now(), cx);
    }

    /// Accounts for a completion, and for the wait before it.
    #[inline]
    fn completed(&self, spin: &Spin, cx: &mut TaskContext<'_>) {
        match spin.waited() {
            None => {
                if spin.has_spun() {
                    self.spin.found_looking(Duration::ZERO);
                }
                self.count(cx);
            }
            Some((waited, now)) => {
                self.spin.found_looking(waited);
                turn::completed(now, cx);
            }
        }
    }

    /// Whether the runtime wants this task to give way; its waker has been called then.
    #[inline]
    pub(in crate::worker) fn must_yield(&self, cx: &mut TaskContext<'_>) -> bool {
        if tokio::task::coop::has_budget_remaining() {
            return false;
        }
        // Woken once the others, and the runtime's driver, have had their turn.
        let _ = tokio::task::coop::poll_proceed(cx).is_pending();
        true
    }

    /// Waits for the outcome of an operation in the table.
    pub(crate) fn poll_outcome(&self, cx: &mut TaskContext<'_>, key: OpKey) -> Poll<Outcome> {
        if self.must_yield(cx) {
            return Poll::Pending;
        }
        self.drive(
            cx,
            |engine| {
                if !engine.core.is_over(key) {
                    // Its own progress must not wake it.
                    engine.core.take_waker(key);
                    engine.peek(|core| core.is_over(key));
                }
                if !engine.core.is_over(key) {
                    return None;
                }
                let outcome = engine.core.take_outcome(key);
                Some(outcome.unwrap_or_else(|| Outcome::Done(Err(wrong()))))
            },
            |engine, waker| {
                let before = engine.core.waker_of(key).and_then(|slot| slot.leave(waker));
                engine.ctx().drop_later(before);
            },
        )
    }

    /// Waits until the program's streams come after a copy, or it is over. `false`: it has failed.
    pub(crate) fn poll_queued(&self, cx: &mut TaskContext<'_>, key: OpKey) -> Poll<bool> {
        if self.must_yield(cx) {
            return Poll::Pending;
        }
        self.drive(
            cx,
            |engine| {
                if !engine.core.movers.ctx.is_queued(key) {
                    // Its own progress must not wake it.
                    engine.core.take_waker(key);
                    engine.peek(|core| core.movers.ctx.is_queued(key));
                }
                engine.core.movers.ctx.is_queued(key).then(|| {
                    let entry = engine.core.movers.ctx.operations.get(key);
                    let outcome = entry.and_then(|entry| entry.outcome.as_ref());
                    outcome.is_none_or(|ended| ended.error().is_none())
                })
            },
            |engine, waker| {
                let before = engine.core.waker_of(key).and_then(|slot| slot.leave(waker));
                engine.ctx().drop_later(before);
            },
        )
    }

    /// A future goes before its operation has ended.
    pub(crate) fn drop_future(&self, key: OpKey) {
        self.ask(|engine| engine.core.drop_future(key));
    }

    /// Lets go of the engine, then wakes whom it has woken, drops what is to be dropped outside the lock, and begins errands.
    #[inline(never)]
    fn leave_and_wake(&self, mut engine: Guard<'_, Engine>) {
        let count = engine.core.movers.ctx.wakes.len();
        // One is the rule: the list keeps its memory.
        let last = engine.core.movers.ctx.wakes.pop();
        let wakes = match engine.core.movers.ctx.wakes.is_empty() {
            true => Vec::new(),
            false => std::mem::take(&mut engine.core.movers.ctx.wakes),
        };
        engine.core.movers.ctx.counts.wakes += count as u64;
        engine.happened = engine.happened.wrapping_add(count as u64);
        engine.woken = engine.woken.saturating_add(count);
        if count > 0 {
            engine.watch.tell();
        }
        let deferred = engine.core.movers.ctx.deferred.pop();
        let more = if engine.core.movers.ctx.deferred.is_empty() {
            Vec::new()
        } else {
            std::mem::take(&mut engine.core.movers.ctx.deferred)
        };
        let errands = match deferred {
            Some(_) => std::mem::take(&mut engine.core.movers.errands),
            None => Vec::new(),
        };
        drop(engine);
        wake_all(wakes.into_iter().chain(last));
        for errand in errands {
            self.begin_errand(errand);
        }
        // Last: what a program's buffers do when they are dropped may panic, or wait for one of those.
        drop((deferred, more));
    }
}

impl RegionWatcher for Shared {
    fn revoke(&self, slot: u32, generation: u64) -> Vec<Box<dyn Guest>> {
        let mut guests: Vec<Box<dyn Guest>> = Vec::new();
        self.with(|engine| {
            let core = &mut engine.core;
            let worker = self.me.get().cloned().unwrap_or_default();
            let peers = core.movers.ctx.connections();
            let open = peers.filter_map(|peer| Some((&peer.one_copy.as_ref()?.pair, peer.slot)));
            let mut take_back = |pair: &Arc<Pair>, link| {
                if pair.take_back(slot, generation) && !pair.is_peer_outside() {
                    guests.push(Box::new(Inside {
                        pair: pair.clone(),
                        link,
                        worker: worker.clone(),
                    }));
                }
            };
            open.for_each(|(pair, link)| take_back(pair, Some(link)));
            core.movers
                .lingering
                .iter()
                .for_each(|kept| take_back(&kept.pair, None));
            core.movers.ctx.withdraw(slot);
        });
        guests
    }
}

/// A peer that was let at exposed memory and was inside this worker's memory when that was taken back.
struct Inside {
    pair: Arc<Pair>,
    /// Its connection, unless that has ended.
    link: Option<LinkId>,
    worker: Weak<Shared>,
}

impl Guest for Inside {
    fn is_outside(&self) -> bool {
        self.pair.is_peer_outside()
    }

    fn cut(&self) {
        if let (Some(link), Some(worker)) = (self.link, self.worker.upgrade()) {
            let text = "the peer stays inside memory that was taken back";
            worker.with(|engine| engine.fail(link, Error::new(ErrorKind::Protocol, text)));
        }
    }
}

impl Shared {
    /// Starts the closing of a connection whose last handle is gone.
    pub(crate) fn release_endpoint(&self, link: LinkId, id: crate::EndpointId) {
        self.ask(|engine| {
            if let Some(peer) = engine.core.movers.ctx.endpoint(link, id) {
                peer.handles = peer.handles.saturating_sub(1);
                if peer.handles > 0 {
                    return;
                }
                match peer.status {
                    // It was only answered on.
                    crate::worker::peer::Status::Open if !peer.claimed => {}
                    crate::worker::peer::Status::Open => {
                        engine.core.begin_close(link, Leaves::Dropped, None);
                    }
                    crate::worker::peer::Status::Closed(_) => engine.core.forget(link),
                    crate::worker::peer::Status::Closing { .. } => engine.core.see_off(link),
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Handle;

    /// A runtime that ends while its timers are polled from outside of it ends after that.
    #[test]
    fn a_runtime_ends_after_those_who_use_it() {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let within = runtime.enter();
        let context = Context::builder().transports("self").unwrap();
        let handle = Handle::start(&context.build().unwrap()).unwrap();
        drop(within);
        let shared = &handle.shared;
        let (looks, begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let polls = scope.spawn(move || {
                let mut sleep = None;
                let sleeps = poll_fn(|cx| {
                    let day = Duration::from_secs(86_400);
                    let sleep = sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(day)));
                    looks.send(()).unwrap();
                    // Meanwhile the runtime is dropped.
                    std::thread::sleep(Duration::from_millis(50));
                    sleep.as_mut().poll(cx).map(Ok)
                });
                let mut waits = pin!(shared.unless_stopped(Operation::Connect, sleeps));
                let mut cx = TaskContext::from_waker(Waker::noop());
                loop {
                    if let Poll::Ready(result) = waits.as_mut().poll(&mut cx) {
                        break result.unwrap_err();
                    }
                }
            });
            begun.recv().unwrap();
            drop(runtime);
            let error = polls.join().expect("no panic");
            assert!(error.to_string().contains(RUNTIME_ENDED), "{error}");
        });
    }
}
