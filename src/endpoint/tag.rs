//! Tagged messages: sends on an endpoint, receives on a worker.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;

use crate::{
    error::{Error, OpError, Operation, Result},
    memory::{Buffer, BufferMut, ReceiveBuffer, SendBuffer},
    protocol::{matching::Arrival as Order, window::SHORT},
    types::{EndpointId, LinkId, Mask, OpKey, Priority, Tag},
    util::{copy::copied, seldom::Seldom},
    worker::{
        Handle,
        aside::Deadline,
        ctx::{sender_gone, truncated},
        device::{admit_source, admit_target},
        direct::{DirectOutcome, Owed},
        door::Begun,
        engine::Engine,
        operations::{self, Body, Outcome, SendStage, Unexpected, Work, wrong},
        peer::Peer,
        receive::Posted,
        send::try_eager,
    },
};

use super::{
    attempt::{Attempt, tried, try_send},
    handle::{Endpoint, ended, window},
    op::Op,
    operation::{self, Completion, Front, Settled, landed, refused, sealed},
    request::{First, Rare, Request, Verb, poll_begun},
    worker::Worker,
};

/// A received message: the buffer, and how much of it is the message.
#[derive(Debug)]
pub struct Received<B> {
    /// The buffer that was given; its first `len` bytes are the message.
    pub buffer: B,
    /// Length of the message in bytes.
    pub len: usize,
    /// Its tag.
    pub tag: Tag,
    /// Who sent it: [`Worker::endpoint`] turns it into an endpoint to answer on.
    pub from: EndpointId,
}

impl<B: AsRef<[u8]>> Received<B> {
    /// The message. Of memory that the host does not reach ([`Buffer`], [`BufferMut`]) see there.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer.as_ref()[..self.len]
    }
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Received<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl<B: Into<Self>> From<Received<B>> for Bytes {
    /// The message, without a copy.
    fn from(received: Received<B>) -> Self {
        let mut bytes = received.buffer.into();
        bytes.truncate(received.len);
        bytes
    }
}

impl<B: ReceiveBuffer + Unpin> sealed::Sealed for Received<B> {}
impl<B: ReceiveBuffer + Unpin> Completion for Received<B> {
    type Output = Result<Self, OpError<B>>;
    fn settle(outcome: Settled) -> Self::Output {
        landed(outcome.0).map(|(arrival, buffer)| arrival.into_received(buffer))
    }
    #[inline(always)]
    fn front(take: impl FnOnce() -> Option<Front>) -> Option<Self::Output> {
        let Front(arrival, buffer) = take()?;
        Some(Ok(arrival.into_received(B::restore(buffer))))
    }
}

impl Endpoint {
    /// Sends `buffer` under `tag`.
    ///
    /// # Errors
    /// What ends the connection; `Closed` on a closed endpoint.
    #[doc(alias = "ucp_tag_send_nbx")]
    #[doc(alias("ucp_tag_send_nb", "ucp_tag_send_nbr"))]
    pub fn tag_send<'a>(
        &'a self,
        tag: impl Into<Tag>,
        buffer: impl Into<SendBuffer<'a>>,
    ) -> TagSend<'a> {
        TagSend::new(self, tag.into(), buffer.into())
    }

    /// Sends a copy of `bytes` under `tag`. The borrow ends here, before the first poll.
    ///
    /// # Errors
    /// As [`Endpoint::tag_send`].
    pub fn tag_send_copy(&self, tag: impl Into<Tag>, bytes: &[u8]) -> TagSend<'_> {
        TagSend::new(self, tag.into(), copied(bytes).into())
    }
}

impl Worker {
    /// Receives the next message with exactly this tag, or one that agrees with it in some bits ([`TagRecv::mask`]), from any endpoint.
    ///
    /// # Errors
    /// `Truncated` when the message is longer than the buffer; what ended the connection in the middle of it. The buffer comes back.
    #[doc(alias = "ucp_tag_recv_nbx")]
    #[doc(alias("ucp_tag_recv_nb", "ucp_tag_recv_nbr", "ucp_tag_recv_request_test"))]
    pub fn tag_recv<B: ReceiveBuffer + Unpin>(
        &self,
        tag: impl Into<Tag>,
        buffer: B,
    ) -> TagRecv<'_, B> {
        TagRecv::new(self, tag.into(), buffer)
    }

    /// Waits for such a message and claims it, to be received later with a buffer of its size.
    ///
    /// # Errors
    /// `Closed` when the worker shuts down.
    pub fn tag_matched(&self, tag: impl Into<Tag>) -> TagMatched<'_> {
        TagMatched::new(self.handle(), None, tag.into(), Mask::ALL)
    }

    /// Looks for a message whose tag agrees with `tag` in the bits of `mask`, without taking it. A loop that looks and never awaits anything makes
    /// [`progress`](Self::progress) as well: over a network some of what comes is only seen by that, or by the runtime.
    #[must_use]
    #[doc(alias = "ucp_tag_probe_nb")]
    pub fn tag_probe(&self, tag: impl Into<Tag>, mask: Mask) -> Option<MessageInfo> {
        let tag = tag.into();
        let found = self.shared().ask(|engine| {
            engine.progress();
            engine
                .core
                .unexpected
                .peek_match(tag, mask)
                .map(|(_, message)| info(message))
        });
        found.flatten()
    }

    /// Claims such a message if one has arrived.
    #[must_use]
    pub fn tag_take(&self, tag: impl Into<Tag>, mask: Mask) -> Option<Matched> {
        let tag = tag.into();
        let taken = self.shared().ask(|engine| {
            engine.progress();
            let mut taken = engine.core.take_unexpected(tag, mask)?;
            engine.ctx().take_in(&mut taken.message);
            Some(taken)
        })??;
        Some(Matched::new(self.handle(), taken.arrival, taken.message))
    }
}

/// A tagged send; made by [`Endpoint::tag_send`].
///
/// # Completion
/// Resolves when the message is on its way and the source is free: at once for a short message, when the peer has it for a long one, and for one of 32 to 66 KiB
/// at either time ([tuning](crate::guide::tuning)), for which no receive is needed in either case.
/// A synchronous send ([`TagSend::sync`]) resolves when a receive has matched it.
///
/// # Cancel safety
/// Before the first poll nothing is sent. After it the message is delivered whether or not this is dropped.
#[must_use = "a send does nothing unless awaited or posted"]
pub struct TagSend<'a>(Request<Sending<'a>>);

struct Sending<'a> {
    endpoint: &'a Endpoint,
    tag: Tag,
    buffer: SendBuffer<'a>,
    sync: bool,
    unstaged: bool,
    priority: Priority,
}

impl<'a> TagSend<'a> {
    #[inline]
    pub(crate) fn new(endpoint: &'a Endpoint, tag: Tag, buffer: SendBuffer<'a>) -> Self {
        Self(Request::new(Sending {
            endpoint,
            tag,
            buffer,
            sync: false,
            unstaged: false,
            priority: Priority::Normal,
        }))
    }

    /// Resolves only when a receive has matched the message.
    #[doc(alias = "ucp_tag_send_sync_nbx")]
    #[doc(alias = "ucp_tag_send_sync_nb")]
    pub fn sync(mut self) -> Self {
        self.0.verb.sync = true;
        self
    }

    /// Fails with `Unsupported` where its bytes would stop in pinned host memory between two memories, one of them a device's, as
    /// [`ContextBuilder::forbid_staging`](crate::ContextBuilder::forbid_staging) has it for all operations.
    /// Between processes a message of up to 66 KiB finds the way to the receiver's device only where the receiver forbids it too. A receiver
    /// without such a way fails as well. What the receiver does with a message out of host memory is its own affair.
    pub fn forbid_staging(mut self) -> Self {
        self.0.verb.unstaged = true;
        self
    }

    /// Before which other operations of this endpoint it goes. Messages of different priorities have no order among each other.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.0.verb.priority = priority;
        self
    }

    /// Fails with `DeadlineExceeded` after this long. A message that has left by then is still delivered.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.0.set_deadline(after);
        self
    }

    /// Sends now, to be awaited later or not at all.
    ///
    /// # Errors
    /// `WouldBlock` when the window of posted operations is full, `Closed` and the like when the endpoint is; the buffer comes back.
    #[inline]
    pub fn post(mut self) -> Result<Op<()>, OpError<Buffer>> {
        self.0.post()
    }
}

impl Sending<'_> {
    #[inline(always)]
    fn attempt(&self, engine: &mut Engine) -> Attempt {
        let (link, id) = self.endpoint.place();
        let peer = match engine.ctx().endpoint(link, id) {
            Some(peer) if peer.is_open() => peer,
            peer => return Attempt::Over(Err(ended(peer, Operation::TagSend))),
        };
        let buffer = self.buffer.get();
        if !self.sync
            && let Some(data) = buffer.as_run()
            && data.len() <= peer.eager
        {
            return tried(try_eager(peer, self.tag, data.len(), true, || data));
        }
        self.attempt_other(peer)
    }

    /// A list, memory of a device, a long message, or one that is to be matched.
    #[inline(never)]
    fn attempt_other(&self, peer: &mut Peer) -> Attempt {
        let buffer = self.buffer.get();
        if !self.sync && buffer.is_run_within(peer.eager) {
            return tried(try_eager(peer, self.tag, buffer.len(), false, || {
                buffer.host()
            }));
        }
        match admit_source(
            &self.endpoint.shared().context,
            peer,
            buffer,
            self.unstaged,
            Operation::TagSend,
        ) {
            Ok(()) => Attempt::No,
            Err(error) => Attempt::Over(Err(error)),
        }
    }
}

impl<'a> Verb<'a> for Sending<'a> {
    type Kind = ();
    type Refused = OpError<Buffer>;

    fn operation(&self) -> Operation {
        Operation::TagSend
    }
    #[inline(always)]
    fn endpoint(&self) -> &'a Endpoint {
        self.endpoint
    }

    /// Sends what goes unasked where there is room.
    #[inline(always)]
    fn at_once(&mut self, _window: usize) -> Option<(Result<u64>, Begun<'a>)> {
        if self.sync {
            return None;
        }
        let data = self.buffer.get().as_run()?;
        let mut inside = self.endpoint.shared().owner_inside()?;
        let place = self.endpoint.place();
        let result = match data.len() <= SHORT {
            true => inside.ctx().send_short(place, self.tag, data)?,
            false => inside.ctx().send_eager(place, self.tag, data)?,
        };
        Some((result.map(|()| 0), inside.over()))
    }

    fn begin(&mut self, engine: &mut Engine, is_posted: bool) -> Result<First> {
        match try_send(engine, is_posted, |engine| self.attempt(engine)) {
            Attempt::Over(result) => return result.map(|()| First::Over(0)),
            _ if is_posted => window(engine, self.endpoint, Operation::TagSend)?,
            _ => {}
        }
        let (link, _) = self.endpoint.place();
        let send = operations::Send {
            tag: self.tag,
            buffer: self.buffer.take(),
            sync: self.sync,
            stage: SendStage::Queued,
            slot: None,
            cancelling: false,
            am: None,
        };
        let ctx = &mut engine.core.movers.ctx;
        let key = ctx.operations.insert(Some(link), false, Work::Send(send));
        if let Some(peer) = ctx.peer(link) {
            peer.posted += 1;
        }
        ctx.arrange(key, self.priority, self.unstaged);
        engine.core.submit(link, key);
        Ok(First::Entered(key))
    }

    fn refused(&mut self, error: Error) -> OpError<Buffer> {
        OpError::new(error, Some(self.buffer.take()))
    }
}

impl Future for TagSend<'_> {
    type Output = Result<()>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.poll(cx)
    }
}

impl fmt::Debug for TagSend<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TagSend")
            .field("tag", &self.0.verb.tag)
            .field("len", &self.0.verb.buffer.get().len())
            .finish_non_exhaustive()
    }
}

/// A tagged receive; made by [`Worker::tag_recv`].
///
/// # Completion
/// Resolves when the whole message is in the buffer. A message longer than the buffer is an error of kind `Truncated`, and gone.
///
/// # Cancel safety
/// Cancel safe: a receive that is dropped takes no message with it. One that had matched puts it back in its place.
#[must_use = "a receive does nothing unless awaited or posted"]
// In this order: beside the buffer, what is empty in `rare` would be moved with it.
#[repr(C)]
pub struct TagRecv<'a, B: ReceiveBuffer + Unpin> {
    /// Until it is entered, or over.
    buffer: Option<B>,
    worker: &'a Worker,
    tag: Tag,
    mask: Mask,
    rare: Seldom<Rare>,
    unstaged: bool,
}

impl<'a, B: ReceiveBuffer + Unpin> TagRecv<'a, B> {
    #[inline]
    pub(crate) fn new(worker: &'a Worker, tag: Tag, buffer: B) -> Self {
        Self {
            buffer: Some(buffer),
            worker,
            tag,
            mask: Mask::ALL,
            rare: Seldom::default(),
            unstaged: false,
        }
    }

    /// Takes a message whose tag agrees in these bits, where without it all of them count.
    pub fn mask(mut self, mask: Mask) -> Self {
        self.mask = mask;
        self
    }

    /// Fails with `Unsupported` where its bytes would stop in pinned host memory between two memories, one of them a device's, as
    /// [`ContextBuilder::forbid_staging`](crate::ContextBuilder::forbid_staging) has it for all operations.
    /// The message is gone then, and its sender learns of it where it was announced. Whether it stops on its way out of the sender's device is the
    /// sender's affair.
    pub fn forbid_staging(mut self) -> Self {
        self.unstaged = true;
        self
    }

    /// Fails with `DeadlineExceeded` after this long; the buffer comes back unless a message was under way into it.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.rare.get_or_insert_default().set_deadline(after);
        self
    }

    /// Posts the receive now: it takes its place before all that are posted later.
    #[inline(always)]
    pub fn post(mut self) -> Op<Received<B>> {
        if self.rare.is_none()
            && let Some(key) = self.post_at_once()
        {
            return Op::waiting(
                self.worker.handle(),
                key,
                Deadline::None,
                Operation::TagRecv,
            );
        }
        // In a place of its own: see `TagRecv::poll`.
        let mut posted = Op::value(0);
        self.post_slowly(&mut posted);
        posted
    }

    #[inline(never)]
    fn post_slowly(&mut self, posted: &mut Op<Received<B>>) {
        let rare = self.rare.take().unwrap_or_default();
        if let Some(begun) = rare.begun {
            // It was polled before.
            *posted = begun.told_as();
        } else if let Some(buffer) = self.buffer.take() {
            let deadline = rare.deadline;
            let begun = self.enter(buffer.into());
            *posted = Op::new(self.worker.handle(), begun, deadline, Operation::TagRecv);
        }
    }
}

/// Begins a receive, if its memory can be received into.
#[inline(never)]
pub(super) fn enter(
    handle: &Arc<Handle>,
    buffer: BufferMut,
    begin: impl FnOnce(&mut Engine, BufferMut) -> OpKey,
) -> Result<OpKey, Box<Outcome>> {
    match admit_target(&handle.shared.context, &buffer, Operation::TagRecv) {
        Ok(()) => operation::begin(handle, Operation::TagRecv, buffer, begin),
        Err(error) => Err(refused(error, buffer)),
    }
}

/// Enters a receive into the table, and gives it a message that waits for it.
fn post(engine: &mut Engine, tag: Tag, mask: Mask, buffer: BufferMut, unstaged: bool) -> OpKey {
    let core = &mut engine.core;
    if let Some(taken) = core.take_unexpected(tag, mask) {
        let order = core.unexpected.arrival();
        let key = core.movers.ctx.enter_receive(buffer, None, order);
        core.movers.ctx.arrange(key, Priority::Normal, unstaged);
        core.movers.hand_over(key, taken.arrival, taken.message);
        return key;
    }
    let key = core.post_receive(tag, mask, buffer, unstaged);
    if engine.closing.is_some() {
        let closed = engine.closed().during(Operation::TagRecv);
        engine.core.fail_receive(key, closed);
    }
    key
}

/// Gives what is in the table the earliest message of a peer's that it accepts, or has it wait for one.
pub(super) fn post_of_peer(
    engine: &mut Engine,
    key: OpKey,
    peer: (LinkId, EndpointId),
    tag: Tag,
    mask: Mask,
) {
    let core = &mut engine.core;
    if let Some(taken) = core.take_unexpected_of(peer, tag, mask) {
        return core.movers.hand_over(key, taken.arrival, taken.message);
    }
    let never = match core.movers.ctx.endpoint(peer.0, peer.1) {
        Some(peer) if peer.is_alive() => None,
        peer => Some(ended(peer, Operation::TagRecv)),
    };
    let closed = || engine.closing.map(|_| engine.closed());
    let never = never.or_else(closed);
    match never {
        Some(error) => engine.core.fail_operation(key, error),
        None => engine.core.post_of_peer(key, peer.0, tag, mask),
    }
}

/// What a look found.
enum Found {
    /// The message is in the buffer, or the receive has failed.
    Here(Result<operations::Arrival>),
    Entered(OpKey),
}

/// One look for a message: among those that wait, then at what arrives.
#[inline(always)]
fn look(engine: &mut Engine, tag: Tag, mask: Mask, buffer: &mut BufferMut) -> Option<Found> {
    if !engine.core.unexpected.is_empty()
        && let Some(found) = take_waiting(engine, tag, mask, buffer)
    {
        return Some(found);
    }
    if engine.closing.is_some() {
        let closed = engine.closed().during(Operation::TagRecv);
        return Some(Found::Here(Err(closed)));
    }
    match engine.receive_now(tag, mask, buffer) {
        DirectOutcome::Waiting => None,
        DirectOutcome::Done(arrival) => Some(Found::Here(Ok(arrival))),
        DirectOutcome::Truncated(length) => {
            let room = buffer.len();
            Some(Found::Here(Err(truncated(length as u64, room))))
        }
        DirectOutcome::Entered(key) => Some(Found::Entered(key)),
    }
}

/// Takes a message that has come already.
#[inline(never)]
fn take_waiting(
    engine: &mut Engine,
    tag: Tag,
    mask: Mask,
    buffer: &mut BufferMut,
) -> Option<Found> {
    let core = &mut engine.core;
    let taken = core.take_unexpected(tag, mask)?;
    let (order, message) = (taken.arrival, taken.message);
    let body = &message.body;
    if matches!(body, Body::Announced(_) | Body::Arriving { .. }) || body.is_on_device() {
        let (buffer, link) = (std::mem::take(buffer), message.link);
        let key = core.movers.ctx.enter_receive(buffer, Some(link), order);
        core.movers.hand_over(key, order, message);
        return Some(Found::Entered(key));
    }
    Some(Found::Here(core.movers.ctx.take_whole(buffer, message)))
}

impl<B: ReceiveBuffer + Unpin> TagRecv<'_, B> {
    /// Posts it where nothing is here for it, and somebody looks for what comes: nobody has to be told. The buffer goes where it stays; moved from
    /// one function to the next, it would be waited for each time.
    #[inline(always)]
    fn post_at_once(&mut self) -> Option<OpKey> {
        // Ordinary memory of the host's: it can be received into.
        self.buffer.as_mut()?.own_run()?;
        let mut inside = self.worker.shared().owner_inside()?;
        if !inside.core.unexpected.is_empty() || inside.needs_reactor() {
            return None;
        }
        let buffer = self.buffer.take()?;
        let core = &mut inside.core;
        let key = core.post_receive(self.tag, self.mask, buffer.into(), self.unstaged);
        drop(inside);
        Some(key)
    }

    fn enter(&self, buffer: BufferMut) -> Result<OpKey, Box<Outcome>> {
        enter(self.worker.handle(), buffer, |engine, buffer| {
            post(engine, self.tag, self.mask, buffer, self.unstaged)
        })
    }
}

fn finish<B: ReceiveBuffer>(
    result: Result<operations::Arrival>,
    buffer: BufferMut,
) -> Result<Received<B>, OpError<B>> {
    match result {
        Ok(arrival) => Ok(arrival.into_received(B::restore(buffer))),
        Err(error) => Err(OpError::new(error, Some(B::restore(buffer)))),
    }
}

impl operations::Arrival {
    #[inline(always)]
    pub(super) fn into_received<B>(self, buffer: B) -> Received<B> {
        Received {
            buffer,
            len: self.length,
            tag: self.tag,
            from: self.from,
        }
    }
}

impl<B: ReceiveBuffer + Unpin> Future for TagRecv<'_, B> {
    type Output = Result<Received<B>, OpError<B>>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some((arrival, owed, begun)) = this.at_once()
            && let Some(buffer) = this.buffer.take()
        {
            if !owed.is_nothing() {
                begun.settle(owed);
            }
            begun.count(cx);
            return Poll::Ready(Ok(arrival.into_received(buffer)));
        }
        // A place of its own. What a call writes lies in memory, and would take what is returned above there too: written by fields and read by whole
        // registers, each of which waits until the processor's stores have left it.
        let mut waited = Poll::Pending;
        this.begin_and_wait(cx, &mut waited);
        waited
    }
}

impl<'a, B: ReceiveBuffer + Unpin> TagRecv<'a, B> {
    /// Takes a short message that lies in front.
    #[inline(always)]
    fn at_once(&mut self) -> Option<(operations::Arrival, Owed, Begun<'a>)> {
        // Nothing is left of one that has begun.
        let room = self.buffer.as_mut()?.own_run()?;
        if self.unstaged {
            return None;
        }
        let mut inside = self.worker.shared().owner_inside()?;
        let looks = inside.first_looks;
        let (arrival, owed) = inside.take_tagged(self.tag, self.mask, room, looks)?;
        Some((arrival, owed, inside.over()))
    }

    #[inline(never)]
    fn begin_and_wait(
        &mut self,
        cx: &mut Context<'_>,
        found: &mut Poll<Result<Received<B>, OpError<B>>>,
    ) {
        *found = match self.buffer.take() {
            Some(buffer) => self.begin(cx, buffer.into()),
            None => self.wait(cx),
        };
    }

    fn begin(
        &mut self,
        cx: &mut Context<'_>,
        mut buffer: BufferMut,
    ) -> Poll<Result<Received<B>, OpError<B>>> {
        if self.unstaged || buffer.is_on_device() {
            // Messages do not go straight into it, or not in any way.
            let begun = self.enter(buffer);
            let handle = self.worker.handle();
            let rare = self.rare.get_or_insert_default();
            let deadline = std::mem::take(&mut rare.deadline);
            rare.begun = Some(Op::new(handle, begun, deadline, Operation::TagRecv));
            return self.wait(cx);
        }
        let shared = self.worker.shared();
        let (tag, mask) = (self.tag, self.mask);
        let handle = self.worker.handle();
        let begun = shared.begin_taking(Operation::TagRecv, |engine, spent| {
            if spent {
                // Posted, so that receives match in the order in which they were first polled.
                let buffer = std::mem::take(&mut buffer);
                return Some(Found::Entered(post(engine, tag, mask, buffer, false)));
            }
            // The message may be here already: the hot path of a stream of short ones.
            look(engine, tag, mask, &mut buffer)
        });
        let (first, begun) = match begun {
            Ok(begun) => begun,
            Err(error) => return Poll::Ready(Err(OpError::new(error, Some(B::restore(buffer))))),
        };
        let mut first = match first {
            Some(Found::Here(result)) => {
                begun.count(cx);
                return Poll::Ready(finish(result, buffer));
            }
            first => first,
        };
        let lent = std::cell::RefCell::new(&mut buffer);
        let key = std::cell::Cell::new(None);
        let found = begun.drive(
            cx,
            |engine| match key.get() {
                // Entered at the end of the window, and something arrived while arming.
                Some(key) => {
                    if !engine.core.is_over(key) {
                        engine.core.take_waker(key);
                        engine.progress();
                    }
                    engine.core.is_over(key).then_some(Found::Entered(key))
                }
                None => first
                    .take()
                    .or_else(|| look(engine, tag, mask, &mut lent.borrow_mut())),
            },
            |engine, waker| {
                let entered = match key.get() {
                    Some(entered) => entered,
                    None => {
                        let buffer = std::mem::take(*lent.borrow_mut());
                        let entered = post(engine, tag, mask, buffer, false);
                        key.set(Some(entered));
                        entered
                    }
                };
                // It may be over: a message that a dropped receive put back during the last look, of which nobody else will tell.
                engine.core.leave_waker(entered, waker);
            },
        );
        match found {
            Poll::Ready(Found::Here(result)) => Poll::Ready(finish(result, buffer)),
            Poll::Ready(Found::Entered(key)) => {
                let rare = self.rare.get_or_insert_default();
                rare.begun(handle, key, Operation::TagRecv);
                self.wait(cx)
            }
            Poll::Pending => self.parked(cx, key.get()),
        }
    }

    /// Its waker is in the table.
    fn parked(
        &mut self,
        cx: &mut Context<'_>,
        key: Option<OpKey>,
    ) -> Poll<Result<Received<B>, OpError<B>>> {
        let Some(key) = key else {
            return Poll::Pending;
        };
        let handle = self.worker.handle();
        let rare = self.rare.get_or_insert_default();
        // The timer starts.
        let is_late = rare.deadline.is_over(&handle.shared, cx);
        rare.begun(handle, key, Operation::TagRecv);
        match is_late {
            true => self.wait(cx),
            false => Poll::Pending,
        }
    }

    /// Waits for one that is in the table.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<Received<B>, OpError<B>>> {
        match poll_begun(&mut self.rare, cx) {
            Some(outcome) => outcome.map(|outcome| Received::settle(Settled(outcome))),
            None => Poll::Ready(Received::of_error(wrong())),
        }
    }
}

impl<B: ReceiveBuffer + Unpin> fmt::Debug for TagRecv<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TagRecv")
            .field("tag", &self.tag)
            .field("mask", &self.mask)
            .finish_non_exhaustive()
    }
}

/// What is known of a message that has not been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ucp_tag_recv_info_t")]
pub struct MessageInfo {
    /// Length in bytes.
    pub len: usize,
    /// Its tag.
    pub tag: Tag,
    /// Who sent it.
    pub from: EndpointId,
}

/// Waits for a message and claims it; made by [`Worker::tag_matched`] and [`Endpoint::tag_matched`].
///
/// # Cancel safety
/// Cancel safe: dropped before it resolves, it takes no message with it.
#[must_use = "a matched receive does nothing unless awaited"]
#[derive(Debug)]
pub struct TagMatched<'a> {
    pub(super) handle: &'a Arc<Handle>,
    peer: Option<(LinkId, EndpointId)>,
    tag: Tag,
    mask: Mask,
    /// The claim.
    pub(super) begun: Option<Op<Outcome>>,
}

impl<'a> TagMatched<'a> {
    /// Of any peer, or of this one.
    pub(crate) fn new(
        handle: &'a Arc<Handle>,
        peer: Option<(LinkId, EndpointId)>,
        tag: Tag,
        mask: Mask,
    ) -> Self {
        Self {
            handle,
            peer,
            tag,
            mask,
            begun: None,
        }
    }

    /// Claims a message whose tag agrees in these bits, where without it all of them count.
    pub fn mask(mut self, mask: Mask) -> Self {
        self.mask = mask;
        self
    }
}

impl Future for TagMatched<'_> {
    type Output = Result<Matched>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Matched>> {
        let this = &mut *self;
        let handle = this.handle;
        if this.begun.is_none() {
            let (key, _) = handle.shared.begin(Operation::TagRecv, |engine| {
                engine.progress();
                let core = &mut engine.core;
                let key = core
                    .movers
                    .ctx
                    .operations
                    .insert(None, false, Work::Claim(None));
                if let Some(peer) = this.peer {
                    post_of_peer(engine, key, peer, this.tag, this.mask);
                } else if let Some(taken) = core.take_unexpected(this.tag, this.mask) {
                    core.movers.hand_over(key, taken.arrival, taken.message);
                } else {
                    let claim = Posted::Claim(key);
                    let post = core.posted.post(this.tag, this.mask, claim);
                    if let Some(entry) = core.movers.ctx.operations.get(key) {
                        *entry.work = Work::Claim(Some(post));
                    }
                    if engine.closing.is_some() {
                        let closed = engine.closed().during(Operation::TagRecv);
                        engine.core.fail_operation(key, closed);
                    }
                }
                key
            })?;
            let op = Op::waiting(handle, key, Deadline::None, Operation::TagRecv);
            this.begun = Some(op);
        }
        let Some(op) = &mut this.begun else {
            return Poll::Pending;
        };
        let outcome = std::task::ready!(Pin::new(op).poll(cx));
        Poll::Ready(match outcome {
            Outcome::Claimed(Ok(message)) => Ok(Matched {
                handle: handle.clone(),
                message: Some(*message),
            }),
            Outcome::Claimed(Err(error)) | Outcome::Done(Err(error)) => Err(error),
            _ => Err(wrong()),
        })
    }
}

/// A message that was claimed and not yet received. Dropping it puts the message back in its place.
///
/// A long message waits at its sender meanwhile, whose send is not over and whose endpoint cannot close: a claim that is kept and
/// forgotten holds both up until it is received, dropped, or this side closes the connection.
#[must_use = "a matched message that is dropped goes back to where it was"]
#[doc(alias = "ucp_tag_message_h")]
pub struct Matched {
    handle: Arc<Handle>,
    message: Option<(Order, Unexpected)>,
}

impl Matched {
    pub(crate) fn new(handle: &Arc<Handle>, order: Order, message: Unexpected) -> Self {
        Self {
            handle: handle.clone(),
            message: Some((order, message)),
        }
    }

    /// What is known of it.
    #[must_use]
    pub fn info(&self) -> MessageInfo {
        match &self.message {
            Some((_, message)) => info(message),
            None => MessageInfo {
                len: 0,
                tag: Tag(0),
                from: EndpointId(0),
            },
        }
    }

    /// Receives it.
    ///
    /// # Errors
    /// `Truncated` when the buffer is too short (the message is gone then), and what ends the connection.
    ///
    /// # Cancel safety
    /// Dropped, the message goes back to its place.
    #[doc(alias = "ucp_tag_msg_recv_nbx")]
    #[doc(alias = "ucp_tag_msg_recv_nb")]
    pub fn recv<B: ReceiveBuffer + Unpin>(mut self, buffer: B) -> Op<Received<B>> {
        let handle = self.handle.clone();
        let begun = enter(&handle, buffer.into(), |engine, buffer| {
            let core = &mut engine.core;
            let order = core.unexpected.arrival();
            let key = core.movers.ctx.enter_receive(buffer, None, order);
            if let Some((order, message)) = self.message.take() {
                let sender = core.movers.ctx.endpoint(message.link, message.from);
                let gone = matches!(message.body, Body::Announced(_))
                    && sender.is_none_or(|peer| !peer.is_alive());
                match gone {
                    true => core.fail_operation(key, sender_gone()),
                    false => core.movers.hand_over(key, order, message),
                }
            }
            key
        });
        Op::new(&handle, begun, Deadline::None, Operation::TagRecv)
    }

    /// Its bytes as they are here; `None`: they are elsewhere, and it is to be received.
    pub(super) fn take_bytes(&mut self) -> Option<Bytes> {
        let (order, message) = self.message.take()?;
        let taken = self
            .handle
            .shared
            .ask(|engine| engine.ctx().take_bytes(message));
        match taken? {
            Ok(bytes) => Some(bytes),
            Err(message) => {
                self.message = Some((order, message));
                None
            }
        }
    }
}

fn info(message: &Unexpected) -> MessageInfo {
    MessageInfo {
        len: message.len(),
        tag: message.tag,
        from: message.from,
    }
}

impl Drop for Matched {
    fn drop(&mut self) {
        if let Some((order, message)) = self.message.take() {
            self.handle
                .shared
                .ask(|engine| engine.core.restore(order, message));
        }
    }
}

impl fmt::Debug for Matched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matched")
            .field("info", &self.info())
            .finish_non_exhaustive()
    }
}
