//! `Op::cancel` and deadlines at every stage: an operation either ended as it should, or did not happen.

use std::{pin::Pin, task::Poll, time::Duration};

use wharf::{Access, ErrorKind, Mask, Tag, Worker};

use crate::{
    guarded::{Guard, bytes, expect_bytes},
    sides::{BETWEEN, Between, Case, Path, SIZES, Sides, on_every_path, poll_some},
    support::{LIMIT, watchdog},
};

on_every_path!(cancelled_receive);
on_every_path!(cancelled_send);
on_every_path!(cancelled_access);
on_every_path!(deadlines);

fn cases() -> impl Iterator<Item = (usize, Between, usize)> {
    SIZES.into_iter().flat_map(|size| {
        BETWEEN
            .into_iter()
            .flat_map(move |between| (0..4).map(move |polls| (size, between, polls)))
    })
}

/// Operations may be moved after they were polled.
fn unpinned<T: Unpin>(pinned: Pin<Box<T>>) -> T {
    *Pin::into_inner(pinned)
}

async fn cancelled_receive(path: Path) {
    let sides = Sides::new(path).await;
    for (size, between, polls) in cases() {
        let _case = Case(format!("{size} bytes, {between:?} between {polls} polls"));
        let guard = Guard::default();
        let seed = sides.fresh();
        let tag = Tag(seed);
        // Nothing was sent: the buffer comes back.
        let mut receive = Box::pin(sides.a.tag_recv(tag, guard.target(size)).post());
        let ended = poll_some(receive.as_mut(), polls, between, &sides.a, &sides.b).await;
        assert!(ended.is_none(), "nothing was sent");
        let error = unpinned(receive)
            .cancel()
            .await
            .expect_err("nothing was sent");
        assert_eq!(error.kind(), ErrorKind::Canceled);
        let (_, buffer) = error.into_parts();
        assert_eq!(buffer.expect("the buffer").len(), size);
        // Something was.
        let mut receive = Box::pin(sides.a.tag_recv(tag, guard.target(size)).post());
        let source = guard.source(bytes(seed, size));
        let send = sides.to_a.tag_send(tag, source).post().expect("room");
        let mut ended = poll_some(receive.as_mut(), polls, between, &sides.a, &sides.b).await;
        if ended.is_none() {
            ended = Some(unpinned(receive).cancel().await);
        }
        let received = match ended.expect("just set") {
            Ok(received) => received,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Canceled);
                let (_, buffer) = error.into_parts();
                let buffer = buffer.expect("the buffer");
                assert_eq!(buffer.len(), size);
                let again = sides.a.tag_recv(tag, buffer).await;
                again.expect("the message")
            }
        };
        assert_eq!(received.len, size);
        expect_bytes(seed, received.buffer.as_slice().expect("host memory"));
        send.await.expect("sent");
        drop(received);
        guard.check();
    }
    sides.expect_works().await;
    sides.shutdown().await;
}

async fn cancelled_send(path: Path) {
    let sides = Sides::new(path).await;
    for (size, between, polls) in cases() {
        for matched in [false, true] {
            for sync in [false, true] {
                let _case = Case(format!(
                    "{size} bytes, {between:?} between {polls} polls, matched: {matched}, sync: {sync}"
                ));
                let guard = Guard::default();
                let seeds = [sides.fresh(), sides.fresh()];
                let tag = Tag(seeds[0]);
                let posted = matched.then(|| sides.b.tag_recv(tag, guard.target(size)).post());
                let send = sides
                    .to_b
                    .tag_send(tag, guard.source(bytes(seeds[0], size)));
                let send = if sync { send.sync() } else { send };
                let mut send = Box::pin(send.post().expect("room"));
                let mut ended = poll_some(send.as_mut(), polls, between, &sides.a, &sides.b).await;
                if ended.is_none() {
                    let cancel = unpinned(send).cancel();
                    // A synchronous send that has left cannot be stopped, so somebody must receive it.
                    let mut cancel = Box::pin(cancel);
                    for _ in 0..20 {
                        ended =
                            poll_some(cancel.as_mut(), 1, Between::All, &sides.a, &sides.b).await;
                        if ended.is_some() {
                            break;
                        }
                    }
                    if ended.is_none() {
                        let receive = async {
                            match posted {
                                Some(posted) => posted.await,
                                None => sides.b.tag_recv(tag, guard.target(size)).await,
                            }
                        };
                        let (sent, received) = tokio::join!(cancel, receive);
                        sent.expect("it could not be stopped");
                        let received = received.expect("the message");
                        expect_bytes(seeds[0], received.buffer.as_slice().expect("host memory"));
                        drop(received);
                        guard.check();
                        continue;
                    }
                }
                let sent = match ended.expect("just set") {
                    Ok(()) => true,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Canceled);
                        false
                    }
                };
                let second = guard.source(bytes(seeds[1], size));
                let last = sides.to_b.tag_send(tag, second).post().expect("room");
                let mut posted = posted;
                for &seed in if sent { &seeds[..] } else { &seeds[1..] } {
                    let received = match posted.take() {
                        Some(posted) => posted.await,
                        None => sides.b.tag_recv(tag, guard.target(size)).await,
                    };
                    let received = received.expect("the message");
                    assert_eq!(received.len, size);
                    expect_bytes(seed, received.buffer.as_slice().expect("host memory"));
                }
                last.await.expect("sent");
                guard.check();
            }
        }
    }
    sides.expect_works().await;
    sides.shutdown().await;
}

async fn cancelled_access(path: Path) {
    let sides = Sides::new(path).await;
    let room = SIZES[SIZES.len() - 1];
    for own in [false, true] {
        let access = Access::READ | Access::WRITE;
        let region = if own {
            let memory = sides.context.allocate(room).await.expect("memory");
            sides.b_context().expose(memory, access).await
        } else {
            sides.b_context().expose(vec![0; room], access).await
        };
        let region = region.expect("a region");
        let descriptor = region.descriptor().expect("a descriptor");
        let remote = sides.to_b.import(&descriptor).expect("its memory");
        for (size, between, polls) in cases() {
            let _case = Case(format!(
                "{size} bytes, {between:?} between {polls} polls, own: {own}"
            ));
            let guard = Guard::default();
            let seed = sides.fresh();
            region.write_at(0, bytes(seed + 1, size)).expect("in it");
            let source = guard.source(bytes(seed, size));
            let mut put = Box::pin(sides.to_b.put(source, remote.clone()).post().expect("room"));
            let mut ended = poll_some(put.as_mut(), polls, between, &sides.a, &sides.b).await;
            if ended.is_none() {
                ended = Some(unpinned(put).cancel().await);
            }
            sides.to_b.flush().await.expect("a flush");
            let mut found = vec![0; size];
            region.read_at(0, &mut found).expect("in it");
            match ended.expect("just set") {
                Ok(()) => expect_bytes(seed, &found),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Canceled);
                    expect_bytes(seed + 1, &found);
                }
            }
            region.write_at(0, bytes(seed, size)).expect("in it");
            let get = sides.to_b.get(remote.slice(..size), guard.target(size));
            let mut get = Box::pin(get.post().expect("room"));
            let mut ended = poll_some(get.as_mut(), polls, between, &sides.a, &sides.b).await;
            if ended.is_none() {
                ended = Some(unpinned(get).cancel().await);
            }
            match ended.expect("just set") {
                Ok(buffer) => expect_bytes(seed, buffer.as_slice().expect("host memory")),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Canceled);
                    let (_, buffer) = error.into_parts();
                    if let Some(buffer) = buffer {
                        assert_eq!(buffer.len(), size);
                    }
                }
            }
            sides.to_b.flush().await.expect("a flush");
            guard.check();
        }
        sides.expect_works().await;
        drop(region.unexpose().await);
    }
    sides.shutdown().await;
}

/// Deadlines that pass before, while and after the other end does its part.
async fn deadlines(path: Path) {
    let sides = Sides::new(path).await;
    for size in SIZES {
        for micros in [0, 50, 2_000] {
            let _case = Case(format!("{size} bytes, {micros} µs"));
            let guard = Guard::default();
            let limit = Duration::from_micros(micros);
            let seed = sides.fresh();
            let tag = Tag(seed);
            // Nothing comes.
            let receive = sides.a.tag_recv(tag, guard.target(size));
            let error = receive.deadline(limit).await.expect_err("nothing was sent");
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
            let (_, buffer) = error.into_parts();
            assert_eq!(buffer.expect("the buffer").len(), size);
            // It comes at about the same time: nothing is lost.
            let (received, sent) = tokio::join!(
                sides.a.tag_recv(tag, guard.target(size)).deadline(limit),
                std::future::poll_fn(|_| {
                    let send = sides.to_a.tag_send(tag, guard.source(bytes(seed, size)));
                    Poll::Ready(send.post().expect("room"))
                })
            );
            let received = match received {
                Ok(received) => received,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
                    let again = sides.a.tag_recv(tag, guard.target(size)).await;
                    again.expect("the message")
                }
            };
            assert_eq!(received.len, size);
            expect_bytes(seed, received.buffer.as_slice().expect("host memory"));
            drop(received);
            sent.await.expect("sent");
            // Nobody receives: a synchronous send runs into it, and is received later or not at all.
            let send = sides.to_a.tag_send(tag, guard.source(bytes(seed, size)));
            let error = send
                .sync()
                .deadline(limit)
                .await
                .expect_err("nobody received it");
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
            let marker = sides.to_a.tag_send(tag, "end").post().expect("room");
            loop {
                let received = sides.a.tag_recv(tag, guard.target(size.max(3))).await;
                let received = received.expect("a message");
                let found = &received.buffer.as_slice().expect("host memory")[..received.len];
                if found == b"end" {
                    break;
                }
                assert_eq!(received.len, size);
                expect_bytes(seed, found);
            }
            marker.await.expect("sent");
            sides.to_a.flush().await.expect("a flush");
            guard.check();
        }
    }
    sides.expect_works().await;
    sides.shutdown().await;
}

/// On a runtime that was shut down nothing can be said to the peer any more: its worker's memory goes all the same, and not from under it.
#[test]
fn a_worker_goes_after_its_runtime() {
    const LENGTH: usize = 8 << 20;
    for round in 0..24_u64 {
        let guard = Guard::default();
        let here = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let there = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let (worker, endpoint, sent) = here.block_on(watchdog(LIMIT, async {
            let worker = Worker::new(&Path::Shm.context()).expect("a worker");
            let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
            let address = listener.local_addr();
            let sent = there.spawn(watchdog(LIMIT, async move {
                let worker = Worker::new(&Path::Shm.context()).expect("a worker");
                let endpoint = worker.connect(address).await.expect("a connection");
                let sent = endpoint
                    .tag_send(Tag(1), bytes(round, LENGTH).to_vec())
                    .await;
                if sent.is_ok() {
                    // A peer that is gone may have had it before.
                    endpoint.closed().await;
                }
            }));
            let endpoint = listener.accept().await.expect("a request").accept().await;
            (worker, endpoint.expect("a connection"), sent)
        }));
        here.block_on(watchdog(LIMIT, async {
            while worker.tag_probe(Tag(1), Mask::ALL).is_none() {
                tokio::task::yield_now().await;
            }
            let mut receive = Box::pin(worker.tag_recv(Tag(1), guard.target(LENGTH)).post());
            let polls = round as usize % 4;
            poll_some(receive.as_mut(), polls, Between::Nothing, &worker, &worker).await;
        }));
        drop(here);
        drop((endpoint, worker));
        there.block_on(sent).expect("the peer hears of it and ends");
        while guard.is_lent() {
            std::thread::yield_now();
        }
        guard.check();
    }
}
