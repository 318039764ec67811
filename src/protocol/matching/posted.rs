//! Receives that wait for a message.

use super::store::{List, NONE, Store};
use crate::types::{Mask, Tag};

/// A posted receive, for [`PostedQueue::cancel`]. Refers to nothing once the receive has matched or was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PostId {
    slot: u32,
    generation: u32,
}

/// The posted receives of a worker, in the order in which they were posted.
///
/// Receives of an exact tag ([`Mask::ALL`]) are found by hash; the others are looked through in order.
#[derive(Debug)]
pub(crate) struct PostedQueue<T> {
    store: Store<T>,
    wild: List,
    next_order: u64,
}

impl<T> PostedQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            store: Store::new(),
            wild: List::new(),
            next_order: 0,
        }
    }

    /// How many receives wait.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.store.len()
    }

    /// Whether none waits.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.store.len() == 0
    }

    /// Adds a receive behind all others.
    #[inline]
    pub(crate) fn post(&mut self, tag: Tag, mask: Mask, receive: T) -> PostId {
        let slot = self.store.insert(tag.0, mask.0, self.next_order, receive);
        self.next_order += 1;
        if mask == Mask::ALL {
            self.store.index(slot);
        } else {
            self.wild.insert(&mut self.store, slot);
        }
        PostId {
            slot,
            generation: self.store.node(slot).generation,
        }
    }

    /// Takes the earliest receive that accepts a message with this tag.
    #[inline]
    pub(crate) fn take_match(&mut self, message: Tag) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let exact = self.store.find(message.0);
        if self.wild.oldest != NONE {
            let limit = if exact == NONE {
                u64::MAX
            } else {
                self.store.node(exact).order
            };
            // Stops at the first that matches, or that is later than the exact one.
            let wild = self.wild.find(&self.store, |node| {
                node.order > limit || Mask(node.mask).matches(Tag(node.tag), message)
            });
            if wild != NONE && self.store.node(wild).order < limit {
                return self.take(wild);
            }
        }
        if exact == NONE {
            None
        } else {
            self.take(exact)
        }
    }

    /// Takes a receive that has not matched yet.
    pub(crate) fn cancel(&mut self, id: PostId) -> Option<T> {
        let node = self.store.nodes.get(id.slot as usize)?;
        if node.generation != id.generation || node.value.is_none() {
            return None;
        }
        self.take(id.slot)
    }

    /// Takes all of them, in order.
    #[cfg(test)]
    pub(crate) fn drain(&mut self) -> Vec<T> {
        let mut all: Vec<(u64, u32)> = (0..)
            .zip(&self.store.nodes)
            .filter(|(_, node)| node.value.is_some())
            .map(|(slot, node)| (node.order, slot))
            .collect();
        all.sort_unstable();
        all.into_iter()
            .filter_map(|(_, slot)| self.take(slot))
            .collect()
    }

    /// Looks at all of them, in no particular order.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.store
            .nodes
            .iter()
            .filter_map(|node| node.value.as_ref())
    }

    #[inline]
    fn take(&mut self, slot: u32) -> Option<T> {
        if self.store.node(slot).mask == u64::MAX {
            self.store.unindex(slot);
        } else {
            self.wild.unlink(&mut self.store, slot);
        }
        self.store.remove(slot)
    }
}

impl<T> Default for PostedQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}
