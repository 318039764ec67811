//! What a scenario has: memory, watched; and what was seen of it.
//!
//! # Safety
//! The sink looks at memory that may be gone, by a system call that says so instead of faulting.
#![allow(unsafe_code)]

use std::{
    fmt, ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use wharf::{
    ErrorKind, Result,
    memory::{
        AddressRange, Cause, MemoryMonitor, MemorySink, MonitorKind, Subscription, Timing,
        Validity, monitor, subscribe,
    },
};

/// What a monitor made of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Its event came while the memory still was what it had been.
    Before,
    /// Its event came, and no later than `validate` said that all had come.
    After,
    /// There was no event.
    Missed,
    /// It refused to watch the memory.
    Unsupported,
    /// Not what was asked for was done: the foreign patch that it listens to does something else.
    Misplaced,
}

/// A monitor and what it tells of.
pub(super) struct Stage {
    monitor: Arc<dyn MemoryMonitor>,
    recorder: Arc<Recorder>,
    _subscription: Subscription,
}

impl Stage {
    pub(super) fn new(kind: MonitorKind) -> Result<Self> {
        let monitor = monitor(kind)?;
        let recorder = Arc::new(Recorder::default());
        Ok(Self {
            monitor,
            _subscription: subscribe(Arc::clone(&recorder) as Arc<dyn MemorySink>)?,
            recorder,
        })
    }

    /// Fills writable memory and watches it.
    pub(super) fn watch(&self, start: *mut u8, length: usize) -> Result<()> {
        // SAFETY: memory of the scenario's own.
        unsafe { ptr::write_bytes(start, FILL, length) };
        self.recorder.is_filled.store(true, SeqCst);
        self.watch_as_it_is(start, length)
    }

    /// Watches memory that must keep what it holds.
    pub(super) fn watch_as_it_is(&self, start: *mut u8, length: usize) -> Result<()> {
        // What was unmapped before, at these addresses, may still be told of: it is not the scenario's change.
        self.settle();
        let range = AddressRange::new(start as u64, length as u64).expect("real memory");
        self.monitor.watch(range).inspect_err(|error| {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        })?;
        self.recorder.start.store(range.start(), SeqCst);
        self.recorder.end.store(range.end(), SeqCst);
        Ok(())
    }

    /// What was seen of the change, now that it is done.
    pub(super) fn outcome(&self) -> Outcome {
        self.settle();
        let (seen, intact) = (&self.recorder.seen, &self.recorder.intact);
        match (seen.load(SeqCst), self.monitor.timing()) {
            (false, _) => Outcome::Missed,
            (true, Timing::Before) if intact.load(SeqCst) => Outcome::Before,
            (true, _) => Outcome::After,
        }
    }

    /// Waits until all that happened so far was told of.
    fn settle(&self) {
        let start = Instant::now();
        while self.monitor.validate() == Validity::Pending {
            assert!(start.elapsed() < WATCHDOG, "watchdog: pending for ever");
            thread::yield_now();
        }
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.monitor.fmt(f)
    }
}

/// Takes part in the first event of its range. No lock, no allocation.
#[derive(Default)]
struct Recorder {
    start: AtomicU64,
    end: AtomicU64,
    is_filled: AtomicBool,
    seen: AtomicBool,
    intact: AtomicBool,
}

impl MemorySink for Recorder {
    fn invalidate(&self, range: AddressRange, _: Cause) {
        let start = range.start().max(self.start.load(SeqCst));
        let end = range.end().min(self.end.load(SeqCst));
        if start >= end || self.seen.load(SeqCst) {
            return;
        }
        // Allocators write to the ends of free blocks.
        let byte = read_byte(start + (end - start) / 2);
        let intact = match self.is_filled.load(SeqCst) {
            true => byte == Some(FILL),
            false => byte.is_some(),
        };
        self.intact.store(intact, SeqCst);
        self.seen.store(true, SeqCst);
    }
}

/// The byte at an address where there may be nothing.
fn read_byte(address: u64) -> Option<u8> {
    let mut byte = 0_u8;
    let local = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: 1,
    };
    // SAFETY: writes one byte to `byte`; what is at `address`, the kernel finds out.
    let got = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    (got == 1).then_some(byte)
}

/// Version of the running kernel.
pub(super) fn kernel() -> (u32, u32) {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a mounted /proc");
    let mut numbers = text
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// What watched memory holds before its change.
const FILL: u8 = 0x5a;
/// Longer than any event takes.
const WATCHDOG: Duration = Duration::from_secs(30);
