#![allow(unsafe_code)]
//! The sending half of a connection, and what both halves hold.
//!
//! # Safety
//! The `unsafe` step is to make the ring's [`Producer`] and [`Waiting`]: each lies beside an `Arc` of the [`Peer`] that owns the mapping, and a link
//! is made once for each segment.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use super::{
    layout::{MAX_BCOPY, MAX_INLINE},
    options::NAME,
    ring::{Producer, PushError, Short, Waiting},
    segment::Segment,
};
use crate::{
    error::{Error, ErrorKind},
    sys::{
        bell::{Bell, Ringer},
        eventfd::EventFd,
        fd_passing,
        fd_socket::Socket,
    },
    transport::{
        contract::{Link, LinkAttributes, SendError, Sink},
        shared_memory::SharedMemory,
    },
    types::LinkId,
    util::{lock::Mutex, loom::fence},
};

/// Bytes of a record on the socket: segment id, length.
pub(crate) const RECORD: usize = 16;

/// The peer, as the link and the interface share it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) segment: Arc<Segment>,
    /// This end's doorbell, which only this peer can ring.
    pub(crate) bell: Bell,
    pub(crate) ringer: Ringer,
    pub(crate) socket: Socket<UnixStream>,
    pub(crate) name: String,
    /// Whether the interface has given the connection up.
    pub(crate) closed: AtomicBool,
    /// Whether a segment waits for the socket to take it.
    pub(crate) share_waits: AtomicBool,
}

/// The senders of one interface that wait for room.
#[derive(Debug, Default)]
pub(crate) struct WaitList {
    list: Mutex<Vec<Waiter>>,
    count: AtomicUsize,
    /// Whether the interface has armed its doorbell.
    pub(crate) armed: AtomicBool,
}

/// One of them. The peer keeps the ring mapped.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) link: LinkId,
    pub(crate) ring: Waiting,
    _peer: Arc<Peer>,
}

impl Waiter {
    /// Asks the peer to ring when there is room. The caller fences before it looks.
    pub(crate) fn ask(&self) {
        self.ring.want_room().raise();
    }
}

impl WaitList {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Adds a link once. `true`: the interface sleeps already, so ask the peer at once.
    fn add(&self, waiter: Waiter) -> bool {
        let mut list = self.list.lock();
        if let Some(known) = list.iter_mut().find(|known| known.link == waiter.link) {
            *known = waiter;
        } else {
            list.push(waiter);
        }
        self.count.store(list.len(), Ordering::Relaxed);
        self.armed.load(Ordering::Relaxed)
    }

    /// Calls `f` for each that waits.
    pub(crate) fn for_each(&self, f: impl FnMut(&Waiter)) {
        self.list.lock().iter().for_each(f);
    }

    /// Takes out those for which `gone` holds, into `into`.
    pub(crate) fn take(&self, gone: impl Fn(&Waiter) -> bool, into: &mut Vec<LinkId>) {
        let mut list = self.list.lock();
        list.retain(|waiter| {
            let gone = gone(waiter);
            if gone {
                waiter.ring.want_room().lower();
                into.push(waiter.link);
            }
            !gone
        });
        self.count.store(list.len(), Ordering::Relaxed);
    }
}

/// A link over shared memory.
#[derive(Debug)]
pub(crate) struct ShmLink {
    id: LinkId,
    producer: Producer,
    peer: Arc<Peer>,
    waiting: Arc<WaitList>,
    /// Wakes this worker itself.
    own_bell: Arc<EventFd>,
}

impl ShmLink {
    /// The sending half towards `peer`; made once for each segment.
    pub(crate) fn new(
        id: LinkId,
        peer: Arc<Peer>,
        waiting: Arc<WaitList>,
        own_bell: Arc<EventFd>,
    ) -> Self {
        // SAFETY: the `Arc` beside it keeps the segment mapped; `attach` makes one link for each segment.
        let producer = unsafe { Producer::new(peer.segment.outgoing()) };
        Self {
            id,
            producer,
            peer,
            waiting,
            own_bell,
        }
    }

    #[inline(always)]
    fn sent(&self, outcome: Result<bool, PushError>) -> Result<(), SendError> {
        match outcome {
            Ok(false) => Ok(()),
            Ok(true) => {
                self.ring();
                Ok(())
            }
            Err(error) => Err(self.unsent(error)),
        }
    }

    /// After a message that the peer may sleep for.
    #[inline(never)]
    fn answer(&self) -> Result<(), SendError> {
        if self.producer.answer() {
            self.ring();
        }
        Ok(())
    }

    #[inline(never)]
    fn am_short_slowly(&mut self, id: u8, header: u64, body: &[u8]) -> Result<(), SendError> {
        if body.len() > MAX_INLINE {
            return Err(self.too_long());
        }
        let outcome = self.producer.push_inline(id, header, body, &[]);
        self.sent(outcome)
    }

    #[cold]
    fn ring(&self) {
        self.peer.ringer.ring();
    }

    #[cold]
    fn unsent(&self, error: PushError) -> SendError {
        let PushError::Full { head } = error else {
            return SendError::Failed(self.error(
                ErrorKind::Protocol,
                "the peer says it took messages that were never sent",
            ));
        };
        if self.peer.closed.load(Ordering::Relaxed) {
            return SendError::Failed(
                self.error(ErrorKind::ConnectionReset, "the connection is gone"),
            );
        }
        // SAFETY: the waiter holds the peer, and so the mapping, beside it.
        let ring = unsafe { Waiting::new(self.peer.segment.outgoing(), head) };
        if self.waiting.add(Waiter {
            link: self.id,
            ring,
            _peer: Arc::clone(&self.peer),
        }) {
            ring.want_room().raise();
            fence(Ordering::SeqCst);
            if ring.has_room() {
                self.own_bell.ring();
            }
        }
        SendError::Full
    }

    #[cold]
    fn error(&self, kind: ErrorKind, message: &'static str) -> Error {
        Error::new(kind, message)
            .over(NAME)
            .with_peer(&self.peer.name)
    }

    #[cold]
    fn too_long(&self) -> SendError {
        SendError::Failed(self.error(
            ErrorKind::InvalidArgument,
            "a message is longer than the link takes",
        ))
    }
}

impl Link for ShmLink {
    fn attributes(&self) -> LinkAttributes {
        LinkAttributes {
            transport: NAME,
            max_short: MAX_INLINE,
            max_bcopy: MAX_BCOPY,
            max_zcopy: 0,
        }
    }

    #[inline]
    fn am_short(&mut self, id: u8, header: u64, body: &[u8]) -> Result<(), SendError> {
        // No call but in the last place: nothing is to be kept over one.
        match self.producer.push_short(id, header, body) {
            Short::Sent if self.producer.is_calm() => Ok(()),
            Short::Sent => self.answer(),
            Short::Other => self.am_short_slowly(id, header, body),
        }
    }

    fn am_bcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        if prefix.len().saturating_add(payload.len()) > MAX_BCOPY {
            return Err(self.too_long());
        }
        let outcome = self.producer.push(id, header, prefix, payload);
        self.sent(outcome)
    }

    fn flush(&mut self, _sink: &mut dyn Sink) {}

    fn is_flushed(&self) -> bool {
        true
    }

    fn shared_memory(&self) -> Option<Arc<dyn SharedMemory>> {
        Some(Arc::clone(&self.peer.segment) as Arc<dyn SharedMemory>)
    }

    fn share(&mut self, segment_id: u64, fd: BorrowedFd<'_>, length: u64) -> Result<(), SendError> {
        let mut record = [0; RECORD];
        record[..8].copy_from_slice(&segment_id.to_le_bytes());
        record[8..].copy_from_slice(&length.to_le_bytes());
        // Set first: the socket may become writable between the refusal and the note.
        self.peer.share_waits.store(true, Ordering::Relaxed);
        let outcome = fd_passing::send(self.peer.socket.as_fd(), &record, &[fd]);
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(SendError::Full),
            _ => self.peer.share_waits.store(false, Ordering::Relaxed),
        }
        match outcome {
            Ok(RECORD) => Ok(()),
            // The kernel takes a record this short whole or not at all.
            Ok(_) => Err(SendError::Failed(
                self.error(ErrorKind::Io, "a record was cut short"),
            )),
            Err(error) => Err(SendError::Failed(
                Error::io("sharing memory with the peer", error)
                    .over(NAME)
                    .with_peer(&self.peer.name),
            )),
        }
    }
}
