//! Device memory of a peer, opened here, and this side's, lent to a peer.

use crate::{
    error::{Error, ErrorKind, Result},
    memory::run::{Location, Run},
    protocol::{
        control::{self, Pull, Route as Asked},
        plan,
    },
    trace,
    transport::{Export, ImportedMemory, SendError},
    types::{Access, LinkId, OpKey},
    worker::{
        ctx::Ctx,
        device::{
            local::DIRECT,
            pipe::{Kind, Pipe, Stage, end},
            route::{Lent, REASON, Route, What, unsuitable},
        },
        movers::{Errand, Movers},
        operations::{Ended, Work},
        peer::at,
        source::Source,
        step::Step,
        violation::violation,
    },
};

impl Ctx {
    /// The driver has said how memory here is reached by others.
    pub(crate) fn export_ended(&mut self, loan: OpKey, exported: Result<Export>) {
        let Some(entry) = self.operations.get(loan) else {
            return;
        };
        let Work::Lent(lent) = &mut *entry.work else {
            return;
        };
        lent.answer = Some(match exported {
            Ok(Export::Descriptor(bytes)) if bytes.len() <= Export::MAX => Ok(bytes),
            Ok(Export::Descriptor(_)) => Err("its descriptor is too long".into()),
            Ok(Export::Impossible(why)) => Err(why),
            Err(error) => Err(error.to_string()),
        });
        if let Some(link) = entry.link {
            self.submit(link, loan);
        }
    }

    /// Tells the peer.
    pub(crate) fn advance_lent(&mut self, link: LinkId, key: OpKey) -> Result<Step, SendError> {
        let Some(entry) = self.operations.get(key) else {
            return Ok(Step::Sent);
        };
        let Work::Lent(lent) = &mut *entry.work else {
            return Ok(Step::Sent);
        };
        let Some(out) = at(&mut self.peers, link).and_then(|peer| peer.link.as_mut()) else {
            return Ok(Step::Parked);
        };
        match &lent.answer {
            Some(Ok(bytes)) => {
                out.am_bcopy(control::ROUTED, lent.to, &key.0.to_le_bytes(), bytes)?;
                lent.answer = None;
            }
            Some(Err(why)) => {
                let why = &why.as_bytes()[..why.len().min(REASON)];
                out.am_bcopy(control::ROUTED, lent.to, &0_u64.to_le_bytes(), why)?;
                self.finish(key, Ended::Done(Ok(())));
            }
            None => {}
        }
        Ok(Step::Sent)
    }

    /// Memory of a peer could not be opened. What will not change is remembered, and said once.
    fn unrouted(&mut self, link: LinkId, slot: usize, error: &Error) {
        let Some(peer) = at(&mut self.peers, link) else {
            return;
        };
        let passing = matches!(
            error.kind(),
            ErrorKind::StaleKey | ErrorKind::Exhausted | ErrorKind::Canceled | ErrorKind::Closed
        );
        if passing {
            tracing::debug!(target: "wharf::worker", %error, "device memory of a peer is staged");
            return;
        }
        if peer.unrouted(slot).is_some() {
            return;
        }
        trace::slower!(
            format!("unrouted: {:?}", error.kind()),
            target: "wharf::worker", peer = peer.info.name, %error,
            remedy = "let both processes see both devices, as one user and in one process namespace; take memory of an allocator that exports it",
            "device memory of this peer cannot be opened: it is copied through host memory from now on"
        );
        peer.odd
            .get_or_insert_default()
            .unrouted
            .push((slot, error.clone()));
    }

    /// Gives a loan back.
    pub(in crate::worker) fn end_loan(&mut self, link: LinkId, loan: u64) {
        if loan != 0 {
            self.control(link, control::DONE, loan, &[]);
        }
    }

    /// The route of an operation is needed no more.
    pub(in crate::worker) fn end_route(&mut self, link: Option<LinkId>, route: Route) {
        if let (Some(link), Route::Opening { loan } | Route::Open { loan, .. }) = (link, route) {
            self.end_loan(link, loan);
        }
    }
}

impl Movers {
    /// Whether to ask for the way to a peer's device memory, rather than to stage at once.
    pub(in crate::worker) fn route_to(
        &mut self,
        link: LinkId,
        slot: usize,
        total: usize,
        unstaged: bool,
    ) -> Route {
        let Some(peer) = at(&mut self.ctx.peers, link) else {
            return Route::Staged;
        };
        // Where nothing may stop, the way is worth asking for at any length.
        let unstaged = unstaged || self.devices.staging_forbidden();
        let refused = peer.unrouted(slot).is_some();
        match plan::reaches(peer.one_copy.is_some(), refused, total, unstaged) {
            Ok(()) => Route::Ask,
            Err(_) => Route::Staged,
        }
    }

    /// The next step of a pull that may have a route. `true`: it has none, and is staged.
    pub(in crate::worker) fn step_route(&mut self, key: OpKey, kind: Kind) -> bool {
        let Some(link) = self.ctx.operations.get(key).and_then(|entry| entry.link) else {
            return false;
        };
        let Some(pipe) = self.ctx.pipe(key) else {
            return false;
        };
        let (by, total) = (pipe.slot, pipe.total);
        match &pipe.route {
            Route::Staged => return true,
            Route::Asked | Route::Opening { .. } => return false,
            Route::Open { .. } => {
                self.copy_routed(key);
                return false;
            }
            Route::Ask => {}
        }
        // In one run of device memory, so that the engine alone can do it.
        let run = self.ctx.target_run(key, 0);
        let whole =
            run.is_some_and(|run| matches!(run.at, Location::Device { .. }) && run.length >= total);
        let (header, asked) = match kind {
            Kind::Pull { op, .. } => (op, (0, 0, 0)),
            Kind::Get { target } => (0, (target.slot, target.generation, target.offset)),
            _ => return true,
        };
        let (slot, generation, offset) = asked;
        let Some(pipe) = self.ctx.pipe(key) else {
            return false;
        };
        if !whole {
            pipe.route = Route::Staged;
            return true;
        }
        pipe.route = Route::Asked;
        let body = Asked {
            to: key.0,
            generation,
            offset,
            length: total as u64,
            slot,
            region: u32::from(matches!(kind, Kind::Get { .. })),
            accelerator: self.devices.number(by),
        };
        self.ctx
            .control(link, control::ROUTE, header, &body.encode());
        false
    }

    /// Has the engine copy as many parts as may be under way.
    fn copy_routed(&mut self, key: OpKey) {
        while let Some(pipe) = self.ctx.pipe(key)
            && pipe.has_room()
        {
            let (slot, next, left) = (pipe.slot, pipe.next, pipe.total - pipe.next);
            let run = self.ctx.target_run(key, next).filter(|run| run.length > 0);
            let Some(pipe) = self.ctx.pipe(key) else {
                return;
            };
            let length = run.map_or(0, |run| run.length).min(left).min(DIRECT);
            let from = match &pipe.route {
                Route::Open { memory, .. } => memory.end(next as u64, length as u64),
                _ => return,
            };
            let (Some(run), Some(from)) = (run, from) else {
                return self.ctx.shortened(key);
            };
            let id = pipe.begin(length, None, Stage::Storing);
            self.push_copy(slot, (key, id), from, end(run.at, false), length);
        }
    }

    /// A peer asks for the way to memory here.
    pub(crate) fn route_asked(&mut self, link: LinkId, op: OpKey, body: &[u8]) -> Result<()> {
        let asked = Asked::decode(body)?;
        let found = self.asked_source(link, op, &asked)?;
        let charged = self.ctx.charge_request(link, 0);
        let Some(charged) = self.ctx.granted(link, asked.to, charged) else {
            return Ok(());
        };
        let found = found.and_then(|(run, source)| {
            let (slot, address) = self.exportable(run, &asked)?;
            // What the driver gives away reaches all of an allocation, for good: it is not for whom the kernel does not vouch for.
            if !self
                .ctx
                .peer(link)
                .is_some_and(|peer| peer.reaches_devices())
            {
                return Err(unsuitable("the connection is none through shared memory"));
            }
            Ok((slot, address, source))
        });
        let lent = Lent {
            charged,
            _source: found.as_ref().ok().map(|(.., source)| source.clone()),
            to: asked.to,
            // By the other way the peer learns of real errors.
            answer: found.as_ref().err().map(|error| Err(error.to_string())),
        };
        let key = self
            .ctx
            .operations
            .insert(Some(link), true, Work::Lent(lent));
        if let Some(entry) = self.ctx.operations.get(key) {
            entry.staged.get_or_insert_default();
        }
        let Ok((slot, address, source)) = found else {
            self.submit(link, key);
            return Ok(());
        };
        let Some(context) = self.devices.context() else {
            self.ctx
                .export_ended(key, Err(unsuitable("the worker was shut down")));
            return Ok(());
        };
        // What was exported before costs next to nothing.
        match context.accelerators()[slot].exported(address, asked.length) {
            Some(export) => self.ctx.export_ended(key, Ok(export)),
            None => {
                let what = What::Export {
                    address,
                    length: asked.length,
                    source,
                    loan: key,
                };
                self.errand(Errand::Route(slot, what));
            }
        }
        Ok(())
    }

    /// The memory that is meant: exposed, or announced by the operation `op`. The inner error is the peer's to hear, the outer one its end.
    fn asked_source(
        &mut self,
        link: LinkId,
        op: OpKey,
        asked: &Asked,
    ) -> Result<Result<(Run, Source)>> {
        let (offset, length) = (asked.offset, asked.length);
        match asked.region {
            1 => {
                let (regions, generation) = (&self.ctx.regions, asked.generation);
                let found = regions.check_any(asked.slot, generation, offset, length, Access::READ);
                Ok(found.map(|exposed| (exposed.run(offset as usize), Source::Region(exposed))))
            }
            0 => {
                let to = asked.to;
                let pull = Pull { to, offset, length };
                let announced = self.ctx.announced_range(link, op, &pull)?;
                Ok(announced
                    .map(|(buffer, _)| (buffer.run(0), Source::Message(buffer)))
                    .ok_or_else(|| Error::new(ErrorKind::Canceled, "it has ended")))
            }
            _ => Err(violation("a route to what there is not")),
        }
    }

    /// The engine that exports it, and its address there.
    fn exportable(&self, run: Run, asked: &Asked) -> Result<(usize, u64)> {
        match run.at {
            Location::Device {
                address,
                memory_type,
            } if run.length as u64 >= asked.length => {
                let slot = self.devices.slot_for(&[memory_type])?;
                match self.devices.number(slot) == asked.accelerator {
                    true => Ok((slot, address)),
                    false => Err(unsuitable("it is another accelerator's")),
                }
            }
            Location::Device { .. } => Err(unsuitable("it is in several places")),
            Location::Host { .. } => Err(unsuitable("it is host memory")),
        }
    }

    /// The owner has answered.
    pub(crate) fn routed(&mut self, link: LinkId, key: OpKey, body: &[u8]) -> Result<()> {
        let Some((loan, rest)) = body.split_first_chunk::<8>() else {
            return Err(violation("short message"));
        };
        let loan = u64::from_le_bytes(*loan);
        if rest.len() > Export::MAX {
            return Err(violation("a route that is too long"));
        }
        let of_link = self.ctx.operations.named(link, key).is_some();
        let asked = |pipe: &&mut Pipe| of_link && matches!(pipe.route, Route::Asked);
        let Some(pipe) = self.ctx.pipe(key).filter(asked) else {
            // It has ended meanwhile.
            self.ctx.end_loan(link, loan);
            return Ok(());
        };
        if loan == 0 {
            pipe.route = Route::Staged;
            let why = String::from_utf8_lossy(rest);
            tracing::debug!(target: "wharf::worker", "device memory of the peer is not opened: {}", why.escape_debug());
            self.step_staged(key);
            return Ok(());
        }
        let slot = pipe.slot;
        pipe.route = Route::Opening { loan };
        let peer = at(&mut self.ctx.peers, link).map(|peer| peer.info.identity.clone());
        let (Some(peer), Some(context)) = (peer, self.devices.context()) else {
            return Ok(());
        };
        match context.accelerators()[slot].imported(rest, &peer) {
            Some(memory) => self.import_ended(key, Ok(memory)),
            None => {
                let descriptor = rest.to_vec();
                let what = What::Import {
                    descriptor,
                    peer,
                    key,
                };
                self.errand(Errand::Route(slot, what));
            }
        }
        Ok(())
    }

    /// The peer's memory is open here, or cannot be opened.
    pub(crate) fn import_ended(&mut self, key: OpKey, imported: Result<ImportedMemory>) {
        let link = self.ctx.operations.get(key).and_then(|entry| entry.link);
        let (Some(link), Some(pipe)) = (link, self.ctx.pipe(key)) else {
            // What ended it gives the loan back.
            return;
        };
        let Route::Opening { loan } = pipe.route else {
            return;
        };
        let (slot, total) = (pipe.slot, pipe.total as u64);
        let imported = imported.and_then(|memory| match memory.len() >= total {
            true => Ok(memory),
            false => Err(unsuitable("the peer gives less than was asked for")),
        });
        match imported {
            Ok(memory) => pipe.route = Route::Open { loan, memory },
            Err(error) => {
                pipe.route = Route::Staged;
                self.ctx.end_loan(link, loan);
                self.ctx.unrouted(link, slot, &error);
            }
        }
        self.step_staged(key);
        self.pump_engines();
    }
}
