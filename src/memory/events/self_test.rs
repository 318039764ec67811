//! What a monitor really sees: each kind of change is made to a page of the test's own, and looked for.
//!
//! # Safety
//! All calls change only pages that the test mapped itself, and nobody else knows.
#![allow(unsafe_code)]

use std::{
    io, ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use super::{Cause, EventClasses, MemoryMonitor, MemorySink, Validity, subscribe};
use crate::{
    error::{Error, Operation, Result},
    memory::AddressRange,
};

/// Makes a change of each class of `classes` that can be tried, and returns those whose event arrived. Never tried: `BREAK`, as lowering the
/// break races with the allocator, `RUST_HEAP` and `NOTIFIED`.
/// Errors: `Exhausted`: no pages to try it with, no place for a sink.
pub(super) fn run(monitor: &dyn MemoryMonitor, classes: EventClasses) -> Result<EventClasses> {
    let recorder = Arc::new(Recorder::default());
    let subscription = subscribe(Arc::clone(&recorder) as Arc<dyn MemorySink>)?;
    let mut seen = EventClasses::empty();
    for (class, change) in CHANGES {
        if classes.contains(class) && is_seen(monitor, &recorder, change)? {
            seen |= class;
        }
    }
    drop(subscription);
    Ok(seen)
}

/// A change of the page at this address, of this many bytes. Returns whether the page is still the test's.
type Change = fn(*mut libc::c_void, usize) -> bool;

const CHANGES: [(EventClasses, Change); 5] = [
    (EventClasses::UNMAP, |page, size| {
        // SAFETY: a page of the test.
        unsafe { libc::munmap(page, size) != 0 }
    }),
    (EventClasses::OVERMAP, |page, size| {
        // SAFETY: a page of the test.
        unsafe { map(page, size, libc::MAP_FIXED) };
        true
    }),
    (EventClasses::REMAP, |page, size| {
        // SAFETY: where the kernel likes.
        let to = unsafe { map(ptr::null_mut(), size, 0) };
        if to == libc::MAP_FAILED {
            return true;
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: a page of the test, onto another.
        let moved = unsafe { libc::mremap(page, size, size, flags, to) };
        // SAFETY: the page that was moved, or the one that it would have been moved onto.
        unsafe { libc::munmap(to, size) };
        moved == libc::MAP_FAILED
    }),
    (EventClasses::DISCARD, |page, size| {
        // SAFETY: a page of the test.
        unsafe { libc::madvise(page, size, libc::MADV_DONTNEED) };
        true
    }),
    (EventClasses::DIRECT, |page, size| {
        // SAFETY: a page of the test.
        unsafe { libc::syscall(libc::SYS_munmap, page, size) != 0 }
    }),
];

fn is_seen(monitor: &dyn MemoryMonitor, recorder: &Recorder, change: Change) -> Result<bool> {
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let size = usize::try_from(page).unwrap_or(4096);
    // Two pages, so that the change splits a mapping.
    // SAFETY: where the kernel likes.
    let base = unsafe { map(ptr::null_mut(), 2 * size, 0) };
    if base == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        return Err(
            Error::io("no page for the self-test of a monitor", error).during(Operation::Memory)
        );
    }
    // SAFETY: mapped above, writable.
    unsafe { base.cast::<u8>().write_volatile(1) };
    let range = AddressRange::new(base as u64, size as u64)?;
    // An event of what was unmapped here before, and is told of late, would pass for that of the change.
    settle(monitor, || false);
    recorder.expect(range);
    let watched = monitor.watch(range).is_ok();
    let mut ours = true;
    if watched {
        ours = change(base, size);
        settle(monitor, || recorder.seen.load(SeqCst));
    }
    let seen = watched && recorder.seen.load(SeqCst);
    monitor.unwatch(range);
    // What the change unmapped may be another's by now.
    let skip = if ours { 0 } else { size };
    // SAFETY: the test's, from here on.
    unsafe { libc::munmap(base.cast::<u8>().add(skip).cast(), 2 * size - skip) };
    Ok(seen)
}

/// Waits until all that happened was told of, or until what is waited for was; not for ever.
fn settle(monitor: &dyn MemoryMonitor, is_done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_done() && monitor.validate() == Validity::Pending && Instant::now() < deadline {
        thread::yield_now();
    }
}

/// # Safety
/// With `MAP_FIXED`, nobody may use what is at `address`.
unsafe fn map(address: *mut libc::c_void, size: usize, flags: libc::c_int) -> *mut libc::c_void {
    // SAFETY: new memory, in place of what the caller gave up, if anything.
    unsafe {
        libc::mmap(
            address,
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    }
}

/// Waits for an event of one range.
#[derive(Default)]
struct Recorder {
    start: AtomicU64,
    end: AtomicU64,
    seen: AtomicBool,
}

impl Recorder {
    fn expect(&self, range: AddressRange) {
        self.start.store(range.start(), SeqCst);
        self.end.store(range.end(), SeqCst);
        self.seen.store(false, SeqCst);
    }
}

impl MemorySink for Recorder {
    fn invalidate(&self, range: AddressRange, _: Cause) {
        if range.start() < self.end.load(SeqCst) && self.start.load(SeqCst) < range.end() {
            self.seen.store(true, SeqCst);
        }
    }
}

/// For an event that is under way.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::{super::NoMonitor, *};

    #[test]
    fn a_monitor_that_sees_nothing_is_found_out() {
        let seen = run(&NoMonitor, EventClasses::all()).expect("pages");
        assert_eq!(seen, EventClasses::empty());
    }
}
