//! The transport for RDMA devices, between two processes with a soft-RoCE device each, in a virtual machine (`tests/rdma-vm`).
//!
//! The scenarios of `tests/process` are played here over `rc_verbs`; the others are about what only such a device has: a completion
//! channel, a cable that loses packets, a link that goes down. Elsewhere its tests are ignored.
//!
//! ```sh
//! tests/rdma-vm/rdma-vm -- $(cargo test --test rdma --no-run --message-format=json | sed -n 's/.*"executable":"\([^"]*rdma-[^"]*\)".*/\1/p') --include-ignored --test-threads=1
//! ```

#[path = "../support/mod.rs"]
mod support;

#[allow(dead_code, reason = "for the scenarios of another program, too")]
#[path = "../process/common.rs"]
mod common;
mod machine;
mod paths;

#[path = "../process/atomics.rs"]
mod atomics;
#[path = "../process/death.rs"]
mod death;
mod devices;
#[path = "../process/exchange.rs"]
mod exchange;
mod link_down;
mod loss;
mod parked;
#[path = "../process/pingpong.rs"]
mod pingpong;
mod rails;
