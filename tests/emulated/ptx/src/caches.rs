//! What a floor of the memory holds: lines that were written and have not gone down, and lines that were read.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use wharf_emulated_common::random::Random;

use crate::memory::{Fault, Memory};

/// Bytes of a line.
pub(crate) const LINE: u64 = 64;
/// Lines that were written, for a device, before some go beyond by themselves.
const WRITTEN: usize = 4096;
/// Lines that were read and are kept.
const READ: usize = 4096;

/// Some bytes of a line: bit `i` of the mask says that byte `i` is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) mask: u64,
    pub(crate) bytes: [u8; LINE as usize],
}

impl Line {
    pub(crate) const NONE: Self = Self {
        mask: 0,
        bytes: [0; LINE as usize],
    };

    /// Puts another's bytes over its own.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.mask |= other.mask;
        other.lay_over(&mut self.bytes);
    }

    /// Puts its bytes over those of the same line.
    pub(crate) fn lay_over(&self, bytes: &mut [u8; LINE as usize]) {
        if self.mask == u64::MAX {
            *bytes = self.bytes;
            return;
        }
        let mut mask = self.mask;
        while mask != 0 {
            let at = mask.trailing_zeros() as usize;
            bytes[at] = self.bytes[at];
            mask &= mask - 1;
        }
    }

    /// What it has of the mask; that leaves it.
    fn split(&mut self, mask: u64) -> Self {
        let part = Self {
            mask: self.mask & mask,
            bytes: self.bytes,
        };
        self.mask &= !mask;
        part
    }
}

/// The bits of `len` bytes at an address, within its line.
pub(crate) const fn mask_of(at: u64, len: u64) -> u64 {
    let bits = if len >= LINE {
        u64::MAX
    } else {
        (1 << len) - 1
    };
    bits << (at % LINE)
}

pub(crate) const fn line_of(at: u64) -> u64 {
    at - at % LINE
}

/// Lines by their addresses, in an order of their own so that one seed is one run.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    written: BTreeMap<u64, Line>,
    read: BTreeMap<u64, [u8; LINE as usize]>,
}

impl Lines {
    pub(crate) fn written(&self, line: u64) -> Option<&Line> {
        self.written.get(&line)
    }

    pub(crate) fn read(&self, line: u64) -> Option<&[u8; LINE as usize]> {
        self.read.get(&line)
    }

    /// What was written comes from above.
    pub(crate) fn merge(&mut self, line: u64, bytes: &Line) {
        self.written.entry(line).or_insert(Line::NONE).merge(bytes);
    }

    pub(crate) fn keep(
        &mut self,
        line: u64,
        bytes: [u8; LINE as usize],
        most: usize,
        random: &mut Random,
    ) {
        self.read.insert(line, bytes);
        if self.read.len() > most {
            let gone = pick(&self.read, random);
            self.read.remove(&gone);
        }
    }

    /// Forgets what was read of a line.
    pub(crate) fn forget(&mut self, line: u64) {
        self.read.remove(&line);
    }

    /// Forgets all that was read.
    pub(crate) fn forget_all(&mut self) {
        self.read.clear();
    }

    pub(crate) fn written_lines(&self) -> usize {
        self.written.len()
    }

    /// Takes bytes of a line that go down. What was read of it is no older than they are.
    pub(crate) fn take(&mut self, line: u64, mask: u64) -> Option<Line> {
        let found = self.written.get_mut(&line)?;
        let part = found.split(mask);
        if found.mask == 0 {
            self.written.remove(&line);
        }
        if let Some(read) = self.read.get_mut(&line) {
            part.lay_over(read);
        }
        (part.mask != 0).then_some(part)
    }

    /// Takes any line.
    pub(crate) fn take_any(&mut self, random: &mut Random) -> Option<(u64, Line)> {
        if self.written.is_empty() {
            return None;
        }
        let line = pick(&self.written, random);
        self.take(line, u64::MAX).map(|bytes| (line, bytes))
    }

    /// Takes the first line.
    pub(crate) fn take_first(&mut self) -> Option<(u64, Line)> {
        let line = *self.written.keys().next()?;
        self.take(line, u64::MAX).map(|bytes| (line, bytes))
    }
}

/// The key of any line.
fn pick<T>(lines: &BTreeMap<u64, T>, random: &mut Random) -> u64 {
    let first = lines.keys().next().copied().unwrap_or_default();
    let last = lines.keys().next_back().copied().unwrap_or_default();
    let from = first + random.up_to(last - first);
    lines.range(from..).next().map_or(last, |(line, _)| *line)
}

/// What all launches of a device share: what its blocks have written and read of the memory beyond.
#[derive(Debug)]
pub struct Device {
    floor: Mutex<(Lines, Random)>,
}

impl Device {
    /// One that has seen nothing. What it does of itself follows from the seed.
    pub const fn new(seed: u64) -> Self {
        let lines = Lines {
            written: BTreeMap::new(),
            read: BTreeMap::new(),
        };
        Self {
            floor: Mutex::new((lines, Random::new(seed))),
        }
    }

    /// Sends all that was written beyond, as a release at system scope does, or the host's wait for a stream.
    ///
    /// # Errors
    /// `Address`: memory has gone.
    pub fn settle(&self, memory: &dyn Memory) -> Result<(), Fault> {
        let lines = &mut self.floor.lock().0;
        while let Some((line, bytes)) = lines.take_first() {
            send(memory, line, &bytes)?;
        }
        Ok(())
    }

    /// Forgets all that was read, as an acquire at system scope does: what the host or a copy has done before is seen.
    pub fn refresh(&self) {
        self.floor.lock().0.forget_all();
    }

    /// What was written comes from a block.
    pub(crate) fn merge(&self, memory: &dyn Memory, line: u64, bytes: &Line) -> Result<(), Fault> {
        let (lines, random) = &mut *self.floor.lock();
        lines.merge(line, bytes);
        while lines.written_lines() > WRITTEN
            && let Some((line, bytes)) = lines.take_any(random)
        {
            send(memory, line, &bytes)?;
        }
        Ok(())
    }

    /// Some line goes beyond by itself.
    pub(crate) fn leak(&self, memory: &dyn Memory) -> Result<(), Fault> {
        let (lines, random) = &mut *self.floor.lock();
        match lines.take_any(random) {
            Some((line, bytes)) => send(memory, line, &bytes),
            None => Ok(()),
        }
    }

    /// A line as it is seen here. `None`: not all of it is memory.
    pub(crate) fn fetch(&self, memory: &dyn Memory, line: u64) -> Option<[u8; LINE as usize]> {
        let (lines, random) = &mut *self.floor.lock();
        let mut bytes = [0; LINE as usize];
        match lines.read(line) {
            // Mostly the old ones.
            Some(old) if !random.next().is_multiple_of(8) => bytes = *old,
            _ => {
                memory.read(line, &mut bytes).ok()?;
                lines.keep(line, bytes, READ, random);
            }
        }
        if let Some(written) = lines.written(line) {
            written.lay_over(&mut bytes);
        }
        Some(bytes)
    }

    /// Bytes of a line that `fetch` does not give.
    pub(crate) fn fetch_part(
        &self,
        memory: &dyn Memory,
        at: u64,
        bytes: &mut [u8],
    ) -> Result<(), Fault> {
        let floor = self.floor.lock();
        memory.read(at, bytes)?;
        if let Some(written) = floor.0.written(line_of(at)) {
            for (index, byte) in bytes.iter_mut().enumerate() {
                let place = (at % LINE) as usize + index;
                if written.mask >> place & 1 == 1 {
                    *byte = written.bytes[place];
                }
            }
        }
        Ok(())
    }

    /// Bytes of a line go beyond, and what was read of it is forgotten: what comes next is done there.
    pub(crate) fn push(&self, memory: &dyn Memory, line: u64, mask: u64) -> Result<(), Fault> {
        let lines = &mut self.floor.lock().0;
        lines.forget(line);
        match lines.take(line, mask) {
            Some(bytes) => send(memory, line, &bytes),
            None => Ok(()),
        }
    }

    /// Changes a word on this floor, with nothing in between.
    pub(crate) fn change(
        &self,
        memory: &dyn Memory,
        at: u64,
        width: u64,
        change: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> Result<u64, Fault> {
        let lines = &mut self.floor.lock().0;
        let line = line_of(at);
        // Not what was read before: whoever looks again and again sees a new value some time.
        lines.forget(line);
        let (place, mask) = ((at % LINE) as usize, mask_of(at, width));
        let written = lines.written(line).copied().unwrap_or(Line::NONE);
        let mut word = [0; 8];
        if written.mask & mask != mask {
            let value = memory.load(at, width)?;
            word = value.to_le_bytes();
        }
        for (index, byte) in word.iter_mut().take(width as usize).enumerate() {
            if written.mask >> (place + index) & 1 == 1 {
                *byte = written.bytes[place + index];
            }
        }
        let was = u64::from_le_bytes(word);
        if let Some(value) = change(was) {
            let mut bytes = Line { mask, ..Line::NONE };
            bytes.bytes[place..place + width as usize]
                .copy_from_slice(&value.to_le_bytes()[..width as usize]);
            lines.merge(line, &bytes);
        }
        Ok(was)
    }
}

/// Writes a line's bytes beyond, run by run.
fn send(memory: &dyn Memory, line: u64, bytes: &Line) -> Result<(), Fault> {
    let mut mask = bytes.mask;
    while mask != 0 {
        let start = mask.trailing_zeros();
        let len = (mask >> start).trailing_ones();
        let run = &bytes.bytes[start as usize..(start + len) as usize];
        memory.write(line + u64::from(start), run)?;
        mask &= !mask_of(u64::from(start), u64::from(len));
    }
    Ok(())
}
