//! Several buffers that go as one: gathered by sends and puts, scattered into by receives and gets.
//!
//! Paths that can take pieces take them one by one. Those that need all bytes in one run ask for them as of any other buffer, and get a
//! copy that the list makes then: of what is sent, once; of what is received into, with the bytes going to the pieces in the end.
//!
//! # Safety
//! The addresses of [`Extent`]s are those of buffers that the list owns, in which nothing moves while the list lives. Those of a
//! [`ListMut`] are reached through it alone.
#![allow(unsafe_code)]

use std::{fmt, ops::Deref, sync::OnceLock};

use super::{Buffer, BufferMut};
use crate::{
    error::Result,
    types::{EndpointId, MemoryType},
    util::copy::copy_slice,
};

/// A run of bytes without ownership, as a table of them lies in memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) address: *mut u8,
    pub(crate) length: usize,
}

// SAFETY: plain numbers; whoever uses the address vouches for it.
unsafe impl Send for Extent {}
// SAFETY: as above.
unsafe impl Sync for Extent {}

/// Which piece holds the byte at `position`, and where in it. `ends` are the pieces' ends in the whole.
fn find(ends: &[usize], position: usize) -> (usize, usize) {
    let index = ends.partition_point(|end| *end <= position);
    let start = index.checked_sub(1).map_or(0, |before| ends[before]);
    (index, position - start)
}

/// The pieces of a [`Buffer`] that is several; none of them is empty or a list itself.
pub(crate) struct List {
    pieces: Vec<Buffer>,
    table: Vec<Extent>,
    ends: Vec<usize>,
    memory_type: MemoryType,
    whole: OnceLock<Box<[u8]>>,
}

/// The type of the first that the host does not reach, or the host's.
fn type_of(mut types: impl Iterator<Item = MemoryType>) -> MemoryType {
    types
        .find(|memory_type| !memory_type.is_host_accessible())
        .unwrap_or(MemoryType::Host)
}

impl List {
    fn new(pieces: Vec<Buffer>) -> Self {
        let table: Vec<Extent> = pieces
            .iter()
            .map(|piece| Extent {
                address: piece.address().cast_mut(),
                length: piece.len(),
            })
            .collect();
        let ends = ends(pieces.iter().map(Buffer::len));
        let memory_type = type_of(pieces.iter().map(Buffer::memory_type));
        Self {
            pieces,
            table,
            ends,
            memory_type,
            whole: OnceLock::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    pub(crate) fn memory_type(&self) -> MemoryType {
        self.memory_type
    }

    /// Whether the host does not reach a piece.
    pub(crate) fn is_on_device(&self) -> bool {
        !self.memory_type.is_host_accessible()
    }

    /// Where the pieces are. For reading only.
    pub(crate) fn table(&self) -> &[Extent] {
        &self.table
    }

    /// The piece that holds `position`, and where in it.
    pub(crate) fn piece(&self, position: usize) -> Option<(&Buffer, usize)> {
        let (index, within) = find(&self.ends, position);
        Some((self.pieces.get(index)?, within))
    }

    /// The types of memory in it that the host does not reach.
    pub(crate) fn device_types(&self) -> Vec<MemoryType> {
        self.pieces.iter().flat_map(Buffer::device_types).collect()
    }

    /// What is left, from `position` on, of the piece there.
    pub(crate) fn run(&self, position: usize) -> &[u8] {
        let (index, within) = find(&self.ends, position);
        self.pieces
            .get(index)
            .and_then(Buffer::as_slice)
            .and_then(|piece| piece.get(within..))
            .unwrap_or(&[])
    }

    /// Appends `length` bytes from `position` on to `to`.
    pub(crate) fn gather(&self, position: usize, mut length: usize, to: &mut Vec<u8>) {
        let (index, mut within) = find(&self.ends, position);
        for piece in self.pieces.get(index..).unwrap_or(&[]) {
            let piece = piece
                .as_slice()
                .and_then(|piece| piece.get(within..))
                .unwrap_or(&[]);
            let part = piece.get(..length).unwrap_or(piece);
            to.extend_from_slice(part);
            length -= part.len();
            within = 0;
            if length == 0 {
                return;
            }
        }
    }

    /// All bytes in one run: a copy, made once.
    #[cold]
    pub(crate) fn whole(&self) -> &[u8] {
        self.whole.get_or_init(|| {
            let mut whole = Vec::with_capacity(self.len());
            self.gather(0, self.len(), &mut whole);
            whole.into_boxed_slice()
        })
    }

    /// The bytes from `start` to `end`, without a copy.
    pub(crate) fn slice(&self, start: usize, end: usize) -> Buffer {
        let mut start = start;
        let mut list = BufferList::new();
        while start < end {
            let (index, within) = find(&self.ends, start);
            let Some(piece) = self.pieces.get(index) else {
                break;
            };
            let part = piece.slice(within..piece.len().min(within + end - start));
            start += part.len();
            list.push(part);
        }
        list.into()
    }
}

/// Ends of pieces in the whole. More bytes than there can be addresses saturate; no path can move them.
fn ends(lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    lengths
        .scan(0_usize, |end, length| {
            *end = end.saturating_add(length);
            Some(*end)
        })
        .collect()
}

/// Buffers to send as one message or put as one run of bytes, in this order, without a copy into one first.
///
/// Becomes a [`Buffer`], so every operation takes it that takes one. Short lists (as long as an eager message) are gathered into one
/// run by one copy when there is room for them, and not before; of long ones the pieces are sent from where they are, those below 8 KiB packed into fragments. Pieces may be empty;
/// a list of none is an empty message.
///
/// ```
/// # use wharf::{Buffer, BufferList};
/// let message: Buffer = BufferList::from([Buffer::from("head"), vec![1, 2, 3].into()]).into();
/// assert_eq!(message.len(), 7);
/// ```
#[derive(Clone, Debug, Default)]
#[doc(alias("ucp_dt_iov_t", "ucp_dt_make_iov", "UCP_DATATYPE_IOV"))]
pub struct BufferList(Vec<Buffer>);

impl BufferList {
    /// A list of nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends a piece; the pieces of a piece that is a list itself.
    pub fn push(&mut self, piece: impl Into<Buffer>) {
        let piece = piece.into();
        match piece.list() {
            Some(list) => self.0.extend(list.pieces.iter().cloned()),
            None if piece.is_empty() => {}
            None => self.0.push(piece),
        }
    }

    /// Bytes of all pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0
            .iter()
            .fold(0, |sum, piece| sum.saturating_add(piece.len()))
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<B: Into<Buffer>> From<Vec<B>> for BufferList {
    fn from(pieces: Vec<B>) -> Self {
        pieces.into_iter().collect()
    }
}

impl<B: Into<Buffer>, const N: usize> From<[B; N]> for BufferList {
    fn from(pieces: [B; N]) -> Self {
        pieces.into_iter().collect()
    }
}

impl<B: Into<Buffer>> FromIterator<B> for BufferList {
    fn from_iter<I: IntoIterator<Item = B>>(pieces: I) -> Self {
        let mut list = Self::new();
        list.extend(pieces);
        list
    }
}

impl<B: Into<Buffer>> Extend<B> for BufferList {
    fn extend<I: IntoIterator<Item = B>>(&mut self, pieces: I) {
        for piece in pieces {
            self.push(piece);
        }
    }
}

impl From<BufferList> for Buffer {
    fn from(mut list: BufferList) -> Self {
        match list.0.len() {
            0 | 1 => list.0.pop().unwrap_or_default(),
            _ => Self::of_list(List::new(list.0)),
        }
    }
}

/// Buffers to receive one message into, or get one run of bytes into: the first is filled first. The operation owns them, and gives them
/// back, empty ones too, in the order in which it got them.
///
/// ```
/// # use wharf::{BufferListMut, BufferMut, ReceiveBuffer};
/// let list = BufferListMut::from([BufferMut::from(vec![0; 4]), vec![0; 100].into()]);
/// assert_eq!(list.len(), 2);
/// let [head, body] = <[BufferMut; 2]>::try_from(list.into_inner()).unwrap();
/// assert_eq!(Vec::restore(head), [0; 4]);
/// ```
#[derive(Debug, Default)]
pub struct BufferListMut(Vec<BufferMut>);

impl BufferListMut {
    /// The buffers.
    #[must_use]
    pub fn into_inner(self) -> Vec<BufferMut> {
        self.0
    }
}

impl Deref for BufferListMut {
    type Target = [BufferMut];
    fn deref(&self) -> &[BufferMut] {
        &self.0
    }
}

impl<B: Into<BufferMut>> From<Vec<B>> for BufferListMut {
    fn from(pieces: Vec<B>) -> Self {
        pieces.into_iter().collect()
    }
}

impl<B: Into<BufferMut>, const N: usize> From<[B; N]> for BufferListMut {
    fn from(pieces: [B; N]) -> Self {
        pieces.into_iter().collect()
    }
}

impl<B: Into<BufferMut>> FromIterator<B> for BufferListMut {
    fn from_iter<I: IntoIterator<Item = B>>(pieces: I) -> Self {
        Self(pieces.into_iter().map(Into::into).collect())
    }
}

impl From<BufferListMut> for BufferMut {
    fn from(list: BufferListMut) -> Self {
        Self::of_list(ListMut::new(list.0))
    }
}

/// The pieces of a [`BufferMut`] that is several.
pub(crate) struct ListMut {
    pieces: Vec<BufferMut>,
    ends: Vec<usize>,
    memory_type: MemoryType,
    /// The bytes in one run, while some path wants them so. They are what counts then.
    staging: Option<Vec<u8>>,
}

impl ListMut {
    /// As [`BufferMut::takes_from`], of every piece.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn takes_from(&mut self, from: EndpointId) -> Result<()> {
        let mut pieces = self.pieces.iter_mut();
        pieces.try_for_each(|piece| piece.takes_from(from))
    }

    fn new(pieces: Vec<BufferMut>) -> Self {
        let ends = ends(pieces.iter().map(BufferMut::len));
        let memory_type = type_of(pieces.iter().map(BufferMut::memory_type));
        Self {
            pieces,
            ends,
            memory_type,
            staging: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    pub(crate) fn memory_type(&self) -> MemoryType {
        self.memory_type
    }

    /// Whether the host does not reach a piece.
    pub(crate) fn is_on_device(&self) -> bool {
        !self.memory_type.is_host_accessible()
    }

    /// Where the pieces are, for writing.
    pub(crate) fn table(&mut self) -> Vec<Extent> {
        self.unstage();
        let mut table = Vec::with_capacity(self.pieces.len());
        for piece in &mut self.pieces {
            if let Some(list) = piece.list_mut() {
                table.append(&mut list.table());
            } else if !piece.is_empty() {
                table.push(Extent {
                    address: piece.address(),
                    length: piece.len(),
                });
            }
        }
        table
    }

    /// The piece that holds `position`, and where in it.
    pub(crate) fn piece_mut(&mut self, position: usize) -> Option<(&mut BufferMut, usize)> {
        self.unstage();
        let (index, within) = find(&self.ends, position);
        Some((self.pieces.get_mut(index)?, within))
    }

    /// The types of memory in it that the host does not reach.
    pub(crate) fn device_types(&self) -> Vec<MemoryType> {
        let types = self.pieces.iter().flat_map(BufferMut::device_types);
        types.collect()
    }

    /// What is left, from `position` on, of the piece there. Empty for a piece that is a list itself.
    pub(crate) fn run(&mut self, position: usize) -> &mut [u8] {
        let (index, within) = find(&self.ends, position);
        self.pieces
            .get_mut(index)
            .filter(|piece| self.staging.is_none() && !piece.is_list())
            .and_then(BufferMut::as_mut_slice)
            .and_then(|piece| piece.get_mut(within..))
            .unwrap_or(&mut [])
    }

    /// Copies `data` to where it belongs, from `position` on, as far as there is room.
    pub(crate) fn scatter(&mut self, position: usize, mut data: &[u8]) {
        if let Some(staging) = &mut self.staging {
            let to = staging.get_mut(position..).unwrap_or(&mut []);
            let length = to.len().min(data.len());
            copy_slice(&data[..length], &mut to[..length]);
            return;
        }
        let (index, mut within) = find(&self.ends, position);
        for piece in self.pieces.get_mut(index..).unwrap_or(&mut []) {
            let length = (piece.len() - within).min(data.len());
            let (part, rest) = data.split_at(length);
            match piece.list_mut() {
                Some(list) => list.scatter(within, part),
                None => {
                    if let Some(to) = piece
                        .as_mut_slice()
                        .and_then(|to| to.get_mut(within..within + length))
                    {
                        copy_slice(part, to);
                    }
                }
            }
            data = rest;
            within = 0;
            if data.is_empty() {
                return;
            }
        }
    }

    /// The bytes in one run, if they are.
    pub(crate) fn staged(&self) -> Option<&[u8]> {
        self.staging.as_deref()
    }

    /// Takes the bytes into one run.
    #[cold]
    pub(crate) fn stage(&mut self) -> &mut [u8] {
        if self.staging.is_none() {
            self.staging = Some(self.copied());
        }
        self.staging.as_deref_mut().unwrap_or(&mut [])
    }

    /// Returns them to the pieces.
    fn unstage(&mut self) {
        if let Some(staging) = self.staging.take() {
            self.scatter(0, &staging);
        }
    }

    /// The bytes in a new `Vec`.
    pub(crate) fn copied(&self) -> Vec<u8> {
        match &self.staging {
            Some(staging) => staging.clone(),
            None => {
                let mut bytes = Vec::with_capacity(self.len());
                for piece in &self.pieces {
                    piece.copy_to(&mut bytes);
                }
                bytes
            }
        }
    }

    pub(crate) fn into_pieces(mut self) -> Vec<BufferMut> {
        self.unstage();
        self.pieces
    }
}

impl fmt::Debug for ListMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pieces", self.pieces.len())
    }
}

/// Copies from an extent.
///
/// # Safety
/// The extent must be valid for reading, and nothing may write it meanwhile.
#[cfg(test)]
unsafe fn bytes_of(extent: &Extent) -> &[u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(extent.address, extent.length) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::ReceiveBuffer;

    fn list() -> Buffer {
        let inner = BufferList::from(["cd", "", "efg"]);
        let mut list = BufferList::new();
        list.extend([Buffer::from("ab"), Buffer::new(), inner.into(), "h".into()]);
        assert_eq!(list.len(), 8);
        list.into()
    }

    #[test]
    fn a_list_is_as_its_bytes() {
        let buffer = list();
        assert_eq!(
            (buffer.len(), buffer.list().map(|list| list.table().len())),
            (8, Some(4))
        );
        for start in 0..=8 {
            for end in start..=8 {
                let part = buffer.slice(start..end);
                assert_eq!(part.as_slice(), b"abcdefgh".get(start..end));
                let mut bytes = Vec::new();
                buffer
                    .list()
                    .expect("a list")
                    .gather(start, end - start, &mut bytes);
                assert_eq!(Some(&bytes[..]), b"abcdefgh".get(start..end));
            }
        }
        let list = buffer.list().expect("a list");
        assert_eq!(
            (list.run(0), list.run(3), list.run(4), list.run(8)),
            (&b"ab"[..], &b"d"[..], &b"efg"[..], &b""[..])
        );
        // SAFETY: the buffer lives.
        let joined: Vec<u8> = list
            .table()
            .iter()
            .flat_map(|extent| unsafe { bytes_of(extent) })
            .copied()
            .collect();
        assert_eq!(joined, b"abcdefgh");
        assert_eq!(buffer.as_slice(), Some(&b"abcdefgh"[..]));
        assert_eq!(buffer.address(), buffer.clone().address());
    }

    #[test]
    fn short_lists_are_plain_buffers() {
        assert!(Buffer::from(BufferList::new()).is_empty());
        let buffer: Buffer = BufferList::from([vec![1_u8], vec![]]).into();
        assert!(buffer.list().is_none());
        assert_eq!(buffer.as_slice(), Some(&[1][..]));
    }

    fn room() -> BufferMut {
        let inner = BufferListMut::from([vec![b'3'; 2], vec![], vec![b'4'; 3]]);
        BufferListMut::from([
            BufferMut::from(vec![b'1'; 2]),
            vec![].into(),
            inner.into(),
            vec![b'5'; 1].into(),
        ])
        .into()
    }

    fn found(buffer: BufferMut) -> Vec<Vec<u8>> {
        let list = BufferListMut::restore(buffer);
        list.into_inner().into_iter().map(Vec::restore).collect()
    }

    #[test]
    fn scattered_bytes_arrive_in_order() {
        for (position, data, wanted) in [
            (0, "", ["11", "", "33444", "5"]),
            (0, "abcdefgh", ["ab", "", "cdefg", "h"]),
            (1, "bc", ["1b", "", "c3444", "5"]),
            (3, "xyzwv", ["11", "", "3xyzw", "v"]),
            (8, "more", ["11", "", "33444", "5"]),
        ] {
            for staged in [false, true] {
                let mut buffer = room();
                if staged {
                    assert_eq!(buffer.as_mut_slice().expect("host memory"), b"11334445");
                }
                buffer
                    .list_mut()
                    .expect("a list")
                    .scatter(position, data.as_bytes());
                assert_eq!(found(buffer), wanted.map(|piece| piece.as_bytes().to_vec()));
            }
        }
    }

    #[test]
    fn staged_bytes_go_to_the_pieces() {
        let mut buffer = room();
        let address = buffer.address();
        let mut moved = Box::new(buffer);
        assert_eq!(moved.address(), address);
        moved.as_mut_slice().expect("host memory")[1..3].copy_from_slice(b"xy");
        assert_eq!(moved.as_slice(), Some(&b"1xy34445"[..]));
        assert_eq!(moved.freeze().as_slice(), Some(&b"1xy34445"[..]));
        let mut buffer = room();
        let _ = buffer.address();
        assert_eq!(buffer.list_mut().expect("a list").table().len(), 4);
        assert_eq!(buffer.list_mut().expect("a list").run(1).len(), 1);
        assert_eq!(buffer.list_mut().expect("a list").run(8).len(), 0);
        assert_eq!(room().freeze().slice(1..7).as_slice(), Some(&b"133444"[..]));
    }
}
