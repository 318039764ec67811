//! Descriptors that a forked child is not to keep: a peer would not see that the parent has died.
//!
//! # Safety
//! A child closes its copies alone, of what only the wire's thread uses, which it has not.

use std::{
    io,
    os::fd::AsRawFd,
    sync::{
        Once,
        atomic::{AtomicI32, Ordering::Relaxed},
    },
};

/// Has children close them, from now on.
pub(crate) fn close_there() {
    static ONCE: Once = Once::new();
    // SAFETY: the function closes descriptors, which a child may do.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(close_in_child));
    });
}

/// Descriptors that a child is not to keep.
static OURS: [AtomicI32; 1024] = [const { AtomicI32::new(-1) }; 1024];

extern "C" fn close_in_child() {
    for one in &OURS {
        let fd = one.swap(-1, Relaxed);
        if fd >= 0 {
            // SAFETY: the child's copy of a descriptor that only the wire uses, which the child does not.
            unsafe { libc::close(fd) };
        }
    }
}

/// A descriptor that a child does not keep.
pub(crate) struct Ours<T: AsRawFd>(pub(crate) T);

impl<T: AsRawFd> Ours<T> {
    pub(crate) fn new(fd: T) -> io::Result<Self> {
        let raw = fd.as_raw_fd();
        let free = |one: &&AtomicI32| one.compare_exchange(-1, raw, Relaxed, Relaxed).is_ok();
        match OURS.iter().find(free) {
            Some(_) => Ok(Self(fd)),
            None => Err(io::Error::from_raw_os_error(libc::EMFILE)),
        }
    }
}

impl<T: AsRawFd> Drop for Ours<T> {
    fn drop(&mut self) {
        let raw = self.0.as_raw_fd();
        let this = |one: &&AtomicI32| one.compare_exchange(raw, -1, Relaxed, Relaxed).is_ok();
        let _ = OURS.iter().find(this);
    }
}
