//! Memory of a memfd as a dma-buf, which other devices' drivers take (`/dev/udmabuf`).
//!
//! # Safety
//! The call is given a live struct of the kernel's size; what it returns is a new descriptor, nobody else's.
#![allow(unsafe_code)]

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// Where the kernel has it.
pub(crate) const DEVICE: &str = "/dev/udmabuf";

/// `struct udmabuf_create`.
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE`.
const CREATE: libc::Ioctl = libc::_IOW::<Create>(b'u' as u32, 0x42);
/// `UDMABUF_FLAGS_CLOEXEC`.
const CLOEXEC: u32 = 1;

const _: () = assert!(CREATE == 0x4018_7542);

/// `size` bytes from `offset` on, both multiples of a page, of a memfd that is sealed against shrinking, as a dma-buf: the same pages.
/// Errors: `NotFound`, `PermissionDenied`: the device is not there, or not this user's; `InvalidInput`: the range is not in the memfd or not of pages, it is not sealed so, or sealed
/// against writing, or it is longer than the kernel allows (64 MiB by default).
pub(crate) fn create(memfd: BorrowedFd<'_>, offset: u64, size: u64) -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open(DEVICE)?;
    let create = Create {
        memfd: memfd.as_raw_fd() as u32,
        flags: CLOEXEC,
        offset,
        size,
    };
    // SAFETY: a live struct of the size that the number says, which is read.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), CREATE, &raw const create) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new, and given to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}
