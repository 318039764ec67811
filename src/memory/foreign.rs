//! Memory that the program allocated by itself, wherever it lies, with what keeps it: what [`Buffer::foreign`](crate::Buffer::foreign) is made of.
//!
//! # Safety
//! Whoever makes one vouches for its bytes, and says the type that the context found.
#![allow(unsafe_code)]

use std::{any::Any, fmt};

use super::{AddressRange, DomainMemory, MemoryAttributes};
use crate::types::MemoryType;

/// See the module. The owner goes with it.
pub(crate) struct Foreign {
    range: AddressRange,
    known: MemoryAttributes,
    #[allow(dead_code)]
    owner: Box<dyn Any + Send + Sync>,
}

impl Foreign {
    /// Memory of which this is known.
    ///
    /// # Safety
    /// `known` is true of all of `range`. Until the owner is dropped the memory stays allocated, is all initialised, and, but for this value and what it
    /// lends, is neither read nor written in a way that this excludes: what a [`Buffer`](crate::Buffer) or [`BufferMut`](crate::BufferMut) of it may
    /// ask for.
    pub(crate) unsafe fn new(
        range: AddressRange,
        known: MemoryAttributes,
        owner: impl Send + Sync + 'static,
    ) -> Self {
        Self {
            range,
            known,
            owner: Box::new(owner),
        }
    }
}

// SAFETY: it says the same as long as it lives; the bytes are as `new` was promised.
unsafe impl DomainMemory for Foreign {
    fn range(&self) -> AddressRange {
        self.range
    }

    fn memory_type(&self) -> MemoryType {
        self.known.memory_type
    }

    fn id(&self) -> u64 {
        self.known.id
    }

    fn exports(&self) -> bool {
        self.known.dma_buf
    }

    /// Nobody tells when the program frees it: its number does, if it has one.
    fn whole(&self) -> Option<AddressRange> {
        (self.known.id != 0).then_some(self.known.allocation)
    }
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign")
            .field("range", &self.range)
            .field("memory_type", &self.known.memory_type)
            .finish_non_exhaustive()
    }
}
