//! What a child made by `fork` does with the descriptors that its parent reads events from: it closes them at once.
//!
//! As long as a child holds one open, closing it in the parent ends nothing: the parent's next `munmap` of a watched range would wait for a
//! reader that is no more.
//!
//! # Safety
//! The handler runs in the child's only thread before `fork` returns there. It reads and writes atomics and calls `close`: all of that is
//! allowed in a signal handler.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::RawFd,
    sync::{
        Once,
        atomic::{AtomicBool, AtomicI32, Ordering::SeqCst},
    },
};

/// Whether this process is a child made by `fork` since the first descriptor was kept.
pub(super) fn forked() -> bool {
    FORKED.load(SeqCst)
}

/// A descriptor that a child closes.
#[derive(Debug)]
pub(super) struct ClosedInChild(&'static AtomicI32);

impl ClosedInChild {
    /// Closes `fd` in children from now on, until it is dropped, which has to be before the descriptor is closed here.
    ///
    /// # Errors
    /// `StorageFull` when there are 16 already.
    pub(super) fn new(fd: RawFd) -> io::Result<Self> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the handler may run in a child, see above.
            unsafe { pthread_atfork(None, None, Some(in_child)) };
        });
        FDS.iter()
            .find(|place| place.compare_exchange(-1, fd, SeqCst, SeqCst).is_ok())
            .map(Self)
            .ok_or_else(|| io::ErrorKind::StorageFull.into())
    }
}

impl Drop for ClosedInChild {
    fn drop(&mut self) {
        self.0.store(-1, SeqCst);
    }
}

static FORKED: AtomicBool = AtomicBool::new(false);
static FDS: [AtomicI32; 16] = [const { AtomicI32::new(-1) }; 16];

extern "C" fn in_child() {
    FORKED.store(true, SeqCst);
    for place in &FDS {
        let fd = place.swap(-1, SeqCst);
        if fd >= 0 {
            // SAFETY: kept here while it is open; nobody uses it in this process, which is told apart by `FORKED`.
            unsafe { libc::close(fd) };
        }
    }
}

unsafe extern "C" {
    /// POSIX; not in the crate `libc` for every target.
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> libc::c_int;
}
