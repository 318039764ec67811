//! Keys: what a worker alone can prove, and the id that says so.
//!
//! A worker makes a key pair (X25519) when it is made. Its id is the beginning of a hash of the public half, so whoever has the id can
//! tell that key from every other.

use ed25519_compact::x25519;
use hmac_sha256::Hash;
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
        let mut digest = Hash::new();
        digest.update(b"wharf worker");
        digest.update(self.0);
        let digest = digest.finalize();
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        WorkerId(id)
    }
}

/// X25519 by assembler, in less than two thirds of the time that the other takes.
#[cfg(all(
    feature = "graviola",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod assembled {
    use graviola::{
        key_agreement::x25519::{PublicKey, StaticPrivateKey},
        util::is_cpu_supported,
    };

    /// `None` on processors that have not what it is written for.
    pub(super) fn multiplied(secret: &[u8; 32], point: &[u8; 32]) -> Option<[u8; 32]> {
        // What that library asks at each call, it asserts.
        is_cpu_supported().then(|| {
            let theirs = PublicKey::try_from_slice(point).expect("32 bytes");
            // It refuses the points that give zero.
            let agreed = StaticPrivateKey::from_array(secret).diffie_hellman(&theirs);
            agreed.map_or([0; 32], |agreed| agreed.0)
        })
    }

    /// The same of the base point.
    pub(super) fn multiplied_base(secret: &[u8; 32]) -> Option<[u8; 32]> {
        is_cpu_supported().then(|| {
            let secret = StaticPrivateKey::from_array(secret);
            secret.public_key().as_bytes()
        })
    }
}

/// Left out of this build, or not written for this processor.
#[cfg(not(all(
    feature = "graviola",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
mod assembled {
    pub(super) fn multiplied(_: &[u8; 32], _: &[u8; 32]) -> Option<[u8; 32]> {
        None
    }

    pub(super) fn multiplied_base(_: &[u8; 32]) -> Option<[u8; 32]> {
        None
    }
}

/// X25519 of a secret and a point that need not be one of the curve: zero where all secrets give the same.
fn multiplied(secret: &[u8; 32], point: &[u8; 32]) -> [u8; 32] {
    assembled::multiplied(secret, point).unwrap_or_else(|| compiled(secret, point))
}

/// X25519 of a secret and the base point.
fn multiplied_base(secret: &[u8; 32]) -> [u8; 32] {
    assembled::multiplied_base(secret)
        .unwrap_or_else(|| compiled(secret, &x25519::PublicKey::base_point()))
}

/// In Rust, for all processors.
fn compiled(secret: &[u8; 32], point: &[u8; 32]) -> [u8; 32] {
    let agreed = x25519::PublicKey::new(*point).dh(&x25519::SecretKey::new(*secret));
    // It refuses the points that give zero.
    agreed.map_or([0; 32], |agreed| *agreed)
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
        let public = PublicKey(multiplied_base(&random));
        Self {
            secret: Zeroizing::new(random),
            public,
        }
    }

    pub(crate) fn public(&self) -> PublicKey {
        self.public
    }

    /// What this key and another have in common.
    /// Errors: `Malformed`: the other is no key but a point with which everything has the same in common.
    pub(crate) fn agree(&self, other: &PublicKey) -> Result<Agreed> {
        let agreed = Zeroizing::new(multiplied(&self.secret, &other.0));
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
        fn the_assembler_multiplies_as_the_compiled_does(
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
            prop_assert_eq!(multiplied(&secret, &point), compiled(&secret, &point));
            let base = compiled(&secret, &x25519::PublicKey::base_point());
            prop_assert_eq!(multiplied_base(&secret), base);
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
            *bob.agree(&alice).expect("a key"),
            bytes("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
        );
        assert_ne!(alice.worker(), bob.public().worker());
        assert!(!format!("{bob:?}").contains("5dab"), "the secret half");
        let mut one = [0; 32];
        one[0] = 1;
        for point in [[0; 32], one] {
            let error = bob.agree(&PublicKey(point)).expect_err("of small order");
            assert_eq!(error.kind(), ErrorKind::Malformed);
        }
    }
}
