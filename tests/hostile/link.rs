//! A transport whose other end is the test: what it says is put into a queue, what it is told is
//! written down, long payloads arrive in pieces, and lent memory is given back late.
//!
//! # Safety
//! A place is written within the bounds that the sink gave, until it was reported as filled or the
//! link was detached. Lent memory is read before it is reported as sent.
#![allow(unsafe_code)]

use std::{
    collections::{HashMap, VecDeque},
    os::fd::OwnedFd,
    slice,
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use wharf::{
    Error, ErrorKind, LinkId, Result,
    transport::{
        Connected, Connector, Interface, Link, LinkAttributes, Opened, PeerInfo, Place, RawSlice,
        Reach, Registry, Role, SendError, Sink, Transport, Zcopy, channel::Channel,
    },
};

/// A message, in either direction.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) id: u8,
    pub(crate) header: u64,
    /// Bytes of the body that are told before the receiver is asked where the others go.
    pub(crate) prefix: usize,
    pub(crate) body: Vec<u8>,
}

/// A payload on its way into memory that the receiver gave.
#[derive(Debug)]
struct Landing {
    address: *mut u8,
    token: u64,
    bytes: Vec<u8>,
    done: usize,
}

/// Memory that the sender has lent.
#[derive(Debug)]
struct Lent {
    id: u8,
    header: u64,
    prefix: Vec<u8>,
    payload: RawSlice,
    token: u64,
}

/// One connection, as both sides have it.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) attributes: LinkAttributes,
    /// From this length on the receiver is asked where a payload goes.
    pub(crate) long: usize,
    /// What the test says.
    pub(crate) inbound: VecDeque<Message>,
    /// What it is told.
    pub(crate) sent: Vec<Message>,
    /// Descriptors that the test gives: which segment they are said to be, and of which length.
    pub(crate) shares: Vec<(OwnedFd, u64, u64)>,
    /// Messages that are taken before the link is full.
    pub(crate) room: usize,
    /// Bytes of payloads that arrive before a long one stalls.
    pub(crate) flow: usize,
    /// The receiver found something against the protocol.
    pub(crate) refused: bool,
    /// The worker has let go of the link.
    pub(crate) gone: bool,
    full: bool,
    landing: Option<Landing>,
    lent: VecDeque<Lent>,
    /// The link breaks when it is looked at next.
    pub(crate) breaks: bool,
}

// SAFETY: the addresses are used as the contract of links says, whichever thread it is.
unsafe impl Send for Wire {}

impl Wire {
    fn new() -> Self {
        Self {
            attributes: LinkAttributes {
                transport: NAME,
                max_short: 48,
                max_bcopy: 8192,
                max_zcopy: 0,
            },
            long: 4096,
            inbound: VecDeque::new(),
            sent: Vec::new(),
            shares: Vec::new(),
            room: usize::MAX,
            flow: usize::MAX,
            refused: false,
            gone: false,
            full: false,
            landing: None,
            lent: VecDeque::new(),
            breaks: false,
        }
    }

    /// Ends the first loans: their memory is the sender's again.
    fn settle(&mut self, count: usize, from: LinkId, tokens: &mut Vec<(LinkId, u64)>) {
        for _ in 0..count.min(self.lent.len()) {
            let Some(lent) = self.lent.pop_front() else {
                return;
            };
            // SAFETY: lent until it is reported as sent, after this.
            let payload =
                unsafe { slice::from_raw_parts(lent.payload.address, lent.payload.length) };
            self.sent.push(Message {
                id: lent.id,
                header: lent.header,
                prefix: lent.prefix.len(),
                body: [&lent.prefix, payload].concat(),
            });
            tokens.push((from, lent.token));
        }
    }

    fn take(&mut self) -> Result<(), SendError> {
        if self.room == 0 {
            self.full = true;
            return Err(SendError::Full);
        }
        self.room -= 1;
        Ok(())
    }
}

pub(crate) const NAME: &str = "hostile";

/// What is shared by all faces of one worker's transport.
#[derive(Debug, Default)]
struct Wires {
    /// Those of links that are not attached yet.
    made: Mutex<Vec<Arc<Mutex<Wire>>>>,
}

/// The transport of one context.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hostile(Arc<Wires>);

impl Hostile {
    /// The wire of the connection that was made last.
    pub(crate) fn newest(&self) -> Arc<Mutex<Wire>> {
        let mut made = self.0.made.lock();
        let newest = made.pop().expect("a connection");
        made.clear();
        newest
    }
}

impl Transport for Hostile {
    fn name(&self) -> &'static str {
        NAME
    }
    fn reach(&self) -> Reach {
        Reach::Host
    }
    fn probe(&self) -> Result<()> {
        Ok(())
    }
    fn open(&self) -> Result<Opened> {
        Ok(Opened {
            interface: Box::new(HostileInterface::default()),
            connector: Arc::new(HostileConnector(self.clone())),
        })
    }
}

#[derive(Debug)]
struct HostileConnector(Hostile);

#[async_trait]
impl Connector for HostileConnector {
    fn can_use(&self, _channel: &Channel, _peer: &PeerInfo) -> Result<()> {
        Ok(())
    }
    async fn connect(
        &self,
        _channel: &mut Channel,
        _role: Role,
        _peer: &PeerInfo,
    ) -> Result<Connected> {
        let wire = Arc::new(Mutex::new(Wire::new()));
        self.0.0.made.lock().push(wire.clone());
        Ok(Connected(Box::new(wire)))
    }
}

#[derive(Debug, Default)]
struct HostileInterface {
    wires: HashMap<LinkId, Arc<Mutex<Wire>>>,
}

/// What the next pass reports of one link.
enum Next {
    Message(Message),
    Placed(u64),
    Nothing,
}

impl HostileInterface {
    fn next(wire: &mut Wire) -> Next {
        if let Some(landing) = &mut wire.landing {
            let count = wire.flow.min(landing.bytes.len() - landing.done);
            wire.flow -= count;
            let part = &landing.bytes[landing.done..landing.done + count];
            // SAFETY: within what the sink gave for all of `bytes`, and not reported as filled yet.
            unsafe {
                let to = landing.address.add(landing.done);
                to.copy_from_nonoverlapping(part.as_ptr(), count);
            }
            landing.done += count;
            if landing.done < landing.bytes.len() {
                return Next::Nothing;
            }
            let token = landing.token;
            wire.landing = None;
            return Next::Placed(token);
        }
        match wire.inbound.pop_front() {
            Some(message) => Next::Message(message),
            None => Next::Nothing,
        }
    }

    fn deliver(
        id: LinkId,
        wire: &Mutex<Wire>,
        message: Message,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        let long = wire.lock().long;
        let prefix = message.prefix.min(message.body.len());
        let (head, payload) = message.body.split_at(prefix);
        if payload.len() <= long {
            return sink.message(id, message.id, message.header, &message.body);
        }
        match sink.place(id, message.id, message.header, head, payload.len())? {
            Place::Memory { address, token } => {
                wire.lock().landing = Some(Landing {
                    address,
                    token,
                    bytes: payload.to_vec(),
                    done: 0,
                });
            }
            Place::Whole => sink.message(id, message.id, message.header, &message.body)?,
            Place::Discard => {}
        }
        Ok(())
    }
}

impl Interface for HostileInterface {
    fn attach(&mut self, id: LinkId, connected: Connected) -> Result<Box<dyn Link>> {
        let wire = connected.0.downcast::<Arc<Mutex<Wire>>>();
        let wire = *wire.expect("a wire of this transport");
        self.wires.insert(id, wire.clone());
        Ok(Box::new(HostileLink(wire)))
    }

    fn detach(&mut self, id: LinkId) {
        if let Some(wire) = self.wires.remove(&id) {
            let mut wire = wire.lock();
            wire.gone = true;
            // Nothing of it is used any more.
            wire.landing = None;
            wire.lent.clear();
        }
    }

    fn register(&mut self, _registry: Registry) -> Result<()> {
        Ok(())
    }

    fn progress(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        let mut happened = 0;
        let mut over = Vec::new();
        for (&id, wire) in &self.wires {
            if wire.lock().refused {
                continue;
            }
            let shares = std::mem::take(&mut wire.lock().shares);
            for (fd, segment, length) in shares {
                happened += 1;
                sink.shared(id, segment, fd, length);
            }
            for _ in 0..budget {
                let next = Self::next(&mut wire.lock());
                let result = match next {
                    Next::Message(message) => Self::deliver(id, wire, message, sink),
                    Next::Placed(token) => {
                        sink.placed(id, token);
                        Ok(())
                    }
                    Next::Nothing => break,
                };
                happened += 1;
                if result.is_err() {
                    wire.lock().refused = true;
                    break;
                }
            }
            let mut wire = wire.lock();
            if wire.full && wire.room > 0 {
                wire.full = false;
                happened += 1;
                over.push((id, None));
            }
            if std::mem::take(&mut wire.breaks) && !wire.refused {
                wire.refused = true;
                happened += 1;
                over.push((
                    id,
                    Some(Error::new(ErrorKind::ConnectionReset, "the test is over")),
                ));
            }
        }
        for (id, error) in over {
            match error {
                None => sink.writable(id),
                Some(error) => sink.failed(id, error),
            }
        }
        let mut tokens = Vec::new();
        for (&id, wire) in &self.wires {
            let mut wire = wire.lock();
            let count = wire.flow.min(2);
            if !wire.refused {
                wire.settle(count, id, &mut tokens);
            }
        }
        happened += tokens.len();
        for (id, token) in tokens {
            sink.sent(id, token);
        }
        happened
    }

    fn arm(&mut self) -> bool {
        self.wires.values().all(|wire| {
            let wire = wire.lock();
            let moves = match &wire.landing {
                Some(_) => wire.flow > 0,
                None => !wire.inbound.is_empty() || !wire.lent.is_empty() && wire.flow > 0,
            };
            wire.refused || !moves
        })
    }

    fn disarm(&mut self) {}
}

#[derive(Debug)]
struct HostileLink(Arc<Mutex<Wire>>);

impl Link for HostileLink {
    fn attributes(&self) -> LinkAttributes {
        self.0.lock().attributes
    }

    fn am_short(&mut self, id: u8, header: u64, body: &[u8]) -> Result<(), SendError> {
        assert!(body.len() <= 48, "a short message of {} bytes", body.len());
        self.am_bcopy(id, header, &[], body)
    }

    fn am_bcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        let mut wire = self.0.lock();
        let length = prefix.len() + payload.len();
        assert!(
            length <= wire.attributes.max_bcopy,
            "a message of {length} bytes"
        );
        wire.take()?;
        wire.sent.push(Message {
            id,
            header,
            prefix: prefix.len(),
            body: [prefix, payload].concat(),
        });
        Ok(())
    }

    unsafe fn am_zcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: RawSlice,
        token: u64,
    ) -> Result<Zcopy, SendError> {
        let mut wire = self.0.lock();
        assert!(payload.length <= wire.attributes.max_zcopy);
        wire.take()?;
        wire.lent.push_back(Lent {
            id,
            header,
            prefix: prefix.to_vec(),
            payload,
            token,
        });
        Ok(Zcopy::Pending)
    }

    fn flush(&mut self, _sink: &mut dyn Sink) {}

    fn is_flushed(&self) -> bool {
        self.0.lock().lent.is_empty()
    }
}
