//! The allocator of this test program: one that notices when a handler of memory events allocates, and can be a [`TrackedAlloc`].
//!
//! # Safety
//! Every call goes on to the system's allocator as it came.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{
        AtomicBool, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

use wharf::memory::TrackedAlloc;

/// Whether large blocks are told of, as in a program whose global allocator is a [`TrackedAlloc`].
pub(crate) static IS_TRACKED: AtomicBool = AtomicBool::new(false);
/// Calls of the allocator from within itself, or in a thread that must not call it.
pub(crate) static FORBIDDEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    static MUST_NOT: Cell<bool> = const { Cell::new(false) };
}

/// Calls of the allocator that this thread made.
pub(crate) fn calls() -> usize {
    CALLS.get()
}

/// From now on this thread must not call the allocator.
pub(crate) fn forbid(forbidden: bool) {
    MUST_NOT.set(forbidden);
}

pub(crate) struct Guard;

#[global_allocator]
static ALLOCATOR: Guard = Guard;
static TRACKED: TrackedAlloc = TrackedAlloc::system();

impl Guard {
    fn enter<T>(call: impl FnOnce(&dyn GlobalAlloc) -> T) -> T {
        CALLS.set(CALLS.get() + 1);
        let outer = IS_INSIDE.replace(true);
        if outer || MUST_NOT.get() {
            FORBIDDEN.fetch_add(1, SeqCst);
        }
        let result = match IS_TRACKED.load(Relaxed) {
            true => call(&TRACKED),
            false => call(&System),
        };
        IS_INSIDE.set(outer);
        result
    }
}

// SAFETY: the system's allocator, and nothing that changes what it is asked for.
unsafe impl GlobalAlloc for Guard {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        Self::enter(|inner| unsafe { inner.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        Self::enter(|inner| unsafe { inner.alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        Self::enter(|inner| unsafe { inner.dealloc(block, layout) });
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        Self::enter(|inner| unsafe { inner.realloc(block, layout, size) })
    }
}
