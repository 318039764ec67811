//! What other processes give to this one, opened by its kind.

use std::os::fd::{AsFd, OwnedFd};

use super::way::CudaWay;
use crate::{
    driver::cuda::{
        ContextGuard, Cuda, Device, DevicePtr, IpcMapping, PoolImport, Uuid, VirtualMemory,
    },
    error::{Error, ErrorKind, Result},
    transport::accelerator::ipc::{self, descriptor::Allocation},
    types::MemoryType,
};

/// An allocation of another process, open in the primary context of its device.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Where the allocation begins here.
    pub(super) start: DevicePtr,
    pub(super) memory_type: MemoryType,
    _memory: Memory,
}

/// Closed by its drop, which may block.
#[derive(Debug)]
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

/// Opens it. Takes about a millisecond, and more the first time; blocks.
pub(super) fn open(
    cuda: &'static Cuda,
    allocation: &Allocation<CudaWay>,
    fd: Option<OwnedFd>,
) -> Result<Opened> {
    let length = usize::try_from(allocation.length)
        .map_err(|_| Error::new(ErrorKind::Malformed, "more device memory than there can be"))?;
    let device = visible(cuda, Uuid(allocation.device))?;
    let context = device.primary_context()?;
    let guard = context.enter()?;
    let fd = fd.as_ref().map(AsFd::as_fd);
    let memory = match (&allocation.way, fd) {
        (CudaWay::Legacy(handle), _) => Memory::Legacy(guard.ipc_open(handle)?),
        (CudaWay::Fabric(handle), _) => {
            Memory::Virtual(guard.import_virtual_fabric(handle, length)?)
        }
        (CudaWay::PoolFabric(handle, pointer), _) => {
            Memory::Pool(guard.import_pool_fabric(handle)?.open(&guard, pointer)?)
        }
        (CudaWay::Fd(_), Some(fd)) => Memory::Virtual(guard.import_virtual(fd, length)?),
        (CudaWay::PoolFd(_, pointer), Some(fd)) => {
            Memory::Pool(guard.import_pool(fd)?.open(&guard, pointer)?)
        }
        (CudaWay::Fd(_) | CudaWay::PoolFd(..), None) => {
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
    let devices = cuda.devices()?;
    ipc::visible(devices, Device::uuid, &uuid, &uuid, "CUDA_VISIBLE_DEVICES")
}
