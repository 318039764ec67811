//! Calls that may block, and drops, on threads that may.

use std::{
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    panic::{AssertUnwindSafe, catch_unwind},
};

use tokio::runtime::Handle;

use super::fork;
use crate::error::{Error, ErrorKind, Result};

/// Does it on a thread that may block. Its result ends there, should nobody wait for it any longer.
/// Errors: `Closed`: the runtime is shutting down. That of `work`.
///
/// # Cancel safety
/// Dropped, it is done all the same once it was begun.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        Error::new(ErrorKind::Closed, "the runtime is shutting down").with_source(error)
    })?
}

/// What may block when it is dropped: a thread that may drops it. Without a runtime, and where the system gives no thread, it is dropped in place; in a child made
/// by `fork` never.
#[derive(Debug)]
pub(crate) struct Offloaded<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Offloaded<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self(Some(inner))
    }

    pub(crate) fn take(mut self) -> T {
        self.0.take().expect("there until it is dropped")
    }

    /// Goes on with it on a thread that may block: what `act` makes of it, and what else it found.
    /// Errors: as of [`blocking`]; it is gone then.
    pub(crate) async fn then<U: Send + 'static, V: Send + 'static>(
        self,
        act: impl FnOnce(T) -> Result<(U, V)> + Send + 'static,
    ) -> Result<(Offloaded<U>, V)> {
        blocking(move || act(self.take()).map(|(next, found)| (Offloaded::new(next), found))).await
    }
}

impl<T: Send + 'static> Deref for Offloaded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("there until it is dropped")
    }
}

impl<T: Send + 'static> DerefMut for Offloaded<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("there until it is dropped")
    }
}

impl<T: Send + 'static> Drop for Offloaded<T> {
    fn drop(&mut self) {
        let Some(inner) = self.0.take() else { return };
        if fork::forked() {
            let _kept = ManuallyDrop::new(inner);
        } else if let Ok(runtime) = Handle::try_current() {
            // Where the system gives no thread it panics, and what it was to drop is dropped here, as by a runtime that is ending.
            let spawn = || drop(runtime.spawn_blocking(move || drop(inner)));
            let _ = catch_unwind(AssertUnwindSafe(spawn));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc,
        thread::{self, ThreadId},
        time::Duration,
    };

    use super::*;

    const WATCHDOG: Duration = Duration::from_secs(60);

    /// Says in which thread it is dropped.
    struct Tells(mpsc::Sender<ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().id());
        }
    }

    #[test]
    fn what_may_block_is_dropped_elsewhere() {
        let (tell, told) = mpsc::channel();
        let tells = || Offloaded::new(Tells(tell.clone()));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let here = thread::current().id();
        runtime.block_on(async {
            drop(tells());
            // To a thread that may block, and back.
            let made = tells();
            drop(blocking(move || Ok(made)).await.expect("done"));
            drop(tells().take());
            let dropped = (0..3).map(|_| told.recv_timeout(WATCHDOG).expect("dropped"));
            assert_eq!(
                dropped.filter(|thread| *thread == here).count(),
                1,
                "what was taken"
            );
        });
        drop(runtime);
        drop(tells());
        assert_eq!(told.try_recv(), Ok(here), "no runtime: in place");
    }

    #[tokio::test]
    async fn it_goes_on_elsewhere() {
        let (tell, told) = mpsc::channel();
        let kept = Offloaded::new(Tells(tell.clone()))
            .then(|one| Ok((one, 1)))
            .await
            .expect("done");
        assert_eq!(kept.1, 1);
        drop(kept);
        let failed = Offloaded::new(Tells(tell))
            .then(|_| Err::<((), ()), _>(Error::new(ErrorKind::Io, "no")))
            .await;
        assert_eq!(failed.expect_err("fails").kind(), ErrorKind::Io);
        for _ in 0..2 {
            let thread = told.recv_timeout(WATCHDOG).expect("dropped");
            assert_ne!(thread, thread::current().id());
        }
    }
}
