#![allow(unsafe_code)]
//! Something to do in a child after `fork`: the driver does not work there.
//!
//! # Safety
//! `pthread_atfork` keeps a function without captures; it runs in the child alone, where it may only do what a signal
//! handler may: the one use stores to an atomic.

use std::sync::OnceLock;

static IN_CHILD: OnceLock<fn()> = OnceLock::new();

extern "C" fn run() {
    if let Some(run) = IN_CHILD.get() {
        run();
    }
}

/// Runs `what` in every child that this process forks from now on. Only the first one counts.
pub(crate) fn in_child(what: fn()) {
    if IN_CHILD.set(what).is_ok() {
        // SAFETY: the function is there as long as the library, which is never unloaded by who uses it.
        unsafe { libc::pthread_atfork(None, None, Some(run)) };
    }
}
