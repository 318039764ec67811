//! Device memory of one process to device memory of another on the same host, by tag, put and get.
//!
//! `cargo run --release --example device_between_processes -- [--device cuda|gaudi|rocm] [FILE]` (without FILE: `Cargo.lock`). The program starts itself again as the second
//! process. Where a device's driver lets one process open the memory of another (`cuda_ipc`, `gaudi_ipc`, `rocm_ipc`) the receiver's engine copies once, from device to
//! device; else the bytes stop in pinned memory of the host on the way. What is done is printed, with digests taken in both processes.
//!
//! It takes the accelerator of this machine, and where there is none an emulated one, and says which. The exit code tells whether all digests
//! agree.

#[path = "common/accelerator.rs"]
pub(crate) mod accelerator;
#[path = "common/exchange.rs"]
pub(crate) mod exchange;

/// By shared memory the two also exchange the way to the device's.
pub(crate) const TRANSPORTS: &str = "shm,cma";

fn main() -> std::process::ExitCode {
    exchange::main("device_between_processes", TRANSPORTS)
}
