//! What network devices do with memory at either end.
//!
//! # Safety
//! Local memory is owned by an entry of the table of operations, which stays while `in_flight` counts a piece of it (a short one is copied); the link is dropped before the
//! entries are touched (`Core::fail`). Memory that a peer writes is given back only when its registration has ended, or with the link.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::{
    config::RendezvousScheme,
    error::{Error, ErrorKind, Result},
    protocol::control::{self, Announcement, Rtr},
    trace,
    transport::{
        self, DeviceRegistrar, LocalKeys, LocalRange, Registering, RemoteRange, SendError, Zcopy,
    },
    types::{Access, DeviceKey, LinkId, OpKey},
    util::copy::{copy, copy_slice},
    worker::{
        ctx::Ctx,
        movers::{Errand, Movers, Told},
        one_sided::{
            CLEARED, IN_FLIGHT, Memory, Moves, Offer, OneSided, offered, takes, told, word,
        },
        operations::{Ask, Ended, Entry, Outgoing, RecvStage, SendStage, Work},
        peer::at,
        rma::Target,
        step::Step,
        violation::violation,
    },
};

/// A put or get, all of it, through the link's memory.
#[inline]
fn post_short(
    ways: &mut dyn transport::OneSided,
    pull: bool,
    data: &[u8],
    remote: RemoteRange<'_>,
    key: OpKey,
) -> Result<Zcopy, SendError> {
    match pull {
        true => {
            ways.get_short(data.len(), remote, key.0)?;
            Ok(Zcopy::Pending)
        }
        false => ways.put_short(data, remote, key.0),
    }
}

impl Moves {
    /// All of it through the link's memory.
    fn post_short(
        &mut self,
        ways: &mut dyn transport::OneSided,
        key: OpKey,
    ) -> Result<(), SendError> {
        let remote = RemoteRange {
            address: self.address,
            keys: &self.keys,
        };
        // SAFETY: `local` is owned by the entry, and the call only reads it.
        let data = unsafe { std::slice::from_raw_parts(self.local, self.length) };
        let sent = post_short(ways, self.pull, data, remote, key)?;
        self.short = true;
        self.next = self.length;
        self.pending = u32::from(sent == Zcopy::Pending);
        Ok(())
    }

    /// Hands the piece up to `end` to the link.
    fn post(
        &self,
        ways: &mut dyn transport::OneSided,
        keys: &[DeviceKey],
        end: usize,
        key: OpKey,
    ) -> Result<Zcopy, SendError> {
        let local = LocalRange {
            address: self.of.range.start().wrapping_add(self.next as u64),
            length: end - self.next,
            keys,
        };
        let remote = RemoteRange {
            address: self.address.wrapping_add(self.next as u64),
            keys: &self.keys,
        };
        match self.pull {
            // SAFETY: the memory is owned by the entry, which stays while `in_flight` counts this, and so are the keys.
            true => unsafe { ways.get(local, remote, key.0) },
            // SAFETY: as above.
            false => unsafe { ways.put(local, remote, key.0) },
        }
    }

    /// Finds keys of the devices that are best for it. `Some`: they are to be made.
    fn find_keys(&mut self, ways: &dyn transport::OneSided) -> Option<Registering<LocalKeys>> {
        let (access, memory) = (self.access(), ways.memory());
        let devices = memory.nearest(self.of.memory_type, ways.devices_to(&self.keys));
        if let Some(keys) = memory.find(&self.of, access, &devices) {
            self.memory = Memory::Ready(keys);
            return None;
        }
        self.memory = Memory::Waiting;
        Some(memory.register(self.of, access, &devices))
    }

    /// Reads the last byte that was put, by the next of the peer's devices that have written. `false`: all have, or one is out of reach.
    fn read_back(
        &mut self,
        ways: &mut dyn transport::OneSided,
        key: OpKey,
    ) -> Result<bool, SendError> {
        let Some(last) = self.unread.last().copied() else {
            return Ok(false);
        };
        let remote = RemoteRange {
            address: self.address.wrapping_add(self.length as u64 - 1),
            keys: &[last],
        };
        if !ways.reaches(remote.keys) {
            let text = "the rail that has written is gone before it could read back";
            self.failed = Some(Error::new(ErrorKind::ConnectionReset, text));
            return Ok(false);
        }
        ways.get_short(1, remote, key.0)?;
        self.unread.pop();
        self.pending = 1;
        Ok(true)
    }
}

impl Ctx {
    /// Whether there is a rail to memory with these keys.
    fn reaches(&mut self, link: LinkId, keys: &[DeviceKey]) -> bool {
        let peer = at(&mut self.peers, link);
        let link = peer.and_then(|peer| peer.link.as_mut());
        link.and_then(|link| link.one_sided())
            .is_some_and(|ways| ways.reaches(keys))
    }

    /// Has network devices put or get, if they can: the operation, in the table, is begun.
    pub(in crate::worker) fn rma_by_devices(
        &mut self,
        link_id: LinkId,
        key: OpKey,
        target: &Target,
        route: Option<&Arc<[DeviceKey]>>,
    ) -> bool {
        let (Some(route), Some(peer), Some(entry)) = (
            route,
            at(&mut self.peers, link_id),
            self.operations.get(key),
        ) else {
            return false;
        };
        let (pull, data) = match &*entry.work {
            Work::Put(put) => (false, put.buffer.as_slice()),
            Work::Get(get) => (true, get.buffer.as_slice()),
            _ => return false,
        };
        let (length, short) = match data {
            Some(data) => (data.len(), Some(data)),
            None => (1, None),
        };
        let ways = peer.link.as_mut().and_then(|link| link.one_sided());
        let Some(ways) = ways.filter(|ways| length > 0 && ways.reaches(route)) else {
            return false;
        };
        let read_back = target.read_back && !pull;
        let address = target.address.wrapping_add(target.offset);
        // Nothing waits that it would overtake.
        if let Some(data) = short
            && !read_back
            && peer.queue.is_empty()
            && length <= ways.attributes().max_short
        {
            let remote = RemoteRange {
                address,
                keys: route,
            };
            match post_short(ways, pull, data, remote, key) {
                Ok(sent) => {
                    self.short_posted(key, length, target.on_device, sent);
                    return true;
                }
                Err(SendError::Full) => {}
                Err(SendError::Failed(error)) => {
                    self.failures.push((link_id, error));
                    return true;
                }
            }
        }
        let (local, of) = match &mut *entry.work {
            Work::Put(put) => (put.buffer.address().cast_mut(), put.buffer.local_memory()),
            Work::Get(get) => {
                let length = get.buffer.len();
                (get.buffer.address(), get.buffer.local_memory(length))
            }
            _ => return false,
        };
        let Some(of) = of.filter(|of| !of.range.is_empty()) else {
            return false;
        };
        if of.is_on_device() && takes(ways, &of).is_err() {
            return false;
        }
        let mut moves = Moves::new(pull, (local, of), address, Arc::clone(route), None);
        moves.target = Some(*target);
        if read_back {
            let written = route.iter().filter(|key| ways.reaches(&[**key]));
            moves.unread = written.copied().collect();
        }
        self.begin_moves(link_id, key, moves);
        true
    }

    /// A short put or get was handed to the link, of which its entry alone knows.
    #[inline]
    fn short_posted(&mut self, key: OpKey, length: usize, to_device: bool, sent: Zcopy) {
        self.counts.one_sided.add(length);
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        entry.is_short = sent == Zcopy::Pending;
        entry.to_device = to_device;
        if let Work::Put(put) = &mut *entry.work {
            put.next = length;
            if sent == Zcopy::Done {
                self.put_visible(key);
            } else if put.local && put.signal.is_none() {
                // It is complete on this side.
                self.put_progress(key);
            }
        }
    }

    /// A short put or get has ended; a get has failed.
    fn short_over(&mut self, link: LinkId, key: OpKey, result: Result<()>) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        entry.is_short = false;
        let Err(error) = result else {
            return self.put_visible(key);
        };
        match (&*entry.work, &entry.outcome) {
            // One that is over on this side alone goes on.
            (_, None) | (Work::Put(_), Some(Ended::Done(Ok(())))) => {}
            // A word of the peer has ended it otherwise.
            _ => return,
        }
        let length = match &*entry.work {
            Work::Put(put) => put.buffer.len(),
            Work::Get(get) => get.buffer.len(),
            _ => return,
        };
        if leaves_it_to_messages(&error, &entry.work)
            && at(&mut self.peers, link).is_some_and(|peer| peer.link.is_some())
        {
            return self.by_messages(link, key, None, length);
        }
        self.fail_operation(key, error);
    }

    fn begin_moves(&mut self, link: LinkId, key: OpKey, moves: Moves) {
        if let Some(entry) = self.operations.get(key) {
            entry.one_sided = Some(Box::new(OneSided::Moves(moves)));
            self.submit(link, key);
        }
    }

    /// A short get has its bytes.
    #[inline]
    fn short_brought(&mut self, link: LinkId, key: OpKey, data: &[u8]) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        // A word of the peer may have ended it.
        let (Work::Get(get), None) = (&mut *entry.work, &entry.outcome) else {
            return;
        };
        if let Some(ended) = entry.deferred.take() {
            entry.is_short = false;
            return self.finish(key, ended);
        }
        let room = get.buffer.as_mut_slice();
        let Some(room) = room.filter(|room| room.len() == data.len()) else {
            let error = violation("a get brought another number of bytes");
            return self.short_over(link, key, Err(error));
        };
        copy_slice(data, room);
        entry.is_short = false;
        self.finish(key, Ended::Done(Ok(())));
    }

    /// Why a transfer has failed of which some is still under way: with the link that has ended.
    pub(in crate::worker) fn moves_failed(&mut self, key: OpKey) -> Option<Error> {
        let entry = self.operations.get(key)?;
        let Some(OneSided::Moves(moves)) = entry.one_sided.as_deref_mut() else {
            return None;
        };
        let error = moves.failed.take()?;
        if leaves_it_to_messages(&error, &entry.work) || entry.deferred.is_some() {
            return None;
        }
        entry.in_flight = 0;
        entry.one_sided = None;
        Some(error)
    }

    /// A transfer from or to the host's memory here, of which nothing is under way, goes in messages. `op` is the peer's operation of an announced message.
    fn by_messages(&mut self, link: LinkId, key: OpKey, op: Option<u64>, length: usize) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        entry.one_sided = None;
        match (&mut *entry.work, op) {
            (Work::Recv(recv), Some(op)) => {
                recv.stage = RecvStage::Landing {
                    expected: length,
                    got: 0,
                };
                self.ask_for_fragments(link, key, op);
            }
            (Work::Send(send), Some(to)) => {
                send.stage = SendStage::Streaming(Outgoing { to, next: 0 });
                self.submit(link, key);
            }
            (Work::Put(put), _) => {
                put.next = 0;
                // It may have been complete on this side, and is to be sent now.
                entry.outcome = None;
                self.submit(link, key);
            }
            (Work::Get(_), _) => self.submit(link, key),
            _ => {}
        }
    }

    /// A receive takes the peer's message in fragments.
    pub(super) fn ask_for_fragments(&mut self, link: LinkId, key: OpKey, op: u64) {
        let rtr = Rtr::fragments(key.0);
        self.control(link, control::TAG_RTR, op, &rtr.encode());
    }

    /// What is left to do until memory here that was written is seen by whose it is.
    fn settling(&mut self, link: LinkId, moves: &Moves) -> Option<Registering<()>> {
        let Memory::Ready(keys) = &moves.memory else {
            return None;
        };
        if !moves.pull || moves.settled {
            return None;
        }
        let peer = at(&mut self.peers, link)?;
        let ways = peer.link.as_mut()?.one_sided()?;
        ways.memory().settle(keys, moves.of.range)
    }

    fn one_sided_of(&mut self, link: LinkId, key: OpKey) -> Option<&mut OneSided> {
        let entry = self.operations.get(key)?;
        match entry.link == Some(link) && entry.outcome.is_none() {
            true => entry.one_sided.as_deref_mut(),
            false => None,
        }
    }

    /// Sends keys that were asked for, once they are there.
    fn answer_keys(&mut self, link: LinkId, key: OpKey) {
        let Some(OneSided::Offers(offer)) = self.one_sided_of(link, key) else {
            return;
        };
        let Some(to) = offer.asked else { return };
        if let Some(keys) = &offer.keys {
            offer.asked = None;
            let (body, length) = control::with_keys(&[], keys.remote());
            self.control(link, control::KEYS, to, &body[..length]);
        } else if !offer.waiting {
            // There are none: it asks for the bytes otherwise.
            offer.asked = None;
            self.control(link, control::KEYS, to, &[]);
        }
    }

    /// The receiver of an announced message asks for it to be written.
    pub(in crate::worker) fn write_asked(
        &mut self,
        link: LinkId,
        key: OpKey,
        body: &[u8],
    ) -> Result<()> {
        let (to, rest) = (word(body)?, body.get(8..).unwrap_or(&[]));
        let address = word(rest)?;
        let keys = control::keys(rest.get(8..).unwrap_or(&[]))?;
        let Some(entry) = self.operations.waiting(link, key) else {
            return Ok(());
        };
        let Work::Send(send) = &*entry.work else {
            return Err(violation("a write of what is no send"));
        };
        if !matches!(send.stage, SendStage::Announced)
            || !matches!(entry.one_sided.as_deref(), Some(OneSided::Offers(_)))
        {
            return Err(violation("a write of what is not announced"));
        }
        if entry.was_announced() {
            self.announcement_over(link);
        }
        let Some(entry) = self.operations.get(key) else {
            return Ok(());
        };
        let offered = entry.one_sided.take().map(|one_sided| *one_sided);
        let Work::Send(send) = &*entry.work else {
            return Ok(());
        };
        let (Some(OneSided::Offers(offer)), Some(of)) = (offered, send.buffer.local_memory())
        else {
            return Ok(());
        };
        let local = (send.buffer.address().cast_mut(), of);
        let mut moves = Moves::new(false, local, address, keys.into(), Some(to));
        if let Some(keys) = offer.keys {
            moves.memory = Memory::Ready(keys);
        } else if offer.waiting {
            moves.memory = Memory::Waiting;
        }
        self.begin_moves(link, key, moves);
        Ok(())
    }

    /// Clears the next bytes of such a receive, from `next` on; how many: none at its end. `None`: it has ended.
    pub(in crate::worker) fn clear_written(
        &mut self,
        link: LinkId,
        key: OpKey,
        next: usize,
    ) -> Option<usize> {
        if !matches!(
            self.one_sided_of(link, key),
            Some(OneSided::Written { keys: None, .. })
        ) {
            return None;
        }
        let Work::Recv(recv) = self.operations.work(key)? else {
            return None;
        };
        let length = recv.arrival?.length;
        let part = recv
            .buffer
            .as_mut_slice()?
            .get_mut(next..length.min(next + CLEARED))?;
        part.fill(0);
        Some(part.len())
    }

    /// The worker goes, and nobody will wait: when this returns no peer writes memory of its operations. Blocks.
    pub(crate) fn end_writers(&mut self) {
        for (_, entry) in self.operations.iter() {
            if let Some(
                OneSided::Written {
                    memory,
                    keys: Some(keys),
                    ..
                }
                | OneSided::Closing { memory, keys },
            ) = entry.one_sided.as_deref()
            {
                memory.end_writing_now(keys);
            }
        }
    }
}

impl Movers {
    /// The keys that a receive asked for; none where there are none.
    pub(in crate::worker) fn keys_here(
        &mut self,
        link: LinkId,
        key: OpKey,
        body: &[u8],
    ) -> Result<()> {
        let keys = control::keys(body)?;
        let Some(OneSided::Asks { op, address }) = self.ctx.one_sided_of(link, key) else {
            return Ok(());
        };
        let (op, address) = (*op, *address);
        let reaches = self.ctx.reaches(link, &keys);
        let Some(entry) = self.ctx.operations.get(key) else {
            return Ok(());
        };
        let Work::Recv(recv) = &mut *entry.work else {
            return Ok(());
        };
        let length = recv.arrival.map_or(0, |arrival| arrival.length);
        let (local, of) = (recv.buffer.address(), recv.buffer.local_memory(length));
        match of.filter(|_| reaches) {
            Some(of) => {
                let moves = Moves::new(true, (local, of), address, keys.into(), Some(op));
                self.ctx.begin_moves(link, key, moves);
            }
            None => self.by_messages(link, key, (Some(op), None), length),
        }
        Ok(())
    }

    /// A transfer of which nothing is under way goes otherwise. `op` is the peer's operation of an announced message; a put or get has its target.
    fn by_messages(
        &mut self,
        link: LinkId,
        key: OpKey,
        (op, target): (Option<u64>, Option<Target>),
        length: usize,
    ) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        entry.one_sided = None;
        let there = target.is_some_and(|target| target.on_device);
        let stops = match &*entry.work {
            Work::Put(put) => there && !put.buffer.is_on_device(),
            Work::Get(get) => there && !get.buffer.is_on_device(),
            _ => false,
        };
        if stops && let Some(error) = self.may_not_stop(key) {
            return self.fail_operation(key, error);
        }
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        match (&mut *entry.work, op, target) {
            (Work::Recv(recv), Some(op), _) if recv.buffer.is_on_device() => {
                self.begin_pull(key, link, op, length, false);
            }
            (Work::Send(send), Some(op), _) if send.buffer.is_on_device() => {
                self.stream_send(link, key, op);
            }
            (Work::Put(put), _, Some(target)) if put.buffer.is_on_device() && !put.announced => {
                entry.outcome = None;
                self.begin_parts(key, target);
            }
            (Work::Get(get), _, Some(target)) if get.buffer.is_on_device() => {
                self.begin_parts(key, target);
            }
            _ => self.ctx.by_messages(link, key, op, length),
        }
    }

    /// The next piece of an operation.
    pub(in crate::worker) fn advance_moves(
        &mut self,
        link_id: LinkId,
        key: OpKey,
    ) -> Result<Step, SendError> {
        let (Some(peer), Some(entry)) = (
            at(&mut self.ctx.peers, link_id),
            self.ctx.operations.get(key),
        ) else {
            return Ok(Step::Sent);
        };
        let Some(OneSided::Moves(moves)) = entry.one_sided.as_deref_mut() else {
            return Ok(Step::Sent);
        };
        let all = moves.next == moves.length;
        let waits = all && (moves.pending > 0 || moves.unread.is_empty());
        let link = peer.link.as_mut();
        let Some(link) = link.filter(|_| moves.failed.is_none() && !waits) else {
            return Ok(Step::Parked);
        };
        let Some(ways) = link.one_sided().filter(|ways| ways.reaches(&moves.keys)) else {
            let text = "no rail to the peer's memory is left";
            self.not_moved(link_id, key, Error::new(ErrorKind::ConnectionReset, text));
            return Ok(Step::Sent);
        };
        if all {
            if !moves.read_back(ways, key)? {
                self.moves_over(key);
            }
            return Ok(Step::Parked);
        }
        let attributes = ways.attributes();
        if moves.length <= attributes.max_short && !moves.of.is_on_device() {
            moves.post_short(ways, key)?;
            self.ctx.counts.one_sided.add(moves.length);
            self.posted(key);
            return Ok(Step::Sent);
        }
        let registered = match &moves.memory {
            Memory::Ready(keys) => keys,
            Memory::Waiting => return Ok(Step::Parked),
            Memory::Unknown => {
                let Some(made) = moves.find_keys(ways) else {
                    return Ok(Step::More);
                };
                self.have_registered(link_id, key, made);
                return Ok(Step::Parked);
            }
        };
        if moves.pending >= IN_FLIGHT.saturating_mul(attributes.rails.max(1) as u32) {
            return Ok(Step::Parked);
        }
        let end = moves.piece_end(&attributes);
        let sent = match moves.post(ways, registered.local(), end, key) {
            Err(SendError::Failed(error)) if error.kind() == ErrorKind::Unsupported => {
                // The rails from where it is registered have gone: anew, once what is under way there has ended.
                if moves.pending > 0 {
                    return Ok(Step::Parked);
                }
                moves.memory = Memory::Unknown;
                return Ok(Step::More);
            }
            sent => sent?,
        };
        self.ctx.counts.one_sided.add(end - moves.next);
        let (before, tell) = (moves.next, moves.tell.filter(|_| end < moves.length));
        moves.next = end;
        if sent == Zcopy::Pending {
            moves.pending += 1;
            entry.in_flight += 1;
        }
        if let Some(op) = tell {
            self.ctx.tell_moved(link_id, op, before, end);
        }
        self.posted(key);
        Ok(Step::More)
    }

    /// Something of a transfer was handed to the link.
    fn posted(&mut self, key: OpKey) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let Some(OneSided::Moves(moves)) = entry.one_sided.as_deref() else {
            return;
        };
        let (next, all) = (moves.next, moves.next == moves.length);
        let is_read = moves.unread.is_empty();
        let over = all && moves.pending == 0 && is_read;
        let mut copied = false;
        if let Work::Put(put) = &mut *entry.work {
            put.next = next;
            // One with a signal goes on.
            copied = all && is_read && put.signal.is_none();
        }
        if over {
            self.moves_over(key);
        } else if copied {
            // It is complete on this side.
            self.ctx.put_progress(key);
        }
    }

    /// A piece of a transfer has ended. `false`: the operation is none of these.
    pub(in crate::worker) fn piece_over(
        &mut self,
        link: LinkId,
        key: OpKey,
        result: Result<()>,
    ) -> bool {
        let Some(entry) = self.ctx.operations.get(key) else {
            return false;
        };
        if entry.is_short {
            let result = match result {
                Err(error) if entry.to_device && leaves_it_to_messages(&error, &entry.work) => {
                    Err(self.may_not_stop(key).unwrap_or(error))
                }
                other => other,
            };
            self.ctx.short_over(link, key, result);
            return true;
        }
        let Some(OneSided::Moves(moves)) = entry.one_sided.as_deref_mut() else {
            return false;
        };
        moves.pending = moves.pending.saturating_sub(1);
        if !moves.short {
            entry.in_flight = entry.in_flight.saturating_sub(1);
        }
        if let Err(error) = result {
            moves.failed.get_or_insert(error);
        }
        // It may have been ended by a word of the peer meanwhile.
        let ended =
            moves.failed.is_some() || moves.next == moves.length || entry.deferred.is_some();
        let unread = moves.failed.is_none() && entry.deferred.is_none() && !moves.unread.is_empty();
        if moves.pending == 0 && ended && !unread {
            self.moves_over(key);
        } else if moves.failed.is_none() && (moves.next < moves.length || unread) {
            self.submit(link, key);
        }
        true
    }

    /// What a short get or a device's atomic brought.
    pub(in crate::worker) fn brought(&mut self, link: LinkId, key: OpKey, data: &[u8]) {
        let Some(entry) = self.ctx.operations.named(link, key) else {
            return;
        };
        if let Work::Atomic(atomic) = &*entry.work {
            if matches!(atomic.asks, Ask::Device(_)) {
                let outcome = match (atomic.fetch, data.try_into()) {
                    (true, Ok(word)) => Ended::Value(u64::from_ne_bytes(word)),
                    (false, Ok(_)) => Ended::Done(Ok(())),
                    _ => Ended::Done(Err(violation("not a word"))),
                };
                self.finish(key, outcome);
            }
            return;
        }
        if entry.is_short {
            return self.ctx.short_brought(link, key, data);
        }
        let Some(OneSided::Moves(moves)) = entry.one_sided.as_deref() else {
            return;
        };
        if !moves.pull && moves.next == moves.length {
            // What was put, read back.
            self.piece_over(link, key, Ok(()));
            return;
        }
        if entry.outcome.is_some() || !moves.short || !moves.pull {
            return;
        }
        let result = match data.len() == moves.length {
            true => {
                // SAFETY: `local` has `length` bytes, owned by the entry; `data` is the link's.
                unsafe { copy(data.as_ptr(), moves.local, data.len()) };
                Ok(())
            }
            false => Err(violation("a get brought another number of bytes")),
        };
        self.piece_over(link, key, result);
    }

    /// Nothing of a transfer is under way any more.
    fn moves_over(&mut self, key: OpKey) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let link = entry.link;
        let Some(OneSided::Moves(moves)) = entry.one_sided.take().map(|one_sided| *one_sided)
        else {
            return;
        };
        let deferred = entry.deferred.take();
        if matches!(entry.outcome, Some(Ended::Done(Err(_)))) {
            // A word of the peer has ended it while what was put was read back.
            return;
        }
        if deferred.is_none()
            && let Some(error) = &moves.failed
            && leaves_it_to_messages(error, &entry.work)
            && let Some(link) = link
            && at(&mut self.ctx.peers, link).is_some_and(|peer| peer.link.is_some())
        {
            // Bytes that have come before come once more.
            let from = (moves.tell, moves.target);
            return self.by_messages(link, key, from, moves.length);
        }
        if deferred.is_none()
            && moves.failed.is_none()
            && let Some(link) = link
            && let Some(settling) = self.ctx.settling(link, &moves)
        {
            if let Some(entry) = self.ctx.operations.get(key) {
                entry.one_sided = Some(Box::new(OneSided::Moves(moves)));
            }
            let work = async move {
                let result = settling.await;
                Box::new(move |movers: &mut Self| movers.settled(link, key, result)) as Told
            };
            return self.errand(Errand::Wait(Box::pin(work)));
        }
        let result = moves.failed.map_or(Ok(()), Err);
        if let (Some(link), Some(op)) = (link, moves.tell) {
            match &result {
                Ok(()) => self.ctx.control(link, control::DONE, op, &[]),
                Err(error) => self.ctx.refuse(link, op, error.kind()),
            }
        }
        match deferred {
            Some(ended) => self.finish(key, ended),
            None => self.copied(key, result),
        }
    }

    /// What was written into memory of a device here is seen by it, or cannot be made so.
    fn settled(&mut self, link: LinkId, key: OpKey, result: Result<()>) {
        let Some(OneSided::Moves(moves)) = self.ctx.one_sided_of(link, key) else {
            return;
        };
        match result {
            Ok(()) => {
                moves.settled = true;
                self.moves_over(key);
            }
            Err(error) => {
                trace::slower!(format!("unsettled: {:?}", error.kind()), target: "wharf::memory", %error, remedy = "WHARF_RNDV_SCHEME=am has all of it go by messages", "memory of a device may not see what was written into it; it goes by messages");
                let (from, length) = ((moves.tell, moves.target), moves.length);
                self.by_messages(link, key, from, length);
            }
        }
    }

    /// A transfer cannot go on by devices: by messages, if nothing has gone.
    fn not_moved(&mut self, link: LinkId, key: OpKey, error: Error) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let Some(OneSided::Moves(moves)) = entry.one_sided.as_deref_mut() else {
            return;
        };
        if moves.next > 0 {
            moves.failed.get_or_insert(error);
            if moves.pending == 0 {
                self.moves_over(key);
            }
            return;
        }
        tracing::debug!(target: "wharf::memory", %error, "a transfer goes by messages instead of by network devices");
        let (from, length) = ((moves.tell, moves.target), moves.length);
        self.by_messages(link, key, from, length);
    }

    /// A message was announced whose keys are not here yet: they are made meanwhile.
    pub(in crate::worker) fn offered(&mut self, link: LinkId, key: OpKey, offer: Offer) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let waits = offer.keys.is_none();
        entry.one_sided = Some(Box::new(OneSided::Offers(offer)));
        // Who would rather write makes none before it is asked for them.
        if waits && self.scheme != RendezvousScheme::Put {
            self.register_offered(link, key);
        }
    }

    /// Makes the keys of a message that was announced without.
    fn register_offered(&mut self, link: LinkId, key: OpKey) {
        let Some(Work::Send(send)) = self.ctx.operations.work(key) else {
            return;
        };
        let memory = send.buffer.local_memory();
        let peer = at(&mut self.ctx.peers, link).and_then(|peer| peer.link.as_mut());
        if let (Some(ways), Some(memory)) = (peer.and_then(|link| link.one_sided()), memory) {
            let devices = offered(ways, &memory);
            let made = ways.memory().register(memory, Access::READ, &devices);
            self.have_registered(link, key, made);
            if let Some(OneSided::Offers(offer)) = self.ctx.one_sided_of(link, key) {
                offer.waiting = true;
            }
        }
    }

    /// A receive, which has the room, has met a message that devices reach. `false`: it comes in messages.
    pub(in crate::worker) fn receive_by_devices(
        &mut self,
        link: LinkId,
        key: OpKey,
        rts: &Announcement,
    ) -> bool {
        let length = rts.length as usize;
        let scheme = self.scheme;
        if rts.segment != control::REGISTERED || length == 0 || scheme == RendezvousScheme::Messages
        {
            return false;
        }
        let (Some(peer), Some(entry)) =
            (at(&mut self.ctx.peers, link), self.ctx.operations.get(key))
        else {
            return false;
        };
        let Work::Recv(recv) = &mut *entry.work else {
            return false;
        };
        let Some(ways) = peer.link.as_mut().and_then(|link| link.one_sided()) else {
            return false;
        };
        let local = recv.buffer.address();
        let Some(of) = recv.buffer.local_memory(length) else {
            return false;
        };
        if of.is_on_device() && (scheme == RendezvousScheme::Put || takes(ways, &of).is_err()) {
            return false;
        }
        let landing = RecvStage::Landing {
            expected: length,
            got: 0,
        };
        if scheme == RendezvousScheme::Put {
            recv.stage = landing;
            let memory = Arc::clone(ways.memory());
            let devices = offered(ways, &of);
            let made = memory.register_for_writing(of.range, &devices);
            let (keys, op) = (None, rts.op);
            entry.one_sided = Some(Box::new(OneSided::Written { memory, keys, op }));
            self.have_cleared(link, key, made);
        } else if rts.keys.is_empty() {
            recv.stage = RecvStage::Copying;
            let (op, address) = (rts.op, rts.address);
            entry.one_sided = Some(Box::new(OneSided::Asks { op, address }));
            self.ctx
                .control(link, control::ASK_KEYS, rts.op, &key.0.to_le_bytes());
        } else if ways.reaches(&rts.keys) {
            recv.stage = RecvStage::Copying;
            let keys = rts.keys.as_slice().into();
            let moves = Moves::new(true, (local, of), rts.address, keys, Some(rts.op));
            self.ctx.begin_moves(link, key, moves);
        } else {
            return false;
        }
        true
    }

    /// The receiver of an announced message asks for its keys.
    pub(in crate::worker) fn keys_asked(
        &mut self,
        link: LinkId,
        key: OpKey,
        body: &[u8],
    ) -> Result<()> {
        let to = word(body)?;
        let Some(entry) = self.ctx.operations.waiting(link, key) else {
            return Ok(());
        };
        let Work::Send(send) = &*entry.work else {
            return Err(violation("keys of what is no send"));
        };
        if !matches!(send.stage, SendStage::Announced) {
            return Err(violation("keys of what is not announced"));
        }
        if entry.was_announced() {
            self.ctx.announcement_over(link);
        }
        let writes = self.scheme == RendezvousScheme::Put;
        let Some(OneSided::Offers(offer)) = self.ctx.one_sided_of(link, key) else {
            return Err(violation("keys of what devices do not reach"));
        };
        offer.asked = Some(to);
        if writes && offer.keys.is_none() && !offer.waiting {
            self.register_offered(link, key);
        }
        self.ctx.answer_keys(link, key);
        Ok(())
    }

    /// Has memory registered while the worker goes on.
    fn have_registered(&mut self, link: LinkId, key: OpKey, made: Registering<LocalKeys>) {
        let work = async move {
            let result = made.await;
            Box::new(move |movers: &mut Self| movers.registered(link, key, result)) as Told
        };
        self.errand(Errand::Wait(Box::pin(work)));
    }

    /// Has the memory of a receive registered for the peer's devices, which the receive cannot watch: after nothing is left in it that they could
    /// leave standing, or read.
    fn have_cleared(&mut self, link: LinkId, key: OpKey, made: Registering<LocalKeys>) {
        self.errand(Errand::Clear(link, key, made));
    }

    /// Memory of an operation is registered, or cannot be.
    pub(in crate::worker) fn registered(
        &mut self,
        link: LinkId,
        key: OpKey,
        result: Result<LocalKeys>,
    ) {
        // Its link may be gone.
        if let Some(entry) = self.ctx.operations.get(key)
            && let Some(OneSided::Over {
                memory,
                result: ended,
            }) = entry.one_sided.as_deref_mut()
        {
            let (memory, ended) = (Arc::clone(memory), ended.take().unwrap_or(Ok(())));
            if let Ok(keys) = result {
                return self.end_writing(key, memory, keys, ended);
            }
            entry.one_sided = None;
            return self.copied(key, ended);
        }
        match (self.ctx.one_sided_of(link, key), result) {
            (Some(OneSided::Moves(moves)), Ok(keys)) => {
                moves.memory = Memory::Ready(keys);
                self.submit(link, key);
            }
            (Some(OneSided::Moves(_)), Err(error)) => self.not_moved(link, key, told(error)),
            (Some(OneSided::Offers(offer)), result) => {
                offer.waiting = false;
                offer.keys = result.map_err(told).ok();
                self.ctx.answer_keys(link, key);
            }
            (Some(OneSided::Written { keys, op, .. }), Ok(made)) => {
                let op = *op;
                let (front, remote) = ([key.0, made.range().start()], made.remote());
                let (body, length) = control::with_keys(&front, remote);
                *keys = Some(made);
                self.ctx.control(link, control::WRITE, op, &body[..length]);
            }
            (Some(OneSided::Written { op, .. }), Err(error)) => {
                let op = *op;
                let _ = told(error);
                if let Some(entry) = self.ctx.operations.get(key) {
                    entry.one_sided = None;
                }
                self.ctx.ask_for_fragments(link, key, op);
            }
            _ => {}
        }
    }

    /// The peer's devices reach the memory of an operation no longer: it is over.
    fn written(&mut self, key: OpKey, result: Result<()>) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        if matches!(entry.one_sided.as_deref(), Some(OneSided::Closing { .. })) {
            entry.one_sided = None;
            self.copied(key, result);
        }
    }

    /// An operation whose memory the peer's devices may write is over once they may no longer: that takes a while. `Err`: it is none of these.
    pub(in crate::worker) fn end_written(
        &mut self,
        key: OpKey,
        result: Result<()>,
    ) -> Result<(), Result<()>> {
        let Some(entry) = self.ctx.operations.get(key) else {
            return Err(result);
        };
        match entry.one_sided.as_deref() {
            Some(OneSided::Written { .. }) => {}
            // It ends as it was told first, whatever comes meanwhile: another word of the peer, the end of the link.
            Some(OneSided::Closing { .. } | OneSided::Over { .. } | OneSided::Leaving) => {
                return Ok(());
            }
            _ => return Err(result),
        }
        let Some(OneSided::Written { memory, keys, .. }) =
            entry.one_sided.take().map(|one_sided| *one_sided)
        else {
            return Err(result);
        };
        match keys {
            Some(keys) => self.end_writing(key, memory, keys, result),
            None => {
                let result = Some(result);
                entry.one_sided = Some(Box::new(OneSided::Over { memory, result }));
            }
        }
        Ok(())
    }

    fn end_writing(
        &mut self,
        key: OpKey,
        memory: Arc<dyn DeviceRegistrar>,
        keys: LocalKeys,
        result: Result<()>,
    ) {
        let end = memory.end_writing(keys.clone());
        if let Some(entry) = self.ctx.operations.get(key) {
            entry.one_sided = Some(Box::new(OneSided::Closing { memory, keys }));
        }
        let work = async move {
            end.await;
            Box::new(move |movers: &mut Self| movers.written(key, result)) as Told
        };
        self.errand(Errand::Wait(Box::pin(work)));
    }
}

impl Entry {
    /// Whether the peer's devices were asked to write its memory.
    pub(in crate::worker) fn is_written(&self) -> bool {
        matches!(
            self.one_sided.as_deref(),
            Some(OneSided::Written { keys: Some(_), .. })
        )
    }

    /// Whether it has ended, but for memory that the peer, or its devices, may still write.
    pub(in crate::worker) fn ends_writing(&self) -> bool {
        matches!(
            self.one_sided.as_deref(),
            Some(OneSided::Closing { .. } | OneSided::Over { .. } | OneSided::Leaving)
        )
    }

    /// Whether network devices have something of it, whatever its future was told.
    pub(in crate::worker) fn is_with_devices(&self) -> bool {
        match self.one_sided.as_deref() {
            Some(OneSided::Moves(moves)) => moves.pending > 0,
            _ => self.is_short,
        }
    }
}

/// Whether what a device could not do is to be done in messages, from the beginning, as long as the link is there: the rail went, or the peer's device
/// refused a put or get, of which the owner says why. A process that is killed loses its registrations before its queue pairs, so a refusal alone
/// does not say that the memory was given back.
pub(in crate::worker) fn leaves_it_to_messages(error: &Error, work: &Work) -> bool {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::Unreachable => true,
        ErrorKind::AccessDenied => matches!(work, Work::Put(_) | Work::Get(_)),
        _ => false,
    }
}
