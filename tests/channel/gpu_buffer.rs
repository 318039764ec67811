//! Memory that is made to be shared: what it is by what the emulated device can do, and that channels take it as any other.

use std::{sync::Arc, time::Duration};

use wharf::{
    BufferMut, Context, MemoryType, Worker,
    channel::{
        Communicator, GpuBuffer, GpuBufferKind, MemoryChannel,
        bootstrap::{BootstrapOptions, TcpBootstrap, TcpRoot, UniqueId},
    },
    transport::cuda::CudaCopy,
};

use crate::{
    group::{BOTH, Carrier, content, pattern, run},
    support::{Child, child, emulated, emulated::control, this_test},
};

const LENGTH: usize = (3 << 20) + 5;

fn context() -> Context {
    let library = CudaCopy::with_library(emulated::cuda());
    let builder = Carrier::Shm.builder().accelerator(Arc::new(library));
    builder.build().expect("a context")
}

/// What the emulated device can do, and what becomes of that.
const DEVICES: [(&[(&str, &str)], GpuBufferKind); 6] = [
    (&[], GpuBufferKind::Plain),
    (&[("EMULATED_CUDA_FABRIC", "1")], GpuBufferKind::Fabric),
    (
        &[("EMULATED_CUDA_MULTICAST", "1")],
        GpuBufferKind::Multicast,
    ),
    (
        &[
            ("EMULATED_CUDA_MULTICAST", "1"),
            ("EMULATED_CUDA_FABRIC", "1"),
        ],
        GpuBufferKind::Multicast,
    ),
    // A driver that is too old for what the device can do.
    (
        &[
            ("EMULATED_CUDA_MULTICAST", "1"),
            ("EMULATED_CUDA_VERSION", "11080"),
        ],
        GpuBufferKind::Plain,
    ),
    // A fabric that this process may not use.
    (
        &[
            ("EMULATED_CUDA_FABRIC", "1"),
            (
                "EMULATED_CUDA_FAULTS",
                "cuMemCreate@1=800 cuMemCreate@3=800",
            ),
        ],
        GpuBufferKind::Plain,
    ),
];

/// One rank: half of its memory goes to the peer, and the peer's comes to the other half, without a stop in host memory.
async fn exchange(bootstrap: TcpBootstrap, kind: GpuBufferKind) {
    let worker = Worker::new(&context()).expect("a worker");
    let rank = Communicator::new(Arc::new(bootstrap), &worker).await;
    let rank = rank.expect("a communicator");
    let (own, peer) = (rank.rank(), 1 - rank.rank());
    let device = MemoryType::Cuda(own as u16);
    let buffer = GpuBuffer::allocate(worker.context(), device, LENGTH).await;
    let buffer = buffer.expect("memory");
    assert_eq!(buffer.kind(), kind);
    let memory: BufferMut = buffer.into();
    assert_eq!((memory.len(), memory.memory_type()), (LENGTH, device));
    let again = GpuBuffer::allocate(worker.context(), device, 1).await;
    assert_eq!(again.expect("memory").into_inner().len(), 1);
    let memory = rank.register(memory, BOTH).await.expect("registered");
    assert!(content(&rank, &memory).await == [0; LENGTH], "zeroed");
    let half = LENGTH / 2;
    let part = wharf::channel::RemoteMemory::part;
    let remote = rank.deserialize(&memory.serialize().expect("bytes")).await;
    let remote = remote.expect("its own");
    let filled = remote
        .endpoint()
        .put(pattern(half, own), part(&remote, 0, half).expect("within"));
    filled.await.expect("filled");
    let channel = MemoryChannel::connect(&rank, peer, 1, &memory).await;
    let channel = channel.expect("a channel");
    let staged = worker.metrics().staged;
    channel.put_with_signal(half, 0, half).await.expect("put");
    channel.wait().await.expect("put");
    assert_eq!(worker.metrics().staged, staged, "no way by the host");
    let found = content(&rank, &memory).await;
    assert!(found[..half] == pattern(half, own));
    assert!(found[half..2 * half] == pattern(half, peer));
    rank.barrier().await.expect("both");
    drop((channel, remote, memory));
    assert_eq!(control("misuses"), "", "the driver was misused");
}

#[test]
fn by_what_the_device_can_do() {
    let options = BootstrapOptions::new().deadline(Duration::from_secs(30));
    if let Some(mut parent) = child("rank") {
        // Both ends have a driver of their own, with settings of their own.
        run(async move {
            let case: usize = parent.hear().await.parse().expect("a number");
            let kind = DEVICES[case].1;
            if parent.hear().await == "0" {
                let root = TcpRoot::bind("127.0.0.1:0").await.expect("a listener");
                parent.say(root.unique_id().to_string());
                let bootstrap = root.join(2, &options).await;
                return exchange(bootstrap.expect("a group"), kind).await;
            }
            let id: UniqueId = parent.hear().await.parse().expect("an id");
            let bootstrap = TcpBootstrap::join(id, 1, 2, &options).await;
            exchange(bootstrap.expect("a group"), kind).await;
        });
        return;
    }
    for (case, (variables, kind)) in DEVICES.into_iter().enumerate() {
        eprintln!("{variables:?}: {kind:?}");
        run(async move {
            let mut ranks = [0, 1].map(|rank: u32| {
                let mut child = Child::start(this_test!(), "rank", variables);
                child.say(case.to_string());
                child.say(rank.to_string());
                child
            });
            let id = ranks[0].hear().await;
            ranks[1].say(id);
            ranks.into_iter().for_each(Child::finish);
        });
    }
}
