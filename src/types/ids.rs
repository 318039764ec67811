//! Identifiers.

use std::fmt;

use super::hex;

/// A worker's identity: 128 bits, unique for all practical purposes.
///
/// A worker makes a key of its own when it is made, and this is the beginning of that key's hash (SHA-256). Whoever connects proves that they
/// hold the key, so what [`Endpoint::peer`](crate::Endpoint::peer) and [`Incoming::peer`](crate::Incoming::peer) say is true of who was there when
/// the connection was made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub [u8; 16]);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex::write(&self.0, f)
    }
}

impl fmt::Debug for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerId({self})")
    }
}

/// An endpoint of one worker, as messages name their sender. Never reused within a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(pub u64);

/// An active message id: what a message is for, and who receives it. One receiver for each id and worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AmId(pub u16);

/// A link as its interface knows it: chosen by the worker when the link is attached, and never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u64);

impl LinkId {
    /// The link at `index` of the worker's table, the `generation`th that the worker made (modulo 2^32).
    pub(crate) const fn new(index: u32, generation: u32) -> Self {
        Self(index as u64 | (generation as u64) << 32)
    }
    /// Its place in the worker's table.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }
}

/// An entry of the table of operations: slot in the low half, generation in the high half, so that a key that has
/// been round the wire is refused when its operation is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OpKey(pub(crate) u64);

impl OpKey {
    /// Builds a key from its halves.
    pub(crate) const fn new(slot: u32, generation: u32) -> Self {
        Self(slot as u64 | (generation as u64) << 32)
    }
    /// Of a receive that was posted: it is not in the table, which has no such slot.
    pub(crate) const fn posted(slot: u32, generation: u32) -> Self {
        Self::new(slot | Self::POSTED, generation)
    }
    /// Where a posted receive is, and its generation.
    pub(crate) const fn as_posted(self) -> Option<(u32, u32)> {
        match self.0 as u32 & Self::POSTED {
            0 => None,
            _ => Some((self.0 as u32 & !Self::POSTED, self.generation())),
        }
    }
    const POSTED: u32 = 1 << 31;
    /// The slot in the table.
    pub(crate) const fn slot(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }
    /// The generation of the slot.
    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}
