//! Active messages where they arrived: what a callback, or [`AmInbox::recv_with`](super::AmInbox::recv_with), looks at.
//!
//! # Safety
//! [`BytesInPlace`] has an address and a length, of bytes that are there for its life: of a slice that it borrows, or of a message that is
//! [`HeldBytes`] for as long. They are only copied from, since over shared memory the sender may change them meanwhile, unless the caller vouches for
//! the sender. A message that is lent to who looks at it is dropped once, by the guard that has it, and by nobody else.
#![allow(unsafe_code)]

use std::{
    fmt,
    iter::FusedIterator,
    marker::PhantomData,
    mem::ManuallyDrop,
    ops::Range,
    slice,
    sync::{
        Arc,
        atomic::{Ordering, compiler_fence},
    },
};

use crate::{
    transport::HeldBytes,
    types::{AmId, EndpointId},
    util::copy::copy,
    worker::{
        Handle,
        inbox::{Arrived, Content},
    },
};

use super::{ActiveMessage, Endpoint, message::endpoint_of};

/// Bytes of a message where they arrived, which another process may be changing at this moment, if it is hostile: so they are copied out, each field
/// once, and what was copied is checked and used. Who reads all of them goes by [chunks](BytesInPlace::chunks).
///
/// ```
/// # fn look(bytes: wharf::BytesInPlace<'_>) -> Option<u64> {
/// let first = u64::from_le_bytes(bytes.read(0)?);
/// let (chunks, rest) = bytes.chunks::<64>();
/// let ones: u32 = chunks.flatten().map(u8::count_ones).sum();
/// # assert!(rest.len() < 64 && ones <= u32::MAX);
/// # Some(first)
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct BytesInPlace<'a> {
    address: *const u8,
    length: usize,
    lent: PhantomData<&'a [u8]>,
}

impl<'a> BytesInPlace<'a> {
    #[inline]
    pub(super) fn of_slice(bytes: &'a [u8]) -> Self {
        Self {
            address: bytes.as_ptr(),
            length: bytes.len(),
            lent: PhantomData,
        }
    }

    #[inline]
    pub(super) fn of_held(held: &'a HeldBytes) -> Self {
        Self {
            address: held.address(),
            length: held.length(),
            lent: PhantomData,
        }
    }

    /// Their number.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The first of them. Valid for reads of [`BytesInPlace::len`] bytes for the life of this value.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.address
    }

    /// Some of them; `None` when they are not all there.
    #[inline]
    #[must_use]
    pub fn get(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.length {
            return None;
        }
        Some(Self {
            // SAFETY: within the bytes, as was checked, or one past their end.
            address: unsafe { self.address.add(range.start) },
            length: range.end - range.start,
            lent: PhantomData,
        })
    }

    /// A field of `N` bytes at an offset; `None` when it is not all there. For `u64::from_le_bytes` and the like.
    #[inline(always)]
    #[must_use]
    pub fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        if offset > self.length.checked_sub(N)? {
            return None;
        }
        // SAFETY: so many bytes are there, as was checked; bytes need no alignment.
        let bytes = unsafe { self.address.add(offset).cast::<[u8; N]>().read() };
        once();
        Some(bytes)
    }

    /// All of them in pieces of `N` bytes, each copied out once, and the last ones, fewer than `N`, that make no piece. The quickest way to read all, with an
    /// `N` of some registers: 64, say.
    #[inline(always)]
    #[must_use]
    pub fn chunks<const N: usize>(&self) -> (ChunksInPlace<'a, N>, Self) {
        const { assert!(N > 0, "pieces of no bytes") };
        let rest = self.length % N;
        let all = self.length - rest;
        let part = |from: usize, length: usize| Self {
            address: self.address.wrapping_add(from),
            length,
            lent: PhantomData,
        };
        (ChunksInPlace(part(0, all)), part(all, rest))
    }

    /// Copies the first of them into `to`, as many as there are and there is room for, and says how many.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let length = self.length.min(to.len());
        // SAFETY: so many are there at both places; `to` is borrowed alone, so it is none of them.
        unsafe { copy(self.address, to.as_mut_ptr(), length) };
        once();
        length
    }

    /// A copy of all of them.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length);
        // SAFETY: there is room for as many as there are.
        unsafe { copy(self.address, bytes.as_mut_ptr(), self.length) };
        once();
        // SAFETY: written just now.
        unsafe { bytes.set_len(self.length) };
        bytes
    }

    /// The bytes themselves.
    ///
    /// # Safety
    /// Nobody changes them for the life of the slice. Over the transports `self`, `tcp` and `rc_verbs` nobody can. Over `shm` an honest peer does not; one that is not
    /// to be trusted with this process's own memory must not be trusted with that.
    #[inline]
    #[must_use]
    pub unsafe fn as_slice(&self) -> &'a [u8] {
        // SAFETY: they are there for that life (module docs); the caller vouches that they stay as they are.
        unsafe { slice::from_raw_parts(self.address, self.length) }
    }
}

/// Pieces of a message where it arrived; made by [`BytesInPlace::chunks`].
#[derive(Clone, Debug)]
pub struct ChunksInPlace<'a, const N: usize>(BytesInPlace<'a>);

impl<const N: usize> Iterator for ChunksInPlace<'_, N> {
    type Item = [u8; N];

    #[inline(always)]
    fn next(&mut self) -> Option<[u8; N]> {
        let bytes = self.0.read(0)?;
        self.0.address = self.0.address.wrapping_add(N);
        self.0.length -= N;
        Some(bytes)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.0.length / N;
        (left, Some(left))
    }
}

impl<const N: usize> ExactSizeIterator for ChunksInPlace<'_, N> {}
impl<const N: usize> FusedIterator for ChunksInPlace<'_, N> {}

/// What was copied is not read again from where it was: the compiler may take the one for the other until something may have changed it.
#[inline(always)]
fn once() {
    compiler_fence(Ordering::SeqCst);
}

impl fmt::Debug for BytesInPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BytesInPlace")
            .field("len", &self.length)
            .finish_non_exhaustive()
    }
}

/// An active message in the hands of a callback ([`ActiveMessages::on_message`](super::ActiveMessages::on_message)) or of
/// [`AmInbox::recv_with`](super::AmInbox::recv_with): its bytes are looked at where they arrived, and gone after the call unless they are
/// [kept](AmArrival::keep).
///
/// Over shared memory a message that was waited for is not copied at all; its sender gets the room back when the call is over. Of one that is announced
/// the payload is with its sender still: keep it to fetch it; else it is rejected.
#[doc(alias("ucp_am_recv_param_t", "ucp_am_recv_attr_t"))]
pub struct AmArrival<'a> {
    handle: &'a Arc<Handle>,
    id: AmId,
    arrived: &'a mut Arrived,
}

/// Has a message looked at, without the lock. After that, and when `look` panics, what was held in place is let go of, and what was announced and
/// not kept is rejected.
#[inline(always)]
pub(super) fn lend<R>(
    handle: &Arc<Handle>,
    id: AmId,
    arrived: Arrived,
    look: impl FnOnce(AmArrival<'_>) -> R,
) -> R {
    let mut lent = Lent {
        handle,
        id,
        arrived: ManuallyDrop::new(arrived),
    };
    look(AmArrival {
        handle,
        id,
        arrived: &mut lent.arrived,
    })
}

struct Lent<'a> {
    handle: &'a Arc<Handle>,
    id: AmId,
    /// So that the commonest one is let go of without a call.
    arrived: ManuallyDrop<Arrived>,
}

impl Drop for Lent<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: it is dropped in this place alone, and this value is gone after that.
        let arrived = unsafe { ManuallyDrop::take(&mut self.arrived) };
        match arrived.content {
            Content::InPlace { held, .. } => drop(held),
            _ => let_go(self.handle, self.id, arrived),
        }
    }
}

#[inline(never)]
fn let_go(handle: &Arc<Handle>, id: AmId, arrived: Arrived) {
    if matches!(arrived.content, Content::Announced(_)) {
        // Rejects it.
        drop(ActiveMessage::new(handle, id, arrived));
    }
}

impl AmArrival<'_> {
    /// Its id.
    #[inline]
    #[must_use]
    pub fn id(&self) -> AmId {
        self.id
    }

    /// The endpoint that it came from: [`Worker::endpoint`](super::Worker::endpoint) knows it by this name.
    #[inline]
    #[must_use]
    pub fn from(&self) -> EndpointId {
        self.arrived.from
    }

    /// The endpoint that it came from, to answer on; `None` when that is closed.
    #[must_use]
    #[doc(alias("UCP_AM_SEND_FLAG_REPLY", "UCP_AM_RECV_ATTR_FIELD_REPLY_EP"))]
    pub fn endpoint(&self) -> Option<Endpoint> {
        endpoint_of(self.handle, self.arrived.link, self.arrived.from)
    }

    /// Where it lies in place: header and payload in one, and where the second begins.
    #[inline]
    fn in_place(&self) -> Option<(BytesInPlace<'_>, usize)> {
        match &self.arrived.content {
            Content::InPlace { header, held } => {
                Some((BytesInPlace::of_held(held), usize::from(*header)))
            }
            _ => None,
        }
    }

    /// The header that its sender gave.
    #[inline]
    #[must_use]
    pub fn header(&self) -> BytesInPlace<'_> {
        let header = self.in_place().and_then(|(all, header)| all.get(0..header));
        header.unwrap_or_else(|| BytesInPlace::of_slice(self.arrived.content.parts().0))
    }

    /// The payload; `None` when it is announced.
    #[inline]
    #[must_use]
    pub fn data(&self) -> Option<BytesInPlace<'_>> {
        match self.in_place() {
            Some((all, header)) => all.get(header..all.len()),
            None => self.arrived.content.parts().1.map(BytesInPlace::of_slice),
        }
    }

    /// Length of the payload in bytes. Of an announced one as its sender says.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.arrived.content {
            Content::Announced(announced) => announced.rts.length as usize,
            _ => self.data().map_or(0, |data| data.len()),
        }
    }

    /// Whether the payload is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the payload is still with its sender.
    #[inline]
    #[must_use]
    #[doc(alias = "UCP_AM_RECV_ATTR_FLAG_RNDV")]
    pub fn is_announced(&self) -> bool {
        matches!(self.arrived.content, Content::Announced(_))
    }

    /// The message, to have after the call: what lies in place is copied.
    #[doc(alias = "UCP_AM_RECV_ATTR_FLAG_DATA")]
    pub fn keep(self) -> ActiveMessage {
        ActiveMessage::new(self.handle, self.id, self.arrived.take())
    }

    /// As [`ActiveMessage::reject`].
    pub fn reject(self, reason: &str) {
        self.keep().reject(reason);
    }
}

impl fmt::Debug for AmArrival<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmArrival")
            .field("id", &self.id)
            .field("from", &self.arrived.from)
            .field("header", &self.header().len())
            .field("len", &self.len())
            .field("announced", &self.is_announced())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_where_they_are_all_there() {
        let bytes: Vec<u8> = (0..20).collect();
        let all = BytesInPlace::of_slice(&bytes);
        assert_eq!(all.read(0), Some([0, 1, 2, 3]));
        assert_eq!(all.read(16), Some([16, 17, 18, 19]));
        assert_eq!(all.read(20), Some([]));
        for offset in [17, 20, 21, usize::MAX - 3, usize::MAX] {
            assert_eq!(all.read::<4>(offset), None, "{offset}");
        }
        assert_eq!(all.read::<21>(0), None);
        assert_eq!(BytesInPlace::of_slice(&[]).read::<1>(0), None);
    }

    #[test]
    fn chunks_and_their_rest_are_all_bytes() {
        for length in [0, 1, 7, 8, 9, 63, 64, 65, 200] {
            let bytes: Vec<u8> = (0..length).collect();
            let all = BytesInPlace::of_slice(&bytes);
            let (chunks, rest) = all.chunks::<8>();
            assert_eq!(chunks.len(), bytes.len() / 8);
            let mut read: Vec<u8> = chunks.clone().flatten().collect();
            assert_eq!(chunks.count() * 8, read.len());
            read.extend(rest.to_vec());
            assert_eq!(read, bytes);
        }
    }
}
