//! The slab under both queues: nodes, the index by tag and mask, and lists in order.

#[cfg(test)]
use std::cell::Cell;
use std::{
    hash::{BuildHasher, RandomState},
    mem::ManuallyDrop,
};

/// No node.
pub(super) const NONE: u32 = u32::MAX;

const FIRST_BUCKETS: usize = 64;

/// So many nodes in a row that belong to other groups than the one in front, and the next one's group is the one in front.
const PASSES: u32 = 8;

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A place in the slab. Links of a free node mean nothing, except `next`, which chains the free ones.
#[derive(Debug)]
pub(super) struct Node<V> {
    /// `None`: the place is free. Dropped by hand: where one is put, the compiler need not ask whether another was there.
    pub(super) value: ManuallyDrop<Option<V>>,
    /// Has no bits that the mask leaves out.
    pub(super) tag: u64,
    pub(super) mask: u64,
    /// Place among all nodes: lower is earlier.
    pub(super) order: u64,
    /// Counts the uses of this place.
    pub(super) generation: u32,
    /// Neighbours in the group of this tag and mask.
    prev: u32,
    next: u32,
    /// In the first of a group: its last node, and the first of the next group in the bucket.
    tail: u32,
    chain: u32,
    /// Neighbours in a [`List`].
    older: u32,
    pub(super) newer: u32,
}

/// A group by its ends, [`NONE`] where it is empty.
#[derive(Debug)]
struct Group {
    tag: u64,
    mask: u64,
    head: u32,
    tail: u32,
}

/// The slab and the index over it.
#[derive(Debug)]
pub(super) struct Store<V> {
    pub(super) nodes: Vec<Node<V>>,
    free: u32,
    len: usize,
    /// The group that is used most is found without a hash; it is in no bucket. Programs have few tags at a time.
    front: Group,
    /// Nodes in a row that were not put there.
    passed: u32,
    /// First group of each bucket; the length is a power of two.
    buckets: Box<[u32]>,
    /// How many groups are in buckets.
    groups: usize,
    /// Random and odd.
    multiplier: u64,
    /// Groups that were looked at to find one.
    #[cfg(test)]
    pub(super) looked_at: Cell<usize>,
}

impl Group {
    #[inline(always)]
    fn is(&self, tag: u64, mask: u64) -> bool {
        self.tag == tag && self.mask == mask
    }
}

impl<V> Store<V> {
    pub(super) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free: NONE,
            len: 0,
            // Nothing has a bit that its mask leaves out.
            front: Group {
                tag: 1,
                mask: 0,
                head: NONE,
                tail: NONE,
            },
            passed: 0,
            buckets: vec![NONE; FIRST_BUCKETS].into(),
            groups: 0,
            multiplier: RandomState::new().hash_one(0u64) | 1,
            #[cfg(test)]
            looked_at: Cell::new(0),
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn node(&self, index: u32) -> &Node<V> {
        &self.nodes[index as usize]
    }

    #[inline]
    pub(super) fn node_mut(&mut self, index: u32) -> &mut Node<V> {
        &mut self.nodes[index as usize]
    }

    /// Puts a value into a free place, linked nowhere yet.
    #[inline(always)]
    pub(super) fn insert(&mut self, tag: u64, mask: u64, order: u64, value: V) -> u32 {
        if self.free == NONE {
            self.add_place();
        }
        self.len += 1;
        let index = self.free;
        let node = self.node_mut(index);
        let free = node.next;
        debug_assert!(node.value.is_none(), "a free place");
        node.value = ManuallyDrop::new(Some(value));
        node.tag = tag;
        node.mask = mask;
        node.order = order;
        self.free = free;
        index
    }

    #[cold]
    fn add_place(&mut self) {
        let index = self.nodes.len() as u32;
        debug_assert!(index != NONE, "no memory holds that many nodes");
        self.nodes.push(Node {
            value: ManuallyDrop::new(None),
            tag: 0,
            mask: 0,
            order: 0,
            generation: 0,
            prev: NONE,
            next: self.free,
            tail: NONE,
            chain: NONE,
            older: NONE,
            newer: NONE,
        });
        self.free = index;
    }

    /// Frees a place that is linked nowhere any more. `None` when it was free already.
    #[inline(always)]
    pub(super) fn remove(&mut self, index: u32) -> Option<V> {
        let value = self.node_mut(index).value.take()?;
        self.forget(index);
        Some(value)
    }

    /// Frees a place that is linked nowhere any more, and whose value owns nothing: it is not dropped.
    #[inline(always)]
    pub(super) fn forget(&mut self, index: u32) {
        let free = self.free;
        let node = self.node_mut(index);
        node.value = ManuallyDrop::new(None);
        node.generation = node.generation.wrapping_add(1);
        node.next = free;
        self.free = index;
        self.len -= 1;
    }

    /// The earliest node of this very tag and mask in the index, or [`NONE`].
    #[inline]
    pub(super) fn find(&self, tag: u64, mask: u64) -> u32 {
        match self.front.is(tag, mask) {
            true => self.front.head,
            false => self.find_behind(tag, mask),
        }
    }

    /// The same among those that are not in front.
    #[inline]
    fn find_behind(&self, tag: u64, mask: u64) -> u32 {
        match self.groups {
            0 => NONE,
            _ => self.find_in(self.bucket(tag, mask), tag, mask),
        }
    }

    #[inline(always)]
    fn find_in(&self, bucket: usize, tag: u64, mask: u64) -> u32 {
        let mut index = self.buckets[bucket];
        while index != NONE {
            #[cfg(test)]
            self.looked_at.set(self.looked_at.get() + 1);
            let node = self.node(index);
            if node.tag == tag && node.mask == mask {
                break;
            }
            index = node.chain;
        }
        index
    }

    /// The one behind a node in its group, or [`NONE`].
    pub(super) fn next(&self, index: u32) -> u32 {
        self.node(index).next
    }

    /// Whether a node of the index is the first of its group.
    #[inline(always)]
    pub(super) fn is_first(&self, index: u32) -> bool {
        self.node(index).prev == NONE
    }

    /// Puts a node into the group of its tag, by its order.
    #[inline(always)]
    pub(super) fn index(&mut self, index: u32) {
        let Node { tag, mask, .. } = *self.node(index);
        match self.front.is(tag, mask) {
            true => self.index_in_front(index),
            false => self.index_behind(index),
        }
    }

    #[inline(always)]
    fn index_in_front(&mut self, index: u32) {
        self.passed = 0;
        let Group { head, tail, .. } = self.front;
        let before = self.before(head, tail, self.node(index).order);
        let after = match before {
            NONE => head,
            before => self.node(before).next,
        };
        let node = self.node_mut(index);
        node.prev = before;
        node.next = after;
        match before {
            NONE => self.front.head = index,
            before => self.node_mut(before).next = index,
        }
        match after {
            NONE => self.front.tail = index,
            after => self.node_mut(after).prev = index,
        }
    }

    /// Behind which node of a group one of this order belongs, or [`NONE`]; a new one belongs behind the last.
    #[inline(always)]
    fn before(&self, head: u32, tail: u32, order: u64) -> u32 {
        match tail != NONE && self.node(tail).order > order {
            true => self.before_restored(head, tail, order),
            false => tail,
        }
    }

    /// The same of one that is restored, and so belongs before the last: near either end, however
    /// many there are. It is looked for from both.
    #[inline(never)]
    fn before_restored(&self, head: u32, tail: u32, order: u64) -> u32 {
        let (mut front, mut back) = (head, tail);
        loop {
            let (first, last) = (self.node(front), self.node(back));
            if first.order > order {
                return first.prev;
            }
            if last.order < order {
                return back;
            }
            (front, back) = (first.next, last.prev);
        }
    }

    #[inline(never)]
    fn index_behind(&mut self, index: u32) {
        let Node {
            tag, mask, order, ..
        } = *self.node(index);
        self.passed += 1;
        if self.front.head == NONE || self.passed > PASSES {
            self.bring_to_front(tag, mask);
            return self.index_in_front(index);
        }
        let head = self.find_behind(tag, mask);
        if head == NONE {
            let node = self.node_mut(index);
            node.prev = NONE;
            node.next = NONE;
            return self.open_group(index, index);
        }
        let before = self.before(head, self.node(head).tail, order);
        if before == NONE {
            self.replace_head(head, index);
            let node = self.node_mut(index);
            node.prev = NONE;
            node.next = head;
            self.node_mut(head).prev = index;
            return;
        }
        let after = self.node(before).next;
        let node = self.node_mut(index);
        node.prev = before;
        node.next = after;
        self.node_mut(before).next = index;
        match after {
            NONE => self.node_mut(head).tail = index,
            after => self.node_mut(after).prev = index,
        }
    }

    /// The group of a tag, which may have no nodes yet, takes the place of the one in front.
    fn bring_to_front(&mut self, tag: u64, mask: u64) {
        let head = self.find_behind(tag, mask);
        let tail = match head {
            NONE => NONE,
            head => {
                let Node { chain, tail, .. } = *self.node(head);
                *self.link_to(head) = chain;
                self.groups -= 1;
                tail
            }
        };
        let group = Group {
            tag,
            mask,
            head,
            tail,
        };
        let old = std::mem::replace(&mut self.front, group);
        if old.head != NONE {
            self.open_group(old.head, old.tail);
        }
    }

    /// Takes a node out of the group of its tag.
    #[inline(always)]
    pub(super) fn unindex(&mut self, index: u32) {
        if self.front.head != index {
            return self.unindex_behind(index);
        }
        let next = self.node(index).next;
        self.front.head = next;
        match next {
            NONE => self.front.tail = NONE,
            next => self.node_mut(next).prev = NONE,
        }
    }

    /// The same, where it is not the first of all.
    #[inline(never)]
    fn unindex_behind(&mut self, index: u32) {
        let Node {
            tag,
            mask,
            prev,
            next,
            chain,
            ..
        } = *self.node(index);
        if prev == NONE {
            if next == NONE {
                *self.link_to(index) = chain;
                self.groups -= 1;
            } else {
                self.replace_head(index, next);
                self.node_mut(next).prev = NONE;
            }
            return;
        }
        self.node_mut(prev).next = next;
        if next != NONE {
            self.node_mut(next).prev = prev;
        } else if self.front.tail == index {
            self.front.tail = prev;
        } else {
            let head = self.find_behind(tag, mask);
            self.node_mut(head).tail = prev;
        }
    }

    /// Puts a group that has no bucket yet into its own.
    fn open_group(&mut self, head: u32, tail: u32) {
        let bucket = self.bucket_of(head);
        let chain = self.buckets[bucket];
        let node = self.node_mut(head);
        node.tail = tail;
        node.chain = chain;
        self.buckets[bucket] = head;
        self.groups += 1;
        if self.groups > self.buckets.len() {
            self.grow();
        }
    }

    #[cold]
    fn grow(&mut self) {
        let wider = vec![NONE; self.buckets.len() * 2].into();
        for mut head in std::mem::replace(&mut self.buckets, wider) {
            while head != NONE {
                let following = self.node(head).chain;
                let bucket = self.bucket_of(head);
                self.node_mut(head).chain = self.buckets[bucket];
                self.buckets[bucket] = head;
                head = following;
            }
        }
    }

    /// Lets `new` stand for the group that `old` stood for.
    fn replace_head(&mut self, old: u32, new: u32) {
        let Node { tail, chain, .. } = *self.node(old);
        *self.link_to(old) = new;
        let node = self.node_mut(new);
        node.tail = tail;
        node.chain = chain;
    }

    /// The link that points to the first node `head` of a group.
    #[inline]
    fn link_to(&mut self, head: u32) -> &mut u32 {
        let bucket = self.bucket_of(head);
        match self.buckets[bucket] == head {
            true => &mut self.buckets[bucket],
            false => self.link_behind(bucket, head),
        }
    }

    #[inline(never)]
    fn link_behind(&mut self, bucket: usize, head: u32) -> &mut u32 {
        let mut before = NONE;
        let mut index = self.buckets[bucket];
        while index != head {
            before = index;
            index = self.node(index).chain;
        }
        match before {
            NONE => &mut self.buckets[bucket],
            before => &mut self.node_mut(before).chain,
        }
    }

    fn bucket_of(&self, index: u32) -> usize {
        let Node { tag, mask, .. } = *self.node(index);
        self.bucket(tag, mask)
    }

    /// The bits that a mask leaves out are zero in its tags; set, they tell masks apart.
    ///
    /// Multiply and shift: with a random odd multiplier any two tags share a bucket with probability at most 2 / buckets,
    /// so a peer cannot choose tags that all meet in one. That bound is a mean: tags that are counted up meet in few buckets
    /// under an unlucky multiplier. So they are scattered first, each to a place of its own.
    #[inline]
    fn bucket(&self, tag: u64, mask: u64) -> usize {
        let scattered = (tag | !mask).wrapping_mul(GOLDEN);
        let mixed = (scattered ^ scattered >> 32).wrapping_mul(self.multiplier);
        (mixed >> (64 - self.buckets.len().trailing_zeros())) as usize
    }
}

impl<V> Drop for Store<V> {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            drop(node.value.take());
        }
    }
}

/// Nodes of a store in their order, earliest first.
#[derive(Debug)]
pub(super) struct List {
    pub(super) oldest: u32,
    newest: u32,
}

impl List {
    pub(super) const fn new() -> Self {
        Self {
            oldest: NONE,
            newest: NONE,
        }
    }

    /// Puts a node in by its order; a new one goes to the end at once.
    #[inline]
    pub(super) fn insert<V>(&mut self, store: &mut Store<V>, index: u32) {
        let order = store.node(index).order;
        let (mut older, mut newer) = (self.newest, NONE);
        if older != NONE && store.node(older).order > order {
            (older, newer) = self.place_restored(store, order);
        }
        let node = store.node_mut(index);
        node.older = older;
        node.newer = newer;
        self.relink(store, older, newer, index, index);
    }

    /// Between which two one belongs that is restored, before the last: as in
    /// [`Store::before_restored`].
    #[inline(never)]
    fn place_restored<V>(&self, store: &Store<V>, order: u64) -> (u32, u32) {
        let (mut front, mut back) = (self.oldest, self.newest);
        loop {
            let (first, last) = (store.node(front), store.node(back));
            if first.order > order {
                return (first.older, front);
            }
            if last.order < order {
                return (back, last.newer);
            }
            (front, back) = (first.newer, last.older);
        }
    }

    /// Takes a node out.
    #[inline]
    pub(super) fn unlink<V>(&mut self, store: &mut Store<V>, index: u32) {
        let Node { older, newer, .. } = *store.node(index);
        self.relink(store, older, newer, newer, older);
    }

    /// Sets what follows `older` and what precedes `newer`, where [`NONE`] means the ends of the list.
    #[inline]
    fn relink<V>(
        &mut self,
        store: &mut Store<V>,
        older: u32,
        newer: u32,
        after_older: u32,
        before_newer: u32,
    ) {
        match older {
            NONE => self.oldest = after_older,
            older => store.node_mut(older).newer = after_older,
        }
        match newer {
            NONE => self.newest = before_newer,
            newer => store.node_mut(newer).older = before_newer,
        }
    }

    /// The earliest node that `accept` takes, or [`NONE`].
    #[inline]
    pub(super) fn find<V>(
        &self,
        store: &Store<V>,
        mut accept: impl FnMut(&Node<V>) -> bool,
    ) -> u32 {
        let mut index = self.oldest;
        while index != NONE {
            let node = store.node(index);
            if accept(node) {
                break;
            }
            index = node.newer;
        }
        index
    }
}
