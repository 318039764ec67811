//! What goes out: the next step of each operation on the link it belongs to.
//!
//! # Safety
//! Zero-copy sends lend the link memory that the entry of the table owns. The entry stays until `Sink::sent` was called for it, or the link
//! is dropped (`Core::fail` drops the link before it touches the entries).
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::{
    error::{Error, ErrorKind, Result},
    memory::{Buffer, Segment},
    protocol::{
        control::{self, Rts},
        plan,
        window::eager_cost,
    },
    trace,
    transport::{Link, LinkAttributes, MAX_PREFIX, RawSlice, RemoteRange, SendError, Zcopy},
    types::{EndpointId, LinkId, OpKey, Tag},
    worker::{
        atomic::no_atomics,
        core::Core,
        list::{announce_list, list_fragment},
        metrics::Counted,
        one_sided::offer,
        operations::{self, Outcome, Outgoing, SendStage, Source, Work},
        peer::{OneCopy, Peer, Queued, at},
        pressure::is_bulk,
        queue::Lane,
        signal::{put_prefix, put_prefix_size},
    },
};

/// From this size on a payload is sent from where it is, if the link can.
pub(super) const ZCOPY_FROM: usize = 8 << 10;
/// Longest fragment: what a small message waits behind at most.
pub(super) const FRAGMENT: usize = 256 << 10;
/// Longest one that is copied: both ends copy at the same time, each another one.
const COPIED: usize = 32 << 10;
/// Bytes that one turn of a link's queue hands over, about: a peer that asks for a lot is answered between everything else.
const TURN: u64 = 512 << 10;
/// Fragments of one operation that a link may hold at a time.
pub(crate) const FRAGMENTS_IN_FLIGHT: u32 = 4;

/// How one step of an operation went.
pub(crate) enum Step {
    /// Nothing more to send for it.
    Sent,
    /// More to send, after others had their turn.
    More,
    /// Waits for an event; put in the queue again by it.
    Parked,
    /// Waits until the peer takes another announcement.
    Held,
}

/// A send of an eager message, tried at once: the hot path. `Err(None)`: it does not go this way. `data`: its `length` bytes, asked for when
/// there is room for them: the pieces of a list are put together then.
#[inline]
pub(crate) fn try_eager<'a>(
    peer: &mut Peer,
    tag: Tag,
    length: usize,
    data: impl FnOnce() -> &'a [u8],
) -> Result<(), Option<SendError>> {
    if !peer.queue.is_empty() || length > peer.eager {
        return Err(None);
    }
    if !peer.has_window(length) {
        // The window that comes back may be waiting to be read.
        return Err(Some(SendError::Full));
    }
    let Some(link) = peer.link.as_mut() else {
        return Err(None);
    };
    let data = data();
    if data.len() <= peer.short {
        link.am_short(control::TAG_EAGER, tag.0, data)?;
    } else if data.len() <= peer.eager.min(peer.attributes.max_bcopy)
        && (peer.attributes.max_zcopy == 0 || data.len() < ZCOPY_FROM || link.sends_in_place())
    {
        link.am_bcopy(control::TAG_EAGER, tag.0, &[], data)?;
    } else {
        return Err(None);
    }
    peer.take_window(data.len());
    trace::operation("tag send", data.len(), "eager");
    Ok(())
}

impl Core {
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

    /// Puts an operation in the queue of its link, and sends what can go.
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
        if peer.queue.is_empty() && peer.link.is_some() {
            // There is nothing to wait for.
            entry.queued = false;
            let result = self.advance(link, key, lane);
            let has_room = self.advanced(link, Queued::Operation(key), lane, result);
            let peer = self.peer(link);
            let is_idle = peer.is_some_and(|peer| peer.is_open() && peer.queue.is_empty());
            return match has_room && !is_idle {
                true => self.pump(link),
                false => self.tell_ready(link),
            };
        }
        peer.queue.push(lane, Queued::Operation(key));
        if peer.queue.active() == 1 {
            self.pump(link);
        }
    }

    /// Sends from the queue of a link until it is empty or there is no room.
    pub(crate) fn pump(&mut self, link: LinkId) {
        self.send_queued(link);
        self.tell_ready(link);
    }

    fn send_queued(&mut self, link: LinkId) {
        // Bounded: a transfer of gigabytes gives way to whatever else the worker has to do.
        self.effort = 0;
        let begun = self.sent_bytes(link);
        for _ in 0..64 {
            let sent = self.sent_bytes(link).wrapping_sub(begun);
            if sent.saturating_add(self.effort) > TURN {
                break;
            }
            let Some(peer) = self.peer(link) else { return };
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
                    if let Some(entry) = self.operations.get(*key) {
                        entry.queued = false;
                    }
                    self.advance(link, *key, lane)
                }
                Queued::Stream(key) => self.advance_stream(*key),
            };
            let is_paid = result.is_ok()
                && matches!(&front, Queued::Control { id, .. } if control::is_owed(*id));
            if !self.advanced(link, front, lane, result) {
                return;
            }
            if is_paid {
                self.pay(link);
            }
        }
        self.runnable.push_back(link);
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
            Queued::Stream(key) => {
                self.streams.mark_queued(*key);
                Some(Lane::Bulk)
            }
            Queued::Control { .. } => None,
        }
    }

    /// The next step of one operation.
    fn advance(&mut self, link_id: LinkId, key: OpKey, lane: Lane) -> Result<Step, SendError> {
        let Some(peer) = at(&mut self.peers, link_id) else {
            return Ok(Step::Sent);
        };
        let Some(entry) = self.operations.get(key) else {
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
            return self.advance_layout(link_id, key);
        }
        if matches!(entry.work, Work::Lent(_)) {
            return self.advance_lent(link_id, key);
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
                        let scheme = self.one_sided.scheme;
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
                                &mut self.scratch,
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
                            &mut self.scratch,
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
                    self.atomic_refused(key, no_atomics());
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
                    self.put_progress(key);
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

/// The bytes of a buffer that the host reaches.
#[inline]
pub(crate) fn host(buffer: &Buffer) -> &[u8] {
    buffer.as_slice().unwrap_or(&[])
}

pub(crate) fn fragment_size(attributes: &LinkAttributes, prefix: usize) -> usize {
    if attributes.max_zcopy > 0 {
        FRAGMENT.min(attributes.max_zcopy)
    } else {
        COPIED.min(attributes.max_bcopy - prefix)
    }
}

/// Sends one message by the way that suits its size.
///
/// # Safety
/// As [`Link::am_zcopy`] asks.
pub(crate) unsafe fn transmit(
    link: &mut Counted,
    attributes: &LinkAttributes,
    id: u8,
    header: u64,
    prefix: &[u8],
    data: &[u8],
    token: u64,
) -> Result<Zcopy, SendError> {
    if prefix.len() + data.len() <= attributes.max_bcopy
        && (attributes.max_zcopy == 0 || data.len() < ZCOPY_FROM || prefix.len() > MAX_PREFIX)
    {
        link.am_bcopy(id, header, prefix, data)
            .map(|()| Zcopy::Done)
    } else {
        let payload = RawSlice {
            address: data.as_ptr(),
            length: data.len(),
        };
        // SAFETY: the caller's promise.
        unsafe { link.am_zcopy(id, header, prefix, payload, token) }
    }
}

/// Sends the next fragment of a run of bytes.
fn fragment(
    link: &mut Counted,
    attributes: &LinkAttributes,
    out: &mut Outgoing,
    data: &[u8],
    key: OpKey,
    in_flight: &mut u32,
) -> Result<Step, SendError> {
    if *in_flight >= FRAGMENTS_IN_FLIGHT {
        return Ok(Step::Parked);
    }
    let end = data.len().min(out.next + fragment_size(attributes, 0));
    // SAFETY: `data` is owned by the entry `key`, which stays while `in_flight` counts this.
    let sent = unsafe {
        transmit(
            link,
            attributes,
            control::FRAGMENT,
            out.to,
            &[],
            &data[out.next..end],
            key.0,
        )
    }?;
    out.next = end;
    *in_flight += u32::from(sent == Zcopy::Pending);
    Ok(if end == data.len() {
        Step::Sent
    } else {
        Step::More
    })
}

/// Describes a message that is too long to send unasked, with every way in which the receiver may reach it.
fn announce(peer: &mut Peer, buffer: &Buffer, key: OpKey, slot: &mut Option<u32>) -> Rts {
    let mut rts = Rts {
        op: key.0,
        length: buffer.len() as u64,
        address: 0,
        segment: 0,
        segment_offset: 0,
        slot: control::NONE,
    };
    if buffer.is_on_device() {
        // In fragments; there is no table to read.
        rts.segment = control::TABLE;
        return rts;
    }
    if buffer.list().is_some() {
        announce_list(peer.one_copy.as_deref(), buffer, &mut rts);
        return rts;
    }
    rts.address = buffer.address() as u64;
    let Some(one_copy) = &mut peer.one_copy else {
        return rts;
    };
    if plan::counts(buffer.len()) {
        *slot = one_copy.pair.acquire();
        rts.slot = slot.unwrap_or(control::NONE);
        if let Some(link) = &mut peer.link
            && let Some(segment) = show(one_copy, &mut **link, buffer)
        {
            rts.segment = segment.id();
        }
    }
    rts
}

/// Lets the peer read the segment of a message's buffer, if it is nothing but the message: nobody writes it any more, and the peer cannot.
pub(crate) fn show<'a>(
    one_copy: &mut OneCopy,
    link: &mut dyn Link,
    buffer: &'a Buffer,
) -> Option<&'a Arc<Segment>> {
    let segment = buffer.whole_segment()?;
    (one_copy.has(segment)
        || one_copy.is_worth(segment) && segment.seal() && give(one_copy, link, segment))
    .then_some(segment)
}

/// Lends the peer the segment of a buffer that it is to write a message into, which it could do by the kernel as well: until the connection is over, or the
/// buffer is used with another. A segment is lent to one connection only.
pub(crate) fn lend(one_copy: &mut OneCopy, link: &mut dyn Link, segment: &Arc<Segment>) -> bool {
    if one_copy.has(segment) {
        return true;
    }
    one_copy.cma.is_some()
        && one_copy.is_worth(segment)
        && one_copy.lend(segment)
        && give(one_copy, link, segment)
}

/// Gives the peer a segment. Whether it will have it.
pub(crate) fn give(one_copy: &mut OneCopy, link: &mut dyn Link, segment: &Segment) -> bool {
    let length = segment.mapping().len() as u64;
    let is_given = link.share(segment.id(), segment.fd(), length).is_ok();
    if is_given {
        one_copy.set_given(segment);
    }
    is_given
}

/// An error for a send on a link that is gone.
#[cold]
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the endpoint is closed")
}
