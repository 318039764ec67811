//! One registration: its state in one word, and the slots that hold them.
//!
//! ```text
//!  63    62       61      60     59       58     57     56       55..32  31..0
//! +---+--------+-------+-------+---------+-------+-------+---------+-----+------+
//! | 0 |UNCACHED| OWNED | CLOCK | RETIRED | STALE | READY | PENDING | tag | refs |
//! +---+--------+-------+-------+---------+-------+-------+---------+-----+------+
//!
//!  Empty ──open──▶ Pending ──commit──▶ Ready ──dead and refs 0──▶ on the dead stack ──close──▶ Empty, with the next tag
//! ```
//!
//! *Dead* is `STALE` (an event said that the memory changed) or `RETIRED` (replaced or evicted). It is set at any time and stays. Nobody new uses a
//! dead slot, so its `refs` only fall, and whoever brings about "dead and 0" puts it onto the dead stack: exactly once.
//!
//! # Safety
//! Slots of a cache live as long as its `Slots`, whatever they hold, so a late reader with an old tag reads a slot and not freed memory. The
//! handle is written by the one that opened the slot, before `commit`, read by those counted in `refs` after it, and taken out by the one that took the slot
//! from the dead stack (`refs` is 0 and stays so), or by the one that opened it, if it never became Ready.
#![allow(unsafe_code)]

use std::ptr;

use crate::{
    memory::AddressRange,
    types::Access,
    util::loom::{AtomicPtr, AtomicU32, AtomicU64, Ordering, UnsafeCell},
};

const REFS: u64 = (1 << TAG_SHIFT) - 1;
const TAG_SHIFT: u32 = 32;
const TAG_BITS: u32 = 24;
const TAGS: u64 = (1 << TAG_BITS) - 1;
const PENDING: u64 = 1 << 56;
const READY: u64 = 1 << 57;
/// An event said that its memory changed.
pub(super) const STALE: u64 = 1 << 58;
/// Replaced by another, evicted, or never in the index.
pub(super) const RETIRED: u64 = 1 << 59;
/// Used since the clock's hand last passed.
const CLOCK: u64 = 1 << 60;
/// Needs no events.
pub(super) const OWNED: u64 = 1 << 61;
/// Not one of the cache's slots but allocated for itself.
pub(super) const UNCACHED: u64 = 1 << 62;
const DEAD: u64 = STALE | RETIRED;
/// More users than this are not taken in by a hit; as many again may be added by cloning.
const MAX_REFS: u64 = 1 << 31;

/// What the index says of a page: the slot, and which of its lives is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry(u64);

impl Entry {
    const INDEX_BITS: u32 = 36;

    /// As it was found in the index; not 0.
    #[inline]
    pub(super) fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    #[inline]
    pub(super) fn raw(self) -> u64 {
        self.0
    }

    fn new(index: u32, tag: u64) -> Self {
        Self(tag << Self::INDEX_BITS | u64::from(index))
    }

    #[inline]
    pub(super) fn index(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    fn tag(self) -> u64 {
        self.0 >> Self::INDEX_BITS
    }
}

/// What [`Slot::mark`] found.
pub(super) enum Mark {
    /// The slot has another life, or none: what led here is out of date.
    Gone,
    /// Nothing in the range of the event.
    Elsewhere,
    /// It is stale now.
    Stale {
        /// It was not dead before.
        first: bool,
        /// It is Pending: whoever opened it counts its death.
        pending: bool,
        /// Nobody uses it: it belongs onto the dead stack, by the caller.
        unused: bool,
        /// What has taken its place, if anything: it may cover the same memory.
        successor: Option<Entry>,
    },
}

/// A slot that was retired, as it was before.
pub(super) struct Retired {
    /// Nobody uses it: it belongs onto the dead stack, by the caller.
    pub(super) unused: bool,
    pub(super) ready: bool,
    pub(super) owned: bool,
}

/// How a Pending slot ended.
pub(super) enum Commit {
    /// It is Ready. Perhaps retired: then only for those who hold it.
    Ready { retired: bool },
    /// Its memory changed meanwhile.
    Stale,
}

pub(super) struct Slot<H> {
    state: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    /// The entry of what took its place, or 0.
    successor: AtomicU64,
    access: AtomicU32,
    index: u32,
    /// On the dead stack: what lies below.
    next: AtomicPtr<Self>,
    handle: UnsafeCell<Option<H>>,
}

impl<H> Slot<H> {
    fn new(index: u32) -> Self {
        Self {
            state: AtomicU64::new(0),
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            successor: AtomicU64::new(0),
            access: AtomicU32::new(0),
            index,
            next: AtomicPtr::new(ptr::null_mut()),
            handle: UnsafeCell::new(None),
        }
    }

    /// A slot of its own that no index leads to, Pending, with one user.
    pub(super) fn uncached(range: AddressRange, access: Access) -> Box<Self> {
        let slot = Box::new(Self::new(0));
        slot.open(range, access, UNCACHED | RETIRED);
        slot
    }

    /// Begins a life: Pending, with one user, the caller. The slot must be Empty and the caller's.
    pub(super) fn open(&self, range: AddressRange, access: Access, flags: u64) -> Entry {
        let old = self.state.load(Ordering::Acquire) >> TAG_SHIFT & TAGS;
        let tag = if old == TAGS { 1 } else { old + 1 };
        // Release: who reads the new range with an old tag in hand finds that the tag is old.
        self.start.store(range.start(), Ordering::Release);
        self.end.store(range.end(), Ordering::Release);
        self.access
            .store(u32::from(access.bits()), Ordering::Release);
        self.successor.store(0, Ordering::Release);
        self.state.store(
            PENDING | CLOCK | flags | tag << TAG_SHIFT | 1,
            Ordering::Release,
        );
        Entry::new(self.index, tag)
    }

    /// Narrows a Pending slot that the index does not lead to yet. Handlers on their way see the old ends or the new ones.
    pub(super) fn set_range(&self, range: AddressRange) {
        self.start.store(range.start(), Ordering::Release);
        self.end.store(range.end(), Ordering::Release);
    }

    /// Ends a life.
    pub(super) fn close(&self) {
        // One step, so that it comes after every mark of a handler that found this life.
        self.state.fetch_and(TAGS << TAG_SHIFT, Ordering::AcqRel);
    }

    #[inline]
    fn state(&self) -> u64 {
        self.state.load(Ordering::Acquire)
    }

    /// Its entry in this life.
    pub(super) fn entry(&self) -> Entry {
        Entry::new(self.index, self.state() >> TAG_SHIFT & TAGS)
    }

    pub(super) fn range(&self) -> AddressRange {
        let start = self.start.load(Ordering::Acquire);
        let end = self.end.load(Ordering::Acquire);
        // A late reader may see ends of two lives; it finds that out by the tag.
        AddressRange::new(start, end.saturating_sub(start)).expect("ends in order")
    }

    pub(super) fn access(&self) -> Access {
        Access::of_bits(self.access.load(Ordering::Acquire) as u8)
    }

    pub(super) fn has(&self, flags: u64) -> bool {
        self.state() & flags != 0
    }

    pub(super) fn has_users(&self) -> bool {
        self.has(REFS)
    }

    pub(super) fn is_dead(&self) -> bool {
        self.has(DEAD)
    }

    #[inline]
    fn covers(&self, range: AddressRange, access: Access) -> bool {
        self.start.load(Ordering::Acquire) <= range.start()
            && range.end() <= self.end.load(Ordering::Acquire)
            && u32::from(access.bits()) & !self.access.load(Ordering::Acquire) == 0
    }

    /// One more user, if it is Ready in the life that `entry` means, not dead, and covers the request. Says whether it is `OWNED`.
    #[inline]
    pub(super) fn enter(&self, entry: Entry, range: AddressRange, access: Access) -> Option<bool> {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            if state & (TAGS << TAG_SHIFT | READY | DEAD) != (entry.tag() << TAG_SHIFT | READY)
                || state & REFS >= MAX_REFS
                || !self.covers(range, access)
            {
                return None;
            }
            // Success says that the range read above is of this life.
            match self.state.compare_exchange_weak(
                state,
                (state + 1) | CLOCK,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(state & OWNED != 0),
                Err(now) => state = now,
            }
        }
    }

    /// Whether a registration that will cover the request is under way in it.
    pub(super) fn will_cover(&self, entry: Entry, range: AddressRange, access: Access) -> bool {
        let wanted = entry.tag() << TAG_SHIFT | PENDING;
        self.state() & (TAGS << TAG_SHIFT | PENDING | DEAD) == wanted && self.covers(range, access)
    }

    /// One more user, by one who is a user already.
    pub(super) fn share(&self) {
        let old = self.state.fetch_add(1, Ordering::Relaxed);
        if old & REFS >= 2 * MAX_REFS - 2 {
            // Billions of forgotten clones: as `Arc`, before the count runs into the tag.
            std::process::abort();
        }
    }

    /// One user less. True when the slot belongs onto the dead stack, by the caller.
    #[inline]
    #[must_use]
    pub(super) fn leave(&self) -> bool {
        let old = self.state.fetch_sub(1, Ordering::AcqRel);
        old & REFS == 1 && old & DEAD != 0
    }

    /// An event: the memory changed. `within` is checked against the range when the way here was not by the index.
    pub(super) fn mark(&self, entry: Entry, within: Option<AddressRange>) -> Mark {
        let mut state = self.state();
        loop {
            if state >> TAG_SHIFT & TAGS != entry.tag() || state & (PENDING | READY) == 0 {
                return Mark::Gone;
            }
            if within.is_some_and(|within| !within.overlaps(self.range())) {
                let now = self.state();
                if now == state {
                    return Mark::Elsewhere;
                }
                state = now;
                continue;
            }
            if state & STALE == 0
                && let Err(now) = self.state.compare_exchange_weak(
                    state,
                    state | STALE,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                )
            {
                state = now;
                continue;
            }
            // One that was stale before it was replaced is no part of what took its place.
            let successor = match state & RETIRED {
                0 => 0,
                _ => {
                    let successor = self.successor.load(Ordering::Acquire);
                    // Nobody keeps the slot in this life for a handler: what was read may be of the next one.
                    let now = self.state();
                    if now >> TAG_SHIFT & TAGS != entry.tag() || now & (PENDING | READY) == 0 {
                        return Mark::Gone;
                    }
                    successor
                }
            };
            return Mark::Stale {
                first: state & DEAD == 0,
                pending: state & PENDING != 0,
                unused: state & (DEAD | REFS) == 0,
                successor: (successor != 0).then_some(Entry(successor)),
            };
        }
    }

    /// As [`mark`](Self::mark), by a user of it. True when it was not dead before.
    pub(super) fn mark_in_use(&self) -> bool {
        self.state.fetch_or(STALE, Ordering::AcqRel) & DEAD == 0
    }

    /// Retires it because `successor` takes its place, and adds a user, the caller, so that it stays what it is until the successor can be found in
    /// the index. None when it is dead already, or of another life. One caller at a time.
    pub(super) fn supersede(&self, entry: Entry, successor: Entry) -> Option<Retired> {
        let mut state = self.state();
        let mut named = false;
        loop {
            if state >> TAG_SHIFT & TAGS != entry.tag()
                || state & (PENDING | READY) == 0
                || state & DEAD != 0
            {
                return None;
            }
            if !named {
                // Before the bit: a handler that sees the bit goes on to the successor.
                self.successor.store(successor.raw(), Ordering::Release);
                named = true;
            }
            match self.state.compare_exchange_weak(
                state,
                (state | RETIRED) + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    return Some(Retired {
                        unused: false,
                        ready: state & READY != 0,
                        owned: state & OWNED != 0,
                    });
                }
                Err(now) => state = now,
            }
        }
    }

    /// Retires it if nobody uses it; with `clock`, only if nobody did since the hand last passed. One caller at a time.
    pub(super) fn evict(&self, clock: bool) -> bool {
        let mut state = self.state();
        loop {
            if state & READY == 0 || state & (DEAD | REFS) != 0 {
                return false;
            }
            let spared = clock && state & CLOCK != 0;
            let new = match spared {
                true => state & !CLOCK,
                false => state | RETIRED,
            };
            match self
                .state
                .compare_exchange_weak(state, new, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return !spared,
                Err(now) => state = now,
            }
        }
    }

    /// Retires it, used or not. One caller at a time.
    pub(super) fn retire(&self) -> Option<Retired> {
        let state = self.state.fetch_or(RETIRED, Ordering::AcqRel);
        (state & DEAD == 0 && state & (PENDING | READY) != 0).then_some(Retired {
            unused: state & (REFS | PENDING) == 0,
            ready: state & READY != 0,
            owned: state & OWNED != 0,
        })
    }

    /// Pending becomes Ready, unless the memory changed. The caller opened it, and stays its user.
    pub(super) fn commit(&self) -> Commit {
        let mut state = self.state();
        loop {
            if state & STALE != 0 {
                return Commit::Stale;
            }
            match self.state.compare_exchange_weak(
                state,
                state & !PENDING | READY,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    let retired = state & RETIRED != 0;
                    return Commit::Ready { retired };
                }
                Err(now) => state = now,
            }
        }
    }

    /// Puts the handle in.
    ///
    /// # Safety
    /// The caller opened the slot, which is Pending.
    pub(super) unsafe fn put_handle(&self, handle: H) {
        // SAFETY: nobody else reaches it before `commit`.
        self.handle
            .with_mut(|place| unsafe { *place = Some(handle) });
    }

    /// Takes the handle out.
    ///
    /// # Safety
    /// The caller took the slot from the dead stack, or opened it and it is Pending.
    pub(super) unsafe fn take_handle(&self) -> Option<H> {
        // SAFETY: nobody else reaches it any more, or yet.
        self.handle.with_mut(|place| unsafe { (*place).take() })
    }

    /// The handle.
    ///
    /// # Safety
    /// The caller is a user of the slot for as long as it keeps what it gets, and the slot is Ready.
    #[inline]
    pub(super) unsafe fn handle(&self) -> &H {
        // SAFETY: written before `commit`, and not taken while there are users.
        let handle = self.handle.with(|place| unsafe { &*place });
        handle.as_ref().expect("a Ready slot has its handle")
    }
}

/// Slots, made in chunks when needed, that stay where they are until all are dropped.
pub(super) struct Slots<H> {
    chunks: Box<[AtomicPtr<Slot<H>>]>,
}

#[cfg(not(wharf_loom))]
const CHUNK: usize = 64;
#[cfg(wharf_loom)]
const CHUNK: usize = 2;

impl<H> Slots<H> {
    /// Room for at least `capacity`.
    pub(super) fn new(capacity: usize) -> Self {
        let chunks = capacity.div_ceil(CHUNK);
        Self {
            chunks: (0..chunks)
                .map(|_| AtomicPtr::new(ptr::null_mut()))
                .collect(),
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    /// One that was made.
    #[inline]
    pub(super) fn get(&self, index: u32) -> &Slot<H> {
        let chunk = self.chunks[index as usize / CHUNK].load(Ordering::Acquire);
        debug_assert!(!chunk.is_null());
        // SAFETY: entries name only slots that were made, in a chunk of `CHUNK`, which lives as long as `self`.
        unsafe { &*chunk.add(index as usize % CHUNK) }
    }

    /// Makes it, if its chunk is new. One caller at a time.
    pub(super) fn make(&self, index: u32) -> &Slot<H> {
        let place = &self.chunks[index as usize / CHUNK];
        if place.load(Ordering::Acquire).is_null() {
            let first = index - index % CHUNK as u32;
            let chunk: Box<[Slot<H>]> = (first..first + CHUNK as u32).map(Slot::new).collect();
            place.store(Box::into_raw(chunk).cast(), Ordering::Release);
        }
        self.get(index)
    }
}

impl<H> Drop for Slots<H> {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            let chunk = chunk.load(Ordering::Acquire);
            if !chunk.is_null() {
                // SAFETY: a boxed slice of `CHUNK`, made in `make`; nobody uses slots any more.
                drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(chunk, CHUNK)) });
            }
        }
    }
}

// SAFETY: handles go from one thread to another, and are read by several at once.
unsafe impl<H: Send + Sync> Send for Slots<H> {}
// SAFETY: as above; the rest is atomic.
unsafe impl<H: Send + Sync> Sync for Slots<H> {}

/// Dead slots without users, to be deregistered. Pushed one by one, taken all at once, so that nothing can be taken twice.
pub(super) struct DeadStack<H> {
    head: AtomicPtr<Slot<H>>,
}

impl<H> DeadStack<H> {
    pub(super) fn new() -> Self {
        Self {
            head: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Puts a slot onto it. True when it was empty.
    pub(super) fn push(&self, slot: &Slot<H>) -> bool {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            slot.next.store(head, Ordering::Relaxed);
            match self.head.compare_exchange_weak(
                head,
                ptr::from_ref(slot).cast_mut(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return head.is_null(),
                Err(now) => head = now,
            }
        }
    }

    /// Takes everything. Each slot, and the memory of an uncached one, is the caller's.
    pub(super) fn take(&self) -> impl Iterator<Item = *mut Slot<H>> {
        let mut slot = self.head.swap(ptr::null_mut(), Ordering::AcqRel);
        std::iter::from_fn(move || {
            let this = slot;
            // SAFETY: null or a slot on the stack, which is not freed before the caller has it.
            slot = unsafe { this.as_ref()? }.next.load(Ordering::Relaxed);
            Some(this)
        })
    }
}
