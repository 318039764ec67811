//! Atomic operations: by peers in all ways, by the owner, and by all of them on one word.

use std::time::Duration;

use wharf::{Access, BufferMut, Endpoint, ErrorKind, Operation, Region, RemoteRegion, Worker};

use crate::{
    fixture::{Pair, Side, Way, a_while, connect, run, run_on_threads},
    support::all_are,
};

const BOTH: Access = Access::READ.union(Access::WRITE);

/// Where exposed memory comes from.
const MEMORIES: [bool; 2] = [true, false];

async fn memory(side: &Side, own: bool, size: usize) -> BufferMut {
    if own {
        side.context.allocate(size).await.expect("memory").into()
    } else {
        // Words, so that it begins at one.
        words(size)
    }
}

fn words(size: usize) -> BufferMut {
    let mut memory = vec![0_u64; size.div_ceil(8)];
    let address = memory.as_mut_ptr().cast();
    #[allow(unsafe_code)]
    // SAFETY: the vector owns so many bytes, rides along, and is used by nobody else.
    unsafe {
        BufferMut::from_raw(address, size, memory)
    }
}

async fn exposed(
    pair: &Pair,
    buffer: impl Into<BufferMut>,
    access: Access,
) -> (Region, RemoteRegion) {
    let region = pair.there.context.expose(buffer, access).await;
    let region = region.expect("exposed");
    let descriptor = region.descriptor().expect("a descriptor");
    let remote = pair.here.endpoint.import(&descriptor).expect("the peer's");
    (region, remote)
}

/// All operations on a word at `offset`, with what they return and leave.
macro_rules! all_operations {
    ($word:ty, $remote:expr, $region:expr, $offset:expr) => {{
        let (remote, region, at) = (&$remote, &$region, $offset);
        let high: $word = 1 << (<$word>::BITS - 1);
        let now = || region.load::<$word>(at).expect("a word");
        region.store::<$word>(at, 5).expect("a word");
        assert_eq!(remote.fetch_add(at, 3 as $word).await.expect("added"), 5);
        assert_eq!(
            remote.fetch_add(at, <$word>::MAX).await.expect("wrapped"),
            8
        );
        assert_eq!(now(), 7);
        assert_eq!(
            remote.fetch_and(at, 0b101 as $word).await.expect("anded"),
            7
        );
        assert_eq!(remote.fetch_or(at, high | 2).await.expect("ored"), 5);
        assert_eq!(
            remote.fetch_xor(at, high | 1).await.expect("xored"),
            high | 7
        );
        assert_eq!(remote.swap(at, high | 9).await.expect("swapped"), 6);
        assert_eq!(
            remote
                .compare_swap(at, 9 as $word, 1)
                .await
                .expect("compared"),
            high | 9
        );
        assert_eq!(now(), high | 9, "not what was expected");
        assert_eq!(
            remote
                .compare_swap(at, high | 9, 1)
                .await
                .expect("compared"),
            high | 9
        );
        assert_eq!(now(), 1);
        remote.add(at, 14 as $word).await.expect("added");
        assert_eq!(now(), 15);
        remote.and(at, 6 as $word).await.expect("anded");
        assert_eq!(now(), 6);
        remote.or(at, 9 as $word).await.expect("ored");
        assert_eq!(now(), 15);
        remote.xor(at, 5 as $word).await.expect("xored");
        assert_eq!(now(), 10);
        // And the owner's.
        assert_eq!(region.fetch_add(at, <$word>::MAX).expect("a word"), 10);
        assert_eq!(region.fetch_and(at, 8 as $word).expect("a word"), 9);
        assert_eq!(region.fetch_or(at, 3 as $word).expect("a word"), 8);
        assert_eq!(region.fetch_xor(at, 1 as $word).expect("a word"), 11);
        assert_eq!(region.swap(at, 4 as $word).expect("a word"), 10);
        assert_eq!(region.compare_swap(at, 5 as $word, 6).expect("a word"), 4);
        assert_eq!(region.compare_swap(at, 4 as $word, 6).expect("a word"), 4);
        assert_eq!(remote.fetch_add(at, 0 as $word).await.expect("read"), 6);
        region.store::<$word>(at, 0).expect("a word");
    }};
}

scenarios! { everywhere:
    async fn every_operation(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 4096).await, BOTH).await;
            // More than once: the first that meets memory not mapped yet goes another way.
            for _ in 0..3 {
                for offset in [0, 8, 16, 4088] {
                    all_operations!(u64, remote, region, offset);
                    all_operations!(u32, remote, region, offset);
                    all_operations!(u32, remote, region, offset + 4);
                }
                a_while().await;
            }
            // Nothing beside the word is touched, also from a part of the region.
            region.write_at(0, &[0xee; 4096]).expect("within");
            let part = remote.slice(24..40);
            assert_eq!(part.swap(8, 0_u32).await.expect("swapped"), 0xeeee_eeee);
            assert_eq!(part.swap(0, 0_u64).await.expect("swapped"), 0xeeee_eeee_eeee_eeee);
            let mut bytes = [0; 4096];
            region.read_at(0, &mut bytes).expect("within");
            for (at, byte) in bytes.into_iter().enumerate() {
                assert_eq!(byte, if (24..36).contains(&at) { 0 } else { 0xee }, "byte {at}");
            }
        }
    }

    /// Posted operations, some of them never awaited, and a flush behind them.
    async fn posted(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 16).await, BOTH).await;
            let mut fetches = Vec::new();
            for index in 0..200 {
                let fetch = remote.fetch_add(0, 1_u64).post().expect("room");
                let add = remote.add(8, 2_u32).post().expect("room");
                match index % 3 {
                    0 => fetches.push(fetch),
                    1 => drop((fetch, add)),
                    _ => add.await.expect("added"),
                }
            }
            pair.here.endpoint.flush().await.expect("flushed");
            assert_eq!(region.load::<u64>(0).expect("a word"), 200);
            assert_eq!(region.load::<u32>(8).expect("a word"), 400);
            let mut last = None;
            for fetch in fetches {
                let old = fetch.await.expect("fetched");
                assert!(last < Some(old) && old < 200, "{old} after {last:?}");
                last = Some(old);
            }
        }
    }

    /// Past the window of posted operations there is no room, and later there is again.
    async fn window(way: Way) {
        let pair = way.pair().await;
        let (region, remote) = exposed(&pair, memory(&pair.there, false, 8).await, BOTH).await;
        let mut posted = Vec::new();
        let error = loop {
            match pair.here.endpoint.tag_send(1, vec![1; 8]).sync().post() {
                Ok(send) => posted.push(send),
                Err(error) => break error,
            }
            assert!(posted.len() <= 100_000, "no bound");
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let error = remote.fetch_add(0, 1_u64).post().expect_err("full");
        assert_eq!((error.kind(), error.operation()), (ErrorKind::WouldBlock, Some(Operation::Atomic)));
        // Awaited it has its place.
        assert_eq!(remote.fetch_add(0, 1_u64).await.expect("added"), 0);
        for send in posted {
            let (received, sent) = tokio::join!(pair.there.receive(1, 8), send);
            assert_eq!(received, [1; 8]);
            sent.expect("sent");
        }
        remote.fetch_add(0, 1_u64).post().expect("room again").await.expect("added");
        assert_eq!(region.load::<u64>(0).expect("a word"), 2);
    }

    async fn misaligned(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 64).await, BOTH).await;
            let expect = |error: wharf::Error| {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
                assert_eq!(error.operation(), Some(Operation::Atomic));
            };
            for offset in 1..8 {
                expect(remote.fetch_add(offset, 1_u64).await.expect_err("misaligned"));
                expect(remote.add(offset, 1_u64).post().expect_err("misaligned"));
                expect(region.fetch_add(offset, 1_u64).expect_err("misaligned"));
                expect(region.load::<u64>(offset).expect_err("misaligned"));
                // It is the address that counts.
                expect(remote.slice(offset..).swap(0, 1_u64).await.expect_err("misaligned"));
                assert_eq!(remote.slice(offset..).swap(8 - offset, 0_u64).await.expect("aligned"), 0);
                if offset != 4 {
                    expect(remote.compare_swap(offset, 0, 1_u32).await.expect_err("misaligned"));
                    expect(region.store(offset, 1_u32).expect_err("misaligned"));
                }
            }
            let mut bytes = [0; 64];
            region.read_at(0, &mut bytes).expect("within");
            assert_eq!(bytes, [0; 64], "touched");
        }
        // Memory that begins in the middle of a word.
        let mut memory = vec![0_u64; 2];
        let address = memory.as_mut_ptr().cast::<u8>().wrapping_add(4);
        #[allow(unsafe_code)]
        // SAFETY: the vector owns the bytes, rides along, and is used by nobody else.
        let memory = unsafe { BufferMut::from_raw(address, 12, memory) };
        let (_region, remote) = exposed(&pair, memory, BOTH).await;
        remote.fetch_add(0, 1_u64).await.expect_err("misaligned");
        assert_eq!(remote.fetch_add(4, 1_u64).await.expect("aligned"), 0);
        assert_eq!(remote.fetch_add(0, 1_u32).await.expect("aligned"), 0);
    }

    async fn out_of_bounds(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 44).await, BOTH).await;
            for offset in [40, 48, 1 << 20, usize::MAX - 7] {
                let error = remote.fetch_add(offset, 1_u64).await.expect_err("outside");
                assert_eq!(error.kind(), ErrorKind::OutOfBounds);
                let error = remote.xor(offset, 1_u64).post().expect_err("outside");
                assert_eq!(error.kind(), ErrorKind::OutOfBounds);
                let error = region.swap(offset, 1_u64).expect_err("outside");
                assert_eq!(error.kind(), ErrorKind::OutOfBounds);
            }
            assert_eq!(remote.swap(40, 1_u32).await.expect("within"), 0);
            let error = remote.slice(..4).swap(0, 1_u64).await.expect_err("outside");
            assert_eq!(error.kind(), ErrorKind::OutOfBounds);
        }
    }

    async fn without_the_right(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 8).await, Access::READ).await;
            for error in [remote.fetch_add(0, 1_u64).await.expect_err("read only"), remote.add(0, 1_u64).await.expect_err("read only")] {
                assert_eq!(error.kind(), ErrorKind::AccessDenied);
            }
            assert_eq!(region.load::<u64>(0).expect("a word"), 0);
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 8).await, Access::WRITE).await;
            let error = remote.fetch_add(0, 1_u64).await.expect_err("write only");
            assert_eq!(error.kind(), ErrorKind::AccessDenied);
            remote.add(0, 1_u64).await.expect("added");
            assert_eq!(region.load::<u64>(0).expect("a word"), 1);
        }
    }

    /// Memory that is exposed no longer; one that nobody awaited is told by the next flush, once.
    async fn stale(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 8).await, BOTH).await;
            for _ in 0..3 {
                remote.fetch_add(0, 1_u64).await.expect("added");
                a_while().await;
            }
            let buffer = region.unexpose().await;
            assert_eq!(buffer.as_slice(), Some(&3_u64.to_le_bytes()[..]));
            let (other, _) = exposed(&pair, memory(&pair.there, own, 8).await, BOTH).await;
            let error = remote.fetch_add(0, 1_u64).await.expect_err("stale");
            assert_eq!(error.kind(), ErrorKind::StaleKey);
            let error = remote.add(0, 1_u64).post().expect("room").await.expect_err("stale");
            assert_eq!(error.kind(), ErrorKind::StaleKey);
            drop(remote.add(0, 1_u64).post().expect("room"));
            pair.here.endpoint.fence().await.expect("not a fence's matter");
            let error = pair.here.endpoint.flush().await.expect_err("lost");
            assert_eq!(error.kind(), ErrorKind::StaleKey);
            pair.here.endpoint.flush().await.expect("said already");
            assert_eq!(other.load::<u64>(0).expect("a word"), 0, "the new owner's memory was touched");
        }
    }

    /// A future that was polled once and dropped has done its work once.
    async fn dropped(way: Way) {
        let pair = way.pair().await;
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 8).await, BOTH).await;
            for round in 1..=20 {
                drop(remote.fetch_add(0, 1_u64));
                let mut future = Box::pin(remote.fetch_add(0, 1_u64));
                let _ = futures::poll!(future.as_mut());
                drop(future);
                pair.here.endpoint.flush().await.expect("flushed");
                assert_eq!(region.load::<u64>(0).expect("a word"), round);
            }
        }
    }

    async fn deadline_and_cancel(way: Way) {
        let pair = way.pair().await;
        let (region, remote) = exposed(&pair, memory(&pair.there, false, 8).await, BOTH).await;
        let day = Duration::from_secs(86_400);
        assert_eq!(remote.fetch_add(0, 1_u64).deadline(day).await.expect("in time"), 0);
        let mut done = 1;
        for _ in 0..50 {
            // It either happened or it did not, and says which.
            match remote.fetch_add(0, 1_u64).post().expect("room").cancel().await {
                Ok(old) => {
                    assert_eq!(old, done);
                    done += 1;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Canceled),
            }
        }
        assert_eq!(region.load::<u64>(0).expect("a word"), done);
        // With no time at all it may happen, and the connection is as good as before.
        for _ in 0..20 {
            let early = remote.add(0, 0_u64).deadline(Duration::ZERO).await;
            assert!(early.is_ok() || early.is_err_and(|error| error.kind() == ErrorKind::DeadlineExceeded));
        }
        assert_eq!(remote.fetch_add(0, 1_u64).await.expect("added"), done);
    }

    /// Fences and flushes of an endpoint and of a worker: what was begun before is visible.
    async fn fences(way: Way) {
        let pair = way.pair().await;
        let endpoint = &pair.here.endpoint;
        endpoint.fence().await.expect("nothing under way");
        pair.here.worker.fence().await.expect("nothing under way");
        pair.here.worker.flush().await.expect("nothing under way");
        for own in MEMORIES {
            let (region, remote) = exposed(&pair, memory(&pair.there, own, 1 << 20).await, BOTH).await;
            for round in 1..=8_u64 {
                // Nobody receives it: a fence does not wait for messages.
                let message = endpoint.tag_send(1, vec![1; 1 << 20]).post().expect("room");
                let put = endpoint.put(vec![round as u8; 500_000], remote.slice(8..)).post().expect("room");
                drop(remote.add(0, 1_u64).post().expect("room"));
                let get = endpoint.get(remote.slice(600_000..), vec![9; 8]).post().expect("room");
                if round % 2 == 0 {
                    endpoint.fence().await.expect("fenced");
                } else {
                    pair.here.worker.fence().await.expect("fenced");
                }
                assert_eq!(region.load::<u64>(0).expect("a word"), round);
                let mut bytes = vec![0; 500_000];
                region.read_at(8, &mut bytes).expect("within");
                assert!(all_are(&bytes, round as u8), "put before the fence");
                put.await.expect("put");
                assert_eq!(get.await.expect("got"), [0; 8]);
                let received = pair.there.receive(1, 1 << 20).await;
                assert_eq!(received.len(), 1 << 20);
                message.await.expect("sent");
            }
            for round in 9..=12_u64 {
                drop(endpoint.put(vec![round as u8; 500_000], remote.slice(8..)).post().expect("room"));
                drop(remote.add(0, 1_u64).post().expect("room"));
                pair.here.worker.flush().await.expect("flushed");
                assert_eq!(region.load::<u64>(0).expect("a word"), round);
                assert_eq!(region.load::<u32>(400_000).expect("a word"), 0x0101_0101 * round as u32);
            }
        }
    }

    /// Fences and flushes that are dropped change nothing.
    async fn dropped_fences(way: Way) {
        let pair = way.pair().await;
        let (region, remote) = exposed(&pair, memory(&pair.there, false, 8).await, BOTH).await;
        for _ in 0..50 {
            drop(remote.add(0, 1_u64).post().expect("room"));
            let mut fence = Box::pin(pair.here.endpoint.fence());
            let mut all = Box::pin(pair.here.worker.flush());
            let _ = (futures::poll!(fence.as_mut()), futures::poll!(all.as_mut()));
        }
        pair.here.endpoint.fence().await.expect("fenced");
        assert_eq!(region.load::<u64>(0).expect("a word"), 50);
    }
}

scenarios! { between workers:
    /// A remote region belongs to the endpoint it was imported on, and ends with it.
    async fn closed(way: Way) {
        let pair = way.pair().await;
        let (_region, remote) = exposed(&pair, memory(&pair.there, true, 8).await, BOTH).await;
        assert_eq!(remote.fetch_add(0, 1_u64).await.expect("added"), 0);
        pair.here.endpoint.close().await.expect("closed");
        for error in [
            remote.fetch_add(0, 1_u64).await.expect_err("closed"),
            remote.add(0, 1_u64).post().expect_err("closed"),
            pair.here.endpoint.fence().await.expect_err("closed"),
        ] {
            assert!(matches!(error.kind(), ErrorKind::Closed | ErrorKind::ConnectionReset), "{error:?}");
        }
        // Endpoints that have ended are no matter of the worker's.
        pair.here.worker.flush().await.expect("nothing is left");
    }

    /// Operations that wait for their owner end with the connection.
    async fn the_peer_goes(way: Way) {
        for _ in 0..10 {
            let pair = way.pair().await;
            let (_region, remote) = exposed(&pair, memory(&pair.there, false, 8).await, BOTH).await;
            let posted: Vec<_> = (0..50).map(|_| remote.fetch_add(0, 1_u64).post().expect("room")).collect();
            pair.there.endpoint.abort();
            for op in posted {
                if let Err(error) = op.await {
                    assert!(error.is_peer_failure(), "{error:?}");
                }
            }
        }
    }
}

/// Where the memory is mapped, this side's processor does it: at the first poll, in which nothing of the peer's runs.
#[test]
fn at_once_where_it_is_mapped() {
    for way in [Way::Shm, Way::ShmWithoutCma, Way::ShmWithoutPidfd] {
        run(async move {
            let context = way.builder().progress(wharf::Progress::EventDriven);
            let pair = Pair::of(&context.build().expect("a context"), way).await;
            let memory = memory(&pair.there, true, 8).await;
            let (region, remote) = exposed(&pair, memory, BOTH).await;
            // The mapping is on its way.
            let mut done = 1;
            while futures::poll!(std::pin::pin!(remote.fetch_add(0, 1_u64))).is_pending() {
                a_while().await;
                done += 1;
            }
            for old in done..done + 10 {
                let fetched = futures::poll!(std::pin::pin!(remote.fetch_add(0, 1_u64)));
                let std::task::Poll::Ready(fetched) = fetched else {
                    panic!("by a message")
                };
                assert_eq!(fetched.expect("added"), old);
                // Polled once more it is an error, not another addition.
                let mut over = std::pin::pin!(remote.fetch_add(0, 0_u64));
                assert!(futures::poll!(over.as_mut()).is_ready());
                assert!(over.await.is_err());
            }
            assert_eq!(region.load::<u64>(0).expect("a word"), done + 10);
        });
    }
}

const EACH: u64 = 3_000;

/// Adds and counts by compare-swap, each `EACH` times, in every way an operation can be begun.
async fn contend(remote: RemoteRegion) {
    let mut olds = Vec::new();
    for round in 0..EACH {
        match round % 3 {
            0 => olds.push(remote.fetch_add(0, 1_u64).await.expect("added")),
            1 => remote.add(0, 1_u64).await.expect("added"),
            _ => drop(remote.add(0, 1_u64).post().expect("room")),
        }
        remote.add(16, 1_u32).await.expect("added");
        remote.xor(20, 1_u32 << (round % 32)).await.expect("xored");
        let mut seen = 0_u64;
        loop {
            match remote
                .compare_swap(8, seen, seen + 1)
                .await
                .expect("compared")
            {
                old if old == seen => break,
                old => seen = old,
            }
        }
    }
    assert!(olds.is_sorted_by(|a, b| a < b), "time ran backwards");
}

/// Peers over mapped memory and over sockets, an endpoint to oneself, and the owner, all at the same words.
#[test]
fn exact_under_contention() {
    run_on_threads(async {
        let owner = wharf::Context::builder().transports("self,shm,tcp");
        let owner = owner.expect("transports").build().expect("a context");
        let memory = owner.allocate(24).await.expect("memory");
        let region = owner.expose(memory, BOTH).await.expect("exposed");
        let descriptor = region.descriptor().expect("a descriptor");
        let there = Worker::new(&owner).expect("a worker");
        let mut endpoints: Vec<(Worker, Endpoint, Option<Endpoint>)> = Vec::new();
        for way in [Way::Shm, Way::ShmWithoutCma, Way::Tcp, Way::Tcp, Way::Shm] {
            let here = way.worker();
            let (dialled, accepted) = connect(&here, &there).await;
            assert_eq!(dialled.transports(), way.transports());
            endpoints.push((here, dialled, Some(accepted)));
        }
        let own = there.connect(&there.address().expect("an address")).await;
        endpoints.push((there.clone(), own.expect("oneself"), None));
        let tasks: Vec<_> = endpoints
            .iter()
            .map(|(_, endpoint, _)| {
                let remote = endpoint.import(&descriptor).expect("the peer's");
                tokio::spawn(contend(remote))
            })
            .collect();
        // The owner, beside them.
        for round in 0..EACH {
            region.fetch_add(0, 1_u64).expect("a word");
            region.fetch_add(16, 1_u32).expect("a word");
            region.fetch_xor(20, 1_u32 << (round % 32)).expect("a word");
            let mut seen = 0_u64;
            loop {
                match region.compare_swap(8, seen, seen + 1).expect("a word") {
                    old if old == seen => break,
                    old => seen = old,
                }
            }
            if round % 64 == 0 {
                tokio::task::yield_now().await;
            }
        }
        let all = tasks.len() as u64 + 1;
        for task in tasks {
            task.await.expect("to its end");
        }
        for (worker, ..) in &endpoints {
            worker.flush().await.expect("flushed");
        }
        assert_eq!(region.load::<u64>(0).expect("a word"), all * EACH);
        assert_eq!(region.load::<u64>(8).expect("a word"), all * EACH);
        assert_eq!(region.load::<u32>(16).expect("a word"), (all * EACH) as u32);
        // An odd number of them xored the same bits.
        assert_eq!(all % 2, 1);
        let bits = (0..EACH).fold(0, |bits, round| bits ^ 1_u32 << (round % 32));
        assert_eq!(region.load::<u32>(20).expect("a word"), bits);
    });
}
