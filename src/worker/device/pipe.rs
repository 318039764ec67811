//! The parts of a transfer that are under way, and what all transfers do with them.
//!
//! ```text
//!            next                                 total
//!   ┌─────────┬────────┬────────┬────────┬──────────┐
//!   │  done   │ part 3 │ part 4 │ part 5 │ not begun│
//!   └─────────┴────────┴────────┴────────┴──────────┘
//! ```

use std::collections::VecDeque;

use crate::{
    error::Error,
    memory::run::{Location, Run},
    transport::CopyEnd,
    types::OpKey,
    worker::{
        core::Core,
        operations::{Entry, Work},
    },
};

use super::{
    engines::Ready,
    local::HOST,
    pool::{Fragment, Side},
};

/// Parts of one transfer that are under way at a time: one is copied, one on its way, one landing, one to spare.
pub(super) const DEPTH: usize = 4;

/// What staging knows of an operation.
#[derive(Default)]
pub(crate) struct Staged {
    /// Copies that were asked of an engine and not reported. The entry and its memory stay as long as there are any.
    pub(crate) copies: u32,
    /// The operation that this one does a part of, and which.
    pub(crate) parent: Option<(OpKey, u32)>,
    pub(super) pipe: Option<Pipe>,
}

/// What kind of transfer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Between two buffers of this process.
    Local,
}

pub(super) struct Pipe {
    pub(super) kind: Kind,
    pub(super) slot: usize,
    pub(super) total: usize,
    /// The first byte that no part has.
    pub(super) next: usize,
    /// Bytes of parts that are over.
    pub(super) done: usize,
    pub(super) parts: VecDeque<Part>,
    id: u32,
    /// For an engine, or a fragment.
    pub(super) waits: bool,
}

pub(super) struct Part {
    pub(super) id: u32,
    pub(super) position: usize,
    pub(super) length: usize,
    pub(super) fragment: Option<Fragment>,
    /// Copies of it that are not reported.
    pub(super) copies: u32,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// On its way into the fragment.
    Loading,
    /// On its way to where it belongs.
    Storing,
}

impl Pipe {
    pub(super) fn new(kind: Kind, slot: usize, total: usize) -> Self {
        Self {
            kind,
            slot,
            total,
            next: 0,
            done: 0,
            parts: VecDeque::new(),
            id: 0,
            waits: false,
        }
    }

    /// Begins the next part.
    pub(super) fn begin(&mut self, length: usize, fragment: Option<Fragment>, stage: Stage) -> u32 {
        self.id = self.id.wrapping_add(1);
        self.parts.push_back(Part {
            id: self.id,
            position: self.next,
            length,
            fragment,
            copies: 0,
            stage,
        });
        self.next += length;
        self.id
    }

    pub(super) fn part(&mut self, id: u32) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.id == id)
    }

    /// A part is over.
    pub(super) fn end(&mut self, id: u32) {
        if let Some(index) = self.parts.iter().position(|part| part.id == id)
            && let Some(part) = self.parts.remove(index)
        {
            self.done += part.length;
        }
    }

    /// Whether another part may begin.
    pub(super) fn has_room(&self) -> bool {
        self.next < self.total && self.parts.len() < DEPTH
    }

    pub(super) fn is_done(&self) -> bool {
        self.done == self.total
    }
}

impl Entry {
    /// Whether engines still copy for it.
    #[inline]
    pub(crate) fn is_copied(&self) -> bool {
        self.staged.as_ref().is_some_and(|staged| staged.copies > 0)
    }

    /// Whether it goes on.
    fn goes_on(&self) -> bool {
        let put = matches!(&self.work, Work::Put(put) if put.local);
        self.deferred.is_none() && (self.outcome.is_none() || put)
    }

    pub(super) fn pipe(&mut self) -> Option<&mut Pipe> {
        self.staged.as_mut()?.pipe.as_mut()
    }
}

impl Core {
    /// The pipe of an operation that goes on.
    pub(super) fn pipe(&mut self, key: OpKey) -> Option<&mut Pipe> {
        self.operations
            .get(key)
            .filter(|entry| entry.goes_on())?
            .pipe()
    }

    /// Gives an operation a pipe, and begins.
    pub(super) fn begin_staged(&mut self, key: OpKey, pipe: Pipe) {
        if let Some(entry) = self.operations.get(key) {
            entry.staged.get_or_insert_default().pipe = Some(pipe);
            self.step_staged(key);
            self.pump_engines();
        }
    }

    /// Does what can be done for an operation now.
    pub(super) fn step_staged(&mut self, key: OpKey) {
        let Some(pipe) = self.pipe(key) else { return };
        if pipe.waits {
            return;
        }
        let (kind, slot) = (pipe.kind, pipe.slot);
        let ready = match slot {
            HOST => Ready::Now,
            _ => self.engine_ready(slot, key),
        };
        match ready {
            Ready::Now => {}
            Ready::Later => return self.waits(key, true),
            Ready::Never(error) => return self.staging_failed(key, error),
        }
        match kind {
            Kind::Local => self.step_local(key),
        }
    }

    /// What an operation waited for has come.
    pub(super) fn step_waiting(&mut self, key: OpKey) {
        self.waits(key, false);
        self.step_staged(key);
    }

    fn waits(&mut self, key: OpKey, waits: bool) {
        if let Some(pipe) = self.pipe(key) {
            pipe.waits = waits;
        }
    }

    /// Takes a fragment for an operation. `None`: it waits for one, or has failed.
    pub(super) fn take_fragment(
        &mut self,
        key: OpKey,
        slot: usize,
        side: Side,
    ) -> Option<(Fragment, usize)> {
        let link = self.operations.get(key)?.link;
        let open = self.devices.open(slot)?;
        match &open.pinned {
            Ok(pinned) => {
                let length = pinned.length;
                if let Some(fragment) = pinned.take(side, link) {
                    return Some((fragment, length));
                }
                self.waits(key, true);
                self.devices.wait_for_fragment(key, slot, side, link);
            }
            Err(error) => {
                let error = error.duplicate();
                self.staging_failed(key, error);
            }
        }
        None
    }

    /// An engine has done one of the copies of a part.
    pub(super) fn part_copied(&mut self, key: OpKey, id: u32) {
        let Some(pipe) = self.pipe(key) else { return };
        let kind = pipe.kind;
        let Some(part) = pipe.part(id) else { return };
        part.copies = part.copies.saturating_sub(1);
        if part.copies > 0 {
            return;
        }
        match kind {
            Kind::Local => self.local_copied(key, id),
        }
    }

    /// Counts requests for a part.
    pub(super) fn add_copies(&mut self, key: OpKey, id: u32, count: u32) {
        if let Some(part) = self.pipe(key).and_then(|pipe| pipe.part(id)) {
            part.copies += count;
        }
    }

    /// A part is over: the transfer is, or goes on.
    pub(super) fn part_over(&mut self, key: OpKey, id: u32) {
        let Some(pipe) = self.pipe(key) else { return };
        pipe.end(id);
        if pipe.is_done() {
            self.staging_done(key);
        } else {
            self.step_staged(key);
        }
    }

    /// All bytes are where they belong.
    pub(super) fn staging_done(&mut self, key: OpKey) {
        let Some(pipe) = self.pipe(key) else { return };
        match pipe.kind {
            Kind::Local => self.copied(key, Ok(())),
        }
    }

    /// An operation cannot be done, or not to its end.
    pub(super) fn staging_failed(&mut self, key: OpKey, error: Error) {
        let Some(pipe) = self.pipe(key) else { return };
        match pipe.kind {
            Kind::Local => self.fail_operation(key, error),
        }
    }

    /// Where the bytes of an operation come from.
    pub(super) fn source_run(&mut self, key: OpKey, position: usize) -> Option<Run> {
        match &self.operations.get(key)?.work {
            Work::Copy(copy) => Some(copy.from.run(position)),
            _ => None,
        }
    }

    /// Where they go.
    pub(super) fn target_run(&mut self, key: OpKey, position: usize) -> Option<Run> {
        match &mut self.operations.get(key)?.work {
            Work::Copy(copy) => Some(copy.to.run(copy.offset + position)),
            _ => None,
        }
    }
}

/// A place as the engine takes it.
pub(super) fn end(at: Location, pinned_here: bool) -> CopyEnd {
    match at {
        Location::Host { address, .. } => CopyEnd::Host {
            address,
            pinned: pinned_here,
        },
        Location::Device {
            address,
            memory_type,
        } => CopyEnd::Device {
            address,
            memory_type,
        },
    }
}
