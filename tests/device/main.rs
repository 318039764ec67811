//! Transfers of device memory, on a fake accelerator that copies late, out of order and in pieces: every verb, every path, and what can go wrong
//! between. How devices themselves behave is tested where their drivers are (`tests/driver`).

#[path = "../support/mod.rs"]
mod support;

#[macro_use]
#[path = "../api/scenarios.rs"]
mod scenarios;

#[allow(dead_code)]
#[path = "../api/fixture.rs"]
mod fixture;

mod across;
mod blocks;
mod common;
mod cuda;
mod explain;
mod failures;
mod killed;
mod local;
mod own;
mod plan;
mod progress;
mod verbs;
