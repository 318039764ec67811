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
//! | `incoming` | the messages of a peer, acted upon |
//! | `reading` | what has arrived, and a read that is being polled |
//! | `outgoing` | what is written, on its way to the link |
//! | `lent` | long owned buffers, announced by their writer and copied by their reader |
//! | `tests` | a peer that breaks the rules |
//!
//! Tests: `tests/api/stream.rs`, `tests/api/lent.rs`, `tests/cancel/stream.rs`, `tests/process/death.rs`, and `tests`.

mod incoming;
mod lent;
mod outgoing;
mod reading;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasherDefault, Hasher},
    task::Waker,
};

use bytes::{Bytes, BytesMut};
use slab::Slab;

use crate::{
    error::{Error, ErrorKind, Result},
    protocol::{
        control,
        ledger::{AccountId, Amount},
        stream::{STREAM_BACKLOG, STREAM_FIRST, STREAM_OPEN_MAX, StreamName},
        window::SendWindow,
    },
    types::{EndpointId, LinkId},
    worker::{
        core::Core,
        peer::{Peer, at},
    },
};

pub(crate) use incoming::Landing;
use outgoing::{WriteEnd, Writing};
use reading::{BLOCK, Direct, ReadEnd, Reading};

/// A stream of a worker, as its handles and the queues name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamKey {
    slot: u32,
    generation: u32,
}

/// Why a stream cannot be read or written any more.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The peer reads no more.
    Stopped,
    /// The peer did not take the stream, and why.
    Refused(ErrorKind),
    /// The peer reset it.
    Reset,
    /// This side has shut it down.
    Finished,
    /// The connection has ended.
    Ended(Error),
}

pub(crate) struct Stream {
    generation: u32,
    link: LinkId,
    id: u64,
    opened_here: bool,
    /// Whether the table of its connection holds it.
    named: bool,
    /// Why the connection has ended.
    ended: Option<Error>,
    /// Who is charged for it, and for how many bytes, until it is accepted.
    charged: Option<(AccountId, u64)>,
    reading: Reading,
    writing: Writing,
}

impl Stream {
    /// How messages of this side name it.
    #[inline]
    fn header(&self) -> u64 {
        let name = StreamName {
            id: self.id,
            of_sender: self.opened_here,
        };
        name.header()
    }

    /// How the peer's messages name it.
    #[inline]
    fn header_of_peer(&self) -> u64 {
        let name = StreamName {
            id: self.id,
            of_sender: !self.opened_here,
        };
        name.header()
    }

    fn is_over(&self) -> bool {
        self.reading.end.is_some() && matches!(self.writing.end, WriteEnd::Sent)
    }

    fn is_held(&self) -> bool {
        self.reading.is_held || self.writing.is_held
    }
}

/// All streams of a worker.
#[derive(Default)]
pub(crate) struct Streams {
    entries: Slab<Stream>,
    generation: u32,
    /// The read that is being polled at this moment.
    direct: Option<Direct>,
    spares: Spares,
}

/// Memory of frames that have been read, for those that come: a long one arrives in memory of its own, and where the allocator gives that back to the
/// system each time, its pages are made anew for each frame, which takes longer than copying it. Of one size alone, and for frames of more than half of
/// that: who leaves short frames unread must not have long memory kept for them. 512 KiB in all.
#[derive(Default)]
struct Spares(Vec<BytesMut>);

impl Spares {
    /// Frames in a stream's window, if they are as long as those of a socket.
    const MOST: usize = 8;
    /// Bytes of each.
    const SIZE: usize = 64 << 10;

    /// Room for so many bytes, of which none is there.
    fn take(&mut self, length: usize) -> BytesMut {
        if !(Self::SIZE / 2 + 1..=Self::SIZE).contains(&length) {
            return BytesMut::with_capacity(length);
        }
        let spare = self.0.pop();
        spare.unwrap_or_else(|| BytesMut::with_capacity(Self::SIZE))
    }

    /// Keeps what was read, unless somebody else has a part of it.
    fn keep(&mut self, read: Bytes) {
        if self.0.len() < Self::MOST
            && let Ok(mut spare) = read.try_into_mut()
        {
            spare.clear();
            if spare.try_reclaim(Self::SIZE) && !spare.try_reclaim(Self::SIZE + 1) {
                self.0.push(spare);
            }
        }
    }
}

impl Streams {
    /// The stream, and where memory goes that has been read.
    #[inline]
    fn with_spares(&mut self, key: StreamKey) -> Option<(&mut Stream, &mut Spares)> {
        let stream = self.entries.get_mut(key.slot as usize)?;
        (stream.generation == key.generation).then_some((stream, &mut self.spares))
    }

    #[inline]
    fn get(&mut self, key: StreamKey) -> Option<&mut Stream> {
        self.with_spares(key).map(|(stream, _)| stream)
    }

    fn insert(&mut self, link: LinkId, id: u64, opened_here: bool) -> StreamKey {
        self.generation = self.generation.wrapping_add(1);
        let slot = self.entries.insert(Stream {
            generation: self.generation,
            link,
            id,
            opened_here,
            named: true,
            ended: None,
            charged: None,
            reading: Reading::default(),
            writing: Writing::default(),
        });
        StreamKey {
            slot: slot as u32,
            generation: self.generation,
        }
    }

    fn remove(&mut self, key: StreamKey) -> Option<Stream> {
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

    /// Whether a stream of the link has bytes that have not left, or an end that was not told.
    pub(crate) fn has_unsent(&self, link: LinkId) -> bool {
        self.entries.iter().any(|(_, stream)| {
            stream.link == link && stream.ended.is_none() && stream.writing.has_unsent()
        })
    }
}

/// The streams of one connection.
#[derive(Default)]
pub(crate) struct PeerStreams {
    /// Opened by this side.
    opened: Table,
    /// Opened by the peer.
    accepted: Table,
    /// Those of the peer's that nobody has accepted.
    incoming: VecDeque<StreamKey>,
    /// Those of this side's that the peer has not accepted, in order.
    unaccepted: VecDeque<u64>,
    accepters: Vec<Waker>,
    openers: Vec<Waker>,
}

/// One set of streams.
#[derive(Default)]
struct Table {
    /// The next id.
    next: u64,
    open: HashMap<u64, StreamKey, BuildHasherDefault<IdHasher>>,
}

/// Ids count up, so that nobody can choose them to collide.
#[derive(Default)]
struct IdHasher(u64);

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
    fn table(&mut self, opened_here: bool) -> &mut Table {
        if opened_here {
            &mut self.opened
        } else {
            &mut self.accepted
        }
    }
}

/// Leaves a waker once.
fn leave(wakers: &mut Vec<Waker>, waker: &Waker) {
    if !wakers.iter().any(|left| left.will_wake(waker)) {
        wakers.push(waker.clone());
    }
}

impl Core {
    /// Opens a stream. `None`: no more may be open or unaccepted now.
    pub(crate) fn open_stream(
        &mut self,
        link: LinkId,
        endpoint: EndpointId,
    ) -> Option<Result<StreamKey>> {
        let Some(peer) = at(&mut self.peers, link).filter(|peer| peer.id == endpoint) else {
            return Some(Err(crate::worker::send::closed()));
        };
        if let Some(error) = peer.error() {
            return Some(Err(error));
        }
        let streams = peer.streams();
        if streams.opened.open.len() >= STREAM_OPEN_MAX
            || streams.unaccepted.len() >= STREAM_BACKLOG
        {
            return None;
        }
        let id = streams.opened.next;
        streams.opened.next += 1;
        streams.unaccepted.push_back(id);
        let key = self.streams.insert(link, id, true);
        streams.opened.open.insert(id, key);
        if let Some(stream) = self.streams.get(key) {
            stream.writing.window = SendWindow::new(STREAM_FIRST);
        }
        let name = StreamName {
            id,
            of_sender: true,
        };
        self.control(link, control::STREAM_OPEN, name.header(), &[]);
        Some(Ok(key))
    }

    /// Accepts the next stream that the peer has opened.
    pub(crate) fn accept_stream(
        &mut self,
        link: LinkId,
        endpoint: EndpointId,
    ) -> Option<Result<StreamKey>> {
        let Some(peer) = at(&mut self.peers, link).filter(|peer| peer.id == endpoint) else {
            return Some(Err(crate::worker::send::closed()));
        };
        if let Some(key) = peer.streams().incoming.pop_front() {
            if peer.is_alive() {
                self.control(link, control::STREAM_ACCEPTED, 1, &[]);
            }
            self.uncharge_stream(key);
            // The rest of its window.
            self.read_from(key, 0);
            return Some(Ok(key));
        }
        peer.over().map(Err)
    }

    /// Nobody is charged for a stream any more: it is accepted, or goes.
    fn uncharge_stream(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get(key)
            && let Some((account, bytes)) = stream.charged.take()
        {
            self.ledger.give(account, Amount::STREAM);
            self.ledger.give(account, Amount::bytes(bytes as usize));
        }
    }

    /// Charges for bytes of a stream that nobody has accepted. `false`: it is too much, and the stream is refused.
    fn charge_stream(&mut self, key: StreamKey, length: usize) -> bool {
        let Some(stream) = self.streams.get(key) else {
            return false;
        };
        let Some((account, bytes)) = &mut stream.charged else {
            return true;
        };
        // The first of them take a block.
        let more = match *bytes {
            0 => length.max(BLOCK),
            _ => length,
        };
        if self.ledger.take(*account, Amount::bytes(more)).is_ok() {
            *bytes += more as u64;
            return true;
        }
        let link = stream.link;
        if let Some(peer) = self.peer(link) {
            peer.streams().incoming.retain(|waiting| *waiting != key);
        }
        self.uncharge_stream(key);
        self.discard_unread(key);
        self.refuse_stream(key);
        false
    }

    pub(crate) fn wait_to_open(&mut self, link: LinkId, waker: &Waker) {
        if let Some(peer) = self.peer(link) {
            leave(&mut peer.streams().openers, waker);
        }
    }

    pub(crate) fn wait_to_accept(&mut self, link: LinkId, waker: &Waker) {
        if let Some(peer) = self.peer(link) {
            leave(&mut peer.streams().accepters, waker);
        }
    }

    /// A reader is gone. What is left of the stream, if nothing needs it any more, to be dropped outside the lock.
    pub(crate) fn drop_stream_reader(&mut self, key: StreamKey) -> Option<Stream> {
        let stream = self.streams.get(key)?;
        stream.reading.is_held = false;
        stream.reading.waker.take();
        if stream.reading.end.is_none() && stream.ended.is_none() {
            let (link, header) = (stream.link, stream.header());
            self.control(link, control::STREAM_STOP, header, &[]);
        }
        self.discard_unread(key);
        self.settle_stream(key)
    }

    /// A writer is gone: the end follows what it wrote.
    pub(crate) fn drop_stream_writer(&mut self, key: StreamKey) -> Option<Stream> {
        let stream = self.streams.get(key)?;
        stream.writing.is_held = false;
        stream.writing.waker.take();
        self.finish_stream(key);
        self.settle_stream(key)
    }

    /// Ends what this side writes at once, and throws away what has not left.
    pub(crate) fn reset_stream(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get(key) else {
            return;
        };
        if matches!(stream.writing.end, WriteEnd::Sent) || stream.ended.is_some() {
            return;
        }
        self.end_writes(key);
        let Some(stream) = self.streams.get(key) else {
            return;
        };
        let lent = stream.writing.give_up(&mut self.buried);
        stream.writing.end = WriteEnd::Sent;
        let (link, header) = (stream.link, stream.header());
        self.take_back(link, Vec::from_iter(lent));
        self.control(link, control::STREAM_RESET, header, &[]);
        self.close_soon(Some(link));
    }

    /// After either direction has ended or a handle has gone: takes the stream out of what it is in no more.
    fn settle_stream(&mut self, key: StreamKey) -> Option<Stream> {
        let stream = self.streams.get(key)?;
        if stream.named && stream.is_over() {
            stream.named = false;
            let (link, id, opened_here) = (stream.link, stream.id, stream.opened_here);
            if let Some(peer) = at(&mut self.peers, link) {
                peer.streams().table(opened_here).open.remove(&id);
                if opened_here {
                    self.wakes.append(&mut peer.streams().openers);
                }
            }
        }
        let stream = self.streams.get(key)?;
        if stream.is_held() || (stream.named && stream.ended.is_none()) {
            return None;
        }
        self.streams.remove(key)
    }

    /// The connection has ended: readers get what has arrived, then the reason.
    pub(crate) fn end_streams(&mut self, link: LinkId, error: &Error) {
        if let Some(streams) = at(&mut self.peers, link).and_then(Peer::known_streams) {
            streams.opened.open.clear();
            streams.accepted.open.clear();
            self.wakes.append(&mut streams.accepters);
            self.wakes.append(&mut streams.openers);
        }
        let mut lent = Vec::new();
        let (wakes, buried) = (&mut self.wakes, &mut self.buried);
        self.streams.entries.retain(|_, stream| {
            if stream.link != link || stream.ended.is_some() {
                return true;
            }
            stream.named = false;
            stream.ended = Some(error.duplicate());
            lent.extend(stream.writing.give_up(buried));
            stream.reading.lent = None;
            wakes.extend(stream.reading.waker.take());
            wakes.extend(stream.writing.waker.take());
            stream.is_held()
        });
        self.take_back(link, lent);
    }

    /// The record of an ended connection goes, and with it the streams that nobody accepted.
    pub(crate) fn forget_streams(&mut self, link: LinkId) {
        let peer = at(&mut self.peers, link).filter(|peer| !peer.is_alive());
        let Some(streams) = peer.and_then(Peer::known_streams) else {
            return;
        };
        for key in std::mem::take(&mut streams.incoming) {
            self.uncharge_stream(key);
            self.streams.remove(key);
        }
    }
}

#[cold]
fn violation(message: &'static str) -> Error {
    Error::new(ErrorKind::Protocol, message)
}

impl From<Broken> for Error {
    fn from(broken: Broken) -> Self {
        let (kind, message) = match broken {
            Broken::Stopped => (
                ErrorKind::ConnectionReset,
                "the peer reads no more of the stream",
            ),
            Broken::Refused(kind) => (kind, "the peer holds no more streams that nobody accepts"),
            Broken::Reset => (ErrorKind::ConnectionReset, "the peer reset the stream"),
            Broken::Finished => (ErrorKind::Closed, "the stream was shut down for writing"),
            Broken::Ended(error) => return error.during(crate::Operation::Stream),
        };
        Self::new(kind, message).during(crate::Operation::Stream)
    }
}

impl From<Broken> for std::io::Error {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Stopped | Broken::Finished => {
                Self::new(std::io::ErrorKind::BrokenPipe, Error::from(broken))
            }
            _ => Error::from(broken).into(),
        }
    }
}
