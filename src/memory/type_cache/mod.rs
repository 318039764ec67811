//! What is known of memory by its address: type, device, allocation, the driver's number of it.
//!
//! ```text
//! address ─▶ Radix: an entry for the page ─┬─▶ Slot: the allocation        hit when it holds the whole range
//!                                          └─▶ Page: up to 15 allocations that share the page, each an entry
//! ```
//!
//! A miss says "unknown", never "host": then the domains are asked, once, with no lock held. What all of them disown is host memory, and is
//! remembered only where a monitor tells when it goes away, until another device runtime appears. While no device runtime is loaded nothing is
//! looked up at all.
//!
//! The index goes as far as addresses of the host do. Answers for devices' addresses beyond are not kept; what the program says of them is, in a list ([`Said`](cache::Said)):
//! there may be nobody to ask.
//!
//! Readers take no lock: a slot is a sequence of atomics whose `state` is read before and after them. An entry names a slot and its tag, which
//! changes with every use of the slot. Events ([`MemorySink`]) take no lock either: they note themselves in `events`, then take the live bit from what
//! they find in the index. An answer that was being fetched meanwhile finds the note and is not kept.

mod cache;
mod events;
mod slot;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread::{self, ThreadId},
};

use self::{
    cache::{Cache, is_beyond},
    slot::CAPACITY,
};

use super::{
    AddressRange, Cause, DomainCapabilities, MemoryAttributes, MemoryDomain, MemoryMonitor,
    MemorySink, MonitorKind, Subscription, Validity, monitor, radix::PAGE, subscribe,
};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    types::MemoryType,
    util::{
        lock::{Condvar, Mutex},
        tally::Tally,
    },
};

/// How many times a device runtime appeared in this process.
static RUNTIMES: AtomicU64 = AtomicU64::new(0);

/// Says that a device runtime has appeared: from now on there may be memory that is not the host's. What a
/// [`MemoryDomain`] calls whose driver is loaded after its context was built, before the first of its memory exists. Saying it twice costs only
/// what was remembered of host memory.
pub fn announce_device_runtime() {
    RUNTIMES.fetch_add(1, SeqCst);
}

/// What a context was asked about the owners of memory; part of [`ContextMetrics`](crate::ContextMetrics).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryTypeMetrics {
    /// Questions that were answered from memory. While no device runtime is loaded that is all of them.
    pub hits: u64,
    /// Questions for which the memory domains were asked.
    pub asked: u64,
}

/// The cache of a context, with the domains that it asks.
#[derive(Debug)]
pub(crate) struct MemoryTypes {
    cache: Arc<Cache>,
    domains: Vec<Arc<dyn MemoryDomain>>,
    kind: MonitorKind,
    /// Tells when host memory goes away, where one can; made for the first question.
    monitor: OnceLock<Option<Arc<dyn MemoryMonitor>>>,
    runtimes: &'static AtomicU64,
    /// Answers from memory, and questions to the domains.
    tally: Tally,
    /// Who is asking the domains now; others wait for the answer, which may be theirs.
    asking: Mutex<Option<ThreadId>>,
    answered: Condvar,
    /// While it lives, the cache hears of events.
    subscription: Option<Subscription>,
}

impl MemoryTypes {
    /// # Errors
    /// `Exhausted` when too many caches listen to memory events.
    pub(crate) fn new(domains: Vec<Arc<dyn MemoryDomain>>, kind: MonitorKind) -> Result<Self> {
        let mut types = Self::counting(domains, kind, &RUNTIMES);
        // Without experts nothing is ever remembered.
        if types.domains.iter().any(|domain| detects(&**domain)) {
            types.subscription = Some(subscribe(types.cache.clone())?);
        }
        if types.detectors().next().is_some() {
            announce_device_runtime();
        }
        Ok(types)
    }

    fn counting(
        domains: Vec<Arc<dyn MemoryDomain>>,
        kind: MonitorKind,
        runtimes: &'static AtomicU64,
    ) -> Self {
        Self {
            cache: Arc::new(Cache::new()),
            domains,
            kind,
            monitor: OnceLock::new(),
            runtimes,
            tally: Tally::default(),
            asking: Mutex::new(None),
            answered: Condvar::new(),
            subscription: None,
        }
    }

    fn detectors(&self) -> impl Iterator<Item = &Arc<dyn MemoryDomain>> {
        self.domains
            .iter()
            .filter(|domain| domain.is_loaded() && detects(&***domain))
    }

    /// Allocations that can be remembered.
    pub(crate) const CAPACITY: u32 = CAPACITY;

    /// Whether there may be memory that is not the host's.
    pub(crate) fn is_in_use(&self) -> bool {
        self.runtimes.load(Relaxed) != 0
    }

    pub(crate) fn metrics(&self) -> MemoryTypeMetrics {
        let (hits, asked) = self.tally.sum();
        MemoryTypeMetrics { hits, asked }
    }

    pub(crate) fn domains(&self) -> &[Arc<dyn MemoryDomain>] {
        &self.domains
    }

    /// What is known of all of `range`, without asking anybody; `None`: unknown.
    #[inline]
    pub(crate) fn known(&self, range: AddressRange) -> Option<MemoryAttributes> {
        let runtimes = self.runtimes.load(Relaxed);
        if runtimes == 0 {
            return Some(MemoryAttributes::new(MemoryType::Host, range));
        }
        let Some(found) = self.cache.get(range) else {
            return self.cache.said(range);
        };
        let (attributes, seen) = found;
        if attributes.memory_type != MemoryType::Host {
            return Some(attributes);
        }
        // Looked at once more: an event that was under way until the monitor was asked may have taken it.
        (seen == runtimes && self.is_up_to_date() && self.cache.get(range) == Some(found))
            .then_some(attributes)
    }

    /// Whether everything that the monitor saw has been told.
    fn is_up_to_date(&self) -> bool {
        match self.monitor.get() {
            Some(Some(monitor)) => {
                !monitor.is_asked_at_each_use() || monitor.validate() == Validity::Valid
            }
            _ => false,
        }
    }

    /// What is known of all of `range`; asks the domains where nothing is.
    /// Errors: `InvalidArgument`: no bytes, or not all in one allocation. What a domain said.
    pub(crate) fn find(&self, range: AddressRange) -> Result<MemoryAttributes> {
        if range.is_empty() {
            return Err(bad(format!("no bytes at {range}")));
        }
        self.notice();
        if let Some(known) = self.known(range) {
            self.tally.add(false);
            return Ok(known);
        }
        let _asking = match self.begin(range) {
            Begun::Known(known) => return Ok(known),
            Begun::Asking(asking) => asking,
        };
        self.ask(range)
    }

    /// As [`find`](Self::find), whatever is remembered.
    pub(crate) fn find_anew(&self, range: AddressRange) -> Result<MemoryAttributes> {
        if range.is_empty() {
            return Err(bad(format!("no bytes at {range}")));
        }
        self.notice();
        if self.runtimes.load(Relaxed) == 0 {
            return Ok(MemoryAttributes::new(MemoryType::Host, range));
        }
        self.ask(range)
    }

    /// As [`find`](Self::find), for memory that the program may have freed without a word: what is remembered of a driver's memory counts only if that driver
    /// has it still. What the program has said of addresses that no host has counts until it says that they are free.
    /// Errors: as of [`find`](Self::find).
    pub(crate) fn find_current(&self, range: AddressRange) -> Result<MemoryAttributes> {
        if let Some(known) = self.known_of_device(range) {
            if self.is_current(range, &known) || self.is_said(range, &known)? {
                self.tally.add(false);
                return Ok(known);
            }
            self.cache.invalidate(known.allocation, Cause::Notified);
        }
        self.find(range)
    }

    fn known_of_device(&self, range: AddressRange) -> Option<MemoryAttributes> {
        let known = self.known(range);
        known.filter(|known| known.memory_type != MemoryType::Host)
    }

    /// Whether what is remembered still holds. What is beyond the index the program has said.
    fn is_current(&self, range: AddressRange, known: &MemoryAttributes) -> bool {
        is_beyond(range)
            || self
                .detectors()
                .any(|domain| domain.is_current(range, known))
    }

    /// Whether the program has said it, of memory of which no driver in use can tell.
    ///
    /// # Errors
    /// What a driver said.
    fn is_said(&self, range: AddressRange, known: &MemoryAttributes) -> Result<bool> {
        let is_told = |domain: &Arc<dyn MemoryDomain>| {
            let types = domain.attributes().memory_types;
            // Of memory that the system moves the driver knows what it has allocated itself, and that is little.
            known.memory_type != MemoryType::RocmManaged && types.contains(&known.memory_type)
        };
        let is_said = self.cache.get(range).is_some_and(|(_, seen)| seen == SAID);
        Ok(is_said && !self.detectors().any(is_told) && self.detect(range)?.is_none())
    }

    /// As long as no device runtime was announced, asks whether one is there: the program may have loaded it without a word.
    fn notice(&self) {
        if self.runtimes.load(Relaxed) == 0 && self.detectors().next().is_some() {
            self.runtimes.fetch_add(1, SeqCst);
        }
    }

    /// Waits until nobody else asks. The answer to another may be this one's.
    fn begin(&self, range: AddressRange) -> Begun<'_> {
        let own = thread::current().id();
        let mut asking = self.asking.lock();
        loop {
            // At first too: who asked may have been answered since the look without the lock.
            if let Some(known) = self.known(range) {
                return Begun::Known(known);
            }
            match *asking {
                None => break,
                // A domain that asks the context in order to answer.
                Some(thread) if thread == own => return Begun::Asking(None),
                Some(_) => asking = self.answered.wait(asking),
            }
        }
        *asking = Some(own);
        Begun::Asking(Some(Asking(self)))
    }

    fn ask(&self, range: AddressRange) -> Result<MemoryAttributes> {
        self.tally.add(true);
        let runtimes = self.runtimes.load(SeqCst);
        let events = self.cache.events.count();
        let monitor = self.monitor.get_or_init(|| {
            let monitor = monitor(self.kind).ok();
            monitor.filter(|monitor| monitor.classes().covers_foreign_memory())
        });
        let watched = monitor
            .as_ref()
            .is_some_and(|monitor| monitor.watch(range).is_ok());
        if let Some(attributes) = self.detect(range)? {
            if !attributes.allocation.contains(range) {
                return Err(bad(format!(
                    "{range} is not within one allocation, {}",
                    attributes.allocation
                )));
            }
            self.cache.store(&attributes, runtimes, events);
            return Ok(attributes);
        }
        if let Some(known) = self.known_of_device(range)
            && (self.is_current(range, &known) || self.is_said(range, &known)?)
        {
            // Nobody detects it, and what was said of it holds.
            return Ok(known);
        }
        if range.len() > PAGE {
            let last = AddressRange::new(range.end() - 1, 1)?;
            // Host memory of which a part is pinned is host memory.
            if let Some(other) = self.detect(last)?
                && other.memory_type != MemoryType::HostPinned
            {
                return Err(bad(format!(
                    "{range} begins in host memory and ends in {}",
                    other.memory_type
                )));
            }
        }
        let attributes = MemoryAttributes::new(MemoryType::Host, range);
        if watched {
            self.cache.store(&attributes, runtimes, events);
        }
        Ok(attributes)
    }

    fn detect(&self, range: AddressRange) -> Result<Option<MemoryAttributes>> {
        for domain in self.detectors() {
            if let Some(attributes) = domain.detect(range)? {
                return Ok(Some(attributes));
            }
        }
        Ok(None)
    }

    /// An allocator says what it has just allocated.
    pub(crate) fn allocated(&self, attributes: &MemoryAttributes) {
        self.note(attributes, 0);
    }

    fn note(&self, attributes: &MemoryAttributes, seen: u64) {
        if self.runtimes.load(Relaxed) == 0 && attributes.memory_type != MemoryType::Host {
            // Whoever has device memory has a device runtime.
            self.runtimes.fetch_add(1, SeqCst);
        }
        if attributes.memory_type != MemoryType::Host {
            let events = self.cache.events.count();
            self.cache.store(attributes, seen, events);
        }
    }

    /// As [`allocated`](Self::allocated), by the program. Where the index does not go it is noted down all the same: nobody else may know.
    pub(crate) fn announced(&self, attributes: &MemoryAttributes) {
        self.note(attributes, SAID);
        if attributes.memory_type != MemoryType::Host && is_beyond(attributes.allocation) {
            self.cache.say(attributes);
        }
    }

    /// Forgets what is known of `range`.
    pub(crate) fn freed(&self, range: AddressRange) {
        self.cache.invalidate(range, Cause::Notified);
    }
}

/// In place of the count of runtimes, which is of the host's memory alone: the program has said it.
const SAID: u64 = u64::MAX;

fn detects(domain: &dyn MemoryDomain) -> bool {
    let capabilities = domain.attributes().capabilities;
    capabilities.contains(DomainCapabilities::DETECT)
}

enum Begun<'a> {
    Known(MemoryAttributes),
    Asking(#[allow(dead_code)] Option<Asking<'a>>),
}

/// The right to ask.
struct Asking<'a>(&'a MemoryTypes);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        *self.0.asking.lock() = None;
        self.0.answered.notify_all();
    }
}

#[cold]
fn bad(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message).during(Operation::Memory)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Barrier,
        atomic::{AtomicBool, AtomicUsize},
    };

    use super::{super::Timing, cache::SHARERS, events::RECENT, *};

    /// Knows allocations, and how often it was asked.
    #[derive(Debug, Default)]
    struct Expert {
        late: bool,
        loaded: AtomicBool,
        known: Mutex<Vec<MemoryAttributes>>,
        asked: AtomicUsize,
    }

    impl MemoryDomain for Expert {
        fn name(&self) -> &'static str {
            "expert"
        }
        fn attributes(&self) -> super::super::DomainAttributes {
            super::super::DomainAttributes::new(DomainCapabilities::DETECT, [MemoryType::Cuda(0)])
        }
        fn is_loaded(&self) -> bool {
            !self.late || self.loaded.load(SeqCst)
        }
        fn detect(&self, range: AddressRange) -> Result<Option<MemoryAttributes>> {
            self.asked.fetch_add(1, SeqCst);
            thread::yield_now();
            let first = AddressRange::new(range.start(), 1)?;
            let known = self.known.lock();
            Ok(known
                .iter()
                .find(|known| known.allocation.contains(first))
                .copied())
        }
    }

    fn range(start: u64, length: u64) -> AddressRange {
        AddressRange::new(start, length).expect("a range")
    }

    fn cuda(start: u64, length: u64, id: u64) -> MemoryAttributes {
        MemoryAttributes::new(MemoryType::Cuda(0), range(start, length)).id(id)
    }

    fn count(value: u64) -> &'static AtomicU64 {
        Box::leak(Box::new(AtomicU64::new(value)))
    }

    fn types(known: &[MemoryAttributes]) -> (MemoryTypes, Arc<Expert>) {
        let expert = Arc::new(Expert::default());
        expert.known.lock().extend_from_slice(known);
        let domains: Vec<Arc<dyn MemoryDomain>> = vec![expert.clone()];
        let types = MemoryTypes::counting(domains, MonitorKind::None, count(1));
        (types, expert)
    }

    /// Where no other test of the program tells of events.
    const BASE: u64 = 0x2000_0000_0000;

    /// What the program says of addresses that the index does not have counts until it takes it back.
    #[test]
    fn said_beyond_the_index() {
        const FAR: u64 = 0x1001_0000_0000_0000;
        let (types, expert) = types(&[]);
        let asked = || expert.asked.load(SeqCst);
        let said: Vec<_> = (0..100).map(|at| cuda(FAR + at * 5000, 5000, 0)).collect();
        said.iter().for_each(|said| types.announced(said));
        types.announced(&MemoryAttributes::new(MemoryType::Host, range(FAR << 1, 8)));
        assert_eq!(types.known(range(FAR << 1, 8)), None, "never the host's");
        for said in &said {
            let start = said.allocation.start();
            for part in [said.allocation, range(start, 1), range(start + 4999, 1)] {
                assert_eq!(types.known(part), Some(*said));
                assert_eq!(types.find_current(part).expect("said"), *said);
            }
            assert_eq!(types.known(range(start + 4999, 2)), None, "two of them");
        }
        assert_eq!(asked(), 0);
        assert_eq!(types.find_anew(said[3].allocation).expect("said"), said[3]);
        assert!(asked() > 0, "somebody could know better");
        // Another one there, of a part of the third and the fourth.
        let other = cuda(FAR + 3 * 5000 + 10, 5000, 0).dma_buf(true);
        types.announced(&other);
        assert_eq!(types.known(other.allocation), Some(other));
        assert_eq!(types.known(range(FAR + 3 * 5000, 1)), None);
        assert_eq!(types.known(range(FAR + 5 * 5000 - 1, 1)), None);
        types.freed(range(FAR + 4999, 2));
        types.cache.invalidate(range(FAR + 20_000, 1), Cause::Freed);
        for (at, said) in said.iter().enumerate() {
            let gone = [0, 1, 3, 4].contains(&at);
            let known = types.known(said.allocation);
            assert_eq!(known, (!gone).then_some(*said), "{at}");
        }
        assert_eq!(types.known(other.allocation), None);
        // Places are used again.
        for round in 0..1000 {
            let said = cuda(FAR + round * 7, 7, 0);
            types.announced(&said);
            assert_eq!(types.known(said.allocation), Some(said));
            types.freed(said.allocation);
        }
        assert_eq!(types.cache.said.made.load(SeqCst), 100);
    }

    /// What the program says of memory of which nobody else can tell counts until it says otherwise, also where what others know is asked anew.
    #[test]
    fn said_where_nobody_can_tell() {
        let (types, expert) = types(&[]);
        let place = range(BASE, 8192);
        let part = range(BASE + 4096, 10);
        for memory_type in [MemoryType::Rocm(3), MemoryType::RocmManaged] {
            let said = MemoryAttributes::new(memory_type, place).id(9);
            types.announced(&said);
            for _ in 0..2 {
                assert_eq!(types.find_current(part).expect("said"), said);
                assert_eq!(types.find_anew(part).expect("said"), said);
            }
            types.freed(place);
            let host = types.find_current(part).expect("the host's");
            assert_eq!(host.memory_type, MemoryType::Host);
        }
        assert!(expert.asked.load(SeqCst) > 0, "somebody could know better");
        // The expert can tell of such memory, and knows nothing of it.
        types.announced(&cuda(BASE, 8192, 9));
        let host = types.find_current(part).expect("the host's");
        assert_eq!(host.memory_type, MemoryType::Host);
        // Who can tell says what it is now.
        types.announced(&MemoryAttributes::new(MemoryType::Rocm(3), place));
        expert.known.lock().push(cuda(BASE, 8192, 11));
        assert_eq!(types.find_current(part).expect("known").id, 11);
    }

    #[test]
    fn asked_once_for_an_allocation() {
        let whole = cuda(BASE + 100, 3 << 20, 7).dma_buf(true);
        let (types, expert) = types(&[whole]);
        assert_eq!(types.known(range(BASE + 100, 1)), None, "not yet");
        for (start, length) in [(100, 1), (4096, 4096), (2 << 20, 1 << 20), (100, 3 << 20)] {
            assert_eq!(
                types.find(range(BASE + start, length)).expect("known"),
                whole
            );
        }
        assert_eq!(expert.asked.load(SeqCst), 1);
        assert_eq!(types.known(range(BASE + 99, 2)), None);
        assert!(types.find(range(BASE + 100, (3 << 20) + 1)).is_err());
    }

    #[test]
    fn neighbours_are_kept_apart() {
        let (left, right) = (cuda(BASE, 8192, 1), cuda(BASE + 8192, 8192, 2));
        let (types, _) = types(&[left, right]);
        assert_eq!(types.find(range(BASE, 8192)).expect("left"), left);
        assert_eq!(types.find(range(BASE + 8192, 1)).expect("right"), right);
        assert_eq!(types.known(range(BASE + 8191, 2)), None);
        let error = types.find(range(BASE + 4096, 8192)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        types.freed(range(BASE, 8192));
        assert_eq!(types.known(range(BASE, 1)), None);
        assert_eq!(types.known(range(BASE + 8192, 8192)), Some(right));
    }

    #[test]
    fn what_comes_and_goes_pushes_nothing_out() {
        let (types, _) = types(&[]);
        let kept: Vec<_> = (0..1000)
            .map(|index| cuda(BASE + index * PAGE, PAGE, index))
            .collect();
        for attributes in &kept {
            types.allocated(attributes);
        }
        let other = cuda(BASE + (1 << 30), PAGE, 1);
        for _ in 0..100_000 {
            types.allocated(&other);
            types.freed(other.allocation);
        }
        let made = types.cache.writer.lock().slots;
        assert!(made < 1500, "{made} slots for 1001 allocations");
        for attributes in &kept {
            assert_eq!(types.known(attributes.allocation), Some(*attributes));
        }
    }

    #[test]
    fn a_part_that_goes_takes_all_of_it() {
        let (types, _) = types(&[cuda(BASE, 1 << 22, 1)]);
        types.find(range(BASE, 1)).expect("known");
        types
            .cache
            .invalidate(range(BASE + (3 << 20), 1), Cause::Unmapped);
        for page in [0, 1 << 20, 3 << 20] {
            assert_eq!(types.known(range(BASE + page, 1)), None);
        }
    }

    #[test]
    fn the_same_address_with_another_type() {
        let (types, expert) = types(&[cuda(BASE, 4096, 1)]);
        types.find(range(BASE, 8)).expect("known");
        let managed =
            MemoryAttributes::new(MemoryType::CudaManaged, range(BASE, 1 << 20)).id(u64::MAX);
        *expert.known.lock() = vec![managed];
        assert_eq!(types.find_anew(range(BASE, 8)).expect("known"), managed);
        assert_eq!(types.known(range(BASE + 8192, 8)), Some(managed));
        types.allocated(&cuda(BASE + 4096, 4096, 2));
        assert_eq!(types.known(range(BASE, 8)), None, "its allocation is gone");
        assert_eq!(
            types.known(range(BASE + 4096, 8)),
            Some(cuda(BASE + 4096, 4096, 2))
        );
    }

    #[test]
    fn a_page_of_several() {
        let small: Vec<_> = (0..SHARERS as u64 + 1)
            .map(|n| cuda(BASE + 4000 + n * 64, 64, n))
            .collect();
        let (types, expert) = types(&small);
        for one in &small {
            assert_eq!(types.find(one.allocation).expect("known"), *one);
        }
        let questions = expert.asked.load(SeqCst);
        for one in &small[..SHARERS] {
            assert_eq!(types.known(one.allocation), Some(*one));
        }
        // 4000 to 4096 is the page before.
        let last = small[SHARERS];
        assert_eq!(types.find(last.allocation).expect("known"), last);
        assert!(expert.asked.load(SeqCst) <= questions + 1);
        types.freed(small[3].allocation);
        assert_eq!(types.known(small[3].allocation), None);
        assert_eq!(types.known(small[4].allocation), Some(small[4]));
        // What was freed gives its place to another.
        types.allocated(&last);
        assert_eq!(types.known(last.allocation), Some(last));
    }

    #[test]
    fn unknown_is_not_host() {
        let (types, expert) = types(&[]);
        assert_eq!(types.known(range(BASE, 8)), None);
        let host = types.find(range(BASE, 8)).expect("nobody's");
        assert_eq!(host.memory_type, MemoryType::Host);
        // Nobody tells when host memory goes away: it is not remembered.
        assert_eq!(types.known(range(BASE, 8)), None);
        expert.known.lock().push(cuda(BASE + 8192, 4096, 1));
        let error = types.find(range(BASE, 8193)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(types.find(range(BASE, 0)).is_err());
    }

    #[test]
    fn a_runtime_that_appears_late() {
        let expert = Arc::new(Expert {
            late: true,
            ..Expert::default()
        });
        expert.known.lock().push(cuda(BASE, 4096, 1));
        let runtimes = count(0);
        let types = MemoryTypes::counting(vec![expert.clone()], MonitorKind::None, runtimes);
        let asked = || types.find(range(BASE, 8)).expect("an answer").memory_type;
        assert_eq!(asked(), MemoryType::Host);
        assert_eq!(expert.asked.load(SeqCst), 0);
        // The program loads it without a word.
        expert.loaded.store(true, SeqCst);
        assert_eq!(asked(), MemoryType::Cuda(0));
        assert_eq!(types.known(range(BASE, 8)).map(|known| known.id), Some(1));
    }

    /// A monitor that sees everything, or says so.
    #[derive(Debug)]
    struct Eyes;

    #[allow(unsafe_code)]
    // SAFETY: the test unmaps nothing.
    unsafe impl MemoryMonitor for Eyes {
        fn name(&self) -> &'static str {
            "eyes"
        }
        fn timing(&self) -> Timing {
            Timing::Before
        }
        fn classes(&self) -> super::super::EventClasses {
            super::super::EventClasses::all()
        }
        fn watch(&self, _: AddressRange) -> Result<()> {
            Ok(())
        }
        fn unwatch(&self, _: AddressRange) {}
        fn validate(&self) -> Validity {
            Validity::Valid
        }
    }

    #[test]
    fn host_memory_is_remembered_until_another_runtime_appears() {
        let (types, expert) = types(&[]);
        types.monitor.set(Some(Arc::new(Eyes))).expect("not asked");
        let host = range(BASE + 10, 100);
        for _ in 0..3 {
            let found = types.find(host).expect("nobody's");
            assert_eq!(found.memory_type, MemoryType::Host);
        }
        assert_eq!(expert.asked.load(SeqCst), 1);
        types.runtimes.fetch_add(1, SeqCst);
        assert_eq!(types.known(host), None);
        types.find(host).expect("nobody's");
        types.cache.invalidate(range(BASE, 4096), Cause::Unmapped);
        assert_eq!(types.known(host), None);
    }

    /// A monitor whose event arrives while it is asked whether there is one: then all is told, and it says so.
    #[derive(Debug)]
    struct Late(Arc<Cache>, AtomicBool);

    #[allow(unsafe_code)]
    // SAFETY: the test unmaps nothing.
    unsafe impl MemoryMonitor for Late {
        fn name(&self) -> &'static str {
            "late"
        }
        fn timing(&self) -> Timing {
            Timing::After
        }
        fn classes(&self) -> super::super::EventClasses {
            super::super::EventClasses::all()
        }
        fn watch(&self, _: AddressRange) -> Result<()> {
            Ok(())
        }
        fn unwatch(&self, _: AddressRange) {}
        fn validate(&self) -> Validity {
            if self.1.swap(false, SeqCst) {
                self.0.invalidate(range(BASE, 4096), Cause::Unmapped);
            }
            Validity::Valid
        }
    }

    #[test]
    fn an_event_that_arrives_while_the_monitor_is_asked() {
        let (types, _) = types(&[]);
        let late = Arc::new(Late(types.cache.clone(), AtomicBool::new(false)));
        types.monitor.set(Some(late.clone())).expect("not asked");
        types.find(range(BASE, 8)).expect("nobody's");
        assert!(types.known(range(BASE, 8)).is_some());
        late.1.store(true, SeqCst);
        assert_eq!(types.known(range(BASE, 8)), None);
    }

    #[test]
    fn an_answer_that_an_event_overtakes_is_not_kept() {
        let (types, _) = types(&[]);
        let events = types.cache.events.count();
        types.cache.invalidate(range(BASE, 4096), Cause::Unmapped);
        types.cache.store(&cuda(BASE, 4097, 1), 1, events);
        assert_eq!(types.known(range(BASE, 8)), None);
        types.cache.store(&cuda(BASE + 4096, 4096, 2), 1, events);
        assert!(types.known(range(BASE + 4096, 8)).is_some(), "elsewhere");
        for _ in 0..=RECENT {
            types.cache.invalidate(range(BASE, 4096), Cause::Unmapped);
        }
        types.cache.store(&cuda(BASE + 8192, 4096, 3), 1, events);
        assert_eq!(types.known(range(BASE + 8192, 8)), None, "too many events");
    }

    #[test]
    fn many_threads_ask_one_question() {
        let (types, expert) = types(&[cuda(BASE, 64 << 20, 1)]);
        let start = Barrier::new(8);
        thread::scope(|scope| {
            for thread in 0..8 {
                let (types, start) = (&types, &start);
                scope.spawn(move || {
                    start.wait();
                    let place = range(BASE + thread * (8 << 20), 4096);
                    assert_eq!(types.find(place).expect("known").id, 1);
                });
            }
        });
        assert_eq!(expert.asked.load(SeqCst), 1);
    }

    #[test]
    fn churn_under_readers_is_never_wrong() {
        let (types, _) = types(&[]);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(SeqCst) {
                        for page in 0..16 {
                            let place = range(BASE + page * 4096 + 128, 8);
                            if let Some(found) = types.known(place) {
                                assert!(found.allocation.contains(place));
                                assert_eq!(found.id, found.allocation.len());
                            }
                        }
                    }
                });
            }
            for round in 0..20_000_u64 {
                let start = BASE + (round * 7 % 16) * 4096 + (round % 3) * 64;
                let length = 64 << (round % 10);
                types.allocated(&cuda(start, length, length));
                if round % 5 == 0 {
                    types.freed(range(start, length));
                }
            }
            stop.store(true, SeqCst);
        });
        assert!(
            types.cache.writer.lock().slots < 100,
            "slots are used again"
        );
    }
}
