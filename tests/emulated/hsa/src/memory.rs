#![allow(unsafe_code)]
//! Everything that has an address for agents: allocations, locked host memory, other processes' memory, dma-bufs.
//!
//! ```text
//! memory file   │ pad: magic, begin, length, device │ the bytes │        a dma-buf is the whole file
//! address       │                                   │ fault, or shown to the host: the host's pools, a large BAR
//! ```
//!
//! # Safety
//! What is shown is shown within a reservation that was just made, before its address is given out. A callback is the program's, called as it was
//! registered, outside of locks.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use wharf_emulated_common::backing::{Backing, Reservation, is_mapped};

use crate::{
    abi::{OnFree, Outcome, PointerInfo, Status},
    agent::{self, HOST, Index, Pool},
    runtime::runtime,
    settings,
};

const PAGE: u64 = 4096;
const MAGIC: u64 = 0x4253_4844_4D55_4C45;
/// Addresses of freed memory that are kept from being used again.
const KEPT: usize = 4096;

/// Where bytes are.
#[derive(Debug)]
pub(crate) enum Place {
    /// In a memory file, from an offset.
    Device(Arc<Backing>, u64),
    /// At an address of the host.
    Host(u64),
}

/// An address that the agent cannot reach.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Unreachable(pub(crate) u64);

/// What a region is, by the number of `hsa_amd_pointer_type_t`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Allocated,
    Locked { host: u64 },
    DmaBuf,
    Ipc,
}

/// Memory with an address.
#[derive(Debug)]
pub(crate) struct Region {
    start: u64,
    len: u64,
    pub(crate) kind: Kind,
    /// Whose memory; `None`: of a device that this process does not see.
    owner: Option<Index>,
    flags: u32,
    /// Who reaches it besides the owner.
    access: Vec<Index>,
    backing: Option<Arc<Backing>>,
    offset: u64,
    notifiers: Vec<(u64, OnFree, usize)>,
    room: Option<Reservation>,
}

impl Region {
    fn holds(&self, address: u64) -> bool {
        address >= self.start && address - self.start < self.len
    }

    fn host_start(&self) -> u64 {
        match self.kind {
            Kind::Locked { host } => host,
            _ => self.start,
        }
    }

    fn holds_for_host(&self, address: u64) -> bool {
        address >= self.host_start() && address - self.host_start() < self.len
    }
}

/// All regions, by their address for agents.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    regions: BTreeMap<u64, Region>,
    /// Taken from the table, and not yet gone: callbacks run.
    freeing: Vec<Region>,
    kept: VecDeque<Reservation>,
    used: BTreeMap<Index, u64>,
}

impl Memory {
    /// `hsa_amd_memory_pool_allocate`.
    pub(crate) fn allocate(&mut self, pool: Pool, len: u64) -> Outcome<u64> {
        let flags = pool.flags.ok_or(Status::INVALID_ALLOCATION)?;
        if len == 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        if len > pool.size() {
            return Err(Status::INVALID_ALLOCATION);
        }
        let used = self.used.entry(pool.agent).or_default();
        if *used + len > pool.size() {
            return Err(Status::OUT_OF_RESOURCES);
        }
        *used += len;
        let made = make(pool.agent, flags, len);
        if made.is_err() {
            *self.used.entry(pool.agent).or_default() -= len;
        }
        let region = made?;
        let start = region.start;
        self.regions.insert(start, region);
        Ok(start)
    }

    /// Forgets all. To be dropped without the lock.
    pub(crate) fn clear(&mut self) -> Self {
        std::mem::take(self)
    }

    /// The region that an agent's address lies in.
    fn at(&self, address: u64) -> Option<&Region> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        Some(region).filter(|region| region.holds(address))
    }

    /// The same, also by the host's address of locked memory.
    fn known(&self, address: u64) -> Option<&Region> {
        let by_host = || {
            let mut locked = self.regions.values();
            locked.find(|region| region.holds_for_host(address))
        };
        self.at(address).or_else(by_host)
    }

    /// Where the bytes are that an agent reads or writes.
    pub(crate) fn place(&self, address: u64, len: u64, by: Index) -> Result<Place, Unreachable> {
        let freeing = || self.freeing.iter().find(|region| region.holds(address));
        let region = self.at(address).or_else(freeing);
        let region = region.ok_or(Unreachable(address))?;
        let offset = address - region.start;
        if region.len - offset < len {
            return Err(Unreachable(region.start + region.len));
        }
        let owns = region.owner == Some(by) && region.kind == Kind::Allocated;
        if !owns && !region.access.contains(&by) {
            return Err(Unreachable(address));
        }
        Ok(self.place_in(region, offset))
    }

    /// The same for a test, who may reach everything.
    pub(crate) fn any_place(&self, address: u64, len: u64) -> Option<Place> {
        let region = self.at(address)?;
        let offset = address - region.start;
        (region.len - offset >= len).then(|| self.place_in(region, offset))
    }

    #[allow(clippy::unused_self)]
    fn place_in(&self, region: &Region, offset: u64) -> Place {
        match (&region.backing, region.kind) {
            (Some(backing), _) => Place::Device(Arc::clone(backing), region.offset + offset),
            (None, _) => Place::Host(region.host_start() + offset),
        }
    }

    /// `hsa_amd_agents_allow_access`: these agents, and no others.
    pub(crate) fn allow(&mut self, address: u64, agents: &[Index]) -> Outcome {
        let region = self.regions.get_mut(&address);
        let region = region.ok_or(Status::INVALID_ARGUMENT)?;
        if !matches!(region.kind, Kind::Allocated) {
            return Err(Status::INVALID_ARGUMENT);
        }
        let owner = region.owner.ok_or(Status::INVALID_ARGUMENT)?;
        let pool = Pool {
            agent: owner,
            flags: Some(region.flags),
        };
        if agents.iter().any(|by| agent::access(*by, pool) == 0) {
            return Err(Status::INVALID_ARGUMENT);
        }
        region.access = agents.to_vec();
        Ok(())
    }

    /// `hsa_amd_memory_lock`: the address for agents.
    pub(crate) fn lock(&mut self, host: u64, len: u64, agents: Vec<Index>) -> Outcome<u64> {
        let known = self
            .known(host)
            .is_some_and(|region| region.kind == Kind::Allocated);
        if known || !is_mapped(host, len) {
            return Err(Status::OUT_OF_RESOURCES);
        }
        let agents = if agents.is_empty() {
            agent::all().skip(1).collect()
        } else {
            agents
        };
        if agents.iter().all(|agent| *agent == HOST) {
            return Ok(host);
        }
        let page = host & (PAGE - 1);
        let room = if settings::ALIAS.on() {
            Some(self.room(page + len)?)
        } else {
            None
        };
        let start = room.as_ref().map_or(host, |room| room.start() + page);
        let region = Region {
            start,
            len,
            kind: Kind::Locked { host },
            owner: Some(HOST),
            flags: 4,
            access: agents,
            backing: None,
            offset: 0,
            notifiers: Vec::new(),
            room,
        };
        if self.regions.insert(start, region).is_some() {
            runtime()
                .journal
                .misuse(format!("{host:#x} was locked twice at one address"));
        }
        Ok(start)
    }

    /// `hsa_amd_memory_unlock`: the exact address; the last lock of several.
    pub(crate) fn unlock(&mut self, address: u64) -> Outcome {
        let mut all = self.regions.values().rev();
        let found = all.find(|region| region.kind == Kind::Locked { host: address });
        let start = found.ok_or(Status::INVALID_ARGUMENT)?.start;
        if let Some(region) = self.regions.remove(&start) {
            self.keep(region);
        }
        Ok(())
    }

    /// `hsa_amd_pointer_info`.
    pub(crate) fn inspect(&self, address: u64) -> PointerInfo {
        let Some(region) = self.known(address) else {
            return PointerInfo::default();
        };
        PointerInfo {
            size: 0,
            kind: match region.kind {
                Kind::Allocated => 1,
                Kind::Locked { .. } => 2,
                Kind::DmaBuf => 3,
                Kind::Ipc => 4,
            },
            agent_base: region.start,
            // As the real one: of allocations this is set whether the host reaches them or not.
            host_base: region.host_start(),
            len: region.len,
            user_data: 0,
            owner: region.owner.map_or(0, agent::handle),
            flags: region.flags,
        }
    }

    /// Who reaches an address.
    pub(crate) fn accessible(&self, address: u64) -> Vec<Index> {
        let Some(region) = self.known(address) else {
            return Vec::new();
        };
        let mut agents = region.access.clone();
        agents.extend(region.owner.filter(|owner| !region.access.contains(owner)));
        agents
    }

    /// An allocation of this process with its bytes: start, length, owner, file, offset in it.
    pub(crate) fn allocation(&self, address: u64) -> Option<(u64, u64, Index, Arc<Backing>, u64)> {
        let region = self.at(address)?;
        if region.kind != Kind::Allocated {
            return None;
        }
        let backing = Arc::clone(region.backing.as_ref()?);
        Some((
            region.start,
            region.len,
            region.owner?,
            backing,
            region.offset,
        ))
    }

    /// Maps a memory file, from `offset` on, for agents: another process's memory.
    pub(crate) fn map(
        &mut self,
        kind: Kind,
        backing: Backing,
        (offset, len): (u64, u64),
        physical: u32,
        access: Vec<Index>,
    ) -> Outcome<u64> {
        let room = self.room(len)?;
        let start = room.start();
        self.regions.insert(
            start,
            Region {
                start,
                len,
                kind,
                owner: agent::of_physical(physical),
                flags: 4,
                access,
                backing: Some(Arc::new(backing)),
                offset,
                notifiers: Vec::new(),
                room: Some(room),
            },
        );
        Ok(start)
    }

    /// Undoes [`Memory::map`]: exactly the address that it gave.
    pub(crate) fn unmap(&mut self, kind: Kind, address: u64) -> Outcome {
        match self.regions.get(&address) {
            Some(region) if region.kind == kind => {}
            _ => return Err(Status::INVALID_ARGUMENT),
        }
        if let Some(region) = self.regions.remove(&address) {
            self.keep(region);
        }
        Ok(())
    }

    /// `hsa_amd_register_deallocation_callback`.
    pub(crate) fn notify(&mut self, address: u64, run: OnFree, argument: usize) -> Outcome {
        if run.is_none() || address == 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let start = self
            .at(address)
            .filter(|region| region.kind == Kind::Allocated);
        let start = start.ok_or(Status::INVALID_ALLOCATION)?.start;
        let region = self.regions.get_mut(&start);
        let region = region.ok_or(Status::INVALID_ALLOCATION)?;
        region.notifiers.push((address, run, argument));
        Ok(())
    }

    /// `hsa_amd_deregister_deallocation_callback`: all of this address and function, whatever their argument.
    pub(crate) fn forget(&mut self, address: u64, run: OnFree) -> Outcome {
        let start = self.at(address).ok_or(Status::INVALID_ARGUMENT)?.start;
        let region = self.regions.get_mut(&start);
        let region = region.ok_or(Status::INVALID_ARGUMENT)?;
        let before = region.notifiers.len();
        let same = |other: OnFree| other.map(|other| other as usize) == run.map(|run| run as usize);
        region
            .notifiers
            .retain(|(at, other, _)| *at != address || !same(*other));
        if region.notifiers.len() == before {
            return Err(Status::INVALID_ARGUMENT);
        }
        Ok(())
    }

    fn room(&self, len: u64) -> Outcome<Reservation> {
        let len = len.checked_next_multiple_of(PAGE);
        let len = len.ok_or(Status::OUT_OF_RESOURCES)?;
        Reservation::new(len, PAGE).map_err(|_| Status::OUT_OF_RESOURCES)
    }

    /// Lets a region go; its addresses fault from now on, and are not used again soon.
    fn keep(&mut self, region: Region) {
        if runtime().work.lock().touches(region.start, region.len) {
            let why = format!(
                "memory at {:#x} was let go while a copy uses it",
                region.start
            );
            runtime().journal.misuse(why);
        }
        if region.kind == Kind::Allocated
            && let Some(owner) = region.owner
        {
            *self.used.entry(owner).or_default() -= region.len;
        }
        let Some(room) = region.room else { return };
        if settings::REUSE.on() || room.hide(room.start(), room.len()).is_err() {
            return;
        }
        self.kept.push_back(room);
        if self.kept.len() > KEPT {
            self.kept.pop_front();
        }
    }

    /// How many there are of each kind, callbacks, and bytes: for tests that nothing is left.
    pub(crate) fn live(&self) -> String {
        let count = |kind: fn(&Kind) -> bool| {
            self.regions
                .values()
                .filter(|region| kind(&region.kind))
                .count()
        };
        let notifiers: usize = self
            .regions
            .values()
            .map(|region| region.notifiers.len())
            .sum();
        let bytes: u64 = self.used.values().sum();
        format!(
            "allocations {}\nlocked {}\nattached {}\nmapped {}\nnotifiers {notifiers}\nbytes {bytes}\n",
            count(|kind| matches!(kind, Kind::Allocated)),
            count(|kind| matches!(kind, Kind::Locked { .. })),
            count(|kind| matches!(kind, Kind::Ipc)),
            count(|kind| matches!(kind, Kind::DmaBuf)),
        )
    }
}

/// `hsa_amd_memory_pool_free`: callbacks first, outside of the lock, then the memory.
pub(crate) fn free(address: u64) -> Outcome {
    if address == 0 {
        return Ok(());
    }
    let notifiers = {
        let mut memory = runtime().memory.lock();
        match memory.regions.get(&address) {
            Some(region) if region.kind == Kind::Allocated => {}
            Some(_) => return Err(Status::INVALID_ARGUMENT),
            None => return Err(Status::INVALID_ALLOCATION),
        }
        let Some(mut region) = memory.regions.remove(&address) else {
            return Err(Status::INVALID_ALLOCATION);
        };
        let notifiers = std::mem::take(&mut region.notifiers);
        memory.freeing.push(region);
        notifiers
    };
    for (at, run, argument) in notifiers {
        if let Some(run) = run {
            // SAFETY: see the head of the file.
            unsafe { run(at, argument) };
        }
    }
    let mut memory = runtime().memory.lock();
    let place = memory
        .freeing
        .iter()
        .position(|region| region.start == address);
    if let Some(place) = place {
        let region = memory.freeing.swap_remove(place);
        memory.keep(region);
    }
    Ok(())
}

/// `hsa_amd_memory_fill`: so many words, at once.
pub(crate) fn fill(address: u64, word: u32, count: u64) -> Outcome {
    if address == 0 || !address.is_multiple_of(4) {
        return Err(Status::INVALID_ARGUMENT);
    }
    let found = runtime().memory.lock().allocation(address);
    let (start, whole, _, backing, offset) = found.ok_or(Status::INVALID_ALLOCATION)?;
    let at = address - start;
    if count * 4 > whole.next_multiple_of(PAGE) - at {
        return Err(Status::INVALID_ARGUMENT);
    }
    let block = word.to_le_bytes().repeat(1 << 14);
    for done in (0..count * 4).step_by(block.len()) {
        let len = (count * 4 - done).min(block.len() as u64) as usize;
        let written = backing.write(offset + at + done, &block[..len]);
        written.map_err(|_| Status::ERROR)?;
    }
    Ok(())
}

/// A new allocation.
fn make(owner: Index, flags: u32, len: u64) -> Outcome<Region> {
    let out = |_| Status::OUT_OF_RESOURCES;
    let pages = len.next_multiple_of(PAGE);
    let offset = settings::PAD.get().max(1) * PAGE;
    let backing = Backing::new("emulated-hsa", offset + pages).map_err(out)?;
    // What is there if an offset is forgotten.
    backing
        .write(0, &vec![0xDB; offset as usize])
        .map_err(out)?;
    let header = Header {
        offset,
        len,
        physical: agent::physical(owner),
    };
    backing.write(0, &header.bytes()).map_err(out)?;
    let room = Reservation::new(pages, PAGE).map_err(out)?;
    if agent::host_sees(owner) {
        // SAFETY: the whole of the reservation, which nobody has yet.
        unsafe { backing.show(offset, room.start(), pages) }.map_err(out)?;
    }
    Ok(Region {
        start: room.start(),
        len,
        kind: Kind::Allocated,
        owner: Some(owner),
        flags,
        access: Vec::new(),
        backing: Some(Arc::new(backing)),
        offset,
        notifiers: Vec::new(),
        room: Some(room),
    })
}

/// What stands before the bytes in a memory file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) physical: u32,
}

impl Header {
    fn bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.len.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.physical.to_le_bytes());
        bytes
    }

    /// Of a memory file, if it is one of this emulator's.
    pub(crate) fn of(backing: &Backing) -> Option<Self> {
        let mut bytes = [0; 32];
        backing.read(0, &mut bytes).ok()?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let header = Self {
            offset: word(8),
            len: word(16),
            physical: word(24) as u32,
        };
        let end = header.offset.checked_add(header.len)?;
        (word(0) == MAGIC && end <= backing.len()).then_some(header)
    }
}
