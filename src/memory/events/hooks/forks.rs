//! Forks wait while code is being changed: a child would have the half-made patch, and no thread that finishes it.
//!
//! ```text
//!   fork:      FORKS + 1, and PATCHING not set?  ── clone ──  FORKS - 1          else it waits, and counts itself again
//!   patching:  PATCHING set, and FORKS 0?        ── write ──  PATCHING cleared   else it waits
//! ```
//! Not asked are `vfork` and `posix_spawn`, whose children share the code with their parent, and a bare `clone`.
//!
//! # Safety
//! The handlers are functions of this library, which is pinned before they are registered; they change atomics and yield.
#![allow(unsafe_code)]

use std::{
    io,
    sync::atomic::{
        AtomicBool, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
    thread,
};

/// Forks under way, since [`register`].
static FORKS: AtomicUsize = AtomicUsize::new(0);
static PATCHING: AtomicBool = AtomicBool::new(false);

/// From now on forks are counted.
/// Errors: `ENOMEM`.
pub(super) fn register() -> io::Result<()> {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if REGISTERED.swap(true, Relaxed) {
        return Ok(());
    }
    // SAFETY: see the head of the file.
    match unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) } {
        0 => Ok(()),
        error => {
            REGISTERED.store(false, Relaxed);
            Err(io::Error::from_raw_os_error(error))
        }
    }
}

/// While it lives no fork copies this process.
pub(super) struct NoForks(());

impl NoForks {
    /// Waits for those that are under way. One at a time.
    pub(super) fn new() -> Self {
        PATCHING.store(true, SeqCst);
        while FORKS.load(SeqCst) != 0 {
            thread::yield_now();
        }
        Self(())
    }
}

impl Drop for NoForks {
    fn drop(&mut self) {
        PATCHING.store(false, SeqCst);
    }
}

extern "C" fn before() {
    loop {
        FORKS.fetch_add(1, SeqCst);
        if !PATCHING.load(SeqCst) {
            return;
        }
        after();
        while PATCHING.load(SeqCst) {
            thread::yield_now();
        }
    }
}

/// Older glibc calls it for forks, too, that began before it was registered.
extern "C" fn after() {
    let _ = FORKS.fetch_update(SeqCst, SeqCst, |forks| forks.checked_sub(1));
}

extern "C" fn in_child() {
    FORKS.store(0, SeqCst);
}
