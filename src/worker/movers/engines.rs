//! Engines that copy for devices: what is handed to them, and what they report.
//!
//! # Safety
//! Both ends of a request belong to an operation of the table, or to a fragment that it holds. Its entry counts the request in
//! `Staged::copies`, and stays, with all that it owns, until the engine has reported it or was dropped (`errands.rs`).
#![allow(unsafe_code)]

use slab::Slab;

use crate::{
    error::{Error, ErrorKind, Result},
    transport::{CopyEnd, CopyRequest, SendError},
    types::OpKey,
    worker::{
        ctx::Ctx,
        device::{
            engines::{BATCH, Open, PLACE, Reports, State, Use, Waiting, place, skip},
            local::HOST,
        },
        movers::{Errand, Movers},
        operations::Entry,
    },
};

impl Movers {
    /// Whether an operation may use an engine, which is opened if it is not: then the operation is stepped again when it is, or failed
    /// when it cannot be.
    pub(in crate::worker) fn engine_ready(&mut self, slot: usize, op: OpKey) -> Result<bool> {
        if slot == HOST {
            return Ok(true);
        }
        let devices = &mut self.devices;
        if devices.closed {
            return Err(Error::new(ErrorKind::Closed, "the worker was shut down"));
        }
        let Some(found) = devices.slots.get_mut(slot) else {
            let text = "no accelerator is in use";
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        match &mut found.state {
            State::Open(open) => match &open.lost {
                // What it had under way was reported before it was lost.
                Some(error) if !open.engine.is_back() => Err(error.clone()),
                _ => {
                    open.lost = None;
                    Ok(true)
                }
            },
            State::Opening => {
                found.waiting.push(op);
                Ok(false)
            }
            State::Closed => {
                found.waiting.push(op);
                found.state = State::Opening;
                self.errand(Errand::Open(slot));
                Ok(false)
            }
        }
    }

    /// An engine was opened, or could not be. What is left over is to be dropped outside the lock, on a thread that may block.
    pub(crate) fn engine_opened(
        &mut self,
        index: usize,
        opened: Result<Box<Open>>,
    ) -> Option<Box<Open>> {
        let devices = &mut self.devices;
        let slot = devices.slots.get_mut(index)?;
        let waiting = std::mem::take(&mut slot.waiting);
        let (left, failed) = match opened {
            Ok(open) if devices.closed => {
                let error = Error::new(ErrorKind::Closed, "the worker was shut down");
                (Some(open), Some(error))
            }
            Ok(open) => {
                slot.state = State::Open(open);
                (None, None)
            }
            Err(error) => {
                // The next operation tries again.
                slot.state = State::Closed;
                (None, Some(error))
            }
        };
        for op in waiting {
            match &failed {
                None => self.devices.step_soon(op),
                Some(error) => self.ctx.staging_failed(op, error.clone()),
            }
        }
        left
    }

    /// Asks an engine for a copy, for a part of an operation. In as many requests as it takes.
    pub(in crate::worker) fn push_copy(
        &mut self,
        slot: usize,
        (op, part): (OpKey, u32),
        from: CopyEnd,
        to: CopyEnd,
        length: usize,
    ) -> u32 {
        let unstaged = self.ctx.is_unstaged(op) || self.devices.staging_forbidden();
        let open = self.devices.engine(slot);
        let Some(most) = open.map(|open| open.attributes.max_copy.max(1)) else {
            return 0;
        };
        let (mut done, mut count) = (0, 0);
        while done < length {
            let length = most.min(length - done);
            let request = CopyRequest {
                from: skip(from, done),
                to: skip(to, done),
                length,
                token: self.devices.enter_use(op, part, slot),
                unstaged,
            };
            if let Some(open) = self.devices.open(slot) {
                open.queue.push_back(request);
            }
            done += length;
            count += 1;
        }
        if let Some(entry) = self.ctx.operations.get(op)
            && let Some(staged) = &mut entry.staged
        {
            staged.copies += count;
        }
        if let Some(part) = self.ctx.pipe(op).and_then(|pipe| pipe.part(part)) {
            part.copies += count;
        }
        count
    }

    /// Hands requests to the engines, as many as they take.
    pub(in crate::worker) fn pump_engines(&mut self) {
        for index in 0..self.devices.slots.len() {
            self.pump_engine(index);
        }
        self.queue_streams();
    }

    fn pump_engine(&mut self, index: usize) {
        let devices = &mut self.devices;
        let Some(State::Open(open)) = devices.slots.get_mut(index).map(|slot| &mut slot.state)
        else {
            return;
        };
        let mut pump = Pump {
            open,
            uses: &mut devices.uses,
            ctx: &mut self.ctx,
            begun: false,
            failed: Vec::new(),
        };
        pump.hand_places();
        pump.hand_copies();
        let Pump { begun, failed, .. } = pump;
        if begun {
            devices.fresh = true;
            open.engine.flush();
        }
        for (token, error) in failed {
            self.reported(token, Err(error));
        }
    }

    /// One pass: takes what engines report, and lets go on who waited. Returns how many things happened.
    pub(crate) fn progress_devices(&mut self) -> usize {
        let mut moved = 0;
        for index in 0..self.devices.slots.len() {
            moved += self.progress_engine(index);
        }
        for _ in 0..self.devices.steps.len() {
            let Some(op) = self.devices.steps.pop_front() else {
                break;
            };
            moved += 1;
            self.step_waiting(op);
        }
        if !self.devices.waiting.is_empty() && self.devices.was_released() {
            while let Some(op) = self.devices.next_waiting() {
                moved += 1;
                self.step_waiting(op);
            }
        }
        self.pump_engines();
        let devices = &mut self.devices;
        devices.fresh = false;
        devices.live =
            devices.is_busy() || !devices.steps.is_empty() || !devices.waiting.is_empty();
        moved
    }

    fn progress_engine(&mut self, index: usize) -> usize {
        let mut reports = std::mem::take(&mut self.devices.reports);
        if let Some(open) = self.devices.open(index)
            && open.under_way > 0
        {
            open.engine.progress(BATCH, &mut reports);
        }
        let moved = self.take_reports(index, &mut reports);
        self.devices.reports = reports;
        moved
    }

    /// Acts upon what an engine has reported.
    pub(in crate::worker) fn take_reports(&mut self, index: usize, reports: &mut Reports) -> usize {
        let mut moved = reports.copied.len();
        for (token, result) in reports.copied.drain(..) {
            self.reported(token, result);
        }
        if let Some(error) = reports.lost.take() {
            moved += 1;
            self.engine_lost(index, error);
        }
        moved
    }

    /// An engine is of no use any more. What it had taken it reports; what it had not fails here.
    fn engine_lost(&mut self, index: usize, error: Error) {
        let error = match error.kind() {
            ErrorKind::DeviceLost => error,
            _ => Error::new(ErrorKind::DeviceLost, "the device is lost").with_source(error),
        };
        tracing::error!(target: "wharf::worker", %error, "an engine that copies for a device");
        if let Some(open) = self.devices.open(index) {
            open.lost = Some(error.clone());
            open.queue.clear();
            open.places.clear();
        }
        for token in self.devices.unreported(index, false) {
            self.reported(token, Err(error.clone()));
        }
        let waiting = std::mem::take(&mut self.devices.waiting);
        let of_it = |waiting: &Waiting| waiting.slot == index;
        let (over, still) = waiting.into_iter().partition(of_it);
        self.devices.waiting = still;
        for op in Vec::<Waiting>::into_iter(over).flat_map(|waiting| waiting.ops) {
            self.ctx.staging_failed(op, error.clone());
        }
    }

    /// An engine was brought to rest and dropped: what it did not report it never will.
    pub(in crate::worker) fn engine_ended(&mut self, index: usize) {
        for token in self.devices.unreported(index, true) {
            let error = Error::new(ErrorKind::Closed, "the worker was shut down");
            self.reported(token, Err(error));
        }
    }

    /// A copy is over.
    fn reported(&mut self, token: u64, result: Result<()>) {
        let uses = &mut self.devices.uses;
        let known = |held: &Use| held.token(place(token)) == token;
        if !uses.get(place(token)).is_some_and(known) {
            return;
        }
        let held = uses.remove(place(token));
        if held.begun
            && let Some(open) = self.devices.open(held.slot)
        {
            open.under_way = open.under_way.saturating_sub(1);
        }
        if held.part == PLACE {
            return self.place_reached(held.op, result);
        }
        let Some(entry) = self.ctx.operations.get(held.op) else {
            return;
        };
        let Some(staged) = &mut entry.staged else {
            return;
        };
        staged.copies = staged.copies.saturating_sub(1);
        if entry.deferred.is_some() {
            if staged.copies == 0
                && entry.in_flight == 0
                && let Some(ended) = entry.deferred.take()
            {
                self.finish(held.op, ended);
            }
            return;
        }
        match result {
            Ok(()) => self.part_copied(held.op, held.part, true),
            Err(error)
                if error.kind() == ErrorKind::WouldBlock
                    && self.ctx.is_pageable(held.op, held.part) =>
            {
                tracing::debug!(target: "wharf::worker", "host memory is staged: {error}");
                self.part_copied(held.op, held.part, false);
            }
            Err(error) => self.ctx.staging_failed(held.op, error),
        }
    }
}

/// Requests on their way to an engine.
struct Pump<'a> {
    open: &'a mut Open,
    uses: &'a mut Slab<Use>,
    ctx: &'a mut Ctx,
    /// The engine took some.
    begun: bool,
    /// By their tokens, to be reported.
    failed: Vec<(u64, Error)>,
}

impl Pump<'_> {
    /// Those that wait for a place in the program's streams.
    fn hand_places(&mut self) {
        for _ in 0..self.open.places.len() {
            let Some((at, token)) = self.open.places.pop_front() else {
                break;
            };
            let Some(held) = self.uses.get(place(token)) else {
                continue;
            };
            let goes_on = |entry: &mut Entry| entry.is_under_way();
            let goes_on = self.ctx.operations.get(held.op).is_some_and(goes_on);
            let asked = match self.refusal(goes_on) {
                Some(error) => Err(SendError::Failed(error)),
                None => self.open.engine.after(at, token),
            };
            let alone = "the engine waits for no place though nothing is under way";
            if !self.handed(token, asked, alone) {
                // There may be room for others, which this one waits for.
                self.open.places.push_back((at, token));
            }
        }
    }

    fn hand_copies(&mut self) {
        while let Some(request) = self.open.queue.front().copied() {
            if let Some(held) = self.uses.get(place(request.token)) {
                let goes_on = |entry: &mut Entry| entry.deferred.is_none();
                let goes_on = self.ctx.operations.get(held.op).is_some_and(goes_on);
                let asked = match self.refusal(goes_on) {
                    Some(error) => Err(SendError::Failed(error)),
                    // SAFETY: the operation, which is in the table, owns both ends; it stays until this was reported. Parts of one
                    // operation do not overlap, and what one reads the other does not write.
                    None => unsafe { self.open.engine.copy(request) },
                };
                if asked.is_ok() {
                    self.ctx.counts.device_copies.add(request.length);
                }
                let alone = "the engine takes no copy though none is under way";
                if !self.handed(request.token, asked, alone) {
                    break;
                }
            }
            self.open.queue.pop_front();
        }
    }

    /// Why a request, whose operation goes on or does not, is not handed to the engine.
    fn refusal(&self, goes_on: bool) -> Option<Error> {
        match &self.open.lost {
            Some(error) => Some(error.clone()),
            None if !goes_on => Some(Error::new(ErrorKind::Canceled, "cancelled")),
            None => None,
        }
    }

    /// What became of it. `false`: the engine has no place for it now. `alone`: what is wrong if it will not say when it has.
    fn handed(&mut self, token: u64, asked: Result<(), SendError>, alone: &'static str) -> bool {
        let error = match asked {
            Ok(()) => {
                if let Some(held) = self.uses.get_mut(place(token)) {
                    held.begun = true;
                }
                self.open.under_way += 1;
                self.begun = true;
                return true;
            }
            Err(SendError::Full) if self.open.under_way > 0 => return false,
            Err(SendError::Full) => Error::new(ErrorKind::Io, alone),
            Err(SendError::Failed(error)) => error,
        };
        self.failed.push((token, error));
        true
    }
}
