//! Memory of another process: by the runtime's handles, or by dma-bufs.
//!
//! A handle means a whole allocation from its first byte, and asks the exporting process, or the kernel, in ways that differ between releases; since
//! ROCm 7 making one pins the memory for ever. A dma-buf is a file descriptor: it can be passed over a socket, keeps the memory alive by itself, and **begins
//! at an offset before the memory** that was exported.
//!
//! # Safety
//! What was attached or mapped is undone once, by its drop; whoever copies to or from it ends that first.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    fmt,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
    ptr,
};

use super::{
    Agent, Hsa, IpcHandle, Status,
    memory::{pointer_to, raw},
};
use crate::error::{Error, ErrorKind, Result};

/// Another process's memory, attached by a handle. Detached on drop, which may block.
pub(crate) struct IpcMapping {
    hsa: &'static Hsa,
    address: u64,
    len: usize,
}

impl IpcMapping {
    /// Where it begins here, for agents; the host does not reach it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for IpcMapping {
    fn drop(&mut self) {
        self.hsa.on_drop("hsa_amd_ipc_memory_detach", |api| {
            // SAFETY: attached once, detached once.
            unsafe { (api.hsa_amd_ipc_memory_detach)(pointer_to(self.address)) }
        });
    }
}

impl fmt::Debug for IpcMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} attached bytes at {:#x}", self.len, self.address)
    }
}

/// A dma-buf of an allocation of this process.
pub(crate) struct DmaBuf {
    hsa: &'static Hsa,
    /// Taken by the drop and by [`DmaBuf::into_fd`].
    fd: Option<OwnedFd>,
    offset: u64,
}

impl DmaBuf {
    /// Where in the dma-buf the exported memory begins, in bytes.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The descriptor as one of the caller's own.
    /// Errors: `Exhausted`: no descriptor is left.
    pub(crate) fn into_fd(self) -> Result<OwnedFd> {
        self.as_fd()
            .try_clone_to_owned()
            .map_err(|error| Error::io("cannot duplicate a dma-buf", error))
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("there until the drop").as_fd()
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        if self.hsa.usable().is_err() {
            return;
        }
        let Some(close) = self.hsa.api.hsa_amd_portable_close_dmabuf else {
            return;
        };
        let fd = fd.into_raw_fd();
        // SAFETY: the runtime's own descriptor, closed once, here.
        let status = unsafe { close(fd) };
        if status != Status::SUCCESS {
            tracing::warn!(target: "wharf::rocm", "hsa_amd_portable_close_dmabuf: {status}");
        }
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dma-buf {:?} from {}", self.fd, self.offset)
    }
}

/// A dma-buf that agents reach here. Undone on drop, which may block.
pub(crate) struct DmaBufMapping {
    hsa: &'static Hsa,
    address: u64,
    len: usize,
}

impl DmaBufMapping {
    /// Where **the dma-buf** begins here; what was exported begins at its offset.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of the dma-buf.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for DmaBufMapping {
    fn drop(&mut self) {
        self.hsa.on_drop("hsa_amd_interop_unmap_buffer", |api| {
            api.hsa_amd_interop_unmap_buffer
                // SAFETY: mapped once, unmapped once.
                .map_or(Status::SUCCESS, |call| unsafe {
                    call(pointer_to(self.address))
                })
        });
    }
}

impl fmt::Debug for DmaBufMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dma-buf of {} bytes at {:#x}", self.len, self.address)
    }
}

impl Hsa {
    /// A handle by which other processes attach an allocation. Only for the exact begin and the full length that [`Hsa::inspect`] tells. May block,
    /// and may pin the memory until the process ends: once for each allocation, and not before somebody asks.
    /// Errors: `InvalidArgument`: no allocation begins there or it has another length; `Exhausted`.
    pub(crate) fn export_handle(&self, base: u64, len: usize) -> Result<IpcHandle> {
        self.usable()?;
        let mut handle = IpcHandle::default();
        // SAFETY: writes one handle.
        let status =
            unsafe { (self.api.hsa_amd_ipc_memory_create)(pointer_to(base), len, &raw mut handle) };
        status.check("hsa_amd_ipc_memory_create")?;
        Ok(handle)
    }

    /// Attaches another process's allocation of `len` bytes, for these agents, or for all if none is named. May block for seconds. Initialises the runtime.
    /// Errors: `InvalidArgument`: no such handle (any more), another length, or an agent that cannot; `Exhausted`.
    pub(crate) fn attach(
        &'static self,
        handle: &IpcHandle,
        len: usize,
        agents: &[Agent],
    ) -> Result<IpcMapping> {
        self.initialise()?;
        let agents = raw(agents);
        let mut address: *mut c_void = ptr::null_mut();
        // SAFETY: a list of so many agents, and room for one pointer.
        let status = unsafe {
            (self.api.hsa_amd_ipc_memory_attach)(
                ptr::from_ref(handle),
                len,
                agents.len() as u32,
                agents.as_ptr(),
                &raw mut address,
            )
        };
        status.check("hsa_amd_ipc_memory_attach")?;
        Ok(IpcMapping {
            hsa: self,
            address: address.expose_provenance() as u64,
            len,
        })
    }

    /// A dma-buf in which `len` bytes at an address of an allocation lie. May block.
    /// Errors: `Unsupported`: the library cannot; `InvalidArgument`: not all of it of one allocation, or not a device's; `Exhausted`.
    pub(crate) fn export_dma_buf(&'static self, address: u64, len: usize) -> Result<DmaBuf> {
        self.usable()?;
        let function = self.api.hsa_amd_portable_export_dmabuf;
        let call = self.optional(function, "hsa_amd_portable_export_dmabuf")?;
        let (mut fd, mut offset): (RawFd, u64) = (-1, 0);
        // SAFETY: writes a descriptor and a number.
        let status = unsafe { call(pointer_to(address), len, &raw mut fd, &raw mut offset) };
        status.check("hsa_amd_portable_export_dmabuf")?;
        if fd < 0 {
            return Err(Status::ERROR.error("hsa_amd_portable_export_dmabuf"));
        }
        Ok(DmaBuf {
            hsa: self,
            // SAFETY: the runtime made the descriptor for this caller.
            fd: Some(unsafe { OwnedFd::from_raw_fd(fd) }),
            offset,
        })
    }

    /// Lets these agents reach a dma-buf, which may be another process's. The descriptor is not needed afterwards. May block. Initialises the runtime.
    /// Errors: `InvalidArgument`: no agent; `Io`: the kernel does not take it; `Exhausted`; `Unsupported`.
    pub(crate) fn map_dma_buf(
        &'static self,
        fd: BorrowedFd<'_>,
        agents: &[Agent],
    ) -> Result<DmaBufMapping> {
        self.initialise()?;
        if agents.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a dma-buf is mapped for agents that are named",
            ));
        }
        let function = self.api.hsa_amd_interop_map_buffer;
        let call = self.optional(function, "hsa_amd_interop_map_buffer")?;
        self.optional(
            self.api.hsa_amd_interop_unmap_buffer,
            "hsa_amd_interop_unmap_buffer",
        )?;
        let mut agents = raw(agents);
        let mut len = 0;
        let mut address: *mut c_void = ptr::null_mut();
        // SAFETY: a list of so many agents, room for a number and a pointer; metadata are not asked for.
        let status = unsafe {
            call(
                agents.len() as u32,
                agents.as_mut_ptr(),
                fd.as_raw_fd(),
                0,
                &raw mut len,
                &raw mut address,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        status.check("hsa_amd_interop_map_buffer")?;
        Ok(DmaBufMapping {
            hsa: self,
            address: address.expose_provenance() as u64,
            len,
        })
    }
}
