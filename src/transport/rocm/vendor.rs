//! ROCm as the engine that all vendors share has it.

use std::{path::PathBuf, sync::Arc};

use super::{
    bar,
    home::Home,
    machine::NAME,
    order::{self, Mark, Waiter},
    shared::Shared,
};
use crate::{
    error::Result,
    transport::accelerator::{
        Bell, CopyAttributes, DevicePlace, DeviceStream, InlineCopy, Owner, Vendor,
    },
    types::MemoryType,
};

/// What every engine can do.
///
/// * `fragment`: a copy costs about 6 µs beside its bytes, and a PCIe 5 link of 16 lanes moves 55 GB/s: a MiB takes 19 µs, and hides the cost of the next.
/// * `max_copy`: a quarter of a GiB takes such a link 5 ms, which is how long a small copy may wait behind it; copies of more than 2 GiB were seen to hang in
///   some releases.
/// * Ordinary memory: locked through the registration cache, whatever its length.
const ATTRIBUTES: CopyAttributes = CopyAttributes {
    max_copy: 256 << 20,
    max_in_flight: 1024,
    fragment: 1 << 20,
    pageable_from: Some(0),
};

/// See the module.
#[derive(Debug)]
pub(super) struct RocmVendor {
    pub(super) shared: Arc<Shared>,
    /// Whether the processor may make small copies itself.
    pub(super) bar: bool,
    /// HIP's file; without, where it is looked for.
    pub(super) hip: Option<PathBuf>,
}

impl Vendor for RocmVendor {
    const NAME: &'static str = NAME;
    const ATTRIBUTES: CopyAttributes = ATTRIBUTES;
    type Home = Home;
    type Mark = Mark;
    type Stream = Waiter;

    /// All: a device costs a few signals.
    fn first(&self) -> Result<Vec<u16>> {
        let devices = &self.shared.machine()?.devices;
        Ok((0_u16..).zip(devices).map(|(ordinal, _)| ordinal).collect())
    }

    fn inline(&self) -> Option<Box<dyn InlineCopy>> {
        self.bar.then(|| bar::open(&self.shared)).flatten()
    }

    fn memory(device: u16) -> MemoryType {
        MemoryType::Rocm(device)
    }

    fn owner(&self, memory_type: MemoryType) -> Option<Owner> {
        match memory_type {
            MemoryType::Rocm(device) => Some(Owner::Device(device)),
            MemoryType::HostPinned => Some(Owner::Host),
            _ => None,
        }
    }

    fn open(&self, device: u16, bell: &Arc<Bell>) -> Result<Home> {
        Home::open(&self.shared, device, bell)
    }

    /// Nothing: access is a matter of each allocation, and let when it is met.
    fn join(&self, one: u16, other: u16) -> Result<()> {
        let _ = (one, other);
        Ok(())
    }

    fn mark(&self, place: DevicePlace) -> Result<Mark> {
        order::mark(self.hip.as_deref(), place)
    }

    fn stream(&self, stream: DeviceStream) -> Result<(Waiter, u16)> {
        let waiter = order::waiter(self.hip.as_deref(), stream)?;
        Ok((waiter, stream.device))
    }

    fn gave_up(&self) {
        self.shared.give_up();
    }
}
