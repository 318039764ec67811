//! Transfers between the memories of two processes that are not one run on both sides: pieces here, blocks there, copied run by run where the
//! peer's memory is mapped, as vectors where the kernel copies.
//!
//! # Safety
//! As in `copy.rs`: local pieces belong to the operation, which counts the transfer; remote memory is touched between `Pair::enter` and
//! `Pair::leave` after a look at the generation. Every block was checked against the region's part, and that against the mapping.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::{
    memory::Extent,
    protocol::layout::{Checking, Cursor, Shape},
    worker::rma::ends,
};

/// Bytes and runs moved between two looks at anything else.
const TURN: u64 = 64 << 10;
const RUNS: usize = 1024;
/// Runs of those that begin or end within a block, of copying without the kernel.
const EDGES: usize = 256;
/// Blocks checked between two looks at anything else: about 10 µs.
pub(in crate::worker) const CHECKS: usize = 16 << 10;

/// The pieces of a transfer that is not one run on both sides.
pub(crate) struct Spread {
    pub(in crate::worker) pieces: Vec<Extent>,
    piece: usize,
    within: usize,
    pub(crate) shape: Arc<Shape>,
    cursor: Cursor,
    pub(in crate::worker) left: u64,
    /// The blocks are still being checked, and nothing moves.
    pub(crate) checking: Option<Checking>,
}

impl Spread {
    pub(crate) fn new(pieces: Vec<Extent>, shape: Arc<Shape>, length: usize) -> Box<Self> {
        let cursor = shape.cursor();
        Box::new(Self {
            pieces,
            piece: 0,
            within: 0,
            shape,
            cursor,
            left: length as u64,
            checking: None,
        })
    }

    /// From this place of the layout on.
    pub(crate) fn starting_at(mut self: Box<Self>, cursor: Cursor) -> Box<Self> {
        self.cursor = cursor;
        self
    }

    /// The next run: address here, offset there, bytes (perhaps none).
    #[inline]
    pub(in crate::worker) fn run(&self, most: u64) -> Option<(*mut u8, u64, u64)> {
        let piece = self.pieces.get(self.piece)?;
        let (offset, length) = self.shape.run(&self.cursor)?;
        let length = length
            .min((piece.length - self.within) as u64)
            .min(self.left)
            .min(most);
        Some((piece.address.wrapping_add(self.within), offset, length))
    }

    #[inline]
    fn advance(&mut self, length: u64) {
        self.shape.advance(&mut self.cursor, length);
        self.left -= length;
        self.within += length as usize;
        if self
            .pieces
            .get(self.piece)
            .is_some_and(|piece| self.within >= piece.length)
        {
            self.piece += 1;
            self.within = 0;
        }
    }

    /// Moves one turn between the pieces and memory that begins at `base`.
    ///
    /// # Safety
    /// The pieces must be valid, for writing when `pull`, and so must every block from `base` on.
    pub(in crate::worker) unsafe fn copy(&mut self, base: *mut u8, pull: bool) {
        // SAFETY: the caller's promise.
        let mut most = TURN - unsafe { self.copy_whole(base, pull) };
        if self.left == 0 || most == 0 {
            return;
        }
        for _ in 0..EDGES {
            let Some((local, offset, length)) = self.run(most) else {
                return;
            };
            let remote = base.wrapping_add(offset as usize);
            let (from, to) = ends(local, remote, pull);
            // SAFETY: both are valid for `length` bytes by the caller's promise.
            unsafe { copy_run(from, to, length as usize) };
            self.advance(length);
            most -= length;
            if self.left == 0 || most == 0 {
                return;
            }
        }
    }

    /// Moves blocks, as many as lie whole in the piece at hand: the common case, without a cursor for each. Returns bytes.
    ///
    /// # Safety
    /// As [`Spread::copy`].
    unsafe fn copy_whole(&mut self, base: *mut u8, pull: bool) -> u64 {
        let Some(piece) = self.pieces.get(self.piece) else {
            return 0;
        };
        if !self.cursor.between_blocks() {
            return 0;
        }
        let room = ((piece.length - self.within) as u64)
            .min(self.left)
            .min(TURN);
        let mut local = piece.address.wrapping_add(self.within);
        let mut step = |offset: u64, length: u64| {
            let remote = base.wrapping_add(offset as usize);
            let (from, to) = ends(local, remote, pull);
            // SAFETY: both are valid for `length` bytes by the caller's promise; `length` is within what is left of the piece.
            unsafe { copy_run(from, to, length as usize) };
            local = local.wrapping_add(length as usize);
        };
        let moved = self
            .shape
            .for_whole(&mut self.cursor, room, RUNS, &mut step);
        self.left -= moved;
        self.within += moved as usize;
        if self.within >= piece.length {
            self.piece += 1;
            self.within = 0;
        }
        moved
    }

    /// The next turn as vectors: here, and there from `base` on.
    pub(in crate::worker) fn vectors(
        &self,
        base: u64,
        here: &mut Vec<Extent>,
        there: &mut Vec<Extent>,
    ) -> u64 {
        let mut ahead = Self {
            pieces: Vec::new(),
            shape: self.shape.clone(),
            ..*self
        };
        let mut most = TURN;
        for _ in 0..RUNS {
            let Some(piece) = self.pieces.get(ahead.piece) else {
                break;
            };
            let Some((offset, block)) = ahead.shape.run(&ahead.cursor) else {
                break;
            };
            let length = block
                .min((piece.length - ahead.within) as u64)
                .min(ahead.left)
                .min(most);
            if length > 0 {
                let address = piece.address.wrapping_add(ahead.within);
                join(here, address, length as usize);
                let remote = base.wrapping_add(offset) as usize;
                join(
                    there,
                    std::ptr::without_provenance_mut(remote),
                    length as usize,
                );
            }
            ahead.shape.advance(&mut ahead.cursor, length);
            ahead.left -= length;
            ahead.within += length as usize;
            if ahead.within >= piece.length {
                ahead.piece += 1;
                ahead.within = 0;
            }
            most -= length;
            if ahead.left == 0 || most == 0 {
                break;
            }
        }
        TURN - most
    }

    /// Moves on by bytes that were moved, over blocks of no bytes too.
    pub(in crate::worker) fn skip(&mut self, mut bytes: u64) {
        for _ in 0..RUNS {
            let Some((_, _, length)) = self.run(bytes) else {
                return;
            };
            self.advance(length);
            bytes -= length;
            if bytes == 0 && length > 0 {
                return;
            }
        }
    }
}

/// Appends an extent, to the last one where it follows that.
fn join(to: &mut Vec<Extent>, address: *mut u8, length: usize) {
    match to.last_mut() {
        Some(last) if last.address.wrapping_add(last.length) == address => last.length += length,
        _ => to.push(Extent { address, length }),
    }
}

/// Copies a run; short ones of common sizes without a call.
///
/// # Safety
/// As [`std::ptr::copy`].
#[inline]
pub(crate) unsafe fn copy_run(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's promise; the words are read and written wherever they lie.
    unsafe {
        match length {
            8 => to
                .cast::<u64>()
                .write_unaligned(from.cast::<u64>().read_unaligned()),
            4 => to
                .cast::<u32>()
                .write_unaligned(from.cast::<u32>().read_unaligned()),
            16 => to
                .cast::<u128>()
                .write_unaligned(from.cast::<u128>().read_unaligned()),
            _ => std::ptr::copy(from, to, length),
        }
    }
}
