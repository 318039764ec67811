//! What two ends make of a shared secret that may be short: CPace, over ristretto255.
//!
//! ```text
//! client                              server
//!    base  = a point that the secret and the handshake choose
//!    │ ──── own · base ────────────────▶ │       at random whatever the secret is
//!    │ ◀──── own · base ──────────────── │
//!    key   = hash of own · theirs, and of both
//! ```
//!
//! The key is the same at both ends where the secret is. Nothing that goes over the wire can be held against a guess: whoever records it knows
//! no more about the secret than before, and whoever takes part in it has one guess for each handshake.
//!
//! After draft-irtf-cfrg-cpace, with the names and lengths of this protocol.

use super::keys::Agreed;
use crate::error::Result;

/// What goes over the wire.
pub(crate) type Share = [u8; 32];

#[cfg(feature = "secret")]
pub(crate) use curve::Pake;
#[cfg(not(feature = "secret"))]
pub(crate) use none::Pake;

#[cfg(feature = "secret")]
mod curve {
    use curve25519_dalek::{RistrettoPoint, Scalar, ristretto::CompressedRistretto};
    use hmac_sha256::{HKDF, HMAC};
    use zeroize::Zeroizing;

    use super::{Agreed, Result, Share};
    use crate::util::wire::malformed;

    /// One end's part.
    pub(crate) struct Pake {
        own: Zeroizing<Scalar>,
        share: Share,
    }

    impl Pake {
        /// Where there is a secret. `session` is unlike that of any other handshake, and the same at both ends; `random` is known to nobody else.
        pub(crate) fn new(
            secret: Option<&[u8]>,
            session: &[u8; 32],
            random: &[u8; 64],
        ) -> Option<Self> {
            let mut chosen = Zeroizing::new([0; 64]);
            let extracted = Zeroizing::new(HKDF::extract(session, secret?));
            HKDF::expand(&mut *chosen, *extracted, b"wharf CPace base");
            let base = RistrettoPoint::from_uniform_bytes(&chosen);
            let own = Zeroizing::new(Scalar::from_bytes_mod_order_wide(random));
            let share = (base * *own).compress().to_bytes();
            Some(Self { own, share })
        }

        pub(crate) fn share(&self) -> Share {
            self.share
        }

        /// The key, with the other end's share. `first` is the client's share, `second` the server's: one of them is this end's own.
        /// Errors: `Malformed`: theirs is no point, or one that has the same in common with all.
        pub(crate) fn key(
            &self,
            theirs: &Share,
            (first, second): (&Share, &Share),
        ) -> Result<Agreed> {
            let point = CompressedRistretto(*theirs).decompress();
            let point =
                point.ok_or_else(|| malformed("the peer's share of the secret is no point"))?;
            let common = (point * *self.own).compress();
            if common.to_bytes() == [0; 32] {
                return Err(malformed("the peer's share of the secret is none"));
            }
            let mut key = HMAC::new(common.as_bytes());
            key.update(b"wharf CPace key");
            key.update(first);
            key.update(second);
            Ok(Agreed::new(key.finalize()))
        }
    }
}

/// Left out of this build, in which no context can be given a secret.
#[cfg(not(feature = "secret"))]
mod none {
    use super::{Agreed, Result, Share};

    pub(crate) enum Pake {}

    impl Pake {
        pub(crate) fn new(secret: Option<&[u8]>, _: &[u8; 32], _: &[u8; 64]) -> Option<Self> {
            assert!(secret.is_none(), "this build knows no secrets");
            None
        }

        pub(crate) fn share(&self) -> Share {
            match *self {}
        }

        pub(crate) fn key(&self, _: &Share, _: (&Share, &Share)) -> Result<Agreed> {
            match *self {}
        }
    }
}

#[cfg(all(test, feature = "secret"))]
mod tests {
    use super::*;

    fn part(secret: &[u8], session: u8, random: u8) -> Pake {
        Pake::new(Some(secret), &[session; 32], &[random; 64]).expect("a secret")
    }

    fn key(own: &Pake, first: &Pake, second: &Pake) -> [u8; 32] {
        let theirs = match own.share() == first.share() {
            true => second,
            false => first,
        };
        *own.key(&theirs.share(), (&first.share(), &second.share()))
            .expect("a key")
    }

    #[test]
    fn one_secret_gives_one_key() {
        let (one, two) = (part(b"sesame", 1, 1), part(b"sesame", 1, 2));
        let both = key(&one, &one, &two);
        assert_eq!(both, key(&two, &one, &two));
        assert_ne!(both, key(&one, &two, &one), "the order counts");
        for other in [part(b"barley", 1, 2), part(b"sesame", 2, 2)] {
            assert_ne!(key(&one, &one, &other), key(&other, &one, &other));
        }
        assert_ne!(both, key(&one, &one, &part(b"sesame", 1, 3)));
    }

    #[test]
    fn what_is_no_share_is_refused() {
        let one = part(b"sesame", 1, 1);
        for share in [[0; 32], [0xff; 32], [1; 32]] {
            let error = one
                .key(&share, (&one.share(), &share))
                .expect_err("no share");
            assert_eq!(error.kind(), crate::ErrorKind::Malformed, "{share:?}");
        }
    }
}
