//! Tasks of a program's runtime, all of one type: what Tokio makes of each type of task, some 150 functions, a build makes once.

use std::pin::Pin;

use tokio::{runtime::Handle, task::JoinHandle};

/// For tasks that are begun seldom: one more allocation for each.
#[track_caller]
pub(crate) fn spawn(
    runtime: &Handle,
    task: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    let task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(task);
    runtime.spawn(task)
}

/// On a thread that may block.
#[track_caller]
pub(crate) fn spawn_blocking(
    runtime: &Handle,
    work: impl FnOnce() + Send + 'static,
) -> JoinHandle<()> {
    let work: Box<dyn FnOnce() + Send> = Box::new(work);
    runtime.spawn_blocking(work)
}
