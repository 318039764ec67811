//! What a cache may keep.

use std::{fs, sync::OnceLock};

use nix::sys::resource::{Resource, getrlimit};

use crate::types::text::words;

/// What happens to a request when everything that could be evicted is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OverLimit {
    /// It is registered for itself, and deregistered after its use.
    #[default]
    Uncached,
    /// It fails with [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted).
    Fail,
}

words! { OverLimit, "limit's policy": Uncached = "uncached", Fail = "fail" }

/// Limits and habits of a [`RegistrationCache`](super::RegistrationCache).
#[doc(alias = "ucs_rcache_params_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrationCacheOptions {
    /// Whether anything is kept. Off, each request registers for itself: the same behaviour, slower. Default: on.
    pub enabled: bool,
    /// Registrations that are kept, at most 2^20. Default: 4096.
    pub max_regions: usize,
    /// Bytes in registrations that are kept. Default: a quarter of the memory, or 0.8 of `RLIMIT_MEMLOCK` when that is less.
    pub max_bytes: u64,
    /// Bytes that may wait to be deregistered; with more, the next miss deregisters first. Default: 128 MiB.
    pub max_unreleased: u64,
    /// Registrations that overlap are merged while the union has no more than so many bytes; 0: never. Default: 64 MiB.
    pub merge_max: u64,
    /// Allocations of wharf's own are registered whole up to so many bytes. Default: 1 GiB.
    pub whole_allocation_max: u64,
    /// What happens over the limits. Default: uncached.
    pub over_limit: OverLimit,
}

impl Default for RegistrationCacheOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            max_regions: 4096,
            max_bytes: default_max_bytes(),
            max_unreleased: 128 << 20,
            merge_max: 64 << 20,
            whole_allocation_max: 1 << 30,
            over_limit: OverLimit::Uncached,
        }
    }
}

impl RegistrationCacheOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With another [`enabled`](Self::enabled).
    #[must_use]
    pub const fn enabled(mut self, yes: bool) -> Self {
        self.enabled = yes;
        self
    }

    /// With another [`max_regions`](Self::max_regions).
    #[must_use]
    pub const fn max_regions(mut self, regions: usize) -> Self {
        self.max_regions = regions;
        self
    }

    /// With another [`max_bytes`](Self::max_bytes).
    #[must_use]
    pub const fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// With another [`max_unreleased`](Self::max_unreleased).
    #[must_use]
    pub const fn max_unreleased(mut self, bytes: u64) -> Self {
        self.max_unreleased = bytes;
        self
    }

    /// With another [`merge_max`](Self::merge_max).
    #[must_use]
    pub const fn merge_max(mut self, bytes: u64) -> Self {
        self.merge_max = bytes;
        self
    }

    /// With another [`whole_allocation_max`](Self::whole_allocation_max).
    #[must_use]
    pub const fn whole_allocation_max(mut self, bytes: u64) -> Self {
        self.whole_allocation_max = bytes;
        self
    }

    /// With another [`over_limit`](Self::over_limit).
    #[must_use]
    pub const fn over_limit(mut self, what: OverLimit) -> Self {
        self.over_limit = what;
        self
    }
}

/// A quarter of the memory: for what `RLIMIT_MEMLOCK` does not count. Looked up once: defaults are asked for by every option of every context.
pub(crate) fn quarter_of_memory() -> u64 {
    static TOTAL: OnceLock<u64> = OnceLock::new();
    let total = TOTAL.get().copied().or_else(|| {
        let text = fs::read_to_string("/proc/meminfo").ok()?;
        memory_total(&text).map(|bytes| *TOTAL.get_or_init(|| bytes))
    });
    total.map_or(1 << 30, |bytes| bytes / 4)
}

/// A quarter of the memory, or four fifths of what this process may lock.
fn default_max_bytes() -> u64 {
    let quarter = quarter_of_memory();
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) => quarter.min(soft / 5 * 4),
        Err(_) => quarter,
    }
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn memory_total(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_of_the_memory() {
        assert_eq!(
            memory_total("MemTotal:       16 kB\nMemFree: 3 kB\n"),
            Some(16384)
        );
        for bad in [
            "",
            "MemTotal: 16",
            "MemTotal: x kB",
            "MemTotal: 99999999999999999999 kB",
        ] {
            assert_eq!(memory_total(bad), None, "{bad}");
        }
        assert!(default_max_bytes() > 0);
    }
}
