//! Copies: packets in command buffers, submitted to a queue, waited for by number.
//!
//! ```text
//! CommandRing ── slot 0 │ slot 1 │ … one page of packets each, as the card reads them while it works
//!      submit ──► Submission (number) ── poll / wait ──► done: the slot is free again
//! Card ── the numbers whose end nobody has read: at most 32 running, and none older than the kernel remembers
//! ```
//! What is too much for the kernel to remember, or for the library not to spin, is `WouldBlock` (`flights`); an end that would be forgotten is
//! read in time, and kept for who asks.
//!
//! Submissions on one queue run in their order; across queues there is none but by waiting.
//!
//! # Safety
//! A slot is written by the one call that has taken it from the list of free ones, and goes back there when the card has been heard to be done with
//! it. Chunks and results are live locals. What the packets have the card do is the promise of who submits them.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    fmt,
    num::NonZeroUsize,
    os::fd::BorrowedFd,
    ptr::{self, NonNull},
    sync::{Arc, atomic},
    time::Duration,
};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::{Card, Chip, HostMapping, LinDma, PACKET, flights::Outcome, status::Errno, sys};
use crate::{
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

/// Longest single wait. The kernel's own arithmetic ends at 2³² µs.
const LONGEST: Duration = Duration::from_secs(1);
/// Bytes of a slot: a page.
const SLOT: usize = 4096;
/// Packets of a submission at most.
pub(crate) const PACKETS: usize = SLOT / PACKET;

/// A queue of a card's engines, by the number that the kernel's driver gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Queue(pub(crate) u32);

impl Card {
    /// The queue for copies from host memory to the device.
    pub(crate) fn queue_in(&self) -> Queue {
        Queue(0)
    }
    /// The queue for copies from the device to host memory.
    pub(crate) fn queue_out(&self) -> Queue {
        Queue(4)
    }

    /// The queues for copies within the card: at least one. Without an engine for them, the one that copies in does it.
    pub(crate) fn queues_within(&self) -> Vec<Queue> {
        // Two engines in each of four parts of a Gaudi 2; those that failed the factory's tests are off in the mask. The first Gaudi's engines
        // take no command buffers of the kernel's.
        const ENGINES: [u32; 8] = [8, 12, 48, 52, 84, 88, 120, 124];
        let mask = self.hw().edma_mask;
        let on = |bit: usize| self.chip() == Chip::Gaudi2 && mask >> bit & 1 == 1;
        let engines = ENGINES.into_iter().enumerate();
        let queues: Vec<Queue> = engines
            .filter(|(bit, _)| on(*bit))
            .map(|(_, queue)| Queue(queue))
            .collect();
        if queues.is_empty() {
            return vec![self.queue_in()];
        }
        queues
    }

    /// Waits until one of up to 32 submissions, by their numbers, has ended, for `timeout` and a second at most. Bit `i` of the answer: the `i`th
    /// has ended, well or not, as its own [`Submission::poll`] tells. 0: the time ran out.
    /// Errors: `InvalidArgument`: none, more than 32, or a number that was never given; `DeviceLost`, `Closed`, `Forked`.
    pub(crate) fn wait_any(&self, seqs: &[u64], timeout: Duration) -> Result<u32> {
        if seqs.is_empty() || seqs.len() > sys::WAIT_MULTI_MAX {
            let text = format!("{self}: a wait for {} submissions", seqs.len());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let known = self.flights.ended(seqs);
        if known != 0 {
            return Ok(known);
        }
        let call = "hlthunk_wait_for_multi_cs";
        let Some(wait) = self.library().api.hlthunk_wait_for_multi_cs else {
            let ended = self.outcome(seqs[0], timeout)?;
            return Ok(u32::from(ended.is_some()));
        };
        let mut input = sys::WaitMultiIn {
            seq: seqs.as_ptr(),
            timeout_us: micros(timeout),
            // At most 32.
            seq_len: seqs.len() as u32,
            pad: 0,
        };
        let mut output = sys::WaitMultiOut {
            status: sys::WAIT_BUSY,
            seq_set: 0,
            completed: 0,
            pad: [0; 3],
        };
        // SAFETY: the numbers and both structs live through the call.
        let result =
            self.with_live_fd(|fd| unsafe { wait(fd, &raw mut input, &raw mut output) })?;
        match Errno::from_result(result) {
            None if output.status == sys::WAIT_BUSY => Ok(0),
            None => Ok(output.seq_set),
            // One of them failed: each tells for itself.
            Some(Errno(libc::EIO | libc::ETIMEDOUT)) => Ok(u32::MAX >> (32 - seqs.len())),
            Some(errno) => Err(self.failed(errno, call)),
        }
    }

    /// How a submission ended; `None`: it is still running after `timeout`.
    ///
    /// # Errors
    /// The question failed; `DeviceLost`: the card is in no state to answer.
    fn outcome(&self, seq: u64, timeout: Duration) -> Result<Option<Outcome>> {
        let call = self.library().api.hlthunk_wait_for_cs;
        let mut status = sys::WAIT_BUSY;
        // SAFETY: writes one number.
        let result =
            self.with_fd(|fd| unsafe { call(fd, seq, micros(timeout), &raw mut status) })?;
        // The status means something only where the result says so.
        match Errno::from_result(result) {
            None if status == sys::WAIT_BUSY => Ok(None),
            None if status == sys::WAIT_COMPLETED => Ok(Some(Ok(()))),
            None => Ok(Some(Err(Errno(libc::EIO)))),
            Some(errno @ Errno(libc::EIO | libc::ETIMEDOUT)) => Ok(Some(Err(errno))),
            Some(errno) => Err(self.failed(errno, "hlthunk_wait_for_cs")),
        }
    }

    /// Has the card carry out what a command buffer says. One at a time.
    fn command(&self, queue: Queue, chunk: &mut sys::CsChunk) -> Result<u64> {
        let _one = self.flights.submitting.lock();
        self.make_room()?;
        chunk.queue_index = queue.0;
        let mut input = sys::CsIn {
            chunks_restore: ptr::null_mut(),
            chunks_execute: ptr::from_mut(chunk).cast(),
            num_chunks_restore: 0,
            num_chunks_execute: 1,
            flags: 0,
            pad: 0,
        };
        let mut output = sys::CsOut {
            seq: 0,
            status: u32::MAX,
            sob_count: 0,
            pad: 0,
        };
        let call = self.library().api.hlthunk_command_submission;
        // SAFETY: one chunk and both structs, which live through the call.
        let result =
            self.with_live_fd(|fd| unsafe { call(fd, &raw mut input, &raw mut output) })?;
        self.checked(result, "hlthunk_command_submission")?;
        if output.status != sys::CS_STATUS_SUCCESS || output.seq == 0 {
            let text = format!(
                "{self}: hlthunk_command_submission: status {} for submission {}",
                output.status, output.seq
            );
            return Err(Error::new(ErrorKind::Io, text));
        }
        self.flights.begin(output.seq);
        Ok(output.seq)
    }

    /// Sees to it that one more submission may be made: reads how those ended whose end nobody has read.
    ///
    /// # Errors
    /// `WouldBlock`; `DeviceLost`.
    fn make_room(&self) -> Result<()> {
        if self.flights.has_room() {
            return Ok(());
        }
        for seq in self.flights.running() {
            if let Some(outcome) = self.outcome(seq, Duration::ZERO)? {
                self.flights.end(seq, outcome);
            }
        }
        if self.flights.has_room() {
            return Ok(());
        }
        let text = format!("{self}: its queues are full; wait for a submission");
        Err(Error::new(ErrorKind::WouldBlock, text))
    }
}

fn micros(timeout: Duration) -> u64 {
    // At most a million.
    timeout.min(LONGEST).as_micros() as u64
}

/// Command buffers of a card, a page each: what is submitted stands there until the card is done with it. A cheap clone; may be used by many threads.
#[derive(Clone)]
pub(crate) struct CommandRing(Arc<Ring>);

struct Ring {
    /// Before the card, which it uses.
    buffers: Buffers,
    card: Arc<Card>,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    free: Vec<usize>,
    /// Those of submissions that were dropped while they ran.
    orphans: Vec<(usize, u64)>,
}

enum Buffers {
    /// Pages of this process, mapped for the card: Gaudi 2.
    User { pages: Pages, mapping: HostMapping },
    /// The kernel's: the first Gaudi, whose driver reads the packets itself.
    Kernel(Vec<KernelBuffer>),
}

impl Card {
    /// Makes command buffers for `slots` submissions at a time, 1 to 1024.
    /// Errors: `Unsupported`: the card takes no submissions, the library has not the calls, or the card is borrowed: what Synapse's firmware runs on it does not
    /// go together with submissions; `InvalidArgument`, `Exhausted`, `DeviceLost`, `Closed`,
    /// `Forked`.
    pub(crate) fn command_ring(self: &Arc<Self>, slots: usize) -> Result<CommandRing> {
        if !(1..=1024).contains(&slots) {
            let text = format!("{self}: a ring of {slots} command buffers");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if !self.is_owned() {
            let text = format!("{self} belongs to Synapse in this process, which must copy there");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let buffers = match self.chip() {
            Chip::Gaudi => {
                let buffers = (0..slots).map(|_| KernelBuffer::new(self));
                Buffers::Kernel(buffers.collect::<Result<_>>()?)
            }
            Chip::Gaudi2 => {
                let pages = Pages::new(slots * SLOT)?;
                let mapping = self.map_host(pages.start.addr().get() as u64, pages.len as u64)?;
                Buffers::User { pages, mapping }
            }
            chip => {
                let text =
                    format!("{self}: a {chip} takes no command submissions; Synapse copies there");
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
        };
        Ok(CommandRing(Arc::new(Ring {
            buffers,
            card: Arc::clone(self),
            slots: Mutex::new(Slots {
                free: (0..slots).rev().collect(),
                orphans: Vec::new(),
            }),
        })))
    }
}

impl CommandRing {
    /// Submits packets, at most [`PACKETS`], to a queue. Without further calls where the card has room; microseconds.
    /// Errors: `WouldBlock`: as many are running as may; nothing was submitted, and it may be tried again when one has ended. `InvalidArgument`: no packets, too many, one
    /// that no packet can be, or a queue that is not there; `DeviceLost`, `Closed`, `Forked`.
    ///
    /// # Safety
    /// Until the submission has been seen to have ended, or the card was closed: all that the packets name stays allocated and mapped for the card, nobody
    /// uses host memory that they write, and nobody changes what they read. A mapping that goes before is a fault of the card, which resets it.
    pub(crate) unsafe fn submit(&self, queue: Queue, packets: &[LinDma]) -> Result<Submission> {
        let ring = &self.0;
        // In a child made by `fork` there are no pages to write to.
        ring.card.with_live_fd(|_| ())?;
        if packets.is_empty() || packets.len() > PACKETS {
            let text = format!("{}: a submission of {} packets", ring.card, packets.len());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let mut bytes = [0; SLOT];
        for (packet, place) in packets.iter().zip(bytes.chunks_exact_mut(PACKET)) {
            place.copy_from_slice(&packet.encode(ring.card.chip())?);
        }
        let used = packets.len() * PACKET;
        let slot = ring.take()?;
        ring.write(slot, &bytes[..used]);
        // The card sees the packets before the submission.
        atomic::fence(atomic::Ordering::Release);
        let mut chunk = ring.chunk(slot, used);
        match ring.card.command(queue, &mut chunk) {
            Ok(seq) => Ok(Submission {
                ring: Arc::clone(ring),
                slot,
                seq,
                ended: false,
            }),
            Err(error) => {
                ring.give_back(slot);
                Err(error)
            }
        }
    }
}

impl Ring {
    fn take(&self) -> Result<usize> {
        let orphans = {
            let mut slots = self.slots.lock();
            if let Some(slot) = slots.free.pop() {
                return Ok(slot);
            }
            slots.orphans.clone()
        };
        for (_, seq) in orphans {
            if self.card.flights.is_running(seq)
                && let Some(outcome) = self.card.outcome(seq, Duration::ZERO)?
            {
                self.card.flights.end(seq, outcome);
            }
        }
        let mut slots = self.slots.lock();
        let slots = &mut *slots;
        slots.orphans.retain(|(slot, seq)| {
            let running = self.card.flights.is_running(*seq);
            if !running {
                slots.free.push(*slot);
            }
            running
        });
        slots.free.pop().ok_or_else(|| {
            let text = format!("{}: all command buffers are in use", self.card);
            Error::new(ErrorKind::WouldBlock, text)
        })
    }

    fn give_back(&self, slot: usize) {
        self.slots.lock().free.push(slot);
    }

    fn write(&self, slot: usize, bytes: &[u8]) {
        let to = match &self.buffers {
            Buffers::User { pages, .. } => pages.start.as_ptr().wrapping_add(slot * SLOT),
            Buffers::Kernel(buffers) => buffers[slot].start.as_ptr(),
        };
        // SAFETY: a page that only the taker of the slot writes, and at most a page of bytes from elsewhere.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    fn chunk(&self, slot: usize, used: usize) -> sys::CsChunk {
        let (cb_handle, cs_chunk_flags) = match &self.buffers {
            Buffers::User { mapping, .. } => {
                (mapping.device() + (slot * SLOT) as u64, sys::CHUNK_USER_CB)
            }
            Buffers::Kernel(buffers) => (buffers[slot].handle, 0),
        };
        sys::CsChunk {
            cb_handle,
            queue_index: 0,
            // At most a page.
            cb_size: used as u32,
            cs_chunk_flags,
            collective_engine_id: 0,
            pad: [0; 10],
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let orphans = std::mem::take(&mut self.slots.get_mut().orphans);
        let still_running = orphans.into_iter().any(|(_, seq)| {
            let flights = &self.card.flights;
            if !flights.is_running(seq) {
                return false;
            }
            match self.card.outcome(seq, Duration::ZERO) {
                Ok(Some(outcome)) => {
                    flights.end(seq, outcome);
                    false
                }
                Ok(None) | Err(_) => true,
            }
        });
        // The card may still read packets: its pages stay pinned until it is closed. The kernel's own buffers it keeps itself.
        if still_running && let Buffers::User { mapping, .. } = &mut self.buffers {
            mapping.keep();
        }
    }
}

impl fmt::Debug for CommandRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command buffers of {}", self.0.card)
    }
}

/// A submission under way, or ended. Dropped before its end, it goes on, and its command buffer is used again after it.
#[must_use = "what was submitted has not ended until it is asked"]
pub(crate) struct Submission {
    ring: Arc<Ring>,
    slot: usize,
    seq: u64,
    ended: bool,
}

impl Submission {
    /// Its number: larger than that of every earlier one of the card.
    pub(crate) fn seq(&self) -> u64 {
        self.seq
    }

    /// Whether it has ended well. One call that does not wait, or none.
    /// Errors: `DeviceLost`: it failed, or the card is in no state to say. Host memory that it writes may then still be written until the card was closed.
    pub(crate) fn poll(&mut self) -> Result<bool> {
        self.wait(Duration::ZERO)
    }

    /// As [`Submission::poll`], after at most `timeout` and a second. For a thread that may block.
    /// Errors: as of [`Submission::poll`].
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<bool> {
        if self.ended {
            return Ok(true);
        }
        let card = &self.ring.card;
        let outcome = match card.flights.known(self.seq) {
            Some(outcome) => Some(outcome),
            None => card.outcome(self.seq, timeout)?,
        };
        match outcome {
            None => Ok(false),
            Some(Ok(())) => {
                card.flights.read(self.seq);
                self.ring.give_back(self.slot);
                self.ended = true;
                Ok(true)
            }
            Some(Err(errno)) => {
                // Kept, to be said again to who asks again.
                card.flights.end(self.seq, Err(errno));
                let call = format!("submission {}", self.seq);
                Err(card.failed(errno, &call))
            }
        }
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if self.ring.card.flights.forget(self.seq) {
            self.ring.give_back(self.slot);
        } else {
            self.ring.slots.lock().orphans.push((self.slot, self.seq));
        }
    }
}

impl fmt::Debug for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "submission {} to {}", self.seq, self.ring.card)
    }
}

/// Pages of this process alone: a child made by `fork` does not get them, so that writing to them never moves them.
struct Pages {
    start: NonNull<u8>,
    len: usize,
    process: u32,
}

// SAFETY: memory of the process; who writes where is the ring's to see to.
unsafe impl Send for Pages {}
// SAFETY: as for Send.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(len: usize) -> Result<Self> {
        let size = NonZeroUsize::new(len).unwrap_or(NonZeroUsize::MIN);
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: no fixed address: nothing that exists is touched.
        let start = unsafe { mmap_anonymous(None, size, rights, MapFlags::MAP_PRIVATE) }
            .map_err(|errno| Error::io("pages for command buffers", errno))?;
        let pages = Self {
            start: start.cast(),
            len,
            process: std::process::id(),
        };
        // SAFETY: the pages above. Nobody forks into them.
        unsafe { madvise(start, len, MmapAdvise::MADV_DONTFORK) }
            .map_err(|errno| Error::io("pages for command buffers", errno))?;
        Ok(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // In a child made by `fork` they are not, and something else may be in their place.
        if self.process != std::process::id() {
            return;
        }
        // SAFETY: mapped once, unmapped once.
        if let Err(errno) = unsafe { munmap(self.start.cast::<c_void>(), self.len) } {
            tracing::warn!(target: "wharf::gaudi", "pages of command buffers stay mapped: {errno}");
        }
    }
}

/// A command buffer of the kernel's, mapped into this process.
struct KernelBuffer {
    card: Arc<Card>,
    handle: u64,
    start: NonNull<u8>,
}

// SAFETY: memory of the process; who writes where is the ring's to see to.
unsafe impl Send for KernelBuffer {}
// SAFETY: as for Send.
unsafe impl Sync for KernelBuffer {}

impl KernelBuffer {
    fn new(card: &Arc<Card>) -> Result<Self> {
        let call = "hlthunk_request_command_buffer";
        let api = &card.library().api;
        let request = card
            .library()
            .optional(api.hlthunk_request_command_buffer, call)?;
        card.library().optional(
            api.hlthunk_destroy_command_buffer,
            "hlthunk_destroy_command_buffer",
        )?;
        let mut handle = 0;
        // SAFETY: writes one handle.
        let result =
            card.with_live_fd(|fd| unsafe { request(fd, SLOT as u32, &raw mut handle) })?;
        card.checked(result, call)?;
        let mapped = card.with_live_fd(|fd| {
            let size = NonZeroUsize::new(SLOT).unwrap_or(NonZeroUsize::MIN);
            let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            // SAFETY: the card's descriptor is open through the call.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            // The handle is the offset, whatever its sign.
            let offset = handle.cast_signed();
            // SAFETY: no fixed address: nothing that exists is touched.
            unsafe { mmap(None, size, rights, MapFlags::MAP_SHARED, fd, offset) }
        });
        let error = match mapped {
            Ok(Ok(start)) => {
                return Ok(Self {
                    card: Arc::clone(card),
                    handle,
                    start: start.cast(),
                });
            }
            Ok(Err(errno)) => Error::io(format!("{card}: mapping a command buffer"), errno),
            Err(error) => error,
        };
        destroy(card, handle);
        Err(error)
    }
}

impl Drop for KernelBuffer {
    fn drop(&mut self) {
        // In a child made by `fork` something else may be in its place.
        if self.card.is_forked() {
            return;
        }
        // SAFETY: mapped once, unmapped once.
        if let Err(errno) = unsafe { munmap(self.start.cast::<c_void>(), SLOT) } {
            tracing::warn!(target: "wharf::gaudi", "a command buffer stays mapped: {errno}");
        }
        destroy(&self.card, self.handle);
    }
}

fn destroy(card: &Card, handle: u64) {
    let Some(call) = card.library().api.hlthunk_destroy_command_buffer else {
        return;
    };
    // SAFETY: requested once, destroyed once, and mapped no more.
    let result = card.with_fd(|fd| unsafe { call(fd, handle) });
    if result.is_ok_and(|result| result < 0) && !card.is_lost() {
        tracing::warn!(target: "wharf::gaudi", "{card}: a command buffer was not given back");
    }
}
