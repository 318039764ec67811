//! Windows: how much a peer may send before the receiver has taken anything of it, and when what was taken is given back.
//!
//! ```text
//!  ┌──────────── size ─────────────┐
//!  │   left    │  owed  │  unread  │   left:   what the sender may still send, once all that is under way has arrived
//!  └───────────┴────────┴──────────┘   owed:   taken here, and not given back
//!   ◀── give ──┘        └── read ──▶   unread: arrived, and not taken
//! ```
//!
//! What is owed is given back at once when it is a step, or no less than what the sender has left: so a window that is mostly unread
//! comes back in small pieces, and an empty one in large ones. Where even that is little, and the sender has next to nothing left, it is given
//! back as soon as nothing more is being taken: a receiver that empties a full window piece by piece answers once and not for each piece.
//! So no sender waits for room that is there, and none gets an answer for each message. What is given back goes in a frame of its own: while there is room one
//! for each step of the window, which of tagged messages of 8 bytes is one for some 3,600. A place for it in every message that goes the other way would cost more.
//!
//! One type for tagged messages (bytes), active messages of an id (messages, and bytes of those that go unasked) and streams (bytes).

use crate::protocol::{EAGER_WINDOW, am, stream::STREAM_BYTES};

/// When a window is given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// All of it.
    pub(crate) size: u64,
    /// Owed, it is given back whatever else.
    step: u64,
    /// With less than this a sender may have to wait. At least 1.
    grain: u64,
}

/// Payload of messages that go first when there is little room: those that are to leave at once.
pub(crate) const SHORT: usize = 1 << 10;
/// Room that longer ones leave to them.
const SHORT_SHARE: u64 = 32 << 10;

impl Terms {
    /// Eager tagged messages of a connection.
    pub(crate) const EAGER: Self = Self {
        size: EAGER_WINDOW,
        step: EAGER_WINDOW / 4,
        grain: 4 << 10,
    };

    /// Bytes of eager active messages of an id.
    pub(crate) const ACTIVE: Self = Self {
        size: am::WINDOW,
        step: am::WINDOW / 4,
        grain: 4 << 10,
    };

    /// Bytes of a stream.
    pub(crate) const STREAM: Self = Self {
        size: STREAM_BYTES,
        step: STREAM_BYTES / 2,
        grain: STREAM_BYTES / 4,
    };

    /// While the sender has more left than this, nothing is due: what is owed is less than a step, and less than what is left.
    #[inline(always)]
    pub(crate) const fn plenty(&self) -> u64 {
        const fn larger(one: u64, other: u64) -> u64 {
            if one > other { one } else { other }
        }
        let short_of_a_step = self.size.saturating_sub(self.step);
        larger(larger(short_of_a_step, self.size / 2), self.grain)
    }

    /// Active messages of an id, of which `capacity` may wait.
    #[inline]
    pub(crate) const fn messages(capacity: u32) -> Self {
        let step = if capacity < 4 { 1 } else { capacity as u64 / 4 };
        Self {
            size: capacity as u64,
            step,
            grain: step,
        }
    }
}

/// What an eager message of `length` bytes costs.
#[inline]
pub(crate) const fn eager_cost(length: usize) -> u64 {
    length as u64 + 64
}

/// What must be left for one to go: a long one leaves the short ones their share.
#[inline]
pub(crate) const fn eager_need(length: usize) -> u64 {
    eager_cost(length) + if length > SHORT { SHORT_SHARE } else { 0 }
}

/// The sender's end.
#[derive(Debug, Default)]
pub(crate) struct SendWindow {
    left: u64,
}

impl SendWindow {
    pub(crate) const fn new(left: u64) -> Self {
        Self { left }
    }

    #[inline]
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Counts what is sent; no more than there is.
    #[inline]
    pub(crate) fn take(&mut self, amount: u64) {
        self.left = self.left.saturating_sub(amount);
    }

    /// What it is once this much has gone. `None`: there is not enough left for it.
    #[inline(always)]
    pub(crate) fn after(&self, amount: u64) -> Option<Self> {
        self.left.checked_sub(amount).map(Self::new)
    }

    /// The receiver gives some back. `false`: more than it had got.
    #[inline]
    pub(crate) fn returned(&mut self, amount: u64, size: u64) -> bool {
        let left = self.left.saturating_add(amount);
        self.left = left.min(size);
        left <= size
    }
}

/// The receiver's end.
#[derive(Debug, Default)]
pub(crate) struct ReceiveWindow {
    left: u64,
    unread: u64,
    /// It is to be looked at until nothing more is taken, and what was owed at the last look.
    noted: bool,
    seen: u64,
}

/// What follows a change of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    /// Give back what is owed.
    Now,
    /// Look at it in each pass from now on ([`ReceiveWindow::look`]). Said once.
    Later,
}

/// What a look says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing to do any more.
    Over,
    /// Things are being taken.
    Again,
    /// Give back what is owed; no more looks.
    Give,
}

impl ReceiveWindow {
    pub(crate) const fn new(left: u64) -> Self {
        Self {
            left,
            unread: 0,
            noted: false,
            seen: 0,
        }
    }

    /// What has arrived and was not taken.
    #[cfg(test)]
    pub(crate) fn unread(&self) -> u64 {
        self.unread
    }

    /// Whether the peer may send this much.
    #[inline]
    pub(crate) fn admits(&self, amount: u64) -> bool {
        amount <= self.left
    }

    /// Counts what arrives. `false`: more than the peer may send.
    #[inline]
    pub(crate) fn hold(&mut self, amount: u64) -> bool {
        let admitted = self.admits(amount);
        self.left = self.left.saturating_sub(amount);
        self.unread += amount;
        admitted
    }

    /// The same for what is taken as it arrives.
    #[inline]
    pub(crate) fn pass(&mut self, amount: u64) -> bool {
        let admitted = self.admits(amount);
        self.left = self.left.saturating_sub(amount);
        admitted
    }

    /// Counts what is taken.
    #[inline]
    pub(crate) fn read(&mut self, amount: u64) {
        self.unread = self.unread.saturating_sub(amount);
    }

    /// Taken and given back by other means.
    pub(crate) fn refuse(&mut self, amount: u64) {
        self.read(amount);
        self.left += amount;
    }

    #[inline(always)]
    fn owed(&self, terms: &Terms) -> u64 {
        terms.size.saturating_sub(self.left + self.unread)
    }

    /// Whether the peer may send more than this: with [`Terms::plenty`], whether nothing is due.
    #[inline(always)]
    pub(crate) fn has_more_than(&self, amount: u64) -> bool {
        self.left > amount
    }

    /// What follows. To be asked after what was taken, and after what arrived and was not.
    #[inline(always)]
    pub(crate) fn due(&mut self, terms: &Terms) -> Due {
        // However little of it is unread.
        if self.has_more_than(terms.plenty()) {
            return Due::Nothing;
        }
        self.due_now(terms)
    }

    #[inline(never)]
    fn due_now(&mut self, terms: &Terms) -> Due {
        let owed = self.owed(terms);
        if owed >= terms.step || owed >= self.left.max(terms.grain) {
            Due::Now
        } else if owed > 0 && self.left < terms.grain && !self.noted {
            self.noted = true;
            self.seen = 0;
            Due::Later
        } else {
            Due::Nothing
        }
    }

    /// Whether the peer lacks the room for this much, and would have it with what is owed.
    #[inline]
    pub(crate) fn lacks(&self, amount: u64, terms: &Terms) -> bool {
        !self.admits(amount) && amount <= self.left + self.owed(terms)
    }

    /// A look in a pass.
    pub(crate) fn look(&mut self, terms: &Terms) -> Look {
        let owed = self.owed(terms);
        if owed == 0 || self.left >= terms.grain {
            self.noted = false;
            Look::Over
        } else if std::mem::replace(&mut self.seen, owed) != owed {
            Look::Again
        } else {
            self.noted = false;
            Look::Give
        }
    }

    /// Nobody may be looking any more.
    pub(crate) fn overlook(&mut self) {
        self.noted = false;
    }

    /// What is owed, to be told to the peer.
    pub(crate) fn give(&mut self, terms: &Terms) -> u64 {
        let owed = self.owed(terms);
        self.left += owed;
        owed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// Both ends of a window, and what is under way between them.
    struct Ends {
        terms: Terms,
        sender: SendWindow,
        receiver: ReceiveWindow,
        forth: VecDeque<u64>,
        back: VecDeque<u64>,
        unread: u64,
        noted: bool,
        answers: u64,
        taken: u64,
    }

    impl Ends {
        fn new(terms: Terms) -> Self {
            Self {
                terms,
                sender: SendWindow::new(terms.size),
                receiver: ReceiveWindow::new(terms.size),
                forth: VecDeque::new(),
                back: VecDeque::new(),
                unread: 0,
                noted: false,
                answers: 0,
                taken: 0,
            }
        }

        fn send(&mut self, amount: u64) -> bool {
            let fits = amount <= self.sender.left();
            if fits {
                self.sender.take(amount);
                self.forth.push_back(amount);
            }
            fits
        }

        fn follow(&mut self, due: Due) {
            match due {
                Due::Nothing => {}
                Due::Now => self.give(),
                Due::Later => {
                    assert!(!self.noted, "said twice");
                    self.noted = true;
                }
            }
        }

        fn give(&mut self) {
            let amount = self.receiver.give(&self.terms);
            assert!(amount > 0, "an answer that says nothing");
            self.answers += 1;
            self.back.push_back(amount);
        }

        fn arrive(&mut self) {
            if let Some(amount) = self.forth.pop_front() {
                assert!(self.receiver.hold(amount), "both keep the same books");
                self.unread += amount;
                let due = self.receiver.due(&self.terms);
                self.follow(due);
            }
        }

        fn take(&mut self, amount: u64) {
            let amount = amount.min(self.unread);
            self.unread -= amount;
            self.taken += amount;
            self.receiver.read(amount);
            let due = self.receiver.due(&self.terms);
            self.follow(due);
        }

        fn pass(&mut self) {
            if self.noted {
                let look = self.receiver.look(&self.terms);
                self.noted = look == Look::Again;
                if look == Look::Give {
                    self.give();
                }
            }
        }

        fn hear(&mut self) {
            if let Some(amount) = self.back.pop_front() {
                assert!(self.sender.returned(amount, self.terms.size));
            }
        }

        fn check(&self) {
            let forth: u64 = self.forth.iter().sum();
            let back: u64 = self.back.iter().sum();
            assert_eq!(self.receiver.left, self.sender.left() + forth + back);
            assert_eq!(self.receiver.unread, self.unread);
            assert!(self.receiver.left + self.unread <= self.terms.size);
            let owed = self.receiver.owed(&self.terms);
            assert!(owed < self.terms.step && owed < self.receiver.left.max(self.terms.grain));
        }

        fn settle(&mut self) {
            while !self.forth.is_empty() {
                self.arrive();
            }
            self.pass();
            self.pass();
            while !self.back.is_empty() {
                self.hear();
            }
        }

        /// With all that was under way arrived the sender has the room that there is, or enough not to wait.
        fn check_settled(&mut self) {
            self.settle();
            assert!(!self.noted, "looked at for ever");
            let room = self.terms.size - self.unread;
            let left = self.sender.left();
            assert!(left == room || left >= self.terms.grain && left > room / 2);
        }
    }

    fn terms() -> impl Strategy<Value = Terms> {
        prop_oneof![
            Just(Terms::EAGER),
            Just(Terms::ACTIVE),
            Just(Terms::STREAM),
            (1u32..2000).prop_map(Terms::messages),
            (2u64..5000, 1u64..=100, 1u64..=100).prop_map(|(size, step, grain)| {
                let step = (size / 2 * step / 100).max(1);
                let grain = (step * grain / 100).max(1);
                Terms { size, step, grain }
            }),
        ]
    }

    proptest! {
        #[test]
        fn no_sender_waits_for_room_that_is_there(
            terms in terms(),
            steps in prop::collection::vec((0u8..6, 1u64..100), 0..300),
        ) {
            let mut ends = Ends::new(terms);
            for (step, part) in steps {
                let amount = (terms.size * part / 100).max(1);
                match step {
                    0 => { ends.send(amount); }
                    1 => ends.arrive(),
                    2 => ends.take(amount),
                    3 => ends.take(1),
                    4 => ends.pass(),
                    _ => ends.hear(),
                }
                ends.check();
            }
            ends.check_settled();
        }

        /// Whatever is unread, what fits is sent and taken for ever.
        #[test]
        fn what_fits_goes_on(terms in terms(), full in 0u64..=100, lengths in prop::collection::vec(1u64..100, 1..50)) {
            let mut ends = Ends::new(terms);
            let full = (terms.size - 1) * full / 100;
            prop_assert!(full == 0 || ends.send(full));
            ends.settle();
            for length in lengths {
                let length = (terms.grain * length / 100).max(1);
                if length > terms.size - full {
                    continue;
                }
                prop_assert!(ends.send(length), "it waits for room that is there");
                ends.settle();
                ends.take(length);
                ends.check();
                ends.settle();
            }
        }

        /// Nothing is answered by itself where there is room, nor where a full window is emptied piece by piece.
        #[test]
        fn answers_are_few(terms in terms(), piece in 1u64..1000, stuffed: bool) {
            let mut ends = Ends::new(terms);
            let piece = piece.min(terms.size);
            for _ in 0..200 {
                while ends.send(piece) && stuffed {}
                if stuffed {
                    while !ends.forth.is_empty() {
                        ends.arrive();
                    }
                    ends.take(piece);
                } else {
                    ends.arrive();
                    ends.take(piece);
                    ends.pass();
                }
                while !ends.back.is_empty() {
                    ends.hear();
                }
            }
            let least = terms.grain.min(terms.step).min(terms.size);
            prop_assert!(ends.answers <= ends.taken / least, "{} answers for {}", ends.answers, ends.taken);
        }
    }

    #[test]
    fn more_than_the_window_is_noticed_on_both_ends() {
        let mut receiver = ReceiveWindow::new(100);
        assert!(receiver.hold(60) && receiver.pass(40) && !receiver.pass(1) && !receiver.hold(1));
        let mut sender = SendWindow::new(100);
        sender.take(60);
        assert!(sender.returned(60, 100) && !sender.returned(1, 100));
        assert_eq!(sender.left(), 100);
        assert!(!sender.returned(u64::MAX, 100));
    }

    #[test]
    fn long_messages_leave_room_for_short_ones() {
        let mut sender = SendWindow::new(Terms::EAGER.size);
        while eager_need(8000) <= sender.left() {
            sender.take(eager_cost(8000));
        }
        let mut short = 0;
        while eager_need(8) <= sender.left() {
            sender.take(eager_cost(8));
            short += 1;
        }
        assert!(short >= 400, "{short}");
    }
}
