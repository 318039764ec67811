//! Exposed memory in reach of network devices.
//!
//! # Safety
//! It is registered with devices that peers reach it by: see [`let_devices`].
#![allow(unsafe_code)]

use super::Transport;
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::{AddressRange, LocalMemory, Region, region::DeviceReach},
    types::MemoryType,
};

/// Registers a region with the network devices of a transport. May block.
/// Errors: why peers reach it by messages alone.
pub(crate) fn let_devices(transport: &dyn Transport, region: &Region) -> Result<()> {
    let memory = transport.remote_memory().ok_or_else(|| {
        let text = format!("{} has no device open", transport.name());
        Error::new(ErrorKind::Unsupported, text).during(Operation::Memory)
    })?;
    let exposed = region.exposed();
    let (address, memory_type) = match exposed.device {
        Some((memory_type, address)) => (address, memory_type),
        None => (exposed.address as u64, MemoryType::Host),
    };
    let range = AddressRange::new(address, exposed.length as u64)?;
    let exposed = LocalMemory {
        memory_type,
        ..LocalMemory::host(range, None)
    };
    // SAFETY: the region holds its memory until what is made here is dropped, and nothing in this process has references into it.
    let exposure = unsafe { memory.expose(&exposed, region.access()) }?;
    region.reach_by(DeviceReach {
        keys: exposure.keys().to_vec(),
        read_back: exposure.is_read_back(),
        registered: Box::new(exposure),
    });
    Ok(())
}
