//! The registration cache: memory that was registered once stays registered while it is what it was (UCX's `ucs_rcache`).
//!
//! ```text
//!  get ──▶ index ──▶ slot ──▶ Registration          a hit: no lock, no allocation, no system call (one, under a monitor that tells afterwards)
//!    └──▶ miss: Pending in the index, watched, registered, committed; others who want the same wait for it
//!  a memory event ──▶ index ──▶ slot: stale ──▶ dead stack ──▶ reaper: deregistered        when the last user is gone
//! ```
//!
//! Comes in: a [`Registrar`], a [`MemoryMonitor`], limits. Goes out: [`Registration`]s. Uses `memory::radix`, `memory::events`, `sys`, `util`.
//!
//! | file | holds |
//! |---|---|
//! | `slot` | a registration's state in one word, the slots, the dead stack |
//! | `core` | index, slots and dead stack together; events |
//! | `inner` | what lives as long as anything of the cache does, and the guard |
//! | `lookup` | the hit |
//! | `miss` | `get`: joining, opening, replacing, the job that registers, room |
//! | `flight` | what several futures wait for, [`Released`] |
//! | `invalidate` | events in |
//! | `reaper` | the thread that deregisters |
//! | `handle` | what all clones share: its end is the cache's |
//! | `options`, `stats` | limits, counters |
//! | `models` | every interleaving of small scenes, under `loom` |
//!
//! Tests: beside slots and options, `models.rs`, and `tests/memory/{model,single_flight,limits,merge}.rs`.
//!
//! # What is believed
//! Memory that the caller of [`get`](RegistrationCache::get) names stays allocated until its registration is dropped. Events are needed for what
//! happens after that. With registrars that align to more than the system's pages, and when registrations merge, a registration holds
//! memory of others too; a monitor that tells before the change covers that when it is part of an older registration, see `core`.

mod core;
mod flight;
mod handle;
mod inner;
mod invalidate;
mod lookup;
mod miss;
#[cfg(all(test, wharf_loom))]
mod models;
mod options;
mod reaper;
mod slot;
mod stats;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

pub(crate) use self::options::quarter_of_memory;
use self::{
    core::Core,
    handle::Handle,
    inner::{Inner, Table},
    invalidate::CacheSink,
    lookup::Hit,
    miss::Request,
    stats::Stats,
};
pub use self::{
    flight::Released,
    inner::Registration,
    miss::GetRegistration,
    options::{OverLimit, RegistrationCacheOptions},
    stats::{RegistrationCacheMetrics, RegistrationCacheStatistics},
};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::{AddressRange, MemoryMonitor, Registrar, radix, subscribe},
    sys::{eventfd::EventFd, fork},
    types::Access,
    util::lock::Mutex,
};

/// Keeps registrations of memory for who asks again, as long as the memory is what it was.
///
/// A clone is the same cache. Shared by any number of threads; nobody waits for anybody on a hit. When the last clone is dropped, what is idle is
/// deregistered, and what is in use when its last [`Registration`] is dropped.
///
/// Memory of unknown owners (a `Vec`, a raw address) is kept only when the [monitor](MemoryMonitor) sees every way in which it can go away, or
/// the registrar needs no events; otherwise each request is registered for itself. Memory that wharf owns is always kept.
#[doc(alias = "ucs_rcache_t")]
pub struct RegistrationCache<R: Registrar>(Arc<Handle<R>>);

/// Leads to a cache for as long as somebody has it.
pub(crate) struct WeakRegistrationCache<R: Registrar>(Weak<Handle<R>>);

impl<R: Registrar> WeakRegistrationCache<R> {
    /// To none.
    pub(crate) const fn new() -> Self {
        Self(Weak::new())
    }

    pub(crate) fn upgrade(&self) -> Option<RegistrationCache<R>> {
        self.0.upgrade().map(RegistrationCache)
    }
}

impl<R: Registrar> Clone for RegistrationCache<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R: Registrar> RegistrationCache<R> {
    /// A cache before `registrar`, that hears of memory from `monitor`.
    ///
    /// # Errors
    /// `InvalidArgument`: the registrar's alignment is no power of two. `Exhausted`: no file descriptor, or 256 caches listen already. `Forked`: in a child made by `fork`.
    #[doc(alias = "ucs_rcache_create")]
    pub fn new(
        registrar: R,
        monitor: Arc<dyn MemoryMonitor>,
        options: RegistrationCacheOptions,
    ) -> Result<Self> {
        // Asked once now, so that events may ask it.
        fork::check(Operation::Memory)?;
        let attributes = registrar.attributes();
        if !attributes.alignment.is_power_of_two() {
            let text = format!("an alignment of {} bytes", attributes.alignment);
            return Err(Error::new(ErrorKind::InvalidArgument, text).during(Operation::Memory));
        }
        let bell = EventFd::new()
            .map_err(|error| Error::io("an eventfd for the registration cache", error))?;
        let most = options.max_regions.min(MAX_REGIONS);
        let inner = Arc::new(Inner {
            // As many again may be dead and in use, or wait to be deregistered.
            core: Core::new(2 * most + 64),
            strict: attributes.pins_pages && monitor.is_asked_at_each_use(),
            keeps_foreign: !attributes.pins_pages || monitor.classes().covers_foreign_memory(),
            alignment: attributes.alignment.max(radix::PAGE),
            attributes,
            max_regions: most as u64,
            options,
            table: Mutex::new(Table::default()),
            stats: Stats::default(),
            bell,
            live: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            reaper: Mutex::new(false),
            released: Mutex::new(HashMap::new()),
            drained: Mutex::new(Vec::new()),
            monitor,
            registrar,
        });
        let subscription = subscribe(Arc::new(CacheSink(Arc::clone(&inner))))?;
        let observed: Arc<dyn Observed> = inner.clone();
        let mut caches = CACHES.lock();
        caches.retain(|cache| cache.strong_count() > 0);
        caches.push(Arc::downgrade(&observed));
        drop(caches);
        Ok(Self(Arc::new(Handle {
            inner,
            subscription: Some(subscription),
        })))
    }

    /// Leads to it without keeping it.
    pub(crate) fn downgrade(&self) -> WeakRegistrationCache<R> {
        WeakRegistrationCache(Arc::downgrade(&self.0))
    }

    /// A registration that covers `range` and allows `access`, found or made.
    ///
    /// A hit is taken at the call. Otherwise the first poll begins a registration, or joins one that covers the request. Ranges up to the
    /// registrar's [`inline_max`](super::RegistrarAttributes::inline_max) are registered in that poll, longer ones in a thread that may block.
    ///
    /// # Cancel safety
    /// Cancel safe. A registration that was begun goes on, for the others who wait and for later.
    ///
    /// # Errors
    /// `InvalidArgument`: no bytes, or more than the registrar takes. `Exhausted`: the limits, with [`OverLimit::Fail`]. `Forked`: in a child made by
    /// `fork`. And what the registrar says; it is told to everyone who waited for the same range.
    #[doc(alias = "ucs_rcache_get")]
    #[inline]
    pub fn get(&self, range: AddressRange, access: Access) -> GetRegistration<R> {
        match self.lookup(range, access) {
            Some(registration) => GetRegistration::hit(registration),
            None => GetRegistration::miss(&self.0, Request::foreign(range, access)),
        }
    }

    /// As [`get`](Self::get), for memory that wharf owns: `range` is a part of the allocation `whole`, all of which is registered unless it is longer than
    /// [`whole_allocation_max`](RegistrationCacheOptions::whole_allocation_max). Needs no monitor: the owner calls
    /// [`invalidate`](Self::invalidate) before it frees the memory.
    ///
    /// # Cancel safety
    /// As [`get`](Self::get).
    ///
    /// # Errors
    /// As [`get`](Self::get), and `InvalidArgument` when `range` leaves `whole`.
    pub fn get_owned(
        &self,
        range: AddressRange,
        whole: AddressRange,
        access: Access,
    ) -> GetRegistration<R> {
        match self.lookup(range, access) {
            Some(registration) => GetRegistration::hit(registration),
            None => GetRegistration::miss(&self.0, Request::owned(range, whole, access)),
        }
    }

    /// A registration that covers `range` and allows `access`, if there is one now. Takes no lock and allocates nothing. None says nothing: [`get`](Self::get)
    /// may find one a moment later.
    #[inline]
    pub fn lookup(&self, range: AddressRange, access: Access) -> Option<Registration<R>> {
        if fork::forked() {
            return None;
        }
        match self.0.inner.hit(range, access) {
            Hit::Found(registration) => Some(registration),
            Hit::None | Hit::Busy => None,
        }
    }

    /// The memory of `range` goes away or has changed: no registration that holds a part of it is given out any more. What a monitor's event does.
    pub fn invalidate(&self, range: AddressRange) {
        self.0.inner.event(range);
    }

    /// What it has done, and what it holds. Nothing, in a child made by `fork`.
    #[must_use]
    pub fn statistics(&self) -> RegistrationCacheStatistics {
        if fork::forked() {
            return RegistrationCacheStatistics::default();
        }
        self.0.inner.statistics()
    }

    /// Gives up everything that nobody uses, and waits until nothing waits to be deregistered.
    ///
    /// # Cancel safety
    /// Cancel safe. What was given up is deregistered all the same.
    pub async fn flush(&self) {
        if fork::forked() {
            return;
        }
        self.0.inner.evict_idle();
        self.0.inner.drained().await;
    }

    /// The registrar.
    #[must_use]
    pub fn registrar(&self) -> &R {
        &self.0.inner.registrar
    }

    /// The limits.
    #[must_use]
    pub fn options(&self) -> &RegistrationCacheOptions {
        &self.0.inner.options
    }
}

impl<R: Registrar> fmt::Debug for RegistrationCache<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrationCache")
            .field("registrar", &self.0.inner.registrar.name())
            .field("monitor", &self.0.inner.monitor)
            .finish_non_exhaustive()
    }
}

/// More regions than this are not kept, whatever the options say.
const MAX_REGIONS: usize = 1 << 20;

/// The caches of this process.
static CACHES: Mutex<Vec<Weak<dyn Observed>>> = Mutex::new(Vec::new());

/// A cache, whatever its registrar.
trait Observed: Send + Sync {
    /// `None` once no handle is left.
    fn observe(&self) -> Option<RegistrationCacheMetrics>;
}

impl<R: Registrar> Observed for Inner<R> {
    fn observe(&self) -> Option<RegistrationCacheMetrics> {
        (!self.closed.load(Ordering::Relaxed)).then(|| RegistrationCacheMetrics {
            registrar: self.registrar.name(),
            statistics: self.statistics(),
        })
    }
}

/// The registration caches of this process, the program's and those of transports and devices, and what they have done. None in a child made by
/// `fork`.
#[must_use]
pub fn registration_caches() -> Vec<RegistrationCacheMetrics> {
    if fork::forked() {
        return Vec::new();
    }
    let caches: Vec<_> = CACHES.lock().iter().filter_map(Weak::upgrade).collect();
    caches.iter().filter_map(|cache| cache.observe()).collect()
}
