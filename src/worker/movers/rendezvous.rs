//! Announced messages: how their bytes come, and what the sender does for that.

use std::time::Instant;

use crate::{
    error::Result,
    protocol::{
        control::{self, Announcement, Rtr},
        plan::{self, Comes, ways::Way},
    },
    trace,
    types::{EndpointId, LinkId, OpKey, Tag},
    worker::{
        copy::{Remote, Transfer},
        ctx::{sender_gone, truncated},
        movers::Movers,
        one_sided::OneSided,
        operations::{Arrival, Ended, Outgoing, RecvStage, SendStage, Work},
        peer::{at, pinned},
        send::lend,
        violation::violation,
    },
};

impl Movers {
    /// A receive has met an announced message: decides how the bytes come.
    pub(crate) fn begin_rendezvous(
        &mut self,
        key: OpKey,
        link: LinkId,
        from: EndpointId,
        tag: Tag,
        rts: Announcement,
    ) {
        if self
            .ctx
            .operations
            .get(key)
            .is_none_or(|entry| !entry.discards)
        {
            self.ctx.drop_announcement(link);
            self.ctx.lent_over(link, &rts);
        }
        if self
            .ctx
            .endpoint(link, from)
            .is_some_and(|peer| !peer.matches_announced())
        {
            return self.fail_operation(key, sender_gone());
        }
        let Some(entry) = self.ctx.operations.attach(key, link) else {
            return;
        };
        let Work::Recv(recv) = &mut *entry.work else {
            return;
        };
        let room = recv.buffer.len();
        if rts.length > room as u64 {
            // The message is gone, as with any receive that is too short; its sender is done.
            recv.stage = RecvStage::Done;
            self.ctx.control(link, control::DONE, rts.op, &[]);
            self.fail_operation(key, truncated(rts.length, room));
            return;
        }
        if let Err(error) = recv.buffer.takes_from(from) {
            recv.stage = RecvStage::Done;
            self.ctx.refuse(link, rts.op, error.kind());
            self.fail_operation(key, error);
            return;
        }
        let length = rts.length as usize;
        recv.arrival = Some(Arrival { length, tag, from });
        if recv.buffer.is_on_device() {
            if self.receive_by_devices(link, key, &rts) {
                return;
            }
            let of_device = rts.segment == control::TABLE && rts.segment_offset == 0;
            self.begin_pull(key, link, rts.op, length, of_device);
        } else if recv.buffer.is_list() || rts.segment == control::TABLE {
            self.begin_list(key, link, &rts);
        } else {
            self.begin_receive(key, link, &rts);
        }
    }

    /// The same of one run in the host's memory, into one.
    fn begin_receive(&mut self, key: OpKey, link: LinkId, rts: &Announcement) {
        let length = rts.length as usize;
        let (Some(peer), Some(entry)) =
            (at(&mut self.ctx.peers, link), self.ctx.operations.get(key))
        else {
            return;
        };
        let Work::Recv(recv) = &*entry.work else {
            return;
        };
        let is_owned = recv.buffer.segment().is_some();
        let lent = rts.is_lent.then_some(Way::OneCopy);
        let pinned = pinned(self.scheme).or(lent);
        let mut remote = peer.one_copy.as_mut().and_then(|one_copy| {
            let (segment, offset) = (rts.segment, rts.segment_offset);
            let remote = one_copy.reach(segment, offset, length, rts.address, false)?;
            let mapped = remote.is_mapped();
            let halved = one_copy.cma.is_some() && rts.slot != control::NONE && is_owned;
            let ways = &mut one_copy.ways;
            let way = ways.next(pinned, (key, length), mapped, halved, Instant::now);
            (way == Way::OneCopy).then_some(remote)
        });
        for way in plan::comes(false, false, false) {
            match (way, remote.take()) {
                (Comes::Copied, Some(remote)) => self.receive_copied(link, key, rts, remote),
                (Comes::Devices, _) if self.receive_by_devices(link, key, rts) => {
                    trace::operation("tag receive", length, "rendezvous, by network devices");
                }
                (Comes::Copied | Comes::Devices, _) => continue,
                _ => self.receive_fragments(link, key, rts),
            }
            return;
        }
    }

    /// A receive copies a message out of its sender's memory.
    fn receive_copied(&mut self, link: LinkId, key: OpKey, rts: &Announcement, remote: Remote) {
        let length = rts.length as usize;
        let (Some(peer), Some(entry)) =
            (at(&mut self.ctx.peers, link), self.ctx.operations.get(key))
        else {
            return;
        };
        let Work::Recv(recv) = &mut *entry.work else {
            return;
        };
        let way = match remote {
            Remote::Mapped(..) => "rendezvous, copied in mapped memory",
            Remote::Address(_) => "rendezvous, copied by cma",
        };
        trace::operation("tag receive", length, way);
        let local = recv.buffer.address();
        // What a peer says it has moved into memory here cannot be checked, so it takes a share only where the kernel lets the
        // two processes at each other's memory anyway.
        let is_trusted = peer
            .one_copy
            .as_ref()
            .is_some_and(|one_copy| one_copy.cma.is_some());
        let is_counted = rts.slot != control::NONE;
        let chunks = plan::is_shared(is_trusted, is_counted).then_some(rts.slot);
        recv.stage = chunks.map_or(RecvStage::Copying, RecvStage::Shared);
        if chunks.is_some() {
            let mut rtr = Rtr {
                address: local as u64,
                scheme: 1,
                ..Rtr::fragments(key.0)
            };
            let segment = recv
                .buffer
                .segment()
                .map(|(segment, offset)| (segment.clone(), offset));
            if let (Some((segment, offset)), Some(one_copy), Some(to)) =
                (segment, &mut peer.one_copy, &mut peer.link)
                && plan::counts(length)
                && lend(one_copy, &mut **to, &segment)
            {
                rtr.segment = segment.id();
                rtr.segment_offset = offset as u64;
            }
            self.ctx
                .control(link, control::TAG_RTR, rts.op, &rtr.encode());
        }
        self.start_transfer(Transfer {
            peer_op: Some(rts.op),
            chunks,
            ..Transfer::new(link, key, (local, length), remote, true)
        });
    }

    /// A receive has a message sent in fragments.
    pub(super) fn receive_fragments(&mut self, link: LinkId, key: OpKey, rts: &Announcement) {
        let length = rts.length as usize;
        trace::operation("tag receive", length, "rendezvous, in fragments");
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let Work::Recv(recv) = &mut *entry.work else {
            return;
        };
        recv.stage = RecvStage::Landing {
            expected: length,
            got: 0,
        };
        self.ctx.ask_for_fragments(link, key, rts.op);
        if length == 0 {
            self.copied(key, Ok(()));
        }
    }

    /// The receiver of an announced message is ready.
    pub(in crate::worker) fn ready_to_receive(
        &mut self,
        link: LinkId,
        key: OpKey,
        rtr: Rtr,
    ) -> Result<()> {
        let Some(entry) = self.ctx.operations.waiting(link, key) else {
            return Ok(());
        };
        let Work::Send(send) = &mut *entry.work else {
            return Err(violation("ready for what is no send"));
        };
        // Or its keys were asked for, and do not help.
        let asked = matches!(send.stage, SendStage::AwaitMatch)
            && matches!(entry.one_sided.as_deref(), Some(OneSided::Offers(_)));
        if !matches!(send.stage, SendStage::Announced) && !asked {
            return Err(violation("ready twice"));
        }
        let counts = send.counts() && !asked;
        entry.one_sided = None;
        let length = send.buffer.len();
        if send.buffer.is_on_device() && length > 0 {
            if counts {
                self.ctx.announcement_over(link);
            }
            self.stream_send(link, key, rtr.op);
            return Ok(());
        }
        if rtr.scheme == 0 {
            send.stage = SendStage::Streaming(Outgoing {
                to: rtr.op,
                next: 0,
            });
            if counts {
                self.ctx.announcement_over(link);
            }
            if length == 0 {
                self.finish(key, Ended::Done(Ok(())));
            } else {
                self.submit(link, key);
            }
            return Ok(());
        }
        // The receiver copies; this side takes a share while it is awake.
        send.stage = SendStage::AwaitMatch;
        // A list's receiver copies all of it.
        let chunks = send.slot.filter(|_| send.buffer.list().is_none());
        if counts {
            self.ctx.announcement_over(link);
        }
        let Some(one_copy) = self.ctx.one_copy(link) else {
            return Err(violation("no memory in common"));
        };
        let remote = one_copy.reach(rtr.segment, rtr.segment_offset, length, rtr.address, true);
        if let (Some(remote), Some(chunks)) = (remote, chunks)
            && let Some(Work::Send(send)) = self.ctx.operations.work(key)
        {
            let local = send.buffer.address().cast_mut();
            let transfer = Transfer {
                peer_op: Some(rtr.op),
                chunks: Some(chunks),
                ..Transfer::new(link, key, (local, length), remote, false)
            };
            self.start_transfer(transfer);
        }
        Ok(())
    }
}
