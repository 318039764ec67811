//! Transport `cma`: copies straight between two processes' memories, by the kernel, in one copy (`process_vm_readv`).
//!
//! Comes in: an address in the peer's memory and one here. Goes out: copied bytes, at once; there is nothing to wait for.
//! It carries no messages: the protocol uses it for the payload of long transfers beside a transport that does.
//! Uses `sys::process_vm` and the set-up channel. Tests: below, and two processes in `tests/process/`.
//!
//! Whether it works is a matter of users, namespaces, Yama and seccomp, which cannot be told beforehand. So it is tried
//! when a connection is made, both ways, on memory that only the right process can have.
//!
//! # Safety
//! Local ranges are the caller's to vouch for. The peer's process is the one that the kernel recorded at the channel's other
//! end; that its memory is meant is proved by a random cookie. An id could pass to another process only after the peer has
//! ended and all other ids were used: the link watches the process by its socket and pidfd, and goes with it.
#![allow(unsafe_code)]

use std::io;

use crate::{
    error::{Error, ErrorKind, Result},
    memory::Extent,
    sys::process_vm,
    transport::channel::Channel,
};

/// The name used in configuration and errors.
pub(crate) const NAME: &str = "cma";

/// The transport, as far as it exists without a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cma;

impl Cma {
    /// Whether this process may use the calls at all, tried on itself.
    ///
    /// # Errors
    /// `Unsupported` or `PermissionDenied`, with the system's reason as the source.
    pub(crate) fn probe_local() -> Result<()> {
        let source = new_cookie()?;
        let mut target: Cookie = [0; COOKIE];
        let mut back: Cookie = [0; COOKIE];
        let pid = std::process::id();
        let (there, here) = (address_of(&source), target.as_mut_ptr());
        // SAFETY: `target` has COOKIE bytes and is not otherwise in use.
        unsafe { process_vm::read(pid, there, here, COOKIE) }
            .and_then(|_| {
                let there = back.as_mut_ptr().expose_provenance() as u64;
                // SAFETY: `target` and `back` have COOKIE bytes, are this function's, and are not otherwise in use.
                unsafe { process_vm::write(pid, there, target.as_ptr(), COOKIE) }
            })
            .map_err(|error| failed(error, 0))?;
        if back == *source {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            "process_vm_readv and process_vm_writev do not copy what they were asked to",
        )
        .over(NAME))
    }

    /// Tries whether each end can reach the other's memory. Both ends call it at once, and both get a peer or both get a
    /// reason. The caller sets the deadline.
    ///
    /// ```text
    /// offer    where my cookie is            ─▶  the peer reads it there, at the process that the kernel says I am
    /// echo     what I read at yours, or why  ─▶  the peer compares
    ///          not
    /// verdict  yours was right, or why not   ─▶  both know both
    /// ```
    ///
    /// # Errors
    /// Outer: the channel broke, or what came over it is not this protocol. Inner: the reason why the two cannot use it.
    ///
    /// # Cancel safety
    /// Dropping it leaves the channel in the middle of the exchange: drop that too.
    pub(crate) async fn probe_peer(
        channel: &mut Channel,
    ) -> Result<std::result::Result<CmaPeer, String>> {
        let peer = CmaPeer::at_other_end_of(channel);
        // Must stay where it is until the last message came.
        let cookie = new_cookie()?;

        let mut offer = address_of(&cookie).to_le_bytes().to_vec();
        offer.extend_from_slice(&(COOKIE as u32).to_le_bytes());
        let offer = exchange(channel, &offer).await?;
        let remote = parse_offer(&offer)?;

        let read = match &peer {
            Ok(peer) => peer.read_cookie(remote).map_err(|error| error.to_string()),
            Err(reason) => Err(reason.clone()),
        };
        let echo = exchange(channel, &encode(&read)).await?;
        let verdict = match decode(&echo)? {
            Ok(bytes) if bytes == cookie.as_slice() => Ok([]),
            Ok(_) => Err("read something else than the cookie: not this process".to_owned()),
            Err(reason) => Err(reason),
        };
        let theirs = exchange(channel, &encode(&verdict)).await?;
        let theirs = decode(&theirs)?;
        drop(cookie);

        Ok(match (peer, verdict, theirs) {
            (Ok(peer), Ok(_), Ok(_)) => Ok(peer),
            (Err(reason), ..) | (Ok(_), Ok(_), Err(reason)) => {
                Err(format!("this end cannot read the peer's memory: {reason}"))
            }
            (Ok(_), Err(reason), _) => {
                Err(format!("the peer cannot read this end's memory: {reason}"))
            }
        })
    }
}

/// A process whose memory can be read and written.
#[derive(Debug)]
pub(crate) struct CmaPeer {
    pid: u32,
}

impl CmaPeer {
    fn at_other_end_of(channel: &Channel) -> std::result::Result<Self, String> {
        let Some(peer) = channel.peer_credentials() else {
            return Err("the channel does not tell the peer's process".to_owned());
        };
        if peer.pid == 0 {
            return Err("the peer lives in another process namespace".to_owned());
        }
        Ok(Self { pid: peer.pid })
    }

    /// Reads `len` bytes at `remote` in the peer to `local`.
    ///
    /// # Errors
    /// `PeerDied`, `PermissionDenied`, `OutOfBounds` when the range is not mapped there; `bytes_moved` tells how many
    /// were read before.
    ///
    /// # Safety
    /// `local` must be valid for writing `len` bytes, and nothing else may read or write them during the call.
    pub(crate) unsafe fn read(&self, remote: u64, local: *mut u8, len: usize) -> Result<()> {
        whole(len, |done| {
            // SAFETY: the caller's range, from `done < len` on; the remote address is a number.
            unsafe {
                let remote = remote.wrapping_add(done as u64);
                process_vm::read(self.pid, remote, local.add(done), len - done)
            }
        })
    }

    /// Writes `len` bytes at `local` to `remote` in the peer.
    ///
    /// # Errors
    /// As [`CmaPeer::read`]; `OutOfBounds` also where the peer's mapping is read-only.
    ///
    /// # Safety
    /// `local` must be valid for reading `len` bytes, and nothing may write them during the call. The peer must have
    /// granted writing to the remote range and still do.
    pub(crate) unsafe fn write(&self, remote: u64, local: *const u8, len: usize) -> Result<()> {
        whole(len, |done| {
            // SAFETY: the caller's range, from `done < len` on, and the peer's grant by the caller's word.
            unsafe {
                let remote = remote.wrapping_add(done as u64);
                process_vm::write(self.pid, remote, local.add(done), len - done)
            }
        })
    }

    /// Reads (`read`) or writes many ranges at once, `len` bytes in all: those `there`, one behind the other, are those `here`. At most 1024 each.
    ///
    /// # Errors
    /// As [`CmaPeer::read`] and [`CmaPeer::write`].
    ///
    /// # Safety
    /// As [`CmaPeer::read`] and [`CmaPeer::write`], of every range.
    pub(crate) unsafe fn vectors(
        &self,
        here: &[Extent],
        there: &[Extent],
        len: usize,
        read: bool,
    ) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        match unsafe { process_vm::vectors(self.pid, vector(here), vector(there), read) } {
            Ok(count) if count == len => Ok(()),
            // The kernel stops in front of what is not mapped.
            Ok(count) => Err(failed(io::Error::from_raw_os_error(libc::EFAULT), count)),
            Err(error) => Err(failed(error, 0)),
        }
    }

    fn read_cookie(&self, remote: u64) -> Result<Cookie> {
        let mut cookie = [0; COOKIE];
        // SAFETY: `cookie` has COOKIE bytes and is not otherwise in use.
        unsafe { self.read(remote, cookie.as_mut_ptr(), COOKIE) }?;
        Ok(cookie)
    }
}

/// Extents as the kernel takes them.
fn vector(extents: &[Extent]) -> &[libc::iovec] {
    const _: () = assert!(size_of::<Extent>() == size_of::<libc::iovec>());
    // SAFETY: both are an address and a length, in this order (`repr(C)`).
    unsafe { std::slice::from_raw_parts(extents.as_ptr().cast(), extents.len()) }
}

/// Calls until all `len` bytes are copied; `copy` is told how many are and says how many more it copied.
fn whole(len: usize, mut copy: impl FnMut(usize) -> io::Result<usize>) -> Result<()> {
    let mut done = 0;
    while done < len {
        match copy(done) {
            Ok(0) => return Err(failed(io::Error::from_raw_os_error(libc::EFAULT), done)),
            Ok(count) => done += count,
            Err(error) => return Err(failed(error, done)),
        }
    }
    Ok(())
}

#[cold]
fn failed(error: io::Error, done: usize) -> Error {
    let known = match error.raw_os_error() {
        Some(libc::ESRCH) => Some((ErrorKind::PeerDied, "the peer's process has ended")),
        Some(libc::EPERM | libc::EACCES) => Some((
            ErrorKind::PermissionDenied,
            "the system does not let this process reach the peer's memory (user, namespace, Yama or seccomp)",
        )),
        Some(libc::EFAULT) => Some((ErrorKind::OutOfBounds, "peer memory is not mapped")),
        Some(libc::ENOSYS) => Some((ErrorKind::Unsupported, "the kernel has no process_vm_readv")),
        _ => None,
    };
    match known {
        Some((kind, message)) => Error::new(kind, message).with_source(error),
        None => Error::io("copying between processes", error),
    }
    .over(NAME)
    .after_bytes(done as u64)
}

/// Bytes of the cookie that proves whose memory it is.
const COOKIE: usize = 16;
type Cookie = [u8; COOKIE];

/// Longest reason that is taken from a peer, in characters.
const MAX_REASON: usize = 256;

fn new_cookie() -> Result<Box<Cookie>> {
    let mut cookie = Box::new([0; COOKIE]);
    getrandom::fill(cookie.as_mut_slice())
        .map_err(|error| Error::new(ErrorKind::Io, "drawing a random cookie").with_source(error))?;
    Ok(cookie)
}

fn address_of(cookie: &Cookie) -> u64 {
    cookie.as_ptr().expose_provenance() as u64
}

async fn exchange(channel: &mut Channel, message: &[u8]) -> Result<Vec<u8>> {
    channel.send(message, &[]).await?;
    Ok(channel.receive().await?.0)
}

fn parse_offer(message: &[u8]) -> Result<u64> {
    let parsed = message
        .split_first_chunk::<8>()
        .and_then(|(address, rest)| Some((address, <[u8; 4]>::try_from(rest).ok()?)));
    match parsed {
        Some((address, len)) if u32::from_le_bytes(len) == COOKIE as u32 => {
            Ok(u64::from_le_bytes(*address))
        }
        _ => Err(Error::new(
            ErrorKind::Protocol,
            "a malformed offer of memory to try",
        )),
    }
}

/// 0 and bytes, or 1 and a reason.
fn encode<T: AsRef<[u8]>>(result: &std::result::Result<T, String>) -> Vec<u8> {
    let (status, rest) = match result {
        Ok(bytes) => (0, bytes.as_ref()),
        Err(reason) => (1, reason.as_bytes()),
    };
    let mut message = vec![status];
    message.extend_from_slice(rest);
    message
}

fn decode(message: &[u8]) -> Result<std::result::Result<&[u8], String>> {
    match message {
        [0, bytes @ ..] => Ok(Ok(bytes)),
        [1, reason @ ..] => Ok(Err(String::from_utf8_lossy(reason)
            .chars()
            .filter(|c| !c.is_control())
            .take(MAX_REASON)
            .collect())),
        _ => Err(Error::new(
            ErrorKind::Protocol,
            "a malformed answer about memory to try",
        )),
    }
}

/// Gives bytes to the decoders of the probe.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let _ = parse_offer(bytes);
    if let Ok(read) = decode(bytes) {
        let again = encode(&read);
        assert_eq!(decode(&again).ok(), Some(read));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        net::{TcpListener, TcpStream, UnixStream},
        time::timeout,
    };

    use super::*;

    const WATCHDOG: Duration = Duration::from_secs(60);

    fn pair() -> (Channel, Channel) {
        let (one, two) = UnixStream::pair().expect("pair");
        (Channel::unix(one), Channel::unix(two))
    }

    /// Whether the machine lets a test use the transport.
    fn usable() -> bool {
        match Cma::probe_local() {
            Ok(()) => true,
            Err(error) => {
                eprintln!("skipped: {error:?}");
                false
            }
        }
    }

    #[tokio::test]
    async fn both_ends_succeed_and_copy() {
        if !usable() {
            return;
        }
        let (mut one, mut two) = pair();
        let both = async { tokio::join!(Cma::probe_peer(&mut one), Cma::probe_peer(&mut two)) };
        let (first, second) = timeout(WATCHDOG, both).await.expect("the watchdog barked");
        let peer = first.expect("channel").expect("peer");
        second.expect("channel").expect("peer");
        assert_eq!(peer.pid, std::process::id());

        let mut far = vec![0_u8; 3 << 20];
        let near: Vec<u8> = (0..far.len()).map(|i| (i % 251) as u8).collect();
        let remote = far.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: both vectors have that many bytes and are used by nothing else.
        unsafe { peer.write(remote, near.as_ptr(), near.len()) }.expect("write");
        assert!(far == near);
        let mut back = vec![0_u8; near.len()];
        // SAFETY: as before.
        unsafe { peer.read(remote, back.as_mut_ptr(), back.len()) }.expect("read");
        assert!(back == near);
    }

    #[tokio::test]
    async fn one_end_that_cannot_fails_both_with_its_reason() {
        if !usable() {
            return;
        }
        let (mut one, mut two) = pair();
        let deaf = async {
            let cookie = new_cookie().expect("random");
            let mut offer = address_of(&cookie).to_le_bytes().to_vec();
            offer.extend_from_slice(&16_u32.to_le_bytes());
            exchange(&mut two, &offer).await.expect("offer");
            let denied: std::result::Result<Cookie, _> = Err("denied\n here".to_owned());
            let echo = exchange(&mut two, &encode(&denied)).await.expect("echo");
            assert_eq!(
                decode(&echo).expect("echo").as_deref(),
                Ok(cookie.as_slice())
            );
            let fine: std::result::Result<[u8; 0], String> = Ok([]);
            let theirs = exchange(&mut two, &encode(&fine)).await.expect("verdict");
            assert!(decode(&theirs).expect("verdict").is_err());
        };
        let both = async { tokio::join!(Cma::probe_peer(&mut one), deaf) };
        let (result, ()) = timeout(WATCHDOG, both).await.expect("the watchdog barked");
        let reason = result.expect("channel").expect_err("must fail");
        assert!(reason.contains("denied here"), "{reason}");
    }

    #[tokio::test]
    async fn a_lying_peer_gains_nothing() {
        let (mut one, mut two) = pair();
        let liar = async {
            // Nothing is mapped there.
            let mut offer = 8_u64.to_le_bytes().to_vec();
            offer.extend_from_slice(&16_u32.to_le_bytes());
            exchange(&mut two, &offer).await.expect("offer");
            let guess: std::result::Result<Cookie, String> = Ok([0; COOKIE]);
            exchange(&mut two, &encode(&guess)).await.expect("echo");
            let fine: std::result::Result<[u8; 0], String> = Ok([]);
            exchange(&mut two, &encode(&fine)).await.expect("verdict");
        };
        let both = async { tokio::join!(Cma::probe_peer(&mut one), liar) };
        let (result, ()) = timeout(WATCHDOG, both).await.expect("the watchdog barked");
        assert!(result.expect("channel").is_err());
    }

    #[tokio::test]
    async fn tcp_gives_a_reason_at_both_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let (one, two) = tokio::join!(TcpStream::connect(address), listener.accept());
        let mut one = Channel::tcp(one.expect("connect"));
        let mut two = Channel::tcp(two.expect("accept").0);
        let both = async { tokio::join!(Cma::probe_peer(&mut one), Cma::probe_peer(&mut two)) };
        let (first, second) = timeout(WATCHDOG, both).await.expect("the watchdog barked");
        assert!(first.expect("channel").is_err() && second.expect("channel").is_err());
    }

    #[tokio::test]
    async fn garbage_is_a_protocol_error() {
        for garbage in [&b""[..], b"short", &[0; 13]] {
            let (mut one, mut two) = pair();
            two.send(garbage, &[]).await.expect("send");
            let result = timeout(WATCHDOG, Cma::probe_peer(&mut one))
                .await
                .expect("the watchdog barked");
            assert_eq!(result.expect_err("garbage").kind(), ErrorKind::Protocol);
        }
    }

    #[test]
    fn errors_have_kinds_and_say_how_far() {
        for (errno, kind) in [
            (libc::ESRCH, ErrorKind::PeerDied),
            (libc::EPERM, ErrorKind::PermissionDenied),
            (libc::EFAULT, ErrorKind::OutOfBounds),
            (libc::ENOSYS, ErrorKind::Unsupported),
        ] {
            let mut first = true;
            let error = whole(10, |_| {
                if std::mem::take(&mut first) {
                    return Ok(4);
                }
                Err(io::Error::from_raw_os_error(errno))
            })
            .expect_err("must fail");
            assert_eq!((error.kind(), error.bytes_moved()), (kind, 4));
        }
        let stuck = whole(10, |_| Ok(0)).expect_err("no progress");
        assert_eq!(stuck.kind(), ErrorKind::OutOfBounds);
    }

    #[test]
    fn the_future_is_send() {
        fn is_send<T: Send>(_: T) {}
        let _ = |channel: &mut Channel| is_send(Cma::probe_peer(channel));
    }
}
