#![allow(unsafe_code)]
//! The mapped segment between two workers: two rings, and the words that they have in common.
//!
//! # Safety
//! A [`Segment`] owns its mapping of [`SEGMENT`] bytes from construction to drop; every reference made here lives within a borrow
//! of it, and the ring ends that a link and an interface hold live beside an `Arc` of it. The kernel refuses to shrink the
//! segment (its seal is checked before it is mapped), so no access faults. As [`SharedMemory`] demands, only the two ends map it, the one that made it is
//! the server, and the peer is gone once its process has ended, or its end of the socket was closed, which a worker does between two copies.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use super::{
    cells::RingMemory,
    layout::{BYTES, CELL, CONSUMER, NEAR, NEAR_BYTES, PRODUCER, SEGMENT, WIDE_BYTES, WORDS},
};
use crate::{
    error::Result,
    sys::{memfd::Mapping, pidfd::PidFd},
    transport::{
        contract::Role,
        shared_memory::{SHARED_WORDS, SharedMemory},
    },
};

/// The segment between two workers, as one of them sees it.
#[derive(Debug)]
pub(crate) struct Segment {
    mapping: Mapping,
    role: Role,
    exited: AtomicBool,
    /// The peer's process, where the system says which it is.
    process: Option<Arc<PidFd>>,
    /// Both processes can be made to pass a barrier, so that whoever comes by often leaves its fences out.
    calm: bool,
}

impl Segment {
    /// Takes a mapping of [`SEGMENT`] bytes. `calm`: both ends have registered for barriers that the kernel makes every thread pass, and have said so.
    /// Errors: A mapping of another size.
    pub(crate) fn new(mapping: Mapping, role: Role, calm: bool) -> Result<Self> {
        if mapping.len() != SEGMENT {
            return Err(crate::Error::new(
                crate::ErrorKind::Protocol,
                "the shared segment has the wrong size",
            ));
        }
        Ok(Self {
            mapping,
            role,
            exited: AtomicBool::new(false),
            process: None,
            calm,
        })
    }

    /// The ring that this end sends into.
    pub(crate) fn outgoing(&self) -> RingMemory {
        ring(self.base(), self.sends())
    }

    /// The ring that this end receives from.
    pub(crate) fn incoming(&self) -> RingMemory {
        ring(self.base(), 1 - self.sends())
    }

    /// Notes that the peer's process has ended, or the connection by the peer's will: it touches nothing any more.
    pub(crate) fn set_peer_exited(&self) {
        self.exited.store(true, Ordering::Release);
    }

    /// Notes the peer's process.
    pub(crate) fn set_peer(&mut self, process: Option<Arc<PidFd>>) {
        self.process = process;
    }

    /// Which ring this end sends into.
    fn sends(&self) -> usize {
        match self.role {
            Role::Client => 0,
            Role::Server => 1,
        }
    }

    fn base(&self) -> NonNull<u8> {
        // SAFETY: a mapping is nowhere near address 0.
        unsafe { NonNull::new_unchecked(self.mapping.as_ptr()) }
    }
}

// SAFETY: see the chapter on safety.
unsafe impl SharedMemory for Segment {
    fn role(&self) -> Role {
        self.role
    }

    fn words(&self) -> &[AtomicU64; SHARED_WORDS] {
        // SAFETY: so many words lie there, at a multiple of their size, in the mapping that `self` keeps (asserted in `layout`).
        unsafe { at::<[AtomicU64; SHARED_WORDS]>(self.base(), WORDS).as_ref() }
    }

    fn is_peer_gone(&self) -> bool {
        if self.exited.load(Ordering::Acquire) {
            return true;
        }
        let has_exited = self.process.as_ref().is_some_and(|peer| peer.has_exited());
        if has_exited {
            self.set_peer_exited();
        }
        has_exited
    }

    fn has_barriers(&self) -> bool {
        self.calm
    }
}

/// A ring of a segment that is mapped at `base`.
pub(super) fn ring(base: NonNull<u8>, direction: usize) -> RingMemory {
    RingMemory {
        far: at(base, CELL[direction]),
        near: at(base, NEAR[direction]),
        area: at(base, BYTES[direction]),
        wide: at(base, WIDE_BYTES[direction]),
        near_area: at(base, NEAR_BYTES[direction]),
        consumer: at(base, CONSUMER[direction]),
        producer: at(base, PRODUCER[direction]),
        answers: at(base, CONSUMER[1 - direction]),
    }
}

/// The address of what lies at `offset`, one of the offsets of `layout`.
fn at<T>(base: NonNull<u8>, offset: usize) -> NonNull<T> {
    // SAFETY: every offset of `layout` is inside `SEGMENT`, the length of the mapping (checked in `Segment::new`).
    unsafe { base.add(offset) }.cast()
}
