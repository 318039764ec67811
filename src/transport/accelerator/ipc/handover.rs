//! File descriptors of the driver's, handed to another process that holds a ticket.
//!
//! ```text
//! exporter                                          importer
//!   ticket, in the descriptor's bytes   ── peer ──▶
//!                                       ◀── socket  ticket, and what of
//!   makes a descriptor, sends, closes   ── socket ▶ keeps it
//! ```
//! The exporter keeps no descriptor open: one would keep memory that the program has freed. It answers on an abstract Unix socket, from a
//! thread that sleeps meanwhile, since the driver's calls may block. Sockets pass descriptors between process namespaces and need no right to trace,
//! but belong to a network namespace: from another one there is no way. Both ends demand that the other be of the same user. A ticket proves
//! that this exporter has exported this allocation; which it still is, is asked from the driver.

use std::{
    fmt, io,
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use hmac_sha256::HMAC;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::SockRef;

use crate::{
    error::{Error, ErrorKind, Result},
    sys::{
        fd_passing::{self, peer_credentials},
        identity::identity,
    },
    types::Identity,
    util::secret::same,
};

/// What a descriptor is wanted of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Which kind of descriptor, of those that the vendor has.
    pub(crate) kind: u8,
    /// Where the allocation begins.
    pub(crate) base: u64,
    /// Its number.
    pub(crate) id: u64,
}

impl Wanted {
    const LEN: usize = 17;

    fn bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.kind;
        bytes[1..9].copy_from_slice(&self.base.to_le_bytes());
        bytes[9..].copy_from_slice(&self.id.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Self {
            kind: bytes[0],
            base: word(1),
            id: word(9),
        }
    }
}

/// Where a descriptor is to be had, and the proof that one may have it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ticket {
    service: [u8; 16],
    proof: Proof,
}

impl Ticket {
    pub(crate) const LEN: usize = 32;

    pub(crate) fn bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.service);
        bytes[16..].copy_from_slice(&self.proof);
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let (mut service, mut proof) = ([0; 16], [0; 16]);
        service.copy_from_slice(&bytes[..16]);
        proof.copy_from_slice(&bytes[16..]);
        Self { service, proof }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket")
    }
}

/// HMAC-SHA256 of what is wanted under the service's secret, the first half.
type Proof = [u8; 16];

/// The exporter's end. Dropping it ends the thread.
pub(crate) struct Service {
    name: [u8; 16],
    secret: [u8; 32],
    listener: Arc<UnixListener>,
}

impl Service {
    /// Begins to answer with what `make` gives, on a thread of its own.
    /// Errors: `Exhausted`: no descriptor or thread left; what the system said.
    pub(crate) fn start(make: impl Fn(Wanted) -> Result<OwnedFd> + Send + 'static) -> Result<Self> {
        let failed = |what: &'static str| move |error| Error::io(what, error);
        let random = |bytes: &mut [u8]| {
            getrandom::fill(bytes).map_err(|error| {
                Error::new(ErrorKind::Io, "drawing random bytes").with_source(error)
            })
        };
        let (mut name, mut secret) = ([0; 16], [0; 32]);
        random(&mut name)?;
        random(&mut secret)?;
        let address = SocketAddr::from_abstract_name(socket_name(&name));
        let listener = address
            .and_then(|address| UnixListener::bind_addr(&address))
            .map_err(failed("listening for processes that open device memory"))?;
        let listener = Arc::new(listener);
        let theirs = Arc::clone(&listener);
        thread::Builder::new()
            .name("wharf-dev-ipc".into())
            .spawn(move || serve(&theirs, &secret, make))
            .map_err(failed("no thread to hand descriptors over"))?;
        Ok(Self {
            name,
            secret,
            listener,
        })
    }

    /// What lets another process fetch it.
    pub(crate) fn ticket(&self, wanted: Wanted) -> Ticket {
        Ticket {
            service: self.name,
            proof: proof(&self.secret, wanted),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Ends the thread's `accept`. It cannot fail on a socket that listens.
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Service")
    }
}

/// The first half of a code of what is wanted.
fn proof(secret: &[u8; 32], wanted: Wanted) -> Proof {
    let mut proof = Proof::default();
    proof.copy_from_slice(&HMAC::mac(wanted.bytes(), secret)[..size_of::<Proof>()]);
    proof
}

fn socket_name(service: &[u8; 16]) -> Vec<u8> {
    let mut name = b"wharf-ipc-".to_vec();
    for byte in service {
        name.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    name
}

/// A question: the proof, and what is wanted.
const QUESTION: usize = 16 + Wanted::LEN;
/// Longest answer: a status, and the reason of a refusal.
const ANSWER: usize = 256;
const GIVEN: u8 = 0;
/// The allocation is there no longer.
const GONE: u8 = 1;
const REFUSED: u8 = 2;

/// How long the exporter waits for a process that asks: another may be waiting behind it.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long an importer waits, for all of it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(5);

/// The thread: until the socket is shut down.
fn serve(listener: &UnixListener, secret: &[u8; 32], make: impl Fn(Wanted) -> Result<OwnedFd>) {
    loop {
        match listener.accept() {
            Ok((socket, _)) => {
                if let Err(error) = answer(&socket, secret, &make) {
                    tracing::debug!(target: "wharf::device", "handing device memory over: {error}");
                }
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::ECONNABORTED) => {}
                // No descriptor or memory for a moment.
                Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => {
                    thread::sleep(Duration::from_millis(10));
                }
                _ => return,
            },
        }
    }
}

fn answer(
    socket: &UnixStream,
    secret: &[u8; 32],
    make: impl Fn(Wanted) -> Result<OwnedFd>,
) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let peer = peer_credentials(socket.as_fd())?;
    if peer.uid != identity().user {
        let text = format!(
            "user {} may not have memory of user {}",
            peer.uid,
            identity().user
        );
        return refuse(socket, REFUSED, &text, deadline);
    }
    let mut question = [0; QUESTION];
    let mut got = 0;
    while got < QUESTION {
        wait(socket.as_fd(), PollFlags::POLLIN, deadline)?;
        let count = match fd_passing::recv(socket.as_fd(), &mut question[got..]) {
            // Descriptors that came along are closed.
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((count, _)) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        got += count;
    }
    let (mut said, mut wanted) = (Proof::default(), [0; Wanted::LEN]);
    said.copy_from_slice(&question[..16]);
    wanted.copy_from_slice(&question[16..]);
    let wanted = Wanted::from_bytes(&wanted);
    if !same(&proof(secret, wanted), &said) {
        return refuse(socket, REFUSED, "this memory was not exported", deadline);
    }
    match make(wanted) {
        Ok(fd) => {
            wait(socket.as_fd(), PollFlags::POLLOUT, deadline)?;
            fd_passing::send(socket.as_fd(), &[GIVEN], &[fd.as_fd()]).map(drop)
        }
        Err(error) => {
            let status = match error.kind() {
                ErrorKind::StaleKey => GONE,
                _ => REFUSED,
            };
            // Making it may have taken long.
            let deadline = deadline.max(Instant::now() + PATIENCE / 2);
            refuse(socket, status, &error.to_string(), deadline)
        }
    }
}

fn refuse(socket: &UnixStream, status: u8, why: &str, deadline: Instant) -> io::Result<()> {
    let mut bytes = vec![status];
    bytes.extend(why.bytes().take(ANSWER - 1));
    wait(socket.as_fd(), PollFlags::POLLOUT, deadline)?;
    fd_passing::send(socket.as_fd(), &bytes, &[]).map(drop)
}

/// Fetches a descriptor from the process that exports. May block until the deadline.
/// Errors: `StaleKey`: the memory is freed; `PermissionDenied`: another user; `PeerDied`, `Unreachable`: nobody answers; `Rejected`: what the exporter said;
/// `Protocol`: it said something else.
pub(crate) fn fetch(
    ticket: &Ticket,
    wanted: Wanted,
    from: &Identity,
    deadline: Instant,
) -> Result<OwnedFd> {
    let failed = |error: io::Error| {
        match error.kind() {
        io::ErrorKind::ConnectionRefused if from.net_namespace != identity().net_namespace => {
            Error::new(
                ErrorKind::Unreachable,
                "the exporter of device memory lives in another network namespace, where its socket cannot be reached",
            )
        }
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => Error::new(
            ErrorKind::PeerDied,
            "the exporter of device memory hands it over no longer: it has ended, or closed its context",
        )
        .with_source(error),
        io::ErrorKind::TimedOut => Error::new(
            ErrorKind::Unreachable,
            "the exporter of device memory does not answer",
        ),
        _ => Error::io("asking for the descriptor of device memory", error),
    }
    };
    let socket = connect(&socket_name(&ticket.service), deadline).map_err(failed)?;
    let peer = peer_credentials(socket.as_fd()).map_err(failed)?;
    if peer.uid != identity().user {
        let text = format!("user {} answers for memory of user {}", peer.uid, from.user);
        return Err(Error::new(ErrorKind::PermissionDenied, text));
    }
    let known = peer.pid != 0 && from.pid_namespace == identity().pid_namespace;
    if known && peer.pid != from.pid {
        let text = format!(
            "process {} answers for memory of process {}",
            peer.pid, from.pid
        );
        return Err(Error::new(ErrorKind::Protocol, text));
    }
    let mut question = [0; QUESTION];
    question[..16].copy_from_slice(&ticket.proof);
    question[16..].copy_from_slice(&wanted.bytes());
    wait(socket.as_fd(), PollFlags::POLLOUT, deadline).map_err(failed)?;
    // A fresh socket has room for so few bytes.
    fd_passing::send(socket.as_fd(), &question, &[]).map_err(failed)?;
    let (answer, fd) = receive(&socket, deadline).map_err(failed)?;
    match (answer.split_first(), fd) {
        (Some((&GIVEN, [])), Some(fd)) => Ok(fd),
        (Some((&GONE, _)), None) => Err(stale()),
        (Some((&REFUSED, why)), None) => {
            let why: String = String::from_utf8_lossy(why)
                .chars()
                .filter(|c| !c.is_control())
                .collect();
            let text = format!("the exporter of device memory does not give it: {why}");
            Err(Error::new(ErrorKind::Rejected, text))
        }
        _ => Err(Error::new(
            ErrorKind::Protocol,
            "the exporter of device memory answers what is no answer",
        )),
    }
}

/// The error for an allocation that is there no longer.
#[cold]
pub(crate) fn stale() -> Error {
    Error::new(
        ErrorKind::StaleKey,
        "the device memory was freed after it was exported",
    )
}

/// An answer up to its end, and the descriptor that came with it.
fn receive(socket: &UnixStream, deadline: Instant) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut answer = Vec::new();
    let mut bytes = [0; ANSWER];
    loop {
        wait(socket.as_fd(), PollFlags::POLLIN, deadline)?;
        match fd_passing::recv(socket.as_fd(), &mut bytes) {
            Ok((0, _)) if answer.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((0, _)) => return Ok((answer, None)),
            Ok((count, fds)) => {
                answer.extend_from_slice(&bytes[..count]);
                // More of them are closed.
                if let Some(fd) = fds.into_iter().next() {
                    return Ok((answer, Some(fd)));
                }
                if answer.len() > ANSWER {
                    return Ok((Vec::new(), None));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Connects to an abstract name, also while its queue is full.
fn connect(name: &[u8], deadline: Instant) -> io::Result<UnixStream> {
    let mut path = vec![0];
    path.extend_from_slice(name);
    let address = socket2::SockAddr::unix(
        <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&path),
    )?;
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    loop {
        match socket.connect(&address) {
            Ok(()) => return Ok(OwnedFd::from(socket).into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() >= deadline {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until the socket is ready, or broken: then the next call says how.
fn wait(socket: BorrowedFd<'_>, events: PollFlags, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Up to whole milliseconds, so that it does not spin at the end.
        let left = u16::try_from(left.as_millis().saturating_add(1)).unwrap_or(u16::MAX);
        let mut fds = [PollFd::new(socket, events)];
        match poll(&mut fds, PollTimeout::from(left)) {
            Ok(0) if Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
