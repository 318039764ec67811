//! Atomic operations by this processor, on memory that is exposed here or mapped from a peer. All ways to a word end here, or in the same
//! instructions of another process on the same page, so that they are atomic among each other.
//!
//! # Safety
//! Words are reached by address, as atomics. Who calls [`execute`] or [`load`] vouches for the address; [`Exposed::word`] checks one against the
//! exposed memory, which the region owns.
#![allow(unsafe_code)]

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    task::Waker,
};

use super::region::{Exposed, Region};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    types::{Access, AtomicOp, AtomicRequest, AtomicWord, Width},
    util::wake::wake_all,
};

/// Does what is asked to the word at `address`, sequentially consistent; returns what it was.
///
/// # Safety
/// `address` must be a multiple of the width, and valid for reads and writes of so many bytes. Whoever else uses them meanwhile must do so atomically,
/// or be content with torn values.
#[inline]
pub(crate) unsafe fn execute(address: *mut u8, request: &AtomicRequest) -> u64 {
    macro_rules! on {
        ($atomic:ty, $word:ty) => {{
            // SAFETY: the caller's promise.
            let word = unsafe { <$atomic>::from_ptr(address.cast()) };
            let operand = request.operand as $word;
            let old = match request.op {
                AtomicOp::Add => word.fetch_add(operand, Ordering::SeqCst),
                AtomicOp::And => word.fetch_and(operand, Ordering::SeqCst),
                AtomicOp::Or => word.fetch_or(operand, Ordering::SeqCst),
                AtomicOp::Xor => word.fetch_xor(operand, Ordering::SeqCst),
                AtomicOp::Swap => word.swap(operand, Ordering::SeqCst),
                AtomicOp::CompareSwap => {
                    let expected = request.compare as $word;
                    match word.compare_exchange(
                        expected,
                        operand,
                        Ordering::SeqCst,
                        Ordering::SeqCst,
                    ) {
                        Ok(old) | Err(old) => old,
                    }
                }
            };
            u64::from(old)
        }};
    }
    match request.width {
        Width::Four => on!(AtomicU32, u32),
        Width::Eight => on!(AtomicU64, u64),
    }
}

/// The word at `address`.
///
/// # Safety
/// As [`execute`].
#[inline]
unsafe fn load(address: *mut u8, width: Width) -> u64 {
    match width {
        Width::Four => {
            // SAFETY: the caller's promise.
            let word = unsafe { AtomicU32::from_ptr(address.cast()) };
            u64::from(word.load(Ordering::SeqCst))
        }
        // SAFETY: the caller's promise.
        Width::Eight => unsafe { AtomicU64::from_ptr(address.cast()) }.load(Ordering::SeqCst),
    }
}

/// Bytes of a counter: its value, and whether somebody sleeps until it is raised.
pub(crate) const COUNTER_SIZE: usize = 16;

/// Adds to a counter that is mapped here; whether somebody sleeps there, and has to be woken by a message.
///
/// # Safety
/// `address` must be a multiple of 8, and valid for reads and writes of [`COUNTER_SIZE`] bytes; else as [`execute`].
#[inline]
pub(crate) unsafe fn raise(address: *mut u8, add: u64) -> bool {
    // SAFETY: the caller's promise.
    let value = unsafe { AtomicU64::from_ptr(address.cast()) };
    // SAFETY: as above: the second word of the counter.
    let sleepers = unsafe { AtomicU64::from_ptr(address.wrapping_add(8).cast()) };
    value.fetch_add(add, Ordering::SeqCst);
    sleepers.load(Ordering::SeqCst) != 0
}

/// The error for a word whose address is not a multiple of its size.
#[cold]
pub(crate) fn misaligned(width: Width) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!(
            "the address of an atomic word of {} bytes is not a multiple of that",
            width.bytes()
        ),
    )
}

impl Exposed {
    /// The address of a word of the region.
    pub(crate) fn word(&self, offset: usize, width: Width) -> Result<*mut u8> {
        let address = self.bounds(offset, width.bytes())?;
        if width.divides(address as u64) {
            Ok(address)
        } else {
            Err(misaligned(width))
        }
    }

    /// Does an atomic operation; returns the old value.
    /// Errors: Among others `Unsupported` where network devices do them, which no processor mixes with.
    pub(crate) fn atomic(&self, offset: usize, request: &AtomicRequest) -> Result<u64> {
        if self.access.contains(Access::DEVICE_ATOMIC) {
            let text = "the region was exposed for atomics of network devices alone";
            return Err(Error::new(ErrorKind::Unsupported, text).during(Operation::Memory));
        }
        let word = self.word(offset, request.width)?;
        // SAFETY: `word` checked bounds and alignment; the memory is exposed, so all use of it is by copies and atomics.
        Ok(unsafe { execute(word, request) })
    }

    fn load(&self, offset: usize, width: Width) -> Result<u64> {
        let word = self.word(offset, width)?;
        // SAFETY: as in `atomic`.
        Ok(unsafe { load(word, width) })
    }

    /// The value that waiters wait for: the first eight bytes. `None` when there are none, or none that are a word.
    #[inline]
    pub(crate) fn value(&self) -> Option<u64> {
        self.load(0, Width::Eight).ok()
    }

    /// Looks so many times at the value, until it is what is wanted; with a pause of the processor's between two looks, which else take the line from
    /// who is about to write it.
    #[inline]
    pub(crate) fn comes(&self, is_wanted: impl Fn(u64) -> bool, looks: u32) -> bool {
        let Ok(address) = self.word(0, Width::Eight) else {
            return false;
        };
        // SAFETY: `word` has checked bounds and alignment; the memory is exposed, so all use of it is by copies and atomics.
        let word = unsafe { AtomicU64::from_ptr(address.cast()) };
        (0..looks).any(|look| {
            if look > 0 {
                std::hint::spin_loop();
            }
            is_wanted(word.load(Ordering::SeqCst))
        })
    }

    /// Leaves a waker of who waits for the value, and marks that beside it.
    pub(crate) fn leave_waiter(&self, key: Option<usize>, at_least: u64, waker: &Waker) -> usize {
        self.waiters
            .leave(key, at_least, waker, || self.mark_sleepers(1))
    }

    /// Who waited waits no longer.
    pub(crate) fn remove_waiter(&self, key: usize) {
        self.waiters.remove(key, || self.mark_sleepers(0));
    }

    /// The second word of a counter: whether somebody sleeps until the first is raised. Written before the sleeper's last look at the value, and
    /// read by a peer after it has raised that, both sequentially consistent: one of them sees the other.
    fn mark_sleepers(&self, sleepers: u64) {
        if self.length == COUNTER_SIZE {
            // A counter's words are within bounds and aligned.
            let _ = self.atomic(8, &AtomicRequest::new(AtomicOp::Swap, sleepers));
        }
    }

    /// Takes the wakers of those whose value has been reached, to be woken outside of any lock.
    #[inline]
    pub(crate) fn take_reached(&self, wakes: &mut Vec<Waker>) {
        if !self.waiters.is_empty()
            && let Some(value) = self.value()
        {
            self.waiters.take_reached(value, wakes);
        }
    }
}

/// Atomic operations of the owner, atomic with those of peers. `offset` is in bytes; sizes, alignment and mixed use as for
/// [`RemoteRegion`](crate::RemoteRegion#atomic-operations). Rights are those of peers and do not bind the owner.
///
/// # Errors
/// `OutOfBounds`; `InvalidArgument` when the word's address is not a multiple of its size.
impl Region {
    /// Reads a word.
    pub fn load<T: AtomicWord>(&self, offset: usize) -> Result<T> {
        self.exposed()
            .load(offset, T::WIDTH)
            .map(T::narrow)
            .map_err(|error| error.during(Operation::Atomic))
    }

    /// Writes a word.
    pub fn store<T: AtomicWord>(&self, offset: usize, value: T) -> Result<()> {
        self.swap(offset, value).map(|_| ())
    }

    /// Adds, wrapping around; returns the old value.
    pub fn fetch_add<T: AtomicWord>(&self, offset: usize, value: T) -> Result<T> {
        self.update(offset, &AtomicRequest::new(AtomicOp::Add, value))
    }

    /// Ands; returns the old value.
    pub fn fetch_and<T: AtomicWord>(&self, offset: usize, value: T) -> Result<T> {
        self.update(offset, &AtomicRequest::new(AtomicOp::And, value))
    }

    /// Ors; returns the old value.
    pub fn fetch_or<T: AtomicWord>(&self, offset: usize, value: T) -> Result<T> {
        self.update(offset, &AtomicRequest::new(AtomicOp::Or, value))
    }

    /// Exclusive ors; returns the old value.
    pub fn fetch_xor<T: AtomicWord>(&self, offset: usize, value: T) -> Result<T> {
        self.update(offset, &AtomicRequest::new(AtomicOp::Xor, value))
    }

    /// Writes; returns the old value.
    pub fn swap<T: AtomicWord>(&self, offset: usize, value: T) -> Result<T> {
        self.update(offset, &AtomicRequest::new(AtomicOp::Swap, value))
    }

    /// Writes `new` if the word is `expected`; returns the old value, which is `expected` if it was written.
    pub fn compare_swap<T: AtomicWord>(&self, offset: usize, expected: T, new: T) -> Result<T> {
        self.update(offset, &AtomicRequest::compare_swap(expected, new))
    }

    fn update<T: AtomicWord>(&self, offset: usize, request: &AtomicRequest) -> Result<T> {
        let exposed = self.exposed();
        let old = exposed
            .atomic(offset, request)
            .map_err(|error| error.during(Operation::Atomic))?;
        exposed.wake_reached();
        Ok(T::narrow(old))
    }
}

impl Exposed {
    /// Wakes those whose value has been reached. Not under a lock.
    pub(crate) fn wake_reached(&self) {
        let mut wakes = Vec::new();
        self.take_reached(&mut wakes);
        wake_all(wakes);
    }
}
