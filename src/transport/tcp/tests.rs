//! What only a stream socket can do wrong: foreign bytes, frames in bits, set-ups that do not fit.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use super::{
    Tcp, TcpOptions,
    connector::{Established, fragment},
    frame::{Format, Frame, LIMIT, LONG, SUMMED},
    socket::Socket,
};
use crate::{
    ErrorKind,
    error::{Error, Result},
    sys::identity::identity,
    transport::{
        Connected, FRAGMENT, Interface, Link, PeerInfo, Place, Registry, Role, Sink, Transport,
        channel::Channel,
    },
    types::{Identity, LinkId},
    util::testing::run,
};

#[derive(Default)]
struct Seen {
    messages: Vec<(LinkId, Vec<u8>)>,
    failed: Vec<(LinkId, Error)>,
    asked: Vec<usize>,
}

impl Sink for Seen {
    fn message(&mut self, from: LinkId, _id: u8, _header: u64, body: &[u8]) -> Result<()> {
        self.messages.push((from, body.to_vec()));
        Ok(())
    }
    fn place(
        &mut self,
        _from: LinkId,
        _id: u8,
        _header: u64,
        _prefix: &[u8],
        length: usize,
    ) -> Result<Place> {
        self.asked.push(length);
        Ok(Place::Whole)
    }
    fn placed(&mut self, _from: LinkId, _token: u64) {}
    fn sent(&mut self, _from: LinkId, _token: u64) {}
    fn writable(&mut self, _from: LinkId) {}
    fn failed(&mut self, from: LinkId, error: Error) {
        self.failed.push((from, error));
    }
}

/// An interface whose links lead to plain sockets.
struct Bed {
    interface: Box<dyn Interface>,
    links: Vec<Box<dyn Link>>,
    seen: Seen,
}

impl Bed {
    fn new() -> Self {
        let opened = Tcp::new(TcpOptions::default()).open().unwrap();
        Self {
            interface: opened.interface,
            links: Vec::new(),
            seen: Seen::default(),
        }
    }

    fn attach(&mut self) -> TcpStream {
        let (near, far) = pair();
        near.set_nonblocking(true).unwrap();
        let established = Established {
            socket: Socket::new(near.into(), None, "stranger"),
            format: Format { checksums: false },
            fragment: FRAGMENT,
        };
        let id = LinkId(self.links.len() as u64);
        self.links.push(
            self.interface
                .attach(id, Connected(Box::new(established)))
                .unwrap(),
        );
        far
    }

    /// Progresses with every socket said to be readable.
    fn pass(&mut self) {
        for token in 0..self.links.len() {
            self.interface.ready(token, true, false);
        }
        self.interface.progress(64, &mut self.seen);
    }

    fn until(&mut self, done: impl Fn(&Seen) -> bool) {
        let start = Instant::now();
        while !done(&self.seen) {
            assert!(start.elapsed() < Duration::from_secs(60), "waited too long");
            self.pass();
        }
    }
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

fn frame(body: &[u8]) -> Vec<u8> {
    let frame = Frame::new(3, 4, 0, body.len()).unwrap();
    let mut head = [0; SUMMED];
    let length = frame.encode(&mut head);
    [&head[..length], body].concat()
}

#[test]
fn foreign_bytes_end_one_link_only() {
    let mut bed = Bed::new();
    let mut foreign = bed.attach();
    let mut good = bed.attach();
    foreign.write_all(&frame(b"before")).unwrap();
    foreign
        .write_all(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n")
        .unwrap();
    bed.until(|seen| !seen.failed.is_empty());
    let (link, error) = &bed.seen.failed[0];
    assert_eq!((*link, error.kind()), (LinkId(0), ErrorKind::Protocol));
    assert_eq!(
        (error.peer(), error.transport()),
        (Some("stranger"), Some("tcp"))
    );
    assert_eq!(bed.seen.messages, [(LinkId(0), b"before".to_vec())]);
    // The socket is closed for the other end as well.
    let mut rest = Vec::new();
    let _ = foreign.read_to_end(&mut rest);
    assert!(rest.is_empty());

    good.write_all(&frame(b"hello")).unwrap();
    bed.until(|seen| seen.messages.len() == 2);
    assert_eq!(bed.seen.messages[1], (LinkId(1), b"hello".to_vec()));
    assert_eq!(bed.seen.failed.len(), 1);
}

#[test]
fn a_frame_longer_than_the_limit_allocates_nothing() {
    let mut bed = Bed::new();
    let mut peer = bed.attach();
    let mut bytes = frame(&[]);
    bytes[..4].copy_from_slice(&(LIMIT as u32 + 1).to_le_bytes());
    peer.write_all(&bytes).unwrap();
    bed.until(|seen| !seen.failed.is_empty());
    assert_eq!(bed.seen.failed[0].1.kind(), ErrorKind::Protocol);
    assert!(bed.seen.asked.is_empty());
}

#[test]
fn frames_arrive_byte_by_byte() {
    let mut bed = Bed::new();
    let mut peer = bed.attach();
    peer.set_nodelay(true).unwrap();
    let long = vec![7; LONG + 1];
    let bytes = [frame(b"one"), frame(&[]), frame(&long), frame(b"two")].concat();
    for byte in bytes.chunks(1) {
        peer.write_all(byte).unwrap();
        bed.pass();
    }
    bed.until(|seen| seen.messages.len() == 4);
    let bodies: Vec<_> = bed
        .seen
        .messages
        .iter()
        .map(|(_, body)| &body[..])
        .collect();
    assert_eq!(bodies, [b"one", &b""[..], &long, b"two"]);
    assert_eq!(bed.seen.asked, [LONG + 1]);
}

#[test]
fn an_end_within_a_message_is_a_failure() {
    for cut in [1, 10, 20, LONG, 2 * LONG] {
        let mut bed = Bed::new();
        let mut peer = bed.attach();
        peer.write_all(&frame(b"whole")).unwrap();
        peer.write_all(&frame(&vec![1; 3 * LONG])[..cut]).unwrap();
        drop(peer);
        bed.until(|seen| !seen.failed.is_empty());
        assert_eq!(bed.seen.messages.len(), 1);
        assert_eq!(bed.seen.failed[0].1.kind(), ErrorKind::ConnectionReset);
        bed.pass();
        assert_eq!(bed.seen.failed.len(), 1);
    }
}

#[test]
fn what_arrived_before_a_reset_is_delivered() {
    let mut bed = Bed::new();
    let mut peer = bed.attach();
    // Unread bytes make the peer's kernel send a reset.
    bed.links[0].am_short(1, 2, b"never read").unwrap();
    let mut first = [0];
    peer.read_exact(&mut first).unwrap();
    peer.write_all(&frame(b"last words")).unwrap();
    drop(peer);
    // The link learns of it first.
    let start = Instant::now();
    while bed.links[0].am_short(1, 2, b"x").is_ok() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited too long");
    }
    bed.until(|seen| !seen.failed.is_empty());
    assert_eq!(bed.seen.messages, [(LinkId(0), b"last words".to_vec())]);
    assert_eq!(bed.seen.failed[0].1.kind(), ErrorKind::ConnectionReset);
}

/// Runs the set-up, as this end of it, against a peer that sends `hello`.
fn set_up(role: Role, hello: &[u8]) -> Result<Connected> {
    let (near, far) = pair();
    let connector = Tcp::new(TcpOptions::default()).open().unwrap().connector;
    let identity = Identity {
        boot: [0; 16],
        net_namespace: 0,
        pid_namespace: 0,
        user_namespace: 0,
        user: 0,
        pid: 0,
    };
    let peer = PeerInfo {
        identity,
        name: "stranger".to_owned(),
        certificates: None,
        origin: crate::transport::channel::Origin::default(),
    };
    run(async {
        let channel = |stream: TcpStream| {
            stream.set_nonblocking(true).unwrap();
            Channel::tcp(tokio::net::TcpStream::from_std(stream).unwrap())
        };
        let (mut near, mut far) = (channel(near), channel(far));
        far.send(hello, &[]).await.unwrap();
        connector.connect(&mut near, role, &peer).await
    })
}

/// An offer of a link, with its checksum.
fn offer(magic: &[u8; 4], version: u8, flags: u8) -> Vec<u8> {
    let mut hello = [&magic[..], &[version, flags]].concat();
    hello.extend_from_slice(&crc32fast::hash(&hello).to_le_bytes());
    hello
}

#[test]
fn fragments_are_longer_within_one_host() {
    let here = identity();
    let mut elsewhere = here.clone();
    elsewhere.boot[0] ^= 1;
    assert_eq!(fragment(false, here), 4 * FRAGMENT);
    assert_eq!(fragment(true, here), FRAGMENT);
    assert_eq!(fragment(false, &elsewhere), FRAGMENT);
}

#[test]
fn set_ups_that_do_not_fit_fail() {
    let good = offer(b"wtcp", 3, 0);
    let format = |connected: Connected| connected.of::<Established>(Tcp::NAME).unwrap().format;
    for (role, verdict) in [(Role::Client, &[][..]), (Role::Server, &[1])] {
        let set_up = |hello: &[u8]| set_up(role, &[hello, verdict].concat());
        assert!(!format(set_up(&good).unwrap()).checksums);
        // The peer's wish is enough.
        let wish = offer(b"wtcp", 3, 1);
        assert!(format(set_up(&wish).unwrap()).checksums);
        for (hello, kind) in [
            (good[..9].to_vec(), ErrorKind::Protocol),
            (offer(b"nope", 3, 0), ErrorKind::Protocol),
            (offer(b"wtcp", 2, 0), ErrorKind::VersionMismatch),
        ] {
            assert_eq!(set_up(&hello).unwrap_err().kind(), kind, "{hello:?}");
        }
        for bit in 0..good.len() * 8 {
            let mut altered = good.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(set_up(&altered).is_err(), "bit {bit}");
        }
    }
    // A later version may say more.
    let later = offer(b"wtcp", 4, 2);
    for (role, more) in [(Role::Client, &b"more"[..]), (Role::Server, b"\x01more")] {
        set_up(role, &[&later[..], more].concat()).unwrap();
    }
    for verdict in [&[0][..], &[]] {
        let error = set_up(Role::Server, &[&good[..], verdict].concat()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::VersionMismatch);
    }
}

/// A connection of which all has been read, and the poll that tells of it, as a worker has one.
fn told() -> (Bed, mio::Poll, TcpStream) {
    let mut bed = Bed::new();
    let mut poll = mio::Poll::new().unwrap();
    let registry = poll.registry().try_clone().unwrap();
    bed.interface
        .register(Registry { registry, base: 0 })
        .unwrap();
    let mut peer = bed.attach();
    peer.set_nodelay(true).unwrap();
    peer.write_all(&frame(b"first")).unwrap();
    bed.until(|seen| seen.messages.len() == 1);
    while !bed.interface.arm() {
        bed.interface.progress(64, &mut bed.seen);
    }
    bed.interface.disarm();
    let mut events = mio::Events::with_capacity(8);
    poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
    (bed, poll, peer)
}

/// Waits until the poll has said so.
fn wait(poll: &mut mio::Poll, said: impl Fn(&mio::event::Event) -> bool) {
    let mut events = mio::Events::with_capacity(8);
    let start = Instant::now();
    while !events.iter().any(&said) {
        assert!(start.elapsed() < Duration::from_secs(60), "waited too long");
        let rest = Some(Duration::from_secs(60));
        poll.poll(&mut events, rest).unwrap();
    }
}

#[test]
fn who_has_read_all_need_not_look_again_to_sleep() {
    let (mut bed, mut poll, mut peer) = told();
    peer.write_all(&frame(b"second")).unwrap();
    // It looks by itself, and is not told.
    wait(&mut poll, mio::event::Event::is_readable);
    bed.interface.progress(64, &mut bed.seen);
    assert_eq!(bed.seen.messages.len(), 2);
    assert!(bed.interface.arm(), "it would look in vain");
    peer.write_all(&frame(b"third")).unwrap();
    wait(&mut poll, mio::event::Event::is_readable);
}

#[test]
fn an_end_that_was_told_with_the_last_bytes_is_found() {
    let (mut bed, mut poll, mut peer) = told();
    peer.write_all(&frame(b"last words")).unwrap();
    drop(peer);
    // One event may be all that says both.
    wait(&mut poll, mio::event::Event::is_read_closed);
    bed.interface.ready(0, true, false);
    while !bed.interface.arm() {
        bed.interface.progress(64, &mut bed.seen);
    }
    assert_eq!(bed.seen.messages.len(), 2);
    assert_eq!(bed.seen.failed.len(), 1, "it sleeps, and nobody tells it");
}
