//! Waiting for what was begun before: fences, and the flush of all endpoints of a worker.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use crate::{
    error::{Error, Operation, Result},
    worker::operations::Outcome,
};

use super::{
    Endpoint, Worker,
    attempt::conclude,
    operation::{Completion, Deadline, Entered, Settled},
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
        Fence {
            endpoint: self,
            entered: None,
        }
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
    /// The first that one of them had, once all are over. An endpoint that had ended before is passed over.
    ///
    /// # Cancel safety
    /// Cancel safe.
    #[doc(alias = "ucp_worker_flush_nbx")]
    #[doc(alias("ucp_worker_flush", "ucp_worker_flush_nb"))]
    pub fn flush(&self) -> FlushAll<'_> {
        FlushAll::new(self, false)
    }
}

fn settle(outcome: Outcome) -> Result<()> {
    <()>::settle(Settled(outcome)).map_err(|error| error.during(Operation::Flush))
}

/// Waits for earlier accesses to remote memory; made by [`Endpoint::fence`].
///
/// # Completion
/// Resolves when they are over.
///
/// # Cancel safety
/// Cancel safe.
#[must_use = "a fence does nothing unless awaited"]
#[derive(Debug)]
pub struct Fence<'a> {
    endpoint: &'a Endpoint,
    entered: Option<Entered>,
}

impl Future for Fence<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        if this.entered.is_none() {
            let (link, id) = this.endpoint.place();
            let shared = this.endpoint.shared();
            let (key, begun) = shared.begin(Operation::Flush, |engine| {
                match engine.core.movers.ctx.endpoint(link, id) {
                    None => Err(crate::worker::send::closed()),
                    Some(peer) => match peer.over() {
                        Some(error) => Err(error),
                        None => Ok(engine.core.movers.ctx.begin_flush(link, true)),
                    },
                }
            })?;
            match key.map_err(|error| error.during(Operation::Flush))? {
                Some(key) => this.entered = Some(Entered::new(this.endpoint.handle(), key)),
                None => return conclude(begun, cx, &mut this.entered, Ok(())),
            }
        }
        match &mut this.entered {
            Some(entered) => entered
                .poll(cx, &mut Deadline::None, Operation::Flush)
                .map(settle),
            None => Poll::Pending,
        }
    }
}

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
    left: Vec<Entered>,
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
                let core = &mut engine.core;
                let alive = core
                    .movers
                    .ctx
                    .peers
                    .iter()
                    .flatten()
                    .filter(|peer| peer.is_alive());
                let links: Vec<_> = alive.map(|peer| peer.slot).collect();
                let begin = |link| core.movers.ctx.begin_flush(link, this.fence);
                links.into_iter().filter_map(begin).collect::<Vec<_>>()
            });
            let handle = this.worker.handle();
            let (keys, _) = begun?;
            this.left = keys
                .into_iter()
                .map(|key| Entered::new(handle, key))
                .collect();
        }
        // One after the other: all of them go on meanwhile.
        while let Some(entered) = this.left.last_mut() {
            let outcome = ready!(entered.poll(cx, &mut Deadline::None, Operation::Flush));
            this.left.pop();
            if let Err(error) = settle(outcome) {
                this.error.get_or_insert(error);
            }
        }
        Poll::Ready(this.error.take().map_or(Ok(()), Err))
    }
}
