//! Sends that are tried at once, before they take a place in the table of operations.

use std::task::{Context, Poll};

use parking_lot::MutexGuard;

use crate::{
    error::Result,
    worker::{engine::Engine, operations::Outcome, shared::Shared},
};

use super::operation::Entered;

/// Looks for room before a send waits in the table, and pauses between two of them.
const ROOM_LAPS: u32 = 16;
const ROOM_PAUSES: u32 = 96;

/// How trying to send at once went.
pub(super) enum Attempt {
    Over(Result<()>),
    /// No room, or no credit, now.
    Full,
    /// Not a message for this way.
    No,
}

/// Tries, and again for a moment while there is no room: a full link that the peer is emptying has room again in less time than it takes to
/// enter the table.
#[inline]
pub(super) fn persist(engine: &mut Engine, attempt: impl Fn(&mut Engine) -> Attempt) -> Attempt {
    let mut tried = attempt(engine);
    for _ in 0..ROOM_LAPS {
        if !matches!(tried, Attempt::Full) {
            break;
        }
        for _ in 0..ROOM_PAUSES {
            std::hint::spin_loop();
        }
        engine.progress();
        tried = attempt(engine);
    }
    tried
}

/// Ends the poll of a send that is over, and lets go of the engine.
#[inline]
pub(super) fn conclude(
    shared: &Shared,
    engine: MutexGuard<'_, Engine>,
    cx: &mut Context<'_>,
    entered: &mut Option<Entered>,
    result: Result<()>,
) -> Poll<Result<()>> {
    shared.leave(engine);
    shared.count(cx);
    if result.is_ok() && shared.must_yield(cx) {
        // Sent first, so that sends leave in the order in which they were first polled.
        *entered = Some(Entered::over(Outcome::Done(Ok(()))));
        return Poll::Pending;
    }
    // Polled again by mistake, it must not send again.
    *entered = Some(Entered::Over(None));
    Poll::Ready(result)
}
