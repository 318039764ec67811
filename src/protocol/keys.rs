//! Keys: what a worker alone can prove, and the id that says so.
//!
//! A worker makes a key pair (X25519) when it is made. Its id is the beginning of a hash of the public half, so whoever has the id can
//! tell that key from every other.

use curve25519_dalek::{EdwardsPoint, MontgomeryPoint};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::{
    error::{Error, ErrorKind, Result},
    types::WorkerId,
};

/// The public half of a key pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PublicKey(pub(crate) [u8; 32]);

impl PublicKey {
    /// The worker whose key it is.
    pub(crate) fn worker(&self) -> WorkerId {
        let digest = Sha256::new_with_prefix(b"wharf worker")
            .chain_update(self.0)
            .finalize();
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        WorkerId(id)
    }
}

/// A public key, ready to be multiplied.
#[derive(Clone, Copy)]
pub(crate) struct Factor {
    key: PublicKey,
    /// The same point on the Edwards curve, where that is faster: its multiplication uses the processor's vectors, which pays for the way there
    /// and back; the ladder on the Montgomery curve does not. `None` too for a point of the twist, for which the ladder alone is defined.
    edwards: Option<EdwardsPoint>,
}

impl From<PublicKey> for Factor {
    fn from(key: PublicKey) -> Self {
        let point = || MontgomeryPoint(key.0).to_edwards(0);
        let edwards = has_vectors().then(point).flatten();
        Self { key, edwards }
    }
}

impl Factor {
    /// X25519: of the two points with this coordinate either gives the same.
    fn times(&self, secret: [u8; 32]) -> [u8; 32] {
        let product = match self.edwards {
            Some(point) => point.mul_clamped(secret).to_montgomery(),
            None => MontgomeryPoint(self.key.0).mul_clamped(secret),
        };
        product.to_bytes()
    }
}

/// Whether the library multiplies by vectors on this processor.
fn has_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// A key pair: a worker's, or that of one handshake.
#[derive(Clone)]
pub(crate) struct PrivateKey {
    secret: Zeroizing<[u8; 32]>,
    public: PublicKey,
}

/// What the holders of two private keys know, and nobody else.
pub(crate) type Agreed = Zeroizing<[u8; 32]>;

impl PrivateKey {
    /// Made of 32 random bytes.
    pub(crate) fn new(random: [u8; 32]) -> Self {
        let public = PublicKey(MontgomeryPoint::mul_base_clamped(random).to_bytes());
        Self {
            secret: Zeroizing::new(random),
            public,
        }
    }

    pub(crate) fn public(&self) -> PublicKey {
        self.public
    }

    /// What this key and another have in common.
    ///
    /// # Errors
    /// `Malformed`: the other is no key but a point with which everything has the same in common.
    pub(crate) fn agree(&self, other: &Factor) -> Result<Agreed> {
        let agreed = Zeroizing::new(other.times(*self.secret));
        match *agreed == [0; 32] {
            true => Err(Error::new(
                ErrorKind::Malformed,
                "the peer's key is none that proves anything",
            )),
            false => Ok(agreed),
        }
    }
}

/// Without the secret half.
impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrivateKey({})", self.public.worker())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Both ways are the same function, for points of the curve and of its twist, of small order and in every spelling.
        #[test]
        fn vectors_multiply_as_the_ladder_does(
            point in prop_oneof![
                4 => any::<[u8; 32]>(),
                1 => any::<[u8; 32]>().prop_map(|secret| PrivateKey::new(secret).public().0),
                1 => (0..=255_u8, any::<bool>(), any::<bool>()).prop_map(|(first, is_high, top)| {
                    let mut point = [if is_high { 0xff } else { 0 }; 32];
                    point[0] = first;
                    point[31] = point[31] & 0x7f | u8::from(top) << 7;
                    point
                }),
            ],
            secret in any::<[u8; 32]>(),
        ) {
            let ladder = MontgomeryPoint(point).mul_clamped(secret).to_bytes();
            if let Some(edwards) = MontgomeryPoint(point).to_edwards(0) {
                prop_assert_eq!(edwards.mul_clamped(secret).to_montgomery().to_bytes(), ladder);
            }
            prop_assert_eq!(Factor::from(PublicKey(point)).times(secret), ladder);
        }
    }

    fn bytes(hex: &str) -> [u8; 32] {
        std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hex"))
    }

    /// The example of RFC 7748, 6.1, and what an attacker would send.
    #[test]
    fn two_keys_agree_as_the_standard_says() {
        let bob = PrivateKey::new(bytes(
            "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
        ));
        assert_eq!(
            bob.public().0,
            bytes("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
        );
        let alice = PublicKey(bytes(
            "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
        ));
        assert_eq!(
            *bob.agree(&alice.into()).expect("a key"),
            bytes("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
        );
        assert_ne!(alice.worker(), bob.public().worker());
        assert!(!format!("{bob:?}").contains("5dab"), "the secret half");
        let mut one = [0; 32];
        one[0] = 1;
        for point in [[0; 32], one] {
            let error = bob
                .agree(&PublicKey(point).into())
                .expect_err("of small order");
            assert_eq!(error.kind(), ErrorKind::Malformed);
        }
    }
}
