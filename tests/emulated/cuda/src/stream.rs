#![allow(unsafe_code)]
//! Streams: a queue each, and a thread that works through it late.
//!
//! ```text
//! call ──push──► queue ──► thread: permit? ─► random delay ─► engine ─► bytes move ─► done = sequence
//!                                   │                            │
//!                              held by a test         an error breaks the context,
//!                                                     and all that is queued is dropped
//! ```
//! A place in a stream is its sequence number: an event that was recorded is the stream and a number.
//!
//! # Safety
//! The program's functions are called with the pointer that it gave for them. A word of pinned memory is written while the
//! memory's table is locked and lists it, so that it cannot go away in between.

use std::{
    collections::VecDeque,
    ffi::c_void,
    sync::{
        Arc,
        atomic::{Ordering::SeqCst, fence},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use wharf_emulated_common::{
    backing,
    backing::Backing,
    pace::{Looks, takes},
    pattern,
    random::Random,
};

use crate::{
    abi::{Outcome, Status},
    context::Context,
    copy,
    driver::driver,
    event::Mark,
    gate,
    kernels::{self, Kernel, Reach, Touched},
    memory,
    memory::{Place, illegal},
    settings,
};

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    /// 0 for a default one.
    pub(crate) handle: u64,
    /// A number that is never used again.
    pub(crate) id: u64,
    /// Whose it is.
    pub(crate) context: Arc<Context>,
    /// Whether it waits for the default stream and the default stream for it.
    pub(crate) blocking: bool,
    /// As it was asked for.
    pub(crate) priority: i32,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(u64, Op)>,
    /// What the operation under way touches.
    touched: Touched,
    /// Sequence number of the last operation that was pushed.
    pushed: u64,
    /// All operations up to this one are done.
    done: u64,
    running: bool,
    ended: bool,
}

/// What a stream does.
#[derive(Debug)]
pub(crate) enum Op {
    /// Moves bytes.
    Copy { to: Place, from: Place, len: u64 },
    /// Repeats a value of `width` bytes.
    Fill {
        to: u64,
        value: u32,
        width: u64,
        len: u64,
    },
    /// Writes a word of 4 or 8 bytes.
    Write { to: u64, value: u64, width: u64 },
    /// Waits for a word.
    Wait {
        at: u64,
        value: u64,
        width: u64,
        how: u32,
    },
    /// Waits for a place in another stream.
    After(Arc<Stream>, u64),
    /// Notes the time.
    Mark(Arc<Mark>),
    /// Waits until the word at the start of a shared event reaches a number.
    AfterShared(Arc<Backing>, u64),
    /// Writes it.
    Share(Arc<Backing>, u64),
    /// The program's function, skipped on error.
    Host(extern "C" fn(*mut c_void), Data),
    /// The program's function, told of the error.
    Callback(extern "C" fn(u64, u32, *mut c_void), Data),
    /// A kernel.
    Kernel(Box<Kernel>),
    /// Gives memory of a pool back.
    Free(u64),
    /// Takes time, as a kernel does.
    Sleep(Duration),
    /// Writes the pattern of a seed, as a kernel might.
    Pattern { to: u64, len: u64, seed: u64 },
    /// Goes wrong, as a kernel might.
    Break(Status),
    /// Nothing: a place to wait for.
    Nothing,
}

/// The pointer that the program wants back.
#[derive(Debug)]
pub(crate) struct Data(pub(crate) *mut c_void);

// SAFETY: it is only handed back to the program, on another thread as the driver's documentation says.
unsafe impl Send for Data {}

impl Op {
    /// Where it reads and writes memory by its address, and how many bytes.
    fn touches(&self) -> Touched {
        let end = |place: &Place, len: u64| match place {
            Place::At(at) => Some((*at, len)),
            Place::Taken(_) => None,
        };
        match self {
            Self::Copy { to, from, len } => [end(to, *len), end(from, *len), None, None],
            Self::Fill { to, width, len, .. } => [Some((*to, width * len)), None, None, None],
            Self::Write { to, width, .. } => [Some((*to, *width)), None, None, None],
            Self::Wait { at, width, .. } => [Some((*at, *width)), None, None, None],
            Self::Pattern { to, len, .. } => [Some((*to, *len)), None, None, None],
            Self::Kernel(kernel) => kernel.touches(),
            _ => [None; 4],
        }
    }
}

impl Stream {
    /// A new stream of `context`. It is not in the table yet.
    pub(crate) fn new(
        handle: u64,
        context: &Arc<Context>,
        blocking: bool,
        priority: i32,
    ) -> Arc<Self> {
        Arc::new(Self {
            handle,
            id: driver().number(),
            context: Arc::clone(context),
            blocking,
            priority,
            queue: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Queues an operation; its sequence number.
    pub(crate) fn push(self: &Arc<Self>, op: Op) -> Outcome<u64> {
        for (stream, place) in self.default_order() {
            self.push_here(Op::After(stream, place))?;
        }
        self.push_here(op)
    }

    /// What the rules of the default stream make this stream wait for.
    fn default_order(&self) -> Vec<(Arc<Self>, u64)> {
        if !self.blocking {
            return Vec::new();
        }
        let others = match self.handle {
            0 => self.context.streams(),
            _ => Vec::from_iter(self.context.used_default_stream().cloned()),
        };
        let others = others.into_iter();
        others
            .filter(|other| other.blocking && other.id != self.id)
            .map(|other| {
                let place = other.queue.lock().pushed;
                (other, place)
            })
            .filter(|(other, place)| !other.reached(*place))
            .collect()
    }

    fn push_here(self: &Arc<Self>, op: Op) -> Outcome<u64> {
        let mut queue = self.queue.lock();
        if queue.ended {
            return Err(Status::INVALID_HANDLE);
        }
        if !queue.running {
            let stream = Arc::clone(self);
            thread::Builder::new()
                .name("emulated-dma".to_owned())
                .spawn(move || stream.run())
                .map_err(|_| Status::OUT_OF_MEMORY)?;
            queue.running = true;
        }
        queue.pushed += 1;
        let sequence = queue.pushed;
        queue.waiting.push_back((sequence, op));
        self.changed.notify_all();
        Ok(sequence)
    }

    /// Its last place.
    pub(crate) fn place(&self) -> u64 {
        self.queue.lock().pushed
    }

    /// Whether all up to `place` is done.
    pub(crate) fn reached(&self, place: u64) -> bool {
        self.queue.lock().done >= place
    }

    /// Whether nothing is queued.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        queue.done == queue.pushed
    }

    /// How many of the operations that are queued, or under way, touch one of `len` bytes at `start`.
    pub(crate) fn uses(&self, start: u64, len: u64) -> usize {
        let queue = self.queue.lock();
        let queued = queue.waiting.iter().map(|(_, op)| op.touches());
        queued
            .chain([queue.touched])
            .filter(|touched| {
                let mut touched = touched.iter().flatten();
                touched.any(|(at, bytes)| *at < start + len && start < at + bytes)
            })
            .count()
    }

    /// Waits until all up to `place` is done.
    pub(crate) fn wait(&self, place: u64) -> Outcome {
        let start = Instant::now();
        let limit = Duration::from_millis(settings::HANG_MS.get());
        let mut queue = self.queue.lock();
        while queue.done < place {
            self.context.check()?;
            self.changed.wait_for(&mut queue, Duration::from_millis(50));
            if start.elapsed() > limit {
                eprintln!(
                    "emulated CUDA driver: a call waits for stream {:#x} for more than {limit:?} (hang_ms): {} operations are queued, the first is {:?}",
                    self.handle,
                    queue.pushed - queue.done,
                    queue.waiting.front()
                );
                std::process::abort();
            }
        }
        drop(queue);
        self.context.check()
    }

    /// Waits until all is done.
    pub(crate) fn wait_all(&self) -> Outcome {
        self.wait(self.place())
    }

    /// Makes its thread look at the state of the context.
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    /// Takes nothing more; its thread ends after what is queued.
    pub(crate) fn end(&self) {
        self.queue.lock().ended = true;
        self.changed.notify_all();
    }

    fn run(self: Arc<Self>) {
        let mut random = Random::new(settings::SEED.get() ^ self.id.rotate_left(32));
        loop {
            let (sequence, op) = {
                let mut queue = self.queue.lock();
                loop {
                    if let Some(next) = queue.waiting.pop_front() {
                        queue.touched = next.1.touches();
                        break next;
                    }
                    if queue.ended {
                        return;
                    }
                    self.changed.wait(&mut queue);
                }
            };
            let broken = || self.context.check().is_err();
            if !broken() {
                driver().devices[self.context.device].wait_for_permit(broken);
            }
            if op.moves_bytes() {
                let most = settings::DELAY_US.get();
                // Half of them go at once, or small delays would all be the timer's resolution.
                if most > 0 && random.next().is_multiple_of(2) {
                    takes(Duration::from_micros(random.up_to(most)));
                }
            }
            let is_kernel = matches!(op, Op::Kernel(_));
            self.execute(op);
            self.see(is_kernel);
            let mut queue = self.queue.lock();
            queue.done = sequence;
            queue.touched = [None; 4];
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// What is seen of an operation that has ended: what kernels wrote, unless the next operation is a kernel as well and nobody can know that this one has
    /// ended; and by kernels what anything else did.
    fn see(&self, is_kernel: bool) {
        let floor = &driver().devices[self.context.device].floor;
        if !is_kernel {
            floor.refresh();
            return;
        }
        let next = self.queue.lock();
        if matches!(next.waiting.front(), Some((_, Op::Kernel(_)))) {
            return;
        }
        drop(next);
        if self.context.check().is_ok()
            && let Err(fault) = floor.settle(&Reach(self.context.device))
        {
            self.context.fail(kernels::status_of(&fault));
        }
    }

    fn execute(&self, op: Op) {
        let status = self.context.check();
        if let Op::Callback(function, data) = op {
            let code = status.map_or_else(|error| error.0, |()| 0);
            gate::as_host_function(|| function(self.handle, code, data.0));
            return;
        }
        if status.is_err() {
            return;
        }
        if let Err(error) = self.work(op) {
            self.context.fail(error);
        }
    }

    fn work(&self, op: Op) -> Outcome {
        let device = self.context.device;
        match op {
            Op::Copy { to, from, len } => copy::execute(&to, &from, len, device),
            Op::Fill {
                to,
                value,
                width,
                len,
            } => {
                let value = value.to_le_bytes();
                let width = width as usize;
                let is_one_byte = value[..width].iter().all(|byte| *byte == value[0]);
                write_bytes(to, len, device, |bytes, index| {
                    if is_one_byte {
                        return bytes.fill(value[0]);
                    }
                    for (at, byte) in (index as usize..).zip(bytes) {
                        *byte = value[at % width];
                    }
                })
            }
            Op::Pattern { to, len, seed } => write_bytes(to, len, device, |bytes, index| {
                pattern::fill(bytes, seed, index);
            }),
            Op::Write { to, value, width } => {
                change_word(to, width, device, &mut |_| Some(value)).map(drop)
            }
            Op::Wait {
                at,
                value,
                width,
                how,
            } => self.until(|| {
                let word = change_word(at, width, device, &mut |_| None)?;
                Ok(holds(word, value, width, how))
            }),
            Op::After(stream, place) => {
                // An error in the other's context is not this one's.
                while !stream.reached(place)
                    && stream.context.check().is_ok()
                    && self.context.check().is_ok()
                {
                    let mut queue = stream.queue.lock();
                    if queue.done < place {
                        stream
                            .changed
                            .wait_for(&mut queue, Duration::from_millis(2));
                    }
                }
                Ok(())
            }
            Op::Mark(mark) => {
                mark.pass();
                Ok(())
            }
            Op::AfterShared(words, number) => self.until(|| {
                let mut word = [0; 8];
                words
                    .read(0, &mut word)
                    .map_err(|_| Status::OPERATING_SYSTEM)?;
                Ok(u64::from_le_bytes(word) >= number)
            }),
            Op::Share(words, number) => words
                .write(0, &number.to_le_bytes())
                .map_err(|_| Status::OPERATING_SYSTEM),
            Op::Host(function, data) => {
                gate::as_host_function(|| function(data.0));
                Ok(())
            }
            Op::Kernel(kernel) => kernel.run(device, || self.context.check().is_err()),
            Op::Free(address) => {
                let gone = driver().memory.lock().free_pooled(address);
                drop(gone);
                Ok(())
            }
            Op::Sleep(time) => {
                takes(time);
                Ok(())
            }
            Op::Break(status) => Err(status),
            Op::Callback(..) | Op::Nothing => Ok(()),
        }
    }

    /// Asks again and again, until it is so or the context is broken.
    fn until(&self, mut so: impl FnMut() -> Outcome<bool>) -> Outcome {
        let mut looks = Looks::new();
        while !so()? {
            if self.context.check().is_err() {
                return Ok(());
            }
            looks.pause();
        }
        Ok(())
    }
}

impl Op {
    const fn moves_bytes(&self) -> bool {
        matches!(
            self,
            Self::Copy { .. }
                | Self::Fill { .. }
                | Self::Write { .. }
                | Self::Pattern { .. }
                | Self::Kernel(_)
        )
    }
}

/// Writes made-up bytes over `len` bytes at the address `to`, in pieces.
pub(crate) fn write_bytes(
    to: u64,
    len: u64,
    device: usize,
    mut make: impl FnMut(&mut [u8], u64),
) -> Outcome {
    let mut piece = vec![0; len.min(1 << 20) as usize];
    let mut done = 0;
    while done < len {
        let count = (len - done).min(piece.len() as u64);
        make(&mut piece[..count as usize], done);
        copy::write(to + done, &piece[..count as usize], device)?;
        done += count;
    }
    Ok(())
}

/// Whether the word satisfies `CUstreamWaitValue_flags`.
const fn holds(word: u64, value: u64, width: u64, how: u32) -> bool {
    let all = if width == 4 {
        u32::MAX as u64
    } else {
        u64::MAX
    };
    match how & 3 {
        0 if width == 4 => (word as u32).wrapping_sub(value as u32) as i32 >= 0,
        0 => word.wrapping_sub(value) as i64 >= 0,
        1 => word == value & all,
        2 => word & value & all != 0,
        _ => !(word | value) & all != 0,
    }
}

/// Changes an aligned word with nothing in between, behind all that was written before; `None` leaves it. What it was.
pub(crate) fn change_word(
    at: u64,
    width: u64,
    device: usize,
    change: &mut dyn FnMut(u64) -> Option<u64>,
) -> Outcome<u64> {
    let memory = driver().memory.lock();
    fence(SeqCst);
    if memory.is_pinned(at, width) {
        if !backing::is_mapped(at, width) {
            return Err(illegal(device, at, width, "pinned, but not mapped"));
        }
        // SAFETY: aligned, as was checked when it was queued; pinned memory of the program, which cannot be freed or
        // unregistered while the table is locked; others use it as an atomic word.
        return Ok(unsafe { backing::change_word(at, width, change) });
    }
    let spans = memory.spans(at, width, device)?;
    drop(memory);
    match spans.as_deref() {
        Some([span]) => {
            let changed = span.backing.word(span.offset, width, change);
            changed.map_err(|error| illegal(device, at, width, error))
        }
        _ => Err(illegal(device, at, width, "no word of one piece")),
    }
}

/// Queues a word operation, after the checks that the driver makes in the call.
pub(crate) fn push_word(stream: &Arc<Stream>, op: Op) -> Outcome<u64> {
    let (at, width) = match &op {
        Op::Write { to, width, .. } => (*to, *width),
        Op::Wait { at, width, .. } => (*at, *width),
        _ => return Err(Status::INVALID_VALUE),
    };
    if !at.is_multiple_of(width) {
        return Err(Status::INVALID_VALUE);
    }
    if width == 8 && !settings::WORDS64.on() {
        return Err(Status::NOT_SUPPORTED);
    }
    let class = driver().memory.lock().classify(at, width)?;
    match class {
        memory::Class::Device { .. } | memory::Class::Pinned => stream.push(op),
        memory::Class::Managed | memory::Class::Pageable => Err(Status::INVALID_VALUE),
    }
}
