//! `wharf perf`: how fast it is, under the names that `ucx_perftest` has for its tests.
//!
//! Comes in: the command line (`args`), and batch files of such lines. Goes out: a table for people, CSV or JSON (`report`), and a plot (`plot`).
//! Between: a point is one test of one size over one transport (`spec`). `client` measures it against a peer process, which `server` is; the two
//! agree over a control connection (`control`) and measure over connections of their own, an end of which is a `side`: `messages`, `one_sided` and
//! `wake` hold what the two ends do, `laps` the clock, `memory` the bytes. `floor` is what the machine allows, `conditions` what else
//! it did meanwhile. Tests: `tests/tools/perf.rs`.
//!
//! Latency is half a round trip where there is one; MB are 2^20 bytes, as in `ucx_perftest`.

mod args;
mod client;
mod conditions;
mod control;
mod floor;
mod laps;
mod memory;
mod messages;
mod one_sided;
mod plot;
mod report;
mod server;
mod side;
mod spec;
mod wake;

use crate::Failure;

pub(crate) use args::Args;

/// What everything here returns.
type Outcome<T> = Result<T, Failure>;

/// Measures, or listens for those who do.
pub(crate) fn run(args: &Args) -> Outcome<()> {
    match &args.listen {
        Some(address) => server::run(address, args.child, args.peer_cpu()?),
        None => client::run(args),
    }
}
