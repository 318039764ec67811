//! Windows that are nearly full: what there is room for goes on, at once and for ever.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::{AmId, Buffer, Endpoint};

use crate::fixture::{Pair, Way, a_while, pattern, run, run_on_threads, same};

const LONG: u64 = 1;
const SHORT: u64 = 2;

/// Long messages that go unasked and that nobody receives, a million bytes of them: nearly a whole window.
async fn unreceived(pair: &Pair, way: Way) -> (Vec<wharf::Op<()>>, usize) {
    let length = if way == Way::Tcp { 200_000 } else { 8_000 };
    let mut posted = Vec::new();
    for index in 0..1_000_000 / length {
        let send = pair.here.endpoint.tag_send(LONG, pattern(length, index));
        posted.push(send.post().expect("room"));
    }
    a_while().await;
    (posted, length)
}

/// A message that leaves at once: its sender does not wait for a receive, of which there is none yet.
async fn leaves_at_once(endpoint: &Endpoint, tag: u64, bytes: impl Into<Buffer>, index: usize) {
    let send = endpoint.tag_send(tag, bytes);
    match tokio::time::timeout(Duration::from_secs(20), send).await {
        Ok(sent) => sent.expect("sent"),
        Err(_) => panic!("the short message {index} waits for its receive"),
    }
}

scenarios! { everywhere:
    /// Thousands of short messages pass long ones that nobody receives: each leaves before there is a receive for it, or beside it.
    async fn short_messages_pass_unreceived_long_ones(way: Way) {
        let pair = way.pair().await;
        let (long, length) = unreceived(&pair, way).await;
        for index in 0..2000_usize {
            let bytes = index.to_le_bytes();
            leaves_at_once(&pair.here.endpoint, SHORT, bytes.to_vec(), index).await;
            assert_eq!(pair.there.receive(SHORT, 8).await, bytes);
        }
        for index in 0..2000_usize {
            let bytes = index.to_le_bytes();
            let sent = leaves_at_once(&pair.here.endpoint, SHORT, bytes.to_vec(), index);
            let ((), received) = tokio::join!(sent, pair.there.receive(SHORT, 8));
            assert_eq!(received, bytes);
        }
        // Some of them wait for their receives as well.
        for round in 0..20 {
            for index in 0..200 {
                leaves_at_once(&pair.here.endpoint, SHORT, pattern(8, index), round).await;
            }
            for index in 0..200 {
                same(&pair.there.receive(SHORT, 8).await, pattern(8, index), index);
            }
        }
        for (index, send) in long.into_iter().enumerate() {
            same(&pair.there.receive(LONG, length).await, pattern(length, index), index);
            send.await.expect("sent");
        }
        pair.here.endpoint.flush().await.expect("flushed");
    }

    /// With the windows of tags and of active messages nearly full, each message that is taken makes room for one more.
    async fn what_is_taken_makes_room(way: Way) {
        const ID: AmId = AmId(5);
        const CAPACITY: usize = 64;
        let pair = way.pair().await;
        let mut inbox = pair.there.worker.active_messages(ID).capacity(CAPACITY).open().expect("an inbox");
        let (long, length) = unreceived(&pair, way).await;
        let send = async |index: usize| {
            let send = pair.here.endpoint.am_send(ID, "", index.to_le_bytes().to_vec());
            match tokio::time::timeout(Duration::from_secs(20), send).await {
                Ok(sent) => sent.expect("sent"),
                Err(_) => panic!("the active message {index} waits for room that is there"),
            }
        };
        let mut sent = 0;
        while sent < CAPACITY {
            send(sent).await;
            sent += 1;
        }
        let late = pair.here.endpoint.am_send(ID, "", "late").deadline(Duration::from_millis(20)).await;
        assert!(late.is_err(), "the inbox is full");
        let mut taken = 0;
        for round in 0..300 {
            // A few are taken, and as many find room.
            let count = [1, 3, 2, 7][round % 4];
            for _ in 0..count {
                let message = inbox.recv().await.expect("a message");
                assert_eq!(message.data(), Some(&usize::to_le_bytes(taken)[..]));
                taken += 1;
            }
            for _ in 0..count {
                send(sent).await;
                sent += 1;
            }
            leaves_at_once(&pair.here.endpoint, SHORT, pattern(8, round), round).await;
            same(&pair.there.receive(SHORT, 8).await, pattern(8, round), round);
        }
        while taken < sent {
            let message = inbox.recv().await.expect("a message");
            assert_eq!(message.data(), Some(&usize::to_le_bytes(taken)[..]));
            taken += 1;
        }
        for (index, send) in long.into_iter().enumerate() {
            same(&pair.there.receive(LONG, length).await, pattern(length, index), index);
            send.await.expect("sent");
        }
    }

    /// A write never waits while less than the window of a stream is unread: each piece that is read makes room for another.
    async fn what_is_read_makes_room(way: Way) {
        const WINDOW: usize = 512 << 10;
        let pair = way.pair().await;
        let mut here = pair.here.endpoint.stream().await.expect("opened");
        let mut there = pair.there.endpoint.accept_stream().await.expect("accepted");
        let bytes = pattern(4 << 20, 0);
        let mut written = 0;
        while let Ok(count) = tokio::time::timeout(Duration::from_millis(100), here.write(&bytes[written..])).await {
            written += count.expect("written");
        }
        assert!(written >= WINDOW, "{written} were taken");
        // As much stays unread from here on as there is room for.
        let mut read = 0;
        for round in 0..400 {
            let count = [1, 1000, 100, 16_000][round % 4];
            let mut piece = vec![0; count];
            there.read_exact(&mut piece).await.expect("read");
            same(&piece, &bytes[read..read + count], round);
            read += count;
            let write = here.write_all(&bytes[written..written + count]);
            match tokio::time::timeout(Duration::from_secs(20), write).await {
                Ok(done) => done.expect("written"),
                Err(_) => panic!("write {round} waits with {} unread", written - read),
            }
            written += count;
        }
        here.shutdown().await.expect("shut down");
        let mut rest = Vec::new();
        there.read_to_end(&mut rest).await.expect("read to the end");
        same(&rest, &bytes[read..written], "the rest");
    }
}
