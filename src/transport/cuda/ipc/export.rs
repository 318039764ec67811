//! What this process gives to others: the way in which each kind of memory crosses.
//!
//! # Safety
//! A context of the program's is entered for one call while memory of it is allocated, as [`Accelerator::export`] demands of its caller; the
//! driver keeps the context of an allocation.
//!
//! [`Accelerator::export`]: crate::transport::accelerator::Accelerator::export
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use super::way::{CudaWay, MEMORY, POOL};
use crate::{
    driver::cuda::{Cuda, CudaContext, DevicePtr, PointerInfo, PointerKind},
    error::{Error, ErrorKind, Result},
    transport::accelerator::ipc::{
        Shared, Sharing, Tickets,
        handover::{Wanted, stale},
    },
};

/// See [`Sharing::share`].
pub(super) fn share(
    cuda: &'static Cuda,
    at: DevicePtr,
    info: &PointerInfo,
    tickets: &Tickets<impl Sharing>,
) -> Result<Result<Shared<CudaWay>, String>> {
    let ticket = |kind, base: DevicePtr| {
        tickets.ticket(Wanted {
            kind,
            base: base.0,
            id: info.buffer_id,
        })
    };
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
    let device = cuda.device(ordinal)?;
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
                Some(raw) => unsafe { CudaContext::adopt(cuda, raw) }?,
                None => device.primary_context()?,
            };
            let guard = context.enter()?;
            let (base, length) = guard.address_range(at)?;
            let (handle, _) = guard.ipc_export(at)?;
            (base, length as u64, CudaWay::Legacy(handle))
        }
        PointerKind::DeviceVirtual => {
            // Before CUDA 12.1 the range is all that is said.
            let (base, length) = match cuda.mapping(at)? {
                Some(mapping) => mapping,
                None => info.range.ok_or_else(|| unsaid(at, "its range"))?,
            };
            let way = if info.posix_fd {
                CudaWay::Fd(ticket(MEMORY, base)?)
            } else if info.fabric {
                CudaWay::Fabric(cuda.export_virtual_fabric(at)?)
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
            let pointer = cuda.export_pool_pointer(base)?;
            let way = if info.posix_fd {
                CudaWay::PoolFd(ticket(POOL, base)?, pointer)
            } else {
                CudaWay::PoolFabric(cuda.export_pool_fabric(pool)?, pointer)
            };
            (base, length, way)
        }
    };
    Ok(Ok(Shared {
        device: uuid.0,
        base: base.0,
        length,
        way,
    }))
}

/// A descriptor of an allocation that was exported, if it still is the same.
pub(super) fn hand_over(cuda: &'static Cuda, wanted: Wanted) -> Result<OwnedFd> {
    let at = DevicePtr(wanted.base);
    let still = || match cuda.buffer_id(at)? {
        Some(id) if id == wanted.id => Ok(()),
        _ => Err(stale()),
    };
    still()?;
    if wanted.kind != POOL {
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
