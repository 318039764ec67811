//! Byte streams of all peers, for a service.

use std::{
    fmt,
    future::poll_fn,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

#[cfg(feature = "tls")]
use std::sync::Arc;

use futures::{Stream, StreamExt, stream::SelectAll};
use tokio::{sync::Mutex, task::JoinSet};

use crate::{
    endpoint::{AcceptedStreams, ByteStream, Endpoint, Worker},
    error::{Error, ErrorKind, Operation, Result},
    transport::channel::PeerCredentials,
    types::{EndpointId, WorkerId},
    worker::connect,
};

use super::requests::Listener;

/// Accepts byte streams of all peers that connect to a [`Listener`], as a `TcpListener` accepts connections.
///
/// A [`Stream`] of [`ByteStream`], which is what `tonic::transport::Server::serve_with_incoming` takes (feature `tonic`), and with feature `axum` a listener for
/// `axum::serve`. At the other end [`Endpoint::stream`] opens one, or a `StreamConnector` (feature `hyper`).
///
/// ```
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use wharf::{Context, StreamListener, Worker};
///
/// let context = Context::builder().transports("shm")?.build()?;
/// let (server, client) = (Worker::new(&context)?, Worker::new(&context)?);
/// let listener = StreamListener::new(server.listen("127.0.0.1:0").await?);
/// let address = listener.local_addr();
/// let serving = tokio::spawn(async move {
///     let (mut stream, from) = listener.accept().await?;
///     println!("{from}");
///     stream.write_all(b"hello").await?;
///     std::io::Result::Ok(())
/// });
///
/// // Nothing is accepted before this end opens a stream.
/// let endpoint = client.connect(address).await?;
/// let mut text = String::new();
/// endpoint.stream().await?.read_to_string(&mut text).await?;
/// assert_eq!(text, "hello");
/// serving.await??;
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// #     tokio::spawn(async { run().await.map_err(|error| error.to_string()) }).await.unwrap().unwrap();
/// # });
/// ```
///
/// # Connections and streams
/// A peer is connected once and opens as many streams as it likes; each is accepted by itself, those of one connection in the order in which they were
/// opened, and no peer's come before those of another for long. A peer that opens none holds a connection, of which there are at most as many as
/// [may be](crate::config::Limits), and is accepted never.
///
/// # Handshakes
/// They are made side by side, by tasks on the worker's runtime: whoever is slow, or connects and says nothing, holds up nobody. At once there are at most 128 over
/// TCP and as many over shared memory, of which one source has 96; beyond these who is silent gives way. One that fails concerns its peer alone: it is logged
/// (target `wharf::wireup`, level `debug`), and no error here.
///
/// # Ends
/// It ends when the worker is shut down or its runtime has ended. Where only the listener has ended (its RDMA device is gone), streams of peers that are connected
/// are accepted until these have gone. Dropped, it stops listening, breaks off handshakes, and closes connections that have no open stream and that nothing else
/// holds; streams that were accepted stay, and with them their connections, on which nobody accepts then what the peer opens further.
pub struct StreamListener {
    worker: Worker,
    address: SocketAddr,
    accepting: Mutex<Accepting>,
}

/// Everything on its way to be accepted.
struct Accepting {
    /// `None` once it has ended.
    listener: Option<Listener>,
    handshakes: JoinSet<Result<Endpoint>>,
    connections: SelectAll<AcceptedStreams>,
}

impl StreamListener {
    /// Accepts the streams of all whom this listener would let in.
    #[must_use]
    pub fn new(listener: Listener) -> Self {
        Self {
            worker: listener.worker.clone(),
            address: listener.local_addr(),
            accepting: Mutex::new(Accepting {
                listener: Some(listener),
                handshakes: JoinSet::new(),
                connections: SelectAll::new(),
            }),
        }
    }

    /// As [`Listener::local_addr`].
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next stream that any peer opens, and says whose it is. Several tasks may: each stream is one's.
    ///
    /// # Errors
    /// `Closed` when the worker was shut down, or the listener has ended and all peers with it. What goes wrong with one peer is none.
    ///
    /// # Cancel safety
    /// Cancel safe: no stream is lost.
    pub async fn accept(&self) -> Result<(ByteStream, StreamAddr)> {
        let next = async {
            let mut accepting = self.accepting.lock().await;
            Ok(poll_fn(|cx| accepting.poll_next(cx, &self.worker)).await)
        };
        let next = self.worker.shared().unless_stopped(Operation::Accept, next);
        match next.await? {
            Some(stream) => {
                let from = StreamAddr::of(stream.endpoint());
                Ok((stream, from))
            }
            None => {
                let text = "the listener has ended, and so have all connections that it made";
                Err(Error::new(ErrorKind::Closed, text).during(Operation::Accept))
            }
        }
    }
}

impl Accepting {
    fn poll_next(&mut self, cx: &mut Context<'_>, worker: &Worker) -> Poll<Option<ByteStream>> {
        while let Some(listener) = &mut self.listener {
            match listener.poll_request(cx) {
                Poll::Ready(Some(request)) => {
                    let (worker, shared) = (worker.clone(), worker.shared());
                    let accepts = async move {
                        let shared = worker.shared();
                        let accepts = connect::accept_in_turn(shared, request, true);
                        let place = shared.unless_stopped(Operation::Accept, accepts).await?;
                        Ok(worker.endpoint_of(place))
                    };
                    self.handshakes.spawn_on(accepts, &shared.runtime);
                }
                Poll::Ready(None) => self.listener = None,
                Poll::Pending => break,
            }
        }
        while let Poll::Ready(Some(made)) = self.handshakes.poll_join_next(cx) {
            match made {
                Ok(Ok(endpoint)) => self.connections.push(AcceptedStreams::new(endpoint)),
                Ok(Err(error)) => {
                    tracing::debug!(target: "wharf::wireup", %error, "a connection was not made");
                }
                Err(error) => {
                    tracing::debug!(target: "wharf::wireup", %error, "a handshake has ended with its runtime");
                }
            }
        }
        match self.connections.poll_next_unpin(cx) {
            Poll::Ready(Some(stream)) => Poll::Ready(Some(stream)),
            // None is there now.
            Poll::Ready(None) if self.listener.is_none() && self.handshakes.is_empty() => {
                Poll::Ready(None)
            }
            _ => Poll::Pending,
        }
    }
}

impl Stream for StreamListener {
    type Item = Result<ByteStream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self {
            worker, accepting, ..
        } = &mut *self;
        let next = accepting.get_mut().poll_next(cx, worker);
        next.map(|stream| stream.map(Ok))
    }
}

impl fmt::Debug for StreamListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamListener")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Who is at the other end of a [`ByteStream`], as far as this side knows by more than the peer's own words. What has ended with the connection is `None`.
///
/// With feature `axum` handlers have it as `ConnectInfo<StreamAddr>`, with feature `tonic` in the request's extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamAddr {
    worker: Option<WorkerId>,
    endpoint: Option<EndpointId>,
    peer_addr: Option<SocketAddr>,
    peer_credentials: Option<PeerCredentials>,
    #[cfg(feature = "tls")]
    certificates: Option<Arc<[rustls::pki_types::CertificateDer<'static>]>>,
}

impl StreamAddr {
    pub(super) fn of(endpoint: &Endpoint) -> Self {
        Self {
            worker: endpoint.peer(),
            endpoint: Some(endpoint.id()),
            peer_addr: endpoint.peer_addr(),
            peer_credentials: endpoint.peer_credentials(),
            #[cfg(feature = "tls")]
            certificates: endpoint.peer_certificates(),
        }
    }

    /// The end that listens, for who asks in the same words.
    #[cfg(feature = "axum")]
    pub(super) fn of_listener(listener: &StreamListener) -> Self {
        Self {
            worker: Some(listener.worker.id()),
            endpoint: None,
            peer_addr: Some(listener.address),
            peer_credentials: None,
            #[cfg(feature = "tls")]
            certificates: None,
        }
    }

    /// The worker at the other end, which has proved that it is it.
    #[must_use]
    pub fn worker(&self) -> Option<WorkerId> {
        self.worker
    }

    /// The connection that the stream is one of, for [`Worker::endpoint`]. `None`: this is where a listener listens.
    #[must_use]
    pub fn endpoint(&self) -> Option<EndpointId> {
        self.endpoint
    }

    /// As [`Endpoint::peer_addr`]; where a listener listens, its address.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer_addr
    }

    /// As [`Endpoint::peer_credentials`].
    #[must_use]
    pub fn peer_credentials(&self) -> Option<PeerCredentials> {
        self.peer_credentials
    }

    /// As [`Endpoint::peer_certificates`].
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn peer_certificates(&self) -> Option<&[rustls::pki_types::CertificateDer<'static>]> {
        self.certificates.as_deref()
    }
}

/// For people: the process on this host, or the address, and the worker.
impl fmt::Display for StreamAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.peer_credentials, self.peer_addr) {
            (Some(process), _) => write!(f, "process {}", process.pid)?,
            (None, Some(address)) => write!(f, "{address}")?,
            (None, None) => f.write_str("a peer")?,
        }
        match self.worker {
            Some(worker) => write!(f, " (worker {worker})"),
            None => Ok(()),
        }
    }
}
