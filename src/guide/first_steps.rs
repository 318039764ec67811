//! First steps: messages, many tasks, active messages, streams, one-sided access, signals.
//!
//! # Ping-pong
//!
//! A [`Context`](crate::Context) is what the process can reach. A [`Worker`](crate::Worker) moves the bytes, on the Tokio runtime that it is made on. An
//! [`Endpoint`](crate::Endpoint) is a connection. Tagged messages go to a *worker*: whoever receives says which tags it takes.
//!
//! ```
//! use wharf::{Context, Endpoint, Tag, Worker};
//!
//! const PING: Tag = Tag(1);
//! const PONG: Tag = Tag(2);
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> wharf::Result<()> {
//!     // Two workers of one process. In two processes each would have one of these lines.
//!     let context = Context::builder().build()?;
//!     let (here, there) = (Worker::new(&context)?, Worker::new(&context)?);
//!
//!     let listener = there.listen("127.0.0.1:0").await?;
//!     let address = listener.local_addr();
//!     let accepting = async { listener.accept().await?.accept().await };
//!     // Not `join!`, which would go on waiting for a peer where the other half has failed.
//!     let (to_there, to_here): (Endpoint, Endpoint) = tokio::try_join!(here.connect(address), accepting)?;
//!
//!     for round in 0..100_u64 {
//!         // A send owns what it sends; `to_le_bytes` is copied, a `Vec` or `Bytes` is not.
//!         let ping = to_there.tag_send_copy(PING, &round.to_le_bytes());
//!         let pong = async {
//!             // A receive owns its buffer and gives it back.
//!             let got = there.tag_recv(PING, vec![0; 8]).await?;
//!             to_here.tag_send(PONG, got.buffer).await
//!         };
//!         tokio::try_join!(ping, pong)?;
//!         let got = here.tag_recv(PONG, vec![0; 8]).await?;
//!         assert_eq!(got.buffer, round.to_le_bytes());
//!     }
//!     println!("over {:?}", to_there.transports()); // shared memory, as both are on this host
//!     Ok(())
//! }
//! ```
//!
//! # Many tasks
//!
//! All handles are cheap clones and may be used from any task. An operation that is [posted](crate::TagSend::post) is under way without a task of its
//! own: hold many, await them later. An endpoint takes a bounded number of them ([`ready`](crate::Endpoint::ready) waits for a place).
//!
//! ```
//! use futures::future::try_join_all;
//! use wharf::{Context, Tag, Worker};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let worker = Worker::new(&Context::builder().build()?)?;
//!     // An address that others reach this worker by, here itself.
//!     let endpoint = worker.connect(&worker.address()?).await?;
//!
//!     // Eight tasks, each with a tag of its own; the mask would let one receive take a range of them.
//!     let tasks = (0..8_u64).map(|tag| {
//!         let (endpoint, worker) = (endpoint.clone(), worker.clone());
//!         tokio::spawn(async move {
//!             endpoint.tag_send(Tag(tag), vec![tag as u8; 1000]).await?;
//!             let got = worker.tag_recv(Tag(tag), vec![0; 1000]).await?;
//!             Ok::<_, wharf::Error>(got.buffer[999])
//!         })
//!     });
//!     for (tag, done) in try_join_all(tasks).await?.into_iter().enumerate() {
//!         assert_eq!(usize::from(done?), tag);
//!     }
//!
//!     // Posted: a hundred receives, then a hundred sends, all under way at once.
//!     let receives: Vec<_> =
//!         (0..100).map(|_| worker.tag_recv(Tag(9), vec![0; 64]).post()).collect();
//!     for n in 0..100_u8 {
//!         endpoint.ready().await?;
//!         let _sent = endpoint.tag_send(Tag(9), vec![n; 64]).post()?; // dropping it lets it go on
//!     }
//!     for (n, receive) in receives.into_iter().enumerate() {
//!         assert_eq!(usize::from(receive.await?.buffer[0]), n); // in order
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Active messages, streams
//!
//! An active message goes to whoever opened its id; credits hold a sender back. A [`ByteStream`](crate::ByteStream) is a `TcpStream` in all but
//! name, and one endpoint has as many as you like.
//!
//! ```
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! use wharf::{AmId, Context, Worker};
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let worker = Worker::new(&Context::builder().build()?)?;
//!     let endpoint = worker.connect(&worker.address()?).await?;
//!
//!     let mut inbox = worker.active_messages(AmId(3)).capacity(64).open()?;
//!     endpoint.am_send(AmId(3), "a header", "a payload").await?;
//!     let message = inbox.recv().await.ok_or("the inbox is open")?;
//!     assert_eq!(message.header(), b"a header");
//!     assert_eq!(&message.bytes().await?[..], b"a payload");
//!
//!     let mut client = endpoint.stream().await?;
//!     let mut server = endpoint.accept_stream().await?;
//!     client.write_all(b"GET /\n").await?;
//!     let mut line = [0; 6];
//!     server.read_exact(&mut line).await?;
//!     assert_eq!(&line, b"GET /\n");
//!     Ok(())
//! }
//! ```
//!
//! # One-sided: put, get, atomics, signals
//!
//! Exposed memory is written and read by peers without its owner's help. A [`Counter`](crate::Counter) tells the owner that something came, even
//! one that sleeps.
//!
//! ```
//! use wharf::{Access, Context, Worker};
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> wharf::Result<()> {
//!     let context = Context::builder().build()?;
//!     let worker = Worker::new(&context)?;
//!     let endpoint = worker.connect(&worker.address()?).await?;
//!
//!     // The owner: exposes memory, makes a counter, and sends both descriptors by any means (`to_bytes`).
//!     let memory = context.allocate(4096).await?;
//!     let region = context.expose(memory, Access::READ | Access::WRITE).await?;
//!     let counter = worker.counter().await?;
//!
//!     // The other end: imports them.
//!     let remote = endpoint.import(&region.descriptor()?)?;
//!     let bell = endpoint.import(&counter.descriptor()?)?;
//!
//!     endpoint.put(vec![7; 100], remote.slice(8..108)).signal(&bell).await?;
//!     counter.wait(1).await?; // whoever is woken sees the bytes
//!     let mut byte = [0];
//!     region.read_at(107, &mut byte)?;
//!     assert_eq!(byte, [7]);
//!
//!     let back = endpoint.get(remote.slice(8..16), vec![0; 8]).await?;
//!     assert_eq!(back, [7; 8]);
//!
//!     assert_eq!(remote.fetch_add(0, 5_u64).await?, 0);
//!     assert_eq!(remote.compare_swap(0, 5_u64, 6).await?, 5);
//!     endpoint.flush().await?; // all of it is visible there
//!     region.unexpose().await; // the buffer comes back once nobody is inside
//!     Ok(())
//! }
//! ```
//!
//! # Runtimes
//!
//! A worker belongs to the Tokio runtime that it is made on, which needs timers and I/O (`enable_all`). A task there wakes it when something comes, and does what nobody
//! waits for: it accepts who comes by its address, closes what was dropped, answers peers.
//!
//! * **Futures may be polled anywhere**: on another runtime, by another executor, outside of all. Connecting and listening go by the runtime that is there, and by
//!   the worker's where there is none or it has no timers and I/O (of which Tokio prints a panic, once for each of its threads); deadlines too.
//! * **A runtime that nobody drives** (`current_thread`, outside of `block_on`) does none of it: connections stay as they are, and peers get no answers. A future that is polled elsewhere drives the worker for as long as it looks, and is not woken when
//!   it sleeps. It is no error, as it may be driven again. [`Progress::Thread`](crate::Progress::Thread) gives the worker a thread of its own.
//! * **A runtime that ends** (dropped, shut down) takes its workers along: connections are cut, which peers see as `ConnectionReset` ("the connection ended without a goodbye"), and all that is under way or
//!   begins later, anywhere, fails with `Closed`: "the worker's Tokio runtime has ended".
//! * **[`Worker::shutdown`](crate::Worker::shutdown)** before that says goodbye to peers.
//!
//! Next: [`memory`](super::memory). What dropping any of these futures does: [the front page](crate#cancel-safety), and `examples/cancel_safely.rs`.
