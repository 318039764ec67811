//! Memory channels: transfers between registered memory here and a peer's, and signals each way.
//!
//! | file | is |
//! |---|---|
//! | `mod.rs` | [`MemoryChannel`]: put, get, signal, wait, flush, packets |
//! | `packets.rs` | its areas for packets: how they are filled and read |

mod packets;

use std::{fmt, sync::Arc};

use crate::{
    endpoint::{Flush, Get, Op, Put, RemoteRegion},
    error::{Error, ErrorKind, Operation, Result},
    memory::{Buffer, BufferMut},
    util::lock::Mutex,
};

use super::{
    Communicator, PacketWidth, RegisteredMemory, RemoteMemory, Semaphore, SemaphoreSignal,
    SemaphoreWait, semaphore::meet,
};
use packets::{Packets, Row, refused};

/// A channel to one peer: registered memory here, the peer's registered memory, and a semaphore. A cheap clone.
///
/// The same calls for every type of memory at both ends. Ranges are given as offsets: first into the peer's memory, then into this rank's, in bytes,
/// of any alignment. Nothing is announced to the peer but by signals.
///
/// ```no_run
/// # async fn run(communicator: wharf::channel::Communicator) -> wharf::Result<()> {
/// use wharf::{Access, channel::MemoryChannel};
/// let peer = 1 - communicator.rank(); // of two
/// let memory = communicator.register(vec![0; 2 << 20], Access::READ | Access::WRITE).await?;
/// let channel = MemoryChannel::connect(&communicator, peer, 0, &memory).await?;
/// channel.put_with_signal(1 << 20, 0, 1 << 20).await?; // my first half into the peer's second
/// channel.wait().await?; // the peer has done the same
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias("mscclpp::MemoryChannel", "BaseMemoryChannel", "SmChannel"))]
pub struct MemoryChannel {
    inner: Arc<Inner>,
}

struct Inner {
    semaphore: Semaphore,
    local: RegisteredMemory,
    remote: RemoteMemory,
    packets: Option<Packets>,
    /// What the peer may use unasked, as long as there is a channel.
    kept: Arc<Mutex<Vec<Box<dyn Send>>>>,
}

impl MemoryChannel {
    /// Makes a channel with a rank, which does the same: both give each other the use of their memory, and make a semaphore. They exchange messages
    /// under `tag` of the communicator.
    ///
    /// # Errors
    /// As [`Semaphore::pair`], [`RegisteredMemory::send`] and [`Communicator::receive_memory`].
    ///
    /// # Cancel safety
    /// As [`Semaphore::pair`].
    pub async fn connect(
        communicator: &Communicator,
        peer: usize,
        tag: u32,
        local: &RegisteredMemory,
    ) -> Result<Self> {
        let mine = local.serialize_for(communicator)?;
        let paired = meet(communicator, peer, tag, mine).await?;
        let remote = communicator.memory_of(peer, &paired.along).await?;
        Self::new(Semaphore::of(paired), local.clone(), remote)
    }

    /// A channel from its parts. Several channels may share memory, and a semaphore.
    ///
    /// # Errors
    /// `InvalidArgument` when the semaphore is of another connection than the peer's memory.
    pub fn new(
        semaphore: Semaphore,
        local: RegisteredMemory,
        remote: RemoteMemory,
    ) -> Result<Self> {
        if semaphore.endpoint().place() != remote.endpoint().place()
            || !std::ptr::eq(semaphore.endpoint().shared(), remote.endpoint().shared())
        {
            let text = "a semaphore and memory of different connections";
            return Err(Error::new(ErrorKind::InvalidArgument, text).during(Operation::Memory));
        }
        Ok(Self {
            inner: Arc::new(Inner {
                semaphore,
                local,
                remote,
                packets: None,
                kept: Arc::default(),
            }),
        })
    }

    /// Copies `length` bytes of this rank's memory into the peer's.
    ///
    /// # Errors
    /// `OutOfBounds` at either end, `AccessDenied`, `StaleKey` when the peer has revoked its memory or the lease is over, `InvalidArgument` when
    /// both ranges are of one memory and overlap, and what ends the connection.
    ///
    /// # Completion
    /// Resolves when the bytes are visible at the peer.
    ///
    /// # Cancel safety
    /// Before the first poll nothing happens. After it the put happens whether or not this is dropped.
    pub async fn put(&self, remote_at: usize, local_at: usize, length: usize) -> Result<()> {
        self.start_put(remote_at, local_at, length)?.await
    }

    /// The same, and lets one wait of the peer pass when the bytes are visible there. Whoever that wakes sees them.
    ///
    /// # Errors
    /// As [`MemoryChannel::put`]. A put that failed does not signal.
    ///
    /// # Completion
    /// As [`MemoryChannel::put`].
    ///
    /// # Cancel safety
    /// As [`MemoryChannel::put`].
    #[doc(alias = "putWithSignal")]
    pub async fn put_with_signal(
        &self,
        remote_at: usize,
        local_at: usize,
        length: usize,
    ) -> Result<()> {
        let put = self.start_put(remote_at, local_at, length)?;
        put.signal(self.inner.semaphore.remote()).await
    }

    /// Starts a put now, to be awaited later or not at all; with a signal behind it, if so.
    ///
    /// # Errors
    /// As [`MemoryChannel::put`], and `WouldBlock` when the window of posted operations is full.
    pub fn post_put(
        &self,
        remote_at: usize,
        local_at: usize,
        length: usize,
        signal: bool,
    ) -> Result<Op<()>> {
        let put = self.start_put(remote_at, local_at, length)?;
        let put = match signal {
            true => put.signal(self.inner.semaphore.remote()),
            false => put,
        };
        put.post().map_err(|error| error.into_parts().0)
    }

    /// Copies `length` bytes of the peer's memory into this rank's.
    ///
    /// # Errors
    /// As [`MemoryChannel::put`].
    ///
    /// # Completion
    /// Resolves when the bytes are in this rank's memory.
    ///
    /// # Cancel safety
    /// Before the first poll nothing happens. Dropped after it, bytes may still land.
    pub async fn get(&self, remote_at: usize, local_at: usize, length: usize) -> Result<()> {
        let got: Get<'_, BufferMut> = self.start_get(remote_at, local_at, length)?;
        got.await.map(drop).map_err(|error| error.into_parts().0)
    }

    /// Lets one wait of the peer pass, behind the puts of this side that have ended.
    ///
    /// # Errors
    /// As [`Semaphore::signal`].
    pub fn signal(&self) -> SemaphoreSignal<'_> {
        self.inner.semaphore.signal()
    }

    /// Waits for a signal of the peer, and takes it.
    ///
    /// # Errors
    /// As [`Semaphore::wait`].
    pub fn wait(&self) -> SemaphoreWait<'_> {
        self.inner.semaphore.wait()
    }

    /// Waits until all that was begun on the connection is over: puts are visible at the peer, signals applied.
    ///
    /// # Errors
    /// As [`Endpoint::flush`](crate::Endpoint::flush).
    pub fn flush(&self) -> Flush<'_> {
        self.inner.remote.endpoint().flush()
    }

    /// Gives the channel areas of `bytes` for packets, one at each end, zeroed. The peer does the same, with the same size, under the same `tag` of the
    /// communicator.
    ///
    /// # Errors
    /// As [`MemoryChannel::connect`]; `Exhausted` when there is no memory for it.
    ///
    /// # Cancel safety
    /// Dropped, the other rank's attempt ends at its deadline, or with `InvalidArgument` when this rank begins another one under the same tag.
    pub async fn with_packets(
        self,
        communicator: &Communicator,
        tag: u32,
        bytes: usize,
    ) -> Result<Self> {
        let inner = &self.inner;
        let peer = inner.remote.owner();
        let packets = Packets::open(communicator, peer, tag, bytes).await?;
        Ok(Self {
            inner: Arc::new(Inner {
                semaphore: inner.semaphore.clone(),
                local: inner.local.clone(),
                remote: inner.remote.clone(),
                kept: Arc::clone(&inner.kept),
                packets: Some(packets),
            }),
        })
    }

    /// Puts `length` bytes of this rank's memory into the peer's area as packets, from its byte `packets_at` on, which is a multiple of the packets'
    /// width.
    ///
    /// The flag is not 0, and not that of what was last put to the same place; nothing is put to a place whose packets the peer may not have unpacked.
    /// So two areas and two flags in turn do. Memory of a device goes through the host's.
    ///
    /// # Errors
    /// `InvalidArgument`: a flag of 0, an offset that is no multiple, a channel without [packets](MemoryChannel::with_packets). `OutOfBounds` at either
    /// end; what ends the connection.
    ///
    /// # Completion
    /// Resolves when the packets are in the peer's area.
    ///
    /// # Cancel safety
    /// Dropped, some of the packets may have been put.
    #[doc(alias = "putPackets")]
    pub async fn put_packets(
        &self,
        packets_at: usize,
        local_at: usize,
        length: usize,
        width: PacketWidth,
        flag: u32,
    ) -> Result<()> {
        let packets = self.packets()?;
        let row = Row::new(packets_at, length, width, flag)?;
        packets.check_remote(&row)?;
        let worker = self.inner.semaphore.worker();
        let data = self.inner.local.copy_out(worker, local_at, length).await?;
        packets.put(row, &data).await
    }

    /// Waits for packets that one [`put_packets`](MemoryChannel::put_packets) of the peer's with the same place, length, width and flag has put into this rank's area, and writes
    /// their data into this rank's memory. Looks for them for some microseconds, then sleeps until the peer has put some.
    ///
    /// One wait at a time unpacks from a channel.
    ///
    /// # Errors
    /// As [`put_packets`](MemoryChannel::put_packets); what ended the connection.
    ///
    /// # Completion
    /// Resolves when all the data is in this rank's memory.
    ///
    /// # Cancel safety
    /// Cancel safe while the packets have not come; after that into host memory, too. Dropped while the data goes into memory of a device, the packets
    /// count as unpacked.
    #[doc(alias = "unpackPackets")]
    pub async fn unpack_packets(
        &self,
        packets_at: usize,
        local_at: usize,
        length: usize,
        width: PacketWidth,
        flag: u32,
    ) -> Result<()> {
        let packets = self.packets()?;
        let row = Row::new(packets_at, length, width, flag)?;
        packets.check_local(&row)?;
        // Before anything is waited for.
        drop(self.inner.local.target(local_at, length)?);
        let data = packets.unpack(row, length).await?;
        let worker = self.inner.semaphore.worker();
        self.inner.local.copy_in(worker, local_at, data).await
    }

    fn packets(&self) -> Result<&Packets> {
        // The areas are shared memory, which a child made by `fork` has as well.
        let endpoint = self.inner.semaphore.endpoint();
        endpoint.shared().admits(Operation::Put)?;
        let packets = self.inner.packets.as_ref();
        packets.ok_or_else(|| refused("the channel has no area for packets"))
    }

    /// The semaphore of the channel.
    #[must_use]
    pub fn semaphore(&self) -> &Semaphore {
        &self.inner.semaphore
    }

    /// This rank's memory.
    #[must_use]
    pub fn local(&self) -> &RegisteredMemory {
        &self.inner.local
    }

    /// The peer's memory.
    #[must_use]
    pub fn remote(&self) -> &RemoteMemory {
        &self.inner.remote
    }

    fn start_put(&self, remote_at: usize, local_at: usize, length: usize) -> Result<Put<'_>> {
        let inner = &self.inner;
        start_put(&inner.remote, remote_at, &inner.local, local_at, length)
    }

    fn start_get(
        &self,
        remote_at: usize,
        local_at: usize,
        length: usize,
    ) -> Result<Get<'_, BufferMut>> {
        let inner = &self.inner;
        let part = inner.remote.part(remote_at, length)?;
        check_apart(&part, &inner.local, local_at, length)?;
        let target = inner.local.target(local_at, length)?;
        Ok(inner.remote.endpoint().get(part, target))
    }

    /// Keeps something until the last clone is dropped.
    pub(super) fn keep(&self, what: impl Send + 'static) {
        self.inner.kept.lock().push(Box::new(what));
    }
}

/// A put from registered memory into a peer's.
pub(super) fn start_put<'a>(
    remote: &'a RemoteMemory,
    remote_at: usize,
    local: &RegisteredMemory,
    local_at: usize,
    length: usize,
) -> Result<Put<'a>> {
    let part = remote.part(remote_at, length)?;
    check_apart(&part, local, local_at, length)?;
    let source: Buffer = local.source(local_at, length)?;
    Ok(remote.endpoint().put(source, part))
}

/// Copies do not go between ranges that overlap.
fn check_apart(
    part: &RemoteRegion,
    local: &RegisteredMemory,
    local_at: usize,
    length: usize,
) -> Result<()> {
    if length > 0 && part.overlaps(local.region().address_of(local_at), length) {
        let text = "both ranges are of this rank's memory, and overlap";
        return Err(Error::new(ErrorKind::InvalidArgument, text).during(Operation::Memory));
    }
    Ok(())
}

impl fmt::Debug for MemoryChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryChannel")
            .field("semaphore", &self.inner.semaphore)
            .field("local", &self.inner.local)
            .field("remote", &self.inner.remote)
            .finish_non_exhaustive()
    }
}
