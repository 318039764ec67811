//! An endpoint: one connection, as the user holds it.

use std::{
    borrow::Borrow,
    fmt,
    future::Future,
    hash::{Hash, Hasher},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project::pin_project;

use crate::{
    error::{CloseReason, Error, ErrorKind, Operation, Result},
    protocol::goodbye::Leaves,
    transport::channel::PeerCredentials,
    types::{EndpointId, Identity, LinkId, MemoryType, WorkerId},
    worker::{Explanation, Handle, engine::Engine, peer::Peer, ready::Line, shared::Shared},
};

/// A connection to one peer. A cheap clone; the last clone's drop closes it once all that was sent has gone. A peer that does not take it is cut off after an
/// hour, unless an operation is still held here; one that does not hang up then, a minute later, or when its puts and gets here are over, within an hour.
#[derive(Clone)]
#[doc(alias = "ucp_ep_h")]
pub struct Endpoint {
    inner: Arc<Inner>,
}

struct Inner {
    handle: Arc<Handle>,
    link: LinkId,
    id: EndpointId,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.handle.shared.release_endpoint(self.link, self.id);
    }
}

/// An endpoint that it does not keep open.
#[cfg(feature = "hyper")]
#[derive(Clone)]
pub(super) struct WeakEndpoint(std::sync::Weak<Inner>);

#[cfg(feature = "hyper")]
impl WeakEndpoint {
    pub(super) fn upgrade(&self) -> Option<Endpoint> {
        self.0.upgrade().map(|inner| Endpoint { inner })
    }
}

/// The handles of one end of a connection are the same, however they were had: clones, and what
/// [`Worker::endpoint`](crate::Worker::endpoint) gives.
impl PartialEq for Endpoint {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let worker = |endpoint: &Self| Arc::as_ptr(&endpoint.inner.handle);
        self.id() == other.id() && worker(self) == worker(other)
    }
}

impl Eq for Endpoint {}

impl Hash for Endpoint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (Arc::as_ptr(&self.inner.handle), self.id()).hash(state);
    }
}

impl Endpoint {
    pub(crate) fn new(handle: Arc<Handle>, link: LinkId, id: EndpointId) -> Self {
        Self {
            inner: Arc::new(Inner { handle, link, id }),
        }
    }

    #[cfg(feature = "hyper")]
    pub(super) fn downgrade(&self) -> WeakEndpoint {
        WeakEndpoint(Arc::downgrade(&self.inner))
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Shared {
        &self.inner.handle.shared
    }
    #[inline]
    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.inner.handle
    }
    #[inline]
    pub(crate) fn place(&self) -> (LinkId, EndpointId) {
        (self.inner.link, self.inner.id)
    }

    fn ask<R>(&self, question: impl FnOnce(&Peer) -> R) -> Option<R> {
        let (link, id) = self.place();
        self.shared()
            .ask(|engine| engine.ctx().endpoint(link, id).map(|peer| question(peer)))
            .flatten()
    }

    pub(crate) fn identity(&self) -> Result<Identity> {
        self.ask(|peer| peer.info.identity.clone())
            .ok_or_else(crate::worker::send::closed)
    }

    /// Whether there may be a way between device memories of both ends.
    pub(crate) fn reaches_devices(&self) -> bool {
        self.ask(Peer::reaches_devices).unwrap_or(false)
    }

    /// As of the connection.
    #[cold]
    pub(crate) fn has_rails(&self) -> bool {
        self.ask(Peer::has_rails).unwrap_or(false)
    }

    /// Whether the other end is the worker itself.
    pub(crate) fn is_own(&self) -> bool {
        self.ask(Peer::is_own).unwrap_or(false)
    }

    /// The name by which received messages call this endpoint.
    #[must_use]
    pub fn id(&self) -> EndpointId {
        self.inner.id
    }

    /// The worker at the other end, which proved that it is it.
    #[must_use]
    pub fn peer(&self) -> Option<WorkerId> {
        self.ask(|peer| peer.worker)
    }

    /// The peer's end of the TCP or RDMA connection that the two met over: the address that was
    /// dialled, or dialled from. Messages may go another way, over shared memory for one. `None`:
    /// they met over the Unix socket of this host, where a worker's address leads, or the
    /// connection has ended.
    #[must_use]
    #[doc(alias = "UCP_EP_ATTR_FIELD_REMOTE_SOCKADDR")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.ask(|peer| peer.info.origin.peer).flatten()
    }

    /// This side's end of that connection, which is the [`peer_addr`](Self::peer_addr) of the other
    /// side's endpoint where nothing between them translates addresses. `None` as there.
    #[must_use]
    #[doc(alias = "UCP_EP_ATTR_FIELD_LOCAL_SOCKADDR")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.ask(|peer| peer.info.origin.local).flatten()
    }

    /// The peer's process, user and group, as the kernel recorded them when the connection was made
    /// over the Unix socket of this host; it may have begun at an address. `None`: it was made
    /// another way, or has ended.
    #[must_use]
    pub fn peer_credentials(&self) -> Option<PeerCredentials> {
        self.ask(|peer| peer.info.origin.process).flatten()
    }

    /// The transports in use, the one that carries messages first.
    #[must_use]
    #[doc(alias = "ucp_ep_query")]
    #[doc(alias("ucp_ep_attr_t", "ucp_transports_t", "ucp_transport_entry_t"))]
    pub fn transports(&self) -> Vec<&'static str> {
        self.ask(|peer| peer.transports.clone()).unwrap_or_default()
    }

    /// The certificates that the peer has shown over TLS, its own first; all of them have passed this side's verifier. `None`: the peer was asked for none, the
    /// connection goes by shared memory, or it has ended.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn peer_certificates(&self) -> Option<Arc<[rustls::pki_types::CertificateDer<'static>]>> {
        self.ask(|peer| peer.info.certificates.clone()).flatten()
    }

    /// How an operation of `length` bytes on this endpoint goes from memory of one type into memory of another, and why no better way: what moves the bytes in
    /// [`Explanation::plans`], and all of it in words. The transfer asks the same functions. Of a get `from` is the peer's memory, else this side's; of a copy
    /// ([`Worker::explain_copy`](crate::Worker::explain_copy)) both are. Nothing moves, and nothing is opened for it.
    ///
    /// Said of one run of bytes at either end, and for messages of no header. Of blocks and of lists with device memory, all are staged.
    ///
    /// Several plans are given where it depends on what is known only when the bytes are to go: whether wharf allocated the memory and the peer has mapped it, what
    /// network devices have registered, what the peer's engine can open. Which way of long messages is the faster is measured by their receiver, and
    /// known to this side of those that it has received.
    #[must_use]
    #[doc(alias(
        "ucp_ep_print_info",
        "ucp_ep_evaluate_perf",
        "ucp_ep_evaluate_perf_param_t",
        "ucp_ep_evaluate_perf_attr_t",
        "ucp_request_query",
        "ucp_request_attr_t",
        "UCX_PROTO_INFO"
    ))]
    pub fn explain(
        &self,
        operation: Operation,
        from: MemoryType,
        to: MemoryType,
        length: usize,
    ) -> Explanation {
        let (link, id) = self.place();
        let explained = self.shared().ask(|engine| {
            engine.ctx().endpoint(link, id)?;
            engine.movers().explain(link, (operation, from, to), length)
        });
        let Some(explained) = explained.flatten() else {
            return Explanation::never("the endpoint is closed");
        };
        explained.with_unavailable(&self.transports(), self.shared().context.unavailable())
    }

    /// Closes the connection: what was sent goes out first, and the peer says that it has read it. So this waits for what waits for the peer: a
    /// long or synchronous message until it is received there.
    ///
    /// The other end may still send meanwhile: its short messages arrive, and its puts and gets are served. A long or synchronous message of
    /// its own that nobody has received when this end is done ends with an error at its sender. So does one on an endpoint to oneself, at once.
    ///
    /// # Errors
    /// What ended the connection instead.
    ///
    /// # Cancel safety
    /// Dropped, the closing goes on.
    #[doc(alias = "ucp_ep_close_nbx")]
    #[doc(alias("ucp_ep_close_nb", "ucp_ep_destroy", "ucp_disconnect_nb"))]
    pub async fn close(&self) -> Result<()> {
        self.close_as(None).await
    }

    /// As [`Endpoint::close`], and tells the peer why: a code, which means what the two programs have agreed on, and words for people, cut after 255 bytes. All
    /// that ends with the connection at the peer says both: [`Error::close_reason`].
    ///
    /// # Errors
    /// As [`Endpoint::close`].
    ///
    /// # Cancel safety
    /// As [`Endpoint::close`].
    pub async fn close_with(&self, code: u32, reason: &str) -> Result<()> {
        self.close_as(Some(CloseReason::new(code, reason))).await
    }

    async fn close_as(&self, reason: Option<CloseReason>) -> Result<()> {
        let (link, id) = self.place();
        self.shared().begin(Operation::Close, |engine| {
            engine.begin_close(link, id, Leaves::Closed, reason);
        })?;
        let reason = Ending(InLine::new(self, Line::Ending)).await;
        match reason {
            Some(error) if !matches!(error.kind(), ErrorKind::ClosedByPeer | ErrorKind::Closed) => {
                Err(error.during(Operation::Close))
            }
            _ => Ok(()),
        }
    }

    /// Ends the connection at once. Operations under way end with `Closed`; the peer's with `AbortedByPeer`, or where the link had no room for that word with
    /// `ConnectionReset`.
    #[doc(alias(
        "UCP_EP_CLOSE_FLAG_FORCE",
        "UCP_EP_CLOSE_MODE_FORCE",
        "ucp_ep_close_flags_t"
    ))]
    pub fn abort(&self) {
        let (link, id) = self.place();
        let error = Error::new(ErrorKind::Closed, "the endpoint was aborted");
        self.shared().ask(|engine| engine.abort(link, id, error));
    }

    /// Waits until the connection has ended, and says why.
    ///
    /// # Cancel safety
    /// Cancel safe.
    #[doc(alias(
        "ucp_err_handler_t",
        "ucp_err_handling_mode_t",
        "UCP_ERR_HANDLING_MODE_PEER",
        "UCP_ERR_HANDLING_MODE_NONE",
        "UCP_ERR_HANDLING_MODE_FAILOVER"
    ))]
    pub fn closed(&self) -> Closed<'_> {
        Closed {
            ending: Ending(InLine::new(self, Line::Ending)),
        }
    }

    /// Waits for a place: in the window of posted operations, and on the link. An operation that is posted right then finds one, unless
    /// another task was faster.
    ///
    /// Where `.await` waits by itself, `.post()` fails with `WouldBlock` when the window is full; this tells when to try again.
    pub fn ready(&self) -> Ready<'_> {
        Ready(InLine::new(self, Line::Ready))
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("id", &self.inner.id)
            .field("transports", &self.transports())
            .finish_non_exhaustive()
    }
}

/// Operations of an endpoint that may be posted and not over.
#[inline]
pub(super) fn window_of(endpoint: &Endpoint) -> usize {
    endpoint.shared().ops_window
}

pub(super) fn window(engine: &mut Engine, endpoint: &Endpoint, operation: Operation) -> Result<()> {
    let (link, id) = endpoint.place();
    let window = window_of(endpoint);
    match engine.ctx().endpoint(link, id) {
        Some(peer) if peer.is_open() && peer.posted >= window => Err(Error::new(
            ErrorKind::WouldBlock,
            "the window of posted operations is full",
        )
        .during(operation)),
        Some(peer) if peer.is_open() => Ok(()),
        peer => Err(ended(peer, operation)),
    }
}

#[inline]
pub(super) fn alive(engine: &mut Engine, endpoint: &Endpoint, operation: Operation) -> Result<()> {
    let (link, id) = endpoint.place();
    match engine.ctx().endpoint(link, id) {
        Some(peer) if peer.is_open() => Ok(()),
        peer => Err(ended(peer, operation)),
    }
}

/// Why nothing begins on a connection any more.
#[cold]
pub(super) fn ended(peer: Option<&mut Peer>, operation: Operation) -> Error {
    peer.and_then(|peer| peer.error())
        .unwrap_or_else(crate::worker::send::closed)
        .during(operation)
}

/// Waits for the end of a connection; made by [`Endpoint::closed`].
///
/// # Completion
/// Resolves when the connection is over, with the reason: `ClosedByPeer` when the peer closed it in order, `AbortedByPeer` when it aborted it, `ConnectionReset` when it broke, `PeerDied` when its process ended,
/// `Unreachable` when its host, or the way there, fell silent, `Closed` when this side broke it off.
///
/// # Cancel safety
/// Cancel safe.
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
#[pin_project]
pub struct Closed<'a> {
    #[pin]
    ending: Ending<'a>,
}

impl Future for Closed<'_> {
    type Output = Error;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Error> {
        self.project().ending.poll(cx).map(|reason| {
            reason.unwrap_or_else(|| Error::new(ErrorKind::Closed, "the endpoint is closed"))
        })
    }
}

/// A future's place in a line of its connection's, which it gives up when it goes.
#[derive(Debug)]
pub(super) struct InLine<E: Borrow<Endpoint>> {
    pub(super) endpoint: E,
    pub(super) line: Line,
    pub(super) ticket: Option<u64>,
}

impl<E: Borrow<Endpoint>> InLine<E> {
    pub(super) fn new(endpoint: E, line: Line) -> Self {
        Self {
            endpoint,
            line,
            ticket: None,
        }
    }
}

impl<E: Borrow<Endpoint>> Drop for InLine<E> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let endpoint = self.endpoint.borrow();
            let shared = endpoint.shared();
            shared.forget(endpoint.place(), self.line, ticket);
        }
    }
}

/// The end of a connection. `None`: so long ago that the reason is forgotten.
#[derive(Debug)]
struct Ending<'a>(InLine<&'a Endpoint>);

impl Future for Ending<'_> {
    type Output = Option<Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Error>> {
        let this = &mut self.0;
        let (link, id) = this.endpoint.place();
        match ready!(this.endpoint.shared().look(Operation::Close, cx)) {
            Ok(begun) => begun.poll_closed(cx, (link, id), &mut this.ticket),
            Err(error) => Poll::Ready(Some(error)),
        }
    }
}

/// Waits for a place for another operation; made by [`Endpoint::ready`].
///
/// # Completion
/// Resolves when fewer operations than `WHARF_OPS_WINDOW` are posted and not over, and the link takes more: at most a few wait for room on it.
/// With an error when the endpoint is closed or its connection over.
///
/// # Cancel safety
/// Cancel safe. It reserves nothing, and takes nothing with it.
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct Ready<'a>(InLine<&'a Endpoint>);

impl Future for Ready<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut self.0;
        let (link, id) = this.endpoint.place();
        let shared = this.endpoint.shared();
        // What it waits for is another operation's place, whichever that will be.
        let begun = ready!(shared.look(Operation::TagSend, cx))?;
        begun.poll_ready(cx, (link, id), &mut this.ticket)
    }
}
