//! A peer of another process, which speaks the handshake and writes the segment by itself: messages in good order or nearly so, lies in any word, and
//! addresses of its own memory that the worker may read and write by the kernel (cma). It does not touch the worker's memory, though the kernel would
//! let it: what changes there that was not lent for that, the worker has written.

use std::{
    fs::File,
    io::{IoSlice, Read},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream},
    },
    panic::{self, AssertUnwindSafe},
    pin::pin,
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

use futures::FutureExt;
use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        socket::{ControlMessage, MsgFlags, sendmsg},
        timerfd::{ClockId, TimerFd, TimerFlags},
    },
    unistd::ftruncate,
};
use tokio::{io::AsyncReadExt, net::UnixListener};
use wharf::{Access, BufferMut, Descriptor, Worker, WorkerAddress};

use super::{
    choices, dealt,
    link::Message,
    machine::{CANARY, Dice, SECRET},
    number,
    peer::{Known, Peer, is_told},
    runtime,
    segment::{Bed, CONNECTING, Certain, Memory, Program, Running, SEGMENT, Segment, context, run},
    stranger::{Key, Stranger, field, hear, hear_introduction, led_to, say, unix_part},
    support::{Child, Parent, child, side_by_side, this_test},
    wire::{DONE, GET, TAG_RTR, word},
};

/// Where things lie in the segment: those of what the peer says, which made it, and of what it hears.
const SAYS: Way = Way {
    cells: [0x1_1200, 0x4a_6000],
    consumer: 0x1_1080,
    areas: [0x6_5000, 0x2a_5000, 0x4a_9000],
};
const HEARS: Way = Way {
    cells: [0x200, 0x4a_5000],
    consumer: 0x80,
    areas: [0x2_5000, 0xa_5000, 0x4a_7000],
};
/// The generations of the regions of who made it.
const GENERATIONS: usize = 0x2_4000;
const CELLS: u64 = 1024;
/// Near cells, and the messages after which this peer goes from the others to them if it can.
const NEAR_CELLS: u64 = 32;
const TURN: u64 = 20;
const AREAS: [u64; 3] = [256 << 10, 2 << 20, 8 << 10];
/// Longest body in a cell, and in a near one.
const INLINE: [usize; 2] = [48, 112];
const LONGEST: usize = 66 << 10;

/// Bytes of memory of the peer's that the worker may reach: from the addresses that it is told, more than any of its operations moves.
const FAR: usize = 8 << 20;
/// Bytes of each of the worker's regions.
const NEAR: usize = 1 << 17;

/// Fields of the handshake: where memory is that the other may try to read, and whether that could be done.
const MEMORY: u16 = 14;
const REACHED: u16 = 15;

/// One direction.
struct Way {
    /// Far ones and near ones.
    cells: [usize; 2],
    consumer: usize,
    areas: [usize; 3],
}

impl Way {
    fn cell(&self, place: &Place) -> usize {
        match place.is_near {
            false => self.cells[0] + 64 * (place.count % CELLS) as usize,
            true => self.cells[1] + 128 * (place.count % NEAR_CELLS) as usize,
        }
    }
}

/// A place in it: messages, the position in the areas, which cells these messages take, and how many there were when the other ones were left.
#[derive(Default)]
struct Place {
    count: u64,
    position: u64,
    is_near: bool,
    left: u64,
}

impl Place {
    /// A message has gone by, after which the cells are the other ones or not.
    fn passes(&mut self, turns: bool) {
        self.count += 1;
        if turns {
            (self.is_near, self.left) = (!self.is_near, self.count);
        }
    }

    /// Where the next body of so many bytes lies in its area.
    fn next(&self, room: u64, length: usize) -> (usize, u64) {
        let (offset, size) = (self.position % room, (length as u64).next_multiple_of(64));
        match offset + size <= room {
            true => (offset as usize, self.position + size),
            false => (0, self.position + room - offset + size),
        }
    }
}

/// A segment that the peer has made, and both rings in it.
struct Rings {
    segment: Segment,
    says: Place,
    hears: Place,
}

impl Rings {
    fn new(memory: OwnedFd) -> Self {
        Self {
            segment: Segment::own(File::from(memory)),
            says: Place::default(),
            hears: Place::default(),
        }
    }

    /// Puts a message into the ring. `false`: it is too long, or there is no room.
    fn say(&mut self, message: &Message) -> bool {
        let (body, place) = (&message.body, &mut self.says);
        let head = self.segment.word(SAYS.consumer);
        if body.len() > LONGEST || place.count.wrapping_sub(head) >= CELLS {
            return false;
        }
        let cell = SAYS.cell(place);
        let mut kind = 1;
        if body.len() > INLINE[usize::from(place.is_near)] {
            let free = self.segment.word(SAYS.consumer + 8);
            let fits = |area: &usize| {
                let (_, end) = place.next(AREAS[*area], body.len());
                end.wrapping_sub(free) <= AREAS[*area]
            };
            let near = (place.is_near && body.len() <= 2048).then_some(2);
            let Some(area) = near.filter(&fits).or_else(|| Some(0).filter(&fits)) else {
                return false;
            };
            let (offset, end) = place.next(AREAS[area], body.len());
            self.segment.write(SAYS.areas[area] + offset, body);
            (place.position, kind) = (end, 2 + area as u64);
        } else {
            self.segment.write(cell + 16, body);
        }
        self.segment.write(cell + 8, &message.header.to_le_bytes());
        let under_way = place.count.wrapping_sub(head);
        let turns = match place.is_near {
            true => under_way >= NEAR_CELLS - 1,
            false => place.count - place.left >= TURN && head >= place.left,
        };
        let word = u64::from(place.count as u32 + 1)
            | (body.len() as u64 & 0xffff) << 32
            | u64::from(message.id) << 48
            | kind << 56
            | u64::from(turns) << 59
            | (body.len() as u64 >> 16) << 60;
        self.segment.write(cell, &word.to_le_bytes());
        place.passes(turns);
        true
    }

    /// The next message of the worker's.
    fn hear(&mut self) -> Option<Message> {
        let place = &mut self.hears;
        let cell = HEARS.cell(place);
        let word = self.segment.word(cell);
        if word as u32 != place.count as u32 + 1 {
            return None;
        }
        let length = (word >> 32) as u16 as usize | (word >> 60 << 16) as usize;
        let mut body = vec![0; length];
        if body.len() > INLINE[usize::from(place.is_near)] {
            // Where this side has scribbled over it, anything.
            body.truncate(LONGEST);
            let area = match word >> 56 & 0x7 {
                3 => 1,
                4 => 2,
                _ => 0,
            };
            let (offset, end) = place.next(AREAS[area], body.len());
            self.segment.read(HEARS.areas[area] + offset, &mut body);
            place.position = end;
        } else {
            self.segment.read(cell + 16, &mut body);
        }
        let header = self.segment.word(cell + 8);
        place.passes(word >> 59 & 1 == 1);
        let given_back = [place.count.to_le_bytes(), place.position.to_le_bytes()];
        self.segment.write(HEARS.consumer, &given_back.concat());
        Some(Message {
            id: (word >> 48) as u8,
            header,
            prefix: 0,
            body,
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(byte).collect()
}

/// The other process.
struct Hostile {
    listener: UnixListener,
    key: Key,
    /// Where it lives, as its own worker says.
    identity: Vec<u8>,
    /// By which the worker knows the process again.
    landmark: Box<[u8; 16]>,
    /// What it lets the worker at.
    memory: (u64, usize),
    /// That, as a region.
    region: Known,
}

async fn hostile(mut parent: Parent) {
    let context = context(true);
    let worker = Worker::new(&context).expect("a worker");
    let address = worker.address().expect("an address");
    let memory = vec![0x41; FAR];
    let at = memory.as_ptr() as u64;
    let region = context
        .expose(BufferMut::from(memory), Access::READ | Access::WRITE)
        .await;
    let region = region.expect("a region");
    let descriptor = region.descriptor().expect("a descriptor").to_bytes();
    let name = format!("wharf-test-outside-{}", std::process::id()).into_bytes();
    let place = SocketAddr::from_abstract_name(&name).expect("a name");
    let listener = StdListener::bind_addr(&place).expect("it is free");
    listener.set_nonblocking(true).expect("set");
    let key = Key::new([0x43; 32]);
    parent.say(led_to(&address, &key, &name));
    parent.say(hex(&descriptor));
    let mut known = Peer::new();
    known.learns_region(&descriptor);
    let hostile = Hostile {
        listener: UnixListener::from_std(listener).expect("within a runtime"),
        key,
        identity: unix_part(&address).1,
        landmark: Box::new(*b"an honest memory"),
        memory: (at, FAR),
        region: known.regions[0],
    };
    loop {
        let line = parent.hear().await;
        let mut words = line.split_whitespace();
        let Some(seed) = words.next().and_then(|word| word.parse().ok()) else {
            return;
        };
        let mut peer = Peer::new();
        peer.memory = Some(hostile.memory);
        words.for_each(|word| peer.learns_region(&from_hex(word)));
        let (stream, rings) = hostile.accept().await;
        parent.say(talk(seed, peer, stream, rings));
    }
}

impl Hostile {
    /// A connection, made as it should be.
    async fn accept(&self) -> (StdStream, Rings) {
        let (mut stream, _) = self.listener.accept().await.expect("it dials");
        let stranger = Stranger::honest("unix", &self.key);
        let hello = hear(&mut stream).await;
        let both = stranger.greet(&mut stream, &hello).await;
        let introduction = hear_introduction(&mut stream).await;
        let client = both.open(&introduction).expect("sealed for this one");
        let at = self.landmark.as_ptr() as u64;
        let landmark = [&at.to_le_bytes()[..], &self.landmark[..]].concat();
        let mut more = vec![(field::IDENTITY, &self.identity[..])];
        let tries = client.contains_key(&MEMORY);
        if tries {
            more.push((MEMORY, &landmark[..]));
            more.push((REACHED, &[][..]));
        }
        let yes = stranger.acceptance_over(both, &introduction, b"\x03shm", &more);
        say(&mut stream, &yes).await;
        if tries {
            // Whether it has read that, which is its own affair.
            let length = stream.read_u32_le().await.expect("a note") & 0x7fff_ffff;
            let mut note = vec![0; length as usize];
            stream.read_exact(&mut note).await.expect("a note");
        }
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memory = memfd_create("hostile", flags).expect("memory");
        ftruncate(&memory, SEGMENT as i64).expect("a length");
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&memory, FcntlArg::F_ADD_SEALS(seals)).expect("sealed");
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK);
        let timer = timer.expect("a timer");
        let mut offer = vec![0];
        offer.extend_from_slice(b"wharfshm");
        offer.extend_from_slice(&11_u32.to_le_bytes());
        offer.extend_from_slice(&(SEGMENT as u32).to_le_bytes());
        offer.push(0);
        let framed = [&(offer.len() as u32).to_le_bytes()[..], &offer].concat();
        let raw = [memory.as_raw_fd(), timer.as_fd().as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&raw)];
        let parts = [IoSlice::new(&framed)];
        let sent = sendmsg::<()>(stream.as_raw_fd(), &parts, &rights, MsgFlags::empty(), None);
        assert_eq!(sent, Ok(framed.len()));
        assert_eq!(hear(&mut stream).await[0], 0, "it takes that");
        say(&mut stream, &[0]).await;
        let rings = Rings::new(memory);
        // So that the worker goes at this memory by itself.
        let Known { slot, generation } = self.region;
        let at = GENERATIONS + 8 * (slot as usize % 512);
        rings.segment.write(at, &generation.to_le_bytes());
        (stream.into_std().expect("a socket"), rings)
    }
}

/// Says what the seed decides. How many messages that was.
fn talk(seed: u64, mut peer: Peer, stream: StdStream, mut rings: Rings) -> u64 {
    let bytes = choices(seed);
    let mut dice = Dice::new(&bytes);
    let scribbles = dice.pick(&[0, 0, 1, 8]);
    dice.settle_honesty();
    let (mut frames, mut steps) = (0, 0);
    while !dice.is_over() {
        let message = match dice.byte() {
            0..=109 => peer.answer(&mut dice),
            110..=199 => peer.request(&mut dice),
            200..=203 if dice.lies() => peer.wild(&mut dice),
            204..=255 if dice.below(16) < scribbles => {
                rings.segment.scribble(&mut dice);
                None
            }
            _ => None,
        };
        if let Some(message) = message
            && rings.say(&message)
        {
            peer.said(&message);
            frames += 1;
        }
        while let Some(message) = rings.hear() {
            is_fit_to_be_told(&message);
            let begun = match message.id {
                TAG_RTR => Some(word(&message.body, 0)),
                GET => Some(message.header),
                _ => None,
            };
            // It is over, says the peer, before anything has come.
            if let Some(header) = begun
                && dice.one_in(16)
            {
                rings.say(&Message {
                    id: DONE,
                    header,
                    prefix: 0,
                    body: Vec::new(),
                });
            }
            peer.heard(message);
        }
        // Memory that it is lent, which it leaves alone.
        let _ = (&stream).read(&mut [0; 256]);
        steps += 1;
        if steps % 8 == 0 {
            std::thread::yield_now();
        }
    }
    frames
}

/// As in `machine`: longer runs than a word that was made up.
fn is_fit_to_be_told(message: &Message) {
    let strange = |run: &[u8]| run == [CANARY; 9] || run == [SECRET; 9];
    let told = is_told(message).unwrap_or_default();
    assert!(
        !told.windows(9).any(strange),
        "message {} brought foreign bytes to the peer",
        message.id
    );
}

/// The worker, and the other process.
struct Both {
    bed: Bed,
    child: Child,
    /// Leads to the other process.
    trap: WorkerAddress,
    /// Memory there.
    far: Descriptor,
    cma: bool,
}

impl Both {
    async fn new(mut child: Child, cma: bool) -> Self {
        let trap = child.hear().await.parse().expect("an address");
        let far = Descriptor::from_bytes(&from_hex(&child.hear().await));
        Self {
            bed: Bed::new(context(cma)).await,
            child,
            trap,
            far: far.expect("a descriptor"),
            cma,
        }
    }

    /// Both at once: what the program does here, and the peer there. How many messages that was.
    async fn play(&mut self, seed: u64) -> u64 {
        let (bed, child) = (&self.bed, &mut self.child);
        let memory = Memory::new(&bed.context, NEAR).await;
        let descriptors = memory.descriptors().map(|bytes| hex(&bytes)).join(" ");
        child.say(format!("{seed} {descriptors}"));
        let endpoint = {
            let _alone = CONNECTING.lock().await;
            bed.here.connect(&self.trap).await.expect("a connection")
        };
        let transports = endpoint.transports();
        assert_eq!(transports.contains(&"cma"), self.cma, "{transports:?}");
        let remote = endpoint.import(&self.far).expect("imported");
        let certain = match self.cma {
            true => Certain {
                received: 64 << 10,
                got: (256 << 10) - 1,
            },
            false => Certain::ALL,
        };
        let program = Program::new(&bed.here, &endpoint, &remote, certain, &bed.checked);
        let bytes = choices(!seed);
        let mut dice = Dice::new(&bytes);
        let mut running: Vec<Running> = Vec::new();
        let (mut said, mut played) = (pin!(child.hear()), None);
        while played.is_none() {
            played = said.as_mut().now_or_never();
            if !dice.is_over() && dice.one_in(4) {
                running.push(program.begin(&mut dice));
            }
            // Nobody rings.
            bed.here.progress();
            run(&mut running, Duration::ZERO).await;
            tokio::task::yield_now().await;
            if running.len() > 16 {
                drop(running.swap_remove(dice.below(16)));
            }
        }
        bed.others_go_on().await;
        endpoint.abort();
        running.clear();
        program.end();
        drop((program, remote, endpoint));
        memory.end().await;
        bed.others_go_on().await;
        let frames = played.expect("it has ended");
        frames.parse().expect("a number")
    }
}

#[test]
fn a_peer_outside_may_say_anything() {
    outside(this_test!(), false);
}

#[test]
#[ignore = "needs a kernel that lets a process at another's memory: root's rights, or none of Yama's"]
fn a_peer_outside_may_say_anything_with_cma() {
    outside(this_test!(), true);
}

fn outside(test: &str, cma: bool) {
    if let Some(parent) = child("hostile") {
        return runtime().block_on(hostile(parent));
    }
    let _others = crate::ALONE.read();
    let plays = number("HOSTILE_SEGMENTS").unwrap_or(60);
    let first = number("HOSTILE_SEED").unwrap_or(1);
    let played = side_by_side(dealt(first..first + plays), |seeds| {
        let runtime = runtime();
        let child = Child::start(test, "hostile", &[]);
        let mut both = runtime.block_on(Both::new(child, cma));
        let mut frames = 0;
        for seed in seeds {
            let play = AssertUnwindSafe(|| runtime.block_on(both.play(seed)));
            match panic::catch_unwind(play) {
                Ok(said) => frames += said,
                Err(panic) => {
                    eprintln!("once more: HOSTILE_SEED={seed} HOSTILE_SEGMENTS=1");
                    panic::resume_unwind(panic);
                }
            }
        }
        both.child.say("over");
        both.child.finish();
        let checked = both.bed.checked.load(Relaxed);
        let copied = both.bed.here.metrics().cma;
        eprintln!("{frames} messages, {checked} receives checked, {copied:?}");
        (frames, checked)
    });
    let (mut frames, mut checked) = (0, 0);
    for played in played {
        (frames, checked) = (frames + played.0, checked + played.1);
    }
    eprintln!("{frames} messages in {plays} plays, {checked} receives checked");
    assert!(
        plays < 60 || frames > 10 * plays && checked > plays,
        "the generator says nothing worth hearing"
    );
}
