//! The state that messages act on: connections, operations, matching. No fd, no clock, no runtime: what arrives comes in through
//! [`Sink`](crate::transport::Sink) (`deliver.rs`), what goes out leaves through links (`send.rs`), who waits is woken by the caller after
//! it has let go of the lock.

use std::{
    collections::VecDeque,
    fmt,
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

use crate::{
    config::RendezvousThreshold,
    error::{Error, ErrorKind, Result},
    memory::{BufferMut, keeper, region::RegionTable},
    protocol::{
        control,
        ledger::Ledger,
        matching::{Arrival as Order, Name, PostedQueue, UnexpectedQueue},
        window::eager_cost,
    },
    sys::memfd::Mapping,
    trace,
    transport::Pair,
    types::{EndpointId, LinkId, OpKey, Tag},
    util::copy::copy_slice,
    worker::{
        copy::Transfer,
        device::Devices,
        direct::Direct,
        inbox::Inboxes,
        metrics::Counts,
        one_sided::OneSidedState,
        operations::{
            self, Arrival, Body, Entry, Operations, Outcome, RecvStage, SendStage, Unexpected, Work,
        },
        peer::{OneCopy, Peer, Status, at, of},
        pressure::Buried,
        receive::Posted,
        windows::Window,
    },
};

/// A peer that may be inside this side's memory at this moment, and what memory that is. Kept until it is seen outside.
pub(crate) struct Kept {
    pub(crate) pair: Arc<Pair>,
    /// `None` for exposed memory, whose owner asks [`Pair::is_peer_outside`].
    memory: Option<Work>,
}

/// Between two looks at what is kept, at first and at most.
const KEPT_PAUSE: Duration = Duration::from_micros(100);
const KEPT_PAUSE_MOST: Duration = Duration::from_millis(100);

pub(crate) struct Core {
    pub(crate) peers: Vec<Option<Peer>>,
    /// Places among them where there is none.
    vacant: Vec<usize>,
    pub(crate) operations: Operations,
    pub(crate) posted: PostedQueue<Posted>,
    /// Receives in it that are not in the table.
    pub(crate) receives: usize,
    pub(crate) unexpected: UnexpectedQueue<Unexpected>,
    pub(crate) direct: Option<Direct>,
    pub(crate) transfers: Vec<Transfer>,
    /// Which of them has the next turn.
    pub(crate) next_transfer: usize,
    pub(crate) kept: Vec<Kept>,
    /// When they are looked at next, and how long before the look after that.
    kept_next: Instant,
    kept_pause: Duration,
    pub(crate) wakes: Vec<Waker>,
    /// Dropped when the lock is gone.
    pub(crate) buried: Vec<Buried>,
    pub(crate) writable: Vec<LinkId>,
    pub(crate) failures: Vec<(LinkId, Error)>,
    /// Links whose queue has something that may go now.
    pub(crate) runnable: VecDeque<LinkId>,
    /// Windows that are given back when nothing more is being taken out of them.
    pub(crate) owing: Vec<Window>,
    /// Connections that peers made to this worker's address and that nobody has claimed.
    pub(crate) unclaimed: Vec<LinkId>,
    pub(crate) arrivals: Vec<Waker>,
    pub(crate) regions: Arc<RegionTable>,
    pub(crate) endpoints: u64,
    pub(crate) rendezvous_threshold: RendezvousThreshold,
    pub(crate) streams: crate::worker::stream::Streams,
    pub(crate) inboxes: Inboxes,
    /// Where messages of many parts are put together.
    pub(crate) scratch: Vec<u8>,
    pub(crate) devices: Devices,
    pub(crate) one_sided: OneSidedState,
    /// What the answers of this turn cost beside their bytes, in bytes that could have been sent instead.
    pub(crate) effort: u64,
    pub(crate) counts: Counts,
    /// What peers make this worker hold, and may.
    pub(crate) ledger: Ledger,
}

impl Core {
    pub(crate) fn new(
        regions: Arc<RegionTable>,
        rendezvous_threshold: RendezvousThreshold,
    ) -> Self {
        Self {
            peers: Vec::new(),
            vacant: Vec::new(),
            operations: Operations::default(),
            posted: PostedQueue::default(),
            receives: 0,
            unexpected: UnexpectedQueue::default(),
            direct: None,
            transfers: Vec::new(),
            next_transfer: 0,
            kept: Vec::new(),
            kept_next: Instant::now(),
            kept_pause: KEPT_PAUSE,
            wakes: Vec::new(),
            buried: Vec::new(),
            writable: Vec::new(),
            failures: Vec::new(),
            runnable: VecDeque::new(),
            owing: Vec::new(),
            unclaimed: Vec::new(),
            arrivals: Vec::new(),
            regions,
            endpoints: 0,
            rendezvous_threshold,
            streams: Default::default(),
            inboxes: Inboxes::default(),
            scratch: Vec::new(),
            devices: Devices::default(),
            one_sided: OneSidedState::default(),
            effort: 0,
            counts: Counts::default(),
            ledger: Ledger::default(),
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

    pub(crate) fn one_copy(&mut self, link: LinkId) -> Option<&mut OneCopy> {
        self.peer(link)?.one_copy.as_deref_mut()
    }

    /// A connection has been made; it has the place that its link names.
    /// The place of the next connection.
    pub(crate) fn next_place(&self) -> usize {
        self.vacant.last().copied().unwrap_or(self.peers.len())
    }

    pub(crate) fn add_peer(&mut self, peer: Peer) {
        let index = peer.slot.index();
        if self.vacant.last() == Some(&index) {
            self.vacant.pop();
        }
        self.operations.open(peer.slot);
        if index >= self.peers.len() {
            self.peers.resize_with(index + 1, || None);
        }
        self.peers[index] = Some(peer);
    }

    /// Sends a message of the protocol to a peer.
    pub(crate) fn control(&mut self, link: LinkId, id: u8, header: u64, body: &[u8]) {
        let Some(peer) = self.peer(link) else { return };
        let queued = peer.control(id, header, body);
        if let Err(error) = queued.and_then(|is_owed| match is_owed {
            true => self.owe(link),
            false => Ok(()),
        }) {
            self.failures.push((link, error));
        }
    }

    /// Tells a peer that its operation was refused.
    pub(crate) fn refuse(&mut self, link: LinkId, op: u64, kind: ErrorKind) {
        let code = control::error_kind_code(kind).to_le_bytes();
        self.control(link, control::NACK, op, &code);
    }

    /// All bytes of a get are in its buffer.
    pub(crate) fn got(&mut self, key: OpKey) {
        let Some(Work::Get(get)) = self.operations.get(key).map(|entry| &mut entry.work) else {
            return;
        };
        let buffer = std::mem::take(&mut get.buffer);
        let arrival = Arrival {
            length: buffer.len(),
            tag: Tag(0),
            from: EndpointId(0),
        };
        let outcome = Outcome::Buffer {
            result: Ok(arrival),
            buffer: Some(buffer),
        };
        self.finish(key, outcome);
    }

    /// Ends an operation: its future is woken, or, when it has none any more, the entry goes.
    /// While its memory is in use by a link, that waits.
    pub(crate) fn finish(&mut self, key: OpKey, outcome: Outcome) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        if entry.in_flight > 0 || entry.is_copied() {
            entry.deferred.get_or_insert_with(|| Box::new(outcome));
            return;
        }
        if entry.staged.is_some() {
            return self.finish_staged(key, outcome);
        }
        let error = outcome.error().map(|error| error as &dyn fmt::Display);
        trace::ended(entry.work.name(), error);
        let link = entry.link;
        if entry.keeps_place {
            self.arrived(key, outcome);
        } else if entry.detached {
            if let Some(entry) = self.operations.remove(key) {
                self.release(entry.link, &entry.work);
                self.note_loss(&entry, &outcome);
                self.put_back(entry, outcome);
            }
        } else {
            entry.outcome = Some(outcome);
            self.wakes.extend(entry.waker.take());
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
    fn note_loss(&mut self, entry: &Entry, outcome: &Outcome) {
        if matches!(&entry.work, Work::Send(send) if send.cancelling) {
            // Whoever cancelled it knows.
            return;
        }
        if let (
            Work::Put(_) | Work::Atomic(_) | Work::Send(operations::Send { am: Some(_), .. }),
            Outcome::Done(Err(error)),
            Some(link),
        ) = (&entry.work, outcome, entry.link)
            && let Some(peer) = self.peer(link)
        {
            peer.lost.get_or_insert_with(|| error.duplicate());
        }
    }

    /// A message that a dropped receive had taken returns to its place in the order of arrival.
    fn put_back(&mut self, entry: Entry, outcome: Outcome) {
        if entry.discards {
            self.bury_outcome(outcome);
            self.bury_entry(entry);
            return;
        }
        match message_of(&entry, outcome) {
            Ok((order, message)) => self.restore(order, message),
            Err(outcome) => self.bury_outcome(outcome),
        }
        self.bury_entry(entry);
    }

    /// The message of a receive or claim whose future is gone keeps its place while its bytes arrive.
    fn keep_place(&mut self, key: OpKey) {
        let Some(entry) = self.operations.get(key).filter(|entry| !entry.discards) else {
            return;
        };
        let (order, from, tag, length) = match &entry.work {
            Work::Recv(operations::Recv {
                arrival: Some(arrival),
                order,
                ..
            }) => (*order, arrival.from, arrival.tag, arrival.length),
            Work::ClaimLanding {
                data,
                tag,
                from,
                order,
            } => (*order, *from, *tag, data.len()),
            _ => return,
        };
        let Some(link) = entry.link else { return };
        entry.keeps_place = true;
        let body = Body::Arriving { op: key, length };
        let message = Unexpected {
            link,
            from,
            tag,
            body,
        };
        self.restore(order, message);
    }

    /// A message that kept its place is here, or never will be. It stays in the table until a receive comes for it.
    fn arrived(&mut self, key: OpKey, outcome: Outcome) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        let successor = entry.successor.take();
        let failure = match &outcome {
            Outcome::Buffer { result, .. } => result.as_ref().err().map(Error::duplicate),
            Outcome::Claimed(result) => result.as_ref().err().map(Error::duplicate),
            Outcome::Done(result) => result.as_ref().err().map(Error::duplicate),
            Outcome::Value(_) => None,
        };
        if failure.is_none() && successor.is_none() {
            entry.outcome = Some(outcome);
            return;
        }
        let Some(entry) = self.operations.remove(key) else {
            return;
        };
        self.take_named(Name::Arriving(key));
        match (message_of(&entry, outcome), successor, failure) {
            (Ok((order, message)), Some(successor), None) => {
                self.hand_over(successor, order, message);
            }
            (Err(outcome), Some(successor), Some(error)) => {
                self.bury_outcome(outcome);
                self.fail_operation(successor, error);
            }
            (Err(outcome), ..) => self.bury_outcome(outcome),
            (Ok(_), ..) => {}
        }
        self.bury_entry(entry);
    }

    /// A receive has matched a message that keeps its place.
    fn succeed(&mut self, key: OpKey, order: Order, message: &Unexpected, op: OpKey) {
        let arrived = match self.operations.get(op) {
            None => {
                let gone = "the sender is gone, and the message with it";
                return self.fail_operation(key, Error::new(ErrorKind::ConnectionReset, gone));
            }
            Some(entry) if entry.outcome.is_none() => {
                entry.successor = Some(key);
                false
            }
            Some(_) => true,
        };
        if arrived {
            if let Some(mut entry) = self.operations.remove(op)
                && let Some(outcome) = entry.outcome.take()
                && let Ok((order, message)) = message_of(&entry, outcome)
            {
                self.hand_over(key, order, message);
                self.bury_entry(entry);
            }
        } else if let Some(entry) = self.operations.get(key)
            && let Work::Recv(recv) = &mut entry.work
        {
            recv.stage = RecvStage::Waiting(op);
            recv.order = order;
            recv.arrival = Some(Arrival {
                length: message.len(),
                tag: message.tag,
                from: message.from,
            });
        }
    }

    /// A receive that waits for such a message does so no longer: the message keeps its place for the next.
    fn resign(&mut self, key: OpKey) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        let Work::Recv(recv) = &mut entry.work else {
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
            && entry.successor == Some(key)
        {
            entry.successor = None;
            let body = Body::Arriving {
                op,
                length: arrival.length,
            };
            let message = Unexpected {
                link,
                from: arrival.from,
                tag: arrival.tag,
                body,
            };
            self.restore(order, message);
        }
    }

    /// Puts a message back where it was; somebody may be waiting for it.
    pub(crate) fn restore(&mut self, order: Order, message: Unexpected) {
        if matches!(message.body, Body::Announced(_))
            && self
                .endpoint(message.link, message.from)
                .is_none_or(|peer| !peer.matches_announced())
        {
            // Its bytes went with its sender.
            return;
        }
        let tag = message.tag;
        if let Some(key) = self.match_posted(tag) {
            self.hand_over(key, order, message);
        } else {
            self.return_unexpected(order, message);
        }
    }

    /// Gives a whole or announced message to a posted receive or claim.
    pub(crate) fn hand_over(&mut self, key: OpKey, order: Order, message: Unexpected) {
        let Some(entry) = self.operations.attach(key, message.link) else {
            return;
        };
        match &mut entry.work {
            Work::Recv(_) if matches!(message.body, Body::Arriving { .. }) => {
                if let Body::Arriving { op, .. } = message.body {
                    self.succeed(key, order, &message, op);
                }
            }
            Work::Claim(post) => {
                *post = None;
                self.finish(key, Outcome::Claimed(Ok(Box::new((order, message)))));
            }
            Work::Recv(recv) => {
                recv.order = order;
                let (link, from, tag) = (message.link, message.from, message.tag);
                match message.body {
                    Body::Announced(rts) => self.begin_rendezvous(key, link, from, tag, rts),
                    body if recv.buffer.is_on_device() || body.is_on_device() => {
                        self.store_body(key, (link, from, tag), body);
                    }
                    body => {
                        recv.stage = RecvStage::Done;
                        let mut buffer =
                            std::mem::replace(&mut recv.buffer, BufferMut::from(Vec::new()));
                        let result = self.take_whole(&mut buffer, link, from, tag, body);
                        self.finish(
                            key,
                            Outcome::Buffer {
                                result,
                                buffer: Some(buffer),
                            },
                        );
                    }
                }
            }
            _ => {}
        }
    }

    /// Copies a whole message into a receive buffer; acknowledges it and returns its window.
    pub(crate) fn take_whole(
        &mut self,
        buffer: &mut BufferMut,
        link: LinkId,
        from: EndpointId,
        tag: Tag,
        body: Body,
    ) -> Result<Arrival> {
        let (result, ack, credit) = match &body {
            Body::Inline { length, bytes, ack } => {
                let data = bytes.get(..usize::from(*length)).unwrap_or(bytes);
                (fill(buffer, data, from), *ack, eager_cost(data.len()))
            }
            Body::Whole { data, ack, credit } => (
                fill(buffer, data.as_slice().unwrap_or(&[]), from),
                *ack,
                u64::from(*credit),
            ),
            Body::Announced(_) | Body::Arriving { .. } => {
                return Err(Error::new(ErrorKind::Unsupported, "not a whole message"));
            }
        };
        if let Some(op) = ack {
            self.control(link, control::DONE, op, &[]);
        }
        if credit > 0 {
            self.consumed(link, credit);
        }
        self.bury_body(body);
        result.map(|length| Arrival { length, tag, from })
    }

    /// The operation whose memory a one-copy transfer was moving has it all, or failed.
    pub(crate) fn copied(&mut self, key: OpKey, result: Result<()>) {
        let Err(result) = self.end_written(key, result) else {
            // It is over once the peer can no longer write it.
            return;
        };
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        if let Err(error) = result {
            self.fail_operation(key, error);
            return;
        }
        let link = entry.link;
        match &mut entry.work {
            Work::Recv(recv) => {
                recv.stage = RecvStage::Done;
                let buffer = std::mem::replace(&mut recv.buffer, BufferMut::from(Vec::new()));
                let result = recv
                    .arrival
                    .ok_or_else(|| Error::new(ErrorKind::Protocol, "complete before it began"));
                self.way_over(link, key, true);
                self.finish(
                    key,
                    Outcome::Buffer {
                        result,
                        buffer: Some(buffer),
                    },
                );
            }
            Work::Get(_) => self.got(key),
            Work::Copy(copy) => {
                let arrival = Arrival {
                    length: copy.from.len(),
                    tag: Tag(0),
                    from: EndpointId(0),
                };
                let buffer = std::mem::take(&mut copy.to);
                self.finish(
                    key,
                    Outcome::Buffer {
                        result: Ok(arrival),
                        buffer: Some(buffer),
                    },
                );
            }
            Work::Put(_) => self.put_visible(key),
            Work::Send(_) => self.finish(key, Outcome::Done(Ok(()))),
            _ => self.helped(key),
        }
    }

    /// What a receive's way took is known, if that was measured.
    fn way_over(&mut self, link: Option<LinkId>, key: OpKey, has_come: bool) {
        if let Some(link) = link
            && let Some(one_copy) = self.one_copy(link)
        {
            one_copy.ways.over(key, has_come);
        }
    }

    /// A share of a peer's transfer is over on this side.
    pub(crate) fn helped(&mut self, key: OpKey) {
        if let Some(entry) = self.operations.get(key)
            && matches!(entry.work, Work::Help { .. })
            && let Some(entry) = self.operations.remove(key)
        {
            self.release(entry.link, &entry.work);
            self.close_soon(entry.link);
            self.bury_entry(entry);
        }
    }

    /// Ends an operation with an error. The buffer comes back unless the peer may be writing into it at this moment.
    pub(crate) fn fail_operation(&mut self, key: OpKey, error: Error) {
        let Err(Err(error)) = self.end_written(key, Err(error)) else {
            return;
        };
        self.resign(key);
        let is_copied = |entry: &mut Entry| entry.copies > 0;
        if self.operations.get(key).is_some_and(is_copied)
            && let Some(index) = self
                .transfers
                .iter()
                .position(|transfer| transfer.op == key)
        {
            // Its own transfer ends first, and tells the peer.
            self.end_transfer(index, Some(Err(error)));
            return;
        }
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        let link = entry.link;
        let written = match &entry.work {
            Work::Recv(recv) => matches!(recv.stage, RecvStage::Copying | RecvStage::Shared(_)),
            // The peer may help, but with one run only.
            Work::Get(get) => get.layout.is_none(),
            // The owner may be copying a share out of it.
            Work::Put(put) => put.slot.is_some(),
            _ => false,
        };
        // The peer may be copying out of it, and take what it copies for the message. It ends other sends itself.
        let read = matches!(&entry.work, Work::Send(send)
            if matches!(send.stage, SendStage::Announced | SendStage::AwaitMatch))
            && link.is_some_and(|link| self.peer(link).is_some_and(|peer| !peer.is_alive()));
        self.way_over(link, key, false);
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        let has_buffer = matches!(entry.work, Work::Recv(_) | Work::Get(_));
        if let Work::Claim(Some(post)) = entry.work {
            self.posted.remove(post);
        }
        if (written || read)
            && entry.staged.is_none()
            && let Some(link) = link
            && let Some(one_copy) = self.one_copy(link)
        {
            let pair = one_copy.pair.clone();
            // No future waits for the memory of a send.
            let quiet = if read {
                pair.is_peer_outside()
            } else {
                pair.is_peer_quiet()
            };
            if !quiet {
                // The memory stays with a stand-in; the future learns that it does not come back. The word of the transfer stays in use: the
                // peer may still count a chunk in it.
                let outcome = if has_buffer {
                    Outcome::Buffer {
                        result: Err(error),
                        buffer: None,
                    }
                } else {
                    Outcome::Done(Err(error))
                };
                if let Some(entry) = self.operations.get(key) {
                    let work = std::mem::replace(&mut entry.work, Work::Flush);
                    self.keep(pair, work);
                }
                if let Some(peer) = self.peer(link) {
                    peer.posted = peer.posted.saturating_sub(1);
                }
                self.finish(key, outcome);
                return;
            }
        }
        if let Some(entry) = self.operations.get(key) {
            let outcome = entry.failure(error);
            self.finish(key, outcome);
        }
    }

    /// Keeps memory that a peer may be inside.
    pub(crate) fn keep(&mut self, pair: Arc<Pair>, memory: Work) {
        let memory = Some(memory);
        self.push_kept(Kept { pair, memory });
    }

    fn push_kept(&mut self, kept: Kept) {
        self.kept.push(kept);
        self.kept_pause = KEPT_PAUSE;
        self.kept_next = Instant::now();
    }

    /// The worker goes. Memory that a peer is still inside, which is stopped in the middle of a copy, outlives it.
    pub(crate) fn outlive(&mut self) {
        self.release_kept();
        let mut kept = std::mem::take(&mut self.kept);
        kept.retain(|kept| kept.memory.is_some());
        if !kept.is_empty() {
            keeper::keep(Box::new(move || {
                kept.retain(|kept| !kept.pair.is_peer_outside());
                kept.is_empty()
            }));
        }
    }

    /// Lets go of kept memory whose writers are seen outside.
    pub(crate) fn release_kept(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        // A look may be a system call, and some peers never go.
        let now = Instant::now();
        if now < self.kept_next {
            return;
        }
        let before = self.kept.len();
        let mut last = (std::ptr::null(), false);
        let (over, kept) = std::mem::take(&mut self.kept)
            .into_iter()
            .partition(|kept| {
                // Many in a row are of one peer.
                let pair = Arc::as_ptr(&kept.pair);
                if last.0 != pair {
                    last = (pair, kept.pair.is_peer_outside());
                }
                last.1
            });
        self.kept = kept;
        self.kept_pause = match self.kept.len() < before {
            true => KEPT_PAUSE,
            false => (self.kept_pause * 2).min(KEPT_PAUSE_MOST),
        };
        self.kept_next = now + self.kept_pause;
        for kept in Vec::<Kept>::into_iter(over) {
            if let Some(work) = kept.memory {
                self.bury(work);
            }
        }
    }

    /// Takes what a future came for. The entry goes, but for a put whose source is free and whose acknowledgement is not here.
    pub(crate) fn take_outcome(&mut self, key: OpKey) -> Option<Outcome> {
        if key.as_posted().is_some() {
            return self.take_received(key);
        }
        let entry = self.operations.get(key)?;
        let outcome = entry.outcome.take()?;
        if matches!(&entry.work, Work::Put(put) if put.local && !put.acknowledged)
            && matches!(outcome, Outcome::Done(Ok(())))
        {
            entry.detached = true;
            return Some(outcome);
        }
        if let Some(entry) = self.operations.remove(key) {
            self.release(entry.link, &entry.work);
            self.bury(entry.work);
        }
        Some(outcome)
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

    /// Ends a connection: every operation on it ends with `error`. The caller has taken the link out of its interface.
    pub(crate) fn fail(&mut self, link: LinkId, error: Error) {
        let Some(peer) = at(&mut self.peers, link) else {
            return;
        };
        if matches!(peer.status, Status::Closed(_)) {
            return;
        }
        let error = match peer.reason.take() {
            // The peer had said so: the link's end is the answer to the answer.
            Some(reason)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionReset | ErrorKind::PeerDied
                ) =>
            {
                reason
            }
            _ => error,
        };
        let error = error
            .with_peer(&peer.info.name)
            .over(peer.attributes.transport);
        tracing::debug!(target: "wharf::endpoint", parent: peer.span(), peer = %peer.info.name, %error, "connection ended");
        let broke = matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Exhausted);
        let account = peer.account.take();
        peer.status = Status::Closed(error.duplicate());
        peer.queue.clear();
        // Whatever the link was lent is ours again once it is dropped.
        peer.link = None;
        peer.seat = None;
        peer.ending.take(&mut self.wakes);
        peer.ready.take(&mut self.wakes);
        self.wakes.append(&mut self.arrivals);
        // Nobody may begin to touch memory here for this peer any more, which may not have noticed.
        if let Some(one_copy) = &peer.one_copy {
            one_copy.pair.end();
        }
        for transfer in &self.transfers {
            if transfer.link == link
                && let Some(word) = transfer.chunks
                && let Some(peer) = at(&mut self.peers, link)
                && let Some(one_copy) = &peer.one_copy
            {
                one_copy.pair.revoke(word);
            }
        }
        self.transfers.retain(|transfer| transfer.link != link);
        self.operations.close(link);
        for key in self.operations.keys_of_link(link) {
            if let Some(error) = self.moves_failed(key) {
                // It had ended before the link, but for what else was under way.
                self.fail_operation(key, error);
                continue;
            }
            if let Some(entry) = self.operations.get(key) {
                entry.copies = 0;
                // Bytes that were counted when they were given a place have not come.
                let is_partial = entry.in_flight > 0 && entry.takes_bytes();
                // The link is dropped and the interface has let go: the memory is ours.
                entry.in_flight = 0;
                if let Some(outcome) = entry.deferred.take() {
                    match is_partial && outcome.error().is_none() {
                        true => {
                            let outcome = entry.failure_of(*outcome, error.duplicate());
                            self.finish(key, outcome);
                        }
                        false => self.finish(key, *outcome),
                    }
                    continue;
                }
                match &entry.work {
                    Work::Serve(_) | Work::Fill(_) | Work::Write(_) | Work::Lent(_)
                        if entry.staged.is_some() =>
                    {
                        self.finish(key, Outcome::Done(Err(error.duplicate())));
                    }
                    Work::Serve(_)
                    | Work::PutIn { .. }
                    | Work::Help { .. }
                    | Work::AmLanding { .. }
                    | Work::StreamIn(_) => {
                        if let Some(entry) = self.operations.remove(key) {
                            self.served(&entry.work);
                            self.bury_entry(entry);
                        }
                    }
                    Work::Flush => {
                        // A flush says how operations ended, and they end here.
                        self.finish(key, Outcome::Done(Err(error.duplicate())));
                    }
                    _ if entry.outcome.is_some() => {
                        // No acknowledgement will come for a put that was complete here.
                        if let Work::Put(put) = &mut entry.work {
                            put.acknowledged = true;
                        }
                    }
                    _ => self.fail_operation(key, error.duplicate()),
                }
            }
        }
        self.end_streams(link, &error);
        self.forget_announced_of(link, account);
        if broke && let Some(account) = account {
            self.forget_all_of(account);
        }
        if let Some(account) = account {
            self.forgive(link, account);
            self.ledger.close(account);
        }
        if let Some(peer) = at(&mut self.peers, link) {
            let (one_copy, handles) = (peer.one_copy.take(), peer.handles);
            // Who takes back later what is exposed here waits for it.
            if let Some(one_copy) = one_copy
                && one_copy.pair.has_let()
                && !one_copy.pair.is_peer_quiet()
            {
                self.push_kept(Kept {
                    pair: one_copy.pair,
                    memory: None,
                });
            }
            if handles == 0 {
                // Nobody will ask for the reason.
                self.forget(link);
            }
        }
    }

    /// Drops the record of an ended connection; its slot may be used again.
    pub(crate) fn forget(&mut self, link: LinkId) {
        self.unclaimed.retain(|unclaimed| *unclaimed != link);
        self.forget_streams(link);
        if at(&mut self.peers, link).is_some_and(|peer| !peer.is_alive()) {
            self.peers[link.index()] = None;
            self.vacant.push(link.index());
        }
    }

    /// A future was dropped: the operation goes, or goes on without it.
    pub(crate) fn drop_future(&mut self, key: OpKey) {
        if key.as_posted().is_some() {
            return self.drop_receive(key);
        }
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        entry.waker.take();
        if let (Work::Put(put), Some(Outcome::Done(Ok(())))) = (&entry.work, &entry.outcome)
            && !put.acknowledged
        {
            // Complete here only: flush and close count it until the peer has it.
            entry.outcome = None;
            entry.detached = true;
            return;
        }
        if entry.outcome.is_some() {
            if let Some(mut entry) = self.operations.remove(key)
                && let Some(outcome) = entry.outcome.take()
            {
                self.release(entry.link, &entry.work);
                self.note_loss(&entry, &outcome);
                self.put_back(entry, outcome);
            }
            return;
        }
        let post = match &entry.work {
            Work::Claim(Some(post)) => Some(*post),
            Work::Flush => {
                self.operations.remove(key);
                return;
            }
            _ => None,
        };
        match post {
            Some(post) => {
                self.posted.remove(post);
                if let Some(entry) = self.operations.remove(key) {
                    self.bury_entry(entry);
                }
            }
            None => {
                entry.detached = true;
                let waits = matches!(
                    &entry.work,
                    Work::Recv(operations::Recv {
                        stage: RecvStage::Waiting(_),
                        ..
                    })
                );
                if waits {
                    self.resign(key);
                    if let Some(entry) = self.operations.remove(key) {
                        self.bury_entry(entry);
                    }
                } else {
                    self.keep_place(key);
                }
            }
        }
    }

    /// Tries to stop an operation. `true`: it has ended, or will be told so; `false`: it runs to its end.
    pub(crate) fn cancel(&mut self, key: OpKey, error: Error) -> bool {
        let Some(key) = self.entry_of(key) else {
            self.fail_receive(key, error);
            return true;
        };
        let Some(entry) = self.operations.get(key) else {
            return true;
        };
        if entry.outcome.is_some() {
            return true;
        }
        let (link, copies) = (entry.link, entry.copies);
        match &mut entry.work {
            Work::Recv(recv) if matches!(recv.stage, RecvStage::Waiting(_)) => {
                self.fail_operation(key, error);
                true
            }
            Work::Claim(_) | Work::Copy(_) | Work::Flush => {
                self.fail_operation(key, error);
                true
            }
            Work::Send(send) if matches!(send.stage, SendStage::Queued) => {
                self.am_withdraw(link, key);
                self.unqueue(link, key);
                self.fail_operation(key, error);
                true
            }
            Work::Send(send) if matches!(send.stage, SendStage::Announced) => {
                if !send.cancelling {
                    send.cancelling = true;
                    if let Some(link) = link {
                        self.control(link, control::CANCEL, key.0, &[]);
                    }
                }
                false
            }
            Work::Atomic(atomic) if !atomic.sent => {
                self.unqueue(link, key);
                self.fail_operation(key, error);
                true
            }
            Work::Put(put)
                if put.next == 0 && put.slot.is_none() && !put.signal_due && copies == 0 =>
            {
                self.unqueue(link, key);
                self.fail_operation(key, error);
                true
            }
            _ => false,
        }
    }

    fn unqueue(&mut self, link: Option<LinkId>, key: OpKey) {
        if let Some(link) = link
            && let Some(peer) = self.peer(link)
        {
            peer.queue.remove(key);
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

/// The message that a receive or claim ended with, and its place.
fn message_of(entry: &Entry, outcome: Outcome) -> Result<(Order, Unexpected), Outcome> {
    match (outcome, &entry.work, entry.link) {
        (
            Outcome::Buffer {
                result: Ok(arrival),
                buffer: Some(buffer),
            },
            Work::Recv(recv),
            Some(link),
        ) => {
            let body = Body::Whole {
                data: buffer.freeze().slice(..arrival.length),
                ack: None,
                credit: 0,
            };
            let message = Unexpected {
                link,
                from: arrival.from,
                tag: arrival.tag,
                body,
            };
            Ok((recv.order, message))
        }
        (Outcome::Claimed(Ok(message)), ..) => Ok(*message),
        (outcome, ..) => Err(outcome),
    }
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
