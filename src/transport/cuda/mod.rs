//! `cuda_copy`: memory of CUDA devices, and copies between it and the host's.
//!
//! Comes in: what an [`Accelerator`] is asked for. Goes out: its [`MemoryDomain`], and a [`CopyEngine`] for each worker. Uses `driver/cuda`, `memory`,
//! `sys`. Tests: `tests/cuda/`, on the emulated driver, as a program would use it.
//!
//! | file | holds |
//! |---|---|
//! | `domain` | whose memory it is; export, advice |
//! | `memory` | what is allocated, and how it is freed |
//! | `engine` | copies for one worker |
//! | `home` | a device as one engine uses it |
//! | `lane` | a stream with the copies in it |
//! | `words` | how a device says that it has come to a place |
//! | `opening` | devices that are opened while the worker goes on |
//! | `order` | the program's own streams and events |
//! | `inline` | the place for copies that the processor makes by itself |
//! | `gdr` | such copies, by GDRCopy |
//! | `reaper` | freeing without waiting |
//! | `shared` | the driver and its contexts |
//! | `ipc` | `cuda_ipc`: memory of other processes of the host |
//!
//! # What a copy costs
//! Copies that were begun are handed over together, at the end of the batch: the context is entered, each copy is one call, one call has a word of pinned
//! memory written behind the last, the context is left. To poll is to read that word. A worker that parks asks once for each stream under way: the
//! driver runs a function of the host's behind the first copy, which writes an eventfd. As no such function is run when a context fails, a timer
//! looks after the streams then, ten times a second, and only then; while polling, the time is looked at now and then for the same purpose.
//!
//! # Where it falls back
//! * No words written by streams (drivers before CUDA 11.7, devices that say so or fail a test): host functions write them.
//! * No host function can be had: the worker looks each millisecond.
//! * Devices that do not reach each other: the driver copies through the host.
//!
//! # When a device is lost
//! Of the errors of the driver those that it gives to every later call end the device for the engine: each copy under way on it is reported as `DeviceLost`, copies that
//! name it are refused, other devices go on. The engine reports to be lost when none is left. Any other error ends the copy that met it.

mod domain;
mod engine;
mod gdr;
mod home;
mod inline;
mod ipc;
mod lane;
mod memory;
mod opening;
mod order;
mod reaper;
mod shared;
mod words;

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

pub use order::{CudaEvent, CudaStream};

use super::accelerator::{Accelerator, CopyEngine, Export, Import, ImportedMemory};
use crate::{
    driver::cuda::Cuda,
    error::{Error, ErrorKind, Result},
    memory::MemoryDomain,
    types::{Identity, MemoryType},
};

/// The name in configuration, where `cuda` is short for all that CUDA has.
pub(crate) const NAME: &str = "cuda_copy";

/// CUDA devices, by the driver of this machine.
#[derive(Clone, Debug)]
pub struct CudaCopy {
    shared: Arc<shared::Shared>,
    ipc: Arc<OnceLock<ipc::CudaIpc>>,
    use_ipc: bool,
    use_gdr: bool,
}

impl CudaCopy {
    /// With the driver in the file that `WHARF_LIBCUDA` names, else in `libcuda.so.1`. Loads nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::of(None)
    }

    /// With the driver in this file. Loads nothing.
    #[must_use]
    pub fn with_library(path: impl Into<PathBuf>) -> Self {
        Self::of(Some(path.into()))
    }

    /// Whether memory is exported to other processes and imported from them (`cuda_ipc`); without, it is staged.
    #[must_use]
    pub fn ipc(mut self, yes: bool) -> Self {
        self.use_ipc = yes;
        self
    }

    /// Whether the processor makes small copies itself (`gdr_copy`), where it can.
    #[must_use]
    pub fn gdr(mut self, yes: bool) -> Self {
        self.use_gdr = yes;
        self
    }

    /// What makes small copies by the processor itself (`gdr_copy`): the name and version of GDRCopy's library, which is the file that
    /// `WHARF_LIBGDRAPI` names, else `libgdrapi.so.2`; or the driver, from CUDA 13.3 on. Without either streams make all copies. Loads that library; initialises
    /// nothing.
    ///
    /// # Errors
    /// Why there is none: no library, or its kernel module is not loaded.
    pub fn gdr_copy(&self) -> Result<String> {
        gdr::probe(self.shared.in_use())
    }

    /// The names of the devices, by number: the first is that of `MemoryType::Cuda(0)`. Initialises the driver, which may take seconds.
    ///
    /// # Errors
    /// `Unsupported`: no driver, or one without a device; and what the driver said.
    pub fn device_names(&self) -> Result<Vec<String>> {
        let cuda = self.shared.start()?;
        let count = cuda.device_count().unwrap_or(0);
        (0..count)
            .map(|ordinal| cuda.device(ordinal)?.name())
            .collect()
    }

    fn of(library: Option<PathBuf>) -> Self {
        Self {
            shared: Arc::new(shared::Shared::new(library)),
            ipc: Arc::default(),
            use_ipc: true,
            use_gdr: true,
        }
    }

    /// Why memory of other processes is not opened here, where the program or the configuration says so.
    fn without_ipc(&self) -> Option<&'static str> {
        (!self.use_ipc).then_some("cuda_ipc is left out here")
    }

    /// Memory of other processes. The driver is loaded by the first who asks.
    fn opened(&self) -> Result<&ipc::CudaIpc> {
        if let Some(ipc) = self.ipc.get() {
            return Ok(ipc);
        }
        let made = ipc::CudaIpc::new(self.shared.load()?)?;
        Ok(self.ipc.get_or_init(|| made))
    }
}

impl Default for CudaCopy {
    fn default() -> Self {
        Self::new()
    }
}

impl Accelerator for CudaCopy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> Result<()> {
        self.shared.load().map(drop)
    }

    fn domain(&self) -> Arc<dyn MemoryDomain> {
        Arc::new(domain::CudaDomain(Arc::clone(&self.shared)))
    }

    fn serves(&self, memory_type: MemoryType) -> bool {
        matches!(memory_type, MemoryType::Cuda(_) | MemoryType::CudaManaged)
    }

    /// Initialises the driver, and opens the devices that are in use. Others are opened, on another thread, when a copy first names them.
    fn open(&self) -> Result<Box<dyn CopyEngine>> {
        Ok(Box::new(engine::Engine::open(
            Arc::clone(&self.shared),
            self.use_gdr,
        )?))
    }

    fn export(&self, address: u64, length: u64) -> Result<Export> {
        match self.without_ipc() {
            Some(why) => Ok(Export::Impossible(why.to_owned())),
            None => self.opened()?.export(address, length),
        }
    }

    fn exported(&self, address: u64, length: u64) -> Option<Export> {
        self.ipc.get()?.exported(address, length)
    }

    fn import(&self, descriptor: &[u8], peer: &Identity) -> Import {
        if let Some(why) = self.without_ipc() {
            let error = Error::new(ErrorKind::Unsupported, why);
            return Box::pin(std::future::ready(Err(error)));
        }
        if let Some(ipc) = self.ipc.get()
            && self.shared.in_use().is_some_and(Cuda::is_initialised)
        {
            return ipc.import(descriptor, peer);
        }
        // The first of this process: the driver is started for it, if it can be reached at all.
        let judged = ipc::CudaIpc::judge(descriptor, peer);
        let (this, descriptor, peer) = (self.clone(), descriptor.to_vec(), peer.clone());
        Box::pin(async move {
            judged?;
            let started = this.clone();
            let start = move || {
                started.shared.start()?;
                started.opened().map(drop)
            };
            let started = tokio::task::spawn_blocking(start).await;
            started.map_err(|error| {
                let text = "starting the driver was broken off";
                Error::new(ErrorKind::Canceled, text).with_source(error)
            })??;
            this.opened()?.import(&descriptor, &peer).await
        })
    }

    fn imported(&self, descriptor: &[u8], peer: &Identity) -> Option<ImportedMemory> {
        self.ipc.get()?.imported(descriptor, peer)
    }
}
