//! What the public interface promises, on every path a connection can take.
//!
//! Each scenario is written once, by [`scenarios!`], and becomes a test for each [`Way`] that has a part in it: to oneself, over shared
//! memory, over that with a facility taken away, over TCP with and without TLS, over emulated RDMA devices; and on a runtime with several
//! threads as well. Both ends live in this process (`tests/process` has them in two).

#[path = "../support/mod.rs"]
mod support;

#[macro_use]
mod scenarios;

mod fixture;

mod admission;
mod am;
mod arm;
mod atomic;
mod checksums;
mod config;
mod connect;
mod descriptors;
mod device;
mod ends;
mod flush;
mod foreign;
mod layout;
mod lent;
mod limits;
mod list;
mod listener;
mod load;
mod loans;
mod of_peer;
mod pressure;
mod progress;
mod rma;
mod signal;
mod stranger;
mod stream;
mod stream_listener;
mod tag;
mod turns;
mod types;
mod user_code;
mod who;
mod windows;
