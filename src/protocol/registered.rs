//! Registered memory as another rank of a communicator gets it: a descriptor, and who lends it to whom and until when.

use super::{
    Descriptor,
    wire::{Reader, once, open, put_field, required, seal},
};
use crate::error::Result;

/// What [`RegisteredMemory`](crate::channel::RegisteredMemory) is on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registered {
    /// The communicator that it was registered with.
    pub(crate) communicator: [u8; 16],
    /// The owner.
    pub(crate) rank: u32,
    /// When the owner takes it back, in milliseconds since 1970 by the owner's clock.
    pub(crate) expires: Option<u64>,
    pub(crate) descriptor: Descriptor,
}

impl Registered {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let descriptor = self.descriptor.to_bytes();
        let mut fields = Vec::with_capacity(64 + descriptor.len());
        put_field(&mut fields, field::COMMUNICATOR, &self.communicator);
        put_field(&mut fields, field::RANK, &self.rank.to_le_bytes());
        if let Some(expires) = self.expires {
            put_field(&mut fields, field::EXPIRES, &expires.to_le_bytes());
        }
        put_field(&mut fields, field::DESCRIPTOR, &descriptor);
        seal(MAGIC, VERSION, &fields)
    }

    /// # Errors
    /// As [`Descriptor::from_bytes`].
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut reader = open(MAGIC, VERSION, "registered memory", bytes)?;
        let (mut communicator, mut rank) = (None, None);
        let (mut expires, mut descriptor) = (None, None);
        while let Some((id, body)) = reader.field()? {
            match id {
                field::COMMUNICATOR => once(&mut communicator, body.whole(Reader::array)?)?,
                field::RANK => once(&mut rank, body.whole(Reader::u32)?)?,
                field::EXPIRES => once(&mut expires, body.whole(Reader::u64)?)?,
                field::DESCRIPTOR => once(&mut descriptor, Descriptor::from_bytes(body.rest())?)?,
                _ => {}
            }
        }
        Ok(Self {
            communicator: required(communicator)?,
            rank: required(rank)?,
            expires,
            descriptor: required(descriptor)?,
        })
    }
}

const MAGIC: [u8; 4] = *b"WHRM";
const VERSION: u16 = 1;

mod field {
    pub(super) const COMMUNICATOR: u16 = 2;
    pub(super) const RANK: u16 = 3;
    pub(super) const EXPIRES: u16 = 4;
    pub(super) const DESCRIPTOR: u16 = 5;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        protocol::{
            descriptor::RegionKey,
            wire::tests::{identities, refuses_flips, refuses_truncation, with_unknown_field},
        },
        types::{Access, MemoryType},
    };

    proptest! {
        #[test]
        fn goes_round_and_nothing_altered_does(
            identity in identities(),
            communicator in any::<[u8; 16]>(),
            rank in any::<u32>(),
            expires in prop::option::of(any::<u64>()),
            generation in any::<u64>(),
            change in 1u8..,
            unknown in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let key = RegionKey { slot: 3, generation };
            let descriptor = Descriptor::new(identity, MemoryType::Cuda(1), Access::READ, 4096, 77, key, None).unwrap();
            let registered = Registered { communicator, rank, expires, descriptor };
            let bytes = registered.to_bytes();
            prop_assert_eq!(&Registered::from_bytes(&bytes).unwrap(), &registered);
            prop_assert_eq!(&Registered::from_bytes(&with_unknown_field(&bytes, &unknown)).unwrap(), &registered);
            refuses_truncation(&bytes, Registered::from_bytes);
            refuses_flips(&bytes, change, Registered::from_bytes);
        }

        #[test]
        fn anything_else_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Registered::from_bytes(&bytes).is_err());
            // Arbitrary fields behind an intact envelope.
            let _ = Registered::from_bytes(&seal(MAGIC, VERSION, &bytes));
        }
    }
}
