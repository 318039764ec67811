//! Lanes: which transport a connection takes, its set-up, and the finished link.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::time::timeout;
use tracing::Instrument;

use crate::{
    error::{Error, ErrorKind, Operation, Result},
    protocol::{
        hello::Acceptance,
        thresholds::{Lending, Thresholds},
    },
    sys::identity::identity,
    trace,
    transport::{
        Connected, Pair, PeerInfo, Reach, Role,
        channel::Channel,
        cma::{self, CmaPeer},
        registry,
    },
    types::{EndpointId, LinkId, Source, WorkerId},
    worker::{
        connect::{
            accepted::Seat,
            request::Request,
            said::{info, named, refuse, transports, trial},
        },
        peer::{Made, OneCopy, Peer, pinned},
        shared::{Shared, Transport},
    },
};

/// The best transport that both ends have and that this channel can set up, and where it goes between hosts those after it that do so too, to be
/// tried should it not come about.
pub(super) fn lanes<'a>(
    shared: &'a Shared,
    channel: &Channel,
    offered: &[String],
    info: &PeerInfo,
) -> Result<Vec<&'a Transport>> {
    let (mut lanes, mut why) = (Vec::<&Transport>::new(), String::new());
    for transport in &shared.transports {
        let may = match lanes.first() {
            None => transport.reach != Reach::Worker,
            Some(best) => best.reach == Reach::Network && transport.reach == Reach::Network,
        };
        let is_common = offered.iter().any(|offered| offered == transport.name);
        if is_common && transport.reach == Reach::Worker {
            why += &format!("; {}: it leads to a worker itself", transport.name);
        }
        if may && is_common {
            match transport.connector.can_use(channel, info) {
                Ok(()) => lanes.push(transport),
                Err(error) => why += &format!("; {}: {error}", transport.name),
            }
        }
    }
    if lanes.is_empty() {
        let (ours, theirs) = (transports(shared).join(", "), named(offered));
        let text =
            format!("no transport in common: the listener has {ours}; who dials has {theirs}{why}");
        return Err(Error::new(ErrorKind::Unreachable, text));
    }
    Ok(lanes)
}

/// Transports that could not be set up, and why.
pub(super) type Refused = Vec<(&'static str, String)>;

/// Sets up the first of these transports that comes about. The next is tried where both ends know that one does not.
pub(super) async fn connect_by_one<'a>(
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
            let remedy = registry::remedy(lane.name);
            trace::slower!(format!("{next} for {}: {:?}", lane.name, error.kind()), target: "wharf::wireup", peer = %info.name, transport = lane.name, next, %error, remedy, "a transport cannot be set up; the next is tried");
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

/// A place for one more connection. A worker's sockets are closed a little later than the worker.
fn seat(shared: &Shared, source: Source) -> Result<Seat> {
    match shared.with(|engine| engine.closing) {
        Some(why) => Err(Error::new(ErrorKind::Rejected, why)),
        None => shared
            .accepted
            .enter(source, &shared.context.config().limits),
    }
}

async fn accept_inner(
    shared: &Arc<Shared>,
    request: &mut Request,
    claimed: bool,
) -> Result<(LinkId, EndpointId)> {
    let source = request.channel.source();
    let seat = match seat(shared, source) {
        Ok(seat) => seat,
        Err(error) => {
            refuse(&mut request.channel, &error).await;
            return Err(error);
        }
    };
    let info = info(&request.channel, &request.client);
    let lanes = match lanes(shared, &request.channel, &request.client.transports, &info) {
        Ok(lanes) => lanes,
        Err(error) => {
            refuse(&mut request.channel, &error).await;
            return Err(error);
        }
    };
    let tried_memory = match request.client.memory {
        Some(landmark) if lanes[0].reach == Reach::Host => match trial(shared, &request.channel)? {
            Some(trial) => Some((trial, CmaPeer::reach(&request.channel, &landmark).await)),
            None => None,
        },
        _ => None,
    };
    let tried = tried_memory.as_ref().map(|(trial, reached)| {
        let reached = reached.as_ref().map(|_| ()).map_err(Clone::clone);
        (trial.landmark(), reached)
    });
    let (memory, reached) = tried.unzip();
    let acceptance = Acceptance {
        key: shared.key.public(),
        identity: identity().clone(),
        lanes: lanes.iter().map(|lane| lane.name.to_owned()).collect(),
        memory,
        reached,
    };
    let yes = request.server.accept(&shared.key, &acceptance)?;
    request.channel.send(&yes, &[]).await?;
    // Not earlier: until here this end works while it waits for the other, and would keep it waiting.
    request.shared.wireup.think_ahead()?;
    let (lane, connected, refused) =
        connect_by_one(&lanes, &mut request.channel, Role::Server, &info).await?;
    let cma = match tried_memory {
        Some((_, reached)) => {
            let note = request.channel.take_note().unwrap_or_default();
            told(cma::settled(reached, cma::decode(&note)?), &info)
        }
        None => None,
    };
    attach(
        shared,
        (lane.name, refused),
        connected,
        request.worker(),
        (info, source, Some(seat)),
        cma,
        claimed,
    )
}

/// Whether both ends can read and write each other's memory. Where not it is a slower connection, said once.
pub(super) fn told(
    settled: std::result::Result<CmaPeer, String>,
    info: &PeerInfo,
) -> Option<CmaPeer> {
    settled
        .inspect_err(|reason| {
            let remedy = registry::remedy_between(cma::NAME);
            trace::slower!(format!("no cma: {reason}"), target: "wharf::wireup", peer = %info.name, %reason, remedy, "cma cannot be used: long messages are copied twice through shared memory");
        })
        .ok()
}

/// The next endpoint of any worker of this process: memory that one has is no other's.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Puts a finished link to work. What its peer makes this side hold is charged to the source; a connection that the peer made has a seat.
pub(super) fn attach(
    shared: &Arc<Shared>,
    (transport, refused): (&'static str, Refused),
    connected: Connected,
    worker: WorkerId,
    (info, source, seat): (PeerInfo, Source, Option<Seat>),
    cma: Option<CmaPeer>,
    claimed: bool,
) -> Result<(LinkId, EndpointId)> {
    shared.with(|engine| {
        if engine.closing.is_some() {
            return Err(engine.closed());
        }
        let place = u32::try_from(engine.core.movers.ctx.next_place()).map_err(|_| Error::new(ErrorKind::Exhausted, "too many connections"))?;
        let slot = LinkId::new(place, engine.core.movers.ctx.endpoints as u32);
        let (interface, link) = engine.attach(transport, slot, connected)?;
        engine.core.movers.ctx.endpoints += 1;
        let id = EndpointId(NEXT.fetch_add(1, Relaxed));
        let attributes = link.attributes();
        let mut names = vec![transport];
        let threshold = {
            let configured = engine.core.movers.ctx.rendezvous_threshold;
            let reach = shared.transports.iter().find(|known| known.name == transport).map(|known| known.reach);
            if reach == Some(Reach::Network) { configured.inter } else { configured.intra }
        };
        let one_copy = link.shared_memory().map(|memory| {
            names.extend(cma.is_some().then_some(cma::NAME));
            let may_lend = threshold.is_none() && pinned(engine.core.movers.scheme).is_none();
            OneCopy::new(id, Arc::new(Pair::new(memory)), cma, may_lend)
        });
        let limits = Thresholds::new(&attributes, threshold);
        let account = engine.core.movers.ctx.ledger.open(source);
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
            account,
            transports: names,
            one_copy,
            handles: usize::from(claimed),
        });
        if seat.is_some() {
            // Before anything can come from it.
            shared.accepted.made.fetch_add(1, Relaxed);
        }
        peer.seat = seat;
        if !refused.is_empty() {
            peer.odd.get_or_insert_default().refused = refused;
        }
        tracing::debug!(target: "wharf::endpoint", parent: peer.span(), peer = %peer.info.name, transports = ?peer.transports, "connected");
        tracing::debug!(target: "wharf::protocol", parent: peer.span(), inline = peer.short, eager = peer.eager, direct_copies = peer.one_copy.is_some(), "longest messages");
        engine.core.movers.ctx.add_peer(peer);
        if !claimed {
            let ctx = &mut engine.core.movers.ctx;
            ctx.unclaimed.entry(worker).or_default().push(slot);
            ctx.wake_arrivals(worker);
        }
        Ok((slot, id))
    })
}
