//! Exposed memory as a peer sees it: what the owner gives away so that others may put and get.

use std::{fmt, str::FromStr};

use super::wire::{Reader, identity_bytes, malformed, once, open, put_field, required, seal};
use crate::{
    error::{Error, ErrorKind, Result},
    types::{Access, DeviceKey, Identity, MemoryType, hex, text::no},
};

/// The key to memory that another worker exposes; opaque bytes to programs, who pass it on by any means.
///
/// It carries a checksum, so that altered bytes are an error. Where the owner's software serves an
/// access, it checks key, bounds and rights of every operation again. A peer on the same host, of the same user, that reaches the memory
/// directly (mapped, or by `cma`) checks them itself: it is trusted with what it maps, as it is with everything that a debugger of that user
/// could reach. Memory that is exposed no longer answers `StaleKey` either way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[doc(alias("ucp_rkey_h", "ucp_rkey_pack"))]
#[doc(alias(
    "ucp_memh_pack",
    "ucp_rkey_buffer_release",
    "ucp_memh_buffer_release",
    "ucp_memh_buffer_release_params_t"
))]
pub struct Descriptor {
    identity: Identity,
    memory_type: MemoryType,
    access: Access,
    address: u64,
    length: u64,
    key: RegionKey,
    shm: Option<ShmRoute>,
    devices: Vec<DeviceKey>,
    read_back: bool,
}

/// The owner's name for an exposed region: a place in its table, and how often that place was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RegionKey {
    pub(crate) slot: u32,
    pub(crate) generation: u64,
}

/// Where the region lies in a shared-memory segment of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ShmRoute {
    /// The owner's number of the segment.
    pub(crate) segment: u64,
    /// Where the region begins in the segment, in bytes.
    pub(crate) offset: u64,
    /// Length of the segment, in bytes; at least the end of the region.
    pub(crate) segment_length: u64,
}

impl Descriptor {
    /// A descriptor of `length` bytes at `address` of the owner.
    ///
    /// # Errors
    /// `InvalidArgument` when the range wraps around, or does not lie in the segment of `shm`.
    pub(crate) fn new(
        identity: Identity,
        memory_type: MemoryType,
        access: Access,
        address: u64,
        length: u64,
        key: RegionKey,
        shm: Option<ShmRoute>,
    ) -> Result<Self> {
        let descriptor = Self {
            identity,
            memory_type,
            access,
            address,
            length,
            key,
            shm,
            devices: Vec::new(),
            read_back: false,
        };
        if descriptor.is_possible() {
            Ok(descriptor)
        } else {
            Err(Error::new(
                ErrorKind::InvalidArgument,
                "the exposed range wraps around or leaves its segment",
            ))
        }
    }

    /// The kind of memory.
    #[must_use]
    pub fn memory_type(&self) -> MemoryType {
        self.memory_type
    }

    /// With the keys by which network devices reach the memory; those of the first [`MAX_DEVICES`] devices.
    /// `read_back`: whoever writes by them reads a byte afterwards, by the same device of the owner's.
    pub(crate) fn with_devices(mut self, keys: &[DeviceKey], read_back: bool) -> Self {
        self.devices = keys[..keys.len().min(MAX_DEVICES)].to_vec();
        self.read_back = read_back;
        self
    }

    /// What the owner allows.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Length of the memory, in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether the memory has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// First byte, as the owner addresses it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn key(&self) -> RegionKey {
        self.key
    }

    pub(crate) fn shm(&self) -> Option<ShmRoute> {
        self.shm
    }

    /// The keys by which the owner's network devices reach the memory.
    pub(crate) fn devices(&self) -> &[DeviceKey] {
        &self.devices
    }

    /// Whether what they write is to be read back.
    pub(crate) fn is_read_back(&self) -> bool {
        self.read_back
    }

    /// The descriptor as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut fields = Vec::with_capacity(160);
        put_field(
            &mut fields,
            field::IDENTITY,
            &identity_bytes(&self.identity),
        );
        put_field(
            &mut fields,
            field::MEMORY_TYPE,
            &memory_type_bytes(self.memory_type),
        );
        put_field(&mut fields, field::ACCESS, &[self.access.bits()]);
        let mut region = Vec::with_capacity(28);
        region.extend_from_slice(&self.address.to_le_bytes());
        region.extend_from_slice(&self.length.to_le_bytes());
        region.extend_from_slice(&self.key.slot.to_le_bytes());
        region.extend_from_slice(&self.key.generation.to_le_bytes());
        put_field(&mut fields, field::REGION, &region);
        if let Some(shm) = self.shm {
            let mut route = Vec::with_capacity(24);
            route.extend_from_slice(&shm.segment.to_le_bytes());
            route.extend_from_slice(&shm.offset.to_le_bytes());
            route.extend_from_slice(&shm.segment_length.to_le_bytes());
            put_field(&mut fields, field::SHM, &route);
        }
        if !self.devices.is_empty() {
            let mut route = Vec::with_capacity(self.devices.len() * 12);
            for key in &self.devices {
                route.extend_from_slice(&key.device.to_le_bytes());
                route.extend_from_slice(&key.key.to_le_bytes());
            }
            put_field(&mut fields, field::DEVICES, &route);
        }
        if self.read_back {
            put_field(&mut fields, field::READ_BACK, &[]);
        }
        seal(MAGIC, VERSION, &fields)
    }

    /// Reads a descriptor from exactly these bytes.
    ///
    /// # Errors
    /// `Malformed` when they are not an intact descriptor, `VersionMismatch` when it is of a version that this side does not
    /// know, `Unsupported` when it is about a kind of memory that this side does not know.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut reader = open(MAGIC, VERSION, "descriptor", bytes)?;
        let (mut identity, mut memory_type) = (None, None);
        let (mut access, mut region, mut shm) = (None, None, None);
        let (mut devices, mut read_back) = (None, None);
        while let Some((id, body)) = reader.field()? {
            match id {
                field::IDENTITY => once(&mut identity, body.whole(Reader::identity)?)?,
                field::MEMORY_TYPE => once(&mut memory_type, body.whole(read_memory_type)?)?,
                // A right that this side does not know is one that it does not use.
                field::ACCESS => once(&mut access, Access::of_bits(body.whole(Reader::u8)?))?,
                field::REGION => once(&mut region, body.whole(read_region)?)?,
                field::SHM => once(&mut shm, body.whole(read_shm)?)?,
                field::DEVICES => once(&mut devices, body.whole(read_devices)?)?,
                field::READ_BACK => once(&mut read_back, body.whole(|_| Ok(()))?)?,
                _ => {}
            }
        }
        let (address, length, key) = required(region)?;
        let descriptor = Self {
            identity: required(identity)?,
            memory_type: required(memory_type)?,
            access: required(access)?,
            address,
            length,
            key,
            shm,
            devices: devices.unwrap_or_default(),
            read_back: read_back.is_some(),
        };
        if descriptor.is_possible() {
            Ok(descriptor)
        } else {
            Err(malformed(
                "the range of the descriptor wraps around or leaves its segment",
            ))
        }
    }

    /// Whether the range ends, and ends in its segment.
    fn is_possible(&self) -> bool {
        self.address.checked_add(self.length).is_some()
            && self.shm.is_none_or(|shm| {
                shm.offset
                    .checked_add(self.length)
                    .is_some_and(|end| end <= shm.segment_length)
            })
    }
}

/// Its bytes, as hexadecimal digits.
impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex::write(&self.to_bytes(), f)
    }
}

impl FromStr for Descriptor {
    type Err = Error;

    /// From its `Display` form.
    ///
    /// # Errors
    /// `InvalidArgument`: other than hexadecimal digits; and as [`Descriptor::from_bytes`].
    fn from_str(text: &str) -> Result<Self> {
        match hex::read(text) {
            Some(bytes) => Self::from_bytes(&bytes),
            None => Err(no("descriptor", text, "hexadecimal digits")),
        }
    }
}

#[cfg(feature = "serde")]
crate::types::serial::as_bytes! { Descriptor: Self::to_bytes, Self::from_bytes }

impl TryFrom<&[u8]> for Descriptor {
    type Error = Error;

    fn try_from(bytes: &[u8]) -> Result<Self> {
        Self::from_bytes(bytes)
    }
}

/// The kind, and the device's index where there is one.
fn memory_type_bytes(memory_type: MemoryType) -> [u8; 4] {
    let (kind, device): (u16, u16) = match memory_type {
        MemoryType::Host => (0, 0),
        MemoryType::HostPinned => (1, 0),
        MemoryType::Cuda(index) => (2, index),
        MemoryType::CudaManaged => (3, 0),
        MemoryType::Rocm(index) => (4, index),
        MemoryType::RocmManaged => (5, 0),
        MemoryType::Gaudi(index) => (6, index),
    };
    let ([a, b], [c, d]) = (kind.to_le_bytes(), device.to_le_bytes());
    [a, b, c, d]
}

fn read_memory_type(reader: &mut Reader<'_>) -> Result<MemoryType> {
    match (reader.u16()?, reader.u16()?) {
        (0, 0) => Ok(MemoryType::Host),
        (1, 0) => Ok(MemoryType::HostPinned),
        (2, index) => Ok(MemoryType::Cuda(index)),
        (3, 0) => Ok(MemoryType::CudaManaged),
        (4, index) => Ok(MemoryType::Rocm(index)),
        (5, 0) => Ok(MemoryType::RocmManaged),
        (6, index) => Ok(MemoryType::Gaudi(index)),
        (kind, _) => Err(Error::new(
            ErrorKind::Unsupported,
            format!("the descriptor is about memory of kind {kind}, which is not known here"),
        )),
    }
}

fn read_region(reader: &mut Reader<'_>) -> Result<(u64, u64, RegionKey)> {
    let (address, length) = (reader.u64()?, reader.u64()?);
    Ok((
        address,
        length,
        RegionKey {
            slot: reader.u32()?,
            generation: reader.u64()?,
        },
    ))
}

fn read_shm(reader: &mut Reader<'_>) -> Result<ShmRoute> {
    Ok(ShmRoute {
        segment: reader.u64()?,
        offset: reader.u64()?,
        segment_length: reader.u64()?,
    })
}

/// All of them; of more than [`MAX_DEVICES`], which another version may name, the first.
fn read_devices(reader: &mut Reader<'_>) -> Result<Vec<DeviceKey>> {
    let mut devices = Vec::new();
    while !reader.is_empty() {
        let (device, key) = (reader.u64()?, reader.u32()?);
        if devices.len() < MAX_DEVICES {
            devices.push(DeviceKey { device, key });
        }
    }
    Ok(devices)
}

/// The most devices that are named.
const MAX_DEVICES: usize = 8;

const MAGIC: [u8; 4] = *b"WHDK";
const VERSION: u16 = 1;

mod field {
    pub(super) const IDENTITY: u16 = 2;
    pub(super) const MEMORY_TYPE: u16 = 3;
    pub(super) const ACCESS: u16 = 4;
    pub(super) const REGION: u16 = 5;
    pub(super) const SHM: u16 = 6;
    pub(super) const DEVICES: u16 = 7;
    pub(super) const READ_BACK: u16 = 8;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::wire::tests::{
        identities, refuses_flips, refuses_truncation, with_unknown_field,
    };

    prop_compose! {
        fn descriptors()(
            identity in identities(),
            access in 0u8..8,
            length in prop_oneof![0u64..1 << 40, any::<u64>()],
            slot in any::<u32>(),
            generation in any::<u64>(),
            segment in prop::option::of(any::<u64>()),
            devices in prop::collection::vec((any::<u64>(), any::<u32>()), 0..9),
            read_back in any::<bool>(),
        )(
            address in 0..=u64::MAX - length,
            offset in 0..=u64::MAX - length,
            identity in Just(identity),
            access in Just(access),
            length in Just(length),
            key in Just(RegionKey { slot, generation }),
            segment in Just(segment),
            devices in Just(devices),
            read_back in Just(read_back),
        ) -> Descriptor {
            let shm = segment.map(|segment| ShmRoute { segment, offset, segment_length: offset + length });
            let access = Access::of_bits(access);
            let devices: Vec<_> = devices.into_iter().map(|(device, key)| DeviceKey { device, key }).collect();
            Descriptor::new(identity, MemoryType::Host, access, address, length, key, shm).unwrap().with_devices(&devices, read_back)
        }
    }

    proptest! {
        #[test]
        fn goes_round_and_nothing_altered_does(
            descriptor in descriptors(),
            change in 1u8..,
            unknown in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let bytes = descriptor.to_bytes();
            prop_assert_eq!(&Descriptor::try_from(&bytes[..]).unwrap(), &descriptor);
            prop_assert_eq!(&Descriptor::from_bytes(&with_unknown_field(&bytes, &unknown)).unwrap(), &descriptor);
            refuses_truncation(&bytes, Descriptor::from_bytes);
            refuses_flips(&bytes, change, Descriptor::from_bytes);
        }

        #[test]
        fn anything_else_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Descriptor::from_bytes(&bytes).is_err());
            // Arbitrary fields behind an intact envelope.
            let _ = Descriptor::from_bytes(&seal(MAGIC, VERSION, &bytes));
        }

        #[test]
        fn impossible_ranges_are_refused(descriptor in descriptors(), beyond in 1u64..) {
            let mut wrapped = descriptor.clone();
            wrapped.address = (u64::MAX - descriptor.length).saturating_add(beyond);
            if wrapped.address.checked_add(wrapped.length).is_none() {
                prop_assert_eq!(Descriptor::from_bytes(&wrapped.to_bytes()).unwrap_err().kind(), ErrorKind::Malformed);
            }
            let mut outside = descriptor;
            if let Some(shm) = &mut outside.shm && let Some(offset) = shm.offset.checked_add(beyond) {
                shm.offset = offset;
                prop_assert_eq!(Descriptor::from_bytes(&outside.to_bytes()).unwrap_err().kind(), ErrorKind::Malformed);
            }
        }
    }

    #[test]
    fn unknown_memory_says_so() {
        let mut fields = Vec::new();
        put_field(&mut fields, field::MEMORY_TYPE, &[9, 0, 0, 0]);
        let error = Descriptor::from_bytes(&seal(MAGIC, VERSION, &fields)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
