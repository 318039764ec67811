//! For tests: what runs a future.

use std::{future::Future, pin::Pin, time::Duration};

/// Runs a test on a runtime of one thread, for two minutes at most. In a box: a runtime's `block_on` is compiled again for each type of future.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    const LIMIT: Duration = Duration::from_secs(120);
    let test: Pin<Box<dyn Future<Output = T> + '_>> = Box::pin(test);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(LIMIT, test).await.expect("it hangs") })
}
