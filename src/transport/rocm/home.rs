//! A device as one engine uses it: its copies under way, each with a signal.
//!
//! ```text
//! push ─▶ queued ──flush: both ends in known memory, or locked?──▶ flying (a signal each, 1) ──device──▶ 0, or negative
//!                                                          │
//!                             polled: loads ◀──────────────┤
//!                             parked: one handler on the first of each route ──▶ bell
//! ```
//! A signal for several copies would be cheaper and could not tell which of them failed, nor when the others are done with their memory.
//!
//! # Safety
//! Ends of copies are vouched for by whoever submitted them, and looked up before they are handed over: a device that meets an address which it cannot reach is
//! lost to the process. A signal is used again only when its copy is done and no handler waits for it; those of a device that is lost or given up are never
//! destroyed.
#![allow(unsafe_code)]

use std::{
    collections::VecDeque,
    mem::ManuallyDrop,
    sync::{
        Arc, Weak,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    time::Instant,
};

use super::{
    failure::{failure, fault, is_end, lost},
    known::Seen,
    locked::{Locker, translate},
    order::{Held, Mark, Waiter},
    shared::Shared,
    staged::{Spot, Staged, stage},
};
use crate::{
    driver::hsa::{Agent, CopyEnd, Fault, FaultWatch, Signal, SignalCallback},
    error::{Error, ErrorKind, Result},
    memory::{AddressRange, Registration},
    transport::accelerator::{
        self, Asked, Bell, Locking, Queued, Reports, Route, Stop,
        staging::{Alive, Staging, forbidden},
    },
    types::MemoryType,
    util::lock::Mutex,
};

/// Signals that are made beforehand.
const SIGNALS: usize = 16;
/// Signals that are kept for the next copies.
const KEPT: usize = 256;
/// How many of a route's copies are looked at each time.
const LOOK: usize = 16;
/// HIP is asked about a place at every so many looks while the engine is polled.
const GATE_LOOKS: u32 = 32;

/// One device.
#[derive(Debug)]
pub(super) struct Home {
    ordinal: u16,
    agent: Agent,
    host: Agent,
    shared: Arc<Shared>,
    queued: VecDeque<Waiting>,
    /// Copies whose host memory is being locked.
    locking: Locking<Locker, (Route, Queued)>,
    /// Copies of memory that cannot be locked.
    staging: Staging,
    /// What is under way, by its route.
    flying: [VecDeque<Flying>; 3],
    free: Vec<Signal>,
    /// Places in the program's work that are waited for.
    gates: Vec<(Mark, u64)>,
    gate_looks: u32,
    /// Streams of the program's that wait for copies.
    held: Vec<Weak<Held>>,
    lost: Option<Error>,
    failed: Arc<Failed>,
    /// Without one nobody tells that the device failed.
    watch: Option<FaultWatch>,
    bell: Arc<Bell>,
}

/// A copy that is to be handed over, with the registration of its host memory.
#[derive(Debug)]
struct Waiting {
    route: Route,
    copy: Queued,
    locked: Option<Registration<Locker>>,
}

/// A copy under way.
#[derive(Debug)]
struct Flying {
    token: u64,
    /// Keeps host memory locked. Never dropped when the device may still touch it.
    locked: ManuallyDrop<Option<Registration<Locker>>>,
    /// 1 until it is done.
    signal: ManuallyDrop<Signal>,
    /// Whether a handler that rings waits for it.
    asked: bool,
    /// Whether one does that lets a stream go on.
    holds: bool,
}

/// What the runtime says of the device, from a thread of its own.
#[derive(Debug, Default)]
struct Failed {
    yes: AtomicBool,
    why: Mutex<Option<Fault>>,
}

/// A handler that rings.
struct Ring(Weak<Bell>);

impl SignalCallback for Ring {
    fn run(&self, _: i64) {
        if let Some(bell) = self.0.upgrade() {
            bell.ring();
        }
    }
}

impl Flying {
    /// `None`: under way.
    fn outcome(&self) -> Option<Result<()>> {
        match self.signal.load() {
            1.. => None,
            0 => Some(Ok(())),
            value => Some(Err(failure(value))),
        }
    }
}

impl Home {
    /// Opens a device: makes some signals.
    /// Errors: `InvalidArgument`: no such device; `DeviceLost`: it failed before; what the runtime said.
    pub(super) fn open(shared: &Arc<Shared>, ordinal: u16, bell: &Arc<Bell>) -> Result<Self> {
        let machine = shared.machine()?;
        let agent = machine.device(ordinal)?.agent;
        let failed = Arc::new(Failed::default());
        let (told, bell_of) = (Arc::clone(&failed), Arc::downgrade(bell));
        let watch = machine.hsa.watch_faults(move |fault| {
            if fault.agent == agent.raw() && is_end(fault) {
                told.why.lock().get_or_insert(*fault);
                told.yes.store(true, Release);
                if let Some(bell) = bell_of.upgrade() {
                    bell.ring();
                }
            }
        });
        let watch = match watch {
            Ok(watch) => Some(watch),
            Err(error) => {
                tracing::debug!(target: "wharf::rocm", "nobody tells when {agent:?} fails: {error}");
                None
            }
        };
        if let Some(fault) = fault(machine, ordinal)? {
            return Err(lost(ordinal, &fault.error()));
        }
        let cache = shared.locked()?;
        let free = (0..SIGNALS).map(|_| machine.hsa.signal(1));
        Ok(Self {
            ordinal,
            agent,
            host: machine.host,
            shared: Arc::clone(shared),
            queued: VecDeque::new(),
            locking: Locking::new(&cache, bell),
            staging: Staging::new(bell),
            flying: Default::default(),
            free: free.collect::<Result<_>>()?,
            gates: Vec::new(),
            gate_looks: 0,
            held: Vec::new(),
            lost: None,
            failed,
            watch,
            bell: Arc::clone(bell),
        })
    }

    fn has_flying(&self) -> bool {
        self.flying.iter().any(|route| !route.is_empty())
    }

    /// Hands a copy over, or has its memory locked before.
    fn submit(&mut self, waiting: Waiting) -> Result<()> {
        let Waiting {
            route,
            mut copy,
            locked,
        } = waiting;
        let (to_device, host) = match route {
            Route::ToDevice => (true, Some(&mut copy.from)),
            Route::ToHost => (false, Some(&mut copy.to)),
            Route::Across => (false, None),
        };
        match (&locked, host) {
            (Some(locked), Some(host)) => *host = translate(locked, *host, copy.length)?,
            (None, Some(host)) if self.shared.known.find(*host, copy.length).is_none() => {
                let at = *host;
                self.check(if to_device { copy.to } else { copy.from }, copy.length)?;
                return self.lock(route, copy, at);
            }
            _ => {}
        }
        if let (Route::Across, Some(other)) = (route, copy.other)
            && self.is_beyond(&copy, other)?
        {
            return self.stage_across(&copy, other);
        }
        if locked.is_none() || to_device || route == Route::Across {
            self.check(copy.to, copy.length)?;
        }
        if locked.is_none() || !to_device {
            self.check(copy.from, copy.length)?;
        }
        let signal = match self.free.pop() {
            Some(signal) => signal,
            None => self.agent.hsa().signal(1)?,
        };
        let machine = self.shared.machine()?;
        let (to_agent, from_agent) = match (route, copy.other) {
            (Route::ToDevice, _) => (self.agent, self.host),
            (Route::ToHost, _) => (self.host, self.agent),
            (Route::Across, Some(other)) => (machine.device(other)?.agent, self.agent),
            (Route::Across, None) => (self.agent, self.agent),
        };
        let end = |address, agent| CopyEnd { address, agent };
        // SAFETY: whoever submitted it vouches for both ends, which this device reaches. The signal lives until the copy is done, or for ever.
        let submitted = unsafe {
            machine.hsa.copy(
                end(copy.to, to_agent),
                end(copy.from, from_agent),
                copy.length,
                &[],
                &signal,
            )
        };
        if let Err(error) = submitted {
            self.keep(signal);
            return Err(error);
        }
        self.flying[place(route)].push_back(Flying {
            token: copy.token,
            locked: ManuallyDrop::new(locked),
            signal: ManuallyDrop::new(signal),
            asked: false,
            holds: false,
        });
        Ok(())
    }

    /// A copy of host memory that is not the domain's.
    fn lock(&mut self, route: Route, copy: Queued, host: u64) -> Result<()> {
        let range = AddressRange::new(host, copy.length as u64)?;
        match self.locking.find(range) {
            Some(locked) => self.submit(Waiting {
                route,
                copy,
                locked: Some(locked),
            }),
            None => {
                self.locking.begin((route, copy), range, None);
                Ok(())
            }
        }
    }

    /// Takes those whose memory is locked, or cannot be.
    fn take_locked(&mut self, reports: &mut Reports) {
        for ((route, copy), result) in self.locking.take() {
            match result {
                Ok(locked) => self.queued.push_back(Waiting {
                    route,
                    copy,
                    locked: Some(locked),
                }),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::DeviceLost | ErrorKind::Closed | ErrorKind::Forked
                    ) =>
                {
                    reports.push_back((copy.token, Err(error)));
                }
                Err(_) if copy.unstaged => reports.push_back((copy.token, Err(forbidden()))),
                // Memory that may not be written, a file's, or more than may be locked.
                Err(error) => {
                    tracing::debug!(target: "wharf::rocm", "host memory is staged: {error}");
                    self.stage(route, copy);
                }
            }
        }
    }

    /// Has a thread copy through memory that the device reaches.
    fn stage(&mut self, route: Route, copy: Queued) {
        let (from, to) = match route {
            Route::ToDevice => (Spot::Host(copy.from), Spot::Device(self.ordinal, copy.to)),
            _ => (Spot::Device(self.ordinal, copy.from), Spot::Host(copy.to)),
        };
        self.stage_between(&copy, from, to);
    }

    fn stage_between(&mut self, copy: &Queued, from: Spot, to: Spot) {
        let staged = Staged {
            from,
            to,
            length: copy.length,
        };
        let shared = Arc::clone(&self.shared);
        let run = move |alive: &Alive| stage(&shared, &staged, alive);
        self.staging.begin(copy.token, run);
    }

    /// Whether a copy goes to memory that this device has no peer access to.
    fn is_beyond(&self, copy: &Queued, other: u16) -> Result<bool> {
        if self.reaches_all_of(other)? {
            return Ok(false);
        }
        let seen = self.seen(copy.to, copy.length)?;
        Ok(seen.is_some_and(|seen| !seen.reach.has(self.ordinal) && seen.reach.has(other)))
    }

    /// Whether this device has peer access to the other's memory.
    fn reaches_all_of(&self, other: u16) -> Result<bool> {
        let other = self.shared.machine()?.device(other)?;
        Ok(other.reached_by.has(self.ordinal))
    }

    /// Has a thread copy to memory of another device that this one does not reach.
    fn stage_across(&mut self, copy: &Queued, other: u16) -> Result<()> {
        if copy.unstaged {
            return Err(forbidden());
        }
        self.check(copy.from, copy.length)?;
        let from = Spot::Device(self.ordinal, copy.from);
        self.stage_between(copy, from, Spot::Device(other, copy.to));
        Ok(())
    }

    /// What allocation so many bytes lie in, if it is one of the runtime's.
    fn seen(&self, address: u64, length: usize) -> Result<Option<Seen>> {
        match self.shared.known.find(address, length) {
            Some(seen) => Ok(Some(seen)),
            None => Ok(self
                .shared
                .known
                .see(self.shared.machine()?, address, false)?
                .filter(|seen| address - seen.range.start() + length as u64 <= seen.range.len())),
        }
    }

    /// That this device reaches all bytes of an end. One that met an address it cannot reach would be lost.
    fn check(&self, address: u64, length: usize) -> Result<()> {
        match self.seen(address, length)? {
            Some(seen) if seen.reach.has(self.ordinal) => Ok(()),
            Some(seen) => {
                let text = format!(
                    "{} does not reach the memory at {} of {}: no peer access, or the memory domain was never asked about it",
                    MemoryType::Rocm(self.ordinal),
                    seen.range,
                    seen.memory_type
                );
                Err(Error::new(ErrorKind::Unsupported, text))
            }
            None => {
                let text = format!(
                    "{length} bytes at {address:#x} are not all of one allocation of ROCm: freed, or the host's"
                );
                Err(Error::new(ErrorKind::InvalidArgument, text))
            }
        }
    }

    /// Puts a signal aside for the next copy. Nothing is under way that changes it, and no handler waits.
    fn keep(&mut self, signal: Signal) {
        if self.free.len() < KEPT {
            signal.store(1);
            self.free.push(signal);
        }
    }

    /// The device is gone: what was under way is reported.
    fn lose(&mut self, error: &Error, reports: &mut Reports) {
        let error = lost(self.ordinal, error);
        tracing::debug!(target: "wharf::rocm", "{error}");
        self.shared.give_up();
        self.abandon(&error, reports);
        self.lost = Some(error);
    }

    /// Reports everything. Signals of copies under way stay for good: the device may still change them. If it does not, no handler lets streams go on.
    fn abandon(&mut self, error: &Error, reports: &mut Reports) {
        for held in self.held.drain(..).filter_map(|held| held.upgrade()) {
            held.0.open();
        }
        let flying = self.flying.iter_mut().flat_map(|route| route.drain(..));
        let tokens = flying.map(|flying| flying.token);
        let tokens = tokens.chain(self.queued.drain(..).map(|waiting| waiting.copy.token));
        let locking = self.locking.clear().into_iter();
        let tokens = tokens.chain(locking.map(|(_, copy)| copy.token));
        let tokens = tokens.chain(self.staging.give_up());
        let gates = self.gates.drain(..).map(|(_, token)| token);
        reports.extend(tokens.chain(gates).map(|token| (token, Err(error.clone()))));
    }

    /// Notes what the runtime said of the device.
    fn note_fault(&mut self, reports: &mut Reports) {
        if self.lost.is_some() || !self.failed.yes.load(Acquire) {
            return;
        }
        let fault = *self.failed.why.lock();
        if let Some(fault) = fault {
            self.lose(&fault.error(), reports);
        }
    }

    /// Hands over what is queued.
    fn submit_all(&mut self, reports: &mut Reports) {
        while let Some(waiting) = self.queued.pop_front() {
            let token = waiting.copy.token;
            if let Some(error) = &self.lost {
                reports.push_back((token, Err(error.clone())));
                continue;
            }
            if let Err(error) = self.submit(waiting) {
                let is_end = error.kind() == ErrorKind::DeviceLost;
                if is_end {
                    self.lose(&error, reports);
                }
                let error = self.lost.as_ref().map_or(error, Error::clone);
                reports.push_back((token, Err(error)));
            }
        }
    }

    /// Asks HIP about the places that are waited for.
    fn look_at_gates(&mut self, reports: &mut Reports) {
        self.gates.retain(|(mark, token)| match mark.is_done() {
            Ok(false) => true,
            Ok(true) => {
                reports.push_back((*token, Ok(())));
                false
            }
            Err(error) => {
                reports.push_back((*token, Err(error)));
                false
            }
        });
    }
}

impl accelerator::Home for Home {
    type Mark = Mark;
    type Stream = Waiter;

    fn ordinal(&self) -> u16 {
        self.ordinal
    }

    fn lost(&self) -> Option<&Error> {
        self.lost.as_ref()
    }

    fn is_idle(&self) -> bool {
        self.gates.is_empty() && !self.has_copies()
    }

    fn has_copies(&self) -> bool {
        !self.queued.is_empty()
            || self.has_flying()
            || !self.locking.is_empty()
            || !self.staging.is_empty()
    }

    /// A device that is watched tells by itself that it failed.
    fn needs_checks(&self) -> bool {
        self.watch.is_none() || !self.gates.is_empty()
    }

    fn stops(&self, other: u16, _: usize) -> Option<Stop> {
        let why = || {
            let (here, there) = (MemoryType::Rocm(self.ordinal), MemoryType::Rocm(other));
            Stop::Certain(format!("{here} has no peer access to {there}"))
        };
        (!self.reaches_all_of(other).ok()?).then(why)
    }

    fn stopped(&self) -> (u64, u64) {
        self.staging.stopped()
    }

    fn push(&mut self, route: Route, copy: Queued) {
        self.queued.push_back(Waiting {
            route,
            copy,
            locked: None,
        });
    }

    fn goes_on(&self) -> bool {
        !self.queued.is_empty() || self.locking.is_stirred()
    }

    fn flush(&mut self, reports: &mut Reports) {
        self.submit_all(reports);
        // The first look begins what has to be locked; it may be over at once.
        self.take_locked(reports);
        self.submit_all(reports);
    }

    fn has_done(&self) -> bool {
        (self.lost.is_none() && self.failed.yes.load(Acquire))
            || self.goes_on()
            || self.staging.is_stirred()
            || self.flying.iter().any(|route| {
                route
                    .iter()
                    .take(LOOK)
                    .any(|flying| flying.outcome().is_some())
            })
    }

    #[inline]
    fn collect(&mut self, reports: &mut Reports) {
        for route in 0..self.flying.len() {
            let mut index = 0;
            while index < LOOK {
                let Some(flying) = self.flying[route].get(index) else {
                    break;
                };
                let Some(outcome) = flying.outcome() else {
                    index += 1;
                    continue;
                };
                let Some(done) = self.flying[route].remove(index) else {
                    break;
                };
                reports.push_back((done.token, outcome));
                drop(ManuallyDrop::into_inner(done.locked));
                let signal = ManuallyDrop::into_inner(done.signal);
                // A handler that has yet to run has the signal as well, and must find it as it is.
                if !done.asked && !done.holds {
                    self.keep(signal);
                }
            }
        }
        if !self.gates.is_empty() {
            self.gate_looks += 1;
            if self.gate_looks >= GATE_LOOKS {
                self.gate_looks = 0;
                self.look_at_gates(reports);
            }
        }
        self.staging.take(reports);
        self.note_fault(reports);
    }

    fn ask(&mut self, reports: &mut Reports) -> Asked {
        self.look_at_gates(reports);
        if !reports.is_empty() || self.has_done() {
            return Asked::Done;
        }
        let mut result = match self.gates.is_empty() {
            true => Asked::Rings,
            false => Asked::Silent,
        };
        for route in &mut self.flying {
            let Some(first) = route.front_mut().filter(|first| !first.asked) else {
                continue;
            };
            let ring = Arc::new(Ring(Arc::downgrade(&self.bell)));
            match first.signal.notify(1, ring) {
                Ok(()) => first.asked = true,
                Err(error) => {
                    tracing::debug!(target: "wharf::rocm", "no handler rings: {error}");
                    result = Asked::Silent;
                }
            }
        }
        result
    }

    fn check(&mut self, reports: &mut Reports) {
        self.look_at_gates(reports);
        self.collect(reports);
    }

    /// Places are asked about alone: of any number.
    fn has_gate(&self, _: &Mark) -> bool {
        true
    }

    fn after(&mut self, mark: &Mark, token: u64, _: &mut Reports) -> Result<()> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        self.gates.push((Arc::clone(mark), token));
        self.gate_looks = GATE_LOOKS;
        Ok(())
    }

    fn holds(&self, token: u64) -> bool {
        let queued = |waiting: &Waiting| waiting.copy.token == token;
        self.queued.iter().any(queued)
            || self.locking.any(|(_, copy)| copy.token == token)
            || self.staging.has(token)
    }

    /// By a handler of the runtime's on each copy's signal: it runs whatever becomes of this engine.
    fn then(&mut self, stream: &Waiter, tokens: &[u64]) -> Result<()> {
        let is_awaited =
            |flying: &Flying| tokens.contains(&flying.token) && flying.outcome().is_none();
        let flying = self.flying.iter_mut().flatten();
        let mut awaited = flying.filter(|flying| is_awaited(flying)).peekable();
        if awaited.peek().is_none() {
            return Ok(());
        }
        let held = stream.hold()?;
        self.held.retain(|held| held.strong_count() > 0);
        self.held.push(Arc::downgrade(&held));
        for flying in awaited {
            flying.signal.notify(1, Arc::clone(&held))?;
            flying.holds = true;
        }
        Ok(())
    }

    fn give_up(&mut self, error: Error, reports: &mut Reports) {
        if self.has_copies() {
            self.shared.give_up();
        }
        self.abandon(&error, reports);
    }

    fn close(self, _: Instant) {}
}

/// The place of a route's copies.
const fn place(route: Route) -> usize {
    match route {
        Route::ToDevice => 0,
        Route::ToHost => 1,
        Route::Across => 2,
    }
}
