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
//! ```text
//!   far cells   │n+1│n+2│   │   │   │   │   │   │   │   │...     1,024 in a row
//!   near cells  │ n │   │   │   │   │   │...                     32, where the sender is answered message by message
//! ```
//!
//! Which cells hold the next message is said by the word of the one before it: here `n`, whose sender turned because the receiver is behind. So a near cell
//! is left for a message that says so. No more numbers are under way than there are far cells, and those in near cells are fewer than these when
//! the next is sent; the near cells are gone to when all that lay in them has been taken. So no two messages share a cell.
//!
//! # Safety
//! Both ends reach the shared memory through the raw addresses of a [`RingMemory`]; whoever makes a [`Producer`] or
//! [`Consumer`] promises that these stay mapped for its life and that it is the only one of its kind in this process.
//!
//! The other process may be hostile and write any byte at any time. So every value is used once, as it was loaded; places
//! in the area are computed here and bounded by the checked length; and nothing that is read has an invalid value (words
//! and bytes only). A body given to the closure of [`Consumer::take`] may still change while it is looked at: a reader must
//! copy each field out once and check the copy. An honest peer does not touch a cell between its publication and its release.

use std::{slice, sync::Arc};

use super::{
    cells::{Cells, RingMemory},
    copy_choice::CopyChoice,
    doorbell::{Flag, can_be_calm},
    layout::{
        AREA, CELLS, Kind, MAX_BCOPY, MAX_INLINE, MAX_NEAR, NEAR_AREA, NEAR_CELLS, Word, place,
    },
    turns::Turns,
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
/// The same of near cells.
const PUBLISH_NEAR: u64 = NEAR_CELLS / 2;
/// Bytes of bodies after which it does, where the last one is of this kind.
#[inline(always)]
const fn publish_after(kind: Kind) -> u64 {
    match kind {
        Kind::Near => NEAR_AREA / 2,
        _ => AREA / 4,
    }
}

/// Near messages after which the producer looks at the head, which it then has before it misses it.
const LOOK_NEAR: u64 = NEAR_CELLS / 4;
/// Messages after which cells that were left may look as if they held messages to come, whose numbers count to 2^32.
const OLD: u64 = 1 << 31;
/// Bytes of bodies after which the producer goes to the wide area, if the consumer has not slept meanwhile: who waits for
/// messages now and then is not worth the memory.
const WIDE_AFTER: u64 = 4 << 20;

const _: () = assert!(MAX_INLINE <= SHORTEST);

/// Messages without a sleep after which the sender need not fence: a sleep costs some 3 µs more then.
const CALM_AFTER: u64 = if cfg!(wharf_loom) { 1 } else { 4096 };

/// How many cells before its turn a line is fetched, once as many messages in a row were there: a line that its sender has not written yet would be taken from
/// it, and cost the sender the way back (a tenth of the rate on two processors that keep up with each other, 30 November 2026).
const AHEAD: u64 = 8;

/// Cells whose lines a sender takes back at once.
const OWNED: u64 = 16;

/// Bytes of a body that are fetched before its turn, at most: of a longer one the processor fetches the rest by itself.
const FETCH: usize = 1024;
/// The same where one was copied just now: a stream of 4 KiB that is awaited one by one takes 88 ns for each message, 90 with all of it, 92 with 1 KiB, 95
/// with 256 bytes (Zen 5, 28 November 2026). Fetched before the copy, one that is posted takes 10 more.
const FETCH_TO_COPY: usize = 2048;

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
    /// Where the next message goes, and how many messages may be under way before it is looked at more closely: 0 to turn.
    cells: Cells,
    room: u64,
    turns: Turns,
    /// Number of the first message after those in the other cells.
    left: u64,
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
            cells: memory.far(),
            room: CELLS,
            turns: Turns::new(),
            left: 0,
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

    /// Once the lines that were taken back are used up.
    #[inline(always)]
    fn own_more(&mut self) {
        if self.tail >= self.owned {
            self.own();
        }
    }

    /// Takes the lines of the next cells back, all at once. The consumer's cache has each, and stores leave a processor in
    /// order: one for each message would wait for one line after the other, where those that it holds at the same time get theirs together. A prefetch
    /// for writing asks for nothing where both caches have the line (seen on Zen 3).
    ///
    /// Of near cells the consumer waits for the next one: these stay with it.
    #[inline(never)]
    fn own(&mut self) {
        if self.cells.is_near() {
            // What is broken is said by the message that has no room.
            let _ = self.refresh();
            self.owned = self.tail + LOOK_NEAR;
        } else {
            let end = (self.tail + OWNED).min(self.head + CELLS);
            for number in self.tail..end {
                self.cells.cell(number).content.with_mut(|content| {
                    // SAFETY: the cell is ours until its word is written: the consumer has released it (head).
                    unsafe { (&raw mut (*content).header).write_volatile(0) };
                });
            }
            self.owned = end;
        }
        if self.turns.is_due(self.tail) {
            let (answers, is_near) = (self.memory.answers(), self.cells.is_near());
            let wants = self.turns.judge(self.tail, answers, is_near);
            self.room = if wants { 0 } else { self.most() };
        }
    }

    /// Messages that may be under way where nobody wants to turn: of near ones the last turns.
    fn most(&self) -> u64 {
        match self.cells.is_near() {
            false => CELLS,
            true => NEAR_CELLS - 1,
        }
    }

    /// Room for a message; whether those after it go to the other cells.
    #[inline(always)]
    fn claim(&mut self) -> Result<bool, PushError> {
        if self.tail.wrapping_sub(self.head) < self.room {
            return Ok(false);
        }
        self.claim_slowly()
    }

    #[inline(never)]
    fn claim_slowly(&mut self) -> Result<bool, PushError> {
        self.refresh()?;
        let under_way = self.tail.wrapping_sub(self.head);
        if under_way >= CELLS {
            return Err(PushError::Full { head: self.head });
        }
        let wants = self.room == 0;
        self.room = self.most();
        let turns = match self.cells.is_near() {
            true => wants || under_way >= self.room,
            // Those that lie in the near cells still are in the way.
            false => wants && self.head >= self.left,
        };
        if turns && self.tail - self.left >= OLD {
            self.renew();
        }
        Ok(turns)
    }

    /// Writes into the cells that messages go to after this one what none of them is: all have been taken.
    #[cold]
    fn renew(&mut self) {
        let cells = self.memory.other(&self.cells);
        for number in self.tail + 1..=self.tail + cells.count() {
            // Of the lap before.
            let word = Word::new(number - cells.count(), 0, 0, Kind::Inline);
            let cell = cells.cell(number);
            cell.word.store(word.0, Ordering::Relaxed);
        }
    }

    /// A message has said that those after it lie in the other cells.
    #[cold]
    fn turn(&mut self) {
        let is_full = self.cells.is_near() && self.tail - self.head > self.room;
        self.cells = self.memory.other(&self.cells);
        self.left = self.tail;
        self.room = self.most();
        self.owned = self.tail;
        let (answers, is_near) = (self.memory.answers(), self.cells.is_near());
        self.turns.turned(self.tail, answers, is_near, is_full);
    }

    /// Sends a body that is known to have room in a cell. The caller then asks [`Producer::is_calm`] whether that is all.
    #[inline(always)]
    pub(crate) fn push_short(&mut self, id: u8, header: u64, body: &[u8]) -> Short {
        if body.len() > MAX_INLINE || self.tail.wrapping_sub(self.head) >= self.room {
            return Short::Other;
        }
        let cell = self.cells.cell(self.tail);
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

    /// Turns with the next message, if it can.
    #[cfg(test)]
    pub(crate) fn wish_to_turn(&mut self) {
        self.room = 0;
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

    /// Sends a body that fits a cell, which the caller has checked. `true`: ring the consumer's doorbell.
    pub(crate) fn push_inline(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
    ) -> Result<bool, PushError> {
        let length = prefix.len() + payload.len();
        assert!(
            length <= self.cells.most_inline(),
            "the caller bounds an inline body"
        );
        let turns = self.claim()?;
        let cell = self.cells.cell(self.tail);
        cell.content.with_mut(|content| {
            // SAFETY: the cell is ours until its word is written: the consumer has released it (head). Lengths asserted above.
            unsafe {
                (*content).header = header;
                let body = self.cells.inline_body(content, self.tail, length);
                copy_small(prefix.as_ptr(), body, prefix.len());
                copy_small(payload.as_ptr(), body.add(prefix.len()), payload.len());
            }
        });
        let word = Word::new(self.tail, length, id, Kind::Inline);
        Ok(self.publish(word, turns))
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
        if length <= self.cells.most_inline() {
            return self.push_inline(id, header, prefix, payload);
        }
        assert!(length <= MAX_BCOPY, "the caller bounds a buffered body");
        let turns = self.claim()?;
        if self.area_tail >= self.wide_from {
            self.is_wide = true;
            self.wide_from = u64::MAX;
        }
        let kind = self.kind(length);
        let (body, end) = self.memory.body(kind, self.area_tail, length);
        // In the wide area too no more than the first one holds is under way: what follows it does not wait longer.
        let fits = |this: &Self| end.wrapping_sub(this.area_head) <= AREA;
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
            match kind {
                // Its lines are in this processor's cache.
                Kind::Near => copy(payload.as_ptr(), to, payload.len()),
                _ => {
                    let how = self.choice.how(length);
                    copy_across(payload.as_ptr(), to, payload.len(), how);
                }
            }
        }
        self.cells.cell(self.tail).content.with_mut(|content| {
            // SAFETY: as in `push_inline`.
            unsafe { (*content).header = header };
        });
        if matches!(kind, Kind::Near) {
            // What lies there is no reason for the wide area.
            self.wide_from = self.wide_from.saturating_add(end - self.area_tail);
            if end.wrapping_sub(self.area_head) > publish_after(kind) {
                // The area head, too, is had before it is missed: by what follows the message.
                self.owned = self.tail;
            }
        }
        self.area_tail = end;
        // The lines of the next body are not fetched here: that keeps those of this one from its reader.
        let word = Word::new(self.tail, length, id, kind);
        Ok(self.publish(word, turns))
    }

    /// Where a body goes: to the near area as long as everything under way fits into it.
    #[inline(always)]
    fn kind(&self, length: usize) -> Kind {
        let is_near = self.cells.is_near() && length <= MAX_NEAR && {
            let (_, end) = place(NEAR_AREA, self.area_tail, length);
            end.wrapping_sub(self.area_head) <= NEAR_AREA
        };
        match is_near {
            true => Kind::Near,
            false if self.is_wide => Kind::Wide,
            false => Kind::Area,
        }
    }

    /// Writes the word of the next cell and looks at `parked`.
    #[inline(always)]
    fn publish(&mut self, word: Word, turns: bool) -> bool {
        let cell = self.cells.cell(self.tail);
        cell.word.store(word.turning(turns).0, Ordering::Release);
        self.tail += 1;
        if turns {
            self.turn();
        }
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
        // Neither back nor past what was sent. So nothing here that subtracts one from the other overflows, whatever a peer writes.
        let may_be = (self.head..=self.tail).contains(&head)
            && (self.area_head..=self.area_tail).contains(&area_head);
        if !may_be {
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
    /// None there yet, and the head is to be [published](Consumer::publish) meanwhile. Then ask once more.
    Behind,
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
    /// As of [`Inline`].
    Behind,
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
    /// Where the next message lies.
    cells: Cells,
    /// Number of the next message.
    head: u64,
    /// The head as last published, and messages after which the next one is.
    published: u64,
    lag: u64,
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
            cells: memory.far(),
            head: 0,
            published: 0,
            lag: PUBLISH_CELLS,
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
        Word(self.cells.cell(self.head).word.load(Ordering::Acquire)).is_message(self.head)
    }

    /// Takes the next message, if there is one, and gives `(id, header, body, hold)` to `f`. `body` is valid during the call, and while `f` has
    /// taken the hold for it, and may change under its reader's eyes (module docs). `Ok(false)`: none there.
    /// Errors: [`ErrorKind::Protocol`] when the cell makes no sense, or what `f` said. The ring must not be used any more.
    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        f: impl FnOnce(u8, u64, &[u8], &Arc<Hold>) -> Result<()>,
    ) -> Result<bool> {
        let cell = self.cells.cell(self.head);
        let word = Word(cell.word.load(Ordering::Acquire));
        if !word.is_message(self.head) {
            self.streak = 0;
            return Ok(false);
        }
        // So many in a row: more are there, and each would cost the way to the sender's cache.
        if self.streak > AHEAD {
            prefetch_read(self.cells.cell(self.head + AHEAD));
        }
        self.streak += 1;
        let length = word.length();
        if !self.hold.is_held() {
            self.held_at = (self.head, self.area_head);
        }
        let kind = word.kind().ok_or_else(|| garbage(word))?;
        match kind {
            Kind::Inline if length <= self.cells.most_inline() => {
                cell.content.with(|content| {
                    let body = self.cells.inline_body(content, self.head, length);
                    // SAFETY: the acquire load above saw the word, so the content was written before; `length` fits the body.
                    let (header, body) =
                        unsafe { ((*content).header, slice::from_raw_parts(body, length)) };
                    f(word.id(), header, body, &self.hold)
                })?;
            }
            Kind::Area | Kind::Wide | Kind::Near if length <= kind.room().1 => {
                let (body, end) = self.memory.body(kind, self.area_head, length);
                // SAFETY: as above, for the header.
                let header = cell.content.with(|content| unsafe { (*content).header });
                // SAFETY: it lies within its area, for a length checked just now.
                let body = unsafe { slice::from_raw_parts(body, length) };
                f(word.id(), header, body, &self.hold)?;
                self.area_head = end;
                self.fetch_following(FETCH);
            }
            _ => return Err(garbage(word)),
        }
        self.head += 1;
        self.go_on(word, kind);
        Ok(true)
    }

    /// As [`Consumer::take_wanted`], for a message that lies in its cell, and where the head need not be published. Calls nothing: the
    /// caller has nothing to keep over a call.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn take_inline(&mut self, wanted: &Wanted) -> Inline {
        if self.is_behind(wanted.looks) {
            return Inline::Behind;
        }
        let Some(word) = self.look(wanted.looks) else {
            return Inline::Nothing;
        };
        let cell = self.cells.cell(self.head);
        let length = word.short_length();
        if !word.is(wanted.id, Kind::Inline)
            || length > wanted.room.min(MAX_INLINE)
            || self.head + 1 - self.published >= self.lag
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
        let cell = self.cells.cell(self.head);
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
        if length > self.cells.most_inline() || !matches!(word.kind(), Some(Kind::Inline)) {
            // SAFETY: the caller's promise.
            return unsafe { self.take_long(word, header, wanted) };
        }
        cell.content.with(|content| {
            let body = self.cells.inline_body(content, self.head, length);
            // SAFETY: `length` fits the body, and the memory that it is wanted in.
            unsafe { copy_small(body, wanted.address, length) };
        });
        self.passed();
        self.go_on(word, Kind::Inline);
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
        let kind = word.kind().filter(|&kind| kind != Kind::Inline)?;
        if length > kind.room().1 {
            return None;
        }
        let (body, end) = self.memory.body(kind, self.area_head, length);
        // SAFETY: it lies within its area, for a length checked just now; it fits where it is wanted.
        unsafe { copy(body, wanted.address, length) };
        self.area_head = end;
        self.fetch_following(FETCH_TO_COPY);
        self.passed();
        self.go_on(word, kind);
        Some((header, length))
    }

    /// Whether who waits for the next message, and looks several times, publishes the head first: soon that would be due, when the next message is there,
    /// and its answer would wait in the store buffer for the line of the head.
    #[inline(always)]
    fn is_behind(&self, looks: u32) -> bool {
        looks > 0
            && self.head - self.published >= (self.lag / 2).max(1)
            && !self.is_held()
            && !self.has_message()
    }

    /// The word of the next message, once it is there; looked for so many times more before it is said not to be.
    #[inline(always)]
    fn look(&mut self, mut looks: u32) -> Option<Word> {
        let cell = self.cells.cell(self.head);
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
        if self.is_behind(looks) {
            return InlineInPlace::Behind;
        }
        let Some(word) = self.look(looks) else {
            return InlineInPlace::Nothing;
        };
        let length = word.short_length();
        if !word.is(id, Kind::Inline)
            || length > MAX_INLINE
            || self.head + 1 - self.published >= self.lag
        {
            return InlineInPlace::Other;
        }
        let cell = self.cells.cell(self.head);
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
        let cell = self.cells.cell(self.head);
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
        let (length, kind) = (word.length(), word.kind()?);
        let before = (self.head, self.area_head);
        let held = if kind == Kind::Inline && length <= self.cells.most_inline() {
            let body = cell
                .content
                .with(|content| self.cells.inline_body(content, self.head, length));
            // SAFETY: the caller's promise; `length` fits the body, which is given back when the hold has ended.
            unsafe { self.hold.take_at(body, length) }?
        } else if kind != Kind::Inline && length <= kind.room().1 {
            let (body, end) = self.memory.body(kind, self.area_head, length);
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
        self.go_on(word, kind);
        Some((header, held))
    }

    /// One more is taken. So many in a row: more are there, and each would cost the way to the sender's cache.
    #[inline(always)]
    fn passed(&mut self) {
        if self.streak > AHEAD {
            prefetch_read(self.cells.cell(self.head + AHEAD));
        }
        self.streak += 1;
        self.head += 1;
    }

    /// What follows lies in the other cells. The head is published: who comes to the near ones counts by it.
    #[cold]
    fn turn(&mut self) {
        self.cells = self.memory.other(&self.cells);
        self.lag = match self.cells.is_near() {
            false => PUBLISH_CELLS,
            true => PUBLISH_NEAR,
        };
        self.publish();
    }

    /// After a message of this word and kind was taken: what it said of the next one, and room is given back where enough has come together.
    #[inline(always)]
    fn go_on(&mut self, word: Word, kind: Kind) {
        if word.turns() {
            self.turn();
        } else if self.head - self.published >= self.lag
            || self.area_head - self.area_published >= publish_after(kind)
        {
            self.publish();
        }
    }

    /// Gets the first lines of the body that follows, if it is here already, while what was taken is acted upon.
    #[inline]
    fn fetch_following(&self, most: usize) {
        let word = Word(self.cells.cell(self.head + 1).word.load(Ordering::Relaxed));
        if word.is_message(self.head + 1)
            && let Some(kind) = word.kind()
        {
            let length = word.length().min(most);
            let (body, _) = self.memory.body(kind, self.area_head, length);
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
    use std::{ptr::NonNull, sync::Arc, thread};

    use super::*;
    use crate::{
        transport::shm::layout::{Apart, Cell, ConsumerLine, Content, ProducerLine, WIDE},
        util::loom::{AtomicU64, UnsafeCell},
    };

    /// A ring in ordinary memory, where it needs no system.
    struct Ring {
        far: Box<[Cell]>,
        near: Box<[Cell]>,
        /// Boxes, of which nobody has more than the address.
        areas: [NonNull<[u8]>; 3],
        consumer: ConsumerLine,
        producer: ProducerLine,
        /// Of the other direction.
        answers: ConsumerLine,
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
            let line = || ConsumerLine {
                head: AtomicU64::new(0),
                area_head: AtomicU64::new(0),
                parked: Apart(Flag::new()),
            };
            Arc::new(Self {
                far: (0..CELLS).map(|_| cell()).collect(),
                near: (0..2 * NEAR_CELLS).map(|_| cell()).collect(),
                areas: [AREA, WIDE, NEAR_AREA].map(|room| {
                    NonNull::from(Box::leak(vec![0; room as usize].into_boxed_slice()))
                }),
                consumer: line(),
                producer: ProducerLine {
                    want_room: Flag::new(),
                },
                answers: line(),
            })
        }

        fn memory(&self) -> RingMemory {
            let [area, wide, near_area] = self.areas;
            RingMemory {
                far: NonNull::from(&*self.far).cast(),
                near: NonNull::from(&*self.near).cast(),
                area: area.cast(),
                wide: wide.cast(),
                near_area: near_area.cast(),
                consumer: NonNull::from(&self.consumer),
                producer: NonNull::from(&self.producer),
                answers: NonNull::from(&self.answers),
            }
        }
    }

    /// Both ends of a ring that is there to the end of its test, which makes no other ones.
    fn ends(ring: &Ring) -> (Producer, Consumer) {
        // SAFETY: as said above.
        unsafe {
            (
                Producer::new(ring.memory()),
                Consumer::new(ring.memory(), false),
            )
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
        let (mut producer, mut consumer) = ends(&ring);
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

    /// In the cell, in two lines of a near one, in the near area, and too long for that; of all the area has room for as many as there are near cells.
    fn some(number: u64) -> Vec<u8> {
        let lengths = [
            0,
            MAX_INLINE,
            MAX_INLINE + 1,
            112,
            113,
            1500,
            MAX_NEAR,
            3000,
        ];
        bytes(number, lengths[number as usize % 8])
    }

    /// How a message is taken.
    #[derive(Clone, Copy)]
    enum By {
        Order,
        Wanted,
        InPlace,
    }

    /// Takes what is there, each the next one.
    fn take_all(consumer: &mut Consumer, taken: &mut u64, by: By) {
        let mut room = vec![0; 2 * MAX_NEAR];
        loop {
            let body = some(*taken);
            let found = match by {
                By::Order => consumer.take(|_, header, found, _| {
                    assert_eq!((header, found), (*taken, &body[..]));
                    Ok(())
                }),
                By::Wanted => Ok(wanted(consumer, *taken, &mut room) == Some(body.len())
                    && room[..body.len()] == body),
                By::InPlace => {
                    Ok(in_place(consumer, *taken).is_some_and(|held| held.to_vec() == body))
                }
            };
            if !found.expect("an honest peer") {
                assert!(!consumer.has_message(), "message {taken} is not taken");
                return;
            }
            *taken += 1;
        }
    }

    /// As an interface does, for the message with this header alone.
    fn wanted(consumer: &mut Consumer, header: u64, room: &mut [u8]) -> Option<usize> {
        let wanted = Wanted {
            id: 1,
            header,
            mask: u64::MAX,
            address: room.as_mut_ptr(),
            room: room.len(),
            looks: 0,
        };
        // SAFETY: the room is there, and nobody else has it.
        match unsafe { consumer.take_inline(&wanted) } {
            Inline::Taken { length, .. } => Some(length),
            Inline::Nothing => None,
            Inline::Behind => unreachable!("it looks once"),
            // SAFETY: as above.
            Inline::Other => unsafe { consumer.take_wanted(&wanted) }.map(|(_, length)| length),
        }
    }

    /// The same where it lies.
    fn in_place(consumer: &mut Consumer, header: u64) -> Option<HeldBytes> {
        // SAFETY: it is dropped before the consumer is.
        match unsafe { consumer.hold_inline(1, header, u64::MAX, 0) } {
            InlineInPlace::Held { held, .. } => Some(held),
            InlineInPlace::Nothing => None,
            InlineInPlace::Behind => unreachable!("it looks once"),
            InlineInPlace::Other => {
                // SAFETY: as above.
                let held = unsafe { consumer.take_in_place(1, header, u64::MAX) };
                held.map(|(_, held)| held)
            }
        }
    }

    /// The receiver keeps up, lags and keeps up again: in order and whole.
    #[test]
    fn who_is_answered_sends_by_near_cells_until_they_are_full() {
        for by in [By::Order, By::Wanted, By::InPlace] {
            near_until_full(by);
        }
    }

    fn near_until_full(by: By) {
        let ring = Ring::new();
        let (mut producer, mut consumer) = ends(&ring);
        let (mut sent, mut taken) = (0, 0);
        let mut send = |producer: &mut Producer| {
            let body = some(sent);
            let gone = producer.push(1, sent, &[], &body).is_ok();
            sent += u64::from(gone);
            ring.answers.head.store(sent, Ordering::Relaxed);
            gone
        };
        for _ in 0..100 {
            assert!(send(&mut producer));
            take_all(&mut consumer, &mut taken, by);
        }
        assert!(producer.cells.is_near() && consumer.cells.is_near());
        // The receiver is slower: they fill, and the rest goes to the others.
        for _ in 0..NEAR_CELLS + 5 {
            assert!(send(&mut producer));
        }
        assert!(!producer.cells.is_near() && consumer.cells.is_near());
        take_all(&mut consumer, &mut taken, by);
        assert!(!consumer.cells.is_near());
        for _ in 0..3 * CELLS {
            assert!(send(&mut producer));
            take_all(&mut consumer, &mut taken, by);
        }
        assert!(producer.cells.is_near() && consumer.cells.is_near());
        // Nobody answers.
        for number in 0..100 {
            assert!(producer.push_inline(1, taken + number, &[], &[]).is_ok());
            assert!(consumer.take(|_, _, _, _| Ok(())).expect("an honest peer"));
        }
        assert!(!producer.cells.is_near() && !consumer.cells.is_near());
        assert_eq!(taken, producer.tail - 100);
    }

    /// Once for each half of what may be behind, and never while a message is read where it lies: its room is not given back.
    #[test]
    fn who_waits_publishes_the_head_meanwhile() {
        let ring = Ring::new();
        let (mut producer, mut consumer) = ends(&ring);
        let head = || ring.consumer.head.load(Ordering::Relaxed);
        let mut room = [0; 8];
        let look = |consumer: &mut Consumer, room: &mut [u8]| {
            let wanted = Wanted {
                id: 1,
                header: 0,
                mask: 0,
                address: room.as_mut_ptr(),
                room: room.len(),
                looks: 3,
            };
            // SAFETY: the room is there, and nobody else has it.
            unsafe { consumer.take_inline(&wanted) }
        };
        for number in 1..=PUBLISH_CELLS / 2 {
            assert!(matches!(look(&mut consumer, &mut room), Inline::Nothing));
            assert!(producer.push_inline(1, 0, &[], &[]).is_ok());
            let taken = look(&mut consumer, &mut room);
            assert!(matches!(taken, Inline::Taken { .. }), "{number}: {taken:?}");
            assert_eq!(head(), 0);
        }
        // A message that is there is taken first.
        assert!(producer.push_inline(1, 0, &[], &[]).is_ok());
        let taken = look(&mut consumer, &mut room);
        assert!(matches!(taken, Inline::Taken { .. }), "{taken:?}");
        assert!(matches!(look(&mut consumer, &mut room), Inline::Behind));
        consumer.publish();
        assert_eq!(head(), PUBLISH_CELLS / 2 + 1);
        assert!(matches!(look(&mut consumer, &mut room), Inline::Nothing));
        for _ in 0..PUBLISH_CELLS / 2 {
            assert!(producer.push_inline(1, 0, &[], &[]).is_ok());
        }
        let held = in_place(&mut consumer, 0).expect("in its cell");
        while matches!(look(&mut consumer, &mut room), Inline::Taken { .. }) {}
        assert!(matches!(look(&mut consumer, &mut room), Inline::Nothing));
        drop(held);
        assert!(matches!(look(&mut consumer, &mut room), Inline::Behind));
    }

    #[test]
    fn cells_that_were_left_long_ago_hold_no_message() {
        let ring = Ring::new();
        let (mut producer, mut consumer) = ends(&ring);
        let pass = |producer: &mut Producer, consumer: &mut Consumer, turns: bool| {
            if turns {
                producer.wish_to_turn();
            }
            let header = producer.tail;
            assert!(producer.push_inline(1, header, &[], &[]).is_ok());
            let mut take = || {
                consumer.take(|_, found, _, _| {
                    assert_eq!(found, header);
                    Ok(())
                })
            };
            assert!(take().expect("an honest peer"));
            assert!(!take().expect("an honest peer"), "a message of long ago");
            consumer.publish();
        };
        for _ in 0..3 {
            for _ in 0..2 * CELLS {
                pass(&mut producer, &mut consumer, false);
            }
            pass(&mut producer, &mut consumer, true);
            assert!(producer.cells.is_near() && consumer.cells.is_near());
            for _ in 0..NEAR_CELLS {
                pass(&mut producer, &mut consumer, false);
            }
            // As many messages that both sets of cells are left with words that count as the next ones.
            let skipped = (1 << 32) - CELLS;
            for number in [
                &mut producer.tail,
                &mut producer.head,
                &mut producer.owned,
                &mut consumer.head,
                &mut consumer.published,
            ] {
                *number += skipped;
            }
            ring.consumer.head.fetch_add(skipped, Ordering::Relaxed);
            pass(&mut producer, &mut consumer, true);
            assert!(!producer.cells.is_near() && !consumer.cells.is_near());
        }
    }

    /// No head that a peer may write overflows: by far cells, and by near ones, where it is looked at when they are left.
    #[test]
    fn what_cannot_have_been_taken_breaks_the_ring() {
        let told = |turns: bool, head: u64, area_head: u64| {
            let ring = Ring::new();
            let (mut producer, mut consumer) = ends(&ring);
            if turns {
                producer.wish_to_turn();
            }
            for header in 0..4 {
                let pushed = producer.push(1, header, &[], &bytes(header, 4000));
                assert!(pushed.is_ok());
                assert!(consumer.take(|_, _, _, _| Ok(())).expect("an honest peer"));
            }
            consumer.publish();
            producer.refresh().expect("an honest peer");
            assert_eq!(producer.cells.is_near(), turns);
            let line = producer.memory.consumer();
            let (head, area_head) = (
                producer.head.wrapping_add(head),
                producer.area_head.wrapping_add(area_head),
            );
            line.head.store(head, Ordering::Relaxed);
            line.area_head.store(area_head, Ordering::Relaxed);
            // Until there is no room, at the latest.
            let mut ends = (0..=CELLS).map(|_| producer.push(1, 0, &[], &[]));
            ends.find_map(Result::err)
                .expect("not more than there are cells")
        };
        for turns in [false, true] {
            assert!(matches!(told(turns, 0, 0), PushError::Full { .. }));
            let before = |number: u64| number.wrapping_neg();
            // One back, before the first, ahead.
            for head in [before(1), before(6), 2 * CELLS, 1 << 63] {
                assert!(matches!(told(turns, head, 0), PushError::Broken), "{head}");
            }
            for area in [before(64), before(5 * 4032), 64, 1 << 63] {
                assert!(matches!(told(turns, 0, area), PushError::Broken), "{area}");
            }
        }
    }

    /// What was sent before lies where it lay, until it is taken.
    #[test]
    fn messages_lie_in_both_areas_when_the_sender_changes() {
        let ring = Ring::new();
        let (mut producer, mut consumer) = ends(&ring);
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
        let (mut producer, mut consumer) = ends(&ring);
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
