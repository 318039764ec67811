//! Calls that may block, made on threads that may.

use tokio::runtime::Handle;

use crate::error::{Error, ErrorKind, Result};

/// Does something on a thread that may block. Dropped, it is done all the same, and its result dropped there.
pub(super) async fn off<R: Send + 'static>(
    act: impl FnOnce() -> Result<R> + Send + 'static,
) -> Result<R> {
    tokio::task::spawn_blocking(act).await.unwrap_or_else(|_| {
        Err(Error::new(
            ErrorKind::Closed,
            "the runtime ended while a connection was being made",
        ))
    })
}

/// What may block when it is dropped: it is dropped on a thread that may. Where there is no runtime any more, it is dropped in place.
#[derive(Debug)]
pub(super) struct Offloaded<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Offloaded<T> {
    pub(super) fn new(inner: T) -> Self {
        Self(Some(inner))
    }

    /// It. `None` never: only [`Offloaded::then`] takes it out, and that takes this too.
    pub(super) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_mut()
    }

    /// Goes on with it on a thread that may block: what `act` makes of it, and what else it found.
    ///
    /// # Errors
    /// That of `act`; it is gone then.
    pub(super) async fn then<U: Send + 'static, V: Send + 'static>(
        mut self,
        act: impl FnOnce(T) -> Result<(U, V)> + Send + 'static,
    ) -> Result<(Offloaded<U>, V)> {
        let inner = self.0.take();
        off(move || match inner {
            Some(inner) => act(inner).map(|(next, found)| (Offloaded::new(next), found)),
            None => Err(Error::new(ErrorKind::Closed, "gone already")),
        })
        .await
    }
}

impl<T: Send + 'static> Drop for Offloaded<T> {
    fn drop(&mut self) {
        let Some(inner) = self.0.take() else { return };
        if let Ok(runtime) = Handle::try_current() {
            // A runtime that is ending drops it at once.
            runtime.spawn_blocking(move || drop(inner));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    const WATCHDOG: Duration = Duration::from_secs(60);

    struct Tells(mpsc::Sender<thread::ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().id());
        }
    }

    #[test]
    fn what_may_block_is_dropped_elsewhere() {
        let (tell, told) = mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            drop(Offloaded::new(Tells(tell.clone())));
            let kept = Offloaded::new(Tells(tell.clone()))
                .then(|one| Ok((one, 1)))
                .await
                .expect("done");
            assert_eq!(kept.1, 1);
            drop(kept);
            let failed = Offloaded::new(Tells(tell.clone()))
                .then(|_| Err::<((), ()), _>(Error::new(ErrorKind::Io, "no")))
                .await;
            assert_eq!(failed.expect_err("fails").kind(), ErrorKind::Io);
        });
        let here = thread::current().id();
        for _ in 0..3 {
            assert_ne!(told.recv_timeout(WATCHDOG).expect("dropped"), here);
        }
        // No runtime: in place.
        drop(Offloaded::new(Tells(tell)));
        assert_eq!(told.try_recv(), Ok(here));
    }
}
