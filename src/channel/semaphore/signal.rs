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
    /// By the endpoint: the counter is not in memory here.
    Endpoint(Atomic<'a, ()>),
    /// The counter is raised, and who waits for it is to be woken.
    Wake(Atomic<'a, ()>),
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
            this.at = match raised {
                Some(false) => {
                    let over = begun.over(cx);
                    this.at = match over {
                        Poll::Ready(()) => At::Over,
                        Poll::Pending => At::Done,
                    };
                    return over.map(Ok);
                }
                Some(true) => At::Wake(end.endpoint.wake(&end.remote)),
                None => At::Endpoint(end.endpoint.signal(&end.remote, 1)),
            };
        }
        let result = match &mut this.at {
            At::Endpoint(signal) => ready!(Pin::new(signal).poll(cx)),
            At::Wake(wake) => {
                // The peer has the signal. It may have seen that by itself, and be gone, or have dropped its end; when the connection ends it
                // looks as well.
                let _ = ready!(Pin::new(wake).poll(cx));
                Ok(())
            }
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

#[cfg(test)]
mod tests {
    use super::{super::Semaphore, *};
    use crate::channel::semaphore::pairing::tests::ranks;

    /// The peer sees a signal in memory, and drops its end before it was woken: it has the signal, and nothing failed.
    #[tokio::test]
    async fn a_peer_that_needs_no_waking() {
        let [zero, one] = ranks().await;
        for dropped_first in [true, false] {
            let (here, there) =
                tokio::join!(Semaphore::pair(&zero, 1, 1), Semaphore::pair(&one, 0, 1));
            let (here, there) = (here.expect("a pair"), there.expect("a pair"));
            let mut raised = here.inner.raise();
            while raised.is_none() {
                here.signal().await.expect("signalled");
                raised = here.inner.raise();
            }
            there.wait().await.expect("passes");
            let end = &here.inner;
            let mut wake = SemaphoreSignal {
                end,
                at: At::Wake(end.endpoint.wake(&end.remote)),
            };
            match dropped_first {
                true => {
                    drop(there);
                    wake.await.expect("raised before");
                }
                false => {
                    let sent = futures::poll!(Pin::new(&mut wake));
                    drop(there);
                    assert!(matches!(sent, Poll::Ready(Ok(()))), "{sent:?}");
                }
            }
            here.endpoint().flush().await.expect("nothing was lost");
            let error = here.signal().await.expect_err("nobody is there");
            assert_eq!(error.kind(), ErrorKind::StaleKey, "{error}");
        }
    }
}
