//! How a sender writes bodies of a few KiB into its ring: by what that was seen to take.
//!
//! By vectors a line is read from the reader's cache before it is overwritten, by `rep movsb` it is taken over unread (`util::copy`). Which takes less time is the
//! matter of how far the reader's processor is, and of whether it reads at all; a virtual machine's processors move, and a task may. So the time that passes
//! from one look at the reader's head to another is taken, the other way is tried now and then, and stays if it is clearly faster.
//!
//! ```text
//! the usual way, FIRST periods ─▶ the other, TRIED periods ─▶ whichever had the shortest period; `rep movsb` if it is by an eighth
//! ```
//! After a trial in vain the next one comes after twice as many periods, up to MOST.
//!
//! A period in which the sender had nothing to send, or waited for its reader, is long either way: the shortest ones are compared.

use std::time::Instant;

use crate::util::copy::{ACROSS, ACROSS_EARLY, can_copy_across};

/// Bytes of a period, at least: a look at the clock takes 25 ns, a thousandth of it.
const PERIOD: u64 = 512 << 10;
/// Periods before the first trial, and between two at most.
const FIRST: u32 = 16;
const MOST: u32 = 512;
/// Periods of a trial, fewer than those before one.
const TRIED: u32 = 2;

/// The choice of one ring's sender.
#[derive(Debug)]
pub(super) struct CopyChoice {
    /// Bodies are copied across from this length on.
    least: usize,
    is_trial: bool,
    /// Periods left of the trial, or before the next.
    left: u32,
    /// Periods before the next one, once this one is over.
    pause: u32,
    /// When the period began, and how many bytes had been sent then.
    began: Option<(Instant, u64)>,
    /// Picoseconds for each byte in the shortest period: of the last [`FIRST`] of the usual way's, and of the trial's.
    usual: u64,
    tried: u64,
}

impl CopyChoice {
    pub(super) fn new() -> Self {
        Self {
            least: ACROSS,
            is_trial: false,
            left: FIRST,
            pause: FIRST,
            began: None,
            usual: u64::MAX,
            tried: u64::MAX,
        }
    }

    /// From which length on bodies are copied across.
    #[inline(always)]
    pub(super) fn least(&self) -> usize {
        self.least
    }

    /// A body of this length goes on, after a look at the head: `sent` bytes have gone before it.
    pub(super) fn looked(&mut self, length: usize, sent: u64) {
        if can_copy_across() {
            self.looked_at(length, sent, Instant::now);
        }
    }

    fn looked_at(&mut self, length: usize, sent: u64, now: impl FnOnce() -> Instant) {
        if !(ACROSS_EARLY..ACROSS).contains(&length) {
            self.began = None;
            return;
        }
        let Some((began, before)) = self.began else {
            self.began = Some((now(), sent));
            return;
        };
        let bytes = sent - before;
        if bytes < PERIOD {
            return;
        }
        let now = now();
        let took = now.duration_since(began).as_nanos() as u64 * 1000 / bytes;
        self.began = Some((now, sent));
        self.period(took);
    }

    fn period(&mut self, took: u64) {
        if self.left == FIRST {
            // Of the last ones only: the processors may have moved since.
            self.usual = u64::MAX;
        }
        let shortest = match self.is_trial {
            true => &mut self.tried,
            false => &mut self.usual,
        };
        *shortest = took.min(*shortest);
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        if !self.is_trial {
            (self.is_trial, self.left, self.tried) = (true, TRIED, u64::MAX);
            self.change();
            return;
        }
        // Back for any gain: where the first pages are touched, the other way looks better by luck.
        let enough = match self.least == ACROSS {
            true => self.usual,
            false => self.usual - self.usual / 8,
        };
        if self.tried < enough {
            self.pause = FIRST;
        } else {
            self.pause = (2 * self.pause).min(MOST);
            self.change();
        }
        (self.is_trial, self.left) = (false, self.pause);
    }

    fn change(&mut self) {
        self.least = ACROSS + ACROSS_EARLY - self.least;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Sends bodies of 4 KiB for so many periods, which take so long for each KiB, by the first way and by the other. How many went by the other.
    fn send(choice: &mut CopyChoice, clock: &mut (Instant, u64), ns: [u64; 2]) -> u32 {
        let mut early = 0;
        for _ in 0..10_000 {
            let is_early = choice.least() == ACROSS_EARLY;
            early += u32::from(is_early);
            clock.0 += Duration::from_nanos(ns[usize::from(is_early)] * (PERIOD >> 10));
            clock.1 += PERIOD;
            choice.looked_at(4096, clock.1, || clock.0);
        }
        early
    }

    #[test]
    fn the_faster_way_is_taken_and_left_again() {
        let (mut choice, mut clock) = (CopyChoice::new(), (Instant::now(), 0));
        let some = 30..60;
        assert!(some.contains(&send(&mut choice, &mut clock, [20, 22])));
        // Not by so little.
        assert!(some.contains(&send(&mut choice, &mut clock, [20, 19])));
        assert!(send(&mut choice, &mut clock, [150, 75]) > 8_500);
        assert!(send(&mut choice, &mut clock, [20, 30]) < 1_500);
    }

    #[test]
    fn other_lengths_and_short_periods_say_nothing() {
        let (mut choice, start) = (CopyChoice::new(), Instant::now());
        for round in 0..10_000_u64 {
            let at = start + Duration::from_micros(round);
            choice.looked_at(ACROSS, round * PERIOD, || at);
            choice.looked_at(4096, round * PERIOD, || at);
        }
        assert_eq!((choice.left, choice.is_trial), (FIRST, false));
        choice.looked_at(4096, 9_999 * PERIOD + PERIOD - 1, || start);
        assert_eq!(choice.left, FIRST);
    }
}
