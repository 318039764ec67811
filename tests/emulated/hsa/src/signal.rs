#![allow(unsafe_code)]
//! Signals: words in memory, laid out as `amd_signal_t` begins; a handle is the address. Memory of signals is never given back, so that a late use is
//! seen.
//!
//! # Safety
//! A word is only reached by a handle that is in the table, and its memory stays for ever.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicI64, Ordering::SeqCst},
};

use crate::{
    abi::{Outcome, Status},
    copy::Work,
    runtime::{die, runtime},
};

/// The first words of `amd_signal_t`: kind (1: a user signal), value.
#[repr(C, align(64))]
struct Words {
    kind: AtomicI64,
    value: AtomicI64,
}

/// Handles of the signals that there are.
#[derive(Debug, Default)]
pub(crate) struct Signals(pub(crate) BTreeSet<u64>);

/// `hsa_signal_create`.
pub(crate) fn create(initial: i64) -> u64 {
    let words: &'static Words = Box::leak(Box::new(Words {
        kind: AtomicI64::new(1),
        value: AtomicI64::new(initial),
    }));
    let handle = std::ptr::from_ref(words).expose_provenance() as u64;
    runtime().work.lock().signals.0.insert(handle);
    handle
}

/// `hsa_signal_destroy`.
pub(crate) fn destroy(handle: u64) -> Outcome {
    let mut work = runtime().work.lock();
    if !work.signals.0.remove(&handle) {
        return Err(Status::INVALID_SIGNAL);
    }
    words(handle).kind.store(0, SeqCst);
    if work.uses(handle) {
        runtime()
            .journal
            .misuse(format!("signal {handle:#x} was destroyed in use"));
    }
    runtime().changed.notify_all();
    Ok(())
}

/// That there is such a signal.
pub(crate) fn check(handle: u64) -> Outcome {
    if runtime().work.lock().signals.0.contains(&handle) {
        Ok(())
    } else {
        Err(Status::INVALID_SIGNAL)
    }
}

/// Its value, for calls that cannot report: no signal ends the process.
pub(crate) fn load(handle: u64) -> i64 {
    if check(handle).is_err() {
        die(&format!("{handle:#x} is no signal"));
    }
    value(handle)
}

/// Changes its value.
pub(crate) fn change(handle: u64, change: impl FnOnce(&AtomicI64)) {
    let work = runtime().work.lock();
    if !work.signals.0.contains(&handle) {
        drop(work);
        die(&format!("{handle:#x} is no signal"));
    }
    change(&words(handle).value);
    // Under the lock, so that who looks and then waits does not miss it.
    runtime().changed.notify_all();
}

impl Work {
    /// What an engine does at the end. A signal that has gone is a misuse.
    pub(crate) fn complete(&self, handle: u64, failed: Option<u32>) {
        if !self.signals.0.contains(&handle) {
            let why = format!("signal {handle:#x} was destroyed before its copy was done");
            runtime().journal.misuse(why);
            return;
        }
        match failed {
            None => words(handle).value.fetch_sub(1, SeqCst),
            Some(number) => words(handle).value.swap(-i64::from(number), SeqCst),
        };
        runtime().changed.notify_all();
    }
}

/// The value of a signal that is known to be, or was.
pub(crate) fn value(handle: u64) -> i64 {
    words(handle).value.load(SeqCst)
}

/// Whether a condition holds: 0 equal, 1 not equal, 2 less, 3 at least.
pub(crate) const fn holds(condition: u32, value: i64, bound: i64) -> bool {
    match condition {
        0 => value == bound,
        1 => value != bound,
        2 => value < bound,
        _ => value >= bound,
    }
}

fn words(handle: u64) -> &'static Words {
    // SAFETY: the callers' handles are, or were, in the table: addresses of memory that stays.
    unsafe { &*std::ptr::with_exposed_provenance::<Words>(handle as usize) }
}
