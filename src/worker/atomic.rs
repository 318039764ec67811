//! Atomic operations: by the initiator's processor where the word is mapped here, else by messages that the owner's software serves.
//!
//! # Safety
//! A mapped word is touched between `Pair::enter` and `Pair::leave`, with a look at the region's generation between, as in `rma`.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::{
    error::{Error, ErrorKind},
    memory::atomic::raise,
    sys::memfd::Mapping,
    transport::{Pair, Standing},
};

/// The error of an atomic operation that no device does.
#[cold]
pub(super) fn no_atomics() -> Error {
    let text = "the region was exposed for atomics of network devices, and this connection has none that reaches it";
    Error::new(ErrorKind::Unsupported, text)
}

/// A counter of a peer that is mapped here. Unlike other exposed memory it never becomes something else: its segment is freed with it, and what comes
/// late goes into pages that only this mapping has. So it is raised without [`Pair::enter`].
pub(crate) struct MappedCounter {
    pub(in crate::worker) word: *mut u8,
    pub(in crate::worker) _mapping: Arc<Mapping>,
    pub(in crate::worker) pair: Arc<Pair>,
    pub(in crate::worker) region: (u32, u64),
}

// SAFETY: `word` points into the mapping, which is kept, and is used by atomics alone.
unsafe impl Send for MappedCounter {}
// SAFETY: as above.
unsafe impl Sync for MappedCounter {}

impl MappedCounter {
    /// Raises it; whether somebody sleeps there, whom only a message wakes. `None`: it is there no more, or the connection is over.
    #[inline]
    pub(crate) fn raise(&self, add: u64) -> Option<bool> {
        let (slot, generation) = self.region;
        // A peer that has ended the connection has taken its key back as well; its mark of that lies beside one that it writes all the time.
        if self.pair.standing(slot, generation) != Standing::Let || self.pair.is_over_here() {
            return None;
        }
        // SAFETY: aligned, and checked against the mapping, which is kept.
        Some(unsafe { raise(self.word, add) })
    }
}
