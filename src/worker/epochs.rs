//! What flushes and fences wait for, in numbers: none of them looks at the operations.
//!
//! ```text
//!   put  send  put │ get │ send            epoch 3 │ 4 │ 5
//!                flush  fence              the flush ends 3, the fence ends 4
//! ```
//!
//! Each flush or fence of the worker ends an epoch; an operation belongs to the one that it was begun in. A connection has, for each kind of operation,
//! the epochs of which some are left, and how many. Whoever waits is over once the oldest epoch that is left is later than its own.

use std::{collections::VecDeque, num::NonZeroU64};

use crate::types::{LinkId, OpKey};

/// What an operation is for those that wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// To remote memory.
    Access,
    /// A tagged or an active one.
    Message,
    /// What became of signals.
    Question,
}

const KINDS: usize = 3;

/// Who waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    /// For accesses.
    Fence,
    /// For accesses and messages.
    Flush,
    /// A flush, for the answers to what it asked when those were over.
    Settle,
}

const WAITS: usize = 3;

impl Wait {
    const fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Fence => &[Kind::Access],
            Self::Flush => &[Kind::Access, Kind::Message],
            Self::Settle => &[Kind::Question],
        }
    }
}

/// Where an operation is counted: epoch and kind, in eight bytes and never zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp(NonZeroU64);

impl Stamp {
    #[inline]
    fn new(epoch: u64, kind: Kind) -> Self {
        Self(NonZeroU64::MIN | epoch << 3 | (kind as u64) << 1)
    }

    const fn epoch(self) -> u64 {
        self.0.get() >> 3
    }

    const fn kind(self) -> usize {
        (self.0.get() >> 1 & 3) as usize
    }
}

/// Operations that are left, by epoch.
#[derive(Debug, Default)]
struct Left {
    /// The newest epoch and how many are left of it: as a rule the only one, and there may be none.
    newest: (u64, usize),
    /// Those before. Epochs of which none is left are not here.
    older: VecDeque<(u64, usize)>,
}

impl Left {
    #[inline]
    fn begun(&mut self, epoch: u64) {
        if self.newest.0 == epoch {
            self.newest.1 += 1;
        } else {
            self.next(epoch);
        }
    }

    #[cold]
    fn next(&mut self, epoch: u64) {
        if self.newest.1 > 0 {
            self.older.push_back(self.newest);
        }
        self.newest = (epoch, 1);
    }

    /// One has ended. Whether the oldest epoch has with it.
    #[inline]
    fn ended(&mut self, epoch: u64) -> bool {
        if self.newest.0 != epoch {
            return self.ended_before(epoch);
        }
        self.newest.1 -= 1;
        self.newest.1 == 0 && self.older.is_empty()
    }

    #[cold]
    fn ended_before(&mut self, epoch: u64) -> bool {
        let Ok(place) = self.older.binary_search_by_key(&epoch, |(epoch, _)| *epoch) else {
            return false;
        };
        let left = &mut self.older[place].1;
        *left -= 1;
        if *left > 0 {
            return false;
        }
        self.older.remove(place);
        place == 0
    }

    fn is_empty(&self) -> bool {
        self.newest.1 == 0 && self.older.is_empty()
    }

    /// Whether none is left of this epoch or an earlier one.
    fn is_over(&self, epoch: u64) -> bool {
        let oldest = self.older.front().unwrap_or(&self.newest);
        oldest.1 == 0 || oldest.0 > epoch
    }
}

/// Those that wait, in order, which is also the order of their epochs. Some may have gone.
#[derive(Debug, Default)]
struct Waiting {
    keys: VecDeque<(u64, OpKey)>,
    /// From this many on it is worth looking for those that have gone.
    limit: usize,
}

impl Waiting {
    pub(in crate::worker) fn push(
        &mut self,
        epoch: u64,
        key: OpKey,
        waits: impl Fn(OpKey) -> bool,
    ) {
        if self.keys.len() >= self.limit {
            self.keys.retain(|(_, key)| waits(*key));
            self.limit = 8.max(2 * self.keys.len());
        }
        self.keys.push_back((epoch, key));
    }
}

#[derive(Debug, Default)]
struct Connection {
    /// `None`: there is none in this place.
    link: Option<LinkId>,
    /// Most connections stand idle, and take no memory for this before their first operation.
    counts: Option<Box<Counts>>,
}

#[derive(Debug, Default)]
struct Counts {
    left: [Left; KINDS],
    waiting: [Waiting; WAITS],
    is_due: bool,
}

/// The epochs of a worker.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    now: u64,
    /// By the link's place.
    connections: Vec<Connection>,
    /// Connections that somebody waits on who may be over.
    due: Vec<LinkId>,
}

impl Epochs {
    #[inline]
    fn connection(&mut self, link: LinkId) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(link.index())?;
        (connection.link == Some(link)).then_some(connection)
    }

    /// Its counts, if there were any.
    #[inline]
    fn at(&mut self, link: LinkId) -> Option<&mut Counts> {
        self.connection(link)?.counts.as_deref_mut()
    }

    #[inline]
    fn at_or_new(&mut self, link: LinkId) -> Option<&mut Counts> {
        let counts = &mut self.connection(link)?.counts;
        Some(counts.get_or_insert_default())
    }

    /// Counts for a new connection.
    pub(super) fn open(&mut self, link: LinkId) {
        let places = self.connections.len().max(link.index() + 1);
        self.connections.resize_with(places, Connection::default);
        self.connections[link.index()] = Connection {
            link: Some(link),
            counts: None,
        };
    }

    /// Counts no more: the connection has ended, and whoever waited has been told.
    pub(super) fn close(&mut self, link: LinkId) {
        if let Some(connection) = self.connection(link) {
            *connection = Connection::default();
        }
    }

    /// Counts an operation that begins.
    #[inline]
    pub(super) fn begun(&mut self, link: LinkId, kind: Kind) -> Option<Stamp> {
        let epoch = self.now;
        self.at_or_new(link)?.left[kind as usize].begun(epoch);
        Some(Stamp::new(epoch, kind))
    }

    /// An operation is over.
    #[inline]
    pub(super) fn ended(&mut self, link: LinkId, stamp: Stamp) {
        let Some(counts) = self.at(link) else {
            return;
        };
        if counts.left[stamp.kind()].ended(stamp.epoch())
            && !counts.is_due
            && counts
                .waiting
                .iter()
                .any(|waiting| !waiting.keys.is_empty())
        {
            counts.is_due = true;
            self.due.push(link);
        }
    }

    /// Whether an operation of this kind is left.
    pub(super) fn has(&mut self, link: LinkId, kind: Kind) -> bool {
        self.at(link)
            .is_some_and(|counts| !counts.left[kind as usize].is_empty())
    }

    /// Ends the epoch: `key` waits for what was begun so far. `waits` tells who still does. `false`: there is no such connection.
    pub(super) fn wait(
        &mut self,
        link: LinkId,
        wait: Wait,
        key: OpKey,
        waits: impl Fn(OpKey) -> bool,
    ) -> bool {
        let epoch = self.now;
        let Some(counts) = self.at_or_new(link) else {
            return false;
        };
        counts.waiting[wait as usize].push(epoch, key, waits);
        self.now += 1;
        true
    }

    /// The next that need not wait any more.
    pub(super) fn next_over(&mut self, link: LinkId, wait: Wait) -> Option<OpKey> {
        let counts = self.at(link)?;
        let (epoch, key) = *counts.waiting[wait as usize].keys.front()?;
        let is_over = |kind: &Kind| counts.left[*kind as usize].is_over(epoch);
        if !wait.kinds().iter().all(is_over) {
            return None;
        }
        counts.waiting[wait as usize].keys.pop_front();
        Some(key)
    }

    #[inline]
    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// The next connection to look at.
    pub(super) fn next_due(&mut self) -> Option<LinkId> {
        let link = self.due.pop()?;
        if let Some(counts) = self.at(link) {
            counts.is_due = false;
        }
        Some(link)
    }

    /// How many places those that wait on a connection take.
    #[cfg(test)]
    pub(super) fn waiting(&mut self, link: LinkId) -> usize {
        self.at(link).map_or(0, |counts| {
            let waiting = counts.waiting.iter();
            waiting.map(|waiting| waiting.keys.len()).sum()
        })
    }
}
