//! Memory of the fake device: filled, and looked at.

use wharf::{Buffer, BufferMut, Context, MemoryType, Progress, Worker};

use crate::{
    fixture::{Way, same},
    support::accelerator::{FRAGMENT, FakeAccelerator},
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

pub(crate) fn context(way: Way, device: &FakeAccelerator) -> Context {
    let builder = way
        .builder()
        .accelerator(std::sync::Arc::new(device.clone()));
    builder.build().expect("a context")
}

pub(crate) fn context_with(way: Way, device: &FakeAccelerator, progress: Progress) -> Context {
    let builder = way.builder().progress(progress);
    let builder = builder.accelerator(std::sync::Arc::new(device.clone()));
    builder.build().expect("a context")
}

/// Memory of a device, or pinned, with these bytes.
pub(crate) async fn filled(
    worker: &Worker,
    context: &Context,
    memory_type: MemoryType,
    bytes: &[u8],
) -> BufferMut {
    let memory = context
        .allocate_on(memory_type, bytes.len())
        .await
        .expect("memory");
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
