//! Streams: for each direction a queue, and a thread that works through it late.
//!
//! ```text
//! call ──push──► queue of the direction ──► thread: held? ─► random delay ─► bytes move ─► done = sequence
//! ```
//! A place in a stream is one sequence number for each direction: what an event holds once it is recorded. A stream that is
//! to wait for an event has the wait in every queue.

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU8, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use wharf_emulated_common::{
    pace::{Looks, takes},
    random::Random,
};

use crate::{
    abi::{Outcome, Status},
    device::Device,
    gate::runtime,
    memory, settings,
};

/// `synDmaDir`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Direction {
    ToDevice,
    ToHost,
    Within,
}

impl Direction {
    /// The direction of a number.
    pub(crate) const fn of(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::ToDevice),
            1 => Some(Self::ToHost),
            2 => Some(Self::Within),
            _ => None,
        }
    }
}

/// Whose memory an end of a copy is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    Host,
    Device,
}

/// The directions that a test keeps from starting: a bit each.
pub(crate) static HELD: AtomicU8 = AtomicU8::new(0);

/// A place in a stream.
pub(crate) type Place = [u64; 3];

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    device: Arc<Device>,
    number: u64,
    /// By direction.
    pipes: [Pipe; 3],
}

#[derive(Debug, Default)]
struct Pipe {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(u64, Op)>,
    /// What is being done.
    current: Option<Op>,
    pushed: u64,
    done: u64,
    /// Who wants to know when a number is done.
    stamps: Vec<(u64, Arc<Stamp>)>,
    thread: Option<JoinHandle<()>>,
    ended: bool,
}

/// What a direction does.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Moves bytes.
    Copy { from: u64, len: u64, to: u64 },
    /// Writes a value again and again.
    Fill { to: u64, len: u64, value: [u8; 4] },
    /// Does nothing until another stream has come to a place.
    Wait { stream: Arc<Stream>, place: Place },
    /// Loses the device.
    Break(Status),
}

impl Op {
    /// Whether it reads or writes some of a range.
    fn uses(&self, direction: Direction, end: End, start: u64, len: u64) -> bool {
        let meets = |at: u64, some: u64| at < start + len && start < at + some;
        let (source, target) = match direction {
            Direction::ToDevice => (End::Host, End::Device),
            Direction::ToHost => (End::Device, End::Host),
            Direction::Within => (End::Device, End::Device),
        };
        match *self {
            Self::Copy {
                from,
                len: some,
                to,
            } => (source == end && meets(from, some)) || (target == end && meets(to, some)),
            Self::Fill { to, len: some, .. } => end == End::Device && meets(to, some),
            Self::Wait { .. } | Self::Break(_) => false,
        }
    }
}

/// When a place in a stream was reached: when the last of its directions was.
#[derive(Debug, Default)]
pub(crate) struct Stamp(Mutex<(u8, u64)>);

impl Stamp {
    /// One direction has come there.
    fn reached(&self) {
        // Nanoseconds since this library was first asked for the time. Never 0, which to the card means that there is no time yet.
        static START: OnceLock<Instant> = OnceLock::new();
        let now = START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1;
        let mut stamp = self.0.lock();
        stamp.0 += 1;
        stamp.1 = stamp.1.max(now);
    }

    fn nanos(&self) -> Option<u64> {
        let (directions, nanos) = *self.0.lock();
        (directions == 3).then_some(nanos)
    }
}

/// What an event marks.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) stream: Arc<Stream>,
    pub(crate) place: Place,
    stamp: Option<Arc<Stamp>>,
}

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    takes_time: bool,
    /// Where it was recorded last.
    recorded: Mutex<Option<Mark>>,
}

impl Event {
    /// A new event. It is not in the table yet.
    pub(crate) fn new(takes_time: bool) -> Arc<Self> {
        Arc::new(Self {
            takes_time,
            recorded: Mutex::default(),
        })
    }

    /// Marks the end of what a stream has been given.
    pub(crate) fn record(&self, stream: &Arc<Stream>) {
        let stamp = self.takes_time.then(Arc::default);
        let place = stream.mark(stamp.as_ref());
        let stream = Arc::clone(stream);
        *self.recorded.lock() = Some(Mark {
            stream,
            place,
            stamp,
        });
    }

    /// Where it was recorded; a misuse when it was not.
    pub(crate) fn mark(&self, call: &str) -> Option<Mark> {
        let mark = self.recorded.lock().clone();
        if mark.is_none() {
            runtime()
                .journal
                .misuse(format!("{call} of an event that was never recorded"));
        }
        mark
    }

    /// When it was reached.
    pub(crate) fn nanos(&self) -> Outcome<u64> {
        if !self.takes_time {
            return Err(Status::INVALID_ARGUMENT);
        }
        let mark = self.recorded.lock().clone().ok_or(Status::NOT_RECORDED)?;
        mark.stamp
            .and_then(|stamp| stamp.nanos())
            .ok_or(Status::BUSY)
    }
}

impl Stream {
    /// A new stream. It is not in the table yet.
    pub(crate) fn new(device: &Arc<Device>, number: u64) -> Arc<Self> {
        Arc::new(Self {
            device: Arc::clone(device),
            number,
            pipes: Default::default(),
        })
    }

    /// Queues an operation.
    pub(crate) fn push(self: &Arc<Self>, direction: Direction, op: Op) -> Outcome {
        let pipe = &self.pipes[direction as usize];
        let mut queue = pipe.queue.lock();
        if queue.ended {
            return Err(Status::INVALID_ARGUMENT);
        }
        if queue.thread.is_none() {
            let stream = Arc::clone(self);
            let thread = thread::Builder::new()
                .name("emulated-pdma".to_owned())
                .spawn(move || stream.run(direction))
                .map_err(|_| Status::ALL_RESOURCES_TAKEN)?;
            queue.thread = Some(thread);
        }
        queue.pushed += 1;
        let sequence = queue.pushed;
        queue.waiting.push_back((sequence, op));
        pipe.changed.notify_all();
        Ok(())
    }

    /// Has everything that is pushed from now on wait for a place in another stream.
    pub(crate) fn wait_for(self: &Arc<Self>, stream: &Arc<Self>, place: Place) -> Outcome {
        for direction in [Direction::ToDevice, Direction::ToHost, Direction::Within] {
            let stream = Arc::clone(stream);
            self.push(direction, Op::Wait { stream, place })?;
        }
        Ok(())
    }

    /// The end of what it has been given; the stamp will tell when it was reached.
    fn mark(&self, stamp: Option<&Arc<Stamp>>) -> Place {
        [0, 1, 2].map(|pipe: usize| {
            let mut queue = self.pipes[pipe].queue.lock();
            let pushed = queue.pushed;
            match stamp {
                Some(stamp) if queue.done < pushed => {
                    queue.stamps.push((pushed, Arc::clone(stamp)));
                }
                Some(stamp) => stamp.reached(),
                None => {}
            }
            pushed
        })
    }

    /// Whether something that is not done uses some of a range.
    pub(crate) fn uses(&self, end: End, start: u64, len: u64) -> bool {
        let directions = [Direction::ToDevice, Direction::ToHost, Direction::Within];
        directions.into_iter().any(|direction| {
            let queue = self.pipes[direction as usize].queue.lock();
            let waiting = queue.waiting.iter().map(|(_, op)| op);
            let mut all = queue.current.iter().chain(waiting);
            all.any(|op| op.uses(direction, end, start, len))
        })
    }

    /// The end of what it has been given.
    pub(crate) fn place(&self) -> Place {
        [0, 1, 2].map(|pipe: usize| self.pipes[pipe].queue.lock().pushed)
    }

    /// Whether all up to a place is done.
    pub(crate) fn reached(&self, place: Place) -> bool {
        self.pipes
            .iter()
            .zip(place)
            .all(|(pipe, number)| pipe.queue.lock().done >= number)
    }

    /// Waits until all up to a place is done.
    pub(crate) fn wait(&self, place: Place) -> Outcome {
        let start = Instant::now();
        let limit = Duration::from_millis(settings::HANG_MS.get());
        for (pipe, number) in self.pipes.iter().zip(place) {
            let mut queue = pipe.queue.lock();
            while queue.done < number {
                self.device.check()?;
                pipe.changed.wait_for(&mut queue, Duration::from_millis(20));
                if start.elapsed() > limit {
                    eprintln!(
                        "emulated Synapse: a call waits for more than {limit:?} (hang_ms): the first in its queue is {:?}",
                        queue.waiting.front().map(|(_, op)| op)
                    );
                    std::process::abort();
                }
            }
        }
        self.device.check()
    }

    /// Makes its threads look at the device.
    pub(crate) fn wake(&self) {
        for pipe in &self.pipes {
            pipe.changed.notify_all();
        }
    }

    /// Takes nothing more, and waits until its threads have ended, after what is queued.
    pub(crate) fn end(&self) {
        for pipe in &self.pipes {
            let thread = {
                let mut queue = pipe.queue.lock();
                queue.ended = true;
                queue.thread.take()
            };
            pipe.changed.notify_all();
            if let Some(thread) = thread {
                // It panics only where this emulator is wrong, and has said so then.
                let _ = thread.join();
            }
        }
    }

    fn run(self: Arc<Self>, direction: Direction) {
        let pipe = &self.pipes[direction as usize];
        let seed = settings::SEED.get() ^ (self.number * 3 + direction as u64).rotate_left(32);
        let mut random = Random::new(seed);
        loop {
            let (sequence, op) = {
                let mut queue = pipe.queue.lock();
                loop {
                    if let Some((sequence, op)) = queue.waiting.pop_front() {
                        queue.current = Some(op.clone());
                        break (sequence, op);
                    }
                    if queue.ended {
                        return;
                    }
                    pipe.changed.wait(&mut queue);
                }
            };
            let whole = || self.device.check().is_ok();
            let mut looks = Looks::new();
            while HELD.load(SeqCst) & (1 << direction as u8) != 0 && whole() {
                looks.pause();
            }
            if whole() {
                self.execute(direction, op, &mut random);
            }
            let mut queue = pipe.queue.lock();
            queue.current = None;
            queue.done = sequence;
            let reached = queue
                .stamps
                .extract_if(.., |(number, _)| *number <= sequence);
            reached.for_each(|(_, stamp)| stamp.reached());
            drop(queue);
            pipe.changed.notify_all();
        }
    }

    fn execute(&self, direction: Direction, op: Op, random: &mut Random) {
        match op {
            Op::Copy { from, len, to } => {
                let most = settings::DELAY_US.get();
                // Half of them go at once, or small delays would all be the timer's resolution.
                if most > 0 && random.next().is_multiple_of(2) {
                    takes(Duration::from_micros(random.up_to(most)));
                }
                // The device is lost then, which everybody sees.
                let _ = memory::execute(&self.device, direction, from, len, to);
            }
            Op::Fill { to, len, value } => {
                let _ = memory::fill(&self.device, to, len, value);
            }
            // A device that is lost meanwhile waits for nothing.
            Op::Wait { stream, place } => drop(stream.wait(place)),
            Op::Break(status) => self.device.lose(status),
        }
    }
}
