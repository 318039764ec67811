//! Several buffers that go as one: gathered by sends and puts, scattered into by receives and gets.
//!
//! Paths that can take pieces take them one by one. Those that need all bytes in one run ask for them as of any other buffer, and get a
//! copy that the list makes then: of what is sent, once; of what is received into, with the bytes going to the pieces in the end.

use std::ops::Deref;

use super::{
    Buffer, BufferMut,
    buffer::{ReceiveBuffer, sealed::Sealed},
};

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
        piece.into().add_to(&mut self.0);
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
    fn from(list: BufferList) -> Self {
        Self::of_pieces(list.0)
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
        Self::of_pieces(list.0)
    }
}

impl Sealed for BufferListMut {
    fn own_run(&mut self) -> Option<&mut [u8]> {
        None
    }
}

impl ReceiveBuffer for BufferListMut {
    fn restore(buffer: BufferMut) -> Self {
        Self(buffer.into_pieces())
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::memory::Extent;

    /// Copies from an extent.
    ///
    /// # Safety
    /// The extent must be valid for reading, and nothing may write it meanwhile.
    unsafe fn bytes_of(extent: &Extent) -> &[u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(extent.address, extent.length) }
    }

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
