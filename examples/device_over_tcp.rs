//! Device memory of one process to device memory of another over TCP alone, as between two hosts, by tag, put and get.
//!
//! `cargo run --release --example device_over_tcp -- [--device cuda|gaudi|rocm] [FILE]` (without FILE: `Cargo.lock`). The program starts itself again as the second process. No
//! network card here reads a device's memory, so the bytes stop in pinned fragments at both ends: one fragment is copied while another is on the wire.
//! `explain` says so before anything moves, and a context with `forbid_staging()` refuses.
//!
//! It takes the accelerator of this machine, and where there is none an emulated one, and says which. The exit code tells whether all digests
//! agree.

#[path = "common/accelerator.rs"]
pub(crate) mod accelerator;
#[path = "common/exchange.rs"]
pub(crate) mod exchange;

/// What the bytes go over.
pub(crate) const TRANSPORTS: &str = "tcp";

fn main() -> std::process::ExitCode {
    exchange::main("device_over_tcp", TRANSPORTS)
}
