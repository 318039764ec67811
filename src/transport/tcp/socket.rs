//! What the two halves of a link share: the socket, and a few words between them.

use std::{
    io,
    net::Shutdown,
    os::fd::{AsRawFd, RawFd},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use parking_lot::Mutex;

use super::Tcp;
use crate::{ErrorKind, error::Error};

/// A connected, non-blocking socket. Both halves run under the worker's lock, so the flags need no order.
#[derive(Debug)]
pub(super) struct Socket {
    inner: socket2::Socket,
    peer: Box<str>,
    /// The sending half has something queued, and waits to be told that the socket takes more.
    waits: AtomicBool,
    /// The sending half was dropped: its memory must not be touched any more.
    dropped: AtomicBool,
    /// The receiving half has reported the end, or was detached.
    over: AtomicBool,
    /// Why writing ended. The receiving half reports it once it has delivered what had arrived before.
    broken: Mutex<Option<Error>>,
}

impl Socket {
    /// Takes over a socket to `peer` that is already non-blocking.
    pub(super) fn new(inner: socket2::Socket, peer: &str) -> Self {
        Self {
            inner,
            peer: peer.into(),
            waits: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            over: AtomicBool::new(false),
            broken: Mutex::new(None),
        }
    }

    /// The socket.
    pub(super) fn inner(&self) -> &socket2::Socket {
        &self.inner
    }

    /// For registration.
    pub(super) fn fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }

    /// Notes whether the sending half waits for room in the socket.
    pub(super) fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Relaxed);
    }

    /// Whether the sending half waits for room in the socket.
    pub(super) fn waits(&self) -> bool {
        self.waits.load(Relaxed)
    }

    /// The sending half ends.
    pub(super) fn set_dropped(&self) {
        self.dropped.store(true, Relaxed);
        self.shutdown();
    }

    /// Whether the sending half has ended.
    pub(super) fn dropped(&self) -> bool {
        self.dropped.load(Relaxed)
    }

    /// The receiving half ends.
    pub(super) fn set_over(&self) {
        self.over.store(true, Relaxed);
        self.shutdown();
    }

    /// Whether the receiving half has ended.
    pub(super) fn over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// Writing failed. Wakes the receiving half, which drains what arrived and then reports it.
    pub(super) fn set_broken(&self, error: io::Error) {
        *self.broken.lock() = Some(self.lost("writing to the peer failed", Some(error)));
        self.shutdown();
    }

    /// Why writing failed, if it did.
    pub(super) fn take_broken(&self) -> Option<Error> {
        self.broken.lock().take()
    }

    /// The error of a link that is gone.
    pub(super) fn lost(&self, what: &'static str, source: Option<io::Error>) -> Error {
        let error = Error::new(ErrorKind::ConnectionReset, what);
        self.named(match source {
            Some(source) => error.with_source(source),
            None => error,
        })
    }

    /// Adds peer and transport to an error.
    pub(super) fn named(&self, error: Error) -> Error {
        error.with_peer(&self.peer).over(Tcp::NAME)
    }

    /// Ends both directions. What has arrived can still be read; the kernel wakes whoever polls the socket.
    fn shutdown(&self) {
        // Fails only where the connection is gone already, and that is what is wanted.
        let _ = self.inner.shutdown(Shutdown::Both);
    }
}
