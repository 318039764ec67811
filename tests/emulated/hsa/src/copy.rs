#![allow(unsafe_code)]
//! Copies on the engines' threads, and handlers on theirs.
//!
//! # Safety
//! A handler is the program's function with the program's argument: called as it was registered, on one thread, one after the other.

use std::{
    sync::Once,
    thread,
    time::{Duration, Instant},
};

use parking_lot::MutexGuard;
use wharf_emulated_common::{backing::copy_host, pace::takes, random::Random};

use crate::{
    abi::{OnSignal, Outcome, Status},
    agent::{self, HOST, Index},
    event,
    memory::{Place, Unreachable},
    runtime::runtime,
    settings,
    signal::{self, Signals},
};

/// A copy that was submitted.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) by: Index,
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) len: u64,
    pub(crate) after: Vec<u64>,
    pub(crate) done: u64,
    pub(crate) late: Option<u32>,
    /// Never used again.
    pub(crate) number: u64,
}

/// A handler that waits for its signal.
#[derive(Clone, Copy, Debug)]
struct Handler {
    signal: u64,
    condition: u32,
    bound: i64,
    run: unsafe extern "C" fn(i64, usize) -> bool,
    argument: usize,
}

/// What waits, and the signals.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) signals: Signals,
    copies: Vec<Copy>,
    /// Copies whose bytes move now.
    running: Vec<Copy>,
    handlers: Vec<Handler>,
    /// For each agent that is held: how many copies may still start.
    held: Vec<(Index, u64)>,
    /// Devices that failed.
    pub(crate) lost: Vec<Index>,
    numbers: u64,
}

impl Work {
    /// Whether something waits for a signal, or is to change it.
    pub(crate) fn uses(&self, signal: u64) -> bool {
        let copies = self.copies.iter().chain(&self.running);
        copies
            .clone()
            .any(|copy| copy.done == signal || copy.after.contains(&signal))
            || self.handlers.iter().any(|handler| handler.signal == signal)
    }

    /// Whether a copy that is not done reads or writes some of these bytes.
    pub(crate) fn touches(&self, start: u64, len: u64) -> bool {
        let meets = |at: u64, copy: &Copy| at < start + len && start < at + copy.len;
        let mut copies = self.copies.iter().chain(&self.running);
        copies.any(|copy| meets(copy.to, copy) || meets(copy.from, copy))
    }

    /// Forgets all: the runtime was shut down.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Copies, handlers that wait.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.copies.len() + self.running.len(), self.handlers.len())
    }

    /// Lets only `count` more copies of an agent start; `None`: all.
    pub(crate) fn hold(&mut self, agent: Index, count: Option<u64>) {
        self.held.retain(|(held, _)| *held != agent);
        self.held.extend(count.map(|count| (agent, count)));
        runtime().changed.notify_all();
    }

    /// Lets `count` more copies of an agent that is held start.
    pub(crate) fn step(&mut self, agent: Index, count: u64) {
        for (held, left) in &mut self.held {
            if *held == agent {
                *left += count;
            }
        }
        runtime().changed.notify_all();
    }

    /// Takes a copy of an agent that may begin.
    fn next(&mut self, by: Index, random: &mut Random) -> Option<Copy> {
        let held = self.held.iter().position(|(held, _)| *held == by);
        if held.is_some_and(|place| self.held[place].1 == 0) || self.lost.contains(&by) {
            return None;
        }
        let ready =
            |copy: &&Copy| copy.by == by && copy.after.iter().all(|dep| signal::value(*dep) == 0);
        let count = self.copies.iter().filter(ready).count() as u64;
        if count == 0 {
            return None;
        }
        let chosen = if settings::REORDER.on() {
            random.up_to(count - 1)
        } else {
            0
        };
        let place = (0..self.copies.len())
            .filter(|place| ready(&&self.copies[*place]))
            .nth(chosen as usize)?;
        if let Some(held) = held {
            self.held[held].1 -= 1;
        }
        let copy = self.copies.remove(place);
        self.running.push(copy.clone());
        Some(copy)
    }

    /// Takes a handler whose condition holds, and its value. Those of destroyed signals are forgotten, as the real runtime does.
    fn next_handler(&mut self) -> Option<(Handler, i64)> {
        let signals = &self.signals.0;
        self.handlers
            .retain(|handler| signals.contains(&handler.signal));
        let holds = |handler: &Handler| {
            signal::holds(
                handler.condition,
                signal::value(handler.signal),
                handler.bound,
            )
        };
        let place = self.handlers.iter().position(holds)?;
        let handler = self.handlers.swap_remove(place);
        Some((handler, signal::value(handler.signal)))
    }
}

/// `hsa_amd_memory_async_copy`, when all was checked.
pub(crate) fn submit(mut copy: Copy) {
    start_engines();
    let mut work = runtime().work.lock();
    work.numbers += 1;
    copy.number = work.numbers;
    for dep in &copy.after {
        if signal::value(*dep) < 0 {
            runtime().journal.misuse(format!(
                "a copy waits for signal {dep:#x}, which is negative: it never begins"
            ));
        }
    }
    if work.lost.contains(&copy.by) {
        if settings::FAULT_REPORTS.on() {
            work.complete(copy.done, Some(1));
        }
        return;
    }
    work.copies.push(copy);
    runtime().changed.notify_all();
}

/// The agent that makes a copy: the source's if it is a device, else the target's. The host makes none.
pub(crate) fn maker(to: Index, from: Index) -> Outcome<Index> {
    match if from == HOST { to } else { from } {
        HOST => Err(Status::ERROR),
        device => Ok(device),
    }
}

/// A device failed: what waits on it is never done, or reported.
pub(crate) fn lose(by: Index) {
    let mut work = runtime().work.lock();
    if !work.lost.contains(&by) {
        work.lost.push(by);
    }
    let all = std::mem::take(&mut work.copies);
    let (gone, rest) = all.into_iter().partition(|copy| copy.by == by);
    work.copies = rest;
    drop(work);
    let gone: Vec<Copy> = gone;
    if settings::FAULT_REPORTS.on() {
        for copy in gone {
            runtime().work.lock().complete(copy.done, Some(1));
        }
    }
}

fn start_engines() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        for by in agent::all().skip(1) {
            for engine in 0..settings::ENGINES.get().clamp(1, 8) {
                let seed = settings::SEED.get() ^ ((by as u64) << 32 | engine << 8);
                spawn("emulated-sdma", move || run_engine(by, Random::new(seed)));
            }
        }
    });
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) {
    let started = thread::Builder::new().name(name.to_owned()).spawn(run);
    if let Err(error) = started {
        crate::runtime::die(&format!("no thread {name}: {error}"));
    }
}

fn run_engine(by: Index, mut random: Random) {
    loop {
        let copy = wait_for(&mut runtime().work.lock(), |work| {
            work.next(by, &mut random)
        });
        let delay = random.up_to(settings::DELAY_US.get()) + settings::COPY_US.get();
        takes(Duration::from_micros(delay));
        let moved = match copy.late {
            Some(_) => Ok(()),
            None => carry_out(&copy),
        };
        finish(&copy, moved.is_err());
        if let Err(Unreachable(address)) = moved {
            event::memory_fault(by, address);
        }
    }
}

/// The copy is not under way any more, and its signal tells.
fn finish(copy: &Copy, faulted: bool) {
    let mut work = runtime().work.lock();
    let failed = faulted || work.lost.contains(&copy.by);
    work.running.retain(|running| running.number != copy.number);
    if !failed {
        work.complete(copy.done, copy.late);
    } else if settings::FAULT_REPORTS.on() {
        work.complete(copy.done, Some(1));
    }
}

fn carry_out(copy: &Copy) -> Result<(), Unreachable> {
    let (to, from) = {
        let memory = runtime().memory.lock();
        (
            memory.place(copy.to, copy.len, copy.by)?,
            memory.place(copy.from, copy.len, copy.by)?,
        )
    };
    let len = copy.len;
    let (done, at) = match (&to, &from) {
        (Place::Device(to, at), Place::Device(from, start)) => {
            (from.copy_to(*start, to, *at, len), copy.to)
        }
        (Place::Device(to, at), Place::Host(from)) => (to.write_from(*at, *from, len), copy.from),
        (Place::Host(to), Place::Device(from, start)) => (from.read_to(*start, *to, len), copy.to),
        (Place::Host(to), Place::Host(from)) => (copy_host(*to, *from, len), copy.to),
    };
    done.map_err(|_| Unreachable(at))
}

/// Waits until `take` gives something.
fn wait_for<T>(work: &mut MutexGuard<'_, Work>, mut take: impl FnMut(&mut Work) -> Option<T>) -> T {
    loop {
        if let Some(found) = take(work) {
            return found;
        }
        runtime().changed.wait(work);
    }
}

/// `hsa_amd_signal_async_handler`.
pub(crate) fn watch(
    signal: u64,
    condition: u32,
    bound: i64,
    run: OnSignal,
    argument: usize,
) -> Outcome {
    static STARTED: Once = Once::new();
    let run = run.ok_or(Status::INVALID_ARGUMENT)?;
    signal::check(signal)?;
    runtime().work.lock().handlers.push(Handler {
        signal,
        condition,
        bound,
        run,
        argument,
    });
    runtime().changed.notify_all();
    STARTED.call_once(|| spawn("emulated-handlers", run_handlers));
    Ok(())
}

fn run_handlers() {
    loop {
        let (handler, value) = wait_for(&mut runtime().work.lock(), Work::next_handler);
        takes(Duration::from_micros(settings::HANDLER_US.get()));
        let arguments = [handler.signal, value as u64, 0, 0];
        runtime().journal.call("handler", arguments, 0);
        // SAFETY: see the head of the file.
        let again = unsafe { (handler.run)(value, handler.argument) };
        if again {
            runtime().work.lock().handlers.push(handler);
        }
    }
}

/// `hsa_signal_wait`: the value, when the condition holds or so many nanoseconds have passed.
pub(crate) fn wait(signal: u64, condition: u32, bound: i64, nanos: u64) -> i64 {
    let limit = Duration::from_nanos(nanos.min(60_000_000_000));
    let end = Instant::now() + limit;
    let _ = signal::load(signal);
    let mut work = runtime().work.lock();
    loop {
        let value = signal::value(signal);
        if signal::holds(condition, value, bound)
            || runtime().changed.wait_until(&mut work, end).timed_out()
        {
            return value;
        }
    }
}
