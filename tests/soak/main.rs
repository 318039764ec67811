//! All verbs at once for a while: 64 tasks on 4 workers, each with a connection of its own, every byte checked. Nothing may be lost, and nothing may
//! grow: no memory, no file descriptors, no entries in the tables of operations.
//!
//! Runs for `SOAK_SECONDS` (2 unless told) over each of shared memory, with and without cma, tcp and the emulated RDMA devices, one after the other in one process.
//!
//! # Safety
//! A variable is set before anything else runs. The allocator is asked to give free memory back, which it may do at any time.
#![allow(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use support::{LIMIT, block_until, open_fds, watchdog};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::{
    Access, AmId, AmInbox, Buffer, BufferList, ByteStream, Context, Counter, Endpoint, Region,
    RemoteRegion, Tag, Worker,
};

const WORKERS: usize = 4;
const TASKS: usize = 64;
/// Lengths around each threshold; the last two rarely.
const LENGTHS: [usize; 12] = [
    0, 1, 8, 48, 49, 1000, 4096, 8184, 8185, 60_000, 140_000, 600_000,
];
/// Bytes of each task's exposed memory.
const EXPOSED: usize = 1 << 20;
/// Within which memory stops growing.
const PHASES: u32 = 8;

/// A small generator, so that a failing run can be repeated by its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }

    fn length(&mut self) -> usize {
        let among = if self.roll(20) == 0 {
            LENGTHS.len()
        } else {
            LENGTHS.len() - 2
        };
        LENGTHS[self.roll(among)]
    }
}

/// The bytes of message `number` of task `task`.
fn bytes(task: usize, number: u64, length: usize) -> Vec<u8> {
    support::pattern(task as u64 * 1000 + number, length)
}

/// What a task works with: two ends of a connection, and what hangs on them.
struct Bench {
    task: usize,
    here: Endpoint,
    there: Endpoint,
    receiver: Worker,
    sender: Worker,
    region: Region,
    remote: RemoteRegion,
    counter: Counter,
    raised: RemoteRegion,
    inbox: AmInbox,
    stream: ByteStream,
    other: ByteStream,
    added: u64,
}

impl Bench {
    async fn new(task: usize, context: &Context, sender: &Worker, receiver: &Worker) -> Self {
        let inbox = receiver
            .active_messages(AmId(task as u16))
            .capacity(32)
            .open()
            .expect("an inbox");
        let listener = receiver.listen("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr();
        let (here, there) = tokio::join!(sender.connect(address), async {
            listener.accept().await?.accept().await
        });
        let (here, there) = (here.expect("connected"), there.expect("accepted"));
        let memory = context.allocate(EXPOSED).await.expect("memory");
        let region = context
            .expose(memory, Access::READ | Access::WRITE)
            .await
            .expect("a region");
        let remote = here
            .import(&region.descriptor().expect("a descriptor"))
            .expect("imported");
        let counter = receiver.counter().await.expect("a counter");
        let raised = here
            .import(&counter.descriptor().expect("a descriptor"))
            .expect("imported");
        let (stream, other) = tokio::join!(here.stream(), there.accept_stream());
        Self {
            task,
            here,
            there,
            receiver: receiver.clone(),
            sender: sender.clone(),
            region,
            remote,
            counter,
            raised,
            inbox,
            stream: stream.expect("opened"),
            other: other.expect("accepted"),
            added: 0,
        }
    }

    async fn one(&mut self, number: u64, length: usize, dice: &mut Dice) {
        let sent = bytes(self.task, number, length);
        let tag = Tag((self.task as u64) << 32 | number);
        match dice.roll(10) {
            0 | 1 => self.tagged(tag, sent).await,
            2 => self.abandoned(tag, sent).await,
            3 => self.put_and_get(sent, dice).await,
            4 => self.strided(number, dice).await,
            5 => self.atomics(dice).await,
            6 => self.signalled(sent, dice).await,
            7 => self.active(number, sent).await,
            8 => self.streamed(sent).await,
            _ => self.listed(tag, sent, dice).await,
        }
    }

    async fn tagged(&self, tag: Tag, sent: Vec<u8>) {
        let (send, receive) = tokio::join!(
            self.here.tag_send(tag, sent.clone()),
            self.receiver.tag_recv(tag, vec![0; sent.len()])
        );
        send.expect("sent");
        let received = receive.expect("received");
        assert_eq!(received.len, sent.len());
        assert!(
            received.buffer == sent,
            "task {}: a tagged message differs",
            self.task
        );
        // And back, posted.
        let receive = self.sender.tag_recv(tag, received.buffer).post();
        self.there
            .tag_send(tag, sent.clone())
            .await
            .expect("answered");
        assert!(
            receive.await.expect("the answer").buffer == sent,
            "task {}: an answer differs",
            self.task
        );
    }

    /// Receives that are given up at any moment lose nothing.
    async fn abandoned(&self, tag: Tag, sent: Vec<u8>) {
        let send = self.here.tag_send(tag, sent.clone());
        let receive = async {
            let mut tries = 0;
            loop {
                tokio::select! {
                    biased;
                    received = self.receiver.tag_recv(tag, vec![0; sent.len()]) => break received,
                    () = tokio::task::yield_now(), if tries < 3 => tries += 1,
                }
            }
        };
        let (send, received) = tokio::join!(send, receive);
        send.expect("sent");
        assert!(
            received.expect("received").buffer == sent,
            "task {}: a message differs",
            self.task
        );
    }

    async fn put_and_get(&self, sent: Vec<u8>, dice: &mut Dice) {
        let start = dice.roll(EXPOSED - sent.len());
        let part = self.remote.slice(start..start + sent.len());
        self.here
            .put(sent.clone(), part.clone())
            .await
            .expect("put");
        let mut seen = vec![0; sent.len()];
        self.region
            .read_at(start, &mut seen)
            .expect("within bounds");
        assert!(seen == sent, "task {}: a put differs", self.task);
        let got = self.here.get(part, vec![0; sent.len()]).await.expect("got");
        assert!(got == sent, "task {}: a get differs", self.task);
    }

    async fn strided(&self, number: u64, dice: &mut Dice) {
        let (block, count) = (1 + dice.roll(300), 1 + dice.roll(200));
        let stride = block + dice.roll(100);
        let layout = self
            .remote
            .strided(0, block, stride, count)
            .expect("within bounds");
        let sent = bytes(self.task, number, block * count);
        self.here
            .put(sent.clone(), layout.clone())
            .await
            .expect("put");
        let got = self
            .here
            .get(layout, vec![0; sent.len()])
            .await
            .expect("got");
        assert!(got == sent, "task {}: blocks differ", self.task);
    }

    async fn atomics(&mut self, dice: &mut Dice) {
        // The last word is the atomics' own.
        let word = EXPOSED - 8;
        self.region.store(word, self.added).expect("aligned");
        for _ in 0..8 {
            let add = dice.roll(1000) as u64;
            let before = self.remote.fetch_add(word, add).await.expect("added");
            assert_eq!(before, self.added, "task {}", self.task);
            self.added += add;
        }
        self.remote.add(word, 1u64).await.expect("added");
        self.added += 1;
        assert_eq!(self.region.load::<u64>(word).expect("aligned"), self.added);
    }

    async fn signalled(&self, sent: Vec<u8>, dice: &mut Dice) {
        let start = dice.roll(EXPOSED - 8 - sent.len());
        let part = self.remote.slice(start..start + sent.len());
        let next = self.counter.value() + 1;
        let look = async {
            self.counter.wait(next).await.expect("raised");
            let mut seen = vec![0; sent.len()];
            self.region
                .read_at(start, &mut seen)
                .expect("within bounds");
            assert!(
                seen == sent,
                "task {}: the signal came before the bytes",
                self.task
            );
        };
        let (put, ()) = tokio::join!(self.here.put(sent.clone(), part).signal(&self.raised), look);
        put.expect("put");
    }

    async fn active(&mut self, number: u64, sent: Vec<u8>) {
        let header = number.to_le_bytes().to_vec();
        let send = self
            .here
            .am_send(AmId(self.task as u16), header, sent.clone());
        let receive = async {
            let message = self.inbox.recv().await.expect("a message");
            assert_eq!(message.header(), number.to_le_bytes());
            message.bytes().await.expect("its payload")
        };
        let (send, payload) = tokio::join!(send, receive);
        send.expect("sent");
        assert!(
            payload == sent,
            "task {}: an active message differs",
            self.task
        );
    }

    async fn streamed(&mut self, sent: Vec<u8>) {
        let mut got = vec![0; sent.len()];
        let write = async {
            self.stream.write_all(&sent).await?;
            self.stream.flush().await
        };
        let (written, read) = tokio::join!(write, self.other.read_exact(&mut got));
        written.expect("written");
        read.expect("read");
        assert!(got == sent, "task {}: a stream differs", self.task);
        self.other
            .write_all(&sent[..sent.len().min(100)])
            .await
            .expect("written");
        self.other.flush().await.expect("flushed");
        let mut back = vec![0; sent.len().min(100)];
        self.stream.read_exact(&mut back).await.expect("read");
        assert!(
            back[..] == sent[..back.len()],
            "task {}: a stream differs on its way back",
            self.task
        );
    }

    async fn listed(&self, tag: Tag, sent: Vec<u8>, dice: &mut Dice) {
        let cut = dice.roll(sent.len() + 1);
        let list = BufferList::from(vec![
            Buffer::from(sent[..cut].to_vec()),
            Buffer::from(sent[cut..].to_vec()),
        ]);
        let (send, receive) = tokio::join!(
            self.here.tag_send(tag, list),
            self.receiver.tag_recv(tag, vec![0; sent.len()])
        );
        send.expect("sent");
        assert!(
            receive.expect("received").buffer == sent,
            "task {}: a list differs",
            self.task
        );
    }

    async fn close(self) {
        drop((self.stream, self.other));
        let (here, there) = tokio::join!(self.here.close(), self.there.close());
        here.expect("closed");
        there.expect("closed");
        drop(self.region.unexpose().await);
    }
}

/// Resident memory of this process's own in KiB. Memory shared with peers is counted at its first touch, and is as large as the regions.
fn resident() -> u64 {
    // How much of what was freed the allocator keeps is chance.
    #[cfg(target_env = "gnu")]
    // SAFETY: gives back what nobody has.
    unsafe {
        libc::malloc_trim(0)
    };
    let status = fs::read_to_string("/proc/self/status").expect("a mounted /proc");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .expect("a number")
}

/// Mappings of this process: segments of peers, stacks, the heap.
fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps")
        .expect("a mounted /proc")
        .lines()
        .count()
}

/// A task between two phases.
struct Task {
    bench: Bench,
    dice: Dice,
    /// Of its next message.
    number: u64,
}

impl Task {
    /// A round of each length, and then of any until the time is over.
    async fn run(&mut self, end: Instant, rounds: &AtomicU64) {
        let mut each = LENGTHS;
        // Not the longest by all tasks at once.
        each.rotate_left(self.bench.task % LENGTHS.len());
        let mut each = each.into_iter();
        loop {
            let length = match each.next() {
                Some(length) => length,
                None if Instant::now() < end => self.dice.length(),
                None => break,
            };
            let one = self.bench.one(self.number, length, &mut self.dice);
            let one = tokio::time::timeout(LIMIT, one).await;
            assert!(
                one.is_ok(),
                "task {}: still pending after {LIMIT:?}",
                self.bench.task
            );
            self.number += 1;
            rounds.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Runs all at once, for so long at least.
async fn phase(tasks: Vec<Task>, length: Duration, rounds: &Arc<AtomicU64>) -> Vec<Task> {
    let end = Instant::now() + length;
    let mut running = tokio::task::JoinSet::new();
    for mut task in tasks {
        let rounds = rounds.clone();
        running.spawn(async move {
            task.run(end, &rounds).await;
            task
        });
    }
    let mut tasks = Vec::new();
    while let Some(task) = running.join_next().await {
        tasks.push(task.expect("no task failed"));
    }
    tasks
}

fn soak(transports: &str, length: Duration) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let before = open_fds();
    let rounds = Arc::new(AtomicU64::new(0));
    let limit = length * (PHASES + 1) / 2 + 2 * LIMIT;
    let at_rest = runtime.block_on(watchdog(limit, async {
        let context = Context::builder()
            .transports(transports)
            .expect("known")
            .build()
            .expect("a context");
        let workers: Vec<Worker> = (0..WORKERS)
            .map(|_| Worker::new(&context).expect("a worker"))
            .collect();
        let mut tasks = Vec::new();
        for task in 0..TASKS {
            let (sender, receiver) = (
                task % WORKERS,
                (task + 1 + task / WORKERS % (WORKERS - 1)) % WORKERS,
            );
            tasks.push(Task {
                bench: Bench::new(task, &context, &workers[sender], &workers[receiver]).await,
                dice: Dice(0x2545_f491 + task as u64),
                number: 0,
            });
        }
        // Once every length has been used by every task there is nothing new to allocate. But a page of what was allocated counts from its first use
        // on, and a slow machine comes to few of them in a phase. What leaks grows in each.
        let mut tasks = phase(tasks, length / 2, &rounds).await;
        let mut at_rest = false;
        for _ in 0..PHASES {
            let (begin, mapped) = (resident(), mappings());
            tasks = phase(tasks, length / 2, &rounds).await;
            let (grown, mappings) = (resident(), mappings());
            eprintln!(
                "{transports}: {} rounds, {begin} KiB and {mapped} mappings, {grown} KiB and {mappings} later",
                rounds.load(Ordering::Relaxed)
            );
            at_rest = grown < begin + begin / 8 + 8192 && mappings < mapped + 64;
            if at_rest {
                break;
            }
        }
        for worker in &workers {
            assert_eq!(worker.in_flight(), 0, "operations left in a table");
        }
        for task in tasks {
            task.bench.close().await;
        }
        for worker in &workers {
            worker
                .shutdown(Duration::from_secs(10))
                .await
                .expect("all closed");
        }
        at_rest
    }));
    drop(runtime);
    let rounds = rounds.load(Ordering::Relaxed);
    assert!(rounds > TASKS as u64, "hardly anything was done");
    assert!(at_rest, "{transports}: memory or mappings grow");
    // Queue pairs, and then what they are made in, are given back in the background: on devices that takes a while.
    // What the runtime and the first use of the system's name service keep open is counted in both.
    let what = format!("the end of all but {before} file descriptors and 4");
    block_until(&what, || open_fds() <= before + 4);
}

#[test]
fn all_verbs_at_once() {
    let seconds = std::env::var("SOAK_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(2);
    // SAFETY: the only test of this program: nobody reads variables yet.
    unsafe { std::env::set_var("WHARF_LIBIBVERBS", support::emulated::verbs()) };
    for transports in ["shm,cma", "tcp", "shm", "rc_verbs"] {
        soak(transports, Duration::from_secs(seconds));
    }
}
