//! Registered memory: passed on, leased, revoked, and refused.

use std::time::{Duration, Instant};

use wharf::{
    Access, Error, ErrorKind, RemoteRegion,
    channel::{Communicator, Lease, RegisteredMemory, RemoteMemory},
};

use crate::{
    group::{BOTH, Carrier, Place, group, pattern, run},
    support::{Looks, side_by_side},
};

async fn get(memory: &RemoteMemory, length: usize) -> wharf::Result<Vec<u8>> {
    let part = memory.part(0, length)?;
    let got = memory.endpoint().get(part, vec![0; length]).await;
    got.map_err(|error| error.into_parts().0)
}

#[test]
fn sent_and_reached() {
    for carrier in Carrier::ALL {
        for place in Place::ALL {
            eprintln!("{carrier:?} {place:?}");
            run(async move {
                let ranks = carrier.ranks_of(place.context(carrier)).await;
                let [_, to] = carrier.peers();
                let memory = place.memory(&ranks[1], pattern(5000, 1)).await;
                let (sent, got) = tokio::join!(
                    memory.send(&ranks[1], to, 5),
                    ranks[0].receive_memory(ranks[1].rank(), 5),
                );
                sent.expect("sent");
                let remote = got.expect("received");
                assert_eq!(remote.owner(), ranks[1].rank());
                assert_eq!(remote.memory_type(), memory.memory_type());
                assert_eq!((remote.len(), remote.access()), (5000, BOTH));
                assert_eq!(get(&remote, 5000).await.expect("got"), pattern(5000, 1));
                let error = remote.part(4999, 2).expect_err("outside");
                assert_eq!(error.kind(), ErrorKind::OutOfBounds);
                let error = remote.part(usize::MAX, 2).expect_err("outside");
                assert_eq!(error.kind(), ErrorKind::OutOfBounds);
            });
        }
    }
}

#[test]
fn revoked_memory_is_reached_no_more() {
    for carrier in Carrier::ALL {
        for place in Place::ALL {
            eprintln!("{carrier:?} {place:?}");
            run(async move {
                let ranks = carrier.ranks_of(place.context(carrier)).await;
                let memory = place.memory(&ranks[1], pattern(9000, 2)).await;
                let bytes = memory.serialize().expect("bytes");
                let remote = ranks[0].deserialize(&bytes).await.expect("whole");
                assert_eq!(get(&remote, 9000).await.expect("got"), pattern(9000, 2));
                let kept = memory.clone();
                let memory = memory.unregister().await.expect_err("it has a clone");
                assert_eq!(get(&remote, 10).await.expect("got"), pattern(10, 2));
                memory.revoke().await;
                // Again, and what comes into its place, make no difference.
                let other = place.memory(&ranks[1], pattern(100, 3)).await;
                memory.revoke().await;
                let error = get(&remote, 9000).await.expect_err("revoked");
                assert_eq!(error.kind(), ErrorKind::StaleKey, "{error}");
                let late = ranks[0].deserialize(&bytes).await.expect("whole");
                let error = get(&late, 1).await.expect_err("revoked");
                assert_eq!(error.kind(), ErrorKind::StaleKey, "{error}");
                let other = other.serialize().expect("bytes");
                let other = ranks[0].deserialize(&other).await.expect("whole");
                assert_eq!(get(&other, 100).await.expect("got"), pattern(100, 3));
                let lease = memory.lease(Duration::from_secs(9), Access::READ);
                let error = lease.expect_err("for good");
                assert_eq!(error.kind(), ErrorKind::StaleKey, "{error}");
                drop(memory);
                let buffer = kept.unregister().await.expect("the last");
                assert_eq!(buffer.len(), 9000);
            });
        }
    }
}

/// What a get is told when the owner's timer has taken the lease back.
async fn taken_back(remote: &RemoteMemory, part: RemoteRegion) -> Error {
    let mut looks = Looks::new("the lease's end");
    loop {
        let got = remote.endpoint().get(part.clone(), vec![0; 3000]).await;
        match got {
            Ok(_) => looks.again().await,
            Err(error) => return error.into_parts().0,
        }
    }
}

/// A lease that was good until its end and is over now, what came of it, and a part that was taken in time. Where its use took longer than it lasts,
/// it is tried with one that lasts twice as long.
async fn used_in_time(
    memory: &RegisteredMemory,
    user: &Communicator,
) -> (Lease, RemoteMemory, RemoteRegion) {
    let mut lasts = Duration::from_millis(300);
    loop {
        let start = Instant::now();
        let lease = memory.lease(lasts, BOTH).expect("lent");
        let used = async {
            let remote = user.deserialize(lease.serialize()).await?;
            let part = remote.part(0, 3000)?;
            let got = get(&remote, 3000).await?;
            Ok::<_, Error>((remote, part, got))
        };
        let used = used.await;
        let left = lasts.saturating_sub(start.elapsed());
        match used {
            Ok((remote, part, got)) => {
                assert_eq!(got, pattern(3000, 4));
                // To its end by this side's clock.
                tokio::time::sleep(left + Duration::from_millis(2)).await;
                return (lease, remote, part);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::StaleKey, "{error}");
                // Its end is counted in whole milliseconds.
                let early = left > Duration::from_millis(1);
                assert!(!early, "over {left:?} before its time: {error}");
                lasts *= 2;
            }
        }
    }
}

#[test]
fn leases_end_by_themselves_and_by_hand() {
    side_by_side(Carrier::ALL, |carrier| {
        for place in Place::ALL {
            eprintln!("{carrier:?} {place:?}");
            run(async move {
                let ranks = carrier.ranks_of(place.context(carrier)).await;
                let memory = place.memory(&ranks[1], pattern(3000, 4)).await;
                let long = Duration::from_secs(3600);
                let lease = memory.lease(long, Access::READ).expect("lent");
                let remote = ranks[0].deserialize(lease.serialize()).await;
                let remote = remote.expect("whole");
                assert_eq!(get(&remote, 3000).await.expect("got"), pattern(3000, 4));
                let part = remote.part(0, 1).expect("within");
                let put = remote.endpoint().put(vec![1], part).await;
                let error = put.expect_err("for reading");
                assert_eq!(error.kind(), ErrorKind::AccessDenied);

                let (second, brief, part) = used_in_time(&memory, &ranks[0]).await;
                // By this side's clock, and by the owner's.
                let error = brief.part(0, 1).expect_err("over");
                assert_eq!(error.kind(), ErrorKind::StaleKey);
                let error = ranks[0].deserialize(second.serialize()).await;
                assert_eq!(error.expect_err("over").kind(), ErrorKind::StaleKey);
                let error = taken_back(&brief, part).await;
                assert_eq!(error.kind(), ErrorKind::StaleKey, "{error}");

                assert_eq!(get(&remote, 3000).await.expect("got"), pattern(3000, 4));
                lease.revoke();
                let error = get(&remote, 3000).await.expect_err("ended");
                assert_eq!(error.kind(), ErrorKind::StaleKey);
                memory.unregister().await.expect("leases do not hold it");
            });
        }
    });
}

/// The owner takes a lease back though the runtime in which it was made has ended; not before its time, and others not at all.
#[test]
fn a_lease_ends_though_its_runtime_has_ended() {
    side_by_side([Carrier::Shm, Carrier::Tcp], |carrier| {
        run(async move {
            let ranks = carrier.ranks().await;
            let memory = ranks[1].register(pattern(3000, 4), BOTH).await;
            let memory = memory.expect("registered");
            let leases = std::thread::spawn({
                let memory = memory.clone();
                move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().build();
                    runtime.expect("a runtime").block_on(async {
                        [3600, 2].map(|lasts| {
                            let lasts = Duration::from_secs(lasts);
                            memory.lease(lasts, Access::READ).expect("lent")
                        })
                    })
                }
            });
            let [long, brief] = leases.join().expect("no panic");
            let long = ranks[0].deserialize(long.serialize()).await;
            let long = long.expect("whole");
            let remote = ranks[0].deserialize(brief.serialize()).await;
            let remote = remote.expect("whole");
            let part = remote.part(0, 3000).expect("within");
            assert_eq!(get(&remote, 3000).await.expect("got"), pattern(3000, 4));
            // By the owner alone: the part was made when the lease was good.
            let error = taken_back(&remote, part).await;
            assert_eq!(error.kind(), ErrorKind::StaleKey, "{error}");
            assert_eq!(get(&long, 3000).await.expect("got"), pattern(3000, 4));
        });
    });
}

#[test]
fn bad_input() {
    run(async {
        let ranks = Carrier::Shm.ranks().await;
        let memory = ranks[1].register(vec![0; 100], Access::READ).await;
        let memory = memory.expect("registered");
        let bytes = memory.serialize().expect("bytes");
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                let error = ranks[0].deserialize(&flipped).await;
                let kind = error.expect_err("flipped").kind();
                let known = [ErrorKind::Malformed, ErrorKind::VersionMismatch];
                assert!(known.contains(&kind), "bit {bit} of byte {at}: {kind:?}");
            }
            let cut = ranks[0].deserialize(&bytes[..at]).await;
            assert_eq!(cut.expect_err("cut").kind(), ErrorKind::Malformed);
        }
        let context = Carrier::Shm.builder().build().expect("a context");
        let others = group::<2>(&context).await;
        let foreign = others[0].deserialize(&bytes).await.expect_err("foreign");
        assert_eq!(foreign.kind(), ErrorKind::InvalidArgument);
        let foreign = memory.send(&others[0], 1, 0).await.expect_err("foreign");
        assert_eq!(foreign.kind(), ErrorKind::InvalidArgument);
        // Of a rank other than the one that sends it.
        let others_memory = ranks[0].register(vec![0; 10], Access::READ).await;
        let others_memory = others_memory.expect("registered").serialize();
        ranks[1]
            .send(0, 3, others_memory.expect("bytes"))
            .await
            .expect("sent");
        let error = ranks[0]
            .receive_memory(1, 3)
            .await
            .expect_err("not its own");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let error = memory
            .lease(Duration::from_secs(1), BOTH)
            .expect_err("more");
        assert_eq!(error.kind(), ErrorKind::AccessDenied);
        for _ in 0..wharf::channel::MAX_LEASES {
            memory
                .lease(Duration::from_secs(100), Access::READ)
                .expect("lent");
        }
        let error = memory
            .lease(Duration::from_secs(1), Access::READ)
            .expect_err("too many");
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        memory.end_leases();
        memory
            .lease(Duration::from_secs(1), Access::READ)
            .expect("lent");
    });
}

/// Leases that end by themselves just when the memory is taken back.
#[test]
fn unregistered_as_leases_end() {
    run(async {
        let ranks = Carrier::Shm.ranks().await;
        let lasts = Duration::from_millis(1);
        for round in 0..1000 {
            let memory = Place::Vec.memory(&ranks[1], pattern(100, round)).await;
            let begun = Instant::now();
            for _ in 0..50 {
                drop(memory.lease(lasts, BOTH).expect("lent"));
            }
            // In the midst of them, which no timer hits.
            let end = lasts + (begun.elapsed() * (round as u32 % 100)) / 100;
            while begun.elapsed() < end {
                std::hint::spin_loop();
            }
            let back = memory.unregister().await.expect("it has no clone");
            assert_eq!(back.len(), 100);
        }
    });
}
