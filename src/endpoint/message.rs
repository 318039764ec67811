//! An active message in the hands of its receiver.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;

use crate::{
    error::{Error, ErrorKind, OpError, Operation, Result},
    memory::{BufferMut, ReceiveBuffer},
    types::{AmId, EndpointId, LinkId, OpKey},
    worker::{
        Handle,
        aside::Deadline,
        ctx::{fill, truncated},
        device::admit_target,
        engine::Engine,
        inbox::{Arrived, Content, Front},
        operations::{Arrival, Outcome, wrong},
    },
};

use super::{
    Endpoint, Op,
    op::set_deadline,
    operation::{self, Completion, Settled, landed, refused, sealed},
};

/// An active message. Its header is here; so is its payload, unless it is announced: then it is with its sender still, and goes where
/// [`ActiveMessage::receive`] says.
///
/// Long payloads are announced, and those in memory of a device. Dropping an announced message rejects it: its sender gets an error of kind
/// `Rejected`. A short one always comes whole: with 512 KiB of its id under way or untaken it waits at its sender.
#[must_use = "dropping an announced message rejects it"]
#[doc(alias("ucp_am_recv_param_t", "ucp_am_recv_attr_t"))]
pub struct ActiveMessage {
    handle: Arc<Handle>,
    link: LinkId,
    from: EndpointId,
    id: AmId,
    /// Never in place.
    content: Content,
}

impl ActiveMessage {
    #[inline]
    pub(crate) fn new(handle: &Arc<Handle>, id: AmId, arrived: Arrived) -> Self {
        Self {
            handle: handle.clone(),
            link: arrived.link,
            from: arrived.from,
            id,
            content: arrived.content.kept(),
        }
    }

    /// The same of a message that lies where it arrived.
    #[inline(always)]
    pub(super) fn of_front(handle: &Arc<Handle>, id: AmId, front: Front) -> Self {
        Self {
            handle: handle.clone(),
            link: front.link,
            from: front.from,
            id,
            content: front.kept(),
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> AmId {
        self.id
    }

    /// The header that its sender gave.
    #[inline]
    #[must_use]
    pub fn header(&self) -> &[u8] {
        self.content.parts().0
    }

    /// Length of the payload in bytes. Of an announced one as its sender says; nothing is allocated for it before it is received.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.content {
            Content::Announced(announced) => announced.rts.length as usize,
            _ => self.data().map_or(0, <[u8]>::len),
        }
    }

    /// Whether the payload is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the payload is still with its sender.
    #[inline]
    #[must_use]
    #[doc(alias = "UCP_AM_RECV_ATTR_FLAG_RNDV")]
    pub fn is_announced(&self) -> bool {
        matches!(self.content, Content::Announced(_))
    }

    /// The payload where it lies; `None` when it is announced.
    #[inline]
    #[must_use]
    pub fn data(&self) -> Option<&[u8]> {
        self.content.parts().1
    }

    /// The endpoint that it came from: [`Worker::endpoint`](super::Worker::endpoint) knows it by this name.
    #[must_use]
    pub fn from(&self) -> EndpointId {
        self.from
    }

    /// The endpoint that it came from, to answer on, as [`Worker::endpoint`](super::Worker::endpoint) gives it. `None` when that is closed.
    #[must_use]
    #[doc(alias("UCP_AM_SEND_FLAG_REPLY", "UCP_AM_RECV_ATTR_FIELD_REPLY_EP"))]
    pub fn endpoint(&self) -> Option<Endpoint> {
        endpoint_of(&self.handle, self.link, self.from)
    }

    /// The payload as bytes: without a copy when it is here (save for up to 48 bytes, which were kept in place), else fetched into memory of
    /// its own. Look at [`ActiveMessage::len`] first where a sender is not trusted with as much memory as it likes.
    ///
    /// # Errors
    /// `Exhausted` when there is no memory for it, and what ends the connection.
    #[doc(alias("ucp_am_data_release", "UCP_AM_RECV_ATTR_FLAG_DATA"))]
    pub fn bytes(self) -> AmBytes {
        if let Some(bytes) = self.content.payload() {
            return AmBytes(Payload::Here(Some(Ok(bytes))));
        }
        AmBytes(match zeroes(self.len() as u64, Operation::AmRecv) {
            Ok(buffer) => Payload::Arriving(Box::new(self.receive(buffer))),
            Err(error) => Payload::Here(Some(Err(error))),
        })
    }

    /// Puts the payload into the front of `buffer`, which comes back.
    ///
    /// # Errors
    /// `Truncated` when the buffer is too short, which rejects an announced message; what ended the connection before or meanwhile.
    #[doc(alias = "ucp_am_recv_data_nbx")]
    pub fn receive<B: ReceiveBuffer + Unpin>(self, buffer: B) -> AmReceive<B> {
        AmReceive {
            handle: self.handle.clone(),
            message: Some(self),
            buffer: buffer.into(),
            unstaged: false,
            deadline: Deadline::None,
            begun: None,
            kind: PhantomData,
        }
    }

    /// Rejects an announced message: its sender gets an error of kind `Rejected` with the first 46 bytes of `reason`. Of one whose payload is
    /// here the sender hears nothing.
    pub fn reject(mut self, reason: &str) {
        self.refuse(reason);
    }

    #[cold]
    #[inline(never)]
    fn refuse(&mut self, reason: &str) {
        if let Content::Announced(announced) = std::mem::take(&mut self.content) {
            let (link, from) = (self.link, self.from);
            self.handle.shared.ask(|engine| {
                engine.ctx().am_reject(link, from, announced.rts.op, reason);
            });
        }
    }
}

/// The endpoint that a message came from, if it is open.
pub(super) fn endpoint_of(
    handle: &Arc<Handle>,
    link: LinkId,
    from: EndpointId,
) -> Option<Endpoint> {
    let open = handle.shared.ask(|engine| {
        let peer = engine.ctx().endpoint(link, from);
        peer.filter(|peer| peer.is_open())
            .map(|peer| peer.handles += 1)
    });
    open.flatten()
        .map(|()| Endpoint::new(handle.clone(), link, from))
}

/// Memory for a payload of a length that a peer says.
pub(super) fn zeroes(length: u64, operation: Operation) -> Result<Vec<u8>> {
    let exhausted = || {
        Error::new(
            ErrorKind::Exhausted,
            format!("no memory for a payload of {length} bytes"),
        )
        .during(operation)
    };
    let length = usize::try_from(length).map_err(|_| exhausted())?;
    // Asked first, since the one that is zero from the start, and untouched until bytes arrive, aborts when there is none.
    Vec::<u8>::new()
        .try_reserve_exact(length)
        .map_err(|error| exhausted().with_source(error))?;
    Ok(vec![0; length])
}

impl Drop for ActiveMessage {
    #[inline]
    fn drop(&mut self) {
        if self.is_announced() {
            self.refuse("");
        }
    }
}

impl fmt::Debug for ActiveMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActiveMessage")
            .field("id", &self.id)
            .field("from", &self.from)
            .field("header", &self.header().len())
            .field("len", &self.len())
            .field("announced", &self.is_announced())
            .finish_non_exhaustive()
    }
}

/// A payload in the buffer that was given for it.
#[derive(Debug)]
pub struct AmReceived<B> {
    /// The buffer; its first `len` bytes are the payload.
    pub buffer: B,
    /// Length of the payload in bytes.
    pub len: usize,
}

impl<B: ReceiveBuffer + Unpin> sealed::Sealed for AmReceived<B> {}
impl<B: ReceiveBuffer + Unpin> Completion for AmReceived<B> {
    type Output = Result<Self, OpError<B>>;
    fn settle(outcome: Settled) -> Self::Output {
        landed(outcome.0).map(|(arrival, buffer)| Self {
            buffer,
            len: arrival.length,
        })
    }
}

/// Receives the payload of an active message; made by [`ActiveMessage::receive`].
///
/// # Completion
/// Resolves when the whole payload is in the buffer.
///
/// # Cancel safety
/// It owns the message: dropped before its first poll it rejects an announced one; after it the transfer runs to its end into the buffer,
/// which is freed then, and the message is gone. To wait for something else meanwhile, poll it by reference.
#[must_use = "a receive does nothing unless awaited or posted"]
#[derive(Debug)]
pub struct AmReceive<B: ReceiveBuffer + Unpin> {
    handle: Arc<Handle>,
    message: Option<ActiveMessage>,
    buffer: BufferMut,
    unstaged: bool,
    deadline: Deadline,
    begun: Option<Op<AmReceived<B>>>,
    kind: PhantomData<fn() -> B>,
}

impl<B: ReceiveBuffer + Unpin> AmReceive<B> {
    /// Fails with `Unsupported` where its bytes would stop in pinned host memory between two memories, one of them a device's, as
    /// [`ContextBuilder::forbid_staging`](crate::ContextBuilder::forbid_staging) has it for all operations.
    pub fn forbid_staging(mut self) -> Self {
        self.unstaged = true;
        self
    }

    /// Fails with `DeadlineExceeded` after this long. A transfer that has begun goes on without it, and keeps the buffer.
    pub fn deadline(mut self, after: Duration) -> Self {
        set_deadline(&mut self.begun, &mut self.deadline, after);
        self
    }

    /// Begins to receive now, to be awaited later.
    pub fn post(mut self) -> Op<AmReceived<B>> {
        if let Some(op) = self.begun.take() {
            return op;
        }
        // Neither is there once it was over in its first poll.
        let over = || Err(Box::new(Outcome::Done(Err(wrong()))));
        let begun = self.begin().unwrap_or_else(over);
        self.op(begun)
    }

    fn op(&mut self, begun: Result<OpKey, Box<Outcome>>) -> Op<AmReceived<B>> {
        let deadline = std::mem::take(&mut self.deadline);
        Op::new(&self.handle, begun, deadline, Operation::AmRecv)
    }

    /// The first poll.
    fn begin(&mut self) -> Option<Result<OpKey, Box<Outcome>>> {
        let mut message = self.message.take()?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let unstaged = self.unstaged;
        let handle = &message.handle;
        if let Err(error) = admit_target(&handle.shared.context, &buffer, Operation::AmRecv) {
            return Some(Err(refused(error, buffer)));
        }
        if buffer.is_on_device()
            && message.len() <= buffer.len()
            && let Some(data) = message.content.payload()
        {
            let of = (message.link, message.from);
            let begin = |engine: &mut Engine, buffer| {
                engine.core.am_store(of, data.into(), (buffer, unstaged))
            };
            return Some(operation::begin(handle, Operation::AmRecv, buffer, begin));
        }
        if let Some(data) = message.data() {
            let result = fill(&mut buffer, data, message.from).map(|length| Arrival {
                length,
                tag: crate::Tag(0),
                from: message.from,
            });
            return Some(Err(Box::new(Outcome::Buffer(result, buffer))));
        }
        if message.len() > buffer.len() {
            let error = truncated(message.len() as u64, buffer.len());
            return Some(Err(refused(error, buffer)));
        }
        let Content::Announced(announced) = std::mem::take(&mut message.content) else {
            return None;
        };
        let (link, from, id) = (message.link, message.from, message.id);
        let begin = |engine: &mut Engine, buffer| {
            engine
                .core
                .am_fetch((link, from), id, announced.rts, (buffer, unstaged))
        };
        Some(operation::begin(handle, Operation::AmRecv, buffer, begin))
    }
}

impl<B: ReceiveBuffer + Unpin> Future for AmReceive<B> {
    type Output = Result<AmReceived<B>, OpError<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        match this.begin() {
            // Its bytes were here: told without a place aside.
            Some(Err(mut outcome)) => {
                outcome.during(Operation::AmRecv);
                return Poll::Ready(AmReceived::settle(Settled(*outcome)));
            }
            Some(begun) => this.begun = Some(this.op(begun)),
            None => {}
        }
        match &mut this.begun {
            Some(op) => Pin::new(op).poll(cx),
            None => Poll::Ready(Err(OpError::new(wrong(), None))),
        }
    }
}

/// The payload of an active message as bytes; made by [`ActiveMessage::bytes`].
///
/// # Completion
/// Resolves at once when the payload is here, else when it was fetched.
///
/// # Cancel safety
/// As [`AmReceive`].
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct AmBytes(Payload);

#[derive(Debug)]
enum Payload {
    Here(Option<Result<Bytes>>),
    Arriving(Box<AmReceive<Vec<u8>>>),
}

impl Future for AmBytes {
    type Output = Result<Bytes>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Bytes>> {
        match &mut self.0 {
            Payload::Here(bytes) => Poll::Ready(bytes.take().unwrap_or_else(|| Err(wrong()))),
            Payload::Arriving(receive) => {
                let received = ready!(Pin::new(receive).poll(cx))?;
                Poll::Ready(Ok(received.buffer.into()))
            }
        }
    }
}
