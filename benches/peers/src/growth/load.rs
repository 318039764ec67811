//! The numbers, set up in one process, and the messages that are measured beside them.
//!
//! Where one thread does it all, a message is a send and then its receive, both awaited, between two workers of that thread: there is no
//! waiting in it, so its time is that of its instructions.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;
use wharf::{Buffer, Context, Endpoint, Listener, Mask, Op, Progress, Received, Tag, Worker};

use super::Kind;
use crate::{Outcome, pair, runtime};

const SIZE: usize = 8;
/// What is measured; others have tags from `OTHERS` on.
const DATA: Tag = Tag(7);
const OTHERS: u64 = 1 << 32;
/// A message of this length ends a task.
const STOP: usize = 1;
/// Announced, whatever the transport.
const LONG: usize = 1 << 20;
/// Announced messages of one connection; the protocol allows 4096.
const ANNOUNCED: usize = 4000;
/// Messages between two looks at the clock.
const BATCH: u64 = 100;

/// Nanoseconds of the clock, and of all processors together, for one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) wall: f64,
    pub(super) cpu: f64,
}

/// How long a measurement goes on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Extent {
    Millis(u64),
    Messages(u64),
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Millis(millis) => write!(f, "{millis}ms"),
            Self::Messages(number) => write!(f, "{number}x"),
        }
    }
}

impl FromStr for Extent {
    type Err = crate::Failure;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(millis) = text.strip_suffix("ms") {
            return Ok(Self::Millis(millis.parse()?));
        }
        let number = text.strip_suffix('x').ok_or("an extent is 60ms or 5000x")?;
        Ok(Self::Messages(number.parse()?))
    }
}

pub(super) fn measure(kind: Kind, transport: &str, number: usize, extent: Extent) -> Outcome<Cost> {
    match kind {
        Kind::Tasks => tasks(transport, number, extent),
        Kind::SharedWorker => shared_worker(transport, number, extent),
        Kind::OwnWorkers => own_workers(transport, number, extent),
        Kind::Endpoints | Kind::Posted | Kind::Masked | Kind::Outstanding => {
            pair::pin(0)?;
            let runtime = runtime()?;
            let (ends, held) = runtime.block_on(async {
                let ends = Ends::new(transport).await?;
                let held = Held::new(kind, &ends, number).await?;
                // What was set up has arrived, and tables have grown.
                ends.exchange(Extent::Messages(1000)).await?;
                Ok::<_, crate::Failure>((ends, held))
            })?;
            let cost = counted(&runtime, &ends, extent)?;
            drop(held);
            Ok(cost)
        }
    }
}

/// What callgrind counts, by this name.
#[inline(never)]
fn counted(runtime: &Runtime, ends: &Ends, extent: Extent) -> Outcome<Cost> {
    runtime.block_on(ends.exchange(extent))
}

async fn worker(transport: &str) -> Outcome<Worker> {
    let transports = match transport {
        "shm" => "shm,cma",
        other => other,
    };
    let context = Context::builder()
        .transports(transports)?
        .progress(Progress::Adaptive)
        .build()?;
    Ok(Worker::new(&context)?)
}

/// Two workers that are connected, on one runtime.
struct Ends {
    here: Worker,
    there: Worker,
    listener: Listener,
    address: String,
    endpoint: Endpoint,
    _back: Endpoint,
}

impl Ends {
    async fn new(transport: &str) -> Outcome<Self> {
        let (here, there) = (worker(transport).await?, worker(transport).await?);
        let listener = there.listen("127.0.0.1:0").await?;
        let address = listener.local_addr().to_string();
        let (endpoint, back) = connect(&here, &address, &listener).await?;
        Ok(Self {
            here,
            there,
            listener,
            address,
            endpoint,
            _back: back,
        })
    }

    /// As many more connections.
    async fn more(&self, number: usize) -> Outcome<Vec<(Endpoint, Endpoint)>> {
        let mut made = Vec::with_capacity(number);
        for _ in 0..number {
            made.push(connect(&self.here, &self.address, &self.listener).await?);
        }
        Ok(made)
    }

    async fn exchange(&self, extent: Extent) -> Outcome<Cost> {
        let message = Buffer::from(vec![1; SIZE]);
        let mut buffer = vec![0; SIZE];
        let clock = Clock::start()?;
        let mut number = 0;
        while extent.goes_on(&clock, number) {
            for _ in 0..BATCH {
                self.endpoint.tag_send(DATA, message.clone()).await?;
                buffer = self.there.tag_recv(DATA, buffer).await?.buffer;
            }
            number += BATCH;
        }
        clock.cost(number)
    }
}

async fn connect(
    here: &Worker,
    address: &str,
    listener: &Listener,
) -> Outcome<(Endpoint, Endpoint)> {
    let (dialled, accepted) = tokio::join!(here.connect(address), async {
        listener.accept().await?.accept().await
    });
    Ok((dialled?, accepted?))
}

/// What there is beside the messages.
#[expect(dead_code, reason = "held until the measurement is over")]
enum Held {
    Endpoints(Vec<(Endpoint, Endpoint)>),
    Receives(Vec<Op<Received<Vec<u8>>>>),
    Sends(Vec<(Endpoint, Endpoint)>, Vec<Op<()>>),
}

impl Held {
    async fn new(kind: Kind, ends: &Ends, number: usize) -> Outcome<Self> {
        let others = (OTHERS..).map(Tag).take(number);
        let receives = |mask: Mask| {
            let post = |tag| ends.there.tag_recv(tag, vec![0; SIZE]).mask(mask).post();
            Self::Receives(others.clone().map(post).collect())
        };
        Ok(match kind {
            Kind::Posted => receives(Mask::ALL),
            // The lowest bit may be either.
            Kind::Masked => receives(Mask(!1)),
            Kind::Outstanding => {
                let endpoints = ends.more(number.div_ceil(ANNOUNCED) - 1).await?;
                let firsts = endpoints.iter().map(|(endpoint, _)| endpoint);
                let all: Vec<&Endpoint> = std::iter::once(&ends.endpoint).chain(firsts).collect();
                let message = Buffer::from(vec![1; LONG]);
                let mut sends = Vec::with_capacity(number);
                for (at, tag) in others.enumerate() {
                    let endpoint = all[at / ANNOUNCED];
                    endpoint.ready().await?;
                    sends.push(endpoint.tag_send(tag, message.clone()).post()?);
                    if at % 32 == 0 {
                        // The other end takes them in.
                        tokio::task::yield_now().await;
                    }
                }
                Self::Sends(endpoints, sends)
            }
            _ => Self::Endpoints(ends.more(number - 1).await?),
        })
    }
}

/// Time of the clock and of processors since it was made.
struct Clock {
    since: Instant,
    used: Duration,
}

impl Clock {
    fn start() -> Outcome<Self> {
        Ok(Self {
            since: Instant::now(),
            used: used()?,
        })
    }

    fn cost(&self, messages: u64) -> Outcome<Cost> {
        let each = |time: Duration| time.as_nanos() as f64 / messages as f64;
        Ok(Cost {
            wall: each(self.since.elapsed()),
            cpu: each(used()? - self.used),
        })
    }
}

/// Processor time of this process.
fn used() -> Outcome<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

impl Extent {
    fn goes_on(self, clock: &Clock, number: u64) -> bool {
        match self {
            Self::Millis(millis) => clock.since.elapsed() < Duration::from_millis(millis),
            Self::Messages(messages) => number < messages,
        }
    }

    /// For measurements by several threads, which have no number.
    fn time(self) -> Outcome<Duration> {
        match self {
            Self::Millis(millis) => Ok(Duration::from_millis(millis)),
            Self::Messages(_) => Err("threads are measured by time".into()),
        }
    }
}

/// What the tasks of a measurement share.
#[derive(Default)]
struct Run {
    messages: AtomicU64,
    stop: AtomicBool,
}

impl Run {
    /// Waits while others work: a warm-up, then the part that counts.
    fn watch(&self, time: Duration) -> Outcome<Cost> {
        thread::sleep(time / 5);
        let (clock, before) = (Clock::start()?, self.messages.load(Relaxed));
        thread::sleep(time);
        let cost = clock.cost((self.messages.load(Relaxed) - before).max(1));
        self.stop.store(true, Relaxed);
        cost
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Relaxed)
    }
}

/// A task: its own tag, each message received before the next one is sent.
async fn to_and_fro(run: Arc<Run>, endpoint: Endpoint, there: Worker, tag: Tag) -> Outcome<()> {
    let message = Buffer::from(vec![1; SIZE]);
    let mut buffer = vec![0; SIZE];
    while run.goes_on() {
        for _ in 0..BATCH {
            endpoint.tag_send(tag, message.clone()).await?;
            buffer = there.tag_recv(tag, buffer).await?.buffer;
        }
        run.messages.fetch_add(BATCH, Relaxed);
    }
    Ok(())
}

/// Two threads; each task of one sends to a task of the other, which answers.
fn tasks(transport: &str, number: usize, extent: Extent) -> Outcome<Cost> {
    let run = Arc::new(Run::default());
    let (tell, address) = mpsc::channel();
    let tags = move || (1..=number as u64).map(Tag);
    let transport_there = transport.to_owned();
    let answers = thread::spawn(move || -> Outcome<()> {
        pair::pin(1)?;
        runtime()?.block_on(async {
            let there = worker(&transport_there).await?;
            let listener = there.listen("127.0.0.1:0").await?;
            tell.send(listener.local_addr().to_string())?;
            let endpoint = listener.accept().await?.accept().await?;
            let tasks: Vec<_> = tags()
                .map(|tag| tokio::spawn(answer(endpoint.clone(), there.clone(), tag)))
                .collect();
            for task in tasks {
                task.await??;
            }
            Ok(())
        })
    });
    let (asks, transport_here) = (Arc::clone(&run), transport.to_owned());
    let address = address.recv()?;
    let asks = thread::spawn(move || -> Outcome<()> {
        pair::pin(0)?;
        runtime()?.block_on(async {
            let here = worker(&transport_here).await?;
            let endpoint = here.connect(address.as_str()).await?;
            let tasks: Vec<_> = tags()
                .map(|tag| {
                    let (run, endpoint) = (Arc::clone(&asks), endpoint.clone());
                    tokio::spawn(ask(run, endpoint, here.clone(), tag))
                })
                .collect();
            for task in tasks {
                task.await??;
            }
            // The other end has the last of them.
            endpoint.flush().await?;
            Ok(())
        })
    });
    let cost = run.watch(extent.time()?);
    asks.join().map_err(|_| "a thread panicked")??;
    answers.join().map_err(|_| "a thread panicked")??;
    cost
}

async fn ask(run: Arc<Run>, endpoint: Endpoint, here: Worker, tag: Tag) -> Outcome<()> {
    let message = Buffer::from(vec![1; SIZE]);
    let mut buffer = vec![0; SIZE];
    while run.goes_on() {
        endpoint.tag_send(tag, message.clone()).await?;
        buffer = here.tag_recv(tag, buffer).await?.buffer;
        run.messages.fetch_add(2, Relaxed);
    }
    endpoint.tag_send(tag, message.slice(..STOP)).await?;
    Ok(())
}

async fn answer(endpoint: Endpoint, there: Worker, tag: Tag) -> Outcome<()> {
    let message = Buffer::from(vec![1; SIZE]);
    let mut buffer = vec![0; SIZE];
    loop {
        let received = there.tag_recv(tag, buffer).await?;
        if received.len == STOP {
            return Ok(());
        }
        buffer = received.buffer;
        endpoint.tag_send(tag, message.clone()).await?;
    }
}

/// A runtime of so many threads, a task for each.
fn shared_worker(transport: &str, number: usize, extent: Extent) -> Outcome<Cost> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(number)
        .enable_all()
        .build()?;
    let run = Arc::new(Run::default());
    let (ends, tasks) = runtime.block_on(async {
        let ends = Ends::new(transport).await?;
        let tasks: Vec<_> = (1..=number as u64)
            .map(|tag| {
                let (endpoint, there) = (ends.endpoint.clone(), ends.there.clone());
                tokio::spawn(to_and_fro(Arc::clone(&run), endpoint, there, Tag(tag)))
            })
            .collect();
        Ok::<_, crate::Failure>((ends, tasks))
    })?;
    let cost = run.watch(extent.time()?);
    for task in tasks {
        runtime.block_on(task)??;
    }
    drop(ends);
    cost
}

/// So many threads, each with a runtime and two workers.
fn own_workers(transport: &str, number: usize, extent: Extent) -> Outcome<Cost> {
    let (run, ready) = (Arc::new(Run::default()), Arc::new(Barrier::new(number + 1)));
    let threads: Vec<_> = (0..number)
        .map(|_| {
            let (run, ready) = (Arc::clone(&run), Arc::clone(&ready));
            let transport = transport.to_owned();
            thread::spawn(move || -> Outcome<()> {
                let runtime = runtime()?;
                let ends = runtime.block_on(Ends::new(&transport));
                ready.wait();
                let ends = ends?;
                let task = to_and_fro(run, ends.endpoint.clone(), ends.there.clone(), DATA);
                runtime.block_on(task)
            })
        })
        .collect();
    ready.wait();
    let cost = run.watch(extent.time()?);
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")??;
    }
    cost
}
