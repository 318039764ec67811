//! One connection of a worker: its link, what waits for room on it, and what both ends share.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Instant,
};

use tracing::Span;

use crate::{
    config::RendezvousScheme,
    error::{Error, ErrorKind},
    memory::Segment,
    protocol::{
        ANNOUNCEMENTS,
        control::{self, Waits},
        ledger::AccountId,
        plan::{
            LENT_FROM,
            ways::{Way, Ways},
        },
        thresholds::Lending,
        window::{ReceiveWindow, SHORT, SendWindow, Terms, eager_cost, eager_need},
    },
    sys::{identity::identity, memfd::Mapping, process},
    transport::{
        Link, LinkAttributes, Pair, PeerInfo, SendError, cma::CmaPeer, loopback::Loopback,
    },
    types::{EndpointId, LinkId, OpKey, WorkerId},
    util::{seldom::Seldom, waiters::Waiters},
    worker::{
        am::AmPeer,
        connect::Seat,
        copy::Remote,
        layout::Requests,
        metrics::Counted,
        queue::{Class, Queue, Queued},
        signal::Signals,
        stream::PeerStreams,
    },
};

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
    pub(crate) told: Told,
    pub(crate) ways: Ways,
    /// Of messages that may be lent; `None` where none is.
    pub(crate) sends: Option<Ways>,
}

/// The way of long messages that configuration chooses, if it does.
pub(crate) fn pinned(scheme: RendezvousScheme) -> Option<Way> {
    match scheme {
        RendezvousScheme::Auto => None,
        RendezvousScheme::Messages => Some(Way::Fragments),
        RendezvousScheme::Get | RendezvousScheme::Put => Some(Way::OneCopy),
    }
}

/// What two ends that share memory have told each other of.
pub(crate) struct Told {
    /// The connection.
    id: EndpointId,
    /// Segments of the peer that were asked for.
    pub(crate) asked: Vec<u64>,
    /// Keys of regions that the peer was shown, by slot.
    pub(crate) shown: BTreeMap<u32, u64>,
    /// Own segments that the peer has.
    given: Vec<u64>,
    /// Own segments that were sent from before, and may be worth giving.
    seen: Vec<u64>,
    /// Those of them that it may write, until the connection is over.
    loans: Loans,
}

impl Told {
    /// Descriptors may name segments that never come.
    pub(in crate::worker) fn asks_for(&mut self, segment: u64) {
        remember(&mut self.asked, segment);
    }
}

/// Adds to the last ones that are known of.
fn remember(segments: &mut Vec<u64>, segment: u64) {
    const MOST: usize = 256;
    if segments.len() >= MOST {
        segments.remove(0);
    }
    segments.push(segment);
}

/// Segments lent to a connection.
#[derive(Default)]
struct Loans(Vec<Weak<Segment>>);

impl Loans {
    fn push(&mut self, segment: &Arc<Segment>) {
        if self.0.len() == self.0.capacity() {
            self.0.retain(|lent| lent.strong_count() > 0);
        }
        self.0.push(Arc::downgrade(segment));
    }
}

impl Drop for Loans {
    fn drop(&mut self) {
        for segment in self.0.drain(..).filter_map(|lent| lent.upgrade()) {
            if let Err(error) = segment.end_loan() {
                tracing::error!(target: "wharf::memory", %error, "who was connected goes on seeing a buffer of {} bytes", segment.mapping().len());
            }
        }
    }
}

impl OneCopy {
    /// Most segments of a peer that stay mapped.
    pub(crate) const MAX_MAPPED: usize = 64;

    /// `may_lend`: configuration has no word in the way of messages.
    pub(crate) fn new(
        id: EndpointId,
        pair: Arc<Pair>,
        cma: Option<CmaPeer>,
        may_lend: bool,
    ) -> Self {
        let sends = (may_lend && cma.is_some()).then(Ways::of_sends);
        Self {
            pair,
            cma,
            mapped: Vec::new(),
            told: Told {
                id,
                asked: Vec::new(),
                shown: BTreeMap::new(),
                given: Vec::new(),
                seen: Vec::new(),
                loans: Loans::default(),
            },
            ways: Ways::default(),
            sends,
        }
    }

    /// How `length` bytes of the peer are reached, for writing or for reading alone: at `offset` of one of its segments, if that is mapped here
    /// (0 is none), else at their address in its process.
    pub(crate) fn reach(
        &self,
        segment: u64,
        offset: u64,
        length: usize,
        address: u64,
        write: bool,
    ) -> Option<Remote> {
        let mapping = self.mapping(segment);
        let mapping = mapping.filter(|mapping| !write || mapping.is_writable());
        let mapped = mapping.and_then(|mapping| {
            let start = usize::try_from(offset).ok()?;
            (start.checked_add(length)? <= mapping.len())
                .then(|| Remote::Mapped(mapping.clone(), start))
        });
        mapped.or_else(|| self.cma.as_ref().map(|_| Remote::Address(address)))
    }

    /// Whether the peer has this segment, and finds there what is here.
    pub(crate) fn has(&self, segment: &Segment) -> bool {
        self.told.given.contains(&segment.id()) && segment.is_mappable()
    }

    /// Whether it is worth giving: it can be mapped, and is used for the second time.
    pub(crate) fn is_worth(&mut self, segment: &Segment) -> bool {
        if !segment.is_mappable() {
            return false;
        }
        let is_known = self.told.seen.contains(&segment.id());
        if !is_known {
            remember(&mut self.told.seen, segment.id());
        }
        is_known
    }

    /// Lends the peer a segment, unless it is another's.
    pub(crate) fn lend(&mut self, segment: &Arc<Segment>) -> bool {
        let lent = segment.lend(self.told.id);
        if lent == Some(true) {
            self.told.loans.push(segment);
        }
        lent.is_some()
    }

    /// Notes that the peer has a segment of this side.
    pub(crate) fn set_given(&mut self, segment: &Segment) {
        segment.set_given();
        let given = &mut self.told.given;
        if given.len() >= Self::MAX_MAPPED {
            given.remove(0);
        }
        given.push(segment.id());
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

    /// As [`mapping`](Self::mapping), of a segment that was found in this place the last time.
    #[inline(always)]
    pub(crate) fn mapping_near(&self, segment: u64, place: &AtomicU32) -> Option<&Mapping> {
        match self.mapped.get(place.load(Relaxed) as usize) {
            Some((id, mapping)) if *id == segment => Some(mapping),
            _ => self.mapping_elsewhere(segment, place),
        }
    }

    #[cold]
    #[inline(never)]
    fn mapping_elsewhere(&self, segment: u64, place: &AtomicU32) -> Option<&Mapping> {
        let index = self.mapped.iter().rposition(|(id, _)| *id == segment)?;
        place.store(index as u32, Relaxed);
        Some(&self.mapped[index].1)
    }

    pub(crate) fn mapping(&self, segment: u64) -> Option<&Arc<Mapping>> {
        self.mapped
            .iter()
            .rev()
            .find(|(id, _)| *id == segment)
            .map(|(_, mapping)| mapping)
    }
}

/// What went another way than it was to go; with most connections nothing has.
#[derive(Default)]
pub(crate) struct Odd {
    /// Transports that were to be set up first and could not be, and why.
    pub(crate) refused: Vec<(&'static str, String)>,
    /// Why device memory of it is not opened here, once that was tried: by the accelerator's place in the context, each once.
    pub(crate) unrouted: Vec<(usize, Error)>,
    /// The goodbye of this side, until it is said; and of the peer, as far as it has come.
    pub(crate) goodbye: Vec<u8>,
    pub(crate) heard: Vec<u8>,
    /// It is looked after until it is over: see [`Core::see_off`](crate::worker::core::Core::see_off).
    pub(in crate::worker) seen_off: Option<Farewell>,
}

/// A connection that closes and that nobody holds.
pub(in crate::worker) struct Farewell {
    /// It was looked after so often, a minute apart.
    pub(in crate::worker) minutes: u8,
    /// Since `CLOSE` went; before that, since nobody has held it.
    pub(in crate::worker) said: bool,
}

pub(crate) struct Peer {
    pub(crate) id: EndpointId,
    pub(crate) slot: LinkId,
    pub(crate) interface: usize,
    /// `None` once the link is gone, and while it flushes.
    pub(crate) link: Option<Counted>,
    /// That it is counted among those that peers made; as long as there is a link.
    pub(crate) seat: Option<Seat>,
    pub(crate) attributes: LinkAttributes,
    /// Longest tagged messages that go inline, and that go unasked.
    pub(crate) short: usize,
    pub(crate) eager: usize,
    /// Longest that go inline and need leave nothing of the window to others.
    pub(crate) quick: usize,
    /// What of a stream is announced.
    pub(crate) lending: Lending,
    pub(crate) worker: WorkerId,
    pub(crate) info: PeerInfo,
    /// Who is charged for what it makes this side hold, until the connection is over.
    pub(crate) account: Option<AccountId>,
    /// Charged of answers that wait for room on the link, each [`ANSWER`] bytes.
    pub(crate) owed: u32,
    /// How many others wait for room that the peer brings about; not charged.
    pub(crate) counted: u32,
    /// Bytes charged of a message of which a part is here.
    pub(crate) arriving: u32,
    pub(crate) transports: Vec<&'static str>,
    pub(crate) odd: Seldom<Box<Odd>>,
    /// From the set-up to the end.
    span: Option<Box<Span>>,
    pub(crate) one_copy: Option<Box<OneCopy>>,
    pub(crate) queue: Queue,
    pub(crate) status: Status,
    /// The peer has closed: why operations end from here on, while what was sent before goes out.
    pub(crate) reason: Option<Error>,
    /// Of eager tagged messages: bytes that this side may send, and that the peer may.
    pub(crate) send_window: SendWindow,
    pub(crate) receive_window: ReceiveWindow,
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
    streams: Seldom<Box<PeerStreams>>,
    /// Copies of its own that this side takes a share in.
    pub(crate) helped: usize,
    /// Requests for blocks, both ways.
    pub(crate) requests: Seldom<Box<Requests>>,
    /// Who waits for the end, and who for a place for another operation.
    pub(crate) ending: Waiters,
    pub(crate) ready: Waiters,
}

/// Answers that may wait for room on a link before the peer, which reads none of them, is cut off: 2 MiB. A peer that only stands still has as many
/// requests under way as link and kernel buffer, and the answers, which are shorter, find room in the buffers of the way back.
pub(crate) const ANSWERS: u32 = 1 << 15;

/// What each of them takes.
pub(crate) const ANSWER: usize = size_of::<Queued>();
const _: () = assert!(ANSWER <= 64);

/// Operations and messages that may wait for room on a link while `ready()` still says yes.
const READY: usize = 16;

/// The connection of a link, if it still is that link's: places are used again.
#[inline]
pub(crate) fn at(peers: &mut [Option<Peer>], link: LinkId) -> Option<&mut Peer> {
    peers
        .get_mut(link.index())?
        .as_mut()
        .filter(|peer| peer.slot == link)
}

/// The connection of an endpoint, if it still is that endpoint's. The number of an endpoint is never used again, and so says more than that of its link.
#[inline(always)]
pub(crate) fn of(peers: &mut [Option<Peer>], link: LinkId, id: EndpointId) -> Option<&mut Peer> {
    let peer = peers.get_mut(link.index())?.as_mut()?;
    (peer.id == id).then_some(peer)
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
    pub(crate) account: AccountId,
    pub(crate) transports: Vec<&'static str>,
    pub(crate) one_copy: Option<OneCopy>,
    pub(crate) handles: usize,
}

impl Peer {
    /// Whether there may be a way between its device memory and this side's: within one worker, or one host.
    pub(crate) fn reaches_devices(&self) -> bool {
        self.is_own() || self.one_copy.is_some()
    }

    /// Whether network devices may move bytes over it, out of memory of devices too.
    #[cold]
    pub(crate) fn has_rails(&self) -> bool {
        let ways = self.link.as_ref().and_then(|link| link.device_ways());
        ways.is_some_and(|ways| ways.rails.is_ok())
    }

    /// Whether the other end is this worker itself.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.attributes.transport == Loopback::NAME
    }

    /// What is logged of it belongs to this.
    pub(crate) fn span(&self) -> &Span {
        static NOWHERE: Span = Span::none();
        self.span.as_deref().unwrap_or(&NOWHERE)
    }

    /// Why the engine in this place does not open its device memory, if that was tried.
    pub(crate) fn unrouted(&self, slot: usize) -> Option<&Error> {
        let mut unrouted = self.odd.as_ref()?.unrouted.iter();
        unrouted
            .find(|(tried, _)| *tried == slot)
            .map(|(_, error)| error)
    }

    pub(crate) fn new(made: Made) -> Self {
        let span = tracing::debug_span!(
            target: "wharf::endpoint",
            parent: None,
            "endpoint",
            id = made.id.0,
            peer = %made.info.name,
            transports = ?made.transports,
        );
        Self {
            id: made.id,
            slot: made.slot,
            interface: made.interface,
            attributes: made.link.attributes(),
            link: Some(Counted::new(made.link)),
            seat: None,
            short: made.short,
            quick: made.short.min(SHORT),
            eager: made.eager,
            lending: made.lending,
            worker: made.worker,
            span: (!span.is_disabled()).then(|| Box::new(span)),
            info: made.info,
            account: Some(made.account),
            owed: 0,
            counted: 0,
            arriving: 0,
            transports: made.transports,
            odd: Seldom::default(),
            one_copy: made.one_copy.map(Box::new),
            queue: Default::default(),
            status: Status::Open,
            reason: None,
            send_window: SendWindow::new(Terms::EAGER.size),
            receive_window: ReceiveWindow::new(Terms::EAGER.size),
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
            helped: 0,
            requests: Default::default(),
        }
    }

    /// Its streams: most connections have none, and take no memory for them.
    #[inline]
    pub(crate) fn streams(&mut self) -> &mut PeerStreams {
        self.streams.get_or_insert_default()
    }

    /// The same, where it has ever had one.
    pub(crate) fn known_streams(&mut self) -> Option<&mut PeerStreams> {
        self.streams.as_deref_mut()
    }

    /// Its requests for blocks, as rare.
    pub(crate) fn requests(&mut self) -> &mut Requests {
        self.requests.get_or_insert_default()
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.status, Status::Open)
    }

    /// Whether messages still arrive.
    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.status, Status::Closed(_))
    }

    /// The connection ends: its link goes, and nobody may begin to touch memory here for the peer any more, which may not have noticed. Returns why.
    pub(crate) fn end(&mut self, error: Error) -> Error {
        let error = match self.reason.take() {
            // The peer had said so: the link's end is the answer to the answer.
            Some(reason)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionReset | ErrorKind::PeerDied | ErrorKind::Unreachable
                ) =>
            {
                reason
            }
            None if error.kind() == ErrorKind::ConnectionReset && self.has_died() => {
                Error::new(ErrorKind::PeerDied, "the peer's process has ended")
            }
            _ => error,
        };
        let error = error
            .with_peer(&self.info.name)
            .over(self.attributes.transport);
        tracing::debug!(target: "wharf::endpoint", parent: self.span(), peer = %self.info.name, %error, "connection ended");
        self.status = Status::Closed(error.clone());
        self.queue.clear();
        // Whatever the link was lent is ours again once it is dropped.
        self.link = None;
        self.seat = None;
        if let Some(one_copy) = &self.one_copy {
            one_copy.pair.end();
        }
        error
    }

    /// Whether its process has ended, over whatever it was reached. Only of this host's, as seen
    /// from here, is that known; and by the addresses that the two met at, or by the kernel's word,
    /// it must be of this host: what it says of itself anybody can say.
    fn has_died(&self) -> bool {
        let (own, of) = (identity(), &self.info.identity);
        self.info.origin.is_of_this_host(of.pid)
            && own.same_host(of)
            && (own.pid_namespace, own.pid) != (of.pid_namespace, of.pid)
            && own.pid_namespace == of.pid_namespace
            && process::has_ended(of.pid)
    }

    /// Why it is over, if it is.
    pub(crate) fn over(&self) -> Option<Error> {
        match &self.status {
            Status::Closed(error) => Some(error.clone()),
            _ => None,
        }
    }

    pub(crate) fn error(&self) -> Option<Error> {
        match &self.status {
            Status::Closed(error) => Some(error.clone()),
            Status::Closing { .. } => Some(match &self.reason {
                Some(reason) => reason.clone(),
                None => Error::new(ErrorKind::Closed, "the endpoint is closing")
                    .with_peer(&self.info.name),
            }),
            Status::Open => None,
        }
    }

    /// Whether an eager tagged message of this length has a place in the window.
    #[inline]
    pub(crate) fn has_window(&self, length: usize) -> bool {
        eager_need(length) <= self.send_window.left()
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

    /// Whether a message that could leave unasked is lent now.
    #[inline]
    pub(crate) fn lends(&self, length: usize) -> bool {
        length >= LENT_FROM && self.lends_long(length)
    }

    #[cold]
    fn lends_long(&self, length: usize) -> bool {
        let one_copy = self.one_copy.as_ref();
        let sends = one_copy.and_then(|one_copy| one_copy.sends.as_ref());
        sends.is_some_and(|sends| sends.now(length) == Way::OneCopy) && self.may_announce()
    }

    /// A message is lent: it counts against the window like one that left.
    pub(crate) fn lent(&mut self, key: OpKey, length: usize) {
        self.take_window(length);
        if let Some(sends) = self.sends() {
            sends.lends(key, length, Instant::now);
        }
    }

    /// A message that could have been lent has left unasked, if it is so long.
    #[inline]
    pub(crate) fn left(&mut self, length: usize) {
        if length >= LENT_FROM {
            self.left_long(length);
        }
    }

    #[cold]
    fn left_long(&mut self, length: usize) {
        if let Some(sends) = self.sends() {
            sends.left(length, Instant::now);
        }
    }

    fn sends(&mut self) -> Option<&mut Ways> {
        self.one_copy.as_mut()?.sends.as_mut()
    }

    /// Whether announced messages of the peer can still be matched: not when it has been told that this side is done.
    pub(crate) fn matches_announced(&self) -> bool {
        matches!(self.status, Status::Open | Status::Closing { sent: false })
    }

    /// Counts an eager tagged message that has left.
    #[inline]
    pub(crate) fn take_window(&mut self, length: usize) {
        self.send_window.take(eager_cost(length));
    }

    /// Sends a message of the protocol that may as well be left out, where nothing waits and there is room.
    pub(crate) fn mention(&mut self, id: u8, header: u64, body: &[u8]) -> Result<(), Error> {
        if self.queue.active() == 0
            && let Some(link) = &mut self.link
            && let Err(SendError::Failed(error)) = link.am_short(id, header, body)
        {
            return Err(error);
        }
        Ok(())
    }

    /// Sends a message of the protocol, or queues it, and says what it counts as then.
    pub(crate) fn control(&mut self, id: u8, header: u64, body: &[u8]) -> Result<Waits, Error> {
        if self.queue.active() == 0
            && let Some(link) = &mut self.link
        {
            match link.am_short(id, header, body) {
                Ok(()) => return Ok(Waits::Own),
                Err(SendError::Full) => {}
                Err(SendError::Failed(error)) => return Err(error),
            }
        }
        let mut bytes = [0; control::BODY];
        bytes[..body.len()].copy_from_slice(body);
        let class = if control::is_answer(id) {
            Class::Answer
        } else {
            Class::Normal
        };
        let length = body.len() as u8;
        self.queue.push(
            class,
            Queued::Control {
                id,
                header,
                length,
                body: bytes,
            },
        );
        Ok(control::waits_as(id))
    }
}
