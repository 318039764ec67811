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
    pieces: Vec<Extent>,
    pub(crate) shape: Arc<Shape>,
    pub(in crate::worker) at: At,
    /// The blocks are still being checked, and nothing moves.
    pub(crate) checking: Option<Checking>,
}

/// How far it is.
#[derive(Clone, Copy)]
pub(in crate::worker) struct At {
    piece: usize,
    within: usize,
    cursor: Cursor,
    pub(in crate::worker) left: u64,
}

impl Spread {
    pub(crate) fn new(pieces: Vec<Extent>, shape: Arc<Shape>, length: usize) -> Box<Self> {
        let at = At {
            piece: 0,
            within: 0,
            cursor: shape.cursor(),
            left: length as u64,
        };
        Box::new(Self {
            pieces,
            shape,
            at,
            checking: None,
        })
    }

    /// From this place of the layout on.
    pub(crate) fn starting_at(mut self: Box<Self>, cursor: Cursor) -> Box<Self> {
        self.at.cursor = cursor;
        self
    }

    /// The next run: address here, offset there, bytes (perhaps none).
    #[inline]
    fn run(&self, at: &At, most: u64) -> Option<(*mut u8, u64, u64)> {
        let piece = self.pieces.get(at.piece)?;
        let (offset, length) = self.shape.run(&at.cursor)?;
        let length = length
            .min((piece.length - at.within) as u64)
            .min(at.left)
            .min(most);
        Some((piece.address.wrapping_add(at.within), offset, length))
    }

    #[inline]
    fn advance(&self, at: &mut At, length: u64) {
        self.shape.advance(&mut at.cursor, length);
        self.pass(at, length);
    }

    /// Moves on by bytes of the piece.
    #[inline]
    fn pass(&self, at: &mut At, length: u64) {
        at.left -= length;
        at.within += length as usize;
        let piece = self.pieces.get(at.piece);
        if piece.is_some_and(|piece| at.within >= piece.length) {
            at.piece += 1;
            at.within = 0;
        }
    }

    /// Moves one turn between the pieces and memory that begins at `base`.
    ///
    /// # Safety
    /// The pieces must be valid, for writing when `pull`, and so must every block from `base` on.
    pub(in crate::worker) unsafe fn copy(&mut self, base: *mut u8, pull: bool) {
        let mut at = self.at;
        // SAFETY: the caller's promise.
        let mut most = TURN - unsafe { self.copy_whole(&mut at, base, pull) };
        for _ in 0..EDGES {
            if at.left == 0 || most == 0 {
                break;
            }
            let Some((local, offset, length)) = self.run(&at, most) else {
                break;
            };
            let remote = base.wrapping_add(offset as usize);
            let (from, to) = ends(local, remote, pull);
            // SAFETY: both are valid for `length` bytes by the caller's promise.
            unsafe { copy_run(from, to, length as usize) };
            self.advance(&mut at, length);
            most -= length;
        }
        self.at = at;
    }

    /// Moves blocks, as many as lie whole in the piece at hand: the common case, without a cursor for each. Returns bytes.
    ///
    /// # Safety
    /// As [`Spread::copy`].
    unsafe fn copy_whole(&self, at: &mut At, base: *mut u8, pull: bool) -> u64 {
        let Some(piece) = self.pieces.get(at.piece) else {
            return 0;
        };
        if !at.cursor.between_blocks() {
            return 0;
        }
        let room = ((piece.length - at.within) as u64).min(at.left).min(TURN);
        let mut local = piece.address.wrapping_add(at.within);
        let mut step = |offset: u64, length: u64| {
            let remote = base.wrapping_add(offset as usize);
            let (from, to) = ends(local, remote, pull);
            // SAFETY: both are valid for `length` bytes by the caller's promise; `length` is within what is left of the piece.
            unsafe { copy_run(from, to, length as usize) };
            local = local.wrapping_add(length as usize);
        };
        let moved = self.shape.for_whole(&mut at.cursor, room, RUNS, &mut step);
        self.pass(at, moved);
        moved
    }

    /// The next turn as vectors: here, and there from `base` on. Returns what is behind them.
    pub(in crate::worker) fn vectors(
        &self,
        base: u64,
        here: &mut Vec<Extent>,
        there: &mut Vec<Extent>,
    ) -> At {
        let mut at = self.at;
        let mut most = TURN;
        for _ in 0..RUNS {
            let Some((local, offset, length)) = self.run(&at, most) else {
                break;
            };
            if length > 0 {
                let remote = base.wrapping_add(offset) as usize;
                let remote = std::ptr::without_provenance_mut(remote);
                join(here, local, length as usize);
                join(there, remote, length as usize);
            }
            self.advance(&mut at, length);
            most -= length;
            if at.left == 0 || most == 0 {
                break;
            }
        }
        at
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
