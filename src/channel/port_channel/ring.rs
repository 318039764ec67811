//! The ring of a device port: triggers that kernels put into pinned host memory.
//!
//! ```text
//! pinned host memory   [ slots, 16 bytes each | tail | done | failed | signals of each channel | a handle, on its way to the device ]
//! device memory        [ head | of each channel: its handle, signals that were taken ]
//!
//! kernels  head: reserve by compare and swap, if head - tail < slots; first word; second word with the parity (release, system)
//! proxy    next: second word (acquire), its parity is the lap's: first word; tail = next (release), for many at a time
//! ```
//! The proxy needs no locked instruction and no fence to take a trigger, and writes no word that a device reads for each: `tail` and `done` once for [`BATCH`] of
//! them, when the ring is empty, and `done` behind a flush.
//!
//! # Safety
//! Words of the pinned memory are read and written as atomics, by the host here and by the device as such at system scope. They and the device's memory live as
//! long as this: until no kernel can use them, which [`Ring::free_when_unused`] waits for. What kernels write is believed in nothing: a trigger is checked as any other.
#![allow(unsafe_code)]

use std::{
    mem::{ManuallyDrop, offset_of},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
};

use crate::{
    driver::cuda::{
        ContextGuard, DeviceAllocation, Event, PinnedAllocation, Status, Stream, Waiting,
    },
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

use super::handle::DevicePortHandle;

/// Slots, as a power of two.
const SHIFT: u32 = 9;
const SLOTS: u64 = 1 << SHIFT;
/// Triggers that are taken before their places are given back.
const BATCH: u64 = 32;
/// Bit 63 of the second word.
const PARITY: u64 = 1 << 63;
/// Bytes of the pinned memory, and of the device's.
const ROOM: usize = 16 << 10;
/// Channels of a port: as many as have room.
pub(super) const CHANNELS: usize = 60;

/// Where what is in the pinned memory, each word in a line of its own.
const TAIL: usize = 16 << SHIFT;
const DONE: usize = TAIL + 128;
const FAILED: usize = DONE + 128;
const SIGNALS: usize = FAILED + 128;
const STAGED: usize = SIGNALS + 64 * CHANNELS;
/// And in the device's.
const HEAD: usize = 0;
const HANDLES: usize = 256;
const HANDLE: usize = 256;
/// Within the room of a handle.
const TAKEN: usize = 128;

const _: () = {
    assert!(STAGED + size_of::<DevicePortHandle>() <= ROOM);
    assert!(HANDLES + HANDLE * CHANNELS <= ROOM);
    assert!(size_of::<DevicePortHandle>() <= TAKEN);
};

/// See the module.
pub(super) struct Ring {
    pinned: PinnedAllocation,
    device: DeviceAllocation,
    /// The program's, in which its kernels are.
    stream: Stream,
    /// Handles that were made.
    handles: Mutex<usize>,
    /// What the first trigger that failed has failed of.
    error: Mutex<Option<Error>>,
    /// No kernel uses it any more.
    gone: AtomicBool,
    done: AtomicU64,
}

impl Ring {
    /// One for kernels of a stream. May block.
    /// Errors: `Exhausted`, `DeviceLost`.
    pub(super) fn new(stream: Stream) -> Result<Self> {
        let context = stream.context().clone();
        let guard = context.enter()?;
        let pinned = guard.allocate_pinned(ROOM)?;
        let device = guard.allocate(ROOM)?;
        let own = guard.stream(false)?;
        // SAFETY: both are this function's own, and as long; the pinned memory is zeros, which nobody changes before the stream has passed the copy.
        // After an error the memory is freed by calls that wait for the device.
        unsafe { own.copy(&guard, device.ptr(), pinned.device_ptr(), ROOM) }?;
        own.synchronize(&guard)?;
        Ok(Self {
            pinned,
            device,
            stream,
            handles: Mutex::new(0),
            error: Mutex::new(None),
            gone: AtomicBool::new(false),
            done: AtomicU64::new(0),
        })
    }

    /// What kernels need for a channel whose triggers have these bits in their second word; and the number of its counter of signals. May block.
    /// Errors: `Exhausted`: [`CHANNELS`] were made; what the driver said.
    pub(super) fn handle(&self, base: u64) -> Result<(DevicePortHandle, usize)> {
        let mut handles = self.handles.lock();
        let number = *handles;
        if number == CHANNELS {
            let text = format!("a device port has {CHANNELS} channels at most");
            return Err(Error::new(ErrorKind::Exhausted, text));
        }
        let host = |at: usize| (self.pinned.device_ptr() + at as u64).0;
        let device = |at: usize| (self.device.ptr() + at as u64).0;
        let at = HANDLES + HANDLE * number;
        let handle = DevicePortHandle {
            size: size_of::<DevicePortHandle>() as u32,
            shift: SHIFT,
            ring: host(0),
            head: device(HEAD),
            tail: host(TAIL),
            done: host(DONE),
            failed: host(FAILED),
            base,
            arrived: host(SIGNALS + 64 * number),
            taken: device(at + TAKEN),
            address: device(at),
        };
        let words = [
            u64::from(handle.size) | u64::from(handle.shift) << 32,
            handle.ring,
            handle.head,
            handle.tail,
            handle.done,
            handle.failed,
            handle.base,
            handle.arrived,
            handle.taken,
            handle.address,
        ];
        const _: () = assert!(offset_of!(DevicePortHandle, address) == 8 * 9);
        for (index, word) in words.into_iter().enumerate() {
            self.word(STAGED + 8 * index).store(word, Relaxed);
        }
        let context = self.stream.context();
        let guard = context.enter()?;
        let own = guard.stream(false)?;
        let (to, from) = (
            self.device.ptr() + at as u64,
            self.pinned.device_ptr() + STAGED as u64,
        );
        // SAFETY: within both, which live as long as this; the source is changed by holders of the lock alone, and nobody knows the target yet.
        unsafe { own.copy(&guard, to, from, size_of::<DevicePortHandle>()) }?;
        own.synchronize(&guard)?;
        *handles += 1;
        Ok((handle, number))
    }

    /// Says how many signals have come for a channel.
    pub(super) fn signal(&self, number: usize, count: u64) {
        self.word(SIGNALS + 64 * number).store(count, Release);
    }

    /// Triggers that were done.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Acquire)
    }

    /// What has failed, once.
    pub(super) fn take_error(&self) -> Option<Error> {
        let mut error = self.error.lock();
        self.word(FAILED).store(0, Relaxed);
        error.take()
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at < ROOM);
        let first = self.pinned.as_ptr().cast::<AtomicU64>();
        // SAFETY: one of the words of the memory, which lives as long as this; the host and the device use it as an atomic word.
        unsafe { first.add(at / 8).as_ref() }
    }

    /// Waits, on a thread of its own, until the stream has passed all that is in it now, and says then that no kernel uses it any more. `kept` is dropped after
    /// that. Where it cannot be found out, neither happens.
    pub(super) fn free_when_unused(self: Arc<Self>, kept: impl FnOnce() + Send + 'static) {
        let last = self.mark();
        let ring = ManuallyDrop::new(self);
        let wait = move || {
            let waited = last.and_then(|last| {
                let guard = last.context().enter()?;
                last.wait(&guard)
            });
            match waited {
                // A context that is lost runs nothing any more; any other may.
                Err(error) if !Status::of(&error).is_some_and(Status::is_end) => {
                    tracing::warn!(target: "wharf::channel", %error, "whether a device port is over cannot be found out: its memory is kept");
                    let _kept = ManuallyDrop::new(kept);
                }
                waited => {
                    if let Err(error) = waited {
                        tracing::debug!(target: "wharf::channel", %error, "the end of a device port");
                    }
                    ring.gone.store(true, Release);
                    drop(ManuallyDrop::into_inner(ring));
                    kept();
                }
            }
        };
        let thread = thread::Builder::new().name("wharf-dev-port".to_owned());
        if let Err(error) = thread.spawn(wait) {
            tracing::warn!(target: "wharf::channel", %error, "no thread to wait for a device port's end: its memory is kept");
        }
    }

    /// An event behind all that is in the stream now.
    fn mark(&self) -> Result<Event> {
        let guard: ContextGuard<'_> = self.stream.context().enter()?;
        if self.stream.is_capturing(&guard)? {
            let text = "the stream is capturing a graph";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let event = guard.event(Waiting::Sleep)?;
        self.stream.record(&guard, &event)?;
        Ok(event)
    }
}

/// The proxy's side of a ring: there is one.
pub(super) struct Reader {
    ring: Arc<Ring>,
    next: u64,
    given_back: u64,
    /// Triggers that were done, and of how many the device was told.
    finished: u64,
    told: u64,
}

impl Reader {
    pub(super) fn new(ring: Arc<Ring>) -> Self {
        Self {
            ring,
            next: 0,
            given_back: 0,
            finished: 0,
            told: 0,
        }
    }

    /// Takes a trigger, if one is there.
    pub(super) fn pop(&mut self) -> Option<[u64; 2]> {
        let slot = 16 * (self.next % SLOTS) as usize;
        let second = self.ring.word(slot + 8).load(Acquire);
        if second & PARITY != Self::parity(self.next) {
            self.give_back();
            return None;
        }
        let first = self.ring.word(slot).load(Relaxed);
        self.next += 1;
        if self.next - self.given_back == BATCH {
            self.give_back();
        }
        Some([first, second & !PARITY])
    }

    /// Whether no trigger is there.
    pub(super) fn is_empty(&self) -> bool {
        let slot = 16 * (self.next % SLOTS) as usize;
        self.ring.word(slot + 8).load(Acquire) & PARITY != Self::parity(self.next)
    }

    /// Bit 63 of what is written to this place.
    fn parity(place: u64) -> u64 {
        match place / SLOTS % 2 {
            0 => PARITY,
            _ => 0,
        }
    }

    fn give_back(&mut self) {
        if self.given_back != self.next {
            self.given_back = self.next;
            self.ring.word(TAIL).store(self.next, Release);
        }
        self.tell();
    }

    /// All that was taken is done. Of a flush what came of it: a failure is told before it is said to be done.
    pub(super) fn finish(&mut self, flushed: Option<Result<()>>) {
        self.finished = self.next;
        self.ring.done.store(self.next, Release);
        let Some(flushed) = flushed else { return };
        if let Err(error) = flushed {
            let mut first = self.ring.error.lock();
            first.get_or_insert(error);
            self.ring.word(FAILED).store(1, Relaxed);
        }
        self.tell();
    }

    fn tell(&mut self) {
        if self.told != self.finished {
            self.told = self.finished;
            self.ring.word(DONE).store(self.finished, Release);
        }
    }

    /// Whether nothing can come any more.
    pub(super) fn is_gone(&self) -> bool {
        self.ring.gone.load(Acquire)
    }
}
