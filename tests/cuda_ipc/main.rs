//! Device memory across processes, on the emulated driver: real processes that export and import, killed, lied to, and given no room.
//!
//! The rooms are private, so this program compiles them into itself: what is tested is the same source.

#[allow(dead_code, unused_imports, reason = "no test uses all of the room")]
#[path = "../../src/driver/mod.rs"]
mod driver;
mod error {
    pub(crate) use wharf::{Error, ErrorKind, Result};
}
mod accelerator;
#[path = "../../src/transport/cuda/ipc/mod.rs"]
#[allow(dead_code)]
mod ipc;
#[path = "../support/mod.rs"]
mod support;
mod sys;
mod transport {
    pub(crate) use crate::accelerator;
}
mod types {
    pub(crate) use wharf::{Identity, MemoryType};
}
#[path = "../support/util.rs"]
mod util;

mod agent;
#[path = "../emulated/stranger_cuda/api.rs"]
mod api;
mod cached;
mod death;
mod faults;
mod hostile;
mod kinds;
mod rights;
mod transfer;
