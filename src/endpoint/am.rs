//! Active messages on their way out: one by one, or through a sink.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::Sink;

use crate::{
    error::{Error, ErrorKind, OpError, Operation, Result},
    memory::{Buffer, SendBuffer},
    protocol::am,
    types::{AmId, OpKey, Tag},
    util::copy::copied,
    worker::{
        am::refused,
        device::admit_source,
        door::Begun,
        engine::Engine,
        operations::{self, SendStage, wrong},
        peer::Peer,
        ready::Line,
        verbs::am::{takes_header, try_am},
    },
};

use super::{
    Endpoint, Op,
    attempt::{Attempt, tried, try_send},
    handle::{InLine, ended, window},
    operation::{Completion, Settled},
    request::{First, Request, Verb},
};

/// What goes out.
struct Message<'a> {
    id: AmId,
    header: SendBuffer<'a>,
    payload: SendBuffer<'a>,
    unstaged: bool,
}

impl Message<'_> {
    /// Sends what is short where there are a credit and room.
    #[inline(always)]
    fn at_once<'e>(&self, endpoint: &'e Endpoint) -> Option<(Result<()>, Begun<'e>)> {
        let (header, payload) = (self.header.get().as_run()?, self.payload.get().as_run()?);
        let mut inside = endpoint.shared().owner_inside()?;
        let place = endpoint.place();
        let result = inside.ctx().am_at_once(place, self.id, header, payload)?;
        Some((result, inside.over()))
    }

    fn attempt(&self, endpoint: &Endpoint, engine: &mut Engine) -> Attempt {
        let (header, payload) = (self.header.get(), self.payload.get());
        let (link, id) = endpoint.place();
        let peer = match engine.ctx().endpoint(link, id) {
            Some(peer) if peer.is_open() => peer,
            peer => return Attempt::Over(Err(ended(peer, Operation::AmSend))),
        };
        if !takes_header(peer, header.len()) {
            return Attempt::Over(Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "a header of {} bytes; active messages take {} at most",
                    header.len(),
                    am::MAX_HEADER
                ),
            )
            .during(Operation::AmSend)));
        }
        if let (Some(header), Some(data)) = (header.as_run(), payload.as_run())
            && data.len() <= peer.eager
        {
            return tried(try_am(peer, self.id, header, data.len(), || data));
        }
        self.attempt_other(endpoint, peer)
    }

    /// One with a list, memory of a device, or a long payload.
    #[inline(never)]
    fn attempt_other(&self, endpoint: &Endpoint, peer: &mut Peer) -> Attempt {
        let (header, payload) = (self.header.get(), self.payload.get());
        if let Some(header) = header.as_slice()
            && payload.is_run_within(peer.eager)
        {
            let data = || payload.host();
            return tried(try_am(peer, self.id, header, payload.len(), data));
        }
        let header = header.check_reachable(Operation::AmSend);
        let context = &endpoint.shared().context;
        match header
            .and_then(|()| admit_source(context, peer, payload, self.unstaged, Operation::AmSend))
        {
            Ok(()) => Attempt::No,
            Err(error) => Attempt::Over(Err(error)),
        }
    }

    /// Puts the message into the table, which sends it when it can.
    fn enter(&mut self, endpoint: &Endpoint, engine: &mut Engine) -> OpKey {
        let send = operations::Send {
            tag: Tag(am::word(self.id, self.header.get().len())),
            buffer: self.payload.take(),
            sync: false,
            stage: SendStage::Queued,
            slot: None,
            cancelling: false,
            am: Some(self.header.take()),
        };
        engine
            .ctx()
            .am_enter(endpoint.place().0, send, self.unstaged)
    }
}

/// An active message on its way out; made by [`Endpoint::am_send`].
///
/// # Completion
/// Resolves when the message is on its way and its memory is free: at once for a short one that has a credit and finds room, when the receiver
/// has fetched it for a long one. A message that nobody receives is refused with an error of kind `Rejected`; where that is known only
/// after a short message has left, a [`Endpoint::flush`] that begins after the refusal has come back tells. A flush does not wait for it.
///
/// # Cancel safety
/// Before the first poll nothing is sent. After it the message is delivered whether or not this is dropped.
#[must_use = "a send does nothing unless awaited or posted"]
#[doc(alias = "ucp_am_send_nbx")]
pub struct AmSend<'a>(Request<Sending<'a>>);

struct Sending<'a> {
    endpoint: &'a Endpoint,
    message: Message<'a>,
}

impl<'a> AmSend<'a> {
    #[inline]
    pub(crate) fn new(
        endpoint: &'a Endpoint,
        id: AmId,
        header: SendBuffer<'a>,
        payload: SendBuffer<'a>,
    ) -> Self {
        let message = Message {
            id,
            header,
            payload,
            unstaged: false,
        };
        Self(Request::new(Sending { endpoint, message }))
    }

    /// Fails with `Unsupported` where its bytes would stop in pinned host memory between two memories, one of them a device's, as
    /// [`ContextBuilder::forbid_staging`](crate::ContextBuilder::forbid_staging) has it for all operations.
    /// Between processes a payload of up to 66 KiB finds the way to the receiver's device only where the receiver forbids it too. A receiver
    /// without such a way fails as well.
    pub fn forbid_staging(mut self) -> Self {
        self.0.verb.message.unstaged = true;
        self
    }

    /// Fails with `DeadlineExceeded` after this long. A message that has left by then is still delivered; one that waits for a credit, or for
    /// room, is withdrawn.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.0.set_deadline(after);
        self
    }

    /// Sends now, to be awaited later or not at all. A message without a credit waits for one in the order of its id.
    ///
    /// # Errors
    /// `WouldBlock` when the window of posted operations is full, `Rejected` when the peer has refused this id, `InvalidArgument` for a
    /// header that is too long, `Closed` and the like when the endpoint is. The payload comes back.
    #[inline]
    pub fn post(mut self) -> Result<Op<()>, OpError<Buffer>> {
        self.0.post()
    }
}

impl<'a> Verb<'a> for Sending<'a> {
    type Kind = ();
    type Refused = OpError<Buffer>;

    fn operation(&self) -> Operation {
        Operation::AmSend
    }
    #[inline(always)]
    fn endpoint(&self) -> &'a Endpoint {
        self.endpoint
    }
    #[inline(always)]
    fn at_once(&mut self, _window: usize) -> Option<(Result<u64>, Begun<'a>)> {
        let (result, begun) = self.message.at_once(self.endpoint)?;
        Some((result.map(|()| 0), begun))
    }

    fn begin(&mut self, engine: &mut Engine, is_posted: bool) -> Result<First> {
        let (endpoint, message) = (self.endpoint, &mut self.message);
        let attempt = |engine: &mut Engine| message.attempt(endpoint, engine);
        match try_send(engine, is_posted, attempt) {
            Attempt::Over(result) => return result.map(|()| First::Over(0)),
            _ if is_posted => window(engine, endpoint, Operation::AmSend)?,
            _ => {}
        }
        let key = message.enter(endpoint, engine);
        Ok(First::Entered(key))
    }

    fn refused(&mut self, error: Error) -> OpError<Buffer> {
        OpError::new(error, Some(self.message.payload.take()))
    }
}

impl Future for AmSend<'_> {
    type Output = Result<()>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.poll(cx)
    }
}

impl fmt::Debug for AmSend<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmSend")
            .field("id", &self.0.verb.message.id)
            .field("header", &self.0.verb.message.header.get().len())
            .field("len", &self.0.verb.message.payload.get().len())
            .finish_non_exhaustive()
    }
}

/// An active message whose bytes are copied; made by [`Endpoint::am_send_copy`].
///
/// # Completion
/// As [`AmSend`]. The bytes are read in the first poll, or by [`AmSendCopy::post`], and not after it.
///
/// # Cancel safety
/// As [`AmSend`].
#[must_use = "a send does nothing unless awaited or posted"]
pub struct AmSendCopy<'a>(Request<Copying<'a>>);

struct Copying<'a> {
    endpoint: &'a Endpoint,
    id: AmId,
    header: &'a [u8],
    payload: &'a [u8],
    /// What does not go at once.
    copy: Option<Sending<'a>>,
}

impl AmSendCopy<'_> {
    /// As [`AmSend::deadline`].
    pub fn deadline(mut self, after: Duration) -> Self {
        self.0.set_deadline(after);
        self
    }

    /// Sends now, to be awaited later or not at all; the bytes are free when this returns.
    ///
    /// # Errors
    /// As [`AmSend::post`].
    #[inline]
    pub fn post(mut self) -> Result<Op<()>> {
        self.0.post()
    }
}

impl<'a> Verb<'a> for Copying<'a> {
    type Kind = ();
    type Refused = Error;

    fn operation(&self) -> Operation {
        Operation::AmSend
    }
    #[inline(always)]
    fn endpoint(&self) -> &'a Endpoint {
        self.endpoint
    }
    #[inline(always)]
    fn at_once(&mut self, _window: usize) -> Option<(Result<u64>, Begun<'a>)> {
        let mut inside = self.endpoint.shared().owner_inside()?;
        let place = self.endpoint.place();
        let sent = inside
            .ctx()
            .am_at_once(place, self.id, self.header, self.payload)?;
        Some((sent.map(|()| 0), inside.over()))
    }

    /// Before the worker is entered.
    fn check(&mut self) -> Result<()> {
        self.copy = Some(Sending {
            endpoint: self.endpoint,
            message: Message {
                id: self.id,
                header: copied(self.header).into(),
                payload: copied(self.payload).into(),
                unstaged: false,
            },
        });
        Ok(())
    }

    fn begin(&mut self, engine: &mut Engine, is_posted: bool) -> Result<First> {
        match &mut self.copy {
            Some(copy) => copy.begin(engine, is_posted),
            None => Err(wrong()),
        }
    }

    fn refused(&mut self, error: Error) -> Error {
        error
    }
}

impl Future for AmSendCopy<'_> {
    type Output = Result<()>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.poll(cx)
    }
}

impl fmt::Debug for AmSendCopy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmSendCopy")
            .field("id", &self.0.verb.id)
            .field("header", &self.0.verb.header.len())
            .field("len", &self.0.verb.payload.len())
            .finish_non_exhaustive()
    }
}

/// Active messages of one id as a [`Sink`], of payloads or of pairs of header and payload; made by [`Endpoint::am_sink`].
///
/// `poll_ready` is the admission: it waits until the peer takes another message of this id (credits) and the endpoint has a place for
/// it (window). `poll_flush` and `poll_close` wait until the messages of this sink are on their way, long ones until they were
/// fetched, and say what became of those that failed.
///
/// # Cancel safety
/// Messages that were started are delivered whether or not the sink is dropped.
#[must_use = "a sink does nothing unless it is fed"]
#[derive(Debug)]
pub struct AmSink {
    /// Where its waker waits for room.
    waits: InLine<Endpoint>,
    id: AmId,
    /// Messages that have not left, or whose payload has not been fetched.
    pending: VecDeque<OpKey>,
}

impl AmSink {
    pub(crate) fn new(endpoint: Endpoint, id: AmId) -> Self {
        Self {
            waits: InLine::new(endpoint, Line::Ready),
            id,
            pending: VecDeque::new(),
        }
    }

    /// Takes off what has ended, from the front.
    fn reap(pending: &mut VecDeque<OpKey>, engine: &mut Engine) -> Result<()> {
        while let Some(&key) = pending.front()
            && let Some(outcome) = engine.core.take_outcome(key)
        {
            pending.pop_front();
            <()>::settle(Settled(outcome))?;
        }
        Ok(())
    }

    /// The admission, whichever kind of item follows: ready when a message would leave at once.
    ///
    /// # Errors
    /// What became of an earlier message that failed; `Rejected` when the peer has refused the id; what ended the connection.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let Self { waits, id, pending } = self;
        let endpoint = &waits.endpoint;
        let shared = endpoint.shared();
        let begun = ready!(shared.look(Operation::AmSend, cx))?;
        let window = shared.ops_window;
        let (link, own) = endpoint.place();
        let mut first = true;
        begun.drive(
            cx,
            |engine| {
                if !std::mem::take(&mut first) {
                    engine.progress();
                }
                if let Err(error) = Self::reap(pending, engine) {
                    return Some(Err(error));
                }
                let peer = match engine.ctx().endpoint(link, own) {
                    Some(peer) if peer.is_open() => peer,
                    peer => return Some(Err(ended(peer, Operation::AmSend))),
                };
                let room = peer.posted < window;
                let out = peer.am.outbound(*id);
                if out.refused {
                    return Some(Err(refused()));
                }
                (room && out.admits()).then_some(Ok(()))
            },
            |engine, waker| {
                if let Some(peer) = engine.ctx().endpoint(link, own) {
                    let before = peer.ready.leave(&mut waits.ticket, waker);
                    engine.ctx().drop_later(before);
                }
            },
        )
    }

    fn start(&mut self, header: Buffer, payload: Buffer) -> Result<()> {
        let mut message = Message {
            id: self.id,
            header: header.into(),
            payload: payload.into(),
            unstaged: false,
        };
        let endpoint = &self.waits.endpoint;
        if let Some((result, _)) = message.at_once(endpoint) {
            return result;
        }
        let begun = endpoint.shared().begin(Operation::AmSend, |engine| {
            if let Attempt::Over(result) = message.attempt(endpoint, engine) {
                return result.map(|()| None);
            }
            Ok(Some(message.enter(endpoint, engine)))
        });
        self.pending.extend(begun?.0?);
        Ok(())
    }

    fn poll_pending(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        while let Some(&key) = self.pending.front() {
            let outcome = ready!(self.waits.endpoint.shared().poll_outcome(cx, key));
            self.pending.pop_front();
            <()>::settle(Settled(outcome))?;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for AmSink {
    fn drop(&mut self) {
        // They go on without it.
        for key in self.pending.drain(..) {
            self.waits.endpoint.shared().drop_future(key);
        }
    }
}

impl Sink<Buffer> for AmSink {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Self::poll_ready(&mut self, cx)
    }
    fn start_send(mut self: Pin<&mut Self>, payload: Buffer) -> Result<()> {
        self.start(Buffer::new(), payload)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll_pending(cx)
    }
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll_pending(cx)
    }
}

impl Sink<(Buffer, Buffer)> for AmSink {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Self::poll_ready(&mut self, cx)
    }
    fn start_send(mut self: Pin<&mut Self>, (header, payload): (Buffer, Buffer)) -> Result<()> {
        self.start(header, payload)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll_pending(cx)
    }
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll_pending(cx)
    }
}

impl Endpoint {
    /// Longest header of an active message, in bytes.
    pub const AM_MAX_HEADER: usize = am::MAX_HEADER;

    /// Sends an active message: a header of up to [`Endpoint::AM_MAX_HEADER`] bytes, which is there as soon as the message is, and a
    /// payload of any length, which goes along when it is short and is fetched by the receiver when it is long.
    ///
    /// Messages of one id arrive in the order in which their sends were first polled or posted. Of each id as many leave as the receiver has
    /// given credits for, 16 to begin with, and of those that are not announced no more than 512 KiB that are untaken; more wait, for messages of
    /// their own id alone.
    ///
    /// # Errors
    /// `Rejected` when nobody receives the id or the receiver does not want the payload, `InvalidArgument` for a header that is too
    /// long, and what ends the connection; `Closed` on a closed endpoint.
    #[doc(alias(
        "ucp_am_send_nb",
        "ucp_am_send_nbx",
        "UCP_AM_SEND_FLAG_EAGER",
        "UCP_AM_SEND_FLAG_RNDV",
        "UCP_AM_SEND_FLAG_COPY_HEADER"
    ))]
    #[inline]
    pub fn am_send<'a>(
        &'a self,
        id: impl Into<AmId>,
        header: impl Into<SendBuffer<'a>>,
        payload: impl Into<SendBuffer<'a>>,
    ) -> AmSend<'a> {
        AmSend::new(self, id.into(), header.into(), payload.into())
    }

    /// Sends a copy of `header` and `payload`, as [`Endpoint::am_send`] sends what it is given. A short message goes straight from where they are, and allocates
    /// nothing, where the peer has given a credit and there is room.
    ///
    /// # Errors
    /// As [`Endpoint::am_send`].
    #[inline]
    pub fn am_send_copy<'a>(
        &'a self,
        id: impl Into<AmId>,
        header: &'a [u8],
        payload: &'a [u8],
    ) -> AmSendCopy<'a> {
        AmSendCopy(Request::new(Copying {
            endpoint: self,
            id: id.into(),
            header,
            payload,
            copy: None,
        }))
    }

    /// Active messages of one id as a [`Sink`] of [`Buffer`] (payloads) or of `(Buffer, Buffer)` (header and payload).
    pub fn am_sink(&self, id: impl Into<AmId>) -> AmSink {
        AmSink::new(self.clone(), id.into())
    }
}
