//! How long a future looks before it sleeps, and who looks after that.
//!
//! ```text
//! a future waits ─▶ it looks itself, for some four times as long as such looks have taken of late
//!                     │ (over sockets 40 µs)
//!                     │ nothing, or it has woken others, or its last looks found nothing
//!                     ▼
//!                   it parks ─▶ the reactor lingers: one pass between the turns of other tasks
//!                                 │ nothing for 20 µs (40), or that has not paid of late
//!                                 ▼
//!                               armed: who sends next rings
//! ```
//!
//! Whether another task is ready to run is not to be known from Tokio, and what is awaited may have to come from such a task: so a future holds
//! its thread only while that has had success.
//!
//! A window shorter than the peer's own wake-up (8 to 9 µs, and 45 µs, seen in November 2026 on two virtual machines) makes both ends sleep on every
//! message. And two peers that sleep for each other's messages wait for long because they sleep, and would go on. So at certain times by the clock,
//! which both have, each lingers as if it paid; a few short waits show them that it does.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::{Duration, Instant, SystemTime},
};

use crate::{config::Progress, worker::turn};

/// The mean wait up to which looking pays, and for how long the worker then looks in all.
const CAP: Duration = Duration::from_micros(20);
/// The same over sockets: a look is a system call, the next of many long messages takes some 20 us, and who sleeps for each of them has two
/// wake-ups and ten calls more for it.
const SOCKET_CAP: Duration = Duration::from_micros(40);
/// A longer wait counts as this one: a long rest is one wait that did not pay, not a thousand.
const LONGEST: Duration = Duration::from_micros(80);
/// For how long at least a future looks itself, where it does.
const LEAST: Duration = Duration::from_micros(2);
/// Looks of futures that may fail in a row until most futures leave looking to the reactor; of so many waits one tries all the same.
const CREDIT: u32 = 8;
const TRIES_EVERY: u32 = 32;
/// The window of a trial: longer than a peer takes to wake up.
const TRIAL: Duration = LONGEST;
/// Trials are made in the first millisecond of each 33 by the system's clock, which both ends of a connection have: so they make them
/// together.
const MOMENT: u32 = 20;
const BETWEEN: u32 = 25;
/// For how long the reactor looks for halves of streams, between the turns of other tasks, so that it holds nobody up: at least, and at most, where twice
/// the mean wait lies in between. A peer that answers 16 calls at once takes 50 to 100 µs for them, by how fast its machine is: who slept for those
/// would add the time of two wake-ups to each round, and a window that a slower machine just misses costs it 40 % of its calls.
const LINGERS: (Duration, Duration) = (Duration::from_micros(100), Duration::from_micros(250));
/// The mean wait up to which that pays.
const LINGER_CAP: Duration = Duration::from_micros(200);
/// Each look of a stream's inside the poll that found something is credit for another one, up to so many; one in vain costs so much. A task that
/// drives a protocol asks until nothing more is there, so about every other of its looks is in vain, and those whom it has woken stand behind it.
const MOST: u8 = 8;
const VAIN: u8 = 4;
/// Without credit one look of so many is made all the same. A unary call of gRPC has three or four in vain at each end.
const STREAM_TRIES_EVERY: u8 = 128;
/// Of so many waits on the reactor, this many are looked after for the longest window whatever the mean says: two peers that have both gone to sleep for
/// each other's messages find out that they need not.
const TRIALS: (u32, u32) = (16, 256);
/// Laps between two looks at the clock (40 ns each).
const LAPS: u32 = 4;

#[derive(Debug)]
pub(crate) struct SpinPolicy {
    progress: Progress,
    /// Exponential mean of the waits that were looked after, in nanoseconds.
    mean: AtomicU64,
    /// The same of those that ended while their future looked itself.
    held: AtomicU64,
    /// How many of these looks may fail.
    credit: AtomicU32,
    /// Waits since the last one that was looked after without credit.
    passed: AtomicU32,
    /// When a trial has failed: not again at that time.
    failed: AtomicU64,
}

impl SpinPolicy {
    pub(crate) fn new(progress: Progress) -> Self {
        Self {
            progress,
            mean: AtomicU64::new(0),
            held: AtomicU64::new(0),
            credit: AtomicU32::new(CREDIT),
            passed: AtomicU32::new(0),
            failed: AtomicU64::new(u64::MAX),
        }
    }

    /// For how long a future looks itself, in the wait that begins.
    fn window(&self, is_socket: bool) -> Duration {
        match self.progress {
            // The mean of waits that ended while their futures looked says little there: of many messages the most are found at once.
            Progress::Adaptive if !self.pays_over(is_socket) || !self.has_luck() => Duration::ZERO,
            Progress::Adaptive if is_socket => SOCKET_CAP,
            Progress::Adaptive => {
                let held = Duration::from_nanos(self.held.load(Ordering::Relaxed));
                (held * 4).clamp(LEAST, CAP)
            }
            _ => self.always(),
        }
    }

    /// The same for half a stream. Over sockets its own waits say for how long: what comes there takes longer than the least window. Over shared memory
    /// it comes sooner or is not asked for yet, and who looks for it holds up those who would ask.
    fn window_of(&self, record: &SpinRecord, is_socket: bool) -> Duration {
        match self.progress {
            Progress::Adaptive
                if is_socket && self.pays_over(true) && record.mean() <= SOCKET_CAP =>
            {
                (record.mean() * 2).clamp(LEAST, SOCKET_CAP)
            }
            Progress::Adaptive if !self.pays() => Duration::ZERO,
            Progress::Adaptive => LEAST,
            _ => self.always(),
        }
    }

    /// By a policy that learns nothing.
    fn always(&self) -> Duration {
        match self.progress {
            Progress::Spin(window) => window,
            Progress::Busy => CAP,
            _ => Duration::ZERO,
        }
    }

    fn has_luck(&self) -> bool {
        if self.credit.load(Ordering::Relaxed) > 0 {
            return true;
        }
        let passed = self.passed.load(Ordering::Relaxed).wrapping_add(1);
        self.passed.store(passed, Ordering::Relaxed);
        passed.is_multiple_of(TRIES_EVERY)
    }

    /// For how long the reactor looks for a future that parks, between the turns of other tasks. `None`: not at all.
    pub(crate) fn lingers(&self, is_socket: impl FnOnce() -> bool) -> Option<Duration> {
        self.lingers_at(is_socket, moment)
    }

    fn lingers_at(
        &self,
        is_socket: impl FnOnce() -> bool,
        moment: impl FnOnce() -> Option<u64>,
    ) -> Option<Duration> {
        match self.progress {
            Progress::Adaptive if self.pays() => Some(CAP),
            Progress::Adaptive if self.pays_over(true) && is_socket() => Some(SOCKET_CAP),
            Progress::Adaptive => moment()
                .is_some_and(|moment| moment != self.failed.load(Ordering::Relaxed))
                .then_some(TRIAL),
            _ => None,
        }
    }

    /// Whether looking before sleeping pays, as far as is known.
    #[inline]
    pub(crate) fn pays(&self) -> bool {
        self.pays_over(false)
    }

    /// The same where the next look may be one at a socket.
    #[inline]
    fn pays_over(&self, is_socket: bool) -> bool {
        match self.progress {
            Progress::Adaptive if is_socket => self.mean() <= SOCKET_CAP,
            Progress::Adaptive => self.mean() <= CAP,
            Progress::Spin(window) => !window.is_zero(),
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
        Spin::default()
    }

    /// One lap is over without success: whether to go for another.
    #[inline]
    pub(crate) fn again(&self, spin: &mut Spin, is_socket: impl FnOnce() -> bool) -> bool {
        let again = self.goes_on(spin, || self.window(is_socket()));
        if again == Some(false) {
            let credit = self.credit.load(Ordering::Relaxed);
            self.credit
                .store(credit.saturating_sub(1), Ordering::Relaxed);
        }
        again == Some(true)
    }

    /// `None`: there is no window, or it was cut short.
    #[inline]
    fn goes_on(&self, spin: &mut Spin, window: impl FnOnce() -> Duration) -> Option<bool> {
        spin.laps += 1;
        if spin.laps % LAPS != 1 {
            return Some(true);
        }
        match spin.since {
            None => {
                let window = window();
                if window.is_zero() {
                    return None;
                }
                spin.since = Some((Instant::now(), window));
                Some(true)
            }
            Some((since, window)) => {
                let now = Instant::now();
                if now.saturating_duration_since(since) >= window {
                    return Some(false);
                }
                (!turn::is_over(now)).then_some(true)
            }
        }
    }

    /// The mean of the last waits; zero where none is kept.
    pub(crate) fn mean(&self) -> Duration {
        Duration::from_nanos(self.mean.load(Ordering::Relaxed))
    }

    /// A wait ended while its future looked, after `waited`.
    pub(crate) fn found_looking(&self, waited: Duration) {
        let waited = waited.as_nanos() as u64;
        let held = self.held.load(Ordering::Relaxed);
        self.held
            .store(held - held / 8 + waited / 8, Ordering::Relaxed);
        self.credit.store(CREDIT, Ordering::Relaxed);
        self.learn(waited, 8);
    }

    /// So many waits ended in their first lap, after a pass that had found nothing.
    pub(crate) fn found_in_a_lap(&self, waits: u64) {
        if waits > 0 {
            self.credit.store(CREDIT, Ordering::Relaxed);
            let mean = self.mean.load(Ordering::Relaxed);
            self.mean
                .store(mean - mean / 8 * waits.min(8), Ordering::Relaxed);
        }
    }

    /// Something came while the reactor lingered. Where that was a trial, a few of them are enough to believe.
    pub(crate) fn found_lingering(&self, waited: Duration) {
        let part = if self.pays() { 8 } else { 2 };
        self.learn(waited.min(LONGEST).as_nanos() as u64, part);
    }

    /// The reactor lingered for a whole window, and nothing came.
    pub(crate) fn in_vain(&self, is_socket: bool) {
        self.in_vain_at(is_socket, moment);
    }

    fn in_vain_at(&self, is_socket: bool, moment: impl FnOnce() -> Option<u64>) {
        if self.pays_over(is_socket) {
            self.learn(LONGEST.as_nanos() as u64, 8);
        } else if let Some(moment) = moment() {
            self.failed.store(moment, Ordering::Relaxed);
        }
    }

    fn learn(&self, waited: u64, part: u64) {
        if matches!(self.progress, Progress::Adaptive) {
            let mean = self.mean.load(Ordering::Relaxed);
            // A lost update between two tasks costs precision only.
            self.mean
                .store(mean - mean / part + waited / part, Ordering::Relaxed);
        }
    }
}

/// The time for trials that this is, if it is one.
fn moment() -> Option<u64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    moment_at(now.ok()?.as_nanos() as u64)
}

/// At so many nanoseconds.
fn moment_at(now: u64) -> Option<u64> {
    (now % (1 << BETWEEN) < 1 << MOMENT).then_some(now >> BETWEEN)
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
                let mean = Duration::from_nanos(self.mean.load(Ordering::Relaxed));
                let (least, most) = LINGERS;
                match mean <= LINGER_CAP {
                    true => Some((mean * 2).clamp(least, most)),
                    // Longer than waits that pay.
                    false => (wait % TRIALS.1 < TRIALS.0).then_some(most),
                }
            }
            Progress::Spin(window) => Some(window).filter(|window| !window.is_zero()),
            _ => None,
        }
    }

    fn learn(&self, waited: Duration) {
        // A long rest is one wait that did not pay, not a thousand.
        let waited = waited.min(LINGERS.0 * 4).as_nanos() as u64;
        let mean = self.mean.load(Ordering::Relaxed);
        self.mean
            .store(mean - mean / 8 + waited / 8, Ordering::Relaxed);
    }
}

/// Half a stream's memory of its waits. A task that only reads a stream finds what it waits for while it looks; one that drives a protocol over
/// it never does, because it has not asked yet.
#[derive(Debug)]
pub(crate) struct SpinRecord {
    /// Looks that may fail until none is tried.
    credit: u8,
    /// Waits since then.
    passed: u8,
    /// When the last wait began, if it is not over.
    since: Option<Instant>,
    /// Exponential mean of the waits, in nanoseconds.
    mean: u32,
}

impl Default for SpinRecord {
    fn default() -> Self {
        Self {
            credit: 2,
            passed: 0,
            since: None,
            mean: 0,
        }
    }
}

impl SpinRecord {
    /// Whether looking inside the poll pays.
    pub(crate) fn pays(&self) -> bool {
        self.credit > 0
    }

    /// Whether to look there, for this wait: always while it pays, now and then otherwise.
    fn tries(&mut self) -> bool {
        self.passed = self.passed.wrapping_add(1);
        self.pays() || self.passed.is_multiple_of(STREAM_TRIES_EVERY)
    }

    fn learn(&mut self, waited: Duration) {
        let waited = waited.min(LONGEST).as_nanos() as u32;
        self.mean = self.mean - self.mean / 8 + waited / 8;
    }

    fn mean(&self) -> Duration {
        Duration::from_nanos(self.mean.into())
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
    pub(crate) fn look_again(
        &self,
        look: &mut Look,
        record: &mut SpinRecord,
        is_socket: impl FnOnce() -> bool,
    ) -> bool {
        if !*look.tries.get_or_insert_with(|| record.tries()) {
            return false;
        }
        let again =
            self.goes_on(&mut look.spin, || self.window_of(record, is_socket())) == Some(true);
        if !again {
            record.credit = record.credit.saturating_sub(VAIN);
            look.tries = Some(false);
        }
        again
    }
}

impl LingerPolicy {
    /// A look had success.
    #[inline]
    pub(crate) fn found(&self, look: &Look, record: &mut SpinRecord) {
        if look.tries == Some(true) {
            record.credit = (record.credit + 1).min(MOST);
        }
        if let Some(since) = record.since.take() {
            let waited = since.elapsed();
            record.learn(waited);
            self.learn(waited);
        } else if let Some((waited, _)) = look.spin.waited() {
            record.learn(waited);
        }
    }

    /// A future goes to sleep. For how long the reactor is to look.
    pub(crate) fn parked(&self, record: &mut SpinRecord) -> Option<Duration> {
        record.since = Some(Instant::now());
        self.window()
    }
}

/// One future's wait.
#[derive(Debug, Default)]
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

    /// Two peers that answer each other: whoever sleeps takes as long to wake up, and the other waits for that too. How long until both linger.
    fn ping_pong(ends: &[SpinPolicy; 2]) -> Option<Duration> {
        const WAKES: Duration = Duration::from_micros(45);
        const ANSWERS: Duration = Duration::from_micros(2);
        let mut slept = [true; 2];
        let mut now = Duration::ZERO;
        for round in 0..1 << 20 {
            let (end, peer) = (&ends[round % 2], 1 - round % 2);
            let moment = || moment_at(now.as_nanos() as u64);
            let other = match slept[peer] {
                true => ANSWERS + WAKES,
                false => ANSWERS,
            };
            let window = end.lingers_at(|| false, moment);
            slept[1 - peer] = window.is_none_or(|window| window < other);
            match (window, slept[1 - peer]) {
                (Some(_), true) => end.in_vain_at(false, moment),
                (Some(_), false) => end.found_lingering(other),
                (None, _) => {}
            }
            now += other;
            if ends.iter().all(SpinPolicy::pays) {
                return Some(now);
            }
        }
        None
    }

    /// Until it sleeps.
    fn tire(policy: &SpinPolicy) -> usize {
        (0..100)
            .find(|_| {
                policy.in_vain(false);
                !policy.pays()
            })
            .expect("it lingers on in vain")
    }

    #[test]
    fn two_that_sleep_for_each_other_find_out_that_they_need_not() {
        let ends = [(); 2].map(|()| SpinPolicy::new(Progress::Adaptive));
        ends.iter().for_each(|end| assert!(tire(end) < 8));
        let woken = ping_pong(&ends).expect("both sleep after a million messages");
        assert!(woken < Duration::from_millis(40), "{woken:?}");
    }

    #[test]
    fn long_waits_are_rarely_looked_after() {
        let policy = SpinPolicy::new(Progress::Adaptive);
        tire(&policy);
        let waits = 10_000;
        let looked = (0..waits).filter(|wait| {
            let moment = || moment_at(wait * 100_000);
            let looks = policy.lingers_at(|| false, moment).is_some();
            if looks {
                policy.in_vain_at(false, moment);
            }
            looks
        });
        // Waits of 100 µs, and a moment each 33 ms.
        let looked = looked.count();
        assert!((20..40).contains(&looked), "{looked} of {waits}");
    }

    /// What a future finds while it looks makes the next ones look, and for how long.
    #[test]
    fn futures_look_while_they_find_something() {
        let policy = SpinPolicy::new(Progress::Adaptive);
        let window = || policy.window(false);
        assert_eq!(window(), LEAST);
        (0..100).for_each(|_| policy.found_looking(LEAST * 2));
        assert!(window() > LEAST * 7 && window() <= LEAST * 8);
        let in_vain = || {
            let mut spin = policy.begin();
            while policy.again(&mut spin, || false) {}
            spin.since.is_some()
        };
        assert!((0..CREDIT).all(|_| in_vain()));
        let tried = (0..10 * TRIES_EVERY).filter(|_| in_vain()).count();
        assert_eq!(tried, 10);
        policy.found_in_a_lap(1);
        assert!((0..CREDIT).all(|_| in_vain()));
        assert!(policy.pays(), "what futures do not find the reactor may");
        policy.found_looking(Duration::ZERO);
        tire(&policy);
        assert!(!in_vain(), "who sleeps does not look either");
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
    fn lingers_for_twice_the_mean_of_longer_waits() {
        let policy = LingerPolicy::new(Progress::Adaptive);
        for (waited, window) in [(20, 100), (90, 180), (180, 250)].map(|pair| {
            let micros = Duration::from_micros;
            (micros(pair.0), micros(pair.1))
        }) {
            assert_eq!(looked_after(&policy, waited, 200), 200, "{waited:?}");
            let looks = policy.window().expect("it pays");
            assert!(looks <= window && looks + looks / 50 >= window, "{looks:?}");
        }
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
        let mut record = SpinRecord::default();
        let mut vain = || {
            let mut look = spin.look();
            let mut looks = 0_u32;
            while spin.look_again(&mut look, &mut record, || false) {
                looks += 1;
            }
            u32::from(looks > 0)
        };
        let tried: u32 = (0..320).map(|_| vain()).sum();
        assert!((3..=5).contains(&tried), "{tried} of 320");
        // One that finds something is worth another one.
        let find = |record: &mut SpinRecord| {
            let mut look = spin.look();
            record.passed = STREAM_TRIES_EVERY - 1;
            assert!(spin.look_again(&mut look, record, || false));
            linger.found(&look, record);
        };
        find(&mut record);
        assert_eq!(record.credit, 1);
        // Where every other wait is in vain, that is too many: those who were woken stand behind it.
        let mut tried = 0;
        for _ in 0..100 {
            find(&mut record);
            let mut look = spin.look();
            tried += u32::from(spin.look_again(&mut look, &mut record, || false));
            while spin.look_again(&mut look, &mut record, || false) {}
            assert_eq!(record.credit, 0);
        }
        assert_eq!(tried, 100);
        // Where nearly all find something, one in vain ends nothing.
        (0..100).for_each(|_| find(&mut record));
        assert_eq!(record.credit, MOST);
        let mut look = spin.look();
        while spin.look_again(&mut look, &mut record, || false) {}
        assert_eq!(record.credit, MOST - VAIN);
    }

    #[test]
    fn over_sockets_the_waits_say_for_how_long_to_look() {
        let spin = SpinPolicy::new(Progress::Adaptive);
        let mut record = SpinRecord::default();
        let window = |record: &SpinRecord, is_socket| spin.window_of(record, is_socket);
        assert_eq!(window(&record, true), LEAST);
        let wait = Duration::from_micros(8);
        (0..50).for_each(|_| record.learn(wait));
        assert!((wait..CAP).contains(&window(&record, true)));
        assert_eq!(window(&record, false), LEAST);
        (0..50).for_each(|_| record.learn(CAP * 3 / 2));
        assert_eq!(window(&record, true), SOCKET_CAP);
        // Too long to be looked after.
        (0..50).for_each(|_| record.learn(CAP * 3));
        assert_eq!(window(&record, true), LEAST);
    }

    /// Where the next message takes some 30 us, who waits for one over a socket looks for it, and over shared memory sleeps; in vain, neither goes on.
    #[test]
    fn over_sockets_longer_waits_are_looked_after() {
        let policy = SpinPolicy::new(Progress::Adaptive);
        (0..100).for_each(|_| policy.found_looking(CAP * 3 / 2));
        assert_eq!(policy.window(true), SOCKET_CAP);
        assert_eq!(policy.window(false), Duration::ZERO);
        let lingers = |is_socket: bool| policy.lingers_at(|| is_socket, || None);
        assert_eq!((lingers(true), lingers(false)), (Some(SOCKET_CAP), None));
        let tired = (0..100).find(|_| {
            policy.in_vain(true);
            lingers(true).is_none()
        });
        assert!(tired.is_some_and(|times| times < 8), "{tired:?}");
        assert_eq!(policy.window(true), Duration::ZERO);
    }
}
