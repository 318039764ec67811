//! Vendor libraries: found, refused, driven.
//!
//! The room is private, so this program compiles it into itself, with the error type of the library: what is tested is the same source.

#[path = "../../src/driver/mod.rs"]
mod driver;
mod error {
    pub(crate) use wharf::{Error, ErrorKind, Result};
}
#[path = "../support/mod.rs"]
mod support;

mod alone;
mod device;
mod emulated;
mod fake;
mod gaudi;
mod gdr;
mod hlthunk;
mod hsa;
mod loader;
mod scal;
mod synapse;
