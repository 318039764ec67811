//! A receive that is being polled at this moment. It is not in the table: a message that arrives meanwhile is copied straight into its
//! buffer, and only one that comes in several parts takes the buffer into the table.
//!
//! # Safety
//! [`Direct`] holds the address of a buffer that its caller borrows for the whole of [`Engine::receive_now`], and it is taken out of the
//! core before that returns. Nothing else reads or writes the buffer meanwhile.
#![allow(unsafe_code)]

use crate::{
    memory::{BufferMut, Room},
    protocol::{
        control,
        window::{Due, Terms, eager_cost},
    },
    transport::Wanted,
    types::{EndpointId, LinkId, Mask, OpKey, Tag},
    util::copy::copy_small,
    worker::{door::Begun, engine::Engine, operations::Arrival, shared::Shared, windows::Window},
};

/// Looks at the likeliest link before each pass, with a pause of the processor's between them, and passes in one lap.
pub(super) const LOOKS: u32 = 4;
pub(super) const PASSES: usize = 4;
/// Passes where what was waited for before came within them, and of each so many-th wait: where a look is a system call, an answer takes longer than a few.
const PATIENT: usize = 16;
const TRIES_EVERY: u32 = 32;
/// Waits in vain, one after the other, after which that does not pay any more. A peer whose task has given way once answers late once: who armed for its
/// next answers, too, would have both ends sleep for each other until a look of each is patient at the same time.
const IN_VAIN: u32 = 8;
/// Looks of a first poll, where what was waited for before came soon: some 400 ns where a pause takes 18, 1 us where it takes 45. What comes meanwhile is
/// taken by the shortest way.
pub(super) const FIRST_LOOKS: u32 = 24;

pub(crate) struct Direct {
    tag: Tag,
    mask: Mask,
    room: *mut u8,
    length: usize,
    buffer: *mut BufferMut,
    outcome: DirectOutcome,
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
    fn new(tag: Tag, mask: Mask, lent: &mut BufferMut) -> Option<Self> {
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

impl Engine {
    /// Takes the next message of the link that brought the last one, if it is a tagged one for this receive: straight into its room, past the
    /// queues, which have nothing that comes before it.
    /// What is then to be given back to the peer is left to [`Engine::settle`]. `looks`: of [`Wanted`].
    #[inline(always)]
    pub(crate) fn take_tagged(
        &mut self,
        tag: Tag,
        mask: Mask,
        room: &mut [u8],
        looks: u32,
    ) -> Option<(Arrival, Owed)> {
        if !self.core.posted.is_empty() || !self.core.unexpected.is_empty() || self.is_armed() {
            return None;
        }
        let wanted = Wanted {
            id: control::TAG_EAGER,
            header: tag.0,
            mask: mask.0,
            address: room.as_mut_ptr(),
            room: room.len(),
            looks,
        };
        // SAFETY: the room is that long, and is borrowed alone for the whole of this call.
        unsafe { self.take_wanted(&wanted) }
    }

    /// # Safety
    /// As for [`Engine::take`].
    #[inline(always)]
    unsafe fn take_wanted(&mut self, wanted: &Wanted) -> Option<(Arrival, Owed)> {
        // SAFETY: the caller's promise.
        let taken = unsafe { self.take(wanted) }?;
        let peer = self.core.peer(taken.from)?;
        let arrival = Arrival {
            length: taken.length,
            tag: Tag(taken.header),
            from: peer.id,
        };
        if !peer.receive_window.pass(eager_cost(taken.length)) {
            self.core.exceeded(taken.from);
            return None;
        }
        let due = peer.receive_window.due(&Terms::EAGER);
        Some((arrival, Owed(taken.from, due)))
    }

    /// The same for a posted receive, whose buffer lies in the queue: it is over then, and gone from there.
    #[inline(always)]
    pub(crate) fn take_posted(&mut self, key: OpKey) -> Option<(Arrival, BufferMut, Owed)> {
        if self.is_armed() {
            return None;
        }
        let (tag, mask, room) = self.core.next_receive(key)?;
        let (address, room) = (room.as_mut_ptr(), room.len());
        let wanted = Wanted {
            id: control::TAG_EAGER,
            header: tag.0,
            mask: mask.0,
            address,
            room,
            looks: 0,
        };
        // SAFETY: the room is the buffer's, which the posted receive owns, and which nobody else reaches during the call: it stays where it is.
        let (arrival, owed) = unsafe { self.take_wanted(&wanted) }?;
        let buffer = self.core.take_receive(key)?;
        Some((arrival, buffer, owed))
    }

    /// What follows [`Engine::take_tagged`].
    pub(crate) fn settle(&mut self, owed: Owed) {
        self.core.give_back(Window::Eager(owed.0), owed.1);
    }
}

impl Shared {
    /// The message of a posted receive, if it lies in front, for the thread that owns the lock.
    #[inline(always)]
    pub(crate) fn take_posted(&self, key: OpKey) -> Option<(Arrival, BufferMut, Begun<'_>)> {
        let mut inside = self.owner_inside()?;
        let (arrival, buffer, owed) = inside.take_posted(key)?;
        let begun = inside.over();
        if !owed.is_nothing() {
            begun.settle(owed);
        }
        Some((arrival, buffer, begun))
    }
}

/// What a message that was taken leaves to be done.
#[derive(Debug)]
#[must_use]
pub(crate) struct Owed(LinkId, Due);

impl Owed {
    #[inline(always)]
    pub(crate) fn is_nothing(&self) -> bool {
        self.1 == Due::Nothing
    }
}

/// Takes the direct receive out of the core, also when something in a pass panics.
struct Lent<'a>(&'a mut Engine);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.core.direct = None;
    }
}

impl Engine {
    /// Looks at what arrives for a message, for the length of one lap: at what is likeliest, and in fewer passes at everything. The lock is held for
    /// half a microsecond at most.
    #[inline(always)]
    pub(crate) fn receive_now(
        &mut self,
        tag: Tag,
        mask: Mask,
        buffer: &mut BufferMut,
    ) -> DirectOutcome {
        let mut outcome = DirectOutcome::Waiting;
        let mut waited = false;
        self.waits = self.waits.wrapping_add(1);
        let passes = match self.first_looks > 0 || self.waits.is_multiple_of(TRIES_EVERY) {
            true => PATIENT,
            false => PASSES,
        };
        for _ in 0..passes {
            let looks = if waited { LOOKS } else { 0 };
            if let Some(room) = buffer.run_mut()
                && let Some((arrival, owed)) = self.take_tagged(tag, mask, room, looks)
            {
                if !owed.is_nothing() {
                    self.settle(owed);
                }
                outcome = DirectOutcome::Done(arrival);
                break;
            }
            if let Some(found) = self.receive_in_a_pass(tag, mask, buffer) {
                outcome = found;
                break;
            }
            waited = true;
        }
        if matches!(outcome, DirectOutcome::Waiting) {
            self.in_vain = self.in_vain.saturating_add(1);
            if self.in_vain >= IN_VAIN {
                self.first_looks = 0;
            }
        } else if waited {
            self.late += 1;
            self.in_vain = 0;
            self.first_looks = FIRST_LOOKS;
        }
        outcome
    }

    /// One pass for a message. `None`: nothing came.
    #[inline(never)]
    fn receive_in_a_pass(
        &mut self,
        tag: Tag,
        mask: Mask,
        buffer: &mut BufferMut,
    ) -> Option<DirectOutcome> {
        self.core.direct = Direct::new(tag, mask, buffer);
        if self.core.direct.is_none() {
            // Whose it is to be is known in the table only: what comes waits there.
            self.progress();
            return (!self.core.unexpected.is_empty()).then_some(DirectOutcome::Waiting);
        }
        let lent = Lent(self);
        lent.0.progress();
        let outcome = lent.0.core.direct.take()?.outcome;
        (!matches!(outcome, DirectOutcome::Waiting)).then_some(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{BufferListMut, ReceiveBuffer};

    const ANY: Mask = Mask(0);
    const FROM: EndpointId = EndpointId(1);

    #[test]
    fn a_message_is_in_the_buffer() {
        let mut buffer = BufferMut::from(vec![0; 8]);
        let mut direct = Direct::new(Tag(1), ANY, &mut buffer).expect("room");
        assert!(direct.accepts(Tag(7)) && direct.room() == 8);
        direct.fill(b"bytes", Tag(7), FROM);
        assert!(!direct.accepts(Tag(7)), "it has one");
        assert!(matches!(direct.outcome, DirectOutcome::Done(arrival) if arrival.length == 5));
        assert_eq!(buffer.as_slice().expect("the host's")[..5], *b"bytes");
    }

    #[test]
    fn a_message_that_is_too_long_leaves_the_buffer() {
        let mut buffer = BufferMut::from(vec![0; 4]);
        let mut direct = Direct::new(Tag(1), ANY, &mut buffer).expect("room");
        direct.fill(b"bytes", Tag(1), FROM);
        assert!(matches!(direct.outcome, DirectOutcome::Truncated(5)));
        assert_eq!(buffer.as_slice().expect("the host's"), [0; 4]);
    }

    #[test]
    fn the_buffer_can_be_taken() {
        let mut buffer = BufferMut::from(vec![3; 8]);
        let mut direct = Direct::new(Tag(1), ANY, &mut buffer).expect("room");
        let taken = direct.take_buffer();
        direct.entered(OpKey(5));
        assert!(matches!(direct.outcome, DirectOutcome::Entered(OpKey(5))));
        assert_eq!(taken.as_slice().expect("the host's"), [3; 8]);
        assert_eq!(buffer.len(), 0, "nothing is left");
    }

    #[test]
    fn a_list_is_filled_piece_by_piece() {
        let list = BufferListMut::from([vec![0; 3], vec![0; 4]]);
        let mut buffer = BufferMut::from(list);
        let mut direct = Direct::new(Tag(1), ANY, &mut buffer).expect("room");
        direct.fill(b"bytes", Tag(1), FROM);
        assert!(matches!(direct.outcome, DirectOutcome::Done(arrival) if arrival.length == 5));
        let pieces = BufferListMut::restore(buffer).into_inner();
        let bytes = |index: usize| pieces[index].as_slice().expect("the host's").to_vec();
        assert_eq!((bytes(0), bytes(1)), (b"byt".to_vec(), b"es\0\0".to_vec()));
    }
}
