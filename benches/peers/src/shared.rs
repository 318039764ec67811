//! Memory that both halves map, for the floors.
//!
//! # Safety
//!
//! The mapping lives as long as the [`Shared`] and is never resized; words are handed out as atomics, bulk memory only as raw pointers.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::Outcome;
use crate::half::Half;

const NAME: &CStr = c"wharf-peers";
/// Two lines, because of the prefetcher of adjacent lines.
const STRIDE: usize = 128;

pub(crate) struct Shared {
    base: NonNull<u8>,
    len: usize,
}

impl Shared {
    /// The same `len` zeroed bytes in both halves, all pages touched. Both call it.
    pub(crate) fn new(half: &mut Half, len: usize) -> Outcome<Self> {
        let fd: OwnedFd = if half.is_a() {
            let fd = memfd_create(NAME, MFdFlags::MFD_CLOEXEC)?;
            nix::unistd::ftruncate(&fd, i64::try_from(len)?)?;
            half.link.send_fd(&fd)?;
            fd
        } else {
            half.link.receive_fd()?
        };
        let size = NonZeroUsize::new(len).ok_or("nothing to share")?;
        // SAFETY: a new mapping at an address that the kernel chooses; the memfd is `len` bytes long.
        let base = unsafe {
            mmap(
                None,
                size,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE,
                &fd,
                0,
            )
        }?;
        Ok(Self {
            base: base.cast(),
            len,
        })
    }

    /// The word at the start of the `index`th pair of cache lines.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        self.word_at(index * STRIDE)
    }

    /// The word at a byte offset.
    pub(crate) fn word_at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.len && offset.is_multiple_of(8));
        // SAFETY: inside the mapping and aligned (checked above); both processes touch it by atomics alone.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// `len` bytes at `offset`, for copies.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= self.len);
        // SAFETY: inside the mapping (checked above).
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, which nothing borrows any more.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}
