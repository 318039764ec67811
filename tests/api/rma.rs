//! One-sided operations.

use wharf::{Access, BufferMut, Descriptor, ErrorKind, Region, RemoteRegion};

use std::{
    collections::BTreeSet,
    fs::{File, read_to_string},
    os::unix::fs::FileExt,
    pin::pin,
};

use crate::{
    fixture::{Pair, SIZES, Side, Way, connect, pattern, run, run_on_threads, same},
    load::in_a_process,
    loans::{given, mappings_of},
    support::{Child, child, emulated::in_machine, this_test, until},
};

pub(crate) const BOTH: Access = Access::READ.union(Access::WRITE);

/// Where exposed memory comes from.
pub(crate) const MEMORIES: [bool; 2] = [true, false];

pub(crate) async fn memory(side: &Side, own: bool, size: usize) -> BufferMut {
    if own {
        side.context.allocate(size).await.expect("memory").into()
    } else {
        vec![0; size].into()
    }
}

/// Memory of `there`, exposed, and as `here` sees it.
pub(crate) async fn exposed(
    pair: &Pair,
    buffer: impl Into<BufferMut>,
    access: Access,
) -> (Region, RemoteRegion) {
    let region = pair
        .there
        .context
        .expose(buffer, access)
        .await
        .expect("exposed");
    let bytes = region.descriptor().expect("a descriptor").to_bytes();
    let descriptor = Descriptor::from_bytes(&bytes).expect("unaltered");
    let remote = pair.here.endpoint.import(&descriptor).expect("the peer's");
    assert_eq!(remote.len(), region.len());
    (region, remote)
}

pub(crate) fn content(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read_at(0, &mut bytes).expect("within");
    bytes
}

scenarios! { between workers:
    /// Puts there and back: each end looks at its own memory until the other's is there.
    async fn there_and_back(way: Way) {
        // Over a network each round is two turns of whoever waits for the system, which on a machine with much to do is given its turn late.
        let rounds: u64 = if in_machine() { 500 } else if way.is_network() { 2_000 } else { 10_000 };
        let pair = way.pair().await;
        let back = Pair { here: pair.there.clone(), there: pair.here.clone() };
        let (there, to_there) = exposed(&pair, vec![0; 8], BOTH).await;
        let (here, to_here) = exposed(&back, vec![0; 8], BOTH).await;
        let until = async |region: &Region, round: u64| {
            while content(region) != round.to_le_bytes() {
                tokio::task::yield_now().await;
            }
        };
        let one = async {
            for round in 1..=rounds {
                pair.here.endpoint.put(round.to_le_bytes().to_vec(), to_there.clone()).local().await.expect("put");
                until(&here, round).await;
            }
        };
        let other = async {
            for round in 1..=rounds {
                until(&there, round).await;
                pair.there.endpoint.put(round.to_le_bytes().to_vec(), to_here.clone()).local().await.expect("put");
            }
        };
        tokio::join!(one, other);
    }
}

scenarios! { everywhere:
    /// What was put is there when the put has ended.
    async fn put(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            for (index, size) in SIZES.into_iter().enumerate() {
                let (region, remote) = exposed(&pair, memory(&pair.there, own, size + 2).await, BOTH).await;
                // Twice: the second finds what the first has set up.
                for seed in [index, index + 1] {
                    pair.here.endpoint.put(pattern(size, seed), remote.slice(1..)).await.expect("put");
                    let bytes = content(&region);
                    same(&bytes[1..size + 1], pattern(size, seed), size);
                    assert_eq!((bytes[0], bytes[size + 1]), (0, 0), "{size} bytes touched their neighbours");
                }
            }
        }
    }

    async fn get(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            for (index, size) in SIZES.into_iter().enumerate() {
                let (region, remote) = exposed(&pair, memory(&pair.there, own, size + 2).await, BOTH).await;
                for seed in [index, index + 1] {
                    region.write_at(1, pattern(size, seed)).expect("within");
                    let target = if own { pair.here.context.allocate(size).await.expect("memory").into() } else { BufferMut::from(vec![0; size]) };
                    let got = pair.here.endpoint.get(remote.slice(1..=size), target).await.expect("got");
                    same(got.as_slice().expect("host memory"), pattern(size, seed), size);
                }
            }
        }
    }

    /// A part of a part, into each kind of memory, which comes back as itself: at first by messages, where there is a way also straight.
    async fn each_kind_of_memory(way: Way) {
        let pair = way.pair().await;
        let endpoint = &pair.here.endpoint;
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 64).await, BOTH).await;
            region.write_at(0, pattern(64, 1)).expect("within");
            let part = remote.slice(8..56).slice(8..=15);
            let wanted = &pattern(64, 1)[16..24];
            for _ in 0..20 {
                let target = vec![0; 8];
                let address = target.as_ptr().addr();
                let got = endpoint.get(part.clone(), target).await.expect("got");
                assert_eq!((&*got, got.as_ptr().addr()), (wanted, address));
                let target = bytes::BytesMut::zeroed(8);
                let address = target.as_ptr().addr();
                let got = endpoint.get(part.clone(), target).await.expect("got");
                assert_eq!((&*got, got.as_ptr().addr()), (wanted, address));
                let target = pair.here.context.allocate(8).await.expect("memory");
                let address = target.as_ptr().addr();
                let got = endpoint.get(part.clone(), target).await.expect("got");
                assert_eq!((&*got, got.as_ptr().addr()), (wanted, address));
                let error = endpoint.get(part.clone(), vec![0; 9]).await.expect_err("a byte more");
                assert_eq!(error.into_parts().1.map(|buffer| buffer.len()), Some(9));
            }
        }
    }

    /// Polled once more it is an error, and nothing happens a second time.
    async fn polled_again(way: Way) {
        let pair = way.pair().await;
        let endpoint = &pair.here.endpoint;
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 8).await, BOTH).await;
            for _ in 0..20 {
                let mut put = pin!(endpoint.put(vec![1; 8], remote.clone()));
                put.as_mut().await.expect("put");
                assert_eq!(content(&region), [1; 8]);
                region.write_at(0, &[0; 8]).expect("within");
                assert_eq!(put.await.expect_err("over").kind(), ErrorKind::InvalidArgument);
                assert_eq!(content(&region), [0; 8]);
                let mut get = pin!(endpoint.get(remote.clone(), vec![7; 8]));
                assert_eq!(get.as_mut().await.expect("got"), [0; 8]);
                assert_eq!(get.await.expect_err("over").kind(), ErrorKind::InvalidArgument);
            }
        }
    }

    /// From memory that wharf allocated.
    async fn put_from_own_memory(way: Way) {
        let pair = way.pair().await;
        for size in [8, 5000, 70_000, (1 << 20) + 3] {
            let mut source = pair.here.context.allocate(size).await.expect("memory");
            source.copy_from_slice(pattern(size, 4));
            let source = source.freeze();
            let (region, remote) = exposed(&pair, memory(&pair.there, true, size).await, BOTH).await;
            for _ in 0..3 {
                region.write_at(0, &vec![0; size]).expect("within");
                pair.here.endpoint.put(source.clone(), remote.clone()).await.expect("put");
                same(&content(&region), pattern(size, 4), size);
            }
        }
    }

    /// Locally complete puts, made sure of by a flush.
    async fn local_and_flush(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 4 << 20).await, BOTH).await;
            let mut at = 0;
            for (index, size) in SIZES.into_iter().enumerate().filter(|(_, size)| *size <= 300_000) {
                pair.here.endpoint.put(pattern(size, index), remote.slice(at..)).local().await.expect("put");
                at += size;
            }
            pair.here.endpoint.flush().await.expect("flushed");
            let bytes = content(&region);
            let mut at = 0;
            for (index, size) in SIZES.into_iter().enumerate().filter(|(_, size)| *size <= 300_000) {
                same(&bytes[at..at + size], pattern(size, index), size);
                at += size;
            }
            // With nothing pending it is over at once.
            pair.here.endpoint.flush().await.expect("flushed");
        }
    }

    /// Posted operations, some of them never awaited, and a flush behind them.
    async fn posted(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            for size in [16, 5000, 100_000, 600_000] {
                let (region, remote) = exposed(&pair, memory(&pair.there, own, 8 * size).await, BOTH).await;
                let mut puts = Vec::new();
                for index in 0..8 {
                    let put = pair.here.endpoint.put(pattern(size, index), remote.slice(index * size..)).post().expect("room");
                    if index % 2 == 0 {
                        puts.push(put);
                    } else {
                        drop(put);
                    }
                }
                pair.here.endpoint.flush().await.expect("flushed");
                let bytes = content(&region);
                for index in 0..8 {
                    same(&bytes[index * size..][..size], pattern(size, index), size);
                }
                for put in puts {
                    put.await.expect("put");
                }
                let gets: Vec<_> = (0..8)
                    .map(|index| pair.here.endpoint.get(remote.slice(index * size..), vec![0; size]).post().expect("room"))
                    .collect();
                for (index, get) in gets.into_iter().enumerate() {
                    same(&get.await.expect("got"), pattern(size, index), size);
                }
            }
        }
    }

    /// Past the window of posted operations there is no room, and the buffer comes back; later there is again.
    async fn window(way: Way) {
        let pair = way.pair().await;
        let (_region, remote) = exposed(&pair, vec![0; 1 << 20], BOTH).await;
        let mut posted = Vec::new();
        let full = loop {
            // Nobody receives them.
            match pair.here.endpoint.tag_send(1, vec![1; 8]).sync().post() {
                Ok(send) => posted.push(send),
                Err(error) => break error,
            }
            assert!(posted.len() <= 100_000, "no bound");
        };
        let (error, buffer) = full.into_parts();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert_eq!(buffer.map(|buffer| buffer.len()), Some(8));
        let long = vec![1; 1 << 20];
        let error = pair.here.endpoint.put(long.clone(), remote.clone()).post().expect_err("no room either");
        assert_eq!((error.kind(), error.into_parts().1.map(|buffer| buffer.len())), (ErrorKind::WouldBlock, Some(long.len())));
        let error = pair.here.endpoint.get(remote.clone(), long.clone()).post().expect_err("no room either");
        assert_eq!((error.kind(), error.into_parts().1), (ErrorKind::WouldBlock, Some(long.clone())));
        for send in posted {
            let ((), sent) = tokio::join!(async { assert_eq!(pair.there.receive(1, 8).await, vec![1; 8]) }, send);
            sent.expect("matched");
        }
        pair.here.endpoint.put(long, remote).post().expect("room again").await.expect("put");
    }

    /// Memory that is exposed no longer: the owner has it back with what was put, and nobody reaches it.
    async fn unexposed(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            for size in [1, 48, 5000, 70_000, 300_000, (1 << 20) + 3] {
                let (region, remote) = exposed(&pair, memory(&pair.there, own, size).await, BOTH).await;
                pair.here.endpoint.put(pattern(size, 1), remote.clone()).await.expect("put");
                let descriptor = region.descriptor().expect("a descriptor");
                let buffer = region.unexpose().await;
                same(buffer.as_slice().expect("host memory"), pattern(size, 1), size);

                // The slot is used again, by other memory.
                let (other, other_remote) = exposed(&pair, memory(&pair.there, own, size).await, BOTH).await;
                for remote in [remote, pair.here.endpoint.import(&descriptor).expect("the peer's")] {
                    let error = pair.here.endpoint.put(pattern(size, 2), remote.clone()).await.expect_err("stale");
                    assert_eq!(error.kind(), ErrorKind::StaleKey, "put of {size}: {error:?}");
                    let error = pair.here.endpoint.get(remote.clone(), vec![7; size]).await.expect_err("stale");
                    assert_eq!(error.kind(), ErrorKind::StaleKey, "get of {size}: {error:?}");
                    let put = pair.here.endpoint.put(pattern(size, 2), remote.clone()).post().expect("room");
                    assert_eq!(put.await.expect_err("stale").kind(), ErrorKind::StaleKey);
                    let get = pair.here.endpoint.get(remote, vec![7; size]).post().expect("room");
                    assert_eq!(get.await.expect_err("stale").kind(), ErrorKind::StaleKey);
                }
                assert!(content(&other).iter().all(|byte| *byte == 0), "the new owner's memory was touched");
                // The connection is as good as before.
                pair.here.endpoint.put(pattern(size, 3), other_remote).await.expect("put");
                same(&content(&other), pattern(size, 3), size);
                same(buffer.as_slice().expect("host memory"), pattern(size, 1), size);
            }
        }
    }

    /// Dropping a region revokes as well.
    async fn dropped(way: Way) {
        let pair = way.pair().await;
        let (region, remote) = exposed(&pair, vec![0; 100], BOTH).await;
        drop(region);
        let error = pair.here.endpoint.put(vec![1; 100], remote.clone()).await.expect_err("stale");
        assert_eq!(error.kind(), ErrorKind::StaleKey);
        // Of no bytes at all, too.
        let error = pair.here.endpoint.put(vec![], remote).await.expect_err("stale");
        assert_eq!(error.kind(), ErrorKind::StaleKey);
    }

    /// A put whose future went, or ended before its bytes arrived, and that was refused: the next flush says so, once.
    async fn a_flush_tells_of_lost_puts(way: Way) {
        let pair = way.pair().await;
        for size in [10, 5000, 300_000] {
            let (region, remote) = exposed(&pair, vec![0; size], BOTH).await;
            drop(region);
            for local in [true, false] {
                let put = pair.here.endpoint.put(pattern(size, 1), remote.clone());
                if local {
                    // Locally complete, or refused by then.
                    let refused = put.local().await.is_err();
                    let flushed = pair.here.endpoint.flush().await;
                    assert!(refused || flushed.is_err_and(|error| error.kind() == ErrorKind::StaleKey), "{size}");
                } else {
                    drop(put.post().expect("room"));
                    assert_eq!(pair.here.endpoint.flush().await.expect_err("lost").kind(), ErrorKind::StaleKey);
                }
                pair.here.endpoint.flush().await.expect("said already");
            }
        }
    }

    async fn out_of_bounds(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 1000).await, BOTH).await;
            for part in [remote.clone(), remote.slice(1..), remote.slice(1000..)] {
                let long = part.len() + 1;
                let error = pair.here.endpoint.put(vec![1; long], part.clone()).await.expect_err("too long");
                assert_eq!(error.kind(), ErrorKind::OutOfBounds);
                let (error, buffer) = pair.here.endpoint.put(vec![1; long], part.clone()).post().expect_err("too long").into_parts();
                assert_eq!((error.kind(), buffer.map(|buffer| buffer.len())), (ErrorKind::OutOfBounds, Some(long)));
                let (error, buffer) = pair.here.endpoint.get(part.clone(), vec![7; long]).await.expect_err("too long").into_parts();
                assert_eq!((error.kind(), buffer), (ErrorKind::OutOfBounds, Some(vec![7; long])));
                let (error, buffer) = pair.here.endpoint.get(part, vec![7; long]).post().expect_err("too long").into_parts();
                assert_eq!((error.kind(), buffer), (ErrorKind::OutOfBounds, Some(vec![7; long])));
            }
            assert_eq!(content(&region), vec![0; 1000]);
            assert_eq!(region.read_at(999, &mut [0; 2]).expect_err("too long").kind(), ErrorKind::OutOfBounds);
            assert_eq!(region.write_at(usize::MAX, &[0; 2]).expect_err("too long").kind(), ErrorKind::OutOfBounds);
        }
    }

    async fn without_the_right(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            for size in [10, 5000, 300_000] {
                let (read_only, remote) = exposed(&pair, memory(&pair.there, own, size).await, Access::READ).await;
                assert_eq!(remote.access(), Access::READ);
                let error = pair.here.endpoint.put(pattern(size, 1), remote.clone()).await.expect_err("read only");
                assert_eq!(error.kind(), ErrorKind::AccessDenied);
                let error = pair.here.endpoint.put(pattern(size, 1), remote.clone()).post().expect_err("read only");
                assert_eq!(error.kind(), ErrorKind::AccessDenied);
                same(&pair.here.endpoint.get(remote, vec![1; size]).await.expect("got"), &vec![0; size], size);
                same(&content(&read_only), &vec![0; size], size);

                let (write_only, remote) = exposed(&pair, memory(&pair.there, own, size).await, Access::WRITE).await;
                let (error, buffer) = pair.here.endpoint.get(remote.clone(), vec![7; size]).await.expect_err("write only").into_parts();
                assert_eq!((error.kind(), buffer), (ErrorKind::AccessDenied, Some(vec![7; size])));
                pair.here.endpoint.put(pattern(size, 2), remote).await.expect("put");
                same(&content(&write_only), pattern(size, 2), size);
            }
        }
    }

    /// A descriptor with any byte altered, cut short or lengthened is none.
    async fn altered_descriptors(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            let region = pair.there.context.expose(memory(&pair.there, own, 1000).await, BOTH).await.expect("exposed");
            let good = region.descriptor().expect("a descriptor").to_bytes();
            for at in 0..good.len() {
                for change in [1, 0x80, 0xff] {
                    let mut bad = good.clone();
                    bad[at] ^= change;
                    assert_eq!(Descriptor::from_bytes(&bad).expect_err("altered").kind(), ErrorKind::Malformed, "byte {at}");
                }
                assert_eq!(Descriptor::from_bytes(&good[..at]).expect_err("cut").kind(), ErrorKind::Malformed, "at {at}");
            }
            let mut long = good.clone();
            long.push(0);
            assert_eq!(Descriptor::from_bytes(&long).expect_err("too long").kind(), ErrorKind::Malformed);
            assert_eq!(Descriptor::from_bytes(&good).expect("unaltered"), region.descriptor().expect("a descriptor"));
        }
    }

    /// Puts and gets of many sizes under way at once, to the same endpoint, in both directions.
    async fn many_at_once(way: Way) {
        let pair = way.pair().await;
        let (region, remote) = exposed(&pair, memory(&pair.there, true, 6 << 20).await, BOTH).await;
        let back = pair.here.context.expose(vec![0; 6 << 20], BOTH).await.expect("exposed");
        let there = pair.there.endpoint.import(&back.descriptor().expect("a descriptor")).expect("the peer's");
        let work = |endpoint: wharf::Endpoint, remote: RemoteRegion, seed: usize| async move {
            let mut at = 0;
            let mut puts = Vec::new();
            for (index, size) in SIZES.into_iter().enumerate().take(27) {
                puts.push((at, size, index, endpoint.put(pattern(size, index + seed), remote.slice(at..)).post().expect("room")));
                at += size;
            }
            for (at, size, index, put) in puts {
                put.await.expect("put");
                let got = endpoint.get(remote.slice(at..at + size), vec![0; size]).await.expect("got");
                same(&got, pattern(size, index + seed), size);
            }
        };
        let one = tokio::spawn(work(pair.here.endpoint.clone(), remote, 3));
        let two = tokio::spawn(work(pair.there.endpoint.clone(), there, 300));
        one.await.expect("to its end");
        two.await.expect("to its end");
        same(&content(&region)[..1], pattern(1, 4), "the first");
    }
}

scenarios! { between workers:
    /// A remote region belongs to the endpoint it was imported on.
    async fn on_another_endpoint(way: Way) {
        let pair = way.pair().await;
        let other = way.pair().await;
        let (_region, remote) = exposed(&pair, vec![0; 10], BOTH).await;
        let error = other.here.endpoint.put(vec![1; 10], remote.clone()).await.expect_err("another endpoint");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let error = other.here.endpoint.get(remote, vec![1; 10]).await.expect_err("another endpoint");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

/// A descriptor of another process is refused, whatever the bytes.
#[test]
fn of_another_process() {
    if let Some(mut parent) = child("exposer") {
        run(async {
            let context = Way::Shm.context();
            let region = context.expose(vec![0; 100], BOTH).await.expect("exposed");
            let bytes = region.descriptor().expect("a descriptor").to_bytes();
            let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            parent.say(text);
            parent.hear().await;
        });
        return;
    }
    let mut child = Child::start(this_test!(), "exposer", &[]);
    run(async {
        let text = child.hear().await;
        let bytes: Vec<u8> = (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal"))
            .collect();
        let descriptor = Descriptor::from_bytes(&bytes).expect("unaltered");
        for way in [Way::Own, Way::Shm, Way::Tcp] {
            let pair = way.pair().await;
            let error = pair
                .here
                .endpoint
                .import(&descriptor)
                .expect_err("another process");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        child.say("enough");
    });
    child.finish();
}

/// Numbers that look like chance and are the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

scenarios! { everywhere:
    /// Memory of no bytes; the same memory exposed again and again, each time under another key; many regions at once.
    async fn exposed_again(way: Way) {
        let pair = way.pair().await;
        let endpoint = &pair.here.endpoint;
        for own in MEMORIES {
            let (empty, remote) = exposed(&pair, memory(&pair.there, own, 0).await, BOTH).await;
            assert!(empty.is_empty() && remote.is_empty());
            endpoint.put(vec![], remote.clone()).await.expect("put");
            assert_eq!(endpoint.get(remote.clone(), vec![]).await.expect("got"), Vec::<u8>::new());
            let error = endpoint.put(vec![1], remote).await.expect_err("no room");
            assert_eq!(error.kind(), ErrorKind::OutOfBounds);
            assert_eq!(empty.unexpose().await.len(), 0);

            let mut buffer = memory(&pair.there, own, 5000).await;
            let mut before: Option<RemoteRegion> = None;
            for round in 0..20 {
                let (region, remote) = exposed(&pair, buffer, BOTH).await;
                endpoint.put(pattern(5000, round), remote.clone()).await.expect("put");
                if let Some(before) = before.replace(remote) {
                    let error = endpoint.put(vec![1; 5000], before).await.expect_err("of before");
                    assert_eq!(error.kind(), ErrorKind::StaleKey);
                }
                buffer = region.unexpose().await;
                same(buffer.as_slice().expect("host memory"), pattern(5000, round), round);
            }

            let mut regions = Vec::new();
            for _ in 0..200 {
                regions.push(exposed(&pair, memory(&pair.there, own, 100).await, BOTH).await);
            }
            for (index, (_, remote)) in regions.iter().enumerate() {
                endpoint.put(pattern(100, index), remote.clone()).await.expect("put");
            }
            for (index, (region, _)) in regions.iter().enumerate() {
                same(&content(region), pattern(100, index), index);
            }
        }
    }

    /// Exposed, put into and taken back by many tasks at once.
    async fn exposed_by_many_tasks(way: Way) {
        let pair = std::sync::Arc::new(way.pair().await);
        let tasks: Vec<_> = (0..8)
            .map(|task| {
                let pair = pair.clone();
                tokio::spawn(async move {
                    for round in 0..25 {
                        let size = [8, 5000, 100_000][(round + task) % 3];
                        let (region, remote) = exposed(&pair, memory(&pair.there, round % 2 == 0, size).await, BOTH).await;
                        pair.here.endpoint.put(pattern(size, task * 100 + round), remote).await.expect("put");
                        let buffer = region.unexpose().await;
                        same(buffer.as_slice().expect("host memory"), pattern(size, task * 100 + round), size);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("to its end");
        }
    }

    /// Thousands of operations of all kinds, at any place and of any length, against a picture of the memory.
    async fn random(way: Way) {
        const SIZE: usize = 1 << 20;
        let pair = way.pair().await;
        let endpoint = &pair.here.endpoint;
        let (region, remote) = exposed(&pair, memory(&pair.there, true, SIZE).await, BOTH).await;
        let mut picture = vec![0_u8; SIZE];
        let mut dice = Dice(0x5bd1_e995_9e37_79b9);
        for round in 0..3000 {
            let longest = [16, 100, 9000, 200_000][dice.below(40).min(3)];
            let length = dice.below(longest + 1);
            let at = dice.below(SIZE - length + 1);
            let word = dice.below(SIZE / 8) * 8;
            let value = u64::from_le_bytes(picture[word..word + 8].try_into().expect("eight bytes"));
            let place = remote.slice(at..at + length);
            match dice.below(8) {
                0 => {
                    endpoint.put(pattern(length, round), place).await.expect("put");
                    picture[at..at + length].copy_from_slice(pattern(length, round));
                }
                1 => {
                    endpoint.put(pattern(length, round), place).local().await.expect("put");
                    endpoint.fence().await.expect("fenced");
                    picture[at..at + length].copy_from_slice(pattern(length, round));
                }
                2 => {
                    drop(endpoint.put(pattern(length, round), place).post().expect("room"));
                    endpoint.flush().await.expect("flushed");
                    picture[at..at + length].copy_from_slice(pattern(length, round));
                }
                3 => same(&endpoint.get(place, vec![0; length]).await.expect("got"), &picture[at..at + length], round),
                4 => {
                    assert_eq!(remote.fetch_add(word, round as u64).await.expect("added"), value);
                    picture[word..word + 8].copy_from_slice(&value.wrapping_add(round as u64).to_le_bytes());
                }
                5 => {
                    assert_eq!(remote.compare_swap(word, value, !value).await.expect("swapped"), value);
                    picture[word..word + 8].copy_from_slice(&(!value).to_le_bytes());
                }
                6 => {
                    remote.xor(word + 4, 0x0f0f_0f0f_u32).await.expect("xored");
                    picture[word + 4..word + 8].iter_mut().for_each(|byte| *byte ^= 0x0f);
                }
                _ => {
                    let (received, ()) = tokio::join!(pair.there.receive(1, length), pair.here.send(1, pattern(length, round)));
                    same(&received, pattern(length, round), round);
                }
            }
        }
        same(&content(&region), &picture, "all of it");
    }
}

/// The segments shared by two workers in which eight bytes of this descriptor lie that are no small number, nor those of another one: its key.
fn segments_with_key(descriptor: &[u8], other: &[u8]) -> BTreeSet<String> {
    let keys: BTreeSet<&[u8]> = descriptor
        .windows(8)
        .filter(|window| window.iter().filter(|byte| **byte != 0).count() > 6)
        .filter(|window| other.windows(8).all(|known| known != *window))
        .collect();
    assert!(!keys.is_empty(), "a key is no small number");
    let memory = File::open("/proc/self/mem").expect("own memory");
    let maps = || read_to_string("/proc/self/maps").expect("own mappings");
    let before = maps();
    let mut found = Vec::new();
    for line in before
        .lines()
        .filter(|line| line.contains("memfd:wharf-pair"))
    {
        let range = line.split_whitespace().next().expect("a range");
        let (start, end) = range.split_once('-').expect("two ends");
        let [start, end] = [start, end].map(|end| u64::from_str_radix(end, 16).expect("hex"));
        let mut bytes = vec![0; (end - start) as usize];
        if memory.read_exact_at(&mut bytes, start).is_ok()
            && bytes.chunks_exact(8).any(|word| keys.contains(word))
        {
            found.push(line);
        }
    }
    // Those of other tests may be gone meanwhile, and something else of this process, which knows the key, may lie there.
    let after = maps();
    found.retain(|line| after.lines().any(|still| still == *line));
    let inode = |line: &str| line.split_whitespace().nth(4).expect("an inode").to_owned();
    found.into_iter().map(inode).collect()
}

/// What a peer shares with this process says nothing of regions whose descriptor it was not given.
#[test]
fn no_peer_finds_the_key_of_a_region_that_it_was_not_given() {
    run(async {
        let holder = Way::Shm.pair().await;
        let (region, stranger) = {
            let memory = memory(&holder.there, true, 4096).await;
            let region = holder.there.context.expose(memory, BOTH).await;
            (region.expect("exposed"), Way::Shm)
        };
        // Connected after it was exposed, to the worker of the same context that exposed it.
        let stranger = {
            let worker = stranger.worker();
            let ends = connect(&worker, &holder.there.worker).await;
            (worker, ends)
        };
        let descriptor = region.descriptor().expect("a descriptor").to_bytes();
        let other = memory(&holder.there, true, 4096).await;
        let other = holder.there.context.expose(other, BOTH).await;
        let other = other.expect("exposed").descriptor();
        let other = other.expect("a descriptor").to_bytes();
        let found = segments_with_key(&descriptor, &other);
        assert!(found.is_empty(), "the key lies open in {found:?}");
        let remote = holder
            .here
            .endpoint
            .import(&Descriptor::from_bytes(&descriptor).expect("unaltered"))
            .expect("the peer's");
        for _ in 0..3 {
            let put = holder.here.endpoint.put(vec![7; 4096], remote.clone());
            put.await.expect("put");
        }
        assert_eq!(content(&region), [7; 4096]);
        let found = segments_with_key(&descriptor, &other);
        assert_eq!(found.len(), 1, "the holder's, and no other");
        drop(stranger);
    });
}

scenarios! { between workers:
    /// What a peer has of the memory that messages come from and go to is what it was sent and what it wrote; not what comes from others, which it
    /// would read there.
    async fn message_memory_is_nobody_elses(way: Way) {
        let pair = way.pair().await;
        let worker = way.worker();
        let (other, _accepted) = connect(&worker, &pair.there.worker).await;
        let length = 1 << 20;
        let mut source = pair.here.context.allocate(length).await.expect("memory");
        source.copy_from_slice(pattern(length, 1));
        let source = source.freeze();
        let mut target: BufferMut = pair.there.context.allocate(length).await.expect("memory").into();
        let (reads, writes) = match way {
            Way::Shm | Way::ShmWithoutPidfd => (2, 2),
            // It could not write there without.
            Way::ShmWithoutCma => (2, 1),
            _ => (1, 1),
        };
        let mut rounds = 0;
        // A peer maps what it is given when it comes to it.
        while rounds < 4 || mappings_of(source.address()) < reads || mappings_of(target.address()) < writes {
            let receive = pair.there.worker.tag_recv(1, target);
            let (sent, received) = tokio::join!(pair.here.endpoint.tag_send(1, source.clone()), receive);
            sent.expect("sent");
            target = received.expect("received").buffer;
            same(target.as_slice().expect("host memory"), pattern(length, 1), "received");
            rounds += 1;
        }
        let (sent, written) = (given(source.address()), given(target.address()));
        assert_eq!(mappings_of(source.address()), reads, "the sender's buffer");
        assert_eq!(mappings_of(target.address()), writes, "the receiver's buffer");
        if reads == 2 {
            let error = sent.write_at(b"forged", 0).expect_err("what was sent is read only");
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
        }
        // Each from the one and from the other, so that the first may have had it again.
        for (seed, length) in [(2, 8), (3, 5000), (4, 64 << 10), (5, 300 << 10), (6, length)] {
            let receive = pair.there.worker.tag_recv(2, target);
            let (sent, received) = tokio::join!(other.tag_send(2, pattern(length, seed).to_vec()), receive);
            sent.expect("sent");
            target = received.expect("received").buffer;
            same(&target.as_slice().expect("host memory")[..length], pattern(length, seed), "the other's");
            if writes == 2 {
                let mut seen = vec![0; source.len()];
                written.read_exact_at(&mut seen, 0).expect("memory");
                same(&seen, pattern(source.len(), 1), "what the peer has");
            }
            let receive = pair.there.worker.tag_recv(1, target);
            let (sent, received) = tokio::join!(pair.here.endpoint.tag_send(1, source.clone()), receive);
            sent.expect("sent");
            target = received.expect("received").buffer;
            same(target.as_slice().expect("host memory"), pattern(source.len(), 1), "received again");
        }
    }

    /// Who had mapped exposed memory keeps its mapping, and not what the memory's owner does in it afterwards.
    async fn memory_given_back_is_nobody_elses(way: Way) {
        let pair = way.pair().await;
        for length in [4096, 5 << 20] {
            let memory = memory(&pair.there, true, length).await;
            let (region, remote) = exposed(&pair, memory, BOTH).await;
            for seed in 0..4 {
                pair.here.endpoint.put(pattern(length, seed), remote.clone()).await.expect("put");
            }
            let mut memory = region.unexpose().await;
            same(memory.as_slice().expect("host memory"), pattern(length, 3), "given back");
            assert_eq!(mappings_of(memory.address()), 1, "{length} bytes");
        }
    }
}

/// Writes into the segment of this inode that a worker of this process shares: what its peer may do at any time.
fn scribble(inode: &str, offset: u64, word: u32) {
    let maps = read_to_string("/proc/self/maps").expect("own mappings");
    let line = maps.lines().find(|line| {
        line.contains("memfd:wharf-pair") && line.split_whitespace().nth(4) == Some(inode)
    });
    let start = line
        .and_then(|line| line.split('-').next())
        .expect("a mapping");
    let start = u64::from_str_radix(start, 16).expect("hex");
    let memory = File::options()
        .write(true)
        .open("/proc/self/mem")
        .expect("own memory");
    memory
        .write_all_at(&word.to_le_bytes(), start + offset)
        .expect("written");
}

/// The segments that workers of this process share with their peers.
fn pairs() -> BTreeSet<String> {
    let maps = read_to_string("/proc/self/maps").expect("own mappings");
    let lines = maps
        .lines()
        .filter(|line| line.contains("memfd:wharf-pair"));
    lines
        .map(|line| line.split_whitespace().nth(4).expect("an inode").to_owned())
        .collect()
}

/// Where the end that dialled says that it is inside the other's memory.
const DIALLER_INSIDE: u64 = 0x21f00;

/// Threads of this process with such a name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task")
        .expect("own threads")
        .flatten();
    let names = tasks.filter_map(|task| read_to_string(task.path().join("comm")).ok());
    names.filter(|comm| comm.starts_with(name)).count()
}

/// A peer that says for ever that it is inside holds up memory that it was let at for a second, and is cut off; other memory not at all.
#[test]
fn a_liar_does_not_keep_memory() {
    // Alone in its process: it counts segments and threads.
    in_a_process(this_test!(), "a liar", || {
        run(async {
            let honest = Way::Shm.pair().await;
            let known = pairs();
            let liar = {
                let worker = Way::Shm.worker();
                let (endpoint, accepted) = connect(&worker, &honest.there.worker).await;
                let there = Side {
                    endpoint: accepted,
                    ..honest.there.clone()
                };
                let here = Side {
                    endpoint,
                    worker,
                    context: honest.here.context.clone(),
                };
                Pair { here, there }
            };
            let segment: Vec<_> = pairs().difference(&known).cloned().collect();
            let [segment] = segment.as_slice() else {
                panic!("{segment:?}");
            };
            let let_at = async |pair: &Pair, length| {
                let (region, remote) = exposed(pair, vec![1; length], BOTH).await;
                for _ in 0..3 {
                    pair.here
                        .endpoint
                        .put(vec![2; length], remote.clone())
                        .await
                        .expect("put");
                }
                region
            };
            let not_its = let_at(&honest, 64).await;
            let (first, second) = (let_at(&liar, 64).await, let_at(&liar, 64).await);
            let mut dropped = Vec::new();
            for _ in 0..20 {
                dropped.push(let_at(&liar, 64).await);
            }
            scribble(segment, DIALLER_INSIDE, 1);
            // It has not the key of this one.
            let start = std::time::Instant::now();
            let memory = not_its.unexpose().await;
            assert!(
                start.elapsed() < std::time::Duration::from_millis(500),
                "{:?}",
                start.elapsed()
            );
            assert_eq!(memory.as_slice(), Some(&[2; 64][..]));
            drop(dropped);
            let limit = std::time::Duration::from_secs(20);
            let memory = tokio::time::timeout(limit, first.unexpose())
                .await
                .expect("it ends");
            assert_eq!(memory.as_slice(), Some(&[2; 64][..]));
            assert!(threads("wharf-") <= 2, "{} threads", threads("wharf-"));
            let cut = tokio::time::timeout(limit, liar.there.endpoint.closed())
                .await
                .expect("cut off");
            assert_eq!(cut.kind(), ErrorKind::Protocol, "{cut}");
            let memory = tokio::time::timeout(limit, second.unexpose())
                .await
                .expect("it ends");
            assert_eq!(memory.as_slice(), Some(&[2; 64][..]));
            // Nobody else suffers.
            drop(let_at(&honest, 64).await);
            // At last it goes, and so do the memory and who waited for that.
            scribble(segment, DIALLER_INSIDE, 0);
            until("the keeper's end", || threads("wharf-keeper") == 0).await;
        });
    });
}

/// Peers that are in the middle of other memory, as long as anybody likes, do not hold up what was not theirs: it is there in the first look.
#[test]
fn busy_peers_do_not_keep_memory() {
    const PEERS: usize = 2;
    const TIMES: usize = 40;
    // Alone in its process: it counts segments.
    in_a_process(this_test!(), "busy peers", || {
        run(async {
            let owner = Way::Shm.pair().await;
            let known = pairs();
            let (mut busy, mut regions) = (Vec::new(), Vec::new());
            for _ in 0..PEERS {
                let worker = Way::Shm.worker();
                let (endpoint, accepted) = connect(&worker, &owner.there.worker).await;
                let memory = memory(&owner.there, true, 1 << 20).await;
                let region = owner.there.context.expose(memory, BOTH).await;
                let region = region.expect("exposed");
                let descriptor = region.descriptor().expect("a descriptor");
                let remote = endpoint.import(&descriptor).expect("the peer's");
                for _ in 0..3 {
                    let got = endpoint.get(remote.clone(), vec![0; 1 << 20]).await;
                    drop(got.expect("got"));
                }
                busy.push((worker, endpoint, accepted));
                regions.push(region);
            }
            let theirs: Vec<_> = pairs().difference(&known).cloned().collect();
            assert_eq!(theirs.len(), PEERS, "{theirs:?}");
            // What they say themselves from the beginning of a copy to its end.
            let say_inside = |word| {
                for segment in &theirs {
                    scribble(segment, DIALLER_INSIDE, word);
                }
            };
            say_inside(1);
            for time in 0..TIMES {
                let (region, remote) = exposed(&owner, vec![0; 64], BOTH).await;
                // Some of the memory that others are let at, some that nobody is.
                if time % 2 == 0 {
                    let put = owner.here.endpoint.put(vec![time as u8; 64], remote);
                    put.await.expect("put");
                }
                let mut unexpose = pin!(region.unexpose());
                let first = futures::poll!(&mut unexpose);
                assert!(first.is_ready(), "it waits for who has no key of it");
            }
            // Their own waits for them.
            for region in regions {
                let mut unexpose = pin!(region.unexpose());
                assert!(futures::poll!(&mut unexpose).is_pending());
                say_inside(0);
                drop(unexpose.await);
                say_inside(1);
            }
            say_inside(0);
            drop(busy);
        });
    });
}
