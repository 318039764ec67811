//! Memory channels: put, get, signals and packets, between every kind of memory.

use std::time::Duration;

use wharf::{
    Access, ErrorKind,
    channel::{MemoryChannel, PacketWidth},
};

use crate::{
    group::{Carrier, Place, channels, content, group, pattern, run},
    support::until,
};

const LENGTH: usize = 300_000;

#[test]
fn put_signal_wait_and_get() {
    for carrier in Carrier::ALL {
        for place in Place::ALL {
            eprintln!("{carrier:?} {place:?}");
            run(async move {
                let ranks = carrier.ranks_of(place.context(carrier)).await;
                let one = place.memory(&ranks[0], pattern(LENGTH, 1)).await;
                let two = match carrier {
                    Carrier::Own => one.clone(),
                    _ => place.memory(&ranks[1], pattern(LENGTH, 2)).await,
                };
                let [here, there] = channels(&ranks, carrier.peers(), [&one, &two]).await;
                let mut expected = content(&ranks[1], &two).await;
                let source = content(&ranks[0], &one).await;
                // Of every size and alignment, in the first half from the second.
                for (round, length) in [1, 7, 64, 4096, 70_001, 149_000].into_iter().enumerate() {
                    let (to, from) = (round * 3 + 1, 150_000 + round);
                    if round % 2 == 0 {
                        here.put_with_signal(to, from, length).await.expect("put");
                    } else {
                        here.put(to, from, length).await.expect("put");
                        here.signal().await.expect("signalled");
                    }
                    there.wait().await.expect("signalled");
                    expected[to..to + length].copy_from_slice(&source[from..from + length]);
                    assert!(content(&ranks[1], &two).await == expected, "{length} bytes");
                }
                // And back: what the peer has now.
                here.get(3, 150_003, 100_000).await.expect("got");
                let got = content(&ranks[0], &one).await;
                assert!(got[150_003..250_003] == expected[3..100_003]);
                let posted = here.post_put(0, 200_000, 10_000, true).expect("room");
                there.wait().await.expect("signalled");
                posted.await.expect("put");
                here.flush().await.expect("flushed");
                let now = content(&ranks[1], &two).await;
                assert!(now[..10_000] == got[200_000..210_000]);
            });
        }
    }
}

/// Every length around a packet's, at every alignment of source and target, in both widths; then long ones.
#[test]
fn packets_of_every_length_and_alignment() {
    for carrier in Carrier::ALL {
        eprintln!("{carrier:?}");
        run(async move {
            let ranks = carrier.ranks().await;
            let one = Place::Own.memory(&ranks[0], pattern(40_000, 1)).await;
            let two = match carrier {
                Carrier::Own => one.clone(),
                _ => Place::Own.memory(&ranks[1], pattern(40_000, 2)).await,
            };
            let [here, there] = channels(&ranks, carrier.peers(), [&one, &two]).await;
            let [here, there] = with_packets(&ranks, carrier, [here, there], 70_000).await;
            let mut flag = 0;
            for width in [PacketWidth::Eight, PacketWidth::Sixteen] {
                for length in (0..40).chain([1000, 16_383, 16_384, 16_400]) {
                    for align in 0..if length < 40 { 9 } else { 2 } {
                        flag += 1;
                        let (from, to) = (align, 20_000 + align * 2 + 1);
                        let at = width.bytes() * (length % 3);
                        let (put, got) = tokio::join!(
                            here.put_packets(at, from, length, width, flag),
                            there.unpack_packets(at, to, length, width, flag),
                        );
                        put.expect("put");
                        got.expect("unpacked");
                        let source = content(&ranks[0], &one).await;
                        let target = content(&ranks[1], &two).await;
                        let what = format!("{width:?}, {length} bytes from {from} to {to}");
                        assert!(
                            target[to..to + length] == source[from..from + length],
                            "{what}"
                        );
                    }
                }
            }
        });
    }
}

async fn with_packets(
    ranks: &[wharf::channel::Communicator; 2],
    carrier: Carrier,
    [here, there]: [MemoryChannel; 2],
    bytes: usize,
) -> [MemoryChannel; 2] {
    if carrier == Carrier::Own {
        let channel = here.with_packets(&ranks[0], 4, bytes).await;
        let channel = channel.expect("an area");
        return [channel.clone(), channel];
    }
    let (here, there) = tokio::join!(
        here.with_packets(&ranks[0], 4, bytes),
        there.with_packets(&ranks[1], 4, bytes),
    );
    [here.expect("an area"), there.expect("an area")]
}

/// Two ranks, with 1000 bytes each and room for 4096 as packets: they, the memory of the second, and the ends of the channel.
async fn two_with_packets(
    carrier: Carrier,
) -> (
    [wharf::channel::Communicator; 2],
    wharf::channel::RegisteredMemory,
    [MemoryChannel; 2],
) {
    let ranks = carrier.ranks().await;
    let one = Place::Own.memory(&ranks[0], pattern(1000, 1)).await;
    let two = Place::Own.memory(&ranks[1], pattern(1000, 2)).await;
    let ends = channels(&ranks, carrier.peers(), [&one, &two]).await;
    let ends = with_packets(&ranks, carrier, ends, 4096).await;
    (ranks, two, ends)
}

#[test]
fn packets_of_device_memory_and_to_who_sleeps() {
    for carrier in [Carrier::Own, Carrier::Shm, Carrier::Tcp, Carrier::RcVerbs] {
        for place in Place::ALL {
            eprintln!("{carrier:?} {place:?}");
            run(async move {
                let ranks = carrier.ranks_of(place.context(carrier)).await;
                let one = place.memory(&ranks[0], pattern(10_000, 1)).await;
                let two = match carrier {
                    Carrier::Own => one.clone(),
                    _ => place.memory(&ranks[1], pattern(10_000, 2)).await,
                };
                let [here, there] = channels(&ranks, carrier.peers(), [&one, &two]).await;
                let [here, there] = with_packets(&ranks, carrier, [here, there], 1 << 16).await;
                let width = PacketWidth::Sixteen;
                for flag in 1..20 {
                    let parked = || ranks[1].worker().metrics().parked;
                    let before = parked();
                    let sleeper = tokio::spawn({
                        let there = there.clone();
                        async move { there.unpack_packets(0, 5000, 3001, width, flag).await }
                    });
                    if flag % 4 == 0 {
                        until("sleep", || parked() > before).await;
                    }
                    let from = flag as usize;
                    here.put_packets(0, from, 3001, width, flag)
                        .await
                        .expect("put");
                    sleeper.await.expect("woken").expect("unpacked");
                    let source = content(&ranks[0], &one).await;
                    let target = content(&ranks[1], &two).await;
                    assert!(
                        target[5000..8001] == source[from..from + 3001],
                        "flag {flag}"
                    );
                }
            });
        }
    }
}

/// A wait for packets that is dropped loses none.
#[test]
fn a_dropped_unpack_loses_nothing() {
    run(async {
        for carrier in [Carrier::Shm, Carrier::Tcp, Carrier::RcVerbs] {
            let (ranks, two, [here, there]) = two_with_packets(carrier).await;
            for flag in 1..500 {
                let width = PacketWidth::Eight;
                let unpack = there.unpack_packets(0, 1, 900, width, flag);
                let gone = futures::FutureExt::now_or_never(unpack);
                assert!(gone.is_none());
                here.put_packets(0, 2, 900, width, flag).await.expect("put");
                let unpack = there.unpack_packets(0, 1, 900, width, flag);
                unpack.await.expect("unpacked");
                let target = content(&ranks[1], &two).await;
                assert!(target[1..901] == pattern(1000, 1)[2..902]);
            }
        }
    });
}

/// Packets of several puts are waited for in another order than they came in, some waits are given up meanwhile, and none waits for ever.
#[test]
fn unpacked_in_another_order() {
    run(async {
        for carrier in [Carrier::Shm, Carrier::Tcp, Carrier::RcVerbs] {
            let (ranks, two, [here, there]) = two_with_packets(carrier).await;
            let width = PacketWidth::Eight;
            for flag in 1..50 {
                let put = here.put_packets(0, 2, 300, width, flag);
                put.await.expect("put");
                // The other has not come: what is there is taken for it, and is not it.
                let early = there.unpack_packets(1024, 500, 300, width, flag);
                let early = tokio::time::timeout(Duration::from_millis(3), early);
                early.await.expect_err("not there");
                let put = here.put_packets(1024, 400, 300, width, flag);
                put.await.expect("put");
                let second = there.unpack_packets(1024, 500, 300, width, flag);
                second.await.expect("unpacked");
                let first = there.unpack_packets(0, 1, 300, width, flag);
                first.await.expect("unpacked");
                let target = content(&ranks[1], &two).await;
                assert!(target[1..301] == pattern(1000, 1)[2..302]);
                assert!(target[500..800] == pattern(1000, 1)[400..700]);
            }
        }
    });
}

#[test]
fn bad_input() {
    run(async {
        let carrier = Carrier::Shm;
        let ranks = carrier.ranks().await;
        let one = Place::Own.memory(&ranks[0], pattern(1000, 1)).await;
        let two = ranks[1].register(vec![0; 500], Access::READ).await;
        let two = two.expect("registered");
        let [here, there] = channels(&ranks, carrier.peers(), [&one, &two]).await;
        let kind = |error: wharf::Error| error.kind();
        let outside = Some(ErrorKind::OutOfBounds);
        assert_eq!(here.get(0, 0, 501).await.map_err(kind).err(), outside);
        assert_eq!(here.get(501, 0, 0).await.map_err(kind).err(), outside);
        assert_eq!(here.get(0, 999, 2).await.map_err(kind).err(), outside);
        let far = here.get(usize::MAX, 0, 2).await;
        assert_eq!(far.map_err(kind).err(), outside);
        let far = here.get(0, usize::MAX, 2).await;
        assert_eq!(far.map_err(kind).err(), outside);
        let denied = here.put_with_signal(0, 0, 1).await;
        assert_eq!(denied.map_err(kind).err(), Some(ErrorKind::AccessDenied));
        assert_eq!(
            there.semaphore().pending(),
            0,
            "a put that failed does not signal"
        );
        let invalid = Some(ErrorKind::InvalidArgument);
        let width = PacketWidth::Sixteen;
        let none = here.put_packets(0, 0, 1, width, 1).await;
        assert_eq!(none.map_err(kind).err(), invalid);

        let [here, _there] = with_packets(&ranks, carrier, [here, there], 64).await;
        for unpack in [false, true] {
            let ask = async |at, local, length, flag| {
                let asked = match unpack {
                    true => here.unpack_packets(at, local, length, width, flag).await,
                    false => here.put_packets(at, local, length, width, flag).await,
                };
                asked.map_err(kind).err()
            };
            assert_eq!(ask(0, 0, 1, 0).await, invalid, "a flag of 0");
            assert_eq!(ask(8, 0, 1, 1).await, invalid, "not aligned");
            assert_eq!(ask(0, 0, 33, 1).await, outside);
            assert_eq!(ask(0, 0, usize::MAX, 1).await, invalid);
            assert_eq!(ask(64, 0, 1, 1).await, outside);
            assert_eq!(ask(0, 1000, 1, 1).await, outside);
        }

        // Of other connections.
        let context = carrier.builder().build().expect("a context");
        let others = group::<2>(&context).await;
        let memories = [
            Place::Vec.memory(&others[0], vec![0; 10]).await,
            Place::Vec.memory(&others[1], vec![0; 10]).await,
        ];
        let [other, _] = channels(&others, carrier.peers(), memories.each_ref()).await;
        let (semaphore, remote) = (other.semaphore().clone(), here.remote().clone());
        let error = MemoryChannel::new(semaphore, one, remote).expect_err("mixed");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    });
}

/// Copies do not go between ranges of one memory that overlap.
#[test]
fn overlap_is_refused() {
    run(async {
        let ranks = Carrier::Own.ranks().await;
        let memory = Place::Own.memory(&ranks[0], pattern(1000, 1)).await;
        let [channel, _] = channels(&ranks, [0, 0], [&memory, &memory]).await;
        for (to, from, length) in [(0, 0, 1), (10, 15, 6), (15, 10, 6)] {
            let error = channel.put(to, from, length).await.expect_err("overlap");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            let error = channel.get(to, from, length).await.expect_err("overlap");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        channel.put(10, 15, 5).await.expect("beside each other");
        channel.get(15, 10, 5).await.expect("beside each other");
        channel.put(10, 10, 0).await.expect("no bytes");
    });
}

/// The peer takes its memory back while the channel stands.
#[test]
fn revoked_under_the_channel() {
    for carrier in [Carrier::Shm, Carrier::ShmWithoutCma, Carrier::Tcp] {
        run(async move {
            let ranks = carrier.ranks().await;
            let one = Place::Own.memory(&ranks[0], pattern(1000, 1)).await;
            let two = Place::Own.memory(&ranks[1], pattern(1000, 2)).await;
            let [here, there] = channels(&ranks, carrier.peers(), [&one, &two]).await;
            here.put(0, 0, 1000).await.expect("put");
            two.revoke().await;
            let error = here.put_with_signal(0, 0, 1000).await.expect_err("revoked");
            assert_eq!(error.kind(), ErrorKind::StaleKey);
            let error = here.get(0, 0, 1000).await.expect_err("revoked");
            assert_eq!(error.kind(), ErrorKind::StaleKey);
            assert_eq!(there.semaphore().pending(), 0);
            there
                .put_with_signal(0, 0, 1000)
                .await
                .expect("the other way stands");
            here.wait().await.expect("signalled");
        });
    }
}
