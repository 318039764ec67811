//! What lives as long as anything of the cache does, and the guard that relies on it.
//!
//! # Safety
//! A guard counts as a user of its slot, so the slot keeps its handle, and is open: so the reaper runs, which holds `Inner` (`Inner::start_reaper` comes
//! before every first registration). Both pointers of a guard are valid for as long as it is.
#![allow(unsafe_code)]

use std::{
    collections::HashMap,
    fmt,
    ops::Deref,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
};

use super::{
    core::Core,
    flight::{Flight, Released},
    options::RegistrationCacheOptions,
    slot::{STALE, Slot, UNCACHED},
    stats::{RegistrationCacheStatistics, Stats},
};
use crate::{
    error::Error,
    memory::{AddressRange, MemoryMonitor, Registrar, RegistrarAttributes},
    sys::{eventfd::EventFd, fork::forked},
    types::Access,
    util::lock::Mutex,
};

/// What lives as long as anything of the cache does: its handles, its jobs, its reaper. The reaper lives until no slot is open, so a guard, which has
/// one, may rely on it.
pub(super) struct Inner<R: Registrar> {
    pub(super) core: Core<R::Handle>,
    /// The monitor is asked at each hit on memory of unknown owners.
    pub(super) strict: bool,
    /// Memory of unknown owners may be kept.
    pub(super) keeps_foreign: bool,
    /// Ranges are rounded out to this.
    pub(super) alignment: u64,
    pub(super) attributes: RegistrarAttributes,
    pub(super) max_regions: u64,
    pub(super) options: RegistrationCacheOptions,
    /// Held by misses and the reaper for moments; never by hits and events.
    pub(super) table: Mutex<Table<R>>,
    pub(super) stats: Stats,
    /// Wakes the reaper.
    pub(super) bell: EventFd,
    /// Slots that are not Empty, uncached ones too.
    pub(super) live: AtomicUsize,
    /// No handle is left.
    pub(super) closed: AtomicBool,
    /// Whether the reaper runs.
    pub(super) reaper: Mutex<bool>,
    /// Who waits for the end of which slot, by its address.
    pub(super) released: Mutex<HashMap<usize, Arc<Flight<()>>>>,
    /// Who waits until nothing is unreleased.
    pub(super) drained: Mutex<Vec<Waker>>,
    pub(super) monitor: Arc<dyn MemoryMonitor>,
    pub(super) registrar: R,
}

impl<R: Registrar> Inner<R> {
    pub(super) fn statistics(&self) -> RegistrationCacheStatistics {
        let mut now = self.stats.read();
        now.unreleased_regions = self.core.unreleased_regions.load(Ordering::Relaxed);
        now.unreleased_bytes = self.core.unreleased_bytes.load(Ordering::Relaxed);
        (now.regions, now.bytes) = self.kept(&self.table.lock());
        now
    }

    /// Regions and bytes that are kept and not dead.
    pub(super) fn kept(&self, table: &Table<R>) -> (u64, u64) {
        // The dead are counted a moment after they died, and perhaps after they were closed.
        let less = |all: u64, dead: u64| (all.wrapping_sub(dead) as i64).max(0) as u64;
        (
            less(
                table.regions,
                self.core.dead_regions.load(Ordering::Relaxed),
            ),
            less(table.bytes, self.core.dead_bytes.load(Ordering::Relaxed)),
        )
    }

    pub(super) fn count(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What misses and the reaper keep under one lock.
pub(super) struct Table<R: Registrar> {
    /// Slots that were made.
    pub(super) made: u32,
    /// Those of them that are Empty.
    pub(super) free: Vec<u32>,
    /// Slots that are not Empty, and their bytes.
    pub(super) regions: u64,
    pub(super) bytes: u64,
    /// Where the clock's hand is.
    pub(super) hand: u32,
    /// Who waits for the Pending slots.
    pub(super) flights: HashMap<u32, Arc<Flight<End<R>>>>,
}

impl<R: Registrar> Default for Table<R> {
    fn default() -> Self {
        Self {
            made: 0,
            free: Vec::new(),
            regions: 0,
            bytes: 0,
            hand: 0,
            flights: HashMap::new(),
        }
    }
}

/// How a job ended.
pub(super) enum End<R: Registrar> {
    Ready(Registration<R>),
    /// The registrar's error, and the range that it is about.
    Failed(Error, AddressRange),
    /// A union could not be registered. Who asked for its part asks again, for that alone.
    UnionFailed,
    /// The monitor cannot watch it.
    Unwatchable,
    /// The memory changed meanwhile, or the runtime that should have done it is gone.
    Again,
}

/// Memory that is registered, in use. Dereferences to the registrar's handle.
///
/// A clone is one more user. While there is one, the registration stays, whatever happens to the memory: the device goes on with the pages
/// that it was made for. Dropping never blocks; what is to be deregistered then, a thread of the cache deregisters.
#[doc(alias = "ucs_rcache_region_t")]
#[must_use = "the registration is given back when this is dropped"]
pub struct Registration<R: Registrar> {
    slot: NonNull<Slot<R::Handle>>,
    inner: NonNull<Inner<R>>,
}

// SAFETY: the handle is `Send` and `Sync`, and so is `Inner`; the slot's other fields are atomic.
unsafe impl<R: Registrar> Send for Registration<R> {}
// SAFETY: as above.
unsafe impl<R: Registrar> Sync for Registration<R> {}

impl<R: Registrar> Registration<R> {
    /// Takes over one user of a Ready slot of `inner`.
    ///
    /// # Safety
    /// The caller is that user, and the reaper of `inner` runs.
    #[inline]
    pub(super) unsafe fn new(slot: &Slot<R::Handle>, inner: &Inner<R>) -> Self {
        Self {
            slot: NonNull::from(slot),
            inner: NonNull::from(inner),
        }
    }

    #[inline]
    pub(super) fn slot(&self) -> &Slot<R::Handle> {
        // SAFETY: see the module's docs.
        unsafe { self.slot.as_ref() }
    }

    #[inline]
    fn inner(&self) -> &Inner<R> {
        // SAFETY: see the module's docs.
        unsafe { self.inner.as_ref() }
    }

    /// What is registered: at least what was asked for.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        self.slot().range()
    }

    /// What it allows: at least what was asked for.
    #[must_use]
    pub fn access(&self) -> Access {
        self.slot().access()
    }

    /// Whether no event has told of a change of its memory. False: transfers still work, on pages that the program may see no more.
    ///
    /// Events of memory that was replaced in the cache, or never was in it, are not heard.
    #[must_use]
    pub fn is_current(&self) -> bool {
        !self.slot().has(STALE)
    }

    /// Whether it is, or was, in the cache; not registered for this use alone.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        !self.slot().has(UNCACHED)
    }

    /// Gives it back, and sees to it that nobody gets it any more. The future resolves when the last user is gone and it is deregistered.
    #[doc(alias = "ucs_rcache_region_invalidate")]
    pub fn invalidate(self) -> Released {
        let slot = self.slot();
        let flight = match forked() {
            // Deregistered by the parent, if ever.
            true => {
                let flight = Arc::new(Flight::new());
                flight.complete(());
                flight
            }
            false => {
                let address = self.slot.as_ptr().addr();
                let mut released = self.inner().released.lock();
                Arc::clone(
                    released
                        .entry(address)
                        .or_insert_with(|| Arc::new(Flight::new())),
                )
            }
        };
        let bytes = slot.range().len();
        if slot.mark_in_use() {
            self.inner().core.count_dead(bytes);
        }
        drop(self);
        Released::new(flight)
    }
}

impl<R: Registrar> Deref for Registration<R> {
    type Target = R::Handle;

    #[inline]
    fn deref(&self) -> &R::Handle {
        // SAFETY: a user of a Ready slot, as long as the borrow of `self` at least.
        unsafe { self.slot().handle() }
    }
}

impl<R: Registrar> Clone for Registration<R> {
    #[inline]
    fn clone(&self) -> Self {
        self.slot().share();
        Self {
            slot: self.slot,
            inner: self.inner,
        }
    }
}

impl<R: Registrar> Drop for Registration<R> {
    #[inline]
    fn drop(&mut self) {
        if self.slot().leave() {
            self.push_dead();
        }
    }
}

impl<R: Registrar> Registration<R> {
    /// The last user of a dead slot gave it back.
    #[cold]
    fn push_dead(&self) {
        if forked() {
            return;
        }
        // SAFETY: `Inner` is alive, and always in an `Arc`. The slot is not reaped before it is pushed, but perhaps at once after that, and then the
        // reaper may end: so a share for the rest of this function.
        let inner = unsafe {
            Arc::increment_strong_count(self.inner.as_ptr());
            Arc::from_raw(self.inner.as_ptr())
        };
        if inner.core.push_dead(self.slot()) {
            inner.bell.ring();
        }
    }
}

impl<R: Registrar> fmt::Debug for Registration<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("range", &self.range())
            .field("access", &self.access())
            .field("current", &self.is_current())
            .finish()
    }
}
