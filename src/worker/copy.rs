//! One-copy transfers: bytes that go from the memory of one process into the memory of the other without a stop between, chunk by chunk,
//! by whichever end has time. Both ends count chunks in one shared word, so a slow end takes less.
//!
//! # Safety
//! Local memory is owned by an entry of the table of operations that counts its transfers (`Entry::copies`) and stays while there are any.
//! Remote memory is touched only between `Pair::enter` and `Pair::leave`, after a look at the word by which its owner revokes the right;
//! its owner frees it only after revoking, by the word, by the region's generation, or, of what has neither, by ending the connection, and after having seen this side outside (`Core::fail` and `Region::unexpose`).
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::{
    error::{Error, ErrorKind},
    protocol::plan::CHUNK,
    sys::memfd::Mapping,
    types::{LinkId, OpKey},
    worker::spread::Spread,
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

/// Chunks of this many bytes.
pub(crate) fn chunks(length: usize) -> u64 {
    length.div_ceil(CHUNK) as u64
}

#[cold]
pub(in crate::worker) fn too_many() -> Error {
    Error::new(
        ErrorKind::Protocol,
        "the peer has given out more of a transfer than there is",
    )
}

impl Transfer {
    pub(in crate::worker) fn total(&self) -> u64 {
        chunks(self.length)
    }
}
