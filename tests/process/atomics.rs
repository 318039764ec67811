//! Atomic operations of two processes on one word, and a signal that wakes a process which sleeps.

use std::time::Duration;

use wharf::{Access, Descriptor, RemoteRegion, Tag};

use crate::{
    common::{First, Second, bytes, expect_bytes, on_every_path},
    paths::SHORTER,
    support::{LIMIT, idle, until, watchdog},
};

const DESCRIPTOR: u64 = 1;
const READY: u64 = 2;
/// All of them where the test is optimised, as one step of CI has it.
const EACH: u64 = if cfg!(debug_assertions) {
    4_000
} else {
    20_000
} / (SHORTER * SHORTER) as u64;
const SIZES: [usize; 5] = [0, 8, 5_000, 300_000, 3_000_001];

on_every_path!();

async fn count(remote: &RemoteRegion) {
    for _ in 0..EACH {
        remote.add(0, 1_u64).await.expect("added");
        remote.fetch_add(8, 1_u32).await.expect("added");
    }
}

async fn first(mut first: First) {
    let (child, endpoint) = first.second().await;
    for _ in 0..2 {
        let import = |bytes: Vec<u8>| {
            let descriptor = Descriptor::from_bytes(&bytes).expect("unaltered");
            endpoint.import(&descriptor).expect("the peer's")
        };
        let remote = import(first.receive(DESCRIPTOR, 4096).await);
        // Here while the other counts there.
        endpoint.tag_send(Tag(READY), "go").await.expect("a send");
        watchdog(LIMIT, count(&remote)).await;
        first.receive(READY, 8).await;
        assert_eq!(remote.fetch_add(0, 0_u64).await.expect("a word"), 2 * EACH);
        assert_eq!(
            remote.fetch_add(8, 0_u32).await.expect("a word"),
            2 * EACH as u32
        );

        let counter = import(first.receive(DESCRIPTOR, 4096).await);
        let target = import(first.receive(DESCRIPTOR, 4096).await);
        for (seed, length) in (0..).zip(SIZES) {
            first.receive(READY, 8).await;
            // It said that it waits just before it did: it sleeps.
            idle(child.pid(), Duration::from_millis(5)).await;
            let put = endpoint
                .put(bytes(seed, length), target.clone())
                .signal(&counter);
            watchdog(LIMIT, put).await.expect("a put");
        }
    }
    first.receive(READY, 8).await;
    watchdog(LIMIT, endpoint.close()).await.expect("closed");
    child.finish();
    first.finish().await;
}

async fn second(second: Second) {
    let (context, worker, endpoint) = (&second.context, &second.worker, &second.endpoint);
    let send = async |descriptor: wharf::Result<Descriptor>| {
        let bytes = descriptor.expect("a descriptor").to_bytes();
        endpoint
            .tag_send(Tag(DESCRIPTOR), bytes)
            .await
            .expect("a send");
    };
    let access = Access::READ | Access::WRITE;
    for own in [true, false] {
        let largest = SIZES[SIZES.len() - 1];
        let region = if own {
            context
                .expose(context.allocate(16).await.expect("memory"), access)
                .await
        } else {
            context.expose(vec![0; 16], access).await
        };
        let region = region.expect("a region");
        send(region.descriptor()).await;
        second.receive(READY, 8).await;
        // The owner's own, while its worker serves the other process.
        for _ in 0..EACH {
            region.fetch_add(0, 1_u64).expect("a word");
            region.fetch_add(8, 1_u32).expect("a word");
        }
        until("the other's", || {
            region.load::<u64>(0).expect("a word") == 2 * EACH
                && region.load::<u32>(8).expect("a word") == 2 * EACH as u32
        })
        .await;
        endpoint.tag_send(Tag(READY), "all").await.expect("a send");

        let counter = worker.counter().await.expect("a counter");
        send(counter.descriptor()).await;
        let target = if own {
            let memory = context.allocate(largest).await.expect("memory");
            context.expose(memory, access).await
        } else {
            context.expose(vec![0; largest], access).await
        };
        let target = target.expect("a region");
        send(target.descriptor()).await;
        for (seed, length) in (0..).zip(SIZES) {
            endpoint
                .tag_send(Tag(READY), "asleep")
                .await
                .expect("a send");
            let value = watchdog(LIMIT, counter.wait(seed + 1)).await;
            assert_eq!(value.expect("raised"), seed + 1);
            let mut seen = vec![0; length];
            target.read_at(0, &mut seen).expect("in the region");
            expect_bytes(seed, &seen);
        }
        drop(watchdog(LIMIT, region.unexpose()).await);
    }
    endpoint.tag_send(Tag(READY), "end").await.expect("a send");
    watchdog(LIMIT, endpoint.closed()).await;
}
