//! The emulated driver, used as a stranger would: by the loader, by exported names, from several processes.
//!
//! Tests of one process share one driver. Each works on a device of its own, so that holds and faults do not meet.

mod api;
mod control;
mod copies;
mod memory;
mod order;
mod processes;
mod second;
mod state;
