//! A device that is not there: its memory has addresses and a type, and no bytes.
//!
//! # Safety
//! Nothing dereferences its addresses: the type of its memory is none that the host reaches.
#![allow(unsafe_code)]

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
};

use parking_lot::Mutex;
use wharf::{
    Error, ErrorKind, MemoryType, Result,
    memory::{
        AddressRange, DmaBuf, DomainAttributes, DomainCapabilities, DomainMemory, MemoryAttributes,
        MemoryDomain,
    },
};

/// Knows what it allocated.
#[derive(Debug, Default)]
pub(crate) struct Expert {
    pub(crate) asked: AtomicUsize,
    pub(crate) fails: AtomicBool,
    pub(crate) asleep: AtomicBool,
    allocations: Arc<Mutex<Vec<MemoryAttributes>>>,
    next: AtomicU64,
}

/// Each expert has addresses of its own, and below them nothing is mapped.
static EXPERTS: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
struct Allocation {
    attributes: MemoryAttributes,
    of: Arc<Mutex<Vec<MemoryAttributes>>>,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.of
            .lock()
            .retain(|known| known.id != self.attributes.id);
    }
}

// SAFETY: the type is not accessible for the host.
unsafe impl DomainMemory for Allocation {
    fn range(&self) -> AddressRange {
        self.attributes.allocation
    }
    fn memory_type(&self) -> MemoryType {
        self.attributes.memory_type
    }
    fn id(&self) -> u64 {
        self.attributes.id
    }
}

impl Expert {
    pub(crate) fn new() -> Arc<Self> {
        let expert = Self::default();
        let base = 0x3000_0000_0000 + (EXPERTS.fetch_add(1, SeqCst) << 36);
        expert.next.store(base, SeqCst);
        Arc::new(expert)
    }

    /// As if a framework had allocated at this address.
    pub(crate) fn allocate_at(&self, range: AddressRange, id: u64) {
        let mut allocations = self.allocations.lock();
        allocations.retain(|known| !known.allocation.overlaps(range));
        allocations.push(
            MemoryAttributes::new(MemoryType::Cuda(1), range)
                .id(id)
                .dma_buf(true),
        );
    }
}

impl MemoryDomain for Expert {
    fn name(&self) -> &'static str {
        "expert"
    }

    fn attributes(&self) -> DomainAttributes {
        let capabilities =
            DomainCapabilities::DETECT | DomainCapabilities::ALLOCATE | DomainCapabilities::EXPORT;
        DomainAttributes::new(capabilities, [MemoryType::Cuda(1)])
    }

    fn is_loaded(&self) -> bool {
        !self.asleep.load(SeqCst)
    }

    fn detect(&self, range: AddressRange) -> Result<Option<MemoryAttributes>> {
        self.asked.fetch_add(1, SeqCst);
        if self.fails.load(SeqCst) {
            return Err(Error::new(ErrorKind::Io, "the driver fell over"));
        }
        let first = AddressRange::new(range.start(), 1)?;
        let allocations = self.allocations.lock();
        Ok(allocations
            .iter()
            .find(|known| known.allocation.contains(first))
            .copied())
    }

    fn allocate(&self, memory_type: MemoryType, length: usize) -> Result<Box<dyn DomainMemory>> {
        if length > 1 << 30 {
            return Err(Error::new(ErrorKind::Exhausted, "the device is full"));
        }
        let start = self
            .next
            .fetch_add((length as u64).next_multiple_of(256), SeqCst);
        let attributes =
            MemoryAttributes::new(memory_type, AddressRange::new(start, length as u64)?)
                .id(start)
                .dma_buf(true);
        self.allocations.lock().push(attributes);
        Ok(Box::new(Allocation {
            attributes,
            of: self.allocations.clone(),
        }))
    }

    fn export(&self, range: AddressRange) -> Result<DmaBuf> {
        let whole = self.detect(range)?.expect("asked for memory of its own");
        let file = std::fs::File::open("/dev/null").expect("a device of nothing");
        Ok(DmaBuf {
            fd: file.into(),
            offset: range.start() - whole.allocation.start(),
            ordered: false,
        })
    }
}
