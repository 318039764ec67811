//! Active messages on their way out, and the credits of both directions.
//!
//! A connection has [`am::GRANT`] messages of each id to begin with. The receiver gives more, up to the capacity of its inbox, as its user
//! takes messages. One that goes unasked also takes its bytes of the id's [`am::WINDOW`]. A message that lacks either waits in the queue of
//! its id, behind those that came before it. What the sender has and what is under way is always what the receiver counts as left in its
//! windows.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    Operation,
    error::{Error, ErrorKind},
    protocol::{
        am, control,
        window::{ReceiveWindow, SendWindow, Terms, eager_cost},
    },
    trace,
    transport::{MAX_PREFIX, SendError},
    types::{AmId, EndpointId, LinkId, OpKey},
    util::by_id::ById,
    worker::{
        core::Core,
        operations::{Send, SendStage, Work},
        peer::{Peer, at},
        send::ZCOPY_FROM,
    },
};

/// Ids that a peer was told nobody receives, and that are remembered to tell it when somebody does. Past them it is told of every id.
const REFUSED: usize = 64;

/// What a connection knows of active messages.
#[derive(Default)]
pub(crate) struct AmPeer {
    outbound: ById<Outbound>,
    inbound: ById<Inbound>,
    refused: Vec<AmId>,
    /// More were refused than are remembered.
    many: bool,
    /// Announced here and not taken, by the peer's operation: in which inbox, and the how-many-th of it.
    pub(crate) announced: BTreeMap<u64, (AmId, u64)>,
}

/// One id, on the way to the peer.
pub(crate) struct Outbound {
    pub(crate) credits: SendWindow,
    bytes: SendWindow,
    /// Nobody receives it there.
    pub(crate) refused: bool,
    /// Sends that have no credit or no room yet, in order.
    pub(crate) waiting: VecDeque<OpKey>,
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
    fn take(&mut self, cost: Option<u64>) {
        self.credits.take(1);
        self.bytes.take(cost.unwrap_or(0));
    }

    /// The receiver gives back, or a message that was counted does not leave.
    fn returned(&mut self, messages: u64, bytes: u64) {
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
            waiting: VecDeque::new(),
        })
    }

    #[inline(always)]
    fn known(&mut self, id: AmId) -> Option<&mut Outbound> {
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

/// Whether any message with a header this long can go over the link.
pub(crate) fn takes_header(peer: &Peer, length: usize) -> bool {
    length <= am::MAX_HEADER && control::Rts::SIZE + length <= peer.attributes.max_bcopy
}

/// Whether a message goes unasked and is copied by the link.
fn is_copied(peer: &Peer, header: usize, data: usize) -> bool {
    let length = header + data;
    length <= peer.eager
        && length <= peer.attributes.max_bcopy
        && takes_header(peer, header)
        && (peer.attributes.max_zcopy == 0 || data < ZCOPY_FROM || header > MAX_PREFIX)
}

/// An eager active message, tried at once. `Err(None)`: it does not go this way. `data`: its payload of `length` bytes, asked for
/// when there is room for it: the pieces of a list are put together then.
pub(crate) fn try_am<'a>(
    peer: &mut Peer,
    id: AmId,
    header: &[u8],
    length: usize,
    data: impl FnOnce() -> &'a [u8],
) -> Result<(), Option<SendError>> {
    let copied = is_copied(peer, header.len(), length);
    let length = header.len() + length;
    let out = peer.am.outbound(id);
    if out.refused {
        return Err(Some(SendError::Failed(refused())));
    }
    if !peer.queue.is_empty() || !out.waiting.is_empty() || length > peer.eager {
        return Err(None);
    }
    let cost = eager_cost(length);
    if out.credits.left() == 0 || cost > out.bytes.left() {
        // What comes back may be waiting to be read.
        return Err(Some(SendError::Full));
    }
    let Some(link) = peer.link.as_mut() else {
        return Err(None);
    };
    let word = am::word(id, header.len());
    let data = data();
    if header.is_empty() && length <= peer.short {
        link.am_short(control::AM_EAGER, word, data)?;
    } else if copied {
        link.am_bcopy(control::AM_EAGER, word, header, data)?;
    } else {
        return Err(None);
    }
    out.take(Some(cost));
    trace::operation("active message send", length, "eager");
    Ok(())
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

impl Core {
    /// As [`try_am`], for a message that has a credit and room, and nothing in its way: the hot path. `None`: it goes another way, or has to wait.
    #[inline(always)]
    pub(crate) fn am_at_once(
        &mut self,
        (link, own): (LinkId, EndpointId),
        id: AmId,
        header: &[u8],
        data: &[u8],
    ) -> Option<Result<(), Error>> {
        let peer = self.endpoint(link, own)?;
        if !peer.is_open() || !peer.queue.is_empty() {
            return None;
        }
        let is_short = header.is_empty() && data.len() <= peer.short;
        if !is_short && !is_copied(peer, header.len(), data.len()) {
            return None;
        }
        // The first of an id goes another way.
        let out = peer.am.known(id)?;
        if out.refused || !out.waiting.is_empty() {
            return None;
        }
        let length = header.len() + data.len();
        let (credits, bytes) = (out.credits.after(1)?, out.bytes.after(eager_cost(length))?);
        let (link, word) = (peer.link.as_mut()?, am::word(id, header.len()));
        let sent = match is_short {
            true => link.am_short(control::AM_EAGER, word, data),
            false => link.am_bcopy(control::AM_EAGER, word, header, data),
        };
        match sent {
            Ok(()) => {}
            Err(SendError::Full) => return None,
            Err(SendError::Failed(error)) => return Some(Err(error)),
        }
        (out.credits, out.bytes) = (credits, bytes);
        trace::operation("active message send", length, "eager");
        Some(Ok(()))
    }

    /// Enters a send into the table; it leaves when it has a credit, and room if it goes unasked.
    pub(crate) fn am_enter(&mut self, link: LinkId, send: Send, unstaged: bool) -> OpKey {
        let id = am::id(send.tag.0);
        let key = self.operations.insert(Some(link), false, Work::Send(send));
        if unstaged && let Some(entry) = self.operations.get(key) {
            entry.unstaged = true;
        }
        if let Some(peer) = self.peer(link) {
            peer.posted += 1;
            peer.am.outbound(id).waiting.push_back(key);
            self.am_release(link, id);
        }
        key
    }

    /// Sends of an id leave as far as there are credits and room.
    fn am_release(&mut self, link: LinkId, id: AmId) {
        while let Some(peer) = at(&mut self.peers, link)
            && let Some(out) = peer.am.known(id)
            && out.credits.left() > 0
            && let Some(key) = out.waiting.front().copied()
        {
            let entry = self.operations.get(key);
            let waits = entry.filter(|entry| entry.outcome.is_none());
            let Some(Work::Send(send)) = waits.map(|entry| &entry.work) else {
                out.waiting.pop_front();
                continue;
            };
            let cost = send.unasked(peer.eager, &peer.attributes);
            if cost.is_some_and(|cost| cost > out.bytes.left()) {
                // Announced it would be rejected by who expects it whole, and those behind it wait for it in any case.
                return;
            }
            out.waiting.pop_front();
            out.take(cost);
            self.submit(link, key);
        }
    }

    /// A send that has not left is cancelled: its credit and its room, or its place in the queue, go to the next.
    pub(crate) fn am_withdraw(&mut self, link: Option<LinkId>, key: OpKey) {
        let (Some(link), Some(entry)) = (link, self.operations.get(key)) else {
            return;
        };
        let Work::Send(send) = &entry.work else {
            return;
        };
        if send.am.is_none() || !matches!(send.stage, SendStage::Queued) {
            return;
        }
        let (id, queued) = (am::id(send.tag.0), entry.queued);
        if let Some(peer) = at(&mut self.peers, link)
            && let Some(out) = peer.am.known(id)
        {
            if queued {
                let cost = send.unasked(peer.eager, &peer.attributes);
                out.returned(1, cost.unwrap_or(0));
            } else {
                out.waiting.retain(|waiting| *waiting != key);
            }
        }
        self.am_release(link, id);
    }

    /// The peer takes more messages of an id, and more bytes.
    pub(crate) fn am_credit(&mut self, link: LinkId, word: u64, bytes: u64) {
        let (id, count, _) = am::parse_credit(word);
        if let Some(peer) = at(&mut self.peers, link)
            && let Some(out) = peer.am.known(id)
        {
            out.returned(u64::from(count), bytes);
            out.refused = false;
            peer.ready.take(&mut self.wakes);
            self.am_release(link, id);
        }
    }

    /// The peer receives none of an id.
    pub(crate) fn am_refused(&mut self, link: LinkId, word: u64, bytes: u64) {
        let (id, count, lost) = am::parse_credit(word);
        let Some(peer) = at(&mut self.peers, link) else {
            return;
        };
        let Some(out) = peer.am.known(id) else {
            return;
        };
        out.returned(u64::from(count), bytes);
        out.refused = true;
        let waiting = std::mem::take(&mut out.waiting);
        if lost {
            let name = peer.info.name.clone();
            peer.lost.get_or_insert_with(|| refused().with_peer(name));
        }
        peer.ready.take(&mut self.wakes);
        for key in waiting {
            self.fail_operation(key, refused());
        }
    }

    /// What an operation is called that the peer says something about.
    pub(crate) fn operation_of_send(&mut self, key: OpKey) -> Operation {
        match self.operations.get(key).map(|entry| &entry.work) {
            Some(Work::Send(Send { am: Some(_), .. })) => Operation::AmSend,
            _ => Operation::TagSend,
        }
    }
}
