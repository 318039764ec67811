//! Memory that a vendor's domain allocated: freed on another thread when nobody has it any more.
//!
//! # Safety
//! Whoever makes one vouches for what [`DomainMemory`] promises.
#![allow(unsafe_code)]

use std::{any::Any, fmt, sync::Arc};

use super::Reaper;
use crate::{
    memory::{AddressRange, DomainMemory},
    types::MemoryType,
};

/// `T` keeps the memory until it is dropped, which may block.
pub(in crate::transport) struct Allocated<T: Any + Send> {
    memory: Option<T>,
    range: AddressRange,
    memory_type: MemoryType,
    id: u64,
    exports: bool,
    reaper: Arc<Reaper>,
}

impl<T: Any + Send> Allocated<T> {
    /// Memory that `memory` keeps; `id` is its number, `exports` whether it can be had as a dma-buf.
    ///
    /// # Safety
    /// As of [`DomainMemory`], until `memory` is dropped: where the host reaches memory of this type, it does now, all bytes were written, and nobody
    /// else makes references into them; they are at most `isize::MAX`.
    pub(in crate::transport) unsafe fn new(
        memory: T,
        range: AddressRange,
        memory_type: MemoryType,
        (id, exports): (u64, bool),
        reaper: &Arc<Reaper>,
    ) -> Self {
        Self {
            memory: Some(memory),
            range,
            memory_type,
            id,
            exports,
            reaper: Arc::clone(reaper),
        }
    }
}

impl<T: Any + Send> Drop for Allocated<T> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.reaper.drop_later(memory);
        }
    }
}

impl<T: Any + Send> fmt::Debug for Allocated<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} memory at {}", self.memory_type, self.range)
    }
}

// SAFETY: fixed when it was made, by one who vouches for the rest.
unsafe impl<T: Any + Send + Sync> DomainMemory for Allocated<T> {
    fn range(&self) -> AddressRange {
        self.range
    }

    fn memory_type(&self) -> MemoryType {
        self.memory_type
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn exports(&self) -> bool {
        self.exports
    }
}
