//! Memory of this process, as network devices are to reach it.

use std::sync::Arc;

use super::{AddressRange, Buffer, BufferMut, DomainMemory, Segment};
use crate::types::MemoryType;

/// One run of memory of this process that network devices are to read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalMemory {
    /// The bytes: as the device addresses them that has them, if one does.
    pub range: AddressRange,
    /// The allocation around them, where it pays to register it whole: its end is told ([`invalidate`](super::invalidate)), or [`id`](Self::id)
    /// tells it from any other that is there later.
    pub whole: Option<AddressRange>,
    /// Whose it is.
    pub memory_type: MemoryType,
    /// The number that the driver gave the allocation and gives to no other; 0 without.
    pub id: u64,
}

impl LocalMemory {
    /// Memory of the host, in the allocation `whole` of wharf's own.
    #[must_use]
    pub const fn host(range: AddressRange, whole: Option<AddressRange>) -> Self {
        Self {
            range,
            whole,
            memory_type: MemoryType::Host,
            id: 0,
        }
    }

    /// This part of a device's.
    fn of_device(memory: &dyn DomainMemory, range: AddressRange) -> Self {
        Self {
            range,
            whole: memory.whole(),
            memory_type: memory.memory_type(),
            id: memory.id(),
        }
    }

    /// These bytes, in a segment of wharf's own or not.
    fn in_segment(range: AddressRange, segment: Option<(&Arc<Segment>, usize)>) -> Self {
        let mapping = segment.map(|(segment, _)| segment.mapping());
        let whole = mapping.map(|all| AddressRange::of_mapping(all.as_ptr(), all.len()));
        Self::host(range, whole)
    }

    /// Whether a device has it, and the host does not reach it.
    #[must_use]
    pub const fn is_on_device(&self) -> bool {
        !self.memory_type.is_host_accessible()
    }
}

impl Buffer {
    /// All of it, if it is one run.
    pub(crate) fn local_memory(&self) -> Option<LocalMemory> {
        if let Some((memory, range)) = self.on_device() {
            return Some(LocalMemory::of_device(memory, range));
        }
        let range = AddressRange::of(self.as_slice()?);
        Some(LocalMemory::in_segment(range, self.segment()))
    }
}

impl BufferMut {
    /// The first `length` bytes of it, if they are one run.
    pub(crate) fn local_memory(&mut self, length: usize) -> Option<LocalMemory> {
        if let Some(memory) = self.on_device() {
            let range = memory.range();
            return (length as u64 <= range.len())
                .then(|| LocalMemory::of_device(memory, range.part(0, length)));
        }
        let range = AddressRange::of(self.as_mut_slice()?.get(..length)?);
        Some(LocalMemory::in_segment(range, self.segment()))
    }
}
