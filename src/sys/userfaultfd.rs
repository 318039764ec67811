//! userfaultfd: the kernel tells of changes of mappings in registered ranges.
//!
//! Ranges are registered in write-protect mode and never write-protected, so that no page fault is ever delivered: only the events of
//! `munmap`, `mremap` and `madvise` are. With `WP_ASYNC` (Linux 6.7) every kind of mapping can be registered, without it only anonymous
//! memory and memfds.
//!
//! Numbers and layouts are those of `linux/userfaultfd.h` (Linux 6.12).
//!
//! # Safety
//! The calls hand the kernel addresses of this process. What they do with registered memory never changes what it holds: registering marks
//! mappings, and [`Userfaultfd::allow_writes`] makes writable for this descriptor what was writable before. So any range may be given.
#![allow(unsafe_code)]

use std::{
    fs::File,
    io,
    mem::size_of,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

/// An open userfaultfd with its events switched on. Non-blocking, closed on exec.
#[derive(Debug)]
pub(crate) struct Userfaultfd {
    fd: OwnedFd,
    features: Features,
}

bitflags::bitflags! {
    /// What a kernel offers (`UFFD_FEATURE_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Features: u64 {
        /// Write-protect mode for anonymous memory (Linux 5.7).
        const PAGEFAULT_FLAG_WP = 1;
        /// Tells of `mremap`.
        const EVENT_REMAP = 1 << 2;
        /// Tells of `madvise`.
        const EVENT_REMOVE = 1 << 3;
        /// Tells of `munmap`, and of what takes the place of a mapping.
        const EVENT_UNMAP = 1 << 6;
        /// Faults carry the exact address (Linux 5.18).
        const EXACT_ADDRESS = 1 << 11;
        /// Write-protect mode for memfds (Linux 5.19).
        const WP_HUGETLBFS_SHMEM = 1 << 12;
        /// The kernel resolves write faults itself, for any mapping (Linux 6.7).
        const WP_ASYNC = 1 << 15;
        const _ = !0;
    }
}

/// An event, as `read` gives it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Message {
    event: u8,
    reserved: [u8; 7],
    arguments: [u64; 3],
}

/// An event, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Nothing is mapped at `start..end` any more, or something else.
    Unmap {
        /// First address.
        start: u64,
        /// The address behind the last.
        end: u64,
    },
    /// The pages of `start..end` are given back.
    Remove {
        /// First address.
        start: u64,
        /// The address behind the last.
        end: u64,
    },
    /// `length` bytes moved.
    Remap {
        /// Where they were.
        from: u64,
        /// Where they are.
        to: u64,
        /// How many.
        length: u64,
    },
    /// A thread waits until the page at this address may be written.
    Fault(u64),
    /// One that was not asked for.
    Other(u8),
}

impl Message {
    /// What it says.
    pub(crate) fn event(&self) -> Event {
        let [first, second, third] = self.arguments;
        match self.event {
            UFFD_EVENT_UNMAP => Event::Unmap {
                start: first,
                end: second,
            },
            UFFD_EVENT_REMOVE => Event::Remove {
                start: first,
                end: second,
            },
            UFFD_EVENT_REMAP => Event::Remap {
                from: first,
                to: second,
                length: third,
            },
            UFFD_EVENT_PAGEFAULT => Event::Fault(second),
            other => Event::Other(other),
        }
    }
}

impl Userfaultfd {
    /// What the kernel offers.
    /// Errors: as [`Userfaultfd::open`].
    pub(crate) fn probe() -> io::Result<Features> {
        Ok(Self::open(Features::empty())?.features)
    }

    /// Opens one, by the system call or by `/dev/userfaultfd`, with `features` switched on. Needs no privilege: it never sees faults of the kernel.
    /// Errors: what both ways said, with the kind of the first: refused by the system (`EPERM`, `ENOSYS`), or out of descriptors. `EINVAL`: a feature that the kernel lacks.
    pub(crate) fn open(features: Features) -> io::Result<Self> {
        let fd = by_syscall().or_else(|first| {
            by_device().map_err(|second| {
                io::Error::new(
                    first.kind(),
                    format!("userfaultfd(): {first}; /dev/userfaultfd: {second}"),
                )
            })
        })?;
        let mut api = Api {
            api: UFFD_API,
            features: features.bits(),
            ioctls: 0,
        };
        // SAFETY: `api` is what the request takes.
        unsafe { ioctl(fd.as_raw_fd(), UFFDIO_API, &mut api) }?;
        Ok(Self {
            fd,
            features: Features::from_bits_retain(api.features),
        })
    }

    /// Delivers events of whole pages from now on. Registering again what is registered changes nothing.
    /// Errors: `EINVAL`: a kind of mapping that cannot be registered, or nothing mapped at its start; `EBUSY`: registered with another userfaultfd;
    /// `ENOMEM`: nothing mapped, or too many mappings.
    pub(crate) fn register(&self, start: u64, length: u64) -> io::Result<()> {
        let mut request = Register {
            range: Range { start, length },
            mode: UFFDIO_REGISTER_MODE_WP,
            ioctls: 0,
        };
        // SAFETY: `request` is what the request takes.
        unsafe { ioctl(self.fd.as_raw_fd(), UFFDIO_REGISTER, &mut request) }
    }

    /// Delivers no more events of these pages. Walks their page tables: 165 ns a page was measured.
    /// Errors: `EINVAL`, `ENOMEM`: nothing is mapped there.
    pub(crate) fn unregister(&self, start: u64, length: u64) -> io::Result<()> {
        let mut range = Range { start, length };
        // SAFETY: `range` is what the request takes.
        unsafe { ioctl(self.fd.as_raw_fd(), UFFDIO_UNREGISTER, &mut range) }
    }

    /// Takes write protection off the pages, of which there is none, and wakes who waits for that. Its use is what it fails with.
    /// Errors: `EAGAIN`: an event of a change is under way or has not been read yet, of any range. `ENOENT`: not registered.
    #[inline]
    pub(crate) fn allow_writes(&self, start: u64, length: u64) -> io::Result<()> {
        let mut request = WriteProtect {
            range: Range { start, length },
            mode: 0,
        };
        // SAFETY: `request` is what the request takes.
        unsafe { ioctl(self.fd.as_raw_fd(), UFFDIO_WRITEPROTECT, &mut request) }
    }

    /// Takes events that are there, returns how many. Whoever caused one returns from its system call afterwards.
    /// Errors: `EAGAIN`: there is none.
    pub(crate) fn read(&self, messages: &mut [Message]) -> io::Result<usize> {
        // SAFETY: `messages` is writable for this many bytes, and any bytes are a message.
        let got = unsafe {
            libc::read(
                self.fd.as_raw_fd(),
                messages.as_mut_ptr().cast(),
                size_of_val(messages),
            )
        };
        usize::try_from(got)
            .map(|got| got / size_of::<Message>())
            .map_err(|_| io::Error::last_os_error())
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Userfaultfd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

fn by_syscall() -> io::Result<OwnedFd> {
    // SAFETY: takes one number and touches no memory.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, FLAGS) };
    let fd = RawFd::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?;
    owned(fd)
}

/// Linux 6.1; the way around in containers whose filters refuse the system call.
fn by_device() -> io::Result<OwnedFd> {
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/userfaultfd")?;
    // SAFETY: the request takes a number and touches no memory.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, FLAGS) };
    owned(fd)
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call before succeeded: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// # Safety
/// `argument` must be the structure that `request` takes.
#[inline]
unsafe fn ioctl<T>(fd: RawFd, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
    // SAFETY: the caller vouches for the structure, which is borrowed for the call.
    match unsafe { libc::ioctl(fd, request, argument as *mut T) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    length: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}

const UFFD_API: u64 = 0xaa;
/// `O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY` (Linux 5.11).
const FLAGS: libc::c_int = libc::O_CLOEXEC | libc::O_NONBLOCK | 1;
const UFFDIO_REGISTER_MODE_WP: u64 = 1 << 1;
const UFFD_EVENT_PAGEFAULT: u8 = 0x12;
const UFFD_EVENT_REMAP: u8 = 0x14;
const UFFD_EVENT_REMOVE: u8 = 0x15;
const UFFD_EVENT_UNMAP: u8 = 0x16;
const USERFAULTFD_IOC_NEW: libc::Ioctl = libc::_IO(0xaa, 0x00);
const UFFDIO_API: libc::Ioctl = libc::_IOWR::<Api>(0xaa, 0x3f);
const UFFDIO_REGISTER: libc::Ioctl = libc::_IOWR::<Register>(0xaa, 0x00);
const UFFDIO_UNREGISTER: libc::Ioctl = libc::_IOR::<Range>(0xaa, 0x01);
const UFFDIO_WRITEPROTECT: libc::Ioctl = libc::_IOWR::<WriteProtect>(0xaa, 0x06);

const _: () = {
    assert!(size_of::<Message>() == 32);
    assert!(std::mem::offset_of!(Message, arguments) == 8);
    assert!(size_of::<Api>() == 24);
    assert!(size_of::<Range>() == 16);
    assert!(size_of::<Register>() == 32);
    assert!(size_of::<WriteProtect>() == 24);
};

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_requests_are_those_of_the_header() {
        assert_eq!(USERFAULTFD_IOC_NEW, 0xaa00);
        assert_eq!(UFFDIO_API, 0xc018_aa3f);
        assert_eq!(UFFDIO_REGISTER, 0xc020_aa00);
        assert_eq!(UFFDIO_UNREGISTER, 0x8010_aa01);
        assert_eq!(UFFDIO_WRITEPROTECT, 0xc018_aa06);
    }

    #[test]
    #[ignore = "needs userfaultfd: a container may refuse it"]
    fn bad_ranges_and_features_are_errors() {
        let features = Userfaultfd::probe().expect("userfaultfd");
        let uffd = Userfaultfd::open(features & Features::EVENT_UNMAP).expect("as probed");
        assert!(uffd.register(0, 4096).is_err(), "nothing is mapped there");
        assert!(uffd.register(1, 4096).is_err(), "not a page");
        assert!(uffd.register(1 << 63, 4096).is_err(), "the kernel's half");
        assert!(uffd.unregister(1, 1).is_err());
        assert!(uffd.allow_writes(4096, 4096).is_err());
        assert_eq!(
            uffd.read(&mut [Message::default(); 2])
                .expect_err("no event")
                .kind(),
            io::ErrorKind::WouldBlock
        );
        let unknown = Features::from_bits_retain(1 << 60);
        assert!(Userfaultfd::open(unknown).is_err());
    }
}
