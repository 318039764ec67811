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
        semaphore::meet,
    },
    error::{Error, ErrorKind, Operation, Result},
    types::Access,
};

/// Bytes of packets that are written in one turn of the worker's.
const TURN: usize = 32 << 10;
/// Looks for flags before a task sleeps: some microseconds.
const LOOKS: usize = 500;
/// How long an area may take to be mapped by the peer.
const MAPPING: Duration = Duration::from_secs(1);

/// The areas for packets of a channel, and what tells of arrivals.
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

impl Packets {
    /// Areas of `bytes`, one at each end. The peer does the same.
    pub(super) async fn open(
        communicator: &Communicator,
        peer: usize,
        tag: u32,
        bytes: usize,
    ) -> Result<Self> {
        let context = communicator.worker().context();
        let area = context.allocate(bytes).await?;
        let local = communicator.register(area, Access::WRITE).await?;
        let mine = local.serialize_for(communicator)?;
        let paired = meet(communicator, peer, tag, mine).await?;
        let remote = communicator.memory_of(peer, &paired.along).await?;
        let writes_words = is_mapped(&remote).await?;
        let word = [u8::from(writes_words)];
        let theirs = paired.last_word(communicator, peer, tag, &word).await?;
        let reads_words = theirs.first() == Some(&1);
        Ok(Self {
            local,
            remote,
            arrivals: Semaphore::of(paired),
            spare: Arc::default(),
            writes_words,
            reads_words,
        })
    }

    /// Says no to what does not fit into the peer's area.
    pub(super) fn check_remote(&self, row: &Row) -> Result<()> {
        self.remote.part(row.at, row.bytes).map(drop)
    }

    /// Says no to what does not fit into the own area.
    pub(super) fn check_local(&self, row: &Row) -> Result<()> {
        let end = row.at.checked_add(row.bytes);
        if end.is_none_or(|end| end > self.local.len()) {
            return Err(outside(row.at, row.bytes, self.local.len()));
        }
        Ok(())
    }

    /// Puts data into the peer's area.
    pub(super) async fn put(&self, row: Row, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        if !self.writes_words {
            let part = self.remote.part(row.at, row.bytes)?;
            let words = encode(data, row.flag, row.bytes);
            let put = self.remote.endpoint().put(words, part);
            return put.signal(self.arrivals.remote()).await;
        }
        let mut at = 0;
        while at < row.bytes {
            let turn = TURN.min(row.bytes - at);
            let part = self.remote.part(row.at + at, turn)?;
            let words = data.get(at / 2..).unwrap_or(&[]);
            let words = &words[..words.len().min(turn / 2)];
            let stored = part.within_mapping(turn, |address| {
                // SAFETY: `turn` bytes are mapped there and aligned to 8; both ends use them by words.
                unsafe { store(address, words, row.flag, turn) };
            });
            stored.unwrap_or_else(|| Err(unmapped()))?;
            at += turn;
            coop::consume_budget().await;
        }
        self.arrivals.signal().await
    }

    /// Waits for `length` bytes of data in packets that [`check_local`](Self::check_local) let pass.
    pub(super) async fn unpack(&self, row: Row, length: usize) -> Result<Vec<u8>> {
        let mut data = vec![0; length];
        if length == 0 {
            return Ok(data);
        }
        let mut done = 0;
        let look = |data: &mut [u8], done: usize| {
            // The words lie from here on; what is done is whole words.
            let at = row.at + done * 2;
            let address = self.local.region().address_of(at) as usize;
            let words = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: the area is registered for as long as the channel lives, and the range was checked; it begins at a multiple of 8.
            done + unsafe { load(words, &mut data[done..], row.flag) }
        };
        if self.reads_words {
            loop {
                let seen = self.arrivals.counter().value();
                for _ in 0..LOOKS {
                    done = look(&mut data, done);
                    if done == length {
                        return Ok(data);
                    }
                    std::hint::spin_loop();
                }
                moved(&self.arrivals, seen).await?;
            }
        }
        if self.spare.load(Relaxed) > 0 {
            done = look(&mut data, done);
        }
        while done < length {
            self.arrivals.wait().await?;
            self.spare.fetch_add(1, Relaxed);
            done = look(&mut data, done);
        }
        self.spare.fetch_sub(1, Relaxed);
        Ok(data)
    }
}

/// Packets in a row: where they begin in an area, how many bytes they take there, and their flag.
#[derive(Clone, Copy)]
pub(super) struct Row {
    at: usize,
    bytes: usize,
    flag: u32,
}

impl Row {
    /// Of packets that carry `length` bytes of data.
    /// Errors: `InvalidArgument`: a flag of 0, a place that is no multiple, more than there are addresses.
    pub(super) fn new(at: usize, length: usize, width: PacketWidth, flag: u32) -> Result<Self> {
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
        let bytes = width.packed(length);
        let bytes = bytes.ok_or_else(|| refused("more packets than there are addresses"))?;
        Ok(Self { at, bytes, flag })
    }
}

/// Waits until more has arrived than `seen`.
async fn moved(arrivals: &Semaphore, seen: u64) -> Result<()> {
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

#[cold]
pub(super) fn refused(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
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
