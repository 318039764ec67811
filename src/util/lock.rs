//! `std`'s locks, without poisoning: what a panic leaves behind a lock here is whole, or made whole by whoever comes next.
//!
//! They do not let another thread run first (`sched_yield`) while they wait, as others do that spin: on a machine with more to do than processors that costs
//! the whole of the other's turn, a millisecond. Who waits for longer than a moment sleeps until the lock is given back.

#![allow(clippy::disallowed_types, reason = "this is what stands for them")]

use std::{
    fmt,
    sync::{self, PoisonError, TryLockError},
    time::Duration,
};

pub(crate) use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// What trying gave.
#[inline]
fn tried<G>(result: Result<G, TryLockError<G>>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// `std`'s.
#[derive(Default)]
pub(crate) struct Mutex<T: ?Sized>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Wraps a value.
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks it.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks it, if nobody else has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        tried(self.0.try_lock())
    }

    /// The value of whoever has it alone.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// `std`'s.
#[derive(Default)]
pub(crate) struct RwLock<T: ?Sized>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Wraps a value.
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks it beside others who read.
    #[inline]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless somebody has it alone, or waits to.
    #[inline]
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        tried(self.0.try_read())
    }

    /// Locks it alone, if nobody else has it.
    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        tried(self.0.try_write())
    }

    /// Locks it alone.
    #[inline]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// `std`'s.
#[derive(Debug, Default)]
pub(crate) struct Condvar(sync::Condvar);

impl Condvar {
    /// Nobody waits.
    pub(crate) const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Gives the lock back, and takes it again once it is notified, or for no reason.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, for `limit` at most.
    pub(crate) fn wait_for<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> MutexGuard<'a, T> {
        let woken = self.0.wait_timeout(guard, limit);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }

    /// As often as it takes until the value is something else, for `limit` at most: whoever calls this looks again.
    pub(crate) fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        is_so: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let woken = self.0.wait_timeout_while(guard, limit, is_so);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes one who waits.
    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all who wait.
    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
