//! Device channels: puts, signals, waits and packets that a CUDA device does itself, by kernels in the program's own stream.
//!
//! ```text
//! program ── put, signal, wait ──▶ its stream ──▶ kernels ──▶ the peer's device memory, by its mapping here
//!    ▲                                │
//!    └───────── Enqueued ◀── the engine tells that the stream has come there
//! ```
//!
//! The kernels are wharf's own: PTX text in the crate, which the driver compiles for its device when a channel is first made there, on a thread that may
//! block, and which are tried there before use. Where that cannot be, or the peer's memory cannot be reached, at either end, both ends do the same
//! operations from the host, through the memory channel, and keep the reason.
//!
//! | file | is |
//! |---|---|
//! | `mod.rs` | [`DeviceChannel`] and its operations |
//! | `channel.ptx` | the kernels |
//! | `kernels.rs` | how they are loaded, tried and launched |
//! | `connect.rs` | how two ends agree, and open each other's memory |
//! | `side.rs` | what a channel has on its device, and what is under way |
//! | `hosted.rs` | the operations from the host |
//! | `handle.rs` | addresses for the program's own kernels |
//!
//! # Safety
//! Kernels are given ranges that were checked against the memory that the channel holds; see `side.rs` for how long it does.
#![allow(unsafe_code)]

mod connect;
mod handle;
mod hosted;
mod kernels;
mod side;

use std::{
    fmt,
    future::Future,
    mem::ManuallyDrop,
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::{
    driver::cuda::{ContextGuard, DevicePtr},
    error::{Error, ErrorKind, Operation, Result},
    sys::fork,
    transport::cuda::CudaStream,
    types::Access,
};

pub use handle::DeviceChannelHandle;

use super::{MemoryChannel, PacketWidth};
use hosted::{Hosted, Packets, Work, in_vain};
use side::{Side, block};

/// How often who waits looks whether the device is lost.
const LOOK: Duration = Duration::from_millis(100);

/// A memory channel whose operations are enqueued in a CUDA stream of the program's, between what the program enqueues there itself.
///
/// Its signals are others than those of the memory channel: they are counted in memory of the devices. One stream, and so one operation after the
/// other; any number of channels.
///
/// Made by [`DeviceChannel::connect`]. Operations are enqueued when the call returns; what it returns resolves when they are done, and need not be
/// awaited. Waits end by themselves: after so many looks the stream goes on, and what was returned says so.
///
/// ```no_run
/// # async fn run(communicator: wharf::channel::Communicator, channel: wharf::channel::MemoryChannel, stream: wharf::transport::cuda::CudaStream) -> wharf::Result<()> {
/// use wharf::channel::DeviceChannel;
/// let device = DeviceChannel::connect(&channel, &communicator, 7, stream, 0).await?;
/// device.put_with_signal(1 << 20, 0, 1 << 20)?; // behind the kernels that are in the stream
/// device.wait(100_000_000)?.await?; // the peer has done the same
/// # Ok(())
/// # }
/// ```
///
/// # Where it goes from the host
/// [`reason`](Self::reason) tells why. Then an operation begins when the stream has come to its end as it is at that time, and what the program enqueues
/// behind it does not wait for it: await it first.
///
/// # What the ends owe each other
/// Kernels reach the peer's memory by a mapping, which revocation does not end. An end drops its channel, and the memory, when all that the peer has
/// enqueued for it is over: exchange a message before.
#[derive(Clone)]
#[doc(alias = "MemoryDevice2DeviceSemaphore")]
#[doc(alias(
    "ucp_device_put",
    "ucp_device_local_mem_list_create",
    "ucp_device_remote_mem_list_create",
    "ucp_device_mem_list_release",
    "ucp_device_get_mem_list_length",
    "ucp_device_local_mem_list_h",
    "ucp_device_remote_mem_list_h",
    "UCP_FEATURE_DEVICE"
))]
pub struct DeviceChannel {
    inner: Arc<Inner>,
}

struct Inner {
    channel: MemoryChannel,
    stream: CudaStream,
    /// Bytes of each area of packets.
    packets: usize,
    path: Path,
}

enum Path {
    /// `None` only while it is dropped.
    Device(Option<Side>),
    Host(Hosted),
}

impl Drop for Path {
    fn drop(&mut self) {
        if let Self::Device(side) = self
            && let Some(side) = side.take()
        {
            if fork::forked() {
                // A driver does nothing in a child made by `fork`, and the kernels are its parent's.
                let _kept = ManuallyDrop::new(side);
                return;
            }
            side.free_when_unused();
        }
    }
}

impl DeviceChannel {
    /// Why the operations are done from the host; `None`: the device does them.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match &self.inner.path {
            Path::Device(_) => None,
            Path::Host(hosted) => Some(&hosted.reason),
        }
    }

    /// How the operations are done, and why no better way: for people.
    #[must_use]
    pub fn explain(&self) -> String {
        match &self.inner.path {
            Path::Host(hosted) => format!("from the host, because {}", hosted.reason),
            Path::Device(None) => String::new(),
            Path::Device(Some(side)) => format!(
                "by kernels of {:?}; signals by {}",
                side.stream.context().device(),
                match side.atomics {
                    true => "atomic additions",
                    false => "stores: the peer's memory takes no atomics from this device",
                }
            ),
        }
    }

    /// What the program's own kernels need to use the channel. `None` where the device does not do the operations.
    #[must_use]
    #[doc(alias = "deviceHandle")]
    pub fn device_handle(&self) -> Option<DeviceChannelHandle> {
        let inner = &*self.inner;
        let side = inner.side()?;
        side.is_lent.store(true, Relaxed);
        let at = &side.at;
        let size = size_of::<DeviceChannelHandle>();
        Some(DeviceChannelHandle {
            size: u32::try_from(size).unwrap_or(u32::MAX),
            flags: match side.atomics {
                true => DeviceChannelHandle::ATOMICS,
                false => 0,
            },
            local: at.local.0,
            local_length: inner.channel.local().len() as u64,
            remote: at.remote.0,
            remote_length: inner.channel.remote().len() as u64,
            signals: (at.remote_block + block::ARRIVED).0,
            sent: (at.block + block::SENT).0,
            arrived: (at.block + block::ARRIVED).0,
            taken: (at.block + block::TAKEN).0,
            packets: (at.block + block::PACKETS).0,
            remote_packets: (at.remote_block + block::PACKETS).0,
            packets_length: inner.packets as u64,
        })
    }

    /// The memory channel.
    #[must_use]
    pub fn channel(&self) -> &MemoryChannel {
        &self.inner.channel
    }

    /// The stream.
    #[must_use]
    pub fn stream(&self) -> CudaStream {
        self.inner.stream
    }

    /// Copies `length` bytes of this rank's memory into the peer's, behind what is in the stream. As fast as the device where both ends have the same
    /// alignment of 16; any other goes byte by byte.
    ///
    /// # Errors
    /// `OutOfBounds` at either end, `AccessDenied`, `StaleKey` when the lease is over, `DeviceLost`, `InvalidArgument` when both ranges are of one memory and overlap or
    /// the stream is capturing a graph, `WouldBlock` when 256 operations of the channel are under way, `Forked` in a child made by `fork`, and what the driver said.
    ///
    /// # Panics
    /// Outside a Tokio runtime with timers, as all that waits for time.
    pub fn put(&self, remote_at: usize, local_at: usize, length: usize) -> Result<Enqueued> {
        self.begin_put(remote_at, local_at, length, false)
    }

    /// The same, and lets one wait of the peer pass. Who passes sees the bytes.
    ///
    /// # Errors
    /// As [`DeviceChannel::put`].
    pub fn put_with_signal(
        &self,
        remote_at: usize,
        local_at: usize,
        length: usize,
    ) -> Result<Enqueued> {
        self.begin_put(remote_at, local_at, length, true)
    }

    /// Lets one wait of the peer pass. Who passes sees what the stream's earlier work has written.
    ///
    /// # Errors
    /// As [`DeviceChannel::put`].
    pub fn signal(&self) -> Result<Enqueued> {
        self.begin(Work::Signal, false, |side, guard, _| {
            // SAFETY: see `side.rs`.
            unsafe { side.kernels.signal(guard, &side.stream, side.signal()) }
        })
    }

    /// Makes the stream wait for a signal of the peer, and take it. After so many `looks`, each of which takes the device about a microsecond, it goes
    /// on without. What the stream does next sees what the peer's did before its signal.
    ///
    /// # Errors
    /// As [`DeviceChannel::put`]. What is returned resolves with `DeadlineExceeded` when the device has looked in vain.
    pub fn wait(&self, looks: u64) -> Result<Enqueued> {
        self.begin(Work::Wait { looks }, true, |side, guard, status| {
            let own = side.at.block;
            let counters = (own + block::ARRIVED, own + block::TAKEN);
            // SAFETY: see `side.rs`.
            unsafe {
                side.kernels
                    .wait(guard, &side.stream, counters, looks, status)
            }
        })
    }

    /// Puts `length` bytes of this rank's memory into the peer's area as packets, from its byte `packets_at` on: words that carry a flag, for which
    /// the peer needs no signal. The rules for flags and places are those of [`MemoryChannel::put_packets`].
    ///
    /// # Errors
    /// As [`DeviceChannel::put`]; `InvalidArgument`: a flag of 0, or an offset that is no multiple of the width.
    pub fn put_packets(
        &self,
        packets_at: usize,
        local_at: usize,
        length: usize,
        width: PacketWidth,
        flag: u32,
    ) -> Result<Enqueued> {
        let packed = self.check_packets(packets_at, length, width, flag)?;
        let local = self.local(local_at, length)?;
        let of = Packets {
            packets_at,
            local_at,
            length,
            width,
            flag,
        };
        self.begin(Work::PutPackets(of), false, |side, guard, _| {
            let to = side.at.remote_block + block::PACKETS + packets_at as u64;
            let ends = (to, side.at.local + local, length as u64);
            // SAFETY: see `side.rs`; the ranges were checked.
            unsafe {
                side.kernels
                    .packets_put(guard, &side.stream, ends, packed / 8, flag)
            }
        })
    }

    /// Makes the stream wait for packets that one [`put_packets`](Self::put_packets) of the peer's with the same place, length, width and flag puts, and
    /// unpack them into this rank's memory. After so many `looks` of each thread it goes on without the rest.
    ///
    /// # Errors
    /// As [`DeviceChannel::put_packets`] and [`DeviceChannel::wait`].
    pub fn unpack_packets(
        &self,
        packets_at: usize,
        local_at: usize,
        length: usize,
        width: PacketWidth,
        flag: u32,
        looks: u64,
    ) -> Result<Enqueued> {
        self.check_packets(packets_at, length, width, flag)?;
        let local = self.local(local_at, length)?;
        let of = Packets {
            packets_at,
            local_at,
            length,
            width,
            flag,
        };
        self.begin(
            Work::UnpackPackets(of, looks),
            true,
            |side, guard, status| {
                let from = side.at.block + block::PACKETS + packets_at as u64;
                let ends = (side.at.local + local, from, length as u64);
                // SAFETY: see `side.rs`; the ranges were checked.
                unsafe {
                    side.kernels
                        .packets_get(guard, &side.stream, ends, flag, looks, status)
                }
            },
        )
    }

    fn begin_put(
        &self,
        remote_at: usize,
        local_at: usize,
        length: usize,
        signals: bool,
    ) -> Result<Enqueued> {
        let remote = self.inner.channel.remote();
        drop(remote.part(remote_at, length)?);
        if !remote.access().contains(Access::WRITE) {
            let text = "the peer's memory may not be written";
            return Err(Error::new(ErrorKind::AccessDenied, text).during(Operation::Put));
        }
        let local = self.local(local_at, length)?;
        let work = Work::Put {
            remote_at,
            local_at,
            length,
            signals,
        };
        self.begin(work, false, |side, guard, _| {
            let (to, from) = (side.at.remote + remote_at as u64, side.at.local + local);
            let length = length as u64;
            if length > 0 && to < from + length && from < to + length {
                return Err(refused("both ranges are of one memory, and overlap"));
            }
            let signal = signals.then(|| side.signal());
            let done = side.at.block + block::DONE;
            // SAFETY: see `side.rs`; the ranges were checked, and do not overlap.
            unsafe {
                side.kernels
                    .put(guard, &side.stream, (to, from, length), done, signal)
            }
        })
    }

    fn begin(
        &self,
        work: Work,
        waits: bool,
        launch: impl FnOnce(&Side, &ContextGuard<'_>, DevicePtr) -> Result<()>,
    ) -> Result<Enqueued> {
        let inner = &self.inner;
        let endpoint = inner.channel.remote().endpoint();
        endpoint.shared().admits(Operation::Put)?;
        let side = match &inner.path {
            Path::Device(side) => side,
            Path::Host(hosted) => {
                let result = hosted.enqueue(work)?;
                return Ok(Enqueued::new(async {
                    result.await.unwrap_or_else(|_| {
                        let text = "the runtime of the channel is gone";
                        Err(Error::new(ErrorKind::Closed, text).during(Operation::Put))
                    })
                }));
            }
        };
        let Some(side) = side else {
            return Err(refused("the channel is being dropped"));
        };
        let status = side.enqueue(waits, |guard, status| launch(side, guard, status))?;
        let inner = Arc::clone(inner);
        let mut enqueued = Enqueued::new(async move {
            let worker = inner.channel.semaphore().worker();
            let mut reached = pin!(worker.reached(inner.stream));
            loop {
                let over = match tokio::time::timeout(LOOK, &mut reached).await {
                    Ok(over) => over.map(|()| true)?,
                    Err(_) => false,
                };
                // A device that is lost says so here, whether or not the place is ever told to be reached.
                if let Some(side) = inner.side() {
                    side.reap()?;
                }
                if over {
                    break;
                }
            }
            match (status.load(Relaxed), work) {
                (0, _) => Ok(()),
                (_, Work::Wait { looks } | Work::UnpackPackets(_, looks)) => Err(in_vain(looks)),
                (..) => Ok(()),
            }
        });
        // The place in the stream is that of now.
        enqueued.begin();
        Ok(enqueued)
    }

    /// Where a range begins in this rank's memory, when it is within.
    fn local(&self, at: usize, length: usize) -> Result<u64> {
        let room = self.inner.channel.local().len();
        match at.checked_add(length) {
            Some(end) if end <= room => Ok(at as u64),
            _ => Err(outside(at, length, room)),
        }
    }

    /// Bytes of so many packets, when they are within the areas.
    fn check_packets(
        &self,
        at: usize,
        length: usize,
        width: PacketWidth,
        flag: u32,
    ) -> Result<u64> {
        if flag == 0 {
            return Err(refused("a flag of packets is not 0, which is that of none"));
        }
        if !at.is_multiple_of(width.bytes()) {
            return Err(refused(
                "the place of packets is no multiple of their width",
            ));
        }
        let packed = width.packed(length);
        let packed = packed.ok_or_else(|| refused("more packets than there are addresses"))?;
        match at.checked_add(packed) {
            Some(end) if end <= self.inner.packets => Ok(packed as u64),
            _ => Err(outside(at, packed, self.inner.packets)),
        }
    }
}

impl Inner {
    fn side(&self) -> Option<&Side> {
        match &self.path {
            Path::Device(side) => side.as_ref(),
            Path::Host(_) => None,
        }
    }
}

impl fmt::Debug for DeviceChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceChannel")
            .field("channel", &self.inner.channel)
            .field("path", &self.explain())
            .finish_non_exhaustive()
    }
}

/// An operation that is in the stream; made by [`DeviceChannel`].
///
/// # Completion
/// Resolves when the stream has done it. It may resolve later, when the stream has done what the program has enqueued before this was first polled.
///
/// # Cancel safety
/// Dropped, the operation is done all the same. The memory of the channel is kept for it.
#[must_use = "only this tells whether the operation has gone well"]
pub struct Enqueued {
    future: Option<Pin<Box<dyn Future<Output = Result<()>> + Send>>>,
    result: Option<Result<()>>,
}

impl Enqueued {
    fn new(future: impl Future<Output = Result<()>> + Send + 'static) -> Self {
        Self {
            future: Some(Box::pin(future)),
            result: None,
        }
    }

    /// The first poll, which nobody is woken for.
    fn begin(&mut self) {
        if let Some(future) = &mut self.future
            && let Poll::Ready(result) = future
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
        {
            self.future = None;
            self.result = Some(result);
        }
    }
}

impl Future for Enqueued {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        if let Some(result) = this.result.take() {
            return Poll::Ready(result);
        }
        let Some(future) = &mut this.future else {
            return Poll::Ready(Err(refused("polled after completion")));
        };
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            this.future = None;
        }
        polled
    }
}

impl fmt::Debug for Enqueued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enqueued")
            .field("over", &self.future.is_none())
            .finish_non_exhaustive()
    }
}

#[cold]
fn refused(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidArgument, why).during(Operation::Put)
}

#[cold]
fn outside(at: usize, length: usize, room: usize) -> Error {
    let text = format!("{length} bytes at offset {at} of {room} bytes");
    Error::new(ErrorKind::OutOfBounds, text).during(Operation::Put)
}
