//! A doorbell between two processes: a pair of sockets, one end for who sleeps and one for who wakes it.
//!
//! Not an eventfd, whose one file description would be both ends': a peer that clears `O_NONBLOCK` there and fills the counter
//! makes the next ring wait for ever (writes to an eventfd know no `RWF_NOWAIT`), and one that reads it takes away what others
//! rang. Each connection has a pair of its own, the sleeper's end is nobody else's, and a send with `MSG_DONTWAIT` returns
//! whatever the other end does. A ring is a byte that nobody looks at; it is an edge for an edge-triggered poll, also when
//! the bytes before it are still there.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        socket::{
            AddressFamily, MsgFlags, SockFlag, SockType, getsockopt, recv, send, socketpair,
            sockopt,
        },
    },
};

use super::fd_passing::{close_elsewhere, peer_credentials};

/// What a ring takes of its socket's room is less than this.
const RING_COST: usize = 4096;
/// Rings after which the bell is silenced at the latest.
const MOST_RINGS: usize = 64;

/// The end of who sleeps. It never leaves this process.
#[derive(Debug)]
pub(crate) struct Bell {
    socket: OwnedFd,
    /// Rings that may have come since it was silenced.
    expected: AtomicUsize,
    /// How many of them its socket has room for, with plenty to spare.
    limit: usize,
}

/// The end of who wakes the other.
#[derive(Debug)]
pub(crate) struct Ringer(OwnedFd);

impl Bell {
    /// A bell and what rings it.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub(crate) fn pair() -> io::Result<(Self, Ringer)> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (socket, ringer) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
        let room = getsockopt(&ringer, sockopt::SndBuf)?;
        let bell = Self {
            socket,
            expected: AtomicUsize::new(0),
            limit: (room / RING_COST).clamp(1, MOST_RINGS),
        };
        Ok((bell, Ringer(ringer)))
    }

    /// To be called before the peer is asked for a ring: there is room for it. A ring without room would be no edge.
    #[inline]
    pub(crate) fn expect(&self) {
        let expected = self.expected.load(Ordering::Relaxed) + 1;
        self.expected.store(expected, Ordering::Relaxed);
        if expected > self.limit {
            self.silence();
        }
    }

    #[cold]
    fn silence(&self) {
        self.expected.store(1, Ordering::Relaxed);
        // Once: a peer that rings more often than it was asked fills its own bell.
        let mut rings = [0; 4 * MOST_RINGS];
        let _ = recv(self.socket.as_raw_fd(), &mut rings, MsgFlags::MSG_DONTWAIT);
    }
}

impl Ringer {
    /// Takes one that a peer sent.
    ///
    /// # Errors
    /// `InvalidData` when it is no connected Unix stream socket: a write to something else may block.
    pub(crate) fn from_received(fd: OwnedFd) -> io::Result<Self> {
        let is_stream = peer_credentials(fd.as_fd()).is_ok()
            && getsockopt(&fd, sockopt::SockType) == Ok(SockType::Stream);
        if is_stream {
            Ok(Self(fd))
        } else {
            close_elsewhere(vec![fd]);
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the doorbell is no connected Unix stream socket",
            ))
        }
    }

    /// Rings. Never blocks.
    #[inline]
    pub(crate) fn ring(&self) {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        // Full (EAGAIN), it has been rung more often than it was asked for; closed (EPIPE), nobody listens.
        while send(self.0.as_raw_fd(), &[1], flags) == Err(Errno::EINTR) {}
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsFd for Ringer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Many bells behind one descriptor, each ring of each an edge.
#[derive(Debug)]
pub(crate) struct BellSet(Epoll);

impl BellSet {
    /// An empty one.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?))
    }

    /// Listens to `bell` too.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC` at the user's limit of watches.
    pub(crate) fn add(&self, bell: impl AsFd) -> io::Result<()> {
        let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        Ok(self.0.add(bell, EpollEvent::new(edges, 0))?)
    }

    /// Listens to `bell` no longer.
    pub(crate) fn remove(&self, bell: impl AsFd) {
        // It fails only for one that was never added.
        let _ = self.0.delete(bell);
    }

    /// Waits for a ring since the last call, for so long at the most, or for an interruption.
    pub(crate) fn wait(&self, longest: Option<Duration>) {
        let mut events = [EpollEvent::empty(); 8];
        let timeout = longest
            .and_then(|longest| EpollTimeout::try_from(longest).ok())
            .unwrap_or(EpollTimeout::NONE);
        // Those that do not fit come with the next call, which returns at once.
        let _ = self.0.wait(&mut events, timeout);
    }
}

impl AsFd for BellSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::{
        fcntl::{FcntlArg, OFlag, fcntl},
        sys::eventfd::{EfdFlags, EventFd},
    };

    use super::*;

    #[test]
    fn each_ring_is_an_edge_through_a_set_though_nobody_reads() {
        let (bell, ringer) = Bell::pair().expect("pair");
        let set = BellSet::new().expect("set");
        set.add(&bell).expect("add");
        let outer = BellSet::new().expect("set");
        outer.add(&set).expect("nested");
        let mut events = [EpollEvent::empty(); 4];
        for _ in 0..10 * MOST_RINGS {
            assert_eq!(outer.0.wait(&mut events, EpollTimeout::ZERO), Ok(0));
            bell.expect();
            ringer.ring();
            assert_eq!(outer.0.wait(&mut events, EpollTimeout::ZERO), Ok(1));
        }
        set.remove(&bell);
        ringer.ring();
        assert_eq!(outer.0.wait(&mut events, EpollTimeout::ZERO), Ok(0));
    }

    #[test]
    fn a_full_bell_that_blocks_does_not_hold_the_ringer() {
        let (bell, ringer) = Bell::pair().expect("pair");
        // What the other end may do with a descriptor of the same file description.
        let theirs = ringer.0.try_clone().expect("duplicate");
        let flags = OFlag::from_bits_retain(fcntl(&theirs, FcntlArg::F_GETFL).expect("flags"));
        fcntl(&theirs, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK)).expect("flags");
        let bytes = [0; 4096];
        while send(theirs.as_raw_fd(), &bytes, MsgFlags::MSG_DONTWAIT).is_ok() {}
        while send(theirs.as_raw_fd(), &[0], MsgFlags::MSG_DONTWAIT).is_ok() {}
        ringer.ring();
        drop(bell);
        ringer.ring();
    }

    #[test]
    fn only_a_connected_stream_socket_is_a_ringer() {
        let (_bell, ringer) = Bell::pair().expect("pair");
        let received = ringer.0.try_clone().expect("duplicate");
        assert!(Ringer::from_received(received).is_ok());
        let (datagrams, _other) = std::os::unix::net::UnixDatagram::pair().expect("pair");
        let refused: [OwnedFd; 4] = [
            EventFd::from_flags(EfdFlags::empty())
                .expect("eventfd")
                .into(),
            datagrams.into(),
            nix::unistd::pipe().expect("pipe").1,
            std::net::TcpListener::bind("127.0.0.1:0")
                .expect("bind")
                .into(),
        ];
        for fd in refused {
            let error = Ringer::from_received(fd).expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
