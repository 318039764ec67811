//! The segment that two workers share, drawn.
//!
//! ```text
//! offset    bytes
//! 0x00000     128  magic, layout version
//! 0x00080     128  consumer lines, client to server   head, area_head; parked    written by the server
//! 0x00100     128  producer line, client to server    want_room                  written by the client
//! 0x00200   64 Ki  1024 cells, client to server
//! 0x11000          the same from server to client: lines, cells
//! 0x21f00  12.2 Ki the words by which one end touches memory for both (see `transport::shared_memory`): two marks, then in pages of their own
//!                  64 transfers at 0x22000, 512 region generations of the client at 0x23000, and of the server at 0x24000
//! 0x25000  256 Ki  byte area, client to server
//! 0x65000  256 Ki  byte area, server to client
//! 0xa5000    2 Mi  wide area, client to server        not touched by a connection that is quiet
//! 0x2a5000   2 Mi  wide area, server to client
//! 0x4a5000   4 Ki  32 near cells, client to server   not touched either
//! 0x4a6000   4 Ki  32 near cells, server to client
//! 0x4a7000   8 Ki  near area, client to server
//! 0x4a9000   8 Ki  near area, server to client
//! 0x4ab000         end
//! ```
//!
//! Lines and first cells of a ring lie in one page: all that its receiver touches of a connection that nothing has come over.
//!
//! A cell is one cache line. Its word is written last, with release:
//!
//! ```text
//!   63     60  59   58  56 55    48 47          32 31               0
//!  ┌─────────┬──────┬──────┬────────┬──────────────┬──────────────────┐
//!  │ length, │ turn │ kind │ id     │ body length, │ sequence         │   + header (8 bytes) + inline body (48 bytes)
//!  │ its top │      │      │        │ low 16 bits  │                  │
//!  └─────────┴──────┴──────┴────────┴──────────────┴──────────────────┘
//! ```
//!
//! The sequence of message number `n` (from 0) is `n + 1`, so a fresh cell of zeros holds no message, and what the cell held
//! a lap ago is never taken for a new one. A body of more than 48 bytes lies in the byte area, or in the wide one: the kind
//! says in which. Its place there is not written anywhere: both ends work it out from the lengths of the messages before (see
//! [`place`]), so there is no offset to distrust.
//!
//! A ring has two sets of cells, and messages are numbered through both. Where a sender is answered message by message it uses the near cells, every
//! other line of one page ([`NEAR_CELLS`] says why), with the line behind a cell for bodies of up to 112 bytes, and the near area for those that fit it.
//! It says so by the turn in the word of the message before, and the same when it goes back.
//!
//! The bytes of all areas are counted in one row of positions, of which never more are under way than the first area holds. A sender
//! that has once gone to the wide area stays there: so what lies in the first one still when it goes is in nobody's way.

use crate::util::loom::{AtomicU64, UnsafeCell};

use super::doorbell::Flag;
#[cfg(not(wharf_loom))]
use crate::transport::shared_memory::SHARED_WORDS;

/// Cells of a ring: a power of two.
#[cfg(not(wharf_loom))]
pub(crate) const CELLS: u64 = 1024;
/// Two cells, so that a model of three messages wraps.
#[cfg(wharf_loom)]
pub(crate) const CELLS: u64 = 2;
/// Near cells of a ring: a power of two. A message there and its answer take 20 ns less of some 80 than where each goes to the next of 1,024 cells:
/// one way took 31 to 37 ns over one line, 42 to 50 over 16 to 64 lines of which each has an unused neighbour, 58 to 71 over as many that are
/// neighbours, and over more than 64 of any kind (Zen 5, two bare threads that wait for each other, 29 November 2026).
#[cfg(not(wharf_loom))]
pub(crate) const NEAR_CELLS: u64 = 32;
#[cfg(wharf_loom)]
pub(crate) const NEAR_CELLS: u64 = 2;
/// Bytes of the area for bodies beside near cells, as small for the same reason. One way with its body, written and read, a message of 64 bytes took 53 to
/// 65 ns over areas of 4 and 8 KiB and 100 over 16 KiB and more, one of 1 KiB 137 and 200 to 224, one of 4 KiB 460 and 570 to 630 (as there).
pub(crate) const NEAR_AREA: u64 = 8 << 10;
/// Longest body there.
pub(crate) const MAX_NEAR: usize = 2048;
/// Bytes of the byte area that a connection begins with: what it touches at most as long as it is quiet, and what may be under way.
pub(crate) const AREA: u64 = 256 << 10;
/// Bytes of the area that a busy one goes to. What it is for: when the sender comes round again its lines have left the caches
/// of the cores' own, which else have to give them to each other, line by line. Two processes that only copy 4 KiB in and out do
/// 8 to 9 GB/s with up to 512 KiB, 13 to 19 with 1 MiB, 34 to 46 with 2 to 8 MiB (AMD EPYC with 1 MiB of second-level cache for
/// each core, 25 November 2026).
pub(crate) const WIDE: u64 = 2 << 20;
/// Longest body within a cell.
pub(crate) const MAX_INLINE: usize = 48;
/// Where a body begins.
pub(crate) const BODY_IN_CONTENT: usize = std::mem::offset_of!(Content, body);
pub(crate) const BODY_IN_CELL: usize = 16;
/// Longest body in an area, of which three fit at once: a message of 64 KiB and what is said with it.
pub(crate) const MAX_BCOPY: usize = 66 * 1024;
/// Bodies in the area begin on this boundary.
pub(crate) const AREA_ALIGN: u64 = 64;

/// Bytes of the whole segment.
pub(crate) const SEGMENT: usize = 0x4a_b000;
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"wharfshm");
pub(crate) const VERSION: u32 = 11;

/// Byte offsets; `[0]` of the client or client to server, `[1]` of the server or server to client.
pub(crate) const CONSUMER: [usize; 2] = [0x80, 0x1_1080];
pub(crate) const PRODUCER: [usize; 2] = [0x100, 0x1_1100];
pub(crate) const CELL: [usize; 2] = [0x200, 0x1_1200];
/// What both ends have in common beside the rings.
pub(crate) const WORDS: usize = 0x2_1f00;
pub(crate) const BYTES: [usize; 2] = [0x2_5000, 0x6_5000];
pub(crate) const WIDE_BYTES: [usize; 2] = [0xa_5000, 0x2a_5000];
pub(crate) const NEAR: [usize; 2] = [0x4a_5000, 0x4a_6000];
pub(crate) const NEAR_BYTES: [usize; 2] = [0x4a_7000, 0x4a_9000];

/// One message, or the head of one.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Cell {
    pub(crate) word: AtomicU64,
    pub(crate) content: UnsafeCell<Content>,
}

/// What a cell carries beside its word.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Content {
    pub(crate) header: u64,
    pub(crate) body: [u8; MAX_INLINE],
}

/// Written by the end that receives (the sender only takes `parked` down).
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct ConsumerLine {
    /// Messages taken so far.
    pub(crate) head: AtomicU64,
    /// Position in the byte area up to which it is free again.
    pub(crate) area_head: AtomicU64,
    /// Up while the receiver sleeps: ring it after publishing a message. The sender looks at it with each message, and has it in its cache as long as
    /// nothing is written beside it.
    pub(crate) parked: Apart<Flag>,
}

/// In a line of its own.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Apart<T>(pub(crate) T);

impl<T> std::ops::Deref for Apart<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Written by the end that sends (the receiver only takes `want_room` down).
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct ProducerLine {
    /// Up while the sender sleeps for want of room: ring it after publishing the head.
    pub(crate) want_room: Flag,
}

/// Where a body lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Inline = 1,
    Area = 2,
    Wide = 3,
    Near = 4,
}

impl Kind {
    /// Bytes of its area, for a body that does not lie in its cell, and of the longest body there.
    #[inline(always)]
    pub(crate) const fn room(self) -> (u64, usize) {
        match self {
            Self::Inline | Self::Area => (AREA, MAX_BCOPY),
            Self::Wide => (WIDE, MAX_BCOPY),
            Self::Near => (NEAR_AREA, MAX_NEAR),
        }
    }
}

/// A cell's word, taken apart. Nothing of it is trusted yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    #[inline(always)]
    pub(crate) const fn new(number: u64, length: usize, id: u8, kind: Kind) -> Self {
        Self(
            sequence(number) as u64
                | (length as u64 & 0xffff) << 32
                | (id as u64) << 48
                | (kind as u64) << 56
                | (length as u64 >> 16) << 60,
        )
    }
    /// The same, with the word that the next message lies in the other cells.
    #[inline(always)]
    pub(crate) const fn turning(self, turns: bool) -> Self {
        Self(self.0 | (turns as u64) << 59)
    }
    #[inline(always)]
    pub(crate) const fn turns(self) -> bool {
        self.0 >> 59 & 1 == 1
    }
    #[inline(always)]
    pub(crate) const fn is_message(self, number: u64) -> bool {
        self.0 as u32 == sequence(number)
    }
    #[inline(always)]
    pub(crate) const fn length(self) -> usize {
        (self.0 >> 32) as u16 as usize | (self.0 >> 60 << 16) as usize
    }
    /// The length, of one that [is](Self::is) of a kind.
    #[inline(always)]
    pub(crate) const fn short_length(self) -> usize {
        (self.0 >> 32) as u16 as usize
    }
    #[inline(always)]
    pub(crate) const fn id(self) -> u8 {
        (self.0 >> 48) as u8
    }
    /// Whether it is of this id and kind, no longer than 65,535 bytes, and followed by one in the same cells.
    #[inline(always)]
    pub(crate) const fn is(self, id: u8, kind: Kind) -> bool {
        self.0 >> 48 == (id as u64) | (kind as u64) << 8
    }
    #[inline(always)]
    pub(crate) const fn kind(self) -> Option<Kind> {
        match (self.0 >> 56) as u8 & 0x7 {
            1 => Some(Kind::Inline),
            2 => Some(Kind::Area),
            3 => Some(Kind::Wide),
            4 => Some(Kind::Near),
            _ => None,
        }
    }
}

#[inline(always)]
const fn sequence(number: u64) -> u32 {
    (number as u32).wrapping_add(1)
}

/// Where in an area of `room` bytes, a power of two, a body of `length` bytes goes when it is used up to position `from` (positions only grow):
/// the offset of its first byte, and the position after it. A body never wraps: the rest of the lap is left unused instead.
/// For `length` up to what [`Kind::room`] says offset and length stay inside the area, whatever `from` is.
#[inline(always)]
pub(crate) const fn place(room: u64, from: u64, length: usize) -> (usize, u64) {
    let offset = from & (room - 1);
    let size = (length as u64).next_multiple_of(AREA_ALIGN);
    if offset + size <= room {
        (offset as usize, from + size)
    } else {
        (0, from + (room - offset) + size)
    }
}

// Under `wharf_loom` the atomics are the model's, and no segment is mapped.
#[cfg(not(wharf_loom))]
const _: () = {
    use std::mem::{align_of, offset_of, size_of};
    assert!(
        size_of::<Cell>() == 64 && offset_of!(Cell, content) == 8 && offset_of!(Content, body) == 8
    );
    assert!(size_of::<ConsumerLine>() == 128 && size_of::<ProducerLine>() == 128);
    assert!(offset_of!(ConsumerLine, area_head) == 8 && offset_of!(ConsumerLine, parked) == 64);
    assert!(align_of::<Cell>() == 64 && BODY_IN_CELL + MAX_INLINE == 64);
    assert!(offset_of!(Cell, content) + BODY_IN_CONTENT == BODY_IN_CELL);
    assert!(CELLS.is_power_of_two() && AREA.is_power_of_two() && AREA >= 3 * MAX_BCOPY as u64);
    assert!(WIDE.is_power_of_two() && WIDE >= AREA && AREA.is_multiple_of(AREA_ALIGN));
    assert!(MAX_BCOPY < 1 << 20 && MAX_INLINE <= u16::MAX as usize);
    assert!(CONSUMER[0] >> 12 == CELL[0] >> 12 && CONSUMER[1] >> 12 == CELL[1] >> 12);
    assert!(PRODUCER[0] + 128 <= CELL[0] && PRODUCER[1] + 128 <= CELL[1]);
    assert!(CONSUMER[0] + 128 == PRODUCER[0] && CONSUMER[1] + 128 == PRODUCER[1]);
    assert!(CELL[0] + CELLS as usize * 64 <= CONSUMER[1]);
    assert!(CELL[1] + CELLS as usize * 64 <= WORDS && WORDS.is_multiple_of(128));
    assert!(WORDS + SHARED_WORDS * size_of::<AtomicU64>() == BYTES[0]);
    assert!(BYTES[0] + AREA as usize == BYTES[1] && BYTES[1] + AREA as usize == WIDE_BYTES[0]);
    assert!(
        WIDE_BYTES[0] + WIDE as usize == WIDE_BYTES[1] && WIDE_BYTES[1] + WIDE as usize == NEAR[0]
    );
    assert!(NEAR_CELLS.is_power_of_two() && NEAR[0] + NEAR_CELLS as usize * 128 <= NEAR[1]);
    assert!(NEAR[1] + NEAR_CELLS as usize * 128 <= NEAR_BYTES[0] && NEAR[0].is_multiple_of(128));
    assert!(NEAR_BYTES[0] + NEAR_AREA as usize == NEAR_BYTES[1]);
    assert!(NEAR_BYTES[1] + NEAR_AREA as usize == SEGMENT && NEAR_AREA.is_power_of_two());
    assert!(MAX_NEAR as u64 <= NEAR_AREA);
};
