//! A peer in shared memory that writes anything anywhere in the segment between the two, at any time:
//! indices, flags, the words of transfers, generations, cells that look like messages. The worker at the
//! other end survives it, its other connections do not notice, and what it lent comes back. Buffers are full of
//! canaries before: nothing ends well without its bytes, and nothing is written that was not lent for that.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt, select_all};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::{Access, BufferMut, Context, Endpoint, Region, RemoteRegion, Tag, Worker};

use super::{
    choices, dealt,
    machine::{CANARY, Dice, SECRET},
    number, runtime,
    support::{all_are, side_by_side},
};

/// Bytes of the segment, those of them in front of the wide areas, and where what lies in it.
pub(super) const SEGMENT: usize = 0x4ab000;
const FRONT: usize = 0xa5000;
const LINES: [usize; 4] = [0x80, 0x11080, 0x100, 0x11100];
const ACTIVE: [usize; 2] = [0x21f00, 0x21f80];
const TRANSFERS: usize = 0x22000;
const GENERATIONS: usize = 0x23000;
const CELLS: [usize; 2] = [0x200, 0x11200];
/// Cells that are used in turn with these: every other line, with the line behind it.
const NEAR: [usize; 2] = [0x4a5000, 0x4a6000];

/// What may take so long hangs.
const LIMIT: Duration = Duration::from_secs(20);

/// One connection is made at a time in this process: its segment is known by not having been there.
pub(super) static CONNECTING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The segment of a connection, mapped by a worker of this process, or by a file of its own.
pub(super) struct Segment {
    inode: String,
    begin: u64,
    memory: File,
}

/// The mappings of this process that may be segments: where they begin, and of what.
fn segments() -> Vec<(u64, String)> {
    let maps = fs::read_to_string("/proc/self/maps").expect("a mounted /proc");
    let segment = |line: &str| {
        // Most are none.
        if !line.ends_with("(deleted)") {
            return None;
        }
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
        Ok(Self::own(memory))
    }

    /// Of this file.
    pub(super) fn own(memory: File) -> Self {
        Self {
            inode: String::new(),
            begin: 0,
            memory,
        }
    }

    /// Whether it is mapped there still.
    fn is_there(&self) -> bool {
        if self.begin == 0 {
            return true;
        }
        let same = |(begin, inode): &(u64, String)| *begin == self.begin && *inode == self.inode;
        segments().iter().any(same)
    }

    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        let _ = self.memory.write_all_at(bytes, self.begin + at as u64);
    }

    pub(super) fn read(&self, at: usize, bytes: &mut [u8]) {
        let _ = self.memory.read_exact_at(bytes, self.begin + at as u64);
    }

    pub(super) fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        self.read(at, &mut word);
        u64::from_le_bytes(word)
    }

    /// Writes something somewhere.
    pub(super) fn scribble(&self, dice: &mut Dice<'_>) {
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
            0 | 1 => self.write(dice.pick(&LINES) + dice.pick(&[0, 8, 64]), &word),
            2 => self.write(dice.pick(&ACTIVE) + 8 * dice.below(2), &word),
            3 | 4 => self.write(TRANSFERS + 8 * dice.below(64 * 8), &word),
            5 => self.write(GENERATIONS + 8 * dice.below(2 * 512), &word),
            6 => {
                let end = dice.pick(&[FRONT, SEGMENT]);
                self.write(8 * dice.below(end / 8), &word);
            }
            7 => {
                // The next cell's word, and the content of any.
                let cell = dice.pick(&[CELLS, NEAR].concat()) + 64 * dice.below(64);
                self.write(cell + 8 * dice.below(8), &word);
            }
            _ => self.forge(dice),
        }
    }

    /// A message in the next cell of a ring, as if the peer had sent it.
    fn forge(&self, dice: &mut Dice<'_>) {
        let direction = dice.below(2);
        let far = |index: usize| CELLS[direction] + 64 * index;
        let near = |index: usize| NEAR[direction] + 128 * (index % 32);
        let is_free = |index: &usize| {
            let taken = |cell| self.word(cell) as u32 == *index as u32 + 1;
            !taken(far(*index)) && !taken(near(*index))
        };
        let Some(index) = (0..1024).find(is_free) else {
            return;
        };
        let cell = match dice.below(3) {
            0 => near(index),
            _ => far(index),
        };
        // The next one lies in the other cells.
        let turns = u64::from(dice.below(8) == 0) << 3;
        let (kind, length) = match dice.below(12) {
            0 => (dice.byte().into(), dice.below(0x10000) as u64),
            1 => (dice.pick(&[2, 3, 4]) | turns, dice.below(9000) as u64),
            2 => (1 | turns, dice.below(120) as u64),
            _ => (1 | turns, dice.below(49) as u64),
        };
        let id = match dice.below(4) {
            0 => dice.byte().into(),
            _ => dice.below(45) as u64,
        };
        let content: Vec<u8> = (0..7)
            .flat_map(|_| match dice.below(3) {
                0 => dice.word().to_le_bytes(),
                1 => (dice.below(300) as u64).to_le_bytes(),
                _ => [0; 8],
            })
            .collect();
        self.write(cell + 8, &content);
        let word = (index as u64 + 1) | length << 32 | id << 48 | kind << 56;
        self.write(cell, &word.to_le_bytes());
    }
}

/// A thread that writes anything anywhere, as fast as it can, or now and then.
struct Scribbler {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Scribbler {
    fn start(segment: Segment, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let pause = Duration::from_micros([0, 0, 200, 2000][(seed % 4) as usize]);
        let thread = thread::spawn(move || {
            for seed in (0..).map(|round| seed.wrapping_add(round)) {
                let bytes = choices(seed);
                let mut dice = Dice::new(&bytes);
                for _ in 0..bytes.len() / 8 {
                    if stopped.load(Relaxed) {
                        return;
                    }
                    segment.scribble(&mut dice);
                    // Some of them at the worker's pace.
                    if !pause.is_zero() {
                        thread::sleep(pause);
                    }
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

pub(super) type Running = BoxFuture<'static, ()>;

/// What is sent, as nothing else is.
static SENT: [u8; 600_000] = [0xa5; 600_000];
/// What peers may read, and write in one of two regions.
const LENT: u8 = 0xb6;

/// Whether bytes are among these of which a buffer was full before, and which nobody has sent: more in a row than in any word that is made up.
fn is_stale(bytes: &[u8]) -> bool {
    let stale = |run: &[u8]| run == [CANARY; 8];
    match bytes.len() {
        0..=4096 => bytes.windows(8).any(stale),
        _ => bytes.chunks_exact(8).any(stale),
    }
}

/// Up to which lengths what ended well has come whole, whatever the peer says. Longer ones both ends copy where the kernel lets each at the other's
/// memory, and what the other says to have copied cannot be counted.
#[derive(Clone, Copy)]
pub(super) struct Certain {
    pub(super) received: usize,
    pub(super) got: usize,
}

impl Certain {
    /// Without cma.
    pub(super) const ALL: Self = Self {
        received: usize::MAX,
        got: usize::MAX,
    };
}

/// What a program does over one end of a connection.
#[derive(Clone)]
pub(super) struct Program {
    worker: Worker,
    endpoint: Endpoint,
    remote: RemoteRegion,
    certain: Certain,
    /// Buffers that came back: nobody else's from then on.
    aside: Arc<Mutex<VecDeque<Vec<u8>>>>,
    /// What was received and looked at.
    checked: Arc<AtomicU64>,
}

impl Program {
    pub(super) fn new(
        worker: &Worker,
        endpoint: &Endpoint,
        remote: &RemoteRegion,
        certain: Certain,
        checked: &Arc<AtomicU64>,
    ) -> Self {
        Self {
            worker: worker.clone(),
            endpoint: endpoint.clone(),
            remote: remote.clone(),
            certain,
            aside: Arc::default(),
            checked: checked.clone(),
        }
    }

    /// An operation, whose buffer is full of canaries before.
    pub(super) fn begin(&self, dice: &mut Dice<'_>) -> Running {
        let this = self.clone();
        let length = dice.pick(&[0, 8, 48, 100, 4096, 9000, 70_000, 200_000, 600_000]);
        let tag = Tag(dice.below(3) as u64);
        let size = length.min(this.remote.len());
        match dice.below(9) {
            0 => async move { drop(this.endpoint.tag_send(tag, vec![1; length]).await) }.boxed(),
            1 => async move { drop(this.endpoint.tag_send(tag, &SENT[..length]).await) }.boxed(),
            2 | 3 => async move { this.receive(tag).await }.boxed(),
            4 => async move { this.get(size).await }.boxed(),
            5 => {
                let put = &SENT[..size];
                async move { drop(this.endpoint.put(put, this.remote.slice(..size)).await) }.boxed()
            }
            6 => async move { drop(this.remote.fetch_add::<u64>(8, 1).await) }.boxed(),
            7 => async move { this.read().await }.boxed(),
            _ => async move {
                if let Ok(mut stream) = this.endpoint.stream().await {
                    let _ = stream.write_all(&vec![3; length]).await;
                }
            }
            .boxed(),
        }
    }

    async fn receive(&self, tag: Tag) {
        let buffer = vec![CANARY; 600_000];
        match self.worker.tag_recv(tag, buffer).await {
            Ok(got) => {
                let (message, behind) = got.buffer.split_at(got.len);
                let is_certain = got.len <= self.certain.received;
                assert!(
                    !is_certain || !is_stale(message),
                    "a receive of {} bytes ended well without them",
                    got.len
                );
                assert!(
                    all_are(behind, CANARY),
                    "a receive wrote behind its message"
                );
                self.checked.fetch_add(1, Relaxed);
                self.put_aside(Some(got.buffer));
            }
            Err(error) => self.put_aside(error.into_parts().1),
        }
    }

    async fn get(&self, size: usize) {
        let buffer = vec![CANARY; size];
        match self.endpoint.get(self.remote.slice(..size), buffer).await {
            Ok(bytes) => {
                let is_certain = size <= self.certain.got;
                assert!(
                    !is_certain || !is_stale(&bytes),
                    "a get of {size} bytes ended well without them"
                );
                self.checked.fetch_add(1, Relaxed);
                self.put_aside(Some(bytes));
            }
            Err(error) => self.put_aside(error.into_parts().1),
        }
    }

    /// Reads a stream of the peer's.
    async fn read(&self) {
        let Ok(mut stream) = self.endpoint.accept_stream().await else {
            return;
        };
        loop {
            let mut bytes = vec![CANARY; 50_000];
            let Ok(count @ 1..) = stream.read(&mut bytes).await else {
                return;
            };
            let (read, behind) = bytes.split_at(count);
            assert!(!is_stale(read), "bytes of no stream");
            assert!(all_are(behind, CANARY), "a read wrote too much");
            self.checked.fetch_add(1, Relaxed);
        }
    }

    fn put_aside(&self, buffer: Option<Vec<u8>>) {
        let Some(mut buffer) = buffer else { return };
        buffer.fill(CANARY);
        let mut aside = self.aside.lock();
        aside.push_back(buffer);
        if aside.len() > 16
            && let Some(buffer) = aside.pop_front()
        {
            assert!(
                all_are(&buffer, CANARY),
                "memory was written that had come back"
            );
        }
    }

    /// After the end of the connection.
    pub(super) fn end(&self) {
        let written = |buffer: &Vec<u8>| !all_are(buffer, CANARY);
        let is_written = self.aside.lock().iter().any(written);
        assert!(!is_written, "memory was written that had come back");
        assert!(all_are(&SENT, SENT[0]), "what was sent was written");
    }
}

/// Everything under way is looked at, for a moment.
pub(super) async fn run(running: &mut Vec<Running>, moment: Duration) {
    if running.is_empty() {
        return tokio::task::yield_now().await;
    }
    let some = select_all(running.iter_mut());
    if let Ok(((), index, _)) = tokio::time::timeout(moment, some).await {
        drop(running.swap_remove(index));
    }
}

pub(super) struct Bed {
    pub(super) context: Context,
    pub(super) here: Worker,
    /// One that keeps to everything, and its connection.
    honest: Worker,
    to_honest: Endpoint,
    _from_here: Endpoint,
    pub(super) checked: Arc<AtomicU64>,
}

async fn connected(from: &Worker, to: &Worker) -> (Endpoint, Endpoint) {
    let listener = to.listen("127.0.0.1:0").await.expect("a listener");
    let address = listener.local_addr();
    let (here, there) = tokio::join!(from.connect(address), async {
        listener.accept().await?.accept().await
    });
    (here.expect("connected"), there.expect("accepted"))
}

/// Memory of a worker's: what peers may read and write, what they may only read or only write, and what is lent to nobody.
pub(super) struct Memory {
    both: Region,
    readable: Region,
    writable: Region,
    kept: BufferMut,
}

impl Memory {
    pub(super) async fn new(context: &Context, length: usize) -> Self {
        let filled = async |byte: u8| {
            let mut memory = context.allocate(length).await.expect("memory");
            memory.fill(byte);
            memory
        };
        let expose = async |byte: u8, access: Access| {
            let region = context.expose(filled(byte).await, access).await;
            region.expect("a region")
        };
        Self {
            both: expose(LENT, Access::READ | Access::WRITE).await,
            readable: expose(LENT, Access::READ).await,
            writable: expose(SECRET, Access::WRITE).await,
            kept: filled(SECRET).await.into(),
        }
    }

    /// For a peer, of what it is lent.
    pub(super) fn descriptors(&self) -> [Vec<u8>; 3] {
        [&self.both, &self.readable, &self.writable].map(|region| {
            let descriptor = region.descriptor();
            descriptor.expect("a descriptor").to_bytes()
        })
    }

    /// It is had back, from a peer that is gone, and what was not lent for that was not written.
    pub(super) async fn end(self) {
        let back = async |region: Region| {
            let back = tokio::time::timeout(LIMIT, region.unexpose()).await;
            back.expect("memory that was lent to a peer that is gone")
        };
        let holds = |memory: &BufferMut, byte| {
            let bytes = memory.as_slice().expect("memory of the host");
            all_are(bytes, byte)
        };
        let readable = back(self.readable).await;
        assert!(
            holds(&readable, LENT),
            "memory that may only be read was written"
        );
        drop((back(self.both).await, back(self.writable).await));
        assert!(
            holds(&self.kept, SECRET),
            "memory that is lent to nobody was written"
        );
    }
}

pub(super) fn context(cma: bool) -> Context {
    let builder = Context::builder().transports("shm").expect("known");
    builder.cma(cma).build().expect("a context")
}

impl Bed {
    pub(super) async fn new(context: Context) -> Self {
        let here = Worker::new(&context).expect("a worker");
        let honest = Worker::new(&context).expect("a worker");
        let (to_honest, from_here) = {
            let _alone = CONNECTING.lock().await;
            connected(&here, &honest).await
        };
        Self {
            context,
            here,
            honest,
            to_honest,
            _from_here: from_here,
            checked: Arc::default(),
        }
    }

    /// Somebody else writes at the same time where a seed for that is given.
    async fn play(&self, theirs: &Context, bytes: &[u8], meanwhile: Option<u64>) {
        let mut dice = Dice::new(bytes);
        let hostile = Worker::new(theirs).expect("a worker");
        let (there, here, segment) = {
            let _alone = CONNECTING.lock().await;
            let before = segments();
            let (there, here) = connected(&hostile, &self.here).await;
            (there, here, Segment::new(&before))
        };
        let scribbler = meanwhile.and_then(|seed| match segment.outside() {
            Ok(segment) => Some(Scribbler::start(segment, seed)),
            Err(error) => {
                eprintln!("nobody writes meanwhile: no right to open what is mapped: {error}");
                None
            }
        });
        let memory = Memory::new(&self.context, 1 << 20).await;
        let region = theirs.allocate(1 << 20).await.expect("memory");
        let region = theirs.expose(region, Access::READ | Access::WRITE).await;
        let region = region.expect("a region");
        let import = |endpoint: &Endpoint, region: &Region| {
            let descriptor = region.descriptor().expect("a descriptor");
            endpoint.import(&descriptor).expect("imported")
        };
        let program = |worker, endpoint, region| {
            let remote = import(endpoint, region);
            Program::new(worker, endpoint, &remote, Certain::ALL, &self.checked)
        };
        let own = program(&self.here, &here, &region);
        let others = [&memory.both, &memory.readable].map(|lent| program(&hostile, &there, lent));
        let mut running: Vec<Running> = Vec::new();
        for _ in 0..bytes.len() / 8 {
            match dice.below(8) {
                0 | 1 => running.push(own.begin(&mut dice)),
                2 => running.push(others[0].begin(&mut dice)),
                3 => running.push(others[1].begin(&mut dice)),
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
        own.end();
        others.iter().for_each(Program::end);
        drop((own, others, here, there, hostile));
        // It goes on to the end of the mapping, and behind it.
        drop(scribbler);
        memory.end().await;
        drop(region);
        self.others_go_on().await;
    }

    /// A message to and from who has nothing to do with it.
    pub(super) async fn others_go_on(&self) {
        let tag = Tag(77);
        let both = async {
            let buffer = vec![0; 100_000];
            let (sent, got) = tokio::join!(
                self.to_honest.tag_send(tag, vec![9; 100_000]),
                self.honest.tag_recv(tag, buffer),
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
    let _others = crate::ALONE.read();
    let plays = number("HOSTILE_SEGMENTS").unwrap_or(30);
    let first = number("HOSTILE_SEED").unwrap_or(1);
    let checked = side_by_side(dealt(first..first + plays), |seeds| {
        let runtime = runtime();
        // An address that a peer makes up would be one of this process. With cma: `outside`.
        let bed = runtime.block_on(Bed::new(context(false)));
        // The other end has its own, or it would be lent what this one's memory lies in.
        let theirs = context(false);
        for seed in seeds {
            let play = AssertUnwindSafe(|| {
                runtime.block_on(bed.play(&theirs, &choices(seed), at_once.then_some(!seed)))
            });
            if let Err(panic) = panic::catch_unwind(play) {
                eprintln!("once more: HOSTILE_SEED={seed} HOSTILE_SEGMENTS=1");
                panic::resume_unwind(panic);
            }
        }
        bed.checked.load(Relaxed)
    });
    let checked: u64 = checked.into_iter().sum();
    eprintln!("{checked} receives checked in {plays} plays");
    // Few live on where somebody writes all the time.
    let least = if at_once { 0 } else { plays };
    assert!(
        plays < 30 || checked > least,
        "the generator does nothing worth checking"
    );
}
