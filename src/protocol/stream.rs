//! Byte streams on the wire: how messages name a stream, and the limits that both ends keep. Part of version 1 of the wire.
//!
//! A connection has two sets of streams, those that each end opened. Within a set ids count up from 0 and are never used again. A message
//! says in the lowest bit of its header whose set it means, so that an endpoint to oneself, which is both ends, can tell them apart.

/// Bytes of one stream that may be under way or unread at the receiver. What is read is returned by `STREAM_WINDOW`, as
/// [`Terms::STREAM`](super::window::Terms::STREAM) has it; a peer that sends more breaks the protocol.
pub(crate) const STREAM_BYTES: u64 = 512 << 10;

/// Bytes of it before the peer has accepted the stream, when whoever opened it writes: it gives the rest when it accepts. So that streams that
/// nobody accepts fill little memory.
pub(crate) const STREAM_FIRST: u64 = 64 << 10;

/// Streams that the peer has opened and that nobody here has accepted.
pub(crate) const STREAM_BACKLOG: usize = 128;

/// Streams of one set that are open in either direction.
pub(crate) const STREAM_OPEN_MAX: usize = 4096;

/// How the header of a message names a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamName {
    pub(crate) id: u64,
    /// The end that sends the message opened the stream.
    pub(crate) of_sender: bool,
}

impl StreamName {
    #[inline]
    pub(crate) const fn header(self) -> u64 {
        self.id << 1 | self.of_sender as u64
    }

    #[inline]
    pub(crate) const fn of(header: u64) -> Self {
        Self {
            id: header >> 1,
            of_sender: header & 1 == 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_round() {
        for id in [0, 1, 7, u64::MAX >> 1] {
            for of_sender in [false, true] {
                let name = StreamName { id, of_sender };
                assert_eq!(StreamName::of(name.header()), name);
            }
        }
    }
}
