//! The driver and its contexts, as the domain and all engines of one accelerator share them.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

use super::pageable::Pinner;
use crate::{
    driver::cuda::{Cuda, CudaContext, Device},
    error::Result,
    memory::{MonitorKind, RegistrationCache, RegistrationCacheOptions},
    transport::accelerator::{Loader, Reaper, SharedCache, driver},
    util::lock::Mutex,
};

/// The accelerator's name in configuration, where `cuda` is short for all that CUDA has.
pub(super) const NAME: &str = "cuda_copy";

/// What they share.
#[derive(Debug)]
pub(super) struct Shared {
    loader: Loader<Cuda>,
    /// Primary contexts, held from their first use on: making one anew takes long.
    contexts: Mutex<Vec<CudaContext>>,
    pageable: SharedCache<Pinner>,
    pub(super) reaper: Arc<Reaper>,
    /// Whether a device did not end its work in time: what it may still touch is never freed.
    pub(super) given_up: AtomicBool,
}

driver!(Cuda);

impl Shared {
    pub(super) fn new(library: Option<PathBuf>) -> Self {
        Self {
            loader: Loader::new(library),
            contexts: Mutex::default(),
            pageable: SharedCache::new(),
            reaper: Arc::default(),
            given_up: AtomicBool::new(false),
        }
    }

    /// See [`Loader::load`].
    pub(super) fn load(&self) -> Result<&'static Cuda> {
        self.loader.load()
    }

    /// See [`Loader::start`].
    pub(super) fn start(&self) -> Result<&'static Cuda> {
        self.loader.start()
    }

    /// See [`Loader::in_use`].
    pub(super) fn in_use(&self) -> Option<&'static Cuda> {
        self.loader.in_use()
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.loader.is_in_use()
    }

    /// The primary context of a device. The first time may take hundreds of milliseconds.
    /// Errors: `InvalidArgument`: no such device; what the driver said.
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

    /// How the cache is to be that is made next.
    pub(super) fn configure(&self, options: RegistrationCacheOptions, monitor: MonitorKind) {
        self.pageable.set(options, monitor);
    }

    /// The cache of ordinary memory that is registered.
    /// Errors: as of [`SharedCache::get`].
    pub(super) fn pageable(&self, context: &CudaContext) -> Result<RegistrationCache<Pinner>> {
        self.pageable.get(|| Ok(Pinner::new(context, NAME)))
    }

    /// A device that somebody uses already, else the first: for memory that is no device's own.
    /// Errors: as of [`Shared::start`].
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
