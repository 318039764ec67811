//! The driver for verbs: on soft-RoCE devices in a virtual machine (`tests/rdma-vm`), on an emulated library, and without either.
//!
//! The room is private, so this program compiles it into itself, with the error type of the library: what is tested is the same source.
//! Tests that need devices are ignored where there are none:
//!
//! ```sh
//! tests/rdma-vm/rdma-vm -- $(cargo test --test verbs --no-run --message-format=json | sed -n 's/.*"executable":"\([^"]*verbs-[^"]*\)".*/\1/p') --include-ignored --skip absent::
//! ```

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

#[path = "../driver/fake.rs"]
mod fake;

mod absent;
mod connection;
mod emulated;
mod events;
mod link;
mod memory;
mod one_sided;
mod transfer;
mod two_processes;
