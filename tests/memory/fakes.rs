//! A registration cache over a fake registrar and a fake monitor, and what drives its futures.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use wharf::{
    Access,
    memory::{AddressRange, RegistrationCache, RegistrationCacheOptions, Timing},
};

use crate::support::{FakeMonitor, FakeRegistrar, LIMIT};

pub(crate) const READ: Access = Access::READ;
pub(crate) const BOTH: Access = Access::all();

/// Addresses that no other test uses and nothing is mapped at: events reach every cache of the process.
pub(crate) struct Space(u64);

impl Space {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1 << 12);
        Self(NEXT.fetch_add(1, Ordering::Relaxed) << 32)
    }

    /// So many pages from page `first` on.
    pub(crate) fn pages(&self, first: u64, count: u64) -> AddressRange {
        AddressRange::new(self.0 + first * 4096, count * 4096).expect("a range")
    }
}

/// A cache over fakes, that sees everything before it happens.
pub(crate) fn fakes(
    options: RegistrationCacheOptions,
) -> (RegistrationCache<FakeRegistrar>, FakeRegistrar, FakeMonitor) {
    fakes_with(FakeRegistrar::new(), Timing::Before, options)
}

pub(crate) fn fakes_with(
    registrar: FakeRegistrar,
    timing: Timing,
    options: RegistrationCacheOptions,
) -> (RegistrationCache<FakeRegistrar>, FakeRegistrar, FakeMonitor) {
    let monitor = FakeMonitor::new(timing);
    let cache = RegistrationCache::new(registrar.clone(), Arc::new(monitor.clone()), options)
        .expect("a cache");
    (cache, registrar, monitor)
}

/// Limits that no test reaches by accident, on any machine.
pub(crate) fn roomy() -> RegistrationCacheOptions {
    RegistrationCacheOptions::new().max_bytes(1 << 40)
}

/// Runs a future in this thread, without a runtime. Not longer than `LIMIT`.
#[track_caller]
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, end) = (pin!(future), Instant::now() + LIMIT);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        assert!(Instant::now() < end, "watchdog: the future does not end");
        thread::park_timeout(Duration::from_secs(1));
    }
}
