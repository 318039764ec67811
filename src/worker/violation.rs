//! What a peer did that the protocol does not allow.

use crate::error::{Error, ErrorKind};

#[cold]
pub(crate) fn violation(message: &'static str) -> Error {
    Error::new(ErrorKind::Protocol, message)
}
