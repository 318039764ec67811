//! Waiting for operations that were begun before: all of a connection (flush), or its accesses to remote memory (fence).

use crate::{
    types::{LinkId, OpKey},
    worker::{
        ctx::Ctx,
        epochs::{Kind, Wait},
        operations::{Ended, Work},
        send::closed,
    },
};

impl Ctx {
    /// Begins to wait for what was begun before on a connection. `None`: a fence that has nothing to wait for.
    pub(crate) fn begin_flush(&mut self, link: LinkId, fence: bool) -> Option<OpKey> {
        if fence && !self.operations.epochs.has(link, Kind::Access) {
            return None;
        }
        let key = self.operations.insert(Some(link), false, Work::Flush);
        let wait = if fence { Wait::Fence } else { Wait::Flush };
        match self.operations.wait(link, wait, key) {
            true => self.check_flushes(link),
            false => self.finish(key, Ended::Done(Err(closed()))),
        }
        Some(key)
    }

    /// Ends the flushes and fences of a link that need not wait any more.
    pub(super) fn check_flushes(&mut self, link: LinkId) {
        while let Some(key) = self.operations.next_over(link, Wait::Fence) {
            self.finish(key, Ended::Done(Ok(())));
        }
        while let Some(key) = self.operations.next_over(link, Wait::Flush) {
            // All at once, for all signals that were sent before.
            self.begin_settle(link);
            self.operations.wait(link, Wait::Settle, key);
        }
        while let Some(key) = self.operations.next_over(link, Wait::Settle) {
            let lost = self.peer(link).and_then(|peer| peer.lost.take());
            self.finish(key, Ended::Done(lost.map_or(Ok(()), Err)));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        error::{Error, ErrorKind},
        memory::{Buffer, BufferMut},
        protocol::control::{self, Signal},
        transport::{Link, LinkAttributes, SendError, Sink},
        types::{Mask, Priority, Tag},
        util::lock::Mutex,
        worker::{
            core::Core,
            inbox::tests::{LINK, core},
            metrics::Counted,
            operations::{self, Ask, Get, Outcome, Put, Send, SendStage},
            rma::Target,
        },
    };

    /// A link that has room or not.
    #[derive(Debug)]
    struct Wire(Arc<Mutex<bool>>);

    impl Link for Wire {
        fn attributes(&self) -> LinkAttributes {
            LinkAttributes {
                transport: "test",
                max_short: 64,
                max_bcopy: 8192,
                max_zcopy: 0,
            }
        }
        fn am_short(&mut self, _: u8, _: u64, _: &[u8]) -> Result<(), SendError> {
            match *self.0.lock() {
                true => Ok(()),
                false => Err(SendError::Full),
            }
        }
        fn am_bcopy(&mut self, id: u8, header: u64, _: &[u8], _: &[u8]) -> Result<(), SendError> {
            self.am_short(id, header, &[])
        }
        fn flush(&mut self, _: &mut dyn Sink) {}
        fn is_flushed(&self) -> bool {
            true
        }
    }

    fn signal() -> Signal {
        target(false).signal(1)
    }

    pub(in crate::worker) fn put(length: usize) -> Put {
        Put::new(Buffer::from(vec![1; length]), (0, 1), 0)
    }

    pub(in crate::worker) fn target(on_device: bool) -> Target {
        Target {
            slot: 0,
            generation: 1,
            address: 0,
            offset: 0,
            segment: 0,
            segment_offset: 0,
            on_device,
            read_back: false,
        }
    }

    /// Receives that nothing comes for.
    pub(in crate::worker) fn post_receives(core: &mut Core, count: u64) {
        for tag in 0..count {
            let buffer = BufferMut::from(vec![0; 8]);
            core.post_receive(Tag(tag), Mask::ALL, buffer, false);
        }
    }

    /// What waits, and the operations that were under way when it began.
    struct Waiter {
        key: OpKey,
        fence: bool,
        before: Vec<OpKey>,
    }

    struct Play {
        core: Core,
        has_room: Arc<Mutex<bool>>,
        /// Operations whose futures are there.
        held: Vec<OpKey>,
        waiters: Vec<Waiter>,
        seed: u64,
    }

    impl Play {
        fn new(seed: u64) -> Self {
            let (mut core, _) = core();
            let has_room = Arc::new(Mutex::new(true));
            let peer = core.movers.ctx.peer(LINK).expect("alive");
            peer.link = Some(Counted::new(Box::new(Wire(has_room.clone()))));
            Self {
                core,
                has_room,
                held: Vec::new(),
                waiters: Vec::new(),
                seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            }
        }

        fn below(&mut self, end: usize) -> usize {
            self.seed ^= self.seed << 13;
            self.seed ^= self.seed >> 7;
            self.seed ^= self.seed << 17;
            (self.seed >> 33) as usize % end
        }

        fn one_of(&mut self, keys: &[OpKey]) -> Option<OpKey> {
            (!keys.is_empty()).then(|| keys[self.below(keys.len())])
        }

        /// As the engine does after messages.
        fn follow_up(&mut self) {
            for _ in 0..self.core.movers.ctx.runnable.len() {
                if let Some(link) = self.core.movers.ctx.runnable.pop_front() {
                    self.core.pump(link);
                }
            }
            while let Some(link) = self.core.movers.ctx.operations.epochs.next_due() {
                self.core.movers.ctx.check_flushes(link);
            }
            assert!(
                self.core.movers.ctx.failures.is_empty(),
                "{:?}",
                self.core.movers.ctx.failures
            );
        }

        fn begin(&mut self) {
            let length = [0, 8, 20_000][self.below(3)];
            let normal = (Priority::Normal, false);
            let kind = self.below(6);
            if kind != 2 {
                self.core.movers.ctx.peer(LINK).expect("alive").posted += 1;
            }
            let key = match kind {
                0 | 1 => {
                    let mut put = put(length);
                    put.local = self.below(2) == 0;
                    put.signal = (self.below(2) == 0).then(|| Box::new(signal()));
                    let target = target(self.below(4) == 0);
                    self.core
                        .movers
                        .start_run(LINK, target, Work::Put(put), normal, None)
                }
                2 => self.core.movers.ctx.start_signal(LINK, signal()),
                3 => {
                    let get = Get::new(BufferMut::from(vec![0; 8]), (0, 1), 0);
                    self.core
                        .movers
                        .start_run(LINK, target(false), Work::Get(get), normal, None)
                }
                4 => {
                    let message = control::Atomic {
                        generation: 1,
                        offset: 0,
                        operand: 1,
                        compare: 0,
                        slot: 0,
                        code: 0x0801,
                    };
                    let work = Work::Atomic(operations::Atomic {
                        asks: Ask::Owner(message),
                        fetch: false,
                        sent: false,
                    });
                    let key = self
                        .core
                        .movers
                        .ctx
                        .operations
                        .insert(Some(LINK), false, work);
                    self.core.submit(LINK, key);
                    key
                }
                _ => {
                    let work = Work::Send(Send {
                        tag: Tag(1),
                        buffer: Buffer::from(vec![1; length]),
                        sync: self.below(2) == 0,
                        stage: SendStage::Queued,
                        slot: None,
                        cancelling: false,
                        am: None,
                    });
                    let key = self
                        .core
                        .movers
                        .ctx
                        .operations
                        .insert(Some(LINK), false, work);
                    self.core.submit(LINK, key);
                    key
                }
            };
            self.held.push(key);
        }

        fn wait(&mut self) {
            let fence = self.below(2) == 0;
            let before: Vec<OpKey> = self.under_way(fence);
            match self.core.movers.ctx.begin_flush(LINK, fence) {
                Some(key) => {
                    self.held.push(key);
                    self.waiters.push(Waiter { key, fence, before });
                }
                None => assert!(fence && before.is_empty()),
            }
        }

        /// What a flush, or a fence, has to wait for now: found by looking at everything.
        fn under_way(&self, fence: bool) -> Vec<OpKey> {
            let entries = self.core.movers.ctx.operations.iter();
            entries
                .filter(|(_, entry)| match &*entry.work {
                    Work::Put(put) => {
                        let failed = matches!(entry.outcome, Some(Ended::Done(Err(_))));
                        let is_there = put.acknowledged && !put.signal_due;
                        entry.deferred.is_some() || !failed && !is_there
                    }
                    Work::Get(_) => entry.outcome.is_none(),
                    Work::Atomic(atomic) => {
                        entry.outcome.is_none() && !matches!(atomic.asks, Ask::Settle)
                    }
                    Work::Send(_) => !fence && entry.outcome.is_none(),
                    _ => false,
                })
                .map(|(key, _)| key)
                .collect()
        }

        fn questions(&self) -> usize {
            let entries = self.core.movers.ctx.operations.iter();
            entries
                .filter(|(_, entry)| matches!(&*entry.work, Work::Atomic(atomic) if matches!(atomic.asks, Ask::Settle)))
                .count()
        }

        /// The peer answers something that has reached it, perhaps with a refusal.
        fn answer(&mut self) {
            let refusal = control::error_kind_code(ErrorKind::StaleKey).to_le_bytes();
            let reached = |work: &Work| match work {
                Work::Put(put) => {
                    (put.next == put.buffer.len() && !put.acknowledged).then_some(control::DONE)
                }
                Work::Get(_) => Some(control::FRAGMENT),
                Work::Atomic(atomic) => atomic.sent.then_some(control::DONE),
                Work::Send(send) if send.cancelling => Some(control::CANCELED),
                Work::Send(send) => {
                    matches!(send.stage, SendStage::AwaitMatch | SendStage::Announced)
                        .then_some(control::DONE)
                }
                _ => None,
            };
            let entries = self.core.movers.ctx.operations.iter();
            let able: Vec<(OpKey, u8, bool)> = entries
                .filter(|(_, entry)| entry.queued.is_none() && entry.deferred.is_none())
                .filter(|(_, entry)| {
                    entry.outcome.is_none() || matches!(&*entry.work, Work::Put(_))
                })
                .filter_map(|(key, entry)| {
                    let may_refuse = !matches!(&*entry.work, Work::Send(_));
                    Some((key, reached(&entry.work)?, may_refuse))
                })
                .collect();
            if able.is_empty() {
                return;
            }
            let (key, id, may_refuse) = able[self.below(able.len())];
            let (id, body) = match id {
                _ if may_refuse && self.below(4) == 0 => (control::NACK, &refusal[..]),
                control::FRAGMENT => (id, &[7; 8][..]),
                _ => (id, &[][..]),
            };
            self.core.message(LINK, id, key.0, body).expect("in order");
        }

        /// A link holds the memory of a put, or lets go of it.
        fn hold(&mut self) {
            let entries = self.core.movers.ctx.operations.iter();
            let puts: Vec<(OpKey, bool)> = entries
                .filter(|(_, entry)| {
                    matches!(&*entry.work, Work::Put(put) if !put.announced && put.next > 0)
                        && (entry.in_flight > 0 || entry.outcome.is_none())
                })
                .map(|(key, entry)| (key, entry.in_flight > 0))
                .collect();
            if puts.is_empty() {
                return;
            }
            let (key, is_held) = puts[self.below(puts.len())];
            match (is_held, self.core.movers.ctx.operations.get(key)) {
                (false, Some(entry)) => entry.in_flight += 1,
                _ => self.core.sent(LINK, key.0),
            }
        }

        fn step(&mut self) {
            let held = self.held.clone();
            match self.below(12) {
                0..3 => self.begin(),
                3 | 4 => self.wait(),
                5..8 => self.answer(),
                8 => self.hold(),
                9 => {
                    let has_room = self.below(2) == 0;
                    *self.has_room.lock() = has_room;
                    self.core.movers.ctx.runnable.push_back(LINK);
                }
                10 => {
                    if let Some(key) = self.one_of(&held) {
                        self.core
                            .cancel(key, Error::new(ErrorKind::Canceled, "cancelled"));
                        // It ends as it was told; the walk does not know that.
                        self.waiters.retain(|waiter| waiter.key != key);
                    }
                }
                _ => {
                    if let Some(key) = self.one_of(&held) {
                        let is_over = self
                            .core
                            .movers
                            .ctx
                            .operations
                            .get(key)
                            .is_some_and(|entry| entry.outcome.is_some());
                        match is_over && self.below(2) == 0 {
                            true => drop(self.core.take_outcome(key)),
                            false => self.core.drop_future(key),
                        }
                        self.held.retain(|held| *held != key);
                        self.waiters.retain(|waiter| waiter.key != key);
                    }
                }
            }
            self.follow_up();
        }

        /// Each flush and each fence is over if all that it waits for is, and not before. How many wait.
        fn check(&mut self) -> usize {
            let questions = self.questions();
            let left = [self.under_way(false), self.under_way(true)];
            let mut waiting = 0;
            for at in 0..self.waiters.len() {
                let (key, fence) = (self.waiters[at].key, self.waiters[at].fence);
                let left = &left[usize::from(fence)];
                let over = !self.waiters[at].before.iter().any(|key| left.contains(key));
                let entry = self.core.movers.ctx.operations.get(key).expect("held");
                let ended = entry.outcome.is_some();
                assert!(over || !ended, "ended too early: fence {fence}");
                assert!(
                    ended || !over || !fence && questions > 0,
                    "not told: fence {fence}"
                );
                waiting += usize::from(!ended);
            }
            waiting
        }
    }

    /// Whatever happens in whatever order: a flush or a fence ends with the last operation that was begun before it, as if it looked at all of them.
    #[test]
    fn what_waits_ends_when_all_before_it_is_over() {
        let (mut most, mut ended) = (0, 0);
        for seed in 1..=100 {
            let mut play = Play::new(seed);
            for _ in 0..300 {
                play.step();
                most = most.max(play.check());
            }
            if seed % 3 == 0 {
                let gone = Error::new(ErrorKind::ConnectionReset, "gone");
                play.core.fail(LINK, gone);
            }
            *play.has_room.lock() = true;
            for _ in 0..3000 {
                play.core.movers.ctx.runnable.push_back(LINK);
                play.follow_up();
                play.answer();
                play.hold();
                play.follow_up();
                if play.check() == 0 {
                    break;
                }
            }
            for waiter in &play.waiters {
                assert!(play.core.take_outcome(waiter.key).is_some(), "of {seed}");
                ended += 1;
            }
        }
        assert!(most > 5 && ended > 300, "{most} at once, {ended} ended");
    }

    /// A flush costs what it waits for, whatever else the worker has.
    #[test]
    fn a_flush_looks_at_no_other_operation() {
        let (mut core, _) = core();
        post_receives(&mut core, 100_000);
        let normal = (Priority::Normal, false);
        let puts: Vec<OpKey> = (0..4000)
            .map(|_| {
                core.movers
                    .start_run(LINK, target(false), Work::Put(put(8)), normal, None)
            })
            .collect();
        let waiting: Vec<OpKey> = (0..200)
            .map(|at| {
                core.movers
                    .ctx
                    .begin_flush(LINK, at % 2 == 0)
                    .expect("puts are under way")
            })
            .collect();
        for (at, put) in puts.iter().rev().enumerate() {
            let is_over = |key: &OpKey| {
                core.movers
                    .ctx
                    .operations
                    .get(*key)
                    .is_none_or(|entry| entry.outcome.is_some())
            };
            assert!(
                !waiting.iter().any(is_over),
                "{at} of 4000 were acknowledged"
            );
            core.message(LINK, control::DONE, put.0, &[])
                .expect("an answer");
            while let Some(link) = core.movers.ctx.operations.epochs.next_due() {
                core.movers.ctx.check_flushes(link);
            }
        }
        for key in waiting {
            assert!(matches!(
                core.take_outcome(key),
                Some(Outcome::Done(Ok(())))
            ));
        }
        assert_eq!(
            core.movers.ctx.operations.looked_at(),
            0,
            "operations were looked at"
        );
    }

    /// A program that asks for a flush again and again, and does not wait for it, leaves nothing.
    #[test]
    fn flushes_that_are_dropped_leave_nothing() {
        let (mut core, _) = core();
        let normal = (Priority::Normal, false);
        let put = core
            .movers
            .start_run(LINK, target(false), Work::Put(put(8)), normal, None);
        let kept = core.movers.ctx.begin_flush(LINK, false).expect("a flush");
        for _ in 0..10_000 {
            let (first, second) = (
                core.movers.ctx.begin_flush(LINK, true),
                core.movers.ctx.begin_flush(LINK, false),
            );
            core.drop_future(first.expect("a put is under way"));
            core.drop_future(second.expect("a flush"));
        }
        assert!(
            core.movers.ctx.operations.epochs.waiting(LINK) < 20,
            "{}",
            core.movers.ctx.operations.epochs.waiting(LINK)
        );
        core.message(LINK, control::DONE, put.0, &[])
            .expect("an answer");
        core.movers.ctx.check_flushes(LINK);
        assert!(core.take_outcome(kept).is_some());
        assert_eq!(core.movers.ctx.operations.epochs.waiting(LINK), 0);
    }
}
