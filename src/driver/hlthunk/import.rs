//! Memory of another card in reach of a card's engines, by its dma-buf, where the driver can.
//!
//! No function of the library does it: it is a call of the kernel's driver, `HL_MEM_OP_REG_DMABUF_FD`, which the out-of-tree driver's header of 2024 and 2025
//! (`habanalabs_accel.h`) marks as experimental. Mainline (Linux 6.12) answers `EINVAL`, which is how one learns.
//!
//! # Safety
//! The struct lives through the call, and is as long as the request's number says. What is unmapped is what was mapped, once. That no copy is under way then is the promise of
//! who submitted it (`submit`).
#![allow(unsafe_code)]

use std::{
    fmt, io,
    mem::offset_of,
    os::fd::{AsRawFd as _, BorrowedFd},
    sync::Arc,
};

use super::{Card, Chip, status::Errno};
use crate::error::{Error, ErrorKind, Result};

/// `union hl_mem_args` as this operation has it. The answer, an address, comes back in the first word.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct MemArgs {
    fd: u64,
    length: u64,
    unused: u64,
    op: u32,
    flags: u32,
    context: u32,
    elements: u32,
}

const _: () = {
    assert!(size_of::<MemArgs>() == 40 && MEMORY as u32 == 0xC028_6444);
    assert!(offset_of!(MemArgs, length) == 8 && offset_of!(MemArgs, op) == 24);
};

/// `DRM_IOCTL_HL_MEMORY`: to and from the kernel, with 40 bytes.
const MEMORY: libc::Ioctl = libc::_IOWR::<MemArgs>(b'd' as u32, 0x44);
/// `HL_MEM_OP_REG_DMABUF_FD`.
const REG_DMABUF_FD: u32 = 99;
/// As the call is named in errors.
const CALL: &str = "HL_MEM_OP_REG_DMABUF_FD";

/// Memory of another card that the engines of this one reach. Dropping it ends that, which may block.
pub(crate) struct PeerMemory {
    card: Arc<Card>,
    address: u64,
    len: u64,
}

impl Card {
    /// Has the card's engines reach the first `len` bytes of a dma-buf of another card's. It keeps that card from being given back. May block.
    /// Errors: `Unsupported`: the driver cannot, or there is no way between the cards on PCI; `DeviceLost`, `Closed`, `Forked`; and what the kernel said.
    pub(crate) fn import(
        self: &Arc<Self>,
        dma_buf: BorrowedFd<'_>,
        len: u64,
    ) -> Result<PeerMemory> {
        let cannot = |why: &str| {
            let text = format!("{self} reaches no memory of other cards: {why}");
            Error::new(ErrorKind::Unsupported, text)
        };
        if self.chip() != Chip::Gaudi2 {
            return Err(cannot("only Gaudi 2 maps it"));
        }
        let mut args = MemArgs {
            fd: dma_buf.as_raw_fd() as u64,
            length: len,
            op: REG_DMABUF_FD,
            ..MemArgs::default()
        };
        let errno = self.with_live_fd(|fd| {
            // SAFETY: see the head of the file.
            match unsafe { libc::ioctl(fd, MEMORY, &raw mut args) } {
                0 => 0,
                _ => io::Error::last_os_error()
                    .raw_os_error()
                    .unwrap_or(libc::EIO),
            }
        })?;
        match errno {
            0 if args.fd != 0 => Ok(PeerMemory {
                card: Arc::clone(self),
                address: args.fd,
                len,
            }),
            0 => Err(Error::new(
                ErrorKind::Io,
                format!("{self}: {CALL}: no address"),
            )),
            libc::EINVAL | libc::ENOTTY | libc::EOPNOTSUPP | libc::ENOSYS => Err(cannot(&format!(
                "its driver does not have {CALL}, which the out-of-tree driver alone has ({})",
                Errno(errno)
            ))
            .with_source(Errno(errno))),
            libc::EPERM => Err(cannot(&format!(
                "there is no way for PCI transfers between the cards ({CALL}: {})",
                Errno(errno)
            ))
            .with_source(Errno(errno))),
            errno => Err(self.failed(Errno(errno), CALL)),
        }
    }
}

impl PeerMemory {
    /// The engines' address of `len` bytes from `offset` on, if it has them.
    pub(crate) fn at(&self, offset: u64, len: u64) -> Option<u64> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        fits.then(|| self.address.checked_add(offset)).flatten()
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        if self.card.is_closed() {
            return;
        }
        let call = self.card.library().api.hlthunk_memory_unmap;
        // SAFETY: mapped once, unmapped once.
        let result = self.card.with_fd(|fd| unsafe { call(fd, self.address) });
        let done = result.and_then(|result| self.card.checked(result, "hlthunk_memory_unmap"));
        if let Err(error) = done {
            super::memory::told(
                "another card's memory stays in reach until the card is closed",
                &error,
            );
        }
    }
}

impl fmt::Debug for PeerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes of another card at {:#x} of {}",
            self.len, self.address, self.card
        )
    }
}
