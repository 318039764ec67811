//! The frame that carries one message over a stream socket.
//!
//! ```text
//! 0        4    5        6      8          16            16+prefix      16+length
//! ├ length ┼ id ┼ prefix ┼ mark ┼  header  ┼── prefix ───┼── payload ───┤     little-endian
//!
//! with checksums, by another mark:
//! 0                                        16           20            24              28
//! ├──────────── as above ──────────────────┼ prefix sum ┼ payload sum ┼ sum of the 24 ┼── prefix ───┼── payload ───┤
//! ```
//!
//! A sum is a CRC-32 (IEEE). The header has one of its own, because its length says where everything else is; the prefix has one, because it
//! says where the payload goes, before all of that is there.

use crate::{
    ErrorKind,
    error::{Error, Result},
};

/// Bytes before the body, without checksums.
const HEADER: usize = 16;
/// Bytes before the body, with checksums.
pub(super) const SUMMED: usize = HEADER + 12;
/// Longest prefix.
pub(super) const MAX_PREFIX: usize = crate::transport::MAX_PREFIX;
/// Longest payload that is always delivered whole; the receiver is asked where a longer one goes.
pub(super) const LONG: usize = 4096;
/// Longest body, prefix included.
pub(super) const LIMIT: usize = 64 << 20;

/// Format and version: `W`, 1.
const MARK: u16 = 0x5701;
/// The same with checksums: `W`, 2.
const SUMMED_MARK: u16 = 0x5702;

/// How both ends of a link write frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    /// Whether there are checksums.
    pub(super) checksums: bool,
}

impl Format {
    /// Bytes before the body.
    pub(super) fn header(self) -> usize {
        if self.checksums { SUMMED } else { HEADER }
    }
}

/// The checksums of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) prefix: u32,
    pub(super) payload: u32,
}

/// A checksum that is looked at once all of its bytes have come.
#[derive(Debug)]
pub(super) struct Check {
    found: crc32fast::Hasher,
    expected: u32,
}

impl Check {
    pub(super) fn new(expected: u32) -> Self {
        Self {
            found: crc32fast::Hasher::new(),
            expected,
        }
    }

    /// The next bytes.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.found.update(bytes);
    }

    /// # Errors
    /// `Protocol`: they are not what was sent.
    pub(super) fn finish(&self) -> Result<()> {
        if self.found.clone().finalize() == self.expected {
            return Ok(());
        }
        Err(altered())
    }

    /// Looks at all bytes at once.
    pub(super) fn whole(expected: u32, bytes: &[u8]) -> Result<()> {
        if crc32fast::hash(bytes) == expected {
            return Ok(());
        }
        Err(altered())
    }
}

#[cold]
fn altered() -> Error {
    Error::new(
        ErrorKind::Protocol,
        "a frame's checksum is wrong: its bytes were changed on their way",
    )
}

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
    /// Their checksums, where there are any.
    pub(super) sums: Option<Sums>,
}

impl Frame {
    /// The header of a message of `payload` bytes behind `prefix` bytes. `None` when that is longer than allowed.
    pub(super) fn new(id: u8, header: u64, prefix: usize, payload: usize) -> Option<Self> {
        let length = prefix.checked_add(payload)?;
        (prefix <= MAX_PREFIX && length <= LIMIT).then_some(Self {
            id,
            header,
            prefix,
            length,
            sums: None,
        })
    }

    /// With checksums of what it is to carry, the prefix of the frame and then the payload in any two pieces.
    pub(super) fn summed(mut self, pieces: [&[u8]; 2]) -> Self {
        let mut rest = crc32fast::Hasher::new();
        let [first, second] = pieces;
        let (prefix, more) = first.split_at(self.prefix);
        rest.update(more);
        rest.update(second);
        self.sums = Some(Sums {
            prefix: crc32fast::hash(prefix),
            payload: rest.finalize(),
        });
        self
    }

    /// Bytes of payload.
    pub(super) fn payload(&self) -> usize {
        self.length - self.prefix
    }

    /// Writes what comes before the body to the front of `room`. Returns how much of it.
    #[allow(clippy::cast_possible_truncation)] // `new` and `decode` checked both.
    pub(super) fn encode(&self, room: &mut [u8; SUMMED]) -> usize {
        let mark = match self.sums {
            Some(_) => SUMMED_MARK,
            None => MARK,
        };
        room[..4].copy_from_slice(&(self.length as u32).to_le_bytes());
        room[4] = self.id;
        room[5] = self.prefix as u8;
        room[6..8].copy_from_slice(&mark.to_le_bytes());
        room[8..16].copy_from_slice(&self.header.to_le_bytes());
        let Some(sums) = self.sums else {
            return HEADER;
        };
        room[16..20].copy_from_slice(&sums.prefix.to_le_bytes());
        room[20..24].copy_from_slice(&sums.payload.to_le_bytes());
        let sum = crc32fast::hash(&room[..24]);
        room[24..].copy_from_slice(&sum.to_le_bytes());
        SUMMED
    }

    /// Reads what comes before a body, if all of it is at the front of `bytes`.
    /// Errors: `Protocol` when the mark is foreign, a checksum is wrong, the body longer than the limit, or the prefix longer than the body.
    pub(super) fn decode(bytes: &[u8], format: Format) -> Result<Option<Self>> {
        let Some((head, rest)) = bytes.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let sums = match format.checksums {
            false => None,
            true => match Sums::decode(head, rest)? {
                None => return Ok(None),
                sums => sums,
            },
        };
        let [l0, l1, l2, l3, id, prefix, m0, m1, header @ ..] = *head;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let prefix = usize::from(prefix);
        let mark = if format.checksums { SUMMED_MARK } else { MARK };
        if u16::from_le_bytes([m0, m1]) != mark {
            return Err(Error::new(
                ErrorKind::Protocol,
                "the peer sent something that is not a frame",
            ));
        }
        if length > LIMIT {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("the peer sent a frame of {length} bytes, the limit is {LIMIT}"),
            ));
        }
        if prefix > MAX_PREFIX || prefix > length {
            return Err(Error::new(
                ErrorKind::Protocol,
                "the peer sent a frame whose prefix is too long",
            ));
        }
        Ok(Some(Self {
            id,
            header: u64::from_le_bytes(header),
            prefix,
            length,
            sums,
        }))
    }
}

impl Sums {
    /// Reads those behind `head`, if all of them are there, and checks that which covers the two.
    fn decode(head: &[u8; HEADER], behind: &[u8]) -> Result<Option<Self>> {
        let Some((sums, rest)) = behind.split_first_chunk::<8>() else {
            return Ok(None);
        };
        let Some(sum) = rest.first_chunk() else {
            return Ok(None);
        };
        let mut check = Check::new(u32::from_le_bytes(*sum));
        check.update(head);
        check.update(sums);
        check.finish()?;
        let [p0, p1, p2, p3, rest @ ..] = *sums;
        Ok(Some(Self {
            prefix: u32::from_le_bytes([p0, p1, p2, p3]),
            payload: u32::from_le_bytes(rest),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(checksums: bool) -> Format {
        Format { checksums }
    }

    #[test]
    fn a_frame_survives_the_wire() {
        let frame = Frame::new(7, 0x0102_0304_0506_0708, 5, 100).unwrap();
        let mut bytes = [0; SUMMED];
        let length = frame.encode(&mut bytes);
        assert_eq!(
            bytes[..length],
            [105, 0, 0, 0, 7, 5, 1, 0x57, 8, 7, 6, 5, 4, 3, 2, 1]
        );
        assert_eq!(
            Frame::decode(&bytes[..length], format(false)).unwrap(),
            Some(frame)
        );
        assert_eq!(frame.payload(), 100);
        assert_eq!(
            Frame::decode(&bytes[..length - 1], format(false)).unwrap(),
            None
        );
    }

    #[test]
    fn impossible_frames_are_refused() {
        assert!(Frame::new(0, 0, MAX_PREFIX + 1, 0).is_none());
        assert!(Frame::new(0, 0, 1, LIMIT).is_none());
        assert!(Frame::new(0, 0, 1, usize::MAX).is_none());
        let mut good = [0; SUMMED];
        Frame::new(0, 0, 0, 10).unwrap().encode(&mut good);
        for (at, value) in [(3, 0xff), (5, 11), (6, 0), (7, 0)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(
                Frame::decode(&bad, format(false)).unwrap_err().kind(),
                ErrorKind::Protocol,
                "byte {at}"
            );
        }
    }

    #[test]
    fn every_flipped_bit_of_a_summed_header_is_noticed() {
        let (prefix, payload) = (&b"prefix"[..], &b"a payload in two"[..]);
        let frame = Frame::new(7, 99, 3, prefix.len() - 3 + payload.len()).unwrap();
        let frame = frame.summed([prefix, payload]);
        let sums = frame.sums.unwrap();
        Check::whole(sums.prefix, b"pre").unwrap();
        Check::whole(sums.payload, b"fixa payload in two").unwrap();
        let error = Check::whole(sums.payload, b"fixa payload in tvo").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);

        let mut bytes = [0; SUMMED];
        assert_eq!(frame.encode(&mut bytes), SUMMED);
        assert_eq!(Frame::decode(&bytes, format(true)).unwrap(), Some(frame));
        for cut in 0..SUMMED {
            assert_eq!(Frame::decode(&bytes[..cut], format(true)).unwrap(), None);
        }
        for bit in 0..SUMMED * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            let error = Frame::decode(&bad, format(true)).unwrap_err();
            assert!(error.to_string().contains("checksum"), "bit {bit}: {error}");
        }
        // The two ways to write a frame are not taken for each other.
        assert!(Frame::decode(&bytes, format(false)).is_err());
    }
}
