//! Sockets between ranks, of both kinds: addresses, dialling, listening, and links over them.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    mem::ManuallyDrop,
    net::{Shutdown, SocketAddr},
    os::fd::AsFd,
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::{
    io::Interest,
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::Notify,
    time::timeout,
};

use super::{
    collector::MAX_ROUNDS,
    frame::{Frame, Gone, MAX_FRAME, MAX_OF_OTHERS, malformed},
    hub::{Hub, PeerLink},
};
use crate::{
    error::{Error, ErrorKind, Result},
    sys::{abstract_socket, fd_passing, fork},
    util::{
        lock::Mutex,
        wire::{MAX_NAME, Reader},
    },
};

/// What is read at once at most.
const CHUNK: usize = 64 << 10;
/// Frames up to this length are copied out of what was read, so that a short message does not keep a long piece of memory.
const COPIED: usize = 16 << 10;
/// How long a rank that has left goes on writing what it had sent, and waits for the other end to have read it.
const LEAVING: Duration = Duration::from_secs(30);

/// Verdicts that may wait to be written: twice what a rank may have open.
const UNREAD: usize = 2 * MAX_ROUNDS;

/// Where a rank listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Tcp(SocketAddr),
    /// A name in the abstract namespace.
    Unix(Vec<u8>),
}

impl Address {
    /// `4 | octets 4 | port u16`, `6 | octets 16 | port u16 | scope u32`, or `1 | name`.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Tcp(SocketAddr::V4(address)) => {
                out.push(4);
                out.extend_from_slice(&address.ip().octets());
                out.extend_from_slice(&address.port().to_le_bytes());
            }
            Self::Tcp(SocketAddr::V6(address)) => {
                out.push(6);
                out.extend_from_slice(&address.ip().octets());
                out.extend_from_slice(&address.port().to_le_bytes());
                out.extend_from_slice(&address.scope_id().to_le_bytes());
            }
            Self::Unix(name) => {
                out.push(1);
                out.extend_from_slice(name);
            }
        }
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MAX_NAME {
            return Err(malformed("an address is too long"));
        }
        let mut reader = Reader::new(bytes);
        let address = match reader.u8()? {
            4 => Self::Tcp((reader.array::<4>()?, reader.u16()?).into()),
            6 => {
                let (ip, port) = (reader.array::<16>()?.into(), reader.u16()?);
                let scope = reader.u32()?;
                Self::Tcp(std::net::SocketAddrV6::new(ip, port, 0, scope).into())
            }
            1 => return Ok(Self::Unix(bytes.get(1..).unwrap_or_default().to_vec())),
            _ => return Err(malformed("an address of an unknown kind")),
        };
        reader.end()?;
        Ok(address)
    }

    /// Connects.
    /// Errors: what the system said; `PermissionDenied` for a Unix socket of another user.
    pub(super) async fn dial(&self) -> Result<Socket> {
        match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address)
                    .await
                    .map_err(|error| Error::io(format!("connecting to {address}"), error))?;
                Socket::tcp(stream)
            }
            Self::Unix(name) => {
                let stream = abstract_socket::connect(name).await.map_err(|error| {
                    Error::io(format!("connecting to {}", name.escape_ascii()), error)
                })?;
                Socket::unix(stream)
            }
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(name) => write!(f, "@{}", name.escape_ascii()),
        }
    }
}

/// Where others connect.
#[derive(Debug)]
pub(super) enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener, Vec<u8>),
}

impl Acceptor {
    /// Listens where `near` leads to this process from outside: at its address, or at a new name.
    pub(super) async fn beside(near: &Socket) -> Result<Self> {
        match near {
            Socket::Tcp(stream) => {
                let mut here = stream
                    .local_addr()
                    .map_err(|error| Error::io("the socket's own address", error))?;
                here.set_port(0);
                let listener = TcpListener::bind(here)
                    .await
                    .map_err(|error| Error::io(format!("listening at {here}"), error))?;
                Ok(Self::Tcp(listener))
            }
            Socket::Unix(_) => {
                let name =
                    format!("wharf-bootstrap-{:032x}", u128::from_be_bytes(random()?)).into_bytes();
                Self::unix(name)
            }
        }
    }

    pub(super) fn unix(name: Vec<u8>) -> Result<Self> {
        let listener = abstract_socket::bind(&name)
            .map_err(|error| Error::io(format!("listening at {}", name.escape_ascii()), error))?;
        Ok(Self::Unix(listener, name))
    }

    pub(super) fn address(&self) -> Result<Address> {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map(Address::Tcp)
                .map_err(|error| Error::io("the listener's address", error)),
            Self::Unix(_, name) => Ok(Address::Unix(name.clone())),
        }
    }

    /// The next connection. Goes on after an error, a little later.
    pub(super) async fn accept(&self) -> Socket {
        loop {
            let accepted = match self {
                Self::Tcp(listener) => {
                    let accepted = listener.accept().await;
                    accepted.map(|(stream, _)| Socket::tcp(stream))
                }
                Self::Unix(listener, _) => {
                    let accepted = listener.accept().await;
                    accepted.map(|(stream, _)| Socket::unix(stream))
                }
            };
            match accepted {
                Ok(Ok(socket)) => return socket,
                // Those behind one who is refused do not wait.
                Ok(Err(error)) => {
                    tracing::debug!(target: "wharf::bootstrap", %error, "a connection was not taken");
                }
                Err(error) => {
                    tracing::debug!(target: "wharf::bootstrap", %error, "no connection could be taken");
                    // Out of file descriptors, most likely: no reason to spin.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }
}

#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(Local),
}

/// A socket over which whoever connects on this host may pass descriptors, before it is known whose they are. Nobody wants any: they are closed where
/// that may block.
#[derive(Debug)]
pub(super) struct Local(Option<UnixStream>);

impl Local {
    fn stream(&self) -> io::Result<&UnixStream> {
        let open = self.0.as_ref();
        open.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Reads so many bytes at most, behind those that are there.
    fn try_read(&self, bytes: &mut BytesMut, most: usize) -> io::Result<usize> {
        let (stream, from) = (self.stream()?, bytes.len());
        bytes.resize(from + most, 0);
        let received = stream.try_io(Interest::READABLE, || {
            fd_passing::recv(stream.as_fd(), &mut bytes[from..])
        });
        let read = received.and_then(|(count, fds)| {
            if fds.is_empty() {
                return Ok(count);
            }
            fd_passing::close_elsewhere(fds);
            let text = "descriptors came, and nobody asked for any";
            Err(io::Error::new(io::ErrorKind::InvalidData, text))
        });
        bytes.truncate(from + read.as_ref().unwrap_or(&0));
        read
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let stream = self.0.take();
        if fork::forked() {
            // It is the parent's.
            let _kept = ManuallyDrop::new(stream);
        } else if let Some(Ok(stream)) = stream.map(UnixStream::into_std) {
            fd_passing::close(stream.into());
        }
    }
}

impl Socket {
    fn tcp(stream: TcpStream) -> Result<Self> {
        // A host that is gone without a word is noticed after a minute.
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(Duration::from_secs(30))
            .with_interval(Duration::from_secs(10))
            .with_retries(3);
        let socket = socket2::SockRef::from(&stream);
        socket
            .set_tcp_nodelay(true)
            .and_then(|()| socket.set_tcp_keepalive(&keepalive))
            .map_err(|error| Error::io("setting up a socket", error))?;
        Ok(Self::Tcp(stream))
    }

    /// Of this user, or of root.
    fn unix(stream: UnixStream) -> Result<Self> {
        let local = Local(Some(stream));
        let peer = local
            .stream()
            .and_then(UnixStream::peer_cred)
            .map_err(|error| Error::io("the peer's credentials", error))?
            .uid();
        let own = nix::unistd::geteuid().as_raw();
        if peer != own && peer != 0 {
            return Err(Error::new(
                ErrorKind::PermissionDenied,
                format!("the process at the other end is of user {peer}, this one of user {own}"),
            ));
        }
        Ok(Self::Unix(local))
    }

    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Unix(local) => local.stream()?.readable().await,
        }
    }

    async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.writable().await,
            Self::Unix(local) => local.stream()?.writable().await,
        }
    }

    /// Reads so many bytes at most, behind those that are there.
    fn try_read(&self, bytes: &mut BytesMut, most: usize) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => {
                bytes.reserve(most);
                stream.try_read_buf(&mut bytes.limit(most))
            }
            Self::Unix(local) => local.try_read(bytes, most),
        }
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(local) => local.stream()?.try_write(bytes),
        }
    }

    /// Ends one direction, or both. One that is broken has none.
    fn shutdown(&self, how: Shutdown) {
        let _ = match self {
            Self::Tcp(stream) => socket2::SockRef::from(stream).shutdown(how),
            Self::Unix(local) => local
                .stream()
                .and_then(|stream| socket2::SockRef::from(stream).shutdown(how)),
        };
    }

    /// Writes all of it.
    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> Result<()> {
        let broken = |error| Error::io("writing to the peer", error);
        while !bytes.is_empty() {
            self.writable().await.map_err(broken)?;
            match self.try_write(bytes) {
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(broken(error)),
            }
        }
        Ok(())
    }

    /// Reads exactly so many bytes: memory grows as they come, not as they are announced.
    pub(super) async fn read_exact(&self, length: usize) -> Result<Bytes> {
        let mut bytes = BytesMut::new();
        while bytes.len() < length {
            self.readable()
                .await
                .map_err(|error| Error::io("reading from the peer", error))?;
            // Not what follows.
            let want = (length - bytes.len()).min(CHUNK);
            match self.try_read(&mut bytes, want) {
                Ok(0) => {
                    return Err(Error::new(
                        ErrorKind::ConnectionReset,
                        "the other end closed the connection",
                    ));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(Error::io("reading from the peer", error)),
            }
        }
        Ok(bytes.freeze())
    }

    /// Writes bytes with their length before them.
    pub(super) async fn write_block(&self, bytes: &[u8]) -> Result<()> {
        self.write_all(&(bytes.len() as u32).to_le_bytes()).await?;
        self.write_all(bytes).await
    }

    /// Reads bytes with their length before them, which must not be more than `most`.
    pub(super) async fn read_block(&self, most: usize) -> Result<Bytes> {
        let length = self.read_exact(4).await?;
        let length = Reader::new(&length).u32()? as usize;
        if length > most {
            return Err(malformed("a block is too long"));
        }
        self.read_exact(length).await
    }

    /// Waits until the other end has closed the connection, or says something that nobody asked for.
    pub(super) async fn ended(&self) {
        // Either way the connection is of no use any more.
        let _ = self.read_exact(1).await;
    }
}

/// A link over a socket. A task reads and writes what does not go at once.
pub(super) struct SocketLink {
    socket: Socket,
    out: Mutex<Out>,
    /// There is something to write that did not go at once.
    more: Notify,
    /// All was written.
    empty: Notify,
}

/// Bytes of a frame; of a verdict, whether they are its last.
struct Piece {
    bytes: Bytes,
    ends_verdict: bool,
}

impl From<Bytes> for Piece {
    fn from(bytes: Bytes) -> Self {
        let ends_verdict = false;
        Self {
            bytes,
            ends_verdict,
        }
    }
}

#[derive(Default)]
struct Out {
    queue: VecDeque<Piece>,
    /// Verdicts in the queue.
    verdicts: usize,
    /// There were too many: the other end does not read.
    overfull: bool,
    /// Credits that are not in the queue yet: they are added up, so that a peer that does not read cannot make the queue grow.
    credit: usize,
    broken: bool,
    /// The goodbye is in the queue, or was.
    goodbye: bool,
}

impl Out {
    /// Nothing more is written.
    fn give_up(&mut self) {
        self.broken = true;
        self.queue.clear();
        self.verdicts = 0;
        self.credit = 0;
    }
}

impl SocketLink {
    /// A link that begins with the bytes `first`. They wait for [`SocketLink::pump`]: the other end
    /// goes on at once when it has read them, and here the link must be known by then.
    pub(super) fn new(socket: Socket, first: Bytes) -> Arc<Self> {
        let link = Arc::new(Self {
            socket,
            out: Mutex::default(),
            more: Notify::new(),
            empty: Notify::new(),
        });
        if !first.is_empty() {
            link.out.lock().queue.push_back(first.into());
        }
        link
    }

    /// Writes what goes without waiting.
    pub(super) fn pump(&self) {
        let mut out = self.out.lock();
        let done = loop {
            if out.queue.is_empty() && out.credit > 0 {
                let bytes = std::mem::take(&mut out.credit);
                let (head, _) = Frame::Credit { bytes }.encode();
                out.queue.push_back(head.into());
            }
            let Some(first) = out.queue.front_mut() else {
                break true;
            };
            match self.socket.try_write(&first.bytes) {
                Ok(written) => {
                    first.bytes.advance(written);
                    if first.bytes.is_empty() {
                        let ends_verdict = first.ends_verdict;
                        out.verdicts -= usize::from(ends_verdict);
                        out.queue.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break false,
                Err(error) => {
                    // The reading side finds the end, after what had arrived.
                    tracing::debug!(target: "wharf::bootstrap", %error, "writing to a rank failed");
                    out.give_up();
                    break true;
                }
            }
        };
        drop(out);
        if done {
            self.empty.notify_waiters();
        } else {
            self.more.notify_one();
        }
    }

    /// Ends the link to a rank that takes part in calls and does not read how they end. One that reads has no more open than it may.
    fn bound_verdicts(&self) {
        let mut out = self.out.lock();
        if out.verdicts > UNREAD {
            out.give_up();
            out.overfull = true;
            drop(out);
            // Who carries looks, and finds that.
            self.socket.shutdown(Shutdown::Both);
            self.empty.notify_waiters();
        }
    }

    fn is_empty(&self) -> bool {
        let out = self.out.lock();
        out.queue.is_empty() && out.credit == 0
    }

    /// Carries frames between the socket and the hub until either has ended. The hub counts it from the call on.
    pub(super) fn run(
        self: Arc<Self>,
        hub: Weak<Hub>,
        from: usize,
    ) -> impl Future<Output = ()> + Send + 'static {
        let under_way = hub.upgrade().map(|hub| hub.under_way());
        async move {
            self.carry(hub, from).await;
            drop(under_way);
        }
    }

    async fn carry(self: Arc<Self>, hub: Weak<Hub>, from: usize) {
        let Some(strong) = hub.upgrade() else { return };
        let mut left = strong.watch_left();
        drop(strong);
        let reply: Arc<dyn PeerLink> = self.clone();
        let mut bytes = BytesMut::new();
        let ended = loop {
            let writing = !self.is_empty();
            tokio::select! {
                _ = left.wait_for(|left| *left) => break None,
                ready = self.socket.readable() => {
                    let Some(hub) = hub.upgrade() else { break None };
                    let read = ready
                        .map_err(|error| Error::io("reading", error))
                        .and_then(|()| self.read(&hub, from, &reply, &mut bytes));
                    match read {
                        Ok(true) => {}
                        Ok(false) => break Some(None),
                        Err(error) => break Some(Some(error)),
                    }
                }
                _ = self.socket.writable(), if writing => self.pump(),
                () = self.more.notified(), if !writing => {}
            }
        };
        match ended {
            None => {
                // This may be sooner here than who leaves has told the link; without a goodbye the other end takes this rank for dead.
                self.push(Frame::Goodbye);
                if timeout(LEAVING, self.end_in_order()).await.is_err() {
                    tracing::debug!(target: "wharf::bootstrap", from, "a rank did not read to the end");
                }
            }
            Some(error) => {
                // The other end may wait for this, to know that all was read; or there is nothing more to say to it.
                self.socket.shutdown(Shutdown::Both);
                let Some(hub) = hub.upgrade() else { return };
                if let Some(error) = error {
                    tracing::warn!(target: "wharf::bootstrap", from, %error, "the connection to a rank is given up");
                }
                // Nobody waits for this end any more.
                self.out.lock().broken = true;
                self.empty.notify_waiters();
                // No matter if it had said goodbye.
                hub.gone(from, Gone::Died);
                hub.remove_incoming(&reply);
            }
        }
    }

    /// Writes what this rank had said, with its goodbye at the end, and waits until the other end has read it and ended its direction. A socket that is
    /// closed before, or with bytes in it that nobody has read, is reset, and what is under way is lost.
    async fn end_in_order(&self) {
        let mut told = false;
        let mut bytes = BytesMut::new();
        loop {
            let writing = !self.is_empty();
            if !writing && !told {
                self.socket.shutdown(Shutdown::Write);
                told = true;
            }
            tokio::select! {
                _ = self.socket.writable(), if writing => self.pump(),
                readable = self.socket.readable() => {
                    // Nobody wants it any more.
                    bytes.clear();
                    let read = readable.and_then(|()| self.socket.try_read(&mut bytes, CHUNK));
                    let over = match read {
                        Ok(read) => read == 0,
                        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
                    };
                    if over {
                        return;
                    }
                }
            }
        }
    }

    /// Reads what is there. False at the end.
    fn read(
        &self,
        hub: &Arc<Hub>,
        from: usize,
        reply: &Arc<dyn PeerLink>,
        bytes: &mut BytesMut,
    ) -> Result<bool> {
        if self.out.lock().overfull {
            let text = "a rank does not read how its collective calls end";
            return Err(Error::new(ErrorKind::Exhausted, text));
        }
        let ended = match self.socket.try_read(bytes, CHUNK) {
            Ok(read) => read == 0,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => true,
            Err(error) => return Err(Error::io("reading from a rank", error)),
        };
        while let Some(length) = bytes.first_chunk() {
            let length = u32::from_le_bytes(*length) as usize;
            // Only rank 0 has verdicts to send.
            let longest = match from {
                0 => MAX_FRAME,
                _ => MAX_OF_OTHERS,
            };
            if length > longest {
                return Err(malformed("a frame is too long"));
            }
            if bytes.len() < 4 + length {
                break;
            }
            bytes.advance(4);
            let frame = bytes.split_to(length);
            let frame = if length <= COPIED {
                Bytes::copy_from_slice(&frame)
            } else {
                frame.freeze()
            };
            hub.take(from, Frame::decode(&frame)?, reply)?;
        }
        Ok(!ended)
    }
}

impl PeerLink for SocketLink {
    fn push(&self, frame: Frame) {
        {
            let mut out = self.out.lock();
            if out.broken {
                return;
            }
            if matches!(frame, Frame::Goodbye) && std::mem::replace(&mut out.goodbye, true) {
                return;
            }
            if let Frame::Credit { bytes } = frame {
                out.credit += bytes;
            } else {
                let ends_verdict = matches!(frame, Frame::Verdict { .. });
                let (head, body) = frame.encode();
                out.queue.push_back(head.into());
                if !body.is_empty() {
                    out.verdicts += usize::from(ends_verdict);
                    out.queue.push_back(Piece {
                        bytes: body,
                        ends_verdict,
                    });
                }
            }
        }
        self.pump();
        self.bound_verdicts();
    }

    fn flushed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            loop {
                let mut empty = std::pin::pin!(self.empty.notified());
                empty.as_mut().enable();
                if self.out.lock().broken || self.is_empty() {
                    return;
                }
                empty.await;
            }
        })
    }
}

/// So many random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorKind::Io, "no random bytes").with_source(error))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        os::{
            fd::OwnedFd,
            linux::net::SocketAddrExt,
            unix::net::{SocketAddr as UnixAddress, UnixStream as Unix},
        },
    };

    use super::*;

    /// A socket that waits at its last close for as long as the other end stays and reads nothing.
    fn lingering() -> (OwnedFd, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let settings = socket2::SockRef::from(&listener);
        settings.set_recv_buffer_size(4096).expect("set");
        let address = listener.local_addr().expect("an address");
        let mut socket = std::net::TcpStream::connect(address).expect("connected");
        let settings = socket2::SockRef::from(&socket);
        settings.set_send_buffer_size(1 << 16).expect("set");
        let hours = Some(Duration::from_secs(10_000));
        settings.set_linger(hours).expect("set");
        let other = listener.accept().expect("accepted").0;
        socket.set_nonblocking(true).expect("set");
        while socket.write(&[0; 1 << 16]).is_ok() {}
        (socket.into(), other)
    }

    /// Were they closed here, this would hang.
    #[tokio::test]
    async fn descriptors_are_closed_elsewhere() {
        let name = format!("wharf-bootstrap-test-{}", std::process::id()).into_bytes();
        let acceptor = Acceptor::unix(name.clone()).expect("a new name");
        let address = UnixAddress::from_abstract_name(&name).expect("a name");
        for is_read in [true, false] {
            let (passed, _other) = lingering();
            let dialled = Unix::connect_addr(&address).expect("it listens");
            let sent = fd_passing::send(dialled.as_fd(), b"hello", &[passed.as_fd()]);
            assert_eq!(sent.expect("room"), 5);
            drop(passed);
            let socket = acceptor.accept().await;
            if is_read {
                let error = socket.read_exact(5).await.expect_err("with a descriptor");
                assert!(format!("{error:?}").contains("descriptors"), "{error:?}");
            }
            drop(socket);
        }
        // Without any it goes on.
        let mut dialled = Unix::connect_addr(&address).expect("it listens");
        dialled.write_all(b"hello, world").expect("room");
        let socket = acceptor.accept().await;
        for part in [&b"hello"[..], b", world"] {
            let read = socket.read_exact(part.len()).await;
            assert_eq!(read.expect("written"), part);
        }
    }

    /// Who reads the first bytes may send, leave and be told of as gone before the next line here
    /// runs: by then this end must know of the link.
    #[tokio::test]
    async fn the_first_bytes_wait_until_the_link_is_known() {
        let (one, other) = UnixStream::pair().expect("a pair");
        let link = SocketLink::new(Socket::unix(one).expect("a socket"), "come".into());
        let other = Socket::unix(other).expect("a socket");
        let mut bytes = BytesMut::new();
        let early = other.try_read(&mut bytes, 4);
        assert_eq!(
            early.expect_err("nothing").kind(),
            io::ErrorKind::WouldBlock
        );
        link.pump();
        assert_eq!(other.read_exact(4).await.expect("written"), "come");
    }

    /// A rank that takes part in calls and does not read how they end is cut off; one that reads has as many as it likes.
    #[tokio::test]
    async fn verdicts_that_nobody_reads_are_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let (one, other) = tokio::join!(TcpStream::connect(address), listener.accept());
        let one = Socket::tcp(one.expect("connected")).expect("a socket");
        let other = Socket::tcp(other.expect("accepted").0).expect("a socket");
        let link = SocketLink::new(one, Bytes::new());
        let say = |length: usize, call: usize| {
            let body = Bytes::from(vec![0; length]);
            let call = call as u64;
            link.push(Frame::Verdict { call, body });
        };
        for call in 0..4 * UNREAD {
            say(100, call);
            other.read_exact(4 + 9 + 100).await.expect("a verdict");
        }
        let is_cut = || link.out.lock().overfull;
        assert!(!is_cut());
        for call in 0..1000 {
            say(1 << 20, call);
            assert!(link.out.lock().queue.len() <= 2 * UNREAD + 2);
        }
        assert!(is_cut());
    }
}
