//! Tasks that wait until the value at the beginning of a region has been reached. Any worker of the context may bring it there, so they
//! wait at the region and not in a worker's table.
//!
//! A waiter leaves its waker, then looks at the value once more; whoever raised the value looks for waiters after that. Both are sequentially
//! consistent, so that one of them sees the other.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    task::Waker,
};

use slab::Slab;

use crate::util::{lock::Mutex, waker_slot::WakerSlot};

/// Whether `value` is `at_least` or comes after it. Values wrap around: one comes after another if it is less than 2^63 steps ahead.
#[inline]
pub(crate) const fn reached(value: u64, at_least: u64) -> bool {
    value.wrapping_sub(at_least) < 1 << 63
}

#[derive(Default)]
pub(crate) struct Waiters {
    /// How many there are, to be read without the lock.
    count: AtomicUsize,
    list: Mutex<Slab<Waiter>>,
}

struct Waiter {
    at_least: u64,
    waker: WakerSlot,
}

impl Waiters {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Leaves a waker, under the key of this waiter; `mark` says so to whoever raises the value elsewhere. The caller looks at the value after
    /// that.
    pub(crate) fn leave(
        &self,
        key: Option<usize>,
        at_least: u64,
        waker: &Waker,
        mark: impl FnOnce(),
    ) -> usize {
        let mut list = self.list.lock();
        let key = match key {
            Some(key) if list.contains(key) => key,
            _ => {
                self.count.fetch_add(1, Ordering::SeqCst);
                list.insert(Waiter {
                    at_least,
                    waker: WakerSlot::default(),
                })
            }
        };
        let before = list.get_mut(key).and_then(|waiter| {
            waiter.at_least = at_least;
            waiter.waker.leave(waker)
        });
        mark();
        drop(list);
        drop(before);
        key
    }

    /// The waiter looks itself, and need not be woken.
    pub(crate) fn take(&self, key: usize) {
        let waker = self
            .list
            .lock()
            .get_mut(key)
            .and_then(|waiter| waiter.waker.take());
        drop(waker);
    }

    /// The waiter waits no longer; `unmark` takes back the mark when it was the last. Under the same lock as marks, so that it takes back none
    /// of another's.
    pub(crate) fn remove(&self, key: usize, unmark: impl FnOnce()) {
        let mut list = self.list.lock();
        let waiter = list.try_remove(key);
        if waiter.is_some() {
            self.count.fetch_sub(1, Ordering::SeqCst);
            if list.is_empty() {
                unmark();
            }
        }
        drop(list);
        // The waker's drop is not ours: outside the lock.
        drop(waiter);
    }

    /// Takes the wakers of those who waited for `value` or less.
    pub(crate) fn take_reached(&self, value: u64, wakes: &mut Vec<Waker>) {
        let mut list = self.list.lock();
        wakes.extend(
            list.iter_mut()
                .filter(|(_, waiter)| reached(value, waiter.at_least))
                .filter_map(|(_, waiter)| waiter.waker.take()),
        );
    }

    /// Takes all wakers.
    pub(crate) fn take_all(&self, wakes: &mut Vec<Waker>) {
        if !self.is_empty() {
            let mut list = self.list.lock();
            wakes.extend(
                list.iter_mut()
                    .filter_map(|(_, waiter)| waiter.waker.take()),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Count(AtomicUsize);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn wrapping_order() {
        assert!(reached(0, 0) && reached(5, 5) && reached(6, 5) && !reached(4, 5));
        assert!(reached(3, u64::MAX - 3), "seven steps on");
        assert!(!reached(u64::MAX - 3, 3));
        assert!(reached(1 << 62, 0) && !reached(1 << 63, 0));
    }

    #[test]
    fn only_those_reached_are_taken_and_once() {
        let waiters = Waiters::default();
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count);
        let one = waiters.leave(None, 1, &waker, || ());
        let five = waiters.leave(None, 5, &waker, || ());
        assert_eq!(
            waiters.leave(Some(one), 1, &waker, || ()),
            one,
            "kept its place"
        );
        let mut wakes = Vec::new();
        waiters.take_reached(0, &mut wakes);
        assert_eq!(wakes.len(), 0);
        waiters.take_reached(4, &mut wakes);
        waiters.take_reached(4, &mut wakes);
        assert_eq!(wakes.len(), 1);
        waiters.take(five);
        waiters.take_reached(5, &mut wakes);
        assert_eq!(wakes.len(), 1, "it looks itself");
        let last = std::cell::Cell::new(false);
        waiters.remove(one, || last.set(true));
        waiters.remove(one, || last.set(true));
        assert!(!last.get(), "five still waits");
        assert!(!waiters.is_empty());
        waiters.remove(five, || last.set(true));
        assert!(last.get());
        assert!(waiters.is_empty());
    }
}
