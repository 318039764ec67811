//! Stops submissions for a test: none, some or all may start.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// `None` lets all pass, a number lets so many pass.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    permits: Mutex<Option<u64>>,
    changed: Condvar,
}

impl Hold {
    /// Lets no more than `permits` pass; `None`: all.
    pub(crate) fn set(&self, permits: Option<u64>) {
        *self.permits.lock() = permits;
        self.changed.notify_all();
    }

    /// Lets `more` pass.
    pub(crate) fn step(&self, more: u64) {
        if let Some(permits) = &mut *self.permits.lock() {
            *permits += more;
        }
        self.changed.notify_all();
    }

    /// Waits for a permit, unless `stop` says that nobody wants it any more.
    pub(crate) fn wait(&self, stop: impl Fn() -> bool) {
        let mut permits = self.permits.lock();
        loop {
            match &mut *permits {
                None => return,
                Some(0) => {}
                Some(left) => {
                    *left -= 1;
                    return;
                }
            }
            if stop() {
                return;
            }
            self.changed
                .wait_for(&mut permits, Duration::from_millis(2));
        }
    }
}
