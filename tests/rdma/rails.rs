//! Two cables between two processes. They list their devices in another order: which belong together is told by their addresses.

use std::cell::Cell;

use wharf::{Access, Descriptor, Tag};

use crate::{
    common::{First, Path, Second, bytes, expect_bytes, play},
    machine::{Down, SecondCable, needs_machine, packets},
    support::{LIMIT, until, watchdog},
};

const DESCRIPTOR: u64 = 1 << 40;
const LONG: usize = 2 << 20;
const ROUNDS: u64 = 40;

/// What is put goes over both, half of it over each.
#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn share_the_work() {
    needs_machine!();
    let _cable = lay();
    play!(Path::TwoCables, Path::context, Path::told, second, puts)
}

/// That of the messages is pulled in the middle: nothing fails, nothing is lost, nothing comes twice.
#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn stand_in_for_each_other() {
    needs_machine!();
    let _cable = lay();
    play!(
        Path::TwoCables,
        Path::context,
        Path::told,
        second,
        loses_one
    )
}

/// In the test's own process; the other finds it laid.
fn lay() -> Option<SecondCable> {
    (!crate::support::is_child()).then(SecondCable::new)
}

async fn puts(mut first: First) {
    let (child, endpoint) = first.second().await;
    let descriptor = first.receive(DESCRIPTOR, 4096).await;
    let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
    let remote = endpoint.import(&descriptor).expect("its memory");
    let before = ["rxe1", "rxa3"].map(packets);
    for seed in 0..4 {
        let put = endpoint.put(bytes(seed, LONG), remote.clone());
        watchdog(LIMIT, put).await.expect("a put");
        let got = watchdog(LIMIT, endpoint.get(remote.clone(), vec![0; LONG])).await;
        expect_bytes(seed, &got.expect("a get"));
    }
    for (device, before) in ["rxe1", "rxa3"].into_iter().zip(before) {
        let came = packets(device) - before;
        // 8 MiB in packets of 1 KiB came in, by halves.
        assert!(came > 2_000, "{came} packets at {device}");
    }
    endpoint.tag_send(Tag(0), "end").await.expect("a send");
    watchdog(LIMIT, endpoint.close()).await.expect("closed");
    child.finish();
    first.finish().await;
}

async fn loses_one(mut first: First) {
    let (child, endpoint) = first.second().await;
    let descriptor = first.receive(DESCRIPTOR, 4096).await;
    let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
    let remote = endpoint.import(&descriptor).expect("its memory");
    let begun = Cell::new(0);
    let pull = async {
        until("some rounds", || begun.get() > ROUNDS / 8).await;
        let pulled = tokio::task::spawn_blocking(Down::of_second);
        pulled.await.expect("the link is down")
    };
    let stream = async {
        for round in 1..=ROUNDS {
            begun.set(round);
            for length in [8, 5_000, 300_000] {
                let send = endpoint.tag_send(Tag(round), bytes(round, length));
                watchdog(LIMIT, send).await.expect("a send");
            }
            let put = endpoint.put(bytes(round, 100_000), remote.slice(..100_000));
            watchdog(LIMIT, put).await.expect("a put");
            let place = remote.slice(..100_000);
            let got = watchdog(LIMIT, endpoint.get(place, vec![0; 100_000])).await;
            expect_bytes(round, &got.expect("a get"));
        }
    };
    let (down, ()) = tokio::join!(pull, stream);
    endpoint.tag_send(Tag(0), "end").await.expect("a send");
    watchdog(LIMIT, endpoint.close()).await.expect("closed");
    child.finish();
    drop(down);
    first.finish().await;
}

async fn second(second: Second) {
    let access = Access::READ | Access::WRITE;
    let region = second.context.expose(vec![0; LONG], access).await;
    let region = region.expect("a region");
    let descriptor = region.descriptor().expect("a descriptor").to_bytes();
    let send = second.endpoint.tag_send(Tag(DESCRIPTOR), descriptor);
    send.await.expect("a send");
    let mut expected =
        (1..=ROUNDS).flat_map(|round| [8, 5_000, 300_000].map(|length| (round, length)));
    loop {
        let next = second.worker.tag_matched(Tag(0)).mask(wharf::Mask(0));
        let next = watchdog(LIMIT, next).await.expect("a message");
        let info = next.info();
        let received = next.recv(vec![0; info.len]).await.expect("its bytes");
        if info.tag == Tag(0) {
            break;
        }
        assert_eq!(expected.next(), Some((info.tag.0, info.len)), "in order");
        expect_bytes(info.tag.0, &received.buffer);
    }
    watchdog(LIMIT, second.endpoint.closed()).await;
}
