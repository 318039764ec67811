//! What two drivers say over a link that has no one-sided operations of its own.
//!
//! ```text
//! id     header       body
//! PUT    initiator's  slot, generation, offset (20 bytes), bytes     ─▶ DONE
//! GET    initiator's  slot, generation, offset, length (28 bytes)    ─▶ BYTES, in order, as many as were asked for; or DONE with an error
//! OPEN   initiator's  slot, generation (12 bytes)                    ─▶ DONE: the key stands; and whether its segment comes
//! BYTES  initiator's  bytes
//! DONE   initiator's  what became of it, whether a segment comes
//! ```
//!
//! Who asks has at most [`WINDOW`] requests that were not answered, so that whoever answers keeps no more than that.

use crate::{
    error::{Error, ErrorKind, Result},
    memory::region::{denied, out_of_bounds, stale},
};

pub(super) const PUT: u8 = 1;
pub(super) const GET: u8 = 2;
pub(super) const OPEN: u8 = 3;
pub(super) const BYTES: u8 = 4;
pub(super) const DONE: u8 = 5;

/// Requests of one end that were not answered, at most.
pub(super) const WINDOW: usize = 64;

/// Bytes in front of those of a put.
pub(super) const PUT_PREFIX: usize = 20;

/// A place in exposed memory, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slot: u32,
    pub(super) generation: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
}

#[cold]
pub(super) fn violation(what: &'static str) -> Error {
    Error::new(ErrorKind::Protocol, what)
}

impl Place {
    fn encode(&self) -> [u8; 28] {
        let mut bytes = [0; 28];
        bytes[..4].copy_from_slice(&self.slot.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.generation.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.offset.to_le_bytes());
        bytes[20..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// What stands in front of the bytes of a put.
    pub(super) fn put(&self) -> [u8; PUT_PREFIX] {
        let mut prefix = [0; PUT_PREFIX];
        prefix.copy_from_slice(&self.encode()[..PUT_PREFIX]);
        prefix
    }

    /// The body of a get.
    pub(super) fn get(&self) -> [u8; 28] {
        self.encode()
    }

    /// The body of an opening.
    pub(super) fn open(&self) -> [u8; 12] {
        let mut body = [0; 12];
        body.copy_from_slice(&self.encode()[..12]);
        body
    }

    /// Reads the first words of a request, as many as it has; what it has not is 0. And what follows.
    /// Errors: `Protocol`: there are less than `words` bytes.
    pub(super) fn read(body: &[u8], words: usize) -> Result<(Self, &[u8])> {
        let (said, rest) = body
            .split_at_checked(words)
            .ok_or_else(|| violation("a request of a driver is too short"))?;
        let mut bytes = [0; 28];
        bytes[..words].copy_from_slice(said);
        let long = |at: usize| {
            bytes[at..]
                .first_chunk()
                .map_or(0, |word| u64::from_le_bytes(*word))
        };
        let slot = bytes
            .first_chunk()
            .map_or(0, |word| u32::from_le_bytes(*word));
        let place = Self {
            slot,
            generation: long(4),
            offset: long(12),
            length: long(20),
        };
        Ok((place, rest))
    }
}

/// What became of a request, as a byte.
pub(super) fn code(result: &Result<()>) -> u8 {
    match result.as_ref().map_err(Error::kind) {
        Ok(()) => 0,
        Err(ErrorKind::StaleKey) => 1,
        Err(ErrorKind::AccessDenied) => 2,
        Err(ErrorKind::OutOfBounds) => 3,
        Err(_) => 4,
    }
}

/// What a byte says became of a request.
/// Errors: `Protocol`: it is none of those that are said.
pub(super) fn outcome(code: u8) -> Result<Result<()>> {
    let error = match code {
        0 => return Ok(Ok(())),
        1 => stale(),
        2 => denied(),
        3 => out_of_bounds(),
        4 => Error::new(
            ErrorKind::Unsupported,
            "the peer cannot do this with its memory",
        ),
        _ => return Err(violation("an answer of a driver that means nothing")),
    };
    Ok(Err(error))
}
