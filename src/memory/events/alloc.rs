//! The monitor for programs that let wharf wrap their allocator.
//!
//! # Safety
//! [`TrackedAlloc`] hands every call to the allocator inside it with the same arguments, and tells of large blocks before they go back. It
//! neither allocates nor reads blocks itself.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    hint,
    sync::atomic::{
        AtomicBool, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

use super::{Cause, EventClasses, MemoryMonitor, Timing, Validity, invalidate};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::AddressRange,
    util::lock::Mutex,
};

/// Blocks from this size on are told of: 64 KiB. Smaller ones are not worth a registration of their own.
const LARGE: usize = 64 << 10;
/// What a cache may add at the two ends of a block to fill pages, at most.
const MARGIN: u64 = 2 * 4096;

/// An allocator that tells caches of blocks of 64 KiB and more before it frees or moves them. For a program's global allocator:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: wharf::memory::TrackedAlloc = wharf::memory::TrackedAlloc::system();
/// ```
///
/// Works on every system, and with every allocator inside. It does not see what other languages in the program free, nor mappings. A block
/// that the allocator keeps for the next request loses its registration all the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrackedAlloc<A = System>(A);

impl TrackedAlloc<System> {
    /// Around the system's allocator.
    #[must_use]
    pub const fn system() -> Self {
        Self(System)
    }
}

impl<A> TrackedAlloc<A> {
    /// Around `inner`.
    #[must_use]
    pub const fn new(inner: A) -> Self {
        Self(inner)
    }
}

/// The block that the self-test frees, and whether it was seen.
static PROBE: AtomicUsize = AtomicUsize::new(0);
static SEEN: AtomicBool = AtomicBool::new(false);

#[inline]
fn tell(block: *mut u8, length: usize) {
    if length < LARGE {
        return;
    }
    if block as usize == PROBE.load(Relaxed) {
        SEEN.store(true, SeqCst);
    }
    // Never fails: blocks do not leave the address space.
    if let Ok(range) = AddressRange::new(block as u64, length as u64) {
        invalidate(range, Cause::Freed);
    }
}

// SAFETY: every call goes to the inner allocator as it came.
unsafe impl<A: GlobalAlloc> GlobalAlloc for TrackedAlloc<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.0.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        tell(block, layout.size());
        // SAFETY: the caller's promise.
        unsafe { self.0.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        tell(block, layout.size());
        // SAFETY: the caller's promise.
        unsafe { self.0.realloc(block, layout, size) }
    }
}

/// Events from the program's [`TrackedAlloc`].
#[derive(Clone, Copy, Debug)]
pub struct AllocMonitor(());

impl AllocMonitor {
    /// The monitor, when the program's global allocator is a [`TrackedAlloc`]: a block is allocated and freed to see.
    #[must_use]
    pub fn installed() -> Option<Self> {
        static BUSY: Mutex<()> = Mutex::new(());
        let _busy = BUSY.lock();
        SEEN.store(false, SeqCst);
        let layout = Layout::from_size_align(LARGE, 1).ok()?;
        // SAFETY: the layout has a size; the block is freed with it, at once.
        unsafe {
            let block = std::alloc::alloc(layout);
            if block.is_null() {
                return None;
            }
            PROBE.store(block as usize, SeqCst);
            std::alloc::dealloc(hint::black_box(block), layout);
        }
        PROBE.store(0, SeqCst);
        SEEN.load(SeqCst).then_some(Self(()))
    }
}

// SAFETY: blocks that can be watched are told of before they go back to the allocator.
unsafe impl MemoryMonitor for AllocMonitor {
    fn name(&self) -> &'static str {
        "alloc"
    }

    fn timing(&self) -> Timing {
        Timing::Before
    }

    fn classes(&self) -> EventClasses {
        EventClasses::RUST_HEAP | EventClasses::NOTIFIED
    }

    /// Shorter ranges are refused: they may lie in a block that is freed without a word.
    fn watch(&self, range: AddressRange) -> Result<()> {
        if range.len() >= LARGE as u64 + MARGIN {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("the allocator tells of blocks of {LARGE} bytes and more; {range} is shorter"),
        )
        .during(Operation::Memory))
    }

    fn unwatch(&self, _: AddressRange) {}

    fn validate(&self) -> Validity {
        Validity::Valid
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicUsize};

    use super::*;
    use crate::memory::{MemorySink, subscribe};

    /// Counts what is told of one block, and whether its first byte was still there.
    struct Seen {
        block: AtomicUsize,
        length: AtomicUsize,
        count: AtomicUsize,
    }

    impl MemorySink for Seen {
        fn invalidate(&self, range: AddressRange, cause: Cause) {
            if range.start() == self.block.load(SeqCst) as u64 && cause == Cause::Freed {
                self.length.store(range.len() as usize, SeqCst);
                self.count.fetch_add(1, SeqCst);
            }
        }
    }

    #[test]
    fn large_blocks_are_told_of() {
        let seen = Arc::new(Seen {
            block: AtomicUsize::new(0),
            length: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
        });
        let _subscription = subscribe(seen.clone()).expect("a place");
        let allocator = TrackedAlloc::new(System);
        let layout = |size| Layout::from_size_align(size, 8).expect("a layout");
        // SAFETY: every block is used with the layout that it has.
        unsafe {
            let block = allocator.alloc(layout(LARGE));
            seen.block.store(block as usize, SeqCst);
            let moved = allocator.realloc(block, layout(LARGE), 2 * LARGE);
            assert_eq!(seen.count.load(SeqCst), 1);
            seen.block.store(moved as usize, SeqCst);
            seen.count.store(0, SeqCst);
            allocator.dealloc(moved, layout(2 * LARGE));
            assert_eq!(seen.count.load(SeqCst), 1);
            assert_eq!(seen.length.load(SeqCst), 2 * LARGE);
            let small = allocator.alloc_zeroed(layout(LARGE - 1));
            seen.block.store(small as usize, SeqCst);
            seen.count.store(0, SeqCst);
            allocator.dealloc(small, layout(LARGE - 1));
            assert_eq!(seen.count.load(SeqCst), 0);
        }
    }

    #[test]
    fn only_the_global_one_counts() {
        assert!(AllocMonitor::installed().is_none());
        let range = |length| AddressRange::new(0x10000, length).expect("a range");
        assert!(AllocMonitor(()).watch(range(LARGE as u64 + MARGIN)).is_ok());
        assert!(AllocMonitor(()).watch(range(LARGE as u64)).is_err());
    }
}
