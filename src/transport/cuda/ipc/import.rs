//! What other processes give to this one: opened by its kind, kept by the cache.

use std::{io, os::fd::AsFd};

use super::{
    cache::Key,
    descriptor::{Allocation, Way},
    handover::{Wanted, fetch},
};
use crate::{
    driver::cuda::{
        ContextGuard, Cuda, Device, DevicePtr, IpcMapping, PoolImport, Uuid, VirtualMemory,
    },
    error::{Error, ErrorKind, Result},
    sys::{identity::identity, process},
    types::{Identity, MemoryType},
};

/// An allocation of another process, open in the primary context of its device.
#[derive(Debug)]
pub(super) struct Opened {
    /// Where the allocation begins here.
    pub(super) start: DevicePtr,
    pub(super) memory_type: MemoryType,
    _memory: Memory,
}

/// Closed by its drop, which may block.
#[derive(Debug)]
#[allow(dead_code)] // Held for its drop.
enum Memory {
    Legacy(IpcMapping),
    Virtual(VirtualMemory),
    Pool(PoolImport),
}

impl Memory {
    /// Lets another device here copy it, too. Without, it is reached through its own device alone.
    fn let_access(&self, device: &Device) {
        let done = match self {
            // The driver does it as it is needed.
            Self::Legacy(_) => Ok(()),
            Self::Virtual(memory) => memory.let_access(device),
            Self::Pool(memory) => memory.let_access(device),
        };
        if let Err(error) = done {
            tracing::debug!(target: "wharf::cuda", "{device:?} does not reach a peer's memory: {error}");
        }
    }
}

impl Key for Allocation {
    fn supersedes(&self, other: &Self) -> bool {
        // One process's addresses are one allocation's at a time.
        self.origin == other.origin
            && self.base < other.base.saturating_add(other.length)
            && other.base < self.base.saturating_add(self.length)
    }
}

/// That the memory is `peer`'s to give, and can be reached from here as far as one can tell without the driver.
///
/// # Errors
/// `Protocol`: another process's; `Unreachable`, `PermissionDenied`, `Unsupported`: no way from here.
pub(super) fn judge(allocation: &Allocation, peer: &Identity) -> Result<()> {
    let (from, here) = (&allocation.origin.identity, identity());
    if from != peer {
        return Err(Error::new(
            ErrorKind::Protocol,
            "the peer gives device memory of another process than itself",
        ));
    }
    if allocation.way.leaves_the_host() {
        return Ok(());
    }
    if !from.same_host(here) {
        return Err(Error::new(
            ErrorKind::Unreachable,
            "the device memory is on another host",
        ));
    }
    if from.user != here.user {
        let text = format!(
            "device memory of user {} cannot be opened by user {}",
            from.user, here.user
        );
        return Err(Error::new(ErrorKind::PermissionDenied, text));
    }
    // The driver's own handles name processes by their ids.
    let by_id = matches!(allocation.way, Way::Legacy(_));
    if by_id && from.pid_namespace != here.pid_namespace {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the driver's handles do not lead to another process namespace: allocate by the virtual memory calls, or from a pool, to be shared",
        ));
    }
    Ok(())
}

/// Whether the process may still be there that exported it. What cannot be told is taken for yes.
pub(super) fn may_live(allocation: &Allocation) -> bool {
    let (from, here) = (&allocation.origin, identity());
    let visible = from.identity.same_host(here)
        && from.identity.pid_namespace == here.pid_namespace
        && from.start != 0;
    match process::start_time(from.identity.pid) {
        Ok(start) => !visible || start == from.start,
        Err(error) => !(visible && error.kind() == io::ErrorKind::NotFound),
    }
}

/// Opens it. Takes about a millisecond, and more the first time; blocks.
pub(super) fn open(cuda: &'static Cuda, allocation: &Allocation) -> Result<Opened> {
    if !may_live(allocation) {
        return Err(Error::new(
            ErrorKind::PeerDied,
            "the process that exported device memory has ended",
        ));
    }
    let length = usize::try_from(allocation.length)
        .map_err(|_| Error::new(ErrorKind::Malformed, "more device memory than there can be"))?;
    let wanted = |pool| Wanted {
        pool,
        base: allocation.base,
        buffer_id: allocation.buffer_id,
    };
    let from = &allocation.origin.identity;
    // Before anything of the driver: nobody may answer.
    let fd = match &allocation.way {
        Way::Fd(ticket) => Some(fetch(ticket, wanted(false), from)?),
        Way::PoolFd(ticket, _) => Some(fetch(ticket, wanted(true), from)?),
        _ => None,
    };
    let device = visible(cuda, allocation.device)?;
    let context = device.primary_context()?;
    let guard = context.enter()?;
    let fd = fd.as_ref().map(AsFd::as_fd);
    let memory = match (&allocation.way, fd) {
        (Way::Legacy(handle), _) => Memory::Legacy(guard.ipc_open(handle)?),
        (Way::Fabric(handle), _) => Memory::Virtual(guard.import_virtual_fabric(handle, length)?),
        (Way::PoolFabric(handle, pointer), _) => {
            Memory::Pool(guard.import_pool_fabric(handle)?.open(&guard, pointer)?)
        }
        (Way::Fd(_), Some(fd)) => Memory::Virtual(guard.import_virtual(fd, length)?),
        (Way::PoolFd(_, pointer), Some(fd)) => {
            Memory::Pool(guard.import_pool(fd)?.open(&guard, pointer)?)
        }
        (Way::Fd(_) | Way::PoolFd(..), None) => {
            return Err(Error::new(ErrorKind::Io, "no descriptor"));
        }
    };
    let start = match &memory {
        Memory::Legacy(mapping) => mapping.ptr(),
        Memory::Virtual(mapping) => mapping.ptr(),
        Memory::Pool(mapping) => mapping.ptr(),
    };
    // A copy past its end would cost the whole context.
    check_length(&guard, start, allocation.length)?;
    for other in cuda.devices()? {
        if other != device && other.can_access(&device).unwrap_or(false) {
            memory.let_access(&other);
        }
    }
    Ok(Opened {
        start,
        memory_type: MemoryType::Cuda(device.ordinal()),
        _memory: memory,
    })
}

/// That what was opened is as long as the exporter says.
fn check_length(guard: &ContextGuard<'_>, start: DevicePtr, said: u64) -> Result<()> {
    let (base, length) = guard.address_range(start)?;
    let before = start.0.checked_sub(base.0);
    let left = before.and_then(|before| (length as u64).checked_sub(before));
    if left.is_some_and(|left| left >= said) {
        return Ok(());
    }
    let text = format!("the peer's device memory has {length} bytes, and is said to have {said}");
    Err(Error::new(ErrorKind::Malformed, text))
}

/// The device with this name.
fn visible(cuda: &'static Cuda, uuid: Uuid) -> Result<Device> {
    for device in cuda.devices()? {
        if device.uuid()? == uuid {
            return Ok(device);
        }
    }
    let text = format!(
        "the peer's memory is on {uuid}, which is not visible to this process (CUDA_VISIBLE_DEVICES may hide it)"
    );
    Err(Error::new(ErrorKind::Unsupported, text))
}
