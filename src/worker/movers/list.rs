//! Messages of many pieces.

use std::{ptr, sync::Arc};

use crate::{
    error::Result,
    protocol::{
        control::{self, Announcement},
        layout::Shape,
        plan::ways::ONE_COPY_FROM,
    },
    transport::Place,
    types::{LinkId, OpKey},
    worker::{
        copy::{Remote, Transfer},
        ctx::Ctx,
        list::read_table,
        movers::Movers,
        operations::{RecvStage, Work},
        peer::at,
        spread::Spread,
        violation::violation,
    },
};

impl Ctx {
    /// Whether an operation receives into a list.
    fn fills_list(&mut self, link: LinkId, key: OpKey) -> bool {
        match self.operations.get(key) {
            Some(entry) if entry.link == Some(link) && entry.is_under_way() => match &*entry.work {
                Work::Recv(recv) => recv.buffer.is_list(),
                _ => false,
            },
            _ => false,
        }
    }

    /// Where a long fragment for a list goes. `None`: it is not for one.
    pub(crate) fn place_in_list(
        &mut self,
        link: LinkId,
        key: OpKey,
        length: usize,
    ) -> Option<Result<Place>> {
        if !self.fills_list(link, key) {
            return None;
        }
        if let Some(entry) = self.operations.get(key)
            && let Work::Recv(recv) = &mut *entry.work
            && let RecvStage::Landing { expected, got } = &mut recv.stage
            && let Some(list) = recv.buffer.list_mut()
        {
            if length > *expected - *got {
                return Some(Err(violation("more bytes than announced")));
            }
            let run = list.run(*got);
            if length <= run.len() {
                let address = run.as_mut_ptr();
                *got += length;
                return Some(Ok(self.lend(key, address)));
            }
            // Too long for the piece.
            return Some(Ok(Place::Whole));
        }
        Some(Err(violation("a fragment for what takes none")))
    }
}

impl Movers {
    /// As `begin_rendezvous`, where the message, the buffer or both are lists. The message is no longer than the buffer.
    pub(super) fn begin_list(&mut self, key: OpKey, link: LinkId, rts: &Announcement) {
        let length = rts.length as usize;
        let found = at(&mut self.ctx.peers, link)
            .and_then(|peer| peer.one_copy.as_ref())
            .filter(|_| length >= ONE_COPY_FROM)
            .and_then(|one_copy| {
                if rts.segment == control::TABLE {
                    let shape = read_table(one_copy, rts)?;
                    return Some((shape, Remote::Address(0)));
                }
                let (segment, offset) = (rts.segment, rts.segment_offset);
                let remote = one_copy.reach(segment, offset, length, rts.address, false)?;
                Some((Shape::block(rts.length), remote))
            });
        let Some((shape, remote)) = found else {
            return self.receive_fragments(link, key, rts);
        };
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let Work::Recv(recv) = &mut *entry.work else {
            return;
        };
        recv.stage = RecvStage::Copying;
        let spread = Spread::new(recv.buffer.extents(), Arc::new(shape), length);
        self.start_transfer(Transfer {
            peer_op: Some(rts.op),
            spread: Some(spread),
            ..Transfer::new(link, key, (ptr::null_mut(), length), remote, true)
        });
    }

    /// A fragment for a list. `None`: it is not for one.
    pub(crate) fn list_landing(
        &mut self,
        link: LinkId,
        key: OpKey,
        data: &[u8],
    ) -> Result<Option<()>> {
        if !self.ctx.fills_list(link, key) {
            return Ok(None);
        }
        if let Some(entry) = self.ctx.operations.get(key)
            && let Work::Recv(recv) = &mut *entry.work
        {
            let RecvStage::Landing { expected, got } = &mut recv.stage else {
                return Err(violation("a fragment for what takes none"));
            };
            if data.len() > *expected - *got {
                return Err(violation("more bytes than announced"));
            }
            if let Some(list) = recv.buffer.list_mut() {
                list.scatter(*got, data);
            }
            *got += data.len();
            if got == expected {
                self.copied(key, Ok(()));
            }
        }
        Ok(Some(()))
    }
}
