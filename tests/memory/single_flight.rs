//! Many requests at once, and registrations that are slow, fail, or panic.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    thread::{self, ThreadId},
};

use parking_lot::Mutex;
use wharf::{Error, ErrorKind, memory::Timing};

use crate::{
    fakes::{BOTH, READ, Space, block_on, fakes, fakes_with, roomy},
    support::{FakeRegistrar, LIMIT, watchdog},
};

/// More pages than are registered in the thread that asks (256 KiB).
const MANY: u64 = 128;

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_requests_make_one_registration() {
    let (cache, registrar, _) = fakes(roomy());
    let space = Space::new();
    registrar.close();
    let tasks: Vec<_> = (0..100)
        .map(|number| {
            let cache = cache.clone();
            // Parts of the first one's range as well.
            let range = match number {
                0 => space.pages(0, MANY),
                _ => space.pages(number % 3, MANY - 3),
            };
            async move { cache.get(range, READ).await.expect("registered").number }
        })
        .collect();
    let mut tasks = tasks.into_iter();
    let first = tokio::spawn(tasks.next().expect("a hundred"));
    registrar.wait_in_register(1);
    let others: Vec<_> = tasks.map(tokio::spawn).collect();
    while cache.statistics().pending_waits < 99 {
        tokio::task::yield_now().await;
    }
    registrar.open();
    assert_eq!(watchdog(LIMIT, first).await.expect("no panic"), 1);
    for task in others {
        assert_eq!(watchdog(LIMIT, task).await.expect("no panic"), 1);
    }
    assert_eq!(registrar.calls(), 1);
    let stats = cache.statistics();
    assert_eq!(
        (stats.gets, stats.misses, stats.pending_waits, stats.hits),
        (100, 1, 99, 0)
    );
}

#[tokio::test]
async fn a_dropped_leader_and_dropped_waiters_change_nothing() {
    let (cache, registrar, _) = fakes(roomy());
    let range = Space::new().pages(0, MANY);
    registrar.close();
    let mut leader = cache.get(range, READ);
    let mut waiter = cache.get(range, READ);
    let mut dropped = cache.get(range, READ);
    assert!(poll_once(&mut leader).is_pending());
    assert!(poll_once(&mut waiter).is_pending());
    assert!(poll_once(&mut dropped).is_pending());
    drop((leader, dropped));
    registrar.open();
    let registration = watchdog(LIMIT, waiter).await.expect("registered");
    assert_eq!((registration.number, registrar.calls()), (1, 1));
    drop(registration);

    // With nobody left, it is there for the next one.
    let range = Space::new().pages(0, MANY);
    registrar.close();
    let mut alone = cache.get(range, READ);
    assert!(poll_once(&mut alone).is_pending());
    drop(alone);
    registrar.open();
    let registration = watchdog(LIMIT, cache.get(range, READ))
        .await
        .expect("registered");
    assert_eq!((registration.number, registrar.calls()), (2, 2));

    // Never polled, nothing happens.
    drop(cache.get(Space::new().pages(0, 1), READ));
    assert_eq!(registrar.calls(), 2);
}

#[tokio::test]
async fn an_error_reaches_all_who_asked_for_the_same() {
    let (cache, registrar, _) = fakes(roomy());
    let space = Space::new();
    registrar.close();
    registrar.set_rule(|_, range, _| match range.len() > 100 * 4096 {
        true => Err(Error::new(ErrorKind::PermissionDenied, "made to fail")),
        false => Ok(()),
    });
    let mut same: Vec<_> = (0..100)
        .map(|_| cache.get(space.pages(0, MANY), READ))
        .collect();
    for get in &mut same {
        assert!(poll_once(get).is_pending());
    }
    // A part of it is another matter.
    let mut part = cache.get(space.pages(4, 2), READ);
    assert!(poll_once(&mut part).is_pending());
    registrar.open();
    for get in same {
        let error = watchdog(LIMIT, get).await.expect_err("made to fail");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }
    assert_eq!(registrar.calls(), 1);
    let part = watchdog(LIMIT, part).await.expect("registered");
    assert_eq!(part.range(), space.pages(4, 2));
    // Nothing is remembered against the range.
    registrar.clear_rule();
    let now = watchdog(LIMIT, cache.get(space.pages(0, MANY), READ)).await;
    drop(now.expect("registered now"));
    assert_eq!(cache.statistics().registration_errors, 1);
}

#[tokio::test]
async fn a_panic_is_an_error_and_the_cache_goes_on() {
    let (cache, registrar, _) = fakes(roomy());
    registrar.set_rule(|_, _, _| panic!("made to panic"));
    for pages in [1, MANY] {
        let space = Space::new();
        let error = watchdog(LIMIT, cache.get(space.pages(0, pages), READ))
            .await
            .expect_err("a panic");
        assert!(error.to_string().contains("panicked"), "{error}");
        assert!(cache.lookup(space.pages(0, pages), READ).is_none());
    }
    registrar.clear_rule();
    let now = watchdog(LIMIT, cache.get(Space::new().pages(0, 1), READ)).await;
    drop(now.expect("registered"));
    watchdog(LIMIT, cache.flush()).await;
    assert_eq!((registrar.registered(), registrar.deregistered()), (1, 1));
}

#[tokio::test]
async fn memory_that_changes_under_way_is_registered_again() {
    for timing in [Timing::Before, Timing::After] {
        let (cache, registrar, monitor) = fakes_with(FakeRegistrar::new(), timing, roomy());
        let space = Space::new();
        let range = space.pages(0, 4);
        let change = monitor.clone();
        registrar.set_rule(move |number, range, _| {
            if number == 1 {
                change.change(range);
            }
            Ok(())
        });
        let registration = watchdog(LIMIT, cache.get(range, READ))
            .await
            .expect("registered");
        assert!(registration.number == 2 && registration.is_current() && registration.is_cached());
        assert_eq!((registrar.registered(), registrar.deregistered()), (2, 1));
        // Always changing: three times more, then for this use alone.
        let change = monitor.clone();
        registrar.set_rule(move |_, range, _| {
            change.change(range);
            Ok(())
        });
        let before = registrar.calls();
        let restless = watchdog(LIMIT, cache.get(space.pages(8, 1), READ))
            .await
            .expect("registered");
        assert!(!restless.is_cached());
        assert_eq!(registrar.calls() - before, 5);
        assert!(cache.lookup(space.pages(8, 1), READ).is_none());
        drop(restless);
        registrar.wait_deregistered(registrar.registered() - 1);
        assert_eq!(cache.statistics().uncached, 1);
    }
}

#[tokio::test]
async fn short_ranges_here_long_ones_elsewhere() {
    let (cache, registrar, _) = fakes(roomy());
    let space = Space::new();
    let place = Arc::new(Mutex::new(None::<ThreadId>));
    let seen = Arc::clone(&place);
    registrar.set_rule(move |_, _, _| {
        *seen.lock() = Some(thread::current().id());
        Ok(())
    });
    let here = thread::current().id();
    for (first, pages, inline) in [(0, 64, true), (100, 65, false)] {
        let get = cache.get(space.pages(first, pages), READ);
        drop(watchdog(LIMIT, get).await.expect("registered"));
        assert_eq!(*place.lock() == Some(here), inline, "{pages} pages");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_slow_registration_does_not_stop_the_runtime() {
    let (cache, registrar, _) = fakes(roomy());
    registrar.close();
    let get = tokio::spawn(cache.get(Space::new().pages(0, 16 << 10), READ));
    // Were it registered in this thread, this would never come back.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    registrar.wait_in_register(1);
    tokio::task::yield_now().await;
    assert!(!get.is_finished());
    registrar.open();
    let done = watchdog(LIMIT, get).await.expect("no panic");
    drop(done.expect("registered"));
}

#[test]
fn a_runtime_that_ends_leaves_the_others_their_registration() {
    let (cache, registrar, _) = fakes(roomy());
    let range = Space::new().pages(0, MANY);
    registrar.close();
    let ending = tokio::runtime::Runtime::new().expect("a runtime");
    let leader = ending.spawn(cache.get(range, READ));
    registrar.wait_in_register(1);
    let mut waiter = cache.get(range, READ);
    assert!(poll_once(&mut waiter).is_pending());
    ending.shutdown_background();
    registrar.open();
    // No runtime here at all.
    let registration = block_on(waiter).expect("registered");
    assert_eq!(registration.number, 1);
    drop(leader);
    let other = block_on(cache.get(Space::new().pages(0, MANY), READ));
    assert_eq!(other.expect("registered").number, 2);
}

#[test]
fn a_runtime_that_no_longer_registers() {
    let (cache, registrar, _) = fakes(roomy());
    let range = Space::new().pages(0, MANY);
    let ended = tokio::runtime::Runtime::new().expect("a runtime");
    let handle = ended.handle().clone();
    ended.shutdown_background();
    let _in_ended = handle.enter();
    let registration = block_on(cache.get(range, BOTH)).expect("registered");
    assert!(registration.range().contains(range));
    assert_eq!(registrar.registered(), 1);
}

#[tokio::test]
async fn exhausted_evicts_and_tries_once_more() {
    let (cache, registrar, _) = fakes(roomy());
    let space = Space::new();
    for page in 0..4 {
        drop(
            cache
                .get(space.pages(10 * page, 1), READ)
                .await
                .expect("registered"),
        );
    }
    let kept = cache.get(space.pages(0, 1), READ).await.expect("a hit");
    let calls = Arc::new(AtomicU64::new(0));
    let (count, fake) = (Arc::clone(&calls), registrar.clone());
    // Room for three in all.
    registrar.set_rule(move |_, _, _| {
        count.fetch_add(1, SeqCst);
        match fake.live().len() < 3 {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Exhausted, "no room for more")),
        }
    });
    let get = cache.get(space.pages(100, 3), READ);
    let registration = watchdog(LIMIT, get)
        .await
        .expect("registered after eviction");
    assert_eq!(calls.load(SeqCst), 2);
    assert!(registrar.live().len() <= 3);
    assert!(kept.is_current() && registrar.live().contains(&(space.pages(0, 1), READ)));
    // Nothing left to give back.
    let held = cache.get(space.pages(0, 1), READ).await.expect("a hit");
    registrar.set_rule(|_, _, _| Err(Error::new(ErrorKind::Exhausted, "no room at all")));
    let error = cache
        .get(space.pages(200, 1), READ)
        .await
        .expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    drop((registration, kept, held));
}
