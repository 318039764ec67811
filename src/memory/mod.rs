//! The memory that operations read and write, and who owns it while they do.
//!
//! A program gives its bytes as it keeps them (`Vec`, `Bytes`, memory that [`Context::allocate`](crate::Context::allocate) made, addresses with an owner).
//! They become a [`Buffer`], for what is sent, or a [`BufferMut`], for what is received into. Memory that peers reach by themselves is a [`Region`].
//!
//! | I want to | see |
//! |---|---|
//! | send and receive what I have | [`Buffer`], [`BufferMut`], [`BufferList`], [`BufferListMut`] |
//! | bring memory that was allocated elsewhere, tensors too | [`Buffer::foreign`], [`DlpackTensor`], [`ArrayInterface`] |
//! | lease buffers again and again, without registering them each time | [`BufferPool`] |
//! | keep memory registered with a device of my own | [`RegistrationCache`], [`Registrar`] |
//! | tell caches that memory goes away | [`TrackedAlloc`], [`install_hooks`], [`invalidate`] |
//! | ask whose memory an address is, or allocate a device's by hand | [`MemoryDomain`], [`MemoryAttributes`] |
//!
//! [The guide](crate::guide::memory) has them at work.
//!
//! # Ownership
//! An operation in flight owns its buffers. What is sent is shared and never changes: the program may keep a clone and read
//! it meanwhile. What is received into is unique: the program hands it over and has it back with the result, with an error
//! too. So dropping a future never leaves a transfer with memory that someone else uses.

// Comes in: bytes as the program keeps them. Goes out: buffers with an address that stays where it is, and the segment by which a process of the same host
// can map it. Uses `sys`, `types`, `error`. Tests: beside each type, and `tests/memory/`.

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
mod local;
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
pub use domain::{
    Advice, DmaBuf, DomainAttributes, DomainCapabilities, DomainMemory, HostDomain,
    MemoryAttributes, MemoryDomain,
};
pub(crate) use domain::{allocate, announced};
pub use events::{
    AllocMonitor, Cause, EventClasses, Hooks, Imported, MemoryMonitor, MemorySink, MonitorKind,
    NoMonitor, Subscription, Timing, TrackedAlloc, Uffd, Validity, announce_all, disable_hooks,
    install_hooks, invalidate, monitor, subscribe,
};
pub(crate) use foreign::Foreign;
pub use host::HostBufferMut;
pub(crate) use host::Segment;
pub use list::{BufferList, BufferListMut};
pub use local::LocalMemory;
pub use mlock::MlockRegistrar;
pub(crate) use pieces::Extent;
pub use pool::{BufferPool, Leasing, PoolLease, PoolStats};
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
