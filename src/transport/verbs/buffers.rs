//! Memory of ours that the device knows.
//!
//! # Safety
//! The memory is allocated once, never moved, and freed after its registration has ended; where that fails it stays
//! for as long as the process. Only the owner says which part the device, and
//! which part this process, uses at a time.
#![allow(unsafe_code)]

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr::NonNull,
    slice,
};

use crate::{
    driver::verbs::{Access, MemoryRegion, ProtectionDomain, Sge},
    error::{Error, ErrorKind, Result},
};

const PAGE: usize = 4096;

/// Registered memory.
#[derive(Debug)]
pub(super) struct Memory {
    /// `None` only while it is being dropped.
    region: Option<MemoryRegion>,
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory; its owners agree on who uses which part.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates and registers `length` bytes. May take milliseconds.
    ///
    /// # Errors
    /// `Exhausted`, with the remedy where it is the limit on locked memory.
    pub(super) fn new(domain: &ProtectionDomain, length: usize, access: Access) -> Result<Self> {
        let exhausted = || {
            Error::new(
                ErrorKind::Exhausted,
                format!("no memory for {length} bytes"),
            )
        };
        let layout = Layout::from_size_align(length.max(1), PAGE).map_err(|_| exhausted())?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(exhausted)?;
        let mut this = Self {
            region: None,
            start,
            layout,
        };
        // SAFETY: nobody else has the memory; it is used through this type alone, whose callers know when the device has it.
        let region =
            unsafe { domain.register(start.as_ptr().expose_provenance(), layout.size(), access) };
        this.region = Some(region?);
        Ok(this)
    }

    /// A part, as the device is told of it. Within the memory: callers compute the numbers.
    #[inline]
    pub(super) fn piece(&self, offset: usize, length: usize) -> Sge {
        debug_assert!(offset + length <= self.layout.size());
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
            offset <= self.layout.size() && length <= self.layout.size() - offset,
            "beyond the buffer"
        );
        // SAFETY: within the allocation, which was zeroed; the caller vouches for the rest.
        unsafe { slice::from_raw_parts(self.start.as_ptr().add(offset), length) }
    }

    /// Puts something there.
    ///
    /// # Safety
    /// Neither the device nor anyone else uses that part meanwhile.
    #[inline]
    pub(super) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(
            offset <= self.layout.size() && bytes.len() <= self.layout.size() - offset,
            "beyond the buffer"
        );
        // SAFETY: within the allocation; the caller vouches for the rest.
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
            // SAFETY: allocated with this layout; the device knows it no longer.
            unsafe { dealloc(self.start.as_ptr(), self.layout) };
        }
    }
}
