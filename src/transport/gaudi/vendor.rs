//! Gaudi as the engine that all vendors share has it.

use std::sync::Arc;

use super::{
    card,
    home::{Home, Never},
    options::NAME,
    shared::Shared,
};
use crate::{
    error::{Error, ErrorKind, Result},
    transport::accelerator::{Bell, CopyAttributes, DevicePlace, DeviceStream, Owner, Vendor},
    types::MemoryType,
};

/// What every engine can do.
///
/// * `fragment`: a submission costs some µs beside its bytes; a PCIe 4 link of 16 lanes moves about 25 GB/s: a MiB takes 40 µs, and hides that.
/// * `max_copy`: a copy is one registration of its host memory, however long it is. It goes in pieces.
/// * Ordinary memory: mapped for the card, and kept so by the registration cache.
const ATTRIBUTES: CopyAttributes = CopyAttributes {
    max_copy: 1 << 40,
    max_in_flight: 256,
    fragment: 1 << 20,
    pageable_from: Some(0),
};

/// See the module.
#[derive(Debug)]
pub(super) struct GaudiVendor(pub(super) Arc<Shared>);

impl Vendor for GaudiVendor {
    const NAME: &'static str = NAME;
    const ATTRIBUTES: CopyAttributes = ATTRIBUTES;
    type Home = Home;
    type Mark = Never;
    type Stream = Never;

    fn first(&self) -> Result<Vec<u16>> {
        if let Err(error) = self.0.join() {
            tracing::warn!(target: "wharf::gaudi", "Synapse's card is not used: {error}");
        }
        Ok(card::ordinals(self.0.load()?))
    }

    fn memory(device: u16) -> MemoryType {
        MemoryType::Gaudi(device)
    }

    fn owner(&self, memory_type: MemoryType) -> Option<Owner> {
        match memory_type {
            MemoryType::Gaudi(device) => Some(Owner::Device(device)),
            MemoryType::HostPinned => Some(Owner::Host),
            _ => None,
        }
    }

    fn open(&self, device: u16, bell: &Arc<Bell>) -> Result<Home> {
        Ok(Home::new(self.0.opened(device)?, bell))
    }

    /// A card that was reset and has been opened by an allocation since, where no address of before can be one of now.
    fn is_back(&self, device: u16) -> bool {
        let loaded = self.0.loaded();
        let now = loaded.and_then(|thunk| card::find(thunk, device));
        now.is_some_and(|card| card.has_own_addresses())
    }

    /// Copies between cards are staged.
    fn join(&self, _: u16, _: u16) -> Result<()> {
        Ok(())
    }

    fn mark(&self, _: DevicePlace) -> Result<Never> {
        Err(no_streams())
    }

    fn stream(&self, _: DeviceStream) -> Result<(Never, u16)> {
        Err(no_streams())
    }

    /// A card that does not end its work is closed, which ends it.
    fn gave_up(&self) {}
}

#[cold]
fn no_streams() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "Gaudi cards have no streams of the program's own",
    )
}
