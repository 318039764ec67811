//! What every part of the machine acts upon: connections, the table of operations, queues, limits, what is noted for those above.
//!
//! It calls nobody above it: what concerns them is an [`Event`], which [`Core::act`](crate::worker::core::Core::act) follows.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::Arc,
    task::Waker,
    time::Instant,
};

use bytes::Bytes;

use crate::{
    config::RendezvousThreshold,
    error::{Error, ErrorKind, Result},
    memory::{BufferMut, region::RegionTable},
    protocol::{
        control::{self, Waits},
        ledger::Ledger,
        matching::Arrival as Order,
        plan,
        window::eager_cost,
    },
    sys::memfd::Mapping,
    trace,
    types::{EndpointId, LinkId, OpKey, WorkerId},
    util::{copy::copy_slice, waiters::Waiters},
    worker::{
        lent::Unmatched,
        metrics::{Traffic, WorkerMetrics},
        operations::{self, Arrival, Body, Ended, Entry, Operations, RecvStage, Unexpected, Work},
        peer::{OneCopy, Peer, Status, at, of},
        pressure::Deferred,
        stream::key::StreamKey,
        violation::violation,
        windows::Window,
    },
};

/// What a part of the machine notes for those above it.
#[derive(Debug)]
pub(crate) enum Event {
    /// A message goes back to its place in the order of arrival.
    Returned(Order, Unexpected),
    /// One that kept its place is here, or never will be.
    Arrived(OpKey, Ended),
    /// An operation that engines of devices had a part in is over.
    Staged(OpKey, Ended),
    Failed(OpKey, Error),
    /// Bytes of a device that a stream writes are here.
    Loaded(StreamKey, OpKey),
    /// They never will be.
    Unwritten(StreamKey, Error),
}

#[derive(Default)]
pub(crate) struct Ctx {
    pub(crate) peers: Vec<Option<Peer>>,
    /// Places among them where there is none.
    pub(crate) vacant: Vec<usize>,
    pub(crate) operations: Operations,
    pub(crate) wakes: Vec<Waker>,
    /// Dropped when the lock is gone.
    pub(crate) deferred: Vec<Deferred>,
    pub(crate) writable: Vec<LinkId>,
    pub(crate) failures: Vec<(LinkId, Error)>,
    /// Links whose queue has something that may go now.
    pub(crate) runnable: VecDeque<LinkId>,
    /// The same of those whose queue was empty, within one call.
    pub(crate) submitted: Vec<LinkId>,
    pub(crate) events: VecDeque<Event>,
    /// Windows that are given back when nothing more is being taken out of them.
    pub(crate) owing: Vec<Window>,
    pub(crate) unmatched: Unmatched,
    /// Connections that peers made to this worker's address and that nobody has claimed, by peer.
    pub(crate) unclaimed: HashMap<WorkerId, Vec<LinkId>>,
    /// Who waits for one of a peer's.
    pub(crate) arrivals: HashMap<WorkerId, Waiters>,
    pub(crate) regions: Arc<RegionTable>,
    pub(crate) endpoints: u64,
    pub(crate) rendezvous_threshold: RendezvousThreshold,
    /// Where messages of many parts are put together.
    pub(crate) scratch: Vec<u8>,
    /// What the answers of this turn cost beside their bytes, in bytes that could have been sent instead.
    pub(crate) effort: u64,
    /// What is counted under the lock.
    pub(crate) counts: WorkerMetrics,
    /// What came in since the interface that brings it began its pass.
    pub(crate) received: Traffic,
    /// What peers make this worker hold, and may.
    pub(crate) ledger: Ledger,
}

impl Ctx {
    pub(crate) fn new(
        regions: Arc<RegionTable>,
        rendezvous_threshold: RendezvousThreshold,
    ) -> Self {
        Self {
            regions,
            rendezvous_threshold,
            ..Self::default()
        }
    }

    #[inline]
    pub(crate) fn peer(&mut self, link: LinkId) -> Option<&mut Peer> {
        at(&mut self.peers, link)
    }

    /// The connection of an endpoint, if it still is that endpoint's.
    #[inline]
    pub(crate) fn endpoint(&mut self, link: LinkId, id: EndpointId) -> Option<&mut Peer> {
        of(&mut self.peers, link, id)
    }

    /// All connections that are known, those that have ended among them.
    pub(crate) fn connections(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().flatten()
    }

    pub(crate) fn one_copy(&mut self, link: LinkId) -> Option<&mut OneCopy> {
        self.peer(link)?.one_copy.as_deref_mut()
    }

    /// A connection is claimed, or gone.
    pub(crate) fn forget_unclaimed(&mut self, worker: WorkerId, link: LinkId) {
        if let Some(links) = self.unclaimed.get_mut(&worker) {
            links.retain(|unclaimed| *unclaimed != link);
            if links.is_empty() {
                self.unclaimed.remove(&worker);
            }
        }
    }

    /// Whoever waits for a connection of this peer's looks again.
    pub(crate) fn wake_arrivals(&mut self, worker: WorkerId) {
        if let Some(waiters) = self.arrivals.get_mut(&worker) {
            waiters.take(&mut self.wakes);
        }
    }

    /// The place of the next connection.
    pub(crate) fn next_place(&self) -> usize {
        self.vacant.last().copied().unwrap_or(self.peers.len())
    }

    /// A connection has been made; it has the place that its link names.
    pub(crate) fn add_peer(&mut self, peer: Peer) {
        let index = peer.slot.index();
        if self.vacant.last() == Some(&index) {
            self.vacant.pop();
        }
        self.operations.epochs.open(peer.slot);
        if index >= self.peers.len() {
            self.peers.resize_with(index + 1, || None);
        }
        self.peers[index] = Some(peer);
    }

    /// Sends a message of the protocol to a peer.
    pub(crate) fn control(&mut self, link: LinkId, id: u8, header: u64, body: &[u8]) {
        let Some(peer) = self.peer(link) else { return };
        let queued = peer.control(id, header, body);
        if let Err(error) = queued.and_then(|waits| match waits {
            Waits::Own => Ok(()),
            waits => self.owe(link, waits),
        }) {
            self.failures.push((link, error));
        }
    }

    /// Tells a peer how far its operation is, whose bytes this side alone moves: now and then, if it is long.
    #[inline]
    pub(crate) fn tell_moved(&mut self, link: LinkId, op: u64, before: usize, now: usize) {
        let steps = now / plan::TOLD;
        if steps > before / plan::TOLD
            && let Some(peer) = self.peer(link)
        {
            let body = plan::told(now).to_le_bytes();
            if let Err(error) = peer.mention(control::MOVED, op, &body) {
                self.failures.push((link, error));
            }
        }
    }

    /// The peer, which moves the bytes of an operation alone, says how far it is.
    pub(crate) fn told_moved(&mut self, link: LinkId, key: OpKey, body: &[u8]) -> Result<()> {
        let steps = match body.try_into() {
            Ok(steps) => u16::from_le_bytes(steps),
            Err(_) => return Err(violation("news of another length")),
        };
        let Some(entry) = self.operations.named(link, key) else {
            return Ok(());
        };
        match &*entry.work {
            // A number for people: whether it is true is seen in the end.
            Work::Send(_) | Work::Put(_) | Work::Recv(_) => entry.told = entry.told.max(steps),
            _ => return Err(violation("news of what the peer does not move")),
        }
        Ok(())
    }

    /// Tells a peer that its operation was refused.
    pub(crate) fn refuse(&mut self, link: LinkId, op: u64, kind: ErrorKind) {
        let code = control::error_kind_code(kind).to_le_bytes();
        self.control(link, control::NACK, op, &code);
    }

    /// What a peer's operation needs; `None`: it was refused.
    pub(crate) fn granted<T>(&mut self, link: LinkId, op: u64, asked: Result<T>) -> Option<T> {
        asked
            .inspect_err(|error| self.refuse(link, op, error.kind()))
            .ok()
    }

    /// A receive has got a message in its buffer, or failed.
    pub(crate) fn received(&mut self, key: OpKey, buffer: BufferMut, result: Result<Arrival>) {
        if let Some(entry) = self.operations.get(key)
            && let Work::Recv(recv) = &mut *entry.work
        {
            recv.buffer = buffer;
            recv.arrival = result.as_ref().ok().copied();
            self.finish(key, Ended::Done(result.map(drop)));
        }
    }

    /// Ends an operation: its future is woken, or, when it has none any more, the entry goes.
    /// While its memory is in use by a link, that waits.
    pub(crate) fn finish(&mut self, key: OpKey, ended: Ended) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        if entry.in_flight > 0 || entry.is_copied() {
            entry.deferred.get_or_insert(ended);
            return;
        }
        if entry.staged.is_some() {
            return self.events.push_back(Event::Staged(key, ended));
        }
        let error = ended.error().map(|error| error as &dyn fmt::Display);
        trace::ended(entry.work.name(), error);
        let link = entry.link;
        if entry.keeps_place {
            self.place_ended(key, ended);
        } else if entry.detached {
            if let Some(entry) = self.operations.remove(key) {
                self.release(entry.link, &entry.work);
                self.note_loss(&entry, &ended);
                self.put_back(entry, ended);
            }
        } else {
            entry.outcome = Some(ended);
            if let Some(waker) = entry.waker.take() {
                self.wakes.push(waker);
            }
            self.operations.note_over(key);
        }
        self.close_soon(link);
    }

    /// A closing connection may have waited for what has just ended.
    #[inline]
    pub(crate) fn close_soon(&mut self, link: Option<LinkId>) {
        if let Some(link) = link
            && let Some(peer) = self.peer(link)
            && matches!(peer.status, Status::Closing { sent: false })
        {
            self.runnable.push_back(link);
        }
    }

    /// A put or an active message that nobody waits for any more has failed: the next flush says so.
    pub(crate) fn note_loss(&mut self, entry: &Entry, ended: &Ended) {
        if matches!(&*entry.work, Work::Send(send) if send.cancelling) {
            // Whoever cancelled it knows.
            return;
        }
        if let (
            Work::Put(_) | Work::Atomic(_) | Work::Send(operations::Send { am: Some(_), .. }),
            Ended::Done(Err(error)),
            Some(link),
        ) = (&*entry.work, ended, entry.link)
            && let Some(peer) = self.peer(link)
        {
            peer.lost.get_or_insert_with(|| error.clone());
        }
    }

    /// A message that a dropped receive had taken returns to its place in the order of arrival.
    pub(crate) fn put_back(&mut self, mut entry: Entry, ended: Ended) {
        if !entry.discards
            && let Some((order, message)) = self.message_of(&mut entry, ended)
        {
            self.events.push_back(Event::Returned(order, message));
        }
        self.defer_drop_entry(entry);
    }

    /// The message that a receive or claim ended with, and its place.
    pub(crate) fn message_of(
        &mut self,
        entry: &mut Entry,
        ended: Ended,
    ) -> Option<(Order, Unexpected)> {
        match (ended, &mut *entry.work, entry.link) {
            (Ended::Done(Ok(())), Work::Recv(recv), Some(link)) => {
                let buffer = std::mem::take(&mut recv.buffer);
                Some((recv.order, self.message_again(recv.arrival?, link, buffer)))
            }
            (Ended::Claimed(message), ..) => Some(*message),
            _ => None,
        }
    }

    /// The message again, of what lies in the buffer of a receive that nobody waits for any more.
    /// Buffers of a list that have none of it go once the lock is gone.
    pub(crate) fn message_again(
        &mut self,
        arrival: Arrival,
        link: LinkId,
        buffer: BufferMut,
    ) -> Unexpected {
        let Arrival { length, tag, from } = arrival;
        let whole = buffer.freeze();
        let (data, ack, credit) = (whole.slice(..length), None, 0);
        if whole.is_lent() {
            self.deferred.push(Deferred::Buffer(whole));
        }
        Unexpected::new(link, from, tag, Body::Whole { data, ack, credit })
    }

    /// The message of a receive or claim whose future is gone keeps its place while its bytes arrive.
    pub(crate) fn keep_place(&mut self, key: OpKey) {
        let Some(entry) = self.operations.get(key).filter(|entry| !entry.discards) else {
            return;
        };
        if let (Work::Recv(recv), Some(link)) = (&*entry.work, entry.link)
            && let Some(arrival) = recv.arrival
        {
            entry.keeps_place = true;
            let message = arrival.into_arriving(link, key);
            self.events.push_back(Event::Returned(recv.order, message));
        }
    }

    /// A message that kept its place is here, or never will be. It stays in the table until a receive comes for it.
    fn place_ended(&mut self, key: OpKey, ended: Ended) {
        match self.operations.get(key) {
            Some(entry) if ended.error().is_none() && entry.successor.is_none() => {
                entry.outcome = Some(ended);
            }
            _ => self.events.push_back(Event::Arrived(key, ended)),
        }
    }

    /// A receive that waits for such a message does so no longer: the message keeps its place for the next.
    pub(crate) fn resign(&mut self, key: OpKey) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        let Work::Recv(recv) = &mut *entry.work else {
            return;
        };
        let (RecvStage::Waiting(op), Some(arrival), Some(link)) =
            (&recv.stage, recv.arrival, entry.link)
        else {
            return;
        };
        let (op, order) = (*op, recv.order);
        recv.stage = RecvStage::Done;
        if let Some(entry) = self.operations.get(op)
            && entry.successor.as_deref() == Some(&key)
        {
            entry.successor = None;
            let message = arrival.into_arriving(link, op);
            self.events.push_back(Event::Returned(order, message));
        }
    }

    /// Copies a whole message into a receive buffer; acknowledges it and returns its window.
    pub(crate) fn take_whole(
        &mut self,
        buffer: &mut BufferMut,
        message: Unexpected,
    ) -> Result<Arrival> {
        let Unexpected {
            link,
            from,
            tag,
            body,
        } = message;
        let (result, ack, credit) = match &body {
            Body::Inline { length, bytes, ack } => {
                let data = bytes.get(..usize::from(*length)).unwrap_or(bytes);
                (fill(buffer, data, from), *ack, eager_cost(data.len()))
            }
            Body::Whole { data, ack, credit } => {
                (fill(buffer, data.host(), from), *ack, u64::from(*credit))
            }
            Body::Announced(_) | Body::Arriving { .. } => {
                return Err(Error::new(ErrorKind::Unsupported, "not a whole message"));
            }
        };
        self.taken(link, ack, credit);
        self.defer_drop_body(body);
        result.map(|length| Arrival { length, tag, from })
    }

    /// As [`Ctx::take_whole`], with the bytes as they are here. An error: the message, of which they are elsewhere.
    pub(crate) fn take_bytes(&mut self, message: Unexpected) -> Result<Bytes, Unexpected> {
        let Unexpected {
            link,
            from,
            tag,
            body,
        } = message;
        let kept = |body| Unexpected::new(link, from, tag, body);
        match body {
            Body::Inline { length, bytes, ack } => {
                let data = bytes.get(..usize::from(length)).unwrap_or(&bytes);
                self.taken(link, ack, eager_cost(data.len()));
                Ok(Bytes::copy_from_slice(data))
            }
            Body::Whole { data, ack, credit } => match Bytes::try_from(data) {
                Ok(bytes) => {
                    self.taken(link, ack, u64::from(credit));
                    Ok(bytes)
                }
                Err(data) => Err(kept(Body::Whole { data, ack, credit })),
            },
            body => Err(kept(body)),
        }
    }

    /// A message has been taken that was here: acknowledges it, and returns its window.
    fn taken(&mut self, link: LinkId, ack: Option<u64>, credit: u64) {
        if let Some(op) = ack {
            self.control(link, control::DONE, op, &[]);
        }
        if credit > 0 {
            self.consumed(link, credit);
        }
    }

    /// What the way of a message took is known, if that was measured.
    pub(crate) fn way_over(&mut self, link: Option<LinkId>, key: OpKey, has_come: bool) {
        if let Some(link) = link
            && let Some(one_copy) = self.one_copy(link)
        {
            one_copy.ways.over(key, has_come, Instant::now);
            if let Some(sends) = &mut one_copy.sends {
                sends.over(key, has_come, Instant::now);
            }
        }
    }

    /// A share of a peer's transfer is over on this side.
    pub(crate) fn helped(&mut self, key: OpKey) {
        if let Some(entry) = self.operations.get(key)
            && matches!(*entry.work, Work::Help { .. })
            && let Some(entry) = self.operations.remove(key)
        {
            self.release(entry.link, &entry.work);
            self.close_soon(entry.link);
            self.defer_drop_entry(entry);
        }
    }

    /// The same where what the operation has to do with more than the table is for others to end.
    pub(crate) fn fail_operation(&mut self, key: OpKey, error: Error) {
        self.events.push_back(Event::Failed(key, error));
    }

    /// Whether something is noted.
    #[inline]
    pub(crate) fn is_eventful(&self) -> bool {
        !self.events.is_empty() || !self.submitted.is_empty()
    }

    /// Returns what an operation that is over held of its connection: a place in the window, a slot.
    pub(crate) fn release(&mut self, link: Option<LinkId>, work: &Work) {
        self.served(work);
        let slot = match work {
            Work::Help { .. } => {
                if let Some(peer) = link.and_then(|link| self.peer(link)) {
                    peer.helped = peer.helped.saturating_sub(1);
                }
                return;
            }
            Work::Send(send) => send.slot,
            Work::Put(put) => put.slot,
            Work::Get(get) => get.slot,
            Work::Atomic(_) => None,
            _ => return,
        };
        if let Some(link) = link
            && let Some(peer) = self.peer(link)
        {
            if let Some(slot) = slot
                && let Some(one_copy) = &peer.one_copy
            {
                one_copy.pair.release(slot);
            }
            peer.posted = peer.posted.saturating_sub(1);
            self.tell_ready(link);
        }
    }

    /// Takes an operation out of the queue of its link, if it is there.
    pub(crate) fn unqueue(&mut self, link: Option<LinkId>, key: OpKey) {
        let entry = self.operations.get(key);
        // A connection that has ended has cleared its queue.
        if let Some(class) = entry.and_then(|entry| entry.queued.take())
            && let Some(peer) = link.and_then(|link| self.peer(link))
            && peer.link.is_some()
        {
            peer.queue.cancel(class, key);
        }
    }

    /// Accepts a memory segment that a peer gave.
    pub(crate) fn map_segment(&mut self, link: LinkId, segment: u64, mapping: Mapping) {
        if let Some(one_copy) = self.one_copy(link) {
            one_copy.told.asked.retain(|asked| *asked != segment);
            one_copy.make_room(mapping.len());
            one_copy.mapped.push((segment, Arc::new(mapping)));
        }
    }
}

/// A message that was announced, and whose bytes went with who had them.
pub(crate) fn sender_gone() -> Error {
    Error::new(
        ErrorKind::ConnectionReset,
        "the sender is gone, and the message with it",
    )
}

/// Copies a message into a receive buffer.
#[inline]
pub(crate) fn fill(buffer: &mut BufferMut, data: &[u8], from: EndpointId) -> Result<usize> {
    buffer.takes_from(from)?;
    let room = buffer.len();
    if let Some(list) = buffer.list_mut()
        && data.len() <= room
    {
        list.scatter(0, data);
        return Ok(data.len());
    }
    match buffer
        .as_mut_slice()
        .and_then(|target| target.get_mut(..data.len()))
    {
        Some(target) => {
            copy_slice(data, target);
            Ok(data.len())
        }
        None => Err(truncated(data.len() as u64, room)),
    }
}

#[cold]
pub(crate) fn truncated(length: u64, room: usize) -> Error {
    Error::new(
        ErrorKind::Truncated,
        format!("a message of {length} bytes for a buffer of {room}"),
    )
    .during(crate::Operation::TagRecv)
}
