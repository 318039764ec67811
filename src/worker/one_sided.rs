//! Transfers by network devices: puts, gets and announced messages over links that have one-sided operations.
//!
//! ```text
//! put, get            ─▶ short: through the link's memory, at once where nothing waits ─▶ sent / fetched ─▶ over
//!                     ─▶ registered ─▶ pieces, some in flight at a time, over all rails ─▶ over
//!                     ─▶ cannot be registered ─▶ by messages
//! announced, read     ─▶ keys came with it, or are asked for ─▶ pieces ─▶ DONE to the sender
//! announced, written  ─▶ the receiver clears and registers, WRITE ─▶ the sender: pieces ─▶ DONE to the receiver ─▶ deregistered ─▶ over
//! ```
//!
//! A receiver reads, and cannot say afterwards whether a peer has written: so it has a message written only where its own configuration says so,
//! whatever the sender would rather do, and then into memory that holds nothing of anybody's. A peer that writes less than it says delivers zeros.
//!
//! A put that carries a signal sends it as a message after its last piece has ended: rails are not ordered among each other, and a piece that was
//! refused is then known before the signal goes.
//!
//! # Safety
//! Local memory is owned by an entry of the table of operations, which stays while `in_flight` counts a piece of it (a short one is copied); the link is dropped before the
//! entries are touched (`Core::fail`). Memory that a peer writes is given back only when its registration has ended, or with the link.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::{
    config::RendezvousScheme,
    error::{Error, Result},
    memory::{AddressRange, Buffer, Segment},
    protocol::control::{self, Rts},
    transport::{Link, LocalKeys, OneSidedAttributes, RemoteMemory},
    types::{Access, DeviceKey},
    worker::violation::violation,
};

/// Pieces of one operation that each rail may have in flight.
pub(in crate::worker) const IN_FLIGHT: u32 = 4;

/// Bytes of a receive that are cleared at a time, under the lock: some ten microseconds.
pub(in crate::worker) const CLEARED: usize = 256 << 10;

/// What network devices do for an operation.
pub(crate) enum OneSided {
    /// They move its bytes.
    Moves(Moves),
    /// The peer's may read it, once they have the keys.
    Offers(Offer),
    /// Keys were asked for: of the peer's operation, whose bytes are at this address.
    Asks { op: u64, address: u64 },
    /// The peer's write it; without keys while it is being registered. With the peer's operation.
    Written {
        memory: Arc<dyn RemoteMemory>,
        keys: Option<LocalKeys>,
        op: u64,
    },
    /// It has ended so while the memory was being registered for the peer's, which is to end first.
    Over {
        memory: Arc<dyn RemoteMemory>,
        result: Option<Result<()>>,
    },
    /// The peer's wrote it, and may do so until the registration has ended, which is under way.
    Closing {
        memory: Arc<dyn RemoteMemory>,
        keys: LocalKeys,
    },
    /// Nothing: it has failed, and ends when the peer's processor is seen outside its memory (`Movers::leaving`).
    Leaving,
}

/// One run of bytes on its way.
pub(crate) struct Moves {
    /// Towards this process.
    pub(in crate::worker) pull: bool,
    pub(in crate::worker) local: *mut u8,
    pub(in crate::worker) length: usize,
    /// The allocation of wharf's own that it is in.
    pub(in crate::worker) whole: Option<AddressRange>,
    /// In the peer's memory.
    pub(in crate::worker) address: u64,
    pub(in crate::worker) keys: Arc<[DeviceKey]>,
    /// The operation there, to be told.
    pub(in crate::worker) tell: Option<u64>,
    /// Bytes that were handed to the link.
    pub(in crate::worker) next: usize,
    /// Pieces that have not ended.
    pub(in crate::worker) pending: u32,
    /// It went through the link's memory.
    pub(in crate::worker) short: bool,
    pub(in crate::worker) memory: Memory,
    pub(in crate::worker) failed: Option<Error>,
}

// SAFETY: `local` is memory owned by the operation of the same worker; this moves with the worker's state.
unsafe impl Send for Moves {}

/// Memory of this side: where, how much, and the allocation of wharf's own that it is in.
type Local = (*mut u8, usize, Option<AddressRange>);

pub(in crate::worker) enum Memory {
    Unknown,
    Waiting,
    Ready(LocalKeys),
}

/// An announced message.
#[derive(Default)]
pub(crate) struct Offer {
    pub(in crate::worker) keys: Option<LocalKeys>,
    /// It is being registered.
    pub(in crate::worker) waiting: bool,
    /// The receiver's operation, when it has asked for the keys.
    pub(in crate::worker) asked: Option<u64>,
}

impl Moves {
    pub(in crate::worker) fn new(
        pull: bool,
        (local, length, whole): Local,
        address: u64,
        keys: Arc<[DeviceKey]>,
        tell: Option<u64>,
    ) -> Self {
        Self {
            pull,
            local,
            length,
            whole,
            address,
            keys,
            tell,
            next: 0,
            pending: 0,
            short: false,
            memory: Memory::Unknown,
            failed: None,
        }
    }

    pub(in crate::worker) fn range(&self) -> Option<AddressRange> {
        AddressRange::new(self.local as u64, self.length as u64).ok()
    }

    /// What this side's devices do with the local memory.
    pub(in crate::worker) fn access(&self) -> Access {
        match self.pull {
            true => Access::WRITE,
            false => Access::READ,
        }
    }

    /// Where the next piece ends.
    pub(in crate::worker) fn piece_end(&self, attributes: &OneSidedAttributes) -> usize {
        let most = match self.pull {
            true => attributes.max_get,
            false => attributes.max_put,
        };
        self.length
            .min(self.next + attributes.piece.min(most).max(1))
    }
}

/// The allocation that a buffer of wharf's own is in.
pub(in crate::worker) fn whole(segment: Option<(&Arc<Segment>, usize)>) -> Option<AddressRange> {
    let mapping = segment?.0.mapping();
    AddressRange::new(mapping.as_ptr() as u64, mapping.len() as u64).ok()
}

/// What lets peers read a message: its keys, if it is registered already. `None`: it goes otherwise.
pub(super) fn offer(
    link: &mut dyn Link,
    buffer: &Buffer,
    scheme: RendezvousScheme,
    rts: &mut Rts,
    room: usize,
) -> Option<Offer> {
    let ways = link.one_sided()?;
    if scheme == RendezvousScheme::Messages || rts.segment != 0 {
        return None;
    }
    let data = buffer.as_slice().filter(|data| !data.is_empty())?;
    let found = ways
        .memory()
        .find(AddressRange::of(data), Access::READ, ways.devices());
    let keys = found.filter(|_| scheme != RendezvousScheme::Put);
    let count = keys.as_ref().map_or(0, |keys| keys.remote().len());
    let fits = count.min(control::MAX_KEYS) * control::KEY <= room;
    rts.segment = control::REGISTERED;
    rts.segment_offset = match fits {
        true => count.min(control::MAX_KEYS) as u64,
        false => 0,
    };
    rts.slot = 0;
    Some(Offer {
        keys,
        ..Offer::default()
    })
}

impl Offer {
    /// The keys that go with the announcement.
    pub(super) fn announced(&self, rts: &Rts) -> &[DeviceKey] {
        match &self.keys {
            Some(keys) => &keys.remote()[..rts.segment_offset as usize],
            None => &[],
        }
    }
}

/// Logs why memory is not in reach of devices: once in a while it is worth knowing.
pub(in crate::worker) fn told(error: Error) -> Error {
    tracing::warn!(target: "wharf::memory", %error, "memory cannot be registered with network devices; it travels in messages");
    error
}

pub(in crate::worker) fn word(bytes: &[u8]) -> Result<u64> {
    bytes
        .first_chunk()
        .map(|word| u64::from_le_bytes(*word))
        .ok_or_else(|| violation("short message"))
}
