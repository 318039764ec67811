//! Receives that wait for a message.

use super::store::{NONE, Store};
use crate::types::{Mask, Tag};

/// A posted receive, for [`PostedQueue::cancel`]. Refers to nothing once the receive has matched or was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PostId {
    slot: u32,
    generation: u32,
}

/// The posted receives of a worker, in the order in which they were posted.
///
/// Receives are found by hash of their tag under their mask: one look for each mask that is present, of which programs have few.
#[derive(Debug)]
pub(crate) struct PostedQueue<T> {
    pub(super) store: Store<T>,
    /// The masks that are present, but for [`Mask::ALL`], and how many receives have each.
    masks: Vec<(u64, usize)>,
    next_order: u64,
}

impl<T> PostedQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            store: Store::new(),
            masks: Vec::new(),
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
        let (tag, mask) = (tag.0 & mask.0, mask.0);
        let slot = self.store.insert(tag, mask, self.next_order, receive);
        self.next_order += 1;
        self.store.index(slot);
        if mask != u64::MAX {
            match self.masks.iter_mut().find(|(other, _)| *other == mask) {
                Some((_, count)) => *count += 1,
                None => self.masks.push((mask, 1)),
            }
        }
        PostId {
            slot,
            generation: self.store.node(slot).generation,
        }
    }

    /// What a receive waits for, if it waits and is the one that gets the next message that it accepts. May say no where it is, and other masks
    /// are present.
    #[inline]
    pub(crate) fn next_for(&self, id: PostId) -> Option<(Tag, Mask)> {
        let node = self.store.nodes.get(id.slot as usize)?;
        if node.generation != id.generation || node.value.is_none() {
            return None;
        }
        let (tag, mask) = (node.tag, node.mask);
        let is_next = self.len() == 1
            || mask == u64::MAX && self.masks.is_empty() && self.store.find(tag, mask) == id.slot;
        is_next.then_some((Tag(tag), Mask(mask)))
    }

    /// Takes the earliest receive that accepts a message with this tag.
    #[inline]
    pub(crate) fn take_match(&mut self, message: Tag) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let mut earliest = self.store.find(message.0, u64::MAX);
        for &(mask, _) in &self.masks {
            let found = self.store.find(message.0 & mask, mask);
            if found != NONE
                && (earliest == NONE
                    || self.store.node(found).order < self.store.node(earliest).order)
            {
                earliest = found;
            }
        }
        if earliest == NONE {
            None
        } else {
            self.take(earliest)
        }
    }

    /// Takes the receive that [`PostedQueue::next_for`] has told of.
    #[inline]
    pub(crate) fn take_next(&mut self, id: PostId) {
        self.take(id.slot);
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
        let mask = self.store.node(slot).mask;
        self.store.unindex(slot);
        if mask != u64::MAX
            && let Some(at) = self.masks.iter().position(|(other, _)| *other == mask)
        {
            self.masks[at].1 -= 1;
            if self.masks[at].1 == 0 {
                self.masks.swap_remove(at);
            }
        }
        self.store.remove(slot)
    }
}

impl<T> Default for PostedQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}
