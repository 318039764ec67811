//! What waits for room on a link: classes, of which the first that is not empty goes first.
//!
//! ```text
//! answers ▷ high ▷ announcements held back ▷ normal ▷ the rest of what is being sent in fragments ▷ low
//! ```
//!
//! A fragment is the longest that anything is sent in one go, so a short message waits for one of them at most.

use super::wait_queue::{WaitQueue, Waits};
use crate::types::{OpKey, Priority};

/// Messages in a row after which the last class has a turn: a flood of short messages slows a long one down and does not stop it.
const TURNS: u32 = 64;

/// A place in the order of going out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Answers of the protocol, which have no order with anything else.
    Answer,
    High,
    /// Tagged sends that wait until the peer has matched earlier announcements.
    Held,
    Normal,
    /// Further fragments.
    Bulk,
    Low,
}

impl Class {
    /// That of an operation's next step. `bulk`: a fragment, and not the first thing of its operation.
    pub(crate) fn of(priority: Priority, bulk: bool) -> Self {
        match priority {
            Priority::High => Self::High,
            Priority::Normal if bulk => Self::Bulk,
            Priority::Normal => Self::Normal,
            Priority::Low => Self::Low,
        }
    }
}

const CLASSES: [Class; 6] = [
    Class::Answer,
    Class::High,
    Class::Held,
    Class::Normal,
    Class::Bulk,
    Class::Low,
];

#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// None until something has to wait: most connections are idle.
    classes: Option<Box<Classes>>,
    length: usize,
    /// Of that, tagged sends that are held back.
    held: usize,
    turn: u32,
}

type Classes = [WaitQueue<Queued>; 6];

impl Queue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Those that wait for room on the link, and not for a place among the announced.
    #[inline]
    pub(crate) fn active(&self) -> usize {
        self.length - self.held
    }

    /// Whether tagged sends are held back.
    pub(crate) fn holds(&self) -> bool {
        self.held > 0
    }

    pub(crate) fn push(&mut self, class: Class, queued: Queued) {
        self.class(class).push_back(queued);
    }

    /// A class that gets one more.
    fn class(&mut self, class: Class) -> &mut WaitQueue<Queued> {
        self.length += 1;
        self.held += usize::from(class == Class::Held);
        &mut self.classes.get_or_insert_default()[class as usize]
    }

    /// Puts back what [`Queue::pop`] took and the link had no room for.
    pub(crate) fn put_back(&mut self, class: Class, queued: Queued) {
        self.class(class).push_front(queued);
    }

    /// What goes next. `announce`: the peer takes another announcement.
    pub(crate) fn pop(&mut self, announce: bool) -> Option<(Class, Queued)> {
        if self.length == 0 {
            return None;
        }
        let waiting = self.classes.as_mut()?;
        self.turn = self.turn.wrapping_add(1);
        let mut classes = CLASSES;
        if self.turn.is_multiple_of(TURNS) {
            classes.reverse();
        }
        for class in classes {
            if class == Class::Held && !announce {
                continue;
            }
            if let Some(queued) = waiting[class as usize].pop_front() {
                self.length -= 1;
                self.held -= usize::from(class == Class::Held);
                return Some((class, queued));
            }
        }
        None
    }

    /// Takes an operation out that waits in this class.
    pub(crate) fn cancel(&mut self, class: Class, key: OpKey) {
        if let Some(classes) = &mut self.classes {
            classes[class as usize].cancel(key);
            self.length -= 1;
            self.held -= usize::from(class == Class::Held);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// What waits for room on a link, in order.
#[derive(Debug)]
pub(crate) enum Queued {
    /// The next step of an operation.
    Operation(OpKey),
    /// The next bytes of a stream.
    Stream(crate::worker::stream::key::StreamKey),
    /// A message of the protocol itself.
    Control {
        id: u8,
        header: u64,
        length: u8,
        body: [u8; 48],
    },
}

impl Waits for Queued {
    fn operation(&self) -> Option<OpKey> {
        match self {
            Self::Operation(key) => Some(*key),
            Self::Stream(_) | Self::Control { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(number: u32) -> Queued {
        Queued::Operation(OpKey::new(number, 0))
    }

    fn next(queue: &mut Queue, announce: bool) -> Option<(Class, usize)> {
        let (class, queued) = queue.pop(announce)?;
        match queued {
            Queued::Operation(key) => Some((class, key.slot())),
            Queued::Control { .. } | Queued::Stream(_) => None,
        }
    }

    #[test]
    fn higher_first_and_in_order_within() {
        let mut queue = Queue::default();
        for (number, class) in (0..).zip([Class::Low, Class::Bulk, Class::Normal, Class::High]) {
            queue.push(class, operation(number));
            queue.push(class, operation(10 + number));
        }
        assert_eq!(queue.len(), 8);
        for expected in [3, 13, 2, 12, 1, 11, 0, 10] {
            assert_eq!(
                next(&mut queue, true).map(|(_, number)| number),
                Some(expected)
            );
        }
        assert!(queue.is_empty() && next(&mut queue, true).is_none());
    }

    #[test]
    fn what_found_no_room_is_the_first_of_its_lane_again() {
        let mut queue = Queue::default();
        queue.push(Class::Normal, operation(1));
        queue.push(Class::Normal, operation(2));
        let (class, queued) = queue.pop(true).expect("one");
        queue.put_back(class, queued);
        assert_eq!(next(&mut queue, true), Some((Class::Normal, 1)));
    }

    #[test]
    fn held_until_there_is_a_place() {
        let mut queue = Queue::default();
        queue.push(Class::Held, operation(1));
        assert!(queue.holds());
        assert_eq!(next(&mut queue, false), None);
        assert_eq!(next(&mut queue, true), Some((Class::Held, 1)));
        assert!(!queue.holds());
    }

    #[test]
    fn the_last_lane_is_not_starved() {
        let mut queue = Queue::default();
        queue.push(Class::Low, operation(0));
        for _ in 0..2 * TURNS {
            queue.push(Class::High, operation(1));
        }
        let place = (0..2 * TURNS).position(|_| next(&mut queue, true) == Some((Class::Low, 0)));
        assert!(place.is_some_and(|place| place <= TURNS as usize));
    }

    #[test]
    fn removed_from_any_lane() {
        let mut queue = Queue::default();
        for (number, class) in (0..).zip(CLASSES) {
            queue.push(class, operation(number));
        }
        for (number, class) in (0..).zip(CLASSES) {
            queue.cancel(class, OpKey::new(number, 0));
        }
        assert!(queue.is_empty() && !queue.holds());
    }
}
