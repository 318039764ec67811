//! What is written, on its way to the link. Bytes go straight from the caller's slice into the link while nothing stands before them; short
//! writes over a link that costs a system call are gathered first, and so is what follows them.

use std::collections::VecDeque;

use crate::{
    error::{Error, ErrorKind},
    memory::Buffer,
    protocol::window::SendWindow,
    types::OpKey,
    util::{copy::append, waker_slot::WakerSlot},
};

/// Shorter writes are gathered, when sending one costs a system call.
pub(in crate::worker) const SHORT: usize = 8 << 10;
/// Bytes that may wait gathered.
pub(in crate::worker) const GATHERED: usize = 64 << 10;
/// Longest frame that is copied, and that is sent from where it is: what others wait behind.
pub(in crate::worker) const COPIED: usize = 64 << 10;
pub(in crate::worker) const LENT: usize = 128 << 10;

/// Where this side's direction stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::worker) enum WriteEnd {
    #[default]
    Open,
    /// The end follows what is unsent.
    Wanted,
    /// The peer was told that nothing follows.
    Sent,
}

/// Bytes that wait for the link.
pub(in crate::worker) enum Piece {
    Gathered {
        bytes: Vec<u8>,
        done: usize,
    },
    Owned {
        buffer: Buffer,
        done: usize,
        loan: Loan,
    },
    /// Of a device: this operation has its bytes, the next of them in pinned memory or not yet.
    Staged {
        op: OpKey,
        ready: bool,
    },
}

/// Whether the rest of an owned buffer waits here until the reader has copied it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::worker) enum Loan {
    /// Not announced; the first step decides.
    None,
    /// Announced, under this word. Nothing else of the stream is sent until the reader says what it has taken.
    Out(u32),
    /// The reader could not: it is sent in frames.
    Refused,
}

#[derive(Default)]
pub(in crate::worker) struct Writing {
    /// A handle may still write it.
    pub(in crate::worker) is_held: bool,
    pub(in crate::worker) pieces: VecDeque<Piece>,
    /// Bytes in gathered pieces.
    pub(in crate::worker) gathered: usize,
    /// An empty buffer for the next gathered piece.
    pub(in crate::worker) spare: Vec<u8>,
    /// Bytes that the peer has room for.
    pub(in crate::worker) window: SendWindow,
    /// Whether it stands in the queue of its link.
    pub(in crate::worker) is_queued: bool,
    /// The peer said that it reads no more, or that it never did, and why.
    pub(in crate::worker) stopped: Option<Option<ErrorKind>>,
    pub(in crate::worker) end: WriteEnd,
    /// Owned buffers taken, and those that have left.
    pub(in crate::worker) taken: u64,
    pub(in crate::worker) left: u64,
    /// An announced buffer was taken back, and the reader may have said something about it before it heard.
    pub(in crate::worker) took_back: bool,
    /// Something that was written has not left, and never will.
    pub(in crate::worker) lost: bool,
    pub(in crate::worker) waker: WakerSlot,
    /// Why nothing leaves any more.
    pub(in crate::worker) failed: Option<Error>,
}

impl Writing {
    pub(in crate::worker) fn has_unsent(&self) -> bool {
        !self.pieces.is_empty() || self.end == WriteEnd::Wanted
    }

    /// Whether a turn on the link would move something.
    pub(in crate::worker) fn can_move(&self) -> bool {
        match self.pieces.front() {
            None => self.end == WriteEnd::Wanted || self.window.left() > 0,
            Some(Piece::Owned {
                loan: Loan::Out(_), ..
            })
            | Some(Piece::Staged { ready: false, .. }) => false,
            Some(_) => self.window.left() > 0,
        }
    }

    /// Of the piece in front, which is a device's: whether its next bytes are in pinned memory.
    pub(in crate::worker) fn mark_ready(&mut self, is_ready: bool) {
        if let Some(Piece::Staged { ready, .. }) = self.pieces.front_mut() {
            *ready = is_ready;
        }
    }

    /// Nothing leaves any more: what has not is thrown away, once the lock is gone. What the reader may be copying is returned, and the word.
    #[must_use = "the reader may be in it"]
    pub(in crate::worker) fn give_up(
        &mut self,
        mut defer: impl FnMut(Buffer),
    ) -> Option<(Buffer, u32)> {
        let mut lent = None;
        self.lost |= !self.pieces.is_empty();
        for piece in self.pieces.drain(..) {
            match piece {
                Piece::Owned {
                    buffer,
                    loan: Loan::Out(word),
                    ..
                } => {
                    self.took_back = true;
                    lent = Some((buffer, word));
                }
                Piece::Owned { buffer, .. } => defer(buffer),
                Piece::Gathered { .. } | Piece::Staged { .. } => {}
            }
        }
        self.gathered = 0;
        lent
    }

    /// Takes a copy of as much as may wait.
    pub(in crate::worker) fn gather(&mut self, data: &[u8]) -> usize {
        let count = data.len().min(GATHERED - self.gathered);
        if count == 0 {
            return 0;
        }
        self.gathered += count;
        if let Some(Piece::Gathered { bytes, .. }) = self.pieces.back_mut() {
            bytes.reserve(count);
            append(bytes, &data[..count]);
        } else {
            let mut bytes = std::mem::take(&mut self.spare);
            bytes.reserve(count);
            append(&mut bytes, &data[..count]);
            self.pieces.push_back(Piece::Gathered { bytes, done: 0 });
        }
        count
    }
}
