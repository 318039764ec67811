//! One rank's end of its group: what has arrived, who is gone, which collective calls are open. The same over every carrier; a carrier
//! gives it links to the other ranks and frames from them.
//!
//! Each rank has a link to and from rank 0 from the beginning. Rank 0 sees by its end that a rank is gone, and tells all others; it also leads the
//! collective calls. Links between other ranks are made when the first message wants one.
//!
//! A message takes room at its receiver until it is received; a sender counts the room that it has taken, and waits when there is no more.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::{
    sync::{Notify, OnceCell, oneshot, watch},
    time::{Instant, timeout_at},
};

use super::{
    collector::{self, Collector, MAX_ROUNDS, Verdict},
    contract::Bootstrap,
    frame::{Frame, Gone, ROOM, cost, decode_verdict},
    limits::{MAX_MESSAGE, after, check_rank},
};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    sys::fork,
    util::lock::Mutex,
};

/// How much longer than its deadline a rank waits for rank 0's verdict, which says more than its own clock.
const GRACE: Duration = Duration::from_secs(2);

/// Connections that one rank may make to another. It needs one, and one more for each whose making it gave up in the last moment.
const MAX_INCOMING: usize = 8;

/// A way to one rank. Frames arrive there in their order.
pub(super) trait PeerLink: Send + Sync {
    /// Sends a frame, without waiting. Goes nowhere when the link is broken: its end is told to the hub then.
    fn push(&self, frame: Frame);

    /// Waits until all that was pushed has left this process.
    fn flushed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {})
    }
}

/// Makes links.
#[async_trait]
pub(super) trait Roads: Send + Sync {
    async fn link(&self, hub: &Arc<Hub>, to: usize) -> Result<Arc<dyn PeerLink>>;
}

/// See [`Hub::under_way`].
pub(super) struct UnderWay(watch::Sender<usize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|links| *links -= 1);
    }
}

pub(super) struct Hub {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) deadline: Duration,
    /// Links to the others.
    links: Vec<OnceCell<Arc<dyn PeerLink>>>,
    roads: Box<dyn Roads>,
    /// Collective calls so far. Locked until the part of one has gone its way, so that parts go in the order of their numbers. Before the state.
    calls: Mutex<u64>,
    state: Mutex<State>,
    /// Something in the state is different now.
    changed: Notify,
    /// Whether this rank has left.
    left: watch::Sender<bool>,
    /// Links that carry something, or still may.
    under_way: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    inbox: HashMap<(usize, u64), VecDeque<Arrived>>,
    /// Room taken here by each sender.
    unreceived: HashMap<usize, usize>,
    /// Room taken by this rank at each receiver.
    taken: HashMap<usize, usize>,
    gone: BTreeMap<usize, Gone>,
    /// Links that other ranks have made to here.
    incoming: Vec<(usize, Arc<dyn PeerLink>)>,
    /// Collective calls that wait for their verdict.
    open: HashMap<u64, oneshot::Sender<Bytes>>,
    /// At rank 0.
    collector: Option<Collector>,
}

struct Arrived {
    bytes: Bytes,
    /// Where to say that it was received.
    link: Arc<dyn PeerLink>,
}

impl Hub {
    /// Must be called within a Tokio runtime.
    pub(super) fn new(
        rank: usize,
        size: usize,
        deadline: Duration,
        roads: Box<dyn Roads>,
    ) -> Arc<Self> {
        let mut state = State::default();
        if rank == 0 {
            state.collector = Some(Collector::new(size));
        }
        let hub = Arc::new(Self {
            rank,
            size,
            deadline,
            links: (0..size).map(|_| OnceCell::new()).collect(),
            roads,
            calls: Mutex::default(),
            state: Mutex::new(state),
            changed: Notify::new(),
            left: watch::Sender::new(false),
            under_way: watch::Sender::new(0),
        });
        let own = Arc::new(LocalLink {
            to: Arc::downgrade(&hub),
            from: rank,
        });
        hub.set_link(rank, own);
        if rank == 0 && size > 1 {
            tokio::spawn(hub.clone().keep_deadlines());
        }
        hub
    }

    /// Says how to reach a rank. The first word counts.
    pub(super) fn set_link(&self, to: usize, link: Arc<dyn PeerLink>) {
        if let Some(place) = self.links.get(to) {
            // A second link to one rank is dropped, and closes.
            let _ = place.set(link);
        }
    }

    fn known_link(&self, to: usize) -> Option<&Arc<dyn PeerLink>> {
        self.links.get(to)?.get()
    }

    /// Becomes true when this rank has left.
    pub(super) fn watch_left(&self) -> watch::Receiver<bool> {
        self.left.subscribe()
    }

    /// Says goodbye to all. What waits here ends with `Closed`.
    pub(super) fn leave(&self) {
        // A child made by `fork` has nobody to say it to, and its parent stays.
        if fork::forked() || self.left.send_replace(true) {
            return;
        }
        let (open, incoming) = {
            let mut state = self.state.lock();
            (
                std::mem::take(&mut state.open),
                std::mem::take(&mut state.incoming),
            )
        };
        drop(open);
        let incoming = incoming.iter().map(|(_, link)| link);
        for link in self.others().map(|(_, link)| link).chain(incoming) {
            link.push(Frame::Goodbye);
        }
        self.changed.notify_waiters();
    }

    /// Counts a link as one that carries something, until this is dropped.
    pub(super) fn under_way(&self) -> UnderWay {
        self.under_way.send_modify(|links| *links += 1);
        UnderWay(self.under_way.clone())
    }

    /// Says goodbye to all, and waits until they have read what was sent before; as long as the group's deadline at most.
    pub(super) async fn leave_in_order(&self) {
        if fork::forked() {
            return;
        }
        self.leave();
        let mut under_way = self.under_way.subscribe();
        let ended = under_way.wait_for(|links| *links == 0);
        if timeout_at(after(self.deadline), ended).await.is_err() {
            tracing::debug!(target: "wharf::bootstrap", rank = self.rank, "not all had read what was sent when this rank left");
        }
    }

    /// The links that stand, to all ranks but this one.
    fn others(&self) -> impl Iterator<Item = (usize, &Arc<dyn PeerLink>)> {
        self.links
            .iter()
            .enumerate()
            .filter(|(rank, _)| *rank != self.rank)
            .filter_map(|(rank, link)| Some((rank, link.get()?)))
    }

    /// Whether this rank is one of the group still; a child that it has made by `fork`, in which nothing carries frames, is not.
    fn check_here(&self) -> Result<()> {
        fork::check(Operation::Connect)?;
        if *self.left.borrow() {
            return Err(Error::new(
                ErrorKind::Closed,
                "this rank has left the group",
            ));
        }
        Ok(())
    }

    /// Waits until `look` finds something in the state.
    async fn wait<T>(&self, mut look: impl FnMut(&mut State) -> Option<Result<T>>) -> Result<T> {
        loop {
            fork::check(Operation::Connect)?;
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            self.check_here()?;
            if let Some(found) = look(&mut self.state.lock()) {
                return found;
            }
            changed.await;
        }
    }

    pub(super) async fn send(
        self: &Arc<Self>,
        to: usize,
        tag: u64,
        bytes: Bytes,
        deadline: Instant,
    ) -> Result<()> {
        check_rank(to, self.size)?;
        check_length(&bytes)?;
        self.check_here()?;
        let needed = cost(bytes.len());
        let sent = async {
            // Before a connection to one that is gone is tried.
            if let Some(how) = self.state.lock().gone.get(&to) {
                return Err(collector::gone(to, *how));
            }
            let place = self
                .links
                .get(to)
                .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "there is no such rank"))?;
            let link = place
                .get_or_try_init(|| self.roads.link(self, to))
                .await
                .map_err(|error| error.with_peer(format!("rank {to}")))?;
            self.wait(|state| {
                if let Some(how) = state.gone.get(&to) {
                    return Some(Err(collector::gone(to, *how)));
                }
                let taken = state.taken.entry(to).or_default();
                (*taken + needed <= ROOM).then(|| {
                    *taken += needed;
                    Ok(())
                })
            })
            .await?;
            link.push(Frame::Message { tag, bytes });
            Ok(())
        };
        timeout_at(deadline, sent).await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::DeadlineExceeded,
                format!("rank {to} did not take the message in time"),
            ))
        })
    }

    pub(super) async fn receive(&self, from: usize, tag: u64, deadline: Instant) -> Result<Bytes> {
        check_rank(from, self.size)?;
        let arrived = self.wait(|state| {
            if let Some(queue) = state.inbox.get_mut(&(from, tag)) {
                let first = queue.pop_front();
                if queue.is_empty() {
                    state.inbox.remove(&(from, tag));
                }
                if let Some(arrived) = first {
                    let room = state.unreceived.entry(from).or_default();
                    *room = room.saturating_sub(cost(arrived.bytes.len()));
                    return Some(Ok(arrived));
                }
            }
            let how = *state.gone.get(&from)?;
            // What one that left had sent is still read to its end.
            let mut incoming = state.incoming.iter();
            let more = how == Gone::Left && incoming.any(|(rank, _)| *rank == from);
            (!more).then(|| Err(collector::gone(from, how)))
        });
        let arrived = timeout_at(deadline, arrived).await.map_err(|_| {
            Error::new(
                ErrorKind::DeadlineExceeded,
                format!("rank {from} sent nothing under tag {tag:#x} in time"),
            )
        })??;
        arrived.link.push(Frame::Credit {
            bytes: cost(arrived.bytes.len()),
        });
        Ok(arrived.bytes)
    }

    pub(super) async fn all_gather(
        self: &Arc<Self>,
        bytes: Bytes,
        deadline: Instant,
    ) -> Result<Vec<Bytes>> {
        check_length(&bytes)?;
        self.check_here()?;
        let told = self.begin_call(bytes, deadline)?;
        let told = timeout_at(deadline + GRACE, told).await;
        if self.rank == 0 {
            // Whoever has the result may end its process: what the others are told has left it by then.
            let gone = self.state.lock().gone.clone();
            let links = self.others().filter(|(rank, _)| !gone.contains_key(rank));
            let all = futures::future::join_all(links.map(|(_, link)| link.flushed()));
            // One that does not read is not waited for longer than this.
            let _ = timeout_at(Instant::now() + GRACE, all).await;
        }
        match told {
            Ok(Ok(body)) => decode_verdict(&body, self.size),
            Ok(Err(_)) => {
                self.check_here()?;
                let how = self.state.lock().gone.get(&0).copied();
                Err(collector::gone(0, how.unwrap_or(Gone::Died)))
            }
            Err(_) => Err(Error::new(
                ErrorKind::DeadlineExceeded,
                "rank 0, which leads the call, did not answer in time",
            )),
        }
    }

    /// Numbers a collective call of this rank and sends its part. The verdict comes from what is returned.
    fn begin_call(&self, bytes: Bytes, deadline: Instant) -> Result<oneshot::Receiver<Bytes>> {
        let (verdict, told) = oneshot::channel();
        let mut calls = self.calls.lock();
        let call = *calls;
        {
            let mut state = self.state.lock();
            if let Some(how) = state.gone.get(&0) {
                return Err(collector::gone(0, *how));
            }
            if state.open.len() >= MAX_ROUNDS {
                return Err(Error::new(
                    ErrorKind::Exhausted,
                    "too many collective calls are under way, or rank 0 does not answer",
                ));
            }
            state.open.insert(call, verdict);
        }
        if self.rank == 0 {
            if let Err(error) = self.part(0, call, deadline, bytes) {
                self.state.lock().open.remove(&call);
                return Err(error);
            }
        } else if let Some(link) = self.known_link(0) {
            let left = deadline.saturating_duration_since(Instant::now());
            let millis = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
            link.push(Frame::Part {
                call,
                millis,
                bytes,
            });
        }
        *calls += 1;
        Ok(told)
    }

    /// A frame from another rank. An error means that it does not keep to the protocol: its link is to be closed then.
    pub(super) fn take(&self, from: usize, frame: Frame, reply: &Arc<dyn PeerLink>) -> Result<()> {
        let wrong = |what| Err(Error::new(ErrorKind::Protocol, what));
        match frame {
            Frame::Message { tag, bytes } => {
                let mut state = self.state.lock();
                let room = state.unreceived.entry(from).or_default();
                if *room + cost(bytes.len()) > ROOM {
                    return wrong("a message for which there is no room");
                }
                *room += cost(bytes.len());
                let arrived = Arrived {
                    bytes,
                    link: reply.clone(),
                };
                state
                    .inbox
                    .entry((from, tag))
                    .or_default()
                    .push_back(arrived);
            }
            Frame::Credit { bytes } => {
                let mut state = self.state.lock();
                let taken = state.taken.entry(from).or_default();
                let Some(rest) = taken.checked_sub(bytes) else {
                    return wrong("a credit for what was never sent");
                };
                *taken = rest;
            }
            Frame::Part {
                call,
                millis,
                bytes,
            } => {
                let deadline = Instant::now() + Duration::from_millis(millis.into());
                return self.part(from, call, deadline, bytes);
            }
            Frame::Verdict { call, body } if from == 0 => {
                let open = self.state.lock().open.remove(&call);
                if let Some(open) = open {
                    // Whoever asked may be gone.
                    let _ = open.send(body);
                }
            }
            Frame::Gone { rank, how } if from == 0 && rank != self.rank && rank < self.size => {
                self.gone(rank, how);
            }
            Frame::Goodbye => self.gone(from, Gone::Left),
            Frame::Verdict { .. } | Frame::Gone { .. } => {
                return wrong("a frame that only rank 0 sends");
            }
        }
        self.changed.notify_waiters();
        Ok(())
    }

    /// A part of a collective call, at rank 0.
    fn part(&self, rank: usize, call: u64, deadline: Instant, bytes: Bytes) -> Result<()> {
        let verdicts = match &mut self.state.lock().collector {
            Some(collector) => collector.part(rank, call, deadline, bytes)?,
            None => return Err(Error::new(ErrorKind::Protocol, "a part for rank 0")),
        };
        self.tell(verdicts);
        // The deadline of this one may be the next.
        self.changed.notify_waiters();
        Ok(())
    }

    fn tell(&self, verdicts: Vec<Verdict>) {
        for Verdict { rank, call, body } in verdicts {
            if rank == self.rank {
                let open = self.state.lock().open.remove(&call);
                if let Some(open) = open {
                    // Whoever asked may be gone.
                    let _ = open.send(body);
                }
            } else if let Some(link) = self.known_link(rank) {
                link.push(Frame::Verdict { call, body });
            }
        }
    }

    /// A rank is gone: whoever waits for it is told, and at rank 0 all others are.
    pub(super) fn gone(&self, rank: usize, how: Gone) {
        let (verdicts, abandoned) = {
            let mut state = self.state.lock();
            if state.gone.contains_key(&rank) || rank == self.rank {
                return;
            }
            state.gone.insert(rank, how);
            let verdicts = state
                .collector
                .as_mut()
                .map(|collector| collector.gone(rank, how));
            let abandoned = (rank == 0).then(|| std::mem::take(&mut state.open));
            (verdicts, abandoned)
        };
        drop(abandoned);
        if let Some(verdicts) = verdicts {
            tracing::debug!(target: "wharf::bootstrap", rank, ?how, "a rank is gone");
            // First the others, as with every verdict: rank 0 may end when it knows.
            for (other, link) in self.others() {
                if other != rank {
                    link.push(Frame::Gone { rank, how });
                }
            }
            self.tell(verdicts);
        }
        self.changed.notify_waiters();
    }

    /// A rank whose link did not come to stand is gone.
    pub(super) fn lost_without_link(&self, rank: usize) {
        if self.known_link(rank).is_none() {
            self.gone(rank, Gone::Died);
        }
    }

    /// `from` has made a link to here.
    /// Errors: `Rejected` when it has made more than it can need.
    pub(super) fn add_incoming(&self, from: usize, link: Arc<dyn PeerLink>) -> Result<()> {
        let mut state = self.state.lock();
        let links = state.incoming.iter().filter(|(rank, _)| *rank == from);
        if links.count() >= MAX_INCOMING {
            return Err(Error::new(
                ErrorKind::Rejected,
                format!("rank {from} has too many connections to this one"),
            ));
        }
        state.incoming.push((from, link));
        Ok(())
    }

    /// Such a link has ended.
    pub(super) fn remove_incoming(&self, link: &Arc<dyn PeerLink>) {
        let removed = {
            let mut state = self.state.lock();
            let place = state
                .incoming
                .iter()
                .position(|(_, known)| Arc::ptr_eq(known, link));
            place.map(|place| state.incoming.swap_remove(place))
        };
        drop(removed);
        self.changed.notify_waiters();
    }

    /// Ends collective calls at their deadlines, until this rank leaves.
    async fn keep_deadlines(self: Arc<Self>) {
        let mut left = self.watch_left();
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let (verdicts, next) = match &mut self.state.lock().collector {
                Some(collector) => (collector.tick(Instant::now()), collector.next_deadline()),
                None => return,
            };
            self.tell(verdicts);
            tokio::select! {
                _ = left.wait_for(|left| *left) => return,
                () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
                () = changed => {}
            }
        }
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("rank", &self.rank)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// A link within the process.
pub(super) struct LocalLink {
    pub(super) to: std::sync::Weak<Hub>,
    pub(super) from: usize,
}

impl PeerLink for LocalLink {
    fn push(&self, frame: Frame) {
        let Some(hub) = self.to.upgrade() else { return };
        let Some(reply) = hub.known_link(self.from) else {
            return;
        };
        if let Err(error) = hub.take(self.from, frame, reply) {
            tracing::warn!(target: "wharf::bootstrap", from = self.from, %error, "a rank does not keep to the protocol");
            hub.gone(self.from, Gone::Died);
        }
    }
}

fn check_length(bytes: &Bytes) -> Result<()> {
    if bytes.len() <= MAX_MESSAGE {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!(
            "{} bytes are more than the {MAX_MESSAGE} that a bootstrap takes at once",
            bytes.len()
        ),
    ))
}

/// The bootstraps are handles on a hub; whoever drops one says goodbye.
#[derive(Debug)]
pub(super) struct Member(pub(super) Arc<Hub>);

impl Drop for Member {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::debug!(target: "wharf::bootstrap", rank = self.0.rank, "leaves in a panic");
        }
        self.0.leave();
    }
}

#[async_trait]
impl Bootstrap for Member {
    fn rank(&self) -> usize {
        self.0.rank
    }
    fn size(&self) -> usize {
        self.0.size
    }
    fn deadline(&self) -> Duration {
        self.0.deadline
    }
    async fn send_until(&self, to: usize, tag: u64, bytes: Bytes, deadline: Instant) -> Result<()> {
        self.0.send(to, tag, bytes, deadline).await
    }
    async fn receive_until(&self, from: usize, tag: u64, deadline: Instant) -> Result<Bytes> {
        self.0.receive(from, tag, deadline).await
    }
    async fn all_gather_until(&self, bytes: Bytes, deadline: Instant) -> Result<Vec<Bytes>> {
        self.0.all_gather(bytes, deadline).await
    }
    async fn leave(&self) {
        self.0.leave_in_order().await;
    }
}

/// Gives a public bootstrap its trait, by the [`Member`] in its field `member`.
macro_rules! bootstrap_by_member {
    ($name:ty) => {
        #[async_trait::async_trait]
        impl crate::channel::bootstrap::contract::Bootstrap for $name {
            fn rank(&self) -> usize {
                self.member.rank()
            }
            fn size(&self) -> usize {
                self.member.size()
            }
            fn deadline(&self) -> std::time::Duration {
                self.member.deadline()
            }
            async fn send_until(
                &self,
                to: usize,
                tag: u64,
                bytes: bytes::Bytes,
                deadline: tokio::time::Instant,
            ) -> crate::error::Result<()> {
                self.member.send_until(to, tag, bytes, deadline).await
            }
            async fn receive_until(
                &self,
                from: usize,
                tag: u64,
                deadline: tokio::time::Instant,
            ) -> crate::error::Result<bytes::Bytes> {
                self.member.receive_until(from, tag, deadline).await
            }
            async fn all_gather_until(
                &self,
                bytes: bytes::Bytes,
                deadline: tokio::time::Instant,
            ) -> crate::error::Result<Vec<bytes::Bytes>> {
                self.member.all_gather_until(bytes, deadline).await
            }
            async fn leave(&self) {
                self.member.leave().await;
            }
        }
    };
}
pub(super) use bootstrap_by_member;
