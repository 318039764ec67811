//! The driver and its contexts, as the domain and all engines of one accelerator share them.

use std::{
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use parking_lot::Mutex;

use super::reaper::Reaper;
use crate::{
    driver::cuda::{Cuda, CudaContext, Device},
    error::Result,
    memory::announce_device_runtime,
    sys::libraries,
};

/// What they share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The driver's file; without, where the driver is looked for.
    library: Option<PathBuf>,
    cuda: OnceLock<&'static Cuda>,
    /// Whether the driver was seen to be in use. It stays so.
    in_use: AtomicBool,
    /// How many libraries the process had loaded when none of them was the driver; 0: not looked yet.
    looked: AtomicU64,
    /// Primary contexts, held from their first use on: making one anew takes long.
    contexts: Mutex<Vec<CudaContext>>,
    pub(super) reaper: Reaper,
    /// Whether a device did not end its work in time: what it may still touch is never freed.
    pub(super) given_up: AtomicBool,
}

impl Shared {
    pub(super) fn new(library: Option<PathBuf>) -> Self {
        Self {
            library,
            ..Self::default()
        }
    }

    /// The driver, loaded. May take milliseconds.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub(super) fn load(&self) -> Result<&'static Cuda> {
        if let Some(cuda) = self.cuda.get() {
            return Ok(cuda);
        }
        let cuda = Cuda::load(self.library.as_deref())?;
        Ok(self.cuda.get_or_init(|| cuda))
    }

    /// The driver, initialised: from now on there may be device memory, and everybody is told so before.
    ///
    /// # Errors
    /// As of [`Shared::load`], and what the driver said.
    pub(super) fn start(&self) -> Result<&'static Cuda> {
        let cuda = self.load()?;
        if !cuda.is_initialised() {
            if !self.is_in_use() {
                announce_device_runtime();
            }
            cuda.initialise()?;
        }
        Ok(cuda)
    }

    /// The driver if anybody in this process, wharf or not, has it in use. Loads and initialises nothing; cheap enough to be asked each time.
    pub(super) fn in_use(&self) -> Option<&'static Cuda> {
        let cuda = match self.cuda.get() {
            Some(cuda) => *cuda,
            None => {
                // The program's own loading of it is a loading of some library.
                let loads = libraries::loads();
                if loads == self.looked.load(Acquire) && loads != 0 {
                    return None;
                }
                let Some(cuda) = Cuda::resident(self.library.as_deref()) else {
                    self.looked.store(loads, Release);
                    return None;
                };
                self.cuda.get_or_init(|| cuda)
            }
        };
        if self.in_use.load(Relaxed) {
            return Some(cuda);
        }
        let in_use = cuda.is_in_use();
        if in_use {
            self.in_use.store(true, Relaxed);
        }
        in_use.then_some(cuda)
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.in_use().is_some()
    }

    /// The primary context of a device. The first time may take hundreds of milliseconds.
    ///
    /// # Errors
    /// `InvalidArgument`: no such device; what the driver said.
    pub(super) fn context(&self, ordinal: u16) -> Result<CudaContext> {
        let known = {
            let contexts = self.contexts.lock();
            let mut contexts = contexts.iter();
            contexts
                .find(|context| context.device().ordinal() == ordinal)
                .cloned()
        };
        if let Some(context) = known {
            if context.is_alive()? {
                return Ok(context);
            }
            // The program reset the device: what was made in it is gone, and there may be a new one.
            self.contexts.lock().retain(|other| *other != context);
        }
        let context = self.start()?.device(ordinal)?.primary_context()?;
        let mut contexts = self.contexts.lock();
        if !contexts.contains(&context) {
            contexts.push(context.clone());
        }
        Ok(context)
    }

    /// A device that somebody uses already, else the first: for memory that is no device's own.
    ///
    /// # Errors
    /// As of [`Shared::start`].
    pub(super) fn some_device(&self) -> Result<Device> {
        let cuda = self.start()?;
        for device in cuda.devices()? {
            if device.is_active()? {
                return Ok(device);
            }
        }
        cuda.device(0)
    }
}
