//! Where a task that waits leaves its waker, and whoever ends the wait takes it. Both under the same lock, so that the one who comes second
//! sees the first: the waiter the result, or the other the waker.

use std::task::Waker;

/// A place for one waker.
#[derive(Debug, Default)]
pub(crate) struct WakerSlot(Option<Waker>);

impl WakerSlot {
    /// Leaves `waker`, in place of one left before, which it gives back. Cloned only when it is
    /// another task's.
    #[must_use = "a waker is not dropped under the lock"]
    pub(crate) fn leave(&mut self, waker: &Waker) -> Option<Waker> {
        match &mut self.0 {
            Some(left) if left.will_wake(waker) => None,
            left => left.replace(waker.clone()),
        }
    }

    /// Whether nothing was left.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Takes what was left: to be woken after the lock is gone, or, by the waiter itself while it
    /// looks, not at all, but dropped after it.
    #[must_use = "a waker is not dropped under the lock"]
    pub(crate) fn take(&mut self) -> Option<Waker> {
        self.0.take()
    }
}

#[cfg(all(test, wharf_loom))]
mod models {
    use loom::{
        future::block_on,
        sync::{Arc, Mutex},
        thread,
    };
    use std::task::Poll;

    use super::WakerSlot;

    #[derive(Default)]
    struct Entry {
        slot: WakerSlot,
        over: bool,
    }

    /// The waiter looks and leaves its waker under the lock; the other ends the wait under it and wakes outside. However they interleave,
    /// the waiter comes back.
    #[test]
    fn no_wait_is_forgotten() {
        loom::model(|| {
            let entry = Arc::new(Mutex::new(Entry::default()));
            let other = {
                let entry = Arc::clone(&entry);
                thread::spawn(move || {
                    let waker = {
                        let mut entry = entry.lock().unwrap();
                        entry.over = true;
                        entry.slot.take()
                    };
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                })
            };
            block_on(std::future::poll_fn(|cx| {
                let mut entry = entry.lock().unwrap();
                // Its own progress must not wake it.
                drop(entry.slot.take());
                if entry.over {
                    return Poll::Ready(());
                }
                drop(entry.slot.leave(cx.waker()));
                Poll::Pending
            }));
            other.join().unwrap();
        });
    }
}
