//! Two pages of the monitor's own: one for the strict check, one that knows a child made by `fork`.
//!
//! # Safety
//! Both stay mapped as long as the value lives. The first is only read, after it was written once.
#![allow(unsafe_code)]

use std::{io, num::NonZeroUsize, ptr::NonNull};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

/// A page that a child finds empty, and one to make the strict check with.
#[derive(Debug)]
pub(super) struct Pages {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for Pages {}
// SAFETY: it is only read.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps them.
    ///
    /// # Errors
    /// `ENOMEM`; `EINVAL` for a kernel without `MADV_WIPEONFORK` (before Linux 4.14).
    pub(super) fn map(page: u64) -> io::Result<Self> {
        let size = usize::try_from(page)
            .ok()
            .and_then(|page| page.checked_mul(2))
            .and_then(NonZeroUsize::new)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping where the kernel likes.
        let base = unsafe { mmap_anonymous(None, size, access, MapFlags::MAP_PRIVATE) }?;
        let this = Self {
            base: base.cast(),
            size: size.get(),
        };
        // SAFETY: our mapping, writable, used by nobody yet.
        unsafe { this.base.write(1) };
        // SAFETY: the first page of our mapping; a child finds zeros there.
        unsafe { madvise(base, this.size / 2, MmapAdvise::MADV_WIPEONFORK) }?;
        Ok(this)
    }

    /// Whether this process is another than the one that mapped them, however it was made.
    #[inline]
    pub(super) fn in_child(&self) -> bool {
        // SAFETY: mapped and readable while `self` lives.
        unsafe { self.base.read_volatile() == 0 }
    }

    /// Where the page for the strict check is.
    pub(super) fn check(&self) -> u64 {
        (self.base.as_ptr() as usize + self.size / 2) as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our mapping, which nobody uses any more.
        let _ = unsafe { munmap(self.base.cast(), self.size) };
    }
}
