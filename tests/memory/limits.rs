//! What a cache holds at most, when it gives it back, and what it refuses.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

use wharf::{
    Access, Error, ErrorKind, Result,
    memory::{
        AddressRange, EventClasses, HostBufferMut, NoMonitor, OverLimit, Registrar,
        RegistrarAttributes, RegistrationCache, RegistrationCacheOptions, Timing,
    },
};

use crate::{
    fakes::{BOTH, READ, Space, block_on, fakes, fakes_with, roomy},
    support::{FakeMonitor, FakeRegistrar, LIMIT, again, is_alone, passes, this_test, watchdog},
};

#[tokio::test]
async fn many_regions_under_a_small_limit() {
    let options = roomy().max_regions(8).max_unreleased(64 * 4096);
    let (cache, registrar, _) = fakes(options);
    let space = Space::new();
    let rounds = if cfg!(debug_assertions) {
        20_000
    } else {
        100_000
    };
    for round in 0..rounds {
        let get = cache.get(space.pages(round % 50_000 * 2, 1), READ);
        drop(get.await.expect("registered"));
        let now = cache.statistics();
        assert!(now.regions <= 8 && now.bytes <= 8 * 4096, "{now:?}");
        // One miss deregisters before the next, so a batch that the reaper has taken may lie above.
        assert!(now.unreleased_bytes <= 2 * 66 * 4096, "{now:?}");
    }
    watchdog(LIMIT, cache.flush()).await;
    let now = cache.statistics();
    assert_eq!(
        (now.regions, now.unreleased_regions, now.unreleased_bytes),
        (0, 0, 0)
    );
    assert_eq!(
        (registrar.registered(), registrar.deregistered()),
        (rounds, rounds)
    );
    assert!(
        registrar.most_live() <= 8 + 2 * 66,
        "{}",
        registrar.most_live()
    );
}

/// Where a Gaudi 2 has its memory, and where hosts whose addresses have 48 bits have theirs.
#[tokio::test]
async fn high_addresses_are_kept() {
    for start in [0x1001_0018_0000_0000, (1 << 48) - (1 << 30)] {
        let (cache, registrar, _) = fakes(roomy());
        let range = AddressRange::new(start, 4096).expect("a range");
        for _ in 0..3 {
            let get = cache.get_owned(range, range, READ).await;
            assert!(get.expect("registered").is_cached());
        }
        assert_eq!(registrar.registered(), 1);
        cache.invalidate(range);
        assert!(cache.lookup(range, READ).is_none());
    }
}

#[tokio::test]
async fn the_clock_spares_what_is_used() {
    let (cache, registrar, _) = fakes(roomy().max_regions(4));
    let space = Space::new();
    let often = space.pages(0, 1);
    for round in 1..50 {
        drop(cache.get(often, READ).await.expect("registered"));
        drop(
            cache
                .get(space.pages(2 * round, 1), READ)
                .await
                .expect("registered"),
        );
    }
    // The hand passes now and then between two uses; a cache without the clock would lose it every third time.
    let now = cache.statistics();
    assert!(now.hits >= 30, "{now:?}");
    assert_eq!(now.registrations, registrar.registered());
}

#[tokio::test]
async fn bytes_are_limited_and_what_is_in_use_stays() {
    let (cache, registrar, _) = fakes(roomy().max_bytes(10 * 4096));
    let space = Space::new();
    let held = cache
        .get(space.pages(0, 6), READ)
        .await
        .expect("registered");
    drop(
        cache
            .get(space.pages(10, 3), READ)
            .await
            .expect("registered"),
    );
    drop(
        cache
            .get(space.pages(20, 4), READ)
            .await
            .expect("registered"),
    );
    let now = cache.statistics();
    assert_eq!((now.evictions, now.regions, now.bytes), (1, 2, 10 * 4096));
    assert!(held.is_current() && cache.lookup(space.pages(0, 6), READ).is_some());
    // 6 in use, 5 do not fit beside it: for itself.
    let alone = cache
        .get(space.pages(30, 5), READ)
        .await
        .expect("registered");
    assert!(!alone.is_cached() && cache.lookup(space.pages(30, 5), READ).is_none());
    // More than all of it, too.
    let big = cache
        .get(space.pages(40, 11), READ)
        .await
        .expect("registered");
    assert!(!big.is_cached());
    let before = registrar.deregistered();
    drop((alone, big));
    registrar.wait_deregistered(before + 2);
    assert_eq!(cache.statistics().uncached, 2);
}

#[tokio::test]
async fn over_the_limit_can_be_an_error() {
    let options = roomy().max_regions(1).over_limit(OverLimit::Fail);
    let (cache, registrar, _) = fakes(options);
    let space = Space::new();
    let held = cache
        .get(space.pages(0, 1), READ)
        .await
        .expect("registered");
    let error = cache.get(space.pages(5, 1), READ).await.expect_err("full");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert_eq!(registrar.calls(), 1);
    drop(held);
    drop(
        cache
            .get(space.pages(5, 1), READ)
            .await
            .expect("room again"),
    );
}

#[tokio::test]
async fn switched_off_it_does_the_same_slower() {
    for options in [
        roomy().enabled(false),
        roomy().max_regions(0),
        roomy().max_bytes(0),
    ] {
        let (cache, registrar, _) = fakes(options);
        let range = Space::new().pages(0, 2);
        for round in 1..=3 {
            let registration = cache.get(range, BOTH).await.expect("registered");
            assert_eq!((registration.number, registration.range()), (round, range));
            let more = registration.clone();
            drop(registration);
            assert_eq!(more.access(), BOTH);
        }
        registrar.wait_deregistered(3);
        assert_eq!(
            (registrar.live().len(), cache.statistics().uncached),
            (0, 3)
        );
    }
}

#[tokio::test]
async fn without_a_monitor_only_owned_memory_is_kept() {
    let some = EventClasses::all().difference(EventClasses::DISCARD);
    let monitors: [Arc<dyn wharf::memory::MemoryMonitor>; 2] = [
        Arc::new(NoMonitor),
        Arc::new(FakeMonitor::with_classes(Timing::After, some)),
    ];
    for monitor in monitors {
        let registrar = FakeRegistrar::new();
        let cache =
            RegistrationCache::new(registrar.clone(), monitor.clone(), roomy()).expect("a cache");
        let space = Space::new();
        for _ in 0..2 {
            let foreign = cache
                .get(space.pages(0, 1), READ)
                .await
                .expect("registered");
            assert!(!foreign.is_cached());
        }
        // The whole allocation, and its parts are hits; without a question to the monitor.
        let whole = space.pages(10, 8);
        for part in 0..8 {
            let owned = cache
                .get_owned(space.pages(10 + part, 1), whole, BOTH)
                .await
                .expect("registered");
            assert!(owned.is_cached() && owned.range() == whole);
        }
        assert_eq!(registrar.calls(), 3);
        let now = cache.statistics();
        assert_eq!((now.hits, now.strict_hits), (7, 0));
        cache.invalidate(space.pages(12, 1));
        assert!(cache.lookup(space.pages(10, 1), READ).is_none());

        // A registrar that needs no events keeps everything.
        let registrar =
            FakeRegistrar::with_attributes(RegistrarAttributes::default().pins_pages(false));
        let cache = RegistrationCache::new(registrar.clone(), monitor, roomy()).expect("a cache");
        for _ in 0..3 {
            drop(
                cache
                    .get(space.pages(50, 1), READ)
                    .await
                    .expect("registered"),
            );
        }
        assert_eq!(registrar.calls(), 1);
    }
}

#[tokio::test]
async fn allocations_are_registered_whole_up_to_a_length() {
    let (cache, _, _) = fakes(roomy().whole_allocation_max(16 * 4096));
    let space = Space::new();
    let small = cache
        .get_owned(space.pages(1, 1), space.pages(0, 16), READ)
        .await
        .expect("registered");
    assert_eq!(small.range(), space.pages(0, 16));
    let part = cache
        .get_owned(space.pages(31, 2), space.pages(30, 17), READ)
        .await
        .expect("registered");
    assert_eq!(part.range(), space.pages(31, 2));
    let error = cache
        .get_owned(space.pages(99, 2), space.pages(100, 4), READ)
        .await
        .expect_err("outside");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn what_cannot_be_watched_is_not_kept() {
    let (cache, registrar, monitor) = fakes(roomy());
    let space = Space::new();
    drop(
        cache
            .get(space.pages(0, 1), READ)
            .await
            .expect("registered"),
    );
    assert_eq!(monitor.watched(), [space.pages(0, 1)]);
    monitor.refuse();
    let registration = cache
        .get(space.pages(5, 1), READ)
        .await
        .expect("registered");
    assert!(!registration.is_cached() && cache.lookup(space.pages(5, 1), READ).is_none());
    assert_eq!(
        (cache.statistics().watch_failures, registrar.calls()),
        (1, 2)
    );
}

#[test]
fn guards_outlive_the_cache() {
    let (cache, registrar, monitor) = fakes(roomy());
    let space = Space::new();
    let get = |page| block_on(cache.get(space.pages(page, 1), READ)).expect("registered");
    let (first, second) = (get(0), get(2));
    drop(get(4));
    drop(cache);
    registrar.wait_deregistered(1);
    assert_eq!((first.number, second.range()), (1, space.pages(2, 1)));
    // Nobody listens any more, and nothing happens.
    monitor.change(space.pages(0, 10));
    let clone = first.clone();
    drop(first);
    let other = thread::spawn(move || drop(second));
    other.join().expect("no panic");
    registrar.wait_deregistered(2);
    assert_eq!((registrar.live().len(), clone.number), (1, 1));
    drop(clone);
    registrar.wait_deregistered(3);
    // The reaper has let go of the registrar, too.
    while registrar.shares() > 1 {
        thread::yield_now();
    }
}

#[tokio::test]
async fn a_cache_that_nobody_uses_ends_without_a_thread() {
    let (cache, registrar, _) = fakes(roomy());
    drop(cache);
    assert_eq!(registrar.shares(), 1);
}

#[tokio::test]
async fn flush_takes_what_is_idle() {
    let (cache, registrar, _) = fakes(roomy());
    let space = Space::new();
    for page in 0..100 {
        drop(
            cache
                .get(space.pages(2 * page, 1), READ)
                .await
                .expect("registered"),
        );
    }
    let held = cache.get(space.pages(0, 1), READ).await.expect("a hit");
    watchdog(LIMIT, cache.flush()).await;
    assert_eq!(registrar.live(), [(space.pages(0, 1), READ)]);
    assert_eq!(cache.statistics().regions, 1);
    drop(held);
    watchdog(LIMIT, cache.flush()).await;
    assert_eq!(registrar.live(), []);
}

#[tokio::test]
async fn a_registrar_that_cannot_deregister_is_counted() {
    let (cache, registrar, _) = fakes(roomy());
    registrar.fail_deregister();
    drop(
        cache
            .get(Space::new().pages(0, 1), READ)
            .await
            .expect("registered"),
    );
    watchdog(LIMIT, cache.flush()).await;
    let now = cache.statistics();
    assert_eq!((now.deregistrations, now.deregistration_errors), (1, 1));
}

/// In a process of its own: all caches of a process hear of events, and what is asked amid so many is
/// not remembered.
#[tokio::test]
async fn events_without_transfers_leave_nothing_behind() {
    if !is_alone() {
        return passes(&mut again(this_test!()));
    }
    let (cache, registrar, monitor) = fakes(roomy().max_unreleased(1 << 20));
    let space = Space::new();
    let rounds = if cfg!(debug_assertions) {
        20_000
    } else {
        1_000_000
    };
    drop(
        cache
            .get(space.pages(0, 1), READ)
            .await
            .expect("registered"),
    );
    for round in 0..rounds {
        monitor.change(space.pages(round % 1000, 64));
    }
    watchdog(LIMIT, cache.flush()).await;
    assert_eq!((registrar.registered(), registrar.deregistered()), (1, 1));
    assert_eq!(cache.statistics().invalidated_idle, 1);
}

#[tokio::test]
async fn bad_input() {
    let attributes = RegistrarAttributes::default()
        .max_length(8 * 4096)
        .alignment(16384);
    let (cache, registrar, _) = fakes_with(
        FakeRegistrar::with_attributes(attributes),
        Timing::Before,
        roomy(),
    );
    let refused = |range: AddressRange| {
        let cache = cache.clone();
        async move {
            let error = cache.get(range, READ).await.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    };
    let space = Space::new();
    refused(space.pages(0, 0)).await;
    refused(space.pages(0, 9)).await;
    refused(AddressRange::new(u64::MAX - 100, 100).expect("a range")).await;
    assert_eq!(registrar.calls(), 0);
    // Across a border of what the index keeps apart: not kept.
    let high = AddressRange::new((1 << 50) - 50, 100).expect("a range");
    let registration = cache.get(high, READ).await.expect("registered");
    assert_eq!(
        (registration.is_cached(), registration.range().len()),
        (false, 2 * 16384)
    );
    cache.invalidate(AddressRange::new(0, u64::MAX).expect("a range"));
    cache.invalidate(AddressRange::new(1 << 50, 0).expect("a range"));

    let odd = FakeRegistrar::with_attributes(RegistrarAttributes::default().alignment(3000));
    let error = RegistrationCache::new(odd, Arc::new(NoMonitor), RegistrationCacheOptions::new())
        .expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn polled_after_its_end() {
    let (cache, _, _) = fakes(roomy());
    let mut get = cache.get(Space::new().pages(0, 1), READ);
    drop((&mut get).await.expect("registered"));
    assert_eq!(
        (&mut get).await.expect_err("over").kind(),
        ErrorKind::Closed
    );
}

/// A buffer of wharf's own says that it goes, whatever monitor there is: what is mapped at its place next is another's.
#[tokio::test]
async fn a_freed_buffer_leaves_no_registration() {
    let registrar = FakeRegistrar::new();
    let cache =
        RegistrationCache::new(registrar.clone(), Arc::new(NoMonitor), roomy()).expect("a cache");
    let buffer = HostBufferMut::allocate(10 * 4096).expect("memory");
    let whole = AddressRange::of(&buffer);
    drop(
        cache
            .get_owned(whole, whole, BOTH)
            .await
            .expect("registered"),
    );
    assert!(cache.lookup(whole, READ).is_some());
    let shared = buffer.freeze();
    let clone = shared.clone();
    drop(shared);
    assert!(cache.lookup(whole, READ).is_some(), "a clone holds it");
    drop(clone);
    assert!(cache.lookup(whole, READ).is_none());
    registrar.wait_deregistered(1);
    assert_eq!(cache.statistics().invalidated_idle, 1);
}

/// Where a registrar rounds to more than pages, memory of others comes along, which does not go away together with the allocation.
#[tokio::test]
async fn a_registration_that_reaches_beyond_its_allocation_needs_events() {
    let attributes = RegistrarAttributes::default().alignment(16 * 4096);
    let registrar = FakeRegistrar::with_attributes(attributes);
    let cache = RegistrationCache::new(registrar, Arc::new(NoMonitor), roomy()).expect("a cache");
    let space = Space::new();
    for (whole, kept) in [(space.pages(32, 16), true), (space.pages(64, 15), false)] {
        let owned = cache
            .get_owned(whole, whole, BOTH)
            .await
            .expect("registered");
        assert_eq!((owned.is_cached(), owned.range().len()), (kept, 16 * 4096));
    }
}

/// A panic in a waker, which runs in the cache's thread, ends neither the thread nor what guards rely on.
#[tokio::test]
async fn a_waker_that_panics() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new("on purpose: in a waker"));
        }
    }
    let (cache, registrar, _) = fakes(roomy());
    let space = Space::new();
    for round in 0..3 {
        let get = cache.get(space.pages(round, 1), READ);
        let held = get.await.expect("registered");
        let mut released = Box::pin(held.clone().invalidate());
        let waker = Waker::from(Arc::new(Panics));
        assert!(
            released
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        drop(held);
        registrar.wait_deregistered(round + 1);
    }
    let held = cache
        .get(space.pages(9, 1), READ)
        .await
        .expect("registered");
    drop(cache);
    drop(held);
    registrar.wait_deregistered(4);
}

/// Holds one registration at a time, and ends it when another was refused, or nobody asks for one.
#[derive(Default)]
struct Tight(Mutex<bool>, AtomicBool, Condvar);

impl Registrar for Tight {
    type Handle = ();

    fn name(&self) -> &'static str {
        "tight"
    }

    fn register(&self, _: AddressRange, _: Access) -> Result<()> {
        match std::mem::replace(&mut *self.0.lock(), true) {
            true => {
                self.2.notify_all();
                Err(Error::new(ErrorKind::Exhausted, "one is all there is"))
            }
            false => Ok(()),
        }
    }

    fn deregister(&self, (): (), _: AddressRange) -> Result<()> {
        let mut held = self.0.lock();
        self.1.store(true, Ordering::SeqCst);
        self.2.wait_for(&mut held, Duration::from_millis(100));
        *held = false;
        Ok(())
    }
}

/// What the cache's thread is about to give back at this moment is room too.
#[tokio::test]
async fn a_registration_waits_for_one_that_ends() {
    let monitor = Arc::new(FakeMonitor::new(Timing::Before));
    let cache = RegistrationCache::new(Tight::default(), monitor, roomy()).expect("a cache");
    let space = Space::new();
    for round in 0..10 {
        let range = space.pages(round, 1);
        drop(cache.get(range, READ).await.expect("room for one"));
        cache.registrar().1.store(false, Ordering::SeqCst);
        cache.invalidate(range);
        while !cache.registrar().1.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    }
}
