//! Who waits for a semaphore's signals, in the order in which they came.
//!
//! ```text
//! value   = signals that have come        (raised by the peer, wraps around)
//! taken   = tickets that were taken       (here, private)
//! place k in the line is served when value reaches taken + k + 1
//! ```
//!
//! A ticket is taken at the moment when a wait succeeds, never before: so a wait that is dropped takes none with it, and those behind it move up.
//! Somebody behind may be served before somebody in front has looked, but only when there are signals for both.

use std::{collections::VecDeque, task::Waker};

use crate::memory::waiters::reached;

#[derive(Debug, Default)]
pub(super) struct Line {
    taken: u64,
    next: u64,
    /// By number, which only grows.
    waiting: VecDeque<Place>,
}

#[derive(Debug)]
struct Place {
    number: u64,
    /// To be woken when it moves up.
    waker: Option<Waker>,
}

impl Line {
    /// Takes a ticket if there is one for who stands under `number`, or who comes now. The ticket, counted from 1, or the value to wait for.
    pub(super) fn claim(&mut self, number: &mut Option<u64>, value: u64) -> Result<u64, u64> {
        let place = match number {
            Some(number) => self.place(*number),
            None => None,
        };
        let ahead = place.unwrap_or(self.waiting.len());
        let at_least = self.after(ahead);
        if reached(value, at_least) {
            if let Some(place) = place {
                self.waiting.remove(place);
            }
            *number = None;
            self.taken = self.taken.wrapping_add(1);
            return Ok(self.taken);
        }
        if place.is_none() {
            *number = Some(self.next);
            self.waiting.push_back(Place {
                number: self.next,
                waker: None,
            });
            self.next += 1;
        }
        Err(at_least)
    }

    /// Takes a ticket if there is one that nobody waits for.
    pub(super) fn try_take(&mut self, value: u64) -> Option<u64> {
        self.claim_only(value).then(|| {
            self.taken = self.taken.wrapping_add(1);
            self.taken
        })
    }

    fn claim_only(&self, value: u64) -> bool {
        reached(value, self.after(self.waiting.len()))
    }

    /// Leaves the waker of who stands under `number`, before it sleeps until the value is `at_least`. `false`: it has moved up meanwhile.
    pub(super) fn leave_waker(&mut self, number: u64, at_least: u64, waker: &Waker) -> bool {
        let Some(place) = self.place(number) else {
            return false;
        };
        if self.after(place) != at_least {
            return false;
        }
        match &mut self.waiting[place].waker {
            Some(left) => left.clone_from(waker),
            left @ None => *left = Some(waker.clone()),
        }
        true
    }

    /// Who stands under `number` goes without a ticket. The wakers of those behind, who have moved up, to be woken outside of the lock.
    pub(super) fn leave(&mut self, number: u64) -> Vec<Waker> {
        let Some(place) = self.place(number) else {
            return Vec::new();
        };
        self.waiting.remove(place);
        let behind = self.waiting.range_mut(place..);
        behind.filter_map(|place| place.waker.take()).collect()
    }

    /// Signals that nobody has taken.
    pub(super) fn pending(&self, value: u64) -> u64 {
        let pending = value.wrapping_sub(self.taken);
        if reached(value, self.taken) {
            pending
        } else {
            0
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn place(&self, number: u64) -> Option<usize> {
        self.waiting
            .binary_search_by_key(&number, |place| place.number)
            .ok()
    }

    /// The value that serves who has so many ahead.
    fn after(&self, ahead: usize) -> u64 {
        self.taken.wrapping_add(ahead as u64).wrapping_add(1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(taken: u64) -> Line {
        Line {
            taken,
            ..Line::default()
        }
    }

    #[test]
    fn in_the_order_in_which_they_came() {
        let mut line = line(u64::MAX - 1);
        let (mut first, mut second) = (None, None);
        assert_eq!(line.claim(&mut first, u64::MAX - 1), Err(u64::MAX));
        assert_eq!(
            line.claim(&mut second, u64::MAX - 1),
            Err(0),
            "it wraps around"
        );
        assert_eq!(
            line.claim(&mut second, u64::MAX),
            Err(0),
            "one signal is the first's"
        );
        assert_eq!(line.try_take(u64::MAX), None);
        assert_eq!(line.claim(&mut first, u64::MAX), Ok(u64::MAX));
        assert_eq!(line.claim(&mut second, u64::MAX), Err(0));
        assert_eq!(line.claim(&mut second, 0), Ok(0));
        assert_eq!((line.pending(0), line.waiting()), (0, 0));
        assert_eq!(line.try_take(1), Some(1));
    }

    #[test]
    fn who_goes_lets_the_others_up() {
        let mut line = line(0);
        let (mut first, mut second) = (None, None);
        let _ = line.claim(&mut first, 0);
        assert_eq!(line.claim(&mut second, 0), Err(2));
        assert!(line.leave_waker(second.expect("in line"), 2, Waker::noop()));
        assert_eq!(line.leave(first.expect("in line")).len(), 1);
        assert!(!line.leave_waker(second.expect("in line"), 2, Waker::noop()));
        assert_eq!(line.claim(&mut second, 0), Err(1));
        assert_eq!(line.claim(&mut second, 1), Ok(1));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Signal,
        Come,
        Look(usize),
        Go(usize),
        Try,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            Just(Step::Signal),
            Just(Step::Come),
            (0usize..8).prop_map(Step::Look),
            (0usize..8).prop_map(Step::Go),
            Just(Step::Try),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// As many pass as there were signals, whoever goes in between; nobody who waits is passed over.
        #[test]
        fn counts(steps in steps(), begin in any::<u64>()) {
            let (mut line, mut value, mut signals, mut passed) = (line(begin), begin, 0, 0);
            let mut waiting: Vec<Option<u64>> = Vec::new();
            for step in steps {
                match step {
                    Step::Signal => {
                        value = value.wrapping_add(1);
                        signals += 1;
                    }
                    Step::Come => {
                        let mut number = None;
                        match line.claim(&mut number, value) {
                            Ok(_) => passed += 1,
                            Err(_) => waiting.push(number),
                        }
                    }
                    Step::Look(at) if at < waiting.len() => {
                        let served = signals - passed > at as u64;
                        prop_assert_eq!(line.claim(&mut waiting[at], value).is_ok(), served);
                        if served {
                            passed += 1;
                            waiting.remove(at);
                        }
                    }
                    Step::Go(at) if at < waiting.len() => {
                        line.leave(waiting.remove(at).expect("in line"));
                    }
                    Step::Try => {
                        let free = signals - passed > waiting.len() as u64;
                        prop_assert_eq!(line.try_take(value).is_some(), free);
                        passed += u64::from(free);
                    }
                    Step::Look(_) | Step::Go(_) => {}
                }
                prop_assert_eq!(line.pending(value), signals - passed);
                prop_assert_eq!(line.waiting(), waiting.len());
            }
        }
    }
}
