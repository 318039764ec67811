//! Numbers and words of the interface: made of plain numbers, and as text in configuration, logs
//! and on command lines; and back.

use std::{fmt, str::FromStr};

use super::{Access, AmId, EndpointId, LinkId, Mask, Priority, Tag, WorkerId, hex};
use crate::error::{Error, ErrorKind, Operation, Result};

/// Decimal, or hexadecimal after `0x`.
pub(crate) fn number<N: TryFrom<u64>>(text: &str) -> Option<N> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    N::try_from(number.ok()?).ok()
}

#[cold]
pub(crate) fn no(what: &str, text: &str, wanted: impl fmt::Display) -> Error {
    let text = format!("{text:?} is no {what}: {wanted}");
    Error::new(ErrorKind::InvalidArgument, text).during(Operation::Configure)
}

macro_rules! numbers {
    ($($Type:ident($Number:ty), $what:literal, $form:literal;)*) => {$(
        impl From<$Number> for $Type {
            fn from(number: $Number) -> Self {
                Self(number)
            }
        }

        impl From<$Type> for $Number {
            fn from(value: $Type) -> Self {
                value.0
            }
        }

        impl fmt::Display for $Type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $form, self.0)
            }
        }

        impl FromStr for $Type {
            type Err = Error;

            /// Decimal, or hexadecimal after `0x`.
            ///
            /// # Errors
            /// `InvalidArgument`: no number, or too large a one.
            fn from_str(text: &str) -> Result<Self> {
                let found = number(text).map(Self);
                found.ok_or_else(|| no($what, text, "a number, or 0x and hexadecimal digits"))
            }
        }
    )*};
}

numbers! {
    Tag(u64), "tag", "{:#x}";
    Mask(u64), "mask", "{:#x}";
    EndpointId(u64), "endpoint", "{}";
    AmId(u16), "active message id", "{}";
    LinkId(u64), "link", "{}";
}

impl FromStr for WorkerId {
    type Err = Error;

    /// From its `Display` form, 32 hexadecimal digits.
    ///
    /// # Errors
    /// `InvalidArgument`.
    fn from_str(text: &str) -> Result<Self> {
        let found = hex::read(text).and_then(|id| id.try_into().ok()).map(Self);
        found.ok_or_else(|| no("worker", text, "32 hexadecimal digits"))
    }
}

/// Kinds, each with its word: displayed, and parsed.
macro_rules! words {
    ($Type:ident, $what:literal: $($Kind:ident = $word:literal),+ $(,)?) => {
        impl std::fmt::Display for $Type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self { $(Self::$Kind => $word,)+ })
            }
        }

        impl std::str::FromStr for $Type {
            type Err = $crate::Error;

            /// From its `Display` form.
            ///
            /// # Errors
            /// `InvalidArgument`.
            fn from_str(text: &str) -> $crate::Result<Self> {
                match text {
                    $($word => Ok(Self::$Kind),)+
                    _ => Err($crate::types::text::no($what, text, [$($word),+].join(", "))),
                }
            }
        }

        #[cfg(feature = "serde")]
        $crate::types::serial::as_text! { $Type }
    };
}
pub(crate) use words;

words! { Priority, "priority": Low = "low", Normal = "normal", High = "high" }
words! {
    Operation, "operation":
    TagSend = "tag send",
    TagRecv = "tag receive",
    AmSend = "active message send",
    AmRecv = "active message receive",
    Put = "put",
    Get = "get",
    Atomic = "atomic operation",
    Signal = "signal",
    Flush = "flush",
    Connect = "connect",
    Accept = "accept",
    Listen = "listen",
    Memory = "memory",
    Configure = "configure",
    Close = "close",
    Stream = "stream",
    Copy = "copy",
}
words! {
    ErrorKind, "kind of error":
    InvalidArgument = "invalid argument",
    Configuration = "configuration",
    Truncated = "truncated",
    Canceled = "canceled",
    DeadlineExceeded = "deadline exceeded",
    WouldBlock = "would block",
    ConnectionRefused = "connection refused",
    AddrInUse = "address in use",
    Rejected = "rejected",
    ClosedByPeer = "closed by peer",
    AbortedByPeer = "aborted by peer",
    ConnectionReset = "connection reset",
    PeerDied = "peer died",
    Closed = "closed",
    Unreachable = "unreachable",
    AuthenticationFailed = "authentication failed",
    VersionMismatch = "version mismatch",
    Protocol = "protocol",
    StaleKey = "stale key",
    OutOfBounds = "out of bounds",
    AccessDenied = "access denied",
    Malformed = "malformed",
    Exhausted = "exhausted",
    PermissionDenied = "permission denied",
    DeviceLost = "device lost",
    Forked = "forked",
    Unsupported = "unsupported",
    Io = "io",
}

/// Flags, each with its word: displayed, and parsed.
macro_rules! flags {
    ($Type:ident, $what:literal: $($FLAG:ident = $word:literal),+ $(,)?) => {
        impl std::fmt::Display for $Type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let known = [$((Self::$FLAG, $word)),+].into_iter();
                let set = known.filter(|(flag, _)| self.contains(*flag));
                let words: Vec<&str> = set.map(|(_, word)| word).collect();
                f.pad(match &*words.join("+") {
                    "" => "none",
                    words => words,
                })
            }
        }

        impl std::str::FromStr for $Type {
            type Err = $crate::Error;

            /// From its `Display` form: words with `+` between them, or `none`.
            ///
            /// # Errors
            /// `InvalidArgument`.
            fn from_str(text: &str) -> $crate::Result<Self> {
                if text == "none" {
                    return Ok(Self::empty());
                }
                text.split('+').try_fold(Self::empty(), |flags, word| match word {
                    $($word => Ok(flags | Self::$FLAG),)+
                    _ => {
                        let words = [$($word),+].join(", ");
                        let wanted = format!("some of {words}, with + between them");
                        Err($crate::types::text::no($what, text, wanted))
                    }
                })
            }
        }

        #[cfg(feature = "serde")]
        $crate::types::serial::as_text! { $Type }
    };
}
pub(crate) use flags;

flags! {
    Access, "access":
    READ = "read",
    WRITE = "write",
    DEVICE_ATOMIC = "device-atomic",
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back<T: FromStr<Err = Error> + fmt::Display + PartialEq + fmt::Debug>(values: &[T]) {
        for value in values {
            assert_eq!(
                &value.to_string().parse::<T>().expect("its own text"),
                value
            );
        }
    }

    fn refused<T: FromStr<Err = Error> + fmt::Debug>(texts: &[&str]) {
        for text in texts {
            let error = text.parse::<T>().expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }

    #[test]
    fn as_text_and_back() {
        back(&[Tag(0), Tag(7), Tag(u64::MAX)]);
        back(&[Mask::ALL, Mask::NONE]);
        back(&[EndpointId(3)]);
        back(&[AmId(0), AmId(u16::MAX)]);
        back(&[LinkId(1 << 40)]);
        back(&[WorkerId([0; 16]), WorkerId([0xab; 16])]);
        back(&[Priority::Low, Priority::Normal, Priority::High]);
        back(&[
            Access::empty(),
            Access::READ,
            Access::READ | Access::WRITE,
            Access::all() | Access::DEVICE_ATOMIC,
        ]);
        assert_eq!("12".parse::<Tag>().expect("decimal"), Tag(12));
        assert_eq!("0xff".parse::<AmId>().expect("hexadecimal"), AmId(255));
        assert_eq!((Access::READ | Access::WRITE).to_string(), "read+write");
    }

    #[test]
    fn what_is_none() {
        refused::<Tag>(&["", "x", "-1", "0x", "0xg", "18446744073709551616"]);
        refused::<AmId>(&["65536"]);
        refused::<WorkerId>(&["", "ab", "+0000000000000000000000000000000", "é"]);
        refused::<Priority>(&["", "Low", "urgent"]);
        refused::<Access>(&["", "read,write", "read+", "all"]);
    }
}
