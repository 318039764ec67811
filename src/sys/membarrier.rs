//! Barriers that other threads pay nothing for until somebody asks for one: `membarrier(2)`.
//!
//! Of two threads that each store, and then load what the other stored, at least one must see the other's store. Ordinarily each puts a full
//! fence in between. Where one of them comes by seldom, it alone pays: it stores, has the kernel make every other thread pass a barrier, and loads.
//! The other thread's store and load then need to be kept in order by the compiler only ([`light`]).
//!
//! Linux has the barrier for the threads of one process since 4.14 and for those of all processes that registered since 4.16.
//!
//! # Safety
//! The one system call touches no memory.
#![allow(unsafe_code)]

use std::{
    sync::{
        OnceLock,
        atomic::{
            AtomicBool,
            Ordering::{Relaxed, SeqCst},
            compiler_fence,
        },
    },
    time::Duration,
};

// linux/membarrier.h
const GLOBAL_EXPEDITED: libc::c_long = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_long = 1 << 2;
const PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_long = 1 << 4;

/// After so long every processor has written out the stores that it held back: that takes microseconds at most, whatever it runs.
const SETTLED: Duration = Duration::from_millis(10);

static LOST: AtomicBool = AtomicBool::new(false);

fn call(command: libc::c_long) -> bool {
    // SAFETY: asks for a barrier; no pointer is given.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether both kinds are to be had. The first call registers this process.
pub(crate) fn available() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    !LOST.load(Relaxed)
        && *REGISTERED.get_or_init(|| {
            call(REGISTER_PRIVATE_EXPEDITED)
                && call(REGISTER_GLOBAL_EXPEDITED)
                // A filter may let the one pass and not the other.
                && call(PRIVATE_EXPEDITED)
                && call(GLOBAL_EXPEDITED)
        })
}

/// The side that comes by often, between its store and its load.
#[inline(always)]
pub(crate) fn light() {
    compiler_fence(SeqCst);
}

/// The other side, between its store and its load: every thread of this process has passed a barrier when it returns.
#[cold]
pub(crate) fn heavy() {
    if !call(PRIVATE_EXPEDITED) {
        lost();
    }
}

/// The same for every thread of every process that has asked whether it is [`available`].
#[cold]
pub(crate) fn heavy_for_all() {
    if !call(GLOBAL_EXPEDITED) {
        lost();
    }
}

/// A filter for system calls came after the first question. What was begun must be ended: time does what the barrier would.
#[cold]
fn lost() {
    if !LOST.swap(true, Relaxed) {
        tracing::warn!(
            target: "wharf::worker",
            "membarrier(2) is refused from now on: locks and doorbells go back to fences"
        );
    }
    std::sync::atomic::fence(SeqCst);
    std::thread::sleep(SETTLED);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_works() {
        if available() {
            assert!(call(PRIVATE_EXPEDITED));
            assert!(call(GLOBAL_EXPEDITED));
            heavy();
            heavy_for_all();
            assert!(available());
        }
    }
}
