//! Back-pressure, priorities, fairness, and what closing keeps.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use futures::future::join_all;
use wharf::{Access, Buffer, ErrorKind, Mask, Priority, Region, Worker};

use crate::{
    fixture::{Pair, Way, a_while, pattern, run, run_on_threads, same},
    support::{LIMIT, all_are, until, watchdog},
};

/// Longer than the eager window.
const LONG: usize = (1 << 20) + 3;

/// The ways on which two workers of one thread drive each other by turns.
const BETWEEN: [Way; 4] = [Way::Shm, Way::ShmWithoutCma, Way::ShmWithoutPidfd, Way::Tcp];

scenarios! { everywhere:
    /// `ready` waits while the window of posted operations is full, and ends when one of them does.
    async fn ready_waits_for_a_place(way: Way) {
        let pair = way.pair().await;
        let endpoint = pair.here.endpoint.clone();
        endpoint.ready().await.expect("nothing is posted");
        let mut posted = Vec::new();
        let error = loop {
            match endpoint.tag_send(1, pattern(LONG, 1)).post() {
                Ok(send) => posted.push(send),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        for _ in 0..3 {
            tokio::select! {
                biased;
                ready = endpoint.ready() => panic!("{ready:?} with {} posted", posted.len()),
                () = a_while() => {}
            }
        }
        let waiting = tokio::spawn({
            let endpoint = endpoint.clone();
            async move { endpoint.ready().await }
        });
        same(&pair.there.receive(1, LONG).await, pattern(LONG, 1), "the first");
        posted.remove(0).await.expect("sent");
        waiting.await.expect("no panic").expect("a place");
        endpoint.ready().await.expect("still there");
        drop(endpoint.tag_send(1, pattern(LONG, 1)).post().expect("the place"));
        // Who waits hears of the end.
        let (waiting, ()) = tokio::join!(endpoint.ready(), async {
            a_while().await;
            endpoint.abort();
        });
        assert_eq!(waiting.expect_err("no connection").kind(), ErrorKind::Closed);
        assert_eq!(endpoint.ready().await.expect_err("no connection").kind(), ErrorKind::Closed);
    }

    /// The owner of a buffer may do anything when it is dropped, and so use the worker whose operation held the buffer.
    async fn owner_that_uses_the_worker(way: Way) {
        struct Owner {
            bytes: Vec<u8>,
            worker: Worker,
            dropped: Arc<AtomicUsize>,
        }
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                &self.bytes
            }
        }
        impl Drop for Owner {
            fn drop(&mut self) {
                assert_eq!(self.worker.tag_probe(77, Mask::ALL), None);
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        let pair = way.pair().await;
        let (worker, dropped) = (pair.here.worker.clone(), Arc::new(AtomicUsize::new(0)));
        let buffer = |length: usize| -> Buffer {
            bytes::Bytes::from_owner(Owner {
                bytes: pattern(length, 5).to_vec(),
                worker: worker.clone(),
                dropped: dropped.clone(),
            }).into()
        };
        let region = pair.there.context.expose(vec![0; LONG], Access::WRITE).await.expect("exposed");
        let remote = pair.here.endpoint.import(&region.descriptor().expect("one")).expect("its memory");
        let endpoint = &pair.here.endpoint;
        let mut count = 0;
        for length in [8, 5000, 100_000, LONG] {
            // Awaited, detached, synchronous, put, refused.
            let (sent, _) = tokio::join!(endpoint.tag_send(1, buffer(length)), pair.there.receive(1, length));
            sent.expect("sent");
            drop(endpoint.tag_send(1, buffer(length)).post().expect("room"));
            pair.there.receive(1, length).await;
            let (sent, _) = tokio::join!(endpoint.tag_send(1, buffer(length)).sync(), pair.there.receive(1, length));
            sent.expect("sent");
            endpoint.put(buffer(length), remote.slice(..length)).await.expect("put");
            drop(endpoint.put(buffer(length), remote.slice(..length)).post().expect("room"));
            endpoint.flush().await.expect("flushed");
            count += 5;
            if length < LONG {
                continue;
            }
            let error = endpoint
                .tag_send(1, buffer(length))
                .sync()
                .post()
                .expect("room")
                .cancel()
                .await
                .expect_err("nobody received it");
            assert_eq!(error.kind(), ErrorKind::Canceled);
            count += 1;
        }
        // The rest goes with the connection.
        for length in [8, LONG] {
            drop(endpoint.tag_send(1, buffer(length)).sync().post().expect("room"));
            count += 1;
        }
        endpoint.abort();
        until("the last", || dropped.load(Ordering::Relaxed) >= count).await;
        assert_eq!(dropped.load(Ordering::Relaxed), count);
    }
}

scenarios! { between workers:
    /// Both ends close at the same moment: what each had sent is there at the other.
    async fn both_close_at_once(way: Way) {
        const COUNT: usize = 100;
        for round in 0..5 {
            let pair = way.pair().await;
            for side in [&pair.here, &pair.there] {
                for index in 0..COUNT {
                    side.endpoint.tag_send(index as u64, pattern(8000, index)).post().expect("room").await.expect("sent");
                }
            }
            let (here, there) = tokio::join!(pair.here.endpoint.close(), pair.there.endpoint.close());
            here.expect("closed");
            there.expect("closed");
            for side in [&pair.here, &pair.there] {
                for index in 0..COUNT {
                    let message = side.worker.tag_take(index as u64, Mask::ALL);
                    let message = message.unwrap_or_else(|| panic!("message {index} of round {round} is lost"));
                    let received = message.recv(vec![0; 8000]).await.expect("here");
                    same(&received.buffer, pattern(8000, index), index);
                }
            }
        }
    }

    /// The same with long puts before the messages, so that one end is done long before the other.
    async fn both_close_behind_puts(way: Way) {
        const COUNT: usize = 20;
        let pair = way.pair().await;
        let mut regions = Vec::new();
        for (from, to, length) in [(&pair.here, &pair.there, 1 << 10), (&pair.there, &pair.here, 16 << 20)] {
            let region = to.context.expose(vec![0; length], Access::READ.union(Access::WRITE)).await.expect("exposed");
            let remote = from.endpoint.import(&region.descriptor().expect("one")).expect("its memory");
            drop(from.endpoint.put(vec![1; length], remote).post().expect("room"));
            for index in 0..COUNT {
                drop(from.endpoint.tag_send(index as u64, pattern(1000, index)).post().expect("room"));
            }
            regions.push((region, length));
        }
        let (here, there) = tokio::join!(pair.here.endpoint.close(), pair.there.endpoint.close());
        here.expect("closed");
        there.expect("closed");
        for (side, region, length) in [(&pair.there, &regions[0].0, regions[0].1), (&pair.here, &regions[1].0, regions[1].1)] {
            for index in 0..COUNT {
                let message = side.worker.tag_take(index as u64, Mask::ALL);
                let message = message.unwrap_or_else(|| panic!("message {index} is lost"));
                let received = message.recv(vec![0; 1000]).await.expect("here");
                same(&received.buffer, pattern(1000, index), index);
            }
            let mut found = vec![0; length];
            region.read_at(0, &mut found).expect("within");
            assert!(all_are(&found, 1), "a put is lost");
        }
    }

    /// The one that closes first has all that the other sent before it heard of that.
    async fn the_other_end_sent_as_well(way: Way) {
        let pair = way.pair().await;
        let close = {
            let endpoint = pair.there.endpoint.clone();
            tokio::spawn(async move { endpoint.close().await })
        };
        let mut sent = 0;
        while let Ok(()) = pair.here.endpoint.tag_send(sent, pattern(4000, sent as usize)).await {
            sent += 1;
            if sent % 16 == 0 {
                tokio::task::yield_now().await;
            }
            // Within the window: an announced message ends with an error.
            if sent == 200 {
                break;
            }
        }
        close.await.expect("no panic").expect("closed");
        assert_eq!(pair.here.endpoint.closed().await.kind(), ErrorKind::ClosedByPeer);
        for index in 0..sent {
            same(&pair.there.receive(index, 4000).await, pattern(4000, index as usize), index);
        }
    }

    /// A receive that has matched a long message ends before the close does.
    async fn close_in_a_receive(way: Way) {
        let pair = way.pair().await;
        for posted in [false, true] {
            let pair = if posted { &way.pair().await } else { &pair };
            let send = pair.here.endpoint.tag_send(1, pattern(8 << 20, 1)).post().expect("room");
            until("the announcement", || pair.there.worker.tag_probe(1, Mask::ALL).is_some()).await;
            let receive = pair.there.worker.tag_recv(1, vec![0; 8 << 20]).post();
            let (closed, received, sent) = tokio::join!(pair.there.endpoint.close(), receive, send);
            closed.expect("closed");
            sent.expect("sent");
            same(&received.expect("received").buffer, pattern(8 << 20, 1), "the message");
        }
    }

    /// Announced and not matched: the sender hears of the close, and the claim of the message.
    async fn close_with_a_claim(way: Way) {
        let pair = way.pair().await;
        let send = pair.here.endpoint.tag_send(1, pattern(LONG, 1)).post().expect("room");
        let claim = pair.there.worker.tag_matched(1).await.expect("a message");
        pair.there.endpoint.close().await.expect("closed");
        assert_eq!(send.await.expect_err("nobody received it").kind(), ErrorKind::ClosedByPeer);
        let (error, buffer) = claim.recv(vec![7; LONG]).await.expect_err("it is gone").into_parts();
        assert_eq!((error.kind(), buffer), (ErrorKind::ConnectionReset, Some(vec![7; LONG])));
    }

    /// Puts and gets that are under way when the target's owner closes are served.
    async fn close_under_puts(way: Way) {
        let pair = way.pair().await;
        let region = pair.there.context.expose(vec![3; 4 * LONG], Access::READ.union(Access::WRITE)).await.expect("exposed");
        let remote = pair.here.endpoint.import(&region.descriptor().expect("one")).expect("its memory");
        let put = pair.here.endpoint.put(pattern(LONG, 1), remote.slice(..LONG)).post().expect("room");
        let get = pair.here.endpoint.get(remote.slice(LONG..2 * LONG), vec![0; LONG]).post().expect("room");
        let (closed, put, got) = tokio::join!(pair.there.endpoint.close(), put, get);
        closed.expect("closed");
        put.expect("put");
        assert_eq!(got.expect("got"), vec![3; LONG]);
        let mut found = vec![0; LONG];
        region.read_at(0, &mut found).expect("within");
        same(&found, pattern(LONG, 1), "what was put");
    }
}

/// A connection to oneself closes although nobody received what was announced on it.
#[test]
fn close_to_oneself() {
    run(async {
        let pair = Way::Own.pair().await;
        let endpoint = &pair.here.endpoint;
        let long = endpoint.tag_send(1, pattern(LONG, 1)).post().expect("room");
        let sync = endpoint
            .tag_send(2, pattern(10, 1))
            .sync()
            .post()
            .expect("room");
        drop(endpoint.tag_send(3, pattern(10, 1)).post().expect("room"));
        endpoint.close().await.expect("closed");
        for error in [
            long.await.expect_err("nobody received it"),
            sync.await.expect_err("nobody received it"),
            endpoint.closed().await,
        ] {
            assert_eq!(error.kind(), ErrorKind::Closed, "{error:?}");
        }
        // The short one is here.
        same(
            &pair.here.receive(3, 10).await,
            pattern(10, 1),
            "the short one",
        );
        pair.here
            .worker
            .shutdown(LIMIT)
            .await
            .expect("nothing is left");
    });
}

/// Fills the link towards `there` until operations wait in the queue.
async fn fill(pair: &Pair, way: Way) -> Option<Region> {
    if way != Way::Tcp {
        for index in 0..50 {
            drop(
                pair.here
                    .endpoint
                    .tag_send(1, pattern(8000, index))
                    .post()
                    .expect("room"),
            );
        }
        return None;
    }
    let region = pair
        .there
        .context
        .expose(vec![0; 32 << 20], Access::WRITE)
        .await
        .expect("exposed");
    let remote = pair
        .here
        .endpoint
        .import(&region.descriptor().expect("one"))
        .expect("its memory");
    drop(
        pair.here
            .endpoint
            .put(vec![1; 32 << 20], remote)
            .post()
            .expect("room"),
    );
    for index in 0..50 {
        drop(
            pair.here
                .endpoint
                .tag_send(1, pattern(8000, index))
                .post()
                .expect("room"),
        );
    }
    Some(region)
}

/// What waits on a full link goes in the order of priorities, and in the order of sending within one.
#[test]
fn priorities() {
    for way in BETWEEN {
        run(async {
            let pair = way.pair().await;
            let endpoint = &pair.here.endpoint;
            let _region = fill(&pair, way).await;
            for (tag, priority) in [
                (2, Priority::Low),
                (3, Priority::Normal),
                (4, Priority::High),
            ] {
                for index in 0..3 {
                    let send = endpoint.tag_send(tag, vec![index]).priority(priority);
                    drop(send.post().expect("room"));
                }
            }
            let mut order = Vec::new();
            let mut bulk = 0;
            while order.len() < 9 {
                let message = pair
                    .there
                    .worker
                    .tag_matched(0)
                    .mask(Mask::NONE)
                    .await
                    .expect("a message");
                let tag = message.info().tag.0;
                let received = message.recv(vec![0; 8000]).await.expect("here");
                if tag == 1 {
                    same(&received.buffer, pattern(8000, bulk), "in order");
                    bulk += 1;
                    continue;
                }
                order.push((tag, received.buffer[0], bulk));
            }
            let tags: Vec<_> = order.iter().map(|(tag, index, _)| (*tag, *index)).collect();
            let wanted = [
                (4, 0),
                (4, 1),
                (4, 2),
                (3, 0),
                (3, 1),
                (3, 2),
                (2, 0),
                (2, 1),
                (2, 2),
            ];
            assert_eq!(tags, wanted, "{way:?}");
            assert!(
                order[2].2 < 50,
                "{way:?}: after {} messages that waited before",
                order[2].2
            );
            endpoint.abort();
        });
    }
}

/// How much of a region has been written from its beginning, to a page.
fn landed(region: &Region, length: usize) -> usize {
    let written = |at: usize| {
        let mut byte = [0];
        region.read_at(at, &mut byte).expect("within");
        byte[0] != 0
    };
    let (mut low, mut high) = (0, length / 4096);
    while low < high {
        let middle = (low + high) / 2;
        if written(middle * 4096 + 4095) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low * 4096
}

/// What the kernel lets a socket's receive buffer grow to.
fn receive_buffer() -> usize {
    let limits = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").expect("a mounted /proc");
    let longest = limits
        .split_whitespace()
        .last()
        .and_then(|longest| longest.parse().ok());
    longest.expect("three numbers")
}

/// A short message sent during a long transfer to the same peer does not wait for the rest of it: by the bytes that landed between its
/// sending and its arrival.
#[test]
fn short_message_during_a_long_put() {
    const LENGTH: usize = 256 << 20;
    const FRAGMENT: usize = 256 << 10;
    for way in [Way::Own, Way::Shm, Way::ShmWithoutCma, Way::Tcp] {
        run(async {
            let pair = way.pair().await;
            let region = pair
                .there
                .context
                .expose(vec![0; LENGTH], Access::WRITE)
                .await
                .expect("exposed");
            let remote = pair
                .here
                .endpoint
                .import(&region.descriptor().expect("one"))
                .expect("its memory");
            let put = pair
                .here
                .endpoint
                .put(vec![1; LENGTH], remote)
                .post()
                .expect("room");
            let limit = match way {
                // The one that arrives in the same pass.
                Way::Own => 3 * FRAGMENT,
                // What the sockets hold: what was not sent, and what was not read.
                Way::Tcp => 2 * FRAGMENT + (256 << 10) + receive_buffer(),
                _ => 2 * FRAGMENT,
            };
            let mut worst = 0;
            for round in 1..=4 {
                while landed(&region, LENGTH) < round * (LENGTH / 8) {
                    pair.here.worker.progress();
                    pair.there.worker.progress();
                }
                pair.here.send(1, vec![1; 8]).await;
                let before = landed(&region, LENGTH);
                while pair.there.worker.tag_probe(1, Mask::ALL).is_none() {
                    if way != Way::Own {
                        pair.here.worker.progress();
                        // A connection that nothing came from for a while is read when the system says so, which a look alone does not ask.
                        pair.there.worker.progress();
                    }
                }
                let after = landed(&region, LENGTH);
                assert!(after < LENGTH, "{way:?}: the long one was over before");
                worst = worst.max(after - before);
                pair.there.receive(1, 8).await;
            }
            put.await.expect("put");
            assert!(
                worst <= limit,
                "{way:?}: {} KiB landed before it",
                worst >> 10
            );
        });
    }
}

/// A peer that reads nothing, because its runtime does not run, fills its own link; another endpoint of the same worker does not notice.
#[test]
fn slow_reader_stalls_nobody_else() {
    const COUNT: usize = 300;
    for way in BETWEEN {
        let context = way.context();
        let (addresses, address) = mpsc::channel();
        let (go_on, told) = mpsc::channel::<()>();
        let slow = {
            let context = context.clone();
            thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime");
                let (worker, endpoint) = runtime.block_on(watchdog(LIMIT, async {
                    let worker = Worker::new(&context).expect("a worker");
                    let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
                    addresses
                        .send(listener.local_addr())
                        .expect("somebody listens");
                    let endpoint = listener
                        .accept()
                        .await
                        .expect("a request")
                        .accept()
                        .await
                        .expect("a connection");
                    (worker, endpoint)
                }));
                // Nothing of this worker runs until it is told to go on.
                told.recv_timeout(LIMIT).expect("told");
                runtime.block_on(watchdog(LIMIT, async {
                    for index in 0..COUNT {
                        let received = worker.tag_recv(1, vec![0; LONG]).await.expect("a message");
                        let length = if index % 2 == 0 { 8000 } else { LONG };
                        same(
                            &received.buffer[..received.len],
                            pattern(length, index),
                            index,
                        );
                    }
                    assert_eq!(endpoint.closed().await.kind(), ErrorKind::ClosedByPeer);
                }));
            })
        };
        run(async {
            let pair = Pair::of(&context, way).await;
            let to_slow = pair
                .here
                .worker
                .connect(address.recv_timeout(LIMIT).expect("its address"))
                .await
                .expect("connected");
            let mut sends = Vec::new();
            for index in 0..COUNT {
                let length = if index % 2 == 0 { 8000 } else { LONG };
                sends.push(
                    to_slow
                        .tag_send(1, pattern(length, index))
                        .post()
                        .expect("room"),
                );
            }
            for index in 0..COUNT {
                let length = [8, 8000, LONG][index % 3];
                let (received, ()) = tokio::join!(
                    pair.there.receive(2, LONG),
                    pair.here.send(2, pattern(length, index))
                );
                same(&received, pattern(length, index), index);
                let (received, ()) = tokio::join!(
                    pair.here.receive(2, LONG),
                    pair.there.send(2, pattern(length, index))
                );
                same(&received, pattern(length, index), index);
            }
            go_on.send(()).expect("it waits");
            for send in sends {
                send.await.expect("sent");
            }
            to_slow.close().await.expect("closed");
        });
        slow.join().expect("all received");
    }
}

scenarios! { on each carrier:
    /// More messages than may be announced at a time: the rest waits at the sender, in order.
    async fn more_than_may_be_announced(way: Way) {
        const COUNT: usize = 5000;
        let context = way.builder().rendezvous_threshold(64).build().expect("a context");
        let pair = Pair::of(&context, way).await;
        let sends = join_all((0..COUNT).map(|index| pair.here.endpoint.tag_send(1, pattern(100, index))));
        let receives = async {
            a_while().await;
            for index in 0..COUNT {
                same(&pair.there.receive(1, 100).await, pattern(100, index), index);
            }
        };
        let (sends, ()) = tokio::join!(sends, receives);
        sends.into_iter().for_each(|send| send.expect("sent"));
        // Forgotten ones are delivered as well.
        let mut sends: Vec<_> = (0..COUNT).map(|index| pair.here.endpoint.tag_send(2, pattern(100, index))).collect();
        for send in &mut sends {
            let _ = futures::poll!(std::pin::Pin::new(send));
        }
        drop(sends);
        for index in 0..COUNT {
            same(&pair.there.receive(2, 100).await, pattern(100, index), index);
        }
        // Cancelled ones leave their places.
        for round in 0..2 {
            let sends: Vec<_> = (0..COUNT / 2).map(|index| {
                pair.here.endpoint.tag_send(3, pattern(100, index)).post().expect("room")
            }).collect();
            for send in join_all(sends.into_iter().map(wharf::Op::cancel)).await {
                assert_eq!(send.expect_err("nobody received it").kind(), ErrorKind::Canceled, "{round}");
            }
        }
        assert_eq!(pair.there.worker.tag_probe(3, Mask::ALL), None);
        pair.here.endpoint.flush().await.expect("nothing is left");
    }
}
