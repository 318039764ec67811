//! Where rank 0 is and what proves that one belongs to its group, as 128 bytes.

use std::{fmt, net::SocketAddr, str::FromStr};

use super::{
    frame::malformed,
    socket::{Address, random},
};
use crate::{
    error::{Error, ErrorKind, Result},
    types::hex,
    util::wire::Reader,
};

/// Length in bytes.
const LENGTH: usize = 128;
const MAGIC: [u8; 4] = *b"WHid";
const VERSION: u16 = 1;
/// Where the addresses begin.
const HEAD: usize = 24;
/// Bytes of an address: family, port, octets, scope.
const ENTRY: usize = 23;
/// Most addresses.
const MAX_ADDRESSES: usize = 4;

/// Where rank 0 listens, and the secret of its group: 128 bytes, or 256 hexadecimal digits, that rank 0 gives the others by any means.
///
/// Whoever has it can join: it is to be kept like a password.
///
/// ```text
/// magic 4 | version u16 | addresses u8 | 0 | secret 16 | 4 × (family 4, 6 or 0 | port u16 | octets 16 | scope u32) | 0 × 8 | crc32
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId {
    secret: [u8; 16],
    addresses: Vec<SocketAddr>,
}

impl UniqueId {
    /// An id with a new secret. Addresses past the fourth are left out.
    pub(super) fn new(mut addresses: Vec<SocketAddr>) -> Result<Self> {
        addresses.truncate(MAX_ADDRESSES);
        Ok(Self {
            secret: random()?,
            addresses,
        })
    }

    pub(super) fn secret(&self) -> &[u8] {
        &self.secret
    }

    /// Where rank 0 listens, best first.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub(super) fn places(&self) -> Vec<Address> {
        self.addresses.iter().copied().map(Address::Tcp).collect()
    }

    /// Where rank 0 listens, without the secret.
    pub(super) fn places_for_people(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        f.write_str(&places.join(" or "))
    }

    /// The id as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[self.addresses.len() as u8, 0]);
        out.extend_from_slice(&self.secret);
        for address in &self.addresses {
            let mut octets = [0; 16];
            let (family, scope) = match address {
                SocketAddr::V4(address) => {
                    if let Some(place) = octets.first_chunk_mut() {
                        *place = address.ip().octets();
                    }
                    (4, 0)
                }
                SocketAddr::V6(address) => {
                    octets = address.ip().octets();
                    (6, address.scope_id())
                }
            };
            out.push(family);
            out.extend_from_slice(&address.port().to_le_bytes());
            out.extend_from_slice(&octets);
            out.extend_from_slice(&scope.to_le_bytes());
        }
        out.resize(LENGTH - 4, 0);
        let sum = crc32fast::hash(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        let mut bytes = [0; LENGTH];
        bytes.copy_from_slice(&out);
        bytes
    }

    /// Reads an id from exactly these bytes.
    ///
    /// # Errors
    /// `Malformed` when they are not an intact id, `VersionMismatch` for one of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bytes: &[u8; LENGTH] = bytes
            .try_into()
            .map_err(|_| malformed("a unique id has 128 bytes"))?;
        let mut reader = Reader::new(bytes);
        if reader.array::<4>()? != MAGIC {
            return Err(malformed("this is not a unique id"));
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(Error::new(
                ErrorKind::VersionMismatch,
                format!("a unique id of version {version}: this side knows {VERSION}"),
            ));
        }
        let (summed, sum) = bytes
            .split_last_chunk::<4>()
            .ok_or_else(|| malformed("a unique id is cut short"))?;
        if crc32fast::hash(summed) != u32::from_le_bytes(*sum) {
            return Err(malformed("the unique id was altered"));
        }
        let count = usize::from(reader.u8()?);
        reader.u8()?;
        let secret = reader.array()?;
        if count == 0 || count > MAX_ADDRESSES {
            return Err(malformed("a unique id holds one to four addresses"));
        }
        let mut addresses = Vec::with_capacity(count);
        for _ in 0..count {
            let (family, port) = (reader.u8()?, reader.u16()?);
            let (octets, scope) = (reader.array::<16>()?, reader.u32()?);
            addresses.push(match family {
                4 => {
                    let [a, b, c, d, ..] = octets;
                    ([a, b, c, d], port).into()
                }
                6 => std::net::SocketAddrV6::new(octets.into(), port, 0, scope).into(),
                _ => return Err(malformed("an address of an unknown family")),
            });
        }
        Ok(Self { secret, addresses })
    }
}

const _: () = assert!(HEAD + MAX_ADDRESSES * ENTRY + 4 <= LENGTH);

/// 256 hexadecimal digits.
impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex::write(&self.to_bytes(), f)
    }
}

impl FromStr for UniqueId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match hex::read(text.trim()) {
            Some(bytes) => Self::from_bytes(&bytes),
            None => Err(malformed("a unique id is 256 hexadecimal digits")),
        }
    }
}

#[cfg(feature = "serde")]
crate::types::serial::as_bytes! { UniqueId: Self::to_bytes, Self::from_bytes }

/// Without the secret.
impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}
