//! A message that stays where it arrived after the call that brought it, while somebody reads it there.
//!
//! ```text
//! interface ─▶ Sink::message_in_place(body, hold) ─▶ hold.take(body) ─▶ HeldBytes ─▶ the worker's lock is given back ─▶ read ─▶ dropped
//! interface ─▶ is_held: gives the sender nothing back from the body on
//! ```
//!
//! What comes behind it is taken all the same; only the room is not given back before. So nobody waits for a reader except a sender that has filled
//! everything else. The end is told to nobody, since that would take a locked instruction or a fence of each reader: a reactor that sleeps meanwhile
//! looks again after a millisecond ([`Interface::is_held`](super::Interface::is_held)).
//!
//! # Safety
//! [`HeldBytes`] reads the [`Hold`] that made it, and its body, by their addresses, so as to change no count that all threads see. Both are there: an
//! interface keeps what belongs to a link while [`Hold::is_held`], also when the link is detached, and who takes a [`HeldBytes`] promises to drop it before
//! the interface.
#![allow(unsafe_code)]

use std::{ptr::NonNull, sync::Arc};

use crate::util::{
    copy::{copy, copy_small},
    loom::{AtomicU32, Ordering},
};

/// Whether somebody reads a message of a link where it arrived: one at a time.
#[derive(Debug)]
pub struct Hold(AtomicU32);

impl Hold {
    /// Nobody reads.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU32::new(0)))
    }

    /// Whether somebody does. Once `false`, all its reads came before.
    #[inline(always)]
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Has `body` stay where it is until what this returns is dropped. `None`: an earlier message is read still.
    ///
    /// # Safety
    /// Called by a [`Sink`](super::Sink) within the call that gave it both, so by one thread at a time; what is returned is dropped before the interface
    /// that made that call.
    #[inline(always)]
    #[must_use]
    pub unsafe fn take(self: &Arc<Self>, body: &[u8]) -> Option<HeldBytes> {
        // SAFETY: the caller's promise.
        unsafe { self.take_at(body.as_ptr(), body.len()) }
    }

    /// The same of a body that is known by its address.
    ///
    /// # Safety
    /// As for [`Hold::take`], within a call of the interface; the body stays where it is while it is held.
    #[inline(always)]
    pub(super) unsafe fn take_at(
        self: &Arc<Self>,
        address: *const u8,
        length: usize,
    ) -> Option<HeldBytes> {
        if self.is_held() {
            return None;
        }
        self.0.store(1, Ordering::Relaxed);
        Some(HeldBytes {
            address,
            length,
            hold: NonNull::from(&**self),
        })
    }
}

/// The body of such a message. May change while it is read, if its sender is hostile.
#[derive(Debug)]
pub struct HeldBytes {
    address: *const u8,
    length: usize,
    hold: NonNull<Hold>,
}

// SAFETY: addresses of what is shared between threads: an atomic word, and bytes that are only read.
unsafe impl Send for HeldBytes {}
// SAFETY: as above.
unsafe impl Sync for HeldBytes {}

impl HeldBytes {
    /// Its first byte.
    #[inline]
    #[must_use]
    pub fn address(&self) -> *const u8 {
        self.address
    }

    /// Its length in bytes.
    #[inline]
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Copies its first bytes, as many as there is room for.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) {
        let length = self.length.min(to.len());
        // SAFETY: the body is there (module docs) and no longer than that; what the caller has borrowed alone is not it.
        unsafe { copy_small(self.address, to.as_mut_ptr(), length) };
    }

    /// A copy of it.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length);
        // SAFETY: as above; there is room for as much.
        unsafe { copy(self.address, bytes.as_mut_ptr(), self.length) };
        // SAFETY: written just now.
        unsafe { bytes.set_len(self.length) };
        bytes
    }
}

impl Drop for HeldBytes {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the interface keeps it until it is let go of just here (module docs).
        unsafe { self.hold.as_ref() }.0.store(0, Ordering::Release);
    }
}
