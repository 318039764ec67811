//! The future that signals.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, ready},
};

use crate::{
    endpoint::{Atomic, Op, RemoteRegion},
    error::{Error, ErrorKind, Operation, Result},
    worker::atomic::MappedCounter,
};

use super::{Inner, Semaphore};

/// Signals that look whether the peer's counter has been mapped meanwhile. It was asked for when the semaphore was made.
const TRIES: u32 = 64;

/// A signal; made by [`Semaphore::signal`].
///
/// # Completion
/// Resolves when the peer's counter was raised, or the message that raises it is on its way.
///
/// # Cancel safety
/// Before the first poll nothing happens. After it the peer is signalled whether or not this is dropped.
#[must_use = "a signal does nothing unless awaited or posted"]
pub struct SemaphoreSignal<'a> {
    semaphore: &'a Semaphore,
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
    pub(super) fn new(semaphore: &'a Semaphore) -> Self {
        Self {
            semaphore,
            at: At::Start,
        }
    }

    /// Signals now, to be awaited later or not at all.
    ///
    /// # Errors
    /// `WouldBlock` when the window of posted operations is full, and as [`Semaphore::signal`].
    pub fn post(self) -> Result<Op<()>> {
        let inner = &*self.semaphore.inner;
        inner.endpoint.signal(&inner.remote, 1).post()
    }
}

impl Future for SemaphoreSignal<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let semaphore = this.semaphore;
        if let At::Start = this.at {
            let inner = &*semaphore.inner;
            let shared = inner.endpoint.shared();
            let (raised, begun) = shared.begin_in_memory(Operation::Signal, || inner.raise())?;
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
            this.at = At::Rest(inner.endpoint.signal(&inner.remote, add));
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
            .field("semaphore", self.semaphore)
            .finish_non_exhaustive()
    }
}

/// A peer's counter in this process's memory, when it is there.
#[derive(Default)]
pub(super) struct Mapped {
    counter: OnceLock<MappedCounter>,
    tries: AtomicU32,
}

impl Mapped {
    /// It is not raised but by the endpoint.
    pub(super) fn never() -> Self {
        Self {
            counter: OnceLock::new(),
            tries: AtomicU32::new(TRIES),
        }
    }

    #[inline]
    fn get(&self, remote: &RemoteRegion) -> Option<&MappedCounter> {
        self.counter.get().or_else(|| self.find(remote))
    }

    #[cold]
    fn find(&self, remote: &RemoteRegion) -> Option<&MappedCounter> {
        if self.tries.load(Ordering::Relaxed) >= TRIES {
            return None;
        }
        self.tries.fetch_add(1, Ordering::Relaxed);
        let found = remote.mapped_counter()?;
        Some(self.counter.get_or_init(|| found))
    }
}

impl Inner {
    /// Raises the peer's counter in memory. `None`: it is not there.
    #[inline]
    fn raise(&self) -> Option<bool> {
        self.mapped.get(&self.remote)?.raise(1)
    }
}
