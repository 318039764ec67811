//! What is known of each page: a number for every page of the address space, read without a lock.
//!
//! ```text
//! address   46       34 33       21 20     12 11      0
//!          +-----------+-----------+---------+---------+
//!          |  top 13   | middle 13 | leaf 9  | in page |
//!          +-----------+-----------+---------+---------+
//! a middle word:  0 | address of a leaf | entry << 1 | 1, for all of the 2 MiB
//! ```
//!
//! 64 KiB for the top, 64 KiB for each 16 GiB in which something is set, 4 KiB for each 2 MiB that is set in parts. Reading takes four loads.
//! Addresses from 2^47 on, which devices have, and hosts whose addresses have 48 bits, have tops of their own, one for each 2^47 addresses in which
//! something was set: sixteen at most. Reading looks through those.
//! A node stays where it is until the whole index is dropped, so readers need no protection: memory that was used once is not given back.
//!
//! # Safety
//! Nodes are made by `Box::into_raw`, published with release stores and read with acquire loads, and freed in `drop` alone, which has the
//! index to itself. A middle word with bit 0 set is a number and never dereferenced.
#![allow(unsafe_code)]

use std::{fmt, iter, ptr};

use super::AddressRange;
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    util::loom::{AtomicPtr, AtomicU64, Mutex, Ordering},
};

/// Bits of an address within a page of the index.
const PAGE_BITS: u32 = 12;
#[cfg(not(wharf_loom))]
const LEAF_BITS: u32 = 9;
// The interpreter looks at every word of a node each time that it is reached.
#[cfg(not(wharf_loom))]
const MIDDLE_BITS: u32 = if cfg!(miri) { 4 } else { 13 };
#[cfg(not(wharf_loom))]
const TOP_BITS: u32 = if cfg!(miri) { 4 } else { 13 };
// Models see two of everything.
#[cfg(wharf_loom)]
const LEAF_BITS: u32 = 1;
#[cfg(wharf_loom)]
const MIDDLE_BITS: u32 = 1;
#[cfg(wharf_loom)]
const TOP_BITS: u32 = 1;

/// Bytes of a page of the index, whatever the system's pages have.
pub(crate) const PAGE: u64 = 1 << PAGE_BITS;
const BLOCK_BITS: u32 = PAGE_BITS + LEAF_BITS;
/// Bytes under one middle word.
const BLOCK: u64 = 1 << BLOCK_BITS;
const SPAN_BITS: u32 = BLOCK_BITS + MIDDLE_BITS;
/// Bytes under one middle node.
const SPAN: u64 = 1 << SPAN_BITS;
const TREE_BITS: u32 = SPAN_BITS + TOP_BITS;
/// Bytes under one top.
const TREE: u64 = 1 << TREE_BITS;
/// The address behind the last that a host has: 48 bits, where it has no more than this needs.
pub(crate) const HOST: u64 = TREE << 1;
/// Tops beside the first.
const OTHERS: usize = if cfg!(wharf_loom) { 0 } else { 16 };
/// No page ends behind it.
const END: u64 = !(PAGE - 1);

type Leaf = [AtomicU64; 1 << LEAF_BITS];
type Middle = [AtomicPtr<Leaf>; 1 << MIDDLE_BITS];
type Top = [AtomicPtr<Middle>; 1 << TOP_BITS];

/// A number from 1 to 2^62 - 1, or none, for each page of 4 KiB.
pub(crate) struct Radix {
    /// Of the addresses below 2^47.
    first: AtomicPtr<Top>,
    others: [Tree; OTHERS],
    writer: Mutex<()>,
}

/// The top of the 2^47 addresses whose high bits are `number`; 0: of none yet. Once given, a number stays.
struct Tree {
    number: AtomicU64,
    top: AtomicPtr<Top>,
}

impl Radix {
    /// An empty one, which allocates nothing before the first [`set`](Self::set).
    pub(crate) fn new() -> Self {
        Self {
            first: AtomicPtr::new(ptr::null_mut()),
            others: std::array::from_fn(|_| Tree {
                number: AtomicU64::new(0),
                top: AtomicPtr::new(ptr::null_mut()),
            }),
            writer: Mutex::new(()),
        }
    }

    /// The entry of the page of `address`, or 0. Wait-free.
    #[inline]
    pub(crate) fn get(&self, address: u64) -> u64 {
        let top = match address < TREE {
            true => Some(&self.first),
            false => self.other(address),
        };
        let Some(word) = top.and_then(|top| middle_word(top, address)) else {
            return 0;
        };
        match decode(word.load(Ordering::Acquire)) {
            Word::Empty => 0,
            Word::Whole(entry) => entry,
            Word::Leaf(leaf) => leaf[leaf_index(address)].load(Ordering::Acquire),
        }
    }

    /// Whether all of `range` can be set, from now on: not when it crosses a multiple of 2^47, nor when too much of the address space is in use.
    pub(crate) fn make_place(&self, range: AddressRange) -> bool {
        let last = range.end().saturating_sub(1).max(range.start());
        let number = range.start() >> TREE_BITS;
        if number == 0 || number != last >> TREE_BITS {
            return number == last >> TREE_BITS;
        }
        let _writer = self.writer.lock();
        let place = self.others.iter().find(|tree| {
            let taken = tree.number.load(Ordering::Acquire);
            taken == 0 || taken == number
        });
        place.is_some_and(|tree| {
            tree.number.store(number, Ordering::Release);
            true
        })
    }

    /// Writes `entry` to each page of `range`, over what was there.
    /// Errors: `InvalidArgument` when the range is not of whole pages or has no [place](Self::make_place); then nothing was written.
    pub(crate) fn set(&self, range: AddressRange, entry: u64) -> Result<()> {
        debug_assert!((1..1 << 62).contains(&entry));
        if !(range.start() | range.end()).is_multiple_of(PAGE) || !self.make_place(range) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{range} is not of whole pages, or has no place"),
            )
            .during(Operation::Memory));
        }
        let _writer = self.writer.lock();
        for block in blocks(range) {
            let word = self.make_middle_word(block.start());
            match decode(word.load(Ordering::Acquire)) {
                Word::Empty | Word::Whole(_) if block.len() == BLOCK => {
                    word.store(whole(entry), Ordering::Release);
                }
                Word::Leaf(leaf) => fill(leaf, block, entry),
                Word::Empty => fill(split(word, 0), block, entry),
                Word::Whole(old) => {
                    if old != entry {
                        fill(split(word, old), block, entry);
                    }
                }
            }
        }
        Ok(())
    }

    /// Empties the pages of `range` whose entry is still `entry`. Parts of 16 GiB in which nothing is set cost two loads each.
    pub(crate) fn clear(&self, range: AddressRange, entry: u64) {
        let _writer = self.writer.lock();
        for (block, word) in self.made(range) {
            match decode(word.load(Ordering::Acquire)) {
                Word::Whole(found) if found == entry => match block.len() == BLOCK {
                    true => word.store(ptr::null_mut(), Ordering::Release),
                    false => erase(split(word, entry), block, entry),
                },
                Word::Leaf(leaf) => erase(leaf, block, entry),
                Word::Empty | Word::Whole(_) => {}
            }
        }
    }

    /// Shows every entry of the pages that `range` touches, at least once for each run of equal ones. Takes no lock and allocates nothing; may be
    /// called in a signal handler. Parts of 16 GiB in which nothing is set cost two loads each, parts of 2 MiB three.
    ///
    /// What is written meanwhile is seen or not, page by page; what was there before and stays is seen.
    pub(crate) fn walk(&self, range: AddressRange, mut visit: impl FnMut(u64)) {
        let mut last = 0;
        let mut show = |entry: u64| {
            if entry != 0 && entry != last {
                visit(entry);
            }
            last = entry;
        };
        for (block, word) in self.made(range) {
            match decode(word.load(Ordering::Acquire)) {
                Word::Empty => {}
                Word::Whole(entry) => show(entry),
                Word::Leaf(leaf) => {
                    for cell in cells(leaf, block) {
                        show(cell.load(Ordering::Acquire));
                    }
                }
            }
        }
    }

    /// The top over `address`, which is not the first.
    #[cold]
    fn other(&self, address: u64) -> Option<&AtomicPtr<Top>> {
        let number = address >> TREE_BITS;
        let mut others = self.others.iter();
        let tree = others.find(|tree| tree.number.load(Ordering::Acquire) == number)?;
        Some(&tree.top)
    }

    /// All tops, with the first address of each.
    fn tops(&self) -> impl Iterator<Item = (u64, &AtomicPtr<Top>)> {
        let others = self.others.iter().filter_map(|tree| {
            let number = tree.number.load(Ordering::Acquire);
            (number != 0).then_some((number << TREE_BITS, &tree.top))
        });
        iter::once((0, &self.first)).chain(others)
    }

    /// The pages that `range` touches, cut where 2 MiB end, as far as there are middle words over them. Allocates nothing.
    fn made(&self, range: AddressRange) -> impl Iterator<Item = (AddressRange, &AtomicPtr<Leaf>)> {
        let range = pages(range);
        self.tops().flat_map(move |(first, top)| {
            let end = range.end().min(first.saturating_add(TREE));
            let mut address = range.start().max(first);
            iter::from_fn(move || {
                while address < end {
                    let Some(word) = middle_word(top, address) else {
                        address = (address & !(SPAN - 1)).saturating_add(SPAN);
                        continue;
                    };
                    let block = block_from(address, end);
                    address = block.end();
                    return Some((block, word));
                }
                None
            })
        })
    }

    /// The middle word over `address`, whose node is made. With the writer's lock, and where there is a place.
    fn make_middle_word(&self, address: u64) -> &AtomicPtr<Leaf> {
        let top = match address < TREE {
            true => &self.first,
            false => self.other(address).expect("`set` has made its place"),
        };
        let top = make(top, || AtomicPtr::new(ptr::null_mut()));
        let middle = make(&top[top_index(address)], || AtomicPtr::new(ptr::null_mut()));
        &middle[middle_index(address)]
    }
}

/// The middle word over `address`, when its node exists.
#[inline]
fn middle_word(top: &AtomicPtr<Top>, address: u64) -> Option<&AtomicPtr<Leaf>> {
    let top = node(top.load(Ordering::Acquire))?;
    let middle = node(top[top_index(address)].load(Ordering::Acquire))?;
    Some(&middle[middle_index(address)])
}

impl Drop for Radix {
    fn drop(&mut self) {
        for (_, top) in self.tops() {
            drop_all(top.load(Ordering::Acquire));
        }
    }
}

/// Frees all nodes under a top, which nobody reads any more.
fn drop_all(top: *mut Top) {
    let Some(nodes) = node(top) else { return };
    for middle in nodes {
        let middle = middle.load(Ordering::Acquire);
        for word in node(middle).into_iter().flatten() {
            let leaf = word.load(Ordering::Acquire);
            if matches!(decode(leaf), Word::Leaf(_)) {
                // SAFETY: made by `new_node`, in this word alone, and nobody reads any more.
                drop(unsafe { Box::from_raw(leaf) });
            }
        }
        if !middle.is_null() {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(middle) });
        }
    }
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(top) });
}

impl fmt::Debug for Radix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Radix").finish_non_exhaustive()
    }
}

/// A middle word, read.
enum Word<'a> {
    Empty,
    Whole(u64),
    Leaf(&'a Leaf),
}

#[inline]
fn decode<'a>(word: *mut Leaf) -> Word<'a> {
    match word.addr() {
        0 => Word::Empty,
        number if number & 1 == 1 => Word::Whole((number >> 1) as u64),
        // SAFETY: not 0 and no number: a leaf, which lives as long as the index that the caller borrows.
        _ => Word::Leaf(unsafe { &*word }),
    }
}

/// The middle word that says `entry` for all of its 2 MiB.
fn whole(entry: u64) -> *mut Leaf {
    ptr::without_provenance_mut((entry << 1 | 1) as usize)
}

/// A node of the top or middle level.
#[inline]
fn node<'a, T>(pointer: *mut T) -> Option<&'a T> {
    // SAFETY: null or made by `new_node`, and lives as long as the index that the caller borrows.
    unsafe { pointer.as_ref() }
}

/// The node that `place` points to, made when there is none. With the writer's lock.
fn make<T, const N: usize>(place: &AtomicPtr<[T; N]>, cell: impl Fn() -> T) -> &[T; N] {
    let mut pointer = place.load(Ordering::Acquire);
    if pointer.is_null() {
        pointer = new_node(cell);
        place.store(pointer, Ordering::Release);
    }
    // SAFETY: as in `node`.
    unsafe { &*pointer }
}

/// Allocates a node.
fn new_node<T, const N: usize>(cell: impl Fn() -> T) -> *mut [T; N] {
    let cells: Box<[T]> = (0..N).map(|_| cell()).collect();
    Box::into_raw(cells).cast()
}

/// Puts a leaf, all of it `entry`, into a word that says `entry` for the whole: full before anyone can see it, so that nobody misses `entry` on the
/// pages where it stays.
fn split(word: &AtomicPtr<Leaf>, entry: u64) -> &Leaf {
    let leaf: *mut Leaf = new_node(|| AtomicU64::new(entry));
    word.store(leaf, Ordering::Release);
    // SAFETY: as in `node`.
    unsafe { &*leaf }
}

fn cells(leaf: &Leaf, block: AddressRange) -> &[AtomicU64] {
    let first = leaf_index(block.start());
    &leaf[first..first + (block.len() >> PAGE_BITS) as usize]
}

fn fill(leaf: &Leaf, block: AddressRange, entry: u64) {
    for cell in cells(leaf, block) {
        cell.store(entry, Ordering::Release);
    }
}

fn erase(leaf: &Leaf, block: AddressRange, entry: u64) {
    for cell in cells(leaf, block) {
        if cell.load(Ordering::Acquire) == entry {
            cell.store(0, Ordering::Release);
        }
    }
}

/// The pages that `range` touches.
fn pages(range: AddressRange) -> AddressRange {
    let end = range.end().min(END).next_multiple_of(PAGE);
    let start = (range.start() & !(PAGE - 1)).min(end);
    match range.is_empty() {
        true => between(start, start),
        false => between(start, end),
    }
}

/// `range` cut where 2 MiB end.
fn blocks(range: AddressRange) -> impl Iterator<Item = AddressRange> {
    let mut start = range.start();
    iter::from_fn(move || {
        (start < range.end()).then(|| {
            let block = block_from(start, range.end());
            start = block.end();
            block
        })
    })
}

/// From here to where 2 MiB end, or to `end`.
fn block_from(start: u64, end: u64) -> AddressRange {
    between(start, (start & !(BLOCK - 1)).saturating_add(BLOCK).min(end))
}

fn between(start: u64, end: u64) -> AddressRange {
    AddressRange::new(start, end - start).expect("ends in order")
}

#[inline]
fn top_index(address: u64) -> usize {
    (address >> SPAN_BITS) as usize & ((1 << TOP_BITS) - 1)
}

#[inline]
fn middle_index(address: u64) -> usize {
    (address >> BLOCK_BITS) as usize & ((1 << MIDDLE_BITS) - 1)
}

#[inline]
fn leaf_index(address: u64) -> usize {
    (address >> PAGE_BITS) as usize & ((1 << LEAF_BITS) - 1)
}

#[cfg(all(test, not(wharf_loom)))]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering::Relaxed},
        thread,
    };

    use super::*;

    fn seen(radix: &Radix, start: u64, end: u64) -> Vec<u64> {
        let mut entries = Vec::new();
        radix.walk(between(start, end), |entry| entries.push(entry));
        entries
    }

    #[test]
    fn pages_and_whole_blocks() {
        let radix = Radix::new();
        assert_eq!((radix.get(0), radix.get(BLOCK)), (0, 0));
        assert!(seen(&radix, 0, TREE).is_empty());
        let base = 5 * SPAN - BLOCK;
        radix
            .set(between(base - PAGE, base + 2 * BLOCK + PAGE), 7)
            .expect("in the index");
        assert_eq!(radix.get(base - PAGE - 1), 0);
        for address in [
            base - PAGE,
            base - 1,
            base,
            base + BLOCK,
            base + 2 * BLOCK,
            base + 2 * BLOCK + PAGE - 1,
        ] {
            assert_eq!(radix.get(address), 7, "{address:#x}");
        }
        assert_eq!(radix.get(base + 2 * BLOCK + PAGE), 0);
        // A hole in a whole block splits it.
        radix
            .set(between(base + BLOCK + PAGE, base + BLOCK + 2 * PAGE), 9)
            .expect("in the index");
        assert_eq!(radix.get(base + BLOCK), 7);
        assert_eq!(radix.get(base + BLOCK + PAGE), 9);
        assert_eq!(radix.get(base + BLOCK + 2 * PAGE), 7);
        assert_eq!(seen(&radix, 0, TREE), [7, 9, 7]);
        assert_eq!(
            seen(&radix, base + BLOCK + PAGE + 5, base + BLOCK + PAGE + 6),
            [9],
            "parts of pages"
        );
        // Only what is still 7 goes.
        radix.clear(between(0, TREE), 7);
        assert_eq!(seen(&radix, 0, u64::MAX), [9]);
        radix.clear(between(0, TREE), 9);
        assert!(seen(&radix, 0, u64::MAX).is_empty());
    }

    #[test]
    fn parts_of_a_whole_block_are_cleared() {
        let radix = Radix::new();
        radix.set(between(0, BLOCK), 3).expect("in the index");
        radix.clear(between(PAGE, 2 * PAGE), 4);
        assert_eq!(radix.get(PAGE), 3, "another's entry stays");
        radix.clear(between(PAGE, 2 * PAGE), 3);
        assert_eq!(
            (radix.get(0), radix.get(PAGE), radix.get(2 * PAGE)),
            (3, 0, 3)
        );
    }

    #[test]
    fn refuses_what_it_cannot_hold() {
        let radix = Radix::new();
        for range in [
            between(TREE - PAGE, TREE + PAGE),
            between(1, PAGE),
            between(0, PAGE + 1),
        ] {
            let error = radix.set(range, 1).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        radix
            .set(between(TREE - PAGE, TREE), 1)
            .expect("the last page");
        assert_eq!(radix.get(TREE - 1), 1);
        assert_eq!((radix.get(TREE), radix.get(u64::MAX)), (0, 0));
        assert_eq!(seen(&radix, TREE - 1, u64::MAX), [1]);
        assert!(seen(&radix, TREE, u64::MAX).is_empty());
        radix.clear(between(TREE - PAGE, u64::MAX), 1);
        assert_eq!(radix.get(TREE - 1), 0);
    }

    /// Where devices have their memory, and hosts whose addresses have 48 bits.
    #[test]
    fn high_addresses_are_held() {
        let radix = Radix::new();
        // Of memory of a card, of a host's last page below 2^48, the last page of all, and of what lies below all of them.
        let card = 0x1001_0018_0000_0000 / TREE * TREE + BLOCK;
        let starts = [card, HOST - PAGE, END - PAGE, PAGE];
        for (start, entry) in starts.into_iter().zip(1..) {
            let at = between(start, start + PAGE);
            assert_eq!(radix.get(start), 0);
            radix.set(at, entry).expect("in the index");
            assert_eq!(
                (radix.get(start), radix.get(start + PAGE - 1)),
                (entry, entry)
            );
            assert_eq!(radix.get(start - 1), 0);
        }
        let mut all = seen(&radix, 0, u64::MAX);
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4]);
        assert_eq!(seen(&radix, HOST, u64::MAX - PAGE), [1, 3]);
        radix.clear(between(card - BLOCK, card + BLOCK), 1);
        assert_eq!((radix.get(card), radix.get(HOST - 1)), (0, 2));
        // What has a place has it for good; what comes later may have none.
        for number in 100..100 + OTHERS as u64 - 3 {
            assert!(radix.make_place(between(number * TREE, number * TREE + 1)));
        }
        assert!(!radix.make_place(between(200 * TREE, 200 * TREE + PAGE)));
        radix
            .set(between(200 * TREE, 200 * TREE + PAGE), 5)
            .expect_err("no place");
        radix
            .set(between(card, card + 2 * BLOCK), 6)
            .expect("in the index");
        assert_eq!(radix.get(card + BLOCK), 6);
    }

    #[test]
    fn agrees_with_a_map_of_pages() {
        // A fixed pseudo-random script over blocks across the end of a middle node: four, and two where the interpreter looks at each page.
        const HALF: u64 = if cfg!(miri) { 1 } else { 2 };
        const PAGES: u64 = 2 * HALF * (BLOCK / PAGE);
        let (radix, mut map) = (Radix::new(), vec![0; PAGES as usize]);
        let base = SPAN - HALF * BLOCK;
        let mut state = 1_u64;
        let mut next = |below: u64| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let turns = if cfg!(miri) { 12 } else { 400 };
        for turn in 1..=turns {
            let (a, b) = (next(PAGES + 1), next(PAGES + 1));
            let (first, last) = match next(4) {
                0 => (a.min(b) & !511, a.max(b).next_multiple_of(512).min(PAGES)),
                _ => (a.min(b), a.max(b)),
            };
            let range = between(base + first * PAGE, base + last * PAGE);
            let entries = &mut map[first as usize..last as usize];
            match next(3) {
                0 => {
                    let victim = 1 + next(turn);
                    radix.clear(range, victim);
                    let gone = entries.iter_mut().filter(|entry| **entry == victim);
                    gone.for_each(|entry| *entry = 0);
                }
                _ => {
                    radix.set(range, turn).expect("in the index");
                    entries.fill(turn);
                }
            }
            for (page, entry) in (0..).zip(&map) {
                let found = radix.get(base + page * PAGE);
                assert_eq!(found, *entry, "page {page} after {turn}");
            }
            let mut runs = map.clone();
            runs.retain(|entry| *entry != 0);
            // Runs of equal entries with nothing between them count as one.
            runs.dedup();
            let mut walked = seen(&radix, base, base + PAGES * PAGE);
            walked.dedup();
            assert_eq!(walked, runs, "after {turn}");
        }
    }

    #[test]
    fn a_walk_misses_nothing_while_blocks_split() {
        let radix = Radix::new();
        let stop = AtomicBool::new(false);
        radix.set(between(0, BLOCK), 1).expect("in the index");
        thread::scope(|scope| {
            scope.spawn(|| {
                let blocks = if cfg!(miri) { 3 } else { 2000 };
                for block in 1..blocks {
                    // Page 0 of each block keeps its 1 while the others change.
                    let start = block * BLOCK;
                    radix
                        .set(between(start, start + BLOCK), 1)
                        .expect("in the index");
                    radix
                        .set(between(start + PAGE, start + 2 * PAGE), 2)
                        .expect("in the index");
                    radix.clear(between(start + 2 * PAGE, start + BLOCK), 1);
                }
                stop.store(true, Relaxed);
            });
            while !stop.load(Relaxed) {
                assert_eq!(radix.get(0), 1);
                assert!(seen(&radix, 0, 8 * BLOCK).contains(&1));
                thread::yield_now();
            }
        });
    }
}

#[cfg(all(test, wharf_loom))]
mod models {
    use super::*;
    use crate::util::loom::{Arc, thread};

    fn seen(radix: &Radix, page: u64) -> Vec<u64> {
        let mut entries = Vec::new();
        radix.walk(between(page * PAGE, (page + 1) * PAGE), |entry| {
            entries.push(entry)
        });
        entries
    }

    /// A page keeps its entry while the block that it belongs to is split for its neighbour: no walk and no reader may miss it.
    #[test]
    fn a_split_hides_nothing() {
        loom::model(|| {
            let radix = Arc::new(Radix::new());
            radix.set(between(0, BLOCK), 1).expect("in the index");
            let writer = {
                let radix = Arc::clone(&radix);
                thread::spawn(move || radix.set(between(PAGE, 2 * PAGE), 2).expect("in the index"))
            };
            assert_eq!(seen(&radix, 0), [1]);
            assert!(matches!(seen(&radix, 1)[..], [1] | [2]));
            assert_eq!(radix.get(0), 1);
            writer.join().expect("writer");
            assert_eq!((radix.get(0), radix.get(PAGE)), (1, 2));
        });
    }

    /// The same for clearing a part.
    #[test]
    fn a_clear_takes_only_its_pages() {
        loom::model(|| {
            let radix = Arc::new(Radix::new());
            radix.set(between(0, BLOCK), 1).expect("in the index");
            let writer = {
                let radix = Arc::clone(&radix);
                thread::spawn(move || radix.clear(between(PAGE, 2 * PAGE), 1))
            };
            assert_eq!(seen(&radix, 0), [1]);
            writer.join().expect("writer");
            assert_eq!((radix.get(0), radix.get(PAGE)), (1, 0));
        });
    }

    /// Whoever sees a first entry through new nodes sees it whole.
    #[test]
    fn nodes_appear_whole() {
        loom::model(|| {
            let radix = Arc::new(Radix::new());
            let writer = {
                let radix = Arc::clone(&radix);
                thread::spawn(move || {
                    radix
                        .set(between(SPAN, SPAN + PAGE), 5)
                        .expect("in the index")
                })
            };
            assert!(matches!(radix.get(SPAN), 0 | 5));
            assert_eq!(radix.get(SPAN + PAGE), 0);
            writer.join().expect("writer");
            assert_eq!(radix.get(SPAN), 5);
        });
    }
}
