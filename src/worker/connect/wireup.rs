//! What a worker needs to meet others: its secrets, and whom it is meeting.

use std::{collections::HashMap, sync::Arc};

use crate::{
    config::Progress,
    error::{Error, ErrorKind, Result},
    protocol::{
        WorkerAddress,
        handshake::Server,
        hello::{Introduction, Ticket},
        keys::PrivateKey,
    },
    transport::{channel::Origin, patience::Patience},
    types::WorkerId,
    util::lock::Mutex,
};

/// Connection set-up of one worker.
#[derive(Default)]
pub(crate) struct Wireup {
    /// Workers that have this one's address, or this one theirs, while a connection is being made.
    pub(in crate::worker) meetings: Mutex<HashMap<WorkerId, Meeting>>,
    /// The listener behind the worker's address, once it was asked for.
    pub(in crate::worker) address: Mutex<Option<WorkerAddress>>,
    /// For the next handshake.
    pub(in crate::worker) ephemeral: Mutex<Option<PrivateKey>>,
    /// Handshakes that go on at a Unix socket, where the client goes there; and where they began.
    pub(in crate::worker) expected: Mutex<HashMap<Ticket, (Server, Introduction, Origin)>>,
    pub(in crate::worker) patience: Arc<Patience>,
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
    pub(in crate::worker) fn ephemeral(&self) -> Result<PrivateKey> {
        let made = self.ephemeral.lock().take();
        made.map_or_else(new_key, Ok)
    }

    /// Makes the next one, where there is none. For whoever would wait otherwise.
    pub(in crate::worker) fn think_ahead(&self) -> Result<()> {
        if self.ephemeral.lock().is_none() {
            let key = new_key()?;
            *self.ephemeral.lock() = Some(key);
        }
        Ok(())
    }
}

pub(in crate::worker) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorKind::Io, format!("random bytes: {error}")))?;
    Ok(bytes)
}

/// A worker's.
pub(crate) fn new_key() -> Result<PrivateKey> {
    random().map(PrivateKey::new)
}

/// Connections by address that are being made between this worker and another. When both dial and reach each other, the connection that the worker with
/// the lower id dials is the one for both.
#[derive(Default)]
pub(in crate::worker) struct Meeting {
    /// Of each part.
    pub(in crate::worker) counts: [usize; 3],
    /// This side has dialled, and the peer's connection is the one.
    pub(in crate::worker) crossed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::worker) enum Part {
    Dials,
    Accepts,
    /// Dials by which the peer is being told who this is, where this side's connection is the one.
    Told,
}

impl Meeting {
    pub(in crate::worker) fn count(&mut self, part: Part) -> &mut usize {
        &mut self.counts[part as usize]
    }
}
