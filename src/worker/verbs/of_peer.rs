//! Receives and claims that take a message of one peer alone, and end with it. They are in the table of operations, among those of the connection, and wait in
//! a queue of its own: a message looks at none of another peer's. The queue of all others knows of them by one that [stands aside](ASIDE).

use crate::{
    protocol::matching::PostId,
    types::{LinkId, Mask, OpKey, Tag},
    worker::{
        core::Core,
        operations::{RecvStage, Work},
        receive::{ASIDE, Posted},
    },
};

impl Core {
    /// A receive or claim of the table waits for a message of this connection's peer.
    pub(crate) fn post_of_peer(&mut self, key: OpKey, link: LinkId, tag: Tag, mask: Mask) {
        let Some(entry) = self.movers.ctx.operations.attach(key, link) else {
            return;
        };
        let order = self.posted.take_order();
        let queue = self.of_peer.entry(link).or_default();
        let post = queue.post_at(order, tag, mask, key);
        match &mut *entry.work {
            Work::Recv(recv) => recv.stage = RecvStage::Posted(post),
            Work::Claim(place) => *place = Some(post),
            _ => {}
        }
        self.stand_aside();
    }

    fn stand_aside(&mut self) {
        if self.aside.is_none() && !self.of_peer.is_empty() {
            let aside = Posted::Claim(ASIDE);
            // As early as any. Where another was first of all, that takes the message.
            self.aside = Some(self.posted.post_at(0, Tag(0), Mask::NONE, aside));
        }
    }

    /// As [`Core::match_posted`], where something waits for a message of one peer.
    #[cold]
    pub(super) fn match_aside(&mut self, link: LinkId, tag: Tag) -> Option<OpKey> {
        self.posted.remove(self.aside.take()?);
        let own = self.of_peer.get_mut(&link).and_then(|queue| {
            let id = queue.first_match(tag)?;
            Some((queue.order(id), *queue.get(id)?))
        });
        let other = self.posted.first_match(tag);
        let other = other.map(|id| self.posted.order(id));
        let found = match own {
            Some((order, key)) if other.is_none_or(|other| order < other) => {
                self.unpost(key);
                Some(key)
            }
            _ => self.match_posted(link, tag),
        };
        self.stand_aside();
        found
    }

    /// What waits for a message does so no longer. `false`: it is none such.
    pub(crate) fn unpost(&mut self, key: OpKey) -> bool {
        let Some(entry) = self.movers.ctx.operations.get(key) else {
            return false;
        };
        let post = match &mut *entry.work {
            Work::Claim(post) => post.take(),
            Work::Recv(recv) => match recv.stage {
                RecvStage::Posted(post) => {
                    recv.stage = RecvStage::Done;
                    Some(post)
                }
                _ => None,
            },
            _ => None,
        };
        let link = entry.link;
        match (post, link) {
            (None, _) => return false,
            (Some(post), None) => drop(self.posted.remove(post)),
            (Some(post), Some(link)) => self.unpost_of_peer(link, post),
        }
        true
    }

    fn unpost_of_peer(&mut self, link: LinkId, post: PostId) {
        if let Some(queue) = self.of_peer.get_mut(&link) {
            queue.remove(post);
            if queue.is_empty() {
                self.of_peer.remove(&link);
            }
        }
        if self.of_peer.is_empty()
            && let Some(aside) = self.aside.take()
        {
            self.posted.remove(aside);
        }
    }
}
