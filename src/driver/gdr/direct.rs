//! The same without GDRCopy: from CUDA 13.3 on the driver's own dma-buf of device memory can be mapped by the host, where the device says so. The
//! attribute, the export and the mapping are what GDRCopy 2.6 uses where its kernel module is not loaded; no device of that kind was at hand.
//!
//! Nobody tells such a mapping that its memory is freed: its user compares the allocation's number before each access.
//!
//! # Safety
//! The mapping is made once, never moved, and unmapped once. It is read and written by raw copies alone: no reference is made into it, as the
//! device changes it at any time.
#![allow(unsafe_code)]

use std::{ffi::c_void, fmt, io, num::NonZeroUsize, ptr::NonNull};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::{
    driver::cuda::{Attribute, ContextGuard, Device, DevicePtr},
    error::{Error, ErrorKind, Result},
};

/// Device memory that the host reads and writes itself, mapped by the CUDA driver alone.
pub(crate) struct DirectWindow {
    mapped: NonNull<c_void>,
    whole: usize,
    start: DevicePtr,
    len: usize,
    /// Where in the mapping `start` lies.
    offset: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for DirectWindow {}
// SAFETY: as for Send; that two copies do not meet is the caller's to see to, as of any memory.
unsafe impl Sync for DirectWindow {}

impl DirectWindow {
    /// Whether memory of the device can be mapped so. The fence that this needs is known for x86-64 alone.
    /// Errors: what the driver reports.
    pub(crate) fn is_supported(device: &Device) -> Result<bool> {
        Ok(cfg!(target_arch = "x86_64")
            && device.has(Attribute::DmaBuf)?
            && device.has(Attribute::DmaBufMmap)?)
    }

    /// Maps `len` bytes of device memory at `start`, all of one allocation. Takes long: it exports a dma-buf, which is closed again.
    /// Errors: `Unsupported`: not this device, or not memory of this kind; `Exhausted`: no room in BAR1; what the driver reports.
    pub(crate) fn map(guard: &ContextGuard<'_>, start: DevicePtr, len: usize) -> Result<Self> {
        if !Self::is_supported(&guard.context().device())? {
            let text = "the device's dma-bufs cannot be mapped by the host";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let exported = guard.export_dma_buf(start, len, false)?;
        let bad = || Error::new(ErrorKind::Io, "a dma-buf shorter than what it was made for");
        let (Ok(whole), Ok(offset)) = (
            usize::try_from(exported.len),
            usize::try_from(exported.offset),
        ) else {
            return Err(bad());
        };
        if offset.checked_add(len).is_none_or(|end| end > whole) {
            return Err(bad());
        }
        let size = NonZeroUsize::new(whole).ok_or_else(bad)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: no fixed address: nothing that exists is touched.
        let mapped = unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, &exported.fd, 0) };
        let mapped =
            mapped.map_err(|error| Error::io("mapping a dma-buf", io::Error::from(error)))?;
        Ok(Self {
            mapped,
            whole,
            start,
            len,
            offset,
        })
    }

    /// The device's address of its first byte.
    pub(crate) fn start(&self) -> DevicePtr {
        self.start
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Stores host bytes into device memory; what the device is told afterwards comes behind them.
    /// Errors: `OutOfBounds`.
    ///
    /// # Safety
    /// The device memory is still allocated, and nobody else uses the range.
    pub(crate) unsafe fn write(&self, offset: usize, source: &[u8]) -> Result<()> {
        let target = self.at(offset, source.len())?;
        // SAFETY: within the mapping; the caller vouches for the rest.
        unsafe { target.copy_from_nonoverlapping(source.as_ptr(), source.len()) };
        fence();
        Ok(())
    }

    /// Loads device memory into host memory.
    /// Errors: as of [`DirectWindow::write`].
    ///
    /// # Safety
    /// As of [`DirectWindow::write`], and `target` is `len` bytes that may be written.
    pub(crate) unsafe fn read(&self, offset: usize, target: *mut u8, len: usize) -> Result<()> {
        let source = self.at(offset, len)?;
        // Loads of such memory may be made early: not before what said that there is something to load.
        fence();
        // SAFETY: within the mapping; the caller vouches for the rest.
        unsafe { target.copy_from_nonoverlapping(source, len) };
        Ok(())
    }

    fn at(&self, offset: usize, len: usize) -> Result<*mut u8> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::new(
                ErrorKind::OutOfBounds,
                format!("{len} bytes at {offset} of a window of {}", self.len),
            ));
        }
        Ok(self
            .mapped
            .as_ptr()
            .cast::<u8>()
            .wrapping_add(self.offset + offset))
    }
}

impl Drop for DirectWindow {
    fn drop(&mut self) {
        // SAFETY: mapped once, unmapped once.
        if let Err(error) = unsafe { munmap(self.mapped, self.whole) } {
            tracing::warn!(target: "wharf::cuda", "unmapping a dma-buf: {error}");
        }
    }
}

impl fmt::Debug for DirectWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "direct window of {} bytes onto {}", self.len, self.start)
    }
}

/// Empties the buffers in which stores are combined, and keeps later loads behind.
fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of SSE2, which every such processor has.
    unsafe {
        std::arch::x86_64::_mm_mfence();
    }
}
