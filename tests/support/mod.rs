//! What tests share: a watchdog for every wait, a way to wait for what tells nobody, a second process, a registrar without hardware, a monitor that sees what it is told, and the log.
//!
//! Used by `mod support;` in `tests/x.rs`, and by `#[path = "../support/mod.rs"] mod support;` in `tests/x/main.rs`.

// No test program uses all of it.
#![allow(dead_code, unused_imports, unused_macros)]

pub(crate) mod accelerator;
pub(crate) mod bytes;
pub(crate) mod dlpack;
pub(crate) mod emulated;
mod logs;
mod monitor;
pub(crate) mod moved;
mod owner;
mod place;
mod process;
mod registrar;
pub(crate) mod seccomp;
pub(crate) mod table;
mod threads;
mod until;
mod watchdog;

pub(crate) use bytes::{all_are, bytes, pattern};
pub(crate) use logs::Logs;
pub(crate) use monitor::FakeMonitor;
pub(crate) use owner::Owner;
pub(crate) use place::{own_place, own_port};
pub(crate) use process::{
    Child, Parent, again, child, end_of, is_alone, is_child, listens, passes, this_test,
};
pub(crate) use registrar::{FakeRegistrar, Key};
pub(crate) use threads::{are_all, idle, other_threads, side_by_side, threads};
pub(crate) use until::{Looks, at_rest, block_at_rest, block_until, until};
pub(crate) use watchdog::{
    LIMIT, block_on, on_a_runtime, on_each_runtime, on_threads, patient_watchdog, watchdog,
};

/// How many file descriptors this process has open. Other tests of the program open some as well: compare in a child.
pub(crate) fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .expect("a mounted /proc")
        .count()
}
