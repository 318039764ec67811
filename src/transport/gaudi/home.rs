//! A card as one engine uses it: copies whose host memory is being registered, copies with pieces to begin, and what the completer tells.
//!
//! ```text
//! push ─▶ locking ──registered──▶ ready ─ pieces of 64 MiB, 4 under way ─▶ completer ─▶ inbox ─▶ collect: reports
//!   │        └──cannot be──▶ staging, by a thread of its own ────────────────────────────────────▲
//!   └─ in the cache already ───▶ ready ─ a short one is asked for a few times ─────────▶ done
//! ```
//!
//! # Safety
//! Whoever submitted a copy vouches for its ends until it is reported. It is reported when no engine uses them any more, or when the card was closed.
#![allow(unsafe_code)]

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use slab::Slab;

use super::{
    card::{self, OpenCard},
    completer::Told,
    host::{self, HostRegistrar},
    peers::Known,
    staged::{Spot, Staged, is_direct, stage},
};
use crate::{
    error::{Error, ErrorKind, Result},
    memory::{AddressRange, Registration},
    transport::accelerator::{
        self, Asked, Bell, Locking, Queued, Reports, Route, Stop,
        staging::{Alive, Staging, forbidden},
    },
    util::lock::Mutex,
};

/// Bytes of a submission: 2 to 3 ms of a PCIe link, which is how long others wait behind it.
const PIECE: u64 = 64 << 20;
/// Pieces of one copy that are under way, so that a long copy leaves room for others.
const PIECES: u32 = 4;
/// Copies up to this length are asked for a few times before the completer waits for them.
const SHORT: u64 = 64 << 10;
/// How often.
const POLLS: usize = 4;
/// How long giving up waits for the card to be closed.
const CLOSING: Duration = Duration::from_secs(5);

/// Nobody has places in the work of a program on a Gaudi card.
#[derive(Debug)]
pub(super) enum Never {}

/// One card.
#[derive(Debug)]
pub(super) struct Home {
    /// Copies whose memory is being registered. Before the card, whose cache it holds.
    locking: Locking<HostRegistrar, Copy>,
    /// Copies that the engines cannot make.
    staging: Staging,
    card: Arc<OpenCard>,
    inbox: Arc<Inbox>,
    copies: Slab<Copy>,
    /// Copies with pieces to begin.
    ready: VecDeque<usize>,
    /// What was refused before it began.
    refused: Vec<(u64, Error)>,
    /// Whether there is something to go on with.
    goes_on: bool,
    lost: Option<Error>,
}

/// A copy. Addresses are the engines', once they are known.
#[derive(Debug)]
struct Copy {
    token: u64,
    route: Route,
    to: u64,
    from: u64,
    length: u64,
    unstaged: bool,
    /// What was begun of it.
    begun: u64,
    under_way: u32,
    failed: Option<Error>,
    /// By which the host's end is in reach of the engines.
    _held: Option<Registration<HostRegistrar>>,
}

/// Where a home hears what is over.
#[derive(Debug)]
struct Inbox {
    over: Mutex<Vec<(u64, Result<()>)>>,
    /// Whether there is something to look at.
    stirred: AtomicBool,
    /// Whether the home waits for room on the card.
    wants_room: AtomicBool,
    bell: Arc<Bell>,
}

impl Inbox {
    fn stir(&self) {
        self.stirred.store(true, SeqCst);
        self.bell.ring();
    }
}

impl Told for Inbox {
    fn told(&self, key: u64, result: Result<()>) {
        self.over.lock().push((key, result));
        self.stir();
    }

    fn changed(&self, lost: bool) {
        if lost || self.wants_room.load(SeqCst) {
            self.stir();
        }
    }
}

impl Home {
    pub(super) fn new(card: Arc<OpenCard>, bell: &Arc<Bell>) -> Self {
        let inbox = Arc::new(Inbox {
            over: Mutex::new(Vec::new()),
            stirred: AtomicBool::new(false),
            wants_room: AtomicBool::new(false),
            bell: Arc::clone(bell),
        });
        card.completer().join(inbox.clone());
        Self {
            locking: Locking::new(card.cache(), bell),
            staging: Staging::new(bell),
            card,
            inbox,
            copies: Slab::new(),
            ready: VecDeque::new(),
            refused: Vec::new(),
            goes_on: false,
            lost: None,
        }
    }

    /// Finds the engines' addresses of both ends, or begins to.
    fn admit(&mut self, route: Route, copy: Queued) -> Result<()> {
        let length = copy.length as u64;
        let (device, other) = match route {
            Route::ToDevice => (copy.to, copy.from),
            Route::ToHost | Route::Across => (copy.from, copy.to),
        };
        let unknown = |address| {
            let text = format!("{length} bytes at {address:#x} are in no allocation of the card");
            Error::new(ErrorKind::InvalidArgument, text)
        };
        let engine = self.card.engine(device, length);
        let engine = engine.or_else(|| self.card.unlisted(device));
        let engine = engine.ok_or_else(|| unknown(device))?;
        let mut entry = Copy {
            token: copy.token,
            route,
            to: copy.to,
            from: copy.from,
            length,
            unstaged: copy.unstaged,
            begun: 0,
            under_way: 0,
            failed: None,
            _held: None,
        };
        if route == Route::Across {
            entry.from = engine;
            let own = self.card.engine(other, length);
            if let Some(to) = own.or_else(|| self.card.unlisted(other)) {
                entry.to = to;
                self.make_ready(entry);
                return Ok(());
            }
            let there = card::of_address(self.card.thunk(), other);
            let there = there.ok_or_else(|| unknown(other))?;
            let to = there.engine(other, length).ok_or_else(|| unknown(other))?;
            let from = Spot::Card(Arc::clone(&self.card), engine);
            self.stage(&entry, from, Spot::Card(there, to));
            return Ok(());
        }
        *entry.device_end() = engine;
        let range = AddressRange::new(other, length)?;
        match self.locking.find(range) {
            Some(registration) => {
                entry.reach(registration)?;
                self.make_ready(entry);
            }
            None => {
                let whole = host::pinned(range).map(|(whole, _)| whole);
                self.locking.begin(entry, range, whole);
            }
        }
        Ok(())
    }

    /// Pieces of it can begin.
    fn make_ready(&mut self, entry: Copy) {
        let index = self.copies.insert(entry);
        self.ready.push_back(index);
    }

    /// Takes those whose memory is registered, or cannot be.
    fn take_locked(&mut self) {
        for (mut entry, result) in self.locking.take() {
            let reached = result.and_then(|registration| entry.reach(registration));
            let Err(error) = reached else {
                self.make_ready(entry);
                continue;
            };
            match error.kind() {
                ErrorKind::DeviceLost | ErrorKind::Closed => {
                    self.card.completer().fail(error);
                    // Reported with all others.
                    self.copies.insert(entry);
                }
                ErrorKind::Forked => self.refused.push((entry.token, error)),
                _ if entry.unstaged => self.refused.push((entry.token, forbidden())),
                // Memory that may not be written, a file's, or more than may be pinned.
                _ => {
                    tracing::debug!(target: "wharf::gaudi", "host memory is staged: {error}");
                    let card = Spot::Card(Arc::clone(&self.card), *entry.device_end());
                    let (from, to) = match entry.route {
                        Route::ToDevice => (Spot::Host(entry.from), card),
                        _ => (card, Spot::Host(entry.to)),
                    };
                    self.stage(&entry, from, to);
                }
            }
        }
    }

    /// Has a thread copy through memory that engines reach.
    fn stage(&mut self, entry: &Copy, from: Spot, to: Spot) {
        let staged = Staged {
            from,
            to,
            length: entry.length,
            unstaged: entry.unstaged,
        };
        let run = move |alive: &Alive| stage(&staged, alive);
        self.staging.begin(entry.token, run);
    }

    /// Begins pieces, as many as there is room for.
    fn begin(&mut self) {
        while let Some(index) = self.ready.front().copied() {
            let Some(entry) = self.copies.get_mut(index) else {
                self.ready.pop_front();
                continue;
            };
            if entry.begun == entry.length || entry.under_way >= PIECES || entry.failed.is_some() {
                // Again when one of its pieces is over.
                self.ready.pop_front();
                continue;
            }
            let (to, from) = (entry.to + entry.begun, entry.from + entry.begun);
            let length = PIECE.min(entry.length - entry.begun);
            let route = entry.route;
            // SAFETY: whoever submitted the copy vouches for both ends; they are in reach of the engines while the entry is there.
            let begin = || unsafe { self.card.backend().copy(route, to, from, length) };
            let mut flight = begin();
            if is_full(&flight) {
                self.inbox.wants_room.store(true, SeqCst);
                // One may have ended before this was said.
                flight = begin();
                if is_full(&flight) {
                    return;
                }
            }
            self.inbox.wants_room.store(false, SeqCst);
            match flight {
                Ok(mut flight) => {
                    entry.begun += length;
                    entry.under_way += 1;
                    let done =
                        length <= SHORT && (0..POLLS).any(|_| matches!(flight.poll(), Ok(true)));
                    let told: Arc<dyn Told> = self.inbox.clone();
                    if done {
                        drop(flight);
                        told.told(index as u64, Ok(()));
                        self.card.completer().ended();
                    } else {
                        self.card.completer().watch(flight, &told, index as u64);
                    }
                }
                Err(error) if is_end(&error) => {
                    // All is reported when the card was closed.
                    self.card.completer().fail(error);
                    return;
                }
                Err(error) => {
                    entry.failed = Some(error);
                    self.ready.pop_front();
                    if entry.under_way == 0 {
                        let entry = self.copies.remove(index);
                        self.refused
                            .extend(entry.failed.map(|error| (entry.token, error)));
                    }
                }
            }
        }
    }

    /// A piece is over.
    fn piece_over(&mut self, index: usize, result: Result<()>, reports: &mut Reports) {
        let Some(entry) = self.copies.get_mut(index) else {
            return;
        };
        entry.under_way = entry.under_way.saturating_sub(1);
        if let Err(error) = result {
            entry.failed.get_or_insert(error);
        }
        if entry.under_way > 0 && (entry.failed.is_some() || entry.begun == entry.length) {
            return;
        }
        if entry.failed.is_none() && entry.begun < entry.length {
            if !self.ready.contains(&index) {
                self.ready.push_back(index);
            }
            return;
        }
        let entry = self.copies.remove(index);
        let result = entry.failed.map_or(Ok(()), Err);
        reports.push_back((entry.token, result));
    }

    /// Whether the card is lost, and nothing was made of that yet.
    fn is_untold(&self) -> bool {
        self.lost.is_none() && self.card.lost().is_some()
    }

    /// When the card was closed, what its engines had is reported. What is staged ends by itself.
    fn lose(&mut self, reports: &mut Reports) {
        if !self.is_untold() {
            return;
        }
        let Some(error) = self.card.lost().cloned() else {
            return;
        };
        self.ready.clear();
        let gone = self.copies.drain().chain(self.locking.clear());
        reports.extend(gone.map(|entry| (entry.token, Err(error.clone()))));
        self.lost = Some(error);
    }
}

fn is_full<T>(result: &Result<T>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

fn is_end(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::DeviceLost | ErrorKind::Closed | ErrorKind::Forked
    )
}

impl Copy {
    /// The end on the card.
    fn device_end(&mut self) -> &mut u64 {
        match self.route {
            Route::ToDevice => &mut self.to,
            Route::ToHost | Route::Across => &mut self.from,
        }
    }

    /// Takes the registration of the host's end.
    fn reach(&mut self, registration: Registration<HostRegistrar>) -> Result<()> {
        let host = match self.route {
            Route::ToDevice => &mut self.from,
            Route::ToHost | Route::Across => &mut self.to,
        };
        let at = registration.translate(*host, self.length).ok_or_else(|| {
            let text = format!(
                "{registration:?} does not hold {} bytes at {host:#x}",
                self.length
            );
            Error::new(ErrorKind::Io, text)
        })?;
        *host = at;
        self._held = Some(registration);
        Ok(())
    }
}

impl accelerator::Home for Home {
    type Mark = Never;
    type Stream = Never;

    fn ordinal(&self) -> u16 {
        self.card.ordinal()
    }

    /// Once all that was under way is reported.
    fn lost(&self) -> Option<&Error> {
        self.lost.as_ref().filter(|_| self.staging.is_empty())
    }

    fn is_idle(&self) -> bool {
        self.copies.is_empty()
            && self.refused.is_empty()
            && self.locking.is_empty()
            && self.staging.is_empty()
    }

    fn stops(&self, _: u16, length: usize) -> Option<Stop> {
        let known = self.card.peers().known();
        match (is_direct(&known, length as u64, false), known) {
            (Err(why), _) => Some(Stop::Certain(why)),
            (Ok(()), Known::Nothing) => Some(Stop::Untried),
            (Ok(()), _) => None,
        }
    }

    fn stopped(&self) -> (u64, u64) {
        self.staging.stopped()
    }

    fn push(&mut self, route: Route, copy: Queued) {
        let admitted = match &self.lost {
            None => self.admit(route, copy),
            Some(error) => Err(error.clone()),
        };
        if let Err(error) = admitted {
            self.refused.push((copy.token, error));
        }
    }

    fn flush(&mut self, reports: &mut Reports) {
        self.goes_on = false;
        if self.lost.is_none() {
            self.take_locked();
            self.begin();
        }
        for (token, error) in self.refused.drain(..) {
            reports.push_back((token, Err(error)));
        }
    }

    fn goes_on(&self) -> bool {
        self.goes_on || self.locking.is_stirred() || !self.refused.is_empty()
    }

    fn has_done(&self) -> bool {
        self.inbox.stirred.load(SeqCst)
            || !self.refused.is_empty()
            || self.locking.is_stirred()
            || self.staging.is_stirred()
            || self.is_untold()
    }

    #[inline]
    fn collect(&mut self, reports: &mut Reports) {
        self.staging.take(reports);
        if !self.inbox.stirred.load(SeqCst) && !self.is_untold() {
            return;
        }
        self.inbox.stirred.store(false, SeqCst);
        let over = std::mem::take(&mut *self.inbox.over.lock());
        for (key, result) in over {
            self.piece_over(key as usize, result, reports);
        }
        self.lose(reports);
        self.goes_on = !self.ready.is_empty();
    }

    fn ask(&mut self, _: &mut Reports) -> Asked {
        match self.has_done() {
            true => Asked::Done,
            false => Asked::Rings,
        }
    }

    fn check(&mut self, reports: &mut Reports) {
        self.lose(reports);
    }

    fn has_gate(&self, mark: &Never) -> bool {
        match *mark {}
    }

    fn after(&mut self, mark: &Never, _: u64, _: &mut Reports) -> Result<()> {
        match *mark {}
    }

    /// The card is closed: that ends its work, for all engines.
    fn give_up(&mut self, error: Error, reports: &mut Reports) {
        self.card.completer().fail(error.clone());
        let start = Instant::now();
        while self.card.lost().is_none() && start.elapsed() < CLOSING {
            thread::sleep(Duration::from_millis(1));
        }
        self.lose(reports);
        let gone = self.copies.drain().chain(self.locking.clear());
        let tokens = gone.map(|entry| entry.token).chain(self.staging.give_up());
        reports.extend(tokens.map(|token| (token, Err(error.clone()))));
    }

    /// Nothing is under way any more: dropping it is all.
    fn close(self, _: Instant) {}
}

impl Drop for Home {
    fn drop(&mut self) {
        let told: Arc<dyn Told> = self.inbox.clone();
        self.card.completer().leave(&told);
    }
}
