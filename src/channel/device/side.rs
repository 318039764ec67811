//! What a channel has on the device: addresses, the stream, and what is under way in it.
//!
//! # Safety
//! Addresses lie in memory that the channel holds or has open: this rank's memory and its block of counters are registered, the peer's are open here or of
//! this process. All of it is kept until the stream has passed the last kernel: [`Side::free_when_unused`] waits for that on a thread of its own, and where it cannot
//! be found out the memory is never freed. Status words are read and written by the host as atomics; one is used again after the kernel that writes it
//! has ended.
#![allow(unsafe_code)]

use std::{
    collections::VecDeque,
    mem::ManuallyDrop,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
};

use crate::{
    channel::RegisteredMemory,
    driver::cuda::{ContextGuard, DevicePtr, Event, PinnedAllocation, Status, Stream, Waiting},
    error::{Error, ErrorKind, Operation, Result},
    transport::ImportedMemory,
    util::lock::Mutex,
};

use super::kernels::{Kernels, Signal};

/// Operations of a channel that may be under way in its stream.
pub(super) const WINDOW: usize = 256;
/// Bytes of the page of status words.
const STATUS: usize = 4 * WINDOW;

/// Where things are in a block of counters, which both ends have: each in a line of its own.
pub(super) mod block {
    /// Raised by the peer, 8 bytes.
    pub(crate) const ARRIVED: u64 = 0;
    /// Signals that were taken, 8 bytes.
    pub(crate) const TAKEN: u64 = 128;
    /// Signals that were sent by stores, 8 bytes.
    pub(crate) const SENT: u64 = 256;
    /// Blocks of a put that have ended, 4 bytes.
    pub(crate) const DONE: u64 = 384;
    /// The peer's packets.
    pub(crate) const PACKETS: u64 = 512;
}

/// Where a channel's memory is, as this device has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) local: DevicePtr,
    pub(super) remote: DevicePtr,
    pub(super) block: DevicePtr,
    pub(super) remote_block: DevicePtr,
}

/// See the module.
pub(super) struct Side {
    pub(super) stream: Stream,
    pub(super) kernels: Arc<Kernels>,
    pub(super) at: Addresses,
    /// Whether the peer's memory takes atomics from this device.
    pub(super) atomics: bool,
    pub(super) status: PinnedAllocation,
    pub(super) flight: Mutex<Flight>,
    /// Whether the program's own kernels may use it, of which only the stream knows.
    pub(super) is_lent: AtomicBool,
    /// What is kept for the kernels.
    pub(super) _memory: [RegisteredMemory; 2],
    pub(super) _imported: Vec<ImportedMemory>,
}

/// The number of a status word, and where what it says goes.
type Slot = (usize, Arc<AtomicU32>);

/// What is under way, in the stream's order.
pub(super) struct Flight {
    /// What could not be given an event is over with what comes behind it.
    under_way: VecDeque<(Option<Event>, Option<Slot>)>,
    /// Status words that nobody uses.
    free: Vec<usize>,
}

impl Default for Flight {
    fn default() -> Self {
        Self {
            under_way: VecDeque::new(),
            free: (0..WINDOW).collect(),
        }
    }
}

impl Side {
    /// The peer's counter.
    pub(super) fn signal(&self) -> Signal {
        let token = self.at.remote_block + block::ARRIVED;
        match self.atomics {
            true => Signal::Add(token),
            false => Signal::Store(token, self.at.block + block::SENT),
        }
    }

    /// Enqueues kernels. With `waits` they have a status word, and what they leave in it is given back: 1 when they have waited in vain, to be looked at
    /// behind [`Side::reap`].
    /// Errors: `WouldBlock`: [`WINDOW`] are under way; `InvalidArgument`: the stream is capturing a graph; what the driver said.
    pub(super) fn enqueue(
        &self,
        waits: bool,
        launch: impl FnOnce(&ContextGuard<'_>, DevicePtr) -> Result<()>,
    ) -> Result<Arc<AtomicU32>> {
        let guard = self.stream.context().enter()?;
        let mut flight = self.flight.lock();
        self.reap_from(&mut flight, &guard)?;
        if flight.under_way.len() >= WINDOW {
            let text = format!("{WINDOW} operations of the channel are under way");
            return Err(Error::new(ErrorKind::WouldBlock, text).during(Operation::Put));
        }
        if self.stream.is_capturing(&guard)? {
            let text = "the stream is capturing a graph: no operation can be enqueued in it now";
            return Err(Error::new(ErrorKind::InvalidArgument, text).during(Operation::Put));
        }
        let event = guard.event(Waiting::Sleep)?;
        // There are as many as the window has places.
        let slot = if waits { flight.free.pop() } else { None };
        let index = slot.unwrap_or(0);
        if slot.is_some() {
            self.word(index).store(0, Release);
        }
        let launched = launch(&guard, self.status.device_ptr() + 4 * index as u64);
        let recorded = self.stream.record(&guard, &event);
        let result = Arc::new(AtomicU32::new(0));
        let slot = slot.map(|index| (index, Arc::clone(&result)));
        // Even after an error: some of it may be under way. An event that was not recorded counts as reached.
        let event = recorded.is_ok().then_some(event);
        flight.under_way.push_back((event, slot));
        launched.and(recorded).map(|()| result)
    }

    /// Takes note of what has ended.
    pub(super) fn reap(&self) -> Result<()> {
        let guard = self.stream.context().enter()?;
        self.reap_from(&mut self.flight.lock(), &guard)
    }

    fn reap_from(&self, flight: &mut Flight, guard: &ContextGuard<'_>) -> Result<()> {
        if let Some((last @ None, _)) = flight.under_way.back_mut() {
            // Without one it would be under way for ever, if nothing comes behind it.
            *last = self.mark(guard).ok();
        }
        let Flight { under_way, free } = flight;
        while let Some((at, event)) = (under_way.iter().enumerate())
            .find_map(|(at, (event, _))| event.as_ref().map(|event| (at, event)))
        {
            if !event.is_done(guard)? {
                break;
            }
            for (index, result) in under_way.drain(..=at).filter_map(|(_, slot)| slot) {
                result.store(self.word(index).load(Acquire), Relaxed);
                free.push(index);
            }
        }
        Ok(())
    }

    /// An event behind all that is in the stream now.
    fn mark(&self, guard: &ContextGuard<'_>) -> Result<Event> {
        // It would become a part of the graph, and the capture be broken by whoever waits for it.
        if self.stream.is_capturing(guard)? {
            let text = "the stream is capturing a graph";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let event = guard.event(Waiting::Sleep)?;
        self.stream.record(guard, &event)?;
        Ok(event)
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        debug_assert!(4 * index < STATUS);
        let word = self.status.as_ptr().cast::<AtomicU32>();
        // SAFETY: one of the words of the page, which lives as long as this; the host and the device use it as an atomic word.
        unsafe { word.add(index).as_ref() }
    }

    /// The page of status words.
    pub(super) fn status(guard: &ContextGuard<'_>) -> Result<PinnedAllocation> {
        guard.allocate_pinned(STATUS)
    }

    /// Drops it when the stream has passed all that is in it now, on a thread of its own. Where that cannot be found out, or no thread can be had, never.
    pub(super) fn free_when_unused(mut self) {
        let last = self.last();
        let side = ManuallyDrop::new(self);
        let wait = move || {
            let waited = last.and_then(|last| {
                let Some(last) = last else { return Ok(()) };
                let guard = last.context().enter()?;
                last.wait(&guard)
            });
            match waited {
                // A context that is lost runs nothing any more; any other may.
                Err(error) if !Status::of(&error).is_some_and(Status::is_end) => {
                    tracing::warn!(target: "wharf::channel", %error, "whether a device channel is over cannot be found out: its memory is kept");
                }
                waited => {
                    if let Err(error) = waited {
                        tracing::debug!(target: "wharf::channel", %error, "the end of a device channel");
                    }
                    drop(ManuallyDrop::into_inner(side));
                }
            }
        };
        let thread = thread::Builder::new().name("wharf-dev-channel".to_owned());
        if let Err(error) = thread.spawn(wait) {
            tracing::warn!(target: "wharf::channel", %error, "no thread to wait for a device channel's end: its memory is kept");
        }
    }

    /// An event behind all that uses the memory; `None`: nothing does.
    fn last(&mut self) -> Result<Option<Event>> {
        if !self.is_lent.load(Relaxed) && self.flight.get_mut().under_way.is_empty() {
            // Nor is the stream asked, which may be gone.
            return Ok(None);
        }
        let marked = self
            .stream
            .context()
            .enter()
            .and_then(|guard| self.mark(&guard));
        let error = match marked {
            Ok(event) => return Ok(Some(event)),
            Err(error) => error,
        };
        if self.is_lent.load(Relaxed) {
            return Err(error);
        }
        match self.flight.get_mut().under_way.pop_back() {
            Some((None, _)) => Err(error),
            Some((event, _)) => Ok(event),
            None => Ok(None),
        }
    }
}
