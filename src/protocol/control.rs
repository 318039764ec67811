//! The messages of the protocol: ids, and the fixed bodies that go with them. Little-endian; every body is copied out of the peer's
//! bytes once, field by field, and a body of another length is a protocol error.
//!
//! | id | header | body |
//! |---|---|---|
//! | `TAG_EAGER` | tag | payload |
//! | `TAG_EAGER_SYNC` | tag | `u64` operation of the sender, payload |
//! | `TAG_RTS` | tag | [`Rts`] |
//! | `TAG_LENT` | tag | [`Rts`] of a message that the window had room for, and counts against it: one that no receive waits for is copied all the same |
//! | `TAG_RTR` | operation of the sender | [`Rtr`] |
//! | `FRAGMENT` | operation of the receiver | payload; fragments of one operation arrive in order |
//! | `DONE` | operation of the peer | none: a copy is complete, a synchronous send matched |
//! | `NACK` | operation of the peer | `u16` error code, for a rejected message up to 46 bytes of text |
//! | `CANCEL` | operation of the sender | none: forget its announcement |
//! | `CANCELED` | operation of the sender | none: forgotten |
//! | `PUT` | operation of the initiator | [`PutHeader`], payload |
//! | `GET` | operation of the initiator | [`GetRequest`] |
//! | `JOIN` | operation of the initiator | [`Join`] |
//! | `MAP` | generation of the region | `u32` slot of the region: the sender has its key, and wants to be let at it directly |
//! | `CREDIT` | bytes of eager window returned | none |
//! | `CLOSE` | 0 | the (rest of the) [`goodbye`](super::goodbye): nothing new follows, and what was announced is matched no more |
//! | `CLOSE` | 1 | none: all before the peer's `CLOSE` was read, and nothing follows |
//! | `CLOSE` | 2 | a part of the goodbye; the next follows |
//! | `CLOSE` | 3 | none: the connection is aborted |
//! | `STREAM_OPEN` | stream ([`StreamName`](super::stream::StreamName)) | none |
//! | `STREAM_ACCEPTED` | number of streams accepted since the last | none; a `STREAM_WINDOW` gives each the rest of its window |
//! | `STREAM_DATA` | stream | payload |
//! | `STREAM_FIN` | stream | none: no data follow |
//! | `STREAM_WINDOW` | stream | `u64` bytes of window returned |
//! | `STREAM_STOP` | stream | none: the receiver reads no more; or 2 bytes, the number of an error kind: it never took the stream |
//! | `STREAM_RESET` | stream | none: no data follow, and those unread are void |
//! | `STREAM_RTS` | stream | [`StreamRts`]: the next bytes wait in the sender's memory, and nothing but `STREAM_RESET` follows before `STREAM_TAKEN` |
//! | `STREAM_TAKEN` | stream | `u64` bytes taken out of that memory; when they are not all, the rest is to be sent as `STREAM_DATA` |
//! | `AM_EAGER` | [`am::word`] | the user's header, payload |
//! | `AM_RTS` | [`am::word`] | [`Rts`], the user's header |
//! | `AM_CREDIT` | [`am::credit`] | `u64` bytes: so many messages more of that id, and so many bytes of those that go unasked |
//! | `AM_REFUSED` | [`am::credit`] | `u64` bytes: nobody receives that id; messages thrown away, their credits and bytes returned |
//! | `ATOMIC` | operation of the initiator | [`Atomic`]; answered by `FETCHED`, or by `DONE` when the old value is not asked for |
//! | `FETCHED` | operation of the initiator | `u64` old value |
//! | `SIGNAL` | none | [`Signal`]; not answered. Of 0: wakes who waits |
//! | `SETTLE` | operation of the peer | none: answered by `DONE`, or by `NACK` when a `SIGNAL` since the last was refused |
//! | `PUT_LAYOUT` | operation of the initiator | [`LayoutHeader`], [strided form](super::layout::Strided::form) or a list of blocks, payload of all blocks |
//! | `GET_LAYOUT` | operation of the initiator | [`LayoutHeader`], [strided form](super::layout::Strided::form) or a list of blocks |
//! | `PULL` | operation of the peer that has bytes: an announced send or put | [`Pull`]; answered by `FRAGMENT`s, or by `NACK` |
//! | `PUT_RTS` | operation of the initiator | [`PutRts`], and with 3 a [`Signal`]: the owner pulls the bytes, and says `DONE` or `NACK` |
//! | `LAYOUT_RTS` | operation of the initiator | [`LayoutHeader`] with 1, or with 3 a [`Signal`], and [strided form](super::layout::Strided::form) or a list of blocks: as `PUT_RTS`; part by part, each after the `DONE` of the one before; counts among the requests for blocks that may be unanswered at a time |
//! | `ROUTE` | operation of the peer that has bytes, or 0 for a region's | [`Route`]; answered by `ROUTED` |
//! | `ROUTED` | operation of the receiver | a loan, u64, and a descriptor of its memory: ended by `DONE` for the loan; or 0 and the reason why there is none |
//! | `ASK_KEYS` | operation of the sender | `u64` operation of the receiver: asks for the keys of what was announced; answered by `KEYS`, or by `FRAGMENT`s |
//! | `KEYS` | operation of the receiver | the keys |
//! | `WRITE` | operation of the sender | `u64` operation of the receiver, `u64` address, keys: asks for the bytes to be written there; answered by `DONE` when they are, or by `FRAGMENT`s |
//! | `LAYOUT_DATA` | operation of the initiator | [`LayoutAnswer`], bytes of the blocks |
//! | `MOVED` | operation of the peer | `u16`: so many times [`TOLD`](super::plan::TOLD) bytes of it have been moved by this side alone; sent where there is room, or not at all |
//!
//! Numbers 16 to 19 are those of active messages, 20 to 27 and 36 of streams, 28 to 31 of atomics and signals, 32 to 35 of layouts, 37 to 40 of
//! transfers that the receiver pulls, 41 to 43 of those by network devices; 44 is news of both; 45 belongs to 1 to 15. Keys are a `u64` device and a `u32` key each.

use std::borrow::Cow;

#[cfg(doc)]
use crate::protocol::am;
use crate::{
    error::{Error, ErrorKind, Result},
    types::DeviceKey,
};

pub(crate) const TAG_EAGER: u8 = 1;
pub(crate) const TAG_EAGER_SYNC: u8 = 2;
pub(crate) const TAG_RTS: u8 = 3;
pub(crate) const TAG_LENT: u8 = 45;
pub(crate) const TAG_RTR: u8 = 4;
pub(crate) const FRAGMENT: u8 = 5;
pub(crate) const DONE: u8 = 6;
pub(crate) const NACK: u8 = 7;
pub(crate) const CANCEL: u8 = 8;
pub(crate) const CANCELED: u8 = 9;
pub(crate) const PUT: u8 = 10;
pub(crate) const GET: u8 = 11;
pub(crate) const JOIN: u8 = 12;
pub(crate) const MAP: u8 = 13;
pub(crate) const CREDIT: u8 = 14;
pub(crate) const CLOSE: u8 = 15;
/// The longest body of a message that may have to wait for room.
pub(crate) const BODY: usize = 48;
pub(crate) const STREAM_OPEN: u8 = 20;
pub(crate) const STREAM_DATA: u8 = 21;
pub(crate) const STREAM_FIN: u8 = 22;
pub(crate) const STREAM_WINDOW: u8 = 23;
pub(crate) const STREAM_STOP: u8 = 24;
pub(crate) const STREAM_RESET: u8 = 25;
pub(crate) const STREAM_RTS: u8 = 26;
pub(crate) const STREAM_ACCEPTED: u8 = 27;
pub(crate) const STREAM_TAKEN: u8 = 36;
pub(crate) const PULL: u8 = 37;
pub(crate) const PUT_RTS: u8 = 38;
pub(crate) const ROUTE: u8 = 39;
pub(crate) const ROUTED: u8 = 40;
pub(crate) const ASK_KEYS: u8 = 41;
pub(crate) const KEYS: u8 = 42;
pub(crate) const WRITE: u8 = 43;
pub(crate) const MOVED: u8 = 44;

/// In [`PutRts::last`]: the bytes are in memory that the initiator's host does not reach.
pub(crate) const OF_DEVICE: u32 = 4;
/// The same: they may not stop in host memory, so that the way to them is asked for whatever their length.
pub(crate) const UNSTAGED: u32 = 8;
pub(crate) const AM_EAGER: u8 = 16;
pub(crate) const AM_RTS: u8 = 17;
pub(crate) const AM_CREDIT: u8 = 18;
pub(crate) const AM_REFUSED: u8 = 19;
pub(crate) const PUT_LAYOUT: u8 = 32;
pub(crate) const GET_LAYOUT: u8 = 33;
pub(crate) const LAYOUT_DATA: u8 = 34;
pub(crate) const LAYOUT_RTS: u8 = 35;

/// In [`Rts::segment`]: the message is a list of pieces. `address` is that of a table of their addresses and lengths, and
/// `segment_offset` the number of its entries, 0 when it is not to be read.
pub(crate) const TABLE: u64 = u64::MAX;

/// In [`Rts::segment`]: network devices of the receiver may read the message at `address`. `segment_offset` is the number of keys behind
/// the body; 0 when they are to be asked for.
pub(crate) const REGISTERED: u64 = u64::MAX - 1;

pub(crate) const ATOMIC: u8 = 28;
pub(crate) const FETCHED: u8 = 29;
pub(crate) const SIGNAL: u8 = 30;
pub(crate) const SETTLE: u8 = 31;

/// Whether a message may go before others that wait: an answer that ends or begins something on its own, and whose place among other
/// messages means nothing.
pub(crate) const fn is_answer(id: u8) -> bool {
    matches!(
        id,
        TAG_RTR
            | DONE
            | NACK
            | CANCEL
            | CANCELED
            | CREDIT
            | MAP
            | FETCHED
            | STREAM_WINDOW
            | STREAM_TAKEN
            | ASK_KEYS
            | KEYS
            | WRITE
    )
}

/// What a message counts as while it waits for room on the link. What waits of those that count is bounded, as the peer decides how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Answers what the peer says, as often as the peer says it: charged to the connection.
    Charged,
    /// This side's program brings it about, as often as the peer gives it something to take: windows, and the beginnings and ends of streams. Not
    /// charged: a limit that others have used up cuts nobody off who may go on sending.
    Counted,
    /// Of these this side decides, or another count.
    Own,
}

pub(crate) const fn waits_as(id: u8) -> Waits {
    match id {
        DONE | NACK | CANCELED | FETCHED | KEYS | AM_REFUSED | STREAM_STOP | LAYOUT_DATA => {
            Waits::Charged
        }
        CREDIT | AM_CREDIT | STREAM_ACCEPTED | STREAM_RESET | STREAM_TAKEN | STREAM_WINDOW => {
            Waits::Counted
        }
        _ => Waits::Own,
    }
}

/// No slot, no segment.
pub(crate) const NONE: u32 = u32::MAX;

macro_rules! body {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $t:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name { $($(#[$field_doc])* pub(crate) $field: $t,)* }

        impl $name {
            pub(crate) const SIZE: usize = 0 $(+ size_of::<$t>())*;

            pub(crate) fn encode(self) -> [u8; Self::SIZE] {
                let mut bytes = [0; Self::SIZE];
                let mut at = 0;
                $(
                    let end = at + size_of::<$t>();
                    bytes[at..end].copy_from_slice(&self.$field.to_le_bytes());
                    at = end;
                )*
                debug_assert_eq!(at, Self::SIZE);
                bytes
            }

            /// Reads it from the front of `bytes`.
            pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
                let rest = bytes;
                $(
                    let ($field, rest) = rest
                        .split_first_chunk()
                        .ok_or_else(|| Error::new(ErrorKind::Protocol, concat!("short ", stringify!($name))))?;
                )*
                let _ = rest;
                Ok(Self { $($field: <$t>::from_le_bytes(*$field),)* })
            }
        }
    };
}

body! {
    /// Ready to send: a message too long to send unasked.
    Rts {
        /// Operation of the sender.
        op: u64,
        /// Bytes.
        length: u64,
        /// Where they are in the sender's memory.
        address: u64,
        /// Memory segment that holds them, 0 when none does.
        segment: u64,
        /// Where in the segment.
        segment_offset: u64,
        /// Slot that both ends may count chunks in, or `NONE`.
        slot: u32,
    }
}

/// Bytes of a key.
pub(crate) const KEY: usize = 12;

/// The most keys of one announced message or answer. With two devices a transfer goes over two rails.
pub(crate) const MAX_KEYS: usize = 2;

/// The first [`MAX_KEYS`] of `keys`, as bytes behind `front`.
pub(crate) fn with_keys(front: &[u64], keys: &[DeviceKey]) -> ([u8; 16 + MAX_KEYS * KEY], usize) {
    let mut bytes = [0; 16 + MAX_KEYS * KEY];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    for word in front.iter().take(2) {
        put(&word.to_le_bytes());
    }
    for key in keys.iter().take(MAX_KEYS) {
        put(&key.device.to_le_bytes());
        put(&key.key.to_le_bytes());
    }
    (bytes, at)
}

/// Keys that are all of `bytes`.
pub(crate) fn keys(bytes: &[u8]) -> Result<Vec<DeviceKey>> {
    let (keys, rest) = bytes.as_chunks::<KEY>();
    if !rest.is_empty() || keys.len() > MAX_KEYS {
        return Err(Error::new(ErrorKind::Protocol, "not keys of devices"));
    }
    let key = |bytes: &[u8; KEY]| {
        let (device, key) = bytes.split_first_chunk::<8>()?;
        Some(DeviceKey {
            device: u64::from_le_bytes(*device),
            key: u32::from_le_bytes(key.try_into().ok()?),
        })
    };
    Ok(keys.iter().filter_map(key).collect())
}

/// A message that was announced: what the sender says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    rts: Rts,
    /// Keys by which this side's network devices may read it.
    pub(crate) keys: Vec<DeviceKey>,
    /// It could have come unasked, and is to be copied out of its sender's memory.
    pub(crate) is_lent: bool,
}

impl Announcement {
    /// Reads it from the front of `bytes`, and how long it is.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, usize)> {
        let rts = Rts::decode(bytes)?;
        if rts.segment != REGISTERED {
            return Ok((rts.into(), Rts::SIZE));
        }
        let length = usize::try_from(rts.segment_offset)
            .ok()
            .filter(|count| *count <= MAX_KEYS)
            .map(|count| count * KEY);
        let end = length.map(|length| Rts::SIZE + length);
        match end.and_then(|end| Some((bytes.get(Rts::SIZE..end)?, end))) {
            Some((bytes, end)) => {
                let keys = keys(bytes)?;
                let read = Self { keys, ..rts.into() };
                Ok((read, end))
            }
            None => Err(Error::new(ErrorKind::Protocol, "short Rts")),
        }
    }
}

impl From<Rts> for Announcement {
    fn from(rts: Rts) -> Self {
        Self {
            rts,
            keys: Vec::new(),
            is_lent: false,
        }
    }
}

impl std::ops::Deref for Announcement {
    type Target = Rts;

    fn deref(&self) -> &Rts {
        &self.rts
    }
}

body! {
    /// Bytes of a stream that the receiver copies out of the sender's memory.
    StreamRts {
        /// Bytes.
        length: u64,
        /// Where they are in the sender's memory; 0 when the segment is the only way.
        address: u64,
        /// Memory segment that holds them, 0 when none does.
        segment: u64,
        /// Where in the segment.
        segment_offset: u64,
        /// The word by which the sender takes the memory back.
        word: u32,
    }
}

body! {
    /// Ready to receive: asks the sender for fragments, or to copy along.
    Rtr {
        /// Operation of the receiver.
        op: u64,
        /// Where the bytes go in the receiver's memory, for a sender that copies along.
        address: u64,
        /// Memory segment, 0 when none.
        segment: u64,
        /// Where in the segment.
        segment_offset: u64,
        /// 0: send fragments. 1: copy along.
        scheme: u32,
    }
}

impl Rtr {
    /// For fragments, of this operation of the receiver.
    pub(crate) fn fragments(op: u64) -> Self {
        Self {
            op,
            address: 0,
            segment: 0,
            segment_offset: 0,
            scheme: 0,
        }
    }
}

body! {
    /// Where the payload of a put goes.
    PutHeader {
        /// Generation of the region.
        generation: u64,
        /// Offset in the region.
        offset: u64,
        /// Slot of the region.
        slot: u32,
        /// 1: the last fragment, to be acknowledged. 3: so, and a [`Signal`] follows the header.
        last: u32,
    }
}

body! {
    /// An atomic operation on exposed memory.
    Atomic {
        /// Generation of the region.
        generation: u64,
        /// Offset in the region.
        offset: u64,
        /// The operand.
        operand: u64,
        /// What the word must be, for a compare-swap.
        compare: u64,
        /// Slot of the region.
        slot: u32,
        /// Operation, width, and whether the old value is asked for.
        code: u32,
    }
}

body! {
    /// Adds to a counter, and wakes who waits for it.
    Signal {
        /// Generation of the region.
        generation: u64,
        /// Offset in the region.
        offset: u64,
        /// How much.
        add: u64,
        /// Slot of the region.
        slot: u32,
    }
}

body! {
    /// What a get asks for.
    GetRequest {
        /// Generation of the region.
        generation: u64,
        /// Offset in the region.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Slot of the region.
        slot: u32,
    }
}

body! {
    /// Asks for a part of what was announced.
    Pull {
        /// Operation of the receiver that the fragments are for.
        to: u64,
        /// Where the part begins.
        offset: u64,
        /// Bytes.
        length: u64,
    }
}

body! {
    /// A put into memory that the owner of the region fills itself.
    PutRts {
        /// Generation of the region.
        generation: u64,
        /// Offset in the region.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Slot of the region.
        slot: u32,
        /// 1, or 3: a [`Signal`] follows; and [`OF_DEVICE`], [`UNSTAGED`].
        last: u32,
    }
}

body! {
    /// Asks for the way to device memory of the peer, to copy out of it directly.
    Route {
        /// Operation of the receiver that the bytes are for.
        to: u64,
        /// Generation of the region.
        generation: u64,
        /// Where the bytes begin, in the region or in what was announced.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Slot of the region.
        slot: u32,
        /// 1: of a region. 0: of an announced operation.
        region: u32,
        /// CRC-32 of the name of the accelerator that is to copy: another's memory it would not open.
        accelerator: u32,
    }
}

body! {
    /// Asks the owner of a region to copy along in a put or get that the initiator copies itself.
    Join {
        /// Generation of the region.
        generation: u64,
        /// Offset in the region.
        offset: u64,
        /// Bytes.
        length: u64,
        /// The initiator's memory.
        address: u64,
        /// Slot of the region.
        slot: u32,
        /// Slot that both count chunks in.
        chunks: u32,
        /// 1: put, 0: get.
        put: u32,
    }
}

body! {
    /// Which part of a layout's stream a message is about, of which region.
    LayoutHeader {
        /// Generation of the region.
        generation: u64,
        /// Where in the stream the part begins.
        position: u64,
        /// Bytes of the part.
        length: u64,
        /// Slot of the region.
        slot: u32,
        /// Blocks in the list that follows; `NONE`: a [strided form](super::layout::Strided::form) follows, of the whole layout.
        blocks: u32,
        /// As in [`PutHeader`]; with 3 the [`Signal`] follows this header.
        last: u32,
    }
}

body! {
    /// In front of bytes that were asked for.
    LayoutAnswer {
        /// Where in the stream they belong.
        position: u64,
        /// 0: more of the same request follow. 1: the last. 2: refused, and the last.
        status: u16,
        /// Why it was refused.
        code: u16,
    }
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
    24 => Forked,
    25 => DeviceLost,
    26 => ClosedByPeer,
    27 => AbortedByPeer,
    28 => AddrInUse,
}

/// A body that ends too early.
#[cold]
pub(crate) fn error_short(what: &str) -> Error {
    Error::new(ErrorKind::Protocol, format!("short {what}"))
}

/// The error that a refusal stands for.
pub(crate) fn error_of(body: &[u8]) -> Error {
    let code = body.first_chunk().map(|code| u16::from_le_bytes(*code));
    let kind = code.map_or(ErrorKind::Protocol, error_kind);
    let text = body.get(2..).unwrap_or(&[]);
    if kind == ErrorKind::Rejected && !text.is_empty() {
        let text = format!("rejected: {}", String::from_utf8_lossy(text).escape_debug());
        return Error::new(kind, Cow::Owned(text));
    }
    let message = match kind {
        ErrorKind::Rejected => "the peer rejected the message",
        ErrorKind::StaleKey => "the remote memory is not exposed any more",
        ErrorKind::OutOfBounds => "the range leaves the exposed region",
        ErrorKind::Exhausted => "the peer serves no more requests at a time",
        ErrorKind::AccessDenied => "the region was not exposed for this access",
        _ => "the peer could not do its part",
    };
    Error::new(kind, message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Random bytes of a body's size are a body and go round; fewer are an error.
    macro_rules! goes_round {
        ($($test:ident: $body:ident of $size:literal,)+) => {
            proptest! {$(
                #[test]
                fn $test(bytes in prop::collection::vec(any::<u8>(), $size)) {
                    prop_assert_eq!($body::SIZE, $size);
                    let body = $body::decode(&bytes).unwrap();
                    prop_assert_eq!(&body.encode()[..], &bytes[..]);
                    for length in 0..bytes.len() {
                        prop_assert_eq!($body::decode(&bytes[..length]).unwrap_err().kind(), ErrorKind::Protocol);
                    }
                }
            )+}
        };
    }

    goes_round! {
        rts: Rts of 44,
        rtr: Rtr of 36,
        stream_rts: StreamRts of 36,
        put_header: PutHeader of 24,
        get_request: GetRequest of 28,
        pull: Pull of 24,
        put_rts: PutRts of 32,
        route: Route of 44,
        join: Join of 44,
        atomic: Atomic of 40,
        signal: Signal of 28,
        layout_header: LayoutHeader of 36,
        layout_answer: LayoutAnswer of 12,
    }

    #[test]
    fn fields_lie_as_declared_and_little_endian() {
        let put = PutHeader {
            generation: 2,
            offset: 0x0304,
            slot: 1,
            last: 0,
        };
        let mut expected = [0; 24];
        expected[0] = 2;
        expected[8] = 4;
        expected[9] = 3;
        expected[16] = 1;
        assert_eq!(put.encode(), expected);
    }

    #[test]
    fn error_codes_go_round() {
        for code in 1..=28 {
            assert_eq!(error_kind_code(error_kind(code)), code);
        }
        assert_eq!(error_kind(60_000), ErrorKind::Protocol);
    }
}
