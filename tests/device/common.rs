//! Memory of the fake device: filled, and looked at.

use std::sync::Arc;

use wharf::{
    Buffer, BufferMut, Context, Error, ErrorKind, Mask, MemoryType, Progress, Tag, Worker,
    transport::{Accelerator, cuda::CudaCopy},
};

use crate::{
    fixture::{Pair, Side, Way, same},
    own,
    support::{
        LIMIT,
        accelerator::{FRAGMENT, FakeAccelerator},
        emulated,
    },
};

pub(crate) const DEVICE: MemoryType = MemoryType::Cuda(0);
pub(crate) const OTHER: MemoryType = MemoryType::Cuda(1);

/// Sizes on both sides of every threshold.
pub(crate) const SIZES: [usize; 8] = [
    1,
    100,
    9000,
    FRAGMENT - 1,
    FRAGMENT,
    FRAGMENT + 1,
    7 * FRAGMENT / 2,
    2 << 20,
];

/// Set to have all tests use the emulated CUDA driver instead of the fake device.
pub(crate) const CUDA: &str = "WHARFTEST_DEVICE_CUDA";
/// Set as well to have the program allocate the memory itself, by that driver's functions.
pub(crate) const OWN: &str = "WHARFTEST_DEVICE_OWN";

/// What an operation ends with whose connection was aborted. Over a socket that takes no more the abort may come within a message: then the word of it cannot
/// follow, and the peer finds the connection broken.
pub(crate) fn assert_aborted(way: Way, error: &Error) {
    let cut_off = !matches!(
        way,
        Way::Own | Way::Shm | Way::ShmWithoutCma | Way::ShmWithoutPidfd | Way::RcVerbs
    );
    match error.kind() {
        ErrorKind::Closed | ErrorKind::AbortedByPeer => {}
        ErrorKind::ConnectionReset if cut_off => {}
        _ => panic!("{way:?}: {error}"),
    }
}

fn accelerator(device: &FakeAccelerator) -> Arc<dyn Accelerator> {
    match std::env::var_os(CUDA) {
        Some(_) => Arc::new(CudaCopy::with_library(emulated::cuda())),
        None => Arc::new(device.clone()),
    }
}

pub(crate) fn context(way: Way, device: &FakeAccelerator) -> Context {
    let builder = way.builder().accelerator(accelerator(device));
    builder.build().expect("a context")
}

pub(crate) fn context_forbidding(way: Way, device: &FakeAccelerator) -> Context {
    let builder = way.builder().accelerator(accelerator(device));
    builder.forbid_staging().build().expect("a context")
}

pub(crate) fn context_with(way: Way, device: &FakeAccelerator, progress: Progress) -> Context {
    let builder = way.builder().progress(progress);
    let builder = builder.accelerator(accelerator(device));
    builder.build().expect("a context")
}

/// Memory of a device, or pinned, with these bytes.
pub(crate) async fn filled(
    worker: &Worker,
    context: &Context,
    memory_type: MemoryType,
    bytes: &[u8],
) -> BufferMut {
    let memory = match std::env::var_os(OWN) {
        Some(_) if memory_type != MemoryType::Host => {
            own::allocate(context, memory_type, bytes.len())
        }
        _ => {
            let memory = context.allocate_on(memory_type, bytes.len()).await;
            memory.expect("memory")
        }
    };
    worker.copy(bytes.to_vec(), memory).await.expect("filled")
}

/// The bytes of a buffer, wherever they are.
pub(crate) async fn bytes(worker: &Worker, buffer: impl Into<Buffer>) -> Vec<u8> {
    let buffer = buffer.into();
    let room = vec![0xee; buffer.len()];
    worker.copy(buffer, room).await.expect("copied")
}

#[track_caller]
pub(crate) fn equal(found: &[u8], wanted: &[u8], what: impl std::fmt::Display) {
    same(found, wanted, what);
}

/// Two connected ends with one device.
pub(crate) struct Ends {
    pub(crate) here: Side,
    pub(crate) there: Side,
    pub(crate) device: FakeAccelerator,
}

impl Ends {
    pub(crate) async fn new(way: Way) -> Self {
        Self::with(way, FakeAccelerator::new()).await
    }

    pub(crate) async fn with(way: Way, device: FakeAccelerator) -> Self {
        device.plan(|plan| plan.late = 20);
        let Pair { here, there } = Pair::of(&context(way, &device), way).await;
        Self {
            here,
            there,
            device,
        }
    }

    /// Waits until a message under this tag waits for a receive.
    pub(crate) async fn arrives(&self, tag: u64) {
        while self.there.worker.tag_probe(Tag(tag), Mask::ALL).is_none() {
            tokio::task::yield_now().await;
        }
    }

    /// Nothing is left, and nobody broke the contract.
    pub(crate) async fn end(self) {
        let Self {
            here,
            there,
            device,
        } = self;
        here.endpoint.flush().await.expect("flushed");
        for side in [&here, &there] {
            while side.worker.in_flight() > 0 {
                tokio::task::yield_now().await;
            }
        }
        drop((here.endpoint, there.endpoint));
        for worker in [here.worker, there.worker] {
            worker.shutdown(LIMIT).await.expect("shut down");
        }
        drop((here.context, there.context));
        tokio::task::spawn_blocking(move || device.check_freed())
            .await
            .expect("freed");
    }
}
