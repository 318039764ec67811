//! Anonymous shared memory: a memfd that can neither shrink nor grow, and mappings of it.
//!
//! Nothing of it has a name in the file system, so a crash leaves nothing behind and only those who are given the
//! descriptor can map it.
//!
//! # Safety
//! A [`Mapping`] stays mapped, readable, and writable if it says so, from its construction to its drop. The file under it cannot shrink:
//! either this process sealed it before mapping, or [`Mapping::of_received`] checked the seal, which nobody can take off.
//! So an access within `len()` never meets the end of the file (SIGBUS). What the bytes hold is not this file's matter:
//! every process with the descriptor may change them at any time, unless the file was sealed against that.
#![allow(unsafe_code)]

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    ptr::{self, NonNull},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        resource::{RLIM_INFINITY, Resource, getrlimit},
        stat::fstat,
        statfs::{TMPFS_MAGIC, fstatfs},
    },
    unistd::ftruncate,
};

/// From this many bytes on a mapping asks for huge pages.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// What seals the length, and what seals the seals.
const LENGTH: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);
/// Nobody writes but by the mappings that there are (Linux 5.1).
const FUTURE_WRITE: SealFlag = SealFlag::from_bits_retain(libc::F_SEAL_FUTURE_WRITE);

/// `MFD_NOEXEC_SEAL` (Linux 6.3): never executable. Machines with `vm.memfd_noexec=2` refuse a memfd without it.
const MFD_NOEXEC_SEAL: libc::c_uint = 8;

/// That a file may be so long: a longer one ends the process (`SIGXFSZ`), unless it has said otherwise.
fn fits_the_limit(size: libc::off_t) -> io::Result<()> {
    let limit = getrlimit(Resource::RLIMIT_FSIZE).map_or(RLIM_INFINITY, |(soft, _)| soft);
    if limit == RLIM_INFINITY || size.unsigned_abs() <= limit {
        return Ok(());
    }
    let text = format!("{size} bytes of shared memory, where files may have {limit} (ulimit -f)");
    Err(io::Error::new(io::ErrorKind::FileTooLarge, text))
}

/// Anonymous shared memory of fixed size.
#[derive(Debug)]
pub(crate) struct Memfd {
    fd: OwnedFd,
    len: usize,
}

impl Memfd {
    /// Makes one of `len` zero bytes (at least 1), sealed against shrinking, growing and further seals. It stays writable.
    /// `name` shows in `/proc/*/maps` and need not be unique.
    /// Errors: `InvalidInput` for no length or one beyond what a file may have; `EMFILE`, `ENFILE`, `ENOMEM`.
    pub(crate) fn create(name: &CStr, len: usize) -> io::Result<Self> {
        let size = libc::off_t::try_from(len)
            .ok()
            .filter(|size| *size > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let seals = LENGTH | SealFlag::F_SEAL_SEAL;
        Self::sealed(name, size, MFdFlags::empty(), seals).map(|fd| Self { fd, len })
    }

    /// As [`create`](Self::create), but that it can be [sealed against writing](seal_writing) later. Whoever has the descriptor can do that.
    /// Errors: as [`create`](Self::create).
    pub(crate) fn create_sealable(name: &CStr, len: usize) -> io::Result<Self> {
        let size = libc::off_t::try_from(len)
            .ok()
            .filter(|size| *size > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        Self::sealed(name, size, MFdFlags::empty(), LENGTH).map(|fd| Self { fd, len })
    }

    /// As [`create`](Self::create), of huge pages of 2 MiB that the system keeps for this purpose (`vm.nr_hugepages`), as many as hold `len` bytes.
    /// Whether there are enough, mapping it tells.
    /// Errors: as [`create`](Self::create); `EINVAL`, `ENOSYS` without such pages, `EPERM`.
    pub(crate) fn create_huge(name: &CStr, len: usize) -> io::Result<Self> {
        let len = len
            .checked_next_multiple_of(HUGE_PAGE)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let size = libc::off_t::try_from(len)
            .ok()
            .filter(|size| *size > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let huge = MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB;
        let seals = LENGTH | SealFlag::F_SEAL_SEAL;
        Self::sealed(name, size, huge, seals).map(|fd| Self { fd, len })
    }

    fn sealed(
        name: &CStr,
        size: libc::off_t,
        more: MFdFlags,
        seals: SealFlag,
    ) -> io::Result<OwnedFd> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING | more;
        let fd = match memfd_create(name, flags | MFdFlags::from_bits_retain(MFD_NOEXEC_SEAL)) {
            Err(Errno::EINVAL) => memfd_create(name, flags),
            other => other,
        }?;
        fits_the_limit(size)?;
        ftruncate(&fd, size)?;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(fd)
    }

    /// Maps all of it.
    /// Errors: `ENOMEM`.
    pub(crate) fn map(&self) -> io::Result<Mapping> {
        let mapping = self.map_sparse()?;
        if self.len >= HUGE_PAGE {
            // Advice: a kernel without huge pages for shared memory refuses it, and small pages serve as well.
            let _ = mapping.advise(libc::MADV_HUGEPAGE);
        }
        Ok(mapping)
    }

    /// The same for what is to stay mostly empty: without huge pages, which fill in 2 MiB for a byte.
    /// Errors: `ENOMEM`.
    pub(crate) fn map_sparse(&self) -> io::Result<Mapping> {
        Mapping::new(self.fd.as_fd(), self.len, true)
    }

    /// The descriptor alone.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether the system makes no such files at all.
pub(crate) fn is_forbidden(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(errno, Some(libc::ENOSYS | libc::EPERM | libc::EACCES))
}

/// Seals a memfd of this process so that nobody can map it for writing any more, or write it otherwise. The mappings that there are stay as they are.
/// Errors: `EPERM` when its seals are sealed, `EINVAL` before Linux 5.1.
pub(crate) fn seal_writing(fd: BorrowedFd<'_>) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_ADD_SEALS(FUTURE_WRITE))?;
    Ok(())
}

/// A shared, readable and (if [`is_writable`](Self::is_writable)) writable mapping of a whole memfd. Page aligned. Other processes may see and change the bytes at
/// any time. A forked child shares it too. Unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: NonNull<u8>,
    len: usize,
    is_writable: bool,
}

// SAFETY: a mapping belongs to the process, not to a thread; this type hands out addresses only, and who dereferences them
// vouches for the access.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a memfd that came from another process, after checking that it is one, of pages that the system makes when they are touched, is sealed
    /// against shrinking and growing, and has exactly `expected_len` bytes.
    /// Errors: `InvalidData` when one of these is not so, `PermissionDenied` when it is sealed against writing, `ENOMEM`.
    pub(crate) fn of_received(fd: BorrowedFd<'_>, expected_len: usize) -> io::Result<Self> {
        let (size, _) = checked(fd, expected_len)?;
        // Without huge pages where its owner has none: what is sparse there is not filled in here, 2 MiB for a byte.
        Self::new(fd, size, true)
    }

    /// As [`of_received`](Self::of_received), but for reading alone where it is sealed against writing.
    /// Errors: as [`of_received`](Self::of_received).
    pub(crate) fn of_lent(fd: BorrowedFd<'_>, expected_len: usize) -> io::Result<Self> {
        let (size, seals) = checked(fd, expected_len)?;
        let is_writable = !seals.intersects(SealFlag::F_SEAL_WRITE | FUTURE_WRITE);
        Self::new(fd, size, is_writable)
    }

    /// The checks of [`of_received`](Self::of_received) alone.
    /// Errors: `InvalidData`.
    pub(crate) fn check(fd: BorrowedFd<'_>, expected_len: usize) -> io::Result<()> {
        checked(fd, expected_len).map(drop)
    }

    /// Parts from all others that map the file, `fd`: what this process writes from here on is seen by nobody else. The bytes stay, and so does the
    /// address; a page is copied when it is written, and shows what the file holds until then. Accesses meanwhile by other threads of this
    /// process are as good as before or after.
    /// Errors: `ENOMEM`; nothing has changed then.
    pub(crate) fn part(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        // Made beside it and moved over it, because a mapping that is refused at its place has taken away what was there.
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let beside = unsafe {
            libc::mmap(
                ptr::null_mut(),
                self.len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_NORESERVE,
                fd.as_raw_fd(),
                0,
            )
        };
        if beside == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let here: *mut libc::c_void = self.address.as_ptr().cast();
        // SAFETY: `beside` is the mapping just made, which nothing refers to; what is at `here` is this mapping, of as many bytes, and what takes its
        // place is as readable and writable, of the same file, with the same bytes.
        let moved = unsafe { libc::mremap(beside, self.len, self.len, flags, here) };
        if moved == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            // SAFETY: the mapping made above, which nothing refers to.
            unsafe { libc::munmap(beside, self.len) };
            return Err(error);
        }
        Ok(())
    }

    /// `len` zero bytes of no file, which forked children share.
    /// Errors: `ENOMEM`.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        Self::map(-1, libc::MAP_SHARED | libc::MAP_ANONYMOUS, len, true)
    }

    /// Maps `len` bytes of a memfd that has them and is sealed against shrinking.
    fn new(fd: BorrowedFd<'_>, len: usize, is_writable: bool) -> io::Result<Self> {
        Self::map(fd.as_raw_fd(), libc::MAP_SHARED, len, is_writable)
    }

    fn map(fd: RawFd, flags: libc::c_int, len: usize, is_writable: bool) -> io::Result<Self> {
        let protection = match is_writable {
            true => libc::PROT_READ | libc::PROT_WRITE,
            false => libc::PROT_READ,
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let address = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            address,
            len,
            is_writable,
        })
    }

    /// First byte; page aligned.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// Bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether it may be written.
    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is this mapping, and the two advices in use change no byte of it.
        if unsafe { libc::madvise(self.address.as_ptr().cast(), self.len, advice) } == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// The length and the seals of a memfd that came from another process, after the checks of [`Mapping::of_received`].
fn checked(fd: BorrowedFd<'_>, expected_len: usize) -> io::Result<(usize, SealFlag)> {
    let bad = |what: &'static str| io::Error::new(io::ErrorKind::InvalidData, what);
    let seals = fcntl(fd, FcntlArg::F_GET_SEALS)
        .map(SealFlag::from_bits_retain)
        .map_err(|_| bad("the shared memory received is not a memfd"))?;
    if !seals.contains(LENGTH) {
        return Err(bad(
            "the shared memory received is not sealed against resizing",
        ));
    }
    // Only now: the file system of what is no memfd may block whoever asks about it. Huge pages that the system keeps ready may be out when one
    // is touched that a peer has punched out of the file, which kills.
    if fstatfs(fd)?.filesystem_type() != TMPFS_MAGIC {
        return Err(bad(
            "the shared memory received is of huge pages kept ready, or of no kind known",
        ));
    }
    let size = usize::try_from(fstat(fd)?.st_size).unwrap_or(0);
    if size == 0 || size != expected_len {
        return Err(bad("the shared memory received has another size than told"));
    }
    Ok((size, seals))
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this range, and nothing borrows from a value that is being dropped.
        let result = unsafe { libc::munmap(self.address.as_ptr().cast(), self.len) };
        debug_assert_eq!(result, 0, "munmap of an own mapping");
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn unsealed(len: libc::off_t) -> OwnedFd {
        let fd =
            memfd_create(c"wharf-test", MFdFlags::MFD_ALLOW_SEALING).expect("memfd without seals");
        ftruncate(&fd, len).expect("size");
        fd
    }

    #[test]
    fn two_mappings_share_bytes() {
        let memory = Memfd::create(c"wharf-test", 10_000).expect("memfd");
        let one = memory.map().expect("map");
        let two = Mapping::of_received(memory.as_fd(), 10_000).expect("map as a peer");
        assert_ne!(one.as_ptr(), two.as_ptr());
        assert_eq!((one.len(), two.len()), (10_000, 10_000));
        // SAFETY: both mappings are 10,000 bytes long, and only this thread has them.
        let seen = unsafe {
            assert_eq!(*one.as_ptr().add(9_999), 0);
            one.as_ptr().add(9_999).write(7);
            two.as_ptr().add(9_999).read()
        };
        assert_eq!(seen, 7);
    }

    #[test]
    fn seals_hold() {
        let fd = Memfd::create(c"wharf-test", 4096).expect("memfd").into_fd();
        assert_eq!(ftruncate(&fd, 0), Err(Errno::EPERM));
        assert_eq!(ftruncate(&fd, 8192), Err(Errno::EPERM));
        assert_eq!(
            fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)),
            Err(Errno::EPERM)
        );
    }

    #[test]
    fn what_is_sealed_against_writing_is_mapped_for_reading() {
        let memory = Memfd::create_sealable(c"wharf-test", 4096).expect("memfd");
        let own = memory.map().expect("map");
        let before = Mapping::of_lent(memory.as_fd(), 4096).expect("map as a peer");
        seal_writing(memory.as_fd()).expect("seal");
        let after = Mapping::of_lent(memory.as_fd(), 4096).expect("map as a peer");
        assert!(own.is_writable() && before.is_writable() && !after.is_writable());
        // SAFETY: the mappings have 4096 bytes, and only this thread has them.
        unsafe {
            own.as_ptr().write(7);
            assert_eq!(after.as_ptr().read(), 7);
            before.as_ptr().write(8);
            assert_eq!(after.as_ptr().read(), 8);
        }
        let error = Mapping::of_received(memory.as_fd(), 4096).expect_err("for writing");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn what_was_parted_is_written_alone() {
        let memory = Memfd::create_sealable(c"wharf-test", 10_000).expect("memfd");
        let own = memory.map().expect("map");
        let peer = Mapping::of_lent(memory.as_fd(), 10_000).expect("map as a peer");
        let at = own.as_ptr();
        // SAFETY: both mappings are 10,000 bytes long, and only this thread has them.
        unsafe {
            at.write_bytes(1, 10_000);
            own.part(memory.as_fd()).expect("parted");
            assert_eq!((own.as_ptr(), at.read(), at.add(9_999).read()), (at, 1, 1));
            at.write(2);
            peer.as_ptr().add(1).write(3);
            assert_eq!((at.read(), at.add(1).read()), (2, 1));
            assert_eq!((peer.as_ptr().read(), peer.as_ptr().add(1).read()), (1, 3));
        }
        drop(own);
        // SAFETY: as before.
        assert_eq!(unsafe { peer.as_ptr().read() }, 1);
    }

    #[test]
    fn what_is_not_as_told_is_refused() {
        let memory = Memfd::create(c"wharf-test", 4096).expect("memfd");
        for wrong in [0, 1, 4095, 4097, usize::MAX] {
            let error = Mapping::of_received(memory.as_fd(), wrong).expect_err("another size");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        let loose = unsealed(4096);
        let error = Mapping::of_received(loose.as_fd(), 4096).expect_err("no seals");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        fcntl(&loose, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).expect("seal");
        let error = Mapping::of_received(loose.as_fd(), 4096).expect_err("one seal of two");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let read_only = unsealed(4096);
        fcntl(
            &read_only,
            FcntlArg::F_ADD_SEALS(
                SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE,
            ),
        )
        .expect("seal");
        let error = Mapping::of_received(read_only.as_fd(), 4096).expect_err("sealed for writing");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let zero = File::open("/dev/zero").expect("open");
        let error = Mapping::of_received(zero.as_fd(), 4096).expect_err("no memfd");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    #[ignore = "needs a kernel with huge pages: CONFIG_HUGETLBFS"]
    fn memory_of_huge_pages_kept_ready_is_refused() {
        let memory = Memfd::create_huge(c"wharf-test", 1).expect("such pages");
        let error = Mapping::of_received(memory.as_fd(), HUGE_PAGE).expect_err("huge pages");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_sparse_terabyte_costs_nothing() {
        let memory = Memfd::create(c"wharf-test", 1 << 40).expect("memfd");
        let mapping = Mapping::of_received(memory.as_fd(), 1 << 40).expect("address space");
        // SAFETY: within the mapping, which only this thread has.
        unsafe { mapping.as_ptr().add(1 << 39).write(1) };
        let stat = fstat(&memory).expect("status");
        assert!(
            stat.st_blocks * 512 <= 64 << 10,
            "{} blocks",
            stat.st_blocks
        );
    }

    #[test]
    fn impossible_lengths_are_errors() {
        for len in [0, usize::MAX] {
            let error = Memfd::create(c"wharf-test", len).expect_err("length");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn huge_and_prefaulted() {
        let mapping = Memfd::create(c"wharf-test", 2 * HUGE_PAGE)
            .and_then(|memory| memory.map())
            .expect("map");
        assert_eq!(mapping.as_ptr() as usize % 4096, 0);
    }
}
