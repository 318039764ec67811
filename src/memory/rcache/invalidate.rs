//! Events in.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use super::inner::Inner;
use crate::{
    memory::{AddressRange, Cause, MemorySink, Registrar},
    sys::fork::forked,
};

/// The cache's ear.
pub(super) struct CacheSink<R: Registrar>(pub(super) Arc<Inner<R>>);

impl<R: Registrar> MemorySink for CacheSink<R> {
    fn invalidate(&self, range: AddressRange, _: Cause) {
        self.0.event(range);
    }

    fn uses(&self, range: AddressRange) -> bool {
        !forked() && self.0.core.is_in_use(range)
    }
}

impl<R: Registrar> Inner<R> {
    /// The memory of `range` changed or is about to. No lock, no allocation, no wait.
    pub(super) fn event(&self, range: AddressRange) {
        if forked() {
            return;
        }
        let met = self.core.invalidate(range);
        if met.idle > 0 {
            self.stats.invalidated_idle.fetch_add(met.idle, Relaxed);
        }
        if met.in_use > 0 {
            self.stats.invalidated_in_use.fetch_add(met.in_use, Relaxed);
        }
        if met.ring {
            self.bell.ring();
        }
    }
}
