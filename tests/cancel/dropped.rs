//! Dropped, or forgotten, after each number of polls.

use std::{future::Future, pin::Pin};

use wharf::{Access, Endpoint, RemoteRegion, Tag};

use crate::{
    guarded::{Guard, bytes, expect_bytes},
    sides::{BETWEEN, Between, Case, Path, SIZES, Sides, on_every_path, poll_some},
};

const POLLS: usize = 5;

on_every_path!(receive);
on_every_path!(receive_of_a_posted_operation);
on_every_path!(matched);
on_every_path!(send);
on_every_path!(put);
on_every_path!(get);

/// How a future goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Goes {
    Dropped,
    Forgotten,
}

/// Sizes, what happens between polls, how many there are.
fn cases() -> impl Iterator<Item = (usize, Between, usize)> {
    SIZES.into_iter().flat_map(|size| {
        BETWEEN
            .into_iter()
            .flat_map(move |between| (0..=POLLS).map(move |polls| (size, between, polls)))
    })
}

fn let_go<F: Future>(future: Pin<Box<F>>, goes: Goes) {
    match goes {
        Goes::Dropped => drop(future),
        #[expect(
            clippy::mem_forget,
            clippy::disallowed_methods,
            reason = "what is tested"
        )]
        Goes::Forgotten => std::mem::forget(future),
    }
}

/// A receive that goes loses nothing: the next one has the message.
async fn receive(path: Path) {
    let sides = Sides::new(path).await;
    for (size, between, polls) in cases() {
        for early in [true, false] {
            let _case = Case(format!(
                "{size} bytes, {between:?} between {polls} polls, sent first: {early}"
            ));
            let guard = Guard::default();
            let seed = sides.fresh();
            let tag = Tag(seed);
            let source = guard.source(bytes(seed, size));
            let mut send = None;
            if early {
                send = Some(
                    sides
                        .to_a
                        .tag_send(tag, source.clone())
                        .post()
                        .expect("room"),
                );
            }
            let receive = sides.a.tag_recv(tag, guard.target(size));
            let mut receive = Box::pin(receive);
            let mut ended =
                poll_some(receive.as_mut(), polls.min(1), between, &sides.a, &sides.b).await;
            let send =
                send.unwrap_or_else(|| sides.to_a.tag_send(tag, source).post().expect("room"));
            if ended.is_none() && polls > 0 {
                between.happen(&sides.a, &sides.b).await;
                ended = poll_some(receive.as_mut(), polls - 1, between, &sides.a, &sides.b).await;
            }
            drop(receive);
            let received = match ended {
                Some(received) => received,
                None => sides.a.tag_recv(tag, guard.target(size)).await,
            };
            let received = received.expect("the message");
            assert_eq!(received.len, size);
            expect_bytes(seed, received.buffer.as_slice().expect("host memory"));
            send.await.expect("sent");
            drop(received);
            guard.check();
        }
    }
    // Forgotten ones keep their tag; all else goes on.
    for (size, between, polls) in cases() {
        let _case = Case(format!(
            "{size} bytes, {between:?} between {polls} polls, forgotten"
        ));
        let guard = Guard::default();
        let seed = sides.fresh();
        let source = guard.source(bytes(seed, size));
        let send = sides.to_a.tag_send(Tag(seed), source).post();
        drop(send.expect("room"));
        let receive = sides.a.tag_recv(Tag(seed), guard.target(size));
        let mut receive = Box::pin(receive);
        let ended = poll_some(receive.as_mut(), polls, between, &sides.a, &sides.b).await;
        if let Some(received) = ended {
            expect_bytes(
                seed,
                received
                    .expect("the message")
                    .buffer
                    .as_slice()
                    .expect("host memory"),
            );
        }
        let_go(receive, Goes::Forgotten);
        if polls == 0 {
            // It was never posted, so the message is somebody else's.
            let received = sides.a.tag_recv(Tag(seed), guard.target(size)).await;
            assert_eq!(received.expect("the message").len, size);
        }
        guard.check();
    }
    sides.expect_works().await;
    sides.shutdown().await;
}

/// The same for an operation that was posted, with more receives waiting behind it for the same tag.
async fn receive_of_a_posted_operation(path: Path) {
    let sides = Sides::new(path).await;
    for (size, between, polls) in cases() {
        let _case = Case(format!("{size} bytes, {between:?} between {polls} polls"));
        let guard = Guard::default();
        let seeds = [sides.fresh(), sides.fresh()];
        let tag = Tag(seeds[0]);
        let mut first = Box::pin(sides.a.tag_recv(tag, guard.target(size)).post());
        let sends = seeds.map(|seed| {
            let source = guard.source(bytes(seed, size));
            sides.to_a.tag_send(tag, source).post().expect("room")
        });
        let ended = poll_some(first.as_mut(), polls, between, &sides.a, &sides.b).await;
        drop(first);
        // In the order in which they were sent, even though the first went back.
        let mut left = seeds.as_slice();
        if let Some(received) = ended {
            expect_bytes(
                left[0],
                received
                    .expect("the message")
                    .buffer
                    .as_slice()
                    .expect("host memory"),
            );
            left = &left[1..];
        }
        for &seed in left {
            let received = sides.a.tag_recv(tag, guard.target(size)).await;
            let received = received.expect("the message");
            assert_eq!(received.len, size);
            let found = received.buffer.as_slice().expect("host memory");
            expect_bytes(seed, found);
        }
        for send in sends {
            send.await.expect("sent");
        }
        guard.check();
    }
    sides.expect_works().await;
    sides.shutdown().await;
}

/// A claim that goes, a claimed message that goes, and its receive.
async fn matched(path: Path) {
    let sides = Sides::new(path).await;
    for (size, between, polls) in cases() {
        // A long message that a forgotten claim holds keeps its sender waiting, and an endpoint to oneself with it.
        let stages = if size > 8000 { 3 } else { 4 };
        for stage in 0..stages {
            let _case = Case(format!(
                "{size} bytes, {between:?} between {polls} polls, stage {stage}"
            ));
            let guard = Guard::default();
            let seed = sides.fresh();
            let tag = Tag(seed);
            let source = guard.source(bytes(seed, size));
            let mut claim = Box::pin(sides.a.tag_matched(tag));
            let early = poll_some(claim.as_mut(), polls.min(1), between, &sides.a, &sides.b).await;
            assert!(early.is_none(), "nothing was sent");
            let send = sides.to_a.tag_send(tag, source).post().expect("room");
            if stage == 0 {
                between.happen(&sides.a, &sides.b).await;
                let ended = poll_some(claim.as_mut(), polls, between, &sides.a, &sides.b).await;
                if let Some(matched) = ended {
                    assert_eq!(matched.expect("a message").info().len, size);
                }
                // One that has not ended is first in line for the message.
                drop(claim);
            } else if stage == 3 {
                // Forgotten: once it was posted, the message is its own for good, and nobody else's trouble.
                between.happen(&sides.a, &sides.b).await;
                let_go(claim, Goes::Forgotten);
                if polls > 0 {
                    drop(send);
                    continue;
                }
            } else {
                let matched = claim.await.expect("a message");
                assert_eq!(matched.info().len, size);
                if stage == 2 {
                    let mut receive = Box::pin(matched.recv(guard.target(size)));
                    let ended =
                        poll_some(receive.as_mut(), polls, between, &sides.a, &sides.b).await;
                    drop(receive);
                    if let Some(received) = ended {
                        let received = received.expect("its bytes");
                        expect_bytes(seed, received.buffer.as_slice().expect("host memory"));
                        send.await.expect("sent");
                        continue;
                    }
                }
            }
            let received = sides.a.tag_recv(tag, guard.target(size)).await;
            let received = received.expect("the message");
            assert_eq!(received.len, size);
            expect_bytes(seed, received.buffer.as_slice().expect("host memory"));
            send.await.expect("sent");
            drop(received);
            guard.check();
        }
    }
    sides.expect_works().await;
    sides.shutdown().await;
}

/// A send that was polled happens; one that was not does not.
async fn send(path: Path) {
    let sides = Sides::new(path).await;
    for (size, between, polls) in cases() {
        for (goes, sync) in [
            (Goes::Dropped, false),
            (Goes::Dropped, true),
            (Goes::Forgotten, false),
            (Goes::Forgotten, true),
        ] {
            let _case = Case(format!(
                "{size} bytes, {between:?} between {polls} polls, {goes:?}, sync: {sync}"
            ));
            let guard = Guard::default();
            let seeds = [sides.fresh(), sides.fresh()];
            let tag = Tag(seeds[0]);
            let send = sides
                .to_b
                .tag_send(tag, guard.source(bytes(seeds[0], size)));
            let mut send = Box::pin(if sync { send.sync() } else { send });
            let ended = poll_some(send.as_mut(), polls, between, &sides.a, &sides.b).await;
            if let Some(result) = ended {
                result.expect("a send");
            }
            let_go(send, goes);
            let second = guard.source(bytes(seeds[1], size));
            let last = sides.to_b.tag_send(tag, second).post().expect("room");
            for &seed in if polls == 0 { &seeds[1..] } else { &seeds[..] } {
                let received = sides.b.tag_recv(tag, guard.target(size)).await;
                let received = received.expect("the message");
                assert_eq!(received.len, size);
                expect_bytes(seed, received.buffer.as_slice().expect("host memory"));
            }
            last.await.expect("sent");
            sides.to_b.flush().await.expect("a flush");
            guard.check();
        }
    }
    sides.expect_works().await;
    sides.shutdown().await;
}

/// Memory of `b`, as `a` sees it.
async fn exposed(sides: &Sides, own: bool) -> (wharf::Region, RemoteRegion) {
    let room = SIZES[SIZES.len() - 1];
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
    (region, remote)
}

async fn flush(endpoint: &Endpoint, sides: &Sides, between: Between, polls: usize) {
    let mut flush = Box::pin(endpoint.flush());
    let ended = poll_some(flush.as_mut(), polls, between, &sides.a, &sides.b).await;
    let goes = if polls.is_multiple_of(2) {
        Goes::Dropped
    } else {
        Goes::Forgotten
    };
    let_go(flush, goes);
    if ended.is_none() {
        endpoint.flush().await.expect("a flush");
    }
}

async fn put(path: Path) {
    let sides = Sides::new(path).await;
    for own in [false, true] {
        let (region, remote) = exposed(&sides, own).await;
        for (size, between, polls) in cases() {
            for (goes, local) in [
                (Goes::Dropped, false),
                (Goes::Dropped, true),
                (Goes::Forgotten, false),
                (Goes::Forgotten, true),
            ] {
                let _case = Case(format!(
                    "{size} bytes, {between:?} between {polls} polls, {goes:?}, local: {local}, own: {own}"
                ));
                let guard = Guard::default();
                let seed = sides.fresh();
                region.write_at(0, bytes(seed + 1, size)).expect("in it");
                let put = sides
                    .to_b
                    .put(guard.source(bytes(seed, size)), remote.clone());
                let mut put = Box::pin(if local { put.local() } else { put });
                let ended = poll_some(put.as_mut(), polls, between, &sides.a, &sides.b).await;
                if let Some(result) = ended {
                    result.expect("a put");
                }
                let_go(put, goes);
                flush(&sides.to_b, &sides, between, polls).await;
                let mut found = vec![0; size];
                region.read_at(0, &mut found).expect("in it");
                expect_bytes(if polls == 0 { seed + 1 } else { seed }, &found);
                guard.check();
            }
        }
        sides.expect_works().await;
        let room = region.len();
        assert_eq!(region.unexpose().await.len(), room);
    }
    sides.shutdown().await;
}

async fn get(path: Path) {
    let sides = Sides::new(path).await;
    for own in [false, true] {
        let (region, remote) = exposed(&sides, own).await;
        for (size, between, polls) in cases() {
            for goes in [Goes::Dropped, Goes::Forgotten] {
                let _case = Case(format!(
                    "{size} bytes, {between:?} between {polls} polls, {goes:?}, own: {own}"
                ));
                let guard = Guard::default();
                let seed = sides.fresh();
                region.write_at(0, bytes(seed, size)).expect("in it");
                let get = sides.to_b.get(remote.slice(..size), guard.target(size));
                let mut get = Box::pin(get);
                let ended = poll_some(get.as_mut(), polls, between, &sides.a, &sides.b).await;
                if let Some(buffer) = ended {
                    let buffer = buffer.expect("a get");
                    expect_bytes(seed, buffer.as_slice().expect("host memory"));
                }
                let_go(get, goes);
                let again = sides
                    .to_b
                    .get(remote.slice(..size), guard.target(size))
                    .await;
                expect_bytes(seed, again.expect("a get").as_slice().expect("host memory"));
                flush(&sides.to_b, &sides, between, polls).await;
                guard.check();
            }
        }
        sides.expect_works().await;
        let room = region.len();
        assert_eq!(region.unexpose().await.len(), room);
    }
    sides.shutdown().await;
}
