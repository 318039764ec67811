//! Tuning: which knob for which symptom.
//!
//! First ask what is done: [`Endpoint::transports`](crate::Endpoint::transports), [`Endpoint::explain`](crate::Endpoint::explain) for one operation and length,
//! [`Worker::metrics`](crate::Worker::metrics) for what happened, `wharf perf` for what the machine can do. A release build matters more than any knob. All variables are in one table, [`VARIABLES`](crate::config::VARIABLES);
//! `wharf info -c` prints them with what is in force and where it came from.
//!
//! | symptom | look at | turn |
//! |---|---|---|
//! | latency of 10 µs and more where 1 µs is expected | `parked`, `wakes`: both ends sleep on each message | [`Progress::Busy`](crate::Progress::Busy) on a core of one's own; [`Progress::Spin`](crate::Progress::Spin) of 20 µs and more. A window below the peer's wake-up is worse than none |
//! | one core at 100 % | `found_spinning` | [`Progress::EventDriven`](crate::Progress::EventDriven), or [`Thread`](crate::Progress::Thread) for a runtime that must never be held up |
//! | other tasks of the runtime wait | | `Progress::Thread`, or a runtime of its own for the worker |
//! | long messages between processes at half the speed of memory | `explain` says "fragments over shm"; `mapped` and `cma` stay 0 | the rights for `cma` ([`containers`](super::containers)); buffers by [`Context::allocate`](crate::Context::allocate), sent whole, each used more than once |
//! | first use of a buffer slow, then fast | `registration_caches`: misses | use buffers again; [`BufferPool`](crate::memory::BufferPool); `WHARF_RCACHE_MAX_REGIONS`, `WHARF_RCACHE_MAX_SIZE` where `evictions` grow |
//! | every use slow | `uncached` grows | a [monitor](crate::memory::MonitorKind): the rights for `userfaultfd`, or memory that wharf owns |
//! | `WouldBlock` from `post` | | await [`ready`](crate::Endpoint::ready), or await the operation; `WHARF_OPS_WINDOW` |
//! | a short message behind a long one | | [`Priority`](crate::Priority); a long one is cut, so the wait is one fragment at most |
//! | memory grows with the number of peers; `Exhausted` | [`held`](crate::WorkerMetrics::held): what nobody has received or accepted; [`refused`](crate::WorkerMetrics::refused): which limit is met | receive it; [`Limits`](crate::config::Limits) for each connection, each source and the worker |
//! | active messages stall | the receiver is slow: credits | [`ActiveMessages::capacity`](crate::ActiveMessages::capacity), more tasks at the receiver |
//! | device transfers slow | `explain` says "staged"; [`staged`](crate::WorkerMetrics::staged) grows | [`forbid_staging`](crate::ContextBuilder::forbid_staging) finds where; peers on one host open each other's memory (`cuda_ipc`) |
//! | tcp slower than the network | one connection is one flow | several endpoints; `WHARF_NET_DEVICES` for the right interface |
//! | connects take long | `connect_time / connects` | the name service: connect to an address; `WHARF_CONNECT_TIMEOUT` bounds it |
//!
//! # Thresholds
//!
//! What is short goes at once (*eager*), what is long is announced and fetched (*rendezvous*). The limits are fixed when an endpoint is made, from what its
//! link can do; the target `wharf::protocol` prints them. [`rendezvous_threshold`](crate::ContextBuilder::rendezvous_threshold) or
//! `WHARF_RNDV_THRESH=intra:SIZE,inter:SIZE` moves the limit: down, where receivers often come late and long messages would fill the window of 1 MiB that an
//! endpoint has for tagged messages that nobody asked for; up, where a round trip costs more than a copy. `inf` never announces what fits. The last 32 KiB of the window are for messages of up to
//! 1 KiB: they leave at once while long ones wait to be received. A tagged message that is short and finds no room is announced; an active one never is, but waits: those of
//! each id have 512 KiB of their own that may be under way or untaken.
//!
//! On one host an announced message of 16 KiB to 64 MiB comes in one copy out of the sender's memory, or in fragments that both ends
//! copy: which is faster depends on the machine, so each connection measures both, for each power of two of lengths, and takes the
//! better one. It begins to try the other way after some hundred messages. `explain` prints what the receiver has measured, and
//! `WHARF_RNDV_SCHEME=get_zcopy` or `am` chooses.
//!
//! A tagged message of 32 KiB or more that could leave at once goes through memory that both ends map, and is copied twice, or is *lent*: it stays where it is, and whichever end
//! has time copies it once. Which is faster depends on the machine, too, and the sender measures it in the same way. A lent message takes its share of the window
//! as one that has left, and its send waits for the peer's worker, not for a receive: what none takes for a while, or what is claimed, the worker copies. Nothing is lent where
//! configuration says the threshold or the scheme, for a synchronous send, or where the kernel does not let the processes at each other's memory.
//!
//! Between network devices the receiver reads an announced message out of the sender's memory. With `WHARF_RNDV_SCHEME=put_zcopy` at the receiver the sender
//! writes it instead; the receiver clears its buffer first, at the speed of memory, because it cannot tell afterwards what was written.
//!
//! # The two questions of a spinning worker
//!
//! [`Progress::Adaptive`](crate::Progress::Adaptive) measures its waits and looks for what comes while their mean is below 20 µs, over sockets 40
//! ([`mean_wait`](crate::WorkerMetrics::mean_wait)): a future for as long as that has had success of late, and then, parked, leaves it to the worker's own
//! task, between the turns of others. Otherwise it sleeps, but for a millisecond in each 33 by the clock, in which it looks for up
//! to 80 µs: two peers that sleep for each other's messages find out that they need not.
//! So a request and its answer over shared memory never sleep, and a server that waits for the next request sleeps at once. `found_spinning` against `parked`
//! says which of the two a worker lives in.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> wharf::Result<()> {
//! use wharf::{Context, Progress, Tag, Worker};
//!
//! let context = Context::builder().progress(Progress::EventDriven).build()?;
//! let worker = Worker::new(&context)?;
//! let endpoint = worker.connect(&worker.address()?).await?;
//! endpoint.tag_send(Tag(1), vec![0; 100]).await?;
//! worker.tag_recv(Tag(1), vec![0; 100]).await?;
//!
//! let done = worker.metrics();
//! assert_eq!(done.found_spinning, 0);
//! for one in done.transports.iter().filter(|one| one.sent.count > 0) {
//!     println!("{}: {} messages, {} bytes out", one.transport, one.sent.count, one.sent.bytes);
//! }
//! # assert!(done.transports.iter().any(|one| one.sent.bytes >= 100 && one.received.bytes >= 100), "{done:?}");
//! # Ok(()) }
//! ```
