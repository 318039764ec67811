//! What two ranks tell each other while they make a semaphore: the counter that is offered, and of which attempt whose offer was seen.

use super::registered::Registered;
use crate::{
    error::Result,
    util::wire::{Field, Reader, fields, open, seal},
};

/// Tells one attempt of a rank from every other.
pub(crate) type Attempt = [u8; 16];

/// Longest part that goes along, in bytes.
pub(crate) const MAX_ALONG: usize = 16 << 10;

fields! {
    /// One message of an attempt.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct Offer {
        /// The sender's attempt.
        pub(crate) attempt: Attempt = 2,
        /// The attempt of the receiver's that it has seen.
        pub(crate) answers: Option<Attempt> = 3 or None,
        /// The sender's counter.
        pub(crate) counter: Registered = 4,
        /// What else the attempt is about: at most [`MAX_ALONG`] bytes.
        pub(crate) along: Vec<u8> = 5 or Vec::new(),
    }
}

impl Offer {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        seal(MAGIC, VERSION, &self.encode_fields())
    }

    /// # Errors
    /// `Malformed`; `VersionMismatch` for an intact offer, or counter, of another version.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Self::decode_fields(open(MAGIC, VERSION, "semaphore's offer", bytes)?)
    }
}

impl Field for Registered {
    fn put(&self, out: &mut Vec<u8>) {
        self.to_bytes().put(out);
    }

    fn read(body: &mut Reader<'_>) -> Result<Self> {
        Self::from_bytes(body.rest())
    }
}

const MAGIC: [u8; 4] = *b"WHSO";
const VERSION: u16 = 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        protocol::{Descriptor, descriptor::RegionKey, registered},
        types::{Access, MemoryType},
        util::wire::tests::{
            hex, identities, refuses_flips, refuses_truncation, with_unknown_field,
        },
    };

    proptest! {
        #[test]
        fn goes_round_and_nothing_altered_does(
            identity in identities(),
            attempt in any::<Attempt>(),
            answers in prop::option::of(any::<Attempt>()),
            along in prop::collection::vec(any::<u8>(), 0..50),
            change in 1u8..,
            unknown in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let key = RegionKey { slot: 3, generation: 1 };
            let descriptor = Descriptor::new(identity, MemoryType::Host, Access::WRITE, 8, 77, key, None).unwrap();
            let counter = Registered { communicator: [1; 16], rank: 1, expires: None, descriptor };
            let offer = Offer { attempt, answers, counter, along };
            let bytes = offer.to_bytes();
            prop_assert_eq!(&Offer::from_bytes(&bytes).unwrap(), &offer);
            prop_assert_eq!(&Offer::from_bytes(&with_unknown_field(&bytes, &unknown)).unwrap(), &offer);
            refuses_truncation(&bytes, Offer::from_bytes);
            refuses_flips(&bytes, change, Offer::from_bytes);
        }

        #[test]
        fn anything_else_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Offer::from_bytes(&bytes).is_err());
            // Arbitrary fields behind an intact envelope.
            let _ = Offer::from_bytes(&seal(MAGIC, VERSION, &bytes));
        }
    }

    #[test]
    fn its_bytes_stay_what_they_are() {
        let mut offer = Offer {
            attempt: *b"an attempt, 16 b",
            answers: Some(*b"its answer, 16 b"),
            counter: registered::tests::pinned(),
            along: b"along".to_vec(),
        };
        assert_eq!(
            hex(&offer.to_bytes()),
            "5748534f0100220102001000616e20617474656d70742c20313620620300100069747320616e7377\
             65722c20313620620400e1005748524d0100e1000200100066656463626139383736353433323130\
             03000400747372710400080001020304050607080500a9005748444b0100a9000200300030313233\
             34353637383961626364656608070605040302011817161514131211282726252423222134333231\
             444342410300040002000605040001000105001c0054535251000000006261000000000000040302\
             01191716151413121106001800282726252423222132310000000000004847464544434241070018\
             0007000000000000000800000009000000000000000a0000000800000045eda87a2f700dc6050005\
             00616c6f6e67c08e3310"
        );
        offer.answers = None;
        offer.along.clear();
        assert_eq!(
            hex(&offer.to_bytes()),
            "5748534f0100050102001000616e20617474656d70742c20313620620400e1005748524d0100e100\
             02001000666564636261393837363534333231300300040074737271040008000102030405060708\
             0500a9005748444b0100a90002003000303132333435363738396162636465660807060504030201\
             1817161514131211282726252423222134333231444342410300040002000605040001000105001c\
             00545352510000000062610000000000000403020119171615141312110600180028272625242322\
             21323100000000000048474645444342410700180007000000000000000800000009000000000000\
             000a0000000800000045eda87a2f700dc642aeab4a"
        );
    }
}
