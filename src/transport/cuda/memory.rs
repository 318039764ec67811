//! Memory that the domain allocates.
//!
//! # Safety
//! Memory that the host reaches is zeroed before anybody has it: pinned memory is fresh pages of this process's own, registered with the driver, so
//! that they stay mapped whatever becomes of a context; managed memory is written before it is given out. It is freed when nobody has it any
//! more, on another thread; pages that a device may still touch are never unmapped.
#![allow(unsafe_code)]

use std::{
    mem::ManuallyDrop,
    ptr::NonNull,
    sync::{Arc, atomic::Ordering::Acquire},
};

use super::{shared::Shared, words::is_end};
use crate::{
    driver::cuda::{Attribute, ContextGuard, DeviceAllocation, DevicePtr, HostRegistration, Reach},
    error::{Error, ErrorKind, Result},
    memory::{AddressRange, DomainMemory},
    sys::pages::Anonymous,
    transport::accelerator::Allocated,
    types::MemoryType,
};

/// Allocates. May take long.
/// Errors: `Exhausted`, `Unsupported`, and what the driver said.
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
    let ordinal = match memory_type {
        MemoryType::Cuda(ordinal) => ordinal,
        MemoryType::CudaManaged | MemoryType::HostPinned => shared.some_device()?.ordinal(),
        _ => {
            let text = format!("CUDA allocates no memory of type {memory_type}");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
    };
    let context = shared.context(ordinal)?;
    let guard = context.enter()?;
    match memory_type {
        MemoryType::HostPinned => pinned(shared, &guard, length),
        MemoryType::CudaManaged => managed(shared, &guard, length),
        _ => device(shared, &guard, length, memory_type),
    }
}

fn device(
    shared: &Arc<Shared>,
    guard: &ContextGuard<'_>,
    length: usize,
    memory_type: MemoryType,
) -> Result<Box<dyn DomainMemory>> {
    let allocation = guard.allocate(length)?;
    let at = allocation.ptr();
    let allocation = zeroed(guard, allocation, at, length)?;
    allocated(shared, allocation, memory_type)
}

/// Memory of a device that is made to be shared, as far as that goes there, all of it zeroed. `None`: not at all.
/// Errors: as [`allocate`].
pub(super) fn allocate_to_share(
    shared: &Arc<Shared>,
    ordinal: u16,
    length: usize,
) -> Result<Option<(Box<dyn DomainMemory>, Reach)>> {
    let context = shared.context(ordinal)?;
    let guard = context.enter()?;
    let reach = guard.reach_of_memory()?;
    if !reach.multicast && !reach.fabric {
        return Ok(None);
    }
    let allocate = || {
        let (memory, reach) = guard.create_virtual(length, reach)?;
        let at = memory.ptr();
        let memory = zeroed(&guard, memory, at, length)?;
        let range = AddressRange::new(at.0, length as u64)?;
        let id = shared.start()?.buffer_id(at)?.unwrap_or(0);
        let exports = context.device().has(Attribute::DmaBuf)?;
        let memory_type = MemoryType::Cuda(ordinal);
        // SAFETY: device memory is not for the host.
        let memory =
            unsafe { Allocated::new(memory, range, memory_type, (id, exports), &shared.reaper) };
        let memory: Box<dyn DomainMemory> = Box::new(memory);
        Ok(Some((memory, reach)))
    };
    shared.reaper.allocate(allocate)
}

/// Zeroes what nobody else knows yet.
fn zeroed<T>(guard: &ContextGuard<'_>, memory: T, at: DevicePtr, length: usize) -> Result<T> {
    let stream = guard.stream(false)?;
    // SAFETY: nobody else knows the memory yet, and the stream is waited for.
    unsafe { stream.fill(guard, at, 0, length) }?;
    if let Err(error) = stream.synchronize(guard) {
        // The device may still write: once more, or the memory is never freed.
        if !is_end(&error) && stream.synchronize(guard).is_err() {
            let _ = ManuallyDrop::new(memory);
        }
        return Err(error);
    }
    Ok(memory)
}

fn managed(
    shared: &Arc<Shared>,
    guard: &ContextGuard<'_>,
    length: usize,
) -> Result<Box<dyn DomainMemory>> {
    // Without it the host may not touch any managed memory while the device works, and slices would be unsound.
    let device = guard.context().device();
    if !device.has(Attribute::ConcurrentManagedAccess)? {
        let text = format!("host and {device:?} cannot use managed memory at once");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let allocation = guard.allocate_managed(length)?;
    let start = std::ptr::with_exposed_provenance_mut::<u8>(allocation.ptr().0 as usize);
    // SAFETY: managed memory of this length, which nobody else knows yet and the host may touch at any time.
    unsafe { start.write_bytes(0, length) };
    allocated(shared, allocation, MemoryType::CudaManaged)
}

fn pinned(
    shared: &Arc<Shared>,
    guard: &ContextGuard<'_>,
    length: usize,
) -> Result<Box<dyn DomainMemory>> {
    let pages = Anonymous::new(length)
        .map_err(|error| Error::io(format!("allocating {length} bytes"), error))?;
    pages
        .dont_fork()
        .map_err(|error| Error::io("keeping pinned memory out of children", error))?;
    let mut pinned = Pinned {
        pages: Some(pages),
        registration: None,
        shared: Arc::clone(shared),
    };
    if let Some(pages) = &pinned.pages
        && let Some(start) = NonNull::new(pages.as_ptr())
    {
        // SAFETY: mapped until the registration is gone.
        pinned.registration = Some(unsafe { guard.register_host(start, length, true) }?);
    }
    let address = pinned
        .pages
        .as_ref()
        .map_or(0, |pages| pages.as_ptr().expose_provenance());
    let range = AddressRange::new(address as u64, length as u64)?;
    let id = shared
        .start()?
        .buffer_id(DevicePtr(range.start()))?
        .unwrap_or(0);
    // SAFETY: zeroed pages of this process's own, at most `isize::MAX` bytes as the kernel has it, which stay mapped until the value is dropped, whatever
    // the driver does.
    let memory = unsafe {
        Allocated::new(
            pinned,
            range,
            MemoryType::HostPinned,
            (id, false),
            &shared.reaper,
        )
    };
    Ok(Box::new(memory))
}

/// Device or managed memory, which is freed when nobody has it any more.
fn allocated(
    shared: &Arc<Shared>,
    allocation: DeviceAllocation,
    memory_type: MemoryType,
) -> Result<Box<dyn DomainMemory>> {
    let at = allocation.ptr();
    let range = AddressRange::new(at.0, allocation.len() as u64)?;
    let id = shared.start()?.buffer_id(at)?.unwrap_or(0);
    let exports = memory_type != MemoryType::CudaManaged
        && allocation.context().device().has(Attribute::DmaBuf)?;
    // SAFETY: device memory is not for the host. Managed memory was zeroed, and the host may access it at any time; the driver allocates no more than
    // there is.
    let memory = unsafe {
        Allocated::new(
            allocation,
            range,
            memory_type,
            (id, exports),
            &shared.reaper,
        )
    };
    Ok(Box::new(memory))
}

/// Pages that are registered.
struct Pinned {
    pages: Option<Anonymous>,
    registration: Option<HostRegistration>,
    shared: Arc<Shared>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let undone = match self.registration.take() {
            // A device that was given up may still write to them.
            Some(registration) if self.shared.given_up.load(Acquire) => {
                let _ = ManuallyDrop::new(registration);
                false
            }
            Some(registration) => match registration.unregister() {
                Ok(()) => true,
                Err(error) if is_end(&error) => true,
                Err(error) => {
                    tracing::warn!(target: "wharf::cuda", "pinned memory stays: {error}");
                    false
                }
            },
            None => true,
        };
        if !undone {
            let _ = ManuallyDrop::new(self.pages.take());
        }
    }
}
