//! When a sender goes from one set of its cells to the other: to the near ones where it is answered message by message, back where it is not.

/// Messages after which it is looked at again whether they were answered.
const PERIOD: u64 = 64;

/// The longest period of one whose near cells were full time and again.
const LONGEST: u64 = 1 << 20;

/// What a sender remembers of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turns {
    /// Number of the message at which it is looked at next.
    next: u64,
    /// Messages between two looks from the far cells.
    period: u64,
    /// Number of the message at which it was looked at last, and what this end had received then, as far as it had said so.
    last: (u64, u64),
}

impl Turns {
    pub(super) const fn new() -> Self {
        Self {
            next: PERIOD,
            period: PERIOD,
            last: (0, 0),
        }
    }

    #[inline(always)]
    pub(super) fn is_due(&self, tail: u64) -> bool {
        tail >= self.next
    }

    /// Whether the sender should turn, by what it has received since the last look.
    pub(super) fn judge(&mut self, tail: u64, answers: u64, is_near: bool) -> bool {
        let answered = answers.wrapping_sub(self.last.1) >= (tail - self.last.0) / 2;
        if is_near && answered {
            self.period = PERIOD;
        }
        self.begin(tail, answers, is_near);
        answered != is_near
    }

    /// It has turned, and is near now or not; `is_full`: because the receiver was too far behind for the near cells.
    pub(super) fn turned(&mut self, tail: u64, answers: u64, is_near: bool, is_full: bool) {
        if is_full {
            self.period = (self.period * 4).min(LONGEST);
        }
        self.begin(tail, answers, is_near);
    }

    fn begin(&mut self, tail: u64, answers: u64, is_near: bool) {
        self.last = (tail, answers);
        self.next = tail + if is_near { PERIOD } else { self.period };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_answered_turns_and_who_is_not_turns_back() {
        let mut turns = Turns::new();
        assert!(!turns.is_due(PERIOD - 1) && turns.is_due(PERIOD));
        assert!(turns.judge(64, 32, false), "every other one was answered");
        turns.turned(64, 32, true, false);
        assert!(!turns.judge(128, 96, true));
        assert!(turns.judge(192, 100, true));
        turns.turned(192, 100, false, false);
        assert!(!turns.judge(256, 100, false));
    }

    #[test]
    fn near_cells_that_are_full_again_and_again_are_tried_less_and_less() {
        let mut turns = Turns::new();
        let (mut tail, mut tried) = (0, 0);
        while tail < 4 * LONGEST {
            tail += 1;
            if turns.is_due(tail) && turns.judge(tail, tail, false) {
                turns.turned(tail, tail, true, false);
                turns.turned(tail + 31, tail + 31, false, true);
                tried += 1;
            }
        }
        assert!((8..20).contains(&tried), "{tried} times");
    }
}
