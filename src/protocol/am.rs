//! Active messages on the wire: the words in their headers, and the limits that both ends know.
//!
//! ```text
//! word:    63 .. 32 unused | 31 .. 16 length of the user's header | 15 .. 0 id
//! credit:  63 eager messages were thrown away | 47 .. 16 messages | 15 .. 0 id, and in the body u64 bytes
//! ```
//!
//! What a sender may send of an id before its receiver has taken anything is bounded twice: so many messages, announced ones among them, and
//! so many bytes of those that go unasked. Each id has its own, and tagged messages have theirs: what waits for room waits for the
//! messages of its own id alone, which are taken in order, so that whoever waits for it can get at it. A short one is never announced for
//! want of room.

use crate::{
    error::{Error, ErrorKind, Result},
    types::AmId,
};

/// Longest user header in bytes: with what announces a message it fits one copied message of every link.
pub(crate) const MAX_HEADER: usize = 4096;

/// Messages of one id that a sender may send before it has heard of that id. Part of version 1 of the wire.
pub(crate) const GRANT: u32 = 16;

/// Bytes of eager messages of one id, as [`eager_cost`](super::window::eager_cost) counts them, that may be under way or untaken. Part of
/// version 1 of the wire.
pub(crate) const WINDOW: u64 = 512 << 10;

const LOST: u64 = 1 << 63;

/// The word of a message.
#[inline]
pub(crate) const fn word(id: AmId, header: usize) -> u64 {
    id.0 as u64 | (header as u64) << 16
}

/// The id in a word.
#[inline]
pub(crate) const fn id(word: u64) -> AmId {
    AmId(word as u16)
}

/// The length that a word says its message's user header has.
#[inline(always)]
pub(crate) const fn header(word: u64) -> usize {
    (word >> 16) as u16 as usize
}

/// The id of a message and the length of its user header, of which `room` bytes are there.
#[inline]
pub(crate) fn parse(word: u64, room: usize) -> Result<(AmId, usize)> {
    let header = header(word);
    if header > MAX_HEADER || header > room {
        return Err(Error::new(
            ErrorKind::Protocol,
            "the header of an active message is longer than the message, or than allowed",
        ));
    }
    Ok((id(word), header))
}

/// What a credit or a refusal says: the id, how many messages, whether eager ones were thrown away.
#[inline]
pub(crate) const fn credit(id: AmId, messages: u32, lost: bool) -> u64 {
    id.0 as u64 | (messages as u64) << 16 | if lost { LOST } else { 0 }
}

#[inline]
pub(crate) const fn parse_credit(word: u64) -> (AmId, u32, bool) {
    (id(word), (word >> 16) as u32, word & LOST != 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn words_go_round(number: u16, header in 0..=MAX_HEADER, count: u32, lost: bool) {
            let number = AmId(number);
            prop_assert_eq!(parse(word(number, header), header).unwrap(), (number, header));
            prop_assert_eq!(parse_credit(credit(number, count, lost)), (number, count, lost));
        }

        #[test]
        fn no_word_leaves_the_message(bits: u64, room in 0usize..10_000) {
            match parse(bits, room) {
                Ok((_, header)) => prop_assert!(header <= room && header <= MAX_HEADER),
                Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Protocol),
            }
        }
    }
}
