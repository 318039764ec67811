//! The engines of a worker: one for each accelerator whose memory it met, what waits for a place in them, and what they report.

use std::{collections::VecDeque, fmt, sync::Arc, time::Instant};

use slab::Slab;

use crate::{
    Context,
    error::{Error, ErrorKind, Result},
    transport::{
        CopyAttributes, CopyEnd, CopyEngine, CopyRequest, CopySink, DevicePlace, Registry,
        accelerator::QUIESCE,
    },
    types::{LinkId, MemoryType, OpKey},
    worker::device::which::find,
};

use super::{
    local::HOST,
    order::Begun,
    pool::{Pinned, Side},
};

/// In the place of a part's number: a place in the program's work.
pub(in crate::worker) const PLACE: u32 = 0;
/// Copies whose reports are taken in one pass.
pub(in crate::worker) const BATCH: usize = 64;

/// What a worker knows of devices. Empty as long as it met none.
#[derive(Default)]
pub(crate) struct Devices {
    /// In the order of the context's accelerators.
    pub(in crate::worker) slots: Vec<Slot>,
    /// By token: what was asked of engines and not reported.
    pub(in crate::worker) uses: Slab<Use>,
    generation: u32,
    /// Operations that go on in the next pass.
    pub(in crate::worker) steps: VecDeque<OpKey>,
    /// Operations that wait for a fragment, by the link that they need it for.
    pub(in crate::worker) waiting: Vec<Waiting>,
    /// Whether somebody looks after them: see `Movers::make_way`.
    pub(in crate::worker) attended: bool,
    /// Copies that streams of the program's come after, and do not wait for yet.
    pub(in crate::worker) thens: Vec<OpKey>,
    context: Option<Context>,
    /// Whether a pass has something to do here.
    pub(in crate::worker) live: bool,
    /// An engine has got a copy since the last pass: it may not be armed.
    pub(in crate::worker) fresh: bool,
    /// The worker has ended.
    pub(in crate::worker) closed: bool,
    pub(in crate::worker) reports: Reports,
}

#[derive(Default)]
pub(in crate::worker) struct Slot {
    pub(in crate::worker) state: State,
    /// Operations that wait until it is open.
    pub(in crate::worker) waiting: Vec<OpKey>,
}

#[derive(Default)]
pub(in crate::worker) enum State {
    #[default]
    Closed,
    Opening,
    Open(Box<Open>),
}

/// An engine in use.
pub(crate) struct Open {
    pub(in crate::worker) engine: Box<dyn CopyEngine>,
    pub(in crate::worker) attributes: CopyAttributes,
    /// Fragments, or why there are none.
    pub(in crate::worker) pinned: Result<Arc<Pinned>>,
    /// Requests that the engine had no place for.
    pub(in crate::worker) queue: VecDeque<CopyRequest>,
    /// The same of places in the program's streams.
    pub(in crate::worker) places: VecDeque<(DevicePlace, u64)>,
    pub(in crate::worker) under_way: usize,
    armed: bool,
    pub(in crate::worker) lost: Option<Error>,
}

impl Open {
    pub(in crate::worker) fn new(engine: Box<dyn CopyEngine>, pinned: Result<Arc<Pinned>>) -> Self {
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

    /// Brings the engine to rest, before it is dropped, on a thread that may block.
    pub(crate) fn quiesce(&mut self) {
        self.engine.quiesce(Instant::now() + QUIESCE);
    }
}

pub(in crate::worker) struct Use {
    pub(in crate::worker) op: OpKey,
    pub(in crate::worker) part: u32,
    pub(in crate::worker) slot: usize,
    /// The engine has it.
    pub(in crate::worker) begun: bool,
    /// In the high half of its token, so that a report that comes twice is none of another copy.
    pub(in crate::worker) generation: u32,
}

impl Use {
    pub(in crate::worker) fn token(&self, index: usize) -> u64 {
        index as u64 | u64::from(self.generation) << 32
    }
}

pub(in crate::worker) struct Waiting {
    pub(in crate::worker) slot: usize,
    pub(in crate::worker) side: Side,
    pub(in crate::worker) link: Option<LinkId>,
    /// In the order in which they came.
    pub(in crate::worker) ops: VecDeque<OpKey>,
}

/// What an engine reported in one pass.
#[derive(Default)]
pub(in crate::worker) struct Reports {
    pub(in crate::worker) copied: Vec<(u64, Result<()>)>,
    pub(in crate::worker) lost: Option<Error>,
}

impl CopySink for Reports {
    fn copied(&mut self, token: u64, result: Result<()>) {
        self.copied.push((token, result));
    }
    fn lost(&mut self, error: Error) {
        self.lost.get_or_insert(error);
    }
}

impl Devices {
    pub(crate) fn new(context: &Context) -> Self {
        let count = context.accelerators().len();
        Self {
            slots: std::iter::repeat_with(Slot::default).take(count).collect(),
            context: Some(context.clone()),
            ..Self::default()
        }
    }

    /// `None` where there is no accelerator, and once the worker has ended.
    pub(in crate::worker) fn context(&self) -> Option<Context> {
        self.context.clone().filter(|_| !self.closed)
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
    pub(in crate::worker) fn number(&self, slot: usize) -> u32 {
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
        Ok(self.pinned(slot).map(|pinned| pinned.length))
    }

    /// Copies that engines made through host memory of their own, and the bytes of them.
    pub(crate) fn stopped(&self) -> (u64, u64) {
        let open = (0..self.slots.len()).filter_map(|slot| self.known(slot));
        open.map(|engine| engine.stopped())
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// What is known of the engine in this place, once it is open.
    pub(crate) fn known(&self, slot: usize) -> Option<&dyn CopyEngine> {
        Some(&*self.engine(slot)?.engine)
    }

    /// The engines that serve these types among them, each once.
    pub(in crate::worker) fn slots_for(&self, types: &[MemoryType]) -> Result<(usize, Vec<usize>)> {
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

    pub(in crate::worker) fn engine(&self, slot: usize) -> Option<&Open> {
        match &self.slots.get(slot)?.state {
            State::Open(open) => Some(open),
            _ => None,
        }
    }

    pub(in crate::worker) fn open(&mut self, slot: usize) -> Option<&mut Open> {
        match &mut self.slots.get_mut(slot)?.state {
            State::Open(open) => Some(open),
            _ => None,
        }
    }

    /// Whether engines hold copies.
    pub(in crate::worker) fn is_busy(&self) -> bool {
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
    pub(in crate::worker) fn was_released(&self) -> bool {
        self.waiting
            .iter()
            .any(|waiting| match self.pinned(waiting.slot) {
                Some(pinned) => pinned.was_released(waiting.side),
                None => true,
            })
    }

    pub(in crate::worker) fn pinned(&self, slot: usize) -> Option<&Arc<Pinned>> {
        self.engine(slot)?.pinned.as_ref().ok()
    }

    /// Takes the next operation for which there is a fragment, or that waits in vain. Links take turns.
    pub(in crate::worker) fn next_waiting(&mut self) -> Option<OpKey> {
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
    pub(in crate::worker) fn step_soon(&mut self, op: OpKey) {
        self.live = true;
        self.steps.push_back(op);
    }

    /// Has an operation stepped when there is a fragment for it.
    pub(in crate::worker) fn wait_for_fragment(
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
    pub(in crate::worker) fn push_place(&mut self, slot: usize, op: OpKey, place: DevicePlace) {
        let token = self.enter_use(op, PLACE, slot);
        if let Some(open) = self.open(slot) {
            open.places.push_back((place, token));
        }
    }

    pub(in crate::worker) fn enter_use(&mut self, op: OpKey, part: u32, slot: usize) -> u64 {
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
    pub(in crate::worker) fn begun(&self, op: OpKey, slot: usize) -> Begun {
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
    pub(in crate::worker) fn close(&mut self) -> Vec<(usize, Box<Open>)> {
        self.closed = true;
        let slots = self.slots.iter_mut().enumerate();
        let engines = slots.filter_map(|(index, slot)| match std::mem::take(&mut slot.state) {
            State::Open(open) => Some((index, open)),
            _ => None,
        });
        engines.collect()
    }

    /// The tokens of what an engine never reported.
    pub(in crate::worker) fn unreported(&self, slot: usize, all: bool) -> Vec<u64> {
        let uses = self.uses.iter();
        let of_slot = uses.filter(|(_, held)| held.slot == slot && (all || !held.begun));
        of_slot.map(|(index, held)| held.token(index)).collect()
    }
}

/// Where a token's copy is in the table.
pub(in crate::worker) fn place(token: u64) -> usize {
    (token & 0xffff_ffff) as usize
}

/// An end, so many bytes further on.
pub(in crate::worker) fn skip(end: CopyEnd, bytes: usize) -> CopyEnd {
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
