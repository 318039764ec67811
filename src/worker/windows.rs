//! Giving windows back to peers, at once or when nothing more is being taken out of them: [`crate::protocol::window`] says which.

use crate::{
    protocol::{
        am, control,
        window::{Due, Look, ReceiveWindow, Terms, eager_need},
    },
    types::{AmId, LinkId},
    worker::{core::Core, peer::at, stream::StreamKey},
};

/// A window of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    /// Bytes of eager tagged messages.
    Eager(LinkId),
    /// Active messages of an id.
    Messages(LinkId, AmId),
    /// Bytes of those of them that go unasked.
    Active(LinkId, AmId),
    /// Bytes of a stream.
    Stream(StreamKey),
}

impl Core {
    /// An eager tagged message has been taken.
    #[inline]
    pub(crate) fn consumed(&mut self, link: LinkId, cost: u64) {
        if let Some(peer) = self.peer(link) {
            peer.receive_window.read(cost);
            match peer.receive_window.due(&Terms::EAGER) {
                Due::Nothing => {}
                due => self.give_back(Window::Eager(link), due),
            }
        }
    }

    /// An eager tagged message has arrived, and waits to be taken.
    #[inline]
    pub(super) fn kept(&mut self, link: LinkId) {
        self.consumed(link, 0);
    }

    /// A message of this length was announced: with what is owed it could have come unasked, so the next like it does.
    #[inline]
    pub(super) fn lacked(&mut self, link: LinkId, length: u64) {
        if let Some(peer) = self.peer(link)
            && let Ok(length) = usize::try_from(length)
            && length <= Terms::EAGER.size as usize
            && peer.receive_window.lacks(eager_need(length), &Terms::EAGER)
        {
            self.give_back(Window::Eager(link), Due::Now);
        }
    }

    /// Follows what a window says.
    #[cold]
    pub(super) fn give_back(&mut self, window: Window, due: Due) {
        match due {
            Due::Nothing => {}
            Due::Now => self.give_now(window),
            Due::Later => self.owing.push(window),
        }
    }

    fn give_now(&mut self, window: Window) {
        if let Window::Messages(link, id) | Window::Active(link, id) = window {
            // Either takes the other along.
            return self.give_messages(link, id);
        }
        let Some((receive, terms)) = self.window(window) else {
            return;
        };
        let owed = receive.give(&terms);
        match window {
            Window::Eager(link) => self.control(link, control::CREDIT, owed, &[]),
            Window::Stream(key) => self.stream_given_back(key, owed),
            Window::Messages(..) | Window::Active(..) => {}
        }
    }

    /// Gives all back that is owed of an id.
    pub(super) fn give_messages(&mut self, link: LinkId, id: AmId) {
        let Some(capacity) = self.inboxes.capacity(id) else {
            return;
        };
        let peer = at(&mut self.peers, link).filter(|peer| peer.is_alive());
        let inbound = peer.and_then(|peer| peer.am.inbound_of(id));
        if let Some((messages, bytes)) = inbound.and_then(|inbound| inbound.owed(capacity)) {
            let credit = am::credit(id, messages, false);
            self.control(link, control::AM_CREDIT, credit, &bytes.to_le_bytes());
        }
    }

    /// The books of a window, while its peer is there and it can be given back.
    fn window(&mut self, window: Window) -> Option<(&mut ReceiveWindow, Terms)> {
        match window {
            Window::Eager(link) => {
                let peer = at(&mut self.peers, link).filter(|peer| peer.is_alive())?;
                Some((&mut peer.receive_window, Terms::EAGER))
            }
            Window::Messages(link, id) => {
                let capacity = self.inboxes.capacity(id)?;
                let peer = at(&mut self.peers, link).filter(|peer| peer.is_alive())?;
                let inbound = peer.am.inbound_of(id)?;
                Some((&mut inbound.window, Terms::messages(capacity)))
            }
            Window::Active(link, id) => {
                self.inboxes.capacity(id)?;
                let peer = at(&mut self.peers, link).filter(|peer| peer.is_alive())?;
                Some((&mut peer.am.inbound_of(id)?.bytes, Terms::ACTIVE))
            }
            Window::Stream(key) => {
                let reading = self.streams.open_for_reading(key)?;
                Some((&mut reading.window, Terms::STREAM))
            }
        }
    }

    /// Looks at the windows that are to be given back when nothing more is being taken. How many there were.
    pub(super) fn give_back_owed(&mut self) -> usize {
        let count = self.owing.len();
        let mut next = 0;
        for _ in 0..count {
            let window = self.owing[next];
            let look = self
                .window(window)
                .map_or(Look::Over, |(receive, terms)| receive.look(&terms));
            if look == Look::Again {
                next += 1;
                continue;
            }
            self.owing.swap_remove(next);
            if look == Look::Give {
                self.give_now(window);
            }
        }
        count
    }
}
