//! The sum over all ranks of a vector, at all ranks: a ring of memory channels.
//!
//! `cargo run --release --example ring_all_reduce -- [--ranks N] [--elements N] [--transports LIST]`. The program starts itself again for each
//! rank but the first. Every rank begins with a vector of its own and ends with the sum of all, which each checks to the bit.
//!
//! ```text
//! the vector in N chunks; rank r has channels to r + 1 (puts into its memory) and from r - 1 (waits for its signals)
//!
//! reduce   N - 1 steps: put the chunk that I added to last into the next rank's scratch; wait; add what has come into mine
//! gather   N - 1 steps: put the chunk that is complete into its place at the next rank; wait for the one that comes
//! ```
//!
//! A step's signal comes behind its put, so nobody reads too early. Nobody is overwritten too early either: in the scratch each step has its own place,
//! and a chunk that is complete has passed every rank, so its old content is needed nowhere.

#[path = "common/ranks.rs"]
pub(crate) mod ranks;

use std::{io::Write, ops::Range, process::ExitCode, time::Instant};

use tokio::process::Command;
use wharf::{
    Access, Context, Worker,
    channel::{Communicator, MemoryChannel, RegisteredMemory},
};

use ranks::{Outcome, follow, lead, runtime};

/// Bytes of an element.
const ELEMENT: usize = size_of::<u64>();
/// Times that it is done.
const ROUNDS: usize = 3;

/// What to do.
#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) ranks: usize,
    pub(crate) elements: usize,
    pub(crate) transports: String,
}

impl Default for Task {
    fn default() -> Self {
        Self {
            ranks: 4,
            elements: 1 << 20,
            transports: "self,shm,cma,tcp".into(),
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = parse(&arguments).and_then(|(task, rank)| match rank {
        0 => first(&task, |rank| {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(&arguments).args(["--rank", &rank.to_string()]);
            Ok(command)
        }),
        rank => other(&task, rank),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ring_all_reduce: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The task, and which rank this is.
pub(crate) fn parse(arguments: &[String]) -> Outcome<(Task, usize)> {
    let (mut task, mut rank) = (Task::default(), 0);
    for pair in arguments.chunks(2) {
        match pair {
            [name, value] if name == "--ranks" => task.ranks = value.parse()?,
            [name, value] if name == "--elements" => task.elements = value.parse()?,
            [name, value] if name == "--transports" => task.transports = value.clone(),
            [name, value] if name == "--rank" => rank = value.parse()?,
            _ => {
                return Err(
                    "usage: ring_all_reduce [--ranks N] [--elements N] [--transports LIST]".into(),
                );
            }
        }
    }
    match task.ranks {
        0 => Err("usage: a ring has at least one rank".into()),
        _ => Ok((task, rank)),
    }
}

/// Rank 0: starts the others.
pub(crate) fn first(task: &Task, command: impl Fn(usize) -> Outcome<Command>) -> Outcome<()> {
    runtime()?.block_on(async {
        let worker = worker(task)?;
        let (communicator, others) = lead(&worker, task.ranks, command).await?;
        let took = reduce(&communicator, task).await?;
        let bytes = task.elements * ELEMENT;
        // What each rank sends, for a vector of this length.
        let sent = 2.0 * bytes as f64 * (task.ranks - 1) as f64 / task.ranks as f64;
        let _ = writeln!(
            std::io::stdout(),
            "{} ranks, {} elements, {bytes} bytes: ok to the bit, {:.3} ms, {:.3} GB/s sent by each rank",
            task.ranks,
            task.elements,
            took * 1e3,
            sent / took.max(1e-9) / 1e9
        );
        others.end().await
    })
}

/// One of the others.
pub(crate) fn other(task: &Task, rank: usize) -> Outcome<()> {
    runtime()?.block_on(async {
        let worker = worker(task)?;
        let communicator = follow(&worker, rank, task.ranks).await?;
        reduce(&communicator, task).await?;
        // The process ends: what others still wait for goes out first.
        communicator.bootstrap().leave().await;
        Ok(())
    })
}

fn worker(task: &Task) -> Outcome<Worker> {
    let context = Context::builder().transports(&task.transports)?.build()?;
    Ok(Worker::new(&context)?)
}

/// Channels and memory of one rank.
struct Ring {
    rank: usize,
    size: usize,
    /// The vector, then a place for each step of the reduction.
    memory: RegisteredMemory,
    elements: usize,
    next: MemoryChannel,
    previous: MemoryChannel,
}

/// Sums, checks, and tells the seconds of the fastest round.
async fn reduce(communicator: &Communicator, task: &Task) -> Outcome<f64> {
    let ring = Ring::new(communicator, task.elements).await?;
    let mut fastest = f64::MAX;
    for round in 0..ROUNDS {
        let mine = values(ring.rank, round, ring.elements);
        ring.memory.write_at(0, &bytes(&mine))?;
        communicator.barrier().await?;
        let start = Instant::now();
        ring.sum().await?;
        fastest = fastest.min(start.elapsed().as_secs_f64());
        let mut expected = vec![0_u64; ring.elements];
        for rank in 0..ring.size {
            let theirs = values(rank, round, ring.elements);
            for (sum, value) in expected.iter_mut().zip(theirs) {
                *sum = sum.wrapping_add(value);
            }
        }
        if ring.read(0..ring.elements)? != expected {
            return Err(format!("rank {}: the sum is wrong", ring.rank).into());
        }
        // Nobody begins anew while another looks.
        communicator.barrier().await?;
    }
    Ok(fastest)
}

impl Ring {
    async fn new(communicator: &Communicator, elements: usize) -> Outcome<Self> {
        let (rank, size) = (communicator.rank(), communicator.size());
        let chunk = elements.div_ceil(size);
        let length = (elements + chunk * (size - 1)) * ELEMENT;
        let memory = communicator.worker().context().allocate(length).await?;
        let memory = communicator.register(memory, Access::WRITE).await?;
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let tag = |from: usize| u32::try_from(from);
        if size == 1 {
            let channel = MemoryChannel::connect(communicator, 0, 0, &memory).await?;
            return Ok(Self {
                rank,
                size,
                memory,
                elements,
                next: channel.clone(),
                previous: channel,
            });
        }
        // Each edge of the ring is a channel, under the number of the rank where it begins.
        let (next, previous) = tokio::try_join!(
            MemoryChannel::connect(communicator, next, tag(rank)?, &memory),
            MemoryChannel::connect(communicator, previous, tag(previous)?, &memory),
        )?;
        Ok(Self {
            rank,
            size,
            memory,
            elements,
            next,
            previous,
        })
    }

    /// The elements of a chunk. The last may be short, or empty.
    fn chunk(&self, number: usize) -> Range<usize> {
        let length = self.elements.div_ceil(self.size);
        let at = |number: usize| (number * length).min(self.elements);
        let number = number % self.size;
        at(number)..at(number + 1)
    }

    /// Where in the memory the scratch of a step begins, in elements.
    fn scratch(&self, step: usize) -> usize {
        self.elements + step * self.elements.div_ceil(self.size)
    }

    async fn sum(&self) -> Outcome<()> {
        let (rank, size) = (self.rank, self.size);
        for step in 0..size - 1 {
            let sent = self.chunk(rank + size - step);
            let received = self.chunk(rank + size - step - 1);
            let there = self.scratch(step);
            self.send(there, sent).await?;
            self.previous.wait().await?;
            let came = self.read(there..there + received.len())?;
            let mut sums = self.read(received.clone())?;
            for (sum, value) in sums.iter_mut().zip(came) {
                *sum = sum.wrapping_add(value);
            }
            self.memory
                .write_at(received.start * ELEMENT, &bytes(&sums))?;
        }
        for step in 0..size - 1 {
            let complete = self.chunk(rank + 1 + size - step);
            self.send(complete.start, complete).await?;
            self.previous.wait().await?;
        }
        Ok(())
    }

    /// Puts elements into the next rank's memory, and signals.
    async fn send(&self, there: usize, from: Range<usize>) -> wharf::Result<()> {
        let (to, at, length) = (there * ELEMENT, from.start * ELEMENT, from.len() * ELEMENT);
        self.next.put_with_signal(to, at, length).await
    }

    fn read(&self, elements: Range<usize>) -> Outcome<Vec<u64>> {
        let mut bytes = vec![0; elements.len() * ELEMENT];
        self.memory.read_at(elements.start * ELEMENT, &mut bytes)?;
        let words = bytes.as_chunks().0.iter();
        Ok(words.map(|word| u64::from_le_bytes(*word)).collect())
    }
}

/// What a rank begins with.
fn values(rank: usize, round: usize, elements: usize) -> Vec<u64> {
    let begin = (rank as u64 + 1) << 32 | (round as u64 + 1);
    (0..elements as u64)
        .map(|at| (at ^ begin).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .collect()
}

fn bytes(values: &[u64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}
