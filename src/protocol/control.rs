//! The messages of a link: what their id, their 64-bit header and their body say.
//!
//! "Key" is an [`OpKey`](crate::types::OpKey), an entry in the table of operations of the worker that is named; a key that
//! comes back is looked up, never trusted. Bodies have a fixed size; where the table says "+ payload", the payload follows the body.
//!
//! | id | header | body | meaning |
//! |---|---|---|---|
//! | [`TAG_EAGER`] | tag | payload | a whole message |
//! | [`TAG_EAGER_SYNC`] | tag | [`EagerSync`] + payload | the same; the sender wants [`SYNC_ACK`] when it matched |
//! | [`RTS`] | tag | [`Rts`] | ready to send: a message that waits at its sender until it matched |
//! | [`RTR`] | 0 | [`Rtr`] | ready to receive: it matched, the sender shall move it |
//! | [`FRAGMENT`] | receiver's key | [`Fragment`] + payload | a part of a message that was asked for by [`RTR`] |
//! | [`TRANSFER_DONE`] | key of the one told | [`TransferDone`] | whoever moved the bytes is done |
//! | [`COPY_JOIN`] | 0 | [`CopyJoin`] | the receiver copies and asks the sender to copy a share |
//! | [`SYNC_ACK`] | sender's key | none | an [`TAG_EAGER_SYNC`] matched |
//! | [`PUT`] | initiator's key | [`PutHeader`] + payload | write into an exposed region |
//! | [`PUT_ACK`] | initiator's key | none | it is visible there |
//! | [`GET_REQUEST`] | initiator's key | [`GetRequest`] | read from an exposed region |
//! | [`GET_REPLY`] | initiator's key | [`Fragment`] + payload | a part of what was read |
//! | [`NACK`] | 0 | [`Nack`] | an operation failed at the other end |
//! | [`MAP_REQUEST`] | initiator's key | [`MapRequest`] | asks for a shared-memory segment to map |
//! | [`CREDIT`] | 0 | [`Credit`] | how much the sender of this has taken so far |
//! | [`CLOSE`] | 0 | none | nothing more follows from this end |
//!
//! What does not fit is an error of kind `Protocol`, and ends the link.

use crate::error::{Error, ErrorKind, Result};

pub(crate) const TAG_EAGER: u8 = 1;
pub(crate) const TAG_EAGER_SYNC: u8 = 2;
pub(crate) const RTS: u8 = 3;
pub(crate) const RTR: u8 = 4;
pub(crate) const FRAGMENT: u8 = 5;
pub(crate) const TRANSFER_DONE: u8 = 6;
pub(crate) const SYNC_ACK: u8 = 7;
pub(crate) const PUT: u8 = 8;
pub(crate) const PUT_ACK: u8 = 9;
pub(crate) const GET_REQUEST: u8 = 10;
pub(crate) const GET_REPLY: u8 = 11;
pub(crate) const NACK: u8 = 12;
pub(crate) const MAP_REQUEST: u8 = 13;
pub(crate) const CREDIT: u8 = 14;
pub(crate) const CLOSE: u8 = 15;
pub(crate) const COPY_JOIN: u8 = 16;

/// Declares a body: its fields in the order of the wire, without padding.
macro_rules! body {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name {
            $($(#[$field_doc])* pub(crate) $field: $kind,)+
        }

        impl $name {
            /// Bytes on the wire.
            pub(crate) const SIZE: usize = 0 $(+ size_of::<$kind>())+;

            pub(crate) fn encode(&self) -> [u8; Self::SIZE] {
                let mut out = [0; Self::SIZE];
                let mut rest = &mut out[..];
                $(
                    let (place, after) = rest.split_at_mut(size_of::<$kind>());
                    place.copy_from_slice(&self.$field.to_le_bytes());
                    rest = after;
                )+
                debug_assert!(rest.is_empty());
                out
            }

            /// Reads a body that is all there is.
            ///
            /// # Errors
            /// `Protocol` when there is less or more.
            pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
                match Self::split(bytes)? {
                    (body, []) => Ok(body),
                    _ => Err(wrong_size(stringify!($name))),
                }
            }

            /// Reads a body and gives the payload behind it.
            ///
            /// # Errors
            /// `Protocol` when the body is cut short.
            pub(crate) fn split(bytes: &[u8]) -> Result<(Self, &[u8])> {
                let rest = bytes;
                $(
                    let Some(($field, rest)) = rest.split_first_chunk() else {
                        return Err(wrong_size(stringify!($name)));
                    };
                )+
                Ok((Self { $($field: <$kind>::from_le_bytes(*$field),)+ }, rest))
            }
        }
    };
}

body! {
    /// In front of the payload of a [`TAG_EAGER_SYNC`].
    EagerSync {
        /// Sender's key.
        op: u64,
    }
}

body! {
    /// A message that waits at its sender. Its tag is the header.
    Rts {
        /// Sender's key.
        op: u64,
        /// Bytes of the message.
        length: u64,
        /// Where it lies, as the sender addresses it; 0 when it may not be read there.
        address: u64,
        /// Segment that it lies in, by the sender's number; 0 for none.
        segment: u64,
        /// Where in the segment.
        segment_offset: u64,
        /// Place for a shared copy on the link, by the sender's choice; `u32::MAX` for none.
        slot: u32,
        /// Bits of [`rts_flag`].
        flags: u32,
    }
}

/// Bits of [`Rts::flags`]; others are ignored.
pub(crate) mod rts_flag {
    /// The receiver may read the message by its address.
    pub(crate) const READABLE: u32 = 1;
    /// The receiver may map the segment.
    pub(crate) const MAPPABLE: u32 = 2;
}

body! {
    /// The receive that a message of [`RTS`] matched.
    Rtr {
        /// Sender's key, from the RTS.
        sender_op: u64,
        /// Receiver's key.
        receiver_op: u64,
        /// Where the message goes, as the receiver addresses it; 0 when it may not be written there.
        address: u64,
        /// How many bytes are wanted; never more than the RTS said.
        length: u64,
        /// Segment that it goes to, by the receiver's number; 0 for none.
        segment: u64,
        /// Where in the segment.
        segment_offset: u64,
        /// Place for a shared copy on the link; `u32::MAX` for none.
        slot: u32,
        /// How it shall move: a value of [`scheme`].
        scheme: u32,
    }
}

/// Values of [`Rtr::scheme`].
pub(crate) mod scheme {
    /// As [`FRAGMENT`](super::FRAGMENT) messages.
    pub(crate) const FRAGMENTS: u32 = 0;
    /// The sender writes it to the receiver's address.
    pub(crate) const WRITE: u32 = 1;
    /// Both ends copy, chunk by chunk, from a shared counter.
    pub(crate) const SHARED_COPY: u32 = 2;
}

body! {
    /// In front of the payload of a [`FRAGMENT`] or a [`GET_REPLY`].
    Fragment {
        /// Where it belongs in the message, in bytes from its beginning.
        offset: u64,
    }
}

body! {
    /// The end of a transfer that one end made alone.
    TransferDone {
        /// How many bytes were moved.
        length: u64,
    }
}

body! {
    /// The receiver has begun to copy and asks the sender for its share.
    CopyJoin {
        /// Sender's key, from the RTS.
        sender_op: u64,
        /// Receiver's key.
        receiver_op: u64,
        /// Where the message goes, as the receiver addresses it.
        address: u64,
        /// Bytes in all.
        length: u64,
        /// Where on the link the shared counter is.
        slot: u32,
        /// Bytes of one step of the counter.
        chunk: u32,
    }
}

body! {
    /// Where the payload of a [`PUT`] goes. The owner checks every part.
    PutHeader {
        /// Place in the owner's table of regions.
        region_slot: u32,
        /// 0; ignored.
        pad: u32,
        /// Generation of that place.
        generation: u64,
        /// Where in the region, in bytes.
        offset: u64,
    }
}

body! {
    /// What a [`GET_REQUEST`] wants. The owner checks every part.
    GetRequest {
        /// Place in the owner's table of regions.
        region_slot: u32,
        /// 0; ignored.
        pad: u32,
        /// Generation of that place.
        generation: u64,
        /// Where in the region, in bytes.
        offset: u64,
        /// How many bytes.
        length: u64,
    }
}

body! {
    /// An operation failed at the other end.
    Nack {
        /// Key of the operation, at the one who is told.
        op: u64,
        /// Why, as [`error_kind_code`] writes it.
        kind: u16,
    }
}

impl Nack {
    pub(crate) fn new(op: u64, kind: ErrorKind) -> Self {
        Self {
            op,
            kind: error_kind_code(kind),
        }
    }

    /// Why the operation failed.
    pub(crate) fn error_kind(&self) -> ErrorKind {
        error_kind(self.kind)
    }
}

body! {
    /// Asks for a segment; it comes over the Unix socket of the connection.
    MapRequest {
        /// The owner's number of the segment.
        segment: u64,
    }
}

body! {
    /// What has been taken since the link was made. Totals, so that a repeated or late message changes nothing.
    Credit {
        /// Messages; counts around.
        messages: u64,
        /// Bytes; counts around.
        bytes: u64,
    }
}

#[cold]
fn wrong_size(what: &'static str) -> Error {
    Error::new(
        ErrorKind::Protocol,
        format!("a {what} body has the wrong size"),
    )
}

/// Declares the numbers of the kinds of errors, once for both directions.
macro_rules! error_codes {
    ($($code:literal => $kind:ident,)+) => {
        /// The number of a kind of error on the wire.
        pub(crate) const fn error_kind_code(kind: ErrorKind) -> u16 {
            match kind {
                $(ErrorKind::$kind => $code,)+
            }
        }

        /// The kind of error of a number from the wire; `Protocol` when it is not known here.
        pub(crate) const fn error_kind(code: u16) -> ErrorKind {
            match code {
                $($code => ErrorKind::$kind,)+
                _ => ErrorKind::Protocol,
            }
        }

        #[cfg(test)]
        const CODES: &[(u16, ErrorKind)] = &[$(($code, ErrorKind::$kind),)+];
    };
}

// Numbers are never used again for something else.
error_codes! {
    1 => InvalidArgument,
    2 => Configuration,
    3 => Truncated,
    4 => Canceled,
    5 => DeadlineExceeded,
    6 => WouldBlock,
    7 => ConnectionRefused,
    8 => Rejected,
    9 => ConnectionReset,
    10 => PeerDied,
    11 => Closed,
    12 => Unreachable,
    13 => AuthenticationFailed,
    14 => VersionMismatch,
    15 => Protocol,
    16 => StaleKey,
    17 => OutOfBounds,
    18 => AccessDenied,
    19 => Malformed,
    20 => Exhausted,
    21 => PermissionDenied,
    22 => Unsupported,
    23 => Io,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::wire::tests::refuses_truncation;

    /// For each body: random bytes of its size are a body, go round, and are nothing when cut or with more behind.
    macro_rules! goes_round {
        ($($test:ident: $body:ident of $size:literal,)+) => {
            proptest! {$(
                #[test]
                fn $test(
                    bytes in prop::collection::vec(any::<u8>(), $body::SIZE),
                    payload in prop::collection::vec(any::<u8>(), 1..20),
                ) {
                    prop_assert_eq!($body::SIZE, $size);
                    let body = $body::decode(&bytes).unwrap();
                    prop_assert_eq!(&body.encode()[..], &bytes[..]);
                    refuses_truncation(&bytes, $body::decode);
                    refuses_truncation(&bytes, |bytes| $body::split(bytes).map(|_| ()));
                    let more = [&bytes[..], &payload].concat();
                    prop_assert_eq!($body::decode(&more).unwrap_err().kind(), ErrorKind::Protocol);
                    prop_assert_eq!($body::split(&more).unwrap(), (body, &payload[..]));
                }
            )+}
        };
    }

    goes_round! {
        eager_sync: EagerSync of 8,
        rts: Rts of 48,
        rtr: Rtr of 56,
        fragment: Fragment of 8,
        transfer_done: TransferDone of 8,
        copy_join: CopyJoin of 40,
        put_header: PutHeader of 24,
        get_request: GetRequest of 32,
        nack: Nack of 10,
        map_request: MapRequest of 8,
        credit: Credit of 16,
    }

    #[test]
    fn fields_lie_as_declared_and_little_endian() {
        let put = PutHeader {
            region_slot: 1,
            pad: 0,
            generation: 2,
            offset: 0x0304,
        };
        let mut expected = [0; 24];
        expected[0] = 1;
        expected[8] = 2;
        expected[16] = 4;
        expected[17] = 3;
        assert_eq!(put.encode(), expected);
    }

    #[test]
    fn ids_are_distinct() {
        let ids = [
            TAG_EAGER,
            TAG_EAGER_SYNC,
            RTS,
            RTR,
            FRAGMENT,
            TRANSFER_DONE,
            SYNC_ACK,
            PUT,
            PUT_ACK,
            GET_REQUEST,
            GET_REPLY,
            NACK,
            MAP_REQUEST,
            CREDIT,
            CLOSE,
            COPY_JOIN,
        ];
        let distinct: std::collections::BTreeSet<u8> = ids.into();
        assert_eq!(distinct.len(), ids.len());
    }

    #[test]
    fn error_kinds_go_round_and_unknown_ones_are_protocol_errors() {
        for &(code, kind) in CODES {
            assert_eq!(error_kind_code(kind), code);
            assert_eq!(error_kind(code), kind);
        }
        assert_eq!(error_kind(0), ErrorKind::Protocol);
        assert_eq!(error_kind(u16::MAX), ErrorKind::Protocol);
        assert_eq!(
            Nack::new(7, ErrorKind::StaleKey).error_kind(),
            ErrorKind::StaleKey
        );
    }
}
