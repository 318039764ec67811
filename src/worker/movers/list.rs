//! Messages of many pieces.

use std::{ptr, sync::Arc};

use crate::{
    protocol::{
        control::{self, Announcement},
        layout::Shape,
        plan::ways::ONE_COPY_FROM,
    },
    types::{LinkId, OpKey},
    worker::{
        copy::{Remote, Transfer},
        list::read_table,
        movers::Movers,
        operations::{RecvStage, Work},
        peer::at,
        spread::Spread,
    },
};

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
}
