//! Why a stream takes or gives nothing more.

use crate::error::{Error, ErrorKind};

/// Why a stream cannot be read or written any more.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The peer reads no more.
    Stopped,
    /// The peer did not take the stream, and why.
    Refused(ErrorKind),
    /// The peer reset it.
    Reset,
    /// This side has shut it down.
    Finished,
    /// The connection has ended.
    Ended(Error),
}

impl From<Broken> for Error {
    fn from(broken: Broken) -> Self {
        let (kind, message) = match broken {
            Broken::Stopped => (
                ErrorKind::ConnectionReset,
                "the peer reads no more of the stream",
            ),
            Broken::Refused(kind) => (kind, "the peer holds no more streams that nobody accepts"),
            Broken::Reset => (ErrorKind::ConnectionReset, "the peer reset the stream"),
            Broken::Finished => (ErrorKind::Closed, "the stream was shut down for writing"),
            Broken::Ended(error) => return error.during(crate::Operation::Stream),
        };
        Self::new(kind, message).during(crate::Operation::Stream)
    }
}

impl From<Broken> for std::io::Error {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Stopped | Broken::Finished => {
                Self::new(std::io::ErrorKind::BrokenPipe, Error::from(broken))
            }
            _ => Error::from(broken).into(),
        }
    }
}
