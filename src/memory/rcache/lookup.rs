//! The hit.
//!
//! # Safety
//! What `Core::enter` gives is a slot that is Ready, with the caller as one more user of it; where there is one, the reaper was started.
#![allow(unsafe_code)]

use super::{
    inner::{Inner, Registration},
    slot::{OWNED, STALE},
};
use crate::{
    memory::{AddressRange, Registrar, Validity},
    types::Access,
};

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
