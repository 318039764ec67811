//! The futures that wait for a semaphore.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use futures::Stream;

use crate::{
    endpoint::Waiting,
    error::{Error, ErrorKind, Operation, Result},
    util::wake::wake_all,
    worker::ready::Line,
};

use super::end::End;

/// Waits for a signal; made by [`Semaphore::wait`](super::Semaphore::wait).
///
/// # Completion
/// Resolves when a signal was taken, to its number, counted from 1 over all that take signals of this semaphore. What the peer had put before it
/// signalled is visible then.
///
/// # Cancel safety
/// Cancel safe: a signal is taken at the moment when this resolves. Dropped before, it takes none, and gives up its place in the line.
#[must_use = "futures do nothing unless awaited"]
pub struct SemaphoreWait<'a> {
    pub(super) end: &'a End,
    pub(super) ticket: Ticket,
}

impl Future for SemaphoreWait<'_> {
    type Output = Result<u64>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<u64>> {
        let this = &mut *self;
        this.ticket.poll(this.end, cx)
    }
}

impl Drop for SemaphoreWait<'_> {
    fn drop(&mut self) {
        self.ticket.end(self.end);
    }
}

impl fmt::Debug for SemaphoreWait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SemaphoreWait")
            .field("semaphore", self.end)
            .field("ticket", &self.ticket)
            .finish_non_exhaustive()
    }
}

/// A semaphore's signals as a stream; made by [`Semaphore::signals`](super::Semaphore::signals). Each item is the number of the signal that was taken.
///
/// # Cancel safety
/// Cancel safe: nothing is taken that is not given out. Dropping the stream gives up its place in the line.
#[must_use = "streams do nothing unless polled"]
pub struct Signals {
    end: Arc<End>,
    ticket: Ticket,
    over: bool,
}

impl Signals {
    pub(super) fn new(end: Arc<End>) -> Self {
        Self {
            end,
            ticket: Ticket::default(),
            over: false,
        }
    }
}

impl Stream for Signals {
    type Item = Result<u64>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<u64>>> {
        let this = &mut *self;
        if this.over {
            return Poll::Ready(None);
        }
        let item = this.ticket.poll(&this.end, cx);
        if let Poll::Ready(result) = &item {
            this.ticket.end(&this.end);
            this.over = result.is_err();
        }
        item.map(Some)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.ticket.end(&self.end);
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals")
            .field("semaphore", &self.end)
            .field("ticket", &self.ticket)
            .finish_non_exhaustive()
    }
}

/// What a wait remembers. To be ended before it is dropped.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    /// Its number in the line.
    number: Option<u64>,
    waiting: Waiting,
    /// Its place among those who are told of the connection's end.
    closed: Option<u64>,
}

impl Ticket {
    fn poll(&mut self, end: &End, cx: &mut Context<'_>) -> Poll<Result<u64>> {
        let shared = end.endpoint.shared();
        let begun = ready!(shared.look(Operation::Signal, cx))?;
        loop {
            let at_least = match self.claim(end) {
                Ok(ticket) => {
                    begun.count(cx);
                    return Poll::Ready(Ok(ticket));
                }
                Err(at_least) => at_least,
            };
            if shared.spin.pays() && end.look(at_least) {
                continue;
            }
            match self.waiting.poll(&end.counter, at_least, cx) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if !self.leave_waker(end, at_least, cx.waker()) => {}
                Poll::Pending => {
                    let place = end.endpoint.place();
                    let Poll::Ready(reason) = begun.poll_closed(cx, place, &mut self.closed) else {
                        return Poll::Pending;
                    };
                    // What came before the end counts.
                    return Poll::Ready(self.claim(end).map_err(|_| {
                        let closed = || Error::new(ErrorKind::Closed, "the endpoint is closed");
                        reason.unwrap_or_else(closed).during(Operation::Signal)
                    }));
                }
            }
        }
    }

    fn claim(&mut self, end: &End) -> Result<u64, u64> {
        let mut line = end.line.lock();
        // Read under the lock: a later look never sees less.
        line.claim(&mut self.number, end.counter.value())
    }

    fn leave_waker(&self, end: &End, at_least: u64, waker: &Waker) -> bool {
        let mut line = end.line.lock();
        self.number
            .is_some_and(|number| line.leave_waker(number, at_least, waker))
    }

    pub(super) fn end(&mut self, end: &End) {
        self.waiting.end(&end.counter);
        if let Some(ticket) = self.closed.take() {
            let shared = end.endpoint.shared();
            shared.forget(end.endpoint.place(), Line::Ending, ticket);
        }
        if let Some(number) = self.number.take() {
            let moved = end.line.lock().leave(number);
            wake_all(moved);
        }
    }
}
