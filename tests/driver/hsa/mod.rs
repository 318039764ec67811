//! The HSA runtime: on the emulated one through the real loader, and Debian's own where it is installed.
//!
//! Tests that count calls, or break something, run in a process of their own.
//!
//! # Safety
//! Copies are between memory that outlives them, or that the test means to break. Host memory that is locked lives in the same function.
#![allow(unsafe_code)]

mod copies;
mod faults;
mod hip;
mod loading;
mod memory;
mod processes;

use std::{path::PathBuf, ptr::NonNull};

pub(crate) use crate::support::pattern;
use crate::{
    driver::hsa::{Agent, Allocation, CopyEnd, Grain, Hsa, LockedMemory, Signal},
    error::Result,
    support::{self, LIMIT},
};

/// Where the build puts it: beside this program.
pub(crate) fn library() -> PathBuf {
    support::emulated::hsa()
}

/// The emulated runtime, loaded as any other.
pub(crate) fn hsa() -> &'static Hsa {
    Hsa::load(Some(&library())).expect("the emulated runtime loads")
}

/// A device.
pub(crate) fn gpu(ordinal: u16) -> Agent {
    hsa().gpus().expect("devices")[usize::from(ordinal)]
}

/// The host.
pub(crate) fn cpu() -> Agent {
    hsa().cpus().expect("agents")[0]
}

/// Memory of a device.
pub(crate) fn on_gpu(ordinal: u16, len: usize) -> Allocation {
    let pool = gpu(ordinal).pool(Grain::Coarse).expect("a pool");
    pool.allocate(len).expect("memory")
}

/// Tells the emulator something, and has its answer.
pub(crate) fn control(text: &str) -> String {
    let _ = hsa();
    support::emulated::control_of(&library(), text)
}

/// How often a function was called.
pub(crate) fn calls(function: &str) -> u64 {
    control(&format!("count {function}"))
        .parse()
        .expect("a number")
}

/// One of the emulator's numbers of what is there.
pub(crate) fn live(name: &str) -> i64 {
    let all = control("live");
    let line = all.lines().find_map(|line| line.strip_prefix(name));
    let number = line.expect("a line of that name").trim();
    number.parse().expect("a number")
}

/// Host memory of a test, locked for all devices. The value is dropped before the bytes.
pub(crate) fn lock(bytes: &mut [u8]) -> Result<LockedMemory> {
    let start = NonNull::new(bytes.as_mut_ptr()).expect("no null");
    // SAFETY: the callers keep the bytes for longer than the result.
    unsafe { hsa().lock(start, bytes.len(), &[]) }
}

/// An end of a copy.
pub(crate) fn end(address: u64, agent: Agent) -> CopyEnd {
    CopyEnd { address, agent }
}

/// Waits until a signal is below 1: its value.
pub(crate) fn wait(signal: &Signal) -> i64 {
    let value = signal.wait(1, LIMIT);
    assert!(value < 1, "the copy never ends");
    value
}

/// Copies and waits: the signal's value.
pub(crate) fn copy_now(to: CopyEnd, from: CopyEnd, len: usize) -> Result<i64> {
    let done = hsa().signal(1)?;
    // SAFETY: the callers' memory outlives the wait.
    unsafe { hsa().copy(to, from, len, &[], &done) }?;
    Ok(wait(&done))
}

/// Puts bytes into memory of a device, through locked host memory.
pub(crate) fn put(agent: Agent, address: u64, bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    let len = bytes.len();
    let locked = lock(&mut bytes).expect("locks");
    let from = end(locked.agent_address(), agent);
    assert_eq!(copy_now(end(address, agent), from, len).expect("copies"), 0);
}

/// What is in memory of a device.
pub(crate) fn get(agent: Agent, address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0_u8; len];
    let locked = lock(&mut bytes).expect("locks");
    let to = end(locked.agent_address(), agent);
    assert_eq!(copy_now(to, end(address, agent), len).expect("copies"), 0);
    drop(locked);
    bytes
}
