//! A word that a thread can sleep on until another changes it: `futex(2)`, within one process.
//!
//! In models it is a lock and a condition, which do what the kernel does: compare and fall asleep at once, so that `loom` finds whoever sleeps for ever.
//!
//! # Safety
//! The calls give the kernel the address of a word that is borrowed while they last; it reads that word and nothing else.
#![allow(unsafe_code)]

use crate::util::loom::{AtomicU32, Ordering};
#[cfg(wharf_loom)]
use crate::util::loom::{Condvar, Mutex};

#[derive(Debug)]
pub(crate) struct Futex {
    word: AtomicU32,
    #[cfg(wharf_loom)]
    asleep: (Mutex<()>, Condvar),
}

impl Futex {
    pub(crate) fn new(value: u32) -> Self {
        Self {
            word: AtomicU32::new(value),
            #[cfg(wharf_loom)]
            asleep: (Mutex::new(()), Condvar::new()),
        }
    }

    #[inline(always)]
    pub(crate) fn load(&self, order: Ordering) -> u32 {
        self.word.load(order)
    }

    #[inline(always)]
    pub(crate) fn store(&self, value: u32, order: Ordering) {
        self.word.store(value, order);
    }
}

#[cfg(not(wharf_loom))]
impl Futex {
    /// Sleeps while the word is `value`, until it is woken, or for no reason: whoever calls this looks again.
    #[cold]
    pub(crate) fn wait(&self, value: u32) {
        // SAFETY: the word lives; the kernel compares it and sleeps only while it is this.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                value,
                std::ptr::null::<libc::timespec>(),
            );
        }
    }

    /// Wakes all who sleep on it.
    #[cold]
    #[inline(never)]
    pub(crate) fn wake(&self) {
        // SAFETY: wakes who waits on the word, which lives; nothing else.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                i32::MAX,
            );
        }
    }
}

#[cfg(wharf_loom)]
impl Futex {
    pub(crate) fn wait(&self, value: u32) {
        let asleep = self.asleep.0.lock();
        if self.load(Ordering::SeqCst) == value {
            drop(self.asleep.1.wait(asleep));
        }
    }

    pub(crate) fn wake(&self) {
        drop(self.asleep.0.lock());
        self.asleep.1.notify_all();
    }
}
