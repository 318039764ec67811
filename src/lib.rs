//! Awaitable transfers for Tokio, in pure Rust: tagged and active messages and one-sided access between the memories of one program, of two processes
//! on a host, and of two hosts, over the fastest path that both ends have.
//!
//! ```
//! # async fn run() -> wharf::Result<()> {
//! use wharf::{Access, Context, Mask, Tag, Worker};
//!
//! // Two workers of this process; two processes, or two hosts, look the same.
//! let context = Context::builder().transports("shm,cma,tcp")?.build()?;
//! let (here, there) = (Worker::new(&context)?, Worker::new(&context)?);
//! let listener = there.listen("127.0.0.1:0").await?;
//! let address = listener.local_addr();
//! let accepting = async { listener.accept().await?.accept().await };
//! let (to_there, _to_here) = tokio::try_join!(here.connect(address), accepting)?;
//!
//! // A message: the send owns what it sends, the receive gives its buffer back.
//! to_there.tag_send(Tag(7), "hello").await?;
//! let got = there.tag_recv(Tag(7), vec![0; 64]).await?;
//! assert_eq!(&got.buffer[..got.len], b"hello");
//!
//! // One-sided: memory exposed there, written and read from here.
//! let region = context.expose(context.allocate(4096).await?, Access::READ | Access::WRITE).await?;
//! let remote = to_there.import(&region.descriptor()?)?;
//! to_there.put(vec![1; 4096], remote.clone()).await?; // visible there now
//! let back = to_there.get(remote.slice(..8), vec![0; 8]).await?;
//! assert_eq!(back, [1; 8]);
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
//! ```
//!
//! # The map
//!
//! | type | is | in UCX |
//! |---|---|---|
//! | [`Context`] | what this process can reach, how it was asked to behave | `ucp_context_h` |
//! | [`config`], [`Report`] | every environment variable, what is in force, what this machine has | `ucs_config_*`, `ucx_info` |
//! | [`Worker`] | a progress engine with its connections, on a Tokio runtime | `ucp_worker_h` |
//! | [`Listener`], [`Incoming`] | where peers connect; accepted on any worker, or rejected | `ucp_listener_h` |
//! | [`Endpoint`] | one connection | `ucp_ep_h` |
//! | [`Buffer`], [`BufferMut`], [`HostBufferMut`] | what operations own while they are under way | |
//! | [`Region`], [`Descriptor`], [`RemoteRegion`] | exposed memory: here, on the way, there | `ucp_mem_h`, packed and unpacked `ucp_rkey_h` |
//! | [`ByteStream`] | a stream of bytes, like a `TcpStream`; many on one endpoint | `ucp_stream_*` |
//! | [`StreamListener`] | the byte streams of all peers, like a `TcpListener`: for axum, tonic, hyper | |
//! | [`AmSend`], [`AmSink`], [`AmInbox`], [`AmArrival`], [`ActiveMessage`] | active messages: sent, received, answered | `ucp_am_*` |
//! | [`Counter`] | a word that peers raise by signals and tasks wait for | |
//! | [`TagSend`], [`TagRecv`], [`Put`], [`Get`], [`Atomic`], [`Flush`], [`Fence`] | operations: futures that do nothing before they are awaited or posted | `ucp_*_nbx` |
//! | [`BufferList`], [`BufferListMut`] | several buffers as one message or one run of bytes | `UCP_DATATYPE_IOV` |
//! | [`RemoteLayout`], [`Block`] | many blocks of a [`RemoteRegion`], strided or listed, in one put or get | |
//! | [`CopyBuffer`], [`Queued`], [`Reached`] | a copy between any two memories of this process, in order with the program's own streams | |
//! | [`Op`], [`OpProgress`] | an operation that was posted, and how far it is | a request |
//! | [`channel`] | groups of processes: bootstrap, communicator and what is made through them | |
//! | [`transport`] | the contract of a path, for those who drive one by hand or bring their own | UCT |
//!
//! # Cancel safety
//!
//! An operation under way owns all that it touches: its buffers, the registration, the connection. The future is only a key to it. So
//! dropping or forgetting a future, at any await point, never leaves a transfer with memory that somebody else uses. What else dropping does:
//!
//! | dropped | before its first poll | after it |
//! |---|---|---|
//! | [`TagSend`], [`Put`], [`Atomic`] | nothing was sent | it still happens; [`Endpoint::flush`] waits for it |
//! | [`TagRecv`], [`TagRecvFrom`], [`TagRecvBytes`], [`TagMatched`] | nothing | cancel safe: the receive is withdrawn; a message that it had matched goes back to its place |
//! | [`AmSend`], [`AmSendCopy`] | nothing was sent | it still happens; what is refused then, [`Endpoint::flush`] tells |
//! | [`AmRecv`] | nothing | cancel safe |
//! | [`ActiveMessage`], [`AmReceive`] | an announced message is rejected | the payload is fetched into the buffer that it owns, which is freed then |
//! | [`Get`], [`CopyBuffer`], [`Queued`] | nothing | it runs to its end into the buffer that it owns, which is freed then |
//! | [`Matched`] | | the message goes back to its place |
//! | [`WriteBuffer`] | nothing was written | all of it still is |
//! | [`Flush`], [`FlushAll`], [`Fence`], [`Wait`], [`Closed`], [`OpenStream`], [`AcceptStream`], [`ReadChunk`], [`Reached`] | nothing | cancel safe |
//! | [`Op`] | | as the operation that it was; [`Op::cancel`] ends it and says what happened |
//! | `connect`, `accept` | nothing | the half-made connection is given up at both ends |
//!
//! # Order and completion
//!
//! Tagged messages of one endpoint match, and active messages of one endpoint and id arrive, in the order in which their sends were first polled or posted. Puts, gets and atomic operations have
//! no order among themselves or against messages; [`Endpoint::fence`] and [`Endpoint::flush`] make one. A signal ([`Put::signal`]) comes
//! behind its put: whoever it wakes sees the bytes. A put resolves when its bytes are visible at the target, with
//! [`Put::local`] when its source may be reused. The bytes of one [`ByteStream`] arrive in order; streams have none among themselves or
//! against messages.
//!
//! # Device memory
//!
//! Memory of a device ([`Context::allocate_on`]) is a [`Buffer`] or [`BufferMut`] like any other, without a slice view: it is sent from and received
//! into, exposed, put and got, written to a stream, and mixed with host memory in a list. [`Worker::copy`] moves bytes between it and other memory of
//! the process. Blocks of a [`RemoteLayout`], atomic operations and signals are the host's alone.
//!
//! ```
//! # async fn run() -> wharf::Result<()> {
//! use wharf::{Context, ErrorKind, MemoryType, Worker};
//!
//! let context = Context::builder().build()?;
//! let worker = Worker::new(&context)?;
//! let memory = match context.allocate_on(MemoryType::Cuda(0), 4096).await {
//!     // No device, or no driver: the error says which, and what was tried. The rest is the same for the host's memory.
//!     Err(error) if error.kind() == ErrorKind::Unsupported => context.allocate_on(MemoryType::Host, 4096).await?,
//!     memory => memory?,
//! };
//! let there = worker.copy(vec![7; 4096], memory).await?;
//! let back = worker.copy(there.freeze(), vec![0; 4096]).await?;
//! assert_eq!(back, [7; 4096]);
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
//! ```
//!
//! An accelerator ([`transport::Accelerator`]) does the copies. Where no path reaches the memory of both ends a transfer stops in pinned fragments
//! on the way, several of them under way at once. [`Endpoint::explain`] says so; [`ContextBuilder::forbid_staging`], or that of one operation
//! ([`Put::forbid_staging`]), makes it an error. There are 32
//! fragments for each worker and device kind, of a length that the device's engine likes; transfers that find none wait for one. Whatever ends an
//! operation, its memory stays until the device has said that it is done with it: a future that fails may take that long. A device that is lost fails
//! the operations that use it with [`ErrorKind::DeviceLost`], and nothing else.
//!
//! A program's own streams know nothing of these transfers. A [copy](Worker::copy) can come after what is in a stream ([`CopyBuffer::after`]) and a
//! stream after it ([`CopyBuffer::then_on`]). Before other operations on memory that a stream writes, await [`Worker::reached`]; what came by
//! them is there when they resolve, for all that is put into a stream afterwards.
//!
//! # Runtimes
//!
//! A worker needs a Tokio runtime with its I/O and time drivers (`enable_all`), of one thread or several; without them `Worker::new`
//! fails (it finds out by a panic of Tokio's, so a program built with `panic = "abort"` ends there). Futures may be polled in any other runtime, or in none.
//! What needs timers or I/O that are not there, as a deadline or a connect, goes by the worker's runtime, which has to be driven then; that they are not there is found out in the same way. How its futures wait is [`Progress`]: by default they spin for as long as that pays and then sleep; nothing wakes up
//! while nothing happens.
//!
//! # Features
//!
//! | feature | brings | default |
//! |---|---|---|
//! | `cuda`, `rocm`, `gaudi` | device memory of NVIDIA, AMD, and Intel's Gaudi cards | yes |
//! | `verbs` | InfiniBand and RoCE | yes |
//! | `secret` | a secret that both ends of every connection must know: [`ContextBuilder::secret`] | yes |
//! | `graviola` | keys multiplied by assembler, on x86-64 and AArch64: each connection in less time | yes |
//! | `channel` | groups of processes and channels: [`channel`]; with `cuda`, device channels | yes |
//! | `tls` | TCP under TLS | no |
//! | `axum`, `tonic`, `hyper` | byte streams for their servers and clients: [`services`](guide::services) | no |
//! | `serde` | addresses, descriptors, ids and kinds for serde | no |
//! | `etcd` | groups that meet in etcd; needs `protoc` to build | no |
//! | `mem-hooks` | the memory monitor that patches libc | no |
//! | `conformance` | the suite for transports of one's own | no |
//! | `tools` | the program `wharf` | no |
//!
//! Without any of them, messages, memory and streams go over shared memory and TCP.
//!
//! # The guide
//!
//! [First steps](guide::first_steps), [memory and devices](guide::memory), [processes and groups](guide::processes), [services](guide::services); [coming from UCX](guide::coming_from_ucx),
//! [from MSCCL++](guide::coming_from_mscclpp); [TLS](guide::tls); [containers and permissions](guide::containers), [security](guide::security), [tuning](guide::tuning),
//! [troubleshooting](guide::troubleshooting), [logs, traces and counters](guide::observing).
//!
//! # What to see when it is slow
//!
//! [`Endpoint::transports`] says what is in use. A better path that failed its probe is never left silently: one `tracing` warning for each reason, of
//! a target below [`wharf`](guide::observing), says what, why, and what mends it. [`Worker::metrics`] counts what was done, [`guide::tuning`] goes from symptoms to remedies.

#![cfg_attr(docsrs, feature(doc_cfg))]
// The documentation is that of the whole: what it links to goes with its feature.
#![cfg_attr(
    not(all(
        feature = "channel",
        feature = "cuda",
        feature = "gaudi",
        feature = "rocm",
        feature = "secret",
        feature = "verbs",
        feature = "tls"
    )),
    allow(rustdoc::broken_intra_doc_links, rustdoc::private_intra_doc_links)
)]
// What several transports stand on is unused where all of those are left out. A build with all of them says what nobody uses.
#![cfg_attr(
    not(all(
        feature = "channel",
        feature = "cuda",
        feature = "gaudi",
        feature = "rocm",
        feature = "verbs"
    )),
    allow(dead_code, unused_imports, unused_macros)
)]

#[cfg(feature = "channel")]
pub mod channel;
pub mod config;
mod context;
#[cfg(any(
    feature = "cuda",
    feature = "gaudi",
    feature = "rocm",
    feature = "verbs"
))]
mod driver;
mod endpoint;
mod error;
#[cfg(all(
    any(test, fuzzing),
    feature = "channel",
    feature = "cuda",
    feature = "gaudi",
    feature = "rocm",
    feature = "verbs"
))]
#[doc(hidden)]
pub mod fuzz;
pub mod guide;
mod listener;
pub mod memory;
mod protocol;
mod sys;
mod trace;
pub mod transport;
mod types;
mod util;
mod worker;

pub use config::Progress;
pub use context::{
    Admission, Context, ContextBuilder, ContextMetrics, IncomingInfo, Report, TransportReport,
    TransportState, TypeCacheReport, Via,
};
#[cfg(feature = "hyper")]
pub use endpoint::StreamConnector;
pub use endpoint::{
    AcceptStream, ActiveMessage, ActiveMessages, AmArrival, AmBytes, AmHandler, AmInbox, AmReceive,
    AmReceived, AmRecv, AmRecvWith, AmSend, AmSendCopy, AmSink, Arm, Atomic, ByteReader,
    ByteStream, ByteWriter, BytesInPlace, ChunksInPlace, Closed, Completion, CopyBuffer, Counter,
    Destination, Endpoint, Fence, Fetched, Flush, FlushAll, Get, Matched, MessageInfo, Op,
    OpProgress, OpenStream, ProgressStream, Put, Queued, Reached, ReadChunk, Ready, Received,
    RemoteLayout, RemoteRegion, ReuniteError, SocketAddresses, TagMatched, TagRecv, TagRecvBytes,
    TagRecvFrom, TagSend, Transferred, Wait, Worker, WriteBuffer,
};
pub use error::{CloseReason, Error, ErrorKind, OpError, Operation, Result};
pub use listener::{Incoming, Listener, StreamAddr, StreamListener};
pub use memory::{
    Buffer, BufferList, BufferListMut, BufferMut, HostBufferMut, ReceiveBuffer, Region, SendBuffer,
};
pub use protocol::{Block, Blocks, Descriptor, WorkerAddress};
/// What [`Tls`] is made of, in the version that this crate takes.
#[cfg(feature = "tls")]
pub use rustls;
pub use sys::topology::NumaNode;
#[cfg(feature = "tls")]
pub use transport::tls::Tls;
pub use types::{
    Access, AmId, AtomicWord, EndpointId, Identity, LinkId, Mask, MemoryType, Mover, Party, Plan,
    Priority, Tag, When, WorkerId,
};
pub use worker::{
    Explanation, Held, RefusalCounts, Refusals, Traffic, TransportMetrics, WorkerMetrics,
};
