//! The worker: the one room with two doors. It drives `protocol` (what messages mean) and `transport` (how they travel).
//!
//! Comes in: operations of handles, messages of links. Goes out: outcomes and wakers to handles, messages to links.
//! Uses `context`, `config`, `protocol`, `transport`, `memory`, `sys`. Knows nothing of what the user's handles look like.
//!
//! | file | holds |
//! |---|---|
//! | `shared` | the lock, and how a future waits on the engine |
//! | `door` | where operations enter: fork, shut-down, begin, budget |
//! | `engine` | passes, arming, the worker's poll |
//! | `core` | connections, operations, matching: the state that messages act on |
//! | `operations` | the table of operations and what each owns |
//! | `peer` | one connection |
//! | `queue`, `pressure` | what waits for room on a link and in which order; who waits for a place; memory let go of under the lock |
//! | `windows` | what peers get back of their windows, and when |
//! | `held` | what is held for peers, and by which account |
//! | `direct`, `receive` | a receive that is being polled; one that was posted |
//! | `deliver`, `send`, `copy`, `rma` | what comes in, what goes out, copies without a stop, one-sided access |
//! | `stream` | byte streams |
//! | `am`, `inbox` | active messages: what goes out and its credits; what comes in and waits |
//! | `atomic`, `signal` | atomic operations, signals to who waits |
//! | `fence`, `epochs` | waiting for what was begun before; what is left of it, counted |
//! | `layout`, `blocks` | puts and gets of many blocks: the initiator's messages, the owner's side |
//! | `list` | messages of many pieces |
//! | `spread` | direct copies between many pieces and many blocks |
//! | `device` | device memory: engines that copy, transfers that stop in pinned host memory |
//! | `explain` | how an operation goes, for people |
//! | `metrics` | what was done, counted |
//! | `close` | how connections end |
//! | `reactor`, `spin`, `turn` | who drives when no future does; how long a future looks before it sleeps; when the runtime has its turn |
//! | `watch` | the fd for loops that are not Tokio's, and arming |
//! | `connect` | dialling, listening, the handshake, lanes |
//!
//! Tests: `tests/api/`, `tests/process/`, `tests/cancel/`.

pub(crate) mod am;
pub(crate) mod atomic;
pub(crate) mod blocks;
#[cfg(test)]
mod charged;
mod close;
pub(crate) mod connect;
pub(crate) mod copy;
pub(crate) mod core;
mod deliver;
pub(crate) mod device;
pub(crate) mod direct;
pub(crate) mod door;
pub(crate) mod engine;
mod epochs;
mod explain;
mod fence;
#[cfg(test)]
mod frames;
mod handle;
mod held;
pub(crate) mod inbox;
#[cfg(test)]
mod incomplete;
pub(crate) mod layout;
mod list;
mod metrics;
mod one_sided;
pub(crate) mod operations;
pub(crate) mod peer;
mod pressure;
mod queue;
mod reactor;
pub(crate) mod receive;
pub(crate) mod rma;
pub(crate) mod send;
pub(crate) mod shared;
pub(crate) mod signal;
pub(crate) mod spin;
pub(crate) mod spread;
pub(crate) mod stream;
pub(crate) mod turn;
pub(crate) mod watch;
pub(crate) mod ways;
mod windows;

pub use explain::Explanation;
pub(crate) use handle::Handle;
pub use metrics::{Held, LaneMetrics, RefusalCounts, Refusals, Traffic, WorkerMetrics};
