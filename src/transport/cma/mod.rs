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

use std::{io, sync::Arc, thread, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, oneshot},
    time::timeout,
};

use crate::{
    error::{Error, ErrorKind, Result},
    memory::Extent,
    sys::process_vm,
    transport::channel::Channel,
    types::{Landmark, Source},
    util::{lock::Mutex, wire::legible},
};

/// The name used in configuration and errors.
pub(crate) const NAME: &str = "cma";

/// Whether this process may use the calls at all, tried on itself.
/// Errors: `Unsupported` or `PermissionDenied`, with the system's reason as the source.
pub(crate) fn probe() -> Result<()> {
    let this = CmaPeer {
        pid: std::process::id(),
    };
    let source = new_cookie()?;
    let mut target = this.read_cookie(address_of(&source))?;
    let mut back: Cookie = [0; COOKIE];
    let there = back.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: `target` and `back` have COOKIE bytes, are this function's, and are not otherwise in use.
    unsafe { this.copy(there, target.as_mut_ptr(), COOKIE, false) }?;
    if back == *source {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        "process_vm_readv and process_vm_writev do not copy what they were asked to",
    )
    .over(NAME))
}

/// What this end has in its memory for the peer to read. The peer does it likewise, and both say what came of it:
///
/// ```text
/// client   where mine is, and what it holds                                          ─▶  the server reads it, at the process that the kernel says
/// server   where mine is, and what it holds; whether the client's could be read      ─▶  the client reads it likewise
/// client   whether the server's could be read                                        ─▶  both know both
/// ```
#[derive(Debug)]
pub(crate) struct Trial {
    /// Stays where it is until the peer has read it.
    cookie: Box<Cookie>,
}

impl Trial {
    /// # Errors
    /// `Io`: there is no randomness to be had.
    pub(crate) fn new() -> Result<Self> {
        let cookie = new_cookie()?;
        Ok(Self { cookie })
    }

    /// What the peer is told.
    pub(crate) fn landmark(&self) -> Landmark {
        Landmark {
            address: address_of(&self.cookie),
            holds: *self.cookie,
        }
    }
}

/// What both ends made of it: a peer, where each has reached the other. Else why not.
pub(crate) fn settled(
    reached: std::result::Result<CmaPeer, String>,
    theirs: std::result::Result<(), String>,
) -> std::result::Result<CmaPeer, String> {
    match (reached, theirs) {
        (Ok(peer), Ok(())) => Ok(peer),
        (Err(reason), _) => Err(format!("this end cannot read the peer's memory: {reason}")),
        (Ok(_), Err(reason)) => Err(format!(
            "the peer cannot read this end's memory: {}",
            legible(reason.as_bytes())
        )),
    }
}

/// Looks at memory of peers that may be under way in this process. Those that peers make wait are not to become ever more threads.
static LOOKS: Looks = Looks::new(64, 32);

/// A look takes microseconds, so a place is soon free, unless peers, or this one's source alone, hold all that they may.
const SOON: Duration = Duration::from_millis(500);

/// Places for looks: so many in all, and so many for those that come from one source, so that none takes all.
struct Looks {
    all: Semaphore,
    share: usize,
    /// What is left to the sources that have a look under way, or wait for one.
    shares: Mutex<Vec<(Source, Arc<Semaphore>)>>,
}

/// A place among the looks.
struct Look<'a> {
    _share: OwnedSemaphorePermit,
    _place: SemaphorePermit<'a>,
}

impl Looks {
    const fn new(all: usize, share: usize) -> Self {
        Self {
            all: Semaphore::const_new(all),
            share,
            shares: Mutex::new(Vec::new()),
        }
    }

    async fn place(&self, source: Source) -> std::result::Result<Look<'_>, String> {
        let look = async {
            Some(Look {
                _share: self.share_of(source).acquire_owned().await.ok()?,
                _place: self.all.acquire().await.ok()?,
            })
        };
        let look = timeout(SOON, look).await.ok().flatten();
        look.ok_or_else(|| "too many peers make this process wait in their memory".to_owned())
    }

    fn share_of(&self, source: Source) -> Arc<Semaphore> {
        let mut shares = self.shares.lock();
        // Of those that nobody has or waits for.
        shares.retain(|(_, share)| Arc::strong_count(share) > 1);
        if let Some((_, share)) = shares.iter().find(|(of, _)| *of == source) {
            return Arc::clone(share);
        }
        let share = Arc::new(Semaphore::new(self.share));
        shares.push((source, Arc::clone(&share)));
        share
    }
}

/// A process whose memory can be read and written.
#[derive(Debug)]
pub(crate) struct CmaPeer {
    pid: u32,
}

impl CmaPeer {
    /// The process at the other end of the channel, where its memory holds what its landmark says. The peer says where to look, and may make whoever looks
    /// there wait for as long as it likes (FUSE, `userfaultfd`): that is a thread for which nobody else waits. Not one of the runtime's, which would wait for
    /// it at its end.
    /// Errors: why it cannot be read.
    pub(crate) async fn reach(
        channel: &Channel,
        landmark: &Landmark,
    ) -> std::result::Result<Self, String> {
        let peer = Self::at_other_end_of(channel)?;
        let (tell, told) = oneshot::channel();
        let looking = LOOKS.place(channel.source()).await?;
        let landmark = *landmark;
        let look = move || {
            let reached = peer.holds(&landmark);
            drop(looking);
            // Who asked may have gone.
            let _ = tell.send(reached);
        };
        let thread = thread::Builder::new().name("wharf-cma".into());
        let begun = thread.spawn(look);
        begun.map_err(|error| format!("no thread to try it on: {error}"))?;
        let none = || Err("the thread that tried it is gone".to_owned());
        told.await.unwrap_or_else(|_| none())
    }

    fn holds(self, landmark: &Landmark) -> std::result::Result<Self, String> {
        match self.read_cookie(landmark.address) {
            Ok(read) if read == landmark.holds => Ok(self),
            Ok(_) => Err("read something else than what it said: not this process".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn at_other_end_of(channel: &Channel) -> std::result::Result<Self, String> {
        let Some(peer) = channel.peer_credentials() else {
            return Err("the channel does not tell the peer's process".to_owned());
        };
        if peer.pid == 0 {
            return Err("the peer lives in another process namespace".to_owned());
        }
        Ok(Self { pid: peer.pid })
    }

    /// Copies `len` bytes between `remote` in the peer and `local`: to `local` when `pull`, else to the peer.
    /// Errors: `PeerDied`, `PermissionDenied`, `OutOfBounds` when the range is not mapped there, or read-only where it is to be
    /// written; `bytes_moved` tells how many were copied before.
    ///
    /// # Safety
    /// `local` must be valid for `len` bytes, for writing when `pull`, and nothing else may write them during the call, nor
    /// read them when `pull`. Else the peer must have granted writing to the remote range and still do.
    pub(crate) unsafe fn copy(
        &self,
        remote: u64,
        local: *mut u8,
        len: usize,
        pull: bool,
    ) -> Result<()> {
        whole(len, |done| {
            // SAFETY: the caller's range, from `done < len` on, and the peer's grant by the caller's word.
            unsafe {
                let remote = remote.wrapping_add(done as u64);
                process_vm::copy(self.pid, remote, local.add(done), len - done, pull)
            }
        })
    }

    /// As [`CmaPeer::copy`], of many ranges at once, `len` bytes in all: those `there`, one behind the other, are those
    /// `here`. At most 1024 each.
    /// Errors: as [`CmaPeer::copy`].
    ///
    /// # Safety
    /// As [`CmaPeer::copy`], of every range.
    pub(crate) unsafe fn vectors(
        &self,
        here: &[Extent],
        there: &[Extent],
        len: usize,
        pull: bool,
    ) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        match unsafe { process_vm::vectors(self.pid, vector(here), vector(there), pull) } {
            Ok(count) if count == len => Ok(()),
            // The kernel stops in front of what is not mapped.
            Ok(count) => Err(failed(io::Error::from_raw_os_error(libc::EFAULT), count)),
            Err(error) => Err(failed(error, 0)),
        }
    }

    fn read_cookie(&self, remote: u64) -> Result<Cookie> {
        let mut cookie = [0; COOKIE];
        // SAFETY: `cookie` has COOKIE bytes and is not otherwise in use.
        unsafe { self.copy(remote, cookie.as_mut_ptr(), COOKIE, true) }?;
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

fn new_cookie() -> Result<Box<Cookie>> {
    let mut cookie = Box::new([0; COOKIE]);
    getrandom::fill(cookie.as_mut_slice())
        .map_err(|error| Error::new(ErrorKind::Io, "drawing a random cookie").with_source(error))?;
    Ok(cookie)
}

fn address_of(cookie: &Cookie) -> u64 {
    cookie.as_ptr().expose_provenance() as u64
}

/// 0, or 1 and a reason.
pub(crate) fn encode(reached: std::result::Result<(), &str>) -> Vec<u8> {
    match reached {
        Ok(()) => vec![0],
        Err(reason) => [&[1], reason.as_bytes()].concat(),
    }
}

/// # Errors
/// `Protocol`.
pub(crate) fn decode(message: &[u8]) -> Result<std::result::Result<(), String>> {
    match message {
        [0] => Ok(Ok(())),
        [1, reason @ ..] => Ok(Err(legible(reason))),
        _ => Err(Error::new(
            ErrorKind::Protocol,
            "a malformed answer about memory to try",
        )),
    }
}

/// Gives bytes to the decoder of what came of the trial.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Ok(read) = decode(bytes) {
        let again = encode(read.as_ref().copied().map_err(String::as_str));
        assert_eq!(decode(&again).ok(), Some(read));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        pin::pin,
        ptr,
    };

    use futures::future::poll_immediate;
    use tokio::net::{TcpListener, TcpStream, UnixStream};

    use super::*;

    fn pair() -> (Channel, Channel) {
        let (one, two) = UnixStream::pair().expect("pair");
        (Channel::unix(one), Channel::unix(two))
    }

    #[tokio::test]
    #[ignore = "needs process_vm_readv: a container may refuse it"]
    async fn both_ends_succeed_and_copy() {
        let (one, two) = pair();
        let trials = [(); 2].map(|()| Trial::new().expect("random"));
        let first = CmaPeer::reach(&one, &trials[1].landmark()).await;
        let second = CmaPeer::reach(&two, &trials[0].landmark()).await;
        let said = decode(&encode(Ok(()))).expect("well formed");
        settled(second, said.clone()).expect("peer");
        let peer = settled(first, said).expect("peer");
        assert_eq!(peer.pid, std::process::id());

        let mut far = vec![0_u8; 3 << 20];
        let mut near: Vec<u8> = (0..far.len()).map(|i| (i % 251) as u8).collect();
        let remote = far.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: both vectors have that many bytes and are used by nothing else.
        unsafe { peer.copy(remote, near.as_mut_ptr(), near.len(), false) }.expect("write");
        assert!(far == near);
        let mut back = vec![0_u8; near.len()];
        // SAFETY: as before.
        unsafe { peer.copy(remote, back.as_mut_ptr(), back.len(), true) }.expect("read");
        assert!(back == near);
    }

    #[tokio::test]
    #[ignore = "needs process_vm_readv: a container may refuse it"]
    async fn one_end_that_cannot_fails_both_with_its_reason() {
        let (one, _two) = pair();
        let trial = Trial::new().expect("random");
        let peer = CmaPeer::reach(&one, &trial.landmark())
            .await
            .expect("this process");
        let said = decode(&encode(Err("denied\n here"))).expect("well formed");
        let reason = settled(Ok(peer), said).expect_err("must fail");
        assert!(reason.contains("denied here"), "{reason}");
        let reason = settled(Err("no".to_owned()), Ok(())).expect_err("must fail");
        assert!(
            reason.contains("this end") && reason.contains("no"),
            "{reason}"
        );
    }

    #[tokio::test]
    async fn a_lying_peer_gains_nothing() {
        let (one, _two) = pair();
        let trial = Trial::new().expect("random");
        let mut holds = trial.landmark().holds;
        holds[15] ^= 1;
        let address = trial.landmark().address;
        let other = Landmark { address, holds };
        // Nothing is mapped at the other.
        let nowhere = Landmark { address: 8, holds };
        for lie in [other, nowhere] {
            CmaPeer::reach(&one, &lie).await.expect_err("a lie");
        }
    }

    /// A page that is there once this descriptor is closed; who looks at it before waits.
    fn page_that_waits() -> (OwnedFd, u64) {
        const LENGTH: usize = 4096;
        // SAFETY: a system call of a number, whose result is a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        let fd = RawFd::try_from(fd).expect("a descriptor");
        assert!(fd >= 0, "userfaultfd: {}", io::Error::last_os_error());
        // SAFETY: it is new, and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping where the system likes, which stays.
        let page = unsafe { libc::mmap(ptr::null_mut(), LENGTH, libc::PROT_READ, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        let page = page.expose_provenance() as u64;
        // The version, then the page, whose accesses wait where nothing is there.
        let (mut version, mut range) = ([0xaa_u64, 0, 0], [page, LENGTH as u64, 1, 0]);
        // SAFETY: both are as long as these calls read and write.
        let done = unsafe {
            libc::ioctl(fd.as_raw_fd(), 0xc018_aa3f, version.as_mut_ptr()) == 0
                && libc::ioctl(fd.as_raw_fd(), 0xc020_aa00, range.as_mut_ptr()) == 0
        };
        assert!(done, "userfaultfd: {}", io::Error::last_os_error());
        (fd, page)
    }

    /// One that has a look at its memory wait holds up nobody else.
    #[tokio::test]
    #[ignore = "needs process_vm_readv, and userfaultfd of any fault: a privilege"]
    async fn a_peer_that_makes_a_look_wait_holds_up_nobody() {
        let (fd, address) = page_that_waits();
        let (one, _two) = pair();
        let holds = [1; COOKIE];
        let lie = Landmark { address, holds };
        let mut look = pin!(CmaPeer::reach(&one, &lie));
        assert!(poll_immediate(&mut look).await.is_none());
        // Another, meanwhile.
        let trial = Trial::new().expect("random");
        let other = CmaPeer::reach(&one, &trial.landmark()).await;
        other.expect("this process");
        assert!(poll_immediate(&mut look).await.is_none());
        drop(fd);
        let reason = look.await.expect_err("a lie");
        assert!(reason.contains("something else"), "{reason}");
    }

    #[tokio::test(start_paused = true)]
    async fn looks_that_wait_are_bounded() {
        let looks = Looks::new(3, 2);
        let [one, other] = [1, 2].map(Source::User);
        let first = looks.place(one).await.expect("a place");
        let second = looks.place(one).await.expect("a place");
        assert!(looks.place(one).await.is_err(), "its share is taken");
        let third = looks.place(other).await.expect("not that of others");
        assert!(looks.place(other).await.is_err(), "all are taken");
        // Whoever waits for one has it.
        let (fourth, ()) = tokio::join!(looks.place(one), async { drop(first) });
        drop((fourth.expect("a place"), second, third));
        drop(looks.place(Source::User(3)).await);
        assert_eq!(looks.shares.lock().len(), 1, "none is kept for the others");
    }

    #[tokio::test]
    async fn tcp_gives_a_reason() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let (one, _two) = tokio::join!(TcpStream::connect(address), listener.accept());
        let one = Channel::tcp(one.expect("connect"));
        let trial = Trial::new().expect("random");
        let reason = CmaPeer::reach(&one, &trial.landmark())
            .await
            .expect_err("must fail");
        assert!(reason.contains("the peer's process"), "{reason}");
    }

    #[test]
    fn garbage_is_a_protocol_error() {
        for garbage in [&b""[..], b"short", &[0; 13]] {
            let error = decode(garbage).expect_err("garbage");
            assert_eq!(error.kind(), ErrorKind::Protocol);
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
}
