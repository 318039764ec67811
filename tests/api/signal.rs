//! Counters: raised behind puts and alone, waited for by tasks of workers that sleep.

use std::{future::Future, time::Duration};

use futures::future::join_all;
use wharf::{
    Access, BufferMut, Counter, ErrorKind, Operation, Progress, Region, RemoteRegion, Worker,
};

use crate::{
    fixture::{Pair, SIZES, Side, Way, a_while, pattern, run, run_on_threads, same},
    support::until,
};

const BOTH: Access = Access::READ.union(Access::WRITE);
const MEMORIES: [bool; 2] = [true, false];

async fn memory(side: &Side, own: bool, size: usize) -> BufferMut {
    if own {
        side.context.allocate(size).await.expect("memory").into()
    } else {
        vec![0; size].into()
    }
}

async fn exposed(pair: &Pair, buffer: impl Into<BufferMut>) -> (Region, RemoteRegion) {
    let region = pair.there.context.expose(buffer, BOTH).await;
    let region = region.expect("exposed");
    let descriptor = region.descriptor().expect("a descriptor");
    let remote = pair.here.endpoint.import(&descriptor).expect("the peer's");
    (region, remote)
}

/// A counter of `there`, and as `here` sees it.
async fn counter(pair: &Pair) -> (Counter, RemoteRegion) {
    let counter = pair.there.worker.counter().await.expect("a counter");
    assert_eq!(counter.value(), 0);
    let descriptor = counter.descriptor().expect("a descriptor");
    let remote = pair.here.endpoint.import(&descriptor).expect("the peer's");
    (counter, remote)
}

fn content(region: &Region, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    region.read_at(0, &mut bytes).expect("within");
    bytes
}

/// Whether it is over at the first poll.
async fn is_ready(future: impl Future) -> bool {
    futures::poll!(std::pin::pin!(future)).is_ready()
}

scenarios! { everywhere:
    /// Whoever is woken sees the bytes of the put.
    async fn put_and_signal(way: Way) {
        let pair = way.pair().await;
        let (counter, there) = counter(&pair).await;
        let mut raised = 0;
        for own in MEMORIES {
            for (index, size) in SIZES.into_iter().enumerate() {
                let (region, remote) = exposed(&pair, memory(&pair.there, own, size).await).await;
                for seed in [index, index + 1] {
                    let put = pair.here.endpoint.put(pattern(size, seed), remote.clone()).signal(&there);
                    let seen = async {
                        assert_eq!(counter.wait(raised + 1).await.expect("raised"), raised + 1);
                        same(&content(&region, size), pattern(size, seed), size);
                    };
                    let (put, ()) = tokio::join!(put, seen);
                    put.expect("put");
                    raised += 1;
                }
                let posted = pair.here.endpoint.put(pattern(size, 3), remote).local().signal_by(&there, 5).post().expect("room");
                raised += 5;
                assert_eq!(counter.wait(raised).await.expect("raised"), raised);
                same(&content(&region, size), pattern(size, 3), size);
                posted.await.expect("put");
            }
        }
    }

    /// The same for a target that sleeps, and is woken by the signal alone.
    async fn wakes_who_sleeps(way: Way) {
        let context = way.builder().progress(Progress::EventDriven).build().expect("a context");
        let pair = Pair::of(&context, way).await;
        let (counter, there) = counter(&pair).await;
        let mut raised = 0;
        for own in MEMORIES {
            for size in [0, 8, 5000, 70_000, 300_000, (1 << 20) + 3] {
                let (region, remote) = exposed(&pair, memory(&pair.there, own, size).await).await;
                for alone in [false, true] {
                    let waiting = tokio::spawn({
                        let counter = counter.clone();
                        async move { counter.wait(raised + 1).await }
                    });
                    a_while().await;
                    assert!(!waiting.is_finished());
                    if alone {
                        pair.here.endpoint.signal(&there, 1).await.expect("signalled");
                    } else {
                        pair.here.endpoint.put(pattern(size, 1), remote.clone()).signal(&there).await.expect("put");
                    }
                    raised += 1;
                    assert_eq!(waiting.await.expect("woken").expect("raised"), raised);
                    same(&content(&region, size), pattern(size, 1), size);
                }
            }
        }
    }

    /// For every way in which a worker waits.
    async fn every_policy(way: Way) {
        for progress in [Progress::Adaptive, Progress::EventDriven, Progress::Busy, Progress::Thread, Progress::Spin(Duration::from_micros(50))] {
            let context = way.builder().progress(progress).build().expect("a context");
            let pair = Pair::of(&context, way).await;
            let (counter, there) = counter(&pair).await;
            let (region, remote) = exposed(&pair, memory(&pair.there, true, 64).await).await;
            for round in 1..=100 {
                let put = pair.here.endpoint.put(pattern(64, round), remote.clone()).signal(&there);
                let (put, value) = tokio::join!(put, counter.wait(round as u64));
                put.expect("put");
                assert_eq!(value.expect("raised"), round as u64);
                same(&content(&region, 64), pattern(64, round), round);
            }
        }
    }

    /// A signal alone is there when it has ended.
    async fn alone(way: Way) {
        let pair = way.pair().await;
        let (counter, there) = counter(&pair).await;
        for round in 1..=20 {
            pair.here.endpoint.signal(&there, round).await.expect("signalled");
            assert_eq!(counter.value(), round * (round + 1) / 2);
        }
        assert!(is_ready(counter.wait(210)).await);
        assert!(!is_ready(counter.wait(211)).await);
        let posted: Vec<_> = (0..100).map(|_| pair.here.endpoint.signal(&there, 1).post().expect("room")).collect();
        drop(posted);
        assert_eq!(counter.wait(310).await.expect("raised"), 310);
        pair.here.endpoint.flush().await.expect("flushed");
        // It is memory like other memory.
        assert_eq!(there.fetch_add(0, 1_u64).await.expect("added"), 310);
        assert_eq!(pair.here.endpoint.get(there, vec![0; 8]).await.expect("got"), 311_u64.to_le_bytes());
    }

    /// Many waits, each of which wakes at its own value; raised here as well as there.
    async fn many_waits(way: Way) {
        let pair = way.pair().await;
        let (counter, there) = counter(&pair).await;
        let waits: Vec<_> = (1..=30_u64)
            .map(|at_least| {
                let counter = counter.clone();
                tokio::spawn(async move {
                    let value = counter.wait(at_least).await.expect("raised");
                    assert!(value >= at_least, "{value} for {at_least}");
                    value
                })
            })
            .collect();
        a_while().await;
        for round in 0..15 {
            assert_eq!(counter.add(1), 2 * round);
            pair.here.endpoint.signal(&there, 1).await.expect("signalled");
            for wait in &waits[..2 * round as usize] {
                until("the signal", || wait.is_finished()).await;
            }
            assert!(waits[2 * round as usize + 2..].iter().all(|wait| !wait.is_finished()));
        }
        for wait in join_all(waits).await {
            wait.expect("to its end");
        }
    }

    /// Values wrap around.
    async fn wrapping(way: Way) {
        let pair = way.pair().await;
        let (counter, there) = counter(&pair).await;
        assert!(is_ready(counter.wait(0)).await);
        counter.add(u64::MAX - 2);
        // More than half way round is before, not after.
        assert!(!is_ready(counter.wait(0)).await);
        let mut last = counter.value();
        for _ in 0..6 {
            let next = last.wrapping_add(1);
            let (signalled, value) = tokio::join!(pair.here.endpoint.signal(&there, 1), counter.wait(next));
            signalled.expect("signalled");
            assert_eq!(value.expect("raised"), next);
            last = next;
        }
        assert_eq!(last, 3);
    }

    /// A wait that is dropped takes nothing with it, and leaves nothing behind.
    async fn dropped_waits(way: Way) {
        let pair = way.pair().await;
        let (counter, there) = counter(&pair).await;
        for round in 1..=50 {
            drop(counter.wait(round));
            let mut dropped = Box::pin(counter.wait(round));
            let mut kept = Box::pin(counter.wait(round));
            assert!(futures::poll!(dropped.as_mut()).is_pending());
            assert!(futures::poll!(kept.as_mut()).is_pending());
            if round % 2 == 0 {
                drop(dropped);
                pair.here.endpoint.signal(&there, 1).await.expect("signalled");
            } else {
                pair.here.endpoint.signal(&there, 1).await.expect("signalled");
                drop(dropped);
            }
            assert_eq!(kept.await.expect("raised"), round);
        }
    }

    /// A put with a signal whose future goes still signals, once.
    async fn dropped_puts(way: Way) {
        let pair = way.pair().await;
        let (counter, there) = counter(&pair).await;
        let mut raised = 0;
        for own in MEMORIES {
            for size in [0, 8, 5000, 100_000, 600_000] {
                let (region, remote) = exposed(&pair, memory(&pair.there, own, size).await).await;
                for seed in 1..=4 {
                    let put = pair.here.endpoint.put(pattern(size, seed), remote.clone()).signal(&there);
                    if seed % 2 == 0 {
                        drop(put.post().expect("room"));
                    } else {
                        let mut put = Box::pin(put);
                        let _ = futures::poll!(put.as_mut());
                    }
                    raised += 1;
                    assert_eq!(counter.wait(raised).await.expect("raised"), raised);
                    same(&content(&region, size), pattern(size, seed), size);
                }
                drop(pair.here.endpoint.put(pattern(size, 1), remote.clone()).signal(&there));
            }
        }
        pair.here.endpoint.flush().await.expect("flushed");
        assert_eq!(counter.value(), raised, "a put that was never polled");
    }

    /// A flush is over when signals have been applied.
    async fn flushed(way: Way) {
        let pair = way.pair().await;
        let (counter, there) = counter(&pair).await;
        for own in MEMORIES {
            let (_region, remote) = exposed(&pair, memory(&pair.there, own, 1 << 20).await).await;
            for round in 1..=10 {
                let before = counter.value();
                for size in [8, 5000, 300_000] {
                    drop(pair.here.endpoint.put(pattern(size, round), remote.clone()).signal(&there).post().expect("room"));
                }
                if round % 2 == 0 {
                    pair.here.endpoint.flush().await.expect("flushed");
                } else {
                    pair.here.worker.flush().await.expect("flushed");
                }
                assert_eq!(counter.value(), before + 3);
            }
        }
    }

    /// A put that failed does not signal.
    async fn failed_puts(way: Way) {
        let pair = way.pair().await;
        let (counter, there) = counter(&pair).await;
        for own in MEMORIES {
            for size in [8, 5000, 300_000] {
                let (region, remote) = exposed(&pair, memory(&pair.there, own, size).await).await;
                pair.here.endpoint.put(pattern(size, 1), remote.clone()).await.expect("put");
                let long = pair.here.endpoint.put(pattern(size + 1, 1), remote.clone()).signal(&there);
                assert_eq!(long.await.expect_err("too long").kind(), ErrorKind::OutOfBounds);
                drop(region);
                let stale = pair.here.endpoint.put(pattern(size, 1), remote.clone()).signal(&there);
                assert_eq!(stale.await.expect_err("stale").kind(), ErrorKind::StaleKey);
                let stale = pair.here.endpoint.put(pattern(size, 1), remote).signal(&there).post().expect("room");
                assert_eq!(stale.await.expect_err("stale").kind(), ErrorKind::StaleKey);
            }
        }
        pair.here.endpoint.flush().await.expect("all were told");
        assert_eq!(counter.value(), 0);
        pair.here.endpoint.signal(&there, 1).await.expect("signalled");
        assert_eq!(counter.wait(1).await.expect("raised"), 1);
    }

    /// A counter that is gone: the put or the flush behind it says so, and nothing else is touched.
    async fn without_a_counter(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            for size in [8, 5000, 300_000] {
                let (_region, remote) = exposed(&pair, memory(&pair.there, own, size).await).await;
                let (gone, there) = counter(&pair).await;
                drop(gone);
                let (next, _) = counter(&pair).await;
                let put = pair.here.endpoint.put(pattern(size, 1), remote.clone()).signal(&there).await;
                let flush = pair.here.endpoint.flush().await;
                let error = put.and(flush).expect_err("the counter is gone");
                assert_eq!(error.kind(), ErrorKind::StaleKey, "{error:?}");
                pair.here.endpoint.flush().await.expect("said already");
                let error = pair.here.endpoint.signal(&there, 1).await.expect_err("gone");
                assert_eq!((error.kind(), error.operation()), (ErrorKind::StaleKey, Some(Operation::Signal)));
                assert_eq!(next.value(), 0);
                pair.here.endpoint.put(pattern(size, 1), remote).await.expect("put");
            }
        }
    }

    /// What cannot be a counter is refused here.
    async fn no_counter(way: Way) {
        let pair = way.pair().await;
        let (region, remote) = exposed(&pair, memory(&pair.there, true, 64).await).await;
        let read_only = pair.there.context.expose(vec![0; 64], Access::READ).await.expect("exposed");
        let read_only = pair.here.endpoint.import(&read_only.descriptor().expect("a descriptor")).expect("the peer's");
        for (place, kind) in [
            (remote.slice(1..), ErrorKind::InvalidArgument),
            (remote.slice(..7), ErrorKind::OutOfBounds),
            (read_only, ErrorKind::AccessDenied),
        ] {
            let error = pair.here.endpoint.put(vec![1; 8], remote.clone()).signal(&place).await.expect_err("no counter");
            assert_eq!(error.kind(), kind);
            let (error, buffer) = pair.here.endpoint.put(vec![1; 8], remote.clone()).signal(&place).post().expect_err("no counter").into_parts();
            assert_eq!((error.kind(), error.operation()), (kind, Some(Operation::Signal)));
            assert_eq!(buffer.map(|buffer| buffer.len()), Some(8));
            assert_eq!(pair.here.endpoint.signal(&place, 1).await.expect_err("no counter").kind(), kind);
        }
        assert_eq!(content(&region, 64), [0; 64], "written");
        // Any eight aligned bytes will do, though nobody waits for them.
        pair.here.endpoint.signal(&remote.slice(8..), 3).await.expect("signalled");
        assert_eq!(region.load::<u64>(8).expect("a word"), 3);
    }

    /// More puts with signals than there is room for on the way, while the target does nothing but count.
    async fn a_burst(way: Way) {
        let pair = way.pair().await;
        let (counter, there) = counter(&pair).await;
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 8).await).await;
            let before = counter.value();
            let mut posted = std::collections::VecDeque::new();
            for round in 0..20_000_u64 {
                loop {
                    match pair.here.endpoint.put(round.to_le_bytes().to_vec(), remote.clone()).signal(&there).post() {
                        Ok(put) => break posted.push_back(put),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => posted.pop_front().expect("the window is full").await.expect("put"),
                        Err(error) => panic!("{error:?}"),
                    }
                }
            }
            let last = before + 20_000;
            assert_eq!(counter.wait(last).await.expect("raised"), last);
            for put in posted {
                put.await.expect("put");
            }
            if own {
                pair.here.endpoint.flush().await.expect("flushed");
            }
            assert_eq!(counter.value(), last);
            assert!(region.load::<u64>(0).is_ok_and(|value| value < 20_000));
        }
    }

    /// A worker that is shut down ends waits, but not the counter.
    async fn shut_down(way: Way) {
        let pair = way.pair().await;
        let (counter, _) = counter(&pair).await;
        let waiting = tokio::spawn({
            let counter = counter.clone();
            async move { counter.wait(2).await }
        });
        a_while().await;
        pair.there.worker.shutdown(Duration::from_secs(60)).await.expect("in order");
        let error = waiting.await.expect("ended").expect_err("shut down");
        assert_eq!((error.kind(), error.operation()), (ErrorKind::Closed, Some(Operation::Signal)));
        assert_eq!(counter.wait(1).await.expect_err("shut down").kind(), ErrorKind::Closed);
        counter.add(1);
        assert_eq!(counter.wait(1).await.expect("there already"), 1);
    }
}

scenarios! { between workers:
    /// A counter is the context's: signals come in by one worker, tasks wait on another, which has no connection at all.
    async fn by_another_worker(way: Way) {
        for progress in [Progress::Adaptive, Progress::EventDriven, Progress::Thread] {
            let context = way.builder().progress(progress).build().expect("a context");
            let pair = Pair::of(&context, way).await;
            let waiter = Worker::new(&context).expect("a worker");
            let counter = waiter.counter().await.expect("a counter");
            let there = pair.here.endpoint.import(&counter.descriptor().expect("a descriptor")).expect("the peer's");
            for round in 1..=20 {
                let waiting = tokio::spawn({
                    let counter = counter.clone();
                    async move { counter.wait(round).await }
                });
                if round % 4 == 0 {
                    a_while().await;
                }
                pair.here.endpoint.signal(&there, 1).await.expect("signalled");
                assert_eq!(waiting.await.expect("woken").expect("raised"), round);
            }
        }
    }

    /// A counter is imported on the endpoint that raises it.
    async fn on_another_endpoint(way: Way) {
        let pair = way.pair().await;
        let other = way.pair().await;
        let (counter, there) = counter(&pair).await;
        let error = other.here.endpoint.signal(&there, 1).await.expect_err("another endpoint");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let (_region, remote) = exposed(&other, vec![0; 8]).await;
        let error = other.here.endpoint.put(vec![1; 8], remote).signal(&there).await.expect_err("another endpoint");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(counter.value(), 0);
    }

    /// Two sides that raise each other's counters, a put each time.
    async fn ping_pong(way: Way) {
        let pair = way.pair().await;
        let (ours, theirs) = (pair.here.worker.counter().await.expect("a counter"), pair.there.worker.counter().await.expect("a counter"));
        let to_theirs = pair.here.endpoint.import(&theirs.descriptor().expect("a descriptor")).expect("the peer's");
        let to_ours = pair.there.endpoint.import(&ours.descriptor().expect("a descriptor")).expect("the peer's");
        let (region, remote) = exposed(&pair, memory(&pair.there, true, 64).await).await;
        let back = pair.here.context.expose(vec![0; 64], BOTH).await.expect("exposed");
        let to_back = pair.there.endpoint.import(&back.descriptor().expect("a descriptor")).expect("the peer's");
        let echo = async {
            for round in 1..=500 {
                theirs.wait(round).await.expect("raised");
                let bytes = content(&region, 64);
                pair.there.endpoint.put(bytes, to_back.clone()).signal(&to_ours).await.expect("put");
            }
        };
        let ask = async {
            for round in 1..=500 {
                pair.here.endpoint.put(pattern(64, round), remote.clone()).signal(&to_theirs).await.expect("put");
                ours.wait(round as u64).await.expect("raised");
                same(&content(&back, 64), pattern(64, round), round);
            }
        };
        tokio::join!(ask, echo);
    }
}
