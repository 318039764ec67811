//! Receives that wait for a message.

use super::store::{NONE, Store};
use crate::types::{Mask, Tag};

/// A posted receive. Refers to nothing once that was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PostId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// The order of one that has matched, and waits no longer.
const MATCHED: u64 = u64::MAX;

/// The posted receives of a worker, in the order in which they were posted.
///
/// Receives are found by hash of their tag under their mask: one look for each mask that is present, of which programs have few. One that has
/// matched keeps its place, in which its message is, until it is removed.
#[derive(Debug)]
pub(crate) struct PostedQueue<T> {
    pub(super) store: Store<T>,
    waiting: usize,
    /// The masks that are present, but for [`Mask::ALL`], and how many receives have each.
    masks: Vec<(u64, usize)>,
    next_order: u64,
}

impl<T> PostedQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            store: Store::new(),
            waiting: 0,
            masks: Vec::new(),
            next_order: 0,
        }
    }

    /// How many receives wait.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    /// How many there have ever been.
    pub(crate) fn entered(&self) -> u64 {
        self.next_order
    }

    /// Whether none waits.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Adds a receive behind all others.
    #[inline(always)]
    pub(crate) fn post(&mut self, tag: Tag, mask: Mask, receive: T) -> PostId {
        let order = self.take_order();
        self.post_at(order, tag, mask, receive)
    }

    /// The place of the next receive, which is posted in another queue.
    #[inline(always)]
    pub(crate) fn take_order(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order - 1
    }

    /// Adds a receive in this place.
    #[inline(always)]
    pub(crate) fn post_at(&mut self, order: u64, tag: Tag, mask: Mask, receive: T) -> PostId {
        let (tag, mask) = (tag.0 & mask.0, mask.0);
        let slot = self.store.insert(tag, mask, order, receive);
        self.waiting += 1;
        self.store.index(slot);
        if mask != u64::MAX {
            self.count_mask(mask);
        }
        PostId {
            slot,
            generation: self.store.node(slot).generation,
        }
    }

    fn count_mask(&mut self, mask: u64) {
        match self.masks.iter_mut().find(|(other, _)| *other == mask) {
            Some((_, count)) => *count += 1,
            None => self.masks.push((mask, 1)),
        }
    }

    /// One that waits, or has matched.
    #[inline(always)]
    pub(crate) fn get(&mut self, id: PostId) -> Option<&mut T> {
        let node = self.store.nodes.get_mut(id.slot as usize)?;
        match node.generation == id.generation {
            true => node.value.as_mut(),
            false => None,
        }
    }

    /// Its place among those that wait.
    pub(crate) fn order(&self, id: PostId) -> u64 {
        self.store.node(id.slot).order
    }

    /// Whether it waits still.
    #[inline(always)]
    pub(crate) fn waits(&self, id: PostId) -> bool {
        let node = self.store.nodes.get(id.slot as usize);
        node.is_some_and(|node| {
            node.generation == id.generation && node.value.is_some() && node.order != MATCHED
        })
    }

    /// All that wait.
    pub(crate) fn ids(&self) -> Vec<PostId> {
        (0..)
            .zip(&self.store.nodes)
            .filter(|(_, node)| node.value.is_some() && node.order != MATCHED)
            .map(|(slot, node)| PostId {
                slot,
                generation: node.generation,
            })
            .collect()
    }

    /// What a receive waits for, if it waits and is the one that gets the next message that it accepts. May say no where it is, and other masks
    /// are present.
    #[inline(always)]
    pub(crate) fn next_for(&self, id: PostId) -> Option<(Tag, Mask)> {
        if !self.waits(id) {
            return None;
        }
        let node = self.store.node(id.slot);
        let (tag, mask) = (node.tag, node.mask);
        let is_next = self.waiting == 1
            || mask == u64::MAX && self.masks.is_empty() && self.store.is_first(id.slot);
        is_next.then_some((Tag(tag), Mask(mask)))
    }

    /// The earliest receive that accepts a message with this tag.
    #[inline]
    pub(crate) fn first_match(&self, message: Tag) -> Option<PostId> {
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
        (earliest != NONE).then(|| PostId {
            slot: earliest,
            generation: self.store.node(earliest).generation,
        })
    }

    /// One that waits does so no longer, and keeps its place.
    #[inline]
    pub(crate) fn matched(&mut self, id: PostId) {
        if self.waits(id) {
            self.unlink(id.slot);
        }
    }

    /// Takes the earliest receive that accepts a message with this tag.
    #[cfg(test)]
    pub(crate) fn take_match(&mut self, message: Tag) -> Option<T> {
        let id = self.first_match(message)?;
        self.remove(id)
    }

    /// Takes a receive out, whether or not it has matched.
    #[inline(always)]
    pub(crate) fn remove(&mut self, id: PostId) -> Option<T> {
        let node = self.store.nodes.get(id.slot as usize)?;
        if node.generation != id.generation || node.value.is_none() {
            return None;
        }
        if node.order != MATCHED {
            self.unlink(id.slot);
        }
        self.store.remove(id.slot)
    }

    /// Takes one that waits out, of which nothing is left that owns anything: it is not dropped.
    #[inline(always)]
    pub(crate) fn forget(&mut self, id: PostId) {
        debug_assert!(self.waits(id), "it is in the index");
        self.unlink(id.slot);
        self.store.forget(id.slot);
    }

    /// Takes all of them, in order.
    #[cfg(test)]
    pub(crate) fn drain(&mut self) -> Vec<T> {
        let mut all = self.ids();
        all.sort_unstable_by_key(|id| self.store.node(id.slot).order);
        all.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Looks at all of them, in no particular order.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.store
            .nodes
            .iter()
            .filter_map(|node| node.value.as_ref())
    }

    /// Takes one that waits out of the index.
    #[inline(always)]
    fn unlink(&mut self, slot: u32) {
        self.waiting -= 1;
        self.store.unindex(slot);
        let node = self.store.node_mut(slot);
        node.order = MATCHED;
        if node.mask != u64::MAX {
            self.uncount_mask(slot);
        }
    }

    fn uncount_mask(&mut self, slot: u32) {
        let mask = self.store.node(slot).mask;
        if let Some(at) = self.masks.iter().position(|(other, _)| *other == mask) {
            self.masks[at].1 -= 1;
            if self.masks[at].1 == 0 {
                self.masks.swap_remove(at);
            }
        }
    }
}

impl<T> Default for PostedQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}
