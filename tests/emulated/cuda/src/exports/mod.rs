//! The exported names, a file for each kind of object. Their work is done in the files above.

pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod host;
pub(crate) mod ipc;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod pool;
pub(crate) mod start;
pub(crate) mod stream;
pub(crate) mod traps;
pub(crate) mod unsupported;
pub(crate) mod vmm;

use crate::{
    abi::{Outcome, Status},
    driver::driver,
    gate::Symbol,
};

/// All that can be looked up.
pub(crate) fn symbols() -> impl Iterator<Item = &'static Symbol> {
    [
        start::TABLE,
        device::TABLE,
        context::TABLE,
        memory::TABLE,
        host::TABLE,
        copy::TABLE,
        stream::TABLE,
        event::TABLE,
        ipc::TABLE,
        vmm::TABLE,
        pool::TABLE,
        module::TABLE,
        unsupported::TABLE,
    ]
    .into_iter()
    .flatten()
}

/// The ordinal that a caller gave.
fn ordinal(device: i32) -> Outcome<usize> {
    usize::try_from(device)
        .ok()
        .filter(|device| *device < driver().devices.len())
        .ok_or(Status::INVALID_DEVICE)
}
