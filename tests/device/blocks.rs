//! Strided and listed blocks of a region, and lists of buffers, with device memory at either end or both: against a model, to the last byte.

use std::{future::Future, task::Poll};

use wharf::{
    Access, Block, Buffer, BufferList, BufferListMut, BufferMut, ErrorKind, MemoryType, Region,
    RemoteLayout, RemoteRegion, Tag,
};

use crate::{
    common::{DEVICE, Ends, OTHER, assert_aborted, bytes, context_forbidding, equal, filled},
    fixture::{Pair, Side, Way, a_while, pattern, run, run_on_threads},
    support::accelerator::{FRAGMENT, FakeAccelerator},
};

const BOTH: Access = Access::READ.union(Access::WRITE);

/// Types of the buffer and of the region, a device's one of them at least.
const PAIRS: [(MemoryType, MemoryType); 4] = [
    (MemoryType::Host, DEVICE),
    (DEVICE, MemoryType::Host),
    (DEVICE, OTHER),
    (MemoryType::HostPinned, DEVICE),
];

/// Small numbers that look random.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % below.max(1)
    }

    /// Blocks in random order, neighbours and empty ones among them, none over another, and the bytes that they lie in.
    fn blocks(&mut self, count: usize, longest: usize) -> (usize, Vec<Block>) {
        let mut blocks = Vec::new();
        let mut at = self.roll(9);
        for _ in 0..count {
            at += self.roll(4) * self.roll(7);
            let len = self.roll(longest + 1);
            blocks.push(Block { offset: at, len });
            at += len;
        }
        // Some stay in order, so that there are neighbours.
        for _ in 0..count / 3 {
            let (one, other) = (self.roll(count), self.roll(count));
            blocks.swap(one, other);
        }
        (at + 5, blocks)
    }

    /// Where a list of `pieces` pieces of `length` bytes is cut.
    fn cuts(&mut self, pieces: usize, length: usize) -> Vec<usize> {
        let inner = (1..pieces).map(|_| self.roll(length + 1));
        let mut cuts: Vec<_> = inner.chain([0, length]).collect();
        cuts.sort_unstable();
        cuts
    }
}

fn total(blocks: &[Block]) -> usize {
    blocks.iter().map(|block| block.len).sum()
}

/// What memory becomes when the bytes are put in these blocks.
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

async fn memory(side: &Side, memory_type: MemoryType, bytes: &[u8]) -> BufferMut {
    match bytes.len() {
        // No device allocates nothing.
        0 => BufferMut::default(),
        _ => filled(&side.worker, &side.context, memory_type, bytes).await,
    }
}

async fn content(side: &Side, buffer: BufferMut) -> Vec<u8> {
    bytes(&side.worker, buffer.freeze()).await
}

/// Memory of `there`, exposed, and as `here` sees it.
async fn exposed(ends: &Ends, buffer: BufferMut) -> (Region, RemoteRegion) {
    let region = ends.there.context.expose(buffer, BOTH).await;
    let region = region.expect("exposed");
    let descriptor = region.descriptor().expect("a descriptor");
    let remote = ends.here.endpoint.import(&descriptor).expect("the peer's");
    (region, remote)
}

/// Puts and gets through a layout whose blocks are these.
async fn through(
    ends: &Ends,
    (mine, theirs): (MemoryType, MemoryType),
    (size, blocks): (usize, &[Block]),
    layout: impl Fn(&RemoteRegion) -> RemoteLayout,
    what: &str,
) {
    let what = format!("{what}, {mine} and {theirs}");
    let length = total(blocks);
    let mut wanted = pattern(size + 2, 5).to_vec();
    let (region, remote) = exposed(ends, memory(&ends.there, theirs, &wanted).await).await;
    let layout = layout(&remote.slice(1..=size));
    let source = memory(&ends.here, mine, pattern(length, 3)).await.freeze();
    let put = ends.here.endpoint.put(source, layout.clone());
    put.await
        .unwrap_or_else(|error| panic!("{what}: {error:?}"));
    scatter(&mut wanted[1..], blocks, pattern(length, 3));
    let target = memory(&ends.here, mine, &vec![0x66; length]).await;
    let got = ends.here.endpoint.get(layout, target);
    let got = got
        .await
        .unwrap_or_else(|error| panic!("{what}: {error:?}"));
    equal(
        &content(&ends.here, got).await,
        &gather(&wanted[1..], blocks),
        format_args!("got {what}"),
    );
    let found = content(&ends.there, region.unexpose().await).await;
    equal(&found, &wanted, format_args!("put {what}"));
}

/// Offset, block, stride, count.
const STRIDED: [(usize, usize, usize, usize); 12] = [
    (0, 1, 1, 1),
    (5, 8, 16, 3),
    (3, 1, 2, 300),
    (0, 8, 24, 257),
    (1, 8, 8, 4000),
    (1, 4095, 5000, 40),
    (0, 8193, 9000, 20),
    (9, FRAGMENT + 1, FRAGMENT + 2, 4),
    (2, 5 * FRAGMENT, 0, 1),
    (0, 0, 7, 100),
    (4, 7, 9, 0),
    (100, 33, 3000, 70),
];

// One transfer at a time: who runs the tasks has no part in them.
scenarios! {
    on each carrier:

    async fn strided(way: Way) {
        let ends = Ends::new(way).await;
        for pair in PAIRS {
            for (offset, len, stride, count) in STRIDED {
                let blocks: Vec<_> = (0..count).map(|index| Block { offset: offset + index * stride, len }).collect();
                let size = offset + stride * count.saturating_sub(1) + len + 1;
                let what = format!("{count} blocks of {len} every {stride} from {offset}");
                through(&ends, pair, (size, &blocks), |remote| remote.strided(offset, len, stride, count).expect("within"), &what).await;
            }
        }
        ends.end().await;
    }

    async fn boxes(way: Way) {
        let ends = Ends::new(way).await;
        for pair in PAIRS {
            for (len, [a, b, c], gap) in [(8, [10, 7, 3], 2), (4000, [1, 5, 3], 3), (20_000, [2, 2, 2], 2), (8, [16, 4, 9], 1)] {
                let row = len * a * gap;
                let plane = row * (b + gap - 1);
                let mut blocks = Vec::new();
                for z in 0..c {
                    for y in 0..b {
                        blocks.extend((0..a).map(|x| Block { offset: 11 + x * len * gap + y * row + z * plane, len }));
                    }
                }
                let layout = |remote: &RemoteRegion| {
                    let line = remote.strided(11, len, len * gap, a).expect("within");
                    line.repeated(row, b).expect("within").repeated(plane, c).expect("within")
                };
                through(&ends, pair, (11 + plane * c, &blocks), layout, &format!("{a} x {b} x {c} blocks of {len}")).await;
            }
        }
        ends.end().await;
    }

    async fn listed(way: Way) {
        let ends = Ends::new(way).await;
        for (seed, pair) in PAIRS.into_iter().enumerate() {
            let mut dice = Dice(0x1234_5678_9abc_def1 + seed as u64);
            // More than one announcement takes; more empty ones than one turn looks at; parts that begin and end within blocks.
            for (count, longest) in [(0, 1), (1, 100_000), (3, 8), (600, 8), (2100, 3), (5000, 0), (200, 900), (40, 20_000), (5, 4 * FRAGMENT)] {
                let (size, blocks) = dice.blocks(count, longest);
                let what = format!("{count} blocks of up to {longest}");
                through(&ends, pair, (size, &blocks), |remote| remote.indexed(blocks.clone()), &what).await;
            }
            let mut blocks = vec![Block::default(); 9000];
            blocks[8500] = Block { offset: 3, len: 4 };
            through(&ends, pair, (9, &blocks), |remote| remote.indexed(blocks.clone()), "one among thousands").await;
        }
        ends.end().await;
    }

    /// For a get the same bytes again and again.
    async fn repeated(way: Way) {
        let ends = Ends::new(way).await;
        for (mine, theirs) in PAIRS {
            let held = pattern(300, 8);
            let (region, remote) = exposed(&ends, memory(&ends.there, theirs, held).await).await;
            let blocks: Vec<_> = (0..250).map(|index| Block { offset: index % 7, len: 290 }).collect();
            for (layout, wanted) in [
                (remote.indexed(blocks.clone()), gather(held, &blocks)),
                (remote.strided(9, 100, 0, 40).expect("within"), held[9..109].repeat(40)),
            ] {
                let target = memory(&ends.here, mine, &vec![0; wanted.len()]).await;
                let got = ends.here.endpoint.get(layout, target).await.expect("got");
                equal(&content(&ends.here, got).await, &wanted, format_args!("{mine} {theirs}"));
            }
            drop(region);
        }
        ends.end().await;
    }

    /// Lists of buffers of several memories here, one run or blocks there.
    async fn lists(way: Way) {
        const KINDS: [MemoryType; 4] = [MemoryType::Host, DEVICE, OTHER, MemoryType::HostPinned];
        let ends = Ends::new(way).await;
        let mut dice = Dice(77);
        for theirs in [MemoryType::Host, DEVICE] {
            for kinds in [1, 4] {
                // Of host memory alone, or of all kinds.
                for (pieces, count, longest) in [(3, 40, 3), (300, 7, 900), (7, 700, 100), (5, 9, 60_000)] {
                    let (size, blocks) = dice.blocks(count, longest);
                    let length = total(&blocks);
                    let cuts = dice.cuts(pieces, length);
                    let bytes = pattern(length, 9);
                    let mut list = BufferList::new();
                    for (index, cut) in cuts.windows(2).enumerate() {
                        list.push(memory(&ends.here, KINDS[index % kinds], &bytes[cut[0]..cut[1]]).await.freeze());
                    }
                    let room = async || {
                        let mut room: Vec<BufferMut> = Vec::new();
                        for (index, cut) in cuts.windows(2).enumerate() {
                            room.push(memory(&ends.here, KINDS[(index + 1) % kinds], &vec![0; cut[1] - cut[0]]).await);
                        }
                        BufferListMut::from(room)
                    };
                    let what = format!("{pieces} pieces, {count} blocks of up to {longest}, {theirs}");
                    let mut wanted = vec![0x77; size.max(length)];
                    let (region, remote) = exposed(&ends, memory(&ends.there, theirs, &wanted).await).await;
                    let layout = remote.indexed(blocks.clone());
                    ends.here.endpoint.put(list.clone(), layout.clone()).await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
                    let got = ends.here.endpoint.get(layout, room().await).await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
                    equal(&content(&ends.here, got.into()).await, bytes, format_args!("got {what}"));
                    let found = content(&ends.there, region.unexpose().await).await;
                    scatter(&mut wanted, &blocks, bytes);
                    equal(&found, &wanted, format_args!("put {what}"));
                    // One run there.
                    let (region, remote) = exposed(&ends, memory(&ends.there, theirs, &vec![0; length + 2]).await).await;
                    ends.here.endpoint.put(list.clone(), remote.slice(1..=length)).await.expect("put");
                    let got = ends.here.endpoint.get(remote.slice(1..=length), room().await).await.expect("got");
                    equal(&content(&ends.here, got.into()).await, bytes, format_args!("got one run, {what}"));
                    let found = content(&ends.there, region.unexpose().await).await;
                    equal(&found, &[&[0], bytes, &[0]].concat(), format_args!("put one run, {what}"));
                    // And a message.
                    let both = tokio::join!(
                        ends.here.endpoint.tag_send(Tag(2), list),
                        ends.there.worker.tag_recv(Tag(2), memory(&ends.there, theirs, &vec![0; length]).await),
                    );
                    both.0.expect("sent");
                    equal(&content(&ends.there, both.1.expect("received").buffer).await, bytes, format_args!("sent, {what}"));
                    let both = tokio::join!(
                        ends.there.endpoint.tag_send(Tag(3), memory(&ends.there, theirs, bytes).await.freeze()),
                        ends.here.worker.tag_recv(Tag(3), room().await),
                    );
                    both.0.expect("sent");
                    equal(&content(&ends.here, both.1.expect("received").buffer.into()).await, bytes, format_args!("received, {what}"));
                }
            }
        }
        ends.end().await;
    }
}

scenarios! {
    everywhere:

    /// Whoever is woken by a put's signal sees all of its blocks.
    async fn signalled(way: Way) {
        let ends = Ends::new(way).await;
        let counter = ends.there.worker.counter().await.expect("a counter");
        let there = ends.here.endpoint.import(&counter.descriptor().expect("a descriptor")).expect("the peer's");
        let mut raised = 0;
        for (mine, theirs) in PAIRS {
            for (len, count) in [(8, 1), (3, 2100), (5000, 30), (0, 4)] {
                let blocks: Vec<_> = (0..count).map(|index| Block { offset: 2 * len * index, len }).collect();
                for listed in [true, false] {
                    let count = if listed { count } else { count.min(300) };
                    let blocks = &blocks[..count];
                    let length = total(blocks);
                    let (region, remote) = exposed(&ends, memory(&ends.there, theirs, &vec![0; 2 * length + 1]).await).await;
                    let layout = match listed {
                        true => remote.indexed(blocks.to_vec()),
                        false => remote.strided(0, len, 2 * len, count).expect("within"),
                    };
                    let source = memory(&ends.here, mine, pattern(length, 1)).await.freeze();
                    let put = ends.here.endpoint.put(source, layout).signal(&there);
                    raised += 1;
                    let (put, seen) = tokio::join!(put, counter.wait(raised));
                    put.expect("put");
                    seen.expect("raised");
                    assert_eq!(counter.value(), raised);
                    let found = content(&ends.there, region.unexpose().await).await;
                    equal(&gather(&found, blocks), pattern(length, 1), format_args!("{mine} {theirs} {len}"));
                }
            }
        }
        drop(counter);
        ends.end().await;
    }

    /// Nothing moves when a block is outside, the buffer has another length, or the memory is gone.
    async fn refused(way: Way) {
        let ends = Ends::new(way).await;
        for (mine, theirs) in PAIRS {
            let (region, remote) = exposed(&ends, memory(&ends.there, theirs, &[9; 1000]).await).await;
            let good = Block { offset: 10, len: 4 };
            let put = async |layout, length| {
                let source = memory(&ends.here, mine, &vec![1; length]).await.freeze();
                ends.here.endpoint.put(source, layout).await.expect_err("refused")
            };
            let get = async |layout, length| {
                let target = memory(&ends.here, mine, &vec![7; length]).await;
                let (error, buffer) = ends.here.endpoint.get(layout, target).await.expect_err("refused").into_parts();
                equal(&content(&ends.here, buffer.expect("back")).await, &vec![7; length], "what came back");
                error
            };
            for bad in [Block { offset: 997, len: 4 }, Block { offset: usize::MAX, len: 4 }] {
                let mut blocks = vec![good; 3000];
                blocks.push(bad);
                let length = total(&blocks);
                let error = put(remote.indexed(blocks.clone()), length).await;
                assert_eq!(error.kind(), ErrorKind::OutOfBounds, "{error}");
                assert!(error.to_string().contains("block 3000 "), "{error}");
                let error = get(remote.indexed(blocks), length).await;
                assert_eq!(error.kind(), ErrorKind::OutOfBounds, "{error}");
            }
            assert_eq!(remote.strided(0, 8, 991, 2).map(drop).map_err(|error| error.kind()), Ok(()));
            assert_eq!(remote.strided(0, 10, 991, 2).expect_err("outside").kind(), ErrorKind::OutOfBounds);
            let layouts = || [remote.indexed([good; 3]), remote.strided(0, 4, 100, 3).expect("within")];
            for layout in layouts() {
                assert_eq!(put(layout.clone(), 11).await.kind(), ErrorKind::InvalidArgument);
                assert_eq!(get(layout, 13).await.kind(), ErrorKind::InvalidArgument);
            }
            let layouts = layouts();
            let found = content(&ends.there, region.unexpose().await).await;
            assert_eq!(found, [9; 1000], "{mine} {theirs}");
            for layout in layouts {
                assert_eq!(put(layout.clone(), 12).await.kind(), ErrorKind::StaleKey);
                assert_eq!(get(layout, 12).await.kind(), ErrorKind::StaleKey);
            }
            for access in [Access::READ, Access::WRITE] {
                let held = memory(&ends.there, theirs, &[9; 100]).await;
                let region = ends.there.context.expose(held, access).await.expect("exposed");
                let remote = ends.here.endpoint.import(&region.descriptor().expect("a descriptor")).expect("the peer's");
                let layout = remote.strided(0, 4, 10, 3).expect("within");
                let error = match access == Access::READ {
                    true => put(layout, 12).await,
                    false => get(layout, 12).await,
                };
                assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
                assert_eq!(content(&ends.there, region.unexpose().await).await, [9; 100]);
            }
        }
        ends.end().await;
    }

    /// Many at once, posted, dropped, complete at their source.
    async fn many_at_once(way: Way) {
        let ends = Ends::new(way).await;
        for (mine, theirs) in PAIRS {
            let (region, remote) = exposed(&ends, memory(&ends.there, theirs, &vec![0; 40 * 500]).await).await;
            let layout = |index: usize| remote.slice(index * 500..).indexed((0..20).map(|block| Block { offset: block * 20, len: 16 }).collect::<Vec<_>>());
            let mut puts = Vec::new();
            for index in 0..40 {
                let source = memory(&ends.here, mine, pattern(320, index)).await.freeze();
                let put = ends.here.endpoint.put(source, layout(index));
                match index % 4 {
                    0 => drop(put.post().expect("room")),
                    1 => put.local().await.expect("put"),
                    _ => puts.push(put.post().expect("room")),
                }
            }
            ends.here.endpoint.flush().await.expect("flushed");
            for put in puts {
                put.await.expect("put");
            }
            let mut gets = Vec::new();
            for index in 0..40 {
                let target = memory(&ends.here, mine, &[0; 320]).await;
                gets.push(ends.here.endpoint.get(layout(index), target).post().expect("room"));
            }
            for (index, get) in gets.into_iter().enumerate() {
                match index % 3 {
                    0 => drop(get),
                    _ => equal(&content(&ends.here, get.await.expect("got")).await, pattern(320, index), index),
                }
            }
            drop(region);
        }
        ends.end().await;
    }
}

const SIZE: usize = 9 * FRAGMENT;

/// A put into blocks and a get out of them. Whether they were done, or why not.
async fn transfer(
    ends: &Ends,
    remote: RemoteLayout,
    source: Buffer,
    mine: MemoryType,
) -> Result<(), wharf::Error> {
    let length = source.len();
    ends.here.endpoint.put(source, remote.clone()).await?;
    let target = ends.here.context.allocate_on(mine, length).await;
    let get = ends.here.endpoint.get(remote, target.expect("memory"));
    get.await.map(drop).map_err(|error| error.into_parts().0)
}

fn layouts(remote: &RemoteRegion) -> [RemoteLayout; 2] {
    let blocks: Vec<_> = (0..30)
        .map(|index| Block {
            offset: index * SIZE / 30,
            len: SIZE / 90,
        })
        .collect();
    [
        remote.indexed(blocks),
        remote.strided(0, SIZE / 90, SIZE / 30, 30).expect("within"),
    ]
}

mod faults {
    use super::*;

    scenarios! {
        everywhere:

        async fn an_error_at_the_nth_copy(way: Way) {
            let ends = Ends::new(way).await;
            for (mine, theirs) in PAIRS {
                let (region, remote) = exposed(&ends, memory(&ends.there, theirs, &vec![0; SIZE]).await).await;
                for layout in layouts(&remote) {
                    let source = memory(&ends.here, mine, pattern(SIZE / 90 * 30, 1)).await.freeze();
                    let mut failed = 0;
                    for nth in [1, 2, 3, 5, 8, 13, 21, 34, 55, 89] {
                        let first = ends.device.copies();
                        ends.device.plan(|plan| plan.fail = vec![first + nth]);
                        if let Err(error) = transfer(&ends, layout.clone(), source.clone(), mine).await {
                            failed += 1;
                            assert_eq!(error.kind(), ErrorKind::Io, "{mine} {theirs}: {error}");
                        }
                    }
                    assert!(failed >= 3, "{failed} failures, {mine} {theirs}");
                    ends.device.plan(|plan| plan.fail.clear());
                    transfer(&ends, layout, source, mine).await.expect("as before");
                }
                drop(region);
            }
            ends.end().await;
        }

        async fn dropped_futures(way: Way) {
            let ends = Ends::new(way).await;
            for (mine, theirs) in PAIRS {
                for polls in [0, 1, 2, 3, 5, 8, 13] {
                    let (region, remote) = exposed(&ends, memory(&ends.there, theirs, &vec![0; SIZE]).await).await;
                    for layout in layouts(&remote) {
                        let source = memory(&ends.here, mine, pattern(SIZE / 90 * 30, 1)).await.freeze();
                        let mut transfer = Box::pin(transfer(&ends, layout, source, mine));
                        for _ in 0..polls {
                            let polled = std::future::poll_fn(|cx| Poll::Ready(transfer.as_mut().poll(cx))).await;
                            if polled.is_ready() {
                                break;
                            }
                            tokio::task::yield_now().await;
                        }
                    }
                    // Taken back under them every other time.
                    if polls % 2 == 0 {
                        drop(region.unexpose().await);
                    }
                    while ends.here.worker.in_flight() > 0 || ends.there.worker.in_flight() > 0 {
                        tokio::task::yield_now().await;
                    }
                }
            }
            let _ = ends.here.endpoint.flush().await;
            ends.end().await;
        }

        /// The memory is taken back while copies are stuck: it comes back when the device is done with it.
        async fn taken_back(way: Way) {
            let ends = Ends::new(way).await;
            for (mine, theirs) in PAIRS {
                for put in [true, false] {
                    let (region, remote) = exposed(&ends, memory(&ends.there, theirs, &vec![0; SIZE]).await).await;
                    let [layout, _] = layouts(&remote);
                    let source = memory(&ends.here, mine, pattern(SIZE / 90 * 30, 1)).await;
                    ends.device.plan(|plan| plan.stuck = true);
                    let (mut one, mut other) = (None, None);
                    match put {
                        true => one = Some(ends.here.endpoint.put(source.freeze(), layout).post().expect("room")),
                        false => other = Some(ends.here.endpoint.get(layout, source).post().expect("room")),
                    }
                    a_while().await;
                    ends.there.worker.progress();
                    let back = tokio::spawn(region.unexpose());
                    a_while().await;
                    ends.device.plan(|plan| plan.stuck = false);
                    assert_eq!(back.await.expect("back").len(), SIZE);
                    let result = match (one, other) {
                        (Some(put), _) => put.await,
                        (_, Some(get)) => get.await.map(drop).map_err(|error| error.into_parts().0),
                        _ => Ok(()),
                    };
                    if let Err(error) = result {
                        assert!(matches!(error.kind(), ErrorKind::StaleKey | ErrorKind::Canceled), "{error}");
                    }
                }
            }
            let _ = ends.here.endpoint.flush().await;
            ends.end().await;
        }

        async fn forbidden(way: Way) {
            let device = FakeAccelerator::new();
            let context = context_forbidding(way, &device);
            let Pair { here, there } = Pair::of(&context, way).await;
            for (mine, theirs) in PAIRS {
                let held = context.allocate_on(theirs, 100).await.expect("memory");
                let region = there.context.expose(held, BOTH).await.expect("exposed");
                let remote = here.endpoint.import(&region.descriptor().expect("a descriptor")).expect("the peer's");
                let buffer = context.allocate_on(mine, 20).await.expect("memory");
                for layout in [remote.indexed([Block { offset: 3, len: 20 }]), remote.strided(0, 4, 10, 5).expect("within")] {
                    let mine = context.allocate_on(mine, 20).await.expect("memory");
                    let error = here.endpoint.put(mine.freeze(), layout).await.expect_err("forbidden");
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                    assert!(error.to_string().contains("forbids"), "{error}");
                }
                let error = here.endpoint.get(remote.strided(0, 4, 10, 5).expect("within"), buffer).await.expect_err("forbidden");
                let (error, buffer) = error.into_parts();
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(error.to_string().contains("forbids"), "{error}");
                // Several pieces are no one run either, unless one engine has them and their place.
                let list = BufferList::from([buffer.expect("back").freeze(), context.allocate_on(mine, 9).await.expect("memory").freeze()]);
                let put = here.endpoint.put(list, remote).await;
                let alone = way == Way::Own && ![mine, theirs].contains(&MemoryType::Host);
                assert_eq!(put.is_ok(), alone, "{mine} to {theirs}: {put:?}");
                if let Err(error) = put {
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                }
            }
            device.check();
        }
    }

    scenarios! {
        between workers:

        /// The connection ends while copies are stuck.
        async fn an_aborted_connection(way: Way) {
            for (mine, theirs) in PAIRS {
                let device = FakeAccelerator::new();
                let ends = Ends::with(way, device.clone()).await;
                let (region, remote) = exposed(&ends, memory(&ends.there, theirs, &vec![0; SIZE]).await).await;
                let [layout, _] = layouts(&remote);
                let source = memory(&ends.here, mine, pattern(SIZE / 90 * 30, 1)).await.freeze();
                let now = device.copies();
                let abort = async {
                    while device.copies() < now + 3 {
                        tokio::task::yield_now().await;
                    }
                    device.plan(|plan| plan.stuck = true);
                    ends.here.endpoint.abort();
                    a_while().await;
                    device.plan(|plan| plan.stuck = false);
                };
                let (result, ()) = tokio::join!(transfer(&ends, layout, source, mine), abort);
                if let Err(error) = result {
                    assert_aborted(way, &error);
                }
                drop(region);
                let Ends { here, there, .. } = ends;
                drop((here, there, remote));
                tokio::task::spawn_blocking(move || device.check_freed()).await.expect("freed");
            }
        }
    }
}
