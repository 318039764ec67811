//! Host memory in reach of a card: what programs have, by the registration cache, and what the domain allocates for it.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::{
    backend::{Backend, Mapping},
    heap::next_id,
};
use crate::{
    error::{Error, Result},
    memory::{AddressRange, Cause, DomainMemory, Registrar, RegistrarAttributes, invalidate},
    sys::pages::Anonymous,
    types::{Access, MemoryType},
    util::lock::RwLock,
};

/// Maps host memory for one card.
#[derive(Debug)]
pub(super) struct HostRegistrar(pub(super) Arc<dyn Backend>);

impl Registrar for HostRegistrar {
    type Handle = Box<dyn Mapping>;

    fn name(&self) -> &'static str {
        "gaudi_copy"
    }

    /// Never in the thread that asks, which is a runtime's: pinning takes 0.1 µs a page and more.
    fn attributes(&self) -> RegistrarAttributes {
        RegistrarAttributes::default().inline_max(0)
    }

    fn register(&self, range: AddressRange, _: Access) -> Result<Self::Handle> {
        self.0.map(range.start(), range.len())
    }

    fn deregister(&self, handle: Self::Handle, _: AddressRange) -> Result<()> {
        drop(handle);
        Ok(())
    }
}

/// Host memory that domains of this process have allocated: start, and length and id.
static PINNED: RwLock<BTreeMap<u64, (u64, u64)>> = RwLock::new(BTreeMap::new());

/// The allocation in which all of `range` lies, and its id.
pub(super) fn pinned(range: AddressRange) -> Option<(AddressRange, u64)> {
    let pinned = PINNED.read();
    let (start, (length, id)) = pinned.range(..=range.start()).next_back()?;
    let whole = AddressRange::new(*start, *length).ok()?;
    whole.contains(range).then_some((whole, *id))
}

/// Host memory for copies. Each card maps all of it at the first copy that it makes of a part.
pub(super) struct PinnedMemory {
    range: AddressRange,
    id: u64,
    _pages: Anonymous,
}

impl PinnedMemory {
    /// Allocates zeroed pages, which children made by `fork` do not get.
    /// Errors: `Exhausted`, `Io`.
    pub(super) fn new(length: usize) -> Result<Self> {
        let pages = Anonymous::new(length)
            .map_err(|error| Error::io(format!("allocating {length} bytes"), error))?;
        pages
            .dont_fork()
            .map_err(|error| Error::io("keeping pinned memory out of children", error))?;
        let range = AddressRange::of_mapping(pages.as_ptr(), length);
        let id = next_id();
        PINNED.write().insert(range.start(), (range.len(), id));
        Ok(Self {
            range,
            id,
            _pages: pages,
        })
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // Before the pages are unmapped, and another may have the address.
        invalidate(self.range, Cause::Freed);
        PINNED.write().remove(&self.range.start());
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pinned memory at {}", self.range)
    }
}

#[allow(unsafe_code)]
// SAFETY: range and type are fixed; zeroed pages of this process's own, at most `isize::MAX` bytes as the kernel has it, which stay mapped until the
// value is dropped.
unsafe impl DomainMemory for PinnedMemory {
    fn range(&self) -> AddressRange {
        self.range
    }

    fn memory_type(&self) -> MemoryType {
        MemoryType::HostPinned
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn exports(&self) -> bool {
        false
    }
}
