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
//! checks that the loan still stands ([`Pair::peer_over`], [`Pair::standing`], [`Pair::claim`], [`Pair::stands`]), moves the bytes, and calls [`Pair::leave`]. The
//! owner that takes a loan back changes the generation ([`Pair::take_back`]), revokes the slot or takes all back ([`Pair::end`]) first, and then waits until [`Pair::peer_active`] was
//! seen `false` once, or the peer's death was reported. Both sides have a full barrier between their store and their load, so
//! either the toucher sees that the loan is over or the owner sees the toucher. Where both processes have registered for it, the owner pays
//! for both, by a barrier that every thread of the two passes.

use std::{
    fmt,
    ptr::NonNull,
    sync::OnceLock,
    time::{Duration, Instant},
};

use super::{
    doorbell::before_the_look,
    layout::{
        ACTIVE, Active, BYTES, CELL, CONSUMER, GENERATION, GENERATIONS, PRODUCER, SEGMENT,
        TRANSFER, TRANSFERS, TransferSlot, WIDE_BYTES,
    },
    ring::RingMemory,
};
use crate::{
    error::Result,
    sys::{membarrier, memfd::Mapping, pidfd::PidFd},
    transport::contract::Role,
    util::loom::{AtomicBool, AtomicU64, Ordering, full_fence},
};

/// A token is the generation of a transfer's word above the number of its slot.
const TOKEN_SLOT_BITS: u32 = TRANSFERS.trailing_zeros();
const TOKEN_SLOT: u32 = TRANSFERS as u32 - 1;
const TOKEN_GENERATIONS: u64 = (u32::MAX >> TOKEN_SLOT_BITS) as u64;

/// Copying a chunk takes less.
const QUIET_WITHIN: Duration = Duration::from_micros(200);

/// The segment between two workers, as one of them sees it.
pub struct Pair {
    mapping: Mapping,
    role: Role,
    /// Where this end's mark of being inside and the peer's generations are, from the beginning of the mapping.
    inside: usize,
    generations: usize,
    /// Own transfer words that are free, one bit each.
    free: parking_lot::Mutex<u32>,
    exited: AtomicBool,
    /// It stayed inside this end's memory when it was waited for.
    is_slow: AtomicBool,
    /// The peer's process, where the system says which it is.
    process: OnceLock<PidFd>,
    /// Regions of this end that the peer was let at, one bit each.
    let_at: [AtomicU64; GENERATIONS / 64],
    /// Both processes can be made to pass a barrier, so that whoever comes by often leaves its fences out.
    calm: bool,
}

/// Whether an end is let at a region of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Let,
    /// It was; the region is exposed no longer.
    TakenBack,
    /// The owner was not shown the key yet, or the key is wrong.
    Unknown,
}

/// What stands in place of the generation of a region that was taken back: nothing to who does not know that.
const fn taken_back(generation: u64) -> u64 {
    !generation
}

/// This end is inside a region of the peer's, which cannot be taken back until this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Inside<'a>(&'a Pair);

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[inline(always)]
const fn index(role: Role) -> usize {
    match role {
        Role::Client => 0,
        Role::Server => 1,
    }
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
        let mine = index(role);
        Ok(Self {
            mapping,
            role,
            inside: ACTIVE[mine],
            generations: GENERATION[1 - mine],
            free: parking_lot::Mutex::new(u32::MAX),
            exited: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
            process: OnceLock::new(),
            let_at: Default::default(),
            calm: false,
        })
    }

    /// Both ends have registered for [`membarrier::heavy_for_all`], and have said so.
    pub(crate) fn both_registered(&mut self) {
        self.calm = true;
    }

    /// Whether they have.
    pub(crate) fn may_be_calm(&self) -> bool {
        self.calm
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
        self.own_mark().inside.store(1, Ordering::Relaxed);
        if self.calm {
            membarrier::light();
        } else {
            full_fence();
        }
    }

    /// Says "done": everything that was read or written since [`Pair::enter`] comes before it.
    #[inline]
    pub fn leave(&self) {
        self.own_mark().inside.store(0, Ordering::Release);
    }

    /// Goes inside the peer's region of this key; `None`: this end is not let at it.
    #[inline(always)]
    pub(crate) fn inside(&self, slot: u32, generation: u64) -> Option<Inside<'_>> {
        self.enter();
        let inside = Inside(self);
        let is_let = self.theirs(slot).load(Ordering::Acquire) == generation;
        is_let.then_some(inside)
    }

    /// Whether the peer may be touching this end's memory under a loan that was taken back before the call. Seen `false` once, it no
    /// longer is. A peer that died in the middle leaves it `true`: stop waiting when the link fails.
    #[inline]
    #[must_use]
    pub fn peer_active(&self) -> bool {
        before_the_look(self.calm);
        self.active(1 - self.mine()).inside.load(Ordering::Acquire) != 0
    }

    /// Lets the peer, which has shown the key of this end's region, at it directly. A slot past [`Pair::GENERATIONS`] is reached by messages only.
    pub(crate) fn let_at(&self, slot: u32, generation: u64) {
        if let Some(let_at) = self.let_at.get(slot as usize / 64) {
            let_at.fetch_or(1 << (slot % 64), Ordering::Relaxed);
            self.generation(self.mine(), slot)
                .store(generation, Ordering::Release);
        }
    }

    /// Whether the peer is let at any region.
    pub(crate) fn has_let(&self) -> bool {
        let mut all = self.let_at.iter();
        all.any(|let_at| let_at.load(Ordering::Relaxed) != 0)
    }

    /// Takes a region back. `true`: the peer was let at it, and may be inside until [`Pair::peer_active`] was `false`.
    pub(crate) fn take_back(&self, slot: u32, generation: u64) -> bool {
        let bit = 1 << (slot % 64);
        let was_let = self
            .let_at
            .get(slot as usize / 64)
            .is_some_and(|let_at| let_at.fetch_and(!bit, Ordering::Relaxed) & bit != 0);
        if was_let {
            self.generation(self.mine(), slot)
                .store(taken_back(generation), Ordering::Release);
        }
        was_let
    }

    /// Takes everything back that this end has lent, for good.
    pub(crate) fn end(&self) {
        self.active(self.mine()).over.store(1, Ordering::Release);
        for slot in 0..GENERATIONS as u32 {
            self.generation(self.mine(), slot)
                .store(0, Ordering::Release);
        }
    }

    /// What the peer says of its region `slot` (modulo [`Pair::GENERATIONS`]) under this key, for an end that has called [`Pair::enter`].
    #[inline(always)]
    pub(crate) fn standing(&self, slot: u32, generation: u64) -> Standing {
        let seen = self.theirs(slot).load(Ordering::Acquire);
        if seen == generation {
            Standing::Let
        } else if seen == taken_back(generation) {
            Standing::TakenBack
        } else {
            Standing::Unknown
        }
    }

    /// Whether the peer has taken everything back, for an end that has called [`Pair::enter`]. It may have ended the connection before this end
    /// hears of it, and use the memory for something else.
    #[inline]
    #[must_use]
    pub(crate) fn peer_over(&self) -> bool {
        self.active(1 - self.mine()).over.load(Ordering::Acquire) != 0
    }

    /// Whether this end has taken everything back, or knows that the peer is gone.
    #[inline]
    pub(crate) fn is_over_here(&self) -> bool {
        self.own_mark().over.load(Ordering::Acquire) != 0 || self.exited.load(Ordering::Acquire)
    }

    /// Notes that the peer's process has ended, or the connection by the peer's will: it touches nothing any more.
    pub(crate) fn set_peer_exited(&self) {
        self.exited.store(true, Ordering::Release);
    }

    /// Notes the peer's process.
    pub(crate) fn set_peer(&self, process: PidFd) {
        // It is noted once.
        let _ = self.process.set(process);
    }

    /// Whether the peer is known to touch nothing any more, whatever its word says.
    #[must_use]
    pub fn peer_exited(&self) -> bool {
        self.exited.load(Ordering::Acquire)
    }

    /// Whether the peer is outside this end's memory. It is inside for the copy of one chunk at most: waits a moment for that, and not again
    /// for one that stayed.
    #[must_use]
    pub(crate) fn is_peer_quiet(&self) -> bool {
        let mut until = None;
        loop {
            if !self.peer_active() || self.peer_exited() {
                self.is_slow.store(false, Ordering::Relaxed);
                return true;
            }
            let now = Instant::now();
            if self.is_slow.load(Ordering::Relaxed)
                || now > *until.get_or_insert(now + QUIET_WITHIN)
            {
                self.is_slow.store(true, Ordering::Relaxed);
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Whether the peer is outside this end's memory, or dead: of what it was lent before and is lent no longer, it touches nothing after that.
    #[must_use]
    pub(crate) fn is_peer_outside(&self) -> bool {
        if !self.peer_active() || self.peer_exited() {
            return true;
        }
        let has_exited = self.process.get().is_some_and(PidFd::has_exited);
        if has_exited {
            self.set_peer_exited();
        }
        has_exited
    }

    /// Opens a word for a transfer that both ends count chunks of. `None` when all [`Pair::OWN_TRANSFERS`] are in use. The token names slot and generation, so
    /// that a late claim of an earlier transfer takes nothing of a new one.
    pub fn acquire(&self) -> Option<u32> {
        let mut free = self.free.lock();
        let index = free.trailing_zeros();
        if index >= Self::OWN_TRANSFERS as u32 {
            return None;
        }
        *free &= !(1 << index);
        let slot = (self.mine() * Self::OWN_TRANSFERS) as u32 + index;
        let generation = (self.transfer(slot).next.load(Ordering::Relaxed) >> 32).wrapping_add(1)
            & TOKEN_GENERATIONS;
        self.transfer(slot).done.store(0, Ordering::Release);
        self.transfer(slot)
            .next
            .store(generation << 32, Ordering::Release);
        Some((generation as u32) << TOKEN_SLOT_BITS | slot)
    }

    /// Gives a word of [`Pair::acquire`] back.
    pub fn release(&self, token: u32) {
        self.revoke(token);
        let index = (token & TOKEN_SLOT) as usize % Self::OWN_TRANSFERS;
        *self.free.lock() |= 1 << index;
    }

    /// Claims the next of `total` chunks, for whoever moves it; `None` when all are claimed or the transfer is over. The total comes from the
    /// protocol's messages, so that nothing in the segment says how far to reach.
    #[inline]
    #[must_use]
    pub fn claim(&self, token: u32, total: u64) -> Option<u64> {
        let next = &self.transfer(token & TOKEN_SLOT).next;
        let mut seen = next.load(Ordering::Acquire);
        loop {
            let chunk = seen & u64::from(u32::MAX);
            if seen >> 32 != u64::from(token >> TOKEN_SLOT_BITS)
                || chunk >= total.min(u64::from(u32::MAX))
            {
                return None;
            }
            match next.compare_exchange_weak(seen, seen + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(chunk),
                Err(now) => seen = now,
            }
        }
    }

    /// Whether a word still stands for the transfer of this token, for an end that has called [`Pair::enter`]. Where one end does all the
    /// copying nothing is claimed, and the word is only what its owner revokes.
    #[inline]
    #[must_use]
    pub fn stands(&self, token: u32) -> bool {
        let seen = self
            .transfer(token & TOKEN_SLOT)
            .next
            .load(Ordering::Acquire);
        seen >> 32 == u64::from(token >> TOKEN_SLOT_BITS)
            && seen & u64::from(u32::MAX) != u64::from(u32::MAX)
    }

    /// Says that a claimed chunk has been moved; returns how many have. Whoever gets the total sees all their bytes.
    #[inline]
    #[must_use]
    pub fn complete(&self, token: u32) -> u64 {
        self.transfer(token & TOKEN_SLOT)
            .done
            .fetch_add(1, Ordering::AcqRel)
            + 1
    }

    /// Whether `total` chunks have been moved, as both ends say. The end that opened the word may have closed it since, or used it again: it does
    /// so only when the transfer is over.
    #[must_use]
    pub fn is_complete(&self, token: u32, total: u64) -> bool {
        let slot = self.transfer(token & TOKEN_SLOT);
        // The word is closed before it is counted from zero again.
        if slot.done.load(Ordering::Acquire) >= total {
            return true;
        }
        let seen = slot.next.load(Ordering::Acquire);
        seen >> 32 != u64::from(token >> TOKEN_SLOT_BITS)
            || seen & u64::from(u32::MAX) == u64::from(u32::MAX)
    }

    /// Closes a transfer to further claims. Chunks claimed before may still move: see [`Pair::peer_active`].
    pub fn revoke(&self, token: u32) {
        let next = &self.transfer(token & TOKEN_SLOT).next;
        let generation = u64::from(token >> TOKEN_SLOT_BITS);
        // A failure means that the word is not this transfer's any more, or that a claim came between: tried again.
        while let seen = next.load(Ordering::Acquire)
            && seen >> 32 == generation
            && next
                .compare_exchange(
                    seen,
                    generation << 32 | u64::from(u32::MAX),
                    Ordering::AcqRel,
                    Ordering::Acquire,
                )
                .is_err()
        {}
    }

    /// The index of what is this end's, and of the ring that it sends into.
    #[inline(always)]
    fn mine(&self) -> usize {
        index(self.role)
    }

    fn ring(&self, direction: usize) -> RingMemory {
        RingMemory {
            cells: self.at(CELL[direction]),
            area: self.at(BYTES[direction]),
            wide: self.at(WIDE_BYTES[direction]),
            consumer: self.at(CONSUMER[direction]),
            producer: self.at(PRODUCER[direction]),
        }
    }

    fn active(&self, end: usize) -> &Active {
        self.mark_at(ACTIVE[end])
    }

    #[inline(always)]
    fn own_mark(&self) -> &Active {
        self.mark_at(self.inside)
    }

    /// `offset`: one of `ACTIVE`.
    #[inline(always)]
    fn mark_at(&self, offset: usize) -> &Active {
        // SAFETY: `ACTIVE` lies in the mapping (asserted in `layout`), which `self` keeps; the type is atomic words.
        unsafe { self.at::<Active>(offset).as_ref() }
    }

    fn generation(&self, end: usize, slot: u32) -> &AtomicU64 {
        self.generation_at(GENERATION[end], slot)
    }

    #[inline(always)]
    fn theirs(&self, slot: u32) -> &AtomicU64 {
        self.generation_at(self.generations, slot)
    }

    /// `offset`: one of `GENERATION`.
    #[inline(always)]
    fn generation_at(&self, offset: usize, slot: u32) -> &AtomicU64 {
        // SAFETY: the index is below `GENERATIONS`, so the word lies in the mapping (asserted in `layout`).
        unsafe {
            self.at::<AtomicU64>(offset)
                .add(slot as usize % GENERATIONS)
                .as_ref()
        }
    }

    fn transfer(&self, slot: u32) -> &TransferSlot {
        // SAFETY: the index is below `TRANSFERS`, so the slot lies in the mapping (asserted in `layout`); it is atomic words.
        unsafe {
            self.at::<TransferSlot>(TRANSFER)
                .add(slot as usize % TRANSFERS)
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
