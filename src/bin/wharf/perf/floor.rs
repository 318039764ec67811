//! What the machine allows: a cache line between two threads, and a copy within one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::args::pin;

/// A word in a cache line (and its neighbour, which is fetched with it) of its own.
#[repr(align(128))]
struct Line(AtomicU64);

/// How long each is measured.
const TIME: Duration = Duration::from_millis(20);
/// The longest copy that is measured.
const MOST: usize = 1 << 28;

/// Nanoseconds from one thread to another: half a round trip of a word in a cache line. `cpus` as the measurement has them.
pub(super) fn cache_line(cpus: Option<[usize; 2]>) -> f64 {
    let (there, back) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    const END: u64 = u64::MAX;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = pin(cpus.map(|cpus| cpus[1]));
            let mut seen = 0;
            while seen != END {
                seen = wait(&there, seen);
                back.0.store(seen, Ordering::Release);
            }
        });
        let measuring = scope.spawn(|| {
            let _ = pin(cpus.map(|cpus| cpus[0]));
            let (mut best, mut number) = (f64::INFINITY, 0);
            let start = Instant::now();
            // Longer, where others have the processors.
            while start.elapsed() < TIME || best > 2e3 && start.elapsed() < TIME * 15 {
                let begin = Instant::now();
                for _ in 0..100 {
                    there.0.store(number + 1, Ordering::Release);
                    number = wait(&back, number);
                }
                best = best.min(begin.elapsed().as_nanos() as f64 / 200.0);
            }
            there.0.store(END, Ordering::Release);
            best
        });
        measuring.join().unwrap_or(f64::NAN)
    })
}

/// Looks until the word is another one. Gives the processor up now and then, for where there is only one.
fn wait(line: &Line, known: u64) -> u64 {
    for look in 1_u32.. {
        let found = line.0.load(Ordering::Acquire);
        if found != known {
            return found;
        }
        if look.is_multiple_of(1 << 14) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
    known
}

/// Bytes a second of one thread that copies this many from one place to another, again and again. `None`: more than is tried.
pub(super) fn memcpy(size: usize) -> Option<f64> {
    if size == 0 || size > MOST {
        return None;
    }
    let (from, mut to) = (vec![1_u8; size], vec![2_u8; size]);
    let batch = ((1 << 18) / size).max(1);
    let mut best = 0.0_f64;
    let end = Instant::now() + TIME / 4;
    loop {
        let begin = Instant::now();
        for _ in 0..batch {
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&mut to);
        }
        best = best.max((size * batch) as f64 / begin.elapsed().as_secs_f64());
        if Instant::now() >= end {
            return Some(best);
        }
    }
}
