//! What goes over the wire: the header of a message, and the offers that make a connection.

use crate::{
    driver::verbs::{Gid, LinkLayer, Mtu},
    error::{Error, ErrorKind, Result},
    util::wire::legible,
};

/// Bytes in front of a message's body.
pub(super) const HEADER: usize = 16;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One of the worker's.
    Message,
    /// Only credits.
    Credits,
}

/// In front of each message, in the same send.
///
/// `id (1) kind (1) credits (2) sequence (4) header (8)`, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) id: u8,
    pub(super) kind: Kind,
    /// How many of the other side's messages have left their receives, modulo 2^16.
    pub(super) credits: u16,
    /// Number of the message, modulo 2^32; counts messages that carry something.
    pub(super) sequence: u32,
    pub(super) header: u64,
}

impl Header {
    #[inline]
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let kind = match self.kind {
            Kind::Message => 0,
            Kind::Credits => 1,
        };
        let word = u64::from(self.id)
            | kind << 8
            | u64::from(self.credits) << 16
            | u64::from(self.sequence) << 32;
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&word.to_le_bytes());
        bytes[8..].copy_from_slice(&self.header.to_le_bytes());
        bytes
    }

    /// Of a received message, and its body.
    #[inline]
    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, body) = bytes.split_first_chunk::<HEADER>()?;
        let word = number(head, 0);
        let kind = match (word >> 8) as u8 {
            0 => Kind::Message,
            1 => Kind::Credits,
            _ => return None,
        };
        let this = Self {
            id: word as u8,
            kind,
            credits: (word >> 16) as u16,
            sequence: (word >> 32) as u32,
            header: number(head, 8),
        };
        Some((this, body))
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// Bytes of a frame of the control socket.
pub(super) const FRAME: usize = 16;

/// What the control socket carries: a rail has failed, nothing more comes of it, and the sender waits for this message.
///
/// `1 (1) rail (1) zeros (2) expected (4) zeros (8)`, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Drained {
    pub(super) rail: u8,
    pub(super) expected: u32,
}

impl Drained {
    pub(super) fn encode(self) -> [u8; FRAME] {
        let mut bytes = [0; FRAME];
        (bytes[0], bytes[1]) = (1, self.rail);
        bytes[4..8].copy_from_slice(&self.expected.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; FRAME]) -> Option<Self> {
        (bytes[0] == 1).then(|| Self {
            rail: bytes[1],
            expected: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        })
    }
}

const MAGIC: &[u8; 4] = b"wrc1";
const VERSION: u8 = 2;
/// Rails of a connection; more of an offer are ignored.
pub(super) const MOST_RAILS: usize = 16;
/// Bytes of a rail in an offer.
const RAIL: usize = 44;
const OFFER: usize = 16;

/// One end of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RailOffer {
    /// The device's number for all the world.
    pub(super) guid: u64,
    pub(super) port: u8,
    pub(super) link_layer: LinkLayer,
    pub(super) mtu: Mtu,
    /// Reads and atomics that it serves at once.
    pub(super) reads: u8,
    pub(super) lid: u16,
    /// Zeros: none.
    pub(super) gid: Gid,
    pub(super) queue_pair: u32,
    /// Number of its first packet, 24 bits.
    pub(super) first_packet: u32,
    /// For one-sided operations alone.
    pub(super) data: bool,
}

/// What one end has for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// Messages that the other end may have on their way.
    pub(super) window: u16,
    /// Longest message that it receives, header included.
    pub(super) segment: u32,
    /// The best first, at least one.
    pub(super) rails: Vec<RailOffer>,
}

impl Offer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(OFFER + self.rails.len() * RAIL);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[VERSION, self.rails.len() as u8, RAIL as u8, 0]);
        bytes.extend_from_slice(&self.window.to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&self.segment.to_le_bytes());
        for rail in &self.rails {
            bytes.extend_from_slice(&rail.guid.to_le_bytes());
            bytes.extend_from_slice(&rail.gid.0);
            bytes.extend_from_slice(&rail.queue_pair.to_le_bytes());
            bytes.extend_from_slice(&rail.first_packet.to_le_bytes());
            bytes.extend_from_slice(&rail.lid.to_le_bytes());
            let layer = rail.link_layer.0 as u8;
            bytes.extend_from_slice(&[rail.port, layer, rail.mtu.code() as u8, rail.reads]);
            bytes.extend_from_slice(&[u8::from(rail.data), 0, 0, 0, 0, 0]);
        }
        bytes
    }

    /// Instead of an offer: why there is none.
    pub(super) fn refuse(why: &str) -> Vec<u8> {
        let mut bytes = Vec::from(*MAGIC);
        bytes.extend_from_slice(&[VERSION, 0, 0, 0]);
        bytes.extend(why.bytes().take(MOST_TEXT));
        bytes
    }

    /// The other end's. Later versions may make the parts longer.
    /// Errors: `Protocol`, `VersionMismatch`; `Unreachable`: the other end has nothing to offer, with its reason.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let broken = || {
            Error::new(
                ErrorKind::Protocol,
                "the peer's offer is not one of rc_verbs",
            )
        };
        let (head, rest) = bytes.split_first_chunk::<8>().ok_or_else(broken)?;
        if head[..4] != *MAGIC {
            return Err(broken());
        }
        if head[4] < VERSION {
            return Err(Error::new(
                ErrorKind::VersionMismatch,
                format!(
                    "the peer speaks version {} of rc_verbs, this side {VERSION}",
                    head[4]
                ),
            ));
        }
        if head[5] == 0 {
            return Err(refusal(rest));
        }
        let (fixed, rest) = rest.split_first_chunk::<8>().ok_or_else(broken)?;
        let window = u16::from_le_bytes([fixed[0], fixed[1]]);
        let segment = u32::from_le_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
        let (count, length) = (usize::from(head[5]), usize::from(head[6]));
        if length < RAIL || rest.len() < count * length || window < 4 || (segment as usize) < 1024 {
            return Err(broken());
        }
        let mut rails = Vec::new();
        for rail in rest.chunks_exact(length).take(count.min(MOST_RAILS)) {
            rails.push(RailOffer::decode(rail).ok_or_else(broken)?);
        }
        Ok(Self {
            window,
            segment,
            rails,
        })
    }
}

impl RailOffer {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (bytes, _) = bytes.split_first_chunk::<RAIL>()?;
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[8..24]);
        Some(Self {
            guid: number(bytes, 0),
            gid: Gid(gid),
            queue_pair: word(24) & 0xff_ffff,
            first_packet: word(28) & 0xff_ffff,
            lid: u16::from_le_bytes([bytes[32], bytes[33]]),
            port: bytes[34],
            link_layer: LinkLayer(u32::from(bytes[35])),
            mtu: Mtu::from_code(u32::from(bytes[36]))?,
            reads: bytes[37],
            data: bytes[38] == 1,
        })
    }
}

/// Longest reason that is passed on, in bytes.
const MOST_TEXT: usize = 512;

/// The verdict on the other end's offer: which of the rails could be joined, as bits.
pub(super) fn verdict<T>(of: &Result<(T, u16)>) -> Vec<u8> {
    match of {
        Ok((_, rails)) => [&[1][..], &rails.to_le_bytes()].concat(),
        Err(error) => {
            let mut bytes = vec![0];
            bytes.extend(error.to_string().bytes().take(MOST_TEXT));
            bytes
        }
    }
}

/// The other end's verdict: the rails that it could join.
/// Errors: `Unreachable`, with its reason.
pub(super) fn read_verdict(bytes: &[u8]) -> Result<u16> {
    match bytes {
        [1, low, high, ..] => Ok(u16::from_le_bytes([*low, *high])),
        [0, text @ ..] => Err(refusal(text)),
        _ => Err(Error::new(ErrorKind::Protocol, "no verdict")),
    }
}

fn refusal(text: &[u8]) -> Error {
    let text = legible(text);
    Error::new(ErrorKind::Unreachable, format!("the peer cannot: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        let rail = |number: u8| RailOffer {
            guid: 0x1234_5678_9abc_def0 + u64::from(number),
            port: number,
            link_layer: LinkLayer::ETHERNET,
            mtu: Mtu::within(1024).unwrap(),
            reads: 16,
            lid: 7,
            gid: Gid([number; 16]),
            queue_pair: 0x12_3456,
            first_packet: 0xab_cdef,
            data: number > 1,
        };
        Offer {
            window: 128,
            segment: 8208,
            rails: vec![rail(1), rail(2)],
        }
    }

    #[test]
    fn offers_survive_the_wire() {
        let offer = offer();
        assert_eq!(Offer::decode(&offer.encode()).unwrap(), offer);
        let error = Offer::decode(&Offer::refuse("no device\n")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains("no device"));
    }

    #[test]
    fn what_is_no_offer_is_refused() {
        let good = offer().encode();
        for length in 0..good.len() {
            Offer::decode(&good[..length]).unwrap_err();
        }
        for at in [0, 4, 6, 8, 13, 52] {
            let mut bad = good.clone();
            bad[at] = 0;
            Offer::decode(&bad).unwrap_err();
        }
        read_verdict(&[]).unwrap_err();
        read_verdict(b"\0why").unwrap_err();
        assert_eq!(read_verdict(&verdict(&Ok(((), 5)))).unwrap(), 5);
        let drained = Drained {
            rail: 3,
            expected: 0xfedc_ba98,
        };
        assert_eq!(Drained::decode(&drained.encode()), Some(drained));
        assert_eq!(Drained::decode(&[0; FRAME]), None);
    }

    #[test]
    fn headers_survive_the_wire() {
        let header = Header {
            id: 200,
            kind: Kind::Message,
            credits: 513,
            sequence: 0xfedc_ba98,
            header: u64::MAX - 5,
        };
        let mut bytes = header.encode().to_vec();
        bytes.push(9);
        assert_eq!(Header::decode(&bytes), Some((header, &[9][..])));
        assert_eq!(Header::decode(&bytes[..15]), None);
        bytes[1] = 2;
        assert_eq!(Header::decode(&bytes), None);
    }
}
