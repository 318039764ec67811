//! The reactor: the task, or thread, that drives a worker while no future does.
//!
//! It waits on two fds, the doorbell of the shared-memory peers and the worker's poll, both edge-triggered and never read. After a wake it takes what
//! there is, wakes whom that concerns, and arms again when something is still pending. A worker with nothing pending stays unarmed: no
//! peer rings it.
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
};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use tokio::io::unix::AsyncFd;

use crate::{
    error::{Error, Result},
    worker::{engine::Engine, shared::Shared},
};

/// Passes in one turn; then others on the runtime have theirs.
const PASSES: usize = 64;
/// Turns that the reactor gives a future that keeps driving, before it arms on its own.
const PATIENCE: u32 = 64;

pub(crate) struct Reactor {
    shared: Arc<Shared>,
    doorbell: Option<AsyncFd<OwnedFd>>,
    poll_fd: AsyncFd<OwnedFd>,
    seen: u64,
    patience: u32,
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
            patience: 0,
            unpolled: true,
        })
    }

    /// One turn. `true`: more to do at once.
    fn turn(&mut self, rung: bool, polled: bool) -> bool {
        let shared = self.shared.clone();
        let mut engine = shared.enter();
        self.unpolled |= polled;
        if !rung
            && !polled
            && !self.unpolled
            && engine.laps != self.seen
            && self.patience < PATIENCE
        {
            // Somebody drives; arming now would only make the peers ring.
            self.seen = engine.laps;
            self.patience += 1;
            shared.leave(engine);
            return true;
        }
        self.patience = 0;
        self.seen = engine.laps;
        engine.disarm();
        let mut more = pass(&mut engine);
        if !more && self.unpolled {
            self.unpolled = false;
            engine.poll_fds();
            more = pass(&mut engine);
        } else if more && self.unpolled {
            // Whom this pass has woken goes first; the rest of the fds follows in the next turn.
            engine.reactor_due = true;
            shared.leave(engine);
            return true;
        }
        if !more && engine.core.has_interest() && !engine.arm() {
            more = true;
        }
        engine.reactor_due = more;
        shared.leave(engine);
        more
    }
}

/// Passes until nothing moves. `true`: stopped before that.
fn pass(engine: &mut Engine) -> bool {
    (0..PASSES).all(|_| engine.progress() > 0)
}

impl Future for Reactor {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let this = &mut *self;
        this.shared.reactor.register(cx.waker());
        if this.shared.stopping.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        let mut rung = false;
        let mut polled = false;
        if let Some(doorbell) = &this.doorbell {
            while let Poll::Ready(Ok(mut guard)) = doorbell.poll_read_ready(cx) {
                guard.clear_ready();
                rung = true;
            }
        }
        while let Poll::Ready(Ok(mut guard)) = this.poll_fd.poll_read_ready(cx) {
            guard.clear_ready();
            polled = true;
        }
        if this.turn(rung, polled) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// The same as a thread of its own, for runtimes that must never spin.
pub(crate) fn run_thread(shared: &Arc<Shared>) {
    while !shared.stopping.load(Ordering::Acquire) {
        let mut engine = shared.enter();
        engine.disarm();
        engine.poll_fds();
        let more = pass(&mut engine) || !engine.arm();
        engine.reactor_due = false;
        shared.leave(engine);
        if more {
            continue;
        }
        let mut fds = vec![
            PollFd::new(shared.kick.as_fd(), PollFlags::POLLIN),
            PollFd::new(shared.poll_fd.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(doorbell) = &shared.doorbell {
            fds.push(PollFd::new(doorbell.as_fd(), PollFlags::POLLIN));
        }
        // An interruption is a lap more.
        let _ = nix::poll::poll(&mut fds, PollTimeout::NONE);
        shared.kick.drain();
        if let Some(doorbell) = &shared.doorbell {
            doorbell.drain();
        }
    }
}
