//! Copies for one worker, by the devices of one vendor.
//!
//! ```text
//! copy() ─▶ inline? ─▶ home open? ──yes──▶ queued ──flush()──▶ flying ──word──▶ reports ──progress()──▶ sink
//!                          │ no                                        ▲
//!                          └▶ waiting ──a thread opens the device──────┘
//! ```
//!
//! # Safety
//! Whoever begins a copy vouches for its ends until it was reported. It is reported when the device is done with it, or gone.
#![allow(unsafe_code)]

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use mio::{Interest, unix::SourceFd};
use std::os::fd::AsRawFd;

use super::{
    Asked, Bell, CopyAttributes, CopyEnd, CopyEngine, CopyRequest, CopySink, DevicePlace,
    DeviceStream, Home, InlineCopy, Owner, QUIESCE, Queued, Reports, Route, SmallCopies, Stop,
    Vendor,
    opening::{Opened, Opening, Wanted, open},
};
use crate::{
    error::{Error, ErrorKind, Result},
    sys::timerfd::TimerFd,
    transport::{Registry, SendError},
    types::MemoryType,
};

/// How often the streams are looked after while words do not come.
const WATCH: Duration = Duration::from_millis(100);
/// The same when nobody rings.
const SILENT: Duration = Duration::from_millis(1);
/// Places for which there is no gate are asked about at every so many looks.
const PLACE_LOOKS: u32 = 32;
/// After so many looks at the words without a result the time is looked at.
const LOOKS: u32 = 1024;

/// Tokens of the fds.
const BELL: usize = 0;
const TIMER: usize = 1;

/// One worker's.
#[derive(Debug)]
pub(in crate::transport) struct Engine<V: Vendor> {
    vendor: Arc<V>,
    bell: Arc<Bell>,
    timer: TimerFd,
    homes: Vec<V::Home>,
    /// Paths between devices that were opened.
    pairs: Vec<(u16, u16)>,
    opening: Option<Opening<V::Home>>,
    /// What needs a device that is not open, or a gate.
    waiting: VecDeque<Waiting<V::Mark>>,
    reports: Reports,
    /// What was accepted and not reported.
    in_flight: usize,
    /// The tokens of places among it. They take no room from copies, which may be what they wait for.
    places: HashSet<u64>,
    place_looks: u32,
    /// Why nothing is accepted any more, once told.
    lost: Option<Error>,
    told: bool,
    closed: bool,
    /// Whether the streams are to be looked after.
    check: bool,
    looks: u32,
    /// Since when nothing has come.
    stalled: Option<Instant>,
    /// Small copies that the processor makes.
    inline: Option<Box<dyn InlineCopy>>,
}

/// What waits for a device.
#[derive(Debug)]
enum Waiting<M> {
    Copy(Placed),
    Place { device: u16, mark: M, token: u64 },
}

/// A copy with what it needs.
#[derive(Clone, Copy, Debug)]
struct Placed {
    route: Route,
    copy: Queued,
    /// Whose stream copies.
    device: u16,
}

/// One end of a copy.
#[derive(Clone, Copy)]
enum End {
    /// Whether it is pinned.
    Host(u64, bool),
    Managed(u64),
    Device(u64, u16),
}

impl<V: Vendor> Engine<V> {
    /// Opens the devices that are in use. May take long.
    pub(in crate::transport) fn open(vendor: Arc<V>) -> Result<Self> {
        let bell = Arc::new(Bell::new()?);
        let wanted = Wanted {
            devices: vendor.first()?,
            pair: None,
        };
        let inline = vendor.inline();
        let opened = open(&*vendor, &bell, &wanted);
        for (_, error) in &opened.failed {
            // Told again to whoever names the device.
            tracing::debug!(target: "wharf::device", "{error}");
        }
        Ok(Self {
            timer: TimerFd::new().map_err(|error| Error::io("a timer", error))?,
            vendor,
            bell,
            homes: opened.homes,
            pairs: Vec::new(),
            opening: None,
            waiting: VecDeque::new(),
            reports: VecDeque::new(),
            in_flight: 0,
            places: HashSet::new(),
            place_looks: 0,
            lost: None,
            told: false,
            closed: false,
            check: false,
            looks: 0,
            stalled: None,
            inline,
        })
    }

    /// That anything can be taken.
    fn admit(&self) -> Result<(), SendError> {
        if let Some(error) = &self.lost {
            return Err(SendError::Failed(error.clone()));
        }
        if self.closed {
            let error = Error::new(ErrorKind::Closed, "the engine is closed").over(V::NAME);
            return Err(SendError::Failed(error));
        }
        Ok(())
    }

    /// What a copy needs.
    fn place(&self, request: &CopyRequest) -> Result<Placed> {
        if request.length == 0 || request.length > V::ATTRIBUTES.max_copy {
            let text = format!("a copy of {} bytes", request.length);
            return Err(refused(V::NAME, text));
        }
        let from = self.end(&request.from, request.length)?;
        let to = self.end(&request.to, request.length)?;
        let (route, device, other) = match (from, to) {
            (End::Host(..), End::Host(..)) => {
                let text = "a copy between two places in host memory";
                return Err(refused(V::NAME, text));
            }
            (End::Host(..), End::Device(_, device)) => (Route::ToDevice, device, None),
            (End::Host(..), End::Managed(_)) => (Route::ToDevice, self.any(), None),
            (End::Device(_, device), End::Host(..)) => (Route::ToHost, device, None),
            (End::Managed(_), End::Host(..)) => (Route::ToHost, self.any(), None),
            // The source's device copies: writing to another is faster than reading from it.
            (End::Device(_, device), End::Device(_, other)) => (
                Route::Across,
                device,
                Some(other).filter(|other| *other != device),
            ),
            (End::Device(_, device), End::Managed(_))
            | (End::Managed(_), End::Device(_, device)) => (Route::Across, device, None),
            (End::Managed(_), End::Managed(_)) => (Route::Across, self.any(), None),
        };
        let copy = Queued {
            token: request.token,
            to: to.at(),
            from: from.at(),
            length: request.length,
            other,
            unstaged: request.unstaged,
            pageable: [from, to]
                .iter()
                .any(|end| matches!(end, End::Host(_, false))),
        };
        Ok(Placed {
            route,
            copy,
            device,
        })
    }

    /// An end, checked as far as it can be without asking the driver.
    fn end(&self, end: &CopyEnd, length: usize) -> Result<End> {
        let end = match *end {
            CopyEnd::Host { address, pinned } => {
                if !pinned && V::ATTRIBUTES.pageable_from.is_none() {
                    return Err(refused(V::NAME, "a copy of host memory that is not pinned"));
                }
                End::Host(address.expose_provenance() as u64, pinned)
            }
            CopyEnd::Device {
                address,
                memory_type,
            } => match self.vendor.owner(memory_type) {
                Some(Owner::Device(device)) => End::Device(address, device),
                Some(Owner::Any) => End::Managed(address),
                Some(Owner::Host) => End::Host(address, true),
                None => {
                    let text = format!("a copy of {memory_type} memory");
                    return Err(refused(V::NAME, text));
                }
            },
        };
        let at = end.at();
        if at == 0 || at.checked_add(length as u64).is_none() {
            let text = format!("a copy of {length} bytes at {at:#x}");
            return Err(refused(V::NAME, text));
        }
        Ok(end)
    }

    /// A device for memory that is no device's own.
    fn any(&self) -> u16 {
        let mut alive = self.homes.iter().filter(|home| home.lost().is_none());
        alive.next().map_or(0, Home::ordinal)
    }

    fn home(&self, device: u16) -> Option<&V::Home> {
        self.homes.iter().find(|home| home.ordinal() == device)
    }

    fn home_mut(&mut self, device: u16) -> Option<&mut V::Home> {
        self.homes.iter_mut().find(|home| home.ordinal() == device)
    }

    /// Why a device that was opened cannot be used, if so.
    fn lost_device(&self, device: u16) -> Option<Error> {
        self.home(device)?.lost().cloned()
    }

    /// Forgets devices that were lost, of which all is reported, and that are back: the next copy opens them. Whether there were any.
    fn renew(&mut self) -> bool {
        let vendor = &self.vendor;
        let mut gone = Vec::new();
        self.homes.retain(|home| {
            let is_back = home.lost().is_some() && home.is_idle() && vendor.is_back(home.ordinal());
            if is_back {
                gone.push(home.ordinal());
            }
            !is_back
        });
        let was_in = |pair: &(u16, u16)| gone.contains(&pair.0) || gone.contains(&pair.1);
        self.pairs.retain(|pair| !was_in(pair));
        if !gone.is_empty() {
            (self.lost, self.told) = (None, false);
        }
        !gone.is_empty()
    }

    /// Why a copy between these cannot be, though they were opened.
    fn lost_of(&mut self, device: u16, other: Option<u16>) -> Option<Error> {
        let lost = |engine: &Self| {
            let own = engine.lost_device(device);
            own.or_else(|| engine.lost_device(other?))
        };
        let error = lost(self)?;
        match self.renew() {
            true => lost(self),
            false => Some(error),
        }
    }

    /// What has to be opened for a copy; `None`: nothing.
    fn wanted(&self, device: u16, other: Option<u16>) -> Option<Wanted> {
        let both = [Some(device), other];
        let missing = |device: &u16| self.home(*device).is_none();
        let pair = other.map(|other| (device.min(other), device.max(other)));
        let wanted = Wanted {
            devices: both.into_iter().flatten().filter(missing).collect(),
            pair: pair.filter(|pair| !self.pairs.contains(pair)),
        };
        (!wanted.devices.is_empty() || wanted.pair.is_some()).then_some(wanted)
    }

    /// Gives a copy to its queue, or lets it wait for its device.
    fn dispatch(&mut self, placed: Placed) {
        if self.wanted(placed.device, placed.copy.other).is_some() {
            self.waiting.push_back(Waiting::Copy(placed));
        } else if let Some(home) = self.home_mut(placed.device) {
            home.push(placed.route, placed.copy);
        }
    }

    /// Begins to open what the first of those that wait for a device needs.
    fn open_next(&mut self) {
        while self.opening.is_none() {
            let mut waiting = self.waiting.iter().enumerate();
            let next = waiting.find_map(|(index, waiting)| {
                let wanted = match waiting {
                    Waiting::Copy(placed) => self.wanted(placed.device, placed.copy.other),
                    Waiting::Place { device, .. } => self.wanted(*device, None),
                };
                wanted.map(|wanted| (index, wanted))
            });
            let Some((index, wanted)) = next else {
                return;
            };
            match Opening::start(&self.vendor, &self.bell, wanted) {
                Ok(opening) => self.opening = Some(opening),
                Err(error) => {
                    let refused = self.waiting.remove(index);
                    let token = refused.map(|waiting| waiting.token());
                    self.reports.extend(token.map(|token| (token, Err(error))));
                }
            }
        }
    }

    /// Takes what was opened.
    fn opened(&mut self, opened: Opened<V::Home>) {
        for home in opened.homes {
            if self.home(home.ordinal()).is_none() {
                self.homes.push(home);
            }
        }
        self.pairs.extend(opened.pair);
        for (failed, error) in opened.failed {
            let mut kept = VecDeque::new();
            for waiting in self.waiting.drain(..) {
                if waiting.needs(failed) {
                    self.reports
                        .push_back((waiting.token(), Err(error.clone())));
                } else {
                    kept.push_back(waiting);
                }
            }
            self.waiting = kept;
        }
        self.retry();
        self.open_next();
        self.flush_homes();
    }

    /// Goes on with what waits and can.
    fn retry(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            let lost = match &waiting {
                Waiting::Copy(placed) => self
                    .lost_device(placed.device)
                    .or_else(|| self.lost_device(placed.copy.other?)),
                Waiting::Place { device, .. } => self.lost_device(*device),
            };
            match (waiting, lost) {
                (waiting, Some(error)) => self.reports.push_back((waiting.token(), Err(error))),
                (Waiting::Copy(placed), None) => self.dispatch(placed),
                (
                    Waiting::Place {
                        device,
                        mark,
                        token,
                    },
                    None,
                ) => {
                    if let Err(error) = self.gate(device, &mark, token) {
                        match error {
                            SendError::Failed(error) => self.reports.push_back((token, Err(error))),
                            SendError::Full => {
                                self.waiting.push_back(Waiting::Place {
                                    device,
                                    mark,
                                    token,
                                });
                            }
                        }
                    }
                }
            }
        }
    }

    /// Keeps a place for which there is no gate yet.
    fn wait_for(&mut self, device: u16, mark: V::Mark, token: u64) {
        self.waiting.push_back(Waiting::Place {
            device,
            mark,
            token,
        });
    }

    /// Asks whether a place was reached. `None`: there is nobody to ask.
    fn ask_place(&mut self, device: u16, mark: &V::Mark) -> Option<Result<bool>> {
        let mut homes = self.homes.iter_mut();
        let home = homes.find(|home| home.ordinal() == device && home.lost().is_none())?;
        home.reached(mark, &mut self.reports)
    }

    /// Asks about all places that found no gate.
    fn ask_places(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            let reached = match &waiting {
                Waiting::Place { device, mark, .. } => self.ask_place(*device, mark),
                Waiting::Copy(_) => None,
            };
            match reached {
                Some(Ok(true)) => self.reports.push_back((waiting.token(), Ok(()))),
                Some(Err(error)) => self.reports.push_back((waiting.token(), Err(error))),
                Some(Ok(false)) | None => self.waiting.push_back(waiting),
            }
        }
    }

    /// Whether there are places to be asked about: nobody rings for those.
    fn has_places(&self) -> bool {
        let mut waiting = self.waiting.iter();
        waiting.any(|waiting| match waiting {
            Waiting::Place { device, mark, .. } => {
                self.home(*device).is_some_and(|home| home.can_ask(mark))
            }
            Waiting::Copy(_) => false,
        })
    }

    /// Has a home wait for a place.
    fn gate(&mut self, device: u16, mark: &V::Mark, token: u64) -> Result<(), SendError> {
        let mut homes = self.homes.iter_mut();
        let home = homes.find(|home| home.ordinal() == device && home.has_gate(mark));
        let Some(home) = home else {
            return Err(SendError::Full);
        };
        let waited = home.after(mark, token, &mut self.reports);
        waited.map_err(SendError::Failed)
    }

    fn flush_homes(&mut self) {
        for home in &mut self.homes {
            home.flush(&mut self.reports);
        }
    }

    /// Whether anything can be reported now.
    fn has_done(&self) -> bool {
        !self.reports.is_empty()
            || (self.lost.is_some() && !self.told)
            || self.opening.as_ref().is_some_and(Opening::is_done)
            || self.homes.iter().any(Home::has_done)
    }

    /// Looks for what has come. No call of the driver but where something has, or nothing for long.
    fn collect(&mut self) {
        if let Some(opening) = self.opening.take_if(|opening| opening.is_done()) {
            self.opened(opening.take());
        }
        for home in &mut self.homes {
            home.collect(&mut self.reports);
            if home.goes_on() {
                home.flush(&mut self.reports);
            }
        }
        let check = std::mem::take(&mut self.check);
        if check || (self.reports.is_empty() && self.is_stalled()) {
            for home in &mut self.homes {
                home.check(&mut self.reports);
            }
        }
        if !self.waiting.is_empty() {
            self.place_looks += 1;
            if check || self.place_looks >= PLACE_LOOKS {
                self.place_looks = 0;
                self.ask_places();
            }
        }
        self.note_loss();
        // A place that waits for another to be reached.
        if !self.reports.is_empty() && self.opening.is_none() && !self.waiting.is_empty() {
            self.retry();
            self.open_next();
            self.flush_homes();
        }
    }

    /// Whether nothing has come for long, by a look at the time now and then.
    fn is_stalled(&mut self) -> bool {
        self.looks += 1;
        if self.looks < LOOKS {
            return false;
        }
        self.looks = 0;
        let now = Instant::now();
        let since = *self.stalled.get_or_insert(now);
        if now.duration_since(since) < WATCH {
            return false;
        }
        self.stalled = Some(now);
        true
    }

    /// When no device is left, neither is the engine.
    fn note_loss(&mut self) {
        if self.lost.is_some() || self.opening.is_some() || self.homes.is_empty() {
            return;
        }
        if let Some(error) = self.homes.iter().find_map(Home::lost)
            && self.homes.iter().all(|home| home.lost().is_some())
        {
            let error = error.clone();
            for waiting in self.waiting.drain(..) {
                self.reports
                    .push_back((waiting.token(), Err(error.clone())));
            }
            self.lost = Some(error);
        }
    }

    /// Whether [`CopyEngine::progress`] has nothing to look for.
    fn has_nothing(&self) -> bool {
        self.in_flight == 0 && self.opening.is_none() && (self.lost.is_none() || self.told)
    }

    /// Whether nothing is under way but places that no device was told of.
    fn is_idle(&self) -> bool {
        let mut waiting = self.waiting.iter();
        self.opening.is_none()
            && !waiting.any(|waiting| matches!(waiting, Waiting::Copy(_)))
            && self.homes.iter().all(Home::is_idle)
    }
}

impl<V: Vendor> CopyEngine for Engine<V> {
    fn attributes(&self) -> CopyAttributes {
        V::ATTRIBUTES
    }

    /// Once all of it is reported.
    fn is_back(&mut self) -> bool {
        self.lost.is_some() && self.told && self.renew()
    }

    unsafe fn copy(&mut self, request: CopyRequest) -> Result<(), SendError> {
        self.admit()?;
        if self.in_flight - self.places.len() >= V::ATTRIBUTES.max_in_flight {
            return Err(SendError::Full);
        }
        if let Some(inline) = &mut self.inline {
            // SAFETY: the caller vouches for both ends.
            match unsafe { inline.try_copy(&request) } {
                Ok(false) => {}
                Ok(true) => {
                    self.in_flight += 1;
                    self.reports.push_back((request.token, Ok(())));
                    return Ok(());
                }
                Err(error) => return Err(SendError::Failed(error)),
            }
        }
        let placed = self.place(&request).map_err(SendError::Failed)?;
        if let Some(error) = self.lost_of(placed.device, placed.copy.other) {
            return Err(SendError::Failed(error));
        }
        self.in_flight += 1;
        self.dispatch(placed);
        Ok(())
    }

    fn after(&mut self, place: DevicePlace, token: u64) -> Result<(), SendError> {
        let (DevicePlace::Stream(at) | DevicePlace::Event(at)) = place;
        let device = at.device;
        self.admit()?;
        check::<V>(&at).map_err(SendError::Failed)?;
        if let Some(error) = self.lost_of(device, None) {
            return Err(SendError::Failed(error));
        }
        let is_open = self.home(device).is_some();
        let mark = self.vendor.mark(place).map_err(SendError::Failed)?;
        let taken = match is_open {
            true => self.gate(device, &mark, token),
            false => Err(SendError::Full),
        };
        match taken {
            Ok(()) => {}
            // No gate: it is asked about, if it can be.
            Err(SendError::Full) if is_open => match self.ask_place(device, &mark) {
                None => return Err(SendError::Full),
                Some(Err(error)) => return Err(SendError::Failed(error)),
                Some(Ok(true)) => self.reports.push_back((token, Ok(()))),
                Some(Ok(false)) => self.wait_for(device, mark, token),
            },
            Err(SendError::Full) => self.wait_for(device, mark, token),
            Err(error) => return Err(error),
        }
        self.places.insert(token);
        self.in_flight += 1;
        self.open_next();
        Ok(())
    }

    fn then(&mut self, stream: DeviceStream, tokens: &[u64]) -> Result<(), SendError> {
        check::<V>(&stream).map_err(SendError::Failed)?;
        if self.closed {
            let error = Error::new(ErrorKind::Closed, "the engine is closed").over(V::NAME);
            return Err(SendError::Failed(error));
        }
        let (stream, _) = self.vendor.stream(stream).map_err(SendError::Failed)?;
        let waits = |waiting: &Waiting<V::Mark>| tokens.contains(&waiting.token());
        if self.waiting.iter().any(waits) {
            return Err(SendError::Full);
        }
        self.flush_homes();
        let held = |home: &V::Home| tokens.iter().any(|token| home.holds(*token));
        if self.homes.iter().any(held) {
            return Err(SendError::Full);
        }
        for home in &mut self.homes {
            home.then(&stream, tokens).map_err(SendError::Failed)?;
        }
        Ok(())
    }

    fn small_copies(&self) -> Option<SmallCopies> {
        self.inline.as_ref()?.small_copies()
    }

    fn stops(&self, from: MemoryType, to: MemoryType, length: usize) -> Option<Stop> {
        match (self.vendor.owner(from)?, self.vendor.owner(to)?) {
            (Owner::Device(device), Owner::Device(other)) if device != other => {
                self.home(device)?.stops(other, length)
            }
            _ => None,
        }
    }

    fn stopped(&self) -> (u64, u64) {
        let homes = self.homes.iter().map(Home::stopped);
        homes.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    fn flush(&mut self) {
        self.flush_homes();
        if !self.waiting.is_empty() {
            self.open_next();
        }
    }

    fn progress(&mut self, budget: usize, sink: &mut dyn CopySink) -> usize {
        if self.has_nothing() {
            return 0;
        }
        if self.reports.len() < budget {
            self.collect();
        }
        let mut count = 0;
        while count < budget.max(1)
            && let Some((token, result)) = self.reports.pop_front()
        {
            self.in_flight = self.in_flight.saturating_sub(1);
            if !self.places.is_empty() {
                self.places.remove(&token);
            }
            sink.copied(token, result.map_err(|error| error.over(V::NAME)));
            count += 1;
        }
        if count > 0 {
            self.looks = 0;
            self.stalled = None;
        }
        if self.reports.is_empty()
            && let Some(error) = &self.lost
            && !self.told
        {
            self.told = true;
            sink.lost(error.clone());
            count += 1;
        }
        count
    }

    fn register(&mut self, registry: Registry) -> Result<()> {
        let (bell, timer) = (self.bell.fd.as_raw_fd(), self.timer.as_raw_fd());
        registry.register(&mut SourceFd(&bell), BELL, Interest::READABLE)?;
        registry.register(&mut SourceFd(&timer), TIMER, Interest::READABLE)
    }

    fn ready(&mut self, token: usize) {
        match token {
            BELL => {
                self.bell.fd.drain();
            }
            TIMER => self.check = true,
            _ => {}
        }
    }

    fn arm(&mut self) -> bool {
        self.flush();
        // Whoever rings writes before it looks whether to; this looks for what was written after saying so.
        self.bell.arm();
        if self.has_nothing() {
            // Whatever a home has to say, `progress` would not ask it.
            return true;
        }
        if self.has_done() || self.check {
            return false;
        }
        let mut time = match self.has_places() {
            true => SILENT,
            false => WATCH,
        };
        let mut busy = false;
        for home in &mut self.homes {
            busy |= !home.is_idle() && home.needs_checks();
            match home.ask(&mut self.reports) {
                Asked::Done => return false,
                Asked::Rings => {}
                Asked::Silent => time = SILENT,
            }
        }
        if self.has_done() {
            return false;
        }
        // Without the timer a lost device would never be noticed: then this worker polls.
        (!busy && time == WATCH) || self.timer.start(time).is_ok()
    }

    fn disarm(&mut self) {
        self.bell.disarm();
        // Whoever was woken by it disarms before it looks which descriptor it was.
        self.check |= self.timer.stop();
    }

    fn quiesce(&mut self, deadline: Instant) {
        if self.closed {
            return;
        }
        let mut pause = Duration::from_micros(20);
        let mut checked = Instant::now();
        loop {
            self.flush();
            self.check |= checked.elapsed() > WATCH / 2;
            if self.check {
                checked = Instant::now();
            }
            self.collect();
            if self.is_idle() || Instant::now() >= deadline {
                break;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
        self.closed = true;
        self.disarm();
        let given_up = || {
            let text = "the device did not end its work in time and was given up";
            Error::new(ErrorKind::DeviceLost, text)
        };
        let unreached = || {
            let text = "the worker was shut down before the program's stream came to the place";
            Error::new(ErrorKind::Closed, text)
        };
        for waiting in self.waiting.drain(..) {
            let error = match &waiting {
                Waiting::Copy(_) => given_up(),
                Waiting::Place { .. } => unreached(),
            };
            self.reports.push_back((waiting.token(), Err(error)));
        }
        for mut home in self.homes.drain(..) {
            let is_busy = home.lost().is_none() && !home.is_idle();
            if is_busy && home.has_copies() {
                self.vendor.gave_up();
                home.give_up(given_up(), &mut self.reports);
            } else if is_busy {
                // The program's own work takes long: the device is well, and touches no buffer.
                home.give_up(unreached(), &mut self.reports);
            }
            home.close(deadline + Duration::from_secs(1));
        }
    }
}

impl<V: Vendor> Drop for Engine<V> {
    fn drop(&mut self) {
        // Nothing may touch the copies' memory afterwards. Nothing is left to wait for where this was called before.
        self.quiesce(Instant::now() + QUIESCE);
    }
}

impl<M> Waiting<M> {
    fn token(&self) -> u64 {
        match self {
            Self::Copy(placed) => placed.copy.token,
            Self::Place { token, .. } => *token,
        }
    }

    fn needs(&self, failed: u16) -> bool {
        match self {
            Self::Copy(placed) => placed.device == failed || placed.copy.other == Some(failed),
            Self::Place { device, .. } => *device == failed,
        }
    }
}

impl End {
    fn at(self) -> u64 {
        let (Self::Host(at, _) | Self::Managed(at) | Self::Device(at, _)) = self;
        at
    }
}

fn check<V: Vendor>(stream: &DeviceStream) -> Result<()> {
    if stream.accelerator == V::NAME {
        return Ok(());
    }
    let text = format!("a stream of {}", stream.accelerator);
    Err(Error::new(ErrorKind::Unsupported, text).over(V::NAME))
}

#[cold]
fn refused(name: &'static str, what: impl Into<String>) -> Error {
    let text = format!("{} is not what this engine makes", what.into());
    Error::new(ErrorKind::InvalidArgument, text).over(name)
}
