//! A worker that sleeps is woken by the completion channel.

use std::time::Duration;

use wharf::{Access, Context, Descriptor, Progress, Tag};

use crate::{
    common::{First, Path, Second, bytes, expect_bytes, play},
    machine::{needs_machine, packets, tcp_segments},
    support::{LIMIT, idle, threads, until, watchdog},
};

const DESCRIPTOR: u64 = 1 << 40;

/// Within the message, from a buffer of the library's, by rendezvous; and a put, of which only a counter tells.
const LENGTHS: [usize; 4] = [8, 5_000, 300_000, 1_000_003];

/// Parks at once.
fn by_events(path: Path) -> Context {
    let builder = path.builder().progress(Progress::EventDriven);
    builder.build().expect("a context")
}

fn told_by_events(_: Path) -> Context {
    let builder = Context::builder().progress(Progress::EventDriven);
    builder.build().expect("a context")
}

/// No thread of the other process runs for 200 ms: it polls nothing and nothing wakes it. Then a message comes, over the device alone.
#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn until_something_comes() {
    needs_machine!();
    play!(Path::RcVerbs, by_events, told_by_events, second)
}

async fn parked(child: u32) {
    // It said that it waits just before it did.
    let before = idle(child, Duration::from_millis(100)).await;
    // The time is what is measured.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(threads(child), before, "threads, switches, ticks");
}

async fn first(mut first: First) {
    let (mut child, endpoint) = first.second().await;
    let descriptor = |bytes: Vec<u8>| Descriptor::from_bytes(&bytes).expect("a descriptor");
    let counter = descriptor(first.receive(DESCRIPTOR, 4096).await);
    let target = descriptor(first.receive(DESCRIPTOR, 4096).await);
    let counter = endpoint.import(&counter).expect("its counter");
    let target = endpoint.import(&target).expect("its memory");
    for (seed, length) in (0..).zip(LENGTHS) {
        for put in [false, true] {
            assert_eq!(child.hear().await, "waits");
            parked(child.pid()).await;
            let (segments, before) = (tcp_segments(), packets("rxe1"));
            if put {
                let put = endpoint.put(bytes(seed, length), target.slice(..length));
                watchdog(LIMIT, put.signal(&counter)).await.expect("a put");
            } else {
                let send = endpoint.tag_send(Tag(seed), bytes(seed, length));
                watchdog(LIMIT, send).await.expect("a send");
            }
            assert_eq!(child.hear().await, "woken");
            assert_eq!(tcp_segments(), segments, "some of it came by TCP");
            // The kernel counts again when what it said last is older than `hw_counters/lifespan`, 10 ms.
            until("packets by the device", || packets("rxe1") > before).await;
        }
    }
    watchdog(LIMIT, endpoint.close()).await.expect("closed");
    child.finish();
    first.finish().await;
}

async fn second(second: Second) {
    let (worker, endpoint) = (&second.worker, &second.endpoint);
    let counter = worker.counter().await.expect("a counter");
    let access = Access::READ | Access::WRITE;
    let room = vec![0; LENGTHS[LENGTHS.len() - 1]];
    let region = second.context.expose(room, access).await;
    let region = region.expect("a region");
    for descriptor in [counter.descriptor(), region.descriptor()] {
        let bytes = descriptor.expect("a descriptor").to_bytes();
        let send = endpoint.tag_send(Tag(DESCRIPTOR), bytes);
        send.await.expect("a send");
    }
    for (seed, length) in (0..).zip(LENGTHS) {
        let receive = worker.tag_recv(Tag(seed), vec![0; length]);
        let receive = receive.post();
        second.parent.say("waits");
        let received = watchdog(LIMIT, receive).await.expect("a message");
        second.parent.say("woken");
        expect_bytes(seed, &received.buffer);

        second.parent.say("waits");
        let value = watchdog(LIMIT, counter.wait(seed + 1)).await;
        second.parent.say("woken");
        assert_eq!(value.expect("raised"), seed + 1);
        let mut seen = vec![0; length];
        region.read_at(0, &mut seen).expect("in the region");
        expect_bytes(seed, &seen);
    }
    watchdog(LIMIT, endpoint.closed()).await;
}
