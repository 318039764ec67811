//! An operation that a user holds, whichever its verb, from its making to its end.
//!
//! ```text
//! post ─▶ at once? ─▶ checks ─▶ door ─▶ begin ─▶ over, or in the table: an Op
//! poll ─▶ at once? ─▶ checks ─▶ door ─▶ begin ─▶ over: told now, or when its task has given way
//!                                         └────▶ in the table: awaited
//! ```
//!
//! What differs from verb to verb is a [`Verb`]; each stands in the file of its future.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    error::{Error, Operation, Result},
    types::OpKey,
    util::seldom::Seldom,
    worker::{
        Handle,
        aside::Deadline,
        door::Begun,
        engine::Engine,
        operations::{Outcome, wrong},
    },
};

use super::{
    handle::Endpoint,
    op::{Op, set_deadline},
    operation::{Completion, Settled},
};

/// What an operation is, and how it begins.
pub(super) trait Verb<'a> {
    /// What it resolves to.
    type Kind: Completion;
    /// Why it could not be posted, with what comes back.
    type Refused;

    fn operation(&self) -> Operation;
    fn endpoint(&self) -> &'a Endpoint;

    /// All of it, where this thread owns the lock, or nothing: `None`. `window` operations may be under way. What is over has a value: an atomic
    /// operation's word.
    fn at_once(&mut self, window: usize) -> Option<(Result<u64>, Begun<'a>)>;

    /// What can be said before its worker is entered: why it cannot begin.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }

    /// Begins. One that is posted fails where the window is full, and is not held up. What owns something keeps it where it fails.
    fn begin(&mut self, engine: &mut Engine, is_posted: bool) -> Result<First>;

    /// One that is over, as an [`Op`].
    #[inline(always)]
    fn posted(&mut self, value: u64) -> Op<Self::Kind> {
        Op::value(value)
    }

    /// One that is over, for who awaits it.
    #[inline(always)]
    fn value(&mut self, value: u64) -> <Self::Kind as Completion>::Output {
        Self::Kind::of_value(value)
    }

    /// One that failed and is not in the table.
    fn failed(&mut self, error: Error) -> <Self::Kind as Completion>::Output {
        Self::Kind::of_error(error)
    }

    fn refused(&mut self, error: Error) -> Self::Refused;
}

/// How an operation began.
pub(super) enum First {
    Over(u64),
    /// One that is posted has ended otherwise, which who awaits it learns.
    Ended(Op<Outcome>),
    /// In the table.
    Entered(OpKey),
}

/// A verb on its way: the state of its future.
pub(super) struct Request<V> {
    pub(super) verb: V,
    /// It was over in a poll. Polled again by mistake, it must not happen again.
    is_over: bool,
    rare: Seldom<Rare>,
}

/// What an operation that is over in its first poll does without.
#[derive(Default)]
pub(super) struct Rare {
    pub(super) deadline: Deadline,
    pub(super) begun: Option<Op<Outcome>>,
}

impl Rare {
    /// It is in the table, and its deadline begins at the next poll.
    pub(super) fn begun(&mut self, handle: &Arc<Handle>, key: OpKey, operation: Operation) {
        let deadline = std::mem::take(&mut self.deadline);
        self.begun = Some(Op::waiting(handle, key, deadline, operation));
    }

    pub(super) fn set_deadline(&mut self, after: Duration) {
        set_deadline(&mut self.begun, &mut self.deadline, after);
    }
}

/// Polls an operation that has begun. `None`: it has not.
#[inline]
pub(super) fn poll_begun(rare: &mut Option<Rare>, cx: &mut Context<'_>) -> Option<Poll<Outcome>> {
    let begun = rare.as_mut()?.begun.as_mut()?;
    Some(Pin::new(begun).poll(cx))
}

impl<V> Request<V> {
    #[inline(always)]
    pub(super) fn new(verb: V) -> Self {
        Self {
            verb,
            is_over: false,
            rare: Seldom::default(),
        }
    }

    pub(super) fn set_deadline(&mut self, after: Duration) {
        self.rare.get_or_insert_default().set_deadline(after);
    }

    #[inline(always)]
    fn is_plain(&self) -> bool {
        self.rare.is_none() && !self.is_over
    }
}

impl<'a, V: Verb<'a>> Request<V> {
    #[inline(always)]
    pub(super) fn post(&mut self) -> Result<Op<V::Kind>, V::Refused> {
        let mut failed = None;
        if self.is_plain() {
            let window = self.verb.endpoint().shared().ops_window;
            match self.verb.at_once(window) {
                Some((Ok(value), _)) => return Ok(self.verb.posted(value)),
                Some((Err(error), _)) => failed = Some(error),
                None => {}
            }
        }
        // In a place of its own: see `TagRecv::poll`. What is copied leaves the processor before what is written after it.
        let mut posted = Op::value(0);
        self.post_slowly(failed, &mut posted)?;
        Ok(posted)
    }

    /// `failed`: why it could not happen at once, where it cannot happen at all.
    #[inline(never)]
    fn post_slowly(
        &mut self,
        failed: Option<Error>,
        posted: &mut Op<V::Kind>,
    ) -> Result<(), V::Refused> {
        let operation = self.verb.operation();
        let rare = self.rare.take().unwrap_or_default();
        if let Some(begun) = rare.begun {
            // It was polled before.
            *posted = begun.told_as();
            return Ok(());
        }
        if self.is_over {
            return Err(self.verb.refused(wrong().during(operation)));
        }
        let begun = failed
            .map_or(Ok(()), Err)
            .and_then(|()| self.verb.check())
            .and_then(|()| {
                let shared = self.verb.endpoint().shared();
                shared.begin(operation, |engine| self.verb.begin(engine, true))
            });
        let deadline = rare.deadline;
        let handle = self.verb.endpoint().handle();
        *posted = match begun.and_then(|(first, _)| first) {
            Ok(First::Over(value)) => self.verb.posted(value),
            Ok(First::Ended(op)) => op.told_as(),
            Ok(First::Entered(key)) => Op::waiting(handle, key, deadline, operation),
            Err(error) => return Err(self.verb.refused(error.or_during(operation))),
        };
        Ok(())
    }

    #[inline(always)]
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<<V::Kind as Completion>::Output> {
        if self.is_plain()
            && let Some((result, begun)) = self.verb.at_once(usize::MAX)
        {
            return self.conclude(begun, cx, result);
        }
        // In a place of its own: see `TagRecv::poll`.
        let mut waited = Poll::Pending;
        self.wait(cx, &mut waited);
        waited
    }

    #[inline(never)]
    fn wait(&mut self, cx: &mut Context<'_>, found: &mut Poll<<V::Kind as Completion>::Output>) {
        *found = self.poll_slowly(cx);
    }

    /// Ends a first poll after which it is over. When its task is to give way first, it is told then.
    #[inline(always)]
    fn conclude(
        &mut self,
        begun: Begun<'_>,
        cx: &mut Context<'_>,
        result: Result<u64>,
    ) -> Poll<<V::Kind as Completion>::Output> {
        self.is_over = true;
        let gives_way = begun.over(cx).is_pending();
        match result {
            Ok(value) if gives_way => {
                self.tell_later(value);
                Poll::Pending
            }
            Ok(value) => Poll::Ready(self.verb.value(value)),
            // At once: nobody else would tell it.
            Err(error) => Poll::Ready(self.verb.failed(error)),
        }
    }

    #[cold]
    fn tell_later(&mut self, value: u64) {
        let over = self.verb.posted(value).told_as();
        self.rare.get_or_insert_default().begun = Some(over);
    }

    fn poll_slowly(&mut self, cx: &mut Context<'_>) -> Poll<<V::Kind as Completion>::Output> {
        let operation = self.verb.operation();
        if let Some(outcome) = poll_begun(&mut self.rare, cx) {
            return outcome.map(|outcome| V::Kind::settle(Settled(outcome)));
        }
        if self.is_over {
            let error = wrong().during(operation);
            return Poll::Ready(self.verb.failed(error));
        }
        let begun = self.verb.check().and_then(|()| {
            let shared = self.verb.endpoint().shared();
            shared.begin(operation, |engine| self.verb.begin(engine, false))
        });
        let (first, begun) = match begun {
            Ok((Ok(first), begun)) => (first, begun),
            Ok((Err(error), begun)) => {
                return self.conclude(begun, cx, Err(error.or_during(operation)));
            }
            Err(error) => {
                self.is_over = true;
                return Poll::Ready(self.verb.failed(error.or_during(operation)));
            }
        };
        let handle = self.verb.endpoint().handle();
        match first {
            First::Over(value) => return self.conclude(begun, cx, Ok(value)),
            // Before it has a place of its own: it may be over in the first look.
            First::Entered(key) if self.rare.is_none() => match begun.poll_outcome(cx, key) {
                Poll::Ready(mut outcome) => {
                    self.is_over = true;
                    outcome.during(operation);
                    return Poll::Ready(V::Kind::settle(Settled(outcome)));
                }
                Poll::Pending => {
                    let rare = self.rare.get_or_insert_default();
                    rare.begun(handle, key, operation);
                    return Poll::Pending;
                }
            },
            First::Entered(key) => {
                let rare = self.rare.get_or_insert_default();
                rare.begun(handle, key, operation);
            }
            First::Ended(op) => self.rare.get_or_insert_default().begun = Some(op),
        }
        // Its deadline begins.
        self.poll_slowly(cx)
    }
}
