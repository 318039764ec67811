//! A monitor that sees what a test tells it, when the test says so.
//!
//! # Safety
//! `MemoryMonitor` is unsafe to implement because caches believe it; nothing here is unsafe to execute.
#![allow(unsafe_code)]

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

use parking_lot::Mutex;
use wharf::{
    Error, ErrorKind, Result,
    memory::{AddressRange, Cause, EventClasses, MemoryMonitor, Timing, Validity, invalidate},
};

/// The monitor. Changes that a test makes are told at once, or kept back until `deliver`; while some are kept back it is not valid.
#[derive(Clone, Debug)]
pub(crate) struct FakeMonitor(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    timing: Timing,
    classes: EventClasses,
    held: AtomicBool,
    queue: Mutex<Vec<AddressRange>>,
    queued: AtomicU64,
    refuses: AtomicBool,
    watched: Mutex<Vec<AddressRange>>,
}

impl FakeMonitor {
    /// One that sees everything.
    pub(crate) fn new(timing: Timing) -> Self {
        Self::with_classes(timing, EventClasses::all())
    }

    pub(crate) fn with_classes(timing: Timing, classes: EventClasses) -> Self {
        Self(Arc::new(Shared {
            timing,
            classes,
            held: AtomicBool::new(false),
            queue: Mutex::default(),
            queued: AtomicU64::new(0),
            refuses: AtomicBool::new(false),
            watched: Mutex::default(),
        }))
    }

    /// From now on changes wait for `deliver`.
    pub(crate) fn hold(&self) {
        self.0.held.store(true, SeqCst);
    }

    /// From now on it watches nothing.
    pub(crate) fn refuse(&self) {
        self.0.refuses.store(true, SeqCst);
    }

    /// The memory of `range` changed.
    pub(crate) fn change(&self, range: AddressRange) {
        if self.0.held.load(SeqCst) {
            self.0.queued.fetch_add(1, SeqCst);
            self.0.queue.lock().push(range);
        } else {
            invalidate(range, Cause::Unmapped);
        }
    }

    /// Tells of what waits.
    pub(crate) fn deliver(&self) {
        let ranges = std::mem::take(&mut *self.0.queue.lock());
        for range in ranges {
            invalidate(range, Cause::Unmapped);
            self.0.queued.fetch_sub(1, SeqCst);
        }
    }

    /// Stops holding, and delivers.
    pub(crate) fn release(&self) {
        self.0.held.store(false, SeqCst);
        self.deliver();
    }

    /// What it was asked to watch.
    pub(crate) fn watched(&self) -> Vec<AddressRange> {
        self.0.watched.lock().clone()
    }
}

// SAFETY: changes of memory are what tests call `change` for; each is delivered before `validate` says `Valid`.
unsafe impl MemoryMonitor for FakeMonitor {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn timing(&self) -> Timing {
        self.0.timing
    }

    fn classes(&self) -> EventClasses {
        self.0.classes
    }

    fn watch(&self, range: AddressRange) -> Result<()> {
        if self.0.refuses.load(SeqCst) {
            return Err(Error::new(ErrorKind::Unsupported, "cannot be watched"));
        }
        self.0.watched.lock().push(range);
        Ok(())
    }

    fn unwatch(&self, _: AddressRange) {}

    fn validate(&self) -> Validity {
        match self.0.queued.load(SeqCst) {
            0 => Validity::Valid,
            _ => Validity::Pending,
        }
    }
}
