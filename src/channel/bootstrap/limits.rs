//! What a group may be and may send, and how long it waits.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};

/// Longest message, and longest contribution to an all-gather, in bytes.
pub const MAX_MESSAGE: usize = 4 << 20;
/// Most bytes that one all-gather brings together.
pub const MAX_GATHER: usize = 64 << 20;
/// Tags from here on are for what is built on a bootstrap: communicators, barriers of a part of the group.
pub const TAGS: u64 = 1 << 62;
/// How long a wait takes at most, where nobody says.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// Largest group.
pub const MAX_SIZE: usize = 1 << 16;

/// The moment that far from now; a year at most.
pub(crate) fn after(time: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + time.min(YEAR)
}

/// Says no to a rank outside the group.
pub(crate) fn check_rank(rank: usize, size: usize) -> Result<()> {
    if rank < size {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("there is no rank {rank} in a group of {size}"),
    ))
}

/// Says no to a group of none, or of too many.
pub(super) fn check_size(size: usize) -> Result<()> {
    if (1..=MAX_SIZE).contains(&size) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("a group has 1 to {MAX_SIZE} ranks, not {size}"),
    ))
}

/// Says no where there is no Tokio runtime.
pub(super) fn check_runtime() -> Result<()> {
    tokio::runtime::Handle::try_current()
        .map(drop)
        .map_err(|error| {
            Error::new(
                ErrorKind::InvalidArgument,
                "a bootstrap needs a Tokio runtime",
            )
            .with_source(error)
        })
}
