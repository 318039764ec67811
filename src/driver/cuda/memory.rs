//! Memory: of the device, pinned, managed; what an address is; dma-bufs.
//!
//! # Safety
//! An allocation is freed once, by its drop, in the context that made it, which it holds. Freeing waits for the
//! work of the device that the driver knows; whoever lets others (another process, a network card) reach it ends that first. Of pinned
//! memory only the address is given out: the device may write it at any time.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    fmt,
    os::fd::{FromRawFd, OwnedFd, RawFd},
    ptr::{self, NonNull},
};

use super::{
    Attribute, ContextGuard, Cuda, CudaContext, DevicePtr, RawContext, RawPool, Status, Version,
    sys::{self, pointer},
};
use crate::error::{Error, ErrorKind, Result};

/// Memory of a device, or managed memory, that this process allocated. Freed on drop, which may block: the driver waits for the device.
pub(crate) struct DeviceAllocation {
    context: CudaContext,
    start: DevicePtr,
    len: usize,
}

impl DeviceAllocation {
    /// Where it begins, aligned to 256 bytes at least.
    pub(crate) fn ptr(&self) -> DevicePtr {
        self.start
    }
    /// Its bytes, at least 1.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    /// The context in which it was made.
    pub(crate) fn context(&self) -> &CudaContext {
        &self.context
    }
}

fn free(guard: &ContextGuard<'_>, start: DevicePtr) -> Result<()> {
    // SAFETY: an address from `cuMemAlloc_v2` that was not freed before; see the chapter above.
    let status = unsafe { (guard.cuda().api.cuMemFree_v2)(start) };
    status.check("cuMemFree_v2")
}

impl Drop for DeviceAllocation {
    fn drop(&mut self) {
        let start = self.start;
        self.context
            .on_drop("freeing device memory", |guard| free(guard, start));
    }
}

impl fmt::Debug for DeviceAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at {} of {:?}",
            self.len, self.start, self.context
        )
    }
}

/// Pinned host memory of the driver's, which every context of the process can copy from and to. Zeroed. Freed on drop, which may block.
pub(crate) struct PinnedAllocation {
    context: CudaContext,
    host: NonNull<u8>,
    device: DevicePtr,
    len: usize,
}

// SAFETY: it is an address, and memory of the process; who dereferences it vouches for the access.
unsafe impl Send for PinnedAllocation {}
// SAFETY: as for Send.
unsafe impl Sync for PinnedAllocation {}

impl PinnedAllocation {
    /// Where the host sees it, page aligned.
    pub(crate) fn as_ptr(&self) -> NonNull<u8> {
        self.host
    }
    /// Where the device sees it: for words that streams write.
    pub(crate) fn device_ptr(&self) -> DevicePtr {
        self.device
    }
}

impl Drop for PinnedAllocation {
    fn drop(&mut self) {
        let host = self.host.as_ptr();
        self.context.on_drop("freeing pinned memory", |guard| {
            // SAFETY: an address from `cuMemHostAlloc`, freed once.
            let status = unsafe { (guard.cuda().api.cuMemFreeHost)(host.cast()) };
            status.check("cuMemFreeHost")
        });
    }
}

impl fmt::Debug for PinnedAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pinned bytes at {:p}", self.len, self.host)
    }
}

/// Host memory of the program's that is pinned for the driver. Undone on drop, which may block.
pub(crate) struct HostRegistration {
    context: CudaContext,
    host: NonNull<u8>,
    device: DevicePtr,
    owned: bool,
}

// SAFETY: as for `PinnedAllocation`.
unsafe impl Send for HostRegistration {}
// SAFETY: as for Send.
unsafe impl Sync for HostRegistration {}

impl HostRegistration {
    /// Where the device sees the first byte.
    pub(crate) fn device_ptr(&self) -> DevicePtr {
        self.device
    }

    /// Whether it is one: else the program had pinned some of the memory already.
    pub(crate) fn is_owned(&self) -> bool {
        self.owned
    }

    /// Undoes it and says how that went. May block.
    /// Errors: what the driver said; of a context that is gone, that it is.
    pub(crate) fn unregister(mut self) -> Result<()> {
        if !std::mem::take(&mut self.owned) {
            return Ok(());
        }
        let guard = self.context.enter()?;
        // SAFETY: an address that was registered, unregistered once.
        let status = unsafe { (guard.cuda().api.cuMemHostUnregister)(self.host.as_ptr().cast()) };
        status.check("cuMemHostUnregister")
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let host = self.host.as_ptr();
        self.context.on_drop("unregistering host memory", |guard| {
            // SAFETY: an address that was registered, unregistered once.
            let status = unsafe { (guard.cuda().api.cuMemHostUnregister)(host.cast()) };
            status.check("cuMemHostUnregister")
        });
    }
}

impl fmt::Debug for HostRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostRegistration")
            .field("host", &self.host)
            .field("owned", &self.owned)
            .finish_non_exhaustive()
    }
}

/// A dma-buf of device memory: what a network card's driver maps. Close it before the memory is freed.
#[derive(Debug)]
pub(crate) struct DmaBuf {
    /// The descriptor.
    pub(crate) fd: OwnedFd,
    /// Where in it the address that was asked for lies: it begins at a page.
    pub(crate) offset: u64,
    /// Bytes of it, whole pages.
    pub(crate) len: u64,
}

impl ContextGuard<'_> {
    /// Allocates device memory. Its bytes are whatever they are. May block.
    /// Errors: `Exhausted`; `InvalidArgument`: no bytes.
    pub(crate) fn allocate(&self, len: usize) -> Result<DeviceAllocation> {
        let mut start = DevicePtr::default();
        // SAFETY: writes one address.
        let status = unsafe { (self.cuda().api.cuMemAlloc_v2)(&raw mut start, len) };
        self.allocated(status, "cuMemAlloc_v2", start, len)
    }

    /// Allocates managed memory, which moves between host and device. Ask for far less than the device has free. May block.
    /// Errors: `Exhausted`, `Unsupported`; `InvalidArgument`: no bytes.
    pub(crate) fn allocate_managed(&self, len: usize) -> Result<DeviceAllocation> {
        let cuda = self.cuda();
        let call = cuda.optional(cuda.api.cuMemAllocManaged, "cuMemAllocManaged")?;
        let mut start = DevicePtr::default();
        // SAFETY: writes one address.
        let status = unsafe { call(&raw mut start, len, sys::ATTACH_GLOBAL) };
        self.allocated(status, "cuMemAllocManaged", start, len)
    }

    fn allocated(
        &self,
        status: Status,
        call: &str,
        start: DevicePtr,
        len: usize,
    ) -> Result<DeviceAllocation> {
        status.check(call).map_err(|error| {
            describe(error, format_args!("{len} bytes on {:?}", self.context()))
        })?;
        Ok(DeviceAllocation {
            context: self.context().clone(),
            start,
            len,
        })
    }

    /// Allocates pinned host memory. May block.
    /// Errors: `Exhausted`; `InvalidArgument`: no bytes.
    pub(crate) fn allocate_pinned(&self, len: usize) -> Result<PinnedAllocation> {
        let mut host: *mut c_void = ptr::null_mut();
        let flags = sys::HOST_PORTABLE | sys::HOST_DEVICE_MAP;
        // SAFETY: writes one address.
        let status = unsafe { (self.cuda().api.cuMemHostAlloc)(&raw mut host, len, flags) };
        status
            .check("cuMemHostAlloc")
            .map_err(|error| describe(error, format_args!("{len} pinned bytes")))?;
        let host = NonNull::new(host.cast::<u8>()).ok_or_else(|| null("cuMemHostAlloc"))?;
        // From here on a drop frees it.
        let mut pinned = PinnedAllocation {
            context: self.context().clone(),
            host,
            device: DevicePtr::of_host(host.as_ptr()),
            len,
        };
        // SAFETY: `len` bytes that were allocated just now and that nobody else knows.
        unsafe { host.as_ptr().write_bytes(0, len) };
        pinned.device = self.device_ptr_of(host)?;
        Ok(pinned)
    }

    /// Pins `len` bytes of host memory for the driver. About a tenth of a second for a GiB. What the program has pinned already is no error:
    /// the registration then owns nothing.
    /// Errors: `InvalidArgument`: not memory of this process, or no bytes; `Exhausted`; `Unsupported`.
    ///
    /// # Safety
    /// The memory stays mapped until the registration is dropped.
    pub(crate) unsafe fn register_host(
        &self,
        host: NonNull<u8>,
        len: usize,
        writable: bool,
    ) -> Result<HostRegistration> {
        let mut flags = sys::HOST_PORTABLE | sys::HOST_DEVICE_MAP;
        if !writable
            && self
                .context()
                .device()
                .has(Attribute::ReadOnlyHostRegister)?
        {
            flags |= sys::HOST_READ_ONLY;
        }
        // SAFETY: the caller vouches for the memory.
        let status =
            unsafe { (self.cuda().api.cuMemHostRegister_v2)(host.as_ptr().cast(), len, flags) };
        let owned = status != Status::HOST_MEMORY_ALREADY_REGISTERED;
        if owned {
            status
                .check("cuMemHostRegister_v2")
                .map_err(|error| describe(error, format_args!("{len} bytes at {host:p}")))?;
        }
        let mut registration = HostRegistration {
            context: self.context().clone(),
            host,
            device: DevicePtr::of_host(host.as_ptr()),
            owned,
        };
        if owned {
            registration.device = self.device_ptr_of(host)?;
        }
        Ok(registration)
    }

    /// Where the device sees a byte of pinned memory.
    fn device_ptr_of(&self, host: NonNull<u8>) -> Result<DevicePtr> {
        let mut device = DevicePtr::default();
        // SAFETY: writes one address; the other argument is only looked up.
        let status = unsafe {
            (self.cuda().api.cuMemHostGetDevicePointer_v2)(&raw mut device, host.as_ptr().cast(), 0)
        };
        status.check("cuMemHostGetDevicePointer_v2")?;
        Ok(device)
    }

    /// The whole allocation that an address belongs to: where it begins, and its bytes. Be in the context that the address belongs to.
    /// Errors: `InvalidArgument`: the driver does not know the address.
    pub(crate) fn address_range(&self, at: DevicePtr) -> Result<(DevicePtr, usize)> {
        let (mut base, mut len) = (DevicePtr::default(), 0);
        // SAFETY: writes an address and a number; the third is only looked up.
        let status =
            unsafe { (self.cuda().api.cuMemGetAddressRange_v2)(&raw mut base, &raw mut len, at) };
        status
            .check("cuMemGetAddressRange_v2")
            .map_err(|error| describe(error, format_args!("{at}")))?;
        Ok((base, len))
    }

    /// Exports device memory as a dma-buf. It covers whole pages; the offset says where `start` lies. With `pcie` the mapping is by PCIe
    /// even where a faster link is there, for cards with a direct path of their own.
    /// Errors: `Unsupported`: device or driver have none, or the memory is of a kind that has none; `InvalidArgument`: the range is not all of one
    /// allocation.
    pub(crate) fn export_dma_buf(
        &self,
        start: DevicePtr,
        len: usize,
        pcie: bool,
    ) -> Result<DmaBuf> {
        let cuda = self.cuda();
        let function = cuda.api.cuMemGetHandleForAddressRange;
        let call = cuda.optional(function, "cuMemGetHandleForAddressRange")?;
        if !self.context().device().has(Attribute::DmaBuf)? {
            let why = format!("{:?} exports no dma-buf", self.context().device());
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let (base, whole) = pages(start, len)?;
        let mut fd: RawFd = -1;
        let flags = if pcie { sys::RANGE_PCIE } else { 0 };
        // SAFETY: with this handle type the driver writes one `int`.
        let status = unsafe {
            call(
                (&raw mut fd).cast(),
                base,
                whole,
                sys::RANGE_DMA_BUF_FD,
                flags,
            )
        };
        status
            .check("cuMemGetHandleForAddressRange")
            .map_err(|error| describe(error, format_args!("{whole} bytes at {base}")))?;
        if fd < 0 {
            return Err(null("cuMemGetHandleForAddressRange"));
        }
        Ok(DmaBuf {
            // SAFETY: a new descriptor that the driver gave to this call.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            offset: start - base,
            len: whole as u64,
        })
    }
}

/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST`.
const FLUSH_BY_HOST: i32 = 1;

impl ContextGuard<'_> {
    /// What other devices have written into memory of this context's device, and said so, is seen by work that begins later. Blocks: some microseconds.
    /// Errors: `Unsupported`: the driver or device has no such call; what the driver said.
    pub(crate) fn flush_remote_writes(&self) -> Result<()> {
        let cuda = self.cuda();
        let function = cuda.api.cuFlushGPUDirectRDMAWrites;
        let call = cuda.optional(function, "cuFlushGPUDirectRDMAWrites")?;
        let device = self.context().device();
        if device.attribute(Attribute::GpuDirectFlushOptions)? & FLUSH_BY_HOST == 0 {
            let why = format!("{device:?} does not have such writes flushed by the host");
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        // SAFETY: numbers; the context is current.
        let status = unsafe { call(sys::FLUSH_CURRENT_CONTEXT, sys::FLUSH_TO_ALL_DEVICES) };
        status.check("cuFlushGPUDirectRDMAWrites")
    }
}

/// The pages of the host that a range touches: where they begin, and their bytes.
fn pages(start: DevicePtr, len: usize) -> Result<(DevicePtr, usize)> {
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = u64::try_from(page).unwrap_or(4096);
    let base = start.0 / page * page;
    let end = (len as u64)
        .checked_add(start.0)
        .and_then(|end| end.checked_next_multiple_of(page));
    match end.and_then(|end| usize::try_from(end - base).ok()) {
        Some(whole) if len > 0 => Ok((DevicePtr(base), whole)),
        _ => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{len} bytes at {start} are no range"),
        )),
    }
}

/// What an address is to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PointerKind {
    /// Nothing that the driver knows: plain host memory, or freed.
    Unknown,
    /// Host memory that is pinned: allocated by the driver, or registered.
    HostPinned,
    /// Device memory of one context.
    Device,
    /// Device memory mapped by the virtual memory calls: of no context, perhaps of several pieces.
    DeviceVirtual,
    /// Device memory of a pool: of no context.
    DevicePool,
    /// Managed memory, which host and device both reach. It has no IPC and no dma-buf.
    Managed,
}

/// All that the driver says of an address, by one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointerInfo {
    /// What it is.
    pub(crate) kind: PointerKind,
    /// The device's ordinal; `None` for what the driver does not know.
    pub(crate) device: Option<u16>,
    /// The context that it belongs to, if it belongs to one.
    pub(crate) context: Option<RawContext>,
    /// Different for each allocation of the process's life: an address that was freed and allocated anew has another. 0: none.
    pub(crate) buffer_id: u64,
    /// Where the allocation begins, and its bytes, as far as one call tells: of virtual memory it may be one piece.
    pub(crate) range: Option<(DevicePtr, u64)>,
    /// Whether [`ContextGuard::ipc_export`] takes it.
    pub(crate) legacy_ipc: bool,
    /// Whether it can be exported as a file descriptor.
    pub(crate) posix_fd: bool,
    /// Whether it can be exported as a fabric handle.
    pub(crate) fabric: bool,
    /// The pool that it is of.
    pub(crate) pool: Option<RawPool>,
}

impl PointerInfo {
    const UNKNOWN: Self = Self {
        kind: PointerKind::Unknown,
        device: None,
        context: None,
        buffer_id: 0,
        range: None,
        legacy_ipc: false,
        posix_fd: false,
        fabric: false,
        pool: None,
    };
}

/// What is asked for, the most important first. A driver that does not know one refuses all, so older ones are asked for less.
const ASKED: [u32; 10] = [
    pointer::MEMORY_TYPE,
    pointer::IS_MANAGED,
    pointer::DEVICE_ORDINAL,
    pointer::CONTEXT,
    pointer::BUFFER_ID,
    pointer::RANGE_START,
    pointer::RANGE_SIZE,
    pointer::LEGACY_IPC,
    pointer::ALLOWED_HANDLE_TYPES,
    pointer::MEMPOOL,
];

/// How many of them: all; without the pool, which CUDA 11.3 brought; those of CUDA 9.2.
const SHORTER: [usize; 3] = [ASKED.len(), ASKED.len() - 1, 5];

impl Cuda {
    /// Says what an address is. It need not be one that the driver knows. No context need be current; takes about 2 µs. When nobody in the
    /// process has initialised the driver, it knows no address.
    /// Errors: `Forked`, and what the driver reports.
    pub(crate) fn inspect(&self, at: DevicePtr) -> Result<PointerInfo> {
        self.usable()?;
        let first = usize::from(self.version() < Version(11_030));
        let mut values = [0_u64; ASKED.len()];
        let mut status = Status::INVALID_VALUE;
        for count in &SHORTER[first..] {
            values = [0; ASKED.len()];
            status = self.attributes(*count, &mut values, at);
            if status != Status::INVALID_VALUE {
                break;
            }
        }
        match status {
            // Nobody has initialised it; or it takes not even the shortest list for an address that it does not know.
            Status::NOT_INITIALIZED | Status::INVALID_VALUE => Ok(PointerInfo::UNKNOWN),
            status => {
                status.check("cuPointerGetAttributes")?;
                Ok(decide(&values))
            }
        }
    }

    fn attributes(&self, count: usize, values: &mut [u64; ASKED.len()], at: DevicePtr) -> Status {
        let mut asked = ASKED;
        // Each gets 8 zeroed bytes, more than any of them is wide; the machine is little-endian.
        let base = values.as_mut_ptr();
        let mut data: [*mut c_void; ASKED.len()] =
            std::array::from_fn(|index| base.wrapping_add(index).cast());
        // SAFETY: `count` is at most the length of both arrays; every attribute is at most 8 bytes wide and goes into its own word.
        unsafe {
            (self.api.cuPointerGetAttributes)(
                count as u32,
                asked.as_mut_ptr(),
                data.as_mut_ptr(),
                at,
            )
        }
    }

    /// The number of the allocation that an address belongs to, to be compared with one kept: another number, or none, means that what was
    /// kept is of an allocation that is freed. Takes about 1 µs.
    /// Errors: `Forked`, and what the driver reports.
    pub(crate) fn buffer_id(&self, at: DevicePtr) -> Result<Option<u64>> {
        self.usable()?;
        let mut id = 0_u64;
        // SAFETY: this attribute is 8 bytes wide.
        let status = unsafe {
            (self.api.cuPointerGetAttribute)((&raw mut id).cast(), pointer::BUFFER_ID, at)
        };
        match status {
            // How this call says that it does not know the address.
            Status::INVALID_VALUE | Status::NOT_INITIALIZED => Ok(None),
            status => status
                .check("cuPointerGetAttribute")
                .map(|()| Some(id).filter(|id| *id != 0)),
        }
    }

    /// Has the driver's copies of this allocation seen by third parties when they are said to be done. Once for each allocation.
    /// Errors: `Unsupported`, `InvalidArgument`: virtual memory and pools do not take it ([`ContextGuard::set_sync_memops`] does).
    pub(crate) fn set_sync_memops(&self, at: DevicePtr) -> Result<()> {
        self.usable()?;
        let yes = 1_u32;
        // SAFETY: this attribute is read as an `unsigned int`.
        let status = unsafe {
            (self.api.cuPointerSetAttribute)((&raw const yes).cast(), pointer::SYNC_MEMOPS, at)
        };
        status.check("cuPointerSetAttribute")
    }

    /// Whether managed memory prefers the device with this ordinal; `None`: the host, or nobody said.
    /// Errors: what the driver reports.
    pub(crate) fn preferred_location(&self, at: DevicePtr, len: usize) -> Result<Option<u16>> {
        self.usable()?;
        let call = self.optional(self.api.cuMemRangeGetAttribute, "cuMemRangeGetAttribute")?;
        let mut ordinal = sys::DEVICE_CPU;
        // SAFETY: this attribute is 4 bytes wide, as told.
        let status = unsafe {
            call(
                (&raw mut ordinal).cast(),
                size_of::<i32>(),
                sys::RANGE_PREFERRED_LOCATION,
                at,
                len,
            )
        };
        status.check("cuMemRangeGetAttribute")?;
        // Below 0 are the host and "nobody said".
        Ok(u16::try_from(ordinal).ok())
    }
}

/// What the values of [`ASKED`] mean.
fn decide(values: &[u64; ASKED.len()]) -> PointerInfo {
    let [
        kind,
        managed,
        ordinal,
        context,
        buffer_id,
        start,
        len,
        ipc,
        handles,
        pool,
    ] = *values;
    // The driver writes 4 bytes, or 1 for a yes or no, into zeroed words.
    let yes = |value: u64| value as u32 != 0;
    let context = Some(RawContext(context as usize)).filter(|raw| *raw != RawContext::NULL);
    let pool = Some(RawPool(pool as usize)).filter(|raw| *raw != RawPool::NULL);
    let kind = match kind as u32 {
        _ if yes(managed) => PointerKind::Managed,
        sys::MEMORY_HOST => PointerKind::HostPinned,
        sys::MEMORY_DEVICE if pool.is_some() => PointerKind::DevicePool,
        sys::MEMORY_DEVICE if context.is_none() => PointerKind::DeviceVirtual,
        sys::MEMORY_DEVICE => PointerKind::Device,
        sys::MEMORY_UNIFIED => PointerKind::Managed,
        // 0: the driver does not know it. An array (3) has no address.
        _ => return PointerInfo::UNKNOWN,
    };
    PointerInfo {
        kind,
        device: u16::try_from(ordinal as u32 as i32).ok(),
        context,
        buffer_id,
        range: (len != 0).then_some((DevicePtr(start), len)),
        legacy_ipc: yes(ipc),
        posix_fd: handles & u64::from(sys::HANDLE_POSIX_FD) != 0,
        fabric: handles & u64::from(sys::HANDLE_FABRIC) != 0,
        pool,
    }
}

/// Adds to an error of the driver what it was about.
pub(super) fn describe(error: Error, what: fmt::Arguments<'_>) -> Error {
    let status = Status::of(&error);
    let described = Error::new(error.kind(), format!("{error} ({what})"));
    match status {
        Some(status) => described.with_source(status),
        None => described,
    }
}

/// The error for a call that succeeded and gave nothing.
pub(super) fn null(call: &str) -> Error {
    Error::new(ErrorKind::Io, format!("{call} succeeded and gave nothing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values with the first five given, the rest as of an allocation of 4096 bytes at 0x1000.
    fn values(first: [u64; 5], pool: u64) -> [u64; ASKED.len()] {
        let [kind, managed, ordinal, context, id] = first;
        [
            kind, managed, ordinal, context, id, 0x1000, 4096, 1, 1, pool,
        ]
    }

    #[test]
    fn the_decision_table() {
        // Ordinal -2 (`CU_DEVICE_INVALID`), 4 bytes wide, for what the driver does not know.
        let unknown = decide(&[0, 0, 0xffff_fffe, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((unknown.kind, unknown.device), (PointerKind::Unknown, None));
        for (first, pool, kind) in [
            ([1, 0, 0, 5, 9], 0, PointerKind::HostPinned),
            ([2, 0, 1, 5, 9], 0, PointerKind::Device),
            ([2, 0, 1, 0, 9], 0, PointerKind::DeviceVirtual),
            ([2, 0, 1, 0, 9], 7, PointerKind::DevicePool),
            ([2, 1, 1, 5, 9], 0, PointerKind::Managed),
            ([1, 1, 1, 5, 9], 0, PointerKind::Managed),
            ([4, 0, 1, 5, 9], 0, PointerKind::Managed),
            ([3, 0, 1, 5, 9], 0, PointerKind::Unknown),
        ] {
            assert_eq!(decide(&values(first, pool)).kind, kind, "{first:?} {pool}");
        }
        let device = decide(&values([2, 0, 1, 5, 9], 0));
        assert_eq!(device.device, Some(1));
        assert_eq!(device.context, Some(RawContext(5)));
        assert_eq!(device.range, Some((DevicePtr(0x1000), 4096)));
        assert!(device.legacy_ipc && device.posix_fd);
    }

    #[test]
    fn dma_bufs_cover_whole_pages() {
        let page = pages(DevicePtr(0), 1).unwrap().1 as u64;
        for (start, len, base, whole) in [
            (0, page, 0, page),
            (1, page - 1, 0, page),
            (1, page, 0, 2 * page),
            (page - 1, 2, 0, 2 * page),
            (3 * page + 8, 8, 3 * page, page),
        ] {
            let got = pages(DevicePtr(start), len as usize).unwrap();
            assert_eq!(got, (DevicePtr(base), whole as usize), "{start} {len}");
        }
        assert!(pages(DevicePtr(64), 0).is_err());
        assert!(pages(DevicePtr(u64::MAX - 8), 64).is_err());
    }
}
