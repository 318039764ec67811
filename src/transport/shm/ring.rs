#![allow(unsafe_code)]
//! The ring of one direction: one [`Producer`] in one process, one [`Consumer`] in another, 64-byte cells between them.
//!
//! ```text
//!            head (published now and then)      tail (known to the producer alone)
//!              ▼                                  ▼
//!   ┌───┬───┬───┬───┬───┬───┬───┬───┬───┬───┬───┬───┬───┬───┐
//!   │   │   │ n │n+1│...│   │   │   │   │   │   │   │   │   │   a cell holds message n when its sequence says n + 1
//!   └───┴───┴───┴───┴───┴───┴───┴───┴───┴───┴───┴───┴───┴───┘
//! ```
//!
//! The consumer sees a message by the sequence in its cell, so a message costs one cache line and no index is shared.
//! The producer keeps a copy of the head and reads the real one only when the copy says that the ring is full.
//!
//! # Safety
//! Both ends reach the shared memory through the raw addresses of a [`RingMemory`]; whoever makes a [`Producer`] or
//! [`Consumer`] promises that these stay mapped for its life and that it is the only one of its kind in this process.
//!
//! The other process may be hostile and write any byte at any time. So every value is used once, as it was loaded; places
//! in the area are computed here and bounded by the checked length; and nothing that is read has an invalid value (words
//! and bytes only). A body given to the closure of [`Consumer::take`] may still change while it is looked at: a reader must
//! copy each field out once and check the copy. An honest peer does not touch a cell between its publication and its release.

use std::{ptr::NonNull, slice, sync::Arc};

use super::{
    copy_choice::CopyChoice,
    doorbell::{Flag, can_be_calm},
    layout::{
        AREA, CELLS, Cell, ConsumerLine, Kind, MAX_BCOPY, MAX_INLINE, ProducerLine, WIDE, Word,
        place,
    },
};
use crate::{
    error::{Error, ErrorKind, Result},
    transport::{HeldBytes, Hold, Wanted},
    util::{
        copy::{SHORTEST, copy, copy_across, copy_short, copy_small},
        loom::{Ordering, prefetch_read},
    },
};

/// Messages after which the consumer publishes its head: few enough that the producer rarely finds a stale head.
const PUBLISH_CELLS: u64 = if CELLS < 32 { 1 } else { 32 };
/// Bytes of bodies after which it does.
const PUBLISH_AREA: u64 = AREA / 4;
/// Bytes of bodies after which the producer goes to the wide area, if the consumer has not slept meanwhile: who waits for
/// messages now and then is not worth the memory.
const WIDE_AFTER: u64 = 4 << 20;

const _: () = assert!(MAX_INLINE <= SHORTEST);

/// Where a ring lies in this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingMemory {
    /// [`CELLS`] cells.
    pub(crate) cells: NonNull<Cell>,
    /// [`AREA`] bytes.
    pub(crate) area: NonNull<u8>,
    /// [`WIDE`] bytes.
    pub(crate) wide: NonNull<u8>,
    pub(crate) consumer: NonNull<ConsumerLine>,
    pub(crate) producer: NonNull<ProducerLine>,
}

// SAFETY: plain addresses of memory that is shared by design; the ends that use them are each used by one thread at a time.
unsafe impl Send for RingMemory {}
// SAFETY: as above.
unsafe impl Sync for RingMemory {}

/// Messages without a sleep after which the sender need not fence: a sleep costs some 3 µs more then.
const CALM_AFTER: u64 = if cfg!(wharf_loom) { 1 } else { 4096 };

/// How many cells before its turn a line is fetched.
const AHEAD: u64 = 8;

/// Cells whose lines a sender takes back at once.
const OWNED: u64 = 16;

/// Bytes of a body that are fetched before its turn, at most: of a longer one the processor fetches the rest by itself.
const FETCH: usize = 1024;
/// The same where one was copied just now: a stream of 4 KiB that is awaited one by one takes 88 ns for each message, 90 with all of it, 92 with 1 KiB, 95
/// with 256 bytes (Zen 5, 28 November 2026). Fetched before the copy, one that is posted takes 10 more.
const FETCH_TO_COPY: usize = 2048;

impl RingMemory {
    #[inline(always)]
    fn cell(&self, number: u64) -> &Cell {
        // SAFETY: the index is below `CELLS`; the cells are mapped while an end exists (module docs).
        unsafe { self.cells.add((number & (CELLS - 1)) as usize).as_ref() }
    }

    /// Where a body of at most [`MAX_BCOPY`] bytes lies that follows position `from`, in the first area or the wide one, and the
    /// position after it. The body stays inside the area.
    #[inline(always)]
    fn body(&self, is_wide: bool, from: u64, length: usize) -> (*mut u8, u64) {
        let (area, room) = match is_wide {
            false => (self.area, AREA),
            true => (self.wide, WIDE),
        };
        let (offset, end) = place(room, from, length);
        (area.as_ptr().wrapping_add(offset), end)
    }

    #[inline(always)]
    fn consumer(&self) -> &ConsumerLine {
        // SAFETY: mapped while an end exists (module docs).
        unsafe { self.consumer.as_ref() }
    }

    #[inline(always)]
    fn producer(&self) -> &ProducerLine {
        // SAFETY: mapped while an end exists (module docs).
        unsafe { self.producer.as_ref() }
    }
}

/// Why a message did not go into the ring.
#[derive(Debug)]
pub(crate) enum PushError {
    /// No room; `head` is what the consumer had published.
    Full {
        /// See [`Waiting::head`].
        head: u64,
    },
    /// The consumer published an impossible head.
    Broken,
}

/// How [`Producer::push_short`] went.
#[derive(Debug)]
pub(crate) enum Short {
    /// It is published.
    Sent,
    /// It is for [`Producer::push_inline`]: too long, or the ring looks full.
    Other,
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct Producer {
    memory: RingMemory,
    /// Number of the next message.
    tail: u64,
    /// The consumer's head as last seen.
    head: u64,
    /// Position after the last body.
    area_tail: u64,
    /// The consumer's area head as last seen.
    area_head: u64,
    /// Whether bodies go to the wide area, and the position from which on they will. Never back.
    is_wide: bool,
    wide_from: u64,
    /// Number of the first message whose cell's line was not taken back yet.
    owned: u64,
    choice: CopyChoice,
}

impl Producer {
    /// The sending end of a fresh ring.
    ///
    /// # Safety
    /// `memory` stays mapped for the life of the value, and no other producer of it exists in this process.
    pub(crate) unsafe fn new(memory: RingMemory) -> Self {
        Self {
            memory,
            tail: 0,
            head: 0,
            area_tail: 0,
            area_head: 0,
            is_wide: false,
            wide_from: WIDE_AFTER,
            owned: 0,
            choice: CopyChoice::new(),
        }
    }

    /// Once the lines that were taken back are used up: those of the next cells, all at once. The consumer's cache has each, and stores leave a processor in
    /// order: one for each message would wait for one line after the other, where those that it holds at the same time get theirs together. A prefetch
    /// for writing asks for nothing where both caches have the line (seen on Zen 3).
    #[inline(always)]
    fn own_more(&mut self) {
        if self.tail >= self.owned {
            self.own();
        }
    }

    #[inline(never)]
    fn own(&mut self) {
        let end = (self.tail + OWNED).min(self.head + CELLS);
        for number in self.tail..end {
            self.memory.cell(number).content.with_mut(|content| {
                // SAFETY: the cell is ours until its word is written: the consumer has released it (head).
                unsafe { (&raw mut (*content).header).write_volatile(0) };
            });
        }
        self.owned = end;
    }

    /// Sends a body that is known to have room in a cell. The caller then asks [`Producer::is_calm`] whether that is all.
    #[inline(always)]
    pub(crate) fn push_short(&mut self, id: u8, header: u64, body: &[u8]) -> Short {
        if body.len() > MAX_INLINE || self.tail.wrapping_sub(self.head) >= CELLS {
            return Short::Other;
        }
        let cell = self.memory.cell(self.tail);
        // SAFETY: as in `push_inline`. Not in the closure, so that there is no call.
        unsafe {
            let content = cell.content.with_mut(|content| content);
            (*content).header = header;
            copy_short(body.as_ptr(), (&raw mut (*content).body).cast(), body.len());
        }
        let word = Word::new(self.tail, body.len(), id, Kind::Inline);
        cell.word.store(word.0, Ordering::Release);
        self.tail += 1;
        self.own_more();
        Short::Sent
    }

    /// Whether a message that was published wakes nobody.
    #[inline(always)]
    pub(crate) fn is_calm(&self) -> bool {
        self.memory.consumer().parked.is_calm()
    }

    /// Whether the consumer's doorbell is to be rung for it.
    pub(crate) fn answer(&self) -> bool {
        self.memory.consumer().parked.answer()
    }

    /// Sends a body of at most [`MAX_INLINE`] bytes, which the caller has checked. `true`: ring the consumer's doorbell.
    pub(crate) fn push_inline(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
    ) -> Result<bool, PushError> {
        let length = prefix.len() + payload.len();
        assert!(length <= MAX_INLINE, "the caller bounds an inline body");
        if self.tail.wrapping_sub(self.head) >= CELLS {
            self.refresh()?;
            if self.tail.wrapping_sub(self.head) >= CELLS {
                return Err(PushError::Full { head: self.head });
            }
        }
        let cell = self.memory.cell(self.tail);
        cell.content.with_mut(|content| {
            // SAFETY: the cell is ours until its word is written: the consumer has released it (head). Lengths asserted above.
            unsafe {
                (*content).header = header;
                let body = (&raw mut (*content).body).cast::<u8>();
                copy_small(prefix.as_ptr(), body, prefix.len());
                copy_small(payload.as_ptr(), body.add(prefix.len()), payload.len());
            }
        });
        Ok(self.publish(Word::new(self.tail, length, id, Kind::Inline)))
    }

    /// Sends a body of at most [`MAX_BCOPY`] bytes, which the caller has checked. `true`: ring the consumer's doorbell.
    pub(crate) fn push(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
    ) -> Result<bool, PushError> {
        let length = prefix.len() + payload.len();
        if length <= MAX_INLINE {
            return self.push_inline(id, header, prefix, payload);
        }
        assert!(length <= MAX_BCOPY, "the caller bounds a buffered body");
        if self.area_tail >= self.wide_from {
            self.is_wide = true;
            self.wide_from = u64::MAX;
        }
        // In the wide area too no more than the first one holds is under way: what follows it does not wait longer.
        let (body, end) = self.memory.body(self.is_wide, self.area_tail, length);
        let fits = |this: &Self| {
            this.tail.wrapping_sub(this.head) < CELLS && end.wrapping_sub(this.area_head) <= AREA
        };
        if !fits(self) {
            self.refresh()?;
            if !fits(self) {
                return Err(PushError::Full { head: self.head });
            }
            self.choice.looked(length, self.area_tail);
        }
        // SAFETY: the body lies within its area; the consumer has released these bytes (area head); the slices are the caller's and
        // do not lie in the ring.
        unsafe {
            copy(prefix.as_ptr(), body, prefix.len());
            let to = body.add(prefix.len());
            copy_across(payload.as_ptr(), to, payload.len(), self.choice.least());
        }
        self.memory.cell(self.tail).content.with_mut(|content| {
            // SAFETY: as in `push_inline`.
            unsafe { (*content).header = header };
        });
        self.area_tail = end;
        let kind = match self.is_wide {
            false => Kind::Area,
            true => Kind::Wide,
        };
        // The lines of the next body are not fetched here: that keeps those of this one from its reader.
        Ok(self.publish(Word::new(self.tail, length, id, kind)))
    }

    /// Writes the word of the next cell and looks at `parked`.
    #[inline(always)]
    fn publish(&mut self, word: Word) -> bool {
        self.memory
            .cell(self.tail)
            .word
            .store(word.0, Ordering::Release);
        self.tail += 1;
        let rings = self.memory.consumer().parked.answer();
        // Not before: who fences would wait for these lines.
        self.own_more();
        if rings {
            self.wide_from = self.wide_from.max(self.area_tail + WIDE_AFTER);
        }
        rings
    }

    #[cold]
    fn refresh(&mut self) -> Result<(), PushError> {
        let line = self.memory.consumer();
        let head = line.head.load(Ordering::Acquire);
        // May be newer than `head`: it only grows, and up to it the area is free.
        let area_head = line.area_head.load(Ordering::Acquire);
        if self.tail.wrapping_sub(head) > CELLS || self.area_tail.wrapping_sub(area_head) > AREA {
            return Err(PushError::Broken);
        }
        self.head = head;
        self.area_head = area_head;
        Ok(())
    }
}

/// A sender that waits for room, as its interface sees it (the producer itself belongs to the link).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    memory: RingMemory,
    /// The head when the ring was found full: any other head is room, or at least progress.
    head: u64,
}

impl Waiting {
    /// A watch on `memory`, whose ring was full at `head`.
    ///
    /// # Safety
    /// `memory` stays mapped for the life of the value.
    pub(crate) unsafe fn new(memory: RingMemory, head: u64) -> Self {
        Self { memory, head }
    }
    /// Whether it is worth trying again.
    pub(crate) fn has_room(&self) -> bool {
        self.memory.consumer().head.load(Ordering::Acquire) != self.head
    }
    /// The flag that asks the consumer to ring.
    pub(crate) fn want_room(&self) -> &Flag {
        &self.memory.producer().want_room
    }
}

/// What [`Consumer::take_inline`] found.
#[derive(Debug)]
pub(crate) enum Inline {
    /// None there, or not wanted.
    Nothing,
    /// Ask [`Consumer::take_wanted`].
    Other,
    Taken {
        header: u64,
        length: usize,
    },
}

/// What [`Consumer::hold_inline`] found.
#[derive(Debug)]
pub(crate) enum InlineInPlace {
    /// None there, or not wanted, or an earlier one stays.
    Nothing,
    /// Ask [`Consumer::take_in_place`].
    Other,
    Held {
        header: u64,
        held: HeldBytes,
    },
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Consumer {
    memory: RingMemory,
    /// Number of the next message.
    head: u64,
    /// The head as last published.
    published: u64,
    /// Position after the last body taken.
    area_head: u64,
    area_published: u64,
    /// Messages taken since the ring was last found empty.
    streak: u64,
    /// Whether both processes can be made to pass a barrier.
    may_be_calm: bool,
    /// Whether the sender was told to leave its fence out.
    calm: bool,
    /// The head when this end was last about to sleep.
    slept: u64,
    /// Whether a message is read where it lies.
    hold: Arc<Hold>,
    /// Head and area head before that message: what is published while it is.
    held_at: (u64, u64),
}

impl Consumer {
    /// The receiving end of a fresh ring.
    ///
    /// # Safety
    /// `memory` stays mapped for the life of the value, and no other consumer of it exists in this process.
    pub(crate) unsafe fn new(memory: RingMemory, may_be_calm: bool) -> Self {
        Self {
            memory,
            head: 0,
            published: 0,
            area_head: 0,
            area_published: 0,
            streak: 0,
            may_be_calm,
            calm: false,
            slept: 0,
            hold: Hold::new(),
            held_at: (0, 0),
        }
    }

    /// Whether a message that was taken is read where it lies. Its room, and what lies behind it, is not given back meanwhile.
    #[inline(always)]
    pub(crate) fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// Whether a message is there.
    #[inline(always)]
    pub(crate) fn has_message(&self) -> bool {
        Word(self.memory.cell(self.head).word.load(Ordering::Acquire)).is_message(self.head)
    }

    /// Takes the next message, if there is one, and gives `(id, header, body, hold)` to `f`. `body` is valid during the call, and while `f` has
    /// taken the hold for it, and may change under its reader's eyes (module docs). `Ok(false)`: none there.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] when the cell makes no sense, or what `f` said. The ring must not be used any more.
    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        f: impl FnOnce(u8, u64, &[u8], &Arc<Hold>) -> Result<()>,
    ) -> Result<bool> {
        let cell = self.memory.cell(self.head);
        let word = Word(cell.word.load(Ordering::Acquire));
        if !word.is_message(self.head) {
            self.streak = 0;
            return Ok(false);
        }
        // A second message in a row: more are there, and each would cost the way to the sender's cache.
        if self.streak > 1 {
            prefetch_read(self.memory.cell(self.head + AHEAD));
        }
        self.streak += 1;
        let length = word.length();
        let mut gives_back = self.head + 1 - self.published >= PUBLISH_CELLS;
        if !self.hold.is_held() {
            self.held_at = (self.head, self.area_head);
        }
        match word.kind() {
            Some(Kind::Inline) if length <= MAX_INLINE => cell.content.with(|content| {
                // SAFETY: the acquire load above saw the word, so the content was written before; `length` fits the body.
                let (header, body) = unsafe {
                    (
                        (*content).header,
                        slice::from_raw_parts((&raw const (*content).body).cast::<u8>(), length),
                    )
                };
                f(word.id(), header, body, &self.hold)
            })?,
            Some(kind @ (Kind::Area | Kind::Wide)) if length <= MAX_BCOPY => {
                let is_wide = kind == Kind::Wide;
                let (body, end) = self.memory.body(is_wide, self.area_head, length);
                // SAFETY: as above, for the header.
                let header = cell.content.with(|content| unsafe { (*content).header });
                // SAFETY: it lies within its area, for a length checked just now.
                let body = unsafe { slice::from_raw_parts(body, length) };
                f(word.id(), header, body, &self.hold)?;
                self.area_head = end;
                self.fetch_following(FETCH);
                gives_back |= end - self.area_published >= PUBLISH_AREA;
            }
            _ => return Err(garbage(word)),
        }
        self.head += 1;
        if gives_back {
            self.publish();
        }
        Ok(true)
    }

    /// As [`Consumer::take_wanted`], for a message that lies in its cell, and where the head need not be published. Calls nothing: the
    /// caller has nothing to keep over a call.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn take_inline(&mut self, wanted: &Wanted) -> Inline {
        let Some(word) = self.look(wanted.looks) else {
            return Inline::Nothing;
        };
        let cell = self.memory.cell(self.head);
        let length = word.short_length();
        if !word.is(wanted.id, Kind::Inline)
            || length > wanted.room.min(MAX_INLINE)
            || self.head + 1 - self.published >= PUBLISH_CELLS
        {
            return Inline::Other;
        }
        // SAFETY: the acquire load above saw the word, so the content was written before; loaded once.
        let header = cell
            .content
            .with(|content| unsafe { (&raw const (*content).header).read_volatile() });
        if (header ^ wanted.header) & wanted.mask != 0 {
            return Inline::Nothing;
        }
        // SAFETY: `length` fits the body, and the memory that it is wanted in. Not in the closure, so that there is no call.
        unsafe {
            let body = cell.content.with(|content| &raw const (*content).body);
            copy_short(body.cast(), wanted.address, length);
        }
        self.passed();
        Inline::Taken { header, length }
    }

    /// Takes the next message into the memory that it is wanted in, if it is there and wanted: its header and length. A cell that makes no
    /// sense stays, for [`Consumer::take`] to say so.
    ///
    /// # Safety
    /// As for [`Interface::take`](crate::transport::Interface::take).
    #[inline(always)]
    pub(crate) unsafe fn take_wanted(&mut self, wanted: &Wanted) -> Option<(u64, usize)> {
        let cell = self.memory.cell(self.head);
        let word = Word(cell.word.load(Ordering::Acquire));
        if !word.is_message(self.head) {
            self.streak = 0;
            return None;
        }
        let length = word.length();
        if word.id() != wanted.id || length > wanted.room {
            return None;
        }
        // SAFETY: the acquire load above saw the word, so the content was written before; loaded once.
        let header = cell
            .content
            .with(|content| unsafe { (&raw const (*content).header).read_volatile() });
        if (header ^ wanted.header) & wanted.mask != 0 {
            return None;
        }
        if length > MAX_INLINE || !matches!(word.kind(), Some(Kind::Inline)) {
            // SAFETY: the caller's promise.
            return unsafe { self.take_long(word, header, wanted) };
        }
        cell.content.with(|content| {
            // SAFETY: `length` fits the body, and the memory that it is wanted in.
            unsafe {
                let body = (&raw const (*content).body).cast::<u8>();
                copy_small(body, wanted.address, length);
            }
        });
        self.passed();
        if self.head - self.published >= PUBLISH_CELLS {
            self.publish();
        }
        Some((header, length))
    }

    /// The same for a body in the area, whose word and header are wanted.
    ///
    /// # Safety
    /// As for [`Consumer::take_wanted`].
    #[inline(never)]
    unsafe fn take_long(
        &mut self,
        word: Word,
        header: u64,
        wanted: &Wanted,
    ) -> Option<(u64, usize)> {
        let length = word.length();
        let is_wide = match word.kind() {
            Some(Kind::Area) => false,
            Some(Kind::Wide) => true,
            _ => return None,
        };
        if length > MAX_BCOPY {
            return None;
        }
        let (body, end) = self.memory.body(is_wide, self.area_head, length);
        // SAFETY: it lies within its area, for a length checked just now; it fits where it is wanted.
        unsafe { copy(body, wanted.address, length) };
        self.area_head = end;
        self.fetch_following(FETCH_TO_COPY);
        self.passed();
        if self.head - self.published >= PUBLISH_CELLS || end - self.area_published >= PUBLISH_AREA
        {
            self.publish();
        }
        Some((header, length))
    }

    /// The word of the next message, once it is there; looked for so many times more before it is said not to be.
    #[inline(always)]
    fn look(&mut self, mut looks: u32) -> Option<Word> {
        let cell = self.memory.cell(self.head);
        let mut word = Word(cell.word.load(Ordering::Acquire));
        if !word.is_message(self.head) {
            self.streak = 0;
            // Pauses: looks that follow each other closely take the line from the sender before it has written all of it.
            while looks > 0 && !word.is_message(self.head) {
                std::hint::spin_loop();
                word = Word(cell.word.load(Ordering::Acquire));
                looks -= 1;
            }
        }
        word.is_message(self.head).then_some(word)
    }

    /// As [`Consumer::take_in_place`], for a message that lies in its cell, and where the head need not be published. Calls nothing, as
    /// [`Consumer::take_inline`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn hold_inline(
        &mut self,
        id: u8,
        header: u64,
        mask: u64,
        looks: u32,
    ) -> InlineInPlace {
        let wanted = header;
        let Some(word) = self.look(looks) else {
            return InlineInPlace::Nothing;
        };
        let length = word.short_length();
        if !word.is(id, Kind::Inline)
            || length > MAX_INLINE
            || self.head + 1 - self.published >= PUBLISH_CELLS
        {
            return InlineInPlace::Other;
        }
        let cell = self.memory.cell(self.head);
        // SAFETY: the acquire load above saw the word, so the content was written before; loaded once. Of the body the address alone is made.
        let (header, body) = cell.content.with(|content| unsafe {
            let header = (&raw const (*content).header).read_volatile();
            (header, (&raw const (*content).body).cast::<u8>())
        });
        if (header ^ wanted) & mask != 0 {
            return InlineInPlace::Nothing;
        }
        // SAFETY: the caller's promise; `length` fits the body, which is given back when the hold has ended.
        let Some(held) = (unsafe { self.hold.take_at(body, length) }) else {
            return InlineInPlace::Nothing;
        };
        self.held_at = (self.head, self.area_head);
        self.passed();
        InlineInPlace::Held { header, held }
    }

    /// Takes the next message, if it is there and wanted, and has it stay where it lies: its header, and the hold on it. `None` as well while an
    /// earlier one stays. A cell that makes no sense stays, for [`Consumer::take`] to say so.
    ///
    /// # Safety
    /// What is returned is dropped before this end of the ring, or this end is kept while it [is held](Consumer::is_held).
    pub(crate) unsafe fn take_in_place(
        &mut self,
        id: u8,
        header: u64,
        mask: u64,
    ) -> Option<(u64, HeldBytes)> {
        let wanted = header;
        let word = self.look(0)?;
        let cell = self.memory.cell(self.head);
        if word.id() != id {
            return None;
        }
        // SAFETY: the acquire load above saw the word, so the content was written before; loaded once.
        let header = cell
            .content
            .with(|content| unsafe { (&raw const (*content).header).read_volatile() });
        if (header ^ wanted) & mask != 0 {
            return None;
        }
        let (length, kind) = (word.length(), word.kind());
        let before = (self.head, self.area_head);
        let held = if length <= MAX_INLINE && matches!(kind, Some(Kind::Inline)) {
            // SAFETY: the cell is mapped; its address alone is made.
            let body = cell
                .content
                .with(|content| unsafe { (&raw const (*content).body).cast::<u8>() });
            // SAFETY: the caller's promise; `length` fits the body, which is given back when the hold has ended.
            unsafe { self.hold.take_at(body, length) }?
        } else if length <= MAX_BCOPY && matches!(kind, Some(Kind::Area | Kind::Wide)) {
            let is_wide = matches!(kind, Some(Kind::Wide));
            let (body, end) = self.memory.body(is_wide, self.area_head, length);
            // SAFETY: the caller's promise; it lies within its area, for a length checked just now.
            let held = unsafe { self.hold.take_at(body, length) }?;
            // Not the lines of the one that follows: nobody may want to read it, and its sender would have to take them back.
            self.area_head = end;
            held
        } else {
            return None;
        };
        self.held_at = before;
        self.passed();
        if self.head - self.published >= PUBLISH_CELLS
            || self.area_head - self.area_published >= PUBLISH_AREA
        {
            self.publish();
        }
        Some((header, held))
    }

    /// One more is taken. A second message in a row: more are there, and each would cost the way to the sender's cache.
    #[inline(always)]
    fn passed(&mut self) {
        if self.streak > 1 {
            prefetch_read(self.memory.cell(self.head + AHEAD));
        }
        self.streak += 1;
        self.head += 1;
    }

    /// Gets the first lines of the body that follows, if it is here already, while what was taken is acted upon.
    #[inline]
    fn fetch_following(&self, most: usize) {
        let word = Word(self.memory.cell(self.head + 1).word.load(Ordering::Relaxed));
        if word.is_message(self.head + 1) {
            let length = word.length().min(most);
            let is_wide = word.kind() == Some(Kind::Wide);
            let (body, _) = self.memory.body(is_wide, self.area_head, length);
            for line in (0..length).step_by(64) {
                prefetch_read(body.wrapping_add(line));
            }
        }
    }

    /// Tells the producer what is free. Before parking, and when [`Consumer::room_is_wanted`] calls it.
    #[inline(never)]
    pub(crate) fn publish(&mut self) {
        let line = self.memory.consumer();
        let (head, area_head) = match self.hold.is_held() {
            true => self.held_at,
            false => (self.head, self.area_head),
        };
        if self.area_published != area_head {
            line.area_head.store(area_head, Ordering::Release);
            self.area_published = area_head;
        }
        if self.published != head {
            line.head.store(head, Ordering::Release);
            self.published = head;
        }
        if self.may_be_calm && !self.calm && self.head - self.slept >= CALM_AFTER && can_be_calm() {
            self.calm = true;
            line.parked.calm();
        }
    }

    /// To be called after taking messages and finding no more for now: whether the producer sleeps for want of room and must be
    /// rung. Costs one load of a quiet line when it does not; a flag that goes up just now is seen by the next call, at the
    /// latest by the one that follows [`Consumer::park`] and its fence.
    #[inline]
    pub(crate) fn room_is_wanted(&mut self) -> bool {
        if !self.memory.producer().want_room.seems_up() {
            return false;
        }
        self.publish();
        self.memory.producer().want_room.answer()
    }

    /// Asks the producer to ring with the next message. The caller then calls [`before_the_look`](super::doorbell::before_the_look) with what this returns, then
    /// [`Consumer::room_is_wanted`], and looks once more with [`Consumer::has_message`] before it sleeps.
    #[must_use]
    pub(crate) fn park(&mut self) -> bool {
        self.slept = self.head;
        self.publish();
        self.memory.consumer().parked.raise();
        std::mem::take(&mut self.calm)
    }

    /// Takes [`Consumer::park`] back.
    pub(crate) fn unpark(&self) {
        self.memory.consumer().parked.lower();
    }
}

#[cold]
fn garbage(word: Word) -> Error {
    Error::new(
        ErrorKind::Protocol,
        format!(
            "a cell of the ring holds {:#018x}, which is no message",
            word.0
        ),
    )
}

#[cfg(all(test, not(wharf_loom)))]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;
    use crate::{
        transport::shm::layout::Content,
        util::loom::{AtomicU64, UnsafeCell},
    };

    /// A ring in ordinary memory, where it needs no system.
    struct Ring {
        cells: Box<[Cell]>,
        /// Boxes, of which nobody has more than the address.
        areas: [NonNull<[u8]>; 2],
        consumer: ConsumerLine,
        producer: ProducerLine,
    }

    // SAFETY: the ends keep each other out of the bytes, as in a segment; the boxes are freed by whichever thread drops them.
    unsafe impl Send for Ring {}
    // SAFETY: as above.
    unsafe impl Sync for Ring {}

    impl Drop for Ring {
        fn drop(&mut self) {
            for area in self.areas {
                // SAFETY: leaked in `new`, and both ends are gone.
                drop(unsafe { Box::from_raw(area.as_ptr()) });
            }
        }
    }

    impl Ring {
        fn new() -> Arc<Self> {
            let cell = || Cell {
                word: AtomicU64::new(0),
                content: UnsafeCell::new(Content {
                    header: 0,
                    body: [0; MAX_INLINE],
                }),
            };
            Arc::new(Self {
                cells: (0..CELLS).map(|_| cell()).collect(),
                areas: [AREA, WIDE].map(|room| {
                    NonNull::from(Box::leak(vec![0; room as usize].into_boxed_slice()))
                }),
                consumer: ConsumerLine {
                    head: AtomicU64::new(0),
                    area_head: AtomicU64::new(0),
                    parked: Flag::new(),
                },
                producer: ProducerLine {
                    want_room: Flag::new(),
                },
            })
        }

        fn memory(&self) -> RingMemory {
            let [area, wide] = self.areas;
            RingMemory {
                cells: NonNull::from(&*self.cells).cast(),
                area: area.cast(),
                wide: wide.cast(),
                consumer: NonNull::from(&self.consumer),
                producer: NonNull::from(&self.producer),
            }
        }
    }

    fn bytes(number: u64, length: usize) -> Vec<u8> {
        crate::transport::conformance::bed::bytes(number as usize, length)
    }

    /// The lengths of messages in turn: in the cell, in the area, and so that the area wraps.
    fn length(number: u64) -> usize {
        [0, 8, MAX_INLINE, MAX_INLINE + 1, 3000, MAX_BCOPY][number as usize % 6]
    }

    /// What the sender may use again is what has been let go of, however much more was taken.
    #[test]
    fn a_message_that_is_held_is_not_given_back() {
        let ring = Ring::new();
        // SAFETY: the ring is there to the end; one producer and one consumer.
        let (mut producer, mut consumer) = unsafe {
            (
                Producer::new(ring.memory()),
                Consumer::new(ring.memory(), false),
            )
        };
        let long = bytes(1, 5000);
        for _ in 0..3 {
            producer.push(1, 1, &[], &long).expect("room");
        }
        let take = |consumer: &mut Consumer, keeps: bool| {
            let mut taken = None;
            consumer
                .take(|_, _, body, hold| {
                    // SAFETY: let go of before the consumer is.
                    taken = keeps.then(|| unsafe { hold.take(body) }).flatten();
                    Ok(())
                })
                .expect("an honest peer")
                .then_some(taken)
        };
        assert!(take(&mut consumer, false).is_some_and(|held| held.is_none()));
        let held = take(&mut consumer, true).flatten();
        assert!(held.is_some() && consumer.is_held());
        assert!(
            take(&mut consumer, true).is_some_and(|held| held.is_none()),
            "one at a time"
        );
        let published = |consumer: &mut Consumer| {
            consumer.publish();
            let line = consumer.memory.consumer();
            (
                line.head.load(Ordering::Acquire),
                line.area_head.load(Ordering::Acquire),
            )
        };
        let (head, area) = published(&mut consumer);
        assert_eq!(head, 1, "the first alone");
        // All else can be filled and taken, and nothing of it lands on what is held.
        let mut pushed = 0;
        while producer.push(2, 2, &[], &bytes(2, 4000)).is_ok() {
            pushed += 1;
            assert!(take(&mut consumer, false).is_some());
        }
        assert!(pushed > 10);
        let bytes = held.as_ref().map(HeldBytes::to_vec);
        assert_eq!(bytes, Some(long));
        assert_eq!(published(&mut consumer), (head, area));
        drop(held);
        assert!(published(&mut consumer) > (head, area));
        assert!(producer.push(2, 2, &[], &[0; 4000]).is_ok());
    }

    /// What was sent before lies where it lay, until it is taken.
    #[test]
    fn messages_lie_in_both_areas_when_the_sender_changes() {
        let ring = Ring::new();
        // SAFETY: the ring is there to the end; one producer and one consumer.
        let (mut producer, mut consumer) = unsafe {
            (
                Producer::new(ring.memory()),
                Consumer::new(ring.memory(), false),
            )
        };
        producer.wide_from = AREA + AREA / 2;
        let messages = if cfg!(miri) { 10 } else { 3 * WIDE / 4096 };
        let (mut sent, mut most) = (0, 0);
        for taken in 0..messages {
            while producer
                .push(1, sent, &[], &bytes(sent, length(sent)))
                .is_ok()
            {
                sent += 1;
            }
            most = most.max(producer.area_tail - consumer.area_head);
            let found = consumer.take(|_, header, body, _| {
                assert_eq!(header, taken);
                assert_eq!(body, bytes(taken, length(taken)));
                Ok(())
            });
            assert!(found.expect("an honest peer"));
        }
        assert!((AREA - 2 * MAX_BCOPY as u64..=AREA).contains(&most));
        assert!(producer.is_wide || cfg!(miri));
    }

    #[test]
    fn a_receiver_that_sleeps_is_sent_to_the_first_area() {
        /// The area ends where a body does, so that none of it is passed over.
        const BODY: usize = AREA as usize / 8;
        let ring = Ring::new();
        // SAFETY: as above.
        let (mut producer, mut consumer) = unsafe {
            (
                Producer::new(ring.memory()),
                Consumer::new(ring.memory(), false),
            )
        };
        let mut pass = |sleeps: bool| {
            if sleeps {
                let _calm = consumer.park();
            }
            let rung = producer.push(1, 0, &[], &[0; BODY]).expect("room");
            assert_eq!(rung, sleeps);
            assert!(consumer.take(|_, _, _, _| Ok(())).expect("an honest peer"));
            consumer.publish();
            producer.is_wide
        };
        let enough = WIDE_AFTER / BODY as u64;
        for _ in 0..3 {
            assert!((1..enough).all(|_| !pass(false)));
            assert!(!pass(true));
        }
        assert!((0..enough).all(|_| !pass(false)));
        // Once there it stays.
        assert!(pass(false) && pass(true) && pass(false));
    }

    #[test]
    fn two_threads_pass_messages_over_the_wrap() {
        const MESSAGES: u64 = if cfg!(miri) { 60 } else { 3 * CELLS };
        let ring = Ring::new();
        let memory = ring.memory();
        let sender = thread::spawn(move || {
            // SAFETY: the ring is there until the thread has been joined; one producer.
            let mut producer = unsafe { Producer::new(memory) };
            for number in 0..MESSAGES {
                let body = bytes(number, length(number));
                let (prefix, payload) = body.split_at(body.len() / 3);
                while producer
                    .push(number as u8, number, prefix, payload)
                    .is_err()
                {
                    thread::yield_now();
                }
            }
        });
        // SAFETY: as above; one consumer.
        let mut consumer = unsafe { Consumer::new(memory, true) };
        for number in 0..MESSAGES {
            let mut seen = false;
            while !seen {
                let taken = consumer.take(|id, header, body, _| {
                    assert_eq!((id, header), (number as u8, number));
                    assert_eq!(body, bytes(number, length(number)));
                    Ok(())
                });
                seen = taken.expect("an honest peer");
                if !seen {
                    consumer.publish();
                    thread::yield_now();
                }
            }
        }
        sender.join().expect("the sender");
        drop(ring);
    }
}
