//! What processes say to each other: frames of a length, a kind, and numbers in little-endian order.
//!
//! Whoever writes them is not trusted: what is no frame is told apart, and the connection with it ends.

use crate::{
    abi::Sge,
    world::{ADD, CAS, READ, SEND, SEND_IMM, WRITE, WRITE_IMM},
};

/// A request of one queue pair to another.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Request {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// The device whose port it is addressed to.
    pub(crate) device: u32,
    /// The number of the first packet that the sender ever sent, from which both count.
    pub(crate) first_packet: u32,
    pub(crate) opcode: u32,
    pub(crate) solicited: bool,
    /// It waits for a receive for ever.
    pub(crate) patient: bool,
    pub(crate) imm: u32,
    pub(crate) length: u32,
    pub(crate) key: u32,
    pub(crate) address: u64,
    /// Of atomics: what is added or compared with, and the new value.
    pub(crate) operands: [u64; 2],
}

impl Request {
    /// The receiver's memory that it is about.
    pub(crate) fn far(&self, length: u32) -> Sge {
        Sge {
            addr: self.address,
            length,
            lkey: self.key,
        }
    }
}

/// How a request went.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    Done,
    /// There is no receive for it; it may be sent again when the receiver says so.
    NotReady,
    Failed(u32),
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Frame {
    Request {
        sequence: u64,
        request: Request,
        /// What it sends.
        data: Vec<u8>,
    },
    Answer {
        number: u32,
        sequence: u64,
        answer: Answer,
        /// What it brings.
        data: Vec<u8>,
    },
    /// A receive may be there for the request that waits for one.
    Ready { number: u32, sequence: u64 },
}

/// No message is longer, and nothing before it.
const MOST: usize = (1 << 31) + 256;

const REQUEST: u8 = 1;
const ANSWER: u8 = 2;
const READY: u8 = 3;

/// The receiver's "not ready" among the numbers of how a request ended.
const NOT_READY: u32 = u32::MAX;

impl Frame {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = vec![0; 4];
        let data: &[u8] = match self {
            Self::Request {
                sequence,
                request,
                data,
            } => {
                to.push(REQUEST);
                to.extend(sequence.to_le_bytes());
                for number in [
                    request.from,
                    request.to,
                    request.device,
                    request.first_packet,
                    request.opcode,
                    u32::from(request.solicited) | u32::from(request.patient) << 1,
                    request.imm,
                    request.length,
                    request.key,
                ] {
                    to.extend(number.to_le_bytes());
                }
                for number in [request.address, request.operands[0], request.operands[1]] {
                    to.extend(number.to_le_bytes());
                }
                data
            }
            Self::Answer {
                number,
                sequence,
                answer,
                data,
            } => {
                to.push(ANSWER);
                to.extend(sequence.to_le_bytes());
                to.extend(number.to_le_bytes());
                let status = match answer {
                    Answer::Done => 0,
                    Answer::NotReady => NOT_READY,
                    Answer::Failed(status) => *status,
                };
                to.extend(status.to_le_bytes());
                data
            }
            Self::Ready { number, sequence } => {
                to.push(READY);
                to.extend(sequence.to_le_bytes());
                to.extend(number.to_le_bytes());
                &[]
            }
        };
        to.extend(data);
        let length = (to.len() - 4) as u32;
        to[..4].copy_from_slice(&length.to_le_bytes());
        to
    }

    /// The first frame of what was read, and how many bytes it took; `None`: it is not all there.
    ///
    /// # Errors
    /// That is none.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, ()> {
        let Some((length, rest)) = bytes.split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MOST {
            return Err(());
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let frame = Self::parse(&mut Reader(body)).ok_or(())?;
        Ok(Some((frame, length + 4)))
    }

    fn parse(from: &mut Reader<'_>) -> Option<Self> {
        let kind = from.take::<1>()?[0];
        let sequence = from.long()?;
        let frame = match kind {
            REQUEST => {
                let mut numbers = [0; 9];
                for number in &mut numbers {
                    *number = from.number()?;
                }
                let [
                    from_number,
                    to,
                    device,
                    first_packet,
                    opcode,
                    flags,
                    imm,
                    length,
                    key,
                ] = numbers;
                let request = Request {
                    from: from_number,
                    to,
                    device,
                    first_packet,
                    opcode,
                    solicited: flags & 1 != 0,
                    patient: flags & 2 != 0,
                    imm,
                    length,
                    key,
                    address: from.long()?,
                    operands: [from.long()?, from.long()?],
                };
                let data = from.rest();
                let sent = match opcode {
                    WRITE | WRITE_IMM | SEND | SEND_IMM => length as usize,
                    READ | CAS | ADD => 0,
                    _ => return None,
                };
                if flags > 3 || data.len() != sent || length > 1 << 31 {
                    return None;
                }
                Self::Request {
                    sequence,
                    request,
                    data,
                }
            }
            ANSWER => Self::Answer {
                number: from.number()?,
                sequence,
                answer: match from.number()? {
                    0 => Answer::Done,
                    NOT_READY => Answer::NotReady,
                    status => Answer::Failed(status),
                },
                data: from.rest(),
            },
            READY => Self::Ready {
                number: from.number()?,
                sequence,
            },
            _ => return None,
        };
        from.0.is_empty().then_some(frame)
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (now, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*now)
    }

    fn number(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0).to_vec()
    }
}
