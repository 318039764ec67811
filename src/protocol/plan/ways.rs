//! Which way a long message takes to its receiver on one host: in one copy out of the sender's memory, or in fragments through
//! the link, which both ends copy at the same time. Which is faster depends on the processors, the kernel and the length, by
//! factors, so a connection measures: it times runs of messages of one class of length, tries the other way now and then, and
//! takes the better one.
//!
//! ```text
//!   │ run │ run │ ... │ run, timed │ run, timed │ run │ run │ ...      a run: 8 to 128 messages
//!   the better way: 8 runs, or      a trial of    the better
//!   twice as many as last time      the other     way again
//! ```
//!
//! A trial that goes badly ends early, and the next is farther away: where one way takes several times as long as the other, trials
//! of it are what choosing costs. Where both ends map the memory of both and copy a half each, from 128 KiB on, nothing is tried.
//!
//! The sender of messages that may leave eagerly or be lent chooses in the same manner, and [`Way::Fragments`] means eagerly then. Those are over at once: so its runs
//! are timed from send to send, pauses left out.
//!
//! What is timed is how long any message of the class was under way, from its match to its last byte, against the bytes of those
//! that ended meanwhile. Pauses are no part of it, and it does not matter which began or ended together: the fragments of messages
//! that are under way at once take turns, so such messages end at once. What is under way when the timing begins and when it ends is
//! not counted alike; so a run has several times as many messages as are under way, and is timed once those of the run before have
//! ended. The first run of each way, a short one, which finds memory that was never touched, is not timed below 4 MiB, nor is any but the last
//! before a trial: the clock takes its time. Of each way the best time is kept, and forgotten by a quarter with each run that was slower.

use std::time::{Duration, Instant};

use crate::types::OpKey;

/// Shorter messages are not copied directly: a system call takes as long as their two copies.
const LEAST: usize = 16 << 10;
/// From this length on one copy is taken until something is known.
pub(crate) const ONE_COPY_FROM: usize = 128 << 10;
/// Longer ones always are: a trial would take long.
const LONGEST: usize = 64 << 20;
/// Such take a millisecond and more. A way that is several times as slow costs a stream of them most while it is taken, be it as the usual one or on trial:
/// the other is tried after the first run, a bad trial ends earlier, and the first run of either counts: what that finds untouched is little beside such a message.
const LONG: usize = 4 << 20;
/// Bytes of a run, within its bounds in messages.
const RUN: usize = 8 << 20;
const FEWEST: usize = 8;
const MOST: usize = 128;
/// Messages of a run for each that is under way beside another, at least.
const TURNS: usize = 8;
/// Ends of a run after which it is timed, though one that began before it is still under way.
const SETTLES: usize = 32;
/// Messages under way that are known; more are not timed.
const KNOWN: usize = 64;
/// What is a pause of a sender.
const PAUSE: Duration = Duration::from_millis(1);
/// Runs between two trials, at first and at most.
const SOON: u32 = 8;
const LATE: u32 = 1 << 10;
/// How much better the other must be.
const BETTER: f64 = 0.93;
/// How much worse it must be for a trial to end early, and by how much its pause grows then.
const WORSE: f64 = 1.5;
const FARTHER: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Fragments = 0,
    OneCopy = 1,
}

impl Way {
    fn other(self) -> Self {
        match self {
            Self::Fragments => Self::OneCopy,
            Self::OneCopy => Self::Fragments,
        }
    }
}

/// What is known of the messages of one class of length.
#[derive(Debug)]
struct Class {
    /// The power of two below their length, and whether both processes map their memory.
    of: (u32, bool),
    /// Of a sender.
    sends: bool,
    best: Way,
    is_trial: bool,
    /// Nanoseconds for each byte, each way.
    cost: [Option<f64>; 2],
    /// Whether a run has gone each way.
    taken: [bool; 2],
    /// Messages under way, and the most at a time in this run.
    under_way: usize,
    most: usize,
    /// The number of this run; messages that began before it and are under way.
    run: u32,
    earlier: usize,
    /// Ends in this run.
    ended: usize,
    /// What has been timed of it.
    timed: Option<Timed>,
    /// Runs until the next trial, and from that to the one after it.
    rest: u32,
    pause: u32,
}

#[derive(Debug)]
struct Timed {
    bytes: usize,
    time: Duration,
    /// When a message last began or ended.
    last: Instant,
}

impl Class {
    fn new(of: (u32, bool), length: usize, sends: bool) -> Self {
        let best = match length >= ONE_COPY_FROM {
            true => Way::OneCopy,
            false => Way::Fragments,
        };
        Self {
            of,
            sends,
            best,
            is_trial: false,
            cost: [None; 2],
            taken: [length >= LONG; 2],
            under_way: 0,
            most: 0,
            run: 0,
            earlier: 0,
            ended: 0,
            timed: None,
            rest: if length >= LONG { 1 } else { 2 },
            pause: SOON,
        }
    }

    /// For people: what each way takes. `how` messages go that are not copied once.
    fn measured(&self, how: &str) -> Option<String> {
        let [twice, once] = self.cost.map(|cost| Some(cost? * 1024.0));
        Some(format!(
            "measured: {:.1} ns for 1 KiB {how}, {:.1} ns in one copy",
            twice?, once?
        ))
    }

    fn way(&self) -> Way {
        match self.is_trial {
            true => self.best.other(),
            false => self.best,
        }
    }

    /// Whether nothing has happened for so long that it is not counted.
    fn has_paused(&self, clock: impl FnOnce() -> Instant) -> bool {
        let timed = self.timed.as_ref().filter(|_| self.under_way == 0);
        timed.is_some_and(|timed| clock().saturating_duration_since(timed.last) >= PAUSE)
    }

    /// Counts the time since the last change, if something was under way; a sender's in any case, but for pauses.
    fn pass(&mut self, clock: impl FnOnce() -> Instant) {
        let Some(timed) = &mut self.timed else {
            return;
        };
        let now = clock();
        let passed = now.saturating_duration_since(timed.last);
        timed.last = now;
        if self.under_way > 0 || self.sends && passed < PAUSE {
            timed.time += passed;
        }
    }

    /// A message begins, which is of the run that is returned.
    fn began(&mut self, clock: impl FnOnce() -> Instant) -> u32 {
        self.pass(clock);
        self.under_way += 1;
        self.most = self.most.max(self.under_way);
        self.run
    }

    /// A message of that run is over; `length` bytes of it have come.
    fn ended(&mut self, run: u32, length: usize, clock: impl Fn() -> Instant) {
        self.pass(&clock);
        self.under_way -= 1;
        if run != self.run {
            self.earlier = self.earlier.saturating_sub(1);
            return;
        }
        self.ended += 1;
        let few = self.most.saturating_sub(1) * TURNS;
        let enough = match self.taken[self.way() as usize] {
            true => (RUN / length.max(1)).clamp(FEWEST, MOST).max(few),
            // All buffers that are in use at a time were touched.
            false => self.most * 2,
        };
        let is_watched = (self.is_trial || self.rest == 1) && self.taken[self.way() as usize];
        let Some(timed) = &mut self.timed else {
            if !is_watched && self.ended >= enough {
                self.over(None);
            } else if is_watched && (self.earlier == 0 || self.ended >= SETTLES) {
                (self.ended, self.most) = (0, self.under_way + 1);
                self.timed = Some(Timed {
                    bytes: 0,
                    time: Duration::ZERO,
                    last: clock(),
                });
            }
            return;
        };
        timed.bytes += length;
        // Of nothing but pauses nothing is known.
        let cost = timed.time.as_nanos() as f64 / timed.bytes as f64;
        let is_known = timed.bytes > 0;
        let shown = if length >= LONG { 1 } else { 2 };
        let is_clear =
            || self.is_trial && self.ended >= self.most * shown && self.is_much_worse(cost);
        if self.ended >= enough || is_known && is_clear() {
            self.over(is_known.then_some(cost));
        }
    }

    fn is_much_worse(&self, cost: f64) -> bool {
        self.cost[self.best as usize].is_some_and(|best| cost > best * WORSE)
    }

    /// A run has ended. `cost`: what a byte took, where that can be said.
    fn over(&mut self, cost: Option<f64>) {
        let way = self.way();
        self.run = self.run.wrapping_add(1);
        (self.earlier, self.ended, self.timed) = (self.under_way, 0, None);
        let is_first = !std::mem::replace(&mut self.taken[way as usize], true);
        if let Some(cost) = cost {
            let known = &mut self.cost[way as usize];
            *known = Some(known.map_or(cost, |known| cost.min(known * 1.25)));
        }
        if self.is_trial && is_first {
            // The next run is the trial.
            return;
        }
        if !self.is_trial {
            self.rest -= 1;
            self.is_trial = self.rest == 0;
            return;
        }
        self.is_trial = false;
        self.pause = match self.cost[self.best as usize] {
            Some(best) if cost.is_some_and(|cost| cost < best * BETTER) => {
                self.best = way;
                SOON
            }
            _ if cost.is_some_and(|cost| self.is_much_worse(cost)) => {
                (self.pause * FARTHER).min(LATE)
            }
            _ => (self.pause * 2).min(LATE),
        };
        self.rest = self.pause;
    }
}

/// The way where nothing is measured: one is pinned, or known to be the better one. `halved`: both ends map the memory, and copy a half each.
#[inline]
fn settled(pinned: Option<Way>, length: usize, halved: bool) -> Option<Way> {
    match pinned {
        _ if length < LEAST => Some(Way::Fragments),
        Some(way) => Some(way),
        None if length > LONGEST => Some(Way::OneCopy),
        // Each end copies once, however it goes, and here only half of it: there is nothing to learn.
        None if halved && length >= ONE_COPY_FROM => Some(Way::OneCopy),
        None => None,
    }
}

/// What a connection has learned.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    classes: Vec<Class>,
    under_way: Vec<UnderWay>,
    sends: bool,
}

/// A message that has begun.
#[derive(Debug)]
struct UnderWay {
    /// Its operation.
    key: OpKey,
    class: usize,
    run: u32,
    length: usize,
}

impl Ways {
    /// Of what a sender may lend.
    pub(crate) fn of_sends() -> Self {
        Self {
            sends: true,
            ..Self::default()
        }
    }

    /// For a sender: the way of a message of this length that leaves now.
    pub(crate) fn now(&self, length: usize) -> Way {
        let of = (length.ilog2(), false);
        let class = self.classes.iter().find(|class| class.of == of);
        class.map_or(Way::Fragments, Class::way)
    }

    /// For a sender: it lends messages of this length, and nothing else, for as long as a test lasts.
    #[cfg(test)]
    pub(crate) fn settle_to_lend(&mut self, length: usize) {
        let class = self.class(length, false);
        self.classes[class].best = Way::OneCopy;
        self.classes[class].rest = u32::MAX;
    }

    /// For a sender: a message has left unasked.
    pub(crate) fn left(&mut self, length: usize, clock: impl Fn() -> Instant) {
        let class = self.class(length, false);
        let class = &mut self.classes[class];
        if class.way() == Way::Fragments {
            // What it took after a pause is not known.
            let counts = !class.has_paused(&clock);
            let run = class.began(&clock);
            class.ended(run, if counts { length } else { 0 }, clock);
        }
    }

    /// For a sender: a message is lent by this operation.
    pub(crate) fn lends(&mut self, key: OpKey, length: usize, clock: impl FnOnce() -> Instant) {
        self.begins((key, length), false, clock);
    }

    fn begins(
        &mut self,
        (key, length): (OpKey, usize),
        mapped: bool,
        clock: impl FnOnce() -> Instant,
    ) -> Way {
        let class = self.class(length, mapped);
        let of = &mut self.classes[class];
        if self.under_way.len() < KNOWN {
            let run = of.began(clock);
            self.under_way.push(UnderWay {
                key,
                class,
                run,
                length,
            });
        }
        of.way()
    }

    /// The way of a message for this receive that begins and could be copied directly: out of memory that this process has mapped, by both
    /// ends, a half each. `pinned`: the user's choice.
    pub(crate) fn next(
        &mut self,
        pinned: Option<Way>,
        (key, length): (OpKey, usize),
        mapped: bool,
        halved: bool,
        clock: impl FnOnce() -> Instant,
    ) -> Way {
        match settled(pinned, length, mapped && halved) {
            Some(way) => way,
            None => self.begins((key, length), mapped, clock),
        }
    }

    /// An operation is over, with all of its message or without.
    #[inline]
    pub(crate) fn over(&mut self, key: OpKey, has_come: bool, clock: impl Fn() -> Instant) {
        if let Some(index) = self.under_way.iter().position(|known| known.key == key) {
            let known = self.under_way.swap_remove(index);
            let come = if has_come { known.length } else { 0 };
            self.classes[known.class].ended(known.run, come, clock);
        }
    }

    fn class(&mut self, length: usize, mapped: bool) -> usize {
        let of = (length.ilog2(), mapped);
        let index = self.classes.iter().position(|class| class.of == of);
        index.unwrap_or_else(|| {
            self.classes.push(Class::new(of, length, self.sends));
            self.classes.len() - 1
        })
    }

    /// For people: the way of messages of this length as far as is known, and why: the nanoseconds that each takes for 1 KiB, or the choice of the
    /// user's. `pinned`, `mapped`, `halved`: as for [`Ways::next`].
    pub(crate) fn known(
        &self,
        pinned: Option<Way>,
        length: usize,
        mapped: bool,
        halved: bool,
    ) -> (Way, Option<String>) {
        if let Some(way) = settled(pinned, length, mapped && halved) {
            let chosen = length >= LEAST && pinned.is_some();
            let said = || "the rendezvous scheme is chosen by configuration".to_owned();
            return (way, chosen.then(said));
        }
        let of = (length.max(1).ilog2(), mapped);
        let class = self.classes.iter().find(|class| class.of == of);
        let best = class.map_or_else(|| Class::new(of, length, false).best, |class| class.best);
        (best, class.and_then(|class| class.measured("in fragments")))
    }

    /// The same of messages that could leave unasked, for their sender.
    pub(crate) fn known_of_sends(&self, length: usize) -> (Way, Option<String>) {
        let class = self
            .classes
            .iter()
            .find(|class| class.of == (length.max(1).ilog2(), false));
        let best = class.map_or(Way::Fragments, |class| class.best);
        (best, class.and_then(|class| class.measured("unasked")))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Lets a message begin and end.
    fn pass(
        ways: &mut Ways,
        pinned: Option<Way>,
        length: usize,
        mapped: bool,
        halved: bool,
    ) -> Way {
        let way = ways.next(pinned, (OpKey(1), length), mapped, halved, Instant::now);
        ways.over(OpKey(1), true, Instant::now);
        way
    }

    /// Messages of one length, so many of them at a time, in virtual time.
    struct Sim {
        class: Class,
        now: Instant,
        length: usize,
        /// What each takes, by its way.
        times: [u64; 2],
        /// Those under way: run, and what is left of each in nanoseconds.
        flight: VecDeque<(u32, u64)>,
        window: usize,
        /// Whether they take turns, and so end together; else one comes after the other.
        turns: bool,
    }

    impl Sim {
        fn new(length: usize, times: [u64; 2], window: usize, turns: bool) -> Self {
            Self {
                class: Class::new((0, false), length, false),
                now: Instant::now(),
                length,
                times,
                flight: VecDeque::new(),
                window,
                turns,
            }
        }

        fn wait(&mut self, nanoseconds: u64) {
            self.now += Duration::from_nanos(nanoseconds);
        }

        /// How many of the next so many go by the worse way.
        fn send(&mut self, count: usize) -> usize {
            let mut worse = 0;
            for _ in 0..count {
                let way = self.class.way();
                worse += usize::from(self.times[way as usize] > self.times[way.other() as usize]);
                let run = self.class.began(|| self.now);
                self.flight.push_back((run, self.times[way as usize]));
                if self.flight.len() == self.window {
                    self.arrive();
                }
            }
            worse
        }

        /// The oldest arrives; all of them, where they take turns.
        fn arrive(&mut self) {
            let count = if self.turns { self.flight.len() } else { 1 };
            // Millions of messages, not optimised: no iterators.
            let mut time = 0;
            for at in 0..count {
                time += self.flight[at].1;
            }
            self.wait(time);
            for _ in 0..count {
                let (run, _) = self.flight.pop_front().expect("under way");
                self.class.ended(run, self.length, || self.now);
            }
        }

        /// All that are under way arrive.
        fn drain(&mut self) {
            while !self.flight.is_empty() {
                self.arrive();
            }
        }
    }

    /// Each length, number of messages at a time, and whether they end together.
    fn shapes() -> impl Iterator<Item = (usize, usize, bool)> {
        let lengths = [16 << 10, 64 << 10, 1 << 20, LONGEST];
        let windows = [1, 2, 4, 16, 50];
        lengths.into_iter().flat_map(move |length| {
            windows
                .into_iter()
                .flat_map(move |window| [(length, window, false), (length, window, true)])
        })
    }

    #[test]
    fn the_faster_way_is_found_and_kept() {
        for (length, window, turns) in shapes() {
            for times in [[5000, 2000], [2000, 5000], [2000, 2500], [2500, 2000]] {
                let mut sim = Sim::new(length, times, window, turns);
                sim.send(10_000);
                let worse = sim.send(100_000);
                let shape = format!("{length} bytes, {window} at a time, {turns}, {times:?}");
                assert!(
                    worse < 5_000,
                    "{worse} of 100,000 go the worse way: {shape}"
                );
                assert!(worse > 0, "it is never tried again: {shape}");
            }
        }
    }

    /// What goes a way for the first time waits for pages of its buffers.
    #[test]
    fn a_cold_start_decides_nothing() {
        // Of long ones the first run counts.
        for (length, window, turns) in shapes().filter(|(length, ..)| *length < LONG) {
            let mut sim = Sim::new(length, [2000, 5000], window, turns);
            let better = Way::Fragments;
            let mut sent = 0;
            while sim.class.best != better || sim.class.is_trial {
                // Five times as long until one run has gone that way.
                let is_cold = !sim.class.taken[better as usize];
                sim.times[better as usize] = if is_cold { 10_000 } else { 2000 };
                sim.send(1);
                sent += 1;
                assert!(sent < 3000, "{length}, {window} at a time, {turns}");
            }
        }
    }

    /// The first few hundred tell, however they end.
    #[test]
    fn the_faster_way_is_found_soon() {
        for (length, window, turns) in shapes() {
            for times in [[5000, 2000], [2000, 5000]] {
                let mut sim = Sim::new(length, times, window, turns);
                sim.send(3_000);
                let better = if times[0] < times[1] {
                    Way::Fragments
                } else {
                    Way::OneCopy
                };
                assert_eq!(
                    sim.class.best, better,
                    "{length}, {window} at a time, {turns}"
                );
            }
        }
    }

    /// Where the other way takes four times as long, finding that out is cheap: 200 of them are 3 GiB.
    #[test]
    fn few_long_ones_go_the_worse_way() {
        for (window, turns) in [(1, false), (2, false), (2, true), (4, true)] {
            let mut sim = Sim::new(16 << 20, [8000, 2000], window, turns);
            let worse = sim.send(200);
            let most = 2 + 3 * window;
            assert!(
                worse > 0 && worse <= most,
                "{worse}, {window} at a time, {turns}"
            );
        }
    }

    /// And where it takes a quarter of the time, soon found: after the message that begins the timing, a run, and what is under way then. Trials of the first way
    /// follow, as above.
    #[test]
    fn long_ones_find_the_better_way_soon() {
        for (window, turns) in [(1, false), (2, false), (2, true), (4, true)] {
            let mut sim = Sim::new(16 << 20, [2000, 8000], window, turns);
            let worse = sim.send(200);
            let most = 1 + FEWEST.max(TURNS * (window - 1)) + window + 3 * window;
            assert!(worse <= most, "{worse}, {window} at a time, {turns}");
        }
    }

    #[test]
    fn a_way_that_became_faster_is_found() {
        for (length, window, turns) in shapes() {
            let mut sim = Sim::new(length, [2000, 5000], window, turns);
            sim.send(200_000);
            sim.times = [5000, 2000];
            sim.send(200_000);
            let worse = sim.send(10_000);
            assert!(
                worse < 1000,
                "{worse} of 10,000, {length}, {window} at a time, {turns}"
            );
        }
    }

    #[test]
    fn pauses_do_not_mislead() {
        for (length, window, turns) in shapes() {
            for times in [[2000, 3000], [3000, 2000]] {
                let mut sim = Sim::new(length, times, window, turns);
                let mut worse = 0;
                for pause in 0..1000 {
                    worse += sim.send(1 + pause * 7 % 200);
                    sim.drain();
                    sim.wait(10_000_000);
                }
                assert!(
                    worse < 10_000,
                    "{worse} of 100,000, {length}, {window} at a time"
                );
            }
        }
    }

    /// A sender in virtual time: what leaves takes it `left`, lent ones come one after the other, each in `lent`.
    fn sends(ways: &mut Ways, now: &mut Instant, [left, lent]: [u64; 2], count: usize) -> usize {
        let (length, mut flight, mut lends) = (40 << 10, VecDeque::new(), 0);
        for key in 0..count as u64 {
            match ways.now(length) {
                Way::Fragments => {
                    *now += Duration::from_nanos(left);
                    ways.left(length, || *now);
                }
                Way::OneCopy => {
                    lends += 1;
                    ways.lends(OpKey(key), length, || *now);
                    flight.push_back(key);
                }
            }
            if flight.len() == 16 || ways.now(length) == Way::Fragments {
                while let Some(key) = flight.pop_front() {
                    *now += Duration::from_nanos(lent);
                    ways.over(OpKey(key), true, || *now);
                }
            }
        }
        for key in flight {
            ways.over(OpKey(key), true, || *now);
        }
        lends
    }

    #[test]
    fn a_sender_lends_where_that_is_faster() {
        for (times, is_lent) in [([3000, 2000], true), ([2000, 3000], false)] {
            let (mut ways, mut now) = (Ways::of_sends(), Instant::now());
            sends(&mut ways, &mut now, times, 3_000);
            let lent = sends(&mut ways, &mut now, times, 100_000);
            let worse = if is_lent { 100_000 - lent } else { lent };
            assert!(worse > 0 && worse < 5_000, "{worse} go the worse way");
            // And when that changes.
            let times = [times[1], times[0]];
            sends(&mut ways, &mut now, times, 200_000);
            let lent = sends(&mut ways, &mut now, times, 10_000);
            let worse = if is_lent { lent } else { 10_000 - lent };
            assert!(worse < 1000, "{worse} go the worse way");
        }
    }

    /// A sender that has nothing to send takes long for what it sends next: that says nothing about the way.
    #[test]
    fn pauses_of_a_sender_do_not_mislead() {
        for (times, is_lent) in [([3000, 2000], true), ([2000, 3000], false)] {
            let (mut ways, mut now) = (Ways::of_sends(), Instant::now());
            let (mut sent, mut lent) = (0, 0);
            for pause in 0..1000 {
                let count = 1 + pause * 7 % 200;
                sent += count;
                lent += sends(&mut ways, &mut now, times, count);
                now += Duration::from_millis(10);
            }
            let worse = if is_lent { sent - lent } else { lent };
            assert!(worse < 10_000, "{worse} of {sent}");
            assert!(ways.under_way.is_empty());
            // One at a time says nothing at all.
            for _ in 0..1000 {
                sends(&mut ways, &mut now, [10, 10], 1);
                now += Duration::from_millis(10);
            }
            let lent = sends(&mut ways, &mut now, times, 10_000);
            let worse = if is_lent { 10_000 - lent } else { lent };
            assert!(worse < 1000, "{worse} of 10,000");
        }
    }

    /// What does not come is no measure, and holds nothing up.
    #[test]
    fn a_message_that_never_ends_holds_nothing_up() {
        let mut sim = Sim::new(64 << 10, [5000, 2000], 4, false);
        sim.class.began(|| sim.now);
        sim.send(1000);
        assert_eq!(sim.class.best, Way::OneCopy);
        assert!(sim.send(100_000) < 5_000);
    }

    #[test]
    fn so_many_under_way_are_known_and_each_ends_once() {
        let mut ways = Ways::default();
        let length = 64 << 10;
        for key in 0..2 * KNOWN as u64 {
            ways.next(None, (OpKey(key), length), false, false, Instant::now);
        }
        assert_eq!(ways.under_way.len(), KNOWN);
        for key in (0..2 * KNOWN as u64).chain(0..KNOWN as u64) {
            ways.over(OpKey(key), key % 3 > 0, Instant::now);
        }
        assert_eq!((ways.under_way.len(), ways.classes[0].under_way), (0, 0));
    }

    #[test]
    fn a_choice_of_the_users_stands() {
        let mut ways = Ways::default();
        for length in [1 << 10, 64 << 10, 1 << 30] {
            let long = length >= LEAST;
            let one_copy =
                pass(&mut ways, Some(Way::OneCopy), length, false, false) == Way::OneCopy;
            assert_eq!(one_copy, long);
            for _ in 0..1000 {
                let way = pass(&mut ways, Some(Way::Fragments), length, true, true);
                assert_eq!(way, Way::Fragments);
            }
        }
        assert!(ways.classes.is_empty(), "nothing is measured");
        for pinned in [Way::OneCopy, Way::Fragments] {
            let (way, why) = ways.known(Some(pinned), 64 << 10, false, false);
            assert!(way == pinned && why.is_some_and(|why| why.contains("configuration")));
        }
    }

    #[test]
    fn what_both_ends_copy_a_half_of_is_not_tried_otherwise() {
        let mut ways = Ways::default();
        for _ in 0..1000 {
            let way = pass(&mut ways, None, 1 << 20, true, true);
            assert_eq!(way, Way::OneCopy);
        }
        assert!(ways.classes.is_empty(), "nothing is measured");
        // Short ones are, and where one end copies all of it.
        pass(&mut ways, None, 64 << 10, true, true);
        pass(&mut ways, None, 1 << 20, true, false);
        assert_eq!(ways.classes.len(), 2);
    }

    #[test]
    fn what_is_known_is_said() {
        let mut ways = Ways::default();
        let known = |ways: &Ways, length| ways.known(None, length, false, false);
        assert_eq!(known(&ways, 64 << 10), (Way::Fragments, None));
        assert_eq!(known(&ways, 1 << 20), (Way::OneCopy, None));
        for _ in 0..1000 {
            pass(&mut ways, None, 64 << 10, false, false);
        }
        assert!(
            known(&ways, 65 << 10)
                .1
                .is_some_and(|said| said.starts_with("measured: "))
        );
    }
}
