#![allow(unsafe_code)]
//! A mapped segment: the two rings between two workers, and the words by which the two agree on memory that one of them
//! touches for both (one-copy transfers).
//!
//! # Safety
//! A [`Pair`] owns its mapping of [`SEGMENT`] bytes from construction to drop; every reference made here lives within a borrow
//! of the pair, and the ring ends that a link and an interface hold live beside an `Arc` of it. The kernel refuses to shrink the
//! segment (its seal is checked before it is mapped), so no access faults. All words are atomics and may hold anything: they
//! are compared, never used as an address or index.
//!
//! # Touching the peer's memory
//! An end that reads or writes memory lent by the other (a shared region, a `process_vm` transfer) calls [`Pair::enter`], then
//! checks that the loan still stands ([`Pair::peer_generation`], [`Pair::claim`]), moves the bytes, and calls [`Pair::leave`]. The
//! owner that takes a loan back changes the generation or revokes the slot first, and then waits until [`Pair::peer_active`] was
//! seen `false` once, or the peer's death was reported. Both sides have a full barrier between their store and their load, so
//! either the toucher sees that the loan is over or the owner sees the toucher.

use std::{fmt, ptr::NonNull};

use super::{
    layout::{
        ACTIVE, Active, BYTES, CELL, CONSUMER, GENERATION, GENERATIONS, PRODUCER, SEGMENT,
        TRANSFER, TRANSFERS, TransferSlot,
    },
    ring::RingMemory,
};
use crate::{
    error::Result,
    sys::memfd::Mapping,
    transport::contract::Role,
    util::loom::{AtomicU64, Ordering, fence},
};

/// A slot of [`Pair::claim`] whose next chunk is this or more is closed.
const REVOKED: u64 = u64::MAX / 2;

/// The segment between two workers, as one of them sees it.
pub struct Pair {
    mapping: Mapping,
    role: Role,
}

impl Pair {
    /// Entries of a generation table.
    pub const GENERATIONS: usize = GENERATIONS;
    /// Transfer slots of each end: the client owns the first so many, the server the rest.
    pub const OWN_TRANSFERS: usize = TRANSFERS / 2;

    /// Takes a mapping of [`SEGMENT`] bytes.
    ///
    /// # Errors
    /// A mapping of another size.
    pub(crate) fn new(mapping: Mapping, role: Role) -> Result<Self> {
        if mapping.len() != SEGMENT {
            return Err(crate::Error::new(
                crate::ErrorKind::Protocol,
                "the shared segment has the wrong size",
            ));
        }
        Ok(Self { mapping, role })
    }

    /// Which end this is.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// The ring that this end sends into.
    pub(crate) fn outgoing(&self) -> RingMemory {
        self.ring(self.mine())
    }
    /// The ring that this end receives from.
    pub(crate) fn incoming(&self) -> RingMemory {
        self.ring(1 - self.mine())
    }

    /// Says "I am touching your memory now". One at a time: the worker's lock covers it from here to [`Pair::leave`]. The checks
    /// of the loan come after it.
    #[inline]
    pub fn enter(&self) {
        self.active(self.mine()).0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Says "done": everything that was read or written since [`Pair::enter`] comes before it.
    #[inline]
    pub fn leave(&self) {
        self.active(self.mine()).0.store(0, Ordering::Release);
    }

    /// Whether the peer may be touching this end's memory under a loan that was taken back before the call. Seen `false` once, it no
    /// longer is. A peer that died in the middle leaves it `true`: stop waiting when the link fails.
    #[inline]
    #[must_use]
    pub fn peer_active(&self) -> bool {
        fence(Ordering::SeqCst);
        self.active(1 - self.mine()).0.load(Ordering::Acquire) != 0
    }

    /// Publishes the generation of region `slot` (modulo [`Pair::GENERATIONS`]) of this end. To take a region back, publish another
    /// generation, then wait for [`Pair::peer_active`] to be `false`.
    pub fn publish_generation(&self, slot: usize, generation: u64) {
        self.generation(self.mine(), slot)
            .store(generation, Ordering::Release);
    }

    /// The generation of the peer's region `slot` (modulo [`Pair::GENERATIONS`]), for an end that has called [`Pair::enter`].
    #[inline]
    #[must_use]
    pub fn peer_generation(&self, slot: usize) -> u64 {
        self.generation(1 - self.mine(), slot)
            .load(Ordering::Acquire)
    }

    /// The transfer slots that this end owns: it alone resets and revokes them.
    #[must_use]
    pub fn own_transfers(&self) -> std::ops::Range<usize> {
        let first = self.mine() * Self::OWN_TRANSFERS;
        first..first + Self::OWN_TRANSFERS
    }

    /// Owner: opens `slot` (modulo 64) for a new transfer. Only when the peer has been heard to be done with the transfer before:
    /// a late claim would take a chunk of the new one.
    pub fn reset(&self, slot: usize) {
        let slot = self.transfer(slot);
        slot.done.store(0, Ordering::Relaxed);
        slot.failed.store(0, Ordering::Relaxed);
        slot.next.store(0, Ordering::Release);
    }

    /// Claims the next of `total` chunks of `slot` (modulo 64), for whoever moves it; `None` when all are claimed or the slot was
    /// revoked. The total comes from the protocol's messages, so that nothing in the segment says how far to reach.
    #[inline]
    #[must_use]
    pub fn claim(&self, slot: usize, total: u64) -> Option<u64> {
        let chunk = self.transfer(slot).next.fetch_add(1, Ordering::AcqRel);
        (chunk < total.min(REVOKED)).then_some(chunk)
    }

    /// Says that `chunks` claimed chunks of `slot` (modulo 64) have been moved.
    #[inline]
    pub fn complete(&self, slot: usize, chunks: u64) {
        self.transfer(slot).done.fetch_add(chunks, Ordering::AcqRel);
    }

    /// How many chunks of `slot` (modulo 64) have been moved, all bytes of which are visible to the caller.
    #[inline]
    #[must_use]
    pub fn done(&self, slot: usize) -> u64 {
        self.transfer(slot).done.load(Ordering::Acquire)
    }

    /// Says that a claimed chunk of `slot` (modulo 64) could not be moved.
    pub fn fail(&self, slot: usize) {
        self.transfer(slot).failed.store(1, Ordering::Release);
    }

    /// Whether an end has said [`Pair::fail`].
    #[must_use]
    pub fn has_failed(&self, slot: usize) -> bool {
        self.transfer(slot).failed.load(Ordering::Acquire) != 0
    }

    /// Owner: closes `slot` (modulo 64) to further claims and says how many chunks were claimed (more than the total when an end
    /// asked after the last; bounded by the caller's total). Chunks claimed before may still move: see [`Pair::peer_active`].
    pub fn revoke(&self, slot: usize) -> u64 {
        self.transfer(slot).next.swap(REVOKED, Ordering::AcqRel)
    }

    /// The index of what is this end's (client 0, server 1), and of the ring that it sends into.
    #[inline(always)]
    fn mine(&self) -> usize {
        match self.role {
            Role::Client => 0,
            Role::Server => 1,
        }
    }

    fn ring(&self, direction: usize) -> RingMemory {
        RingMemory {
            cells: self.at(CELL[direction]),
            area: self.at(BYTES[direction]),
            consumer: self.at(CONSUMER[direction]),
            producer: self.at(PRODUCER[direction]),
        }
    }

    fn active(&self, end: usize) -> &Active {
        // SAFETY: `ACTIVE` lies in the mapping (asserted in `layout`), which `self` keeps; the type is one atomic word.
        unsafe { self.at::<Active>(ACTIVE[end]).as_ref() }
    }

    fn generation(&self, end: usize, slot: usize) -> &AtomicU64 {
        // SAFETY: the index is below `GENERATIONS`, so the word lies in the mapping (asserted in `layout`).
        unsafe {
            self.at::<AtomicU64>(GENERATION[end])
                .add(slot % GENERATIONS)
                .as_ref()
        }
    }

    fn transfer(&self, slot: usize) -> &TransferSlot {
        // SAFETY: the index is below `TRANSFERS`, so the slot lies in the mapping (asserted in `layout`); it is three atomic words.
        unsafe {
            self.at::<TransferSlot>(TRANSFER)
                .add(slot % TRANSFERS)
                .as_ref()
        }
    }

    /// The address of what lies at `offset`, one of the offsets of `layout`.
    #[inline(always)]
    fn at<T>(&self, offset: usize) -> NonNull<T> {
        // SAFETY: every offset of `layout` is inside `SEGMENT`, the length of the mapping (checked in `new`), whose address is not null.
        unsafe { NonNull::new_unchecked(self.mapping.as_ptr().add(offset).cast()) }
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}
