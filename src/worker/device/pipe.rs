//! The parts of a transfer that are under way, and what all transfers do with them.
//!
//! ```text
//!            next                                 total
//!   ┌─────────┬────────┬────────┬────────┬──────────┐
//!   │  done   │ part 3 │ part 4 │ part 5 │ not begun│
//!   └─────────┴────────┴────────┴────────┴──────────┘
//! ```

use std::collections::VecDeque;

use crate::{
    memory::{Buffer, run::Location},
    transport::CopyEnd,
    types::OpKey,
    worker::rma::Target,
};

use super::{engines::PLACE, order::Order, pool::Fragment, route::Route, within::Own};

/// Parts of one transfer that are under way at a time: one is copied, one on its way, one landing, one to spare.
pub(in crate::worker) const DEPTH: usize = 4;

/// What staging knows of an operation.
#[derive(Default)]
pub(crate) struct Staged {
    /// Copies that were asked of an engine and not reported. The entry and its memory stay as long as there are any.
    pub(crate) copies: u32,
    /// The operation that this one does a part of, and which.
    pub(crate) parent: Option<(OpKey, u32)>,
    /// Where that part travels from or to.
    pub(in crate::worker) fragment: Option<Fragment>,
    /// A message that came unasked, and what it takes of its sender's window until it is where it belongs.
    pub(in crate::worker) source: Option<Buffer>,
    pub(in crate::worker) credit: u64,
    /// Instead of that: this worker's own send that it is of, which ends with it.
    pub(in crate::worker) sender: Option<u64>,
    /// The other end of a put or get of this worker's own memory.
    pub(in crate::worker) own: Option<Own>,
    /// Where such a message lands whose payload is not here yet.
    pub(crate) landing: Vec<u8>,
    pub(in crate::worker) pipe: Option<Pipe>,
    /// With streams of the program's.
    pub(in crate::worker) order: Option<Box<Order>>,
}

/// What kind of transfer it is.
#[derive(Clone, Copy, Debug)]
pub(in crate::worker) enum Kind {
    /// Between two buffers of this process.
    Local,
    /// Onto a link.
    Serve,
    /// Into a byte stream.
    Write,
    /// Into a peer's host memory.
    Put { target: Target },
    /// Into device memory: parts of an announced operation of the peer.
    Pull {
        op: u64,
        /// Where in what was announced they begin.
        first: u64,
    },
    /// Into device memory, from a peer's region.
    Get { target: Target },
}

pub(in crate::worker) struct Pipe {
    pub(in crate::worker) kind: Kind,
    pub(in crate::worker) slot: usize,
    /// Engines of other accelerators that a copy needs besides.
    pub(in crate::worker) others: Vec<usize>,
    pub(in crate::worker) total: usize,
    /// The first byte that no part has.
    pub(in crate::worker) next: usize,
    /// Parts begin before this one: of a stream, what its window has room for.
    pub(in crate::worker) most: usize,
    /// Bytes of parts that are over.
    pub(in crate::worker) done: usize,
    /// Parts that an engine did not take, to be begun in another way: where, and bytes.
    pub(in crate::worker) again: Vec<(usize, usize)>,
    pub(in crate::worker) parts: VecDeque<Part>,
    pub(in crate::worker) id: u32,
    /// For an engine, or a fragment.
    pub(in crate::worker) waits: bool,
    /// The engine has not taken ordinary memory of this transfer.
    pub(in crate::worker) refused: bool,
    pub(in crate::worker) route: Route,
}

pub(in crate::worker) struct Part {
    pub(in crate::worker) id: u32,
    pub(in crate::worker) position: usize,
    pub(in crate::worker) length: usize,
    pub(in crate::worker) fragment: Option<Fragment>,
    /// Between two accelerators: the other one's, where it goes on from.
    pub(in crate::worker) onward: Option<(usize, Fragment)>,
    /// Copies of it that are not reported.
    pub(in crate::worker) copies: u32,
    /// The engine did not take a copy of it: [`CopyAttributes::pageable_from`](crate::transport::CopyAttributes::pageable_from).
    pub(in crate::worker) refused: bool,
    pub(in crate::worker) stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::worker) enum Stage {
    /// On its way into the fragment.
    Loading,
    /// In the fragment, for the link.
    Ready,
    /// Another operation carries it between the fragment and the peer.
    Travelling,
    /// On its way to where it belongs.
    Storing,
}

impl Pipe {
    pub(in crate::worker) fn new(kind: Kind, slot: usize, total: usize) -> Self {
        Self {
            kind,
            slot,
            others: Vec::new(),
            total,
            next: 0,
            most: match kind {
                Kind::Write => 0,
                _ => total,
            },
            done: 0,
            again: Vec::new(),
            parts: VecDeque::new(),
            id: 0,
            waits: false,
            refused: false,
            route: Route::Staged,
        }
    }

    /// What is in the fragment in front, for the link, where as much of the whole as `sent` has left.
    pub(in crate::worker) fn ready(&self, sent: usize) -> Option<(Fragment, *mut u8, usize)> {
        let part = self.parts.front()?;
        let fragment = part.fragment.clone()?;
        let within = sent - part.position;
        let address = fragment.address().wrapping_add(within);
        (part.stage == Stage::Ready).then_some((fragment, address, part.length - within))
    }

    /// More has left: whether that is all of the part in front, which ends.
    pub(in crate::worker) fn end_sent(&mut self, sent: usize) -> bool {
        let ended = self
            .parts
            .front()
            .filter(|part| sent == part.position + part.length)
            .map(|part| part.id);
        if let Some(id) = ended {
            self.end(id);
        }
        ended.is_some()
    }

    /// Where the next part is, and how many bytes it may have.
    pub(in crate::worker) fn ahead(&self) -> (usize, usize) {
        let again = self.again.last().copied();
        again.unwrap_or((self.next, self.total - self.next))
    }

    /// Begins the next part.
    pub(in crate::worker) fn begin(
        &mut self,
        length: usize,
        fragment: Option<Fragment>,
        stage: Stage,
    ) -> u32 {
        self.id = self.id.wrapping_add(1).max(PLACE + 1);
        let (position, _) = self.ahead();
        match self.again.last_mut() {
            Some((start, left)) => {
                (*start, *left) = (*start + length, left.saturating_sub(length));
                if *left == 0 {
                    self.again.pop();
                }
            }
            None => self.next += length,
        }
        self.parts.push_back(Part {
            id: self.id,
            position,
            length,
            fragment,
            onward: None,
            copies: 0,
            refused: false,
            stage,
        });
        self.id
    }

    pub(in crate::worker) fn part(&mut self, id: u32) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.id == id)
    }

    /// A part is over.
    pub(in crate::worker) fn end(&mut self, id: u32) {
        if let Some(index) = self.parts.iter().position(|part| part.id == id)
            && let Some(part) = self.parts.remove(index)
        {
            self.done += part.length;
        }
    }

    /// A part that an engine did not take is to be begun in another way.
    pub(in crate::worker) fn take_back(&mut self, id: u32) {
        if let Some(index) = self.parts.iter().position(|part| part.id == id)
            && let Some(part) = self.parts.remove(index)
        {
            self.again.push((part.position, part.length));
        }
    }

    /// Whether all parts have begun.
    pub(in crate::worker) fn has_begun(&self) -> bool {
        self.next == self.total && self.again.is_empty()
    }

    /// Whether another part may begin.
    pub(in crate::worker) fn has_room(&self) -> bool {
        !self.has_begun() && self.parts.len() < DEPTH
    }

    pub(in crate::worker) fn is_done(&self) -> bool {
        self.done == self.total
    }
}

/// A place as the engine takes it.
pub(in crate::worker) fn end(at: Location, pinned_here: bool) -> CopyEnd {
    match at {
        Location::Host { address, .. } => CopyEnd::Host {
            address,
            pinned: pinned_here,
        },
        Location::Device {
            address,
            memory_type,
        } => CopyEnd::Device {
            address,
            memory_type,
        },
    }
}
