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
    types::{Access, Priority, Tag},
    util::seldom::Seldom,
    worker::{
        device::{admit, admit_target, admit_unstaged},
        door::Begun,
        engine::Engine,
        operations::{self, Arrival, Outcome, Work},
        rma::Target,
    },
};

use super::{
    attempt::First,
    handle::{Endpoint, alive, window, window_of},
    layout::RemoteLayout,
    operation::{Completion, Deadline, Entered, Op, Settled, landed, sealed, wrong},
    rare::{Rare, has_begun, poll_rest, told_later},
    region::RemoteRegion,
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
pub struct Put<'a> {
    endpoint: &'a Endpoint,
    remote: Cow<'a, RemoteLayout>,
    buffer: SendBuffer<'a>,
    rare: Seldom<Rare>,
    local: bool,
    unstaged: bool,
    priority: Priority,
    /// It has ended, and its future was told.
    over: bool,
}

impl<'a> Put<'a> {
    pub(crate) fn new(
        endpoint: &'a Endpoint,
        buffer: SendBuffer<'a>,
        remote: Cow<'a, RemoteLayout>,
    ) -> Self {
        Self {
            endpoint,
            remote,
            buffer,
            rare: Seldom::default(),
            local: false,
            unstaged: false,
            priority: Priority::Normal,
            over: false,
        }
    }

    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Fails with `Unsupported` where its bytes would stop in pinned host memory between two memories, one of them a device's, as
    /// [`ContextBuilder::forbid_staging`](crate::ContextBuilder::forbid_staging) has it for all operations.
    pub fn forbid_staging(mut self) -> Self {
        self.unstaged = true;
        self
    }

    /// Resolves when the source may be reused; [`Endpoint::flush`] tells when the bytes are visible.
    #[doc(alias = "UCP_OP_ATTR_FLAG_FAST_CMPL")]
    pub fn local(mut self) -> Self {
        self.local = true;
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
        let signal = self.endpoint.signal_for_put(counter, n);
        let rare = self.rare();
        rare.signal = Some(signal);
        rare.counter = counter.is_counter().then(|| counter.target());
        self
    }

    /// Before which other operations of this endpoint it goes, where it goes by messages. Copies straight into the peer's memory take turns.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Fails with `DeadlineExceeded` after this long. The bytes may still be written.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.rare().deadline = Deadline::After(after);
        self
    }

    /// Starts now, to be awaited later or not at all.
    ///
    /// # Errors
    /// `WouldBlock` when the window of posted operations is full, and what the checks say; the buffer comes back.
    #[inline]
    pub fn post(self) -> Result<Op<()>, OpError<Buffer>> {
        match self.quickly(window_of(self.endpoint)) {
            Some(_) => Ok(Op::new(Entered::Done, Deadline::None, Operation::Put)),
            None => self.post_slowly(),
        }
    }

    #[inline(never)]
    fn post_slowly(mut self) -> Result<Op<()>, OpError<Buffer>> {
        let checked = self.check(self.buffer.get());
        let mut rare = self.rare.take().unwrap_or_default();
        let signal = match checked.and_then(|()| rare.signal.take().transpose()) {
            Ok(signal) => signal,
            Err(error) => return Err(OpError::new(error, Some(self.buffer.take()))),
        };
        let begun = self.endpoint.shared().begin(Operation::Put, |engine| {
            window(engine, self.endpoint, Operation::Put)?;
            Ok(match self.at_once(engine, self.buffer.get()) {
                Some(Ok(())) => self
                    .follow(engine, signal, rare.counter.as_ref())
                    .unwrap_or_else(|| Entered::over(Outcome::Done(Ok(())))),
                Some(Err(error)) => {
                    let buffer = self.buffer.take();
                    self.enter_failed(engine, buffer, error)
                }
                None => {
                    let buffer = self.buffer.take();
                    self.enter(engine, buffer, signal)
                }
            })
        });
        let entered = match begun.and_then(|(entered, _)| entered) {
            Ok(entered) => entered,
            Err(error) => return Err(OpError::new(error, Some(self.buffer.take()))),
        };
        Ok(Op::new(entered, rare.deadline, Operation::Put))
    }

    /// Copies a short run of bytes straight into memory that is mapped here. `None`: that is not all that there is to do.
    #[inline(always)]
    fn quickly(&self, window: usize) -> Option<Begun<'a>> {
        if self.rare.is_some() || self.over || self.remote.shape.is_some() {
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
        Some(inside.over())
    }

    #[inline]
    fn check(&self, buffer: &Buffer) -> Result<()> {
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
    fn at_once(&self, engine: &mut Engine, buffer: &Buffer) -> Option<Result<()>> {
        if self.is_spread(buffer) || self.is_staged(buffer) {
            return None;
        }
        let (link, _) = self.endpoint.place();
        let (address, length) = (buffer.address().cast_mut(), buffer.len());
        // SAFETY: the buffer outlives the call, which only reads it.
        unsafe {
            engine.core.movers.ctx.access_now(
                link,
                &self.remote.region.target(),
                address,
                length,
                false,
            )
        }
    }

    /// Sends the signal behind bytes that are visible. `Some` when it has to wait for room.
    #[inline]
    fn follow(
        &self,
        engine: &mut Engine,
        signal: Option<Signal>,
        counter: Option<&Target>,
    ) -> Option<Entered> {
        let mut signal = signal?;
        let (link, _) = self.endpoint.place();
        if let Some(counter) = counter
            && let Some(Ok(sleeps)) = engine.core.movers.ctx.raise_now(link, counter, signal.add)
        {
            if !sleeps {
                return None;
            }
            // What is left is to wake who sleeps.
            signal.add = 0;
        }
        if engine.core.movers.ctx.signal_now(link, &signal) {
            return None;
        }
        if let Some(peer) = engine.core.movers.ctx.peer(link) {
            peer.posted += 1;
        }
        let put = self.work(Buffer::new(), Some(signal));
        let key = engine.core.movers.ctx.start_signal(link, put);
        Some(Entered::new(self.endpoint.handle(), key))
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
            buffer,
            region: (target.slot, target.generation),
            offset: target.offset,
            next: 0,
            local: self.local,
            acknowledged: false,
            slot: None,
            signal: signal.map(Box::new),
            signal_due: false,
            announced: false,
        }
    }

    /// A put that failed at once goes by the table, so that a flush learns of it when nobody else does.
    #[cold]
    fn enter_failed(&self, engine: &mut Engine, buffer: Buffer, error: Error) -> Entered {
        let (link, _) = self.endpoint.place();
        if let Some(peer) = engine.core.movers.ctx.peer(link) {
            peer.posted += 1;
        }
        let work = Work::Put(self.work(buffer, None));
        let key = engine
            .core
            .movers
            .ctx
            .operations
            .insert(Some(link), false, work);
        engine
            .core
            .fail_operation(key, error.during(Operation::Put));
        Entered::new(self.endpoint.handle(), key)
    }

    fn enter(&self, engine: &mut Engine, buffer: Buffer, signal: Option<Signal>) -> Entered {
        let (link, _) = self.endpoint.place();
        let target = self.remote.region.target();
        let put = self.work(buffer, signal);
        if let Some(peer) = engine.core.movers.ctx.peer(link) {
            peer.posted += 1;
        }
        let key = match put.layout {
            Some(_) => engine
                .core
                .movers
                .start_layout(link, Work::Put(put), self.priority),
            None => {
                let how = (self.priority, self.unstaged);
                let route = self.remote.region.route();
                engine.core.movers.start_put(link, target, put, how, route)
            }
        };
        Entered::new(self.endpoint.handle(), key)
    }
}

impl Future for Put<'_> {
    type Output = Result<()>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        if let Some(begun) = this.quickly(usize::MAX) {
            this.over = true;
            if begun.over(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            *this.rare = told_later(Outcome::Done(Ok(())));
            return Poll::Pending;
        }
        this.poll_slowly(cx)
    }
}

impl Put<'_> {
    #[inline(never)]
    fn poll_slowly(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let operation = Operation::Put;
        if !has_begun(&self.rare) {
            if self.over {
                return Poll::Ready(Err(wrong().during(operation)));
            }
            self.check(self.buffer.get())?;
            let (signal, counter) = match &mut *self.rare {
                Some(rare) => (rare.signal.take().transpose()?, rare.counter),
                None => (None, None),
            };
            let (first, begun) = self.endpoint.shared().begin(operation, |engine| {
                if let Err(error) = alive(engine, self.endpoint, operation) {
                    return First::Over(Err(error));
                }
                match self.at_once(engine, self.buffer.get()) {
                    Some(Ok(())) => match self.follow(engine, signal, counter.as_ref()) {
                        None => First::Over(Ok(())),
                        Some(entered) => First::Entered(entered),
                    },
                    Some(Err(error)) => First::Over(Err(error.during(operation))),
                    None => {
                        let buffer = self.buffer.take();
                        First::Entered(self.enter(engine, buffer, signal))
                    }
                }
            })?;
            match first {
                First::Over(result) => {
                    self.over = true;
                    // An error is told at once: nobody else would tell it.
                    if begun.over(cx).is_ready() || result.is_err() {
                        return Poll::Ready(result);
                    }
                    *self.rare = told_later(Outcome::Done(result));
                    return Poll::Pending;
                }
                First::Entered(entered) => self.rare().entered = Some(entered),
            }
        }
        poll_rest(&mut self.rare, cx, operation)
            .map(|outcome| <()>::settle(Settled(outcome)).map_err(|error| error.during(operation)))
    }
}

impl fmt::Debug for Put<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Put")
            .field("remote", &self.remote)
            .field("len", &self.buffer.get().len())
            .finish_non_exhaustive()
    }
}

/// What a posted get resolves to: the buffer. Never made; it names [`Op`]'s kind.
pub struct Fetched<B>(PhantomData<fn() -> B>);

impl<B> fmt::Debug for Fetched<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fetched")
    }
}

impl<B: ReceiveBuffer + Unpin> sealed::Sealed for Fetched<B> {}
impl<B: ReceiveBuffer + Unpin> Completion for Fetched<B> {
    type Output = Result<B, OpError<B>>;
    fn settle(outcome: Settled) -> Self::Output {
        landed(outcome.0, |error| error).map(|(_, buffer)| buffer)
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
pub struct Get<'a, B: ReceiveBuffer + Unpin> {
    endpoint: &'a Endpoint,
    remote: Cow<'a, RemoteLayout>,
    /// `None` once it has begun.
    buffer: Option<B>,
    rare: Seldom<Rare>,
    unstaged: bool,
    priority: Priority,
}

impl<'a, B: ReceiveBuffer + Unpin> Get<'a, B> {
    pub(crate) fn new(endpoint: &'a Endpoint, remote: Cow<'a, RemoteLayout>, buffer: B) -> Self {
        Self {
            endpoint,
            remote,
            buffer: Some(buffer),
            rare: Seldom::default(),
            unstaged: false,
            priority: Priority::Normal,
        }
    }

    /// Fails with `Unsupported` where its bytes would stop in pinned host memory between two memories, one of them a device's, as
    /// [`ContextBuilder::forbid_staging`](crate::ContextBuilder::forbid_staging) has it for all operations.
    pub fn forbid_staging(mut self) -> Self {
        self.unstaged = true;
        self
    }

    /// Before which other operations of this endpoint its request goes, where it goes by messages.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Fails with `DeadlineExceeded` after this long; the buffer does not come back then, since bytes may still land in it.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.rare.get_or_insert_default().deadline = Deadline::After(after);
        self
    }

    /// Starts now, to be awaited later.
    ///
    /// # Errors
    /// `WouldBlock` when the window of posted operations is full, and what the checks say; the buffer comes back.
    pub fn post(mut self) -> Result<Op<Fetched<B>>, OpError<B>> {
        let operation = Operation::Get;
        let mut buffer: BufferMut = match self.buffer.take() {
            Some(buffer) => buffer.into(),
            None => return Err(OpError::new(wrong().during(operation), None)),
        };
        if let Err(error) = self.check(&buffer) {
            return Err(OpError::new(error, Some(B::restore(buffer))));
        }
        let begun = self.endpoint.shared().begin(operation, |engine| {
            window(engine, self.endpoint, operation)?;
            // Dropped after the lock is gone, if it stays here.
            let take = std::mem::take::<BufferMut>;
            Ok(match self.at_once(engine, &mut buffer) {
                Some(result) => Entered::over(self.landed(result, take(&mut buffer))),
                None => self.enter(engine, take(&mut buffer)),
            })
        });
        let entered = match begun.and_then(|(entered, _)| entered) {
            Ok(entered) => entered,
            Err(error) => return Err(OpError::new(error, Some(B::restore(buffer)))),
        };
        let deadline = self
            .rare
            .take()
            .map_or(Deadline::None, |rare| rare.deadline);
        Ok(Op::new(entered, deadline, operation))
    }

    /// Copies a short run of bytes straight from memory that is mapped here. `None`: that is not all that there is to do.
    #[inline(always)]
    fn quickly(&mut self) -> Option<Begun<'a>> {
        if self.rare.is_some() || self.remote.shape.is_some() {
            return None;
        }
        let data = self.buffer.as_mut()?.own_run()?;
        let endpoint = self.endpoint;
        let region = &self.remote.region;
        let (near, offset) = region.near(endpoint, data.len(), Access::READ)?;
        let (local, window) = ((data.as_mut_ptr(), data.len()), usize::MAX);
        let mut inside = endpoint.shared().owner_inside()?;
        let (core, place) = (&mut inside.core, endpoint.place());
        // SAFETY: the buffer is borrowed alone for the call, which writes it only then.
        unsafe {
            core.movers
                .ctx
                .copy_in_mapping(place, near, offset, local, true, window)
        }?;
        Some(inside.over())
    }

    #[inline]
    fn check(&self, buffer: &BufferMut) -> Result<()> {
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
    fn at_once(&self, engine: &mut Engine, buffer: &mut BufferMut) -> Option<Result<()>> {
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
            engine.core.movers.ctx.access_now(
                link,
                &self.remote.region.target(),
                address,
                length,
                true,
            )
        }
    }

    /// The outcome of one that was over at once.
    fn landed(&self, result: Result<()>, buffer: BufferMut) -> Outcome {
        let arrival = Arrival {
            length: buffer.len(),
            tag: Tag(0),
            from: self.endpoint.id(),
        };
        Outcome::Buffer {
            result: result
                .map(|()| arrival)
                .map_err(|error| error.during(Operation::Get)),
            buffer: Some(buffer),
        }
    }

    fn enter(&self, engine: &mut Engine, buffer: BufferMut) -> Entered {
        let (link, _) = self.endpoint.place();
        let target = self.remote.region.target();
        let listed = buffer.is_list() && !buffer.is_on_device();
        let layout = self.remote.plan(listed, buffer.len());
        let get = operations::Get {
            buffer,
            layout,
            pull: None,
            region: (target.slot, target.generation),
            offset: target.offset,
            got: 0,
            slot: None,
        };
        if let Some(peer) = engine.core.movers.ctx.peer(link) {
            peer.posted += 1;
        }
        let key = match get.layout {
            Some(_) => engine
                .core
                .movers
                .start_layout(link, Work::Get(get), self.priority),
            None => {
                let how = (self.priority, self.unstaged);
                let route = self.remote.region.route();
                engine.core.movers.start_get(link, target, get, how, route)
            }
        };
        Entered::new(self.endpoint.handle(), key)
    }
}

impl<B: ReceiveBuffer + Unpin> Future for Get<'_, B> {
    type Output = Result<B, OpError<B>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(begun) = this.quickly()
            && let Some(buffer) = this.buffer.take()
        {
            if begun.over(cx).is_ready() {
                return Poll::Ready(Ok(buffer));
            }
            *this.rare = told_later(this.landed(Ok(()), buffer.into()));
            return Poll::Pending;
        }
        this.poll_slowly(cx)
    }
}

impl<B: ReceiveBuffer + Unpin> Get<'_, B> {
    #[inline(never)]
    fn poll_slowly(&mut self, cx: &mut Context<'_>) -> Poll<Result<B, OpError<B>>> {
        let operation = Operation::Get;
        if !has_begun(&self.rare) {
            let Some(buffer) = self.buffer.take() else {
                return Poll::Ready(Err(OpError::new(wrong().during(operation), None)));
            };
            let mut buffer: BufferMut = buffer.into();
            if let Err(error) = self.check(&buffer) {
                return Poll::Ready(Err(OpError::new(error, Some(B::restore(buffer)))));
            }
            let begun = self.endpoint.shared().begin(operation, |engine| {
                if let Err(error) = alive(engine, self.endpoint, operation) {
                    return First::Over(Err(error));
                }
                match self.at_once(engine, &mut buffer) {
                    Some(result) => First::Over(result),
                    None => First::Entered(self.enter(engine, std::mem::take(&mut buffer))),
                }
            });
            let (first, begun) = match begun {
                Ok(begun) => begun,
                Err(error) => {
                    return Poll::Ready(Err(OpError::new(error, Some(B::restore(buffer)))));
                }
            };
            match first {
                First::Over(result) => {
                    if begun.over(cx).is_pending() && result.is_ok() {
                        *self.rare = told_later(self.landed(result, buffer));
                        return Poll::Pending;
                    }
                    let buffer = B::restore(buffer);
                    return Poll::Ready(match result {
                        Ok(()) => Ok(buffer),
                        Err(error) => Err(OpError::new(error.during(operation), Some(buffer))),
                    });
                }
                First::Entered(entered) => {
                    self.rare.get_or_insert_default().entered = Some(entered);
                }
            }
        }
        poll_rest(&mut self.rare, cx, operation).map(|outcome| {
            Fetched::settle(Settled(outcome)).map_err(|error| {
                let (error, buffer) = error.into_parts();
                OpError::new(error.during(operation), buffer)
            })
        })
    }
}

impl<B: ReceiveBuffer + Unpin> fmt::Debug for Get<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Get")
            .field("remote", &self.remote)
            .finish_non_exhaustive()
    }
}
