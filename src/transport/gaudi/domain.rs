//! Whose memory is at an address, and what can be done with it.
//!
//! | the address | type |
//! |---|---|
//! | bits 47 to 63 all alike, in memory that a domain allocated as such | `HostPinned` |
//! | bits 47 to 63 all alike, else | not Gaudi's |
//! | others, in an allocation of a card | `Gaudi` with the card's number |
//! | others, in the pool of the card that Synapse has in this process | `Gaudi` with that card's number; the pool counts as one allocation |
//!
//! Where that pool is not known, and on the first Gaudi, whose addresses could be the host's, memory that others allocate by Synapse is what the program says that
//! it is ([`Context::notify_allocated`](crate::Context::notify_allocated)), until it says that it is freed.

use std::{fmt, sync::Arc};

use super::{
    card::{self, OpenCard, range_of},
    guest,
    host::{self, PinnedMemory},
    options::NAME,
    shared::Shared,
};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::{
        AddressRange, DmaBuf, DomainAttributes, DomainCapabilities, DomainMemory, MemoryAttributes,
        MemoryDomain,
    },
    types::MemoryType,
};

/// Cards that are counted on before they are looked for.
const DEVICES: u16 = 64;

/// Gaudi's memory.
#[derive(Debug)]
pub(super) struct GaudiDomain(pub(super) Arc<Shared>);

impl GaudiDomain {
    fn card_of(&self, range: AddressRange) -> Option<Arc<OpenCard>> {
        if is_host(range.start()) {
            return None;
        }
        let known = self.0.loaded();
        known
            .and_then(|thunk| card::of_address(thunk, range.start()))
            .or_else(|| self.elsewhere(range))
    }

    /// The card that Synapse has in this process, if the address is in the memory of all that is allocated there.
    fn elsewhere(&self, range: AddressRange) -> Option<Arc<OpenCard>> {
        if is_host(range.start()) {
            return None;
        }
        match self.0.join() {
            Ok(card) => card.filter(|card| card.find(range.start()).is_some()),
            Err(error) => {
                tracing::debug!(target: "wharf::gaudi", "Synapse's card is not used: {error}");
                None
            }
        }
    }
}

/// Whether an address can be the host's: one that the processor takes.
fn is_host(address: u64) -> bool {
    let top = address >> 47;
    top == 0 || top == u64::MAX >> 47
}

impl MemoryDomain for GaudiDomain {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Before the cards were looked for, the types of 64; then those of the cards there are.
    fn attributes(&self) -> DomainAttributes {
        let mut capabilities = DomainCapabilities::DETECT | DomainCapabilities::ALLOCATE;
        capabilities.set(DomainCapabilities::EXPORT, self.0.exports);
        let devices = self.0.count().unwrap_or(DEVICES);
        let own = (0..devices).map(MemoryType::Gaudi);
        let types = [MemoryType::HostPinned].into_iter().chain(own);
        DomainAttributes::new(capabilities, types.collect::<Vec<_>>())
    }

    fn is_loaded(&self) -> bool {
        let open = |thunk| !card::ordinals(thunk).is_empty();
        self.0.loaded().is_some_and(open) || guest::is_resident(self.0.synapse.as_deref())
    }

    fn detect(&self, range: AddressRange) -> Result<Option<MemoryAttributes>> {
        if is_host(range.start()) {
            let pinned = host::pinned(range);
            return Ok(pinned
                .map(|(whole, id)| MemoryAttributes::new(MemoryType::HostPinned, whole).id(id)));
        }
        let Some(card) = self.card_of(range) else {
            return Ok(None);
        };
        let Some(taken) = card.find(range.start()) else {
            return Ok(None);
        };
        let memory_type = MemoryType::Gaudi(card.ordinal());
        let attributes = MemoryAttributes::new(memory_type, range_of(&taken)?).id(taken.id);
        Ok(Some(attributes.dma_buf(self.0.exports)))
    }

    /// What the program said of Synapse's memory counts where nobody else knows.
    fn is_current(&self, range: AddressRange, known: &MemoryAttributes) -> bool {
        let MemoryType::Gaudi(ordinal) = known.memory_type else {
            return false;
        };
        match self.0.join() {
            Ok(Some(card)) => card.ordinal() == ordinal && card.unlisted(range.start()).is_some(),
            _ => false,
        }
    }

    /// All of it zeroed. The first allocation on a card opens it, where the program has not said otherwise; then no other process has it.
    /// `HostPinned` is mapped for each card by the first copy of it.
    fn allocate(&self, memory_type: MemoryType, length: usize) -> Result<Box<dyn DomainMemory>> {
        let make = || self.try_allocate(memory_type, length);
        self.0.reaper.allocate(make)
    }

    fn place(&self, memory_type: MemoryType) -> Option<String> {
        let MemoryType::Gaudi(ordinal) = memory_type else {
            return None;
        };
        let cards = self.0.cards().ok()?;
        Some(cards.get(usize::from(ordinal))?.bus_id.to_string())
    }

    fn export(&self, range: AddressRange) -> Result<DmaBuf> {
        if !self.0.exports {
            let text = "gaudi_gdr, which offers Gaudi's memory as dma-bufs, is not allowed (WHARF_TLS, GaudiCopy::gdr)";
            return Err(Error::new(ErrorKind::Unsupported, text).during(Operation::Memory));
        }
        let card = self.card_of(range).ok_or_else(|| unknown(range))?;
        let whole = card.find(range.start()).ok_or_else(|| unknown(range))?;
        if !range_of(&whole)?.contains(range) {
            return Err(unknown(range));
        }
        card.export(range.start())
            .map_err(|error| error.during(Operation::Memory))
    }
}

impl GaudiDomain {
    fn try_allocate(
        &self,
        memory_type: MemoryType,
        length: usize,
    ) -> Result<Box<dyn DomainMemory>> {
        let ordinal = match memory_type {
            MemoryType::HostPinned => return Ok(Box::new(PinnedMemory::new(length)?)),
            MemoryType::Gaudi(ordinal) => ordinal,
            _ => {
                let text = format!("Gaudi allocates no memory of type {memory_type}");
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
        };
        let card = self.0.to_allocate(ordinal)?;
        let taken = card.allocate(length as u64)?;
        Ok(Box::new(Allocated {
            range: range_of(&taken)?,
            id: taken.id,
            card: Some(card),
            ordinal,
            shared: Arc::clone(&self.0),
        }))
    }
}

#[cold]
fn unknown(range: AddressRange) -> Error {
    let text = format!("no Gaudi card has the memory at {range}: it was freed, or is the host's");
    Error::new(ErrorKind::InvalidArgument, text).during(Operation::Memory)
}

/// Memory of a card.
struct Allocated {
    range: AddressRange,
    id: u64,
    card: Option<Arc<OpenCard>>,
    ordinal: u16,
    shared: Arc<Shared>,
}

/// Freed when it is dropped, which may take long.
struct Freed(Arc<OpenCard>, u64);

impl Drop for Freed {
    fn drop(&mut self) {
        self.0.free(self.1);
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        if let Some(card) = self.card.take() {
            self.shared
                .reaper
                .drop_later(Freed(card, self.range.start()));
        }
    }
}

impl fmt::Debug for Allocated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gaudi:{} memory at {}", self.ordinal, self.range)
    }
}

#[allow(unsafe_code)]
// SAFETY: range and type are fixed. Device memory is not for the host.
unsafe impl DomainMemory for Allocated {
    fn range(&self) -> AddressRange {
        self.range
    }

    fn memory_type(&self) -> MemoryType {
        MemoryType::Gaudi(self.ordinal)
    }

    fn id(&self) -> u64 {
        self.id
    }
}
