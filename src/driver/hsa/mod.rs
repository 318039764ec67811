//! The HSA runtime of AMD's ROCm: found, initialised when a device is first used, and its agents.
//!
//! Comes in: the path of a library, or none. Goes out: [`Hsa`], one for each library file and process; from it [`Agent`]s and their
//! [`Pool`]s, memory, signals and copies, and the ways to another process's memory. Uses `library`. Tests: `tests/driver/hsa/`.
//!
//! | file | holds |
//! |---|---|
//! | `sys` | what the headers say |
//! | `driver` | the library: found, its functions, initialised |
//! | `status` | `hsa_status_t` and what kind of error each is |
//! | `agent` | agents and pools: who they are, who reaches whom |
//! | `memory` | memory of pools, locked host memory, what an address is |
//! | `signal` | signals and copies |
//! | `svm` | advice on memory of the host that devices share |
//! | `share` | memory of another process: handles and dma-bufs |
//! | `watchers` | who is told of freed memory and of devices that failed |
//! | `watch` | being told of freed memory and of devices that failed |
//!
//! # Initialising and shutting down
//! The runtime counts who initialised it, in the whole process; at zero all that was made in it is invalid, whoever made it. So one count
//! is taken at the first use and never given back: handles and callbacks of ours can be used until the process ends, and the program's own
//! pairs of `hsa_init` and `hsa_shut_down` neither end nor disturb them. A child made by `fork` afterwards may not use the runtime: every way to
//! a call that can fail passes [`Hsa::usable`]. HIP is built on this runtime, so its memory is seen here too.
//!
//! # What may block
//! Loading, [`Hsa::initialise`], allocating, freeing, locking, allowing access, and whatever `share` does: milliseconds and more. They belong on a
//! thread that may block. Copies, loads of signals, handlers and [`Hsa::inspect`] take microseconds.
//!
//! # Safety
//! The functions called here are those of `sys`, found by exact name, in a library that is never unloaded. A call gets pointers to live
//! local variables of the size that the header says, and handles that this room made or that the runtime gave it. Calls by which a device
//! reads or writes memory that the caller names are `unsafe` themselves.
#![allow(unsafe_code)]

mod agent;
mod driver;
mod memory;
mod share;
mod signal;
mod status;
mod svm;
mod sys;
mod watch;
mod watchers;

pub(crate) use agent::{Access, Agent, Grain, HdpFlush, Pool};
pub(crate) use driver::Hsa;
pub(crate) use memory::{Allocation, LockedMemory, PointerInfo, PointerKind};
pub(crate) use share::{DmaBufMapping, IpcMapping};
pub(crate) use signal::{CopyEnd, Signal, SignalCallback};
pub(crate) use status::Status;
pub(crate) use sys::{IpcHandle, RawAgent, RawPool, RawSignal};
pub(crate) use watch::{FaultWatch, FreeWatch};
pub(crate) use watchers::{Fault, FaultKind, FreedCallback};
