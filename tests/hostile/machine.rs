//! A worker and a peer that keeps to nothing. Bytes decide what the peer says (answers to what it is
//! asked, requests, and changes of either), in which pieces it arrives, and what the worker's own
//! program does meanwhile.
//!
//! What must hold, whatever the bytes are:
//! * nothing panics, and no step takes longer than [`STEP`] of its thread's time;
//! * what is received is what the peer sent for it: a receive that ends well holds one eager message
//!   or a run of fragments, a stream the bytes of that stream, and nowhere is a byte of a [`CANARY`];
//! * the peer is told bytes of what it was sent or may read, and nothing else;
//! * memory that came back to the program is written no more, and what may not be written is as it was;
//! * memory grows by no more than a few times what the peer has sent;
//! * when the connection is over everything that waited for it ends, and nothing is kept.

use std::{
    collections::{HashMap, VecDeque},
    fs::File,
    future::Future,
    os::fd::OwnedFd,
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll, Waker},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
    unistd::{ftruncate, pipe},
};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use wharf::{
    Access, ActiveMessage, AmId, AmInbox, ByteStream, Context, Endpoint, Mask, Matched, Op,
    OpError, Progress, Received, Region, RemoteRegion, Result, Tag, Worker,
};

use super::{
    link::{Hostile, Message, NAME, Wire},
    peer::{Peer, is_told},
};

/// What buffers are full of before they are used.
pub(crate) const CANARY: u8 = 0xc7;
/// Memory that peers may not read.
pub(crate) const SECRET: u8 = 0xd3;
/// What the worker's program sends.
const OWN: u8 = 0xa5;
/// Memory that peers may read.
const READABLE: u8 = 0xb6;

/// The most of its thread's time that one step may take. Unoptimised code gets more.
const STEP: Duration = Duration::from_millis(if cfg!(all(debug_assertions, not(fuzzing))) {
    400
} else {
    50
});
/// How much more than a few times what the peer has sent the worker may hold, in bytes.
const SLACK: usize = 12 << 20;
/// What may be left on the heap when a connection is over: caches, and tables that keep their room.
const LEFT: usize = 1 << 20;
/// Bytes of exposed memory.
pub(crate) const EXPOSED: usize = 8192;

/// Choices, made by bytes. When they are used up the play is over.
#[derive(Debug)]
pub(crate) struct Dice<'a> {
    bytes: &'a [u8],
    /// One choice in so many is a lie that a worker ends the connection for, or may.
    honesty: usize,
}

impl<'a> Dice<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, honesty: 8 }
    }

    /// From now on a lie is as rare as the next choice says: where all lie often, no play is long.
    pub(crate) fn settle_honesty(&mut self) {
        self.honesty = self.pick(&[8, 64, 512, 4096]);
    }

    /// Whether what is said next is against the protocol.
    pub(crate) fn lies(&mut self) -> bool {
        self.one_in(self.honesty)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((byte, rest)) => {
                self.bytes = rest;
                *byte
            }
            None => 0,
        }
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        let wide = match end {
            0..=256 => usize::from(self.byte()),
            _ => usize::from(self.byte()) << 8 | usize::from(self.byte()),
        };
        wide % end.max(1)
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }

    pub(crate) fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    /// A length, most often a short one.
    pub(crate) fn length(&mut self) -> usize {
        const LENGTHS: [usize; 16] = [
            0, 1, 8, 48, 49, 100, 255, 257, 1000, 4096, 4097, 8184, 8192, 8193, 20_000, 70_000,
        ];
        let most = self.below(LENGTHS.len());
        LENGTHS[self.below(most + 1)]
    }
}

/// What a play came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Played {
    /// Messages of the peer that were delivered.
    pub(crate) frames: u64,
    /// The peer was found out.
    pub(crate) refused: bool,
    /// Receives and the like that ended well.
    pub(crate) received: u64,
}

/// The worker, and another to whom it thinks it is connected.
pub(crate) struct Bed {
    runtime: tokio::runtime::Runtime,
    context: Context,
    worker: Worker,
    transport: Hostile,
    other: Worker,
    other_transport: Hostile,
    /// Memory of the other's, for descriptors.
    remote: Region,
    /// Bytes on the heap now.
    heap: fn() -> usize,
}

impl Bed {
    pub(crate) fn new(heap: fn() -> usize) -> Self {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        let _inside = runtime.enter();
        let make = || {
            let transport = Hostile::default();
            let context = Context::builder().transport(Arc::new(transport.clone()));
            let context = context.transports(NAME).expect("its own transport");
            let context = context.progress(Progress::EventDriven).build();
            let context = context.expect("a context");
            let worker = Worker::new(&context).expect("a worker");
            (transport, context, worker)
        };
        let (transport, context, worker) = make();
        let (other_transport, other_context, other) = make();
        let memory = runtime.block_on(other_context.allocate(EXPOSED));
        let remote = other_context.expose(memory.expect("memory"), Access::READ | Access::WRITE);
        let remote = runtime.block_on(remote).expect("a region");
        drop(_inside);
        Self {
            runtime,
            context,
            worker,
            transport,
            other,
            other_transport,
            remote,
            heap,
        }
    }

    /// Plays what the bytes say over a connection of its own.
    ///
    /// # Panics
    /// When something does not hold.
    pub(crate) fn play(&self, bytes: &[u8]) -> Played {
        let _inside = self.runtime.enter();
        let before = (self.heap)();
        let address = self.other.address().expect("an address");
        let endpoint = self.runtime.block_on(self.worker.connect(&address));
        let endpoint = endpoint.expect("a connection");
        let wire = self.transport.newest();
        let others = self.other_transport.newest();
        let mut play = Play::new(self, endpoint, wire, Dice::new(bytes), before);
        while !play.dice.is_over() && !play.is_refused() {
            play.step();
        }
        let played = play.end();
        others.lock().breaks = true;
        self.other.progress();
        self.turn();
        let left = (self.heap)().saturating_sub(before);
        assert!(
            left < LEFT,
            "{left} bytes are kept for a connection that is over"
        );
        played
    }

    /// Lets the worker's own tasks run.
    fn turn(&self) {
        self.runtime.block_on(async {
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        });
    }
}

/// How an operation ended.
enum Ended {
    /// Nothing came of it that could be looked at.
    Over,
    Received(Tag, Vec<u8>, usize),
    /// Bytes of the peer's, in any order.
    Fetched(Vec<u8>),
    /// An active message's.
    Fragments(Vec<u8>, usize),
    /// It failed, and gave its buffer back.
    Back(Option<Vec<u8>>),
    Matched(Matched),
    Stream(ByteStream),
}

type Waiting = Pin<Box<dyn Future<Output = Ended>>>;

enum Held {
    /// Ends with the connection at the latest.
    Tied(Waiting),
    /// May wait for another.
    Loose(Waiting),
    Receive(Op<Received<Vec<u8>>>),
    Send(Op<()>),
}

struct Reading {
    stream: ByteStream,
    position: u64,
    /// Streams of the peer whose bytes these may be.
    names: Vec<u64>,
    over: bool,
}

struct Exposed {
    region: Region,
    access: Access,
}

struct Play<'a> {
    bed: &'a Bed,
    endpoint: Endpoint,
    remote: RemoteRegion,
    wire: Arc<Mutex<Wire>>,
    pub(crate) dice: Dice<'a>,
    peer: Peer,
    held: Vec<Held>,
    streams: Vec<Reading>,
    inboxes: [Option<AmInbox>; 4],
    matched: Vec<Matched>,
    messages: Vec<ActiveMessage>,
    exposed: Vec<Exposed>,
    /// Buffers that came back.
    aside: VecDeque<Vec<u8>>,
    before: usize,
    played: Played,
}

/// Bytes by which the worker's own and the peer's can be told apart.
fn is_of_peer(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte < 0x80)
}

fn canaries(length: usize) -> Vec<u8> {
    vec![CANARY; length]
}

/// Memory to share, sealed like that.
fn memory(length: i64, seals: SealFlag) -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let memory = memfd_create("hostile", flags).expect("a memfd");
    ftruncate(&memory, length).expect("a length");
    fcntl(&memory, FcntlArg::F_ADD_SEALS(seals)).expect("sealed");
    memory
}

/// The time that this thread has run.
fn thread_time() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    Duration::from(time.expect("a clock of the thread"))
}

impl<'a> Play<'a> {
    fn new(
        bed: &'a Bed,
        endpoint: Endpoint,
        wire: Arc<Mutex<Wire>>,
        mut dice: Dice<'a>,
        before: usize,
    ) -> Self {
        {
            let mut wire = wire.lock();
            wire.long = dice.pick(&[4096, 4096, 64]);
        }
        dice.settle_honesty();
        let remote = bed.remote.descriptor().expect("a descriptor");
        let remote = endpoint.import(&remote).expect("imported");
        let mut play = Self {
            bed,
            endpoint,
            remote,
            wire,
            dice,
            peer: Peer::new(),
            held: Vec::new(),
            streams: Vec::new(),
            inboxes: [const { None }; 4],
            matched: Vec::new(),
            messages: Vec::new(),
            exposed: Vec::new(),
            aside: VecDeque::new(),
            before,
            played: Played::default(),
        };
        play.expose(Access::READ | Access::WRITE);
        play.expose(Access::READ);
        play.expose(Access::WRITE);
        play
    }

    fn is_refused(&self) -> bool {
        let wire = self.wire.lock();
        wire.refused || wire.gone
    }

    fn step(&mut self) {
        let began = thread_time();
        match self.dice.byte() {
            0..=79 => self.say(Peer::answer),
            80..=149 => self.say(Peer::request),
            150..=153 if self.dice.lies() => self.say(Peer::wild),
            150..=209 => self.act(),
            210..=229 => self.poll_one(),
            230..=239 => self.give_up_one(),
            240..=249 => self.weather(),
            _ => self.look(),
        }
        let took = thread_time() - began;
        assert!(took < STEP, "a step took {took:?}");
        self.heed();
    }

    /// The peer says something.
    fn say(&mut self, what: fn(&mut Peer, &mut Dice<'_>) -> Option<Message>) {
        if let Some(message) = what(&mut self.peer, &mut self.dice) {
            self.peer.said(&message);
            self.played.frames += 1;
            let waits = {
                let mut wire = self.wire.lock();
                wire.inbound.push_back(message);
                wire.inbound.len()
            };
            // Or it meets whoever looks next.
            if waits > 8 || !self.dice.one_in(4) {
                self.bed.worker.progress();
            }
        }
    }

    /// What the worker told the peer.
    fn heed(&mut self) {
        let told = std::mem::take(&mut self.wire.lock().sent);
        for message in told {
            if let Some(payload) = is_told(&message) {
                // Atomic operations make any word; a longer run of such bytes is what was never the peer's.
                let strange = |run: &[u8]| [[CANARY; 9], [SECRET; 9]].iter().any(|odd| odd == run);
                assert!(
                    !payload.windows(9).any(strange),
                    "message {} brought foreign bytes to the peer",
                    message.id
                );
            }
            self.peer.heard(message);
        }
        let grown = (self.bed.heap)().saturating_sub(self.before);
        let may = SLACK + 4 * self.peer.bytes_said();
        assert!(grown < may, "{grown} bytes are held, {may} would be many");
    }

    fn weather(&mut self) {
        if self.dice.one_in(8) {
            let segment = self.dice.below(4) as u64;
            let (fd, length) = match self.dice.lies() {
                true => {
                    let lengths = [0, 1, 4096, 8192, 1 << 20, 1 << 40, u64::MAX];
                    (self.descriptor(), self.dice.pick(&lengths))
                }
                false => {
                    let resizing = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
                    (memory(8192, resizing | SealFlag::F_SEAL_SEAL), 8192)
                }
            };
            self.wire.lock().shares.push((fd, segment, length));
        }
        let mut wire = self.wire.lock();
        match self.dice.below(6) {
            0 => wire.room = self.dice.below(4),
            1 | 2 => wire.room = usize::MAX,
            3 => wire.flow = self.dice.length(),
            _ => wire.flow = usize::MAX,
        }
        drop(wire);
        self.bed.worker.progress();
        if self.dice.one_in(8) {
            self.bed.turn();
        }
    }

    /// A descriptor that is no segment, or one that its length is not true of.
    fn descriptor(&mut self) -> OwnedFd {
        match self.dice.below(5) {
            0 => pipe().expect("a pipe").0,
            1 => File::open("/dev/zero").expect("a device").into(),
            2 => memory(8192, SealFlag::empty()),
            3 => memory(4096, SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE),
            _ => memory(8192, SealFlag::F_SEAL_SHRINK),
        }
    }

    fn expose(&mut self, access: Access) {
        let fill = match access.contains(Access::READ) {
            true => READABLE,
            false => SECRET,
        };
        let context = &self.bed.context;
        let region = self.bed.runtime.block_on(async {
            let mut memory = context.allocate(EXPOSED).await.expect("memory");
            memory.fill(fill);
            context.expose(memory, access).await.expect("a region")
        });
        let descriptor = region.descriptor().expect("a descriptor").to_bytes();
        self.peer.learns_region(&descriptor);
        self.exposed.push(Exposed { region, access });
    }

    fn take_back(&mut self, exposed: Exposed) {
        let Exposed { region, access } = exposed;
        if !access.contains(Access::WRITE) {
            let mut bytes = vec![0; EXPOSED];
            region.read_at(0, &mut bytes).expect("within");
            assert!(
                bytes.iter().all(|byte| *byte == READABLE),
                "memory that may only be read was written"
            );
        }
        // A frame that has begun to land holds the memory: its link goes on, or is over.
        self.wire.lock().flow = usize::MAX;
        self.bed.worker.progress();
        let memory = self.bed.runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(20), region.unexpose()).await
        });
        let memory = memory.expect("taken back");
        let bytes = memory.as_slice().expect("memory of the host");
        let strange = bytes
            .iter()
            .find(|byte| **byte >= 0x80 && ![SECRET, READABLE].contains(byte));
        // Atomic operations make any byte of where they may.
        assert!(
            access.contains(Access::WRITE) || strange.is_none(),
            "{strange:x?} in exposed memory"
        );
    }

    /// Something that the worker's program does.
    fn act(&mut self) {
        let endpoint = self.endpoint.clone();
        let worker = self.bed.worker.clone();
        let (tag, mask) = (
            Tag(self.dice.below(4) as u64),
            Mask(self.dice.pick(&[3, 3, 1, 0])),
        );
        let length = self.dice.length();
        let own = move || vec![OWN; length];
        if self.held.len() > 64 {
            self.give_up_one();
        }
        match self.dice.below(24) {
            0 | 1 => {
                let receive = worker.tag_recv(tag, canaries(length)).mask(mask).post();
                self.held.push(Held::Receive(receive));
            }
            2..=4 => self.hold_loose(async move {
                received(worker.tag_recv(tag, canaries(length)).mask(mask).await)
            }),
            5 => self.hold_loose(async move {
                match worker.tag_matched(tag).mask(mask).await {
                    Ok(matched) => Ended::Matched(matched),
                    Err(_) => Ended::Over,
                }
            }),
            6 => self.matched.extend(worker.tag_take(tag, mask)),
            7 | 8 => {
                if let Ok(send) = endpoint.tag_send(tag, own()).post() {
                    self.held.push(Held::Send(send));
                }
            }
            9 => self.hold(async move { over(endpoint.tag_send(tag, own()).sync().await) }),
            10 => {
                let region = self.remote.clone();
                let length = length.min(EXPOSED);
                self.hold(async move {
                    match endpoint.get(region.slice(..length), canaries(length)).await {
                        Ok(bytes) => Ended::Fragments(bytes, length),
                        Err(error) => Ended::Back(error.into_parts().1),
                    }
                });
            }
            11 => {
                let region = self.remote.clone();
                let length = length.min(EXPOSED);
                let put = vec![OWN; length];
                self.hold(async move { over(endpoint.put(put, region.slice(..length)).await) });
            }
            12 => {
                let region = self.remote.clone();
                let (add, fetch) = (self.dice.word(), self.dice.one_in(2));
                self.hold(async move {
                    match fetch {
                        true => over(region.fetch_add(8, add).await),
                        false => over(region.add(16, add).await),
                    }
                });
            }
            13 => self.blocks(),
            14 => self.hold(async move {
                match endpoint.accept_stream().await {
                    Ok(stream) => Ended::Stream(stream),
                    Err(_) => Ended::Over,
                }
            }),
            15 => self.hold(async move {
                match endpoint.stream().await {
                    Ok(stream) => Ended::Stream(stream),
                    Err(_) => Ended::Over,
                }
            }),
            16 => self.stream(),
            17 => self.inbox(),
            18 => {
                let header = vec![OWN; self.dice.below(64)];
                let id = AmId(self.dice.below(4) as u16);
                self.hold(async move { over(endpoint.am_send(id, header, own()).await) });
            }
            19 => self.message(),
            20 => {
                if let Some(matched) = self.matched.pop() {
                    let room = matched.info().len.min(100_000);
                    self.held.push(Held::Receive(matched.recv(canaries(room))));
                }
            }
            21 => self.hold(async move { over(endpoint.flush().await) }),
            22 => {
                let access =
                    self.dice
                        .pick(&[Access::READ | Access::WRITE, Access::READ, Access::WRITE]);
                if self.exposed.len() > 4 {
                    let index = self.dice.below(self.exposed.len());
                    let exposed = self.exposed.swap_remove(index);
                    self.take_back(exposed);
                }
                self.expose(access);
            }
            _ => {
                let _ = worker.tag_probe(tag, mask);
            }
        }
    }

    fn blocks(&mut self) {
        let endpoint = self.endpoint.clone();
        let count = self.dice.below(40) + 1;
        let length = self.dice.below(100) + 1;
        let Ok(layout) = self.remote.strided(0, length, 128, count) else {
            return;
        };
        match self.dice.one_in(2) {
            true => {
                let put = vec![OWN; length * count];
                self.hold(async move { over(endpoint.put(put, layout).await) });
            }
            false => self.hold(async move {
                match endpoint.get(layout, canaries(length * count)).await {
                    Ok(bytes) => Ended::Fetched(bytes),
                    Err(error) => Ended::Back(error.into_parts().1),
                }
            }),
        }
    }

    fn hold(&mut self, operation: impl Future<Output = Ended> + 'static) {
        self.held.push(Held::Tied(Box::pin(operation)));
        self.poll_at(self.held.len() - 1);
    }

    fn hold_loose(&mut self, operation: impl Future<Output = Ended> + 'static) {
        self.held.push(Held::Loose(Box::pin(operation)));
        self.poll_at(self.held.len() - 1);
    }

    fn poll_one(&mut self) {
        if !self.held.is_empty() {
            let index = self.dice.below(self.held.len());
            self.poll_at(index);
        }
    }

    /// Whether it ended.
    fn poll_at(&mut self, index: usize) -> bool {
        let mut cx = TaskContext::from_waker(Waker::noop());
        let ended = match &mut self.held[index] {
            Held::Tied(waiting) | Held::Loose(waiting) => waiting.as_mut().poll(&mut cx),
            Held::Receive(receive) => Pin::new(receive).poll(&mut cx).map(received),
            Held::Send(send) => Pin::new(send).poll(&mut cx).map(over),
        };
        let Poll::Ready(ended) = ended else {
            return false;
        };
        drop(self.held.swap_remove(index));
        self.ended(ended);
        true
    }

    fn ended(&mut self, ended: Ended) {
        match ended {
            Ended::Over => {}
            Ended::Back(buffer) => self.put_aside(buffer),
            Ended::Received(tag, bytes, length) => {
                self.played.received += 1;
                self.peer.accounts_for_message(tag.0, &bytes[..length]);
                self.untouched(&bytes[length..]);
                self.put_aside(Some(bytes));
            }
            Ended::Fragments(bytes, length) => {
                self.played.received += 1;
                self.peer.accounts_for_fragments(&bytes[..length]);
                self.put_aside(Some(bytes));
            }
            Ended::Fetched(bytes) => {
                self.played.received += 1;
                assert!(is_of_peer(&bytes), "bytes that the peer has not sent");
                self.put_aside(Some(bytes));
            }
            Ended::Matched(matched) => self.matched.push(matched),
            Ended::Stream(stream) => {
                if self.streams.len() > 8 {
                    self.streams.remove(0);
                }
                self.streams.push(Reading {
                    stream,
                    position: 0,
                    names: Vec::new(),
                    over: false,
                });
            }
        }
    }

    /// What lies behind a message in its buffer.
    fn untouched(&self, bytes: &[u8]) {
        assert!(
            bytes.iter().all(|byte| *byte == CANARY),
            "a receive wrote behind its message"
        );
    }

    /// Memory that came back is the program's own.
    fn put_aside(&mut self, buffer: Option<Vec<u8>>) {
        let Some(mut buffer) = buffer else { return };
        buffer.fill(CANARY);
        self.aside.push_back(buffer);
        if self.aside.len() > 32
            && let Some(buffer) = self.aside.pop_front()
        {
            self.untouched(&buffer);
        }
    }

    fn give_up_one(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let index = self.dice.below(self.held.len());
        let held = self.held.swap_remove(index);
        if self.dice.one_in(2) {
            return;
        }
        match held {
            Held::Receive(receive) => {
                self.hold_loose(async move { received(receive.cancel().await) });
            }
            Held::Send(send) => self.hold(async move { over(send.cancel().await) }),
            Held::Tied(_) | Held::Loose(_) => {}
        }
    }

    fn stream(&mut self) {
        if self.streams.is_empty() {
            return;
        }
        let index = self.dice.below(self.streams.len());
        let mut cx = TaskContext::from_waker(Waker::noop());
        match self.dice.below(8) {
            0..=3 => self.read(index),
            4 | 5 => {
                let bytes = vec![OWN; self.dice.length()];
                let stream = &mut self.streams[index].stream;
                let _ = Pin::new(stream).poll_write(&mut cx, &bytes);
            }
            6 => {
                let stream = &mut self.streams[index].stream;
                let _ = Pin::new(stream).poll_shutdown(&mut cx);
            }
            _ => {
                let reading = self.streams.swap_remove(index);
                if self.dice.one_in(2) {
                    reading.stream.reset();
                }
            }
        }
    }

    fn read(&mut self, index: usize) {
        let mut cx = TaskContext::from_waker(Waker::noop());
        let mut bytes = canaries(self.dice.length() + 1);
        let mut buffer = ReadBuf::new(&mut bytes);
        let reading = &mut self.streams[index];
        let poll = Pin::new(&mut reading.stream).poll_read(&mut cx, &mut buffer);
        let Poll::Ready(Ok(())) = poll else { return };
        let count = buffer.filled().len();
        if count == 0 {
            reading.over = true;
            return;
        }
        assert!(!reading.over, "bytes behind the end of a stream");
        if reading.position == 0 {
            reading.names = self.peer.streams();
        }
        let (filled, rest) = bytes.split_at(count);
        let position = reading.position;
        reading
            .names
            .retain(|name| Peer::is_of_stream(*name, position, filled));
        assert!(
            !reading.names.is_empty(),
            "bytes of no stream of the peer's"
        );
        reading.position += count as u64;
        self.played.received += 1;
        assert!(
            rest.iter().all(|byte| *byte == CANARY),
            "a read wrote too much"
        );
    }

    fn inbox(&mut self) {
        let index = self.dice.below(self.inboxes.len());
        let place = &mut self.inboxes[index];
        match place {
            Some(inbox) => match self.dice.one_in(12) {
                true => *place = None,
                false => self.messages.extend(inbox.try_recv()),
            },
            None => {
                let capacity = self.dice.pick(&[1, 4, 64]);
                let inbox = self.bed.worker.active_messages(AmId(index as u16));
                *place = inbox.capacity(capacity).open().ok();
            }
        }
    }

    fn message(&mut self) {
        let Some(message) = self.messages.pop() else {
            return;
        };
        assert!(
            is_of_peer(message.header()),
            "a header that the peer has not sent"
        );
        if let Some(data) = message.data() {
            assert!(is_of_peer(data), "bytes that the peer has not sent");
        }
        let length = message.len().min(100_000);
        match self.dice.below(4) {
            0 => drop(message),
            1 => message.reject("no"),
            2 if message.len() <= 100_000 => self.hold(async move {
                match message.bytes().await {
                    Ok(bytes) => Ended::Fetched(bytes.to_vec()),
                    Err(_) => Ended::Over,
                }
            }),
            _ => self.hold(async move {
                match message.receive(canaries(length)).await {
                    Ok(got) => Ended::Fetched(got.buffer[..got.len].to_vec()),
                    Err(error) => Ended::Back(error.into_parts().1),
                }
            }),
        }
    }

    /// What anybody may ask at any time.
    fn look(&mut self) {
        let _ = self.bed.worker.in_flight();
        let metrics = self.bed.worker.metrics();
        assert!(
            metrics.in_flight < 20_000,
            "{} operations",
            metrics.in_flight
        );
        let mut cx = TaskContext::from_waker(Waker::noop());
        let mut ready = self.endpoint.ready();
        let _ = Pin::new(&mut ready).poll(&mut cx);
    }

    /// The connection breaks, or is closed. All that waits for it ends.
    fn end(mut self) -> Played {
        self.played.refused = self.is_refused();
        {
            let mut wire = self.wire.lock();
            wire.flow = usize::MAX;
            wire.room = usize::MAX;
            wire.breaks = true;
        }
        let began = thread_time();
        for _ in 0..100 {
            self.bed.worker.progress();
            self.bed.turn();
            let mut index = 0;
            while index < self.held.len() {
                index += usize::from(!self.poll_at(index));
            }
            if self
                .held
                .iter()
                .all(|held| matches!(held, Held::Loose(_) | Held::Receive(_)))
            {
                break;
            }
        }
        let stuck = self
            .held
            .iter()
            .filter(|held| matches!(held, Held::Tied(_) | Held::Send(_)));
        assert_eq!(stuck.count(), 0, "operations that never end");
        assert!(thread_time() - began < 10 * STEP, "the end took too long");
        self.heed();
        self.held.clear();
        self.streams.clear();
        self.matched.clear();
        self.messages.clear();
        for inbox in &mut self.inboxes {
            *inbox = None;
        }
        for exposed in std::mem::take(&mut self.exposed) {
            self.take_back(exposed);
        }
        while let Some(matched) = self.bed.worker.tag_take(Tag(0), Mask(0)) {
            // What came whole is there, without its connection as well.
            let (tag, length) = (matched.info().tag, matched.info().len.min(100_000));
            self.held
                .push(Held::Receive(matched.recv(canaries(length))));
            assert!(
                self.poll_at(0),
                "a message that is here, {length} bytes of {tag:?}"
            );
        }
        for _ in 0..100 {
            if self.bed.worker.in_flight() == 0 {
                break;
            }
            self.bed.turn();
        }
        assert_eq!(self.bed.worker.in_flight(), 0, "operations are left");
        for buffer in &self.aside {
            self.untouched(buffer);
        }
        self.played
    }
}

fn over<T, E>(_: Result<T, E>) -> Ended {
    Ended::Over
}

fn received(result: Result<Received<Vec<u8>>, OpError<Vec<u8>>>) -> Ended {
    match result {
        Ok(got) => Ended::Received(got.tag, got.buffer, got.len),
        Err(error) => Ended::Back(error.into_parts().1),
    }
}

/// What was said, to be compared with what came: eager messages by tag and content, and how often.
pub(crate) type Messages = HashMap<(u64, Vec<u8>), u32>;
