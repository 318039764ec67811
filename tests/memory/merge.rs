//! UCX's list of behaviours (`test_rcache.cc`) one to one, then what else may happen when registrations overlap or their memory changes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    thread,
};

use wharf::{
    Access, Error, ErrorKind,
    memory::{RegistrarAttributes, Timing},
};

use crate::{
    fakes::{BOTH, READ, Space, block_on, fakes, fakes_with, roomy},
    support::{FakeRegistrar, LIMIT, watchdog},
};

const WRITE: Access = Access::WRITE;

#[tokio::test]
async fn basic() {
    let (cache, registrar, _) = fakes(roomy());
    let range = Space::new().pages(0, 10);
    let first = cache.get(range, READ).await.expect("registered");
    let again = cache.get(range, READ).await.expect("a hit");
    assert_eq!((first.number, again.number, registrar.calls()), (1, 1, 1));
    drop((first, again));
    assert_eq!(cache.lookup(range, READ).expect("still there").number, 1);
    let now = cache.statistics();
    assert_eq!(
        (now.gets, now.hits, now.misses, now.registrations),
        (3, 2, 1, 1)
    );
    assert_eq!(
        (now.regions, now.bytes, now.registered_bytes),
        (1, 40960, 40960)
    );
}

#[tokio::test]
async fn get_unmapped() {
    // Memory that goes away and comes back at its address is registered anew, used or not.
    let (cache, registrar, monitor) = fakes(roomy());
    let range = Space::new().pages(0, 10);
    for round in 1..4 {
        let registration = cache.get(range, READ).await.expect("registered");
        assert_eq!(registration.number, round);
        drop(registration);
        monitor.change(range);
        assert!(cache.lookup(range, READ).is_none());
    }
    registrar.wait_deregistered(3);
    assert_eq!(cache.statistics().invalidated_idle, 3);
}

#[tokio::test]
async fn merge() {
    let (cache, registrar, _) = fakes(roomy());
    let space = Space::new();
    let left = cache
        .get(space.pages(0, 6), BOTH)
        .await
        .expect("registered");
    drop(
        cache
            .get(space.pages(8, 4), BOTH)
            .await
            .expect("registered"),
    );
    let both = cache
        .get(space.pages(5, 4), BOTH)
        .await
        .expect("registered");
    assert_eq!(both.range(), space.pages(0, 12));
    // What it took the place of is still good for its user.
    assert!(left.is_current() && left.range() == space.pages(0, 6));
    registrar.wait_deregistered(1);
    assert_eq!(
        cache
            .lookup(space.pages(0, 2), BOTH)
            .expect("a part of the union")
            .number,
        3
    );
    drop(left);
    registrar.wait_deregistered(2);
    assert_eq!((cache.statistics().merges, registrar.live().len()), (1, 1));
}

#[tokio::test]
async fn merge_aligned() {
    let attributes = RegistrarAttributes::default().alignment(16384);
    let (cache, _, _) = fakes_with(
        FakeRegistrar::with_attributes(attributes),
        Timing::Before,
        roomy(),
    );
    let space = Space::new();
    let one = cache
        .get(space.pages(1, 1), READ)
        .await
        .expect("registered");
    assert_eq!(one.range(), space.pages(0, 4));
    let more = cache
        .get(space.pages(3, 2), READ)
        .await
        .expect("registered");
    assert_eq!(more.range(), space.pages(0, 8));
    assert!(cache.lookup(space.pages(7, 1), READ).is_some());
}

#[tokio::test]
async fn merge_with_unwritable() {
    // A union whose registration fails is left alone, and the request is registered exactly.
    let (cache, registrar, _) = fakes(roomy());
    let space = Space::new();
    drop(
        cache
            .get(space.pages(0, 6), READ)
            .await
            .expect("registered"),
    );
    let longest = 8 * 4096;
    registrar.set_rule(move |_, range, _| match range.len() > longest {
        true => Err(Error::new(
            ErrorKind::PermissionDenied,
            "a part of it is read only",
        )),
        false => Ok(()),
    });
    let exact = cache
        .get(space.pages(4, 8), READ)
        .await
        .expect("registered");
    assert_eq!((exact.range(), registrar.calls()), (space.pages(4, 8), 3));
    assert!(
        cache.lookup(space.pages(0, 2), READ).is_none(),
        "replaced whole"
    );
    // Still too long alone: its own error.
    let error = cache
        .get(space.pages(20, 9), READ)
        .await
        .expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
}

#[tokio::test]
async fn expand_prot() {
    // More rights are registered exactly, for the request alone; fewer are a hit.
    let (cache, registrar, _) = fakes(roomy());
    let space = Space::new();
    drop(
        cache
            .get(space.pages(0, 8), READ)
            .await
            .expect("registered"),
    );
    let both = cache
        .get(space.pages(4, 8), BOTH)
        .await
        .expect("registered");
    assert_eq!((both.range(), both.access()), (space.pages(4, 8), BOTH));
    assert_eq!(
        cache
            .get(space.pages(5, 1), READ)
            .await
            .expect("a hit")
            .number,
        both.number
    );
    assert_eq!(
        cache
            .get(space.pages(5, 1), WRITE)
            .await
            .expect("a hit")
            .number,
        both.number
    );
    registrar.wait_deregistered(1);
    let read = cache
        .get(space.pages(0, 8), READ)
        .await
        .expect("registered");
    assert_eq!(
        (read.range(), read.access()),
        (space.pages(0, 8), READ),
        "never silently more"
    );
    assert_eq!(cache.statistics().merges, 0);
}

#[tokio::test]
async fn invalid_prot() {
    let (cache, registrar, _) = fakes(roomy());
    registrar.set_rule(|_, _, access| match access.contains(WRITE) {
        true => Err(Error::new(ErrorKind::PermissionDenied, "read only")),
        false => Ok(()),
    });
    let range = Space::new().pages(0, 1);
    let error = cache.get(range, BOTH).await.expect_err("read only");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    drop(cache.get(range, READ).await.expect("registered"));
    // The failure for more rights has given up the older one, and not more.
    cache.get(range, BOTH).await.expect_err("read only");
    drop(cache.get(range, READ).await.expect("registered"));
    watchdog(LIMIT, cache.flush()).await;
    assert_eq!(registrar.live(), []);
}

#[test]
fn shared_region() {
    let (cache, registrar, monitor) = fakes(roomy());
    let range = Space::new().pages(0, 4);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..5000 {
                    let get = cache.get(range, READ);
                    let registration = block_on(get).expect("registered");
                    let more = registration.clone();
                    drop(registration);
                    assert!(more.range().contains(range) && more.range == range);
                    if round % 1000 == 999 {
                        monitor.change(range);
                    }
                }
            });
        }
    });
    block_on(cache.flush());
    assert_eq!(registrar.live(), []);
    assert_eq!(registrar.registered(), registrar.deregistered());
    let now = cache.statistics();
    assert_eq!(now.gets, 20_000, "{now:?}");
}

#[tokio::test]
async fn put_and_invalidate() {
    let (cache, registrar, _) = fakes(roomy());
    let range = Space::new().pages(0, 1);
    // The only user: as soon as it is deregistered.
    let only = cache.get(range, READ).await.expect("registered");
    watchdog(LIMIT, only.invalidate()).await;
    assert_eq!((registrar.deregistered(), registrar.live().len()), (1, 0));
    assert!(cache.lookup(range, READ).is_none());
    // Not the only one: when the last is gone; twice is once.
    let (one, two) = (
        cache.get(range, READ).await.expect("registered"),
        cache.get(range, READ).await.expect("a hit"),
    );
    let three = two.clone();
    let (mut released, again) = (one.invalidate(), two.invalidate());
    assert!(!three.is_current());
    let mut context = Context::from_waker(Waker::noop());
    assert!(Future::poll(std::pin::Pin::new(&mut released), &mut context) == Poll::Pending);
    // Meanwhile the memory is registered anew.
    let anew = cache.get(range, READ).await.expect("registered");
    assert_eq!((anew.number, three.number), (3, 2));
    drop(three);
    watchdog(LIMIT, released).await;
    watchdog(LIMIT, again).await;
    assert_eq!(registrar.live().len(), 1);
    // Dropping the future changes nothing; one that was never kept is released the same way.
    drop(anew.invalidate());
    registrar.wait_deregistered(3);
    let (cache, registrar, _) = fakes(roomy().enabled(false));
    watchdog(
        LIMIT,
        cache
            .get(range, READ)
            .await
            .expect("registered")
            .invalidate(),
    )
    .await;
    assert_eq!(registrar.deregistered(), 1);
}

#[tokio::test]
async fn in_use_release() {
    let (cache, registrar, monitor) = fakes(roomy());
    let range = Space::new().pages(0, 4);
    let used = cache.get(range, READ).await.expect("registered");
    monitor.change(range);
    assert!(!used.is_current() && cache.lookup(range, READ).is_none());
    let anew = cache.get(range, READ).await.expect("registered");
    assert!(anew.is_current() && anew.number == 2);
    assert_eq!((registrar.deregistered(), used.number), (0, 1));
    drop(used);
    registrar.wait_deregistered(1);
    assert_eq!(registrar.live().len(), 1);
    assert_eq!(cache.statistics().invalidated_in_use, 1);
}

#[tokio::test]
async fn a_union_is_bounded() {
    let (cache, _, _) = fakes(roomy().merge_max(10 * 4096));
    let space = Space::new();
    drop(
        cache
            .get(space.pages(0, 6), READ)
            .await
            .expect("registered"),
    );
    let fits = cache
        .get(space.pages(5, 5), READ)
        .await
        .expect("registered");
    assert_eq!(fits.range(), space.pages(0, 10));
    let not = cache
        .get(space.pages(9, 2), READ)
        .await
        .expect("registered");
    assert_eq!(not.range(), space.pages(9, 2));
    // And by what the registrar takes, and switched off by 0.
    let attributes = RegistrarAttributes::default().max_length(8 * 4096);
    let (cache, _, _) = fakes_with(
        FakeRegistrar::with_attributes(attributes),
        Timing::Before,
        roomy(),
    );
    drop(
        cache
            .get(space.pages(0, 6), READ)
            .await
            .expect("registered"),
    );
    assert_eq!(
        cache
            .get(space.pages(5, 4), READ)
            .await
            .expect("registered")
            .range(),
        space.pages(5, 4)
    );
    let (cache, _, _) = fakes(roomy().merge_max(0));
    drop(
        cache
            .get(space.pages(0, 6), READ)
            .await
            .expect("registered"),
    );
    assert_eq!(
        cache
            .get(space.pages(5, 4), READ)
            .await
            .expect("registered")
            .range(),
        space.pages(5, 4)
    );
}

#[tokio::test]
async fn replaced_then_changed() {
    // The part that was not replaced is not found, and an event there ends nothing that is good.
    let (cache, _, monitor) = fakes(roomy());
    let space = Space::new();
    let used = cache
        .get(space.pages(0, 8), READ)
        .await
        .expect("registered");
    let both = cache
        .get(space.pages(0, 4), BOTH)
        .await
        .expect("registered");
    assert!(cache.lookup(space.pages(6, 1), READ).is_none());
    monitor.change(space.pages(6, 1));
    assert!(both.is_current() && cache.lookup(space.pages(0, 1), READ).is_some());
    monitor.change(space.pages(0, 1));
    assert!(!both.is_current() && cache.lookup(space.pages(0, 1), READ).is_none());
    drop(used);
}

#[tokio::test]
async fn a_longer_request_replaces_one_under_way() {
    let (cache, registrar, _) = fakes(roomy());
    let space = Space::new();
    registrar.close();
    let mut short = cache.get(space.pages(0, 100), READ);
    let mut context = Context::from_waker(Waker::noop());
    assert!(Future::poll(std::pin::Pin::new(&mut short), &mut context).is_pending());
    let mut long = cache.get(space.pages(0, 200), READ);
    assert!(Future::poll(std::pin::Pin::new(&mut long), &mut context).is_pending());
    registrar.wait_in_register(2);
    registrar.open();
    let (short, long) = (
        watchdog(LIMIT, short).await.expect("registered"),
        watchdog(LIMIT, long).await.expect("registered"),
    );
    assert!(short.range() == space.pages(0, 100) && long.range() == space.pages(0, 200));
    assert_eq!(
        cache
            .lookup(space.pages(0, 1), READ)
            .expect("a hit")
            .range(),
        long.range()
    );
    drop(short);
    registrar.wait_deregistered(1);
}

#[tokio::test]
async fn an_event_that_is_late_prevents_hits() {
    let (cache, registrar, monitor) = fakes_with(FakeRegistrar::new(), Timing::After, roomy());
    let space = Space::new();
    let range = space.pages(0, 4);
    drop(cache.get(range, READ).await.expect("registered"));
    drop(cache.get(range, READ).await.expect("a hit"));
    assert_eq!(cache.statistics().strict_hits, 1);
    monitor.hold();
    monitor.change(range);
    // The event is under way: nothing can be known.
    assert!(cache.lookup(range, READ).is_none());
    let get = tokio::spawn(cache.get(range, READ));
    while cache.statistics().stale_prevented < 3 {
        tokio::task::yield_now().await;
    }
    // It waits, or on a busy machine has waited long enough and is served for itself: not by what is there.
    monitor.release();
    let anew = watchdog(LIMIT, get)
        .await
        .expect("no panic")
        .expect("registered");
    assert_eq!((anew.number, registrar.calls()), (2, 2));
    if !anew.is_cached() {
        drop(cache.get(range, READ).await.expect("registered"));
    }
    // A monitor that stays silent: the request is served, for itself.
    monitor.hold();
    monitor.change(space.pages(1000, 1));
    let alone = watchdog(LIMIT, cache.get(range, READ))
        .await
        .expect("registered");
    assert!(!alone.is_cached());
    // Owned memory needs no event.
    let owned = cache
        .get_owned(space.pages(51, 1), space.pages(50, 4), READ)
        .await
        .expect("registered");
    assert!(cache.lookup(space.pages(50, 1), READ).is_some());
    drop(owned);
}

#[test]
fn blocks_of_2_mib_split_under_events() {
    // One registration spans whole blocks, others cut pieces out of it and give them up, while events walk over all of it: an event for a page never misses
    // the registration that has it.
    let (cache, registrar, monitor) = fakes(roomy());
    let space = Space::new();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                let piece = cache.get(space.pages(1023, 2), BOTH);
                drop(block_on(piece).expect("registered"));
            }
        });
        let keep = Arc::new(cache.clone());
        for _ in 0..300 {
            let whole = block_on(keep.get(space.pages(0, 1536), READ)).expect("registered");
            monitor.change(space.pages(1, 1));
            assert!(keep.lookup(space.pages(1, 1), READ).is_none());
            assert!(whole.range() == space.pages(0, 1536));
            drop(whole);
        }
        stop.store(true, SeqCst);
    });
    // The thread that registered the last may hold it for a moment longer.
    let begun = std::time::Instant::now();
    while !registrar.live().is_empty() && begun.elapsed() < LIMIT {
        block_on(cache.flush());
        thread::yield_now();
    }
    assert_eq!(registrar.live(), []);
}
