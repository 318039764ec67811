//! One-copy transfers: bytes that go from the memory of one process into the memory of the other without a stop between, chunk by chunk,
//! by whichever end has time. Both ends count chunks in one shared word, so a slow end takes less. What is not one run on both sides goes in
//! turns (`spread.rs`).
//!
//! # Safety
//! Local memory is owned by an entry of the table of operations that counts its transfers (`Entry::copies`) and stays while there are any.
//! Remote memory is touched only between `Pair::enter` and `Pair::leave`, after a look at the word by which its owner revokes the right;
//! its owner frees it only after revoking, by the word, by the region's generation, or, of what has neither, by ending the connection, and after having seen this side outside (`Core::fail` and `Region::unexpose`).
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::{
    error::{Error, ErrorKind, Result},
    memory::region::stale,
    protocol::{layout::Shape, plan::CHUNK},
    sys::memfd::Mapping,
    transport::{Pair, Standing, cma::CmaPeer},
    types::{LinkId, OpKey},
    util::copy::copy,
    worker::{
        rma::ends,
        spread::{CHECKS, Spread},
        violation::violation,
    },
};

/// Chunks moved in one pass: what a message waits behind. More transfers than these take turns.
pub(in crate::worker) const STEPS: usize = 4;

/// The far end's memory.
pub(crate) enum Remote {
    /// Its address in the peer's process, through the kernel.
    Address(u64),
    /// Mapped here.
    Mapped(Arc<Mapping>, usize),
}

pub(crate) struct Transfer {
    pub(crate) link: LinkId,
    /// The operation here, which owns `local`.
    pub(crate) op: OpKey,
    /// The operation there, to be told.
    pub(crate) peer_op: Option<u64>,
    pub(crate) local: *mut u8,
    pub(crate) length: usize,
    pub(crate) remote: Remote,
    /// Towards this process.
    pub(crate) pull: bool,
    /// The word that chunks are counted in; without one this end moves all of them.
    pub(crate) chunks: Option<u32>,
    /// The exposed region there that must still be exposed: slot and generation.
    pub(crate) region: Option<(u32, u64)>,
    pub(crate) next: usize,
    /// The pieces, of what is not one run on both sides. `local` and `chunks` are not used then.
    pub(crate) spread: Option<Box<Spread>>,
}

// SAFETY: `local` is memory owned by the operation `op` of the same worker; a transfer moves with the worker's state.
unsafe impl Send for Transfer {}

pub(crate) enum Step {
    Moved,
    /// Its blocks are checked; nothing has moved.
    Checked,
    /// This end completed the last chunk.
    Complete,
    /// Nothing is left to claim; the far end completes the rest.
    Exhausted,
}

/// The peer has ended the connection, and its memory may be used for something else.
#[cold]
pub(crate) fn over() -> Error {
    Error::new(
        ErrorKind::ConnectionReset,
        "the peer has ended the connection",
    )
}

#[cold]
fn no_access() -> Error {
    Error::new(ErrorKind::Unsupported, "no direct access to the peer")
}

#[cold]
pub(in crate::worker) fn gone() -> Error {
    Error::new(ErrorKind::ConnectionReset, "the link is gone")
}

/// Whether the peer still lets this side at its memory, and at this region.
fn standing(pair: &Pair, region: Option<(u32, u64)>) -> Result<()> {
    match region {
        _ if pair.peer_over() => Err(over()),
        Some((slot, generation)) if pair.standing(slot, generation) != Standing::Let => {
            Err(stale())
        }
        _ => Ok(()),
    }
}

/// Chunks of this many bytes.
pub(crate) fn chunks(length: usize) -> u64 {
    length.div_ceil(CHUNK) as u64
}

#[cold]
fn too_many() -> Error {
    violation("the peer has given out more of a transfer than there is")
}

impl Remote {
    /// Copies between the far end's memory, from `offset` on, and `length` bytes here.
    ///
    /// # Safety
    /// They are valid at both ends, here for writing when `pull`, and the peer lets this side at its own: asked after `Pair::enter`, and before
    /// `Pair::leave`.
    pub(in crate::worker) unsafe fn copy(
        &self,
        cma: Option<&CmaPeer>,
        offset: usize,
        (local, length): (*mut u8, usize),
        pull: bool,
    ) -> Result<()> {
        match (self, cma) {
            (Self::Mapped(mapping, start), _) => {
                let remote = mapping.as_ptr().wrapping_add(start + offset);
                let (from, to) = ends(local, remote, pull);
                // SAFETY: the caller's promise; a mapping of the peer's memory and own memory do not overlap.
                unsafe { copy(from, to, length) };
                Ok(())
            }
            (Self::Address(address), Some(cma)) => {
                let remote = address.wrapping_add(offset as u64);
                // SAFETY: the caller's promise; the peer's memory is revocable, see the chapter on safety.
                unsafe { cma.copy(remote, local, length, pull) }
            }
            (Self::Address(_), None) => Err(no_access()),
        }
    }

    /// The same of one turn of many runs.
    ///
    /// # Safety
    /// As [`Remote::copy`], of every piece and every block.
    unsafe fn copy_spread(
        &self,
        cma: Option<&CmaPeer>,
        spread: &mut Spread,
        pull: bool,
    ) -> Result<()> {
        match (self, cma) {
            (Self::Mapped(mapping, start), _) => {
                let base = mapping.as_ptr().wrapping_add(*start);
                // SAFETY: the caller's promise.
                unsafe { spread.copy(base, pull) };
                Ok(())
            }
            (Self::Address(address), Some(cma)) => {
                let (mut here, mut there) = (Vec::new(), Vec::new());
                let behind = spread.vectors(*address, &mut here, &mut there);
                let bytes = (spread.at.left - behind.left) as usize;
                // SAFETY: the caller's promise; the peer's memory is revocable.
                unsafe { cma.vectors(&here, &there, bytes, pull) }?;
                spread.at = behind;
                Ok(())
            }
            (Self::Address(_), None) => Err(no_access()),
        }
    }

    /// A copy of the first `length` bytes. `None`: they cannot be copied.
    pub(in crate::worker) fn fetch(
        &self,
        pair: &Pair,
        cma: Option<&CmaPeer>,
        length: usize,
    ) -> Option<Vec<u8>> {
        let mut data = Vec::with_capacity(length);
        let local = data.as_mut_ptr();
        pair.enter();
        let copied = standing(pair, None).and_then(|()| {
            // SAFETY: the vector has room for as many bytes, and is this function's. The peer lets this side read its own: asked just now, inside.
            unsafe { self.copy(cma, 0, (local, length), true) }
        });
        pair.leave();
        copied.ok()?;
        // SAFETY: they were written just now.
        unsafe { data.set_len(length) };
        Some(data)
    }

    pub(in crate::worker) fn is_mapped(&self) -> bool {
        matches!(self, Self::Mapped(..))
    }
}

impl Transfer {
    /// Of one run at both ends, all of which this end moves, and whose end is told to nobody.
    pub(in crate::worker) fn new(
        link: LinkId,
        op: OpKey,
        (local, length): (*mut u8, usize),
        remote: Remote,
        pull: bool,
    ) -> Self {
        Self {
            link,
            op,
            peer_op: None,
            local,
            length,
            remote,
            pull,
            chunks: None,
            region: None,
            next: 0,
            spread: None,
        }
    }

    pub(in crate::worker) fn total(&self) -> u64 {
        chunks(self.length)
    }

    /// Bytes of chunks that this end has moved; of pieces all.
    pub(in crate::worker) fn moved(&self) -> usize {
        match &self.spread {
            Some(spread) => self.length.saturating_sub(spread.at.left as usize),
            None => self.length.min(self.next * CHUNK),
        }
    }

    /// Looks at more of the blocks, where they are still being checked: whether those were the last.
    pub(in crate::worker) fn check(&mut self) -> Option<bool> {
        let spread = self.spread.as_mut()?;
        match (&mut spread.checking, &*spread.shape) {
            (Some(checking), Shape::Indexed(indexed)) => Some(indexed.check(checking, CHECKS)),
            _ => None,
        }
    }

    /// Moves the next chunk or turn, inside the peer: its bytes, and whether it was the last. `None`: nothing is left to claim.
    pub(in crate::worker) fn step(
        &mut self,
        pair: &Pair,
        cma: Option<&CmaPeer>,
    ) -> Result<Option<(usize, bool)>> {
        standing(pair, self.region)?;
        if let Some(spread) = &mut self.spread {
            let before = spread.at.left;
            // SAFETY: the blocks lie in the part of the region that was checked against the mapping; the operation owns the pieces
            // (`copies` > 0).
            unsafe { self.remote.copy_spread(cma, spread, self.pull) }?;
            let left = spread.at.left;
            return Ok(Some(((before - left) as usize, left == 0)));
        }
        let total = self.total();
        let chunk = match self.chunks.map(|word| pair.claim(word, total)) {
            // The peer can set the word back as often as it likes.
            Some(Some(_)) if self.next as u64 == total => return Err(too_many()),
            Some(Some(chunk)) => chunk as usize,
            Some(None) => return Ok(None),
            None => self.next,
        };
        self.next += 1;
        let offset = chunk * CHUNK;
        let length = CHUNK.min(self.length - offset);
        // SAFETY: `offset + length` lies within `local`, which the operation owns (`copies` > 0).
        let local = unsafe { self.local.add(offset) };
        // SAFETY: the far range was checked when the transfer was made.
        unsafe { self.remote.copy(cma, offset, (local, length), self.pull) }?;
        let is_last = match self.chunks {
            // Counted inside: who has seen this side outside may use the word for another transfer.
            Some(word) => pair.complete(word) == total,
            None => self.next as u64 == total,
        };
        Ok(Some((length, is_last)))
    }
}
