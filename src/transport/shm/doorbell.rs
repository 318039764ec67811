//! The protocol by which one end asks the other to ring its bell.
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
//!
//! The waker's fence is what a short message waits for: it ends when the message's line has come from the other core. So an owner that has not slept
//! for long says that it is *calm*: its wakers leave the fence out, and it pays for all of them when it goes to sleep, by a barrier that the kernel
//! makes every thread of both processes pass (`membarrier`) in place of its own fence in step 2. Both processes must have registered for that. Whether
//! an owner is calm, it knows by itself; the word is for honest wakers, and what a peer writes there can lose that peer's own wake-ups only.

#[cfg(not(wharf_loom))]
use crate::sys::membarrier;
use crate::util::loom::{AtomicU32, Ordering, fence, full_fence};

/// Its owner sleeps, or is about to.
const UP: u32 = 1;
/// Down, and wakers need no fence.
const CALM: u32 = 2;

/// Step 2 of a sleeper, one for all its flags. `calm`: one of them was [`Flag::calm`] until it was raised.
#[inline]
pub(crate) fn before_the_look(calm: bool) {
    if calm {
        everybody_passes_a_barrier();
    } else {
        fence(Ordering::SeqCst);
    }
}

#[cfg(not(wharf_loom))]
#[cold]
fn everybody_passes_a_barrier() {
    membarrier::heavy_for_all();
}

/// Whether this process can still pay for its wakers. It may have been refused that since it said so.
#[cfg(not(wharf_loom))]
pub(super) fn can_be_calm() -> bool {
    membarrier::available()
}

#[cfg(wharf_loom)]
pub(super) fn can_be_calm() -> bool {
    true
}

#[cfg(not(wharf_loom))]
#[inline(always)]
fn light() {
    membarrier::light();
}

// In a model a fence on both sides stands for it.
#[cfg(wharf_loom)]
fn everybody_passes_a_barrier() {
    fence(Ordering::SeqCst);
}

#[cfg(wharf_loom)]
std::thread_local! {
    /// For the model that shows what it is for.
    pub(super) static LEFT_OUT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

#[cfg(wharf_loom)]
fn light() {
    if !LEFT_OUT.get() {
        fence(Ordering::SeqCst);
    }
}

/// A flag in shared memory: up while its owner sleeps.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Flag(AtomicU32);

impl Flag {
    /// A flag that is down.
    #[cfg(any(test, wharf_loom))]
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Sleeper, step 1. The caller fences before it looks (one fence serves many flags).
    ///
    /// An exchange, which a slow waker's exchange for an earlier sleep comes either before or after. With a plain store that is so
    /// too, but the model does not know it.
    pub(crate) fn raise(&self) {
        self.0.swap(UP, Ordering::AcqRel);
    }

    /// Sleeper, awake for long: wakers need no fence until it is raised.
    #[cold]
    pub(crate) fn calm(&self) {
        self.0.store(CALM, Ordering::Relaxed);
    }

    /// Sleeper: awake again. Writes only when the flag is up, so that the line stays in the waker's cache.
    pub(crate) fn lower(&self) {
        if self.seems_up() {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// Waker, after publishing: whether [`Flag::answer`] would find nothing to do.
    #[inline(always)]
    pub(crate) fn is_calm(&self) -> bool {
        light();
        self.0.load(Ordering::Relaxed) == CALM
    }

    /// Waker, steps 2 and 3, after publishing: whether to ring.
    #[inline(always)]
    pub(crate) fn answer(&self) -> bool {
        if self.is_calm() {
            return false;
        }
        full_fence();
        self.seems_up() && self.take_down()
    }

    /// Whether it looks up. No barrier: for an end that will look again.
    #[inline(always)]
    pub(crate) fn seems_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) == UP
    }

    #[cold]
    fn take_down(&self) -> bool {
        self.0
            .compare_exchange(UP, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}
