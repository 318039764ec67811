//! A result that several futures wait for.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use slab::Slab;

use crate::util::{
    lock::Mutex,
    {wake::wake_all, waker_slot::WakerSlot},
};

pub(super) struct Flight<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    end: Option<T>,
    waiters: Slab<WakerSlot>,
}

impl<T> Flight<T> {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                end: None,
                waiters: Slab::new(),
            }),
        }
    }

    /// Ends it for all. Once.
    pub(super) fn complete(&self, end: T) {
        let waiters = {
            let mut state = self.state.lock();
            state.end = Some(end);
            std::mem::take(&mut state.waiters)
        };
        // Outside of the lock.
        wake_all(
            waiters
                .into_iter()
                .filter_map(|(_, mut waiter)| waiter.take()),
        );
    }

    /// Whether it is over; else `cx` is woken then. `key` is the waiter's place.
    pub(super) fn poll(&self, key: &mut Option<usize>, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.end.is_some() {
            *key = None;
            return Poll::Ready(());
        }
        let place = match *key {
            Some(place) => place,
            None => state.waiters.insert(WakerSlot::default()),
        };
        *key = Some(place);
        let waiter = state.waiters.get_mut(place);
        let before = waiter.and_then(|waiter| waiter.leave(cx.waker()));
        drop(state);
        drop(before);
        Poll::Pending
    }

    /// Reads the end, if there is one. `read` must not run code of users.
    pub(super) fn end<U>(&self, read: impl FnOnce(&T) -> U) -> Option<U> {
        self.state.lock().end.as_ref().map(read)
    }

    /// The waiter waits no longer.
    pub(super) fn leave(&self, key: Option<usize>) {
        let Some(key) = key else { return };
        let waker = {
            let mut state = self.state.lock();
            // After the end, the places are gone.
            state.waiters.try_remove(key)
        };
        drop(waker);
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
