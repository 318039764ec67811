//! Atomic operations on memory that a peer has exposed.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::atomic::misaligned,
    types::{Access, AtomicOp, AtomicRequest, AtomicWord, OpKey, Width},
    worker::{engine::Engine, operations::Outcome, rma::Target},
};

use super::{
    Endpoint, Op, RemoteRegion,
    operation::{Completion, Deadline, Entered, Settled},
    rma::{alive, window},
};

/// # Atomic operations
///
/// On words of 32 and 64 bits, `offset` bytes into the region. The word's address at its owner must be a multiple of its size; memory that wharf
/// allocated begins at a page. All are sequentially consistent, and those that add wrap around.
///
/// Operations of one size on one word are atomic among each other, whoever does them: peers over any transport, and the owner by
/// [`Region`](crate::Region)'s. Where the memory is mapped here this side's processor does them, at once; else the owner's software does, with the same
/// instructions on the same memory. What operations of both sizes, or puts and atomics, do to the same bytes at the same time is not defined but
/// for this: those bytes alone hold what one of them, or a mix of them, wrote.
///
/// One that the owner's software did wakes who waits for a [`Counter`](crate::Counter) there; one in mapped memory does not: use
/// [`Endpoint::signal`] for that.
///
/// # Errors
/// `OutOfBounds`; `InvalidArgument` for a misaligned word; `AccessDenied` when the region was not exposed for writing or, by those that return a value,
/// reading; `StaleKey`; what ends the connection.
impl RemoteRegion {
    /// Adds, wrapping around; resolves to the old value.
    #[doc(alias("ucp_atomic_op_nbx", "UCP_ATOMIC_OP_ADD"))]
    pub fn fetch_add<T: AtomicWord + Completion>(&self, offset: usize, value: T) -> Atomic<'_, T> {
        self.fetching(offset, AtomicRequest::new(AtomicOp::Add, value))
    }

    /// Ands; resolves to the old value.
    pub fn fetch_and<T: AtomicWord + Completion>(&self, offset: usize, value: T) -> Atomic<'_, T> {
        self.fetching(offset, AtomicRequest::new(AtomicOp::And, value))
    }

    /// Ors; resolves to the old value.
    pub fn fetch_or<T: AtomicWord + Completion>(&self, offset: usize, value: T) -> Atomic<'_, T> {
        self.fetching(offset, AtomicRequest::new(AtomicOp::Or, value))
    }

    /// Exclusive ors; resolves to the old value.
    pub fn fetch_xor<T: AtomicWord + Completion>(&self, offset: usize, value: T) -> Atomic<'_, T> {
        self.fetching(offset, AtomicRequest::new(AtomicOp::Xor, value))
    }

    /// Writes; resolves to the old value.
    #[doc(alias = "UCP_ATOMIC_OP_SWAP")]
    pub fn swap<T: AtomicWord + Completion>(&self, offset: usize, value: T) -> Atomic<'_, T> {
        self.fetching(offset, AtomicRequest::new(AtomicOp::Swap, value))
    }

    /// Writes `new` if the word is `expected`; resolves to the old value, which is `expected` if it was written.
    #[doc(alias = "UCP_ATOMIC_OP_CSWAP")]
    pub fn compare_swap<T: AtomicWord + Completion>(
        &self,
        offset: usize,
        expected: T,
        new: T,
    ) -> Atomic<'_, T> {
        self.fetching(offset, AtomicRequest::compare_swap(expected, new))
    }

    /// Adds, wrapping around.
    pub fn add<T: AtomicWord>(&self, offset: usize, value: T) -> Atomic<'_, ()> {
        self.posting(offset, AtomicRequest::new(AtomicOp::Add, value))
    }

    /// Ands.
    pub fn and<T: AtomicWord>(&self, offset: usize, value: T) -> Atomic<'_, ()> {
        self.posting(offset, AtomicRequest::new(AtomicOp::And, value))
    }

    /// Ors.
    pub fn or<T: AtomicWord>(&self, offset: usize, value: T) -> Atomic<'_, ()> {
        self.posting(offset, AtomicRequest::new(AtomicOp::Or, value))
    }

    /// Exclusive ors.
    pub fn xor<T: AtomicWord>(&self, offset: usize, value: T) -> Atomic<'_, ()> {
        self.posting(offset, AtomicRequest::new(AtomicOp::Xor, value))
    }

    fn fetching<T: Completion>(&self, offset: usize, request: AtomicRequest) -> Atomic<'_, T> {
        Atomic::new(self.endpoint(), self, offset, request, Way::Fetch)
    }

    fn posting(&self, offset: usize, request: AtomicRequest) -> Atomic<'_, ()> {
        Atomic::new(self.endpoint(), self, offset, request, Way::Post)
    }

    /// The place of a word, if an operation may have it.
    #[inline]
    pub(super) fn word(
        &self,
        endpoint: &Endpoint,
        offset: usize,
        width: Width,
        access: Access,
    ) -> Result<Target> {
        let end = offset.saturating_add(width.bytes());
        self.check(endpoint, end, access, Operation::Atomic)?;
        let mut target = *self.target();
        target.offset += offset as u64;
        let address = target.address.wrapping_add(target.offset);
        if address.is_multiple_of(width.bytes() as u64) {
            Ok(target)
        } else {
            Err(misaligned(width))
        }
    }
}

/// How an atomic operation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The old value comes back.
    Fetch,
    /// It does not.
    Post,
    /// Nor here, and the owner's software does it, which wakes who waits.
    Signal,
    /// It is over.
    Over,
}

/// An atomic operation on a word of a peer's memory; made by [`RemoteRegion`] and by [`Endpoint::signal`].
///
/// # Completion
/// Resolves to the old value; those that ask for none resolve when the new one is visible to everybody.
///
/// # Cancel safety
/// Before the first poll nothing happens. After it the operation happens whether or not this is dropped.
#[must_use = "an atomic operation does nothing unless awaited or posted"]
#[doc(alias = "ucp_atomic_op_nbx")]
pub struct Atomic<'a, T: Completion> {
    endpoint: &'a Endpoint,
    remote: &'a RemoteRegion,
    offset: usize,
    request: AtomicRequest,
    way: Way,
    deadline: Deadline,
    entered: Option<Entered>,
    kind: PhantomData<fn() -> T>,
}

impl<'a, T: Completion> Atomic<'a, T> {
    pub(super) fn new(
        endpoint: &'a Endpoint,
        remote: &'a RemoteRegion,
        offset: usize,
        request: AtomicRequest,
        way: Way,
    ) -> Self {
        Self {
            endpoint,
            remote,
            offset,
            request,
            way,
            deadline: Deadline::None,
            entered: None,
            kind: PhantomData,
        }
    }

    /// Fails with `DeadlineExceeded` after this long. The operation may still happen.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.deadline = Deadline::After(after);
        self
    }

    /// Starts now, to be awaited later or not at all.
    ///
    /// # Errors
    /// `WouldBlock` when the window of posted operations is full, and what the checks say.
    pub fn post(self) -> Result<Op<T>> {
        let operation = self.operation();
        let target = self.target()?;
        let entered = self.endpoint.shared().with(|engine| {
            window(engine, self.endpoint, operation)?;
            Ok::<_, Error>(match self.at_once(engine, &target) {
                Some(Ok(old)) => Entered::over(Outcome::Value(old)),
                Some(Err(error)) => {
                    // By the table, so that a flush learns of it when nobody else does.
                    let key = self.enter(engine, &target);
                    engine.core.fail_operation(key, error.during(operation));
                    Entered::new(self.endpoint.handle(), key)
                }
                None => self.start(engine, &target),
            })
        })?;
        Ok(Op {
            entered,
            deadline: self.deadline,
            operation,
            kind: PhantomData,
        })
    }

    fn operation(&self) -> Operation {
        match self.way {
            Way::Signal => Operation::Signal,
            _ => Operation::Atomic,
        }
    }

    #[inline]
    fn target(&self) -> Result<Target> {
        let access = match self.way {
            Way::Fetch => Access::READ | Access::WRITE,
            Way::Post | Way::Signal => Access::WRITE,
            // Not a second time.
            Way::Over => {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    "polled after completion",
                ));
            }
        };
        self.remote
            .word(self.endpoint, self.offset, self.request.width, access)
            .map_err(|error| error.during(self.operation()))
    }

    #[inline]
    fn at_once(&self, engine: &mut Engine, target: &Target) -> Option<Result<u64>> {
        if self.way == Way::Signal {
            return None;
        }
        let (link, _) = self.endpoint.place();
        engine.core.atomic_now(link, target, &self.request)
    }

    fn enter(&self, engine: &mut Engine, target: &Target) -> OpKey {
        let (link, _) = self.endpoint.place();
        if let Some(peer) = engine.core.peer(link) {
            peer.posted += 1;
        }
        let fetch = self.way == Way::Fetch;
        engine.core.enter_atomic(link, target, &self.request, fetch)
    }

    fn start(&self, engine: &mut Engine, target: &Target) -> Entered {
        let key = self.enter(engine, target);
        engine.core.submit(self.endpoint.place().0, key);
        Entered::new(self.endpoint.handle(), key)
    }
}

impl<T: Completion<Output = Result<T>>> Future for Atomic<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let this = &mut *self;
        let operation = this.operation();
        if this.entered.is_none() {
            let shared = this.endpoint.shared();
            if shared.must_yield(cx) {
                return Poll::Pending;
            }
            let target = this.target()?;
            let mut engine = shared.enter();
            if let Err(error) = alive(&mut engine, this.endpoint, operation) {
                shared.leave(engine);
                return Poll::Ready(Err(error));
            }
            if let Some(result) = this.at_once(&mut engine, &target) {
                shared.leave(engine);
                shared.count(cx);
                this.way = Way::Over;
                return Poll::Ready(match result {
                    Ok(old) => T::settle(Settled(Outcome::Value(old))),
                    Err(error) => Err(error.during(operation)),
                });
            }
            this.entered = Some(this.start(&mut engine, &target));
            shared.leave(engine);
        }
        match &mut this.entered {
            Some(entered) => entered
                .poll(cx, &mut this.deadline, operation)
                .map(|outcome| {
                    T::settle(Settled(outcome)).map_err(|error| error.during(operation))
                }),
            None => Poll::Pending,
        }
    }
}

impl<T: Completion> fmt::Debug for Atomic<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Atomic")
            .field("request", &self.request)
            .field("way", &self.way)
            .finish_non_exhaustive()
    }
}
