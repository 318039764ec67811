//! CUDA as the engine that all vendors share has it.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Release},
};

use super::{
    home::Home,
    order::{self, Mark},
    shared::{NAME, Shared},
};
use crate::{
    driver::cuda::{CudaContext, Stream},
    error::Result,
    transport::accelerator::{
        Bell, CopyAttributes, DevicePlace, DeviceStream, InlineCopy, Owner, Vendor,
    },
    types::MemoryType,
};

/// What every engine can do.
///
/// * `fragment`: a copy costs about 4 µs beside its bytes, and a PCIe 5 link of 16 lanes moves 55 GB/s: a MiB takes 19 µs, and hides the cost of the next.
/// * `max_copy`: a quarter of a GiB takes such a link 5 ms, which is how long a small copy may wait behind it, and costs a copy within a device
///   (2 TB/s) no more than a hundredth for being one of several.
/// * `pageable_from`: the driver copies ordinary memory at a fifth of the speed of pinned memory, and within the call, which would stop a runtime's thread. On an
///   H200 (November 2026) a MiB took 104 µs so, 28 when it was registered, and registering it 80; a GiB 161, 19 and 55 ms. So what is registered for its first
///   copy is there no later from a MiB on, and what is used again four times sooner.
const ATTRIBUTES: CopyAttributes = CopyAttributes {
    max_copy: 256 << 20,
    max_in_flight: 1024,
    fragment: 1 << 20,
    pageable_from: Some(1 << 20),
};

/// See the module.
#[derive(Debug)]
pub(super) struct CudaVendor {
    pub(super) shared: Arc<Shared>,
    /// Whether the processor may make small copies itself.
    pub(super) gdr: bool,
    pub(super) gdr_library: Option<PathBuf>,
}

impl Vendor for CudaVendor {
    const NAME: &'static str = NAME;
    const ATTRIBUTES: CopyAttributes = ATTRIBUTES;
    type Home = Home;
    type Mark = Mark;
    type Stream = Stream;

    fn first(&self) -> Result<Vec<u16>> {
        let mut active = Vec::new();
        for device in self.shared.start()?.devices()? {
            if device.is_active()? {
                active.push(device.ordinal());
            }
        }
        Ok(active)
    }

    fn inline(&self) -> Option<Box<dyn InlineCopy>> {
        let cuda = self.shared.start().ok()?;
        let library = self.gdr_library.as_deref();
        self.gdr.then(|| super::gdr::open(library, cuda)).flatten()
    }

    fn memory(device: u16) -> MemoryType {
        MemoryType::Cuda(device)
    }

    fn owner(&self, memory_type: MemoryType) -> Option<Owner> {
        match memory_type {
            MemoryType::Cuda(device) => Some(Owner::Device(device)),
            MemoryType::CudaManaged => Some(Owner::Any),
            MemoryType::HostPinned => Some(Owner::Host),
            _ => None,
        }
    }

    fn open(&self, device: u16, bell: &Arc<Bell>) -> Result<Home> {
        Home::open(&self.shared, self.shared.context(device)?, bell)
    }

    fn join(&self, one: u16, other: u16) -> Result<()> {
        let (one, other) = (self.shared.context(one)?, self.shared.context(other)?);
        reach(&one, &other)?;
        reach(&other, &one)
    }

    fn mark(&self, place: DevicePlace) -> Result<Mark> {
        order::mark(self.shared.start()?, place)
    }

    fn stream(&self, stream: DeviceStream) -> Result<(Stream, u16)> {
        let stream = order::adopt(self.shared.start()?, stream)?;
        let device = stream.context().device().ordinal();
        Ok((stream, device))
    }

    fn gave_up(&self) {
        self.shared.given_up.store(true, Release);
    }
}

/// Lets one device reach the other's memory, if it can.
fn reach(one: &CudaContext, other: &CudaContext) -> Result<()> {
    if one.device().can_access(&other.device())? {
        one.enter()?.enable_peer(other)?;
    }
    Ok(())
}
