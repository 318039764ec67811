//! A vendor's library: loaded when it is asked for, and found where the program has it in use already.

use std::{
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use crate::{error::Result, memory::announce_device_runtime, sys::libraries};

/// What a vendor's library says of itself.
pub(in crate::transport) trait Driver: Sync + 'static {
    /// Loads it: the file, or where it is looked for. Once; initialises nothing.
    ///
    /// # Errors
    /// Why it cannot be had.
    fn load(path: Option<&Path>) -> Result<&'static Self>;

    /// The library, if this process has loaded it already.
    fn resident(path: Option<&Path>) -> Option<&'static Self>;

    /// Whether anybody in this process has initialised it. Cheap.
    fn is_in_use(&self) -> bool;

    /// Whether wharf has.
    fn is_initialised(&self) -> bool;

    /// Initialises it.
    ///
    /// # Errors
    /// What it said.
    fn initialise(&self) -> Result<()>;
}

/// A vendor's room in `driver` that has all of it under the same names.
macro_rules! driver {
    ($Room:ty) => {
        impl $crate::transport::accelerator::Driver for $Room {
            fn load(path: Option<&::std::path::Path>) -> $crate::error::Result<&'static Self> {
                Self::load(path)
            }

            fn resident(path: Option<&::std::path::Path>) -> Option<&'static Self> {
                Self::resident(path)
            }

            fn is_in_use(&self) -> bool {
                self.is_in_use()
            }

            fn is_initialised(&self) -> bool {
                self.is_initialised()
            }

            fn initialise(&self) -> $crate::error::Result<()> {
                self.initialise()
            }
        }
    };
}
pub(in crate::transport) use driver;

/// The library of one accelerator.
#[derive(Debug)]
pub(in crate::transport) struct Loader<D: 'static> {
    /// Its file; without, where the library is looked for.
    library: Option<PathBuf>,
    driver: OnceLock<&'static D>,
    /// Whether it was seen to be in use. It stays so.
    in_use: AtomicBool,
    /// How many libraries the process had loaded when none of them was this one; 0: not looked yet.
    looked: AtomicU64,
}

impl<D: Driver> Loader<D> {
    pub(in crate::transport) fn new(library: Option<PathBuf>) -> Self {
        Self {
            library,
            driver: OnceLock::new(),
            in_use: AtomicBool::new(false),
            looked: AtomicU64::new(0),
        }
    }

    /// The library, loaded. May take milliseconds.
    /// Errors: why it cannot be had.
    pub(in crate::transport) fn load(&self) -> Result<&'static D> {
        if let Some(driver) = self.driver.get() {
            return Ok(driver);
        }
        let driver = D::load(self.library.as_deref())?;
        Ok(self.driver.get_or_init(|| driver))
    }

    /// The library, initialised: from now on there may be device memory, and everybody is told so before.
    /// Errors: as of [`Loader::load`], and what it said.
    pub(in crate::transport) fn start(&self) -> Result<&'static D> {
        let driver = self.load()?;
        if !driver.is_initialised() {
            if !self.is_in_use() {
                announce_device_runtime();
            }
            driver.initialise()?;
        }
        Ok(driver)
    }

    /// The library if anybody in this process, wharf or not, has it in use. Loads and initialises nothing; cheap enough to be asked each time.
    pub(in crate::transport) fn in_use(&self) -> Option<&'static D> {
        let driver = match self.driver.get() {
            Some(driver) => *driver,
            None => {
                // The program's own loading of it is a loading of some library.
                let loads = libraries::loads();
                if loads == self.looked.load(Acquire) && loads != 0 {
                    return None;
                }
                let Some(driver) = D::resident(self.library.as_deref()) else {
                    self.looked.store(loads, Release);
                    return None;
                };
                self.driver.get_or_init(|| driver)
            }
        };
        if self.in_use.load(Relaxed) {
            return Some(driver);
        }
        let in_use = driver.is_in_use();
        if in_use {
            self.in_use.store(true, Relaxed);
        }
        in_use.then_some(driver)
    }

    pub(in crate::transport) fn is_in_use(&self) -> bool {
        self.in_use().is_some()
    }
}
