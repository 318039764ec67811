//! The words that two processes have in common for one copy: a few pages of anonymous memory, passed by descriptor.
//!
//! # Safety
//! [`Words`] owns its mapping. Its memory is sealed, which is looked at before it is mapped: nobody makes it shorter under this process. New memory is zero, and
//! only the two ends are given it. The peer is gone when its end of the socket is closed: it drops its link between two copies, and when its
//! process ends it gives its memory up before its sockets.
#![allow(unsafe_code)]

use std::{
    io,
    num::NonZeroUsize,
    os::fd::OwnedFd,
    ptr::NonNull,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use wharf::transport::{Role, SHARED_WORDS, SharedMemory};

type Shared = [AtomicU64; SHARED_WORDS];

#[derive(Debug)]
pub(super) struct Words {
    words: NonNull<Shared>,
    role: Role,
    peer_gone: AtomicBool,
}

// SAFETY: the address of atomic words, which any thread may use.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    pub(super) fn memory() -> io::Result<OwnedFd> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memory = memfd_create(c"packets", flags)?;
        nix::unistd::ftruncate(&memory, size_of::<Shared>() as i64)?;
        fcntl(&memory, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK))?;
        Ok(memory)
    }

    pub(super) fn map(memory: &OwnedFd, role: Role) -> io::Result<Self> {
        let seals = SealFlag::from_bits_truncate(fcntl(memory, FcntlArg::F_GET_SEALS)?);
        let size = nix::sys::stat::fstat(memory)?.st_size;
        if !seals.contains(SealFlag::F_SEAL_SHRINK) || size != size_of::<Shared>() as i64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let length = NonZeroUsize::new(size_of::<Shared>()).expect("some");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, wherever the system puts it.
        let mapped = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, memory, 0) }?;
        Ok(Self {
            words: mapped.cast(),
            role,
            peer_gone: AtomicBool::new(false),
        })
    }

    /// The peer's end of the socket is closed.
    pub(super) fn set_peer_gone(&self) {
        self.peer_gone.store(true, Ordering::Release);
    }
}

// SAFETY: see the chapter on safety.
unsafe impl SharedMemory for Words {
    fn role(&self) -> Role {
        self.role
    }
    fn words(&self) -> &Shared {
        // SAFETY: mapped until this is dropped, and so long.
        unsafe { self.words.as_ref() }
    }
    fn is_peer_gone(&self) -> bool {
        self.peer_gone.load(Ordering::Acquire)
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, which nothing uses any more.
        let unmapped = unsafe { munmap(self.words.cast(), size_of::<Shared>()) };
        debug_assert!(unmapped.is_ok());
    }
}
