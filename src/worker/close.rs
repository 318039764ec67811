//! How connections and workers end.
//!
//! ```text
//! one closes:  its operations end, CLOSE 0 ──▶ the other's operations end, CLOSE 1 ──▶ it hangs up ──▶ the other is over
//! both close:  CLOSE 0 ⇄ CLOSE 0,  CLOSE 1 ⇄ CLOSE 1: who has it hangs up
//! ```
//!
//! Before `CLOSE 0` the rest of a goodbye may go in as many `CLOSE 2` as it needs. Who aborts says `CLOSE 3` where there is room, and hangs up.
//!
//! `CLOSE 0` says that nothing new follows; `CLOSE 1`, that everything before the other's `CLOSE 0` has been read. Whoever hangs up has it, so
//! that nothing is left under way in either direction. Between the two a peer's puts and gets are still served, and its short messages
//! delivered; messages that it has announced and that nobody has matched end at their sender.

use std::task::{Context as TaskContext, Poll};

use crate::{
    error::{CloseReason, Error, ErrorKind, Result},
    protocol::{
        control,
        goodbye::{self, Leaves},
    },
    types::{EndpointId, LinkId},
    worker::{
        core::Core,
        ctx::Ctx,
        engine::Engine,
        operations::{RecvStage, Work},
        peer::{Status, at},
        shared::Shared,
        violation::violation,
    },
};

impl Shared {
    /// Ready when a connection is over.
    pub(in crate::worker) fn poll_closed(
        &self,
        cx: &mut TaskContext<'_>,
        link: LinkId,
        id: EndpointId,
        ticket: &mut Option<u64>,
    ) -> Poll<Option<Error>> {
        self.with(|engine| {
            engine.progress();
            match engine.core.movers.ctx.endpoint(link, id) {
                None => Poll::Ready(None),
                Some(peer) => match &peer.status {
                    Status::Closed(error) => Poll::Ready(Some(error.clone())),
                    _ => {
                        peer.ending.leave(ticket, cx.waker());
                        Poll::Pending
                    }
                },
            }
        })
    }
}

impl Engine {
    /// Begins to close an endpoint: `CLOSE` goes out once its operations have ended.
    pub(crate) fn begin_close(
        &mut self,
        link: LinkId,
        id: EndpointId,
        leaves: Leaves,
        reason: Option<CloseReason>,
    ) {
        if let Some(peer) = self.core.movers.ctx.endpoint(link, id)
            && matches!(peer.status, Status::Open)
        {
            self.core.begin_close(link, leaves, reason);
        }
    }

    /// Ends a connection at once.
    pub(crate) fn abort(&mut self, link: LinkId, id: EndpointId, error: Error) {
        if let Some(peer) = self.core.movers.ctx.endpoint(link, id) {
            if let Some(link) = &mut peer.link {
                // Where there is no room for it the peer finds the link gone, and knows no more.
                let _ = link.am_short(control::CLOSE, 3, &[]);
            }
            self.fail(link, error);
        }
    }
}

/// Why operations end that this side closes under.
fn closed(reason: Option<CloseReason>) -> Error {
    let closed = Error::new(ErrorKind::Closed, "the endpoint was closed");
    match reason {
        Some(reason) => closed.with_source(reason),
        None => closed,
    }
}

impl Ctx {
    /// The peer begins nothing more and matches nothing more.
    fn peer_closes(&mut self, link: LinkId, reason: Error) {
        let Some(peer) = at(&mut self.peers, link) else {
            return;
        };
        let reason = reason
            .with_peer(&peer.info.name)
            .over(peer.attributes.transport);
        peer.status = Status::Closing { sent: false };
        peer.reason = Some(reason.clone());
        peer.ready.take(&mut self.wakes);
        self.end_unmatched(link, &reason);
        self.runnable.push_back(link);
    }

    /// The peer says that it closes (0) and why (2), that it has read this side's word of it (1), or that it breaks off (3).
    pub(crate) fn close_received(&mut self, link: LinkId, answer: u64, body: &[u8]) -> Result<()> {
        let Some(peer) = self.peer(link) else {
            return Ok(());
        };
        let said = matches!(peer.status, Status::Closing { sent: true });
        if answer == 2 || !body.is_empty() {
            let heard = &mut peer.odd.get_or_insert_default().heard;
            if heard.len() + body.len() > goodbye::LONGEST || peer.reason.is_some() {
                return Err(violation("a goodbye that is too long, or a second one"));
            }
            heard.extend_from_slice(body);
        }
        match (answer, said) {
            (0, _) if peer.reason.is_none() => {
                let heard = peer.odd.as_mut().map(|odd| std::mem::take(&mut odd.heard));
                let gone = goodbye::error_of(&heard.unwrap_or_default())?;
                if said {
                    // Both at once: by this side, whatever the peer did at the same time.
                    let reason = closed(gone.close_reason().cloned())
                        .with_peer(&peer.info.name)
                        .over(peer.attributes.transport);
                    peer.reason = Some(reason);
                    self.control(link, control::CLOSE, 1, &[]);
                } else {
                    self.peer_closes(link, gone);
                }
            }
            (1, true) => {
                let reason = peer.reason.clone().unwrap_or_else(|| closed(None));
                self.failures.push((link, reason));
            }
            (2, _) => {}
            (3, _) => {
                let text = "the peer aborted the connection";
                let aborted = Error::new(ErrorKind::AbortedByPeer, text);
                self.failures.push((link, aborted));
            }
            _ => {
                return Err(violation("a close that answers none, or a second one"));
            }
        }
        Ok(())
    }
}

impl Core {
    /// Closes an open connection from this side.
    pub(crate) fn begin_close(
        &mut self,
        link: LinkId,
        leaves: Leaves,
        reason: Option<CloseReason>,
    ) {
        let Some(peer) = at(&mut self.movers.ctx.peers, link) else {
            return;
        };
        peer.status = Status::Closing { sent: false };
        peer.ready.take(&mut self.movers.ctx.wakes);
        if peer.is_own() {
            // Both ends close at once, and nobody is left to match what is announced.
            self.movers.ctx.peer_closes(link, closed(reason));
            self.forget_announced(link);
        } else {
            let said = goodbye::encode(leaves, reason.as_ref());
            if !said.is_empty() {
                peer.odd.get_or_insert_default().goodbye = said;
            }
        }
        self.close_writes(link);
        self.close_step(link);
    }

    /// A closing endpoint says so once nothing is left to send.
    pub(crate) fn close_step(&mut self, link: LinkId) {
        let Some(peer) = at(&mut self.movers.ctx.peers, link) else {
            return;
        };
        if !matches!(peer.status, Status::Closing { sent: false }) || !peer.queue.is_empty() {
            return;
        }
        let reader_gone = peer.reason.is_some();
        let busy = self.movers.ctx.operations.of_link(link).any(|(_, entry)| {
            // Devices' rails are not ordered with this message.
            (entry.outcome.is_none() || entry.copies > 0 || entry.is_with_devices())
                && match &*entry.work {
                    Work::Send(_)
                    | Work::Put(_)
                    | Work::Get(_)
                    | Work::Atomic(_)
                    | Work::Serve(_)
                    | Work::Fill(_)
                    | Work::Lent(_)
                    | Work::ClaimLanding { .. }
                    | Work::Help { .. } => true,
                    Work::Write(_) => !reader_gone,
                    // Matched: its sender may end what it announced when it hears of the close.
                    Work::Recv(recv) => {
                        matches!(
                            recv.stage,
                            RecvStage::Landing { .. } | RecvStage::Copying | RecvStage::Shared(_)
                        )
                    }
                    _ => false,
                }
        });
        // What a stream has left is void once its reader has gone.
        if busy || !reader_gone && self.has_unsent(link) {
            return;
        }
        self.take_in_lent_of(link);
        let Some(peer) = self.movers.ctx.peer(link) else {
            return;
        };
        peer.status = Status::Closing { sent: true };
        let answer = u64::from(peer.reason.is_some());
        let odd = peer.odd.as_mut().filter(|_| !reader_gone);
        let said = odd.map_or_else(Vec::new, |odd| std::mem::take(&mut odd.goodbye));
        let mut rest = &said[..];
        while let Some((part, more)) = rest
            .split_at_checked(control::BODY)
            .filter(|(_, more)| !more.is_empty())
        {
            self.movers.ctx.control(link, control::CLOSE, 2, part);
            rest = more;
        }
        self.movers.ctx.control(link, control::CLOSE, answer, rest);
        self.forget_announced(link);
    }

    /// Ends all operations that belong to no connection.
    pub(crate) fn end_all(&mut self, error: &Error) {
        let operations = self.movers.ctx.operations.iter();
        let all = operations.filter(|(_, entry)| {
            matches!(
                *entry.work,
                Work::Recv(_) | Work::Claim(_) | Work::Copy(_) | Work::Flush
            )
        });
        for key in Vec::from_iter(all.map(|(key, _)| key)) {
            if !self.is_over(key) {
                self.fail_operation(key, error.clone());
            }
        }
        self.fail_receives(error);
        self.movers.ctx.wakes.append(&mut self.movers.ctx.arrivals);
        self.wake_who_looks();
    }

    /// The worker is being shut down: who waits for an active message or a counter has that from here on, and is told so at once. The stop may be long in
    /// coming, and comes not at all before the last handle goes when the shut-down's future was dropped.
    pub(crate) fn wake_who_looks(&mut self) {
        self.am_end();
        self.movers
            .ctx
            .regions
            .take_waiters(&mut self.movers.ctx.wakes);
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        error::{Error, ErrorKind},
        protocol::control,
        transport::Sink,
        types::Priority,
        worker::{
            fence::tests::{post_receives, put, target},
            inbox::tests::{LINK, core},
            operations::Work,
        },
    };

    /// A connection that closes, or ends, costs what it has itself.
    #[test]
    fn a_connection_that_ends_looks_at_its_own_operations() {
        let (mut core, _) = core();
        post_receives(&mut core, 100_000);
        let normal = (Priority::Normal, false);
        let keys = [(); 3].map(|()| {
            core.movers
                .start_run(LINK, target(false), Work::Put(put(8)), normal, None)
        });
        core.message(LINK, control::CLOSE, 0, &[]).expect("a close");
        for key in &keys[1..] {
            core.message(LINK, control::DONE, key.0, &[])
                .expect("an answer");
            while core.movers.ctx.runnable.pop_front().is_some() {
                core.pump(LINK);
            }
        }
        core.fail(LINK, Error::new(ErrorKind::ConnectionReset, "gone"));
        for key in keys {
            assert!(core.take_outcome(key).is_some());
        }
        let looked_at = core.movers.ctx.operations.looked_at();
        assert!((3..50).contains(&looked_at), "{looked_at} of 100,003");
    }
}
