//! Copies between many pieces and many blocks, in steps.
//!
//! # Safety
//! As in `copy.rs`: local pieces belong to the operation, which counts the transfer; remote memory is touched between `Pair::enter` and
//! `Pair::leave` after a look at the generation. Every block was checked against the region's part, and that against the mapping.
#![allow(unsafe_code)]

use crate::{
    error::{Error, ErrorKind, Result},
    protocol::layout::Shape,
    worker::{
        copy::{Remote, Step, gone, standing},
        movers::Movers,
        peer::at,
        spread::CHECKS,
    },
};

impl Movers {
    /// The blocks of a transfer are checked: now it may begin.
    pub(crate) fn layout_checked(&mut self, index: usize) {
        let transfer = self.transfers.swap_remove(index);
        if let Some(entry) = self.ctx.operations.get(transfer.op) {
            entry.copies -= 1;
        }
        self.begin_layout(transfer.link, transfer.op);
    }

    /// One turn of a transfer in pieces.
    pub(crate) fn step_spread(&mut self, index: usize) -> Result<Step> {
        let transfer = &mut self.transfers[index];
        let Some(spread) = &mut transfer.spread else {
            return Ok(Step::Moved);
        };
        if let (Some(checking), Shape::Indexed(indexed)) = (&mut spread.checking, &*spread.shape) {
            return Ok(if indexed.check(checking, CHECKS) {
                Step::Checked
            } else {
                Step::Moved
            });
        }
        let one_copy = at(&mut self.ctx.peers, transfer.link)
            .and_then(|peer| peer.one_copy.as_ref())
            .ok_or_else(gone)?;
        let pair = &one_copy.pair;
        let before = spread.left;
        pair.enter();
        let moved = match standing(pair, transfer.region) {
            Err(error) => Err(error),
            Ok(()) => match &transfer.remote {
                Remote::Mapped(mapping, start) => {
                    let base = mapping.as_ptr().wrapping_add(*start);
                    // SAFETY: the blocks lie in the part of the region that was checked against the mapping; the operation owns the
                    // pieces (`copies` > 0).
                    unsafe { spread.copy(base, transfer.pull) };
                    Ok(())
                }
                Remote::Address(address) => match &one_copy.cma {
                    Some(cma) => {
                        let (mut here, mut there) = (Vec::new(), Vec::new());
                        let bytes = spread.vectors(*address, &mut here, &mut there);
                        // SAFETY: as above; the peer's memory is revocable.
                        let moved =
                            unsafe { cma.vectors(&here, &there, bytes as usize, transfer.pull) };
                        moved.map(|()| spread.skip(bytes))
                    }
                    None => Err(Error::new(
                        ErrorKind::Unsupported,
                        "no direct access to the peer",
                    )),
                },
            },
        };
        pair.leave();
        let bytes = (before - spread.left) as usize;
        let is_mapped = matches!(transfer.remote, Remote::Mapped(..));
        moved.map(|()| {
            self.ctx.counts.copied(is_mapped, bytes);
            if spread.left == 0 {
                Step::Complete
            } else {
                Step::Moved
            }
        })
    }
}
