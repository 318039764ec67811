//! The emulated driver, used as a stranger would: by the loader, by exported names, from several processes.
//!
//! Cargo builds a library of this kind for the packages that depend on it, not for its own tests: so these stand here.
//! Tests of one process share one driver. Each works on a device of its own, so that holds and faults do not meet.

pub(crate) mod api;
mod control;
mod copies;
mod gdr;
mod memory;
mod order;
mod processes;
mod second;
mod state;
