//! The receiving half of one connection: cuts the stream into messages.
//!
//! Short messages are delivered from the interface's buffer. Of a long one the sink is asked where its payload goes as soon as its
//! prefix is there, and the rest is read straight into that place.
//!
//! # Safety
//! `Place::Memory` hands out an address that is valid for the whole payload until `placed` or `failed` was called or the link was
//! dropped. It lives in `State::Payload`, which is left before `placed` is called; the interface drops the reader when it reports
//! `failed`, and takes no step once the link was dropped or detached.
#![allow(unsafe_code)]

use std::{
    io,
    mem::{self, MaybeUninit},
    slice,
};

use super::{
    frame::{Check, Format, Frame, LONG, MAX_PREFIX, SUMMED, Sums},
    socket::Socket,
};
use crate::{
    error::Error,
    transport::{Place, Sink, tls::explained},
    types::LinkId,
};

/// Bytes of the buffer that all readers of an interface share.
pub(super) const BUFFER: usize = 128 << 10;
/// What is read beyond the end of a long payload, and at first after one: what follows is probably long as well, and better
/// read to its place.
const WINDOW: usize = 4 << 10;
/// Largest buffer that an idle reader keeps.
const SPARE: usize = 8 << 10;
/// First allocation for a payload that is buffered; it grows as data arrive, whatever length was announced.
const FIRST: usize = 64 << 10;

const _: () = assert!(SUMMED + MAX_PREFIX + LONG <= SPARE && SPARE + WINDOW <= BUFFER);

/// Where one connection is in its stream.
#[derive(Debug)]
pub(super) struct Reader {
    id: LinkId,
    state: State,
    format: Format,
    /// Bytes that were read and not delivered, from `start`: part of a frame, or more if `more`.
    backlog: Vec<u8>,
    start: usize,
    /// The budget ended before the backlog was looked through.
    more: bool,
    /// How much is read into the buffer at once.
    window: usize,
}

#[derive(Debug)]
enum State {
    /// Between messages.
    Frame,
    /// In a payload that goes to the user's memory, at this address and under this token, or that nobody wants; `left` is not 0.
    Payload {
        to: Option<(*mut u8, u64)>,
        left: usize,
        check: Option<Check>,
    },
    /// In a payload that is buffered.
    Whole { frame: Frame, body: Vec<u8> },
}

// SAFETY: the address is memory that was lent to whoever holds the reader; no thread owns it.
unsafe impl Send for State {}

/// What a step did.
#[derive(Debug)]
pub(super) enum Step {
    /// This many things happened, at least one; there may be more, unless all was read.
    Moved(usize, bool),
    /// There is nothing to read now.
    Drained,
}

/// Why the stream ended.
#[derive(Debug)]
pub(super) enum End {
    /// To be reported.
    Failed(Error),
    /// The sink refused what the peer sent; it knows.
    Refused,
}

impl Reader {
    /// At the beginning of a stream of frames as both ends write them.
    pub(super) fn new(id: LinkId, format: Format) -> Self {
        Self {
            id,
            state: State::Frame,
            format,
            backlog: Vec::new(),
            start: 0,
            more: false,
            window: BUFFER,
        }
    }

    /// The link that it reads for.
    pub(super) fn id(&self) -> LinkId {
        self.id
    }

    /// Delivers what was left over, or else reads once and delivers that; about `budget` messages.
    pub(super) fn step(
        &mut self,
        socket: &Socket,
        buffer: &mut [u8; BUFFER],
        budget: usize,
        sink: &mut dyn Sink,
    ) -> Result<Step, End> {
        let budget = budget.max(1);
        if self.more {
            let backlog = mem::take(&mut self.backlog);
            let (used, happened) = self.consume(&backlog[self.start..], budget, sink)?;
            self.backlog = backlog;
            self.start += used;
            if self.start == self.backlog.len() {
                self.reset_backlog();
            }
            if happened > 0 {
                return Ok(Step::Moved(happened, false));
            }
        }

        let kept = self.backlog.len() - self.start;
        buffer[..kept].copy_from_slice(&self.backlog[self.start..]);
        let window = self.window.min(BUFFER - kept);
        let (read, short) = match self.read(socket, &mut buffer[kept..kept + window]) {
            Ok((0, _)) => return Err(self.ended(socket)),
            Ok(read) => read,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(Step::Drained),
                io::ErrorKind::Interrupted => return Ok(Step::Moved(1, false)),
                _ => return Err(broken(socket, error)),
            },
        };
        let (buffered, mut happened) = self.arrived(read, sink)?;
        if buffered == window {
            self.window = (self.window * 4).min(BUFFER);
        }
        let bytes = &buffer[..kept + buffered];
        let (used, messages) = self.consume(bytes, budget.saturating_sub(happened), sink)?;
        happened += messages;
        self.reset_backlog();
        self.backlog.extend_from_slice(&bytes[used..]);
        Ok(Step::Moved(happened.max(1), short && !self.more))
    }

    /// Reads once: first to where the payload under way goes, then into `buffer`. Returns all bytes read, and whether nothing more was there; under TLS that
    /// is not known.
    fn read(&mut self, socket: &Socket, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
        // SAFETY: initialised bytes seen as perhaps uninitialised; bytes are only stored there.
        let buffer = unsafe {
            slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<MaybeUninit<u8>>(), buffer.len())
        };
        let (place, ahead): (_, &mut [_]) = match &mut self.state {
            State::Frame | State::Payload { to: None, .. } => (buffer, &mut []),
            State::Payload {
                to: Some((address, _)),
                left,
                ..
            } => {
                // SAFETY: the sink gave `left` bytes at `address`, valid until `placed`, which has not been called.
                let place =
                    unsafe { slice::from_raw_parts_mut(address.cast::<MaybeUninit<u8>>(), *left) };
                let ahead = buffer.len().min(WINDOW);
                (place, &mut buffer[..ahead])
            }
            State::Whole { frame, body } => {
                let left = frame.length - body.len();
                if body.capacity() == body.len() {
                    body.reserve_exact(left.min(body.len().max(FIRST)));
                }
                let place = body.spare_capacity_mut();
                let room = place.len().min(left);
                (&mut place[..room], &mut [])
            }
        };
        let room = place.len() + ahead.len();
        let read = socket.read(place, ahead)?;
        if let State::Whole { body, .. } = &mut self.state {
            // SAFETY: `read` bytes have just been stored behind the end, within the capacity.
            unsafe { body.set_len(body.len() + read) };
        }
        Ok((read, read < room && !socket.is_secured()))
    }

    /// Takes note of `read` bytes. Returns how many of them are in the buffer, and how many things happened.
    fn arrived(&mut self, read: usize, sink: &mut dyn Sink) -> Result<(usize, usize), End> {
        match &mut self.state {
            State::Frame | State::Payload { to: None, .. } => Ok((read, 0)),
            State::Payload {
                to: Some((address, token)),
                left,
                check,
            } => {
                let direct = read.min(*left);
                // SAFETY: these bytes have just been stored, within the `left` that the sink gave.
                let part = unsafe { slice::from_raw_parts(*address, direct) };
                // SAFETY: within the `left` bytes that the sink gave.
                *address = unsafe { address.add(direct) };
                let token = *token;
                let done = passed(part, left, check)?;
                if done {
                    self.placed(token, sink);
                }
                Ok((read - direct, usize::from(done)))
            }
            State::Whole { frame, body } => {
                if body.len() < frame.length {
                    return Ok((0, 0));
                }
                let (frame, body) = (*frame, mem::take(body));
                self.state = State::Frame;
                checked(&frame, |sums| sums.payload, &body[frame.prefix..])?;
                self.deliver(frame, &body, sink)?;
                Ok((0, 1))
            }
        }
    }

    /// Delivers from `bytes`. Returns how many bytes are used up, and how many things happened. In the middle of a long payload all
    /// of them are used.
    fn consume(
        &mut self,
        bytes: &[u8],
        budget: usize,
        sink: &mut dyn Sink,
    ) -> Result<(usize, usize), End> {
        let (mut used, mut happened) = (0, 0);
        self.more = false;
        loop {
            let rest = &bytes[used..];
            match &mut self.state {
                State::Frame if rest.len() < self.format.header() => break,
                State::Frame if happened >= budget => {
                    self.more = true;
                    break;
                }
                State::Frame => {
                    let Some(taken) = self.next_message(rest, sink)? else {
                        break;
                    };
                    used += taken;
                    happened += 1;
                }
                State::Payload { to, left, check } => {
                    let part = &rest[..rest.len().min(*left)];
                    used += part.len();
                    if let Some((address, _)) = to {
                        // SAFETY: `address` has room for `left` bytes, lent by the sink; `rest` is ours, so they do not overlap.
                        unsafe { address.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
                        // SAFETY: within the same bytes.
                        *address = unsafe { address.add(part.len()) };
                    }
                    let to = *to;
                    if !passed(part, left, check)? {
                        break;
                    }
                    match to {
                        Some((_, token)) => {
                            self.placed(token, sink);
                            happened += 1;
                        }
                        None => self.state = State::Frame,
                    }
                }
                State::Whole { frame, body } => {
                    // `begin` delivers a message that is complete in the buffer, so this one is not.
                    let count = rest.len().min(frame.length - body.len());
                    body.extend_from_slice(&rest[..count]);
                    used += count;
                    break;
                }
            }
        }
        Ok((used, happened))
    }

    /// Delivers the message that `rest` begins with, or begins it if it is long. How much of `rest` is used up; `None`: too little of it is here.
    fn next_message(&mut self, rest: &[u8], sink: &mut dyn Sink) -> Result<Option<usize>, End> {
        let header = self.format.header();
        let Some(frame) = Frame::decode(rest, self.format).map_err(End::Failed)? else {
            return Ok(None);
        };
        let is_long = frame.payload() > LONG;
        let end = header + if is_long { frame.prefix } else { frame.length };
        let Some(body) = rest.get(header..end) else {
            return Ok(None);
        };
        checked(&frame, |sums| sums.prefix, &body[..frame.prefix])?;
        if is_long {
            return self.begin(frame, rest, sink).map(Some);
        }
        checked(&frame, |sums| sums.payload, &body[frame.prefix..])?;
        self.deliver(frame, body, sink)?;
        Ok(Some(end))
    }

    /// Asks where a long payload goes. `rest` begins with its frame and holds the prefix. Returns how much of `rest` is used up.
    fn begin(&mut self, frame: Frame, rest: &[u8], sink: &mut dyn Sink) -> Result<usize, End> {
        let header = self.format.header();
        let prefix = &rest[header..header + frame.prefix];
        let left = frame.payload();
        let place = sink.place(self.id, frame.id, frame.header, prefix, left);
        let to = match place.map_err(|_| End::Refused)? {
            Place::Memory { address, token } => Some((address, token)),
            Place::Discard => None,
            Place::Whole => {
                if let Some(body) = rest.get(header..header + frame.length) {
                    checked(&frame, |sums| sums.payload, &body[frame.prefix..])?;
                    self.deliver(frame, body, sink)?;
                    return Ok(header + frame.length);
                }
                let body = prefix.to_vec();
                self.state = State::Whole { frame, body };
                return Ok(header + frame.prefix);
            }
        };
        let check = frame.sums.map(|sums| Check::new(sums.payload));
        self.state = State::Payload { to, left, check };
        Ok(header + frame.prefix)
    }

    fn deliver(&self, frame: Frame, body: &[u8], sink: &mut dyn Sink) -> Result<(), End> {
        sink.message(self.id, frame.id, frame.header, body)
            .map_err(|_| End::Refused)
    }

    fn placed(&mut self, token: u64, sink: &mut dyn Sink) {
        self.state = State::Frame;
        self.window = WINDOW;
        sink.placed(self.id, token);
    }

    fn reset_backlog(&mut self) {
        self.start = 0;
        self.backlog.clear();
        if self.backlog.capacity() > SPARE {
            self.backlog = Vec::new();
        }
    }

    #[cold]
    fn ended(&self, socket: &Socket) -> End {
        let between = matches!(self.state, State::Frame) && self.backlog.is_empty();
        End::Failed(socket.take_broken().unwrap_or_else(|| {
            let what = if between {
                "the connection ended without a goodbye"
            } else {
                "the connection broke within a message"
            };
            socket.lost(what, None)
        }))
    }
}

/// Why nothing more can be read. What a write has found says more than that the socket is no more.
#[cold]
fn broken(socket: &Socket, error: io::Error) -> End {
    if let Some(why) = explained(&error) {
        return End::Failed(why);
    }
    End::Failed(match error.kind() {
        io::ErrorKind::UnexpectedEof => socket.take_broken().unwrap_or_else(|| {
            let what = "the connection was cut off: TLS was not told of its end";
            socket.lost(what, Some(error))
        }),
        _ => socket.lost("the connection broke", Some(error)),
    })
}

/// Checks part of a body, all of which is there, by its sum.
fn checked(frame: &Frame, sum: impl Fn(Sums) -> u32, part: &[u8]) -> Result<(), End> {
    match frame.sums {
        Some(sums) => Check::whole(sum(sums), part).map_err(End::Failed),
        None => Ok(()),
    }
}

/// More of a payload has come, of which `left` bytes were missing. Whether that is all of it, which is checked then.
fn passed(part: &[u8], left: &mut usize, check: &mut Option<Check>) -> Result<bool, End> {
    *left -= part.len();
    if let Some(check) = check {
        check.update(part);
        if *left == 0 {
            check.finish().map_err(End::Failed)?;
        }
    }
    Ok(*left == 0)
}
