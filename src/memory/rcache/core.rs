//! The index, the slots and the dead stack together: what a hit, an event and a replacement do to them, without a lock.
//!
//! A registration that takes the place of others must not miss an event for their memory. A handler may have read the index just before and
//! be on its way to a slot `S` that `U` replaces. One word decides, the state of `S`:
//!
//! ```text
//!  replacing:  S.successor = U; retire S; publish U in the index; clear what still leads to S; let S go
//!  handler:    read the index: S; mark S
//!              marked before the retiring: it finds S dead, and U does not include the memory of S
//!              marked after it:            the handler finds S retired, and goes on to U
//!              S has another life:         it was let go, so U is in the index and S is not: the handler reads the index again
//! ```

use super::slot::{DeadStack, Entry, Mark, Slot, Slots};
use crate::{
    memory::{AddressRange, radix::Radix},
    types::Access,
    util::loom::{AtomicU64, Ordering},
};

pub(super) struct Core<H> {
    pub(super) index: Radix,
    pub(super) slots: Slots<H>,
    pub(super) dead: DeadStack<H>,
    /// Slots that are dead and not closed yet, and their bytes: used or not.
    pub(super) dead_regions: AtomicU64,
    pub(super) dead_bytes: AtomicU64,
    /// What lies on the dead stack or has been taken from it, and is not deregistered yet; uncached registrations too.
    pub(super) unreleased_regions: AtomicU64,
    pub(super) unreleased_bytes: AtomicU64,
}

/// What an event met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Met {
    /// Registrations that nobody used.
    pub(super) idle: u64,
    /// Registrations in use, or under way.
    pub(super) in_use: u64,
    /// The dead stack was empty before: the reaper is to be woken.
    pub(super) ring: bool,
}

impl<H> Core<H> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            index: Radix::new(),
            slots: Slots::new(capacity),
            dead: DeadStack::new(),
            dead_regions: AtomicU64::new(0),
            dead_bytes: AtomicU64::new(0),
            unreleased_regions: AtomicU64::new(0),
            unreleased_bytes: AtomicU64::new(0),
        }
    }

    /// The slot of an entry.
    #[inline]
    pub(super) fn slot(&self, entry: Entry) -> &Slot<H> {
        self.slots.get(entry.index())
    }

    /// The slot that covers the request, with one more user, and whether it is `OWNED`.
    #[inline]
    pub(super) fn enter(&self, range: AddressRange, access: Access) -> Option<(&Slot<H>, bool)> {
        let raw = self.index.get(range.start());
        if raw == 0 {
            return None;
        }
        let entry = Entry::from_raw(raw);
        let slot = self.slot(entry);
        slot.enter(entry, range, access).map(|owned| (slot, owned))
    }

    /// An event. No lock, no allocation, no wait: it may run inside `munmap` or a signal handler.
    pub(super) fn invalidate(&self, range: AddressRange) -> Met {
        let mut met = Met::default();
        loop {
            let mut outdated = false;
            self.index.walk(range, |raw| {
                outdated |= !self.invalidate_from(Entry::from_raw(raw), range, &mut met);
            });
            // Another life of a slot means that the index has changed since it was read there.
            if !outdated {
                return met;
            }
        }
    }

    /// Whether a registration of a part of `range` has users, or is under way. No lock, no allocation.
    pub(super) fn is_in_use(&self, range: AddressRange) -> bool {
        let mut found = false;
        self.index.walk(range, |raw| {
            found |= self.slot(Entry::from_raw(raw)).has_users();
        });
        found
    }

    /// Marks a slot and what took its place. False when the way there is out of date.
    fn invalidate_from(&self, entry: Entry, range: AddressRange, met: &mut Met) -> bool {
        let (mut entry, mut within) = (entry, None);
        loop {
            let slot = self.slot(entry);
            // Before the mark: afterwards the slot may be someone else's.
            let bytes = slot.range().len();
            match slot.mark(entry, within) {
                Mark::Gone => return false,
                Mark::Elsewhere => return true,
                Mark::Stale {
                    first,
                    pending,
                    unused,
                    successor,
                } => {
                    if first && !pending {
                        self.count_dead(bytes);
                    }
                    if first {
                        match unused {
                            true => met.idle += 1,
                            false => met.in_use += 1,
                        }
                    }
                    if unused {
                        met.ring |= self.push_dead(slot);
                    }
                    match successor {
                        Some(successor) => (entry, within) = (successor, Some(range)),
                        None => return true,
                    }
                }
            }
        }
    }

    /// A slot of the cache died. Of a Pending one the job that opened it says so, at its end: until that has its range, others may see more of it.
    pub(super) fn count_dead(&self, bytes: u64) {
        self.dead_regions.fetch_add(1, Ordering::Relaxed);
        self.dead_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Puts a dead slot without users onto the stack. True when the reaper is to be woken. Afterwards the slot is someone else's.
    pub(super) fn push_dead(&self, slot: &Slot<H>) -> bool {
        self.unreleased_regions.fetch_add(1, Ordering::Relaxed);
        self.unreleased_bytes
            .fetch_add(slot.range().len(), Ordering::Relaxed);
        self.dead.push(slot)
    }
}

#[cfg(all(test, not(wharf_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_has_users_is_in_use() {
        let pages = |first: u64, count: u64| {
            AddressRange::new(first * 4096, count * 4096).expect("a range")
        };
        let core = Core::<()>::new(64);
        let slot = core.slots.make(0);
        let entry = slot.open(pages(0, 4), Access::READ, 0);
        core.index
            .set(pages(0, 4), entry.raw())
            .expect("in the index");
        assert!(core.is_in_use(pages(3, 9)), "under way");
        slot.commit();
        assert!(core.is_in_use(pages(3, 9)) && !core.is_in_use(pages(4, 9)));
        assert!(!slot.leave(), "it is kept");
        assert!(!core.is_in_use(pages(3, 9)));
    }

    /// A slot that is being opened may still become more than it will be: an event that comes then must not count its bytes.
    #[test]
    fn a_death_before_the_range_is_known_is_not_counted() {
        let pages = |first: u64, count: u64| {
            AddressRange::new(first * 4096, count * 4096).expect("a range")
        };
        let core = Core::<()>::new(64);
        let (old, new) = (core.slots.make(0), core.slots.make(1));
        let old_entry = old.open(pages(0, 64), Access::READ, 0);
        core.index
            .set(pages(0, 64), old_entry.raw())
            .expect("in the index");
        old.commit();
        // As a miss opens a slot for pages 60 to 67, which takes the place of the old one.
        let entry = new.open(pages(0, 68), Access::WRITE, 0);
        assert!(old.supersede(old_entry, entry).is_some());
        let met = core.invalidate(pages(0, 1));
        assert_eq!((met.idle, met.in_use), (0, 1), "the new one, under way");
        new.set_range(pages(60, 8));
        assert_eq!(core.dead_bytes.load(Ordering::Relaxed), 0);
        assert!(new.has(crate::memory::rcache::slot::STALE));
    }
}
