//! The handshake of a new connection: the server says hello, the client answers, the server gives its verdict.
//!
//! ```text
//! client                                              server
//!    │ ◀── ServerHello  versions, who, nonce ──────────  │
//!    │ ─── ClientHello  version, who, nonce, proof ────▶ │  checks the proof
//!    │ ◀── Verdict      proof and lanes, or a reason ──  │
//!      checks the proof
//!
//! hello      magic 8 | length u32 of all | fields
//! verdict    length u32 of all | fields
//! ```
//!
//! A proof is an HMAC-SHA256 under the shared secret over the role of the one who proves, both nonces and both workers: it
//! cannot be used on another connection, nor sent back to the one who made it. The wire itself is neither encrypted nor
//! authenticated after that.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::{
    control::{error_kind, error_kind_code},
    wire::{MAX_NAME, Reader, identity_bytes, malformed, once, put_field, put_texts, required},
};
use crate::{
    error::{Error, ErrorKind, Result},
    types::{Identity, WorkerId},
};

/// Oldest version of the wire that this side speaks.
pub(crate) const VERSION_MIN: u16 = 1;
/// Newest version of the wire that this side speaks.
pub(crate) const VERSION_MAX: u16 = 1;

/// Longest encoding of any of the messages here, in bytes: what a channel has to take before it can refuse.
pub(crate) const MAX_HELLO: usize = 32 * 1024;

/// Random bytes that make a handshake unlike any other.
pub(crate) type Nonce = [u8; 32];
/// What shows that its sender knows the secret.
pub(crate) type Proof = [u8; 32];

/// What the listening end says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerHello {
    /// Oldest version it speaks.
    pub(crate) version_min: u16,
    /// Newest version it speaks.
    pub(crate) version_max: u16,
    pub(crate) worker: WorkerId,
    pub(crate) identity: Identity,
    /// Abstract name of the Unix socket where it can also be reached. Left out when longer than 255 bytes.
    pub(crate) unix_name: Option<Vec<u8>>,
    /// Transports it offers, best first: at most 64, each up to 255 bytes; what is past that is left out.
    pub(crate) transports: Vec<String>,
    pub(crate) nonce: Nonce,
    /// Whether it turns down those without a proof.
    pub(crate) secret_required: bool,
}

impl ServerHello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        frame(&SERVER_MAGIC, |out| {
            put_versions(out, self.version_min, self.version_max);
            put_field(out, field::WORKER, &self.worker.0);
            put_field(out, field::IDENTITY, &identity_bytes(&self.identity));
            if let Some(name) = self
                .unix_name
                .as_ref()
                .filter(|name| name.len() <= MAX_NAME)
            {
                put_field(out, field::UNIX_NAME, name);
            }
            put_texts(out, field::TRANSPORTS, &self.transports);
            put_field(out, field::NONCE, &self.nonce);
            put_field(out, field::SECRET_REQUIRED, &[self.secret_required.into()]);
        })
    }

    /// # Errors
    /// `Malformed`, or `VersionMismatch` when both sides have no version in common.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let parts = Parts::read(unframe(&SERVER_MAGIC, bytes)?)?;
        let (version_min, version_max) = required(parts.versions)?;
        shared_version(version_min, version_max)?;
        Ok(Self {
            version_min,
            version_max,
            worker: required(parts.worker)?,
            identity: required(parts.identity)?,
            unix_name: parts.unix_name,
            transports: required(parts.transports)?,
            nonce: required(parts.nonce)?,
            secret_required: required(parts.secret_required)?,
        })
    }

    /// The newest version that both sides speak: the one to answer with.
    pub(crate) fn version(&self) -> Result<u16> {
        shared_version(self.version_min, self.version_max)
    }
}

/// What the dialling end answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientHello {
    /// The version it chose.
    pub(crate) version: u16,
    pub(crate) worker: WorkerId,
    pub(crate) identity: Identity,
    /// Transports it can use, best first; bounded as in [`ServerHello`].
    pub(crate) transports: Vec<String>,
    pub(crate) nonce: Nonce,
    /// There when it knows a secret.
    pub(crate) proof: Option<Proof>,
    /// Whether it came by a worker address, and not by a listener's.
    pub(crate) by_address: bool,
}

impl ClientHello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        frame(&CLIENT_MAGIC, |out| {
            put_versions(out, self.version, self.version);
            put_field(out, field::WORKER, &self.worker.0);
            put_field(out, field::IDENTITY, &identity_bytes(&self.identity));
            put_texts(out, field::TRANSPORTS, &self.transports);
            put_field(out, field::NONCE, &self.nonce);
            if let Some(proof) = &self.proof {
                put_field(out, field::PROOF, proof);
            }
            put_field(out, field::BY_ADDRESS, &[self.by_address.into()]);
        })
    }

    /// # Errors
    /// `Malformed`, or `VersionMismatch` when it chose a version that this side does not speak.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let parts = Parts::read(unframe(&CLIENT_MAGIC, bytes)?)?;
        let (version, same) = required(parts.versions)?;
        if version != same {
            return Err(malformed("a client chooses one version"));
        }
        Ok(Self {
            version: shared_version(version, version)?,
            worker: required(parts.worker)?,
            identity: required(parts.identity)?,
            transports: required(parts.transports)?,
            nonce: required(parts.nonce)?,
            proof: parts.proof,
            by_address: required(parts.by_address)?,
        })
    }
}

/// How the listening end decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The connection stands.
    Accept {
        worker: WorkerId,
        /// There when the server knows a secret.
        proof: Option<Proof>,
        /// Transports to set up now, in this order; bounded as in [`ServerHello`].
        lanes: Vec<String>,
    },
    /// The connection is turned down.
    Reject {
        /// The kind of error, as [`Verdict::reject`] writes it.
        code: u16,
        /// For people; cut after 255 bytes.
        reason: String,
    },
}

impl Verdict {
    /// Turns the connection down because of `error`.
    pub(crate) fn reject(error: &Error) -> Self {
        Self::Reject {
            code: error_kind_code(error.kind()),
            reason: error.to_string(),
        }
    }

    /// The error that a [`Verdict::Reject`] stands for at the other end.
    pub(crate) fn rejection(code: u16, reason: String) -> Error {
        Error::new(error_kind(code), reason)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        frame(&[], |out| match self {
            Self::Accept {
                worker,
                proof,
                lanes,
            } => {
                put_field(out, field::WORKER, &worker.0);
                if let Some(proof) = proof {
                    put_field(out, field::PROOF, proof);
                }
                put_texts(out, field::TRANSPORTS, lanes);
            }
            Self::Reject { code, reason } => {
                put_field(out, field::CODE, &code.to_le_bytes());
                let end = reason.floor_char_boundary(MAX_NAME);
                put_field(
                    out,
                    field::REASON,
                    reason.get(..end).unwrap_or_default().as_bytes(),
                );
            }
        })
    }

    /// # Errors
    /// `Malformed`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let parts = Parts::read(unframe(&[], bytes)?)?;
        match (parts.worker, parts.code) {
            (Some(worker), None) => Ok(Self::Accept {
                worker,
                proof: parts.proof,
                lanes: required(parts.transports)?,
            }),
            (None, Some(code)) => Ok(Self::Reject {
                code,
                reason: required(parts.reason)?,
            }),
            _ => Err(malformed("a verdict is either yes or no")),
        }
    }
}

/// Who makes a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prover {
    Server,
    Client,
}

/// What a proof is about: one handshake between two workers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transcript {
    pub(crate) server_nonce: Nonce,
    pub(crate) client_nonce: Nonce,
    pub(crate) server_worker: WorkerId,
    pub(crate) client_worker: WorkerId,
}

impl Transcript {
    /// Shows that `prover` knows `secret`.
    pub(crate) fn proof(&self, secret: &[u8], prover: Prover) -> Proof {
        self.mac(secret, prover).finalize().into_bytes().into()
    }

    /// Whether `proof` is the one that `prover` makes with `secret`. Takes the same time for every wrong proof.
    pub(crate) fn verify(&self, secret: &[u8], prover: Prover, proof: &Proof) -> bool {
        self.mac(secret, prover).verify_slice(proof).is_ok()
    }

    /// Every part has a fixed size, so no two transcripts give the same input.
    fn mac(&self, secret: &[u8], prover: Prover) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
        mac.update(b"wharf handshake 1");
        mac.update(&[match prover {
            Prover::Server => 1,
            Prover::Client => 2,
        }]);
        mac.update(&self.server_nonce);
        mac.update(&self.client_nonce);
        mac.update(&self.server_worker.0);
        mac.update(&self.client_worker.0);
        mac
    }
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Transcript({} and {})",
            self.server_worker, self.client_worker
        )
    }
}

/// The fields of all messages here.
#[derive(Default)]
struct Parts {
    versions: Option<(u16, u16)>,
    worker: Option<WorkerId>,
    identity: Option<Identity>,
    unix_name: Option<Vec<u8>>,
    transports: Option<Vec<String>>,
    nonce: Option<Nonce>,
    secret_required: Option<bool>,
    proof: Option<Proof>,
    by_address: Option<bool>,
    code: Option<u16>,
    reason: Option<String>,
}

impl Parts {
    fn read(mut reader: Reader<'_>) -> Result<Self> {
        let mut parts = Self::default();
        while let Some((id, body)) = reader.field()? {
            match id {
                field::VERSIONS => {
                    let versions = body.whole(|body| Ok((body.u16()?, body.u16()?)))?;
                    // First of all: what follows may mean something else in another version.
                    shared_version(versions.0, versions.1)?;
                    once(&mut parts.versions, versions)?;
                }
                field::WORKER => once(&mut parts.worker, body.whole(Reader::worker)?)?,
                field::IDENTITY => once(&mut parts.identity, body.whole(Reader::identity)?)?,
                field::UNIX_NAME => once(&mut parts.unix_name, body.name()?)?,
                field::TRANSPORTS => once(&mut parts.transports, body.texts()?)?,
                field::NONCE => once(&mut parts.nonce, body.whole(Reader::array)?)?,
                field::SECRET_REQUIRED => {
                    once(&mut parts.secret_required, body.whole(Reader::bool)?)?
                }
                field::PROOF => once(&mut parts.proof, body.whole(Reader::array)?)?,
                field::BY_ADDRESS => once(&mut parts.by_address, body.whole(Reader::bool)?)?,
                field::CODE => once(&mut parts.code, body.whole(Reader::u16)?)?,
                field::REASON => once(&mut parts.reason, body.text()?)?,
                _ => {}
            }
        }
        Ok(parts)
    }
}

/// The newest version that this side and one that speaks `min..=max` have in common.
fn shared_version(min: u16, max: u16) -> Result<u16> {
    if min > max {
        return Err(malformed("the newest version is older than the oldest"));
    }
    let version = max.min(VERSION_MAX);
    if version < min.max(VERSION_MIN) {
        return Err(Error::new(
            ErrorKind::VersionMismatch,
            format!(
                "the peer speaks versions {min} to {max}, this side {VERSION_MIN} to {VERSION_MAX}"
            ),
        ));
    }
    Ok(version)
}

/// The versions come first, so that they are read before anything that depends on them.
fn put_versions(out: &mut Vec<u8>, min: u16, max: u16) {
    let ([a, b], [c, d]) = (min.to_le_bytes(), max.to_le_bytes());
    put_field(out, field::VERSIONS, &[a, b, c, d]);
}

fn frame(magic: &[u8], fields: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.extend_from_slice(&[0; 4]);
    fields(&mut out);
    let length = out.len() as u32;
    if let Some(place) = out.get_mut(magic.len()..magic.len() + 4) {
        place.copy_from_slice(&length.to_le_bytes());
    }
    out
}

fn unframe<'a>(magic: &[u8], bytes: &'a [u8]) -> Result<Reader<'a>> {
    let mut reader = Reader::new(bytes);
    if reader.bytes(magic.len())? != magic {
        return Err(malformed("the other end does not speak this protocol"));
    }
    if reader.u32()? as usize != bytes.len() || bytes.len() > MAX_HELLO {
        return Err(malformed("the length of the message is wrong"));
    }
    Ok(reader)
}

const SERVER_MAGIC: [u8; 8] = *b"WHARF\0S\x01";
const CLIENT_MAGIC: [u8; 8] = *b"WHARF\0C\x01";

mod field {
    pub(super) const VERSIONS: u16 = 1;
    pub(super) const WORKER: u16 = 2;
    pub(super) const IDENTITY: u16 = 3;
    pub(super) const UNIX_NAME: u16 = 4;
    pub(super) const TRANSPORTS: u16 = 5;
    pub(super) const NONCE: u16 = 6;
    pub(super) const SECRET_REQUIRED: u16 = 7;
    pub(super) const PROOF: u16 = 8;
    pub(super) const BY_ADDRESS: u16 = 9;
    pub(super) const CODE: u16 = 10;
    pub(super) const REASON: u16 = 11;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::wire::tests::{identities, names, refuses_truncation, workers};

    prop_compose! {
        fn server_hellos()(
            version_max in VERSION_MAX..,
            worker in workers(),
            identity in identities(),
            unix_name in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
            transports in names(),
            nonce in any::<Nonce>(),
            secret_required in any::<bool>(),
        ) -> ServerHello {
            let version_min = VERSION_MIN;
            ServerHello { version_min, version_max, worker, identity, unix_name, transports, nonce, secret_required }
        }
    }

    prop_compose! {
        fn client_hellos()(
            worker in workers(),
            identity in identities(),
            transports in names(),
            nonce in any::<Nonce>(),
            proof in prop::option::of(any::<Proof>()),
            by_address in any::<bool>(),
        ) -> ClientHello {
            ClientHello { version: VERSION_MAX, worker, identity, transports, nonce, proof, by_address }
        }
    }

    fn verdicts() -> impl Strategy<Value = Verdict> {
        prop_oneof![
            (workers(), prop::option::of(any::<Proof>()), names()).prop_map(
                |(worker, proof, lanes)| Verdict::Accept {
                    worker,
                    proof,
                    lanes
                }
            ),
            (any::<u16>(), "[a-zé]{0,60}")
                .prop_map(|(code, reason)| Verdict::Reject { code, reason }),
        ]
    }

    /// The message with a field behind its own that nobody knows.
    fn with_unknown_field(magic: usize, bytes: &[u8], unknown: &[u8]) -> Vec<u8> {
        let mut more = bytes.to_vec();
        put_field(&mut more, 0x7fff, unknown);
        let length = more.len() as u32;
        more[magic..magic + 4].copy_from_slice(&length.to_le_bytes());
        more
    }

    proptest! {
        #[test]
        fn go_round_and_cannot_be_cut(
            server in server_hellos(),
            client in client_hellos(),
            verdict in verdicts(),
            unknown in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let bytes = server.encode();
            prop_assert_eq!(&ServerHello::decode(&bytes).unwrap(), &server);
            prop_assert_eq!(&ServerHello::decode(&with_unknown_field(8, &bytes, &unknown)).unwrap(), &server);
            prop_assert!(ClientHello::decode(&bytes).is_err());
            refuses_truncation(&bytes, ServerHello::decode);

            let bytes = client.encode();
            prop_assert_eq!(&ClientHello::decode(&bytes).unwrap(), &client);
            prop_assert_eq!(&ClientHello::decode(&with_unknown_field(8, &bytes, &unknown)).unwrap(), &client);
            refuses_truncation(&bytes, ClientHello::decode);

            let bytes = verdict.encode();
            prop_assert_eq!(&Verdict::decode(&bytes).unwrap(), &verdict);
            prop_assert_eq!(&Verdict::decode(&with_unknown_field(0, &bytes, &unknown)).unwrap(), &verdict);
            refuses_truncation(&bytes, Verdict::decode);
        }

        #[test]
        fn arbitrary_bytes_do_no_harm(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            server in server_hellos(),
            at in any::<prop::sample::Index>(),
            change in 1u8..,
        ) {
            prop_assert!(ServerHello::decode(&bytes).is_err());
            prop_assert!(ClientHello::decode(&bytes).is_err());
            let framed = |magic: &[u8]| frame(magic, |out| out.extend_from_slice(&bytes));
            let _ = ServerHello::decode(&framed(&SERVER_MAGIC));
            let _ = ClientHello::decode(&framed(&CLIENT_MAGIC));
            let _ = Verdict::decode(&framed(&[]));
            let mut altered = server.encode();
            let at = at.index(altered.len());
            altered[at] ^= change;
            let _ = ServerHello::decode(&altered);
        }

        #[test]
        fn a_proof_holds_only_for_its_handshake(
            secret in prop::collection::vec(any::<u8>(), 0..100),
            nonces in any::<(Nonce, Nonce)>(),
            server_worker in workers(),
            client_worker in workers(),
            at in 0usize..32,
            change in 1u8..,
        ) {
            let transcript = Transcript { server_nonce: nonces.0, client_nonce: nonces.1, server_worker, client_worker };
            let proof = transcript.proof(&secret, Prover::Client);
            prop_assert!(transcript.verify(&secret, Prover::Client, &proof));
            prop_assert!(!transcript.verify(&secret, Prover::Server, &proof));
            let mut other_secret = secret.clone();
            other_secret.push(1);
            prop_assert!(!transcript.verify(&other_secret, Prover::Client, &proof));
            let mut altered = proof;
            altered[at] ^= change;
            prop_assert!(!transcript.verify(&secret, Prover::Client, &altered));
            let mut other = transcript;
            other.server_nonce[at] ^= change;
            prop_assert!(!other.verify(&secret, Prover::Client, &proof));
            let mut other = transcript;
            other.client_worker.0[at / 2] ^= change;
            prop_assert!(!other.verify(&secret, Prover::Client, &proof));
        }
    }

    #[test]
    fn versions_without_overlap_say_so() {
        let mut out = Vec::new();
        put_versions(&mut out, VERSION_MAX + 1, VERSION_MAX + 3);
        // Garbage behind the versions does not matter: it may be right in theirs.
        out.extend_from_slice(&[0xff; 3]);
        let server = frame(&SERVER_MAGIC, |fields| fields.extend_from_slice(&out));
        assert_eq!(
            ServerHello::decode(&server).unwrap_err().kind(),
            ErrorKind::VersionMismatch
        );
        let mut out = Vec::new();
        put_versions(&mut out, VERSION_MAX + 1, VERSION_MAX + 1);
        let client = frame(&CLIENT_MAGIC, |fields| fields.extend_from_slice(&out));
        assert_eq!(
            ClientHello::decode(&client).unwrap_err().kind(),
            ErrorKind::VersionMismatch
        );
        assert_eq!(
            shared_version(2, 1).unwrap_err().kind(),
            ErrorKind::Malformed
        );
        assert_eq!(shared_version(0, u16::MAX).unwrap(), VERSION_MAX);
    }

    #[test]
    fn a_rejection_keeps_its_kind_and_a_bounded_reason() {
        let error = Error::new(ErrorKind::AuthenticationFailed, "é".repeat(200));
        let verdict = Verdict::decode(&Verdict::reject(&error).encode()).unwrap();
        let Verdict::Reject { code, reason } = verdict else {
            panic!("rejected")
        };
        assert_eq!(reason, "é".repeat(127));
        assert_eq!(
            Verdict::rejection(code, reason).kind(),
            ErrorKind::AuthenticationFailed
        );
    }

    #[test]
    fn the_largest_hello_fits() {
        let hello = ServerHello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            worker: WorkerId([1; 16]),
            identity: Identity {
                boot: [1; 16],
                net_namespace: 1,
                pid_namespace: 1,
                user_namespace: 1,
                user: 0,
                pid: 1,
            },
            unix_name: Some(vec![1; MAX_NAME]),
            transports: vec!["x".repeat(MAX_NAME); 64],
            nonce: [1; 32],
            secret_required: true,
        };
        let bytes = hello.encode();
        assert!(bytes.len() <= MAX_HELLO);
        assert_eq!(ServerHello::decode(&bytes).unwrap(), hello);
    }
}
