//! From a monitor to the caches, without a lock.
//!
//! # Safety
//! A place in the table holds a sink, or null. A call that hands an event to it is counted in `users` before it reads the pointer and after it
//! is done. A subscription that ends takes the pointer out first and frees the sink when it has seen `users` at 0 after that: whoever was
//! counted later read null (both sides are sequentially consistent).
#![allow(unsafe_code)]

use std::{
    fmt, ptr,
    sync::{
        Arc,
        atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use super::Cause;
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::AddressRange,
    sys::fork,
};

/// Who hears of memory that went away.
pub trait MemorySink: Send + Sync {
    /// `range` changed or is about to. Called from inside `munmap`, `free` or a signal handler, in any thread: must not take a lock,
    /// allocate, free, block, log or panic.
    fn invalidate(&self, range: AddressRange, cause: Cause);

    /// Whether something that is kept of `range` is in use now: a monitor that must give up watching some memory takes other first. As
    /// [`invalidate`](Self::invalidate), must not take a lock, allocate, free, block, log or panic.
    fn uses(&self, range: AddressRange) -> bool {
        let _ = range;
        false
    }
}

struct Place {
    sink: AtomicPtr<Arc<dyn MemorySink>>,
    users: AtomicUsize,
}

/// Subscribers at once: each cache of each context is one.
const PLACES: usize = 256;

static TABLE: [Place; PLACES] = [const {
    Place {
        sink: AtomicPtr::new(ptr::null_mut()),
        users: AtomicUsize::new(0),
    }
}; PLACES];

/// One more than the highest place that was ever taken.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Tells every subscriber that the memory of `range` goes away or has gone. What monitors call, and a program that frees memory which it had let
/// wharf cache registrations of. Takes no lock and allocates nothing; may be called in a signal handler.
#[inline]
pub fn invalidate(range: AddressRange, cause: Cause) {
    each(|sink| {
        sink.invalidate(range, cause);
        false
    });
}

/// Whether a subscriber uses something of `range` now.
pub(super) fn is_in_use(range: AddressRange) -> bool {
    each(|sink| sink.uses(range))
}

/// Shows every subscriber, until one says `true`; whether one did.
#[inline]
fn each(act: impl Fn(&dyn MemorySink) -> bool) -> bool {
    let mut found = false;
    for place in &TABLE[..TAKEN.load(SeqCst).min(PLACES)] {
        if found || place.sink.load(SeqCst).is_null() {
            continue;
        }
        place.users.fetch_add(1, SeqCst);
        let sink = place.sink.load(SeqCst);
        if !sink.is_null() {
            // SAFETY: counted in `users` before the pointer was read, so it is not freed before the count goes down.
            found = act(unsafe { &**sink });
        }
        place.users.fetch_sub(1, SeqCst);
    }
    found
}

/// Hands every event to `sink` until the subscription is dropped.
///
/// # Errors
/// `Exhausted` when there are 256 subscribers already.
pub fn subscribe(sink: Arc<dyn MemorySink>) -> Result<Subscription> {
    // Asked now, so that a child knows what it is when it drops the subscription.
    fork::forked();
    let sink = Box::into_raw(Box::new(sink));
    for (index, place) in TABLE.iter().enumerate() {
        if place
            .sink
            .compare_exchange(ptr::null_mut(), sink, SeqCst, SeqCst)
            .is_ok()
        {
            TAKEN.fetch_max(index + 1, SeqCst);
            return Ok(Subscription { place });
        }
    }
    // SAFETY: made above, and in no place.
    drop(unsafe { Box::from_raw(sink) });
    Err(Error::new(
        ErrorKind::Exhausted,
        format!("{PLACES} caches listen to memory events already"),
    )
    .during(Operation::Memory))
}

/// Ends its subscription when dropped: afterwards the sink is called no more. Must not be dropped inside [`MemorySink::invalidate`]. In a child
/// made by `fork` it does nothing.
pub struct Subscription {
    place: &'static Place,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // A handler that another thread of the parent was in never ends here, and what it used is never freed.
        if fork::forked() {
            return;
        }
        let sink = self.place.sink.swap(ptr::null_mut(), SeqCst);
        // Handlers are short and wait for nothing.
        while self.place.users.load(SeqCst) != 0 {
            thread::yield_now();
        }
        // SAFETY: put there by `subscribe`, taken out by this swap alone, and used by nobody since `users` was 0 after it.
        drop(unsafe { Box::from_raw(sink) });
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[derive(Default)]
    struct Seen {
        /// First address of what is counted.
        start: u64,
        count: AtomicUsize,
        gone: AtomicBool,
        after: AtomicUsize,
    }

    /// No other test tells of addresses here.
    const BASE: u64 = 0x10_0000_0000;

    impl MemorySink for Seen {
        fn invalidate(&self, range: AddressRange, _: Cause) {
            if range.start() == self.start {
                self.count.fetch_add(1, SeqCst);
                if self.gone.load(SeqCst) {
                    self.after.fetch_add(1, SeqCst);
                }
            }
        }
    }

    #[test]
    fn heard_until_dropped() {
        let seen = Arc::new(Seen {
            start: BASE,
            ..Seen::default()
        });
        let range = AddressRange::new(BASE, 4096).expect("a range");
        let subscription = subscribe(seen.clone()).expect("a place");
        invalidate(range, Cause::Unmapped);
        assert_eq!(seen.count.load(SeqCst), 1);
        drop(subscription);
        assert_eq!(Arc::strong_count(&seen), 1, "the table gave its share back");
        invalidate(range, Cause::Unmapped);
        assert_eq!(seen.count.load(SeqCst), 1);
    }

    /// Stays in its handler as long as it is told to.
    #[derive(Default)]
    struct Slow {
        entered: AtomicBool,
        leave: AtomicBool,
    }

    impl MemorySink for Slow {
        fn invalidate(&self, range: AddressRange, _: Cause) {
            if range.start() == BASE + 16_384 {
                self.entered.store(true, SeqCst);
                while !self.leave.load(SeqCst) {
                    thread::yield_now();
                }
            }
        }
    }

    /// The thread in the handler is none of the child's, so nobody ever counts it out there.
    #[test]
    fn a_child_waits_for_no_handler_of_its_parent() {
        let slow = Arc::new(Slow::default());
        let subscription = subscribe(slow.clone()).expect("a place");
        let range = AddressRange::new(BASE + 16_384, 4096).expect("a range");
        let handler = thread::spawn(move || invalidate(range, Cause::Unmapped));
        while !slow.entered.load(SeqCst) {
            thread::yield_now();
        }
        // SAFETY: the child drops a copy of a subscription, which takes no lock, and ends; the alarm ends it if it waits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::alarm(20);
                drop(ptr::read(&raw const subscription));
                libc::_exit(0);
            }
        }
        assert!(child > 0, "no child");
        let mut status = 0;
        // SAFETY: `status` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        slow.leave.store(true, SeqCst);
        handler.join().expect("no panic");
        assert_eq!(status, 0, "the child waits for a thread that it has not");
        drop(subscription);
        assert_eq!(Arc::strong_count(&slow), 1);
    }

    #[test]
    fn no_call_after_the_end() {
        let stop = Arc::new(AtomicBool::new(false));
        let range = AddressRange::new(BASE + 8192, 4096).expect("a range");
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let stop = stop.clone();
                thread::spawn(move || {
                    while !stop.load(SeqCst) {
                        invalidate(range, Cause::Freed);
                    }
                })
            })
            .collect();
        for _ in 0..500 {
            let seen = Arc::new(Seen {
                start: BASE + 8192,
                ..Seen::default()
            });
            let subscription = subscribe(seen.clone()).expect("a place");
            drop(subscription);
            seen.gone.store(true, SeqCst);
            thread::yield_now();
            assert_eq!(seen.after.load(SeqCst), 0);
            assert_eq!(Arc::strong_count(&seen), 1);
        }
        stop.store(true, SeqCst);
        for thread in threads {
            thread.join().expect("no panic");
        }
    }
}
