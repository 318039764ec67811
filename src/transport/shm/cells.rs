#![allow(unsafe_code)]
//! Where a ring lies in a process, and which of its cells one end of it uses.
//!
//! # Safety
//! All of it is plain addresses; whoever makes an end of a ring from a [`RingMemory`] promises that what they lead to stays mapped for its life.

use std::ptr::NonNull;

use super::layout::{
    BODY_IN_CELL, BODY_IN_CONTENT, CELLS, Cell, ConsumerLine, Content, Kind, MAX_INLINE,
    NEAR_CELLS, ProducerLine, place,
};
use crate::util::loom::Ordering;

/// Where a ring lies in this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingMemory {
    /// [`CELLS`] cells.
    pub(crate) far: NonNull<Cell>,
    /// [`NEAR_CELLS`] cells, each with the line behind it.
    pub(crate) near: NonNull<Cell>,
    /// [`AREA`](super::layout::AREA) bytes.
    pub(crate) area: NonNull<u8>,
    /// [`WIDE`](super::layout::WIDE) bytes.
    pub(crate) wide: NonNull<u8>,
    /// [`NEAR_AREA`](super::layout::NEAR_AREA) bytes.
    pub(crate) near_area: NonNull<u8>,
    pub(crate) consumer: NonNull<ConsumerLine>,
    pub(crate) producer: NonNull<ProducerLine>,
    /// The consumer's line of the ring that goes the other way.
    pub(crate) answers: NonNull<ConsumerLine>,
}

// SAFETY: plain addresses of memory that is shared by design; the ends that use them are each used by one thread at a time.
unsafe impl Send for RingMemory {}
// SAFETY: as above.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    pub(super) fn far(&self) -> Cells {
        Cells {
            first: self.far,
            step: 1,
            mask: CELLS - 1,
        }
    }

    fn near(&self) -> Cells {
        Cells {
            first: self.near,
            step: 2,
            mask: 2 * NEAR_CELLS - 1,
        }
    }

    /// The cells that are not these.
    pub(super) fn other(&self, cells: &Cells) -> Cells {
        match cells.is_near() {
            false => self.near(),
            true => self.far(),
        }
    }

    /// Where a body of a kind, and of at most the length that the kind has [room](Kind::room) for, lies that follows position `from`; and the position
    /// after it. The body stays inside its area.
    #[inline(always)]
    pub(super) fn body(&self, kind: Kind, from: u64, length: usize) -> (*mut u8, u64) {
        let area = match kind {
            Kind::Inline | Kind::Area => self.area,
            Kind::Wide => self.wide,
            Kind::Near => self.near_area,
        };
        let (offset, end) = place(kind.room().0, from, length);
        (area.as_ptr().wrapping_add(offset), end)
    }

    #[inline(always)]
    pub(super) fn consumer(&self) -> &ConsumerLine {
        // SAFETY: mapped while an end exists (module docs).
        unsafe { self.consumer.as_ref() }
    }

    #[inline(always)]
    pub(super) fn producer(&self) -> &ProducerLine {
        // SAFETY: mapped while an end exists (module docs).
        unsafe { self.producer.as_ref() }
    }

    /// What this process has received the other way, as far as it has said so there.
    pub(super) fn answers(&self) -> u64 {
        // SAFETY: mapped while an end exists (module docs).
        let line = unsafe { self.answers.as_ref() };
        line.head.load(Ordering::Relaxed)
    }
}

/// The cells that an end of a ring uses now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells {
    first: NonNull<Cell>,
    /// 2 where every other one is left out.
    step: u64,
    mask: u64,
}

// SAFETY: as `RingMemory`.
unsafe impl Send for Cells {}
// SAFETY: as above.
unsafe impl Sync for Cells {}

impl Cells {
    /// The mask keeps it inside the cells.
    #[inline(always)]
    fn at(&self, number: u64) -> *mut Cell {
        let index = number.wrapping_mul(self.step) & self.mask;
        self.first.as_ptr().wrapping_add(index as usize)
    }

    /// The cell of a message.
    #[inline(always)]
    pub(super) fn cell(&self, number: u64) -> &Cell {
        // SAFETY: one of the cells, which are mapped while an end exists (module docs).
        unsafe { &*self.at(number) }
    }

    #[inline(always)]
    pub(super) fn is_near(&self) -> bool {
        self.step == 2
    }

    /// Longest body within a cell: a near one has the line behind it, too.
    #[inline(always)]
    pub(super) fn most_inline(&self) -> usize {
        MAX_INLINE + 64 * (self.step as usize - 1)
    }

    /// Where a body begins that lies in the cell of this content, or goes over into the line behind it.
    #[inline(always)]
    pub(super) fn inline_body(
        &self,
        content: *const Content,
        number: u64,
        length: usize,
    ) -> *mut u8 {
        match length <= MAX_INLINE {
            true => content
                .cast::<u8>()
                .cast_mut()
                .wrapping_add(BODY_IN_CONTENT),
            false => self.at(number).cast::<u8>().wrapping_add(BODY_IN_CELL),
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        (self.mask + 1) / self.step
    }
}
