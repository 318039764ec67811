//! The words that two ends have in common, as the worker uses them: by these the ends agree on memory that one of them touches for both (one-copy transfers).
//! The words are a transport's ([`SharedMemory`], which has their drawing); what they mean is said here alone.
//!
//! # Safety
//! A [`Pair`] has the [`SharedMemory`] beside the addresses of its words, which are what they are for as long as that lives; every reference made here lives within a borrow of the pair. All words are atomics and may hold anything: they
//! are compared, never used as an address or index.
//!
//! # Touching the peer's memory
//! An end that reads or writes memory lent by the other (a shared region, a `process_vm` transfer) calls [`Pair::enter`], then
//! checks that the loan still stands ([`Pair::peer_over`], [`Pair::standing`], [`Pair::claim`], [`Pair::stands`]), moves the bytes, and calls [`Pair::leave`]. The
//! owner that takes a loan back changes the generation ([`Pair::take_back`]), revokes the slot or takes all back ([`Pair::end`]) first, and then waits until [`Pair::peer_active`] was
//! seen `false` once, or the peer is gone. Both sides have a full barrier between their store and their load, so
//! either the toucher sees that the loan is over or the owner sees the toucher. Where both processes have registered for it, the owner pays
//! for both, by a barrier that every thread of the two passes.
#![allow(unsafe_code)]

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use super::{
    path::Role,
    shared_memory::{
        GENERATION, GENERATIONS, MARK, SHARED_WORDS, SharedMemory, TRANSFER, TRANSFER_WORDS,
        TRANSFERS,
    },
};
use crate::{
    sys::membarrier,
    util::{lock::Mutex, loom::full_fence},
};

/// A token is the generation of a transfer's word above the number of its slot.
const TOKEN_SLOT_BITS: u32 = TRANSFERS.trailing_zeros();
const TOKEN_SLOT: u32 = TRANSFERS as u32 - 1;
const TOKEN_GENERATIONS: u64 = (u32::MAX >> TOKEN_SLOT_BITS) as u64;

/// The words between two workers, as one of them sees them.
#[derive(Debug)]
pub(crate) struct Pair {
    memory: Arc<dyn SharedMemory>,
    words: NonNull<Words>,
    /// This end's mark, and the peer's generations: what short operations look at.
    mark: NonNull<Mark>,
    theirs: NonNull<Generations>,
    mine: usize,
    /// Own transfer words that are free, one bit each.
    free: Mutex<u32>,
    /// The peer stayed inside this end's memory when it was waited for.
    is_slow: AtomicBool,
    /// Regions of this end that the peer was let at, one bit each.
    let_at: [AtomicU64; GENERATIONS / 64],
    /// Both processes can be made to pass a barrier, so that whoever comes by often leaves its fences out.
    calm: bool,
}

/// "I am inside", and "it is over".
type Mark = [AtomicU64; 2];
type Words = [AtomicU64; SHARED_WORDS];
type Generations = [AtomicU64; GENERATIONS];

// SAFETY: the addresses are those of atomic words, which `memory` keeps and which any thread may use.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

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

const fn index(role: Role) -> usize {
    match role {
        Role::Client => 0,
        Role::Server => 1,
    }
}

impl Pair {
    /// Entries of a generation table.
    pub(crate) const GENERATIONS: usize = GENERATIONS;
    /// Transfer slots of each end: the client owns the first so many, the server the rest.
    pub(crate) const OWN_TRANSFERS: usize = TRANSFERS / 2;

    pub(crate) fn new(memory: Arc<dyn SharedMemory>) -> Self {
        let words = memory.words();
        let mine = index(memory.role());
        let theirs = &words[GENERATION[1 - mine]..];
        let theirs: &Generations = theirs.first_chunk().expect("as many");
        Self {
            words: NonNull::from(words),
            mark: NonNull::from(mark(words, mine)),
            theirs: NonNull::from(theirs),
            mine,
            free: Mutex::new(u32::MAX),
            is_slow: AtomicBool::new(false),
            let_at: Default::default(),
            calm: memory.has_barriers(),
            memory,
        }
    }

    /// Says "I am touching your memory now". One at a time: the worker's lock covers it from here to [`Pair::leave`]. The checks
    /// of the loan come after it.
    #[inline]
    pub(crate) fn enter(&self) {
        self.own_mark()[0].store(1, Ordering::Relaxed);
        if self.calm {
            membarrier::light();
        } else {
            full_fence();
        }
    }

    /// Says "done": everything that was read or written since [`Pair::enter`] comes before it.
    #[inline]
    pub(crate) fn leave(&self) {
        self.own_mark()[0].store(0, Ordering::Release);
    }

    /// Goes inside the peer's region of this key; `None`: this end is not let at it.
    #[inline(always)]
    pub(crate) fn inside(&self, slot: u32, generation: u64) -> Option<Inside<'_>> {
        self.enter();
        let inside = Inside(self);
        let is_let = self.peer_generation(slot).load(Ordering::Acquire) == generation;
        is_let.then_some(inside)
    }

    /// Whether the peer may be touching this end's memory under a loan that was taken back before the call. Seen `false` once, it no
    /// longer is. A peer that died in the middle leaves it `true`: stop waiting when the link fails.
    #[inline]
    #[must_use]
    pub(crate) fn peer_active(&self) -> bool {
        if self.calm {
            membarrier::heavy_for_all();
        } else {
            full_fence();
        }
        self.peer_mark()[0].load(Ordering::Acquire) != 0
    }

    /// Lets the peer, which has shown the key of this end's region, at it directly. A slot past [`Pair::GENERATIONS`] is reached by messages only.
    pub(crate) fn let_at(&self, slot: u32, generation: u64) {
        if let Some(let_at) = self.let_at.get(slot as usize / 64) {
            let_at.fetch_or(1 << (slot % 64), Ordering::Relaxed);
            self.own_generation(slot)
                .store(generation, Ordering::Release);
        }
    }

    /// Whether the peer is let at any region.
    pub(crate) fn has_let(&self) -> bool {
        let mut all = self.let_at.iter();
        all.any(|let_at| let_at.load(Ordering::Relaxed) != 0)
    }

    /// The slots of those regions.
    pub(crate) fn lets(&self) -> impl Iterator<Item = u32> {
        let words = self.let_at.iter().zip(0_u32..);
        words.flat_map(|(let_at, word)| {
            let bits = let_at.load(Ordering::Relaxed);
            let slots = (0..64).filter(move |bit| bits >> bit & 1 != 0);
            slots.map(move |bit| word * 64 + bit)
        })
    }

    /// Takes a region back. `true`: the peer was let at it, and may be inside until [`Pair::peer_active`] was `false`.
    pub(crate) fn take_back(&self, slot: u32, generation: u64) -> bool {
        let bit = 1 << (slot % 64);
        let was_let = self
            .let_at
            .get(slot as usize / 64)
            .is_some_and(|let_at| let_at.fetch_and(!bit, Ordering::Relaxed) & bit != 0);
        if was_let {
            self.own_generation(slot)
                .store(taken_back(generation), Ordering::Release);
        }
        was_let
    }

    /// Takes everything back that this end has lent, for good.
    pub(crate) fn end(&self) {
        self.own_mark()[1].store(1, Ordering::Release);
        for slot in 0..GENERATIONS as u32 {
            self.own_generation(slot).store(0, Ordering::Release);
        }
    }

    /// What the peer says of its region `slot` (modulo [`Pair::GENERATIONS`]) under this key, for an end that has called [`Pair::enter`].
    #[inline(always)]
    pub(crate) fn standing(&self, slot: u32, generation: u64) -> Standing {
        let seen = self.peer_generation(slot).load(Ordering::Acquire);
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
        self.peer_mark()[1].load(Ordering::Acquire) != 0
    }

    /// Whether this end has taken everything back, as it does when the connection ends.
    #[inline]
    pub(crate) fn is_over_here(&self) -> bool {
        self.own_mark()[1].load(Ordering::Acquire) != 0
    }

    /// Whether the peer stayed inside this end's memory when it was waited for: it is inside for the copy of one chunk at most, as a rule.
    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
    }

    pub(crate) fn set_slow(&self, is_slow: bool) {
        self.is_slow.store(is_slow, Ordering::Relaxed);
    }

    /// Whether the peer is outside this end's memory, or gone: of what it was lent before and is lent no longer, it touches nothing after that.
    #[must_use]
    pub(crate) fn is_peer_outside(&self) -> bool {
        !self.peer_active() || self.memory.is_peer_gone()
    }

    /// Opens a word for a transfer that both ends count chunks of. `None` when all [`Pair::OWN_TRANSFERS`] are in use. The token names slot and generation, so
    /// that a late claim of an earlier transfer takes nothing of a new one.
    pub(crate) fn acquire(&self) -> Option<u32> {
        let mut free = self.free.lock();
        let index = free.trailing_zeros();
        if index >= Self::OWN_TRANSFERS as u32 {
            return None;
        }
        *free &= !(1 << index);
        let slot = (self.mine * Self::OWN_TRANSFERS) as u32 + index;
        let generation =
            (self.next(slot).load(Ordering::Relaxed) >> 32).wrapping_add(1) & TOKEN_GENERATIONS;
        self.done(slot).store(0, Ordering::Release);
        self.next(slot).store(generation << 32, Ordering::Release);
        Some((generation as u32) << TOKEN_SLOT_BITS | slot)
    }

    /// Gives a word of [`Pair::acquire`] back.
    pub(crate) fn release(&self, token: u32) {
        self.revoke(token);
        let index = (token & TOKEN_SLOT) as usize % Self::OWN_TRANSFERS;
        *self.free.lock() |= 1 << index;
    }

    /// Claims the next of `total` chunks, for whoever moves it; `None` when all are claimed or the transfer is over. The total comes from the
    /// protocol's messages, so that nothing in the segment says how far to reach.
    #[inline]
    #[must_use]
    pub(crate) fn claim(&self, token: u32, total: u64) -> Option<u64> {
        let next = self.next(token);
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
    pub(crate) fn stands(&self, token: u32) -> bool {
        let seen = self.next(token).load(Ordering::Acquire);
        seen >> 32 == u64::from(token >> TOKEN_SLOT_BITS)
            && seen & u64::from(u32::MAX) != u64::from(u32::MAX)
    }

    /// Says that a claimed chunk has been moved; returns how many have, as both ends say. Whoever gets the total sees all their bytes.
    #[inline]
    #[must_use]
    pub(crate) fn complete(&self, token: u32) -> u64 {
        let before = self.done(token).fetch_add(1, Ordering::AcqRel);
        // The peer may have written anything there.
        before.saturating_add(1)
    }

    /// How many chunks have been moved, as both ends say; 0 when the word is no longer this transfer's.
    pub(crate) fn completed(&self, token: u32) -> u64 {
        let count = self.done(token).load(Ordering::Acquire);
        let seen = self.next(token).load(Ordering::Acquire);
        match seen >> 32 == u64::from(token >> TOKEN_SLOT_BITS) {
            true => count,
            false => 0,
        }
    }

    /// Whether `total` chunks have been moved, as both ends say. The end that opened the word may have closed it since, or used it again: it does
    /// so only when the transfer is over.
    #[must_use]
    pub(crate) fn is_complete(&self, token: u32, total: u64) -> bool {
        // The word is closed before it is counted from zero again.
        if self.done(token).load(Ordering::Acquire) >= total {
            return true;
        }
        let seen = self.next(token).load(Ordering::Acquire);
        seen >> 32 != u64::from(token >> TOKEN_SLOT_BITS)
            || seen & u64::from(u32::MAX) == u64::from(u32::MAX)
    }

    /// Closes a transfer to further claims. Chunks claimed before may still move: see [`Pair::peer_active`].
    pub(crate) fn revoke(&self, token: u32) {
        let next = self.next(token);
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

    fn words(&self) -> &Words {
        // SAFETY: `memory` keeps them.
        unsafe { self.words.as_ref() }
    }

    #[inline(always)]
    fn own_mark(&self) -> &Mark {
        // SAFETY: words of the row, which `memory` keeps.
        unsafe { self.mark.as_ref() }
    }

    fn peer_mark(&self) -> &Mark {
        mark(self.words(), 1 - self.mine)
    }

    fn own_generation(&self, slot: u32) -> &AtomicU64 {
        &self.words()[GENERATION[self.mine] + slot as usize % GENERATIONS]
    }

    #[inline(always)]
    fn peer_generation(&self, slot: u32) -> &AtomicU64 {
        // SAFETY: words of the row, which `memory` keeps.
        let theirs = unsafe { self.theirs.as_ref() };
        &theirs[slot as usize % GENERATIONS]
    }

    /// The next chunk to claim of a token's, or a slot's, transfer.
    fn next(&self, token: u32) -> &AtomicU64 {
        &self.words()[TRANSFER + (token & TOKEN_SLOT) as usize * TRANSFER_WORDS]
    }

    /// How many chunks of it were moved.
    fn done(&self, token: u32) -> &AtomicU64 {
        &self.words()[TRANSFER + (token & TOKEN_SLOT) as usize * TRANSFER_WORDS + 1]
    }
}

fn mark(words: &Words, end: usize) -> &Mark {
    let rest = &words[MARK[end]..];
    rest.first_chunk().expect("as many")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of two ends in one process, and whether each is gone.
    #[derive(Debug)]
    struct Common {
        words: Words,
        gone: [AtomicBool; 2],
    }

    #[derive(Debug)]
    struct End(Arc<Common>, Role);

    // SAFETY: the words stay where they are, and begin as zeros; nothing is ever touched.
    unsafe impl SharedMemory for End {
        fn role(&self) -> Role {
            self.1
        }
        fn words(&self) -> &Words {
            &self.0.words
        }
        fn is_peer_gone(&self) -> bool {
            self.0.gone[1 - index(self.1)].load(Ordering::Acquire)
        }
    }

    fn common() -> Arc<Common> {
        Arc::new(Common {
            words: [const { AtomicU64::new(0) }; SHARED_WORDS],
            gone: Default::default(),
        })
    }

    fn ends(common: &Arc<Common>) -> [Pair; 2] {
        [Role::Client, Role::Server].map(|role| Pair::new(Arc::new(End(common.clone(), role))))
    }

    fn two() -> [Pair; 2] {
        ends(&common())
    }

    #[test]
    fn words_for_one_copy_transfers_agree() {
        let [a, b] = two();
        a.enter();
        assert!(b.peer_active() && !a.peer_active());
        a.leave();
        assert!(!b.peer_active());
        assert!(!a.peer_over() && !b.peer_over());
        for slot in [0, 1, Pair::GENERATIONS as u32 - 1] {
            let key = 5 + u64::from(slot);
            assert_eq!(b.standing(slot, key), Standing::Unknown);
            a.let_at(slot, key);
            assert_eq!(
                (b.standing(slot, key), a.standing(slot, key)),
                (Standing::Let, Standing::Unknown)
            );
            assert_eq!(b.standing(slot, key + 1), Standing::Unknown);
        }
        assert!(a.take_back(0, 5) && !a.take_back(0, 5) && !a.take_back(2, 7));
        assert_eq!(b.standing(0, 5), Standing::TakenBack);
        for beyond in [Pair::GENERATIONS as u32, u32::MAX] {
            a.let_at(beyond, 1);
            assert!(!a.take_back(beyond, 1));
        }
        let word = b.acquire().expect("a free word");
        let claimed: Vec<_> = std::iter::from_fn(|| a.claim(word, 3)).collect();
        assert_eq!(claimed, [0, 1, 2]);
        assert_eq!(b.claim(word, 3), None);
        assert_eq!(
            (a.complete(word), b.complete(word), a.complete(word)),
            (1, 2, 3)
        );
        b.done(word).store(u64::MAX, Ordering::Relaxed);
        assert_eq!((a.complete(word), b.completed(word)), (u64::MAX, 0));
        b.release(word);
        assert_eq!(a.claim(word, 9), None);
        // The slot again: a late claim of the transfer before takes nothing.
        let again = b.acquire().expect("a free word");
        assert_eq!(again & 63, word & 63);
        assert_eq!((a.claim(word, 9), a.claim(again, 9)), (None, Some(0)));
        b.revoke(word);
        assert_eq!(a.claim(again, 9), Some(1));
        b.revoke(again);
        assert_eq!(a.claim(again, u64::MAX), None);
        // All of one end, distinct from those of the other.
        let all: Vec<_> = std::iter::from_fn(|| a.acquire()).collect();
        assert_eq!(all.len(), Pair::OWN_TRANSFERS);
        assert!(all.iter().all(|word| word & 63 != again & 63));
        // An end that takes all back says so to the other, and its regions go.
        a.end();
        assert!(b.peer_over() && !a.peer_over());
        assert_eq!(b.standing(1, 6), Standing::Unknown);
    }

    #[test]
    fn whoever_is_gone_is_outside() {
        let common = common();
        let [mine, peers] = ends(&common);
        assert!(mine.is_peer_outside());
        peers.enter();
        // It has died within.
        assert!(!mine.is_peer_outside());
        common.gone[1].store(true, Ordering::Release);
        assert!(mine.is_peer_outside());
        assert!(mine.peer_active(), "its word says nothing else");
    }

    /// Every word has a place of its own, and both ends mean the same one.
    #[test]
    fn words_do_not_overlap() {
        let common = common();
        let [a, b] = ends(&common);
        let mut seen = std::collections::BTreeSet::new();
        let mut note = |word: &AtomicU64| assert!(seen.insert(word.as_ptr()), "{word:p} twice");
        for pair in [&a, &b] {
            pair.own_mark().iter().for_each(&mut note);
            (0..GENERATIONS as u32).for_each(|slot| note(pair.own_generation(slot)));
        }
        for token in 0..TRANSFERS as u32 {
            note(a.next(token));
            note(a.done(token));
        }
        assert_eq!(seen.len(), 2 * (2 + GENERATIONS + TRANSFERS));
        for slot in 0..GENERATIONS as u32 {
            assert!(std::ptr::eq(
                a.peer_generation(slot),
                b.own_generation(slot)
            ));
            assert!(std::ptr::eq(
                b.peer_generation(slot),
                a.own_generation(slot)
            ));
        }
        assert!(std::ptr::eq(a.peer_mark(), b.own_mark()));
        assert!(std::ptr::eq(b.peer_mark(), a.own_mark()));
    }
}
