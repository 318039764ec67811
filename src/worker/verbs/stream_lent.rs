//! Buffers of a peer's writer, read where they are.
//!
//! # Safety
//! The writer's piece owns the buffer while its word stands. It is taken back (`Movers::take_back`) by revoking the word, and dropped after the
//! reader was seen outside. The reader touches it between `Pair::enter` and `Pair::leave` only, after a look at the word.
#![allow(unsafe_code)]

use bytes::Bytes;
use tokio::io::ReadBuf;

use crate::{
    error::{Error, ErrorKind, Result},
    memory::Buffer,
    protocol::{
        control::{self, StreamRts},
        plan::{self, CHUNK},
        thresholds::Lending,
    },
    transport::Link,
    types::LinkId,
    worker::{
        copy::Remote,
        core::Core,
        engine::Engine,
        movers::Movers,
        one_sided::word,
        operations::Work,
        peer::{OneCopy, at},
        pressure::Deferred,
        send::show,
        stream::{
            key::StreamKey,
            lent::{AHEAD, LentBuffer, PULL, SHORT},
            outgoing::{Loan, Piece},
        },
        verbs::stream_in::{expect, named},
        violation::violation,
    },
};

impl Engine {
    /// What others wait for passes between two copies; and the segment that a buffer lies in comes over a socket, which somebody must read.
    pub(in crate::worker) fn before_pull(&mut self, key: StreamKey) {
        if self.core.lacks_segment(key) {
            self.poll_fds();
        }
        self.progress();
    }
}

impl Movers {
    /// Takes announced buffers back. They are dropped when the peer is outside.
    pub(in crate::worker) fn take_back(&mut self, link: LinkId, lent: Vec<(Buffer, u32)>) {
        if lent.is_empty() {
            return;
        }
        let Some(one_copy) = self.ctx.one_copy(link) else {
            self.ctx
                .deferred
                .extend(lent.into_iter().map(|(buffer, _)| Deferred::Buffer(buffer)));
            return;
        };
        let pair = one_copy.pair.clone();
        for (_, word) in &lent {
            // A reader counts nothing in it, so another may have it at once.
            pair.release(*word);
        }
        for (buffer, _) in lent {
            self.let_go(&pair, Work::StreamOut { _buffer: buffer });
        }
    }
}

impl Core {
    /// Whether a buffer lies in a segment that is not mapped here yet.
    pub(in crate::worker) fn lacks_segment(&mut self, key: StreamKey) -> bool {
        let Some(stream) = self.streams.get(key) else {
            return false;
        };
        let (link, Some(lent)) = (stream.link, &stream.reading.lent) else {
            return false;
        };
        let segment = lent.rts.segment;
        segment != 0
            && self
                .movers
                .ctx
                .one_copy(link)
                .is_some_and(|one_copy| one_copy.mapping(segment).is_none())
    }

    /// A peer's buffer waits to be copied.
    pub(in crate::worker) fn stream_announced(
        &mut self,
        link: LinkId,
        header: u64,
        body: &[u8],
    ) -> Result<()> {
        let rts = StreamRts::decode(body)?;
        let Some(peer) = at(&mut self.movers.ctx.peers, link) else {
            return Ok(());
        };
        if peer.one_copy.is_none() {
            return Err(violation("a buffer announced without memory in common"));
        }
        let sound = rts.length > 0
            && isize::try_from(rts.length).is_ok()
            && rts.address.checked_add(rts.length).is_some()
            && rts.segment_offset.checked_add(rts.length).is_some();
        if !sound {
            return Err(violation("a buffer announced where none can be"));
        }
        let (entries, ctx) = (&mut self.streams.entries, &mut self.movers.ctx);
        let found = expect(entries, &mut ctx.peers, link, header, 0)?;
        if let Some(stream) = found
            && stream.reading.is_held
        {
            stream.reading.lent = Some(LentBuffer { rts, done: 0 });
            ctx.wakes.extend(stream.reading.waker.take());
        }
        Ok(())
    }

    /// The reader of an announced buffer has taken all of it, or can take no more.
    pub(in crate::worker) fn stream_taken(
        &mut self,
        link: LinkId,
        header: u64,
        body: &[u8],
    ) -> Result<()> {
        let taken = word(body)?;
        let ctx = &mut self.movers.ctx;
        let Some(stream) = named(&mut self.streams.entries, &mut ctx.peers, link, header)? else {
            return Ok(());
        };
        let writing = &mut stream.writing;
        let Some(Piece::Owned { buffer, done, loan }) = writing.pieces.front_mut() else {
            // Said before it heard that this side has taken the buffer back; once.
            if std::mem::take(&mut writing.took_back) {
                return Ok(());
            }
            return Err(violation("took of a stream what was not announced"));
        };
        let Loan::Out(word) = *loan else {
            return Err(violation("took of a stream what was not announced"));
        };
        let taken = usize::try_from(taken)
            .ok()
            .filter(|taken| *taken <= buffer.len())
            .ok_or_else(|| violation("took more of a stream than was announced"))?;
        if let Some(peer) = at(&mut ctx.peers, link)
            && let Some(one_copy) = &peer.one_copy
        {
            one_copy.pair.release(word);
        }
        *done = taken;
        *loan = Loan::Refused;
        if taken == buffer.len() {
            // The reader has left it: it says so after the last byte.
            if let Some(Piece::Owned { buffer, .. }) = writing.pieces.pop_front() {
                ctx.deferred.push(Deferred::Buffer(buffer));
            }
            writing.left += 1;
            ctx.wakes.extend(writing.waker.take());
            ctx.close_soon(Some(link));
        } else {
            tracing::debug!(target: "wharf::stream", taken, "the reader cannot copy a buffer; the rest is sent");
        }
        if stream.writing.has_unsent() {
            ctx.queue_stream(stream);
            self.movers.let_writes(stream);
        }
        Ok(())
    }

    /// Copies what is announced to a read. `None`: nothing is, or it cannot be copied and comes in frames.
    pub(in crate::worker) fn pull_to(
        &mut self,
        key: StreamKey,
        buf: &mut ReadBuf<'_>,
    ) -> Option<usize> {
        let left = self.streams.get(key)?.reading.lent.as_ref()?.left();
        let room = buf.remaining();
        if room < SHORT.min(left) {
            let ahead = self.pull_chunk(key, AHEAD)?;
            let stream = self.streams.get(key)?;
            stream.reading.ahead = ahead;
            return Some(stream.reading.copy_ahead(buf));
        }
        // SAFETY: only bytes that are initialised are written, and none is taken away.
        let unfilled = unsafe { buf.unfilled_mut() };
        let address = unfilled.as_mut_ptr().cast();
        // SAFETY: `unfilled` is `room` bytes that are borrowed for this call.
        let count = unsafe { self.pull(key, address, room.min(PULL)) };
        // SAFETY: `pull` wrote the first `count` of them.
        unsafe { buf.assume_init(count) };
        buf.advance(count);
        (count > 0).then_some(count)
    }

    /// Copies up to `most` bytes of what is announced to memory of their own.
    pub(in crate::worker) fn pull_chunk(&mut self, key: StreamKey, most: usize) -> Option<Bytes> {
        let left = self.streams.get(key)?.reading.lent.as_ref()?.left();
        let length = left.min(most);
        let mut data = Vec::with_capacity(length);
        // SAFETY: the capacity is at least `length`.
        let count = unsafe { self.pull(key, data.as_mut_ptr(), length) };
        // SAFETY: `pull` wrote the first `count` bytes.
        unsafe { data.set_len(count) };
        (count > 0).then(|| data.into())
    }

    /// Copies bytes of what is announced to `room`; how many. Says so to the writer when it has all, or can have no more.
    ///
    /// # Safety
    /// `room` must be valid for writing `length` bytes, and nothing else may use them meanwhile.
    unsafe fn pull(&mut self, key: StreamKey, room: *mut u8, length: usize) -> usize {
        let Some(stream) = self.streams.get(key) else {
            return 0;
        };
        let (link, header) = (stream.link, stream.header());
        let Some(lent) = &mut stream.reading.lent else {
            return 0;
        };
        let length = length.min(lent.left());
        let mut count = 0;
        let result =
            match at(&mut self.movers.ctx.peers, link).and_then(|peer| peer.one_copy.as_ref()) {
                None => Err(Error::new(ErrorKind::ConnectionReset, "the link is gone")),
                Some(one_copy) => loop {
                    if count == length {
                        break Ok(());
                    }
                    let step = CHUNK.min(length - count);
                    // SAFETY: `count + step` is at most `length`, which the caller vouches for.
                    match unsafe { copy(one_copy, lent, room.add(count), step) } {
                        Ok(is_mapped) => {
                            self.movers.ctx.counts.copied(is_mapped, step);
                            count += step;
                            lent.done += step;
                        }
                        Err(error) => break Err(error),
                    }
                },
            };
        let taken = lent.done as u64;
        if let Err(error) = &result {
            tracing::debug!(target: "wharf::stream", %error, taken, "a buffer that the peer announced cannot be copied");
        }
        if result.is_err() || lent.left() == 0 {
            stream.reading.lent = None;
            self.movers
                .ctx
                .control(link, control::STREAM_TAKEN, header, &taken.to_le_bytes());
        }
        count
    }
}

/// Describes an owned buffer whose turn it is, if it is one that the reader can copy. The word is in use from here on.
pub(in crate::worker) fn announce(
    one_copy: &mut OneCopy,
    link: &mut dyn Link,
    lending: Lending,
    buffer: &Buffer,
) -> Option<StreamRts> {
    let length = buffer.len();
    let lends = plan::lends(lending, one_copy.cma.is_some(), length);
    if !(lends.mapped || lends.by_kernel) || buffer.list().is_some() {
        return None;
    }
    let mut rts = StreamRts {
        length: length as u64,
        address: 0,
        segment: 0,
        segment_offset: 0,
        word: control::NONE,
    };
    if lends.mapped
        && let Some(segment) = show(one_copy, link, buffer)
    {
        rts.segment = segment.id();
    }
    if lends.by_kernel {
        rts.address = buffer.address() as u64;
    }
    if rts.segment == 0 && rts.address == 0 {
        return None;
    }
    rts.word = one_copy.pair.acquire()?;
    Some(rts)
}

/// Copies the next `length` bytes; whether in memory that both map.
///
/// # Safety
/// `room` must be valid for writing as many, and nothing else may use them meanwhile.
pub(in crate::worker) unsafe fn copy(
    one_copy: &OneCopy,
    lent: &LentBuffer,
    room: *mut u8,
    length: usize,
) -> Result<bool> {
    let rts = &lent.rts;
    // Sums that were checked when it was announced.
    let (offset, address) = (
        rts.segment_offset + lent.done as u64,
        rts.address + lent.done as u64,
    );
    let remote = match one_copy.reach(rts.segment, offset, length, address, false) {
        Some(Remote::Address(_)) if rts.address == 0 => None,
        remote => remote,
    };
    let Some(remote) = remote else {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "no direct access to the peer's memory",
        ));
    };
    let pair = &one_copy.pair;
    pair.enter();
    let result = if !pair.stands(rts.word) {
        let text = "the writer has taken the buffer back";
        Err(Error::new(ErrorKind::StaleKey, text))
    } else {
        // SAFETY: the caller's promise here; `reach` has checked the range against a mapping.
        unsafe { remote.copy(one_copy.cma.as_ref(), 0, (room, length), true) }
    };
    pair.leave();
    result.map(|()| remote.is_mapped())
}
