//! Memory of ours that the device knows.
//!
//! # Safety
//! The memory is mapped once, never moved, and unmapped after its registration has ended; where that fails it stays
//! for as long as the process. Only the owner says which part the device, and
//! which part this process, uses at a time.
#![allow(unsafe_code)]

use std::{ffi::c_void, num::NonZeroUsize, ptr::NonNull, slice};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::{
    driver::verbs::{Access, MemoryRegion, ProtectionDomain, Sge},
    error::{Error, ErrorKind, Result},
    sys::memfd::HUGE_PAGE,
};

/// Registered memory.
#[derive(Debug)]
pub(super) struct Memory {
    /// `None` only while it is being dropped.
    region: Option<MemoryRegion>,
    start: NonNull<u8>,
    length: usize,
    /// All that is mapped.
    mapping: (NonNull<c_void>, NonZeroUsize),
}

// SAFETY: plain memory; its owners agree on who uses which part.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps and registers `length` bytes, zeros. May take milliseconds.
    ///
    /// A mapping of its own: the allocator writes the zeros of aligned memory by hand, megabytes for a worker. Its pages are made when
    /// the device pins them: from 2 MiB on large ones where the kernel has them, which are made sooner, and fewer for the device to
    /// translate.
    /// Errors: `Exhausted`, with the remedy where it is the limit on locked memory.
    pub(super) fn new(domain: &ProtectionDomain, length: usize, access: Access) -> Result<Self> {
        let exhausted = || {
            Error::new(
                ErrorKind::Exhausted,
                format!("no memory for {length} bytes"),
            )
        };
        let length = length.max(1);
        let slack = if length < HUGE_PAGE { 0 } else { HUGE_PAGE };
        let size = NonZeroUsize::new(length.saturating_add(slack)).unwrap_or(NonZeroUsize::MIN);
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping takes nothing from anybody.
        let mapped = unsafe { mmap_anonymous(None, size, rights, MapFlags::MAP_PRIVATE) };
        let mapped = mapped.map_err(|_| exhausted())?;
        let at = mapped.addr().get();
        let skipped = match slack {
            0 => 0,
            _ => at.next_multiple_of(HUGE_PAGE) - at,
        };
        // SAFETY: less than the slack, which is mapped beyond the length.
        let start = unsafe { mapped.byte_add(skipped) };
        if slack > 0 {
            // Advice: a kernel without large pages refuses it, and small ones serve as well.
            // SAFETY: changes nothing of what the mapping holds.
            let _ = unsafe { madvise(start, length, MmapAdvise::MADV_HUGEPAGE) };
        }
        let mut this = Self {
            region: None,
            start: start.cast(),
            length,
            mapping: (mapped, size),
        };
        // SAFETY: nobody else has the memory; it is used through this type alone, whose callers know when the device has it.
        let region = unsafe { domain.register(start.as_ptr().expose_provenance(), length, access) };
        this.region = Some(region?);
        Ok(this)
    }

    /// A part, as the device is told of it. Within the memory: callers compute the numbers.
    #[inline]
    pub(super) fn piece(&self, offset: usize, length: usize) -> Sge {
        debug_assert!(offset + length <= self.length);
        Sge {
            addr: self.start.as_ptr().addr() as u64 + offset as u64,
            length: length as u32,
            lkey: self.region.as_ref().map_or(0, MemoryRegion::lkey),
        }
    }

    /// What is there.
    ///
    /// # Safety
    /// The device does not write it as long as the slice lives.
    #[inline]
    pub(super) unsafe fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        assert!(
            offset <= self.length && length <= self.length - offset,
            "beyond the buffer"
        );
        // SAFETY: within the mapping, which was zeroed; the caller vouches for the rest.
        unsafe { slice::from_raw_parts(self.start.as_ptr().add(offset), length) }
    }

    /// Puts something there.
    ///
    /// # Safety
    /// Neither the device nor anyone else uses that part meanwhile.
    #[inline]
    pub(super) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(
            offset <= self.length && bytes.len() <= self.length - offset,
            "beyond the buffer"
        );
        // SAFETY: within the mapping; the caller vouches for the rest.
        unsafe {
            self.start
                .as_ptr()
                .add(offset)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.region.take().is_none_or(|region| region.end().is_ok()) {
            // SAFETY: mapped with this length; the device knows it no longer. Where the kernel has no room to split a mapping, it stays.
            let _ = unsafe { munmap(self.mapping.0, self.mapping.1.get()) };
        }
    }
}
