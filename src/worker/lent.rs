//! Which lent messages have found no receive, and since when. `verbs/lent.rs` has what becomes of them.

use std::collections::VecDeque;

use crate::{
    protocol::matching::{Arrival, Name},
    types::LinkId,
};

/// Passes that a receive has time for: some microseconds where nothing else is to be done.
const PATIENCE: u64 = 64;

/// What waits, in the order in which it came. Some of it may be gone.
#[derive(Default)]
pub(crate) struct Unmatched {
    waiting: VecDeque<Waiting>,
    /// Passes made while something waited.
    passes: u64,
}

/// A lent message: by its name, which its sender may give to another once it has called this one back, and when it arrived.
#[derive(Clone, Copy)]
pub(in crate::worker) struct Waiting {
    pub(in crate::worker) name: Name,
    pub(in crate::worker) arrival: Arrival,
    until: u64,
}

impl Unmatched {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// A lent message is kept.
    pub(in crate::worker) fn add(&mut self, name: Name, arrival: Arrival) {
        self.waiting.push_back(Waiting {
            name,
            arrival,
            until: self.passes + PATIENCE,
        });
    }

    /// A pass begins.
    pub(in crate::worker) fn pass(&mut self) {
        self.passes += 1;
    }

    /// The first one, and whether it has waited for long enough.
    pub(in crate::worker) fn first(&self) -> Option<(Waiting, bool)> {
        let first = *self.waiting.front()?;
        Some((first, first.until <= self.passes))
    }

    pub(in crate::worker) fn forget_first(&mut self) {
        self.waiting.pop_front();
    }

    /// Those of one connection, which are not waited for any more.
    pub(in crate::worker) fn forget_of(&mut self, link: LinkId) -> Vec<Waiting> {
        let is_of_it =
            |waiting: &Waiting| matches!(waiting.name, Name::Announced(of, _) if of == link);
        let of_it = self.waiting.iter().copied().filter(is_of_it).collect();
        self.waiting.retain(|waiting| !is_of_it(waiting));
        of_it
    }
}
