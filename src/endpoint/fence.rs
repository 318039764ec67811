//! Waiting for what was begun before: fences, and the flush of all endpoints of a worker.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use crate::{
    error::{Error, Operation, Result},
    worker::{aside::Deadline, door::Begun, engine::Engine, send::closed},
};

use super::{
    Endpoint, Op, Worker,
    request::{First, Request, Verb},
};

impl Endpoint {
    /// Orders accesses to remote memory: puts, gets and atomic operations that were begun on this endpoint before are over, and visible, before it
    /// resolves, so that whatever is begun after it comes after them. At once when none is under way.
    ///
    /// It does not wait for messages, nor for signals, which are ordered behind their own puts; [`Endpoint::flush`] waits for all.
    ///
    /// # Errors
    /// What ends the connection. An operation that failed is no error here.
    ///
    /// # Cancel safety
    /// Cancel safe.
    #[doc(alias = "ucp_worker_fence")]
    pub fn fence(&self) -> Fence<'_> {
        Fence(Request::new(Flushing::new(self, true)))
    }

    /// Waits until all operations of this endpoint that were begun before are over: puts are visible at the target, gets have landed, long
    /// sends have been read. A short send is over when it was accepted; [`Endpoint::close`] waits until the peer has read those as well.
    ///
    /// # Errors
    /// What ends the connection; why a put was refused whose future was dropped, or had ended as [`Put::local`](crate::Put::local) does.
    ///
    /// # Cancel safety
    /// Cancel safe.
    #[doc(alias = "ucp_ep_flush_nbx")]
    #[doc(alias("ucp_ep_flush", "ucp_ep_flush_nb"))]
    pub fn flush(&self) -> Flush<'_> {
        Flush(Request::new(Flushing::new(self, false)))
    }
}

impl Worker {
    /// [`Endpoint::fence`] for all endpoints of the worker.
    ///
    /// # Errors
    /// As [`Worker::flush`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    #[doc(alias = "ucp_worker_fence")]
    pub fn fence(&self) -> FlushAll<'_> {
        FlushAll::new(self, true)
    }

    /// [`Endpoint::flush`] for all endpoints of the worker.
    ///
    /// # Errors
    /// The first that one of them had, once all are over. An endpoint that had ended before is passed over; of a worker that was shut down, or whose runtime
    /// has ended, it is `Closed`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    #[doc(alias = "ucp_worker_flush_nbx")]
    #[doc(alias("ucp_worker_flush", "ucp_worker_flush_nb"))]
    pub fn flush(&self) -> FlushAll<'_> {
        FlushAll::new(self, false)
    }
}

/// Waits for earlier accesses to remote memory; made by [`Endpoint::fence`].
///
/// # Completion
/// Resolves when they are over.
///
/// # Cancel safety
/// Cancel safe.
#[must_use = "a fence does nothing unless awaited"]
pub struct Fence<'a>(Request<Flushing<'a>>);

/// Waits for earlier operations; made by [`Endpoint::flush`].
#[must_use = "a flush does nothing unless awaited"]
pub struct Flush<'a>(Request<Flushing<'a>>);

struct Flushing<'a> {
    endpoint: &'a Endpoint,
    is_fence: bool,
}

impl<'a> Flushing<'a> {
    fn new(endpoint: &'a Endpoint, is_fence: bool) -> Self {
        Self { endpoint, is_fence }
    }
}

impl<'a> Verb<'a> for Flushing<'a> {
    type Kind = ();
    type Refused = Error;

    fn operation(&self) -> Operation {
        Operation::Flush
    }
    fn endpoint(&self) -> &'a Endpoint {
        self.endpoint
    }
    fn at_once(&mut self, _window: usize) -> Option<(Result<u64>, Begun<'a>)> {
        None
    }

    fn begin(&mut self, engine: &mut Engine, _is_posted: bool) -> Result<First> {
        let (link, id) = self.endpoint.place();
        let ctx = &mut engine.core.movers.ctx;
        let peer = ctx.endpoint(link, id).ok_or_else(closed)?;
        if let Some(error) = peer.over() {
            return Err(error);
        }
        Ok(match ctx.begin_flush(link, self.is_fence) {
            Some(key) => First::Entered(key),
            None => First::Over(0),
        })
    }

    fn refused(&mut self, error: Error) -> Error {
        error
    }
}

macro_rules! futures {
    ($($future:ident)*) => {$(
        impl Future for $future<'_> {
            type Output = Result<()>;

            fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
                self.0.poll(cx)
            }
        }

        impl fmt::Debug for $future<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($future)).field(self.0.verb.endpoint).finish()
            }
        }
    )*};
}
futures!(Fence Flush);

/// Waits for earlier operations of all endpoints of a worker; made by [`Worker::flush`] and [`Worker::fence`].
///
/// # Completion
/// Resolves when they are over.
///
/// # Cancel safety
/// Cancel safe.
#[must_use = "a flush does nothing unless awaited"]
#[derive(Debug)]
pub struct FlushAll<'a> {
    worker: &'a Worker,
    fence: bool,
    begun: bool,
    left: Vec<Op<()>>,
    error: Option<Error>,
}

impl<'a> FlushAll<'a> {
    fn new(worker: &'a Worker, fence: bool) -> Self {
        Self {
            worker,
            fence,
            begun: false,
            left: Vec::new(),
            error: None,
        }
    }
}

impl Future for FlushAll<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        if !std::mem::replace(&mut this.begun, true) {
            let begun = this.worker.shared().begin(Operation::Flush, |engine| {
                let ctx = engine.ctx();
                let alive = ctx.connections().filter(|peer| peer.is_alive());
                let links: Vec<_> = alive.map(|peer| peer.slot).collect();
                if links.is_empty() && engine.closing.is_some() {
                    return Err(engine.closed().during(Operation::Flush));
                }
                let ctx = engine.ctx();
                let begin = |link| ctx.begin_flush(link, this.fence);
                Ok(links.into_iter().filter_map(begin).collect::<Vec<_>>())
            });
            let handle = this.worker.handle();
            let (keys, _) = begun?;
            let keys = keys?;
            let op = |key| Op::waiting(handle, key, Deadline::None, Operation::Flush);
            this.left = keys.into_iter().map(op).collect();
        }
        // One after the other: all of them go on meanwhile.
        while let Some(op) = this.left.last_mut() {
            let flushed = ready!(Pin::new(op).poll(cx));
            this.left.pop();
            if let Err(error) = flushed {
                this.error.get_or_insert(error);
            }
        }
        Poll::Ready(this.error.take().map_or(Ok(()), Err))
    }
}
