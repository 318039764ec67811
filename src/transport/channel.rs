//! The channel that a connection is set up over: framed messages, with file descriptors between processes of one host.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, OnceLock},
};

use tokio::{
    io::Interest,
    net::{TcpStream, UnixStream},
};

use crate::{
    error::{Error, ErrorKind, Result},
    sys::fd_passing::{self, MAX_FDS},
};

/// A framed control channel between the two ends of a connection under construction.
///
/// A message is a length (`u32`, little-endian, at most [`Channel::MAX_MESSAGE`]) and that many bytes. Reading takes
/// exactly one message and never a byte of what follows, so that the socket can be handed on to a link.
///
/// # Cancel safety
/// A dropped [`receive`](Self::receive) loses nothing: the next call goes on where it stopped. A dropped
/// [`send`](Self::send) may have sent a part; every further send is then an error.
#[derive(Debug)]
pub struct Channel {
    socket: Socket,
    peer_name: String,
    /// The message that is being received, from its length on.
    partial: Vec<u8>,
    partial_fds: Vec<OwnedFd>,
    /// Whether a send was cut short, so that the peer would take the next message for the rest of it.
    send_torn: bool,
    /// Both ends know that what was being set up over it cannot be, and nothing of that is left in it.
    given_up: bool,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
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
        self.0.get().map(Error::duplicate)
    }
}

/// Who is at the other end of a Unix channel, as the kernel recorded it when the two were connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id as seen from here; 0 when it lives in a process namespace that this one cannot see.
    pub pid: u32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

impl Channel {
    /// Longest message in bytes.
    pub const MAX_MESSAGE: usize = 64 << 10;

    /// A channel over TCP. Passes no descriptors.
    #[must_use]
    pub fn tcp(stream: TcpStream) -> Self {
        let peer_name = stream
            .peer_addr()
            .map_or_else(|_| "unknown".to_owned(), |address| address.to_string());
        Self::new(Socket::Tcp(stream), peer_name)
    }

    /// A channel over a Unix socket. Passes descriptors.
    #[must_use]
    pub fn unix(stream: UnixStream) -> Self {
        let peer_name = fd_passing::peer_credentials(stream.as_fd()).map_or_else(
            |_| "unknown".to_owned(),
            |peer| format!("pid {} (user {})", peer.pid, peer.uid),
        );
        Self::new(Socket::Unix(stream), peer_name)
    }

    /// A channel over an RDMA connection, by the socket of the task that carries it. Passes no descriptors.
    pub(crate) fn rdma(stream: UnixStream, peer_name: String, ending: Ending) -> Self {
        Self::new(Socket::Rdma(stream, ending), peer_name)
    }

    fn new(socket: Socket, peer_name: String) -> Self {
        Self {
            socket,
            peer_name,
            partial: Vec::new(),
            partial_fds: Vec::new(),
            send_torn: false,
            given_up: false,
        }
    }

    /// What was being set up cannot be, as both ends know; they are between messages, and may set up something else.
    pub(crate) fn give_up(&mut self) {
        self.given_up = true;
    }

    /// Whether that was so, once.
    pub(crate) fn was_given_up(&mut self) -> bool {
        std::mem::take(&mut self.given_up)
    }

    /// Whether descriptors can go with messages.
    #[must_use]
    pub fn passes_fds(&self) -> bool {
        matches!(self.socket, Socket::Unix(_))
    }

    /// Whether it is a TCP connection, which a link may take ([`Channel::take_tcp`]).
    #[must_use]
    pub fn is_tcp(&self) -> bool {
        matches!(self.socket, Socket::Tcp(_))
    }

    /// The peer's name for errors: its address, or its process and user.
    #[must_use]
    pub fn peer_name(&self) -> String {
        self.peer_name.clone()
    }

    /// Who the peer is, when the channel is a Unix socket.
    #[must_use]
    pub fn peer_credentials(&self) -> Option<PeerCredentials> {
        let peer = fd_passing::peer_credentials(self.unix_fd()?).ok()?;
        Some(PeerCredentials {
            pid: peer.pid,
            uid: peer.uid,
            gid: peer.gid,
        })
    }

    /// The Unix socket, to ask the kernel about the peer.
    pub(crate) fn unix_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.socket {
            Socket::Unix(stream) => Some(stream.as_fd()),
            Socket::Tcp(_) | Socket::Rdma(..) | Socket::Taken => None,
        }
    }

    /// Sends one message with at most 8 descriptors.
    ///
    /// # Errors
    /// `InvalidArgument` for a message that is too long or too many descriptors, `Unsupported` for descriptors over TCP or RDMA,
    /// `Closed` when the socket was taken, `ConnectionReset` when the peer is gone.
    pub async fn send(&mut self, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
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
        if !fds.is_empty() && matches!(self.socket, Socket::Tcp(_) | Socket::Rdma(..)) {
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
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(message);
        // Taken back when all of it is out; a drop at an await point leaves it standing.
        self.send_torn = true;
        self.socket
            .write_all(&frame, fds)
            .await
            .map_err(|error| self.lost("sending a control message", error))?;
        self.send_torn = false;
        Ok(())
    }

    /// Receives one message with the descriptors that came with it (none over TCP and RDMA).
    ///
    /// # Errors
    /// `ConnectionReset` when the peer hung up, `Protocol` when what came is no message, `Closed` when the socket was
    /// taken.
    pub async fn receive(&mut self) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        while self.partial.len() < HEADER {
            self.fill(HEADER).await?;
        }
        let mut header = [0; HEADER];
        header.copy_from_slice(&self.partial[..HEADER]);
        let wanted = match usize::try_from(u32::from_le_bytes(header)) {
            Ok(length) if length <= Self::MAX_MESSAGE => HEADER + length,
            _ => return Err(self.broken("a control message came that is too long")),
        };
        while self.partial.len() < wanted {
            self.fill(wanted).await?;
        }
        let message = self.partial.split_off(HEADER);
        self.partial.clear();
        Ok((message, std::mem::take(&mut self.partial_fds)))
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
        let result = self.socket.read(&mut guard.partial[have..]).await;
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
    /// `Unsupported` when it is not TCP, `Closed` when it was taken before, `InvalidArgument` in the middle of a message.
    pub fn take_tcp(&mut self) -> Result<std::net::TcpStream> {
        self.check_idle()?;
        match std::mem::replace(&mut self.socket, Socket::Taken) {
            Socket::Tcp(stream) => stream
                .into_std()
                .map_err(|error| self.lost("taking the channel's socket", error)),
            other => {
                self.socket = other;
                Err(self.not_a("TCP connection"))
            }
        }
    }

    /// Takes the socket, as [`Channel::take_tcp`] does.
    ///
    /// # Errors
    /// `Unsupported` when it is not a Unix socket, `Closed` when it was taken before, `InvalidArgument` in the middle of a
    /// message.
    pub fn take_unix(&mut self) -> Result<std::os::unix::net::UnixStream> {
        self.check_idle()?;
        match std::mem::replace(&mut self.socket, Socket::Taken) {
            Socket::Unix(stream) => stream
                .into_std()
                .map_err(|error| self.lost("taking the channel's socket", error)),
            other => {
                self.socket = other;
                Err(self.not_a("Unix socket"))
            }
        }
    }

    /// Takes the socket, whatever it is: a stream of bytes whose end tells that the peer is gone. As [`Channel::take_tcp`] does.
    ///
    /// That of a channel over RDMA is a Unix socket to the task that carries the bytes: its end tells of the connection's end, of its
    /// device's, and of the peer's.
    ///
    /// # Errors
    /// `Closed` when it was taken before, `InvalidArgument` in the middle of a message.
    pub fn take_stream(&mut self) -> Result<OwnedFd> {
        self.check_idle()?;
        let taken = match std::mem::replace(&mut self.socket, Socket::Taken) {
            Socket::Tcp(stream) => stream.into_std().map(OwnedFd::from),
            Socket::Unix(stream) | Socket::Rdma(stream, _) => stream.into_std().map(OwnedFd::from),
            Socket::Taken => return Err(taken()),
        };
        taken.map_err(|error| self.lost("taking the channel's socket", error))
    }

    fn check_idle(&self) -> Result<()> {
        if self.partial.is_empty() && !self.send_torn {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            "the channel's socket is in the middle of a message",
        ))
    }

    #[cold]
    fn not_a(&self, what: &str) -> Error {
        match self.socket {
            Socket::Taken => taken(),
            Socket::Tcp(_) | Socket::Unix(_) | Socket::Rdma(..) => Error::new(
                ErrorKind::Unsupported,
                format!("the channel is not a {what}"),
            ),
        }
    }

    #[cold]
    fn lost(&self, doing: &'static str, error: io::Error) -> Error {
        if let Socket::Rdma(_, ending) = &self.socket
            && let Some(error) = ending.error()
        {
            return error.with_peer(&self.peer_name);
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

/// Bytes of a message's length.
const HEADER: usize = 4;

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
    async fn write_all(&self, mut bytes: &[u8], mut fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        while !bytes.is_empty() {
            let tried = match self {
                Self::Tcp(stream) => stream.try_write(bytes),
                Self::Rdma(stream, _) => stream.try_write(bytes),
                Self::Unix(stream) => stream.try_io(Interest::WRITABLE, || {
                    fd_passing::send(stream.as_fd(), bytes, fds)
                }),
                Self::Taken => return Err(io::ErrorKind::NotConnected.into()),
            };
            match tried {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    bytes = &bytes[count..];
                    fds = &[];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self {
                    Self::Tcp(stream) => stream.writable().await?,
                    Self::Unix(stream) | Self::Rdma(stream, _) => stream.writable().await?,
                    Self::Taken => {}
                },
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads once. Takes nothing before its last await.
    async fn read(&self, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        loop {
            let tried = match self {
                Self::Tcp(stream) => stream.try_read(bytes).map(|count| (count, Vec::new())),
                Self::Rdma(stream, _) => stream.try_read(bytes).map(|count| (count, Vec::new())),
                Self::Unix(stream) => stream.try_io(Interest::READABLE, || {
                    fd_passing::recv(stream.as_fd(), bytes)
                }),
                Self::Taken => return Err(io::ErrorKind::NotConnected.into()),
            };
            match tried {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self {
                    Self::Tcp(stream) => stream.readable().await?,
                    Self::Unix(stream) | Self::Rdma(stream, _) => stream.readable().await?,
                    Self::Taken => {}
                },
                other => return other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, time::Duration};

    use tokio::{net::TcpListener, time::timeout};

    use super::*;

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
