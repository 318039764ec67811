//! Device memory of one process to device memory of another over InfiniBand or RoCE, by tag, put and get.
//!
//! `cargo run --release --example device_over_rdma -- [--device cuda|gaudi|rocm] [--direct] [FILE]` (without FILE: `Cargo.lock`). The program starts itself again as the second process.
//! Where the network device takes the accelerator's dma-bufs, it reads and writes device memory itself, at both ends; elsewhere the bytes stop in pinned
//! fragments. `explain` says which; with `--direct` it fails where they would stop.
//!
//! Without an RDMA device it says why, and does the same in one process on the emulated library of the tests; in two, where `EMULATED_VERBS_FOLDER` names
//! a folder. The exit code tells whether all digests agree. `tests/rdma-vm/rdma-vm -- target/release/examples/device_over_rdma` shows it on the kernel's soft-RoCE devices.

#[path = "common/accelerator.rs"]
pub(crate) mod accelerator;
#[path = "common/exchange.rs"]
pub(crate) mod exchange;

use std::{env, os::unix::process::CommandExt, process::ExitCode};

use accelerator::{Outcome, say, vendor};

const NAME: &str = "device_over_rdma";
/// What the bytes go over.
pub(crate) const TRANSPORTS: &str = "rc_verbs";
/// Names the library of RDMA devices; read when it is loaded.
const LIBRARY: &str = "WHARF_LIBIBVERBS";
const EMULATED: &str = "libwharf_emulated_verbs.so";
/// Names a folder by which emulated devices of several processes are on one network.
const NETWORK: &str = "EMULATED_VERBS_FOLDER";

fn main() -> ExitCode {
    let named = env::var(LIBRARY).unwrap_or_default();
    match devices() {
        Ok(()) if named.ends_with(EMULATED) && env::var_os(NETWORK).is_none() => {
            let arguments: Vec<String> = env::args().skip(1).collect();
            ended(alone(&arguments))
        }
        Ok(()) => exchange::main(NAME, TRANSPORTS),
        // What is named is not replaced.
        Err(error) if !named.is_empty() => ended(Err(error)),
        Err(error) => {
            say(format_args!("no RDMA device here: {error}"));
            match accelerator::beside(EMULATED) {
                Ok(library) => ended(Err(again(&library))),
                Err(error) => {
                    say(format_args!("nothing to show without one: {error}"));
                    ExitCode::SUCCESS
                }
            }
        }
    }
}

/// Whether there are any that can be used.
fn devices() -> Outcome<()> {
    wharf::Context::builder().transports(TRANSPORTS)?.build()?;
    Ok(())
}

/// Starts this program anew with the emulated library. Returns only when that fails.
fn again(library: &std::path::Path) -> Box<dyn std::error::Error + Send + Sync> {
    say(format_args!(
        "starting again with {LIBRARY}={}",
        library.display()
    ));
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return error.into(),
    };
    let mut command = std::process::Command::new(program);
    let error = command
        .args(env::args_os().skip(1))
        .env(LIBRARY, library)
        // Its devices take dma-bufs, and what they write there comes late.
        .envs([("EMULATED_VERBS_DMABUF", "1"), ("EMULATED_VERBS_LATE", "1")])
        .exec();
    format!("starting again: {error}").into()
}

/// Both ends in this process: emulated devices reach no other by themselves.
pub(crate) fn alone(arguments: &[String]) -> Outcome<()> {
    say(format_args!(
        "*** EMULATED: no RDMA device is in use, and both ends are in one process. ***"
    ));
    let (device, rest) = vendor(arguments)?;
    let (file, direct) = exchange::file(NAME, rest)?;
    let over = exchange::Over {
        device,
        transports: TRANSPORTS,
        direct,
    };
    exchange::alone(over, file)
}

fn ended(outcome: Outcome<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            ExitCode::FAILURE
        }
    }
}
