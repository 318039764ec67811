//! What is mapped at an address, asked of the kernel one mapping at a time (`PROCMAP_QUERY`, Linux 6.11).
//!
//! # Safety
//! The request writes the structure and the name buffer that it is given, for the length that it is given.
#![allow(unsafe_code)]

use std::{
    fs::File,
    io,
    mem::size_of,
    os::fd::{AsRawFd, OwnedFd},
};

use nix::errno::Errno;

/// The mappings of this process. Not those of a child made by `fork`.
#[derive(Debug)]
pub(crate) struct Mappings(OwnedFd);

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// First address.
    pub(crate) start: u64,
    /// The address behind the last.
    pub(crate) end: u64,
    /// A segment of System V shared memory.
    pub(crate) is_sysv: bool,
}

impl Mappings {
    /// Opens them, and sees whether the kernel can be asked.
    /// Errors: `ENOTTY`: a kernel before 6.11; what opening a file gives when there is no `/proc`.
    pub(crate) fn open() -> io::Result<Self> {
        let this = Self(File::open("/proc/self/maps")?.into());
        this.at(&raw const this as u64)?;
        Ok(this)
    }

    /// The mapping that holds `address`, or none.
    /// Errors: what the kernel said: `ESRCH` for a process that is gone.
    pub(crate) fn at(&self, address: u64) -> io::Result<Option<Mapping>> {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            address,
            ..Query::default()
        };
        if !self.ask(&mut query)? {
            return Ok(None);
        }
        let (start, end) = (query.start, query.end);
        let is_sysv = query.flags & SHARED != 0 && self.name_begins_with(address, b"/SYSV")?;
        Ok(Some(Mapping {
            start,
            end,
            is_sysv,
        }))
    }

    fn name_begins_with(&self, address: u64, prefix: &[u8]) -> io::Result<bool> {
        let mut name = [0_u8; libc::PATH_MAX as usize];
        let mut query = Query {
            size: size_of::<Query>() as u64,
            address,
            name_size: name.len() as u32,
            name_address: name.as_mut_ptr() as u64,
            ..Query::default()
        };
        match self.ask(&mut query) {
            Ok(found) => Ok(found && name.starts_with(prefix)),
            // A name that is longer than any of those that were asked for.
            Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether there is a mapping at the address in `query`, which is filled in then.
    fn ask(&self, query: &mut Query) -> io::Result<bool> {
        // SAFETY: `query` is what the request takes; a name buffer in it is the caller's, borrowed for longer than the call.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), PROCMAP_QUERY, query as *mut Query) };
        match Errno::result(result) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    address: u64,
    start: u64,
    end: u64,
    flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device_major: u32,
    device_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name_address: u64,
    build_id_address: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// `PROCMAP_QUERY_VMA_SHARED`.
const SHARED: u64 = 8;
const PROCMAP_QUERY: libc::Ioctl = libc::_IOWR::<Query>(b'f' as u32, 17);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs PROCMAP_QUERY: Linux 6.11"]
    fn finds_what_is_there() {
        let mappings = Mappings::open().expect("PROCMAP_QUERY");
        let here = 5_u8;
        let address = &raw const here as u64;
        let found = mappings
            .at(address)
            .expect("asked")
            .expect("the stack is there");
        assert!(found.start <= address && address < found.end && !found.is_sysv);
        assert_eq!(mappings.at(0).expect("asked"), None);
        assert_eq!(mappings.at(u64::MAX).expect("asked"), None);
    }

    #[test]
    #[ignore = "needs PROCMAP_QUERY: Linux 6.11"]
    fn knows_system_v_memory() {
        let mappings = Mappings::open().expect("PROCMAP_QUERY");
        // SAFETY: a new segment, of nobody else.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, 8192, libc::IPC_CREAT | 0o600) };
        assert!(id >= 0, "{}", io::Error::last_os_error());
        // SAFETY: attached where the kernel likes.
        let at = unsafe { libc::shmat(id, std::ptr::null(), 0) };
        // SAFETY: marks it to be freed with the last attachment.
        unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
        let found = mappings.at(at as u64).expect("asked").expect("attached");
        assert!(found.is_sysv);
        // SAFETY: attached above, and used by nobody.
        unsafe { libc::shmdt(at) };
    }
}
