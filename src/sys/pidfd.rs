//! A descriptor of a process: readable once the process has ended, and never of another process that got its id.
//!
//! # Safety
//! Two system calls without a wrapper elsewhere. Both return a new descriptor that nobody else owns.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::fd_passing::peer_credentials;

/// `SO_PEERPIDFD` (Linux 6.5).
const SO_PEERPIDFD: libc::c_int = 77;

/// A process, by descriptor. Closed on exec.
#[derive(Debug)]
pub(crate) struct PidFd(OwnedFd);

impl PidFd {
    /// The process with this id now. When the id was learnt some time ago, it may be another's by now.
    /// Errors: `ESRCH` when there is none, `ENOSYS` before Linux 5.3, `EMFILE`.
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: takes two integers and touches no memory of ours.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: the call succeeded: a new descriptor, close-on-exec, owned by nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The process at the other end of a connected Unix socket: the one that connected, or that had called `listen`.
    /// Before Linux 6.5 found by its id, which leaves a moment in which the id could change hands.
    /// Errors: as [`PidFd::open`]; `NotFound` when the peer lives in a process namespace that this one cannot see.
    pub(crate) fn of_peer(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let mut fd: libc::c_int = -1;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: `fd` and `len` are valid for the sizes given.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERPIDFD,
                (&raw mut fd).cast(),
                &raw mut len,
            )
        };
        if result == 0 && fd >= 0 {
            // SAFETY: the call succeeded: a new descriptor, close-on-exec, owned by nobody else.
            return Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }));
        }
        match peer_credentials(socket)?.pid {
            0 => Err(io::ErrorKind::NotFound.into()),
            pid => Self::open(pid),
        }
    }

    /// Whether the process has ended (also when nobody has waited for it yet).
    pub(crate) fn has_exited(&self) -> bool {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fds, PollTimeout::ZERO), Ok(count) if count > 0)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for PidFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixStream, process::Command};

    use super::*;

    #[test]
    fn a_child_that_ends_is_seen() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("spawn");
        let fd = PidFd::open(child.id()).expect("pidfd");
        assert!(!fd.has_exited());
        child.kill().expect("kill");
        let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, 60_000_u16), Ok(1), "the watchdog barked");
        assert!(fd.has_exited());
        child.wait().expect("wait");
        assert!(fd.has_exited());
    }

    #[test]
    fn the_peer_of_a_socketpair_is_this_process() {
        let (one, _two) = UnixStream::pair().expect("pair");
        let peer = PidFd::of_peer(one.as_fd()).expect("pidfd of peer");
        assert!(!peer.has_exited());
    }

    #[test]
    fn bad_ids_are_errors() {
        assert!(PidFd::open(0).is_err());
        assert!(PidFd::open(u32::MAX).is_err());
        assert_eq!(
            PidFd::open(i32::MAX as u32)
                .expect_err("no such process")
                .raw_os_error(),
            Some(libc::ESRCH)
        );
    }
}
