//! The protocol by which one end asks the other to ring its eventfd.
//!
//! ```text
//! sleeper                               waker
//! 1 raise the flag                      1 publish (a message, or the head)
//! 2 fence(SeqCst)                       2 fence(SeqCst)
//! 3 look for what was published         3 look at the flag; if it is up, take it down and ring
//! 4 nothing there: sleep
//! ```
//!
//! Of two threads that each store, fence and then load what the other stored, at least one sees the other's store: either
//! the sleeper finds what was published, or the waker finds the flag up. Without either fence both can miss (store
//! buffers), and both ends sleep for ever; x86 really does this, after some ten thousand messages of tight ping-pong.
//!
//! The waker takes the flag down by an exchange, so that one sleep is answered by one ring, not by one for each message.

use crate::util::loom::{AtomicU32, Ordering, full_fence};

/// A flag in shared memory: up while its owner sleeps.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Flag(AtomicU32);

impl Flag {
    /// A flag that is down.
    #[cfg(wharf_loom)]
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Sleeper, step 1. The caller fences before it looks (one fence serves many flags).
    ///
    /// An exchange, which a slow waker's exchange for an earlier sleep comes either before or after. With a plain store that is so
    /// too, but the model does not know it.
    pub(crate) fn raise(&self) {
        self.0.swap(1, Ordering::AcqRel);
    }

    /// Sleeper: awake again. Writes only when the flag is up, so that the line stays in the waker's cache.
    pub(crate) fn lower(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// Waker, steps 2 and 3, after publishing: whether to ring.
    #[inline(always)]
    pub(crate) fn answer(&self) -> bool {
        full_fence();
        self.0.load(Ordering::Relaxed) != 0 && self.take_down()
    }

    /// Whether it looks up. No barrier: for an end that will look again.
    #[inline(always)]
    pub(crate) fn seems_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn take_down(&self) -> bool {
        self.0.swap(0, Ordering::AcqRel) != 0
    }
}
