#![allow(unsafe_code)]
//! Two interfaces in one process, wired over a socket pair; and one in a process that is killed.
//!
//! # Safety
//! Tests of a hostile peer write the shared segment by its raw addresses, inside its bounds. A [`HeldBytes`] goes before its interface.

use std::{
    env,
    io::Write,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    process::{Command, Stdio},
    ptr::NonNull,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use tokio::net::{UnixListener, UnixStream};

use super::{
    Shm, ShmOptions,
    connector::Established,
    iface::ShmInterface,
    layout::{
        AREA, CELLS, Kind, MAX_BCOPY, MAX_INLINE, SEGMENT, VERSION, WIDE, WORDS, Word, place,
    },
    options::NAME,
    ring::Consumer,
    segment::{Segment, ring},
};
use crate::{
    error::{Error, ErrorKind, Result},
    sys::{
        bell::Bell,
        eventfd::EventFd,
        memfd::{Mapping, Memfd},
    },
    transport::{
        HeldBytes, Hold, Pair,
        channel::Channel,
        contract::{
            Connector, Interface, Link, PeerInfo, Registry, Role, SendError, Sink, Taken,
            Transport, Wanted,
        },
        shared_memory::SharedMemory,
    },
    types::{Identity, LinkId},
    util::testing::run,
};

const WATCHDOG: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct Inbox {
    messages: Vec<(LinkId, u8, u64, Vec<u8>)>,
    shared: Vec<(LinkId, u64, OwnedFd, u64)>,
    writable: Vec<LinkId>,
    failed: Vec<(LinkId, ErrorKind)>,
    refuse: bool,
    /// Whether the next message stays where it lies.
    holds: bool,
    held: Option<HeldBytes>,
}

impl Sink for Inbox {
    fn message(&mut self, from: LinkId, id: u8, header: u64, body: &[u8]) -> Result<()> {
        if self.refuse {
            return Err(Error::new(ErrorKind::Protocol, "refused"));
        }
        self.messages.push((from, id, header, body.to_vec()));
        Ok(())
    }
    fn message_in_place(
        &mut self,
        from: LinkId,
        id: u8,
        header: u64,
        body: &[u8],
        hold: &Arc<Hold>,
    ) -> Result<()> {
        if self.holds && self.held.is_none() {
            // SAFETY: within the call that gave both; a side drops its inbox before its interface.
            self.held = unsafe { hold.take(body) };
            return Ok(());
        }
        self.message(from, id, header, body)
    }
    fn placed(&mut self, _: LinkId, _: u64) {}
    fn sent(&mut self, _: LinkId, _: u64) {}
    fn writable(&mut self, from: LinkId) {
        self.writable.push(from);
    }
    fn shared(&mut self, from: LinkId, segment_id: u64, fd: OwnedFd, length: u64) {
        self.shared.push((from, segment_id, fd, length));
    }
    fn failed(&mut self, from: LinkId, error: Error) {
        self.failed.push((from, error.kind()));
    }
}

/// A worker reduced to what these tests need.
struct Side {
    /// Dropped before the interface: it may hold a message of it.
    inbox: Inbox,
    interface: ShmInterface,
    connector: Arc<dyn Connector>,
    poll: mio::Poll,
}

const BELL: mio::Token = mio::Token(usize::MAX >> 1);

impl Side {
    fn new(options: ShmOptions) -> Self {
        let connector = Arc::new(super::connector::ShmConnector::new(options));
        let mut interface = ShmInterface::new().expect("doorbells");
        let poll = mio::Poll::new().expect("poll");
        let registry = poll.registry().try_clone().expect("registry");
        interface
            .register(Registry { registry, base: 0 })
            .expect("register");
        let fd = interface.doorbell().expect("doorbell").as_raw_fd();
        poll.registry()
            .register(&mut mio::unix::SourceFd(&fd), BELL, mio::Interest::READABLE)
            .expect("register");
        Self {
            interface,
            connector,
            poll,
            inbox: Inbox::default(),
        }
    }

    /// Waits for events, hands them on, and says whether the doorbell rang.
    fn wait(&mut self, timeout: Duration) -> bool {
        let mut events = mio::Events::with_capacity(64);
        self.poll.poll(&mut events, Some(timeout)).expect("poll");
        let mut rung = false;
        for event in &events {
            if event.token() == BELL {
                rung = true;
            } else {
                let readable = event.is_readable() || event.is_read_closed() || event.is_error();
                self.interface
                    .ready(event.token().0, readable, event.is_writable());
            }
        }
        rung
    }

    /// Waits until the doorbell rings, whatever else happens.
    fn is_rung(&mut self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if self.wait(left) {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }

    /// Arms after everything that is there was worked off.
    fn sleep(&mut self) {
        while self.wait(Duration::ZERO) || self.progress() > 0 || !self.interface.arm() {}
    }

    fn progress(&mut self) -> usize {
        self.interface.progress(64, &mut self.inbox)
    }

    fn progress_until(&mut self, what: &str, done: impl Fn(&Inbox) -> bool) {
        let start = Instant::now();
        while !done(&self.inbox) {
            assert!(start.elapsed() < WATCHDOG, "the watchdog barked: {what}");
            self.wait(Duration::ZERO);
            self.progress();
        }
    }
}

fn peer() -> PeerInfo {
    let identity = Identity {
        boot: [1; 16],
        net_namespace: 0,
        pid_namespace: 0,
        user_namespace: 0,
        user: 0,
        pid: 0,
    };
    PeerInfo {
        identity,
        name: "the other".into(),
        certificates: None,
        origin: crate::transport::channel::Origin::default(),
    }
}

fn no_pidfd() -> ShmOptions {
    ShmOptions { use_pidfd: false }
}

/// Connects two sides; `client` gets link `client_id`, `server` link `server_id`.
fn connect(
    client: &mut Side,
    client_id: u32,
    server: &mut Side,
    server_id: u32,
) -> (Box<dyn Link>, Box<dyn Link>) {
    let (one, two) = run(async {
        let (one, two) = UnixStream::pair().expect("pair");
        let (mut one, mut two) = (Channel::unix(one), Channel::unix(two));
        let info = peer();
        tokio::join!(
            client.connector.connect(&mut one, Role::Client, &info),
            server.connector.connect(&mut two, Role::Server, &info)
        )
    });
    let one = client
        .interface
        .attach(LinkId(client_id.into()), one.expect("connect"))
        .expect("attach");
    let two = server
        .interface
        .attach(LinkId(server_id.into()), two.expect("connect"))
        .expect("attach");
    (one, two)
}

fn two() -> (Side, Box<dyn Link>, Side, Box<dyn Link>) {
    let (mut client, mut server) = (
        Side::new(ShmOptions::default()),
        Side::new(ShmOptions::default()),
    );
    let (one, two) = connect(&mut client, 1, &mut server, 2);
    (client, one, server, two)
}

fn body(number: u64, length: usize) -> Vec<u8> {
    crate::transport::conformance::bed::bytes(number as usize, length)
}

#[test]
fn it_works_here() {
    let shm = Shm::default();
    shm.probe().expect("probe");
    assert_eq!(shm.name(), "shm");
    let opened = shm.open().expect("open");
    assert!(opened.interface.doorbell().is_some());
}

/// Where a link's segment is mapped, and which ring this end sends into.
fn segment(link: &dyn Link) -> (NonNull<u8>, usize) {
    let memory = link.shared_memory().expect("a segment");
    let words: *const u8 = memory.words().as_ptr().cast();
    let base = words.wrapping_sub(WORDS).cast_mut();
    let sends = match memory.role() {
        Role::Client => 0,
        Role::Server => 1,
    };
    (NonNull::new(base).expect("mapped"), sends)
}

/// Pages of the segment that there are, whoever has touched them.
fn pages(link: &dyn Link) -> usize {
    let (base, _) = segment(link);
    let mut there = vec![0; SEGMENT.div_ceil(4096)];
    // SAFETY: nothing is read; the whole segment is mapped there.
    let result = unsafe { libc::mincore(base.as_ptr().cast(), SEGMENT, there.as_mut_ptr()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    there.iter().filter(|page| **page & 1 == 1).count()
}

#[test]
fn a_quiet_connection_has_a_page_for_each_direction() {
    let (mut client, mut one, mut server, two) = two();
    for side in [&mut client, &mut server] {
        side.sleep();
        side.interface.disarm();
    }
    assert_eq!((pages(&*one), pages(&*two)), (2, 2), "nothing was sent");
    one.am_short(9, 1, b"hello").expect("room");
    server.progress_until("a message", |inbox| !inbox.messages.is_empty());
    server.sleep();
    assert_eq!(pages(&*one), 2, "a short message");
}

#[test]
fn places_stay_in_the_area_and_never_overlap() {
    for room in [AREA, WIDE] {
        let mut position = 0;
        for number in 0..10_000_u64 {
            let length = (number * 7919 % (MAX_BCOPY as u64 + 1)) as usize;
            let (offset, end) = place(room, position, length);
            assert!(
                offset + length <= room as usize
                    && end >= position
                    && end - position <= 2 * MAX_BCOPY as u64
            );
            position = end;
        }
        let (offset, end) = place(room, room - 64, 65);
        assert_eq!((offset, end), (0, room + 128));
        assert!(place(room, u64::MAX / 2, MAX_BCOPY).0 + MAX_BCOPY <= room as usize);
    }
}

#[test]
fn messages_keep_order_and_content_over_many_laps() {
    let (mut client, mut one, mut server, mut two) = two();
    let lengths = [
        0,
        1,
        8,
        16,
        47,
        48,
        49,
        64,
        65,
        1000,
        4096,
        MAX_BCOPY - 1,
        MAX_BCOPY,
    ];
    let mut sent = 0_u64;
    let mut seen = 0_u64;
    for round in 0..4 * CELLS {
        for link in [&mut one, &mut two] {
            let length = lengths[(round % lengths.len() as u64) as usize];
            let whole = body(sent, length);
            let (prefix, payload) = whole.split_at((round as usize * 5) % (length + 1));
            if length <= MAX_INLINE && round % 2 == 0 {
                link.am_short(round as u8, sent, &whole).expect("room");
            } else {
                link.am_bcopy(round as u8, sent, prefix, payload)
                    .expect("room");
            }
            sent += 1;
        }
        if round % 3 == 0 {
            server.progress();
            client.progress();
        }
        let start = Instant::now();
        while seen + 5 < sent || (round == 4 * CELLS - 1 && seen < sent) {
            assert!(start.elapsed() < WATCHDOG, "the watchdog barked");
            server.progress();
            client.progress();
            for message in server
                .inbox
                .messages
                .drain(..)
                .chain(client.inbox.messages.drain(..))
            {
                let (_, id, header, bytes) = message;
                assert_eq!(id, (header / 2) as u8);
                assert_eq!(
                    bytes,
                    body(
                        header,
                        lengths[(header / 2 % lengths.len() as u64) as usize]
                    )
                );
                seen += 1;
            }
        }
    }
    assert_eq!(seen, sent);
    assert!(server.inbox.failed.is_empty() && client.inbox.failed.is_empty());
}

#[test]
fn order_holds_within_a_link() {
    let (_client, mut one, mut server, _two) = two();
    for number in 0..CELLS {
        one.am_short(0, number, &[]).expect("room");
    }
    while server.progress() > 0 {}
    assert!(
        server
            .inbox
            .messages
            .iter()
            .map(|message| message.2)
            .eq(0..CELLS)
    );
}

#[test]
fn a_full_ring_takes_nothing_and_says_when_there_is_room() {
    for length in [8, 5000] {
        let (mut client, mut one, mut server, _two) = two();
        let mut number = 0;
        for _ in 0..5 {
            loop {
                match one.am_bcopy(1, number, &[], &body(number, length)) {
                    Ok(()) => number += 1,
                    Err(SendError::Full) => break,
                    Err(SendError::Failed(error)) => panic!("{error:?}"),
                }
            }
            client.progress();
            assert!(client.inbox.writable.is_empty(), "nothing was taken yet");
            while server.progress() > 0 {}
            client.progress();
            assert_eq!(std::mem::take(&mut client.inbox.writable), [LinkId(1)]);
            client.progress();
            assert!(client.inbox.writable.is_empty(), "told once");
        }
        let headers = server.inbox.messages.iter().map(|message| message.2);
        assert!(headers.eq(0..number), "nothing lost, nothing twice");
    }
}

#[test]
fn a_sleeping_sender_is_rung_when_there_is_room() {
    let (mut client, mut one, mut server, _two) = two();
    while one.am_short(0, 0, b"x").is_ok() {}
    client.sleep();
    assert!(!client.is_rung(Duration::ZERO), "nothing rings yet");
    server.progress();
    assert!(client.is_rung(WATCHDOG), "the watchdog barked");
    client.interface.disarm();
    client.progress();
    assert_eq!(client.inbox.writable, [LinkId(1)]);
    // And when it finds the ring full while the interface sleeps already.
    client.sleep();
    while one.am_short(0, 0, b"x").is_ok() {}
    while server.progress() > 0 {}
    assert!(client.is_rung(WATCHDOG), "the watchdog barked");
}

#[test]
fn only_a_sleeper_is_rung_and_once() {
    let (_client, mut one, mut server, _two) = two();
    server.sleep();
    server.interface.disarm();
    one.am_short(0, 0, b"awake").expect("room");
    assert!(!server.is_rung(Duration::ZERO));
    assert!(!server.interface.arm(), "something is there");
    assert_eq!(server.progress(), 1);
    assert!(server.interface.arm());
    one.am_short(0, 1, b"asleep").expect("room");
    assert!(server.is_rung(WATCHDOG));
    one.am_short(0, 2, b"rung already").expect("room");
    assert!(!server.is_rung(Duration::ZERO));
    server.interface.disarm();
    assert_eq!(server.progress(), 2);
    one.am_short(0, 3, b"awake again").expect("room");
    assert!(!server.is_rung(Duration::ZERO));
}

#[test]
fn a_message_that_is_held_stops_no_sleeper() {
    let (_client, mut one, mut server, mut two) = two();
    server.inbox.holds = true;
    one.am_bcopy(0, 0, &[], &[7; 4000]).expect("room");
    while server.inbox.held.is_none() {
        server.progress();
    }
    server.sleep();
    assert!(server.interface.is_held());
    one.am_short(0, 1, b"asleep").expect("room");
    assert!(server.is_rung(WATCHDOG), "the watchdog barked");
    server.interface.disarm();
    assert_eq!(server.progress(), 1);
    assert_eq!(
        server.inbox.messages,
        [(LinkId(2), 0, 1, b"asleep".to_vec())]
    );
    // The memory outlives the link.
    two.flush(&mut server.inbox);
    drop(two);
    server.interface.detach(LinkId(2));
    assert!(!server.interface.is_held(), "nobody waits for its room");
    let held = server.inbox.held.take();
    assert_eq!(held.map(|held| held.to_vec()), Some(vec![7; 4000]));
}

#[test]
fn a_link_attached_to_a_sleeper_wakes_it() {
    let (mut client, mut server) = (Side::new(no_pidfd()), Side::new(no_pidfd()));
    assert!(server.interface.arm());
    let (mut one, _two) = connect(&mut client, 1, &mut server, 2);
    one.am_short(0, 7, b"first").expect("room");
    assert!(server.is_rung(WATCHDOG), "the watchdog barked");
    server.interface.disarm();
    assert_eq!(server.progress(), 1);
}

/// Both ends sleep for every message: a barrier left out hangs this within some ten thousand rounds.
#[test]
fn tight_ping_pong_loses_no_wake_up() {
    const ROUNDS: u64 = 20_000;
    let (client, one, server, two) = two();
    let play = |mut side: Side, mut link: Box<dyn Link>, begins: bool| {
        move || {
            if begins {
                link.am_short(0, 0, &[]).expect("room");
            }
            let mut turns = 0;
            while turns < ROUNDS {
                if side.progress() == 0 {
                    if side.interface.arm() {
                        assert!(
                            side.is_rung(WATCHDOG),
                            "a lost wake-up after {turns} rounds"
                        );
                        side.interface.disarm();
                    }
                    continue;
                }
                for message in std::mem::take(&mut side.inbox.messages) {
                    turns += 1;
                    link.am_short(0, message.2 + 1, &[]).expect("room");
                }
            }
            (side, link)
        }
    };
    let other = thread::spawn(play(server, two, false));
    let mine = play(client, one, true)();
    other.join().expect("server");
    drop(mine);
}

#[test]
fn garbage_in_a_cell_fails_the_link() {
    let long = Word::new(0, MAX_INLINE + 1, 3, Kind::Inline).0;
    let longer = Word::new(0, MAX_BCOPY + 1, 3, Kind::Area).0;
    let no_kind = Word::new(0, 8, 3, Kind::Inline).0 & (u64::MAX >> 8);
    let odd_kind = no_kind | 0xff << 56;
    for garbage in [long, longer, no_kind, odd_kind, 1 | u64::MAX << 32] {
        let (mut client, one, mut server, mut two) = two();
        let (base, sends) = segment(&*one);
        let ring = ring(base, sends);
        // SAFETY: the first cell of a mapped ring.
        unsafe { ring.far.as_ref() }
            .word
            .store(garbage, Ordering::Release);
        server.progress();
        assert_eq!(server.inbox.failed, [(LinkId(2), ErrorKind::Protocol)]);
        assert!(server.inbox.messages.is_empty());
        client.progress_until("the other end hears of it", |inbox| {
            !inbox.failed.is_empty()
        });
        assert_eq!(
            client.inbox.failed,
            [(LinkId(1), ErrorKind::ConnectionReset)]
        );
        // Sends fail at the latest when the ring is full.
        let mut outcome = Ok(());
        for _ in 0..=CELLS {
            outcome = two.am_short(0, 0, &[]);
        }
        assert!(matches!(outcome, Err(SendError::Failed(_))));
        server.interface.detach(LinkId(2));
        assert!(server.interface.arm());
    }
}

#[test]
fn random_cells_never_break_the_receiver() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..50 {
        let (_client, one, mut server, _two) = two();
        let (base, sends) = segment(&*one);
        let ring = ring(base, sends);
        for number in 0..CELLS {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            // The right sequence, anything else.
            let kind = if number % 7 == 6 {
                seed & 0xff << 56
            } else {
                (1 + seed % 2) << 56
            };
            let length = if number % 97 == 96 {
                seed >> 3 & 0xffff
            } else {
                seed >> 3 & 0x2f
            };
            let word = (number + 1) | length << 32 | kind;
            // SAFETY: a cell of a mapped ring.
            unsafe { ring.far.add(number as usize).as_ref() }
                .word
                .store(word, Ordering::Release);
        }
        while server.progress() > 0 {}
        assert!(server.inbox.failed.len() <= 1);
    }
}

#[test]
fn an_impossible_head_fails_the_send() {
    let (_client, mut one, _server, two) = two();
    let (base, sends) = segment(&*two);
    let ring = ring(base, 1 - sends);
    // SAFETY: the consumer line of a mapped ring.
    unsafe { ring.consumer.as_ref() }
        .head
        .store(u64::MAX, Ordering::Release);
    let mut outcome = Ok(());
    for _ in 0..=CELLS {
        outcome = one.am_short(0, 0, &[]);
    }
    match outcome {
        Err(SendError::Failed(error)) => assert_eq!(error.kind(), ErrorKind::Protocol),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_that_the_sink_refuses_closes_the_link_in_silence() {
    let (mut client, mut one, mut server, _two) = two();
    server.inbox.refuse = true;
    one.am_short(0, 0, &[]).expect("room");
    one.am_short(0, 1, &[]).expect("room");
    server.progress();
    server.progress();
    assert!(server.inbox.failed.is_empty() && server.inbox.messages.is_empty());
    client.progress_until("the sender hears of it", |inbox| !inbox.failed.is_empty());
}

#[test]
fn glances_take_one_by_one_and_give_way_to_a_pass() {
    let (_client, mut one, mut server, _two) = two();
    for number in 0..CELLS {
        one.am_short(0, number, &[]).expect("room");
    }
    let glance = |server: &mut Side| server.interface.glance(&mut server.inbox);
    while server.inbox.messages.len() < CELLS as usize {
        let before = server.inbox.messages.len();
        while glance(&mut server) {}
        let taken = server.inbox.messages.len() - before;
        assert!(
            taken < 100,
            "{taken} messages, and nobody else was looked at"
        );
        server.progress();
    }
    assert!(!glance(&mut server));
    let numbers = server.inbox.messages.iter().map(|message| message.2);
    assert!(numbers.eq(0..CELLS));
}

#[test]
fn a_wanted_message_goes_where_it_is_wanted_and_others_stay() {
    const MASK: u64 = 0xff;
    let (_client, mut one, mut server, _two) = two();
    let long = vec![7; 3000];
    one.am_short(3, 0x105, b"short").expect("room");
    one.am_bcopy(3, 0x205, &[], &long).expect("room");
    one.am_short(4, 0x305, b"other").expect("room");
    // Which link brought the last message is known from a pass.
    one.am_short(3, 0x405, b"late").expect("room");
    let mut buffer = vec![0; 3000];
    let mut take = |server: &mut Side, id, header, room| {
        let address = buffer.as_mut_ptr();
        let mut wanted = Wanted {
            id,
            header,
            mask: MASK,
            address,
            room,
            looks: 3,
        };
        // SAFETY: no more room is given than the buffer has.
        let taken = unsafe { server.interface.take(&mut wanted) };
        let Taken::Message { from, length } = taken else {
            assert_eq!(wanted.header, header);
            return None;
        };
        assert_eq!(from, LinkId(2));
        Some((wanted.header, buffer[..length as usize].to_vec()))
    };
    assert_eq!(take(&mut server, 3, 6, 3000), None, "another header");
    assert_eq!(take(&mut server, 4, 5, 3000), None, "another id");
    assert_eq!(take(&mut server, 3, 5, 4), None, "no room");
    let short = take(&mut server, 3, 5, 5);
    assert_eq!(short, Some((0x105, b"short".to_vec())));
    assert_eq!(take(&mut server, 3, 5, 2999), None, "no room");
    assert_eq!(take(&mut server, 3, 5, 3000), Some((0x205, long)));
    assert_eq!(take(&mut server, 3, 5, 3000), None, "another is before it");
    server.interface.progress(1, &mut server.inbox);
    assert_eq!(
        server.inbox.messages,
        [(LinkId(2), 4, 0x305, b"other".to_vec())]
    );
    let late = take(&mut server, 3, 5, 3000);
    assert_eq!(late, Some((0x405, b"late".to_vec())));
    assert_eq!(take(&mut server, 3, 5, 3000), None, "no more");
}

#[test]
fn a_message_that_is_wanted_in_place_stays_until_it_was_read() {
    const MASK: u64 = 0xff;
    let (_client, mut one, mut server, _two) = two();
    let long = vec![7; 3000];
    one.am_short(3, 0x105, b"short").expect("room");
    one.am_bcopy(3, 0x205, &[], &long).expect("room");
    one.am_short(4, 0x305, b"other").expect("room");
    // SAFETY: what is held goes before the interface.
    let take = |server: &mut Side, id, header| unsafe {
        server.interface.take_in_place(id, header, MASK, 3)
    };
    assert!(take(&mut server, 3, 6).is_none(), "another header");
    assert!(take(&mut server, 4, 5).is_none(), "another id");
    let short = take(&mut server, 3, 5).expect("it is there");
    assert_eq!((short.from, short.header), (LinkId(2), 0x105));
    assert!(take(&mut server, 3, 5).is_none(), "one at a time");
    assert!(server.interface.is_held());
    assert_eq!(short.held.to_vec(), b"short");
    drop(short);
    let message = take(&mut server, 3, 5).expect("it is there");
    // All the rest is filled and taken meanwhile; nothing of it lands on what is held.
    let mut sent = 0;
    while one.am_bcopy(5, 0, &[], &[1; 3000]).is_ok() {
        sent += 1;
        server.interface.progress(64, &mut server.inbox);
    }
    // One in a pass, while another is held.
    server.interface.progress(64, &mut server.inbox);
    assert!(sent > 10 && server.inbox.messages.len() == sent + 1);
    assert_eq!(server.inbox.messages[0].1, 4, "in order");
    assert_eq!((message.header, message.held.to_vec()), (0x205, long));
    drop(message);
    server.interface.progress(64, &mut server.inbox);
    one.am_bcopy(3, 0x405, &[], &[2; 100]).expect("room again");
    let late = take(&mut server, 3, 5).expect("it is there");
    assert_eq!(late.held.to_vec(), [2; 100]);
}

#[test]
fn who_takes_gives_way_to_a_pass_and_gives_room_back() {
    let (_client, mut one, mut server, _two) = two();
    let mut wanted = Wanted {
        id: 0,
        header: 0,
        mask: 0,
        address: NonNull::dangling().as_ptr(),
        room: 0,
        looks: 0,
    };
    for _ in 0..3 {
        for number in 0..CELLS {
            one.am_short(0, number, &[]).expect("room");
        }
        let mut left = CELLS;
        while left > 0 {
            let before = left;
            loop {
                // SAFETY: no byte is wanted.
                let taken = unsafe { server.interface.take(&mut wanted) };
                let Taken::Message { .. } = taken else {
                    break;
                };
                left -= 1;
            }
            assert!(before - left < 100, "nobody else was looked at");
            server.interface.progress(0, &mut server.inbox);
        }
    }
    assert!(server.inbox.messages.is_empty());
}

#[test]
fn a_glance_closes_the_link_of_a_message_that_the_sink_refuses() {
    let (mut client, mut one, mut server, _two) = two();
    server.inbox.refuse = true;
    one.am_short(0, 0, &[]).expect("room");
    one.am_short(0, 1, &[]).expect("room");
    assert!(server.interface.glance(&mut server.inbox));
    server.inbox.refuse = false;
    assert!(!server.interface.glance(&mut server.inbox));
    server.progress();
    assert!(server.inbox.failed.is_empty() && server.inbox.messages.is_empty());
    client.progress_until("the sender hears of it", |inbox| !inbox.failed.is_empty());
}

#[test]
fn what_was_sent_before_the_end_arrives() {
    let (mut client, mut one, mut server, two) = two();
    for number in 0..500 {
        one.am_short(0, number, &[]).expect("room");
    }
    client.interface.detach(LinkId(1));
    drop(one);
    let start = Instant::now();
    while server.inbox.failed.is_empty() {
        assert!(start.elapsed() < WATCHDOG, "the watchdog barked");
        if server.interface.arm() {
            server.wait(WATCHDOG);
            server.interface.disarm();
        }
        server.progress();
    }
    assert_eq!(server.inbox.messages.len(), 500);
    assert_eq!(
        server.inbox.failed,
        [(LinkId(2), ErrorKind::ConnectionReset)]
    );
    drop(two);
    server.interface.detach(LinkId(2));
}

#[test]
fn too_long_is_an_error_and_takes_nothing() {
    let (_client, mut one, mut server, _two) = two();
    let limits = one.attributes();
    let too_long = vec![0; limits.max_bcopy + 1];
    assert!(matches!(
        one.am_short(0, 0, &too_long[..=limits.max_short]),
        Err(SendError::Failed(_))
    ));
    assert!(matches!(
        one.am_bcopy(0, 0, &too_long[..1], &too_long[1..]),
        Err(SendError::Failed(_))
    ));
    assert_eq!(server.progress(), 0);
}

/// The last cold link goes, or its peer does, when all of them were to be looked at: the worker goes to sleep again.
#[test]
fn cold_links_that_go_keep_nobody_awake() {
    for peer_goes in [false, true] {
        let (mut client, mut server) = (Side::new(no_pidfd()), Side::new(no_pidfd()));
        let mut links: Vec<_> = (0..5)
            .map(|id| Some(connect(&mut client, id, &mut server, id)))
            .collect();
        let start = Instant::now();
        while server.interface.hot_count() > 4 {
            assert!(start.elapsed() < WATCHDOG, "the watchdog barked");
            server.progress();
        }
        let is_cold = |id: &u32| !server.interface.is_hot(LinkId((*id).into()));
        let cold = (0..5).find(is_cold).expect("one is cold");
        server.sleep();
        server.interface.disarm();
        if peer_goes {
            links[cold as usize] = None;
            client.interface.detach(LinkId(cold.into()));
            // It is heard of before the next look.
            while server.interface.hot_count() < 5 && server.inbox.failed.is_empty() {
                assert!(start.elapsed() < WATCHDOG, "the watchdog barked");
                server.wait(WATCHDOG);
                server.progress();
            }
        } else {
            server.interface.detach(LinkId(cold.into()));
        }
        while server.wait(Duration::ZERO) || server.progress() > 0 || !server.interface.arm() {
            assert!(start.elapsed() < WATCHDOG, "it does not go to sleep");
        }
    }
}

#[test]
fn a_thousand_links_on_one_worker() {
    let (limit, hard) =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).expect("limit");
    let wanted = hard.min(16_384);
    if wanted > limit {
        nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, wanted, hard)
            .expect("limit");
    }
    // Six descriptors a link stay open: two sockets, and both ends of two doorbells.
    let count = 1000.min((wanted.max(limit) / 7) as u32);
    let (mut client, mut server) = (Side::new(no_pidfd()), Side::new(no_pidfd()));
    let mut links: Vec<_> = (0..count)
        .map(|id| connect(&mut client, id, &mut server, id))
        .collect();
    let start = Instant::now();
    while server.interface.hot_count() > 4 {
        assert!(start.elapsed() < WATCHDOG, "the watchdog barked");
        server.progress();
    }
    // A sleeper hears each of them.
    for id in (0..count).step_by(37) {
        server.sleep();
        links[id as usize]
            .0
            .am_short(0, u64::from(id), &[])
            .expect("room");
        assert!(server.is_rung(WATCHDOG), "link {id} was not heard");
        server.interface.disarm();
        server.progress_until("a message of a cold link", |inbox| {
            !inbox.messages.is_empty()
        });
        assert_eq!(
            std::mem::take(&mut server.inbox.messages)[0].0,
            LinkId(id.into())
        );
        while server.interface.hot_count() > 4 {
            server.progress();
        }
    }
    // One that never sleeps finds each of them on its round.
    for (id, link) in links.iter_mut().enumerate() {
        link.0.am_short(0, id as u64, &[]).expect("room");
    }
    server.progress_until("a message of every link", |inbox| {
        inbox.messages.len() == count as usize
    });
    // And the other way, with everything hot.
    for link in &mut links {
        link.1.am_short(0, 0, &[]).expect("room");
    }
    client.progress_until("a message of every link", |inbox| {
        inbox.messages.len() == count as usize
    });
    for id in 0..count {
        client.interface.detach(LinkId(id.into()));
    }
    drop(links);
    server.progress_until("the end of every link", |inbox| {
        inbox.failed.len() == count as usize
    });
}

#[test]
fn memory_is_shared_by_descriptor() {
    let (_client, mut one, mut server, _two) = two();
    let memory = Memfd::create(c"wharf-test", 8192).expect("memfd");
    for number in 0..3 {
        one.share(number, memory.as_fd(), 8192)
            .expect("room on the socket");
    }
    server.progress_until("three segments", |inbox| inbox.shared.len() == 3);
    for (number, (from, id, fd, length)) in server.inbox.shared.iter().enumerate() {
        assert_eq!((*from, *id, *length), (LinkId(2), number as u64, 8192));
        Mapping::of_received(fd.as_fd(), 8192).expect("map");
    }
}

#[test]
fn a_full_socket_says_when_it_has_room() {
    let (mut client, mut one, mut server, _two) = two();
    client.wait(Duration::ZERO);
    client.progress();
    let memory = Memfd::create(c"wharf-test", 4096).expect("memfd");
    let mut sent = 0;
    while sent < 100_000 {
        match one.share(sent, memory.as_fd(), 4096) {
            Ok(()) => sent += 1,
            Err(SendError::Full) => break,
            // The limit on descriptors in flight (ETOOMANYREFS) can come first.
            Err(SendError::Failed(_)) => return,
        }
    }
    assert!(client.inbox.writable.is_empty());
    let start = Instant::now();
    while (server.inbox.shared.len() as u64) < sent || client.inbox.writable.is_empty() {
        assert!(start.elapsed() < WATCHDOG, "the watchdog barked");
        for side in [&mut server, &mut client] {
            side.wait(Duration::ZERO);
            side.progress();
        }
    }
    assert_eq!(client.inbox.writable, [LinkId(1)]);
    assert!(server.inbox.failed.is_empty());
}

#[test]
fn bytes_without_a_descriptor_fail_the_link() {
    for record in [&[1; 16][..], &[1; 5][..]] {
        let (client, mut server) = (Side::new(no_pidfd()), Side::new(no_pidfd()));
        let (one, two) = run(async {
            let (one, two) = UnixStream::pair().expect("pair");
            let (mut one, mut two) = (Channel::unix(one), Channel::unix(two));
            let info = peer();
            tokio::join!(
                client.connector.connect(&mut one, Role::Client, &info),
                server.connector.connect(&mut two, Role::Server, &info)
            )
        });
        let one = one
            .expect("connect")
            .of::<Established>(NAME)
            .expect("of this transport");
        let _two = server
            .interface
            .attach(LinkId(0), two.expect("connect"))
            .expect("attach");
        (&*one.peer.socket).write_all(record).expect("write");
        server.progress_until("the end", |inbox| !inbox.failed.is_empty());
        assert_eq!(server.inbox.failed, [(LinkId(0), ErrorKind::Protocol)]);
    }
}

#[test]
fn a_channel_without_descriptors_is_refused() {
    let side = Side::new(no_pidfd());
    run(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("bind");
        let stream = tokio::net::TcpStream::connect(listener.local_addr().expect("address"))
            .await
            .expect("connect");
        let error = side
            .connector
            .can_use(&Channel::tcp(stream), &peer())
            .expect_err("tcp");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
    });
}

#[test]
fn a_bad_offer_is_refused_and_the_channel_stays_in_step() {
    let memory = Memfd::create(c"wharf-test", 4096).expect("memfd");
    let ringer = Bell::new().expect("a bell");
    let bell = EventFd::new().expect("eventfd");
    let segment = Memfd::create(c"wharf-test", SEGMENT).expect("memfd");
    Segment::new(segment.map().expect("map"), Role::Server, false).expect("a segment");
    let good = {
        let mut offer = vec![0];
        offer.extend_from_slice(b"wharfshm");
        offer.extend_from_slice(&VERSION.to_le_bytes());
        offer.extend_from_slice(&(SEGMENT as u32).to_le_bytes());
        offer.push(0);
        offer
    };
    let offers: [(&[u8], Vec<BorrowedFd<'_>>, &str); 5] = [
        (
            &good,
            vec![memory.as_fd(), ringer.as_fd()],
            "mapping the peer's segment",
        ),
        // It could block whoever rings it.
        (
            &good,
            vec![segment.as_fd(), bell.as_fd()],
            "taking the peer's doorbell",
        ),
        (&good, vec![memory.as_fd()], "1 file descriptors"),
        (
            &good[..9],
            vec![segment.as_fd(), ringer.as_fd()],
            "lays its segment out differently",
        ),
        (&[7], vec![], ""),
    ];
    for (offer, fds, why) in offers {
        let side = Side::new(no_pidfd());
        run(async {
            let (one, two) = UnixStream::pair().expect("pair");
            let (mut one, mut two) = (Channel::unix(one), Channel::unix(two));
            two.send(offer, &fds).await.expect("send");
            let error = side
                .connector
                .connect(&mut one, Role::Client, &peer())
                .await
                .expect_err("a bad offer");
            assert!(error.to_string().contains(why), "{error}");
            if offer[0] == 0 {
                assert_eq!(two.receive().await.expect("refusal").0[0], 1);
            }
            one.send(b"next", &[]).await.expect("send");
            assert_eq!(two.receive().await.expect("in step").0, b"next");
        });
    }
}

/// A peer that asks to be rung, and has made the bell that it gave one that blocks, and has it expire all the time.
#[test]
fn a_bell_that_blocks_does_not_hold_the_sender() {
    let mut victim = Side::new(no_pidfd());
    let (connected, segment, bell) = run(async {
        let (one, two) = UnixStream::pair().expect("pair");
        let (mut one, mut two) = (Channel::unix(one), Channel::unix(two));
        let info = peer();
        let hostile = async {
            let (_, fds) = two.receive().await.expect("offer");
            let bell = Bell::new().expect("a bell");
            // Go on, and no barriers.
            two.send(&[0, 0], &[bell.as_fd()]).await.expect("answer");
            two.receive().await.expect("verdict");
            let segment = fds.into_iter().next().expect("the segment");
            (segment, bell)
        };
        let (connected, (segment, bell)) = tokio::join!(
            victim.connector.connect(&mut one, Role::Server, &info),
            hostile
        );
        (connected.expect("connect"), segment, bell)
    });
    let mut link = victim
        .interface
        .attach(LinkId(0), connected)
        .expect("attach");
    let flags = nix::fcntl::OFlag::from_bits_retain(
        nix::fcntl::fcntl(&bell, nix::fcntl::FcntlArg::F_GETFL).expect("flags"),
    );
    let blocking = nix::fcntl::FcntlArg::F_SETFL(flags - nix::fcntl::OFlag::O_NONBLOCK);
    nix::fcntl::fcntl(&bell, blocking).expect("flags");
    bell.expire_every(Duration::from_nanos(1));
    let mapping = Mapping::of_received(segment.as_fd(), SEGMENT).expect("map");
    let own = Segment::new(mapping, Role::Client, false).expect("a segment");
    // SAFETY: the segment outlives it, and this is the only one of this end.
    let mut consumer = unsafe { Consumer::new(own.incoming(), own.has_barriers()) };
    let (told, heard) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..3 {
                link.am_short(9, number, b"for a sleeper").expect("room");
                told.send(number).expect("the test goes on");
                thread::sleep(Duration::from_millis(50));
            }
        });
        let _calm = consumer.park();
        for number in 0..3 {
            let outcome = heard.recv_timeout(WATCHDOG);
            if outcome != Ok(number) {
                // The thread would keep the test for ever.
                eprintln!("the sender of message {number} is held: {outcome:?}");
                std::process::abort();
            }
            let _calm = consumer.park();
        }
    });
}

const CHILD: &str = "WHARF_TEST_SHM_CHILD";

/// The body of the process that is killed; does nothing when run as a test.
#[test]
fn child_process() {
    let Some(path) = env::var_os(CHILD) else {
        return;
    };
    let mut side = Side::new(no_pidfd());
    let connected = run(async {
        let mut channel = Channel::unix(UnixStream::connect(path).await.expect("connect"));
        side.connector
            .connect(&mut channel, Role::Client, &peer())
            .await
            .expect("connect")
    });
    let mut link = side.interface.attach(LinkId(0), connected).expect("attach");
    for number in 0..100 {
        link.am_short(9, number, b"from the child").expect("room");
    }
    thread::sleep(2 * WATCHDOG);
}

#[test]
fn a_killed_process_is_told_after_its_messages() {
    for use_pidfd in [true, false] {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("socket");
        let mut server = Side::new(ShmOptions { use_pidfd });
        let (mut child, connected) = run(async {
            let listener = UnixListener::bind(&path).expect("bind");
            let child = Command::new(env::current_exe().expect("own path"))
                .args([
                    "--exact",
                    "transport::shm::tests::child_process",
                    "--nocapture",
                ])
                .env(CHILD, &path)
                .stdout(Stdio::null())
                .spawn()
                .expect("spawn");
            let (stream, _) = tokio::time::timeout(WATCHDOG, listener.accept())
                .await
                .expect("the watchdog barked")
                .expect("accept");
            let mut channel = Channel::unix(stream);
            (
                child,
                server
                    .connector
                    .connect(&mut channel, Role::Server, &peer())
                    .await
                    .expect("connect"),
            )
        });
        let link = server
            .interface
            .attach(LinkId(3), connected)
            .expect("attach");
        let memory = link.shared_memory().expect("a segment");
        let pair = Pair::new(Arc::clone(&memory));
        server.progress_until("the first message", |inbox| !inbox.messages.is_empty());
        server.progress_until("all messages", |inbox| inbox.messages.len() == 100);
        child.kill().expect("kill");
        server.progress_until("the death", |inbox| !inbox.failed.is_empty());
        let kind = if use_pidfd {
            ErrorKind::PeerDied
        } else {
            ErrorKind::ConnectionReset
        };
        assert_eq!(server.inbox.failed, [(LinkId(3), kind)]);
        assert_eq!(child.wait().expect("wait").signal(), Some(9));
        assert!(memory.is_peer_gone() && pair.is_peer_outside());
    }
}
