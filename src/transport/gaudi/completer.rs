//! The thread of a card that waits for its copies and tells those who began them; and looks after resets.
//!
//! ```text
//! nothing under way: poll(2) on its bell and the card's notifier: no call of the library
//! else:              one wait for up to 32 flights, 1 ms at a time, then each that is over is asked how it went
//! the card is lost:  it is closed, then all that was under way is told to have failed
//! ```
//! What is begun during a wait is in the next one, at most 1 ms later.

use std::{
    fmt,
    os::fd::AsFd,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::backend::{Backend, Flight, IN_FLIGHT};
use crate::{
    error::{Error, ErrorKind, Result},
    sys::eventfd::EventFd,
    util::lock::Mutex,
};

/// Longest single wait for flights.
const LOOK: Duration = Duration::from_millis(1);
/// After so many waits or looks in a row that fail, the card counts as lost.
const FAILURES: u32 = 20;

/// Who is told. Called without a lock.
pub(super) trait Told: Send + Sync {
    /// The flight that was handed over with this key is over.
    fn told(&self, key: u64, result: Result<()>);

    /// Others are over: there may be room again. Or the card is lost.
    fn changed(&self, lost: bool);
}

/// A card's completer. Dropping it ends the thread, and waits for it.
pub(super) struct Completer {
    line: Arc<Line>,
    thread: Option<thread::JoinHandle<()>>,
}

/// What the thread shares.
struct Line {
    backend: Arc<dyn Backend>,
    new: Mutex<Vec<Watched>>,
    told: Mutex<Vec<Arc<dyn Told>>>,
    bell: EventFd,
    /// The thread sleeps until the bell rings.
    sleeps: AtomicBool,
    ends: AtomicBool,
    /// Why the card is to be given up.
    failure: Mutex<Option<Error>>,
    /// Why it is lost: nothing touches this process's memory any more.
    lost: OnceLock<Error>,
}

struct Watched {
    flight: Box<dyn Flight>,
    told: Arc<dyn Told>,
    key: u64,
}

impl Completer {
    /// Starts the thread.
    /// Errors: `Exhausted`: no thread or descriptor.
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        at_loss: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let line = Arc::new(Line {
            backend,
            new: Mutex::new(Vec::new()),
            told: Mutex::new(Vec::new()),
            bell: EventFd::new().map_err(|error| Error::io("a doorbell", error))?,
            sleeps: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            failure: Mutex::new(None),
            lost: OnceLock::new(),
        });
        let theirs = Arc::clone(&line);
        let thread = thread::Builder::new()
            .name("wharf-gaudi".to_owned())
            .spawn(move || theirs.run(&at_loss))
            .map_err(|error| Error::io("a thread that waits for a card", error))?;
        Ok(Self {
            line,
            thread: Some(thread),
        })
    }

    /// Waits for a flight in the thread. It is told once.
    pub(super) fn watch(&self, flight: Box<dyn Flight>, told: &Arc<dyn Told>, key: u64) {
        self.line.new.lock().push(Watched {
            flight,
            told: Arc::clone(told),
            key,
        });
        self.line.wake();
    }

    /// From now on it is told of changes.
    pub(super) fn join(&self, told: Arc<dyn Told>) {
        self.line.told.lock().push(told);
    }

    pub(super) fn leave(&self, told: &Arc<dyn Told>) {
        self.line
            .told
            .lock()
            .retain(|other| !Arc::ptr_eq(other, told));
    }

    /// Others have room when a flight ends outside of the thread.
    pub(super) fn ended(&self) {
        self.line.change();
    }

    /// Has the card given up. All is told soon.
    pub(super) fn fail(&self, error: Error) {
        self.line.failure.lock().get_or_insert(error);
        self.line.wake();
    }

    /// Why the card is lost. Then nothing touches this process's memory any more.
    pub(super) fn lost(&self) -> Option<&Error> {
        self.line.lost.get()
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        self.line.ends.store(true, SeqCst);
        self.line.bell.ring();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
            && !crate::sys::fork::forked()
        {
            let _ = thread.join();
        }
    }
}

impl Line {
    fn wake(&self) {
        if self.sleeps.swap(false, SeqCst) {
            self.bell.ring();
        }
    }

    fn change(&self) {
        let lost = self.lost.get().is_some();
        let told = self.told.lock().clone();
        for told in told {
            told.changed(lost);
        }
    }

    fn run(&self, at_loss: &dyn Fn()) {
        let mut watched: Vec<Watched> = Vec::new();
        let mut failures = 0;
        loop {
            watched.append(&mut self.new.lock());
            let failure = self.failure.lock().as_ref().cloned();
            if let Some(error) = failure {
                self.lose(&error, &mut watched, at_loss);
            }
            if self.lost.get().is_some() {
                for late in watched.drain(..) {
                    self.fail_one(late);
                }
            }
            if watched.is_empty() && self.ends.load(SeqCst) {
                return;
            }
            if let Err(error) = self.look_around(watched.is_empty()) {
                self.failure.lock().get_or_insert(error);
                continue;
            }
            if watched.is_empty() {
                continue;
            }
            match self.wait(&mut watched) {
                Ok(true) => {
                    failures = 0;
                    self.change();
                }
                Ok(false) => failures = 0,
                Err(error) if self.is_end(&error) => {
                    self.failure.lock().get_or_insert(error);
                }
                Err(error) => {
                    failures += 1;
                    tracing::debug!(target: "wharf::gaudi", "copies do not say how they are: {error}");
                    if failures >= FAILURES {
                        self.failure.lock().get_or_insert(error);
                    }
                    thread::sleep(LOOK);
                }
            }
        }
    }

    fn is_end(&self, error: &Error) -> bool {
        matches!(
            error.kind(),
            ErrorKind::DeviceLost | ErrorKind::Closed | ErrorKind::Forked
        ) || self.backend.is_lost()
    }

    /// Sleeps until there is something to do, if there is nothing; takes news of the card. An error is its end.
    fn look_around(&self, sleeps: bool) -> Result<()> {
        let watched = match self.lost.get() {
            None => self.backend.watched(),
            Some(_) => None,
        };
        if !sleeps && watched.is_none() {
            return Ok(());
        }
        let mut timeout = PollTimeout::ZERO;
        if sleeps {
            self.sleeps.store(true, SeqCst);
            let idle = self.new.lock().is_empty()
                && !self.ends.load(SeqCst)
                && (self.failure.lock().is_none() || self.lost.get().is_some());
            if idle {
                timeout = PollTimeout::NONE;
            }
        }
        let mut fds = vec![PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)];
        fds.extend(watched.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let polled = poll(&mut fds, timeout);
        let news = fds.get(1).and_then(PollFd::any).unwrap_or(false);
        if sleeps {
            self.sleeps.store(false, SeqCst);
            self.bell.drain();
        }
        if polled.is_ok() && news {
            match self.backend.news() {
                Ok(false) => {}
                Ok(true) => {
                    let text = "the card was reset; open it again";
                    return Err(Error::new(ErrorKind::DeviceLost, text));
                }
                Err(error) if self.is_end(&error) => return Err(error),
                Err(error) => {
                    tracing::debug!(target: "wharf::gaudi", "{error}");
                    // The descriptor may stay readable.
                    thread::sleep(LOOK);
                }
            }
        }
        Ok(())
    }

    /// One wait. Whether anything is over.
    fn wait(&self, watched: &mut Vec<Watched>) -> Result<bool> {
        let first = watched.iter().take(IN_FLIGHT);
        let numbers: Vec<u64> = first.map(|watched| watched.flight.number()).collect();
        let over = self.backend.wait_any(&numbers, LOOK)?;
        let mut any = false;
        for index in (0..numbers.len()).rev() {
            if over >> index & 1 == 1 && watched[index].flight.poll()? {
                let done = watched.swap_remove(index);
                drop(done.flight);
                done.told.told(done.key, Ok(()));
                any = true;
            }
        }
        Ok(any)
    }

    /// Gives the card up, and tells everybody.
    #[cold]
    fn lose(&self, error: &Error, watched: &mut Vec<Watched>, at_loss: &dyn Fn()) {
        if self.lost.get().is_some() {
            return;
        }
        self.backend.close();
        at_loss();
        let text = format!("{:?} is lost: {error}", self.backend);
        let lost = Error::new(ErrorKind::DeviceLost, text);
        tracing::warn!(target: "wharf::gaudi", "{lost}");
        let _ = self.lost.set(lost);
        for one in watched.drain(..) {
            self.fail_one(one);
        }
        self.change();
    }

    fn fail_one(&self, one: Watched) {
        drop(one.flight);
        let error = self.lost.get().cloned();
        let error = error.unwrap_or_else(|| Error::new(ErrorKind::DeviceLost, "the card is lost"));
        one.told.told(one.key, Err(error));
    }
}

impl fmt::Debug for Completer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completer")
            .field("lost", &self.lost().is_some())
            .finish_non_exhaustive()
    }
}
