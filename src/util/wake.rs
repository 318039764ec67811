//! Calling wakers, which are other people's code.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

/// Wakes them one after the other. One that panics is logged, and keeps neither the others from being woken nor whoever calls this from going on:
/// that is often the task or thread that drives a worker for all.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
            tracing::error!(target: "wharf::worker", "a waker panicked; its task may not have been woken");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering::Relaxed},
        },
        task::Wake,
    };

    use super::*;

    struct Counts(AtomicU32);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker of the test's");
        }
    }

    #[test]
    fn the_others_are_woken() {
        let counts = Arc::new(Counts(AtomicU32::new(0)));
        let good = || Waker::from(counts.clone());
        wake_all([good(), Waker::from(Arc::new(Panics)), good()]);
        assert_eq!(counts.0.load(Relaxed), 2);
    }
}
