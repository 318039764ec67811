//! Copies between two memories of this process, step by step.
//!
//! # Safety
//! What is copied by the processor lies in buffers of the operation, of which it has the one that is written alone, and in fragments that it
//! holds and no engine is copying.
#![allow(unsafe_code)]

use std::ptr;

use crate::{
    error::Result,
    memory::run::Location,
    protocol::plan::{self, End, Moves},
    transport::CopyEnd,
    types::{MemoryType, OpKey},
    util::copy::copy,
    worker::{
        device::{
            local::{DIRECT, HOST, LocalCopy, PAGE, STEP},
            order::Order,
            pipe::{Kind, Part, Pipe, Stage, end},
            pool::Side,
        },
        movers::Movers,
        operations::Work,
    },
};

/// The next part of a copy.
struct Local {
    way: Moves,
    /// The engine, and that of where it goes to.
    slot: usize,
    onward: usize,
    from: CopyEnd,
    to: CopyEnd,
    length: usize,
    /// The engine takes ordinary memory of this length, so many bytes at a time.
    pageable: Option<usize>,
}

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
        while self.ctx.pipe(key).is_some_and(|pipe| pipe.has_room()) {
            let Some(step) = self.next_local(key) else {
                return;
            };
            let goes_on = match step.way {
                Moves::Processor => self.copy_here(key, &step),
                Moves::Engine => self.begin_engine(key, &step),
                Moves::Fragment | Moves::Across => self.begin_stopping(key, &step),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// What is to be copied next, from one run to one run.
    fn next_local(&mut self, key: OpKey) -> Option<Local> {
        let pipe = self.ctx.pipe(key)?;
        let (slot, (next, left)) = (pipe.slot, pipe.ahead());
        let (several, refused) = (!pipe.others.is_empty(), pipe.refused);
        let from = self.ctx.source_run(key, next)?;
        let to = self.ctx.target_run(key, next)?;
        let (slot, onward) = match several {
            true => match self.slots_of(from.at, to.at) {
                Ok(slots) => slots,
                Err(error) => {
                    self.ctx.staging_failed(key, error);
                    return None;
                }
            },
            false => (slot, slot),
        };
        let length = from.length.min(to.length).min(left);
        let open = self.devices.open(slot).map(|open| open.attributes);
        let pageable = open.is_some_and(|open| open.takes_pageable(length)) && !refused;
        let place = |at: Location, slot: usize| match at {
            Location::Device { .. } => End::Device(slot),
            Location::Host { pinned, .. } => End::Host {
                pinned: self.devices.is_pinned_for(slot, pinned),
            },
        };
        let (out, into) = (place(from.at, slot), place(to.at, onward));
        let pinned = |end: End| matches!(end, End::Host { pinned: true });
        Some(Local {
            way: plan::moves(out, into, pageable),
            slot,
            onward,
            from: end(from.at, pinned(out)),
            to: end(to.at, pinned(into)),
            length,
            pageable: pageable.then_some(open.map_or(usize::MAX, |open| open.max_copy)),
        })
    }

    /// The processor copies a part. `false`: others have their turn.
    fn copy_here(&mut self, key: OpKey, step: &Local) -> bool {
        let length = step.length.min(STEP);
        if let (CopyEnd::Host { address: from, .. }, CopyEnd::Host { address: to, .. }) =
            (step.from, step.to)
        {
            // SAFETY: both runs are that long; see the chapter on safety.
            unsafe { ptr::copy(from, to, length) };
        }
        if let Some(pipe) = self.ctx.pipe(key) {
            let id = pipe.begin(length, None, Stage::Storing);
            pipe.end(id);
            match pipe.is_done() {
                true => self.staging_done(key),
                false => self.devices.step_soon(key),
            }
        }
        false
    }

    /// An engine copies a part by itself.
    fn begin_engine(&mut self, key: OpKey, step: &Local) -> bool {
        // All of it in the device's hands: then its stream can wait for it. And an engine that takes ordinary memory prepares as much
        // as it copies at once.
        let length = match (self.ctx.has_then(key), step.pageable) {
            (true, _) => step.length,
            (false, Some(most)) => whole_pages(step, most),
            (false, None) => step.length.min(DIRECT),
        };
        let Some(pipe) = self.ctx.pipe(key) else {
            return false;
        };
        let id = pipe.begin(length, None, Stage::Storing);
        self.push_copy(step.slot, (key, id), step.from, step.to, length);
        true
    }

    /// Begins a part that stops in a fragment, and then in another one between two accelerators. `false`: it waits for one, or has failed.
    fn begin_stopping(&mut self, key: OpKey, step: &Local) -> bool {
        let Some((fragment, room)) = self.take_fragment(key, step.slot, Side::Out) else {
            return false;
        };
        let (mut length, mut onward) = (step.length.min(room).min(STEP), None);
        if step.way == Moves::Across {
            // The first one, held while this one is waited for, goes back with this call.
            let Some((next, more)) = self.take_fragment(key, step.onward, Side::Out) else {
                return false;
            };
            length = length.min(more);
            onward = Some((step.onward, next));
        }
        let stop = fragment.end();
        let (stage, from, to) = match step.from {
            CopyEnd::Host { address, .. } => {
                // SAFETY: the run is that long, and the fragment, which is this operation's alone.
                unsafe { copy(address, fragment.address(), length) };
                (Stage::Storing, stop, step.to)
            }
            CopyEnd::Device { .. } => (Stage::Loading, step.from, stop),
        };
        self.ctx.counts.staged.add(length);
        let Some(pipe) = self.ctx.pipe(key) else {
            return false;
        };
        let id = pipe.begin(length, Some(fragment), stage);
        if let Some(part) = pipe.part(id) {
            part.onward = onward;
        }
        self.push_copy(step.slot, (key, id), from, to, length);
        true
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
        let from = fragment.end();
        part.fragment = Some(fragment);
        part.stage = Stage::Storing;
        let Some(to) = self
            .ctx
            .target_run(key, position)
            .filter(|run| run.length >= length)
        else {
            return self.ctx.shortened(key);
        };
        self.push_copy(slot, (key, id), from, end(to.at, false), length);
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

/// How much of a step may be prepared at once, so that what follows begins with a page of its own: no page is registered twice.
fn whole_pages(step: &Local, most: usize) -> usize {
    let ((CopyEnd::Host { address, .. }, _) | (_, CopyEnd::Host { address, .. })) =
        (step.from, step.to)
    else {
        return step.length;
    };
    let rest = (address.addr() + most) % PAGE;
    match step.length > most && most > rest {
        true => most - rest,
        false => step.length,
    }
}
