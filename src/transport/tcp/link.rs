//! The sending half: writes at once when it can, and keeps what the socket did not take.
//!
//! # Safety
//! Payloads of zero-copy sends are raw slices. `am_zcopy`'s contract keeps them valid until the call returned `Done`, their token
//! was reported as sent, or the link was dropped; a slice leaves the queue exactly when its token is reported, and the queue goes
//! with the link. Only the kernel reads through them.
#![allow(unsafe_code)]

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    sync::Arc,
};

use super::{
    frame::{Format, Frame, LIMIT, LONG, MAX_PREFIX, SUMMED},
    options::NAME,
    socket::Socket,
};
use crate::{
    ErrorKind,
    error::Error,
    transport::{Link, LinkAttributes, RawSlice, SendError, Sink, Zcopy},
    types::LinkId,
};

/// Copied bytes that may wait; past them the link is full.
const QUEUE: usize = 64 << 10;
/// Lent bytes that may wait; past them no more are taken.
const LENT: usize = 64 << 10;
/// Pieces that may wait; past them the link is full.
const PIECES: usize = 256;
/// Pieces that one system call takes.
const BATCH: usize = 64;
/// Largest buffer that an idle link keeps.
const SPARE: usize = 8 << 10;

/// The sending half of a connection.
#[derive(Debug)]
pub(super) struct TcpLink {
    id: LinkId,
    socket: Arc<Socket>,
    format: Format,
    fragment: usize,
    queue: VecDeque<Piece>,
    /// Copied bytes in the queue.
    copied: usize,
    /// Bytes of lent payloads in the queue: what others wait behind.
    lent: usize,
    /// A buffer for the next piece.
    spare: Vec<u8>,
    /// The worker was told that there is no room, and not yet that there is.
    starved: bool,
    /// Writing failed. Nothing is taken any more; the interface reports the failure.
    broken: bool,
}

/// Something that waits to be written.
#[derive(Debug)]
enum Piece {
    /// Bytes of ours, of which the first `done` are written.
    Copied { bytes: Vec<u8>, done: usize },
    /// The rest of a payload, never empty.
    Lent { rest: RawSlice, token: u64 },
}

impl TcpLink {
    /// The sending half of `socket`.
    pub(super) fn new(id: LinkId, socket: Arc<Socket>, format: Format, fragment: usize) -> Self {
        Self {
            id,
            socket,
            format,
            fragment,
            queue: VecDeque::new(),
            copied: 0,
            lent: 0,
            spare: Vec::new(),
            starved: false,
            broken: false,
        }
    }

    fn has_room(&self) -> bool {
        self.copied < QUEUE && self.queue.len() < PIECES
    }

    /// Sends a message whose payload is copied if it has to wait, or lent under a token.
    fn send(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
        token: Option<u64>,
    ) -> Result<Zcopy, SendError> {
        // The receiver has no need to see where the prefix of a copied message ends.
        let split = if token.is_none() && prefix.len() > MAX_PREFIX {
            0
        } else {
            prefix.len()
        };
        let rest = prefix.len().saturating_add(payload.len()) - split;
        let Some(frame) = Frame::new(id, header, split, rest) else {
            return Err(SendError::Failed(too_long()));
        };
        if self.socket.over() {
            return Err(SendError::Failed(
                self.socket.lost("the link is closed", None),
            ));
        }
        if self.broken {
            return Err(SendError::Full);
        }
        let direct = self.queue.is_empty();
        if !direct && (!self.has_room() || (token.is_some() && self.lent > LENT)) {
            self.starved = true;
            return Err(SendError::Full);
        }
        let mut head = [0; SUMMED];
        let header = match self.format.checksums {
            true => frame.summed([prefix, payload]).encode(&mut head),
            false => frame.encode(&mut head),
        };
        let head = &head[..header];
        let mut written = 0;
        if direct {
            let parts = [
                IoSlice::new(head),
                IoSlice::new(prefix),
                IoSlice::new(payload),
            ];
            match self.socket.write(&parts) {
                Ok(bytes) => written = bytes,
                Err(error) => {
                    self.fail(error);
                    return Err(SendError::Full);
                }
            }
            if written == header + frame.length {
                if self.socket.unsent() {
                    self.socket.set_waits(true);
                }
                return Ok(Zcopy::Done);
            }
        }
        Ok(self.keep([head, prefix, payload], written, token))
    }

    /// What the socket has not taken of a message waits, its payload where it is if it is lent.
    fn keep(&mut self, mut parts: [&[u8]; 3], mut written: usize, token: Option<u64>) -> Zcopy {
        for part in &mut parts {
            let skip = written.min(part.len());
            *part = &part[skip..];
            written -= skip;
        }
        let [head, prefix, payload] = parts;
        self.copy(head);
        self.copy(prefix);
        self.socket.set_waits(true);
        match token {
            Some(token) if !payload.is_empty() => {
                let rest = RawSlice {
                    address: payload.as_ptr(),
                    length: payload.len(),
                };
                self.lent += rest.length;
                self.queue.push_back(Piece::Lent { rest, token });
                Zcopy::Pending
            }
            _ => {
                self.copy(payload);
                Zcopy::Done
            }
        }
    }

    /// Queues a copy of `bytes`.
    fn copy(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.copied += bytes.len();
        if let Some(Piece::Copied { bytes: last, .. }) = self.queue.back_mut()
            && last.len() < QUEUE
        {
            last.extend_from_slice(bytes);
            return;
        }
        let mut piece = std::mem::take(&mut self.spare);
        piece.extend_from_slice(bytes);
        self.queue.push_back(Piece::Copied {
            bytes: piece,
            done: 0,
        });
    }

    /// Writes from the queue until the socket takes no more.
    fn drain(&mut self, sink: &mut dyn Sink) -> io::Result<()> {
        if self.queue.is_empty() {
            // What waits in TLS.
            return self.socket.write(&[]).map(|_| ());
        }
        while !self.queue.is_empty() {
            let mut parts = [IoSlice::new(&[]); BATCH];
            let mut offered = 0;
            let mut count = 0;
            for (part, piece) in parts.iter_mut().zip(&self.queue) {
                let bytes = piece.bytes();
                offered += bytes.len();
                count += 1;
                *part = IoSlice::new(bytes);
            }
            let written = self.socket.write(&parts[..count])?;
            self.advance(written, sink);
            if written < offered {
                // The kernel tells when there is room: a write that fell short asks for that as much as one that took nothing.
                break;
            }
        }
        Ok(())
    }

    /// Takes `written` bytes off the queue.
    fn advance(&mut self, mut written: usize, sink: &mut dyn Sink) {
        while let Some(piece) = self.queue.front_mut() {
            let left = piece.bytes().len();
            let taken = left.min(written);
            written -= taken;
            match piece {
                Piece::Copied { done, .. } => {
                    *done += taken;
                    self.copied -= taken;
                }
                Piece::Lent { rest, .. } => {
                    self.lent -= taken;
                    *rest = RawSlice {
                        address: rest.address.wrapping_add(taken),
                        length: rest.length - taken,
                    };
                }
            }
            if taken < left {
                break;
            }
            match self.queue.pop_front() {
                Some(Piece::Lent { token, .. }) => sink.sent(self.id, token),
                Some(Piece::Copied { mut bytes, .. }) if bytes.capacity() <= SPARE => {
                    bytes.clear();
                    self.spare = bytes;
                }
                _ => {}
            }
        }
    }

    fn fail(&mut self, error: io::Error) {
        self.broken = true;
        self.socket.set_waits(false);
        self.socket.set_broken(error);
    }
}

impl Link for TcpLink {
    fn attributes(&self) -> LinkAttributes {
        LinkAttributes {
            transport: NAME,
            max_short: LONG,
            max_bcopy: QUEUE,
            max_zcopy: LIMIT - MAX_PREFIX,
        }
    }

    fn fragment(&self) -> usize {
        self.fragment
    }

    fn sends_in_place(&self) -> bool {
        self.queue.is_empty()
    }

    fn am_short(&mut self, id: u8, header: u64, body: &[u8]) -> Result<(), SendError> {
        self.send(id, header, &[], body, None).map(|_| ())
    }

    fn am_bcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.send(id, header, prefix, payload, None).map(|_| ())
    }

    unsafe fn am_zcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: RawSlice,
        token: u64,
    ) -> Result<Zcopy, SendError> {
        // SAFETY: the caller keeps it valid and unchanged beyond this call.
        let payload = unsafe { slice(payload) };
        self.send(id, header, prefix, payload, Some(token))
    }

    fn flush(&mut self, sink: &mut dyn Sink) {
        if self.is_flushed() || self.broken || self.socket.over() {
            return;
        }
        // Cleared when the interface has just said `writable`: then the worker retries anyway and must not be told twice.
        let untold = self.socket.waits();
        if let Err(error) = self.drain(sink) {
            self.fail(error);
            return;
        }
        self.socket.set_waits(!self.is_flushed());
        if self.starved && self.has_room() && self.lent <= LENT {
            self.starved = false;
            if untold {
                sink.writable(self.id);
            }
        }
    }

    fn is_flushed(&self) -> bool {
        self.queue.is_empty() && !self.socket.unsent()
    }
}

impl Drop for TcpLink {
    fn drop(&mut self) {
        self.socket.set_dropped();
    }
}

impl Piece {
    /// What is left of it to write.
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Copied { bytes, done } => &bytes[*done..],
            // SAFETY: lent until its token is reported or the link is dropped, and it is in the queue.
            Self::Lent { rest, .. } => unsafe { slice(*rest) },
        }
    }
}

/// The bytes of a raw slice.
///
/// # Safety
/// They are valid and unchanged for `'a`.
unsafe fn slice<'a>(raw: RawSlice) -> &'a [u8] {
    if raw.length == 0 {
        return &[];
    }
    // SAFETY: by this function's own contract.
    unsafe { std::slice::from_raw_parts(raw.address, raw.length) }
}

#[cold]
fn too_long() -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        "the message is longer than the link's attributes allow",
    )
    .over(NAME)
}
