//! Receives from one peer, and those that allocate by the length of their message.

use std::time::Duration;

use futures::FutureExt as _;
use wharf::{Endpoint, ErrorKind, Mask, Op, Received, Tag, Worker};

use crate::{
    fixture::{SIZES, Way, a_while, connect, pattern, run, run_on_threads, same},
    support::{LIMIT, until},
};

async fn sent(endpoint: &Endpoint, tag: u64, text: &'static str) {
    endpoint.tag_send(tag, text).await.expect("sent");
}

/// Until so many messages have come for which nobody waits.
async fn here(worker: &Worker, messages: u64) {
    until("messages", || {
        worker.progress();
        worker.metrics().held.unexpected_messages >= messages
    })
    .await;
}

fn posted(endpoint: &Endpoint, tag: u64) -> Op<Received<Vec<u8>>> {
    endpoint.tag_recv(tag, vec![0; 64]).post()
}

fn any(worker: &Worker, tag: u64) -> Op<Received<Vec<u8>>> {
    worker.tag_recv(tag, vec![0; 64]).post()
}

async fn text(
    receive: impl Future<Output = Result<Received<Vec<u8>>, wharf::OpError<Vec<u8>>>>,
) -> String {
    let received = receive.await.expect("a message");
    String::from_utf8(received.bytes().to_vec()).expect("text")
}

scenarios! { everywhere:
    /// Whichever comes first, at every size, into a buffer and into memory of their length.
    async fn sizes(way: Way) {
        let pair = way.pair().await;
        let end = &pair.there.endpoint;
        for (index, size) in SIZES.into_iter().enumerate() {
            let bytes = pattern(size, index);
            for early in [true, false] {
                for sync in [true, false] {
                    let send = async {
                        if early {
                            // The receive beside it is polled.
                            tokio::task::yield_now().await;
                        }
                        let send = pair.here.endpoint.tag_send(Tag(3), bytes);
                        match sync {
                            true => send.sync().await,
                            false => send.await,
                        }
                        .expect("sent");
                    };
                    let receive = async {
                        if !early {
                            until("the message", || pair.there.worker.tag_probe(3, Mask::ALL).is_some()).await;
                        }
                        match index % 2 {
                            0 => {
                                let received = end.tag_recv(3, vec![0xee; size + 3]).await.expect("a message");
                                assert_eq!((received.tag, received.from), (Tag(3), end.id()));
                                assert_eq!(received.buffer[size..], [0xee; 3]);
                                same(received.bytes(), bytes, size);
                            }
                            _ => {
                                let received = end.tag_recv_bytes(3, size).await.expect("a message");
                                assert_eq!((received.tag, received.from, received.len), (Tag(3), end.id(), size));
                                same(&received.buffer, bytes, size);
                            }
                        }
                    };
                    tokio::join!(send, receive);
                }
            }
        }
        assert_eq!(pair.there.worker.in_flight(), 0);
    }

    /// Without a mask, exactly the tag; with one, the bits of it.
    async fn tags(way: Way) {
        let pair = way.pair().await;
        let end = &pair.there.endpoint;
        let waits = [posted(end, 0x11), end.tag_recv(0x20, vec![0; 64]).mask(Mask(0xf0)).post()];
        for (tag, text) in [(0x10, "0x10"), (0x11, "0x11"), (0x2f, "0x2f"), (0x21, "0x21")] {
            sent(&pair.here.endpoint, tag, text).await;
        }
        let [exact, masked] = waits;
        assert_eq!(text(exact).await, "0x11");
        assert_eq!(text(masked).await, "0x2f");
        let received = end.tag_recv_bytes(0, 64).mask(Mask(0xf)).await.expect("a message");
        assert_eq!(received.bytes(), b"0x10");
        let matched = end.tag_matched(0).mask(Mask::NONE).await.expect("a message");
        assert_eq!(matched.info().tag, Tag(0x21));
        assert_eq!(text(matched.recv(vec![0; 4])).await, "0x21");
    }

    /// One order with the receives that take any peer's message.
    async fn in_turn(way: Way) {
        let pair = way.pair().await;
        let (worker, end) = (&pair.there.worker, &pair.there.endpoint);
        let waits = [any(worker, 1), posted(end, 1), any(worker, 1), posted(end, 1)];
        let masked = worker.tag_recv(0, vec![0; 64]).mask(Mask::NONE).post();
        for text in ["first", "second", "third", "fourth", "fifth"] {
            sent(&pair.here.endpoint, 1, text).await;
        }
        for (wait, wanted) in waits.into_iter().chain([masked]).zip(["first", "second", "third", "fourth", "fifth"]) {
            assert_eq!(text(wait).await, wanted);
        }
        // What is over leaves nothing: the short ways are open again.
        assert_eq!(worker.in_flight(), 0);
        let later = any(worker, 1);
        sent(&pair.here.endpoint, 1, "sixth").await;
        assert_eq!(text(later).await, "sixth");
    }

    /// One that is dropped, cancelled or too late takes no message with it.
    async fn given_up(way: Way) {
        let pair = way.pair().await;
        let end = &pair.there.endpoint;
        for size in [8, 9000, 300_000] {
            drop(posted(end, 5));
            let cancelled = posted(end, 5).cancel().await.expect_err("nothing came");
            assert_eq!(cancelled.kind(), ErrorKind::Canceled);
            assert_eq!(cancelled.into_parts().1.expect("it comes back").len(), 64);
            let late = end.tag_recv(5, vec![0; size]).deadline(Duration::from_millis(5)).await.expect_err("nothing came");
            assert_eq!((late.kind(), late.into_parts().1.map(|buffer| buffer.len())), (ErrorKind::DeadlineExceeded, Some(size)));
            let late = end.tag_recv_bytes(5, size).deadline(Duration::from_millis(5)).await.expect_err("nothing came");
            assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
            assert!(end.tag_recv_bytes(5, size).now_or_never().is_none());
            let begun = end.tag_recv(5, vec![0; size]).post();
            let send = pair.here.endpoint.tag_send(5, pattern(size, 1)).post().expect("posted");
            until("it has come", || pair.there.worker.progress() == 0).await;
            drop(begun);
            let (received, send) = tokio::join!(end.tag_recv_bytes(5, size), send);
            send.expect("sent");
            same(received.expect("a message").bytes(), pattern(size, 1), size);
        }
        assert_eq!(pair.there.worker.in_flight(), 0);
    }

    /// What is longer than the limit costs no memory, and is gone; its sender is done.
    async fn limits(way: Way) {
        let pair = way.pair().await;
        let (worker, end) = (&pair.there.worker, &pair.there.endpoint);
        for size in [10, 5000, 100_000, 8 << 20] {
            for any in [true, false] {
                let (received, ()) = tokio::join!(
                    async {
                        match any {
                            true => worker.tag_recv_bytes(9, size - 1).await,
                            false => end.tag_recv_bytes(9, size - 1).await,
                        }
                    },
                    pair.here.send(9, pattern(size, 2)),
                );
                let error = received.expect_err("too long");
                assert_eq!(error.kind(), ErrorKind::Truncated, "{error}");
                assert!(error.to_string().contains(&(size - 1).to_string()), "{error}");
                assert!(worker.tag_probe(9, Mask::ALL).is_none(), "it is gone");
                let (error, ()) = tokio::join!(end.tag_recv(9, vec![0; size - 1]), pair.here.send(9, pattern(size, 2)));
                assert_eq!(error.expect_err("too long").kind(), ErrorKind::Truncated);
            }
        }
        let (received, ()) = tokio::join!(worker.tag_recv_bytes(9, 5), pair.here.send(9, pattern(5, 2)));
        assert_eq!(received.expect("as long as it may be").bytes(), pattern(5, 2));
    }
}

scenarios! { between workers:
    /// Others' messages are left to others.
    async fn of_two_peers(way: Way) {
        let pair = way.pair().await;
        let (worker, end) = (&pair.there.worker, &pair.there.endpoint);
        let third = way.worker();
        let (third, other) = connect(&third, worker).await;
        let own = &pair.here.endpoint;
        for round in 0..3 {
            // They wait.
            let waits = [any(worker, 7), posted(end, 7), posted(&other, 7), any(worker, 7)];
            let order: [(&Endpoint, &str); 4] = match round {
                0 => [(&third, "any"), (&third, "other"), (own, "own"), (own, "late")],
                1 => [(own, "any"), (own, "own"), (own, "late"), (&third, "other")],
                _ => [(own, "any"), (&third, "other"), (&third, "late"), (own, "own")],
            };
            for (from, text) in order {
                // In this order at the other end, whichever link is read first.
                from.tag_send(7, text).sync().await.expect("matched");
            }
            for (wait, wanted) in waits.into_iter().zip(["any", "own", "other", "late"]) {
                assert_eq!(text(wait).await, wanted, "of round {round}");
            }
            // They are late.
            for text in ["first", "second"] {
                sent(&third, 7, text).await;
                here(worker, 1).await;
                sent(own, 7, text).await;
            }
            here(worker, 4).await;
            assert_eq!(text(end.tag_recv(7, vec![0; 64])).await, "first");
            let second = end.tag_recv_bytes(0, 64).mask(Mask::NONE).await.expect("a message");
            assert_eq!((second.bytes(), second.from), (&b"second"[..], end.id()));
            assert!(end.tag_recv(7, vec![0; 64]).now_or_never().is_none(), "the others are not its own");
            assert_eq!(text(other.tag_recv(7, vec![0; 64])).await, "first");
            assert_eq!(text(any(worker, 7)).await, "second");
            assert_eq!(worker.in_flight(), 0);
        }
    }

    /// The peer goes: what it sent is received, and then nobody waits any more.
    async fn ends_with_its_peer(way: Way) {
        for ending in 0..4 {
            let pair = way.pair().await;
            let end = pair.there.endpoint.clone();
            let third = way.worker();
            let (third, _other) = connect(&third, &pair.there.worker).await;
            sent(&pair.here.endpoint, 1, "before").await;
            here(&pair.there.worker, 1).await;
            let (first, second) = (posted(&end, 2), posted(&end, 2));
            let (bytes, claim) = (end.tag_recv_bytes(2, 64), end.tag_matched(2));
            let waits = async { tokio::join!(first, second, bytes, claim) };
            let goes = async {
                a_while().await;
                sent(&pair.here.endpoint, 2, "last").await;
                match ending {
                    0 => pair.here.endpoint.close().await.expect("closed"),
                    1 => pair.here.worker.shutdown(LIMIT).await.expect("shut down"),
                    2 => {
                        until("it has arrived", || pair.there.worker.in_flight() < 4).await;
                        pair.here.endpoint.abort();
                    }
                    _ => {
                        until("it has arrived", || pair.there.worker.in_flight() < 4).await;
                        pair.there.endpoint.close().await.expect("closed");
                    }
                }
            };
            let ((first, second, bytes, claim), ()) = tokio::join!(waits, goes);
            assert_eq!(first.expect("it came before").bytes(), b"last");
            let second = second.expect_err("no more comes");
            let kinds = [second.kind(), bytes.expect_err("no more").kind(), claim.expect_err("no more").kind()];
            let wanted = match ending {
                0 | 1 => ErrorKind::ClosedByPeer,
                2 => ErrorKind::AbortedByPeer,
                _ => ErrorKind::Closed,
            };
            assert_eq!(kinds, [wanted; 3], "of ending {ending}: {second}");
            assert_eq!(second.into_parts().1.expect("it comes back").len(), 64);
            end.closed().await;
            assert_eq!(text(end.tag_recv(1, vec![0; 64])).await, "before");
            let error = end.tag_recv(1, vec![0; 64]).await.expect_err("over");
            assert_eq!(error.kind(), wanted);
            assert_eq!(end.tag_recv_bytes(1, 64).await.expect_err("over").kind(), wanted);
            // The others are as they were.
            let (later, ()) = tokio::join!(text(any(&pair.there.worker, 2)), sent(&third, 2, "third"));
            assert_eq!(later, "third");
            assert_eq!(pair.there.worker.in_flight(), 0);
        }
    }

    /// The worker goes.
    async fn ends_with_its_worker(way: Way) {
        let pair = way.pair().await;
        let (first, second) = (posted(&pair.there.endpoint, 2), pair.there.worker.tag_recv_bytes(2, 9));
        let (first, second, over) = tokio::join!(first, second, async {
            a_while().await;
            pair.there.worker.shutdown(LIMIT).await
        });
        over.expect("shut down");
        assert_eq!(first.expect_err("over").kind(), ErrorKind::Closed);
        assert_eq!(second.expect_err("over").kind(), ErrorKind::Closed);
        let late = pair.there.endpoint.tag_recv(2, vec![0; 8]).await.expect_err("over");
        assert_eq!(late.kind(), ErrorKind::Closed);
    }
}
