//! How a connection comes about: `driver::rdmacm` has the sequence.

use std::{net::SocketAddr, time::Duration};

use super::{
    events::Events,
    greeting::Greeting,
    manager::{manager, unavailable},
    pair::Pair,
    pump::{self, End},
};
use crate::{
    driver::{
        rdmacm::{Connect, EventChannel, EventKind, Id, Libraries, RdmaCm},
        verbs::{CompletionChannel, State, Verbs, errno_of},
    },
    error::{Error, ErrorKind, Result},
    sys::blocking::{Offloaded, blocking},
    transport::channel::{Channel, Origin},
    types::Source,
};

/// Requests that wait to be taken.
const BACKLOG: u16 = 128;

/// How often a packet without answer, or for a peer without receive, is sent again: the most, which is for ever where there is no receive.
const RETRIES: u8 = 7;

/// Bytes of a rejection's reason.
const REASON: usize = 148;

fn parameters(queue_pair: u32, data: &[u8]) -> Connect<'_> {
    Connect {
        queue_pair,
        data,
        reads_served: 0,
        reads_started: 0,
        retries: RETRIES,
        not_ready_retries: RETRIES,
        shared_receives: false,
    }
}

/// A new identifier with events of its own.
fn new_id(libraries: &Libraries) -> Result<(Id, EventChannel, &'static RdmaCm, &'static Verbs)> {
    let (cm, verbs) = manager(libraries)?;
    let channel = cm.event_channel().map_err(unavailable)?;
    let id = channel.id().map_err(unavailable)?;
    Ok((id, channel, cm, verbs))
}

/// A place where peers connect by RDMA address. Dropping it stops listening.
#[derive(Debug)]
pub(crate) struct Listening {
    events: Events,
    /// Kept: it listens.
    _id: Offloaded<Id>,
    address: SocketAddr,
    cm: &'static RdmaCm,
    verbs: &'static Verbs,
    keepalive: Option<Duration>,
}

impl Listening {
    /// Listens at an address of an RDMA device of this machine, or at all of them (`0.0.0.0`); port 0 for any. Peers that are silent for so long are
    /// asked whether they are still there.
    /// Errors: `Unsupported`: connections by RDMA address are not available. `Unreachable`: no device has the address. What the system said: the
    /// port is in use, for one.
    ///
    /// # Cancel safety
    /// Dropped, it does not listen.
    pub(crate) async fn bind(
        libraries: &Libraries,
        address: SocketAddr,
        keepalive: Option<Duration>,
    ) -> Result<Self> {
        let libraries = libraries.clone();
        let (id, channel, local, cm, verbs) = blocking(move || {
            let (id, channel, cm, verbs) = new_id(&libraries)?;
            let bound = id.bind(address).and_then(|()| id.listen(BACKLOG));
            bound.map_err(|error| about(error, format!("binding {address} for RDMA")))?;
            let local = id.local_address().unwrap_or(address);
            Ok((Offloaded::new(id), channel, local, cm, verbs))
        })
        .await?;
        Ok(Self {
            events: Events::new(channel)?,
            _id: id,
            address: local,
            cm,
            verbs,
            keepalive,
        })
    }

    /// Where it listens, with the port that was chosen.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next peer that asks. What fails for one is said in the log.
    /// Errors: it has ended: the device is gone, or events cannot be had any more.
    ///
    /// # Cancel safety
    /// A request that was being taken is turned down.
    pub(crate) async fn accept(&self) -> Result<Asked> {
        loop {
            let event = self.events.next().await?;
            if event.kind == EventKind::DEVICE_REMOVAL
                && let Some(error) = event.error()
            {
                return Err(error);
            }
            let Some(id) = event.incoming else { continue };
            let (origin, peer) = (origin(&id), name(&id));
            // Before the next event is taken: what is told of it later goes there.
            let cm = self.cm;
            let moved = Offloaded::new(id).then(move |mut id| {
                let channel = cm.event_channel()?;
                id.migrate(&channel)?;
                Ok((id, channel))
            });
            let moved = moved
                .await
                .and_then(|(id, channel)| Ok((id, Events::new(channel)?)));
            match moved {
                Ok((id, events)) => {
                    return Ok(Asked {
                        id,
                        events,
                        data: event.data,
                        origin,
                        peer,
                        verbs: self.verbs,
                        keepalive: self.keepalive,
                    });
                }
                Err(error) => {
                    tracing::warn!(target: "wharf::wireup", %peer, %error, "accepting a connection");
                }
            }
        }
    }
}

/// A peer that asks for a channel. Dropping it turns it down.
#[derive(Debug)]
pub(crate) struct Asked {
    id: Offloaded<Id>,
    events: Events,
    /// What it said with that.
    data: Vec<u8>,
    origin: Origin,
    peer: String,
    verbs: &'static Verbs,
    keepalive: Option<Duration>,
}

impl Asked {
    /// Where it comes from.
    pub(crate) fn peer_name(&self) -> &str {
        &self.peer
    }

    /// Where it comes from, for what is counted by source.
    pub(crate) fn source(&self) -> Source {
        self.origin.source()
    }

    /// Gives it its channel. The caller sets the deadline.
    /// Errors: `Protocol`: it is no wharf. As of the calls; it is told why in all cases.
    ///
    /// # Cancel safety
    /// Dropped, the connection is ended.
    pub(crate) async fn answer(self) -> Result<Channel> {
        let peer = self.peer.clone();
        self.answer_inner()
            .await
            .map_err(|error| error.with_peer(peer))
    }

    async fn answer_inner(self) -> Result<Channel> {
        let theirs = Greeting::decode(&self.data);
        let verbs = self.verbs;
        let made = self.id.then(move |id| {
            match theirs.and_then(|theirs| Ok((serve(&id, verbs)?, theirs))) {
                Ok(((pair, completions), theirs)) => Ok((End { pair, id }, (completions, theirs))),
                Err(error) => {
                    // It may be gone.
                    let _ = id.reject(reason(&error).as_bytes());
                    Err(error)
                }
            }
        });
        let (end, (completions, theirs)) = made.await?;
        self.events.expect(EventKind::ESTABLISHED).await?;
        let (peer, keepalive) = (self.peer, self.keepalive);
        let mut channel = pump::start(end, self.events, completions, theirs, peer, keepalive)?;
        channel.met_at(self.origin);
        Ok(channel)
    }
}

/// A queue pair on the device that an identifier has been bound to, and where its completions are told.
fn pair(id: &Id, verbs: &'static Verbs) -> Result<(Pair, CompletionChannel)> {
    let device = id
        .device()
        .ok_or_else(|| Error::new(ErrorKind::DeviceLost, "the connection's device is gone"))?;
    let (mut pair, completions) = Pair::open(verbs, &device)?;
    id.prepare(pair.queue_pair(), State::INIT)?;
    pair.receive_all()?;
    Ok((pair, completions))
}

/// Makes the queue pair for a request, and accepts it.
fn serve(id: &Id, verbs: &'static Verbs) -> Result<(Pair, CompletionChannel)> {
    let (pair, completions) = pair(id, verbs)?;
    id.prepare(pair.queue_pair(), State::RTR)?;
    id.prepare(pair.queue_pair(), State::RTS)?;
    let number = pair.queue_pair().number();
    id.accept(&parameters(number, &Greeting::OWN.encode()))?;
    Ok((pair, completions))
}

/// Makes a channel to the listener at an RDMA address. `limit` is what the looking for it may take; the caller sets the deadline of it all.
/// A peer that is silent for `keepalive` is asked whether it is still there.
/// Errors: `Unsupported`: connections by RDMA address are not available. `Unreachable`: no device leads there, or nobody is there.
/// `ConnectionRefused`: nobody listens. `Rejected`. `Protocol`: who listens is no wharf.
///
/// # Cancel safety
/// Dropped, the half-made connection is ended.
pub(crate) async fn dial(
    libraries: &Libraries,
    to: SocketAddr,
    limit: Duration,
    keepalive: Option<Duration>,
) -> Result<Channel> {
    let limit = u32::try_from(limit.as_millis())
        .unwrap_or(u32::MAX)
        .clamp(1, i32::MAX as u32);
    let libraries = libraries.clone();
    let (id, channel, verbs) = blocking(move || {
        let (id, channel, _, verbs) = new_id(&libraries)?;
        id.resolve_address(None, to, limit)
            .map_err(|error| nowhere(error, to))?;
        Ok((Offloaded::new(id), channel, verbs))
    })
    .await?;
    let events = Events::new(channel)?;
    events.expect(EventKind::ADDR_RESOLVED).await?;
    let looked = id.then(move |id| {
        // Found without a device: the loopback interface, for one.
        id.resolve_route(limit)
            .map_err(|error| nowhere(error, to))?;
        Ok((id, ()))
    });
    let (id, ()) = looked.await?;
    events.expect(EventKind::ROUTE_RESOLVED).await?;
    let asked = id.then(move |id| {
        let (pair, completions) = pair(&id, verbs)?;
        let number = pair.queue_pair().number();
        id.connect(&parameters(number, &Greeting::OWN.encode()))?;
        Ok((End { pair, id }, completions))
    });
    let (end, completions) = asked.await?;
    let answer = events.expect(EventKind::CONNECT_RESPONSE).await?;
    let theirs = Greeting::decode(&answer)?;
    let stands = end.then(|end| {
        end.id.prepare(end.pair.queue_pair(), State::RTR)?;
        end.id.prepare(end.pair.queue_pair(), State::RTS)?;
        end.id.establish()?;
        let origin = origin(&end.id);
        Ok((end, origin))
    });
    let (end, origin) = stands.await?;
    let peer = to.to_string();
    let mut channel = pump::start(end, events, completions, theirs, peer, keepalive)?;
    channel.met_at(Origin {
        peer: Some(to),
        ..origin
    });
    Ok(channel)
}

/// Says which address has no device, where that is why.
fn nowhere(error: Error, to: SocketAddr) -> Error {
    match errno_of(&error) {
        Some(libc::ENODEV | libc::ENETUNREACH | libc::EHOSTUNREACH) => Error::new(
            ErrorKind::Unreachable,
            format!("no RDMA device leads to {}", to.ip()),
        )
        .with_source(error),
        _ => error,
    }
}

/// Where both ends are.
fn origin(id: &Id) -> Origin {
    Origin {
        local: id.local_address(),
        peer: id.peer_address(),
        process: None,
    }
}

/// How errors name the peer.
fn name(id: &Id) -> String {
    id.peer_address()
        .map_or_else(|| "unknown".to_owned(), |peer| peer.to_string())
}

/// An error's words, as far as they fit into a rejection.
fn reason(error: &Error) -> String {
    let mut text = error.to_string();
    let mut end = text.len().min(REASON);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// With what it was about.
fn about(error: Error, what: String) -> Error {
    Error::new(error.kind(), format!("{what}: {error}")).with_source(error)
}
