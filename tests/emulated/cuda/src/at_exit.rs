#![allow(unsafe_code)]
//! The journal as a file, for programs that know nothing of the emulator: `EMULATED_CUDA_JOURNAL` names it. Its lines: `count NAME NUMBER`,
//! `misuse WHAT`, and `cpu MICROSECONDS`, the processor time of the process until then.
//!
//! # Safety
//! `atexit` keeps a function without captures, which is there as long as the library. `getrusage` fills the struct that it is given.

use std::{fmt::Write as _, fs};

use crate::driver::driver;

const VARIABLE: &str = "EMULATED_CUDA_JOURNAL";

/// Has the journal written when this process ends, where the variable is set.
pub(crate) fn write_journal() {
    if std::env::var_os(VARIABLE).is_some() {
        // SAFETY: see the head of the file.
        unsafe { libc::atexit(run) };
    }
}

extern "C" fn run() {
    let Some(path) = std::env::var_os(VARIABLE) else {
        return;
    };
    let journal = &driver().journal;
    let mut text = format!("cpu {}\n", processor_time());
    for line in journal.counts().lines() {
        let _ = writeln!(text, "count {line}");
    }
    for line in journal.misuses().lines() {
        let _ = writeln!(text, "misuse {line}");
    }
    if let Err(error) = fs::write(&path, text) {
        eprintln!("emulated CUDA driver: {VARIABLE}={path:?}: {error}");
    }
}

/// Of all threads, in the system too; microseconds.
fn processor_time() -> i64 {
    // SAFETY: numbers alone.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: see the head of the file.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let micros = |time: libc::timeval| time.tv_sec * 1_000_000 + time.tv_usec;
    micros(usage.ru_utime) + micros(usage.ru_stime)
}
