//! What operations mean: tagged and active messages, puts and gets in messages, signals, byte streams, and the windows that peers have of each.
//!
//! Comes in: operations from endpoints, messages from `deliver`. Goes out: messages to links, outcomes to the table. What they keep is in files
//! below: `am`, `inbox`, `atomic`, `signal`, `receive`, `stream`, `windows`, `pressure`, `send`.
//!
//! Tests: `tests/api/`, `tests/cancel/`, `tests/process/`, beside `stream` and `inbox` peers that break the rules.

pub(crate) mod am;
mod atomic;
mod inbox;
mod lent;
mod of_peer;
mod pressure;
mod receive;
mod rma;
mod send;
mod signal;
mod stream;
mod stream_in;
pub(in crate::worker) mod stream_lent;
mod stream_out;
mod stream_read;
mod windows;
