//! Which lent messages have found no receive, and since when. `verbs/lent.rs` has what becomes of them.

use std::collections::VecDeque;

use crate::{
    types::LinkId,
    worker::operations::{Body, Unexpected},
};

/// Passes that a receive has time for: some microseconds where nothing else is to be done.
const PATIENCE: u64 = 64;

/// What waits, in the order in which it came, some of which may have been matched.
#[derive(Default)]
pub(crate) struct Unmatched {
    waiting: VecDeque<Waiting>,
    /// Passes made while something waited.
    passes: u64,
}

pub(in crate::worker) struct Waiting {
    pub(in crate::worker) link: LinkId,
    /// Of the sender.
    pub(in crate::worker) op: u64,
    until: u64,
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

    /// One that has waited for long enough.
    pub(in crate::worker) fn next_due(&mut self) -> Option<Waiting> {
        let passes = self.passes;
        let is_due = self.waiting.front()?.until <= passes;
        is_due.then(|| self.waiting.pop_front()).flatten()
    }
}
