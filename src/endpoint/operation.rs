//! What operations come to, and from where their futures learn it.

use std::task::{Context, Poll};

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

/// For futures that tell the outcome themselves.
impl sealed::Sealed for Outcome {}
impl Completion for Outcome {
    type Output = Self;
    fn settle(outcome: Settled) -> Self {
        outcome.0
    }
}

/// The end of one that gives its buffer back, and was over before it began.
#[cold]
pub(super) fn refused(error: Error, buffer: BufferMut) -> Box<Outcome> {
    Box::new(Outcome::Buffer(Err(error), buffer))
}

/// Begins what owns a buffer, which comes back where it cannot begin.
pub(super) fn begin(
    handle: &Handle,
    operation: Operation,
    buffer: BufferMut,
    begin: impl FnOnce(&mut Engine, BufferMut) -> OpKey,
) -> Result<OpKey, Box<Outcome>> {
    let mut buffer = Some(buffer);
    let begun = handle.shared.begin(operation, |engine| {
        begin(engine, buffer.take().unwrap_or_default())
    });
    begun
        .map(|(key, _)| key)
        .map_err(|error| refused(error, buffer.unwrap_or_default()))
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
