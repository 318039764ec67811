//! Allocations that are remembered, each in a slot that readers look at without a lock, and the entries that name them.

use std::sync::{
    OnceLock,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
        fence,
    },
};

use crate::{
    memory::{AddressRange, MemoryAttributes},
    types::MemoryType,
};

/// Allocations that can be remembered, and pages that several of them share. More push out the oldest.
pub(super) const CAPACITY: u32 = 1 << 20;

/// Elements that are made at once.
const CHUNK: usize = 1 << 12;

/// An allocation. `state` is the tag, and below it whether it is live.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) state: AtomicU64,
    memory_type: AtomicU64,
    pub(super) start: AtomicU64,
    pub(super) end: AtomicU64,
    id: AtomicU64,
    /// The count of runtimes when it was asked for.
    seen: AtomicU64,
}

/// Elements that stay where they are, made when they are first written.
#[derive(Debug)]
pub(super) struct Slab<T>([OnceLock<Box<[T]>>; CAPACITY as usize / CHUNK]);

impl<T: Default> Slab<T> {
    pub(super) const fn new() -> Self {
        Self([const { OnceLock::new() }; CAPACITY as usize / CHUNK])
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        let index = index as usize;
        self.0.get(index / CHUNK)?.get()?.get(index % CHUNK)
    }

    pub(super) fn make(&self, index: u32) -> &T {
        let chunk = self.0[index as usize / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| T::default()).collect());
        &chunk[index as usize % CHUNK]
    }
}

// An entry of the index: shared 1 | tag 29 | index + 1 in 32 bits.
const TAG_BITS: u32 = 29;
pub(super) const SHARED: u64 = 1 << 61;

#[inline]
pub(super) fn entry_of(index: u32, tag: u64) -> u64 {
    (tag & ((1 << TAG_BITS) - 1)) << 32 | (u64::from(index) + 1)
}

#[inline]
pub(super) fn index_of(entry: u64) -> u32 {
    ((entry & 0xffff_ffff) - 1) as u32
}

#[inline]
pub(super) fn tag_of(entry: u64) -> u64 {
    entry >> 32 & ((1 << TAG_BITS) - 1)
}

#[inline]
pub(super) fn live(tag: u64) -> u64 {
    tag << 1 | 1
}

impl Slot {
    /// What it says, if it is the allocation of `entry` still.
    #[inline]
    pub(super) fn read(&self, entry: u64) -> Option<(MemoryAttributes, u64)> {
        let state = live(tag_of(entry));
        if self.state.load(Acquire) != state {
            return None;
        }
        let coded = self.memory_type.load(Relaxed);
        let (start, end) = (self.start.load(Relaxed), self.end.load(Relaxed));
        let (id, seen) = (self.id.load(Relaxed), self.seen.load(Relaxed));
        fence(Acquire);
        if self.state.load(Relaxed) != state {
            return None;
        }
        let allocation = AddressRange::new(start, end.wrapping_sub(start)).ok()?;
        let attributes = MemoryAttributes::new(decode(coded & !EXPORTS)?, allocation)
            .id(id)
            .dma_buf(coded & EXPORTS != 0);
        Some((attributes, seen))
    }

    /// Has it say something else from now on, and gives the tag.
    pub(super) fn write(&self, attributes: &MemoryAttributes, seen: u64) -> u64 {
        let range = attributes.allocation;
        let tag = (self.state.load(Relaxed) >> 1).wrapping_add(1) & ((1 << TAG_BITS) - 1);
        self.state.store(tag << 1, Relaxed);
        // Whoever reads what follows finds the state changed.
        fence(Release);
        let exports = if attributes.dma_buf { EXPORTS } else { 0 };
        let coded = encode(attributes.memory_type) | exports;
        self.memory_type.store(coded, Relaxed);
        self.start.store(range.start(), Relaxed);
        self.end.store(range.end(), Relaxed);
        self.id.store(attributes.id, Relaxed);
        self.seen.store(seen, Relaxed);
        self.state.store(live(tag), Release);
        tag
    }

    /// Takes the live bit away.
    pub(super) fn retire(&self, entry: u64) {
        let state = live(tag_of(entry));
        // Lost to another who did the same, or to the next use.
        let _ = self
            .state
            .compare_exchange(state, state & !1, SeqCst, SeqCst);
    }
}

/// Beside a type: it can be exported.
const EXPORTS: u64 = 1 << 32;

fn encode(memory_type: MemoryType) -> u64 {
    let (kind, device) = match memory_type {
        MemoryType::Host => (0, 0),
        MemoryType::HostPinned => (1, 0),
        MemoryType::Cuda(device) => (2, device),
        MemoryType::CudaManaged => (3, 0),
        MemoryType::Rocm(device) => (4, device),
        MemoryType::RocmManaged => (5, 0),
        MemoryType::Gaudi(device) => (6, device),
    };
    kind << 16 | u64::from(device)
}

#[inline]
fn decode(coded: u64) -> Option<MemoryType> {
    let device = coded as u16;
    Some(match coded >> 16 {
        0 => MemoryType::Host,
        1 => MemoryType::HostPinned,
        2 => MemoryType::Cuda(device),
        3 => MemoryType::CudaManaged,
        4 => MemoryType::Rocm(device),
        5 => MemoryType::RocmManaged,
        6 => MemoryType::Gaudi(device),
        _ => return None,
    })
}
