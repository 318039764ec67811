//! One connection of a worker: its link, what waits for room on it, and what both ends share.

use std::sync::Arc;

use tracing::Span;

use crate::{
    error::{Error, ErrorKind},
    protocol::{ANNOUNCEMENTS, EAGER_WINDOW, control, thresholds::Lending},
    sys::memfd::Mapping,
    transport::{
        Link, LinkAttributes, PeerInfo, SendError, cma::CmaPeer, loopback::Loopback, shm::Pair,
    },
    types::{EndpointId, LinkId, OpKey, WorkerId},
    util::waiters::Waiters,
    worker::{
        am::AmPeer,
        copy::Remote,
        layout::Requests,
        metrics::Counted,
        queue::{Lane, Queue},
        signal::Signals,
    },
};

/// What waits for room on a link, in order.
#[derive(Debug)]
pub(crate) enum Queued {
    /// The next step of an operation.
    Operation(OpKey),
    /// The next bytes of a stream.
    Stream(crate::worker::stream::StreamKey),
    /// A message of the protocol itself.
    Control {
        id: u8,
        header: u64,
        length: u8,
        body: [u8; 48],
    },
}

#[derive(Debug)]
pub(crate) enum Status {
    Open,
    /// Closed on this side: `CLOSE` goes out when all operations have ended.
    Closing {
        sent: bool,
    },
    /// Over; the link is gone.
    Closed(Error),
}

/// How the memory of the peer's process is reached directly, when it is.
pub(crate) struct OneCopy {
    pub(crate) pair: Arc<Pair>,
    pub(crate) cma: Option<CmaPeer>,
    /// Segments of the peer that are mapped here, the newest last.
    pub(crate) mapped: Vec<(u64, Arc<Mapping>)>,
    /// Segments of the peer that were asked for.
    pub(crate) asked: Vec<u64>,
    /// Own segments that the peer has.
    pub(crate) given: Vec<u64>,
    /// Own segments that were sent from before, and may be worth giving.
    pub(crate) seen: Vec<u64>,
}

impl OneCopy {
    /// Most segments of a peer that stay mapped.
    pub(crate) const MAX_MAPPED: usize = 64;

    /// How `length` bytes of the peer are reached: at `offset` of one of its segments, if that is mapped here (0 is none), else at their
    /// address in its process.
    pub(crate) fn reach(
        &self,
        segment: u64,
        offset: u64,
        length: usize,
        address: u64,
    ) -> Option<Remote> {
        let mapped = self.mapping(segment).and_then(|mapping| {
            let start = usize::try_from(offset).ok()?;
            (start.checked_add(length)? <= mapping.len())
                .then(|| Remote::Mapped(mapping.clone(), start))
        });
        mapped.or_else(|| self.cma.as_ref().map(|_| Remote::Address(address)))
    }

    /// Most bytes of them: address space, not memory.
    pub(crate) const MAX_MAPPED_BYTES: usize = 1 << 38;

    /// Lets go of the oldest mappings until there is room for another of `length` bytes.
    pub(crate) fn make_room(&mut self, length: usize) {
        let mut bytes: usize = self.mapped.iter().map(|(_, mapping)| mapping.len()).sum();
        while let Some((_, oldest)) = self.mapped.first()
            && (self.mapped.len() >= Self::MAX_MAPPED || bytes + length > Self::MAX_MAPPED_BYTES)
        {
            bytes -= oldest.len();
            self.mapped.remove(0);
        }
    }

    pub(crate) fn mapping(&self, segment: u64) -> Option<&Arc<Mapping>> {
        self.mapped
            .iter()
            .rev()
            .find(|(id, _)| *id == segment)
            .map(|(_, mapping)| mapping)
    }
}

pub(crate) struct Peer {
    pub(crate) id: EndpointId,
    pub(crate) slot: LinkId,
    pub(crate) interface: usize,
    /// `None` once the link is gone, and while it flushes.
    pub(crate) link: Option<Counted>,
    pub(crate) attributes: LinkAttributes,
    /// Longest tagged messages that go inline, and that go unasked.
    pub(crate) short: usize,
    pub(crate) eager: usize,
    /// What of a stream is announced.
    pub(crate) lending: Lending,
    pub(crate) worker: WorkerId,
    pub(crate) info: PeerInfo,
    pub(crate) transports: Vec<&'static str>,
    /// Transports that were to be set up first and could not be, and why.
    pub(crate) refused: Vec<(&'static str, String)>,
    /// From the set-up to the end.
    pub(crate) span: Span,
    pub(crate) one_copy: Option<OneCopy>,
    pub(crate) queue: Queue,
    pub(crate) status: Status,
    /// The peer has closed: why operations end from here on, while what was sent before goes out.
    pub(crate) reason: Option<Error>,
    /// Eager window: bytes out that the peer has not returned; bytes held here; bytes consumed here and not returned.
    pub(crate) eager_out: u64,
    pub(crate) eager_held: u64,
    pub(crate) eager_owed: u64,
    /// Messages announced to the peer that it has not matched; messages of the peer announced here and not matched.
    pub(crate) announced_out: usize,
    pub(crate) announced_held: usize,
    /// Posted operations of the window.
    pub(crate) posted: usize,
    /// Endpoints of it that users hold, clones not counted. The last one's drop closes the connection, once it is claimed.
    pub(crate) handles: usize,
    /// Somebody here made or accepted it. One that the peer made to this worker's address is the worker's until then.
    pub(crate) claimed: bool,
    /// Why a put failed whose future was over by then; the next flush tells.
    pub(crate) lost: Option<Error>,
    /// Credits of active messages.
    pub(crate) am: AmPeer,
    pub(crate) signals: Signals,
    pub(crate) streams: crate::worker::stream::PeerStreams,
    /// What this side moves for it that stops in pinned memory, or waits to.
    pub(crate) staged: usize,
    /// Why device memory of it is not opened here, once that was tried: by the accelerator's place in the context, each once.
    pub(crate) unrouted: Vec<(usize, Error)>,
    /// Requests for blocks, both ways.
    pub(crate) requests: Requests,
    /// Who waits for the end, and who for a place for another operation.
    pub(crate) ending: Waiters,
    pub(crate) ready: Waiters,
}

/// What may wait for room on a link before the peer, which reads none of it, is cut off.
pub(crate) const ANSWERS: usize = 1 << 17;

/// Operations and messages that may wait for room on a link while `ready()` still says yes.
const READY: usize = 16;

/// Consumed bytes of the window that are given back at once: a quarter of it.
pub(crate) const WINDOW_BACK: u64 = EAGER_WINDOW / 4;

/// From this size on one copy by the kernel is faster than two through the ring, which both ends make at the same time.
pub(crate) const ONE_COPY_FROM: usize = 128 << 10;

/// From this size on the owner of exposed memory is asked to copy along.
pub(crate) const JOIN_FROM: usize = 256 << 10;

/// What an eager message of `length` bytes costs of the window.
pub(crate) const fn eager_cost(length: usize) -> u64 {
    length as u64 + 64
}

/// The connection of a link, if it still is that link's: places are used again.
#[inline]
pub(crate) fn at(peers: &mut [Option<Peer>], link: LinkId) -> Option<&mut Peer> {
    peers
        .get_mut(link.index())?
        .as_mut()
        .filter(|peer| peer.slot == link)
}

/// What a connection is made of.
pub(crate) struct Made {
    pub(crate) id: EndpointId,
    pub(crate) slot: LinkId,
    pub(crate) interface: usize,
    pub(crate) link: Box<dyn Link>,
    /// Longest tagged messages that go inline, and that go unasked.
    pub(crate) short: usize,
    pub(crate) eager: usize,
    pub(crate) lending: Lending,
    pub(crate) worker: WorkerId,
    pub(crate) info: PeerInfo,
    pub(crate) transports: Vec<&'static str>,
    pub(crate) one_copy: Option<OneCopy>,
    pub(crate) handles: usize,
}

impl Peer {
    /// Whether there may be a way between its device memory and this side's: within one worker, or one host.
    pub(crate) fn reaches_devices(&self) -> bool {
        self.is_own() || self.one_copy.is_some()
    }

    /// Whether the other end is this worker itself.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.attributes.transport == Loopback::NAME
    }

    /// Why the engine in this place does not open its device memory, if that was tried.
    pub(crate) fn unrouted(&self, slot: usize) -> Option<&Error> {
        let mut unrouted = self.unrouted.iter();
        unrouted
            .find(|(tried, _)| *tried == slot)
            .map(|(_, error)| error)
    }

    pub(crate) fn new(made: Made) -> Self {
        Self {
            id: made.id,
            slot: made.slot,
            interface: made.interface,
            attributes: made.link.attributes(),
            link: Some(Counted::new(made.link)),
            short: made.short,
            eager: made.eager,
            lending: made.lending,
            worker: made.worker,
            span: tracing::debug_span!(
                target: "wharf::endpoint",
                parent: None,
                "endpoint",
                id = made.id.0,
                peer = %made.info.name,
                transports = ?made.transports,
            ),
            info: made.info,
            transports: made.transports,
            refused: Vec::new(),
            one_copy: made.one_copy,
            queue: Default::default(),
            status: Status::Open,
            reason: None,
            eager_out: 0,
            eager_held: 0,
            eager_owed: 0,
            announced_out: 0,
            announced_held: 0,
            posted: 0,
            handles: made.handles,
            claimed: made.handles > 0,
            lost: None,
            am: Default::default(),
            signals: Default::default(),
            ending: Default::default(),
            ready: Default::default(),
            streams: Default::default(),
            staged: 0,
            unrouted: Vec::new(),
            requests: Default::default(),
        }
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.status, Status::Open)
    }

    /// Whether messages still arrive.
    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.status, Status::Closed(_))
    }

    /// Why it is over, if it is.
    pub(crate) fn over(&self) -> Option<Error> {
        match &self.status {
            Status::Closed(error) => Some(error.duplicate()),
            _ => None,
        }
    }

    pub(crate) fn error(&self) -> Option<Error> {
        match &self.status {
            Status::Closed(error) => Some(error.duplicate()),
            Status::Closing { .. } => Some(match &self.reason {
                Some(reason) => reason.duplicate(),
                None => Error::new(ErrorKind::Closed, "the endpoint is closing")
                    .with_peer(&self.info.name),
            }),
            Status::Open => None,
        }
    }

    /// Whether an eager message of this length has a place in the window.
    #[inline]
    pub(crate) fn has_window(&self, length: usize) -> bool {
        self.eager_out + eager_cost(length) <= EAGER_WINDOW
    }

    /// Whether another message may be announced.
    #[inline]
    pub(crate) fn may_announce(&self) -> bool {
        self.announced_out < ANNOUNCEMENTS
    }

    /// Whether another operation finds room on the link soon.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() < READY
    }

    /// Whether announced messages of the peer can still be matched: not when it has been told that this side is done.
    pub(crate) fn matches_announced(&self) -> bool {
        matches!(self.status, Status::Open | Status::Closing { sent: false })
    }

    /// Whether a message of this length goes unasked, now.
    #[inline]
    pub(crate) fn goes_eager(&self, length: usize) -> bool {
        length <= self.eager && self.has_window(length)
    }

    /// Sends a message of the protocol, or queues it.
    pub(crate) fn control(&mut self, id: u8, header: u64, body: &[u8]) -> Result<(), Error> {
        if self.queue.active() == 0
            && let Some(link) = &mut self.link
        {
            match link.am_short(id, header, body) {
                Ok(()) => return Ok(()),
                Err(SendError::Full) => {}
                Err(SendError::Failed(error)) => return Err(error),
            }
        }
        if self.queue.len() >= ANSWERS {
            return Err(Error::new(
                ErrorKind::Protocol,
                "the peer asks for more than it reads",
            ));
        }
        let mut bytes = [0; 48];
        bytes[..body.len()].copy_from_slice(body);
        let lane = if control::is_answer(id) {
            Lane::Answer
        } else {
            Lane::Normal
        };
        let length = body.len() as u8;
        self.queue.push(
            lane,
            Queued::Control {
                id,
                header,
                length,
                body: bytes,
            },
        );
        Ok(())
    }

    /// Counts an eager message of the peer that has been consumed, and returns window when a quarter of it is owed.
    #[inline]
    pub(crate) fn consumed(&mut self, cost: u64) -> Result<(), Error> {
        self.eager_owed += cost;
        if self.eager_owed >= WINDOW_BACK {
            let owed = std::mem::take(&mut self.eager_owed);
            self.eager_held = self.eager_held.saturating_sub(owed);
            return self.control(control::CREDIT, owed, &[]);
        }
        Ok(())
    }
}
