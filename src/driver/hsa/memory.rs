//! Memory: of pools, locked host memory, what an address is.
//!
//! # Safety
//! An allocation is freed once, by its drop. The runtime does not wait for copies then: whoever started one ends it
//! first, as they promised where the copy was started. Locked memory is unlocked once, by its drop.
#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_void},
    fmt,
    mem::offset_of,
    ptr::{self, NonNull},
};

use super::{Agent, Grain, Hsa, Pool, RawAgent, Status, sys, sys::pointer};
use crate::error::{Error, ErrorKind, Result};

/// Memory that this process allocated. Freed on drop, which may block.
pub(crate) struct Allocation {
    hsa: &'static Hsa,
    address: u64,
    len: usize,
}

impl Allocation {
    /// Where it begins: for every agent, and for the host where it reaches it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Its bytes, at least 1.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Lets these agents reach it, besides the pool's own, and no others: see [`Hsa::allow_access`].
    /// Errors: as there.
    pub(crate) fn allow(&self, agents: &[Agent]) -> Result<()> {
        self.hsa.allow_access(self.address, agents)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.hsa.on_drop("hsa_amd_memory_pool_free", |api| {
            // SAFETY: allocated once, freed once.
            unsafe { (api.hsa_amd_memory_pool_free)(pointer_to(self.address)) }
        });
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.len, self.address)
    }
}

impl Pool {
    /// Allocates at least 1 byte. For the pool's agent, and for those of the host where it is theirs; others are to be allowed. May block.
    /// Errors: `Exhausted`; `InvalidArgument`: no bytes, or more than the pool gives at once.
    pub(crate) fn allocate(&self, len: usize) -> Result<Allocation> {
        let hsa = self.agent().hsa();
        hsa.usable()?;
        let mut address = ptr::null_mut();
        // SAFETY: writes one pointer.
        let status =
            unsafe { (hsa.api.hsa_amd_memory_pool_allocate)(self.raw(), len, 0, &raw mut address) };
        match status {
            Status::SUCCESS if !address.is_null() => Ok(Allocation {
                hsa,
                address: address.expose_provenance() as u64,
                len,
            }),
            Status::SUCCESS => {
                Err(Status::ERROR_OUT_OF_RESOURCES.error("hsa_amd_memory_pool_allocate"))
            }
            status => Err(status.error("hsa_amd_memory_pool_allocate")),
        }
    }
}

/// Host memory of the program's that devices reach, at an address of their own. Undone on drop, which may block.
pub(crate) struct LockedMemory {
    hsa: &'static Hsa,
    host: NonNull<u8>,
    agent_address: u64,
    len: usize,
}

// SAFETY: it is addresses; who dereferences one vouches for the access.
unsafe impl Send for LockedMemory {}
// SAFETY: as for Send.
unsafe impl Sync for LockedMemory {}

impl LockedMemory {
    /// Where agents have it: for copies. **It may differ from the host's address.**
    pub(crate) fn agent_address(&self) -> u64 {
        self.agent_address
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        self.hsa.on_drop("hsa_amd_memory_unlock", |api| {
            // SAFETY: locked once, unlocked once.
            unsafe { (api.hsa_amd_memory_unlock)(self.host.as_ptr().cast()) }
        });
    }
}

impl fmt::Debug for LockedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} locked bytes at {:p}, {:#x} for agents",
            self.len, self.host, self.agent_address
        )
    }
}

/// What an address is to the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PointerKind {
    /// Nothing that it knows: ordinary memory of the host, or freed.
    Unknown,
    /// Allocated in a pool.
    Allocated,
    /// Host memory that is locked.
    Locked,
    /// Mapped from a dma-buf.
    Graphics,
    /// Another process's, attached by a handle.
    Ipc,
    /// Addresses reserved for virtual memory (ROCm 7). Not the host's, and not said to be anybody's.
    Reserved,
    /// A kind that came later.
    Other(u32),
}

/// What the runtime says of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PointerInfo {
    /// What it is. The rest means nothing for [`PointerKind::Unknown`].
    pub(crate) kind: PointerKind,
    /// Where the whole begins, for agents.
    pub(crate) agent_base: u64,
    /// Where the whole begins, for the host; 0 where it is told that the host does not reach it. That it is set does not mean that the host does:
    /// ask [`Agent::has_large_bar`].
    pub(crate) host_base: u64,
    /// Bytes of the whole.
    pub(crate) len: usize,
    /// Whose memory it is. `None`: of a device that this process does not see, or a runtime that does not say.
    pub(crate) owner: Option<RawAgent>,
    /// Its grain.
    pub(crate) grain: Grain,
}

impl PointerInfo {
    const UNKNOWN: Self = Self {
        kind: PointerKind::Unknown,
        agent_base: 0,
        host_base: 0,
        len: 0,
        owner: None,
        grain: Grain::Unsaid,
    };
}

impl Hsa {
    /// What an address is. Cheap; initialises nothing: before anybody did, nothing is known.
    /// Errors: `Forked`, and what the runtime reports.
    pub(crate) fn inspect(&self, address: u64) -> Result<PointerInfo> {
        self.usable()?;
        if address == 0 {
            return Ok(PointerInfo::UNKNOWN);
        }
        let mut raw = sys::RawPointerInfo::EMPTY;
        // SAFETY: the struct says its size; no list of agents is asked for.
        let status = unsafe {
            (self.api.hsa_amd_pointer_info)(
                pointer_to(address),
                &raw mut raw,
                ptr::null(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        if status == Status::ERROR_NOT_INITIALIZED {
            return Ok(PointerInfo::UNKNOWN);
        }
        status.check("hsa_amd_pointer_info")?;
        let told = |end: usize| raw.size as usize >= end;
        let kind = match raw.kind {
            pointer::UNKNOWN => return Ok(PointerInfo::UNKNOWN),
            pointer::ALLOCATED => PointerKind::Allocated,
            pointer::LOCKED => PointerKind::Locked,
            pointer::GRAPHICS => PointerKind::Graphics,
            pointer::IPC => PointerKind::Ipc,
            pointer::RESERVED => PointerKind::Reserved,
            other => PointerKind::Other(other),
        };
        // A runtime that knows less of the struct left the rest as it was.
        if !told(offset_of!(sys::RawPointerInfo, user_data)) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} tells {} bytes of a pointer only",
                    self.library(),
                    raw.size
                ),
            ));
        }
        let owner = told(offset_of!(sys::RawPointerInfo, flags)) && raw.owner.0 != 0;
        let grain = told(offset_of!(sys::RawPointerInfo, flags) + 4);
        Ok(PointerInfo {
            kind,
            agent_base: raw.agent_base,
            host_base: raw.host_base,
            len: raw.len,
            owner: owner.then_some(raw.owner),
            grain: if grain {
                Grain::of(raw.flags)
            } else {
                Grain::Unsaid
            },
        })
    }

    /// Lets these agents reach the allocation that begins at an address, besides the pool's own, **and no others any more**: name all that
    /// are to reach it. Once for each allocation, never for each copy: it changes page tables, and may block.
    /// Errors: `InvalidArgument`: no allocation, no agent, or one that has no way to it.
    pub(crate) fn allow_access(&self, address: u64, agents: &[Agent]) -> Result<()> {
        self.usable()?;
        let agents = raw(agents);
        // SAFETY: a list of so many agents; flags are reserved.
        let status = unsafe {
            (self.api.hsa_amd_agents_allow_access)(
                agents.len() as u32,
                agents.as_ptr(),
                ptr::null(),
                pointer_to(address),
            )
        };
        status.check("hsa_amd_agents_allow_access")
    }

    /// Fills an allocation's first `len` bytes, rounded up to 4, with one word; its device does it, and this waits. Blocks.
    /// Errors: `Unsupported`: the library cannot; what the runtime reports.
    ///
    /// # Safety
    /// The memory is an allocation in a pool with so many bytes; nobody else uses it during the call.
    pub(crate) unsafe fn fill(&self, address: u64, word: u32, len: usize) -> Result<()> {
        self.usable()?;
        let call = self.optional(self.api.hsa_amd_memory_fill, "hsa_amd_memory_fill")?;
        // SAFETY: as the caller vouches. Allocations end at pages.
        let status = unsafe { call(pointer_to(address), word, len.div_ceil(4)) };
        status.check("hsa_amd_memory_fill")
    }

    /// Pins host memory and lets these agents reach it (all devices, if none is named). May block: every page is touched. Initialises the
    /// runtime.
    /// Errors: `InvalidArgument`: no bytes; `Exhausted`: it is not there, or too much of it for the system's limits.
    ///
    /// # Safety
    /// The memory stays mapped for as long as this value lives.
    pub(crate) unsafe fn lock(
        &'static self,
        host: NonNull<u8>,
        len: usize,
        agents: &[Agent],
    ) -> Result<LockedMemory> {
        self.initialise()?;
        let mut agents = raw(agents);
        let list = if agents.is_empty() {
            ptr::null_mut()
        } else {
            agents.as_mut_ptr()
        };
        let mut agent_address: *mut c_void = ptr::null_mut();
        // SAFETY: a list of so many agents, and room for one pointer; of the memory the caller vouches.
        let status = unsafe {
            (self.api.hsa_amd_memory_lock)(
                host.as_ptr().cast(),
                len,
                list,
                agents.len() as c_int,
                &raw mut agent_address,
            )
        };
        status.check("hsa_amd_memory_lock")?;
        Ok(LockedMemory {
            hsa: self,
            host,
            agent_address: agent_address.expose_provenance() as u64,
            len,
        })
    }
}

pub(super) fn raw(agents: &[Agent]) -> Vec<RawAgent> {
    agents.iter().map(Agent::raw).collect()
}

/// An address as the calls take it.
pub(super) fn pointer_to(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}
