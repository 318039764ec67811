//! One connection's TLS, between a socket that does not block and those who read and write it.
//!
//! ```text
//! read:  socket ─▶ arrived ─▶ rustls ─▶ put        the rest of a record that there was no room for: `rest`
//! write: parts ─▶ rustls ─▶ unsent ─▶ socket
//! ```
//!
//! What waits in here is bounded: what one read of the socket brought and was not looked at, the rest of one record that was decrypted, or, where something
//! was written before all was read, of what one read brought; and some 80 KiB that were encrypted and that the socket has not taken. A session has its
//! buffers only while something is in them, and for a record of which the rest has not come no more than there is of it.
//!
//! rustls keeps no bytes itself here: by its other interface it would ask the socket for 4 KiB at a time, or copy what was read once more.

use std::{
    cell::Cell,
    fmt,
    io::{self, IoSlice},
    mem,
    sync::Arc,
};

use rustls::{
    ClientConfig, CommonState, ServerConfig,
    client::UnbufferedClientConnection,
    pki_types::{CertificateDer, ServerName},
    server::UnbufferedServerConnection,
    unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus},
};

use crate::{
    error::{Error, ErrorKind, Result},
    util::copy::{append, copied, copy_slice},
};

/// What a peer has shown, its own certificate first.
pub(crate) type Certificates = Arc<[CertificateDer<'static>]>;

/// A socket's own calls, which never wait.
pub(crate) type Reading<'a> = dyn FnMut(&mut [u8]) -> io::Result<usize> + 'a;
pub(crate) type Writing<'a> = dyn FnMut(&[u8]) -> io::Result<usize> + 'a;

/// Most slices that are encrypted at once.
const BATCH: usize = 64;
/// Most reads of the socket in one read of this: a peer that sends records without content is left for the next turn.
const READS: usize = 16;
/// What is kept of a peer's first bytes, to tell what it speaks.
const HEARD: usize = 16;
/// Most bytes that have arrived and were not decrypted: four records and what belongs to them. No message of a handshake is longer.
const READ: usize = 66 << 10;
/// Most bytes of content of a record (RFC 8446, 5.1).
const RECORD: usize = 16 << 10;
/// Bytes of a record before its content, in all versions.
const HEAD: usize = 5;
/// What a record is longer by than its content, at most, with the ciphers that there are: TLS 1.2 has 8 bytes more in each than TLS 1.3.
const AROUND: usize = 40;
/// What is encrypted at once: four records, and the little that a message of 64 KiB is longer by.
const WRITE: usize = 5 * (RECORD + AROUND);
/// A page, and how far into its page the target of a copy lies further than the source where the C library's copy is slow: see [`crate::util::copy`].
const PAGE: usize = 4096;
const SLOW: usize = 64;
/// How much the place of the next record is moved by: further than that, also for those behind it, each of which lies 22 bytes further into its page.
const SHIFT: usize = 256;

thread_local! {
    /// Buffers for the next session on this thread that needs them: for what arrives, and for what is to be sent.
    static ARRIVING: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static LEAVING: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Bytes of the socket that TLS has not decrypted.
#[derive(Default)]
struct Arrived {
    buffer: Vec<u8>,
    /// Which of them, in it.
    start: usize,
    end: usize,
    /// Where the first of them goes.
    base: usize,
}

impl Arrived {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.end]
    }

    /// The first of them are not needed any more.
    fn discard(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            let buffer = mem::take(&mut self.buffer);
            if !buffer.is_empty() {
                ARRIVING.set(buffer);
            }
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads once, behind the part of a record that there may be. How many bytes came, and whether there may be more.
    fn fill(&mut self, from: &mut Reading<'_>) -> io::Result<(usize, bool)> {
        let held = self.end - self.start;
        if held >= READ {
            let text = "a message of the TLS handshake is too long";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let room = READ - held;
        let is_wide = self.buffer.len() == PAGE + READ;
        if is_wide && self.start != self.base {
            self.buffer.copy_within(self.start..self.end, self.base);
            (self.start, self.end) = (self.base, self.base + held);
        }
        let mut other = match is_wide {
            true => mem::take(&mut self.buffer),
            false => ARRIVING.take(),
        };
        other.resize(PAGE + READ, 0);
        let read = from(&mut other[self.base + held..][..room]);
        match read {
            Ok(count) if count > 0 => {
                if !is_wide {
                    copy_slice(
                        &self.buffer[self.start..self.end],
                        &mut other[self.base..][..held],
                    );
                }
                self.buffer = other;
                (self.start, self.end) = (self.base, self.base + held + count);
                Ok((count, count == room))
            }
            nothing => {
                if is_wide {
                    // Who waits for the rest of a record has no more than there is of it.
                    self.buffer = copied(&other[self.start..self.end]);
                    (self.start, self.end) = (0, held);
                }
                ARRIVING.set(other);
                nothing.map(|count| (count, false))
            }
        }
    }

    /// A record's content was copied from where it was decrypted, in the front, to here.
    fn copied_to(&mut self, content: *const u8) {
        let from = self.buffer.as_ptr().addr() + self.start + HEAD;
        let further = content.addr().wrapping_sub(from) % PAGE;
        if (1..=SLOW).contains(&further) {
            self.base = (self.base + SHIFT) % PAGE;
        }
    }
}

/// Encrypted bytes that the socket has not taken.
#[derive(Default)]
struct Unsent {
    buffer: Vec<u8>,
    /// Which of them, in it.
    start: usize,
    end: usize,
}

impl Unsent {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Where this many more go.
    fn room(&mut self, count: usize) -> &mut [u8] {
        if self.is_empty() && self.buffer.is_empty() {
            self.buffer = LEAVING.take();
        }
        let needed = self.end + count;
        if self.buffer.len() < needed {
            match self.buffer.is_empty() {
                // From zeros that the allocator has.
                true => self.buffer = vec![0; needed.max(WRITE)],
                false => self.buffer.resize(needed.max(WRITE), 0),
            }
        }
        &mut self.buffer[self.end..]
    }

    /// The first of them were taken.
    fn advance(&mut self, count: usize) {
        self.start += count;
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
            let buffer = mem::take(&mut self.buffer);
            // A longer one had held what was unusually long.
            if buffer.len() <= WRITE {
                LEAVING.set(buffer);
            }
        }
    }
}

/// What was decrypted and not taken.
#[derive(Default)]
struct Rest {
    bytes: Vec<u8>,
    start: usize,
}

impl Rest {
    /// Gives some of it to `put`. How many bytes.
    fn take(&mut self, room: usize, put: &mut dyn FnMut(&[u8])) -> usize {
        let count = room.min(self.bytes.len() - self.start);
        if count > 0 {
            put(&self.bytes[self.start..][..count]);
            self.start += count;
            if self.start == self.bytes.len() {
                *self = Self::default();
            }
        }
        count
    }
}

/// What this end has to say.
#[derive(Clone, Copy)]
enum Say<'a> {
    Nothing,
    Bytes(&'a [u8]),
    /// That it says no more.
    Goodbye,
}

/// rustls's part.
enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

impl Side {
    /// What a step of rustls came to, and how many of the bytes that have arrived are not needed any more.
    fn step(
        &mut self,
        arrived: &mut [u8],
        say: Say<'_>,
        unsent: &mut Unsent,
        put: &mut dyn FnMut(&[u8]),
    ) -> (std::result::Result<Step, rustls::Error>, usize) {
        match self {
            Self::Client(client) => follow(client.process_tls_records(arrived), say, unsent, put),
            Self::Server(server) => match server.process_tls_records(arrived) {
                UnbufferedStatus {
                    discard,
                    state: Ok(ConnectionState::ReadEarlyData(mut early)),
                } => {
                    // No worker sends any.
                    while early.next_record().is_some() {}
                    (Ok(Step::More), discard)
                }
                status => follow(status, say, unsent, put),
            },
        }
    }
}

/// What a step of rustls came to.
enum Step {
    /// Something, perhaps of the content of a record, and there may be more.
    More,
    /// Nothing: it needs more bytes of the peer's.
    Blocked,
    /// The peer has announced the end.
    Ended,
    Encrypted,
}

/// A session, from its first byte on.
pub(crate) struct Session {
    side: Side,
    arrived: Arrived,
    rest: Rest,
    unsent: Unsent,
    /// The first bytes that came.
    heard: Vec<u8>,
    /// The peer has announced the end.
    ended: bool,
    /// Why nothing more can be read.
    failed: Option<rustls::Error>,
}

impl Session {
    pub(super) fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self> {
        let connection =
            UnbufferedClientConnection::new(config, name).map_err(|error| refusal(&error))?;
        let mut this = Self::new(Side::Client(connection));
        // Its first words.
        this.say();
        Ok(this)
    }

    pub(super) fn server(config: Arc<ServerConfig>) -> Result<Self> {
        let connection =
            UnbufferedServerConnection::new(config).map_err(|error| refusal(&error))?;
        Ok(Self::new(Side::Server(connection)))
    }

    fn new(side: Side) -> Self {
        Self {
            side,
            arrived: Arrived::default(),
            rest: Rest::default(),
            unsent: Unsent::default(),
            heard: Vec::new(),
            ended: false,
            failed: None,
        }
    }

    fn state(&self) -> &CommonState {
        match &self.side {
            Side::Client(client) => client,
            Side::Server(server) => server,
        }
    }

    /// Both ends have not agreed yet.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.state().is_handshaking()
    }

    /// Something is encrypted that the socket has not taken.
    pub(crate) fn wants_write(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// What the peer has shown.
    pub(crate) fn certificates(&self) -> Option<Certificates> {
        let chain = self.state().peer_certificates()?;
        Some(chain.iter().map(|one| one.clone().into_owned()).collect())
    }

    /// Takes the next step of the handshake, by what has come.
    /// Errors: `WouldBlock`: nothing has. `UnexpectedEof`: the peer is gone. Of kind `InvalidData`, with a reason ([`explained`]): one end does not want the other; the peer is told by what
    /// [`flush`](Self::flush) writes.
    pub(crate) fn shake(&mut self, from: &mut Reading<'_>) -> io::Result<()> {
        self.fetch(from)?;
        while self.is_handshaking() {
            match self.step(Say::Nothing, 0, &mut |_| {})? {
                (Step::More, _) => {}
                (Step::Ended, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => break,
            }
        }
        // Its last words, too.
        self.say();
        Ok(())
    }

    /// The peer has begun with wharf's own words instead of TLS.
    pub(crate) fn heard_plain_text(&self) -> bool {
        // Behind the length of its message.
        self.heard
            .get(4..)
            .is_some_and(|said| said.starts_with(b"WHARF"))
    }

    /// Reads at most `room` bytes, at least 1, and gives them to `put` in pieces. As from a socket 0 bytes are the end, which the peer has announced.
    /// Errors: `WouldBlock`: nothing is left, here or in `from`. `Interrupted`: to be called again. `UnexpectedEof`: the connection has ended, and the peer had
    /// not announced that. `InvalidData`: what came is not what the peer has sent, or the peer refuses ([`explained`]).
    pub(crate) fn read(
        &mut self,
        from: &mut Reading<'_>,
        room: usize,
        put: &mut dyn FnMut(&[u8]),
    ) -> io::Result<usize> {
        let mut taken = self.rest.take(room, put);
        let mut dry = false;
        for _ in 0..READS {
            while taken < room && !self.ended {
                match self.step(Say::Nothing, room - taken, put) {
                    Ok((Step::Blocked, _)) => break,
                    Ok((_, count)) => taken += count,
                    // What came before the fault is delivered before it is told.
                    Err(_) if taken > 0 => return Ok(taken),
                    Err(error) => return Err(error),
                }
            }
            if taken == room || self.ended || dry && taken > 0 {
                return Ok(taken);
            }
            match self.fetch(from) {
                Ok(more) => dry = !more,
                Err(_) if taken > 0 => return Ok(taken),
                Err(error) => return Err(error),
            }
        }
        match taken {
            0 => Err(io::ErrorKind::Interrupted.into()),
            _ => Ok(taken),
        }
    }

    /// Reads once, where nothing can be decrypted of what came before. Whether there may be more.
    fn fetch(&mut self, from: &mut Reading<'_>) -> io::Result<bool> {
        if let Some(error) = &self.failed {
            return Err(invalid(error.clone()));
        }
        let (count, more) = self.arrived.fill(from)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let wanted = HEARD.saturating_sub(self.heard.len());
        if wanted > 0 && self.is_handshaking() {
            let new = &self.arrived.buffer[self.arrived.end - count..self.arrived.end];
            self.heard.extend_from_slice(&new[..count.min(wanted)]);
        }
        Ok(more)
    }

    /// One step of rustls: with what has arrived, or, where that says nothing more and there is something to `say`, with that. Of the content of a record
    /// `room` bytes go to `put`, and are counted.
    fn step(
        &mut self,
        say: Say<'_>,
        room: usize,
        put: &mut dyn FnMut(&[u8]),
    ) -> io::Result<(Step, usize)> {
        if let Some(error) = &self.failed {
            return Err(invalid(error.clone()));
        }
        let (rest, mut taken, mut at) = (&mut self.rest, 0, None);
        let mut put = |content: &[u8]| {
            at = Some(content.as_ptr());
            let (now, later) = content.split_at(content.len().min(room));
            if !now.is_empty() {
                put(now);
                taken += now.len();
            }
            append(&mut rest.bytes, later);
        };
        let (step, discard) = self
            .side
            .step(self.arrived.bytes(), say, &mut self.unsent, &mut put);
        if let Some(content) = at {
            self.arrived.copied_to(content);
        }
        self.arrived.discard(discard);
        match step {
            Ok(step) => {
                self.ended |= matches!(step, Step::Ended);
                Ok((step, taken))
            }
            Err(error) => {
                self.say();
                self.failed = Some(error.clone());
                Err(invalid(error))
            }
        }
    }

    /// Encrypts what rustls itself has to say.
    fn say(&mut self) {
        while self.state().wants_write() {
            // It comes before whatever has arrived.
            let (step, discard) = self.side.step(
                self.arrived.bytes(),
                Say::Nothing,
                &mut self.unsent,
                &mut |_| {},
            );
            self.arrived.discard(discard);
            if step.is_err() {
                return;
            }
        }
    }

    /// Encrypts what is in `parts` and writes it, until all of them are taken or `to` takes no more. Returns how many bytes were taken: the
    /// last of them may wait in here ([`wants_write`](Self::wants_write)).
    /// Errors: what `to` said, but for `WouldBlock`.
    pub(crate) fn write(
        &mut self,
        to: &mut Writing<'_>,
        parts: &[IoSlice<'_>],
    ) -> io::Result<usize> {
        let mut rest = [IoSlice::new(&[]); BATCH];
        let count = parts.len().min(BATCH);
        rest[..count].copy_from_slice(&parts[..count]);
        let mut rest = &mut rest[..count];
        IoSlice::advance_slices(&mut rest, 0);
        let mut taken = 0;
        loop {
            self.flush(to)?;
            if rest.is_empty() || self.wants_write() {
                return Ok(taken);
            }
            while !rest.is_empty() && self.unsent.end < WRITE - RECORD - AROUND {
                let count = self.encrypt(rest)?;
                if count == 0 {
                    return Ok(taken);
                }
                taken += count;
                IoSlice::advance_slices(&mut rest, count);
            }
        }
    }

    /// Encrypts the next records of what is in `parts`. How many bytes; 0: reading has failed, and will tell.
    fn encrypt(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let room = (WRITE - self.unsent.end) / (RECORD + AROUND) * RECORD;
        let first = &*parts[0];
        if first.len() >= RECORD || parts.len() == 1 {
            // Whole records; what is left over goes with what follows.
            let whole = match parts.len() {
                1 => first.len(),
                _ => first.len() / RECORD * RECORD,
            };
            return self.encrypt_run(&first[..whole.min(room)]);
        }
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut record = Vec::with_capacity(length.min(RECORD));
        for part in parts {
            let count = part.len().min(RECORD - record.len());
            append(&mut record, &part[..count]);
        }
        self.encrypt_run(&record)
    }

    fn encrypt_run(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.step(Say::Bytes(bytes), 0, &mut |_| {}) {
                Ok((Step::More | Step::Ended, _)) => {}
                Ok((Step::Encrypted, _)) => return Ok(bytes.len()),
                Ok((Step::Blocked, _)) => return Err(io::ErrorKind::NotConnected.into()),
                Err(error) if self.failed.is_none() => return Err(error),
                Err(_) => return Ok(0),
            }
        }
    }

    /// Writes what waits, as far as `to` takes it.
    /// Errors: as [`write`](Self::write).
    pub(crate) fn flush(&mut self, to: &mut Writing<'_>) -> io::Result<()> {
        while self.wants_write() {
            match to(&self.unsent.buffer[self.unsent.start..self.unsent.end]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.unsent.advance(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Announces the end, if `to` takes it now.
    pub(crate) fn close(&mut self, to: &mut Writing<'_>) {
        while let Ok((Step::More | Step::Ended, _)) = self.step(Say::Goodbye, 0, &mut |_| {}) {}
        // Who does not hear of it takes the connection for a broken one, as it is then.
        let _ = self.flush(to);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("handshaking", &self.is_handshaking())
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// Does what rustls asks for. With how many of the bytes that have arrived are not needed any more.
fn follow<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    say: Say<'_>,
    unsent: &mut Unsent,
    put: &mut dyn FnMut(&[u8]),
) -> (std::result::Result<Step, rustls::Error>, usize) {
    let mut discard = status.discard;
    let step = status.state.and_then(|state| match state {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = record?;
                discard += record.discard;
                put(record.payload);
            }
            Ok(Step::More)
        }
        ConnectionState::EncodeTlsData(mut data) => {
            let mut needed = 0;
            let count = loop {
                match data.encode(unsent.room(needed)) {
                    Ok(count) => break count,
                    Err(EncodeError::InsufficientSize(size)) => needed = size.required_size,
                    Err(EncodeError::AlreadyEncoded) => break 0,
                }
            };
            unsent.end += count;
            Ok(Step::More)
        }
        // It is on its way with all that is said after it.
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(Step::More)
        }
        ConnectionState::PeerClosed => Ok(Step::Ended),
        ConnectionState::WriteTraffic(mut traffic) => {
            let mut needed = match say {
                Say::Nothing => return Ok(Step::Blocked),
                Say::Bytes(bytes) => bytes.len() + (bytes.len() / RECORD + 1) * AROUND,
                Say::Goodbye => 0,
            };
            let count = loop {
                let room = unsent.room(needed);
                let said = match say {
                    Say::Bytes(bytes) => traffic.encrypt(bytes, room),
                    _ => traffic.queue_close_notify(room),
                };
                match said {
                    Ok(count) => break count,
                    Err(EncryptError::InsufficientSize(size)) => needed = size.required_size,
                    Err(EncryptError::EncryptExhausted) => {
                        return Err(rustls::Error::EncryptError);
                    }
                }
            };
            unsent.end += count;
            Ok(Step::Encrypted)
        }
        _ => Ok(Step::Blocked),
    });
    (step, discard)
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// What TLS has to say of an error of a [`Session`]'s reads; `None`: nothing.
pub(crate) fn explained(error: &io::Error) -> Option<Error> {
    error.get_ref()?.downcast_ref().map(refusal)
}

/// Why TLS did not come about, or does not go on.
#[cold]
fn refusal(error: &rustls::Error) -> Error {
    use rustls::{AlertDescription as Alert, Error as Tls};
    let kind = match error {
        Tls::AlertReceived(
            Alert::BadRecordMac
            | Alert::DecodeError
            | Alert::InternalError
            | Alert::RecordOverflow
            | Alert::UnexpectedMessage,
        ) => ErrorKind::Protocol,
        Tls::AlertReceived(_)
        | Tls::InvalidCertificate(_)
        | Tls::NoApplicationProtocol
        | Tls::NoCertificatesPresented
        | Tls::PeerIncompatible(_)
        | Tls::UnsupportedNameType => ErrorKind::AuthenticationFailed,
        _ => ErrorKind::Protocol,
    };
    Error::new(kind, format!("TLS: {error}")).with_source(error.clone())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Reads once what is in here, one piece for each read.
    fn fill(arrived: &mut Arrived, socket: &mut VecDeque<Vec<u8>>) -> io::Result<(usize, bool)> {
        arrived.fill(&mut |to| {
            let piece = socket.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
            to[..piece.len()].copy_from_slice(&piece);
            Ok(piece.len())
        })
    }

    #[test]
    fn a_part_of_a_record_is_all_that_is_held() {
        let mut socket = [vec![1, 2, 3], vec![4]].into();
        let mut arrived = Arrived::default();
        for count in [3, 1] {
            let came = fill(&mut arrived, &mut socket).expect("some");
            assert_eq!(came, (count, false));
        }
        assert_eq!(arrived.bytes(), [1, 2, 3, 4]);
        for _ in 0..2 {
            let error = fill(&mut arrived, &mut socket).expect_err("nothing there");
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            assert_eq!(arrived.bytes(), [1, 2, 3, 4]);
            assert_eq!(arrived.buffer.len(), 4);
        }
        socket.push_back(vec![5]);
        assert_eq!(
            fill(&mut arrived, &mut socket).expect("the rest"),
            (1, false)
        );
        assert_eq!(arrived.bytes(), [1, 2, 3, 4, 5]);
        arrived.discard(4);
        assert_eq!(arrived.bytes(), [5]);
        arrived.discard(1);
        assert_eq!((arrived.bytes().len(), arrived.buffer.len()), (0, 0));
    }

    #[test]
    fn a_record_that_would_be_copied_slowly_lies_elsewhere_next_time() {
        let mut arrived = Arrived::default();
        for (further, base) in [
            (0, 0),
            (11, SHIFT),
            (SLOW, 2 * SHIFT),
            (SLOW + 1, 2 * SHIFT),
        ] {
            fill(&mut arrived, &mut [vec![7; 100]].into()).expect("some");
            let record = arrived.buffer.as_ptr().wrapping_add(arrived.start + HEAD);
            arrived.copied_to(record.wrapping_add(5 * PAGE + further));
            assert_eq!(arrived.base, base, "{further} bytes further");
            arrived.discard(100);
        }
    }
}
