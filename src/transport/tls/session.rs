//! One connection's TLS, between a socket that does not block and those who read and write it.
//!
//! What waits in here is bounded: what one read of the socket brought and was not looked at, one record that was received in part, one that was decrypted and
//! not yet taken, and 64 KiB that were encrypted and that the socket has not taken.
//!
//! rustls asks its socket for 4 KiB at a time, which is five calls into the kernel for each record of 16 KiB. So the socket is read into a buffer of this
//! file's, which a session has only while something is left in it, and rustls reads that.

use std::{
    cell::Cell,
    io::{self, BufRead, IoSlice, Read, Write},
    mem,
    sync::Arc,
};

use rustls::{
    ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection,
    pki_types::ServerName,
};

use super::Certificates;
use crate::{
    error::{Error, ErrorKind, Result},
    util::copy::copy_slice,
};

/// Most slices that are encrypted at once.
const BATCH: usize = 64;
/// Most reads of the socket in one read of this: a peer that sends records without content is left for the next turn.
const READS: usize = 16;
/// What is kept of a peer's first bytes, to tell what it speaks.
const HEARD: usize = 16;

/// Most bytes of one read of the socket: four records and what belongs to them.
const READ: usize = 66 << 10;

thread_local! {
    /// A buffer for the next read of a session on this thread.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Bytes of the socket that TLS has not looked at.
#[derive(Debug, Default)]
struct Arrived {
    buffer: Vec<u8>,
    /// Which of them, in it.
    start: usize,
    end: usize,
}

impl Arrived {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Reads once, where nothing is left. How many bytes came, and whether there may be more.
    fn fill(&mut self, from: &mut dyn Read) -> io::Result<(usize, bool)> {
        let mut buffer = SPARE.take();
        buffer.resize(READ, 0);
        match from.read(&mut buffer) {
            Ok(count) if count > 0 => {
                (self.buffer, self.start, self.end) = (buffer, 0, count);
                Ok((count, count == READ))
            }
            nothing => {
                SPARE.set(buffer);
                nothing.map(|count| (count, false))
            }
        }
    }
}

impl Read for Arrived {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = to.len().min(self.end - self.start);
        copy_slice(&self.buffer[self.start..][..count], &mut to[..count]);
        self.start += count;
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
            SPARE.set(mem::take(&mut self.buffer));
        }
        Ok(count)
    }
}

/// A session, from its first byte on.
#[derive(Debug)]
pub(crate) struct Session {
    connection: Connection,
    arrived: Arrived,
    /// The first bytes that came.
    heard: Vec<u8>,
    /// Why nothing more can be read.
    failed: Option<rustls::Error>,
}

impl Session {
    pub(super) fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self> {
        let connection = ClientConnection::new(config, name).map_err(|error| refusal(&error))?;
        Ok(Self::new(connection.into()))
    }

    pub(super) fn server(config: Arc<ServerConfig>) -> Result<Self> {
        let connection = ServerConnection::new(config).map_err(|error| refusal(&error))?;
        Ok(Self::new(connection.into()))
    }

    fn new(connection: Connection) -> Self {
        Self {
            connection,
            arrived: Arrived::default(),
            heard: Vec::new(),
            failed: None,
        }
    }

    /// Both ends have not agreed yet.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Something is encrypted that the socket has not taken.
    pub(crate) fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// What the peer has shown.
    pub(crate) fn certificates(&self) -> Option<Certificates> {
        let chain = self.connection.peer_certificates()?;
        Some(chain.iter().map(|one| one.clone().into_owned()).collect())
    }

    /// Takes the next step of the handshake, by what has come.
    ///
    /// # Errors
    /// `WouldBlock`: nothing has. `UnexpectedEof`: the peer is gone. Of kind `InvalidData`, with a reason ([`explained`]): one end does not want the other; the peer is told by what
    /// [`flush`](Self::flush) writes.
    pub(crate) fn shake(&mut self, from: &mut dyn Read) -> io::Result<()> {
        self.fetch(from)?;
        while self.decrypt()? && self.connection.is_handshaking() {}
        match self.connection.reader().fill_buf() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => self
                .failed
                .as_ref()
                .map_or(Ok(()), |error| Err(invalid(error.clone()))),
        }
    }

    /// The peer has begun with wharf's own words instead of TLS.
    pub(crate) fn heard_plain_text(&self) -> bool {
        // Behind the length of its message.
        self.heard
            .get(4..)
            .is_some_and(|said| said.starts_with(b"WHARF"))
    }

    /// Reads at most `room` bytes, at least 1, and gives them to `put` in pieces. As from a socket 0 bytes are the end, which the peer has announced.
    ///
    /// # Errors
    /// `WouldBlock`: nothing is left, here or in `from`. `Interrupted`: to be called again. `UnexpectedEof`: the connection has ended, and the peer had
    /// not announced that. `InvalidData`: what came is not what the peer has sent, or the peer refuses ([`explained`]).
    pub(crate) fn read(
        &mut self,
        from: &mut dyn Read,
        room: usize,
        put: &mut dyn FnMut(&[u8]),
    ) -> io::Result<usize> {
        let mut taken = 0;
        let mut dry = false;
        for _ in 0..READS {
            loop {
                match self.take(room - taken, put) {
                    Ok(0) => return Ok(taken),
                    Ok(count) => taken += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) if taken > 0 => return Ok(taken),
                    Err(error) => return Err(error),
                }
                if taken == room {
                    return Ok(taken);
                }
                match self.decrypt() {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(_) if taken > 0 => return Ok(taken),
                    Err(error) => return Err(error),
                }
            }
            if dry && taken > 0 {
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

    /// Gives what is decrypted to `put`, at most `room` bytes.
    fn take(&mut self, room: usize, put: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        let mut taken = 0;
        let mut reader = self.connection.reader();
        while taken < room {
            let chunk = match reader.fill_buf() {
                Ok(chunk) => chunk,
                Err(_) if taken > 0 => break,
                Err(error) => return Err(error),
            };
            if chunk.is_empty() {
                break;
            }
            let count = chunk.len().min(room - taken);
            put(&chunk[..count]);
            reader.consume(count);
            taken += count;
        }
        Ok(taken)
    }

    /// Reads once, where all that came before was decrypted. Whether there may be more.
    fn fetch(&mut self, from: &mut dyn Read) -> io::Result<bool> {
        if let Some(error) = &self.failed {
            return Err(invalid(error.clone()));
        }
        let (count, more) = self.arrived.fill(from)?;
        if count == 0 {
            // The end, which TLS is to know of.
            self.connection.read_tls(&mut io::empty())?;
            self.failed = self.connection.process_new_packets().err();
        }
        let wanted = HEARD.saturating_sub(self.heard.len());
        if wanted > 0 && self.connection.is_handshaking() {
            let heard = &self.arrived.buffer[..count.min(wanted)];
            self.heard.extend_from_slice(heard);
        }
        Ok(more)
    }

    /// Decrypts the next piece of what has come, of which all was taken before. Whether there was one.
    fn decrypt(&mut self) -> io::Result<bool> {
        if let Some(error) = &self.failed {
            return Err(invalid(error.clone()));
        }
        if self.arrived.is_empty() {
            return Ok(false);
        }
        if self.connection.read_tls(&mut self.arrived)? == 0 {
            // Past the peer's goodbye it takes nothing: asked again, it would not either.
            return Ok(false);
        }
        // What came before the fault is delivered before it is told.
        self.failed = self.connection.process_new_packets().err();
        Ok(true)
    }

    /// Encrypts what is in `parts` and writes it, until all of them are taken or `to` takes no more. Returns how many bytes were taken: the
    /// last of them may wait in here ([`wants_write`](Self::wants_write)).
    ///
    /// # Errors
    /// What `to` said, but for `WouldBlock`.
    pub(crate) fn write(&mut self, to: &mut dyn Write, parts: &[IoSlice<'_>]) -> io::Result<usize> {
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
            let count = self.connection.writer().write_vectored(rest)?;
            taken += count;
            IoSlice::advance_slices(&mut rest, count);
        }
    }

    /// Writes what waits, as far as `to` takes it.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn flush(&mut self, to: &mut dyn Write) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(to) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Announces the end, if `to` takes it now.
    pub(crate) fn close(&mut self, to: &mut dyn Write) {
        self.connection.send_close_notify();
        // Who does not hear of it takes the connection for a broken one, as it is then.
        let _ = self.flush(to);
    }
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
