//! Observing: logs, spans, traces, and counters.
//!
//! # Targets
//!
//! wharf speaks [`tracing`](https://docs.rs/tracing). Warnings are for whoever runs the program; `DEBUG` grows with the number of objects (connections,
//! registrations), `TRACE` with that of operations. Without a subscriber that asks, a place costs one look at a static word.
//!
//! | target | tells of |
//! |---|---|
//! | `wharf::config` | where each value of the configuration came from |
//! | `wharf::context` | transports and devices that cannot be used |
//! | `wharf::worker` | the span `worker`, all that its reactor does; engines of devices, streams, callbacks that panicked |
//! | `wharf::wireup` | the spans `connect` and `accept`; the set-up of connections, better paths that failed |
//! | `wharf::endpoint` | the span `endpoint`, from the set-up to the end, with the peer and its transports; why a connection ended |
//! | `wharf::protocol` | the choice of protocols of an endpoint: longest inline and eager messages, direct copies |
//! | `wharf::operation` | `TRACE`: how a single operation goes, and its end |
//! | `wharf::rcache` | the span `register`; registrations made and ended |
//! | `wharf::memory` | monitors; memory that cannot be mapped or registered |
//! | `wharf::stream` | lent buffers of byte streams |
//! | `wharf::device` | accelerators, engines, device memory handed over |
//! | `wharf::cuda` | the CUDA driver |
//! | `wharf::rocm` | the HSA runtime |
//! | `wharf::gaudi` | hl-thunk, Synapse |
//! | `wharf::verbs` | RDMA devices |
//! | `wharf::by_hand` | transports that the program drives by hand: better ways that failed |
//! | `wharf::channel` | channels and semaphores |
//! | `wharf::bootstrap` | groups that come together |
//!
//! ```text
//! RUST_LOG=wharf=warn                          what is slower than it could be
//! RUST_LOG=wharf=debug                         connections, registrations, choices
//! RUST_LOG=wharf=debug,wharf::operation=trace  every operation; a message of 8 bytes then takes microseconds
//! ```
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> wharf::Result<()> {
//! use wharf::{Context, Tag, Worker};
//!
//! tracing_subscriber::fmt()
//!     .with_env_filter("wharf=debug,wharf::operation=trace")
//! #   .with_writer(std::io::sink)
//!     .init();
//! let worker = Worker::new(&Context::builder().build()?)?;
//! let endpoint = worker.connect(&worker.address()?).await?;
//! endpoint.tag_send(Tag(1), "hello").await?;
//! // TRACE wharf::operation: goes what="tag send" length=5 way="eager"
//! worker.tag_recv(Tag(1), vec![0; 8]).await?;
//! # Ok(()) }
//! ```
//!
//! # A timeline
//!
//! Spans make a timeline: `examples/trace_file.rs` writes one that `chrome://tracing` and [Perfetto](https://ui.perfetto.dev) open, by `tracing-chrome`.
//!
//! [tokio-console](https://docs.rs/tokio-console) shows tasks and their wake-ups: a worker is one task, its reactor, which is idle while futures
//! drive the worker themselves. It needs a Tokio that was built with `RUSTFLAGS="--cfg tokio_unstable"`, so `examples/tokio_console.rs` takes the
//! subscriber only then, and says so otherwise.
//!
//! # Counters
//!
//! [`Worker::metrics`](crate::Worker::metrics) is a snapshot: bytes and messages by transport, copies in mapped memory, by `cma`, by network devices and by
//! the engines of accelerators, waits that found at once, spun or slept, wake-ups, connections and the time that they took, what is held for peers and what
//! [each limit](crate::Refusals) refused.
//! [`Context::metrics`](crate::Context::metrics) has what is known of memory: questions about its owner, and each
//! [registration cache](crate::memory::registration_caches) with hits, misses, evictions and the time that registrations took.
//! They are always on: an addition under a lock that is held anyway, no clock. `examples/metrics_to_prometheus.rs` serves them in Prometheus' text format.
//!
//! The differences of two snapshots say what happened between them:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> wharf::Result<()> {
//! # use wharf::{Context, Tag, Worker};
//! # let worker = Worker::new(&Context::builder().build()?)?;
//! # let endpoint = worker.connect(&worker.address()?).await?;
//! let before = worker.metrics();
//! endpoint.tag_send(Tag(1), vec![0; 4096]).await?;
//! worker.tag_recv(Tag(1), vec![0; 4096]).await?;
//! let after = worker.metrics();
//! assert_eq!(after.parked, before.parked, "it slept for a message that was here already");
//! # Ok(()) }
//! ```
