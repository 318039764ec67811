//! Whose memory is at an address, and what can be done with it.
//!
//! | what the runtime says of the address | type |
//! |---|---|
//! | nothing, or nobody has initialised it | not ROCm's |
//! | allocated in a pool of a device, or of another process and open here | `Rocm` with the device's ordinal |
//! | allocated in a pool of the host, all of the range | `HostPinned`; when devices cannot be let to it, ordinary host memory |
//! | host memory that the program has locked | ordinary host memory: devices have it at another address |
//! | reserved for virtual memory, graphics and what came later | an error: neither the host's nor anybody's that could be named |

use std::{path::Path, sync::Arc};

use super::{
    known::{Seen, type_of},
    machine::{Machine, NAME},
    memory,
    shared::Shared,
};
use crate::{
    driver::hsa::{PointerInfo, PointerKind},
    error::{Error, ErrorKind, Operation, Result},
    memory::{
        AddressRange, Advice, DmaBuf, DomainAttributes, DomainCapabilities, DomainMemory,
        MemoryAttributes, MemoryDomain,
    },
    types::MemoryType,
};

/// Devices that are counted on before the runtime is initialised and says how many there are.
const DEVICES: u16 = 64;

/// ROCm's memory.
#[derive(Debug)]
pub(super) struct RocmDomain(pub(super) Arc<Shared>);

impl MemoryDomain for RocmDomain {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Before the runtime is initialised, the types of 64 devices; then those of the devices there are.
    fn attributes(&self) -> DomainAttributes {
        let capabilities = DomainCapabilities::DETECT
            | DomainCapabilities::ALLOCATE
            | DomainCapabilities::ADVISE
            | DomainCapabilities::EXPORT;
        let devices = match self.0.known_machine() {
            Some(machine) => u16::try_from(machine.devices.len()).unwrap_or(DEVICES),
            None => DEVICES,
        };
        let own = (0..devices).map(MemoryType::Rocm);
        DomainAttributes::new(
            capabilities,
            Vec::from_iter(
                [MemoryType::HostPinned, MemoryType::RocmManaged]
                    .into_iter()
                    .chain(own),
            ),
        )
    }

    fn is_loaded(&self) -> bool {
        self.0.in_use().is_some()
    }

    /// Lets all devices to memory that is met for the first time: copies between two of them need it.
    fn detect(&self, range: AddressRange) -> Result<Option<MemoryAttributes>> {
        let Some(hsa) = self.0.in_use() else {
            return Ok(None);
        };
        let info = hsa.inspect(range.start())?;
        let machine = match info.kind {
            PointerKind::Unknown => return Ok(None),
            _ => self.0.machine().map_err(in_memory)?,
        };
        match info.kind {
            PointerKind::Locked if in_host(&info, range) => Ok(None),
            PointerKind::Allocated => match self.0.known.see(machine, range.start(), true)? {
                Some(seen) => Ok(of(machine, &seen, range)),
                None => Ok(None),
            },
            PointerKind::Ipc | PointerKind::Graphics => match type_of(machine, &info) {
                Some(memory_type) => {
                    let whole = AddressRange::new(info.agent_base, info.len as u64)?;
                    Ok(Some(MemoryAttributes::new(memory_type, whole)))
                }
                None => Err(nobodys(range, &info)),
            },
            _ => Err(nobodys(range, &info)),
        }
    }

    /// Calls nothing: an allocation's number goes before its memory is freed, by whomever.
    fn is_current(&self, range: AddressRange, known: &MemoryAttributes) -> bool {
        let Ok(length) = usize::try_from(range.len()) else {
            return false;
        };
        let seen = self.0.known.find(range.start(), length);
        known.id != 0 && seen.is_some_and(|seen| seen.id == known.id)
    }

    /// Host memory zeroed, and a device's where the library can (`hsa_amd_memory_fill`). `HostPinned` is of the host's fine-grained pool, in reach of all devices.
    /// `RocmManaged` is refused: the runtime has no memory that it moves.
    fn allocate(&self, memory_type: MemoryType, length: usize) -> Result<Box<dyn DomainMemory>> {
        memory::allocate(&self.0, memory_type, length)
    }

    /// The kernel's own driver tells it, where RDMA's part of the vendor's kernel package is there.
    fn by_address(&self) -> Option<bool> {
        Some(Path::new("/sys/kernel/mm/memory_peers/amdkfd").exists())
    }

    fn place(&self, memory_type: MemoryType) -> Option<String> {
        let MemoryType::Rocm(ordinal) = memory_type else {
            return None;
        };
        let machine = self.0.machine_in_use().ok()??;
        let device = machine.devices.get(usize::from(ordinal))?;
        Some(device.agent.pci_address().ok()?.to_string())
    }

    /// Of memory of the host that the kernel moves (SVM): `hipMallocManaged`'s, which the runtime does not tell from the host's, so the program says which it is
    /// ([`Context::notify_allocated`](crate::Context::notify_allocated), `RocmManaged`). `WillNeed` moves it to the device that it prefers, else to the only one, which it prefers from
    /// then on, and waits for that; `Normal` takes the preference back.
    fn advise(&self, range: AddressRange, advice: Advice) -> Result<()> {
        let machine = self.0.machine().map_err(in_memory)?;
        let (hsa, start) = (machine.hsa, range.start());
        if hsa.inspect(start)?.kind != PointerKind::Unknown {
            let text = format!("{range} does not move: it takes no advice");
            return Err(Error::new(ErrorKind::Unsupported, text).during(Operation::Memory));
        }
        if !hsa.has_svm().map_err(in_memory)? {
            let text = "the kernel moves no memory between the host and AMD's devices in this process (SVM: amdgpu with HMM)";
            return Err(Error::new(ErrorKind::Unsupported, text).during(Operation::Memory));
        }
        let length = usize::try_from(range.len()).map_err(|_| unknown(range))?;
        if length == 0 {
            return Ok(());
        }
        let moved = match advice {
            Advice::Normal => hsa.set_preferred_location(start, length, None),
            Advice::WillNeed => will_need(machine, range, length),
        };
        moved.map_err(in_memory)
    }

    fn export(&self, range: AddressRange) -> Result<DmaBuf> {
        let machine = self.0.machine_in_use().map_err(in_memory)?;
        let machine = machine.ok_or_else(|| {
            let text = "the HSA runtime is not in use in this process";
            Error::new(ErrorKind::Unsupported, text).during(Operation::Memory)
        })?;
        let length = usize::try_from(range.len()).map_err(|_| unknown(range))?;
        match self.0.known.see(machine, range.start(), false)? {
            Some(seen) if seen.memory_type == MemoryType::HostPinned => {
                let text = format!("{range} is on no device: it is not exported as a dma-buf");
                Err(Error::new(ErrorKind::Unsupported, text).during(Operation::Memory))
            }
            Some(seen) if seen.range.contains(range) => {
                let exported = machine.hsa.export_dma_buf(range.start(), length);
                let exported = exported.map_err(in_memory)?;
                let offset = exported.offset();
                Ok(DmaBuf {
                    fd: exported.into_fd().map_err(in_memory)?,
                    offset,
                    ordered: false,
                })
            }
            _ => Err(unknown(range)),
        }
    }
}

/// Moves memory to where it is to be.
fn will_need(machine: &Machine, range: AddressRange, length: usize) -> Result<()> {
    let (hsa, start) = (machine.hsa, range.start());
    let to = match (
        hsa.preferred_location(start, length)?,
        machine.devices.as_slice(),
    ) {
        (Some(preferred), _) => preferred,
        (None, [only]) => {
            hsa.set_preferred_location(start, length, Some(&only.agent))?;
            only.agent.raw()
        }
        (None, devices) => {
            let text = format!(
                "{range} prefers none of {} devices: hipMemAdvise says which",
                devices.len()
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
    };
    hsa.prefetch(start, length, to)
}

/// What is said of an allocation.
fn of(machine: &Machine, seen: &Seen, range: AddressRange) -> Option<MemoryAttributes> {
    let attributes = MemoryAttributes::new(seen.memory_type, seen.range).id(seen.id);
    if seen.memory_type != MemoryType::HostPinned {
        let exports = machine.hsa.has_dma_buf().unwrap_or(false);
        return Some(attributes.dma_buf(exports));
    }
    let pinned = seen.range.contains(range) && seen.reach == machine.everybody();
    pinned.then_some(attributes)
}

/// Whether a range is the host's view of locked memory.
fn in_host(info: &PointerInfo, range: AddressRange) -> bool {
    let end = info.host_base.saturating_add(info.len as u64);
    (info.host_base..end).contains(&range.start())
}

fn in_memory(error: Error) -> Error {
    error.during(Operation::Memory)
}

#[cold]
fn unknown(range: AddressRange) -> Error {
    let text = format!(
        "the HSA runtime knows no allocation with all of {range}: it was freed, or is the host's"
    );
    Error::new(ErrorKind::InvalidArgument, text).during(Operation::Memory)
}

#[cold]
fn nobodys(range: AddressRange, info: &PointerInfo) -> Error {
    let text = match info.kind {
        PointerKind::Locked => format!(
            "{range} is where devices have locked host memory; the host has it at {:#x}",
            info.host_base
        ),
        PointerKind::Reserved => {
            format!(
                "{range} is reserved for virtual memory of ROCm, which is not supported: allocate from a pool"
            )
        }
        kind => format!("the memory at {range} is of no device that this process sees ({kind:?})"),
    };
    Error::new(ErrorKind::Unsupported, text).during(Operation::Memory)
}
