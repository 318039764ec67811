//! The packed key of exposed memory.

use crate::{
    error::{Error, ErrorKind, Result},
    memory::region::admit,
    transport::MAX_DEVICES,
    types::{Access, DeviceKey},
    util::wire::{Field, Reader},
};

/// What a peer needs to reach exposed memory by hand: made by [`Driver::pack`](super::Driver::pack), sent to the peer as bytes in whatever way the program
/// likes. Whoever has the bytes may do what the region allows, as long as it is exposed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "uct_rkey_bundle_t")]
pub struct RemoteKey {
    pub(super) slot: u32,
    pub(super) generation: u64,
    pub(super) access: Access,
    /// In its owner's process.
    pub(super) address: u64,
    pub(super) length: u64,
    /// The segment that it lies in, which a process of the same host can map, and where there.
    pub(super) segment: Option<(u64, u64)>,
    /// The network devices that it is registered with.
    pub(super) devices: Vec<DeviceKey>,
}

const MAGIC: &[u8; 4] = b"wkey";
const VERSION: u8 = 1;
/// Bytes without devices.
const FIXED: usize = 4 + 3 + 4 + 8 + 8 + 8 + 16 + 4;
const DEVICE: usize = 12;

#[cold]
fn malformed(what: &'static str) -> Error {
    Error::new(ErrorKind::Malformed, what)
}

impl RemoteKey {
    /// Bytes of the memory.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// What may be done with the memory.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The key as bytes, 59 and 12 for each network device; the same on every machine.
    #[must_use]
    #[doc(alias = "uct_md_mkey_pack")]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED + self.devices.len() * DEVICE);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[VERSION, self.access.bits(), self.devices.len() as u8]);
        self.slot.put(&mut bytes);
        // No segment has the number 0.
        let (segment, offset) = self.segment.unwrap_or_default();
        for word in [self.generation, self.address, self.length, segment, offset] {
            word.put(&mut bytes);
        }
        self.devices
            .iter()
            .for_each(|device| device.put(&mut bytes));
        crc32fast::hash(&bytes).put(&mut bytes);
        bytes
    }

    /// Reads a key from exactly these bytes. Whether its memory is still exposed, only its owner knows.
    ///
    /// # Errors
    /// `Malformed` when they are no intact key, `VersionMismatch` when they are one of another version.
    #[doc(alias = "uct_rkey_unpack")]
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let short = || malformed("the bytes are too short for a remote key");
        let (said, sum) = bytes.split_last_chunk().ok_or_else(short)?;
        let rest = said
            .strip_prefix(MAGIC)
            .ok_or_else(|| malformed("the bytes are not a remote key"))?;
        if crc32fast::hash(said) != u32::from_le_bytes(*sum) {
            return Err(malformed("the checksum of the remote key is wrong"));
        }
        let mut rest = Reader::new(rest);
        let [version, access, count] = rest.array()?;
        if version != VERSION {
            let text = format!("a remote key of version {version}, and this side reads {VERSION}");
            return Err(Error::new(ErrorKind::VersionMismatch, text));
        }
        let (slot, generation) = (rest.u32()?, rest.u64()?);
        let (address, length) = (rest.u64()?, rest.u64()?);
        let (segment, offset) = (rest.u64()?, rest.u64()?);
        let devices = rest.whole(|rest| (0..count).map(|_| DeviceKey::read(rest)).collect());
        let devices: Vec<_> = devices
            .ok()
            .filter(|_| usize::from(count) <= MAX_DEVICES)
            .ok_or_else(|| malformed("the remote key names other devices than it counts"))?;
        let ends = address.checked_add(length).is_some() && offset.checked_add(length).is_some();
        if !ends {
            return Err(malformed("the range of the remote key wraps around"));
        }
        Ok(Self {
            slot,
            generation,
            access: Access::of_bits(access),
            address,
            length,
            segment: (segment != 0).then_some((segment, offset)),
            devices,
        })
    }

    /// That `length` bytes from `offset` on may be accessed so, as far as the key says.
    pub(super) fn check(&self, offset: u64, length: usize, access: Access) -> Result<()> {
        admit((self.access, self.length), access, offset, length as u64)
    }
}
