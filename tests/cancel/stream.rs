//! Long owned buffers of streams, which a reader copies out of the writer's memory where it can: futures and halves that go in the middle.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::ByteStream;

use crate::{
    guarded::{Guard, bytes, expect_bytes},
    sides::{BETWEEN, Between, Case, Path, Sides, on_every_path, poll_some},
};

const POLLS: usize = 3;
const SIZES: [usize; 3] = [131_072, 300_001, 1_048_577];

on_every_path!(write);
on_every_path!(read);
on_every_path!(halves);

/// How a future, or one end of a stream, goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Goes {
    Dropped,
    Forgotten,
    Reset,
}

fn cases() -> impl Iterator<Item = (usize, Between, usize, Goes)> {
    SIZES.into_iter().flat_map(|size| {
        BETWEEN.into_iter().flat_map(move |between| {
            (0..=POLLS).flat_map(move |polls| {
                [Goes::Dropped, Goes::Forgotten].map(|goes| (size, between, polls, goes))
            })
        })
    })
}

fn let_go<T>(it: T, goes: Goes) {
    match goes {
        #[expect(
            clippy::mem_forget,
            clippy::disallowed_methods,
            reason = "what is tested"
        )]
        Goes::Forgotten => std::mem::forget(it),
        _ => drop(it),
    }
}

async fn streams(sides: &Sides) -> (ByteStream, ByteStream) {
    let here = sides.to_b.stream().await.expect("opened");
    let there = sides.to_a.accept_stream().await.expect("accepted");
    (here, there)
}

/// Begins to write a buffer.
async fn begin(sides: &Sides, stream: &mut ByteStream, guard: &Guard, seed: u64, size: usize) {
    let mut write = Box::pin(stream.write_buffer(guard.source(bytes(seed, size))));
    let ended = poll_some(write.as_mut(), 1, Between::All, &sides.a, &sides.b).await;
    if let Some(written) = ended {
        written.expect("written");
    }
}

async fn read_exactly(stream: &mut ByteStream, length: usize) -> Vec<u8> {
    let mut found = vec![0; length];
    stream.read_exact(&mut found).await.expect("read");
    found
}

/// A write that was polled happens, all of it; one that was not does not.
async fn write(path: Path) {
    let sides = Sides::new(path).await;
    for (size, between, polls, goes) in cases() {
        let _case = Case(format!(
            "{size} bytes, {between:?} between {polls} polls, {goes:?}"
        ));
        let guard = Guard::default();
        let seed = sides.fresh();
        let (mut here, mut there) = streams(&sides).await;
        let mut write = Box::pin(here.write_buffer(guard.source(bytes(seed, size))));
        let ended = poll_some(write.as_mut(), polls, between, &sides.a, &sides.b).await;
        if let Some(written) = ended {
            written.expect("written");
        }
        let_go(write, goes);
        let mut found = Vec::new();
        let (end, ()) = tokio::join!(there.read_to_end(&mut found), async {
            here.write_all(b"end").await.expect("written");
            here.shutdown().await.expect("shut down");
        });
        end.expect("read to the end");
        let end = found.split_off(found.len() - 3);
        assert_eq!(end, b"end");
        assert_eq!(found.len(), if polls == 0 { 0 } else { size });
        expect_bytes(seed, &found);
        guard.check();
    }
    sides.expect_works().await;
    sides.shutdown().await;
}

/// Reads that go lose nothing.
async fn read(path: Path) {
    let sides = Sides::new(path).await;
    for (size, between, polls, goes) in cases() {
        let _case = Case(format!(
            "{size} bytes, {between:?} between {polls} polls, {goes:?}"
        ));
        let guard = Guard::default();
        let seed = sides.fresh();
        let (mut here, mut there) = streams(&sides).await;
        begin(&sides, &mut here, &guard, seed, size).await;
        drop(here);
        let mut found = Vec::new();
        let mut turn = 0;
        while found.len() < size {
            turn += 1;
            let before = found.len();
            let mut piece = vec![0; [1, 5_000, 100_000][turn % 3]];
            let mut read = Box::pin(there.read(&mut piece));
            let ended = poll_some(read.as_mut(), polls, between, &sides.a, &sides.b).await;
            let_go(read, goes);
            if let Some(count) = ended {
                found.extend_from_slice(&piece[..count.expect("read")]);
            }
            let mut chunk = Box::pin(there.read_chunk());
            let ended = poll_some(chunk.as_mut(), polls, between, &sides.a, &sides.b).await;
            let_go(chunk, goes);
            if let Some(chunk) = ended {
                found.extend_from_slice(&chunk.expect("read").unwrap_or_default());
            }
            if found.len() == before {
                let count = there.read(&mut piece).await.expect("read");
                found.extend_from_slice(&piece[..count]);
                let chunk = there.read_chunk().await.expect("read");
                found.extend_from_slice(&chunk.unwrap_or_default());
            }
        }
        assert_eq!(there.read(&mut [0]).await.expect("the end"), 0);
        assert_eq!(found.len(), size);
        expect_bytes(seed, &found);
        guard.check();
    }
    sides.expect_works().await;
    sides.shutdown().await;
}

/// One end of a stream goes while a buffer is announced, or half read: what is read is right, and the memory comes back.
async fn halves(path: Path) {
    let sides = Sides::new(path).await;
    for size in SIZES {
        for part in [0, 1_000, 70_000] {
            for goes in [Goes::Dropped, Goes::Forgotten, Goes::Reset] {
                for by_writer in [true, false] {
                    let _case = Case(format!(
                        "{size} bytes, {part} of them read, {goes:?}, by the writer: {by_writer}"
                    ));
                    half(&sides, size, part, goes, by_writer).await;
                }
            }
        }
    }
    sides.expect_works().await;
    sides.shutdown().await;
}

async fn half(sides: &Sides, size: usize, part: usize, goes: Goes, by_writer: bool) {
    let guard = Guard::default();
    let seed = sides.fresh();
    let (mut here, mut there) = streams(sides).await;
    begin(sides, &mut here, &guard, seed, size).await;
    let mut found = read_exactly(&mut there, part).await;
    match (by_writer, goes) {
        (true, Goes::Reset) => {
            here.reset();
            there.read_to_end(&mut found).await.expect_err("reset");
        }
        (true, Goes::Dropped) => {
            drop(here);
            there.read_to_end(&mut found).await.expect("the end");
            assert_eq!(found.len(), size);
        }
        (true, Goes::Forgotten) => {
            let_go(here, goes);
            found.extend_from_slice(&read_exactly(&mut there, size - part).await);
        }
        (false, Goes::Reset) => {
            there.reset();
            here.read(&mut [0]).await.expect_err("reset");
        }
        (false, Goes::Dropped) => drop(there),
        (false, Goes::Forgotten) => {
            // It reads no more, and does not say so.
            let_go(there, goes);
            let mut write = Box::pin(here.write_buffer(guard.source(bytes(seed, 2 * size))));
            let ended = poll_some(write.as_mut(), 3, Between::All, &sides.a, &sides.b).await;
            assert!(ended.is_none() || size < 300_000);
            drop(write);
            here.reset();
        }
    }
    while guard.is_lent() {
        tokio::task::yield_now().await;
    }
    expect_bytes(seed, &found);
    guard.check();
}
