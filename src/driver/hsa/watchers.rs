//! Who is told of freed memory and of devices that failed.

use std::{collections::BTreeMap, sync::Arc};

use super::{RawAgent, Status};
use crate::{
    error::{Error, ErrorKind},
    util::lock::Mutex,
};

/// Something to do when an allocation is freed.
pub(crate) trait FreedCallback: Send + Sync + 'static {
    /// Runs on the thread that frees, before the memory is gone: forget it and return. It must not free or watch memory of the runtime.
    fn freed(&self);
}

/// Who watches one allocation, each by the number of its watch.
type Watchers = Vec<(u64, Arc<dyn FreedCallback>)>;

/// Who watches which allocation, by its first address.
#[derive(Default)]
pub(super) struct FreedTable(pub(super) Mutex<BTreeMap<u64, Watchers>>);

/// How a device failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// It met an address that it cannot reach; the reasons are the header's bits.
    Memory {
        /// The address, to a page.
        address: u64,
        /// `HSA_AMD_MEMORY_FAULT_*`.
        reasons: u32,
    },
    /// It hung, or its memory failed, and it was reset.
    Hardware,
    /// Memory could not be freed because the device uses it.
    InUse {
        /// The address.
        address: u64,
    },
    /// One that came later.
    Other(u32),
}

/// That a device failed. What was under way on it is never reported done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Which device.
    pub(crate) agent: RawAgent,
    /// How.
    pub(crate) kind: FaultKind,
}

impl Fault {
    /// The error for what was under way.
    pub(crate) fn error(&self) -> Error {
        let why = match self.kind {
            FaultKind::Memory { address, reasons } => format!(
                "the device met address {address:#x}, which it cannot reach (reasons {reasons:#x})"
            ),
            FaultKind::Hardware => "the device hung or failed, and was reset".to_owned(),
            FaultKind::InUse { address } => {
                format!("memory at {address:#x} could not be freed: the device uses it")
            }
            FaultKind::Other(number) => format!("the runtime reports event {number}"),
        };
        Error::new(ErrorKind::DeviceLost, why)
    }
}

pub(super) type OnFault = Arc<dyn Fn(&Fault) + Send + Sync>;

/// Who watches devices, and what was seen.
#[derive(Default)]
pub(super) struct FaultTable {
    /// Whether the runtime was given the handler; what it said.
    pub(super) registered: Option<Status>,
    pub(super) watchers: Vec<(u64, OnFault)>,
    /// The first fault of each device.
    pub(super) seen: Vec<Fault>,
}

/// Devices that failed, and who wants to know.
#[derive(Default)]
pub(super) struct Faults(pub(super) Mutex<FaultTable>);
