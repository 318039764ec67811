//! How connections come about: dialling, listening, the handshake, and the choice of the path.
//!
//! ```text
//! client                                                server
//!    │ ── TCP to host:port, or the Unix socket of an address, or an RDMA address ──▶
//!    │ ◀── hello: who, where, which transports, a Unix name ───  │
//!    │     same host? dial the Unix name instead and go on there │
//!    │ ─── hello, proof of the secret ────────────────────────▶  │  Incoming: accepted, on any worker, or rejected
//!    │ ◀── verdict: proof, lanes to set up, best first ────────  │
//!    │ ◀──▶ can each read the other's memory? (cma) ◀────────▶   │
//!    │ ◀──▶ the lane's own set-up, verdicts exchanged ◀──────▶   │
//! ```
//!
//! Where the better path fails, the next is tried from the start, with one warning that says what failed and why.

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream, UnixListener},
    sync::{Semaphore, mpsc, oneshot},
    time::timeout,
};
use tracing::Instrument;

use crate::{
    config::interface_addresses,
    error::{Error, ErrorKind, Operation, Result},
    protocol::{
        WorkerAddress,
        hello::{
            ClientHello, Nonce, Prover, ServerHello, Transcript, VERSION_MAX, VERSION_MIN, Verdict,
        },
        thresholds::{Lending, Thresholds},
    },
    sys::{abstract_socket, identity::identity},
    transport::{
        Connected, PeerInfo, Reach, Role,
        channel::Channel,
        cma::{Cma, CmaPeer},
        loopback,
        rdmacm::{self, Listening},
    },
    types::{EndpointId, LinkId, WorkerId},
    worker::{
        peer::{Made, OneCopy, Peer, Status},
        shared::{Shared, Transport},
    },
};

/// Handshakes of one listener that may be under way at a time; others wait in the system's queue.
const MAX_HANDSHAKES: usize = 128;

/// Before another look for the peer's connection, which stands when both ends dialled.
const CROSSED_PAUSE: Duration = Duration::from_millis(2);

/// Connection set-up of one worker.
#[derive(Default)]
pub(crate) struct Wireup {
    /// Workers that have this one's address, or this one theirs, while a connection is being made.
    meetings: Mutex<HashMap<WorkerId, Meeting>>,
    /// The listener behind the worker's address, once it was asked for.
    address: Mutex<Option<WorkerAddress>>,
}

/// A connection that a peer asks for.
pub(crate) struct Request {
    pub(crate) channel: Channel,
    hello: ClientHello,
    transcript: Transcript,
    /// The worker that the client was told it talks to.
    pub(crate) shared: Arc<Shared>,
}

impl Request {
    pub(crate) fn name(&self) -> String {
        self.channel.peer_name()
    }
    pub(crate) fn worker(&self) -> WorkerId {
        self.hello.worker
    }
}

/// One listening place: a TCP socket or an RDMA address and, for peers on this host, a Unix socket under a random abstract name.
pub(crate) struct Place {
    pub(crate) tcp: Vec<TcpListener>,
    pub(crate) rdma: Option<Listening>,
    pub(crate) unix: Option<(UnixListener, Vec<u8>)>,
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorKind::Io, format!("random bytes: {error}")))?;
    Ok(bytes)
}

pub(crate) fn new_worker_id() -> Result<WorkerId> {
    random().map(WorkerId)
}

fn transports(shared: &Shared) -> Vec<String> {
    shared.context.transports().map(str::to_owned).collect()
}

impl Place {
    /// Binds `address`, and the Unix socket where shared memory may be used.
    pub(crate) async fn bind(shared: &Shared, addresses: &[SocketAddr]) -> Result<Self> {
        let mut error = Error::new(ErrorKind::InvalidArgument, "no address to listen on");
        for address in addresses {
            match TcpListener::bind(address).await {
                Ok(listener) => return Self::with(shared, vec![listener]),
                Err(failure) => error = Error::io(format!("binding {address}"), failure),
            }
        }
        Err(error.during(Operation::Listen))
    }

    /// Binds an address of an RDMA device, as [`Place::bind`] does one of TCP.
    pub(crate) async fn bind_rdma(shared: &Shared, addresses: &[SocketAddr]) -> Result<Self> {
        let mut error = Error::new(ErrorKind::InvalidArgument, "no address to listen on");
        for address in addresses {
            match Listening::bind(*address, *shared.context.config().keepalive).await {
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
        let unix = if shared
            .transports
            .iter()
            .any(|transport| transport.reach == Reach::Host)
        {
            let mut name = b"wharf-".to_vec();
            for byte in random::<16>()? {
                name.extend_from_slice(format!("{byte:02x}").as_bytes());
            }
            match abstract_socket::bind(&name) {
                Ok(listener) => Some((listener, name)),
                Err(error) => {
                    tracing::warn!(target: "wharf::wireup", %error, "no Unix socket for peers on this host: they will not reach this worker through shared memory");
                    None
                }
            }
        } else {
            None
        };
        Ok(Self {
            tcp,
            rdma: None,
            unix,
        })
    }

    /// Serves it until the receiver of `queue` is gone.
    pub(crate) fn serve(
        self,
        shared: &Arc<Shared>,
        queue: mpsc::Sender<Request>,
    ) -> Vec<tokio::task::JoinHandle<()>> {
        let limit = Arc::new(Semaphore::new(MAX_HANDSHAKES));
        let name = self.unix.as_ref().map(|(_, name)| name.clone());
        let mut tasks = Vec::new();
        // The Unix socket goes with the RDMA address that it stands beside.
        let (stands, mut ended) = oneshot::channel::<()>();
        let mut stands = Some(stands);
        for listener in self.tcp {
            let (shared, queue, limit, name) =
                (shared.clone(), queue.clone(), limit.clone(), name.clone());
            let runtime = shared.runtime.clone();
            tasks.push(runtime.spawn(async move {
                loop {
                    let Ok(permit) = limit.clone().acquire_owned().await else {
                        return;
                    };
                    let stream = listener
                        .accept()
                        .await
                        .map(|(stream, _)| Channel::tcp(stream));
                    greet(&shared, stream, name.clone(), &queue, permit).await;
                }
            }));
        }
        if let Some(listening) = self.rdma {
            let (shared, queue, limit) = (shared.clone(), queue.clone(), limit.clone());
            let runtime = shared.runtime.clone();
            let stands = stands.take();
            tasks.push(runtime.spawn(async move {
                serve_rdma(shared, listening, name, queue, limit).await;
                drop(stands);
            }));
        }
        if let Some((listener, name)) = self.unix {
            let (shared, queue) = (shared.clone(), queue);
            let runtime = shared.runtime.clone();
            tasks.push(runtime.spawn(async move {
                // Without one there is no such end.
                let _stands = stands;
                loop {
                    let Ok(permit) = limit.clone().acquire_owned().await else {
                        return;
                    };
                    let stream = tokio::select! {
                        accepted = listener.accept() => accepted,
                        _ = &mut ended => return,
                    };
                    let stream = stream.map(|(stream, _)| Channel::unix(stream));
                    greet(&shared, stream, Some(name.clone()), &queue, permit).await;
                }
            }));
        }
        tasks
    }
}

/// Serves an RDMA address until the device is gone.
async fn serve_rdma(
    shared: Arc<Shared>,
    listening: Listening,
    unix_name: Option<Vec<u8>>,
    queue: mpsc::Sender<Request>,
    limit: Arc<Semaphore>,
) {
    while let Ok(permit) = limit.clone().acquire_owned().await {
        let asked = match listening.accept().await {
            Ok(asked) => asked,
            Err(error) => {
                tracing::warn!(target: "wharf::wireup", %error, "a listener at an RDMA address has ended");
                return;
            }
        };
        let (task, unix_name, queue) = (shared.clone(), unix_name.clone(), queue.clone());
        shared.runtime.spawn(async move {
            let peer = asked.peer_name().to_owned();
            let limit = task.context.config().handshake_timeout.value;
            match timeout(limit, asked.answer()).await {
                Ok(Ok(channel)) => greet(&task, Ok(channel), unix_name, &queue, permit).await,
                Ok(Err(error)) => tracing::debug!(target: "wharf::wireup", %peer, %error, "connection turned down"),
                Err(_) => tracing::debug!(target: "wharf::wireup", %peer, "no channel within {limit:?}"),
            }
        });
    }
}

/// Starts the handshake of one accepted socket. A failure concerns that socket alone.
async fn greet(
    shared: &Arc<Shared>,
    stream: std::io::Result<Channel>,
    unix_name: Option<Vec<u8>>,
    queue: &mpsc::Sender<Request>,
    permit: tokio::sync::OwnedSemaphorePermit,
) {
    let mut channel = match stream {
        Ok(channel) => channel,
        Err(error) => {
            tracing::warn!(target: "wharf::wireup", %error, "accepting a connection");
            // Out of fds, most likely: a pause lets some go.
            tokio::time::sleep(Duration::from_millis(20)).await;
            return;
        }
    };
    let (shared, queue) = (shared.clone(), queue.clone());
    let runtime = shared.runtime.clone();
    runtime.spawn(async move {
        let limit = shared.context.config().handshake_timeout.value;
        // Held until it is taken: who nobody takes is one of so many.
        let _permit = permit;
        match timeout(limit, handshake(&shared, &mut channel, unix_name)).await {
            Ok(Ok(Some((hello, transcript)))) => {
                // A full queue holds the connection back, not the listener.
                let _ = queue.send(Request { channel, hello, transcript, shared }).await;
            }
            // Gone to the Unix socket.
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::debug!(target: "wharf::wireup", peer = %channel.peer_name(), %error, "connection turned down"),
            Err(_) => tracing::debug!(target: "wharf::wireup", peer = %channel.peer_name(), "no handshake within {limit:?}"),
        }
    });
}

async fn handshake(
    shared: &Shared,
    channel: &mut Channel,
    unix_name: Option<Vec<u8>>,
) -> Result<Option<(ClientHello, Transcript)>> {
    let server_nonce: Nonce = random()?;
    let hello = ServerHello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        worker: shared.id,
        identity: identity().clone(),
        unix_name: unix_name.filter(|_| !channel.passes_fds()),
        transports: transports(shared),
        nonce: server_nonce,
        secret_required: shared.context.secret().is_some(),
    };
    channel.send(&hello.encode(), &[]).await?;
    let bytes = match channel.receive().await {
        Ok((bytes, _)) => bytes,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
        Err(error) => return Err(error),
    };
    let client = match ClientHello::decode(&bytes) {
        Ok(client) => client,
        Err(error) => {
            refuse(channel, &error).await;
            return Err(error);
        }
    };
    let transcript = Transcript {
        server_nonce,
        client_nonce: client.nonce,
        server_worker: shared.id,
        client_worker: client.worker,
    };
    if let Some(secret) = shared.context.secret()
        && !client
            .proof
            .as_ref()
            .is_some_and(|proof| transcript.verify(secret, Prover::Client, proof))
    {
        let error = Error::new(
            ErrorKind::AuthenticationFailed,
            "the shared secret is missing or wrong",
        );
        refuse(channel, &error).await;
        return Err(error);
    }
    // A peer whose better path ends here takes the next; whoever listens hears of the one that works.
    if let Err(error) = lane(shared, channel, &client.transports, &info(channel, &client)) {
        refuse(channel, &error).await;
        return Err(error);
    }
    Ok(Some((client, transcript)))
}

fn info(channel: &Channel, client: &ClientHello) -> PeerInfo {
    PeerInfo {
        identity: client.identity.clone(),
        name: channel.peer_name(),
    }
}

/// The best transport that both ends have and that this channel can set up.
fn lane<'a>(
    shared: &'a Shared,
    channel: &Channel,
    offered: &[String],
    info: &PeerInfo,
) -> Result<&'a Transport> {
    let mut why = Vec::new();
    let lane = shared.transports.iter().find(|transport| {
        transport.reach != Reach::Worker
            && offered.iter().any(|offered| offered == transport.name)
            && match transport.connector.can_use(channel, info) {
                Ok(()) => true,
                Err(error) => {
                    why.push(format!("{}: {error}", transport.name));
                    false
                }
            }
    });
    lane.ok_or_else(|| {
        Error::new(
            ErrorKind::Unreachable,
            format!(
                "no transport in common over this connection ({})",
                why.join("; ")
            ),
        )
    })
}

/// Transports to be tried should the one that was chosen not come about: those after it that both ends have and that go between hosts.
fn others<'a>(
    shared: &'a Shared,
    channel: &Channel,
    offered: &[String],
    info: &PeerInfo,
    chosen: &Transport,
) -> Vec<&'a Transport> {
    let after = shared
        .transports
        .iter()
        .skip_while(|transport| transport.name != chosen.name)
        .skip(1);
    let after = after.filter(|transport| {
        chosen.reach == Reach::Network
            && transport.reach == Reach::Network
            && offered.iter().any(|offered| offered == transport.name)
            && transport.connector.can_use(channel, info).is_ok()
    });
    after.collect()
}

/// Transports that could not be set up, and why.
type Refused = Vec<(&'static str, String)>;

/// Sets up the first of these transports that comes about. The next is tried where both ends know that one does not.
async fn connect_by_one<'a>(
    lanes: &[&'a Transport],
    channel: &mut Channel,
    role: Role,
    info: &PeerInfo,
) -> Result<(&'a Transport, Connected, Refused)> {
    let mut refused = Vec::new();
    let mut first = None;
    for (index, lane) in lanes.iter().enumerate() {
        let error = match lane.connector.connect(channel, role, info).await {
            Ok(connected) => return Ok((lane, connected, refused)),
            Err(error) => error,
        };
        let goes_on = channel.was_given_up() && index + 1 < lanes.len();
        if goes_on {
            let next = lanes[index + 1].name;
            tracing::warn!(target: "wharf::wireup", peer = %info.name, transport = lane.name, next, %error, "a transport cannot be set up; the next is tried");
            refused.push((lane.name, error.to_string()));
        }
        first.get_or_insert(error);
        if !goes_on {
            break;
        }
    }
    Err(first.unwrap_or_else(|| {
        Error::new(
            ErrorKind::Protocol,
            "the peer chose a transport that was not offered",
        )
    }))
}

/// Tells the client why not. It may be gone; that changes nothing.
pub(crate) async fn refuse(channel: &mut Channel, error: &Error) {
    let _ = timeout(
        Duration::from_secs(1),
        channel.send(&Verdict::reject(error).encode(), &[]),
    )
    .await;
}

/// Accepts a request on `shared`, which may be another worker than the one that listened.
pub(crate) async fn accept(
    shared: &Arc<Shared>,
    mut request: Request,
    claimed: bool,
) -> Result<(LinkId, EndpointId)> {
    let limit = shared.context.config().handshake_timeout.value;
    let name = request.name();
    let span = tracing::debug_span!(target: "wharf::wireup", "accept", peer = %name);
    let result = timeout(limit, accept_inner(shared, &mut request, claimed))
        .instrument(span)
        .await
        .unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::DeadlineExceeded,
                "the peer did not finish the set-up in time",
            ))
        });
    result.map_err(|error| error.during(Operation::Accept).with_peer(name))
}

async fn accept_inner(
    shared: &Arc<Shared>,
    request: &mut Request,
    claimed: bool,
) -> Result<(LinkId, EndpointId)> {
    let info = info(&request.channel, &request.hello);
    let lane = match lane(shared, &request.channel, &request.hello.transports, &info) {
        Ok(lane) => lane,
        Err(error) => {
            refuse(&mut request.channel, &error).await;
            return Err(error);
        }
    };
    // The secret is the listener's: the client has proved that it knows that one.
    let proof = request
        .shared
        .context
        .secret()
        .map(|secret| request.transcript.proof(secret, Prover::Server));
    let mut lanes = vec![lane.name.to_owned()];
    if lane.reach == Reach::Host
        && shared.context.can_use("cma")
        && request
            .hello
            .transports
            .iter()
            .any(|offered| offered == "cma")
    {
        lanes.push("cma".to_owned());
    }
    let probe = lanes.len() > 1;
    let mut tried = vec![lane];
    tried.extend(others(
        shared,
        &request.channel,
        &request.hello.transports,
        &info,
        lane,
    ));
    lanes.extend(tried.iter().skip(1).map(|lane| lane.name.to_owned()));
    let verdict = Verdict::Accept {
        worker: shared.id,
        proof,
        lanes,
    };
    request.channel.send(&verdict.encode(), &[]).await?;
    let cma = if probe {
        probe_cma(&mut request.channel, &info).await?
    } else {
        None
    };
    let (lane, connected, refused) =
        connect_by_one(&tried, &mut request.channel, Role::Server, &info).await?;
    attach(
        shared,
        (lane.name, refused),
        connected,
        request.hello.worker,
        info,
        cma,
        claimed,
    )
}

/// Whether both ends can read and write each other's memory. A failure of the probe is a slower connection, said once.
async fn probe_cma(channel: &mut Channel, info: &PeerInfo) -> Result<Option<CmaPeer>> {
    match Cma::probe_peer(channel).await? {
        Ok(peer) => Ok(Some(peer)),
        Err(reason) => {
            tracing::warn!(target: "wharf::wireup", peer = %info.name, %reason, "cma cannot be used: long messages are copied twice through shared memory");
            Ok(None)
        }
    }
}

/// Puts a finished link to work.
fn attach(
    shared: &Arc<Shared>,
    (transport, refused): (&'static str, Refused),
    connected: Connected,
    worker: WorkerId,
    info: PeerInfo,
    cma: Option<CmaPeer>,
    claimed: bool,
) -> Result<(LinkId, EndpointId)> {
    shared.with(|engine| {
        if engine.closing {
            return Err(Error::new(ErrorKind::Closed, "the worker is shutting down"));
        }
        let index = engine.core.peers.iter().position(Option::is_none).unwrap_or(engine.core.peers.len());
        let place = u32::try_from(index).map_err(|_| Error::new(ErrorKind::Exhausted, "too many connections"))?;
        let slot = LinkId::new(place, engine.core.endpoints as u32);
        let (interface, link) = engine.attach(transport, slot, connected)?;
        engine.core.endpoints += 1;
        let id = EndpointId(engine.core.endpoints);
        let attributes = link.attributes();
        let pair = link.pair();
        if let Some(pair) = &pair {
            for (region, generation) in engine.core.regions.published() {
                pair.publish_generation(region, generation);
            }
        }
        let mut names = vec![transport];
        if cma.is_some() {
            names.push("cma");
        }
        let one_copy =
            pair.map(|pair| OneCopy { pair, cma, mapped: Vec::new(), asked: Vec::new(), given: Vec::new(), seen: Vec::new() });
        let threshold = {
            let configured = engine.core.rendezvous_threshold;
            let reach = shared.transports.iter().find(|known| known.name == transport).map(|known| known.reach);
            let threshold = if reach == Some(Reach::Network) { configured.inter } else { configured.intra };
            threshold.bytes()
        };
        let limits = Thresholds::new(&attributes, threshold);
        let mut peer = Peer::new(Made {
            id,
            slot,
            interface,
            link,
            short: limits.short,
            eager: limits.eager,
            lending: Lending::new(threshold),
            worker,
            info,
            transports: names,
            one_copy,
            handles: usize::from(claimed),
        });
        peer.refused = refused;
        tracing::debug!(target: "wharf::endpoint", parent: &peer.span, peer = %peer.info.name, transports = ?peer.transports, "connected");
        tracing::debug!(target: "wharf::protocol", parent: &peer.span, inline = peer.short, eager = peer.eager, direct_copies = peer.one_copy.is_some(), "longest messages");
        if index == engine.core.peers.len() {
            engine.core.peers.push(Some(peer));
        } else {
            engine.core.peers[index] = Some(peer);
        }
        if !claimed {
            engine.core.unclaimed.push(slot);
            engine.core.wakes.append(&mut engine.core.arrivals);
        }
        Ok((slot, id))
    })
}

/// Where a connection should lead.
#[allow(unreachable_pub, reason = "named by a sealed trait")]
#[derive(Debug)]
pub enum Destination {
    Sockets(Vec<SocketAddr>),
    Rdma(Vec<SocketAddr>),
    Worker(WorkerAddress),
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sockets(sockets) | Self::Rdma(sockets) => write!(f, "{sockets:?}"),
            Self::Worker(address) => write!(f, "worker {}", address.worker()),
        }
    }
}

/// Dials.
pub(crate) async fn connect(
    shared: &Arc<Shared>,
    destination: Destination,
) -> Result<(LinkId, EndpointId)> {
    let limit = shared.context.config().connect_timeout.value;
    let begin = Instant::now();
    let span = tracing::debug_span!(target: "wharf::wireup", "connect", to = %destination);
    let result = timeout(limit, async {
        match destination {
            Destination::Sockets(sockets) => dial(shared, &sockets, None, None).await,
            Destination::Rdma(addresses) => dial_rdma(shared, &addresses, limit).await,
            Destination::Worker(address) => dial_worker(shared, &address).await,
        }
    });
    let result = result
        .instrument(span)
        .await
        .unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::DeadlineExceeded,
                format!("no connection within {limit:?}"),
            ))
        })
        .map_err(|error| error.during(Operation::Connect));
    match &result {
        Ok(_) => shared.dialling.made(begin.elapsed()),
        Err(_) => shared.dialling.failed(),
    }
    result
}

/// Connections by address that are being made between this worker and another. When both dial, the connection that the worker with the
/// lower id dials is the one for both.
#[derive(Default)]
struct Meeting {
    dialling: usize,
    accepting: usize,
    /// This side has dialled, and the peer's connection is the one.
    crossed: bool,
}

impl Meeting {
    fn count(&mut self, accepts: bool) -> &mut usize {
        if accepts {
            &mut self.accepting
        } else {
            &mut self.dialling
        }
    }
}

/// Counts one connection of a meeting in, and out again however it ends.
struct Met<'a> {
    shared: &'a Shared,
    worker: WorkerId,
    accepts: bool,
}

impl<'a> Met<'a> {
    /// A dial. `None`: a connection of the peer's is being accepted already.
    fn dials(shared: &'a Shared, worker: WorkerId) -> Option<Self> {
        let mut meetings = shared.wireup.meetings.lock();
        let meeting = meetings.entry(worker).or_default();
        (meeting.accepting == 0).then(|| {
            meeting.dialling += 1;
            Self {
                shared,
                worker,
                accepts: false,
            }
        })
    }

    /// A request. `None`: this side's own connection is the one.
    fn accepts(shared: &'a Shared, worker: WorkerId) -> Option<Self> {
        let mut meetings = shared.wireup.meetings.lock();
        let meeting = meetings.entry(worker).or_default();
        if meeting.dialling > 0 {
            if shared.id < worker {
                return None;
            }
            meeting.crossed = true;
        }
        meeting.accepting += 1;
        Some(Self {
            shared,
            worker,
            accepts: true,
        })
    }

    fn has_crossed(&self) -> bool {
        let meetings = self.shared.wireup.meetings.lock();
        meetings
            .get(&self.worker)
            .is_some_and(|meeting| meeting.crossed)
    }
}

impl Drop for Met<'_> {
    fn drop(&mut self) {
        let mut meetings = self.shared.wireup.meetings.lock();
        if let Some(meeting) = meetings.get_mut(&self.worker) {
            *meeting.count(self.accepts) -= 1;
            if meeting.dialling == 0 {
                meeting.crossed = false;
                if meeting.accepting == 0 {
                    meetings.remove(&self.worker);
                }
            }
        }
        drop(meetings);
        if self.accepts {
            // Who waited for it looks again, and dials if there is nothing.
            self.shared
                .with(|engine| engine.core.wakes.append(&mut engine.core.arrivals));
        }
    }
}

/// Waits for a connection that the peer makes. `None`: none is being made any more.
async fn arrival(shared: &Shared, worker: WorkerId) -> Option<(LinkId, EndpointId)> {
    let coming = || {
        let meetings = shared.wireup.meetings.lock();
        meetings
            .get(&worker)
            .is_some_and(|meeting| meeting.accepting > 0)
    };
    std::future::poll_fn(|cx| {
        if coming() {
            shared.with(|engine| engine.core.arrivals.push(cx.waker().clone()));
            if coming() {
                return claim(shared, worker)
                    .map_or(Poll::Pending, |found| Poll::Ready(Some(found)));
            }
        }
        // One that was accepted could be claimed before it was counted out.
        Poll::Ready(claim(shared, worker))
    })
    .await
}

async fn dial_worker(
    shared: &Arc<Shared>,
    address: &WorkerAddress,
) -> Result<(LinkId, EndpointId)> {
    let worker = address.worker();
    if worker == shared.id {
        let known = shared
            .transports
            .iter()
            .any(|transport| transport.reach == Reach::Worker);
        if !known {
            return Err(Error::new(
                ErrorKind::Unreachable,
                "an endpoint to oneself needs the transport `self`",
            ));
        }
        let info = PeerInfo {
            identity: identity().clone(),
            name: "self".to_owned(),
        };
        return attach(
            shared,
            ("self", Refused::new()),
            loopback::Loopback::connected(),
            worker,
            info,
            None,
            true,
        );
    }
    let unix = address.unix_name().filter(|_| {
        address.identity().same_host(identity())
            && shared
                .transports
                .iter()
                .any(|transport| transport.reach == Reach::Host)
    });
    loop {
        let met = loop {
            if let Some(found) = arrival(shared, worker).await {
                return Ok(found);
            }
            if let Some(met) = Met::dials(shared, worker) {
                break met;
            }
        };
        // What came before it was counted in.
        if let Some(found) = claim(shared, worker) {
            return Ok(found);
        }
        match dial(shared, address.sockets(), unix, Some(worker)).await {
            Ok(own) if met.has_crossed() => {
                let Some(found) = arrival(shared, worker).await else {
                    return Ok(own);
                };
                shared.release_endpoint(own.0, own.1);
                return Ok(found);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // The peer's own is on its way; should that fail, this side dials again.
                drop(met);
                tokio::time::sleep(CROSSED_PAUSE).await;
            }
            result => return result,
        }
    }
}

/// Takes a connection that the worker itself has made to this one.
fn claim(shared: &Shared, worker: WorkerId) -> Option<(LinkId, EndpointId)> {
    shared.with(|engine| {
        let core = &mut engine.core;
        let index = core.unclaimed.iter().position(|link| {
            core.peers
                .get(link.index())
                .and_then(Option::as_ref)
                .is_some_and(|peer| peer.worker == worker && matches!(peer.status, Status::Open))
        })?;
        let link = core.unclaimed.swap_remove(index);
        let peer = core.peer(link)?;
        peer.handles += 1;
        peer.claimed = true;
        Some((link, peer.id))
    })
}

/// Dials sockets, or a Unix socket first: of any worker, or of this one alone.
async fn dial(
    shared: &Arc<Shared>,
    sockets: &[SocketAddr],
    unix: Option<&[u8]>,
    addressed: Option<WorkerId>,
) -> Result<(LinkId, EndpointId)> {
    let tcp = shared
        .transports
        .iter()
        .any(|transport| transport.reach == Reach::Network);
    let mut last = None;
    if let Some(name) = unix {
        match dial_unix(shared, name, addressed, "the worker's Unix socket").await {
            Err(error) if final_verdict(&error) => return Err(error),
            Err(error) => {
                if tcp && !sockets.is_empty() {
                    tracing::warn!(target: "wharf::wireup", %error, "shared memory cannot be used: falling back to tcp");
                }
                last = Some(error);
            }
            Ok(found) => return Ok(found),
        }
    }
    for (index, socket) in sockets.iter().enumerate() {
        let mut stood = false;
        let opening = async {
            let stream = TcpStream::connect(socket).await;
            let stream = stream.map_err(|error| Error::io("connecting", error))?;
            stood = true;
            Ok(Channel::tcp(stream))
        };
        let (channel, server) = match greeted(shared, (index, sockets.len()), opening).await {
            Ok(greeted) => greeted,
            Err(error) if final_verdict(&error) => return Err(error.with_peer(socket)),
            // Who has answered says more than who has not.
            Err(error) if stood => {
                last = Some(error.with_peer(socket));
                continue;
            }
            Err(error) => {
                last.get_or_insert_with(|| error.with_peer(socket));
                continue;
            }
        };
        let name = socket.to_string();
        match go_on(shared, channel, server, name, addressed, unix.is_none()).await {
            Err(error) if !final_verdict(&error) && index + 1 < sockets.len() => {
                last = Some(error.with_peer(socket));
            }
            result => return result.map_err(|error| error.with_peer(socket)),
        }
    }
    Err(last.unwrap_or_else(|| {
        Error::new(
            ErrorKind::Unreachable,
            "no path to that worker: it is on another host or offers no transport in common",
        )
    }))
}

/// Whether another path would hear the same.
fn final_verdict(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Rejected
            | ErrorKind::AuthenticationFailed
            | ErrorKind::VersionMismatch
            | ErrorKind::WouldBlock
            | ErrorKind::Malformed
    )
}

/// Opens a channel and hears the server's hello, in a share of the time where there are several addresses: one that swallows what is sent leaves the
/// others theirs. This is the one with an index, of so many.
async fn greeted(
    shared: &Shared,
    (index, count): (usize, usize),
    opening: impl Future<Output = Result<Channel>>,
) -> Result<(Channel, ServerHello)> {
    /// The least of all shares.
    const LEAST: Duration = Duration::from_millis(500);
    let limit = shared.context.config().connect_timeout.value;
    let share = match index + 1 < count {
        true => (limit / count as u32).max(LEAST),
        // All that is left, which the caller knows.
        false => Duration::MAX,
    };
    let hello = async {
        let mut channel = opening.await?;
        let server = receive_hello(&mut channel).await?;
        Ok((channel, server))
    };
    timeout(share, hello).await.unwrap_or_else(|_| {
        let text = format!("no answer within {share:?}");
        Err(Error::new(ErrorKind::DeadlineExceeded, text))
    })
}

/// Dials addresses of RDMA devices, one after the other.
async fn dial_rdma(
    shared: &Arc<Shared>,
    addresses: &[SocketAddr],
    limit: Duration,
) -> Result<(LinkId, EndpointId)> {
    let mut last = None;
    for (index, address) in addresses.iter().enumerate() {
        let opening = rdmacm::dial(*address, limit, *shared.context.config().keepalive);
        let (channel, server) = match greeted(shared, (index, addresses.len()), opening).await {
            Ok(greeted) => greeted,
            Err(error) => {
                last.get_or_insert_with(|| error.with_peer(address));
                continue;
            }
        };
        match go_on(shared, channel, server, address.to_string(), None, true).await {
            Err(error) if !final_verdict(&error) => last = Some(error.with_peer(address)),
            result => return result.map_err(|error| error.with_peer(address)),
        }
    }
    Err(last.unwrap_or_else(|| Error::new(ErrorKind::InvalidArgument, "no address to connect to")))
}

/// The client's part over a channel between hosts: where the server turns out to be on this host, over its Unix socket instead.
async fn go_on(
    shared: &Arc<Shared>,
    channel: Channel,
    server: ServerHello,
    name: String,
    addressed: Option<WorkerId>,
    try_unix: bool,
) -> Result<(LinkId, EndpointId)> {
    let shm = shared.transports.iter().find(|transport| {
        transport.reach == Reach::Host
            && server
                .transports
                .iter()
                .any(|offered| offered == transport.name)
    });
    if try_unix
        && let (Some(unix), Some(_)) = (&server.unix_name, shm)
        && server.identity.same_host(identity())
    {
        let tcp = shared.transports.iter().any(|transport| {
            transport.reach == Reach::Network
                && server
                    .transports
                    .iter()
                    .any(|offered| offered == transport.name)
        });
        match dial_unix(shared, unix, addressed, &name).await {
            Err(error) if tcp && !final_verdict(&error) => {
                tracing::warn!(target: "wharf::wireup", peer = %name, %error, "shared memory cannot be used: falling back to tcp");
            }
            result => return result,
        }
    }
    negotiate(shared, channel, server, addressed, name).await
}

async fn dial_unix(
    shared: &Arc<Shared>,
    name: &[u8],
    addressed: Option<WorkerId>,
    peer: &str,
) -> Result<(LinkId, EndpointId)> {
    let stream = abstract_socket::connect(name).await.map_err(|error| {
        Error::io(
            "the peer's Unix socket (another network namespace, or the peer is gone)",
            error,
        )
    })?;
    let mut channel = Channel::unix(stream);
    let server = receive_hello(&mut channel).await?;
    negotiate(shared, channel, server, addressed, peer.to_owned()).await
}

async fn receive_hello(channel: &mut Channel) -> Result<ServerHello> {
    let (bytes, _) = channel.receive().await?;
    ServerHello::decode(&bytes)
}

/// The client's part of the handshake, once the channel is chosen.
async fn negotiate(
    shared: &Arc<Shared>,
    mut channel: Channel,
    server: ServerHello,
    addressed: Option<WorkerId>,
    name: String,
) -> Result<(LinkId, EndpointId)> {
    if addressed.is_some_and(|worker| worker != server.worker) {
        let text = "another worker answers there: the one that was addressed is gone";
        return Err(Error::new(ErrorKind::Unreachable, text).with_peer(name));
    }
    let client_nonce: Nonce = random()?;
    let transcript = Transcript {
        server_nonce: server.nonce,
        client_nonce,
        server_worker: server.worker,
        client_worker: shared.id,
    };
    let secret = shared.context.secret();
    if server.secret_required && secret.is_none() {
        return Err(Error::new(
            ErrorKind::AuthenticationFailed,
            "the peer wants a shared secret and this context has none",
        ));
    }
    let hello = ClientHello {
        version: server.version()?,
        worker: shared.id,
        identity: identity().clone(),
        transports: transports(shared),
        nonce: client_nonce,
        proof: secret.map(|secret| transcript.proof(secret, Prover::Client)),
        by_address: addressed.is_some(),
    };
    channel.send(&hello.encode(), &[]).await?;
    let (bytes, _) = channel.receive().await?;
    let (worker, proof, lanes) = match Verdict::decode(&bytes)? {
        Verdict::Accept {
            worker,
            proof,
            lanes,
        } => (worker, proof, lanes),
        Verdict::Reject { code, reason } => return Err(Verdict::rejection(code, reason)),
    };
    if let Some(secret) = secret
        && !proof
            .as_ref()
            .is_some_and(|proof| transcript.verify(secret, Prover::Server, proof))
    {
        return Err(Error::new(
            ErrorKind::AuthenticationFailed,
            "the peer did not prove that it knows the shared secret",
        ));
    }
    let info = PeerInfo {
        identity: server.identity,
        name,
    };
    // The first, and those to be tried should it not come about.
    let known = |name: &String| {
        let mut transports = shared.transports.iter();
        transports.find(|transport| transport.name == name)
    };
    let lane = lanes.first().and_then(known).ok_or_else(|| {
        Error::new(
            ErrorKind::Protocol,
            "the peer chose a transport that was not offered",
        )
    })?;
    let mut tried = vec![lane];
    let others = lanes.iter().skip(1).filter(|name| *name != "cma");
    tried.extend(
        others
            .map_while(known)
            .filter(|other| other.reach == Reach::Network),
    );
    if tried.len() == 1 {
        // Else its set-up fails at both ends, and the next is taken.
        lane.connector.can_use(&channel, &info)?;
    }
    let cma = if lanes.iter().any(|lane| lane == "cma") {
        probe_cma(&mut channel, &info).await?
    } else {
        None
    };
    let (lane, connected, refused) =
        connect_by_one(&tried, &mut channel, Role::Client, &info).await?;
    let transport = (lane.name, refused);
    attach(shared, transport, connected, worker, info, cma, true)
}

/// The worker's address: starts to listen for those who have it, at the first call.
pub(crate) fn address(shared: &Arc<Shared>) -> Result<WorkerAddress> {
    let mut known = shared.wireup.address.lock();
    if let Some(address) = &*known {
        return Ok(address.clone());
    }
    let _runtime = shared.runtime.enter();
    let mut tcp = Vec::new();
    let mut sockets = Vec::new();
    if shared
        .transports
        .iter()
        .any(|transport| transport.reach == Reach::Network)
    {
        for any in [
            IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        ] {
            let Ok(listener) = listen_any(any) else {
                continue;
            };
            let port = listener
                .local_addr()
                .map_err(|error| Error::io("the listener's address", error))?
                .port();
            let devices = &shared.context.config().net_devices.value;
            for (name, ip) in interface_addresses()? {
                // A link-local address means nothing to another host without its zone.
                let local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
                if ip.is_ipv4() == any.is_ipv4()
                    && !local
                    && devices.allows(&name)
                    && sockets.len() < 32
                {
                    sockets.push(SocketAddr::new(ip, port));
                }
            }
            tcp.push(listener);
        }
    }
    // Another host's way before the one that only this host can go.
    sockets.sort_by_key(|socket| socket.ip().is_loopback());
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
    let tasks = place.serve(shared, sender);
    let acceptor = shared.clone();
    shared.runtime.spawn(async move {
        let mut stopped = acceptor.stopped.subscribe();
        loop {
            tokio::select! {
                request = requests.recv() => match request {
                    Some(request) => {
                        acceptor.runtime.spawn(accept_unasked(acceptor.clone(), request));
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

fn listen_any(ip: IpAddr) -> std::io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(
        if ip.is_ipv4() {
            Domain::IPV4
        } else {
            Domain::IPV6
        },
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if ip.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::new(ip, 0).into())?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
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
    if let Err(error) = accept(&shared, request, false).await {
        tracing::debug!(target: "wharf::wireup", %error, "a connection to this worker's address failed");
    }
    drop(met);
}
