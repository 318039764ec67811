//! Registered memory as another rank of a communicator gets it: a descriptor, and who lends it to whom and until when.

use super::Descriptor;
use crate::{
    error::Result,
    util::wire::{Field, Reader, fields, open, seal},
};

fields! {
    /// What [`RegisteredMemory`](crate::channel::RegisteredMemory) is on the way.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct Registered {
        /// The communicator that it was registered with.
        pub(crate) communicator: [u8; 16] = 2,
        /// The owner.
        pub(crate) rank: u32 = 3,
        /// When the owner takes it back, in milliseconds since 1970 by the owner's clock.
        pub(crate) expires: Option<u64> = 4 or None,
        pub(crate) descriptor: Descriptor = 5,
    }
}

impl Registered {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        seal(MAGIC, VERSION, &self.encode_fields())
    }

    /// # Errors
    /// As [`Descriptor::from_bytes`].
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Self::decode_fields(open(MAGIC, VERSION, "registered memory", bytes)?)
    }
}

impl Field for Descriptor {
    fn put(&self, out: &mut Vec<u8>) {
        self.to_bytes().put(out);
    }

    fn read(body: &mut Reader<'_>) -> Result<Self> {
        Self::from_bytes(body.rest())
    }
}

const MAGIC: [u8; 4] = *b"WHRM";
const VERSION: u16 = 1;

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        protocol::descriptor::{self, RegionKey},
        types::{Access, MemoryType},
        util::wire::tests::{
            hex, identities, refuses_flips, refuses_truncation, with_unknown_field,
        },
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
            let key = RegionKey { slot: 3, generation: generation | 1 };
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

    pub(crate) fn pinned() -> Registered {
        Registered {
            communicator: *b"fedcba9876543210",
            rank: 0x7172_7374,
            expires: Some(0x0807_0605_0403_0201),
            descriptor: descriptor::tests::pinned(),
        }
    }

    #[test]
    fn its_bytes_stay_what_they_are() {
        let mut registered = pinned();
        assert_eq!(
            hex(&registered.to_bytes()),
            "5748524d0100e1000200100066656463626139383736353433323130030004007473727104000800\
             01020304050607080500a9005748444b0100a9000200300030313233343536373839616263646566\
             08070605040302011817161514131211282726252423222134333231444342410300040002000605\
             040001000105001c0054535251000000006261000000000000040302011917161514131211060018\
             00282726252423222132310000000000004847464544434241070018000700000000000000080000\
             0009000000000000000a0000000800000045eda87a2f700dc6"
        );
        registered.expires = None;
        assert_eq!(
            hex(&registered.to_bytes()),
            "5748524d0100d500020010006665646362613938373635343332313003000400747372710500a900\
             5748444b0100a9000200300030313233343536373839616263646566080706050403020118171615\
             14131211282726252423222134333231444342410300040002000605040001000105001c00545352\
             51000000006261000000000000040302011917161514131211060018002827262524232221323100\
             000000000048474645444342410700180007000000000000000800000009000000000000000a0000\
             000800000045eda87a7ad96825"
        );
    }
}
