//! The user's code that a worker runs: callbacks and wakers. It runs where it expects to, and its panics are its own.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    task::{Context as TaskContext, Poll, Wake, Waker},
};

use futures::FutureExt;
use tokio::sync::mpsc::unbounded_channel;
use wharf::{AmId, Progress, Tag};

use crate::fixture::{Pair, Way, a_while, run};

const WAYS: [Way; 3] = [Way::Own, Way::Shm, Way::Tcp];
const PROGRESS: [Progress; 3] = [Progress::Adaptive, Progress::EventDriven, Progress::Thread];

async fn pair(way: Way, progress: Progress) -> Pair {
    eprintln!("{way:?}, {progress:?}");
    let context = way.builder().progress(progress).build().expect("a context");
    Pair::of(&context, way).await
}

/// Demands that a worker still does its part while nobody but its reactor, or thread, looks.
async fn expect_works(pair: &Pair) {
    for round in 0..3_u64 {
        let receive = tokio::spawn({
            let worker = pair.there.worker.clone();
            async move { worker.tag_recv(Tag(77), vec![0; 8]).await }
        });
        a_while().await;
        pair.here.send(77, round.to_le_bytes().to_vec()).await;
        let received = receive.await.expect("no panic").expect("a message");
        assert_eq!(received.buffer, round.to_le_bytes());
    }
}

#[test]
fn a_callback_may_spawn() {
    run(async {
        for progress in PROGRESS {
            for way in WAYS {
                let pair = pair(way, progress).await;
                let (sender, mut heard) = unbounded_channel();
                let inbox = pair.there.worker.active_messages(AmId(1));
                let handler = inbox.on_message(move |message| {
                    let (sender, message) = (sender.clone(), message.keep());
                    tokio::spawn(async move {
                        let bytes = message.bytes().await.expect("a payload");
                        let _ = sender.send(bytes.len());
                    });
                });
                let handler = handler.expect("a callback");
                for length in [5, 300_000] {
                    let payload = vec![1; length];
                    let sent = pair.here.endpoint.am_send(AmId(1), "", payload);
                    let (sent, heard) = tokio::join!(sent, heard.recv());
                    sent.expect("sent");
                    assert_eq!(heard, Some(length));
                }
                // From a loop that is not Tokio's, too.
                let send = pair.here.endpoint.am_send(AmId(1), "", vec![1; 7]).post();
                let worker = pair.there.worker.clone();
                let (over, is_over) = std::sync::mpsc::channel::<()>();
                let outside = std::thread::spawn(move || {
                    while is_over.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                        worker.progress();
                        std::thread::yield_now();
                    }
                });
                send.expect("room").await.expect("sent");
                assert_eq!(heard.recv().await, Some(7));
                drop(over);
                outside.join().expect("no panic");
                drop(handler);
            }
        }
    });
}

#[test]
fn a_callback_that_panics_ends_itself_alone() {
    run(async {
        for progress in PROGRESS {
            for way in WAYS {
                let pair = pair(way, progress).await;
                let (sender, mut heard) = unbounded_channel();
                let inbox = pair.there.worker.active_messages(AmId(1));
                let handler = inbox.on_message(move |message| {
                    let header = message.header().to_vec();
                    assert_ne!(header, b"panic", "of the test's");
                    sender.send(header).expect("heard");
                });
                let handler = handler.expect("a callback");
                for header in ["panic", "one", "panic", "two"] {
                    let sent = pair.here.endpoint.am_send(AmId(1), header, "").await;
                    sent.expect("sent");
                }
                assert_eq!(heard.recv().await.as_deref(), Some(&b"one"[..]));
                assert_eq!(heard.recv().await.as_deref(), Some(&b"two"[..]));
                expect_works(&pair).await;
                drop(handler);
            }
        }
    });
}

struct Panics(AtomicU32);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
        panic!("a waker of the test's");
    }
}

#[test]
fn a_waker_that_panics_takes_nobody_along() {
    run(async {
        for progress in PROGRESS {
            for way in WAYS {
                let pair = pair(way, progress).await;
                let panics = Arc::new(Panics(AtomicU32::new(0)));
                let waker = Waker::from(panics.clone());
                let mut receive = pin!(pair.there.worker.tag_recv(Tag(1), vec![0; 8]));
                let polled = receive.as_mut().poll(&mut TaskContext::from_waker(&waker));
                assert!(polled.is_pending());
                // In the same pass as another's, which is woken all the same.
                let other = tokio::spawn({
                    let worker = pair.there.worker.clone();
                    async move { worker.tag_recv(Tag(2), vec![0; 8]).await }
                });
                a_while().await;
                for tag in [1, 2] {
                    let sent = pair.here.endpoint.tag_send(Tag(tag), vec![3; 8]).post();
                    drop(sent.expect("room"));
                }
                let received = other.await.expect("no panic").expect("a message");
                assert_eq!(received.buffer, [3; 8]);
                expect_works(&pair).await;
                assert_eq!(panics.0.load(SeqCst), 1);
                let mut cx = TaskContext::from_waker(Waker::noop());
                let Poll::Ready(received) = receive.as_mut().poll(&mut cx) else {
                    panic!("what it was woken for is here");
                };
                assert_eq!(received.expect("a message").buffer, [3; 8]);
            }
        }
    });
}

/// The worker does its part while a message is looked at where it arrived, also for who looks.
#[test]
fn a_look_stops_nobody() {
    run(async {
        for progress in PROGRESS {
            for way in WAYS {
                let pair = pair(way, progress).await;
                let worker = pair.there.worker.clone();
                let mut inbox = worker.active_messages(AmId(1)).open().expect("an inbox");
                let (begun, mut waits) = unbounded_channel();
                let (ends, ended) = std::sync::mpsc::channel();
                let looks = tokio::task::spawn_blocking(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().build();
                    runtime
                        .expect("a runtime")
                        .block_on(inbox.recv_with(|message| {
                            let waits = worker.tag_recv(Tag(78), vec![0; 8]);
                            assert!(waits.now_or_never().is_none());
                            begun.send(()).expect("heard");
                            ended.recv().expect("told");
                            message.data().expect("eager").to_vec()
                        }))
                });
                let sent = pair.here.endpoint.am_send(AmId(1), "", vec![7; 1000]);
                sent.await.expect("sent");
                waits.recv().await.expect("it looks");
                expect_works(&pair).await;
                ends.send(()).expect("heard");
                assert_eq!(looks.await.expect("no panic"), Some(vec![7; 1000]));
                expect_works(&pair).await;
            }
        }
    });
}
