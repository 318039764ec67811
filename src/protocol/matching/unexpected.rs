//! Messages that wait for a receive.

use std::collections::HashMap;

use super::store::{List, NONE, Node, Store};
use crate::{
    protocol::ledger::AccountId,
    types::{LinkId, Mask, OpKey, Tag},
};

/// When a message arrived, relative to the others of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival(u64);

/// By what a message that waits is found, other than by its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    /// Announced by a peer's operation, which may call it back.
    Announced(LinkId, u64),
    /// Still arriving, for this operation.
    Arriving(OpKey),
}

/// What the queue asks of a message.
pub(crate) trait Message {
    /// Its name, if it has one.
    fn name(&self) -> Option<Name>;
}

/// A message taken out of the queue, with all that [`UnexpectedQueue::insert`] needs to put it back.
#[derive(Debug)]
pub(crate) struct Taken<M> {
    #[cfg(test)]
    pub(crate) tag: Tag,
    pub(crate) message: M,
    pub(crate) arrival: Arrival,
    /// Who was charged for it.
    pub(crate) account: AccountId,
}

/// Places of a slab that is kept however few of them are in use.
const KEPT: usize = 1024;

/// The unexpected messages of a worker, in the order in which they arrived.
///
/// A receive of an exact tag finds its message by hash; a receive with a mask looks through them in order. Whoever brought some finds those
/// by themselves, and one of them by its name, however many others there are.
#[derive(Debug)]
pub(crate) struct UnexpectedQueue<M> {
    store: Store<M>,
    arrived: List,
    next_order: u64,
    names: HashMap<Name, u32>,
    /// By place in the store.
    kin: Vec<Kin>,
    /// The first of each account's, by account.
    firsts: Vec<u32>,
}

/// Whose a message is, and its neighbours among the messages of that account.
#[derive(Clone, Copy, Debug)]
struct Kin {
    account: AccountId,
    before: u32,
    after: u32,
}

impl<M: Message> UnexpectedQueue<M> {
    pub(crate) fn new() -> Self {
        Self {
            store: Store::new(),
            arrived: List::new(),
            next_order: 0,
            names: HashMap::new(),
            kin: Vec::new(),
            firsts: Vec::new(),
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

    /// The arrival of the next message, whether it has to wait or may be put in its place later.
    #[inline]
    pub(crate) fn arrival(&mut self) -> Arrival {
        self.next_order += 1;
        Arrival(self.next_order - 1)
    }

    /// Puts a message where it belongs by its arrival: behind all others, or back to where it was, as its receive was dropped before it was read.
    #[inline]
    pub(crate) fn insert(&mut self, tag: Tag, arrival: Arrival, account: AccountId, message: M) {
        let name = message.name();
        let slot = self.store.insert(tag.0, u64::MAX, arrival.0, message);
        self.store.index(slot);
        self.arrived.insert(&mut self.store, slot);
        self.join(slot, account);
        if let Some(name) = name {
            self.names.insert(name, slot);
        }
    }

    /// Takes the earliest message that a receive of `tag` under `mask` accepts.
    #[inline]
    pub(crate) fn take_match(&mut self, tag: Tag, mask: Mask) -> Option<Taken<M>> {
        match self.find(tag, mask) {
            NONE => None,
            slot => self.take(slot),
        }
    }

    /// As [`UnexpectedQueue::take_match`], of one peer's messages, which `is_own` knows. All that wait are under `account`, if that is known: they are looked
    /// through at the same time as those of the tag, so that it costs no more than the fewer of them.
    pub(crate) fn take_match_of(
        &mut self,
        account: Option<AccountId>,
        tag: Tag,
        mask: Mask,
        is_own: impl Fn(&M) -> bool,
    ) -> Option<Taken<M>> {
        let accepts = |slot| {
            let node = self.store.node(slot);
            mask.matches(tag, Tag(node.tag)) && node.value.as_ref().is_some_and(&is_own)
        };
        let is_exact = mask == Mask::ALL;
        let mut next = match is_exact {
            true => self.find(tag, mask),
            false => self.arrived.oldest,
        };
        let mut own = account.map(|account| self.first(account));
        let mut earliest = NONE;
        let found = loop {
            if next == NONE || accepts(next) {
                break next;
            }
            next = match is_exact {
                true => self.store.next(next),
                false => self.store.node(next).newer,
            };
            match own {
                Some(NONE) => break earliest,
                Some(slot) => {
                    let order = |slot| self.store.node(slot).order;
                    if accepts(slot) && (earliest == NONE || order(slot) < order(earliest)) {
                        earliest = slot;
                    }
                    own = Some(self.kin[slot as usize].after);
                }
                None => {}
            }
        };
        match found {
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

    /// The message of this name, and when it arrived: a name may be given again.
    pub(crate) fn named(&self, name: Name) -> Option<(Arrival, &M)> {
        let node = self.store.node(*self.names.get(&name)?);
        Some((Arrival(node.order), node.value.as_ref()?))
    }

    /// Takes the message of this name.
    pub(crate) fn take_named(&mut self, name: Name) -> Option<Taken<M>> {
        let slot = *self.names.get(&name)?;
        self.take(slot)
    }

    /// Takes those of an account's messages that `dead` picks.
    pub(crate) fn take_of(
        &mut self,
        account: AccountId,
        mut dead: impl FnMut(&M) -> bool,
    ) -> Vec<Taken<M>> {
        let mut taken = Vec::new();
        let mut slot = self.first(account);
        while slot != NONE {
            let after = self.kin[slot as usize].after;
            if self.store.node(slot).value.as_ref().is_some_and(&mut dead) {
                taken.extend(self.unlink(slot));
            }
            slot = after;
        }
        self.shrink();
        taken
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
            self.store.find(tag.0, u64::MAX)
        } else {
            self.arrived
                .find(&self.store, |node| mask.matches(tag, Tag(node.tag)))
        }
    }

    #[inline]
    fn take(&mut self, slot: u32) -> Option<Taken<M>> {
        let taken = self.unlink(slot);
        self.shrink();
        taken
    }

    #[inline]
    fn unlink(&mut self, slot: u32) -> Option<Taken<M>> {
        let Node { order, .. } = *self.store.node(slot);
        #[cfg(test)]
        let tag = self.store.node(slot).tag;
        self.store.unindex(slot);
        self.arrived.unlink(&mut self.store, slot);
        let account = self.leave(slot);
        let message = self.store.remove(slot)?;
        if let Some(name) = message.name()
            && self.names.get(&name) == Some(&slot)
        {
            self.names.remove(&name);
        }
        Some(Taken {
            #[cfg(test)]
            tag: Tag(tag),
            message,
            arrival: Arrival(order),
            account,
        })
    }

    /// After the last of many: their places go.
    #[inline]
    fn shrink(&mut self) {
        if self.store.len() == 0 && self.kin.len() > KEPT {
            let next_order = self.next_order;
            *self = Self::new();
            self.next_order = next_order;
        }
    }

    fn first(&self, account: AccountId) -> u32 {
        self.firsts.get(account.index()).copied().unwrap_or(NONE)
    }

    /// Puts a message before the others of its account.
    #[inline]
    fn join(&mut self, slot: u32, account: AccountId) {
        if self.firsts.len() <= account.index() {
            self.firsts.resize(account.index() + 1, NONE);
        }
        let after = std::mem::replace(&mut self.firsts[account.index()], slot);
        let kin = Kin {
            account,
            before: NONE,
            after,
        };
        match self.kin.get_mut(slot as usize) {
            Some(place) => *place = kin,
            // Places are used in order, the first time.
            None => self.kin.push(kin),
        }
        if after != NONE {
            self.kin[after as usize].before = slot;
        }
    }

    /// Takes a message out of those of its account.
    #[inline]
    fn leave(&mut self, slot: u32) -> AccountId {
        let Kin {
            account,
            before,
            after,
        } = self.kin[slot as usize];
        match before {
            NONE => self.firsts[account.index()] = after,
            before => self.kin[before as usize].after = after,
        }
        if after != NONE {
            self.kin[after as usize].before = before;
        }
        account
    }
}

impl<M: Message> Default for UnexpectedQueue<M> {
    fn default() -> Self {
        Self::new()
    }
}

fn entry<M>(node: &Node<M>) -> Option<(Tag, &M)> {
    Some((Tag(node.tag), node.value.as_ref()?))
}
