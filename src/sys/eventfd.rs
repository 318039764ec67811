//! An eventfd as a doorbell within the process: any number of rings wake whoever polls the descriptor. Between processes it is
//! a [`Bell`](super::bell::Bell).

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use nix::{
    errno::Errno,
    sys::eventfd::{EfdFlags, EventFd as NixEventFd},
    unistd,
};

/// A doorbell. Non-blocking, closed on exec.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    /// A new one, not ringing.
    /// Errors: `EMFILE`, `ENFILE`, `ENOMEM`.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self(
            NixEventFd::from_value_and_flags(0, flags).map(OwnedFd::from)?,
        ))
    }

    /// Rings. Every call is an edge for an edge-triggered poll.
    #[inline]
    pub(crate) fn ring(&self) {
        // A full counter (EAGAIN) rings already, and nothing else can happen to an open eventfd that is nobody else's.
        while unistd::write(&self.0, &1_u64.to_ne_bytes()) == Err(Errno::EINTR) {}
    }

    /// Silences it. Returns how often it was rung since the last time.
    pub(crate) fn drain(&self) -> u64 {
        let mut count = [0; 8];
        loop {
            match unistd::read(&self.0, &mut count) {
                Ok(8) => return u64::from_ne_bytes(count),
                Err(Errno::EINTR) => {}
                Ok(_) | Err(_) => return 0,
            }
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_add_up_and_drain_clears() {
        let bell = EventFd::new().expect("eventfd");
        let other = EventFd(bell.0.try_clone().expect("clone"));
        assert_eq!(bell.drain(), 0);
        other.ring();
        bell.ring();
        assert_eq!(bell.drain(), 2);
        assert_eq!(other.drain(), 0);
    }

    #[test]
    fn a_full_counter_does_not_block() {
        let bell = EventFd::new().expect("eventfd");
        unistd::write(&bell, &(u64::MAX - 1).to_ne_bytes()).expect("fill");
        bell.ring();
        assert_eq!(bell.drain(), u64::MAX - 1);
    }
}
