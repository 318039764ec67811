#![allow(unsafe_code)]
//! A file descriptor of another process: taken from it (`pidfd_getfd`), or asked for at its socket.
//!
//! The first needs the right to trace the other process. Where that is missing, the other's small server answers: an
//! abstract Unix socket named after the process, which hands a descriptor to processes of the same user only.
//!
//! # Safety
//! System calls with arguments that live through them; descriptors that come back belong to nobody else.

use std::{
    fs, io,
    io::Write as _,
    mem,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::OnceLock,
    thread,
    time::Duration,
};

/// A process, for as long as the machine runs: ids are used again, start times with them are not.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Process {
    /// Its id, as this process sees it.
    pub id: u32,
    /// When it began, in clock ticks since the machine did: field 22 of `/proc/PID/stat`.
    pub start: u64,
}

impl Process {
    /// This process.
    pub fn this() -> Self {
        let id = std::process::id();
        Self {
            id,
            start: start_time(id).unwrap_or(0),
        }
    }
}

/// When the process began, in clock ticks.
fn start_time(id: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name in parentheses may hold anything: count behind the last one.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The kernel's number of this thread; in a child of `fork`, that of the parent's thread.
pub fn thread_id() -> i32 {
    thread_local! {
        // SAFETY: it has no arguments and cannot fail.
        static ID: i32 = unsafe { libc::gettid() };
    }
    ID.with(|id| *id)
}

/// Takes descriptor `fd` of `process`.
///
/// # Errors
/// `ESRCH` when the process has ended, `EPERM` without the right to trace it, `EBADF` when it has no such descriptor.
pub fn take(process: Process, fd: RawFd) -> io::Result<OwnedFd> {
    if start_time(process.id) != Some(process.start) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: numbers only.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, process.id, 0) };
    let pidfd = owned(pidfd)?;
    // SAFETY: numbers only; the pidfd is open.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) };
    owned(fd)
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system call that gave the number made the descriptor for this caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Bytes of a question to a server.
pub const QUESTION: usize = 64;

/// Starts this process's server, once: `find` says which descriptor a question means. `realm` parts one kind of library
/// from another.
///
/// # Errors
/// The name is taken, or no descriptor or thread is left.
pub fn serve(
    realm: &str,
    find: impl Fn(&[u8; QUESTION]) -> Option<OwnedFd> + Send + 'static,
) -> io::Result<()> {
    static STARTED: OnceLock<Result<(), i32>> = OnceLock::new();
    let start = || {
        let name = SocketAddr::from_abstract_name(name(realm, Process::this()))?;
        let listener = UnixListener::bind_addr(&name)?;
        thread::Builder::new()
            .name("emulated-share".to_owned())
            .spawn(move || {
                for peer in listener.incoming().flatten() {
                    // A peer that asks nonsense or goes away gets no answer.
                    let _ = answer(&peer, &find);
                }
            })?;
        io::Result::Ok(())
    };
    STARTED
        .get_or_init(|| start().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)))
        .map_err(io::Error::from_raw_os_error)
}

/// Asks the server of `process` for a descriptor.
///
/// # Errors
/// `ECONNREFUSED` when there is no such server, `ENOENT` when it does not know what was asked for.
pub fn ask(realm: &str, process: Process, question: &[u8; QUESTION]) -> io::Result<OwnedFd> {
    let name = SocketAddr::from_abstract_name(name(realm, process))?;
    let mut stream = UnixStream::connect_addr(&name)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(question)?;
    receive(&stream)
}

fn name(realm: &str, process: Process) -> String {
    format!("emulated-{realm}-{}-{}", process.id, process.start)
}

fn answer(peer: &UnixStream, find: impl Fn(&[u8; QUESTION]) -> Option<OwnedFd>) -> io::Result<()> {
    use std::io::Read as _;
    peer.set_read_timeout(Some(Duration::from_secs(2)))?;
    // SAFETY: getuid has no arguments and cannot fail.
    let user = unsafe { libc::getuid() };
    if peer_user(peer)? != user {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut question = [0; QUESTION];
    let mut reader = peer;
    reader.read_exact(&mut question)?;
    match find(&question) {
        Some(fd) => send(peer, fd.as_raw_fd()),
        None => Ok(()),
    }
}

fn peer_user(peer: &UnixStream) -> io::Result<u32> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the result and its length live through the call.
    let status = unsafe {
        libc::getsockopt(
            peer.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(credentials.uid)
}

/// Room for one descriptor's control message, aligned as its header.
#[repr(C, align(8))]
struct Control([u8; 24]);

/// Sends a descriptor with one byte.
///
/// # Errors
/// From `sendmsg`.
pub fn send(stream: &UnixStream, fd: RawFd) -> io::Result<()> {
    let mut byte = 1_u8;
    let mut data = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let mut control = Control([0; 24]);
    // SAFETY: all zeros is a message without anything.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    // SAFETY: CMSG_LEN only computes.
    let len = unsafe { libc::CMSG_LEN(4) };
    let header = libc::cmsghdr {
        cmsg_len: len as _,
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: libc::SCM_RIGHTS,
    };
    // SAFETY: the room has the header's alignment and 24 bytes: 16 of header, 4 of descriptor.
    unsafe { (&raw mut control).cast::<libc::cmsghdr>().write(header) };
    control.0[16..20].copy_from_slice(&fd.to_ne_bytes());
    // SAFETY: everything the message points to lives through the call.
    let sent = unsafe { libc::sendmsg(stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
    if sent == 1 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Receives a descriptor that came with one byte.
///
/// # Errors
/// `ENOENT` when the other closed without one; else from `recvmsg`.
pub fn receive(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = 0_u8;
    let mut data = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let mut control = Control([0; 24]);
    // SAFETY: all zeros is a message without anything.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    // SAFETY: everything the message points to lives through the call.
    let got =
        unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    if got == 0 || (message.msg_controllen as usize) < 20 {
        return Err(io::Error::from_raw_os_error(libc::ENOENT));
    }
    let word = [control.0[16], control.0[17], control.0[18], control.0[19]];
    owned(libc::c_long::from(RawFd::from_ne_bytes(word)))
}
