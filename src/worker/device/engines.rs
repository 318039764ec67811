//! The engines of a worker: one for each accelerator whose memory it met, what waits for a place in them, and what they report.
//!
//! # Safety
//! Both ends of a request belong to an operation of the table, or to a fragment that it holds. Its entry counts the request in
//! `Staged::copies`, and stays, with all that it owns, until the engine has reported it or was dropped (`open.rs`).
#![allow(unsafe_code)]

use std::{collections::VecDeque, fmt, sync::Arc};

use slab::Slab;

use crate::{
    Context,
    error::{Error, ErrorKind, Result},
    transport::{
        CopyAttributes, CopyEnd, CopyEngine, CopyRequest, CopySink, DevicePlace, Registry,
        SendError,
    },
    types::{LinkId, MemoryType, OpKey},
    worker::{core::Core, operations::Entry},
};

use super::{
    find,
    local::HOST,
    open::Opener,
    order::Begun,
    pool::{Pinned, Side},
};

/// In the place of a part's number: a place in the program's work.
pub(super) const PLACE: u32 = 0;
/// Copies whose reports are taken in one pass.
const BATCH: usize = 64;

/// What a worker knows of devices. Empty as long as it met none.
#[derive(Default)]
pub(crate) struct Devices {
    /// In the order of the context's accelerators.
    slots: Vec<Slot>,
    /// By token: what was asked of engines and not reported.
    uses: Slab<Use>,
    generation: u32,
    /// Operations that go on in the next pass.
    pub(super) steps: VecDeque<OpKey>,
    /// Operations that wait for a fragment, by the link that they need it for.
    waiting: Vec<Waiting>,
    /// Copies that streams of the program's come after, and do not wait for yet.
    pub(super) thens: Vec<OpKey>,
    opener: Option<Opener>,
    context: Option<Context>,
    /// Whether a pass has something to do here.
    live: bool,
    /// An engine has got a copy since the last pass: it may not be armed.
    fresh: bool,
    /// The worker has ended.
    closed: bool,
    reports: Reports,
}

#[derive(Default)]
struct Slot {
    state: State,
    /// Operations that wait until it is open.
    waiting: Vec<OpKey>,
}

#[derive(Default)]
enum State {
    #[default]
    Closed,
    Opening,
    Open(Box<Open>),
}

/// An engine in use.
pub(crate) struct Open {
    pub(super) engine: Box<dyn CopyEngine>,
    pub(super) attributes: CopyAttributes,
    /// Fragments, or why there are none.
    pub(super) pinned: Result<Arc<Pinned>>,
    /// Requests that the engine had no place for.
    queue: VecDeque<CopyRequest>,
    /// The same of places in the program's streams.
    places: VecDeque<(DevicePlace, u64)>,
    under_way: usize,
    armed: bool,
    lost: Option<Error>,
}

impl Open {
    pub(super) fn new(engine: Box<dyn CopyEngine>, pinned: Result<Arc<Pinned>>) -> Self {
        Self {
            attributes: engine.attributes(),
            engine,
            pinned,
            queue: VecDeque::new(),
            places: VecDeque::new(),
            under_way: 0,
            armed: false,
            lost: None,
        }
    }
}

impl Open {
    /// Registers the engine's fds with the worker.
    pub(crate) fn register(&mut self, registry: Registry) -> Result<()> {
        self.engine.register(registry)
    }
}

struct Use {
    op: OpKey,
    part: u32,
    slot: usize,
    /// The engine has it.
    begun: bool,
    /// In the high half of its token, so that a report that comes twice is none of another copy.
    generation: u32,
}

impl Use {
    fn token(&self, index: usize) -> u64 {
        index as u64 | u64::from(self.generation) << 32
    }
}

struct Waiting {
    slot: usize,
    side: Side,
    link: Option<LinkId>,
    /// In the order in which they came.
    ops: VecDeque<OpKey>,
}

/// What an engine reported in one pass.
#[derive(Default)]
pub(super) struct Reports {
    copied: Vec<(u64, Result<()>)>,
    lost: Option<Error>,
}

impl CopySink for Reports {
    fn copied(&mut self, token: u64, result: Result<()>) {
        self.copied.push((token, result));
    }
    fn lost(&mut self, error: Error) {
        self.lost.get_or_insert(error);
    }
}

/// Whether an operation may use an engine.
pub(super) enum Ready {
    Now,
    /// Stepped again when it is open, or failed when it cannot be.
    Later,
    Never(Error),
}

impl Devices {
    pub(crate) fn new(context: &Context, opener: Opener) -> Self {
        let count = context.accelerators().len();
        Self {
            slots: std::iter::repeat_with(Slot::default).take(count).collect(),
            opener: Some(opener),
            context: Some(context.clone()),
            ..Self::default()
        }
    }

    /// What begins what takes long; `None` once the worker has ended.
    pub(super) fn opener(&self) -> Option<Opener> {
        self.opener.clone()
    }

    pub(super) fn context(&self) -> Option<Context> {
        self.context.clone()
    }

    /// The engine that serves all of these types.
    pub(crate) fn slot_for(&self, types: &[MemoryType]) -> Result<usize> {
        if types.is_empty() {
            return Ok(HOST);
        }
        match &self.context {
            Some(context) => find(context, types),
            None => Err(Error::new(
                ErrorKind::Unsupported,
                "no accelerator is in use",
            )),
        }
    }

    /// What the accelerator in this place is called between processes; see [`Route`](crate::protocol::control::Route).
    pub(super) fn number(&self, slot: usize) -> u32 {
        let accelerators = self.context.as_ref().map(Context::accelerators);
        let found = accelerators.and_then(|accelerators| accelerators.get(slot));
        found.map_or(0, |found| crc32fast::hash(found.name().as_bytes()))
    }

    /// Whether nothing may stop in host memory.
    pub(crate) fn staging_forbidden(&self) -> bool {
        let forbids = |context: &Context| !*context.config().staging;
        self.context.as_ref().is_some_and(forbids)
    }

    /// Length of the fragments of the engine that serves these types; `None` as long as it is not open.
    pub(crate) fn fragment(&self, types: &[MemoryType]) -> Result<Option<usize>> {
        let slot = self.slot_for(types)?;
        Ok(match self.slots.get(slot).map(|slot| &slot.state) {
            Some(State::Open(open)) => open.pinned.as_ref().ok().map(|pinned| pinned.length),
            _ => None,
        })
    }

    /// Copies that engines made through host memory of their own, and the bytes of them.
    pub(crate) fn stopped(&self) -> (u64, u64) {
        let open = self.slots.iter().filter_map(|slot| match &slot.state {
            State::Open(open) => Some(open.engine.stopped()),
            _ => None,
        });
        open.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// What is known of the engine in this place, once it is open.
    pub(crate) fn known(&self, slot: usize) -> Option<&dyn CopyEngine> {
        match &self.slots.get(slot)?.state {
            State::Open(open) => Some(&*open.engine),
            _ => None,
        }
    }

    /// The engines that serve these types among them, each once.
    pub(super) fn slots_for(&self, types: &[MemoryType]) -> Result<(usize, Vec<usize>)> {
        if let Ok(slot) = self.slot_for(types) {
            return Ok((slot, Vec::new()));
        }
        let mut slots = Vec::new();
        for held in types {
            let slot = self.slot_for(&[*held])?;
            if !slots.contains(&slot) {
                slots.push(slot);
            }
        }
        let first = if slots.is_empty() {
            HOST
        } else {
            slots.remove(0)
        };
        Ok((first, slots))
    }

    /// Whether host memory of this type is pinned for the engine.
    pub(crate) fn is_pinned_for(&self, slot: usize, pinned: bool) -> bool {
        // Which accelerator pinned it, nobody says: with one there is no question.
        pinned && slot == 0 && self.slots.len() == 1
    }

    pub(super) fn open(&mut self, slot: usize) -> Option<&mut Open> {
        match &mut self.slots.get_mut(slot)?.state {
            State::Open(open) => Some(open),
            _ => None,
        }
    }

    /// Whether engines hold copies.
    fn is_busy(&self) -> bool {
        !self.uses.is_empty()
    }

    /// Whether a pass has something to look at here.
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.live
    }

    /// Whether the next pass moves something by itself.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.live && (self.fresh || !self.steps.is_empty() || self.was_released())
    }

    /// Whether somebody who waits for a fragment may find one.
    fn was_released(&self) -> bool {
        self.waiting
            .iter()
            .any(|waiting| match self.pinned(waiting.slot) {
                Some(pinned) => pinned.was_released(waiting.side),
                None => true,
            })
    }

    fn pinned(&self, slot: usize) -> Option<&Arc<Pinned>> {
        match &self.slots.get(slot)?.state {
            State::Open(open) => open.pinned.as_ref().ok(),
            _ => None,
        }
    }

    /// Takes the next operation for which there is a fragment, or that waits in vain. Links take turns.
    fn next_waiting(&mut self) -> Option<OpKey> {
        let index = self.waiting.iter().position(|waiting| {
            let pinned = self.pinned(waiting.slot);
            pinned.is_none_or(|pinned| pinned.has(waiting.side, waiting.link))
        })?;
        let mut waiting = self.waiting.remove(index);
        let op = waiting.ops.pop_front();
        if !waiting.ops.is_empty() {
            self.waiting.push(waiting);
        }
        op
    }

    /// Has an operation stepped in the next pass.
    pub(super) fn step_soon(&mut self, op: OpKey) {
        self.live = true;
        self.steps.push_back(op);
    }

    /// Has an operation stepped when there is a fragment for it.
    pub(super) fn wait_for_fragment(
        &mut self,
        op: OpKey,
        slot: usize,
        side: Side,
        link: Option<LinkId>,
    ) {
        self.live = true;
        let same = |waiting: &&mut Waiting| {
            (waiting.slot, waiting.side, waiting.link) == (slot, side, link)
        };
        match self.waiting.iter_mut().find(same) {
            Some(waiting) => waiting.ops.push_back(op),
            None => self.waiting.push(Waiting {
                slot,
                side,
                link,
                ops: VecDeque::from([op]),
            }),
        }
    }

    /// Asks an engine about a place in the program's work, for an operation. It is none of the copies that the operation's memory waits for.
    pub(super) fn push_place(&mut self, slot: usize, op: OpKey, place: DevicePlace) {
        let token = self.enter_use(op, PLACE, slot);
        if let Some(open) = self.open(slot) {
            open.places.push_back((place, token));
        }
    }

    fn enter_use(&mut self, op: OpKey, part: u32, slot: usize) -> u64 {
        self.live = true;
        self.generation = self.generation.wrapping_add(1);
        let held = Use {
            op,
            part,
            slot,
            begun: false,
            generation: self.generation,
        };
        let token = held.token(self.uses.vacant_key());
        self.uses.insert(held);
        token
    }

    /// What engines have of an operation.
    pub(super) fn begun(&self, op: OpKey, slot: usize) -> Begun {
        let mut tokens = Vec::new();
        for (index, held) in self.uses.iter().filter(|(_, held)| held.op == op) {
            match (held.slot == slot, held.begun) {
                (false, _) => return Begun::Elsewhere,
                (true, false) => return Begun::NotAll,
                (true, true) => tokens.push(held.token(index)),
            }
        }
        Begun::All(tokens)
    }

    /// Asks every engine to wake the worker at the next report. `false`: one has something already.
    pub(crate) fn arm(&mut self) -> bool {
        self.slots.iter_mut().all(|slot| match &mut slot.state {
            State::Open(open) if open.under_way > 0 => {
                open.armed = true;
                open.engine.arm()
            }
            _ => true,
        })
    }

    pub(crate) fn disarm(&mut self) {
        for slot in &mut self.slots {
            if let State::Open(open) = &mut slot.state
                && std::mem::take(&mut open.armed)
            {
                open.engine.disarm();
            }
        }
    }

    /// An fd of an engine became ready.
    pub(crate) fn ready(&mut self, slot: usize, token: usize) {
        if let Some(open) = self.open(slot) {
            open.engine.ready(token);
        }
    }

    /// The worker ends: nothing begins any more. The engines, to be brought to rest outside the lock.
    pub(super) fn close(&mut self) -> Vec<(usize, Box<Open>)> {
        self.closed = true;
        self.opener = None;
        let slots = self.slots.iter_mut().enumerate();
        let engines = slots.filter_map(|(index, slot)| match std::mem::take(&mut slot.state) {
            State::Open(open) => Some((index, open)),
            _ => None,
        });
        engines.collect()
    }

    /// The tokens of what an engine never reported.
    fn unreported(&self, slot: usize, all: bool) -> Vec<u64> {
        let uses = self.uses.iter();
        let of_slot = uses.filter(|(_, held)| held.slot == slot && (all || !held.begun));
        of_slot.map(|(index, held)| held.token(index)).collect()
    }
}

impl Core {
    /// Whether an operation may use an engine, which is opened if it is not.
    pub(super) fn engine_ready(&mut self, slot: usize, op: OpKey) -> Ready {
        let devices = &mut self.devices;
        if devices.closed {
            return Ready::Never(Error::new(ErrorKind::Closed, "the worker was shut down"));
        }
        let opener = devices.opener.clone();
        let (Some(found), Some(opener)) = (devices.slots.get_mut(slot), opener) else {
            return Ready::Never(Error::new(
                ErrorKind::Unsupported,
                "no accelerator is in use",
            ));
        };
        match &found.state {
            State::Open(open) => match &open.lost {
                Some(error) => Ready::Never(error.duplicate()),
                None => Ready::Now,
            },
            State::Opening => {
                found.waiting.push(op);
                Ready::Later
            }
            State::Closed => {
                found.waiting.push(op);
                found.state = State::Opening;
                self.bury_errand(opener.errand(slot));
                Ready::Later
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
                Some(error) => self.staging_failed(op, error.duplicate()),
            }
        }
        left
    }

    /// Asks an engine for a copy, for a part of an operation. In as many requests as it takes.
    pub(super) fn push_copy(
        &mut self,
        slot: usize,
        (op, part): (OpKey, u32),
        from: CopyEnd,
        to: CopyEnd,
        length: usize,
    ) -> u32 {
        let devices = &mut self.devices;
        let forbidden = devices.staging_forbidden();
        let unstaged = self.operations.get(op).is_some_and(|entry| entry.unstaged) || forbidden;
        let Some(open) = devices
            .slots
            .get_mut(slot)
            .and_then(|slot| match &mut slot.state {
                State::Open(open) => Some(open),
                _ => None,
            })
        else {
            return 0;
        };
        let most = open.attributes.max_copy.max(1);
        let (mut done, mut count) = (0, 0);
        while done < length {
            let length = most.min(length - done);
            devices.generation = devices.generation.wrapping_add(1);
            let held = Use {
                op,
                part,
                slot,
                begun: false,
                generation: devices.generation,
            };
            let token = held.token(devices.uses.vacant_key());
            devices.uses.insert(held);
            open.queue.push_back(CopyRequest {
                from: skip(from, done),
                to: skip(to, done),
                length,
                token,
                unstaged,
            });
            done += length;
            count += 1;
        }
        devices.live = true;
        if let Some(entry) = self.operations.get(op)
            && let Some(staged) = &mut entry.staged
        {
            staged.copies += count;
        }
        count
    }

    /// Hands requests to the engines, as many as they take.
    pub(super) fn pump_engines(&mut self) {
        for index in 0..self.devices.slots.len() {
            self.pump_engine(index);
        }
        self.queue_streams();
    }

    fn pump_engine(&mut self, index: usize) {
        let mut failed = Vec::new();
        let devices = &mut self.devices;
        let Some(slot) = devices.slots.get_mut(index) else {
            return;
        };
        let State::Open(open) = &mut slot.state else {
            return;
        };
        let mut begun = false;
        for _ in 0..open.places.len() {
            let Some((at, token)) = open.places.pop_front() else {
                break;
            };
            let Some(held) = devices.uses.get_mut(place(token)) else {
                continue;
            };
            let goes_on = |entry: &mut Entry| entry.deferred.is_none() && entry.outcome.is_none();
            let ended = !self.operations.get(held.op).is_some_and(goes_on);
            let asked = match &open.lost {
                _ if ended => Err(SendError::Failed(Error::new(
                    ErrorKind::Canceled,
                    "cancelled",
                ))),
                Some(error) => Err(SendError::Failed(error.duplicate())),
                None => open.engine.after(at, token),
            };
            match asked {
                Ok(()) => {
                    held.begun = true;
                    open.under_way += 1;
                    begun = true;
                }
                // There may be room for others, which this one waits for.
                Err(SendError::Full) if open.under_way > 0 => open.places.push_back((at, token)),
                Err(SendError::Full) => {
                    let text = "the engine waits for no place though nothing is under way";
                    failed.push((token, Error::new(ErrorKind::Io, text)));
                }
                Err(SendError::Failed(error)) => failed.push((token, error)),
            }
        }
        while let Some(request) = open.queue.front() {
            let request = *request;
            let Some(held) = devices.uses.get_mut(place(request.token)) else {
                open.queue.pop_front();
                continue;
            };
            let ended = self
                .operations
                .get(held.op)
                .is_none_or(|entry| entry.deferred.is_some());
            if ended || open.lost.is_some() {
                open.queue.pop_front();
                let error = open.lost.as_ref().map(Error::duplicate);
                let error = error.unwrap_or_else(|| Error::new(ErrorKind::Canceled, "cancelled"));
                failed.push((request.token, error));
                continue;
            }
            // SAFETY: the operation, which is in the table, owns both ends; it stays until this was reported. Parts of one
            // operation do not overlap, and what one reads the other does not write.
            match unsafe { open.engine.copy(request) } {
                Ok(()) => {
                    self.counts.device_copies.add(request.length);
                    open.queue.pop_front();
                    held.begun = true;
                    open.under_way += 1;
                    begun = true;
                }
                Err(SendError::Full) if open.under_way > 0 => break,
                Err(SendError::Full) => {
                    // Nothing is under way, so nothing would tell when to try again.
                    open.queue.pop_front();
                    let text = "the engine takes no copy though none is under way";
                    failed.push((request.token, Error::new(ErrorKind::Io, text)));
                }
                Err(SendError::Failed(error)) => {
                    open.queue.pop_front();
                    failed.push((request.token, error));
                }
            }
        }
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
    pub(super) fn take_reports(&mut self, index: usize, reports: &mut Reports) -> usize {
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
            open.lost = Some(error.duplicate());
            open.queue.clear();
            open.places.clear();
        }
        for token in self.devices.unreported(index, false) {
            self.reported(token, Err(error.duplicate()));
        }
        let waiting = std::mem::take(&mut self.devices.waiting);
        let of_it = |waiting: &Waiting| waiting.slot == index;
        let (over, still) = waiting.into_iter().partition(of_it);
        self.devices.waiting = still;
        for op in Vec::<Waiting>::into_iter(over).flat_map(|waiting| waiting.ops) {
            self.staging_failed(op, error.duplicate());
        }
    }

    /// An engine was brought to rest and dropped: what it did not report it never will.
    pub(super) fn engine_ended(&mut self, index: usize) {
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
        let Some(entry) = self.operations.get(held.op) else {
            return;
        };
        let Some(staged) = &mut entry.staged else {
            return;
        };
        staged.copies = staged.copies.saturating_sub(1);
        if entry.deferred.is_some() {
            if staged.copies == 0
                && entry.in_flight == 0
                && let Some(outcome) = entry.deferred.take()
            {
                self.finish(held.op, *outcome);
            }
            return;
        }
        match result {
            Ok(()) => self.part_copied(held.op, held.part),
            Err(error) => self.staging_failed(held.op, error),
        }
    }
}

/// Where a token's copy is in the table.
fn place(token: u64) -> usize {
    (token & 0xffff_ffff) as usize
}

/// An end, so many bytes further on.
fn skip(end: CopyEnd, bytes: usize) -> CopyEnd {
    match end {
        CopyEnd::Host { address, pinned } => CopyEnd::Host {
            address: address.wrapping_add(bytes),
            pinned,
        },
        CopyEnd::Device {
            address,
            memory_type,
        } => CopyEnd::Device {
            address: address.wrapping_add(bytes as u64),
            memory_type,
        },
    }
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open")
            .field("engine", &self.engine)
            .field("under_way", &self.under_way)
            .finish_non_exhaustive()
    }
}
