//! What a memory channel between two processes does: put, get and packets of 1 KiB, 1 MiB and 128 MiB, and the time from a signal to the task that
//! it wakes.
//!
//! `cargo run --release --example perf_memory_channel -- [--device cuda|gaudi|rocm] [--transports LIST] [--host-only] [--quick]`. The program starts
//! itself again as the second process. First the memory of the host, then that of a device: of this machine, or where there is none an emulated one,
//! which is said, and whose rates say nothing of a device's.
//!
//! As in the tutorial of MSCCL++'s memory channel both ends move the same bytes at the same time, a signal each way before and, for a put, after; the
//! rate is that of one direction. Packets carry as much again in flags. `one way` is a put by rank 0 alone, beside one `memcpy` of the same bytes.

#[allow(dead_code, reason = "the rest is for others")]
#[path = "common/accelerator.rs"]
pub(crate) mod accelerator;
#[path = "common/ranks.rs"]
pub(crate) mod ranks;

use std::{
    hint::black_box,
    process::ExitCode,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};
use tokio::process::Command;
use wharf::{
    Access, BufferMut, Context, MemoryType, Worker,
    channel::{Communicator, MemoryChannel, PacketWidth},
};

use accelerator::{Found, Vendor, find, say, vendor};
use ranks::{Outcome, follow, lead, runtime};

const BOTH: Access = Access::READ.union(Access::WRITE);
/// The tutorial's.
const SIZES: [usize; 3] = [1 << 10, 1 << 20, 128 << 20];

/// What to do.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) device: Option<Vendor>,
    pub(crate) transports: String,
    /// Fewer rounds of fewer bytes.
    pub(crate) quick: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = parse(&arguments).and_then(|(task, second)| match second {
        false => first(&task, |_| {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(&arguments).arg("--second");
            Ok(command)
        }),
        true => other(&task),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("perf_memory_channel: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The task, and whether this is the second process.
pub(crate) fn parse(arguments: &[String]) -> Outcome<(Task, bool)> {
    let (device, rest) = vendor(arguments)?;
    let mut task = Task {
        device: Some(device),
        transports: "shm,cma".into(),
        quick: false,
    };
    let mut second = false;
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--host-only" => task.device = None,
            "--quick" => task.quick = true,
            "--second" => second = true,
            "--transports" => {
                task.transports = rest.next().ok_or("usage: --transports LIST")?.clone()
            }
            _ => {
                return Err("usage: perf_memory_channel [--device cuda|gaudi|rocm] [--transports LIST] [--host-only] [--quick]".into());
            }
        }
    }
    Ok((task, second))
}

/// Rank 0: starts the other.
pub(crate) fn first(task: &Task, command: impl Fn(usize) -> Outcome<Command>) -> Outcome<()> {
    // Before there is a runtime, as the program may start anew in it.
    let found = task.device.map(find).transpose()?;
    runtime()?.block_on(async {
        let worker = worker(task)?;
        let (communicator, others) = lead(&worker, 2, command).await?;
        run(&communicator, task, found.as_ref()).await?;
        others.end().await
    })
}

/// Rank 1.
pub(crate) fn other(task: &Task) -> Outcome<()> {
    let found = task.device.map(find).transpose()?;
    runtime()?.block_on(async {
        let worker = worker(task)?;
        let communicator = follow(&worker, 1, 2).await?;
        run(&communicator, task, found.as_ref()).await?;
        // The process ends: what rank 0 still waits for goes out first.
        communicator.bootstrap().leave().await;
        Ok(())
    })
}

fn worker(task: &Task) -> Outcome<Worker> {
    let device = task.device.map_or("", Vendor::name);
    let transports = format!("self,{},{device}", task.transports);
    let transports = transports.trim_end_matches(',');
    let context = Context::builder().transports(transports)?.build()?;
    Ok(Worker::new(&context)?)
}

async fn run(communicator: &Communicator, task: &Task, found: Option<&Found>) -> Outcome<()> {
    let speaks = communicator.rank() == 0;
    let host = Bench::new(communicator, MemoryType::Host, task, 1, 0).await?;
    if speaks {
        let over = host.channel.remote().endpoint().transports();
        say(format_args!(
            "memory of the host, over {}",
            over.join(" + ")
        ));
    }
    host.moves().await?;
    host.one_way().await?;
    host.signals().await?;
    drop(host);
    let Some(found) = found else {
        return Ok(());
    };
    if speaks {
        found.introduce();
    }
    let kind = match communicator.rank() {
        0 => found.first(),
        _ => found.second(),
    };
    let slow = if found.is_emulated() { 10 } else { 1 };
    let device = Bench::new(communicator, kind, task, slow, 100).await?;
    device.moves().await
}

/// Two halves of registered memory, one to send from and one to receive into, and a channel between them.
struct Bench {
    rank: usize,
    worker: Worker,
    kind: MemoryType,
    sizes: Vec<usize>,
    /// So many times fewer rounds.
    slow: usize,
    quick: bool,
    half: usize,
    channel: MemoryChannel,
}

impl Bench {
    async fn new(
        communicator: &Communicator,
        kind: MemoryType,
        task: &Task,
        slow: usize,
        tag: u32,
    ) -> Outcome<Self> {
        let sizes: Vec<usize> = match task.quick {
            true => vec![1 << 10, 64 << 10, 256 << 10],
            false => SIZES.to_vec(),
        };
        let half = sizes.iter().copied().max().unwrap_or(0);
        let worker = communicator.worker();
        let memory = worker.context().allocate_on(kind, 2 * half).await?;
        // The other half is written as well, so that its pages are there.
        let content = pattern(communicator.rank(), 2 * half);
        let memory: BufferMut = worker.copy(content, memory).await?;
        let memory = communicator.register(memory, BOTH).await?;
        let peer = 1 - communicator.rank();
        let channel = MemoryChannel::connect(communicator, peer, tag, &memory).await?;
        let area = PacketWidth::Sixteen.packed(half).ok_or("too long")?;
        let channel = channel.with_packets(communicator, tag, area).await?;
        Ok(Self {
            rank: communicator.rank(),
            worker: worker.clone(),
            kind,
            sizes,
            slow,
            quick: task.quick,
            half,
            channel,
        })
    }

    fn rounds(&self, size: usize) -> usize {
        let rounds = match size {
            0..=0xffff => 2000,
            0x1_0000..=0xff_ffff => 200,
            _ => 10,
        };
        let fewer = if self.quick { 50 } else { 1 };
        (rounds / self.slow / fewer).max(2)
    }

    /// Put, get and packets, of every size, checked.
    async fn moves(&self) -> Outcome<()> {
        for (flags, &size) in self.sizes.iter().enumerate() {
            self.measure("put", size, async |_| {
                self.channel.put_with_signal(self.half, 0, size).await?;
                self.channel.wait().await.map(drop)
            })
            .await?;
            self.check(size).await?;
            self.measure("get", size, async |_| {
                self.channel.get(0, self.half, size).await
            })
            .await?;
            self.check(size).await?;
            let width = PacketWidth::Sixteen;
            self.measure("packets", size, async |round| {
                // Never the same twice in a row, in a place.
                let flag = (flags * 1_000_000 + round + 1) as u32;
                self.channel.put_packets(0, 0, size, width, flag).await?;
                self.channel
                    .unpack_packets(0, self.half, size, width, flag)
                    .await
            })
            .await?;
            self.check(size).await?;
        }
        Ok(())
    }

    /// Rounds of a move, each begun by both ends together.
    async fn measure(
        &self,
        what: &str,
        size: usize,
        act: impl AsyncFn(usize) -> wharf::Result<()>,
    ) -> Outcome<()> {
        let rounds = self.rounds(size);
        let warm = rounds.div_ceil(10);
        let mut start = Instant::now();
        for round in 0..warm + rounds {
            self.channel.signal().await?;
            self.channel.wait().await?;
            if round == warm {
                start = Instant::now();
            }
            act(round).await?;
        }
        let each = start.elapsed().as_secs_f64() / rounds as f64;
        self.meet().await?;
        if self.rank == 0 {
            let kind = self.kind;
            let rate = size as f64 / each / 1e9;
            say(format_args!(
                "{kind} {what}: bytes {size}, elapsed {:.6} ms/iter, BW {rate:.6} GB/s",
                each * 1e3
            ));
        }
        Ok(())
    }

    async fn meet(&self) -> wharf::Result<()> {
        self.channel.signal().await?;
        self.channel.wait().await.map(drop)
    }

    /// What has come is what the other rank had; then it is wiped.
    async fn check(&self, size: usize) -> Outcome<()> {
        let local = self.channel.local();
        let seen = local.copy_out(&self.worker, self.half, size).await?;
        local
            .copy_in(&self.worker, self.half, vec![0; size])
            .await?;
        if seen != pattern(1 - self.rank, size) {
            return Err(format!("{} bytes of {}: not what was sent", size, self.kind).into());
        }
        Ok(self.meet().await?)
    }

    /// The largest put, by rank 0 alone, beside a copy of the same bytes within a process.
    async fn one_way(&self) -> Outcome<()> {
        let size = self.half;
        let rounds = self.rounds(size).max(5);
        let mut puts = Vec::new();
        let mut copies = Vec::new();
        // Memory of the same kind, of pages of the same size.
        let context = self.worker.context();
        let (mut from, mut to) = (context.allocate(size).await?, context.allocate(size).await?);
        from.fill(1);
        to.fill(2);
        for round in 0..=rounds {
            self.meet().await?;
            if self.rank == 1 {
                self.channel.wait().await?;
                self.meet().await?;
                continue;
            }
            let start = Instant::now();
            self.channel.put_with_signal(self.half, 0, size).await?;
            let put = start.elapsed();
            self.meet().await?;
            let start = Instant::now();
            to.copy_from_slice(black_box(&from[..]));
            black_box(&mut to);
            let copy = start.elapsed();
            if round > 0 {
                puts.push(put);
                copies.push(copy);
            }
        }
        if self.rank == 0 {
            let (put, copy) = (median(&mut puts), median(&mut copies));
            let rate = |took: Duration| size as f64 / took.as_secs_f64().max(1e-9) / 1e9;
            say(format_args!(
                "{} put one way: bytes {size}, elapsed {:.6} ms/iter, BW {:.6} GB/s; memcpy {:.6} GB/s, ratio {:.2}",
                self.kind,
                put.as_secs_f64() * 1e3,
                rate(put),
                rate(copy),
                rate(put) / rate(copy)
            ));
        }
        Ok(())
    }

    /// From a signal to the task that waits for it, when that looks, and when its worker sleeps.
    async fn signals(&self) -> Outcome<()> {
        let rounds = if self.quick { 2000 } else { 200_000 };
        let mut laps = Vec::new();
        for _ in 0..11 {
            let start = Instant::now();
            for _ in 0..rounds / 10 {
                if self.rank == 0 {
                    self.channel.signal().await?;
                    self.channel.wait().await?;
                } else {
                    self.channel.wait().await?;
                    self.channel.signal().await?;
                }
            }
            laps.push(start.elapsed());
        }
        let hot = median(&mut laps).as_secs_f64() / f64::from(rounds / 10) / 2.0;

        // The clock is the machine's, the same for both.
        let rounds = if self.quick { 20 } else { 300 };
        let mut waits = Vec::new();
        for _ in 0..rounds {
            if self.rank == 0 {
                self.channel.wait().await?;
                // It has had the time to fall asleep.
                tokio::time::sleep(Duration::from_millis(2)).await;
                let now = nanoseconds()?;
                self.channel.local().write_at(0, &now.to_le_bytes())?;
                self.channel.put_with_signal(self.half, 0, 8).await?;
            } else {
                self.channel.signal().await?;
                self.channel.wait().await?;
                let mut sent = [0; 8];
                self.channel.local().read_at(self.half, &mut sent)?;
                let took = nanoseconds()?.saturating_sub(u64::from_le_bytes(sent));
                waits.push(Duration::from_nanos(took));
            }
        }
        if self.rank == 1 {
            say(format_args!(
                "signal to woken task: hot {:.3} us, asleep {:.3} us (medians)",
                hot * 1e6,
                median(&mut waits).as_secs_f64() * 1e6
            ));
        }
        Ok(self.meet().await?)
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn nanoseconds() -> Outcome<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(u64::try_from(now.tv_sec() * 1_000_000_000 + now.tv_nsec())?)
}

/// What a rank's memory begins with.
fn pattern(rank: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let begin = rank as u64 + 1;
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let value = (at as u64 ^ begin << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
    bytes
}
