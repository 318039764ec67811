//! The clock of a measurement: when it warms up, how many operations are timed together, when it is over, and what came out.
//!
//! Reading the clock takes some 20 to 40 ns, as long as a short operation. So short operations are timed in batches, for the means, and a few
//! between the batches by themselves, for the percentiles, less what reading the clock takes. Operations of [`LONG`] and more are all timed
//! by themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::Outcome;
use super::spec::Spec;

/// How long a batch is to take, about.
const BATCH: Duration = Duration::from_micros(20);
/// From here on each operation is timed by itself.
const LONG: Duration = Duration::from_micros(2);
/// Operations that are timed by themselves after each batch.
const SINGLES: u32 = 4;
/// Parts of the measurement, the middle one of whose means is called the average: of long operations; of others each batch is a part.
const PARTS: u32 = 10;
/// Batches whose means are kept.
const MOST_MEANS: usize = 1 << 20;
/// The histogram counts tenths of a nanosecond.
const TENTHS: f64 = 10.0;

/// See the module.
pub(super) struct Laps {
    /// What a lap is divided by: 2 for a round trip.
    parts_of_lap: f64,
    phase: Phase,
    warm_until: Instant,
    /// Operations left of the warm-up, or of the measurement.
    left: Option<u64>,
    iterations: Option<u64>,
    time: Duration,
    /// Operations of a batch; one for long operations.
    batch: u64,
    /// An operation of the fastest lap of the warm-up.
    fastest: Duration,
    /// Singles still to be timed before the next batch.
    singles: u32,
    /// Operations of the lap under way.
    current: u64,
    last: Instant,
    started: Instant,
    /// Nanoseconds that reading the clock takes.
    clock: f64,
    /// Of the whole measurement: what was timed in batches (or all, of long operations).
    total: Sum,
    /// Of the part under way.
    part: Sum,
    part_started: Instant,
    means: Vec<f64>,
    count: u64,
    histogram: Histogram<u64>,
    beat: Arc<AtomicU64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Fresh,
    Warm,
    Timed,
    Over,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    nanoseconds: f64,
    operations: u64,
}

impl Sum {
    fn mean(self) -> f64 {
        self.nanoseconds / self.operations.max(1) as f64
    }
}

/// What came out at one end.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    /// Operations that were measured.
    pub(super) iterations: u64,
    /// Of single operations, in tenths of a nanosecond.
    pub(super) histogram: Histogram<u64>,
    /// Nanoseconds of an operation, in the middle one of the batches, or of ten parts of the measurement.
    pub(super) average: f64,
    /// Nanoseconds of an operation, over all.
    pub(super) overall: f64,
}

impl Figures {
    /// Of several tasks that worked side by side for one time. Their rates add up, so the mean of an operation is their harmonic one.
    pub(super) fn merge(all: Vec<Self>) -> Outcome<Self> {
        let mean = |of: fn(&Self) -> f64| {
            let rates: f64 = all.iter().map(|one| 1.0 / of(one)).sum();
            all.len() as f64 / rates
        };
        let (average, overall) = (mean(|one| one.average), mean(|one| one.overall));
        let mut all = all.into_iter();
        let mut sum = all.next().ok_or("no figures")?;
        for other in all {
            sum.histogram.add(&other.histogram)?;
            sum.iterations += other.iterations;
        }
        Ok(Self {
            average,
            overall,
            ..sum
        })
    }

    /// Of values in nanoseconds that were gathered otherwise.
    pub(super) fn of(values: &[f64]) -> Outcome<Self> {
        let mut histogram = empty()?;
        let mut sum = Sum::default();
        for value in values {
            histogram.saturating_record((value * TENTHS) as u64);
            sum.nanoseconds += value;
            sum.operations += 1;
        }
        let mut means: Vec<f64> = values
            .chunks(values.len().div_ceil(PARTS as usize).max(1))
            .map(|part| part.iter().sum::<f64>() / part.len() as f64)
            .collect();
        Ok(Self {
            iterations: sum.operations,
            histogram,
            average: median(&mut means),
            overall: sum.mean(),
        })
    }

    /// Nanoseconds that this share (of 1) of the operations does not exceed.
    pub(super) fn percentile(&self, share: f64) -> f64 {
        self.histogram.value_at_quantile(share) as f64 / TENTHS
    }
}

fn empty() -> Outcome<Histogram<u64>> {
    // Up to 1,000 s, to a thousandth.
    Ok(Histogram::new_with_bounds(1, 10_000_000_000_000, 3)?)
}

impl Laps {
    pub(super) fn new(spec: &Spec, beat: Arc<AtomicU64>) -> Outcome<Self> {
        let now = Instant::now();
        let warm = spec
            .iterations
            .map(|iterations| (iterations / 10).clamp(1, 10_000));
        Ok(Self {
            parts_of_lap: if spec.test.is_ping_pong { 2.0 } else { 1.0 },
            phase: Phase::Fresh,
            warm_until: now,
            left: spec.warm_up.map(|number| number.max(1)).or(warm),
            iterations: spec.iterations,
            time: spec.time,
            batch: 1,
            fastest: Duration::MAX,
            singles: 0,
            current: 1,
            last: now,
            started: now,
            clock: clock_cost(),
            total: Sum::default(),
            part: Sum::default(),
            part_started: now,
            means: Vec::with_capacity(PARTS as usize + 1),
            count: 0,
            histogram: empty()?,
            beat,
        }
        .warm_for(spec.warm_time()))
    }

    /// Something goes on, of which no laps tell.
    pub(super) fn beat(&self) {
        self.beat.fetch_add(1, Ordering::Relaxed);
    }

    fn warm_for(mut self, time: Duration) -> Self {
        self.warm_until = self.last + time;
        self
    }

    /// To be called before each lap: how many operations it has. `None`: it is over.
    pub(super) fn next(&mut self) -> Option<u64> {
        let now = Instant::now();
        let took = now - self.last;
        self.beat.fetch_add(1, Ordering::Relaxed);
        match self.phase {
            Phase::Fresh => {
                self.phase = Phase::Warm;
                self.warm_until += now - self.last;
            }
            Phase::Warm => self.warm(now, took),
            Phase::Timed => self.note(now, took),
            Phase::Over => {}
        }
        if self.phase == Phase::Over {
            return None;
        }
        if let Some(left) = self.left {
            self.current = self.current.min(left);
        }
        self.last = Instant::now();
        Some(self.current)
    }

    fn warm(&mut self, now: Instant, took: Duration) {
        // Twice as many each time, until a batch is long enough.
        if took < BATCH && self.current == self.batch {
            self.batch = (self.batch * 2).min(1 << 16);
        }
        // By the best lap: the last one of a warm-up is likely to be one in which others had the processor.
        self.fastest = self
            .fastest
            .min(took / u32::try_from(self.current).unwrap_or(1));
        if self.fastest >= LONG {
            self.batch = 1;
        }
        let over = match &mut self.left {
            Some(left) => {
                *left = left.saturating_sub(self.current);
                *left == 0
            }
            None => now >= self.warm_until,
        };
        self.current = self.batch;
        if over {
            self.phase = Phase::Timed;
            self.left = self.iterations;
            (self.started, self.part_started) = (now, now);
            if let Some(iterations) = self.iterations {
                self.batch = self.batch.min((iterations / 20).max(1));
                self.current = self.batch;
            }
        }
    }

    fn note(&mut self, now: Instant, took: Duration) {
        let nanoseconds = took.as_nanos() as f64;
        self.count += self.current;
        let is_single = self.current == 1;
        if is_single {
            let value = (nanoseconds - self.clock).max(0.1) / self.parts_of_lap;
            self.histogram.saturating_record((value * TENTHS) as u64);
        }
        if !is_single || self.batch == 1 {
            self.total.nanoseconds += nanoseconds;
            self.total.operations += self.current;
            self.part.nanoseconds += nanoseconds;
            self.part.operations += self.current;
        }
        if let Some(left) = &mut self.left {
            *left -= self.current.min(*left);
        }
        let share = match self.iterations {
            // What others take of the processors falls into few batches.
            _ if self.batch > 1 => !is_single && self.means.len() < MOST_MEANS,
            Some(iterations) => self.part.operations * u64::from(PARTS) >= iterations,
            None => now - self.part_started >= self.time / PARTS,
        };
        if share && self.part.operations > 0 {
            self.means.push(self.part.mean());
            (self.part, self.part_started) = (Sum::default(), now);
        }
        let over = match self.left {
            Some(left) => left == 0,
            None => now - self.started >= self.time,
        };
        if over {
            self.phase = Phase::Over;
        } else if self.batch == 1 {
            self.current = 1;
        } else if is_single && self.singles + 1 >= SINGLES {
            (self.singles, self.current) = (0, self.batch);
        } else {
            self.singles = if is_single { self.singles + 1 } else { 0 };
            self.current = 1;
        }
    }

    /// What came out: for operations each of which was waited for.
    pub(super) fn finish(self) -> Figures {
        let mut means = self.means;
        if means.is_empty() {
            means.push(self.total.mean());
        }
        Figures {
            iterations: self.count,
            histogram: self.histogram,
            average: median(&mut means) / self.parts_of_lap,
            overall: self.total.mean() / self.parts_of_lap,
        }
    }

    /// The same when many were in flight: to be called when the last has arrived.
    pub(super) fn finish_arrived(self) -> Figures {
        let took = self.started.elapsed().as_nanos() as f64;
        let overall = took / self.count.max(1) as f64;
        Figures {
            overall,
            ..self.finish()
        }
    }
}

/// The middle one; of none, nothing.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// Nanoseconds between two readings with nothing between them.
fn clock_cost() -> f64 {
    let mut costs: Vec<f64> = (0..101)
        .map(|_| {
            let before = Instant::now();
            before.elapsed().as_nanos() as f64
        })
        .collect();
    median(&mut costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_lap_at_the_end_of_the_warm_up_makes_no_operation_long() {
        let spec = Spec {
            test: super::super::spec::Test::find("fadd").unwrap(),
            size: 8,
            iterations: None,
            time: Duration::from_millis(100),
            warm_up: None,
            window: 1,
            tasks: 1,
            memory: ["host".parse().unwrap(), "host".parse().unwrap()],
            progress: wharf::Progress::Busy,
            validate: false,
            transport: None,
        };
        let batch = |laps: &[Duration]| {
            let mut this = Laps::new(&spec, Arc::default()).unwrap();
            (this.phase, this.left) = (Phase::Warm, None);
            let soon = Instant::now();
            this.warm_until = soon + Duration::from_secs(60);
            for took in laps {
                this.warm(soon, *took * u32::try_from(this.current).unwrap());
            }
            this.batch
        };
        let (short, long) = (Duration::from_nanos(50), Duration::from_millis(8));
        let mut laps = [short; 40];
        assert_eq!(batch(&laps), 512);
        laps[39] = long;
        assert_eq!(batch(&laps), 512);
        assert_eq!(batch(&[long; 40]), 1);
    }

    /// Two tasks with 1,000 and 3,000 operations in 3 ms have 4,000 together: of two that are at work, each takes 1.5 us.
    #[test]
    fn rates_of_uneven_tasks_add_up() {
        let of = |nanoseconds: f64, operations| Figures {
            iterations: operations,
            ..Figures::of(&[nanoseconds; 10]).unwrap()
        };
        let both = Figures::merge(vec![of(3000.0, 1000), of(1000.0, 3000)]).unwrap();
        assert_eq!((both.average, both.overall), (1500.0, 1500.0));
        assert_eq!(both.iterations, 4000);
        assert!(Figures::merge(Vec::new()).is_err());
    }
}
