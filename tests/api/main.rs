//! What the public interface promises, on every path a connection can take.
//!
//! Each scenario is written once, by [`scenarios!`], and becomes a test for each [`Way`]: to oneself, over shared memory, over
//! shared memory with a facility taken away, over TCP; and for two of them on a runtime with several threads as well. Both ends
//! live in this process (`tests/process` has them in two).

#[path = "../support/mod.rs"]
mod support;

#[macro_use]
mod scenarios;

mod fixture;

mod am;
mod atomic;
mod config;
mod connect;
mod device;
mod ends;
mod layout;
mod lent;
mod list;
mod listener;
mod load;
mod pressure;
mod rma;
mod signal;
mod stream;
mod tag;
