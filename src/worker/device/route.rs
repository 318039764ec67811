//! Between device memories of two processes on one host, in one copy: the receiver opens the sender's memory, and its engine copies from there.
//!
//! ```text
//! receiver, which pulls                      owner of the bytes
//!   ROUTE   what of, where, by what ─▶         lends, exports (off the lock)
//!   imports (off the lock)         ◀──  ROUTED the loan's key and a descriptor, or why not
//!   engine: device ─▶ device
//!   DONE    loan                   ──▶         the memory is its own again
//! ```
//!
//! All direct transfers are reads by the side that the bytes go to: gets, receives, and puts, which their target pulls. A loan holds the memory as
//! a served get does, until the receiver says that it is done or its link is gone; a receiver that goes on all the same reads what is then
//! there, for an operation that has failed. Whatever is in the way (no export, no import, no room), the bytes stop in fragments instead.
//! One accelerator does not open another's memory, so the receiver names the one that it copies by.
//! A worker that is its own peer opens nothing: its engines have both memories (`within.rs`).
//! Routes are asked for on connections through shared memory alone: there the kernel vouches for user and process at the other end.

use crate::{
    error::{Error, ErrorKind},
    protocol::ledger::AccountId,
    transport::ImportedMemory,
    types::{Identity, OpKey},
    worker::source::Source,
};

/// How the bytes of a pull come.
#[derive(Default)]
pub(in crate::worker) enum Route {
    /// By fragments.
    #[default]
    Staged,
    /// The owner is asked for the way first.
    Ask,
    Asked,
    Opening {
        loan: u64,
    },
    Open {
        loan: u64,
        memory: ImportedMemory,
    },
}

/// Memory of this side that a peer opens, or the answer that it cannot.
pub(crate) struct Lent {
    /// Held for the peer.
    pub(in crate::worker) _source: Option<Source>,
    /// The peer's operation.
    pub(in crate::worker) to: u64,
    /// A descriptor, or why there is none. `None`: the export is under way, or the peer was told.
    pub(in crate::worker) answer: Option<Result<Vec<u8>, String>>,
    /// Who is charged for it.
    pub(crate) charged: Option<AccountId>,
}

/// Bytes of a reason that the peer is told.
pub(in crate::worker) const REASON: usize = 200;

#[cold]
pub(in crate::worker) fn unsuitable(why: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, why)
}

/// What takes a call of the driver, for as long as that takes.
pub(crate) enum What {
    Export {
        address: u64,
        length: u64,
        /// Keeps the memory for the call, which the loan may not outlive.
        source: Source,
        loan: OpKey,
    },
    Import {
        descriptor: Vec<u8>,
        peer: Identity,
        key: OpKey,
    },
}
