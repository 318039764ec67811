//! The table of operations in flight. Each entry owns all that its operation touches; a future is only a key into it.

use std::sync::Arc;

use slab::Slab;

use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::{Buffer, BufferMut, region::Exposed},
    protocol::{
        control::{self, Signal},
        layout::Places,
        ledger::AccountId,
        matching::{self, Arrival as Order, PostId},
        plan::{self, Message},
        window::eager_cost,
    },
    trace,
    transport::{DeviceAtomic, LinkAttributes, MAX_PREFIX},
    types::{DeviceKey, EndpointId, LinkId, OpKey, Priority, Tag},
    util::waker_slot::WakerSlot,
    worker::{
        blocks::Answer,
        device::{DeviceWrite, Fragment, Lent, LocalCopy, Staged},
        epochs::{Epochs, Kind, Stamp, Wait},
        layout::Plan,
        one_sided::OneSided,
        queue::Class,
        signal::Raise,
        source::Source,
    },
};

/// What a receive or a get ended with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) length: usize,
    pub(crate) tag: Tag,
    pub(crate) from: EndpointId,
}

/// How an operation of the table ended. What it gives back stays with its work until somebody comes for it.
#[derive(Debug)]
pub(crate) enum Ended {
    Done(Result<()>),
    /// Failed, and its memory does not come back: the peer stays in it.
    Lost(Error),
    /// Boxed, as is what is rare in an entry.
    Claimed(Box<(Order, Unexpected)>),
    /// The old value of an atomic operation.
    Value(u64),
}

impl Ended {
    /// Why it failed, if it did.
    pub(crate) fn error(&self) -> Option<&Error> {
        match self {
            Self::Done(Err(error)) | Self::Lost(error) => Some(error),
            _ => None,
        }
    }
}

/// How an operation ended, as its future finds it.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(Result<()>),
    /// Of one that gives its buffer back.
    Buffer(Result<Arrival>, BufferMut),
    Claimed(Result<Box<(Order, Unexpected)>>),
    /// The old value of an atomic operation.
    Value(u64),
}

/// Of a future that is polled after its end.
pub(crate) fn wrong() -> Error {
    Error::new(ErrorKind::InvalidArgument, "polled after completion")
}

impl Arrival {
    /// Of what comes from no peer's message.
    #[inline]
    pub(crate) fn unnamed(length: usize) -> Self {
        Self {
            length,
            tag: Tag(0),
            from: EndpointId(0),
        }
    }

    /// The message that keeps its place while it arrives at this operation.
    pub(crate) fn into_arriving(self, link: LinkId, op: OpKey) -> Unexpected {
        let length = self.length;
        Unexpected::new(link, self.from, self.tag, Body::Arriving { op, length })
    }
}

impl Outcome {
    #[cfg(test)]
    pub(crate) fn is_failure(&self) -> bool {
        matches!(
            self,
            Self::Done(Err(_)) | Self::Buffer(Err(_), _) | Self::Claimed(Err(_))
        )
    }

    /// Says which operation failed, if it did.
    pub(crate) fn during(&mut self, operation: Operation) {
        if let Self::Done(Err(error)) | Self::Buffer(Err(error), _) | Self::Claimed(Err(error)) =
            self
        {
            error.set_operation(operation);
        }
    }
}

/// A message that nobody had posted a receive for.
#[derive(Debug)]
pub(crate) struct Unexpected {
    pub(crate) link: LinkId,
    pub(crate) from: EndpointId,
    pub(crate) tag: Tag,
    pub(crate) body: Body,
}

#[derive(Debug)]
pub(crate) enum Body {
    /// Up to 48 bytes, kept in place.
    Inline {
        length: u8,
        bytes: [u8; 48],
        ack: Option<u64>,
    },
    /// Longer, or put back by a dropped receive.
    Whole {
        data: Buffer,
        ack: Option<u64>,
        credit: u32,
    },
    /// Announced; its bytes are still with the sender.
    Announced(control::Announcement),
    /// On its way into the memory of this receive or claim, whose future is gone: keeps the message's place.
    Arriving { op: OpKey, length: usize },
}

impl Body {
    /// Whether its bytes are out of the host's reach: a receive that was dropped had put them into a device's memory.
    #[inline]
    pub(crate) fn is_on_device(&self) -> bool {
        matches!(self, Self::Whole { data, .. } if data.is_on_device())
    }
}

impl matching::Message for Unexpected {
    #[inline]
    fn name(&self) -> Option<matching::Name> {
        match &self.body {
            Body::Announced(rts) => Some(matching::Name::Announced(self.link, rts.op)),
            Body::Arriving { op, .. } => Some(matching::Name::Arriving(*op)),
            _ => None,
        }
    }
}

impl Unexpected {
    #[inline]
    pub(crate) fn new(link: LinkId, from: EndpointId, tag: Tag, body: Body) -> Self {
        Self {
            link,
            from,
            tag,
            body,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.body {
            Body::Inline { length, .. } => usize::from(*length),
            Body::Whole { data, .. } => data.len(),
            Body::Announced(rts) => rts.length as usize,
            Body::Arriving { length, .. } => *length,
        }
    }

    /// Whether it is in its sender's memory, who waits for no receive.
    pub(crate) fn is_lent(&self) -> bool {
        matches!(&self.body, Body::Announced(rts) if rts.is_lent)
    }
}

/// A run of bytes on its way out in fragments.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// The operation at the peer that they belong to.
    pub(crate) to: u64,
    pub(crate) next: usize,
}

#[derive(Debug)]
pub(crate) enum SendStage {
    /// Not yet accepted by the link.
    Queued,
    /// Waits for the receiver to match it (synchronous send).
    AwaitMatch,
    /// Announced; the receiver decides how the bytes travel.
    Announced,
    /// In fragments.
    Streaming(Outgoing),
    /// The receiver asks for it part by part, or fragments of it stop in pinned memory: other operations carry it.
    Pulled,
}

pub(crate) struct Send {
    pub(crate) tag: Tag,
    pub(crate) buffer: Buffer,
    pub(crate) sync: bool,
    pub(crate) stage: SendStage,
    /// The word that both ends count chunks in, when they copy together.
    pub(crate) slot: Option<u32>,
    pub(crate) cancelling: bool,
    /// The user's header of an active message, whose word `tag` is then; `None` for a tagged one.
    pub(crate) am: Option<Buffer>,
}

impl Send {
    /// Whether it counts among the announced. Active messages have credits.
    pub(crate) fn counts(&self) -> bool {
        self.am.is_none()
    }

    /// What it takes of its window when it goes unasked, over a link with these attributes on which `eager` is the longest that does. `None`: it
    /// is announced, whatever room there is.
    pub(crate) fn unasked(&self, eager: usize, attributes: &LinkAttributes) -> Option<u64> {
        let header = self.am.as_ref().map_or(0, Buffer::len);
        let length = header + self.buffer.len();
        let in_one_piece = header <= MAX_PREFIX || length <= attributes.max_bcopy;
        let kind = match self.am {
            Some(_) => Message::Active,
            None => Message::Tagged,
        };
        let unasked =
            in_one_piece && plan::is_unasked(kind, length, eager, self.buffer.is_on_device());
        unasked.then(|| eager_cost(length))
    }
}

pub(crate) enum RecvStage {
    /// Waits for a message of its connection's peer, in that queue.
    Posted(PostId),
    /// Matched; the bytes arrive one after the other.
    Landing { expected: usize, got: usize },
    /// Matched; being copied out of the sender's memory.
    Copying,
    /// The same, by both ends, which count chunks in this word: either may be the one that moves the last.
    Shared(u32),
    /// Matched a message that is still arriving at this receive, whose future is gone.
    Waiting(OpKey),
    /// Over.
    Done,
}

pub(crate) struct Recv {
    pub(crate) buffer: BufferMut,
    pub(crate) stage: RecvStage,
    pub(crate) arrival: Option<Arrival>,
    /// Place of the message in the order of arrival, for putting it back.
    pub(crate) order: Order,
    /// A claim that met a long message, which is landing in memory of its own.
    pub(crate) claims: bool,
}

impl Recv {
    /// Without a message as yet.
    pub(crate) fn new(buffer: BufferMut, order: Order) -> Self {
        Self {
            buffer,
            stage: RecvStage::Done,
            arrival: None,
            order,
            claims: false,
        }
    }
}

pub(crate) struct Put {
    pub(crate) buffer: Buffer,
    pub(crate) region: (u32, u64),
    pub(crate) offset: u64,
    pub(crate) next: usize,
    /// The future resolves when the source is free.
    pub(crate) local: bool,
    pub(crate) acknowledged: bool,
    pub(crate) slot: Option<u32>,
    /// Raised at the peer once the bytes are visible.
    pub(crate) signal: Option<Box<Signal>>,
    /// The bytes are visible, and the signal is left to send.
    pub(crate) signal_due: bool,
    /// Where it goes when that is not one run on both sides.
    pub(crate) layout: Option<Box<Plan>>,
    /// The owner pulls the bytes.
    pub(crate) announced: bool,
}

impl Put {
    /// All of the buffer, into a run of this region that begins there.
    pub(crate) fn new(buffer: Buffer, region: (u32, u64), offset: u64) -> Self {
        Self {
            buffer,
            region,
            offset,
            next: 0,
            local: false,
            acknowledged: false,
            slot: None,
            signal: None,
            signal_due: false,
            layout: None,
            announced: false,
        }
    }

    /// No bytes, and a signal behind them.
    pub(crate) fn of_nothing(signal: Signal) -> Self {
        let region = (signal.slot, signal.generation);
        Self {
            signal: Some(Box::new(signal)),
            ..Self::new(Buffer::new(), region, signal.offset)
        }
    }
}

pub(crate) struct Get {
    pub(crate) buffer: BufferMut,
    pub(crate) region: (u32, u64),
    pub(crate) offset: u64,
    pub(crate) got: usize,
    pub(crate) slot: Option<u32>,
    /// Where it comes from when that is not one run on both sides.
    pub(crate) layout: Option<Box<Plan>>,
    /// The announced operation of the peer that it is a part of, rather than of a region.
    pub(crate) pull: Option<u64>,
}

impl Get {
    /// All of the buffer, out of a run of this region that begins there.
    pub(crate) fn new(buffer: BufferMut, region: (u32, u64), offset: u64) -> Self {
        Self {
            buffer,
            region,
            offset,
            got: 0,
            slot: None,
            layout: None,
            pull: None,
        }
    }
}

/// An atomic operation on a word of the peer's, or the question what became of signals.
pub(crate) struct Atomic {
    pub(crate) asks: Ask,
    /// The old value is asked for.
    pub(crate) fetch: bool,
    pub(crate) sent: bool,
}

/// Who is asked, and for what.
pub(crate) enum Ask {
    /// The owner of the word.
    Owner(control::Atomic),
    /// A network device instead.
    Device(DeviceWord),
    /// The peer: what became of signals.
    Settle,
}

/// A word that network devices do atomics on.
pub(crate) struct DeviceWord {
    pub(crate) atomic: DeviceAtomic,
    pub(crate) address: u64,
    /// One device's: they are atomic among each other only there.
    pub(crate) key: Option<DeviceKey>,
}

/// What a peer asked for: a get, or a part of what was announced to it.
pub(crate) struct Serve {
    pub(crate) source: Source,
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) out: Outgoing,
    /// Who is charged for it.
    pub(crate) charged: Option<AccountId>,
    /// Of blocks, for a get with a layout.
    pub(crate) answer: Option<Box<Answer>>,
}

/// A peer's put into memory that this side fills itself.
pub(crate) struct Fill {
    pub(crate) exposed: Arc<Exposed>,
    pub(crate) offset: usize,
    /// The peer's operation.
    pub(crate) op: u64,
    pub(crate) signal: Option<Box<Raise>>,
    /// The blocks of the region that it goes to.
    pub(crate) places: Option<Box<Places>>,
    /// Who is charged for it.
    pub(crate) charged: Option<AccountId>,
}

/// A frame of a peer's put.
pub(crate) struct PutIn {
    pub(in crate::worker) exposed: Arc<Exposed>,
    pub(in crate::worker) ack: Option<u64>,
    pub(in crate::worker) signal: Option<Box<Raise>>,
}

pub(crate) enum Work {
    Send(Send),
    Recv(Recv),
    /// Waits for a message to claim, without a buffer.
    Claim(Option<PostId>),
    Put(Put),
    Get(Get),
    Atomic(Atomic),
    Serve(Serve),
    /// A frame of a peer's put that is landing in exposed memory.
    PutIn(PutIn),
    /// An eager active message that is landing in memory of its own.
    AmLanding {
        data: Vec<u8>,
        word: u64,
    },
    /// Help for a peer's put or get: this side copies a share. Holds the memory.
    Help {
        _exposed: Arc<Exposed>,
    },
    /// A long frame of a stream that is landing.
    StreamIn(crate::worker::stream::Landing),
    /// Bytes of a stream that a link sends from where they are.
    StreamOut {
        _buffer: Buffer,
    },
    Fill(Fill),
    /// Device memory that a peer opens.
    Lent(Lent),
    /// Bytes of a device that a stream writes.
    Write(DeviceWrite),
    /// A fragment that a link sends from where it is.
    Frame {
        fragment: Fragment,
    },
    /// A copy between two memories of this process.
    Copy(LocalCopy),
    /// All operations so far, or, for a fence, all accesses to remote memory.
    Flush,
}

/// The end of a put or get that is on this side.
pub(crate) struct End {
    pub(crate) local: *mut u8,
    pub(crate) length: usize,
    pub(crate) on_device: bool,
    /// Towards this process.
    pub(crate) pull: bool,
    /// Not one run on both sides.
    pub(crate) in_blocks: bool,
}

impl Work {
    /// Of a put or get.
    pub(crate) fn end(&mut self) -> End {
        match self {
            Self::Put(put) => End {
                local: put.buffer.address().cast_mut(),
                length: put.buffer.len(),
                on_device: put.buffer.is_on_device(),
                pull: false,
                in_blocks: put.layout.is_some(),
            },
            Self::Get(get) => End {
                local: get.buffer.address(),
                length: get.buffer.len(),
                on_device: get.buffer.is_on_device(),
                pull: true,
                in_blocks: get.layout.is_some(),
            },
            _ => unreachable!("neither a put nor a get"),
        }
    }

    /// The blocks of a put or get that has any.
    pub(crate) fn layout(&mut self) -> Option<&mut Plan> {
        match self {
            Self::Put(put) => put.layout.as_deref_mut(),
            Self::Get(get) => get.layout.as_deref_mut(),
            _ => None,
        }
    }

    /// What it is for flushes and fences, if they wait for it.
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::Put(_) | Self::Get(_) => Some(Kind::Access),
            Self::Atomic(atomic) => Some(match atomic.asks {
                Ask::Settle => Kind::Question,
                _ => Kind::Access,
            }),
            Self::Send(_) => Some(Kind::Message),
            _ => None,
        }
    }

    /// What it is, for people.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Send(_) => "send",
            Self::Claim(_) | Self::Recv(Recv { claims: true, .. }) => "claim",
            Self::Recv(_) => "receive",
            Self::Put(_) => "put",
            Self::Get(_) => "get",
            Self::Atomic(_) => "atomic operation",
            Self::Serve(_) | Self::PutIn(_) | Self::Help { .. } | Self::Fill(_) => {
                "served for the peer"
            }
            Self::AmLanding { .. } => "active message receive",
            Self::StreamIn(_) | Self::StreamOut { .. } | Self::Write(_) => "stream",
            Self::Lent(_) | Self::Frame { .. } => "fragment",
            Self::Copy(_) => "copy",
            Self::Flush => "flush",
        }
    }
}

/// A place among those of a connection, or none, in four bytes.
#[derive(Clone, Copy)]
struct Place(u32);

impl Place {
    const NONE: Self = Self(u32::MAX);

    fn get(self) -> Option<u32> {
        (self.0 != u32::MAX).then_some(self.0)
    }
}

pub(crate) struct Entry {
    pub(crate) generation: u32,
    /// Where it is counted, until it is over.
    stamp: Option<Stamp>,
    pub(crate) link: Option<LinkId>,
    /// Where it stands among those of its connection.
    place: Place,
    pub(crate) waker: WakerSlot,
    pub(crate) detached: bool,
    pub(crate) outcome: Option<Ended>,
    /// Long, and moved into its place once: see [`Operations::work_of`].
    pub(crate) work: Box<Work>,
    pub(crate) priority: Priority,
    /// Uses of this entry's memory that a link or interface has not ended yet. No outcome becomes visible, and the entry stays, while there
    /// are any.
    pub(crate) in_flight: u32,
    /// The outcome that waits for them.
    pub(crate) deferred: Option<Ended>,
    /// Where it stands in the queue of its link.
    pub(crate) queued: Option<Class>,
    /// One-copy transfers that touch this entry's memory.
    pub(crate) copies: u16,
    /// So many times [`plan::TOLD`] bytes were moved by the peer, as it says.
    pub(crate) told: u16,
    /// A receive whose future is gone and whose message keeps its place ([`Body::Arriving`]).
    pub(crate) keeps_place: bool,
    /// The receive that has matched that message.
    pub(crate) successor: Option<Box<OpKey>>,
    /// A receive of an active message: once its future is gone, so is the message.
    pub(crate) discards: bool,
    /// Its bytes may not stop in host memory between two places.
    pub(crate) unstaged: bool,
    /// What engines of devices do for it.
    pub(crate) staged: Option<Box<Staged>>,
    /// What network devices do for it.
    pub(crate) one_sided: Option<Box<OneSided>>,
    /// They have a short put or get, which `one_sided` knows nothing of: in one piece, through the link's memory.
    pub(crate) is_short: bool,
    /// Such a one is of a device's memory there: by messages it would stop in host memory.
    pub(crate) to_device: bool,
}

/// How many boxes for work are kept. More than these at a time, some 128 KiB, and the allocator is asked: what a burst took is not held for good.
const SPARES: usize = 1024;

/// It is moved for every operation that is not over at once.
const _: () = assert!(size_of::<Entry>() <= 128);

#[derive(Default)]
pub(crate) struct Operations {
    entries: Slab<Entry>,
    /// Boxes for work that is to come, [`SPARES`] at most.
    #[allow(clippy::vec_box, reason = "boxes are what is kept")]
    spares: Vec<Box<Work>>,
    generation: u32,
    entered: u64,
    /// What flushes and fences wait for.
    pub(super) epochs: Epochs,
    /// Slots of each connection's, by the link's place. Those of an earlier connection are there as long as their futures are.
    members: Vec<Vec<u32>>,
    #[cfg(test)]
    looked_at: std::cell::Cell<usize>,
}

impl Operations {
    pub(crate) fn insert(&mut self, link: Option<LinkId>, detached: bool, work: Work) -> OpKey {
        let stamp = match (link, work.kind()) {
            (Some(link), Some(kind)) => self.epochs.begun(link, kind),
            _ => None,
        };
        trace::operation(work.name(), 0, "entered in the table");
        let work = match self.spares.pop() {
            Some(mut spare) => {
                *spare = work;
                spare
            }
            None => Box::new(work),
        };
        let key = self.enter(|generation| Entry {
            stamp,
            detached,
            ..Entry::new(generation, work)
        });
        if let Some(link) = link {
            self.join(key.slot(), link);
        }
        key
    }

    /// The entry is made where it stays, as far as the compiler sees to that.
    #[inline(always)]
    fn enter(&mut self, make: impl FnOnce(u32) -> Entry) -> OpKey {
        self.generation = self.generation.wrapping_add(1);
        self.entered += 1;
        let place = self.entries.vacant_entry();
        let key = OpKey::new(place.key() as u32, self.generation);
        place.insert(make(self.generation));
        key
    }

    /// An operation that belonged to no connection has found its own.
    #[inline]
    pub(crate) fn attach(&mut self, key: OpKey, link: LinkId) -> Option<&mut Entry> {
        let entry = self.get(key)?;
        let before = entry.link.zip(entry.place.get());
        if before.is_none_or(|(before, _)| before != link) {
            if let Some((before, place)) = before {
                self.leave(before, place);
            }
            self.join(key.slot(), link);
        }
        self.get(key)
    }

    fn join(&mut self, slot: usize, link: LinkId) {
        if self.members.len() <= link.index() {
            self.members.resize_with(link.index() + 1, Vec::new);
        }
        let members = &mut self.members[link.index()];
        let entry = &mut self.entries[slot];
        (entry.link, entry.place) = (Some(link), Place(members.len() as u32));
        members.push(slot as u32);
    }

    /// The last of the connection's takes the place.
    fn leave(&mut self, link: LinkId, place: u32) {
        let members = &mut self.members[link.index()];
        members.swap_remove(place as usize);
        if let Some(moved) = members.get(place as usize) {
            self.entries[*moved as usize].place = Place(place);
        }
    }

    #[inline]
    pub(crate) fn get(&mut self, key: OpKey) -> Option<&mut Entry> {
        self.entries
            .get_mut(key.slot())
            .filter(|entry| entry.generation == key.generation())
    }

    /// What an operation is.
    #[inline]
    pub(crate) fn work(&mut self, key: OpKey) -> Option<&mut Work> {
        Some(&mut *self.get(key)?.work)
    }

    /// The operation that a peer names, if it is one of its connection.
    #[inline]
    pub(crate) fn named(&mut self, link: LinkId, key: OpKey) -> Option<&mut Entry> {
        self.get(key).filter(|entry| entry.link == Some(link))
    }

    /// The same, unless it has ended: its future may take it, and its memory, at any time, and what a peer says of it is an echo.
    #[inline]
    pub(crate) fn waiting(&mut self, link: LinkId, key: OpKey) -> Option<&mut Entry> {
        self.named(link, key).filter(|entry| entry.is_under_way())
    }

    pub(crate) fn remove(&mut self, key: OpKey) -> Option<Entry> {
        let entry = self.get(key)?;
        let (link, place, stamp) = (entry.link, entry.place.get(), entry.stamp);
        if let (Some(link), Some(place)) = (link, place) {
            self.leave(link, place);
        }
        if let (Some(link), Some(stamp)) = (link, stamp) {
            self.epochs.ended(link, stamp);
        }
        // Last, so that it is moved once.
        Some(self.entries.remove(key.slot()))
    }

    /// The work of an entry that was removed. Its box is for the next: the allocator is not asked for each.
    pub(crate) fn work_of(&mut self, mut entry: Entry) -> Work {
        let work = std::mem::replace(&mut *entry.work, Work::Flush);
        if self.spares.len() < SPARES {
            self.spares.push(entry.work);
        }
        work
    }

    /// Removes an operation of which only the work is of use.
    pub(crate) fn take_work(&mut self, key: OpKey) -> Option<Work> {
        let entry = self.remove(key)?;
        Some(self.work_of(entry))
    }

    /// Something has happened to an operation that flushes and fences may wait for: tells them if it is over.
    #[inline]
    pub(crate) fn note_over(&mut self, key: OpKey) {
        if let Some(entry) = self.get(key)
            && entry.stamp.is_some()
            && entry.is_over()
            && let (Some(link), Some(stamp)) = (entry.link, entry.stamp.take())
        {
            self.epochs.ended(link, stamp);
        }
    }

    /// A flush or a fence waits for what was begun so far on its connection. `false`: that has ended.
    pub(super) fn wait(&mut self, link: LinkId, wait: Wait, key: OpKey) -> bool {
        let waits = |key| waits(&self.entries, key);
        self.epochs.wait(link, wait, key, waits)
    }

    /// The next flush or fence of a connection that need not wait any more.
    pub(super) fn next_over(&mut self, link: LinkId, wait: Wait) -> Option<OpKey> {
        loop {
            let key = self.epochs.next_over(link, wait)?;
            if waits(&self.entries, key) {
                return Some(key);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many there have ever been.
    pub(crate) fn entered(&self) -> u64 {
        self.entered
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (OpKey, &Entry)> {
        self.entries.iter().map(|(slot, entry)| {
            #[cfg(test)]
            self.looked_at.set(self.looked_at.get() + 1);
            (OpKey::new(slot as u32, entry.generation), entry)
        })
    }

    /// How many were looked at, by who looked at all.
    #[cfg(test)]
    pub(super) fn looked_at(&self) -> usize {
        self.looked_at.get()
    }

    /// All operations of a link, in no order.
    pub(crate) fn of_link(&self, link: LinkId) -> impl Iterator<Item = (OpKey, &Entry)> {
        let members = self
            .members
            .get(link.index())
            .map_or(&[][..], Vec::as_slice);
        members
            .iter()
            .map(|slot| {
                #[cfg(test)]
                self.looked_at.set(self.looked_at.get() + 1);
                let entry = &self.entries[*slot as usize];
                (OpKey::new(*slot, entry.generation), entry)
            })
            .filter(move |(_, entry)| entry.link == Some(link))
    }

    /// Their keys.
    pub(crate) fn keys_of_link(&self, link: LinkId) -> Vec<OpKey> {
        self.of_link(link).map(|(key, _)| key).collect()
    }
}

/// Whether a flush or a fence is still there, and has not ended another way.
fn waits(entries: &Slab<Entry>, key: OpKey) -> bool {
    entries
        .get(key.slot())
        .is_some_and(|entry| entry.generation == key.generation() && entry.outcome.is_none())
}

impl Entry {
    #[inline(always)]
    fn new(generation: u32, work: Box<Work>) -> Self {
        Self {
            generation,
            stamp: None,
            link: None,
            place: Place::NONE,
            waker: WakerSlot::default(),
            detached: false,
            outcome: None,
            work,
            priority: Priority::Normal,
            in_flight: 0,
            deferred: None,
            queued: None,
            copies: 0,
            told: 0,
            keeps_place: false,
            successor: None,
            discards: false,
            unstaged: false,
            staged: None,
            one_sided: None,
            is_short: false,
            to_device: false,
        }
    }

    /// Whether flushes and fences need not wait for it.
    fn is_over(&self) -> bool {
        match &*self.work {
            // It has ended, but a link still holds its memory: how it ended is noted only then.
            Work::Put(_) if self.deferred.is_some() => false,
            Work::Put(put) => {
                put.acknowledged && !put.signal_due
                    || matches!(self.outcome, Some(Ended::Done(Err(_))))
            }
            _ => self.outcome.is_some(),
        }
    }

    /// Whether it has not ended in any way, visibly or not.
    #[inline]
    pub(crate) fn is_under_way(&self) -> bool {
        self.outcome.is_none() && self.deferred.is_none()
    }

    /// Whether network devices move its bytes.
    #[inline]
    pub(crate) fn is_moved(&self) -> bool {
        self.is_short || matches!(self.one_sided.as_deref(), Some(OneSided::Moves(_)))
    }

    /// Whether it is a message that counts among the announced and that the peer has not answered; it counts as answered from now on.
    pub(crate) fn was_announced(&mut self) -> bool {
        match &mut *self.work {
            Work::Send(send) if matches!(send.stage, SendStage::Announced) => {
                send.stage = SendStage::AwaitMatch;
                send.counts()
            }
            _ => false,
        }
    }

    /// Whether bytes of the peer land in its memory.
    pub(crate) fn takes_bytes(&self) -> bool {
        matches!(*self.work, Work::Recv(_) | Work::Get(_))
    }

    /// What its future gets for how it ended: with its buffer, where it has one.
    pub(crate) fn settle(&mut self, ended: Ended) -> Outcome {
        let result = match ended {
            Ended::Done(result) => result,
            Ended::Lost(error) => return Outcome::Done(Err(error)),
            Ended::Claimed(message) => return Outcome::Claimed(Ok(message)),
            Ended::Value(value) => return Outcome::Value(value),
        };
        let (buffer, arrival) = match (&mut *self.work, result) {
            (Work::Claim(_) | Work::Recv(Recv { claims: true, .. }), Err(error)) => {
                return Outcome::Claimed(Err(error));
            }
            (Work::Recv(recv), result) => {
                let arrival = recv.arrival.unwrap_or_else(|| Arrival::unnamed(0));
                (&mut recv.buffer, result.map(|()| arrival))
            }
            (Work::Get(get), result) => {
                let arrival = Arrival::unnamed(get.buffer.len());
                (&mut get.buffer, result.map(|()| arrival))
            }
            (Work::Copy(copy), result) => {
                let arrival = Arrival::unnamed(copy.from.len());
                (&mut copy.to, result.map(|()| arrival))
            }
            (_, result) => return Outcome::Done(result),
        };
        Outcome::Buffer(arrival, std::mem::take(buffer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each connection finds its own operations, in places that others had before.
    #[test]
    fn a_connection_has_its_own() {
        let mut operations = Operations::default();
        let links = [LinkId::new(0, 1), LinkId::new(1, 2), LinkId::new(0, 3)];
        let (mut keys, mut seed) = (Vec::new(), 1_u64);
        let mut below = |end: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 33) as usize % end
        };
        for _ in 0..5000 {
            match below(5) {
                0 => keys.push(operations.insert(None, false, Work::Flush)),
                1 => keys.push(operations.insert(Some(links[below(3)]), false, Work::Flush)),
                2 if !keys.is_empty() => {
                    let (key, link) = (keys[below(keys.len())], links[below(3)]);
                    let entry = operations.attach(key, link).expect("it is there");
                    assert_eq!(entry.link, Some(link));
                }
                3 if !keys.is_empty() => {
                    let key = keys.swap_remove(below(keys.len()));
                    assert!(operations.remove(key).is_some());
                    assert!(operations.attach(key, links[0]).is_none());
                }
                _ => {}
            }
            for link in links {
                let mut found = operations.keys_of_link(link);
                let all = operations
                    .iter()
                    .filter(|(_, entry)| entry.link == Some(link));
                let wanted: Vec<OpKey> = all.map(|(key, _)| key).collect();
                found.sort_by_key(|key| key.slot());
                assert_eq!(found, wanted);
            }
        }
    }
}
