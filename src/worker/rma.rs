//! One-sided operations: directly in the peer's memory where it is mapped or the kernel copies, else by messages that its software serves.

use std::sync::atomic::AtomicU32;

use crate::{
    protocol::{control::Signal, plan::CHUNK},
    sys::memfd::Mapping,
    transport::Pair,
    types::Width,
};

/// From this size on a segment is worth mapping at its first use; smaller ones are as well when they are used again.
pub(in crate::worker) const INLINE: usize = CHUNK;

/// Exposed memory of a peer, as an operation names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) slot: u32,
    pub(crate) generation: u64,
    /// Address of the region in the owner's process.
    pub(crate) address: u64,
    /// Offset in the region.
    pub(crate) offset: u64,
    /// Segment of the region and the region's place in it, 0 when there is none.
    pub(crate) segment: u64,
    pub(crate) segment_offset: u64,
    /// Out of reach for the owner's processor too.
    pub(crate) on_device: bool,
    /// What network devices write is read back, so that whose memory it is sees it.
    pub(crate) read_back: bool,
}

impl Target {
    /// A signal to the counter that it is.
    pub(crate) fn signal(&self, add: u64) -> Signal {
        Signal {
            generation: self.generation,
            offset: self.offset,
            add,
            slot: self.slot,
        }
    }
}

/// A target that may be mapped here: in a segment, in reach of the owner's processor, and in the table of generations.
#[derive(Debug)]
pub(crate) struct Near {
    pub(in crate::worker) target: Target,
    /// Where its segment was found last.
    pub(in crate::worker) place: AtomicU32,
}

impl Near {
    pub(crate) fn new(target: Target) -> Option<Self> {
        let may_be =
            target.segment != 0 && !target.on_device && (target.slot as usize) < Pair::GENERATIONS;
        may_be.then(|| Self {
            target,
            place: AtomicU32::new(0),
        })
    }

    /// Whether a word at this offset lies at a multiple of its size, for its owner.
    #[inline(always)]
    pub(crate) fn is_aligned(&self, offset: u64, width: Width) -> bool {
        width.divides(self.target.address.wrapping_add(offset))
    }
}

/// Where a copy begins and where it ends, towards this side or away from it.
#[inline(always)]
pub(in crate::worker) fn ends(local: *mut u8, remote: *mut u8, pull: bool) -> (*const u8, *mut u8) {
    match pull {
        true => (remote.cast_const(), local),
        false => (local.cast_const(), remote),
    }
}

/// The address of `length` bytes of a mapping, for writing or for reading alone: one that is sealed may be read.
#[inline(always)]
pub(in crate::worker) fn within(
    mapping: &Mapping,
    offset: u64,
    length: usize,
    write: bool,
) -> Option<*mut u8> {
    let start = usize::try_from(offset).ok()?;
    let fits = (!write || mapping.is_writable()) && start.checked_add(length)? <= mapping.len();
    fits.then(|| mapping.as_ptr().wrapping_add(start))
}

pub(in crate::worker) fn what(pull: bool) -> &'static str {
    if pull { "get" } else { "put" }
}
