//! What of byte streams goes out.
//!
//! # Safety
//! A zero-copy send lends the link memory that an entry of the table of operations owns (`Work::StreamOut`). The entry stays until
//! `Sink::sent` was called for it, or the link is dropped. So is a fragment of pinned memory (`Work::Frame`).
#![allow(unsafe_code)]

use std::{slice, task::Waker};

use crate::{
    error::Error,
    memory::Buffer,
    protocol::{control, thresholds::Lending},
    transport::{LinkAttributes, RawSlice, SendError},
    types::{LinkId, OpKey},
    worker::{
        core::Core,
        ctx::Ctx,
        metrics::Counted,
        movers::Movers,
        operations::{Operations, Work},
        peer::{OneCopy, Peer, at},
        pressure::Deferred,
        queue::{Class, Queued},
        step::{Step, lend, lent},
        stream::{
            Stream,
            broken::Broken,
            key::StreamKey,
            outgoing::{COPIED, GATHERED, LENT, Loan, Piece, SHORT, WriteEnd, Writing},
        },
        verbs::stream_lent::announce,
    },
};

impl Core {
    /// A stream that takes bytes, and its peer. `None`: [`Core::unwritable`] says why.
    ///
    /// Asked for each write, so always inlined, without what only a refusal needs.
    #[inline(always)]
    fn writable(&mut self, key: StreamKey) -> Option<(&mut Stream, &mut Peer)> {
        let stream = self.streams.get(key)?;
        if stream.write_error().is_some() {
            return None;
        }
        let peer = at(&mut self.movers.ctx.peers, stream.link)?;
        peer.is_open().then_some((stream, peer))
    }

    /// Why a stream takes no bytes.
    #[cold]
    fn unwritable(&mut self, key: StreamKey) -> Broken {
        let Some(stream) = self.streams.get(key) else {
            return Broken::Ended(crate::worker::send::closed());
        };
        if let Some(error) = stream.write_error() {
            return error;
        }
        let link = stream.link;
        let error = at(&mut self.movers.ctx.peers, link).and_then(|peer| peer.error());
        Broken::Ended(error.unwrap_or_else(crate::worker::send::closed))
    }

    /// Writes some of `data`. `Ok(0)`: no room now.
    #[inline]
    pub(crate) fn write_stream(&mut self, key: StreamKey, data: &[u8]) -> Result<usize, Broken> {
        // Its own progress must not wake it.
        if let Some(stream) = self.streams.get(key) {
            let waker = stream.writing.waker.take();
            self.movers.ctx.drop_later(waker);
        }
        for attempt in 0..2 {
            let Some((stream, peer)) = self.writable(key) else {
                return Err(self.unwritable(key));
            };
            let header = stream.header();
            let link_id = stream.link;
            let writing = &mut stream.writing;
            // A link that copies everything itself needs no gathering before it.
            let at_once = data.len() >= SHORT || peer.attributes.max_zcopy == 0;
            let longest = peer.attributes.max_bcopy.min(COPIED);
            if at_once && let Some(link) = straight(writing, peer) {
                let mut done = 0;
                while done < data.len() {
                    let room = usize::try_from(writing.window.left()).unwrap_or(usize::MAX);
                    let count = (data.len() - done).min(longest).min(room);
                    if count == 0 {
                        break;
                    }
                    let frame = &data[done..done + count];
                    match link.am_bcopy(control::STREAM_DATA, header, &[], frame) {
                        Ok(()) => {
                            done += count;
                            writing.window.take(count as u64);
                        }
                        Err(SendError::Full) => break,
                        Err(SendError::Failed(error)) => {
                            let broken = Broken::from(&error);
                            self.movers.ctx.failures.push((link_id, error));
                            return Err(broken);
                        }
                    }
                }
                return Ok(done);
            }
            if attempt == 0 && (at_once || writing.gathered + data.len() > GATHERED) {
                // What was gathered goes first.
                self.push_stream(key);
                continue;
            }
            let count = writing.gather(data);
            let enough = writing.gathered >= SHORT;
            if enough {
                self.push_stream(key);
            } else if let Some(stream) = self.streams.get(key) {
                self.movers.ctx.queue_stream(stream);
            }
            return Ok(count);
        }
        Ok(0)
    }

    /// As [`Core::write_stream`], of what leaves at once. `None`: it is not so, and nothing has happened.
    #[inline]
    pub(crate) fn write_stream_now(&mut self, key: StreamKey, data: &[u8]) -> Option<usize> {
        let (stream, peer) = self.writable(key)?;
        let header = stream.header();
        let writing = &mut stream.writing;
        let is_short = data.len() as u64 <= writing.window.left()
            && data.len() <= peer.attributes.max_bcopy.min(COPIED);
        let gathers = data.len() < SHORT && peer.attributes.max_zcopy != 0;
        if !is_short || gathers || !writing.waker.is_empty() {
            return None;
        }
        let link = straight(writing, peer)?;
        // What it could not take, and why, is found once more.
        link.am_bcopy(control::STREAM_DATA, header, &[], data)
            .ok()?;
        writing.window.take(data.len() as u64);
        Some(data.len())
    }

    /// Takes a buffer to be sent from where it is. The number by which [`Core::has_left`] knows it.
    pub(crate) fn write_stream_buffer(
        &mut self,
        key: StreamKey,
        buffer: Buffer,
    ) -> Result<u64, Broken> {
        let Some((stream, _)) = self.writable(key) else {
            return Err(self.unwritable(key));
        };
        let link = stream.link;
        stream.writing.taken += 1;
        let number = stream.writing.taken;
        if buffer.is_on_device() && !buffer.is_empty() {
            let op = self.movers.start_write(link, key, buffer);
            if let Some(stream) = self.streams.get(key)
                && stream.writing.failed.is_none()
            {
                let ready = false;
                stream.writing.pieces.push_back(Piece::Staged { op, ready });
                self.movers.let_writes(stream);
            }
            return Ok(number);
        }
        stream.writing.pieces.push_back(Piece::Owned {
            buffer,
            done: 0,
            loan: Loan::None,
        });
        self.push_stream(key);
        Ok(number)
    }

    /// Whether an owned buffer has left. `None`: not yet.
    pub(crate) fn has_left(&mut self, key: StreamKey, number: u64) -> Option<Result<(), Broken>> {
        let Some(stream) = self.streams.get(key) else {
            return Some(Err(Broken::Ended(crate::worker::send::closed())));
        };
        self.movers.ctx.drop_later(stream.writing.waker.take());
        if stream.writing.left >= number {
            return Some(Ok(()));
        }
        stream
            .write_error()
            .filter(|error| !matches!(error, Broken::Finished))
            .map(Err)
    }

    /// Whether all that was written has left; asks the link to take it.
    pub(crate) fn flush_stream(&mut self, key: StreamKey) -> Option<Result<(), Broken>> {
        for _ in 0..2 {
            let Some(stream) = self.streams.get(key) else {
                return Some(Err(Broken::Ended(crate::worker::send::closed())));
            };
            self.movers.ctx.drop_later(stream.writing.waker.take());
            match stream.write_error() {
                None | Some(Broken::Finished) => {}
                // Who reads no more may have read all of it.
                Some(Broken::Stopped) if !stream.writing.lost => {}
                Some(error) => return Some(Err(error)),
            }
            if stream.writing.pieces.is_empty() {
                return Some(Ok(()));
            }
            self.push_stream(key);
        }
        None
    }

    /// The end follows what was written.
    pub(crate) fn finish_stream(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get(key) else {
            return;
        };
        if stream.writing.end == WriteEnd::Open && stream.ended.is_none() {
            stream.writing.end = WriteEnd::Wanted;
            self.push_stream(key);
        }
    }

    /// Whether the end has left.
    pub(crate) fn has_finished(&mut self, key: StreamKey) -> Option<Result<(), Broken>> {
        let stream = self.streams.get(key)?;
        let writing = &mut stream.writing;
        self.movers.ctx.drop_later(writing.waker.take());
        if writing.end == WriteEnd::Sent {
            // What was thrown away has not left.
            let is_whole = !writing.lost && writing.failed.is_none();
            return Some(match stream.write_error() {
                Some(error @ Broken::Refused(_)) => Err(error),
                Some(error) if !is_whole => Err(error),
                _ => Ok(()),
            });
        }
        let error = stream.ended.as_ref()?;
        Some(Err(Broken::from(error)))
    }

    /// Leaves the waker of a write, flush or shutdown.
    pub(crate) fn wait_to_write(&mut self, key: StreamKey, waker: &Waker) {
        let Some(stream) = self.streams.get(key) else {
            return;
        };
        let before = stream.writing.waker.leave(waker);
        self.movers.ctx.drop_later(before);
        // A link that had no room will say when it has: that is this stream's turn then. One without window waits for that.
        self.movers.ctx.enqueue(stream);
    }

    /// Sends what can go now.
    fn push_stream(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get(key) {
            self.movers.ctx.enqueue(stream);
            let link = stream.link;
            self.pump(link);
        }
    }

    /// A stream's turn on its link: one frame.
    pub(crate) fn advance_stream(&mut self, key: StreamKey) -> Result<Step, SendError> {
        let Some(stream) = self.streams.get(key) else {
            return Ok(Step::Sent);
        };
        stream.writing.is_queued = false;
        let ctx = &mut self.movers.ctx;
        let Some(mut turn) = Turn::of(stream, &mut ctx.peers, &mut ctx.operations) else {
            return Ok(Step::Parked);
        };
        let writing = &mut stream.writing;
        match writing.pieces.front() {
            None if writing.end == WriteEnd::Wanted => {
                turn.link.am_short(control::STREAM_FIN, turn.header, &[])?;
                writing.end = WriteEnd::Sent;
                ctx.wakes.extend(writing.waker.take());
                self.settle_stream(key);
                return Ok(Step::Sent);
            }
            None => {}
            // The window that comes back gives it its turn again. Until then as much may be gathered as there is room for: what stood there while the link was
            // full has left in part.
            Some(_) if turn.window == 0 => {
                if writing.gathered < GATHERED {
                    ctx.wakes.extend(writing.waker.take());
                }
                return Ok(Step::Parked);
            }
            // What the reader says gives it its turn again.
            Some(Piece::Owned {
                loan: Loan::Out(_), ..
            }) => return Ok(Step::Parked),
            Some(Piece::Gathered { .. }) => writing.send_gathered(&mut turn)?,
            Some(Piece::Staged { .. }) => return self.movers.advance_write(stream),
            Some(Piece::Owned { .. }) => {
                if writing.announce(&mut turn)? {
                    return Ok(Step::Parked);
                }
                if let Some(buffer) = writing.send_owned(&mut turn)? {
                    ctx.deferred.push(Deferred::Buffer(buffer));
                    ctx.wakes.extend(writing.waker.take());
                }
            }
        }
        if writing.pieces.is_empty() {
            ctx.wakes.extend(writing.waker.take());
        }
        let step = Step::after(!writing.has_unsent());
        if matches!(writing.pieces.front(), Some(Piece::Staged { .. })) {
            self.movers.let_writes(stream);
        }
        Ok(step)
    }
}

/// A stream's turn on its link.
struct Turn<'a> {
    link: &'a mut Counted,
    link_id: LinkId,
    attributes: LinkAttributes,
    one_copy: Option<&'a mut OneCopy>,
    lending: Lending,
    operations: &'a mut Operations,
    /// Of its messages.
    header: u64,
    /// What the peer has room for.
    window: usize,
}

impl<'a> Turn<'a> {
    /// `None`: there is no link.
    fn of(
        stream: &Stream,
        peers: &'a mut [Option<Peer>],
        operations: &'a mut Operations,
    ) -> Option<Self> {
        let peer = at(peers, stream.link)?;
        Some(Self {
            link: peer.link.as_mut()?,
            link_id: stream.link,
            attributes: peer.attributes,
            one_copy: peer.one_copy.as_deref_mut(),
            lending: peer.lending,
            operations,
            header: stream.header(),
            window: usize::try_from(stream.writing.window.left()).unwrap_or(usize::MAX),
        })
    }

    /// Sends at most `length` bytes, of memory that `holder` holds: a long frame from where it is. Returns how many.
    ///
    /// # Safety
    /// They are there for as long as the holder is.
    unsafe fn send(
        &mut self,
        address: *const u8,
        length: usize,
        holder: impl FnOnce() -> Work,
    ) -> Result<usize, SendError> {
        let is_copied = self.attributes.max_zcopy == 0;
        let longest = match is_copied {
            true => self.attributes.max_bcopy.min(COPIED),
            false => self.attributes.max_zcopy.min(LENT),
        };
        let length = length.min(longest).min(self.window);
        if is_copied || length < SHORT {
            // SAFETY: the caller's promise; the holder is not gone before this call ends.
            let frame = unsafe { slice::from_raw_parts(address, length) };
            self.link
                .am_bcopy(control::STREAM_DATA, self.header, &[], frame)?;
        } else {
            let payload = RawSlice { address, length };
            let op = lend(self.operations, self.link_id, holder());
            // SAFETY: the entry `op` is the holder's, and stays until the link says that it has been sent, or is dropped.
            let sent = unsafe {
                self.link
                    .am_zcopy(control::STREAM_DATA, self.header, &[], payload, op.0)
            };
            lent(self.operations, op, sent)?;
        }
        Ok(length)
    }
}

/// One frame of the piece in front.
impl Writing {
    fn send_gathered(&mut self, turn: &mut Turn<'_>) -> Result<(), SendError> {
        let Some(Piece::Gathered { bytes, done }) = self.pieces.front_mut() else {
            return Ok(());
        };
        let longest = turn.attributes.max_bcopy.min(COPIED).min(turn.window);
        let count = (bytes.len() - *done).min(longest);
        let frame = &bytes[*done..*done + count];
        turn.link
            .am_bcopy(control::STREAM_DATA, turn.header, &[], frame)?;
        *done += count;
        self.window.take(count as u64);
        self.gathered -= count;
        if *done == bytes.len()
            && let Some(Piece::Gathered { mut bytes, .. }) = self.pieces.pop_front()
            && bytes.capacity() <= GATHERED
        {
            bytes.clear();
            self.spare = bytes;
        }
        Ok(())
    }

    /// Announces an owned buffer of which nothing has left, if the reader can copy it.
    fn announce(&mut self, turn: &mut Turn<'_>) -> Result<bool, SendError> {
        if let Some(Piece::Owned {
            buffer,
            done: 0,
            loan: loan @ Loan::None,
        }) = self.pieces.front_mut()
            && let Some(one_copy) = &mut turn.one_copy
            && let Some(rts) = announce(one_copy, &mut **turn.link, turn.lending, buffer)
        {
            let told = turn
                .link
                .am_short(control::STREAM_RTS, turn.header, &rts.encode());
            if let Err(error) = told {
                one_copy.pair.release(rts.word);
                return Err(error);
            }
            *loan = Loan::Out(rts.word);
            return Ok(true);
        }
        Ok(false)
    }

    /// Of an owned buffer: returned when all of it has left.
    fn send_owned(&mut self, turn: &mut Turn<'_>) -> Result<Option<Buffer>, SendError> {
        let Some(Piece::Owned { buffer, done, .. }) = self.pieces.front_mut() else {
            return Ok(None);
        };
        let data = &buffer.host()[*done..];
        let holder = || Work::StreamOut {
            _buffer: buffer.clone(),
        };
        // SAFETY: the buffer's own bytes.
        let count = unsafe { turn.send(data.as_ptr(), data.len(), holder) }?;
        let is_over = count == data.len();
        *done += count;
        self.window.take(count as u64);
        if is_over && let Some(Piece::Owned { buffer, .. }) = self.pieces.pop_front() {
            self.left += 1;
            return Ok(Some(buffer));
        }
        Ok(None)
    }
}

impl Core {
    /// The next bytes of a device's buffer are here.
    pub(crate) fn stream_write_ready(&mut self, key: StreamKey, write: OpKey) {
        let Some(stream) = self.streams.get(key) else {
            return;
        };
        for piece in &mut stream.writing.pieces {
            if let Piece::Staged { op, ready } = piece
                && *op == write
            {
                *ready = true;
            }
        }
        self.movers.let_writes(stream);
        self.movers.ctx.queue_stream(stream);
    }

    /// The bytes of a device's buffer cannot be had: the stream is broken.
    pub(crate) fn stream_write_failed(&mut self, key: StreamKey, error: &Error) {
        if let Some(stream) = self.streams.get(key) {
            stream.writing.failed = Some(error.clone());
            self.movers.ctx.wakes.extend(stream.writing.waker.take());
            self.movers.reset_stream(stream);
        }
        // Who had it may have gone before.
        self.settle_stream(key);
    }
}

impl Ctx {
    /// Gives a stream that can move a place in the queue of its link. `false`: it has one, or cannot.
    fn enqueue(&mut self, stream: &mut Stream) -> bool {
        if stream.writing.is_queued || !stream.writing.can_move() {
            return false;
        }
        stream.writing.is_queued = true;
        let Some(peer) = at(&mut self.peers, stream.link) else {
            return false;
        };
        peer.queue.push(Class::Normal, Queued::Stream(stream.key));
        true
    }

    /// Has a stream's bytes sent in the next pass.
    pub(in crate::worker) fn queue_stream(&mut self, stream: &mut Stream) {
        if self.enqueue(stream) {
            self.runnable.push_back(stream.link);
        }
    }

    /// Operations that have bytes for a stream, which is broken: they end.
    pub(in crate::worker) fn end_writes(&mut self, stream: &Stream) {
        for piece in &stream.writing.pieces {
            if let Piece::Staged { op, .. } = piece {
                self.end_write(*op);
            }
        }
    }
}

impl Movers {
    /// Has what a device's buffers in front have for the window copied out: of one after the other, so that what is there can leave.
    pub(in crate::worker) fn let_writes(&mut self, stream: &Stream) {
        let mut room = usize::try_from(stream.writing.window.left()).unwrap_or(usize::MAX);
        for piece in &stream.writing.pieces {
            let left = match piece {
                Piece::Staged { op, .. } => self.let_write(*op, room),
                // It takes no window, and what is behind it waits until it has been read.
                Piece::Owned {
                    loan: Loan::Out(_), ..
                } => None,
                Piece::Gathered { bytes, done } => room.checked_sub(bytes.len() - done),
                Piece::Owned { buffer, done, .. } => room.checked_sub(buffer.len() - done),
            };
            match left {
                Some(left) if left > 0 => room = left,
                _ => break,
            }
        }
    }

    /// A frame out of pinned memory, for the first piece of a stream that has window.
    fn advance_write(&mut self, stream: &mut Stream) -> Result<Step, SendError> {
        let Some(Piece::Staged { op, .. }) = stream.writing.pieces.front() else {
            return Ok(Step::Sent);
        };
        let (op, ctx) = (*op, &mut self.ctx);
        let Some((fragment, address, length)) = ctx.write_ready(op) else {
            stream.writing.mark_ready(false);
            return Ok(Step::Parked);
        };
        let Some(mut turn) = Turn::of(stream, &mut ctx.peers, &mut ctx.operations) else {
            return Ok(Step::Parked);
        };
        let holder = || Work::Frame {
            fragment: fragment.clone(),
        };
        // SAFETY: within the fragment, which is held here, and which no engine is copying into any more.
        let count = unsafe { turn.send(address, length, holder) }?;
        let all = self.write_sent(op, count);
        let ready = self.ctx.write_ready(op).is_some();
        let writing = &mut stream.writing;
        writing.window.take(count as u64);
        if all {
            writing.pieces.pop_front();
            writing.left += 1;
            self.ctx.wakes.extend(writing.waker.take());
            let step = Step::after(!writing.has_unsent());
            self.let_writes(stream);
            return Ok(step);
        }
        writing.mark_ready(ready);
        self.let_writes(stream);
        Ok(if ready { Step::More } else { Step::Parked })
    }
}

impl Stream {
    pub(in crate::worker) fn write_error(&self) -> Option<Broken> {
        if let Some(error) = &self.writing.failed {
            Some(Broken::Ended(error.clone()))
        } else if let Some(refused) = self.writing.stopped {
            Some(refused.map_or(Broken::Stopped, Broken::Refused))
        } else if let Some(error) = &self.ended {
            Some(Broken::from(error))
        } else if self.writing.end != WriteEnd::Open {
            Some(Broken::Finished)
        } else {
            None
        }
    }
}

/// The link, where what is written goes past everything: nothing of the stream waits, nor anything else of its peer.
#[inline(always)]
fn straight<'a>(writing: &Writing, peer: &'a mut Peer) -> Option<&'a mut Counted> {
    if !writing.pieces.is_empty() || !peer.queue.is_empty() {
        return None;
    }
    peer.link.as_mut()
}
