//! `cuda_copy`: memory of CUDA devices, and copies between it and the host's.
//!
//! Every context has it, where `libcuda.so.1` is found when it is first wanted: `Context::allocate_on(MemoryType::Cuda(0), bytes)`, and [foreign](crate::Buffer::foreign)
//! memory of such devices. [`CudaCopy`] says which library and what of it is used:
//!
//! ```
//! use std::sync::Arc;
//! use wharf::{Context, ErrorKind, MemoryType, transport::cuda::CudaCopy};
//!
//! # async fn run() -> wharf::Result<()> {
//! let devices = CudaCopy::with_library("/opt/driver/libcuda.so.1").ipc(false);
//! let context = Context::builder().accelerator(Arc::new(devices)).build()?;
//! // Nothing is loaded until memory is asked for.
//! let error = context.allocate_on(MemoryType::Cuda(0), 1 << 20).await.unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Unsupported);
//! assert!(error.to_string().contains("/opt/driver/libcuda.so.1"));
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
//! ```
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
//!
//! A worker that has lost a device never uses it again. Where the program reset it (`cuDevicePrimaryCtxReset`, `cudaDeviceReset`), a new worker of the same
//! context does: the driver gives the addresses of before to the memory of now, so what the old worker still names may be somebody else's. After a kernel's
//! fault NVIDIA's documentation has the process end.

// Comes in: what an [`Accelerator`] is asked for. Goes out: its [`MemoryDomain`], and a [`CopyEngine`] for each worker. Uses `driver/cuda`, `memory`,
// `sys`. Tests: `tests/cuda/`, on the emulated driver, as a program would use it.
//
// | file | holds |
// |---|---|
// | `domain` | whose memory it is; export, advice |
// | `memory` | what is allocated, and how it is freed |
// | `vendor` | what the engine that all vendors share is given |
// | `home` | a device as one engine uses it |
// | `copy_queue` | a stream with the copies in it |
// | `words` | how a device says that it has come to a place |
// | `order` | the program's own streams and events |
// | `pageable` | ordinary memory, registered for copies |
// | `gdr` | copies that the processor makes by itself, by GDRCopy |
// | `shared` | the driver and its contexts |
// | `ipc` | `cuda_ipc`: memory of other processes of the host |

mod copy_queue;
mod domain;
mod gdr;
mod home;
mod ipc;
mod memory;
mod order;
mod pageable;
mod shared;
mod vendor;
mod words;

use std::{path::PathBuf, sync::Arc};

pub use order::{CudaEvent, CudaStream};

use super::accelerator::{
    Accelerator, CopyEngine, Engine, Export, Import, ImportedMemory, ipc::lazy::LazyIpc,
};
use crate::{
    driver::cuda::{Cuda, Reach, Stream},
    error::{Error, ErrorKind, Result},
    memory::{DomainMemory, MemoryDomain, MonitorKind, RegistrationCacheOptions},
    transport::DeviceInfo,
    types::{Identity, MemoryType},
};

/// CUDA devices, by the driver of this machine.
#[derive(Clone, Debug)]
pub struct CudaCopy {
    shared: Arc<shared::Shared>,
    ipc: LazyIpc<ipc::CudaSharing>,
    use_gdr: bool,
    gdr_library: Option<PathBuf>,
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
        self.ipc.choose(yes);
        self
    }

    /// Whether the processor makes small copies itself (`gdr_copy`), where it can.
    #[must_use]
    pub fn gdr(mut self, yes: bool) -> Self {
        self.use_gdr = yes;
        self
    }

    /// With GDRCopy in this file, else the one that `WHARF_LIBGDRAPI` names, or `libgdrapi.so.2`. Loaded when it is first wanted.
    #[must_use]
    pub fn gdr_library(mut self, path: impl Into<PathBuf>) -> Self {
        self.gdr_library = Some(path.into());
        self
    }

    /// What makes small copies by the processor itself (`gdr_copy`): the name and version of GDRCopy's library, which is the file of
    /// [`gdr_library`](Self::gdr_library), else the one that `WHARF_LIBGDRAPI` names, else `libgdrapi.so.2`; or the driver, from CUDA 13.3 on. Without either streams make all copies. Loads that library; initialises
    /// nothing.
    ///
    /// # Errors
    /// Why there is none: no library, or its kernel module is not loaded.
    pub fn gdr_copy(&self) -> Result<String> {
        gdr::probe(self.gdr_library.as_deref(), self.shared.in_use())
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

    /// Memory of a device that is made to be shared, as far as that goes there. `None`: not at all. May block.
    /// Errors: `Exhausted`, `Unsupported`, and what the driver said.
    pub(crate) fn allocate_to_share(
        &self,
        ordinal: u16,
        length: usize,
    ) -> Result<Option<(Box<dyn DomainMemory>, Reach)>> {
        memory::allocate_to_share(&self.shared, ordinal, length)
    }

    /// The program's stream, checked. A few short calls.
    /// Errors: `InvalidArgument`: no such stream, or it is capturing a graph; what the driver said.
    pub(crate) fn adopt(&self, stream: CudaStream) -> Result<Stream> {
        order::adopt(self.shared.start()?, stream.into())
    }

    fn of(library: Option<PathBuf>) -> Self {
        Self {
            shared: Arc::new(shared::Shared::new(library)),
            ipc: LazyIpc::new("cuda_ipc"),
            use_gdr: true,
            gdr_library: None,
        }
    }
}

impl Default for CudaCopy {
    fn default() -> Self {
        Self::new()
    }
}

impl Accelerator for CudaCopy {
    fn name(&self) -> &'static str {
        shared::NAME
    }

    fn configure(&self, options: RegistrationCacheOptions, monitor: MonitorKind) {
        self.shared.configure(options, monitor);
    }

    fn probe(&self) -> Result<()> {
        self.shared.load().map(drop)
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let cuda = self.shared.start()?;
        let count = cuda.device_count().unwrap_or(0);
        (0..count)
            .map(|ordinal| {
                let device = cuda.device(ordinal)?;
                let info = DeviceInfo {
                    memory_type: Some(MemoryType::Cuda(ordinal)),
                    ..DeviceInfo::new(device.name()?)
                };
                Ok(match device.pci_bus_id() {
                    Ok(pci) => info.at(pci),
                    Err(_) => info,
                })
            })
            .collect()
    }

    fn parts(&self) -> Vec<(&'static str, Result<String>)> {
        let gdr = match self.use_gdr {
            true => self.gdr_copy(),
            false => Err(Error::new(
                ErrorKind::Unsupported,
                "left out by the program or the configuration",
            )),
        };
        vec![self.ipc.part(), ("gdr_copy", gdr)]
    }

    fn domain(&self) -> Arc<dyn MemoryDomain> {
        Arc::new(domain::CudaDomain(Arc::clone(&self.shared)))
    }

    fn serves(&self, memory_type: MemoryType) -> bool {
        matches!(memory_type, MemoryType::Cuda(_) | MemoryType::CudaManaged)
    }

    /// Initialises the driver, and opens the devices that are in use. Others are opened, on another thread, when a copy first names them.
    fn open(&self) -> Result<Box<dyn CopyEngine>> {
        let vendor = vendor::CudaVendor {
            shared: Arc::clone(&self.shared),
            gdr: self.use_gdr,
            gdr_library: self.gdr_library.clone(),
        };
        Ok(Box::new(Engine::open(Arc::new(vendor))?))
    }

    fn export(&self, address: u64, length: u64) -> Result<Export> {
        let make = || self.shared.load().map(ipc::CudaSharing);
        self.ipc.export(address, length, make)
    }

    fn exported(&self, address: u64, length: u64) -> Option<Export> {
        self.ipc.exported(address, length)
    }

    fn import(&self, descriptor: &[u8], peer: &Identity) -> Import {
        let started = self.shared.in_use().is_some_and(Cuda::is_initialised);
        let shared = Arc::clone(&self.shared);
        let start = move || shared.start().map(ipc::CudaSharing);
        self.ipc.import(descriptor, peer, started, start)
    }

    fn imported(&self, descriptor: &[u8], peer: &Identity) -> Option<ImportedMemory> {
        self.ipc.imported(descriptor, peer)
    }
}

/// Gives bytes to the decoder of exported memory.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    ipc::fuzz(bytes);
}
