//! Giving windows back to peers, at once or when nothing more is being taken out of them: [`crate::protocol::window`] says which.

use crate::{
    protocol::{
        am, control,
        window::{Due, Look, ReceiveWindow, Terms, eager_need},
    },
    types::{AmId, LinkId},
    worker::{core::Core, ctx::Ctx, peer::at, windows::Window},
};

impl Ctx {
    /// An eager tagged message has been taken.
    #[inline]
    pub(crate) fn consumed(&mut self, link: LinkId, cost: u64) {
        if let Some(peer) = self.peer(link) {
            peer.receive_window.read(cost);
            match peer.receive_window.due(&Terms::EAGER) {
                Due::Nothing => {}
                due => self.give_eager(link, due),
            }
        }
    }

    /// An eager tagged message has arrived, and waits to be taken.
    #[inline]
    pub(in crate::worker) fn kept(&mut self, link: LinkId) {
        self.consumed(link, 0);
    }

    /// A message of this length was announced: with what is owed it could have come unasked, so the next like it does.
    #[inline]
    pub(in crate::worker) fn lacked(&mut self, link: LinkId, length: u64) {
        if let Some(peer) = self.peer(link)
            && let Ok(length) = usize::try_from(length)
            && length <= Terms::EAGER.size as usize
            && peer.receive_window.lacks(eager_need(length), &Terms::EAGER)
        {
            self.give_eager(link, Due::Now);
        }
    }

    /// Follows what the window of eager messages says.
    #[cold]
    pub(in crate::worker) fn give_eager(&mut self, link: LinkId, due: Due) {
        match due {
            Due::Nothing => {}
            Due::Later => self.owing.push(Window::Eager(link)),
            Due::Now => {
                let peer = at(&mut self.peers, link).filter(|peer| peer.is_alive());
                if let Some(peer) = peer {
                    let owed = peer.receive_window.give(&Terms::EAGER);
                    self.control(link, control::CREDIT, owed, &[]);
                }
            }
        }
    }

    /// Follows what the two windows of an id's active messages say. When either is given back, so is the other.
    #[cold]
    pub(in crate::worker) fn give_active(
        &mut self,
        link: LinkId,
        id: AmId,
        capacity: u32,
        (messages, bytes): (Due, Due),
    ) {
        if messages == Due::Now || bytes == Due::Now {
            self.give_messages(link, id, capacity);
        }
        if messages == Due::Later {
            self.owing.push(Window::Messages(link, id));
        }
        if bytes == Due::Later {
            self.owing.push(Window::Active(link, id));
        }
    }

    /// Gives all back that is owed of an id.
    pub(in crate::worker) fn give_messages(&mut self, link: LinkId, id: AmId, capacity: u32) {
        let peer = at(&mut self.peers, link).filter(|peer| peer.is_alive());
        let inbound = peer.and_then(|peer| peer.am.inbound_of(id));
        if let Some((messages, bytes)) = inbound.and_then(|inbound| inbound.owed(capacity)) {
            let credit = am::credit(id, messages, false);
            self.control(link, control::AM_CREDIT, credit, &bytes.to_le_bytes());
        }
    }
}

impl Core {
    fn give_now(&mut self, window: Window) {
        match window {
            Window::Eager(link) => self.movers.ctx.give_eager(link, Due::Now),
            Window::Stream(key) => {
                if let Some(stream) = self.streams.get(key) {
                    self.movers.ctx.give_stream(stream, Due::Now);
                }
            }
            Window::Messages(link, id) | Window::Active(link, id) => {
                if let Some(capacity) = self.inboxes.capacity(id) {
                    self.movers.ctx.give_messages(link, id, capacity);
                }
            }
        }
    }

    /// The books of a window, while its peer is there and it can be given back.
    fn window(&mut self, window: Window) -> Option<(&mut ReceiveWindow, Terms)> {
        match window {
            Window::Eager(link) => {
                let peer = at(&mut self.movers.ctx.peers, link).filter(|peer| peer.is_alive())?;
                Some((&mut peer.receive_window, Terms::EAGER))
            }
            Window::Messages(link, id) => {
                let capacity = self.inboxes.capacity(id)?;
                let peer = at(&mut self.movers.ctx.peers, link).filter(|peer| peer.is_alive())?;
                let inbound = peer.am.inbound_of(id)?;
                Some((&mut inbound.window, Terms::messages(capacity)))
            }
            Window::Active(link, id) => {
                self.inboxes.capacity(id)?;
                let peer = at(&mut self.movers.ctx.peers, link).filter(|peer| peer.is_alive())?;
                Some((&mut peer.am.inbound_of(id)?.bytes, Terms::ACTIVE))
            }
            Window::Stream(key) => {
                let reading = self.streams.get(key)?.open_for_reading()?;
                Some((&mut reading.window, Terms::STREAM))
            }
        }
    }

    /// Looks at the windows that are to be given back when nothing more is being taken. How many there were.
    pub(in crate::worker) fn give_back_owed(&mut self) -> usize {
        let count = self.movers.ctx.owing.len();
        let mut next = 0;
        for _ in 0..count {
            let window = self.movers.ctx.owing[next];
            let look = self
                .window(window)
                .map_or(Look::Over, |(receive, terms)| receive.look(&terms));
            if look == Look::Again {
                next += 1;
                continue;
            }
            self.movers.ctx.owing.swap_remove(next);
            if look == Look::Give {
                self.give_now(window);
            }
        }
        count
    }
}
