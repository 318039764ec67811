//! Deregistering, in a thread that sleeps until there is something to do.
//!
//! # Safety
//! What `DeadStack::take` gives is the caller's alone: dead, without users, and pushed once. An uncached slot was made by `Box::into_raw`.
#![allow(unsafe_code)]

use std::{
    future::poll_fn,
    os::fd::AsFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
    task::Poll,
    thread,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{
    inner::Inner,
    slot::{Slot, UNCACHED},
};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::{AddressRange, Registrar},
    util::wake::wake_all,
};

impl<R: Registrar> Inner<R> {
    /// Starts the reaper, if it does not run yet. Before the first registration of any kind.
    /// Errors: `Exhausted`: no thread.
    pub(super) fn start_reaper(self: &Arc<Self>) -> Result<()> {
        let mut runs = self.reaper.lock();
        if !*runs {
            let inner = Arc::clone(self);
            thread::Builder::new()
                .name("wharf-rcache".into())
                .spawn(move || inner.reaper())
                .map_err(|error| {
                    Error::new(ErrorKind::Exhausted, "no thread for the registration cache")
                        .with_source(error)
                        .during(Operation::Memory)
                })?;
            *runs = true;
        }
        Ok(())
    }

    /// The thread: until no handle is left and no slot is open.
    fn reaper(&self) {
        loop {
            self.bell.drain();
            self.reap();
            if self.closed.load(Ordering::SeqCst) && self.live.load(Ordering::SeqCst) == 0 {
                return;
            }
            let mut fds = [PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)];
            if poll(&mut fds, PollTimeout::NONE).is_err() {
                // EINTR, or the kernel is short of memory for a moment.
                thread::yield_now();
            }
        }
    }

    /// Deregisters all that is dead and not used. Any thread may; not under a lock.
    pub(super) fn reap(&self) {
        for slot in self.core.dead.take() {
            // Wakers and logs are the user's code. The reaper holds what guards point to, so it must not end by their panics.
            if catch_unwind(AssertUnwindSafe(|| self.release(slot))).is_err() {
                tracing::error!(target: "wharf::rcache", "a waker panicked when a registration had ended");
            }
        }
    }

    fn release(&self, pointer: *mut Slot<R::Handle>) {
        // SAFETY: see the module's docs; valid until it is closed or freed below.
        let slot = unsafe { &*pointer };
        let (range, uncached) = (slot.range(), slot.has(UNCACHED));
        if !uncached {
            // Before it is closed, so that no entry ever names another life. The monitor goes on to watch: others may rely on it.
            self.core.index.clear(range, slot.entry().raw());
        }
        // SAFETY: see the module's docs.
        if let Some(handle) = unsafe { slot.take_handle() } {
            self.deregister(handle, range);
        }
        // Before the slot, or its address, has another life.
        let waits = self.released.lock().remove(&pointer.addr());
        match uncached {
            // SAFETY: see the module's docs.
            true => drop(unsafe { Box::from_raw(pointer) }),
            false => self.close_slot(slot, range),
        }
        self.live.fetch_sub(1, Ordering::SeqCst);
        let bytes = &self.core.unreleased_bytes;
        bytes.fetch_sub(range.len(), Ordering::SeqCst);
        let drained = match self.core.unreleased_regions.fetch_sub(1, Ordering::SeqCst) {
            1 => std::mem::take(&mut *self.drained.lock()),
            _ => Vec::new(),
        };
        // All is accounted for before others' code runs.
        if let Some(flight) = waits {
            flight.complete(());
        }
        wake_all(drained);
    }

    /// Hands a registration back to the registrar. Not under a lock.
    pub(super) fn deregister(&self, handle: R::Handle, range: AddressRange) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            self.registrar.deregister(handle, range)
        }));
        self.count(&self.stats.deregistrations);
        let name = self.registrar.name();
        match result {
            Ok(Ok(())) => {
                tracing::trace!(target: "wharf::rcache", registrar = name, %range, "deregistered");
                return;
            }
            Ok(Err(error)) => {
                tracing::warn!(target: "wharf::rcache", registrar = name, %range, %error, "deregistration failed");
            }
            Err(_) => {
                tracing::warn!(target: "wharf::rcache", registrar = name, %range, "deregistration panicked");
            }
        }
        self.count(&self.stats.deregistration_errors);
    }

    /// Makes a slot of the cache Empty: it is dead, in no page's entry, and nobody's.
    pub(super) fn close_slot(&self, slot: &Slot<R::Handle>, range: AddressRange) {
        let mut table = self.table.lock();
        table.regions -= 1;
        table.bytes -= range.len();
        table.flights.remove(&slot.entry().index());
        table.free.push(slot.entry().index());
        self.core.dead_regions.fetch_sub(1, Ordering::Relaxed);
        self.core
            .dead_bytes
            .fetch_sub(range.len(), Ordering::Relaxed);
        slot.close();
    }

    /// Waits until nothing is unreleased.
    pub(super) async fn drained(&self) {
        poll_fn(|cx| {
            let unreleased = &self.core.unreleased_regions;
            if unreleased.load(Ordering::SeqCst) == 0 {
                return Poll::Ready(());
            }
            let mut wakers = self.drained.lock();
            if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
            // Once more: the last may have been released before the waker was left.
            match unreleased.load(Ordering::SeqCst) {
                0 => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .await;
    }

    /// Retires all that nobody uses.
    pub(super) fn evict_idle(&self) {
        let mut ring = false;
        {
            let table = self.table.lock();
            for index in 0..table.made {
                let slot = self.core.slots.get(index);
                let bytes = slot.range().len();
                if slot.evict(false) {
                    self.core.count_dead(bytes);
                    self.count(&self.stats.evictions);
                    ring |= self.core.push_dead(slot);
                }
            }
        }
        if ring {
            self.bell.ring();
        }
    }

    /// The last handle is gone: nothing is kept any more, and what is in use ends with its users.
    pub(super) fn close(&self) {
        {
            let table = self.table.lock();
            for index in 0..table.made {
                let slot = self.core.slots.get(index);
                let bytes = slot.range().len();
                if let Some(retired) = slot.retire() {
                    if retired.ready {
                        self.core.count_dead(bytes);
                    }
                    if retired.unused {
                        self.core.push_dead(slot);
                    }
                }
            }
        }
        self.closed.store(true, Ordering::SeqCst);
        self.bell.ring();
    }
}
