//! How long a cache line takes from one CPU to the other just now.
//!
//! The CPUs of a virtual machine move from one place of the processor to another: for seconds a line takes 60 ns, then for seconds 300, and
//! with it all that two processes say to each other takes up to five times as long. Figures of the two states are not to be mixed.

use std::hint::spin_loop;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Outcome, pair};

/// Ways there and back of one look, some milliseconds.
const TURNS: u32 = 8_000;
/// How often a measurement is repeated that did not keep to the state that was asked for.
const TRIES: usize = 20;
/// How long that state is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks while it is waited for.
const PAUSE: Duration = Duration::from_millis(100);

#[repr(align(128))]
struct Word(AtomicU32);

/// Nanoseconds one way.
fn line(cpus: [usize; 2]) -> Outcome<f64> {
    let (there, back) = (Word(AtomicU32::new(0)), Word(AtomicU32::new(0)));
    let wait = |word: &Word, turn| {
        let mut looks = 0;
        while word.0.load(Acquire) != turn {
            looks += 1;
            match looks < 10_000 {
                true => spin_loop(),
                // Something else has the other's CPU, or there is one alone.
                false => thread::yield_now(),
            }
        }
    };
    thread::scope(|scope| {
        // Both wait for nobody who could fail: each pins itself first, and goes on unpinned where it may not.
        let echo = scope.spawn(|| {
            let pinned = pair::pin(cpus[1]);
            for turn in 1..=TURNS {
                wait(&there, turn);
                back.0.store(turn, Release);
            }
            pinned
        });
        let asks = scope.spawn(|| {
            let pinned = pair::pin(cpus[0]);
            let mut begun = Instant::now();
            for turn in 1..=TURNS {
                if turn == TURNS / 8 {
                    begun = Instant::now();
                }
                there.0.store(turn, Release);
                wait(&back, turn);
            }
            let turns = f64::from(TURNS - TURNS / 8 + 1);
            pinned.map(|()| begun.elapsed().as_secs_f64() * 1e9 / turns / 2.0)
        });
        echo.join()
            .map_err(|_| "a look at the cache line failed")??;
        asks.join().map_err(|_| "a look at the cache line failed")?
    })
}

/// What was seen of the line over a run, and what is asked of it.
pub(crate) struct Line<'a> {
    look: Box<dyn FnMut() -> Outcome<f64> + 'a>,
    wanted: Option<RangeInclusive<f64>>,
    seen: Option<[f64; 2]>,
}

impl<'a> Line<'a> {
    pub(crate) fn new(cpus: [usize; 2], wanted: Option<RangeInclusive<f64>>) -> Self {
        Self::by(move || line(cpus), wanted)
    }

    fn by(look: impl FnMut() -> Outcome<f64> + 'a, wanted: Option<RangeInclusive<f64>>) -> Self {
        Self {
            look: Box::new(look),
            wanted,
            seen: None,
        }
    }

    /// The least and the most of it beside what was measured, in nanoseconds.
    pub(crate) fn seen(&self) -> Option<[f64; 2]> {
        self.seen
    }

    /// Measures, again where the line was not before and after it as it should be.
    pub(crate) fn beside(&mut self, mut measure: impl FnMut() -> Outcome<f64>) -> Outcome<f64> {
        for _ in 0..TRIES {
            let before = self.wait()?;
            let value = measure()?;
            let after = (self.look)()?;
            if self.is_wanted(after) {
                let [least, most] = self.seen.unwrap_or([f64::INFINITY, 0.0]);
                self.seen = Some([least.min(before).min(after), most.max(before).max(after)]);
                return Ok(value);
            }
        }
        Err("the cache line never took the time that was asked for".into())
    }

    fn wait(&mut self) -> Outcome<f64> {
        let end = Instant::now() + PATIENCE;
        loop {
            let now = (self.look)()?;
            if self.is_wanted(now) {
                return Ok(now);
            }
            if Instant::now() > end {
                return Err(
                    format!("the cache line takes {now:.0} ns, not what was asked for").into(),
                );
            }
            thread::sleep(PAUSE);
        }
    }

    fn is_wanted(&self, nanoseconds: f64) -> bool {
        self.wanted
            .as_ref()
            .is_none_or(|wanted| wanted.contains(&nanoseconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_beside_another_line_is_measured_again() {
        let mut looks = [300.0, 60.0, 290.0, 62.0, 58.0].into_iter();
        let mut line = Line::by(
            || looks.next().ok_or_else(|| "one look too many".into()),
            Some(0.0..=90.0),
        );
        let mut values = [1.0, 2.0].into_iter();
        let value = line.beside(|| values.next().ok_or_else(|| "measured too often".into()));
        assert_eq!(value.ok(), Some(2.0));
        assert_eq!(line.seen(), Some([58.0, 62.0]));
        assert!(line.beside(|| Ok(3.0)).is_err(), "the looks are over");
    }
}
