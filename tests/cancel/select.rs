//! A receive in `select!` that is dropped again and again loses no message.

use wharf::Tag;

use crate::{
    guarded::bytes,
    sides::{Path, Sides, run},
};

const TAG: Tag = Tag(7);

/// Mostly short, now and then of the other kinds.
fn length(number: u64) -> usize {
    match number % 64 {
        7 => 5_000,
        23 => 9_000,
        41 => 70_000,
        other => 8 + other as usize,
    }
}

async fn rounds(path: Path, wanted: u64) {
    let sides = Sides::new(path).await;
    let to_a = sides.to_a.clone();
    let sender = tokio::spawn(async move {
        let mut number = 0_u64;
        let mut window = std::collections::VecDeque::new();
        loop {
            let mut message = bytes(number, length(number)).to_vec();
            message[..8].copy_from_slice(&number.to_le_bytes());
            window.push_back(to_a.tag_send(TAG, message).post().expect("room"));
            if window.len() >= 32
                && let Some(send) = window.pop_front()
                && send.await.is_err()
            {
                return;
            }
            number += 1;
            if number.is_multiple_of(16) {
                tokio::task::yield_now().await;
            }
        }
    });
    let (mut rounds, mut expected, mut dropped) = (0, 0_u64, 0_u64);
    while rounds < wanted || dropped < wanted / 10 || expected < wanted / 10 {
        rounds += 1;
        // Always ready, or at the next turn of the runtime.
        let other = async {
            if rounds % 3 == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            received = sides.a.tag_recv(TAG, vec![0; 70_000]) => {
                let received = received.expect("a message");
                let number = received.buffer.first_chunk().copied().map(u64::from_le_bytes);
                assert_eq!(number, Some(expected), "in round {rounds}");
                assert_eq!(received.len, length(expected));
                assert!(received.buffer[8..received.len] == bytes(expected, received.len)[8..]);
                expected += 1;
            }
            () = other => dropped += 1,
        }
    }
    sender.abort();
    let _ = sender.await;
    // The rest is there as well.
    let last = loop {
        match sides
            .a
            .tag_recv(TAG, vec![0; 70_000])
            .deadline(std::time::Duration::from_millis(300))
            .await
        {
            Ok(received) => {
                let number = received
                    .buffer
                    .first_chunk()
                    .copied()
                    .map(u64::from_le_bytes);
                assert_eq!(number, Some(expected));
                expected += 1;
            }
            Err(error) => break error,
        }
    };
    assert_eq!(last.kind(), wharf::ErrorKind::DeadlineExceeded);
    sides.expect_works().await;
    sides.shutdown().await;
}

#[test]
fn loses_nothing_over_shm() {
    run(rounds(Path::Shm, 100_000));
}

#[test]
fn loses_nothing_over_shm_without_cma() {
    run(rounds(Path::ShmWithoutCma, 30_000));
}

#[test]
fn loses_nothing_over_tcp() {
    run(rounds(Path::Tcp, 30_000));
}

#[test]
fn loses_nothing_to_oneself() {
    run(rounds(Path::Own, 30_000));
}
