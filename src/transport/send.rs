//! What became of a send.

use std::{error::Error as StdError, fmt};

use crate::{error::Error, types::text::words};

/// Why a send did not happen.
#[derive(Debug)]
pub enum SendError {
    /// No room now. Nothing was taken; [`Sink::writable`](super::Sink::writable) will tell.
    Full,
    /// The link is dead.
    Failed(Error),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("no room now"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl StdError for SendError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Full => None,
            Self::Failed(error) => error.source(),
        }
    }
}

/// What became of a zero-copy send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zcopy {
    /// The source may be reused at once; no completion follows.
    Done,
    /// [`Sink::sent`](super::Sink::sent) will be called with the token.
    Pending,
}

words! { Zcopy, "end of a send": Done = "done", Pending = "pending" }
