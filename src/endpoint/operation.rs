//! What operations come to, and from where their futures learn it.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use crate::{
    error::{Error, OpError, Operation, Result},
    memory::{BufferMut, ReceiveBuffer},
    types::{AtomicWord, OpKey},
    worker::{
        Handle,
        aside::Deadline,
        engine::Engine,
        operations::{Arrival, Outcome, wrong},
        shared::Shared,
    },
};

pub(super) mod sealed {
    pub trait Sealed {}
}

/// What an [`Op`](super::Op) resolves to. Implemented for `()` (sends and puts), `u32` and `u64` (atomic operations), [`Received`](super::Received), [`Fetched`](super::Fetched) and
/// [`AmReceived`](super::AmReceived).
pub trait Completion: sealed::Sealed + Unpin {
    /// The result.
    type Output;
    #[doc(hidden)]
    fn settle(outcome: Settled) -> Self::Output;
    /// Of an operation that is over at once: a word, or nothing. The outcome that it stands for is not made.
    #[doc(hidden)]
    #[inline(always)]
    fn of_value(value: u64) -> Self::Output {
        Self::settle(Settled(Outcome::Value(value)))
    }
    /// Of one that failed before it was anywhere.
    #[doc(hidden)]
    fn of_error(error: Error) -> Self::Output {
        Self::settle(Settled(Outcome::Done(Err(error))))
    }
    /// Of a posted receive whose message is here. `None`: it is none.
    #[doc(hidden)]
    #[inline(always)]
    fn front(take: impl FnOnce() -> Option<Front>) -> Option<Self::Output> {
        let _ = take;
        None
    }
}

/// A message, and the buffer that it is in; opaque to the user.
#[doc(hidden)]
#[derive(Debug)]
pub struct Front(pub(crate) Arrival, pub(crate) BufferMut);

/// An outcome of the worker, opaque to the user.
#[doc(hidden)]
#[derive(Debug)]
pub struct Settled(pub(crate) Outcome);

impl sealed::Sealed for () {}
impl Completion for () {
    type Output = Result<()>;
    #[inline(always)]
    fn of_value(_value: u64) -> Result<()> {
        Ok(())
    }
    #[inline]
    fn settle(outcome: Settled) -> Result<()> {
        match outcome.0 {
            Outcome::Done(result) => result,
            Outcome::Value(_) => Ok(()),
            _ => Err(wrong()),
        }
    }
}

impl<W: AtomicWord> sealed::Sealed for W {}
impl<W: AtomicWord> Completion for W {
    type Output = Result<W>;
    #[inline(always)]
    fn of_value(value: u64) -> Result<W> {
        Ok(W::narrow(value))
    }
    #[inline(always)]
    fn settle(outcome: Settled) -> Result<W> {
        match outcome.0 {
            Outcome::Value(value) => Ok(W::narrow(value)),
            Outcome::Done(Err(error)) => Err(error),
            _ => Err(wrong()),
        }
    }
}

/// What came into a buffer, and the buffer.
pub(super) fn landed<B: ReceiveBuffer>(outcome: Outcome) -> Result<(Arrival, B), OpError<B>> {
    match outcome {
        Outcome::Buffer(Ok(arrival), buffer) => Ok((arrival, B::restore(buffer))),
        Outcome::Buffer(Err(error), buffer) => Err(OpError::new(error, Some(B::restore(buffer)))),
        Outcome::Done(Err(error)) => Err(OpError::new(error, None)),
        _ => Err(OpError::new(wrong(), None)),
    }
}

/// An operation that has begun, seen from its future.
pub(crate) enum Entered {
    Waiting(Place),
    /// Over when it was posted: it never entered the table. The commonest end by itself, a word or nothing: futures are small.
    Value(u64),
    Ended(Box<Outcome>),
    /// Its outcome has been taken.
    Over,
}

/// An operation's place in the table. Dropping it tells the worker.
pub(crate) struct Place {
    pub(super) handle: Arc<Handle>,
    /// `None` once its outcome has been taken.
    pub(super) key: Option<OpKey>,
}

impl Entered {
    #[inline]
    pub(crate) fn over(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done(Ok(())) => Self::Value(0),
            Outcome::Value(value) => Self::Value(value),
            outcome => Self::Ended(Box::new(outcome)),
        }
    }

    pub(crate) fn new(handle: &Arc<Handle>, key: OpKey) -> Self {
        Self::Waiting(Place {
            handle: handle.clone(),
            key: Some(key),
        })
    }

    /// One that gives its buffer back, and ended before it began.
    #[cold]
    pub(crate) fn refused(error: Error, buffer: BufferMut) -> Self {
        Self::over(Outcome::Buffer(Err(error), buffer))
    }

    /// Begins what owns a buffer, which comes back where it cannot begin.
    pub(crate) fn begin(
        handle: &Arc<Handle>,
        operation: Operation,
        buffer: BufferMut,
        begin: impl FnOnce(&mut Engine, BufferMut) -> OpKey,
    ) -> Self {
        let mut buffer = Some(buffer);
        let begun = handle.shared.begin(operation, |engine| {
            begin(engine, buffer.take().unwrap_or_default())
        });
        match begun {
            Ok((key, _)) => Self::new(handle, key),
            Err(error) => Self::refused(error, buffer.unwrap_or_default()),
        }
    }

    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &mut Deadline,
        operation: Operation,
    ) -> Poll<Outcome> {
        match self {
            Self::Waiting(Place { handle, key }) => {
                poll_place(&handle.shared, key, cx, deadline, operation)
            }
            ended => {
                let mut outcome = match std::mem::replace(ended, Self::Over) {
                    Self::Value(value) => Outcome::Value(value),
                    Self::Ended(outcome) => *outcome,
                    _ => Outcome::Done(Err(wrong())),
                };
                outcome.during(operation);
                Poll::Ready(outcome)
            }
        }
    }
}

/// Polls what has a place in the table, and takes that from it once it is over.
pub(super) fn poll_place(
    shared: &Shared,
    place: &mut Option<OpKey>,
    cx: &mut Context<'_>,
    deadline: &mut Deadline,
    operation: Operation,
) -> Poll<Outcome> {
    let Some(key) = *place else {
        return Poll::Ready(Outcome::Done(Err(wrong())));
    };
    if let Err(error) = shared.admits(operation) {
        *place = None;
        return Poll::Ready(Outcome::Done(Err(error)));
    }
    if deadline.is_over(shared, cx) {
        let outcome = shared.ask(|engine| {
            engine.progress();
            if !engine.core.is_over(key) {
                engine.core.cancel(key, Deadline::error(operation));
            }
            engine.core.take_outcome(key)
        });
        // An operation that cannot be stopped goes on without its future, and keeps its buffer.
        let outcome = outcome.flatten().unwrap_or_else(|| {
            shared.drop_future(key);
            Outcome::Done(Err(Deadline::error(operation)))
        });
        *place = None;
        return Poll::Ready(outcome);
    }
    let mut outcome = std::task::ready!(shared.poll_outcome(cx, key));
    *place = None;
    outcome.during(operation);
    Poll::Ready(outcome)
}

impl std::fmt::Debug for Entered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Waiting(place) => f.debug_tuple("Waiting").field(&place.key).finish(),
            _ => f.write_str("Over"),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.handle.shared.drop_future(key);
        }
    }
}
