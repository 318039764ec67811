//! A count on hot paths of many threads.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

/// Two counts that threads raise without a locked instruction: the first threads that count anything have a line each, the others share the last.
#[derive(Debug)]
pub(crate) struct Tally(Box<[Line]>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    first: AtomicU64,
    second: AtomicU64,
}

const LINES: usize = 32;

/// Threads that have counted.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread's line plus one; 0 before it counted anything.
    static LINE: Cell<usize> = const { Cell::new(0) };
}

impl Default for Tally {
    fn default() -> Self {
        Self((0..LINES).map(|_| Line::default()).collect())
    }
}

impl Tally {
    /// Raises the first count by one, or the second.
    #[inline]
    pub(crate) fn add(&self, second: bool) {
        let line = match LINE.get() {
            0 => first_count(),
            line => line - 1,
        };
        let counters = &self.0[line % LINES];
        let counter = match second {
            true => &counters.second,
            false => &counters.first,
        };
        match line < LINES - 1 {
            // This thread's own.
            true => counter.store(counter.load(Relaxed) + 1, Relaxed),
            false => drop(counter.fetch_add(1, Relaxed)),
        }
    }

    /// Both.
    pub(crate) fn sum(&self) -> (u64, u64) {
        self.0.iter().fold((0, 0), |(first, second), line| {
            (
                first + line.first.load(Relaxed),
                second + line.second.load(Relaxed),
            )
        })
    }
}

#[cold]
fn first_count() -> usize {
    let line = THREADS.fetch_add(1, Relaxed).min(LINES - 1);
    LINE.set(line + 1);
    line
}
