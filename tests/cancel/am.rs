//! Active messages: dropped or forgotten after each number of polls, and in `select!`.

use std::{future::Future, pin::Pin};

use futures::StreamExt;
use wharf::{AmId, AmInbox};

use crate::{
    guarded::{Guard, bytes, expect_bytes},
    sides::{BETWEEN, Case, Path, Sides, on_every_path, poll_some, run},
};

const ID: AmId = AmId(7);
const POLLS: usize = 4;
const SIZES: [usize; 7] = [0, 48, 4_097, 8_185, 65_537, 131_073, 1_048_577];

on_every_path!(send);
on_every_path!(receive);
on_every_path!(wait);

fn inbox(sides: &Sides) -> AmInbox {
    sides
        .a
        .active_messages(ID)
        .capacity(32)
        .open()
        .expect("an inbox")
}

fn let_go<F: Future>(future: Pin<Box<F>>, forgotten: bool) {
    if forgotten {
        #[expect(
            clippy::mem_forget,
            clippy::disallowed_methods,
            reason = "what is tested"
        )]
        std::mem::forget(future);
    }
}

/// A send that goes after its first poll is delivered all the same, and before it is not.
async fn send(path: Path) {
    let sides = Sides::new(path).await;
    let mut inbox = inbox(&sides);
    for size in SIZES {
        for between in BETWEEN {
            for polls in 0..=POLLS {
                for forgotten in [false, true] {
                    let _case = Case(format!(
                        "{size} bytes, {between:?} between {polls} polls, forgotten: {forgotten}"
                    ));
                    let guard = Guard::default();
                    let seed = sides.fresh();
                    let source = guard.source(bytes(seed, size));
                    let header = seed.to_le_bytes().to_vec();
                    let mut send = Box::pin(sides.to_a.am_send(ID, header, source));
                    let _ = poll_some(send.as_mut(), polls, between, &sides.b, &sides.a).await;
                    let_go(send, forgotten);
                    if polls > 0 {
                        let message = inbox.recv().await.expect("a message");
                        assert_eq!(message.header(), seed.to_le_bytes());
                        let target = guard.target(size);
                        let received = message.receive(target).await.expect("received");
                        expect_bytes(seed, received.buffer.as_slice().expect("host memory"));
                    }
                    guard.check();
                }
            }
        }
    }
    assert!(inbox.try_recv().is_none());
    sides.expect_works().await;
}

/// A receive that goes touches no memory but its own; its sender ends, and what comes next is right.
async fn receive(path: Path) {
    let sides = Sides::new(path).await;
    let mut inbox = inbox(&sides);
    for size in SIZES {
        for between in BETWEEN {
            for polls in 0..=POLLS {
                for forgotten in [false, true] {
                    let _case = Case(format!(
                        "{size} bytes, {between:?} between {polls} polls, forgotten: {forgotten}"
                    ));
                    let guard = Guard::default();
                    let seed = sides.fresh();
                    let source = guard.source(bytes(seed, size));
                    let send = sides.to_a.am_send(ID, "", source).post().expect("room");
                    let message = inbox.recv().await.expect("a message");
                    let announced = message.is_announced();
                    let mut receive = Box::pin(message.receive(guard.target(size)));
                    let ended =
                        poll_some(receive.as_mut(), polls, between, &sides.a, &sides.b).await;
                    if let Some(received) = ended {
                        let received = received.expect("received");
                        expect_bytes(seed, received.buffer.as_slice().expect("host memory"));
                    }
                    let_go(receive, forgotten);
                    if polls > 0 || !announced {
                        send.await.expect("its payload was read");
                    } else if forgotten {
                        // It is somebody's still, for all that its sender knows.
                        drop(send);
                    } else {
                        send.await.expect_err("rejected");
                    }
                    guard.check();
                    let seed = sides.fresh();
                    let next = async {
                        let message = inbox.recv().await.expect("a message");
                        message.bytes().await.expect("bytes")
                    };
                    let (found, sent) =
                        tokio::join!(next, sides.to_a.am_send(ID, "", bytes(seed, size).to_vec()));
                    sent.expect("sent");
                    expect_bytes(seed, &found);
                    guard.check();
                }
            }
        }
    }
    sides.expect_works().await;
}

/// A wait that goes takes no message with it, whether it was there first or came later.
async fn wait(path: Path) {
    let sides = Sides::new(path).await;
    let mut inbox = inbox(&sides);
    for size in SIZES {
        for between in BETWEEN {
            for polls in 0..=POLLS {
                for early in [false, true] {
                    let _case = Case(format!(
                        "{size} bytes, {between:?} between {polls} polls, sent first: {early}"
                    ));
                    let seed = sides.fresh();
                    let send = || {
                        let send = sides.to_a.am_send(ID, "", bytes(seed, size).to_vec());
                        send.post().expect("room")
                    };
                    let mut sent = early.then(send);
                    let found = {
                        let mut wait = Box::pin(inbox.recv());
                        let first =
                            poll_some(wait.as_mut(), polls.min(1), between, &sides.a, &sides.b)
                                .await;
                        sent.get_or_insert_with(send);
                        match first {
                            None if polls > 1 => {
                                poll_some(wait.as_mut(), polls - 1, between, &sides.a, &sides.b)
                                    .await
                            }
                            first => first,
                        }
                    };
                    let message = match found {
                        Some(message) => message,
                        None => inbox.next().await,
                    };
                    let found = message.expect("a message").bytes().await.expect("bytes");
                    assert_eq!(found.len(), size);
                    expect_bytes(seed, &found);
                    sent.expect("sent").await.expect("sent");
                }
            }
        }
    }
    sides.expect_works().await;
}

/// A wait in `select!` that is dropped again and again loses no message.
async fn select(path: Path, wanted: u64) {
    let sides = Sides::new(path).await;
    let mut inbox = inbox(&sides);
    let to_a = sides.to_a.clone();
    let sender = tokio::spawn(async move {
        for number in 0_u64.. {
            let size = if number % 64 == 5 { 70_000 } else { 9 };
            let send = to_a.am_send(ID, number.to_le_bytes().to_vec(), bytes(number, size));
            if send.await.is_err() {
                return;
            }
        }
    });
    let (mut rounds, mut expected, mut dropped) = (0, 0_u64, 0_u64);
    while rounds < wanted || dropped < wanted / 10 || expected < wanted / 10 {
        rounds += 1;
        let other = async {
            if rounds % 3 == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            message = inbox.recv() => {
                let message = message.expect("a message");
                assert_eq!(message.header(), expected.to_le_bytes(), "in round {rounds}");
                expect_bytes(expected, &message.bytes().await.expect("bytes"));
                expected += 1;
            }
            () = other => dropped += 1,
        }
    }
    drop(inbox);
    sender.await.expect("no panic");
    sides.expect_works().await;
}

#[test]
fn select_loses_nothing_over_shm() {
    run(select(Path::Shm, 30_000));
}

#[test]
fn select_loses_nothing_over_tcp() {
    run(select(Path::Tcp, 10_000));
}

#[test]
fn select_loses_nothing_to_oneself() {
    run(select(Path::Own, 10_000));
}
