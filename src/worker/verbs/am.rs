//! Active messages: what goes out, and its credits.

use crate::{
    Operation,
    error::Error,
    protocol::{am, control, window::eager_cost},
    trace,
    transport::{MAX_PREFIX, SendError},
    types::{AmId, EndpointId, LinkId, OpKey},
    worker::{
        am::refused,
        ctx::Ctx,
        operations::{Send, SendStage, Work},
        peer::{Peer, at},
        step::ZCOPY_FROM,
    },
};

impl Ctx {
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
            let Some(Work::Send(send)) = waits.map(|entry| &*entry.work) else {
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
        let Work::Send(send) = &*entry.work else {
            return;
        };
        if send.am.is_none() || !matches!(send.stage, SendStage::Queued) {
            return;
        }
        let (id, queued) = (am::id(send.tag.0), entry.queued);
        if let Some(peer) = at(&mut self.peers, link)
            && let Some(out) = peer.am.known(id)
        {
            if queued.is_some() {
                let cost = send.unasked(peer.eager, &peer.attributes);
                out.returned(1, cost.unwrap_or(0));
            } else {
                out.waiting.cancel(key);
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
        let mut waiting = std::mem::take(&mut out.waiting);
        if lost {
            let name = peer.info.name.clone();
            peer.lost.get_or_insert_with(|| refused().with_peer(name));
        }
        peer.ready.take(&mut self.wakes);
        while let Some(key) = waiting.pop_front() {
            self.fail_operation(key, refused());
        }
    }

    /// What an operation is called that the peer says something about.
    pub(crate) fn operation_of_send(&mut self, key: OpKey) -> Operation {
        match self.operations.work(key) {
            Some(Work::Send(Send { am: Some(_), .. })) => Operation::AmSend,
            _ => Operation::TagSend,
        }
    }
}

/// Whether any message with a header this long can go over the link.
pub(crate) fn takes_header(peer: &Peer, length: usize) -> bool {
    length <= am::MAX_HEADER && control::Rts::SIZE + length <= peer.attributes.max_bcopy
}

/// Whether a message goes unasked and is copied by the link.
pub(in crate::worker) fn is_copied(peer: &Peer, header: usize, data: usize) -> bool {
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
