//! Events in, and the end of registrations out.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use super::{Inner, flight::Flight};
use crate::{
    memory::{AddressRange, Cause, Registrar, Sink},
    sys::fork::forked,
};

/// The cache's ear.
pub(super) struct CacheSink<R: Registrar>(pub(super) Arc<Inner<R>>);

impl<R: Registrar> Sink for CacheSink<R> {
    fn invalidate(&self, range: AddressRange, _: Cause) {
        self.0.event(range);
    }
}

impl<R: Registrar> Inner<R> {
    /// The memory of `range` changed or is about to. No lock, no allocation, no wait.
    pub(super) fn event(&self, range: AddressRange) {
        if forked() {
            return;
        }
        let met = self.core.invalidate(range);
        if met.idle > 0 {
            self.stats.invalidated_idle.fetch_add(met.idle, Relaxed);
        }
        if met.in_use > 0 {
            self.stats.invalidated_in_use.fetch_add(met.in_use, Relaxed);
        }
        if met.ring {
            self.bell.ring();
        }
    }

    pub(super) fn count(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
}

/// Resolves when a registration has no user any more and is deregistered. Made by [`Registration::invalidate`](super::Registration::invalidate).
///
/// # Cancel safety
/// Cancel safe: the registration ends all the same.
#[must_use = "the registration ends without it; it tells when"]
pub struct Released {
    flight: Arc<Flight<()>>,
    key: Option<usize>,
}

impl Released {
    pub(super) fn new(flight: Arc<Flight<()>>) -> Self {
        Self { flight, key: None }
    }
}

impl Future for Released {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.flight.poll(&mut this.key, cx)
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        self.flight.leave(self.key);
    }
}

impl fmt::Debug for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Released").finish_non_exhaustive()
    }
}
