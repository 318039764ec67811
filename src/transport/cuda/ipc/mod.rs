//! `cuda_ipc`: device memory of another process on this host, made addressable here.
//!
//! Comes in: an address range of device memory, to be exported; or the bytes that another process exported. Goes out: bytes; or an address of
//! the device here, as an end of copies, and what keeps it open. Uses `driver::cuda`, `sys`, `types`. Tests: `tests/cuda_ipc/`.
//!
//! | memory | what crosses | opened by |
//! |---|---|---|
//! | `cuMemAlloc` | the driver's handle, 64 bytes in the descriptor | `cuIpcOpenMemHandle`; same user, same process namespace |
//! | virtual memory calls, one physical piece | a file descriptor, by a socket of the exporter's ([`handover`]) | mapping; same user, same network namespace |
//! | a pool made to be shared | a file descriptor of the pool in the same way, and 64 bytes | importing pool and allocation |
//! | both of the last, shareable by fabric alone | 64 bytes in the descriptor | the same, where the fabric's services run |
//! | anything else (the default pool, managed, several pieces) | nothing: the reason is a value, and the memory is staged | |
//!
//! # What is kept, and what makes it wrong
//! An allocation is known by the process (its start time and a random name with it: ids are used again) and by the driver's buffer id, which is
//! never used again: memory that was freed, and allocated anew at the same address, has another. The exporter asks the driver for the
//! id at every export, so what it says is of now. The importer keeps what it opened ([`cache`], at most [`CudaIpc::MOST`]), finds it by all
//! that the descriptor says of the allocation, and closes it when another allocation of that process lies at its addresses, when room
//! is needed, and, at the next opening, when its process has ended.
//!
//! # Who keeps the memory
//! The exporter, from the export until the peer has said that it is done: the protocol's acknowledgement. After that an importer may have the
//! memory open still but touches it no more. Physical memory and pools live on until the last process has closed them: up to
//! [`CudaIpc::MOST`] allocations that were freed may occupy the device until then. An importer that dies has closed everything, by the kernel.
//! Freeing an allocation that is open elsewhere is what the manual of legacy handles advises against: nothing is read or written
//! there any more, and the driver keeps the block until it is closed. A legacy handle opens the block of 2 MiB in which a small allocation
//! lies, with its neighbours.

mod cache;
mod descriptor;
mod export;
mod handover;
mod import;

use std::sync::OnceLock;

use cache::{Cache, Counts, Lease};
use descriptor::{Allocation, Descriptor, Origin};
use export::Exporter;
use import::Opened;

use crate::{
    driver::cuda::{Cuda, DevicePtr},
    error::{Error, ErrorKind, Result},
    sys::{identity::identity, process},
    transport::accelerator::{Export, Import, ImportedMemory},
    types::{Identity, MemoryType},
};

/// See the module. One for each context.
#[derive(Debug)]
pub(crate) struct CudaIpc {
    cuda: &'static Cuda,
    exporter: Exporter,
    opened: Cache<Allocation, Opened>,
}

impl CudaIpc {
    /// Most allocations of other processes that are open at once.
    pub(crate) const MOST: usize = 256;

    /// Initialises nothing.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn new(cuda: &'static Cuda) -> Result<Self> {
        Self::with_limit(cuda, Self::MOST)
    }

    /// With another limit than [`Self::MOST`], at least 1.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn with_limit(cuda: &'static Cuda, limit: usize) -> Result<Self> {
        Ok(Self {
            cuda,
            exporter: Exporter::new(cuda, origin()?.clone()),
            opened: Cache::new(limit),
        })
    }

    /// See [`Accelerator::export`](crate::transport::accelerator::Accelerator::export).
    pub(crate) fn export(&self, address: u64, length: u64) -> Result<Export> {
        self.exporter.export(address, length)
    }

    /// See [`Accelerator::exported`](crate::transport::accelerator::Accelerator::exported).
    pub(crate) fn exported(&self, address: u64, length: u64) -> Option<Export> {
        self.exporter.exported(address, length)
    }

    /// That the bytes are a descriptor, that it is `peer`'s to give, and that it may be opened here as far as one can tell without the driver.
    ///
    /// # Errors
    /// As of importing.
    pub(crate) fn judge(descriptor: &[u8], peer: &Identity) -> Result<()> {
        decode(descriptor, peer).map(drop)
    }

    /// See [`Accelerator::import`](crate::transport::accelerator::Accelerator::import).
    pub(crate) fn import(&self, descriptor: &[u8], peer: &Identity) -> Import {
        let judged = decode(descriptor, peer);
        let (cuda, opened) = (self.cuda, self.opened.clone());
        Box::pin(async move {
            let descriptor = judged?;
            if descriptor.allocation.origin == *origin()? {
                return own(cuda, &descriptor);
            }
            let allocation = descriptor.allocation.clone();
            let lease = opened
                .get(&descriptor.allocation, import::may_live, move || {
                    import::open(cuda, &allocation)
                })
                .await?;
            imported(lease, &descriptor)
        })
    }

    /// See [`Accelerator::imported`](crate::transport::accelerator::Accelerator::imported).
    pub(crate) fn imported(&self, descriptor: &[u8], peer: &Identity) -> Option<ImportedMemory> {
        let descriptor = decode(descriptor, peer).ok()?;
        let lease = self.opened.find(&descriptor.allocation)?;
        imported(lease, &descriptor).ok()
    }

    /// What importing has done.
    #[allow(dead_code)] // Tests ask.
    pub(crate) fn counts(&self) -> Counts {
        self.opened.counts()
    }

    /// Closes all that nobody uses. Blocks.
    #[allow(dead_code)] // Tests ask.
    pub(crate) fn close_unused(&self) {
        self.opened.forget_unless(|_| false);
    }
}

fn decode(bytes: &[u8], peer: &Identity) -> Result<Descriptor> {
    let descriptor = Descriptor::decode(bytes)?;
    import::judge(&descriptor.allocation, peer)?;
    Ok(descriptor)
}

fn imported(lease: Lease<Allocation, Opened>, descriptor: &Descriptor) -> Result<ImportedMemory> {
    let none = || Error::new(ErrorKind::Io, "nothing is open");
    let opened = lease.get().ok_or_else(none)?;
    let at = opened.start + descriptor.offset;
    let memory_type = opened.memory_type;
    Ok(ImportedMemory::new(
        at.0,
        descriptor.length,
        memory_type,
        lease,
    ))
}

/// Memory of this process itself: it needs no opening, and the driver would refuse.
fn own(cuda: &'static Cuda, descriptor: &Descriptor) -> Result<ImportedMemory> {
    let at = DevicePtr(descriptor.allocation.base) + descriptor.offset;
    let info = cuda.inspect(at)?;
    match info.device {
        Some(device) if info.buffer_id == descriptor.allocation.buffer_id => Ok(
            ImportedMemory::new(at.0, descriptor.length, MemoryType::Cuda(device), ()),
        ),
        _ => Err(handover::stale()),
    }
}

/// This process.
fn origin() -> Result<&'static Origin> {
    static ORIGIN: OnceLock<Origin> = OnceLock::new();
    if let Some(origin) = ORIGIN.get() {
        return Ok(origin);
    }
    let mut name = [0; 16];
    getrandom::fill(&mut name)
        .map_err(|error| Error::new(ErrorKind::Io, "drawing random bytes").with_source(error))?;
    Ok(ORIGIN.get_or_init(|| Origin {
        identity: identity().clone(),
        start: process::own_start_time(),
        name,
    }))
}
