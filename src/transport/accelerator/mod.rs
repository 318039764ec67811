//! What an accelerator is: the traits that a device's transport implements and the worker drives, to copy between the host's memory and the
//! device's.
//!
//! ```text
//! Accelerator ── domain() ──▶ MemoryDomain   (whose memory is this, allocate, export; shared by the context's workers)
//!      │
//!      ├─────── open() ────▶ CopyEngine      (copies, one for each worker that met the device's memory, behind the worker's lock)
//!      │
//!      └─ export() ─ bytes, to a peer ─▶ import() ──▶ ImportedMemory   (the peer's device memory, as an end of copies here)
//! ```
//!
//! # Memory of another process
//! A protocol exports memory when a peer on the same host asks for the way to it, never before. The peer imports it, copies, lets the
//! [`ImportedMemory`] go and says so; **until then the exporter keeps the memory allocated**, as it keeps the memory of every transfer. What a
//! process has imported may stay open behind the last [`ImportedMemory`], to be found again; nothing is read or written through it then. A peer that
//! dies has let go. An exporter that dies in the middle leaves the copy's bytes unspecified, and does no harm here: its memory stays until it
//! is closed. Memory that cannot be exported ([`Export::Impossible`]), or not imported, is staged through the host by its owner.
//!
//! # Duties
//! * [`Accelerator::probe`] takes no device and initialises no driver, unless the program chose to have a device from the start.
//! * [`CopyEngine::copy`], [`flush`](CopyEngine::flush) and [`progress`](CopyEngine::progress) are called on runtime threads with the worker's lock
//!   held: they make no driver call that can take longer than a few microseconds, and `progress` makes none at all while nothing has completed.
//! * [`CopyEngine::arm`] follows *arm, then drain, then await*, as that of an [`Interface`](super::Interface).
//! * Every copy that was accepted is reported exactly once, in any order, also when the device is lost.
//!
//! # Who has one
//! [`CudaCopy`](super::cuda::CudaCopy), [`RocmCopy`](super::rocm::RocmCopy) and [`GaudiCopy`](super::gaudi::GaudiCopy) come with wharf, and a context takes each whose driver is there.
//! One of your own is given to [`ContextBuilder::accelerator`](crate::ContextBuilder::accelerator), and then buffers, regions and copies may be of its memory.

// What vendors share:
//
// | file | holds |
// |---|---|
// | `contract` | the traits of an accelerator, and their words |
// | `engine` | copies for one worker, whoever made the device |
// | `vendor` | what a vendor gives for it |
// | `opening` | devices that are opened while the worker goes on |
// | `bell` | how a parked worker is woken |
// | `inline` | the place for copies that the processor makes by itself |
// | `loader` | the vendor's library, loaded or found in use |
// | `allocated` | memory that a domain allocated |
// | `locking` | ordinary host memory, registered while the engine goes on |
// | `staging` | copies that threads make, where the device cannot |
// | `reaper` | freeing without waiting |
// | `ipc` | memory of other processes of the host |

#[cfg(any(feature = "cuda", feature = "gaudi", feature = "rocm"))]
mod allocated;
#[cfg(any(feature = "cuda", feature = "gaudi", feature = "rocm"))]
mod bell;
mod contract;
#[cfg(any(feature = "cuda", feature = "gaudi", feature = "rocm"))]
mod engine;
#[cfg(any(feature = "cuda", feature = "gaudi", feature = "rocm"))]
#[cfg(test)]
mod fake;
#[cfg(any(feature = "cuda", feature = "gaudi", feature = "rocm"))]
mod inline;
#[cfg(any(feature = "cuda", feature = "gaudi", feature = "rocm"))]
pub(crate) mod ipc;
#[cfg(any(feature = "cuda", feature = "gaudi", feature = "rocm"))]
mod loader;
#[cfg(any(feature = "cuda", feature = "gaudi", feature = "rocm"))]
mod locking;
#[cfg(any(feature = "cuda", feature = "gaudi", feature = "rocm"))]
mod opening;
#[cfg(any(
    feature = "cuda",
    feature = "gaudi",
    feature = "rocm",
    feature = "verbs"
))]
mod reaper;
#[cfg(any(feature = "cuda", feature = "gaudi", feature = "rocm"))]
pub(super) mod staging;
#[cfg(any(feature = "cuda", feature = "gaudi", feature = "rocm"))]
mod vendor;

pub(crate) use contract::QUIESCE;
pub use contract::{
    Accelerator, CopyAttributes, CopyEnd, CopyEngine, CopyRequest, CopySink, DevicePlace,
    DeviceStream, Export, Import, ImportedMemory, SmallCopies, Stop,
};

#[cfg(any(
    feature = "cuda",
    feature = "gaudi",
    feature = "rocm",
    feature = "verbs"
))]
pub(super) use reaper::Reaper;
#[cfg(any(feature = "cuda", feature = "gaudi", feature = "rocm"))]
pub(super) use {
    allocated::Allocated,
    bell::Bell,
    engine::Engine,
    inline::{InlineCopy, SmallCopy, Way},
    loader::{Driver, Loader, driver},
    locking::{CacheOptions, Locking, SharedCache},
    vendor::{Asked, Home, Owner, Queued, Reports, Route, Vendor},
};
