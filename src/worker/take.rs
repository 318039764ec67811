//! Receives that take their message where it lies, and those that are polled when it comes.
//!
//! # Safety
//! [`Direct`] holds the address of a buffer that its caller borrows for the whole of [`Engine::receive_now`], and it is taken out of the
//! core before that returns. Nothing else reads or writes the buffer meanwhile.
#![allow(unsafe_code)]

use std::task::Waker;

use crate::{
    memory::BufferMut,
    protocol::{
        control,
        window::{Terms, eager_cost},
    },
    transport::Wanted,
    types::{Mask, OpKey, Tag},
    worker::{
        direct::{
            Direct, DirectOutcome, FIRST_LOOKS, IN_VAIN, LOOKS, Owed, PASSES, PATIENT, TRIES_EVERY,
        },
        door::Begun,
        engine::Engine,
        operations::Arrival,
        shared::Shared,
    },
};

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
        let mut wanted = Wanted {
            id: control::TAG_EAGER,
            header: tag.0,
            mask: mask.0,
            address: room.as_mut_ptr(),
            room: room.len(),
            looks,
        };
        // SAFETY: the room is that long, and is borrowed alone for the whole of this call.
        unsafe { self.take_wanted(&mut wanted) }
    }

    /// # Safety
    /// As for [`Engine::take`].
    #[inline(always)]
    unsafe fn take_wanted(&mut self, wanted: &mut Wanted) -> Option<(Arrival, Owed)> {
        // SAFETY: the caller's promise.
        let (from, length) = unsafe { self.take(wanted) }?;
        let peer = self.core.movers.ctx.peer(from)?;
        let arrival = Arrival {
            length,
            tag: Tag(wanted.header),
            from: peer.id,
        };
        if !peer.receive_window.pass(eager_cost(length)) {
            self.core.movers.ctx.exceeded(from);
            return None;
        }
        let due = peer.receive_window.due(&Terms::EAGER);
        Some((arrival, Owed(from, due)))
    }

    /// The same for a posted receive, whose buffer lies in the queue: it is over then, and gone from there.
    #[inline(always)]
    pub(crate) fn take_posted(
        &mut self,
        key: OpKey,
    ) -> Option<(Arrival, (BufferMut, Option<Waker>), Owed)> {
        if self.is_armed() {
            return None;
        }
        let (tag, mask, room) = self.core.next_receive(key)?;
        let (address, room) = (room.as_mut_ptr(), room.len());
        let mut wanted = Wanted {
            id: control::TAG_EAGER,
            header: tag.0,
            mask: mask.0,
            address,
            room,
            looks: 0,
        };
        // SAFETY: the room is the buffer's, which the posted receive owns, and which nobody else reaches during the call: it stays where it is.
        let (arrival, owed) = unsafe { self.take_wanted(&mut wanted) }?;
        Some((arrival, self.core.take_receive(key)?, owed))
    }

    /// What follows [`Engine::take_tagged`].
    pub(crate) fn settle(&mut self, owed: Owed) {
        self.core.movers.ctx.give_eager(owed.0, owed.1);
    }
}

impl Shared {
    /// The message of a posted receive, if it lies in front, for the thread that owns the lock.
    #[inline(always)]
    pub(crate) fn take_posted(&self, key: OpKey) -> Option<(Arrival, BufferMut, Begun<'_>)> {
        let mut inside = self.owner_inside()?;
        let (arrival, (buffer, waker), owed) = inside.take_posted(key)?;
        let begun = inside.over();
        drop(waker);
        if !owed.is_nothing() {
            begun.settle(owed);
        }
        Some((arrival, buffer, begun))
    }

    /// The message of a posted receive that a pass has filled, for the thread that owns the lock.
    #[inline]
    pub(crate) fn take_arrived(&self, key: OpKey) -> Option<(Arrival, BufferMut, Begun<'_>)> {
        let mut inside = self.owner_inside()?;
        let (arrival, buffer) = inside.core.take_arrived(key)?;
        Some((arrival, buffer, inside.over()))
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

/// Takes the direct receive out of the core, also when something in a pass panics.
struct Lent<'a>(&'a mut Engine);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.core.direct = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{BufferListMut, ReceiveBuffer};
    use crate::types::EndpointId;

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
