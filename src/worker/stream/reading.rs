//! What has arrived and was not read, and a read that is being polled at this moment: bytes that arrive during the poll go straight into
//! its buffer.
//!
//! # Safety
//! [`Direct`] holds the address of the unfilled part of a buffer that the caller of `Engine::read_stream` borrows for the whole call, and it
//! is taken out of the core before that returns. Nothing else reads or writes that part meanwhile. It counts the bytes that it has
//! written, and only those are declared initialised. So does [`put`]. `Engine::read_next` lends that part for a call that says how many bytes it has
//! written.
#![allow(unsafe_code)]

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::ReadBuf;

use crate::{
    error::Error,
    protocol::window::ReceiveWindow,
    util::{
        copy::{append, copy},
        waker_slot::WakerSlot,
    },
    worker::stream::{broken::Broken, key::StreamKey, spares::Spares},
};

use super::lent::LentBuffer;

/// Bytes gathered in one block; the least that is allocated.
pub(in crate::worker) const BLOCK: usize = 32 << 10;
/// Passes after the first bytes of a read have come, while more do.
pub(in crate::worker) const MORE: usize = 8;

/// How the peer ended its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::worker) enum ReadEnd {
    Fin,
    Reset,
}

#[derive(Default)]
pub(in crate::worker) struct Reading {
    /// A handle may still read it.
    pub(in crate::worker) is_held: bool,
    /// Before the chunks: what was copied out of an announced buffer at once, for short reads.
    pub(in crate::worker) ahead: Bytes,
    pub(in crate::worker) chunks: VecDeque<Bytes>,
    /// After the chunks: where short frames gather.
    pub(in crate::worker) tail: BytesMut,
    /// After all of them: what waits in the writer's memory.
    pub(in crate::worker) lent: Option<LentBuffer>,
    /// Bytes that the peer may send.
    pub(in crate::worker) window: ReceiveWindow,
    pub(in crate::worker) end: Option<ReadEnd>,
    pub(in crate::worker) waker: WakerSlot,
}

impl Reading {
    /// Whether nothing is here; what is announced is not.
    #[inline]
    pub(in crate::worker) fn is_empty(&self) -> bool {
        self.tail.is_empty() && self.chunks.is_empty() && self.ahead.is_empty()
    }

    /// Counts bytes of the peer. `false`: more than it may send.
    #[inline]
    pub(in crate::worker) fn hold(&mut self, length: usize) -> bool {
        self.window.hold(length as u64)
    }

    /// Keeps a copy of bytes that nobody reads just now.
    pub(in crate::worker) fn append(&mut self, data: &[u8]) {
        if self.tail.capacity() - self.tail.len() < data.len() {
            if !self.tail.is_empty() {
                self.chunks.push_back(self.tail.split().freeze());
            }
            self.tail.reserve(data.len().max(BLOCK));
        }
        append(&mut self.tail, data);
    }

    /// Keeps bytes that have arrived in memory of their own.
    pub(in crate::worker) fn push(&mut self, data: BytesMut) {
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
        self.chunks.push_back(data.freeze());
    }

    /// Copies of what comes before all else.
    pub(in crate::worker) fn copy_ahead(&mut self, buf: &mut ReadBuf<'_>) -> usize {
        let count = self.ahead.len().min(buf.remaining());
        put(buf, &self.ahead.split_to(count));
        count
    }

    /// Copies what is there.
    pub(in crate::worker) fn copy_to(
        &mut self,
        buf: &mut ReadBuf<'_>,
        spares: &mut Spares,
    ) -> usize {
        let before = buf.filled().len();
        while let Some(chunk) = self.chunks.front_mut() {
            let count = chunk.len().min(buf.remaining());
            put(buf, &chunk[..count]);
            if count < chunk.len() {
                chunk.advance(count);
                return buf.filled().len() - before;
            }
            if let Some(read) = self.chunks.pop_front() {
                spares.keep(read);
            }
        }
        let count = self.tail.len().min(buf.remaining());
        if count > 0 {
            put(buf, &self.tail[..count]);
            if count == self.tail.len() {
                self.tail.clear();
            } else {
                self.tail.advance(count);
            }
        }
        buf.filled().len() - before
    }

    /// Throws away what nobody will read.
    pub(in crate::worker) fn discard(&mut self) {
        self.ahead = Bytes::new();
        self.lent = None;
        self.chunks.clear();
        self.tail = BytesMut::new();
    }

    /// What is there, without a copy.
    pub(in crate::worker) fn take_chunk(&mut self) -> Option<Bytes> {
        self.chunks
            .pop_front()
            .or_else(|| (!self.tail.is_empty()).then(|| self.tail.split().freeze()))
    }
}

/// Puts bytes that it has room for behind what is in it.
fn put(buf: &mut ReadBuf<'_>, bytes: &[u8]) {
    assert!(
        bytes.len() <= buf.remaining(),
        "the caller has looked at the room"
    );
    // SAFETY: as much room as was looked at just now; nothing that was initialised is made uninitialised.
    let room = unsafe { buf.unfilled_mut() };
    // SAFETY: as above; the room is borrowed alone.
    unsafe { copy(bytes.as_ptr(), room.as_mut_ptr().cast(), bytes.len()) };
    // SAFETY: they were written just now.
    unsafe { buf.assume_init(bytes.len()) };
    buf.advance(bytes.len());
}

/// A read that is being polled.
pub(in crate::worker) struct Direct {
    pub(in crate::worker) key: StreamKey,
    pub(in crate::worker) room: *mut u8,
    pub(in crate::worker) length: usize,
    pub(in crate::worker) filled: usize,
}

// SAFETY: it exists within one call on one thread only, see the chapter on safety.
unsafe impl Send for Direct {}

impl Direct {
    /// Takes as much of `data` as it has room for, and says how much that was.
    #[inline]
    pub(in crate::worker) fn fill(&mut self, data: &[u8]) -> usize {
        let count = data.len().min(self.length - self.filled);
        // SAFETY: `filled + count` is at most `length`, and the buffer is lent by the caller of `read_stream`; `data` is the link's.
        unsafe {
            copy(data.as_ptr(), self.room.add(self.filled), count);
        }
        self.filled += count;
        count
    }
}

impl From<&Error> for Broken {
    fn from(error: &Error) -> Self {
        Self::Ended(error.clone())
    }
}
