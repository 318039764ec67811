//! Active messages that arrive: one inbox for each id, in the order of arrival, and what becomes of messages that have none.
//!
//! A peer can fill an inbox as far as it has credits: the capacity for each connection, [`GRANT`](crate::protocol::am::GRANT) at least. What it sends to an id
//! without an inbox is thrown away at once, answered by a refusal that returns the credit, and takes no memory here.
//!
//! A message for who polls at this moment, or for a callback, stays where it arrived if it can ([`Content::InPlace`]) until it was looked at.
//!
//! A message that is [`HeldBytes`](crate::transport::HeldBytes) is dropped before the interface that brought it, as is promised where it is made: those in an inbox
//! go with the [`Core`](crate::worker::core::Core), which the engine drops before its interfaces, and who takes one out holds the worker while it is looked at.

use std::{collections::VecDeque, task::Waker};

use crate::{
    error::{Error, ErrorKind},
    protocol::{
        control::{self},
        ledger::AccountId,
    },
    types::{AmId, LinkId},
    util::{by_id::ById, waker_slot::WakerSlot},
    worker::violation::violation,
};

pub(in crate::worker) mod content;
pub(in crate::worker) mod front;
#[cfg(test)]
pub(in crate::worker) mod tests;

pub(crate) use content::{Arrived, Content, Front};
pub(in crate::worker) use content::{PLACE, Standing};

pub(in crate::worker) struct Inbox {
    /// Never used again: an inbox that was opened later under the same id is another one.
    pub(in crate::worker) serial: u64,
    pub(in crate::worker) capacity: u32,
    /// [`Terms::plenty`](crate::protocol::window::Terms::plenty) of that.
    pub(in crate::worker) plenty: u64,
    /// The first was not called back.
    pub(in crate::worker) queue: VecDeque<Standing>,
    /// How many came before the first of the queue.
    pub(in crate::worker) passed: u64,
    pub(in crate::worker) waker: WakerSlot,
    /// Runs the callback, when there is one, and whether it runs or is about to.
    pub(in crate::worker) runner: Option<Waker>,
    pub(in crate::worker) running: bool,
}

impl Inbox {
    /// The next message.
    #[inline]
    pub(in crate::worker) fn pop(&mut self) -> Option<Arrived> {
        match self.queue.pop_front()? {
            Standing::Message(arrived) => {
                self.passed += 1;
                Some(arrived)
            }
            gone => {
                self.queue.push_front(gone);
                None
            }
        }
    }

    /// The first of the queue, if it was called back: whose it was, and who was charged.
    #[inline]
    pub(in crate::worker) fn pop_gone(&mut self) -> Option<(LinkId, AccountId)> {
        let Some(Standing::CalledBack { link, account }) = self.queue.front() else {
            return None;
        };
        let gone = (*link, *account);
        self.queue.pop_front();
        self.passed += 1;
        Some(gone)
    }

    /// Marks the message of this number as called back: who is charged for it, and what it was.
    pub(in crate::worker) fn call_back(&mut self, number: u64) -> Option<(AccountId, Content)> {
        let index = usize::try_from(number.checked_sub(self.passed)?).ok()?;
        let standing = self.queue.get_mut(index)?;
        let Standing::Message(Arrived { link, account, .. }) = *standing else {
            return None;
        };
        let gone = Standing::CalledBack { link, account };
        match std::mem::replace(standing, gone) {
            Standing::Message(arrived) => Some((account, arrived.content)),
            Standing::CalledBack { .. } => None,
        }
    }
}

/// An inbox that is empty and polled at this moment: the next message goes to who polls, by no queue and no account.
pub(in crate::worker) struct Awaited {
    pub(in crate::worker) id: AmId,
    pub(in crate::worker) capacity: u32,
    /// It is to be kept: copied at once rather than left in place and copied then.
    pub(in crate::worker) keeps: bool,
    pub(in crate::worker) arrived: Option<Arrived>,
}

/// The inboxes of a worker.
#[derive(Default)]
pub(crate) struct Inboxes {
    pub(in crate::worker) open: ById<Inbox>,
    pub(in crate::worker) serial: u64,
    pub(in crate::worker) awaited: Option<Awaited>,
    /// A message waits in place for a callback.
    pub(in crate::worker) is_held: bool,
}

impl Inboxes {
    #[inline]
    pub(in crate::worker) fn find(&mut self, id: AmId) -> Option<&mut Inbox> {
        self.open.get_mut(id.0)
    }

    /// The capacity of an inbox that is open.
    pub(in crate::worker) fn capacity(&mut self, id: AmId) -> Option<u32> {
        self.find(id).map(|inbox| inbox.capacity)
    }

    pub(in crate::worker) fn own(&mut self, id: AmId, serial: u64) -> Option<&mut Inbox> {
        self.find(id).filter(|inbox| inbox.serial == serial)
    }

    /// Whether the next message is taken at once.
    #[inline]
    pub(in crate::worker) fn is_awaited(&self) -> bool {
        self.awaited.is_some()
    }

    /// Whether a message has come, since this was asked, that stays in place until the lock is gone and a callback runs: better soon than late.
    #[inline]
    pub(in crate::worker) fn has_held(&mut self) -> bool {
        std::mem::take(&mut self.is_held)
    }
}

#[cold]
pub(in crate::worker) fn too_many() -> Error {
    violation("the peer sent more active messages than it has credits for")
}

/// What is refused.
pub(in crate::worker) enum Refused {
    Eager { cost: u64 },
    Announced { op: u64 },
}

pub(in crate::worker) const NOBODY: &str = "no inbox is open for this id";

/// The body of a rejection: the kind, and as much of the reason as there is room for.
pub(in crate::worker) fn rejection(reason: &str) -> Vec<u8> {
    const ROOM: usize = 46;
    let mut end = reason.len().min(ROOM);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut body = control::error_kind_code(ErrorKind::Rejected)
        .to_le_bytes()
        .to_vec();
    body.extend_from_slice(&reason.as_bytes()[..end]);
    body
}
