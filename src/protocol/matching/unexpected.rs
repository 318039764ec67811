//! Messages that wait for a receive.

use super::store::{List, NONE, Node, Store};
use crate::types::{Mask, Tag};

/// When a message arrived, relative to the others of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival(u64);

/// A message taken out of the queue, with all that [`UnexpectedQueue::restore`] needs to put it back.
#[derive(Debug)]
pub(crate) struct Taken<M> {
    #[cfg(test)]
    pub(crate) tag: Tag,
    pub(crate) message: M,
    pub(crate) arrival: Arrival,
}

/// The unexpected messages of a worker, in the order in which they arrived.
///
/// A receive of an exact tag finds its message by hash; a receive with a mask looks through them in order.
#[derive(Debug)]
pub(crate) struct UnexpectedQueue<M> {
    store: Store<M>,
    arrived: List,
    next_order: u64,
}

impl<M> UnexpectedQueue<M> {
    pub(crate) fn new() -> Self {
        Self {
            store: Store::new(),
            arrived: List::new(),
            next_order: 0,
        }
    }

    /// How many messages wait.
    #[cfg(test)]
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.store.len()
    }

    /// Whether none waits.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.store.len() == 0
    }

    /// The arrival of a message that did not have to wait, so that it can be restored to its place later.
    #[inline]
    pub(crate) fn arrival(&mut self) -> Arrival {
        self.next_order += 1;
        Arrival(self.next_order - 1)
    }

    /// Adds a message behind all others.
    #[inline]
    pub(crate) fn push(&mut self, tag: Tag, message: M) {
        let arrival = self.arrival();
        self.restore(tag, arrival, message);
    }

    /// Puts a message back to where it was when it arrived: its receive was dropped before it was read.
    #[inline]
    pub(crate) fn restore(&mut self, tag: Tag, arrival: Arrival, message: M) {
        let slot = self.store.insert(tag.0, u64::MAX, arrival.0, message);
        self.store.index(slot);
        self.arrived.insert(&mut self.store, slot);
    }

    /// Takes the earliest message that a receive of `tag` under `mask` accepts.
    #[inline]
    pub(crate) fn take_match(&mut self, tag: Tag, mask: Mask) -> Option<Taken<M>> {
        match self.find(tag, mask) {
            NONE => None,
            slot => self.take(slot),
        }
    }

    /// Looks at the message that [`UnexpectedQueue::take_match`] would take.
    #[inline]
    pub(crate) fn peek_match(&self, tag: Tag, mask: Mask) -> Option<(Tag, &M)> {
        match self.find(tag, mask) {
            NONE => None,
            slot => entry(self.store.node(slot)),
        }
    }

    /// Takes the messages that `dead` picks, in order.
    pub(crate) fn remove_if(&mut self, mut dead: impl FnMut(&M) -> bool) -> Vec<M> {
        let mut removed = Vec::new();
        let mut slot = self.arrived.oldest;
        while slot != NONE {
            let node = self.store.node(slot);
            let newer = node.newer;
            if node.value.as_ref().is_some_and(&mut dead) {
                removed.extend(self.take(slot).map(|taken| taken.message));
            }
            slot = newer;
        }
        removed
    }

    /// Looks at all of them, in order.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Tag, &M)> {
        let mut slot = self.arrived.oldest;
        std::iter::from_fn(move || {
            let node = self.store.nodes.get(slot as usize)?;
            slot = node.newer;
            entry(node)
        })
    }

    #[inline]
    fn find(&self, tag: Tag, mask: Mask) -> u32 {
        if self.is_empty() {
            NONE
        } else if mask == Mask::ALL {
            self.store.find(tag.0)
        } else {
            self.arrived
                .find(&self.store, |node| mask.matches(tag, Tag(node.tag)))
        }
    }

    #[inline]
    fn take(&mut self, slot: u32) -> Option<Taken<M>> {
        let Node { order, .. } = *self.store.node(slot);
        #[cfg(test)]
        let tag = self.store.node(slot).tag;
        self.store.unindex(slot);
        self.arrived.unlink(&mut self.store, slot);
        let message = self.store.remove(slot)?;
        Some(Taken {
            #[cfg(test)]
            tag: Tag(tag),
            message,
            arrival: Arrival(order),
        })
    }
}

impl<M> Default for UnexpectedQueue<M> {
    fn default() -> Self {
        Self::new()
    }
}

fn entry<M>(node: &Node<M>) -> Option<(Tag, &M)> {
    Some((Tag(node.tag), node.value.as_ref()?))
}
