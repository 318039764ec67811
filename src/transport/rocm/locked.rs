//! Host memory of the program's in reach of devices, by the registration cache.
//!
//! The runtime unlocks by the first address alone, and of several locks that begin there the last one. So locks of one beginning are undone together, when the
//! last of them is no more needed.
//!
//! # Safety
//! The cache hears when memory is unmapped, and gives such a registration to nobody; what a device does through it meets pages that are kept.
#![allow(unsafe_code)]

use std::{collections::BTreeMap, ptr::NonNull, sync::Arc};

use super::machine::{Machine, NAME};
use crate::{
    driver::hsa::LockedMemory,
    error::{Error, ErrorKind, Result},
    memory::{AddressRange, Registrar, RegistrarAttributes, Registration},
    util::lock::Mutex,
};

/// Locks host memory for all devices.
pub(super) struct Locker {
    machine: Arc<Machine>,
    /// By their first address.
    locked: Mutex<BTreeMap<u64, Locks>>,
}

/// Locks that begin at one address.
#[derive(Default)]
struct Locks {
    needed: usize,
    all: Vec<LockedMemory>,
}

/// Where devices have a registration: the address of its first byte.
#[derive(Debug)]
pub(super) struct AgentAddress(u64);

impl Locker {
    pub(super) fn new(machine: &Arc<Machine>) -> Self {
        Self {
            machine: Arc::clone(machine),
            locked: Mutex::default(),
        }
    }

    /// One less; the last undoes all. Under the lock, so that none begins there meanwhile.
    fn release(&self, start: u64) {
        let mut locked = self.locked.lock();
        if let Some(locks) = locked.get_mut(&start) {
            locks.needed = locks.needed.saturating_sub(1);
            if locks.needed == 0 {
                drop(locked.remove(&start));
            }
        }
    }
}

impl Registrar for Locker {
    type Handle = AgentAddress;

    fn name(&self) -> &'static str {
        NAME
    }

    /// Never in the thread that asks, which is a runtime's: every page is touched.
    fn attributes(&self) -> RegistrarAttributes {
        RegistrarAttributes::default().inline_max(0)
    }

    fn register(&self, range: AddressRange, _: crate::types::Access) -> Result<AgentAddress> {
        let none = || Error::new(ErrorKind::InvalidArgument, format!("no memory at {range}"));
        let start = std::ptr::with_exposed_provenance_mut::<u8>(range.start() as usize);
        let start = NonNull::new(start).ok_or_else(none)?;
        let length = usize::try_from(range.len()).map_err(|_| none())?;
        let machine = &self.machine;
        self.locked.lock().entry(range.start()).or_default().needed += 1;
        // SAFETY: whoever has it registered has it mapped now, and the cache hears when it no more is.
        let made = unsafe {
            machine
                .hsa
                .lock(start, length, &machine.agents(machine.everybody()))
        };
        match made {
            Ok(made) => {
                let at = made.agent_address();
                let mut locked = self.locked.lock();
                locked.entry(range.start()).or_default().all.push(made);
                Ok(AgentAddress(at))
            }
            Err(error) => {
                self.release(range.start());
                Err(error)
            }
        }
    }

    fn deregister(&self, _: AgentAddress, range: AddressRange) -> Result<()> {
        self.release(range.start());
        Ok(())
    }
}

/// Where devices have `length` bytes at an address of the host's, by a registration that holds them.
pub(super) fn translate(
    registration: &Registration<Locker>,
    host: u64,
    length: usize,
) -> Result<u64> {
    let whole = registration.range();
    let offset = host.checked_sub(whole.start());
    let fits = |offset: &u64| {
        offset
            .checked_add(length as u64)
            .is_some_and(|end| end <= whole.len())
    };
    offset
        .filter(fits)
        .map(|offset| registration.0 + offset)
        .ok_or_else(|| {
            let text = format!("{registration:?} does not hold {length} bytes at {host:#x}");
            Error::new(ErrorKind::Io, text)
        })
}
