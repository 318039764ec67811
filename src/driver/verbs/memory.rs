//! Protection domains, and memory that a device may reach.
//!
//! # Safety
//! A registration keeps its domain, and that its device. Registering is `unsafe`: the device reads and writes the range by itself as long
//! as it lasts. See `verbs`.
#![allow(unsafe_code)]

use std::{
    fmt,
    ops::Range,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::{
    Access, Context, Sge,
    context::Open,
    failure,
    sys::{RawMr, RawPd},
};
use crate::error::{Error, ErrorKind, Result};

/// What may be used together: registrations and queues of one domain.
#[derive(Clone)]
pub(crate) struct ProtectionDomain(Arc<Domain>);

pub(super) struct Domain {
    pub(super) open: Arc<Open>,
    raw: NonNull<RawPd>,
}

// SAFETY: the library allows every call on a domain from every thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn raw(&self) -> *mut RawPd {
        self.raw.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if self.open.is_here() {
            // SAFETY: made once, and nothing made from it is left.
            let answer = unsafe { (self.open.verbs.api.ibv_dealloc_pd)(self.raw()) };
            self.open.ended("ibv_dealloc_pd", answer);
        }
    }
}

impl Context {
    /// A new protection domain.
    /// Errors: as of any call.
    pub(crate) fn protection_domain(&self) -> Result<ProtectionDomain> {
        let open = self.open();
        open.usable()?;
        // SAFETY: the context lives.
        let raw = unsafe { (open.verbs.api.ibv_alloc_pd)(open.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| open.failed("ibv_alloc_pd"))?;
        let open = Arc::clone(open);
        Ok(ProtectionDomain(Arc::new(Domain { open, raw })))
    }
}

impl ProtectionDomain {
    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.0
    }

    /// Lets the device reach `length` bytes at `address`, as `access` says. The pages are pinned, which takes 0.1 ms and more for each
    /// MiB, unless `ON_DEMAND` is asked for. `RELAXED_ORDERING` is dropped where it is not known.
    /// Errors: `Exhausted`: the limit on locked memory, with the remedy. `InvalidArgument`: no bytes, not mapped, not writable for the process
    /// where the device is to write, or memory of a device; rights that do not go together. `Unsupported`: no on-demand paging here.
    ///
    /// # Safety
    /// As long as the registration lasts, the device may write the range where requests of this process or (as far as `access` goes) of
    /// peers name it, at any time, like another thread that asks nobody. What the range is used for must allow that.
    pub(crate) unsafe fn register(
        &self,
        address: usize,
        length: usize,
        access: Access,
    ) -> Result<MemoryRegion> {
        let open = &self.0.open;
        open.usable()?;
        // SAFETY: the address is not dereferenced here; pages that are not mapped are refused.
        let raw = unsafe {
            (open.verbs.api.ibv_reg_mr_iova2)(
                self.0.raw(),
                ptr::with_exposed_provenance_mut(address),
                length,
                address as u64,
                access.bits(),
            )
        };
        let Some(raw) = NonNull::new(raw) else {
            return Err(self.refused("ibv_reg_mr", address, length, access));
        };
        Ok(self.region(raw, address as u64, length))
    }

    /// Lets the device reach `length` bytes at `offset` in a dma-buf, under the addresses from `iova` on. The descriptor may be closed
    /// after.
    /// Errors: `Unsupported`: the library, kernel or device cannot. `InvalidArgument`: not a dma-buf, or not
    /// in it.
    ///
    /// # Safety
    /// As of [`ProtectionDomain::register`], for the memory behind the dma-buf.
    pub(crate) unsafe fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion> {
        let open = &self.0.open;
        open.usable()?;
        let call = self.dmabuf_call()?;
        let access_bits = access.bits().cast_signed();
        // SAFETY: numbers, and a descriptor that is open.
        let raw = unsafe {
            call(
                self.0.raw(),
                offset,
                length,
                iova,
                dmabuf.as_raw_fd(),
                access_bits,
            )
        };
        let Some(raw) = NonNull::new(raw) else {
            return Err(self.refused("ibv_reg_dmabuf_mr", offset as usize, length, access));
        };
        Ok(self.region(raw, iova, length))
    }

    /// Whether the device takes dma-bufs: asked with no descriptor, which who takes them says is a bad one.
    /// Errors: why not.
    pub(crate) fn takes_dma_bufs(&self) -> Result<()> {
        const PAGE: usize = 4096;
        self.0.open.usable()?;
        let call = self.dmabuf_call()?;
        let access = Access::LOCAL_WRITE.bits().cast_signed();
        // SAFETY: numbers.
        let raw = unsafe { call(self.0.raw(), 0, PAGE, 0, -1, access) };
        let errno = failure::last();
        if let Some(raw) = NonNull::new(raw) {
            // Of nothing.
            drop(self.region(raw, 0, PAGE));
        }
        match errno {
            libc::EBADF => Ok(()),
            errno => Err(failure::failed(
                "ibv_reg_dmabuf_mr",
                self.0.open.name(),
                errno,
            )),
        }
    }

    fn dmabuf_call(
        &self,
    ) -> Result<unsafe extern "C" fn(*mut RawPd, u64, usize, u64, i32, i32) -> *mut RawMr> {
        let verbs = self.0.open.verbs;
        verbs.api.ibv_reg_dmabuf_mr.ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} has no ibv_reg_dmabuf_mr: rdma-core 34 or newer is needed",
                    verbs.library()
                ),
            )
        })
    }

    fn region(&self, raw: NonNull<RawMr>, start: u64, length: usize) -> MemoryRegion {
        // SAFETY: just made; the fields do not change.
        let (lkey, rkey) = unsafe {
            (
                (&raw const (*raw.as_ptr()).lkey).read(),
                (&raw const (*raw.as_ptr()).rkey).read(),
            )
        };
        MemoryRegion {
            domain: Arc::clone(&self.0),
            raw,
            start,
            length,
            lkey,
            rkey,
            ended: false,
        }
    }

    /// The error of a registration. To be asked at once.
    #[cold]
    fn refused(&self, call: &str, start: usize, length: usize, access: Access) -> Error {
        let errno = failure::last();
        let error = failure::failed(call, self.0.open.name(), errno);
        let remedy = match errno {
            libc::EFAULT => {
                "; it is not all mapped, not writable for this process, or the memory of a device, which needs a dma-buf"
            }
            libc::EINVAL if access.contains(Access::ON_DEMAND) => {
                "; the device may not offer on-demand paging"
            }
            _ => "",
        };
        let kind = match errno {
            libc::EFAULT | libc::EBADF => ErrorKind::InvalidArgument,
            _ => error.kind(),
        };
        let text =
            format!("registering {length} bytes at {start:#x} ({access:?}): {error}{remedy}");
        Error::new(kind, text).with_source(std::io::Error::from_raw_os_error(errno))
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProtectionDomain")
            .field(&self.0.open.name())
            .finish()
    }
}

/// Memory that a device may reach. Ends when dropped, which takes 0.1 ms and more for each MiB; from then on its keys mean nothing.
pub(crate) struct MemoryRegion {
    domain: Arc<Domain>,
    raw: NonNull<RawMr>,
    start: u64,
    length: usize,
    lkey: u32,
    rkey: u32,
    ended: bool,
}

// SAFETY: its numbers do not change, and it is ended once.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// The key for requests of this process.
    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for peers.
    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }

    /// A piece of it, as requests name it.
    /// Errors: `OutOfBounds`: the range leaves the registration, or is longer than 4 GiB − 1.
    pub(crate) fn piece(&self, range: Range<usize>) -> Result<Sge> {
        let length = range.end.checked_sub(range.start);
        match length.map(u32::try_from) {
            Some(Ok(length)) if range.end <= self.length => Ok(Sge {
                addr: self.start + range.start as u64,
                length,
                lkey: self.lkey,
            }),
            _ => Err(Error::new(
                ErrorKind::OutOfBounds,
                format!("{range:?} is not within {} registered bytes", self.length),
            )),
        }
    }
}

/// Registrations of this process that could not be ended.
static LEFT: AtomicU64 = AtomicU64::new(0);

impl MemoryRegion {
    /// Ends it, as its drop does.
    /// Errors: what the device said, which is logged and counted. It may go on to reach the memory: nobody else may get that.
    pub(crate) fn end(mut self) -> Result<()> {
        self.end_once()
    }

    fn end_once(&mut self) -> Result<()> {
        let open = &self.domain.open;
        // In a child the memory is another.
        if std::mem::replace(&mut self.ended, true) || !open.is_here() {
            return Ok(());
        }
        // SAFETY: registered once, ended once.
        let answer = unsafe { (open.verbs.api.ibv_dereg_mr)(self.raw.as_ptr()) };
        open.check("ibv_dereg_mr", answer).inspect_err(|error| {
            let left = LEFT.fetch_add(1, Relaxed) + 1;
            tracing::error!(target: "wharf::verbs", %error, start = format_args!("{:#x}", self.start), length = self.length, left, "a registration cannot be ended: the device may go on to reach the memory");
            // It goes with the process, and so does what it belongs to.
            let _stays = std::mem::ManuallyDrop::new(Arc::clone(&self.domain));
        })
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let _ = self.end_once();
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("start", &format_args!("{:#x}", self.start))
            .field("length", &self.length)
            .field("lkey", &self.lkey)
            .field("rkey", &self.rkey)
            .finish_non_exhaustive()
    }
}
