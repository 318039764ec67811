//! A driver that is initialised once in a process, and may not be used by a child made by `fork` afterwards.
//!
//! # Safety
//! The handler that a child runs adds to one atomic, which is safe in a child of a process with threads.
#![allow(unsafe_code)]

use std::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::{
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

/// How many forks lie between the first initialisation and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Whether a driver is initialised, and in which process.
pub(super) struct Initialised {
    /// For people.
    what: &'static str,
    /// One more than [`FORKS`] was then; 0: not yet.
    at: AtomicU32,
    /// Only one thread initialises.
    one: Mutex<()>,
}

impl Initialised {
    pub(super) const fn new(what: &'static str) -> Self {
        Self {
            what,
            at: AtomicU32::new(0),
            one: Mutex::new(()),
        }
    }

    /// Whether it is, in this process.
    pub(super) fn is_here(&self) -> bool {
        self.at.load(Acquire) == FORKS.load(Relaxed) + 1
    }

    /// That the driver may be called in this process.
    /// Errors: `Forked`.
    pub(super) fn check(&self) -> Result<()> {
        if self.at.load(Relaxed) == 0 || self.is_here() {
            return Ok(());
        }
        let text = format!(
            "{} was initialised before this process was forked; it cannot be used in the child",
            self.what
        );
        Err(Error::new(ErrorKind::Forked, text))
    }

    /// Calls `initialise` if nobody has with success. What failed may be tried again.
    /// Errors: `Forked`; `Io`: forks cannot be watched; and those of `initialise`.
    pub(super) fn once(&self, initialise: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.is_here() {
            return Ok(());
        }
        self.check()?;
        let _one = self.one.lock();
        if self.is_here() {
            return Ok(());
        }
        watch_forks()?;
        initialise()?;
        self.at.store(FORKS.load(Relaxed) + 1, Release);
        Ok(())
    }
}

/// Has forks counted from now on.
fn watch_forks() -> Result<()> {
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Relaxed);
    }
    static WATCHED: Mutex<bool> = Mutex::new(false);
    let mut watched = WATCHED.lock();
    if !*watched {
        // SAFETY: the handler adds to one atomic.
        let code = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if code != 0 {
            let error = std::io::Error::from_raw_os_error(code);
            return Err(Error::io("cannot watch for forks", error));
        }
        *watched = true;
    }
    Ok(())
}
