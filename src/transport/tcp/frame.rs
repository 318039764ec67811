//! The frame that carries one message over a stream socket.
//!
//! ```text
//! 0        4    5        6      8          16            16+prefix      16+length
//! ├ length ┼ id ┼ prefix ┼ mark ┼  header  ┼── prefix ───┼── payload ───┤     little-endian
//! ```

use crate::{
    ErrorKind,
    error::{Error, Result},
};

/// Bytes before the body.
pub(super) const HEADER: usize = 16;
/// Longest prefix.
pub(super) const MAX_PREFIX: usize = crate::transport::MAX_PREFIX;
/// Longest payload that is always delivered whole; the receiver is asked where a longer one goes.
pub(super) const LONG: usize = 4096;

/// Format and version: `W`, 1.
const MARK: u16 = 0x5701;

/// A decoded frame header; `prefix <= length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Message id.
    pub(super) id: u8,
    /// The message's 64-bit header.
    pub(super) header: u64,
    /// Bytes of prefix.
    pub(super) prefix: usize,
    /// Bytes of prefix and payload.
    pub(super) length: usize,
}

impl Frame {
    /// The header of a message of `payload` bytes behind `prefix` bytes. `None` when that is longer than `limit` or the
    /// format allows.
    pub(super) fn new(
        id: u8,
        header: u64,
        prefix: usize,
        payload: usize,
        limit: usize,
    ) -> Option<Self> {
        let length = prefix.checked_add(payload)?;
        (prefix <= MAX_PREFIX && length <= limit && u32::try_from(length).is_ok()).then_some(Self {
            id,
            header,
            prefix,
            length,
        })
    }

    /// Bytes of payload.
    pub(super) fn payload(&self) -> usize {
        self.length - self.prefix
    }

    /// The frame header as bytes.
    #[allow(clippy::cast_possible_truncation)] // `new` and `decode` checked both.
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&(self.length as u32).to_le_bytes());
        bytes[4] = self.id;
        bytes[5] = self.prefix as u8;
        bytes[6..8].copy_from_slice(&MARK.to_le_bytes());
        bytes[8..].copy_from_slice(&self.header.to_le_bytes());
        bytes
    }

    /// Reads a frame header.
    ///
    /// # Errors
    /// `Protocol` when the mark is foreign, the body longer than `limit`, or the prefix longer than the body.
    pub(super) fn decode(bytes: &[u8; HEADER], limit: usize) -> Result<Self> {
        let [l0, l1, l2, l3, id, prefix, m0, m1, header @ ..] = *bytes;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let prefix = usize::from(prefix);
        if u16::from_le_bytes([m0, m1]) != MARK {
            return Err(Error::new(
                ErrorKind::Protocol,
                "the peer sent something that is not a frame",
            ));
        }
        if length > limit {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("the peer sent a frame of {length} bytes, the limit is {limit}"),
            ));
        }
        if prefix > MAX_PREFIX || prefix > length {
            return Err(Error::new(
                ErrorKind::Protocol,
                "the peer sent a frame whose prefix is too long",
            ));
        }
        Ok(Self {
            id,
            header: u64::from_le_bytes(header),
            prefix,
            length,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_survives_the_wire() {
        let frame = Frame::new(7, 0x0102_0304_0506_0708, 5, 100, 1000).unwrap();
        let bytes = frame.encode();
        assert_eq!(bytes, [105, 0, 0, 0, 7, 5, 1, 0x57, 8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(Frame::decode(&bytes, 1000).unwrap(), frame);
        assert_eq!(frame.payload(), 100);
    }

    #[test]
    fn impossible_frames_are_refused() {
        assert!(Frame::new(0, 0, MAX_PREFIX + 1, 0, 1000).is_none());
        assert!(Frame::new(0, 0, 1, 1000, 1000).is_none());
        assert!(Frame::new(0, 0, 1, usize::MAX, usize::MAX).is_none());
        let good = Frame::new(0, 0, 0, 10, 1000).unwrap().encode();
        for (at, value) in [(1, 0xff), (5, 11), (6, 0), (7, 0)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(
                Frame::decode(&bad, 1000).unwrap_err().kind(),
                ErrorKind::Protocol,
                "byte {at}"
            );
        }
    }
}
