//! Copies of one home that its device cannot make: threads make them, piece by piece, through memory that the device reaches.
//!
//! ```text
//! begin ─▶ a thread: pieces, each while `Alive` says so ──over: stirred, bell──▶ take: reports
//! ```

use std::{
    sync::{
        Arc, Weak,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread,
};

use super::{Bell, Reports};
use crate::{
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

/// Bytes of a piece.
const PIECE: u64 = 1 << 20;

/// Where each piece of `length` bytes begins, and how long it is: all but the last [`room`] bytes.
pub(in crate::transport) fn pieces(length: u64) -> impl Iterator<Item = (u64, u64)> {
    let starts = (0..length).step_by(PIECE as usize);
    starts.map(move |start| (start, PIECE.min(length - start)))
}

/// Bytes of the longest piece of a copy: what it goes through.
pub(in crate::transport) fn room(length: u64) -> u64 {
    length.min(PIECE)
}

/// Why a copy that may not stop in host memory is not made.
#[cold]
pub(in crate::transport) fn forbidden() -> Error {
    let text =
        "no engine reaches both ends, and this copy forbids to stop in host memory between them";
    Error::new(ErrorKind::Unsupported, text)
}

/// Whether the ends of a home's copies may still be touched; and what was staged.
#[derive(Clone, Debug)]
pub(in crate::transport) struct Alive(Arc<Mutex<bool>>, Arc<Stops>);

/// Copies that went through host memory, and their bytes.
#[derive(Debug, Default)]
struct Stops(AtomicU64, AtomicU64);

impl Alive {
    /// Touches them. Whoever gives the copies up waits for it.
    /// Errors: `Canceled`: they were given up; and those of `touch`.
    pub(in crate::transport) fn touch<T>(&self, touch: impl FnOnce() -> Result<T>) -> Result<T> {
        let alive = self.0.lock();
        if !*alive {
            let text = "a copy was given up with its engine";
            return Err(Error::new(ErrorKind::Canceled, text));
        }
        touch()
    }

    /// Counts a copy that goes through host memory.
    pub(in crate::transport) fn stops(&self, length: u64) {
        let Stops(count, bytes) = &*self.1;
        count.fetch_add(1, Relaxed);
        bytes.fetch_add(length, Relaxed);
    }
}

/// Copies of one home, by their tokens. After its drop no thread touches their ends.
#[derive(Debug)]
pub(in crate::transport) struct Staging {
    under_way: Vec<u64>,
    alive: Alive,
    inbox: Arc<Inbox>,
    bell: Weak<Bell>,
}

/// What the threads say.
#[derive(Debug, Default)]
struct Inbox {
    any: AtomicBool,
    over: Mutex<Vec<(u64, Result<()>)>>,
}

impl Inbox {
    fn put(&self, token: u64, result: Result<()>) {
        self.over.lock().push((token, result));
        self.any.store(true, SeqCst);
    }
}

impl Staging {
    pub(in crate::transport) fn new(bell: &Arc<Bell>) -> Self {
        Self {
            under_way: Vec::new(),
            alive: Alive(Arc::new(Mutex::new(true)), Arc::default()),
            inbox: Arc::default(),
            bell: Arc::downgrade(bell),
        }
    }

    /// Has a thread run `copy`. Where there is none, that is what is reported.
    pub(in crate::transport) fn begin(
        &mut self,
        token: u64,
        copy: impl FnOnce(&Alive) -> Result<()> + Send + 'static,
    ) {
        let (alive, inbox) = (self.alive.clone(), Arc::clone(&self.inbox));
        let bell = Weak::clone(&self.bell);
        let run = move || {
            inbox.put(token, copy(&alive));
            if let Some(bell) = bell.upgrade() {
                bell.ring();
            }
        };
        self.under_way.push(token);
        let thread = thread::Builder::new().name("wharf-dev-stage".to_owned());
        if let Err(error) = thread.spawn(run) {
            let error = Error::io("a thread that stages a copy", error);
            self.inbox.put(token, Err(error));
        }
    }

    /// How many have gone through host memory so far, and their bytes.
    pub(in crate::transport) fn stopped(&self) -> (u64, u64) {
        let Stops(count, bytes) = &*self.alive.1;
        (count.load(Relaxed), bytes.load(Relaxed))
    }

    /// Whether this one is under way.
    pub(in crate::transport) fn has(&self, token: u64) -> bool {
        self.under_way.contains(&token)
    }

    /// Whether none is under way.
    pub(in crate::transport) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether [`Staging::take`] has something.
    pub(in crate::transport) fn is_stirred(&self) -> bool {
        !self.under_way.is_empty() && self.inbox.any.load(SeqCst)
    }

    /// Reports those that are over.
    pub(in crate::transport) fn take(&mut self, reports: &mut Reports) {
        if self.under_way.is_empty() || !self.inbox.any.swap(false, SeqCst) {
            return;
        }
        for (token, result) in self.inbox.over.lock().drain(..) {
            // What was given up is reported already.
            if let Some(place) = self.under_way.iter().position(|other| *other == token) {
                self.under_way.swap_remove(place);
                reports.push_back((token, result));
            }
        }
    }

    /// Gives up all that are under way, and those that come: no thread touches their ends after this. Waits for a touch.
    pub(in crate::transport) fn give_up(&mut self) -> Vec<u64> {
        *self.alive.0.lock() = false;
        std::mem::take(&mut self.under_way)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.give_up();
    }
}
