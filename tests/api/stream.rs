//! Byte streams.

use std::{
    io::{self, IoSlice},
    pin::{Pin, pin},
    time::Duration,
};

use futures::future::{join_all, poll_fn};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use wharf::{ByteStream, Endpoint, ErrorKind};

use crate::fixture::{Pair, SIZES, Way, a_while, pattern, run, run_on_threads, same};

/// Most bytes of a stream that are on their way: the receiver's window and what may wait at the writer.
const WINDOW: usize = 512 << 10;
const WAITING: usize = 64 << 10;

/// A stream, opened at one end and accepted at the other.
async fn streams(pair: &Pair) -> (ByteStream, ByteStream) {
    let here = pair.here.endpoint.stream().await.expect("opened");
    let there = pair.there.endpoint.accept_stream().await.expect("accepted");
    (here, there)
}

async fn read_all(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream
        .read_to_end(&mut bytes)
        .await
        .expect("read to the end");
    bytes
}

/// Sends back whatever comes on every stream, until the connection ends.
async fn echo(endpoint: Endpoint) {
    let serve = |stream: ByteStream| async move {
        let (mut reader, mut writer) = stream.into_split();
        tokio::io::copy(&mut reader, &mut writer)
            .await
            .expect("echoed");
        writer.shutdown().await.expect("shut down");
    };
    while let Ok(stream) = endpoint.accept_stream().await {
        tokio::spawn(serve(stream));
    }
}

/// Writes until nothing is taken for a while; how much was.
async fn fill(stream: &mut (impl AsyncWrite + Unpin), piece: usize) -> usize {
    let mut written = 0;
    loop {
        let write = stream.write(&pattern(piece, 0)[written % piece..]);
        match tokio::time::timeout(Duration::from_millis(100), write).await {
            Ok(count) => written += count.expect("written"),
            Err(_) => return written,
        }
        assert!(
            written <= WINDOW + WAITING,
            "a writer without bounds: {written}"
        );
    }
}

scenarios! { everywhere, and under TLS on threads:
    /// Bytes of all sizes, there and back.
    async fn echoed(way: Way) {
        let pair = way.pair().await;
        let server = tokio::spawn(echo(pair.there.endpoint.clone()));
        let stream = pair.here.endpoint.stream().await.expect("opened");
        let (mut reader, mut writer) = stream.into_split();
        let write = async {
            for (index, size) in SIZES.into_iter().enumerate() {
                writer.write_all(pattern(size, index)).await.expect("written");
            }
            writer.shutdown().await.expect("shut down");
        };
        let read = async {
            for (index, size) in SIZES.into_iter().enumerate() {
                let mut bytes = vec![0; size];
                reader.read_exact(&mut bytes).await.expect("read");
                same(&bytes, pattern(size, index), size);
            }
            assert_eq!(reader.read(&mut [0; 8]).await.expect("the end"), 0);
        };
        tokio::join!(write, read);
        server.abort();
    }

    /// Requests and answers, without and with flushes.
    async fn ping_pong(way: Way) {
        let pair = way.pair().await;
        let (mut here, mut there) = streams(&pair).await;
        let one = async {
            for round in 0..300 {
                here.write_all(pattern(round, round)).await.expect("written");
                if round % 2 == 0 {
                    here.flush().await.expect("flushed");
                }
                let mut back = vec![0; 2 * round];
                here.read_exact(&mut back).await.expect("read");
                same(&back, pattern(2 * round, round + 1), round);
            }
        };
        let other = async {
            for round in 0..300 {
                let mut bytes = vec![0; round];
                there.read_exact(&mut bytes).await.expect("read");
                same(&bytes, pattern(round, round), round);
                there.write_all(pattern(2 * round, round + 1)).await.expect("written");
            }
        };
        tokio::join!(one, other);
    }

    /// One direction ends; the other goes on.
    async fn half_closed(way: Way) {
        let pair = way.pair().await;
        let (mut here, mut there) = streams(&pair).await;
        here.write_all(b"question").await.expect("written");
        here.shutdown().await.expect("shut down");
        assert_eq!(read_all(&mut there).await, b"question");
        assert_eq!(there.read(&mut [0; 8]).await.expect("still the end"), 0);
        let error = here.write(b"more").await.expect_err("it is shut down");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        there.write_all(pattern(100_000, 3)).await.expect("written");
        there.shutdown().await.expect("shut down");
        here.shutdown().await.expect("shut down again");
        same(&read_all(&mut here).await, pattern(100_000, 3), "the answer");
    }

    /// A writer that is dropped has ended after what it wrote, flushed or not; a reader that is dropped stops the writer.
    async fn dropped_halves(way: Way) {
        let pair = way.pair().await;
        let (here, mut there) = streams(&pair).await;
        let (reader, mut writer) = here.into_split();
        let write = async {
            writer.write_all(pattern(700_003, 1)).await.expect("written");
            writer.write_all(b"end").await.expect("written");
            drop(writer);
        };
        let (bytes, ()) = tokio::join!(read_all(&mut there), write);
        same(&bytes[..700_003], pattern(700_003, 1), "what came before");
        assert_eq!(&bytes[700_003..], b"end");
        drop(reader);
        let error = loop {
            match there.write(&[7; 1000]).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    /// Whose peer leaves once it has read everything has flushed all the same; what is written after that fails.
    async fn reader_leaves_with_all(way: Way) {
        let pair = way.pair().await;
        let (mut here, mut there) = streams(&pair).await;
        here.write_all(b"all").await.expect("written");
        there.read_exact(&mut [0; 3]).await.expect("read");
        let (reader, mut writer) = there.into_split();
        drop(reader);
        writer.write_all(b"!").await.expect("written");
        // What says that the reader has gone came before it.
        here.read_exact(&mut [0; 1]).await.expect("read");
        here.flush().await.expect("nothing is left to send");
        let error = here.write(b"more").await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    /// A writer that waits for room is told when its reader goes.
    async fn reader_leaves_a_waiting_writer(way: Way) {
        let pair = way.pair().await;
        let (mut here, there) = streams(&pair).await;
        fill(&mut here, 10_000).await;
        let (error, ()) = tokio::join!(here.write_all(pattern(1 << 20, 0)), async {
            a_while().await;
            drop(there);
        });
        assert_eq!(error.expect_err("nobody reads").kind(), io::ErrorKind::BrokenPipe);
    }

    /// Dropped as a whole with everything under way, at once at both ends, many times: nothing is left that would keep others from it.
    async fn dropped_at_once(way: Way) {
        let pair = way.pair().await;
        for round in 0..600_usize {
            let (mut here, mut there) = streams(&pair).await;
            let _ = here.write(pattern(round * 10, 0)).await;
            let _ = there.write(pattern(1 + round * 7, 0)).await;
            match round % 4 {
                0 => here.reset(),
                1 => drop(here),
                2 => there.reset(),
                _ => {}
            }
        }
        let (mut here, mut there) = streams(&pair).await;
        here.write_all(b"still here").await.expect("written");
        let mut bytes = [0; 10];
        there.read_exact(&mut bytes).await.expect("read");
    }

    /// Many streams at once, opened from both ends, each with bytes of its own.
    async fn many(way: Way) {
        let pair = way.pair().await;
        let server = tokio::spawn(echo(pair.there.endpoint.clone()));
        let other = (way != Way::Own).then(|| tokio::spawn(echo(pair.here.endpoint.clone())));
        let clients = (0..300_usize).map(|index| {
            let side = if index % 3 == 0 { &pair.there } else { &pair.here };
            let endpoint = side.endpoint.clone();
            async move {
                let (mut reader, mut writer) = endpoint.stream().await.expect("opened").into_split();
                let bytes = pattern(index * 97, index);
                let write = async {
                    for piece in bytes.chunks(1 + index * 5) {
                        writer.write_all(piece).await.expect("written");
                    }
                    writer.shutdown().await.expect("shut down");
                };
                let (back, ()) = tokio::join!(read_all(&mut reader), write);
                same(&back, bytes, index);
            }
        });
        join_all(clients).await;
        server.abort();
        if let Some(other) = other {
            other.abort();
        }
    }

    /// More streams than may wait to be accepted: opening waits, and goes on.
    async fn unaccepted_are_bounded(way: Way) {
        let pair = way.pair().await;
        let mut opened = Vec::new();
        for _ in 0..128 {
            opened.push(pair.here.endpoint.stream().await.expect("opened"));
        }
        let more = tokio::time::timeout(Duration::from_millis(50), pair.here.endpoint.stream()).await;
        assert!(more.is_err(), "one more than may wait");
        let (last, mut accepted) = tokio::join!(pair.here.endpoint.stream(), pair.there.endpoint.accept_stream());
        opened.push(last.expect("there is room again"));
        for (index, stream) in opened.iter_mut().enumerate() {
            stream.write_all(&[index as u8]).await.expect("written");
        }
        for index in 0..129 {
            let mut stream = match index {
                0 => std::mem::replace(&mut accepted, Err(wharf::Error::new(ErrorKind::Closed, ""))).expect("accepted"),
                _ => pair.there.endpoint.accept_stream().await.expect("accepted"),
            };
            assert_eq!(stream.read_u8().await.expect("read"), index as u8, "accepted in the order of opening");
        }
    }

    /// Several slices at once.
    async fn vectored(way: Way) {
        let pair = way.pair().await;
        let (mut here, mut there) = streams(&pair).await;
        assert!(here.is_write_vectored());
        let sizes = [3, 0, 5000, 70, 20_000, 48, 1, 300_000];
        let wanted: Vec<_> = sizes.iter().enumerate().map(|(seed, size)| pattern(*size, seed)).collect();
        let write = async {
            let mut slices: Vec<_> = sizes.iter().enumerate().map(|(seed, size)| IoSlice::new(pattern(*size, seed))).collect();
            let mut slices = &mut slices[..];
            while slices.iter().any(|slice| !slice.is_empty()) {
                let written = here.write_vectored(slices).await.expect("written");
                assert!(written > 0);
                IoSlice::advance_slices(&mut slices, written);
            }
            here.shutdown().await.expect("shut down");
        };
        let (bytes, ()) = tokio::join!(read_all(&mut there), write);
        same(&bytes, &wanted.concat(), "all slices");
    }

    /// Lines by `AsyncBufRead`, mixed with plain reads.
    async fn buffered(way: Way) {
        let pair = way.pair().await;
        let (mut here, mut there) = streams(&pair).await;
        let write = async {
            for line in 0..2000 {
                here.write_all(format!("line {line}\n").as_bytes()).await.expect("written");
            }
            here.write_all(b"rest").await.expect("written");
            drop(here);
        };
        let read = async {
            for wanted in 0..1000 {
                let mut line = String::new();
                there.read_line(&mut line).await.expect("a line");
                assert_eq!(line, format!("line {wanted}\n"));
            }
            let mut lines = String::new();
            let (mut reader, _writer) = there.into_split();
            reader.read_to_string(&mut lines).await.expect("the rest");
            let wanted: String = (1000..2000).map(|line| format!("line {line}\n")).collect();
            assert_eq!(lines, wanted + "rest");
        };
        tokio::join!(write, read);
    }

    /// Chunks without a copy, and owned buffers of all sizes between short writes.
    async fn chunks_and_buffers(way: Way) {
        let pair = way.pair().await;
        let (mut here, mut there) = streams(&pair).await;
        let write = async {
            for (index, size) in SIZES.into_iter().enumerate() {
                here.write_all(&[index as u8; 5]).await.expect("written");
                here.write_buffer(pattern(size, index)).await.expect("written");
            }
            here.shutdown().await.expect("shut down");
        };
        let read = async {
            let mut bytes = Vec::new();
            while let Some(chunk) = there.read_chunk().await.expect("read") {
                assert!(!chunk.is_empty());
                bytes.extend_from_slice(&chunk);
            }
            assert!(there.read_chunk().await.expect("still the end").is_none());
            bytes
        };
        let (bytes, ()) = tokio::join!(read, write);
        let mut rest = &bytes[..];
        for (index, size) in SIZES.into_iter().enumerate() {
            assert_eq!(rest.split_off(..5), Some(&[index as u8; 5][..]));
            same(rest.split_off(..size).expect("all of it"), pattern(size, index), size);
        }
        assert!(rest.is_empty());
    }

    /// Owned buffers read by small and by large reads, from memory that wharf allocated and from any.
    async fn owned_buffers(way: Way) {
        let pair = way.pair().await;
        let (mut here, mut there) = streams(&pair).await;
        let size = (1 << 20) + 77;
        for (round, step) in [1000, 50_000, 64 << 10, 300_000, 2 << 20].into_iter().enumerate() {
            let mut own = pair.here.context.allocate(size).await.expect("memory");
            own.copy_from_slice(pattern(size, round));
            let own = own.freeze();
            let write = async {
                here.write_buffer(own.clone()).await.expect("written");
                here.write_buffer(pattern(size, round + 1).to_vec()).await.expect("written");
                here.write_buffer(own.slice(5..900_000)).await.expect("written");
            };
            let read = async {
                let mut bytes = Vec::new();
                let mut piece = vec![0; step];
                while bytes.len() < 2 * size + 899_995 {
                    let count = there.read(&mut piece).await.expect("read");
                    assert!(count > 0);
                    bytes.extend_from_slice(&piece[..count]);
                }
                bytes
            };
            let (bytes, ()) = tokio::join!(read, write);
            same(&bytes[..size], pattern(size, round), step);
            same(&bytes[size..2 * size], pattern(size, round + 1), step);
            same(&bytes[2 * size..], &pattern(size, round)[5..900_000], step);
        }
    }

    /// A reset in the middle: the peer's reads fail, its writes fail, and other streams do not notice.
    async fn reset(way: Way) {
        let pair = way.pair().await;
        let (mut quiet, mut quiet_there) = streams(&pair).await;
        let (mut here, mut there) = streams(&pair).await;
        here.write_all(pattern(100_000, 0)).await.expect("written");
        let mut first = vec![0; 1000];
        there.read_exact(&mut first).await.expect("read");
        here.reset();
        let error = there.read_to_end(&mut Vec::new()).await.expect_err("it was reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let error = loop {
            match there.write(&[1; 100]).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        quiet.write_all(b"undisturbed").await.expect("written");
        drop(quiet);
        assert_eq!(read_all(&mut quiet_there).await, b"undisturbed");
    }

    /// A writer to a reader that does not read stops at the window; other streams and messages pass; all arrives when it reads.
    async fn back_pressure(way: Way) {
        let pair = way.pair().await;
        for piece in [100, 8192, 200_000] {
            let (mut here, mut there) = streams(&pair).await;
            let written = fill(&mut here, piece).await;
            assert!(written >= WINDOW, "the window is {WINDOW}, and {written} were taken");
            let (mut other, mut other_there) = streams(&pair).await;
            let passes = async {
                other.write_all(pattern(300_000, 2)).await.expect("written");
                other.shutdown().await.expect("shut down");
            };
            let (bytes, ()) = tokio::join!(read_all(&mut other_there), passes);
            same(&bytes, pattern(300_000, 2), "the other stream");
            pair.here.send(9, "passes").await;
            assert_eq!(pair.there.receive(9, 16).await, b"passes");
            drop(here);
            let bytes = read_all(&mut there).await;
            assert_eq!(bytes.len(), written);
            for whole in bytes.chunks(piece) {
                same(whole, &pattern(piece, 0)[..whole.len()], piece);
            }
        }
    }

    /// Futures that are dropped before they are ready lose no byte and write none twice.
    async fn dropped_futures(way: Way) {
        let pair = way.pair().await;
        let (mut here, mut there) = streams(&pair).await;
        let total = 3 << 20;
        let bytes = pattern(total, 0);
        let write = async {
            let mut rest = bytes;
            let mut turn = 0;
            while !rest.is_empty() {
                turn += 1;
                let count = {
                    let mut write = pin!(here.write(&rest[..rest.len().min(1 + turn * 37 % 50_000)]));
                    // Polled once, and dropped when it is not ready.
                    match poll_fn(|cx| std::task::Poll::Ready(write.as_mut().poll(cx))).await {
                        std::task::Poll::Ready(count) => count.expect("written"),
                        std::task::Poll::Pending => 0,
                    }
                };
                rest = &rest[count..];
                if count == 0 {
                    tokio::task::yield_now().await;
                }
            }
            here.shutdown().await.expect("shut down");
        };
        let read = async {
            let mut found = Vec::new();
            let mut piece = vec![0; 40_000];
            let mut turn = 0;
            loop {
                turn += 1;
                let room = 1 + turn * 91 % 40_000;
                let read = there.read(&mut piece[..room]);
                tokio::select! { biased;
                    count = read => match count.expect("read") {
                        0 => break found,
                        count => found.extend_from_slice(&piece[..count]),
                    },
                    () = tokio::task::yield_now() => {}
                }
                let chunk = there.read_chunk();
                tokio::select! { biased;
                    chunk = chunk => match chunk.expect("read") {
                        None => break found,
                        Some(chunk) => found.extend_from_slice(&chunk),
                    },
                    () = tokio::task::yield_now() => {}
                }
            }
        };
        let (found, ()) = tokio::join!(read, write);
        same(&found, bytes, "what was read");
    }

    /// An owned buffer is written as a whole although its future is dropped; nothing of one that was never polled is.
    async fn dropped_buffers(way: Way) {
        let pair = way.pair().await;
        let (mut here, mut there) = streams(&pair).await;
        let sizes = [5, 9000, 400_000, (1 << 20) + 9, 70_000];
        for (seed, size) in sizes.into_iter().enumerate() {
            let mut write = here.write_buffer(pattern(size, seed));
            poll_fn(|cx| {
                let _ = Pin::new(&mut write).poll(cx);
                std::task::Poll::Ready(())
            })
            .await;
            drop(write);
            drop(here.write_buffer(pattern(1000, 99)));
        }
        drop(here);
        let bytes = read_all(&mut there).await;
        let mut rest = &bytes[..];
        for (seed, size) in sizes.into_iter().enumerate() {
            same(rest.split_off(..size).expect("all of it"), pattern(size, seed), size);
        }
        assert!(rest.is_empty());
    }

    /// The end of a stream whose last bytes nobody will read is no good end.
    async fn ended_unread(way: Way) {
        let pair = way.pair().await;
        let (mut here, there) = streams(&pair).await;
        // More than its window takes.
        let long = vec![7; 4 << 20];
        let mut write = here.write_buffer(long);
        assert!(futures::poll!(&mut write).is_pending());
        drop(write);
        assert!(futures::poll!(std::pin::pin!(here.shutdown())).is_pending());
        drop(there);
        let error = here.shutdown().await.expect_err("most of it was thrown away");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "{error}");
        let again = here.shutdown().await.expect_err("it stays so");
        assert_eq!(again.kind(), error.kind());
    }

    /// Both halves by two tasks; put together again.
    async fn split_and_reunited(way: Way) {
        let pair = way.pair().await;
        let (here, there) = streams(&pair).await;
        let (reader, writer) = here.into_split();
        let (other_reader, other_writer) = there.into_split();
        let error = reader.reunite(other_writer).expect_err("of two streams");
        let wharf::ReuniteError(reader, mut other_writer) = error;
        let mut here = reader.reunite(writer).expect("of one stream");
        assert_eq!(here.peer(), Some(pair.there.worker.id()));
        assert_eq!(here.endpoint().id(), pair.here.endpoint.id());
        other_writer.write_all(b"once more").await.expect("written");
        drop((other_writer, other_reader));
        assert_eq!(read_all(&mut here).await, b"once more");
    }

    /// The connection ends: readers get what had arrived, then the reason; so does whoever opens or accepts.
    async fn connection_ends(way: Way) {
        let pair = way.pair().await;
        let (mut here, mut there) = streams(&pair).await;
        let (mut ended, mut ended_there) = streams(&pair).await;
        here.write_all(b"last words").await.expect("written");
        here.flush().await.expect("flushed");
        ended.write_all(b"whole").await.expect("written");
        ended.shutdown().await.expect("shut down");
        let mut first = [0; 4];
        there.read_exact(&mut first).await.expect("read");
        while pair.there.endpoint.peer().is_some() && ended_there.fill_buf().await.expect("read").is_empty() {
            tokio::task::yield_now().await;
        }
        pair.here.endpoint.abort();
        let mut rest = Vec::new();
        there.read_to_end(&mut rest).await.expect_err("the connection ended");
        assert_eq!(rest, b" words");
        there.write_all(&[0; 100]).await.expect_err("the connection ended");
        here.read(&mut first).await.expect_err("the connection ended");
        pair.there.endpoint.accept_stream().await.expect_err("the connection ended");
        pair.there.endpoint.stream().await.expect_err("the connection ended");
        if way != Way::Own {
            assert_eq!(read_all(&mut ended_there).await, b"whole");
        }
    }

    /// Closing waits for what was written, unflushed as well.
    async fn closed_behind(way: Way) {
        if way == Way::Own {
            // Closing an endpoint to oneself waits for oneself to read.
            return;
        }
        let pair = way.pair().await;
        let (mut here, mut there) = streams(&pair).await;
        let close = async {
            here.write_all(pattern(900_001, 4)).await.expect("written");
            here.write_all(b".").await.expect("written");
            drop(here);
            pair.here.endpoint.close().await.expect("closed");
        };
        let (bytes, ()) = tokio::join!(read_all(&mut there), close);
        same(&bytes[..900_001], pattern(900_001, 4), "what came before");
        assert_eq!(bytes.len(), 900_002);
    }

    /// Short writes leave without a flush, and while the writer does something else.
    async fn unflushed(way: Way) {
        let pair = way.pair().await;
        let (mut here, mut there) = streams(&pair).await;
        for round in 0..50_u8 {
            here.write_all(&[round; 3]).await.expect("written");
            let mut bytes = [0; 3];
            there.read_exact(&mut bytes).await.expect("read");
            assert_eq!(bytes, [round; 3]);
        }
    }

    /// Waiting to accept is forgotten, and the next one to wait gets the stream.
    async fn dropped_accepts(way: Way) {
        let pair = way.pair().await;
        for _ in 0..20 {
            let dropped = tokio::time::timeout(Duration::from_millis(1), pair.there.endpoint.accept_stream());
            assert!(dropped.await.is_err());
            let (mut here, mut there) = streams(&pair).await;
            here.write_all(b"x").await.expect("written");
            assert_eq!(there.read_u8().await.expect("read"), b'x');
        }
    }
}

/// A stream is what generic code asks for.
#[test]
fn is_like_any_other() {
    fn demand<
        T: AsyncRead + AsyncWrite + tokio::io::AsyncBufRead + Send + Sync + Unpin + 'static,
    >() {
    }
    demand::<ByteStream>();
    let _ = |stream: ByteStream| -> Pin<Box<dyn AsyncWrite>> { Box::pin(stream) };
}

scenarios! { between workers:
    /// Streams of many workers, read by one: each brings its own bytes, and one that is not read holds nobody up.
    async fn many_senders(way: Way) {
        let context = way.context();
        let hub = wharf::Worker::new(&context).expect("a worker");
        let mut ends = Vec::new();
        for _ in 0..6 {
            let worker = wharf::Worker::new(&context).expect("a worker");
            let (dialled, accepted) = crate::fixture::connect(&worker, &hub).await;
            ends.push((worker, dialled, accepted));
        }
        let sends = join_all(ends.iter().enumerate().skip(1).map(|(index, (_, endpoint, _))| async move {
            let mut stream = endpoint.stream().await.expect("opened");
            stream.write_all(pattern(1 << 20, index)).await.expect("written");
            stream.shutdown().await.expect("shut down");
        }));
        let reads = join_all(ends.iter().enumerate().skip(1).map(|(index, (.., endpoint))| async move {
            let mut stream = endpoint.accept_stream().await.expect("accepted");
            same(&read_all(&mut stream).await, pattern(1 << 20, index), index);
        }));
        let mut idle = ends[0].1.stream().await.expect("opened");
        fill(&mut idle, 10_000).await;
        tokio::join!(sends, reads);
    }

    /// Two connections name their streams alike. What comes on one while the other is read is not that one's.
    async fn of_one_name(way: Way) {
        let context = way.context();
        let hub = wharf::Worker::new(&context).expect("a worker");
        let mut ends = Vec::new();
        for _ in 0..2 {
            let worker = wharf::Worker::new(&context).expect("a worker");
            let (dialled, accepted) = crate::fixture::connect(&worker, &hub).await;
            let stream = dialled.stream().await.expect("opened");
            let other = accepted.accept_stream().await.expect("accepted");
            ends.push((worker, dialled, accepted, stream, other));
        }
        for round in 0..300_usize {
            let length = [64, 1, 200, 5000][round % 4];
            for (index, end) in ends.iter_mut().enumerate() {
                end.3.write_all(pattern(length, 2 * round + index)).await.expect("written");
                end.3.flush().await.expect("flushed");
            }
            for place in 0..2 {
                let index = (place + round / 3) % 2;
                let mut bytes = vec![0; length];
                ends[index].4.read_exact(&mut bytes).await.expect("read");
                same(&bytes, pattern(length, 2 * round + index), length);
            }
        }
    }
}
