//! Somebody who speaks the handshake without being wharf: a second reading of its bytes, for tests that have to say what no wharf says.

use std::collections::HashMap;

use curve25519_dalek::{MontgomeryPoint, RistrettoPoint, Scalar, ristretto::CompressedRistretto};
use hmac_sha256::{HKDF, HMAC, Hash};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use wharf::{WorkerAddress, WorkerId};

pub(crate) mod field {
    pub(crate) const VERSIONS: u16 = 1;
    pub(crate) const KEY: u16 = 2;
    pub(crate) const IDENTITY: u16 = 3;
    pub(crate) const UNIX_NAME: u16 = 4;
    pub(crate) const TRANSPORTS: u16 = 5;
    pub(crate) const EPHEMERAL: u16 = 6;
    pub(crate) const SHARE: u16 = 7;
    pub(crate) const PROOF: u16 = 8;
    pub(crate) const SEALED: u16 = 9;
    pub(crate) const STAYS: u16 = 12;
    pub(crate) const TICKET: u16 = 13;
}

pub(crate) const VERSION: u16 = 6;
const CLIENT: u8 = 2;
const SERVER: u8 = 1;

/// One message of the set-up: its length, then its bytes.
pub(crate) async fn say(stream: &mut (impl AsyncWrite + Unpin), message: &[u8]) {
    let mut framed = (message.len() as u32).to_le_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed).await.expect("the peer reads");
}

pub(crate) async fn hear(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let length = stream.read_u32_le().await.expect("a length");
    let mut message = vec![0; length as usize];
    stream.read_exact(&mut message).await.expect("a message");
    message
}

/// What a server says to a client's hello: its own, and the proof of it.
pub(crate) async fn hear_hello(stream: &mut (impl AsyncRead + Unpin)) -> [Vec<u8>; 2] {
    [hear(stream).await, hear(stream).await]
}

/// Who a client says it is, behind which comes the proof of it.
pub(crate) async fn hear_introduction(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let introduction = hear(stream).await;
    let proof = hear(stream).await;
    assert_eq!(fields(b'P', &proof).len(), 1, "{proof:?}");
    introduction
}

/// Reads until the other end closes.
pub(crate) async fn until_the_end(stream: &mut (impl AsyncRead + Unpin)) {
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut rest).await;
}

/// A key pair.
#[derive(Clone)]
pub(crate) struct Key {
    secret: [u8; 32],
    pub(crate) public: [u8; 32],
}

impl Key {
    pub(crate) fn new(secret: [u8; 32]) -> Self {
        Self {
            secret,
            public: MontgomeryPoint::mul_base_clamped(secret).to_bytes(),
        }
    }

    fn agree(&self, other: [u8; 32]) -> [u8; 32] {
        MontgomeryPoint(other).mul_clamped(self.secret).to_bytes()
    }
}

/// The id of the worker that has this key.
pub(crate) fn worker(public: &[u8; 32]) -> WorkerId {
    let hash = Hash::hash(&[b"wharf worker", &public[..]].concat());
    WorkerId(hash[..16].try_into().expect("16 bytes"))
}

/// The address of a worker, but that it leads to who has this key, at this Unix socket and nowhere else.
pub(crate) fn led_to(address: &WorkerAddress, key: &Key, unix_name: &[u8]) -> WorkerAddress {
    let bytes = address.to_bytes();
    let mut out = bytes[..8].to_vec();
    // A checksum is its end.
    for (id, body) in list(8, &bytes[..bytes.len() - 4]) {
        match id {
            1 => put(&mut out, id, &worker(&key.public).0),
            3 => put(&mut out, id, unix_name),
            4 => put(&mut out, id, &[]),
            _ => put(&mut out, id, &body),
        }
    }
    let length = (out.len() + 4) as u16;
    out[6..8].copy_from_slice(&length.to_le_bytes());
    let sum = crc32fast::hash(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    WorkerAddress::from_bytes(&out).expect("an address")
}

/// The abstract name of the Unix socket in a worker's address, and where that says it is.
pub(crate) fn unix_part(address: &WorkerAddress) -> (Vec<u8>, Vec<u8>) {
    let bytes = address.to_bytes();
    let parts: HashMap<_, _> = list(8, &bytes[..bytes.len() - 4]).into_iter().collect();
    (parts[&3].clone(), parts[&2].clone())
}

fn put(out: &mut Vec<u8>, id: u16, bytes: &[u8]) {
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn content(fields: &[(u16, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    fields
        .iter()
        .for_each(|(id, bytes)| put(&mut out, *id, bytes));
    out
}

/// A message of this kind, of these fields.
fn message(kind: u8, fields: &[(u16, &[u8])]) -> Vec<u8> {
    let mut out = b"WHARF\0".to_vec();
    out.extend_from_slice(&[kind, 1, 0, 0, 0, 0]);
    out.extend_from_slice(&content(fields));
    let length = (out.len() as u32).to_le_bytes();
    out[8..12].copy_from_slice(&length);
    out
}

/// The fields that begin at `at`, in their order.
pub(crate) fn list(at: usize, message: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut found = Vec::new();
    let mut rest = &message[at..];
    while let [i0, i1, l0, l1, tail @ ..] = rest {
        let (body, next) = tail.split_at(u16::from_le_bytes([*l0, *l1]).into());
        found.push((u16::from_le_bytes([*i0, *i1]), body.to_vec()));
        rest = next;
    }
    found
}

/// The fields of a message of this kind.
pub(crate) fn fields(kind: u8, message: &[u8]) -> HashMap<u16, Vec<u8>> {
    assert_eq!(
        message[..8],
        [b'W', b'H', b'A', b'R', b'F', 0, kind, 1],
        "{:?}",
        String::from_utf8_lossy(message)
    );
    list(12, message).into_iter().collect()
}

pub(crate) fn bytes_of(fields: &HashMap<u16, Vec<u8>>, id: u16) -> [u8; 32] {
    fields[&id].as_slice().try_into().expect("32 bytes")
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    HMAC::mac(parts.concat(), key)
}

/// Where a secret leads in the handshake of this client's key; and a share of it by this scalar.
pub(crate) fn share(secret: &str, client: &[u8; 32], scalar: &Scalar) -> [u8; 32] {
    let mut chosen = [0; 64];
    HKDF::expand(
        &mut chosen,
        HKDF::extract(client, secret),
        b"wharf CPace base",
    );
    (RistrettoPoint::from_uniform_bytes(&chosen) * scalar)
        .compress()
        .to_bytes()
}

/// What two shares give who knows the scalar of one.
pub(crate) fn shared(scalar: &Scalar, theirs: [u8; 32], first: &[u8], second: &[u8]) -> [u8; 32] {
    let point = CompressedRistretto(theirs).decompress().expect("a point");
    let common = (point * scalar).compress();
    hmac(common.as_bytes(), &[b"wharf CPace key", first, second])
}

/// What both ends know.
#[derive(Clone)]
pub(crate) struct Both {
    chain: [u8; 32],
    said: Hash,
    own: Key,
    theirs: [u8; 32],
    /// The chain before the secret went into it.
    before: [u8; 32],
}

impl Both {
    fn new(medium: &str, client_hello: &[u8], own: Key, theirs: [u8; 32]) -> Self {
        let mut this = Self {
            chain: [0; 32],
            said: Hash::new(),
            own,
            theirs,
            before: [0; 32],
        };
        this.said.update(b"wharf handshake 6");
        this.hear(medium.as_bytes());
        this.hear(client_hello);
        this.mix(this.own.agree(theirs));
        this
    }

    fn hear(&mut self, part: &[u8]) {
        self.said.update((part.len() as u64).to_le_bytes());
        self.said.update(part);
    }

    fn mix(&mut self, agreed: [u8; 32]) {
        self.before = self.chain;
        self.chain = hmac(&self.chain, &[&agreed]);
    }

    /// Had the secret given this.
    pub(crate) fn with_secret(&self, agreed: [u8; 32]) -> Self {
        let mut this = self.clone();
        this.chain = hmac(&self.before, &[&agreed]);
        this
    }

    fn key(&self, prover: u8, purpose: &[u8]) -> [u8; 32] {
        hmac(&self.chain, &[&[prover], &self.said.finalize(), purpose])
    }

    fn encipher(&self, prover: u8, bytes: &mut [u8]) {
        let key = self.key(prover, b"cipher");
        for (index, block) in bytes.chunks_mut(32).enumerate() {
            let stream = hmac(&key, &[&(index as u64).to_le_bytes()]);
            block.iter_mut().zip(stream).for_each(|(a, b)| *a ^= b);
        }
    }

    fn seal(&mut self, prover: u8, mut content: Vec<u8>) -> Vec<u8> {
        let tag = self.key(prover, b"tag");
        self.encipher(prover, &mut content);
        content.extend_from_slice(&hmac(&tag, &[&content]));
        self.hear(&content);
        content
    }

    fn prove(&mut self, prover: u8, key: &Key) -> [u8; 32] {
        self.mix(key.agree(self.theirs));
        self.key(prover, b"proof")
    }

    /// What a client has sealed, for who can open it.
    pub(crate) fn open(&self, introduction: &[u8]) -> Option<HashMap<u16, Vec<u8>>> {
        let sealed = fields(b'I', introduction).remove(&field::SEALED)?;
        let (content, tag) = sealed.split_last_chunk::<32>()?;
        if hmac(&self.key(CLIENT, b"tag"), &[content]) != *tag {
            return None;
        }
        let mut content = content.to_vec();
        self.encipher(CLIENT, &mut content);
        Some(list(0, &content).into_iter().collect())
    }

    /// After an introduction that was opened.
    fn introduced(&mut self, introduction: &[u8], key: [u8; 32]) {
        self.hear(&fields(b'I', introduction)[&field::SEALED]);
        self.mix(self.own.agree(key));
    }
}

/// As though a handshake were to go on that somebody has begun elsewhere.
pub(crate) fn arrival() -> Vec<u8> {
    let ticket = (field::TICKET, &[7; 16][..]);
    message(b'U', &[ticket, (field::SEALED, &[9; 40])])
}

/// Who says something, and what of it is true.
#[derive(Clone)]
pub(crate) struct Stranger<'a> {
    /// The kind of connection.
    pub(crate) medium: &'a str,
    /// The key that it has.
    pub(crate) key: &'a Key,
    /// The key that it says it has.
    pub(crate) claims: [u8; 32],
    pub(crate) secret: Option<&'a str>,
    /// The version that it speaks.
    pub(crate) version: u16,
}

/// Of no worker.
const NOWHERE: [u8; 48] = [0x33; 48];

impl<'a> Stranger<'a> {
    /// One who says the truth.
    pub(crate) fn honest(medium: &'a str, key: &'a Key) -> Self {
        Self {
            medium,
            key,
            claims: key.public,
            secret: None,
            version: VERSION,
        }
    }

    /// What its shares are made with.
    pub(crate) fn scalar() -> Scalar {
        Scalar::from(0x1234_5678_u64)
    }

    /// What a client says first.
    pub(crate) fn client_hello(&self) -> Vec<u8> {
        let ephemeral = Key::new([0x17; 32]);
        let [low, high] = self.version.to_le_bytes();
        let share = self
            .secret
            .map(|secret| share(secret, &ephemeral.public, &Self::scalar()));
        let versions = [low, high, low, high];
        let mut fields: Vec<(u16, &[u8])> = vec![
            (field::VERSIONS, &versions),
            (field::EPHEMERAL, &ephemeral.public),
            // Of a later version: to be skipped.
            (99, b"whatever"),
        ];
        if let Some(share) = &share {
            fields.push((field::SHARE, share));
        }
        message(b'C', &fields)
    }

    /// Who it says it is, to a server that has said hello, and the proof of it.
    pub(crate) fn introduction(&self, [server, proof]: &[Vec<u8>; 2]) -> [Vec<u8>; 2] {
        let hello = self.client_hello();
        let theirs = fields(b'S', server);
        let ephemeral = Key::new([0x17; 32]);
        let mut both = Both::new(
            self.medium,
            &hello,
            ephemeral.clone(),
            bytes_of(&theirs, field::EPHEMERAL),
        );
        both.hear(server);
        both.mix(ephemeral.agree(bytes_of(&theirs, field::KEY)));
        assert_eq!(
            bytes_of(&fields(b'P', proof), field::PROOF),
            both.key(SERVER, b"proof"),
            "the server's proof"
        );
        if self.secret.is_some() {
            let own = bytes_of(&fields(b'C', &hello), field::SHARE);
            let theirs = bytes_of(&theirs, field::SHARE);
            both.mix(shared(&Self::scalar(), theirs, &own, &theirs));
        }
        let introduction = content(&[
            (field::KEY, &self.claims),
            (field::IDENTITY, &NOWHERE),
            (field::TRANSPORTS, b"\x03tcp\x03shm"),
            (field::STAYS, &[1]),
        ]);
        let sealed = both.seal(CLIENT, introduction);
        let proof = both.prove(CLIENT, self.key);
        [
            message(b'I', &[(field::SEALED, &sealed)]),
            message(b'P', &[(field::PROOF, &proof)]),
        ]
    }

    /// Says that.
    pub(crate) async fn introduce(
        &self,
        stream: &mut (impl AsyncWrite + Unpin),
        server: &[Vec<u8>; 2],
    ) {
        for message in self.introduction(server) {
            say(stream, &message).await;
        }
    }

    /// What a server answers to a client's hello, in two messages; and what both know then.
    pub(crate) fn server_hello(&self, client: &[u8]) -> ([Vec<u8>; 2], Both) {
        let ephemeral = Key::new([0x71; 32]);
        let theirs = fields(b'C', client);
        let client_key = bytes_of(&theirs, field::EPHEMERAL);
        let [low, high] = self.version.to_le_bytes();
        let share = self
            .secret
            .map(|secret| share(secret, &client_key, &Self::scalar()));
        let versions = [low, high, low, high];
        let mut fields: Vec<(u16, &[u8])> = vec![
            (field::VERSIONS, &versions),
            (field::KEY, &self.claims),
            (field::EPHEMERAL, &ephemeral.public),
        ];
        if let Some(share) = &share {
            fields.push((field::SHARE, share));
        }
        let hello = message(b'S', &fields);
        let mut both = Both::new(self.medium, client, ephemeral, client_key);
        both.hear(&hello);
        both.mix(self.key.agree(client_key));
        let proof = both.key(SERVER, b"proof");
        let proof = message(b'P', &[(field::PROOF, &proof)]);
        if let Some(own) = &share {
            let theirs = bytes_of(&theirs, field::SHARE);
            both.mix(shared(&Self::scalar(), theirs, &theirs, own));
        }
        ([hello, proof], both)
    }

    /// Says that.
    pub(crate) async fn greet(
        &self,
        stream: &mut (impl AsyncWrite + Unpin),
        client: &[u8],
    ) -> Both {
        let (messages, both) = self.server_hello(client);
        for message in messages {
            say(stream, &message).await;
        }
        both
    }

    /// Sends a client to another socket.
    pub(crate) fn elsewhere(&self, mut both: Both, introduction: &[u8], name: &[u8]) -> Vec<u8> {
        let client = both.open(introduction).expect("sealed for this one");
        both.introduced(introduction, bytes_of(&client, field::KEY));
        let elsewhere = content(&[(field::UNIX_NAME, name), (field::TRANSPORTS, b"\x03shm")]);
        let sealed = both.seal(SERVER, elsewhere);
        message(b'E', &[(field::SEALED, &sealed)])
    }

    /// The yes to a client's introduction.
    pub(crate) fn acceptance(&self, both: Both, introduction: &[u8]) -> Vec<u8> {
        self.acceptance_over(both, introduction, b"\x03tcp", &[])
    }

    /// The same over these transports, with more fields, or others in their place.
    pub(crate) fn acceptance_over(
        &self,
        mut both: Both,
        introduction: &[u8],
        transports: &[u8],
        more: &[(u16, &[u8])],
    ) -> Vec<u8> {
        let client = both.open(introduction).expect("sealed for this one");
        both.introduced(introduction, bytes_of(&client, field::KEY));
        let mut fields: Vec<(u16, &[u8])> = vec![
            (field::KEY, &self.claims),
            (field::IDENTITY, &NOWHERE),
            (field::TRANSPORTS, transports),
        ];
        fields.retain(|(id, _)| more.iter().all(|(other, _)| other != id));
        fields.extend(more);
        let sealed = both.seal(SERVER, content(&fields));
        let proof = both.prove(SERVER, self.key);
        message(b'A', &[(field::SEALED, &sealed), (field::PROOF, &proof)])
    }

    /// As a client, to the verdict.
    pub(crate) async fn dial(&self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Vec<u8> {
        say(stream, &self.client_hello()).await;
        let server = hear(stream).await;
        if server[6] != b'S' {
            return server;
        }
        let server = [server, hear(stream).await];
        self.introduce(stream, &server).await;
        hear(stream).await
    }
}
