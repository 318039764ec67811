//! Signals: additions to a counter that always travel by a message, so that whoever waits for the counter is woken, wherever it sleeps.
//!
//! ```text
//! put straight into memory ─▶ visible ─▶ SIGNAL             not answered
//! put by one-copy chunks   ─▶ the last chunk ─▶ SIGNAL
//! put by messages          ─▶ the last PUT carries it; applied when its payload is in place, refused with it
//! ```
//!
//! A `SIGNAL` that could not be applied is remembered by its receiver; `SETTLE`, which a flush sends behind signals, asks for that.

use std::sync::Arc;

use crate::{
    error::{Error, ErrorKind, Result},
    memory::region::Exposed,
    protocol::control::{self, PutHeader, Signal},
    transport::SendError,
    types::{Access, AtomicOp, AtomicRequest, LinkId, OpKey},
    worker::{
        core::Core,
        operations::{self, Outcome, Work},
        peer::Peer,
    },
};

/// What both ends of a connection know of its signals.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// Some were sent since the last `SETTLE`.
    unsettled: bool,
    /// Why one of the peer's could not be applied.
    refused: Option<ErrorKind>,
}

/// A put message, taken apart: header, signal, and where the payload begins.
pub(super) fn put_parts(body: &[u8]) -> Result<(PutHeader, Option<Signal>, usize)> {
    let header = PutHeader::decode(body)?;
    match header.last {
        0 | 1 => Ok((header, None, PutHeader::SIZE)),
        3 => {
            let signal = Signal::decode(body.get(PutHeader::SIZE..).unwrap_or(&[]))?;
            Ok((header, Some(signal), PutHeader::SIZE + Signal::SIZE))
        }
        _ => Err(Error::new(
            ErrorKind::Protocol,
            "a put with a mark that there is not",
        )),
    }
}

/// Bytes of the longest prefix of a put's messages.
pub(super) const fn put_prefix_size(signal: bool) -> usize {
    PutHeader::SIZE + if signal { Signal::SIZE } else { 0 }
}

/// The prefix of a put message: its bytes, and how many.
pub(super) fn put_prefix(
    mut header: PutHeader,
    signal: Option<&Signal>,
) -> ([u8; PutHeader::SIZE + Signal::SIZE], usize) {
    let mut prefix = [0; PutHeader::SIZE + Signal::SIZE];
    let mut length = PutHeader::SIZE;
    if let Some(signal) = signal
        && header.last == 1
    {
        header.last = 3;
        prefix[length..].copy_from_slice(&signal.encode());
        length = prefix.len();
    }
    prefix[..PutHeader::SIZE].copy_from_slice(&header.encode());
    (prefix, length)
}

/// A peer's signal whose counter was found.
pub(crate) struct Raise {
    counter: Arc<Exposed>,
    offset: usize,
    add: AtomicRequest,
}

impl Peer {
    /// Sends a signal, if there is room now.
    pub(super) fn try_signal(&mut self, signal: &Signal) -> Result<(), SendError> {
        let Some(link) = &mut self.link else {
            return Err(SendError::Full);
        };
        link.am_short(control::SIGNAL, 0, &signal.encode())?;
        self.signals.unsettled = true;
        Ok(())
    }
}

impl Core {
    /// Sends a signal at once. `false`: it has to wait for its turn.
    #[inline]
    pub(crate) fn signal_now(&mut self, link: LinkId, signal: &Signal) -> bool {
        self.peer(link)
            .is_some_and(|peer| peer.queue.is_empty() && peer.try_signal(signal).is_ok())
    }

    /// The bytes of a put are visible, and it was not the peer's software that put them there: its signal is due, or it is over.
    pub(super) fn put_visible(&mut self, key: OpKey) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        let link = entry.link;
        let Work::Put(put) = &mut entry.work else {
            return;
        };
        put.acknowledged = true;
        if put.signal.is_some()
            && let Some(link) = link
        {
            put.signal_due = true;
            self.submit(link, key);
        } else {
            self.finish(key, Outcome::Done(Ok(())));
        }
    }

    /// Enters a put whose bytes are visible and whose signal has to wait for room.
    pub(crate) fn start_signal(&mut self, link: LinkId, put: operations::Put) -> OpKey {
        let key = self.operations.insert(Some(link), false, Work::Put(put));
        self.put_visible(key);
        key
    }

    /// Finds the counter of a peer's signal.
    pub(super) fn find_counter(&self, signal: &Signal) -> Result<Raise> {
        let (generation, offset) = (signal.generation, signal.offset);
        let counter = self
            .regions
            .check(signal.slot, generation, offset, 8, Access::WRITE)?;
        let add = AtomicRequest::new(AtomicOp::Add, signal.add);
        counter.word(offset as usize, add.width)?;
        if counter.access.contains(Access::DEVICE_ATOMIC) {
            let text = "a counter of network devices";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        Ok(Raise {
            counter,
            offset: offset as usize,
            add,
        })
    }

    /// Applies a signal; who waits for the counter is woken when the lock is gone.
    pub(super) fn raise(&mut self, raise: &Raise) {
        // Found by `find_counter`, so it is within bounds and aligned.
        if raise.counter.atomic(raise.offset, &raise.add).is_ok() {
            raise.counter.take_reached(&mut self.wakes);
        }
    }

    /// A signal on its own has come.
    pub(super) fn signalled(&mut self, link: LinkId, signal: &Signal) {
        match self.find_counter(signal) {
            Ok(raise) => self.raise(&raise),
            Err(error) => {
                if let Some(peer) = self.peer(link) {
                    peer.signals.refused.get_or_insert_with(|| error.kind());
                }
            }
        }
    }

    /// The peer asks whether its signals were applied; all that it sent before have come.
    pub(super) fn settle(&mut self, link: LinkId, op: u64) {
        match self.peer(link).and_then(|peer| peer.signals.refused.take()) {
            Some(kind) => self.refuse(link, op, kind),
            None => self.control(link, control::DONE, op, &[]),
        }
    }

    /// Asks the peer for the signals sent since it was last asked, if there are any.
    pub(super) fn begin_settle(&mut self, link: LinkId) {
        let Some(peer) = self.peer(link) else { return };
        if !std::mem::take(&mut peer.signals.unsettled) {
            return;
        }
        peer.posted += 1;
        let work = operations::Atomic {
            message: None,
            fetch: false,
            sent: false,
            device: None,
        };
        let key = self.operations.insert(Some(link), true, Work::Atomic(work));
        self.submit(link, key);
    }
}
