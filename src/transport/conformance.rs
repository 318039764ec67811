//! What every transport must do, as scenarios that are written once and run over each.
//!
//! A transport joins with one line at the end of this file: `conformance!(name, SUBJECT)`.
//!
//! # Safety
//! Payloads and places are vectors that the bed and its recorders keep until after the links are gone.
#![allow(unsafe_code)]

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use mio::{Events, Interest, Poll, Token, unix::SourceFd};

use super::{
    Connected, Connector, Interface, Link, Opened, PeerInfo, Place, RawSlice, Registry, Role,
    SendError, Sink, Transport, Zcopy, channel::Channel, loopback::Loopback, shm, tcp, verbs,
};
use std::os::fd::AsRawFd;

use crate::{
    ErrorKind,
    error::{Error, Result},
    types::{Identity, LinkId},
};

/// A transport under test.
pub(super) struct Subject {
    transport: fn() -> Box<dyn Transport>,
    /// Makes both ends of a channel, inside a runtime. `None`: links lead back to themselves.
    channel: Option<fn() -> (Channel, Channel)>,
}

/// Longest wait for anything.
const WATCHDOG: Duration = Duration::from_secs(60);
/// The transport's high bits of a token.
const BASE: usize = 5 << Registry::TOKEN_BITS;
const DOORBELL: Token = Token(usize::MAX >> 1);

#[derive(Debug, PartialEq, Eq, Clone)]
struct Message {
    from: LinkId,
    id: u8,
    header: u64,
    body: Vec<u8>,
}

/// What becomes of long payloads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Policy {
    Whole,
    Memory,
    Discard,
}

/// A sink that writes everything down.
struct Recorder {
    policy: Policy,
    /// Links whose next message is refused.
    refuse: Vec<LinkId>,
    messages: Vec<Message>,
    /// Messages whose payload is being placed, by token; the prefix is the beginning of the body.
    places: HashMap<u64, (Message, usize)>,
    next: u64,
    placed: usize,
    discarded: usize,
    sent: Vec<(LinkId, u64)>,
    writable: Vec<LinkId>,
    /// Writable links that have not been flushed yet.
    to_flush: Vec<LinkId>,
    failed: Vec<(LinkId, ErrorKind)>,
}

impl Recorder {
    fn check(&self, from: LinkId) -> Result<()> {
        assert!(
            self.failed.iter().all(|(link, _)| *link != from),
            "{from:?} was reported after it had failed"
        );
        if self.refuse.contains(&from) {
            return Err(Error::new(ErrorKind::Protocol, "refused by the test"));
        }
        Ok(())
    }
}

impl Sink for Recorder {
    fn message(&mut self, from: LinkId, id: u8, header: u64, body: &[u8]) -> Result<()> {
        self.check(from)?;
        self.messages.push(Message {
            from,
            id,
            header,
            body: body.to_vec(),
        });
        Ok(())
    }

    fn place(
        &mut self,
        from: LinkId,
        id: u8,
        header: u64,
        prefix: &[u8],
        length: usize,
    ) -> Result<Place> {
        self.check(from)?;
        match self.policy {
            Policy::Whole => Ok(Place::Whole),
            Policy::Discard => {
                self.discarded += 1;
                Ok(Place::Discard)
            }
            Policy::Memory => {
                let mut body = prefix.to_vec();
                body.resize(prefix.len() + length, 0);
                let token = self.next;
                self.next += 1;
                self.places.insert(
                    token,
                    (
                        Message {
                            from,
                            id,
                            header,
                            body,
                        },
                        prefix.len(),
                    ),
                );
                // The map may move the vector, not the bytes behind it.
                let address =
                    self.places.get_mut(&token).unwrap().0.body[prefix.len()..].as_mut_ptr();
                Ok(Place::Memory { address, token })
            }
        }
    }

    fn placed(&mut self, from: LinkId, token: u64) {
        self.check(from).unwrap();
        let (message, _) = self
            .places
            .remove(&token)
            .expect("placed twice, or never asked for");
        assert_eq!(message.from, from);
        self.placed += 1;
        self.messages.push(message);
    }

    fn sent(&mut self, from: LinkId, token: u64) {
        assert!(!self.sent.contains(&(from, token)), "sent twice");
        self.sent.push((from, token));
    }

    fn writable(&mut self, from: LinkId) {
        self.writable.push(from);
        self.to_flush.push(from);
    }

    fn failed(&mut self, from: LinkId, error: Error) {
        self.check(from).ok();
        self.failed.push((from, error.kind()));
    }
}

/// One worker, as far as a transport sees of it.
struct Node {
    links: HashMap<LinkId, Box<dyn Link>>,
    interface: Box<dyn Interface>,
    connector: Arc<dyn Connector>,
    poll: Poll,
    sink: Recorder,
}

impl Node {
    fn new(subject: &Subject) -> Self {
        let transport = (subject.transport)();
        transport.probe().unwrap();
        let Opened {
            mut interface,
            connector,
        } = transport.open().unwrap();
        let poll = Poll::new().unwrap();
        interface
            .register(Registry {
                registry: poll.registry().try_clone().unwrap(),
                base: BASE,
            })
            .unwrap();
        if let Some(bell) = interface.doorbell() {
            poll.registry()
                .register(
                    &mut SourceFd(&bell.as_raw_fd()),
                    DOORBELL,
                    Interest::READABLE,
                )
                .unwrap();
        }
        let sink = Recorder {
            policy: Policy::Whole,
            refuse: Vec::new(),
            messages: Vec::new(),
            places: HashMap::new(),
            next: 1,
            placed: 0,
            discarded: 0,
            sent: Vec::new(),
            writable: Vec::new(),
            to_flush: Vec::new(),
            failed: Vec::new(),
        };
        Self {
            links: HashMap::new(),
            interface,
            connector,
            poll,
            sink,
        }
    }

    /// Takes the poll's events. Returns how many there were.
    fn events(&mut self, wait: Duration) -> usize {
        let mut events = Events::with_capacity(64);
        match self.poll.poll(&mut events, Some(wait)) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => result.unwrap(),
        }
        for event in &events {
            if event.token() != DOORBELL {
                let Token(token) = event.token();
                assert_eq!(token >> Registry::TOKEN_BITS << Registry::TOKEN_BITS, BASE);
                let readable = event.is_readable() || event.is_read_closed() || event.is_error();
                let writable = event.is_writable() || event.is_write_closed();
                self.interface.ready(token - BASE, readable, writable);
            }
        }
        events.iter().count()
    }

    /// One progress pass, with the flushes that it asks for.
    fn progress(&mut self, budget: usize) -> usize {
        let happened = self.interface.progress(budget, &mut self.sink);
        for link in std::mem::take(&mut self.sink.to_flush) {
            if let Some(link) = self.links.get_mut(&link) {
                link.flush(&mut self.sink);
            }
        }
        happened
    }

    fn pass(&mut self) -> usize {
        self.events(Duration::ZERO);
        self.progress(64)
    }

    /// Ends a link as the worker does.
    fn close(&mut self, link: LinkId) {
        self.interface.detach(link);
        self.links.remove(&link).unwrap();
    }
}

/// How to send.
#[derive(Clone, Copy, Debug)]
enum How {
    Short,
    Bcopy,
    Zcopy,
}

/// Two workers with links between them, or one with links to itself.
struct Bed {
    nodes: Vec<Node>,
    /// Sending and receiving end of each link.
    ends: Vec<(LinkId, LinkId)>,
    /// Payloads of zero-copy sends. Behind the nodes, so that they are dropped after the links.
    lent: Vec<Vec<u8>>,
}

impl Bed {
    fn new(subject: &Subject, links: u32) -> Self {
        let count = if subject.channel.is_some() { 2 } else { 1 };
        let mut bed = Self {
            nodes: (0..count).map(|_| Node::new(subject)).collect(),
            ends: Vec::new(),
            lent: Vec::new(),
        };
        for number in 0..links {
            bed.link(subject, number);
        }
        bed
    }

    fn link(&mut self, subject: &Subject, number: u32) {
        let (out, into) = (
            LinkId(1000 + u64::from(number)),
            LinkId(2000 + u64::from(number)),
        );
        let Some(channel) = subject.channel else {
            let link = self.nodes[0]
                .interface
                .attach(out, Loopback::connected())
                .unwrap();
            self.nodes[0].links.insert(out, link);
            self.ends.push((out, out));
            return;
        };
        let (client, server) = connect(
            &*self.nodes[0].connector,
            &*self.nodes[1].connector,
            channel,
        )
        .unwrap();
        for (node, id, connected) in [(0, out, client), (1, into, server)] {
            let link = self.nodes[node].interface.attach(id, connected).unwrap();
            self.nodes[node].links.insert(id, link);
        }
        self.ends.push((out, into));
    }

    fn sender(&mut self) -> &mut Node {
        &mut self.nodes[0]
    }

    fn receiver(&mut self) -> &mut Node {
        self.nodes.last_mut().unwrap()
    }

    /// `length`, or the longest message that every way of copying takes.
    fn fitting(&mut self, length: usize) -> usize {
        length.min(self.out(0).attributes().max_bcopy)
    }

    /// The cheapest way of copying for a message of this length.
    fn copying(&mut self, length: usize) -> How {
        if length <= self.out(0).attributes().max_short {
            How::Short
        } else {
            How::Bcopy
        }
    }

    /// Whether payloads are placed where the sink says; else they are delivered from the transport's own memory.
    fn places(&mut self) -> bool {
        self.out(0).attributes().max_zcopy > 0
    }

    fn out(&mut self, number: usize) -> &mut Box<dyn Link> {
        let id = self.ends[number].0;
        self.sender().links.get_mut(&id).unwrap()
    }

    /// Progresses both ends until `done`.
    fn until(&mut self, what: &str, done: impl Fn(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < WATCHDOG, "waited too long: {what}");
            if self.nodes.iter_mut().map(Node::pass).sum::<usize>() == 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Until the receiver has `count` messages.
    fn received(&mut self, count: usize) {
        self.until("messages", |bed| {
            bed.receiver().sink.messages.len() >= count
        });
        assert_eq!(self.receiver().sink.messages.len(), count);
    }

    /// Tries to send one message. A token, which is its position in `lent`, is pending after a zero-copy send.
    fn try_send(
        &mut self,
        link: usize,
        how: How,
        message: &Message,
        prefix: usize,
    ) -> Result<Option<u64>, SendError> {
        let Message {
            id,
            header,
            ref body,
            ..
        } = *message;
        let (before, payload) = body.split_at(prefix);
        match how {
            How::Short => self.out(link).am_short(id, header, body).map(|()| None),
            How::Bcopy => self
                .out(link)
                .am_bcopy(id, header, before, payload)
                .map(|()| None),
            How::Zcopy => {
                self.lent.push(payload.to_vec());
                let token = self.lent.len() as u64 - 1;
                let payload = self.lent.last().unwrap();
                let raw = RawSlice {
                    address: payload.as_ptr(),
                    length: payload.len(),
                };
                // SAFETY: `lent` keeps the bytes unchanged until the bed is dropped, after the links.
                let done = unsafe { self.out(link).am_zcopy(id, header, before, raw, token) };
                if !matches!(done, Ok(Zcopy::Pending)) {
                    // Nothing refers to it any more: changing it must not show at the other end.
                    self.lent.last_mut().unwrap().fill(0xee);
                }
                done.map(|done| (done == Zcopy::Pending).then_some(token))
            }
        }
    }

    /// Sends one message, progressing while there is no room.
    fn send(&mut self, link: usize, how: How, message: &Message, prefix: usize) -> Option<u64> {
        let start = Instant::now();
        loop {
            match self.try_send(link, how, message, prefix) {
                Ok(token) => return token,
                Err(SendError::Failed(error)) => panic!("{error:?}"),
                Err(SendError::Full) => {
                    assert!(start.elapsed() < WATCHDOG, "no room for too long");
                    self.nodes.iter_mut().for_each(|node| {
                        node.pass();
                    });
                }
            }
        }
    }

    fn flush(&mut self, link: usize) {
        let id = self.ends[link].0;
        let Node { links, sink, .. } = self.sender();
        links.get_mut(&id).unwrap().flush(sink);
    }

    /// A message as the receiving end of `link` will see it, with a body that tells `seed`.
    fn message(&self, link: usize, seed: usize, length: usize) -> Message {
        let body = (0..length)
            .map(|at| (seed.wrapping_mul(31) + at + (at >> 8)) as u8)
            .collect();
        Message {
            from: self.ends[link].1,
            id: (seed % 200) as u8,
            header: (seed as u64) << 32 | length as u64,
            body,
        }
    }
}

/// Sets a link up over a channel.
fn connect(
    client: &dyn Connector,
    server: &dyn Connector,
    channel: fn() -> (Channel, Channel),
) -> Result<(Connected, Connected)> {
    let identity = Identity {
        boot: [1; 16],
        net_namespace: 0,
        pid_namespace: 0,
        user_namespace: 0,
        user: 0,
        pid: std::process::id(),
    };
    let peer = PeerInfo {
        identity,
        name: "the other end".to_owned(),
        certificates: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (mut near, mut far) = channel();
        client.can_use(&near, &peer)?;
        server.can_use(&far, &peer)?;
        tokio::time::timeout(WATCHDOG, async {
            tokio::try_join!(
                client.connect(&mut near, Role::Client, &peer),
                server.connect(&mut far, Role::Server, &peer)
            )
        })
        .await
        .expect("the set-up hangs")
    })
}

mod scenario {
    use super::*;

    /// Ways to send a message of `length` bytes over `link`.
    fn ways(bed: &mut Bed, link: usize, prefix: usize, length: usize) -> Vec<How> {
        let attributes = bed.out(link).attributes();
        let mut ways = Vec::new();
        if length <= attributes.max_short {
            ways.push(How::Short);
        }
        if length <= attributes.max_bcopy {
            ways.push(How::Bcopy);
        }
        if bed.places() && length - prefix <= attributes.max_zcopy {
            ways.push(How::Zcopy);
        }
        ways
    }

    pub(super) fn sizes(subject: &Subject) {
        let mut bed = Bed::new(subject, 1);
        let attributes = bed.out(0).attributes();
        let mut lengths = vec![
            0,
            1,
            47,
            48,
            49,
            63,
            64,
            65,
            4095,
            4096,
            4097,
            8191,
            8192,
            8193,
            65_535,
            65_536,
            1 << 20,
        ];
        lengths.extend([
            attributes.max_short,
            attributes.max_bcopy,
            attributes.max_bcopy + 1,
        ]);
        for policy in [Policy::Whole, Policy::Memory] {
            bed.receiver().sink.policy = policy;
            for &length in &lengths {
                for prefix in [0, 1, 16, 64] {
                    let prefix = prefix.min(length);
                    for how in ways(&mut bed, 0, prefix, length) {
                        let message = bed.message(0, length + prefix, length);
                        let token = bed.send(0, how, &message, prefix);
                        bed.received(1);
                        assert!(
                            bed.receiver().sink.messages.pop().unwrap() == message,
                            "{how:?} of {length} differs"
                        );
                        if let Some(token) = token {
                            bed.until("sent", |bed| {
                                bed.sender()
                                    .sink
                                    .sent
                                    .iter()
                                    .any(|(_, sent)| *sent == token)
                            });
                        }
                    }
                }
            }
        }
        assert_eq!(bed.receiver().sink.placed > 0, bed.places());
        bed.until("flushed", |bed| bed.out(0).is_flushed());
    }

    pub(super) fn order(subject: &Subject) {
        let mut bed = Bed::new(subject, 1);
        let mut expected = Vec::new();
        let mut pending = 0;
        bed.receiver().sink.policy = Policy::Memory;
        for seed in 0..3000_usize {
            let length = match seed % 50 {
                49 if bed.places() => 300_000,
                rest => bed.fitting(rest * rest * 5 % 9000),
            };
            let prefix = (seed % 65).min(length);
            let ways = ways(&mut bed, 0, prefix, length);
            let how = ways[seed % ways.len()];
            let message = bed.message(0, seed, length);
            pending += usize::from(bed.send(0, how, &message, prefix).is_some());
            expected.push(message);
            if seed % 7 == 0 {
                bed.flush(0);
            }
        }
        bed.received(expected.len());
        assert!(
            bed.receiver().sink.messages == expected,
            "order or content differs"
        );
        bed.until("sent", |bed| bed.sender().sink.sent.len() >= pending);
        assert_eq!(bed.sender().sink.sent.len(), pending);
        assert!(bed.receiver().sink.places.is_empty());
    }

    pub(super) fn full_then_writable(subject: &Subject) {
        let mut bed = Bed::new(subject, 1);
        let mut expected = Vec::new();
        for length in [8, 700, 4000] {
            let how = bed.copying(length);
            bed.sender().sink.writable.clear();
            loop {
                assert!(expected.len() < 3_000_000, "never full");
                let message = bed.message(0, expected.len(), length);
                match bed.try_send(0, how, &message, 0) {
                    Ok(_) => expected.push(message),
                    Err(SendError::Full) => break,
                    Err(SendError::Failed(error)) => panic!("{error:?}"),
                }
            }
            let out = bed.ends[0].0;
            bed.until("writable", |bed| bed.sender().sink.writable.contains(&out));
            // There is room now: that is what `writable` promised, once it was followed by a flush.
            let message = bed.message(0, expected.len(), length);
            bed.send(0, how, &message, 0);
            expected.push(message);
            bed.received(expected.len());
        }
        assert!(
            bed.receiver().sink.messages == expected,
            "order or content differs"
        );
        bed.until("flushed", |bed| bed.out(0).is_flushed());
    }

    pub(super) fn long_zcopy_then_short(subject: &Subject) {
        let mut bed = Bed::new(subject, 1);
        let long = bed.out(0).attributes().max_zcopy.min(32 << 20);
        if long == 0 {
            return;
        }
        for policy in [Policy::Whole, Policy::Memory, Policy::Discard] {
            bed.receiver().sink.policy = policy;
            let first = bed.message(0, 1, long);
            let second = bed.message(0, 2, 20);
            let token = bed.send(0, How::Zcopy, &first, 0);
            bed.send(0, How::Short, &second, 0);
            let expected = if policy == Policy::Discard {
                vec![second]
            } else {
                vec![first, second]
            };
            bed.received(expected.len());
            assert!(
                std::mem::take(&mut bed.receiver().sink.messages) == expected,
                "order or content differs"
            );
            if let Some(token) = token {
                bed.until("sent", |bed| {
                    bed.sender()
                        .sink
                        .sent
                        .iter()
                        .any(|(_, sent)| *sent == token)
                });
            }
        }
        assert_eq!(bed.receiver().sink.placed, 1);
        assert_eq!(bed.receiver().sink.discarded, 1);
    }

    pub(super) fn discard(subject: &Subject) {
        let mut bed = Bed::new(subject, 1);
        if !bed.places() {
            return; // Nothing is asked for.
        }
        bed.receiver().sink.policy = Policy::Discard;
        for seed in 0..100 {
            let long = bed.message(0, seed, 60_000);
            bed.send(0, How::Bcopy, &long, 10);
            let short = bed.message(0, seed, 10);
            bed.send(0, How::Short, &short, 0);
            bed.received(1);
            assert_eq!(bed.receiver().sink.messages.pop(), Some(short));
        }
        assert_eq!(bed.receiver().sink.discarded, 100);
    }

    pub(super) fn many_links(subject: &Subject) {
        let mut bed = Bed::new(subject, 64);
        let mut expected: HashMap<LinkId, Vec<Message>> = HashMap::new();
        let mut count = 0;
        for seed in 0..4000 {
            let link = (seed * 7 + seed / 64) % 64;
            let length = bed.fitting([8, 100, 5000, 60_000][seed % 4]);
            let message = bed.message(link, seed, length);
            bed.send(link, How::Bcopy, &message, 4);
            expected.entry(message.from).or_default().push(message);
            count += 1;
        }
        bed.received(count);
        let mut got: HashMap<LinkId, Vec<Message>> = HashMap::new();
        for message in std::mem::take(&mut bed.receiver().sink.messages) {
            got.entry(message.from).or_default().push(message);
        }
        assert!(got == expected, "order or content differs");
    }

    pub(super) fn detach(subject: &Subject) {
        let mut bed = Bed::new(subject, 2);
        let how = bed.copying(100);
        for link in 0..2 {
            let message = bed.message(link, 1, 100);
            bed.send(link, how, &message, 0);
        }
        bed.received(2);
        let gone = bed.ends[0].1;
        let late = bed.message(0, 2, 100);
        bed.send(0, how, &late, 0);
        bed.receiver().close(gone);
        for seed in 0..100 {
            let message = bed.message(1, seed, 5000);
            bed.send(1, How::Bcopy, &message, 0);
        }
        bed.received(102);
        let receiver = bed.receiver();
        assert_eq!(
            receiver
                .sink
                .messages
                .iter()
                .filter(|message| message.from == gone)
                .count(),
            1
        );
        assert!(receiver.sink.failed.iter().all(|(link, _)| *link != gone));
    }

    pub(super) fn refuse(subject: &Subject) {
        let mut bed = Bed::new(subject, 2);
        let bad = bed.ends[0].1;
        bed.receiver().sink.refuse.push(bad);
        for seed in 0..50 {
            for link in 0..2 {
                let message = bed.message(link, seed, 10);
                // The first link breaks some time.
                let _ = bed.try_send(link, How::Short, &message, 0);
            }
        }
        bed.received(50);
        for _ in 0..100 {
            bed.nodes.iter_mut().for_each(|node| {
                node.pass();
            });
        }
        let receiver = bed.receiver();
        assert!(
            receiver
                .sink
                .messages
                .iter()
                .all(|message| message.from != bad)
        );
        assert!(receiver.sink.failed.is_empty(), "the worker knows already");
    }

    pub(super) fn peer_drop(subject: &Subject) {
        if subject.channel.is_none() {
            return; // A worker is no peer of its own.
        }
        let mut bed = Bed::new(subject, 2);
        let how = bed.copying(1000);
        for seed in 0..100 {
            let message = bed.message(0, seed, 1000);
            bed.send(0, how, &message, 0);
        }
        bed.until("flushed", |bed| {
            bed.flush(0);
            bed.out(0).is_flushed()
        });
        let (out, into) = bed.ends[0];
        bed.sender().close(out);
        bed.until("failed", |bed| !bed.receiver().sink.failed.is_empty());
        let receiver = bed.receiver();
        assert_eq!(
            receiver.sink.messages.len(),
            100,
            "what had been sent is delivered first"
        );
        let [(failed, kind)] = receiver.sink.failed[..] else {
            panic!("failed {:?}", receiver.sink.failed)
        };
        assert_eq!(failed, into);
        assert!(
            matches!(kind, ErrorKind::ConnectionReset | ErrorKind::PeerDied),
            "{kind:?}"
        );
        receiver.close(into);
        let message = bed.message(1, 7, 30);
        bed.send(1, How::Short, &message, 0);
        bed.received(101);
    }

    pub(super) fn peer_drop_within_a_payload(subject: &Subject) {
        if subject.channel.is_none() {
            return;
        }
        let mut bed = Bed::new(subject, 1);
        bed.receiver().sink.policy = Policy::Memory;
        let long = bed.out(0).attributes().max_zcopy.min(32 << 20);
        if long == 0 {
            return;
        }
        let message = bed.message(0, 1, long);
        let token = bed.send(0, How::Zcopy, &message, 0);
        let (out, _) = bed.ends[0];
        bed.sender().close(out);
        bed.until("failed", |bed| !bed.receiver().sink.failed.is_empty());
        assert!(bed.sender().sink.sent.is_empty());
        let receiver = bed.receiver();
        assert!(token.is_none() || receiver.sink.placed == 0);
        assert_eq!(receiver.sink.failed.len(), 1);
    }

    pub(super) fn send_to_a_dead_peer(subject: &Subject) {
        if subject.channel.is_none() {
            return;
        }
        let mut bed = Bed::new(subject, 1);
        let (out, into) = bed.ends[0];
        bed.receiver().close(into);
        let how = if bed.places() { How::Zcopy } else { How::Bcopy };
        let start = Instant::now();
        while bed.sender().sink.failed.is_empty() {
            assert!(
                start.elapsed() < WATCHDOG,
                "the death of the peer goes unnoticed"
            );
            let message = bed.message(0, 1, 1000);
            match bed.try_send(0, how, &message, 0) {
                Ok(_) | Err(SendError::Full) => {}
                Err(SendError::Failed(_)) => break,
            }
            bed.sender().pass();
        }
        bed.sender().close(out);
    }

    pub(super) fn small_budget(subject: &Subject) {
        let mut bed = Bed::new(subject, 1);
        let expected: Vec<_> = (0..200).map(|seed| bed.message(0, seed, 8)).collect();
        for message in &expected {
            bed.send(0, How::Short, message, 0);
        }
        let start = Instant::now();
        while bed.receiver().sink.messages.len() < expected.len() {
            assert!(start.elapsed() < WATCHDOG, "messages are missing");
            bed.sender().events(Duration::ZERO);
            let receiver = bed.receiver();
            receiver.events(Duration::ZERO);
            let before = receiver.sink.messages.len();
            receiver.progress(3);
            let got = receiver.sink.messages.len() - before;
            assert!(got <= 16, "{got} messages for a budget of 3");
            if (1..expected.len()).contains(&receiver.sink.messages.len()) && got > 0 {
                // All were sent before: some are left.
                assert!(!receiver.interface.arm());
                receiver.interface.disarm();
            }
        }
        assert!(
            bed.receiver().sink.messages == expected,
            "order or content differs"
        );
    }

    pub(super) fn wake(subject: &Subject) {
        let mut bed = Bed::new(subject, 3);
        for seed in 0..2000 {
            let start = Instant::now();
            let receiver = bed.receiver();
            while !receiver.interface.arm() {
                receiver.pass();
                assert!(start.elapsed() < WATCHDOG, "never ready to park");
            }
            let length = bed.fitting([8, 300, 20_000][seed / 3 % 3]);
            let message = bed.message(seed % 3, seed, length);
            bed.send(seed % 3, How::Bcopy, &message, 0);
            // Looks only when it is woken.
            loop {
                let receiver = bed.receiver();
                assert!(receiver.events(WATCHDOG) > 0, "message {seed} woke nobody");
                receiver.interface.disarm();
                while receiver.progress(64) > 0 {}
                if !receiver.sink.messages.is_empty() {
                    break;
                }
                while !receiver.interface.arm() {
                    receiver.progress(64);
                }
            }
            assert_eq!(bed.receiver().sink.messages.pop(), Some(message));
        }
    }
}

macro_rules! tests {
    ($subject:expr; $($name:ident)*) => {
        $(#[test]
        fn $name() {
            super::scenario::$name(&$subject);
        })*
    };
}

/// One test for each scenario, over one transport.
macro_rules! conformance {
    ($module:ident, $subject:expr) => {
        mod $module {
            tests! { $subject;
                sizes order full_then_writable long_zcopy_then_short discard many_links detach refuse peer_drop
                peer_drop_within_a_payload send_to_a_dead_peer small_budget wake
            }
        }
    };
}

const TCP: Subject = Subject {
    transport: || Box::new(tcp::Tcp::new(tcp::TcpOptions::default())),
    channel: Some(|| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let channel = |stream: std::net::TcpStream| {
            stream.set_nonblocking(true).unwrap();
            Channel::tcp(tokio::net::TcpStream::from_std(stream).unwrap())
        };
        (channel(near), channel(far))
    }),
};
conformance!(over_tcp, super::TCP);

const OWN: Subject = Subject {
    transport: || Box::new(Loopback),
    channel: None,
};
conformance!(over_self, super::OWN);

const SHM: Subject = Subject {
    transport: || Box::new(shm::Shm::default()),
    channel: Some(|| {
        let (near, far) = tokio::net::UnixStream::pair().unwrap();
        (Channel::unix(near), Channel::unix(far))
    }),
};
conformance!(over_shm, super::SHM);

const SHM_WITHOUT_PIDFD: Subject = Subject {
    transport: || {
        let options = shm::ShmOptions { use_pidfd: false };
        Box::new(shm::Shm::new(options))
    },
    channel: SHM.channel,
};
conformance!(over_shm_without_pidfd, super::SHM_WITHOUT_PIDFD);

const TCP_WITH_CHECKSUMS: Subject = Subject {
    transport: || {
        Box::new(tcp::Tcp::new(tcp::TcpOptions {
            checksums: true,
            ..tcp::TcpOptions::default()
        }))
    },
    channel: TCP.channel,
};
conformance!(over_tcp_with_checksums, super::TCP_WITH_CHECKSUMS);

#[cfg(feature = "tls")]
#[path = "../../tests/tls/certificates.rs"]
mod certificates;

#[cfg(feature = "tls")]
const TLS: Subject = Subject {
    transport: || {
        Box::new(tcp::Tcp::new(tcp::TcpOptions {
            tls: true,
            ..tcp::TcpOptions::default()
        }))
    },
    channel: Some(|| {
        let authority = certificates::Authority::new();
        let shown = authority.issue(&["127.0.0.1"]);
        let tls = super::tls::Tls::new(authority.client(None), authority.server(&shown, false));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let near = std::net::TcpStream::connect(address).unwrap();
        let (far, _) = listener.accept().unwrap();
        let dialled = tls.dial(false, None, address.ip()).unwrap();
        let mut ends = [(near, dialled), (far, tls.accept().unwrap())];
        for (stream, _) in &ends {
            stream.set_nonblocking(true).unwrap();
        }
        let start = Instant::now();
        while ends
            .iter()
            .any(|(_, session)| session.is_handshaking() || session.wants_write())
        {
            assert!(start.elapsed() < WATCHDOG, "the handshake hangs");
            for (stream, session) in &mut ends {
                session.flush(stream).unwrap();
                if session.is_handshaking() {
                    match session.shake(stream) {
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                        result => result.unwrap(),
                    }
                }
            }
        }
        let [near, far] = ends.map(|(stream, session)| {
            Channel::secured(tokio::net::TcpStream::from_std(stream).unwrap(), session)
        });
        (near, far)
    }),
};
#[cfg(feature = "tls")]
conformance!(over_tls, super::TLS);

/// Over the emulated devices, which stand beside the test's executable, or over those of the virtual machine.
const RC_VERBS: Subject = Subject {
    transport: || {
        let program = std::env::current_exe().unwrap();
        let emulated = std::env::var_os("RDMA_VM").is_none();
        let options = verbs::RcOptions {
            library: emulated.then(|| program.with_file_name("libwharf_emulated_verbs.so")),
            ..verbs::RcOptions::default()
        };
        Box::new(verbs::RcVerbs::new(options))
    },
    channel: TCP.channel,
};
conformance!(over_rc_verbs, super::RC_VERBS);
