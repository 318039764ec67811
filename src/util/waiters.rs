//! Where any number of tasks wait for one event. A future that is dropped takes its waker with it, so the place does not grow.

use std::{collections::BTreeMap, task::Waker};

/// Wakers of those that wait, by ticket. Where nobody ever has, it takes a word.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Option<Box<Left>>);

#[derive(Debug, Default)]
struct Left {
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl Waiters {
    /// Leaves a waker, in place of the one left under the same ticket, which it gives back.
    #[must_use = "a waker is not dropped under the lock"]
    pub(crate) fn leave(&mut self, ticket: &mut Option<u64>, waker: &Waker) -> Option<Waker> {
        let this = self.0.get_or_insert_default();
        let ticket = *ticket.get_or_insert_with(|| {
            this.next += 1;
            this.next
        });
        match this.wakers.get(&ticket) {
            Some(left) if left.will_wake(waker) => None,
            _ => this.wakers.insert(ticket, waker.clone()),
        }
    }

    /// Takes one out: its future is gone.
    pub(crate) fn forget(&mut self, ticket: u64) -> Option<Waker> {
        self.0.as_mut()?.wakers.remove(&ticket)
    }

    /// Takes all, to be woken when the lock is gone.
    #[inline]
    pub(crate) fn take(&mut self, into: &mut Vec<Waker>) {
        if let Some(this) = &mut self.0
            && !this.wakers.is_empty()
        {
            into.extend(std::mem::take(&mut this.wakers).into_values());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|this| this.wakers.is_empty())
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |this| this.wakers.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_place_for_each_future() {
        let mut waiters = Waiters::default();
        let (mut first, mut second) = (None, None);
        for _ in 0..100 {
            drop(waiters.leave(&mut first, Waker::noop()));
            drop(waiters.leave(&mut second, Waker::noop()));
        }
        assert_eq!(waiters.len(), 2);
        assert!(waiters.forget(first.expect("a ticket")).is_some());
        let mut woken = Vec::new();
        waiters.take(&mut woken);
        assert_eq!((woken.len(), waiters.len()), (1, 0));
        // Woken and polled again: the ticket still holds.
        drop(waiters.leave(&mut second, Waker::noop()));
        assert!(waiters.forget(second.expect("a ticket")).is_some());
        assert!(waiters.forget(second.expect("a ticket")).is_none());
    }
}
