//! How long a connection's set-up looks for the peer's next message before it sleeps.
//!
//! Two tasks that wake each other through the kernel take 25 to 35 µs for it on a virtual machine (November 2026), and a set-up has four to six messages that
//! wait for each other: most of what a connection within one host would take. So whoever waits is polled again between the turns of other tasks, and the
//! runtime looks at its sockets meanwhile, for about as long as the peer takes for the longest of its steps. Where that finds nothing, as with peers far away,
//! it is mostly left out.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    task::{Context, Poll},
    time::{Duration, Instant},
};

/// The peer multiplies three times on the curve, 16 µs each, before its longest answer.
const WINDOW: Duration = Duration::from_micros(80);
/// Looks that may fail in a row until only one wait of so many is looked after.
const CREDIT: u32 = 8;
const TRIES_EVERY: u32 = 32;

/// For the set-ups of one worker together.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    is_on: bool,
    /// How many looks may fail.
    credit: AtomicU32,
    /// Waits since there was no credit.
    passed: AtomicU32,
}

enum Look {
    Fresh,
    Since(Instant),
    Over,
}

impl Patience {
    /// `is_on`: whether the worker ever looks before it sleeps.
    pub(crate) fn new(is_on: bool) -> Self {
        Self {
            is_on,
            credit: AtomicU32::new(CREDIT),
            passed: AtomicU32::new(0),
        }
    }

    fn looks(&self) -> bool {
        if !self.is_on {
            return false;
        }
        self.credit.load(Relaxed) > 0
            || self.passed.fetch_add(1, Relaxed) % TRIES_EVERY == TRIES_EVERY - 1
    }

    fn found(&self) {
        self.credit.store(CREDIT, Relaxed);
    }

    fn failed(&self) {
        let credit = self.credit.load(Relaxed);
        self.credit.store(credit.saturating_sub(1), Relaxed);
    }

    /// Waits for what a socket brings.
    ///
    /// # Cancel safety
    /// That of `future`.
    pub(crate) async fn wait<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut look = Look::Fresh;
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                if matches!(look, Look::Since(_)) {
                    self.found();
                }
                return Poll::Ready(output);
            }
            match look {
                Look::Fresh if self.looks() => {
                    look = Look::Since(Instant::now());
                    again(cx);
                }
                Look::Since(since) if since.elapsed() < WINDOW => again(cx),
                Look::Since(_) => {
                    self.failed();
                    look = Look::Over;
                }
                Look::Fresh | Look::Over => look = Look::Over,
            }
            Poll::Pending
        })
        .await
    }
}

/// Has the task polled again once the others, and the runtime's sockets, have had their turn.
fn again(cx: &mut Context<'_>) {
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(future)
    }

    /// Ready at the poll of that number; how often it was polled is in `polls`.
    async fn ready_at(number: u32, polls: &Cell<u32>) {
        poll_fn(|_| {
            polls.set(polls.get() + 1);
            match polls.get() >= number {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    #[test]
    fn who_waits_is_polled_again_without_being_woken() {
        let polls = Cell::new(0);
        block_on(Patience::new(true).wait(ready_at(3, &polls)));
        assert_eq!(polls.get(), 3);
    }

    /// So often in vain that it is left out, and tried again now and then.
    #[test]
    fn looks_that_fail_are_mostly_left_out() {
        let patience = Patience::new(true);
        let looked = || {
            let polls = Cell::new(0);
            let is_over = block_on(async {
                let wait = patience.wait(ready_at(u32::MAX, &polls));
                tokio::time::timeout(Duration::from_millis(2), wait).await
            });
            assert!(is_over.is_err());
            // At the beginning, and when the time is over.
            polls.get() > 2
        };
        assert!((0..CREDIT).all(|_| looked()));
        let tried = (0..TRIES_EVERY).filter(|_| looked()).count();
        assert_eq!(tried, 1);
        patience.found();
        assert!(looked(), "what was found is credit");
    }

    #[test]
    fn a_worker_that_sleeps_at_once_does_so_here() {
        let polls = Cell::new(0);
        let is_over = block_on(async {
            let patience = Patience::new(false);
            let wait = patience.wait(ready_at(3, &polls));
            tokio::time::timeout(Duration::from_millis(2), wait).await
        });
        assert!(is_over.is_err() && polls.get() <= 2);
    }
}
