//! Transfers that stop in pinned host memory, part by part.
//!
//! # Safety
//! What the processor copies lies in buffers that the operation owns, and in a fragment that a part of it holds, while no engine copies it.
#![allow(unsafe_code)]

use crate::{
    error::{Error, ErrorKind},
    memory::run::{Location, Run},
    protocol::control,
    types::{LinkId, OpKey},
    util::copy::copy,
    worker::{
        ctx::Ctx,
        device::{
            blocks::run_in,
            engines::skip,
            forbidden,
            pipe::{Kind, Pipe, Stage, Staged, end},
            pool::{Fragment, Side},
        },
        movers::{Errand, Movers},
        operations::{Ended, Entry, Work},
        pressure::Deferred,
        rma::Target,
        source::Source,
    },
};

impl Ctx {
    /// The pipe of an operation that goes on.
    pub(in crate::worker) fn pipe(&mut self, key: OpKey) -> Option<&mut Pipe> {
        self.operations
            .get(key)
            .filter(|entry| entry.goes_on())?
            .pipe()
    }

    /// Whether a part is between two places of this process's, with no stop.
    pub(in crate::worker) fn is_pageable(&mut self, key: OpKey, id: u32) -> bool {
        self.pipe(key).is_some_and(|pipe| {
            matches!(pipe.kind, Kind::Local)
                && pipe.part(id).is_some_and(|part| part.fragment.is_none())
        })
    }

    pub(in crate::worker) fn waits(&mut self, key: OpKey, waits: bool) {
        if let Some(pipe) = self.pipe(key) {
            pipe.waits = waits;
        }
    }

    fn end_staged(&mut self, link: Option<LinkId>, staged: Staged) {
        if let Some(source) = staged.source {
            self.deferred.push(Deferred::Buffer(source));
        }
        if let Some(own) = staged.own {
            self.deferred.push(Deferred::Own(own));
        }
        if let Some(pipe) = staged.pipe {
            self.end_route(link, pipe.route);
        }
        if let Some(link) = link
            && staged.credit > 0
        {
            self.consumed(link, staged.credit);
        }
    }

    /// A run of its is missing.
    pub(in crate::worker) fn shortened(&mut self, key: OpKey) {
        let text = "a buffer is shorter than it was";
        self.staging_failed(key, Error::new(ErrorKind::InvalidArgument, text));
    }

    /// An operation cannot be done, or not to its end.
    pub(in crate::worker) fn staging_failed(&mut self, key: OpKey, error: Error) {
        if self.pipe(key).is_none() {
            return;
        }
        self.refuse_served(key, error.kind());
        self.write_failed(key, &error);
        self.fail_operation(key, error);
    }

    /// Tells the peer, where it waits for an operation of this side, that there comes no more.
    pub(crate) fn refuse_served(&mut self, key: OpKey, kind: ErrorKind) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        let staged = entry.staged.as_deref();
        let (told, blocks) = match (&*entry.work, staged) {
            (Work::Serve(serve), _) => (Some(serve.out.to), serve.answer.is_some()),
            (_, Some(staged)) => match staged.pipe.as_ref().map(|pipe| pipe.kind) {
                Some(Kind::Pull { op, .. }) => (Some(op), false),
                _ => (staged.sender, false),
            },
            _ => return,
        };
        match (entry.link, told) {
            (Some(link), Some(op)) if blocks => self.answer_failed(link, op, kind),
            (Some(link), Some(op)) => {
                self.fill_answered(link, key);
                self.refuse(link, op, kind);
            }
            _ => {}
        }
    }

    /// This worker's own send that a receive takes from.
    fn sender(&mut self, key: OpKey) -> Option<u64> {
        self.operations.get(key)?.staged.as_ref()?.sender
    }

    /// Where the bytes of an operation come from.
    pub(in crate::worker) fn source_run(&mut self, key: OpKey, position: usize) -> Option<Run> {
        let entry = self.operations.get(key)?;
        let staged = entry.staged.as_deref();
        match &*entry.work {
            Work::Copy(copy) => Some(copy.from.run(position)),
            Work::Put(put) => Some(put.buffer.run(position)),
            Work::Write(write) => Some(write.buffer.run(position)),
            Work::Serve(serve) => Some(match &serve.source {
                Source::Region(exposed) => match &serve.answer {
                    Some(answer) => run_in(exposed, answer.places()?, position)?,
                    None => exposed.run(serve.offset + position),
                },
                Source::Message(buffer) => buffer.run(serve.offset + position),
            }),
            Work::Recv(_) => Some(staged?.source.as_ref()?.run(position)),
            Work::Get(_) => Some(staged?.own.as_ref()?.run(position)),
            _ => None,
        }
    }

    /// Where they go.
    pub(in crate::worker) fn target_run(&mut self, key: OpKey, position: usize) -> Option<Run> {
        let entry = self.operations.get(key)?;
        match &mut *entry.work {
            Work::Copy(copy) => Some(copy.to.run(copy.offset + position)),
            Work::Recv(recv) => Some(recv.buffer.run(position)),
            Work::Get(get) => Some(get.buffer.run(position)),
            Work::Put(_) => Some(entry.staged.as_ref()?.own.as_ref()?.run(position)),
            Work::Fill(fill) => match &fill.places {
                Some(places) => run_in(&fill.exposed, places, position),
                None => Some(fill.exposed.run(fill.offset + position)),
            },
            _ => None,
        }
    }
}

impl Movers {
    /// Begins a put or get, in the table, of memory that the host does not reach: in parts.
    pub(crate) fn begin_parts(&mut self, key: OpKey, target: Target) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let (types, total, kind, asks) = match &*entry.work {
            Work::Put(put) => {
                let types = put.buffer.device_types();
                (types, put.buffer.len(), Kind::Put { target }, false)
            }
            Work::Get(get) => {
                let types = get.buffer.device_types();
                // Nobody asks for the way to blocks.
                let asks = target.on_device && get.layout.is_none();
                (types, get.buffer.len(), Kind::Get { target }, asks)
            }
            _ => return,
        };
        let (link, unstaged) = (entry.link.filter(|_| asks), entry.unstaged);
        match self.devices.slot_for(&types) {
            Ok(slot) => {
                let mut pipe = Pipe::new(kind, slot, total);
                if let Some(link) = link {
                    pipe.route = self.route_to(link, slot, total, unstaged);
                }
                self.begin_staged(key, pipe);
            }
            Err(error) => self.fail_operation(key, error),
        }
    }

    /// Gives an operation a pipe, and begins.
    pub(in crate::worker) fn begin_staged(&mut self, key: OpKey, pipe: Pipe) {
        if let Some(entry) = self.ctx.operations.get(key) {
            entry.staged.get_or_insert_default().pipe = Some(pipe);
            self.step_staged(key);
            self.pump_engines();
        }
    }

    /// Does what can be done for an operation now.
    pub(in crate::worker) fn step_staged(&mut self, key: OpKey) {
        let Some(pipe) = self.ctx.pipe(key) else {
            return;
        };
        if pipe.waits {
            return;
        }
        let (kind, first) = (pipe.kind, pipe.slot);
        // First: what the program queues in its streams from here on does not count.
        if !self.in_order(key) {
            return;
        }
        let mut slot = Some(first);
        let mut index = 0;
        while let Some(needed) = slot {
            match self.engine_ready(needed, key) {
                Ok(true) => {}
                Ok(false) => return self.ctx.waits(key, true),
                Err(error) => return self.ctx.staging_failed(key, error),
            }
            slot = self
                .ctx
                .pipe(key)
                .and_then(|pipe| pipe.others.get(index).copied());
            index += 1;
        }
        match kind {
            Kind::Local => self.step_local(key),
            Kind::Serve | Kind::Write | Kind::Put { .. } => self.step_serve(key),
            Kind::Pull { .. } | Kind::Get { .. } => self.step_pull(key, kind),
        }
    }

    /// What an operation waited for has come.
    pub(in crate::worker) fn step_waiting(&mut self, key: OpKey) {
        self.ctx.waits(key, false);
        self.step_staged(key);
    }

    /// Why the bytes of an operation may not stop in host memory, where they may not.
    pub(in crate::worker) fn may_not_stop(&mut self, key: OpKey) -> Option<Error> {
        let unstaged = self.ctx.is_unstaged(key);
        (unstaged || self.devices.staging_forbidden()).then(|| forbidden(unstaged))
    }

    /// Takes a fragment for an operation: the one door to all stops in host memory. `None`: it waits for one, or has failed.
    pub(in crate::worker) fn take_fragment(
        &mut self,
        key: OpKey,
        slot: usize,
        side: Side,
    ) -> Option<(Fragment, usize)> {
        let link = self.ctx.operations.get(key)?.link;
        let pinned = match (self.may_not_stop(key), self.devices.engine(slot)) {
            (Some(error), _) => Err(error),
            (None, Some(open)) => open.pinned.as_ref().map_err(Error::clone),
            (None, None) => Err(Error::new(ErrorKind::Closed, "the engine is not open")),
        };
        match pinned.map(|pinned| Some((pinned.take(side, link)?, pinned.length))) {
            Ok(Some(taken)) => return Some(taken),
            Ok(None) => {
                self.ctx.waits(key, true);
                self.devices.wait_for_fragment(key, slot, side, link);
                self.attend();
            }
            Err(error) => self.ctx.staging_failed(key, error),
        }
        None
    }

    /// Has it looked after that who waits for a fragment gets one.
    fn attend(&mut self) {
        if !std::mem::replace(&mut self.devices.attended, true) {
            self.errand(Errand::Attend);
        }
    }

    /// A look at those that wait for fragments, some seconds after the last. Where none was handed out for long, the peer loses its connection that has had
    /// one of that pool for longest.
    pub(crate) fn make_way(&mut self) {
        self.devices.attended = false;
        let mut lacking: Vec<(usize, Side)> = Vec::new();
        for waiting in &self.devices.waiting {
            let pool = (waiting.slot, waiting.side);
            let pinned = self.devices.pinned(waiting.slot);
            if pinned.is_some_and(|pinned| pinned.is_lacking(waiting.side, waiting.link))
                && waiting.ops.iter().any(|op| self.ctx.pipe(*op).is_some())
                && !lacking.contains(&pool)
            {
                lacking.push(pool);
            }
        }
        for (slot, side) in lacking {
            if let Some(pinned) = self.devices.pinned(slot)
                && pinned.has_stalled(side)
                && let Some((_, link)) = self.longest_held(slot, side)
            {
                let text = "the peer holds up memory that others wait for";
                let error = Error::new(ErrorKind::DeadlineExceeded, text);
                self.ctx.failures.push((link, error));
            }
        }
        if !self.devices.waiting.is_empty() {
            self.attend();
        }
    }

    /// Which peer has had a fragment of a pool for longest, and its number. Where an engine has it, the peer cannot help that.
    fn longest_held(&mut self, slot: usize, side: Side) -> Option<(u64, LinkId)> {
        let pinned = self.devices.pinned(slot)?;
        let held = self.ctx.operations.iter().filter_map(|(_, entry)| {
            let link = entry.link?;
            let peer = self.ctx.peers.get(link.index())?.as_ref()?;
            if peer.slot != link || !peer.is_alive() || peer.is_own() {
                return None;
            }
            let staged = entry.staged.as_deref();
            let parts = staged.and_then(|staged| staged.pipe.as_ref());
            let parts = parts.into_iter().flat_map(|pipe| &pipe.parts);
            let ready = parts.filter(|part| part.stage == Stage::Ready);
            let ready = ready.filter_map(|part| part.fragment.as_ref());
            let travelling = staged.and_then(|staged| staged.fragment.as_ref());
            let lent = match &*entry.work {
                Work::Frame { fragment } => Some(fragment),
                _ => None,
            };
            let all = ready.chain(travelling).chain(lent);
            let number = all.filter_map(|held| held.number_in(pinned, side));
            Some((number.min()?, link))
        });
        held.min()
    }

    /// Takes a fragment for the next part: it, where the part is, and how long. `None`: there is no room for one, or it comes later, or the
    /// operation has failed.
    pub(in crate::worker) fn next_part(
        &mut self,
        key: OpKey,
        side: Side,
    ) -> Option<(Fragment, usize, usize)> {
        let pipe = self.ctx.pipe(key).filter(|pipe| pipe.has_room())?;
        let (slot, next, left) = (pipe.slot, pipe.next, pipe.most - pipe.next);
        if left == 0 && matches!(pipe.kind, Kind::Write) {
            // Until the stream has room.
            return None;
        }
        let (fragment, room) = self.take_fragment(key, slot, side)?;
        let most = left.min(room);
        let length = self.ctx.part_length(key, next, most, side == Side::Out);
        if length == 0 {
            self.devices.step_soon(key);
            return None;
        }
        self.ctx.counts.staged.add(length);
        Some((fragment, next, length))
    }

    /// A copy of a part is over. `taken`: made; else the engine did not take its memory.
    pub(in crate::worker) fn part_copied(&mut self, key: OpKey, id: u32, taken: bool) {
        let Some(pipe) = self.ctx.pipe(key) else {
            return;
        };
        let kind = pipe.kind;
        let Some(part) = pipe.part(id) else { return };
        part.copies = part.copies.saturating_sub(1);
        part.refused |= !taken;
        if part.copies > 0 {
            return;
        }
        if part.refused {
            pipe.refused = true;
            pipe.take_back(id);
            return self.step_local(key);
        }
        self.part_moved(key, id, kind);
    }

    /// All copies of a part are done.
    fn part_moved(&mut self, key: OpKey, id: u32, kind: Kind) {
        match kind {
            Kind::Local => self.local_copied(key, id),
            Kind::Serve | Kind::Write => self.ctx.part_loaded(key, id),
            Kind::Put { target } => self.put_loaded(key, id, target),
            Kind::Pull { .. } | Kind::Get { .. } => self.part_over(key, id),
        }
    }

    /// Copies a part between its fragment and where it belongs: what is on a device by the engine, what the host reaches by the processor.
    pub(in crate::worker) fn move_part(&mut self, key: OpKey, id: u32, load: bool) {
        let Some(pipe) = self.ctx.pipe(key) else {
            return;
        };
        let (kind, slot) = (pipe.kind, pipe.slot);
        let Some(part) = pipe.part(id) else { return };
        let (position, length) = (part.position, part.length);
        let Some(fragment) = part.fragment.clone() else {
            return;
        };
        let (mut done, mut copies) = (0, 0);
        while done < length {
            let run = match load {
                true => self.ctx.source_run(key, position + done),
                false => self.ctx.target_run(key, position + done),
            };
            let Some(run) = run.filter(|run| run.length > 0) else {
                return self.ctx.shortened(key);
            };
            let count = run.length.min(length - done);
            let stop = fragment.address().wrapping_add(done);
            match run.at {
                Location::Host { address, .. } => {
                    let (from, to) = if load {
                        (address, stop)
                    } else {
                        (stop, address)
                    };
                    // SAFETY: the run is that long, and so is the rest of the fragment, which nothing else uses in this stage.
                    unsafe { copy(from, to, count) };
                }
                Location::Device { .. } => {
                    let (there, here) = (end(run.at, false), skip(fragment.end(), done));
                    let (from, to) = if load { (there, here) } else { (here, there) };
                    copies += self.push_copy(slot, (key, id), from, to, count);
                }
            }
            done += count;
        }
        if copies == 0 {
            self.part_moved(key, id, kind);
        }
    }

    /// An operation that did a part of another is over.
    fn child_over(&mut self, key: OpKey, (parent, part): (OpKey, u32), ended: &Ended) {
        // With it goes its hold on the fragment.
        if let Some(entry) = self.ctx.operations.remove(key) {
            self.ctx.release(entry.link, &entry.work);
            self.ctx.close_soon(entry.link);
            drop(self.ctx.operations.work_of(entry));
        }
        let failure = ended.error().cloned();
        if let Some(Work::Send(_)) = self.ctx.operations.work(parent) {
            return match failure {
                None => self.finish(parent, Ended::Done(Ok(()))),
                Some(error) => self.fail_operation(parent, error),
            };
        }
        let Some(pipe) = self.ctx.pipe(parent) else {
            return;
        };
        match (failure, pipe.kind) {
            (Some(error), _) => self.ctx.staging_failed(parent, error),
            (None, Kind::Put { .. }) => self.part_over(parent, part),
            (None, _) => self.part_landed(parent, part),
        }
    }

    /// Ends an operation for which no engine copies any more: what staging held for it goes.
    #[cold]
    pub(crate) fn finish_staged(&mut self, key: OpKey, ended: Ended) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let link = entry.link;
        if let Some(staged) = entry.staged.take() {
            let parent = staged.parent;
            self.ctx.end_staged(link, *staged);
            if let Some(parent) = parent {
                return self.child_over(key, parent, &ended);
            }
        }
        self.finish(key, ended);
    }

    /// A part is over: the transfer is, or goes on.
    pub(in crate::worker) fn part_over(&mut self, key: OpKey, id: u32) {
        let Some(pipe) = self.ctx.pipe(key) else {
            return;
        };
        let before = pipe.done;
        pipe.end(id);
        let (kind, now) = (pipe.kind, pipe.done);
        if pipe.is_done() {
            self.staging_done(key);
        } else {
            self.tell_pulled(key, kind, before, now);
            self.step_staged(key);
        }
    }

    /// More parts of a message or put of the peer's are where they belong, which sees nothing of that itself.
    fn tell_pulled(&mut self, key: OpKey, kind: Kind, before: usize, now: usize) {
        let (op, first) = match kind {
            Kind::Pull { op, first } => (Some(op), first as usize),
            _ => (self.ctx.sender(key), 0),
        };
        let link = self.ctx.operations.get(key).and_then(|entry| entry.link);
        if let (Some(link), Some(op)) = (link, op) {
            self.ctx.tell_moved(link, op, first + before, first + now);
        }
    }

    /// All bytes are where they belong.
    pub(in crate::worker) fn staging_done(&mut self, key: OpKey) {
        let Some(pipe) = self.ctx.pipe(key) else {
            return;
        };
        let (kind, route) = (pipe.kind, std::mem::take(&mut pipe.route));
        let link = self.ctx.operations.get(key).and_then(|entry| entry.link);
        self.ctx.end_route(link, route);
        match kind {
            Kind::Pull { op, .. } => {
                let Some(entry) = self.ctx.operations.get(key) else {
                    return;
                };
                let (fill, link) = (matches!(*entry.work, Work::Fill(_)), entry.link);
                if fill {
                    return self.ctx.filled(key);
                }
                if let Some(link) = link {
                    self.ctx.control(link, control::DONE, op, &[]);
                }
                self.copied(key, Ok(()));
            }
            Kind::Local | Kind::Put { .. } | Kind::Get { .. } => {
                if let (Some(link), Some(op)) = (link, self.ctx.sender(key)) {
                    self.ctx.control(link, control::DONE, op, &[]);
                }
                self.copied(key, Ok(()));
            }
            // Over when it has left.
            Kind::Serve | Kind::Write => {}
        }
    }
}

impl Entry {
    /// Whether engines still copy for it.
    #[inline]
    pub(crate) fn is_copied(&self) -> bool {
        self.staged.as_ref().is_some_and(|staged| staged.copies > 0)
    }

    /// Whether its bytes stop in fragments on their way to the link.
    #[inline]
    pub(crate) fn is_piped(&self) -> bool {
        let piped = |staged: &Staged| {
            let kind = staged.pipe.as_ref().map(|pipe| pipe.kind);
            matches!(kind, Some(Kind::Serve))
        };
        self.staged.as_deref().is_some_and(piped)
    }

    /// Whether it goes on: one that is complete on this side alone does.
    pub(in crate::worker) fn goes_on(&self) -> bool {
        let put = matches!(&*self.work, Work::Put(put) if put.local);
        self.deferred.is_none() && (self.outcome.is_none() || put)
    }

    pub(in crate::worker) fn pipe(&mut self) -> Option<&mut Pipe> {
        self.staged.as_mut()?.pipe.as_mut()
    }
}
