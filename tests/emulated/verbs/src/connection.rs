//! One end of a connection between two processes, on which nothing waits.
//!
//! # Safety
//! Calls are given descriptors of this side's, and memory that lives through them.

use std::{
    collections::VecDeque,
    io::{self, Read},
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::{ffi::OsStrExt, net::UnixStream},
    },
    path::Path,
};

use crate::{children::Ours, frame::Frame};

pub(crate) struct Connection {
    pub(crate) stream: Ours<UnixStream>,
    input: Vec<u8>,
    pub(crate) output: VecDeque<Vec<u8>>,
    /// How much of the first of them went.
    sent: usize,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: Ours::new(stream)?,
            input: Vec::new(),
            output: VecDeque::new(),
            sent: 0,
        })
    }

    /// Sends what goes without waiting.
    ///
    /// # Errors
    /// The other end is gone.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while let Some(frame) = self.output.front() {
            let rest = &frame[self.sent..];
            // SAFETY: bytes of the frame; a peer that is gone is an error and no signal.
            let sent = unsafe {
                libc::send(
                    self.stream.0.as_raw_fd(),
                    rest.as_ptr().cast(),
                    rest.len(),
                    libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
                )
            };
            match usize::try_from(sent) {
                Ok(sent) if sent == rest.len() => {
                    self.output.pop_front();
                    self.sent = 0;
                }
                Ok(sent) => self.sent += sent,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => break,
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Reads what is there; whether more may come.
    pub(crate) fn fill(&mut self) -> bool {
        let mut some = [0; 1 << 16];
        // So much at a time, that others have their turn.
        for _ in 0..64 {
            match (&self.stream.0).read(&mut some) {
                Ok(0) => return false,
                Ok(count) => self.input.extend_from_slice(&some[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// The frames that are all there, and whether what follows may be one.
    pub(crate) fn frames(&mut self) -> (Vec<Frame>, bool) {
        let (mut frames, mut at) = (Vec::new(), 0);
        let fine = loop {
            match Frame::decode(&self.input[at..]) {
                Ok(Some((frame, length))) => {
                    frames.push(frame);
                    at += length;
                }
                Ok(None) => break true,
                Err(()) => break false,
            }
        };
        self.input.drain(..at);
        (frames, fine)
    }
}

/// Connects without waiting: a process that is stopped, and has no room for one more that asks, is not reached.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes numbers.
    let stream = match unsafe { libc::socket(libc::AF_UNIX, flags, 0) } {
        -1 => return Err(io::Error::last_os_error()),
        // SAFETY: just made, and nobody else has it.
        fd => unsafe { UnixStream::from_raw_fd(fd) },
    };
    // SAFETY: numbers, for which zeros are values.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    // The last one stays zero.
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, byte) in address.sun_path.iter_mut().zip(bytes) {
        *to = *byte as libc::c_char;
    }
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: an address of that length.
    match unsafe { libc::connect(stream.as_raw_fd(), (&raw const address).cast(), length) } {
        0 => Ok(stream),
        _ => Err(io::Error::last_os_error()),
    }
}
