#![allow(unsafe_code)]
//! The journal as a file, for programs that know nothing of the emulator: `EMULATED_CUDA_JOURNAL` names it.
//!
//! # Safety
//! `atexit` keeps a function without captures, which is there as long as the library.

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
    let mut text = String::new();
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
