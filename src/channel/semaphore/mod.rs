//! Semaphores between two ranks: signals that one sends and the other waits for.
//!
//! ```text
//! rank a                                  rank b
//! signal() ── add 1 ──────────────▶ [ counter, 8 bytes ] ── wait() takes a ticket
//! wait()  ◀── [ counter, 8 bytes ] ◀────────────── add 1 ── signal()
//! ```
//!
//! The eight bytes are host memory of the one who waits, on every carrier: a [`Counter`]. How they are raised is the endpoint's business: within
//! the process and over shared memory by an atomic addition, which spares even the message unless somebody sleeps there; over anything else by
//! a message to the owner's software. Signals next to device memory take the same way: the counter is not in it.
//!
//! | file | is |
//! |---|---|
//! | `mod.rs` | [`Semaphore`] |
//! | `end.rs` | one rank's end: the counter here, the peer's, the line |
//! | `pairing.rs` | how two ranks make one together |
//! | `line.rs` | who waits, in order, and the tickets |
//! | `signal.rs` | the future that signals: [`SemaphoreSignal`] |
//! | `wait.rs` | the futures that wait: [`SemaphoreWait`], [`Signals`] |
//! | `models.rs` | every interleaving of signals and waits, by `loom` |

mod end;
mod line;
#[cfg(all(test, wharf_loom))]
mod models;
mod pairing;
mod signal;
mod wait;

use std::{fmt, sync::Arc};

use crate::{
    endpoint::{Counter, Endpoint, RemoteRegion, Worker},
    error::Result,
    transport::DevicePlace,
};

pub(crate) use pairing::meet;
pub use signal::SemaphoreSignal;
pub use wait::{SemaphoreWait, Signals};

use super::Communicator;
use end::{End, Mapped};
use pairing::Paired;
use wait::Ticket;

/// A semaphore between this rank and another (or itself): what one signals lets waits of the other pass. A cheap clone.
///
/// A signal is never lost and never counted twice: as many waits pass as there were signals, in the order in which they began to wait. Whoever
/// passes sees what the peer had put before it signalled, as far as those puts had ended.
///
/// ```no_run
/// # async fn run(communicator: wharf::channel::Communicator) -> wharf::Result<()> {
/// use wharf::channel::Semaphore;
/// let peer = 1 - communicator.rank(); // of two
/// let semaphore = Semaphore::pair(&communicator, peer, 0).await?;
/// semaphore.signal().await?; // the peer's wait passes
/// semaphore.wait().await?; // so does this one, by the peer's signal
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias("Host2HostSemaphore", "MemoryDevice2DeviceSemaphore"))]
#[doc(alias(
    "ucp_device_counter_init",
    "ucp_device_counter_read",
    "ucp_device_counter_inc"
))]
pub struct Semaphore {
    inner: Arc<End>,
}

impl Semaphore {
    /// Makes a semaphore with a rank, which does the same: they exchange messages under `tag` of the communicator. With itself a rank signals
    /// itself. One attempt of a rank at a time under one tag.
    ///
    /// # Errors
    /// As [`Worker::counter`], [`Communicator::endpoint`], [`Communicator::send`] and [`Communicator::receive`]; `InvalidArgument` and `Malformed`
    /// when the other rank sent something else.
    ///
    /// # Cancel safety
    /// Dropped, the other rank's attempt ends at its deadline, or with the next one of this rank under the same tag: each tells answers to itself from
    /// those to one that was given up. Dropped in the last moment, the other may have made its end already: its signals fail with `StaleKey`.
    #[doc(alias("buildSemaphore", "SemaphoreStub"))]
    pub async fn pair(communicator: &Communicator, peer: usize, tag: u32) -> Result<Self> {
        let paired = meet(communicator, peer, tag, Vec::new()).await?;
        Ok(Self::of(paired))
    }

    /// The semaphore of this end.
    pub(crate) fn of(paired: Paired) -> Self {
        Self {
            inner: Arc::new(paired.end),
        }
    }

    /// A semaphore from its parts: what the peer raises, and what is raised at the peer. For programs that exchange descriptors by other means.
    ///
    /// # Errors
    /// `InvalidArgument` when `remote` was imported on another endpoint, or is no counter; `AccessDenied` when it may not be written.
    pub fn new(counter: Counter, endpoint: Endpoint, remote: RemoteRegion) -> Result<Self> {
        let end = End::new(counter, endpoint, remote, Mapped::never())?;
        Ok(Self {
            inner: Arc::new(end),
        })
    }

    /// Lets one wait of the peer pass. To be awaited or posted.
    ///
    /// It comes behind the puts that have ended; [`Put::signal`](crate::Put::signal) with the [remote counter](Self::remote) orders itself behind its own.
    ///
    /// # Errors
    /// As for an atomic operation: what ended the connection, `StaleKey` when the peer has dropped its end. A signal that went as a message is not
    /// answered: the next flush of the endpoint says what was wrong with it.
    #[doc(alias("updateAndSync", "relaxedSignal"))]
    pub fn signal(&self) -> SemaphoreSignal<'_> {
        SemaphoreSignal::new(&self.inner)
    }

    /// Signals when the program's work up to a place in one of its device streams is done, without making the program wait for the device:
    /// all that is in a stream, or what an event was last recorded behind.
    ///
    /// # Errors
    /// As [`Worker::reached`] and [`Semaphore::signal`].
    ///
    /// # Cancel safety
    /// Dropped before the place is reached, it does not signal. Spawn it to go on with something else.
    pub async fn signal_after(&self, place: impl Into<DevicePlace>) -> Result<()> {
        self.worker().reached(place).await?;
        self.signal().await
    }

    /// Waits for a signal, and takes it.
    ///
    /// Several that wait are served in the order of their first polls.
    ///
    /// # Errors
    /// What ended the connection to the peer, when no signal is left that came before; `Closed` when the worker is shut down.
    #[doc(alias = "relaxedWait")]
    pub fn wait(&self) -> SemaphoreWait<'_> {
        SemaphoreWait {
            end: &self.inner,
            ticket: Ticket::default(),
        }
    }

    /// Takes a signal if one has come that nobody waits for. Does not drive the worker: for that, await something.
    #[must_use = "whether a signal was taken"]
    #[doc(alias = "try_wait")]
    pub fn poll(&self) -> bool {
        if self.inner.is_forked() {
            return false;
        }
        let value = self.inner.counter.value();
        self.inner.line.lock().try_take(value).is_some()
    }

    /// The signals, one after the other, as a stream that takes each. It ends with an error, after which it gives `None`.
    pub fn signals(&self) -> Signals {
        Signals::new(Arc::clone(&self.inner))
    }

    /// Signals that have come and were not taken.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.inner.pending()
    }

    /// Futures that wait now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.inner.waiting()
    }

    /// The connection to the peer.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.inner.endpoint
    }

    /// The counter of the peer, for [`Put::signal`](crate::Put::signal) on the [endpoint](Self::endpoint).
    #[must_use]
    pub fn remote(&self) -> &RemoteRegion {
        &self.inner.remote
    }

    /// The counter here, which the peer raises. Its value never falls: tickets are counted elsewhere.
    #[must_use]
    pub fn counter(&self) -> &Counter {
        &self.inner.counter
    }

    pub(super) fn worker(&self) -> &Worker {
        self.inner.counter.worker()
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
