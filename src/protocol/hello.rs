//! The messages of the handshake of a new connection.
//!
//! ```text
//! message    "WHARF" 0, kind u8, 1 | length u32 of all | fields
//! ```
//!
//! What is said when, and what it proves, is [`handshake`](super::handshake)'s.

use super::{
    control::{error_kind, error_kind_code},
    keys::PublicKey,
    pake::Share,
    wire::{MAX_NAME, Reader, identity_bytes, malformed, once, put_field, put_texts, required},
};
use crate::{
    error::{Error, ErrorKind, Result},
    types::{Identity, Landmark},
};

/// Oldest version of the wire that this side speaks.
pub(crate) const VERSION_MIN: u16 = 5;
/// Newest version of the wire that this side speaks.
pub(crate) const VERSION_MAX: u16 = 5;

/// Longest encoding of any of the messages here, in bytes: what a channel has to take before it can refuse.
pub(crate) const MAX_HELLO: usize = 32 * 1024;

/// Bytes of the magic and the length.
pub(crate) const HEAD: usize = 12;

/// What shows who its sender is.
pub(crate) type Proof = [u8; 32];

/// What the dialling end says first: nothing of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientHello {
    /// Oldest version it speaks.
    pub(crate) version_min: u16,
    /// Newest version it speaks.
    pub(crate) version_max: u16,
    /// Made for this handshake.
    pub(crate) ephemeral: PublicKey,
    /// There when it has a secret.
    pub(crate) share: Option<Share>,
}

impl ClientHello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        frame(Kind::Client, |out| {
            put_versions(out, self.version_min, self.version_max);
            put_field(out, field::EPHEMERAL, &self.ephemeral.0);
            if let Some(share) = &self.share {
                put_field(out, field::SHARE, share);
            }
        })
    }

    /// # Errors
    /// `Malformed`, or `VersionMismatch` when both sides have no version in common.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let parts = Parts::read(unframe(Kind::Client, bytes)?)?;
        let (version_min, version_max) = required(parts.versions)?;
        Ok(Self {
            version_min,
            version_max,
            ephemeral: required(parts.ephemeral)?,
            share: parts.share,
        })
    }

    /// The newest version that both sides speak: the one to answer with.
    pub(crate) fn version(&self) -> Result<u16> {
        shared_version(self.version_min, self.version_max)
    }
}

/// What the listening end answers: which worker it is, and no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerHello {
    /// The version it chose.
    pub(crate) version: u16,
    pub(crate) key: PublicKey,
    /// Made for this handshake.
    pub(crate) ephemeral: PublicKey,
    /// There when it has a secret.
    pub(crate) share: Option<Share>,
}

impl ServerHello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        frame(Kind::Server, |out| {
            put_versions(out, self.version, self.version);
            put_field(out, field::KEY, &self.key.0);
            put_field(out, field::EPHEMERAL, &self.ephemeral.0);
            if let Some(share) = &self.share {
                put_field(out, field::SHARE, share);
            }
        })
    }

    /// # Errors
    /// `Malformed`, or `VersionMismatch` when it chose a version that this side does not speak.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let parts = Parts::read(unframe(Kind::Server, bytes)?)?;
        let (version, same) = required(parts.versions)?;
        if version != same {
            return Err(malformed("a server chooses one version"));
        }
        Ok(Self {
            version,
            key: required(parts.key)?,
            ephemeral: required(parts.ephemeral)?,
            share: parts.share,
        })
    }
}

/// Whether the other end's [`Landmark`] could be read; or why not.
pub(crate) type Reached = std::result::Result<(), String>;

/// Who dials, told when the listening end has proved who that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    pub(crate) key: PublicKey,
    pub(crate) identity: Identity,
    /// Transports it can use, best first: at most 64, each up to 255 bytes; what is past that is left out.
    pub(crate) transports: Vec<String>,
    /// It does not want to hear of a Unix socket.
    pub(crate) stays: bool,
    /// Memory to try to read, over a Unix socket.
    pub(crate) memory: Option<Landmark>,
}

impl Introduction {
    /// What is to be sealed.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_field(&mut out, field::KEY, &self.key.0);
        put_field(&mut out, field::IDENTITY, &identity_bytes(&self.identity));
        put_texts(&mut out, field::TRANSPORTS, &self.transports);
        put_field(&mut out, field::STAYS, &[self.stays.into()]);
        put_memory(&mut out, self.memory);
        out
    }

    /// # Errors
    /// `Malformed`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let parts = Parts::read(Reader::new(bytes))?;
        Ok(Self {
            key: required(parts.key)?,
            identity: required(parts.identity)?,
            transports: required(parts.transports)?,
            stays: required(parts.stays)?,
            memory: parts.memory,
        })
    }
}

/// The yes of the listening end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acceptance {
    /// Of the worker that takes the connection, which may be another than the one that said hello.
    pub(crate) key: PublicKey,
    pub(crate) identity: Identity,
    /// Transports to set up now, in this order; bounded as in [`Introduction`].
    pub(crate) lanes: Vec<String>,
    /// Its own memory, and what came of trying the other's: where that was offered.
    pub(crate) memory: Option<(Landmark, Reached)>,
}

impl Acceptance {
    /// What is to be sealed.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_field(&mut out, field::KEY, &self.key.0);
        put_field(&mut out, field::IDENTITY, &identity_bytes(&self.identity));
        put_texts(&mut out, field::TRANSPORTS, &self.lanes);
        if let Some((memory, reached)) = &self.memory {
            put_memory(&mut out, Some(*memory));
            put_reached(&mut out, reached);
        }
        out
    }

    /// # Errors
    /// `Malformed`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let parts = Parts::read(Reader::new(bytes))?;
        Ok(Self {
            key: required(parts.key)?,
            identity: required(parts.identity)?,
            lanes: required(parts.transports)?,
            memory: match (parts.memory, parts.reached) {
                (Some(memory), Some(reached)) => Some((memory, reached)),
                (None, None) => None,
                _ => {
                    return Err(malformed(
                        "memory and whether the other's was reached go together",
                    ));
                }
            },
        })
    }
}

/// The listening end is on the same host, and can be reached there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Elsewhere {
    /// Abstract name of its Unix socket.
    pub(crate) unix_name: Vec<u8>,
    /// Transports that it offers; bounded as in [`Introduction`].
    pub(crate) transports: Vec<String>,
}

impl Elsewhere {
    /// What is to be sealed.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_field(&mut out, field::UNIX_NAME, &self.unix_name);
        put_texts(&mut out, field::TRANSPORTS, &self.transports);
        out
    }

    /// # Errors
    /// `Malformed`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let parts = Parts::read(Reader::new(bytes))?;
        Ok(Self {
            unix_name: required(parts.unix_name)?,
            transports: required(parts.transports)?,
        })
    }
}

/// What the dialling end says first at the Unix socket that it was sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) memory: Option<Landmark>,
}

impl Arrival {
    /// What is to be sealed.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_memory(&mut out, self.memory);
        out
    }

    /// # Errors
    /// `Malformed`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let memory = Parts::read(Reader::new(bytes))?.memory;
        Ok(Self { memory })
    }
}

/// By what the listening end finds the handshake that goes on at its Unix socket.
pub(crate) type Ticket = [u8; 16];

/// A message after the hellos.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The listening end has the key of its hello; the dialling one that of its introduction.
    Proof(Proof),
    /// Under seal an [`Introduction`].
    Introduction(Vec<u8>),
    /// Under seal an [`Elsewhere`]; the dialling end goes there, or says that it stays.
    Elsewhere(Vec<u8>),
    Stays,
    /// Under seal an [`Arrival`], of who was sent with this ticket.
    Arrival(Ticket, Vec<u8>),
    /// Under seal an [`Acceptance`], and that the worker which it names has its key.
    Acceptance {
        sealed: Vec<u8>,
        proof: Proof,
    },
    /// The connection is turned down, by either part of the listening end's.
    Rejection {
        /// The kind of error, as [`Message::reject`] writes it.
        code: u16,
        /// For people; cut after 255 bytes.
        reason: String,
    },
}

impl Message {
    /// Turns the connection down because of `error`.
    pub(crate) fn reject(error: &Error) -> Self {
        Self::Rejection {
            code: error_kind_code(error.kind()),
            reason: error.to_string(),
        }
    }

    /// The message that `bytes` are, which is no [`Message::Rejection`].
    ///
    /// # Errors
    /// `Malformed`; what a rejection stands for.
    pub(crate) fn heard(bytes: &[u8]) -> Result<Self> {
        Self::decode(bytes)?.unless_rejection()
    }

    /// For bytes that may be another thing than a message.
    ///
    /// # Errors
    /// What a [`Message::Rejection`] stands for, if that is what `bytes` are.
    pub(crate) fn unless_rejected(bytes: &[u8]) -> Result<()> {
        Self::decode(bytes).map_or(Ok(()), |message| message.unless_rejection().map(drop))
    }

    fn unless_rejection(self) -> Result<Self> {
        match self {
            Self::Rejection { code, reason } => Err(Error::new(error_kind(code), reason)),
            message => Ok(message),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Proof(_) => Kind::Proof,
            Self::Introduction(_) => Kind::Introduction,
            Self::Elsewhere(_) => Kind::Elsewhere,
            Self::Stays => Kind::Stays,
            Self::Arrival(..) => Kind::Arrival,
            Self::Acceptance { .. } => Kind::Acceptance,
            Self::Rejection { .. } => Kind::Rejection,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        frame(self.kind(), |out| match self {
            Self::Proof(proof) => put_field(out, field::PROOF, proof),
            Self::Introduction(sealed) | Self::Elsewhere(sealed) => {
                put_field(out, field::SEALED, sealed);
            }
            Self::Acceptance { sealed, proof } => {
                put_field(out, field::SEALED, sealed);
                put_field(out, field::PROOF, proof);
            }
            Self::Stays => {}
            Self::Arrival(ticket, sealed) => {
                put_field(out, field::TICKET, ticket);
                put_field(out, field::SEALED, sealed);
            }
            Self::Rejection { code, reason } => {
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
        let kind = kind_of(bytes)?;
        let parts = Parts::read(unframe(kind, bytes)?)?;
        match kind {
            Kind::Proof => required(parts.proof).map(Self::Proof),
            Kind::Introduction => required(parts.sealed).map(Self::Introduction),
            Kind::Acceptance => Ok(Self::Acceptance {
                sealed: required(parts.sealed)?,
                proof: required(parts.proof)?,
            }),
            Kind::Elsewhere => required(parts.sealed).map(Self::Elsewhere),
            Kind::Stays => Ok(Self::Stays),
            Kind::Arrival => Ok(Self::Arrival(
                required(parts.ticket)?,
                required(parts.sealed)?,
            )),
            Kind::Rejection => Ok(Self::Rejection {
                code: required(parts.code)?,
                reason: required(parts.reason)?,
            }),
            Kind::Client | Kind::Server => Err(malformed("a hello where none belongs")),
        }
    }
}

/// The fields of all messages here.
#[derive(Default)]
struct Parts {
    versions: Option<(u16, u16)>,
    key: Option<PublicKey>,
    identity: Option<Identity>,
    unix_name: Option<Vec<u8>>,
    transports: Option<Vec<String>>,
    ephemeral: Option<PublicKey>,
    share: Option<Share>,
    proof: Option<Proof>,
    sealed: Option<Vec<u8>>,
    code: Option<u16>,
    reason: Option<String>,
    stays: Option<bool>,
    ticket: Option<Ticket>,
    memory: Option<Landmark>,
    reached: Option<Reached>,
}

impl Parts {
    fn read(mut reader: Reader<'_>) -> Result<Self> {
        let mut parts = Self::default();
        let key = |body: Reader<'_>| body.whole(Reader::array).map(PublicKey);
        while let Some((id, body)) = reader.field()? {
            match id {
                field::VERSIONS => {
                    let versions = body.whole(|body| Ok((body.u16()?, body.u16()?)))?;
                    // First of all: what follows may mean something else in another version.
                    shared_version(versions.0, versions.1)?;
                    once(&mut parts.versions, versions)?;
                }
                field::KEY => once(&mut parts.key, key(body)?)?,
                field::IDENTITY => once(&mut parts.identity, body.whole(Reader::identity)?)?,
                field::UNIX_NAME => once(&mut parts.unix_name, body.name()?)?,
                field::TRANSPORTS => once(&mut parts.transports, body.texts()?)?,
                field::EPHEMERAL => once(&mut parts.ephemeral, key(body)?)?,
                field::SHARE => once(&mut parts.share, body.whole(Reader::array)?)?,
                field::PROOF => once(&mut parts.proof, body.whole(Reader::array)?)?,
                field::SEALED => once(&mut parts.sealed, body.rest().to_vec())?,
                field::CODE => once(&mut parts.code, body.whole(Reader::u16)?)?,
                field::REASON => once(&mut parts.reason, body.text()?)?,
                field::STAYS => once(&mut parts.stays, body.whole(Reader::bool)?)?,
                field::TICKET => once(&mut parts.ticket, body.whole(Reader::array)?)?,
                field::MEMORY => once(&mut parts.memory, body.whole(memory)?)?,
                field::REACHED => once(&mut parts.reached, reached(body)?)?,
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

fn put_memory(out: &mut Vec<u8>, memory: Option<Landmark>) {
    if let Some(Landmark { address, holds }) = memory {
        put_field(
            out,
            field::MEMORY,
            &[&address.to_le_bytes()[..], &holds].concat(),
        );
    }
}

fn memory(body: &mut Reader<'_>) -> Result<Landmark> {
    Ok(Landmark {
        address: body.u64()?,
        holds: body.array()?,
    })
}

/// Nothing, or why not: not empty, cut after 255 bytes.
fn put_reached(out: &mut Vec<u8>, reached: &Reached) {
    let why = match reached {
        Ok(()) => "",
        Err(why) if why.is_empty() => "?",
        Err(why) => &why[..why.floor_char_boundary(MAX_NAME)],
    };
    put_field(out, field::REACHED, why.as_bytes());
}

fn reached(body: Reader<'_>) -> Result<Reached> {
    let why = body.text()?;
    match why.is_empty() {
        true => Ok(Ok(())),
        false => Ok(Err(why)),
    }
}

/// What a message is: a byte of its magic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Client = b'C',
    Server = b'S',
    Proof = b'P',
    Introduction = b'I',
    Elsewhere = b'E',
    Stays = b'H',
    Arrival = b'U',
    Acceptance = b'A',
    Rejection = b'R',
}

const MAGIC: [u8; 6] = *b"WHARF\0";

fn frame(kind: Kind, fields: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&[kind as u8, 1, 0, 0, 0, 0]);
    fields(&mut out);
    let length = (out.len() as u32).to_le_bytes();
    if let Some(place) = out.get_mut(8..HEAD) {
        place.copy_from_slice(&length);
    }
    out
}

/// How long the message is that begins with these bytes, [`HEAD`] of them.
///
/// # Errors
/// `Malformed`: it is none, or longer than any.
pub(crate) fn length_of(head: &[u8]) -> Result<usize> {
    kind_of(head)?;
    let length = Reader::new(head.get(8..).unwrap_or_default()).u32()? as usize;
    match length {
        HEAD..=MAX_HELLO => Ok(length),
        _ => Err(malformed("the length of the message is wrong")),
    }
}

fn kind_of(bytes: &[u8]) -> Result<Kind> {
    let known = [
        Kind::Client,
        Kind::Server,
        Kind::Proof,
        Kind::Introduction,
        Kind::Elsewhere,
        Kind::Stays,
        Kind::Arrival,
        Kind::Acceptance,
        Kind::Rejection,
    ];
    let mut known = known.into_iter();
    known
        .find(|known| match bytes.strip_prefix(&MAGIC) {
            Some([kind, 1, ..]) => *kind == *known as u8,
            _ => false,
        })
        .ok_or_else(|| malformed("the other end does not speak this protocol"))
}

fn unframe(kind: Kind, bytes: &[u8]) -> Result<Reader<'_>> {
    if kind_of(bytes)? != kind {
        return Err(malformed("another message of the handshake was due"));
    }
    if length_of(bytes)? != bytes.len() {
        return Err(malformed("the length of the message is wrong"));
    }
    Ok(Reader::new(bytes.get(HEAD..).unwrap_or_default()))
}

mod field {
    pub(super) const VERSIONS: u16 = 1;
    pub(super) const KEY: u16 = 2;
    pub(super) const IDENTITY: u16 = 3;
    pub(super) const UNIX_NAME: u16 = 4;
    pub(super) const TRANSPORTS: u16 = 5;
    pub(super) const EPHEMERAL: u16 = 6;
    pub(super) const SHARE: u16 = 7;
    pub(super) const PROOF: u16 = 8;
    pub(super) const SEALED: u16 = 9;
    pub(super) const CODE: u16 = 10;
    pub(super) const REASON: u16 = 11;
    pub(super) const STAYS: u16 = 12;
    pub(super) const TICKET: u16 = 13;
    pub(super) const MEMORY: u16 = 14;
    pub(super) const REACHED: u16 = 15;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::wire::tests::{identities, names, refuses_truncation};

    fn keys() -> impl Strategy<Value = PublicKey> {
        any::<[u8; 32]>().prop_map(PublicKey)
    }

    fn shares() -> impl Strategy<Value = Option<Share>> {
        prop::option::of(any::<Share>())
    }

    prop_compose! {
        fn client_hellos()(version_max in VERSION_MAX.., ephemeral in keys(), share in shares()) -> ClientHello {
            ClientHello { version_min: VERSION_MIN, version_max, ephemeral, share }
        }
    }

    prop_compose! {
        fn server_hellos()(key in keys(), ephemeral in keys(), share in shares()) -> ServerHello {
            ServerHello { version: VERSION_MAX, key, ephemeral, share }
        }
    }

    fn sealed() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..100)
    }

    fn messages() -> impl Strategy<Value = Message> {
        prop_oneof![
            any::<Proof>().prop_map(Message::Proof),
            (any::<Ticket>(), sealed())
                .prop_map(|(ticket, sealed)| Message::Arrival(ticket, sealed)),
            sealed().prop_map(Message::Introduction),
            (sealed(), any::<Proof>())
                .prop_map(|(sealed, proof)| Message::Acceptance { sealed, proof }),
            sealed().prop_map(Message::Elsewhere),
            Just(Message::Stays),
            (any::<u16>(), "[a-zé]{0,60}")
                .prop_map(|(code, reason)| Message::Rejection { code, reason }),
        ]
    }

    fn memories() -> impl Strategy<Value = Landmark> {
        any::<(u64, [u8; 16])>().prop_map(|(address, holds)| Landmark { address, holds })
    }

    fn reaches() -> impl Strategy<Value = Reached> {
        prop_oneof![Just(Ok(())), "[a-zé]{1,60}".prop_map(Err)]
    }

    /// The message with a field behind its own that nobody knows.
    fn with_unknown_field(bytes: &[u8], unknown: &[u8]) -> Vec<u8> {
        let mut more = bytes.to_vec();
        put_field(&mut more, 0x7fff, unknown);
        let length = more.len() as u32;
        more[8..HEAD].copy_from_slice(&length.to_le_bytes());
        more
    }

    proptest! {
        #[test]
        fn go_round_and_cannot_be_cut(
            server in server_hellos(),
            client in client_hellos(),
            message in messages(),
            unknown in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let bytes = server.encode();
            prop_assert_eq!(&ServerHello::decode(&bytes).unwrap(), &server);
            prop_assert_eq!(&ServerHello::decode(&with_unknown_field(&bytes, &unknown)).unwrap(), &server);
            prop_assert!(ClientHello::decode(&bytes).is_err());
            prop_assert!(Message::decode(&bytes).is_err());
            refuses_truncation(&bytes, ServerHello::decode);

            let bytes = client.encode();
            prop_assert_eq!(length_of(&bytes[..HEAD]).unwrap(), bytes.len());
            prop_assert_eq!(&ClientHello::decode(&bytes).unwrap(), &client);
            prop_assert_eq!(&ClientHello::decode(&with_unknown_field(&bytes, &unknown)).unwrap(), &client);
            refuses_truncation(&bytes, ClientHello::decode);

            let bytes = message.encode();
            prop_assert_eq!(&Message::decode(&bytes).unwrap(), &message);
            prop_assert_eq!(&Message::decode(&with_unknown_field(&bytes, &unknown)).unwrap(), &message);
            prop_assert!(ServerHello::decode(&bytes).is_err());
            refuses_truncation(&bytes, Message::decode);
        }

        #[test]
        fn contents_go_round(
            key in keys(),
            identity in identities(),
            transports in names(),
            stays in any::<bool>(),
            memory in prop::option::of((memories(), reaches())),
            unix_name in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let elsewhere = Elsewhere { unix_name, transports: transports.clone() };
            prop_assert_eq!(&Elsewhere::decode(&elsewhere.encode()).unwrap(), &elsewhere);
            let acceptance = Acceptance { key, identity: identity.clone(), lanes: transports.clone(), memory: memory.clone() };
            prop_assert_eq!(&Acceptance::decode(&acceptance.encode()).unwrap(), &acceptance);
            let memory = memory.map(|(memory, _)| memory);
            let arrival = Arrival { memory };
            prop_assert_eq!(Arrival::decode(&arrival.encode()).unwrap(), arrival);
            let introduction = Introduction { key, identity, transports, stays, memory };
            prop_assert_eq!(&Introduction::decode(&introduction.encode()).unwrap(), &introduction);
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
            prop_assert!(Message::decode(&bytes).is_err());
            let framed = |kind| frame(kind, |out| out.extend_from_slice(&bytes));
            let _ = ServerHello::decode(&framed(Kind::Server));
            let _ = ClientHello::decode(&framed(Kind::Client));
            for kind in [Kind::Proof, Kind::Introduction, Kind::Elsewhere, Kind::Arrival, Kind::Acceptance, Kind::Rejection] {
                let _ = Message::decode(&framed(kind));
            }
            let _ = Introduction::decode(&bytes);
            let _ = Acceptance::decode(&bytes);
            let _ = Elsewhere::decode(&bytes);
            let _ = Arrival::decode(&bytes);
            let mut altered = server.encode();
            let at = at.index(altered.len());
            altered[at] ^= change;
            let _ = ServerHello::decode(&altered);
        }
    }

    #[test]
    fn versions_without_overlap_say_so() {
        let later = |out: &mut Vec<u8>, min, max| {
            put_versions(out, VERSION_MAX + min, VERSION_MAX + max);
            // Garbage behind the versions does not matter: it may be right in theirs.
            out.extend_from_slice(&[0xff; 3]);
        };
        let client = frame(Kind::Client, |out| later(out, 1, 3));
        assert_eq!(
            ClientHello::decode(&client).unwrap_err().kind(),
            ErrorKind::VersionMismatch
        );
        let server = frame(Kind::Server, |out| later(out, 1, 1));
        assert_eq!(
            ServerHello::decode(&server).unwrap_err().kind(),
            ErrorKind::VersionMismatch
        );
        assert_eq!(
            shared_version(VERSION_MAX, 1).unwrap_err().kind(),
            ErrorKind::Malformed
        );
        assert_eq!(shared_version(0, u16::MAX).unwrap(), VERSION_MAX);
    }

    #[test]
    fn a_rejection_keeps_its_kind_and_a_bounded_reason() {
        let error = Error::new(ErrorKind::AuthenticationFailed, "é".repeat(200));
        let rejection = Message::reject(&error).encode();
        let error = Message::unless_rejected(&rejection).unwrap_err();
        assert_eq!(error.to_string(), "é".repeat(127));
        assert_eq!(error.kind(), ErrorKind::AuthenticationFailed);
        Message::unless_rejected(&Message::Stays.encode()).unwrap();
    }

    #[test]
    fn the_largest_message_fits() {
        let introduction = Introduction {
            key: PublicKey([1; 32]),
            identity: Identity {
                boot: [1; 16],
                net_namespace: 1,
                pid_namespace: 1,
                user_namespace: 1,
                user: 0,
                pid: 1,
            },
            transports: vec!["x".repeat(MAX_NAME); 64],
            stays: true,
            memory: Some(Landmark {
                address: u64::MAX,
                holds: [1; 16],
            }),
        };
        let mut sealed = introduction.encode();
        assert_eq!(Introduction::decode(&sealed).unwrap(), introduction);
        // With its tag.
        sealed.extend_from_slice(&[0; 32]);
        let message = Message::Introduction(sealed);
        let bytes = message.encode();
        assert!(bytes.len() <= MAX_HELLO);
        assert_eq!(Message::decode(&bytes).unwrap(), message);
    }
}
