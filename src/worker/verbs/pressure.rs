//! Places: for another operation, for another announced message; and letting go of memory under the lock.

use std::task::Waker;

use crate::{
    error::{Error, Result},
    protocol::ANNOUNCEMENTS,
    types::{LinkId, OpKey},
    worker::{
        core::Core,
        ctx::Ctx,
        operations::{Body, Entry, SendStage, Work},
        pressure::Deferred,
        violation::violation,
    },
};

impl Ctx {
    /// Lets go of an operation's memory, once the lock is gone.
    pub(crate) fn defer_drop(&mut self, work: Work) {
        let holds = match &work {
            Work::Recv(recv) => !recv.buffer.is_nothing(),
            Work::Get(get) => !get.buffer.is_nothing(),
            Work::Send(send) => !send.buffer.is_nothing() || send.am.is_some(),
            Work::Put(put) => !put.buffer.is_nothing(),
            Work::Claim(_)
            | Work::Atomic(_)
            | Work::AmLanding { .. }
            | Work::Frame { .. }
            | Work::Flush => false,
            _ => true,
        };
        if holds {
            self.deferred.push(Deferred::Work(work));
        }
    }

    /// Lets go of a waker that is not to be called, once the lock is gone.
    #[inline]
    pub(crate) fn drop_later(&mut self, waker: Option<Waker>) {
        self.deferred.extend(waker.map(Deferred::Waker));
    }

    /// The same for an entry that was removed.
    pub(crate) fn defer_drop_entry(&mut self, mut entry: Entry) {
        self.drop_later(entry.waker.take());
        let work = self.operations.work_of(entry);
        self.defer_drop(work);
    }

    /// The same for a message that a dropped receive had put back.
    #[inline]
    pub(crate) fn defer_drop_body(&mut self, body: Body) {
        if let Body::Whole { data, .. } = body
            && data.is_lent()
        {
            self.deferred.push(Deferred::Buffer(data));
        }
    }

    /// Counts a message that the peer has announced.
    pub(crate) fn hold_announcement(&mut self, link: LinkId) -> Result<()> {
        if let Some(peer) = self.peer(link) {
            peer.announced_held += 1;
            if peer.announced_held > ANNOUNCEMENTS {
                return Err(violation("the peer announced more messages than it may"));
            }
        }
        Ok(())
    }

    /// One of them was matched, or called back.
    #[inline]
    pub(crate) fn drop_announcement(&mut self, link: LinkId) {
        if let Some(peer) = self.peer(link) {
            peer.announced_held = peer.announced_held.saturating_sub(1);
        }
    }

    /// The peer has matched or refused a message that this side announced: the next has its place.
    #[inline]
    pub(crate) fn announcement_over(&mut self, link: LinkId) {
        if let Some(peer) = self.peer(link) {
            peer.announced_out = peer.announced_out.saturating_sub(1);
            if peer.queue.holds() {
                self.runnable.push_back(link);
            }
        }
    }

    /// Wakes who waits for a place on a link.
    #[inline]
    pub(crate) fn tell_ready(&mut self, link: LinkId) {
        if let Some(peer) = crate::worker::peer::at(&mut self.peers, link)
            && peer.has_room()
        {
            peer.ready.take(&mut self.wakes);
        }
    }

    /// Ends the sends of a link that only a receive at the peer could end, and there will be none.
    pub(crate) fn end_unmatched(&mut self, link: LinkId, error: &Error) {
        for key in self.operations.keys_of_link(link) {
            let waits = self.operations.get(key).is_some_and(|entry| {
                entry.outcome.is_none()
                    && entry.copies == 0
                    && matches!(&*entry.work, Work::Send(send)
                        if matches!(send.stage, SendStage::Announced)
                            || send.sync && matches!(send.stage, SendStage::AwaitMatch)
                            // An active message without a credit.
                            || entry.queued.is_none() && matches!(send.stage, SendStage::Queued))
            });
            if waits {
                self.fail_operation(key, error.clone());
            }
        }
        if let Some(peer) = self.peer(link) {
            // What was held back has its turn, to end the same way.
            peer.announced_out = 0;
        }
    }
}

impl Core {
    /// Forgets what a peer has announced and nobody has matched.
    pub(crate) fn forget_announced(&mut self, link: LinkId) {
        let account = self.movers.ctx.peer(link).and_then(|peer| peer.account);
        self.forget_announced_of(link, account);
    }
}

impl Ctx {
    /// Gives an operation another priority, before it is submitted.
    pub(crate) fn arrange(&mut self, key: OpKey, priority: crate::Priority, unstaged: bool) {
        if let Some(entry) = self.operations.get(key) {
            entry.priority = priority;
            entry.unstaged = unstaged;
        }
    }
}

/// Whether an operation's next step is a further fragment.
pub(crate) fn is_bulk(entry: &Entry) -> bool {
    match &*entry.work {
        Work::Send(send) => matches!(send.stage, SendStage::Streaming(_)),
        Work::Serve(serve) => serve.out.next > 0,
        Work::Put(put) => put.next > 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::ErrorKind,
        memory::{Buffer, BufferMut},
        protocol::control,
        transport::Sink,
        worker::{
            inbox::tests::{LINK, core, rts},
            operations::Send,
            peer::Status,
        },
    };

    fn announce(core: &mut Core, op: u64) -> Result<()> {
        core.message(LINK, control::TAG_RTS, 7, &rts(100, op))
    }

    #[test]
    fn a_peer_that_announces_too_much_is_refused() {
        let (mut core, _) = core();
        for op in 0..ANNOUNCEMENTS as u64 {
            announce(&mut core, op).expect("room");
        }
        // One is called back, one is matched: each leaves its place.
        core.message(LINK, control::CANCEL, 0, &[]).expect("known");
        announce(&mut core, 1 << 20).expect("room");
        let taken = core.take_unexpected(crate::Tag(7), crate::Mask::ALL);
        let taken = taken.expect("a message");
        let order = taken.arrival;
        let key = core
            .movers
            .ctx
            .enter_receive(BufferMut::from(vec![0; 100]), Some(LINK), order);
        core.movers.hand_over(key, order, taken.message);
        announce(&mut core, 1 << 21).expect("room");
        let error = announce(&mut core, 1 << 22).expect_err("one too many");
        assert_eq!(error.kind(), ErrorKind::Protocol);
    }

    fn send(core: &mut Core) -> OpKey {
        let send = Send {
            tag: crate::Tag(1),
            buffer: Buffer::from(vec![1; 100_000]),
            sync: false,
            stage: SendStage::Queued,
            slot: None,
            cancelling: false,
            am: None,
        };
        let key = core
            .movers
            .ctx
            .operations
            .insert(Some(LINK), false, Work::Send(send));
        core.submit(LINK, key);
        key
    }

    fn count(sent: &crate::worker::inbox::tests::Sent, id: u8) -> usize {
        let sent = sent.lock();
        sent.iter().filter(|(sent, _)| *sent == id).count()
    }

    #[test]
    fn no_more_is_announced_than_the_peer_takes() {
        let (mut core, sent) = core();
        let keys: Vec<_> = (0..ANNOUNCEMENTS + 3).map(|_| send(&mut core)).collect();
        assert_eq!(count(&sent, control::TAG_RTS), ANNOUNCEMENTS);
        // Other messages go out meanwhile.
        core.movers.ctx.control(LINK, control::CREDIT, 1, &[]);
        assert_eq!(count(&sent, control::CREDIT), 1);
        for (answered, key) in keys.iter().take(2).enumerate() {
            core.message(LINK, control::DONE, key.0, &[])
                .expect("known");
            // Twice is an echo.
            core.message(LINK, control::DONE, key.0, &[])
                .expect("known");
            core.pump(LINK);
            assert_eq!(count(&sent, control::TAG_RTS), ANNOUNCEMENTS + answered + 1);
        }
        let canceled = core.cancel(keys[ANNOUNCEMENTS + 2], Error::new(ErrorKind::Canceled, ""));
        assert!(canceled, "it waits here");
        core.message(LINK, control::DONE, keys[2].0, &[])
            .expect("known");
        core.pump(LINK);
        assert_eq!(count(&sent, control::TAG_RTS), ANNOUNCEMENTS + 2);
    }

    #[test]
    fn a_peer_that_closes_out_of_order_is_refused() {
        let close = |core: &mut Core, answer| core.message(LINK, control::CLOSE, answer, &[]);
        let (mut answered, _) = core();
        assert_eq!(
            close(&mut answered, 1).expect_err("no question").kind(),
            ErrorKind::Protocol
        );
        let (mut unknown, _) = core();
        assert_eq!(
            close(&mut unknown, 4).expect_err("unknown").kind(),
            ErrorKind::Protocol
        );
        // The longest goodbye is one with a code and 255 bytes.
        let (mut talks, _) = core();
        for _ in 0..5 {
            talks
                .message(LINK, control::CLOSE, 2, &[b'.'; 48])
                .expect("a part");
        }
        let much = talks.message(LINK, control::CLOSE, 0, &[b'.'; 21]);
        assert_eq!(much.expect_err("too long").kind(), ErrorKind::Protocol);
        talks
            .message(LINK, control::CLOSE, 0, &[b'.'; 20])
            .expect("the rest");
        let more = talks.message(LINK, control::CLOSE, 2, b".");
        assert_eq!(more.expect_err("closed").kind(), ErrorKind::Protocol);
        let (mut twice, sent) = core();
        close(&mut twice, 0).expect("a close");
        twice.pump(LINK);
        assert_eq!(count(&sent, control::CLOSE), 1);
        assert_eq!(
            close(&mut twice, 0).expect_err("again").kind(),
            ErrorKind::Protocol
        );
    }

    #[test]
    fn what_cannot_be_matched_any_more_ends_with_a_close() {
        let (mut core, sent) = core();
        let keys: Vec<_> = (0..ANNOUNCEMENTS + 3).map(|_| send(&mut core)).collect();
        core.message(LINK, control::CLOSE, 0, &[]).expect("a close");
        while core.movers.ctx.runnable.pop_front().is_some() {
            core.pump(LINK);
        }
        for _ in 0..keys.len() / 64 {
            core.pump(LINK);
        }
        for key in keys {
            let outcome = core.take_outcome(key);
            assert!(
                matches!(&outcome, Some(crate::worker::operations::Outcome::Done(Err(error))) if error.kind() == ErrorKind::ClosedByPeer),
                "{outcome:?}"
            );
        }
        // Nothing is left: the answer is out, and an announcement that crossed it is forgotten.
        assert_eq!(count(&sent, control::CLOSE), 1);
        assert!(
            core.movers
                .ctx
                .peer(LINK)
                .is_some_and(|peer| matches!(peer.status, Status::Closing { sent: true }))
        );
        announce(&mut core, 5).expect("ignored");
        assert!(core.unexpected.is_empty());
    }
}
