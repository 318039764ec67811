//! Device memory of another process, three ways.
//!
//! | way | memory | what crosses | limits |
//! |---|---|---|---|
//! | legacy handles | of [`ContextGuard::allocate`] | 64 bytes | not to the process itself; one context for each device of the importer |
//! | virtual memory | of the virtual memory calls | a file descriptor | |
//! | pools | of a memory pool | a file descriptor, then 64 bytes for each allocation | only pools made to be shared |
//!
//! Opening takes about a millisecond, the driver does one at a time: off the runtime, and kept. A legacy handle stands for the whole
//! allocation that the address lies in, and small allocations share one block of 2 MiB: who is given a handle can reach all of the block.
//!
//! # Safety
//! What is mapped is unmapped once, by drop. Another process may write the memory at any time and may end: then its memory stays mapped
//! here, but with legacy handles an exporter that frees first leaves the importer's accesses undefined, as the driver's manual says. Bytes
//! of handles from peers are judged by the driver alone.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    fmt,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

use super::{
    ContextGuard, CudaContext, Device, DevicePtr, FabricHandle, IpcHandle, RawPool,
    memory::{describe, null},
    sys::{self, AccessDescription, Location, RawMemory},
};
use crate::error::Result;

/// Another process's allocation, opened by its legacy handle. Closed on drop, which may block.
pub(crate) struct IpcMapping {
    context: CudaContext,
    start: DevicePtr,
}

impl IpcMapping {
    /// Where the allocation begins here: its beginning, not the address that was exported.
    pub(crate) fn ptr(&self) -> DevicePtr {
        self.start
    }
}

impl ContextGuard<'_> {
    /// The legacy handle of the allocation that an address lies in, and how far in the address lies. About 2 µs.
    /// Errors: `Unsupported`, `InvalidArgument`: memory of another kind, or of nobody.
    pub(crate) fn ipc_export(&self, at: DevicePtr) -> Result<(IpcHandle, u64)> {
        let (base, _) = self.address_range(at)?;
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: writes 64 bytes.
        let status = unsafe { (self.cuda().api.cuIpcGetMemHandle)(&raw mut handle, base) };
        status
            .check("cuIpcGetMemHandle")
            .map_err(|error| describe(error, format_args!("{at}")))?;
        Ok((handle, at - base))
    }

    /// Opens another process's handle: in one context for each of its devices. A second open gives the same address and counts. May block.
    /// Errors: `InvalidArgument`: not a handle, this process's own, or opened in another context; `Unsupported`: the devices do not reach each other.
    pub(crate) fn ipc_open(&self, handle: &IpcHandle) -> Result<IpcMapping> {
        let mut start = DevicePtr::default();
        // SAFETY: writes one address; the handle goes by value.
        let status = unsafe {
            (self.cuda().api.cuIpcOpenMemHandle_v2)(
                &raw mut start,
                *handle,
                sys::IPC_LAZY_PEER_ACCESS,
            )
        };
        status.check("cuIpcOpenMemHandle_v2")?;
        Ok(IpcMapping {
            context: self.context().clone(),
            start,
        })
    }
}

impl Drop for IpcMapping {
    fn drop(&mut self) {
        let start = self.start;
        self.context
            .on_drop("closing another process's memory", |guard| {
                // SAFETY: an address of `cuIpcOpenMemHandle_v2`, closed once for each open.
                let status = unsafe { (guard.cuda().api.cuIpcCloseMemHandle)(start) };
                status.check("cuIpcCloseMemHandle")
            });
    }
}

impl fmt::Debug for IpcMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "another process's memory at {} of {:?}",
            self.start, self.context
        )
    }
}

/// Memory by the virtual memory calls, another process's or made here, mapped for reading and writing by its context's device. On drop unmapped and,
/// when no other process has it, freed; that may block.
pub(crate) struct VirtualMemory {
    context: CudaContext,
    /// Set as the steps are done, so that a drop undoes those alone.
    memory: Option<RawMemory>,
    reserved: Option<DevicePtr>,
    mapped: bool,
    len: usize,
}

impl ContextGuard<'_> {
    /// Maps memory that another process gave as a file descriptor. `len` is its whole length, as the exporter has it. May block.
    /// Errors: `InvalidArgument`: not such a descriptor, or another length; `Unsupported`.
    pub(crate) fn import_virtual(&self, fd: BorrowedFd<'_>, len: usize) -> Result<VirtualMemory> {
        self.import_as(fd_as_pointer(fd), sys::HANDLE_POSIX_FD, len)
    }

    /// The same by a fabric handle.
    /// Errors: `InvalidArgument`: not such a handle, or another length; `Unsupported`; `PermissionDenied`: another domain of the fabric.
    pub(crate) fn import_virtual_fabric(
        &self,
        handle: &FabricHandle,
        len: usize,
    ) -> Result<VirtualMemory> {
        let handle = (&raw const *handle).cast_mut().cast();
        self.import_as(handle, sys::HANDLE_FABRIC, len)
    }

    /// `handle` is what the driver takes for this type: a descriptor's number, or the address of a [`FabricHandle`] that lives.
    fn import_as(&self, handle: *mut c_void, kind: u32, len: usize) -> Result<VirtualMemory> {
        let cuda = self.cuda();
        let import = cuda.optional(
            cuda.api.cuMemImportFromShareableHandle,
            "cuMemImportFromShareableHandle",
        )?;
        let mut memory = 0;
        // SAFETY: writes one handle; a descriptor's number is never followed, of a fabric handle 64 bytes are read.
        let status = unsafe { import(&raw mut memory, handle, kind) };
        status.check("cuMemImportFromShareableHandle")?;
        self.map(memory, len)
    }

    /// Reserves addresses for physical memory, maps it and lets the device access it. Takes over the handle.
    pub(super) fn map(&self, memory: RawMemory, len: usize) -> Result<VirtualMemory> {
        let cuda = self.cuda();
        let mut this = VirtualMemory {
            context: self.context().clone(),
            memory: Some(memory),
            reserved: None,
            mapped: false,
            len,
        };
        let reserve = cuda.optional(cuda.api.cuMemAddressReserve, "cuMemAddressReserve")?;
        let map = cuda.optional(cuda.api.cuMemMap, "cuMemMap")?;
        let set_access = cuda.optional(cuda.api.cuMemSetAccess, "cuMemSetAccess")?;
        let mut start = DevicePtr::default();
        // SAFETY: writes one address.
        let status = unsafe { reserve(&raw mut start, len, 0, DevicePtr::default(), 0) };
        status.check("cuMemAddressReserve")?;
        this.reserved = Some(start);
        // SAFETY: addresses reserved just now, all of them.
        let status = unsafe { map(start, len, 0, memory, 0) };
        status.check("cuMemMap")?;
        this.mapped = true;
        let access = read_write(&self.context().device());
        // SAFETY: reads one description.
        let status = unsafe { set_access(start, len, &raw const access, 1) };
        status.check("cuMemSetAccess")?;
        Ok(this)
    }
}

impl VirtualMemory {
    /// Where it begins.
    pub(crate) fn ptr(&self) -> DevicePtr {
        self.reserved.unwrap_or_default()
    }

    /// Lets another device read and write it.
    /// Errors: `InvalidArgument`, `Unsupported`: no path between the devices.
    pub(crate) fn let_access(&self, device: &Device) -> Result<()> {
        let cuda = self.context.cuda();
        cuda.usable()?;
        let call = cuda.optional(cuda.api.cuMemSetAccess, "cuMemSetAccess")?;
        let access = read_write(device);
        // SAFETY: reads one description; addresses that are mapped.
        let status = unsafe { call(self.ptr(), self.len, &raw const access, 1) };
        status.check("cuMemSetAccess")
    }
}

impl Drop for VirtualMemory {
    fn drop(&mut self) {
        let (memory, reserved, mapped, len) = (self.memory, self.reserved, self.mapped, self.len);
        self.context.on_drop("freeing virtual memory", |guard| {
            let api = &guard.cuda().api;
            if let (Some(start), true, Some(unmap)) = (reserved, mapped, api.cuMemUnmap) {
                // SAFETY: mapped once, unmapped once, whole.
                let status = unsafe { unmap(start, len) };
                status.check("cuMemUnmap")?;
            }
            if let (Some(start), Some(free)) = (reserved, api.cuMemAddressFree) {
                // SAFETY: reserved once, freed once, whole, and nothing is mapped there.
                let status = unsafe { free(start, len) };
                status.check("cuMemAddressFree")?;
            }
            if let (Some(memory), Some(release)) = (memory, api.cuMemRelease) {
                // SAFETY: imported or made once, released once.
                let status = unsafe { release(memory) };
                status.check("cuMemRelease")?;
            }
            Ok(())
        });
    }
}

impl fmt::Debug for VirtualMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes of virtual memory at {} of {:?}",
            self.len,
            self.ptr(),
            self.context
        )
    }
}

/// A pool of another process. Let go on drop; allocations keep it.
pub(crate) struct MemoryPool {
    pub(super) context: CudaContext,
    pub(super) raw: RawPool,
}

impl ContextGuard<'_> {
    /// Opens another process's pool and lets this context's device access it. May block.
    /// Errors: `InvalidArgument`: not such a descriptor; `Unsupported`.
    pub(crate) fn import_pool(&self, fd: BorrowedFd<'_>) -> Result<MemoryPool> {
        self.import_pool_as(fd_as_pointer(fd), sys::HANDLE_POSIX_FD)
    }

    /// The same by a fabric handle.
    /// Errors: `InvalidArgument`: not such a handle; `Unsupported`; `PermissionDenied`: another domain of the fabric.
    pub(crate) fn import_pool_fabric(&self, handle: &FabricHandle) -> Result<MemoryPool> {
        let handle = (&raw const *handle).cast_mut().cast();
        self.import_pool_as(handle, sys::HANDLE_FABRIC)
    }

    /// As [`Self::import_as`].
    fn import_pool_as(&self, handle: *mut c_void, kind: u32) -> Result<MemoryPool> {
        let cuda = self.cuda();
        let import = cuda.optional(
            cuda.api.cuMemPoolImportFromShareableHandle,
            "cuMemPoolImportFromShareableHandle",
        )?;
        let set_access = cuda.optional(cuda.api.cuMemPoolSetAccess, "cuMemPoolSetAccess")?;
        let mut raw = RawPool::NULL;
        // SAFETY: writes one handle; a descriptor's number is never followed, of a fabric handle 64 bytes are read.
        let status = unsafe { import(&raw mut raw, handle, kind, 0) };
        status.check("cuMemPoolImportFromShareableHandle")?;
        // From here on a drop destroys it.
        let pool = MemoryPool {
            context: self.context().clone(),
            raw,
        };
        let access = read_write(&self.context().device());
        // SAFETY: reads one description.
        let status = unsafe { set_access(raw, &raw const access, 1) };
        status.check("cuMemPoolSetAccess")?;
        Ok(pool)
    }
}

impl Drop for MemoryPool {
    fn drop(&mut self) {
        let raw = self.raw;
        self.context.on_drop("destroying a memory pool", |guard| {
            let cuda = guard.cuda();
            let call = cuda.optional(cuda.api.cuMemPoolDestroy, "cuMemPoolDestroy")?;
            // SAFETY: imported once, destroyed once.
            let status = unsafe { call(raw) };
            status.check("cuMemPoolDestroy")
        });
    }
}

impl fmt::Debug for MemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory pool {:#x} of {:?}", self.raw.0, self.context)
    }
}

/// What lets a device read and write.
pub(super) fn read_write(device: &Device) -> AccessDescription {
    AccessDescription {
        location: Location::device(device.raw),
        flags: sys::ACCESS_READ_WRITE,
    }
}

/// How the driver takes a descriptor: as the value of a pointer.
fn fd_as_pointer(fd: BorrowedFd<'_>) -> *mut c_void {
    ptr::without_provenance_mut(fd.as_raw_fd() as usize)
}

pub(super) fn owned_fd(fd: RawFd, call: &str) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(null(call));
    }
    // SAFETY: a new descriptor that the driver gave to the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
