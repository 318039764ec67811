//! The memory that operations read and write, and who owns it while they do.
//!
//! Comes in: bytes in whatever the program keeps them (`Vec`, `Bytes`, memory of wharf's own, raw addresses with an owner).
//! Goes out: [`Buffer`] for what is sent and [`BufferMut`] for what is received, each with an address that stays where it
//! is, and the segment by which a process of the same host can map it. Uses `sys`, `types`, `error`.
//! Tests: beside each type, and `tests/memory/`.
//!
//! # Ownership
//! An operation in flight owns its buffers. What is sent is shared and never changes: the program may keep a clone and read
//! it meanwhile. What is received into is unique: the program hands it over and has it back with the result, with an error
//! too. So dropping a future never leaves a transfer with memory that someone else uses.

mod array_interface;
pub(crate) mod atomic;
mod buffer;
mod dlpack;
mod domain;
mod events;
mod foreign;
mod host;
pub(crate) mod keeper;
mod list;
mod mlock;
mod pieces;
mod pool;
mod radix;
mod range;
mod rcache;
pub(crate) mod region;
mod registrar;
pub(crate) mod run;
mod source;
mod type_cache;
pub(crate) mod waiters;

pub use array_interface::ArrayInterface;
pub(crate) use buffer::Room;
pub use buffer::{Buffer, BufferMut, ReceiveBuffer};
pub use dlpack::DlpackTensor;
pub(crate) use domain::allocate;
pub use domain::{
    Advice, DmaBuf, DomainAttributes, DomainCapabilities, DomainMemory, HostDomain,
    MemoryAttributes, MemoryDomain,
};
pub use events::{
    AllocMonitor, Cause, EventClasses, Hooks, Imported, MemoryMonitor, MonitorKind, NoMonitor,
    Sink, Subscription, Timing, TrackedAlloc, Uffd, Validity, announce_all, disable_hooks,
    install_hooks, invalidate, monitor, subscribe,
};
pub(crate) use foreign::Foreign;
pub use host::HostBufferMut;
pub(crate) use host::Segment;
pub use list::{BufferList, BufferListMut};
pub use mlock::MlockRegistrar;
pub(crate) use pieces::Extent;
pub use pool::{BufferPool, Lease, Leasing, PoolStats};
pub use range::AddressRange;
pub use rcache::{
    GetRegistration, OverLimit, Registration, RegistrationCache, RegistrationCacheMetrics,
    RegistrationCacheOptions, RegistrationCacheStatistics, Released, registration_caches,
};
pub(crate) use rcache::{WeakRegistrationCache, quarter_of_memory};
pub use region::Region;
pub use registrar::{Registrar, RegistrarAttributes};
pub use source::SendBuffer;
pub use type_cache::MemoryTypeMetrics;
pub(crate) use type_cache::MemoryTypes;
pub use type_cache::announce_device_runtime;
