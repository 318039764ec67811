//! Peers that are killed at random, each in the middle of everything: long messages both ways, puts, gets and atomics in memory that both exposed,
//! streams, a memory channel. When all are dead nothing of them is left: no threads, mappings, file descriptors, memory, registrations or entries of
//! tables, and memory that was exposed to them is its owner's at once.
//!
//! Runs for `KILLED_SECONDS` (4 unless told) in all, over shared memory with and without cma, and over tcp, with the feature `tls` under TLS as well. The
//! emulated RDMA devices are of one process.
//!
//! # Safety
//! The allocator is told to keep to one arena before anything else runs, and to give free memory back, which it may do at any time.
#![allow(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "tls")]
#[path = "../tls/certificates.rs"]
mod certificates;

use std::{
    env, fs,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context as TaskContext, Poll, Waker},
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};
use support::{
    Child, LIMIT, Parent, all_are, at_rest, child, open_fds, this_test, until, watchdog,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
};
use wharf::{
    Access, BufferMut, Context, Descriptor, Endpoint, Error, ErrorKind, Mask, Region, RemoteRegion,
    Tag, Worker,
    channel::{
        Communicator, MemoryChannel,
        bootstrap::{BootstrapOptions, TcpBootstrap, TcpRoot, UniqueId},
    },
};

/// How many live at a time.
const PEERS: usize = 3;
/// As many at least in each half: what is left of each of them would show.
const LEAST: u64 = 16;
/// Bytes of a long message, and of exposed memory.
const LONG: usize = 300_000;
/// Memory of dead peers' that is given back only at the end.
const KEPT: usize = 16;
/// So long it takes to have memory back that was exposed to the dead, the time in the middle of all, but for the copy of what they had mapped.
const BACK: Duration = Duration::from_millis(1);
const BOTH: Access = Access::READ.union(Access::WRITE);
/// Says to the second process over what it talks.
const OVER: &str = "WHARFTEST_OVER";

/// Tags of one peer.
#[derive(Clone, Copy)]
enum Kind {
    Descriptor,
    ToParent,
    ToChild,
}

fn tag(kind: Kind, number: u64) -> Tag {
    Tag((kind as u64) << 40 | number)
}

fn context(over: &str) -> Context {
    let transports = match over {
        "tls" => "tcp",
        _ => over.trim_end_matches(" without cma"),
    };
    let builder = Context::builder().transports(transports).expect("known");
    let builder = builder.cma(!over.ends_with("without cma"));
    #[cfg(feature = "tls")]
    let builder = match over {
        "tls" => builder.tls(tls()),
        _ => builder,
    };
    builder.build().expect("a context")
}

/// By an authority that both processes know; a certificate of both ends demanded.
#[cfg(feature = "tls")]
fn tls() -> wharf::Tls {
    let authority = certificates::Authority::known();
    let shown = authority.issue(&["127.0.0.1", "::1", "worker.example"]);
    let client = authority.client(Some(&shown));
    let tls = wharf::Tls::new(client, authority.server(&shown, true));
    tls.worker_name("worker.example").expect("a name")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_keep_alive(Duration::from_millis(10))
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Demands that it is the end of the other process that ended something.
#[track_caller]
fn expect_death(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::PeerDied, "{error}");
}

/// One end of a connection to another process, which does the same with the tags the other way round.
struct End {
    endpoint: Endpoint,
    worker: Worker,
    out: Tag,
    back: Tag,
    /// Memory at the other end.
    far: Vec<RemoteRegion>,
}

impl End {
    /// Everything at once, until the connection ends.
    async fn work(&self) {
        tokio::join!(
            self.send(),
            self.receive(),
            self.access(),
            self.open(),
            self.accept()
        );
    }

    async fn send(&self) {
        for length in [LONG, 0, 9000, 100].into_iter().cycle() {
            let send = self.endpoint.tag_send(self.out, vec![7; length]);
            if let Err(error) = send.await {
                return expect_death(&error);
            }
        }
    }

    async fn receive(&self) {
        loop {
            let mut receive = self.worker.tag_recv(self.back, vec![0; LONG]).post();
            let received = tokio::select! {
                biased;
                received = &mut receive => received,
                error = self.endpoint.closed() => {
                    expect_death(&error);
                    receive.cancel().await
                }
            };
            match received {
                Ok(got) => assert!(all_are(&got.buffer[..got.len], 7)),
                Err(error) if error.kind() == ErrorKind::Canceled => return,
                // The next one waits for a peer that has gone, and is cancelled.
                Err(error) => expect_death(error.error()),
            }
        }
    }

    async fn access(&self) {
        for (round, far) in self.far.iter().cycle().enumerate() {
            let length = [8, 4096, LONG - 64][round % 3];
            let (put, get, add) = tokio::join!(
                self.endpoint
                    .put(vec![7; length], far.slice(64..64 + length)),
                self.endpoint.get(far.slice(..length), vec![0; length]),
                far.fetch_add(8, 1u64),
            );
            let ends = [
                put.err(),
                get.err().map(|error| error.into_parts().0),
                add.err(),
            ];
            if let Some(error) = ends.into_iter().flatten().next() {
                return expect_death(&error);
            }
        }
    }

    async fn open(&self) {
        loop {
            let Ok(mut stream) = self.endpoint.stream().await else {
                return;
            };
            if stream.write_all(&vec![7; LONG]).await.is_err() || stream.shutdown().await.is_err() {
                return;
            }
        }
    }

    async fn accept(&self) {
        while let Ok(mut stream) = self.endpoint.accept_stream().await {
            let mut bytes = vec![0; 50_000];
            while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                assert!(all_are(&bytes[..count], 7));
            }
        }
    }
}

/// Puts and signals of a memory channel, until the other process ends.
async fn talk(rank: &Communicator) -> Result<(), Error> {
    let memory = rank.worker().context().allocate(2 * LONG).await?;
    let memory = rank.register(memory, BOTH).await?;
    let channel = MemoryChannel::connect(rank, 1 - rank.rank(), 1, &memory).await?;
    let channel = channel.with_packets(rank, 2, 4096).await?;
    loop {
        channel.put_with_signal(LONG, 0, LONG).await?;
        channel.wait().await?;
        channel.get(0, 0, LONG).await?;
    }
}

/// The second process of a connection.
async fn second(mut parent: Parent) {
    let worker = Worker::new(&context(&env::var(OVER).expect("given"))).expect("a worker");
    let address = parent.hear().await;
    let number = parent.hear().await.parse().expect("a number");
    let endpoint = worker.connect(address).await.expect("connected");
    let own = worker.context().allocate(LONG).await.expect("memory");
    let own = worker.context().expose(own, BOTH).await.expect("a region");
    let mut end = End {
        out: tag(Kind::ToParent, number),
        back: tag(Kind::ToChild, number),
        far: Vec::new(),
        endpoint,
        worker,
    };
    end.tell(&own, number).await;
    for _ in 0..2 {
        end.hear(number).await;
    }
    end.work().await;
    panic!("the first process lives");
}

impl End {
    async fn tell(&self, region: &Region, number: u64) {
        let descriptor = region.descriptor().expect("a descriptor").to_bytes();
        let tag = tag(Kind::Descriptor, number);
        let sent = self.endpoint.tag_send(tag, descriptor).await;
        sent.expect("sent");
    }

    async fn hear(&mut self, number: u64) {
        let tag = tag(Kind::Descriptor, number);
        let heard = self.worker.tag_recv(tag, vec![0; 4096]).await;
        let heard = heard.expect("a descriptor");
        let descriptor = Descriptor::from_bytes(&heard.buffer[..heard.len]).expect("a descriptor");
        let far = self.endpoint.import(&descriptor).expect("imported");
        self.far.push(far);
    }
}

/// What stays while peers come and go.
struct House {
    test: &'static str,
    over: &'static str,
    context: Context,
    worker: Worker,
    /// Memory that every peer is given.
    common: Region,
    started: AtomicU64,
    dice: AtomicU64,
}

impl House {
    /// A peer of that kind is started, worked with, and killed. Memory that it was given is still exposed.
    async fn one(&self) -> Option<Region> {
        let number = self.started.fetch_add(1, Relaxed);
        if number % 4 == 3 {
            self.channel().await;
            return None;
        }
        Some(self.verbs(number).await)
    }

    fn start(&self, part: &str) -> Child {
        Child::start(self.test, part, &[(OVER, self.over)])
    }

    /// Any moment from the beginning of the work on.
    async fn moment(&self) {
        let number = self
            .dice
            .fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let most = [300, 10_000, 100_000][(number >> 60) as usize % 3];
        tokio::time::sleep(Duration::from_micros((number >> 20) % most)).await;
    }

    async fn verbs(&self, number: u64) -> Region {
        let listener = self.worker.listen("127.0.0.1:0").await.expect("a listener");
        let mut child = self.start("second");
        child.say(listener.local_addr());
        child.say(number);
        let incoming = listener.accept().await.expect("a request");
        let endpoint = incoming.accept().await.expect("a connection");
        let own = self.context.allocate(LONG).await.expect("memory");
        let own = self.context.expose(own, BOTH).await.expect("a region");
        let mut end = End {
            out: tag(Kind::ToChild, number),
            back: tag(Kind::ToParent, number),
            far: Vec::new(),
            endpoint,
            worker: self.worker.clone(),
        };
        end.hear(number).await;
        end.tell(&own, number).await;
        end.tell(&self.common, number).await;
        let kill = async {
            self.moment().await;
            child.kill();
        };
        tokio::join!(end.work(), kill);
        expect_death(&end.endpoint.closed().await);
        own
    }

    async fn channel(&self) {
        let root = TcpRoot::bind("127.0.0.1:0").await.expect("a listener");
        let id = root.unique_id().to_string();
        let mut child = self.start("channel");
        child.say(id);
        let bootstrap = root.join(2, &BootstrapOptions::new()).await;
        let bootstrap = Arc::new(bootstrap.expect("a group"));
        let rank = Communicator::new(bootstrap, &self.worker).await;
        let rank = rank.expect("a communicator");
        rank.barrier().await.expect("both are here");
        let kill = async {
            self.moment().await;
            child.kill();
        };
        let (talked, ()) = tokio::join!(talk(&rank), kill);
        talked.expect_err("killed");
    }

    /// Peers come and go, so many at a time, until the time is over and enough have been there.
    async fn phase(self: &Arc<Self>, length: Duration) -> (u64, Vec<Region>) {
        let (end, mut killed) = (Instant::now() + length, 0);
        let mut kept = Vec::new();
        let mut living = JoinSet::new();
        loop {
            let goes_on = Instant::now() < end || killed + (living.len() as u64) < LEAST;
            if goes_on && living.len() < PEERS {
                let house = self.clone();
                living.spawn(async move { house.one().await });
                continue;
            }
            let Some(one) = living.join_next().await else {
                break;
            };
            killed += 1;
            kept.extend(one.expect("no peer's death does harm"));
            if kept.len() > KEPT {
                watchdog(LIMIT, kept.remove(0).unexpose()).await;
            }
        }
        // What came before a death, and nobody received.
        while let Some(message) = self.worker.tag_take(Tag(0), Mask(0)) {
            drop(message);
        }
        (killed, kept)
    }
}

/// What must not grow.
#[derive(Clone, Copy, Debug)]
struct Counts {
    threads: usize,
    /// But for stacks: libc keeps those of ended threads for the next ones, as many as there once were at a time.
    mappings: usize,
    descriptors: usize,
    /// Resident memory of this process's own in KiB.
    resident: usize,
}

impl Counts {
    fn now() -> Self {
        // How much of what was freed the allocator keeps is chance.
        #[cfg(target_env = "gnu")]
        // SAFETY: gives back what nobody has.
        unsafe {
            libc::malloc_trim(0)
        };
        let status = fs::read_to_string("/proc/self/status").expect("a mounted /proc");
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let word = line.and_then(|line| line.split_whitespace().next());
            word.and_then(|word| word.parse().ok()).expect("a number")
        };
        let maps = fs::read_to_string("/proc/self/maps").expect("a mounted /proc");
        Self {
            threads: number("Threads:"),
            mappings: maps.lines().count() - 2 * stacks(&maps),
            descriptors: open_fds(),
            resident: number("RssAnon:"),
        }
    }

    /// Whether there is no more of anything than before, though some were killed since. The allocator moves where its memory ends.
    fn is_flat(&self, before: &Self) -> bool {
        self.threads <= before.threads
            && self.descriptors <= before.descriptors
            && self.mappings <= before.mappings
            && self.resident <= before.resident + before.resident / 8 + 8192
    }

    /// What there is when nothing more ends: threads and connections end in the background.
    async fn settled(before: Option<&Self>) -> Self {
        let Some(before) = before else {
            let kinds = || {
                let now = Self::now();
                (now.threads, now.descriptors, now.mappings)
            };
            at_rest(
                "the end of what has ended",
                Duration::from_millis(500),
                kinds,
            )
            .await;
            return Self::now();
        };
        let is_flat = until("no more than before", || Self::now().is_flat(before));
        // What there is then tells what there is too much of.
        let _ = tokio::time::timeout(LIMIT / 2, is_flat).await;
        Self::now()
    }
}

/// The stacks of threads among these mappings: each with a page in front of it that nobody may touch.
fn stacks(maps: &str) -> usize {
    const STACK: u64 = 2 << 20;
    /// Where it begins and ends, and who may do what; `None` for one of a file.
    fn anonymous(line: &str) -> Option<(u64, u64, &str)> {
        let mut words = line.split_whitespace();
        let (begin, end) = words.next()?.split_once('-')?;
        let access = words.next()?;
        let is_anonymous = words.nth(2)? == "0" && words.next().is_none();
        let number = |text| u64::from_str_radix(text, 16).ok();
        is_anonymous.then_some((number(begin)?, number(end)?, access))
    }
    let all: Vec<_> = maps.lines().map(anonymous).collect();
    let is_stack = |pair: &&[Option<(u64, u64, &str)>]| match pair {
        [Some((_, end, "---p")), Some((begin, top, "rw-p"))] => {
            end == begin && top - begin == STACK
        }
        _ => false,
    };
    all.windows(2).filter(is_stack).count()
}

/// The time that this thread has computed.
fn computed() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.expect("the thread's clock").into()
}

/// How memory came back.
#[derive(Clone, Copy, Debug)]
struct Back {
    /// What this thread computed for that.
    computed: Duration,
    /// All of it.
    took: Duration,
    polls: u32,
}

/// Has memory back, polled again and again: who waits for somebody, or for a time, is polled thousands of times, who does not twice at most, as it
/// gives way once between the copy of what a peer had mapped and its end.
fn back(region: Region) -> Back {
    let (mut unexpose, start, before) = (pin!(region.unexpose()), Instant::now(), computed());
    let mut polls = 0;
    let memory: BufferMut = loop {
        polls += 1;
        let mut cx = TaskContext::from_waker(Waker::noop());
        if let Poll::Ready(memory) = unexpose.as_mut().poll(&mut cx) {
            break memory;
        }
        assert!(
            start.elapsed() < LIMIT,
            "memory of the dead is not given back"
        );
    };
    let (computed, took) = (computed() - before, start.elapsed());
    assert_eq!(memory.len(), LONG);
    Back {
        computed,
        took,
        polls,
    }
}

/// What this thread computes to copy as much into new memory, the time in the middle of some.
async fn copied(context: &Context) -> Duration {
    let mut times = Vec::new();
    for _ in 0..KEPT {
        let source = vec![7; LONG];
        let before = computed();
        let mut memory = context.allocate(LONG).await.expect("memory");
        memory.copy_from_slice(&source);
        times.push(computed() - before);
    }
    times.sort();
    times[KEPT / 2]
}

async fn soak(test: &'static str, over: &'static str, length: Duration) {
    let context = context(over);
    let worker = Worker::new(&context).expect("a worker");
    let common = context.allocate(LONG).await.expect("memory");
    let common = context.expose(common, BOTH).await.expect("a region");
    let house = Arc::new(House {
        test,
        over,
        worker,
        common,
        context,
        started: AtomicU64::new(0),
        dice: AtomicU64::new(over.len() as u64),
    });
    // The first half makes what is made once: pools, tables, the allocator's share.
    let (first, regions) = house.phase(length / 2).await;
    drop(regions);
    let before = Counts::settled(None).await;
    let (killed, regions) = house.phase(length / 2).await;

    // All are dead: what they were given comes back without a wait for anybody.
    let mut backs: Vec<_> = regions.into_iter().map(back).collect();
    let after = Counts::settled(Some(&before)).await;
    eprintln!("{over}: {first} and then {killed} peers killed, {before:?} and then {after:?}");
    assert!(
        after.is_flat(&before),
        "grows with each of {killed} dead peers: {before:?}, then {after:?}"
    );
    let metrics = house.worker.metrics();
    assert_eq!(metrics.in_flight, 0, "operations left in a table");
    let held = metrics.held;
    assert_eq!(
        (
            held.unexpected_bytes,
            held.unexpected_messages,
            held.unaccepted_streams,
            held.requests,
            held.connections,
        ),
        (0, 0, 0, 0, 0),
        "{held:?}"
    );
    assert!(metrics.transports.iter().all(|one| one.connections == 0));
    for cache in house.context.metrics().registration_caches {
        let now = cache.statistics;
        assert_eq!((now.regions, now.bytes, now.unreleased_bytes), (0, 0, 0));
    }

    let house = Arc::into_inner(house).expect("nobody is left");
    backs.push(back(house.common));
    backs.sort_by_key(|back| back.computed);
    let middle = backs[backs.len() / 2];
    let slowest = backs.iter().map(|back| back.took).max();
    let copied = copied(&house.context).await;
    eprintln!(
        "{over}: had back in {middle:?}, the slowest of {} in {slowest:?}; copied in {copied:?}",
        backs.len()
    );
    let no_waits = backs.iter().all(|back| back.polls <= 2);
    assert!(no_waits, "it waits for somebody: {backs:?}");
    // Computed, not passed: the machine may be busy with something else. A wait for the dead would end after a second, when they are cut off.
    assert!(middle.computed < BACK + copied, "{backs:?}");
    assert!(slowest < Some(Duration::from_secs(1)), "{backs:?}");
    let over = house.worker.shutdown(Duration::from_secs(10));
    over.await.expect("nothing is open");
}

#[test]
fn peers_killed_at_random() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a setting, before there is another thread that allocates.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
    if let Some(parent) = child("second") {
        return runtime().block_on(second(parent));
    }
    if let Some(mut parent) = child("channel") {
        return runtime().block_on(async {
            let id: UniqueId = parent.hear().await.parse().expect("an id");
            let bootstrap = TcpBootstrap::join(id, 1, 2, &BootstrapOptions::new()).await;
            let context = context(&env::var(OVER).expect("given"));
            let worker = Worker::new(&context).expect("a worker");
            let rank = Communicator::new(Arc::new(bootstrap.expect("a group")), &worker).await;
            let rank = rank.expect("a communicator");
            rank.barrier().await.expect("both are here");
            let Err(error) = talk(&rank).await else {
                unreachable!("it talks until it fails")
            };
            panic!("the first process lives: {error}");
        });
    }
    let seconds = env::var("KILLED_SECONDS").ok();
    let seconds: f64 = seconds.map_or(4.0, |text| text.parse().expect("a number"));
    let paths = [
        "shm",
        "shm without cma",
        "tcp",
        #[cfg(feature = "tls")]
        "tls",
    ];
    let each = Duration::from_secs_f64(seconds / paths.len() as f64);
    for over in paths {
        let soak = watchdog(each + 4 * LIMIT, soak(this_test!(), over, each));
        runtime().block_on(soak);
    }
}
