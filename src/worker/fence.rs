//! Waiting for operations that were begun before: all of a connection (flush), or its accesses to remote memory (fence).

use crate::{
    types::{LinkId, OpKey},
    worker::{
        core::Core,
        operations::{Entry, Outcome, Work},
    },
};

/// Whether a flush, or a fence, need not wait for an operation.
pub(super) fn is_over(entry: &Entry, fence: bool) -> bool {
    if entry.deferred.is_some() && matches!(entry.work, Work::Put(_)) {
        // It has ended, but a link still holds its memory: how it ended is noted only then.
        return false;
    }
    match &entry.work {
        Work::Put(put) => {
            (put.acknowledged && !put.signal_due)
                || matches!(entry.outcome, Some(Outcome::Done(Err(_))))
        }
        Work::Get(_) => entry.outcome.is_some(),
        // Without a message it asks for signals, which are ordered behind their puts alone.
        Work::Atomic(atomic) => {
            entry.outcome.is_some() || atomic.message.is_none() && atomic.device.is_none()
        }
        Work::Send(_) => fence || entry.outcome.is_some(),
        _ => true,
    }
}

impl Core {
    /// Begins to wait for what was begun before on a connection. `None`: a fence that has nothing to wait for.
    pub(crate) fn begin_flush(&mut self, link: LinkId, fence: bool) -> Option<OpKey> {
        let pending = |entry: &Entry| entry.link == Some(link) && !is_over(entry, true);
        if fence && !self.operations.iter().any(|(_, entry)| pending(entry)) {
            return None;
        }
        let before = self.operations.sequence();
        let work = Work::Flush {
            before,
            fence,
            settle: None,
        };
        let key = self.operations.insert(Some(link), false, work);
        self.check_flushes(link);
        Some(key)
    }

    /// Whether the peer has said what became of the signals that were sent before this flush came to their turn.
    pub(super) fn is_settled(&mut self, link: LinkId, flush: OpKey) -> bool {
        let asked = match self.operations.get(flush).map(|entry| &entry.work) {
            Some(Work::Flush { fence: true, .. }) => return true,
            Some(Work::Flush { settle, .. }) => *settle,
            _ => return true,
        };
        let asked = asked.or_else(|| {
            let key = self.begin_settle(link);
            if let Some(entry) = self.operations.get(flush)
                && let Work::Flush { settle, .. } = &mut entry.work
            {
                *settle = key;
            }
            key
        });
        asked.is_none_or(|key| self.operations.get(key).is_none())
    }
}
