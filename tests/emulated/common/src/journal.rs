//! What was called: how often, the last calls with their arguments and results, and what was done that the real driver
//! leaves undefined.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write as _,
    time::Instant,
};

use parking_lot::Mutex;

/// How many of the last calls, and how many misuses, are kept.
pub const KEPT: usize = 4096;

/// One call.
#[derive(Debug)]
struct Call {
    nanos: u64,
    thread: i32,
    name: &'static str,
    arguments: [u64; 4],
    result: u32,
}

#[derive(Debug, Default)]
struct Entries {
    start: Option<Instant>,
    counts: BTreeMap<&'static str, u64>,
    calls: VecDeque<Call>,
    misuses: VecDeque<String>,
    misused: u64,
}

/// Counters, the last calls and the misuses.
#[derive(Debug)]
pub struct Journal(Mutex<Entries>);

impl Default for Journal {
    fn default() -> Self {
        Self::new()
    }
}

impl Journal {
    /// An empty journal.
    pub const fn new() -> Self {
        Self(Mutex::new(Entries {
            start: None,
            counts: BTreeMap::new(),
            calls: VecDeque::new(),
            misuses: VecDeque::new(),
            misused: 0,
        }))
    }

    /// Writes a call down.
    pub fn call(&self, name: &'static str, arguments: [u64; 4], result: u32) {
        let thread = crate::share::thread_id();
        let mut entries = self.0.lock();
        let nanos = entries.start.get_or_insert_with(Instant::now).elapsed();
        *entries.counts.entry(name).or_default() += 1;
        if entries.calls.len() == KEPT {
            entries.calls.pop_front();
        }
        entries.calls.push_back(Call {
            nanos: u64::try_from(nanos.as_nanos()).unwrap_or(u64::MAX),
            thread,
            name,
            arguments,
            result,
        });
    }

    /// Writes down what a program must not do: it may go well on the real driver, or not.
    pub fn misuse(&self, what: String) {
        let mut entries = self.0.lock();
        entries.misused += 1;
        if entries.misuses.len() == KEPT {
            entries.misuses.pop_front();
        }
        entries.misuses.push_back(what);
    }

    /// How often `name` was called.
    pub fn count(&self, name: &str) -> u64 {
        self.0.lock().counts.get(name).copied().unwrap_or(0)
    }

    /// How many calls there were of all names.
    pub fn total(&self) -> u64 {
        self.0.lock().counts.values().sum()
    }

    /// How many misuses there were.
    pub fn misused(&self) -> u64 {
        self.0.lock().misused
    }

    /// A line `NAME COUNT` for each name that was called.
    pub fn counts(&self) -> String {
        let mut text = String::new();
        for (name, count) in &self.0.lock().counts {
            let _ = writeln!(text, "{name} {count}");
        }
        text
    }

    /// A line `NANOSECONDS THREAD NAME(ARGUMENTS) RESULT` for each of the last calls, oldest first.
    pub fn calls(&self) -> String {
        let mut text = String::new();
        for call in &self.0.lock().calls {
            let [a, b, c, d] = call.arguments;
            let _ = writeln!(
                text,
                "{} {} {}({a:#x}, {b:#x}, {c:#x}, {d:#x}) {}",
                call.nanos, call.thread, call.name, call.result
            );
        }
        text
    }

    /// A line for each of the last misuses, oldest first.
    pub fn misuses(&self) -> String {
        let entries = self.0.lock();
        let mut text = String::new();
        for misuse in &entries.misuses {
            let _ = writeln!(text, "{misuse}");
        }
        text
    }

    /// Forgets everything.
    pub fn clear(&self) {
        *self.0.lock() = Entries::default();
    }
}
