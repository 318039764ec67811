//! How copies fail, and devices.

use super::machine::Machine;
use crate::{
    driver::hsa::{Fault, FaultKind},
    error::{Error, ErrorKind, Result},
    types::MemoryType,
};

/// Of a copy whose signal became negative.
#[cold]
pub(super) fn failure(value: i64) -> Error {
    let text = format!(
        "the device could not make the copy (hsa_amd_memory_async_copy: its signal became {value})"
    );
    Error::new(ErrorKind::Io, text)
}

/// How a device failed for good, if it did while an engine was there.
pub(super) fn fault(machine: &Machine, ordinal: u16) -> Result<Option<Fault>> {
    let agent = machine.device(ordinal)?.agent;
    Ok(machine.hsa.fault_of(agent.raw()).filter(is_end))
}

/// Whether the device is of no more use after it.
pub(super) fn is_end(fault: &Fault) -> bool {
    matches!(fault.kind, FaultKind::Memory { .. } | FaultKind::Hardware)
}

/// The error that ends everything on a device.
pub(super) fn lost(ordinal: u16, error: &Error) -> Error {
    let text = format!("{} is lost: {error}", MemoryType::Rocm(ordinal));
    Error::new(ErrorKind::DeviceLost, text)
}
