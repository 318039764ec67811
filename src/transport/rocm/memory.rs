//! Memory that the domain allocates.
//!
//! # Safety
//! Host memory is of a pool of the host's, is zeroed before anybody has it, and stays mapped until it is freed: when nobody has it any more, on
//! another thread, or never, once a device may still touch it.
#![allow(unsafe_code)]

use std::{mem::ManuallyDrop, sync::Arc};

use super::{machine::Machine, shared::Shared};
use crate::{
    driver::hsa::{Allocation, Status},
    error::{Error, ErrorKind, Result},
    memory::{AddressRange, DomainMemory},
    transport::accelerator::Allocated,
    types::MemoryType,
};

/// Allocates. May take long.
/// Errors: `Exhausted`, `Unsupported`, and what the runtime said.
pub(super) fn allocate(
    shared: &Arc<Shared>,
    memory_type: MemoryType,
    length: usize,
) -> Result<Box<dyn DomainMemory>> {
    shared
        .reaper
        .allocate(|| try_allocate(shared, memory_type, length))
}

fn try_allocate(
    shared: &Arc<Shared>,
    memory_type: MemoryType,
    length: usize,
) -> Result<Box<dyn DomainMemory>> {
    let machine = match memory_type {
        MemoryType::Rocm(_) | MemoryType::HostPinned => shared.machine()?,
        MemoryType::RocmManaged => {
            let text = "the HSA runtime has no memory that it moves between host and devices: allocate pinned memory, which all of them reach";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        _ => {
            let text = format!("ROCm allocates no memory of type {memory_type}");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
    };
    let (pool, on_device) = match memory_type {
        MemoryType::Rocm(ordinal) => (&machine.device(ordinal)?.pool, true),
        _ => (&machine.host_pool, false),
    };
    if length > pool.size() || isize::try_from(length).is_err() {
        let text = format!("{length} bytes are more than {pool:?} has");
        return Err(Error::new(ErrorKind::Exhausted, text));
    }
    let memory = Memory {
        allocation: ManuallyDrop::new(pool.allocate(length)?),
        shared: Arc::clone(shared),
        on_device,
    };
    let (range, id) = meet(shared, machine, &memory, memory_type, length)?;
    if on_device {
        zero(machine, &memory)?;
    } else {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(range.start() as usize);
        // SAFETY: so many bytes of the host's pool, which the host reaches and nobody else knows yet.
        unsafe { start.write_bytes(0, length) };
    }
    let exports = on_device && machine.hsa.has_dma_buf()?;
    // SAFETY: a device's memory is not for the host. The host's was zeroed just now; the pool's memory stays while `memory` lives.
    let memory =
        unsafe { Allocated::new(memory, range, memory_type, (id, exports), &shared.reaper) };
    Ok(Box::new(memory))
}

/// Has the allocation numbered and the devices let to it. Its range is as long as was asked for.
fn meet(
    shared: &Shared,
    machine: &Machine,
    memory: &Memory,
    memory_type: MemoryType,
    length: usize,
) -> Result<(AddressRange, u64)> {
    let at = memory.allocation.address();
    let range = AddressRange::new(at, length as u64)?;
    let seen = shared.known.see(machine, at, true)?;
    let whole = seen.filter(|seen| seen.memory_type == memory_type && seen.range.contains(range));
    let Some(seen) = whole else {
        let text = format!("the runtime does not know the memory at {range} that it gave");
        return Err(Error::new(ErrorKind::Io, text));
    };
    if !memory.on_device && seen.reach != machine.everybody() {
        let text = format!("not all devices can be let to host memory at {range}");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    Ok((range, seen.id))
}

/// Zeroes a device's memory, where the library can.
fn zero(machine: &Machine, memory: &Memory) -> Result<()> {
    // SAFETY: an allocation that nobody else knows yet, to its end.
    match unsafe {
        machine
            .hsa
            .fill(memory.allocation.address(), 0, memory.allocation.len())
    } {
        Err(error) if Status::of(&error).is_none() && error.kind() == ErrorKind::Unsupported => {
            tracing::debug!(target: "wharf::rocm", "device memory is not zeroed: {error}");
            Ok(())
        }
        done => done,
    }
}

/// Memory of a pool, freed by its drop, which may block.
struct Memory {
    allocation: ManuallyDrop<Allocation>,
    shared: Arc<Shared>,
    on_device: bool,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A device that failed or was given up may still write to the host's memory.
        if !self.on_device && self.shared.is_given_up() {
            return;
        }
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.allocation) };
    }
}
