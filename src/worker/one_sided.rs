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
    memory::{Buffer, LocalMemory},
    protocol::control::{self, Rts},
    trace,
    transport::{self, DeviceRegistrar, Link, LocalKeys, OneSidedAttributes, registry},
    types::{Access, DeviceKey},
    worker::{rma::Target, violation::violation},
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
        memory: Arc<dyn DeviceRegistrar>,
        keys: Option<LocalKeys>,
        op: u64,
    },
    /// It has ended so while the memory was being registered for the peer's, which is to end first.
    Over {
        memory: Arc<dyn DeviceRegistrar>,
        result: Option<Result<()>>,
    },
    /// The peer's wrote it, and may do so until the registration has ended, which is under way.
    Closing {
        memory: Arc<dyn DeviceRegistrar>,
        keys: LocalKeys,
    },
    /// Nothing: it has failed, and ends when the peer's processor is seen outside its memory (`Movers::leaving`).
    Leaving,
}

/// One run of bytes on its way.
pub(crate) struct Moves {
    /// Towards this process.
    pub(in crate::worker) pull: bool,
    /// Nothing where a device has the memory.
    pub(in crate::worker) local: *mut u8,
    pub(in crate::worker) of: LocalMemory,
    pub(in crate::worker) length: usize,
    /// What a put or get was of, should it go otherwise.
    pub(in crate::worker) target: Option<Target>,
    /// Keys of the peer's devices by which what was written is yet to be read back.
    pub(in crate::worker) unread: Vec<DeviceKey>,
    /// What was written here is seen by whose memory it is.
    pub(in crate::worker) settled: bool,
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
        (local, of): (*mut u8, LocalMemory),
        address: u64,
        keys: Arc<[DeviceKey]>,
        tell: Option<u64>,
    ) -> Self {
        Self {
            pull,
            local,
            of,
            length: of.range.len() as usize,
            target: None,
            unread: Vec::new(),
            settled: false,
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

/// What lets peers read a message: its keys, if it is registered already. `None`: it goes otherwise.
pub(super) fn offer(
    link: &mut dyn Link,
    buffer: &Buffer,
    scheme: RendezvousScheme,
    rts: &mut Rts,
    room: usize,
) -> Option<Offer> {
    let ways = link.one_sided()?;
    let memory = buffer.local_memory()?;
    let on_device = memory.is_on_device();
    if scheme == RendezvousScheme::Messages
        || rts.segment != 0 && !on_device
        || memory.range.is_empty()
        || on_device && takes(ways, &memory).is_err()
    {
        return None;
    }
    rts.address = memory.range.start();
    let found = ways
        .memory()
        .find(&memory, Access::READ, &offered(ways, &memory));
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

/// The devices that the peer may have read it by: of a device's memory all, as those near the peer's count as well.
pub(in crate::worker) fn offered(ways: &dyn transport::OneSided, memory: &LocalMemory) -> Vec<u64> {
    let all = ways.devices().to_vec();
    match memory.is_on_device() {
        true => all,
        false => ways.memory().nearest(memory.memory_type, all),
    }
}

/// Whether the link's devices may reach this memory.
pub(in crate::worker) fn takes(
    ways: &dyn transport::OneSided,
    memory: &LocalMemory,
) -> Result<(), String> {
    ways.memory().takes(memory.memory_type, ways.devices())
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

/// Logs why memory is not in reach of devices.
pub(in crate::worker) fn told(error: Error) -> Error {
    let reason = format!("unregistered: {:?}", error.kind());
    trace::slower!(reason, target: "wharf::memory", %error, remedy = registry::REFUSED_MEMORY, "memory cannot be registered with network devices; it travels in messages");
    error
}

pub(in crate::worker) fn word(bytes: &[u8]) -> Result<u64> {
    bytes
        .first_chunk()
        .map(|word| u64::from_le_bytes(*word))
        .ok_or_else(|| violation("short message"))
}
