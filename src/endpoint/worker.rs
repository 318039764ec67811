//! The worker, as the user holds it.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    Context,
    error::{Error, ErrorKind, Operation, Result},
    protocol::WorkerAddress,
    sys::fork,
    types::{EndpointId, WorkerId, text::words},
    worker::{Handle, WorkerMetrics, connect, engine::Engine, shared::Shared},
};

use super::{
    destination::{Destination, SocketAddresses},
    handle::Endpoint,
};

/// A progress engine with its connections. A cheap clone; several may live in one process, on any Tokio runtime.
///
/// When the last handle (worker, endpoint, listener) is dropped, connections are closed in the background; [`Worker::shutdown`] waits for it.
///
/// In a child made by `fork` or `clone` every operation, and every wait, of a worker that the parent made fails with
/// [`Forked`](crate::ErrorKind::Forked) before it touches anything: the connections are the parent's still. What has no error to give (probes,
/// [`AmInbox`](crate::AmInbox), [`Worker::progress`]) finds nothing there; a drop does nothing.
///
/// ```
/// # async fn run() -> wharf::Result<()> {
/// use wharf::{Context, Tag, Worker};
///
/// let context = Context::builder().transports("self")?.build()?;
/// let worker = Worker::new(&context)?;
/// let endpoint = worker.connect(&worker.address()?).await?;
/// endpoint.tag_send(Tag(7), "to oneself").await?;
/// let received = worker.tag_recv(Tag(7), vec![0; 64]).await?;
/// assert_eq!(&received.buffer[..received.len], b"to oneself");
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
/// ```
#[derive(Clone)]
#[doc(alias = "ucp_worker_h")]
#[doc(alias("ucp_worker_params_t", "ucp_worker_attr_t"))]
pub struct Worker {
    handle: Arc<Handle>,
}

impl Worker {
    /// Starts a worker on the current Tokio runtime, [with which it ends](crate::guide::first_steps#runtimes).
    ///
    /// # Errors
    /// `InvalidArgument` outside a runtime, or on one without timers or I/O; `Forked` in a child made by `fork`; what the system said when fds or memory ran out.
    #[doc(alias = "ucp_worker_create")]
    pub fn new(context: &Context) -> Result<Self> {
        Handle::start(context).map(|handle| Self { handle })
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
    #[inline]
    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }
    pub(crate) fn endpoint_of(&self, (link, id): (crate::types::LinkId, EndpointId)) -> Endpoint {
        Endpoint::new(self.handle.clone(), link, id)
    }

    /// The context that it was made for.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.shared().context
    }

    /// Its identity.
    #[must_use]
    #[doc(alias = "ucp_worker_query")]
    pub fn id(&self) -> WorkerId {
        self.shared().id
    }

    /// The address by which other workers reach this one without a listener. The first call starts to listen for them.
    ///
    /// # Errors
    /// What the system said; `Forked` in a child made by `fork`.
    #[doc(alias = "ucp_worker_get_address")]
    pub fn address(&self) -> Result<WorkerAddress> {
        fork::check(Operation::Listen)?;
        connect::address(self.shared())
    }

    /// Connects to a listener (`host:port`) or to a worker's address, over the best path that both ends have.
    ///
    /// # Errors
    /// `ConnectionRefused`, `Rejected`, `AuthenticationFailed`, `VersionMismatch`, `DeadlineExceeded`; `Unreachable`: no path, or another worker is
    /// where the one that was addressed was (one that only says it is that one: `AuthenticationFailed`); `Closed`: the worker was shut down, or its runtime has ended; `Forked` in a child made by `fork`. Of several addresses each has an equal share of the
    /// [time](crate::ContextBuilder::connect_timeout), half a second at the least. A listener that is full has its place given to another while a peer
    /// is silent; whoever lost one dials again until the time is over.
    ///
    /// # Cancel safety
    /// Dropped, the half-made connection is given up at both ends.
    #[doc(alias = "ucp_ep_create")]
    #[doc(alias(
        "ucp_ep_params_t",
        "UCP_EP_PARAMS_FLAGS_CLIENT_SERVER",
        "UCP_EP_PARAMS_FLAGS_NO_LOOPBACK"
    ))]
    pub async fn connect(&self, destination: impl Destination) -> Result<Endpoint> {
        fork::check(Operation::Connect)?;
        let shared = self.shared();
        let connects = async {
            let destination = destination.resolve().await?;
            connect::connect(shared, destination).await
        };
        let place = shared.unless_stopped(Operation::Connect, connects).await?;
        Ok(self.endpoint_of(place))
    }

    /// Connects to a [`listen_rdma`](crate::Worker::listen_rdma) at `host:port`, an address of an RDMA device, by the connection manager of
    /// librdmacm. What follows is as with [`Worker::connect`].
    ///
    /// # Errors
    /// `Unsupported`: librdmacm or libibverbs is not here, with what the loader said, or the kernel offers no such connections; or the context demands
    /// TLS, which this has not. `Unreachable`: no RDMA device leads there, or nobody answers. `ConnectionRefused`: nobody listens there. `Protocol`: who listens is
    /// no wharf. Else as [`Worker::connect`].
    ///
    /// # Cancel safety
    /// Dropped, the half-made connection is given up at both ends.
    #[cfg(feature = "verbs")]
    #[doc(alias = "rdma_connect")]
    pub async fn connect_rdma(&self, address: impl SocketAddresses) -> Result<Endpoint> {
        fork::check(Operation::Connect)?;
        self.no_tls(Operation::Connect)?;
        let shared = self.shared();
        let connects = async {
            let (addresses, _) = address.find(Operation::Connect).await?;
            connect::connect(shared, connect::Destination::Rdma(addresses)).await
        };
        let place = shared.unless_stopped(Operation::Connect, connects).await?;
        Ok(self.endpoint_of(place))
    }

    /// Refuses what has no encryption, where TLS is demanded.
    #[cfg(feature = "verbs")]
    pub(crate) fn no_tls(&self, operation: Operation) -> Result<()> {
        if self.context().tls().is_none() {
            return Ok(());
        }
        let why = "connections by RDMA address have no encryption, and TLS is demanded";
        Err(Error::new(ErrorKind::Unsupported, why).during(operation))
    }

    /// The endpoint that a message came from, to answer on. `None` when it is closed.
    ///
    /// Where the peer connected to this worker's [address](Worker::address), dropping it leaves the connection open for the next answer: it lasts until
    /// the peer or [`Endpoint::close`] ends it, or [`Worker::connect`] to the peer takes it over. Any other connection is closed with the
    /// last endpoint of it.
    #[must_use]
    pub fn endpoint(&self, id: EndpointId) -> Option<Endpoint> {
        let link = self.shared().ask(|engine| {
            let mut peers = engine.ctx().peers.iter_mut().flatten();
            let peer = peers.find(|peer| peer.id == id && peer.is_open())?;
            peer.handles += 1;
            Some(peer.slot)
        })??;
        Some(self.endpoint_of((link, id)))
    }

    /// How many operations are under way: futures that wait, what was posted or dropped and goes on, and what peers' requests still
    /// need of this side. 0 when nothing is left to do.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let left = self.shared().ask(|engine| {
            engine.progress();
            engine.ctx().operations.len() + engine.core.receives
        });
        left.unwrap_or(0)
    }

    /// What the worker has done so far: bytes by transport, waits, wake-ups, connections. See [`Context::metrics`] for memory.
    #[must_use]
    #[doc(alias("vfs", "UCX_STATS_DEST"))]
    #[doc(alias = "ucp_worker_print_info")]
    pub fn metrics(&self) -> WorkerMetrics {
        self.shared().metrics()
    }

    /// Moves what can be moved, without waiting. Needed only by those who drive a worker through its fd, in a loop of their own: see
    /// [`Worker::arm`]. Returns how many things happened.
    #[doc(alias = "ucp_worker_progress")]
    pub fn progress(&self) -> usize {
        // For callbacks of the user's: whoever calls this may be outside any runtime.
        let _runtime = self.shared().runtime.enter();
        let moved = self.shared().ask(Engine::progress_outside);
        moved.unwrap_or(0)
    }

    /// Before a loop of the program's own waits for the worker's fd ([`AsFd`]): asks whoever brings the next thing to make it readable. Without
    /// this, messages over shared memory wake nobody.
    ///
    /// The loop makes [`progress`](Worker::progress), looks at what it waits for, and waits only if this says [`Arm::Armed`]. In that order nothing
    /// is slept through, whoever else drives the worker at the same time: what others took from it since the last `progress` is
    /// [`Arm::Ready`], or makes the fd readable. The fd may be watched by level or by edges, with `poll(2)`, epoll, mio or `async-io`; it may
    /// be readable with nothing behind it. It is never to be read.
    ///
    /// ```
    /// # async fn run() -> wharf::Result<()> {
    /// # use std::{future::Future, os::fd::AsFd, pin::pin, task};
    /// # use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    /// # use wharf::{Arm, Context, Worker};
    /// # let worker = Worker::new(&Context::builder().transports("self")?.build()?)?;
    /// # let endpoint = worker.connect(&worker.address()?).await?;
    /// # drop(endpoint.tag_send(1, "hello").post());
    /// let mut receive = pin!(worker.tag_recv(1, vec![0; 5]));
    /// let received = loop {
    ///     while worker.progress() > 0 {}
    ///     let mut cx = task::Context::from_waker(task::Waker::noop());
    ///     if let task::Poll::Ready(received) = receive.as_mut().poll(&mut cx) {
    ///         break received?;
    ///     }
    ///     if worker.arm() == Arm::Armed {
    ///         let mut fds = [PollFd::new(worker.as_fd(), PollFlags::POLLIN)];
    ///         poll(&mut fds, PollTimeout::NONE).expect("waited");
    ///     }
    /// };
    /// assert_eq!(received.buffer, b"hello");
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
    /// ```
    ///
    /// Connecting, listening and deadlines are the work of tasks on the worker's runtime all the same.
    #[doc(alias("ucp_worker_arm", "ucp_worker_get_efd", "ucp_worker_wait"))]
    pub fn arm(&self) -> Arm {
        match self.shared().ask(Engine::arm_outside) {
            // Nothing comes to a child made by `fork`.
            Some(true) | None => Arm::Armed,
            Some(false) => Arm::Ready,
        }
    }

    /// Closes all connections, waits until they have said goodbye or `deadline` has passed, and stops. All pending operations end.
    ///
    /// # Errors
    /// `DeadlineExceeded` when connections had to be cut.
    ///
    /// # Cancel safety
    /// Dropped, connections go on closing; the worker stops with its last handle.
    #[doc(alias = "ucp_worker_destroy")]
    pub async fn shutdown(&self, deadline: Duration) -> Result<()> {
        Handle::shutdown(self.shared(), deadline).await
    }
}

/// What [`Worker::arm`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a loop that sleeps unarmed misses what comes"]
pub enum Arm {
    /// The worker's fd becomes readable with the next thing that happens.
    Armed,
    /// Something is here, or has happened since the last [`Worker::progress`]: make progress and look again.
    Ready,
}

words! { Arm, "answer of `arm`": Armed = "armed", Ready = "ready" }

/// For a loop other than Tokio's: readable when something has happened since [`Worker::arm`] said [`Arm::Armed`].
impl AsFd for Worker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let shared = self.shared();
        shared.watched.store(true, Ordering::Relaxed);
        shared.watch_fd.as_fd()
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}
