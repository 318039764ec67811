//! Who is at the other end of a new connection, as the two ends prove it to each other. No input or output: bytes in, bytes out.
//!
//! ```text
//! client                                            server
//!    │ ─── hello: versions, a key for this once ─────▶ │
//!    │ ◀── hello: the same, whose key it has ───────── │
//!    │ ◀── proof ───────────────────────────────────── │  both multiply at the same time
//!    │ ─── introduction ─────────────────────────────▶ │
//!    │ ─── proof ────────────────────────────────────▶ │  both multiply at the same time
//!    │ ◀── elsewhere: the name of a Unix socket ────── │  perhaps: the client goes there, or stays
//!    │ ─── stays ────────────────────────────────────▶ │
//!    │ ◀── acceptance, proof; or a rejection ───────── │
//!
//! at the Unix socket, where it went there
//!    │ ─── arrival ──────────────────────────────────▶ │
//!    │ ◀── acceptance, proof; or a rejection ───────── │
//! ```
//!
//! # What is proved
//! Each end has a key for this handshake alone (the ephemeral one), and one that its id is a hash of. A proof is an HMAC-SHA256 over all
//! that was said, the kind of connection and the role of the one who proves. Its key is drawn from all that the two ends have in common so
//! far, and from what the prover's own key has in common with the other's ephemeral one. So it shows to the other end of this one
//! handshake who made it; recorded, or given to somebody else, it shows nothing.
//!
//! With a shared secret both hellos have a share of a [`pake`](super::pake), and what it gives goes into all keys from the introduction on: it cannot
//! be opened, nor made, without the secret, and the client is the first to show that it knows it. Without one nothing of the kind is worked out.
//!
//! At the Unix socket the same handshake goes on: what both ends have in common is there already, and both have proved that they have their keys.
//! The arrival is sealed by it, over all that was said and the kind of the new connection; the listening end finds the handshake by a ticket that it
//! can be had from, and lets it go on there once. What is said on either connection after that opens nothing on the other.
//!
//! # Who gets to know what
//! Introduction, elsewhere, arrival and acceptance are sealed: enciphered by HMAC-SHA256 in counter mode, and authenticated. Whoever connects learns the
//! worker's key (and so its id), its version, and whether it wants a secret. Who dials is told to the listening end when that has proved who
//! it is, and can be read by those alone who know the secret. What the listening end says of itself it says to who has proved a key of their
//! own, and that they know the secret. Who only listens on the wire learns the listening worker's key.
//!
//! What was said under seal stays so should the keys of both workers become known later: an ephemeral key is used for one handshake, and forgotten with
//! it. A worker makes the next one while it waits for the other end of the last, and so holds one that was not used yet: should all of its memory
//! become known, the next handshake is known too, which needed no more than the worker's own key and a place in the middle.
//!
//! What follows the handshake is neither encrypted nor authenticated: who can alter the bytes of a connection on their way can alter all
//! after this.
//!
//! # What it costs
//! Three multiplications on the curve at each end, which both ends do at the same time, and one of the base point that nobody waits for. Another two at
//! each end where there is a secret. So that the third is done at both ends at once, the client says who it is before it proves that.

use std::fmt;

use hmac_sha256::{HMAC, Hash};
use zeroize::Zeroizing;

use super::{
    hello::{
        Acceptance, Arrival, Elsewhere, Introduction, Message, Proof, Ticket, VERSION_MAX,
        VERSION_MIN, Versions,
    },
    keys::{Agreed, PrivateKey, PublicKey},
    pake::{Pake, Share},
};
use crate::{
    error::{Error, ErrorKind, Result},
    util::{secret::same, wire::malformed},
};

/// Random bytes that one end's share of a secret is made of.
pub(crate) type Random = [u8; 64];

/// The dialling end, before it has heard anything.
pub(crate) struct Opening {
    own: PrivateKey,
    pake: Option<Pake>,
    hello: Vec<u8>,
    said: Said,
}

impl Opening {
    /// Over a connection of this kind, with a key that is used for nothing else.
    pub(crate) fn new(
        medium: &str,
        secret: Option<&[u8]>,
        own: PrivateKey,
        random: &Random,
    ) -> Self {
        let ephemeral = own.public();
        let pake = Pake::new(secret, &ephemeral.0, random);
        let hello = Message::ClientHello {
            versions: Versions {
                min: VERSION_MIN,
                max: VERSION_MAX,
            },
            ephemeral,
            share: pake.as_ref().map(Pake::share),
        };
        let hello = hello.encode();
        let said = Said::new(medium, &hello);
        Self {
            own,
            pake,
            hello,
            said,
        }
    }

    /// What to say first.
    pub(crate) fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// What the listening end answers. What its proof is checked with is worked out while it works on that.
    /// Errors: `AuthenticationFailed`: one end has a secret and the other has none. Why it turned the connection down. `Malformed`, `VersionMismatch`.
    pub(crate) fn answered(self, bytes: &[u8]) -> Result<Answered> {
        let Message::ServerHello {
            versions,
            key: server,
            ephemeral,
            share,
        } = Message::heard(bytes)?
        else {
            return Err(out_of_turn());
        };
        if versions.min != versions.max {
            return Err(malformed("a server chooses one version"));
        }
        let mut both = Both::new(self.own, ephemeral, self.said)?;
        both.said.hear(bytes);
        both.meet(&server)?;
        let secret = shared_key(self.pake.as_ref(), share.as_ref(), Prover::Client)?;
        let client = Client { both, server };
        Ok(Answered { client, secret })
    }
}

/// The dialling end, which has been told who answers, and not been shown it.
pub(crate) struct Answered {
    client: Client,
    /// What the secret gives.
    secret: Option<Agreed>,
}

impl Answered {
    /// What the listening end says after its hello.
    /// Errors: `AuthenticationFailed`: it does not hold the key that it says it has. Why it turned the connection down. `Malformed`. `VersionMismatch`: a hello of another version.
    pub(crate) fn proved(mut self, bytes: &[u8]) -> Result<Client> {
        let Message::Proof { proof } = Message::heard(bytes)? else {
            return Err(out_of_turn());
        };
        let both = &mut self.client.both;
        both.check(Prover::Server, &proof)?;
        both.share(self.secret);
        Ok(self.client)
    }
}

/// The dialling end.
pub(crate) struct Client {
    both: Both,
    server: PublicKey,
}

/// What the listening end decides.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Elsewhere(Elsewhere),
    Accept(Acceptance),
}

impl Client {
    /// The key of the worker that answered.
    pub(crate) fn server(&self) -> PublicKey {
        self.server
    }

    /// Says who this is. To be sent before it is proved.
    pub(crate) fn introduce(&mut self, introduction: &Introduction) -> Vec<u8> {
        let sealed = self.both.seal(Prover::Client, introduction.encode_fields());
        Message::Introduction { sealed }.encode()
    }

    /// Shows that it is the holder of `key`, as it has said.
    /// Errors: `Malformed`: the listening end's key for this handshake is none.
    pub(crate) fn prove(&mut self, key: &PrivateKey) -> Result<Vec<u8>> {
        self.both.show(key)?;
        let proof = self.both.proof(Prover::Client);
        Ok(Message::Proof { proof }.encode())
    }

    /// What the listening end says to that.
    /// Errors: `AuthenticationFailed`: it does not know the secret, or not hold the key of the worker that it says accepts. Why it turned the
    /// connection down. `Malformed`. `VersionMismatch`, as above.
    pub(crate) fn verdict(&mut self, bytes: &[u8]) -> Result<Verdict> {
        match Message::heard(bytes)? {
            Message::Elsewhere { sealed } => {
                let opened = self.both.open(Prover::Server, &sealed)?;
                Elsewhere::decode_fields(&opened).map(Verdict::Elsewhere)
            }
            Message::Acceptance { sealed, proof } => {
                let opened = self.both.open(Prover::Server, &sealed)?;
                let acceptance = Acceptance::decode(&opened)?;
                self.both.meet(&acceptance.key)?;
                self.both.check(Prover::Server, &proof)?;
                Ok(Verdict::Accept(acceptance))
            }
            _ => Err(out_of_turn()),
        }
    }

    /// Goes on over a connection of this kind, to where it was sent; with what to say there first. This one may stay as well.
    pub(crate) fn arrive(&self, medium: &str, arrival: &Arrival) -> (Self, Vec<u8>) {
        let (mut both, ticket) = self.both.elsewhere(medium);
        let sealed = both.seal(Prover::Client, arrival.encode_fields());
        let server = self.server;
        (
            Self { both, server },
            Message::Arrival { ticket, sealed }.encode(),
        )
    }
}

/// The listening end, which has said hello.
pub(crate) struct Greeting {
    own: PrivateKey,
    theirs: PublicKey,
    said: Said,
    pake: Option<Pake>,
    share: Option<Share>,
}

impl Greeting {
    /// Takes a client's hello over a connection of this kind, as the holder of `key`, with another that is used for nothing else; with the answer.
    /// Errors: `AuthenticationFailed`: one end has a secret and the other has none. `Malformed`, `VersionMismatch`.
    pub(crate) fn new(
        medium: &str,
        key: &PublicKey,
        secret: Option<&[u8]>,
        own: PrivateKey,
        random: &Random,
        bytes: &[u8],
    ) -> Result<(Self, Vec<u8>)> {
        let Message::ClientHello {
            versions,
            ephemeral: theirs,
            share,
        } = Message::decode(bytes)?
        else {
            return Err(out_of_turn());
        };
        if share.is_some() != secret.is_some() {
            return Err(unequal());
        }
        let pake = Pake::new(secret, &theirs.0, random);
        let version = versions.newest()?;
        let hello = Message::ServerHello {
            versions: Versions {
                min: version,
                max: version,
            },
            key: *key,
            ephemeral: own.public(),
            share: pake.as_ref().map(Pake::share),
        };
        let hello = hello.encode();
        let mut said = Said::new(medium, bytes);
        said.hear(&hello);
        let this = Self {
            own,
            theirs,
            said,
            pake,
            share,
        };
        Ok((this, hello))
    }

    /// Shows that it has the key of its hello; with what to say.
    /// Errors: `Malformed`: the client's key, or its share of the secret, is none.
    pub(crate) fn prove(self, key: &PrivateKey) -> Result<(Proved, Vec<u8>)> {
        let mut both = Both::new(self.own, self.theirs, self.said)?;
        both.show(key)?;
        let proof = both.proof(Prover::Server);
        let secret = shared_key(self.pake.as_ref(), self.share.as_ref(), Prover::Server)?;
        both.share(secret);
        Ok((Proved { both }, Message::Proof { proof }.encode()))
    }
}

/// The listening end, which has shown who it is.
pub(crate) struct Proved {
    both: Both,
}

impl Proved {
    /// Who dials, as they say. All is worked out that their proof is checked with. What is wrong with it is said by
    /// [`Introduced::proved`], so that nobody refuses before the proof was read: a connection that is closed with something
    /// unread on it loses the refusal, too.
    pub(crate) fn introduced(mut self, bytes: &[u8]) -> Introduced {
        Introduced {
            said: self.hear(bytes).map(|said| (self.both, said)),
        }
    }

    fn hear(&mut self, bytes: &[u8]) -> Result<Introduction> {
        let Message::Introduction { sealed } = Message::decode(bytes)? else {
            return Err(out_of_turn());
        };
        let opened = self.both.open(Prover::Client, &sealed)?;
        let said = Introduction::decode_fields(&opened)?;
        self.both.meet(&said.key)?;
        Ok(said)
    }
}

/// The listening end, which has been told who dials, and not been shown it.
pub(crate) struct Introduced {
    said: Result<(Both, Introduction)>,
}

impl Introduced {
    /// Who dials.
    /// Errors: `AuthenticationFailed`: they do not know the secret, or do not hold the key that they say they have. `Malformed`. `VersionMismatch`, as above.
    pub(crate) fn proved(self, bytes: &[u8]) -> Result<(Server, Introduction)> {
        let (both, said) = self.said?;
        let Message::Proof { proof } = Message::decode(bytes)? else {
            return Err(out_of_turn());
        };
        both.check(Prover::Client, &proof)?;
        Ok((Server { both }, said))
    }
}

/// The listening end, which knows who dials.
pub(crate) struct Server {
    both: Both,
}

impl Server {
    /// Sends the client to another socket.
    pub(crate) fn elsewhere(&mut self, elsewhere: &Elsewhere) -> Vec<u8> {
        let sealed = self.both.seal(Prover::Server, elsewhere.encode_fields());
        Message::Elsewhere { sealed }.encode()
    }

    /// The same handshake for a connection of another kind, where it sent the client; and by what that is told.
    pub(crate) fn expect(&self, medium: &str) -> (Self, Ticket) {
        let (both, ticket) = self.both.elsewhere(medium);
        (Self { both }, ticket)
    }

    /// Who is expected has come.
    /// Errors: `AuthenticationFailed`: it is somebody else. `Malformed`.
    pub(crate) fn arrived(&mut self, sealed: &[u8]) -> Result<Arrival> {
        Arrival::decode_fields(&self.both.open(Prover::Client, sealed)?)
    }

    /// What a client says that does not go there.
    /// Errors: `VersionMismatch`: a hello of another version. `Malformed`: anything else.
    pub(crate) fn stays(bytes: &[u8]) -> Result<()> {
        match Message::decode(bytes)? {
            Message::Stays => Ok(()),
            _ => Err(out_of_turn()),
        }
    }

    /// The connection stands, with the holder of `key`.
    pub(crate) fn accept(&mut self, key: &PrivateKey, acceptance: &Acceptance) -> Result<Vec<u8>> {
        let sealed = self.both.seal(Prover::Server, acceptance.encode_fields());
        self.both.show(key)?;
        let proof = self.both.proof(Prover::Server);
        Ok(Message::Acceptance { sealed, proof }.encode())
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

/// Who proves something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prover {
    Server = 1,
    Client = 2,
}

/// All that was said.
#[derive(Clone)]
struct Said(Hash);

impl Said {
    fn new(medium: &str, hello: &[u8]) -> Self {
        let mut this = Self(Hash::new());
        this.0.update(b"wharf handshake 6");
        this.hear(medium.as_bytes());
        this.hear(hello);
        this
    }

    /// Each part with its length, so no two conversations give the same input.
    fn hear(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }
}

/// What both ends know, in the same order.
#[derive(Clone)]
struct Both {
    said: Said,
    /// All that they have in common, drawn together.
    chain: Agreed,
    /// This end's key for this handshake, and the other's.
    own: PrivateKey,
    theirs: PublicKey,
    /// What the other's own key and this end's ephemeral one have in common, and the other way round, of the key that came last: it mostly comes
    /// twice, of a worker that greets and accepts.
    met: Option<(PublicKey, Agreed)>,
    shown: Option<(PublicKey, Agreed)>,
}

impl Both {
    fn new(own: PrivateKey, theirs: PublicKey, said: Said) -> Result<Self> {
        let agreed = own.agree(&theirs)?;
        let mut this = Self {
            said,
            chain: Agreed::default(),
            own,
            theirs,
            met: None,
            shown: None,
        };
        this.mix(&agreed);
        Ok(this)
    }

    fn mix(&mut self, agreed: &[u8; 32]) {
        self.chain = Zeroizing::new(hmac(&*self.chain, &[agreed]));
    }

    /// What only the holder of `key` and this end have in common.
    fn meet(&mut self, key: &PublicKey) -> Result<()> {
        let agreed = match self.met.take() {
            Some((known, agreed)) if known == *key => agreed,
            _ => self.own.agree(key)?,
        };
        self.mix(&agreed);
        self.met = Some((*key, agreed));
        Ok(())
    }

    /// What only the other end and this one have in common, which holds `key`.
    fn show(&mut self, key: &PrivateKey) -> Result<()> {
        let agreed = match self.shown.take() {
            Some((known, agreed)) if known == key.public() => agreed,
            _ => key.agree(&self.theirs)?,
        };
        self.mix(&agreed);
        self.shown = Some((key.public(), agreed));
        Ok(())
    }

    /// The same where the client was sent, after all that was said so far; and by what the listening end knows it there.
    fn elsewhere(&self, medium: &str) -> (Self, Ticket) {
        let mut this = self.clone();
        let ticket = self.key(Prover::Server, b"ticket");
        this.said.hear(medium.as_bytes());
        (this, *ticket.first_chunk().expect("16 of 32 bytes"))
    }

    /// What the secret gives, where both have one.
    fn share(&mut self, secret: Option<Agreed>) {
        if let Some(key) = secret {
            self.mix(&key);
        }
    }

    /// A key for one use at this point.
    fn key(&self, prover: Prover, purpose: &[u8]) -> Agreed {
        let said = self.said.0.finalize();
        Zeroizing::new(hmac(&*self.chain, &[&[prover as u8], &said, purpose]))
    }

    fn proof(&self, prover: Prover) -> Proof {
        *self.key(prover, b"proof")
    }

    fn check(&self, prover: Prover, proof: &Proof) -> Result<()> {
        match same(&self.proof(prover), proof) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::AuthenticationFailed,
                "the peer did not prove that it is who it says",
            )),
        }
    }

    /// Enciphered, with a tag at the end.
    fn seal(&mut self, prover: Prover, mut content: Vec<u8>) -> Vec<u8> {
        let tag = self.key(prover, b"tag");
        self.encipher(prover, &mut content);
        content.extend_from_slice(&hmac(&*tag, &[&content]));
        self.said.hear(&content);
        content
    }

    /// What was sealed.
    fn open(&mut self, prover: Prover, sealed: &[u8]) -> Result<Vec<u8>> {
        let (content, tag) = sealed
            .split_last_chunk::<32>()
            .ok_or_else(|| malformed("a sealed part is cut short"))?;
        if !same(&hmac(&*self.key(prover, b"tag"), &[content]), tag) {
            let text = "the shared secret is wrong, or the handshake was altered on its way";
            return Err(Error::new(ErrorKind::AuthenticationFailed, text));
        }
        let mut content = content.to_vec();
        self.encipher(prover, &mut content);
        self.said.hear(sealed);
        Ok(content)
    }

    /// There and back.
    fn encipher(&self, prover: Prover, content: &mut [u8]) {
        let key = self.key(prover, b"cipher");
        for (index, block) in content.chunks_mut(32).enumerate() {
            let stream = Zeroizing::new(hmac(&*key, &[&(index as u64).to_le_bytes()]));
            block
                .iter_mut()
                .zip(stream.iter())
                .for_each(|(byte, other)| *byte ^= other);
        }
    }
}

/// What the secret gives, where both have one; this end is `role`.
fn shared_key(own: Option<&Pake>, theirs: Option<&Share>, role: Prover) -> Result<Option<Agreed>> {
    match (own, theirs) {
        (None, None) => Ok(None),
        (Some(own), Some(theirs)) => match role {
            Prover::Client => own.key(theirs, (&own.share(), theirs)).map(Some),
            Prover::Server => own.key(theirs, (theirs, &own.share())).map(Some),
        },
        _ => Err(unequal()),
    }
}

#[cold]
fn unequal() -> Error {
    let text = "one end has a shared secret and the other has none";
    Error::new(ErrorKind::AuthenticationFailed, text)
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = HMAC::new(key);
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize()
}

#[cold]
fn out_of_turn() -> Error {
    malformed("another message of the handshake was due")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        types::Identity,
        util::wire::{Name, tests::identities},
    };

    /// A key for one handshake, and what a share of the secret is made of.
    fn random() -> impl Strategy<Value = ([u8; 32], Random)> {
        any::<[[u8; 32]; 3]>().prop_map(|[key, one, other]| {
            let random = [one, other].concat();
            (key, random.try_into().expect("64 bytes"))
        })
    }

    /// All that a handshake needs.
    #[derive(Clone, Debug)]
    struct Case {
        media: [&'static str; 2],
        secrets: [Option<Vec<u8>>; 2],
        randoms: [([u8; 32], Random); 2],
        keys: [[u8; 32]; 3],
        identity: Identity,
        /// To the Unix socket.
        goes: bool,
    }

    prop_compose! {
        fn cases()(
            secret in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
            randoms in [random(), random()],
            keys in any::<[[u8; 32]; 3]>(),
            identity in identities(),
            goes in any::<bool>(),
        ) -> Case {
            Case { media: ["tcp"; 2], secrets: [secret.clone(), secret], randoms, keys, identity, goes }
        }
    }

    impl Case {
        /// Both ends to the end, where each message goes through `wire`, with its number; at the end what each has heard.
        fn run(
            &self,
            mut wire: impl FnMut(usize, Vec<u8>) -> Vec<u8>,
        ) -> Result<(Introduction, Elsewhere, Acceptance)> {
            let [client_key, server_key, taker] = self.keys.map(PrivateKey::new);
            let secret = |at: usize| self.secrets[at].as_deref();
            let (own, random) = &self.randoms[0];
            let own = PrivateKey::new(*own);
            let opening = Opening::new(self.media[0], secret(0), own, random);
            let hello = wire(0, opening.hello().to_vec());
            let (own, random) = &self.randoms[1];
            let own = PrivateKey::new(*own);
            let public = server_key.public();
            let (greeting, hello) =
                Greeting::new(self.media[1], &public, secret(1), own, random, &hello)?;
            let answered = opening.answered(&wire(1, hello))?;
            let (server, proof) = greeting.prove(&server_key)?;
            let mut client = answered.proved(&wire(2, proof))?;
            assert_eq!(client.server(), server_key.public());
            let introduction = Introduction {
                key: client_key.public(),
                identity: self.identity.clone(),
                transports: vec!["tcp".to_owned()],
                stays: false,
                memory: None,
            };
            let bytes = client.introduce(&introduction);
            let server = server.introduced(&wire(3, bytes));
            let bytes = client.prove(&client_key)?;
            let (mut server, introduced) = server.proved(&wire(4, bytes))?;
            let elsewhere = Elsewhere {
                unix_name: Name(b"the name of a socket".to_vec()),
                transports: vec!["shm".to_owned()],
            };
            let bytes = server.elsewhere(&elsewhere);
            let Verdict::Elsewhere(elsewhere) = client.verdict(&wire(5, bytes))? else {
                return Err(out_of_turn());
            };
            if self.goes {
                let (there, bytes) = client.arrive("unix", &Arrival { memory: None });
                let (expected, ticket) = server.expect("unix");
                let Message::Arrival {
                    ticket: shown,
                    sealed,
                } = Message::decode(&wire(6, bytes))?
                else {
                    return Err(out_of_turn());
                };
                if shown != ticket {
                    return Err(Error::new(ErrorKind::AuthenticationFailed, "not expected"));
                }
                (client, server) = (there, expected);
                server.arrived(&sealed)?;
            } else {
                Server::stays(&wire(6, Message::Stays.encode()))?;
            }
            let acceptance = Acceptance {
                key: taker.public(),
                identity: self.identity.clone(),
                lanes: vec!["tcp".to_owned()],
                memory: None,
                reached: None,
            };
            let bytes = server.accept(&taker, &acceptance)?;
            let Verdict::Accept(accepted) = client.verdict(&wire(7, bytes))? else {
                return Err(out_of_turn());
            };
            assert_eq!(introduced, introduction);
            assert_eq!(accepted, acceptance);
            Ok((introduced, elsewhere, accepted))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn both_ends_hear_what_was_said_and_nobody_else(case in cases()) {
            let mut seen = Vec::new();
            let (introduced, elsewhere, _) = case
                .run(|_, bytes| {
                    seen.extend_from_slice(&bytes);
                    bytes
                })
                .unwrap();
            prop_assert_eq!(introduced.identity, case.identity.clone());
            prop_assert_eq!(elsewhere.unix_name.0, b"the name of a socket");
            let secrets: [&[u8]; 3] = [b"the name of a socket", &introduced.key.0, &case.identity.boot];
            for secret in secrets {
                prop_assert!(!seen.windows(secret.len()).any(|window| window == secret), "{secret:?}");
            }
        }

        /// Whatever is altered is noticed, at the latest by the next who is to prove something.
        #[test]
        fn no_byte_can_be_altered(case in cases(), message in 0usize..8, at in any::<prop::sample::Index>(), change in 1u8..) {
            let altered = case.run(|number, mut bytes| {
                if number == message {
                    let at = at.index(bytes.len());
                    bytes[at] ^= change;
                }
                bytes
            });
            prop_assert!(altered.is_err());
        }

        /// What was said in one handshake, said in another at its place.
        #[test]
        fn nothing_can_be_said_twice(case in cases(), randoms in [random(), random()], message in 0usize..8) {
            let mut said = Vec::new();
            case.run(|_, bytes| {
                said.push(bytes.clone());
                bytes
            })
            .unwrap();
            for fresh in [[randoms[0], case.randoms[1]], [case.randoms[0], randoms[1]]] {
                let again = Case { randoms: fresh, ..case.clone() };
                let mut differs = false;
                let result = again.run(|number, bytes| {
                    if number == message {
                        differs = said[number] != bytes;
                        return said[number].clone();
                    }
                    bytes
                });
                prop_assert_eq!(result.is_err(), differs);
            }
        }

        #[test]
        fn both_have_the_secret_and_the_same_socket(case in cases(), other in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assume!(case.secrets[0].as_ref() != Some(&other));
            for wrong in [Some(other), None].into_iter().filter(|wrong| *wrong != case.secrets[0]) {
                for at in 0..2 {
                    let mut unequal = case.clone();
                    unequal.secrets[at] = wrong.clone();
                    let error = unequal.run(|_, bytes| bytes).unwrap_err();
                    prop_assert_eq!(error.kind(), ErrorKind::AuthenticationFailed);
                }
            }
            let handed_on = Case { media: ["tcp", "unix"], ..case };
            let error = handed_on.run(|_, bytes| bytes).unwrap_err();
            prop_assert_eq!(error.kind(), ErrorKind::AuthenticationFailed);
        }
    }
}
