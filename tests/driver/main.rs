//! Vendor libraries: found, refused, driven.
//!
//! The room is private, so this program compiles it into itself, with the error type of the library: what is tested is the same source.

#[allow(dead_code, unused_imports, reason = "no test uses all of the room")]
#[path = "../../src/driver/mod.rs"]
mod driver;
mod error {
    pub(crate) use wharf::{Error, ErrorKind, Result};
}
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/util.rs"]
mod util;

mod alone;
mod device;
mod emulated;
mod fake;
mod gaudi;
mod gdr;
mod hlthunk;
mod hsa;
mod kinds;
mod loader;
#[allow(dead_code)]
#[path = "../cuda_hardware/raw.rs"]
mod raw;
mod scal;
mod synapse;
