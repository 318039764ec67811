//! The messages of the handshake of a new connection.
//!
//! ```text
//! message    "WHARF" 0, kind u8, 1 | length u32 of all | fields
//! ```
//!
//! A field's id means the same in all of them.
//!
//! What is said when, and what it proves, is [`handshake`](super::handshake)'s.

use super::{
    control::{error_kind, error_kind_code},
    keys::PublicKey,
    pake::Share,
};
use crate::{
    error::{Error, ErrorKind, Result},
    types::{Identity, Landmark},
    util::wire::{Field, Name, Reader, fields, malformed, printable, put, read_fields, sequence},
};

/// Oldest version of the wire that this side speaks.
pub(crate) const VERSION_MIN: u16 = 6;
/// Newest version of the wire that this side speaks.
pub(crate) const VERSION_MAX: u16 = 6;

/// Longest encoding of any of the messages here, in bytes: what a channel has to take before it can refuse.
pub(crate) const MAX_HELLO: usize = 32 * 1024;

/// Bytes of the magic and the length.
pub(crate) const HEAD: usize = 12;

/// What shows who its sender is.
pub(crate) type Proof = [u8; 32];

/// Versions of the wire that an end speaks. They come first and are checked as they are read: what
/// follows may mean something else in another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) min: u16,
    pub(crate) max: u16,
}

impl Versions {
    /// The newest that this side speaks as well.
    pub(crate) fn newest(self) -> Result<u16> {
        let Self { min, max } = self;
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
}

impl Field for Versions {
    fn put(&self, out: &mut Vec<u8>) {
        self.min.put(out);
        self.max.put(out);
    }

    fn read(body: &mut Reader<'_>) -> Result<Self> {
        let (min, max) = (body.u16()?, body.u16()?);
        let versions = Self { min, max };
        versions.newest().map(|_| versions)
    }
}

sequence! { PublicKey { 0 } }

/// Whether the other end's [`Landmark`] could be read; or why not.
pub(crate) type Reached = std::result::Result<(), String>;

/// Nothing, or why not, which is not empty.
impl Field for Reached {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Ok(()) => {}
            Err(why) if why.is_empty() => out.push(b'?'),
            Err(why) => why.put(out),
        }
    }

    fn read(body: &mut Reader<'_>) -> Result<Self> {
        let why = String::read(body)?;
        Ok(if why.is_empty() { Ok(()) } else { Err(why) })
    }
}

fields! {
    /// Who dials, told when the listening end has proved who that is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct Introduction {
        pub(crate) key: PublicKey = 2,
        pub(crate) identity: Identity = 3,
        /// Transports it can use, best first: at most 64, each up to 255 bytes; what is past that is left out.
        pub(crate) transports: Vec<String> = 5,
        /// It does not want to hear of a Unix socket.
        pub(crate) stays: bool = 12,
        /// Memory to try to read, over a Unix socket.
        pub(crate) memory: Option<Landmark> = 14 or None,
    }
}

fields! {
    /// The yes of the listening end.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct Acceptance {
        /// Of the worker that takes the connection, which may be another than the one that said hello.
        pub(crate) key: PublicKey = 2,
        pub(crate) identity: Identity = 3,
        /// Transports to set up now, in this order; bounded as in [`Introduction`].
        pub(crate) lanes: Vec<String> = 5,
        /// Its own memory, where the other's was offered.
        pub(crate) memory: Option<Landmark> = 14 or None,
        /// What came of trying the other's: there when `memory` is.
        pub(crate) reached: Option<Reached> = 15 or None,
    }
}

impl Acceptance {
    /// # Errors
    /// `Malformed`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let acceptance = Self::decode_fields(bytes)?;
        if acceptance.memory.is_some() != acceptance.reached.is_some() {
            return Err(malformed(
                "memory and whether the other's was reached go together",
            ));
        }
        Ok(acceptance)
    }
}

fields! {
    /// The listening end is on the same host, and can be reached there.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct Elsewhere {
        /// Abstract name of its Unix socket.
        pub(crate) unix_name: Name = 4,
        /// Transports that it offers; bounded as in [`Introduction`].
        pub(crate) transports: Vec<String> = 5,
    }
}

fields! {
    /// What the dialling end says first at the Unix socket that it was sent to.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Arrival {
        pub(crate) memory: Option<Landmark> = 14 or None,
    }
}

/// By what the listening end finds the handshake that goes on at its Unix socket.
pub(crate) type Ticket = [u8; 16];

/// An enum whose variants are messages of a kind each, with fields as those of [`fields`].
macro_rules! messages {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$doc:meta])* $variant:ident = $kind:literal $({
            $($(#[$of_field:meta])* $field:ident: $type:ty = $id:literal $(or $absent:expr)?,)*
        })?,)*
    }) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$doc])* $variant $({ $($(#[$of_field])* $field: $type,)* })?,)*
        }

        impl $name {
            const KINDS: &[u8] = &[$($kind),*];

            $vis fn encode(&self) -> Vec<u8> {
                let mut out = Vec::new();
                match self {
                    $(Self::$variant { $($($field),*)? } => {
                        $($(put(&mut out, $id, $field, None$(.or(Some($absent)))?);)*)?
                        frame($kind, &out)
                    })*
                }
            }

            /// # Errors
            /// `Malformed`, or `VersionMismatch` of a hello when both sides have no version in common.
            $vis fn decode(bytes: &[u8]) -> Result<Self> {
                let (kind, bytes) = unframe(bytes)?;
                match kind {
                    $($kind => read_fields!(
                        bytes as Self::$variant { $($($field = $id $(or $absent)?),*)? }
                    ),)*
                    _ => Err(foreign()),
                }
            }
        }
    };
}

messages! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) enum Message {
        /// What the dialling end says first: nothing of itself.
        ClientHello = b'C' {
            versions: Versions = 1,
            /// Made for this handshake.
            ephemeral: PublicKey = 6,
            /// There when it has a secret.
            share: Option<Share> = 7 or None,
        },
        /// What the listening end answers: which worker it is, and no more.
        ServerHello = b'S' {
            /// The one that it chose, twice.
            versions: Versions = 1,
            key: PublicKey = 2,
            /// Made for this handshake.
            ephemeral: PublicKey = 6,
            /// There when it has a secret.
            share: Option<Share> = 7 or None,
        },
        /// The listening end has the key of its hello; the dialling one that of its introduction.
        Proof = b'P' { proof: Proof = 8, },
        /// Under seal an [`Introduction`].
        Introduction = b'I' { sealed: Vec<u8> = 9, },
        /// Under seal an [`Elsewhere`]; the dialling end goes there, or says that it stays.
        Elsewhere = b'E' { sealed: Vec<u8> = 9, },
        Stays = b'H',
        /// Under seal an [`Arrival`], of who was sent with this ticket.
        Arrival = b'U' { ticket: Ticket = 13, sealed: Vec<u8> = 9, },
        /// Under seal an [`Acceptance`], and that the worker which it names has its key.
        Acceptance = b'A' { sealed: Vec<u8> = 9, proof: Proof = 8, },
        /// The connection is turned down, by either part of the listening end's.
        Rejection = b'R' {
            /// The kind of error, as [`Message::reject`] writes it.
            code: u16 = 10,
            /// For people; cut after 255 bytes.
            reason: String = 11,
        },
    }
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
    /// Errors: `Malformed`; what a rejection stands for.
    pub(crate) fn heard(bytes: &[u8]) -> Result<Self> {
        Self::decode(bytes)?.unless_rejection()
    }

    /// For bytes that may be another thing than a message.
    /// Errors: what a [`Message::Rejection`] stands for, if that is what `bytes` are.
    pub(crate) fn unless_rejected(bytes: &[u8]) -> Result<()> {
        Self::decode(bytes).map_or(Ok(()), |message| message.unless_rejection().map(drop))
    }

    fn unless_rejection(self) -> Result<Self> {
        match self {
            Self::Rejection { code, reason } => {
                Err(Error::new(error_kind(code), printable(&reason)))
            }
            message => Ok(message),
        }
    }
}

const MAGIC: [u8; 6] = *b"WHARF\0";

fn frame(kind: u8, fields: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&[kind, 1]);
    ((HEAD + fields.len()) as u32).put(&mut out);
    out.extend_from_slice(fields);
    out
}

/// How long the message is that begins with these bytes, [`HEAD`] of them.
/// Errors: `Malformed`: it is none, or longer than any.
pub(crate) fn length_of(head: &[u8]) -> Result<usize> {
    match head.strip_prefix(&MAGIC) {
        Some([kind, 1, length @ ..]) if Message::KINDS.contains(kind) => {
            match Reader::new(length).u32()? as usize {
                length @ HEAD..=MAX_HELLO => Ok(length),
                _ => Err(malformed("the length of the message is wrong")),
            }
        }
        _ => Err(foreign()),
    }
}

/// The kind of a message, and its fields.
fn unframe(bytes: &[u8]) -> Result<(u8, &[u8])> {
    if length_of(bytes)? != bytes.len() {
        return Err(malformed("the length of the message is wrong"));
    }
    Ok((bytes[MAGIC.len()], &bytes[HEAD..]))
}

#[cold]
fn foreign() -> Error {
    malformed("the other end does not speak this protocol")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::util::wire::{
        MAX_NAME, put_field,
        tests::{hex, identities, identity, names, refuses_truncation},
    };

    fn keys() -> impl Strategy<Value = PublicKey> {
        any::<[u8; 32]>().prop_map(PublicKey)
    }

    fn one(version: u16) -> Versions {
        Versions {
            min: version,
            max: version,
        }
    }

    #[test]
    fn the_reason_of_a_rejection_is_one_line() {
        let said = Error::new(ErrorKind::Rejected, "the peer's\n\u{1b}[2J");
        let heard = Message::heard(&Message::reject(&said).encode());
        let text = heard.expect_err("rejected").to_string();
        assert!(text.contains("the peer's\\n"), "{text}");
        assert!(!text.contains(['\n', '\u{1b}']), "{text}");
    }

    fn shares() -> impl Strategy<Value = Option<Share>> {
        prop::option::of(any::<Share>())
    }

    prop_compose! {
        fn client_hellos()(max in VERSION_MAX.., ephemeral in keys(), share in shares()) -> Message {
            Message::ClientHello { versions: Versions { min: VERSION_MIN, max }, ephemeral, share }
        }
    }

    prop_compose! {
        fn server_hellos()(key in keys(), ephemeral in keys(), share in shares()) -> Message {
            Message::ServerHello { versions: one(VERSION_MAX), key, ephemeral, share }
        }
    }

    fn sealed() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..100)
    }

    fn messages() -> impl Strategy<Value = Message> {
        prop_oneof![
            client_hellos(),
            server_hellos(),
            any::<Proof>().prop_map(|proof| Message::Proof { proof }),
            (any::<Ticket>(), sealed())
                .prop_map(|(ticket, sealed)| Message::Arrival { ticket, sealed }),
            sealed().prop_map(|sealed| Message::Introduction { sealed }),
            (sealed(), any::<Proof>())
                .prop_map(|(sealed, proof)| Message::Acceptance { sealed, proof }),
            sealed().prop_map(|sealed| Message::Elsewhere { sealed }),
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
            message in messages(),
            unknown in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let bytes = message.encode();
            prop_assert_eq!(length_of(&bytes[..HEAD]).unwrap(), bytes.len());
            prop_assert_eq!(&Message::decode(&bytes).unwrap(), &message);
            prop_assert_eq!(&Message::decode(&with_unknown_field(&bytes, &unknown)).unwrap(), &message);
            refuses_truncation(&bytes, Message::decode);
        }

        #[test]
        fn contents_go_round(
            key in keys(),
            identity in identities(),
            transports in names(),
            stays in any::<bool>(),
            tried in prop::option::of((memories(), reaches())),
            unix_name in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let elsewhere = Elsewhere { unix_name: Name(unix_name), transports: transports.clone() };
            prop_assert_eq!(&Elsewhere::decode_fields(&elsewhere.encode_fields()).unwrap(), &elsewhere);
            let (memory, reached) = tried.unzip();
            let acceptance = Acceptance { key, identity: identity.clone(), lanes: transports.clone(), memory, reached };
            prop_assert_eq!(&Acceptance::decode(&acceptance.encode_fields()).unwrap(), &acceptance);
            let arrival = Arrival { memory };
            prop_assert_eq!(Arrival::decode_fields(&arrival.encode_fields()).unwrap(), arrival);
            let introduction = Introduction { key, identity, transports, stays, memory };
            prop_assert_eq!(&Introduction::decode_fields(&introduction.encode_fields()).unwrap(), &introduction);
        }

        #[test]
        fn arbitrary_bytes_do_no_harm(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            server in server_hellos(),
            at in any::<prop::sample::Index>(),
            change in 1u8..,
        ) {
            prop_assert!(Message::decode(&bytes).is_err());
            for &kind in Message::KINDS {
                let _ = Message::decode(&frame(kind, &bytes));
            }
            let _ = Introduction::decode_fields(&bytes);
            let _ = Acceptance::decode(&bytes);
            let _ = Elsewhere::decode_fields(&bytes);
            let _ = Arrival::decode_fields(&bytes);
            let mut altered = server.encode();
            let at = at.index(altered.len());
            altered[at] ^= change;
            let _ = Message::decode(&altered);
        }
    }

    #[test]
    fn versions_without_overlap_say_so() {
        let later = |kind, min, max| {
            let mut out = Vec::new();
            let (min, max) = (VERSION_MAX + min, VERSION_MAX + max);
            put(&mut out, 1, &Versions { min, max }, None);
            // Garbage behind the versions does not matter: it may be right in theirs.
            out.extend_from_slice(&[0xff; 3]);
            frame(kind, &out)
        };
        for hello in [later(b'C', 1, 3), later(b'S', 1, 1)] {
            assert_eq!(
                Message::decode(&hello).unwrap_err().kind(),
                ErrorKind::VersionMismatch
            );
        }
        let newest = |min, max| Versions { min, max }.newest();
        assert_eq!(
            newest(VERSION_MAX, 1).unwrap_err().kind(),
            ErrorKind::Malformed
        );
        assert_eq!(newest(0, u16::MAX).unwrap(), VERSION_MAX);
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
        let mut sealed = introduction.encode_fields();
        assert_eq!(Introduction::decode_fields(&sealed).unwrap(), introduction);
        // With its tag.
        sealed.extend_from_slice(&[0; 32]);
        let message = Message::Introduction { sealed };
        let bytes = message.encode();
        assert!(bytes.len() <= MAX_HELLO);
        assert_eq!(Message::decode(&bytes).unwrap(), message);
    }

    #[test]
    fn their_bytes_stay_what_they_are() {
        let stays = |bytes: Vec<u8>, expected: &str| assert_eq!(hex(&bytes), expected);
        let key = PublicKey(*b"a public key of 32 bytes in all.");
        let ephemeral = PublicKey(*b"a key for once, with 32 bytes...");
        let share = *b"a share, of thirty-two bytes too";
        let client = |share| Message::ClientHello {
            versions: Versions {
                min: 5,
                max: 0x0506,
            },
            ephemeral,
            share,
        };
        stays(
            client(Some(share)).encode(),
            "57484152460043015c00000001000400050006050600200061206b657920666f72206f6e63652c20\
             776974682033322062797465732e2e2e07002000612073686172652c206f66207468697274792d74\
             776f20627974657320746f6f",
        );
        stays(
            client(None).encode(),
            "57484152460043013800000001000400050006050600200061206b657920666f72206f6e63652c20\
             776974682033322062797465732e2e2e",
        );
        let server = |share| Message::ServerHello {
            versions: one(5),
            key,
            ephemeral,
            share,
        };
        stays(
            server(Some(share)).encode(),
            "57484152460053018000000001000400050005000200200061207075626c6963206b6579206f6620\
             333220627974657320696e20616c6c2e0600200061206b657920666f72206f6e63652c2077697468\
             2033322062797465732e2e2e07002000612073686172652c206f66207468697274792d74776f2062\
             7974657320746f6f",
        );
        stays(
            server(None).encode(),
            "57484152460053015c00000001000400050005000200200061207075626c6963206b6579206f6620\
             333220627974657320696e20616c6c2e0600200061206b657920666f72206f6e63652c2077697468\
             2033322062797465732e2e2e",
        );

        let transports = || vec!["shm".to_owned(), "tcp".to_owned()];
        let memory = Landmark {
            address: 0x0102_0304_0506_0708,
            holds: *b"held, 16 of them",
        };
        let introduction = |stays, memory| Introduction {
            key,
            identity: identity(),
            transports: transports(),
            stays,
            memory,
        };
        stays(
            introduction(true, Some(memory)).encode_fields(),
            "0200200061207075626c6963206b6579206f6620333220627974657320696e20616c6c2e03003000\
             30313233343536373839616263646566080706050403020118171615141312112827262524232221\
             3433323144434241050008000373686d037463700c000100010e001800080706050403020168656c\
             642c203136206f66207468656d",
        );
        stays(
            introduction(false, None).encode_fields(),
            "0200200061207075626c6963206b6579206f6620333220627974657320696e20616c6c2e03003000\
             30313233343536373839616263646566080706050403020118171615141312112827262524232221\
             3433323144434241050008000373686d037463700c00010000",
        );
        let acceptance = |tried: Option<(Landmark, Reached)>| {
            let (memory, reached) = tried.unzip();
            let lanes = transports();
            let identity = identity();
            Acceptance {
                key,
                identity,
                lanes,
                memory,
                reached,
            }
            .encode_fields()
        };
        let why = |why: &str| Some((memory, Err(why.to_owned())));
        stays(
            acceptance(Some((memory, Ok(())))),
            "0200200061207075626c6963206b6579206f6620333220627974657320696e20616c6c2e03003000\
             30313233343536373839616263646566080706050403020118171615141312112827262524232221\
             3433323144434241050008000373686d037463700e001800080706050403020168656c642c203136\
             206f66207468656d0f000000",
        );
        stays(
            acceptance(why("not mine")),
            "0200200061207075626c6963206b6579206f6620333220627974657320696e20616c6c2e03003000\
             30313233343536373839616263646566080706050403020118171615141312112827262524232221\
             3433323144434241050008000373686d037463700e001800080706050403020168656c642c203136\
             206f66207468656d0f0008006e6f74206d696e65",
        );
        stays(
            acceptance(why("")),
            "0200200061207075626c6963206b6579206f6620333220627974657320696e20616c6c2e03003000\
             30313233343536373839616263646566080706050403020118171615141312112827262524232221\
             3433323144434241050008000373686d037463700e001800080706050403020168656c642c203136\
             206f66207468656d0f0001003f",
        );
        stays(
            acceptance(None),
            "0200200061207075626c6963206b6579206f6620333220627974657320696e20616c6c2e03003000\
             30313233343536373839616263646566080706050403020118171615141312112827262524232221\
             3433323144434241050008000373686d03746370",
        );
        let elsewhere = Elsewhere {
            unix_name: Name(b"name".to_vec()),
            transports: transports(),
        };
        stays(
            elsewhere.encode_fields(),
            "040004006e616d65050008000373686d03746370",
        );
        let memory = Some(memory);
        stays(
            Arrival { memory }.encode_fields(),
            "0e001800080706050403020168656c642c203136206f66207468656d",
        );
        stays(Arrival { memory: None }.encode_fields(), "");

        let sealed = b"sealed".to_vec();
        let proof = *b"a proof, which is 32 bytes long.";
        stays(
            Message::Proof { proof }.encode(),
            "57484152460050013000000008002000612070726f6f662c20776869636820697320333220627974\
             6573206c6f6e672e",
        );
        stays(
            Message::Introduction {
                sealed: sealed.clone(),
            }
            .encode(),
            "574841524600490116000000090006007365616c6564",
        );
        stays(
            Message::Elsewhere {
                sealed: sealed.clone(),
            }
            .encode(),
            "574841524600450116000000090006007365616c6564",
        );
        stays(Message::Stays.encode(), "57484152460048010c000000");
        stays(
            Message::Arrival {
                ticket: *b"a ticket, 16 by.",
                sealed: sealed.clone(),
            }
            .encode(),
            "57484152460055012a0000000d00100061207469636b65742c2031362062792e090006007365616c\
             6564",
        );
        stays(
            Message::Acceptance { sealed, proof }.encode(),
            "57484152460041013a000000090006007365616c656408002000612070726f6f662c207768696368\
             206973203332206279746573206c6f6e672e",
        );
        let reason = "no".to_owned();
        let code = 0x0102;
        stays(
            Message::Rejection { code, reason }.encode(),
            "5748415246005201180000000a00020002010b0002006e6f",
        );
    }
}
