//! Messages to oneself: chosen when both ends of a connection are one worker.
//!
//! Comes in: messages of a worker's own links. Goes out: the same messages on the same links, at the next pass. Uses
//! `transport::contract`. A link needs no set-up over a channel: [`Loopback::connected`] is attached as it is. Limits: no access
//! to remote memory; a bounded number of messages and copied bytes wait.
//! Tests: `transport/conformance/`.
//!
//! # Safety
//! A long zero-copy payload waits in the queue as a raw slice. `am_zcopy`'s contract keeps it valid until its token was reported as
//! sent or the link was dropped: it is taken out of the queue right before the one is, and with the link in the other case.
//! Destinations are valid until `placed` is called, which happens right after the copy.
#![allow(unsafe_code)]

use std::{
    collections::{HashSet, VecDeque},
    mem,
    os::fd::{AsFd, AsRawFd},
    ptr, slice,
    sync::Arc,
};

use async_trait::async_trait;
use mio::{Interest, unix::SourceFd};

use crate::{
    ErrorKind,
    error::{Error, Result},
    sys::eventfd::EventFd,
    transport::{
        Connected, Connector, Interface, Link, LinkAttributes, Opened, PeerInfo, Place, RawSlice,
        Reach, Registry, Role, SendError, Sink, Transport, Zcopy, channel::Channel,
    },
    types::LinkId,
    util::lock::Mutex,
};

/// Messages that may wait.
const MESSAGES: usize = 4096;
/// Copied bytes that may wait.
const BYTES: usize = 16 << 20;
/// Lent bytes that may wait; past them no more are taken, so that a short message does not wait for many.
const LENT: usize = 256 << 10;
/// Longest body that waits without an allocation of its own.
const INLINE: usize = 48;
/// Longest payload that is always delivered whole; of a longer one the sink is asked where it goes.
const LONG: usize = 4096;
/// Longest body of a copied message.
const MAX_BCOPY: usize = 64 << 10;

/// The transport `self`.
#[derive(Debug, Default)]
pub(crate) struct Loopback;

impl Loopback {
    /// The name in configuration.
    pub(crate) const NAME: &'static str = "self";

    /// A link to oneself, for this transport's `attach`.
    pub(crate) fn connected() -> Connected {
        Connected(Box::new(ToSelf))
    }
}

impl Transport for Loopback {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn reach(&self) -> Reach {
        Reach::Worker
    }

    fn probe(&self) -> Result<()> {
        Ok(())
    }

    fn open(&self) -> Result<Opened> {
        let bell = EventFd::new().map_err(|error| Error::io("creating an eventfd", error))?;
        let queue = Mutex::new(Queue {
            messages: VecDeque::new(),
            bytes: 0,
            lent: 0,
            starved: Vec::new(),
            armed: false,
        });
        Ok(Opened {
            interface: Box::new(LoopbackInterface {
                shared: Arc::new(Shared { queue, bell }),
                links: HashSet::new(),
            }),
            connector: Arc::new(NoConnector),
        })
    }
}

/// What [`LoopbackInterface`] attaches.
struct ToSelf;

/// There is nobody to connect to.
#[derive(Debug)]
struct NoConnector;

#[async_trait]
impl Connector for NoConnector {
    fn can_use(&self, _channel: &Channel, _peer: &PeerInfo) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "the peer is another worker").over(Loopback::NAME))
    }

    async fn connect(
        &self,
        channel: &mut Channel,
        _role: Role,
        peer: &PeerInfo,
    ) -> Result<Connected> {
        self.can_use(channel, peer).map(|()| Loopback::connected())
    }
}

/// What an interface shares with its links. Both run under the worker's lock, so this one is never waited for.
#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// Rung when a message comes while the worker is parked. Never read: polling is edge-triggered.
    bell: EventFd,
}

#[derive(Debug)]
struct Queue {
    messages: VecDeque<Message>,
    /// Copied bytes in them.
    bytes: usize,
    /// Lent bytes in them.
    lent: usize,
    /// Links that found no room.
    starved: Vec<LinkId>,
    armed: bool,
}

#[derive(Debug)]
struct Message {
    link: LinkId,
    id: u8,
    header: u64,
    /// How much of the body is prefix.
    prefix: usize,
    body: Body,
    /// The payload, when it was not copied.
    lent: Option<(RawSlice, u64)>,
}

/// Copied bytes.
#[derive(Debug)]
enum Body {
    Inline { bytes: [u8; INLINE], length: usize },
    Heap(Vec<u8>),
}

impl Body {
    fn new(prefix: &[u8], payload: &[u8]) -> Self {
        let length = prefix.len() + payload.len();
        if length > INLINE {
            return Self::Heap([prefix, payload].concat());
        }
        let mut bytes = [0; INLINE];
        bytes[..prefix.len()].copy_from_slice(prefix);
        bytes[prefix.len()..length].copy_from_slice(payload);
        Self::Inline { bytes, length }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline { bytes, length } => &bytes[..*length],
            Self::Heap(bytes) => bytes,
        }
    }
}

/// The receiving half.
#[derive(Debug)]
struct LoopbackInterface {
    shared: Arc<Shared>,
    links: HashSet<LinkId>,
}

impl Interface for LoopbackInterface {
    fn attach(&mut self, id: LinkId, connected: Connected) -> Result<Box<dyn Link>> {
        connected.of::<ToSelf>(Loopback::NAME)?;
        if !self.links.insert(id) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a link is attached under this id already",
            ));
        }
        Ok(Box::new(LoopbackLink {
            id,
            shared: Arc::clone(&self.shared),
        }))
    }

    fn detach(&mut self, id: LinkId) {
        self.links.remove(&id);
        self.shared.queue.lock().forget(id);
    }

    fn register(&mut self, registry: Registry) -> Result<()> {
        let fd = self.shared.bell.as_fd().as_raw_fd();
        registry.register(&mut SourceFd(&fd), 0, Interest::READABLE)
    }

    fn progress(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        let mut happened = 0;
        let mut spent = 0;
        while spent < budget {
            // The sink may send: no lock is held while it is called.
            let Some(message) = self.shared.queue.lock().take() else {
                break;
            };
            let link = message.link;
            happened += 1;
            // Long ones count for more: a pass is short.
            spent += 1 + (message.lent_bytes() >> 16);
            if self.links.contains(&link) && message.deliver(sink).is_err() {
                self.detach(link);
            }
        }
        let mut queue = self.shared.queue.lock();
        if !queue.starved.is_empty()
            && queue.messages.len() <= MESSAGES / 2
            && queue.bytes <= BYTES / 2
            && queue.lent < LENT
        {
            let starved = mem::take(&mut queue.starved);
            drop(queue);
            happened += starved.len();
            for link in starved {
                sink.writable(link);
            }
        }
        happened
    }

    fn arm(&mut self) -> bool {
        let mut queue = self.shared.queue.lock();
        queue.armed = queue.messages.is_empty();
        queue.armed
    }

    fn disarm(&mut self) {
        self.shared.queue.lock().armed = false;
    }
}

impl Queue {
    fn take(&mut self) -> Option<Message> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.body.bytes().len();
        self.lent -= message.lent_bytes();
        Some(message)
    }

    /// Drops what a link has sent and wants.
    fn forget(&mut self, link: LinkId) {
        self.messages.retain(|message| message.link != link);
        self.bytes = self
            .messages
            .iter()
            .map(|message| message.body.bytes().len())
            .sum();
        self.lent = self.messages.iter().map(Message::lent_bytes).sum();
        self.starved.retain(|&starved| starved != link);
    }
}

impl Message {
    fn lent_bytes(&self) -> usize {
        self.lent.map_or(0, |(lent, _)| lent.length)
    }

    /// Hands the message to the sink.
    fn deliver(self, sink: &mut dyn Sink) -> Result<()> {
        let Self {
            link,
            id,
            header,
            prefix,
            body,
            lent,
        } = self;
        let body = body.bytes();
        let (prefix, copied) = body.split_at(prefix);
        let (source, token) = match lent {
            Some((source, token)) => (source, Some(token)),
            None => (
                RawSlice {
                    address: copied.as_ptr(),
                    length: copied.len(),
                },
                None,
            ),
        };
        let delivered = if source.length <= LONG {
            sink.message(link, id, header, body)
        } else {
            match sink.place(link, id, header, prefix, source.length) {
                Ok(Place::Memory { address, token }) => {
                    // SAFETY: the source is ours or lent and not yet reported as sent; the sink gave room for its length. They may
                    // be the same memory, which `copy` allows.
                    unsafe { ptr::copy(source.address, address, source.length) };
                    sink.placed(link, token);
                    Ok(())
                }
                Ok(Place::Whole) if token.is_none() => sink.message(link, id, header, body),
                Ok(Place::Whole) => {
                    // SAFETY: lent, valid and unchanged until it is reported as sent, below.
                    let payload = unsafe { slice::from_raw_parts(source.address, source.length) };
                    if prefix.is_empty() {
                        sink.message(link, id, header, payload)
                    } else {
                        sink.message(link, id, header, &[prefix, payload].concat())
                    }
                }
                Ok(Place::Discard) => Ok(()),
                Err(error) => Err(error),
            }
        };
        if delivered.is_ok()
            && let Some(token) = token
        {
            sink.sent(link, token);
        }
        delivered
    }
}

/// The sending half.
#[derive(Debug)]
struct LoopbackLink {
    id: LinkId,
    shared: Arc<Shared>,
}

impl LoopbackLink {
    fn push(
        &self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
        lent: Option<(RawSlice, u64)>,
    ) -> Result<(), SendError> {
        let mut queue = self.shared.queue.lock();
        let full = queue.messages.len() >= MESSAGES
            || queue.bytes >= BYTES
            || lent.is_some() && queue.lent >= LENT;
        if full {
            if !queue.starved.contains(&self.id) {
                queue.starved.push(self.id);
            }
            return Err(SendError::Full);
        }
        let body = Body::new(prefix, payload);
        queue.bytes += body.bytes().len();
        queue.lent += lent.map_or(0, |(lent, _)| lent.length);
        queue.messages.push_back(Message {
            link: self.id,
            id,
            header,
            prefix: prefix.len(),
            body,
            lent,
        });
        if mem::take(&mut queue.armed) {
            self.shared.bell.ring();
        }
        Ok(())
    }
}

impl Link for LoopbackLink {
    fn attributes(&self) -> LinkAttributes {
        LinkAttributes {
            transport: Loopback::NAME,
            max_short: LONG,
            max_bcopy: MAX_BCOPY,
            max_zcopy: isize::MAX.unsigned_abs(),
        }
    }

    fn am_short(&mut self, id: u8, header: u64, body: &[u8]) -> Result<(), SendError> {
        self.push(id, header, &[], body, None)
    }

    fn am_bcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.push(id, header, prefix, payload, None)
    }

    unsafe fn am_zcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: RawSlice,
        token: u64,
    ) -> Result<Zcopy, SendError> {
        if payload.length > LONG {
            return self
                .push(id, header, prefix, &[], Some((payload, token)))
                .map(|()| Zcopy::Pending);
        }
        let bytes = match payload.length {
            0 => &[],
            // SAFETY: the caller keeps it valid and unchanged during this call.
            length => unsafe { slice::from_raw_parts(payload.address, length) },
        };
        self.push(id, header, prefix, bytes, None)
            .map(|()| Zcopy::Done)
    }

    fn flush(&mut self, _sink: &mut dyn Sink) {}

    fn is_flushed(&self) -> bool {
        !self
            .shared
            .queue
            .lock()
            .messages
            .iter()
            .any(|message| message.link == self.id)
    }
}

impl Drop for LoopbackLink {
    fn drop(&mut self) {
        self.shared.queue.lock().forget(self.id);
    }
}
