//! What goes between two ranks, and how it is written on a socket.
//!
//! ```text
//! frame      length u32 of what follows | kind u8 | fields by kind | bytes      little-endian
//!
//! message    kind 1 | tag u64 | bytes
//! credit     kind 2 | bytes u64                the receiver has taken that many, headers counted ([`cost`])
//! part       kind 3 | call u64 | ms u32 | bytes        to rank 0: this rank's part of a collective call, and how long it waits
//! verdict    kind 4 | call u64 | 0, then length u32 | bytes for each rank, or 1, then error kind u16 | text
//! gone       kind 5 | rank u32 | 0 it left, 1 it died          from rank 0
//! goodbye    kind 6
//! ```

use bytes::{BufMut, Bytes, BytesMut};

use super::limits::{MAX_GATHER, MAX_MESSAGE};
use crate::{
    error::{Error, ErrorKind, Result},
    protocol::control::{error_kind, error_kind_code},
    util::wire::{Reader, printable},
};

/// Longest text of an error that is passed on, in bytes.
pub(super) const MAX_TEXT: usize = 1024;
/// Longest frame, without its length: a verdict.
pub(super) const MAX_FRAME: usize = MAX_GATHER + (1 << 20);
/// The same of frames of other ranks than 0: a part.
pub(super) const MAX_OF_OTHERS: usize = 1 + 8 + 4 + MAX_MESSAGE;
/// What a message counts for beside its bytes, against the room for what was not received.
const OVERHEAD: usize = 64;
/// The room of one sender at one receiver: a message of the longest kind, and as much again.
pub(super) const ROOM: usize = 2 * (MAX_MESSAGE + OVERHEAD);

/// What a message of so many bytes takes of the room.
pub(super) fn cost(length: usize) -> usize {
    length + OVERHEAD
}

/// How a rank came to be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// It said goodbye.
    Left,
    /// Its connection ended without a word.
    Died,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Message {
        tag: u64,
        bytes: Bytes,
    },
    Credit {
        bytes: usize,
    },
    Part {
        call: u64,
        millis: u32,
        bytes: Bytes,
    },
    Verdict {
        call: u64,
        body: Bytes,
    },
    Gone {
        rank: usize,
        how: Gone,
    },
    Goodbye,
}

impl Frame {
    /// The frame's head, length included, and the bytes that follow it.
    pub(super) fn encode(self) -> (Bytes, Bytes) {
        let mut head = BytesMut::with_capacity(32);
        head.put_u32_le(0);
        let body = match self {
            Self::Message { tag, bytes } => {
                head.put_u8(1);
                head.put_u64_le(tag);
                bytes
            }
            Self::Credit { bytes } => {
                head.put_u8(2);
                head.put_u64_le(bytes as u64);
                Bytes::new()
            }
            Self::Part {
                call,
                millis,
                bytes,
            } => {
                head.put_u8(3);
                head.put_u64_le(call);
                head.put_u32_le(millis);
                bytes
            }
            Self::Verdict { call, body } => {
                head.put_u8(4);
                head.put_u64_le(call);
                body
            }
            Self::Gone { rank, how } => {
                head.put_u8(5);
                head.put_u32_le(rank as u32);
                head.put_u8(u8::from(how == Gone::Died));
                Bytes::new()
            }
            Self::Goodbye => {
                head.put_u8(6);
                Bytes::new()
            }
        };
        let length = (head.len() - 4 + body.len()) as u32;
        if let Some(place) = head.first_chunk_mut() {
            *place = length.to_le_bytes();
        }
        (head.freeze(), body)
    }

    /// Reads a frame without its length.
    /// Errors: `Malformed`.
    pub(super) fn decode(bytes: &Bytes) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let kind = reader.u8()?;
        let rest = |from: usize| bytes.slice(from.min(bytes.len())..);
        let frame = match kind {
            1 => Self::Message {
                tag: reader.u64()?,
                bytes: rest(9),
            },
            2 => Self::Credit {
                bytes: usize::try_from(reader.u64()?).map_err(|_| malformed("a credit"))?,
            },
            3 => Self::Part {
                call: reader.u64()?,
                millis: reader.u32()?,
                bytes: rest(13),
            },
            4 => Self::Verdict {
                call: reader.u64()?,
                body: rest(9),
            },
            5 => Self::Gone {
                rank: reader.u32()? as usize,
                how: if reader.bool()? {
                    Gone::Died
                } else {
                    Gone::Left
                },
            },
            6 => Self::Goodbye,
            _ => return Err(malformed("a frame of an unknown kind")),
        };
        match &frame {
            Self::Message { bytes, .. } | Self::Part { bytes, .. } if bytes.len() > MAX_MESSAGE => {
                Err(malformed("a message is too long"))
            }
            _ => Ok(frame),
        }
    }
}

/// How a collective call ended, as a verdict's body.
pub(super) fn encode_verdict(verdict: &Result<Vec<Bytes>>) -> Bytes {
    let mut body = BytesMut::new();
    match verdict {
        Ok(parts) => {
            body.reserve(1 + parts.iter().map(|part| 4 + part.len()).sum::<usize>());
            body.put_u8(0);
            for part in parts {
                body.put_u32_le(part.len() as u32);
                body.put_slice(part);
            }
        }
        Err(error) => {
            body.put_u8(1);
            body.put_slice(&encode_error(error));
        }
    }
    body.freeze()
}

/// Reads a verdict's body for a group of `size`.
pub(super) fn decode_verdict(body: &Bytes, size: usize) -> Result<Vec<Bytes>> {
    let mut reader = Reader::new(body);
    if reader.bool()? {
        return Err(decode_error(body.get(1..).unwrap_or_default())?);
    }
    let mut at = 1;
    let mut parts = Vec::with_capacity(size);
    for _ in 0..size {
        let length = reader.u32()? as usize;
        reader.bytes(length)?;
        parts.push(body.slice(at + 4..at + 4 + length));
        at += 4 + length;
    }
    reader.end()?;
    Ok(parts)
}

/// Kind and text of an error.
pub(super) fn encode_error(error: &Error) -> Vec<u8> {
    let text = error.to_string();
    let end = text.floor_char_boundary(MAX_TEXT);
    let mut out = error_kind_code(error.kind()).to_le_bytes().to_vec();
    out.extend_from_slice(text.get(..end).unwrap_or_default().as_bytes());
    out
}

/// The error that another rank told.
pub(super) fn decode_error(bytes: &[u8]) -> Result<Error> {
    let (code, text) = bytes
        .split_first_chunk::<2>()
        .ok_or_else(|| malformed("an error is cut short"))?;
    let end = text.len().min(MAX_TEXT);
    let text = String::from_utf8_lossy(text.get(..end).unwrap_or_default());
    Ok(Error::new(
        error_kind(u16::from_le_bytes(*code)),
        printable(&text),
    ))
}

pub(super) fn malformed(what: &'static str) -> Error {
    Error::new(ErrorKind::Malformed, what)
}
