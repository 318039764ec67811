//! The hit, and the guard that it gives.
//!
//! # Safety
//! A guard counts as a user of its slot, so the slot keeps its handle, and is open: so the reaper runs, which holds `Inner` (`Inner::start_reaper` comes
//! before every first registration). Both pointers of a guard are valid for as long as it is.
#![allow(unsafe_code)]

use std::{fmt, ops::Deref, ptr::NonNull, sync::Arc};

use super::{
    Inner,
    flight::Flight,
    invalidate::Released,
    slot::{OWNED, STALE, Slot, UNCACHED},
};
use crate::{
    memory::{AddressRange, Registrar, Validity},
    sys::fork::forked,
    types::Access,
};

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
            self.bury();
        }
    }
}

impl<R: Registrar> Registration<R> {
    /// The last user of a dead slot gave it back.
    #[cold]
    fn bury(&self) {
        if forked() {
            return;
        }
        // SAFETY: `Inner` is alive, and always in an `Arc`. The slot is not reaped before it is pushed, but perhaps at once after that, and then the
        // reaper may end: so a share for the rest of this function.
        let inner = unsafe {
            Arc::increment_strong_count(self.inner.as_ptr());
            Arc::from_raw(self.inner.as_ptr())
        };
        if inner.core.bury(self.slot()) {
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

/// What a lookup found.
pub(super) enum Hit<R: Registrar> {
    Found(Registration<R>),
    None,
    /// One that an event may be on its way to.
    Busy,
}

impl<R: Registrar> Inner<R> {
    /// The hit.
    #[inline]
    pub(super) fn hit(&self, range: AddressRange, access: Access) -> Hit<R> {
        let Some((slot, owned)) = self.core.enter(range, access) else {
            return Hit::None;
        };
        // SAFETY: just counted as a user of a Ready slot; where there is one, the reaper was started.
        let registration = unsafe { Registration::new(slot, self) };
        let strict = self.strict && !owned;
        if strict && let Some(miss) = self.strict_check(&registration) {
            return miss;
        }
        self.stats.hit(strict);
        Hit::Found(registration)
    }

    /// Whether the memory of `registration` is certainly what was registered: every change before now was told, and none was of it.
    #[inline]
    pub(super) fn strict_check(&self, registration: &Registration<R>) -> Option<Hit<R>> {
        if self.monitor.validate() == Validity::Pending {
            self.count(&self.stats.stale_prevented);
            return Some(Hit::Busy);
        }
        match registration.slot().has(STALE) {
            true => Some(Hit::None),
            false => None,
        }
    }

    /// Whether the monitor must be asked about `registration`.
    pub(super) fn is_strict(&self, registration: &Registration<R>) -> bool {
        self.strict && !registration.slot().has(OWNED)
    }
}
