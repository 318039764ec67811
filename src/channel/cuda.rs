//! What channels ask of CUDA: the accelerator of a context, and calls that may block.

use std::{
    any::Any,
    borrow::Cow,
    mem::ManuallyDrop,
    ops::Deref,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use tokio::runtime::Handle;

use crate::{
    context::Context,
    error::{Error, ErrorKind, Result},
    sys::fork,
    transport::{Accelerator, cuda::CudaCopy},
};

/// CUDA as a context uses it.
pub(super) fn accelerator(context: &Context) -> Option<Arc<dyn Accelerator>> {
    let mut accelerators = context.accelerators().iter();
    accelerators.find(|one| cuda(one).is_some()).cloned()
}

pub(super) fn cuda(accelerator: &Arc<dyn Accelerator>) -> Option<&CudaCopy> {
    let accelerator: &dyn Any = &**accelerator;
    accelerator.downcast_ref()
}

/// Does it on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        let text = format!("on a thread that may block: {error}");
        Err(Error::new(ErrorKind::Canceled, text))
    })
}

/// Dropped on a thread that may block: the driver may wait where memory is freed. In a child made by `fork` never.
pub(super) struct Apart<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Apart<T> {
    pub(super) fn new(what: T) -> Self {
        Self(Some(what))
    }

    pub(super) fn take(mut self) -> T {
        self.0.take().expect("there until it is dropped")
    }
}

impl<T: Send + 'static> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("there until it is dropped")
    }
}

impl<T: Send + 'static> Drop for Apart<T> {
    fn drop(&mut self) {
        let what = self.0.take();
        if fork::forked() {
            let _kept = ManuallyDrop::new(what);
        } else if let (Some(what), Ok(runtime)) = (what, Handle::try_current()) {
            // Where the system gives no thread it panics, and what it was to drop is dropped here.
            let spawn = || drop(runtime.spawn_blocking(move || drop(what)));
            let _ = catch_unwind(AssertUnwindSafe(spawn));
        }
    }
}

#[cold]
pub(super) fn unsupported(why: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unsupported, why)
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;
    use crate::util::testing::run;

    /// Says in which thread it is dropped.
    struct Tells(mpsc::Sender<thread::ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().id());
        }
    }

    #[test]
    fn what_blocks_is_dropped_elsewhere() {
        run(async {
            let (tell, told) = mpsc::channel();
            drop(Apart::new(Tells(tell.clone())));
            let thread = told.recv_timeout(Duration::from_secs(20));
            assert_ne!(thread, Ok(thread::current().id()));
            thread.expect("dropped");
            drop(Apart::new(Tells(tell)).take());
            assert_eq!(told.recv(), Ok(thread::current().id()));
        });
    }
}
