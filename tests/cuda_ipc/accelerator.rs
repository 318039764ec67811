//! What all vendors share, for memory of other processes.

#[path = "../../src/transport/accelerator/ipc/mod.rs"]
#[allow(dead_code)]
pub(crate) mod ipc;

pub(crate) use wharf::transport::accelerator::{Export, Import, ImportedMemory};
