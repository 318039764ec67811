//! Active messages on their way out, and the credits of both directions.
//!
//! A connection has [`am::GRANT`] messages of each id to begin with. The receiver gives more, up to the capacity of its inbox, as its user
//! takes messages. One that goes unasked also takes its bytes of the id's [`am::WINDOW`]. A message that lacks either waits in the queue of
//! its id, behind those that came before it. What the sender has and what is under way is always what the receiver counts as left in its
//! windows.

use std::collections::BTreeMap;

use crate::{
    Operation,
    error::{Error, ErrorKind},
    protocol::{
        am,
        window::{ReceiveWindow, SendWindow, Terms},
    },
    types::{AmId, OpKey},
    util::by_id::ById,
    worker::wait_queue::WaitQueue,
};

/// Ids that a peer was told nobody receives, and that are remembered to tell it when somebody does. Past them it is told of every id.
const REFUSED: usize = 64;

/// What a connection knows of active messages.
#[derive(Default)]
pub(crate) struct AmPeer {
    pub(in crate::worker) outbound: ById<Outbound>,
    inbound: ById<Inbound>,
    pub(in crate::worker) refused: Vec<AmId>,
    /// More were refused than are remembered.
    many: bool,
    /// Announced here and not taken, by the peer's operation: in which inbox, and the how-many-th of it.
    pub(crate) announced: BTreeMap<u64, (AmId, u64)>,
}

/// One id, on the way to the peer.
pub(crate) struct Outbound {
    pub(crate) credits: SendWindow,
    pub(in crate::worker) bytes: SendWindow,
    /// Nobody receives it there.
    pub(crate) refused: bool,
    /// Sends that have no credit or no room yet, in order.
    pub(crate) waiting: WaitQueue<OpKey>,
}

/// One id, on the way from the peer. Exists for ids only that had an inbox here.
pub(crate) struct Inbound {
    /// Credits that the peer has, or that are under way, and messages in the inbox.
    pub(crate) window: ReceiveWindow,
    /// Bytes that the peer may send unasked.
    pub(crate) bytes: ReceiveWindow,
    /// The peer has yet to hear how much the inbox takes.
    pub(crate) is_new: bool,
}

impl Outbound {
    /// Whether the next message would leave at once, as far as credits go.
    pub(crate) fn admits(&self) -> bool {
        self.credits.left() > 0 && self.waiting.is_empty()
    }

    /// Counts a message that leaves, which goes unasked if it has a cost.
    #[inline]
    pub(in crate::worker) fn take(&mut self, cost: Option<u64>) {
        self.credits.take(1);
        self.bytes.take(cost.unwrap_or(0));
    }

    /// The receiver gives back, or a message that was counted does not leave.
    pub(in crate::worker) fn returned(&mut self, messages: u64, bytes: u64) {
        self.credits.returned(messages, u64::MAX);
        self.bytes.returned(bytes, Terms::ACTIVE.size);
    }
}

impl Inbound {
    /// All messages and bytes to give for an inbox of this capacity.
    pub(crate) fn owed(&mut self, capacity: u32) -> Option<(u32, u64)> {
        self.is_new = false;
        let messages = self.window.give(&Terms::messages(capacity));
        let bytes = self.bytes.give(&Terms::ACTIVE);
        ((messages, bytes) != (0, 0)).then_some((messages as u32, bytes))
    }

    /// Nobody may be looking at its windows any more.
    pub(crate) fn overlook(&mut self) {
        self.window.overlook();
        self.bytes.overlook();
    }
}

impl AmPeer {
    #[inline]
    pub(crate) fn outbound(&mut self, id: AmId) -> &mut Outbound {
        self.outbound.entry(id.0, || Outbound {
            credits: SendWindow::new(u64::from(am::GRANT)),
            bytes: SendWindow::new(Terms::ACTIVE.size),
            refused: false,
            waiting: WaitQueue::default(),
        })
    }

    #[inline(always)]
    pub(in crate::worker) fn known(&mut self, id: AmId) -> Option<&mut Outbound> {
        self.outbound.get_mut(id.0)
    }

    /// What is known of an id with an inbox.
    #[inline]
    pub(crate) fn inbound(&mut self, id: AmId) -> &mut Inbound {
        self.inbound.entry(id.0, || Inbound {
            window: ReceiveWindow::new(u64::from(am::GRANT)),
            bytes: ReceiveWindow::new(Terms::ACTIVE.size),
            is_new: true,
        })
    }

    #[inline(always)]
    pub(crate) fn inbound_of(&mut self, id: AmId) -> Option<&mut Inbound> {
        self.inbound.get_mut(id.0)
    }

    /// Remembers that the peer is told that nobody receives `id`.
    pub(crate) fn refuse(&mut self, id: AmId) {
        if self.refused.contains(&id) {
        } else if self.refused.len() < REFUSED {
            self.refused.push(id);
        } else {
            self.many = true;
        }
    }

    /// Whether the peer must be told that `id` is received now.
    pub(crate) fn admit(&mut self, id: AmId) -> bool {
        let before = self.refused.len();
        self.refused.retain(|refused| *refused != id);
        self.many || self.refused.len() < before
    }
}

/// Why a message of an id that nobody receives is refused.
#[cold]
pub(crate) fn refused() -> Error {
    Error::new(
        ErrorKind::Rejected,
        "the peer receives no active messages of this id",
    )
    .during(Operation::AmSend)
}
