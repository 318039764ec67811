//! Verbs, the interface to InfiniBand and RoCE devices: `libibverbs.so.1`, found at run time.
//!
//! Comes in: the path of a library, or none. Goes out: [`Verbs`], one for each library file and process; from it [`Device`]s, from one of
//! these a [`Context`], and from that what a connection is made of. Every object keeps alive what it stands on, so that they may be
//! dropped in any order; all may be used from any thread. Uses `library`. Tests: `tests/verbs/`, in a virtual machine with soft-RoCE
//! devices, and on an emulated library.
//!
//! ```text
//! Verbs ── Device ── Context ──┬── ProtectionDomain ──┬── MemoryRegion
//!                              │                      ├── SharedReceiveQueue ─┐
//!                              │                      └── QueuePair ──────────┤ (keeps the queues that it uses)
//!                              └── CompletionChannel ──── CompletionQueue ────┘
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `sys` | what the header says |
//! | `driver` | the library: found, its functions |
//! | `values` | its numbers, with names |
//! | `failure` | error numbers, with remedies |
//! | `device` | the list of devices |
//! | `context` | an open device: what it can do, its ports, its events |
//! | `gid` | GIDs, and which one to use |
//! | `memory` | protection domains and registrations |
//! | `completion` | completion queues and channels |
//! | `queue` | queue pairs and shared receive queues |
//! | `work` | work requests |
//!
//! # What may block
//! Loading, opening, registering, and making, changing and destroying objects: system calls of micro- to milliseconds; registering pins
//! memory, 0.1 ms and more for each MiB. They belong on a thread that may block. Posting, polling, arming and taking events take
//! nanoseconds to microseconds.
//!
//! # Safety
//! The functions called are those of `sys`, found by exact name in a library that is never unloaded, and those that the library puts in
//! the tables of the objects that it makes. A call gets pointers to live variables of the size that the header says, and objects that this
//! room made and keeps alive. Calls by which the device, or a peer, reads or writes memory that the caller names are `unsafe` themselves.
//! The library locks its objects, so they may be used from many threads. In a child made by `fork` nothing is called, and nothing
//! destroyed: the objects are the parent's.
#![allow(unsafe_code)]

mod completion;
mod context;
mod device;
mod driver;
pub(in crate::driver) mod failure;
mod gid;
mod memory;
mod queue;
pub(in crate::driver) mod sys;
mod values;
mod work;

pub(crate) use completion::{CompletionChannel, CompletionQueue};
pub(in crate::driver) use context::set_nonblocking;
pub(crate) use context::{AtomicSupport, Context, DeviceAttributes, Subject};
pub(crate) use device::Device;
pub(in crate::driver) use driver::{ANCHOR, lacking};
pub(crate) use driver::{VARIABLE, Verbs};
pub(crate) use failure::errno_of;
pub(crate) use gid::{GidEntry, choose_gid};
pub(crate) use memory::{MemoryRegion, ProtectionDomain};
pub(crate) use queue::{
    Capacity, GlobalRoute, InitAttributes, PathAttributes, QueuePair, QueuePairOptions,
    ReceiveAttributes, SendAttributes, SharedReceiveQueue,
};
pub(crate) use sys::Sge;
pub(crate) use values::{
    Access, EventKind, Gid, GidKind, LinkLayer, Mtu, PortState, SendFlags, State, Status, Transport,
};
pub(crate) use work::{Completion, ReceiveRequest, SendRequest};
