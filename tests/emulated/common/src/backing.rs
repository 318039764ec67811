#![allow(unsafe_code)]
//! Device memory: addresses that fault when the host touches them, and the bytes behind them in a memory file.
//!
//! ```text
//! device address ──► Reservation   PROT_NONE: a load is SIGSEGV, write(2) and process_vm_readv are EFAULT
//! bytes          ──► Backing       memfd: read and written with pread and pwrite, passed to other processes
//! ```
//! Host memory is read and written by the kernel too (`pwrite` from it, `pread` into it), so that a buffer that has gone
//! is an error and not the end of the process.
//!
//! # Safety
//! The only pointers made here go to the kernel, which checks them, or come from `mmap` without a fixed address. Memory of
//! the program is written where a caller says so: it is the emulated device's DMA, and as wild as a real one. Words of a
//! memory file are changed in a mapping of this process's own, as atomics, which lives as long as the file does here.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::fs::{FileExt, MetadataExt},
    },
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    },
};

/// Bytes of device memory, in a file that has no name.
#[derive(Debug)]
pub struct Backing {
    file: File,
    len: u64,
    inode: u64,
    /// Where this process has mapped it, once a word was asked for.
    mapped: OnceLock<Mapped>,
}

/// A mapping. Dropping it takes it away.
#[derive(Debug)]
struct Mapped {
    start: u64,
    len: u64,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        unmap(self.start, self.start + self.len);
    }
}

impl Backing {
    /// `len` bytes of zeros; `name` is what `/proc/PID/fd` shows after `memfd:`.
    ///
    /// # Errors
    /// From `memfd_create` and `ftruncate`: no file descriptor is left, or no such size.
    pub fn new(name: &str, len: u64) -> io::Result<Self> {
        let name = CString::new(name)?;
        // SAFETY: the name is a C string that lives through the call.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above made the descriptor, and nobody else has it.
        let fd = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) };
        let file = File::from(fd);
        file.set_len(len)?;
        Self::from_file(file)
    }

    /// The memory of another process, by a descriptor from there.
    ///
    /// # Errors
    /// It is no file with a size.
    pub fn from_file(file: File) -> io::Result<Self> {
        let data = file.metadata()?;
        Ok(Self {
            file,
            len: data.len(),
            inode: data.ino(),
            mapped: OnceLock::new(),
        })
    }

    /// Its size in bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What tells it from every other memory of this machine while it lives.
    pub const fn inode(&self) -> u64 {
        self.inode
    }

    /// The descriptor's number.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// A new descriptor of the same bytes, closed on exec.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        use std::os::fd::AsFd;
        self.file.as_fd().try_clone_to_owned()
    }

    /// A descriptor of its own, with a file position of its own: `position`.
    ///
    /// # Errors
    /// `/proc` is not mounted, or no descriptor is left.
    pub fn reopen(&self, position: u64) -> io::Result<OwnedFd> {
        use std::io::{Seek, SeekFrom};
        let mut file = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{}", self.fd()))?;
        file.seek(SeekFrom::Start(position))?;
        Ok(file.into())
    }

    /// Reads bytes at `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` beyond the end.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    /// Writes bytes at `offset`.
    ///
    /// # Errors
    /// `InvalidInput` beyond the end.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(offset, bytes.len() as u64)?;
        self.file.write_all_at(bytes, offset)
    }

    /// Makes bytes zeros again and gives the machine's memory back, as far as whole pages go.
    ///
    /// # Errors
    /// From `fallocate`.
    pub fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(offset, len)?;
        // SAFETY: numbers only; the descriptor is open.
        let status = unsafe {
            libc::fallocate(
                self.fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                offset as i64,
                len as i64,
            )
        };
        if status == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Copies `len` bytes from the host address `from` to `offset`.
    ///
    /// # Errors
    /// `EFAULT` when the host memory is not there; some bytes may have been copied.
    pub fn write_from(&self, offset: u64, from: u64, len: u64) -> io::Result<()> {
        self.check(offset, len)?;
        whole(len, |done, left| {
            // SAFETY: the kernel checks the address and answers EFAULT.
            unsafe {
                libc::pwrite(
                    self.fd(),
                    ptr::with_exposed_provenance((from + done) as usize),
                    left,
                    (offset + done) as i64,
                )
            }
        })
    }

    /// Copies `len` bytes at `offset` to the host address `to`.
    ///
    /// # Errors
    /// `EFAULT` when the host memory is not there; some bytes may have been copied.
    pub fn read_to(&self, offset: u64, to: u64, len: u64) -> io::Result<()> {
        self.check(offset, len)?;
        whole(len, |done, left| {
            // SAFETY: the kernel checks the address and answers EFAULT; that the bytes there are the device's to write is
            // the duty of whoever queued the copy, as on a real device.
            unsafe {
                libc::pread(
                    self.fd(),
                    ptr::with_exposed_provenance_mut((to + done) as usize),
                    left,
                    (offset + done) as i64,
                )
            }
        })
    }

    /// Copies `len` bytes at `offset` to `to_offset` of `to`.
    ///
    /// # Errors
    /// `InvalidInput` beyond an end.
    pub fn copy_to(&self, offset: u64, to: &Self, to_offset: u64, len: u64) -> io::Result<()> {
        self.check(offset, len)?;
        let mut piece = vec![0; len.min(256 << 10) as usize];
        let mut done = 0;
        while done < len {
            let count = (len - done).min(piece.len() as u64) as usize;
            self.read(offset + done, &mut piece[..count])?;
            to.write(to_offset + done, &piece[..count])?;
            done += count as u64;
        }
        Ok(())
    }

    /// Changes an aligned word of 4 or 8 bytes, with nothing of any process's in between; `None` leaves it. What it was.
    ///
    /// # Errors
    /// `InvalidInput` beyond the end or for what is no such word; from `mmap`.
    pub fn word(
        &self,
        offset: u64,
        width: u64,
        change: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> io::Result<u64> {
        self.check(offset, width)?;
        if !matches!(width, 4 | 8) || !offset.is_multiple_of(width) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mapped = match self.mapped.get() {
            Some(mapped) => mapped,
            None => {
                let mapped = self.map()?;
                self.mapped.get_or_init(|| mapped)
            }
        };
        // SAFETY: an aligned word within the mapping, which lives as long as this; who else uses it does so as an atomic one, or by calls.
        Ok(unsafe { change_word(mapped.start + offset, width, change) })
    }

    fn map(&self) -> io::Result<Mapped> {
        // SAFETY: no fixed address: nothing that exists is touched.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                self.len as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                self.fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapped {
            start: at.expose_provenance() as u64,
            len: self.len,
        })
    }

    /// Shows `len` bytes at `offset` at the address `at`, in the place of a reservation: host memory then.
    ///
    /// # Errors
    /// From `mmap`.
    ///
    /// # Safety
    /// `at..at + len` lies in a [`Reservation`] of the caller's that nothing else uses.
    pub unsafe fn show(&self, offset: u64, at: u64, len: u64) -> io::Result<()> {
        // SAFETY: the caller's promise: what MAP_FIXED replaces is the caller's reservation.
        let mapped = unsafe {
            libc::mmap(
                ptr::with_exposed_provenance_mut(at as usize),
                len as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                self.fd(),
                offset as i64,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

/// Changes a word of this process's memory, with nothing in between; `None` leaves it. What it was.
///
/// # Safety
/// It is mapped, aligned, of 4 or 8 bytes, and others use it as an atomic word meanwhile.
pub unsafe fn change_word(at: u64, width: u64, change: &mut dyn FnMut(u64) -> Option<u64>) -> u64 {
    if width == 4 {
        // SAFETY: the caller's promise.
        let word = unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(at as usize)) };
        let mut narrow = |was: u32| change(u64::from(was)).map(|is| is as u32);
        let was = word.try_update(SeqCst, SeqCst, &mut narrow);
        return u64::from(was.unwrap_or_else(|was| was));
    }
    // SAFETY: the caller's promise.
    let word = unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(at as usize)) };
    word.try_update(SeqCst, SeqCst, change)
        .unwrap_or_else(|was| was)
}

/// Copies between two places of the host: what is not there is an error.
///
/// # Errors
/// `EFAULT` when one of them is not there.
pub fn copy_host(to: u64, from: u64, len: u64) -> io::Result<()> {
    whole(len, |done, left| {
        let local = libc::iovec {
            iov_base: ptr::with_exposed_provenance_mut((to + done) as usize),
            iov_len: left,
        };
        let remote = libc::iovec {
            iov_base: ptr::with_exposed_provenance_mut((from + done) as usize),
            iov_len: left,
        };
        // SAFETY: both vectors live through the call; the kernel checks the addresses in them.
        unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) }
    })
}

/// Whether the kernel would pin `address..address + len`: all of it is mapped, and the first and the last byte can be read, as they cannot where addresses
/// are only held for a device.
#[must_use]
pub fn is_pinnable(address: u64, len: u64) -> bool {
    let reads = |at: u64| {
        let mut byte = 0_u8;
        let here = libc::iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        };
        let there = libc::iovec {
            iov_base: ptr::with_exposed_provenance_mut(at as usize),
            iov_len: 1,
        };
        // SAFETY: writes one byte of this function's; the kernel answers EFAULT for what cannot be read.
        unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) == 1
        }
    };
    is_mapped(address, len) && len > 0 && reads(address) && reads(address + len - 1)
}

/// Whether every page of `address..address + len` is mapped.
pub fn is_mapped(address: u64, len: u64) -> bool {
    const PAGE: u64 = 4096;
    let start = address & !(PAGE - 1);
    let Some(end) = address.checked_add(len) else {
        return false;
    };
    let mut at = start;
    let mut resident = [0_u8; 4096];
    while at < end {
        let piece = (end - at).min(PAGE * resident.len() as u64);
        // SAFETY: the vector has a byte for each page of the piece; the kernel answers ENOMEM for what is not mapped.
        let status = unsafe {
            libc::mincore(
                ptr::with_exposed_provenance_mut(at as usize),
                piece as usize,
                resident.as_mut_ptr(),
            )
        };
        if status != 0 {
            return false;
        }
        at += piece;
    }
    true
}

/// Repeats a call that may move fewer bytes than asked, until all are moved.
fn whole(len: u64, mut step: impl FnMut(u64, usize) -> isize) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        // A single call moves at most 2 GiB less a page.
        let left = (len - done).min(1 << 30) as usize;
        let moved = step(done, left);
        if moved > 0 {
            done += moved as u64;
            continue;
        }
        if moved == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

/// Addresses that nothing else gets and that fault when touched. Dropping it gives them back.
#[derive(Debug)]
pub struct Reservation {
    start: u64,
    len: u64,
}

impl Reservation {
    /// `len` bytes of addresses, the first a multiple of `align`, a power of two of at least a page.
    ///
    /// # Errors
    /// From `mmap`: no such room.
    pub fn new(len: u64, align: u64) -> io::Result<Self> {
        let room = len
            .checked_add(align)
            .and_then(|room| usize::try_from(room).ok())
            .ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: no fixed address: nothing that exists is touched.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                room,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = at.expose_provenance() as u64;
        let start = at.next_multiple_of(align);
        unmap(at, start - at);
        unmap(start + len, at + room as u64 - (start + len));
        Ok(Self { start, len })
    }

    /// The first address.
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// Its length in bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no addresses.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `address` lies in it.
    pub const fn holds(&self, address: u64) -> bool {
        address >= self.start && address - self.start < self.len
    }

    /// Makes `at..at + len` fault again, after [`Backing::show`].
    ///
    /// # Errors
    /// From `mmap`; `InvalidInput` when it is not of this reservation.
    pub fn hide(&self, at: u64, len: u64) -> io::Result<()> {
        if at < self.start || at - self.start > self.len || self.len - (at - self.start) < len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the addresses are this reservation's, as was just checked.
        let mapped = unsafe {
            libc::mmap(
                ptr::with_exposed_provenance_mut(at as usize),
                len as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        unmap(self.start, self.len);
    }
}

/// Memory of the host's own, as a driver hands it out: whole pages of zeros. Dropping it takes it away.
#[derive(Debug)]
pub struct HostPages {
    start: u64,
    len: u64,
}

impl HostPages {
    /// At least `len` bytes.
    ///
    /// # Errors
    /// From `mmap`.
    pub fn new(len: u64) -> io::Result<Self> {
        let len = len
            .checked_next_multiple_of(4096)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let size = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: no fixed address: nothing that exists is touched.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            start: at.expose_provenance() as u64,
            len,
        })
    }

    /// The first address.
    pub const fn start(&self) -> u64 {
        self.start
    }
}

impl Drop for HostPages {
    fn drop(&mut self) {
        unmap(self.start, self.len);
    }
}

fn unmap(at: u64, len: u64) {
    if len > 0 {
        // SAFETY: every caller owns the addresses: its own mapping, or the room beside it from the same mmap.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(at as usize), len as usize) };
    }
}

/// A borrowed descriptor of a number that came through a C interface.
///
/// # Safety
/// The number is an open descriptor for as long as the result is used.
pub const unsafe fn borrow_fd<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the caller's promise.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
