//! A transport whose links do what a script says: a message that was sent is on its way until the script lets it arrive, and is taken by the next pass of
//! its receiver. The script decides how much room there is, how far a long payload has come, when lent memory comes back, and when a link breaks.
//!
//! ```text
//! Link::am_* ──▶ flight ──(script: arrive)──▶ arrived ──(a pass)──▶ Sink
//!                  │ room: so many in both         └─ long: Sink::place, then piece by piece as `flow` lets it
//!                  └ lent memory is read, and its token due, when the message arrives
//! ```
//!
//! # Safety
//! A place is written within the bounds that the sink gave, until it was reported as filled or the link was detached. Lent memory is read before it is
//! reported as sent, and not once the link is gone. What is wanted is copied within the room that is told. The words in common live as long as either end.
#![allow(unsafe_code)]

use std::{
    collections::VecDeque,
    os::fd::{BorrowedFd, OwnedFd},
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use parking_lot::Mutex;
use wharf::{
    Error, ErrorKind, LinkId, Result,
    transport::{
        Connected, Connector, Hold, Interface, Link, LinkAttributes, Opened, PeerInfo, Place,
        RawSlice, Reach, Registry, Role, SHARED_WORDS, SendError, SharedMemory, Sink, Taken,
        Transport, Wanted, Zcopy, channel::Channel,
    },
};

pub(crate) const NAME: &str = "scripted";

/// Messages that a glance may take in a row.
const GLANCES: u32 = 4;

/// What links of a bed are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Longest payload that is lent; 0: all are copied.
    pub(crate) zcopy: usize,
    /// From this length on the receiver is asked where a payload goes.
    pub(crate) long: usize,
    /// Messages may be read where they arrived, and taken where they are wanted.
    pub(crate) in_place: bool,
    /// Both ends have words in common, and pass segments.
    pub(crate) shares: bool,
}

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) id: u8,
    pub(crate) header: u64,
    pub(crate) prefix: usize,
    pub(crate) body: Vec<u8>,
    lent: Option<(RawSlice, u64)>,
}

impl Frame {
    pub(crate) fn new(id: u8, header: u64, prefix: usize, body: Vec<u8>) -> Self {
        Self {
            id,
            header,
            prefix,
            body,
            lent: None,
        }
    }
}

/// A payload on its way into memory that the receiver gave.
#[derive(Debug)]
struct Landing {
    address: *mut u8,
    token: u64,
    bytes: Vec<u8>,
    from: usize,
}

/// One direction of a wire.
#[derive(Debug, Default)]
pub(crate) struct Way {
    pub(crate) flight: VecDeque<Frame>,
    pub(crate) arrived: VecDeque<Frame>,
    /// Messages that may be in either before the link is full.
    pub(crate) room: usize,
    /// Bytes of a long payload that may land.
    pub(crate) flow: usize,
    landing: Option<Landing>,
    /// A message that is buffered until all of it is here, and how much was buffered so.
    whole: Option<Frame>,
    pub(crate) buffered: usize,
    /// The sender has found it full, and was not told of room.
    owes: bool,
    /// Tokens of lent memory that has been read.
    pub(crate) read: Vec<u64>,
    /// Segments that are passed: on their way, and there.
    shares: VecDeque<(u64, OwnedFd, u64)>,
    shared: VecDeque<(u64, OwnedFd, u64)>,
}

// SAFETY: the addresses are used as the contract of links says, whichever thread it is.
unsafe impl Send for Way {}

impl Way {
    fn new() -> Self {
        Self {
            room: usize::MAX,
            flow: usize::MAX,
            ..Self::default()
        }
    }

    fn has_room(&self) -> bool {
        self.flight.len() + self.arrived.len() < self.room
    }

    /// The next so many messages are there.
    pub(crate) fn arrive(&mut self, count: usize) -> usize {
        self.shared.append(&mut self.shares);
        let count = count.min(self.flight.len());
        for _ in 0..count {
            let Some(mut frame) = self.flight.pop_front() else {
                break;
            };
            if let Some((payload, token)) = frame.lent.take() {
                // SAFETY: lent until it is reported as sent, after this.
                let payload = unsafe { slice::from_raw_parts(payload.address, payload.length) };
                frame.body.extend_from_slice(payload);
                self.read.push(token);
            }
            self.arrived.push_back(frame);
        }
        count
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.flight.is_empty()
            && self.arrived.is_empty()
            && self.landing.is_none()
            && self.whole.is_none()
    }
}

/// The two ends of a link.
#[derive(Debug)]
pub(crate) struct Wire {
    kind: Kind,
    /// From the client to the server, and back.
    pub(crate) ways: [Way; 2],
    /// It is broken, as this end is to hear.
    pub(crate) broken: [Option<ErrorKind>; 2],
    /// Nothing more is reported to this end.
    over: [bool; 2],
    /// The worker of this end has let go of it.
    pub(crate) gone: [bool; 2],
    /// What this end found against the protocol.
    pub(crate) refused: [bool; 2],
    common: Option<Arc<Common>>,
}

impl Wire {
    /// Whether a pass of this end would report something.
    fn moves(&self, side: usize) -> bool {
        let (out, into) = (&self.ways[side], &self.ways[1 - side]);
        if self.over[side] {
            return false;
        }
        let lands = match (&into.landing, &into.whole) {
            (Some(_), _) => into.flow > 0,
            (_, Some(frame)) => into.flow >= frame.body.len(),
            _ => !into.arrived.is_empty(),
        };
        lands
            || !into.shared.is_empty()
            || !out.read.is_empty()
            || out.owes && out.has_room()
            || self.ends(side).is_some()
    }

    /// Why this end is to be told that the link has ended.
    fn ends(&self, side: usize) -> Option<ErrorKind> {
        let behind = self.ways[1 - side].is_quiet();
        match self.broken[side] {
            Some(kind) => Some(kind),
            None if self.gone[1 - side] && behind => Some(ErrorKind::ConnectionReset),
            None => None,
        }
    }

    /// It breaks, and both ends are to hear it. What was on its way is lost where `lost` says so.
    pub(crate) fn cut(&mut self, kind: ErrorKind, lost: [bool; 2]) {
        for (side, lost) in lost.into_iter().enumerate() {
            self.broken[side].get_or_insert(kind);
            if lost {
                self.ways[side].flight.clear();
                self.ways[side].arrived.clear();
                (self.ways[side].landing, self.ways[side].whole) = (None, None);
            }
        }
    }

    /// Both ends have let go of it.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone == [true; 2]
    }
}

pub(crate) type Shared = Arc<Mutex<Wire>>;

/// What the two ends of a link have in common.
#[derive(Debug)]
struct Common {
    words: [AtomicU64; SHARED_WORDS],
    dropped: [AtomicBool; 2],
}

#[derive(Debug)]
struct Words(Arc<Common>, Role);

fn side(role: Role) -> usize {
    match role {
        Role::Client => 0,
        Role::Server => 1,
    }
}

// SAFETY: the words are never moved, and zero at first; each end drops its link between two copies.
unsafe impl SharedMemory for Words {
    fn role(&self) -> Role {
        self.1
    }
    fn words(&self) -> &[AtomicU64; SHARED_WORDS] {
        &self.0.words
    }
    fn is_peer_gone(&self) -> bool {
        self.0.dropped[1 - side(self.1)].load(Ordering::Acquire)
    }
}

/// The transport of all workers of a bed.
#[derive(Clone, Debug)]
pub(crate) struct Scripted {
    kind: Kind,
    made: Arc<Mutex<Vec<Shared>>>,
}

impl Scripted {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            made: Arc::default(),
        }
    }

    /// The wires that were made since the last call.
    pub(crate) fn made(&self) -> Vec<Shared> {
        std::mem::take(&mut self.made.lock())
    }

    fn make(&self) -> (usize, Shared) {
        let common = self.kind.shares.then(|| {
            Arc::new(Common {
                words: [const { AtomicU64::new(0) }; SHARED_WORDS],
                dropped: Default::default(),
            })
        });
        let wire = Arc::new(Mutex::new(Wire {
            kind: self.kind,
            ways: [Way::new(), Way::new()],
            broken: [None; 2],
            over: [false; 2],
            gone: [false; 2],
            refused: [false; 2],
            common,
        }));
        let mut made = self.made.lock();
        made.push(wire.clone());
        (made.len() - 1, wire)
    }
}

impl Transport for Scripted {
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
            interface: Box::new(Ends::default()),
            connector: Arc::new(Meets(self.clone())),
        })
    }
}

#[derive(Debug)]
struct Meets(Scripted);

#[async_trait]
impl Connector for Meets {
    fn can_use(&self, _channel: &Channel, _peer: &PeerInfo) -> Result<()> {
        Ok(())
    }
    /// The client makes the wire and tells its number.
    async fn connect(&self, channel: &mut Channel, role: Role, _: &PeerInfo) -> Result<Connected> {
        let wire = if role == Role::Client {
            let (number, wire) = self.0.make();
            channel.send(&[number as u8], &[]).await?;
            channel.receive().await?;
            wire
        } else {
            let (number, _) = channel.receive().await?;
            let wire = self.0.made.lock()[usize::from(number[0])].clone();
            channel.send(b"taken", &[]).await?;
            wire
        };
        Ok(Connected(Box::new((wire, role))))
    }
}

#[derive(Debug)]
struct Entry {
    id: LinkId,
    wire: Shared,
    side: usize,
    hold: Arc<Hold>,
}

/// The ends of links that a worker has.
#[derive(Debug, Default)]
struct Ends {
    entries: Vec<Entry>,
    latest: Option<LinkId>,
    glances: u32,
    /// Messages that are read where they arrived.
    kept: Vec<(Arc<Hold>, Vec<u8>)>,
}

/// What a pass reports next of one link.
enum Next {
    Frame(Frame),
    Whole(Frame),
    Placed(u64),
    Read(u64),
    Shared(u64, OwnedFd, u64),
    Writable,
    Ended(ErrorKind),
}

impl Entry {
    fn next(&self, frames: bool) -> Option<Next> {
        let wire = &mut *self.wire.lock();
        let side = self.side;
        if wire.over[side] {
            return None;
        }
        if wire.ways[side].owes && wire.ways[side].has_room() {
            wire.ways[side].owes = false;
            return Some(Next::Writable);
        }
        if let Some(token) = wire.ways[side].read.pop() {
            return Some(Next::Read(token));
        }
        let into = &mut wire.ways[1 - side];
        if let Some((segment, fd, length)) = into.shared.pop_front() {
            return Some(Next::Shared(segment, fd, length));
        }
        if let Some(landing) = &mut into.landing {
            let count = into.flow.min(landing.bytes.len() - landing.from);
            into.flow -= if into.flow == usize::MAX { 0 } else { count };
            let part = &landing.bytes[landing.from..landing.from + count];
            // SAFETY: within what the sink gave for all of `bytes`, and not reported as filled yet.
            unsafe {
                let to = landing.address.add(landing.from);
                to.copy_from_nonoverlapping(part.as_ptr(), count);
            }
            landing.from += count;
            if landing.from == landing.bytes.len() {
                let token = landing.token;
                into.landing = None;
                return Some(Next::Placed(token));
            }
        } else if let Some(frame) = into.whole.take() {
            if into.flow >= frame.body.len() {
                return Some(Next::Whole(frame));
            }
            into.whole = Some(frame);
        } else if frames && let Some(frame) = into.arrived.pop_front() {
            return Some(Next::Frame(frame));
        }
        let kind = wire.ends(side)?;
        // What has arrived comes before the end.
        if wire.broken[side].is_some()
            && wire.ways[1 - side].landing.is_none()
            && wire.ways[1 - side].whole.is_none()
            && !wire.ways[1 - side].arrived.is_empty()
        {
            return None;
        }
        wire.over[side] = true;
        Some(Next::Ended(kind))
    }

    fn deliver(
        &self,
        frame: Frame,
        kept: &mut Vec<(Arc<Hold>, Vec<u8>)>,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        let kind = self.wire.lock().kind;
        let (id, header) = (frame.id, frame.header);
        let (head, payload) = frame.body.split_at(frame.prefix.min(frame.body.len()));
        if payload.len() < kind.long {
            if !kind.in_place {
                return sink.message(self.id, id, header, &frame.body);
            }
            sink.message_in_place(self.id, id, header, &frame.body, &self.hold)?;
            if self.hold.is_held() && kept.iter().all(|(hold, _)| !Arc::ptr_eq(hold, &self.hold)) {
                kept.push((self.hold.clone(), frame.body));
            }
            return Ok(());
        }
        match sink.place(self.id, id, header, head, payload.len())? {
            Place::Memory { address, token } => {
                let landing = Landing {
                    address,
                    token,
                    bytes: payload.to_vec(),
                    from: 0,
                };
                self.wire.lock().ways[1 - self.side].landing = Some(landing);
            }
            Place::Whole => {
                let way = &mut self.wire.lock().ways[1 - self.side];
                way.buffered += frame.body.len();
                way.whole = Some(frame);
            }
            Place::Discard => {}
        }
        Ok(())
    }
}

impl Ends {
    fn let_go(&mut self) {
        self.kept.retain(|(hold, _)| hold.is_held());
    }

    /// Reports one thing of a link. `None`: there is nothing.
    fn step(&mut self, index: usize, frames: bool, sink: &mut dyn Sink) -> Option<()> {
        let entry = &self.entries[index];
        let (id, side) = (entry.id, entry.side);
        match entry.next(frames)? {
            Next::Frame(frame) => {
                self.latest = Some(id);
                if entry.deliver(frame, &mut self.kept, sink).is_err() {
                    let mut wire = entry.wire.lock();
                    wire.refused[side] = true;
                    wire.over[side] = true;
                }
            }
            Next::Whole(frame) => {
                if sink
                    .message(id, frame.id, frame.header, &frame.body)
                    .is_err()
                {
                    let mut wire = entry.wire.lock();
                    wire.refused[side] = true;
                    wire.over[side] = true;
                }
            }
            Next::Placed(token) => sink.placed(id, token),
            Next::Read(token) => sink.sent(id, token),
            Next::Shared(segment, fd, length) => sink.shared(id, segment, fd, length),
            Next::Writable => sink.writable(id),
            Next::Ended(kind) => {
                let text = match kind {
                    ErrorKind::PeerDied => "the peer has died",
                    _ => "the link is broken",
                };
                sink.failed(id, Error::new(kind, text));
            }
        }
        Some(())
    }
}

impl Ends {
    /// As [`Interface::take`]: from where, and how long it is.
    ///
    /// # Safety
    /// As there.
    unsafe fn take_front(&mut self, wanted: &mut Wanted) -> Option<(LinkId, usize)> {
        let entry = &self.entries[self.latest_entry()?];
        let mut wire = entry.wire.lock();
        if self.glances == GLANCES || wire.over[entry.side] || !wire.kind.in_place {
            return None;
        }
        let into = &mut wire.ways[1 - entry.side];
        let frame = into.arrived.front()?;
        let fits = into.landing.is_none()
            && into.whole.is_none()
            && frame.id == wanted.id
            && frame.header & wanted.mask == wanted.header & wanted.mask
            && frame.body.len() <= wanted.room;
        if !fits {
            return None;
        }
        let frame = into.arrived.pop_front()?;
        // SAFETY: no more than the room that the caller vouches for.
        unsafe {
            wanted
                .address
                .copy_from_nonoverlapping(frame.body.as_ptr(), frame.body.len());
        }
        self.glances += 1;
        wanted.header = frame.header;
        Some((entry.id, frame.body.len()))
    }
}

impl Interface for Ends {
    fn attach(&mut self, id: LinkId, connected: Connected) -> Result<Box<dyn Link>> {
        let made = connected.0.downcast::<(Shared, Role)>();
        let (wire, role) = *made.expect("a wire of this transport");
        self.entries.push(Entry {
            id,
            wire: wire.clone(),
            side: side(role),
            hold: Hold::new(),
        });
        Ok(Box::new(End { wire, role }))
    }

    fn detach(&mut self, id: LinkId) {
        self.entries.retain(|entry| {
            if entry.id != id {
                return true;
            }
            let mut wire = entry.wire.lock();
            wire.over[entry.side] = true;
            // Nothing of it is used any more.
            let into = &mut wire.ways[1 - entry.side];
            (into.landing, into.whole) = (None, None);
            let out = &mut wire.ways[entry.side];
            out.flight.retain(|frame| frame.lent.is_none());
            out.read.clear();
            false
        });
    }

    fn register(&mut self, _registry: Registry) -> Result<()> {
        Ok(())
    }

    fn progress(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        self.glances = 0;
        self.let_go();
        let mut happened = 0;
        for index in 0..self.entries.len() {
            let mut left = budget;
            while self.step(index, left > 0, sink).is_some() {
                happened += 1;
                left = left.saturating_sub(1);
            }
        }
        happened
    }

    fn glance(&mut self, sink: &mut dyn Sink) -> bool {
        let Some(index) = self.latest_entry() else {
            return false;
        };
        if self.glances == GLANCES {
            return false;
        }
        let is_there = {
            let entry = &self.entries[index];
            let wire = entry.wire.lock();
            let into = &wire.ways[1 - entry.side];
            !wire.over[entry.side]
                && into.landing.is_none()
                && into.whole.is_none()
                && !into.arrived.is_empty()
        };
        self.glances += u32::from(is_there);
        is_there && self.step(index, true, sink).is_some()
    }

    unsafe fn take(&mut self, wanted: &mut Wanted) -> Taken {
        // SAFETY: the caller's promise.
        match unsafe { self.take_front(wanted) } {
            Some((from, length)) => Taken::Message {
                from,
                length: length as u32,
            },
            None => Taken::Nothing,
        }
    }

    fn arm(&mut self) -> bool {
        self.entries
            .iter()
            .all(|entry| !entry.wire.lock().moves(entry.side))
    }

    fn disarm(&mut self) {}

    fn is_held(&self) -> bool {
        self.kept.iter().any(|(hold, _)| hold.is_held())
    }
}

impl Ends {
    fn latest_entry(&self) -> Option<usize> {
        let latest = self.latest?;
        self.entries.iter().position(|entry| entry.id == latest)
    }
}

/// The sending half of an end.
#[derive(Debug)]
struct End {
    wire: Shared,
    role: Role,
}

impl End {
    fn push(&self, frame: Frame) -> Result<(), SendError> {
        let mut wire = self.wire.lock();
        let side = side(self.role);
        if let Some(kind) = wire.broken[side] {
            let error = Error::new(kind, "the link is broken");
            return Err(SendError::Failed(error));
        }
        let out = &mut wire.ways[side];
        if !out.has_room() {
            out.owes = true;
            return Err(SendError::Full);
        }
        out.flight.push_back(frame);
        Ok(())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut wire = self.wire.lock();
        let side = side(self.role);
        wire.gone[side] = true;
        wire.over[side] = true;
        if let Some(common) = &wire.common {
            common.dropped[side].store(true, Ordering::Release);
        }
        let out = &mut wire.ways[side];
        out.flight.retain(|frame| frame.lent.is_none());
        out.read.clear();
    }
}

impl Link for End {
    fn attributes(&self) -> LinkAttributes {
        LinkAttributes {
            transport: NAME,
            max_short: 48,
            max_bcopy: 8192,
            max_zcopy: self.wire.lock().kind.zcopy,
        }
    }

    fn am_short(&mut self, id: u8, header: u64, body: &[u8]) -> Result<(), SendError> {
        assert!(body.len() <= 48, "a short message of {} bytes", body.len());
        self.push(Frame::new(id, header, 0, body.to_vec()))
    }

    fn am_bcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        let length = prefix.len() + payload.len();
        assert!(length <= 8192, "a message of {length} bytes");
        let body = [prefix, payload].concat();
        self.push(Frame::new(id, header, prefix.len(), body))
    }

    unsafe fn am_zcopy(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: RawSlice,
        token: u64,
    ) -> Result<Zcopy, SendError> {
        assert!(payload.length <= self.wire.lock().kind.zcopy);
        self.push(Frame {
            lent: Some((payload, token)),
            ..Frame::new(id, header, prefix.len(), prefix.to_vec())
        })?;
        Ok(Zcopy::Pending)
    }

    fn flush(&mut self, _sink: &mut dyn Sink) {}

    fn is_flushed(&self) -> bool {
        let wire = self.wire.lock();
        let out = &wire.ways[side(self.role)];
        out.read.is_empty() && out.flight.iter().all(|frame| frame.lent.is_none())
    }

    fn shared_memory(&self) -> Option<Arc<dyn SharedMemory>> {
        let common = self.wire.lock().common.clone()?;
        Some(Arc::new(Words(common, self.role)))
    }

    fn share(&mut self, segment: u64, fd: BorrowedFd<'_>, length: u64) -> Result<(), SendError> {
        let mut wire = self.wire.lock();
        if !wire.kind.shares {
            let error = Error::new(ErrorKind::Unsupported, "sharing memory over this link");
            return Err(SendError::Failed(error));
        }
        let fd = fd.try_clone_to_owned();
        let fd = fd.map_err(|error| SendError::Failed(Error::io("a descriptor", error)))?;
        let out = &mut wire.ways[side(self.role)];
        out.shares.push_back((segment, fd, length));
        Ok(())
    }
}
