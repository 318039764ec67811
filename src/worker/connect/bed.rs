//! For tests: a runtime of one thread, and a minute.

use std::time::Duration;

pub(super) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(async {
            let limit = Duration::from_secs(60);
            tokio::time::timeout(limit, test).await.expect("it hangs");
        });
}
