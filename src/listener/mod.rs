//! Connections that peers ask for.
//!
//! Comes in: a listening place of the worker. Goes out: [`Incoming`], to be accepted on any worker or rejected; or, of all that come, the byte streams that they
//! open ([`StreamListener`]). Uses `worker`, `endpoint`.
//!
//! | file | holds |
//! |---|---|
//! | `requests` | [`Listener`]: connections, one by one |
//! | `streams` | [`StreamListener`]: the byte streams of all peers |
//! | `axum`, `tonic` | what servers need to take these |
//!
//! Tests: `tests/api/`, `tests/process/`, `tests/rc_faults/`, `tests/services/`.

#[cfg(feature = "axum")]
mod axum;
mod requests;
mod streams;
#[cfg(feature = "tonic")]
mod tonic;

pub use requests::{Incoming, Listener};
pub use streams::{StreamAddr, StreamListener};
