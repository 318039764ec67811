//! A receive that is being polled at this moment. It is not in the table: a message that arrives meanwhile is copied straight into its
//! buffer, and only one that comes in several parts takes the buffer into the table.
//!
//! # Safety
//! [`Direct`] holds the address of a buffer that its caller borrows for the whole of `Engine::receive_now`, and it is taken out of the
//! core before that returns. Nothing else reads or writes the buffer meanwhile.
#![allow(unsafe_code)]

use crate::{
    memory::{BufferMut, Room},
    protocol::window::Due,
    types::{EndpointId, LinkId, Mask, OpKey, Tag},
    util::copy::copy_small,
    worker::operations::Arrival,
};

/// Looks at the likeliest link before each pass, with a pause of the processor's between them, and passes in one lap.
pub(super) const LOOKS: u32 = 4;
pub(super) const PASSES: usize = 4;
/// Passes where what was waited for before came within them, and of each so many-th wait: where a look is a system call, an answer takes longer than a few.
pub(in crate::worker) const PATIENT: usize = 16;
pub(in crate::worker) const TRIES_EVERY: u32 = 32;
/// Waits in vain, one after the other, after which that does not pay any more. A peer whose task has given way once answers late once: who armed for its
/// next answers, too, would have both ends sleep for each other until a look of each is patient at the same time.
pub(in crate::worker) const IN_VAIN: u32 = 8;
/// Looks of a first poll, where what was waited for before came soon: some 400 ns where a pause takes 18, 1 us where it takes 45. What comes meanwhile is
/// taken by the shortest way.
pub(super) const FIRST_LOOKS: u32 = 24;

pub(crate) struct Direct {
    pub(in crate::worker) tag: Tag,
    pub(in crate::worker) mask: Mask,
    pub(in crate::worker) room: *mut u8,
    pub(in crate::worker) length: usize,
    pub(in crate::worker) buffer: *mut BufferMut,
    pub(in crate::worker) outcome: DirectOutcome,
}

// SAFETY: it exists within one call on one thread only, see the chapter on safety.
unsafe impl Send for Direct {}

/// What a look for a message found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DirectOutcome {
    /// No message.
    Waiting,
    /// A message, in the buffer.
    Done(Arrival),
    /// A message of this length, which the buffer has no room for.
    Truncated(usize),
    /// A message that comes in parts; the buffer has moved into the table.
    Entered(OpKey),
}

impl Direct {
    /// For a buffer that the caller lends for as long as this value exists. `None` for memory that a connection was lent for writing.
    #[inline]
    pub(in crate::worker) fn new(tag: Tag, mask: Mask, lent: &mut BufferMut) -> Option<Self> {
        let buffer: *mut BufferMut = lent;
        // SAFETY: the caller's own, and by way of the address that is kept: what was borrowed beside it would end its right to the buffer.
        let (room, length) = match unsafe { &mut *buffer }.room() {
            Room::Run(address, length) => (address, length),
            // Piece by piece, `fill_list`; or not at all.
            Room::Pieces | Room::Unreachable => (std::ptr::NonNull::dangling().as_ptr(), 0),
            Room::Lent => return None,
        };
        Some(Self {
            tag,
            mask,
            room,
            length,
            buffer,
            outcome: DirectOutcome::Waiting,
        })
    }

    /// Whether a message is for it.
    #[inline(always)]
    pub(crate) fn accepts(&self, tag: Tag) -> bool {
        self.mask.matches(self.tag, tag) && matches!(self.outcome, DirectOutcome::Waiting)
    }

    /// Bytes that it has room for.
    pub(crate) fn room(&self) -> usize {
        self.length
    }

    /// Takes a whole message.
    #[inline(always)]
    pub(crate) fn fill(&mut self, data: &[u8], tag: Tag, from: EndpointId) {
        self.outcome = if data.len() <= self.length {
            // SAFETY: the buffer has room for `length` bytes and is the caller's of `receive_now`; `data` is the link's.
            unsafe { copy_small(data.as_ptr(), self.room, data.len()) };
            DirectOutcome::Done(Arrival {
                length: data.len(),
                tag,
                from,
            })
        } else {
            self.fill_list(data, tag, from)
        };
    }

    /// Takes a whole message that there is no room for in one run: into a list, of which this value knows no address.
    #[cold]
    fn fill_list(&mut self, data: &[u8], tag: Tag, from: EndpointId) -> DirectOutcome {
        // SAFETY: the caller of `receive_now` lent it for as long as this value exists; it is borrowed nowhere else.
        let buffer = unsafe { &mut *self.buffer };
        if buffer.len() < data.len() {
            return DirectOutcome::Truncated(data.len());
        }
        match buffer.list_mut() {
            Some(list) => {
                list.scatter(0, data);
                DirectOutcome::Done(Arrival {
                    length: data.len(),
                    tag,
                    from,
                })
            }
            None => DirectOutcome::Truncated(data.len()),
        }
    }

    /// Gives the buffer away, to be entered into the table.
    pub(crate) fn take_buffer(&mut self) -> BufferMut {
        // SAFETY: the caller of `receive_now` lent it for as long as this value exists.
        std::mem::take(unsafe { &mut *self.buffer })
    }

    pub(crate) fn entered(&mut self, key: OpKey) {
        self.outcome = DirectOutcome::Entered(key);
    }
}

/// What a message that was taken leaves to be done.
#[derive(Debug)]
#[must_use]
pub(crate) struct Owed(pub(in crate::worker) LinkId, pub(in crate::worker) Due);

impl Owed {
    #[inline(always)]
    pub(crate) fn is_nothing(&self) -> bool {
        self.1 == Due::Nothing
    }
}
