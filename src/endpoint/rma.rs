//! Puts and gets.
//!
//! # Safety
//! A short access hands the address of a buffer that this future owns to `Ctx::access_now`, which uses it during the call only.
#![allow(unsafe_code)]

use std::{
    borrow::Cow,
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    error::{Error, OpError, Operation, Result},
    memory::{Buffer, BufferMut, ReceiveBuffer, SendBuffer},
    protocol::control::Signal,
    types::{Access, OpKey, Priority},
    util::seldom::Seldom,
    worker::{
        aside::Deadline,
        device::{admit, admit_target, admit_unstaged},
        door::Begun,
        engine::Engine,
        operations::{self, Arrival, Outcome, Work, wrong},
        rma::Target,
    },
};

use super::{
    handle::{Endpoint, alive, window},
    layout::RemoteLayout,
    op::Op,
    operation::{Completion, Settled, landed, sealed},
    region::RemoteRegion,
    request::{First, Request, Verb},
};

impl Endpoint {
    /// Writes `buffer` to `remote`: to the beginning of a region, or to the blocks of a [`RemoteLayout`], in their order.
    ///
    /// # Errors
    /// `OutOfBounds`, `AccessDenied`, `StaleKey` when the memory is not exposed any more, `InvalidArgument` for a layout of another length
    /// than the buffer, and what ends the connection.
    #[doc(alias = "ucp_put_nbx")]
    pub fn put<'a>(
        &'a self,
        buffer: impl Into<SendBuffer<'a>>,
        remote: impl Into<Cow<'a, RemoteLayout>>,
    ) -> Put<'a> {
        Put::new(self, buffer.into(), remote.into())
    }

    /// Fills `buffer` from `remote`: from the beginning of a region, or from the blocks of a [`RemoteLayout`], in their order.
    ///
    /// # Errors
    /// As [`Endpoint::put`]; the buffer comes back where it can.
    #[doc(alias = "ucp_get_nbx")]
    pub fn get<'a, B: ReceiveBuffer + Unpin>(
        &'a self,
        remote: impl Into<Cow<'a, RemoteLayout>>,
        buffer: B,
    ) -> Get<'a, B> {
        Get::new(self, remote.into(), buffer)
    }

    /// Whether an operation between memories that devices have on these sides goes without a stop.
    #[cold]
    fn check_unstaged(
        &self,
        ends: (bool, bool),
        remote: &RemoteLayout,
        operation: Operation,
    ) -> Result<()> {
        if remote.shape.is_none() && self.is_own() {
            // Pinned memory is reached as well: what stops is refused there.
            return Ok(());
        }
        if remote.is_in_reach_of_devices() && self.has_rails() {
            return Ok(());
        }
        let reaches = remote.shape.is_none() && self.reaches_devices();
        admit_unstaged(ends, reaches, operation)
    }
}

/// Lists up to this long are gathered into one run, and put as that.
const GATHER: usize = 8 << 10;

/// A one-sided write; made by [`Endpoint::put`].
///
/// # Completion
/// Resolves when the bytes are visible at the target; with [`Put::local`], when the source may be reused.
///
/// # Cancel safety
/// Before the first poll nothing happens. After it the put happens whether or not this is dropped.
#[must_use = "a put does nothing unless awaited or posted"]
#[doc(alias = "ucp_put_nbx")]
#[doc(alias("ucp_put", "ucp_put_nb", "ucp_put_nbi"))]
pub struct Put<'a>(Request<Putting<'a>>);

// Moved by who builds and awaits it: a few lines of the cache.
const _: () = assert!(size_of::<Put<'_>>() <= 160);

struct Putting<'a> {
    endpoint: &'a Endpoint,
    remote: Cow<'a, RemoteLayout>,
    buffer: SendBuffer<'a>,
    signal: Seldom<Box<Signalling>>,
    local: bool,
    unstaged: bool,
    priority: Priority,
}

/// What follows the bytes.
struct Signalling {
    /// An error goes to whoever awaits.
    signal: Result<Signal>,
    /// The counter, where somebody may wait for it.
    counter: Option<Target>,
}

impl<'a> Put<'a> {
    pub(crate) fn new(
        endpoint: &'a Endpoint,
        buffer: SendBuffer<'a>,
        remote: Cow<'a, RemoteLayout>,
    ) -> Self {
        Self(Request::new(Putting {
            endpoint,
            remote,
            buffer,
            signal: Seldom::default(),
            local: false,
            unstaged: false,
            priority: Priority::Normal,
        }))
    }

    /// Fails with `Unsupported` where its bytes would stop in pinned host memory between two memories, one of them a device's, as
    /// [`ContextBuilder::forbid_staging`](crate::ContextBuilder::forbid_staging) has it for all operations.
    pub fn forbid_staging(mut self) -> Self {
        self.0.verb.unstaged = true;
        self
    }

    /// Resolves when the source may be reused; [`Endpoint::flush`] tells when the bytes are visible.
    #[doc(alias = "UCP_OP_ATTR_FLAG_FAST_CMPL")]
    pub fn local(mut self) -> Self {
        self.0.verb.local = true;
        self
    }

    /// Adds 1 to a [`Counter`](crate::Counter) of the peer once the bytes are visible, and wakes who waits for it. Whoever is woken sees the bytes.
    ///
    /// The put resolves as without; a put that failed does not signal. A counter that is gone makes the put fail with `StaleKey` where the
    /// owner's software wrote the bytes; else the next [`Endpoint::flush`] says so. A flush waits until signals are applied.
    pub fn signal(self, counter: &RemoteRegion) -> Self {
        self.signal_by(counter, 1)
    }

    /// As [`Put::signal`], adding `n`.
    pub fn signal_by(mut self, counter: &RemoteRegion, n: u64) -> Self {
        let put = &mut self.0.verb;
        *put.signal = Some(Box::new(Signalling {
            signal: put.endpoint.signal_for_put(counter, n),
            counter: counter.is_counter().then(|| counter.target()),
        }));
        self
    }

    /// Before which other operations of this endpoint it goes, where it goes by messages. Copies straight into the peer's memory take turns.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.0.verb.priority = priority;
        self
    }

    /// Fails with `DeadlineExceeded` after this long. The bytes may still be written.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.0.set_deadline(after);
        self
    }

    /// Starts now, to be awaited later or not at all.
    ///
    /// # Errors
    /// `WouldBlock` when the window of posted operations is full, and what the checks say; the buffer comes back.
    #[inline]
    pub fn post(mut self) -> Result<Op<()>, OpError<Buffer>> {
        self.0.post()
    }
}

impl Putting<'_> {
    fn check_ends(&self) -> Result<()> {
        let buffer = self.buffer.get();
        if buffer.is_on_device() {
            let context = &self.endpoint.shared().context;
            admit(context, &buffer.device_types(), Operation::Put)?;
        }
        if self.unstaged {
            let ends = (buffer.is_on_device(), self.remote.region.is_on_device());
            self.endpoint
                .check_unstaged(ends, &self.remote, Operation::Put)?;
        }
        self.remote
            .check_blocks(buffer.is_on_device(), Operation::Put)?;
        self.remote
            .check(self.endpoint, buffer.len(), Access::WRITE, Operation::Put)
    }

    /// Writes a short buffer straight into the peer's memory, where there is a way to it.
    #[inline]
    fn write_now(&self, engine: &mut Engine) -> Option<Result<()>> {
        let buffer = self.buffer.get();
        if self.is_spread(buffer) || self.is_staged(buffer) {
            return None;
        }
        let (link, _) = self.endpoint.place();
        let (address, length) = (buffer.address().cast_mut(), buffer.len());
        // SAFETY: the buffer outlives the call, which only reads it.
        unsafe {
            engine
                .ctx()
                .access_now(link, &self.remote.region.target(), address, length, false)
        }
    }

    /// Sends the signal behind bytes that are visible. `Some` when it has to wait for room.
    #[inline]
    fn follow(
        &self,
        engine: &mut Engine,
        signal: Option<Signal>,
        counter: Option<&Target>,
    ) -> Option<OpKey> {
        let mut signal = signal?;
        let (link, _) = self.endpoint.place();
        if let Some(counter) = counter
            && let Some(Ok(sleeps)) = engine.ctx().raise_now(link, counter, signal.add)
        {
            if !sleeps {
                return None;
            }
            // What is left is to wake who sleeps.
            signal.add = 0;
        }
        if engine.ctx().signal_now(link, &signal) {
            return None;
        }
        Some(engine.ctx().start_signal(link, signal))
    }

    /// Whether it goes in pieces. Short lists are gathered instead.
    #[inline]
    fn is_spread(&self, buffer: &Buffer) -> bool {
        let is_long = buffer.list().is_some_and(|list| list.len() > GATHER);
        self.remote.shape.is_some() || is_long && !self.is_staged(buffer)
    }

    /// Whether either end is out of its processor's reach.
    #[inline]
    fn is_staged(&self, buffer: &Buffer) -> bool {
        self.remote.region.is_on_device() || buffer.is_on_device()
    }

    fn work(&self, buffer: Buffer, signal: Option<Signal>) -> operations::Put {
        let target = self.remote.region.target();
        let layout = match self.is_spread(&buffer) {
            true => self.remote.plan(true, buffer.len()),
            false => None,
        };
        operations::Put {
            layout,
            local: self.local,
            signal: signal.map(Box::new),
            ..operations::Put::new(buffer, (target.slot, target.generation), target.offset)
        }
    }

    #[cold]
    fn enter_failed(&mut self, engine: &mut Engine, error: Error) -> OpKey {
        let buffer = self.buffer.take();
        let (link, _) = self.endpoint.place();
        if let Some(peer) = engine.ctx().peer(link) {
            peer.posted += 1;
        }
        let work = Work::Put(self.work(buffer, None));
        let key = engine.ctx().operations.insert(Some(link), false, work);
        engine
            .core
            .fail_operation(key, error.during(Operation::Put));
        key
    }

    fn enter(&mut self, engine: &mut Engine, signal: Option<Signal>) -> OpKey {
        let buffer = self.buffer.take();
        let (link, _) = self.endpoint.place();
        let target = self.remote.region.target();
        let put = self.work(buffer, signal);
        if let Some(peer) = engine.ctx().peer(link) {
            peer.posted += 1;
        }
        match put.layout {
            Some(_) => engine
                .movers()
                .start_layout(link, Work::Put(put), self.priority),
            None => {
                let how = (self.priority, self.unstaged);
                let route = self.remote.region.route();
                engine
                    .movers()
                    .start_run(link, target, Work::Put(put), how, route)
            }
        }
    }
}

impl<'a> Verb<'a> for Putting<'a> {
    type Kind = ();
    type Refused = OpError<Buffer>;

    fn operation(&self) -> Operation {
        Operation::Put
    }
    #[inline(always)]
    fn endpoint(&self) -> &'a Endpoint {
        self.endpoint
    }

    /// Copies a short run of bytes straight into memory that is mapped here.
    #[inline(always)]
    fn at_once(&mut self, window: usize) -> Option<(Result<u64>, Begun<'a>)> {
        if self.signal.is_some() || self.remote.shape.is_some() {
            return None;
        }
        let data = self.buffer.get().as_run()?;
        let endpoint = self.endpoint;
        let region = &self.remote.region;
        let (near, offset) = region.near(endpoint, data.len(), Access::WRITE)?;
        let local = (data.as_ptr().cast_mut(), data.len());
        let mut inside = endpoint.shared().owner_inside()?;
        let (core, place) = (&mut inside.core, endpoint.place());
        // SAFETY: the buffer outlives the call, which only reads it.
        unsafe {
            core.movers
                .ctx
                .copy_in_mapping(place, near, offset, local, false, window)
        }?;
        Some((Ok(0), inside.over()))
    }

    fn check(&mut self) -> Result<()> {
        self.check_ends()
    }

    fn begin(&mut self, engine: &mut Engine, is_posted: bool) -> Result<First> {
        let check = if is_posted { window } else { alive };
        check(engine, self.endpoint, Operation::Put)?;
        let (signal, counter) = match self.signal.take() {
            Some(follows) => (Some(follows.signal?), follows.counter),
            None => (None, None),
        };
        let key = match self.write_now(engine) {
            Some(Ok(())) => match self.follow(engine, signal, counter.as_ref()) {
                None => return Ok(First::Over(0)),
                Some(key) => key,
            },
            // By the table, so that a flush learns of it when nobody else does.
            Some(Err(error)) if is_posted => self.enter_failed(engine, error),
            Some(Err(error)) => return Err(error),
            None => self.enter(engine, signal),
        };
        Ok(First::Entered(key))
    }

    fn refused(&mut self, error: Error) -> OpError<Buffer> {
        OpError::new(error, Some(self.buffer.take()))
    }
}

impl Future for Put<'_> {
    type Output = Result<()>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.poll(cx)
    }
}

impl fmt::Debug for Put<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Put")
            .field("remote", &self.0.verb.remote)
            .field("len", &self.0.verb.buffer.get().len())
            .finish_non_exhaustive()
    }
}

/// What a posted get resolves to: the buffer. Never made; it names [`Op`]'s kind.
#[derive(Debug)]
pub struct Fetched<B>(PhantomData<fn() -> B>);

impl<B: ReceiveBuffer + Unpin> sealed::Sealed for Fetched<B> {}
impl<B: ReceiveBuffer + Unpin> Completion for Fetched<B> {
    type Output = Result<B, OpError<B>>;
    fn settle(outcome: Settled) -> Self::Output {
        landed(outcome.0).map(|(_, buffer)| buffer)
    }
}

/// A one-sided read into the whole of a buffer; made by [`Endpoint::get`].
///
/// # Completion
/// Resolves when all bytes are in the buffer, which it gives back.
///
/// # Cancel safety
/// Dropped, it runs to its end into the buffer that the operation owns, and the buffer is freed then.
#[must_use = "a get does nothing unless awaited or posted"]
#[doc(alias = "ucp_get_nbx")]
#[doc(alias("ucp_get", "ucp_get_nb", "ucp_get_nbi"))]
pub struct Get<'a, B: ReceiveBuffer + Unpin>(Request<Getting<'a, B>>);

struct Getting<'a, B> {
    endpoint: &'a Endpoint,
    remote: Cow<'a, RemoteLayout>,
    /// `None` once it has begun.
    buffer: Option<B>,
    unstaged: bool,
    priority: Priority,
}

impl<'a, B: ReceiveBuffer + Unpin> Get<'a, B> {
    pub(crate) fn new(endpoint: &'a Endpoint, remote: Cow<'a, RemoteLayout>, buffer: B) -> Self {
        Self(Request::new(Getting {
            endpoint,
            remote,
            buffer: Some(buffer),
            unstaged: false,
            priority: Priority::Normal,
        }))
    }

    /// Fails with `Unsupported` where its bytes would stop in pinned host memory between two memories, one of them a device's, as
    /// [`ContextBuilder::forbid_staging`](crate::ContextBuilder::forbid_staging) has it for all operations.
    pub fn forbid_staging(mut self) -> Self {
        self.0.verb.unstaged = true;
        self
    }

    /// Before which other operations of this endpoint its request goes, where it goes by messages.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.0.verb.priority = priority;
        self
    }

    /// Fails with `DeadlineExceeded` after this long; the buffer does not come back then, since bytes may still land in it.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.0.set_deadline(after);
        self
    }

    /// Starts now, to be awaited later.
    ///
    /// # Errors
    /// `WouldBlock` when the window of posted operations is full, and what the checks say; the buffer comes back.
    pub fn post(mut self) -> Result<Op<Fetched<B>>, OpError<B>> {
        self.0.post()
    }
}

impl<B: ReceiveBuffer + Unpin> Getting<'_, B> {
    fn check_ends(&self, buffer: &BufferMut) -> Result<()> {
        admit_target(&self.endpoint.shared().context, buffer, Operation::Get)?;
        if self.unstaged {
            let ends = (self.remote.region.is_on_device(), buffer.is_on_device());
            self.endpoint
                .check_unstaged(ends, &self.remote, Operation::Get)?;
        }
        self.remote
            .check_blocks(buffer.is_on_device(), Operation::Get)?;
        self.remote
            .check(self.endpoint, buffer.len(), Access::READ, Operation::Get)
    }

    /// Fills a short buffer straight from the peer's memory, where there is a way to it.
    #[inline]
    fn read_now(&self, engine: &mut Engine, buffer: &mut BufferMut) -> Option<Result<()>> {
        if let Err(error) = buffer.takes_from(self.endpoint.id()) {
            return Some(Err(error));
        }
        if self.remote.shape.is_some() || buffer.is_list() || buffer.is_on_device() {
            return None;
        }
        let (link, _) = self.endpoint.place();
        let (address, length) = (buffer.address(), buffer.len());
        // SAFETY: the buffer is borrowed alone for the call, which writes it only then.
        unsafe {
            engine
                .ctx()
                .access_now(link, &self.remote.region.target(), address, length, true)
        }
    }

    /// One that is over.
    fn ended(&mut self, result: Result<()>) -> Op<Fetched<B>> {
        let Some(buffer) = self.buffer.take() else {
            return Op::value(0);
        };
        // A get tells neither its length nor from where it is.
        let result = result.map(|()| Arrival::unnamed(0));
        let outcome = Outcome::Buffer(result, buffer.into());
        let handle = self.endpoint.handle();
        let ended = Err(Box::new(outcome));
        Op::new(handle, ended, Deadline::None, Operation::Get)
    }

    fn enter(&self, engine: &mut Engine, buffer: BufferMut) -> OpKey {
        let (link, _) = self.endpoint.place();
        let target = self.remote.region.target();
        let listed = buffer.is_list() && !buffer.is_on_device();
        let layout = self.remote.plan(listed, buffer.len());
        let get = operations::Get {
            layout,
            ..operations::Get::new(buffer, (target.slot, target.generation), target.offset)
        };
        if let Some(peer) = engine.ctx().peer(link) {
            peer.posted += 1;
        }
        match get.layout {
            Some(_) => engine
                .movers()
                .start_layout(link, Work::Get(get), self.priority),
            None => {
                let how = (self.priority, self.unstaged);
                let route = self.remote.region.route();
                engine
                    .movers()
                    .start_run(link, target, Work::Get(get), how, route)
            }
        }
    }
}

impl<'a, B: ReceiveBuffer + Unpin> Verb<'a> for Getting<'a, B> {
    type Kind = Fetched<B>;
    type Refused = OpError<B>;

    fn operation(&self) -> Operation {
        Operation::Get
    }
    #[inline(always)]
    fn endpoint(&self) -> &'a Endpoint {
        self.endpoint
    }

    /// Copies a short run of bytes straight from memory that is mapped here.
    #[inline(always)]
    fn at_once(&mut self, window: usize) -> Option<(Result<u64>, Begun<'a>)> {
        if self.remote.shape.is_some() {
            return None;
        }
        let data = self.buffer.as_mut()?.own_run()?;
        let endpoint = self.endpoint;
        let region = &self.remote.region;
        let (near, offset) = region.near(endpoint, data.len(), Access::READ)?;
        let local = (data.as_mut_ptr(), data.len());
        let mut inside = endpoint.shared().owner_inside()?;
        let (core, place) = (&mut inside.core, endpoint.place());
        // SAFETY: the buffer is borrowed alone for the call, which writes it only then.
        unsafe {
            core.movers
                .ctx
                .copy_in_mapping(place, near, offset, local, true, window)
        }?;
        Some((Ok(0), inside.over()))
    }

    fn check(&mut self) -> Result<()> {
        let buffer = self.buffer.take().ok_or_else(wrong)?.into();
        let checked = self.check_ends(&buffer);
        self.buffer = Some(B::restore(buffer));
        checked
    }

    fn begin(&mut self, engine: &mut Engine, is_posted: bool) -> Result<First> {
        let check = if is_posted { window } else { alive };
        check(engine, self.endpoint, Operation::Get)?;
        let mut buffer = self.buffer.take().ok_or_else(wrong)?.into();
        let Some(result) = self.read_now(engine, &mut buffer) else {
            return Ok(First::Entered(self.enter(engine, buffer)));
        };
        self.buffer = Some(B::restore(buffer));
        match result {
            Ok(()) => Ok(First::Over(0)),
            // Who awaits it learns of it.
            Err(error) if is_posted => Ok(First::Ended(self.ended(Err(error)).told_as())),
            Err(error) => Err(error),
        }
    }

    fn posted(&mut self, _value: u64) -> Op<Fetched<B>> {
        self.ended(Ok(()))
    }

    #[inline(always)]
    fn value(&mut self, _value: u64) -> Result<B, OpError<B>> {
        self.buffer
            .take()
            .ok_or_else(|| OpError::new(wrong().during(Operation::Get), None))
    }
    fn failed(&mut self, error: Error) -> Result<B, OpError<B>> {
        Err(self.refused(error))
    }
    fn refused(&mut self, error: Error) -> OpError<B> {
        OpError::new(error, self.buffer.take())
    }
}

impl<B: ReceiveBuffer + Unpin> Future for Get<'_, B> {
    type Output = Result<B, OpError<B>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}

impl<B: ReceiveBuffer + Unpin> fmt::Debug for Get<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Get")
            .field("remote", &self.0.verb.remote)
            .finish_non_exhaustive()
    }
}
