//! A place where peers connect, and who asks there.

use std::{
    fmt,
    future::{Future, IntoFuture},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
};

#[cfg(feature = "tls")]
use std::sync::Arc;

use futures::Stream;
#[cfg(feature = "tls")]
use rustls::pki_types::CertificateDer;
use tokio::sync::{Mutex, mpsc};

use crate::{
    context::IncomingInfo,
    endpoint::{Endpoint, SocketAddresses, Worker},
    error::{Error, ErrorKind, Operation, Result},
    sys::fork,
    transport::channel::PeerCredentials,
    types::WorkerId,
    util::tasks::spawn,
    worker::connect::{self, Place, Request},
};

/// Requests that wait to be taken; more wait in the handshake, and then in the system's queue.
const BACKLOG: usize = 64;

/// A place where peers connect. A [`Stream`] of [`Incoming`], which ends when the worker was shut down; dropping it stops listening, connections that were made stay.
#[doc(alias = "ucp_listener_h")]
#[doc(alias("ucp_listener_destroy", "ucp_listener_params_t"))]
pub struct Listener {
    pub(super) worker: Worker,
    address: SocketAddr,
    requests: Mutex<mpsc::Receiver<Request>>,
    /// That the worker was shut down; `None` once that was told.
    stopped: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Worker {
    /// Listens on an address (`host:port` and what else names one; IPv4 or IPv6, port 0 for any). Peers on this host are taken over shared memory even so.
    ///
    /// `0.0.0.0` and `[::]` stand for all interfaces that [may be used](crate::ContextBuilder::net_devices): where those are not all, each of their
    /// addresses is bound, at one port. Another address is bound as it is given.
    ///
    /// # Errors
    /// What binding said; `Unreachable`: no interface that may be used has such an address; `Forked` in a child made by `fork`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    #[doc(alias = "ucp_listener_create")]
    pub async fn listen(&self, address: impl SocketAddresses) -> Result<Listener> {
        fork::check(Operation::Listen)?;
        let listens = async {
            let (addresses, _) = address.find(Operation::Listen).await?;
            let place = Place::bind(self.shared(), &addresses)?;
            Listener::start(self.clone(), place)
        };
        let shared = self.shared();
        shared.unless_stopped(Operation::Listen, listens).await
    }

    /// Listens on `host:port` of an RDMA device (InfiniBand or RoCE; port 0 for any, `0.0.0.0` for every device), by the connection manager
    /// of librdmacm: for [`Worker::connect_rdma`], where hosts have no TCP between them, or have it over another network. Peers on this host
    /// are taken over shared memory even so.
    ///
    /// # Errors
    /// `Unsupported`: librdmacm or libibverbs is not here, with what the loader said, or the kernel offers no such connections; or the context demands
    /// TLS, which this has not. `Unreachable`: no RDMA device has the address. What binding said: the port is in use, for one. `Forked` in a child made by `fork`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    #[cfg(feature = "verbs")]
    #[doc(alias = "rdma_listen")]
    pub async fn listen_rdma(&self, address: impl SocketAddresses) -> Result<Listener> {
        fork::check(Operation::Listen)?;
        self.no_tls(Operation::Listen)?;
        let listens = async {
            let (addresses, _) = address.find(Operation::Listen).await?;
            let place = Place::bind_rdma(self.shared(), &addresses).await?;
            Listener::start(self.clone(), place)
        };
        let shared = self.shared();
        shared.unless_stopped(Operation::Listen, listens).await
    }
}

impl Listener {
    fn start(worker: Worker, place: Place) -> Result<Self> {
        let address = place
            .local_addr()
            .map_err(|error| error.during(Operation::Listen))?;
        let (queue, requests) = mpsc::channel(BACKLOG);
        let tasks = place.serve(worker.shared(), queue, false);
        let mut stopped = worker.shared().stopped.subscribe();
        let stopped = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
        Ok(Self {
            worker,
            address,
            requests: Mutex::new(requests),
            stopped: Some(Box::pin(stopped)),
            tasks,
        })
    }

    /// The address that it is bound to, with the port that was chosen; the first, where it is bound to several.
    #[must_use]
    #[doc(alias("ucp_listener_query", "ucp_listener_attr_t"))]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next peer that has said hello. Several tasks may: each peer is one's.
    ///
    /// # Errors
    /// `Closed` when the worker was shut down.
    ///
    /// # Cancel safety
    /// Cancel safe: no request is lost.
    #[doc(alias("ucp_listener_conn_handler_t", "ucp_listener_accept_handler_t"))]
    pub async fn accept(&self) -> Result<Incoming> {
        let next = async { Ok(self.requests.lock().await.recv().await) };
        let next = self.worker.shared().unless_stopped(Operation::Accept, next);
        match next.await? {
            Some(request) => Ok(Incoming {
                worker: self.worker.clone(),
                request: Some(request.taken()),
            }),
            None => {
                let text = "the listener has ended: its device is gone, or the worker's Tokio runtime has ended";
                Err(Error::new(ErrorKind::Closed, text).during(Operation::Accept))
            }
        }
    }

    /// The next request, with its place among those that are under way. `None`: the worker was shut down, or nobody listens any more.
    pub(super) fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Option<Request>> {
        let Some(stopped) = &mut self.stopped else {
            return Poll::Ready(None);
        };
        match self.requests.get_mut().poll_recv(cx) {
            Poll::Ready(Some(request)) => return Poll::Ready(Some(request)),
            // Nobody listens any more: the device of an RDMA address is gone, or the runtime.
            Poll::Ready(None) => {}
            Poll::Pending => ready!(stopped.as_mut().poll(cx)),
        }
        self.stopped = None;
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
        Poll::Ready(None)
    }
}

impl Stream for Listener {
    type Item = Result<Incoming>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let request = ready!(this.poll_request(cx));
        Poll::Ready(request.map(|request| {
            Ok(Incoming {
                worker: this.worker.clone(),
                request: Some(request.taken()),
            })
        }))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A peer that wants to connect. Await it to accept it on the worker that listened; dropping it rejects it.
#[must_use = "a request that is dropped is rejected"]
#[doc(alias = "ucp_conn_request_h")]
pub struct Incoming {
    worker: Worker,
    request: Option<Request>,
}

impl Incoming {
    /// Who asks; proved.
    #[must_use]
    pub fn peer(&self) -> Option<WorkerId> {
        self.request.as_ref().map(Request::worker)
    }

    /// Where the request comes from, for people.
    #[must_use]
    #[doc(alias("ucp_conn_request_query", "ucp_conn_request_attr_t"))]
    pub fn peer_name(&self) -> String {
        self.request.as_ref().map(Request::name).unwrap_or_default()
    }

    /// What is known of it by more than its own words; `None` once it was answered.
    #[must_use]
    pub fn info(&self) -> Option<&IncomingInfo> {
        self.request.as_ref().map(|request| &request.info)
    }

    /// As [`Endpoint::peer_addr`] of what it becomes; `None` once it was answered.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.info()?.peer_addr()
    }

    /// As [`Endpoint::local_addr`] of what it becomes; `None` once it was answered.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.info()?.local_addr()
    }

    /// As [`Endpoint::peer_credentials`] of what it becomes; `None` once it was answered.
    #[must_use]
    pub fn peer_credentials(&self) -> Option<PeerCredentials> {
        self.info()?.peer_credentials()
    }

    /// The certificates that the peer has shown over TLS, its own first; all of them have passed the [server's](rustls::ServerConfig) verifier. `None`: that
    /// asked for none, or the peer comes by shared memory.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn peer_certificates(&self) -> Option<Arc<[CertificateDer<'static>]>> {
        self.request.as_ref()?.channel.certificates()
    }

    /// Accepts it on the worker that listened.
    ///
    /// # Errors
    /// What set-up said: the peer is gone, or there is no transport in common. `Exhausted`: as many connections are open on the worker, or with this
    /// source, as [may be](crate::config::Limits); the peer is told so.
    ///
    /// # Cancel safety
    /// Dropped, the connection is given up.
    pub async fn accept(self) -> Result<Endpoint> {
        let worker = self.worker.clone();
        self.take_on(&worker).await
    }

    /// Accepts it on another worker of this process.
    ///
    /// # Errors
    /// As [`Incoming::accept`].
    ///
    /// # Cancel safety
    /// As [`Incoming::accept`].
    pub async fn accept_on(self, worker: &Worker) -> Result<Endpoint> {
        self.take_on(worker).await
    }

    /// In a box: it is of kilobytes, which a program's own futures would carry, and copy, else.
    fn take_on(self, worker: &Worker) -> Pin<Box<impl Future<Output = Result<Endpoint>> + Send>> {
        Box::pin(self.accepted_by(worker))
    }

    async fn accepted_by(mut self, worker: &Worker) -> Result<Endpoint> {
        let request = self
            .request
            .take()
            .ok_or_else(|| Error::new(ErrorKind::Closed, "answered already"))?;
        let shared = worker.shared();
        let accepts = connect::accept(shared, request, true);
        let place = shared.unless_stopped(Operation::Accept, accepts).await?;
        Ok(worker.endpoint_of(place))
    }

    /// Turns it down; the peer's connect ends with `Rejected` and this reason (cut after 255 bytes).
    #[doc(alias = "ucp_listener_reject")]
    pub async fn reject(mut self, reason: impl Into<String>) {
        if let Some(mut request) = self.request.take() {
            let shared = request.shared.clone();
            let refuses = async {
                let error = Error::new(ErrorKind::Rejected, reason.into());
                connect::refuse(&mut request.channel, &error).await;
                Ok(())
            };
            // Where the worker was stopped, the peer finds the connection gone.
            let _ = shared.unless_stopped(Operation::Accept, refuses).await;
        }
    }
}

impl IntoFuture for Incoming {
    type Output = Result<Endpoint>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Endpoint>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.accept())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(mut request) = self.request.take() {
            let runtime = request.shared.runtime.clone();
            spawn(&runtime, async move {
                connect::refuse(
                    &mut request.channel,
                    &Error::new(
                        ErrorKind::Rejected,
                        "the listener did not take the connection",
                    ),
                )
                .await;
            });
        }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("peer", &self.peer_name())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::StreamExt;

    use crate::{Context, Worker};

    /// Nobody listens any more, though the worker goes on.
    #[tokio::test]
    async fn a_stream_ends_with_who_listens() {
        let context = Context::builder().transports("tcp").expect("known").build();
        let worker = Worker::new(&context.expect("a context")).expect("a worker");
        let mut listener = worker.listen("127.0.0.1:0").await.expect("listens");
        listener
            .tasks
            .iter()
            .for_each(tokio::task::JoinHandle::abort);
        let next = tokio::time::timeout(Duration::from_secs(60), listener.next());
        assert!(next.await.expect("it waits for nobody").is_none());
    }
}
