//! Dialling: the addresses of a destination in turn, each with its share of the time.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::{net::TcpStream, time::timeout};
use tracing::Instrument;

#[cfg(feature = "verbs")]
use crate::transport::rdmacm;
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    protocol::{
        WorkerAddress,
        handshake::{Client, Verdict},
        hello::Message,
    },
    sys::{abstract_socket, identity::identity},
    trace,
    transport::{
        PeerInfo, Reach,
        channel::{Channel, Origin},
        loopback, registry,
    },
    types::{EndpointId, LinkId, Source},
    worker::{
        connect::said::{named, transports, trial},
        shared::Shared,
    },
};

use super::{
    handshake::{accepted, arrive, establish, greet, introduce, only},
    lanes::{Refused, attach},
    listen::admits,
    meeting::{Met, arrival, claim},
};

/// Before another try where the peer says that it is to come later: its own connection stands when both ends dialled, or a listener had no place. At
/// first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(160)];

/// Where a connection should lead.
#[derive(Debug)]
pub enum Destination {
    /// Of the host of this name, where there is one.
    Sockets(Vec<SocketAddr>, Option<String>),
    #[cfg(feature = "verbs")]
    Rdma(Vec<SocketAddr>),
    Worker(WorkerAddress),
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = |f: &mut fmt::Formatter<'_>, sockets: &[SocketAddr]| {
            let sockets = sockets.iter().map(ToString::to_string);
            f.write_str(&sockets.collect::<Vec<_>>().join(", "))
        };
        match self {
            Self::Sockets(sockets, _) => all(f, sockets),
            #[cfg(feature = "verbs")]
            Self::Rdma(sockets) => all(f, sockets),
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
    let mut later = None;
    let answered = AtomicBool::new(false);
    // Of kilobytes, which a program's own futures would carry, and copy, else.
    let all = Box::pin(async {
        let [mut pause, longest] = PAUSES;
        loop {
            let result = match &destination {
                Destination::Sockets(sockets, host) => {
                    let how = (None, None);
                    dial(shared, sockets, host.as_deref(), how, &answered).await
                }
                #[cfg(feature = "verbs")]
                Destination::Rdma(addresses) => {
                    dial_rdma(shared, addresses, limit, &answered).await
                }
                Destination::Worker(address) => dial_worker(shared, address, &answered).await,
            };
            match result {
                Err(error) if error.kind() == ErrorKind::WouldBlock => later = Some(error),
                result => return result,
            }
            tokio::time::sleep(pause).await;
            pause = longest.min(2 * pause);
        }
    });
    let result = timeout(limit, all)
        .instrument(span)
        .await
        .unwrap_or_else(|_| {
            let text = match answered.into_inner() {
                true => format!(
                    "a wharf listener is there, and nobody accepted the connection within {limit:?}"
                ),
                false => format!("nobody answered within {limit:?}"),
            };
            let error = Error::new(ErrorKind::DeadlineExceeded, text);
            let error = error.with_peer(&destination);
            Err(match later {
                Some(why) => error.with_source(why),
                None => error,
            })
        });
    let result = result.map_err(|error| error.during(Operation::Connect));
    match &result {
        Ok(_) => shared.dialling.made(begin.elapsed()),
        Err(_) => shared.dialling.failed(),
    }
    result
}

async fn dial_worker(
    shared: &Arc<Shared>,
    address: &WorkerAddress,
    answered: &AtomicBool,
) -> Result<(LinkId, EndpointId)> {
    let worker = address.worker();
    if worker == shared.id {
        if !shared.reaches(Reach::Worker) {
            return Err(Error::new(
                ErrorKind::Unreachable,
                "an endpoint to oneself needs the transport `self`",
            ));
        }
        let info = PeerInfo {
            identity: identity().clone(),
            name: "self".to_owned(),
            certificates: None,
            origin: Origin::default(),
        };
        return attach(
            shared,
            ("self", Refused::new()),
            loopback::Loopback::connected(),
            worker,
            (info, Source::Itself, None),
            None,
            true,
        );
    }
    let unix = address
        .unix_name()
        .filter(|_| address.identity().same_host(identity()) && shared.reaches(Reach::Host));
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
    if unix.is_none() && address.sockets().is_empty() {
        return Err(no_path(shared, address));
    }
    let how = (unix, Some(&met));
    let made = tokio::select! {
        biased;
        found = met.found() => return Ok(found),
        made = dial(shared, address.sockets(), None, how, answered) => made?,
    };
    let own = Own {
        shared,
        made,
        is_kept: false,
    };
    if met.has_crossed()
        && let Some(found) = arrival(shared, worker).await
    {
        return Ok(found);
    }
    Ok(own.keep())
}

/// A connection of which nobody has been told yet. Where another stands, or who dials has gone meanwhile, it is let go of.
struct Own<'a> {
    shared: &'a Shared,
    made: (LinkId, EndpointId),
    is_kept: bool,
}

impl Own<'_> {
    fn keep(mut self) -> (LinkId, EndpointId) {
        self.is_kept = true;
        self.made
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.shared.release_endpoint(self.made.0, self.made.1);
        }
    }
}

/// An address by which nothing can be tried.
fn no_path(shared: &Shared, address: &WorkerAddress) -> Error {
    let place = match address.identity().same_host(identity()) {
        true => "on this host",
        false => "on another host",
    };
    let theirs = named(address.transports());
    let ours = transports(shared).join(", ");
    let text = format!(
        "no path: that worker, {place}, has {theirs} and no address in the network; this one has {ours}"
    );
    Error::new(ErrorKind::Unreachable, text).with_peer(format_args!("worker {}", address.worker()))
}

/// Dials sockets, or a Unix socket first: of any worker, or of this one alone.
async fn dial(
    shared: &Arc<Shared>,
    sockets: &[SocketAddr],
    host: Option<&str>,
    (unix, met): (Option<&[u8]>, Option<&Met<'_>>),
    answered: &AtomicBool,
) -> Result<(LinkId, EndpointId)> {
    let tcp = shared.reaches(Reach::Network);
    let mut last = None;
    if let Some(name) = unix {
        let named = |error: Error| match met {
            Some(met) => error.with_peer(format_args!("worker {}", met.worker())),
            None => error,
        };
        let dialled = dial_unix(shared, name, None, met, "the worker's Unix socket").await;
        match dialled.map_err(named) {
            Err(error) if final_verdict(&error) => return Err(error),
            Err(error) => {
                if tcp && !sockets.is_empty() {
                    falls_back(&error, "the worker");
                }
                last = Some(error);
            }
            Ok(found) => return Ok(found),
        }
    }
    for (index, socket) in sockets.iter().enumerate() {
        let mut stood = false;
        let opening = async {
            let stream = TcpStream::connect(socket).await?;
            stood = true;
            let mut channel = Channel::tcp(stream);
            channel.look(&shared.wireup.patience);
            if let Some(tls) = shared.context.tls() {
                let session = tls.dial(met.is_some(), host, socket.ip())?;
                channel.secure(session).await?;
            }
            Ok(channel)
        };
        let (channel, client) = match greeted(shared, (index, sockets.len()), opening).await {
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
        answered.store(true, Relaxed);
        let name = socket.to_string();
        match go_on(shared, channel, client, name, met, unix.is_none()).await {
            Err(error) if !final_verdict(&error) && index + 1 < sockets.len() => {
                last = Some(error.with_peer(socket));
            }
            result => return result.map_err(|error| error.with_peer(socket)),
        }
    }
    Err(last.unwrap_or_else(no_address))
}

fn no_address() -> Error {
    Error::new(ErrorKind::InvalidArgument, "no address to connect to")
}

/// A peer on this host is reached over the network.
fn falls_back(error: &Error, peer: &str) {
    let remedy = registry::remedy_between("shm");
    trace::slower!(format!("tcp for shm: {:?}", error.kind()), target: "wharf::wireup", peer, %error, remedy, "shared memory cannot be used: falling back to tcp");
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

/// Opens a channel and hears who answers, in a share of the time where there are several addresses: one that swallows what is sent leaves the
/// others theirs. This is the one with an index, of so many.
async fn greeted(
    shared: &Shared,
    (index, count): (usize, usize),
    opening: impl Future<Output = Result<Channel>>,
) -> Result<(Channel, Client)> {
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
        let client = greet(shared, &mut channel).await?;
        Ok((channel, client))
    };
    timeout(share, hello).await.unwrap_or_else(|_| {
        let text = format!("no answer within {share:?}");
        Err(Error::new(ErrorKind::DeadlineExceeded, text))
    })
}

/// Dials addresses of RDMA devices, one after the other.
#[cfg(feature = "verbs")]
async fn dial_rdma(
    shared: &Arc<Shared>,
    addresses: &[SocketAddr],
    limit: Duration,
    answered: &AtomicBool,
) -> Result<(LinkId, EndpointId)> {
    let mut last = None;
    for (index, address) in addresses.iter().enumerate() {
        let opening = async {
            let config = shared.context.config();
            let dial = rdmacm::dial(&config.libraries, *address, limit, *config.keepalive);
            let mut channel = dial.await?;
            channel.look(&shared.wireup.patience);
            Ok(channel)
        };
        let (channel, client) = match greeted(shared, (index, addresses.len()), opening).await {
            Ok(greeted) => greeted,
            Err(error) => {
                last.get_or_insert_with(|| error.with_peer(address));
                continue;
            }
        };
        answered.store(true, Relaxed);
        match go_on(shared, channel, client, address.to_string(), None, true).await {
            Err(error) if !final_verdict(&error) => last = Some(error.with_peer(address)),
            result => return result.map_err(|error| error.with_peer(address)),
        }
    }
    Err(last.unwrap_or_else(no_address))
}

/// The client's part over a channel between hosts: where the server turns out to be on this host, over its Unix socket instead.
async fn go_on(
    shared: &Arc<Shared>,
    mut channel: Channel,
    mut client: Client,
    name: String,
    met: Option<&Met<'_>>,
    try_unix: bool,
) -> Result<(LinkId, EndpointId)> {
    let addressed = met.map(Met::worker);
    only(addressed, &client.server(), &name)?;
    let _told = tells(met)?;
    let mut verdict = introduce(shared, &mut channel, &mut client, !try_unix, None).await?;
    if let Verdict::Elsewhere(elsewhere) = &verdict
        && try_unix
    {
        let tcp = shared.shares(Reach::Network, &elsewhere.transports);
        let sent = Some((&client, channel.origin()));
        match dial_unix(shared, &elsewhere.unix_name.0, sent, met, &name).await {
            Err(error) if tcp && !final_verdict(&error) => {
                falls_back(&error, &name);
            }
            result => return result,
        }
        channel.send(&Message::Stays.encode(), &[]).await?;
        let bytes = channel.receive_alone().await?;
        verdict = client.verdict(&bytes)?;
    }
    establish(shared, channel, accepted(verdict)?, addressed, name, None).await
}

/// See [`Met::tells`]. Of an address that is no worker's nothing is known, and whoever is there is told.
fn tells<'a>(met: Option<&Met<'a>>) -> Result<Option<Met<'a>>> {
    met.map_or(Ok(None), Met::tells)
}

/// Where a worker has named its Unix socket in a handshake, that goes on there: nobody else's
/// socket will do. The connection is still that of the addresses where it was named.
async fn dial_unix(
    shared: &Arc<Shared>,
    name: &[u8],
    sent: Option<(&Client, Origin)>,
    met: Option<&Met<'_>>,
    peer: &str,
) -> Result<(LinkId, EndpointId)> {
    let addressed = met.map(Met::worker);
    let open = async || {
        let stream = abstract_socket::connect(name).await.map_err(|error| {
            Error::io(
                "the worker's Unix socket (another network namespace, or the peer is gone)",
                error,
            )
        })?;
        let mut channel = Channel::unix(stream);
        channel.look(&shared.wireup.patience);
        if let Some((_, met_at)) = sent {
            channel.met_at(met_at);
        }
        admits(shared, &channel)?;
        Ok::<_, Error>(channel)
    };
    let mut channel = open().await?;
    let trial = trial(shared, &channel)?;
    let went_on = match sent {
        Some((client, _)) => match arrive(client, &mut channel, trial.as_ref()).await {
            Ok(verdict) => Some(verdict),
            // Its first connection had to give way in a crowd, and the handshake is forgotten.
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                channel = open().await?;
                None
            }
            Err(error) => return Err(error),
        },
        None => None,
    };
    let mut _told = None;
    let verdict = match went_on {
        Some(verdict) => verdict,
        None => {
            let mut client = greet(shared, &mut channel).await?;
            if sent.is_some_and(|(sent, _)| sent.server() != client.server()) {
                let text = "another worker has the Unix socket that the peer named";
                return Err(Error::new(ErrorKind::Unreachable, text));
            }
            only(addressed, &client.server(), peer)?;
            if sent.is_none() {
                _told = tells(met)?;
            }
            introduce(shared, &mut channel, &mut client, true, trial.as_ref()).await?
        }
    };
    let name = peer.to_owned();
    establish(shared, channel, accepted(verdict)?, addressed, name, trial).await
}
