//! Private pages, advice on pages, and keeping them in memory.
//!
//! # Safety
//! An [`Anonymous`] is mapped, readable and writable, from its construction to its drop. Advice of the kinds that are passed here and locking
//! change nothing of what memory holds, wherever it is and whoever's.
#![allow(unsafe_code)]

use std::{
    io,
    ptr::{self, NonNull},
    sync::OnceLock,
};

/// Bytes of a page of the system.
pub(crate) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: asks for a number.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size)
            .ok()
            .filter(|size| size.is_power_of_two())
            .unwrap_or(4096)
    })
}

/// Zeroed pages of this process alone.
#[derive(Debug)]
pub(crate) struct Anonymous {
    address: NonNull<u8>,
    len: usize,
}

// SAFETY: an owned mapping; all access to the bytes goes by who holds it.
unsafe impl Send for Anonymous {}
// SAFETY: as above.
unsafe impl Sync for Anonymous {}

impl Anonymous {
    /// Maps at least `len` bytes.
    /// Errors: `EINVAL` for none, `ENOMEM`.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        Self::map(ptr::null_mut(), len, 0)
    }

    /// At a place of 1 GiB where the kernel maps nothing by itself, so that it stays free afterwards; nor have sanitizers anything there.
    #[cfg(test)]
    pub(crate) fn apart(len: usize) -> io::Result<Self> {
        use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
        static NEXT: AtomicUsize = AtomicUsize::new(0x5900_0000_0000);
        let place = NEXT.fetch_add(1 << 30, Relaxed) as *mut libc::c_void;
        Self::map(place, len, libc::MAP_FIXED_NOREPLACE)
    }

    fn map(place: *mut libc::c_void, len: usize, flags: libc::c_int) -> io::Result<Self> {
        // SAFETY: a new mapping, wherever the kernel likes or where nothing is.
        let address = unsafe {
            libc::mmap(
                place,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        match NonNull::new(address.cast::<u8>()) {
            Some(address) if address.as_ptr().cast() != libc::MAP_FAILED => {
                Ok(Self { address, len })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Leaves the pages out of children that `fork` makes: then what a device writes into them is never written into a page that has become a
    /// child's. A child that touches them faults.
    /// Errors: what `madvise` said.
    pub(crate) fn dont_fork(&self) -> io::Result<()> {
        // SAFETY: changes what children get, and nothing here.
        done(unsafe { libc::madvise(self.address.as_ptr().cast(), self.len, libc::MADV_DONTFORK) })
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody uses it any more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.len) };
    }
}

/// `madvise` with an advice that changes no content: `MADV_NORMAL`, `MADV_WILLNEED`.
pub(crate) fn advise(address: u64, length: u64, advice: libc::c_int) -> io::Result<()> {
    debug_assert!([libc::MADV_NORMAL, libc::MADV_WILLNEED].contains(&advice));
    // SAFETY: these kinds of advice change no content of any mapping.
    let result = unsafe { libc::madvise(place(address), length as usize, advice) };
    done(result)
}

/// `mlock`: keeps the pages of a range in memory. Does not nest. Not by libc's function, which a sanitizer replaces by one that does nothing.
pub(crate) fn lock(address: u64, length: u64) -> io::Result<()> {
    // SAFETY: changes no content, and reads no memory through the address.
    done(unsafe { libc::syscall(libc::SYS_mlock, place(address), length as usize) as i32 })
}

/// `munlock`, as above.
pub(crate) fn unlock(address: u64, length: u64) -> io::Result<()> {
    // SAFETY: as `lock`.
    done(unsafe { libc::syscall(libc::SYS_munlock, place(address), length as usize) as i32 })
}

fn place(address: u64) -> *mut libc::c_void {
    ptr::without_provenance_mut(address as usize)
}

fn done(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
