//! Lists of buffers and layouts, dropped or forgotten after each number of polls: memory is given back once nothing uses it.

use wharf::{Access, Block, BufferList, BufferListMut, RemoteLayout, RemoteRegion, Tag};

use crate::{
    bytes::all_are,
    guarded::{Guard, bytes, expect_bytes},
    sides::{BETWEEN, Between, Case, Path, Sides, on_every_path, poll_some},
};

const POLLS: usize = 4;
const SIZES: [usize; 7] = [0, 8, 3_000, 8_192, 70_000, 200_000, 700_001];

on_every_path!(receive_into_a_list);
on_every_path!(put);
on_every_path!(get);

fn cases() -> impl Iterator<Item = (usize, Between, usize)> {
    SIZES.into_iter().flat_map(|size| {
        BETWEEN
            .into_iter()
            .flat_map(move |between| (0..=POLLS).map(move |polls| (size, between, polls)))
    })
}

fn cut(size: usize) -> [usize; 4] {
    [size / 3, 0, size / 5, size - size / 3 - size / 5]
}

fn sources(guard: &Guard, bytes: &[u8]) -> BufferList {
    let mut rest = bytes;
    let piece = |length: usize| {
        let (front, back) = rest.split_at(length);
        rest = back;
        guard.source(front)
    };
    cut(bytes.len()).map(piece).into_iter().collect()
}

fn targets(guard: &Guard, size: usize) -> BufferListMut {
    cut(size)
        .map(|length| guard.target(length))
        .into_iter()
        .collect()
}

#[track_caller]
fn expect_list(seed: u64, list: &BufferListMut) {
    let pieces = list
        .iter()
        .map(|piece| piece.as_slice().expect("host memory"));
    expect_bytes(seed, &pieces.collect::<Vec<_>>().concat());
}

/// A receive that goes loses nothing.
async fn receive_into_a_list(path: Path) {
    let sides = Sides::new(path).await;
    for (size, between, polls) in cases() {
        for early in [true, false] {
            let _case = Case(format!(
                "{size} bytes, {between:?} between {polls} polls, sent first: {early}"
            ));
            let guard = Guard::default();
            let seed = sides.fresh();
            let post = || {
                let list = sources(&guard, bytes(seed, size));
                sides.to_a.tag_send(Tag(seed), list).post().expect("room")
            };
            let send = early.then(post);
            let receive = sides.a.tag_recv(Tag(seed), targets(&guard, size));
            let mut receive = Box::pin(receive);
            let mut ended =
                poll_some(receive.as_mut(), polls.min(1), between, &sides.a, &sides.b).await;
            let send = send.unwrap_or_else(post);
            if ended.is_none() && polls > 0 {
                between.happen(&sides.a, &sides.b).await;
                ended = poll_some(receive.as_mut(), polls - 1, between, &sides.a, &sides.b).await;
            }
            drop(receive);
            let received = match ended {
                Some(received) => received,
                None => {
                    let again = sides.a.tag_recv(Tag(seed), targets(&guard, size));
                    again.await
                }
            };
            let received = received.expect("the message");
            assert_eq!(received.len, size);
            expect_list(seed, &received.buffer);
            send.await.expect("sent");
            drop(received);
            guard.check();
        }
    }
    sides.expect_works().await;
    sides.shutdown().await;
}

/// Memory of `b`, as `a` sees it.
async fn exposed(sides: &Sides, own: bool) -> (wharf::Region, RemoteRegion) {
    let room = 2 * SIZES[SIZES.len() - 1] + 1000;
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

/// Blocks of 100 bytes, every 150; one long one behind them.
fn blocks(size: usize) -> Vec<Block> {
    let short = size / 2 / 100;
    let mut blocks: Vec<_> = (0..short)
        .map(|index| Block {
            offset: index * 150,
            len: 100,
        })
        .collect();
    blocks.push(Block {
        offset: short * 150,
        len: size - short * 100,
    });
    blocks
}

fn layouts(remote: &RemoteRegion, size: usize) -> Vec<(RemoteLayout, Vec<Block>)> {
    let listed = blocks(size);
    let mut layouts = vec![(remote.indexed(listed.clone()), listed)];
    if size.is_multiple_of(8) {
        let every = (0..size / 8).map(|index| Block {
            offset: index * 16,
            len: 8,
        });
        let strided = remote.strided(0, 8, 16, size / 8).expect("within");
        layouts.push((strided, every.collect()));
    }
    layouts.push((
        remote.slice(..size).into(),
        vec![Block {
            offset: 0,
            len: size,
        }],
    ));
    layouts
}

async fn put(path: Path) {
    let sides = Sides::new(path).await;
    for own in [false, true] {
        let (region, remote) = exposed(&sides, own).await;
        for (size, between, polls) in cases() {
            for (which, (layout, blocks)) in layouts(&remote, size).into_iter().enumerate() {
                let _case = Case(format!(
                    "{size} bytes, layout {which}, {between:?} between {polls} polls, own: {own}"
                ));
                let guard = Guard::default();
                let seed = sides.fresh();
                for block in &blocks {
                    region
                        .write_at(block.offset, &vec![0x55; block.len])
                        .expect("in it");
                }
                let source = bytes(seed, size);
                let put = sides.to_b.put(sources(&guard, source), layout);
                let mut put = Box::pin(if which == 0 { put.local() } else { put });
                let ended = poll_some(put.as_mut(), polls, between, &sides.a, &sides.b).await;
                if let Some(result) = ended {
                    result.expect("a put");
                }
                drop(put);
                sides.to_b.flush().await.expect("a flush");
                let mut found = Vec::new();
                for block in &blocks {
                    let mut part = vec![0; block.len];
                    region.read_at(block.offset, &mut part).expect("in it");
                    found.append(&mut part);
                }
                if polls == 0 {
                    assert!(all_are(&found, 0x55), "put before it was polled");
                } else {
                    expect_bytes(seed, &found);
                }
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
            for (which, (layout, blocks)) in layouts(&remote, size).into_iter().enumerate() {
                let _case = Case(format!(
                    "{size} bytes, layout {which}, {between:?} between {polls} polls, own: {own}"
                ));
                let guard = Guard::default();
                let seed = sides.fresh();
                let held = bytes(seed, size);
                let mut rest = held;
                for block in &blocks {
                    let (part, behind) = rest.split_at(block.len);
                    region.write_at(block.offset, part).expect("in it");
                    rest = behind;
                }
                let get = sides.to_b.get(layout.clone(), targets(&guard, size));
                let mut get = Box::pin(get);
                let ended = poll_some(get.as_mut(), polls, between, &sides.a, &sides.b).await;
                if let Some(list) = ended {
                    expect_list(seed, &list.expect("a get"));
                }
                drop(get);
                let again = sides.to_b.get(layout, targets(&guard, size)).await;
                expect_list(seed, &again.expect("a get"));
                sides.to_b.flush().await.expect("a flush");
                guard.check();
            }
        }
        sides.expect_works().await;
        let room = region.len();
        assert_eq!(region.unexpose().await.len(), room);
    }
    sides.shutdown().await;
}
