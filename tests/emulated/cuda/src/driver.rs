//! The whole state of one process's driver.
//!
//! Locks are taken in this order, and none is held while bytes move or the program's functions run:
//! `objects` → `memory` → a stream's queue.

use std::sync::{OnceLock, atomic::AtomicU64, atomic::Ordering::Relaxed};

use parking_lot::Mutex;
use wharf_emulated_common::{faults::Faults, journal::Journal};

use crate::{device::Device, memory::Memory, objects::Objects, settings};

/// The driver.
#[derive(Debug)]
pub(crate) struct Driver {
    /// Devices by ordinal.
    pub(crate) devices: Vec<Device>,
    /// Everything that has an address.
    pub(crate) memory: Mutex<Memory>,
    /// Everything that has a handle.
    pub(crate) objects: Mutex<Objects>,
    /// What was called.
    pub(crate) journal: Journal,
    /// What goes wrong.
    pub(crate) faults: Faults,
    numbers: AtomicU64,
}

impl Driver {
    /// A number that was never given before.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Relaxed)
    }
}

/// The driver of this process.
pub(crate) fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        settings::load();
        crate::at_exit::write_journal();
        let faults = Faults::new();
        if let Ok(plan) = std::env::var("EMULATED_CUDA_FAULTS")
            && let Err(error) = faults.add(&plan)
        {
            eprintln!("emulated CUDA driver: EMULATED_CUDA_FAULTS: {error}");
        }
        Driver {
            devices: Device::all(),
            memory: Mutex::new(Memory::default()),
            objects: Mutex::new(Objects::default()),
            journal: Journal::new(),
            faults,
            numbers: AtomicU64::new(1),
        }
    })
}
