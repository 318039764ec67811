//! Device memory between two processes, on the emulated CUDA driver: opened by the other over shared memory, staged over tcp.

use std::{sync::Arc, time::Duration};

use wharf::{
    Access, BufferMut, Context, Descriptor, ErrorKind, MemoryType, Operation, Tag, Worker,
    transport::cuda::CudaCopy,
};

use crate::{
    common::{First, Path, Second, bytes, expect_bytes, play},
    support::{
        LIMIT, at_rest,
        emulated::{self, control},
        until, watchdog,
    },
};

const DEVICE: MemoryType = MemoryType::Cuda(0);
const DESCRIPTOR: u64 = 2 << 40;
const READY: u64 = 3 << 40;
/// Below what a fragment holds, above it, and above what one copy is asked for at a time.
const LENGTHS: [usize; 4] = [1, 5_000, 3_000_001, 70_000_001];

fn with_cuda(path: Path) -> Context {
    let accelerator = Arc::new(CudaCopy::with_library(emulated::cuda()));
    let builder = path.builder().accelerator(accelerator);
    builder.build().expect("a context")
}

/// How often this process opened memory of the other.
fn opened() -> u64 {
    let count = control("count cuIpcOpenMemHandle_v2");
    count.parse().expect("a number")
}

/// The second process plays one test only.
fn expect_opened(path: Path) {
    match path {
        Path::Tcp => assert_eq!(opened(), 0),
        _ => assert!(opened() > 0, "no memory of the other's was opened"),
    }
}

async fn filled(context: &Context, worker: &Worker, seed: usize, length: usize) -> BufferMut {
    let memory = context.allocate_on(DEVICE, length).await;
    let copy = worker.copy(bytes(seed as u64, length), memory.expect("memory"));
    watchdog(LIMIT, copy).await.expect("copied")
}

async fn expect(worker: &Worker, seed: usize, memory: BufferMut) {
    let length = memory.len();
    let back = watchdog(LIMIT, worker.copy(memory.freeze(), vec![0; length])).await;
    expect_bytes(seed as u64, back.expect("copied").as_slice());
}

mod every_verb {
    use super::*;

    async fn first(mut first: First) {
        let path = first.path;
        let (child, endpoint) = first.second().await;
        let (context, worker) = (&first.context, &first.worker);
        let said = endpoint.explain(Operation::TagSend, DEVICE, DEVICE, 3_000_001);
        assert!(said.is_possible, "{said}");
        if path == Path::Tcp {
            assert!(said.is_staged, "{said}");
        }
        for length in LENGTHS {
            let source = filled(context, worker, length, length).await.freeze();
            let sent = watchdog(LIMIT, endpoint.tag_send(Tag(1), source)).await;
            sent.expect("sent");
            let empty = filled(context, worker, 0, length).await;
            let got = watchdog(LIMIT, worker.tag_recv(Tag(2), empty)).await;
            expect(worker, length + 1, got.expect("a message").buffer).await;

            let descriptor = first.receive(DESCRIPTOR, 4096).await;
            let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
            let remote = endpoint.import(&descriptor).expect("the peer's");
            let empty = filled(context, worker, 0, length).await;
            let got = watchdog(LIMIT, endpoint.get(remote.clone(), empty)).await;
            expect(worker, length + 2, got.expect("got")).await;
            let source = filled(context, worker, length + 3, length).await.freeze();
            let put = watchdog(LIMIT, endpoint.put(source, remote)).await;
            put.expect("put");
            endpoint.tag_send(Tag(READY), "").await.expect("sent");
        }
        watchdog(LIMIT, endpoint.close()).await.expect("closed");
        child.finish();
        first.finish().await;
    }

    async fn second(second: Second, path: Path) {
        let (context, worker) = (&second.context, &second.worker);
        for length in LENGTHS {
            let empty = filled(context, worker, 0, length).await;
            let got = watchdog(LIMIT, worker.tag_recv(Tag(1), empty)).await;
            expect(worker, length, got.expect("a message").buffer).await;
            let source = filled(context, worker, length + 1, length).await.freeze();
            let sent = watchdog(LIMIT, second.endpoint.tag_send(Tag(2), source)).await;
            sent.expect("sent");

            let exposed = filled(context, worker, length + 2, length).await;
            let access = Access::READ | Access::WRITE;
            let region = context.expose(exposed, access).await.expect("exposed");
            let descriptor = region.descriptor().expect("a descriptor").to_bytes();
            let sent = second.endpoint.tag_send(Tag(DESCRIPTOR), descriptor).await;
            sent.expect("sent");
            second.receive(READY, 0).await;
            let memory = watchdog(LIMIT, region.unexpose()).await;
            expect(worker, length + 3, memory).await;
        }
        expect_opened(path);
        watchdog(LIMIT, second.endpoint.closed()).await;
    }

    #[test]
    fn shm() {
        play!(Path::Shm, with_cuda, |end| second(end, Path::Shm))
    }

    #[test]
    fn shm_without_cma() {
        play!(Path::ShmWithoutCma, with_cuda, |end| second(
            end,
            Path::ShmWithoutCma
        ))
    }

    #[test]
    fn tcp() {
        play!(Path::Tcp, with_cuda, |end| second(end, Path::Tcp))
    }
}

/// The exporter is killed while its memory is copied out of.
mod killed {
    use super::*;

    async fn first(mut first: First) {
        let path = first.path;
        let (mut child, endpoint) = first.second().await;
        let (context, worker) = (&first.context, &first.worker);
        let descriptor = first.receive(DESCRIPTOR, 4096).await;
        let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
        let remote = endpoint.import(&descriptor).expect("the peer's");
        // Open already where it can be.
        let empty = filled(context, worker, 0, 3_000_001).await;
        let got = watchdog(LIMIT, endpoint.get(remote.clone(), empty)).await;
        expect(worker, 7, got.expect("got")).await;
        // The device stands still: these are under way when the other process dies.
        let mut places = Vec::new();
        for _ in 0..4 {
            let empty = context.allocate_on(DEVICE, 3_000_001).await;
            places.push(empty.expect("memory"));
        }
        control("hold");
        let gets = places
            .into_iter()
            .map(|empty| endpoint.get(remote.clone(), empty).into_future());
        let copies = || worker.metrics().device_copies;
        let before = copies();
        let death = async {
            until("a copy", || copies() != before).await;
            at_rest("the copies", Duration::from_millis(10), copies).await;
            child.kill();
            let error = watchdog(LIMIT, endpoint.closed()).await;
            path.expect_death(error.kind());
            control("release");
        };
        let both = async { tokio::join!(futures::future::join_all(gets), death) };
        let (gets, ()) = watchdog(LIMIT, both).await;
        for get in gets {
            match get {
                Ok(memory) => expect(worker, 7, memory).await,
                Err(error) => assert!(error.error().is_peer_failure(), "{error:?}"),
            }
        }
        let memory = filled(context, worker, 8, 100_000).await;
        expect(worker, 8, memory).await;
        drop(endpoint);
        first.expect_works().await;
        first.finish().await;
    }

    async fn second(second: Second, _: Path) {
        let exposed = filled(&second.context, &second.worker, 7, 3_000_001).await;
        let region = second.context.expose(exposed, Access::READ).await;
        let region = region.expect("exposed");
        let descriptor = region.descriptor().expect("a descriptor").to_bytes();
        let sent = second.endpoint.tag_send(Tag(DESCRIPTOR), descriptor).await;
        sent.expect("sent");
        let error = watchdog(LIMIT, second.endpoint.closed()).await;
        assert_ne!(error.kind(), ErrorKind::Closed, "it is killed before");
    }

    #[test]
    fn shm() {
        play!(Path::Shm, with_cuda, |end| second(end, Path::Shm))
    }

    #[test]
    fn tcp() {
        play!(Path::Tcp, with_cuda, |end| second(end, Path::Tcp))
    }
}
