//! How a process was asked to behave: the environment variables that there are, and what is in force.
//!
//! A value set on the builder beats `WHARF_*`, which beats UCX's variable of the same meaning, which beats the default. An empty variable counts
//! as not set. [`VARIABLES`] has all of them. A `WHARF_` variable that is not among them is a misspelling: it is told by a `tracing` warning (target
//! `wharf::config`), with the nearest name, once; those that Kubernetes sets for a service called `wharf` (`WHARF_SERVICE_HOST`, `WHARF_PORT_7000_TCP_ADDR`, …)
//! are left alone. What is legal in a variable of UCX's never fails a context: [what is not here is left out](crate::guide::coming_from_ucx#environment), with a warning. What is in force, and where it came from, [`Context::configuration`](crate::Context::configuration)
//! tells, and `wharf info --config`.
//!
//! ```
//! # fn main() -> wharf::Result<()> {
//! use wharf::{Context, config::Source};
//!
//! let context = Context::builder().transports("shm,tcp")?.build()?;
//! let set = context.configuration().into_iter().filter(|entry| entry.source != Source::Default);
//! for entry in set {
//!     println!("{} = {:?}, from: {}", entry.variable.name, entry.value, entry.source);
//! }
//! # Ok(())
//! # }
//! ```

// Comes in: what the builder was given, and the environment. Goes out: `Config`, in which every value is possible and says where it came from. Reading it
// has no effect; what the system can really do is found out by `context`. Uses `error` and the names in `transport`.
// Tests: beside each file, with an environment made up by the test.

mod devices;
mod environment;
mod in_force;
mod limits;
mod memory;
mod nearest;
mod options;
mod progress;
#[cfg(feature = "verbs")]
mod rdma;
#[cfg(not(feature = "verbs"))]
#[path = "no_rdma.rs"]
mod rdma;
mod setting;
mod table;
#[cfg(all(test, feature = "verbs"))]
mod tests;
mod told;
mod transports;
mod unknown;
mod value;
mod variables;

#[cfg(feature = "verbs")]
pub use crate::transport::verbs::RelaxedOrdering;
#[cfg(feature = "verbs")]
pub(crate) use devices::rdma_devices;
pub(crate) use devices::{NetDevices, interface_addresses, system_interfaces};
pub(crate) use environment::{Environment, Names};
pub(crate) use in_force::Config;
pub use in_force::Entry;
pub use limits::{Limits, Quota};
pub(crate) use options::Overrides;
pub use progress::Progress;
pub(crate) use rdma::RcOverrides;
#[cfg(feature = "verbs")]
pub(crate) use rdma::mtu as path_mtu;
pub use setting::Source;
pub(crate) use setting::invalid;
pub(crate) use transports::TransportSet;
pub use unknown::UnknownVariable;

pub use value::RendezvousScheme;
pub(crate) use value::RendezvousThreshold;
pub use variables::{VARIABLES, Variable};
