#![allow(unsafe_code)]
//! Memory of other cards by their dma-bufs: the one call of the kernel's driver that libhl-thunk does not wrap (`HL_MEM_OP_REG_DMABUF_FD`), and the length of a dma-buf.
//!
//! Both are functions of the C library, `ioctl` and `lseek`. Where this library was preloaded, they come here first, and what is not of a card or of a dma-buf goes on to the
//! kernel; in any other process nobody finds these two, and the kernel refuses.
//!
//! # Safety
//! Callers give what the C library's functions take. Messages are read into locals.

use std::{
    ffi::{c_int, c_long, c_ulong, c_void},
    fs::File,
    io,
    os::fd::{FromRawFd, OwnedFd, RawFd},
};

use wharf_emulated_common::{backing::Backing, gaudi};

use crate::{
    abi::{Chip, Outcome},
    gate::{emulator, enter, set_errno},
    node::number,
    settings,
};

/// The request: memory of a card, of the DRM family.
const MEMORY: c_ulong = 0xC028_6444;
/// The operation.
const REG_DMABUF_FD: u32 = 99;

/// A dma-buf of another card, mapped. It is held until it is unmapped.
#[derive(Debug)]
pub(crate) struct Peer {
    memory: Backing,
    /// Where its bytes are in that memory: offset and length.
    runs: Vec<(u64, u64)>,
    _held: OwnedFd,
}

impl Peer {
    pub(crate) fn len(&self) -> u64 {
        self.runs.iter().map(|(_, len)| len).sum()
    }

    pub(crate) fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        for (offset, len) in self.pieces(at, bytes.len())? {
            self.memory.read(offset, &mut bytes[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        for (offset, len) in self.pieces(at, bytes.len())? {
            self.memory.write(offset, &bytes[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    fn pieces(&self, mut at: u64, mut len: usize) -> io::Result<Vec<(u64, usize)>> {
        let mut pieces = Vec::new();
        for (offset, run) in &self.runs {
            if at >= *run {
                at -= run;
                continue;
            }
            let piece = len.min((run - at) as usize);
            pieces.push((offset + at, piece));
            len -= piece;
            at = 0;
            if len == 0 {
                return Ok(pieces);
            }
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Maps a dma-buf for the card of `card`.
fn register(card: RawFd, dma_buf: RawFd, len: u64) -> Outcome<u64> {
    match settings::PEERS.get() {
        0 => return Err(libc::EINVAL),
        1 => {}
        _ => return Err(libc::EPERM),
    }
    let (_, session) = emulator().machine.compute(card)?;
    let mut tables = session.tables()?;
    let (size, mut runs, _, memory) = gaudi::look(dma_buf).map_err(number)?;
    if session.chip != Chip::Gaudi2 || len == 0 || len > size || runs.is_empty() {
        return Err(libc::EINVAL);
    }
    let mut left = len;
    for (_, run) in &mut runs {
        *run = (*run).min(left);
        left -= *run;
    }
    // SAFETY: numbers only.
    let held = unsafe { libc::fcntl(dma_buf, libc::F_DUPFD_CLOEXEC, 0) };
    if held < 0 {
        return Err(number(io::Error::last_os_error()));
    }
    let peer = Peer {
        memory: Backing::from_file(File::from(memory)).map_err(number)?,
        runs,
        // SAFETY: made above.
        _held: unsafe { OwnedFd::from_raw_fd(held) },
    };
    Ok(tables.memory.map_peer(peer))
}

#[unsafe(no_mangle)]
extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if request != MEMORY || argument.is_null() {
        // SAFETY: the caller's arguments, for the kernel.
        return unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) as c_int };
    }
    let arguments = argument.cast::<u64>();
    // SAFETY: 40 bytes, as the request says.
    let (dma_buf, len, op) = unsafe {
        (
            arguments.read(),
            arguments.add(1).read(),
            arguments.add(3).cast::<u32>().read(),
        )
    };
    let words = [dma_buf, len, u64::from(op), 0];
    let answer = enter("ioctl", Some(fd), words, |_| -> Outcome<i32> {
        if op != REG_DMABUF_FD {
            return Err(libc::EINVAL);
        }
        let address = register(fd, dma_buf as RawFd, len)?;
        // SAFETY: as above.
        unsafe { arguments.write(address) };
        Ok(0)
    });
    if answer < 0 {
        set_errno(-answer);
        return -1;
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn lseek(fd: c_int, offset: c_long, whence: c_int) -> c_long {
    // SAFETY: the caller's arguments, for the kernel.
    let answer = unsafe { libc::syscall(libc::SYS_lseek, fd, offset, whence) };
    if answer >= 0 || whence != libc::SEEK_END {
        return answer;
    }
    match gaudi::look(fd) {
        Ok((size, ..)) => size as c_long,
        Err(_) => -1,
    }
}
