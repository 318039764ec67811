//! Whose memory is at an address, and what can be done with it.
//!
//! | what the driver says of the address | type |
//! |---|---|
//! | nothing, or nobody has initialised it | not CUDA's |
//! | host memory that is registered or allocated by it, all of the range | `HostPinned`; when only a part is, or for copies of wharf's alone, not CUDA's |
//! | managed, wherever it is now | `CudaManaged` |
//! | of a device: allocated, mapped by the virtual memory calls, or of a pool | `Cuda` with the device's ordinal |
//!
//! # Safety
//! A context that an address's attributes name is used while memory of it is under discussion, which keeps it: freeing memory during the call is the
//! caller's mistake, and the driver refuses a context that is gone.
#![allow(unsafe_code)]

use std::{path::Path, sync::Arc};

use super::{memory, pageable, shared::Shared};
use crate::{
    driver::cuda::{Attribute, Cuda, CudaContext, DevicePtr, PointerInfo, PointerKind},
    error::{Error, ErrorKind, Operation, Result},
    memory::{
        AddressRange, Advice, DmaBuf, DomainAttributes, DomainCapabilities, DomainMemory,
        MemoryAttributes, MemoryDomain,
    },
    types::MemoryType,
};

/// Devices that are counted on before the driver is initialised and says how many there are.
const DEVICES: u16 = 64;

/// Pieces of virtual memory that one answer joins.
const PIECES: usize = 4096;

/// CUDA's memory.
#[derive(Debug)]
pub(super) struct CudaDomain(pub(super) Arc<Shared>);

impl CudaDomain {
    /// The context that memory is of; `None`: no device's.
    fn context_of(&self, cuda: &'static Cuda, range: AddressRange) -> Result<Option<CudaContext>> {
        let info = cuda.inspect(DevicePtr(range.start()))?;
        match (info.kind, info.context, info.device) {
            (PointerKind::Unknown, ..) => Err(unknown(range)),
            // SAFETY: the context of memory that somebody has.
            (_, Some(raw), _) => unsafe { CudaContext::adopt(cuda, raw) }.map(Some),
            (_, None, Some(ordinal)) => self.0.context(ordinal).map(Some),
            (_, None, None) => Ok(None),
        }
    }

    /// The driver, for memory that somebody already has.
    fn cuda(&self) -> Result<&'static Cuda> {
        self.0.in_use().ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "CUDA is not in use in this process")
                .during(Operation::Memory)
        })
    }
}

impl MemoryDomain for CudaDomain {
    fn name(&self) -> &'static str {
        "cuda_copy"
    }

    /// Before the driver is initialised, the types of 64 devices; then those of the devices there are.
    fn attributes(&self) -> DomainAttributes {
        let capabilities = DomainCapabilities::DETECT
            | DomainCapabilities::ALLOCATE
            | DomainCapabilities::ADVISE
            | DomainCapabilities::EXPORT;
        let devices = match self.0.in_use() {
            Some(cuda) => cuda.device_count().unwrap_or(DEVICES),
            None => DEVICES,
        };
        let shared = [MemoryType::HostPinned, MemoryType::CudaManaged];
        let own = (0..devices).map(MemoryType::Cuda);
        DomainAttributes::new(capabilities, Vec::from_iter(shared.into_iter().chain(own)))
    }

    fn is_loaded(&self) -> bool {
        self.0.is_in_use()
    }

    fn detect(&self, range: AddressRange) -> Result<Option<MemoryAttributes>> {
        let Some(cuda) = self.0.in_use() else {
            return Ok(None);
        };
        let info = cuda.inspect(DevicePtr(range.start()))?;
        if info.kind == PointerKind::HostPinned && pageable::is_own(range, &info) {
            return Ok(None);
        }
        let memory_type = match (info.kind, info.device) {
            (PointerKind::Unknown, _) => return Ok(None),
            (PointerKind::HostPinned, _) => MemoryType::HostPinned,
            (PointerKind::Managed, _) => MemoryType::CudaManaged,
            (_, Some(ordinal)) => MemoryType::Cuda(ordinal),
            // Memory of the host that the virtual memory calls made.
            (_, None) => return Ok(None),
        };
        let allocation = allocation(cuda, &info, range)?;
        if memory_type == MemoryType::HostPinned && !allocation.contains(range) {
            return Ok(None);
        }
        let exports = match info.device {
            Some(ordinal)
                if matches!(info.kind, PointerKind::Device | PointerKind::DeviceVirtual) =>
            {
                cuda.device(ordinal)?.has(Attribute::DmaBuf)?
            }
            _ => false,
        };
        // Of several pieces the first alone has this number, and any of the others may be mapped anew.
        let is_one = |(start, length): (DevicePtr, u64)| {
            (start.0, length) == (allocation.start(), allocation.len())
        };
        let id = match info.range.is_none_or(is_one) {
            true => info.buffer_id,
            false => 0,
        };
        let attributes = MemoryAttributes::new(memory_type, allocation).id(id);
        Ok(Some(attributes.dma_buf(exports)))
    }

    /// The driver never gives a number twice.
    fn is_current(&self, range: AddressRange, known: &MemoryAttributes) -> bool {
        let Some(cuda) = self.0.in_use().filter(|_| known.id != 0) else {
            return false;
        };
        let id = cuda.buffer_id(DevicePtr(range.start()));
        id.is_ok_and(|id| id == Some(known.id))
    }

    /// All of it zeroed. `HostPinned` is pinned for the contexts of all devices and stays what it is when a context goes. `CudaManaged` needs a
    /// device that shares it with the host at any time.
    fn allocate(&self, memory_type: MemoryType, length: usize) -> Result<Box<dyn DomainMemory>> {
        memory::allocate(&self.0, memory_type, length)
    }

    fn by_address(&self) -> Option<bool> {
        let modules = ["nvidia_peermem", "nv_peer_mem"];
        let is_loaded = |name| Path::new("/sys/module").join(name).exists();
        Some(modules.into_iter().any(is_loaded))
    }

    fn place(&self, memory_type: MemoryType) -> Option<String> {
        let MemoryType::Cuda(ordinal) = memory_type else {
            return None;
        };
        self.cuda().ok()?.device(ordinal).ok()?.pci_bus_id().ok()
    }

    /// [`Advice::WillNeed`] brings managed memory to the device that it prefers, else to the one on which it was allocated. Other memory stays where it is:
    /// `Unsupported`.
    fn advise(&self, range: AddressRange, advice: Advice) -> Result<()> {
        let cuda = self.cuda()?;
        let start = DevicePtr(range.start());
        let info = cuda.inspect(start)?;
        if info.kind == PointerKind::Unknown {
            return Err(unknown(range));
        }
        if info.kind != PointerKind::Managed {
            let text = format!("{range} does not move: it takes no advice");
            return Err(Error::new(ErrorKind::Unsupported, text).during(Operation::Memory));
        }
        if advice != Advice::WillNeed || range.is_empty() {
            // Nothing is left of the other advice once it was followed.
            return Ok(());
        }
        let length = length(range)?;
        let preferred = cuda.preferred_location(start, length).ok().flatten();
        let Some(ordinal) = preferred.or(info.device) else {
            return Ok(());
        };
        let context = self.0.context(ordinal)?;
        let guard = context.enter()?;
        let stream = guard.stream(false)?;
        stream.prefetch(&guard, start, length)
    }

    fn export(&self, range: AddressRange) -> Result<DmaBuf> {
        let cuda = self.cuda()?;
        let start = DevicePtr(range.start());
        let context = self.context_of(cuda, range)?.ok_or_else(|| {
            let text = format!("{range} is on no device: it is not exported as a dma-buf");
            Error::new(ErrorKind::Unsupported, text).during(Operation::Memory)
        })?;
        let guard = context.enter()?;
        let exported = guard.export_dma_buf(start, length(range)?, false)?;
        // What the program's copies wrote is to be there for other devices when the driver says that they are done.
        match cuda.set_sync_memops(start) {
            Err(error) if is_not_for(&error) => match guard.set_sync_memops() {
                Err(error) if is_not_for(&error) => {
                    tracing::debug!(target: "wharf::cuda", %error, "copies into {range} may be seen late by other devices");
                }
                set => set?,
            },
            set => set?,
        }
        let ordering = context
            .device()
            .attribute(Attribute::GpuDirectWritesOrdering);
        Ok(DmaBuf {
            fd: exported.fd,
            offset: exported.offset,
            ordered: ordering.is_ok_and(|ordering| ordering >= ORDERED_FOR_OWNER),
        })
    }

    fn flush(&self, range: AddressRange) -> Result<()> {
        let context = self.context_of(self.cuda()?, range)?;
        let context = context.ok_or_else(|| unknown(range))?;
        let flushed = context.enter()?.flush_remote_writes();
        flushed.map_err(|error| error.during(Operation::Memory))
    }
}

/// Whether a call is not for this memory, or not of this driver.
fn is_not_for(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidArgument | ErrorKind::Unsupported
    )
}

/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER` of cuda.h.
const ORDERED_FOR_OWNER: i32 = 100;

/// The whole allocation around the start of `range`.
fn allocation(
    cuda: &'static Cuda,
    info: &PointerInfo,
    range: AddressRange,
) -> Result<AddressRange> {
    let mut whole = match (info.range, info.context) {
        (Some((start, length)), _) => AddressRange::new(start.0, length)?,
        // A driver before CUDA 11.3 tells it to another call alone.
        (None, Some(raw)) => {
            // SAFETY: the context of memory that somebody has.
            let context = unsafe { CudaContext::adopt(cuda, raw) }?;
            let guard = context.enter()?;
            match guard.address_range(DevicePtr(range.start())) {
                Ok((start, length)) => AddressRange::new(start.0, length as u64)?,
                // Registered memory has none.
                Err(_) => range,
            }
        }
        (None, None) => range,
    };
    // Virtual memory may be of many pieces, each with a range of its own.
    if info.kind == PointerKind::DeviceVirtual {
        for _ in 0..PIECES {
            if whole.contains(range) {
                break;
            }
            let next = cuda.inspect(DevicePtr(whole.end()))?;
            match next.range {
                Some((start, length))
                    if next.kind == info.kind
                        && next.device == info.device
                        && start.0 == whole.end() =>
                {
                    whole = whole.union(AddressRange::new(start.0, length)?);
                }
                _ => break,
            }
        }
    }
    Ok(whole)
}

fn length(range: AddressRange) -> Result<usize> {
    usize::try_from(range.len()).map_err(|_| unknown(range))
}

#[cold]
fn unknown(range: AddressRange) -> Error {
    let text = format!("CUDA does not know the memory at {range}: it was freed, or is the host's");
    Error::new(ErrorKind::InvalidArgument, text).during(Operation::Memory)
}
