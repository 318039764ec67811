//! Two processes: semaphores and channels between them, and what is left when one dies.

use std::{sync::Arc, time::Duration};

use wharf::{
    Context, ErrorKind, Worker,
    channel::{
        Communicator, MemoryChannel, PacketWidth, Semaphore,
        bootstrap::{BootstrapOptions, TcpBootstrap, TcpRoot, UniqueId},
    },
};

use crate::{
    group::{BOTH, pattern, run},
    support::{Child, Parent, child, emulated::in_machine, this_test, until},
};

const LENGTH: usize = 3_000_001;

/// Over RDMA devices in the virtual machine that has some, whose processors may be emulated; else over all that there is. The emulated devices are
/// of one process.
fn carriers() -> &'static [&'static str] {
    match in_machine() {
        true => &["rc_verbs"],
        false => &["shm", "shm,cma", "tcp"],
    }
}

fn rounds() -> usize {
    if in_machine() { 200 } else { 2000 }
}

fn worker(transports: &str) -> Worker {
    let builder = Context::builder().transports(transports);
    let context = builder.expect("transports").build().expect("a context");
    Worker::new(&context).expect("a worker")
}

fn options() -> BootstrapOptions {
    BootstrapOptions::new().deadline(Duration::from_secs(30))
}

/// Rank 0, with the other process.
async fn lead(test: &str, transports: &str) -> (Communicator, Child) {
    let root = TcpRoot::bind("127.0.0.1:0").await.expect("a listener");
    let id = root.unique_id().to_string();
    let variables = [("WHARFTEST_OVER", transports)];
    let mut child = Child::start(test, "other", &variables);
    child.say(id);
    let bootstrap = root.join(2, &options()).await.expect("a group");
    let worker = worker(transports);
    let communicator = Communicator::new(Arc::new(bootstrap), &worker).await;
    (communicator.expect("a communicator"), child)
}

/// Rank 1.
async fn follow(parent: &mut Parent) -> Communicator {
    let transports = std::env::var("WHARFTEST_OVER").expect("given");
    let id: UniqueId = parent.hear().await.parse().expect("an id");
    let bootstrap = TcpBootstrap::join(id, 1, 2, &options()).await;
    let worker = worker(&transports);
    let communicator = Communicator::new(Arc::new(bootstrap.expect("a group")), &worker);
    communicator.await.expect("a communicator")
}

/// Both ends of a channel do the same.
async fn talk(rank: &Communicator) {
    let peer = 1 - rank.rank();
    let memory = rank.worker().context().allocate(2 * LENGTH).await;
    let mut memory = memory.expect("memory");
    memory[..LENGTH].copy_from_slice(&pattern(LENGTH, rank.rank()));
    let memory = rank.register(memory, BOTH).await.expect("registered");
    let channel = MemoryChannel::connect(rank, peer, 1, &memory).await;
    let channel = channel
        .expect("a channel")
        .with_packets(rank, 2, 1 << 16)
        .await;
    let channel = channel.expect("an area");
    let mut seen = vec![0; LENGTH];
    let expected = pattern(LENGTH, peer);

    channel
        .put_with_signal(LENGTH, 0, LENGTH)
        .await
        .expect("put");
    channel.wait().await.expect("signalled");
    memory.read_at(LENGTH, &mut seen).expect("within");
    assert!(seen == expected, "put");
    memory.write_at(LENGTH, &vec![0; LENGTH]).expect("within");
    channel.get(0, LENGTH, LENGTH).await.expect("got");
    memory.read_at(LENGTH, &mut seen).expect("within");
    assert!(seen == expected, "get");

    for round in 0..rounds() {
        let (flag, length) = (round as u32 + 1, round % 500);
        let width = match round % 2 {
            0 => PacketWidth::Eight,
            _ => PacketWidth::Sixteen,
        };
        memory.write_at(LENGTH, &[0; 500]).expect("within");
        // The area is the peer's again when both have come here.
        channel.signal().await.expect("signalled");
        channel.wait().await.expect("signalled");
        let put = channel.put_packets(0, round, length, width, flag);
        put.await.expect("put");
        let got = channel.unpack_packets(0, LENGTH, length, width, flag);
        got.await.expect("unpacked");
        memory.read_at(LENGTH, &mut seen[..500]).expect("within");
        assert_eq!(seen[..length], expected[round..round + length]);
        assert!(seen[length..500].iter().all(|byte| *byte == 0));
    }
    rank.barrier().await.expect("both are here");
}

#[test]
fn channels_between_processes() {
    if let Some(mut parent) = child("other") {
        run(async move { talk(&follow(&mut parent).await).await });
        return;
    }
    for transports in carriers() {
        eprintln!("{transports}");
        run(async move {
            let (rank, child) = lead(this_test!(), transports).await;
            talk(&rank).await;
            child.finish();
        });
    }
}

/// Every signal is answered; some waits are dropped on the way.
async fn bounce(rank: &Communicator) {
    let semaphore = Semaphore::pair(rank, 1 - rank.rank(), 1).await;
    let semaphore = semaphore.expect("a pair");
    for round in 0..5 * rounds() as u64 {
        if rank.rank() == 0 {
            semaphore.signal().await.expect("signalled");
        }
        if round % 3 == 0 {
            let looked = futures::FutureExt::now_or_never(semaphore.wait());
            if let Some(passed) = looked {
                assert_eq!(passed.expect("passes"), round + 1);
            } else {
                assert_eq!(semaphore.wait().await.expect("passes"), round + 1);
            }
        } else {
            assert_eq!(semaphore.wait().await.expect("passes"), round + 1);
        }
        if rank.rank() == 1 {
            semaphore.signal().await.expect("signalled");
        }
    }
    semaphore.endpoint().flush().await.expect("flushed");
    rank.barrier().await.expect("both are here");
}

#[test]
fn semaphores_between_processes() {
    if let Some(mut parent) = child("other") {
        run(async move { bounce(&follow(&mut parent).await).await });
        return;
    }
    for transports in carriers() {
        eprintln!("{transports}");
        run(async move {
            let (rank, child) = lead(this_test!(), transports).await;
            bounce(&rank).await;
            child.finish();
        });
    }
}

/// Who waits for a process that is killed hears of it; what it had signalled before counts.
#[test]
fn a_wait_ends_when_the_peer_is_killed() {
    if let Some(mut parent) = child("other") {
        run(async move {
            let rank = follow(&mut parent).await;
            let semaphore = Semaphore::pair(&rank, 0, 1).await.expect("a pair");
            let memory = rank.register(vec![0; 64], BOTH).await.expect("registered");
            let channel = MemoryChannel::connect(&rank, 0, 2, &memory).await;
            let _channel = channel
                .expect("a channel")
                .with_packets(&rank, 3, 1024)
                .await;
            semaphore.signal().await.expect("signalled");
            semaphore.endpoint().flush().await.expect("flushed");
            parent.say("signalled");
            parent.wait_for_death().await;
        });
        return;
    }
    for transports in carriers() {
        eprintln!("{transports}");
        run(async move {
            let (rank, mut child) = lead(this_test!(), transports).await;
            let semaphore = Semaphore::pair(&rank, 1, 1).await.expect("a pair");
            let memory = rank.register(vec![0; 64], BOTH).await.expect("registered");
            let channel = MemoryChannel::connect(&rank, 1, 2, &memory).await;
            let channel = channel
                .expect("a channel")
                .with_packets(&rank, 3, 1024)
                .await;
            let channel = channel.expect("an area");
            assert_eq!(child.hear().await, "signalled");
            let mut unpacks = Box::pin({
                let channel = channel.clone();
                async move { channel.unpack_packets(0, 0, 8, PacketWidth::Eight, 1).await }
            });
            assert!(futures::poll!(&mut unpacks).is_pending(), "nothing came");
            let unpacks = tokio::spawn(unpacks);
            assert_eq!(semaphore.wait().await.expect("came before"), 1);
            let waits = tokio::spawn({
                let semaphore = semaphore.clone();
                async move { semaphore.wait().await }
            });
            until("the second wait", || semaphore.waiting() == 1).await;
            child.kill();
            let second = waits.await.expect("ends");
            let gone = [ErrorKind::PeerDied, ErrorKind::ConnectionReset];
            let error = second.expect_err("killed");
            assert!(gone.contains(&error.kind()), "{error}");
            let error = unpacks.await.expect("ends").expect_err("killed");
            assert!(gone.contains(&error.kind()), "{error}");
            let error = channel.put_with_signal(0, 0, 8).await.expect_err("killed");
            assert!(gone.contains(&error.kind()), "{error}");
        });
    }
}
