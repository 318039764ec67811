//! `gaudi_copy` on the emulated libhl-thunk: its memory, its copies by every verb, what goes wrong, and what it costs.
//!
//! Each test has a library of its own, with cards that nobody else sees.

#[path = "../support/mod.rs"]
mod support;

#[macro_use]
#[path = "../api/scenarios.rs"]
mod scenarios;

#[allow(dead_code)]
#[path = "../api/fixture.rs"]
mod fixture;

mod copies;
mod costs;
mod discovery;
mod engine;
mod faults;
mod foreign;
mod gdr;
mod ipc;
mod lost;
mod machine;
mod mapping;
mod memory;
mod owning;
mod processes;
mod stranger;
mod synapse;
mod verbs;
