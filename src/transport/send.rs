//! What became of a send.

use crate::error::Error;

/// Why a send did not happen.
#[derive(Debug)]
pub enum SendError {
    /// No room now. Nothing was taken; [`Sink::writable`](super::Sink::writable) will tell.
    Full,
    /// The link is dead.
    Failed(Error),
}

/// What became of a zero-copy send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zcopy {
    /// The source may be reused at once; no completion follows.
    Done,
    /// [`Sink::sent`](super::Sink::sent) will be called with the token.
    Pending,
}
