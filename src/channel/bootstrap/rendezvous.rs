//! How ranks that know only where rank 0 is become a group.
//!
//! ```text
//! rank r                                   rank 0
//!    │ ◀──── hello, proof of the secret ────▶ │      as between workers
//!    │ ── R, rank, size, ms, my address ────▶ │
//!    │                                        │      all have come, or what is wrong is known
//!    │ ◀─ 0, the group's id, all addresses ── │      or 1 and an error
//!    │ ◀═════════════ frames ═══════════════▶ │
//!
//! rank r                                   rank s, later
//!    │ ◀──── hello, proof of the secret ────▶ │
//!    │ ── P, rank, the group's id ──────────▶ │
//!    │ ◀─ 0, or 1 and an error ────────────── │
//!    │ ══════════════ frames ═══════════════▶ │      and credits back
//! ```
//!
//! Whoever does not know the secret, or does not speak this at all, is turned away and changes nothing. What contradicts itself ends the attempt
//! for all at once: two ranks with one number, or two sizes.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use tokio::{
    sync::{Mutex, Semaphore, mpsc, oneshot},
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::{
    collector::missing,
    frame::{Gone, MAX_FRAME, decode_error, encode_error, malformed},
    hub::{Hub, PeerLink, Roads},
    limits::{after, check_rank, check_size},
    socket::{Acceptor, Address, Socket, SocketLink, random},
};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    protocol::{
        handshake::{Greeting, Opening, Verdict},
        hello::{Acceptance, HEAD, Introduction, Message, length_of},
        keys::PrivateKey,
    },
    sys::identity::identity,
    util::wire::Reader,
};

/// What a handshake may take at the end that dials, a wait for a place at the other end among it, before its connection is given up.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// What it may take at the end that was dialled: both ends have their words ready, and one who says nothing holds a place.
const SILENCE: Duration = Duration::from_secs(3);
/// Handshakes at once; more wait in the system's queue.
const HANDSHAKES: usize = 256;
/// How much longer than its own deadline a rank waits for rank 0, which knows who is missing.
const GRACE: Duration = Duration::from_secs(2);
/// Longest block that introduces a rank.
const MAX_BLOCK: usize = 1024;
/// Pauses between attempts to reach rank 0: from the first, doubled, to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// What is said in the place of transports.
const PURPOSE: &str = "bootstrap";

/// Who this process is in handshakes, and what it must prove.
#[derive(Clone)]
pub(super) struct Me {
    key: Arc<PrivateKey>,
    secret: Option<Arc<[u8]>>,
}

impl Me {
    pub(super) fn new(secret: Option<Arc<[u8]>>) -> Result<Self> {
        let key = Arc::new(PrivateKey::new(random()?));
        Ok(Self { key, secret })
    }

    /// The handshake of the end that was dialled.
    pub(super) async fn greet(&self, socket: &Socket) -> Result<()> {
        let result = self.greet_inner(socket).await;
        if let Err(error) = &result {
            // They may be gone.
            let _ = socket.write_all(&Message::reject(error).encode()).await;
        }
        result
    }

    async fn greet_inner(&self, socket: &Socket) -> Result<()> {
        let (hello, secret) = (read_message(socket).await?, self.secret.as_deref());
        let (public, own) = (self.key.public(), PrivateKey::new(random()?));
        let (greeting, hello) = Greeting::new(PURPOSE, &public, secret, own, &random()?, &hello)?;
        socket.write_all(&hello).await?;
        let (proved, proof) = greeting.prove(&self.key)?;
        socket.write_all(&proof).await?;
        let introduced = proved.introduced(&read_message(socket).await?);
        let (mut server, _) = introduced.proved(&read_message(socket).await?)?;
        let acceptance = Acceptance {
            key: self.key.public(),
            identity: identity().clone(),
            lanes: vec![PURPOSE.to_owned()],
            memory: None,
            reached: None,
        };
        let yes = server.accept(&self.key, &acceptance)?;
        socket.write_all(&yes).await
    }

    /// The handshake of the end that dialled.
    pub(super) async fn meet(&self, socket: &Socket) -> Result<()> {
        let own = PrivateKey::new(random()?);
        let opening = Opening::new(PURPOSE, self.secret.as_deref(), own, &random()?);
        socket.write_all(opening.hello()).await?;
        let answered = opening.answered(&read_message(socket).await?)?;
        let mut client = answered.proved(&read_message(socket).await?)?;
        let introduction = Introduction {
            key: self.key.public(),
            identity: identity().clone(),
            transports: vec![PURPOSE.to_owned()],
            stays: true,
            memory: None,
        };
        socket.write_all(&client.introduce(&introduction)).await?;
        socket.write_all(&client.prove(&self.key)?).await?;
        match client.verdict(&read_message(socket).await?)? {
            Verdict::Accept(_) => Ok(()),
            Verdict::Elsewhere(_) => Err(malformed("there is no other way to a group")),
        }
    }
}

/// Reads a message of the handshake.
async fn read_message(socket: &Socket) -> Result<Vec<u8>> {
    let mut bytes = socket.read_exact(HEAD).await?.to_vec();
    // The first bytes are enough to know a stranger, who may never send what its length promises.
    let length = length_of(&bytes)?;
    bytes.extend_from_slice(&socket.read_exact(length - HEAD).await?);
    Ok(bytes)
}

/// Ends what it holds when it is dropped.
#[derive(Debug)]
pub(super) struct Tasks(tokio::task::AbortHandle);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A connection has said who it is.
struct Arrival {
    rank: usize,
    size: usize,
    deadline: Instant,
    address: Address,
    /// Of this attempt, which is over when the connection is.
    key: u64,
    answer: oneshot::Sender<Result<Standing>>,
}

enum Event {
    Arrived(Arrival),
    Vanished { rank: usize, key: u64 },
}

/// All have come.
#[derive(Clone)]
struct Standing {
    hub: Arc<Hub>,
    table: Bytes,
    made: mpsc::UnboundedSender<()>,
}

/// Rank 0 collects the others. The first time is for that, the second for the waits of the group.
pub(super) async fn lead(
    acceptor: Acceptor,
    me: Me,
    size: usize,
    (wait, later): (Duration, Duration),
) -> Result<(Arc<Hub>, Tasks)> {
    check_size(size)?;
    let own = acceptor.address()?;
    let hub = Hub::new(0, size, later, Box::new(NoRoads));
    // If this is dropped or fails, whoever has come is told.
    let guard = Leaves(Some(hub.clone()));
    let (events, mut arrivals) = mpsc::channel(64);
    let serving = tokio::spawn(serve_root(acceptor, me, events));
    let tasks = Tasks(serving.abort_handle());
    let own_deadline = after(wait);
    let mut waiting: HashMap<usize, Arrival> = HashMap::new();
    let verdict = loop {
        if waiting.len() + 1 == size {
            break Ok(());
        }
        // The first that gives up, of those who are there.
        let deadline = waiting
            .values()
            .map(|arrival| arrival.deadline)
            .fold(own_deadline, Instant::min);
        let event = match timeout_at(deadline, arrivals.recv()).await {
            Ok(Some(event)) => event,
            Ok(None) => break Err(Error::new(ErrorKind::Closed, "nobody listens any more")),
            Err(_) => {
                let absent = (1..size).filter(|rank| !waiting.contains_key(rank));
                break Err(missing(absent, size));
            }
        };
        match event {
            Event::Arrived(arrival) => {
                let wrong = contradiction(&arrival, size, &waiting);
                let rank = arrival.rank;
                if let Some(error) = wrong {
                    let _ = arrival.answer.send(Err(error.clone()));
                    break Err(error);
                }
                waiting.insert(rank, arrival);
            }
            Event::Vanished { rank, key } => {
                if waiting.get(&rank).is_some_and(|known| known.key == key) {
                    waiting.remove(&rank);
                }
            }
        }
    };
    if let Err(error) = verdict {
        for (_, arrival) in waiting {
            // One that has gone meanwhile needs no answer.
            let _ = arrival.answer.send(Err(error.clone()));
        }
        // The answers go out by the tasks that hold the connections; they are few bytes.
        tokio::time::sleep(Duration::from_millis(50)).await;
        return Err(error.during(Operation::Connect));
    }
    let group: [u8; 16] = random()?;
    let mut table = BytesMut::new();
    table.put_u8(0);
    table.put_slice(&group);
    for rank in 0..size {
        let address = waiting
            .get(&rank)
            .map_or_else(|| own.encode(), |arrival| arrival.address.encode());
        table.put_u8(address.len() as u8);
        table.put_slice(&address);
    }
    let mut block = BytesMut::new();
    block.put_u32_le(table.len() as u32);
    block.extend_from_slice(&table);
    let (made, mut all_made) = mpsc::unbounded_channel();
    let standing = Standing {
        hub: hub.clone(),
        table: block.freeze(),
        made,
    };
    let mut expected = waiting.len();
    for (_, arrival) in waiting {
        if arrival.answer.send(Ok(standing.clone())).is_err() {
            // It went in this moment.
            hub.gone(arrival.rank, Gone::Died);
            expected -= 1;
        }
    }
    drop(standing);
    // Until all links are in their places; one whose task ended in this moment drops its sender.
    while expected > 0 && all_made.recv().await.is_some() {
        expected -= 1;
    }
    for rank in 1..size {
        hub.lost_without_link(rank);
    }
    tokio::spawn(turn_away(arrivals, size, hub.watch_left()));
    guard.keep();
    Ok((hub, tasks))
}

/// What is wrong with an arrival, for all.
fn contradiction(
    arrival: &Arrival,
    size: usize,
    waiting: &HashMap<usize, Arrival>,
) -> Option<Error> {
    let Arrival {
        rank, size: other, ..
    } = arrival;
    let text = if *other != size {
        format!("rank {rank} counts {other} ranks, rank 0 counts {size}")
    } else if *rank == 0 || waiting.contains_key(rank) {
        format!("two processes have the number {rank}")
    } else if *rank >= size {
        format!("there is no rank {rank} in a group of {size}")
    } else {
        return None;
    };
    Some(Error::new(ErrorKind::Configuration, text))
}

/// Who comes when the group stands is told so.
async fn turn_away(
    mut arrivals: mpsc::Receiver<Event>,
    size: usize,
    mut left: tokio::sync::watch::Receiver<bool>,
) {
    loop {
        let event = tokio::select! {
            event = arrivals.recv() => event,
            _ = left.wait_for(|left| *left) => None,
        };
        match event {
            None => return,
            Some(Event::Arrived(arrival)) => {
                let error = contradiction(&arrival, size, &HashMap::new()).unwrap_or_else(|| {
                    Error::new(
                        ErrorKind::Configuration,
                        format!(
                            "the group of {size} stands already, and has a rank {}",
                            arrival.rank
                        ),
                    )
                });
                let _ = arrival.answer.send(Err(error));
            }
            Some(Event::Vanished { .. }) => {}
        }
    }
}

/// Leaves the group unless it is kept.
struct Leaves(Option<Arc<Hub>>);

impl Leaves {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Leaves {
    fn drop(&mut self) {
        if let Some(hub) = &self.0 {
            hub.leave();
        }
    }
}

/// Takes connections at rank 0 for as long as it lives.
async fn serve_root(acceptor: Acceptor, me: Me, events: mpsc::Sender<Event>) {
    let places = Arc::new(Semaphore::new(HANDSHAKES));
    let mut key = 0;
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let socket = acceptor.accept().await;
        key += 1;
        let (me, events) = (me.clone(), events.clone());
        // Not tied to the acceptor's task: links drain after it.
        tokio::spawn(async move {
            let introduced = timeout_at(after(SILENCE), async {
                me.greet(&socket).await?;
                introduction(&socket.read_block(MAX_BLOCK).await?)
            });
            let (rank, size, millis, address) = match introduced.await {
                Ok(Ok(introduced)) => introduced,
                Ok(Err(error)) => {
                    tracing::warn!(target: "wharf::bootstrap", %error, "a connection to rank 0 was turned away");
                    return;
                }
                Err(_) => {
                    tracing::warn!(target: "wharf::bootstrap", "a connection to rank 0 said nothing and was given up");
                    return;
                }
            };
            drop(place);
            let (answer, answered) = oneshot::channel();
            let arrival = Arrival {
                rank,
                size,
                deadline: Instant::now() + Duration::from_millis(millis.into()),
                address,
                key,
                answer,
            };
            if events.send(Event::Arrived(arrival)).await.is_err() {
                return;
            }
            let answer = tokio::select! {
                answer = answered => answer,
                () = socket.ended() => {
                    let _ = events.send(Event::Vanished { rank, key }).await;
                    return;
                }
            };
            match answer {
                Ok(Ok(Standing { hub, table, made })) => {
                    let link = SocketLink::new(socket, table);
                    hub.set_link(rank, link.clone());
                    link.pump();
                    let hub = Arc::downgrade(&hub);
                    let _ = made.send(());
                    drop((made, events));
                    link.run(hub, rank).await;
                }
                Ok(Err(error)) => refuse(&socket, &error).await,
                // Rank 0 gave up without a word.
                Err(_) => {}
            }
        });
    }
}

/// Says no, as well as it goes.
async fn refuse(socket: &Socket, error: &Error) {
    let mut block = vec![1];
    block.extend_from_slice(&encode_error(error));
    let _ = timeout_at(after(HANDSHAKE), socket.write_block(&block)).await;
}

/// Reads `R, rank, size, ms, address`.
fn introduction(bytes: &Bytes) -> Result<(usize, usize, u32, Address)> {
    let mut reader = Reader::new(bytes);
    if reader.u8()? != b'R' {
        return Err(malformed("a peer's link was asked for at rank 0"));
    }
    let (rank, size, millis) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let address = Address::decode(bytes.get(13..).unwrap_or_default())?;
    Ok((rank as usize, size as usize, millis, address))
}

/// Another rank finds rank 0, which is at one of these addresses, as often as `addresses` is asked.
pub(super) async fn follow(
    addresses: impl Fn() -> BoxFuture<'static, Result<Vec<Address>>>,
    me: Me,
    rank: usize,
    size: usize,
    (wait, later): (Duration, Duration),
) -> Result<(Arc<Hub>, Tasks)> {
    check_size(size)?;
    check_rank(rank, size)?;
    let deadline = after(wait);
    let socket = reach(&addresses, &me, deadline).await?;
    let acceptor = Acceptor::beside(&socket).await?;
    let millis = deadline
        .saturating_duration_since(Instant::now())
        .as_millis();
    let mut block = vec![b'R'];
    block.extend_from_slice(&(rank as u32).to_le_bytes());
    block.extend_from_slice(&(size as u32).to_le_bytes());
    block.extend_from_slice(&u32::try_from(millis).unwrap_or(u32::MAX).to_le_bytes());
    block.extend_from_slice(&acceptor.address()?.encode());
    let answer = async {
        socket.write_block(&block).await?;
        socket.read_block(MAX_FRAME).await
    };
    let table = timeout_at(deadline + GRACE, answer)
        .await
        .map_err(|_| {
            Error::new(
                ErrorKind::DeadlineExceeded,
                "rank 0 did not say in time that all have come",
            )
        })?
        .map_err(|error| match error.kind() {
            ErrorKind::ClosedByPeer | ErrorKind::ConnectionReset => Error::new(
                ErrorKind::PeerDied,
                "rank 0 ended before all ranks had come",
            ),
            _ => error,
        })
        .map_err(|error| error.during(Operation::Connect))?;
    let (group, addresses) = read_table(&table, size)?;
    let roads = DirectRoads {
        me: me.clone(),
        group,
        made: addresses.iter().map(|_| Arc::default()).collect(),
        addresses,
    };
    let hub = Hub::new(rank, size, later, Box::new(roads));
    let link = SocketLink::new(socket, Bytes::new());
    hub.set_link(0, link.clone());
    tokio::spawn(link.run(Arc::downgrade(&hub), 0));
    let serving = tokio::spawn(serve_peers(acceptor, me, group, Arc::downgrade(&hub)));
    Ok((hub, Tasks(serving.abort_handle())))
}

/// Connects to rank 0, which may not be there yet.
async fn reach(
    addresses: &impl Fn() -> BoxFuture<'static, Result<Vec<Address>>>,
    me: &Me,
    deadline: Instant,
) -> Result<Socket> {
    let mut pause = PAUSES.0;
    let last = OnceLock::new();
    let mut last_error: Option<Error> = None;
    let attempts = async {
        loop {
            let tried = async {
                let mut latest = Error::new(ErrorKind::Unreachable, "rank 0 has no address");
                for address in addresses().await? {
                    let _ = last.set(address.clone());
                    let one = timeout_at(after(HANDSHAKE), async {
                        let socket = address.dial().await?;
                        me.meet(&socket).await?;
                        Ok(socket)
                    });
                    let error = match one.await {
                        Ok(Ok(socket)) => return Ok(socket),
                        Ok(Err(error)) => error,
                        Err(_) => Error::new(ErrorKind::DeadlineExceeded, "no answer"),
                    };
                    let error = error.with_peer(&address);
                    if !worth_another_try(&error) {
                        return Err(error);
                    }
                    latest = error;
                }
                Err(latest)
            };
            match tried.await {
                Ok(socket) => return Ok(socket),
                Err(error) if worth_another_try(&error) => last_error = Some(error),
                Err(error) => return Err(error),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    };
    let reached = timeout_at(deadline, attempts).await;
    match reached {
        Ok(reached) => reached.map_err(|error| error.during(Operation::Connect)),
        Err(_) => {
            let place = last.get().map(|at| format!(" at {at}")).unwrap_or_default();
            let error = Error::new(
                ErrorKind::DeadlineExceeded,
                format!("rank 0 was not reached{place} in time"),
            )
            .during(Operation::Connect);
            Err(match last_error {
                Some(last) => error.with_source(last),
                None => error,
            })
        }
    }
}

/// Whether rank 0 may only not be there yet.
fn worth_another_try(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::ClosedByPeer
            | ErrorKind::ConnectionReset
            | ErrorKind::Unreachable
            | ErrorKind::DeadlineExceeded
            | ErrorKind::Exhausted
            | ErrorKind::WouldBlock
            | ErrorKind::Io
    )
}

/// The group's id, and the addresses of all.
fn read_table(table: &[u8], size: usize) -> Result<([u8; 16], Vec<Address>)> {
    let mut reader = Reader::new(table);
    if reader.bool()? {
        return Err(decode_error(table.get(1..).unwrap_or_default())?.during(Operation::Connect));
    }
    let group = reader.array()?;
    let mut addresses = Vec::with_capacity(size);
    for _ in 0..size {
        let length = reader.u8()?;
        addresses.push(Address::decode(reader.bytes(length.into())?)?);
    }
    reader.end()?;
    Ok((group, addresses))
}

/// Takes the links that other ranks make to this one, until it leaves.
async fn serve_peers(acceptor: Acceptor, me: Me, group: [u8; 16], hub: Weak<Hub>) {
    let Some(strong) = hub.upgrade() else { return };
    let mut left = strong.watch_left();
    let (own, size) = (strong.rank, strong.size);
    drop(strong);
    let mut handshakes = JoinSet::new();
    loop {
        let socket = tokio::select! {
            _ = left.wait_for(|left| *left) => return,
            socket = acceptor.accept(), if handshakes.len() < HANDSHAKES => socket,
            Some(_) = handshakes.join_next() => continue,
        };
        let (me, hub) = (me.clone(), hub.clone());
        handshakes.spawn(async move {
            let introduced = timeout_at(after(SILENCE), async {
                me.greet(&socket).await?;
                let block = socket.read_block(MAX_BLOCK).await?;
                let from = peer_introduction(&block, group, own, size);
                if let Err(error) = &from {
                    refuse(&socket, error).await;
                }
                from
            });
            match introduced.await {
                Ok(Ok(from)) => {
                    let Some(strong) = hub.upgrade() else { return };
                    // The length of the answer, and that it is good.
                    let link = SocketLink::new(socket, Bytes::from_static(&[1, 0, 0, 0, 0]));
                    match strong.add_incoming(from, link.clone()) {
                        Ok(()) => {
                            link.pump();
                            tokio::spawn(link.run(hub, from));
                        }
                        Err(error) => {
                            tracing::warn!(target: "wharf::bootstrap", %error, "a connection was turned away");
                        }
                    }
                }
                Ok(Err(error)) => {
                    tracing::warn!(target: "wharf::bootstrap", %error, "a connection was turned away");
                }
                Err(_) => {}
            }
        });
    }
}

/// Reads `P, rank, group`, at the rank `own`.
pub(super) fn peer_introduction(
    bytes: &[u8],
    group: [u8; 16],
    own: usize,
    size: usize,
) -> Result<usize> {
    let mut reader = Reader::new(bytes);
    if reader.u8()? != b'P' {
        return Err(malformed("this is not rank 0"));
    }
    let (rank, other) = (reader.u32()? as usize, reader.array::<16>()?);
    reader.end()?;
    if other != group {
        return Err(Error::new(
            ErrorKind::Rejected,
            "this process is of another group",
        ));
    }
    check_rank(rank, size)?;
    // Rank 0 has its connection from the beginning, and what comes over it is believed.
    if rank == 0 || rank == own {
        let text = format!("rank {rank} makes no connection to rank {own}");
        return Err(Error::new(ErrorKind::Rejected, text));
    }
    Ok(rank)
}

/// The link to a rank, once it was made.
type Made = Arc<Mutex<Option<Arc<dyn PeerLink>>>>;

/// Links straight to the other ranks.
struct DirectRoads {
    me: Me,
    group: [u8; 16],
    addresses: Vec<Address>,
    /// What was made, by rank. Locked while a link is being made, whether or not the message that wanted it is still there: each attempt of
    /// hasty messages would be a connection more, until the other end has too many.
    made: Vec<Made>,
}

#[async_trait]
impl Roads for DirectRoads {
    async fn link(&self, hub: &Arc<Hub>, to: usize) -> Result<Arc<dyn PeerLink>> {
        let address = self
            .addresses
            .get(to)
            .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "there is no such rank"))?;
        let made = self.made.get(to).cloned().unwrap_or_default();
        let mut made = made.lock_owned().await;
        if let Some(link) = &*made {
            return Ok(link.clone());
        }
        let socket = address.dial().await?;
        self.me.meet(&socket).await?;
        let mut block = vec![b'P'];
        block.extend_from_slice(&(hub.rank as u32).to_le_bytes());
        block.extend_from_slice(&self.group);
        let hub = Arc::downgrade(hub);
        // From here on the other end takes a connection that ends for a rank that has died: it must not end with the message that wanted it.
        let making = tokio::spawn(async move {
            let answered = timeout_at(after(HANDSHAKE), async {
                socket.write_block(&block).await?;
                socket.read_block(MAX_BLOCK).await
            });
            let answer = answered.await.map_err(|_| {
                Error::new(ErrorKind::DeadlineExceeded, "no answer to a new connection")
            })??;
            if answer.first() != Some(&0) {
                return Err(decode_error(answer.get(1..).unwrap_or_default())?);
            }
            let link = SocketLink::new(socket, Bytes::new());
            tokio::spawn(link.clone().run(hub, to));
            let link: Arc<dyn PeerLink> = link;
            *made = Some(link.clone());
            Ok::<Arc<dyn PeerLink>, Error>(link)
        });
        making.await.map_err(|error| {
            Error::new(ErrorKind::Closed, "the runtime is shutting down").with_source(error)
        })?
    }
}

/// Rank 0 has links to all from the beginning.
pub(super) struct NoRoads;

#[async_trait]
impl Roads for NoRoads {
    async fn link(&self, _hub: &Arc<Hub>, _to: usize) -> Result<Arc<dyn PeerLink>> {
        Err(Error::new(ErrorKind::Unreachable, "there is no way there"))
    }
}

/// Gives bytes to the decoders of introductions and tables, in a group of `size`.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8], size: usize) {
    if let Ok((_, addresses)) = read_table(bytes, size) {
        assert_eq!(addresses.len(), size);
    }
    let _ = peer_introduction(bytes, [0; 16], 1, size);
    let _ = introduction(&Bytes::copy_from_slice(bytes));
}
