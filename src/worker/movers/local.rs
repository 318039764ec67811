//! Copies between two memories of this process, step by step.
//!
//! # Safety
//! What is copied by the processor lies in buffers of the operation, of which it has the one that is written alone, and in fragments that it
//! holds and no engine is copying.
#![allow(unsafe_code)]

use std::ptr;

use crate::{
    error::{Error, ErrorKind, Result},
    memory::run::{Location, Run},
    protocol::plan::{self, End, Moves},
    transport::CopyEnd,
    types::{MemoryType, OpKey},
    util::copy::copy,
    worker::{
        device::{
            local::{DIRECT, HOST, LocalCopy, STEP},
            order::Order,
            pipe::{Kind, Part, Pipe, Stage, end},
            pool::Side,
        },
        movers::Movers,
        operations::Work,
    },
};

impl Movers {
    /// Begins a copy of `total` bytes that is in the table. `types`: what of it the host does not reach.
    pub(crate) fn begin_local(&mut self, key: OpKey, types: &[MemoryType], total: usize) {
        let staged = self
            .ctx
            .operations
            .get(key)
            .and_then(|entry| entry.staged.as_ref());
        let ordered = staged.is_some_and(|staged| staged.order.is_some());
        if total == 0 && !ordered {
            return self.copied(key, Ok(()));
        }
        match self.devices.slots_for(types) {
            Ok((slot, others)) => {
                let mut pipe = Pipe::new(Kind::Local, slot, total);
                pipe.others = others;
                self.begin_staged(key, pipe);
            }
            Err(error) => self.fail_operation(key, error),
        }
    }

    /// Enters a copy of the user's.
    pub(crate) fn start_copy(
        &mut self,
        copy: LocalCopy,
        types: &[MemoryType],
        order: Order,
        unstaged: bool,
    ) -> OpKey {
        let total = copy.from.len();
        let key = self.ctx.operations.insert(None, false, Work::Copy(copy));
        if let Some(entry) = self.ctx.operations.get(key) {
            entry.unstaged = unstaged;
            if !order.is_none() {
                if !order.then.is_empty() {
                    self.devices.thens.push(key);
                }
                entry.staged.get_or_insert_default().order = Some(Box::new(order));
            }
        }
        self.begin_local(key, types, total);
        key
    }

    /// Begins as many parts as may be under way.
    pub(in crate::worker) fn step_local(&mut self, key: OpKey) {
        if self.ctx.pipe(key).is_some_and(|pipe| pipe.total == 0) {
            return self.staging_done(key);
        }
        while let Some(pipe) = self.ctx.pipe(key)
            && pipe.has_room()
        {
            let (slot, next, total) = (pipe.slot, pipe.next, pipe.total);
            let several = !pipe.others.is_empty();
            let (Some(from), Some(to)) = (
                self.ctx.source_run(key, next),
                self.ctx.target_run(key, next),
            ) else {
                return;
            };
            let (slot, onward) = match several {
                true => match self.slots_of(from.at, to.at) {
                    Ok(slots) => slots,
                    Err(error) => return self.ctx.staging_failed(key, error),
                },
                false => (slot, slot),
            };
            let open = self.devices.open(slot);
            let pageable = open.is_some_and(|open| open.attributes.takes_pageable);
            let length = from.length.min(to.length).min(total - next);
            let place = |at: Location, slot: usize| match at {
                Location::Device { .. } => End::Device(slot),
                Location::Host { pinned, .. } => End::Host {
                    pinned: self.devices.is_pinned_for(slot, pinned),
                },
            };
            let (out, into) = (place(from.at, slot), place(to.at, onward));
            let pinned = |end: End| matches!(end, End::Host { pinned: true });
            match (plan::moves(out, into, pageable), from.at, to.at) {
                (_, Location::Host { address: from, .. }, Location::Host { address: to, .. }) => {
                    let length = length.min(STEP);
                    // SAFETY: both runs are that long; see the chapter on safety.
                    unsafe { ptr::copy(from, to, length) };
                    let Some(pipe) = self.ctx.pipe(key) else {
                        return;
                    };
                    let id = pipe.begin(length, None, Stage::Storing);
                    pipe.end(id);
                    if pipe.is_done() {
                        return self.staging_done(key);
                    }
                    // Others have their turn.
                    return self.devices.step_soon(key);
                }
                (Moves::Across, ..) => {
                    if !self.begin_across(key, (slot, from), onward, length) {
                        return;
                    }
                }
                (Moves::Engine, ..) => {
                    // All of it in the device's hands: then its stream can wait for it. And an engine that takes ordinary memory prepares all
                    // of it at once.
                    let length = match self.ctx.has_then(key) || pageable {
                        true => length,
                        false => length.min(DIRECT),
                    };
                    let Some(pipe) = self.ctx.pipe(key) else {
                        return;
                    };
                    let id = pipe.begin(length, None, Stage::Storing);
                    let (from, to) = (end(from.at, pinned(out)), end(to.at, pinned(into)));
                    let count = self.push_copy(slot, (key, id), from, to, length);
                    self.ctx.add_copies(key, id, count);
                }
                (Moves::Fragment | Moves::Processor, ..) => {
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
                            unsafe { copy(address, fragment.address(), length) };
                            (Stage::Storing, stop, end(to.at, pinned(into)))
                        }
                        Location::Device { .. } => {
                            (Stage::Loading, end(from.at, pinned(out)), stop)
                        }
                    };
                    self.ctx.counts.staged.add(length);
                    let Some(pipe) = self.ctx.pipe(key) else {
                        return;
                    };
                    let id = pipe.begin(length, Some(fragment), stage);
                    let count = self.push_copy(slot, (key, id), from, to, length);
                    self.ctx.add_copies(key, id, count);
                }
            }
        }
    }

    /// The engines that serve the two ends of a part.
    fn slots_of(&self, from: Location, to: Location) -> Result<(usize, usize)> {
        let slot = |at| match at {
            Location::Device { memory_type, .. } => self.devices.slot_for(&[memory_type]).map(Some),
            Location::Host { .. } => Ok(None),
        };
        let (from, to) = (slot(from)?, slot(to)?);
        let first = from.or(to).unwrap_or(HOST);
        Ok((first, to.unwrap_or(first)))
    }

    /// Begins a part between two accelerators. `false`: it waits for a fragment, or has failed.
    fn begin_across(
        &mut self,
        key: OpKey,
        (slot, from): (usize, Run),
        onward: usize,
        length: usize,
    ) -> bool {
        // One that is held while the other is waited for goes back with this call.
        let Some((fragment, room)) = self.take_fragment(key, slot, Side::Out) else {
            return false;
        };
        let Some((next, more)) = self.take_fragment(key, onward, Side::Out) else {
            return false;
        };
        let length = length.min(room).min(more).min(STEP);
        let stop = CopyEnd::Host {
            address: fragment.address(),
            pinned: fragment.is_pinned(),
        };
        self.ctx.counts.staged.add(length);
        let Some(pipe) = self.ctx.pipe(key) else {
            return false;
        };
        let id = pipe.begin(length, Some(fragment), Stage::Loading);
        if let Some(part) = pipe.part(id) {
            part.onward = Some((onward, next));
        }
        let count = self.push_copy(slot, (key, id), end(from.at, false), stop, length);
        self.ctx.add_copies(key, id, count);
        true
    }

    /// A part has come out of the first of two accelerators: on to the second, from a fragment of its own.
    fn go_across(&mut self, key: OpKey, id: u32) {
        let Some(part) = self.ctx.pipe(key).and_then(|pipe| pipe.part(id)) else {
            return;
        };
        let (position, length) = (part.position, part.length);
        let (Some(came), Some((slot, fragment))) = (part.fragment.take(), part.onward.take())
        else {
            return;
        };
        // SAFETY: both are at least that long, of two pools, and this part's alone; the engine has reported that it is done with the first.
        unsafe { copy(came.address(), fragment.address(), length) };
        let from = CopyEnd::Host {
            address: fragment.address(),
            pinned: fragment.is_pinned(),
        };
        part.fragment = Some(fragment);
        part.stage = Stage::Storing;
        let Some(to) = self
            .ctx
            .target_run(key, position)
            .filter(|run| run.length >= length)
        else {
            let text = "a buffer is shorter than it was";
            return self
                .ctx
                .staging_failed(key, Error::new(ErrorKind::InvalidArgument, text));
        };
        let count = self.push_copy(slot, (key, id), from, end(to.at, false), length);
        self.ctx.add_copies(key, id, count);
    }

    /// The engine has done its share of a part.
    pub(in crate::worker) fn local_copied(&mut self, key: OpKey, id: u32) {
        let Some(part) = self.ctx.pipe(key).and_then(|pipe| pipe.part(id)) else {
            return;
        };
        if part.onward.is_some() {
            return self.go_across(key, id);
        }
        if let Part {
            stage: Stage::Loading,
            fragment: Some(fragment),
            position,
            length,
            ..
        } = part
        {
            let (fragment, position, length) = (fragment.clone(), *position, *length);
            if let Some(run) = self.ctx.target_run(key, position)
                && let Location::Host { address, .. } = run.at
            {
                // SAFETY: the part is within one run, and the engine has reported that it is done with the fragment.
                unsafe { copy(fragment.address(), address, length.min(run.length)) };
            }
        }
        self.part_over(key, id);
    }
}
