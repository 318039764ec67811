//! What the driver says about an address.
//!
//! An address that it does not know is an error for `cuPointerGetAttribute`, and zeros (ordinal -2) with success for
//! `cuPointerGetAttributes`.

use crate::{
    abi::{Out, Outcome, Status, handle_type},
    memory::{Kind, Memory},
    settings,
};

const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// All attributes of an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    context: u64,
    kind: u32,
    device_pointer: u64,
    host_pointer: u64,
    sync_memops: bool,
    id: u64,
    managed: bool,
    device: i32,
    legacy_ipc: bool,
    start: u64,
    len: u64,
    handle_types: u32,
    rdma_capable: bool,
    pool: u64,
    mapping: (u64, u64),
}

/// What is known about `address`.
pub(crate) fn facts(memory: &Memory, address: u64) -> Option<Facts> {
    if let Some(allocation) = memory.allocation(address) {
        let managed = matches!(allocation.kind, Kind::Managed);
        let (pool, handle_types) = match &allocation.kind {
            Kind::Pooled(pool) => (pool.handle, pool.handle_types),
            _ => (0, handle_type::NONE),
        };
        return Some(Facts {
            context: allocation.context.map_or(0, |(handle, _)| handle),
            kind: DEVICE,
            device_pointer: address,
            host_pointer: if managed { address } else { 0 },
            sync_memops: allocation.sync_memops,
            id: allocation.id,
            managed,
            device: allocation.device as i32,
            legacy_ipc: matches!(allocation.kind, Kind::Device | Kind::Opened { .. }),
            start: allocation.address,
            len: allocation.len,
            handle_types,
            rdma_capable: !managed,
            pool,
            mapping: (allocation.address, allocation.len),
        });
    }
    if let Some(mapping) = memory.mapping(address) {
        let physical = &mapping.physical;
        let host = physical.location.kind != crate::abi::location::DEVICE;
        return Some(Facts {
            context: 0,
            kind: if host { HOST } else { DEVICE },
            device_pointer: address,
            host_pointer: if host { address } else { 0 },
            sync_memops: false,
            id: mapping.id,
            managed: false,
            device: physical.device() as i32,
            legacy_ipc: false,
            start: mapping.address,
            len: mapping.len,
            handle_types: physical.handle_types,
            rdma_capable: crate::vmm::properties(physical).rdma_capable != 0,
            pool: 0,
            mapping: (mapping.address, mapping.len),
        });
    }
    let pinned = memory.pinned_at(address)?;
    Some(Facts {
        context: pinned.context.0,
        kind: HOST,
        device_pointer: address,
        host_pointer: address,
        sync_memops: false,
        id: pinned.id,
        managed: false,
        device: pinned.device as i32,
        legacy_ipc: false,
        start: pinned.start,
        len: pinned.len,
        handle_types: handle_type::NONE,
        rdma_capable: false,
        pool: 0,
        mapping: (pinned.start, pinned.len),
    })
}

/// Writes one attribute; `None` facts are an address that nobody knows.
pub(crate) fn write(facts: Option<&Facts>, attribute: u32, to: &Out<u8>) -> Outcome {
    let version = settings::VERSION.get();
    let since = match attribute {
        1..=16 => 0,
        17 => 11030,
        18..=20 => 12010,
        21 => 12080,
        _ => return Err(Status::INVALID_VALUE),
    };
    if version < since {
        return Err(Status::INVALID_VALUE);
    }
    let words = to.cast::<u64>();
    let halves = to.cast::<u32>();
    let Some(facts) = facts else {
        return match attribute {
            1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20 => words.set(0),
            9 => to.cast::<i32>().set(-2),
            5 => words.set_all(&[0, 0]),
            _ => halves.set(0),
        };
    };
    match attribute {
        1 => words.set(facts.context),
        2 => halves.set(facts.kind),
        3 => words.set(facts.device_pointer),
        4 => words.set(facts.host_pointer),
        5 => words.set_all(&[facts.id, u64::from(facts.device as u32)]),
        6 => halves.set(u32::from(facts.sync_memops)),
        7 => words.set(facts.id),
        8 => halves.set(u32::from(facts.managed)),
        9 => to.cast::<i32>().set(facts.device),
        10 => halves.set(u32::from(facts.legacy_ipc)),
        11 => words.set(facts.start),
        12 => words.set(facts.len),
        13 => halves.set(1),
        14 => words.set(u64::from(facts.handle_types)),
        15 => halves.set(u32::from(facts.rdma_capable)),
        16 => halves.set(3),
        17 => words.set(facts.pool),
        18 => words.set(facts.mapping.1),
        19 => words.set(facts.mapping.0),
        20 => words.set(facts.id),
        _ => halves.set(0),
    }
}

impl Facts {
    /// Whether `cuPointerGetAttribute` has this one for such memory.
    pub(crate) const fn has(&self, attribute: u32) -> bool {
        match attribute {
            4 => self.host_pointer != 0,
            5 => self.kind == DEVICE && !self.managed,
            _ => true,
        }
    }
}
