//! A page of the monitor's own, to make the strict check with.
//!
//! # Safety
//! It stays mapped as long as the value lives, and nobody reads or writes it.
#![allow(unsafe_code)]

use std::{io, num::NonZeroUsize, ptr::NonNull};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// A page that is never touched, so that the check has nothing to do.
#[derive(Debug)]
pub(super) struct Page {
    base: NonNull<libc::c_void>,
    size: usize,
}

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for Page {}
// SAFETY: nobody reads or writes it.
unsafe impl Sync for Page {}

impl Page {
    /// Maps one of `size` bytes.
    /// Errors: `ENOMEM`.
    pub(super) fn map(size: u64) -> io::Result<Self> {
        let size = usize::try_from(size)
            .ok()
            .and_then(NonZeroUsize::new)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping where the kernel likes.
        let base = unsafe { mmap_anonymous(None, size, access, MapFlags::MAP_PRIVATE) }?;
        Ok(Self {
            base,
            size: size.get(),
        })
    }

    /// Where it is.
    pub(super) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: our mapping, which nobody uses any more.
        let _ = unsafe { munmap(self.base, self.size) };
    }
}
