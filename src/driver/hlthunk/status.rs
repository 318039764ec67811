//! What the library's error numbers mean, and what helps.
//!
//! The tables are those of the kernel's driver (Linux 6.12, `drivers/accel/habanalabs`): opening refuses with `EBUSY`, `EAGAIN` or `EPERM`;
//! every other call says `EBUSY` while the card is not in operation, which for its owner means that it is being reset.

use std::{error::Error as StdError, fmt, io};

use crate::error::{Error, ErrorKind, Result};

/// An error number that a call ended with. The source of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Errno(pub(crate) i32);

/// What was asked of the card, as numbers mean different things to different calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// To open it.
    Open,
    /// What it is: a call that every state answers.
    Info,
    /// Memory, submissions and waits.
    Work,
}

impl Errno {
    /// The number of a result that is an error; `None` for success and for values.
    pub(super) fn from_result(result: i32) -> Option<Self> {
        (result < 0).then(|| Self(result.checked_neg().unwrap_or(libc::EIO)))
    }

    /// The one that a call left which returned 0 for an address. The caller has cleared it before.
    pub(super) fn left() -> Self {
        Self(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// The number that an error stems from, if it stems from one.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        error.get_ref()?.downcast_ref::<Self>().copied()
    }

    /// Kind, phrase and remedy.
    const fn meaning(self, asked: Asked) -> (ErrorKind, &'static str) {
        match (asked, self.0) {
            (Asked::Open, libc::EBUSY) => (
                ErrorKind::Exhausted,
                "another process has the card; end it (hl-smi shows it), or choose another card",
            ),
            (Asked::Open, libc::EAGAIN) => (
                ErrorKind::WouldBlock,
                "the card is being reset or still given back by its last user; try again in some seconds",
            ),
            (Asked::Open, libc::EPERM) => (
                ErrorKind::DeviceLost,
                "the card is not in operation; the administrator must reset it (hl-smi shows its state)",
            ),
            (Asked::Open, libc::ENOENT | libc::ENODEV | libc::ENXIO | libc::EINVAL) => (
                ErrorKind::InvalidArgument,
                "there is no such card (hl-smi lists them; a container may hide some)",
            ),
            (_, libc::EACCES) => (
                ErrorKind::PermissionDenied,
                "the card's node may not be opened; give this user the right to it",
            ),
            (Asked::Work, libc::EBUSY | libc::EIO | libc::ENODEV) => (
                ErrorKind::DeviceLost,
                "the card is being reset: close it and open it again",
            ),
            (Asked::Work, libc::ETIMEDOUT) => (
                ErrorKind::DeviceLost,
                "the card did not end the work in time and is being reset: close it and open it again",
            ),
            (_, libc::ENOMEM) => (ErrorKind::Exhausted, "no memory is left for it"),
            (_, libc::EMFILE | libc::ENFILE) => {
                (ErrorKind::Exhausted, "no file descriptor is left for it")
            }
            (_, libc::ENOSPC) => (ErrorKind::Exhausted, "no room is left for it"),
            (Asked::Work, libc::EPERM) => {
                (ErrorKind::PermissionDenied, "the card's driver forbids it")
            }
            (Asked::Work, libc::EFAULT) => (
                ErrorKind::InvalidArgument,
                "the memory is not there, or may not be written",
            ),
            (_, libc::EINVAL) => (
                ErrorKind::InvalidArgument,
                "the card's driver does not take it",
            ),
            (_, libc::EBADF) => (ErrorKind::Closed, "the card is closed"),
            (_, libc::ENOTTY) => (
                ErrorKind::Unsupported,
                "the library and the kernel's driver do not belong together: install both of one release",
            ),
            (_, libc::EOPNOTSUPP | libc::ENOSYS) => (
                ErrorKind::Unsupported,
                "this card or driver does not have it",
            ),
            _ => (ErrorKind::Io, "it failed"),
        }
    }

    /// The error of `call` on `card`.
    #[cold]
    pub(super) fn error(self, asked: Asked, card: &dyn fmt::Display, call: &str) -> Error {
        let (kind, phrase) = self.meaning(asked);
        Error::new(kind, format!("{card}: {call}: {phrase} ({self})")).with_source(self)
    }
}

/// A result that is negative for an error.
/// Errors: that of the number.
pub(super) fn check(result: i32, asked: Asked, card: &dyn fmt::Display, call: &str) -> Result<i32> {
    match Errno::from_result(result) {
        None => Ok(result),
        Some(errno) => Err(errno.error(asked, card, call)),
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("the library gives no reason");
        }
        write!(f, "{}", io::Error::from_raw_os_error(self.0))
    }
}

impl StdError for Errno {}
