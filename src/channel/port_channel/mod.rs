//! Port channels: transfers that a proxy does for those who ask by triggers.
//!
//! ```text
//! producers ── triggers, 16 bytes each ──▶ ring ──▶ the proxy, a task: put, signal, flush
//! ```
//!
//! A producer hands over two words and goes on: it takes no lock of a worker's, and needs to know nothing of endpoints. The proxy sleeps when the ring
//! is empty. What a channel asks for is done in order, as far as a signal comes behind all puts of its channel before it; one proxy does one thing
//! after the other, so a peer that is slow holds up the other channels of its proxy.
//!
//! | file | is |
//! |---|---|
//! | `mod.rs` | [`ProxyService`], [`PortChannel`] |
//! | `proxy.rs` | the task |
//! | `trigger.rs` | [`Trigger`]: the 16 bytes |
//! | `device.rs` | [`DevicePort`]: a ring for kernels of a CUDA device |
//! | `ring.rs`, `handle.rs`, `port.ptx` | the ring, what a kernel needs of it, functions that use it |

#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod handle;
mod proxy;
#[cfg(feature = "cuda")]
mod ring;
#[cfg(not(feature = "cuda"))]
#[path = "no_ring.rs"]
mod ring;
mod trigger;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

#[cfg(feature = "cuda")]
use crate::transport::cuda::CudaStream;
use crate::{
    context::Context as WharfContext,
    error::{Error, ErrorKind, Operation, Result},
    util::lock::RwLock,
};

use super::{RegisteredMemory, RemoteMemory, Semaphore, SemaphoreWait};
use proxy::Shared;

#[cfg(feature = "cuda")]
pub use device::DevicePort;
#[cfg(feature = "cuda")]
pub use handle::DevicePortHandle;
pub use trigger::{MAX_MEMORIES, MAX_SEMAPHORES, Trigger, TriggerKind};

/// Slots of a proxy's ring.
const SLOTS: usize = 512;

/// A proxy with its ring, and the memories and semaphores that triggers name by number. A cheap clone; when the last clone and the last channel are
/// gone, the proxy does what is in the ring and ends.
///
/// ```no_run
/// # use wharf::channel::{RegisteredMemory, RemoteMemory, Semaphore};
/// # async fn run(semaphore: Semaphore, local: RegisteredMemory, remote: RemoteMemory) -> wharf::Result<()> {
/// use wharf::channel::ProxyService;
/// let proxy = ProxyService::new()?;
/// let channel = proxy.channel(semaphore, remote, local)?;
/// channel.put_with_signal_and_flush(0, 0, 4096).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias("startProxy", "stopProxy", "addSemaphore", "addMemory"))]
pub struct ProxyService {
    inner: Arc<Service>,
}

struct Service {
    shared: Arc<Shared>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl ProxyService {
    /// Starts a proxy on the current Tokio runtime.
    ///
    /// # Errors
    /// `InvalidArgument` outside a runtime. A child made by `fork` is refused by every call of a proxy of its parent's, and its channels': `Forked`.
    pub fn new() -> Result<Self> {
        let runtime = tokio::runtime::Handle::try_current();
        let runtime = runtime.map_err(|_| refused("a proxy needs a Tokio runtime"))?;
        let shared = Shared::new(SLOTS);
        runtime.spawn(proxy::run(Arc::clone(&shared)));
        Ok(Self {
            inner: Arc::new(Service { shared }),
        })
    }

    /// Gives memory of this rank a number.
    ///
    /// # Errors
    /// `Exhausted` after [`MAX_MEMORIES`].
    pub fn add_memory(&self, memory: RegisteredMemory) -> Result<u16> {
        let shared = &self.inner.shared;
        add(shared, &shared.memories, memory, MAX_MEMORIES)
    }

    /// Gives memory of a peer a number.
    ///
    /// # Errors
    /// As [`ProxyService::add_memory`].
    pub fn add_remote(&self, memory: RemoteMemory) -> Result<u16> {
        let shared = &self.inner.shared;
        add(shared, &shared.remotes, memory, MAX_MEMORIES)
    }

    /// Gives a semaphore a number.
    ///
    /// # Errors
    /// `Exhausted` after [`MAX_SEMAPHORES`].
    pub fn add_semaphore(&self, semaphore: Semaphore) -> Result<u16> {
        let shared = &self.inner.shared;
        add(shared, &shared.semaphores, semaphore, MAX_SEMAPHORES)
    }

    /// A channel over a semaphore and memory, which get numbers.
    ///
    /// # Errors
    /// As [`ProxyService::add_memory`]; `InvalidArgument` when the semaphore is of another connection than the peer's memory.
    pub fn channel(
        &self,
        semaphore: Semaphore,
        remote: RemoteMemory,
        local: RegisteredMemory,
    ) -> Result<PortChannel> {
        if semaphore.endpoint().place() != remote.endpoint().place()
            || !std::ptr::eq(semaphore.endpoint().shared(), remote.endpoint().shared())
        {
            return Err(refused("a semaphore and memory of different connections"));
        }
        let trigger = Trigger {
            source: self.add_memory(local)?,
            destination: self.add_remote(remote)?,
            semaphore: self.add_semaphore(semaphore.clone())?,
            ..Trigger::default()
        };
        Ok(PortChannel {
            service: self.inner.clone(),
            semaphore,
            trigger,
        })
    }

    /// A ring that kernels in `stream` push triggers to, which this proxy does as well. `context` has CUDA in use. The ring lives until the port is dropped and the
    /// stream has passed what is in it then; so long the proxy goes on.
    ///
    /// # Errors
    /// `Unsupported`: CUDA is not in use by the context; `InvalidArgument` for a stream that is capturing a graph, or is each thread's own; `Exhausted`,
    /// `DeviceLost`; `Forked` in a child made by `fork`.
    ///
    /// # Cancel safety
    /// Dropped, there is no port, or one that nobody uses until the proxy ends.
    #[cfg(feature = "cuda")]
    #[doc(alias("FifoDeviceHandle", "startProxy"))]
    pub async fn device_port(
        &self,
        context: &WharfContext,
        stream: CudaStream,
    ) -> Result<DevicePort> {
        let shared = Arc::clone(&self.inner.shared);
        DevicePort::open(shared, self.inner.clone(), context, stream).await
    }

    /// Hands over a trigger as it is. Its position in the ring, counted from 0.
    ///
    /// # Errors
    /// `WouldBlock` when the ring is full, `InvalidArgument` for numbers that a trigger has no bits for; `Forked` in a child made by `fork`. What else is wrong with it, the next
    /// [`PortChannel::flush`] of its channel says: a flush that is handed over so has nobody to say it to.
    pub fn push(&self, trigger: Trigger) -> Result<u64> {
        self.inner.shared.try_push(trigger)
    }

    /// Triggers that were done, of all that were ever pushed.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.inner.shared.done()
    }
}

impl fmt::Debug for ProxyService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyService")
            .field("done", &self.done())
            .field("waiting", &self.inner.shared.waiting())
            .finish_non_exhaustive()
    }
}

/// A channel to one peer by a proxy; made by [`ProxyService::channel`]. A cheap clone.
///
/// Offsets are given as for a [`MemoryChannel`](super::MemoryChannel): the peer's first. They and lengths are below 4 GiB.
#[derive(Clone)]
#[doc(alias(
    "mscclpp::PortChannel",
    "BasePortChannel",
    "ProxyChannel",
    "SimpleProxyChannel"
))]
pub struct PortChannel {
    service: Arc<Service>,
    semaphore: Semaphore,
    trigger: Trigger,
}

impl PortChannel {
    /// Asks for a put.
    ///
    /// # Errors
    /// `InvalidArgument` for 4 GiB and more; `Closed` when the proxy has ended; `Forked` in a child made by `fork`. What is wrong with the put itself, the next flush says; until then
    /// nothing else of the channel is done.
    ///
    /// # Completion
    /// Resolves when the proxy has been asked.
    ///
    /// # Cancel safety
    /// Dropped while the ring is full, nothing was asked.
    pub async fn put(&self, remote_at: usize, local_at: usize, length: usize) -> Result<()> {
        self.ask(TriggerKind::DATA, [remote_at, local_at, length])
            .await
            .map(drop)
    }

    /// Asks for a put, and a signal behind it and the puts of this channel before it.
    ///
    /// # Errors
    /// As [`PortChannel::put`].
    ///
    /// # Completion
    /// As [`PortChannel::put`].
    ///
    /// # Cancel safety
    /// As [`PortChannel::put`].
    #[doc(alias = "putWithSignal")]
    pub async fn put_with_signal(
        &self,
        remote_at: usize,
        local_at: usize,
        length: usize,
    ) -> Result<()> {
        let kind = TriggerKind::DATA | TriggerKind::SIGNAL;
        self.ask(kind, [remote_at, local_at, length])
            .await
            .map(drop)
    }

    /// The same, and waits for it as [`PortChannel::flush`].
    ///
    /// # Errors
    /// As [`PortChannel::put`] and [`PortChannel::flush`].
    ///
    /// # Cancel safety
    /// Dropped after it was asked for, the put and the signal still happen.
    #[doc(alias = "putWithSignalAndFlush")]
    pub async fn put_with_signal_and_flush(
        &self,
        remote_at: usize,
        local_at: usize,
        length: usize,
    ) -> Result<()> {
        let kind = TriggerKind::DATA | TriggerKind::SIGNAL | TriggerKind::FLUSH;
        self.ask_and_flush(kind, [remote_at, local_at, length])
            .await
    }

    /// Asks for a signal, behind the puts of this channel before it.
    ///
    /// # Errors
    /// As [`PortChannel::put`].
    ///
    /// # Cancel safety
    /// As [`PortChannel::put`].
    pub async fn signal(&self) -> Result<()> {
        self.ask(TriggerKind::SIGNAL, [0; 3]).await.map(drop)
    }

    /// Waits until all that was asked of this channel is done: puts are visible at the peer, signals applied.
    ///
    /// # Errors
    /// The first of what went wrong since the last flush. What came behind it was not done. `Closed` and `Forked` as [`PortChannel::put`].
    ///
    /// # Cancel safety
    /// Dropped before it was asked for, it is not. Dropped before the proxy has done it, the next flush says what was wrong; after that its outcome is
    /// lost.
    pub async fn flush(&self) -> Result<()> {
        self.ask_and_flush(TriggerKind::FLUSH, [0; 3]).await
    }

    /// Waits for a signal of the peer, and takes it.
    ///
    /// # Errors
    /// As [`Semaphore::wait`].
    pub fn wait(&self) -> SemaphoreWait<'_> {
        self.semaphore.wait()
    }

    /// The semaphore of the channel.
    #[must_use]
    pub fn semaphore(&self) -> &Semaphore {
        &self.semaphore
    }

    /// A trigger with the numbers of this channel, for [`ProxyService::push`].
    #[must_use]
    pub fn trigger(&self) -> Trigger {
        self.trigger
    }

    /// What kernels need to ask for transfers of this channel by a port of its proxy. For each call the port has one place of 60.
    ///
    /// # Errors
    /// `InvalidArgument` for a port of another proxy; `Exhausted` when the port has no place; what the driver said; `Forked` as [`PortChannel::put`].
    ///
    /// # Cancel safety
    /// Dropped, a place of the port may be lost.
    #[cfg(feature = "cuda")]
    #[doc(alias = "deviceHandle")]
    pub async fn on_device(&self, port: &DevicePort) -> Result<DevicePortHandle> {
        port.handle(&self.service.shared, self.trigger, None).await
    }

    /// The same, and from now on the signals of the peer go to the kernels, which wait for them by `wharf_port_wait`, and to nobody else: a [`wait`](Self::wait)
    /// stands in line with them. To be called once for a channel.
    ///
    /// # Errors
    /// As [`PortChannel::on_device`].
    ///
    /// # Cancel safety
    /// As [`PortChannel::on_device`].
    #[cfg(feature = "cuda")]
    pub async fn on_device_with_signals(&self, port: &DevicePort) -> Result<DevicePortHandle> {
        let semaphore = Some(&self.semaphore);
        port.handle(&self.service.shared, self.trigger, semaphore)
            .await
    }

    async fn ask(&self, kind: TriggerKind, ranges: [usize; 3]) -> Result<u64> {
        let trigger = self.asking(kind, ranges)?;
        self.service.shared.push(trigger).await
    }

    async fn ask_and_flush(&self, kind: TriggerKind, ranges: [usize; 3]) -> Result<()> {
        let trigger = self.asking(kind, ranges)?;
        let shared = &*self.service.shared;
        // Nothing can be dropped between the two: the second begins in the poll that ends the first.
        let position = shared.push_wanted(trigger).await?;
        Flushed { shared, position }.await
    }

    fn asking(&self, kind: TriggerKind, ranges: [usize; 3]) -> Result<Trigger> {
        let [destination, source, size] = ranges.map(u32::try_from);
        let (Ok(destination_offset), Ok(source_offset), Ok(size)) = (destination, source, size)
        else {
            return Err(refused("a trigger has no bits for 4 GiB"));
        };
        Ok(Trigger {
            kind,
            size,
            source_offset,
            destination_offset,
            ..self.trigger
        })
    }
}

impl fmt::Debug for PortChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortChannel")
            .field("semaphore", &self.semaphore)
            .field("trigger", &self.trigger)
            .finish_non_exhaustive()
    }
}

/// Waits for the outcome of a flush.
struct Flushed<'a> {
    shared: &'a Shared,
    position: u64,
}

impl Future for Flushed<'_> {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.shared.poll_flush(self.position, cx)
    }
}

impl Drop for Flushed<'_> {
    fn drop(&mut self) {
        self.shared.forget_flush(self.position);
    }
}

fn add<T>(shared: &Shared, list: &RwLock<Vec<T>>, what: T, most: usize) -> Result<u16> {
    shared.admits(Operation::Memory)?;
    let mut list = list.write();
    if list.len() >= most {
        let text = format!("a proxy has {most} of these at most");
        return Err(Error::new(ErrorKind::Exhausted, text).during(Operation::Memory));
    }
    list.push(what);
    Ok((list.len() - 1) as u16)
}

#[cold]
fn refused(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidArgument, why).during(Operation::Put)
}
