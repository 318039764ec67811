//! Agents, pools, and who reaches whom. Handles are numbers, no addresses.

use crate::{
    abi::{Outcome, Status},
    settings,
};

/// The host is agent 0, device `n` is agent `n + 1`.
pub(crate) type Index = usize;

/// The host's index.
pub(crate) const HOST: Index = 0;

const FIRST: u64 = 0xA6E0_0000_0000;
const STEP: u64 = 0x1000;

/// What pools an agent has: global flags (1 kernel arguments, 2 fine, 4 coarse), or none for a device's local memory, in which nobody allocates.
const HOST_POOLS: &[Option<u32>] = &[Some(2), Some(3), Some(4)];
const DEVICE_POOLS: &[Option<u32>] = &[Some(4), Some(2), None];

/// All agents' indices.
pub(crate) fn all() -> std::ops::Range<Index> {
    0..1 + settings::DEVICES.get().min(16) as usize
}

/// An agent's handle.
pub(crate) const fn handle(agent: Index) -> u64 {
    FIRST + agent as u64 * STEP
}

/// The agent of a handle.
pub(crate) fn find(handle: u64) -> Outcome<Index> {
    let offset = handle.checked_sub(FIRST).ok_or(Status::INVALID_AGENT)?;
    let index = (offset / STEP) as usize;
    if offset.is_multiple_of(STEP) && all().contains(&index) {
        Ok(index)
    } else {
        Err(Status::INVALID_AGENT)
    }
}

/// The agents of a list.
pub(crate) fn find_all(handles: &[u64]) -> Outcome<Vec<Index>> {
    handles.iter().map(|handle| find(*handle)).collect()
}

/// The device's number for a person and the fault plan, if it is one.
pub(crate) fn device(agent: Index) -> Option<u32> {
    agent.checked_sub(1).map(|device| device as u32)
}

/// The machine's number of a device.
pub(crate) fn physical(agent: Index) -> u32 {
    (settings::FIRST.get() + agent as u64).saturating_sub(1) as u32
}

/// The agent that is a device of the machine, if this process sees it.
pub(crate) fn of_physical(physical: u32) -> Option<Index> {
    let index = u64::from(physical).checked_sub(settings::FIRST.get())? + 1;
    Some(index as usize).filter(|index| all().contains(index))
}

/// A pool: its agent, and its global flags if programs allocate in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    pub(crate) agent: Index,
    pub(crate) flags: Option<u32>,
}

impl Pool {
    /// Its bytes.
    pub(crate) fn size(self) -> u64 {
        match (self.agent, self.flags) {
            (HOST, _) => 64 << 30,
            (_, Some(_)) => settings::MEMORY.get(),
            (_, None) => 64 << 10,
        }
    }
}

/// Handles of an agent's pools.
pub(crate) fn pools(agent: Index) -> impl Iterator<Item = u64> {
    (1..=pools_of(agent).len() as u64).map(move |number| handle(agent) + number * 0x10)
}

fn pools_of(agent: Index) -> &'static [Option<u32>] {
    if agent == HOST {
        HOST_POOLS
    } else {
        DEVICE_POOLS
    }
}

/// The pool of a handle.
pub(crate) fn pool(handle: u64) -> Outcome<Pool> {
    let agent = find(handle & !(STEP - 1)).map_err(|_| Status::INVALID_MEMORY_POOL)?;
    let number = (handle & (STEP - 1)) / 0x10;
    let place = (number as usize).checked_sub(1);
    let flags = place.and_then(|place| pools_of(agent).get(place));
    let flags = flags.ok_or(Status::INVALID_MEMORY_POOL)?;
    if !handle.is_multiple_of(0x10) {
        return Err(Status::INVALID_MEMORY_POOL);
    }
    Ok(Pool {
        agent,
        flags: *flags,
    })
}

/// `HSA_AMD_MEMORY_POOL_ACCESS_*`: 0 never, 1 by default, 2 when allowed.
pub(crate) fn access(by: Index, pool: Pool) -> u32 {
    match (by, pool.agent) {
        (by, owner) if by == owner => 1,
        (_, HOST) => 2,
        (_, _) if pool.flags.is_none() => 0,
        (HOST, _) => 2 * u32::from(settings::BAR.on() && pool.flags == Some(4)),
        (_, _) => 2 * u32::from(settings::PEERS.on()),
    }
}

/// Whether the host sees memory with these flags of this agent.
pub(crate) fn host_sees(owner: Index) -> bool {
    owner == HOST || settings::BAR.on()
}
