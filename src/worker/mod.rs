//! The worker: the one room with two doors. It drives `protocol` (what messages mean) and `transport` (how they travel).
//!
//! Comes in: operations of handles, messages of links. Goes out: outcomes and wakers to handles, messages to links.
//! Uses `context`, `config`, `protocol`, `transport`, `memory`, `sys`. Knows nothing of what the user's handles look like.
//!
//! The machine stands on three floors, and a floor calls nothing above it: what is above is noted as an event
//! ([`ctx::Event`]), which the machine follows before the lock is let go.
//!
//! | file | holds |
//! |---|---|
//! | `ctx` | connections, the table of operations, queues, limits: what every part acts upon |
//! | `movers` | how bytes travel that are not in messages: copies, engines of devices, network devices |
//! | `verbs` | what operations mean: messages, signals, atomics, byte streams, and the windows of each |
//! | `core`, `deliver` | the machine: the verbs over the movers; what comes in |
//!
//! What these act upon is below them, in files of the same names: `copy`, `spread`, `layout`, `blocks`, `list`, `rma`, `one_sided`, `device`
//! of the movers; `am`, `inbox`, `atomic`, `signal`, `receive`, `stream`, `windows`, `lent`, `pressure`, `send` of the verbs. Below those:
//!
//! | file | holds |
//! |---|---|
//! | `operations` | the table of operations and what each owns |
//! | `peer`, `queue`, `wait_queue` | one connection; what waits for room on a link, and in which order; one class of it |
//! | `held`, `violation` | what is held for peers, and by which account; what a peer may not do |
//! | `fence`, `epochs` | waiting for what was begun before; what is left of it, counted |
//! | `ways` | which way long messages on one host take, by what was measured |
//! | `metrics`, `spin`, `turn` | counts; how long a future looks before it sleeps; when the runtime has its turn |
//!
//! Above the machine, with clocks, threads and the runtime:
//!
//! | file | holds |
//! |---|---|
//! | `shared` | the lock, and how a future waits on the engine |
//! | `aside` | deadlines, and what few posted operations have besides a place in the table |
//! | `door` | where operations enter: fork, shut-down, begin, budget |
//! | `engine` | passes, arming, the worker's poll |
//! | `direct`, `take`, `ready` | a receive that is being polled; what is taken where it lies; who waits for a place |
//! | `explain`, `observe` | how an operation goes, and what was done, for people |
//! | `errands` | what is done off the lock: opening engines and ways to device memory, registering |
//! | `close` | how connections end |
//! | `reactor`, `watch` | who drives when no future does; the fd for loops that are not Tokio's, and arming |
//! | `connect`, `handle` | dialling, listening, the handshake, lanes; a worker's beginning and end |
//!
//! Tests: `tests/api/`, `tests/process/`, `tests/cancel/`.

pub(crate) mod am;
mod arm;
pub(crate) mod aside;
pub(crate) mod atomic;
pub(crate) mod blocks;
#[cfg(test)]
mod charged;
mod close;
pub(crate) mod connect;
pub(crate) mod copy;
pub(crate) mod core;
pub(crate) mod ctx;
mod deliver;
pub(crate) mod device;
pub(crate) mod direct;
pub(crate) mod door;
pub(crate) mod drivers;
pub(crate) mod engine;
mod epochs;
mod errands;
mod explain;
mod fence;
#[cfg(test)]
mod frames;
mod handle;
mod held;
pub(crate) mod inbox;
#[cfg(test)]
mod incomplete;
#[cfg(test)]
mod inside;
pub(crate) mod layout;
mod lent;
#[cfg(test)]
mod let_go;
mod list;
mod metrics;
pub(crate) mod movers;
mod observe;
mod one_sided;
pub(crate) mod operations;
#[cfg(test)]
mod pair;
pub(crate) mod peer;
mod pressure;
mod queue;
mod reactor;
pub(crate) mod ready;
pub(crate) mod receive;
pub(crate) mod rma;
pub(crate) mod send;
pub(crate) mod shared;
pub(crate) mod signal;
mod source;
pub(crate) mod spin;
pub(crate) mod spread;
mod step;
pub(crate) mod stream;
mod take;
pub(crate) mod turn;
pub(crate) mod verbs;
mod violation;
mod wait_queue;
pub(crate) mod watch;
mod windows;

pub use explain::Explanation;
pub(crate) use handle::Handle;
pub use metrics::{Held, RefusalCounts, Refusals, Traffic, TransportMetrics, WorkerMetrics};
