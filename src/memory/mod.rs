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

pub(crate) mod atomic;
mod buffer;
mod events;
mod host;
mod list;
mod radix;
mod range;
mod rcache;
pub(crate) mod region;
mod registrar;
pub(crate) mod waiters;

pub use buffer::{Buffer, BufferMut, ReceiveBuffer};
pub use events::{
    Cause, EventClasses, MemoryMonitor, MonitorKind, NoMonitor, Sink, Subscription, Timing, Uffd,
    Validity, invalidate, monitor, subscribe,
};
pub use host::HostBufferMut;
pub(crate) use host::Segment;
pub(crate) use list::Extent;
pub use list::{BufferList, BufferListMut};
pub use range::AddressRange;
pub use rcache::{
    GetRegistration, OverLimit, Registration, RegistrationCache, RegistrationCacheOptions,
    RegistrationCacheStatistics, Released,
};
pub use region::Region;
pub use registrar::{Registrar, RegistrarAttributes};
