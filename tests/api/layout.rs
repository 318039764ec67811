//! Layouts of remote memory: strided and indexed, against a model.

use std::sync::Arc;

use wharf::{
    Access, Block, BufferList, BufferListMut, BufferMut, ErrorKind, ReceiveBuffer, RemoteLayout,
};

use crate::{
    fixture::{Pair, Way, pattern, run, run_on_threads, same},
    rma::{BOTH, MEMORIES, content, exposed, memory},
    support::emulated::in_machine,
};

/// Small numbers that look random.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % below.max(1)
    }
}

/// What memory becomes when the bytes are put in these blocks, one after the other.
fn scatter(memory: &mut [u8], blocks: &[Block], mut bytes: &[u8]) {
    for block in blocks {
        let (part, rest) = bytes.split_at(block.len);
        memory[block.offset..][..block.len].copy_from_slice(part);
        bytes = rest;
    }
}

/// The bytes of these blocks.
fn gather(memory: &[u8], blocks: &[Block]) -> Vec<u8> {
    let part = |block: &Block| &memory[block.offset..][..block.len];
    blocks.iter().map(part).collect::<Vec<_>>().concat()
}

fn total(blocks: &[Block]) -> usize {
    blocks.iter().map(|block| block.len).sum()
}

/// Puts and gets through a layout whose blocks are these, in memory that is checked to the last byte.
async fn through(
    pair: &Pair,
    own: bool,
    size: usize,
    blocks: &[Block],
    overlap: bool,
    layout: impl Fn(&wharf::RemoteRegion) -> RemoteLayout,
    what: &str,
) {
    let (region, remote) = exposed(pair, memory(&pair.there, own, size + 2).await, BOTH).await;
    let part = remote.slice(1..=size);
    let layout = layout(&part);
    let length = total(blocks);
    // Twice: the second finds what the first has set up.
    for seed in [3, 4] {
        if !overlap {
            let mut wanted = pattern(size + 2, seed + 10).to_vec();
            region.write_at(0, &wanted).expect("within");
            let source = pattern(length, seed);
            scatter(&mut wanted[1..], blocks, source);
            pair.here
                .endpoint
                .put(source, layout.clone())
                .await
                .unwrap_or_else(|error| panic!("{what}: {error:?}"));
            same(
                &content(&region),
                &wanted,
                format_args!("put {what}, own: {own}"),
            );
        }
        let held = pattern(size + 2, seed + 20);
        region.write_at(0, held).expect("within");
        let wanted = gather(&held[1..], blocks);
        let got = pair
            .here
            .endpoint
            .get(layout.clone(), vec![0; length])
            .await
            .unwrap_or_else(|error| panic!("{what}: {error:?}"));
        same(&got, &wanted, format_args!("get {what}, own: {own}"));
    }
}

/// Blocks in random order with gaps, none over another.
fn scattered(dice: &mut Dice, count: usize, longest: usize) -> (usize, Vec<Block>) {
    let mut blocks = Vec::new();
    let mut at = 0;
    for _ in 0..count {
        at += dice.roll(5);
        let len = dice.roll(longest + 1);
        blocks.push(Block { offset: at, len });
        at += len;
    }
    for index in (1..blocks.len()).rev() {
        blocks.swap(index, dice.roll(index + 1));
    }
    (at + dice.roll(3), blocks)
}

/// Offset, block, stride, count.
const STRIDED: [(usize, usize, usize, usize); 22] = [
    (0, 1, 1, 1),
    (0, 8, 8, 1),
    (5, 8, 16, 3),
    (3, 1, 2, 5000),
    (0, 4, 4096, 200),
    (0, 8, 24, 1023),
    (0, 8, 24, 1024),
    (7, 8, 24, 1025),
    (7, 16, 17, 9000),
    (1, 8, 8, 4000),
    (1, 4095, 5000, 40),
    (0, 8191, 8200, 20),
    (0, 8192, 8200, 20),
    (3, 8193, 9000, 20),
    (0, 65_536, 65_537, 5),
    (0, 65_537, 70_000, 5),
    (9, 300_000, 300_001, 4),
    (0, 1 << 20, 1 << 20, 2),
    (2, 3_000_001, 0, 1),
    (0, 0, 7, 100),
    (4, 7, 9, 0),
    (100, 33, 100_000, 30),
];

scenarios! { everywhere:
    async fn strided(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            for (offset, len, stride, count) in STRIDED {
                let blocks: Vec<_> = (0..count).map(|index| Block { offset: offset + index * stride, len }).collect();
                let size = offset + stride * count.saturating_sub(1) + len + 1;
                let what = format!("{count} blocks of {len} every {stride} from {offset}");
                through(&pair, own, size, &blocks, false, |remote| remote.strided(offset, len, stride, count).expect("within"), &what).await;
            }
        }
    }

    async fn boxes(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            for (len, [a, b, c]) in [(8, [10, 7, 3]), (1, [3, 1, 300]), (4000, [1, 5, 3]), (20_000, [2, 2, 2])] {
                let (row, plane) = (len * a * 3, len * a * 3 * (b + 1));
                let mut blocks = Vec::new();
                for z in 0..c {
                    for y in 0..b {
                        for x in 0..a {
                            blocks.push(Block { offset: 11 + x * len * 2 + y * row + z * plane, len });
                        }
                    }
                }
                let layout = |remote: &wharf::RemoteRegion| {
                    let line = remote.strided(11, len, len * 2, a).expect("within");
                    let layout = line.repeated(row, b).expect("within").repeated(plane, c).expect("within");
                    assert_eq!(layout.repeated(1, 2).expect_err("four loops").kind(), ErrorKind::Unsupported);
                    layout
                };
                through(&pair, own, 11 + plane * c, &blocks, false, layout, &format!("{a} x {b} x {c} blocks of {len}")).await;
            }
        }
    }

    async fn indexed(way: Way) {
        let pair = way.pair().await;
        let mut dice = Dice(0x1234_5678_9abc_def1);
        for own in MEMORIES {
            for (count, longest) in [(0, 1), (1, 0), (1, 100_000), (3, 8), (1000, 8), (5000, 0), (5000, 3), (3000, 40), (200, 5000), (40, 20_000), (9, 300_000), (2049, 700)] {
                let (size, blocks) = scattered(&mut dice, count, longest);
                let what = format!("{count} blocks of up to {longest}");
                through(&pair, own, size, &blocks, false, |remote| remote.indexed(blocks.clone()), &what).await;
                // The same bytes again and again, for a get.
                let again: Vec<_> = blocks.iter().chain(&blocks).copied().collect();
                through(&pair, own, size, &again, true, |remote| remote.indexed(Arc::<[Block]>::from(&again[..])), &what).await;
            }
        }
    }

    /// Lists of buffers on this side, blocks on the other.
    async fn lists_and_blocks(way: Way) {
        let pair = way.pair().await;
        let mut dice = Dice(77);
        for own in MEMORIES {
            for (pieces, piece, count, longest) in [(3, 5, 40, 3), (500, 30, 7, 5000), (7, 20_000, 3000, 100), (5, 70_000, 9, 60_000)] {
                let (size, mut blocks) = scattered(&mut dice, count, longest);
                blocks.retain(|block| block.len > 0);
                let length = total(&blocks);
                let mut ends: Vec<usize> = (0..pieces).map(|_| dice.roll(length.min(pieces * piece) + 1)).chain([0, length]).collect();
                ends.sort_unstable();
                let source = pattern(length, 9);
                let list: BufferList = ends.windows(2).map(|end| &source[end[0]..end[1]]).collect();
                let (region, remote) = exposed(&pair, memory(&pair.there, own, size).await, BOTH).await;
                let layout = remote.indexed(blocks.clone());
                pair.here.endpoint.put(list.clone(), layout.clone()).await.expect("put");
                let mut wanted = vec![0; size];
                scatter(&mut wanted, &blocks, source);
                same(&content(&region), &wanted, "put");
                let room: BufferListMut = ends.windows(2).map(|end| vec![0; end[1] - end[0]]).collect();
                let got = pair.here.endpoint.get(layout, room).await.expect("got");
                let got: Vec<Vec<u8>> = got.into_inner().into_iter().map(Vec::restore).collect();
                same(&got.concat(), source, "got");
                // One run there.
                if length <= size {
                    pair.here.endpoint.put(list, remote.clone()).await.expect("put");
                    same(&content(&region)[..length], source, "put as one run");
                    let room: BufferListMut = ends.windows(2).map(|end| vec![0; end[1] - end[0]]).collect();
                    let got = pair.here.endpoint.get(remote, room).post().expect("room").await.expect("got");
                    let got: Vec<Vec<u8>> = got.into_inner().into_iter().map(Vec::restore).collect();
                    same(&got.concat(), source, "got as one run");
                }
            }
        }
    }

    /// Nothing moves when the last block is not inside; the error says which.
    async fn outside(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 10_000).await, BOTH).await;
            for bad in [Block { offset: 9_997, len: 4 }, Block { offset: usize::MAX, len: 4 }, Block { offset: 10_001, len: 4 }] {
                for count in [0, 3, 70_000] {
                    let mut blocks = vec![Block { offset: 10, len: 4 }; count];
                    blocks.push(bad);
                    let length = 4 * blocks.len();
                    let layout = remote.indexed(blocks);
                    // Again: the check is remembered.
                    for _ in 0..2 {
                        let error = pair.here.endpoint.put(vec![1; length], layout.clone()).await.expect_err("outside");
                        assert_eq!(error.kind(), ErrorKind::OutOfBounds);
                        assert!(error.to_string().contains(&format!("block {count} ")), "{error}");
                    }
                    let fresh = remote.indexed(vec![bad; 3]);
                    let (error, buffer) = pair.here.endpoint.get(fresh.clone(), vec![7; 12]).await.expect_err("outside").into_parts();
                    assert_eq!((error.kind(), buffer), (ErrorKind::OutOfBounds, Some(vec![7; 12])));
                    let (error, buffer) = pair.here.endpoint.get(fresh, vec![7; 12]).post().expect_err("known by now").into_parts();
                    assert_eq!((error.kind(), buffer), (ErrorKind::OutOfBounds, Some(vec![7; 12])));
                }
            }
            for (offset, block, stride, count) in [(0, 1, 1, 10_001), (9_990, 8, 16, 2), (usize::MAX, 1, 1, 1), (0, 8, usize::MAX, 2), (0, 1, 1 << 62, 8), (0, 1 << 62, 0, 4)] {
                assert_eq!(remote.strided(offset, block, stride, count).expect_err("outside").kind(), ErrorKind::OutOfBounds);
            }
            let line = remote.strided(0, 100, 200, 5).expect("within");
            assert_eq!(line.repeated(4_600, 3).expect_err("outside").kind(), ErrorKind::OutOfBounds);
            assert_eq!(remote.indexed([]).repeated(1, 1).expect_err("not strided").kind(), ErrorKind::Unsupported);
            // A block of a part must lie in the part.
            let part = remote.slice(..100);
            assert_eq!(part.strided(99, 2, 0, 1).expect_err("outside").kind(), ErrorKind::OutOfBounds);
            let error = pair.here.endpoint.put(vec![1; 2], part.indexed([Block { offset: 99, len: 2 }])).await.expect_err("outside");
            assert_eq!(error.kind(), ErrorKind::OutOfBounds);
            assert_eq!(content(&region), vec![0; 10_000]);
        }
    }

    async fn of_another_length(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 1000).await, BOTH).await;
            let blocks = vec![Block { offset: 0, len: 10 }; 3];
            for length in [0, 29, 31, 5000] {
                for layout in [remote.indexed(blocks.clone()), remote.strided(0, 10, 100, 3).expect("within")] {
                    let error = pair.here.endpoint.put(vec![1; length], layout.clone()).await.expect_err("another length");
                    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                    let (error, buffer) = pair.here.endpoint.get(layout, vec![7; length]).await.expect_err("another length").into_parts();
                    assert_eq!((error.kind(), buffer), (ErrorKind::InvalidArgument, Some(vec![7; length])));
                }
            }
            assert_eq!(content(&region), vec![0; 1000]);
        }
    }

    async fn refused(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            for (len, count) in [(8, 3), (8, 3000), (20_000, 3), (0, 3)] {
                let size = 2 * len * count + 1;
                let (read_only, remote) = exposed(&pair, memory(&pair.there, own, size).await, Access::READ).await;
                let layout = remote.strided(0, len, 2 * len, count).expect("within");
                let error = pair.here.endpoint.put(vec![1; len * count], layout.clone()).await.expect_err("read only");
                assert_eq!(error.kind(), ErrorKind::AccessDenied);
                let zeros = pair.here.endpoint.get(layout.clone(), vec![1; len * count]).await.expect("got");
                same(&zeros, &vec![0; len * count], "got");
                let listed = remote.indexed((0..count).map(|index| Block { offset: 2 * len * index, len }).collect::<Vec<_>>());
                drop(read_only);
                for layout in [layout, listed] {
                    let error = pair.here.endpoint.get(layout, vec![7; len * count]).await.expect_err("stale");
                    assert_eq!(error.kind(), ErrorKind::StaleKey, "{len} {count}");
                }
                let (region, remote) = exposed(&pair, memory(&pair.there, own, size).await, BOTH).await;
                drop(region);
                let layout = remote.strided(0, len, 2 * len, count).expect("within");
                let error = pair.here.endpoint.put(vec![1; len * count], layout.clone()).await.expect_err("stale");
                assert_eq!(error.kind(), ErrorKind::StaleKey);
                // A flush tells of one that nobody awaited.
                drop(pair.here.endpoint.put(vec![1; len * count], layout).post().expect("room"));
                assert_eq!(pair.here.endpoint.flush().await.expect_err("lost").kind(), ErrorKind::StaleKey);
                pair.here.endpoint.flush().await.expect("said already");
            }
        }
        // The connection is as good as before.
        let (region, remote) = exposed(&pair, vec![0; 10], BOTH).await;
        pair.here.endpoint.put(pattern(10, 1), remote).await.expect("put");
        same(&content(&region), pattern(10, 1), "put");
    }

    /// Whoever is woken by a put's signal sees all of its blocks.
    async fn signals(way: Way) {
        let pair = way.pair().await;
        let counter = pair.there.worker.counter().await.expect("a counter");
        let there = pair.here.endpoint.import(&counter.descriptor().expect("a descriptor")).expect("the peer's");
        let mut raised = 0;
        for own in MEMORIES {
            for (len, count) in [(8, 1), (8, 100), (8, 20_000), (5000, 30), (70_000, 5), (0, 4)] {
                let (region, remote) = exposed(&pair, memory(&pair.there, own, 2 * len * count + 1).await, BOTH).await;
                let blocks: Vec<_> = (0..count).map(|index| Block { offset: 2 * len * index, len }).collect();
                let length = total(&blocks);
                let strided = remote.strided(0, len, 2 * len, count).expect("within");
                for (seed, layout) in [strided.clone(), remote.indexed(blocks.clone()), strided].into_iter().enumerate() {
                    let put = pair.here.endpoint.put(pattern(length, seed), layout).signal(&there);
                    raised += 1;
                    let seen = async {
                        counter.wait(raised).await.expect("raised");
                        same(&gather(&content(&region), &blocks), pattern(length, seed), len);
                    };
                    let (put, ()) = tokio::join!(put, seen);
                    put.expect("put");
                }
                // A list, to one run.
                let (front, back) = pattern(length, 7).split_at(length / 3);
                let put = pair.here.endpoint.put(BufferList::from([front, back]), remote).signal(&there).post().expect("room");
                raised += 1;
                counter.wait(raised).await.expect("raised");
                same(&content(&region)[..length], pattern(length, 7), len);
                put.await.expect("put");
                assert_eq!(counter.value(), raised);
            }
        }
    }

    /// Many under way at once, posted, dropped and flushed, locally complete, in both directions.
    async fn many_at_once(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 400 * 2_000).await, BOTH).await;
            let mut puts = Vec::new();
            let layout = |index: usize| remote.slice(index * 2_000..).indexed((0..100).map(|block| Block { offset: block * 20, len: 16 }).collect::<Vec<_>>());
            for index in 0..400 {
                let put = pair.here.endpoint.put(pattern(1600, index), layout(index));
                match index % 4 {
                    0 => drop(put.post().expect("room")),
                    1 => put.local().await.expect("put"),
                    _ => puts.push(put.post().expect("room")),
                }
            }
            pair.here.endpoint.flush().await.expect("flushed");
            let bytes = content(&region);
            for index in 0..400 {
                for block in 0..100 {
                    same(&bytes[index * 2_000 + block * 20..][..16], &pattern(1600, index)[block * 16..][..16], "a block");
                }
            }
            for put in puts {
                put.await.expect("put");
            }
            let gets: Vec<_> = (0..400).map(|index| pair.here.endpoint.get(layout(index), vec![0; 1600]).post().expect("room")).collect();
            for (index, get) in gets.into_iter().enumerate() {
                if index % 3 == 0 {
                    drop(get);
                } else {
                    same(&get.await.expect("got"), pattern(1600, index), index);
                }
            }
        }
    }
}

scenarios! { between workers:
    async fn on_another_endpoint(way: Way) {
        let pair = way.pair().await;
        let other = way.pair().await;
        let (_region, remote) = exposed(&pair, vec![0; 10], BOTH).await;
        let layout = remote.strided(0, 1, 2, 5).expect("within");
        let error = other.here.endpoint.put(vec![1; 5], layout.clone()).await.expect_err("another endpoint");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let buffer = BufferMut::from(vec![1; 5]);
        let error = other.here.endpoint.get(layout, buffer).await.expect_err("another endpoint");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

scenarios! { on each carrier:
    /// A million of the shortest.
    async fn a_million_blocks(way: Way) {
        // As many over each carrier; what differs from these by a facility that is taken away has fewer. An emulated processor takes a minute for a million.
        let all = !in_machine() && matches!(way, Way::Shm | Way::Tcp);
        let count = if all { 1_000_000 } else { 100_000 };
        let pair = way.pair().await;
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 16 * count).await, BOTH).await;
            // Odd multiples visit every place.
            let blocks: Vec<Block> = (0..count).map(|index| Block { offset: index * 611_953 % count * 16 + 5, len: 8 }).collect();
            let layout = remote.indexed(blocks.clone());
            let source = pattern(8 * count, 1);
            pair.here.endpoint.put(source, layout.clone()).await.expect("put");
            let mut wanted = vec![0; 16 * count];
            for (block, bytes) in blocks.iter().zip(source.chunks(8)) {
                wanted[block.offset..][..8].copy_from_slice(bytes);
            }
            same(&content(&region), &wanted, "a million blocks put");
            let got = pair.here.endpoint.get(layout, vec![0; 8 * count]).await.expect("got");
            same(&got, source, "a million blocks got");
            let every = remote.strided(5, 8, 16, count).expect("within");
            pair.here.endpoint.put(source, every.clone()).await.expect("put");
            let got = pair.here.endpoint.get(every, vec![0; 8 * count]).await.expect("got");
            same(&got, source, "a million strided blocks");
        }
    }
}
