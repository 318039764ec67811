//! What a request does that finds nothing: it joins a registration under way, or begins one.
//!
//! ```text
//!  with the table's lock:  join a Pending slot that covers the request, or
//!                          make room, open a slot, retire what it overlaps, publish it in the index
//!  without it, as a job:   watch, register, commit (or give up), tell all who wait
//! ```
//! The job owns what it needs and depends on no future: whoever began it may be dropped.
//!
//! # Safety
//! A job opened its slot, which is Pending until the job commits or discards it; it holds a handle of the cache, so the slot stays where it is.
#![allow(unsafe_code)]

use std::{
    fmt,
    future::Future,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    ptr::NonNull,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use super::{
    flight::Flight,
    handle::Handle,
    inner::{End, Inner, Registration, Table},
    lookup::Hit,
    options::OverLimit,
    slot::{Commit, Entry, OWNED, Slot, UNCACHED},
};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::{AddressRange, Registrar, Validity},
    sys::{fork, pages},
    types::Access,
};

/// How often a request begins anew because the memory changed while it was registered; after that it is registered for itself.
const RETRIES: u32 = 3;
/// How often it begins anew in all; after that it registers in the thread that polls, whatever its length.
const TRIES: u32 = 8;
/// How long a request waits for events that are under way, before it is registered for itself.
const BUSY: Duration = Duration::from_millis(100);
/// How long a job waits for them. Without the wait it would only be stale sooner.
const SETTLE: Duration = Duration::from_millis(1);

/// How long a registration that found no room waits for others that are being given back, where it may block. A busy machine may let a
/// thread wait for tens of milliseconds.
const GIVE_BACK: Duration = Duration::from_secs(1);

/// What was asked for.
#[derive(Clone, Copy)]
pub(super) struct Request {
    range: AddressRange,
    access: Access,
    /// The allocation of wharf's own that it belongs to.
    whole: Option<AddressRange>,
}

impl Request {
    pub(super) fn foreign(range: AddressRange, access: Access) -> Self {
        Self {
            range,
            access,
            whole: None,
        }
    }

    /// Whether all that is registered for it goes away with its allocation: the pages that this has a part of. Pages of others, which come along
    /// where the registrar wants more than whole pages, may go away before.
    fn owns(&self, registered: AddressRange) -> bool {
        let page = pages::page_size() as u64;
        self.whole
            .and_then(|whole| whole.align_to(page).ok())
            .is_some_and(|whole| whole.contains(registered))
    }

    pub(super) fn owned(range: AddressRange, whole: AddressRange, access: Access) -> Self {
        Self {
            range,
            access,
            whole: Some(whole),
        }
    }
}

/// Resolves to a [`Registration`]. Made by
/// [`RegistrationCache::get`](super::RegistrationCache::get), where its behaviour is described.
#[must_use = "futures do nothing unless polled"]
pub struct GetRegistration<R: Registrar>(State<R>);

enum State<R: Registrar> {
    Hit(Registration<R>),
    Miss(Box<Miss<R>>),
    Done,
}

/// A request that was no hit.
struct Miss<R: Registrar> {
    cache: Arc<Handle<R>>,
    request: Request,
    waiting: Option<Waiting<R>>,
    /// Begun so often.
    tries: u32,
    /// A union with older registrations failed.
    alone: bool,
    /// Not to be kept.
    uncached: bool,
    busy_since: Option<Instant>,
    counted: bool,
}

struct Waiting<R: Registrar> {
    flight: Arc<Flight<End<R>>>,
    key: Option<usize>,
    /// It began this flight: nothing that happened before it can make the result stale.
    leader: bool,
}

impl<R: Registrar> Drop for Waiting<R> {
    fn drop(&mut self) {
        // In a child the lock may be held by a thread that is not there.
        if !fork::forked() {
            self.flight.leave(self.key);
        }
    }
}

impl<R: Registrar> GetRegistration<R> {
    #[inline]
    pub(super) fn hit(registration: Registration<R>) -> Self {
        Self(State::Hit(registration))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn miss(cache: &Arc<Handle<R>>, request: Request) -> Self {
        Self(State::Miss(Box::new(Miss {
            cache: Arc::clone(cache),
            request,
            waiting: None,
            tries: 0,
            alone: false,
            uncached: false,
            busy_since: None,
            counted: false,
        })))
    }
}

impl<R: Registrar> Future for GetRegistration<R> {
    type Output = Result<Registration<R>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let State::Miss(miss) = &mut this.0 {
            let result = miss.poll(cx);
            if result.is_ready() {
                this.0 = State::Done;
            }
            return result;
        }
        match mem::replace(&mut this.0, State::Done) {
            State::Hit(registration) => Poll::Ready(Ok(registration)),
            State::Miss(_) | State::Done => {
                Poll::Ready(Err(
                    Error::new(ErrorKind::Closed, "polled after its end").during(Operation::Memory)
                ))
            }
        }
    }
}

impl<R: Registrar> fmt::Debug for GetRegistration<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GetRegistration").finish_non_exhaustive()
    }
}

/// What a try came to.
enum Try<R: Registrar> {
    Hit(Registration<R>),
    /// An event is under way.
    Busy,
    Wait(Waiting<R>),
}

impl<R: Registrar> Miss<R> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Registration<R>>> {
        // Who registers for it is no thread of a child.
        fork::check(Operation::Memory)?;
        loop {
            if let Some(waiting) = &mut self.waiting {
                if waiting.flight.poll(&mut waiting.key, cx).is_pending() {
                    return Poll::Pending;
                }
                if let Some(result) = self.landed() {
                    return Poll::Ready(result);
                }
            }
            match self.begin() {
                Err(error) => return Poll::Ready(Err(error)),
                Ok(Try::Hit(registration)) => return Poll::Ready(Ok(registration)),
                Ok(Try::Wait(waiting)) => self.waiting = Some(waiting),
                Ok(Try::Busy) => {
                    let since = *self.busy_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > BUSY {
                        self.uncached = true;
                        continue;
                    }
                    // The monitor's thread needs some microseconds, and a processor.
                    thread::yield_now();
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }

    /// The flight is over. None: once more.
    fn landed(&mut self) -> Option<Result<Registration<R>>> {
        let waiting = self.waiting.take()?;
        self.tries += 1;
        let (leader, last) = (waiting.leader, self.tries > RETRIES);
        let own = self.cache.inner.exact(&self.request).ok();
        let result = waiting.flight.end(|end| match end {
            End::Ready(registration) => Some(Ok(registration.clone())),
            // An error of a longer range need not be its own.
            End::Failed(error, range) if leader || last || own == Some(*range) => {
                Some(Err(error.clone()))
            }
            End::Failed(..) | End::Again => None,
            End::UnionFailed => {
                self.alone |= leader;
                None
            }
            End::Unwatchable => {
                self.uncached = true;
                None
            }
        })??;
        match result {
            Err(error) => Some(Err(error)),
            // Nothing that happened before it began can make it stale.
            Ok(registration) if leader => Some(Ok(registration)),
            Ok(registration) if registration.slot().is_dead() => None,
            // It joined when the pages were registered already: what changed before it did must have been told.
            Ok(registration) => {
                let inner = &self.cache.inner;
                if inner.is_strict(&registration) && inner.strict_check(&registration).is_some() {
                    return None;
                }
                Some(Ok(registration))
            }
        }
    }

    /// Looks once more, joins, or begins.
    fn begin(&mut self) -> Result<Try<R>> {
        fork::check(Operation::Memory)?;
        let inner = Arc::clone(&self.cache.inner);
        let exact = inner.exact(&self.request)?;
        inner.start_reaper()?;
        if inner.core.unreleased_bytes.load(Ordering::Relaxed) > inner.options.max_unreleased {
            inner.reap();
        }
        let owned = !inner.attributes.pins_pages || self.request.owns(exact);
        let keep = inner.options.enabled
            && !self.uncached
            && self.tries <= RETRIES
            && (owned || inner.keeps_foreign)
            && inner.core.index.make_place(exact);
        let job = match keep {
            true => match self.join_or_open(exact, owned)? {
                Opened::Try(found) => {
                    if self.counted && matches!(found, Try::Hit(_)) {
                        inner.stats.gets.fetch_sub(1, Ordering::Relaxed);
                    }
                    return Ok(found);
                }
                Opened::Job(job) => Some(job),
                Opened::Full => None,
            },
            false => None,
        };
        let job = match job {
            Some(job) => {
                inner.count(&inner.stats.misses);
                job
            }
            None => {
                inner.count(&inner.stats.uncached);
                Job::uncached(&self.cache, exact, &self.request)
            }
        };
        let flight = Arc::clone(&job.flight);
        let patient = self.tries < TRIES;
        self.count_get();
        job.dispatch(patient);
        Ok(Try::Wait(Waiting {
            flight,
            key: None,
            leader: true,
        }))
    }

    fn count_get(&mut self) {
        if !mem::replace(&mut self.counted, true) {
            let stats = &self.cache.inner.stats;
            stats.gets.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// With the table's lock: a hit, a registration to wait for, or a slot of its own in the index.
    fn join_or_open(&mut self, exact: AddressRange, owned: bool) -> Result<Opened<R>> {
        let inner = Arc::clone(&self.cache.inner);
        let Request { range, access, .. } = self.request;
        let mut ring = false;
        // Everything that is found is opened in this order: look, make room, open, retire, publish.
        let opened = {
            let mut table = inner.table.lock();
            match inner.hit(range, access) {
                Hit::Found(registration) => return Ok(Opened::Try(Try::Hit(registration))),
                Hit::Busy => return Ok(Opened::Try(Try::Busy)),
                Hit::None => {}
            }
            if let Some(flight) = inner.under_way(&table, range, access) {
                drop(table);
                inner.count(&inner.stats.pending_waits);
                self.count_get();
                return Ok(Opened::Try(Try::Wait(Waiting {
                    flight,
                    key: None,
                    leader: false,
                })));
            }
            match inner.make_room(&mut table, exact.len(), &mut ring) {
                true => inner.open(&mut table, self, exact, owned, &mut ring),
                false => None,
            }
        };
        if ring {
            inner.bell.ring();
        }
        match (opened, inner.options.over_limit) {
            (Some(job), _) => Ok(Opened::Job(job)),
            (None, OverLimit::Uncached) => Ok(Opened::Full),
            (None, OverLimit::Fail) => Err(Error::new(
                ErrorKind::Exhausted,
                format!("no room for {exact} in the registration cache, all of it is in use"),
            )
            .during(Operation::Memory)),
        }
    }
}

/// What came of [`Miss::join_or_open`].
enum Opened<R: Registrar> {
    Try(Try<R>),
    Job(Job<R>),
    /// Over the limits.
    Full,
}

impl<R: Registrar> Inner<R> {
    /// What is registered for a request at least, if nothing is there yet.
    fn exact(&self, request: &Request) -> Result<AddressRange> {
        let bad =
            |text: String| Error::new(ErrorKind::InvalidArgument, text).during(Operation::Memory);
        let range = request.range;
        if range.is_empty() {
            return Err(bad(format!("no bytes to register at {:#x}", range.start())));
        }
        if let Some(whole) = request.whole {
            if !whole.contains(range) {
                return Err(bad(format!("{range} is no part of the allocation {whole}")));
            }
            let rounded = whole.align_to(self.alignment)?;
            let most = self
                .options
                .whole_allocation_max
                .min(self.attributes.max_length);
            if rounded.len() <= most {
                return Ok(rounded);
            }
        }
        let rounded = range.align_to(self.alignment)?;
        match rounded.len() <= self.attributes.max_length {
            true => Ok(rounded),
            false => Err(bad(format!(
                "{range} is longer than the {} bytes that {} registers at once",
                self.attributes.max_length,
                self.registrar.name()
            ))),
        }
    }

    /// The registration under way that will cover the request.
    fn under_way(
        &self,
        table: &Table<R>,
        range: AddressRange,
        access: Access,
    ) -> Option<Arc<Flight<End<R>>>> {
        let raw = self.core.index.get(range.start());
        if raw == 0 {
            return None;
        }
        let entry = Entry::from_raw(raw);
        match self.core.slot(entry).will_cover(entry, range, access) {
            true => table.flights.get(&entry.index()).map(Arc::clone),
            false => None,
        }
    }

    /// Whether one more region of `bytes` fits, after others were evicted for it.
    fn make_room(&self, table: &mut Table<R>, bytes: u64, ring: &mut bool) -> bool {
        let fits = |table: &Table<R>| {
            let (regions, kept) = self.kept(table);
            regions < self.max_regions && kept.saturating_add(bytes) <= self.options.max_bytes
        };
        if bytes > self.options.max_bytes || self.max_regions == 0 {
            return false;
        }
        while !fits(table) {
            if !self.evict_one(table, ring) {
                return false;
            }
        }
        true
    }

    /// Evicts what the clock's hand finds: idle, and not used since it last passed. False: all is in use.
    fn evict_one(&self, table: &mut Table<R>, ring: &mut bool) -> bool {
        // Twice round: the first may only clear clock bits.
        for _ in 0..2 * u64::from(table.made) + 1 {
            if table.hand >= table.made {
                table.hand = 0;
                if table.made == 0 {
                    return false;
                }
            }
            let slot = self.core.slots.get(table.hand);
            table.hand += 1;
            let bytes = slot.range().len();
            if slot.evict(true) {
                self.core.count_dead(bytes);
                self.count(&self.stats.evictions);
                *ring |= self.core.push_dead(slot);
                return true;
            }
        }
        false
    }

    /// Gives back as much as it can: evicts at least `bytes` if they are idle, and deregisters what is dead. Not under the lock.
    fn give_back(&self, bytes: u64) {
        let mut ring = false;
        {
            let mut table = self.table.lock();
            let (_, before) = self.kept(&table);
            while self.kept(&table).1.saturating_add(bytes) > before
                && self.evict_one(&mut table, &mut ring)
            {}
        }
        self.reap();
        // What another thread has taken from the stack is given back in a moment.
        let end = Instant::now() + GIVE_BACK;
        while self.core.unreleased_regions.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// An Empty slot.
    fn empty_slot(&self, table: &mut Table<R>) -> Option<u32> {
        if let Some(index) = table.free.pop() {
            return Some(index);
        }
        let index = table.made;
        if index as usize >= self.core.slots.capacity() {
            return None;
        }
        self.core.slots.make(index);
        table.made += 1;
        Some(index)
    }

    /// Opens a slot for `exact`, or for the union with what it overlaps, retires that, and publishes the slot. None: no slot.
    fn open(
        &self,
        table: &mut Table<R>,
        miss: &Miss<R>,
        exact: AddressRange,
        owned: bool,
        ring: &mut bool,
    ) -> Option<Job<R>> {
        let access = miss.request.access;
        let index = self.empty_slot(table)?;
        let slot = self.core.slots.get(index);
        let mut found = Vec::new();
        self.core.index.walk(exact, |raw| found.push(raw));
        found.sort_unstable();
        found.dedup();
        let old_slots = found
            .iter()
            .map(|raw| self.core.slot(Entry::from_raw(*raw)));
        // All that it may become, from the moment on at which a handler can come by way of what it takes the place of.
        let widest = old_slots.fold(exact, |widest, old| widest.union(old.range()));
        let entry = slot.open(widest, access, if owned { OWNED } else { 0 });
        let (mut union, mut held) = (exact, Vec::new());
        for raw in found {
            let old_entry = Entry::from_raw(raw);
            let old = self.core.slot(old_entry);
            let Some(retired) = old.supersede(old_entry, entry) else {
                continue;
            };
            if retired.ready {
                self.core.count_dead(old.range().len());
            }
            held.push((old, old_entry));
            let alike = retired.ready && !retired.owned && old.access() == access;
            if alike && !owned && !miss.alone {
                let wider = union.union(old.range());
                let most = self.options.merge_max.min(self.attributes.max_length);
                let near = wider.len() <= 2 * (union.len() + old.range().len());
                let fits = self.kept(table).1.saturating_add(wider.len()) <= self.options.max_bytes;
                if near && fits && wider.len() <= most {
                    union = wider;
                }
            }
        }
        slot.set_range(union);
        let published = self.core.index.set(union, entry.raw());
        debug_assert!(published.is_ok(), "whole pages in the index");
        if union != exact {
            self.count(&self.stats.merges);
        }
        table.regions += 1;
        table.bytes += union.len();
        self.live.fetch_add(1, Ordering::SeqCst);
        let flight = Arc::new(Flight::new());
        table.flights.insert(index, Arc::clone(&flight));
        // They could be found until now; now what took their place can. Nothing leads to them any more before they are let go: else a handler that
        // meets a successor of another life could not know whether to look again.
        for (old, old_entry) in held {
            self.core.index.clear(old.range(), old_entry.raw());
            if old.leave() {
                *ring |= self.core.push_dead(old);
            }
        }
        Some(Job {
            cache: Arc::clone(&miss.cache),
            slot: NonNull::from(slot),
            range: union,
            access,
            whole: miss.request.whole,
            watch: !owned,
            merged: union != exact,
            flight,
            open: true,
            told: false,
            refused: false,
        })
    }

    /// Waits a moment for events that are under way.
    fn settle(&self) {
        if !self.strict || self.monitor.validate() == Validity::Valid {
            return;
        }
        let end = Instant::now() + SETTLE;
        while self.monitor.validate() == Validity::Pending && Instant::now() < end {
            thread::yield_now();
        }
    }

    /// Asks the registrar. Not under a lock.
    fn register(
        &self,
        range: AddressRange,
        whole: Option<AddressRange>,
        access: Access,
    ) -> Result<R::Handle> {
        let (name, begin) = (self.registrar.name(), Instant::now());
        let _span = tracing::debug_span!(target: "wharf::rcache", "register", registrar = name, %range, ?access).entered();
        let ask = || match whole {
            Some(whole) => self.registrar.register_owned(range, whole, access),
            None => self.registrar.register(range, access),
        };
        let result = catch_unwind(AssertUnwindSafe(ask));
        let ns = begin.elapsed().as_nanos() as u64;
        let result = result.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Io,
                format!("the registrar {name} panicked over {range}"),
            )
            .during(Operation::Memory))
        });
        match &result {
            Ok(_) => {
                self.count(&self.stats.registrations);
                let stats = &self.stats;
                stats
                    .registered_bytes
                    .fetch_add(range.len(), Ordering::Relaxed);
                stats.registration_ns.fetch_add(ns, Ordering::Relaxed);
                tracing::trace!(target: "wharf::rcache", registrar = name, %range, ?access, ns, "registered");
            }
            Err(error) => {
                self.count(&self.stats.registration_errors);
                tracing::debug!(target: "wharf::rcache", registrar = name, %range, ?access, %error, "registration failed");
            }
        }
        result
    }
}

/// One registration to be made.
struct Job<R: Registrar> {
    cache: Arc<Handle<R>>,
    slot: NonNull<Slot<R::Handle>>,
    range: AddressRange,
    access: Access,
    /// The allocation that it is of, where its owner keeps it.
    whole: Option<AddressRange>,
    /// It relies on events.
    watch: bool,
    /// The range is more than was asked for.
    merged: bool,
    flight: Arc<Flight<End<R>>>,
    /// The slot is still this job's.
    open: bool,
    /// Those who wait know the end.
    told: bool,
    /// There was no room when it was asked for where it may not wait.
    refused: bool,
}

// SAFETY: the slot's handle is `Send` and `Sync`, its other fields are atomic.
unsafe impl<R: Registrar> Send for Job<R> {}

impl<R: Registrar> Job<R> {
    /// For itself, not in the cache.
    fn uncached(cache: &Arc<Handle<R>>, range: AddressRange, request: &Request) -> Self {
        cache.inner.live.fetch_add(1, Ordering::SeqCst);
        let access = request.access;
        let slot = Box::into_raw(Slot::uncached(range, access));
        Self {
            cache: Arc::clone(cache),
            // SAFETY: of a box.
            slot: unsafe { NonNull::new_unchecked(slot) },
            range,
            access,
            whole: request.whole,
            watch: false,
            merged: false,
            flight: Arc::new(Flight::new()),
            open: true,
            told: false,
            refused: false,
        }
    }

    fn slot(&self) -> &Slot<R::Handle> {
        // SAFETY: see the module's docs.
        unsafe { self.slot.as_ref() }
    }

    /// Runs it here, or where it may block. When it cannot be run there it ends as it is dropped, and the request comes again.
    fn dispatch(mut self, patient: bool) {
        let short = self.range.len() <= self.cache.inner.attributes.inline_max;
        let end = match patient {
            false => self.register(true),
            true if short => self.register(false),
            true => None,
        };
        match end {
            Some(end) => self.tell(end),
            None => self.dispatch_away(),
        }
    }

    fn dispatch_away(self) {
        let run = move |mut job: Self| {
            if let Some(end) = job.register(true) {
                job.tell(end);
            }
        };
        match tokio::runtime::Handle::try_current() {
            // Tokio panics when it can start no thread at all.
            Ok(runtime) => drop(catch_unwind(AssertUnwindSafe(|| {
                runtime.spawn_blocking(move || run(self))
            }))),
            Err(_) => drop(
                thread::Builder::new()
                    .name("wharf-register".into())
                    .spawn(move || run(self)),
            ),
        }
    }

    fn tell(mut self, end: End<R>) {
        self.told = true;
        self.flight.complete(end);
    }

    /// `None`: there is no room, and it may not wait for any here.
    fn register(&mut self, may_wait: bool) -> Option<End<R>> {
        let inner = Arc::clone(&self.cache.inner);
        if self.watch {
            inner.settle();
            if let Err(error) = inner.monitor.watch(self.range) {
                inner.count(&inner.stats.watch_failures);
                tracing::debug!(target: "wharf::rcache", range = %self.range, %error, "not watched, so not cached");
                self.discard();
                return Some(End::Unwatchable);
            }
        }
        let asked = (!self.refused).then(|| inner.register(self.range, self.whole, self.access));
        let result = match asked {
            Some(Err(error)) if error.kind() == ErrorKind::Exhausted && !may_wait => {
                self.refused = true;
                return None;
            }
            Some(result) if !matches!(&result, Err(error) if error.kind() == ErrorKind::Exhausted) => {
                result
            }
            _ => {
                inner.give_back(self.range.len());
                inner.register(self.range, self.whole, self.access)
            }
        };
        let handle = match result {
            Ok(handle) => handle,
            Err(error) => {
                self.discard();
                return Some(match self.merged {
                    true => End::UnionFailed,
                    false => End::Failed(error, self.range),
                });
            }
        };
        // SAFETY: this job opened the slot, which is Pending.
        unsafe { self.slot().put_handle(handle) };
        if self.watch {
            inner.settle();
        }
        Some(match self.slot().commit() {
            Commit::Ready { retired } => {
                if !self.slot().has(UNCACHED) {
                    if retired {
                        inner.core.count_dead(self.range.len());
                    }
                    let index = self.slot().entry().index();
                    let flight = inner.table.lock().flights.remove(&index);
                    drop(flight);
                }
                self.open = false;
                // SAFETY: the job's own use of the slot, handed over; the reaper was started before any job.
                End::Ready(unsafe { Registration::new(self.slot(), &inner) })
            }
            Commit::Stale => {
                // SAFETY: still Pending, and this job's.
                let handle = unsafe { self.slot().take_handle() };
                self.discard_with(handle);
                End::Again
            }
        })
    }

    /// The slot is given up before it was Ready.
    fn discard(&mut self) {
        self.discard_with(None);
    }

    fn discard_with(&mut self, handle: Option<R::Handle>) {
        self.open = false;
        let inner = &self.cache.inner;
        if let Some(handle) = handle {
            inner.deregister(handle, self.range);
        }
        if self.slot().has(UNCACHED) {
            // SAFETY: made by `Box::into_raw`, and this job is its only user.
            drop(unsafe { Box::from_raw(self.slot.as_ptr()) });
        } else {
            self.slot().retire();
            inner.core.count_dead(self.range.len());
            inner
                .core
                .index
                .clear(self.range, self.slot().entry().raw());
            inner.close_slot(self.slot(), self.range);
        }
        inner.live.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<R: Registrar> Drop for Job<R> {
    fn drop(&mut self) {
        if self.open {
            self.discard();
        }
        if !self.told {
            self.flight.complete(End::Again);
        }
    }
}
