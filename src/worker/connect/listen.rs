//! Listening: the places where peers connect, and the worker's own address.

use std::{
    fs::File,
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use futures::FutureExt;
use tokio::{
    net::{TcpListener, UnixListener},
    sync::{mpsc, oneshot},
};

#[cfg(feature = "verbs")]
use crate::transport::rdmacm::Listening;
use crate::{
    context::IncomingInfo,
    error::{Error, ErrorKind, Operation, Result},
    protocol::WorkerAddress,
    sys::{abstract_socket, identity::identity},
    trace,
    transport::{Reach, channel::Channel, registry},
    types::{EndpointId, LinkId},
    util::tasks::spawn,
    worker::{
        connect::{
            request::Request,
            said::{refuse, transports},
            wireup::random,
        },
        shared::Shared,
    },
};

use super::{
    backlog::{Backlog, FIRST_BYTES, Pending, Stage},
    bind,
    handshake::handshake,
    lanes::accept,
    meeting::Met,
};

/// One listening place: a TCP socket or an RDMA address and, for peers on this host, a Unix socket under a random abstract name.
pub(crate) struct Place {
    pub(crate) tcp: Vec<TcpListener>,
    #[cfg(feature = "verbs")]
    pub(crate) rdma: Option<Listening>,
    pub(crate) unix: Option<(UnixListener, Vec<u8>)>,
}

impl Place {
    /// Binds `address`, and the Unix socket where shared memory may be used.
    pub(crate) fn bind(shared: &Shared, addresses: &[SocketAddr]) -> Result<Self> {
        let mut error = Error::new(ErrorKind::InvalidArgument, "no address to listen on");
        let devices = &shared.context.config().net_devices;
        for address in addresses {
            match bind::address(*address, devices) {
                Ok(listeners) => return Self::with(shared, listeners),
                Err(failure) => error = failure,
            }
        }
        Err(error.during(Operation::Listen))
    }

    /// Binds an address of an RDMA device, as [`Place::bind`] does one of TCP.
    #[cfg(feature = "verbs")]
    pub(crate) async fn bind_rdma(shared: &Shared, addresses: &[SocketAddr]) -> Result<Self> {
        let config = shared.context.config();
        let mut error = Error::new(ErrorKind::InvalidArgument, "no address to listen on");
        for address in addresses {
            match Listening::bind(&config.libraries, *address, *config.keepalive).await {
                Ok(listening) => {
                    let mut place = Self::with(shared, Vec::new())?;
                    place.rdma = Some(listening);
                    return Ok(place);
                }
                Err(failure) => error = failure,
            }
        }
        Err(error.during(Operation::Listen))
    }

    /// Where it listens, for peers on other hosts.
    pub(crate) fn local_addr(&self) -> Result<SocketAddr> {
        #[cfg(feature = "verbs")]
        if let Some(rdma) = &self.rdma {
            return Ok(rdma.local_addr());
        }
        let tcp = self
            .tcp
            .first()
            .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "no address to listen on"))?;
        tcp.local_addr()
            .map_err(|error| Error::io("the listener's address", error))
    }

    fn with(shared: &Shared, tcp: Vec<TcpListener>) -> Result<Self> {
        let unix = if shared.reaches(Reach::Host) {
            let mut name = b"wharf-".to_vec();
            for byte in random::<16>()? {
                name.extend_from_slice(format!("{byte:02x}").as_bytes());
            }
            match abstract_socket::bind(&name) {
                Ok(listener) => Some((listener, name)),
                Err(error) => {
                    let remedy = registry::remedy("shm");
                    trace::slower!(format!("no Unix socket: {error}"), target: "wharf::wireup", %error, remedy, "no Unix socket for peers on this host: they will not reach this worker through shared memory");
                    None
                }
            }
        } else {
            None
        };
        Ok(Self {
            tcp,
            #[cfg(feature = "verbs")]
            rdma: None,
            unix,
        })
    }

    /// Serves it until the receiver of `queue` is gone.
    pub(crate) fn serve(
        self,
        shared: &Arc<Shared>,
        queue: mpsc::Sender<Request>,
        by_address: bool,
    ) -> Vec<tokio::task::JoinHandle<()>> {
        let mut greeter = Greeter {
            shared: shared.clone(),
            unix_name: self.unix.as_ref().map(|(_, name)| name.clone()),
            queue,
            by_address,
        };
        let mut tasks = Vec::new();
        let backlog = Backlog::new();
        for listener in self.tcp {
            let (greeter, backlog) = (greeter.clone(), backlog.clone());
            let mut shortage = Shortage::new();
            tasks.push(spawn(&shared.runtime, async move {
                loop {
                    let accept = async || Ok(Channel::tcp(listener.accept().await?.0));
                    let patience = &greeter.shared.wireup.patience;
                    match patience.wait(accept()).await {
                        Ok(channel) => {
                            shortage.since = None;
                            greeter.greet(channel, &backlog).await;
                        }
                        Err(error) => shortage.met(error, &backlog, accept()).await,
                    }
                }
            }));
        }
        // The Unix socket goes with the RDMA address that it stands beside.
        let (stands, mut ended) = oneshot::channel::<()>();
        #[cfg_attr(
            not(feature = "verbs"),
            expect(unused_mut, reason = "taken by an RDMA address")
        )]
        let mut stands = Some(stands);
        #[cfg(feature = "verbs")]
        if let Some(listening) = self.rdma {
            let greeter = greeter.clone();
            let stands = stands.take();
            tasks.push(spawn(&shared.runtime, async move {
                serve_rdma(greeter, listening).await;
                drop(stands);
            }));
        }
        if let Some((listener, _)) = self.unix {
            // Whoever is here need not be told.
            greeter.unix_name = None;
            tasks.push(spawn(&shared.runtime, async move {
                // Without one there is no such end.
                let _stands = stands;
                let backlog = Backlog::new();
                let mut shortage = Shortage::new();
                loop {
                    let accept = async || Ok(Channel::unix(listener.accept().await?.0));
                    let accepted = tokio::select! {
                        accepted = greeter.shared.wireup.patience.wait(accept()) => accepted,
                        _ = &mut ended => return,
                    };
                    let channel = match accepted {
                        Ok(channel) => channel,
                        Err(error) => {
                            shortage.met(error, &backlog, accept()).await;
                            continue;
                        }
                    };
                    shortage.since = None;
                    match admits(&greeter.shared, &channel) {
                        Ok(()) => greeter.greet(channel, &backlog).await,
                        Err(error) => tracing::debug!(target: "wharf::wireup", peer = %channel.peer_name(), %error, "connection turned down"),
                    }
                }
            }));
        }
        tasks
    }
}

/// Whether a Unix socket could carry the set-up of any transport that stays on this host, by what the kernel knows of its other end.
pub(super) fn admits(shared: &Shared, channel: &Channel) -> Result<()> {
    let mut refused = Ok(());
    let transports = shared.transports.iter();
    for transport in transports.filter(|transport| transport.reach == Reach::Host) {
        refused = transport.connector.admits(channel);
        if refused.is_ok() {
            break;
        }
    }
    refused
}

/// What a listening place does while the system gives it no sockets.
struct Shortage {
    /// Gives its place to one peer at a time, who is told.
    spare: Option<File>,
    /// Every try to accept has failed since then.
    since: Option<Instant>,
}

impl Shortage {
    fn new() -> Self {
        let spare = Self::spare();
        Self { spare, since: None }
    }

    fn spare() -> Option<File> {
        File::open("/dev/null").ok()
    }

    /// After a failure to accept.
    async fn met(
        &mut self,
        error: io::Error,
        backlog: &Backlog,
        accept: impl Future<Output = io::Result<Channel>>,
    ) {
        if error.kind() == io::ErrorKind::ConnectionAborted {
            // The peer has gone before it was taken.
            return;
        }
        let error = Error::io("accepting a connection", error);
        if self.since.is_none() {
            tracing::warn!(target: "wharf::wireup", %error, "a listener has no place");
        }
        // Out of fds, most likely, which the silent hold: a pause lets them go. What lasts for longer than they may is not for them.
        backlog.clear();
        let since = *self.since.get_or_insert_with(Instant::now);
        let is_full = error.kind() == ErrorKind::Exhausted && since.elapsed() > 2 * FIRST_BYTES;
        // Another may have had the place when this was to have it back.
        self.spare = self.spare.take().or_else(Self::spare);
        if is_full && self.spare.take().is_some() {
            tracing::debug!(target: "wharf::wireup", %error, "connection turned down");
            if let Some(Ok(mut channel)) = accept.now_or_never() {
                refuse(&mut channel, &error).await;
            }
            self.spare = Self::spare();
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Serves an RDMA address until the device is gone.
#[cfg(feature = "verbs")]
async fn serve_rdma(greeter: Greeter, listening: Listening) {
    let backlog = Backlog::new();
    loop {
        let asked = match listening.accept().await {
            Ok(asked) => asked,
            Err(error) => {
                tracing::warn!(target: "wharf::wireup", %error, "a listener at an RDMA address has ended");
                return;
            }
        };
        let Some(pending) = backlog.enter(asked.source()).await else {
            tracing::debug!(target: "wharf::wireup", peer = asked.peer_name(), "turned down: its source's places are stuck");
            greeter.shared.accepted.silent.fetch_add(1, Relaxed);
            continue;
        };
        let greeter = greeter.clone();
        let runtime = greeter.shared.runtime.clone();
        spawn(&runtime, async move {
            let peer = asked.peer_name().to_owned();
            let limit = greeter.shared.context.config().handshake_timeout.value;
            // A queue pair is made meanwhile.
            pending.begin(Stage::Setup);
            let answered = tokio::select! {
                biased;
                channel = asked.answer() => channel,
                error = pending.expired(limit, limit) => {
                    greeter.shared.accepted.silent.fetch_add(1, Relaxed);
                    Err(error)
                }
            };
            match answered {
                Ok(channel) => {
                    pending.begin(Stage::Greeting);
                    greeter.talk(channel, pending).await;
                }
                Err(error) => {
                    tracing::debug!(target: "wharf::wireup", %peer, %error, "connection turned down")
                }
            }
        });
    }
}

/// Who speaks with those that come to one listening place.
#[derive(Clone)]
struct Greeter {
    shared: Arc<Shared>,
    /// Where peers on this host are told to go.
    unix_name: Option<Vec<u8>>,
    queue: mpsc::Sender<Request>,
    /// It stands behind the worker's address: nobody but the program's check is asked who is let in.
    by_address: bool,
}

impl Greeter {
    /// Starts the handshake of one accepted socket, once it has a place. A failure concerns that socket alone.
    async fn greet(&self, channel: Channel, backlog: &Arc<Backlog>) {
        let Some(pending) = backlog.enter(channel.source()).await else {
            tracing::debug!(target: "wharf::wireup", peer = %channel.peer_name(), "turned down: its source's places are stuck");
            self.shared.accepted.silent.fetch_add(1, Relaxed);
            return;
        };
        let greeter = self.clone();
        let runtime = self.shared.runtime.clone();
        spawn(&runtime, greeter.talk(channel, pending));
    }

    async fn talk(self, mut channel: Channel, pending: Pending) {
        let limit = self.shared.context.config().handshake_timeout.value;
        channel.watch(pending.activity());
        channel.look(&self.shared.wireup.patience);
        let greeted = tokio::select! {
            biased;
            greeted = handshake(&self.shared, &mut channel, self.unix_name) => greeted,
            error = pending.expired(FIRST_BYTES, limit) => {
                self.shared.accepted.silent.fetch_add(1, Relaxed);
                // It hears why if its socket takes that at once: nobody waits for who says nothing.
                let _ = refuse(&mut channel, &error).now_or_never();
                Err(error)
            }
        };
        let (client, server) = match greeted {
            Ok(Some(greeted)) => greeted,
            // Gone to the Unix socket.
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(target: "wharf::wireup", peer = %channel.peer_name(), %error, "connection turned down");
                return;
            }
        };
        pending.begin(Stage::Asking);
        let context = &self.shared.context;
        // Whoever does not know it has not come as far as here.
        let knows_secret = context.secret().is_some();
        let worker = client.key.worker();
        let info = IncomingInfo::new(&channel, worker, knows_secret, self.by_address);
        if let Err(error) = context.admits(&info) {
            tracing::debug!(target: "wharf::wireup", peer = %channel.peer_name(), %error, "connection not admitted");
            self.shared.accepted.not_admitted.fetch_add(1, Relaxed);
            refuse(&mut channel, &error).await;
            return;
        }
        let request = Request {
            channel,
            client,
            server,
            info,
            shared: self.shared,
            pending: Some(pending),
        };
        // A full queue holds the connection back, not the listener.
        let _ = self.queue.send(request).await;
    }
}

/// The worker's address: starts to listen for those who have it, at the first call.
pub(crate) fn address(shared: &Arc<Shared>) -> Result<WorkerAddress> {
    let mut known = shared.wireup.address.lock();
    if let Some(address) = &*known {
        return Ok(address.clone());
    }
    if shared.stopping.load(Relaxed) {
        let closed = shared.with(|engine| engine.closed());
        return Err(closed.during(Operation::Listen));
    }
    let _runtime = shared.runtime.enter();
    let tcp = match shared.reaches(Reach::Network) {
        true => bind::each(&bind::interfaces(&shared.context.config().net_devices)?),
        false => Vec::new(),
    };
    let sockets = tcp.iter().map(TcpListener::local_addr);
    let sockets = sockets.collect::<io::Result<Vec<_>>>();
    let sockets = sockets.map_err(|error| Error::io("the listener's address", error))?;
    let place = Place::with(shared, tcp)?;
    let address = WorkerAddress::new(
        shared.id,
        identity().clone(),
        place.unix.as_ref().map(|(_, name)| name.clone()),
        sockets,
        transports(shared),
        shared.context.secret().is_some(),
    )?;
    let (sender, mut requests) = mpsc::channel(64);
    let tasks = place.serve(shared, sender, true);
    let acceptor = shared.clone();
    spawn(&shared.runtime, async move {
        let mut stopped = acceptor.stopped.subscribe();
        loop {
            tokio::select! {
                request = requests.recv() => match request {
                    Some(request) => {
                        spawn(&acceptor.runtime, accept_unasked(acceptor.clone(), request));
                    }
                    None => break,
                },
                _ = stopped.wait_for(|stopped| *stopped) => break,
            }
        }
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    });
    *known = Some(address.clone());
    Ok(address)
}

/// Accepts a request that keeps its place among the listener's until it is a connection: a peer that is silent in the set-up loses it to another, so that
/// as many may be accepted side by side as there are places, and none holds up the rest.
pub(crate) async fn accept_in_turn(
    shared: &Arc<Shared>,
    mut request: Request,
    claimed: bool,
) -> Result<(LinkId, EndpointId)> {
    let limit = shared.context.config().handshake_timeout.value;
    let pending = request.pending.take();
    let gives_way = async {
        match &pending {
            Some(pending) => {
                pending.begin(Stage::Setup);
                pending.expired(limit, limit).await
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        accepted = accept(shared, request, claimed) => accepted,
        error = gives_way => Err(error),
    }
}

/// A peer that has this worker's address connects: taken, unless this worker is dialling it at the same time and its own dialling stands.
async fn accept_unasked(shared: Arc<Shared>, mut request: Request) {
    let Some(met) = Met::accepts(&shared, request.worker()) else {
        refuse(
            &mut request.channel,
            &Error::new(
                ErrorKind::WouldBlock,
                "both ends dialled; the other connection stands",
            ),
        )
        .await;
        return;
    };
    let accepted = accept_in_turn(&shared, request, false).await;
    if let Err(error) = accepted {
        tracing::debug!(target: "wharf::wireup", %error, "a connection to this worker's address failed");
    }
    drop(met);
}
