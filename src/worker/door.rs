//! The door: where operations enter their worker, and where what waits looks in.
//!
//! ```text
//! begin ─▶ forked? ─▶ lock ─▶ shut down? ─▶ it begins ─▶ unlock ─▶ Begun ─▶ budget ─▶ Ready, or Pending and woken
//! look  ─▶ forked? ─▶ budget ─▶ Begun ─▶ drive
//! ask   ─▶ forked? ─▶ lock ─▶ the answer
//! ```
//!
//! What is short is tried by [`Shared::at_once`] before: the same door, for the thread that owns the lock, without what is only needed by what waits.
//!
//! What a first poll promises has begun when it returns, whatever Tokio's budget says: dropped then, the operation happens all the same. So the
//! budget is reached through [`Begun`] alone, and that is had by beginning. What promises nothing before it is ready (a read, a wait for a
//! counter) may begin to look at a later poll: [`Shared::look`].
//!
//! Above this room nothing else leads to the engine, so that a child made by `fork`, which has its parent's connections and a copy of a lock that
//! nobody may ever let go of, is refused everywhere.

use std::{
    ops::{Deref, DerefMut},
    task::{Context as TaskContext, Poll, Waker},
};

use crate::{
    error::{Error, Operation, Result},
    sys::biased::OwnerGuard,
    types::{AmId, EndpointId, LinkId, OpKey},
    worker::{direct::Owed, engine::Engine, operations::Outcome, shared::Shared, spin::SpinRecord},
};

/// An operation has begun, or what waits may look: from here on its task may be made to give way.
#[derive(Clone, Copy)]
pub(crate) struct Begun<'a> {
    shared: &'a Shared,
}

impl Shared {
    /// Begins an operation: in its first poll, or when it is posted.
    /// Errors: `Forked`; `Closed` when the worker has been shut down, for those that begin something at a peer.
    #[inline]
    pub(crate) fn begin<R>(
        &self,
        operation: Operation,
        act: impl FnOnce(&mut Engine) -> R,
    ) -> Result<(R, Begun<'_>)> {
        self.mark.check(operation)?;
        let mut engine = self.enter();
        if engine.closing.is_some() && starts(operation) {
            let closed = engine.closed();
            self.leave(engine);
            return Err(closed.during(operation));
        }
        let result = act(&mut engine);
        self.leave(engine);
        Ok((result, Begun { shared: self }))
    }

    /// As [`Shared::begin`], for what takes something that is here already, and would lose it if its task then had to give way and it was dropped:
    /// `act` is told when the budget is spent, and takes a place in the table instead. `None`: it goes on to look, by [`Begun::drive`].
    /// Errors: `Forked`.
    #[inline]
    pub(crate) fn begin_taking<R>(
        &self,
        operation: Operation,
        act: impl FnOnce(&mut Engine, bool) -> Option<R>,
    ) -> Result<(Option<R>, Begun<'_>)> {
        self.mark.check(operation)?;
        let spent = !tokio::task::coop::has_budget_remaining();
        let mut engine = self.enter();
        if !spent {
            self.begin_lap(&mut engine);
        }
        let result = act(&mut engine, spent);
        match result {
            Some(_) => self.leave(engine),
            None => self.leave_lap(engine),
        }
        Ok((result, Begun { shared: self }))
    }

    /// What is over in its first poll, for the thread that owns the lock: `act` does all of it or nothing, wakes nobody, arms and disarms nothing,
    /// and leaves nothing to be done after it: so nobody has to be told. `None`: to be begun by [`Shared::begin`], which says why it cannot, too.
    #[inline(always)]
    pub(crate) fn at_once<R>(
        &self,
        act: impl FnOnce(&mut Engine) -> Option<R>,
    ) -> Option<(R, Begun<'_>)> {
        let mut inside = self.owner_inside()?;
        let result = act(&mut inside)?;
        Some((result, inside.over()))
    }

    /// The same for those that every instruction counts for: what would be `act` stands between this and [`Inside::over`].
    #[inline(always)]
    pub(crate) fn owner_inside(&self) -> Option<Inside<'_>> {
        if self.mark.is_child() {
            return None;
        }
        let engine = self.enter_as_owner()?;
        if engine.closing.is_some() {
            return None;
        }
        Some(Inside {
            shared: self,
            engine,
        })
    }

    /// Begins what is done in mapped memory alone, without the engine.
    /// Errors: `Forked`.
    #[inline]
    pub(crate) fn begin_in_memory<R>(
        &self,
        operation: Operation,
        act: impl FnOnce() -> R,
    ) -> Result<(R, Begun<'_>)> {
        self.mark.check(operation)?;
        Ok((act(), Begun { shared: self }))
    }

    /// For what promises nothing before it is ready: when its task need not give way.
    /// Errors: `Forked`.
    #[inline]
    pub(crate) fn look(
        &self,
        operation: Operation,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<Begun<'_>>> {
        self.mark.check(operation)?;
        match self.must_yield(cx) {
            true => Poll::Pending,
            false => Poll::Ready(Ok(Begun { shared: self })),
        }
    }

    /// Whether this process may still wait for what it began.
    /// Errors: `Forked`.
    #[inline]
    pub(crate) fn admits(&self, operation: Operation) -> Result<()> {
        self.mark.check(operation)
    }

    /// A question, or what a drop has to do. `None` in a child made by `fork`.
    #[inline]
    pub(crate) fn ask<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        (!self.mark.is_child()).then(|| self.with(act))
    }

    /// For tests above this room.
    #[cfg(test)]
    pub(crate) fn inside<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> R {
        self.with(act)
    }
}

/// The engine, for what [`Shared::at_once`] is for.
pub(crate) struct Inside<'a> {
    shared: &'a Shared,
    engine: OwnerGuard<'a, Engine>,
}

impl<'a> Inside<'a> {
    /// It is over.
    #[inline(always)]
    pub(crate) fn over(self) -> Begun<'a> {
        Begun {
            shared: self.shared,
        }
    }
}

impl Deref for Inside<'_> {
    type Target = Engine;
    #[inline(always)]
    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl DerefMut for Inside<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }
}

impl Begun<'_> {
    /// It is over in its first poll: accounts for that. Pending when its task is to give way first; then it is polled again.
    #[inline]
    pub(crate) fn over(self, cx: &mut TaskContext<'_>) -> Poll<()> {
        match self.shared.count(cx) && self.shared.must_yield(cx) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }

    /// As [`Shared::poll_outcome`].
    #[inline]
    pub(crate) fn poll_outcome(self, cx: &mut TaskContext<'_>, key: OpKey) -> Poll<Outcome> {
        self.shared.poll_outcome(cx, key)
    }

    /// Accounts for something that was found at once.
    #[inline]
    pub(crate) fn count(self, cx: &mut TaskContext<'_>) {
        self.shared.count(cx);
    }

    /// Counts something that was found at once, where [`Shared::is_count_due`] has said no.
    #[inline(always)]
    pub(crate) fn count_one(self) {
        self.shared.count_one();
    }

    /// What a message leaves to be done that was taken at once.
    #[cold]
    pub(crate) fn settle(self, owed: Owed) {
        self.shared.with(|engine| engine.settle(owed));
    }

    /// As [`Begun::settle`], for an active message.
    #[cold]
    pub(crate) fn am_settle(self, link: LinkId, id: AmId) {
        self.shared.with(|engine| engine.am_settle(link, id));
    }

    /// As [`Shared::drive`].
    #[inline]
    pub(crate) fn drive<R>(
        self,
        cx: &mut TaskContext<'_>,
        attempt: impl FnMut(&mut Engine) -> Option<R>,
        park: impl FnMut(&mut Engine, &Waker),
    ) -> Poll<R> {
        self.shared.drive(cx, attempt, park)
    }

    /// As [`Shared::glance`].
    #[inline]
    pub(crate) fn glance<R>(
        self,
        cx: &mut TaskContext<'_>,
        record: &mut SpinRecord,
        attempt: impl FnMut(&mut Engine, bool) -> Option<R>,
        park: impl FnMut(&mut Engine, &Waker),
    ) -> Poll<R> {
        self.shared.glance(cx, record, attempt, park)
    }

    /// As [`Shared::poll_closed`].
    pub(crate) fn poll_closed(
        self,
        cx: &mut TaskContext<'_>,
        (link, id): (LinkId, EndpointId),
        ticket: &mut Option<u64>,
    ) -> Poll<Option<Error>> {
        self.shared.poll_closed(cx, link, id, ticket)
    }

    /// As [`Shared::poll_ready`].
    pub(crate) fn poll_ready(
        self,
        cx: &mut TaskContext<'_>,
        (link, id): (LinkId, EndpointId),
        ticket: &mut Option<u64>,
    ) -> Poll<Result<()>> {
        self.shared.poll_ready(cx, link, id, ticket)
    }
}

/// Whether a worker that is shutting down refuses it. What ends things, and receives of messages that are here, still go on.
#[inline]
fn starts(operation: Operation) -> bool {
    use Operation::{AmSend, Atomic, Copy, Get, Put, Signal, TagSend};
    matches!(
        operation,
        TagSend | AmSend | Put | Get | Atomic | Signal | Copy
    )
}
