//! Device memory that the program allocated by itself, given to other processes by its address; and memory of their pools.
//!
//! # Safety
//! A reference taken to physical memory is given back by the same call that took it. Addresses and pools are only looked up by the driver,
//! which refuses what it does not know; the program keeps the memory allocated while it is exported. An imported allocation is freed once,
//! by its drop, before the pool that it is of.
#![allow(unsafe_code)]

use std::{
    fmt,
    os::fd::{OwnedFd, RawFd},
    ptr,
};

use super::{
    ContextGuard, Cuda, Device, DevicePtr, FabricHandle, MemoryPool, PoolPointer, RawPool, Status,
    ipc::{owned_fd, read_write},
    sys::{self, RawMemory, pointer},
};
use crate::error::Result;

impl Cuda {
    /// The piece of physical memory that an address made by the virtual memory calls lies in: where it begins, and its bytes. `None`: the
    /// driver does not say (before CUDA 12.1), or it is no such address.
    /// Errors: `Forked`, and what the driver reports.
    pub(crate) fn mapping(&self, at: DevicePtr) -> Result<Option<(DevicePtr, u64)>> {
        let base = self.number(pointer::MAPPING_BASE, at)?;
        let size = self.number(pointer::MAPPING_SIZE, at)?;
        Ok(base
            .zip(size)
            .filter(|(base, size)| *base != 0 && *size != 0)
            .map(|(base, size)| (DevicePtr(base), size)))
    }

    /// An attribute that is 8 bytes wide.
    fn number(&self, attribute: u32, at: DevicePtr) -> Result<Option<u64>> {
        self.usable()?;
        let mut value = 0_u64;
        // SAFETY: the callers' attributes are 8 bytes wide.
        let status =
            unsafe { (self.api.cuPointerGetAttribute)((&raw mut value).cast(), attribute, at) };
        match status {
            Status::INVALID_VALUE | Status::NOT_INITIALIZED => Ok(None),
            status => status.check("cuPointerGetAttribute").map(|()| Some(value)),
        }
    }

    /// A descriptor of the physical memory at an address made by the virtual memory calls. It keeps the memory, however long it is open.
    /// `still` is asked when the memory is held and cannot be freed any more; an error of it ends the export.
    /// Errors: `InvalidArgument`: no such memory, or made without leave to share it so; `Exhausted`: no descriptor left; `Unsupported`.
    pub(crate) fn export_virtual_fd(
        &self,
        at: DevicePtr,
        still: impl FnOnce() -> Result<()>,
    ) -> Result<OwnedFd> {
        let mut fd: RawFd = -1;
        // SAFETY: with this handle type the driver writes one `int`.
        unsafe { self.export_virtual(at, (&raw mut fd).cast(), sys::HANDLE_POSIX_FD, still) }?;
        owned_fd(fd, "cuMemExportToShareableHandle")
    }

    /// The fabric handle of the physical memory at an address made by the virtual memory calls.
    /// Errors: as [`Cuda::export_virtual_fd`].
    pub(crate) fn export_virtual_fabric(&self, at: DevicePtr) -> Result<FabricHandle> {
        let mut handle = FabricHandle([0; 64]);
        // SAFETY: with this handle type the driver writes 64 bytes.
        unsafe {
            self.export_virtual(at, (&raw mut handle).cast(), sys::HANDLE_FABRIC, || Ok(()))
        }?;
        Ok(handle)
    }

    /// # Safety
    /// `to` has room for what a handle of this type takes.
    unsafe fn export_virtual(
        &self,
        at: DevicePtr,
        to: *mut std::ffi::c_void,
        kind: u32,
        still: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.usable()?;
        let api = &self.api;
        let export = self.optional(
            api.cuMemExportToShareableHandle,
            "cuMemExportToShareableHandle",
        )?;
        let held = Held::new(self, at)?;
        still()?;
        // SAFETY: a handle that is held, and room by the caller's word.
        let status = unsafe { export(to, held.memory, kind, 0) };
        status.check("cuMemExportToShareableHandle")
    }

    /// A descriptor of a pool.
    /// Errors: `InvalidArgument`: not a pool, or made without leave to share it so; `Exhausted`: no descriptor left; `Unsupported`.
    pub(crate) fn export_pool_fd(&self, pool: RawPool) -> Result<OwnedFd> {
        let mut fd: RawFd = -1;
        // SAFETY: with this handle type the driver writes one `int`.
        unsafe { self.export_pool(pool, (&raw mut fd).cast(), sys::HANDLE_POSIX_FD) }?;
        owned_fd(fd, "cuMemPoolExportToShareableHandle")
    }

    /// The fabric handle of a pool.
    /// Errors: as [`Cuda::export_pool_fd`].
    pub(crate) fn export_pool_fabric(&self, pool: RawPool) -> Result<FabricHandle> {
        let mut handle = FabricHandle([0; 64]);
        // SAFETY: with this handle type the driver writes 64 bytes.
        unsafe { self.export_pool(pool, (&raw mut handle).cast(), sys::HANDLE_FABRIC) }?;
        Ok(handle)
    }

    /// # Safety
    /// `to` has room for what a handle of this type takes.
    unsafe fn export_pool(
        &self,
        pool: RawPool,
        to: *mut std::ffi::c_void,
        kind: u32,
    ) -> Result<()> {
        self.usable()?;
        let export = self.optional(
            self.api.cuMemPoolExportToShareableHandle,
            "cuMemPoolExportToShareableHandle",
        )?;
        // SAFETY: room by the caller's word; the pool of an allocation that lives.
        let status = unsafe { export(to, pool, kind, 0) };
        status.check("cuMemPoolExportToShareableHandle")
    }

    /// What another process that has the pool needs to find an allocation of it, by where it begins.
    /// Errors: `InvalidArgument`: not of a pool that is shared; `Unsupported`.
    pub(crate) fn export_pool_pointer(&self, start: DevicePtr) -> Result<PoolPointer> {
        self.usable()?;
        let call = self.optional(self.api.cuMemPoolExportPointer, "cuMemPoolExportPointer")?;
        let mut pointer = PoolPointer([0; 64]);
        // SAFETY: writes 64 bytes; the address is only looked up.
        let status = unsafe { call(&raw mut pointer, start) };
        status.check("cuMemPoolExportPointer")?;
        Ok(pointer)
    }
}

/// A reference to physical memory.
struct Held<'a> {
    cuda: &'a Cuda,
    memory: RawMemory,
}

impl<'a> Held<'a> {
    fn new(cuda: &'a Cuda, at: DevicePtr) -> Result<Self> {
        let retain = cuda.optional(
            cuda.api.cuMemRetainAllocationHandle,
            "cuMemRetainAllocationHandle",
        )?;
        let mut memory = 0;
        // SAFETY: writes one handle; the address is only looked up.
        let status = unsafe { retain(&raw mut memory, ptr::without_provenance_mut(at.0 as usize)) };
        status.check("cuMemRetainAllocationHandle")?;
        Ok(Self { cuda, memory })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let Some(release) = self.cuda.api.cuMemRelease else {
            return;
        };
        // SAFETY: gives back the reference that `new` took.
        let status = unsafe { release(self.memory) };
        if let Err(error) = status.check("cuMemRelease") {
            tracing::debug!(target: "wharf::cuda", "{error}");
        }
    }
}

/// An allocation of another process's pool, with the pool. Let go on drop, which may block.
pub(crate) struct PoolImport {
    pool: MemoryPool,
    start: DevicePtr,
}

impl MemoryPool {
    /// Maps an allocation that the pool's owner exported. It is to be dropped before the owner frees it. May block.
    /// Errors: `InvalidArgument`: not an allocation of this pool.
    pub(crate) fn open(
        self,
        guard: &ContextGuard<'_>,
        pointer: &PoolPointer,
    ) -> Result<PoolImport> {
        guard.check(&self.context)?;
        let cuda = guard.cuda();
        let call = cuda.optional(cuda.api.cuMemPoolImportPointer, "cuMemPoolImportPointer")?;
        let mut start = DevicePtr::default();
        let mut pointer = *pointer;
        // SAFETY: writes one address; reads 64 bytes, which the driver judges.
        let status = unsafe { call(&raw mut start, self.raw, &raw mut pointer) };
        status.check("cuMemPoolImportPointer")?;
        Ok(PoolImport { pool: self, start })
    }
}

impl PoolImport {
    /// Where it begins here.
    pub(crate) fn ptr(&self) -> DevicePtr {
        self.start
    }

    /// Lets another device read and write it, as all of its pool.
    /// Errors: `InvalidArgument`, `Unsupported`: no path between the devices.
    pub(crate) fn let_access(&self, device: &Device) -> Result<()> {
        let cuda = self.pool.context.cuda();
        cuda.usable()?;
        let call = cuda.optional(cuda.api.cuMemPoolSetAccess, "cuMemPoolSetAccess")?;
        let access = read_write(device);
        // SAFETY: reads one description; a pool that lives.
        let status = unsafe { call(self.pool.raw, &raw const access, 1) };
        status.check("cuMemPoolSetAccess")
    }
}

impl Drop for PoolImport {
    fn drop(&mut self) {
        let start = self.start;
        // Not in the order of a stream: the owner may free it right after.
        self.pool
            .context
            .on_drop("letting memory of another process's pool go", |guard| {
                // SAFETY: imported once, freed once, which the driver's manual allows by this call.
                let status = unsafe { (guard.cuda().api.cuMemFree_v2)(start) };
                status.check("cuMemFree_v2")
            });
    }
}

impl fmt::Debug for PoolImport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "imported memory at {} of {:?}", self.start, self.pool)
    }
}
