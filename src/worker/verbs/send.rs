//! What goes out: the queue of a link, and the next step of each operation in it.
//!
//! # Safety
//! Zero-copy sends lend the link memory that the entry of the table owns. The entry stays until `Sink::sent` was called for it, or the link
//! is dropped (`Core::fail` drops the link before it touches the entries).
#![allow(unsafe_code)]

use crate::{
    error::Result,
    memory::Buffer,
    protocol::{
        control::{self, Rts},
        window::eager_cost,
    },
    trace,
    transport::{RemoteRange, SendError, Zcopy},
    types::{EndpointId, LinkId, OpKey, Tag},
    worker::{
        atomic::no_atomics,
        core::Core,
        ctx::Ctx,
        list::list_fragment,
        movers::Movers,
        one_sided::offer,
        operations::{self, Outcome, SendStage, Work},
        peer::at,
        queue::{Lane, Queued},
        send::{TURN, announce, closed, fragment, host, try_eager},
        signal::{put_prefix, put_prefix_size},
        source::Source,
        step::{FRAGMENTS_IN_FLIGHT, Step, fragment_size, transmit},
        verbs::pressure::is_bulk,
    },
};

impl Ctx {
    /// As [`try_eager`], for a message that goes inline where nothing has to be asked for and nothing is in its way. `None`: it goes another way,
    /// or has to wait.
    #[inline(always)]
    pub(crate) fn send_short(
        &mut self,
        (link, id): (LinkId, EndpointId),
        tag: Tag,
        data: &[u8],
    ) -> Option<Result<()>> {
        let peer = self.endpoint(link, id)?;
        if !peer.is_open() || !peer.queue.is_empty() || data.len() > peer.quick {
            return None;
        }
        let left = peer.send_window.after(eager_cost(data.len()))?;
        match peer
            .link
            .as_mut()?
            .am_short(control::TAG_EAGER, tag.0, data)
        {
            Ok(()) => {}
            Err(SendError::Full) => return None,
            Err(SendError::Failed(error)) => return Some(Err(error)),
        }
        peer.send_window = left;
        trace::operation("tag send", data.len(), "eager");
        Some(Ok(()))
    }

    /// The same for a longer message that goes unasked, in one piece.
    #[inline(never)]
    pub(crate) fn send_eager(
        &mut self,
        (link, id): (LinkId, EndpointId),
        tag: Tag,
        data: &[u8],
    ) -> Option<Result<()>> {
        let peer = self.endpoint(link, id)?;
        if !peer.is_open() {
            return None;
        }
        match try_eager(peer, tag, data.len(), || data) {
            Ok(()) => Some(Ok(())),
            Err(Some(SendError::Failed(error))) => Some(Err(error)),
            Err(_) => None,
        }
    }

    /// Puts an operation in the queue of its link.
    pub(crate) fn submit(&mut self, link: LinkId, key: OpKey) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        if std::mem::replace(&mut entry.queued, true) {
            return;
        }
        let lane = Lane::of(entry.priority, is_bulk(entry));
        let Some(peer) = at(&mut self.peers, link) else {
            return;
        };
        peer.queue.push(lane, Queued::Operation(key));
        if peer.queue.active() == 1 {
            self.submitted.push(link);
        }
    }

    /// Bytes that a link has taken.
    #[inline]
    fn sent_bytes(&mut self, link: LinkId) -> u64 {
        let peer = self.peer(link);
        peer.and_then(|peer| peer.link.as_ref())
            .map_or(0, |link| link.sent.bytes)
    }

    /// Puts what has more to send in the queue again. Whether the link has room for others.
    #[inline]
    fn advanced(
        &mut self,
        link: LinkId,
        front: Queued,
        lane: Lane,
        result: Result<Step, SendError>,
    ) -> bool {
        match result {
            Ok(Step::Sent | Step::Parked) => {}
            Ok(Step::More) => {
                let lane = self.mark_queued(&front).unwrap_or(lane);
                if let Some(peer) = self.peer(link) {
                    peer.queue.push(lane, front);
                }
            }
            Ok(Step::Held) => {
                self.mark_queued(&front);
                if let Some(peer) = self.peer(link) {
                    peer.queue.push(Lane::Held, front);
                }
            }
            Err(SendError::Full) => {
                self.mark_queued(&front);
                if let Some(peer) = self.peer(link) {
                    peer.queue.put_back(lane, front);
                }
                return false;
            }
            Err(SendError::Failed(error)) => {
                self.failures.push((link, error));
                return false;
            }
        }
        true
    }

    /// Notes that something is in the queue again. Returns the lane of its next step.
    fn mark_queued(&mut self, queued: &Queued) -> Option<Lane> {
        match queued {
            Queued::Operation(key) => {
                let entry = self.operations.get(*key)?;
                entry.queued = true;
                Some(Lane::of(entry.priority, is_bulk(entry)))
            }
            Queued::Stream(_) => Some(Lane::Bulk),
            Queued::Control { .. } => None,
        }
    }

    /// Ends a put as far as it is done.
    pub(crate) fn put_progress(&mut self, key: OpKey) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        let Work::Put(put) = &mut entry.work else {
            return;
        };
        if put.next < put.buffer.len() || entry.in_flight > 0 {
            return;
        }
        if put.acknowledged {
            self.finish(key, Outcome::Done(Ok(())));
        } else if put.local && !entry.detached && entry.outcome.is_none() {
            entry.outcome = Some(Outcome::Done(Ok(())));
            self.wakes.extend(entry.waker.take());
            let link = entry.link;
            self.close_soon(link);
        }
    }

    /// A link has ended one use of an operation's memory.
    pub(crate) fn source_free(&mut self, link: LinkId, key: OpKey) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        entry.in_flight = entry.in_flight.saturating_sub(1);
        if entry.in_flight == 0
            && let Some(outcome) = entry.deferred.take()
        {
            self.finish(key, *outcome);
            return;
        }
        let more = match &entry.work {
            Work::Send(send) => {
                matches!(&send.stage, SendStage::Streaming(out) if out.next < send.buffer.len())
            }
            Work::Serve(serve) => serve.out.next < serve.length,
            Work::Put(put) => put.next < put.buffer.len(),
            _ => return,
        };
        if !more {
            self.put_progress(key);
        } else if entry.in_flight + 1 == FRAGMENTS_IN_FLIGHT {
            self.submit(link, key);
        }
    }
}

impl Movers {
    /// As [`Ctx::submit`]; where there is nothing to wait for, the operation begins at once.
    pub(crate) fn submit(&mut self, link: LinkId, key: OpKey) {
        let (Some(peer), Some(entry)) =
            (at(&mut self.ctx.peers, link), self.ctx.operations.get(key))
        else {
            return;
        };
        if entry.queued || !peer.queue.is_empty() || peer.link.is_none() {
            return self.ctx.submit(link, key);
        }
        let lane = Lane::of(entry.priority, is_bulk(entry));
        let result = self.advance(link, key, lane);
        let has_room = self
            .ctx
            .advanced(link, Queued::Operation(key), lane, result);
        let peer = self.ctx.peer(link);
        let is_idle = peer.is_some_and(|peer| peer.is_open() && peer.queue.is_empty());
        match has_room && !is_idle {
            true => self.ctx.submitted.push(link),
            false => self.ctx.tell_ready(link),
        }
    }

    /// The next step of one operation.
    fn advance(&mut self, link_id: LinkId, key: OpKey, lane: Lane) -> Result<Step, SendError> {
        let Some(peer) = at(&mut self.ctx.peers, link_id) else {
            return Ok(Step::Sent);
        };
        let Some(entry) = self.ctx.operations.get(key) else {
            return Ok(Step::Sent);
        };
        if entry.outcome.is_some() || entry.deferred.is_some() {
            // Ended, by a refusal for one, while it waited in the queue.
            return Ok(Step::Sent);
        }
        if entry.is_piped() {
            return self.advance_staged(link_id, key);
        }
        if entry.is_moved() {
            return self.advance_moves(link_id, key);
        }
        if entry.has_layout() {
            return self.ctx.advance_layout(link_id, key);
        }
        if matches!(entry.work, Work::Lent(_)) {
            return self.ctx.advance_lent(link_id, key);
        }
        let attributes = peer.attributes;
        match &mut entry.work {
            Work::Send(send) => {
                let length = send.buffer.len() + send.am.as_ref().map_or(0, Buffer::len);
                // The room for an active message was taken when it was let go.
                let unasked = send.unasked(peer.eager, &attributes).is_some()
                    && (send.am.is_some() || peer.has_window(length));
                match &mut send.stage {
                    SendStage::Queued if peer.reason.is_some() && (send.sync || !unasked) => {
                        // No receive will match it any more.
                        let error = peer.error().unwrap_or_else(closed);
                        self.finish(key, Outcome::Done(Err(error)));
                        Ok(Step::Sent)
                    }
                    SendStage::Queued
                        if send.am.is_none() && lane != Lane::Held && peer.queue.holds() =>
                    {
                        Ok(Step::Held)
                    }
                    SendStage::Queued if unasked => {
                        let Some(link) = peer.link.as_mut() else {
                            return Ok(Step::Parked);
                        };
                        let data = host(&send.buffer);
                        let op = key.0.to_le_bytes();
                        let (id, prefix): (u8, &[u8]) = if let Some(header) = &send.am {
                            (control::AM_EAGER, host(header))
                        } else if send.sync {
                            (control::TAG_EAGER_SYNC, &op)
                        } else {
                            (control::TAG_EAGER, &[])
                        };
                        let sent = if prefix.is_empty() && length <= peer.short {
                            link.am_short(id, send.tag.0, data).map(|()| Zcopy::Done)?
                        } else {
                            // SAFETY: `data` is owned by the entry, which stays while `in_flight` counts this.
                            unsafe {
                                transmit(link, &attributes, id, send.tag.0, prefix, data, key.0)
                            }?
                        };
                        if send.am.is_none() {
                            peer.take_window(length);
                        }
                        let sync = send.sync;
                        send.stage = SendStage::AwaitMatch;
                        entry.in_flight += u32::from(sent == Zcopy::Pending);
                        if !sync {
                            self.finish(key, Outcome::Done(Ok(())));
                        }
                        Ok(Step::Sent)
                    }
                    SendStage::Queued if send.am.is_none() && !peer.may_announce() => {
                        Ok(Step::Held)
                    }
                    SendStage::Queued => {
                        let mut rts = announce(peer, &send.buffer, key, &mut send.slot);
                        let Some(link) = peer.link.as_mut() else {
                            return Ok(Step::Parked);
                        };
                        let user = send.am.as_ref().map_or(&[][..], host);
                        let room = attributes.max_bcopy.saturating_sub(Rts::SIZE + user.len());
                        let scheme = self.scheme;
                        let offer = offer(&mut **link, &send.buffer, scheme, &mut rts, room);
                        let keys = offer
                            .as_ref()
                            .map_or(&[][..], |offer| offer.announced(&rts));
                        let (keys, length) = control::with_keys(&[], keys);
                        let keys = &keys[..length];
                        match &send.am {
                            Some(_) => {
                                let behind = [keys, user].concat();
                                link.am_bcopy(control::AM_RTS, send.tag.0, &rts.encode(), &behind)?;
                            }
                            None if keys.is_empty() => {
                                link.am_short(control::TAG_RTS, send.tag.0, &rts.encode())?;
                            }
                            None => {
                                link.am_bcopy(control::TAG_RTS, send.tag.0, &rts.encode(), keys)?;
                            }
                        }
                        send.stage = SendStage::Announced;
                        peer.announced_out += usize::from(send.am.is_none());
                        if let Some(offer) = offer {
                            self.offered(link_id, key, offer);
                        }
                        Ok(Step::Sent)
                    }
                    SendStage::Streaming(out) => {
                        let Some(link) = peer.link.as_mut() else {
                            return Ok(Step::Parked);
                        };
                        if send.buffer.list().is_some() {
                            let step = list_fragment(
                                link,
                                &attributes,
                                out,
                                &send.buffer,
                                &mut self.ctx.scratch,
                                key,
                                &mut entry.in_flight,
                            )?;
                            if matches!(step, Step::Sent) {
                                self.finish(key, Outcome::Done(Ok(())));
                            }
                            return Ok(step);
                        }
                        let data = host(&send.buffer);
                        let step =
                            fragment(link, &attributes, out, data, key, &mut entry.in_flight)?;
                        if matches!(step, Step::Sent) {
                            self.finish(key, Outcome::Done(Ok(())));
                        }
                        Ok(step)
                    }
                    _ => Ok(Step::Parked),
                }
            }
            Work::Serve(serve) => {
                let Some(link) = peer.link.as_mut() else {
                    return Ok(Step::Parked);
                };
                let data = match &serve.source {
                    Source::Region(_) if serve.length == 0 => &[],
                    // SAFETY: the range was checked against the exposed memory, which the entry holds and which the host reaches, for else
                    // the operation has a pipe. A peer may write it meanwhile; only this copy outwards reads it.
                    Source::Region(exposed) => unsafe {
                        let first = exposed.address.add(serve.offset);
                        std::slice::from_raw_parts(first, serve.length)
                    },
                    Source::Message(buffer) if buffer.list().is_none() => host(buffer),
                    Source::Message(buffer) => {
                        let step = list_fragment(
                            link,
                            &attributes,
                            &mut serve.out,
                            buffer,
                            &mut self.ctx.scratch,
                            key,
                            &mut entry.in_flight,
                        )?;
                        if matches!(step, Step::Sent) {
                            self.finish(key, Outcome::Done(Ok(())));
                        }
                        return Ok(step);
                    }
                };
                let step = fragment(
                    link,
                    &attributes,
                    &mut serve.out,
                    data,
                    key,
                    &mut entry.in_flight,
                )?;
                if matches!(step, Step::Sent) {
                    self.finish(key, Outcome::Done(Ok(())));
                }
                Ok(step)
            }
            Work::Put(operations::Put {
                signal: Some(signal),
                signal_due: due @ true,
                ..
            }) => {
                peer.try_signal(signal)?;
                *due = false;
                self.finish(key, Outcome::Done(Ok(())));
                Ok(Step::Sent)
            }
            Work::Atomic(operations::Atomic {
                device: Some(word),
                sent,
                ..
            }) => {
                let Some(link) = peer.link.as_mut() else {
                    return Ok(Step::Parked);
                };
                let ways = link
                    .one_sided()
                    .filter(|ways| ways.attributes().atomics && ways.reaches(word.key.as_slice()));
                let Some(ways) = ways else {
                    self.ctx.atomic_refused(key, no_atomics());
                    return Ok(Step::Sent);
                };
                let remote = RemoteRange {
                    address: word.address,
                    keys: word.key.as_slice(),
                };
                ways.atomic(word.atomic, remote, key.0)?;
                *sent = true;
                Ok(Step::Sent)
            }
            Work::Atomic(atomic) => {
                let Some(link) = peer.link.as_mut() else {
                    return Ok(Step::Parked);
                };
                match &atomic.message {
                    Some(message) => link.am_short(control::ATOMIC, key.0, &message.encode())?,
                    None => link.am_short(control::SETTLE, key.0, &[])?,
                }
                atomic.sent = true;
                Ok(Step::Sent)
            }
            Work::Put(put) if put.announced => {
                let Some(link) = peer.link.as_mut() else {
                    return Ok(Step::Parked);
                };
                let signal = put.signal.as_deref().map(|signal| signal.encode());
                let mut mark = if signal.is_some() { 3 } else { 1 };
                if put.buffer.is_on_device() {
                    mark |= control::OF_DEVICE;
                }
                if entry.unstaged {
                    mark |= control::UNSTAGED;
                }
                let rts = control::PutRts {
                    generation: put.region.1,
                    offset: put.offset,
                    length: put.buffer.len() as u64,
                    slot: put.region.0,
                    last: mark,
                };
                let signal = signal.as_ref().map_or(&[][..], |signal| &signal[..]);
                link.am_bcopy(control::PUT_RTS, key.0, &rts.encode(), signal)?;
                put.next = put.buffer.len();
                Ok(Step::Sent)
            }
            Work::Put(put) => {
                if entry.in_flight >= FRAGMENTS_IN_FLIGHT {
                    return Ok(Step::Parked);
                }
                let Some(link) = peer.link.as_mut() else {
                    return Ok(Step::Parked);
                };
                let data = host(&put.buffer);
                let longest = put_prefix_size(put.signal.is_some());
                let end = data
                    .len()
                    .min(put.next + fragment_size(&attributes, longest));
                let last = end == data.len();
                let header = control::PutHeader {
                    generation: put.region.1,
                    offset: put.offset + put.next as u64,
                    slot: put.region.0,
                    last: u32::from(last),
                };
                let (prefix, length) = put_prefix(header, put.signal.as_deref());
                // SAFETY: `data` is owned by the entry, which stays while `in_flight` counts this.
                let sent = unsafe {
                    transmit(
                        link,
                        &attributes,
                        control::PUT,
                        key.0,
                        &prefix[..length],
                        &data[put.next..end],
                        key.0,
                    )
                }?;
                put.next = end;
                entry.in_flight += u32::from(sent == Zcopy::Pending);
                if last {
                    self.ctx.put_progress(key);
                    return Ok(Step::Sent);
                }
                Ok(Step::More)
            }
            Work::Get(get) => {
                let Some(link) = peer.link.as_mut() else {
                    return Ok(Step::Parked);
                };
                if let Some(op) = get.pull {
                    let pull = control::Pull {
                        to: key.0,
                        offset: get.offset,
                        length: get.buffer.len() as u64,
                    };
                    link.am_short(control::PULL, op, &pull.encode())?;
                    return Ok(Step::Sent);
                }
                let request = control::GetRequest {
                    generation: get.region.1,
                    offset: get.offset,
                    length: get.buffer.len() as u64,
                    slot: get.region.0,
                };
                link.am_short(control::GET, key.0, &request.encode())?;
                Ok(Step::Sent)
            }
            _ => Ok(Step::Sent),
        }
    }
}

impl Core {
    /// As [`Movers::submit`]; sends what can go.
    pub(crate) fn submit(&mut self, link: LinkId, key: OpKey) {
        self.movers.submit(link, key);
        self.act();
    }

    /// Sends from the queue of a link until it is empty or there is no room.
    pub(crate) fn pump(&mut self, link: LinkId) {
        self.send_queued(link);
        self.movers.ctx.tell_ready(link);
        self.act();
    }

    fn send_queued(&mut self, link: LinkId) {
        // Bounded: a transfer of gigabytes gives way to whatever else the worker has to do.
        self.movers.ctx.effort = 0;
        let begun = self.movers.ctx.sent_bytes(link);
        for _ in 0..64 {
            let sent = self.movers.ctx.sent_bytes(link).wrapping_sub(begun);
            if sent.saturating_add(self.movers.ctx.effort) > TURN {
                break;
            }
            let Some(peer) = self.movers.ctx.peer(link) else {
                return;
            };
            if peer.link.is_none() {
                // It flushes at this moment, and is pumped after that; or it is gone, and the queue with it.
                return;
            }
            let Some((lane, front)) = peer.queue.pop(peer.may_announce()) else {
                self.close_step(link);
                return;
            };
            let result = match &front {
                Queued::Control {
                    id,
                    header,
                    length,
                    body,
                } => match &mut peer.link {
                    Some(link) => link
                        .am_short(*id, *header, &body[..usize::from(*length)])
                        .map(|()| Step::Sent),
                    None => return,
                },
                Queued::Operation(key) => {
                    if let Some(entry) = self.movers.ctx.operations.get(*key) {
                        entry.queued = false;
                    }
                    self.movers.advance(link, *key, lane)
                }
                Queued::Stream(key) => {
                    let result = self.advance_stream(*key);
                    if matches!(result, Ok(Step::More | Step::Held) | Err(SendError::Full)) {
                        self.streams.mark_queued(*key);
                    }
                    result
                }
            };
            let is_paid = result.is_ok()
                && matches!(&front, Queued::Control { id, .. } if control::is_owed(*id));
            if !self.movers.ctx.advanced(link, front, lane, result) {
                return;
            }
            if is_paid {
                self.movers.ctx.pay(link);
            }
        }
        self.movers.ctx.runnable.push_back(link);
    }
}
