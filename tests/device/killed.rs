//! The peer's process is killed in the middle of transfers of device memory.

use std::time::Duration;

use wharf::{Access, BufferMut, Descriptor, MemoryType, Tag, Worker};

use crate::{
    common::{DEVICE, OTHER, bytes, context, equal, filled},
    fixture::{Way, pattern, run},
    support::{Child, accelerator::FakeAccelerator, child, this_test},
};

const SIZE: usize = 6 << 20;

/// The child: receives and sends for as long as it lives.
async fn peer(way: Way) {
    let device = FakeAccelerator::new();
    let context = context(way, &device);
    let worker = Worker::new(&context).expect("a worker");
    let parent = child("peer").expect("a child");
    let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
    parent.say(listener.local_addr());
    let incoming = listener.accept().await.expect("a connection");
    let endpoint = incoming.accept().await.expect("accepted");
    let region = filled(&worker, &context, OTHER, pattern(SIZE, 2)).await;
    let region = context
        .expose(region, Access::READ | Access::WRITE)
        .await
        .expect("exposed");
    let descriptor = region.descriptor().expect("a descriptor").to_bytes();
    endpoint
        .tag_send(Tag(0), descriptor.to_vec())
        .await
        .expect("sent");
    let source = filled(&worker, &context, DEVICE, pattern(SIZE, 3))
        .await
        .freeze();
    let mut target: BufferMut = context.allocate_on(OTHER, SIZE).await.expect("memory");
    loop {
        let (sent, received) = tokio::join!(
            endpoint.tag_send(Tag(2), source.clone()),
            worker.tag_recv(Tag(1), target),
        );
        sent.expect("sent");
        target = received.expect("received").buffer;
    }
}

async fn killed(way: Way, test: &str) {
    for delay in [0, 300, 2000, 9000, 30_000] {
        let device = FakeAccelerator::new();
        let context = context(way, &device);
        let worker = Worker::new(&context).expect("a worker");
        let mut child = Child::start(test, "peer", &[]);
        let address = child.hear().await;
        let endpoint = worker.connect(address).await.expect("connected");
        let room = vec![0; 4096];
        let descriptor = worker.tag_recv(Tag(0), room).await.expect("a descriptor");
        let descriptor =
            Descriptor::from_bytes(&descriptor.buffer[..descriptor.len]).expect("unaltered");
        let remote = endpoint.import(&descriptor).expect("the peer's");
        let source = filled(&worker, &context, DEVICE, pattern(SIZE, 1))
            .await
            .freeze();
        let (mut sends, mut receives, mut gets) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..4 {
            sends.push(
                endpoint
                    .tag_send(Tag(1), source.clone())
                    .post()
                    .expect("room"),
            );
            sends.push(
                endpoint
                    .put(source.clone(), remote.clone())
                    .post()
                    .expect("room"),
            );
            let target = context.allocate_on(DEVICE, SIZE).await.expect("memory");
            receives.push(worker.tag_recv(Tag(2), target).post());
            let target = context.allocate_on(DEVICE, SIZE).await.expect("memory");
            gets.push(endpoint.get(remote.clone(), target).post().expect("room"));
        }
        // At another moment each time.
        tokio::time::sleep(Duration::from_micros(delay)).await;
        child.kill();
        let died = |error: &wharf::Error| assert!(error.is_peer_failure(), "{error}");
        for send in sends {
            if let Err(error) = send.await {
                died(&error);
            }
        }
        for get in gets {
            match get.await {
                Ok(found) => assert_eq!(found.len(), SIZE),
                Err(error) => died(&error.into_parts().0),
            }
        }
        died(&endpoint.closed().await);
        for receive in receives {
            // Those that no message came for wait on, for other peers.
            match receive.cancel().await {
                Ok(received) => {
                    let found = bytes(&worker, received.buffer.freeze()).await;
                    equal(&found, pattern(SIZE, 3), "what came");
                }
                Err(error) => assert_eq!(error.into_parts().1.map(|back| back.len()), Some(SIZE)),
            }
        }
        // The device may be at it still.
        while worker.in_flight() > 0 {
            tokio::task::yield_now().await;
        }
        // All fragments are free again.
        let found = filled(&worker, &context, MemoryType::Cuda(1), pattern(SIZE, 5)).await;
        equal(
            &bytes(&worker, found.freeze()).await,
            pattern(SIZE, 5),
            "after it",
        );
        drop((source, endpoint, remote, worker, context));
        tokio::task::spawn_blocking(move || device.check_freed())
            .await
            .expect("freed");
    }
}

#[test]
fn over_shm() {
    if child("peer").is_some() {
        return run(peer(Way::Shm));
    }
    run(killed(Way::Shm, this_test!()));
}

#[test]
fn over_tcp() {
    if child("peer").is_some() {
        return run(peer(Way::Tcp));
    }
    run(killed(Way::Tcp, this_test!()));
}
