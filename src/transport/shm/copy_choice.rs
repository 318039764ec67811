//! How a sender writes bodies of 2 KiB and more into its ring: by what that was seen to take.
//!
//! By vectors a line is read from the reader's cache before it is overwritten, by `rep movsb` it is taken over unread, and past the caches it goes to memory,
//! where its reader finds it (`util::copy`). Which takes less time is the matter of how far the reader's processor is, and of whether it reads at all; a
//! virtual machine's processors move, and a task may. So the time that passes from one look at the reader's head to another is taken, the other ways are
//! tried now and then, and one stays if it is clearly faster.
//!
//! ```text
//! the usual way, AT_ONCE or FIRST periods ─▶ another, TRIED periods ─▶ whichever had the shortest period;
//!                                                                     one that is not the first by an eighth
//! ```
//! After a trial in vain the next one, of the next way, comes after twice as many periods, up to MOST.
//!
//! A period in which the sender had nothing to send, or waited for its reader, is long either way: the shortest ones are compared. Bodies of 8 KiB and more
//! have a choice of their own: there `rep movsb` is the first way.

use std::time::Instant;

use crate::util::copy::Across;

/// Bodies that there is a choice for: from this length on, and from that one on another.
const LEAST: usize = 2 << 10;
const LONG: usize = 8 << 10;
/// Bytes of a period, at least: a look at the clock takes 25 ns, a thousandth of it.
const PERIOD: u64 = 512 << 10;
/// Periods before the very first trial: one way may take eight times as long as another.
const AT_ONCE: u32 = 4;
/// Periods before another, and between two at most.
const FIRST: u32 = 16;
const MOST: u32 = 512;
/// Periods of a trial, fewer than those before one.
const TRIED: u32 = 2;
/// The order in which ways are tried, from the second on.
const ORDER: [Across; 3] = [Across::Plain, Across::Past, Across::String];

/// The choice of one ring's sender.
#[derive(Debug)]
pub(super) struct CopyChoice {
    /// The ways of shorter bodies, and of longer ones.
    ways: [Across; 2],
    /// What is known, once there is something: most connections never fill their ring.
    known: Option<Box<[Choice; 2]>>,
}

/// That for bodies of some lengths.
#[derive(Debug)]
struct Choice {
    /// The way that is left only for a clear gain.
    first: Across,
    usual: Across,
    trial: Option<Across>,
    /// That of the last trial.
    last: Across,
    /// Periods left of the trial, or before the next.
    left: u32,
    /// Periods before the next one, once this one is over.
    pause: u32,
    /// When the period began, and how many bytes had been sent then.
    began: Option<(Instant, u64)>,
    /// Picoseconds for each byte in the shortest period: of the last [`FIRST`] of the usual way's, and of the trial's.
    took: u64,
    tried: u64,
}

impl CopyChoice {
    pub(super) fn new() -> Self {
        let long = Some(Across::String).filter(|way| way.is_here());
        Self::of([Across::Plain, long.unwrap_or(Across::Plain)])
    }

    fn of(ways: [Across; 2]) -> Self {
        Self { ways, known: None }
    }

    /// How a body of this length is written.
    #[inline(always)]
    pub(super) fn how(&self, length: usize) -> Across {
        match length {
            0..LEAST => Across::Plain,
            LEAST..LONG => self.ways[0],
            _ => self.ways[1],
        }
    }

    /// A body of this length goes on, after a look at the head: `sent` bytes have gone before it.
    pub(super) fn looked(&mut self, length: usize, sent: u64) {
        self.looked_at(
            length,
            sent,
            |choice| choice.next(Across::is_here),
            Instant::now,
        );
    }

    fn looked_at(
        &mut self,
        length: usize,
        sent: u64,
        next: impl Fn(&Choice) -> Option<Across>,
        now: impl Fn() -> Instant,
    ) {
        if length < LEAST && self.known.is_none() {
            return;
        }
        let ways = &mut self.ways;
        let known = self
            .known
            .get_or_insert_with(|| Box::new(ways.map(Choice::new)));
        let lengths = [LEAST..LONG, LONG..usize::MAX];
        for ((choice, way), lengths) in known.iter_mut().zip(ways).zip(lengths) {
            match lengths.contains(&length) {
                true => *way = choice.looked(sent, &next, &now),
                false => *way = choice.interrupted(),
            }
        }
    }
}

impl Choice {
    fn new(first: Across) -> Self {
        Self {
            first,
            usual: first,
            trial: None,
            last: Across::Plain,
            left: AT_ONCE,
            pause: FIRST,
            began: None,
            took: u64::MAX,
            tried: u64::MAX,
        }
    }

    fn way(&self) -> Across {
        self.trial.unwrap_or(self.usual)
    }

    /// The way to try after the last one. `None`: there is only one.
    fn next(&self, is_here: impl Fn(Across) -> bool) -> Option<Across> {
        let after = ORDER.iter().position(|way| *way == self.last)? + 1;
        let (before, behind) = ORDER.split_at(after);
        let mut all = behind.iter().chain(before).copied();
        all.find(|way| *way != self.usual && is_here(*way))
    }

    /// The way from here on.
    fn looked(
        &mut self,
        sent: u64,
        next: impl Fn(&Self) -> Option<Across>,
        now: impl Fn() -> Instant,
    ) -> Across {
        match self.began {
            None => self.began = Some((now(), sent)),
            Some((began, before)) if sent - before >= PERIOD => {
                let now = now();
                let took = now.duration_since(began).as_nanos() as u64;
                let took = took.saturating_mul(1000) / (sent - before);
                self.began = Some((now, sent));
                self.period(took, next);
            }
            Some(_) => {}
        }
        self.way()
    }

    /// A body of another length goes on. A way that may be much worse is not kept until as many of one length have come in a row.
    fn interrupted(&mut self) -> Across {
        self.began = None;
        if self.trial.take().is_some() {
            self.left = self.pause;
        }
        self.usual
    }

    fn period(&mut self, took: u64, next: impl Fn(&Self) -> Option<Across>) {
        let Some(trial) = self.trial else {
            if self.left == FIRST {
                // Of the last ones only: the processors may have moved since.
                self.took = u64::MAX;
            }
            self.took = took.min(self.took);
            self.left -= 1;
            if self.left == 0 {
                self.trial = next(self);
                self.last = self.trial.unwrap_or(self.last);
                (self.left, self.tried) = match self.trial {
                    Some(_) => (TRIED, u64::MAX),
                    None => (MOST, u64::MAX),
                };
            }
            return;
        };
        self.tried = took.min(self.tried);
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        // Back to the first for any gain: where the first pages are touched, another way looks better by luck.
        let enough = match trial == self.first {
            true => self.took,
            false => self.took - self.took / 8,
        };
        if self.tried < enough {
            (self.usual, self.pause) = (trial, FIRST);
        } else {
            self.pause = (2 * self.pause).min(MOST);
        }
        (self.trial, self.left) = (None, self.pause);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Sends bodies for so many periods, which take so long for each KiB in each way ([`ORDER`]). How many went each way.
    fn send(
        choice: &mut CopyChoice,
        clock: &mut (Instant, u64),
        length: usize,
        ns: [u64; 3],
        periods: u32,
    ) -> [u32; 3] {
        let mut went = [0; 3];
        for _ in 0..periods {
            let way = choice.how(length);
            let way = ORDER
                .iter()
                .position(|known| *known == way)
                .expect("one of them");
            went[way] += 1;
            clock.0 += Duration::from_nanos(ns[way] * (PERIOD >> 10));
            clock.1 += PERIOD;
            choice.looked_at(length, clock.1, |choice| choice.next(|_| true), || clock.0);
        }
        went
    }

    #[test]
    fn the_fastest_way_is_taken_and_left_again() {
        for length in [LEAST, LONG - 1, LONG, 64 << 10] {
            let mut choice = CopyChoice::of([Across::Plain; 2]);
            let mut clock = (Instant::now(), 0);
            let mut send = |ns| send(&mut choice, &mut clock, length, ns, 10_000);
            assert!(send([20, 22, 21])[0] > 9_900);
            // Not by so little.
            assert!(send([20, 19, 20])[0] > 9_900);
            assert!(send([150, 30, 75])[1] > 8_500);
            assert!(send([150, 90, 75])[2] > 8_000);
            assert!(send([20, 30, 30])[0] > 8_000);
        }
    }

    /// Where the first way takes several times as long, it goes on for 2 MiB.
    #[test]
    fn a_clear_gain_is_seen_soon() {
        for (first, length) in [(Across::Plain, LEAST), (Across::String, LONG)] {
            let mut choice = CopyChoice::of([first; 2]);
            let mut clock = (Instant::now(), 0);
            let [plain, _, string] = send(&mut choice, &mut clock, length, [80, 10, 80], 20);
            assert!(plain + string <= 5, "{plain}, {string}");
        }
    }

    #[test]
    fn where_there_is_one_way_it_is_taken() {
        let mut choice = Choice::new(Across::Plain);
        for _ in 0..5000 {
            choice.period(7, |choice| choice.next(|way| way == Across::Plain));
            assert_eq!(choice.way(), Across::Plain);
        }
    }

    /// However much worse, and whatever comes between.
    #[test]
    fn a_trial_ends_with_the_first_body_of_another_length() {
        for other in [64, LONG] {
            let mut choice = CopyChoice::of([Across::Plain; 2]);
            let mut clock = (Instant::now(), 0);
            while choice.how(LEAST) == Across::Plain {
                send(&mut choice, &mut clock, LEAST, [10, 80, 80], 1);
            }
            let next = |choice: &Choice| choice.next(|_| true);
            choice.looked_at(other, clock.1, next, || clock.0);
            assert_eq!(choice.how(LEAST), Across::Plain);
        }
    }

    #[test]
    fn other_lengths_and_short_periods_say_nothing() {
        let (mut choice, start) = (CopyChoice::new(), Instant::now());
        let next = |choice: &Choice| choice.next(|_| true);
        for round in 0..10_000_u64 {
            let at = start + Duration::from_micros(round);
            for length in [LONG, LEAST, 64] {
                choice.looked_at(length, round * PERIOD, next, || at);
            }
        }
        let sent = 9_999 * PERIOD;
        choice.looked_at(4096, sent, next, || start);
        choice.looked_at(4096, sent + PERIOD - 1, next, || start);
        for choice in choice.known.iter().flat_map(|known| &known[..]) {
            assert_eq!((choice.left, choice.trial), (AT_ONCE, None));
        }
        assert_eq!(choice.how(LEAST - 1), Across::Plain);
    }
}
