//! What is held for peers until somebody here asks for it, charged to the connection that brought it.
//!
//! Messages that had arrived whole stay when their connection ends, and go on counting for its source and the worker; but not those of a peer that
//! broke the protocol or went beyond its limits, of which nothing is kept. What a peer had only announced goes with it.

use crate::{
    config::{Limits, Quota},
    error::{Error, ErrorKind, Result},
    protocol::{
        control::Waits,
        ledger::{AccountId, Amount},
        matching::{Arrival, Message, Name, Taken},
    },
    types::{EndpointId, LinkId, Mask, Tag},
    worker::{
        Held, RefusalCounts, Refusals,
        core::Core,
        ctx::Ctx,
        operations::{Body, Unexpected, Work},
        peer::{ANSWER, ANSWERS, at},
    },
};

/// What a message takes beside its payload: a place in the queue.
const PLACE: usize = size_of::<Unexpected>() + 80;

/// The limits, as the ledger wants them.
pub(crate) fn quotas(limits: &Limits) -> [Amount; 3] {
    [&limits.connection, &limits.source, &limits.worker].map(|quota: &Quota| {
        Amount([
            quota.unexpected_bytes,
            quota.unexpected_messages,
            quota.unaccepted_streams,
            quota.requests,
        ])
    })
}

/// What a message that waits takes. What was put back by a dropped receive lies in that receive's memory, and what is still on its way in the
/// memory of the one it is for.
fn amount(message: &Unexpected) -> Amount {
    match &message.body {
        Body::Whole { data, credit, .. } if *credit > 0 => Amount::message(PLACE + data.len()),
        // It has its share of the window, and may be copied at any time.
        Body::Announced(rts) if rts.is_lent => Amount::message(PLACE + rts.length as usize),
        _ => Amount::message(PLACE),
    }
}

impl Ctx {
    /// What is held for all peers.
    pub(crate) fn held(&self) -> Held {
        let Amount(held) = self.ledger.held();
        Held {
            unexpected_bytes: held[0],
            unexpected_messages: held[1],
            unaccepted_streams: held[2],
            requests: held[3],
            connections: self.ledger.connections(),
            sources: self.ledger.sources(),
            refused: self.refused().total(),
        }
    }

    /// How often a limit on what is held was met.
    pub(crate) fn refused(&self) -> Refusals {
        let refused = self.ledger.refused();
        let [connection, source, worker] = refused.map(|Amount(counts)| RefusalCounts {
            unexpected_bytes: counts[0],
            unexpected_messages: counts[1],
            unaccepted_streams: counts[2],
            requests: counts[3],
            connections: 0,
        });
        Refusals {
            connection,
            source,
            worker,
            unread_answers: self.counts.refused.unread_answers,
        }
    }

    /// Who is charged for what a connection brings.
    fn account(&mut self, link: LinkId) -> AccountId {
        self.peer(link)
            .and_then(|peer| peer.account)
            .unwrap_or(AccountId::NOBODY)
    }

    /// Charges a request that a peer has made, until it is over, with the bytes of its list.
    /// Errors: `Exhausted`: there are as many as may be.
    pub(crate) fn charge_request(
        &mut self,
        link: LinkId,
        bytes: usize,
    ) -> Result<Option<AccountId>> {
        let account = self.peer(link).and_then(|peer| peer.account);
        self.ledger.charge(account, bytes)
    }

    /// A request is over.
    #[inline]
    pub(crate) fn served(&mut self, work: &Work) {
        let (charged, bytes) = match work {
            Work::Serve(serve) => {
                let list = serve.answer.as_ref();
                (serve.charged, list.map_or(0, |answer| answer.weight()))
            }
            Work::Fill(fill) => {
                let list = fill.places.as_ref();
                (fill.charged, list.map_or(0, |places| places.weight()))
            }
            Work::Lent(lent) => (lent.charged, 0),
            _ => return,
        };
        if let Some(account) = charged {
            self.ledger.give(account, Amount::request(bytes));
        }
    }

    /// A message that counts waits for room on the link.
    /// Errors: `Exhausted`, or `Protocol` of a peer that reads none of so many: as many wait as may.
    #[cold]
    pub(crate) fn owe(&mut self, link: LinkId, waits: Waits) -> Result<()> {
        let Some(peer) = at(&mut self.peers, link) else {
            return Ok(());
        };
        if let Some(account) = peer.account {
            if peer.owed + peer.counted >= ANSWERS && !peer.is_own() {
                self.counts.refused.unread_answers += 1;
                let text = "the peer asks for more than it reads";
                return Err(Error::new(ErrorKind::Protocol, text));
            }
            match waits {
                Waits::Charged => {
                    self.ledger.take(account, Amount::bytes(ANSWER))?;
                    peer.owed += 1;
                }
                Waits::Counted => peer.counted += 1,
                Waits::Own => {}
            }
        }
        Ok(())
    }

    /// One of them has gone.
    pub(crate) fn pay(&mut self, link: LinkId, waits: Waits) {
        let Some(peer) = at(&mut self.peers, link) else {
            return;
        };
        match waits {
            Waits::Charged if peer.owed > 0 => {
                peer.owed -= 1;
                if let Some(account) = peer.account {
                    self.ledger.give(account, Amount::bytes(ANSWER));
                }
            }
            Waits::Counted => peer.counted = peer.counted.saturating_sub(1),
            _ => {}
        }
    }

    /// A long message begins, of which the rest is to come: what is to hold it is charged before it is there.
    /// Errors: `Exhausted`: there is no room for it.
    pub(crate) fn begin_arriving(&mut self, link: LinkId, bytes: usize) -> Result<()> {
        let Some(peer) = at(&mut self.peers, link) else {
            return Ok(());
        };
        if let Some(account) = peer.account
            && let Some(arriving) = u32::try_from(bytes)
                .ok()
                .and_then(|bytes| peer.arriving.checked_add(bytes))
        {
            self.ledger.take(account, Amount::bytes(bytes))?;
            peer.arriving = arriving;
        }
        Ok(())
    }

    /// A message of so many bytes is here: if it came in parts, what holds them is charged otherwise now, or goes.
    pub(crate) fn end_arriving(&mut self, link: LinkId, bytes: usize) {
        if let Some(peer) = at(&mut self.peers, link)
            && let Some(account) = peer.account
            && peer.arriving > 0
        {
            let bytes = bytes.min(peer.arriving as usize);
            peer.arriving -= bytes as u32;
            self.ledger.give(account, Amount::bytes(bytes));
        }
    }

    /// A connection ends: its answers go nowhere, and what was on its way does not come.
    pub(crate) fn forgive(&mut self, link: LinkId, account: AccountId) {
        if let Some(peer) = at(&mut self.peers, link) {
            peer.counted = 0;
            let owed = std::mem::take(&mut peer.owed) as usize * ANSWER;
            let arriving = std::mem::take(&mut peer.arriving) as usize;
            self.ledger.give(account, Amount::bytes(owed + arriving));
        }
    }

    #[inline]
    fn let_go(&mut self, taken: &Taken<Unexpected>) {
        self.ledger.give(taken.account, amount(&taken.message));
    }
}

impl Core {
    /// Keeps a message for which no receive waits.
    /// Errors: `Exhausted`: it is too much.
    pub(crate) fn keep_unexpected(&mut self, message: Unexpected) -> Result<()> {
        let account = self.movers.ctx.account(message.link);
        self.movers.ctx.ledger.take(account, amount(&message))?;
        let order = self.unexpected.arrival();
        self.place_unexpected(order, account, message);
        Ok(())
    }

    /// Puts a message back where it was. It is in the memory of a receive that the program has dropped, and counts as one, however long it is. A peer that is
    /// slow in sending what it announced has many put back where the program gives each a receive of its own, for some time: those are bounded by number.
    pub(crate) fn return_unexpected(&mut self, order: Arrival, message: Unexpected) {
        let (account, link) = (self.movers.ctx.account(message.link), message.link);
        let arrives = matches!(message.body, Body::Arriving { .. });
        self.movers.ctx.ledger.hold(account, amount(&message));
        self.place_unexpected(order, account, message);
        if arrives && let Err(error) = self.movers.ctx.ledger.check_messages(account) {
            self.movers.ctx.failures.push((link, error));
        }
    }

    fn place_unexpected(&mut self, order: Arrival, account: AccountId, message: Unexpected) {
        if message.is_lent()
            && let Some(name) = message.name()
        {
            self.movers.ctx.unmatched.add(name, order);
        }
        self.unexpected.insert(message.tag, order, account, message);
    }

    /// Takes the earliest message that a receive of `tag` under `mask` accepts.
    #[inline]
    pub(crate) fn take_unexpected(&mut self, tag: Tag, mask: Mask) -> Option<Taken<Unexpected>> {
        let taken = self.unexpected.take_match(tag, mask)?;
        self.movers.ctx.let_go(&taken);
        Some(taken)
    }

    /// The same of one peer's.
    pub(crate) fn take_unexpected_of(
        &mut self,
        (link, from): (LinkId, EndpointId),
        tag: Tag,
        mask: Mask,
    ) -> Option<Taken<Unexpected>> {
        let peer = self.movers.ctx.endpoint(link, from);
        let peer = peer.filter(|peer| peer.is_alive());
        let account = peer.map(|peer| peer.account.unwrap_or(AccountId::NOBODY));
        let is_own = |message: &Unexpected| message.from == from;
        let taken = self.unexpected.take_match_of(account, tag, mask, is_own)?;
        self.movers.ctx.let_go(&taken);
        Some(taken)
    }

    /// Takes the message of this name.
    pub(crate) fn take_named(&mut self, name: Name) -> Option<Taken<Unexpected>> {
        let taken = self.unexpected.take_named(name)?;
        self.movers.ctx.let_go(&taken);
        Some(taken)
    }

    /// Forgets what a connection has announced and nobody has matched.
    pub(crate) fn forget_announced_of(&mut self, link: LinkId, account: Option<AccountId>) {
        if let Some(account) = account {
            let announced = |message: &Unexpected| matches!(message.body, Body::Announced(_));
            for taken in self.unexpected.take_of(account, announced) {
                self.movers.ctx.let_go(&taken);
            }
        }
        self.am_ended(link);
    }

    /// Forgets all messages that a connection has brought.
    pub(crate) fn forget_all_of(&mut self, account: AccountId) {
        // What is on its way to a receive whose future is gone ends with that.
        let whole = |message: &Unexpected| !matches!(message.body, Body::Arriving { .. });
        for taken in self.unexpected.take_of(account, whole) {
            self.movers.ctx.let_go(&taken);
            self.movers.ctx.defer_drop_body(taken.message.body);
        }
        self.am_forget(account);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{
        memory::BufferMut,
        protocol::{am, control},
        transport::Sink,
        types::AmId,
        worker::{
            frames::{Bed, LINK},
            inbox::tests::rts,
        },
    };

    const STRANGER: LinkId = LinkId::new(9, 9);

    /// Work for a message is bounded, however much others have left: bounds that separate a look at all of it from a look-up.
    #[track_caller]
    fn is_short_work(work: impl FnOnce()) {
        let begun = Instant::now();
        work();
        assert!(begun.elapsed() < Duration::from_secs(3), "a walk for each");
    }

    #[test]
    fn a_call_back_looks_at_no_other_message() {
        let mut bed = Bed::new(usize::MAX);
        for number in 0..300_000_u64 {
            let message = Unexpected {
                link: STRANGER,
                from: EndpointId(7),
                tag: Tag(number),
                body: Body::Inline {
                    length: 0,
                    bytes: [0; 48],
                    ack: None,
                },
            };
            bed.core.keep_unexpected(message).expect("room");
        }
        is_short_work(|| {
            for op in 0..4000 {
                let known = op % 2 == 0;
                if known {
                    bed.say(control::TAG_RTS, 7, &rts(100, op))
                        .expect("announced");
                }
                let answer = bed.say(control::CANCEL, op, &[]).expect("answered");
                assert_eq!(answer.len(), usize::from(known));
            }
        });
    }

    #[test]
    fn a_call_back_looks_at_no_other_active_message() {
        const ID: AmId = AmId(3);
        let mut bed = Bed::new(usize::MAX);
        let serial = bed.core.am_open(ID, 200_000).expect("opened");
        for op in 0..100_000 {
            // The first tells the rest of the capacity.
            bed.say(control::AM_RTS, am::word(ID, 0), &rts(100, op))
                .expect("credit");
        }
        is_short_work(|| {
            for op in 99_000..105_000 {
                let known = op < 100_000;
                let answer = bed.say(control::CANCEL, op, &[]).expect("answered");
                assert_eq!(!answer.is_empty(), known, "{op}: {answer:?}");
            }
        });
        let mut left = 0;
        while bed.core.am_take(ID, serial).is_some() {
            left += 1;
        }
        assert_eq!(left, 99_000);
        assert_eq!(bed.core.movers.ctx.ledger.held(), Amount::default());
    }

    #[test]
    fn what_was_called_back_in_the_middle_is_passed_over() {
        const ID: AmId = AmId(3);
        let mut bed = Bed::new(usize::MAX);
        let serial = bed.core.am_open(ID, 16).expect("opened");
        for op in 0..16 {
            bed.say(control::AM_RTS, am::word(ID, 0), &rts(100, op))
                .expect("credit");
        }
        for op in [3, 4, 15, 0] {
            bed.say(control::CANCEL, op, &[]).expect("answered");
        }
        let mut left = Vec::new();
        while let Some(arrived) = bed.core.am_take(ID, serial) {
            match arrived.content {
                crate::worker::inbox::Content::Announced(announced) => left.push(announced.rts.op),
                _ => panic!("not announced"),
            }
        }
        assert_eq!(left, [1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        assert_eq!(bed.core.movers.ctx.ledger.held(), Amount::default());
    }

    fn limited(connection: u64) -> Bed {
        let mut bed = Bed::new(100);
        bed.limit(|limits| limits.each_connection(|quota| quota.unexpected_bytes(connection)));
        bed
    }

    /// Short messages take more memory than their bytes, and that is what counts. Who goes beyond the limit is cut off, and nothing of it is kept.
    #[test]
    fn beyond_the_limit_nothing_is_kept() {
        let mut bed = limited(64 << 10);
        let mut sent = 0;
        let error = loop {
            match bed.core.message(LINK, control::TAG_EAGER, 7, &[]) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert!((100..64 << 10 >> 6).contains(&sent), "{sent} messages");
        assert_eq!(bed.core.unexpected.len(), sent);
        bed.core.fail(LINK, error);
        assert!(bed.core.unexpected.is_empty());
        assert_eq!(bed.core.movers.ctx.ledger.held(), Amount::default());
        assert_eq!(bed.core.movers.ctx.ledger.sources(), 0);
    }

    /// What had arrived whole stays when its sender goes, and counts until it is received.
    #[test]
    fn what_arrived_whole_stays() {
        let mut bed = limited(1 << 20);
        for length in [0, 48, 49, 5000] {
            bed.say(control::TAG_EAGER, 7, &vec![1; length])
                .expect("kept");
        }
        bed.say(control::TAG_RTS, 7, &rts(100, 1)).expect("kept");
        let gone = Error::new(ErrorKind::ConnectionReset, "the peer closed the connection");
        bed.core.fail(LINK, gone);
        assert_eq!(bed.core.unexpected.len(), 4, "the announced one went");
        let held = bed.core.movers.ctx.ledger.held();
        assert_eq!(held.0[1], 4);
        assert!((5049..8192).contains(&held.0[0]), "{held:?}");
        for _ in 0..4 {
            assert!(bed.core.take_unexpected(Tag(7), Mask::ALL).is_some());
        }
        assert_eq!(bed.core.movers.ctx.ledger.held(), Amount::default());
        assert_eq!(
            bed.core.movers.ctx.ledger.sources(),
            0,
            "the account went with the last"
        );
    }

    /// Receives of their own for messages that the peer announces, and of which nothing comes
    /// before their futures are dropped.
    fn put_back(bed: &mut Bed, count: u64) {
        for number in 0..count {
            let buffer = BufferMut::from(vec![0; 100]);
            let key = bed.core.post_receive(Tag(7), Mask::ALL, buffer, false);
            bed.say(control::TAG_RTS, 7, &rts(100, number))
                .expect("announced");
            bed.core.drop_future(key);
        }
    }

    /// A peer that announces messages, and is slow in sending them until their receives are
    /// dropped, has no more put back than twice its limit.
    #[test]
    fn messages_that_are_put_back_are_bounded() {
        let mut bed = Bed::new(usize::MAX);
        bed.limit(|limits| limits.each_connection(|quota| quota.unexpected_messages(50)));
        put_back(&mut bed, 100);
        assert_eq!(bed.core.unexpected.len(), 100);
        assert!(bed.core.movers.ctx.failures.is_empty());
        put_back(&mut bed, 1);
        let (link, error) = bed.core.movers.ctx.failures.pop().expect("too many");
        assert_eq!((link, error.kind()), (LINK, ErrorKind::Exhausted));
        bed.core.fail(link, error);
        assert!(bed.core.unexpected.is_empty());
        assert_eq!(bed.core.movers.ctx.operations.len(), 0);
        assert_eq!(bed.core.movers.ctx.ledger.held(), Amount::default());
    }

    /// One that is long ends nothing.
    #[test]
    fn a_long_message_is_put_back() {
        let mut bed = limited(64 << 10);
        let buffer = BufferMut::from(vec![0; 200_000]);
        let key = bed.core.post_receive(Tag(7), Mask::ALL, buffer, false);
        bed.say(control::TAG_EAGER, 7, &vec![1; 200_000])
            .expect("received");
        bed.core.drop_future(key);
        assert_eq!(bed.core.unexpected.len(), 1);
        assert!(bed.core.movers.ctx.failures.is_empty());
    }

    /// Neither those that arrived before it nor those that did after it are looked at for one that
    /// is put back near the end, or the front, of them.
    #[test]
    fn a_message_that_is_put_back_looks_at_few_others() {
        const OTHERS: usize = 300_000;
        for same in [true, false] {
            let mut bed = Bed::new(usize::MAX);
            let fill = |bed: &mut Bed| {
                for number in 0..OTHERS as u64 {
                    let message = Unexpected {
                        link: STRANGER,
                        from: EndpointId(7),
                        tag: Tag(if same { 7 } else { number + 100 }),
                        body: Body::Inline {
                            length: 0,
                            bytes: [0; 48],
                            ack: None,
                        },
                    };
                    bed.core.keep_unexpected(message).expect("room");
                }
            };
            // Of one tag they come after it, of others before it.
            if !same {
                fill(&mut bed);
            }
            let keys = [(); 4000].map(|()| {
                let buffer = BufferMut::from(vec![0; 8]);
                let key = bed.core.post_receive(Tag(7), Mask::ALL, buffer, false);
                bed.say(control::TAG_EAGER, 7, &[1]).expect("received");
                key
            });
            if same {
                fill(&mut bed);
            }
            is_short_work(|| keys.iter().rev().for_each(|key| bed.core.drop_future(*key)));
            assert_eq!(bed.core.unexpected.len(), OTHERS + 4000);
            let first = bed.core.take_unexpected(Tag(7), Mask::ALL).expect("one");
            assert_eq!(first.message.link, LINK);
        }
    }
}
