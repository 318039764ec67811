//! Semaphores: the same on every carrier, and no signal lost.
//!
//! # Safety
//! The stream that is made up is of a driver that is not in use: nobody follows its address.
#![allow(unsafe_code)]

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context as TaskContext, Poll, Waker},
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::poll_fn};
use wharf::{
    ErrorKind, Operation, Progress,
    channel::{Communicator, Semaphore},
    transport::cuda::CudaStream,
};

use crate::{
    group::{Carrier, run},
    support::until,
};

async fn pair(ranks: &[Communicator; 2]) -> [Semaphore; 2] {
    if ranks[0].size() == 1 {
        let semaphore = Semaphore::pair(&ranks[0], 0, 1).await.expect("a pair");
        return [semaphore.clone(), semaphore];
    }
    let (one, two) = tokio::join!(
        Semaphore::pair(&ranks[0], 1, 1),
        Semaphore::pair(&ranks[1], 0, 1),
    );
    [one.expect("a pair"), two.expect("a pair")]
}

/// Looks once.
fn look<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    future.poll_unpin(&mut TaskContext::from_waker(waker))
}

fn on_every_carrier<F: Future<Output = ()>>(test: impl Fn(Carrier) -> F) {
    for carrier in Carrier::ALL {
        eprintln!("{carrier:?}");
        run(test(carrier));
    }
}

#[test]
fn as_many_pass_as_there_were_signals() {
    on_every_carrier(|carrier| async move {
        let ranks = carrier.ranks().await;
        let [one, two] = pair(&ranks).await;
        assert!(!two.poll());
        for round in 1..=300_u64 {
            one.signal().await.expect("signalled");
            assert_eq!(two.wait().await.expect("passes"), round);
        }
        for _ in 0..5 {
            one.signal().await.expect("signalled");
        }
        one.endpoint().flush().await.expect("flushed");
        while two.pending() < 5 {
            tokio::task::yield_now().await;
        }
        assert!(two.poll());
        assert_eq!(two.pending(), 4);
        let taken: Vec<_> = two.signals().take(4).collect().await;
        let taken: Vec<u64> = taken
            .into_iter()
            .map(|signal| signal.expect("one"))
            .collect();
        assert_eq!(taken, [302, 303, 304, 305]);
        assert!(!two.poll());
        assert!(two.wait().now_or_never().is_none());
        assert_eq!(two.waiting(), 0);
    });
}

/// Waits are dropped at random, before and after signals come: none is lost, and none counts twice.
#[test]
fn dropped_waits_lose_no_signal_in_100_000_rounds() {
    const ROUNDS: u64 = 100_000;
    for carrier in Carrier::ALL {
        eprintln!("{carrier:?}");
        run(async move {
            let rounds = match carrier {
                Carrier::Shm => ROUNDS,
                _ => ROUNDS / 10,
            };
            let ranks = carrier.ranks().await;
            let [one, two] = pair(&ranks).await;
            let sender = tokio::spawn(async move {
                for round in 0..rounds {
                    one.signal().await.expect("signalled");
                    if round % 64 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                one
            });
            let mut random = 88_172_645_463_325_252_u64;
            let mut next = move || {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random
            };
            let (mut passed, mut dropped) = (0, 0);
            while passed < rounds {
                if next() % 2 == 0 {
                    assert_eq!(two.wait().await.expect("passes"), passed + 1);
                    passed += 1;
                    continue;
                }
                // Looked at so many times, then dropped, unless it passed.
                let mut wait = pin!(two.wait());
                let mut looks = next() % 3;
                let outcome = poll_fn(|cx| {
                    if looks == 0 {
                        return Poll::Ready(None);
                    }
                    looks -= 1;
                    match wait.as_mut().poll(cx) {
                        Poll::Ready(result) => Poll::Ready(Some(result)),
                        Poll::Pending => {
                            cx.waker().wake_by_ref();
                            Poll::Pending
                        }
                    }
                });
                match outcome.await {
                    Some(result) => {
                        assert_eq!(result.expect("passes"), passed + 1);
                        passed += 1;
                    }
                    None => dropped += 1,
                }
            }
            assert!(dropped > rounds / 20, "{dropped} were dropped");
            let one = sender.await.expect("ends");
            one.endpoint().flush().await.expect("flushed");
            assert_eq!((two.pending(), two.waiting()), (0, 0));
        });
    }
}

/// Who waits first passes first, and who goes gives up its place.
#[test]
fn waits_pass_in_order() {
    on_every_carrier(|carrier| async move {
        let ranks = carrier.ranks().await;
        let [one, two] = pair(&ranks).await;
        let woken = Arc::new(AtomicBool::new(false));
        struct Note(Arc<AtomicBool>);
        impl std::task::Wake for Note {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let waker = Waker::from(Arc::new(Note(woken.clone())));
        let mut waits: Vec<_> = (0..4).map(|_| Box::pin(two.wait())).collect();
        for wait in &mut waits {
            assert!(look(wait, &waker).is_pending());
        }
        assert_eq!(two.waiting(), 4);
        one.signal().await.expect("signalled");
        until("the signal", || two.pending() > 0).await;
        assert!(look(&mut waits[1], &waker).is_pending(), "not its turn");
        assert!(!two.poll(), "the one in front is served first");
        // The first gives up: the second moves up, and is told.
        until("the last wake", || !woken.swap(false, Ordering::SeqCst)).await;
        drop(waits.remove(0));
        assert!(woken.load(Ordering::SeqCst), "the others moved up");
        assert!(look(&mut waits[1], &waker).is_pending());
        assert_eq!(
            look(&mut waits[0], &waker).map(Result::ok),
            Poll::Ready(Some(1))
        );
        drop(waits);
        assert_eq!(two.waiting(), 0);

        let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..10)
            .map(|number| {
                let (two, order) = (two.clone(), order.clone());
                let wait = async move {
                    let ticket = two.wait().await.expect("passes");
                    order.lock().push((ticket, number));
                };
                Box::pin(wait)
            })
            .collect();
        let mut all = Box::pin(futures::future::join_all(tasks));
        assert!(look(&mut all, Waker::noop()).is_pending());
        for _ in 0..10 {
            one.signal().await.expect("signalled");
        }
        all.await;
        let order = order.lock();
        assert!(
            order.iter().all(|(ticket, number)| *ticket == number + 2),
            "{order:?}"
        );
    });
}

/// Under every policy, with several tasks that wait, and a receiver that sleeps.
#[test]
fn sleepers_are_woken_under_every_policy() {
    let policies = [
        Progress::Adaptive,
        Progress::EventDriven,
        Progress::Thread,
        Progress::Spin(Duration::from_micros(20)),
    ];
    for carrier in [Carrier::Shm, Carrier::Tcp, Carrier::RcVerbs] {
        for progress in policies {
            eprintln!("{carrier:?} {progress:?}");
            run(async move {
                let context = carrier.builder().progress(progress).build();
                let ranks = carrier.ranks_of(context.expect("a context")).await;
                let [one, two] = pair(&ranks).await;
                let mut tasks = Vec::new();
                for _ in 0..4 {
                    let two = two.clone();
                    tasks.push(tokio::spawn(async move {
                        for _ in 0..50 {
                            two.wait().await.expect("passes");
                        }
                    }));
                }
                for round in 0..200 {
                    one.signal().await.expect("signalled");
                    if round % 20 == 0 {
                        // All sleep, or their last have passed.
                        until("the signal's end", || two.pending() == 0).await;
                    }
                }
                for task in tasks {
                    task.await.expect("all pass");
                }
                assert_eq!((two.pending(), two.waiting()), (0, 0));
            });
        }
    }
}

/// A wait does not outlive the connection, but what came before its end counts.
#[test]
fn the_end_of_the_connection_ends_waits() {
    for carrier in [Carrier::Shm, Carrier::Tcp, Carrier::RcVerbs] {
        run(async move {
            let ranks = carrier.ranks().await;
            let [one, two] = pair(&ranks).await;
            one.signal().await.expect("signalled");
            one.endpoint().flush().await.expect("flushed");
            assert_eq!(two.wait().await.expect("came before"), 1);
            let waiting = tokio::spawn({
                let two = two.clone();
                async move { two.wait().await }
            });
            until("the second wait", || two.waiting() == 1).await;
            two.endpoint().abort();
            let error = waiting.await.expect("ends").expect_err("over");
            assert_eq!(error.operation(), Some(Operation::Signal), "{error}");
            let mut signals = two.signals();
            assert!(signals.next().await.is_some_and(|signal| signal.is_err()));
            assert!(signals.next().await.is_none());
        });
    }
}

#[test]
fn bad_input() {
    run(async {
        let ranks = Carrier::Shm.ranks().await;
        let no = Semaphore::pair(&ranks[0], 2, 1)
            .await
            .expect_err("no rank 2");
        assert_eq!(no.kind(), ErrorKind::InvalidArgument);
        // Something else under its tag.
        ranks[1].send(0, 9, "not a semaphore").await.expect("sent");
        let no = Semaphore::pair(&ranks[0], 1, 9).await.expect_err("garbage");
        assert_eq!(no.kind(), ErrorKind::Malformed, "{no}");
        // What is no offer of a semaphore.
        let memory = ranks[1].register(vec![0; 16], wharf::Access::WRITE).await;
        let memory = memory.expect("registered").serialize().expect("bytes");
        ranks[1].send(0, 10, memory).await.expect("sent");
        let no = Semaphore::pair(&ranks[0], 1, 10)
            .await
            .expect_err("no offer");
        assert_eq!(no.kind(), ErrorKind::Malformed, "{no}");
    });
}

/// Attempts are given up at either end, at any time: the next one makes two ends of one semaphore all the same, under the same tag.
#[test]
fn an_attempt_that_was_given_up_is_not_taken_for_the_next() {
    for carrier in [Carrier::Shm, Carrier::Tcp, Carrier::Own] {
        eprintln!("{carrier:?}");
        run(async move {
            let ranks = carrier.ranks().await;
            let peers = carrier.peers();
            let attempt = |end: usize| Semaphore::pair(&ranks[end], peers[end], 1);
            let brief = |end: usize, micros| {
                tokio::time::timeout(Duration::from_micros(micros), attempt(end))
            };
            for round in 0..40_u64 {
                // Alone, after the other, or at the same time: offers and answers of these are left.
                let micros = round % 8 * 200;
                match round % 4 {
                    0 => drop(brief(0, 5000).await),
                    1 => drop((brief(0, 5000).await, brief(1, 5000).await)),
                    2 if carrier != Carrier::Own => {
                        drop(tokio::join!(brief(0, micros), brief(1, 5000)));
                    }
                    _ => drop(brief(1, micros).await),
                }
                let [one, two] = pair(&ranks).await;
                one.signal().await.expect("signalled");
                two.wait().await.expect("passes");
                two.signal().await.expect("signalled");
                one.wait().await.expect("passes");
            }
        });
    }
}

/// The peer's end is gone: whoever signals is told, at once or by the next flush.
#[test]
fn a_signal_to_nobody_is_told() {
    for carrier in [Carrier::Shm, Carrier::Tcp, Carrier::RcVerbs] {
        run(async move {
            let ranks = carrier.ranks().await;
            let [one, two] = pair(&ranks).await;
            for _ in 0..100 {
                one.signal().await.expect("signalled");
            }
            one.endpoint().flush().await.expect("flushed");
            drop(two);
            let told = match one.signal().await {
                Ok(()) => one.endpoint().flush().await,
                told => told,
            };
            assert_eq!(told.expect_err("nobody").kind(), ErrorKind::StaleKey);
        });
    }
}

/// A signal behind a stream that nobody knows is not sent.
#[test]
fn a_stream_of_no_accelerator() {
    run(async {
        let ranks = Carrier::Shm.ranks().await;
        let [one, two] = pair(&ranks).await;
        // SAFETY: no engine takes it.
        let stream = unsafe { CudaStream::from_raw(std::ptr::dangling_mut(), 0) };
        let error = one.signal_after(stream).await.expect_err("not in use");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        one.endpoint().flush().await.expect("flushed");
        assert_eq!(two.pending(), 0);
    });
}
