//! A card that is open in this process: its memory, the host memory that it reaches, its completer. One for each card, whoever asks for it.
//!
//! # Addresses
//! All cards of a kind have the same addresses, and those of the first Gaudi's memory could be the host's as well. So wharf's address of a card's memory is the
//! engines' with a number of the card in bits 52 to 59 (1 for the first that is open), on the first Gaudi with bit 48 set as well. None is the
//! address of host memory: those have bits 47 to 63 all alike. Memory of a card that Synapse has in this process, of which there is one at most, has the
//! addresses that everybody in the process has for it, but for the first Gaudi's.
//!
//! # Safety
//! Copies that are begun here name memory of this room's own, which stays until they are over, or the card was closed.
#![allow(unsafe_code)]

use std::{
    fmt,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use super::{
    backend::{Backend, Flight},
    completer::{Completer, Told},
    guest::Guest,
    heap::{Heap, Taken, next_id},
    host::HostRegistrar,
    own::Own,
    peers::Peers,
};
use crate::{
    driver::hlthunk::{CardInfo, Chip, HlThunk},
    error::{Error, ErrorKind, Result},
    memory::{
        AddressRange, DmaBuf, RegistrationCache, RegistrationCacheOptions, quarter_of_memory,
    },
    sys::pages::Anonymous,
    transport::accelerator::{CacheOptions, Route},
    util::lock::{Condvar, Mutex},
};

/// Where the number of an open card is in its addresses.
const SERIAL: u32 = 52;
/// How many cards can be open at once.
const SERIALS: u64 = 256;
/// In place of a number: the addresses are the engines'.
const RAW: u64 = u64::MAX;
/// What the addresses of the first Gaudi have set, whose own are below 2⁴⁸.
const PHYSICAL: u64 = 1 << 48;
/// How long opening waits for a card that another process is giving back.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a copy that somebody waits for may take. The kernel's own limit is 30 s.
const LONGEST: Duration = Duration::from_secs(40);
/// How long each copy of the self-test may take.
const TEST_TIME: Duration = Duration::from_secs(5);
/// Bytes of the self-test.
const TEST: usize = 4096;

/// A card's registrations of host memory.
pub(super) type HostCache = RegistrationCache<HostRegistrar>;

/// See the module.
pub(super) struct OpenCard {
    /// Ends first: it uses the backend.
    completer: Completer,
    cache: HostCache,
    heap: Arc<Mutex<Heap>>,
    /// Held while the heap is given more.
    growing: Mutex<()>,
    backend: Arc<dyn Backend>,
    ordinal: u16,
    /// The number in its addresses.
    serial: u64,
    /// What is added to an address of the engines'.
    tag: u64,
    /// Of which library's cards it is one.
    thunk: &'static HlThunk,
    name: String,
    /// Where memory of others on this card is, too.
    pool: Option<Taken>,
    /// Memory of other cards that its engines reach.
    peers: Peers,
}

/// The cards that are open in this process.
static OPEN: Mutex<Vec<Weak<OpenCard>>> = Mutex::new(Vec::new());
/// Held while one is opened.
static OPENING: Mutex<()> = Mutex::new(());

/// Those that are open now, also those that are lost.
fn all() -> Vec<Arc<OpenCard>> {
    let mut open = OPEN.lock();
    open.retain(|card| card.strong_count() > 0);
    open.iter().filter_map(Weak::upgrade).collect()
}

/// The card with this number, if it is open.
pub(super) fn find(thunk: &'static HlThunk, ordinal: u16) -> Option<Arc<OpenCard>> {
    let mut open = all().into_iter();
    open.find(|card| {
        std::ptr::eq(card.thunk, thunk) && card.ordinal == ordinal && card.lost().is_none()
    })
}

/// The card in whose memory an address lies.
pub(super) fn of_address(thunk: &'static HlThunk, address: u64) -> Option<Arc<OpenCard>> {
    let mut open = all().into_iter();
    open.find(|card| std::ptr::eq(card.thunk, thunk) && card.holds(address))
}

/// Those of a library that are open and not lost, by number.
pub(super) fn ordinals(thunk: &'static HlThunk) -> Vec<u16> {
    let open = all().into_iter();
    let mut ordinals: Vec<u16> = open
        .filter(|card| std::ptr::eq(card.thunk, thunk) && card.lost().is_none())
        .map(|card| card.ordinal)
        .collect();
    ordinals.sort_unstable();
    ordinals
}

/// The card with this number, opened if it is not. May take long.
/// Errors: `Exhausted`: another process has it; `WouldBlock`: it is in reset; `Unsupported`: copies need another library; `Io`: its self-test failed; and
/// what the library said.
pub(super) fn open(
    thunk: &'static HlThunk,
    info: &CardInfo,
    ordinal: u16,
    cache: &CacheOptions,
) -> Result<Arc<OpenCard>> {
    let _one = OPENING.lock();
    if let Some(card) = find(thunk, ordinal) {
        return Ok(card);
    }
    if !info.chip.takes_submissions() {
        let text = format!(
            "Gaudi card {}: a {} takes no command submissions; Synapse copies there",
            info.bus_id, info.chip
        );
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let numbered = numbered(info.chip)?;
    let card = thunk.open(&info.bus_id, PATIENCE)?;
    let name = card.to_string();
    let backend = match Own::new(Arc::clone(&card)) {
        Ok(own) => Arc::new(own),
        Err(error) => {
            card.close();
            return Err(error);
        }
    };
    begin(thunk, backend, ordinal, numbered, name, cache).inspect_err(|_| card.close())
}

/// The card that Synapse has in this process. May take long.
/// Errors: `Io`: its self-test failed; and what Synapse said.
pub(super) fn attach(
    thunk: &'static HlThunk,
    info: &CardInfo,
    ordinal: u16,
    cache: &CacheOptions,
    guest: impl FnOnce() -> Result<Guest>,
) -> Result<Arc<OpenCard>> {
    let _one = OPENING.lock();
    if let Some(card) = find(thunk, ordinal) {
        return Ok(card);
    }
    let numbered = match info.chip {
        Chip::Gaudi => numbered(info.chip)?,
        _ => (RAW, 0),
    };
    let name = format!("Gaudi card {} of Synapse", info.bus_id);
    begin(thunk, Arc::new(guest()?), ordinal, numbered, name, cache)
}

/// A number for a card's addresses, and what is added to those of its engines.
fn numbered(chip: Chip) -> Result<(u64, u64)> {
    let used: Vec<u64> = all().iter().map(|card| card.serial).collect();
    let serial = (1..SERIALS).find(|serial| !used.contains(serial));
    let serial =
        serial.ok_or_else(|| Error::new(ErrorKind::Exhausted, "255 Gaudi cards are open"))?;
    let physical = match chip {
        Chip::Gaudi => PHYSICAL,
        _ => 0,
    };
    Ok((serial, serial << SERIAL | physical))
}

/// Tests a card, and lists it.
fn begin(
    thunk: &'static HlThunk,
    backend: Arc<dyn Backend>,
    ordinal: u16,
    numbered: (u64, u64),
    name: String,
    cache: &CacheOptions,
) -> Result<Arc<OpenCard>> {
    let held = Arc::clone(&backend);
    let opened = OpenCard::new(backend, ordinal, numbered, thunk, name, cache);
    let opened = opened.and_then(|opened| match opened.test() {
        Ok(()) => Ok(opened),
        Err(error) => {
            let kind = match error.kind() {
                ErrorKind::WouldBlock => ErrorKind::Io,
                kind => kind,
            };
            let text = format!("{}: its self-test failed: {error}", opened.name);
            Err(Error::new(kind, text))
        }
    });
    let opened = match opened {
        Ok(opened) => Arc::new(opened),
        Err(error) => {
            held.close();
            return Err(error);
        }
    };
    tracing::info!(target: "wharf::gaudi", "{} is open as gaudi:{ordinal}", opened.name);
    OPEN.lock().push(Arc::downgrade(&opened));
    Ok(opened)
}

impl OpenCard {
    fn new(
        backend: Arc<dyn Backend>,
        ordinal: u16,
        (serial, tag): (u64, u64),
        thunk: &'static HlThunk,
        name: String,
        cache: &CacheOptions,
    ) -> Result<Self> {
        let heap = Arc::new(Mutex::new(Heap::default()));
        let theirs = Arc::clone(&heap);
        // A dma-buf would keep the card open.
        let at_loss = move || theirs.lock().close_exports();
        let registrar = HostRegistrar(Arc::clone(&backend));
        // What cards pin is not counted by `RLIMIT_MEMLOCK`.
        let cache = cache.cache(registrar, |options| {
            match options.max_bytes == RegistrationCacheOptions::new().max_bytes {
                true => options.max_bytes(quarter_of_memory()),
                false => options,
            }
        })?;
        let pool = backend.pool().map(|(start, length)| Taken {
            start,
            length,
            id: next_id(),
        });
        Ok(Self {
            pool,
            peers: Peers::default(),
            completer: Completer::new(Arc::clone(&backend), at_loss)?,
            cache,
            heap,
            growing: Mutex::new(()),
            backend,
            ordinal,
            serial,
            tag,
            thunk,
            name,
        })
    }

    pub(super) fn ordinal(&self) -> u16 {
        self.ordinal
    }

    /// Whether Synapse has it.
    pub(super) fn is_guest(&self) -> bool {
        self.backend.is_guest()
    }

    pub(super) fn thunk(&self) -> &'static HlThunk {
        self.thunk
    }

    pub(super) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    pub(super) fn cache(&self) -> &HostCache {
        &self.cache
    }

    pub(super) fn completer(&self) -> &Completer {
        &self.completer
    }

    /// Why it is lost: then it is closed.
    pub(super) fn lost(&self) -> Option<&Error> {
        self.completer.lost()
    }

    /// Whether its addresses are wharf's, and no other opening's.
    pub(super) fn has_own_addresses(&self) -> bool {
        self.serial != RAW
    }

    /// The engines' address, if this is one of this card's.
    fn own(&self, address: u64) -> Option<u64> {
        if self.serial == RAW {
            return Some(address);
        }
        let mine = address >> SERIAL & (SERIALS - 1) == self.serial;
        mine.then(|| address.checked_sub(self.tag)).flatten()
    }

    /// The allocation at an address of the engines', or the whole of what others have allocations in.
    fn taken(&self, own: u64) -> Option<Taken> {
        let holds = |pool: &Taken| own >= pool.start && own - pool.start < pool.length;
        let taken = self.heap.lock().find(own);
        taken.or_else(|| self.pool.filter(holds))
    }

    /// The allocation that an address lies in. Addresses are wharf's.
    pub(super) fn find(&self, address: u64) -> Option<Taken> {
        let taken = self.taken(self.own(address)?)?;
        Some(Taken {
            start: taken.start + self.tag,
            ..taken
        })
    }

    /// Whether an address is in its memory, or in another card's that its engines reach.
    fn holds(&self, address: u64) -> bool {
        self.engine(address, 1).is_some()
    }

    /// The engines' address of `length` bytes, if they lie in one allocation, or in what they reach of another card's.
    pub(super) fn engine(&self, address: u64, length: u64) -> Option<u64> {
        let own = self.own(address)?;
        let taken = self.taken(own).or_else(|| self.peers.find(own))?;
        (taken.length - (own - taken.start) >= length).then_some(own)
    }

    /// The engines' address of memory that others have allocated by Synapse, where nobody can be asked for it: whoever begins a copy of it says that it is theirs.
    pub(super) fn unlisted(&self, address: u64) -> Option<u64> {
        let is_wharfs = self.serial != RAW && self.own(address).is_some();
        let others = self.is_guest() && self.pool.is_none() && !is_wharfs;
        (others && of_address(self.thunk, address).is_none()).then_some(address)
    }

    /// Allocates zeroed memory. Its address is wharf's. May take long.
    /// Errors: `Exhausted`, and what the library said.
    pub(super) fn allocate(&self, length: u64) -> Result<Taken> {
        let rounded = Heap::rounded(length).filter(|rounded| *rounded > 0);
        let rounded = rounded.ok_or_else(|| {
            let text = format!("{}: an allocation of {length} bytes", self.name);
            Error::new(ErrorKind::Exhausted, text)
        })?;
        let taken = self.take(length, rounded)?;
        if let Err(error) = self.zero(taken.start, rounded) {
            if self.lost().is_none() && error.kind() != ErrorKind::DeadlineExceeded {
                self.give_back(taken.start);
            }
            return Err(error);
        }
        Ok(Taken {
            start: taken.start + self.tag,
            ..taken
        })
    }

    fn take(&self, length: u64, rounded: u64) -> Result<Taken> {
        loop {
            if let Some(taken) = self.heap.lock().take(length) {
                return Ok(taken);
            }
            let _one = self.growing.lock();
            let taken = self.heap.lock().take(length);
            if let Some(taken) = taken {
                return Ok(taken);
            }
            // An allocation may begin anywhere in a page of the card's.
            let memory = self.backend.allocate(rounded)?;
            self.heap.lock().add(memory);
        }
    }

    /// Frees an allocation, by the engines' address. May take long.
    fn give_back(&self, start: u64) {
        let pool = self.heap.lock().give_back(start);
        drop(pool);
    }

    /// Frees an allocation. May take long.
    pub(super) fn free(&self, address: u64) {
        if let Some(start) = self.own(address) {
            self.give_back(start);
        }
    }

    fn zero(&self, start: u64, length: u64) -> Result<()> {
        // SAFETY: memory that nobody knows yet, and that is not freed before the flight is over.
        self.run(|backend| unsafe { backend.zero(start, length) }, LONGEST)
    }

    /// A copy, waited for. Addresses are the engines'. May take long.
    ///
    /// # Safety
    /// As of [`Backend::copy`]: until this returns, unless it is `DeadlineExceeded`: then until the card is closed.
    /// Errors: `DeadlineExceeded`; `DeviceLost`; what the library said.
    pub(super) unsafe fn copy(&self, route: Route, to: u64, from: u64, length: u64) -> Result<()> {
        let begin = |backend: &dyn Backend| {
            // SAFETY: the caller's promise.
            unsafe { backend.copy(route, to, from, length) }
        };
        self.run(begin, LONGEST)
    }

    /// The same, begun: it is over when that was waited for.
    ///
    /// # Safety
    /// As of [`OpenCard::copy`], until it was waited for.
    /// Errors: as there: nothing was begun.
    pub(super) unsafe fn begin_copy(
        &self,
        route: Route,
        to: u64,
        from: u64,
        length: u64,
    ) -> Result<Pending> {
        let begin = |backend: &dyn Backend| {
            // SAFETY: the caller's promise.
            unsafe { backend.copy(route, to, from, length) }
        };
        self.start(begin, LONGEST)
    }

    fn run(
        &self,
        begin: impl Fn(&dyn Backend) -> Result<Box<dyn Flight>>,
        limit: Duration,
    ) -> Result<()> {
        self.start(begin, limit)?.wait()
    }

    fn start(
        &self,
        begin: impl Fn(&dyn Backend) -> Result<Box<dyn Flight>>,
        limit: Duration,
    ) -> Result<Pending> {
        let start = Instant::now();
        let flight = loop {
            if let Some(error) = self.lost() {
                return Err(error.clone());
            }
            match begin(&*self.backend) {
                Ok(flight) => break flight,
                Err(error) if error.kind() == ErrorKind::WouldBlock && start.elapsed() < limit => {
                    std::thread::sleep(Duration::from_micros(50));
                }
                Err(error) => return Err(error),
            }
        };
        let waiter = Arc::new(Waiter::default());
        let told: Arc<dyn Told> = waiter.clone();
        self.completer.watch(flight, &told, 0);
        Ok(Pending { waiter, limit })
    }

    /// Memory of other cards that its engines reach.
    pub(super) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// An address of the engines' as wharf has it.
    pub(super) fn tagged(&self, own: u64) -> u64 {
        own.wrapping_add(self.tag)
    }

    /// A descriptor of the dma-buf that holds an address. May take long the first time.
    pub(super) fn export(&self, address: u64) -> Result<DmaBuf> {
        self.export_own(self.own(address).unwrap_or(0))
    }

    /// The same by the engines' address.
    pub(super) fn export_own(&self, own: u64) -> Result<DmaBuf> {
        if let Some(exported) = self.backend.export(own) {
            let (fd, offset) = exported?;
            return Ok(DmaBuf {
                fd,
                offset,
                ordered: false,
            });
        }
        let known = self.heap.lock().dma_buf(own)?;
        let (fd, offset) = match known {
            Some(known) => known,
            None => {
                let _one = self.growing.lock();
                let memory = self.heap.lock().unexported(own)?;
                let known = self.heap.lock().dma_buf(own)?;
                match known {
                    Some(known) => known,
                    None => {
                        let dma_buf = memory.export()?;
                        let mut heap = self.heap.lock();
                        heap.exported(own, dma_buf)?;
                        if let Some(error) = self.lost() {
                            heap.close_exports();
                            return Err(error.clone());
                        }
                        heap.dma_buf(own)?.ok_or_else(|| {
                            Error::new(ErrorKind::Io, "a dma-buf that is gone at once")
                        })?
                    }
                }
            }
        };
        Ok(DmaBuf {
            fd,
            offset,
            ordered: false,
        })
    }

    /// Copies a pattern to the card, within it, and back: what a card and its firmware take is known when it did.
    fn test(&self) -> Result<()> {
        let pages = Anonymous::new(2 * TEST)
            .map_err(|error| Error::io("pages for the self-test", error))?;
        let host = pages.as_ptr().expose_provenance() as u64;
        for index in 0..TEST {
            // SAFETY: within the pages, which nobody else has.
            unsafe { pages.as_ptr().add(index).write((index * 7 + 1) as u8) };
        }
        let mapping = self.backend.map(host, 2 * TEST as u64)?;
        let there = self.take(2 * TEST as u64, 2 * TEST as u64)?;
        let tested = self.test_with(there.start, &*mapping, host);
        if tested.is_err() {
            // Nothing may touch the pages any more.
            self.backend.close();
        }
        drop(mapping);
        self.give_back(there.start);
        tested?;
        // SAFETY: both halves, which no engine touches now.
        let (one, other) = unsafe {
            (
                std::slice::from_raw_parts(pages.as_ptr(), TEST),
                std::slice::from_raw_parts(pages.as_ptr().add(TEST), TEST),
            )
        };
        if one == other {
            return Ok(());
        }
        self.backend.close();
        let text = "what was copied to the card came back as something else";
        Err(Error::new(ErrorKind::Io, text))
    }

    fn test_with(
        &self,
        there: u64,
        mapping: &dyn super::backend::Mapping,
        host: u64,
    ) -> Result<()> {
        let length = TEST as u64;
        let no_address = || Error::new(ErrorKind::Io, "a mapping without an address");
        let here = mapping.translate(host, 2 * length).ok_or_else(no_address)?;
        let steps = [
            (Route::ToDevice, there, here),
            (Route::Across, there + length, there),
            (Route::ToHost, here + length, there + length),
        ];
        for (route, to, from) in steps {
            let begin = |backend: &dyn Backend| {
                // SAFETY: memory of this function's caller, who closes the card when this fails.
                unsafe { backend.copy(route, to, from, length) }
            };
            self.run(begin, TEST_TIME)?;
        }
        Ok(())
    }
}

impl Drop for OpenCard {
    fn drop(&mut self) {
        self.heap.lock().close_exports();
    }
}

impl fmt::Debug for OpenCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as gaudi:{}", self.name, self.ordinal)
    }
}

/// A flight that somebody waits for.
#[must_use]
pub(super) struct Pending {
    waiter: Arc<Waiter>,
    limit: Duration,
}

impl Pending {
    /// Until it is over. May take long.
    /// Errors: `DeadlineExceeded`: it goes on; `DeviceLost`; what the library said.
    pub(super) fn wait(self) -> Result<()> {
        self.waiter.wait(self.limit)
    }
}

/// Somebody who waits for one flight.
#[derive(Default)]
struct Waiter {
    over: Mutex<Option<Result<()>>>,
    changed: Condvar,
}

impl Waiter {
    fn wait(&self, limit: Duration) -> Result<()> {
        let over = self.over.lock();
        let mut over = self.changed.wait_while(over, limit, |over| over.is_none());
        over.take().unwrap_or_else(|| {
            let text = format!("a copy did not end within {} s", limit.as_secs());
            Err(Error::new(ErrorKind::DeadlineExceeded, text))
        })
    }
}

impl Told for Waiter {
    fn told(&self, _: u64, result: Result<()>) {
        *self.over.lock() = Some(result);
        self.changed.notify_all();
    }

    fn changed(&self, _: bool) {}
}

/// The memory of `range` as a domain describes it.
pub(super) fn range_of(taken: &Taken) -> Result<AddressRange> {
    AddressRange::new(taken.start, taken.length)
}
