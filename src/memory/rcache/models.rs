//! Every interleaving of small scenes, checked by `loom` on an index of two of everything and slots of two to a chunk.
//!
//! A scene keeps for each page whether its memory has gone, as a handler that returned would have it. What must hold at the end, and at each
//! hit: no registration that is found covers memory that went away before.
//!
//! # Safety
//! As the callers of the unsafe functions in the cache: the thread that opens a slot commits or closes it, one thread takes the dead.
#![allow(unsafe_code)]

use super::{
    core::Core,
    slot::{Commit, Entry},
};
use crate::{
    memory::AddressRange,
    types::Access,
    util::loom::{Arc, AtomicBool, AtomicU64, Ordering, fence, thread},
};

const ACCESS: Access = Access::READ;

type Scene = Core<u64>;

fn pages(first: u64, last: u64) -> AddressRange {
    AddressRange::new(first * 4096, (last + 1 - first) * 4096).expect("a range")
}

fn scene() -> Arc<Scene> {
    let core = Core::new(4);
    for index in 0..4 {
        core.slots.make(index);
    }
    Arc::new(core)
}

/// Opens slot `index` for `range`, publishes it, registers `handle`, and lets it idle.
fn keep(core: &Scene, index: u32, range: AddressRange, handle: u64) -> Entry {
    let slot = core.slots.get(index);
    let entry = slot.open(range, ACCESS, 0);
    core.index.set(range, entry.raw()).expect("in the index");
    // SAFETY: opened here.
    unsafe { slot.put_handle(handle) };
    assert!(matches!(slot.commit(), Commit::Ready { .. }));
    assert!(!slot.leave());
    entry
}

/// What the reaper does. Returns the handles.
fn reap(core: &Scene) -> Vec<u64> {
    let mut handles = Vec::new();
    for slot in core.dead.take() {
        // SAFETY: taken from the dead stack, and in the slots of `core`.
        let slot = unsafe { &*slot };
        core.index.clear(slot.range(), slot.entry().raw());
        // SAFETY: as above.
        handles.extend(unsafe { slot.take_handle() });
        slot.close();
    }
    handles
}

/// A hit against an event against the reaper: a handle is never taken from under its user, nor taken twice, nor forgotten.
#[test]
fn get_put_invalidate_reap() {
    loom::model(|| {
        let core = scene();
        keep(&core, 0, pages(0, 0), 7);
        let gone = Arc::new(AtomicBool::new(false));
        let event = {
            let (core, gone) = (Arc::clone(&core), Arc::clone(&gone));
            thread::spawn(move || {
                core.invalidate(pages(0, 0));
                gone.store(true, Ordering::Release);
                reap(&core)
            })
        };
        let was_gone = gone.load(Ordering::Acquire);
        if let Some((slot, _)) = core.enter(pages(0, 0), ACCESS) {
            assert!(!was_gone, "a hit after the event");
            // SAFETY: just counted, and Ready.
            assert_eq!(unsafe { *slot.handle() }, 7);
            if slot.leave() {
                core.push_dead(slot);
            }
        }
        let mut handles = event.join().expect("event");
        handles.extend(reap(&core));
        assert_eq!(handles, [7], "once");
        assert!(core.enter(pages(0, 0), ACCESS).is_none());
    });
}

/// Two users and an event: the last one out deregisters it, whoever that is.
#[test]
fn the_last_user_deregisters_once() {
    loom::model(|| {
        let core = scene();
        keep(&core, 0, pages(0, 0), 7);
        let user = |core: Arc<Scene>| {
            move || {
                if let Some((slot, _)) = core.enter(pages(0, 0), ACCESS)
                    && slot.leave()
                {
                    core.push_dead(slot);
                }
            }
        };
        let first = thread::spawn(user(Arc::clone(&core)));
        let second = thread::spawn(user(Arc::clone(&core)));
        core.invalidate(pages(0, 0));
        first.join().expect("first");
        second.join().expect("second");
        assert_eq!(core.dead.take().count(), 1);
    });
}

/// A slot lives again for other memory while somebody comes with an entry of its last life.
#[test]
fn an_old_entry_does_not_open_the_next_life() {
    loom::model(|| {
        let core = scene();
        keep(&core, 0, pages(0, 0), 1);
        let other = {
            let core = Arc::clone(&core);
            thread::spawn(move || {
                core.invalidate(pages(0, 0));
                if reap(&core) == [1] {
                    keep(&core, 0, pages(1, 1), 2);
                }
            })
        };
        if let Some((slot, _)) = core.enter(pages(0, 0), ACCESS) {
            // SAFETY: just counted, and Ready.
            assert_eq!(unsafe { *slot.handle() }, 1, "page 0 is the first life's");
            if slot.leave() {
                core.push_dead(slot);
            }
        }
        other.join().expect("other");
        // Nor does an event for page 0 end it.
        core.invalidate(pages(0, 0));
        reap(&core);
        if let Some((slot, _)) = core.enter(pages(1, 1), ACCESS) {
            // SAFETY: as above.
            assert_eq!(unsafe { *slot.handle() }, 2);
        }
    });
}

/// The memory changes while it is registered: then the registration is not committed, or it is stale.
#[test]
fn an_event_meets_a_registration_under_way() {
    loom::model(|| {
        let core = scene();
        // What was mapped when: 0, and 1 after the change.
        let memory = Arc::new(AtomicU64::new(0));
        let event = {
            let (core, memory) = (Arc::clone(&core), Arc::clone(&memory));
            thread::spawn(move || {
                // After the change, as a monitor that tells afterwards.
                memory.store(1, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                core.invalidate(pages(0, 0));
            })
        };
        let slot = core.slots.get(0);
        let entry = slot.open(pages(0, 0), ACCESS, 0);
        core.index
            .set(pages(0, 0), entry.raw())
            .expect("in the index");
        // The system's lock of the mappings orders registering against the change: a fence on either side.
        fence(Ordering::SeqCst);
        let pinned = memory.load(Ordering::SeqCst);
        // SAFETY: opened here.
        unsafe { slot.put_handle(pinned) };
        if matches!(slot.commit(), Commit::Ready { .. }) && slot.leave() {
            core.push_dead(slot);
        }
        event.join().expect("event");
        if let Some((slot, _)) = core.enter(pages(0, 0), ACCESS) {
            // SAFETY: just counted, and Ready.
            let handle = unsafe { *slot.handle() };
            assert_eq!(handle, 1, "the old pages are found after the event");
        }
    });
}

/// A union takes the place of an older registration while the memory of that goes away: the union does not include it, or it is stale.
fn replace(reaped: bool, reopened: bool) {
    loom::model(move || {
        let core = scene();
        let old_entry = keep(&core, 0, pages(0, 0), 1);
        let unmapped = Arc::new(AtomicBool::new(false));
        let event = {
            let (core, unmapped) = (Arc::clone(&core), Arc::clone(&unmapped));
            thread::spawn(move || {
                // Before the change, as a hook: page 0 goes away when this returned.
                core.invalidate(pages(0, 0));
                unmapped.store(true, Ordering::SeqCst);
            })
        };
        // The request is for page 1; page 0 would only come along.
        let (slot, old) = (core.slots.get(1), core.slot(old_entry));
        let entry = slot.open(pages(0, 1), ACCESS, 0);
        let retired = old.supersede(old_entry, entry);
        let range = match retired {
            Some(_) => pages(0, 1),
            None => pages(1, 1),
        };
        slot.set_range(range);
        core.index.set(range, entry.raw()).expect("in the index");
        if retired.is_some() {
            core.index.clear(old.range(), old_entry.raw());
            if old.leave() {
                core.push_dead(old);
            }
        }
        if reaped && reap(&core) == [1] && reopened {
            // Another life, which nothing has taken the place of.
            old.open(pages(3, 3), ACCESS, 0);
        }
        // Registered: with the old page 0, if that is still there.
        let with_old_page = retired.is_some() && !unmapped.load(Ordering::SeqCst);
        // SAFETY: opened here.
        unsafe { slot.put_handle(u64::from(with_old_page)) };
        if matches!(slot.commit(), Commit::Ready { .. }) && slot.leave() {
            core.push_dead(slot);
        }
        event.join().expect("event");
        if let Some((slot, _)) = core.enter(pages(0, 0), ACCESS) {
            // SAFETY: just counted, and Ready.
            let handle = unsafe { *slot.handle() };
            assert_eq!(handle, 0, "the union kept a page that went away");
        }
    });
}

#[test]
fn a_union_hears_of_what_it_took_in() {
    replace(false, false);
}

#[test]
fn a_union_hears_of_it_when_the_old_slot_is_gone() {
    replace(true, false);
}

#[test]
fn a_union_hears_of_it_when_the_old_slot_lives_again() {
    replace(true, true);
}

/// The clock's hand against a hit and an event.
#[test]
fn evict_against_use() {
    loom::model(|| {
        let core = scene();
        keep(&core, 0, pages(0, 0), 7);
        let user = {
            let core = Arc::clone(&core);
            thread::spawn(move || {
                if let Some((slot, _)) = core.enter(pages(0, 0), ACCESS) {
                    // SAFETY: just counted, and Ready.
                    assert_eq!(unsafe { *slot.handle() }, 7);
                    if slot.leave() {
                        core.push_dead(slot);
                    }
                }
            })
        };
        let event = {
            let core = Arc::clone(&core);
            thread::spawn(move || core.invalidate(pages(0, 0)))
        };
        let slot = core.slots.get(0);
        if slot.evict(false) {
            core.push_dead(slot);
        }
        let mut handles = reap(&core);
        user.join().expect("user");
        event.join().expect("event");
        handles.extend(reap(&core));
        assert_eq!(handles, [7], "once");
    });
}
