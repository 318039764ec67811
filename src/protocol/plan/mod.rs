//! Which way bytes go, as functions of plain values.
//!
//! Each choice is made here and nowhere else. The data path asks with what it has in hand, at the moment that it knows it; `explain` asks with what may
//! be, once for each condition that only that moment tells, and so names the same ways in the same order.
//!
//! ```text
//! message   unasked? ──▶ eager, or lent
//!              │ announced ─▶ comes(): within, copied, by devices, pulled (reaches()), in fragments
//! put, get  accesses(): within, straight, by devices, announced and pulled (reaches()), in parts, by messages
//! copy      moves(): by the processor, by an engine, through a fragment, across two accelerators
//! stream    lends(): which owned buffers the reader copies
//! ```
//!
//! Where two ways differ by what the machine is, a connection measures both: `ways`.

pub(crate) mod ways;

use crate::protocol::{
    thresholds::Lending,
    window::{Terms, eager_cost, eager_need},
};

/// Bytes that one end of a copy between two processes claims at a time: about 5 to 10 µs.
pub(crate) const CHUNK: usize = 64 << 10;

/// Who moves the bytes of the peer's operation alone says after each so many how far it is: they take 300 µs at the least, and the message with a wake-up of the peer a
/// hundredth of that.
pub(crate) const TOLD: usize = 16 << 20;

/// How often that is in so many bytes, as far as it is told.
pub(crate) fn told(bytes: usize) -> u16 {
    u16::try_from(bytes / TOLD).unwrap_or(u16::MAX)
}
/// From this size on the peer is given the segment that a wharf-owned buffer lives in, and copying is shared.
pub(crate) const SHARE_FROM: usize = 128 << 10;
/// From this length on a message that could leave unasked may be lent: its receiver, or both ends, copy it out of its sender's memory, where that was measured to be
/// the faster way. A shorter one takes less time than what lending costs beside its copy.
pub(crate) const LENT_FROM: usize = 32 << 10;
/// From this size on the owner of exposed memory is asked to copy along.
pub(crate) const JOIN_FROM: usize = 256 << 10;
/// From this length on the round trip for the way to a peer's device memory pays: below it, fragments are as fast.
pub(crate) const ROUTE_FROM: usize = 32 << 10;

/// A kind of message, each with a window of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Tagged,
    Active,
}

/// Whether a message of `length` bytes, of which the longest that the link takes unasked has `eager`, is sent without asking. What the host does not reach is
/// announced, however short, and so is what the window never holds.
#[inline]
pub(crate) const fn is_unasked(
    kind: Message,
    length: usize,
    eager: usize,
    on_device: bool,
) -> bool {
    let finds_room = match kind {
        Message::Tagged => eager_need(length) <= Terms::EAGER.size,
        Message::Active => eager_cost(length) <= Terms::ACTIVE.size,
    };
    length <= eager && finds_room && !on_device
}

/// How an announced message comes to its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comes {
    /// A copy within the worker, which has sent it itself.
    Within,
    /// In parts that the receiver asks for, or as [`reaches`] has it.
    Pulled,
    /// Straight out of the sender's memory.
    Copied,
    /// By network devices.
    Devices,
    /// In fragments, which the sender cuts.
    Fragments,
}

/// The ways of a message between memories of which devices have some, in the order in which they are tried: the last can always be taken. `own`: of this worker's.
#[inline]
pub(crate) const fn comes(own: bool, from_device: bool, to_device: bool) -> &'static [Comes] {
    match (from_device, to_device) {
        (_, true) if own => &[Comes::Within],
        (_, true) => &[Comes::Devices, Comes::Pulled],
        (true, false) => &[Comes::Devices, Comes::Fragments],
        (false, false) => &[Comes::Copied, Comes::Devices, Comes::Fragments],
    }
}

/// Whether a message of this length is announced with a word in which both ends count what they have copied.
#[inline]
pub(crate) const fn counts(length: usize) -> bool {
    length >= SHARE_FROM
}

/// Whether both ends copy a message, one chunk or another, and one of a single chunk whichever end comes first; else the receiver alone does. `counted`: it came
/// with such a word.
#[inline]
pub(crate) const fn is_shared(cma: bool, counted: bool) -> bool {
    cma && counted
}

/// How a put or get goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accesses {
    /// A copy within the worker, which owns both memories.
    Within,
    /// Straight into or out of the peer's memory.
    Straight,
    /// By network devices.
    Devices,
    /// Announced, and pulled by the owner, as a message.
    Announced,
    /// Through fragments of this side's, each a put or get of its own.
    Parts,
    /// By messages that the owner serves.
    Messages,
}

/// The ways of a put, or a get, in the order in which they are tried: the last can always be taken. `here`, `there`: whether a device has the memory of this
/// side, and of the peer.
#[inline]
pub(crate) const fn accesses(
    put: bool,
    (here, there): (bool, bool),
    own: bool,
    length: usize,
) -> &'static [Accesses] {
    match (here, there) {
        // Its owner says whether it would have been let in.
        _ if length == 0 => &[Accesses::Messages],
        (false, false) => &[Accesses::Straight, Accesses::Devices, Accesses::Messages],
        _ if own => &[Accesses::Within],
        (_, true) if put => &[Accesses::Devices, Accesses::Announced],
        (false, true) => &[Accesses::Devices, Accesses::Messages],
        (true, _) => &[Accesses::Devices, Accesses::Parts],
    }
}

/// Whether the owner is asked to copy along, where this side copies straight.
#[inline]
pub(crate) const fn is_joined(cma: bool, length: usize) -> bool {
    cma && length >= JOIN_FROM
}

/// Why the engine of the end that pulls does not open the device memory at the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoWay {
    /// Nobody vouches for user and process at the other end.
    NoSharedMemory,
    /// It was tried, and will not change.
    Refused,
    /// The round trip would take longer.
    Short,
}

/// Whether the way to device memory of a peer on this host is asked for, so that the engine opens it. `unstaged`: the bytes may not stop.
pub(crate) const fn reaches(
    shares_memory: bool,
    refused: bool,
    length: usize,
    unstaged: bool,
) -> Result<(), NoWay> {
    if !shares_memory {
        Err(NoWay::NoSharedMemory)
    } else if refused {
        Err(NoWay::Refused)
    } else if length < ROUTE_FROM && !unstaged {
        Err(NoWay::Short)
    } else {
        Ok(())
    }
}

/// One end of a copy within the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// In reach of the host; whether it is pinned for the engine.
    Host { pinned: bool },
    /// Of a device that this accelerator serves.
    Device(usize),
}

/// What makes a copy within the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moves {
    Processor,
    /// An engine, by itself.
    Engine,
    /// An engine and the processor, with a stop in a fragment.
    Fragment,
    /// The engines of two accelerators and the processor, with a stop in a fragment of each.
    Across,
}

/// What makes a copy within the process. `pageable`: the engine takes host memory that is not pinned.
#[inline]
pub(crate) const fn moves(from: End, to: End, pageable: bool) -> Moves {
    match (from, to) {
        (End::Host { .. }, End::Host { .. }) => Moves::Processor,
        (End::Device(one), End::Device(other)) if one != other => Moves::Across,
        (End::Device(_), End::Device(_)) => Moves::Engine,
        (End::Device(_), End::Host { pinned }) | (End::Host { pinned }, End::Device(_)) => {
            match pinned || pageable {
                true => Moves::Engine,
                false => Moves::Fragment,
            }
        }
    }
}

/// Which owned buffers of this length the reader of a stream copies itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lends {
    /// Those in memory that both map.
    pub(crate) mapped: bool,
    /// Any, by the kernel.
    pub(crate) by_kernel: bool,
}

/// Which owned buffers the reader of a stream copies itself.
#[inline]
pub(crate) const fn lends(lending: Lending, cma: bool, length: usize) -> Lends {
    Lends {
        mapped: length >= lending.mapped,
        by_kernel: length >= lending.by_kernel && cma,
    }
}
