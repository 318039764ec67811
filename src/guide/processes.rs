//! Several processes: addresses, groups, channels.
//!
//! # Two processes
//!
//! One listens on `host:port`, the other [connects](crate::Worker::connect); over TCP they find out whether they share a host, and change to shared memory
//! then. Or one sends its [`WorkerAddress`](crate::WorkerAddress) by any means (a file, etcd, a message) and listens on nothing.
//!
//! ```
//! use wharf::{Context, Tag, Worker};
//!
//! /// The process that waits for others.
//! async fn server(listener: wharf::Listener, worker: Worker) -> wharf::Result<()> {
//!     let incoming = listener.accept().await?;
//!     println!("{} asks", incoming.peer_name()); // or `reject(reason)`
//!     let endpoint = incoming.accept().await?;
//!     let got = worker.tag_recv(Tag(1), vec![0; 64]).await?;
//!     assert_eq!(&got.buffer[..got.len], b"from the other process");
//!     println!("{}", endpoint.closed().await); // why the connection ended
//!     Ok(())
//! }
//!
//! /// The other one.
//! async fn client(address: &str) -> wharf::Result<()> {
//!     let worker = Worker::new(&Context::builder().build()?)?;
//!     let endpoint = worker.connect(address).await?;
//!     endpoint.tag_send(Tag(1), "from the other process").await?;
//!     endpoint.close().await // nothing is lost
//! }
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> wharf::Result<()> {
//!     // Both parts in one process, so that this runs anywhere; `examples/two_processes.rs` starts the second one.
//!     let worker = Worker::new(&Context::builder().build()?)?;
//!     let listener = worker.listen("127.0.0.1:0").await?;
//!     let address = listener.local_addr().to_string();
//!     tokio::try_join!(server(listener, worker), client(&address))?;
//!     Ok(())
//! }
//! ```
//!
//! When a process dies, `kill -9` included, every operation on its endpoints ends with an error: at once over shared memory, at a reset or after three
//! [keepalive](crate::ContextBuilder::keepalive) intervals over TCP. With a [`secret`](crate::ContextBuilder::secret) both ends prove that they know it
//! before anything else.
//!
//! With or without one, a worker is who it says: its [`WorkerId`](crate::WorkerId) is bound to a key that it makes when it is made, and each end proves to
//! the other that it holds its own. A [`WorkerAddress`](crate::WorkerAddress) leads to its own worker or to an error
//! ([`AuthenticationFailed`](crate::ErrorKind::AuthenticationFailed) where somebody only says so); at `host:port` one learns who is there
//! ([`Endpoint::peer`](crate::Endpoint::peer)).
//!
//! What connecting tells of a process (its host's boot id, namespaces, user and process id, transports, the name of its Unix socket), and to whom:
//!
//! | who | learns of the worker that listens | learns of the one that dials |
//! |---|---|---|
//! | whoever connects to it, or is dialled | its id, and whether it has a secret | whether it has a secret |
//! | with a secret: who proves that they know it | the rest | the rest |
//! | without: who proves a key of their own | the rest, the Unix socket's name where they are on its host | the rest; dialled by address, that worker alone |
//! | who only listens on the wire | its id, and whether there is a secret | whether there is a secret |
//!
//! A secret may be short: neither a recorded handshake nor one that somebody takes part in gives anything to try guesses on, so there is one guess for
//! each connection, and the listening end hears of it when it is wrong. Nothing that follows is encrypted: over TCP who can alter
//! packets on their way can alter what is sent after the handshake, and who can read them reads it.
//!
//! # Groups and channels
//!
//! A [`Bootstrap`](crate::channel::Bootstrap) is how the processes of a group find each other: from the variables of torchrun, Open MPI, PMI, Slurm and
//! Kubernetes ([`Launch::from_environment`](crate::channel::bootstrap::Launch::from_environment)), over TCP, a Unix socket, or etcd. A
//! [`Communicator`](crate::channel::Communicator) is the group with a worker each; a [`MemoryChannel`](crate::channel::MemoryChannel) puts into a peer's
//! memory and signals. A process that ends awaits [`leave`](crate::channel::Bootstrap::leave) before, so that what it sent last arrives.
//!
//! ```
//! use std::sync::Arc;
//! use futures::future::try_join_all;
//! use wharf::{Access, Context, Worker, channel::{Bootstrap, Communicator, MemoryChannel}};
//! use wharf::channel::bootstrap::MemoryBootstrap;
//!
//! /// What each rank of two runs.
//! async fn rank(bootstrap: Arc<dyn Bootstrap>) -> wharf::Result<()> {
//!     let worker = Worker::new(&Context::builder().build()?)?;
//!     let group = Communicator::new(bootstrap, &worker).await?;
//!     let peer = 1 - group.rank();
//!     let mut mine = worker.context().allocate(8192).await?;
//!     mine[..4096].fill(group.rank() as u8 + 1);
//!     let memory = group.register(mine, Access::READ | Access::WRITE).await?;
//!     let channel = MemoryChannel::connect(&group, peer, 0, &memory).await?;
//!
//!     channel.put_with_signal(4096, 0, 4096).await?; // my first half into the peer's second
//!     channel.wait().await?; // the peer has done the same
//!     let mut byte = [0];
//!     memory.read_at(8191, &mut byte)?;
//!     assert_eq!(usize::from(byte[0]), peer + 1);
//!     group.barrier().await
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // In process; several processes take `Launch::from_environment`, or `TcpBootstrap`.
//!     let ranks = MemoryBootstrap::group(2)?.into_iter();
//!     let tasks = ranks.map(|bootstrap| tokio::spawn(rank(Arc::new(bootstrap))));
//!     try_join_all(tasks).await?.into_iter().collect::<wharf::Result<()>>()?;
//!     Ok(())
//! }
//! ```
//!
//! `examples/ring_all_reduce.rs` sums a vector over N processes; `examples/perf_memory_channel.rs` times channels.
//!
//! # On top
//!
//! [Services](super::services) of axum, tonic and hyper run on byte streams. An [`AmSink`](crate::AmSink) is a `Sink`, and its readiness is what
//! `tower::Service::poll_ready` asks for: the peer's credits admit a request before it is made (`examples/tower_rpc.rs`).
