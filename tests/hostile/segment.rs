//! A peer in shared memory that writes anything anywhere in the segment between the two, at any time:
//! indices, flags, the words of transfers, generations, cells that look like messages. The worker at the
//! other end survives it, its other connections do not notice, and what it lent comes back.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt, select_all};
use wharf::{Access, Context, Endpoint, Mask, RemoteRegion, Tag, Worker};

use super::{choices, machine::Dice, number};

/// Bytes of the segment, those of them in front of the wide areas, and where what lies in it.
const SEGMENT: usize = 0x4a5000;
const FRONT: usize = 0xa5000;
const LINES: [usize; 4] = [0x80, 0x11080, 0x100, 0x11100];
const ACTIVE: [usize; 2] = [0x180, 0x11180];
const TRANSFERS: usize = 0x22000;
const GENERATIONS: usize = 0x23000;
const CELLS: [usize; 2] = [0x200, 0x11200];

/// What may take so long hangs.
const LIMIT: Duration = Duration::from_secs(20);

/// The segment of a connection, mapped by a worker of this process.
struct Segment {
    inode: String,
    begin: u64,
    memory: File,
}

/// The mappings of this process that may be segments: where they begin, and of what.
fn segments() -> Vec<(u64, String)> {
    let maps = fs::read_to_string("/proc/self/maps").expect("a mounted /proc");
    let segment = |line: &str| {
        let mut words = line.split_whitespace();
        let (range, inode) = (words.next()?, words.nth(3)?);
        let (begin, end) = range.split_once('-')?;
        let begin = u64::from_str_radix(begin, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        let is_segment = end - begin == SEGMENT as u64 && line.contains("memfd:");
        is_segment.then(|| (begin, inode.to_owned()))
    };
    maps.lines().filter_map(segment).collect()
}

impl Segment {
    /// The one that was not there before.
    fn new(before: &[(u64, String)]) -> Self {
        let known = |inode: &String| before.iter().any(|(_, before)| before == inode);
        let new = segments().into_iter().find(|(_, inode)| !known(inode));
        let (begin, inode) = new.expect("the segment of a new connection");
        let mut options = fs::OpenOptions::new();
        let memory = options.read(true).write(true).open("/proc/self/mem");
        let memory = memory.expect("this process's memory");
        Self {
            inode,
            begin,
            memory,
        }
    }

    /// The same by a file of its own, which never reaches other memory: for a thread that writes while the mapping ends.
    fn outside(&self) -> io::Result<Self> {
        let end = self.begin + SEGMENT as u64;
        let path = format!("/proc/self/map_files/{:x}-{end:x}", self.begin);
        let memory = fs::OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self {
            inode: String::new(),
            begin: 0,
            memory,
        })
    }

    /// Whether it is mapped there still.
    fn is_there(&self) -> bool {
        if self.begin == 0 {
            return true;
        }
        let same = |(begin, inode): &(u64, String)| *begin == self.begin && *inode == self.inode;
        segments().iter().any(same)
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let _ = self.memory.write_all_at(bytes, self.begin + at as u64);
    }

    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        let _ = self.memory.read_exact_at(&mut word, self.begin + at as u64);
        u64::from_le_bytes(word)
    }

    /// Writes something somewhere.
    fn scribble(&self, dice: &mut Dice<'_>) {
        if !self.is_there() {
            return;
        }
        let number = match dice.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => dice.word(),
            3 => dice.below(4) as u64,
            4 => 1 << dice.below(64),
            _ => self.word(dice.below(FRONT / 8) * 8),
        };
        let word = number.to_le_bytes();
        match dice.below(12) {
            0 | 1 => self.write(dice.pick(&LINES) + 8 * dice.below(3), &word),
            2 => self.write(dice.pick(&ACTIVE) + 4 * dice.below(2), &word[..4]),
            3 | 4 => self.write(TRANSFERS + 8 * dice.below(64 * 8), &word),
            5 => self.write(GENERATIONS + 8 * dice.below(2 * 512), &word),
            6 => {
                let end = dice.pick(&[FRONT, SEGMENT]);
                self.write(8 * dice.below(end / 8), &word);
            }
            7 => {
                // The next cell's word, and the content of any.
                let cell = dice.pick(&CELLS) + 64 * dice.below(64);
                self.write(cell + 8 * dice.below(8), &word);
            }
            _ => self.forge(dice),
        }
    }

    /// A message in the next cell of a ring, as if the peer had sent it.
    fn forge(&self, dice: &mut Dice<'_>) {
        let ring = dice.pick(&CELLS);
        let is_free = |index: &usize| self.word(ring + 64 * index) as u32 != *index as u32 + 1;
        let Some(index) = (0..1024).find(is_free) else {
            return;
        };
        let (kind, length) = match dice.below(12) {
            0 => (dice.byte().into(), dice.below(0x10000) as u64),
            1 => (dice.pick(&[2, 3]), dice.below(9000) as u64),
            _ => (1, dice.below(49) as u64),
        };
        let id = match dice.below(4) {
            0 => dice.byte().into(),
            _ => dice.below(44) as u64,
        };
        let content: Vec<u8> = (0..7)
            .flat_map(|_| match dice.below(3) {
                0 => dice.word().to_le_bytes(),
                1 => (dice.below(300) as u64).to_le_bytes(),
                _ => [0; 8],
            })
            .collect();
        self.write(ring + 64 * index + 8, &content);
        let word = (index as u64 + 1) | length << 32 | id << 48 | kind << 56;
        self.write(ring + 64 * index, &word.to_le_bytes());
    }
}

/// A thread that writes anything anywhere, as fast as it can.
struct Scribbler {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Scribbler {
    fn start(segment: Segment, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            for seed in (0..).map(|round| seed.wrapping_add(round)) {
                let bytes = choices(seed);
                let mut dice = Dice::new(&bytes);
                for _ in 0..bytes.len() / 8 {
                    if stopped.load(Relaxed) {
                        return;
                    }
                    segment.scribble(&mut dice);
                }
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Scribbler {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(Err(panic)) = self.thread.take().map(thread::JoinHandle::join) {
            panic::resume_unwind(panic);
        }
    }
}

type Running = BoxFuture<'static, ()>;

/// An operation of one end.
fn operation(
    dice: &mut Dice<'_>,
    worker: &Worker,
    endpoint: &Endpoint,
    remote: &RemoteRegion,
) -> Running {
    let (worker, endpoint, remote) = (worker.clone(), endpoint.clone(), remote.clone());
    let length = dice.pick(&[0, 8, 48, 100, 4096, 9000, 70_000, 200_000, 600_000]);
    let tag = Tag(dice.below(3) as u64);
    let size = length.min(remote.len());
    match dice.below(8) {
        0 | 1 => async move { drop(endpoint.tag_send(tag, vec![1; length]).await) }.boxed(),
        2 | 3 => {
            async move { drop(worker.tag_recv(tag, Mask::ALL, vec![0; 600_000]).await) }.boxed()
        }
        4 => async move { drop(endpoint.get(remote.slice(..size), vec![0; size]).await) }.boxed(),
        5 => async move { drop(endpoint.put(vec![2; size], remote.slice(..size)).await) }.boxed(),
        6 => async move { drop(remote.fetch_add::<u64>(8, 1).await) }.boxed(),
        _ => async move {
            if let Ok(mut stream) = endpoint.stream().await {
                let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, &vec![3; length]).await;
            }
        }
        .boxed(),
    }
}

/// Everything under way is looked at, for a moment.
async fn run(running: &mut Vec<Running>, moment: Duration) {
    if running.is_empty() {
        return tokio::task::yield_now().await;
    }
    let some = select_all(running.iter_mut());
    if let Ok(((), index, _)) = tokio::time::timeout(moment, some).await {
        drop(running.swap_remove(index));
    }
}

struct Bed {
    context: Context,
    here: Worker,
    /// One that keeps to everything, and its connection.
    honest: Worker,
    to_honest: Endpoint,
    _from_here: Endpoint,
}

async fn connected(from: &Worker, to: &Worker) -> (Endpoint, Endpoint) {
    let mut listener = to.listen("127.0.0.1:0").await.expect("a listener");
    let address = listener.local_addr();
    let (here, there) = tokio::join!(from.connect(address), async {
        listener.accept().await?.accept().await
    });
    (here.expect("connected"), there.expect("accepted"))
}

impl Bed {
    /// Somebody else writes at the same time where a seed for that is given.
    async fn play(&self, bytes: &[u8], meanwhile: Option<u64>) {
        let mut dice = Dice::new(bytes);
        let before = segments();
        let hostile = Worker::new(&self.context).expect("a worker");
        let (there, here) = connected(&hostile, &self.here).await;
        let segment = Segment::new(&before);
        let scribbler = meanwhile.and_then(|seed| match segment.outside() {
            Ok(segment) => Some(Scribbler::start(segment, seed)),
            Err(error) => {
                eprintln!("nobody writes meanwhile: no right to open what is mapped: {error}");
                None
            }
        });
        let memory = self.context.allocate(1 << 20).await.expect("memory");
        let access = Access::READ | Access::WRITE;
        let region = self.context.expose(memory, access).await.expect("a region");
        let descriptor = region.descriptor().expect("a descriptor");
        let near = here.import(&descriptor).expect("imported");
        let far = there.import(&descriptor).expect("imported");
        let mut running: Vec<Running> = Vec::new();
        for _ in 0..bytes.len() / 8 {
            match dice.below(8) {
                0 | 1 => running.push(operation(&mut dice, &self.here, &here, &near)),
                2 | 3 => running.push(operation(&mut dice, &hostile, &there, &far)),
                4 | 5 => segment.scribble(&mut dice),
                _ => run(&mut running, Duration::from_micros(200)).await,
            }
            if running.len() > 16 {
                drop(running.swap_remove(dice.below(16)));
            }
        }
        self.others_go_on().await;
        here.abort();
        there.abort();
        running.clear();
        drop((near, far, here, there, hostile));
        // It goes on to the end of the mapping, and behind it.
        drop(scribbler);
        let back = tokio::time::timeout(LIMIT, region.unexpose()).await;
        back.expect("memory that was lent to a peer that is gone");
        self.others_go_on().await;
    }

    /// A message to and from who has nothing to do with it.
    async fn others_go_on(&self) {
        let tag = Tag(77);
        let both = async {
            let buffer = vec![0; 100_000];
            let (sent, got) = tokio::join!(
                self.to_honest.tag_send(tag, vec![9; 100_000]),
                self.honest.tag_recv(tag, Mask::ALL, buffer),
            );
            sent.expect("sent");
            let got = got.expect("received");
            assert!(got.buffer.iter().all(|byte| *byte == 9));
        };
        let both = tokio::time::timeout(LIMIT, both).await;
        both.expect("another connection goes on");
    }
}

#[test]
fn a_segment_may_hold_anything() {
    segments_of_hostile_peers(false);
}

#[test]
fn a_segment_may_change_at_any_moment() {
    segments_of_hostile_peers(true);
}

fn segments_of_hostile_peers(at_once: bool) {
    let _alone = crate::ALONE.lock();
    let plays = number("HOSTILE_SEGMENTS").unwrap_or(30);
    let first = number("HOSTILE_SEED").unwrap_or(1);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    let bed = runtime.block_on(async {
        // Without cma: an address that a peer makes up would be one of this process.
        let context = Context::builder().transports("shm").expect("known");
        let context = context.build().expect("a context");
        let here = Worker::new(&context).expect("a worker");
        let honest = Worker::new(&context).expect("a worker");
        let (to_honest, from_here) = connected(&here, &honest).await;
        Bed {
            context,
            here,
            honest,
            to_honest,
            _from_here: from_here,
        }
    });
    for seed in first..first + plays {
        let play = AssertUnwindSafe(|| {
            runtime.block_on(bed.play(&choices(seed), at_once.then_some(!seed)))
        });
        if let Err(panic) = panic::catch_unwind(play) {
            eprintln!("once more: HOSTILE_SEED={seed} HOSTILE_SEGMENTS=1");
            panic::resume_unwind(panic);
        }
    }
}
