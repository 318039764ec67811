//! Why a connection is closed in order, as whoever closes it says: in the bodies of `CLOSE`.
//!
//! `u8` how, and where the program gave a reason `u32` its code and the text. Nothing at all: closed, without a reason.

use crate::{
    error::{CloseReason, Error, ErrorKind, Result},
    protocol::control::error_short,
};

/// How an end came to close a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// The program said so.
    #[default]
    Closed,
    /// Its last handle was dropped.
    Dropped,
    /// The worker was shut down.
    ShutDown,
}

/// The longest goodbye.
pub(crate) const LONGEST: usize = 1 + 4 + CloseReason::LONGEST;

/// What goes before the connection does.
pub(crate) fn encode(leaves: Leaves, reason: Option<&CloseReason>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if leaves != Leaves::Closed || reason.is_some() {
        bytes.push(leaves as u8);
    }
    if let Some(reason) = reason {
        bytes.extend_from_slice(&reason.code().to_le_bytes());
        bytes.extend_from_slice(reason.text().as_bytes());
    }
    bytes
}

/// The error that a goodbye stands for at the other end.
/// Errors: `Protocol`: a part of a code.
pub(crate) fn error_of(bytes: &[u8]) -> Result<Error> {
    let (leaves, rest) = bytes.split_first().unwrap_or((&0, &[]));
    // What a later version says besides is closed in order all the same.
    let text = match leaves {
        1 => "the peer dropped the connection's last handle",
        2 => "the peer's worker was shut down",
        _ => "the peer closed the connection",
    };
    let error = Error::new(ErrorKind::ClosedByPeer, text);
    match rest.split_first_chunk() {
        Some((code, text)) => Ok(error.with_source(CloseReason::new(
            u32::from_le_bytes(*code),
            &String::from_utf8_lossy(text),
        ))),
        None if rest.is_empty() => Ok(error),
        None => Err(error_short("close")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodbyes_go_round() {
        let long = "a".repeat(300);
        for (text, kept) in [("", ""), ("no more", "no more"), (&long, &long[..255])] {
            let reason = CloseReason::new(7, text);
            let bytes = encode(Leaves::Dropped, Some(&reason));
            assert!(bytes.len() <= LONGEST);
            let error = error_of(&bytes).expect("a goodbye");
            assert_eq!(error.kind(), ErrorKind::ClosedByPeer);
            assert!(error.to_string().contains("last handle"), "{error}");
            let heard = error.close_reason().expect("a reason");
            assert_eq!((heard.code(), heard.text()), (7, kept));
        }
        assert!(encode(Leaves::Closed, None).is_empty());
        let plain = error_of(&[]).expect("a goodbye");
        assert!(plain.close_reason().is_none());
    }

    /// Whatever a peer says is a reason, or an error of the protocol; control characters do not come as far as the log.
    #[test]
    fn goodbyes_of_strangers() {
        for length in 1..4 {
            let cut = error_of(&vec![0; 1 + length]).expect_err("cut");
            assert_eq!(cut.kind(), ErrorKind::Protocol);
        }
        let error = error_of(&[0, 1, 0, 0, 0, 0xff, b'\n', 0x1b]).expect("a goodbye");
        assert_eq!(
            error.to_string(),
            "the peer closed the connection: code 1: \u{fffd}\\n\\u{1b}"
        );
    }
}
