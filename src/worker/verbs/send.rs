//! What goes out: the queue of a link, and the next step of each operation in it.
//!
//! # Safety
//! Zero-copy sends lend the link memory that the entry of the table owns. The entry stays until `Sink::sent` was called for it, or the link
//! is dropped (`Core::fail` drops the link before it touches the entries).
#![allow(unsafe_code)]

use crate::{
    config::RendezvousScheme,
    error::Result,
    memory::Buffer,
    protocol::{
        control::{self, Rts, Waits},
        window::eager_cost,
    },
    trace,
    transport::SendError,
    types::{EndpointId, LinkId, OpKey, Tag},
    worker::{
        atomic::no_atomics,
        core::Core,
        ctx::Ctx,
        movers::Movers,
        one_sided::{Offer, offer},
        operations::{self, Ended, Send, SendStage, Work},
        peer::{Peer, at},
        queue::{Class, Queued},
        send::{TURN, announce, closed, try_eager},
        step::{FRAGMENTS_IN_FLIGHT, Outlet, Step},
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
        match try_eager(peer, tag, data.len(), true, || data) {
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
        if entry.queued.is_some() {
            return;
        }
        let class = Class::of(entry.priority, is_bulk(entry));
        entry.queued = Some(class);
        let Some(peer) = at(&mut self.peers, link) else {
            return;
        };
        peer.queue.push(class, Queued::Operation(key));
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
        class: Class,
        result: Result<Step, SendError>,
    ) -> bool {
        let has_room = result.is_ok();
        match result {
            Ok(Step::Sent | Step::Parked) => {}
            Err(SendError::Failed(error)) => self.failures.push((link, error)),
            again => {
                let class = match again {
                    Ok(Step::Held) => Class::Held,
                    Ok(_) => self.next_class(&front).unwrap_or(class),
                    Err(_) => class,
                };
                if let Queued::Operation(key) = front
                    && let Some(entry) = self.operations.get(key)
                {
                    entry.queued = Some(class);
                }
                if let Some(peer) = self.peer(link) {
                    match has_room {
                        true => peer.queue.push(class, front),
                        false => peer.queue.put_back(class, front),
                    }
                }
            }
        }
        has_room
    }

    /// The class of its next step, where that may be another.
    fn next_class(&mut self, queued: &Queued) -> Option<Class> {
        match queued {
            Queued::Operation(key) => {
                let entry = self.operations.get(*key)?;
                Some(Class::of(entry.priority, is_bulk(entry)))
            }
            Queued::Stream(_) => Some(Class::Bulk),
            Queued::Control { .. } => None,
        }
    }

    /// Ends a put as far as it is done.
    pub(crate) fn put_progress(&mut self, key: OpKey) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        let Work::Put(put) = &mut *entry.work else {
            return;
        };
        if put.next < put.buffer.len() || entry.in_flight > 0 {
            return;
        }
        if put.acknowledged {
            self.finish(key, Ended::Done(Ok(())));
        } else if put.local && !entry.detached && entry.outcome.is_none() {
            entry.outcome = Some(Ended::Done(Ok(())));
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
            && let Some(ended) = entry.deferred.take()
        {
            self.finish(key, ended);
            return;
        }
        let more = match &*entry.work {
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
        if entry.queued.is_some() || !peer.queue.is_empty() || peer.link.is_none() {
            return self.ctx.submit(link, key);
        }
        let class = Class::of(entry.priority, is_bulk(entry));
        let result = self.advance(link, key, class);
        let has_room = self
            .ctx
            .advanced(link, Queued::Operation(key), class, result);
        let peer = self.ctx.peer(link);
        let is_idle = peer.is_some_and(|peer| peer.is_open() && peer.queue.is_empty());
        match has_room && !is_idle {
            true => self.ctx.submitted.push(link),
            false => self.ctx.tell_ready(link),
        }
    }

    /// The next step of one operation, whose connection has a link.
    fn advance(&mut self, link_id: LinkId, key: OpKey, class: Class) -> Result<Step, SendError> {
        let entry = self.ctx.operations.get(key);
        let going = entry.filter(|entry| entry.is_under_way());
        let Some(entry) = going else {
            // Ended, by a refusal for one, while it waited in the queue.
            return Ok(Step::Sent);
        };
        if entry.is_piped() {
            return self.advance_staged(link_id, key);
        }
        if entry.is_moved() {
            return self.advance_moves(link_id, key);
        }
        let Some(peer) = at(&mut self.ctx.peers, link_id) else {
            return Ok(Step::Sent);
        };
        let Some(link) = peer.link.as_mut() else {
            return Ok(Step::Parked);
        };
        let mut outlet = Outlet {
            link,
            attributes: peer.attributes,
            key,
            in_flight: &mut entry.in_flight,
            scratch: &mut self.ctx.scratch,
        };
        let step = match &mut *entry.work {
            Work::Send(send) => match &mut send.stage {
                SendStage::Queued => return self.begin_send(link_id, key, class),
                SendStage::Streaming(out) => outlet.fragment(out, &send.buffer)?,
                _ => return Ok(Step::Parked),
            },
            Work::Serve(serve) => {
                let step = serve.step(&mut outlet, &mut self.ctx.effort)?;
                if serve.answer.is_some() && matches!(step, Step::Sent) {
                    peer.requests().serving = peer.requests().serving.saturating_sub(1);
                }
                step
            }
            Work::Put(operations::Put {
                signal: Some(signal),
                signal_due: due @ true,
                ..
            }) => {
                peer.try_signal(signal)?;
                *due = false;
                Step::Sent
            }
            Work::Put(put) if put.announced && put.layout.is_some() => {
                return put.announce_blocks(&mut outlet, peer.requests.get_or_insert_default());
            }
            Work::Put(put) if put.announced => {
                return put.announce(&mut outlet, entry.unstaged);
            }
            Work::Put(put) => {
                let step = put.step(&mut outlet)?;
                if matches!(step, Step::Sent) {
                    self.ctx.put_progress(key);
                }
                return Ok(step);
            }
            Work::Get(get) if get.layout.is_some() => {
                return get.ask_blocks(&mut outlet, peer.requests.get_or_insert_default());
            }
            Work::Get(get) => return get.ask(&mut outlet),
            Work::Atomic(atomic) => {
                if !atomic.ask(&mut outlet)? {
                    self.ctx.atomic_refused(key, no_atomics());
                }
                return Ok(Step::Sent);
            }
            Work::Lent(_) => return self.ctx.advance_lent(link_id, key),
            _ => return Ok(Step::Sent),
        };
        if matches!(step, Step::Sent) {
            self.all_sent(link_id, key);
        }
        Ok(step)
    }

    /// All of an operation has left: of a lent message, too, that was asked for in fragments.
    fn all_sent(&mut self, link: LinkId, key: OpKey) {
        self.ctx.way_over(Some(link), key, true);
        self.finish(key, Ended::Done(Ok(())));
    }

    /// A send of which nothing has left goes unasked, or is announced.
    fn begin_send(&mut self, link: LinkId, key: OpKey, class: Class) -> Result<Step, SendError> {
        let (Some(peer), Some(entry)) =
            (at(&mut self.ctx.peers, link), self.ctx.operations.get(key))
        else {
            return Ok(Step::Sent);
        };
        let Work::Send(send) = &mut *entry.work else {
            return Ok(Step::Sent);
        };
        let is_tagged = send.am.is_none();
        // The room for an active message was taken when it was let go.
        let unasked = send.unasked(peer.eager, &peer.attributes).is_some()
            && (!is_tagged || peer.has_window(send.buffer.len()));
        if peer.reason.is_some() && (send.sync || !unasked) {
            // No receive will match it any more.
            let error = peer.error().unwrap_or_else(closed);
            self.finish(key, Ended::Done(Err(error)));
            return Ok(Step::Sent);
        }
        if is_tagged
            && (class != Class::Held && peer.queue.holds() || !unasked && !peer.may_announce())
        {
            return Ok(Step::Held);
        }
        let length = send.buffer.len();
        let may_lend = unasked && is_tagged && !send.sync && peer.reason.is_none();
        let is_lent = may_lend && peer.lends(length) && send.buffer.as_run().is_some();
        if !unasked || is_lent {
            if let Some(offer) = send.announce(peer, key, self.scheme, is_lent)? {
                self.offered(link, key, offer);
            }
        } else {
            let Some(link) = peer.link.as_mut() else {
                return Ok(Step::Parked);
            };
            let mut outlet = Outlet {
                link,
                attributes: peer.attributes,
                key,
                in_flight: &mut entry.in_flight,
                scratch: &mut self.ctx.scratch,
            };
            send.send_unasked(&mut outlet, peer.short)?;
            if is_tagged {
                peer.take_window(length);
                if !send.sync {
                    peer.left(length);
                }
            }
            if !send.sync {
                self.finish(key, Ended::Done(Ok(())));
            }
        }
        Ok(Step::Sent)
    }
}

impl Send {
    /// All of it leaves.
    fn send_unasked(&mut self, outlet: &mut Outlet<'_>, short: usize) -> Result<(), SendError> {
        let data = self.buffer.host();
        let op = outlet.key.0.to_le_bytes();
        let (id, prefix): (u8, &[u8]) = if let Some(header) = &self.am {
            (control::AM_EAGER, header.host())
        } else if self.sync {
            (control::TAG_EAGER_SYNC, &op)
        } else {
            (control::TAG_EAGER, &[])
        };
        if prefix.is_empty() && data.len() <= short {
            outlet.link.am_short(id, self.tag.0, data)?;
        } else {
            // SAFETY: the send's own, and the entry's with it.
            unsafe { outlet.transmit(id, self.tag.0, prefix, data) }?;
        }
        self.stage = SendStage::AwaitMatch;
        Ok(())
    }

    /// The receiver is told of it, and of every way in which it may reach the bytes.
    fn announce(
        &mut self,
        peer: &mut Peer,
        key: OpKey,
        scheme: RendezvousScheme,
        is_lent: bool,
    ) -> Result<Option<Offer>, SendError> {
        let mut rts = announce(peer, &self.buffer, key, &mut self.slot, is_lent);
        let Some(link) = peer.link.as_mut() else {
            return Err(SendError::Full);
        };
        let user = self.am.as_ref().map_or(&[][..], Buffer::host);
        let room = peer
            .attributes
            .max_bcopy
            .saturating_sub(Rts::SIZE + user.len());
        let offer = offer(&mut **link, &self.buffer, scheme, &mut rts, room);
        let keys = offer
            .as_ref()
            .map_or(&[][..], |offer| offer.announced(&rts));
        let (keys, length) = control::with_keys(&[], keys);
        let (rts, keys) = (rts.encode(), &keys[..length]);
        match self.am {
            Some(_) => {
                link.am_bcopy(control::AM_RTS, self.tag.0, &rts, &[keys, user].concat())?;
            }
            None if is_lent => link.am_short(control::TAG_LENT, self.tag.0, &rts)?,
            None if keys.is_empty() => link.am_short(control::TAG_RTS, self.tag.0, &rts)?,
            None => link.am_bcopy(control::TAG_RTS, self.tag.0, &rts, keys)?,
        }
        if is_lent {
            peer.lent(key, self.buffer.len());
        }
        self.stage = SendStage::Announced;
        peer.announced_out += usize::from(self.am.is_none());
        Ok(offer)
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
            let Some((class, front)) = peer.queue.pop(peer.may_announce()) else {
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
                        entry.queued = None;
                    }
                    self.movers.advance(link, *key, class)
                }
                Queued::Stream(key) => {
                    let result = self.advance_stream(*key);
                    if matches!(result, Ok(Step::More | Step::Held) | Err(SendError::Full)) {
                        self.streams.mark_queued(*key);
                    }
                    result
                }
            };
            let waited = match &front {
                Queued::Control { id, .. } if result.is_ok() => control::waits_as(*id),
                _ => Waits::Own,
            };
            if !self.movers.ctx.advanced(link, front, class, result) {
                return;
            }
            if waited != Waits::Own {
                self.movers.ctx.pay(link, waited);
            }
        }
        self.movers.ctx.runnable.push_back(link);
    }
}
