//! The state that messages act on: connections, operations, matching. No fd, no clock, no runtime: what arrives comes in through
//! [`Sink`](crate::transport::Sink) (`deliver.rs`), what goes out leaves through links (`send.rs`), who waits is woken by the caller after
//! it has let go of the lock.

use std::{collections::HashMap, sync::Arc};

use crate::{
    config::RendezvousThreshold,
    error::{Error, ErrorKind},
    memory::region::RegionTable,
    protocol::{
        control,
        matching::{Arrival as Order, Name, PostId, PostedQueue, UnexpectedQueue},
    },
    types::{LinkId, OpKey},
    worker::{
        ctx::{Ctx, Event},
        direct::Direct,
        inbox::Inboxes,
        movers::Movers,
        operations::{self, Body, Ended, Outcome, RecvStage, SendStage, Unexpected, Work},
        peer::at,
        receive::Posted,
        stream::Streams,
    },
};

pub(crate) struct Core {
    pub(crate) movers: Movers,
    pub(crate) posted: PostedQueue<Posted>,
    /// What waits for a message of one peer, in one order with those that take one of any.
    pub(in crate::worker) of_peer: HashMap<LinkId, PostedQueue<OpKey>>,
    /// Stands for them in front of the others: [`ASIDE`](crate::worker::receive::ASIDE).
    pub(in crate::worker) aside: Option<PostId>,
    /// Receives in `posted` that are not in the table.
    pub(crate) receives: usize,
    pub(crate) unexpected: UnexpectedQueue<Unexpected>,
    pub(crate) direct: Option<Direct>,
    pub(crate) streams: Streams,
    pub(crate) inboxes: Inboxes,
    /// What was noted is being followed.
    acts: bool,
}

impl Core {
    pub(crate) fn new(
        regions: Arc<RegionTable>,
        rendezvous_threshold: RendezvousThreshold,
    ) -> Self {
        Self {
            movers: Movers::new(Ctx::new(regions, rendezvous_threshold)),
            posted: PostedQueue::default(),
            of_peer: HashMap::new(),
            aside: None,
            receives: 0,
            unexpected: UnexpectedQueue::default(),
            direct: None,
            streams: Streams::default(),
            inboxes: Inboxes::default(),
            acts: false,
        }
    }

    /// What follows, where it failed or has a receive.
    fn arrived(&mut self, key: OpKey, ended: Ended) {
        // One that has an outcome was there before it could fail.
        let entry = self.movers.ctx.operations.get(key);
        let Some(entry) = entry.filter(|entry| entry.outcome.is_none()) else {
            return;
        };
        let successor = entry.successor.take();
        let failure = ended.error().cloned();
        if failure.is_none() && successor.is_none() {
            entry.outcome = Some(ended);
            return;
        }
        let Some(mut entry) = self.movers.ctx.operations.remove(key) else {
            return;
        };
        self.take_named(Name::Arriving(key));
        let message = self.movers.ctx.message_of(&mut entry, ended);
        match (message, successor, failure) {
            (Some((order, message)), Some(successor), _) => {
                self.movers.hand_over(*successor, order, message);
            }
            (None, Some(successor), Some(error)) => self.fail_operation(*successor, error),
            _ => {}
        }
        self.movers.ctx.defer_drop_entry(entry);
    }

    /// Whether a message is here, or may still come.
    fn comes(&mut self, message: &Unexpected) -> bool {
        let ctx = &mut self.movers.ctx;
        let peer = ctx.endpoint(message.link, message.from);
        match &message.body {
            Body::Announced(_) => peer.is_some_and(|peer| peer.matches_announced()),
            Body::Arriving { op, .. } => {
                let is_alive = peer.is_some_and(|peer| peer.is_alive());
                ctx.operations.get(*op).is_some_and(|entry| {
                    // What is deferred until the link has written all of it comes to nothing without the link.
                    let deferred = entry.deferred.as_ref();
                    let deferred = deferred.filter(|_| is_alive || entry.in_flight == 0);
                    let ended = entry.outcome.as_ref().or(deferred);
                    ended.map_or(is_alive, |ended| ended.error().is_none())
                })
            }
            Body::Inline { .. } | Body::Whole { .. } => true,
        }
    }

    /// Puts a message back where it was; somebody may be waiting for it.
    pub(crate) fn restore(&mut self, order: Order, message: Unexpected) {
        if !self.comes(&message) {
            // Its bytes went with its sender.
            return;
        }
        if let Some(key) = self.match_posted(message.link, message.tag) {
            self.movers.hand_over(key, order, message);
        } else {
            self.return_unexpected(order, message);
        }
    }

    pub(crate) fn fail_operation(&mut self, key: OpKey, error: Error) {
        self.unpost(key);
        self.movers.fail_operation(key, error);
        self.act();
    }

    pub(crate) fn finish(&mut self, key: OpKey, ended: Ended) {
        self.movers.finish(key, ended);
        self.act();
    }

    /// Follows what parts of the machine have noted for those above them. Every entrance into the machine ends with it.
    #[inline]
    pub(crate) fn act(&mut self) {
        if self.movers.ctx.is_eventful() && !self.acts {
            self.act_on_events();
        }
    }

    #[inline(never)]
    fn act_on_events(&mut self) {
        // What one of them leads to comes after those that are noted.
        self.acts = true;
        loop {
            if let Some(event) = self.movers.ctx.events.pop_front() {
                self.act_on(event);
            } else if let Some(link) = self.movers.ctx.submitted.pop() {
                self.pump(link);
            } else {
                break;
            }
        }
        self.acts = false;
    }

    fn act_on(&mut self, event: Event) {
        match event {
            Event::Returned(order, message) => self.restore(order, message),
            Event::Arrived(key, ended) => self.arrived(key, ended),
            Event::Staged(key, ended) => self.movers.finish(key, ended),
            Event::Failed(key, error) => self.fail_operation(key, error),
            Event::Loaded(stream, key) => self.stream_write_ready(stream, key),
            Event::Unwritten(stream, error) => self.stream_write_failed(stream, &error),
        }
    }

    /// Takes what a future came for. The entry goes, but for a put whose source is free and whose acknowledgement is not here.
    pub(crate) fn take_outcome(&mut self, key: OpKey) -> Option<Outcome> {
        if key.as_posted().is_some() {
            return self.take_received(key);
        }
        let entry = self.movers.ctx.operations.get(key)?;
        let ended = entry.outcome.take()?;
        let outcome = entry.settle(ended);
        if matches!(&*entry.work, Work::Put(put) if put.local && !put.acknowledged)
            && matches!(outcome, Outcome::Done(Ok(())))
        {
            entry.detached = true;
            return Some(outcome);
        }
        if let Some(entry) = self.movers.ctx.operations.remove(key) {
            self.movers.ctx.release(entry.link, &entry.work);
            self.movers.ctx.defer_drop_entry(entry);
        }
        Some(outcome)
    }

    /// Ends a connection: every operation on it ends with `error`. The caller has taken the link out of its interface.
    pub(crate) fn fail(&mut self, link: LinkId, error: Error) {
        let ctx = &mut self.movers.ctx;
        let Some(peer) = at(&mut ctx.peers, link).filter(|peer| peer.is_alive()) else {
            return;
        };
        let error = peer.end(error);
        let account = peer.account.take();
        peer.ending.take(&mut ctx.wakes);
        peer.ready.take(&mut ctx.wakes);
        let worker = peer.worker;
        ctx.wake_arrivals(worker);
        self.movers.revoke_all(link);
        self.movers.ctx.operations.epochs.close(link);
        for key in self.movers.ctx.operations.keys_of_link(link) {
            self.end_with_link(key, &error);
        }
        self.end_streams(link, &error);
        self.forget_announced_of(link, account);
        if let Some(account) = account {
            if matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Exhausted) {
                self.forget_all_of(account);
            }
            self.movers.ctx.forgive(link, account);
            self.movers.ctx.ledger.close(account);
        }
        if let Some(peer) = at(&mut self.movers.ctx.peers, link) {
            let (one_copy, handles) = (peer.one_copy.take(), peer.handles);
            // Who takes back later what is exposed here waits for it.
            if let Some(one_copy) = one_copy
                && one_copy.pair.has_let()
            {
                if !one_copy.pair.is_peer_outside() {
                    self.movers.linger_in_exposed(one_copy.pair);
                }
                self.movers.ctx.look_at_counters();
            }
            if handles == 0 {
                // Nobody will ask for the reason.
                self.forget(link);
            }
        }
        self.act();
    }

    /// An operation of a connection that has ended with `error`.
    fn end_with_link(&mut self, key: OpKey, error: &Error) {
        if let Some(error) = self.movers.ctx.moves_failed(key) {
            // It had ended before the link, but for what else was under way.
            return self.fail_operation(key, error);
        }
        let Some(entry) = self.movers.ctx.operations.get(key) else {
            return;
        };
        entry.copies = 0;
        // Bytes that were counted when they were given a place have not come.
        let is_partial = entry.in_flight > 0 && entry.takes_bytes();
        // The link is dropped and the interface has let go: the memory is ours.
        entry.in_flight = 0;
        if let Some(ended) = entry.deferred.take() {
            let ended = match is_partial && ended.error().is_none() {
                true => Ended::Done(Err(error.clone())),
                false => ended,
            };
            return self.finish(key, ended);
        }
        match &mut *entry.work {
            Work::Serve(_) | Work::Fill(_) | Work::Write(_) | Work::Lent(_)
                if entry.staged.is_some() =>
            {
                self.finish(key, Ended::Done(Err(error.clone())));
            }
            Work::Serve(_)
            | Work::PutIn(_)
            | Work::Help { .. }
            | Work::AmLanding { .. }
            | Work::StreamIn(_) => {
                if let Some(entry) = self.movers.ctx.operations.remove(key) {
                    self.movers.ctx.served(&entry.work);
                    self.movers.ctx.defer_drop_entry(entry);
                }
            }
            // A flush says how operations ended, and they end here.
            Work::Flush => self.finish(key, Ended::Done(Err(error.clone()))),
            // No acknowledgement will come for a put that was complete here.
            Work::Put(put) if entry.outcome.is_some() => put.acknowledged = true,
            _ if entry.outcome.is_some() => {}
            _ => self.fail_operation(key, error.clone()),
        }
    }

    /// Drops the record of an ended connection; its slot may be used again.
    pub(crate) fn forget(&mut self, link: LinkId) {
        let ctx = &mut self.movers.ctx;
        if let Some(peer) = at(&mut ctx.peers, link) {
            let worker = peer.worker;
            ctx.forget_unclaimed(worker, link);
        }
        self.forget_streams(link);
        if at(&mut self.movers.ctx.peers, link).is_some_and(|peer| !peer.is_alive()) {
            self.movers.ctx.peers[link.index()] = None;
            self.movers.ctx.vacant.push(link.index());
        }
    }

    /// A future was dropped: the operation goes, or goes on without it.
    pub(crate) fn drop_future(&mut self, key: OpKey) {
        if key.as_posted().is_some() {
            return self.drop_receive(key);
        }
        let Some(entry) = self.movers.ctx.operations.get(key) else {
            return;
        };
        let waker = entry.waker.take();
        self.movers.ctx.drop_later(waker);
        let Some(entry) = self.movers.ctx.operations.get(key) else {
            return;
        };
        if let (Work::Put(put), Some(Ended::Done(Ok(())))) = (&*entry.work, &entry.outcome)
            && !put.acknowledged
        {
            // Complete here only: flush and close count it until the peer has it.
            entry.outcome = None;
            entry.detached = true;
            return;
        }
        if entry.outcome.is_some() {
            if let Some(mut entry) = self.movers.ctx.operations.remove(key)
                && let Some(ended) = entry.outcome.take()
            {
                self.movers.ctx.release(entry.link, &entry.work);
                self.movers.ctx.note_loss(&entry, &ended);
                self.movers.ctx.put_back(entry, ended);
            }
            return self.act();
        }
        if matches!(&*entry.work, Work::Flush) {
            self.movers.ctx.operations.take_work(key);
            return;
        }
        entry.detached = true;
        let waits = matches!(
            &*entry.work,
            Work::Recv(operations::Recv {
                stage: RecvStage::Waiting(_),
                ..
            })
        );
        if waits {
            self.movers.ctx.resign(key);
        }
        if waits || self.unpost(key) {
            if let Some(entry) = self.movers.ctx.operations.remove(key) {
                self.movers.ctx.defer_drop_entry(entry);
            }
        } else {
            self.movers.ctx.keep_place(key);
        }
        self.act();
    }

    /// Tries to stop an operation. `true`: it has ended, or will be told so; `false`: it runs to its end.
    pub(crate) fn cancel(&mut self, key: OpKey, error: Error) -> bool {
        let Some(key) = self.entry_of(key) else {
            self.fail_receive(key, error);
            return true;
        };
        let Some(entry) = self.movers.ctx.operations.get(key) else {
            return true;
        };
        if entry.outcome.is_some() {
            return true;
        }
        let (link, copies) = (entry.link, entry.copies);
        let ends = match &mut *entry.work {
            Work::Recv(recv) => {
                matches!(recv.stage, RecvStage::Waiting(_) | RecvStage::Posted(_))
            }
            Work::Claim(_) | Work::Copy(_) | Work::Flush => true,
            Work::Send(send) => match send.stage {
                SendStage::Queued => {
                    self.movers.ctx.am_withdraw(link, key);
                    true
                }
                SendStage::Announced if !send.cancelling => {
                    send.cancelling = true;
                    if let Some(link) = link {
                        self.movers.ctx.control(link, control::CANCEL, key.0, &[]);
                    }
                    false
                }
                _ => false,
            },
            Work::Atomic(atomic) => !atomic.sent,
            Work::Put(put) => put.next == 0 && put.slot.is_none() && !put.signal_due && copies == 0,
            _ => false,
        };
        if ends {
            self.movers.ctx.unqueue(link, key);
            self.fail_operation(key, error);
        }
        ends
    }
}
