//! Which lent messages have found no receive, and since when. `verbs/lent.rs` has what becomes of them.

use std::collections::VecDeque;

use crate::{
    protocol::matching::Name,
    types::LinkId,
    worker::operations::{Body, Unexpected},
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

struct Waiting {
    link: LinkId,
    /// Of the sender.
    op: u64,
    until: u64,
}

impl Waiting {
    fn name(&self) -> Name {
        Name::Announced(self.link, self.op)
    }
}

impl Unmatched {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// A message is kept.
    pub(crate) fn add(&mut self, message: &Unexpected) {
        if let Body::Announced(rts) = &message.body
            && rts.is_lent
        {
            self.waiting.push_back(Waiting {
                link: message.link,
                op: rts.op,
                until: self.passes + PATIENCE,
            });
        }
    }

    /// A pass begins.
    pub(in crate::worker) fn pass(&mut self) {
        self.passes += 1;
    }

    /// The first one, and whether it has waited for long enough.
    pub(in crate::worker) fn first(&self) -> Option<(Name, bool)> {
        let first = self.waiting.front()?;
        Some((first.name(), first.until <= self.passes))
    }

    pub(in crate::worker) fn forget_first(&mut self) {
        self.waiting.pop_front();
    }

    /// Those of one connection, which are not waited for any more.
    pub(in crate::worker) fn forget_of(&mut self, link: LinkId) -> Vec<Name> {
        let of_it = self.waiting.iter().filter(|waiting| waiting.link == link);
        let names = of_it.map(Waiting::name).collect();
        self.waiting.retain(|waiting| waiting.link != link);
        names
    }
}
