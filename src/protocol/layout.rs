//! Layouts: blocks of a remote region that one put or get touches, in an order. The bytes of all blocks, one behind the other, are the
//! layout's stream; a position in it is a count of bytes.
//!
//! Strided layouts are three nested loops over a block; indexed ones are a list that is shared with the program and never copied.
//! Tests: below, and `tests/api/layout.rs`.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use crate::{
    error::{Error, ErrorKind, Result},
    protocol::control::error_short,
};

/// Consecutive bytes of a remote region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Block {
    /// Offset in the region, in bytes.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// A list of blocks, shared and never copied. Made by `From` of `Vec<Block>`, `Arc<[Block]>`, `&'static [Block]` and arrays.
#[derive(Clone)]
pub struct Blocks(Held);

#[derive(Clone)]
enum Held {
    Shared(Arc<[Block]>),
    Owned(Arc<Vec<Block>>),
    Static(&'static [Block]),
}

impl Blocks {
    /// The blocks.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[Block] {
        match &self.0 {
            Held::Shared(blocks) => blocks,
            Held::Owned(blocks) => blocks,
            Held::Static(blocks) => blocks,
        }
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blocks({})", self.as_slice().len())
    }
}

impl From<Vec<Block>> for Blocks {
    fn from(blocks: Vec<Block>) -> Self {
        Self(Held::Owned(Arc::new(blocks)))
    }
}

impl From<Arc<[Block]>> for Blocks {
    fn from(blocks: Arc<[Block]>) -> Self {
        Self(Held::Shared(blocks))
    }
}

impl From<&'static [Block]> for Blocks {
    fn from(blocks: &'static [Block]) -> Self {
        Self(Held::Static(blocks))
    }
}

impl<const N: usize> From<[Block; N]> for Blocks {
    fn from(blocks: [Block; N]) -> Self {
        Vec::from(blocks).into()
    }
}

/// One of the nested loops of a strided layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dim {
    pub(crate) stride: u64,
    pub(crate) count: u64,
}

impl Dim {
    const ONCE: Self = Self {
        stride: 0,
        count: 1,
    };
}

/// A block, repeated by three nested loops, the innermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strided {
    pub(crate) offset: u64,
    pub(crate) block: u64,
    pub(crate) dims: [Dim; 3],
}

impl Strided {
    pub(crate) fn new(offset: u64, block: u64, stride: u64, count: u64) -> Self {
        let dims = [Dim { stride, count }, Dim::ONCE, Dim::ONCE];
        Self {
            offset,
            block,
            dims,
        }
    }

    /// The whole of it repeated; `None` when all loops are taken.
    pub(crate) fn repeated(mut self, stride: u64, count: u64) -> Option<Self> {
        let free = self
            .dims
            .iter_mut()
            .skip(1)
            .find(|dim| **dim == Dim::ONCE)?;
        *free = Dim { stride, count };
        Some(self)
    }

    /// Bytes of the stream, and the end of the last byte in the region. `None` when a number overflows.
    pub(crate) fn extent(&self) -> Option<(u64, u64)> {
        let mut total = self.block;
        let mut end = self.offset.checked_add(self.block)?;
        for dim in &self.dims {
            total = total.checked_mul(dim.count)?;
            end = end.checked_add(dim.stride.checked_mul(dim.count.saturating_sub(1))?)?;
        }
        let end = if total == 0 { 0 } else { end };
        (total <= isize::MAX as u64).then_some((total, end))
    }

    /// The same bytes in the same order, in blocks as long as they can be.
    fn joined(mut self) -> Self {
        for _ in 0..self.dims.len() {
            let [a, b, c] = self.dims;
            if a.count != 1 && a.stride != self.block {
                break;
            }
            // No more than the stream, whose bytes were counted.
            self.block = self.block.saturating_mul(a.count);
            self.dims = [b, c, Dim::ONCE];
        }
        self
    }

    /// Moved by `offset` towards the end of the region.
    pub(crate) fn shifted(mut self, offset: u64) -> Self {
        // Checked by the owner, against its own bounds.
        self.offset = self.offset.saturating_add(offset);
        self
    }

    /// Bytes of a form.
    pub(crate) const FORM: usize = 64;

    /// As a peer is told it: the offset of the first block in the region, a block's bytes, and stride and count of each loop, the innermost first.
    pub(crate) fn form(&self) -> [u8; Self::FORM] {
        let loops = self.dims.iter().flat_map(|dim| [dim.stride, dim.count]);
        let words = [self.offset, self.block].into_iter().chain(loops);
        let mut form = [0; Self::FORM];
        for (place, word) in form.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        form
    }

    /// Reads a form from the front of `bytes`.
    /// Errors: `Protocol`: there are too few.
    pub(crate) fn of(bytes: &[u8]) -> Result<Self> {
        let form = bytes.first_chunk::<{ Self::FORM }>();
        let (words, _) = form
            .ok_or_else(|| error_short("StridedForm"))?
            .as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        Ok(Self {
            offset: word(0),
            block: word(1),
            dims: [2, 4, 6].map(|at| Dim {
                stride: word(at),
                count: word(at + 1),
            }),
        })
    }
}

/// Blocks in any order.
#[derive(Debug)]
pub(crate) struct Indexed {
    pub(crate) blocks: Blocks,
    /// Bytes of the region part that all of them lie in.
    limit: u64,
    /// Bytes of the stream, or the first block that leaves the region; set by the first use.
    checked: OnceLock<std::result::Result<u64, usize>>,
}

/// How far the check of an indexed layout is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Checking {
    next: usize,
    total: u64,
}

impl Indexed {
    pub(crate) fn new(blocks: Blocks, limit: u64) -> Self {
        Self {
            blocks,
            limit,
            checked: OnceLock::new(),
        }
    }

    /// Blocks whose bounds are somebody else's affair, with this many bytes.
    pub(crate) fn trusted(blocks: Vec<Block>, total: u64) -> Self {
        Self {
            blocks: blocks.into(),
            limit: u64::MAX,
            checked: OnceLock::from(Ok(total)),
        }
    }

    /// Checks about `budget` more blocks. `true`: the verdict is known.
    pub(crate) fn check(&self, at: &mut Checking, budget: usize) -> bool {
        if self.checked.get().is_some() {
            return true;
        }
        let blocks = self.blocks.as_slice();
        let end = blocks.len().min(at.next.saturating_add(budget));
        let part = blocks.get(at.next..end).unwrap_or(&[]);
        let mut total = at.total;
        for (index, block) in part.iter().enumerate() {
            let inside = (block.offset as u64)
                .checked_add(block.len as u64)
                .is_some_and(|end| end <= self.limit);
            // A layout may name the same bytes again and again.
            let sum = total
                .checked_add(block.len as u64)
                .filter(|sum| *sum <= isize::MAX as u64);
            match sum {
                Some(sum) if inside => total = sum,
                _ => {
                    let _ = self.checked.set(Err(at.next + index));
                    return true;
                }
            }
        }
        *at = Checking { next: end, total };
        if end == blocks.len() {
            let _ = self.checked.set(Ok(total));
        }
        end == blocks.len()
    }

    fn total(&self) -> Option<Result<u64>> {
        Some(match self.checked.get()? {
            Ok(total) => Ok(*total),
            Err(index) => {
                let Block { offset, len } = self
                    .blocks
                    .as_slice()
                    .get(*index)
                    .copied()
                    .unwrap_or_default();
                Err(Error::new(
                    ErrorKind::OutOfBounds,
                    format!(
                        "block {index} ({len} bytes at {offset}) leaves the region of {} bytes",
                        self.limit
                    ),
                ))
            }
        })
    }
}

/// What a layout is.
#[derive(Debug)]
pub(crate) enum Shape {
    /// Its extent was checked.
    Strided(Strided),
    Indexed(Indexed),
}

/// A place in the stream of a layout.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    /// Which block, of a list.
    index: usize,
    /// Bytes of the block that lie behind.
    within: u64,
    /// Turns of the loops.
    turns: [u64; 3],
    /// Offset of the block, of loops.
    start: u64,
}

impl Cursor {
    /// Whether it is at the beginning of a block.
    #[inline]
    pub(crate) fn between_blocks(&self) -> bool {
        self.within == 0
    }
}

impl Shape {
    /// Bytes of memory that its list takes, where it is one.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Strided(_) => 0,
            Self::Indexed(indexed) => size_of_val(indexed.blocks.as_slice()),
        }
    }

    /// One block.
    pub(crate) fn block(length: u64) -> Self {
        Self::Strided(Strided::new(0, length, 0, 1))
    }

    /// Bytes of the stream; `None` as long as the blocks are not checked.
    pub(crate) fn total(&self) -> Option<Result<u64>> {
        match self {
            Self::Strided(strided) => {
                Some(strided.extent().map(|(total, _)| total).ok_or_else(outside))
            }
            Self::Indexed(indexed) => indexed.total(),
        }
    }

    /// How many blocks. Empty ones may be more than can be counted.
    pub(crate) fn blocks(&self) -> u64 {
        match self {
            Self::Strided(strided) => {
                let counts = strided.dims.iter().map(|dim| dim.count);
                counts.fold(1, u64::saturating_mul)
            }
            Self::Indexed(indexed) => indexed.blocks.as_slice().len() as u64,
        }
    }

    /// The beginning of the stream.
    pub(crate) fn cursor(&self) -> Cursor {
        let start = match self {
            Self::Strided(strided) => strided.offset,
            Self::Indexed(_) => 0,
        };
        Cursor {
            start,
            ..Cursor::default()
        }
    }

    /// What is left of the block at the cursor: offset and bytes, which may be none. `None` at the end.
    #[inline]
    pub(crate) fn run(&self, cursor: &Cursor) -> Option<(u64, u64)> {
        match self {
            Self::Strided(strided) => (cursor.turns[2] < strided.dims[2].count).then(|| {
                (
                    cursor.start.wrapping_add(cursor.within),
                    strided.block - cursor.within,
                )
            }),
            Self::Indexed(indexed) => indexed.blocks.as_slice().get(cursor.index).map(|block| {
                (
                    (block.offset as u64).wrapping_add(cursor.within),
                    block.len as u64 - cursor.within,
                )
            }),
        }
    }

    /// Moves on by whole blocks, at most about `most` of `room` bytes, and tells each: offset and bytes. Returns the bytes. The cursor is at
    /// the beginning of a block.
    #[inline]
    pub(crate) fn for_whole(
        &self,
        cursor: &mut Cursor,
        room: u64,
        most: usize,
        act: &mut impl FnMut(u64, u64),
    ) -> u64 {
        match self {
            Self::Strided(strided) => {
                let (block, Dim { stride, count }) = (strided.block, strided.dims[0]);
                let fit = room.checked_div(block).unwrap_or(0).min(most as u64);
                let mut done = 0;
                while done < fit {
                    let row = (count - cursor.turns[0]).min(fit - done);
                    let mut offset = cursor.start;
                    for _ in 0..row {
                        act(offset, block);
                        offset = offset.wrapping_add(stride);
                    }
                    cursor.turns[0] += row - 1;
                    cursor.start = offset.wrapping_sub(stride);
                    strided.next(cursor);
                    done += row;
                }
                done * block
            }
            Self::Indexed(indexed) => {
                let mut left = room;
                let blocks = indexed.blocks.as_slice().get(cursor.index..).unwrap_or(&[]);
                for block in blocks.iter().take(most) {
                    if block.len as u64 > left {
                        break;
                    }
                    act(block.offset as u64, block.len as u64);
                    left -= block.len as u64;
                    cursor.index += 1;
                }
                room - left
            }
        }
    }

    /// Moves on by at most what [`Shape::run`] said.
    #[inline]
    pub(crate) fn advance(&self, cursor: &mut Cursor, bytes: u64) {
        cursor.within += bytes;
        match self {
            Self::Strided(strided) => {
                if cursor.within >= strided.block {
                    cursor.within = 0;
                    strided.next(cursor);
                }
            }
            Self::Indexed(indexed) => {
                let length = indexed
                    .blocks
                    .as_slice()
                    .get(cursor.index)
                    .map_or(0, |block| block.len);
                if cursor.within >= length as u64 {
                    cursor.within = 0;
                    cursor.index += 1;
                }
            }
        }
    }
}

impl Strided {
    /// The next block.
    #[inline]
    fn next(&self, cursor: &mut Cursor) {
        for (at, dim) in self.dims.iter().enumerate() {
            cursor.turns[at] += 1;
            cursor.start = cursor.start.wrapping_add(dim.stride);
            if at == 2 || cursor.turns[at] < dim.count {
                return;
            }
            cursor.turns[at] = 0;
            let back = dim.stride.wrapping_mul(dim.count);
            cursor.start = cursor.start.wrapping_sub(back);
        }
    }

    /// The place `position` bytes into the stream, which must be within it.
    pub(crate) fn seek(&self, position: u64) -> Cursor {
        let mut cursor = Cursor {
            start: self.offset,
            ..Cursor::default()
        };
        if self.block == 0 {
            return cursor;
        }
        let mut block = position / self.block;
        cursor.within = position % self.block;
        for (at, dim) in self.dims.iter().enumerate() {
            let turn = if at < 2 && dim.count > 0 {
                let turn = block % dim.count;
                block /= dim.count;
                turn
            } else {
                block
            };
            cursor.turns[at] = turn;
            cursor.start = cursor.start.wrapping_add(turn.wrapping_mul(dim.stride));
        }
        cursor
    }
}

/// A part of a layout's stream that is read or written in any order. Blocks that follow each other are one.
#[derive(Debug)]
pub(crate) struct Places {
    shape: Shape,
    /// Where in the stream of loops the part begins.
    base: u64,
    /// Ends of the blocks of a list, in its stream.
    ends: Vec<u64>,
}

impl Places {
    /// Bytes of memory that its list takes.
    pub(crate) fn weight(&self) -> usize {
        self.shape.weight() + size_of_val(&*self.ends)
    }

    /// What lies behind `position` in the stream of loops; a list is as long as the part.
    pub(crate) fn new(shape: Shape, position: u64) -> Self {
        let indexed = match shape {
            Shape::Strided(strided) => {
                return Self {
                    shape: Shape::Strided(strided.joined()),
                    base: position,
                    ends: Vec::new(),
                };
            }
            Shape::Indexed(indexed) => indexed,
        };
        let (mut blocks, mut ends): (Vec<Block>, Vec<u64>) = (Vec::new(), Vec::new());
        let mut total = 0_u64;
        for block in indexed.blocks.as_slice() {
            if block.len == 0 {
                continue;
            }
            total = total.saturating_add(block.len as u64);
            match (blocks.last_mut(), ends.last_mut()) {
                (Some(last), Some(end))
                    if last.offset.checked_add(last.len) == Some(block.offset) =>
                {
                    last.len += block.len;
                    *end = total;
                }
                _ => {
                    blocks.push(*block);
                    ends.push(total);
                }
            }
        }
        Self {
            shape: Shape::Indexed(Indexed::trusted(blocks, total)),
            base: 0,
            ends,
        }
    }

    /// Offset of the byte at `position` in the part, and the bytes that follow in one run. `None` behind the end.
    pub(crate) fn run(&self, position: u64) -> Option<(u64, u64)> {
        match &self.shape {
            Shape::Strided(strided) => {
                let cursor = strided.seek(self.base.checked_add(position)?);
                self.shape.run(&cursor)
            }
            Shape::Indexed(indexed) => {
                let index = self.ends.partition_point(|end| *end <= position);
                let block = indexed.blocks.as_slice().get(index)?;
                let left = self.ends.get(index)? - position;
                Some(((block.offset + block.len) as u64 - left, left))
            }
        }
    }
}

/// Bytes of a block in a list on the wire: `u64` offset, `u32` length.
pub(crate) const BLOCK: usize = 12;

/// Most blocks of one message.
pub(crate) const MAX_BLOCKS: usize = 2048;

pub(crate) fn encode_block(offset: u64, length: u32, to: &mut Vec<u8>) {
    let mut block = [0; BLOCK];
    block[..8].copy_from_slice(&offset.to_le_bytes());
    block[8..].copy_from_slice(&length.to_le_bytes());
    to.extend_from_slice(&block);
}

/// The blocks of a list as it came, each within its `u32`. Nothing is checked.
pub(crate) fn decode_blocks(list: &[u8]) -> impl Iterator<Item = (u64, u64)> + '_ {
    list.chunks_exact(BLOCK).map(|block| {
        let (offset, length) = block.split_at(8);
        (
            u64::from_le_bytes(offset.try_into().unwrap_or_default()),
            u64::from(u32::from_le_bytes(length.try_into().unwrap_or_default())),
        )
    })
}

/// Splits a list of `count` blocks off the front of a body.
pub(crate) fn split_blocks(body: &[u8], count: u32) -> Result<(&[u8], &[u8])> {
    let count = count as usize;
    if count > MAX_BLOCKS {
        return Err(Error::new(ErrorKind::Protocol, "too long a list of blocks"));
    }
    body.split_at_checked(count * BLOCK)
        .ok_or_else(|| error_short("list of blocks"))
}

#[cold]
pub(crate) fn outside() -> Error {
    Error::new(ErrorKind::OutOfBounds, "a layout leaves its region")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn runs(shape: &Shape) -> Vec<(u64, u64)> {
        let mut cursor = shape.cursor();
        let mut found = Vec::new();
        while let Some((offset, length)) = shape.run(&cursor) {
            found.push((offset, length));
            shape.advance(&mut cursor, length);
        }
        found
    }

    #[test]
    fn empty_blocks_may_be_more_than_can_be_counted() {
        let strided = Strided::new(0, 0, 0, u64::MAX).repeated(0, 2);
        let strided = strided.expect("a second loop");
        assert_eq!(strided.extent(), Some((0, 0)), "a region lets it through");
        let shape = Shape::Strided(strided);
        assert_eq!(shape.blocks(), u64::MAX);
    }

    fn dims() -> impl Strategy<Value = Strided> {
        let dim = (0..40_u64, 1..6_u64);
        (0..10_u64, 1..9_u64, dim.clone(), dim.clone(), dim).prop_map(|(offset, block, a, b, c)| {
            let mut strided = Strided::new(offset, block, a.0, a.1);
            strided.dims[1] = Dim {
                stride: b.0,
                count: b.1,
            };
            strided.dims[2] = Dim {
                stride: c.0,
                count: c.1,
            };
            strided
        })
    }

    proptest! {
        #[test]
        fn loops_are_nested_loops(strided in dims()) {
            let [a, b, c] = strided.dims;
            let mut wanted = Vec::new();
            for k in 0..c.count {
                for j in 0..b.count {
                    for i in 0..a.count {
                        let offset = strided.offset + i * a.stride + j * b.stride + k * c.stride;
                        wanted.push((offset, strided.block));
                    }
                }
            }
            let (total, end) = strided.extent().unwrap();
            prop_assert_eq!(total, wanted.iter().map(|run| run.1).sum::<u64>());
            prop_assert_eq!(end, wanted.iter().map(|run| run.0 + run.1).max().unwrap());
            prop_assert_eq!(runs(&Shape::Strided(strided)), wanted);
            let form = strided.form();
            prop_assert_eq!(Strided::of(&form).unwrap(), strided);
            for length in 0..form.len() {
                prop_assert_eq!(Strided::of(&form[..length]).unwrap_err().kind(), ErrorKind::Protocol);
            }
        }

        #[test]
        fn seeking_is_walking(strided in dims(), part in 0..1000_u64) {
            let (total, _) = strided.extent().unwrap();
            let position = part * (total - 1) / 1000;
            let shape = Shape::Strided(strided);
            let mut cursor = shape.cursor();
            let mut left = position;
            while left > 0 {
                let (_, length) = shape.run(&cursor).unwrap();
                shape.advance(&mut cursor, length.min(left));
                left -= length.min(left);
            }
            prop_assert_eq!(shape.run(&strided.seek(position)), shape.run(&cursor));
        }
    }

    /// Offsets of all bytes, by walking and by places.
    fn offsets(runs: impl Iterator<Item = (u64, u64)>) -> Vec<u64> {
        runs.flat_map(|(offset, length)| offset..offset + length)
            .collect()
    }

    fn by_places(places: &Places, total: u64) -> Vec<u64> {
        let mut found = Vec::new();
        while (found.len() as u64) < total {
            let (offset, length) = places.run(found.len() as u64).unwrap();
            // From the middle of a run, what is left of it.
            let middle = found.len() as u64 + length / 2;
            let wanted = (offset + length / 2, length - length / 2);
            assert_eq!(places.run(middle), Some(wanted));
            found.extend(offset..(offset + length).min(offset + total - found.len() as u64));
        }
        assert_eq!(places.run(total), None);
        found
    }

    proptest! {
        #[test]
        fn places_of_loops_are_those_of_a_walk(strided in dims(), joins in any::<bool>(), from in 0..1000_u64) {
            let mut strided = strided;
            if joins {
                strided.dims[0].stride = strided.block;
                strided.dims[1].stride = strided.block * strided.dims[0].count;
            }
            let (total, _) = strided.extent().unwrap();
            let position = from * (total - 1) / 1000;
            let wanted = offsets(runs(&Shape::Strided(strided)).into_iter());
            let places = Places::new(Shape::Strided(strided), position);
            prop_assert_eq!(&by_places(&places, total - position)[..], &wanted[position as usize..]);
            if joins {
                let rows = strided.dims[2].count;
                // Or more, where the rows follow each other as well.
                prop_assert!(places.run(0).unwrap().1 >= (total / rows) - position % (total / rows));
            }
        }

        #[test]
        fn places_of_lists_are_those_of_a_walk(list in proptest::collection::vec((0..50_usize, 0..9_usize), 0..30)) {
            let blocks: Vec<_> = list.iter().map(|(offset, len)| Block { offset: *offset, len: *len }).collect();
            let total = blocks.iter().map(|block| block.len as u64).sum();
            let shape = Shape::Indexed(Indexed::trusted(blocks, total));
            let wanted = offsets(runs(&shape).into_iter());
            prop_assert_eq!(by_places(&Places::new(shape, 0), total), wanted);
        }
    }

    #[test]
    fn neighbours_are_one_run() {
        let block = |offset, len| Block { offset, len };
        let blocks = vec![
            block(4, 4),
            block(0, 0),
            block(8, 2),
            block(10, 1),
            block(0, 4),
        ];
        let places = Places::new(Shape::Indexed(Indexed::trusted(blocks, 11)), 0);
        assert_eq!(places.run(0), Some((4, 7)));
        assert_eq!(places.run(7), Some((0, 4)));
    }

    #[test]
    fn what_overflows_has_no_extent() {
        for (offset, block, stride, count) in [
            (u64::MAX, 1, 0, 1),
            (0, u64::MAX, 1, 2),
            (0, 1, u64::MAX, 3),
            (0, 1, 1 << 33, 1 << 33),
            (1, 1 << 62, 1 << 62, 2),
        ] {
            assert_eq!(Strided::new(offset, block, stride, count).extent(), None);
        }
        // Of nothing at all, nothing is outside.
        assert_eq!(Strided::new(7, 8, 9, 0).extent(), Some((0, 0)));
        assert_eq!(Strided::new(7, 0, 9, 5).extent(), Some((0, 0)));
    }

    #[test]
    fn lists_are_checked_in_turns() {
        let block = |offset, len| Block { offset, len };
        let good = Indexed::new(vec![block(0, 10), block(5, 0), block(90, 10)].into(), 100);
        let mut at = Checking::default();
        assert!(!good.check(&mut at, 2));
        assert!(good.total().is_none());
        assert!(good.check(&mut at, 2));
        assert_eq!(good.total().unwrap().unwrap(), 20);
        assert_eq!(runs(&Shape::Indexed(good)), [(0, 10), (5, 0), (90, 10)]);
        for bad in [block(91, 10), block(usize::MAX, 2), block(101, 0)] {
            let list = Indexed::new(vec![block(0, 1), bad].into(), 100);
            let mut at = Checking::default();
            while !list.check(&mut at, 1) {}
            let error = list.total().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfBounds);
            assert!(error.to_string().contains("block 1 "), "{error}");
        }
        let empty = Indexed::new(Vec::new().into(), 0);
        assert!(empty.check(&mut Checking::default(), 1));
        assert_eq!(empty.total().unwrap().unwrap(), 0);
    }

    #[test]
    fn blocks_go_round() {
        let mut list = Vec::new();
        encode_block(0x0102, 7, &mut list);
        encode_block(u64::MAX, u32::MAX, &mut list);
        list.push(9);
        let (blocks, rest) = split_blocks(&list, 2).unwrap();
        let found: Vec<_> = decode_blocks(blocks).collect();
        assert_eq!(found, [(0x0102, 7), (u64::MAX, u64::from(u32::MAX))]);
        assert_eq!(rest, [9]);
        for lie in [3, MAX_BLOCKS as u32 + 1, u32::MAX] {
            assert_eq!(
                split_blocks(&list, lie).unwrap_err().kind(),
                ErrorKind::Protocol
            );
        }
    }
}
