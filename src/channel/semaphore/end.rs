//! One rank's end of a semaphore: what is waited for here, and what is raised at the peer.

use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{
    endpoint::{Counter, Endpoint, RemoteRegion},
    error::{Error, ErrorKind, Operation, Result},
    sys::biased::Biased,
    types::Access,
    worker::atomic::MappedCounter,
};

use super::line::Line;

/// Most looks at a counter in memory before the worker is driven: some 500 ns where a pause takes 18, 1.5 us where it takes 45.
const MOST_LOOKS: u32 = 32;
const LEAST_LOOKS: u32 = 4;

/// Signals that look whether the peer's counter has been mapped meanwhile. It was asked for when the semaphore was made.
const TRIES: u32 = 64;

pub(super) struct End {
    /// Raised by the peer.
    pub(super) counter: Counter,
    /// The peer's, raised here.
    pub(super) remote: RemoteRegion,
    pub(super) endpoint: Endpoint,
    /// One thread waits and takes as a rule: no locked instruction then.
    pub(super) line: Biased<Line>,
    /// The peer's counter as it is mapped here.
    mapped: Mapped,
    /// Looks at the counter before the worker is driven: as many as pay.
    looks: AtomicU32,
}

impl End {
    pub(super) fn new(
        counter: Counter,
        endpoint: Endpoint,
        remote: RemoteRegion,
        mapped: Mapped,
    ) -> Result<Self> {
        if !remote.is_counter() {
            let text = format!("a counter is not of {} bytes", remote.len());
            return Err(Error::new(ErrorKind::InvalidArgument, text).during(Operation::Signal));
        }
        remote.check(&endpoint, remote.len(), Access::WRITE, Operation::Signal)?;
        Ok(Self {
            counter,
            remote,
            endpoint,
            line: Biased::new(Line::default()),
            mapped,
            looks: AtomicU32::new(MOST_LOOKS),
        })
    }

    /// Raises the peer's counter in memory. `None`: it is not there.
    #[inline]
    pub(super) fn raise(&self) -> Option<bool> {
        self.mapped.get(&self.remote)?.raise(1)
    }

    /// Looks at the counter for a moment. Signals that come as messages, or late, are not found so: then it looks less the next time.
    #[inline]
    pub(super) fn look(&self, at_least: u64) -> bool {
        let looks = self.looks.load(Ordering::Relaxed);
        let found = self.counter.look(at_least, looks);
        let next = match found {
            true => MOST_LOOKS.min(looks * 2),
            false => LEAST_LOOKS.max(looks / 2),
        };
        if next != looks {
            self.looks.store(next, Ordering::Relaxed);
        }
        found
    }

    /// Signals that have come and were not taken.
    pub(super) fn pending(&self) -> u64 {
        if self.is_forked() {
            return 0;
        }
        let value = self.counter.value();
        self.line.lock().pending(value)
    }

    /// Futures that wait now.
    pub(super) fn waiting(&self) -> usize {
        if self.is_forked() {
            return 0;
        }
        self.line.lock().waiting()
    }

    /// Whether this process is a child made by `fork`, which has a copy of the line and its lock, and takes nothing.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        self.endpoint.shared().admits(Operation::Signal).is_err()
    }
}

/// As the semaphore that it is of.
impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("pending", &self.pending())
            .field("waiting", &self.waiting())
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

/// A peer's counter in this process's memory, when it is there.
#[derive(Default)]
pub(super) struct Mapped {
    counter: OnceLock<MappedCounter>,
    tries: AtomicU32,
}

impl Mapped {
    /// It is not raised but by the endpoint.
    pub(super) fn never() -> Self {
        Self {
            counter: OnceLock::new(),
            tries: AtomicU32::new(TRIES),
        }
    }

    #[inline]
    fn get(&self, remote: &RemoteRegion) -> Option<&MappedCounter> {
        self.counter.get().or_else(|| self.find(remote))
    }

    #[cold]
    fn find(&self, remote: &RemoteRegion) -> Option<&MappedCounter> {
        if self.tries.load(Ordering::Relaxed) >= TRIES {
            return None;
        }
        self.tries.fetch_add(1, Ordering::Relaxed);
        let found = remote.mapped_counter()?;
        Some(self.counter.get_or_init(|| found))
    }
}
