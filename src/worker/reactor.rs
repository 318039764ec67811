//! The reactor: the task, or thread, that drives a worker while no future does.
//!
//! It waits on two fds, the doorbell of the shared-memory peers and the worker's poll, both edge-triggered and never read. After a
//! wake it takes what there is, wakes whom that concerns, and arms again. While futures drive the worker themselves it stays out of
//! their way: an armed worker would make its peers ring for nothing. Futures that look only once leave it to *linger*: one pass in each turn,
//! for a while, before it arms.
//!
//! # Safety
//! Registering an fd with Tokio asks that it stays open and the same: the `AsyncFd` owns it.
#![allow(unsafe_code)]

use std::{
    future::Future,
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context as TaskContext, Poll},
    time::{Duration, Instant},
};

use tokio::{io::unix::AsyncFd, time::Sleep};

use crate::{
    error::{Error, Result},
    sys::bell::BellSet,
    worker::{engine::Engine, shared::Shared, turn},
};

/// Passes in one turn; then others on the runtime have theirs.
const PASSES: usize = 64;
/// A turn is about so long at the most.
const LONGEST: Duration = Duration::from_micros(250);
/// Turns, one lap of the scheduler each, in which the reactor looks whether a future still drives.
const LAPS: u32 = 16;
/// After them it looks again after this long: on a runtime of several threads the laps cost a core. So it does, though it has armed, while a message is
/// read where it lies; and, less and less often, while a peer stays in memory that was taken back.
const NAP: Duration = Duration::from_millis(1);

pub(crate) struct Reactor {
    shared: Arc<Shared>,
    doorbell: Option<AsyncFd<OwnedFd>>,
    poll_fd: AsyncFd<OwnedFd>,
    /// Laps of futures at the last look.
    seen: u64,
    laps: u32,
    /// Whether a future drove before the last turn.
    driven: bool,
    nap: Option<Pin<Box<Sleep>>>,
    /// Until when it looks instead of sleeping, and for how long after each arrival.
    lingering: Option<(Instant, Duration)>,
    /// Cold fds may have events that nobody has looked at.
    unpolled: bool,
}

fn watch(fd: impl AsFd) -> Result<AsyncFd<OwnedFd>> {
    let fd = fd
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| Error::io("the worker's fd", error))?;
    // SAFETY: the fd is owned by the `AsyncFd` from here on, and nothing else closes it.
    let watched = unsafe { AsyncFd::register_with_interest(fd, tokio::io::Interest::READABLE) };
    watched.map_err(|error| Error::io("registering with Tokio", error.into_parts().1))
}

/// What follows a turn.
enum Next {
    /// Another turn at once.
    Again,
    /// Another one after the turns of those who drive, who may have given way to the runtime's driver.
    AfterOthers,
    /// Another one after a nap, unless something happens before.
    Nap(Duration),
    /// Armed, or without links: nothing until something happens.
    Wait,
}

impl Next {
    /// Another turn, before which those whom this one wakes have theirs. The future that a runtime blocks on does not stand among its tasks: woken, it
    /// is polled after the runtime's driver, and some sixty turns at once would come before it.
    fn after(engine: &Engine) -> Self {
        match engine.core.movers.ctx.wakes.is_empty() {
            true => Self::Again,
            false => Self::AfterOthers,
        }
    }
}

impl Reactor {
    /// Must be called on the runtime.
    pub(crate) fn new(shared: Arc<Shared>) -> Result<Self> {
        Ok(Self {
            doorbell: shared
                .doorbell
                .as_ref()
                .map(|doorbell| watch(doorbell.as_fd()))
                .transpose()?,
            poll_fd: watch(&shared.poll_fd)?,
            shared,
            seen: 0,
            laps: 0,
            driven: false,
            nap: None,
            lingering: None,
            unpolled: true,
        })
    }

    fn turn(&mut self, rung: bool, polled: bool) -> Next {
        let shared = self.shared.clone();
        let mut engine = shared.enter();
        engine.reactor_called = false;
        engine.core.movers.ctx.counts.doorbells += u64::from(rung);
        engine.core.movers.ctx.counts.fd_wakeups += u64::from(polled);
        let overdue = self.unpolled;
        self.unpolled |= polled;
        let driven = std::mem::replace(&mut self.seen, engine.laps) != engine.laps;
        if self.linger(&mut engine, rung, driven) {
            let next = Next::after(&engine);
            engine.reactor_due = true;
            shared.leave(engine);
            return next;
        }
        // Who gives way together with this task may be polled after it, so one turn in vain says nothing.
        let may_be_driven = driven || std::mem::replace(&mut self.driven, false);
        if may_be_driven && !self.unpolled {
            self.driven = driven;
            if rung {
                engine.rung();
            }
            engine.reactor_due = true;
            shared.leave(engine);
            self.laps += 1;
            return if self.laps < LAPS || !driven {
                Next::AfterOthers
            } else {
                Next::Nap(NAP)
            };
        }
        self.laps = 0;
        engine.disarm();
        if shared.watched.load(Ordering::Relaxed) {
            engine.watch.settle();
        }
        if rung {
            engine.rung();
        }
        // Whom the first of what has come wakes goes first, before this looks for more and arms.
        let mut more = pass(&mut engine, true);
        if self.unpolled && (!more || overdue) {
            self.unpolled = false;
            engine.poll_fds();
            more = pass(&mut engine, true);
        }
        // When there was much, whom it woke goes first too, and the rest of the fds follows in the next turn.
        let more = more || self.unpolled || (engine.has_links() && !engine.arm());
        let next = match more {
            true => Next::after(&engine),
            false => engine.longest_sleep(NAP).map_or(Next::Wait, Next::Nap),
        };
        engine.reactor_due = more;
        shared.leave(engine);
        next
    }
}

impl Reactor {
    /// Looks for those who left that to it. `true`: once more, after the others' turns.
    fn linger(&mut self, engine: &mut Engine, rung: bool, driven: bool) -> bool {
        if let Some(window) = engine.linger.take() {
            self.lingering = Some((Instant::now(), window));
        } else if driven {
            self.lingering = None;
        }
        let Some((since, window)) = self.lingering else {
            return false;
        };
        engine.disarm();
        if rung {
            engine.rung();
        }
        if self.unpolled {
            self.unpolled = false;
            engine.poll_fds();
        }
        // One pass that finds nothing: others may be ready, and over sockets it is a system call.
        if engine.progress() > 0 {
            // Whom it woke goes first.
            if engine.core.movers.ctx.wakes.is_empty() {
                pass(engine, true);
            }
            self.shared.spin.found_lingering(since.elapsed());
            self.lingering = Some((Instant::now(), window));
            return true;
        }
        if since.elapsed() < window {
            return true;
        }
        self.lingering = None;
        self.shared.spin.in_vain(engine.looks_cost());
        false
    }
}

/// Passes until nothing moves, or somebody is to be woken who goes first. `true`: stopped before the end.
fn pass(engine: &mut Engine, wakes_first: bool) -> bool {
    let mut begun = None;
    for lap in 1..=PASSES {
        if engine.progress() == 0 {
            return false;
        }
        if engine.core.inboxes.has_held() || wakes_first && !engine.core.movers.ctx.wakes.is_empty()
        {
            break;
        }
        // Long messages make long passes.
        if lap % 4 == 0 && begun.get_or_insert_with(Instant::now).elapsed() >= LONGEST {
            break;
        }
    }
    true
}

/// Takes readiness away until it comes anew. Whether there was any.
fn take(fd: &AsyncFd<OwnedFd>, cx: &mut TaskContext<'_>) -> bool {
    let mut taken = false;
    while let Poll::Ready(Ok(mut guard)) = fd.poll_read_ready(cx) {
        guard.clear_ready();
        taken = true;
    }
    taken
}

impl Future for Reactor {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let this = &mut *self;
        this.shared.reactor.register(cx.waker());
        if this.shared.stopping.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        let rung = this
            .doorbell
            .as_ref()
            .is_some_and(|doorbell| take(doorbell, cx));
        let polled = take(&this.poll_fd, cx);
        if let Some(nap) = &mut this.nap
            && !rung
            && !polled
            && nap.as_mut().poll(cx).is_pending()
            && !this.shared.enter().reactor_called
        {
            return Poll::Pending;
        }
        this.nap = None;
        match this.turn(rung, polled) {
            // A runtime polls 61 times before it looks at its timers.
            Next::Again if turn::is_over(Instant::now()) => turn::give_way(cx),
            Next::Again => cx.waker().wake_by_ref(),
            Next::AfterOthers => turn::give_way(cx),
            Next::Nap(nap) => {
                let mut nap = Box::pin(tokio::time::sleep(nap));
                if nap.as_mut().poll(cx).is_ready() {
                    cx.waker().wake_by_ref();
                }
                this.nap = Some(nap);
            }
            Next::Wait => {}
        }
        Poll::Pending
    }
}

/// What wakes [`run_thread`].
/// Errors: what the system said.
pub(crate) fn bells(shared: &Shared) -> Result<BellSet> {
    let set = || -> std::io::Result<BellSet> {
        let bells = BellSet::new()?;
        bells.add(&shared.kick)?;
        bells.add(&shared.poll_fd)?;
        if let Some(doorbell) = &shared.doorbell {
            bells.add(doorbell)?;
        }
        Ok(bells)
    };
    set().map_err(|error| Error::io("watching the worker's fds", error))
}

/// The same as a thread of its own, for runtimes that must never spin.
pub(crate) fn run_thread(shared: &Arc<Shared>, bells: &BellSet) {
    // Callbacks and wakers of the user's run here, and may spawn tasks.
    let _runtime = shared.runtime.enter();
    let mut woken = false;
    while !shared.stopping.load(Ordering::Acquire) {
        let mut engine = shared.enter();
        engine.core.movers.ctx.counts.fd_wakeups += u64::from(std::mem::take(&mut woken));
        engine.disarm();
        if shared.watched.load(Ordering::Relaxed) {
            engine.watch.settle();
        }
        engine.rung();
        engine.poll_fds();
        let more = pass(&mut engine, false) || (engine.has_links() && !engine.arm());
        let nap = (!more).then(|| engine.longest_sleep(NAP));
        engine.reactor_due = false;
        shared.leave(engine);
        let Some(nap) = nap else {
            continue;
        };
        bells.wait(nap);
        woken = true;
    }
}
