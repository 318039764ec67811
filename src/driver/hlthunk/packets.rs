//! The one packet that copies: `LIN_DMA`, as the chips' queue managers read it.
//!
//! ```text
//! byte   0        4        8                16               24
//!        │ tsize  │  ctl   │      source    │     target     │     little endian
//! ctl    bit 31 message barrier · 30 register barrier · 29 engine barrier · 28..24 opcode 9 · 4 fill · 3 linear (Gaudi)
//! ```
//! Both addresses are the device's: of its memory, or of host memory that was mapped for it. The packet does not say which way it goes:
//! the queue and the addresses do. The source is `gaudi_packets.h` and `gaudi2_packets.h` of hl-thunk 1.10, and the vendor's own choice of
//! barriers in SynapseAI Core, which sets both on every packet.

use super::Chip;
use crate::error::{Error, ErrorKind, Result};

/// Bytes of a packet.
pub(crate) const PACKET: usize = 24;

/// What one packet copies at most: whole pages below the 4 GiB that its size field ends before.
pub(crate) const LARGEST: u64 = (4 << 30) - 4096;

const OPCODE: u32 = 9 << 24;
const FILL: u32 = 1 << 4;
const ENGINE_BARRIER: u32 = 1 << 29;
const MESSAGE_BARRIER: u32 = 1 << 31;
/// Gaudi alone: without it the packet is no linear copy.
const GAUDI_LINEAR: u32 = 1 << 3;
/// Gaudi alone: must be set.
const GAUDI_REGISTER_BARRIER: u32 = 1 << 30;
/// Gaudi alone: the target's top byte is a part of the context's number.
const GAUDI_ADDRESS_BITS: u32 = 56;

/// A copy of `len` bytes between two addresses of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinDma {
    /// Where from; of a fill, the 32-bit pattern.
    pub(crate) source: u64,
    /// Where to.
    pub(crate) target: u64,
    /// Bytes; not 0.
    pub(crate) len: u32,
    /// It waits for earlier packets' work on its engine.
    pub(crate) engine_barrier: bool,
    /// Its own messages wait for its data.
    pub(crate) message_barrier: bool,
    /// It writes a pattern and reads nothing.
    pub(crate) fill: bool,
}

impl LinDma {
    /// A copy with both barriers, as the vendor's own software does it.
    pub(crate) const fn copy(source: u64, target: u64, len: u32) -> Self {
        Self {
            source,
            target,
            len,
            engine_barrier: true,
            message_barrier: true,
            fill: false,
        }
    }

    /// A copy of any length, as packets of at most [`LARGEST`] bytes.
    pub(crate) fn split(source: u64, target: u64, len: u64) -> impl Iterator<Item = Self> {
        (0..len.div_ceil(LARGEST)).map(move |index| {
            let done = index * LARGEST;
            // Below 4 GiB, as LARGEST is.
            let piece = (len - done).min(LARGEST) as u32;
            Self::copy(source.wrapping_add(done), target.wrapping_add(done), piece)
        })
    }

    /// The bytes that the chip reads.
    /// Errors: `InvalidArgument`: no bytes, an address beyond what the packet holds, or a range that wraps; `Unsupported`: a chip without it.
    pub(crate) fn encode(&self, chip: Chip) -> Result<[u8; PACKET]> {
        let base = match chip {
            Chip::Gaudi => OPCODE | GAUDI_LINEAR | GAUDI_REGISTER_BARRIER,
            Chip::Gaudi2 => OPCODE,
            _ => {
                let text = format!("{chip} takes no command submissions; Synapse copies there");
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
        };
        self.check(chip)?;
        let ctl = base
            | if self.fill { FILL } else { 0 }
            | if self.engine_barrier {
                ENGINE_BARRIER
            } else {
                0
            }
            | if self.message_barrier {
                MESSAGE_BARRIER
            } else {
                0
            };
        let mut packet = [0; PACKET];
        packet[0..4].copy_from_slice(&self.len.to_le_bytes());
        packet[4..8].copy_from_slice(&ctl.to_le_bytes());
        packet[8..16].copy_from_slice(&self.source.to_le_bytes());
        packet[16..24].copy_from_slice(&self.target.to_le_bytes());
        Ok(packet)
    }

    fn check(&self, chip: Chip) -> Result<()> {
        let len = u64::from(self.len);
        let reaches = |start: u64| {
            start
                .checked_add(len)
                .is_some_and(|end| chip != Chip::Gaudi || end <= 1 << GAUDI_ADDRESS_BITS)
        };
        let source = if self.fill {
            self.source <= u64::from(u32::MAX)
        } else {
            reaches(self.source)
        };
        if len > 0 && source && reaches(self.target) {
            return Ok(());
        }
        let text = format!(
            "no packet copies {len} bytes from {:#x} to {:#x}",
            self.source, self.target
        );
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }
}
