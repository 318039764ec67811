//! Signals: additions to a counter that always travel by a message, so that whoever waits for the counter is woken, wherever it sleeps.
//!
//! ```text
//! put straight into memory ─▶ visible ─▶ SIGNAL             not answered
//! put by one-copy chunks   ─▶ the last chunk ─▶ SIGNAL
//! put by messages          ─▶ the last PUT carries it; applied when its payload is in place, refused with it
//! ```
//!
//! A `SIGNAL` that adds something and could not be applied is remembered by its receiver; `SETTLE`, which a flush sends behind signals, asks for that. One of 0
//! wakes who waits for a counter that was raised in memory: where that is gone, nobody does.

use std::sync::Arc;

use crate::{
    error::{ErrorKind, Result},
    memory::region::Exposed,
    protocol::control::{LayoutHeader, PutHeader, Signal},
    types::AtomicRequest,
    worker::{layout::LAYOUT_PREFIX, violation::violation},
};

/// What both ends of a connection know of its signals.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// Some were sent since the last `SETTLE`.
    pub(in crate::worker) unsettled: bool,
    /// Why one of the peer's could not be applied.
    pub(in crate::worker) refused: Option<ErrorKind>,
}

/// A put message, taken apart: header, signal, and payload.
pub(super) fn put_parts(body: &[u8]) -> Result<(PutHeader, Option<Signal>, &[u8])> {
    let header = PutHeader::decode(body)?;
    let rest = body.get(PutHeader::SIZE..).unwrap_or(&[]);
    let (signal, data) = signal_of(header.last, rest)?;
    Ok((header, signal, data))
}

/// The signal that a put's mark says, and what follows it.
pub(in crate::worker) fn signal_of(mark: u32, rest: &[u8]) -> Result<(Option<Signal>, &[u8])> {
    match mark {
        0 | 1 => Ok((None, rest)),
        3 => {
            let signal = Signal::decode(rest)?;
            Ok((Some(signal), rest.get(Signal::SIZE..).unwrap_or(&[])))
        }
        _ => Err(violation("a put with a mark that there is not")),
    }
}

/// Bytes of the longest prefix of a put's messages.
pub(super) const fn put_prefix_size(signal: bool) -> usize {
    PutHeader::SIZE + if signal { Signal::SIZE } else { 0 }
}

/// The prefix of a put message: its bytes, and how many. The last one carries the signal.
pub(super) fn put_prefix(
    mut header: PutHeader,
    signal: Option<&Signal>,
) -> ([u8; PutHeader::SIZE + Signal::SIZE], usize) {
    let signal = signal.filter(|_| header.last == 1);
    header.last |= if signal.is_some() { 2 } else { 0 };
    joined(&header.encode(), signal)
}

/// The same of a message with a layout.
pub(super) fn layout_prefix(
    mut header: LayoutHeader,
    signal: Option<&Signal>,
) -> ([u8; LAYOUT_PREFIX], usize) {
    let signal = signal.filter(|_| header.last == 1);
    header.last |= if signal.is_some() { 2 } else { 0 };
    joined(&header.encode(), signal)
}

fn joined<const N: usize>(header: &[u8], signal: Option<&Signal>) -> ([u8; N], usize) {
    let mut prefix = [0; N];
    let (front, rest) = prefix.split_at_mut(header.len());
    front.copy_from_slice(header);
    if let Some(signal) = signal {
        rest.copy_from_slice(&signal.encode());
    }
    (prefix, if signal.is_some() { N } else { header.len() })
}

/// A peer's signal whose counter was found.
pub(crate) struct Raise {
    pub(in crate::worker) counter: Arc<Exposed>,
    pub(in crate::worker) offset: usize,
    pub(in crate::worker) add: AtomicRequest,
}
