//! Operations that are tried at once, before they take a place in the table of operations.

use crate::{error::Result, transport::SendError, worker::engine::Engine};

/// Looks for room before a send waits in the table, and pauses between two of them.
const ROOM_LAPS: u32 = 16;
const ROOM_PAUSES: u32 = 96;
/// Passes for one that is posted.
const POSTED_LAPS: u32 = 4;

/// How trying to send at once went.
pub(super) enum Attempt {
    Over(Result<()>),
    /// No room, or no credit, now.
    Full,
    /// Not a message for this way.
    No,
}

/// What a message that was tried at once came to.
#[inline(always)]
pub(super) fn tried(result: std::result::Result<(), Option<SendError>>) -> Attempt {
    match result {
        Ok(()) => Attempt::Over(Ok(())),
        Err(Some(SendError::Full)) => Attempt::Full,
        Err(Some(SendError::Failed(error))) => Attempt::Over(Err(error)),
        Err(None) => Attempt::No,
    }
}

/// Tries again for a moment, where there was no room: a full link that the peer is emptying has room again in less time than it takes to enter
/// the table.
#[cold]
#[inline(never)]
fn persist(engine: &mut Engine, attempt: impl Fn(&mut Engine) -> Attempt) -> Attempt {
    for _ in 0..ROOM_LAPS {
        for _ in 0..ROOM_PAUSES {
            std::hint::spin_loop();
        }
        engine.progress();
        let tried = attempt(engine);
        if !matches!(tried, Attempt::Full) {
            return tried;
        }
    }
    // Who only sends never looks at its sockets, where the room that the peer gave back may be waiting to be read.
    engine.poll_fds();
    engine.progress();
    attempt(engine)
}

/// Tries it, again where there is no room. One that is posted must not be held up, so a few passes are all that it is worth to find room. Without, it
/// takes a place in the table, and a message without credit is announced, at the price of a round trip, while the credit that the peer gave back may
/// lie in a socket. The first pass leaves a socket alone that has just been read empty.
#[inline]
pub(super) fn try_send(
    engine: &mut Engine,
    is_posted: bool,
    attempt: impl Fn(&mut Engine) -> Attempt,
) -> Attempt {
    let mut tried = attempt(engine);
    if !is_posted && matches!(tried, Attempt::Full) {
        return persist(engine, attempt);
    }
    for _ in 0..POSTED_LAPS {
        if !matches!(tried, Attempt::Full) {
            break;
        }
        engine.progress();
        tried = attempt(engine);
    }
    tried
}
