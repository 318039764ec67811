//! What two ranks tell each other while they make a semaphore: the counter that is offered, and of which attempt whose offer was seen.

use super::{
    registered::Registered,
    wire::{Reader, once, open, put_field, required, seal},
};
use crate::error::Result;

/// Tells one attempt of a rank from every other.
pub(crate) type Attempt = [u8; 16];

/// Longest part that goes along, in bytes.
pub(crate) const MAX_ALONG: usize = 16 << 10;

/// One message of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The sender's attempt.
    pub(crate) attempt: Attempt,
    /// The attempt of the receiver's that it has seen.
    pub(crate) answers: Option<Attempt>,
    /// The sender's counter.
    pub(crate) counter: Registered,
    /// What else the attempt is about: at most [`MAX_ALONG`] bytes.
    pub(crate) along: Vec<u8>,
}

impl Offer {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut fields = Vec::new();
        put_field(&mut fields, field::ATTEMPT, &self.attempt);
        if let Some(answers) = &self.answers {
            put_field(&mut fields, field::ANSWERS, answers);
        }
        put_field(&mut fields, field::COUNTER, &self.counter.to_bytes());
        if !self.along.is_empty() {
            put_field(&mut fields, field::ALONG, &self.along);
        }
        seal(MAGIC, VERSION, &fields)
    }

    /// # Errors
    /// `Malformed`; `VersionMismatch` for an intact offer, or counter, of another version.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut reader = open(MAGIC, VERSION, "semaphore's offer", bytes)?;
        let (mut attempt, mut answers) = (None, None);
        let (mut counter, mut along) = (None, None);
        while let Some((id, body)) = reader.field()? {
            match id {
                field::ATTEMPT => once(&mut attempt, body.whole(Reader::array)?)?,
                field::ANSWERS => once(&mut answers, body.whole(Reader::array)?)?,
                field::COUNTER => once(&mut counter, Registered::from_bytes(body.rest())?)?,
                field::ALONG => once(&mut along, body.rest().to_vec())?,
                _ => {}
            }
        }
        Ok(Self {
            attempt: required(attempt)?,
            answers,
            counter: required(counter)?,
            along: along.unwrap_or_default(),
        })
    }
}

const MAGIC: [u8; 4] = *b"WHSO";
const VERSION: u16 = 1;

mod field {
    pub(super) const ATTEMPT: u16 = 2;
    pub(super) const ANSWERS: u16 = 3;
    pub(super) const COUNTER: u16 = 4;
    pub(super) const ALONG: u16 = 5;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        protocol::{
            Descriptor,
            descriptor::RegionKey,
            wire::tests::{identities, refuses_flips, refuses_truncation, with_unknown_field},
        },
        types::{Access, MemoryType},
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
}
