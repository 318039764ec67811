//! Puts and gets of several pieces here or several blocks there: lists of buffers, strided and indexed layouts.
//!
//! | way | how |
//! |---|---|
//! | mapped memory | this side copies run by run, 64 KiB or 1024 runs at a time |
//! | `cma` | as many runs with one system call, where blocks are few or long |
//! | messages, runs of 8 KiB and more | as ordinary puts, and as parts of the answer to a get |
//! | messages, shorter runs | packed: `PUT_LAYOUT` with the loops or a list of blocks in front, `LAYOUT_DATA` |
//! | device memory | in parts that stop in pinned fragments, each by one of these ways; device memory of the peer by its owner (`device/blocks.rs`) |
//!
//! A run is what is consecutive on both sides. Direct copies are in `spread.rs`, the owner's side in `blocks.rs`.
//!
//! # Safety
//! Zero-copy sends lend memory that the entry of the table owns, as in `send.rs`.
#![allow(unsafe_code)]

use std::{collections::VecDeque, ops::Range, sync::Arc};

use crate::{
    error::{Error, ErrorKind, Result},
    protocol::{
        control::{self, LayoutAnswer, LayoutHeader, PutHeader, Signal, StridedForm},
        layout::{BLOCK, Checking, Cursor, MAX_BLOCKS, Shape, encode_block},
    },
    transport::{Place, SendError, Zcopy},
    types::{LinkId, OpKey, Priority},
    worker::{
        copy::{Remote, Transfer},
        core::Core,
        deliver::violation,
        operations::{Get, Work},
        peer::at,
        rma::Target,
        send::{FRAGMENTS_IN_FLIGHT, Step, ZCOPY_FROM, fragment_size, transmit},
        signal::{put_prefix, put_prefix_size},
        spread::Spread,
    },
};

/// What a transport's own copies must be able to carry, so that there is room behind the descriptions. A send of more than it can fails.
pub(crate) const LEAST: usize = 256;
/// Most bytes of packed runs in one message.
pub(crate) const PACK: usize = 64 << 10;
/// The kernel takes 0.4 µs for a block, whatever its length; a message 3 to 12 ns, and copies twice (November 2026). So it is asked when the blocks
/// are so few that waking the owner would cost as much, or so long that the copies do.
const FEW: u64 = 64;
const LONG: u64 = 32 << 10;
/// Blocks that are looked at to cut off a part: about 10 µs.
const CUT: usize = 4096;
/// Requests of gets, and puts announced for device memory, that an endpoint may have unanswered at its peer. Part of the wire: the peer holds
/// their lists.
pub(crate) const REQUESTS: usize = 64;

/// What is left to do of a connection's requests.
#[derive(Default)]
pub(crate) struct Requests {
    /// Asked and not answered to the end.
    pub(crate) asked: usize,
    /// Of the peer, not answered to the end.
    pub(crate) serving: usize,
    /// Operations that wait until they may ask.
    pub(crate) waiting: VecDeque<OpKey>,
}

/// The far side of a put or get that is not one run there, or whose buffer is not one run here.
pub(crate) struct Plan {
    pub(crate) target: Target,
    /// Bytes of the region from the target's offset on.
    pub(crate) length: usize,
    pub(crate) shape: Arc<Shape>,
    /// Of what has been put in messages or asked for, or is in parts.
    pub(crate) cursor: Cursor,
    asked: usize,
    /// What was asked for and has not come, as ranges of the stream: each is answered from its beginning on, without a gap.
    due: Vec<Range<usize>>,
    /// Of a part of a whole: where in the stream it begins.
    part: Option<usize>,
    /// Of a put into device memory: a part is announced, and the owner has not said that it has it.
    pub(crate) is_unanswered: bool,
    /// Parts that were cut and have not begun to travel, by their place in the stream: not more than a pipe holds.
    cut: Vec<(usize, Cursor)>,
}

impl Plan {
    pub(crate) fn new(target: Target, length: usize, shape: Arc<Shape>) -> Self {
        let cursor = shape.cursor();
        Self {
            target,
            length,
            shape,
            cursor,
            asked: 0,
            due: Vec::new(),
            part: None,
            is_unanswered: false,
            cut: Vec::new(),
        }
    }

    /// Cuts off the next part, from `position` on: at most `most` bytes, and so many blocks as one turn may look at. Returns its bytes: none
    /// when all those blocks have none.
    pub(crate) fn cut(&mut self, position: usize, most: usize) -> usize {
        let start = self.cursor;
        let length = match &*self.shape {
            Shape::Strided(strided) => {
                self.cursor = strided.seek((position + most) as u64);
                most
            }
            shape => {
                let mut left = most as u64;
                if !start.between_blocks() {
                    left -= take(shape, &mut self.cursor, left);
                }
                if self.cursor.between_blocks() && left > 0 {
                    left -= shape.for_whole(&mut self.cursor, left, CUT, &mut |_, _| {});
                    left -= take(shape, &mut self.cursor, left);
                }
                most - left as usize
            }
        };
        if length > 0 {
            self.cut.push((position, start));
        }
        length
    }

    /// What becomes of the part that was cut at `position`, on its own.
    pub(crate) fn part(&mut self, position: usize) -> Option<Box<Self>> {
        let index = self.cut.iter().position(|(at, _)| *at == position)?;
        let (_, cursor) = self.cut.swap_remove(index);
        Some(Box::new(Self {
            target: self.target,
            length: self.length,
            shape: self.shape.clone(),
            cursor,
            asked: 0,
            due: Vec::new(),
            part: Some(position),
            is_unanswered: false,
            cut: Vec::new(),
        }))
    }

    /// Where in the stream it begins.
    fn base(&self) -> usize {
        self.part.unwrap_or(0)
    }

    /// How many blocks `length` of its bytes are, about.
    fn blocks(&self, length: usize, total: u64) -> u64 {
        let blocks = self.shape.blocks();
        if self.part.is_none() || total == 0 {
            return blocks;
        }
        let part = u128::from(blocks) * length as u128 / u128::from(total);
        u64::try_from(part).unwrap_or(blocks).max(1)
    }
}

/// Moves on by at most `most` bytes of the block at the cursor. Returns how many.
fn take(shape: &Shape, cursor: &mut Cursor, most: u64) -> u64 {
    let length = shape.run(cursor).map_or(0, |(_, length)| length.min(most));
    if length > 0 {
        shape.advance(cursor, length);
    }
    length
}

impl Core {
    /// Starts a put or get that has a plan.
    pub(crate) fn start_layout(&mut self, link: LinkId, work: Work, priority: Priority) -> OpKey {
        let key = self.operations.insert(Some(link), false, work);
        self.prioritize(key, priority);
        self.begin_layout(link, key);
        key
    }

    /// Checks what has to be checked, and starts to move.
    pub(crate) fn begin_layout(&mut self, link: LinkId, key: OpKey) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        let (plan, on_device, length, pull) = match &entry.work {
            Work::Put(put) => (
                &put.layout,
                put.buffer.is_on_device(),
                put.buffer.len(),
                false,
            ),
            Work::Get(get) => (
                &get.layout,
                get.buffer.is_on_device(),
                get.buffer.len(),
                true,
            ),
            _ => return,
        };
        let Some(plan) = plan else { return };
        let (target, shape, cursor) = (plan.target, plan.shape.clone(), plan.cursor);
        let (region, is_part) = (plan.length, plan.part.is_some());
        // Checked by this side's processor, and then moved by an engine, of this side or the peer's.
        let staged = length > 0 && (on_device || target.on_device && !pull);
        let blocks = match shape.total() {
            Some(Ok(total)) => plan.blocks(length, total),
            _ => 0,
        };
        let pieces = match &mut entry.work {
            _ if on_device => Vec::new(),
            Work::Put(put) => put.buffer.extents(),
            Work::Get(get) => get.buffer.extents(),
            _ => return,
        };
        let mut spread = Spread::new(pieces, shape, length).starting_at(cursor);
        let remote = match spread.shape.total() {
            None => {
                spread.checking = Some(Checking::default());
                Remote::Address(0)
            }
            Some(Err(error)) => return self.fail_operation(key, error),
            Some(Ok(total)) if !is_part && total != length as u64 => {
                return self.fail_operation(key, mismatch(length, total));
            }
            Some(Ok(_)) if staged => return self.begin_device_layout(link, key),
            Some(Ok(_)) => {
                let remote = at(&mut self.peers, link)
                    .filter(|_| length > 0)
                    .and_then(|peer| Self::direct_path(peer, &target, region))
                    .filter(|remote| {
                        matches!(remote, Remote::Mapped(..))
                            || blocks <= FEW
                            || length as u64 / blocks >= LONG
                    });
                match remote {
                    Some(remote) => remote,
                    None => return self.submit(link, key),
                }
            }
        };
        self.start_transfer(Transfer {
            link,
            op: key,
            peer_op: None,
            local: std::ptr::null_mut(),
            length,
            remote,
            pull,
            chunks: None,
            region: Some((target.slot, target.generation)),
            next: 0,
            spread: Some(spread),
        });
    }

    /// The next message of a put or get with a plan, or of the answer to one.
    pub(crate) fn advance_layout(&mut self, link: LinkId, key: OpKey) -> Result<Step, SendError> {
        match self.operations.get(key).map(|entry| &entry.work) {
            Some(Work::Put(put)) if put.announced => self.announce_layout(link, key),
            Some(Work::Put(_)) => self.put_layout_step(link, key),
            Some(Work::Get(_)) => self.get_layout_step(link, key),
            Some(Work::Serve(_)) => self.answer_step(link, key),
            _ => Ok(Step::Sent),
        }
    }

    fn put_layout_step(&mut self, link_id: LinkId, key: OpKey) -> Result<Step, SendError> {
        let Some(peer) = at(&mut self.peers, link_id) else {
            return Ok(Step::Sent);
        };
        let attributes = peer.attributes;
        let (Some(link), Some(entry)) = (peer.link.as_mut(), self.operations.get(key)) else {
            return Ok(Step::Parked);
        };
        if entry.in_flight >= FRAGMENTS_IN_FLIGHT {
            return Ok(Step::Parked);
        }
        let Work::Put(put) = &mut entry.work else {
            return Ok(Step::Sent);
        };
        let Some(plan) = &mut put.layout else {
            return Ok(Step::Sent);
        };
        let signal = put.signal.as_deref();
        let total = put.buffer.len();
        let left = total - put.next;
        // What is consecutive here.
        let source = match put.buffer.list() {
            Some(list) => list.run(put.next),
            None => put
                .buffer
                .as_slice()
                .and_then(|bytes| bytes.get(put.next..))
                .unwrap_or(&[]),
        };
        let mut cursor = plan.cursor;
        let (offset, block) = skip_empty(&plan.shape, &mut cursor);
        let run = source
            .len()
            .min(usize::try_from(block).unwrap_or(usize::MAX));
        let taken;
        if run >= ZCOPY_FROM {
            let data = &source[..run.min(fragment_size(
                &attributes,
                put_prefix_size(signal.is_some()),
            ))];
            taken = data.len();
            let header = PutHeader {
                generation: plan.target.generation,
                offset: plan.target.offset + offset,
                slot: plan.target.slot,
                last: u32::from(taken == left),
            };
            let (prefix, length) = put_prefix(header, signal);
            // SAFETY: `data` is owned by the entry, which stays while `in_flight` counts this.
            let sent = unsafe {
                transmit(
                    link,
                    &attributes,
                    control::PUT,
                    key.0,
                    &prefix[..length],
                    data,
                    key.0,
                )
            }?;
            plan.shape.advance(&mut cursor, taken as u64);
            entry.in_flight += u32::from(sent == Zcopy::Pending);
        } else {
            let scratch = &mut self.scratch;
            scratch.clear();
            let mut prefix = [0; LayoutHeader::SIZE + Signal::SIZE];
            let room = attributes.max_bcopy.clamp(LEAST, PACK) - prefix.len();
            let mut header = LayoutHeader {
                generation: plan.target.generation,
                position: (plan.base() + put.next) as u64,
                length: 0,
                slot: plan.target.slot,
                blocks: control::NONE,
                last: 0,
            };
            match &*plan.shape {
                Shape::Strided(strided) => {
                    scratch.extend_from_slice(&strided.shifted(plan.target.offset).form().encode());
                    taken = left.min(room - StridedForm::SIZE);
                    cursor = strided.seek((plan.base() + put.next + taken) as u64);
                }
                Shape::Indexed(_) => {
                    let (blocks, bytes) = list_part(
                        &plan.shape,
                        &mut cursor,
                        plan.target.offset,
                        left,
                        room,
                        1,
                        scratch,
                    );
                    if bytes < left && bytes == 0 {
                        plan.cursor = cursor;
                        return Ok(Step::More);
                    }
                    header.blocks = blocks;
                    taken = bytes;
                }
            }
            match put.buffer.list() {
                Some(list) => list.gather(put.next, taken, scratch),
                None => scratch.extend_from_slice(&source[..taken]),
            }
            header.length = taken as u64;
            let mut length = LayoutHeader::SIZE;
            header.last = u32::from(taken == left);
            if let Some(signal) = signal
                && taken == left
            {
                header.last = 3;
                prefix[length..].copy_from_slice(&signal.encode());
                length = prefix.len();
            }
            prefix[..LayoutHeader::SIZE].copy_from_slice(&header.encode());
            link.am_bcopy(control::PUT_LAYOUT, key.0, &prefix[..length], scratch)?;
        }
        plan.cursor = cursor;
        put.next += taken;
        if put.next == total {
            self.put_progress(key);
            return Ok(Step::Sent);
        }
        Ok(Step::More)
    }

    fn get_layout_step(&mut self, link_id: LinkId, key: OpKey) -> Result<Step, SendError> {
        let Some(peer) = at(&mut self.peers, link_id) else {
            return Ok(Step::Sent);
        };
        let room = peer.attributes.max_bcopy.clamp(LEAST, PACK) - LayoutHeader::SIZE;
        let (Some(link), Some(entry)) = (peer.link.as_mut(), self.operations.get(key)) else {
            return Ok(Step::Parked);
        };
        let Work::Get(get) = &mut entry.work else {
            return Ok(Step::Sent);
        };
        let total = get.buffer.len();
        let Some(plan) = &mut get.layout else {
            return Ok(Step::Sent);
        };
        let requests = peer.requests.get_or_insert_default();
        if requests.asked >= REQUESTS {
            requests.waiting.push_back(key);
            return Ok(Step::Parked);
        }
        let left = total - plan.asked;
        let mut header = LayoutHeader {
            generation: plan.target.generation,
            position: (plan.base() + plan.asked) as u64,
            length: left as u64,
            slot: plan.target.slot,
            blocks: control::NONE,
            last: 0,
        };
        let mut cursor = plan.cursor;
        let scratch = &mut self.scratch;
        scratch.clear();
        match &*plan.shape {
            Shape::Strided(strided) => {
                scratch.extend_from_slice(&strided.shifted(plan.target.offset).form().encode());
            }
            Shape::Indexed(_) => {
                let (blocks, bytes) = list_part(
                    &plan.shape,
                    &mut cursor,
                    plan.target.offset,
                    left,
                    room,
                    0,
                    scratch,
                );
                if bytes < left && bytes == 0 {
                    plan.cursor = cursor;
                    return Ok(Step::More);
                }
                header.blocks = blocks;
                header.length = bytes as u64;
            }
        }
        link.am_bcopy(control::GET_LAYOUT, key.0, &header.encode(), scratch)?;
        requests.asked += 1;
        plan.cursor = cursor;
        let begin = plan.asked;
        plan.asked += header.length as usize;
        plan.due.push(begin..plan.asked);
        Ok(if plan.asked == total {
            Step::Sent
        } else {
            Step::More
        })
    }

    /// A part of the answer to a get.
    pub(crate) fn layout_data(&mut self, link: LinkId, key: OpKey, body: &[u8]) -> Result<()> {
        let answer = LayoutAnswer::decode(body)?;
        let data = body.get(LayoutAnswer::SIZE..).unwrap_or(&[]);
        self.answered(link, &answer)?;
        let Some((at, get)) = self.layout_landing(link, key, &answer, data.len())? else {
            return Ok(());
        };
        match get.buffer.list_mut() {
            Some(list) => list.scatter(at, data),
            None => {
                let bytes = get.buffer.as_mut_slice().unwrap_or(&mut []);
                if let Some(to) = bytes.get_mut(at..at + data.len()) {
                    to.copy_from_slice(data);
                }
            }
        }
        if answer.status == 2 {
            self.fail_operation(key, control::error_of(&answer.code.to_le_bytes()));
        } else if get.got == get.buffer.len() {
            self.copied(key, Ok(()));
        }
        Ok(())
    }

    /// Where a long part goes.
    pub(crate) fn place_layout_data(
        &mut self,
        link: LinkId,
        key: OpKey,
        prefix: &[u8],
        length: usize,
    ) -> Result<Place> {
        let answer = LayoutAnswer::decode(prefix)?;
        let Some(Work::Get(get)) = self
            .operations
            .get(key)
            .filter(|entry| entry.link == Some(link))
            .map(|entry| &mut entry.work)
        else {
            // Of one that has ended, or never was: its end is taken note of, its bytes are not kept.
            self.answered(link, &answer)?;
            return Ok(Place::Discard);
        };
        let base = get.layout.as_ref().map_or(0, |plan| plan.base());
        let at = within(&answer, base);
        let run = match get.buffer.list_mut() {
            Some(list) => list.run(at),
            None => get
                .buffer
                .as_mut_slice()
                .and_then(|bytes| bytes.get_mut(at..))
                .unwrap_or(&mut []),
        };
        if run.len() < length {
            return Ok(Place::Whole);
        }
        let address = run.as_mut_ptr();
        self.answered(link, &answer)?;
        Ok(match self.layout_landing(link, key, &answer, length)? {
            Some(_) => self.lend(key, address),
            None => Place::Discard,
        })
    }

    /// Counts bytes that came for a get, if it is still there and they are its.
    fn layout_landing(
        &mut self,
        link: LinkId,
        key: OpKey,
        answer: &LayoutAnswer,
        length: usize,
    ) -> Result<Option<(usize, &mut Get)>> {
        let Some(entry) = self
            .operations
            .get(key)
            .filter(|entry| entry.link == Some(link) && entry.outcome.is_none())
        else {
            return Ok(None);
        };
        if entry.copies > 0 {
            return Err(violation("blocks for what this side copies itself"));
        }
        let Work::Get(get) = &mut entry.work else {
            return Err(violation("blocks for what asked for none"));
        };
        let Some(plan) = &mut get.layout else {
            return Err(violation("blocks for what asked for none"));
        };
        let at = within(answer, plan.base());
        if answer.status == 2 {
            // A refusal, of whichever request.
            return match length {
                0 => Ok(Some((at, get))),
                _ => Err(violation("a refusal with bytes")),
            };
        }
        let due = plan.due.iter().position(|due| due.start == at);
        let Some((index, due)) = due.and_then(|index| Some((index, plan.due.get_mut(index)?)))
        else {
            return Err(violation("bytes that were not asked for"));
        };
        if length > due.len() || answer.status == 1 && length < due.len() {
            return Err(violation("bytes that were not asked for"));
        }
        due.start += length;
        if answer.status == 1 {
            plan.due.swap_remove(index);
        }
        get.got += length;
        Ok(Some((at, get)))
    }

    /// After the last part of an answer the next request may go.
    fn answered(&mut self, link: LinkId, answer: &LayoutAnswer) -> Result<()> {
        if answer.status == 0 {
            return Ok(());
        }
        let Some(peer) = self.peer(link) else {
            return Ok(());
        };
        peer.requests().asked = peer
            .requests()
            .asked
            .checked_sub(1)
            .ok_or_else(|| violation("an answer to no request"))?;
        self.ask_next(link);
        Ok(())
    }

    /// The owner has answered the part of a put that was announced. `false`: none was.
    pub(crate) fn announcement_answered(&mut self, link: LinkId, key: OpKey) -> bool {
        let asked = match self.operations.get(key).map(|entry| &mut entry.work) {
            Some(Work::Put(put)) => put.layout.as_mut().map(|plan| &mut plan.is_unanswered),
            _ => None,
        };
        if !asked.is_some_and(std::mem::take) {
            return false;
        }
        if let Some(peer) = self.peer(link) {
            peer.requests().asked = peer.requests().asked.saturating_sub(1);
        }
        self.ask_next(link);
        true
    }

    /// A place among the requests is free.
    fn ask_next(&mut self, link: LinkId) {
        while let Some(key) = self
            .peer(link)
            .and_then(|peer| peer.requests().waiting.pop_front())
        {
            if self
                .operations
                .get(key)
                .is_some_and(|entry| entry.outcome.is_none())
            {
                self.submit(link, key);
                break;
            }
        }
    }
}

/// Where in its get an answer belongs, of which the stream's part from `base` on was asked for. A refusal belongs anywhere.
fn within(answer: &LayoutAnswer, base: usize) -> usize {
    if answer.status == 2 {
        return 0;
    }
    let at = answer.position.checked_sub(base as u64);
    at.and_then(|at| usize::try_from(at).ok())
        .unwrap_or(usize::MAX)
}

#[cold]
pub(crate) fn mismatch(length: usize, total: u64) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("{length} bytes for a layout of {total}"),
    )
}

/// The run at the cursor, past blocks of no bytes as far as one turn goes.
pub(crate) fn skip_empty(shape: &Shape, cursor: &mut Cursor) -> (u64, u64) {
    for _ in 0..MAX_BLOCKS {
        match shape.run(cursor) {
            Some((_, 0)) => shape.advance(cursor, 0),
            Some(run) => return run,
            None => break,
        }
    }
    (0, 0)
}

/// Lists blocks from the cursor on, as many as `left` bytes and a message of `room` bytes take, in which every byte of a block takes `each`.
/// Returns their number and their bytes.
pub(crate) fn list_part(
    shape: &Shape,
    cursor: &mut Cursor,
    base: u64,
    left: usize,
    room: usize,
    each: usize,
    to: &mut Vec<u8>,
) -> (u32, usize) {
    let (mut blocks, mut bytes) = (0, 0);
    for _ in 0..MAX_BLOCKS {
        if bytes == left {
            break;
        }
        let used = to.len() + bytes * each;
        if used + BLOCK + each > room {
            break;
        }
        let Some((offset, block)) = shape.run(cursor) else {
            break;
        };
        let most = if each == 0 {
            u32::MAX as usize
        } else {
            room - used - BLOCK
        };
        let length = block.min(most as u64).min((left - bytes) as u64);
        if length > 0 {
            encode_block(base.saturating_add(offset), length as u32, to);
            blocks += 1;
            bytes += length as usize;
        }
        shape.advance(cursor, length);
    }
    (blocks, bytes)
}
