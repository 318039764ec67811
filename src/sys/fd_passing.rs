//! Bytes with file descriptors over a connected Unix stream socket, and who is at its other end.
//!
//! # Safety
//! Control messages are laid out by hand with the `CMSG_*` macros in a buffer that is aligned for them and of the size
//! that is told to the kernel. Each descriptor that the kernel put there is new to this process and is owned at once, on
//! the error paths too.
#![allow(unsafe_code)]

use std::{
    fmt, io, mem,
    net::Shutdown,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr, thread,
};

use socket2::SockRef;

/// Most descriptors that go with one message.
pub(crate) const MAX_FDS: usize = 8;

/// Most that the system lets go with one (`SCM_MAX_FD`). Those that a receiver has no room for are closed by the system in the receiver's
/// call, which blocks where that close does.
const SYSTEM_MAX_FDS: usize = 253;

/// Who is at the other end of a Unix socket, as the kernel recorded it when the two were connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "tests include this file")]
pub struct PeerCredentials {
    /// Process id as seen from here; 0 when it lives in a process namespace that this one cannot see.
    pub pid: u32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

impl fmt::Display for PeerCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} (user {})", self.pid, self.uid)
    }
}

/// Who is at the other end.
/// Errors: `ENOTSOCK`, or `Unsupported` when it is not a Unix socket.
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    let mut found = mem::MaybeUninit::<libc::ucred>::uninit();
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option writes at most so many bytes, and three numbers may have any bytes.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            found.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    if length as usize != size_of::<libc::ucred>() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: all of it was written.
    let found = unsafe { found.assume_init() };
    // Other families answer too, with the process 0 and the user -1.
    if found.uid == u32::MAX {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(PeerCredentials {
        pid: u32::try_from(found.pid).unwrap_or(0),
        uid: found.uid,
        gid: found.gid,
    })
}

/// Sends `bytes` (at least one) with `fds` (at most [`MAX_FDS`]) and returns how many bytes went. The descriptors travel
/// with the first byte: when the call succeeds they are gone, and the rest of the bytes is sent without them. Never
/// blocks, never raises SIGPIPE.
/// Errors: `WouldBlock` when there is no room, `BrokenPipe` when the peer is gone, `InvalidInput` for no bytes or too many
/// descriptors, `ETOOMANYREFS` when the user has too many in flight.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    if bytes.is_empty() || fds.len() > MAX_FDS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut raw: [RawFd; MAX_FDS] = [-1; MAX_FDS];
    for (slot, fd) in raw.iter_mut().zip(fds) {
        *slot = fd.as_raw_fd();
    }
    let mut control = Control([0; words(MAX_FDS)]);
    let mut vector = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut message = header(&mut vector);
    if !fds.is_empty() {
        let payload = fds.len() * size_of::<RawFd>();
        let length = payload as libc::c_uint;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: arithmetic on the length only.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(length) } as _;
        // SAFETY: `message` has a control buffer with room for one header and `payload` bytes (at most MAX_FDS
        // descriptors, which is what `words` was asked for), aligned for the header; `raw` holds `payload` bytes.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const message);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(length) as _;
            ptr::copy_nonoverlapping(raw.as_ptr().cast(), libc::CMSG_DATA(first), payload);
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: every pointer in `message` is to memory that outlives the call; the bytes are only read.
    retry(|| unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) })
}

/// Receives at most `bytes.len()` bytes, with the descriptors that came with them, close-on-exec. Returns 0 at the end of
/// the stream. Never blocks.
/// Errors: `WouldBlock` when nothing is there; `InvalidData` when more descriptors came than [`MAX_FDS`] or than this process may
/// open, with all that did arrive closed.
pub(crate) fn recv(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    if bytes.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut control = Control([0; words(SYSTEM_MAX_FDS)]);
    let mut vector = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut message = header(&mut vector);
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: every pointer in `message` is to memory that outlives the call and is writable for the sizes given.
    let count = retry(|| unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) })?;
    // SAFETY: recvmsg succeeded and filled `message` in.
    let fds = unsafe { take_fds(&message) };
    if message.msg_flags & libc::MSG_CTRUNC != 0 || fds.len() > MAX_FDS {
        close_elsewhere(fds);
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "more file descriptors came with a message than are allowed, or than this process may open",
        ));
    }
    Ok((count, fds))
}

/// Closes descriptors that are not what they should be, on a thread of its own: the last close of a socket or of a file of some file systems
/// blocks, for as long as who passed it likes. To be followed by the end of that connection.
pub(crate) fn close_elsewhere(fds: Vec<OwnedFd>) {
    if !fds.is_empty() {
        // Without a thread the closure, and the descriptors with it, are dropped here.
        let closing = thread::Builder::new().name("wharf-close".into());
        let _ = closing.spawn(move || drop(fds));
    }
}

/// Closes a socket over which descriptors may have come. Those that are in it still are closed with it: elsewhere then, as
/// [`close_elsewhere`] does. Not for a child made by `fork`: it would end its parent's connection.
pub(crate) fn close(socket: OwnedFd) {
    // Nothing comes any more from here on.
    let left = SockRef::from(&socket);
    let _ = left.shutdown(Shutdown::Both);
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let peeked = left.recv_with_flags(&mut [mem::MaybeUninit::uninit()], flags);
    if peeked.is_ok_and(|count| count > 0) {
        close_elsewhere(vec![socket]);
    }
}

/// Owns the descriptors that a received message carries.
///
/// # Safety
/// `message` must be as a successful `recvmsg` left it, and this the only call for it.
unsafe fn take_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the control buffer in, so headers and lengths are right; each descriptor is new to this
    // process and nobody else's.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(message);
        while !next.is_null() {
            if (*next).cmsg_level == libc::SOL_SOCKET && (*next).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*next).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(next).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            next = libc::CMSG_NXTHDR(message, next);
        }
    }
    fds
}

/// Words of a buffer for one control message with so many descriptors.
const fn words(fds: usize) -> usize {
    // SAFETY: arithmetic on the length only.
    let bytes = unsafe { libc::CMSG_SPACE((fds * size_of::<RawFd>()) as libc::c_uint) };
    (bytes as usize).div_ceil(size_of::<u64>())
}

/// A buffer aligned for control messages.
struct Control<const WORDS: usize>([u64; WORDS]);

const _: () = assert!(align_of::<Control<1>>() >= align_of::<libc::cmsghdr>());

fn header(vector: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: a C struct of integers and pointers, for all of which zero is a value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = vector;
    message.msg_iovlen = 1;
    message
}

fn retry(mut call: impl FnMut() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        if let Ok(count) = usize::try_from(call()) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read, Write},
        net::Shutdown,
        os::{fd::AsFd, unix::net::UnixStream},
    };

    use super::*;

    #[test]
    fn fds_arrive_with_the_first_byte_and_work() {
        let (one, two) = UnixStream::pair().expect("pair");
        let (mut writer, reader) = UnixStream::pair().expect("pair");
        assert_eq!(
            send(one.as_fd(), b"hello", &[reader.as_fd()]).expect("send"),
            5
        );
        drop(reader);
        let mut bytes = [0; 2];
        let (count, fds) = recv(two.as_fd(), &mut bytes).expect("receive");
        assert_eq!((count, &bytes, fds.len()), (2, b"he", 1));
        let flags = nix::fcntl::fcntl(&fds[0], nix::fcntl::FcntlArg::F_GETFD).expect("flags");
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        writer.write_all(b"!").expect("write");
        let mut got = [0];
        File::from(fds.into_iter().next().expect("one"))
            .read_exact(&mut got)
            .expect("read");
        assert_eq!(&got, b"!");
        let mut rest = [0; 8];
        let (count, fds) = recv(two.as_fd(), &mut rest).expect("receive");
        assert_eq!((&rest[..count], fds.len()), (&b"llo"[..], 0));
    }

    #[test]
    fn would_block_and_the_end_surface() {
        let (one, two) = UnixStream::pair().expect("pair");
        let mut bytes = [0; 8];
        let error = recv(two.as_fd(), &mut bytes).expect_err("nothing there");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let big = vec![0; 1 << 20];
        while send(one.as_fd(), &big, &[]).is_ok() {}
        let error = send(one.as_fd(), &big, &[]).expect_err("full");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        // Shut down: of one that is dropped a process that is being started has a copy.
        two.shutdown(Shutdown::Both).expect("connected");
        let error = send(one.as_fd(), &big, &[]).expect_err("gone");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        let (one, two) = UnixStream::pair().expect("pair");
        one.shutdown(Shutdown::Both).expect("connected");
        assert_eq!(recv(two.as_fd(), &mut bytes).expect("the end").0, 0);
    }

    #[test]
    fn too_many_fds_are_refused_and_closed() {
        let (one, two) = UnixStream::pair().expect("pair");
        let (mut kept, passed) = UnixStream::pair().expect("pair");
        let error = send(one.as_fd(), b"x", &[passed.as_fd(); MAX_FDS + 1]).expect_err("nine");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        // A peer that does not keep to the limit.
        let raw = [passed.as_raw_fd(); MAX_FDS + 1];
        nix::sys::socket::sendmsg::<()>(
            one.as_raw_fd(),
            &[io::IoSlice::new(b"x")],
            &[nix::sys::socket::ControlMessage::ScmRights(&raw)],
            nix::sys::socket::MsgFlags::empty(),
            None,
        )
        .expect("send nine");
        drop(passed);
        let error = recv(two.as_fd(), &mut [0; 8]).expect_err("truncated");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        // Every copy of the passed end is closed, so this end reads the end of the stream.
        assert_eq!(kept.read(&mut [0; 1]).expect("read"), 0);
    }

    #[test]
    fn eight_fds_pass() {
        let (one, two) = UnixStream::pair().expect("pair");
        send(one.as_fd(), b"x", &[one.as_fd(); MAX_FDS]).expect("send");
        let (_, fds) = recv(two.as_fd(), &mut [0; 8]).expect("receive");
        assert_eq!(fds.len(), MAX_FDS);
    }

    #[test]
    fn credentials_are_of_the_peer() {
        let (one, _two) = UnixStream::pair().expect("pair");
        let peer = peer_credentials(one.as_fd()).expect("credentials");
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, nix::unistd::geteuid().as_raw());
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
        assert!(peer_credentials(udp.as_fd()).is_err());
    }
}
