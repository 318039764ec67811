//! Two workers as far as a transport sees of them: what they write down, and how they are driven.
//!
//! # Safety
//! Payloads and places are vectors that the bed and its recorders keep until after the links are gone.
#![allow(unsafe_code)]

use std::{
    collections::HashMap,
    net::{TcpListener, TcpStream},
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use mio::{Events, Interest, Poll, Token, unix::SourceFd};

use super::{Ends, Subject};
use crate::{
    error::{Error, ErrorKind, Result},
    sys::identity::identity,
    transport::{
        Connected, Connector, Interface, Link, Opened, PeerInfo, Place, RawSlice, Registry, Role,
        SendError, Sink, Zcopy, channel::Channel,
    },
    types::LinkId,
};

/// Longest wait for anything.
pub(super) const WATCHDOG: Duration = Duration::from_secs(60);
/// The transport's high bits of a token.
const BASE: usize = 5 << Registry::TOKEN_BITS;
const DOORBELL: Token = Token(usize::MAX >> 1);

#[derive(Debug, PartialEq, Eq, Clone)]
pub(super) struct Message {
    pub(super) from: LinkId,
    pub(super) id: u8,
    pub(super) header: u64,
    pub(super) body: Vec<u8>,
}

/// What becomes of long payloads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    Whole,
    Memory,
    Discard,
}

/// A sink that writes everything down.
pub(super) struct Recorder {
    pub(super) policy: Policy,
    /// Links whose next message is refused.
    pub(super) refuse: Vec<LinkId>,
    pub(super) messages: Vec<Message>,
    /// Messages whose payload is being placed, by token; the prefix is the beginning of the body.
    pub(super) places: HashMap<u64, (Message, usize)>,
    next: u64,
    pub(super) placed: usize,
    pub(super) discarded: usize,
    pub(super) sent: Vec<(LinkId, u64)>,
    pub(super) writable: Vec<LinkId>,
    /// Writable links that have not been flushed yet.
    to_flush: Vec<LinkId>,
    pub(super) failed: Vec<(LinkId, ErrorKind)>,
    /// Segments that the peer has passed, and of which length they are said to be.
    pub(super) shared: Vec<(LinkId, u64, OwnedFd, u64)>,
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
                let address = self.places.get_mut(&token).expect("it works").0.body[prefix.len()..]
                    .as_mut_ptr();
                Ok(Place::Memory { address, token })
            }
        }
    }

    fn placed(&mut self, from: LinkId, token: u64) {
        self.check(from).expect("it works");
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

    fn shared(&mut self, from: LinkId, segment_id: u64, fd: OwnedFd, length: u64) {
        self.check(from).ok();
        self.shared.push((from, segment_id, fd, length));
    }

    fn failed(&mut self, from: LinkId, error: Error) {
        self.check(from).ok();
        self.failed.push((from, error.kind()));
    }
}

/// One worker, as far as a transport sees of it.
pub(super) struct Node {
    pub(super) links: HashMap<LinkId, Box<dyn Link>>,
    pub(super) interface: Box<dyn Interface>,
    connector: Arc<dyn Connector>,
    poll: Poll,
    pub(super) sink: Recorder,
}

impl Node {
    fn new(subject: &Subject) -> Self {
        let transport = (subject.transport)();
        transport.probe().expect("it works");
        let Opened {
            mut interface,
            connector,
        } = transport.open().expect("it works");
        let poll = Poll::new().expect("it works");
        interface
            .register(Registry {
                registry: poll.registry().try_clone().expect("it works"),
                base: BASE,
            })
            .expect("it works");
        if let Some(bell) = interface.doorbell() {
            poll.registry()
                .register(
                    &mut SourceFd(&bell.as_raw_fd()),
                    DOORBELL,
                    Interest::READABLE,
                )
                .expect("it works");
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
            shared: Vec::new(),
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
    pub(super) fn events(&mut self, wait: Duration) -> usize {
        let mut events = Events::with_capacity(64);
        match self.poll.poll(&mut events, Some(wait)) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => result.expect("it works"),
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
    pub(super) fn progress(&mut self, budget: usize) -> usize {
        let happened = self.interface.progress(budget, &mut self.sink);
        for link in std::mem::take(&mut self.sink.to_flush) {
            if let Some(link) = self.links.get_mut(&link) {
                link.flush(&mut self.sink);
            }
        }
        happened
    }

    pub(super) fn pass(&mut self) -> usize {
        self.events(Duration::ZERO);
        self.progress(64)
    }

    /// Ends a link as the worker does.
    pub(super) fn close(&mut self, link: LinkId) {
        self.interface.detach(link);
        self.links.remove(&link).expect("it works");
    }
}

/// How to send.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    Short,
    Bcopy,
    Zcopy,
}

/// Two workers with links between them, or one with links to itself.
pub(super) struct Bed {
    pub(super) nodes: Vec<Node>,
    /// Sending and receiving end of each link.
    pub(super) ends: Vec<(LinkId, LinkId)>,
    /// Payloads of zero-copy sends. Behind the nodes, so that they are dropped after the links.
    lent: Vec<Vec<u8>>,
}

impl Bed {
    pub(super) fn new(subject: &Subject, links: u32) -> Self {
        let count = if subject.has_peer() { 2 } else { 1 };
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
        let channel = match &subject.ends {
            Ends::Over(channel) => channel,
            Ends::Itself(connected) => {
                let link = self.nodes[0]
                    .interface
                    .attach(out, connected())
                    .expect("it works");
                self.nodes[0].links.insert(out, link);
                self.ends.push((out, out));
                return;
            }
        };
        let [client, server] = [0, 1].map(|node| Arc::clone(&self.nodes[node].connector));
        let (client, server) = connect(&*client, &*server, channel).expect("it works");
        for (node, id, connected) in [(0, out, client), (1, into, server)] {
            let link = self.nodes[node]
                .interface
                .attach(id, connected)
                .expect("it works");
            self.nodes[node].links.insert(id, link);
        }
        self.ends.push((out, into));
    }

    pub(super) fn sender(&mut self) -> &mut Node {
        &mut self.nodes[0]
    }

    pub(super) fn receiver(&mut self) -> &mut Node {
        self.nodes.last_mut().expect("it works")
    }

    /// `length`, or the longest message that every way of copying takes.
    pub(super) fn fitting(&mut self, length: usize) -> usize {
        length.min(self.out(0).attributes().max_bcopy)
    }

    /// The cheapest way of copying for a message of this length.
    pub(super) fn copying(&mut self, length: usize) -> How {
        if length <= self.out(0).attributes().max_short {
            How::Short
        } else {
            How::Bcopy
        }
    }

    /// Whether payloads are placed where the sink says; else they are delivered from the transport's own memory.
    pub(super) fn places(&mut self) -> bool {
        self.out(0).attributes().max_zcopy > 0
    }

    pub(super) fn out(&mut self, number: usize) -> &mut Box<dyn Link> {
        let id = self.ends[number].0;
        self.sender().links.get_mut(&id).expect("it works")
    }

    /// Progresses both ends until `done`.
    pub(super) fn until(&mut self, what: &str, done: impl Fn(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < WATCHDOG, "waited too long: {what}");
            if self.nodes.iter_mut().map(Node::pass).sum::<usize>() == 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Until the receiver has `count` messages.
    pub(super) fn received(&mut self, count: usize) {
        self.until("messages", |bed| {
            bed.receiver().sink.messages.len() >= count
        });
        assert_eq!(self.receiver().sink.messages.len(), count);
    }

    /// Tries to send one message. A token, which is its position in `lent`, is pending after a zero-copy send.
    pub(super) fn try_send(
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
                let payload = self.lent.last().expect("it works");
                let raw = RawSlice {
                    address: payload.as_ptr(),
                    length: payload.len(),
                };
                // SAFETY: `lent` keeps the bytes unchanged until the bed is dropped, after the links.
                let done = unsafe { self.out(link).am_zcopy(id, header, before, raw, token) };
                if !matches!(done, Ok(Zcopy::Pending)) {
                    // Nothing refers to it any more: changing it must not show at the other end.
                    self.lent.last_mut().expect("it works").fill(0xee);
                }
                done.map(|done| (done == Zcopy::Pending).then_some(token))
            }
        }
    }

    /// Sends one message, progressing while there is no room.
    pub(super) fn send(
        &mut self,
        link: usize,
        how: How,
        message: &Message,
        prefix: usize,
    ) -> Option<u64> {
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

    pub(super) fn flush(&mut self, link: usize) {
        let id = self.ends[link].0;
        let Node { links, sink, .. } = self.sender();
        links.get_mut(&id).expect("it works").flush(sink);
    }

    /// A message as the receiving end of `link` will see it, with a body that tells `seed`.
    pub(super) fn message(&self, link: usize, seed: usize, length: usize) -> Message {
        let body = bytes(seed, length);
        Message {
            from: self.ends[link].1,
            id: (seed % 200) as u8,
            header: (seed as u64) << 32 | length as u64,
            body,
        }
    }
}

/// Bytes that are others for each seed and repeat after a prime number. Copied by pieces: one by one they take longer than all else where nothing is
/// optimised.
pub(in crate::transport) fn bytes(seed: usize, length: usize) -> Vec<u8> {
    const PERIOD: usize = 65_521;
    static ALL: OnceLock<Vec<u8>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let byte = |at: usize| (at + (at >> 8)) as u8;
        (0..PERIOD).map(byte).collect()
    });
    let mut from = seed.wrapping_mul(7919) % PERIOD;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let to = PERIOD.min(from + length - bytes.len());
        bytes.extend_from_slice(&all[from..to]);
        from = 0;
    }
    bytes
}

/// Sets a link up over a channel.
fn connect(
    client: &dyn Connector,
    server: &dyn Connector,
    channel: &dyn Fn() -> (Channel, Channel),
) -> Result<(Connected, Connected)> {
    let peer = PeerInfo {
        identity: identity().clone(),
        name: "the other end".to_owned(),
        certificates: None,
        origin: crate::transport::channel::Origin::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("it works");
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

/// Both ends of a connection over the loopback interface.
pub(super) fn tcp_streams() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let near = TcpStream::connect(listener.local_addr().expect("its address"));
    let (far, _) = listener.accept().expect("whoever connects");
    [near.expect("it listens"), far]
}
