//! The table of operations in flight. Each entry owns all that its operation touches; a future is only a key into it.

use std::{sync::Arc, time::Instant};

use slab::Slab;

use crate::{
    error::{Error, Result},
    memory::{Buffer, BufferMut, region::Exposed},
    protocol::{
        control::{self, Signal},
        layout::Places,
        matching::{Arrival as Order, PostId},
    },
    trace,
    transport::DeviceAtomic,
    types::{DeviceKey, EndpointId, LinkId, OpKey, Priority, Tag},
    util::waker_slot::WakerSlot,
    worker::{
        blocks::Answer,
        device::{DeviceWrite, Fragment, Lent, LocalCopy, Staged},
        layout::Plan,
        one_sided::OneSided,
        signal::Raise,
    },
};

/// What a receive or a get ended with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) length: usize,
    pub(crate) tag: Tag,
    pub(crate) from: EndpointId,
}

/// How an operation ended, as its future will find it.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(Result<()>),
    Buffer {
        result: Result<Arrival>,
        buffer: Option<BufferMut>,
    },
    /// Boxed, as is what is rare in an entry: the rest is moved for every message.
    Claimed(Result<Box<(Order, Unexpected)>>),
    /// The old value of an atomic operation.
    Value(u64),
}

impl Outcome {
    /// Why it failed, if it did.
    pub(crate) fn error(&self) -> Option<&Error> {
        match self {
            Self::Done(Err(error))
            | Self::Buffer {
                result: Err(error), ..
            }
            | Self::Claimed(Err(error)) => Some(error),
            _ => None,
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

impl Unexpected {
    pub(crate) fn len(&self) -> usize {
        match &self.body {
            Body::Inline { length, .. } => usize::from(*length),
            Body::Whole { data, .. } => data.len(),
            Body::Announced(rts) => rts.length as usize,
            Body::Arriving { length, .. } => *length,
        }
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
}

pub(crate) enum RecvStage {
    /// In the queue of posted receives.
    Posted(PostId),
    /// Matched; the bytes arrive one after the other.
    Landing { expected: usize, got: usize },
    /// Matched; being copied out of the sender's memory.
    Copying,
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

/// An atomic operation that the owner of the word does, or the question what became of signals.
pub(crate) struct Atomic {
    /// `None` for the question.
    pub(crate) message: Option<control::Atomic>,
    /// The old value is asked for.
    pub(crate) fetch: bool,
    pub(crate) sent: bool,
    /// What a network device is to do instead of the owner.
    pub(crate) device: Option<DeviceWord>,
}

/// A word that network devices do atomics on.
pub(crate) struct DeviceWord {
    pub(crate) atomic: DeviceAtomic,
    pub(crate) address: u64,
    /// One device's: they are atomic among each other only there.
    pub(crate) key: Option<DeviceKey>,
}

/// Where the bytes of a [`Serve`] are.
#[derive(Clone)]
pub(crate) enum Source {
    Region(Arc<Exposed>),
    /// Of an operation that was announced.
    Message(Buffer),
}

/// What a peer asked for: a get, or a part of what was announced to it.
pub(crate) struct Serve {
    pub(crate) source: Source,
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) out: Outgoing,
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
    PutIn {
        exposed: Arc<Exposed>,
        ack: Option<u64>,
        signal: Option<Box<Raise>>,
    },
    /// A claim that met a long message, which is landing in memory of its own.
    ClaimLanding {
        data: Vec<u8>,
        tag: Tag,
        from: EndpointId,
        order: Order,
    },
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
        _fragment: Fragment,
    },
    /// A copy between two memories of this process.
    Copy(LocalCopy),
    /// All operations so far, or, for a fence, all accesses to remote memory.
    Flush {
        before: u64,
        fence: bool,
        /// The operation that asks what became of signals.
        settle: Option<OpKey>,
    },
}

impl Work {
    /// What it is, for people.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Send(_) => "send",
            Self::Recv(_) => "receive",
            Self::Claim(_) | Self::ClaimLanding { .. } => "claim",
            Self::Put(_) => "put",
            Self::Get(_) => "get",
            Self::Atomic(_) => "atomic operation",
            Self::Serve(_) | Self::PutIn { .. } | Self::Help { .. } | Self::Fill(_) => {
                "served for the peer"
            }
            Self::AmLanding { .. } => "active message receive",
            Self::StreamIn(_) | Self::StreamOut { .. } | Self::Write(_) => "stream",
            Self::Lent(_) | Self::Frame { .. } => "fragment",
            Self::Copy(_) => "copy",
            Self::Flush { .. } => "flush",
        }
    }
}

pub(crate) struct Entry {
    pub(crate) generation: u32,
    pub(crate) sequence: u64,
    pub(crate) link: Option<LinkId>,
    pub(crate) waker: WakerSlot,
    pub(crate) detached: bool,
    pub(crate) since: Option<Instant>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) work: Work,
    pub(crate) priority: Priority,
    /// Uses of this entry's memory that a link or interface has not ended yet. No outcome becomes visible, and the entry stays, while there
    /// are any.
    pub(crate) in_flight: u32,
    /// The outcome that waits for them.
    pub(crate) deferred: Option<Box<Outcome>>,
    /// Whether it stands in the queue of its link.
    pub(crate) queued: bool,
    /// One-copy transfers that touch this entry's memory.
    pub(crate) copies: u32,
    /// A receive whose future is gone and whose message keeps its place ([`Body::Arriving`]).
    pub(crate) keeps_place: bool,
    /// The receive that has matched that message.
    pub(crate) successor: Option<OpKey>,
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
}

#[derive(Default)]
pub(crate) struct Operations {
    entries: Slab<Entry>,
    generation: u32,
    sequence: u64,
}

impl Operations {
    pub(crate) fn insert(&mut self, link: Option<LinkId>, detached: bool, work: Work) -> OpKey {
        trace::operation(work.name(), 0, "entered in the table");
        self.generation = self.generation.wrapping_add(1);
        self.sequence += 1;
        let (generation, sequence) = (self.generation, self.sequence);
        let slot = self.entries.insert(Entry {
            generation,
            sequence,
            link,
            waker: WakerSlot::default(),
            detached,
            since: None,
            outcome: None,
            work,
            priority: Priority::Normal,
            in_flight: 0,
            deferred: None,
            queued: false,
            copies: 0,
            keeps_place: false,
            successor: None,
            discards: false,
            unstaged: false,
            staged: None,
            one_sided: None,
            is_short: false,
        });
        OpKey::new(slot as u32, generation)
    }

    #[inline]
    pub(crate) fn get(&mut self, key: OpKey) -> Option<&mut Entry> {
        self.entries
            .get_mut(key.slot())
            .filter(|entry| entry.generation == key.generation())
    }

    pub(crate) fn remove(&mut self, key: OpKey) -> Option<Entry> {
        self.get(key)?;
        Some(self.entries.remove(key.slot()))
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (OpKey, &Entry)> {
        self.entries
            .iter()
            .map(|(slot, entry)| (OpKey::new(slot as u32, entry.generation), entry))
    }

    /// Keys of all operations of a link.
    pub(crate) fn of_link(&self, link: LinkId) -> Vec<OpKey> {
        self.iter()
            .filter(|(_, entry)| entry.link == Some(link))
            .map(|(key, _)| key)
            .collect()
    }
}

impl Entry {
    /// Whether network devices move its bytes.
    #[inline]
    pub(crate) fn is_moved(&self) -> bool {
        self.is_short || matches!(self.one_sided.as_deref(), Some(OneSided::Moves(_)))
    }

    /// Whether its next step is in `layout.rs`.
    #[inline]
    pub(crate) fn has_layout(&self) -> bool {
        match &self.work {
            Work::Put(put) => put.layout.is_some() && !put.signal_due,
            Work::Get(get) => get.layout.is_some(),
            Work::Serve(serve) => serve.answer.is_some(),
            _ => false,
        }
    }

    /// Whether it is a message that counts among the announced and that the peer has not answered; it counts as answered from now on.
    pub(crate) fn was_announced(&mut self) -> bool {
        match &mut self.work {
            Work::Send(send) if matches!(send.stage, SendStage::Announced) => {
                send.stage = SendStage::AwaitMatch;
                send.counts()
            }
            _ => false,
        }
    }

    /// The error-or-nothing outcome that fits the work.
    pub(crate) fn failure(&mut self, error: Error) -> Outcome {
        match &mut self.work {
            Work::Recv(recv) => Outcome::Buffer {
                result: Err(error),
                buffer: Some(std::mem::replace(
                    &mut recv.buffer,
                    BufferMut::from(Vec::new()),
                )),
            },
            Work::Get(get) => Outcome::Buffer {
                result: Err(error),
                buffer: Some(std::mem::replace(
                    &mut get.buffer,
                    BufferMut::from(Vec::new()),
                )),
            },
            Work::Copy(copy) => Outcome::Buffer {
                result: Err(error),
                buffer: Some(std::mem::take(&mut copy.to)),
            },
            Work::Claim(_) | Work::ClaimLanding { .. } => Outcome::Claimed(Err(error)),
            _ => Outcome::Done(Err(error)),
        }
    }
}
