//! Freeing memory on a thread of its own: the driver's calls for it wait for the device.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc,
        atomic::{
            AtomicUsize,
            Ordering::{AcqRel, Acquire},
        },
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    error::{ErrorKind, Operation, Result},
    util::lock::Mutex,
};

/// How long an allocation that fails waits for memory that is being freed.
const FREEING: Duration = Duration::from_secs(2);

type Thing = Box<dyn Any + Send>;

/// Drops things elsewhere. There is one thread, from the first thing on until the reaper is dropped and all things are.
#[derive(Default)]
pub(in crate::transport) struct Reaper {
    thread: Mutex<Option<Sender<Thing>>>,
    waiting: Arc<AtomicUsize>,
}

impl Reaper {
    /// Drops `thing` soon; at once where no thread can be had.
    pub(in crate::transport) fn drop_later(&self, thing: impl Any + Send) {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            *thread = self.start();
        }
        let unsent = match thread.as_ref() {
            Some(sender) => {
                self.waiting.fetch_add(1, AcqRel);
                sender.send(Box::new(thing)).err().map(|error| error.0)
            }
            None => Some(Box::new(thing) as Thing),
        };
        drop(thread);
        drop(unsent);
    }

    /// What `make` allocates. May take long: when there is no room, what was dropped a moment ago may not be free yet.
    /// Errors: those of `make`.
    pub(in crate::transport) fn allocate<T>(&self, make: impl Fn() -> Result<T>) -> Result<T> {
        match make() {
            Err(error) if error.kind() == ErrorKind::Exhausted && self.settle(FREEING) => make(),
            made => made,
        }
        .map_err(|error| error.during(Operation::Memory))
    }

    fn start(&self) -> Option<Sender<Thing>> {
        let (sender, things) = channel::<Thing>();
        let waiting = Arc::clone(&self.waiting);
        let run = move || {
            for thing in things {
                drop(thing);
                waiting.fetch_sub(1, AcqRel);
            }
        };
        thread::Builder::new()
            .name("wharf-dev-free".to_owned())
            .spawn(run)
            .ok()
            .map(|_| sender)
    }

    /// Waits until everything was dropped, no longer than `limit`; whether there was anything.
    fn settle(&self, limit: Duration) -> bool {
        let start = Instant::now();
        let had = self.waiting.load(Acquire) > 0;
        while self.waiting.load(Acquire) > 0 && start.elapsed() < limit {
            thread::sleep(Duration::from_micros(100));
        }
        had
    }
}

impl fmt::Debug for Reaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reaper({} waiting)", self.waiting.load(Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_dropped_in_order_on_another_thread() {
        struct Thing(usize, Arc<Mutex<Vec<(usize, thread::ThreadId)>>>);
        impl Drop for Thing {
            fn drop(&mut self) {
                self.1.lock().push((self.0, thread::current().id()));
            }
        }
        let dropped = Arc::default();
        let reaper = Reaper::default();
        for index in 0..10 {
            reaper.drop_later(Thing(index, Arc::clone(&dropped)));
        }
        reaper.settle(Duration::from_secs(60));
        let dropped = dropped.lock();
        assert!(dropped.iter().map(|(index, _)| *index).eq(0..10));
        let own = thread::current().id();
        assert!(dropped.iter().all(|(_, thread)| *thread != own));
    }
}
