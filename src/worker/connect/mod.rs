//! How connections come about: dialling, listening, the handshake, and the choice of the path.
//!
//! ```text
//! client                                                server
//!    │ ── TCP to host:port, or the Unix socket of an address, or an RDMA address ──▶
//!    │ ─── hello ─────────────────────────────────────────────▶  │
//!    │ ◀── hello: which worker; and proof of it ───────────────  │
//!    │ ─── who, where, which transports, proof ───────────────▶  │
//!    │ ◀── same host? a Unix name: the same goes on there ─────  │  or else Incoming: accepted, on any worker, or rejected
//!    │ ◀── who takes it, proof, lanes to set up, best first ───  │
//!    │ ◀──▶ the lane's own set-up ◀────────────────────────▶   │
//! ```
//!
//! At a Unix socket both ends try whether each can read the other's memory (cma), and say so with what they say anyway.
//!
//! A worker's id is a hash of its key, so every connection is one to and from whom it seems to be: an address leads to its own worker, and what a
//! peer has dialled is taken for this side's only where it has proved that it is the one meant.
//!
//! Where the better path fails, the next is tried from the start, with one warning that says what failed and why.
//!
//! | file | holds |
//! |---|---|
//! | `dial` | addresses in turn, and over which of them |
//! | `meeting` | both ends dial at once; connections that the peer made |
//! | `listen` | places where peers connect, the worker's address |
//! | `bind` | the addresses to listen at |
//! | `backlog` | how many handshakes at a time, and whose |
//! | `accepted` | how many connections peers have made, and whose |
//! | `handshake` | who is at the other end |
//! | `lanes` | which transport, its set-up, the finished link |

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::{
    config::Progress,
    error::{Error, ErrorKind, Result},
    protocol::{
        WorkerAddress,
        handshake::Server,
        hello::{Introduction, Ticket},
        keys::PrivateKey,
    },
    transport::patience::Patience,
    types::WorkerId,
    worker::shared::Shared,
};

mod accepted;
mod backlog;
mod bind;
mod dial;
mod handshake;
mod lanes;
#[cfg(test)]
mod liars;
mod listen;
mod meeting;

use meeting::Meeting;

pub(crate) use accepted::{Accepted, Seat};
#[allow(unreachable_pub, reason = "named by a sealed trait")]
pub use dial::Destination;
pub(crate) use dial::connect;
pub(crate) use handshake::refuse;
pub(crate) use lanes::accept;
pub(crate) use listen::{Place, Request, address};

/// Connection set-up of one worker.
#[derive(Default)]
pub(crate) struct Wireup {
    /// Workers that have this one's address, or this one theirs, while a connection is being made.
    meetings: Mutex<HashMap<WorkerId, Meeting>>,
    /// The listener behind the worker's address, once it was asked for.
    address: Mutex<Option<WorkerAddress>>,
    /// For the next handshake.
    ephemeral: Mutex<Option<PrivateKey>>,
    /// Handshakes that go on at a Unix socket, where the client goes there.
    expected: Mutex<HashMap<Ticket, (Server, Introduction)>>,
    pub(super) patience: Arc<Patience>,
}

impl Wireup {
    /// Of a worker that waits in this way.
    pub(crate) fn new(progress: Progress) -> Self {
        let looks = match progress {
            Progress::Adaptive | Progress::Busy => true,
            Progress::Spin(window) => !window.is_zero(),
            Progress::EventDriven | Progress::Thread => false,
        };
        Self {
            patience: Arc::new(Patience::new(looks)),
            ..Self::default()
        }
    }

    /// A key for one handshake.
    fn ephemeral(&self) -> Result<PrivateKey> {
        let made = self.ephemeral.lock().take();
        made.map_or_else(new_key, Ok)
    }

    /// Makes the next one, where there is none. For whoever would wait otherwise.
    fn think_ahead(&self) -> Result<()> {
        if self.ephemeral.lock().is_none() {
            let key = new_key()?;
            *self.ephemeral.lock() = Some(key);
        }
        Ok(())
    }
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorKind::Io, format!("random bytes: {error}")))?;
    Ok(bytes)
}

/// A worker's.
pub(crate) fn new_key() -> Result<PrivateKey> {
    random().map(PrivateKey::new)
}

fn transports(shared: &Shared) -> Vec<String> {
    shared.context.transports().map(str::to_owned).collect()
}
