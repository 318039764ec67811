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
    memory::atomic::{COUNTER_SIZE, misaligned},
    protocol::{atomic, control},
    transport::DeviceAtomic,
    types::{Access, AtomicOp, AtomicRequest, AtomicWord, OpKey, Width},
    worker::{
        door::Begun,
        engine::Engine,
        operations::{Ask, DeviceWord},
        rma::Target,
    },
};

use super::{
    handle::{Endpoint, alive, window},
    op::Op,
    operation::Completion,
    region::RemoteRegion,
    request::{First, Request, Verb},
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
/// A region that was exposed with [`Access::DEVICE_ATOMIC`] is apart: there network devices do them, over connections that have such
/// devices, and those of 64 bits that add or compare and swap alone. They need no other right, and are atomic among each other only, not
/// towards any processor's. Others are `Unsupported`. With `ConnectionReset` the way of the devices has failed while the connection may go on,
/// as when the peer's device refuses another operation of this side there: the operation may have been done or not.
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
    #[doc(alias("ucp_atomic_fadd32", "ucp_atomic_fadd64"))]
    pub fn fetch_add<T: AtomicWord>(&self, offset: usize, value: T) -> Atomic<'_, T> {
        self.fetching(offset, AtomicRequest::new(AtomicOp::Add, value))
    }

    /// Ands; resolves to the old value.
    #[doc(alias = "UCP_ATOMIC_OP_AND")]
    pub fn fetch_and<T: AtomicWord>(&self, offset: usize, value: T) -> Atomic<'_, T> {
        self.fetching(offset, AtomicRequest::new(AtomicOp::And, value))
    }

    /// Ors; resolves to the old value.
    #[doc(alias = "UCP_ATOMIC_OP_OR")]
    pub fn fetch_or<T: AtomicWord>(&self, offset: usize, value: T) -> Atomic<'_, T> {
        self.fetching(offset, AtomicRequest::new(AtomicOp::Or, value))
    }

    /// Exclusive ors; resolves to the old value.
    #[doc(alias = "UCP_ATOMIC_OP_XOR")]
    pub fn fetch_xor<T: AtomicWord>(&self, offset: usize, value: T) -> Atomic<'_, T> {
        self.fetching(offset, AtomicRequest::new(AtomicOp::Xor, value))
    }

    /// Writes; resolves to the old value.
    #[doc(alias = "UCP_ATOMIC_OP_SWAP")]
    #[doc(alias("ucp_atomic_swap32", "ucp_atomic_swap64"))]
    pub fn swap<T: AtomicWord>(&self, offset: usize, value: T) -> Atomic<'_, T> {
        self.fetching(offset, AtomicRequest::new(AtomicOp::Swap, value))
    }

    /// Writes `new` if the word is `expected`; resolves to the old value, which is `expected` if it was written.
    #[doc(alias = "UCP_ATOMIC_OP_CSWAP")]
    #[doc(alias("ucp_atomic_cswap32", "ucp_atomic_cswap64"))]
    pub fn compare_swap<T: AtomicWord>(&self, offset: usize, expected: T, new: T) -> Atomic<'_, T> {
        self.fetching(offset, AtomicRequest::compare_swap(expected, new))
    }

    /// Adds, wrapping around.
    #[doc(alias("ucp_atomic_add32", "ucp_atomic_add64", "UCP_ATOMIC_OP_ADD"))]
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

    /// Whether somebody may wait for it: see [`Counter`](crate::Counter). Of other memory of that size nobody does, and nothing is lost.
    #[inline]
    pub(crate) fn is_counter(&self) -> bool {
        self.len() == COUNTER_SIZE
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
        let mut target = self.target();
        target.offset += offset as u64;
        let address = target.address.wrapping_add(target.offset);
        if width.divides(address) {
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
    /// Nor here, and who waits is woken.
    Signal,
    /// It was raised in memory, and who waits is to be woken.
    Wake,
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
#[doc(alias(
    "ucp_atomic_post",
    "ucp_atomic_fetch_nb",
    "ucp_atomic_op_t",
    "ucp_atomic_post_op_t",
    "ucp_atomic_fetch_op_t",
    "UCP_FEATURE_AMO32",
    "UCP_FEATURE_AMO64"
))]
pub struct Atomic<'a, T: Completion>(Request<Word<'a, T>>);

struct Word<'a, T> {
    endpoint: &'a Endpoint,
    remote: &'a RemoteRegion,
    offset: usize,
    request: AtomicRequest,
    way: Way,
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
        Self(Request::new(Word {
            endpoint,
            remote,
            offset,
            request,
            way,
            kind: PhantomData,
        }))
    }

    /// Fails with `DeadlineExceeded` after this long. The operation may still happen.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.0.set_deadline(after);
        self
    }

    /// Starts now, to be awaited later or not at all.
    ///
    /// # Errors
    /// `WouldBlock` when the window of posted operations is full, and what the checks say.
    #[inline]
    pub fn post(mut self) -> Result<Op<T>> {
        self.0.post()
    }
}

impl<T> Word<'_, T> {
    /// Whether the word is one of network devices, and of no processor.
    #[inline]
    fn is_for_devices(&self) -> bool {
        self.remote.access().contains(Access::DEVICE_ATOMIC)
    }

    /// What a network device is to do, if it is to do it.
    fn device_atomic(&self) -> Option<DeviceAtomic> {
        let request = &self.request;
        match request.op {
            _ if !self.is_for_devices() || request.width != Width::Eight => None,
            AtomicOp::Add => Some(DeviceAtomic::FetchAdd(request.operand)),
            AtomicOp::CompareSwap => Some(DeviceAtomic::CompareSwap {
                compare: request.compare,
                swap: request.operand,
            }),
            _ => None,
        }
    }

    #[inline(always)]
    fn operation(&self) -> Operation {
        match self.way {
            Way::Signal | Way::Wake => Operation::Signal,
            _ => Operation::Atomic,
        }
    }

    #[inline]
    fn target(&self) -> Result<Target> {
        if self.is_for_devices() && (self.way == Way::Signal || self.device_atomic().is_none()) {
            let text = "the region was exposed for atomics of network devices: they add to words of 64 bits, and compare and swap them";
            return Err(Error::new(ErrorKind::Unsupported, text).during(self.operation()));
        }
        let access = match self.way {
            Way::Fetch | Way::Post if self.is_for_devices() => Access::DEVICE_ATOMIC,
            Way::Fetch => Access::READ | Access::WRITE,
            Way::Post | Way::Signal | Way::Wake => Access::WRITE,
        };
        self.remote
            .word(self.endpoint, self.offset, self.request.width, access)
            .map_err(|error| error.during(self.operation()))
    }

    /// In memory that is mapped here.
    #[inline]
    fn change_now(&mut self, engine: &mut Engine, target: &Target) -> Option<Result<u64>> {
        if self.is_for_devices() {
            return None;
        }
        let (link, _) = self.endpoint.place();
        match self.way {
            Way::Signal => {}
            Way::Wake => return self.wake_now(engine, target),
            Way::Fetch | Way::Post => {
                return engine.ctx().atomic_now(link, target, &self.request);
            }
        }
        if !self.remote.is_counter() {
            return None;
        }
        match engine.ctx().raise_now(link, target, self.request.operand)? {
            Ok(false) => Some(Ok(0)),
            Ok(true) => {
                self.way = Way::Wake;
                self.wake_now(engine, target)
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Of a counter that was raised.
    fn wake_now(&self, engine: &mut Engine, target: &Target) -> Option<Result<u64>> {
        let (link, _) = self.endpoint.place();
        let woken = engine.ctx().signal_now(link, &target.signal(0));
        woken.then_some(Ok(0))
    }

    fn enter(&self, engine: &mut Engine, target: &Target) -> OpKey {
        let (link, _) = self.endpoint.place();
        if let Some(peer) = engine.ctx().peer(link) {
            peer.posted += 1;
        }
        let fetch = self.way == Way::Fetch;
        let asks = match self.device_atomic() {
            Some(atomic) => Ask::Device(DeviceWord {
                atomic,
                address: target.address.wrapping_add(target.offset),
                // The owner's first.
                key: self
                    .remote
                    .route()
                    .iter()
                    .flat_map(|keys| keys.first())
                    .copied()
                    .next(),
            }),
            None => Ask::Owner(control::Atomic {
                generation: target.generation,
                offset: target.offset,
                operand: self.request.operand,
                compare: self.request.compare,
                slot: target.slot,
                code: atomic::code(&self.request, fetch),
            }),
        };
        engine.ctx().enter_atomic(link, asks, fetch)
    }
}

impl<'a, T: Completion> Verb<'a> for Word<'a, T> {
    type Kind = T;
    type Refused = Error;

    #[inline(always)]
    fn operation(&self) -> Operation {
        self.operation()
    }
    #[inline(always)]
    fn endpoint(&self) -> &'a Endpoint {
        self.endpoint
    }

    /// Does it straight in memory that is mapped here; what the word was.
    #[inline(always)]
    fn at_once(&mut self, window: usize) -> Option<(Result<u64>, Begun<'a>)> {
        let access = match self.way {
            Way::Fetch => Access::READ | Access::WRITE,
            Way::Post => Access::WRITE,
            Way::Signal | Way::Wake => return None,
        };
        if self.is_for_devices() {
            return None;
        }
        let width = self.request.width.bytes();
        let end = self.offset.saturating_add(width);
        let endpoint = self.endpoint;
        let (near, begin) = self.remote.near(endpoint, end, access)?;
        let offset = begin + self.offset as u64;
        let mut inside = endpoint.shared().owner_inside()?;
        let (core, place) = (&mut inside.core, endpoint.place());
        let old = core
            .movers
            .ctx
            .atomic_in_mapping(place, near, offset, &self.request, window)?;
        Some((Ok(old), inside.over()))
    }

    fn begin(&mut self, engine: &mut Engine, is_posted: bool) -> Result<First> {
        let operation = self.operation();
        let check = if is_posted { window } else { alive };
        check(engine, self.endpoint, operation)?;
        let target = self.target()?;
        let key = match self.change_now(engine, &target) {
            Some(Ok(old)) => return Ok(First::Over(old)),
            Some(Err(error)) if is_posted => {
                // By the table, so that a flush learns of it when nobody else does.
                let key = self.enter(engine, &target);
                engine.core.fail_operation(key, error.during(operation));
                key
            }
            Some(Err(error)) => return Err(error),
            None if self.way == Way::Wake => {
                let (link, _) = self.endpoint.place();
                engine.ctx().start_signal(link, target.signal(0))
            }
            None => {
                let key = self.enter(engine, &target);
                engine.core.submit(self.endpoint.place().0, key);
                key
            }
        };
        Ok(First::Entered(key))
    }

    fn refused(&mut self, error: Error) -> Error {
        error
    }
}

impl<T: Completion> Future for Atomic<'_, T> {
    type Output = T::Output;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Output> {
        self.0.poll(cx)
    }
}

impl<T: Completion> fmt::Debug for Atomic<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Atomic")
            .field("request", &self.0.verb.request)
            .field("way", &self.0.verb.way)
            .finish_non_exhaustive()
    }
}
