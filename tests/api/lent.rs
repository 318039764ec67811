//! Long owned buffers of streams, which the reader copies out of the writer's memory where it can.

use std::{future::Future, io::IoSlice, pin::Pin, sync::Arc, task::Poll, time::Duration};

use bytes::Bytes;
use futures::future::{join_all, poll_fn};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use wharf::{Buffer, ByteReader, ByteStream};

use crate::{
    fixture::{Pair, Way, a_while, pattern, run, run_on_threads, same},
    support::LIMIT,
};

/// From this length on buffers are announced, where that is asked for.
const LENT: usize = 128 << 10;
/// The window of a stream, and what is announced without being asked.
const WINDOW: usize = 512 << 10;

const SIZES: [usize; 9] = [
    LENT - 1,
    LENT,
    LENT + 1,
    (192 << 10) + 5,
    (256 << 10) - 1,
    256 << 10,
    (256 << 10) + 1,
    WINDOW + 3,
    (1 << 20) + 7,
];

async fn lending(way: Way) -> Pair {
    limited(way, Some(LENT)).await
}

async fn limited(way: Way, threshold: Option<usize>) -> Pair {
    let builder = match threshold {
        Some(bytes) => way.builder().rendezvous_threshold(bytes),
        None => way.builder(),
    };
    Pair::of(&builder.build().expect("a context"), way).await
}

async fn streams(pair: &Pair) -> (ByteStream, ByteStream) {
    let here = pair.here.endpoint.stream().await.expect("opened");
    let there = pair.there.endpoint.accept_stream().await.expect("accepted");
    (here, there)
}

/// Memory that wharf allocated and that both processes can map.
async fn allocated(pair: &Pair, bytes: &[u8]) -> Buffer {
    let mut own = pair
        .here
        .context
        .allocate(bytes.len())
        .await
        .expect("memory");
    own.copy_from_slice(bytes);
    own.freeze()
}

/// Memory that tells when nobody has it any more.
#[derive(Clone, Default)]
struct Held(Arc<()>);

impl Held {
    fn buffer(&self, bytes: &[u8]) -> Buffer {
        struct Owner(Vec<u8>, #[allow(dead_code)] Arc<()>);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        impl Drop for Owner {
            fn drop(&mut self) {
                // Whoever still reads it finds something else.
                self.0.fill(0xdd);
            }
        }
        Buffer::from(Bytes::from_owner(Owner(bytes.to_vec(), self.0.clone())))
    }

    fn is_free(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    async fn freed(&self) {
        while !self.is_free() {
            tokio::task::yield_now().await;
        }
    }
}

/// Writes a buffer without waiting for it.
async fn begin(stream: &mut ByteStream, buffer: impl Into<Buffer>) {
    let mut write = stream.write_buffer(buffer);
    poll_fn(|cx| {
        let _ = Pin::new(&mut write).poll(cx);
        Poll::Ready(())
    })
    .await;
}

async fn read_exactly(reader: &mut ByteStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).await.expect("read");
    bytes
}

/// Reads to the end in one of many ways.
async fn read_by(reader: &mut ByteReader, how: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut turn = how;
    loop {
        turn += 1;
        match how {
            0 => {
                reader.read_to_end(&mut bytes).await.expect("read");
                return bytes;
            }
            1 => match reader.read_chunk().await.expect("read") {
                None => return bytes,
                Some(chunk) => bytes.extend_from_slice(&chunk),
            },
            2 => {
                let found = reader.fill_buf().await.expect("read");
                if found.is_empty() {
                    return bytes;
                }
                let some = found.len().min(1 + turn * 7919 % 100_000);
                bytes.extend_from_slice(&found[..some]);
                reader.consume(some);
            }
            _ => {
                // Short and long reads in turn, and sometimes a chunk.
                let room = [1, 700, 16_383, 16_384, 40_000, 300_000, 2 << 20];
                if turn.is_multiple_of(11) {
                    match reader.read_chunk().await.expect("read") {
                        None => return bytes,
                        Some(chunk) => bytes.extend_from_slice(&chunk),
                    }
                    continue;
                }
                let mut room = vec![0; room[turn % room.len()]];
                let count = reader.read(&mut room).await.expect("read");
                bytes.extend_from_slice(&room[..count]);
                if count == 0 {
                    return bytes;
                }
            }
        }
    }
}

scenarios! { everywhere:
    /// Which buffers wait for their reader: by length, by the user's limit, by the memory.
    async fn announced(way: Way) {
        let mapped = way != Way::Own && !way.is_network();
        let kernel = way.transports().contains(&"cma");
        for (threshold, length, of_any, of_own) in [
            (None, WINDOW, false, true),
            (None, WINDOW - 1, false, false),
            (Some(LENT), LENT, true, true),
            (Some(LENT), LENT - 1, false, false),
            (Some(0), LENT, true, true),
            (Some(0), 16 << 10, false, true),
            (Some(0), (16 << 10) - 1, false, false),
            (Some(usize::MAX), WINDOW, false, false),
        ] {
            let pair = limited(way, threshold).await;
            let any = Buffer::from(pattern(length, 1).to_vec());
            let own = allocated(&pair, pattern(length, 1)).await;
            // Memory is shared when it is used for the second time.
            let (mut first, mut first_there) = streams(&pair).await;
            let (_, read) = tokio::join!(first.write_buffer(own.clone()), read_exactly(&mut first_there, length));
            same(&read, pattern(length, 1), "the first");
            for (buffer, expected) in [(any, of_any && kernel), (own, of_own && mapped)] {
                let (mut here, mut there) = streams(&pair).await;
                // One that waits for its reader does so for ever; the other may be slow.
                let patience = if expected { Duration::from_millis(50) } else { LIMIT };
                let write = tokio::time::timeout(patience, here.write_buffer(buffer)).await;
                assert_eq!(write.is_err(), expected, "{threshold:?}, {length} bytes");
                same(&read_exactly(&mut there, length).await, pattern(length, 1), length);
            }
        }
    }

    /// Buffers of all memories and lengths between short writes, read in all ways.
    async fn lent_in_order(way: Way) {
        let pair = lending(way).await;
        let own = allocated(&pair, pattern(2 << 20, 5)).await;
        for how in 0..5 {
            let (mut here, there) = streams(&pair).await;
            let mut wanted = Vec::new();
            for (index, size) in SIZES.into_iter().enumerate() {
                wanted.extend_from_slice(&[index as u8; 5]);
                wanted.extend_from_slice(pattern(size, index));
                wanted.extend_from_slice(pattern(20_000, index));
                wanted.extend_from_slice(&pattern(2 << 20, 5)[index..index + size]);
            }
            let write = async {
                for (index, size) in SIZES.into_iter().enumerate() {
                    let marks = [index as u8; 5];
                    let slices = [IoSlice::new(&marks[..3]), IoSlice::new(&marks[3..])];
                    let count = here.write_vectored(&slices).await.expect("written");
                    here.write_all(&marks[count..]).await.expect("written");
                    if index % 2 == 0 {
                        here.write_buffer(pattern(size, index).to_vec()).await.expect("written");
                    } else {
                        begin(&mut here, pattern(size, index).to_vec()).await;
                    }
                    here.write_all(pattern(20_000, index)).await.expect("written");
                    begin(&mut here, own.slice(index..index + size)).await;
                }
                here.shutdown().await.expect("shut down");
            };
            let (mut reader, _writer) = there.into_split();
            let (found, ()) = tokio::join!(read_by(&mut reader, how), write);
            same(&found, &wanted, format!("read in way {how}"));
        }
    }

    /// The end follows a long buffer, whose future is gone; the memory is given back when it has been read, and not before.
    async fn lent_and_shut_down(way: Way) {
        let pair = lending(way).await;
        for size in SIZES {
            let (mut here, mut there) = streams(&pair).await;
            let held = Held::default();
            begin(&mut here, held.buffer(pattern(size, 2))).await;
            let first = read_exactly(&mut there, 1000).await;
            let mut rest = Vec::new();
            let (end, shut) = tokio::join!(there.read_to_end(&mut rest), here.shutdown());
            end.expect("read");
            shut.expect("shut down");
            same(&[first, rest].concat(), pattern(size, 2), size);
            held.freed().await;
        }
    }

    /// A reset by the writer in the middle: the reader finds the end at once, the memory comes back, other streams do not notice.
    async fn lent_and_reset(way: Way) {
        let pair = lending(way).await;
        let (mut quiet, mut quiet_there) = streams(&pair).await;
        for size in [LENT, WINDOW + 3, 2 << 20] {
            for read in [0, 1, 70_000, LENT - 1] {
                let (mut here, mut there) = streams(&pair).await;
                let held = Held::default();
                begin(&mut here, held.buffer(pattern(size, 2))).await;
                same(&read_exactly(&mut there, read).await, &pattern(size, 2)[..read], read);
                here.reset();
                held.freed().await;
                let mut rest = Vec::new();
                let end = there.read_to_end(&mut rest).await;
                assert_eq!(end.expect_err("reset").kind(), std::io::ErrorKind::ConnectionReset);
                same(&rest, &pattern(size, 2)[read..read + rest.len()], "what was here");
            }
        }
        begin(&mut quiet, pattern(LENT, 1).to_vec()).await;
        same(&read_exactly(&mut quiet_there, LENT).await, pattern(LENT, 1), "undisturbed");
    }

    /// A reader that goes in the middle: the writer is told, and has its memory again.
    async fn lent_and_left(way: Way) {
        let pair = lending(way).await;
        for size in [LENT, WINDOW + 3, 2 << 20] {
            for read in [0, 1, 70_000, LENT - 1] {
                let (mut here, mut there) = streams(&pair).await;
                let held = Held::default();
                begin(&mut here, held.buffer(pattern(size, 2))).await;
                begin(&mut here, held.buffer(pattern(size, 3))).await;
                same(&read_exactly(&mut there, read).await, &pattern(size, 2)[..read], read);
                drop(there);
                held.freed().await;
                let error = loop {
                    match here.write_buffer(held.buffer(pattern(2 * WINDOW, 4))).await {
                        Ok(()) => tokio::task::yield_now().await,
                        Err(error) => break error,
                    }
                };
                assert_eq!(error.kind(), wharf::ErrorKind::ConnectionReset);
                held.freed().await;
            }
        }
    }

    /// More streams than words, each with long buffers of its own; none waits for another's reader.
    async fn lent_by_many(way: Way) {
        let pair = lending(way).await;
        let (mut idle, mut idle_there) = streams(&pair).await;
        begin(&mut idle, pattern(LENT, 77).to_vec()).await;
        let size = LENT + 1000;
        let mut all = Vec::new();
        for index in 0..70 {
            let (mut here, there) = streams(&pair).await;
            begin(&mut here, pattern(size, index).to_vec()).await;
            begin(&mut here, pattern(size, index + 1).to_vec()).await;
            drop(here);
            all.push((index, there));
        }
        // The last one first, and alone.
        let (index, mut last) = all.pop().expect("streams");
        let first = read_exactly(&mut last, size).await;
        same(&first, pattern(size, index), index);
        let reads = all.into_iter().map(|(index, mut there)| async move {
            let mut bytes = Vec::new();
            there.read_to_end(&mut bytes).await.expect("read");
            same(&bytes[..size], pattern(size, index), index);
            same(&bytes[size..], pattern(size, index + 1), index);
        });
        join_all(reads).await;
        same(&read_exactly(&mut idle_there, LENT).await, pattern(LENT, 77), "the first");
    }

    /// A message passes while a long buffer is half read, and before any of it is.
    async fn lent_and_overtaken(way: Way) {
        let pair = lending(way).await;
        let (mut here, mut there) = streams(&pair).await;
        begin(&mut here, pattern(8 << 20, 0).to_vec()).await;
        pair.here.send(1, "before").await;
        assert_eq!(pair.there.receive(1, 16).await, b"before");
        let first = read_exactly(&mut there, 1 << 20).await;
        pair.here.send(2, "between").await;
        assert_eq!(pair.there.receive(2, 16).await, b"between");
        let (mut other, mut other_there) = streams(&pair).await;
        other.write_all(b"another").await.expect("written");
        assert_eq!(read_exactly(&mut other_there, 7).await, b"another");
        let rest = read_exactly(&mut there, 7 << 20).await;
        same(&[first, rest].concat(), pattern(8 << 20, 0), "all of it");
    }

    /// Reads that are dropped before they are ready lose no byte.
    async fn lent_to_dropped_reads(way: Way) {
        let pair = lending(way).await;
        let (mut here, mut there) = streams(&pair).await;
        let write = async {
            for (index, size) in SIZES.into_iter().enumerate() {
                here.write_buffer(pattern(size, index).to_vec()).await.expect("written");
                a_while().await;
            }
            here.shutdown().await.expect("shut down");
        };
        let read = async {
            let mut found = Vec::new();
            let mut piece = vec![0; 50_000];
            let mut turn = 0;
            loop {
                turn += 1;
                let room = 1 + turn * 91 % 50_000;
                tokio::select! { biased;
                    count = there.read(&mut piece[..room]) => match count.expect("read") {
                        0 => break found,
                        count => found.extend_from_slice(&piece[..count]),
                    },
                    () = tokio::task::yield_now() => {}
                }
                tokio::select! { biased;
                    chunk = there.read_chunk() => match chunk.expect("read") {
                        None => break found,
                        Some(chunk) => found.extend_from_slice(&chunk),
                    },
                    () = tokio::task::yield_now() => {}
                }
            }
        };
        let (found, ()) = tokio::join!(read, write);
        let wanted: Vec<_> = SIZES.into_iter().enumerate().map(|(index, size)| pattern(size, index)).collect();
        same(&found, &wanted.concat(), "what was read");
    }

    /// The connection ends in the middle: reads say why, and the memory comes back.
    async fn lent_and_aborted(way: Way) {
        for (size, read) in [(LENT, 0), (LENT, 70_000), (4 << 20, 1 << 20)] {
            for by_reader in [false, true] {
                let pair = lending(way).await;
                let (mut here, mut there) = streams(&pair).await;
                let held = Held::default();
                begin(&mut here, held.buffer(pattern(size, 2))).await;
                begin(&mut here, held.buffer(pattern(size, 3))).await;
                same(&read_exactly(&mut there, read).await, &pattern(size, 2)[..read], read);
                let side = if by_reader { &pair.there } else { &pair.here };
                side.endpoint.abort();
                held.freed().await;
                let mut rest = Vec::new();
                there.read_to_end(&mut rest).await.expect_err("the connection ended");
                let wanted = [pattern(size, 2), pattern(size, 3)].concat();
                same(&rest, &wanted[read..read + rest.len()], "what was here");
                // Where nothing waits for the reader, what fits into the window is taken until the end is seen.
                while here.write_buffer(held.buffer(pattern(size, 2))).await.is_ok() {
                    tokio::task::yield_now().await;
                }
                held.freed().await;
            }
        }
    }

    /// Taken back while the reader is copying: what it has copied by then is right. The memory is overwritten as soon as it is given back.
    async fn lent_and_reset_while_read(way: Way) {
        let pair = lending(way).await;
        let size = 1 << 20;
        let own = allocated(&pair, pattern(size, 8)).await;
        for round in 0..150_usize {
            let (mut here, mut there) = streams(&pair).await;
            let read = tokio::spawn(async move {
                let mut found = Vec::new();
                let mut piece = vec![0; 256 << 10];
                loop {
                    match there.read(&mut piece).await {
                        Ok(0) => return (found, true),
                        Ok(count) => found.extend_from_slice(&piece[..count]),
                        Err(error) => {
                            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                            return (found, false);
                        }
                    }
                }
            });
            let held = Held::default();
            begin(&mut here, own.slice(..LENT)).await;
            begin(&mut here, held.buffer(pattern(size, round))).await;
            begin(&mut here, held.buffer(pattern(size, round + 1))).await;
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            here.reset();
            held.freed().await;
            let (found, whole) = read.await.expect("no panic");
            let wanted = [&pattern(size, 8)[..LENT], pattern(size, round), pattern(size, round + 1)].concat();
            assert!(!whole, "a reset is no end");
            same(&found, &wanted[..found.len()], round);
        }
    }

    /// Closing waits until what was announced has been read.
    async fn lent_and_closed(way: Way) {
        if way == Way::Own {
            // Closing an endpoint to oneself waits for oneself to read.
            return;
        }
        let pair = lending(way).await;
        let held = Held::default();
        let (mut here, mut there) = streams(&pair).await;
        let close = async {
            here.write_all(b"first").await.expect("written");
            begin(&mut here, held.buffer(pattern(900_001, 4))).await;
            begin(&mut here, held.buffer(pattern(LENT, 5))).await;
            here.write_all(b"last").await.expect("written");
            drop(here);
            pair.here.endpoint.close().await.expect("closed");
        };
        let read = async {
            a_while().await;
            let mut bytes = Vec::new();
            there.read_to_end(&mut bytes).await.expect("read to the end");
            bytes
        };
        let (bytes, ()) = tokio::join!(read, close);
        let wanted = [b"first", pattern(900_001, 4), pattern(LENT, 5), b"last"].concat();
        same(&bytes, &wanted, "all that was written");
        held.freed().await;
    }
}
