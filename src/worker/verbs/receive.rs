//! Receives that were posted.

use std::task::Waker;

use crate::{
    error::Error,
    memory::BufferMut,
    protocol::matching::PostId,
    trace,
    types::{EndpointId, LinkId, Mask, OpKey, Tag},
    util::waker_slot::WakerSlot,
    worker::{
        core::Core,
        ctx::{Ctx, fill},
        operations::{Arrival, Outcome},
        pressure::Deferred,
        receive::{ASIDE, Posted, Receive, Stage},
    },
};

impl Ctx {
    fn defer_drop_memory(&mut self, buffer: BufferMut) {
        if !buffer.is_nothing() {
            self.deferred.push(Deferred::Memory(buffer));
        }
    }
}

impl Core {
    /// Posts a receive behind all others.
    #[inline(always)]
    pub(crate) fn post_receive(
        &mut self,
        tag: Tag,
        mask: Mask,
        buffer: BufferMut,
        unstaged: bool,
    ) -> OpKey {
        trace::operation("receive", 0, "posted");
        let receive = Receive {
            buffer,
            waker: WakerSlot::default(),
            unstaged,
            stage: Stage::Waiting,
        };
        self.receives += 1;
        OpKey::of(self.posted.post(tag, mask, Posted::Receive(receive)))
    }

    #[inline(always)]
    fn receive(&mut self, id: PostId) -> Option<&mut Receive> {
        match self.posted.get(id)? {
            Posted::Receive(receive) => Some(receive),
            Posted::Claim(_) => None,
        }
    }

    /// The memory that the next message goes to, if it is this receive's and in one run; and what it accepts.
    #[inline(always)]
    pub(crate) fn next_receive(&mut self, key: OpKey) -> Option<(Tag, Mask, &mut [u8])> {
        let id = key.post_id()?;
        let (tag, mask) = self.posted.next_for(id)?;
        Some((tag, mask, self.receive(id)?.buffer.run_mut()?))
    }

    /// That message is in the memory. The buffer, and the waker, which is to be dropped without the
    /// lock.
    #[inline(always)]
    pub(crate) fn take_receive(&mut self, key: OpKey) -> Option<(BufferMut, Option<Waker>)> {
        let id = key.post_id().filter(|id| self.posted.waits(*id))?;
        let receive = self.receive(id)?;
        // Of the rest of one that waits nothing else owns something.
        let (buffer, waker) = (std::mem::take(&mut receive.buffer), receive.waker.take());
        self.posted.forget(id);
        self.receives -= 1;
        trace::ended("receive", None);
        Some((buffer, waker))
    }

    /// The message of a receive that a pass has filled, and its buffer.
    pub(crate) fn take_arrived(&mut self, key: OpKey) -> Option<(Arrival, BufferMut)> {
        let id = key.post_id()?;
        let Stage::Arrived(arrival, ..) = self.receive(id)?.stage else {
            return None;
        };
        let receive = self.take_out(id)?;
        Some((arrival, receive.buffer))
    }

    /// Whether an eager message was copied into a receive that waited for it. `false`: nothing has happened.
    #[inline]
    pub(crate) fn fill_receive(
        &mut self,
        (link, from): (LinkId, EndpointId),
        tag: Tag,
        data: &[u8],
    ) -> bool {
        let Some(id) = self.posted.first_match(tag) else {
            return false;
        };
        let Some(Posted::Receive(receive)) = self.posted.get(id) else {
            return false;
        };
        if receive.buffer.is_on_device() {
            return false;
        }
        let order = self.unexpected.arrival();
        let filled = fill(&mut receive.buffer, data, from);
        receive.end(filled.map(|length| (Arrival { length, tag, from }, link, order)));
        self.movers.ctx.wakes.extend(receive.waker.take());
        self.posted.matched(id);
        true
    }

    /// Matches the earliest receive or claim that accepts a message of this connection with this tag: its entry in the table.
    pub(crate) fn match_posted(&mut self, link: LinkId, tag: Tag) -> Option<OpKey> {
        let id = self.posted.first_match(tag)?;
        if let Posted::Claim(key) = self.posted.get(id)? {
            let key = *key;
            if key == ASIDE {
                return self.match_aside(link, tag);
            }
            self.posted.remove(id);
            return Some(key);
        }
        self.posted.matched(id);
        let order = self.unexpected.arrival();
        let receive = self.receive(id)?;
        let buffer = std::mem::take(&mut receive.buffer);
        let (waker, unstaged) = (std::mem::take(&mut receive.waker), receive.unstaged);
        self.receives -= 1;
        let key = self.movers.ctx.enter_receive(buffer, None, order);
        if let Some(entry) = self.movers.ctx.operations.get(key) {
            (entry.waker, entry.unstaged) = (waker, unstaged);
        }
        self.receive(id)?.stage = Stage::Entered(key);
        Some(key)
    }

    /// Where what has this key stands in the table, if it does.
    #[inline]
    pub(crate) fn entry_of(&mut self, key: OpKey) -> Option<OpKey> {
        let Some(id) = key.post_id() else {
            return Some(key);
        };
        match self.receive(id)?.stage {
            Stage::Entered(key) => Some(key),
            _ => None,
        }
    }

    /// Whether the operation has ended, or is not there.
    #[inline]
    pub(crate) fn is_over(&mut self, key: OpKey) -> bool {
        let entry = match key.post_id() {
            None => key,
            Some(id) => match self.receive(id).map(|receive| &receive.stage) {
                Some(Stage::Entered(key)) => *key,
                Some(Stage::Waiting) => return false,
                _ => return true,
            },
        };
        let entry = self.movers.ctx.operations.get(entry);
        entry.is_none_or(|entry| entry.outcome.is_some())
    }

    /// Where its future leaves its waker.
    #[inline]
    pub(crate) fn waker_of(&mut self, key: OpKey) -> Option<&mut WakerSlot> {
        if let Some(key) = self.entry_of(key) {
            return Some(&mut self.movers.ctx.operations.get(key)?.waker);
        }
        Some(&mut self.receive(key.post_id()?)?.waker)
    }

    /// Whoever looks by itself is not woken by what it moves.
    #[inline]
    pub(crate) fn take_waker(&mut self, key: OpKey) {
        let waker = self.waker_of(key).and_then(WakerSlot::take);
        self.movers.ctx.drop_later(waker);
    }

    /// Has the future woken when it ends; at once, if it has.
    pub(crate) fn leave_waker(&mut self, key: OpKey, waker: &Waker) {
        let is_over = self.is_over(key);
        if let Some(slot) = self.waker_of(key) {
            let before = slot.leave(waker);
            self.movers.ctx.drop_later(before);
            if is_over {
                self.movers.ctx.wakes.push(waker.clone());
            }
        }
    }

    /// As [`Core::take_outcome`], for a posted receive.
    pub(in crate::worker) fn take_received(&mut self, key: OpKey) -> Option<Outcome> {
        let id = key.post_id()?;
        match self.receive(id)?.stage {
            Stage::Waiting => None,
            Stage::Entered(entry) => {
                let outcome = self.take_outcome(entry)?;
                self.posted.remove(id);
                Some(outcome)
            }
            Stage::Arrived(..) | Stage::Failed(_) => {
                let receive = self.take_out(id)?;
                let result = match receive.stage {
                    Stage::Arrived(arrival, ..) => Ok(arrival),
                    Stage::Failed(error) => Err(error),
                    Stage::Waiting | Stage::Entered(_) => return None,
                };
                Some(Outcome::Buffer(result, receive.buffer))
            }
        }
    }

    /// Gives its place to others.
    fn take_out(&mut self, id: PostId) -> Option<Receive> {
        let Posted::Receive(mut receive) = self.posted.remove(id)? else {
            return None;
        };
        self.movers.ctx.drop_later(receive.waker.take());
        if !matches!(receive.stage, Stage::Entered(_)) {
            self.receives -= 1;
        }
        Some(receive)
    }

    /// Its future is gone: it waits no longer, and a message that it had taken goes back.
    pub(in crate::worker) fn drop_receive(&mut self, key: OpKey) {
        let Some(receive) = key.post_id().and_then(|id| self.take_out(id)) else {
            return;
        };
        match receive.stage {
            Stage::Entered(entry) => self.drop_future(entry),
            Stage::Waiting | Stage::Failed(_) => self.movers.ctx.defer_drop_memory(receive.buffer),
            Stage::Arrived(arrival, link, order) => {
                let message = self.movers.ctx.message_again(arrival, link, receive.buffer);
                self.restore(order, message);
            }
        }
    }

    /// Ends one that waits with an error.
    pub(crate) fn fail_receive(&mut self, key: OpKey, error: Error) {
        let Some(id) = key.post_id().filter(|id| self.posted.waits(*id)) else {
            return;
        };
        self.posted.matched(id);
        let Some(receive) = self.receive(id) else {
            return;
        };
        receive.end(Err(error));
        let waker = receive.waker.take();
        self.movers.ctx.wakes.extend(waker);
    }

    /// Ends all that wait.
    pub(in crate::worker) fn fail_receives(&mut self, error: &Error) {
        for id in self.posted.ids() {
            self.fail_receive(OpKey::of(id), error.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::ErrorKind,
        protocol::control,
        transport::Sink,
        worker::inbox::tests::{LINK, core},
    };

    const TAG: Tag = Tag(7);

    fn post(core: &mut Core) -> OpKey {
        core.post_receive(TAG, Mask::ALL, BufferMut::from(vec![0; 8]), false)
    }

    fn send(core: &mut Core, bytes: &[u8]) {
        core.message(LINK, control::TAG_EAGER, TAG.0, bytes)
            .expect("a message");
    }

    fn taken(core: &mut Core, key: OpKey) -> Vec<u8> {
        match core.take_outcome(key) {
            Some(Outcome::Buffer(Ok(arrival), buffer)) => {
                buffer.as_slice().expect("the host's")[..arrival.length].to_vec()
            }
            outcome => panic!("{outcome:?}"),
        }
    }

    /// What one had taken whose future is gone goes to the next, and nothing is left of it.
    #[test]
    fn a_message_goes_back_and_on() {
        let (mut core, _) = core();
        let keys = [(); 3].map(|()| post(&mut core));
        assert!(keys.iter().all(|key| !core.is_over(*key)));
        send(&mut core, b"first");
        assert!(core.is_over(keys[0]) && !core.is_over(keys[1]));
        core.drop_future(keys[0]);
        assert_eq!(taken(&mut core, keys[1]), b"first");
        send(&mut core, b"second");
        assert_eq!(taken(&mut core, keys[2]), b"second");
        assert_eq!((core.receives, core.movers.ctx.operations.len()), (0, 0));
        // Their places may be others' now.
        let other = post(&mut core);
        for key in keys {
            assert!(core.is_over(key) && core.take_outcome(key).is_none());
            core.drop_future(key);
        }
        assert!(!core.is_over(other));
    }

    #[test]
    fn one_that_is_cancelled_takes_nothing() {
        let (mut core, _) = core();
        let keys = [(); 2].map(|()| post(&mut core));
        let error = Error::new(ErrorKind::Canceled, "cancelled");
        assert!(core.cancel(keys[0], error));
        send(&mut core, b"bytes");
        assert_eq!(taken(&mut core, keys[1]), b"bytes");
        let outcome = core.take_outcome(keys[0]);
        assert!(matches!(outcome, Some(Outcome::Buffer(Err(_), _))));
        assert_eq!(core.receives, 0);
    }
}
