//! Operations that are tried at once, before they take a place in the table of operations.

use std::task::{Context, Poll};

use crate::{
    error::Result,
    worker::{door::Begun, engine::Engine, operations::Outcome},
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
    if matches!(tried, Attempt::Full) {
        // Who only sends never looks at its sockets, where the room that the peer gave back may be waiting to be read.
        engine.poll_fds();
        engine.progress();
        tried = attempt(engine);
    }
    tried
}

/// How an operation began.
pub(super) enum First<T> {
    /// It is over already.
    Over(T),
    Entered(Entered),
}

/// Ends the first poll of an operation that is over. When its task is to give way first, what follows is in `entered`.
#[inline]
pub(super) fn conclude(
    begun: Begun<'_>,
    cx: &mut Context<'_>,
    entered: &mut Option<Entered>,
    result: Result<()>,
) -> Poll<Result<()>> {
    if begun.over(cx).is_pending() && result.is_ok() {
        // An error is told at once: nobody else would tell it.
        *entered = Some(Entered::over(Outcome::Done(result)));
        return Poll::Pending;
    }
    // Polled again by mistake, it must not happen again.
    *entered = Some(Entered::Over(None));
    Poll::Ready(result)
}
