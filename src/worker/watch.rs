//! The fd for loops that are not Tokio's, and arming before they sleep on it.
//!
//! ```text
//! progress ─▶ look ─▶ arm ─▶ Ready: again
//!                      └───▶ Armed: wait for the fd, then again
//! ```
//!
//! The fd is an epoll's of its own. In it are the worker's poll, the doorbell of the peers over shared memory, and a bell that is rung when somebody
//! else who drives the worker (its reactor, its thread, a future) has taken something while such a loop may be asleep: what has been taken makes no
//! fd readable any more. All are watched by edges, and the loop's own `Engine::progress_outside` takes the edges away, so that the
//! fd is readable for as long as there is something that the loop has not looked at, for loops that watch by level as well.
//!
//! # Safety
//! The one unsafe call borrows the fd of a poll that is alive.
#![allow(unsafe_code)]

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use mio::{Interest, Token, unix::SourceFd};

use crate::{
    error::{Error, Result},
    sys::eventfd::EventFd,
};

/// Whoever looks next takes what is left over.
const EVENTS: usize = 4;

pub(crate) struct Watch {
    poll: mio::Poll,
    events: mio::Events,
    bell: EventFd,
    /// What had happened when the loop looked last.
    pub(in crate::worker) seen: u64,
    /// The loop has armed and not looked since.
    pub(in crate::worker) asleep: bool,
    /// The bell was rung for that sleep.
    told: bool,
}

impl Watch {
    /// Over a worker's poll, which lives as long.
    pub(crate) fn new(worker: &mio::Poll) -> Result<Self> {
        let failed = |error| Error::io("the fd for loops of the program's", error);
        let watch = Self {
            poll: mio::Poll::new().map_err(failed)?,
            events: mio::Events::with_capacity(EVENTS),
            bell: EventFd::new().map_err(failed)?,
            seen: 0,
            asleep: false,
            told: false,
        };
        // SAFETY: the poll is open while it is borrowed here.
        let fd = unsafe { BorrowedFd::borrow_raw(worker.as_raw_fd()) };
        watch.add(fd)?;
        watch.add(watch.bell.as_fd())?;
        Ok(watch)
    }

    /// Wakes the loop for this one, too, which lives as long.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>) -> Result<()> {
        let raw = fd.as_raw_fd();
        let registry = self.poll.registry();
        registry
            .register(&mut SourceFd(&raw), Token(raw as usize), Interest::READABLE)
            .map_err(|error| Error::io("the fd for loops of the program's", error))
    }

    /// A duplicate of the fd.
    pub(crate) fn fd(&self) -> Result<OwnedFd> {
        // SAFETY: the poll is open while it is borrowed here.
        let fd = unsafe { BorrowedFd::borrow_raw(self.poll.as_raw_fd()) };
        fd.try_clone_to_owned()
            .map_err(|error| Error::io("the fd for loops of the program's", error))
    }

    /// Somebody else has done something, or woken somebody.
    #[inline(always)]
    pub(crate) fn tell(&mut self) {
        if self.asleep && !self.told {
            self.told = true;
            self.bell.ring();
        }
    }

    /// The worker's own task, or thread, is about to take all there is: nothing of that is news for a loop that has not armed. One that has keeps
    /// its edges until it has looked: it looks at the fd again when it wakes, and would go back to sleep.
    pub(crate) fn settle(&mut self) {
        if !self.asleep {
            self.drain();
        }
    }

    /// The loop is awake: takes the edges away.
    pub(in crate::worker) fn wake_up(&mut self) {
        self.asleep = false;
        self.told = false;
        self.drain();
    }

    fn drain(&mut self) {
        while let Ok(()) = self.poll.poll(&mut self.events, Some(Duration::ZERO))
            && self.events.iter().count() == EVENTS
        {}
    }
}
