//! The way of a message to who polls for it at this moment: from where it lies in front of what arrives, past the queues.
//!
//! # Safety
//! What is taken in place is dropped before its interface: the text above these modules says why.
#![allow(unsafe_code)]

use crate::{
    protocol::{
        am, control,
        window::{Due, Terms, eager_cost},
    },
    transport::InPlace,
    types::{AmId, LinkId},
    worker::{
        direct::{FIRST_LOOKS, LOOKS, PASSES},
        engine::Engine,
        peer::at,
        violation::violation,
    },
};

use super::{Arrived, Awaited, Front, too_many};

/// Ends the look, also when something in a pass panics.
struct Looking<'a>(&'a mut Engine);

impl Drop for Looking<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.core.inboxes.awaited = None;
    }
}

impl Engine {
    /// Takes the next message of the link that brought the last one, if it is for this inbox and nothing comes before it: where it lies, past the
    /// queues. What is then to be given back to the peer is left to [`Engine::am_settle`]. `looks`: of [`Wanted`](crate::transport::Wanted).
    #[inline(always)]
    pub(crate) fn am_front(&mut self, id: AmId, serial: u64, looks: u32) -> Option<Front> {
        if self.is_armed() {
            return None;
        }
        let inbox = self.core.inboxes.own(id, serial)?;
        // Whoever left a waker looks by itself first.
        if !inbox.queue.is_empty() || !inbox.waker.is_empty() {
            return None;
        }
        let plenty = inbox.plenty;
        // SAFETY: module docs.
        let InPlace { from, header, held } = unsafe {
            self.take_in_place(
                control::AM_EAGER,
                am::word(id, 0),
                am::word(AmId(u16::MAX), 0),
                looks,
            )
        }?;
        let peer = at(&mut self.core.movers.ctx.peers, from)?;
        let inbound = peer.am.inbound(id);
        if !inbound.bytes.pass(eager_cost(held.length())) {
            self.core.movers.ctx.exceeded(from);
            return None;
        }
        if !inbound.window.pass(1) {
            self.core.movers.ctx.broken(from, too_many());
            return None;
        }
        let header = am::header(header);
        if header > am::MAX_HEADER.min(held.length()) {
            let text = "an active message is shorter than its header";
            self.core.movers.ctx.broken(from, violation(text));
            return None;
        }
        let owes = inbound.is_new
            || !inbound.window.has_more_than(plenty)
            || !inbound
                .bytes
                .has_more_than(const { Terms::ACTIVE.plenty() });
        Some(Front {
            link: from,
            from: peer.id,
            header: header as u16,
            held,
            owes,
        })
    }

    /// What follows [`Engine::am_front`] for a message that [owes](Front::owes) something.
    #[cold]
    pub(crate) fn am_settle(&mut self, link: LinkId, id: AmId) {
        let Some(capacity) = self.core.inboxes.capacity(id) else {
            return;
        };
        let peer = at(&mut self.core.movers.ctx.peers, link);
        let Some(inbound) = peer.and_then(|peer| peer.am.inbound_of(id)) else {
            return;
        };
        let messages = match inbound.is_new {
            false => inbound.window.due(&Terms::messages(capacity)),
            true => Due::Now,
        };
        let bytes = inbound.bytes.due(&Terms::ACTIVE);
        self.core
            .movers
            .ctx
            .give_active(link, id, capacity, (messages, bytes));
    }

    /// The next message: one that waits, or one that arrives while this looks, for the length of one lap: at what is likeliest, and in fewer passes at
    /// everything.
    #[inline(always)]
    pub(crate) fn am_now(&mut self, id: AmId, serial: u64, keeps: bool) -> Option<Arrived> {
        let mut waited = false;
        let mut arrived = None;
        for _ in 0..PASSES {
            let looks = if waited { LOOKS } else { 0 };
            if let Some(front) = self.am_front(id, serial, looks) {
                if front.owes {
                    self.am_settle(front.link, id);
                }
                arrived = Some(front.arrived());
                break;
            }
            arrived = self.am_try(id, serial, keeps);
            if arrived.is_some() || self.core.inboxes.has_held() {
                break;
            }
            waited = true;
        }
        if arrived.is_none() {
            self.first_looks = 0;
        } else if waited {
            self.late += 1;
            self.first_looks = FIRST_LOOKS;
        }
        arrived
    }

    /// One that waits, or one that a single pass brings.
    #[inline(never)]
    pub(crate) fn am_try(&mut self, id: AmId, serial: u64, keeps: bool) -> Option<Arrived> {
        let inbox = self.core.inboxes.own(id, serial)?;
        if !inbox.queue.is_empty() {
            return self.core.am_take(id, serial);
        }
        inbox.running = false;
        // Its own progress must not wake it.
        let waker = inbox.waker.take();
        self.core.inboxes.awaited = Some(Awaited {
            id,
            capacity: inbox.capacity,
            keeps,
            arrived: None,
        });
        self.core.movers.ctx.drop_later(waker);
        let lent = Looking(self);
        lent.0.progress();
        match &mut lent.0.core.inboxes.awaited {
            Some(awaited) => awaited.arrived.take(),
            None => lent.0.core.am_take(id, serial),
        }
    }

    /// The next message for a callback, which runs on while there are some: one that waits, or one that is there where the last one came from.
    pub(crate) fn am_next(&mut self, id: AmId, serial: u64) -> Option<Arrived> {
        let inbox = self.core.inboxes.own(id, serial)?;
        if inbox.queue.is_empty() {
            // It runs: what comes now stays in place for it, and wakes nobody.
            self.glance();
        }
        self.core.am_take(id, serial)
    }
}
