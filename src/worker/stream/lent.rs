//! Long owned buffers, announced by their writer and copied by their reader, once, straight to where they are read.
//!
//! ```text
//! writer                                             reader
//! the buffer waits, under a word ── STREAM_RTS ──▶   a read is polled: enter, does the word stand?, copy, leave; again
//! the next piece has its turn  ◀── STREAM_TAKEN ──   all is copied, or it cannot be: the rest comes in frames
//! ```
//!
//! One buffer of a stream is announced at a time, and nothing follows it before the answer but a reset. So nothing has to be put in order,
//! and what the reader cannot copy is simply sent. An announced buffer takes nothing of the window: it fills no memory of the reader's.
//!
//! # Safety
//! The writer's piece owns the buffer while its word stands. It is taken back (`Movers::take_back`) by revoking the word, and dropped after the
//! reader was seen outside. The reader touches it between `Pair::enter` and `Pair::leave` only, after a look at the word.
#![allow(unsafe_code)]

use crate::protocol::control::StreamRts;

/// Most bytes that one poll of a read copies, so that nothing else of the worker waits longer: as long as a fragment of a message.
pub(in crate::worker) const PULL: usize = 256 << 10;
/// Reads of less room are served from [`AHEAD`] bytes that were copied at once: each copy may be a system call.
pub(in crate::worker) const SHORT: usize = 16 << 10;
pub(in crate::worker) const AHEAD: usize = 64 << 10;

/// A buffer of the peer's, as a reader knows it.
#[derive(Debug)]
pub(in crate::worker) struct LentBuffer {
    pub(in crate::worker) rts: StreamRts,
    pub(in crate::worker) done: usize,
}

impl LentBuffer {
    pub(in crate::worker) fn left(&self) -> usize {
        self.rts.length as usize - self.done
    }
}
