//! A launch: blocks and threads, who is next, and what each floor of a block does of itself.

use std::{collections::VecDeque, sync::Arc};

use wharf_emulated_common::random::Random;

use crate::{
    caches::{Device, LINE, Line, Lines, line_of, mask_of},
    memory::{Fault, Memory},
    program::{Program, Scope},
};

/// Blocks that are there at a time.
const RESIDENT: usize = 4;
/// Stores that a thread keeps to itself.
const KEPT: usize = 8;
/// Lines that a block keeps.
const WRITTEN: usize = 128;
const READ: usize = 256;
/// Instructions that a thread does before another one is next, at most.
const TURN: u64 = 48;

/// Blocks, and threads of each.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// How many.
    pub blocks: u32,
    /// Of each block.
    pub threads: u32,
}

/// What became of a turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Turn {
    /// There is more to do.
    Worked,
    /// There is more to do, and for a while nobody has done anything but look.
    Looked,
    /// All threads have ended.
    Over,
}

/// Threads that run an entry.
#[derive(Debug)]
pub struct Launch {
    pub(crate) program: Arc<Program>,
    pub(crate) entry: usize,
    pub(crate) arguments: Vec<u8>,
    pub(crate) grid: Grid,
    pub(crate) random: Random,
    /// The next block to begin.
    next: u32,
    blocks: Vec<Block>,
    /// Turns since something was changed.
    looks: u32,
    /// Instructions that were done.
    pub(crate) clock: u64,
}

/// A block that has begun.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) number: u32,
    pub(crate) threads: Vec<Thread>,
    /// Threads that can go on.
    ready: Vec<u32>,
    waiting: u32,
    pub(crate) lines: Lines,
}

/// A thread.
#[derive(Debug, Default)]
pub(crate) struct Thread {
    pub(crate) number: u32,
    pub(crate) frames: Vec<Frame>,
    /// The oldest first.
    pub(crate) stores: VecDeque<Kept>,
}

/// A function under way.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) function: usize,
    pub(crate) at: usize,
    pub(crate) registers: Vec<u64>,
    pub(crate) room: Vec<u8>,
    /// Where results go in the caller's room.
    pub(crate) returns: Vec<usize>,
}

/// A store that only its thread has seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) at: u64,
    pub(crate) len: u64,
    pub(crate) bytes: [u8; 16],
    /// A strong one: where it is to be done.
    pub(crate) scope: Option<Scope>,
}

impl Kept {
    const fn touches(&self, at: u64, len: u64) -> bool {
        self.at < at + len && at < self.at + self.len
    }

    fn line(&self) -> Line {
        let mut line = Line {
            mask: mask_of(self.at, self.len),
            ..Line::NONE
        };
        let (place, len) = ((self.at % LINE) as usize, self.len as usize);
        line.bytes[place..place + len].copy_from_slice(&self.bytes[..len]);
        line
    }
}

/// Why a thread's turn ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stop {
    /// Its time is over.
    Time,
    /// It sleeps, for at least a turn.
    Sleep,
    Barrier,
    End,
}

impl Launch {
    /// One that has not begun. `arguments` are the bytes of the entry's parameters, each at its place.
    pub fn new(
        program: &Arc<Program>,
        entry: usize,
        arguments: &[u8],
        grid: Grid,
        seed: u64,
    ) -> Self {
        Self {
            program: Arc::clone(program),
            entry,
            arguments: arguments.to_vec(),
            grid,
            random: Random::new(seed),
            next: 0,
            blocks: Vec::new(),
            looks: 0,
            clock: 0,
        }
    }

    /// The bytes of an entry's parameters.
    pub fn arguments(program: &Program, entry: usize, values: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let parameters = program.function(entry).map_or(&[][..], |f| f.parameters());
        for (parameter, value) in parameters.iter().zip(values) {
            bytes.resize(parameter.place, 0);
            let value = value.to_le_bytes();
            bytes.extend_from_slice(&value[..parameter.size.min(8)]);
        }
        bytes
    }

    /// Lets one thread do some of its work.
    ///
    /// # Errors
    /// What the thread did wrong: the launch is over then.
    pub fn turn(&mut self, device: &Device, memory: &dyn Memory) -> Result<Turn, Fault> {
        while self.blocks.len() < RESIDENT && self.next < self.grid.blocks {
            let block = self.begin(self.next);
            self.blocks.push(block);
            self.next += 1;
        }
        if self.blocks.is_empty() {
            return Ok(Turn::Over);
        }
        let index = self.random.up_to(self.blocks.len() as u64 - 1) as usize;
        let mut block = self.blocks.swap_remove(index);
        self.of_itself(&mut block, device, memory)?;
        let turn = 1 + self.random.up_to(TURN - 1);
        let place = self.random.up_to(block.ready.len() as u64 - 1) as usize;
        let number = block.ready[place];
        let before = self.clock;
        let mut thread = std::mem::take(&mut block.threads[number as usize]);
        let mut changed = false;
        let stop = self.run(&mut thread, &mut block, device, memory, turn, &mut changed);
        block.threads[number as usize] = thread;
        debug_assert!(self.clock > before, "a turn does something");
        match stop? {
            Stop::Time | Stop::Sleep => {}
            stop => {
                changed = true;
                block.ready.swap_remove(place);
                block.waiting += u32::from(stop == Stop::Barrier);
            }
        }
        if block.ready.is_empty() && block.waiting > 0 {
            self.meet(&mut block, device, memory)?;
        }
        self.looks = if changed { 0 } else { self.looks + 1 };
        if block.ready.is_empty() {
            self.end(block, device, memory)?;
        } else {
            self.blocks.push(block);
        }
        let live: usize = self.blocks.iter().map(|block| block.ready.len()).sum();
        Ok(match self.looks as usize > live.max(1) {
            true => {
                self.looks = 0;
                Turn::Looked
            }
            false => Turn::Worked,
        })
    }

    /// Runs to the end, where nothing beyond has to move meanwhile.
    ///
    /// # Errors
    /// As [`Launch::turn`].
    pub fn run_alone(mut self, device: &Device, memory: &dyn Memory) -> Result<(), Fault> {
        while self.turn(device, memory)? != Turn::Over {}
        Ok(())
    }

    fn begin(&self, number: u32) -> Block {
        let function = &self.program.functions[self.entry];
        let mut room = self.arguments.clone();
        room.resize(function.room.max(room.len()), 0);
        let thread = |number| Thread {
            number,
            frames: vec![Frame {
                function: self.entry,
                at: 0,
                registers: vec![0; function.registers.len()],
                room: room.clone(),
                returns: Vec::new(),
            }],
            stores: VecDeque::new(),
        };
        Block {
            number,
            threads: (0..self.grid.threads).map(thread).collect(),
            ready: (0..self.grid.threads).collect(),
            waiting: 0,
            lines: Lines::default(),
        }
    }

    /// All threads that have not ended are at the barrier: their stores are seen by each other.
    fn meet(
        &mut self,
        block: &mut Block,
        device: &Device,
        memory: &dyn Memory,
    ) -> Result<(), Fault> {
        let mut threads = std::mem::take(&mut block.threads);
        for thread in &mut threads {
            if !thread.frames.is_empty() {
                block.ready.push(thread.number);
            }
            drain(thread, block, device, memory)?;
        }
        block.threads = threads;
        block.waiting = 0;
        Ok(())
    }

    fn end(&mut self, mut block: Block, device: &Device, memory: &dyn Memory) -> Result<(), Fault> {
        let mut threads = std::mem::take(&mut block.threads);
        for thread in &mut threads {
            drain(thread, &mut block, device, memory)?;
        }
        while let Some((line, bytes)) = block.lines.take_any(&mut self.random) {
            device.merge(memory, line, &bytes)?;
        }
        Ok(())
    }

    /// What happens without anybody's wish: lines go down, the oldest or not.
    fn of_itself(
        &mut self,
        block: &mut Block,
        device: &Device,
        memory: &dyn Memory,
    ) -> Result<(), Fault> {
        let chance = self.random.next();
        if (chance.is_multiple_of(16) || block.lines.written_lines() > WRITTEN)
            && let Some((line, bytes)) = block.lines.take_any(&mut self.random)
        {
            device.merge(memory, line, &bytes)?;
        }
        if (chance >> 8).is_multiple_of(64) {
            device.leak(memory)?;
        }
        Ok(())
    }

    /// A thread's store, which may be seen at once or later.
    pub(crate) fn keep(
        &mut self,
        store: Kept,
        thread: &mut Thread,
        block: &mut Block,
        device: &Device,
        memory: &dyn Memory,
    ) -> Result<(), Fault> {
        thread.stores.push_back(store);
        while thread.stores.len() > KEPT {
            self.let_go(thread, block, device, memory)?;
        }
        Ok(())
    }

    /// Any store of a thread's is done, unless an older one is of the same bytes: then that.
    pub(crate) fn let_go(
        &mut self,
        thread: &mut Thread,
        block: &mut Block,
        device: &Device,
        memory: &dyn Memory,
    ) -> Result<(), Fault> {
        if thread.stores.is_empty() {
            return Ok(());
        }
        let mut at = self.random.up_to(thread.stores.len() as u64 - 1) as usize;
        loop {
            let Kept { at: from, len, .. } = thread.stores[at];
            let mut older = thread.stores.iter().take(at);
            match older.position(|store| store.touches(from, len)) {
                Some(older) => at = older,
                None => break,
            }
        }
        match thread.stores.remove(at) {
            Some(store) => perform(&store, block, device, memory),
            None => Ok(()),
        }
    }

    /// Bytes as a plain load sees them: within a line.
    pub(crate) fn load_weak(
        &mut self,
        at: u64,
        bytes: &mut [u8],
        thread: &Thread,
        block: &mut Block,
        device: &Device,
        memory: &dyn Memory,
    ) -> Result<(), Fault> {
        let (line, place, len) = (line_of(at), (at % LINE) as usize, bytes.len());
        let mask = mask_of(at, len as u64);
        let written = block.lines.written(line).copied();
        if let Some(written) = &written
            && written.mask & mask == mask
        {
            bytes.copy_from_slice(&written.bytes[place..place + len]);
        } else {
            let old = block.lines.read(line).copied();
            let old = old.filter(|_| !self.random.next().is_multiple_of(8));
            let found = old.or_else(|| {
                let found = device.fetch(memory, line)?;
                block.lines.keep(line, found, READ, &mut self.random);
                Some(found)
            });
            match found {
                Some(mut found) => {
                    if let Some(written) = &written {
                        written.lay_over(&mut found);
                    }
                    bytes.copy_from_slice(&found[place..place + len]);
                }
                None => {
                    device.fetch_part(memory, at, bytes)?;
                    if let Some(written) = &written {
                        for (index, byte) in bytes.iter_mut().enumerate() {
                            if written.mask >> (place + index) & 1 == 1 {
                                *byte = written.bytes[place + index];
                            }
                        }
                    }
                }
            }
        }
        for store in &thread.stores {
            if store.touches(at, len as u64) {
                for index in 0..store.len {
                    let place = (store.at + index).wrapping_sub(at);
                    if place < len as u64 {
                        bytes[place as usize] = store.bytes[index as usize];
                    }
                }
            }
        }
        Ok(())
    }
}

/// Does all stores that a thread has kept, in their order: what is asked for is that they are seen, not how.
pub(crate) fn drain(
    thread: &mut Thread,
    block: &mut Block,
    device: &Device,
    memory: &dyn Memory,
) -> Result<(), Fault> {
    while let Some(store) = thread.stores.pop_front() {
        perform(&store, block, device, memory)?;
    }
    Ok(())
}

/// Does the stores of a thread that touch some bytes, and those before them that touch the same.
pub(crate) fn drain_touching(
    at: u64,
    len: u64,
    thread: &mut Thread,
    block: &mut Block,
    device: &Device,
    memory: &dyn Memory,
) -> Result<(), Fault> {
    if thread.stores.iter().any(|store| store.touches(at, len)) {
        return drain(thread, block, device, memory);
    }
    Ok(())
}

/// Moves what stands above the floor of a scope, of some bytes, down to it, and forgets what was read of them: what comes next is done there.
pub(crate) fn clear_way(
    at: u64,
    len: u64,
    scope: Scope,
    block: &mut Block,
    device: &Device,
    memory: &dyn Memory,
) -> Result<(), Fault> {
    let (line, mask) = (line_of(at), mask_of(at, len));
    block.lines.forget(line);
    if scope > Scope::Block
        && let Some(bytes) = block.lines.take(line, mask)
    {
        device.merge(memory, line, &bytes)?;
    }
    if scope == Scope::System {
        device.push(memory, line, mask)?;
    }
    Ok(())
}

/// Does a store where it is to be done.
fn perform(
    store: &Kept,
    block: &mut Block,
    device: &Device,
    memory: &dyn Memory,
) -> Result<(), Fault> {
    let line = line_of(store.at);
    let Some(scope) = store.scope else {
        block.lines.merge(line, &store.line());
        return Ok(());
    };
    clear_way(store.at, store.len, scope, block, device, memory)?;
    match scope {
        Scope::Block => {
            block.lines.merge(line, &store.line());
            Ok(())
        }
        Scope::Device => device.merge(memory, line, &store.line()),
        Scope::System => {
            let mut word = [0; 8];
            word.copy_from_slice(&store.bytes[..8]);
            match store.len {
                4 | 8 => memory.store(store.at, store.len, u64::from_le_bytes(word)),
                len => memory.write(store.at, &store.bytes[..len as usize]),
            }
        }
    }
}

/// Moves all that was written above the floor of a scope to it.
pub(crate) fn release(
    scope: Scope,
    thread: &mut Thread,
    block: &mut Block,
    device: &Device,
    memory: &dyn Memory,
) -> Result<(), Fault> {
    drain(thread, block, device, memory)?;
    if scope > Scope::Block {
        while let Some((line, bytes)) = block.lines.take_first() {
            device.merge(memory, line, &bytes)?;
        }
    }
    if scope == Scope::System {
        device.settle(memory)?;
    }
    Ok(())
}

/// Forgets all that was read above the floor of a scope.
pub(crate) fn acquire(scope: Scope, block: &mut Block, device: &Device) {
    if scope > Scope::Block {
        block.lines.forget_all();
    }
    if scope == Scope::System {
        device.refresh();
    }
}
