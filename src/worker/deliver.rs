//! What comes in: every message of a peer, acted upon. Nothing in it is trusted: an unknown operation is an echo of one that ended, and is
//! ignored; what the protocol does not allow closes the connection.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use crate::{
    error::{Error, ErrorKind, Result},
    memory::{Buffer, BufferMut},
    protocol::{
        control::{self, Announcement, GetRequest, Join, PutHeader, Rtr, Signal},
        matching::{Arrival as Order, Name},
        plan,
        window::{Due, Terms, eager_cost, eager_need},
    },
    sys::{fd_passing, memfd::Mapping},
    trace,
    transport::{FRAGMENT, Hold, MAX_PREFIX, Place, Sink},
    types::{Access, EndpointId, LinkId, OpKey, Priority, Tag},
    util::copy::copied,
    worker::{
        copy::{Remote, Transfer, chunks},
        core::Core,
        ctx::{Ctx, fill, truncated},
        layout::{LEAST, PACK},
        movers::Movers,
        one_sided::word,
        operations::{
            Arrival, Body, Ended, Outgoing, PutIn, Recv, RecvStage, SendStage, Serve, Unexpected,
            Work,
        },
        peer::{OneCopy, at},
        receive::Posted,
        send::give,
        signal::put_parts,
        source::Source,
        violation::violation,
    },
};

/// Longest part of an answer, and longest message of those that bring no payload, or short runs of many: what is buffered of one before it is
/// acted upon.
const LONGEST: usize = FRAGMENT + MAX_PREFIX;
const WORDS: usize = PACK + LEAST;

/// Messages up to this length come at once: none of them is buffered in parts.
const AT_ONCE: usize = 4096;

/// Transfers of one peer that this side helps with at a time; of more the peer does all by itself.
const HELP: usize = 32;

#[cold]
fn too_long() -> Error {
    violation("a message is longer than any of its kind")
}

impl Ctx {
    /// Whether an operation is a receive into memory that the host does not reach.
    fn waits_on_device(&mut self, key: OpKey) -> bool {
        match self.operations.work(key) {
            Some(Work::Recv(recv)) => recv.buffer.is_on_device(),
            _ => false,
        }
    }

    /// Puts a matched receive into the table; without a link, it finds it when it is given its message.
    pub(crate) fn enter_receive(
        &mut self,
        buffer: BufferMut,
        link: Option<LinkId>,
        order: Order,
    ) -> OpKey {
        let recv = Recv::new(buffer, order);
        self.operations.insert(link, false, Work::Recv(recv))
    }

    /// Where the next fragment of an operation goes, if the operation is still there and has room for it: the buffer, and the place in it.
    fn landing(
        &mut self,
        link: LinkId,
        key: OpKey,
        length: usize,
    ) -> Result<Option<(&mut BufferMut, &mut usize, usize)>> {
        let Some(entry) = self
            .operations
            .named(link, key)
            .filter(|entry| entry.is_under_way())
        else {
            return Ok(None);
        };
        if entry.copies > 0 {
            return Err(violation("bytes for what this side copies itself"));
        }
        if entry.is_moved() {
            return Err(violation("bytes for what devices move"));
        }
        let (buffer, got, expected) = match &mut *entry.work {
            Work::Recv(recv) => match &mut recv.stage {
                RecvStage::Landing { expected, got } => (&mut recv.buffer, got, *expected),
                _ => return Err(violation("a fragment for what takes none")),
            },
            // Blocks say where they belong.
            Work::Get(get) if get.layout.is_none() => {
                let expected = get.buffer.len();
                (&mut get.buffer, &mut get.got, expected)
            }
            _ => return Err(violation("a fragment for what takes none")),
        };
        let room = match buffer.is_on_device() {
            true => 0,
            false => expected - *got,
        };
        if length > room {
            return Err(violation("more bytes than announced"));
        }
        Ok(Some((buffer, got, expected)))
    }

    /// Where a long one goes.
    fn place_fragment(&mut self, link: LinkId, key: OpKey, length: usize) -> Result<Place> {
        let Some((buffer, got, _)) = self.landing(link, key, length)? else {
            return Ok(Place::Discard);
        };
        let run = buffer.host_from_mut(*got);
        if run.len() < length {
            // Too long for a piece.
            return Ok(Place::Whole);
        }
        let address = run.as_mut_ptr();
        *got += length;
        Ok(self.lend(key, address))
    }

    /// Whether the peer may have moved the last bytes of a receive or a get: its devices were asked to write them, or both ends copy and all
    /// chunks are counted.
    fn is_moved_by_peer(&mut self, link: LinkId, key: OpKey) -> bool {
        let Some(entry) = self.operations.get(key) else {
            return false;
        };
        if entry.is_written() {
            return true;
        }
        let (word, length) = match &*entry.work {
            Work::Recv(recv) => match (&recv.stage, recv.arrival) {
                (RecvStage::Shared(word), Some(arrival)) => (*word, arrival.length),
                _ => return false,
            },
            Work::Get(get) => match get.slot {
                Some(word) => (word, get.buffer.len()),
                None => return false,
            },
            _ => return false,
        };
        self.one_copy(link)
            .is_some_and(|one_copy| one_copy.pair.is_complete(word, chunks(length)))
    }

    fn nack(&mut self, link: LinkId, key: OpKey, error: Error) {
        let Some(entry) = self.operations.named(link, key) else {
            return;
        };
        if entry.outcome.is_some() && !matches!(&*entry.work, Work::Put(put) if put.local) {
            return;
        }
        if entry.was_announced() {
            self.announcement_over(link);
        } else if let Work::Put(put) = &mut *entry.work {
            put.acknowledged = true;
            // What is still in flight is discarded by the peer; no more follows.
            put.next = put.buffer.len();
            self.announcement_answered(link, key);
        }
        self.fail_operation(key, error);
    }

    /// A region is exposed no longer: what peers still get from it ends here, however slowly they read.
    pub(crate) fn withdraw(&mut self, slot: u32) {
        let served: Vec<_> = self
            .operations
            .iter()
            .filter(|(_, entry)| entry.is_under_way())
            .filter(|(_, entry)| match &*entry.work {
                Work::Serve(serve) => {
                    matches!(&serve.source, Source::Region(exposed) if exposed.slot == slot)
                }
                Work::Fill(fill) => fill.exposed.slot == slot,
                _ => false,
            })
            .map(|(key, _)| key)
            .collect();
        for key in served {
            self.refuse_served(key, ErrorKind::StaleKey);
            self.finish(key, Ended::Done(Ok(())));
        }
    }

    /// A piece of a put has come.
    fn put_received(&mut self, link: LinkId, op: u64, body: &[u8]) -> Result<()> {
        let (put, signal, data) = put_parts(body)?;
        if let Some(target) = self.put_target(link, op, put, signal, data.len()) {
            if !data.is_empty() {
                target.exposed.write(put.offset as usize, data)?;
            }
            self.put_over(link, target);
        }
        Ok(())
    }

    /// Where a long one goes.
    fn place_put(&mut self, link: LinkId, op: u64, prefix: &[u8], length: usize) -> Result<Place> {
        let (put, signal, _) = put_parts(prefix)?;
        let Some(target) = self.put_target(link, op, put, signal, length) else {
            return Ok(Place::Discard);
        };
        let address = target.exposed.address.wrapping_add(put.offset as usize);
        let work = Work::PutIn(target);
        let key = self.operations.insert(Some(link), true, work);
        Ok(self.lend(key, address))
    }

    /// Where the payload of a put goes; refuses it when it may not go there.
    fn put_target(
        &mut self,
        link: LinkId,
        op: u64,
        header: PutHeader,
        signal: Option<Signal>,
        length: usize,
    ) -> Option<PutIn> {
        let (slot, generation, offset) = (header.slot, header.generation, header.offset);
        let regions = &self.regions;
        let checked = match length {
            // It touches nothing.
            0 => regions.check_any(slot, generation, offset, 0, Access::WRITE),
            _ => regions.check(slot, generation, offset, length as u64, Access::WRITE),
        };
        let checked = checked.and_then(|exposed| {
            let raise = signal.map(|signal| self.find_counter(&signal));
            Ok(PutIn {
                exposed,
                ack: (header.last != 0).then_some(op),
                signal: raise.transpose()?.map(Box::new),
            })
        });
        self.granted(link, op, checked)
    }

    fn put_landed(&mut self, link: LinkId, key: OpKey) {
        if let Some(entry) = self.operations.remove(key)
            && let Work::PutIn(put) = self.operations.work_of(entry)
        {
            self.put_over(link, put);
        }
    }

    fn put_over(&mut self, link: LinkId, put: PutIn) {
        if let Some(op) = put.ack {
            if let Some(signal) = &put.signal {
                self.raise(signal);
            }
            self.control(link, control::DONE, op, &[]);
        }
        self.defer_drop(Work::PutIn(put));
    }

    /// The peer shows the key of a region: it is let at it directly.
    fn map_request(&mut self, link: LinkId, body: &[u8], generation: u64) -> Result<()> {
        let slot = body
            .first_chunk()
            .map(|slot| u32::from_le_bytes(*slot))
            .ok_or_else(|| violation("short message"))?;
        if let Some(peer) = at(&mut self.peers, link)
            && let (Some(one_copy), Some(to)) = (&mut peer.one_copy, &mut peer.link)
        {
            let pair = &one_copy.pair;
            let exposed = self
                .regions
                .let_at(slot, generation, || pair.let_at(slot, generation));
            if let Some(exposed) = exposed
                && let Some((segment, _)) = &exposed.segment
                && segment.is_mappable()
                && !one_copy.has(segment)
                // What may only be read cannot be written there.
                && segment.may_go(exposed.access)
            {
                give(one_copy, &mut **to, segment);
            }
        }
        Ok(())
    }
}

impl Movers {
    /// After a fragment: whether it was the last.
    fn after_fragment(&mut self, key: OpKey) {
        let entry = self.ctx.operations.get(key);
        // What has failed meanwhile stays so.
        let entry = entry.filter(|entry| entry.is_under_way());
        let complete = match entry.map(|entry| &*entry.work) {
            Some(Work::Recv(recv)) => {
                matches!(recv.stage, RecvStage::Landing { expected, got } if expected == got)
            }
            Some(Work::Get(get)) => get.got == get.buffer.len(),
            _ => false,
        };
        if complete {
            self.copied(key, Ok(()));
        }
    }

    fn fragment(&mut self, link: LinkId, key: OpKey, data: &[u8]) -> Result<()> {
        if let Some((buffer, got, whole)) = self.ctx.landing(link, key, data.len())? {
            buffer.land(*got, data, whole);
            *got += data.len();
            self.after_fragment(key);
        }
        Ok(())
    }

    /// The peer is done with an operation of this side. Bytes for this side are complete when they have come, whatever the peer says; its
    /// word ends an operation only where it was the one to move the last of them.
    fn done(&mut self, link: LinkId, key: OpKey) -> Result<()> {
        let Some(entry) = self.ctx.operations.named(link, key) else {
            return Ok(());
        };
        if entry.outcome.is_some() {
            if let Work::Put(put) = &mut *entry.work {
                // Locally complete already, and its future has not come for that yet.
                put.acknowledged = true;
                self.ctx.operations.note_over(key);
            }
            return Ok(());
        }
        if entry.deferred.is_some() || entry.ends_writing() {
            return Ok(());
        }
        let is_moved = entry.is_moved();
        let announced = entry.was_announced();
        match &mut *entry.work {
            Work::Recv(_) | Work::Get(_) => {
                if !self.ctx.is_moved_by_peer(link, key) {
                    return Err(violation("an end of what has not come"));
                }
                self.drop_transfers(key);
                self.copied(key, Ok(()));
            }
            Work::Send(send) => {
                if is_moved || matches!(send.stage, SendStage::Queued | SendStage::Streaming(_)) {
                    return Err(violation("an end of what was not sent"));
                }
                if announced {
                    self.ctx.announcement_over(link);
                }
                self.drop_transfers(key);
                self.copied(key, Ok(()));
            }
            Work::Put(_) => return self.put_done(link, key),
            Work::Atomic(atomic) if atomic.sent && !atomic.fetch => {
                self.finish(key, Ended::Done(Ok(())));
            }
            Work::Lent(_) => self.finish(key, Ended::Done(Ok(()))),
            _ => {}
        }
        Ok(())
    }

    /// The owner of the memory has all of a put, or a part of its blocks.
    fn put_done(&mut self, link: LinkId, key: OpKey) -> Result<()> {
        let Some(entry) = self.ctx.operations.get(key) else {
            return Ok(());
        };
        let (is_moved, copies) = (entry.is_moved(), entry.copies);
        let Work::Put(put) = &mut *entry.work else {
            return Ok(());
        };
        let (is_shared, is_sent) = (put.slot.is_some(), put.next == put.buffer.len());
        if is_moved || !is_shared && (copies > 0 || !put.announced && !is_sent) {
            return Err(violation("an end of what was not sent"));
        }
        if put.announced && put.layout.is_some() && !is_sent {
            entry.told = entry.told.max(plan::told(put.next));
            if self.ctx.announcement_answered(link, key) {
                // The next part of its list.
                self.submit(link, key);
            }
            return Ok(());
        }
        put.acknowledged = true;
        if put.signal_due {
            // It is over when its signal is sent.
        } else if is_shared && !put.announced {
            self.drop_transfers(key);
            self.copied(key, Ok(()));
        } else {
            self.ctx.announcement_answered(link, key);
            self.ctx.put_progress(key);
        }
        // A link may still hold its memory.
        self.ctx.operations.note_over(key);
        Ok(())
    }

    /// The far end moved the last chunk: nothing is left to claim here.
    fn drop_transfers(&mut self, key: OpKey) {
        if let Some(entry) = self.ctx.operations.get(key)
            && entry.copies > 0
        {
            entry.copies = 0;
            self.transfers.retain(|transfer| transfer.op != key);
        }
    }

    fn get_request(&mut self, link: LinkId, op: u64, request: GetRequest) {
        let (slot, generation) = (request.slot, request.generation);
        let (offset, length) = (request.offset, request.length);
        let regions = &self.ctx.regions;
        let found = regions.check_any(slot, generation, offset, length, Access::READ);
        let granted = found.and_then(|exposed| Ok((exposed, self.ctx.charge_request(link, 0)?)));
        let Some((exposed, charged)) = self.ctx.granted(link, op, granted) else {
            return;
        };
        let serve = Serve {
            charged,
            source: Source::Region(exposed),
            offset: offset as usize,
            length: length as usize,
            out: Outgoing { to: op, next: 0 },
            answer: None,
        };
        self.start_serve(link, serve, None, Priority::Normal);
    }

    fn join(&mut self, link: LinkId, op: u64, join: Join) {
        let access = if join.put == 1 {
            Access::WRITE
        } else {
            Access::READ
        };
        // A refusal needs no answer: the initiator finds the same by itself.
        let Ok(exposed) =
            self.ctx
                .regions
                .check(join.slot, join.generation, join.offset, join.length, access)
        else {
            return;
        };
        let Some(peer) = self.ctx.peer(link) else {
            return;
        };
        let direct = peer.one_copy.as_ref();
        let has_cma = direct.is_some_and(|one_copy| one_copy.cma.is_some());
        if !has_cma || join.length == 0 || peer.helped >= HELP {
            return;
        }
        peer.helped += 1;
        // The region's own bounds were checked.
        let local = exposed.address.wrapping_add(join.offset as usize);
        let length = join.length as usize;
        let key = self
            .ctx
            .operations
            .insert(Some(link), true, Work::Help { _exposed: exposed });
        self.start_transfer(Transfer {
            peer_op: Some(op),
            chunks: Some(join.chunks),
            ..Transfer::new(
                link,
                key,
                (local, length),
                Remote::Address(join.address),
                join.put == 1,
            )
        });
    }
}

impl Core {
    /// The way of a short message to a receive that is being polled. `false`: it goes another.
    #[inline(always)]
    fn eager_direct(&mut self, link: LinkId, tag: Tag, data: &[u8]) -> bool {
        let Some(direct) = &mut self.direct else {
            return false;
        };
        let Some(peer) = at(&mut self.movers.ctx.peers, link) else {
            return false;
        };
        let cost = eager_cost(data.len());
        if !self.posted.is_empty() || !direct.accepts(tag) || !peer.receive_window.admits(cost) {
            return false;
        }
        direct.fill(data, tag, peer.id);
        peer.receive_window.pass(cost);
        match peer.receive_window.due(&Terms::EAGER) {
            Due::Nothing => {}
            due => self.movers.ctx.give_eager(link, due),
        }
        true
    }

    /// An eager message, whole, in all other cases.
    fn eager_message(
        &mut self,
        link: LinkId,
        tag: Tag,
        data: &[u8],
        ack: Option<u64>,
    ) -> Result<()> {
        let cost = eager_cost(data.len());
        let Some(from) = self.movers.ctx.peer(link).map(|peer| peer.id) else {
            return Ok(());
        };
        self.movers.ctx.hold_window(link, data.len())?;
        if self.fill_receive((link, from), tag, data) {
            // It is in the buffer, and whoever waits for it is woken.
        } else if let Some(key) = self.match_posted(link, tag) {
            if self.movers.ctx.waits_on_device(key) {
                // Its share of the window is returned when an engine has copied it.
                let data = Buffer::from(copied(data));
                if let Some(op) = ack {
                    self.movers.ctx.control(link, control::DONE, op, &[]);
                }
                self.movers
                    .store_message(key, (link, from, tag), data, cost);
                return Ok(());
            }
            self.eager_claimed(key, (link, from), tag, data);
        } else if let Some(direct) = &mut self.direct
            && direct.accepts(tag)
        {
            direct.fill(data, tag, from);
        } else {
            let message = Unexpected::new(link, from, tag, whole(data, ack, cost));
            self.keep_unexpected(message)?;
            self.movers.ctx.kept(link);
            return Ok(());
        }
        if let Some(op) = ack {
            self.movers.ctx.control(link, control::DONE, op, &[]);
        }
        self.movers.ctx.consumed(link, cost);
        Ok(())
    }

    fn eager_claimed(
        &mut self,
        key: OpKey,
        (link, from): (LinkId, EndpointId),
        tag: Tag,
        data: &[u8],
    ) {
        let order = self.unexpected.arrival();
        let Some(entry) = self.movers.ctx.operations.get(key) else {
            return;
        };
        // It ends here, and need not be found among those of the connection.
        entry.link = Some(link);
        match &mut *entry.work {
            Work::Claim(post) => {
                *post = None;
                // Consumed and acknowledged by the caller: a claim is a match.
                let message = Unexpected::new(link, from, tag, whole(data, None, 0));
                self.finish(key, Ended::Claimed(Box::new((order, message))));
            }
            Work::Recv(recv) => {
                recv.order = order;
                let mut buffer = std::mem::take(&mut recv.buffer);
                let filled = fill(&mut buffer, data, from);
                let result = filled.map(|length| Arrival { length, tag, from });
                self.movers.ctx.received(key, buffer, result);
            }
            _ => {}
        }
    }

    /// An announced message: matched, or kept.
    fn announced(&mut self, link: LinkId, tag: Tag, rts: Announcement) -> Result<()> {
        let Some(peer) = self.movers.ctx.peer(link) else {
            return Ok(());
        };
        if !peer.matches_announced() {
            // It went out before the peer read that this side is done; the sender ends it.
            return Ok(());
        }
        let from = peer.id;
        self.movers.ctx.hold_announcement(link)?;
        if !rts.is_lent {
            self.movers.ctx.lacked(link, rts.length);
        }
        let op = rts.op;
        let message = Unexpected::new(link, from, tag, Body::Announced(rts));
        if let Some(key) = self.match_posted(link, tag) {
            let order = self.unexpected.arrival();
            self.movers.hand_over(key, order, message);
            return Ok(());
        }
        if let Some(direct) = &mut self.direct
            && direct.accepts(tag)
        {
            let buffer = direct.take_buffer();
            let order = self.unexpected.arrival();
            let key = self.enter_direct(buffer, link, order);
            self.movers.hand_over(key, order, message);
            return Ok(());
        }
        if self.unexpected.named(Name::Announced(link, op)).is_some() {
            return Err(violation("announced twice"));
        }
        self.keep_unexpected(message)
    }

    /// A message that could have come unasked, and was left in its sender's memory: as one that is announced, but that what finds no receive is
    /// [taken in](Core::take_in_lent) after a while.
    fn lent(&mut self, link: LinkId, tag: Tag, mut rts: Announcement) -> Result<()> {
        let length = rts.length as usize;
        let is_long = rts.length > Terms::EAGER.size || eager_need(length) > Terms::EAGER.size;
        if is_long || rts.segment != 0 {
            return Err(violation("a message that is never lent"));
        }
        self.movers.ctx.hold_window(link, length)?;
        rts.is_lent = true;
        self.announced(link, tag, rts)?;
        self.movers.ctx.kept(link);
        Ok(())
    }

    /// The receive that is being polled goes into the table.
    fn enter_direct(&mut self, buffer: BufferMut, link: LinkId, order: Order) -> OpKey {
        let key = self.movers.ctx.enter_receive(buffer, Some(link), order);
        if let Some(direct) = &mut self.direct {
            direct.entered(key);
        }
        key
    }

    fn cancel_announced(&mut self, link: LinkId, op: u64) {
        let taken = self.take_named(Name::Announced(link, op));
        // One that was matched ends by itself.
        if let Some(taken) = &taken {
            self.movers.ctx.drop_announcement(link);
            if let Body::Announced(rts) = &taken.message.body {
                self.movers.ctx.lent_over(link, rts);
            }
        }
        let found = taken.is_some();
        if found || self.am_cancel(link, op) {
            self.movers.ctx.control(link, control::CANCELED, op, &[]);
        }
    }
}

fn whole(data: &[u8], ack: Option<u64>, cost: u64) -> Body {
    if data.len() <= 48 && cost > 0 {
        let mut bytes = [0; 48];
        bytes[..data.len()].copy_from_slice(data);
        Body::Inline {
            length: data.len() as u8,
            bytes,
            ack,
        }
    } else {
        Body::Whole {
            data: Buffer::from(copied(data)),
            ack,
            credit: cost as u32,
        }
    }
}

impl Sink for Core {
    #[inline]
    fn message(&mut self, from: LinkId, id: u8, header: u64, body: &[u8]) -> Result<()> {
        if body.len() > AT_ONCE {
            self.movers.ctx.end_arriving(from, body.len());
        }
        let taken = self.take_in(from, id, header, body, None);
        self.act();
        taken
    }

    #[inline]
    fn message_in_place(
        &mut self,
        from: LinkId,
        id: u8,
        header: u64,
        body: &[u8],
        hold: &Arc<Hold>,
    ) -> Result<()> {
        let taken = self.take_in(from, id, header, body, Some(hold));
        self.act();
        taken
    }

    fn place(
        &mut self,
        from: LinkId,
        id: u8,
        header: u64,
        prefix: &[u8],
        length: usize,
    ) -> Result<Place> {
        let mut place = self.place_payload(from, id, header, prefix, length);
        // What answers a request of this side is its own affair.
        let is_unasked = !matches!(id, control::FRAGMENT | control::LAYOUT_DATA);
        if is_unasked && length > AT_ONCE && matches!(place, Ok(Place::Whole)) {
            let charged = self.movers.ctx.begin_arriving(from, prefix.len() + length);
            place = charged.map(|()| Place::Whole);
        }
        if !matches!(place, Ok(Place::Whole)) {
            // The others follow as messages.
            self.movers.ctx.received.add(prefix.len() + length);
        }
        self.act();
        place.map_err(|error| self.movers.ctx.broken(from, error))
    }

    fn placed(&mut self, from: LinkId, token: u64) {
        let key = OpKey(token);
        self.movers.ctx.source_free(from, key);
        match self.movers.ctx.operations.work(key) {
            Some(Work::PutIn(_)) => self.movers.ctx.put_landed(from, key),
            Some(Work::StreamIn(_)) => self.stream_landed(key),
            Some(Work::AmLanding { .. }) => self.am_landed(from, key),
            Some(Work::Recv(recv)) if matches!(recv.stage, RecvStage::Copying) => {
                if recv.buffer.is_on_device() {
                    return self.movers.eager_landed(from, key);
                }
                let cost = recv.arrival.map_or(0, |arrival| eager_cost(arrival.length));
                self.movers.copied(key, Ok(()));
                self.movers.ctx.consumed(from, cost);
            }
            Some(_) => self.movers.after_fragment(key),
            None => {}
        }
        self.act();
    }

    fn sent(&mut self, from: LinkId, token: u64) {
        let key = OpKey(token);
        if !self.movers.piece_over(from, key, Ok(())) {
            self.movers.ctx.source_free(from, key);
        }
        self.act();
    }

    fn refused(&mut self, from: LinkId, token: u64, error: Error) {
        let key = OpKey(token);
        let work = self.movers.ctx.operations.work(key);
        if matches!(work, Some(Work::Atomic(_))) {
            self.movers.ctx.atomic_refused(key, error);
        } else if !self.movers.piece_over(from, key, Err(error)) {
            self.movers.ctx.source_free(from, key);
        }
        self.act();
    }

    fn fetched(&mut self, from: LinkId, token: u64, data: &[u8]) {
        self.movers.brought(from, OpKey(token), data);
        self.act();
    }

    fn writable(&mut self, from: LinkId) {
        self.movers.ctx.writable.push(from);
    }

    fn failed(&mut self, from: LinkId, error: Error) {
        self.movers.ctx.failures.push((from, error));
    }

    fn shared(&mut self, from: LinkId, segment: u64, fd: OwnedFd, length: u64) {
        let mapped = match length > OneCopy::MAX_MAPPED_BYTES as u64 {
            true => Mapping::check(fd.as_fd(), length as usize).map(|()| None),
            false => Mapping::of_lent(fd.as_fd(), length as usize).map(Some),
        };
        match mapped {
            Ok(Some(mapping)) => self.movers.ctx.map_segment(from, segment, mapping),
            Ok(None) => {
                trace::slower!("a segment of a peer is too long", target: "wharf::memory", length, remedy = "allocate in pieces of up to 256 GiB", "a peer's memory segment is too long to be mapped; its memory is reached the slow way");
            }
            // It is no segment of ours: no honest peer sends it.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                fd_passing::close_elsewhere(vec![fd]);
                let text = "the peer shares what is no memory to share";
                let error = Error::new(ErrorKind::Protocol, text).with_source(error);
                self.movers.ctx.failures.push((from, error));
            }
            Err(error) => {
                let remedy =
                    "raise what limits this process's mappings (vm.max_map_count, ulimit -v)";
                trace::slower!(format!("a segment of a peer: {error}"), target: "wharf::memory", %error, remedy, "a peer's memory segment cannot be mapped; its memory is reached the slow way")
            }
        }
    }
}

impl Ctx {
    /// The peer broke the protocol; the interface closes the link, the worker the connection.
    #[cold]
    pub(super) fn broken(&mut self, link: LinkId, error: Error) -> Error {
        self.failures.push((link, error.clone()));
        error
    }

    /// Whether an eager message of this length is more than the peer may send now.
    fn exceeds_window(&mut self, link: LinkId, length: usize) -> bool {
        self.peer(link)
            .is_some_and(|peer| !peer.receive_window.admits(eager_cost(length)))
    }

    /// Lends memory of an operation to the interface, until `placed`.
    pub(crate) fn lend(&mut self, key: OpKey, address: *mut u8) -> Place {
        match self.operations.get(key) {
            Some(entry) => {
                entry.in_flight += 1;
                Place::Memory {
                    address,
                    token: key.0,
                }
            }
            None => Place::Discard,
        }
    }

    /// A peer has sent more than it may, and that was taken before it was known.
    #[cold]
    pub(super) fn exceeded(&mut self, link: LinkId) {
        self.broken(link, violation("the peer exceeded the eager window"));
    }

    /// Counts an eager tagged message against the peer's window.
    pub(super) fn hold_window(&mut self, link: LinkId, length: usize) -> Result<()> {
        if let Some(peer) = self.peer(link)
            && !peer.receive_window.hold(eager_cost(length))
        {
            return Err(violation("the peer exceeded the eager window"));
        }
        Ok(())
    }
}

impl Movers {
    /// An eager message for device memory is here.
    fn eager_landed(&mut self, link: LinkId, key: OpKey) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let (Work::Recv(recv), Some(staged)) = (&*entry.work, &mut entry.staged) else {
            return;
        };
        let Some(arrival) = recv.arrival else { return };
        let data = std::mem::take(&mut staged.landing);
        let cost = eager_cost(data.len());
        self.store_message(key, (link, arrival.from, arrival.tag), data.into(), cost);
    }
}

impl Core {
    #[inline(always)]
    fn take_in(
        &mut self,
        from: LinkId,
        id: u8,
        header: u64,
        body: &[u8],
        hold: Option<&Arc<Hold>>,
    ) -> Result<()> {
        self.movers.ctx.received.add(body.len());
        let done = match id {
            control::TAG_EAGER if self.eager_direct(from, Tag(header), body) => return Ok(()),
            control::AM_EAGER if self.am_direct(from, header, body, hold) => return Ok(()),
            control::AM_EAGER => self.am_eager(from, header, body, hold),
            _ => self.dispatch(from, id, header, body),
        };
        done.map_err(|error| self.movers.ctx.broken(from, error))
    }

    fn dispatch(&mut self, from: LinkId, id: u8, header: u64, body: &[u8]) -> Result<()> {
        let (movers, key) = (&mut self.movers, OpKey(header));
        match id {
            control::TAG_EAGER => self.eager_message(from, Tag(header), body, None)?,
            control::TAG_EAGER_SYNC => {
                let op = Some(word(body)?);
                self.eager_message(from, Tag(header), &body[8..], op)?;
            }
            control::TAG_RTS => self.announced(from, Tag(header), Announcement::decode(body)?.0)?,
            control::TAG_LENT => {
                self.lent(from, Tag(header), Announcement::decode(body)?.0)?;
            }
            control::TAG_RTR => movers.ready_to_receive(from, key, Rtr::decode(body)?)?,
            control::FRAGMENT => movers.fragment(from, key, body)?,
            control::DONE => movers.done(from, key)?,
            control::NACK => movers.ctx.nack(from, key, control::error_of(body)),
            control::CANCEL => self.cancel_announced(from, header),
            control::CANCELED => {
                let canceled = Error::new(ErrorKind::Canceled, "cancelled")
                    .during(movers.ctx.operation_of_send(key));
                movers.ctx.nack(from, key, canceled);
            }
            control::PUT => movers.ctx.put_received(from, header, body)?,
            control::GET => movers.get_request(from, header, GetRequest::decode(body)?),
            control::JOIN => movers.join(from, header, Join::decode(body)?),
            control::MAP => movers.ctx.map_request(from, body, header)?,
            control::CREDIT => {
                if let Some(peer) = movers.ctx.peer(from) {
                    peer.send_window.returned(header, Terms::EAGER.size);
                }
            }
            control::CLOSE => {
                movers.ctx.close_received(from, header, body)?;
                self.close_writes(from);
                self.see_off(from);
            }
            control::STREAM_OPEN..=control::STREAM_ACCEPTED | control::STREAM_TAKEN => {
                self.stream_message(from, id, header, body)?;
            }
            control::AM_RTS => self.am_announced(from, header, body)?,
            control::AM_CREDIT => movers.ctx.am_credit(from, header, word(body)?),
            control::AM_REFUSED => movers.ctx.am_refused(from, header, word(body)?),
            control::ATOMIC => {
                movers
                    .ctx
                    .atomic_request(from, header, &control::Atomic::decode(body)?)?
            }
            control::FETCHED => movers.ctx.word_fetched(from, key, body)?,
            control::SIGNAL => movers.ctx.signalled(from, &Signal::decode(body)?),
            control::SETTLE => movers.ctx.settle(from, header),
            control::ASK_KEYS => movers.keys_asked(from, key, body)?,
            control::KEYS => movers.keys_here(from, key, body)?,
            control::WRITE => movers.ctx.write_asked(from, key, body)?,
            control::MOVED => movers.ctx.told_moved(from, key, body)?,
            control::PULL => movers.pulled(from, key, body)?,
            control::PUT_RTS => movers.put_announced(from, header, body)?,
            control::ROUTE => movers.route_asked(from, key, body)?,
            control::ROUTED => movers.routed(from, key, body)?,
            control::PUT_LAYOUT => movers.ctx.put_layout(from, header, body)?,
            control::GET_LAYOUT => movers.get_layout(from, header, body)?,
            control::LAYOUT_DATA => movers.layout_data(from, key, body)?,
            control::LAYOUT_RTS => movers.layout_announced(from, header, body)?,
            _ => return Err(violation("unknown message")),
        }
        Ok(())
    }

    fn place_payload(
        &mut self,
        from: LinkId,
        id: u8,
        header: u64,
        prefix: &[u8],
        length: usize,
    ) -> Result<Place> {
        let (ctx, key) = (&mut self.movers.ctx, OpKey(header));
        match id {
            control::FRAGMENT => ctx.place_fragment(from, key, length),
            control::PUT => ctx.place_put(from, header, prefix, length),
            control::STREAM_DATA => self.place_stream(from, header, prefix, length),
            control::AM_EAGER => self.am_place(from, header, prefix, length),
            control::LAYOUT_DATA if prefix.len() + length > LONGEST => Err(too_long()),
            control::LAYOUT_DATA => ctx.place_layout_data(from, key, prefix, length),
            control::TAG_EAGER if !prefix.is_empty() => {
                Err(violation("a message with something before it"))
            }
            // Before it is buffered, or any receive is taken for it.
            control::TAG_EAGER | control::TAG_EAGER_SYNC if ctx.exceeds_window(from, length) => {
                Err(violation("the peer exceeded the eager window"))
            }
            control::TAG_EAGER_SYNC => Ok(Place::Whole),
            control::TAG_EAGER => self.place_eager(from, Tag(header), length),
            // What says something, and brings little.
            _ if prefix.len() + length > WORDS => Err(too_long()),
            _ => Ok(Place::Whole),
        }
    }

    /// An eager message goes straight into the buffer of a receive that waits, if it has the room; one that is too short takes the message whole and
    /// says so.
    fn place_eager(&mut self, from: LinkId, tag: Tag, length: usize) -> Result<Place> {
        if self.posted.is_empty()
            && let Some(direct) = &mut self.direct
            && direct.accepts(tag)
            && direct.room() >= length
        {
            let buffer = direct.take_buffer();
            let order = self.unexpected.arrival();
            let key = self.enter_direct(buffer, from, order);
            return self.place_receive(from, key, tag, length);
        }
        if self.next_is_list(tag) {
            // It takes a message that is here piece by piece; a place in one run would be a copy of all of it.
            return Ok(Place::Whole);
        }
        match self.match_posted(from, tag) {
            Some(key) => self.place_posted(from, key, tag, length),
            None => Ok(Place::Whole),
        }
    }

    /// Whether the receive that takes the next message of this tag is into a list.
    fn next_is_list(&mut self, tag: Tag) -> bool {
        let next = self.posted.first_match(tag);
        match next.and_then(|id| self.posted.get(id)) {
            Some(Posted::Receive(receive)) => receive.buffer.is_list(),
            Some(Posted::Claim(key)) => {
                let work = self.movers.ctx.operations.work(*key);
                matches!(work, Some(Work::Recv(recv)) if recv.buffer.is_list())
            }
            None => false,
        }
    }

    /// An eager message meets a posted receive or claim before its payload is here.
    fn place_posted(&mut self, link: LinkId, key: OpKey, tag: Tag, length: usize) -> Result<Place> {
        let Some(entry) = self.movers.ctx.operations.get(key) else {
            return Ok(Place::Discard);
        };
        match &mut *entry.work {
            Work::Recv(recv) if recv.buffer.len() >= length => {
                self.place_receive(link, key, tag, length)
            }
            Work::Claim(_) => {
                *entry.work = Work::Recv(Recv {
                    claims: true,
                    ..Recv::new(vec![0; length].into(), self.unexpected.arrival())
                });
                self.place_receive(link, key, tag, length)
            }
            Work::Recv(recv) => {
                let room = recv.buffer.len();
                recv.stage = RecvStage::Done;
                self.fail_operation(key, truncated(length as u64, room));
                self.movers.ctx.hold_window(link, length)?;
                self.movers.ctx.consumed(link, eager_cost(length));
                Ok(Place::Discard)
            }
            _ => Ok(Place::Whole),
        }
    }

    /// An eager message goes straight into the buffer of a receive.
    fn place_receive(
        &mut self,
        link: LinkId,
        key: OpKey,
        tag: Tag,
        length: usize,
    ) -> Result<Place> {
        self.movers.ctx.hold_window(link, length)?;
        let order = self.unexpected.arrival();
        let Some(from) = self.movers.ctx.peer(link).map(|peer| peer.id) else {
            return Ok(Place::Discard);
        };
        let Some(entry) = self.movers.ctx.operations.attach(key, link) else {
            return Ok(Place::Discard);
        };
        let Work::Recv(recv) = &mut *entry.work else {
            return Ok(Place::Discard);
        };
        recv.buffer.takes_from(from)?;
        recv.order = order;
        recv.stage = RecvStage::Copying;
        recv.arrival = Some(Arrival { length, tag, from });
        if recv.buffer.is_on_device() {
            // Into memory of its own first.
            let staged = entry.staged.get_or_insert_default();
            staged.landing = vec![0; length];
            let address = staged.landing.as_mut_ptr();
            return Ok(self.movers.ctx.lend(key, address));
        }
        let address = recv.buffer.address();
        Ok(self.movers.ctx.lend(key, address))
    }
}
