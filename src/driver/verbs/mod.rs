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
pub(in crate::driver) mod failure;
mod gid;
mod memory;
mod queue;
pub(in crate::driver) mod sys;
mod values;
mod work;

use std::{fmt, path::Path, ptr};

use parking_lot::Mutex;

pub(crate) use completion::{CompletionChannel, CompletionQueue};
pub(in crate::driver) use context::set_nonblocking;
pub(crate) use context::{
    AsyncEvent, AtomicSupport, Context, DeviceAttributes, OnDemand, PortAttributes, Subject,
};
pub(crate) use device::Device;
pub(crate) use failure::errno_of;
pub(crate) use gid::{GidEntry, choose_gid};
pub(crate) use memory::{MemoryRegion, ProtectionDomain};
pub(crate) use queue::{
    Capacity, GlobalRoute, InitAttributes, PathAttributes, QueuePair, QueuePairOptions,
    ReceiveAttributes, Refused, SendAttributes, SharedReceiveQueue,
};
pub(crate) use sys::Sge;
pub(crate) use values::{
    Access, EventKind, Gid, GidKind, LinkLayer, Mtu, Opcode, PortState, SendFlags, State, Status,
    Transport,
};
pub(crate) use work::{Completion, ReceiveRequest, SendRequest};

use super::library::{Library, MissingSymbol, Search};
use crate::error::{Error, ErrorKind, Result};

/// The variable that names the library.
pub(crate) const VARIABLE: &str = "WHARF_LIBIBVERBS";

const NAMES: &[&str] = &["libibverbs.so.1"];

/// A function by which libraries are told apart.
pub(in crate::driver) const ANCHOR: &str = "ibv_open_device";

/// The library of this process. Opens no device.
pub(crate) struct Verbs {
    api: sys::Symbols,
    library: Library,
}

/// Every library that was loaded, one for each file. Never shrinks; grows with the number of different files.
static LOADED: Mutex<Vec<&'static Verbs>> = Mutex::new(Vec::new());

impl Verbs {
    /// The library at `path`, else the one that `WHARF_LIBIBVERBS` names, else `libibverbs.so.1`. Loaded once for each file. May take
    /// milliseconds.
    ///
    /// # Errors
    /// `Unsupported`: no such library, with what was tried and the loader's words; one without a required function.
    pub(crate) fn load(path: Option<&Path>) -> Result<&'static Self> {
        let library = search(path).open()?;
        let find = |name: &'static str, _since: u32| library.find(name);
        // SAFETY: the names are exact, and `dlsym` finds the default version, which is the one in the table.
        let api = unsafe { sys::Symbols::resolve(&find) };
        let api = api.map_err(|missing| lacking(&library, "libibverbs", &missing))?;
        let mut loaded = LOADED.lock();
        let same = |verbs: &&Self| ptr::fn_addr_eq(verbs.api.ibv_open_device, api.ibv_open_device);
        if let Some(verbs) = loaded.iter().copied().find(same) {
            return Ok(verbs);
        }
        tracing::debug!(target: "wharf::verbs", "loaded {}", library.name());
        let verbs: &'static Self = Box::leak(Box::new(Self { api, library }));
        loaded.push(verbs);
        Ok(verbs)
    }

    /// The name by which the library was found.
    pub(crate) fn library(&self) -> &str {
        self.library.name()
    }

    /// The address of [`ANCHOR`] in it.
    pub(in crate::driver) fn anchor(&self) -> usize {
        (self.api.ibv_open_device as *const ()).addr()
    }

    /// All functions that are looked for: exported name, the version that brought it (1000 × major + minor), whether it is required.
    pub(crate) fn functions() -> impl Iterator<Item = (&'static str, u32, bool)> {
        sys::Symbols::NAMES.iter().copied()
    }

    /// The name of a device that the library knows.
    ///
    /// # Safety
    /// The device is one of this library's, and lives.
    pub(in crate::driver) unsafe fn name_of(&self, device: *mut sys::RawDevice) -> String {
        // SAFETY: the caller says so.
        unsafe { device::text((self.api.ibv_get_device_name)(device)) }
    }

    /// Whether it can register memory by a file descriptor (rdma-core 34 and newer); a device may still refuse.
    pub(crate) fn has_dmabuf(&self) -> bool {
        self.api.ibv_reg_dmabuf_mr.is_some()
    }

    /// Makes memory that is registered from now on stay usable in this process when it forks, where the kernel does not do so by itself.
    /// Not called by default: each registration then costs a system call more, and a child that touches such a page dies.
    ///
    /// # Errors
    /// `Unsupported`: the library is too old; `InvalidArgument`: something is registered already.
    pub(crate) fn protect_forks(&self) -> Result<()> {
        let Some(call) = self.api.ibv_fork_init else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} has no ibv_fork_init", self.library()),
            ));
        };
        // SAFETY: takes nothing.
        failure::check("ibv_fork_init", self.library(), unsafe { call() })
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Verbs").field(&self.library()).finish()
    }
}

fn search(given: Option<&Path>) -> Search<'_> {
    Search {
        what: "libibverbs",
        given,
        variable: VARIABLE,
        names: NAMES,
    }
}

/// The error for a library that lacks required functions.
pub(in crate::driver) fn lacking(
    library: &Library,
    what: &str,
    missing: &[MissingSymbol],
) -> Error {
    /// More than these say nothing new.
    const NAMED: usize = 4;
    let names: Vec<&str> = missing.iter().take(NAMED).map(|one| one.name).collect();
    let more = match missing.len().checked_sub(NAMED) {
        Some(more) if more > 0 => format!(" and {more} more"),
        _ => String::new(),
    };
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "{} is no {what} that can be used: it has no {}{more}; rdma-core 28 or newer is needed",
            library.name(),
            names.join(", "),
        ),
    )
}
