//! The channel that a connection is set up over: framed messages, with file descriptors between processes of one host.

use std::{
    io::{self, IoSlice},
    mem::ManuallyDrop,
    net::{Shutdown, SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use tokio::{
    io::Interest,
    net::{TcpStream, UnixStream},
    time::timeout,
};

use crate::{
    error::{Error, ErrorKind, Result},
    sys::{
        fd_passing::{self, MAX_FDS},
        fork,
    },
    transport::{
        patience::Patience,
        tls::{Certificates, Session, explained},
    },
    types::Source,
    util::lock::Mutex,
};

pub use crate::sys::fd_passing::PeerCredentials;

/// A framed control channel between the two ends of a connection under construction.
///
/// A message is a length (`u32`, little-endian, at most [`Channel::MAX_MESSAGE`]) and that many bytes. One message may be a
/// note, whose length has its highest bit set: it is put aside for who asks for it, so that nobody waits for it. Reading takes
/// exactly one message and never a byte of what follows, so that the socket can be handed on to a link.
///
/// # Cancel safety
/// A dropped [`receive`](Self::receive) loses nothing: the next call goes on where it stopped. A dropped
/// [`send`](Self::send) may have sent a part; every further send is then an error.
#[derive(Debug)]
pub struct Channel {
    socket: Socket,
    peer_name: String,
    origin: Origin,
    /// The message that is being received, from its length on.
    partial: Vec<u8>,
    partial_fds: Vec<OwnedFd>,
    /// Whether a send was cut short, so that the peer would take the next message for the rest of it.
    send_torn: bool,
    /// Both ends know that what was being set up over it cannot be, and nothing of that is left in it.
    given_up: bool,
    activity: Option<Arc<Activity>>,
    patience: Option<Arc<Patience>>,
    note: Option<Vec<u8>>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    /// TCP under TLS that both ends have agreed on.
    Tls(TcpStream, Box<Session>),
    Unix(UnixStream),
    /// Carried over an RDMA connection by a task at the other end of the socket.
    Rdma(UnixStream, Ending),
    Taken,
}

/// Why a channel over RDMA ended, for who reads from its socket that it has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending(Arc<OnceLock<Error>>);

impl Ending {
    /// Before the socket is closed. The first is kept.
    pub(crate) fn set(&self, error: Error) {
        let _ = self.0.set(error);
    }

    /// What was set.
    pub(crate) fn error(&self) -> Option<Error> {
        self.0.get().cloned()
    }
}

/// When something last went over a channel, for who decides how long its peer is waited for.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<Times>);

/// What a channel's peer has done, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Whether a byte of the peer's came.
    pub(crate) heard: bool,
    /// The last bytes, either way; before there are any, the beginning.
    pub(crate) bytes: Instant,
    /// The last message that is complete, either way; before there is one, the beginning.
    pub(crate) message: Instant,
}

impl Activity {
    pub(crate) fn new(now: Instant) -> Self {
        Self(Mutex::new(Times {
            heard: false,
            bytes: now,
            message: now,
        }))
    }

    pub(crate) fn times(&self) -> Times {
        *self.0.lock()
    }

    /// As at the beginning.
    pub(crate) fn restart(&self, now: Instant) {
        *self.0.lock() = Self::new(now).times();
    }

    /// Bytes came.
    pub(crate) fn received(&self, now: Instant) {
        let mut times = self.0.lock();
        (times.heard, times.bytes) = (true, now);
    }

    /// A message was sent whole.
    fn sent(&self, now: Instant) {
        let mut times = self.0.lock();
        (times.bytes, times.message) = (now, now);
    }

    /// A message came whole.
    pub(crate) fn completed(&self, now: Instant) {
        self.0.lock().message = now;
    }
}

/// Where the two ends are, as this side's system says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// This end's address, where the two met at one: over TCP or RDMA.
    pub(crate) local: Option<SocketAddr>,
    /// The other end's.
    pub(crate) peer: Option<SocketAddr>,
    /// The other end, over a Unix socket.
    pub(crate) process: Option<PeerCredentials>,
}

impl Origin {
    /// For what is counted by source. A user of this host is one, whatever address they met at.
    pub(crate) fn source(self) -> Source {
        match (self.process, self.peer) {
            (Some(process), _) => Source::User(process.uid),
            (None, Some(address)) => address.ip().into(),
            (None, None) => Source::Unknown,
        }
    }

    /// Whether the two ends are on one host, and the other is `pid`, as far as the kernel tells.
    pub(crate) fn is_of_this_host(self, pid: u32) -> bool {
        match (self.process, self.local, self.peer) {
            (Some(process), ..) => process.pid == pid,
            // An address of this host's, as who can be bound to it shows.
            (None, Some(local), Some(mut peer)) => {
                peer.set_port(0);
                peer.ip() == local.ip() || UdpSocket::bind(peer).is_ok()
            }
            _ => false,
        }
    }
}

/// How errors name a peer of which the system tells this.
fn named(peer: Option<impl ToString>) -> String {
    peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string())
}

impl Drop for Channel {
    /// In a child made by `fork` it is the parent's, which may be in the middle of a set-up: the child's drop would take it out of what the
    /// parent's runtime waits for. Descriptors that came and belong nowhere are closed where that may block.
    fn drop(&mut self) {
        let socket = std::mem::replace(&mut self.socket, Socket::Taken);
        if fork::forked() {
            let _kept = ManuallyDrop::new(socket);
            return;
        }
        fd_passing::close_elsewhere(std::mem::take(&mut self.partial_fds));
        if let Socket::Unix(stream) = socket
            && let Ok(stream) = stream.into_std()
        {
            fd_passing::close(stream.into());
        }
    }
}

impl Channel {
    /// Longest message in bytes.
    pub const MAX_MESSAGE: usize = 64 << 10;

    /// A channel over TCP. Passes no descriptors.
    #[must_use]
    pub fn tcp(stream: TcpStream) -> Self {
        let origin = Origin {
            local: stream.local_addr().ok(),
            peer: stream.peer_addr().ok(),
            process: None,
        };
        // Else the second of two messages waits for the peer's word on the first. One that cannot be set is slow, no more.
        let _ = stream.set_nodelay(true);
        Self::new(Socket::Tcp(stream), named(origin.peer), origin)
    }

    /// A channel over TCP under TLS that both ends have agreed on.
    #[cfg(all(test, feature = "tls"))]
    pub(crate) fn secured(stream: TcpStream, session: Session) -> Self {
        Self::new(
            Socket::Tls(stream, Box::new(session)),
            "secured".to_owned(),
            Origin::default(),
        )
    }

    /// A channel over a Unix socket. Passes descriptors.
    #[must_use]
    pub fn unix(stream: UnixStream) -> Self {
        let origin = Origin {
            process: fd_passing::peer_credentials(stream.as_fd()).ok(),
            ..Origin::default()
        };
        Self::new(Socket::Unix(stream), named(origin.process), origin)
    }

    /// A channel over an RDMA connection, by the socket of the task that carries it. Passes no descriptors.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "made by `rdmacm`"))]
    pub(crate) fn rdma(stream: UnixStream, peer_name: String, ending: Ending) -> Self {
        Self::new(Socket::Rdma(stream, ending), peer_name, Origin::default())
    }

    fn new(socket: Socket, peer_name: String, origin: Origin) -> Self {
        Self {
            socket,
            peer_name,
            origin,
            partial: Vec::new(),
            partial_fds: Vec::new(),
            send_torn: false,
            given_up: false,
            activity: None,
            patience: None,
            note: None,
        }
    }

    /// Notes in it from now on when something goes over the channel.
    pub(crate) fn watch(&mut self, activity: Arc<Activity>) {
        self.activity = Some(activity);
    }

    /// Looks for the peer's messages from now on, for a moment, before it sleeps.
    pub(crate) fn look(&mut self, patience: &Arc<Patience>) {
        self.patience = Some(patience.clone());
    }

    /// What was being set up cannot be, as both ends know; they are between messages, and may set up something else.
    pub(crate) fn give_up(&mut self) {
        self.given_up = true;
    }

    /// Whether that was so, once.
    pub(crate) fn was_given_up(&mut self) -> bool {
        std::mem::take(&mut self.given_up)
    }

    /// What a Unix socket is in the transcript of a handshake.
    pub(crate) const UNIX: &str = "unix";

    /// What carries it, in the transcript of a handshake.
    pub(crate) fn medium(&self) -> &'static str {
        match self.socket {
            Socket::Tcp(_) => "tcp",
            Socket::Tls(..) => "tls",
            Socket::Unix(_) => Self::UNIX,
            Socket::Rdma(..) => "rdma",
            Socket::Taken => "",
        }
    }

    /// Whether descriptors can go with messages.
    #[must_use]
    pub fn passes_fds(&self) -> bool {
        matches!(self.socket, Socket::Unix(_))
    }

    /// Has TLS on a TCP connection on which nothing was said yet. Without an answer that pleases both, the channel is of no use afterwards; the
    /// peer has been told why.
    /// Errors: `AuthenticationFailed`: a certificate, or its lack, does not please one of the ends, or the peer speaks in plain text. `Protocol`: the peer
    /// speaks something else. `ConnectionReset`: it is gone. `Unsupported`: the channel is not TCP.
    pub(crate) async fn secure(&mut self, mut session: Session) -> Result<()> {
        let stream = self.take("TCP connection", |socket| match socket {
            Socket::Tcp(stream) => Ok(Ok(stream)),
            other => Err(other),
        })?;
        let agreed = shake(&stream, &mut session, self.activity.as_deref()).await;
        let plain = session.heard_plain_text();
        match agreed {
            Ok(()) => {
                self.socket = Socket::Tls(stream, Box::new(session));
                Ok(())
            }
            Err(_) if plain => Err(Error::new(
                ErrorKind::AuthenticationFailed,
                "the peer speaks in plain text, and this side demands TLS",
            )
            .with_peer(&self.peer_name)),
            Err(error) => {
                if explained(&error).is_some() {
                    // Should the peer never read it, its own time ends.
                    let _ = timeout(FAREWELL, farewell(&stream, &mut session)).await;
                }
                let error =
                    explained(&error).unwrap_or_else(|| Error::io("TLS's handshake", error));
                Err(error.with_peer(&self.peer_name))
            }
        }
    }

    /// Waits for the peer's first bytes, and leaves them: whether it begins with TLS.
    /// Errors: what the system said.
    pub(crate) async fn begins_with_tls(&self) -> Result<bool> {
        let Socket::Tcp(stream) = &self.socket else {
            return Ok(false);
        };
        let mut first = [0; TLS_RECORD.len()];
        let count = stream
            .peek(&mut first)
            .await
            .map_err(|error| self.lost("waiting for TLS", error))?;
        Ok(count > 0 && TLS_RECORD.starts_with(&first[..count]))
    }

    /// Whether it is under TLS.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.socket, Socket::Tls(..))
    }

    /// The certificates that the peer has shown, under TLS.
    pub(crate) fn certificates(&self) -> Option<Certificates> {
        match &self.socket {
            Socket::Tls(_, session) => session.certificates(),
            _ => None,
        }
    }

    /// Whether it is a plain TCP connection, which a link may take ([`Channel::take_tcp`]).
    #[must_use]
    pub fn is_tcp(&self) -> bool {
        matches!(self.socket, Socket::Tcp(_))
    }

    /// The peer's name for errors: its address, or its process and user.
    #[must_use]
    pub fn peer_name(&self) -> String {
        self.peer_name.clone()
    }

    /// The two met at these addresses, of which the socket that carries it cannot tell.
    pub(crate) fn met_at(&mut self, Origin { local, peer, .. }: Origin) {
        self.origin = Origin {
            local,
            peer,
            ..self.origin
        };
    }

    /// Where both ends are.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Where the peer is, for what is counted by source.
    pub(crate) fn source(&self) -> Source {
        self.origin.source()
    }

    /// Who the peer is, when the channel is a Unix socket.
    #[must_use]
    pub fn peer_credentials(&self) -> Option<PeerCredentials> {
        self.origin.process
    }

    /// Sends one message with at most 8 descriptors.
    ///
    /// # Errors
    /// `InvalidArgument` for a message that is too long or too many descriptors, `Unsupported` for descriptors over TCP or RDMA,
    /// `Closed` when the socket was taken, `ConnectionReset` when the peer is gone.
    pub async fn send(&mut self, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        self.send_as(0, message, fds).await
    }

    /// Sends the one note of this side, which comes before the messages after it.
    /// Errors: as [`Channel::send`].
    pub(crate) async fn send_note(&mut self, note: &[u8]) -> Result<()> {
        self.send_as(NOTE, note, &[]).await
    }

    /// The peer's note, if it came before the messages that were received.
    pub(crate) fn take_note(&mut self) -> Option<Vec<u8>> {
        self.note.take()
    }

    async fn send_as(&mut self, flag: u32, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let length = u32::try_from(message.len())
            .ok()
            .filter(|_| message.len() <= Self::MAX_MESSAGE)
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    format!("a control message of {} bytes is too long", message.len()),
                )
            })?;
        if fds.len() > MAX_FDS {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "too many file descriptors for one control message",
            ));
        }
        if !fds.is_empty() && !self.passes_fds() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "file descriptors cannot go to another host",
            ));
        }
        if self.send_torn {
            return Err(Error::new(
                ErrorKind::Closed,
                "an earlier control message was cut short",
            ));
        }
        let mut frame = Vec::with_capacity(HEADER + message.len());
        frame.extend_from_slice(&(length | flag).to_le_bytes());
        frame.extend_from_slice(message);
        // Taken back when all of it is out; a drop at an await point leaves it standing.
        self.send_torn = true;
        self.socket
            .write_all(&frame, fds)
            .await
            .map_err(|error| self.lost("sending a control message", error))?;
        self.send_torn = false;
        if let Some(activity) = &self.activity {
            activity.sent(Instant::now());
        }
        Ok(())
    }

    /// Receives one message with the descriptors that came with it (none over TCP and RDMA).
    ///
    /// # Errors
    /// `ConnectionReset` when the peer hung up, `Protocol` when what came is no message, `Closed` when the socket was
    /// taken.
    pub async fn receive(&mut self) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        loop {
            let (is_note, message, fds) = self.receive_any().await?;
            if !is_note {
                return Ok((message, fds));
            }
            if self.note.is_some() || !fds.is_empty() {
                fd_passing::close_elsewhere(fds);
                return Err(self.broken("a note came that does not belong there"));
            }
            self.note = Some(message);
        }
    }

    /// Receives one message that no descriptors belong to.
    /// Errors: as [`Channel::receive`]; `Protocol` when some came with it.
    pub(crate) async fn receive_alone(&mut self) -> Result<Vec<u8>> {
        let (message, fds) = self.receive().await?;
        if fds.is_empty() {
            return Ok(message);
        }
        fd_passing::close_elsewhere(fds);
        Err(self.broken("file descriptors came with a message that takes none"))
    }

    async fn receive_any(&mut self) -> Result<(bool, Vec<u8>, Vec<OwnedFd>)> {
        while self.partial.len() < HEADER {
            self.fill(HEADER).await?;
        }
        let mut header = [0; HEADER];
        header.copy_from_slice(&self.partial[..HEADER]);
        let length = u32::from_le_bytes(header);
        let is_note = length & NOTE != 0;
        let wanted = match usize::try_from(length & !NOTE) {
            Ok(length) if length <= Self::MAX_MESSAGE => HEADER + length,
            _ if header.starts_with(&TLS_RECORD) => {
                return Err(Error::new(
                    ErrorKind::AuthenticationFailed,
                    "the peer speaks TLS, and this side has none",
                )
                .with_peer(&self.peer_name));
            }
            _ => return Err(self.broken("a control message came that is too long")),
        };
        while self.partial.len() < wanted {
            self.fill(wanted).await?;
        }
        let message = self.partial.split_off(HEADER);
        self.partial.clear();
        if let Some(activity) = &self.activity {
            activity.completed(Instant::now());
        }
        Ok((is_note, message, std::mem::take(&mut self.partial_fds)))
    }

    /// Reads once, at most up to `wanted` bytes of the message.
    async fn fill(&mut self, wanted: usize) -> Result<()> {
        let have = self.partial.len();
        self.partial.resize(wanted, 0);
        // Cut back before the error is looked at: whatever was not read is not part of the message. The read itself
        // never loses bytes: it is one try after a wait that takes nothing.
        let mut guard = Truncate {
            partial: &mut self.partial,
            to: have,
        };
        let read = self.socket.read(&mut guard.partial[have..]);
        let result = match &self.patience {
            Some(patience) => patience.wait(read).await,
            None => read.await,
        };
        if let Ok((count, _)) = &result {
            guard.to = have + count;
        }
        drop(guard);
        let (count, fds) =
            result.map_err(|error| self.lost("receiving a control message", error))?;
        if count == 0 {
            if let Socket::Rdma(_, ending) = &self.socket
                && let Some(error) = ending.error()
            {
                return Err(error.with_peer(&self.peer_name));
            }
            return Err(Error::new(
                ErrorKind::ConnectionReset,
                "the peer hung up while the connection was being set up",
            )
            .with_peer(&self.peer_name));
        }
        if let Some(activity) = &self.activity {
            activity.received(Instant::now());
        }
        self.partial_fds.extend(fds);
        if self.partial_fds.len() > MAX_FDS {
            return Err(self.broken("a control message came with too many file descriptors"));
        }
        Ok(())
    }

    /// Takes the socket, for a link of its own. Non-blocking, and nothing of what follows the last message was read. The
    /// channel is of no use afterwards.
    ///
    /// # Errors
    /// `Unsupported` when it is not TCP, or under TLS, `Closed` when it was taken before, `InvalidArgument` in the middle of a message.
    pub fn take_tcp(&mut self) -> Result<std::net::TcpStream> {
        self.take("TCP connection", |socket| match socket {
            Socket::Tcp(stream) => Ok(stream.into_std()),
            other => Err(other),
        })
    }

    /// Takes a TCP connection with what encrypts it, as [`Channel::take_tcp`] does. Nothing of what follows the last message was taken out of
    /// either.
    pub(crate) fn take_secured(&mut self) -> Result<(std::net::TcpStream, Option<Box<Session>>)> {
        self.take("TCP connection", |socket| match socket {
            Socket::Tls(stream, session) => Ok(stream.into_std().map(|it| (it, Some(session)))),
            Socket::Tcp(stream) => Ok(stream.into_std().map(|it| (it, None))),
            other => Err(other),
        })
    }

    /// Takes the socket, as [`Channel::take_tcp`] does.
    ///
    /// # Errors
    /// `Unsupported` when it is not a Unix socket, `Closed` when it was taken before, `InvalidArgument` in the middle of a
    /// message.
    pub fn take_unix(&mut self) -> Result<std::os::unix::net::UnixStream> {
        self.take("Unix socket", |socket| match socket {
            Socket::Unix(stream) => Ok(stream.into_std()),
            other => Err(other),
        })
    }

    /// Takes the socket, whatever it is: a stream of bytes whose end tells that the peer is gone. As [`Channel::take_tcp`] does.
    ///
    /// That of a channel over RDMA is a Unix socket to the task that carries the bytes: its end tells of the connection's end, of its
    /// device's, and of the peer's.
    ///
    /// # Errors
    /// `Unsupported` when it is under TLS, `Closed` when it was taken before, `InvalidArgument` in the middle of a message.
    pub fn take_stream(&mut self) -> Result<OwnedFd> {
        self.take("stream of its own", |socket| match socket {
            Socket::Tcp(stream) => Ok(stream.into_std().map(OwnedFd::from)),
            Socket::Unix(stream) | Socket::Rdma(stream, _) => {
                Ok(stream.into_std().map(OwnedFd::from))
            }
            other => Err(other),
        })
    }

    /// Takes the socket, between messages, if it is one of those that `by` takes: else it stays, and is not a `what`.
    fn take<T>(
        &mut self,
        what: &str,
        by: impl FnOnce(Socket) -> Result<io::Result<T>, Socket>,
    ) -> Result<T> {
        if !self.partial.is_empty() || self.send_torn {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the channel's socket is in the middle of a message",
            ));
        }
        match by(std::mem::replace(&mut self.socket, Socket::Taken)) {
            Ok(taken) => taken.map_err(|error| self.lost("taking the channel's socket", error)),
            Err(Socket::Taken) => Err(taken()),
            Err(other) => {
                self.socket = other;
                Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("the channel is not a {what}"),
                ))
            }
        }
    }

    #[cold]
    fn lost(&self, doing: &'static str, error: io::Error) -> Error {
        if let Socket::Rdma(_, ending) = &self.socket
            && let Some(error) = ending.error()
        {
            return error.with_peer(&self.peer_name);
        }
        if let Some(refused) = explained(&error) {
            return refused.with_peer(&self.peer_name);
        }
        match (&self.socket, error.kind()) {
            (Socket::Taken, _) => taken(),
            // Descriptors beyond what is allowed, and all of them closed.
            (_, io::ErrorKind::InvalidData) => {
                self.broken("what came is no message").with_source(error)
            }
            _ => Error::io(doing, error).with_peer(&self.peer_name),
        }
    }

    #[cold]
    fn broken(&self, what: &'static str) -> Error {
        Error::new(ErrorKind::Protocol, what).with_peer(&self.peer_name)
    }
}

#[cold]
fn taken() -> Error {
    Error::new(
        ErrorKind::Closed,
        "the channel's socket was handed on to a link",
    )
}

/// In a length: the message is a note.
const NOTE: u32 = 1 << 31;

/// Bytes of a message's length.
const HEADER: usize = 4;
/// How TLS begins: with a record of its handshake, of version 3.x. No message is that long.
const TLS_RECORD: [u8; 2] = [22, 3];
/// Time for a peer to read why it was refused.
const FAREWELL: Duration = Duration::from_secs(1);

/// TLS's handshake, until both ends have agreed and all is written.
async fn shake(
    stream: &TcpStream,
    session: &mut Session,
    activity: Option<&Activity>,
) -> io::Result<()> {
    loop {
        session.flush(&mut |bytes| stream.try_write(bytes))?;
        if session.wants_write() {
            stream.writable().await?;
        } else if session.is_handshaking() {
            stream.readable().await?;
            match session.shake(&mut |bytes| stream.try_read(bytes)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => {
                    result?;
                    if let Some(activity) = activity {
                        activity.received(Instant::now());
                    }
                }
            }
        } else {
            return Ok(());
        }
    }
}

/// Reads once what is under TLS.
async fn read_secured(
    stream: &TcpStream,
    session: &mut Session,
    bytes: &mut [u8],
) -> io::Result<usize> {
    loop {
        let (room, mut filled) = (bytes.len(), 0);
        let mut put = |piece: &[u8]| {
            bytes[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        };
        let tried = session.read(&mut |bytes| stream.try_read(bytes), room, &mut put);
        // An answer to what was read, or a word on what is wrong with it: at best.
        let _ = session.flush(&mut |bytes| stream.try_write(bytes));
        match tried {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Tells the peer why not, and waits until it has read that: a socket that is closed with bytes unread takes back what it has sent.
async fn farewell(stream: &TcpStream, session: &mut Session) -> io::Result<()> {
    while session.wants_write() {
        session.flush(&mut |bytes| stream.try_write(bytes))?;
        if session.wants_write() {
            stream.writable().await?;
        }
    }
    socket2::SockRef::from(stream).shutdown(Shutdown::Write)?;
    let mut bytes = [0; 1024];
    let mut read = || fd_passing::recv(stream.as_fd(), &mut bytes);
    while stream.async_io(Interest::READABLE, &mut read).await?.0 > 0 {}
    Ok(())
}

/// Cuts the message under construction back to what was really read, also when the read is dropped.
struct Truncate<'a> {
    partial: &'a mut Vec<u8>,
    to: usize,
}

impl Drop for Truncate<'_> {
    fn drop(&mut self) {
        self.partial.truncate(self.to);
    }
}

impl Socket {
    async fn write_all(&mut self, mut bytes: &[u8], mut fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if let Self::Tls(stream, session) = self {
            while !bytes.is_empty() || session.wants_write() {
                let parts = [IoSlice::new(bytes)];
                let taken = session.write(&mut |bytes| stream.try_write(bytes), &parts)?;
                bytes = &bytes[taken..];
                if session.wants_write() {
                    stream.writable().await?;
                }
            }
            return Ok(());
        }
        while !bytes.is_empty() {
            let ready = Interest::WRITABLE;
            let send = |to: BorrowedFd<'_>| fd_passing::send(to, bytes, fds);
            let count = match self {
                Self::Tcp(stream) => stream.async_io(ready, || send(stream.as_fd())).await?,
                Self::Unix(stream) | Self::Rdma(stream, _) => {
                    stream.async_io(ready, || send(stream.as_fd())).await?
                }
                Self::Tls(..) | Self::Taken => return Err(io::ErrorKind::NotConnected.into()),
            };
            (bytes, fds) = (&bytes[count..], &[]);
        }
        Ok(())
    }

    /// Reads once. Takes nothing before its last await.
    async fn read(&mut self, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let ready = Interest::READABLE;
        let mut recv = |from: BorrowedFd<'_>| fd_passing::recv(from, bytes);
        match self {
            Self::Tcp(stream) => stream.async_io(ready, || recv(stream.as_fd())).await,
            Self::Unix(stream) | Self::Rdma(stream, _) => {
                stream.async_io(ready, || recv(stream.as_fd())).await
            }
            Self::Tls(stream, session) => {
                Ok((read_secured(stream, session, bytes).await?, Vec::new()))
            }
            Self::Taken => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, time::Duration};

    use tokio::{net::TcpListener, time::timeout};

    use super::*;

    /// Who is elsewhere, or may be, says nothing of the processes here.
    #[test]
    fn who_is_of_this_host() {
        let at = |text: &str| Some(text.parse::<SocketAddr>().expect("an address"));
        let met = |local, peer| Origin {
            local: at(local),
            peer: at(peer),
            process: None,
        };
        assert!(met("127.0.0.1:1", "127.0.0.1:2").is_of_this_host(7));
        assert!(met("127.0.0.1:1", "127.0.0.2:2").is_of_this_host(7));
        assert!(met("192.0.2.1:1", "192.0.2.1:2").is_of_this_host(7));
        // What no host has: of the networks for benchmarks, and for documentation.
        assert!(!met("198.18.0.1:1", "198.19.255.254:2").is_of_this_host(7));
        assert!(!met("[2001:db8::1]:1", "[2001:db8::2]:2").is_of_this_host(7));
        assert!(!Origin::default().is_of_this_host(7));
        let (uid, gid) = (1000, 1000);
        let by_socket = |pid| Origin {
            process: Some(PeerCredentials { pid, uid, gid }),
            ..met("127.0.0.1:1", "127.0.0.1:2")
        };
        assert!(by_socket(7).is_of_this_host(7));
        // One that is not seen from here, and says that it is this one.
        assert!(!by_socket(0).is_of_this_host(7));
    }

    const WATCHDOG: Duration = Duration::from_secs(60);

    fn unix_pair() -> (Channel, Channel) {
        let (one, two) = UnixStream::pair().expect("pair");
        (Channel::unix(one), Channel::unix(two))
    }

    async fn tcp_pair() -> (Channel, Channel) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let (one, two) = tokio::join!(TcpStream::connect(address), listener.accept());
        (
            Channel::tcp(one.expect("connect")),
            Channel::tcp(two.expect("accept").0),
        )
    }

    async fn receive(channel: &mut Channel) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        timeout(WATCHDOG, channel.receive())
            .await
            .expect("the watchdog barked")
    }

    async fn round_trip((mut one, mut two): (Channel, Channel)) {
        one.send_note(b"aside").await.expect("send");
        one.send(b"first", &[]).await.expect("send");
        one.send(b"", &[]).await.expect("send");
        let big: Vec<u8> = (0..Channel::MAX_MESSAGE).map(|i| i as u8).collect();
        let (sent, first) = tokio::join!(one.send(&big, &[]), async {
            let first = receive(&mut two).await.expect("receive").0;
            assert_eq!(receive(&mut two).await.expect("receive").0, b"");
            assert_eq!(receive(&mut two).await.expect("receive").0, big);
            first
        });
        sent.expect("send");
        assert_eq!(first, b"first");
        two.send(b"back", &[]).await.expect("send");
        assert_eq!(receive(&mut one).await.expect("receive").0, b"back");
        let error = one
            .send(&vec![0; Channel::MAX_MESSAGE + 1], &[])
            .await
            .expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        one.send(b"x", &[])
            .await
            .expect("a refused send tore nothing");
        assert_eq!(receive(&mut two).await.expect("receive").0, b"x");
        drop(one);
        let error = receive(&mut two).await.expect_err("the end");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn messages_keep_their_borders() {
        round_trip(unix_pair()).await;
        round_trip(tcp_pair().await).await;
    }

    #[tokio::test]
    async fn fds_go_with_their_message() {
        let (mut one, mut two) = unix_pair();
        assert!(one.passes_fds());
        let (kept, passed) = std::os::unix::net::UnixStream::pair().expect("pair");
        one.send(b"none", &[]).await.expect("send");
        one.send(b"two", &[passed.as_fd(), passed.as_fd()])
            .await
            .expect("send");
        one.send(b"", &[passed.as_fd()]).await.expect("send");
        drop((kept, passed));
        for (message, count) in [(&b"none"[..], 0), (b"two", 2), (b"", 1)] {
            let (got, fds) = receive(&mut two).await.expect("receive");
            assert_eq!((&got[..], fds.len()), (message, count));
        }
        let me = two.peer_credentials().expect("credentials");
        assert_eq!(me.pid, std::process::id());
        assert!(two.peer_name().contains(&me.pid.to_string()));
    }

    #[tokio::test]
    async fn tcp_passes_no_fds() {
        let (mut one, _two) = tcp_pair().await;
        assert!(!one.passes_fds());
        assert_eq!(one.peer_credentials(), None);
        let stdin = io::stdin();
        let error = one.send(b"x", &[stdin.as_fd()]).await.expect_err("fds");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[tokio::test]
    async fn oversize_and_torn_messages_are_errors() {
        let (one, mut two) = unix_pair();
        let Socket::Unix(raw) = &one.socket else {
            panic!("a Unix channel")
        };
        raw.try_write(&(Channel::MAX_MESSAGE as u32 + 1).to_le_bytes())
            .expect("write");
        let error = receive(&mut two).await.expect_err("oversize");
        assert_eq!(error.kind(), ErrorKind::Protocol);

        let (one, mut two) = unix_pair();
        let Socket::Unix(raw) = &one.socket else {
            panic!("a Unix channel")
        };
        raw.try_write(&[10, 0, 0, 0, 1]).expect("write");
        drop(one);
        let error = receive(&mut two).await.expect_err("torn");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn a_dropped_receive_loses_nothing() {
        let (one, mut two) = unix_pair();
        let Socket::Unix(raw) = &one.socket else {
            panic!("a Unix channel")
        };
        for byte in [3, 0, 0, 0, b'a', b'b'] {
            fd_passing::send(raw.as_fd(), &[byte], &[]).expect("send");
            let cut = timeout(Duration::from_millis(5), two.receive()).await;
            assert!(cut.is_err(), "no whole message is there yet");
        }
        let error = two.take_unix().expect_err("in the middle");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        raw.try_write(b"c").expect("write");
        assert_eq!(receive(&mut two).await.expect("receive").0, b"abc");
    }

    #[tokio::test]
    async fn the_socket_is_taken_with_what_follows() {
        let (mut one, mut two) = tcp_pair().await;
        one.send(b"last", &[]).await.expect("send");
        one.take_tcp()
            .expect("take")
            .write_all(b"stream")
            .expect("write");
        assert_eq!(receive(&mut two).await.expect("receive").0, b"last");
        assert!(two.take_unix().is_err());
        let stream = TcpStream::from_std(two.take_tcp().expect("take")).expect("non-blocking");
        let mut bytes = [0; 6];
        timeout(
            WATCHDOG,
            tokio::io::AsyncReadExt::read_exact(&mut { stream }, &mut bytes),
        )
        .await
        .expect("the watchdog barked")
        .expect("read");
        assert_eq!(&bytes, b"stream");
        for error in [
            one.send(b"x", &[]).await.expect_err("taken"),
            receive(&mut two).await.expect_err("taken"),
            two.take_tcp().expect_err("taken"),
        ] {
            assert_eq!(error.kind(), ErrorKind::Closed);
        }
    }

    #[test]
    fn futures_are_send() {
        fn is_send<T: Send>(_: T) {}
        fn check(channel: &mut Channel) {
            is_send(channel.receive());
            is_send(channel.send(b"", &[]));
        }
        let _ = check;
    }
}
