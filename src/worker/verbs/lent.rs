//! Lent messages that have found no receive.
//!
//! Their senders had the window for them, and so may wait for nothing but this side's worker: what no receive takes for a while is copied here, and waits as if it
//! had come. Not at once: where messages are lent receives follow soon, as a rule, and copy them once.

use crate::{
    protocol::{
        control::{self, Announcement},
        matching::Name,
        window::eager_cost,
    },
    types::LinkId,
    worker::{
        copy::STEPS,
        core::Core,
        ctx::Ctx,
        lent::Waiting,
        operations::{Body, Unexpected},
    },
};

impl Ctx {
    /// A lent message is matched, or gone: its share of the window is free.
    pub(crate) fn lent_over(&mut self, link: LinkId, rts: &Announcement) {
        if rts.is_lent {
            self.consumed(link, eager_cost(rts.length as usize));
        }
    }

    /// Copies a lent message, where it stands. One that cannot be copied is as good as announced: it waits for its receive, which is told why.
    pub(crate) fn take_in(&mut self, message: &mut Unexpected) {
        let link = message.link;
        let Body::Announced(rts) = &mut message.body else {
            return;
        };
        if !rts.is_lent {
            return;
        }
        let length = rts.length as usize;
        let copied = self.one_copy(link).and_then(|one_copy| {
            let remote = one_copy.reach(0, 0, length, rts.address, false)?;
            remote.fetch(&one_copy.pair, one_copy.cma.as_ref(), length)
        });
        let Some(data) = copied else {
            self.lent_over(link, rts);
            rts.is_lent = false;
            return;
        };
        self.counts.copied(false, length);
        self.drop_announcement(link);
        self.control(link, control::DONE, rts.op, &[]);
        message.body = Body::Whole {
            data: data.into(),
            ack: None,
            credit: eager_cost(length) as u32,
        };
    }
}

impl Core {
    /// Once in each pass: copies some of what has waited for long enough. How many.
    pub(crate) fn take_in_lent(&mut self) -> usize {
        let mut taken = 0;
        self.movers.ctx.unmatched.pass();
        while let Some((first, is_due)) = self.movers.ctx.unmatched.first() {
            let is_here = self.is_waiting(first);
            if is_here && (!is_due || taken == STEPS) {
                break;
            }
            self.movers.ctx.unmatched.forget_first();
            if is_here {
                taken += 1;
                self.take_in_named(first.name);
            }
        }
        taken
    }

    /// A connection is about to close: what could have come unasked has come. What is lent after that comes too late, as what is announced.
    pub(crate) fn take_in_lent_of(&mut self, link: LinkId) {
        for waiting in self.movers.ctx.unmatched.forget_of(link) {
            if self.is_waiting(waiting) {
                self.take_in_named(waiting.name);
            }
        }
    }

    /// Whether it is this very message that waits, and in its sender's memory.
    fn is_waiting(&self, waiting: Waiting) -> bool {
        let named = self.unexpected.named(waiting.name);
        named.is_some_and(|(arrival, message)| arrival == waiting.arrival && message.is_lent())
    }

    fn take_in_named(&mut self, name: Name) {
        if let Some(mut taken) = self.take_named(name) {
            self.movers.ctx.take_in(&mut taken.message);
            self.return_unexpected(taken.arrival, taken.message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Limits,
        error::ErrorKind,
        memory::{Buffer, BufferMut},
        protocol::{EAGER_WINDOW, control::Rts},
        transport::Sink,
        types::{Mask, Tag},
        worker::{
            engine::Engine,
            operations::{Outcome, Send, SendStage, Work},
            pair::Pair,
        },
    };

    const TAG: Tag = Tag(7);
    const LENGTH: usize = 40 << 10;

    fn pattern(seed: usize) -> Vec<u8> {
        (0..LENGTH).map(|at| (at / 7 + seed) as u8).collect()
    }

    fn rts(op: u64, bytes: &[u8]) -> Rts {
        Rts {
            op,
            length: bytes.len() as u64,
            address: bytes.as_ptr().expose_provenance() as u64,
            segment: 0,
            segment_offset: 0,
            slot: control::NONE,
        }
    }

    fn lend(engine: &mut Engine, link: LinkId, rts: Rts) -> crate::Result<()> {
        engine
            .core
            .message(link, control::TAG_LENT, TAG.0, &rts.encode())
    }

    /// Passes until it is copied, or has been given up; how many.
    fn passes(engine: &mut Engine) -> usize {
        let mut passes = 0;
        while engine.ctx().unmatched.len() > 0 {
            engine.core.take_in_lent();
            passes += 1;
        }
        passes
    }

    /// The bytes of a message that was kept.
    fn bytes(engine: &mut Engine, message: Unexpected) -> Vec<u8> {
        let mut buffer = BufferMut::from(vec![0; LENGTH]);
        let arrival = engine.ctx().take_whole(&mut buffer, message);
        assert_eq!(arrival.expect("whole").length, LENGTH);
        buffer.as_slice().expect("of the host").to_vec()
    }

    /// Announcements that are held, and what of the window is.
    fn held(engine: &mut Engine, link: LinkId) -> (usize, u64) {
        let peer = engine.ctx().peer(link).expect("connected");
        (peer.announced_held, peer.receive_window.unread())
    }

    #[tokio::test]
    async fn what_nobody_receives_is_copied_after_a_while() {
        let pair = Pair::new().await;
        let link = pair.link;
        let mut source = pattern(1);
        pair.here.shared.with(|engine| {
            lend(engine, link, rts(1, &source)).expect("kept");
            assert_eq!(held(engine, link), (1, eager_cost(LENGTH)));
            let lists = passes(engine);
            assert!((50..100).contains(&lists), "{lists} passes");
            assert_eq!(held(engine, link), (0, eager_cost(LENGTH)));
        });
        // Its sender has been told, and uses its memory again.
        source.fill(0);
        pair.here.shared.with(|engine| {
            let taken = engine.core.take_unexpected(TAG, Mask::ALL).expect("kept");
            assert_eq!(bytes(engine, taken.message), pattern(1));
            assert_eq!(held(engine, link), (0, 0));
        });
        pair.end();
    }

    #[tokio::test]
    async fn what_is_received_is_copied_once() {
        let pair = Pair::new().await;
        let link = pair.link;
        let source = pattern(2);
        pair.here.shared.with(|engine| {
            lend(engine, link, rts(1, &source)).expect("kept");
            let buffer = BufferMut::from(vec![0; LENGTH]);
            let taken = engine.core.take_unexpected(TAG, Mask::ALL).expect("kept");
            let movers = &mut engine.core.movers;
            let key = movers.ctx.enter_receive(buffer, Some(link), taken.arrival);
            movers.hand_over(key, taken.arrival, taken.message);
            assert_eq!(held(engine, link), (0, 0));
            assert_eq!(engine.core.movers.transfers.len(), 1, "in one copy");
            while !engine.core.movers.transfers.is_empty() {
                engine.core.movers.step_transfers();
            }
            engine.core.act();
            let outcome = engine.core.take_outcome(key).expect("over");
            let Outcome::Buffer(Ok(_), buffer) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!(buffer.as_slice().expect("of the host"), pattern(2));
            // Nothing is left for the passes to find.
            passes(engine);
            assert!(engine.core.unexpected.is_empty());
        });
        pair.end();
    }

    /// Memory that is not there: the receive says so.
    #[tokio::test]
    async fn what_cannot_be_copied_waits_for_its_receive() {
        let pair = Pair::new().await;
        let link = pair.link;
        pair.here.shared.with(|engine| {
            let nowhere = Rts {
                address: 4096,
                ..rts(1, &pattern(3))
            };
            lend(engine, link, nowhere).expect("kept");
            passes(engine);
            assert_eq!(held(engine, link), (1, 0));
            let taken = engine.core.take_unexpected(TAG, Mask::ALL).expect("kept");
            assert!(!taken.message.is_lent(), "it would be tried again");
        });
        pair.end();
    }

    /// What is kept for a peer has a limit, whichever way it comes.
    #[tokio::test]
    async fn what_there_is_no_room_for_ends_the_connection() {
        let least = Limits::default().each_connection(|quota| quota.unexpected_bytes(1 << 12));
        let pair = Pair::of(crate::Context::builder().limits(least)).await;
        let link = pair.link;
        let source = pattern(6);
        pair.here.shared.with(|engine| {
            let error = lend(engine, link, rts(1, &source)).expect_err("too much");
            assert_eq!(error.kind(), ErrorKind::Exhausted);
        });
        pair.end();
    }

    /// Whoever has the claim may take as long as it likes.
    #[tokio::test]
    async fn what_is_claimed_is_copied_at_once() {
        let pair = Pair::new().await;
        let link = pair.link;
        let mut source = pattern(8);
        pair.here.shared.with(|engine| {
            let operations = &mut engine.core.movers.ctx.operations;
            let key = operations.insert(None, false, Work::Claim(None));
            lend(engine, link, rts(1, &source)).expect("kept");
            let taken = engine.core.take_unexpected(TAG, Mask::ALL).expect("kept");
            let movers = &mut engine.core.movers;
            movers.hand_over(key, taken.arrival, taken.message);
            engine.core.act();
            assert_eq!(held(engine, link), (0, eager_cost(LENGTH)));
            source.fill(0);
            let outcome = engine.core.take_outcome(key).expect("over");
            let Outcome::Claimed(Ok(claimed)) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!(bytes(engine, claimed.1), pattern(8));
            assert_eq!(held(engine, link), (0, 0));
        });
        pair.end();
    }

    /// A peer that gives the number of a lent message that is gone to one that is announced, of any length.
    #[tokio::test]
    async fn what_was_announced_under_the_same_number_stays() {
        let pair = Pair::new().await;
        let link = pair.link;
        let source = pattern(9);
        pair.here.shared.with(|engine| {
            lend(engine, link, rts(1, &source)).expect("kept");
            let cancel = engine.core.message(link, control::CANCEL, 1, &[]);
            cancel.expect("in order");
            let long = Rts {
                length: 1 << 62,
                ..rts(1, &source)
            };
            let announced = long.encode();
            let announced = engine
                .core
                .message(link, control::TAG_RTS, TAG.0, &announced);
            announced.expect("kept");
            passes(engine);
            assert_eq!(held(engine, link), (1, 0));
            let taken = engine.core.take_unexpected(TAG, Mask::ALL).expect("kept");
            assert!(matches!(taken.message.body, Body::Announced(_)));
        });
        pair.end();
    }

    /// An end that closes keeps what could have come unasked, and its sender is told that it has come.
    #[tokio::test]
    async fn who_closes_has_what_was_lent() {
        let pair = Pair::new().await;
        let link = pair.link;
        let source = pattern(10);
        pair.here.shared.with(|engine| {
            for op in 0..8 {
                lend(engine, link, rts(op, &source)).expect("kept");
            }
            engine.core.take_in_lent_of(link);
            assert_eq!(held(engine, link), (0, 8 * eager_cost(LENGTH)));
            assert_eq!(engine.core.unexpected.len(), 8);
            assert_eq!(passes(engine), 0);
        });
        pair.end();
    }

    /// A peer that lends and calls back, always the same numbers: what it has called back holds up nobody, and is not kept.
    #[tokio::test]
    async fn what_is_called_back_and_lent_again_holds_up_nobody() {
        let pair = Pair::new().await;
        let link = pair.link;
        let source = pattern(11);
        let empty = |op| rts(op, &[]);
        pair.here.shared.with(|engine| {
            for op in 0..100 {
                lend(engine, link, empty(op)).expect("kept");
            }
            for round in 0..400 {
                for op in 0..50 {
                    let cancel = engine.core.message(link, control::CANCEL, op, &[]);
                    cancel.expect("in order");
                    lend(engine, link, empty(op)).expect("kept");
                }
                engine.core.take_in_lent();
                let waiting = engine.ctx().unmatched.len();
                assert!(waiting < 5000, "{waiting} after {round} rounds");
            }
            lend(engine, link, rts(1000, &source)).expect("kept");
            // Before it 100 others can be waiting.
            let passes = passes(engine);
            assert!(passes < 200, "{passes} passes");
            assert_eq!(engine.core.unexpected.len(), 101);
            assert_eq!(engine.ctx().peer(link).expect("one").announced_held, 0);
        });
        pair.end();
    }

    #[tokio::test]
    async fn what_was_called_back_is_gone() {
        let pair = Pair::new().await;
        let link = pair.link;
        let source = pattern(4);
        pair.here.shared.with(|engine| {
            lend(engine, link, rts(1, &source)).expect("kept");
            let cancel = engine.core.message(link, control::CANCEL, 1, &[]);
            cancel.expect("in order");
            assert_eq!(held(engine, link), (0, 0));
            passes(engine);
            assert!(engine.core.unexpected.is_empty());
        });
        pair.end();
    }

    #[tokio::test]
    async fn the_window_holds_for_what_is_lent() {
        for length in [EAGER_WINDOW, u64::MAX] {
            let pair = Pair::new().await;
            let link = pair.link;
            pair.here.shared.with(|engine| {
                let long = Rts {
                    length,
                    ..rts(1, &[])
                };
                let error = lend(engine, link, long).expect_err("too long");
                assert_eq!(error.kind(), ErrorKind::Protocol);
            });
            pair.end();
        }
        let pair = Pair::new().await;
        let link = pair.link;
        let source = pattern(5);
        pair.here.shared.with(|engine| {
            let most = EAGER_WINDOW / eager_cost(LENGTH);
            for op in 0..most {
                lend(engine, link, rts(op, &source)).expect("kept");
            }
            let error = lend(engine, link, rts(most, &source)).expect_err("beyond the window");
            assert_eq!(error.kind(), ErrorKind::Protocol);
        });
        pair.end();
    }

    /// A sender that lends waits for its peer's worker, not for a receive; and what comes is what was sent.
    #[tokio::test]
    async fn a_send_that_lends_needs_no_receive() {
        let pair = Pair::new().await;
        let link = pair.link;
        let keys: Vec<_> = pair.here.shared.with(|engine| {
            let one_copy = engine.ctx().one_copy(link).expect("memory in common");
            let sends = one_copy.sends.as_mut().expect("may lend");
            sends.settle_to_lend(LENGTH);
            let send = |seed| {
                let send = Send {
                    tag: TAG,
                    buffer: Buffer::from(pattern(seed)),
                    sync: false,
                    stage: SendStage::Queued,
                    slot: None,
                    cancelling: false,
                    am: None,
                };
                let operations = &mut engine.core.movers.ctx.operations;
                let key = operations.insert(Some(link), false, Work::Send(send));
                engine.core.submit(link, key);
                key
            };
            (0..10).map(send).collect()
        });
        let are_over = || {
            pair.here.shared.with(|engine| {
                engine.progress();
                keys.iter().all(|key| engine.core.is_over(*key))
            })
        };
        while !are_over() {
            pair.there.shared.with(|engine| engine.progress());
            tokio::task::yield_now().await;
        }
        pair.there.shared.with(|engine| {
            for seed in 0..10 {
                let taken = engine.core.take_unexpected(TAG, Mask::ALL).expect("kept");
                assert_eq!(bytes(engine, taken.message), pattern(seed));
            }
            assert_eq!(engine.ctx().counts.cma.count, 10);
        });
        pair.end();
    }
}
