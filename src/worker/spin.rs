//! How long a future looks before it sleeps.
//!
//! A window shorter than the peer's own wake-up (8 to 9 µs, seen in November 2026 on a virtual machine) makes both ends sleep on every message, so there
//! is either hardly any window or one above that.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use crate::config::Progress;

/// The window while spinning pays, and the mean wait up to which it does.
const CAP: Duration = Duration::from_micros(20);
/// The window when it does not.
const GLANCE: Duration = Duration::from_micros(1);
/// Laps between two looks at the clock (40 ns each).
const LAPS: u32 = 4;

#[derive(Debug)]
pub(crate) struct SpinPolicy {
    progress: Progress,
    /// Exponential mean of the waits of this worker, parked time included, in nanoseconds.
    mean: AtomicU64,
}

impl SpinPolicy {
    pub(crate) fn new(progress: Progress) -> Self {
        Self {
            progress,
            mean: AtomicU64::new(0),
        }
    }

    fn window(&self) -> Duration {
        match self.progress {
            Progress::Adaptive if self.mean.load(Ordering::Relaxed) <= CAP.as_nanos() as u64 => CAP,
            Progress::Adaptive => GLANCE,
            Progress::Spin(window) => window,
            Progress::Busy => CAP,
            _ => Duration::ZERO,
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
            Some((since, window)) => since.elapsed() < window,
        }
    }

    /// A wait ended after `waited`.
    pub(crate) fn learn(&self, waited: Duration) {
        if matches!(self.progress, Progress::Adaptive) {
            let waited = u64::try_from(waited.as_nanos())
                .unwrap_or(u64::MAX)
                .min(1 << 40);
            let mean = self.mean.load(Ordering::Relaxed);
            // A lost update between two tasks costs precision only.
            self.mean
                .store(mean - mean / 8 + waited / 8, Ordering::Relaxed);
        }
    }
}

/// One future's wait.
#[derive(Debug)]
pub(crate) struct Spin {
    laps: u32,
    since: Option<(Instant, Duration)>,
}

impl Spin {
    /// How long it has lasted, if long enough to have looked at the clock.
    pub(crate) fn waited(&self) -> Option<Duration> {
        (self.laps > LAPS)
            .then(|| self.since.map(|(since, _)| since.elapsed()))
            .flatten()
    }
}
