//! The bytes by which a process finds another's device memory.
//!
//! ```text
//!   0  magic "WIPC"      4  version u16        6  way u16
//!   8  boot id [16]     24  namespaces: network u64, process u64, user u64     48  user u32   52  process u32
//!  56  start time of the process u64                                           64  its random name [16]
//!  80  device [16]      96  id u64           104  base u64    112  length u64   of the allocation
//! 120  offset u64      128  length u64        of the memory that is meant
//! 136  what the way needs: a ticket of 32 bytes, or what the driver gives
//!   …  CRC-32 of all before
//! ```
//! All numbers are little-endian. The bytes come from a peer: the decoder takes exactly what the encoder makes, with ranges that lie in each
//! other and do not wrap. What they say is still only claimed; whoever opens it checks it against the driver.

use std::{fmt::Debug, hash::Hash};

use super::handover::Ticket;
use crate::{
    error::{Error, ErrorKind, Result},
    types::Identity,
};

/// Memory of one allocation of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor<W> {
    /// What is opened, and what an opened one is known by.
    pub(crate) allocation: Allocation<W>,
    /// Where the memory begins in the allocation.
    pub(crate) offset: u64,
    /// Its bytes, at least 1.
    pub(crate) length: u64,
}

/// A whole allocation. Two that are equal are the same memory: the id is never used twice by a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Allocation<W> {
    pub(crate) origin: Origin,
    /// Which device has it, in words that are the same in all processes of the host.
    pub(crate) device: [u8; 16],
    pub(crate) id: u64,
    /// Where it begins, as the exporter has it.
    pub(crate) base: u64,
    /// Its bytes, at least 1.
    pub(crate) length: u64,
    pub(crate) way: W,
}

/// The process that exports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    pub(crate) identity: Identity,
    /// When it began; 0 when unknown.
    pub(crate) start: u64,
    /// Drawn by it at random.
    pub(crate) name: [u8; 16],
}

/// How memory is opened: what a vendor has for it.
pub(crate) trait Way: Clone + Eq + Hash + Debug + Send + Sync + 'static {
    /// Different for each way of each vendor.
    fn number(&self) -> u16;

    /// What it needs, at most [`NEEDS`] bytes.
    fn encode(&self, out: &mut Vec<u8>);

    /// The way of this number, with what it needs. `Ok(None)`: there is none.
    ///
    /// # Errors
    /// `Malformed`.
    fn decode(number: u16, needs: &mut Reader<'_>) -> Result<Option<Self>>;

    /// Whether it leads to other hosts, where users and processes have other numbers.
    fn leaves_the_host(&self) -> bool {
        false
    }

    /// Whether the driver finds the process by its id, which another process namespace does not have.
    fn is_by_process(&self) -> bool {
        false
    }

    /// Whether the allocation may be one piece of several that lie side by side.
    fn is_piece(&self) -> bool {
        false
    }

    /// What has to be fetched from the exporter before, and which kind of it.
    fn ticket(&self) -> Option<(&Ticket, u8)> {
        None
    }
}

impl<W: Way> Descriptor<W> {
    /// The bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Allocation {
            origin,
            device,
            id,
            base,
            length,
            way,
        } = &self.allocation;
        let identity = &origin.identity;
        let mut out = Vec::with_capacity(HEADER + NEEDS + 4);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&way.number().to_le_bytes());
        out.extend_from_slice(&identity.boot);
        for namespace in [
            identity.net_namespace,
            identity.pid_namespace,
            identity.user_namespace,
        ] {
            out.extend_from_slice(&namespace.to_le_bytes());
        }
        out.extend_from_slice(&identity.user.to_le_bytes());
        out.extend_from_slice(&identity.pid.to_le_bytes());
        out.extend_from_slice(&origin.start.to_le_bytes());
        out.extend_from_slice(&origin.name);
        out.extend_from_slice(device);
        for number in [*id, *base, *length, self.offset, self.length] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        debug_assert_eq!(out.len(), HEADER);
        way.encode(&mut out);
        debug_assert!(out.len() <= HEADER + NEEDS);
        let sum = crc32fast::hash(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// What exactly these bytes say.
    /// Errors: `Malformed`; `VersionMismatch`: of a version or a way that is not known here.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let Some(([magic @ .., _, _, _, _], _)) = bytes.split_first_chunk::<8>() else {
            return Err(malformed("they are too short"));
        };
        if *magic != MAGIC {
            return Err(malformed("they are something else"));
        }
        // The beginning up to here is the same in every version, and the sum the end.
        let (rest, sum) = bytes
            .split_last_chunk::<4>()
            .ok_or_else(|| malformed("they are too short"))?;
        if crc32fast::hash(rest) != u32::from_le_bytes(*sum) {
            return Err(malformed("they were altered or cut"));
        }
        let mut reader = Reader(&rest[MAGIC.len()..]);
        let (version, number) = (reader.u16()?, reader.u16()?);
        if version != VERSION {
            return Err(unknown(format_args!("version {version}")));
        }
        let identity = Identity {
            boot: reader.take()?,
            net_namespace: reader.u64()?,
            pid_namespace: reader.u64()?,
            user_namespace: reader.u64()?,
            user: reader.u32()?,
            pid: reader.u32()?,
        };
        let origin = Origin {
            identity,
            start: reader.u64()?,
            name: reader.take()?,
        };
        let device = reader.take()?;
        let (id, base, whole) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (offset, length) = (reader.u64()?, reader.u64()?);
        let way =
            W::decode(number, &mut reader)?.ok_or_else(|| unknown(format_args!("way {number}")))?;
        if !reader.0.is_empty() {
            return Err(malformed("they go on behind their end"));
        }
        let fits = length > 0
            && base.checked_add(whole).is_some()
            && offset.checked_add(length).is_some_and(|end| end <= whole);
        if !fits || id == 0 {
            return Err(malformed("they describe no memory"));
        }
        Ok(Self {
            allocation: Allocation {
                origin,
                device,
                id,
                base,
                length: whole,
                way,
            },
            offset,
            length,
        })
    }
}

const MAGIC: [u8; 4] = *b"WIPC";
const VERSION: u16 = 1;
/// Bytes before what the way needs.
const HEADER: usize = 136;

/// Most bytes that a way needs.
const NEEDS: usize = 128;

const _: () = assert!(HEADER + NEEDS + 4 <= crate::transport::accelerator::Export::MAX);

/// Takes bytes from the front.
pub(crate) struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    /// The next `N`.
    /// Errors: `Malformed`: there are not so many.
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or_else(|| malformed("they are too short"))?;
        self.0 = rest;
        Ok(*taken)
    }
    fn u16(&mut self) -> Result<u16> {
        self.take().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Result<u32> {
        self.take().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cold]
fn malformed(why: &str) -> Error {
    let text = format!("the bytes are not those of exported device memory: {why}");
    Error::new(ErrorKind::Malformed, text)
}

#[cold]
fn unknown(what: std::fmt::Arguments<'_>) -> Error {
    let text = format!("the device memory was exported by {what}, which is not known here");
    Error::new(ErrorKind::VersionMismatch, text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Ways with what they need: a ticket, or the driver's bytes.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    enum Test {
        Short([u8; 32]),
        Long([u8; 128]),
    }

    impl Way for Test {
        fn number(&self) -> u16 {
            match self {
                Self::Short(_) => 1,
                Self::Long(_) => 2,
            }
        }
        fn encode(&self, out: &mut Vec<u8>) {
            match self {
                Self::Short(bytes) => out.extend_from_slice(bytes),
                Self::Long(bytes) => out.extend_from_slice(bytes),
            }
        }
        fn decode(number: u16, needs: &mut Reader<'_>) -> Result<Option<Self>> {
            Ok(match number {
                1 => Some(Self::Short(needs.take()?)),
                2 => Some(Self::Long(needs.take()?)),
                _ => None,
            })
        }
    }

    fn way() -> impl Strategy<Value = Test> {
        (any::<bool>(), any::<[u8; 32]>(), any::<u8>()).prop_map(|(short, ticket, byte)| {
            if short {
                Test::Short(ticket)
            } else {
                Test::Long([byte; 128])
            }
        })
    }

    fn origin() -> impl Strategy<Value = Origin> {
        (any::<[u8; 16]>(), any::<[u64; 4]>(), any::<[u32; 2]>()).prop_map(
            |(name, [net, pids, users, start], [user, pid])| Origin {
                identity: Identity {
                    boot: name.map(|byte| byte ^ 0x55),
                    net_namespace: net,
                    pid_namespace: pids,
                    user_namespace: users,
                    user,
                    pid,
                },
                start,
                name,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            origin in origin(),
            way in way(),
            device in any::<[u8; 16]>(),
            id in 1_u64..,
            base in 0..u64::MAX / 2,
            (whole, offset, length) in (1..u64::MAX / 2).prop_flat_map(|whole| {
                (Just(whole), 0..whole).prop_flat_map(|(whole, offset)| {
                    (Just(whole), Just(offset), 1..=whole - offset)
                })
            }),
        ) {
            let descriptor = Descriptor {
                allocation: Allocation {
                    origin,
                    device,
                    id,
                    base,
                    length: whole,
                    way,
                },
                offset,
                length,
            };
            let bytes = descriptor.encode();
            prop_assert!(bytes.len() <= crate::transport::accelerator::Export::MAX);
            prop_assert_eq!(Descriptor::<Test>::decode(&bytes).expect("its own"), descriptor);
        }

        /// What is taken is what the encoder makes, whatever the bytes are and also with a sum that is right.
        #[test]
        fn noise_is_refused_or_exact(mut bytes in prop::collection::vec(any::<u8>(), 0..300), way in 0..4_u8) {
            if bytes.len() > HEADER {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4..8].copy_from_slice(&[1, 0, way, 0]);
                // Small numbers, which may describe memory.
                for at in (96..HEADER).step_by(8) {
                    bytes[at + 1..at + 8].fill(0);
                }
                let len = HEADER + if way == 1 { 32 } else { 128 };
                bytes.resize(len, 7);
                let sum = crc32fast::hash(&bytes);
                bytes.extend_from_slice(&sum.to_le_bytes());
            }
            match Descriptor::<Test>::decode(&bytes) {
                Ok(found) => prop_assert_eq!(found.encode(), bytes),
                Err(error) => prop_assert!(matches!(
                    error.kind(),
                    ErrorKind::Malformed | ErrorKind::VersionMismatch
                )),
            }
        }
    }
}
