//! What waits in order, and of which any operation may be cancelled: in constant time on average, however many wait.

use std::collections::{HashSet, VecDeque};

use crate::types::OpKey;

/// What may wait.
pub(crate) trait Waits {
    /// Which operation it is, if it is one.
    fn operation(&self) -> Option<OpKey>;
}

impl Waits for OpKey {
    fn operation(&self) -> Option<OpKey> {
        Some(*self)
    }
}

#[derive(Debug)]
pub(crate) struct WaitQueue<T> {
    all: VecDeque<T>,
    /// Operations in it that were cancelled, and not the first. They stay where they are until half of all are such, when one more is.
    canceled: HashSet<OpKey>,
}

impl<T> Default for WaitQueue<T> {
    fn default() -> Self {
        Self {
            all: VecDeque::new(),
            canceled: HashSet::new(),
        }
    }
}

impl<T: Waits> WaitQueue<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.all.front()
    }

    pub(crate) fn push_back(&mut self, waiting: T) {
        self.all.push_back(waiting);
    }

    pub(crate) fn push_front(&mut self, waiting: T) {
        self.all.push_front(waiting);
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let first = self.all.pop_front();
        self.trim();
        first
    }

    /// Takes out an operation. One that does not wait here changes nothing.
    pub(crate) fn cancel(&mut self, key: OpKey) {
        self.canceled.insert(key);
        if 2 * self.canceled.len() < self.all.len() {
            return self.trim();
        }
        let canceled = std::mem::take(&mut self.canceled);
        let stays = |key| !canceled.contains(&key);
        self.all
            .retain(|waiting| waiting.operation().is_none_or(stays));
    }

    fn trim(&mut self) {
        while !self.canceled.is_empty()
            && let Some(key) = self.all.front().and_then(Waits::operation)
            && self.canceled.remove(&key)
        {
            self.all.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(number: u32) -> OpKey {
        OpKey::new(number, 0)
    }

    proptest! {
        /// Beside a plain list.
        #[test]
        fn as_if_each_were_taken_out_at_once(steps in prop::collection::vec((0..8_u8, any::<prop::sample::Index>()), 0..400)) {
            let (mut queue, mut plain) = (WaitQueue::default(), VecDeque::new());
            for (number, (step, which)) in (0..).zip(steps) {
                match step {
                    0..=2 => {
                        queue.push_back(key(number));
                        plain.push_back(number);
                    }
                    3 => {
                        queue.push_front(key(number));
                        plain.push_front(number);
                    }
                    4 => {
                        let wanted = plain.pop_front().map(key);
                        prop_assert_eq!(queue.pop_front(), wanted);
                    }
                    _ if plain.is_empty() => {}
                    _ => {
                        let gone = plain.remove(which.index(plain.len()));
                        queue.cancel(key(gone.expect("it is there")));
                        prop_assert!(queue.all.len() <= 2 * plain.len());
                    }
                }
                prop_assert_eq!(queue.front().copied(), plain.front().copied().map(key));
                prop_assert_eq!(queue.is_empty(), plain.is_empty());
            }
        }
    }
}
