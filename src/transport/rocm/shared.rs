//! The runtime, its machine, and the memory that is known, as the domain and all engines of one accelerator share them.

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
};

use super::{known::Known, locked::Locker, machine::Machine};
use crate::{
    driver::hsa::Hsa,
    error::Result,
    memory::{MonitorKind, RegistrationCache, RegistrationCacheOptions},
    transport::accelerator::{Loader, Reaper, SharedCache, driver},
};

/// What they share.
pub(super) struct Shared {
    loader: Loader<Hsa>,
    machine: OnceLock<Arc<Machine>>,
    locked: SharedCache<Locker>,
    pub(super) known: Arc<Known>,
    pub(super) reaper: Arc<Reaper>,
    /// Whether a device failed or did not end its work in time: what it may still touch is never freed.
    given_up: AtomicBool,
}

driver!(Hsa);

impl Shared {
    pub(super) fn new(library: Option<PathBuf>) -> Self {
        Self {
            loader: Loader::new(library),
            machine: OnceLock::new(),
            locked: SharedCache::new(),
            known: Arc::default(),
            reaper: Arc::default(),
            given_up: AtomicBool::new(false),
        }
    }

    /// See [`Loader::load`].
    pub(super) fn load(&self) -> Result<&'static Hsa> {
        self.loader.load()
    }

    /// See [`Loader::in_use`].
    pub(super) fn in_use(&self) -> Option<&'static Hsa> {
        self.loader.in_use()
    }

    /// The machine. Initialises the runtime, which may take seconds the first time.
    /// Errors: as of [`Loader::start`]; `Unsupported`: no device.
    pub(super) fn machine(&self) -> Result<&Arc<Machine>> {
        if let Some(machine) = self.machine.get() {
            return Ok(machine);
        }
        let made = Arc::new(Machine::of(self.loader.start()?)?);
        Ok(self.machine.get_or_init(|| made))
    }

    /// The machine for memory that somebody already has; `None`: nobody has initialised the runtime.
    /// Errors: as of [`Shared::machine`].
    pub(super) fn machine_in_use(&self) -> Result<Option<&Arc<Machine>>> {
        match self.in_use() {
            Some(_) => self.machine().map(Some),
            None => Ok(None),
        }
    }

    /// The machine, where it is known already.
    pub(super) fn known_machine(&self) -> Option<&Arc<Machine>> {
        self.machine.get()
    }

    /// How the cache is to be that is made next.
    pub(super) fn configure(&self, options: RegistrationCacheOptions, monitor: MonitorKind) {
        self.locked.set(options, monitor);
    }

    /// The cache of host memory that is locked.
    /// Errors: as of [`Shared::machine`] and [`SharedCache::get`].
    pub(super) fn locked(&self) -> Result<RegistrationCache<Locker>> {
        self.locked.get(|| self.machine().map(Locker::new))
    }

    pub(super) fn give_up(&self) {
        self.given_up.store(true, Release);
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Acquire)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shared = f.debug_struct("Shared");
        shared
            .field("loader", &self.loader)
            .field("known", &self.known);
        shared.finish_non_exhaustive()
    }
}
