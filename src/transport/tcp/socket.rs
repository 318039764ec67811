//! What the two halves of a link share: the socket, and a few words between them.
//!
//! # Safety
//! What TLS has decrypted is copied to where it is wanted, no more than there is room for.
#![allow(unsafe_code)]

use std::{
    io::{self, IoSlice, Read},
    mem::{self, MaybeUninit},
    net::Shutdown,
    os::fd::{AsRawFd, RawFd},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use socket2::MaybeUninitSlice;

use super::options::NAME;
use crate::{
    ErrorKind,
    error::Error,
    transport::tls::Session,
    util::{copy::copy, lock::Mutex},
};

/// A connected, non-blocking socket. Both halves run under the worker's lock, so the flags need no order.
#[derive(Debug)]
pub(super) struct Socket {
    inner: socket2::Socket,
    /// What encrypts all that is written and decrypts all that is read, where there is TLS. Both halves run under the worker's lock: never contended.
    session: Option<Mutex<Box<Session>>>,
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
    pub(super) fn new(inner: socket2::Socket, session: Option<Box<Session>>, peer: &str) -> Self {
        Self {
            inner,
            session: session.map(Mutex::new),
            peer: peer.into(),
            waits: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            over: AtomicBool::new(false),
            broken: Mutex::new(None),
        }
    }

    /// Whether there is TLS.
    pub(super) fn is_secured(&self) -> bool {
        self.session.is_some()
    }

    /// Reads once, to `place` and then `ahead`. Returns all bytes read; under TLS, what was decrypted of them, as [`Session::read`] does.
    pub(super) fn read(
        &self,
        place: &mut [MaybeUninit<u8>],
        ahead: &mut [MaybeUninit<u8>],
    ) -> io::Result<usize> {
        let Some(session) = &self.session else {
            if ahead.is_empty() {
                return self.inner.recv(place);
            }
            let mut parts = [place, ahead].map(MaybeUninitSlice::new);
            return self.inner.recv_vectored(&mut parts).map(|(read, _)| read);
        };
        let mut session = session.lock();
        let room = place.len() + ahead.len();
        let mut parts = [place, ahead];
        let mut put = |mut piece: &[u8]| {
            for part in &mut parts {
                let (now, later) = piece.split_at(piece.len().min(part.len()));
                let (filled, rest) = mem::take(part).split_at_mut(now.len());
                // SAFETY: as many bytes there; the piece is TLS's own.
                unsafe { copy(now.as_ptr(), filled.as_mut_ptr().cast(), now.len()) };
                (*part, piece) = (rest, later);
            }
        };
        let read = session.read(&mut |bytes| (&self.inner).read(bytes), room, &mut put);
        if session.wants_write() {
            // An answer to what was read, or a word on what is wrong with it. A socket that is broken is found so by the next read.
            let _ = session.flush(&mut |bytes| self.send(bytes));
            if session.wants_write() {
                self.set_waits(true);
            }
        }
        read
    }

    /// Writes as much as is taken, in one call where that is enough; 0 where nothing is taken now. What TLS has taken may wait in it.
    pub(super) fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if let Some(session) = &self.session {
            return session.lock().write(&mut |bytes| self.send(bytes), parts);
        }
        loop {
            match self
                .inner
                .send_vectored_with_flags(parts, libc::MSG_NOSIGNAL)
            {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                done => return done,
            }
        }
    }

    /// Writes once.
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.send_with_flags(bytes, libc::MSG_NOSIGNAL)
    }

    /// Whether something that was written waits in TLS.
    pub(super) fn unsent(&self) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| session.lock().wants_write())
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

    /// The error of a link that is gone: it was reset, or nothing comes from there any more.
    pub(super) fn lost(&self, what: &'static str, source: Option<io::Error>) -> Error {
        let is_cut_off = matches!(
            source.as_ref().and_then(io::Error::raw_os_error),
            Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ENETDOWN)
        );
        let kind = match is_cut_off {
            true => ErrorKind::Unreachable,
            false => ErrorKind::ConnectionReset,
        };
        let error = Error::new(kind, what);
        self.named(match source {
            Some(source) => error.with_source(source),
            None => error,
        })
    }

    /// Adds peer and transport to an error.
    pub(super) fn named(&self, error: Error) -> Error {
        error.with_peer(&self.peer).over(NAME)
    }

    /// Ends both directions, and says so where there is TLS. What has arrived can still be read; the kernel wakes whoever polls the socket.
    fn shutdown(&self) {
        if let Some(session) = &self.session {
            session.lock().close(&mut |bytes| self.send(bytes));
        }
        // Fails only where the connection is gone already, and that is what is wanted.
        let _ = self.inner.shutdown(Shutdown::Both);
    }
}
