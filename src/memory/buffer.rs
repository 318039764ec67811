//! The buffers that operations take: shared for sends, unique for receives.
//!
//! # Safety
//! Every variant keeps its bytes valid, and where they are, for as long as the value lives, however often the value itself
//! is moved: a mapping, a heap block, or memory whose owner rides along. The bytes of a [`Buffer`] do not change while it
//! lives; those of a [`BufferMut`] are reached through it alone.
#![allow(unsafe_code)]

use std::{
    any::Any,
    fmt,
    ops::{Range, RangeBounds},
    ptr::{self, NonNull},
    slice,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use bytes::{Bytes, BytesMut};

use super::{
    AddressRange, DomainMemory, HostBufferMut, Segment,
    pieces::{Extent, List, ListMut, Piece, PieceMut},
};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    types::{EndpointId, MemoryType},
    util::{
        copy::{copy_part, copy_slice},
        slicing::within,
    },
};

/// Shared, immutable memory to send from. Cheap to clone and to slice.
///
/// An operation in flight owns a clone, so the bytes live as long as it needs them, whatever happens to its future. Made
/// by `From` of `Vec<u8>`, [`Bytes`], `&'static [u8]`, `&'static str`, [`HostBufferMut`], and of several at once by
/// [`BufferList`](crate::BufferList).
#[derive(Clone)]
#[doc(alias("ucp_dt_make_contig", "UCP_DATATYPE_CONTIG", "ucp_datatype_t"))]
pub struct Buffer(Shared);

#[derive(Clone)]
enum Shared {
    Bytes(Bytes),
    Segment {
        segment: Arc<Segment>,
        offset: usize,
        len: usize,
    },
    Raw(RawShared),
    Domain {
        memory: Arc<dyn DomainMemory>,
        offset: usize,
        len: usize,
    },
    List(Arc<List<Buffer>>),
}

/// Memory that its owner keeps valid.
#[derive(Clone)]
struct RawShared {
    address: *const u8,
    len: usize,
    owner: Owner,
}

type Owner = Arc<dyn Any + Send + Sync>;

// SAFETY: the bytes do not change while any clone lives (contract of `Buffer::from_raw`), so threads may read them at
// once; the owner is Send and Sync itself.
unsafe impl Send for RawShared {}
// SAFETY: as for Send.
unsafe impl Sync for RawShared {}

impl Buffer {
    /// An empty buffer.
    #[must_use]
    pub const fn new() -> Self {
        Self(Shared::Bytes(Bytes::new()))
    }

    /// Host memory that `owner` keeps. The owner is dropped with the last clone.
    ///
    /// # Safety
    /// The `len` bytes at `address` must be readable, stay where they are and not change until `owner` is dropped;
    /// `address` must not be null, and `len` at most `isize::MAX`.
    #[must_use]
    pub unsafe fn from_raw(
        address: *const u8,
        len: usize,
        owner: impl Send + Sync + 'static,
    ) -> Self {
        Self(Shared::Raw(RawShared {
            address,
            len,
            owner: Arc::new(owner),
        }))
    }

    /// Bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Shared::Bytes(bytes) => bytes.len(),
            Shared::Segment { len, .. } => *len,
            Shared::Raw(raw) => raw.len,
            Shared::Domain { len, .. } => *len,
            Shared::List(list) => list.len(),
        }
    }

    /// Makes it unique again, without a copy, when this is the only clone and it is all of its memory: a device's, or bytes on the heap. So memory that
    /// was sent is received into, allocated once.
    ///
    /// # Errors
    /// Gives it back when it is shared, a part, or memory of another kind.
    pub fn try_into_mut(self) -> Result<BufferMut, Self> {
        match self.0 {
            Shared::Bytes(bytes) => match bytes.try_into_mut() {
                Ok(bytes) => Ok(bytes.into()),
                Err(bytes) => Err(bytes.into()),
            },
            Shared::Domain {
                memory,
                offset: 0,
                len,
            } if len as u64 == memory.range().len() && Arc::strong_count(&memory) == 1 => {
                // With the drops of the others: they have read what they wanted.
                fence(Ordering::Acquire);
                Ok(BufferMut(Unique::Domain(memory)))
            }
            other => Err(Self(other)),
        }
    }

    /// Whether it has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Nothing of one of [`Bytes`] that has none: [`Buffer::new`] is gone by that without a call.
    #[inline(always)]
    pub(crate) fn unless_empty(self) -> Option<Self> {
        match self.0 {
            Shared::Bytes(bytes) if bytes.is_empty() => None,
            other => Some(Self(other)),
        }
    }

    /// First byte. Valid while any clone lives. Of a list, that of a copy in one run, made by the first call. Of memory that the host does not
    /// reach ([`as_slice`](Self::as_slice) is `None`), dangling: see [`device_range`](Self::device_range).
    #[inline]
    #[must_use]
    pub fn address(&self) -> *const u8 {
        match &self.0 {
            Shared::Bytes(bytes) => bytes.as_ptr(),
            Shared::Segment {
                segment, offset, ..
            } => segment.mapping().as_ptr().wrapping_add(*offset),
            Shared::Raw(raw) => raw.address,
            Shared::Domain { memory, offset, .. } => {
                host_address(&**memory).wrapping_add(*offset).cast_const()
            }
            Shared::List(list) if list.is_on_device() => NonNull::dangling().as_ptr(),
            Shared::List(list) => list.whole().as_ptr(),
        }
    }

    /// The bytes; `None` when they are not in host memory. Of a list, a copy in one run, made by the first call.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        if self.is_on_device() {
            return None;
        }
        // SAFETY: host memory in every variant that is not on a device (of a list, its copy), valid for `len` bytes and unchanging while `self`
        // lives.
        Some(unsafe { slice::from_raw_parts(self.address(), self.len()) })
    }

    /// The bytes that the host reaches.
    #[inline]
    pub(crate) fn host(&self) -> &[u8] {
        self.as_slice().unwrap_or(&[])
    }

    /// Those of them that lie in one run from `start` on.
    pub(crate) fn host_from(&self, start: usize) -> &[u8] {
        match self.list() {
            Some(list) => list.run(start),
            None => self.host().get(start..).unwrap_or(&[]),
        }
    }

    /// Appends `length` of them from `start` on to `to`.
    pub(crate) fn gather(&self, start: usize, length: usize, to: &mut Vec<u8>) {
        match self.list() {
            Some(list) => list.gather(start, length, to),
            None => to.extend_from_slice(&self.host_from(start)[..length]),
        }
    }

    /// What kind of memory it is. Of a list, host memory unless a piece is on a device.
    #[must_use]
    pub fn memory_type(&self) -> MemoryType {
        match &self.0 {
            Shared::Domain { memory, .. } => memory.memory_type(),
            Shared::List(list) => list.memory_type(),
            Shared::Bytes(_) | Shared::Segment { .. } | Shared::Raw(_) => MemoryType::Host,
        }
    }

    /// Where it is for the device, when a domain allocated it. Of a list `None`.
    #[must_use]
    pub fn device_range(&self) -> Option<AddressRange> {
        match &self.0 {
            Shared::Domain {
                memory,
                offset,
                len,
            } => Some(memory.range().part(*offset, *len)),
            _ => None,
        }
    }

    /// Memory of a device's, and the part of it that this is.
    pub(crate) fn on_device(&self) -> Option<(&dyn DomainMemory, AddressRange)> {
        match &self.0 {
            Shared::Domain {
                memory,
                offset,
                len,
            } if !memory.memory_type().is_host_accessible() => {
                Some((&**memory, memory.range().part(*offset, *len)))
            }
            _ => None,
        }
    }

    /// Whether the host cannot reach it, or a piece of it.
    #[inline]
    pub(crate) fn is_on_device(&self) -> bool {
        match &self.0 {
            Shared::Bytes(_) | Shared::Segment { .. } | Shared::Raw(_) => false,
            Shared::Domain { memory, .. } => !memory.memory_type().is_host_accessible(),
            Shared::List(list) => list.is_on_device(),
        }
    }

    /// A part of it, without a copy.
    ///
    /// # Panics
    /// When the range ends before it begins or after the buffer's end.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let Range { start, end } = within(range, self.len());
        Self(match &self.0 {
            Shared::Bytes(bytes) => Shared::Bytes(bytes.slice(start..end)),
            Shared::Segment {
                segment, offset, ..
            } => Shared::Segment {
                segment: Arc::clone(segment),
                offset: offset + start,
                len: end - start,
            },
            Shared::Raw(raw) => Shared::Raw(RawShared {
                address: raw.address.wrapping_add(start),
                len: end - start,
                owner: Arc::clone(&raw.owner),
            }),
            Shared::Domain { memory, offset, .. } => Shared::Domain {
                memory: Arc::clone(memory),
                offset: offset + start,
                len: end - start,
            },
            Shared::List(list) => return Self::of_pieces(list.parts(start, end)),
        })
    }

    /// Several as one; none of them is empty, or a list itself.
    pub(super) fn of_pieces(mut pieces: Vec<Self>) -> Self {
        match pieces.len() {
            0 | 1 => pieces.pop().unwrap_or_default(),
            _ => Self(Shared::List(Arc::new(List::new(pieces)))),
        }
    }

    /// Appends it to the pieces of a list: its own, if it is several, and nothing if it has no bytes.
    pub(super) fn add_to(self, pieces: &mut Vec<Self>) {
        match self.list() {
            Some(list) => pieces.extend_from_slice(list.pieces()),
            None if self.is_empty() => {}
            None => pieces.push(self),
        }
    }

    /// The pieces, if it is several.
    #[inline]
    pub(crate) fn list(&self) -> Option<&List<Self>> {
        match &self.0 {
            Shared::List(list) => Some(list),
            _ => None,
        }
    }

    /// The bytes, if they are in one run of the host's memory and no list.
    #[inline(always)]
    pub(crate) fn as_run(&self) -> Option<&[u8]> {
        match &self.0 {
            Shared::Bytes(bytes) => Some(bytes),
            Shared::Segment {
                segment,
                offset,
                len,
            } => {
                let address = segment.mapping().as_ptr().wrapping_add(*offset);
                // SAFETY: as in `as_slice`; `len` bytes of the segment from `offset` on are this buffer's.
                Some(unsafe { slice::from_raw_parts(address, *len) })
            }
            _ => self.as_other_run(),
        }
    }

    #[inline(never)]
    fn as_other_run(&self) -> Option<&[u8]> {
        match &self.0 {
            Shared::List(_) => None,
            _ => self.as_slice(),
        }
    }

    /// Whether its bytes are sent as one run: the host reaches them, and they are in one already or no more than `limit`.
    #[inline]
    pub(crate) fn is_run_within(&self, limit: usize) -> bool {
        match &self.0 {
            Shared::List(list) if list.len() > limit => false,
            _ => !self.is_on_device(),
        }
    }

    /// Where its pieces are, for reading.
    pub(crate) fn extents(&self) -> Vec<Extent> {
        match self.list() {
            Some(list) => list.table().to_vec(),
            None => vec![Extent {
                address: self.address().cast_mut(),
                length: self.len(),
            }],
        }
    }

    /// Where a process of the same host finds it: the segment, and the first byte's place in it.
    #[inline]
    pub(crate) fn segment(&self) -> Option<(&Arc<Segment>, usize)> {
        match &self.0 {
            Shared::Segment {
                segment, offset, ..
            } => Some((segment, *offset)),
            Shared::Bytes(_) | Shared::Raw(_) | Shared::Domain { .. } | Shared::List(_) => None,
        }
    }

    /// The segment that it is all of: whoever gets the one gets the other, and nothing else.
    pub(crate) fn whole_segment(&self) -> Option<&Arc<Segment>> {
        let (segment, offset) = self.segment()?;
        (offset == 0 && self.len() == segment.mapping().len()).then_some(segment)
    }
}

impl Default for BufferMut {
    fn default() -> Self {
        Self::from(Vec::new())
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::new()
    }
}

impl Buffer {
    /// Whether dropping it may take long, or do what the user likes: the memory has an owner that this was made with, or a driver frees it.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        match &self.0 {
            Shared::Raw(_) | Shared::Domain { .. } => true,
            Shared::List(list) => list.pieces().iter().any(Self::is_lent),
            Shared::Bytes(_) | Shared::Segment { .. } => false,
        }
    }

    /// Whether there is nothing to drop: no bytes, and no owner.
    #[inline]
    pub(crate) fn is_nothing(&self) -> bool {
        self.is_empty() && matches!(self.0, Shared::Bytes(_))
    }
}

impl Piece for Buffer {
    fn len(&self) -> usize {
        self.len()
    }

    fn address(&self) -> *const u8 {
        self.address()
    }

    fn as_slice(&self) -> Option<&[u8]> {
        self.as_slice()
    }

    fn memory_type(&self) -> MemoryType {
        self.memory_type()
    }

    fn part(&self, start: usize, end: usize) -> Self {
        self.slice(start..end)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes, {})", self.len(), self.memory_type())
    }
}

impl From<Bytes> for Buffer {
    #[inline]
    fn from(bytes: Bytes) -> Self {
        Self(Shared::Bytes(bytes))
    }
}

impl From<BytesMut> for Buffer {
    fn from(bytes: BytesMut) -> Self {
        bytes.freeze().into()
    }
}

impl From<Vec<u8>> for Buffer {
    #[inline]
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Buffer {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<&'static [u8]> for Buffer {
    #[inline]
    fn from(bytes: &'static [u8]) -> Self {
        Bytes::from_static(bytes).into()
    }
}

impl<const N: usize> From<&'static [u8; N]> for Buffer {
    #[inline]
    fn from(bytes: &'static [u8; N]) -> Self {
        Bytes::from_static(bytes).into()
    }
}

impl<const N: usize> From<[u8; N]> for Buffer {
    fn from(bytes: [u8; N]) -> Self {
        Vec::from(bytes).into()
    }
}

impl From<Box<[u8]>> for Buffer {
    fn from(bytes: Box<[u8]>) -> Self {
        Vec::from(bytes).into()
    }
}

impl From<Arc<[u8]>> for Buffer {
    fn from(bytes: Arc<[u8]>) -> Self {
        Bytes::from_owner(bytes).into()
    }
}

impl From<std::borrow::Cow<'static, [u8]>> for Buffer {
    fn from(bytes: std::borrow::Cow<'static, [u8]>) -> Self {
        match bytes {
            std::borrow::Cow::Borrowed(bytes) => bytes.into(),
            std::borrow::Cow::Owned(bytes) => bytes.into(),
        }
    }
}

impl TryFrom<Buffer> for Bytes {
    type Error = Buffer;

    /// Without a copy where the bytes are in one run of the host's memory, which then lives as long as these.
    ///
    /// # Errors
    /// Gives the buffer back when the host does not reach it.
    fn try_from(buffer: Buffer) -> Result<Self, Buffer> {
        struct Held(Buffer);
        impl AsRef<[u8]> for Held {
            fn as_ref(&self) -> &[u8] {
                self.0.host()
            }
        }
        match buffer.0 {
            Shared::Bytes(bytes) => Ok(bytes),
            _ if buffer.is_on_device() => Err(buffer),
            _ => Ok(Self::from_owner(Held(buffer))),
        }
    }
}

impl From<&'static str> for Buffer {
    #[inline]
    fn from(text: &'static str) -> Self {
        text.as_bytes().into()
    }
}

impl HostBufferMut {
    /// Makes it shared and immutable, without a copy.
    #[must_use]
    pub fn freeze(self) -> Buffer {
        self.into()
    }
}

impl From<HostBufferMut> for Buffer {
    fn from(buffer: HostBufferMut) -> Self {
        Self(match buffer.into_segment() {
            Some((segment, len)) => Shared::Segment {
                segment,
                offset: 0,
                len,
            },
            None => Shared::Bytes(Bytes::new()),
        })
    }
}

/// Unique memory to receive into. Its length is the most that it takes; spare capacity of a `Vec` is not used.
///
/// An operation in flight owns it and gives it back with its result, with an error too. Made by `From` of `Vec<u8>`,
/// [`BytesMut`], [`HostBufferMut`], and of several at once by
/// [`BufferListMut`](crate::BufferListMut).
pub struct BufferMut(Unique);

/// Bytes copied between two turns of others.
const TURN: usize = 1 << 20;

enum Unique {
    Host(HostBufferMut),
    Vec(Vec<u8>),
    Bytes(BytesMut),
    Raw(RawUnique),
    Domain(Arc<dyn DomainMemory>),
    List(Box<ListMut<BufferMut>>),
}

/// What an operation answers that is given memory which the host does not reach, on a path that copies by the host.
#[cold]
fn out_of_reach(memory_type: MemoryType, operation: Operation) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("no path here moves memory of type {memory_type}"),
    )
    .during(operation)
}

impl Buffer {
    /// # Errors
    /// `Unsupported`: the host does not reach it, or a piece of it.
    #[inline]
    pub(crate) fn check_reachable(&self, operation: Operation) -> Result<()> {
        match self.is_on_device() {
            false => Ok(()),
            true => Err(out_of_reach(self.memory_type(), operation)),
        }
    }
}

impl BufferMut {
    /// # Errors
    /// `Unsupported`: the host does not reach it, or a piece of it.
    #[inline]
    pub(crate) fn check_reachable(&self, operation: Operation) -> Result<()> {
        match self.is_on_device() {
            false => Ok(()),
            true => Err(out_of_reach(self.memory_type(), operation)),
        }
    }
}

/// The first byte for the host, dangling when it does not reach it.
fn host_address(memory: &dyn DomainMemory) -> *mut u8 {
    match memory.memory_type().is_host_accessible() {
        // The domain's driver knows the address; where it came from is not this process's code.
        true => ptr::with_exposed_provenance_mut(memory.range().start() as usize),
        false => NonNull::dangling().as_ptr(),
    }
}

/// The length for the host; `None` when it does not reach it.
fn reachable(memory: &dyn DomainMemory) -> Option<usize> {
    let here = memory.memory_type().is_host_accessible();
    here.then_some(memory.range().len() as usize)
}

impl From<Box<dyn DomainMemory>> for BufferMut {
    /// Memory that a domain allocated. Freed with the buffer.
    fn from(memory: Box<dyn DomainMemory>) -> Self {
        Self(Unique::Domain(memory.into()))
    }
}

/// Memory that its owner keeps valid and lends to nobody else.
struct RawUnique {
    address: *mut u8,
    len: usize,
    owner: Owner,
}

// SAFETY: the bytes are reached through this value alone (contract of `BufferMut::from_raw`), so they may move to another
// thread with it; the owner is Send itself.
unsafe impl Send for RawUnique {}
// SAFETY: a shared borrow only reads the bytes, and the owner is Sync itself.
unsafe impl Sync for RawUnique {}

impl BufferMut {
    /// Host memory that `owner` keeps. The owner is dropped with the buffer.
    ///
    /// # Safety
    /// The `len` bytes at `address` must be initialised, readable and writable, stay where they are, and be reached through
    /// this value alone until `owner` is dropped; `address` must not be null, and `len` at most `isize::MAX`.
    #[must_use]
    pub unsafe fn from_raw(
        address: *mut u8,
        len: usize,
        owner: impl Send + Sync + 'static,
    ) -> Self {
        Self(Unique::Raw(RawUnique {
            address,
            len,
            owner: Arc::new(owner),
        }))
    }

    /// Bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Unique::Host(buffer) => buffer.len(),
            Unique::Vec(bytes) => bytes.len(),
            Unique::Bytes(bytes) => bytes.len(),
            Unique::Raw(raw) => raw.len,
            Unique::Domain(memory) => memory.range().len() as usize,
            Unique::List(list) => list.len(),
        }
    }

    /// Whether it has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// First byte. Stays the same when the value is moved, and is good for writing until the value is dropped or its slice
    /// is borrowed again. Of a list, that of a copy in one run, whose bytes go to the pieces when they are given back. Of memory that the host
    /// does not reach ([`as_slice`](Self::as_slice) is `None`), dangling: see [`device_range`](Self::device_range).
    #[inline]
    #[must_use]
    pub fn address(&mut self) -> *mut u8 {
        match &mut self.0 {
            Unique::Host(buffer) => buffer.address(),
            Unique::Vec(bytes) => bytes.as_mut_ptr(),
            Unique::Bytes(bytes) => bytes.as_mut_ptr(),
            Unique::Raw(raw) => raw.address,
            Unique::Domain(memory) => host_address(&**memory),
            Unique::List(list) if list.is_on_device() => NonNull::dangling().as_ptr(),
            Unique::List(list) => list.stage().as_mut_ptr(),
        }
    }

    /// The bytes; `None` when they are not in one run of host memory.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        Some(match &self.0 {
            Unique::Host(buffer) => buffer,
            Unique::Vec(bytes) => bytes,
            Unique::Bytes(bytes) => bytes,
            // SAFETY: valid for `len` bytes and reached through this value alone, which is borrowed.
            Unique::Raw(raw) => unsafe { slice::from_raw_parts(raw.address, raw.len) },
            Unique::Domain(memory) => {
                let len = reachable(&**memory)?;
                // SAFETY: the host reaches `len` bytes there, which are reached through this value alone, which is borrowed.
                unsafe { slice::from_raw_parts(host_address(&**memory), len) }
            }
            Unique::List(list) => return list.staged(),
        })
    }

    /// The bytes, for writing; `None` when they are not in host memory. Of a list as [`BufferMut::address`].
    #[must_use]
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        Some(match &mut self.0 {
            Unique::Host(buffer) => buffer,
            Unique::Vec(bytes) => bytes,
            Unique::Bytes(bytes) => bytes,
            // SAFETY: valid for `len` bytes and reached through this value alone, which is borrowed uniquely.
            Unique::Raw(raw) => unsafe { slice::from_raw_parts_mut(raw.address, raw.len) },
            Unique::Domain(memory) => {
                let len = reachable(&**memory)?;
                // SAFETY: the host reaches `len` bytes there, which are reached through this value alone, which is borrowed uniquely.
                unsafe { slice::from_raw_parts_mut(host_address(&**memory), len) }
            }
            Unique::List(list) if list.is_on_device() => return None,
            Unique::List(list) => list.stage(),
        })
    }

    /// What kind of memory it is. Of a list, host memory unless a piece is on a device.
    #[must_use]
    pub fn memory_type(&self) -> MemoryType {
        match &self.0 {
            Unique::Domain(memory) => memory.memory_type(),
            Unique::List(list) => list.memory_type(),
            Unique::Host(_) | Unique::Vec(_) | Unique::Bytes(_) | Unique::Raw(_) => {
                MemoryType::Host
            }
        }
    }

    /// Where it is for the device, when a domain allocated it. Of a list `None`.
    #[must_use]
    pub fn device_range(&self) -> Option<AddressRange> {
        match &self.0 {
            Unique::Domain(memory) => Some(memory.range()),
            _ => None,
        }
    }

    /// Memory of a device's.
    pub(crate) fn on_device(&self) -> Option<&dyn DomainMemory> {
        match &self.0 {
            Unique::Domain(memory) if !memory.memory_type().is_host_accessible() => Some(&**memory),
            _ => None,
        }
    }

    /// Whether the host cannot reach it, or a piece of it.
    #[inline]
    pub(crate) fn is_on_device(&self) -> bool {
        match &self.0 {
            Unique::Host(_) | Unique::Vec(_) | Unique::Bytes(_) | Unique::Raw(_) => false,
            Unique::Domain(memory) => !memory.memory_type().is_host_accessible(),
            Unique::List(list) => list.is_on_device(),
        }
    }

    /// Makes it shared and immutable, without a copy.
    #[must_use]
    pub fn freeze(self) -> Buffer {
        match self.0 {
            Unique::Host(buffer) => buffer.into(),
            Unique::Vec(bytes) => bytes.into(),
            Unique::Bytes(bytes) => bytes.into(),
            Unique::Raw(RawUnique {
                address,
                len,
                owner,
            }) => Buffer(Shared::Raw(RawShared {
                address,
                len,
                owner,
            })),
            Unique::Domain(memory) => Buffer(Shared::Domain {
                offset: 0,
                len: memory.range().len() as usize,
                memory,
            }),
            Unique::List(list) => {
                let mut pieces = Vec::new();
                for piece in list.into_pieces() {
                    piece.freeze().add_to(&mut pieces);
                }
                Buffer::of_pieces(pieces)
            }
        }
    }

    /// Several as one.
    pub(super) fn of_pieces(pieces: Vec<Self>) -> Self {
        Self(Unique::List(Box::new(ListMut::new(pieces))))
    }

    /// The buffers that it was made of; itself, if it is one.
    pub(super) fn into_pieces(self) -> Vec<Self> {
        match self.0 {
            Unique::List(list) => list.into_pieces(),
            other => vec![Self(other)],
        }
    }

    /// Whether it is several.
    #[inline]
    pub(crate) fn is_list(&self) -> bool {
        matches!(&self.0, Unique::List(_))
    }

    /// Whether there is nothing to drop: no bytes, and no owner.
    #[inline]
    pub(crate) fn is_nothing(&self) -> bool {
        self.is_empty() && matches!(self.0, Unique::Vec(_) | Unique::Bytes(_) | Unique::Host(_))
    }

    /// The pieces, if it is several.
    #[inline]
    pub(crate) fn list_mut(&mut self) -> Option<&mut ListMut<Self>> {
        match &mut self.0 {
            Unique::List(list) => Some(list),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn list_ref(&self) -> Option<&ListMut<Self>> {
        match &self.0 {
            Unique::List(list) => Some(list),
            _ => None,
        }
    }

    /// What is left, from `start` on, of the run of host memory there: of a list, of the piece.
    pub(crate) fn host_from_mut(&mut self, start: usize) -> &mut [u8] {
        match self.0 {
            Unique::List(ref mut list) => list.run(start),
            _ => self
                .as_mut_slice()
                .and_then(|bytes| bytes.get_mut(start..))
                .unwrap_or(&mut []),
        }
    }

    /// Copies `data` to where it belongs, from `start` on, where the host reaches that.
    pub(crate) fn scatter(&mut self, start: usize, data: &[u8]) {
        self.land(start, data, data.len());
    }

    /// The same, of `whole` bytes that come in parts.
    pub(crate) fn land(&mut self, start: usize, data: &[u8], whole: usize) {
        match self.list_mut() {
            Some(list) => list.scatter(start, data),
            None => {
                if let Some(to) = self
                    .as_mut_slice()
                    .and_then(|bytes| bytes.get_mut(start..start + data.len()))
                {
                    copy_part(data, to, whole);
                }
            }
        }
    }

    /// Where its pieces are, for writing.
    pub(crate) fn extents(&mut self) -> Vec<Extent> {
        match self.list_mut() {
            Some(list) => list.table(),
            None => vec![Extent {
                address: self.address(),
                length: self.len(),
            }],
        }
    }

    /// Appends the bytes to `bytes`.
    pub(crate) fn copy_to(&self, bytes: &mut Vec<u8>) {
        match &self.0 {
            Unique::List(list) => bytes.append(&mut list.copied()),
            _ => bytes.extend_from_slice(self.as_slice().unwrap_or(&[])),
        }
    }

    /// Where a process of the same host finds it: the segment, and the first byte's place in it.
    pub(crate) fn segment(&self) -> Option<(&Arc<Segment>, usize)> {
        match &self.0 {
            Unique::Host(buffer) => buffer.segment(),
            Unique::Vec(_)
            | Unique::Bytes(_)
            | Unique::Raw(_)
            | Unique::Domain(_)
            | Unique::List(_) => None,
        }
    }

    /// What comes over this connection is to be written into it: if it, or a piece of it, is lent to another, which would see it, the loan ends.
    /// Errors: `Exhausted`: the system has no mapping left.
    #[inline]
    pub(crate) fn takes_from(&mut self, from: EndpointId) -> Result<()> {
        match &mut self.0 {
            Unique::Host(buffer) => match buffer.lent_to() {
                Some(to) if to != from => buffer.end_loan(),
                _ => Ok(()),
            },
            Unique::List(list) => list.takes_from(from),
            Unique::Vec(_) | Unique::Bytes(_) | Unique::Raw(_) | Unique::Domain(_) => Ok(()),
        }
    }

    /// Whether it is lent to a connection for writing.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        matches!(&self.0, Unique::Host(buffer) if buffer.lent_to().is_some())
    }

    /// Where a message that comes whole goes.
    #[inline]
    pub(crate) fn room(&mut self) -> Room {
        match &mut self.0 {
            Unique::Vec(bytes) => Room::Run(bytes.as_mut_ptr(), bytes.len()),
            _ => self.other_room(),
        }
    }

    /// Its bytes, where [`BufferMut::room`] is a run.
    #[inline]
    pub(crate) fn run_mut(&mut self) -> Option<&mut [u8]> {
        match matches!(self.0, Unique::Vec(_)) {
            true => match &mut self.0 {
                Unique::Vec(bytes) => Some(bytes),
                _ => None,
            },
            false => self.other_run(),
        }
    }

    #[inline(never)]
    fn other_run(&mut self) -> Option<&mut [u8]> {
        match self.is_lent() || self.is_list() {
            true => None,
            false => self.as_mut_slice(),
        }
    }

    #[inline(never)]
    fn other_room(&mut self) -> Room {
        if self.is_lent() {
            return Room::Lent;
        }
        if self.is_list() {
            return Room::Pieces;
        }
        match self.as_mut_slice() {
            Some(bytes) => Room::Run(bytes.as_mut_ptr(), bytes.len()),
            None => Room::Unreachable,
        }
    }

    /// Whether another process has mapped it, and keeps the mapping.
    pub(crate) fn was_given(&self) -> bool {
        matches!(&self.0, Unique::Host(buffer) if buffer.was_given())
    }

    /// The same bytes of the host in other memory. Gives way between parts of a long copy.
    /// Errors: `Exhausted`: there is no memory.
    pub(crate) async fn replica(&self) -> Result<Self> {
        let mut replica: Self = match &self.0 {
            Unique::Host(buffer) => buffer.another()?.into(),
            _ => {
                let mut bytes = Vec::new();
                bytes.try_reserve_exact(self.len()).map_err(|error| {
                    Error::new(ErrorKind::Exhausted, "no memory for a copy").with_source(error)
                })?;
                bytes.resize(self.len(), 0);
                bytes.into()
            }
        };
        let mut at = 0;
        while let (Some(from), Some(to)) = (self.as_slice(), replica.as_mut_slice())
            && at < from.len()
        {
            let end = from.len().min(at + TURN);
            copy_slice(&from[at..end], &mut to[at..end]);
            at = end;
            tokio::task::yield_now().await;
        }
        Ok(replica)
    }

    /// The bytes in a new `Vec`.
    fn copied(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.copy_to(&mut bytes);
        bytes
    }
}

impl PieceMut for BufferMut {
    fn len(&self) -> usize {
        self.len()
    }

    fn address(&mut self) -> *mut u8 {
        self.address()
    }

    fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        self.as_mut_slice()
    }

    fn scatter(&mut self, start: usize, data: &[u8]) {
        self.scatter(start, data);
    }

    fn memory_type(&self) -> MemoryType {
        self.memory_type()
    }

    fn list_ref(&self) -> Option<&ListMut<Self>> {
        self.list_ref()
    }

    fn list_mut(&mut self) -> Option<&mut ListMut<Self>> {
        self.list_mut()
    }

    fn copy_to(&self, bytes: &mut Vec<u8>) {
        self.copy_to(bytes);
    }

    fn takes_from(&mut self, from: EndpointId) -> Result<()> {
        self.takes_from(from)
    }
}

/// Where a message goes that comes whole.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Room {
    /// One run of the host's memory: its address and length.
    Run(*mut u8, usize),
    /// A list.
    Pieces,
    /// Memory that a connection was lent for writing: whose message it may take depends on where that comes from.
    Lent,
    /// The host does not reach it.
    Unreachable,
}

impl fmt::Debug for BufferMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferMut({} bytes, {})", self.len(), self.memory_type())
    }
}

impl From<HostBufferMut> for BufferMut {
    fn from(buffer: HostBufferMut) -> Self {
        Self(Unique::Host(buffer))
    }
}

impl From<Vec<u8>> for BufferMut {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Unique::Vec(bytes))
    }
}

impl From<BytesMut> for BufferMut {
    fn from(bytes: BytesMut) -> Self {
        Self(Unique::Bytes(bytes))
    }
}

/// What a receive or a get writes to, and comes back as what it was: a `Vec<u8>` as that `Vec<u8>`.
///
/// # Ownership
/// The operation owns the buffer from the call on: it is unique, so nobody else can see it half written, and dropping the
/// future neither frees nor returns it before the transfer is over. It comes back with the result or with the error.
///
/// Implemented by wharf's buffers and lists of them, `Vec<u8>` and `BytesMut`; not to be implemented elsewhere.
pub trait ReceiveBuffer: Into<BufferMut> + sealed::Sealed + fmt::Debug + Send + 'static {
    /// The buffer as it was before it became a [`BufferMut`], without a copy. (Of a buffer that was something else, a copy.)
    fn restore(buffer: BufferMut) -> Self;
}

pub(super) mod sealed {
    pub trait Sealed {
        /// Its bytes, where they are one run of the host's memory and nobody else's: not lent to a peer.
        fn own_run(&mut self) -> Option<&mut [u8]>;
    }
}

impl sealed::Sealed for BufferMut {
    #[inline]
    fn own_run(&mut self) -> Option<&mut [u8]> {
        self.run_mut()
    }
}

impl sealed::Sealed for HostBufferMut {
    #[inline]
    fn own_run(&mut self) -> Option<&mut [u8]> {
        match self.lent_to() {
            None => Some(self),
            Some(_) => None,
        }
    }
}

impl sealed::Sealed for Vec<u8> {
    #[inline]
    fn own_run(&mut self) -> Option<&mut [u8]> {
        Some(self)
    }
}

impl sealed::Sealed for BytesMut {
    #[inline]
    fn own_run(&mut self) -> Option<&mut [u8]> {
        Some(self)
    }
}

impl ReceiveBuffer for BufferMut {
    fn restore(buffer: BufferMut) -> Self {
        buffer
    }
}

impl ReceiveBuffer for HostBufferMut {
    fn restore(buffer: BufferMut) -> Self {
        if let Unique::Host(buffer) = buffer.0 {
            return buffer;
        }
        // Not reached: an operation gives back what it was given. Without memory for the copy: empty.
        let source = buffer.copied();
        let mut copy = Self::allocate(source.len()).unwrap_or_default();
        if copy.len() == source.len() {
            copy.copy_from_slice(&source);
        }
        copy
    }
}

impl ReceiveBuffer for Vec<u8> {
    #[inline]
    fn restore(buffer: BufferMut) -> Self {
        match buffer.0 {
            Unique::Vec(bytes) => bytes,
            other => BufferMut(other).copied(),
        }
    }
}

impl ReceiveBuffer for BytesMut {
    fn restore(buffer: BufferMut) -> Self {
        match buffer.0 {
            Unique::Bytes(bytes) => bytes,
            other => BufferMut(other).copied().as_slice().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::catch_unwind,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    const TEXT: &[u8] = b"0123456789";

    fn host() -> HostBufferMut {
        let mut buffer = HostBufferMut::allocate(TEXT.len()).expect("allocate");
        buffer.copy_from_slice(TEXT);
        buffer
    }

    fn raw() -> BufferMut {
        let mut owner = TEXT.to_vec();
        let (address, len) = (owner.as_mut_ptr(), owner.len());
        // SAFETY: the heap block of `owner` stays where it is and is used through the buffer alone.
        unsafe { BufferMut::from_raw(address, len, owner) }
    }

    fn shared() -> Vec<Buffer> {
        vec![
            TEXT.into(),
            b"0123456789".into(),
            "0123456789".into(),
            TEXT.to_vec().into(),
            Bytes::from_static(TEXT).into(),
            BytesMut::from(TEXT).into(),
            host().freeze(),
            raw().freeze(),
        ]
    }

    fn unique() -> Vec<BufferMut> {
        vec![
            host().into(),
            TEXT.to_vec().into(),
            BytesMut::from(TEXT).into(),
            raw(),
        ]
    }

    #[test]
    fn sizes_and_threads() {
        fn anywhere<T: Send + Sync + 'static>() {}
        anywhere::<Buffer>();
        anywhere::<BufferMut>();
        anywhere::<HostBufferMut>();
        assert!(size_of::<Buffer>() <= 40, "{}", size_of::<Buffer>());
        assert!(size_of::<BufferMut>() <= 40, "{}", size_of::<BufferMut>());
    }

    #[test]
    fn slices_share_and_keep_to_bounds() {
        for buffer in shared() {
            assert_eq!(buffer.as_slice(), Some(TEXT));
            let part = buffer.slice(2..=6).slice(1..);
            assert_eq!(part.as_slice(), Some(&b"3456"[..]));
            assert_eq!(part.address(), buffer.address().wrapping_add(3));
            assert_eq!(buffer.slice(..).clone().len(), 10);
            assert!(buffer.slice(10..).is_empty());
            drop(buffer.clone());
            drop(buffer);
            assert_eq!(part.as_slice(), Some(&b"3456"[..]));
        }
    }

    #[test]
    fn slices_out_of_range_panic() {
        for buffer in shared() {
            let buffer = std::panic::AssertUnwindSafe(buffer);
            for (start, end) in [(0, 11), (11, 11), (6, 5), (usize::MAX, usize::MAX)] {
                assert!(catch_unwind(|| buffer.slice(start..end)).is_err());
            }
            assert!(catch_unwind(|| buffer.slice(..=usize::MAX)).is_err());
        }
    }

    #[test]
    fn segments_follow_slices() {
        let buffer = host().freeze();
        let part = buffer.slice(4..);
        let (whole, _) = buffer.segment().expect("segment");
        let (segment, offset) = part.segment().expect("segment");
        assert_eq!((segment.id(), offset), (whole.id(), 4));
        assert!(Buffer::from(TEXT).segment().is_none());
        let empty = HostBufferMut::default().freeze();
        assert!(empty.segment().is_none() && empty.is_empty());
    }

    #[test]
    fn addresses_survive_moves_and_freezing() {
        for mut buffer in unique() {
            let address = buffer.address();
            let mut moved = Box::new(buffer);
            assert_eq!(moved.address(), address);
            // SAFETY: ten bytes, reached through `moved` alone, of which nothing is borrowed.
            unsafe { address.write(b'X') };
            assert_eq!(moved.as_slice().map(|bytes| bytes[0]), Some(b'X'));
            moved.as_mut_slice().expect("host memory")[1] = b'Y';
            let frozen = moved.freeze();
            assert_eq!(frozen.address(), address.cast_const());
            assert_eq!(frozen.as_slice(), Some(&b"XY23456789"[..]));
        }
    }

    #[test]
    fn restore_gives_the_same_value_back() {
        fn same<B: ReceiveBuffer + AsRef<[u8]>>(buffer: B) {
            let address = buffer.as_ref().as_ptr();
            let back = B::restore(buffer.into());
            assert_eq!(back.as_ref().as_ptr(), address);
        }
        let mut with_room = Vec::with_capacity(100);
        with_room.extend_from_slice(TEXT);
        same(with_room);
        same(BytesMut::from(TEXT));
        let buffer = host();
        let address = buffer.as_ptr();
        assert_eq!(HostBufferMut::restore(buffer.into()).as_ptr(), address);
        assert_eq!(BufferMut::restore(raw()).len(), 10);
    }

    #[test]
    fn restore_of_something_else_copies() {
        for buffer in unique() {
            assert_eq!(Vec::restore(buffer), TEXT);
        }
        for buffer in unique() {
            assert_eq!(BytesMut::restore(buffer), TEXT);
        }
        for buffer in unique() {
            assert_eq!(&*HostBufferMut::restore(buffer), TEXT);
        }
    }

    #[test]
    fn a_raw_owner_is_dropped_once_and_last() {
        struct Count(Arc<AtomicUsize>);
        impl Drop for Count {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let dropped = Arc::new(AtomicUsize::new(0));
        let owner = Count(Arc::clone(&dropped));
        // SAFETY: static memory stays and never changes.
        let buffer = unsafe { Buffer::from_raw(TEXT.as_ptr(), TEXT.len(), owner) };
        let part = buffer.slice(1..2);
        drop(buffer);
        assert_eq!(dropped.load(Ordering::Relaxed), 0);
        drop(part);
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    }
}
