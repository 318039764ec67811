//! What has arrived and was not read, and a read that is being polled at this moment: bytes that arrive during the poll go straight into
//! its buffer.
//!
//! # Safety
//! [`Direct`] holds the address of the unfilled part of a buffer that the caller of [`Engine::read_stream`] borrows for the whole call, and it
//! is taken out of the core before that returns. Nothing else reads or writes that part meanwhile. It counts the bytes that it has
//! written, and only those are declared initialised. So does [`put`]. [`Engine::read_next`] lends that part for a call that says how many bytes it has
//! written.
#![allow(unsafe_code)]

use std::{collections::VecDeque, task::Waker};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::ReadBuf;

use crate::{
    error::Error,
    protocol::{
        control,
        window::{Due, ReceiveWindow, Terms},
    },
    transport::Wanted,
    util::{
        copy::{append, copied, copy},
        waker_slot::WakerSlot,
    },
    worker::{core::Core, direct::FIRST_LOOKS, engine::Engine, windows::Window},
};

use super::{
    Broken, Spares, Stream, StreamKey,
    lent::{LentBuffer, PULL},
};

/// Bytes gathered in one block; the least that is allocated.
pub(super) const BLOCK: usize = 32 << 10;
/// Passes after the first bytes of a read have come, while more do.
const MORE: usize = 8;

/// How the peer ended its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadEnd {
    Fin,
    Reset,
}

pub(in crate::worker) struct Reading {
    /// A handle may still read it.
    pub(super) is_held: bool,
    /// Before the chunks: what was copied out of an announced buffer at once, for short reads.
    pub(super) ahead: Bytes,
    pub(super) chunks: VecDeque<Bytes>,
    /// After the chunks: where short frames gather.
    pub(super) tail: BytesMut,
    /// After all of them: what waits in the writer's memory.
    pub(super) lent: Option<LentBuffer>,
    /// Bytes that the peer may send.
    pub(in crate::worker) window: ReceiveWindow,
    pub(super) end: Option<ReadEnd>,
    pub(super) waker: WakerSlot,
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            is_held: true,
            ahead: Bytes::new(),
            chunks: VecDeque::new(),
            tail: BytesMut::new(),
            lent: None,
            window: ReceiveWindow::new(Terms::STREAM.size),
            end: None,
            waker: WakerSlot::default(),
        }
    }
}

impl Reading {
    /// Whether nothing is here; what is announced is not.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.tail.is_empty() && self.chunks.is_empty() && self.ahead.is_empty()
    }

    /// Counts bytes of the peer. `false`: more than it may send.
    #[inline]
    pub(super) fn hold(&mut self, length: usize) -> bool {
        self.window.hold(length as u64)
    }

    /// Keeps a copy of bytes that nobody reads just now.
    pub(super) fn append(&mut self, data: &[u8]) {
        if self.tail.capacity() - self.tail.len() < data.len() {
            if !self.tail.is_empty() {
                self.chunks.push_back(self.tail.split().freeze());
            }
            self.tail.reserve(data.len().max(BLOCK));
        }
        append(&mut self.tail, data);
    }

    /// Keeps bytes that have arrived in memory of their own.
    pub(super) fn push(&mut self, data: BytesMut) {
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
        self.chunks.push_back(data.freeze());
    }

    /// Copies of what comes before all else.
    pub(super) fn copy_ahead(&mut self, buf: &mut ReadBuf<'_>) -> usize {
        let count = self.ahead.len().min(buf.remaining());
        put(buf, &self.ahead.split_to(count));
        count
    }

    /// Copies what is there.
    fn copy_to(&mut self, buf: &mut ReadBuf<'_>, spares: &mut Spares) -> usize {
        let before = buf.filled().len();
        while let Some(chunk) = self.chunks.front_mut() {
            let count = chunk.len().min(buf.remaining());
            put(buf, &chunk[..count]);
            if count < chunk.len() {
                chunk.advance(count);
                return buf.filled().len() - before;
            }
            if let Some(read) = self.chunks.pop_front() {
                spares.keep(read);
            }
        }
        let count = self.tail.len().min(buf.remaining());
        if count > 0 {
            put(buf, &self.tail[..count]);
            if count == self.tail.len() {
                self.tail.clear();
            } else {
                self.tail.advance(count);
            }
        }
        buf.filled().len() - before
    }

    /// What is there, without a copy.
    fn take_chunk(&mut self) -> Option<Bytes> {
        self.chunks
            .pop_front()
            .or_else(|| (!self.tail.is_empty()).then(|| self.tail.split().freeze()))
    }
}

/// Puts bytes that it has room for behind what is in it.
fn put(buf: &mut ReadBuf<'_>, bytes: &[u8]) {
    assert!(
        bytes.len() <= buf.remaining(),
        "the caller has looked at the room"
    );
    // SAFETY: as much room as was looked at just now; nothing that was initialised is made uninitialised.
    let room = unsafe { buf.unfilled_mut() };
    // SAFETY: as above; the room is borrowed alone.
    unsafe { copy(bytes.as_ptr(), room.as_mut_ptr().cast(), bytes.len()) };
    // SAFETY: they were written just now.
    unsafe { buf.assume_init(bytes.len()) };
    buf.advance(bytes.len());
}

impl Stream {
    /// Whether nothing of it waits here, and what comes may be read as it is: it is accepted, and neither end has ended that.
    #[inline]
    fn is_quiet(&self) -> bool {
        let reading = &self.reading;
        reading.is_empty()
            && reading.is_held
            && reading.lent.is_none()
            && reading.end.is_none()
            && self.ended.is_none()
            && self.charged.is_none()
    }

    /// How reading ends, once nothing is left to read.
    fn read_end(&self) -> Option<Result<usize, Broken>> {
        match (self.reading.end, &self.ended) {
            (Some(ReadEnd::Fin), _) => Some(Ok(0)),
            (Some(ReadEnd::Reset), _) => Some(Err(Broken::Reset)),
            (None, Some(error)) => Some(Err(Broken::Ended(error.duplicate()))),
            (None, None) => None,
        }
    }
}

/// A read that is being polled.
pub(super) struct Direct {
    pub(super) key: StreamKey,
    room: *mut u8,
    length: usize,
    filled: usize,
}

// SAFETY: it exists within one call on one thread only, see the chapter on safety.
unsafe impl Send for Direct {}

impl Direct {
    /// Takes as much of `data` as it has room for, and says how much that was.
    #[inline]
    pub(super) fn fill(&mut self, data: &[u8]) -> usize {
        let count = data.len().min(self.length - self.filled);
        // SAFETY: `filled + count` is at most `length`, and the buffer is lent by the caller of `read_stream`; `data` is the link's.
        unsafe {
            copy(data.as_ptr(), self.room.add(self.filled), count);
        }
        self.filled += count;
        count
    }
}

/// Takes the direct target out of the core, also when something in a pass panics.
struct Lent<'a>(&'a mut Engine);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.core.streams.direct = None;
    }
}

impl Engine {
    /// Reads the next messages of the link that brought the last one, where they are this stream's, nothing of it waits here, and there is room for
    /// each: straight into that, past all queues. How many bytes. `looks`: of [`Wanted`].
    #[inline]
    fn read_next(&mut self, key: StreamKey, buf: &mut ReadBuf<'_>, looks: u32) -> usize {
        if self.is_armed() {
            return 0;
        }
        let Some(stream) = self.core.streams.get(key) else {
            return 0;
        };
        if !stream.is_quiet() {
            return 0;
        }
        let link = stream.link;
        let mut wanted = Wanted {
            id: control::STREAM_DATA,
            header: stream.header_of_peer(),
            mask: u64::MAX,
            address: std::ptr::null_mut(),
            room: 0,
            looks,
        };
        let mut read = 0;
        for _ in 0..=MORE {
            // SAFETY: only bytes that are initialised are written, and none is taken away.
            let unfilled = unsafe { buf.unfilled_mut() };
            if unfilled.is_empty() {
                break;
            }
            (wanted.address, wanted.room) = (unfilled.as_mut_ptr().cast(), unfilled.len());
            // SAFETY: the room is that long, and is borrowed alone for the whole of this call.
            let Some(taken) = (unsafe { self.take(&wanted) }) else {
                break;
            };
            wanted.looks = 0;
            // SAFETY: so many bytes were written at its beginning.
            unsafe { buf.assume_init(taken.length) };
            if taken.from != link {
                // Of a stream of another connection that has the same name there.
                let bytes = copied(&buf.initialized()[buf.filled().len()..][..taken.length]);
                self.core
                    .stream_taken_for_another(taken.from, taken.header, &bytes);
                break;
            }
            buf.advance(taken.length);
            read += taken.length;
            let Some(stream) = self.core.streams.get(key) else {
                break;
            };
            if !stream.reading.window.pass(taken.length as u64) {
                self.core.exceeded_stream(link);
                break;
            }
            match stream.reading.window.due(&Terms::STREAM) {
                Due::Nothing => {}
                due => self.core.give_back(Window::Stream(key), due),
            }
        }
        read
    }

    /// Reads what there is, or what arrives within a lap. `None`: nothing yet; `Ok(0)`: the end.
    pub(crate) fn read_stream(
        &mut self,
        key: StreamKey,
        buf: &mut ReadBuf<'_>,
    ) -> Option<Result<usize, Broken>> {
        let Some(stream) = self.core.streams.get(key) else {
            return Some(Err(Broken::Ended(crate::worker::send::closed())));
        };
        // Its own progress must not wake it.
        stream.reading.waker.take();
        if stream.reading.lent.is_some() {
            self.before_pull(key);
        }
        if let Some(read) = self.core.read_here(key, buf) {
            return Some(read);
        }
        let looks = self.first_looks;
        let read = self.read_next(key, buf, looks);
        if read > 0 {
            return Some(Ok(read));
        }
        // SAFETY: only bytes that are initialised are written, and none is taken away.
        let unfilled = unsafe { buf.unfilled_mut() };
        self.core.streams.direct = Some(Direct {
            key,
            room: unfilled.as_mut_ptr().cast(),
            length: unfilled.len(),
            filled: 0,
        });
        let lent = Lent(self);
        match looks {
            0 => lent.0.peek(|core| core.streams.is_read(key)),
            // It has looked already.
            _ => drop(lent.0.progress()),
        }
        let mut passes = 0;
        while passes < MORE && lent.0.core.streams.wants_more() && lent.0.progress() > 0 {
            passes += 1;
        }
        let direct = lent.0.core.streams.direct.take();
        drop(lent);
        let count = direct.map_or(0, |direct| direct.filled);
        // Whether it came soon: the next one may be looked for where it arrives.
        self.first_looks = if count > 0 { FIRST_LOOKS } else { 0 };
        if count > 0 {
            // SAFETY: `fill` wrote the first `count` bytes of the unfilled part.
            unsafe { buf.assume_init(count) };
            buf.advance(count);
            return Some(Ok(count));
        }
        // Long frames land in memory of their own, and long buffers are only announced.
        if self.core.lacks_segment(key) {
            self.before_pull(key);
        }
        self.core.read_here(key, buf)
    }

    /// The next bytes, without a copy. `Ok(None)`: the end.
    pub(crate) fn read_stream_chunk(
        &mut self,
        key: StreamKey,
    ) -> Option<Result<Option<Bytes>, Broken>> {
        if let Some(stream) = self.core.streams.get(key) {
            stream.reading.waker.take();
            if stream.reading.lent.is_some() {
                self.before_pull(key);
            }
        }
        let look = |core: &mut Core| {
            let Some(stream) = core.streams.get(key) else {
                return Some(Err(Broken::Ended(crate::worker::send::closed())));
            };
            if !stream.reading.ahead.is_empty() {
                return Some(Ok(Some(std::mem::take(&mut stream.reading.ahead))));
            }
            if let Some(chunk) = stream.reading.take_chunk() {
                core.read_from(key, chunk.len());
                return Some(Ok(Some(chunk)));
            }
            if stream.reading.lent.is_some() {
                return core.pull_chunk(key, PULL).map(|chunk| Ok(Some(chunk)));
            }
            Some(stream.read_end()?.map(|_| None))
        };
        let mut found = look(&mut self.core);
        if found.is_none() {
            self.peek(|core| {
                found = look(core);
                found.is_some()
            });
        }
        found
    }
}

impl super::Streams {
    /// What is read of a stream of which more may come.
    pub(in crate::worker) fn open_for_reading(&mut self, key: StreamKey) -> Option<&mut Reading> {
        let stream = self.get(key)?;
        (stream.reading.end.is_none() && stream.ended.is_none()).then_some(&mut stream.reading)
    }

    /// Whether a read that is being polled has something, or nothing to wait for.
    #[inline]
    fn is_read(&self, key: StreamKey) -> bool {
        self.direct.as_ref().is_none_or(|direct| direct.filled > 0)
            || self.entries.get(key.slot as usize).is_none_or(|stream| {
                !stream.reading.is_empty()
                    || stream.reading.lent.is_some()
                    || stream.reading.end.is_some()
                    || stream.ended.is_some()
            })
    }

    /// Whether it has something, and room for more.
    #[inline]
    fn wants_more(&self) -> bool {
        self.direct
            .as_ref()
            .is_some_and(|direct| direct.filled > 0 && direct.filled < direct.length)
    }
}

impl Core {
    /// Reads what is here, or can be copied at once, or how it ends.
    #[inline]
    fn read_here(
        &mut self,
        key: StreamKey,
        buf: &mut ReadBuf<'_>,
    ) -> Option<Result<usize, Broken>> {
        let (stream, spares) = self.streams.with_spares(key)?;
        if !stream.reading.ahead.is_empty() {
            return Some(Ok(stream.reading.copy_ahead(buf)));
        }
        if !stream.reading.is_empty() {
            let count = stream.reading.copy_to(buf, spares);
            self.read_from(key, count);
            return Some(Ok(count));
        }
        if stream.reading.lent.is_some()
            && let Some(count) = self.pull_to(key, buf)
        {
            return Some(Ok(count));
        }
        self.streams.get(key)?.read_end()
    }

    pub(crate) fn wait_to_read(&mut self, key: StreamKey, waker: &Waker) {
        if let Some(stream) = self.streams.get(key) {
            stream.reading.waker.leave(waker);
        }
    }

    /// Counts what was read, after what arrived and was not as well, and gives the peer's window back when it is time.
    #[inline]
    pub(super) fn read_from(&mut self, key: StreamKey, count: usize) {
        let Some(stream) = self.streams.get(key) else {
            return;
        };
        let reading = &mut stream.reading;
        reading.window.read(count as u64);
        // Nothing comes back of one that nobody has accepted.
        if reading.end.is_none() && stream.ended.is_none() && stream.charged.is_none() {
            match reading.window.due(&Terms::STREAM) {
                Due::Nothing => {}
                due => self.give_back(Window::Stream(key), due),
            }
        }
    }

    /// Tells the peer how much more it may send.
    pub(in crate::worker) fn stream_given_back(&mut self, key: StreamKey, bytes: u64) {
        if let Some(stream) = self.streams.get(key) {
            let (link, header) = (stream.link, stream.header());
            self.control(link, control::STREAM_WINDOW, header, &bytes.to_le_bytes());
        }
    }

    /// Throws away what nobody will read.
    pub(super) fn discard_unread(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get(key) {
            stream.reading.ahead = Bytes::new();
            stream.reading.lent = None;
            stream.reading.chunks.clear();
            stream.reading.tail = BytesMut::new();
        }
    }
}

impl From<&Error> for Broken {
    fn from(error: &Error) -> Self {
        Self::Ended(error.duplicate())
    }
}
