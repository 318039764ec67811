//! How long a future looks before it sleeps.
//!
//! A window shorter than the peer's own wake-up (8 to 9 µs, and 45 µs, seen in November 2026 on two virtual machines) makes both
//! ends sleep on every message, so there is either hardly any window or a long one.
//!
//! Two peers that sleep for each other's messages wait for long because they sleep, and would go on. So now and then, at random, each looks
//! for some waits in a row as if it paid; when both happen to do so at once, a few short waits show them that it does.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use crate::{config::Progress, worker::turn};

/// The window while spinning pays, and the mean wait up to which it does.
const CAP: Duration = Duration::from_micros(20);
/// A longer wait counts as this one: a long rest is one wait that did not pay, not a thousand.
const LONGEST: Duration = Duration::from_micros(80);
/// The window of a trial: longer than a peer takes to wake up. Of so many waits that are not looked after, one begins a run
/// of trials, and how many those are.
const TRIAL: Duration = LONGEST;
const TRIAL_EVERY: u64 = 512;
const TRIAL_RUN: u32 = 16;
/// The same for the reactor, which looks between the turns of other tasks and so holds nobody up.
const LINGER: Duration = Duration::from_micros(50);
/// Of so many waits on the reactor, this many are looked after for the whole window whatever the mean says: two peers that have both gone to sleep for
/// each other's messages find out that they need not.
const TRIALS: (u32, u32) = (16, 256);
/// The window when it does not.
const GLANCE: Duration = Duration::from_micros(1);
/// Laps between two looks at the clock (40 ns each).
const LAPS: u32 = 4;

#[derive(Debug)]
pub(crate) struct SpinPolicy {
    progress: Progress,
    /// Exponential mean of the waits of this worker, parked time included, in nanoseconds.
    mean: AtomicU64,
    /// Waits that are still to be looked after although it does not seem to pay.
    trials: AtomicU32,
    /// What says when the next trials begin: never zero.
    dice: AtomicU64,
}

impl SpinPolicy {
    pub(crate) fn new(progress: Progress) -> Self {
        Self {
            progress,
            mean: AtomicU64::new(0),
            trials: AtomicU32::new(0),
            dice: AtomicU64::new(RandomState::new().hash_one(0) | 1),
        }
    }

    /// For how long the wait that begins is looked after.
    fn window(&self) -> Duration {
        match self.progress {
            Progress::Adaptive if self.mean() <= CAP => CAP,
            Progress::Adaptive if self.tries() => TRIAL,
            Progress::Adaptive => GLANCE,
            Progress::Spin(window) => window,
            Progress::Busy => CAP,
            _ => Duration::ZERO,
        }
    }

    /// Whether this wait is a trial.
    fn tries(&self) -> bool {
        let left = self.trials.load(Ordering::Relaxed);
        if left > 0 {
            self.trials.store(left - 1, Ordering::Relaxed);
            return true;
        }
        // Marsaglia's xorshift64 with the triple 13, 7, 17.
        let mut dice = self.dice.load(Ordering::Relaxed);
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        self.dice.store(dice, Ordering::Relaxed);
        let begins = dice.is_multiple_of(TRIAL_EVERY);
        if begins {
            self.trials.store(TRIAL_RUN - 1, Ordering::Relaxed);
        }
        begins
    }

    /// Whether looking before sleeping pays, as far as is known.
    #[inline]
    pub(crate) fn pays(&self) -> bool {
        match self.progress {
            Progress::Thread => false,
            Progress::Adaptive => self.mean() <= CAP,
            Progress::Spin(window) => window > GLANCE,
            Progress::Busy => true,
            _ => false,
        }
    }

    /// Whether a future never sleeps.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.progress, Progress::Busy)
    }

    /// Whether a thread of the worker's own does all the work.
    pub(crate) fn is_thread(&self) -> bool {
        matches!(self.progress, Progress::Thread)
    }

    #[inline]
    pub(crate) fn begin(&self) -> Spin {
        Spin {
            laps: 0,
            since: None,
        }
    }

    /// One lap is over without success: whether to go for another.
    #[inline]
    pub(crate) fn again(&self, spin: &mut Spin) -> bool {
        spin.laps += 1;
        if spin.laps % LAPS != 1 {
            return true;
        }
        match spin.since {
            None => {
                let window = self.window();
                if window.is_zero() {
                    return false;
                }
                spin.since = Some((Instant::now(), window));
                true
            }
            Some((since, window)) => {
                let now = Instant::now();
                now.saturating_duration_since(since) < window && !turn::is_over(now)
            }
        }
    }

    /// The mean of the last waits; zero where none is kept.
    pub(crate) fn mean(&self) -> Duration {
        Duration::from_nanos(self.mean.load(Ordering::Relaxed))
    }

    /// A wait ended after `waited`, part of which its task may have slept.
    pub(crate) fn learn(&self, waited: Duration) {
        self.learn_part(waited, 8);
    }

    /// A wait ended while it was looked after. Where that was a trial, a few of them are enough to believe.
    pub(crate) fn learn_looking(&self, waited: Duration) {
        self.learn_part(waited, if self.pays() { 8 } else { 2 });
    }

    fn learn_part(&self, waited: Duration, part: u64) {
        if matches!(self.progress, Progress::Adaptive) {
            let waited = waited.min(LONGEST).as_nanos() as u64;
            let mean = self.mean.load(Ordering::Relaxed);
            // A lost update between two tasks costs precision only.
            let mean = mean - mean / part + waited / part;
            self.mean.store(mean, Ordering::Relaxed);
        }
    }
}

/// How long the reactor looks for those who wait with other things to do before an answer can come: a task that drives a protocol over a byte
/// stream first asks what came, and then sends what the answer is for.
#[derive(Debug)]
pub(crate) struct LingerPolicy {
    progress: Progress,
    /// Exponential mean of the waits, in nanoseconds.
    mean: AtomicU64,
    waits: AtomicU32,
}

impl LingerPolicy {
    pub(crate) fn new(progress: Progress) -> Self {
        Self {
            progress,
            mean: AtomicU64::new(0),
            waits: AtomicU32::new(0),
        }
    }

    /// For how long to look after a wait that begins. `None`: not at all.
    fn window(&self) -> Option<Duration> {
        match self.progress {
            Progress::Adaptive => {
                let wait = self.waits.load(Ordering::Relaxed).wrapping_add(1);
                self.waits.store(wait, Ordering::Relaxed);
                let pays = self.mean.load(Ordering::Relaxed) <= LINGER.as_nanos() as u64;
                (pays || wait % TRIALS.1 < TRIALS.0).then_some(LINGER)
            }
            Progress::Spin(window) => Some(window).filter(|window| !window.is_zero()),
            _ => None,
        }
    }

    fn learn(&self, waited: Duration) {
        // A long rest is one wait that did not pay, not a thousand.
        let waited = waited.min(LINGER * 4).as_nanos() as u64;
        let mean = self.mean.load(Ordering::Relaxed);
        self.mean
            .store(mean - mean / 8 + waited / 8, Ordering::Relaxed);
    }
}

/// Half a stream's memory of its waits. A task that only reads a stream finds what it waits for while it looks; one that drives a protocol over
/// it never does, because it has not asked yet.
#[derive(Debug)]
pub(crate) struct Luck {
    /// Looks that may fail until none is tried.
    credit: u8,
    /// Waits since then.
    passed: u8,
    /// When the last wait began, if it is not over.
    since: Option<Instant>,
}

impl Default for Luck {
    fn default() -> Self {
        Self {
            credit: 2,
            passed: 0,
            since: None,
        }
    }
}

impl Luck {
    /// Whether to look inside the poll, for this wait: always while it pays, now and then otherwise.
    fn tries(&mut self) -> bool {
        self.passed = self.passed.wrapping_add(1);
        self.credit > 0 || self.passed.is_multiple_of(32)
    }
}

/// One wait on a stream.
#[derive(Debug)]
pub(crate) struct Look {
    spin: Spin,
    tries: Option<bool>,
}

impl Look {
    /// Whether it looked more than once.
    #[inline]
    pub(crate) fn has_spun(&self) -> bool {
        self.spin.has_spun()
    }
}

impl SpinPolicy {
    pub(crate) fn look(&self) -> Look {
        Look {
            spin: self.begin(),
            tries: None,
        }
    }

    /// One look is over without success: whether to go for another inside the poll.
    #[inline]
    pub(crate) fn look_again(&self, look: &mut Look, luck: &mut Luck) -> bool {
        if !*look.tries.get_or_insert_with(|| luck.tries()) {
            return false;
        }
        let again = self.again(&mut look.spin);
        if !again {
            luck.credit = luck.credit.saturating_sub(1);
            look.tries = Some(false);
        }
        again
    }
}

impl LingerPolicy {
    /// A look had success.
    #[inline]
    pub(crate) fn found(&self, look: &Look, luck: &mut Luck) {
        if look.tries == Some(true) {
            luck.credit = (luck.credit + 2).min(8);
        }
        if let Some(since) = luck.since.take() {
            self.learn(since.elapsed());
        }
    }

    /// A future goes to sleep. For how long the reactor is to look.
    pub(crate) fn parked(&self, luck: &mut Luck) -> Option<Duration> {
        luck.since = Some(Instant::now());
        self.window()
    }
}

/// One future's wait.
#[derive(Debug)]
pub(crate) struct Spin {
    laps: u32,
    since: Option<(Instant, Duration)>,
}

impl Spin {
    /// Whether it looked more than once.
    #[inline]
    pub(crate) fn has_spun(&self) -> bool {
        self.laps > 0
    }

    /// How long it has lasted, if long enough to have looked at the clock, and what that says now.
    pub(crate) fn waited(&self) -> Option<(Duration, Instant)> {
        let (since, _) = self.since.filter(|_| self.laps > LAPS)?;
        let now = Instant::now();
        Some((now.saturating_duration_since(since), now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two peers that answer each other: whoever sleeps takes as long to wake up, and the other waits for that too.
    fn ping_pong(ends: &[SpinPolicy; 2], rounds: usize) -> Option<usize> {
        const WAKES: Duration = Duration::from_micros(45);
        const ANSWERS: Duration = Duration::from_micros(2);
        let mut slept = [true; 2];
        for round in 0..rounds {
            let end = round % 2;
            let other = ANSWERS
                + if slept[1 - end] {
                    WAKES
                } else {
                    Duration::ZERO
                };
            slept[end] = ends[end].window() < other;
            match slept[end] {
                true => ends[end].learn(other + WAKES),
                false => ends[end].learn_looking(other),
            }
            if ends.iter().all(SpinPolicy::pays) {
                return Some(round);
            }
        }
        None
    }

    #[test]
    fn two_that_sleep_for_each_other_find_out_that_they_need_not() {
        for _ in 0..100 {
            let ends = [(); 2].map(|()| SpinPolicy::new(Progress::Adaptive));
            for end in &ends {
                end.learn(Duration::from_secs(3600));
                (0..100).for_each(|_| end.learn(Duration::from_millis(1)));
                assert!(!end.pays());
            }
            let woken = ping_pong(&ends, 1 << 20);
            assert!(woken.is_some(), "both sleep after a million messages");
        }
    }

    #[test]
    fn long_waits_are_rarely_looked_after() {
        let policy = SpinPolicy::new(Progress::Adaptive);
        (0..20).for_each(|_| policy.learn(Duration::from_millis(1)));
        let looked = (0..100_000).filter(|_| policy.window() == TRIAL).count();
        assert!((1_000..10_000).contains(&looked), "{looked} of 100,000");
    }

    /// Waits of this length; how many of them were looked after.
    fn looked_after(policy: &LingerPolicy, waited: Duration, waits: u32) -> u32 {
        (0..waits)
            .filter(|_| {
                let looks = policy.window().is_some();
                policy.learn(waited);
                looks
            })
            .count() as u32
    }

    #[test]
    fn lingers_while_it_pays() {
        let policy = LingerPolicy::new(Progress::Adaptive);
        let short = Duration::from_micros(20);
        assert_eq!(looked_after(&policy, short, 1000), 1000);
        let seldom = looked_after(&policy, Duration::from_secs(1), 2560);
        assert!(seldom < 256, "{seldom} of 2560 long waits");
        // Those that are looked after all the same find out that waits are short again.
        looked_after(&policy, short, 512);
        assert_eq!(looked_after(&policy, short, 100), 100);
    }

    #[test]
    fn lingers_never_where_nobody_spins() {
        for progress in [
            Progress::EventDriven,
            Progress::Thread,
            Progress::Spin(Duration::ZERO),
        ] {
            assert_eq!(LingerPolicy::new(progress).window(), None, "{progress:?}");
        }
    }

    #[test]
    fn looks_in_vain_now_and_then_only() {
        let (spin, linger) = (
            SpinPolicy::new(Progress::Adaptive),
            LingerPolicy::new(Progress::Adaptive),
        );
        let mut luck = Luck::default();
        let mut vain = || {
            let mut look = spin.look();
            let mut looks = 0_u32;
            while spin.look_again(&mut look, &mut luck) {
                looks += 1;
            }
            u32::from(looks > 0)
        };
        let tried: u32 = (0..320).map(|_| vain()).sum();
        assert!((10..=13).contains(&tried), "{tried} of 320");
        // One that finds something is worth some more.
        let mut look = spin.look();
        luck.passed = 31;
        assert!(spin.look_again(&mut look, &mut luck));
        linger.found(&look, &mut luck);
        assert_eq!(luck.credit, 2);
    }
}
