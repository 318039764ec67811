//! Reading of byte streams.
//!
//! # Safety
//! [`Direct`] holds the address of the unfilled part of a buffer that the caller of [`Engine::read_stream`] borrows for the whole call, and it
//! is taken out of the core before that returns. Nothing else reads or writes that part meanwhile. It counts the bytes that it has
//! written, and only those are declared initialised. So does `put` of `stream/reading.rs`. [`Engine::read_next`] lends that part for a call that says how many bytes it has
//! written.
#![allow(unsafe_code)]

use std::task::Waker;

use bytes::Bytes;
use tokio::io::ReadBuf;

use crate::{
    protocol::{
        control,
        window::{Due, Terms},
    },
    transport::Wanted,
    util::copy::copied,
    worker::{
        core::Core,
        ctx::Ctx,
        direct::FIRST_LOOKS,
        engine::Engine,
        stream::{
            Stream, Streams,
            broken::Broken,
            key::StreamKey,
            lent::PULL,
            reading::{Direct, MORE, ReadEnd, Reading},
        },
        windows::Window,
    },
};

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
            let Some((from, length)) = (unsafe { self.take(&mut wanted) }) else {
                break;
            };
            wanted.looks = 0;
            // SAFETY: so many bytes were written at its beginning.
            unsafe { buf.assume_init(length) };
            if from != link {
                // Of a stream of another connection that has the same name there.
                let bytes = copied(&buf.initialized()[buf.filled().len()..][..length]);
                self.core
                    .stream_taken_for_another(from, wanted.header, &bytes);
                break;
            }
            buf.advance(length);
            read += length;
            let Some(stream) = self.core.streams.get(key) else {
                break;
            };
            if !stream.reading.window.pass(length as u64) {
                self.core.movers.ctx.exceeded_stream(link);
                break;
            }
            match stream.reading.window.due(&Terms::STREAM) {
                Due::Nothing => {}
                due => self.core.movers.ctx.give_stream(stream, due),
            }
        }
        read
    }

    /// Reads what there is, or, by who is patient, what arrives within a lap. `None`: nothing yet; `Ok(0)`: the end.
    pub(crate) fn read_stream(
        &mut self,
        key: StreamKey,
        buf: &mut ReadBuf<'_>,
        patient: bool,
    ) -> Option<Result<usize, Broken>> {
        let Some(stream) = self.core.streams.get(key) else {
            return Some(Err(Broken::Ended(crate::worker::send::closed())));
        };
        // Its own progress must not wake it.
        let waker = stream.reading.waker.take();
        self.core.movers.ctx.drop_later(waker);
        if stream.reading.lent.is_some() {
            self.before_pull(key);
        }
        if let Some(read) = self.core.read_here(key, buf) {
            return Some(read);
        }
        let looks = if patient { self.first_looks } else { 0 };
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
        // Who has looks has looked already.
        match patient && looks == 0 {
            true => lent.0.peek(|core| core.streams.is_read(key)),
            false => drop(lent.0.progress()),
        }
        let mut passes = 0;
        while passes < MORE && lent.0.core.streams.wants_more() && lent.0.progress() > 0 {
            passes += 1;
        }
        let direct = lent.0.core.streams.direct.take();
        drop(lent);
        let count = direct.map_or(0, |direct| direct.filled);
        // Whether it came soon: the next one may be looked for where it arrives.
        if count > 0 {
            self.first_looks = FIRST_LOOKS;
        } else if patient {
            self.first_looks = 0;
        }
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

    /// The same without a copy. `Ok(None)`: the end.
    pub(crate) fn read_stream_chunk(
        &mut self,
        key: StreamKey,
        patient: bool,
    ) -> Option<Result<Option<Bytes>, Broken>> {
        if let Some(stream) = self.core.streams.get(key) {
            let waker = stream.reading.waker.take();
            self.core.movers.ctx.drop_later(waker);
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
                core.movers.ctx.read_from(stream, chunk.len());
                return Some(Ok(Some(chunk)));
            }
            if stream.reading.lent.is_some() {
                return core.pull_chunk(key, PULL).map(|chunk| Ok(Some(chunk)));
            }
            Some(stream.read_end()?.map(|_| None))
        };
        let mut found = look(&mut self.core);
        if found.is_none() && patient {
            self.peek(|core| {
                found = look(core);
                found.is_some()
            });
        } else if found.is_none() {
            self.progress();
            found = look(&mut self.core);
        }
        found
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
            self.movers.ctx.read_from(stream, count);
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
            let before = stream.reading.waker.leave(waker);
            self.movers.ctx.drop_later(before);
        }
    }
}

impl Ctx {
    /// Counts what was read, after what arrived and was not as well, and gives the peer's window back when it is time.
    #[inline]
    pub(in crate::worker) fn read_from(&mut self, stream: &mut Stream, count: usize) {
        let reading = &mut stream.reading;
        reading.window.read(count as u64);
        // Nothing comes back of one that nobody has accepted.
        if reading.end.is_none() && stream.ended.is_none() && stream.charged.is_none() {
            match reading.window.due(&Terms::STREAM) {
                Due::Nothing => {}
                due => self.give_stream(stream, due),
            }
        }
    }

    /// Follows what the window of a stream says: the peer is told how much more it may send.
    #[cold]
    pub(in crate::worker) fn give_stream(&mut self, stream: &mut Stream, due: Due) {
        match due {
            Due::Nothing => {}
            Due::Later => self.owing.push(Window::Stream(stream.key)),
            Due::Now => {
                let (link, header) = (stream.link, stream.header());
                if let Some(reading) = stream.open_for_reading() {
                    let owed = reading.window.give(&Terms::STREAM).to_le_bytes();
                    self.control(link, control::STREAM_WINDOW, header, &owed);
                }
            }
        }
    }
}

/// Takes the direct target out of the core, also when something in a pass panics.
struct Lent<'a>(&'a mut Engine);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.core.streams.direct = None;
    }
}

impl Stream {
    /// Whether nothing of it waits here, and what comes may be read as it is: it is accepted, and neither end has ended that.
    #[inline]
    pub(in crate::worker) fn is_quiet(&self) -> bool {
        let reading = &self.reading;
        reading.is_empty()
            && reading.is_held
            && reading.lent.is_none()
            && reading.end.is_none()
            && self.ended.is_none()
            && self.charged.is_none()
    }

    /// What is read, where more may come.
    pub(in crate::worker) fn open_for_reading(&mut self) -> Option<&mut Reading> {
        (self.reading.end.is_none() && self.ended.is_none()).then_some(&mut self.reading)
    }

    /// How reading ends, once nothing is left to read.
    pub(in crate::worker) fn read_end(&self) -> Option<Result<usize, Broken>> {
        match (self.reading.end, &self.ended) {
            (Some(ReadEnd::Fin), _) => Some(Ok(0)),
            (Some(ReadEnd::Reset), _) => Some(Err(Broken::Reset)),
            (None, Some(error)) => Some(Err(Broken::Ended(error.clone()))),
            (None, None) => None,
        }
    }
}

impl Streams {
    /// Whether a read that is being polled has something, or nothing to wait for.
    #[inline]
    pub(in crate::worker) fn is_read(&self, key: StreamKey) -> bool {
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
    pub(in crate::worker) fn wants_more(&self) -> bool {
        self.direct
            .as_ref()
            .is_some_and(|direct| direct.filled > 0 && direct.filled < direct.length)
    }
}
