//! The clock of leases: a thread that ends each at its time, whatever becomes of the runtime in which it was made. It is there while leases are.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use crate::{
    error::{Error, ErrorKind, Operation, Result},
    sys::fork,
    util::lock::{Condvar, Mutex},
};

/// What happens at a time. It must not wait for long: others are due.
type Act = Box<dyn FnOnce() + Send>;

/// What is still to happen, by time and number. Each is there as long as its [`Appointment`].
struct Clock {
    due: BTreeMap<(Instant, u64), Act>,
    next: u64,
    running: bool,
}

static CLOCK: Mutex<Clock> = Mutex::new(Clock {
    due: BTreeMap::new(),
    next: 0,
    running: false,
});
static SOONER: Condvar = Condvar::new();

/// Something that happens at its time, unless this is dropped before.
#[must_use = "nothing happens once it is dropped"]
pub(super) struct Appointment(Option<(Instant, u64)>);

/// Has `act` done after a time, on another thread.
/// Errors: `Exhausted` when no thread can be had; `Forked`.
pub(super) fn after(time: Duration, act: impl FnOnce() + Send + 'static) -> Result<Appointment> {
    fork::check(Operation::Memory)?;
    // A time that no clock shows does not come.
    let Some(at) = Instant::now().checked_add(time) else {
        return Ok(Appointment(None));
    };
    let mut clock = CLOCK.lock();
    if !clock.running {
        let thread = std::thread::Builder::new().name("wharf-leases".into());
        let started = thread.spawn(run);
        started.map_err(|error| {
            Error::new(ErrorKind::Exhausted, "no thread to end leases")
                .with_source(error)
                .during(Operation::Memory)
        })?;
        clock.running = true;
    }
    let key = (at, clock.next);
    clock.next += 1;
    clock.due.insert(key, Box::new(act));
    drop(clock);
    SOONER.notify_one();
    Ok(Appointment(Some(key)))
}

impl Drop for Appointment {
    fn drop(&mut self) {
        if let Some(key) = self.0
            // Its thread is the parent's, and may have been at the lock.
            && !fork::forked()
        {
            let act = CLOCK.lock().due.remove(&key);
            drop(act);
            SOONER.notify_one();
        }
    }
}

fn run() {
    let mut clock = CLOCK.lock();
    while let Some(first) = clock.due.first_entry() {
        let (at, _) = *first.key();
        if at <= Instant::now() {
            let act = first.remove();
            // One that panics does not keep the others from their times.
            drop(clock);
            if catch_unwind(AssertUnwindSafe(act)).is_err() {
                tracing::error!(target: "wharf::channel", "the end of a lease panicked");
            }
            clock = CLOCK.lock();
        } else {
            clock = SOONER.wait_for(clock, at.saturating_duration_since(Instant::now()));
        }
    }
    clock.running = false;
}
