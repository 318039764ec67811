//! The index: from an address to what is remembered of it. Readers and events take no lock, those who write take one.

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

use super::{
    events::Events,
    slot::{CAPACITY, SHARED, Slab, Slot, entry_of, index_of, live, tag_of},
};
use crate::{
    memory::{
        AddressRange, Cause, MemoryAttributes, MemorySink,
        radix::{HOST, PAGE, Radix},
    },
    util::lock::Mutex,
};

/// As long as one of so many slots is found to be retired, all are looked at again when those are used up; else a quarter as many are used first. So a
/// look costs each use a few dozen slots at most.
const SWEEP: usize = 64;

/// Allocations that may share a page and be remembered.
pub(super) const SHARERS: usize = 15;

#[derive(Debug)]
pub(super) struct Cache {
    index: Radix,
    slots: Slab<Slot>,
    pub(super) said: Said,
    pages: Slab<Page>,
    pub(super) writer: Mutex<Writer>,
    pub(super) events: Events,
}

/// Which elements are used next.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// Those that were made.
    pub(super) slots: u32,
    /// Retired ones that were found.
    free: Vec<u32>,
    /// Uses before they are looked for again.
    pause: u32,
    /// What goes next when none is free.
    next_slot: u32,
    pages: u32,
    next_page: u32,
}

/// Allocations beyond the index that the program told of: so many slots, looked through one by one.
#[derive(Debug)]
pub(super) struct Said {
    slots: Slab<Slot>,
    pub(super) made: AtomicU32,
}

impl Said {
    /// Shows those that are live, with their entries. No lock, no allocation.
    fn live(&self) -> impl Iterator<Item = (u64, &Slot)> {
        let made = 0..self.made.load(Acquire);
        made.filter_map(|index| {
            let slot = self.slots.get(index)?;
            let state = slot.state.load(Acquire);
            (state & 1 != 0).then(|| (entry_of(index, state >> 1), slot))
        })
    }
}

/// Allocations that share a page: their entries, or 0.
#[derive(Debug, Default)]
struct Page {
    number: AtomicU64,
    sharers: [AtomicU64; SHARERS],
}

impl Cache {
    pub(super) fn new() -> Self {
        Self {
            index: Radix::new(),
            slots: Slab::new(),
            said: Said {
                slots: Slab::new(),
                made: AtomicU32::new(0),
            },
            pages: Slab::new(),
            writer: Mutex::default(),
            events: Events::new(),
        }
    }

    /// The allocation that holds all of `range`, and the count of runtimes when it was stored.
    #[inline]
    pub(super) fn get(&self, range: AddressRange) -> Option<(MemoryAttributes, u64)> {
        let entry = self.index.get(range.start());
        if entry == 0 {
            return None;
        }
        if entry & SHARED != 0 {
            return self.get_shared(entry, range);
        }
        let found = self.slots.get(index_of(entry))?.read(entry)?;
        found.0.allocation.contains(range).then_some(found)
    }

    #[cold]
    fn get_shared(&self, entry: u64, range: AddressRange) -> Option<(MemoryAttributes, u64)> {
        let page = self.pages.get(index_of(entry))?;
        page.sharers
            .iter()
            .map(|sharer| sharer.load(Acquire))
            .filter(|sharer| *sharer != 0)
            .filter_map(|sharer| self.slots.get(index_of(sharer))?.read(sharer))
            .find(|(attributes, _)| attributes.allocation.contains(range))
    }

    /// Shows the allocations behind an entry of the index.
    fn each_slot(&self, entry: u64, mut act: impl FnMut(u64, &Slot)) {
        let mut show = |entry: u64| {
            if let Some(slot) = self.slots.get(index_of(entry)) {
                act(entry, slot);
            }
        };
        if entry & SHARED == 0 {
            show(entry);
        } else if let Some(page) = self.pages.get(index_of(entry)) {
            for sharer in &page.sharers {
                match sharer.load(Acquire) {
                    0 => {}
                    sharer => show(sharer),
                }
            }
        }
    }

    /// Retires every allocation that shares a byte with `range`. No lock, no allocation.
    fn retire_within(&self, range: AddressRange) {
        self.index.walk(range, |entry| {
            self.each_slot(entry, |entry, slot| {
                if slot
                    .read(entry)
                    .is_some_and(|(attributes, _)| attributes.allocation.overlaps(range))
                {
                    slot.retire(entry);
                }
            });
        });
    }

    /// What the program has said of all of `range`, which is beyond the index.
    #[cold]
    pub(super) fn said(&self, range: AddressRange) -> Option<MemoryAttributes> {
        if !is_beyond(range) {
            return None;
        }
        let all = self
            .said
            .live()
            .filter_map(|(entry, slot)| slot.read(entry));
        let mut all = all.map(|(attributes, _)| attributes);
        all.find(|attributes| attributes.allocation.contains(range))
    }

    /// Notes down what the program says, in place of what it said of parts of it.
    pub(super) fn say(&self, attributes: &MemoryAttributes) {
        let _writer = self.writer.lock();
        self.unsay_within(attributes.allocation);
        let made = self.said.made.load(Relaxed);
        let is_free = |index: &u32| {
            let slot = self.said.slots.get(*index);
            slot.is_some_and(|slot| slot.state.load(Acquire) & 1 == 0)
        };
        let free = (0..made).find(is_free).unwrap_or(made);
        if free == CAPACITY {
            tracing::warn!(target: "wharf::memory", "{CAPACITY} allocations are noted: not {}", attributes.allocation);
            return;
        }
        self.said.slots.make(free).write(attributes, 0);
        self.said.made.store(made.max(free + 1), Release);
    }

    /// Forgets what the program said of every allocation that shares a byte with `range`. No lock, no allocation.
    fn unsay_within(&self, range: AddressRange) {
        for (entry, slot) in self.said.live() {
            let found = slot.read(entry);
            if found.is_some_and(|(attributes, _)| attributes.allocation.overlaps(range)) {
                slot.retire(entry);
            }
        }
    }

    /// Remembers an answer that was asked for after `events` had been counted, unless something went away since. Whatever is remembered of parts
    /// of it goes.
    pub(super) fn store(&self, attributes: &MemoryAttributes, seen: u64, events: u64) {
        let range = attributes.allocation;
        if range.is_empty() || is_beyond(range) {
            return;
        }
        let mut writer = self.writer.lock();
        self.retire_within(range);
        let index = self.free_slot(&mut writer);
        let slot = self.slots.make(index);
        let tag = slot.write(attributes, seen);
        let entry = entry_of(index, tag);
        let published = self.publish(&mut writer, range, entry);
        // Either an event counts itself before the look at the count, or it finds what was published.
        fence(SeqCst);
        if !published || self.events.touched(range, events) {
            slot.retire(entry);
        }
    }

    /// Writes the entry to the pages of `range`, first and last shared with others maybe.
    fn publish(&self, writer: &mut Writer, range: AddressRange, entry: u64) -> bool {
        let (first, last) = (page_of(range.start()), page_of(range.end() - 1));
        let whole_from = range.start().next_multiple_of(PAGE);
        let whole_to = page_of(range.end());
        if whole_from < whole_to && !self.set(whole_from, whole_to, entry) {
            return false;
        }
        let mut done = true;
        if first < whole_from {
            done &= self.share(writer, first, entry);
        }
        if last >= whole_to && (last != first || first >= whole_from) {
            done &= self.share(writer, last, entry);
        }
        done
    }

    fn set(&self, from: u64, to: u64, entry: u64) -> bool {
        AddressRange::new(from, to - from)
            .and_then(|range| self.index.set(range, entry))
            .is_ok()
    }

    /// Adds the entry to a page that it has a part of.
    fn share(&self, writer: &mut Writer, page: u64, entry: u64) -> bool {
        let old = self.index.get(page);
        if old == 0 || (old & SHARED == 0 && !self.is_live(old)) {
            return self.set(page, page + PAGE, entry);
        }
        if old & SHARED == 0 {
            let index = self.free_page(writer);
            let shared = self.pages.make(index);
            shared.number.store(page, Relaxed);
            shared.sharers[0].store(old, Release);
            shared.sharers[1].store(entry, Release);
            return self.set(page, page + PAGE, SHARED | entry_of(index, 0));
        }
        let place = self.pages.get(index_of(old)).and_then(|shared| {
            shared.sharers.iter().find(|sharer| {
                let sharer = sharer.load(Acquire);
                sharer == 0 || !self.is_live(sharer)
            })
        });
        match place {
            Some(place) => {
                place.store(entry, Release);
                true
            }
            None => false,
        }
    }

    fn is_live(&self, entry: u64) -> bool {
        self.slots
            .get(index_of(entry))
            .is_some_and(|slot| slot.state.load(Acquire) == live(tag_of(entry)))
    }

    /// A slot that no entry of the index names: a retired one, a new one, or the one at the hand.
    fn free_slot(&self, writer: &mut Writer) -> u32 {
        writer.pause = writer.pause.saturating_sub(1);
        if writer.free.is_empty() && writer.pause == 0 {
            // Events retire slots without a word to the writer.
            let made = 0..writer.slots;
            writer
                .free
                .extend(made.filter(|index| self.is_retired(*index)));
            if writer.free.len() < writer.slots as usize / SWEEP {
                writer.pause = writer.slots / 4;
            }
        }
        if let Some(index) = writer.free.pop() {
            self.empty(index);
            return index;
        }
        if writer.slots < CAPACITY {
            writer.slots += 1;
            return writer.slots - 1;
        }
        let index = writer.next_slot;
        writer.next_slot = (index + 1) % CAPACITY;
        self.empty(index);
        index
    }

    fn is_retired(&self, index: u32) -> bool {
        let slot = self.slots.get(index);
        slot.is_some_and(|slot| slot.state.load(Acquire) & 1 == 0)
    }

    /// Retires a slot and takes its entries out of the index.
    fn empty(&self, index: u32) {
        let Some(slot) = self.slots.get(index) else {
            return;
        };
        let entry = entry_of(index, slot.state.load(Acquire) >> 1);
        slot.retire(entry);
        let (start, end) = (slot.start.load(Relaxed), slot.end.load(Relaxed));
        if let Ok(range) = AddressRange::new(start, end.saturating_sub(start)) {
            self.index.clear(range, entry);
        }
    }

    /// As [`free_slot`](Self::free_slot), for a page.
    fn free_page(&self, writer: &mut Writer) -> u32 {
        if writer.pages < CAPACITY {
            writer.pages += 1;
            return writer.pages - 1;
        }
        let index = writer.next_page;
        writer.next_page = (index + 1) % CAPACITY;
        if let Some(page) = self.pages.get(index) {
            // Allocations that lose an entry could no longer be reached by every event.
            let entry = SHARED | entry_of(index, 0);
            self.each_slot(entry, |sharer, slot| slot.retire(sharer));
            if let Ok(range) = AddressRange::new(page.number.load(Relaxed), PAGE) {
                self.index.clear(range, entry);
            }
            for sharer in &page.sharers {
                sharer.store(0, Release);
            }
        }
        index
    }
}

impl MemorySink for Cache {
    fn invalidate(&self, range: AddressRange, _: Cause) {
        self.events.note(range);
        fence(SeqCst);
        self.retire_within(range);
        if is_beyond(range) {
            self.unsay_within(range);
        }
    }
}

/// Whether it has no place among the pages: a host has such addresses where it is asked for them alone, or it lies on both sides of a multiple of 2^47.
pub(super) fn is_beyond(range: AddressRange) -> bool {
    range.end() > HOST - PAGE || range.start() >> 47 != range.end().saturating_sub(1) >> 47
}

fn page_of(address: u64) -> u64 {
    address & !(PAGE - 1)
}
