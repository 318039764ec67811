//! Copies within the process, between any two memories.
//!
//! | from, to | how |
//! |---|---|
//! | both on the engine's devices, or one of them pinned for it | by the engine alone |
//! | one of them host memory that is not pinned | by the engine and a fragment, unless the engine takes such memory itself |
//! | both host memory | by the processor |
//!
//! # Safety
//! What is copied by the processor lies in buffers of the operation, of which it has the one that is written alone, and in fragments that it
//! holds and no engine is copying.
#![allow(unsafe_code)]

use std::ptr;

use crate::{
    memory::{Buffer, BufferMut, run::Location},
    transport::CopyEnd,
    types::{MemoryType, OpKey},
    worker::{core::Core, operations::Work},
};

use super::{
    pipe::{Kind, Part, Pipe, Stage, end},
    pool::Side,
};

/// Bytes that the processor copies in one step: 20 to 40 µs.
const STEP: usize = 256 << 10;
/// In the place of an engine's: both ends are host memory, and none is needed.
pub(super) const HOST: usize = usize::MAX;
/// Bytes that an engine is asked for at a time.
const DIRECT: usize = 64 << 20;

/// A copy of the user's.
pub(crate) struct LocalCopy {
    pub(crate) from: Buffer,
    pub(crate) to: BufferMut,
    /// Where in `to`.
    pub(crate) offset: usize,
}

impl Core {
    /// Begins a copy of `total` bytes that is in the table. `types`: what of it the host does not reach.
    pub(crate) fn begin_local(&mut self, key: OpKey, types: &[MemoryType], total: usize) {
        if total == 0 {
            return self.copied(key, Ok(()));
        }
        match self.devices.slot_for(types) {
            Ok(slot) => self.begin_staged(key, Pipe::new(Kind::Local, slot, total)),
            Err(error) => self.fail_operation(key, error),
        }
    }

    /// Enters a copy of the user's.
    pub(crate) fn start_copy(&mut self, copy: LocalCopy, types: &[MemoryType]) -> OpKey {
        let total = copy.from.len();
        let key = self.operations.insert(None, false, Work::Copy(copy));
        self.begin_local(key, types, total);
        key
    }

    /// Begins as many parts as may be under way.
    pub(super) fn step_local(&mut self, key: OpKey) {
        while let Some(pipe) = self.pipe(key)
            && pipe.has_room()
        {
            let (slot, next, total) = (pipe.slot, pipe.next, pipe.total);
            let (Some(from), Some(to)) = (self.source_run(key, next), self.target_run(key, next))
            else {
                return;
            };
            let open = self.devices.open(slot);
            let pageable = open.is_some_and(|open| open.attributes.takes_pageable);
            let length = from.length.min(to.length).min(total - next);
            // Whether the engine reads or writes it by itself.
            let by_itself = |at: Location| match at {
                Location::Device { .. } => (true, false),
                Location::Host { pinned, .. } => {
                    let pinned = self.devices.is_pinned_for(slot, pinned);
                    (pinned || pageable, pinned)
                }
            };
            let (takes_from, pinned_from) = by_itself(from.at);
            let (takes_to, pinned_to) = by_itself(to.at);
            match (from.at, to.at) {
                (Location::Host { address: from, .. }, Location::Host { address: to, .. }) => {
                    let length = length.min(STEP);
                    // SAFETY: both runs are that long; see the chapter on safety.
                    unsafe { ptr::copy(from, to, length) };
                    let Some(pipe) = self.pipe(key) else { return };
                    let id = pipe.begin(length, None, Stage::Storing);
                    pipe.end(id);
                    if pipe.is_done() {
                        return self.staging_done(key);
                    }
                    // Others have their turn.
                    return self.devices.step_soon(key);
                }
                _ if takes_from && takes_to => {
                    let length = length.min(DIRECT);
                    let Some(pipe) = self.pipe(key) else { return };
                    let id = pipe.begin(length, None, Stage::Storing);
                    let (from, to) = (end(from.at, pinned_from), end(to.at, pinned_to));
                    let count = self.push_copy(slot, (key, id), from, to, length);
                    self.add_copies(key, id, count);
                }
                _ => {
                    let Some((fragment, room)) = self.take_fragment(key, slot, Side::Out) else {
                        return;
                    };
                    let length = length.min(room).min(STEP);
                    let stop = CopyEnd::Host {
                        address: fragment.address(),
                        pinned: fragment.is_pinned(),
                    };
                    let (stage, from, to) = match from.at {
                        Location::Host { address, .. } => {
                            // SAFETY: the run is that long, and the fragment, which is this operation's alone.
                            unsafe {
                                ptr::copy_nonoverlapping(address, fragment.address(), length)
                            };
                            (Stage::Storing, stop, end(to.at, pinned_to))
                        }
                        Location::Device { .. } => {
                            (Stage::Loading, end(from.at, pinned_from), stop)
                        }
                    };
                    let Some(pipe) = self.pipe(key) else { return };
                    let id = pipe.begin(length, Some(fragment), stage);
                    let count = self.push_copy(slot, (key, id), from, to, length);
                    self.add_copies(key, id, count);
                }
            }
        }
    }

    /// The engine has done its share of a part.
    pub(super) fn local_copied(&mut self, key: OpKey, id: u32) {
        let Some(part) = self.pipe(key).and_then(|pipe| pipe.part(id)) else {
            return;
        };
        if let Part {
            stage: Stage::Loading,
            fragment: Some(fragment),
            position,
            length,
            ..
        } = part
        {
            let (fragment, position, length) = (fragment.clone(), *position, *length);
            if let Some(run) = self.target_run(key, position)
                && let Location::Host { address, .. } = run.at
            {
                // SAFETY: the part is within one run, and the engine has reported that it is done with the fragment.
                unsafe {
                    ptr::copy_nonoverlapping(fragment.address(), address, length.min(run.length))
                };
            }
        }
        self.part_over(key, id);
    }
}
