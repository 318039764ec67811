//! Packets of a memory channel: put into the peer's area of packets, and unpacked from the own.
//!
//! ```text
//! put_packets:  data ──▶ words with flags ──▶ the peer's area ──▶ one is added to the peer's counter of arrivals
//! unpack:       do all words have the flag? ── yes: done
//!                  ▲        no: look some more, then sleep until the counter moves
//!                  └──────────────┘
//! ```
//!
//! Where the peer's area is mapped here its words are written one by one, each at once with its flag, so the peer may find all of them before the
//! counter has moved. Else they are put as bytes, which may be seen torn; then the peer looks only after the counter has moved. Both ends agree on
//! that when the area is made.
//!
//! # Safety
//! Words are reached within a mapping that the endpoint has checked, for the time of the call; and within this rank's own area, which is registered for
//! as long as the channel lives. Both are only reached by atomics of 8 bytes where the ends agreed on words.
#![allow(unsafe_code)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::task::coop;

use crate::{
    channel::{
        Communicator, PacketWidth, RegisteredMemory, RemoteMemory, Semaphore,
        packet::{WORD, encode, load, store},
    },
    error::{Error, ErrorKind, Operation, Result},
    types::Access,
};

use super::{Inner, MemoryChannel};

/// Bytes of packets that are written in one turn of the worker's.
const TURN: usize = 32 << 10;
/// Looks for flags before a task sleeps: some microseconds.
const LOOKS: usize = 500;
/// How long an area may take to be mapped by the peer.
const MAPPING: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(super) struct Packets {
    /// Where the peer's packets land.
    local: RegisteredMemory,
    remote: RemoteMemory,
    arrivals: Semaphore,
    /// Signals that were taken, less the puts that were unpacked: they came with puts that another wait was not for. Who waits is alone.
    spare: Arc<AtomicU64>,
    /// Whether packets are written word by word, to the peer and by the peer.
    writes_words: bool,
    reads_words: bool,
}

impl MemoryChannel {
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
        let peer = self.inner.remote.owner();
        let context = communicator.worker().context();
        let area = context.allocate(bytes).await?;
        let local = communicator.register(area, Access::WRITE).await?;
        let mine = local.serialize_for(communicator)?;
        let paired = Semaphore::pair_with(communicator, peer, tag, mine).await?;
        let remote = communicator.memory_of(peer, &paired.along).await?;
        let writes_words = is_mapped(&remote).await?;
        let word = [u8::from(writes_words)];
        let theirs = paired.last_word(communicator, peer, tag, &word).await?;
        let reads_words = theirs.first() == Some(&1);
        let arrivals = paired.semaphore;
        let inner = &self.inner;
        Ok(Self {
            inner: Arc::new(Inner {
                semaphore: inner.semaphore.clone(),
                local: inner.local.clone(),
                remote: inner.remote.clone(),
                kept: Arc::clone(&inner.kept),
                packets: Some(Packets {
                    local,
                    remote,
                    arrivals,
                    spare: Arc::default(),
                    writes_words,
                    reads_words,
                }),
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
        let packets = self.packets(packets_at, width, flag)?;
        let bytes = packed(width, length)?;
        packets.remote.part(packets_at, bytes)?;
        let local = &self.inner.local;
        let data = local.copy_out(self.inner.semaphore.worker(), local_at, length);
        let data = data.await?;
        if length == 0 {
            return Ok(());
        }
        if !packets.writes_words {
            let part = packets.remote.part(packets_at, bytes)?;
            let put = packets
                .remote
                .endpoint()
                .put(encode(&data, flag, bytes), part);
            return put.signal(packets.arrivals.remote()).await;
        }
        let mut at = 0;
        while at < bytes {
            let turn = TURN.min(bytes - at);
            let part = packets.remote.part(packets_at + at, turn)?;
            let words = data.get(at / 2..).unwrap_or(&[]);
            let words = &words[..words.len().min(turn / 2)];
            let stored = part.within_mapping(turn, |address| {
                // SAFETY: `turn` bytes are mapped there and aligned to 8; both ends use them by words.
                unsafe { store(address, words, flag, turn) };
            });
            stored.unwrap_or_else(|| Err(unmapped()))?;
            at += turn;
            coop::consume_budget().await;
        }
        packets.arrivals.signal().await
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
        let packets = self.packets(packets_at, width, flag)?;
        let bytes = packed(width, length)?;
        let end = packets_at.checked_add(bytes);
        if end.is_none_or(|end| end > packets.local.len()) {
            return Err(outside(packets_at, bytes, packets.local.len()));
        }
        // Before anything is waited for.
        drop(self.inner.local.target(local_at, length)?);
        let mut data = vec![0; length];
        let mut done = 0;
        let look = |data: &mut [u8], done: usize| {
            // The words lie from here on; what is done is whole words.
            let at = packets_at + done * 2;
            let address = packets.local.region().address_of(at) as usize;
            let words = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: the area is registered for as long as the channel lives, and the range was checked; it begins at a multiple of 8.
            done + unsafe { load(words, &mut data[done..], flag) }
        };
        if length > 0 {
            if packets.reads_words {
                loop {
                    let seen = packets.arrivals.counter().value();
                    for _ in 0..LOOKS {
                        done = look(&mut data, done);
                        if done == length {
                            break;
                        }
                        std::hint::spin_loop();
                    }
                    if done == length {
                        break;
                    }
                    moved(packets, seen).await?;
                }
            } else {
                if packets.spare.load(Relaxed) > 0 {
                    done = look(&mut data, done);
                }
                while done < length {
                    packets.arrivals.wait().await?;
                    packets.spare.fetch_add(1, Relaxed);
                    done = look(&mut data, done);
                }
                packets.spare.fetch_sub(1, Relaxed);
            }
        }
        let worker = self.inner.semaphore.worker();
        self.inner.local.copy_in(worker, local_at, data).await
    }

    fn packets(&self, at: usize, width: PacketWidth, flag: u32) -> Result<&Packets> {
        // The areas are shared memory, which a child made by `fork` has as well.
        let endpoint = self.inner.semaphore.endpoint();
        endpoint.shared().admits(Operation::Put)?;
        let packets = self.inner.packets.as_ref();
        let packets = packets.ok_or_else(|| refused("the channel has no area for packets"))?;
        if flag == 0 {
            return Err(refused("a flag of packets is not 0, which is that of none"));
        }
        if !at.is_multiple_of(width.bytes()) {
            let text = format!(
                "packets of {} bytes at offset {at}, which is no multiple",
                width.bytes()
            );
            return Err(refused(text));
        }
        Ok(packets)
    }
}

/// Waits until more has arrived than `seen`.
async fn moved(packets: &Packets, seen: u64) -> Result<()> {
    let arrivals = &packets.arrivals;
    tokio::select! {
        biased;
        moved = arrivals.counter().wait(seen.wrapping_add(1)) => moved.map(drop),
        // What came before the end counts.
        reason = arrivals.endpoint().closed() => match arrivals.counter().value() == seen {
            true => Err(reason.during(Operation::Put)),
            false => Ok(()),
        },
    }
}

/// Whether a peer's area is mapped here, which may take a moment.
async fn is_mapped(remote: &RemoteMemory) -> Result<bool> {
    if remote.len() < WORD || !remote.endpoint().transports().contains(&"shm") {
        return Ok(false);
    }
    let first = remote.part(0, WORD)?;
    let start = std::time::Instant::now();
    while start.elapsed() < MAPPING {
        match first.within_mapping(WORD, |_| ()) {
            Some(mapped) => return mapped.map(|()| true),
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    Ok(false)
}

fn packed(width: PacketWidth, length: usize) -> Result<usize> {
    let packed = width.packed(length);
    packed.ok_or_else(|| refused("more packets than there are addresses"))
}

#[cold]
fn refused(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidArgument, why).during(Operation::Put)
}

#[cold]
fn outside(at: usize, bytes: usize, area: usize) -> Error {
    let text = format!("{bytes} bytes of packets at offset {at} of an area of {area} bytes");
    Error::new(ErrorKind::OutOfBounds, text).during(Operation::Put)
}

#[cold]
fn unmapped() -> Error {
    let text = "the peer's area of packets is not mapped any more";
    Error::new(ErrorKind::ConnectionReset, text).during(Operation::Put)
}
