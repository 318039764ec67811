//! `cuda_copy` on the emulated CUDA driver, by the real loader: its memory domain and its engine, driven by hand.
//!
//! The program's own use of CUDA (streams, contexts, memory of other kinds) goes by the functions that the driver exports (`program`), so that it shares
//! nothing with the library but the driver. Whatever sets the driver's state runs in a process of its own.

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

mod budget;
mod domain;
mod faults;
mod fixture;
mod foreign;
mod gdr;
#[path = "../driver/kinds.rs"]
mod kinds;
mod lost;
mod old;
mod order;
mod pageable;
mod program;
#[allow(dead_code)]
#[path = "../cuda_hardware/raw.rs"]
mod raw;
mod refused;
mod streams;
mod wake;
