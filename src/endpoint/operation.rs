//! Operations in flight, and the deadline that any of them may have.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{runtime, time::Sleep};

use crate::{
    error::{Error, ErrorKind, OpError, Operation, Result},
    memory::{BufferMut, ReceiveBuffer},
    types::{AtomicNarrow as _, OpKey},
    util::seldom::Seldom,
    worker::{
        Handle,
        engine::Engine,
        operations::{Arrival, Outcome},
        shared::Shared,
        turn,
    },
};

pub(super) mod sealed {
    pub trait Sealed {}
}

/// What an [`Op`] resolves to. Implemented for `()` (sends and puts), `u32` and `u64` (atomic operations), [`Received`](super::Received), [`Fetched`](super::Fetched) and
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
    fn of_error(error: Error) -> Self::Output;
    /// Of a posted receive whose message lay in front. `None`: it is none.
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

pub(super) fn wrong() -> Error {
    Error::new(ErrorKind::InvalidArgument, "polled after completion")
}

impl sealed::Sealed for () {}
impl Completion for () {
    type Output = Result<()>;
    #[inline(always)]
    fn of_value(_value: u64) -> Result<()> {
        Ok(())
    }
    fn of_error(error: Error) -> Result<()> {
        Err(error)
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

macro_rules! words {
    ($($word:ty)*) => {$(
        impl sealed::Sealed for $word {}
        impl Completion for $word {
            type Output = Result<$word>;
            #[inline(always)]
            fn of_value(value: u64) -> Result<$word> {
                Ok(<$word>::narrow(value))
            }
            fn of_error(error: Error) -> Result<$word> {
                Err(error)
            }
            #[inline(always)]
            fn settle(outcome: Settled) -> Result<$word> {
                match outcome.0 {
                    Outcome::Value(value) => Ok(<$word>::narrow(value)),
                    Outcome::Done(Err(error)) => Err(error),
                    _ => Err(wrong()),
                }
            }
        }
    )*};
}
words!(u32 u64);

/// What came into a buffer, and the buffer.
pub(super) fn landed<B: ReceiveBuffer>(outcome: Outcome) -> Result<(Arrival, B), OpError<B>> {
    match outcome {
        Outcome::Buffer {
            result: Ok(arrival),
            buffer: Some(buffer),
        } => Ok((arrival, B::restore(buffer))),
        Outcome::Buffer { result, buffer } => Err(OpError::new(
            result.err().unwrap_or_else(wrong),
            buffer.map(B::restore),
        )),
        Outcome::Done(Err(error)) => Err(OpError::new(error, None)),
        _ => Err(OpError::new(wrong(), None)),
    }
}

/// A deadline that starts to run at the first poll.
#[derive(Debug, Default)]
pub(crate) enum Deadline {
    #[default]
    None,
    After(Duration),
    Running(Pin<Box<Sleep>>),
}

impl Deadline {
    #[inline]
    pub(crate) fn is_over(&mut self, shared: &Shared, cx: &mut Context<'_>) -> bool {
        match self {
            Self::None => false,
            // All that it had under way has ended, and the runtime may have with it.
            _ if shared.stopping.load(Relaxed) => false,
            Self::After(after) => {
                // Whoever polls may be outside every runtime: then by the clock of the worker's.
                let outside = runtime::Handle::try_current().is_err();
                let _within = outside.then(|| shared.runtime.enter());
                *self = Self::Running(Box::pin(tokio::time::sleep(*after)));
                self.is_over(shared, cx)
            }
            Self::Running(sleep) => sleep.as_mut().poll(cx).is_ready(),
        }
    }

    pub(crate) fn error(operation: Operation) -> Error {
        Error::new(ErrorKind::DeadlineExceeded, "the deadline passed").during(operation)
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
        Self::over(Outcome::with(buffer, Err(error)))
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

    /// As [`Entered::poll`], for a receive whose message lies in front.
    #[inline(always)]
    fn take_posted(&mut self, cx: &mut Context<'_>) -> Option<Front> {
        let Self::Waiting(Place { handle, key: place }) = self else {
            return None;
        };
        let key = (*place)?;
        key.as_posted()?;
        let (arrival, buffer, begun) = handle.shared.take_posted(key)?;
        *place = None;
        begun.count(cx);
        Some(Front(arrival, buffer))
    }

    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &mut Deadline,
        operation: Operation,
    ) -> Poll<Outcome> {
        let (shared, place) = match self {
            Self::Waiting(Place { handle, key }) => (&handle.shared, key),
            ended => {
                let mut outcome = match std::mem::replace(ended, Self::Over) {
                    Self::Value(value) => Outcome::Value(value),
                    Self::Ended(outcome) => *outcome,
                    _ => Outcome::Done(Err(wrong())),
                };
                outcome.during(operation);
                return Poll::Ready(outcome);
            }
        };
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
            // An operation that cannot be stopped goes on without its future.
            let outcome = outcome.flatten().unwrap_or_else(|| {
                shared.drop_future(key);
                Outcome::Buffer {
                    result: Err(Deadline::error(operation)),
                    buffer: None,
                }
            });
            *place = None;
            return Poll::Ready(match outcome {
                Outcome::Buffer {
                    result: Err(error),
                    buffer: None,
                } if matches!(
                    operation,
                    Operation::TagSend
                        | Operation::AmSend
                        | Operation::Put
                        | Operation::Atomic
                        | Operation::Signal
                        | Operation::Flush
                ) =>
                {
                    Outcome::Done(Err(error))
                }
                outcome => outcome,
            });
        }
        let mut outcome = std::task::ready!(shared.poll_outcome(cx, key));
        *place = None;
        outcome.during(operation);
        Poll::Ready(outcome)
    }
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

/// An operation that was posted: it is on its way whether or not this is polled.
///
/// # Cancel safety
/// Dropping it detaches a send, put or get: it still happens. A receive that has not matched is withdrawn; one that matched puts its message back
/// in its place, so nothing is lost. [`Op::cancel`] ends it and says what happened.
#[must_use = "an operation that is dropped detaches; await it to learn how it ended"]
#[doc(alias(
    "ucp_request_param_t",
    "ucp_request_check_status",
    "ucp_request_test",
    "ucp_request_is_completed",
    "ucp_request_free",
    "ucp_request_release",
    "ucp_request_alloc",
    "ucs_status_ptr_t",
    "ucp_send_nbx_callback_t",
    "ucp_send_callback_t",
    "ucp_tag_recv_nbx_callback_t",
    "ucp_stream_recv_nbx_callback_t",
    "ucp_am_recv_data_nbx_callback_t",
    "ucp_op_attr_t",
    "UCP_OP_ATTR_FLAG_NO_IMM_CMPL",
    "UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL",
    "UCP_OP_ATTR_FLAG_MULTI_SEND"
))]
pub struct Op<T: Completion> {
    /// `None`: a value that was there when it was posted has been told.
    pub(crate) entered: Seldom<Entered>,
    pub(crate) deadline: Deadline,
    pub(crate) operation: Operation,
    pub(crate) kind: PhantomData<fn() -> T>,
}

impl<T: Completion> Op<T> {
    #[inline]
    pub(crate) fn new(entered: Entered, deadline: Deadline, operation: Operation) -> Self {
        Self {
            entered: Seldom::new(entered),
            deadline,
            operation,
            kind: PhantomData,
        }
    }

    /// Ends the operation with `DeadlineExceeded` when it lasts longer than this, from the first poll on.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.deadline = Deadline::After(after);
        self
    }

    /// Stops the operation if it can still be stopped, and resolves to what happened: its result, or an error of kind `Canceled`.
    ///
    /// A receive can be stopped until it matched, a send until it left or, when it was announced, until it matched at the peer. What cannot be
    /// stopped any more is awaited.
    ///
    /// # Cancel safety
    /// As for the operation itself.
    #[doc(alias = "ucp_request_cancel")]
    pub async fn cancel(self) -> T::Output {
        if let Some(Entered::Waiting(Place {
            handle,
            key: Some(key),
        })) = &*self.entered
        {
            let error = Error::new(ErrorKind::Canceled, "cancelled").during(self.operation);
            handle.shared.ask(|engine| {
                engine.progress();
                engine.core.cancel(*key, error)
            });
        }
        self.await
    }
}

impl<T: Completion> Future for Op<T> {
    type Output = T::Output;
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Output> {
        let this = &mut *self;
        if let Some(output) = T::front(|| this.entered.as_mut()?.take_posted(cx)) {
            return Poll::Ready(output);
        }
        if let Some(Entered::Value(value)) = *this.entered {
            // Operations that are over when they are posted must not keep others from running.
            std::task::ready!(turn::may_be_told(cx));
            this.entered.forget();
            return Poll::Ready(T::of_value(value));
        }
        // In a place of its own: see `TagRecv::poll`.
        let mut settled = Poll::Pending;
        this.settle(cx, &mut settled);
        settled
    }
}

impl<T: Completion> Op<T> {
    /// Waits for one that is in the table, or gives the end that it had.
    #[inline(never)]
    fn settle(&mut self, cx: &mut Context<'_>, settled: &mut Poll<T::Output>) {
        let outcome = match self.entered.as_mut() {
            None => Outcome::Done(Err(wrong().during(self.operation))),
            Some(entered) => {
                if !matches!(entered, Entered::Waiting(_)) && turn::may_be_told(cx).is_pending() {
                    return;
                }
                match entered.poll(cx, &mut self.deadline, self.operation) {
                    Poll::Ready(outcome) => outcome,
                    Poll::Pending => return,
                }
            }
        };
        *settled = Poll::Ready(T::settle(Settled(outcome)));
    }
}

impl<T: Completion> std::fmt::Debug for Op<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Op")
            .field("operation", &self.operation)
            .field("entered", &self.entered)
            .finish_non_exhaustive()
    }
}
