//! Host memory of wharf's own, in segments that a process of the same host can map.
//!
//! # Safety
//! A [`HostBufferMut`] is the only handle to its bytes in this process, so that slices of it follow the borrow of the
//! handle. Another process comes at the bytes only by the segment's descriptor. wharf hands that out for memory that was
//! exposed, and exposing takes the buffer; sealed against writing, for a buffer that is frozen, which nobody writes any more; and for
//! one that is received into ([`Segment::lend`]), to a process that the kernel lets write all memory of this one anyway.
#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    fmt, io,
    ops::{Deref, DerefMut},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    slice,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;

use super::{AddressRange, Cause, invalidate, mlock};
use crate::{
    error::{Error, ErrorKind, Result},
    sys::{
        fork,
        memfd::{self, HUGE_PAGE, Mapping, Memfd},
        pages, udmabuf,
    },
    trace,
    types::{Access, EndpointId},
    util::lock::Mutex,
};

/// A piece of shareable memory: a sealed memfd and its mapping in this process.
#[derive(Debug)]
pub(crate) struct Segment {
    id: u64,
    /// `None`: the system makes no such memory, and this is the process's own.
    fd: Option<OwnedFd>,
    mapping: Mapping,
    huge: bool,
    /// Another process has it, and keeps what it has.
    given: AtomicBool,
    /// The connection that it is lent to for writing, or [`NOBODY`], or [`APART`].
    lent_to: AtomicU64,
    /// Regions that expose it for writing.
    exposed: AtomicUsize,
    /// Held while the loan ends.
    ending: Mutex<()>,
    /// Its pages are to stay in memory.
    locked: AtomicBool,
}

/// No connection has this id.
const NOBODY: u64 = 0;
/// It was lent, and is no more: the descriptor leads to other memory than the mapping here.
const APART: u64 = u64::MAX;

impl Segment {
    /// Makes one of `len` zero bytes (at least 1).
    fn allocate(len: usize) -> Result<Self> {
        let memory = Memfd::create_sealable(c"wharf-buffer", len);
        let made = match Self::of(memory, false) {
            Err(error) if memfd::is_forbidden(&error) => {
                let remedy = "allow memfd_create (a seccomp profile refuses it)";
                trace::slower!("no memfd for buffers", target: "wharf::memory", %error, remedy, "buffers are of memory that no peer maps");
                Mapping::anonymous(len).map(|mapping| Self::with(None, mapping, false))
            }
            made => made,
        };
        made.map_err(|error| {
            Error::io(format!("allocating {len} bytes of shareable memory"), error)
        })
    }

    /// Makes one of huge pages, of at least `len` bytes.
    fn allocate_huge(len: usize) -> io::Result<Self> {
        Self::of(Memfd::create_huge(c"wharf-buffer", len), true)
    }

    fn of(memory: io::Result<Memfd>, huge: bool) -> io::Result<Self> {
        let memory = memory?;
        let mapping = memory.map()?;
        Ok(Self::with(Some(memory.into_fd()), mapping, huge))
    }

    fn with(fd: Option<OwnedFd>, mapping: Mapping, huge: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            fd,
            mapping,
            huge,
            given: AtomicBool::new(false),
            lent_to: AtomicU64::new(NOBODY),
            exposed: AtomicUsize::new(0),
            ending: Mutex::default(),
            locked: AtomicBool::new(false),
        }
    }

    /// From here on it is [found](segment_at) by its addresses.
    fn known(self) -> Arc<Self> {
        let start = self.mapping.as_ptr() as u64;
        let segment = Arc::new(self);
        // In a fork's child a thread that is not there may hold the lock.
        if segment.fd.is_some() && !fork::forked() {
            SEGMENTS.lock().insert(start, Arc::downgrade(&segment));
        }
        segment
    }

    /// The part of it at `range`, which is in it and of whole pages, as a dma-buf of the same pages. Whoever has that keeps them.
    /// Errors: as of [`udmabuf::create`]; `Unsupported`: it has no descriptor that leads to what is here.
    pub(crate) fn export(&self, range: AddressRange) -> io::Result<OwnedFd> {
        let start = self.mapping.as_ptr() as u64;
        // A loan that ends would part it from its descriptor.
        let _alone = self.ending.lock();
        let lent_to = self.lent_to.load(Ordering::Acquire);
        let fd = self
            .fd()
            .filter(|_| lent_to == NOBODY)
            .ok_or(io::ErrorKind::Unsupported)?;
        let made = udmabuf::create(fd, range.start() - start, range.len())?;
        self.set_given();
        Ok(made)
    }

    /// Its number in this process; never used again.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// What a peer maps it by, after [`Mapping::of_received`]'s checks.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Whether a peer would map it: not huge pages that the system keeps ready, see [`Mapping::of_received`]; and whether it would find there what is here.
    pub(crate) fn is_mappable(&self) -> bool {
        !self.huge && self.fd.is_some() && self.lent_to.load(Ordering::Acquire) != APART
    }

    /// Seals it: peers that get it from here on read it, and write nothing.
    pub(crate) fn seal(&self) -> bool {
        let Some(fd) = self.fd() else {
            return false;
        };
        let sealed = memfd::seal_writing(fd);
        if let Err(error) = &sealed {
            tracing::debug!(target: "wharf::memory", %error, "a buffer cannot be sealed, so no peer maps it");
        }
        sealed.is_ok()
    }

    /// Whether a peer that was shown it for this may have it. For reading alone it is sealed; unless another region exposes it for writing,
    /// whose puts could not go straight to it any more.
    pub(crate) fn may_go(&self, access: Access) -> bool {
        access.contains(Access::WRITE) || self.exposed.load(Ordering::Relaxed) == 0 && self.seal()
    }

    /// A region exposes it for writing, or does no longer.
    pub(crate) fn set_exposed(&self, yes: bool) {
        match yes {
            true => self.exposed.fetch_add(1, Ordering::Relaxed),
            false => self.exposed.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Lends it to a connection for writing, unless it was lent to another, or its pages are to stay: `None`. Whether it was not lent before.
    pub(crate) fn lend(&self, to: EndpointId) -> Option<bool> {
        if self.locked.load(Ordering::Relaxed) {
            return None;
        }
        let lent =
            self.lent_to
                .compare_exchange(NOBODY, to.0, Ordering::Relaxed, Ordering::Relaxed);
        match lent {
            Ok(_) => Some(true),
            Err(before) => (before == to.0).then_some(false),
        }
    }

    /// The connection that may write it.
    #[inline]
    fn lent_to(&self) -> Option<EndpointId> {
        match self.lent_to.load(Ordering::Acquire) {
            NOBODY | APART => None,
            id => Some(EndpointId(id)),
        }
    }

    /// Ends the loan: what is written here from now on is not seen by who has it. It is not lent again.
    /// Errors: `Exhausted`: the system has no mapping left.
    pub(crate) fn end_loan(&self) -> Result<()> {
        let _alone = self.ending.lock();
        let Some(fd) = self.fd().filter(|_| self.lent_to().is_some()) else {
            return Ok(());
        };
        self.mapping
            .part(fd)
            .map_err(|error| Error::io("taking back a buffer that a peer has mapped", error))?;
        // Whatever was registered are the pages that the peer has.
        let range = AddressRange::of_mapping(self.mapping.as_ptr(), self.mapping.len());
        invalidate(range, Cause::Unmapped);
        self.lent_to.store(APART, Ordering::Release);
        Ok(())
    }

    /// Notes that it goes to another process.
    pub(crate) fn set_given(&self) {
        self.given.store(true, Ordering::Relaxed);
    }

    /// Its mapping in this process.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

/// The segments of this process that have a descriptor, by their first address.
static SEGMENTS: Mutex<BTreeMap<u64, Weak<Segment>>> = Mutex::new(BTreeMap::new());

/// The segment that all of a range lies in. None in a fork's child.
pub(crate) fn segment_at(range: AddressRange) -> Option<Arc<Segment>> {
    if fork::forked() {
        return None;
    }
    let segments = SEGMENTS.lock();
    let (_, segment) = segments.range(..=range.start()).next_back()?;
    let segment = segment.upgrade()?;
    drop(segments);
    let mapping = &segment.mapping;
    let whole = AddressRange::of_mapping(mapping.as_ptr(), mapping.len());
    whole.contains(range).then_some(segment)
}

impl Drop for Segment {
    /// Before it is unmapped: no registration of it is given out for what is mapped there next.
    fn drop(&mut self) {
        // In a fork's child the list and its lock are as a thread of the parent left them, and nothing is registered.
        if fork::forked() {
            return;
        }
        SEGMENTS.lock().remove(&(self.mapping.as_ptr() as u64));
        let range = AddressRange::of_mapping(self.mapping.as_ptr(), self.mapping.len());
        invalidate(range, Cause::Freed);
    }
}

/// Unique host memory that wharf allocated: page aligned, zeroed at first, and reachable for processes of the same host
/// without a copy once it is exposed.
///
/// Each is a file descriptor and a mapping: meant for long-lived buffers, not for one buffer a message. A child made by
/// `fork` shares the memory instead of getting a copy.
#[derive(Default)]
pub struct HostBufferMut {
    /// None for no bytes.
    segment: Option<Arc<Segment>>,
    len: usize,
}

impl HostBufferMut {
    /// Allocates `len` bytes, with huge pages from 2 MiB on where the system gives them to shared memory.
    ///
    /// # Errors
    /// `InvalidArgument` for an impossible length, `Exhausted` when descriptors or memory ran out.
    pub fn allocate(len: usize) -> Result<Self> {
        let segment = match possible(len)? {
            0 => None,
            len => Some(Segment::allocate(len)?.known()),
        };
        Ok(Self { segment, len })
    }

    /// Allocates `len` bytes from the huge pages of 2 MiB that the system keeps ready (`vm.nr_hugepages`). Where it has too few, allocates as
    /// [`allocate`](Self::allocate) does; [`page_size`](Self::page_size) tells which it was.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_huge(len: usize) -> Result<Self> {
        if possible(len)? == 0 {
            return Ok(Self::default());
        }
        match Segment::allocate_huge(len) {
            Ok(segment) => Ok(Self {
                segment: Some(segment.known()),
                len,
            }),
            Err(error) => {
                tracing::debug!(target: "wharf::memory", %error, len, "no huge pages: other pages are taken");
                Self::allocate(len)
            }
        }
    }

    /// Bytes of its pages: 2 MiB when they are huge pages that the system keeps ready, else the system's page. (Of these the kernel may still make
    /// huge ones, without a word.)
    #[must_use]
    pub fn page_size(&self) -> usize {
        match &self.segment {
            Some(segment) if segment.huge => HUGE_PAGE,
            _ => pages::page_size(),
        }
    }

    /// Keeps its pages in memory until it is freed (`mlock(2)`): no fault and no swap delays whoever touches them.
    ///
    /// # Errors
    /// `Exhausted`: `RLIMIT_MEMLOCK` allows no more, or there is no memory. `PermissionDenied`: this process may lock nothing.
    #[doc(alias = "UCP_MEM_MAP_LOCK")]
    pub fn lock(&self) -> Result<()> {
        match &self.segment {
            Some(segment) => {
                // With the loan the mapping would go, and its lock.
                segment.locked.store(true, Ordering::Relaxed);
                segment.end_loan()?;
                let mapping = &segment.mapping;
                mlock::lock(AddressRange::of_mapping(mapping.as_ptr(), mapping.len()))
            }
            None => Ok(()),
        }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where a peer finds it: the segment, and the first byte's place in it. `None` when it has no bytes.
    pub(crate) fn segment(&self) -> Option<(&Arc<Segment>, usize)> {
        self.segment.as_ref().map(|segment| (segment, 0))
    }

    /// The connection that may write it.
    #[inline]
    pub(crate) fn lent_to(&self) -> Option<EndpointId> {
        self.segment.as_ref()?.lent_to()
    }

    /// Ends its loan.
    /// Errors: as [`Segment::end_loan`].
    #[cold]
    pub(crate) fn end_loan(&self) -> Result<()> {
        let segment = self.segment.as_ref();
        segment.map_or(Ok(()), |segment| segment.end_loan())
    }

    /// Whether another process has it, which keeps what it has.
    pub(crate) fn was_given(&self) -> bool {
        let segment = self.segment.as_ref();
        segment.is_some_and(|segment| segment.given.load(Ordering::Relaxed))
    }

    /// Another of this length and kind of pages.
    /// Errors: as [`HostBufferMut::allocate`].
    pub(crate) fn another(&self) -> Result<Self> {
        match &self.segment {
            Some(segment) if segment.huge => Self::allocate_huge(self.len),
            _ => Self::allocate(self.len),
        }
    }

    /// The segment and the length.
    pub(crate) fn into_segment(self) -> Option<(Arc<Segment>, usize)> {
        self.segment.map(|segment| (segment, self.len))
    }

    /// First byte; does not move with the value.
    pub(crate) fn address(&self) -> *mut u8 {
        match &self.segment {
            Some(segment) => segment.mapping.as_ptr(),
            None => NonNull::dangling().as_ptr(),
        }
    }
}

/// The length, if a slice can have it.
fn possible(len: usize) -> Result<usize> {
    match isize::try_from(len) {
        Ok(_) => Ok(len),
        Err(_) => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("no buffer can have {len} bytes"),
        )),
    }
}

impl Deref for HostBufferMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has at least `len` readable bytes for as long as `self.segment` lives; in this process only
        // this value reaches them, and it is borrowed; with no bytes the address is dangling, as a slice may be.
        unsafe { slice::from_raw_parts(self.address(), self.len) }
    }
}

impl DerefMut for HostBufferMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the borrow is unique.
        unsafe { slice::from_raw_parts_mut(self.address(), self.len) }
    }
}

impl AsRef<[u8]> for HostBufferMut {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for HostBufferMut {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl From<HostBufferMut> for Bytes {
    /// Without a copy: the memory lives as long as these.
    fn from(buffer: HostBufferMut) -> Self {
        Self::from_owner(buffer)
    }
}

impl fmt::Debug for HostBufferMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBufferMut({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_lent_once() {
        let memory = HostBufferMut::allocate(100).expect("memory");
        let segment = memory.segment.as_ref().expect("a segment");
        let lent = [1, 1, 2, 1].map(|to| segment.lend(EndpointId(to)));
        assert_eq!(lent, [Some(true), Some(false), None, Some(false)]);
    }

    /// A child has the list as it was while another thread of the parent changed it.
    #[test]
    fn a_child_waits_for_no_thread_of_its_parent() {
        let memory = HostBufferMut::allocate(100).expect("memory");
        let segments = SEGMENTS.lock();
        // SAFETY: the child drops its share of the memory, asks and allocates, which take no lock that is held, and ends; the alarm ends it if it waits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::alarm(20) };
            let found = segment_at(AddressRange::of(&memory)).is_some();
            drop(memory);
            let status = i32::from(found || HostBufferMut::allocate(100).is_err());
            // SAFETY: as above.
            unsafe { libc::_exit(status) };
        }
        drop(segments);
        assert!(child > 0, "no child");
        let mut status = 0;
        // SAFETY: `status` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child waits for a lock that nobody lets go");
    }

    #[test]
    fn is_zeroed_aligned_and_writable() {
        for len in [1, 100, 4096, 5000, (2 << 20) + 1] {
            let mut buffer = HostBufferMut::allocate(len).expect("allocate");
            assert_eq!(buffer.len(), len);
            assert!(buffer.iter().all(|byte| *byte == 0));
            assert_eq!(buffer.address() as usize % 4096, 0);
            buffer.fill(3);
            assert!(buffer.iter().all(|byte| *byte == 3));
        }
    }

    #[test]
    fn a_peer_maps_the_same_bytes() {
        let mut buffer = HostBufferMut::allocate(100).expect("allocate");
        buffer[99] = 9;
        let (segment, offset) = buffer.segment().expect("segment");
        let fd = segment.fd().expect("a memfd");
        let peer = Mapping::of_received(fd, segment.mapping().len()).expect("map");
        // SAFETY: the mapping has 100 bytes, and nothing writes them now.
        assert_eq!(unsafe { peer.as_ptr().add(offset + 99).read() }, 9);
        // SAFETY: as before; nothing borrows the buffer now.
        unsafe { peer.as_ptr().add(offset).write(8) };
        assert_eq!(buffer[0], 8);
    }

    #[test]
    fn ids_are_not_used_again() {
        let id = |buffer: &HostBufferMut| buffer.segment().map(|(segment, _)| segment.id());
        let one = HostBufferMut::allocate(1).expect("allocate");
        let first = id(&one);
        drop(one);
        let two = HostBufferMut::allocate(1).expect("allocate");
        assert!(first.is_some() && id(&two) > first);
    }

    #[test]
    fn huge_pages_or_others() {
        let mut buffer = HostBufferMut::allocate_huge(5000).expect("allocate");
        assert_eq!(buffer.len(), 5000);
        buffer.fill(1);
        assert_eq!(buffer.address() as usize % buffer.page_size(), 0);
        let (segment, _) = buffer.segment().expect("segment");
        let fd = segment.fd().expect("a memfd");
        Mapping::of_received(fd, segment.mapping().len()).expect("a peer's mapping");
        assert!(HostBufferMut::allocate_huge(0).expect("none").is_empty());
        assert!(HostBufferMut::allocate_huge(usize::MAX).is_err());
        // More than any machine keeps ready.
        if let Ok(buffer) = HostBufferMut::allocate_huge(1 << 45) {
            assert_ne!(buffer.page_size(), HUGE_PAGE);
        }
    }

    #[test]
    fn locked_pages() {
        let buffer = HostBufferMut::allocate(10_000).expect("allocate");
        buffer.lock().expect("three pages that are locked");
        buffer.lock().expect("twice is once");
        HostBufferMut::default().lock().expect("nothing to lock");
    }

    #[test]
    fn empty_and_impossible_lengths() {
        let mut empty = HostBufferMut::allocate(0).expect("allocate");
        assert!(empty.is_empty() && empty.segment().is_none());
        assert_eq!(&mut empty[..], &mut [] as &mut [u8]);
        let error = HostBufferMut::allocate(usize::MAX).expect_err("impossible");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}
