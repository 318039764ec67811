//! A doorbell between two processes: a timer descriptor, of which who sleeps watches for the ring and the other rings.
//!
//! Not an eventfd, whose one file description would be both ends': a peer that clears `O_NONBLOCK` there and fills the counter
//! makes the next ring wait for ever (writes to an eventfd know no `RWF_NOWAIT`). Not a socket either: its ring takes room, and a
//! microsecond longer. A timer can be told that it has expired (`TFD_IOC_SET_TICKS`): that takes as long as a write to an
//! eventfd, is an edge for an edge-triggered poll whether or not anybody has read the ones before, and nothing that the other
//! end does to the same timer makes it wait. Each connection has a timer of its own, so a peer that reads it, or lets it expire,
//! takes or makes rings of its own connection only.
//!
//! # Safety
//! Calls of the system on descriptors that are owned here, with structures of this file's that live as long as the call. The call that
//! is not the same for every kind of file (`ioctl`) is made on what has been seen to be a timer, and a description never becomes another kind.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd},
    time::Duration,
};

use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};

use super::fd_passing::close_elsewhere;

const TFD_IOC_SET_TICKS: libc::Ioctl = libc::_IOW::<u64>(b'T' as u32, 0);

/// The end of who sleeps. Nobody reads it.
#[derive(Debug)]
pub(crate) struct Bell(TimerFd);

/// The end of who wakes the other.
#[derive(Debug)]
pub(crate) struct Ringer(TimerFd);

impl Bell {
    /// A bell that does not ring.
    /// Errors: `EMFILE`, `ENFILE`, `ENOMEM`.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        Ok(Self(TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?))
    }

    /// What a peer may do with it.
    #[cfg(test)]
    pub(crate) fn expire_every(&self, time: Duration) {
        let every = Expiration::Interval(TimeSpec::from_duration(time));
        self.0
            .set(every, TimerSetTimeFlags::empty())
            .expect("armed");
    }
}

impl Ringer {
    /// Takes one that a peer sent: its [`Bell`].
    /// Errors: `InvalidData` when it is no timer: what rings a timer may block on something else.
    pub(crate) fn from_received(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: the descriptor is owned, and goes into what owns it from here on.
        let timer = unsafe { TimerFd::from_raw_fd(fd.into_raw_fd()) };
        // Refused by the system for anything else.
        if timer.get().is_ok() {
            Ok(Self(timer))
        } else {
            close_elsewhere(vec![timer.into()]);
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the doorbell is no timer",
            ))
        }
    }

    /// Rings. Never blocks.
    #[inline]
    pub(crate) fn ring(&self) {
        let ticks = 1_u64;
        let timer = self.0.as_fd().as_raw_fd();
        // SAFETY: a timer reads eight bytes from there, and it is one.
        if unsafe { libc::ioctl(timer, TFD_IOC_SET_TICKS, &raw const ticks) } == -1 {
            self.expire();
        }
    }

    /// Rings on kernels that are built without `CONFIG_CHECKPOINT_RESTORE`: the timer expires, by an interrupt.
    #[cold]
    fn expire(&self) {
        let long_ago = Expiration::OneShot(TimeSpec::from_duration(Duration::from_nanos(1)));
        // It fails only for a kind of clock that the peer may set and this process may not; then the peer has no doorbell.
        let _ = self.0.set(long_ago, TimerSetTimeFlags::TFD_TIMER_ABSTIME);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Many bells behind one descriptor, each ring of each an edge.
#[derive(Debug)]
pub(crate) struct BellSet(Epoll);

impl BellSet {
    /// An empty one.
    /// Errors: `EMFILE`, `ENFILE`, `ENOMEM`.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?))
    }

    /// Listens to `bell` too.
    /// Errors: `ENOMEM`, `ENOSPC` at the user's limit of watches.
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
    use std::os::fd::AsFd;

    use nix::{
        fcntl::{FcntlArg, OFlag, fcntl},
        sys::eventfd::{EfdFlags, EventFd},
    };

    use super::*;

    fn pair() -> (Bell, Ringer) {
        let bell = Bell::new().expect("bell");
        let ringer = Ringer::from_received(duplicate(&bell)).expect("a timer");
        (bell, ringer)
    }

    fn duplicate(bell: &Bell) -> OwnedFd {
        bell.as_fd().try_clone_to_owned().expect("duplicate")
    }

    /// Whether a ring was to be seen, after so long at the most.
    fn rang(set: &BellSet, longest: EpollTimeout) -> bool {
        let mut events = [EpollEvent::empty(); 4];
        set.0.wait(&mut events, longest) == Ok(1)
    }

    const SOON: u16 = 10_000;

    #[test]
    fn each_ring_is_an_edge_through_a_set_though_nobody_reads() {
        let (bell, ringer) = pair();
        let set = BellSet::new().expect("set");
        set.add(&bell).expect("add");
        let outer = BellSet::new().expect("set");
        outer.add(&set).expect("nested");
        for _ in 0..1000 {
            assert!(!rang(&outer, EpollTimeout::ZERO));
            ringer.ring();
            assert!(rang(&outer, SOON.into()));
        }
        set.remove(&bell);
        ringer.ring();
        assert!(!rang(&outer, EpollTimeout::ZERO));
    }

    #[test]
    fn it_rings_by_expiring_where_it_cannot_be_told_that_it_has() {
        let (bell, ringer) = pair();
        let set = BellSet::new().expect("set");
        set.add(&bell).expect("add");
        for _ in 0..100 {
            assert!(!rang(&set, EpollTimeout::ZERO));
            ringer.expire();
            assert!(rang(&set, SOON.into()));
        }
    }

    #[test]
    fn nothing_that_the_other_end_does_holds_the_ringer() {
        let (bell, ringer) = pair();
        let flags = OFlag::from_bits_retain(fcntl(&bell, FcntlArg::F_GETFL).expect("flags"));
        fcntl(&bell, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK)).expect("flags");
        let set = BellSet::new().expect("set");
        set.add(&bell).expect("add");
        for _ in 0..100 {
            bell.expire_every(Duration::from_secs(1000));
            ringer.ring();
            assert!(rang(&set, SOON.into()));
            ringer.ring();
            // Reads what was rung; it would block here, were it not.
            bell.0.wait().expect("read");
        }
        bell.0.unset().expect("off");
        drop(bell);
        ringer.ring();
    }

    #[test]
    fn only_a_timer_is_a_ringer() {
        let bell = Bell::new().expect("bell");
        assert!(Ringer::from_received(duplicate(&bell)).is_ok());
        let refused: [OwnedFd; 5] = [
            EventFd::from_flags(EfdFlags::empty())
                .expect("eventfd")
                .into(),
            std::os::unix::net::UnixStream::pair()
                .expect("pair")
                .0
                .into(),
            nix::unistd::pipe().expect("pipe").1,
            std::fs::File::open("/dev/null").expect("a device").into(),
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
