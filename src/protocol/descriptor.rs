//! Exposed memory as a peer sees it: what the owner gives away so that others may put and get.

use std::{fmt, str::FromStr};

use crate::{
    error::{Error, ErrorKind, Result},
    types::{Access, DeviceKey, Identity, MemoryType, hex, text::no},
    util::wire::{Field, Reader, fields, malformed, open, seal, sequence},
};

fields! {
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
        identity: Identity = 2,
        memory_type: MemoryType = 3,
        access: Access = 4,
        region: Region = 5,
        shm: Option<ShmRoute> = 6 or None,
        devices: Vec<DeviceKey> = 7 or Vec::new(),
        /// There, of no bytes, or not.
        read_back: Option<[u8; 0]> = 8 or None,
    }
}

/// The range, as the owner addresses it, and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Region {
    address: u64,
    length: u64,
    key: RegionKey,
}

/// The owner's name for an exposed region: a place in its table, and a random odd number for this use of it.
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

sequence! { Region { address, length, key } }
sequence! { RegionKey { slot, generation } }
sequence! { ShmRoute { segment, offset, segment_length } }

impl Descriptor {
    /// A descriptor of `length` bytes at `address` of the owner.
    /// Errors: `InvalidArgument` when the range wraps around, or does not lie in the segment of `shm`; when the key is none that a region has.
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
            region: Region {
                address,
                length,
                key,
            },
            shm,
            devices: Vec::new(),
            read_back: None,
        };
        if descriptor.is_possible() {
            Ok(descriptor)
        } else {
            Err(Error::new(
                ErrorKind::InvalidArgument,
                "the exposed range wraps around or leaves its segment, or its key is none",
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
        self.read_back = read_back.then_some([]);
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
        self.region.length
    }

    /// Whether the memory has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.region.length == 0
    }

    /// First byte, as the owner addresses it.
    pub(crate) fn address(&self) -> u64 {
        self.region.address
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn key(&self) -> RegionKey {
        self.region.key
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
        self.read_back.is_some()
    }

    /// The descriptor as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        seal(MAGIC, VERSION, &self.encode_fields())
    }

    /// Reads a descriptor from exactly these bytes.
    ///
    /// # Errors
    /// `Malformed` when they are not an intact descriptor, `VersionMismatch` when it is of a version that this side does not
    /// know, `Unsupported` when it is about a kind of memory that this side does not know.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let descriptor = Self::decode_fields(open(MAGIC, VERSION, "descriptor", bytes)?)?;
        if descriptor.is_possible() {
            Ok(descriptor)
        } else {
            Err(malformed(
                "the range of the descriptor wraps around or leaves its segment, or its key is none",
            ))
        }
    }

    /// Whether the range ends, and ends in its segment, and the key is one that a region may have: what stands in a peer's table for no region is even.
    fn is_possible(&self) -> bool {
        self.region.key.generation % 2 == 1
            && self
                .region
                .address
                .checked_add(self.region.length)
                .is_some()
            && self.shm.is_none_or(|shm| {
                shm.offset
                    .checked_add(self.region.length)
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
impl Field for MemoryType {
    fn put(&self, out: &mut Vec<u8>) {
        let (kind, device): (u16, u16) = match *self {
            Self::Host => (0, 0),
            Self::HostPinned => (1, 0),
            Self::Cuda(index) => (2, index),
            Self::CudaManaged => (3, 0),
            Self::Rocm(index) => (4, index),
            Self::RocmManaged => (5, 0),
            Self::Gaudi(index) => (6, index),
        };
        kind.put(out);
        device.put(out);
    }

    fn read(body: &mut Reader<'_>) -> Result<Self> {
        match (body.u16()?, body.u16()?) {
            (0, 0) => Ok(Self::Host),
            (1, 0) => Ok(Self::HostPinned),
            (2, index) => Ok(Self::Cuda(index)),
            (3, 0) => Ok(Self::CudaManaged),
            (4, index) => Ok(Self::Rocm(index)),
            (5, 0) => Ok(Self::RocmManaged),
            (6, index) => Ok(Self::Gaudi(index)),
            (kind, _) => Err(Error::new(
                ErrorKind::Unsupported,
                format!("the descriptor is about memory of kind {kind}, which is not known here"),
            )),
        }
    }
}

/// A right that this side does not know is one that it does not use.
impl Field for Access {
    fn put(&self, out: &mut Vec<u8>) {
        self.bits().put(out);
    }

    fn read(body: &mut Reader<'_>) -> Result<Self> {
        body.u8().map(Self::of_bits)
    }
}

/// Of more than [`MAX_DEVICES`], which another version may name, the first.
impl Field for Vec<DeviceKey> {
    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|key| key.put(out));
    }

    fn read(body: &mut Reader<'_>) -> Result<Self> {
        let mut devices = Self::new();
        while !body.is_empty() {
            devices.push(DeviceKey::read(body)?);
        }
        devices.truncate(MAX_DEVICES);
        Ok(devices)
    }
}

/// The most devices that are named.
const MAX_DEVICES: usize = 8;

const MAGIC: [u8; 4] = *b"WHDK";
const VERSION: u16 = 1;

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::util::wire::{
        put_field,
        tests::{hex, identities, identity, refuses_flips, refuses_truncation, with_unknown_field},
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
            key in Just(RegionKey { slot, generation: generation | 1 }),
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
            wrapped.region.address = (u64::MAX - descriptor.region.length).saturating_add(beyond);
            if wrapped.region.address.checked_add(wrapped.region.length).is_none() {
                prop_assert_eq!(Descriptor::from_bytes(&wrapped.to_bytes()).unwrap_err().kind(), ErrorKind::Malformed);
            }
            // What stands in the table of a peer where nothing is exposed, or no longer.
            for generation in [0, !descriptor.region.key.generation] {
                let mut forged = descriptor.clone();
                forged.region.key.generation = generation;
                prop_assert_eq!(Descriptor::from_bytes(&forged.to_bytes()).unwrap_err().kind(), ErrorKind::Malformed);
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
        put_field(&mut fields, 3, &[9, 0, 0, 0]);
        let error = Descriptor::from_bytes(&seal(MAGIC, VERSION, &fields)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    pub(crate) fn pinned() -> Descriptor {
        let key = RegionKey {
            slot: 0x0102_0304,
            generation: 0x1112_1314_1516_1719,
        };
        let shm = ShmRoute {
            segment: 0x2122_2324_2526_2728,
            offset: 0x3132,
            segment_length: 0x4142_4344_4546_4748,
        };
        let (memory, access) = (MemoryType::Cuda(0x0506), Access::READ);
        let devices = [
            DeviceKey { device: 7, key: 8 },
            DeviceKey { device: 9, key: 10 },
        ];
        Descriptor::new(
            identity(),
            memory,
            access,
            0x5152_5354,
            0x6162,
            key,
            Some(shm),
        )
        .unwrap()
        .with_devices(&devices, true)
    }

    #[test]
    fn its_bytes_stay_what_they_are() {
        assert_eq!(
            hex(&pinned().to_bytes()),
            "5748444b0100a9000200300030313233343536373839616263646566080706050403020118171615\
             14131211282726252423222134333231444342410300040002000605040001000105001c00545352\
             51000000006261000000000000040302011917161514131211060018002827262524232221323100\
             000000000048474645444342410700180007000000000000000800000009000000000000000a0000\
             000800000045eda87a"
        );
        let key = pinned().region.key;
        let least = Descriptor::new(identity(), MemoryType::Host, Access::WRITE, 1, 2, key, None);
        assert_eq!(
            hex(&least.unwrap().to_bytes()),
            "5748444b01006d000200300030313233343536373839616263646566080706050403020118171615\
             14131211282726252423222134333231444342410300040000000000040001000205001c00010000\
             000000000002000000000000000403020119171615141312116160facd"
        );
    }
}
