//! Memory: buffers that are fast, registrations that are kept, devices, pipelines with streams.
//!
//! # Which buffer
//!
//! | buffer | costs |
//! |---|---|
//! | `Vec<u8>`, `Bytes`, `&'static [u8]` | nothing to make; between processes long ones go by `cma`, or by two copies |
//! | [`Context::allocate`](crate::Context::allocate) | a mapping; exposed, peers on this host that have the descriptor map it too, so that put and get are one copy; so are long messages of whole buffers ([`security`](super::security) says what a peer sees of them) |
//! | [`BufferPool`](crate::memory::BufferPool) | registered once, leased many times |
//! | [`Context::allocate_on`](crate::Context::allocate_on) | memory of a device |
//! | [`Buffer::foreign`](crate::Buffer::foreign), [`BufferMut::foreign`](crate::BufferMut::foreign) | memory that the program has, of a device or the host: whose it is, is looked up by its address |
//!
//! Make them once and use them again: an operation gives its buffer back, [`Buffer::try_into_mut`](crate::Buffer::try_into_mut) turns a sent one into a
//! unique one again.
//!
//! # The registration cache
//!
//! Network devices and accelerators want memory registered: a slow call for each range. A [`RegistrationCache`](crate::memory::RegistrationCache) keeps
//! registrations, and forgets them when the memory goes away, whoever unmaps it, as long as a [monitor](crate::memory::MemoryMonitor) sees that.
//! wharf's own transports have theirs; this is one of your own, before a registrar that locks pages.
//!
//! ```
//! use wharf::{Access, Context, memory::{AddressRange, MlockRegistrar}};
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> wharf::Result<()> {
//!     let context = Context::builder().build()?;
//!     let cache = context.registration_cache(MlockRegistrar::new())?;
//!     let memory = context.allocate(4096).await?;
//!     let range = AddressRange::of(&memory);
//!     for _ in 0..10 {
//!         // Memory that wharf owns is kept whatever the monitor sees.
//!         let registration = cache.get_owned(range, range, Access::READ).await?;
//!         drop(registration); // used; it stays registered
//!     }
//!     let did = cache.statistics();
//!     assert_eq!((did.registrations, did.hits), (1, 9));
//!     cache.invalidate(range); // before the memory is freed
//!     # assert!(context.metrics().registration_caches.iter().any(|cache| cache.registrar == "mlock"));
//!     Ok(())
//! }
//! ```
//!
//! `examples/registration_cache.rs` shows hits, merges, evictions and a buffer that is freed and allocated again, on a device that really pins pages.
//!
//! # Devices
//!
//! What your program allocated on a device, by `cudaMalloc`, by `hipMalloc` or in a library that it uses, is taken as it is, and nobody is told what it is: the
//! context finds it by its address. The owner that goes with it is dropped when wharf is done with the memory, whatever becomes of futures:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use wharf::{Buffer, BufferMut, Endpoint, Tag, Worker};
//!
//! /// Memory of a device, by whatever your program uses for it. Freed when dropped.
//! struct DeviceVec {
//!     address: u64,
//!     bytes: usize,
//! }
//!
//! async fn exchange(worker: &Worker, endpoint: &Endpoint, weights: Arc<DeviceVec>, room: DeviceVec) -> wharf::Result<()> {
//!     let context = worker.context();
//!     let (address, bytes) = (weights.address, weights.bytes);
//!     // SAFETY: nobody changes the weights while there are owners of them, and their kernels are done.
//!     let weights = unsafe { Buffer::foreign(context, address, bytes, weights) }?;
//!     endpoint.tag_send(Tag(1), weights).await?;
//!
//!     let (address, bytes) = (room.address, room.bytes);
//!     // SAFETY: this is all that there is of it from now on.
//!     let room = unsafe { BufferMut::foreign(context, address, bytes, room) }?;
//!     let received = worker.tag_recv(Tag(2), room).await?;
//!     println!("{} bytes in {} memory", received.len, received.buffer.memory_type());
//!     Ok(())
//! }
//! ```
//!
//! `cargo run --example host_to_device -- --memory program` allocates by CUDA's, HSA's or Synapse's own calls. Where no driver tells whose an address is, the program
//! says it once: [`Context::notify_allocated`](crate::Context::notify_allocated).
//!
//! Tensors of PyTorch, CuPy, NumPy or JAX come by [DLPack](crate::memory::DlpackTensor), or by
//! [what they say of themselves](crate::memory::ArrayInterface); `examples/python_tensors` moves them from Python.
//!
//! wharf allocates on devices, too. Memory of a device is a [`BufferMut`](crate::BufferMut) like any other, without a slice view. Where no path reaches both ends, it stops in pinned
//! host memory, in a pipeline of fragments; [`Endpoint::explain`](crate::Endpoint::explain) and
//! [`Worker::explain_copy`](crate::Worker::explain_copy) say so beforehand, [`staged`](crate::WorkerMetrics::staged) counts it, and
//! [`forbid_staging`](crate::ContextBuilder::forbid_staging) makes it an error.
//!
//! ```
//! use wharf::{Context, ErrorKind, MemoryType, Operation, Tag, Worker};
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> wharf::Result<()> {
//!     let context = Context::builder().build()?;
//!     let worker = Worker::new(&context)?;
//!     let endpoint = worker.connect(&worker.address()?).await?;
//!
//!     let device = MemoryType::Cuda(0);
//!     let (target, place) = match context.allocate_on(device, 1 << 20).await {
//!         Ok(memory) => (memory, device),
//!         // No device or no driver: the error names the libraries that were tried and what the loader said.
//!         Err(error) if error.kind() == ErrorKind::Unsupported => {
//!             println!("{error}");
//!             (context.allocate(1 << 20).await?.into(), MemoryType::Host)
//!         }
//!         Err(error) => return Err(error),
//!     };
//!     println!("{}", endpoint.explain(Operation::TagSend, MemoryType::Host, place, 1 << 20));
//!
//!     // Receive into it, then copy back to look at it.
//!     let receive = worker.tag_recv(Tag(1), target).post();
//!     endpoint.tag_send(Tag(1), vec![9; 1 << 20]).await?;
//!     let got = receive.await?;
//!     let back = worker.copy(got.buffer.freeze(), vec![0; 1 << 20]).await?;
//!     assert!(back.iter().all(|byte| *byte == 9));
//!     Ok(())
//! }
//! ```
//!
//! # A pipeline with streams
//!
//! A program that queues kernels in a stream need not wait for them: a copy comes after what is in the stream ([`after`](crate::CopyBuffer::after)), and
//! the stream goes on behind the copy ([`then_on`](crate::CopyBuffer::then_on)). Here a chunk is received while the kernel works on the one before; with
//! two buffers at each end the copy overlaps as well.
//!
//! ```no_run
//! # fn kernel(_chunk: &wharf::BufferMut) {}
//! # async fn run(worker: &wharf::Worker, stream: wharf::transport::cuda::CudaStream) -> wharf::Result<()> {
//! use wharf::{MemoryType, Tag};
//! let context = worker.context();
//! let mut host = wharf::BufferMut::from(context.allocate(4 << 20).await?);
//! let mut device = context.allocate_on(MemoryType::Cuda(0), 4 << 20).await?;
//! for chunk in 0..100 {
//!     let got = worker.tag_recv(Tag(chunk), host).await?;
//!     // The copy begins when the stream is done with what was in `device`, and the stream goes on behind it.
//!     let source = got.buffer.freeze();
//!     let copy = worker.copy(source.clone(), device).after(stream).then_on(stream).queued().await?;
//!     device = copy.await?;
//!     kernel(&device); // queued: it runs while the next chunk arrives
//!     // The copy is over, so the buffer is ours alone again.
//!     host = source.try_into_mut().expect("nobody else has it");
//! }
//! worker.reached(stream).await?; // before anything else reads what the kernels wrote
//! # drop((host, device));
//! # Ok(())
//! # }
//! ```
//!
//! Straight into device memory of a peer there is no stop at all: [`Region`](crate::Region)s may be on a device, and a
//! [`DeviceChannel`](crate::channel::DeviceChannel) lets kernels of wharf's own put and signal from within your stream. Kernels of yours ask a proxy for
//! transfers over any transport by a [`DevicePort`](crate::channel::DevicePort), whose PTX functions they call.
//! [`GpuBuffer`](crate::channel::GpuBuffer) is memory that can be shared as far as the device can share any.
//! `examples/host_to_device.rs`, `device_between_processes.rs` and `device_over_tcp.rs` run without a device, on an emulated one, and say so.
