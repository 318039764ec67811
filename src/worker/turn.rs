//! How long wharf may keep a thread from its runtime's driver: its timers and sockets.
//!
//! A runtime of Tokio's looks at them when no task is ready, or after 61 polls. A poll that finds one thing after the other, or looks for them, lasts
//! for as long as Tokio's budget lets it, which counts and does not look at the clock. So the time that the worker's futures take on a thread is
//! counted from the driver's last turn. When it is over, whoever completes something loses what is left of its task's budget, so that the task gives
//! way at its next operation, and nobody spins any more, until the driver has had its turn.
//!
//! The driver's turn is seen by a waker of this file's: what Tokio defers for a task that gives way, it wakes after that turn.

use std::{
    cell::Cell,
    future::Future,
    pin::pin,
    sync::{Arc, OnceLock},
    task::{Context as TaskContext, Poll, Wake, Waker, ready},
    time::{Duration, Instant},
};

use tokio::task::coop;

/// What a turn may take. The driver's own takes a microsecond or two when nothing is due.
const TURN: Duration = Duration::from_millis(1);

/// A driver that has not had its turn by then is that of a runtime that is gone.
const LOST: Duration = Duration::from_millis(100);

/// Completions that needed no wait, between two looks at the runtime's own budget and at the clock.
pub(super) const EVERY: u32 = 32;

/// More than any task's budget.
const BUDGET: usize = 256;

#[derive(Clone, Copy)]
enum Turn {
    /// Nothing has been counted since the driver's last turn.
    New,
    Since(Instant),
    /// The driver is to have its turn; asked for then.
    Over(Instant),
}

thread_local! {
    static THIS: Cell<Turn> = const { Cell::new(Turn::New) };
    /// Ends of posted operations that were told on this thread.
    static ENDED: Cell<u32> = const { Cell::new(0) };
}

/// Whether the driver is to have its turn before this thread goes on looking.
#[inline]
pub(crate) fn is_over(now: Instant) -> bool {
    match THIS.get() {
        Turn::New => {
            THIS.set(Turn::Since(now));
            false
        }
        Turn::Since(since) if now.saturating_duration_since(since) < TURN => false,
        Turn::Over(since) if now.saturating_duration_since(since) < LOST => true,
        Turn::Since(_) | Turn::Over(_) => {
            end(now);
            true
        }
    }
}

/// Something has been completed. Takes what is left of the task's budget, when the turn is over.
#[inline]
pub(crate) fn completed(now: Instant, cx: &mut TaskContext<'_>) {
    if is_over(now) {
        spend(cx);
    }
}

/// Whether a task may be told the end of an operation that was over when it was posted. Of such ends, too, only every so many-th is counted.
#[inline]
pub(crate) fn may_be_told(cx: &mut TaskContext<'_>) -> Poll<()> {
    let ended = ENDED.get().wrapping_add(1);
    ENDED.set(ended);
    match ended.is_multiple_of(EVERY) {
        true => told(cx),
        false => Poll::Ready(()),
    }
}

#[cold]
fn told(cx: &mut TaskContext<'_>) -> Poll<()> {
    ready!(coop::poll_proceed(cx)).made_progress();
    completed(Instant::now(), cx);
    Poll::Ready(())
}

/// Wakes the task once the others, and the driver, have had their turn.
#[cold]
pub(crate) fn give_way(cx: &mut TaskContext<'_>) {
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}

#[cold]
fn spend(cx: &mut TaskContext<'_>) {
    for _ in 0..BUDGET {
        if !coop::has_budget_remaining() {
            break;
        }
        if let Poll::Ready(taken) = coop::poll_proceed(cx) {
            taken.made_progress();
        }
    }
}

#[cold]
fn end(now: Instant) {
    static NEXT: OnceLock<Waker> = OnceLock::new();
    THIS.set(Turn::Over(now));
    let next = NEXT.get_or_init(|| Waker::from(Arc::new(Next)));
    // Deferred until after the driver's turn; outside a runtime, woken at once.
    give_way(&mut TaskContext::from_waker(next));
}

/// The driver has had its turn on this thread.
struct Next;

impl Wake for Next {
    fn wake(self: Arc<Self>) {
        THIS.set(Turn::New);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        THIS.set(Turn::New);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
    }

    #[test]
    fn a_turn_ends_and_the_drivers_begins_another() {
        runtime().block_on(async {
            THIS.set(Turn::New);
            let now = Instant::now();
            assert!(!is_over(now));
            assert!(!is_over(now + TURN / 2));
            assert!(is_over(now + TURN));
            assert!(is_over(now + TURN), "until the driver has had its own");
            tokio::task::yield_now().await;
            assert!(!is_over(now + 2 * TURN));
        });
    }

    #[test]
    fn whoever_completes_after_it_gives_way() {
        runtime().block_on(async {
            THIS.set(Turn::New);
            let now = Instant::now();
            std::future::poll_fn(|cx| {
                completed(now, cx);
                assert!(coop::has_budget_remaining());
                completed(now + TURN, cx);
                assert!(!coop::has_budget_remaining());
                Poll::Ready(())
            })
            .await;
            tokio::task::yield_now().await;
            assert!(coop::has_budget_remaining());
        });
    }

    #[test]
    fn who_is_told_of_many_ends_gives_way() {
        runtime().block_on(async {
            THIS.set(Turn::New);
            let mut told = 0_usize;
            std::future::poll_fn(|cx| {
                while may_be_told(cx).is_ready() {
                    told += 1;
                    assert!(told < BUDGET * EVERY as usize, "it never gives way");
                }
                Poll::Ready(())
            })
            .await;
            assert!(told >= EVERY as usize - 1, "{told}");
        });
    }

    #[test]
    fn a_runtime_that_is_gone_holds_nobody_up() {
        let now = Instant::now();
        THIS.set(Turn::Over(now));
        assert!(is_over(now + TURN));
        // Asked again, outside any runtime: at once.
        assert!(is_over(now + LOST));
        assert!(!is_over(now + LOST));
    }
}
