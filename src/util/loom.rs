//! Atomics, cells and hints for lock-free code: those of `loom` when models run (`--cfg wharf_loom`), of `std` otherwise.
//!
//! # Safety
//! The one unsafe block is a barrier: an instruction that adds nothing to a word of the stack.
//!
//! The flag has the crate's name because a plain `--cfg loom` changes other crates as well (Tokio hides its sockets under it).

#![allow(unsafe_code)]

#[cfg(wharf_loom)]
pub(crate) use self::model::*;
#[cfg(not(wharf_loom))]
pub(crate) use self::real::*;

#[cfg(not(wharf_loom))]
#[allow(unused_imports)]
mod real {
    pub(crate) use std::{
        hint::spin_loop,
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
        },
        thread,
    };

    pub(crate) use crate::util::lock::{Mutex, MutexGuard};

    /// `std`'s cell with the face of `loom`'s: the content is reached in a closure, which the model checks for overlaps.
    #[derive(Debug)]
    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// Wraps a value.
        #[allow(dead_code)]
        pub(crate) const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Gives `f` the address for reading.
        #[inline(always)]
        pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Gives `f` the address for writing.
        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

#[cfg(wharf_loom)]
#[allow(unused_imports)]
mod model {
    pub(crate) use loom::{
        cell::UnsafeCell,
        hint::spin_loop,
        sync::{
            Arc, MutexGuard,
            atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
        },
        thread,
    };

    /// `loom`'s mutex with the face of `lock`'s.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// Wraps a value.
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        /// Locks it.
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no panic under a lock")
        }

        /// Locks it, if nobody else has it.
        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    /// `loom`'s condition, the same way.
    #[derive(Debug)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        /// Nobody waits.
        pub(crate) fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        /// Gives the lock back, and takes it again once it is notified.
        pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(guard).expect("no panic under a lock")
        }

        /// Wakes all who wait.
        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

/// A sequentially consistent fence. On x86-64 a locked instruction on the own stack, which costs half of the `mfence` that `fence` becomes.
#[cfg(all(not(any(wharf_loom, miri)), target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn full_fence() {
    // SAFETY: or with zero changes nothing; the stack's top is writable. Not `nomem`: the compiler moves no access across it.
    unsafe { std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack)) };
}

/// Fetches the line of `address` into this core's cache, to be read soon.
#[inline(always)]
pub(crate) fn prefetch_read<T>(address: *const T) {
    #[cfg(all(not(wharf_loom), target_arch = "x86_64"))]
    // SAFETY: a hint; it accesses nothing as far as the program can tell, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    let _ = address;
}

/// A sequentially consistent fence.
#[cfg(not(all(not(any(wharf_loom, miri)), target_arch = "x86_64")))]
#[inline(always)]
pub(crate) fn full_fence() {
    fence(Ordering::SeqCst);
}
