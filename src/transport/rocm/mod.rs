//! `rocm_copy`: memory of AMD's devices, and copies between it and the host's, by the HSA runtime of ROCm.
//!
//! Every context has it, where `libhsa-runtime64.so.1` is found when it is first wanted: `Context::allocate_on(MemoryType::Rocm(0), bytes)`, and [foreign](crate::Buffer::foreign)
//! memory of such devices. [`RocmCopy`] says which library and what of it is used:
//!
//! ```
//! use std::sync::Arc;
//! use wharf::{Context, ErrorKind, MemoryType, transport::rocm::RocmCopy};
//!
//! # async fn run() -> wharf::Result<()> {
//! let devices = RocmCopy::with_library("/opt/driver/libhsa-runtime64.so.1").ipc(false);
//! let context = Context::builder().accelerator(Arc::new(devices)).build()?;
//! // Nothing is loaded until memory is asked for.
//! let error = context.allocate_on(MemoryType::Rocm(0), 1 << 20).await.unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Unsupported);
//! assert!(error.to_string().contains("/opt/driver/libhsa-runtime64.so.1"));
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
//! ```
//!
//! # What a copy costs
//! One call of the runtime, at the end of the batch; both ends are looked up in a table before, as a device that meets an address it cannot reach is lost. To poll is
//! to load its signal, a call without a lock or a system call, of the first 16 copies of each direction. A worker that parks has one handler registered on
//! the first copy of each direction, once for that copy: the runtime's thread runs it, which writes an eventfd. Nothing is called meanwhile: the runtime
//! tells by itself when a device fails. A runtime that cannot, or a program that handles failures itself, has a timer look ten times a second.
//!
//! Host memory in the registration cache costs nothing more; what the cache does not have is locked before, by a thread that may block, and what cannot be
//! locked (constants, some files) is staged by one.
//!
//! # When a device is lost
//! A memory fault or a reset, told by the runtime's system events, ends the device for the engine and for those that are opened later: each copy under way on it is
//! reported as `DeviceLost`, copies that name it are refused, other devices go on. Pinned memory of the domain is never freed from then on. A copy whose
//! signal becomes negative has failed by itself. It does not come back within the process: queues of a device that was reset stay so, and the
//! runtime, which HIP shares, has no call that begins anew with one device.
//!
//! # The program's streams
//! HIP is used where the program has it loaded. Copies wait for what is in a stream by an event. A stream waits for copies
//! ([`CopyEngine::then`]) by `hipStreamWaitValue64`, for a word that the runtime's thread sets: by default a small kernel looks at it
//! meanwhile. Neither has been seen on a device yet.
//!
//! # What it cannot
//! Managed memory.

// Comes in: what an [`Accelerator`] is asked for. Goes out: its [`MemoryDomain`], and a [`CopyEngine`] for each worker. Uses `driver/hsa`, `driver/hip`, `memory`.
// Tests: `tests/rocm/`, on the emulated runtime, as a program would use it.
//
// | file | holds |
// |---|---|
// | `domain` | whose memory it is; export |
// | `known` | allocations that were met: their numbers, who reaches them, when they end |
// | `memory` | what is allocated, and how it is freed |
// | `vendor` | what the engine that all vendors share is given |
// | `home` | a device as one engine uses it: copies and their signals |
// | `locked` | host memory of the program's, by the registration cache |
// | `staged` | copies of host memory that cannot be locked |
// | `bar` | copies that the processor makes by itself, through a large BAR |
// | `order` | the program's own HIP streams, before and behind copies |
// | `machine` | the agents of the runtime that matter here |
// | `failure` | how copies fail, and devices |
// | `shared` | what all of one accelerator share |
// | `ipc` | `rocm_ipc`: memory of other processes of the host |

mod bar;
mod domain;
mod failure;
mod home;
mod ipc;
mod known;
mod locked;
mod machine;
mod memory;
mod order;
mod shared;
mod staged;
mod vendor;

use std::{path::PathBuf, sync::Arc};

pub use order::RocmStream;

use super::accelerator::{
    Accelerator, CopyEngine, Engine, Export, Import, ImportedMemory, ipc::lazy::LazyIpc,
};
use crate::{
    driver::hsa::Hsa,
    error::Result,
    memory::{MemoryDomain, MonitorKind, RegistrationCacheOptions},
    transport::DeviceInfo,
    types::{Identity, MemoryType},
};

/// AMD's devices, by the HSA runtime of this machine.
#[derive(Clone, Debug)]
pub struct RocmCopy {
    shared: Arc<shared::Shared>,
    ipc: LazyIpc<ipc::RocmSharing>,
    use_bar: bool,
    hip: Option<PathBuf>,
}

impl RocmCopy {
    /// With the runtime in the file that `WHARF_LIBHSA` names, else in `libhsa-runtime64.so.1`. Loads nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::of(None)
    }

    /// With the runtime in this file. Loads nothing.
    #[must_use]
    pub fn with_library(path: impl Into<PathBuf>) -> Self {
        Self::of(Some(path.into()))
    }

    /// Whether memory is exported to other processes and imported from them (`rocm_ipc`); without, it is staged.
    #[must_use]
    pub fn ipc(mut self, yes: bool) -> Self {
        self.ipc.choose(yes);
        self
    }

    /// Whether the processor makes small copies itself where the host reaches all of a device's memory (a large BAR).
    #[must_use]
    pub fn large_bar(mut self, yes: bool) -> Self {
        self.use_bar = yes;
        self
    }

    /// With HIP in this file, else the one that `WHARF_LIBHIP` names, or `libamdhip64.so.7`, `.6` or `.5`: whose streams copies are ordered with
    /// ([`RocmStream`]). It is never loaded here: the program has it loaded if it has such a stream.
    #[must_use]
    pub fn hip(mut self, path: impl Into<PathBuf>) -> Self {
        self.hip = Some(path.into());
        self
    }

    /// The names of the devices, by number: the first is that of `MemoryType::Rocm(0)`. Initialises the runtime, which may take seconds.
    ///
    /// # Errors
    /// `Unsupported`: no runtime, or no device; and what the runtime said.
    pub fn device_names(&self) -> Result<Vec<String>> {
        let devices = &self.shared.machine()?.devices;
        let name = |device: &machine::Device| {
            let agent = &device.agent;
            match agent.product_name() {
                Ok(name) if !name.is_empty() => Ok(name),
                _ => agent.name(),
            }
        };
        devices.iter().map(name).collect()
    }

    fn of(library: Option<PathBuf>) -> Self {
        Self {
            shared: Arc::new(shared::Shared::new(library)),
            ipc: LazyIpc::new("rocm_ipc"),
            use_bar: true,
            hip: None,
        }
    }
}

impl Default for RocmCopy {
    fn default() -> Self {
        Self::new()
    }
}

impl Accelerator for RocmCopy {
    fn name(&self) -> &'static str {
        machine::NAME
    }

    fn configure(&self, options: RegistrationCacheOptions, monitor: MonitorKind) {
        self.shared.configure(options, monitor);
    }

    fn probe(&self) -> Result<()> {
        self.shared.load().map(drop)
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let names = self.device_names()?;
        let agents = self.shared.machine()?.devices.iter();
        let each = agents.zip(names).enumerate();
        let info = each.map(|(ordinal, (device, name))| {
            let info = DeviceInfo {
                memory_type: u16::try_from(ordinal).ok().map(MemoryType::Rocm),
                ..DeviceInfo::new(name)
            };
            let info = match device.agent.pci_address() {
                Ok(pci) => info.at(pci.to_string()),
                Err(_) => info,
            };
            let bar = if device.large_bar { "y" } else { "n" };
            info.detail("large BAR", bar)
        });
        Ok(info.collect())
    }

    fn parts(&self) -> Vec<(&'static str, Result<String>)> {
        vec![self.ipc.part()]
    }

    fn domain(&self) -> Arc<dyn MemoryDomain> {
        Arc::new(domain::RocmDomain(Arc::clone(&self.shared)))
    }

    fn serves(&self, memory_type: MemoryType) -> bool {
        matches!(memory_type, MemoryType::Rocm(_))
    }

    /// Initialises the runtime, and opens all devices.
    fn open(&self) -> Result<Box<dyn CopyEngine>> {
        let vendor = vendor::RocmVendor {
            shared: Arc::clone(&self.shared),
            bar: self.use_bar,
            hip: self.hip.clone(),
        };
        Ok(Box::new(Engine::open(Arc::new(vendor))?))
    }

    fn export(&self, address: u64, length: u64) -> Result<Export> {
        let make = || Ok(ipc::RocmSharing(Arc::clone(&self.shared)));
        self.ipc.export(address, length, make)
    }

    fn exported(&self, address: u64, length: u64) -> Option<Export> {
        self.ipc.exported(address, length)
    }

    fn import(&self, descriptor: &[u8], peer: &Identity) -> Import {
        let started = self.shared.in_use().is_some_and(Hsa::is_initialised);
        let shared = Arc::clone(&self.shared);
        let start = move || {
            shared.machine()?;
            Ok(ipc::RocmSharing(shared))
        };
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
