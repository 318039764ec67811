//! `rocm_copy` and `rocm_ipc` on the emulated HSA runtime, by the real loader and wharf's public interface: memory domain, engine and sharing, driven by hand.
//!
//! The program's own use of the runtime goes by the functions that the runtime exports (`program`), so that it shares nothing with the library but the
//! runtime. Whatever sets the runtime's state runs in a process of its own.

mod error {
    pub(crate) use wharf::{Error, ErrorKind, Result};
}
#[path = "../driver/alone.rs"]
mod alone;
#[path = "../support/bench.rs"]
mod bench;
#[path = "../support/copies.rs"]
mod copies;
#[path = "../support/foreign.rs"]
mod foreign_memory;
#[path = "../support/lost.rs"]
mod given_up;
#[path = "../support/faults.rs"]
mod struck;
#[path = "../support/mod.rs"]
mod support;
#[path = "../cuda_ipc/sys.rs"]
mod sys;
mod types {
    pub(crate) use wharf::Identity;
}

mod bar;
mod domain;
#[path = "../driver/fake.rs"]
mod fake;
mod faults;
mod fixture;
mod foreign;
mod held;
mod hip;
mod ipc;
mod lost;
mod old;
mod order;
mod pageable;
mod program;
mod refused;
mod verbs;
mod wake;
