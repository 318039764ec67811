//! A registrar without hardware: it counts, and does what a test tells it to, late, wrong or not at all.

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use wharf::{
    Access, Error, ErrorKind, Result,
    memory::{AddressRange, Registrar, RegistrarAttributes},
};

use super::LIMIT;

/// What a registration gives: its number, from 1 on, and what was registered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) number: u64,
    pub(crate) range: AddressRange,
    pub(crate) access: Access,
    /// What the `content` of the plan said when the pages were pinned.
    pub(crate) content: u64,
}

/// The registrar. Clones are the same one, so that a test keeps hold of it.
#[derive(Clone, Default)]
pub(crate) struct FakeRegistrar(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Called with the number of the registration, from 1 on, and its range, without a lock.
type Rule = dyn Fn(u64, AddressRange, Access) -> Result<()> + Send + Sync;
type Content = dyn Fn(AddressRange) -> u64 + Send + Sync;

#[derive(Default)]
struct State {
    attributes: RegistrarAttributes,
    calls: u64,
    registered: u64,
    deregistered: u64,
    live: BTreeMap<u64, (AddressRange, Access)>,
    most_live: usize,
    in_register: usize,
    closed: bool,
    latency: Duration,
    rule: Option<Arc<Rule>>,
    content: Option<Arc<Content>>,
    deregister_fails: bool,
}

impl FakeRegistrar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// With other attributes; before it is given to a cache.
    pub(crate) fn with_attributes(attributes: RegistrarAttributes) -> Self {
        let this = Self::default();
        this.state().attributes = attributes;
        this
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// Every registration takes so long.
    pub(crate) fn set_latency(&self, latency: Duration) {
        self.state().latency = latency;
    }

    /// Every registration asks `rule` first, which may fail, panic, or do something meanwhile.
    pub(crate) fn set_rule(
        &self,
        rule: impl Fn(u64, AddressRange, Access) -> Result<()> + Send + Sync + 'static,
    ) {
        self.state().rule = Some(Arc::new(rule));
    }

    /// Every registration works again.
    pub(crate) fn clear_rule(&self) {
        self.state().rule = None;
    }

    /// What is asked for the content of pages when they are pinned.
    pub(crate) fn set_content(
        &self,
        content: impl Fn(AddressRange) -> u64 + Send + Sync + 'static,
    ) {
        self.state().content = Some(Arc::new(content));
    }

    /// Deregistrations report an error.
    pub(crate) fn fail_deregister(&self) {
        self.state().deregister_fails = true;
    }

    /// Registrations wait in `register` from now on, until `open`.
    pub(crate) fn close(&self) {
        self.state().closed = true;
    }

    pub(crate) fn open(&self) {
        self.state().closed = false;
        self.0.changed.notify_all();
    }

    /// Waits, blocking, until so many registrations are under way.
    #[track_caller]
    pub(crate) fn wait_in_register(&self, count: usize) {
        self.wait("registrations under way", |state| {
            state.in_register >= count
        });
    }

    /// Waits, blocking, until so many deregistrations happened.
    #[track_caller]
    pub(crate) fn wait_deregistered(&self, count: u64) {
        self.wait("deregistrations", |state| state.deregistered >= count);
    }

    #[track_caller]
    fn wait(&self, what: &str, over: impl Fn(&State) -> bool) {
        let end = Instant::now() + LIMIT;
        let mut state = self.state();
        while !over(&state) {
            let late = self.0.changed.wait_until(&mut state, end).timed_out();
            assert!(!late || over(&state), "watchdog: too few {what}");
        }
    }

    /// Calls of `register`, those that failed too.
    pub(crate) fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Registrations that worked.
    pub(crate) fn registered(&self) -> u64 {
        self.state().registered
    }

    pub(crate) fn deregistered(&self) -> u64 {
        self.state().deregistered
    }

    /// What is registered now.
    pub(crate) fn live(&self) -> Vec<(AddressRange, Access)> {
        self.state().live.values().copied().collect()
    }

    /// How many hold this registrar: this one, other clones, a cache and its reaper.
    pub(crate) fn shares(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Bytes that are registered now.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.state()
            .live
            .values()
            .map(|(range, _)| range.len())
            .sum()
    }

    /// The most registrations that there were at once.
    pub(crate) fn most_live(&self) -> usize {
        self.state().most_live
    }
}

/// Takes one from `in_register` whatever happens, a panic too.
struct Inside<'a>(&'a FakeRegistrar);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.state().in_register -= 1;
        self.0.0.changed.notify_all();
    }
}

impl Registrar for FakeRegistrar {
    type Handle = Key;

    fn name(&self) -> &'static str {
        "fake"
    }

    fn attributes(&self) -> RegistrarAttributes {
        self.state().attributes
    }

    fn register(&self, range: AddressRange, access: Access) -> Result<Key> {
        let mut state = self.state();
        let align = state.attributes.alignment;
        assert!(!range.is_empty() && (range.start() | range.end()).is_multiple_of(align));
        state.calls += 1;
        let number = state.calls;
        state.in_register += 1;
        let inside = Inside(self);
        self.0.changed.notify_all();
        while state.closed {
            self.0.changed.wait(&mut state);
        }
        let (latency, rule, content) = (state.latency, state.rule.clone(), state.content.clone());
        drop(state);
        // What the device takes.
        if !latency.is_zero() {
            thread::sleep(latency);
        }
        if let Some(rule) = rule {
            rule(number, range, access)?;
        }
        let content = content.map_or(0, |content| content(range));
        let mut state = self.state();
        state.registered += 1;
        state.live.insert(number, (range, access));
        state.most_live = state.most_live.max(state.live.len());
        drop(state);
        drop(inside);
        Ok(Key {
            number,
            range,
            access,
            content,
        })
    }

    fn deregister(&self, key: Key, range: AddressRange) -> Result<()> {
        let mut state = self.state();
        let found = state.live.remove(&key.number);
        assert_eq!(
            found,
            Some((range, key.access)),
            "deregistered once, as registered"
        );
        state.deregistered += 1;
        let fails = state.deregister_fails;
        drop(state);
        self.0.changed.notify_all();
        match fails {
            true => Err(Error::new(ErrorKind::Io, "made to fail")),
            false => Ok(()),
        }
    }
}
