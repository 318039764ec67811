//! What this process can reach.
//!
//! Comes in: options from the program and the environment. Goes out: [`Context`], which holds the options and the
//! transports that work on this machine, and for each of the others the reason why it does not. Uses `config`, `memory`,
//! `transport`. Knows nothing of workers, connections or Tokio.
//! Tests: beside each file, and `tests/api/`.

mod admission;
mod builder;
mod foreign;
mod handle;
mod memory;
mod reason;
mod report;

pub use admission::{Admission, IncomingInfo, Via};
pub use builder::ContextBuilder;
pub use handle::Context;
pub use memory::ContextMetrics;
pub use report::{Report, TransportReport, TransportState, TypeCacheReport};
