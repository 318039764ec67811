//! What this process gives to others: the allocation that an address lies in, and the way in which its kind of memory crosses.
//!
//! # Safety
//! A context of the program's is entered for one call while memory of it is allocated, as [`Accelerator::export`] demands of its caller; the
//! driver keeps the context of an allocation.
//!
//! [`Accelerator::export`]: crate::transport::accelerator::Accelerator::export
#![allow(unsafe_code)]

use std::{collections::HashMap, os::fd::OwnedFd, sync::Arc};

use parking_lot::Mutex;

use super::{
    descriptor::{Allocation, Descriptor, Origin, Way},
    handover::{Service, Ticket, Wanted, stale},
};
use crate::{
    driver::cuda::{Cuda, CudaContext, DevicePtr, PointerInfo, PointerKind},
    error::{Error, ErrorKind, Result},
    transport::accelerator::Export,
};

/// See the module.
#[derive(Debug)]
pub(super) struct Exporter {
    cuda: &'static Cuda,
    origin: Origin,
    /// Hands descriptors over; started by the first allocation that needs it.
    service: Mutex<Option<Service>>,
    known: Mutex<Known>,
}

/// Allocations that were exported, by buffer id. One that was freed is found no more, since its id is never used again.
#[derive(Debug, Default)]
struct Known {
    entries: HashMap<u64, (u64, Arc<Allocation>)>,
    /// Counts uses.
    clock: u64,
}

/// Most of [`Known`]; about 300 bytes each.
const MOST: usize = 256;

/// An allocation, or why it cannot be exported.
type Found = std::result::Result<Arc<Allocation>, String>;

impl Exporter {
    pub(super) fn new(cuda: &'static Cuda, origin: Origin) -> Self {
        Self {
            cuda,
            origin,
            service: Mutex::new(None),
            known: Mutex::default(),
        }
    }

    /// See [`Accelerator::export`](crate::transport::accelerator::Accelerator::export).
    pub(super) fn export(&self, address: u64, length: u64) -> Result<Export> {
        if length == 0 || address.checked_add(length).is_none() {
            let text = format!("{length} bytes at {address:#x} are no memory to export");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let at = DevicePtr(address);
        // Each time: it tells whether the allocation is still the one that was exported.
        let info = self.cuda.inspect(at)?;
        let found = match self.known(info.buffer_id) {
            Some(known) => Ok(known),
            None => self.find(at, &info)?,
        };
        let allocation = match found {
            Ok(allocation) => allocation,
            Err(why) => return Ok(Export::Impossible(why)),
        };
        part(&allocation, &info, at, length)
    }

    /// The same when it is known already: one call of the driver.
    pub(super) fn exported(&self, address: u64, length: u64) -> Option<Export> {
        let at = DevicePtr(address);
        let info = self.cuda.inspect(at).ok()?;
        let allocation = self.known(info.buffer_id)?;
        part(&allocation, &info, at, length).ok()
    }

    fn known(&self, buffer_id: u64) -> Option<Arc<Allocation>> {
        let mut known = self.known.lock();
        let known = &mut *known;
        let (used, allocation) = known.entries.get_mut(&buffer_id)?;
        known.clock += 1;
        *used = known.clock;
        Some(Arc::clone(allocation))
    }

    fn find(&self, at: DevicePtr, info: &PointerInfo) -> Result<Found> {
        match info.kind {
            PointerKind::Unknown => {
                let text = format!("{at} is not memory of CUDA, or was freed");
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
            PointerKind::HostPinned => return Ok(Err("it is pinned host memory".to_owned())),
            PointerKind::Managed => {
                return Ok(Err("managed memory belongs to one process".to_owned()));
            }
            PointerKind::Device | PointerKind::DeviceVirtual | PointerKind::DevicePool => {}
        }
        if info.buffer_id == 0 {
            return Ok(Err("the driver does not number the allocation".to_owned()));
        }
        let ordinal = info.device.ok_or_else(|| unsaid(at, "its device"))?;
        let device = self.cuda.device(ordinal)?;
        let Ok(uuid) = device.uuid() else {
            return Ok(Err("the driver does not say who the device is".to_owned()));
        };
        let (base, length, way) = match info.kind {
            PointerKind::Device => {
                if !info.legacy_ipc {
                    return Ok(Err(
                        "the driver gives no handle of this allocation".to_owned()
                    ));
                }
                let context = match info.context {
                    // SAFETY: the context of memory that is allocated: see the chapter above.
                    Some(raw) => unsafe { CudaContext::adopt(self.cuda, raw) }?,
                    None => device.primary_context()?,
                };
                let guard = context.enter()?;
                let (base, length) = guard.address_range(at)?;
                let (handle, _) = guard.ipc_export(at)?;
                (base, length as u64, Way::Legacy(handle))
            }
            PointerKind::DeviceVirtual => {
                // Before CUDA 12.1 the range is all that is said.
                let (base, length) = match self.cuda.mapping(at)? {
                    Some(mapping) => mapping,
                    None => info.range.ok_or_else(|| unsaid(at, "its range"))?,
                };
                let way = if info.posix_fd {
                    Way::Fd(self.ticket(false, base, info.buffer_id)?)
                } else if info.fabric {
                    Way::Fabric(self.cuda.export_virtual_fabric(at)?)
                } else {
                    return Ok(Err(
                        "its physical memory was made without leave to share it".to_owned(),
                    ));
                };
                (base, length, way)
            }
            _ => {
                let (base, length) = info.range.ok_or_else(|| unsaid(at, "its range"))?;
                let pool = info.pool.ok_or_else(|| unsaid(at, "its pool"))?;
                if !info.posix_fd && !info.fabric {
                    // As the pool that `cuMemAllocAsync` takes from by default.
                    return Ok(Err(
                        "its memory pool was made without leave to share it".to_owned()
                    ));
                }
                let pointer = self.cuda.export_pool_pointer(base)?;
                let way = if info.posix_fd {
                    Way::PoolFd(self.ticket(true, base, info.buffer_id)?, pointer)
                } else {
                    Way::PoolFabric(self.cuda.export_pool_fabric(pool)?, pointer)
                };
                (base, length, way)
            }
        };
        // It may have been freed in between, and the calls have been about another.
        if self.cuda.buffer_id(at)? != Some(info.buffer_id) {
            let text = format!("the memory at {at} was freed while it was exported");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let allocation = Arc::new(Allocation {
            origin: self.origin.clone(),
            device: uuid,
            buffer_id: info.buffer_id,
            base: base.0,
            length,
            way,
        });
        self.keep(Arc::clone(&allocation));
        Ok(Ok(allocation))
    }

    fn keep(&self, allocation: Arc<Allocation>) {
        let mut known = self.known.lock();
        let known = &mut *known;
        if known.entries.len() >= MOST {
            let oldest = known.entries.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                known.entries.remove(&oldest);
            }
        }
        known.clock += 1;
        known
            .entries
            .insert(allocation.buffer_id, (known.clock, allocation));
    }

    fn ticket(&self, pool: bool, base: DevicePtr, buffer_id: u64) -> Result<Ticket> {
        let mut service = self.service.lock();
        let service = match &mut *service {
            Some(service) => service,
            none => {
                let cuda = self.cuda;
                none.insert(Service::start(move |wanted| hand_over(cuda, wanted))?)
            }
        };
        Ok(service.ticket(Wanted {
            pool,
            base: base.0,
            buffer_id,
        }))
    }
}

/// The descriptor of a part of an allocation.
fn part(
    allocation: &Arc<Allocation>,
    info: &PointerInfo,
    at: DevicePtr,
    length: u64,
) -> Result<Export> {
    let offset = at.0.checked_sub(allocation.base);
    let ends = |offset: &u64| {
        offset
            .checked_add(length)
            .is_some_and(|end| end <= allocation.length)
    };
    let Some(offset) = offset.filter(ends) else {
        if info.kind == PointerKind::DeviceVirtual {
            // Its neighbour may be the next piece.
            return Ok(Export::Impossible(format!(
                "{length} bytes at {at} are of several pieces of physical memory"
            )));
        }
        let text = format!("{length} bytes at {at} are not all of one allocation");
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    };
    let descriptor = Descriptor {
        allocation: Allocation::clone(allocation),
        offset,
        length,
    };
    Ok(Export::Descriptor(descriptor.encode()))
}

/// A descriptor of an allocation that was exported, if it still is the same.
fn hand_over(cuda: &'static Cuda, wanted: Wanted) -> Result<OwnedFd> {
    let at = DevicePtr(wanted.base);
    let still = || match cuda.buffer_id(at)? {
        Some(id) if id == wanted.buffer_id => Ok(()),
        _ => Err(stale()),
    };
    still()?;
    if !wanted.pool {
        // Once more when it is held: then nothing can change any more.
        return cuda.export_virtual_fd(at, still);
    }
    let pool = cuda.inspect(at)?.pool.ok_or_else(stale)?;
    let fd = cuda.export_pool_fd(pool)?;
    still()?;
    Ok(fd)
}

#[cold]
fn unsaid(at: DevicePtr, what: &str) -> Error {
    let text = format!("the driver does not say of the memory at {at} {what}");
    Error::new(ErrorKind::Io, text)
}
