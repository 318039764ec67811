//! Which way a long message takes to its receiver on one host: in one copy out of the sender's memory, or in fragments through
//! the link, which both ends copy at the same time. Which is faster depends on the processors, the kernel and the length, by
//! factors, so a connection measures: it times runs of messages of one class of length, tries the other way now and then, and
//! takes the better one.
//!
//! ```text
//!   │ 8 to 128 messages, timed │ 8 to 32 not timed │ 8 to 128 messages, timed │ 8 to 32 not timed │ ...
//!   the better way             the other way: a trial, after 8 runs, or twice as many as last time
//! ```
//!
//! A trial that goes badly ends early, and the next is farther away: where one way takes several times as long as the other, trials
//! of it are what choosing costs. Where both ends map the memory of both and copy a half each, from 128 KiB on, nothing is tried.
//!
//! The time from the beginning of one message to that of the next is what one takes, as long as the receiver waits for them. A
//! run of which a quarter passed between two messages says nothing: there was a pause, or all of them began at once. Nor does the
//! first of a class, which finds memory that was never touched. Of each way the best time is kept, and forgotten by a quarter with
//! each run that was slower.

use std::time::{Duration, Instant};

use crate::config::RendezvousScheme;

/// Shorter messages are not copied directly: a system call takes as long as their two copies.
const LEAST: usize = 16 << 10;
/// From this length on one copy is taken until something is known.
pub(crate) const ONE_COPY_FROM: usize = 128 << 10;
/// Longer ones always are: two copies of as much pass by the caches of both ends, and a trial would take long.
const LONGEST: usize = 2 << 20;
/// Bytes of a run, and of what precedes it, within their bounds in messages.
const RUN: usize = 8 << 20;
const FEWEST: usize = 8;
const MOST: usize = 128;
/// The most messages at the beginning of a run that are not timed: as long as those that began before are under way, these wait
/// for them.
const SETTLES: usize = 32;
/// Runs between two trials, at first and at most.
const SOON: u32 = 8;
const LATE: u32 = 1 << 10;
/// How much better the other must be.
const BETTER: f64 = 0.87;
/// How much worse it must be for a trial to end early, and by how much its pause grows then.
const WORSE: f64 = 1.5;
const FARTHER: u32 = 8;
/// The part of a run that may pass between two messages.
const PAUSE: u32 = 4;

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
    best: Way,
    is_trial: bool,
    /// Nanoseconds for each byte, each way.
    cost: [Option<f64>; 2],
    /// Messages of this run, and what those that are timed have.
    messages: usize,
    bytes: usize,
    time: Duration,
    /// The longest time between two of them.
    longest: Duration,
    /// When the last message began.
    last: Option<Instant>,
    /// A run has ended.
    is_warm: bool,
    /// Runs until the next trial, and from that to the one after it.
    rest: u32,
    pause: u32,
}

impl Class {
    fn new(of: (u32, bool), length: usize) -> Self {
        let best = match length >= ONE_COPY_FROM {
            true => Way::OneCopy,
            false => Way::Fragments,
        };
        Self {
            of,
            best,
            is_trial: false,
            cost: [None; 2],
            messages: 0,
            bytes: 0,
            time: Duration::ZERO,
            longest: Duration::ZERO,
            last: None,
            is_warm: false,
            rest: 2,
            pause: SOON,
        }
    }

    /// The way of the message that begins now.
    fn next(&mut self, length: usize, now: Instant) -> Way {
        let way = match self.is_trial {
            true => self.best.other(),
            false => self.best,
        };
        let timed = (RUN / length).clamp(FEWEST, MOST);
        let settles = timed.min(SETTLES);
        self.messages += 1;
        if let Some(last) = self.last.replace(now)
            && self.messages > settles
        {
            let gap = now.duration_since(last);
            self.time += gap;
            self.longest = self.longest.max(gap);
            self.bytes += length;
        }
        let is_long = self.messages >= settles + timed;
        if is_long || self.is_trial {
            let cost = self.cost_so_far();
            if is_long || cost.is_some_and(|cost| self.is_much_worse(cost)) {
                self.over(way, cost.filter(|_| self.is_warm));
                (self.messages, self.bytes, self.is_warm) = (0, 0, true);
                (self.time, self.longest) = (Duration::ZERO, Duration::ZERO);
            }
        }
        way
    }

    /// What a byte took in this run, where that can be said.
    fn cost_so_far(&self) -> Option<f64> {
        let steady = self.longest < self.time / PAUSE;
        steady.then(|| self.time.as_nanos() as f64 / self.bytes as f64)
    }

    fn is_much_worse(&self, cost: f64) -> bool {
        self.cost[self.best as usize].is_some_and(|best| cost > best * WORSE)
    }

    /// A run has ended. `cost`: what a byte took, where that can be said.
    fn over(&mut self, way: Way, cost: Option<f64>) {
        if let Some(cost) = cost {
            let known = &mut self.cost[way as usize];
            *known = Some(known.map_or(cost, |known| cost.min(known * 1.25)));
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

/// The way where nothing is measured: one is pinned, or known to be the better one.
#[inline]
fn settled(scheme: RendezvousScheme, length: usize) -> Option<Way> {
    match scheme {
        _ if length < LEAST => Some(Way::Fragments),
        RendezvousScheme::Messages => Some(Way::Fragments),
        RendezvousScheme::Get | RendezvousScheme::Put => Some(Way::OneCopy),
        RendezvousScheme::Auto if length > LONGEST => Some(Way::OneCopy),
        RendezvousScheme::Auto => None,
    }
}

/// What a connection has learned.
#[derive(Debug, Default)]
pub(crate) struct Ways(Vec<Class>);

impl Ways {
    /// The way of a message that begins and could be copied directly: out of memory that this process has mapped, by both ends, a half each.
    pub(crate) fn next(
        &mut self,
        scheme: RendezvousScheme,
        length: usize,
        mapped: bool,
        halved: bool,
    ) -> Way {
        match settled(scheme, length) {
            Some(way) => way,
            // Each end copies once, however it goes, and here only half of it: there is nothing to learn.
            None if mapped && halved && length >= ONE_COPY_FROM => Way::OneCopy,
            None => self.class(length, mapped).next(length, Instant::now()),
        }
    }

    fn class(&mut self, length: usize, mapped: bool) -> &mut Class {
        let of = (length.ilog2(), mapped);
        let index = self.0.iter().position(|class| class.of == of);
        let index = index.unwrap_or_else(|| {
            self.0.push(Class::new(of, length));
            self.0.len() - 1
        });
        &mut self.0[index]
    }

    /// For people: the way of messages of this length as far as is known, and why: the nanoseconds that each takes for 1 KiB, or the choice of the
    /// user's.
    pub(crate) fn known(&self, scheme: RendezvousScheme, length: usize) -> (Way, Option<String>) {
        if let Some(way) = settled(scheme, length) {
            let chosen = length >= LEAST && scheme != RendezvousScheme::Auto;
            let said = || "the rendezvous scheme is chosen by configuration".to_owned();
            return (way, chosen.then(said));
        }
        let power = length.max(1).ilog2();
        let class = self.0.iter().find(|class| class.of.0 == power);
        let best = class.map_or_else(
            || Class::new((power, false), length).best,
            |class| class.best,
        );
        let said = class.and_then(|class| {
            let [fragments, one_copy] = class.cost.map(|cost| Some(cost? * 1024.0));
            Some(format!(
                "measured: {:.1} ns for 1 KiB in fragments, {:.1} ns in one copy",
                fragments?, one_copy?
            ))
        });
        (best, said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets messages of this length go, of which each takes as long by its way; how many went by the worse.
    fn send(
        class: &mut Class,
        now: &mut Instant,
        length: usize,
        times: [u64; 2],
        count: usize,
    ) -> usize {
        let worse = if times[0] > times[1] {
            Way::Fragments
        } else {
            Way::OneCopy
        };
        (0..count)
            .filter(|_| {
                let way = class.next(length, *now);
                *now += Duration::from_nanos(times[way as usize]);
                way == worse
            })
            .count()
    }

    #[test]
    fn the_faster_way_is_found_and_kept() {
        for length in [16 << 10, 64 << 10, LONGEST] {
            for times in [[5000, 2000], [2000, 5000]] {
                let (mut class, mut now) = (Class::new((0, false), length), Instant::now());
                send(&mut class, &mut now, length, times, 1000);
                let worse = send(&mut class, &mut now, length, times, 100_000);
                assert!(
                    worse < 5_000,
                    "{worse} of 100,000 of {length} bytes went the worse way"
                );
                assert!(worse > 0, "it is never tried again");
            }
        }
    }

    #[test]
    fn a_way_that_became_faster_is_found() {
        let (length, mut now) = (64 << 10, Instant::now());
        let mut class = Class::new((0, false), length);
        send(&mut class, &mut now, length, [2000, 5000], 200_000);
        send(&mut class, &mut now, length, [5000, 2000], 200_000);
        let worse = send(&mut class, &mut now, length, [5000, 2000], 10_000);
        assert!(worse < 1000, "{worse} of 10,000");
    }

    #[test]
    fn messages_may_begin_in_bursts() {
        let length = 64 << 10;
        for times in [[5000, 2000], [2000, 5000]] {
            let (mut class, mut now) = (Class::new((0, false), length), Instant::now());
            let mut worse = 0;
            for burst in 0..10_000 {
                let mut took = Duration::ZERO;
                for _ in 0..16 {
                    let way = class.next(length, now);
                    took += Duration::from_nanos(times[way as usize]);
                    worse += u32::from(burst > 100 && times[way as usize] == 5000);
                }
                now += took;
            }
            assert!(worse < 8_000, "{worse} of 160,000");
        }
    }

    #[test]
    fn pauses_do_not_mislead() {
        let (length, mut now) = (64 << 10, Instant::now());
        let mut class = Class::new((0, false), length);
        let mut worse = 0;
        for _ in 0..2000 {
            worse += send(&mut class, &mut now, length, [2000, 3000], 100);
            now += Duration::from_millis(10);
        }
        assert!(worse < 40_000, "{worse} of 200,000");
    }

    #[test]
    fn a_choice_of_the_users_stands() {
        let mut ways = Ways::default();
        for length in [1 << 10, 64 << 10, 1 << 30] {
            let long = length >= LEAST;
            let one_copy = ways.next(RendezvousScheme::Get, length, false, false) == Way::OneCopy;
            assert_eq!(one_copy, long);
            for _ in 0..1000 {
                let way = ways.next(RendezvousScheme::Messages, length, true, true);
                assert_eq!(way, Way::Fragments);
            }
        }
        assert!(ways.0.is_empty(), "nothing is measured");
        for (scheme, pinned) in [
            (RendezvousScheme::Get, Way::OneCopy),
            (RendezvousScheme::Messages, Way::Fragments),
        ] {
            let (way, why) = ways.known(scheme, 64 << 10);
            assert!(way == pinned && why.is_some_and(|why| why.contains("configuration")));
        }
    }

    #[test]
    fn what_both_ends_copy_a_half_of_is_not_tried_otherwise() {
        let mut ways = Ways::default();
        for _ in 0..1000 {
            let way = ways.next(RendezvousScheme::Auto, 1 << 20, true, true);
            assert_eq!(way, Way::OneCopy);
        }
        assert!(ways.0.is_empty(), "nothing is measured");
        // Short ones are, and where one end copies all of it.
        ways.next(RendezvousScheme::Auto, 64 << 10, true, true);
        ways.next(RendezvousScheme::Auto, 1 << 20, true, false);
        assert_eq!(ways.0.len(), 2);
    }

    #[test]
    fn what_is_known_is_said() {
        const AUTO: RendezvousScheme = RendezvousScheme::Auto;
        let mut ways = Ways::default();
        assert_eq!(ways.known(AUTO, 64 << 10), (Way::Fragments, None));
        assert_eq!(ways.known(AUTO, 1 << 20), (Way::OneCopy, None));
        for _ in 0..1000 {
            ways.next(AUTO, 64 << 10, false, false);
        }
        assert!(
            ways.known(AUTO, 65 << 10)
                .1
                .is_some_and(|said| said.starts_with("measured: "))
        );
    }
}
