//! The registration cache as one of the tables. Its registrar registers nothing, and the monitor has nothing to see: the addresses are numbers.
//!
//! # Safety
//! No memory is at the addresses, so no change of it goes unseen.
#![allow(unsafe_code)]

use std::{pin::pin, sync::Arc};

use futures::FutureExt;
use wharf::{
    Access, Result,
    memory::{
        AddressRange, EventClasses, MemoryMonitor, Registrar, RegistrationCache,
        RegistrationCacheOptions, Timing, Validity,
    },
};

use crate::tables::{Table, region, table};

pub(crate) struct Nothing;

impl Registrar for Nothing {
    type Handle = u64;

    fn name(&self) -> &'static str {
        "nothing"
    }

    fn register(&self, range: AddressRange, _: Access) -> Result<u64> {
        Ok(range.start())
    }

    fn deregister(&self, _: u64, _: AddressRange) -> Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Quiet;

// SAFETY: see the chapter above.
unsafe impl MemoryMonitor for Quiet {
    fn name(&self) -> &'static str {
        "quiet"
    }

    fn timing(&self) -> Timing {
        Timing::Before
    }

    fn classes(&self) -> EventClasses {
        EventClasses::all()
    }

    fn watch(&self, _: AddressRange) -> Result<()> {
        Ok(())
    }

    fn unwatch(&self, _: AddressRange) {}

    fn validate(&self) -> Validity {
        Validity::Valid
    }
}

type Cache = RegistrationCache<Nothing>;

fn cache(regions: u64) -> Cache {
    let options = RegistrationCacheOptions::default()
        .max_regions(2_000_000)
        .max_bytes(1 << 46);
    let cache = RegistrationCache::new(Nothing, Arc::new(Quiet), options).expect("a cache");
    for index in 0..regions {
        drop(block_on(cache.get(range(index), Access::READ)).expect("a registration"));
    }
    cache
}

fn range(index: u64) -> AddressRange {
    let (start, end) = region(index);
    AddressRange::new(start, end - start).expect("a range")
}

/// Polls once, and only if that is not enough enters a runtime.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    if let Some(output) = future.as_mut().now_or_never() {
        return output;
    }
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// 64 bytes, as of a small message.
fn at(address: u64) -> AddressRange {
    AddressRange::new(address, 64).expect("a range")
}

fn churn(cache: &Cache, index: u64) {
    cache.invalidate(range(index));
    drop(block_on(cache.get(range(index), Access::READ)).expect("a registration"));
}

/// The hit that does not wait: looks up, counts itself as a user, and gives it back.
pub(crate) struct Lookup(Cache);

impl Lookup {
    pub(crate) fn new(regions: u64) -> Self {
        Self(cache(regions))
    }
}

table!(
    Lookup,
    this,
    |address| this.0.lookup(at(address), Access::READ).is_some(),
    |index| churn(&this.0, index)
);

/// The same by the future, polled once.
pub(crate) struct Get(Cache);

impl Get {
    pub(crate) fn new(regions: u64) -> Self {
        Self(cache(regions))
    }
}

table!(
    Get,
    this,
    |address| {
        let got = this.0.get(at(address), Access::READ).now_or_never();
        got.is_some_and(|got| got.is_ok())
    },
    |index| churn(&this.0, index)
);
