//! Active messages on their way out, and the credits of both directions.
//!
//! A connection has [`am::GRANT`] messages of each id to begin with. The receiver gives more, up to the capacity of its inbox, as its user
//! takes messages. A message without a credit waits in the queue of its id, behind those that came before it. What the sender has
//! and what is under way is always what the receiver counts as `outstanding`.

use std::collections::VecDeque;

use crate::{
    Operation,
    error::{Error, ErrorKind},
    memory::Buffer,
    protocol::{am, control},
    trace,
    transport::{LinkAttributes, MAX_PREFIX, SendError},
    types::{AmId, LinkId, OpKey},
    worker::{
        core::Core,
        operations::{Send, SendStage, Work},
        peer::{Peer, at, eager_cost},
        send::ZCOPY_FROM,
    },
};

/// Ids that a peer was told nobody receives, and that are remembered to tell it when somebody does. Past them it is told of every id.
const REFUSED: usize = 64;

/// What a connection knows of active messages. Both lists are in the order of ids.
#[derive(Default)]
pub(crate) struct AmPeer {
    outbound: Vec<Outbound>,
    inbound: Vec<Inbound>,
    refused: Vec<AmId>,
    /// More were refused than are remembered.
    many: bool,
}

/// One id, on the way to the peer.
pub(crate) struct Outbound {
    id: AmId,
    pub(crate) credits: u32,
    /// Nobody receives it there.
    pub(crate) refused: bool,
    /// Sends that have no credit yet, in order.
    pub(crate) waiting: VecDeque<OpKey>,
}

/// One id, on the way from the peer. Exists for ids only that had an inbox here.
pub(crate) struct Inbound {
    id: AmId,
    /// Credits that the peer has, or that are under way.
    pub(crate) outstanding: u32,
    /// Messages in the inbox.
    pub(crate) held: u32,
}

impl Outbound {
    /// Whether the next message would leave at once, as far as credits go.
    pub(crate) fn admits(&self) -> bool {
        self.credits > 0 && self.waiting.is_empty()
    }
}

impl Inbound {
    /// All credits to give for an inbox of this capacity.
    pub(crate) fn owed(&mut self, capacity: u32) -> Option<u32> {
        let owed = capacity.saturating_sub(self.outstanding.saturating_add(self.held));
        self.outstanding += owed;
        (owed > 0).then_some(owed)
    }

    /// The same, once they are worth a message of their own.
    #[inline]
    pub(crate) fn owed_batch(&mut self, capacity: u32) -> Option<u32> {
        let owed = capacity.saturating_sub(self.outstanding.saturating_add(self.held));
        if owed < (capacity / 4).max(1) {
            return None;
        }
        self.owed(capacity)
    }
}

impl AmPeer {
    #[inline]
    pub(crate) fn outbound(&mut self, id: AmId) -> &mut Outbound {
        let index = match self.outbound.binary_search_by_key(&id, |out| out.id) {
            Ok(index) => index,
            Err(index) => {
                let out = Outbound {
                    id,
                    credits: am::GRANT,
                    refused: false,
                    waiting: VecDeque::new(),
                };
                self.outbound.insert(index, out);
                index
            }
        };
        &mut self.outbound[index]
    }

    fn known(&mut self, id: AmId) -> Option<&mut Outbound> {
        let index = self.outbound.binary_search_by_key(&id, |out| out.id);
        self.outbound.get_mut(index.ok()?)
    }

    /// What is known of an id with an inbox, and whether that is new.
    #[inline]
    pub(crate) fn inbound(&mut self, id: AmId) -> (&mut Inbound, bool) {
        let (index, new) = match self.inbound.binary_search_by_key(&id, |inbound| inbound.id) {
            Ok(index) => (index, false),
            Err(index) => {
                let inbound = Inbound {
                    id,
                    outstanding: am::GRANT,
                    held: 0,
                };
                self.inbound.insert(index, inbound);
                (index, true)
            }
        };
        (&mut self.inbound[index], new)
    }

    pub(crate) fn inbound_of(&mut self, id: AmId) -> Option<&mut Inbound> {
        let index = self
            .inbound
            .binary_search_by_key(&id, |inbound| inbound.id)
            .ok()?;
        self.inbound.get_mut(index)
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

/// Whether an eager message with this header goes over the link in one piece; `length` is that of header and payload.
pub(crate) fn has_room(
    header: Option<&Buffer>,
    length: usize,
    attributes: &LinkAttributes,
) -> bool {
    header.is_none_or(|header| header.len() <= MAX_PREFIX) || length <= attributes.max_bcopy
}

/// Whether any message with a header this long can go over the link.
pub(crate) fn takes_header(peer: &Peer, length: usize) -> bool {
    length <= am::MAX_HEADER && control::Rts::SIZE + length <= peer.attributes.max_bcopy
}

/// An eager active message, tried at once: the hot path. `Err(None)`: it does not go this way.
#[inline]
pub(crate) fn try_am(
    peer: &mut Peer,
    id: AmId,
    header: &[u8],
    data: &[u8],
) -> Result<(), Option<SendError>> {
    let length = header.len() + data.len();
    let out = peer.am.outbound(id);
    if out.refused {
        return Err(Some(SendError::Failed(refused())));
    }
    if !peer.queue.is_empty() || !out.waiting.is_empty() || length > peer.eager {
        return Err(None);
    }
    if out.credits == 0 || peer.eager_out + eager_cost(length) > crate::protocol::EAGER_WINDOW {
        // What comes back may be waiting to be read.
        return Err(Some(SendError::Full));
    }
    let Some(link) = peer.link.as_mut() else {
        return Err(None);
    };
    let word = am::word(id, header.len());
    if header.is_empty() && length <= peer.short {
        link.am_short(control::AM_EAGER, word, data)?;
    } else if length <= peer.attributes.max_bcopy
        && (peer.attributes.max_zcopy == 0 || data.len() < ZCOPY_FROM || header.len() > MAX_PREFIX)
    {
        link.am_bcopy(control::AM_EAGER, word, header, data)?;
    } else {
        return Err(None);
    }
    out.credits -= 1;
    peer.eager_out += eager_cost(length);
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
    /// Enters a send into the table; it leaves when it has a credit.
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

    /// Sends of an id leave as far as there are credits.
    fn am_release(&mut self, link: LinkId, id: AmId) {
        while let Some(peer) = at(&mut self.peers, link)
            && let Some(out) = peer.am.known(id)
            && out.credits > 0
            && let Some(key) = out.waiting.pop_front()
        {
            if self
                .operations
                .get(key)
                .is_some_and(|entry| entry.outcome.is_none())
            {
                out.credits -= 1;
                self.submit(link, key);
            }
        }
    }

    /// A send that has not left is cancelled: its credit, or its place in the queue, goes to the next.
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
        if let Some(out) = at(&mut self.peers, link).and_then(|peer| peer.am.known(id)) {
            if queued {
                out.credits += 1;
            } else {
                out.waiting.retain(|waiting| *waiting != key);
            }
        }
        self.am_release(link, id);
    }

    /// The peer takes more messages of an id.
    pub(crate) fn am_credit(&mut self, link: LinkId, word: u64) {
        let (id, count, _) = am::parse_credit(word);
        if let Some(peer) = at(&mut self.peers, link)
            && let Some(out) = peer.am.known(id)
        {
            out.credits = out.credits.saturating_add(count);
            out.refused = false;
            peer.ready.take(&mut self.wakes);
            self.am_release(link, id);
        }
    }

    /// The peer receives none of an id.
    pub(crate) fn am_refused(&mut self, link: LinkId, word: u64) {
        let (id, count, lost) = am::parse_credit(word);
        let Some(peer) = at(&mut self.peers, link) else {
            return;
        };
        let Some(out) = peer.am.known(id) else {
            return;
        };
        out.credits = out.credits.saturating_add(count);
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
