//! Byte streams: what a connection holds of them, how they are opened, accepted and ended.
//!
//! ```text
//!            writing.pieces ──▶ STREAM_DATA ──▶ reading.chunks ──▶ reader
//!   writer ─▶ (what the link            window     (straight into the reader's
//!              does not take)  ◀── STREAM_WINDOW    buffer, if it looks just now)
//! ```
//!
//! A long owned buffer is announced instead where the reader can copy it out of the writer's memory: `STREAM_RTS`, and nothing more of the
//! stream until `STREAM_TAKEN` comes back.
//!
//! Each direction ends by itself: by `STREAM_FIN` after all data, or by `STREAM_RESET`. A reader that goes before that says `STREAM_STOP`, and
//! the writer answers with a reset. A stream leaves the table of its connection when both directions have ended, and goes when both
//! handles are gone as well.
//!
//! | file | holds |
//! |---|---|
//! | `key`, `broken` | what names a stream; why it takes or gives nothing more |
//! | `reading`, `spares` | what has arrived, and a read that is being polled; memory of what was read, for what comes |
//! | `outgoing` | what is written, on its way to the link |
//! | `lent` | long owned buffers, announced by their writer |
//! | `tests` | a peer that breaks the rules |
//!
//! What is done with them stands above, in `worker/verbs`: `stream`, `stream_in`, `stream_read`, `stream_out`, `stream_lent`.
//!
//! Tests: `tests/api/stream.rs`, `tests/api/lent.rs`, `tests/cancel/stream.rs`, `tests/process/death.rs`, and `tests`.

pub(crate) mod broken;
pub(in crate::worker) mod incoming;
pub(crate) mod key;
pub(in crate::worker) mod lent;
pub(in crate::worker) mod outgoing;
pub(in crate::worker) mod reading;
pub(in crate::worker) mod spares;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasherDefault, Hasher},
};

use slab::Slab;

use crate::{
    error::Error,
    protocol::{
        ledger::AccountId,
        stream::{STREAM_BYTES, STREAM_FIRST, StreamName},
        window::{ReceiveWindow, SendWindow},
    },
    types::LinkId,
    util::waiters::Waiters,
    worker::stream::{key::StreamKey, spares::Spares},
};

use outgoing::{WriteEnd, Writing};
use reading::{Direct, Reading};

pub(crate) use incoming::Landing;

pub(crate) struct Stream {
    pub(in crate::worker) key: StreamKey,
    pub(in crate::worker) link: LinkId,
    pub(in crate::worker) id: u64,
    pub(in crate::worker) opened_here: bool,
    /// Whether the table of its connection holds it.
    pub(in crate::worker) named: bool,
    /// Why the connection has ended.
    pub(in crate::worker) ended: Option<Error>,
    /// Who is charged for it, and for how many bytes, until it is accepted.
    pub(in crate::worker) charged: Option<(AccountId, u64)>,
    /// It was not taken, and the peer has not answered.
    pub(in crate::worker) is_refused: bool,
    pub(in crate::worker) reading: Reading,
    pub(in crate::worker) writing: Writing,
}

impl Stream {
    /// How messages of this side name it.
    #[inline]
    pub(in crate::worker) fn header(&self) -> u64 {
        let name = StreamName {
            id: self.id,
            of_sender: self.opened_here,
        };
        name.header()
    }

    /// How the peer's messages name it.
    #[inline]
    pub(in crate::worker) fn header_of_peer(&self) -> u64 {
        let name = StreamName {
            id: self.id,
            of_sender: !self.opened_here,
        };
        name.header()
    }

    pub(in crate::worker) fn is_over(&self) -> bool {
        self.reading.end.is_some() && matches!(self.writing.end, WriteEnd::Sent)
    }

    pub(in crate::worker) fn is_held(&self) -> bool {
        self.reading.is_held || self.writing.is_held
    }
}

/// All streams of a worker.
#[derive(Default)]
pub(crate) struct Streams {
    pub(in crate::worker) entries: Slab<Stream>,
    generation: u32,
    /// The read that is being polled at this moment.
    pub(in crate::worker) direct: Option<Direct>,
    pub(in crate::worker) spares: Spares,
}

impl Streams {
    /// The stream, and where memory goes that has been read.
    #[inline]
    pub(in crate::worker) fn with_spares(
        &mut self,
        key: StreamKey,
    ) -> Option<(&mut Stream, &mut Spares)> {
        Some((find(&mut self.entries, key)?, &mut self.spares))
    }

    #[inline]
    pub(in crate::worker) fn get(&mut self, key: StreamKey) -> Option<&mut Stream> {
        find(&mut self.entries, key)
    }

    pub(in crate::worker) fn insert(
        &mut self,
        link: LinkId,
        id: u64,
        opened_here: bool,
    ) -> &mut Stream {
        self.generation = self.generation.wrapping_add(1);
        let (read, written) = match opened_here {
            true => (STREAM_BYTES, STREAM_FIRST),
            false => (STREAM_FIRST, STREAM_BYTES),
        };
        let place = self.entries.vacant_entry();
        let key = StreamKey {
            slot: place.key() as u32,
            generation: self.generation,
        };
        place.insert(Stream {
            key,
            link,
            id,
            opened_here,
            named: true,
            ended: None,
            charged: None,
            is_refused: false,
            reading: Reading {
                is_held: true,
                window: ReceiveWindow::new(read),
                ..Reading::default()
            },
            writing: Writing {
                is_held: true,
                window: SendWindow::new(written),
                ..Writing::default()
            },
        })
    }

    pub(in crate::worker) fn remove(&mut self, key: StreamKey) -> Option<Stream> {
        self.get(key)?;
        let stream = self.entries.remove(key.slot as usize);
        if self.entries.is_empty() {
            self.spares = Spares::default();
        }
        Some(stream)
    }

    pub(crate) fn mark_queued(&mut self, key: StreamKey) {
        if let Some(stream) = self.get(key) {
            stream.writing.is_queued = true;
        }
    }

    /// Whether one of these has bytes that have not left, or an end that was not told.
    pub(in crate::worker) fn has_unsent(&self, mut keys: impl Iterator<Item = StreamKey>) -> bool {
        keys.any(|key| {
            let stream = self.entries.get(key.slot as usize);
            stream.is_some_and(|stream| stream.key == key && stream.writing.has_unsent())
        })
    }
}

#[inline]
pub(in crate::worker) fn find(entries: &mut Slab<Stream>, key: StreamKey) -> Option<&mut Stream> {
    let stream = entries.get_mut(key.slot as usize);
    stream.filter(|stream| stream.key == key)
}

/// The streams of one connection.
#[derive(Default)]
pub(crate) struct PeerStreams {
    /// Opened by this side.
    pub(in crate::worker) opened: Table,
    /// Opened by the peer.
    pub(in crate::worker) accepted: Table,
    /// Those of the peer's that nobody has accepted.
    pub(in crate::worker) incoming: VecDeque<StreamKey>,
    /// Those of them that were refused, and of which the peer has not said that it knows: nobody is charged for them.
    pub(in crate::worker) refused: usize,
    /// Those of this side's that the peer has not accepted, in order.
    pub(in crate::worker) unaccepted: VecDeque<u64>,
    pub(in crate::worker) accepters: Waiters,
    pub(in crate::worker) openers: Waiters,
}

impl PeerStreams {
    /// Those that are not over: no other has anything to say, or to hear.
    pub(in crate::worker) fn open(&self) -> impl Iterator<Item = StreamKey> {
        let (opened, accepted) = (&self.opened.open, &self.accepted.open);
        opened.values().chain(accepted.values()).copied()
    }
}

/// One set of streams.
#[derive(Default)]
pub(in crate::worker) struct Table {
    /// The next id.
    pub(in crate::worker) next: u64,
    pub(in crate::worker) open: HashMap<u64, StreamKey, BuildHasherDefault<IdHasher>>,
}

/// Ids count up, so that nobody can choose them to collide.
#[derive(Default)]
pub(in crate::worker) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(*byte));
        }
    }
    #[inline]
    fn write_u64(&mut self, id: u64) {
        self.0 = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl PeerStreams {
    pub(in crate::worker) fn table(&mut self, opened_here: bool) -> &mut Table {
        if opened_here {
            &mut self.opened
        } else {
            &mut self.accepted
        }
    }
}
