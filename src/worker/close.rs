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
//!
//! A peer may do neither: who holds the connection aborts it then, and one that nobody holds is cut a minute after its `CLOSE 0`. Where the peer is served
//! meanwhile, or does not take what is to go before `CLOSE 0`, it has an hour for that; what the program still waits for is not given up.

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
        movers::Errand,
        operations::{RecvStage, Work},
        peer::{Farewell, Status, at},
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
                        let before = peer.ending.leave(ticket, cx.waker());
                        engine.ctx().drop_later(before);
                        Poll::Pending
                    }
                },
            }
        })
    }
}

/// What a peer has to end a connection, where it puts or gets at length or takes what is to go first. A program that computes may leave its worker alone
/// for long, and what it was sent is not to be lost.
const MINUTES: u8 = 60;

/// Passes for what came while this side did not look.
const BACKLOG: usize = 1000;

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

    /// Whether a peer that was to end a connection, and has had a minute more for it, has no other: the connection is cut then.
    /// `said`: by then, `CLOSE` had gone.
    pub(in crate::worker) fn overstays(
        &mut self,
        link: LinkId,
        id: EndpointId,
        said: bool,
    ) -> bool {
        // This side may have computed as long: what has come by now counts.
        for _ in 0..BACKLOG {
            if self.progress() == 0 {
                break;
            }
        }
        let (mut is_served, mut is_awaited) = (false, false);
        for (_, entry) in self.core.movers.ctx.operations.of_link(link) {
            // Parts of a transfer of device memory are their transfer's.
            let is_part = entry
                .staged
                .as_deref()
                .is_some_and(|staged| staged.parent.is_some());
            is_awaited |= !entry.detached && entry.is_under_way() && !is_part;
            is_served |= matches!(
                *entry.work,
                Work::PutIn(_) | Work::Serve(_) | Work::Fill(_) | Work::Lent(_) | Work::Help { .. }
            );
        }
        let Some(peer) = self.core.movers.ctx.endpoint(link, id) else {
            return true;
        };
        let odd = peer.odd.get_or_insert_default();
        if peer.handles > 0 {
            // Somebody has it again, until the next drop.
            odd.seen_off = None;
            return true;
        }
        let is_closing = matches!(peer.status, Status::Closing { .. });
        let Some(farewell) = odd
            .seen_off
            .as_mut()
            .filter(|farewell| is_closing && farewell.said == said)
        else {
            return true;
        };
        if !said && is_awaited {
            return false;
        }
        farewell.minutes += 1;
        if (is_served || !said) && farewell.minutes < MINUTES {
            return false;
        }
        let text = match said {
            true => "the peer did not hang up after the connection was closed",
            false => "the peer did not take what was sent before the connection was closed",
        };
        tracing::debug!(target: "wharf::endpoint", parent: peer.span(), peer = %peer.info.name, "{text}: the connection is cut");
        self.fail(link, Error::new(ErrorKind::DeadlineExceeded, text));
        true
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
        self.see_off(link);
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
        self.see_off(link);
    }

    /// A connection that closes is left to the peer. Where nobody holds it, nobody could abort it either.
    pub(crate) fn see_off(&mut self, link: LinkId) {
        let Some(peer) = at(&mut self.movers.ctx.peers, link) else {
            return;
        };
        let Status::Closing { sent: said } = peer.status else {
            return;
        };
        if peer.handles > 0 {
            return;
        }
        let seen_off = &mut peer.odd.get_or_insert_default().seen_off;
        if seen_off
            .as_ref()
            .is_none_or(|farewell| farewell.said != said)
        {
            *seen_off = Some(Farewell { minutes: 0, said });
            let id = peer.id;
            self.movers.errand(Errand::SeeOff(link, id, said));
        }
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
        let ctx = &mut self.movers.ctx;
        for waiters in ctx.arrivals.values_mut() {
            waiters.take(&mut ctx.wakes);
        }
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
    use std::{sync::atomic::Ordering::Relaxed, time::Duration};

    use crate::{
        error::{Error, ErrorKind},
        memory::BufferMut,
        protocol::{control, goodbye::Leaves},
        transport::Sink,
        types::{Access, Priority},
        util::testing::run,
        worker::{
            Handle,
            engine::Engine,
            fence::tests::{post_receives, put, target},
            inbox::tests::{LINK, core},
            operations::Work,
            pair::Pair,
            peer::Status,
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

    /// Has a worker stand still, its connections open.
    fn stand_still(worker: &Handle) {
        worker.shared.stopping.store(true, Relaxed);
        worker.shared.wake_reactor();
    }

    /// Until a connection is over and forgotten, in virtual time.
    async fn until_over(pair: &Pair) {
        while pair.here.shared.metrics().held.connections > 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Two workers in virtual time, of which the one has let go of the connection and the other stands still.
    async fn released() -> Pair {
        let pair = Pair::new().await;
        stand_still(&pair.there);
        tokio::time::pause();
        pair.here.shared.release_endpoint(pair.link, pair.endpoint);
        pair
    }

    /// A connection that nobody holds ends, whatever its peer does.
    #[test]
    fn a_peer_that_does_not_answer_a_close_is_cut_off() {
        run(async {
            let pair = released().await;
            until_over(&pair).await;
        });
    }

    /// A peer has begun to close a connection, has its answer, and does not hang up.
    async fn does_not_hang_up(is_held: bool) {
        let pair = Pair::new().await;
        let (here, there) = (&pair.here.shared, &pair.there.shared);
        stand_still(&pair.there);
        tokio::time::pause();
        if !is_held {
            here.with(|engine| engine.ctx().peer(pair.link).expect("there").handles = 0);
        }
        there.with(|engine| {
            let link = engine.ctx().connections().next().expect("accepted").slot;
            engine.core.begin_close(link, Leaves::Dropped, None);
        });
        if is_held {
            let is_answered = || {
                here.with(|engine| {
                    let peer = engine.ctx().peer(pair.link).expect("held");
                    matches!(peer.status, Status::Closing { sent: true })
                })
            };
            while !is_answered() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            here.release_endpoint(pair.link, pair.endpoint);
        }
        until_over(&pair).await;
    }

    #[test]
    fn a_peer_that_does_not_hang_up_is_cut_off() {
        run(does_not_hang_up(true));
    }

    /// As a connection to a worker's address may be.
    #[test]
    fn so_it_is_where_nobody_had_the_connection() {
        run(does_not_hang_up(false));
    }

    /// A peer that puts or gets at length is served for longer than that, though not for ever.
    #[test]
    fn a_peer_that_is_served_has_longer() {
        run(async {
            let pair = released().await;
            let shared = &pair.here.shared;
            let regions = shared.with(|engine| engine.ctx().regions.clone());
            let region = regions.expose(BufferMut::from(vec![0; 8]), Access::WRITE);
            let _exposed = region.expect("exposed").exposed().clone();
            shared.with(|engine| {
                let help = Work::Help { _exposed };
                let served = engine.ctx().operations.insert(Some(pair.link), true, help);
                let mut overstays = || engine.overstays(pair.link, pair.endpoint, true);
                assert!(!overstays(), "it is served");
                drop(engine.ctx().operations.take_work(served));
                assert!(engine.overstays(pair.link, pair.endpoint, true));
            });
            assert_eq!(shared.metrics().held.connections, 0);
        });
    }

    /// A peer that does not take what is to go before the close has an hour, unless the program itself waits for that.
    #[test]
    fn a_peer_that_takes_nothing_is_cut_off() {
        run(async {
            let pair = Pair::new().await;
            let shared = &pair.here.shared;
            tokio::time::pause();
            let begin = |engine: &mut Engine, detached| {
                let operations = &mut engine.ctx().operations;
                operations.insert(Some(pair.link), detached, Work::Put(put(8)))
            };
            let awaited = shared.with(|engine| {
                begin(engine, true);
                begin(engine, false)
            });
            shared.release_endpoint(pair.link, pair.endpoint);
            shared.with(|engine| {
                let peer = engine.ctx().peer(pair.link).expect("there");
                assert!(matches!(peer.status, Status::Closing { sent: false }));
                let mut overstays = || engine.overstays(pair.link, pair.endpoint, false);
                assert!(!(0..200).any(|_| overstays()), "the program waits");
                engine
                    .ctx()
                    .operations
                    .get(awaited)
                    .expect("there")
                    .detached = true;
                let mut overstays = || engine.overstays(pair.link, pair.endpoint, false);
                assert_eq!((1..200).find(|_| overstays()), Some(60), "minutes");
            });
            assert_eq!(shared.metrics().held.connections, 0);
        });
    }

    /// Who has it again meanwhile keeps it.
    #[test]
    fn who_holds_a_connection_that_closes_keeps_it() {
        run(async {
            let pair = released().await;
            let shared = &pair.here.shared;
            shared.with(|engine| engine.ctx().peer(pair.link).expect("there").handles = 1);
            tokio::time::sleep(Duration::from_secs(90)).await;
            assert_eq!(shared.metrics().held.connections, 1);
            shared.release_endpoint(pair.link, pair.endpoint);
            assert!(shared.with(|engine| {
                let peer = engine.ctx().peer(pair.link).expect("there");
                peer.odd.as_ref().is_some_and(|odd| odd.seen_off.is_some())
            }));
        });
    }
}
