//! Streams: for each direction a queue, and a thread that works through it late.
//!
//! ```text
//! call ──push──► queue of the direction ──► thread: held? ─► random delay ─► bytes move ─► done = sequence
//! ```
//! A place in a stream is one sequence number for each direction: what an event holds once it is recorded.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
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

/// The directions that a test keeps from starting: a bit each.
pub(crate) static HELD: AtomicU8 = AtomicU8::new(0);

/// A place in a stream.
pub(crate) type Place = [u64; 3];

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    device: Arc<Device>,
    number: u64,
    lanes: [Lane; 3],
}

#[derive(Debug, Default)]
struct Lane {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(u64, Op)>,
    pushed: u64,
    done: u64,
    thread: Option<JoinHandle<()>>,
    ended: bool,
}

/// What a direction does.
#[derive(Debug)]
pub(crate) enum Op {
    /// Moves bytes.
    Copy { from: u64, len: u64, to: u64 },
    /// Writes one value.
    Fill { to: u64, len: u64, value: u8 },
    /// Loses the device.
    Break(Status),
}

/// An event.
#[derive(Debug, Default)]
pub(crate) struct Event {
    /// Where it was recorded last.
    pub(crate) recorded: Mutex<Option<(Arc<Stream>, Place)>>,
}

impl Event {
    /// Where it was recorded; a misuse when it was not.
    pub(crate) fn place(&self, call: &str) -> Option<(Arc<Stream>, Place)> {
        let place = self.recorded.lock().clone();
        if place.is_none() {
            runtime()
                .journal
                .misuse(format!("{call} of an event that was never recorded"));
        }
        place
    }
}

impl Stream {
    /// A new stream. It is not in the table yet.
    pub(crate) fn new(device: &Arc<Device>, number: u64) -> Arc<Self> {
        Arc::new(Self {
            device: Arc::clone(device),
            number,
            lanes: Default::default(),
        })
    }

    /// Queues an operation.
    pub(crate) fn push(self: &Arc<Self>, direction: Direction, op: Op) -> Outcome {
        let lane = &self.lanes[direction as usize];
        let mut queue = lane.queue.lock();
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
        lane.changed.notify_all();
        Ok(())
    }

    /// The end of what it has been given.
    pub(crate) fn place(&self) -> Place {
        [0, 1, 2].map(|lane: usize| self.lanes[lane].queue.lock().pushed)
    }

    /// Whether all up to a place is done.
    pub(crate) fn reached(&self, place: Place) -> bool {
        self.lanes
            .iter()
            .zip(place)
            .all(|(lane, number)| lane.queue.lock().done >= number)
    }

    /// Waits until all up to a place is done.
    pub(crate) fn wait(&self, place: Place) -> Outcome {
        let start = Instant::now();
        let limit = Duration::from_millis(settings::HANG_MS.get());
        for (lane, number) in self.lanes.iter().zip(place) {
            let mut queue = lane.queue.lock();
            while queue.done < number {
                self.device.check()?;
                lane.changed.wait_for(&mut queue, Duration::from_millis(20));
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
        for lane in &self.lanes {
            lane.changed.notify_all();
        }
    }

    /// Takes nothing more, and waits until its threads have ended, after what is queued.
    pub(crate) fn end(&self) {
        for lane in &self.lanes {
            let thread = {
                let mut queue = lane.queue.lock();
                queue.ended = true;
                queue.thread.take()
            };
            lane.changed.notify_all();
            if let Some(thread) = thread {
                // It panics only where this emulator is wrong, and has said so then.
                let _ = thread.join();
            }
        }
    }

    fn run(self: Arc<Self>, direction: Direction) {
        let lane = &self.lanes[direction as usize];
        let seed = settings::SEED.get() ^ (self.number * 3 + direction as u64).rotate_left(32);
        let mut random = Random::new(seed);
        loop {
            let (sequence, op) = {
                let mut queue = lane.queue.lock();
                loop {
                    if let Some(next) = queue.waiting.pop_front() {
                        break next;
                    }
                    if queue.ended {
                        return;
                    }
                    lane.changed.wait(&mut queue);
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
            lane.queue.lock().done = sequence;
            lane.changed.notify_all();
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
            Op::Break(status) => self.device.lose(status),
        }
    }
}
