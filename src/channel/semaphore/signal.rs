//! The future that signals.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use crate::{
    endpoint::{Atomic, Op},
    error::{Error, ErrorKind, Operation, Result},
};

use super::end::End;

/// A signal; made by [`Semaphore::signal`](super::Semaphore::signal).
///
/// # Completion
/// Resolves when the peer's counter was raised, or the message that raises it is on its way.
///
/// # Cancel safety
/// Before the first poll nothing happens. After it the peer is signalled whether or not this is dropped.
#[must_use = "a signal does nothing unless awaited or posted"]
pub struct SemaphoreSignal<'a> {
    end: &'a End,
    at: At<'a>,
}

/// How far a signal has come.
enum At<'a> {
    Start,
    /// What the memory alone does not do.
    Rest(Atomic<'a, ()>),
    /// It has happened, and its task is to give way before it is told.
    Done,
    Over,
}

impl<'a> SemaphoreSignal<'a> {
    pub(super) fn new(end: &'a End) -> Self {
        Self { end, at: At::Start }
    }

    /// Signals now, to be awaited later or not at all.
    ///
    /// # Errors
    /// `WouldBlock` when the window of posted operations is full, and as [`Semaphore::signal`](super::Semaphore::signal).
    pub fn post(self) -> Result<Op<()>> {
        self.end.endpoint.signal(&self.end.remote, 1).post()
    }
}

impl Future for SemaphoreSignal<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let end = this.end;
        if let At::Start = this.at {
            let shared = end.endpoint.shared();
            let (raised, begun) = shared.begin_in_memory(Operation::Signal, || end.raise())?;
            let add = match raised {
                Some(false) => {
                    let over = begun.over(cx);
                    this.at = match over {
                        Poll::Ready(()) => At::Over,
                        Poll::Pending => At::Done,
                    };
                    return over.map(Ok);
                }
                // What is left is to wake who sleeps.
                Some(true) => 0,
                None => 1,
            };
            this.at = At::Rest(end.endpoint.signal(&end.remote, add));
        }
        let result = match &mut this.at {
            At::Rest(rest) => ready!(Pin::new(rest).poll(cx)),
            At::Done => Ok(()),
            At::Start | At::Over => {
                let text = "polled after completion";
                let error = Error::new(ErrorKind::InvalidArgument, text);
                Err(error.during(Operation::Signal))
            }
        };
        this.at = At::Over;
        Poll::Ready(result)
    }
}

impl fmt::Debug for SemaphoreSignal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SemaphoreSignal")
            .field("semaphore", self.end)
            .finish_non_exhaustive()
    }
}
