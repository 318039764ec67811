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

use std::{collections::VecDeque, ops::Range, sync::Arc};

use crate::{
    error::{Error, ErrorKind},
    protocol::{
        control::{self, LayoutAnswer, LayoutHeader, Signal},
        layout::{BLOCK, Cursor, MAX_BLOCKS, Shape, Strided, encode_block},
    },
    types::OpKey,
    worker::rma::Target,
};

/// What a transport's own copies must be able to carry, so that there is room behind the descriptions. A send of more than it can fails.
pub(crate) const LEAST: usize = 256;
/// What goes in front of them at most.
pub(in crate::worker) const LAYOUT_PREFIX: usize = LayoutHeader::SIZE + Signal::SIZE;
/// Most bytes of packed runs in one message.
pub(crate) const PACK: usize = 64 << 10;
/// The kernel takes 0.4 µs for a block, whatever its length; a message 3 to 12 ns, and copies twice (November 2026). So it is asked when the blocks
/// are so few that waking the owner would cost as much, or so long that the copies do.
pub(in crate::worker) const FEW: u64 = 64;
pub(in crate::worker) const LONG: u64 = 32 << 10;
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
    pub(in crate::worker) asked: usize,
    /// What was asked for and has not come, as ranges of the stream: each is answered from its beginning on, without a gap.
    pub(in crate::worker) due: Vec<Range<usize>>,
    /// Of a part of a whole: where in the stream it begins.
    pub(in crate::worker) part: Option<usize>,
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
            cursor,
            part: Some(position),
            ..Self::new(self.target, self.length, self.shape.clone())
        }))
    }

    /// Where in the stream it begins.
    pub(in crate::worker) fn base(&self) -> usize {
        self.part.unwrap_or(0)
    }

    /// Describes into `to` what the next message is about: bytes of `part` from its beginning on, as many as `room` bytes of a message take, in which
    /// every byte of a block takes `each`. Returns the header, and the cursor behind those bytes. `None`: so far there were only empty blocks.
    pub(in crate::worker) fn describe(
        &mut self,
        part: Range<usize>,
        room: usize,
        each: usize,
        to: &mut Vec<u8>,
    ) -> Option<(LayoutHeader, Cursor)> {
        let (left, target) = (part.len(), &self.target);
        let mut header = LayoutHeader {
            generation: target.generation,
            position: (self.base() + part.start) as u64,
            length: left as u64,
            slot: target.slot,
            blocks: control::NONE,
            last: 0,
        };
        let mut cursor = self.cursor;
        to.clear();
        match &*self.shape {
            Shape::Strided(strided) => {
                to.extend_from_slice(&strided.shifted(target.offset).form());
                if each > 0 {
                    header.length = left.min(room - Strided::FORM) as u64;
                    cursor = strided.seek(header.position + header.length);
                }
            }
            Shape::Indexed(_) => {
                let (blocks, bytes) = self.list(&mut cursor, left, room, each, to);
                if bytes == 0 && left > 0 {
                    self.cursor = cursor;
                    return None;
                }
                header.blocks = blocks;
                header.length = bytes as u64;
            }
        }
        Some((header, cursor))
    }

    /// Lists blocks from the cursor on, within the same bounds. Returns their number and their bytes.
    fn list(
        &self,
        cursor: &mut Cursor,
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
            let Some((offset, block)) = self.shape.run(cursor) else {
                break;
            };
            let most = if each == 0 {
                u32::MAX as usize
            } else {
                room - used - BLOCK
            };
            let length = block.min(most as u64).min((left - bytes) as u64);
            if length > 0 {
                encode_block(self.target.offset.saturating_add(offset), length as u32, to);
                blocks += 1;
                bytes += length as usize;
            }
            self.shape.advance(cursor, length);
        }
        (blocks, bytes)
    }

    /// How many blocks `length` of its bytes are, about.
    pub(in crate::worker) fn blocks(&self, length: usize, total: u64) -> u64 {
        let blocks = self.shape.blocks();
        if self.part.is_none() || total == 0 {
            return blocks;
        }
        let part = u128::from(blocks) * length as u128 / u128::from(total);
        u64::try_from(part).unwrap_or(blocks).max(1)
    }
}

impl Requests {
    /// Whether another may be asked; else the operation waits until then.
    pub(in crate::worker) fn may_ask(&mut self, key: OpKey) -> bool {
        let may = self.asked < REQUESTS;
        if !may {
            self.waiting.push_back(key);
        }
        may
    }
}

/// Moves on by at most `most` bytes of the block at the cursor. Returns how many.
pub(in crate::worker) fn take(shape: &Shape, cursor: &mut Cursor, most: u64) -> u64 {
    let length = shape.run(cursor).map_or(0, |(_, length)| length.min(most));
    if length > 0 {
        shape.advance(cursor, length);
    }
    length
}

/// Where in its get an answer belongs, of which the stream's part from `base` on was asked for. A refusal belongs anywhere.
pub(in crate::worker) fn within(answer: &LayoutAnswer, base: usize) -> usize {
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
