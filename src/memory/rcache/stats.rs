//! What a cache has done, counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::util::tally::Tally;

/// What a [`RegistrationCache`](super::RegistrationCache) has done so far, and what it holds now.
///
/// The numbers are read one after another while the cache works on: they may not add up to the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrationCacheStatistics {
    /// Requests: hits, and those that had to do or wait for something.
    pub gets: u64,
    /// Requests that a registration was there for.
    pub hits: u64,
    /// Those of them at which the monitor was asked whether an event is under way.
    pub strict_hits: u64,
    /// Requests that waited for a registration which another had begun.
    pub pending_waits: u64,
    /// Requests that began a registration to be kept.
    pub misses: u64,
    /// Those of them that took in the memory of older registrations.
    pub merges: u64,
    /// Registrations that the registrar made.
    pub registrations: u64,
    /// Bytes in them.
    pub registered_bytes: u64,
    /// Nanoseconds that they took.
    pub registration_ns: u64,
    /// Registrations that failed.
    pub registration_errors: u64,
    /// Registrations that were ended.
    pub deregistrations: u64,
    /// Those of them at which the registrar reported an error or panicked.
    pub deregistration_errors: u64,
    /// Registrations that an event made stale while nobody used them.
    pub invalidated_idle: u64,
    /// Registrations that an event made stale while they were in use or being made.
    pub invalidated_in_use: u64,
    /// Hits that would perhaps have been stale: the monitor said that an event was under way.
    pub stale_prevented: u64,
    /// Registrations given up to make room.
    pub evictions: u64,
    /// Requests registered for themselves alone.
    pub uncached: u64,
    /// Ranges that the monitor could not watch.
    pub watch_failures: u64,
    /// Registrations that wait to be deregistered, now.
    pub unreleased_regions: u64,
    /// Bytes in them.
    pub unreleased_bytes: u64,
    /// Registrations that are kept, now.
    pub regions: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// A [`RegistrationCache`](super::RegistrationCache) of this process and what it has done; by [`registration_caches`](crate::memory::registration_caches).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrationCacheMetrics {
    /// Name of its [`Registrar`](crate::memory::Registrar).
    pub registrar: &'static str,
    /// What it has done, and what it holds.
    pub statistics: RegistrationCacheStatistics,
}

macro_rules! counters {
    ($($name:ident),+ $(,)?) => {
        /// The counters off the hit path, and those on it.
        #[derive(Default)]
        pub(super) struct Stats {
            hits: Tally,
            $(pub(super) $name: AtomicU64,)+
        }

        impl Stats {
            /// All but what is held now.
            pub(super) fn read(&self) -> RegistrationCacheStatistics {
                let (plain, strict) = self.hits.sum();
                let mut now = RegistrationCacheStatistics {
                    hits: plain + strict,
                    strict_hits: strict,
                    $($name: self.$name.load(Relaxed),)+
                    ..Default::default()
                };
                now.gets += now.hits;
                now
            }
        }
    };
}

counters! {
    gets, pending_waits, misses, merges, registrations, registered_bytes, registration_ns, registration_errors, deregistrations,
    deregistration_errors, invalidated_idle, invalidated_in_use, stale_prevented, evictions, uncached, watch_failures,
}

impl Stats {
    #[inline]
    pub(super) fn hit(&self, strict: bool) {
        self.hits.add(strict);
    }
}
