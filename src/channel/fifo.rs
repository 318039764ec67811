//! The ring of triggers between those who ask for transfers and the proxy that does them.
//!
//! ```text
//! slot = 16 bytes: [ first word | second word, bit 63: the lap's parity ]
//!
//! producers  head: reserve, if head - tail < slots; first word; second word with the parity (release)
//! consumer   next: second word (acquire), its parity is the lap's: first word; next + 1
//!            tail = next (release), and whoever waits for room is woken: for many at a time, and before it sleeps
//! ```
//!
//! A slot is not cleared: the parity says whether its words are of this lap, and that there is room whether they may be overwritten. A consumer that
//! finds nothing leaves its waker and looks once more; a producer publishes, then takes the waker. One that finds no room does the same with
//! places.

use std::{
    future::poll_fn,
    task::{Poll, Waker},
};

#[cfg(not(wharf_loom))]
use futures::task::AtomicWaker;
#[cfg(wharf_loom)]
use loom::future::AtomicWaker;

use crate::{
    sys::fork,
    util::{
        loom::{AtomicBool, AtomicU64, Mutex, Ordering, spin_loop},
        waiters::Waiters,
        wake::wake_all,
    },
};

/// Bit 63 of the second word.
const PARITY: u64 = 1 << 63;
/// Most places that the consumer keeps before it gives them back.
const BATCH: u64 = 32;
/// Looks before the consumer parks: some microseconds.
const LOOKS: usize = if cfg!(wharf_loom) { 1 } else { 200 };

/// A slot: the words of a trigger.
#[repr(C, align(16))]
struct Slot {
    first: AtomicU64,
    second: AtomicU64,
}

const _: () = assert!(cfg!(wharf_loom) || size_of::<Slot>() == 16);

/// Many producers, one consumer.
pub(super) struct Fifo {
    slots: Box<[Slot]>,
    head: AtomicU64,
    tail: AtomicU64,
    /// The consumer's own: what it takes next. Places before it are given back by `tail`, not each by itself.
    next: AtomicU64,
    /// The consumer, when it sleeps.
    consumer: AtomicWaker,
    /// Producers that wait for room.
    room: Mutex<Waiters>,
    /// Nothing is taken any more.
    closed: AtomicBool,
}

/// Why a trigger was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushError {
    Full,
    Closed,
}

impl Fifo {
    /// # Panics
    /// When `slots` is not a power of two.
    pub(super) fn new(slots: usize) -> Self {
        assert!(slots.is_power_of_two(), "a ring of {slots} slots");
        let slot = |_| Slot {
            first: AtomicU64::new(0),
            second: AtomicU64::new(0),
        };
        Self {
            slots: (0..slots).map(slot).collect(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            next: AtomicU64::new(0),
            consumer: AtomicWaker::new(),
            room: Mutex::new(Waiters::default()),
            closed: AtomicBool::new(false),
        }
    }

    fn slot(&self, position: u64) -> &Slot {
        &self.slots[position as usize & (self.slots.len() - 1)]
    }

    /// The parity bit of the lap of `position`: set in the first, then in every other.
    fn parity(&self, position: u64) -> u64 {
        match position / self.slots.len() as u64 % 2 {
            0 => PARITY,
            _ => 0,
        }
    }

    /// Puts a trigger in, whose bit 63 of the second word is the ring's. Its position, counted from 0.
    pub(super) fn push(&self, words: [u64; 2]) -> Result<u64, PushError> {
        self.push_noted(words, |_| ())
    }

    /// The same, and tells the position before the consumer can see the trigger.
    fn push_noted(
        &self,
        [first, second]: [u64; 2],
        note: impl FnOnce(u64),
    ) -> Result<u64, PushError> {
        let mut head = self.head.load(Ordering::Relaxed);
        let position = loop {
            if self.closed.load(Ordering::Acquire) {
                return Err(PushError::Closed);
            }
            // The tail may be past an old head: then the exchange fails.
            let held = head.wrapping_sub(self.tail.load(Ordering::Acquire));
            if held >= self.slots.len() as u64 && held < 1 << 63 {
                return Err(PushError::Full);
            }
            match self.head.compare_exchange_weak(
                head,
                head.wrapping_add(1),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(position) => break position,
                Err(now) => head = now,
            }
        };
        note(position);
        let slot = self.slot(position);
        slot.first.store(first, Ordering::Relaxed);
        let second = second & !PARITY | self.parity(position);
        slot.second.store(second, Ordering::Release);
        self.consumer.wake();
        Ok(position)
    }

    /// Puts a trigger in, as soon as there is room, and tells its position before the consumer can see it. Dropped before, it puts nothing in.
    pub(super) async fn push_when_room(
        &self,
        words: [u64; 2],
        note: impl Fn(u64),
    ) -> Result<u64, PushError> {
        let mut place = Place {
            fifo: self,
            ticket: None,
        };
        poll_fn(|cx| place.poll(words, &note, cx.waker())).await
    }

    /// Takes a trigger, if one is there. To be called by the one consumer.
    pub(super) fn pop(&self) -> Option<[u64; 2]> {
        let next = self.next.load(Ordering::Relaxed);
        let slot = self.slot(next);
        let second = slot.second.load(Ordering::Acquire);
        if second & PARITY != self.parity(next) {
            self.give_back(next);
            return None;
        }
        let first = slot.first.load(Ordering::Relaxed);
        let next = next.wrapping_add(1);
        self.next.store(next, Ordering::Relaxed);
        if next.is_multiple_of(self.batch()) {
            self.give_back(next);
        }
        Some([first, second & !PARITY])
    }

    /// Places that are given back at a time, so that neither the line of the tail nor the lock of who waits moves for each trigger.
    fn batch(&self) -> u64 {
        BATCH.min(self.slots.len() as u64 / 2).max(1)
    }

    /// Lets producers have the places before `next`.
    fn give_back(&self, next: u64) {
        if self.tail.load(Ordering::Relaxed) == next {
            return;
        }
        self.tail.store(next, Ordering::Release);
        let mut woken = Vec::new();
        self.room.lock().take(&mut woken);
        wake_all(woken);
    }

    /// Makes the consumer look, as when a trigger has come.
    pub(super) fn wake(&self) {
        self.consumer.wake();
    }

    /// Takes a trigger, or sleeps until there is one. `None`: closed, and all were taken. To be called by the one consumer.
    pub(super) fn poll_pop(&self, waker: &Waker) -> Poll<Option<[u64; 2]>> {
        for _ in 0..LOOKS {
            if let Some(words) = self.pop() {
                return Poll::Ready(Some(words));
            }
            spin_loop();
        }
        register(&self.consumer, waker);
        // Closed before it is looked at, so that what was put in before is taken.
        let closed = self.closed.load(Ordering::Acquire);
        match self.pop() {
            Some(words) => Poll::Ready(Some(words)),
            None if closed => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// Takes nothing more; what is in is still to be taken.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.consumer.wake();
        let mut woken = Vec::new();
        self.room.lock().take(&mut woken);
        wake_all(woken);
    }

    /// Triggers that were put in and not taken.
    pub(super) fn len(&self) -> usize {
        let tail = self.next.load(Ordering::Acquire);
        let head = self.head.load(Ordering::Acquire);
        head.wrapping_sub(tail) as usize
    }
}

#[cfg(not(wharf_loom))]
fn register(place: &AtomicWaker, waker: &Waker) {
    place.register(waker);
}

#[cfg(wharf_loom)]
fn register(place: &AtomicWaker, waker: &Waker) {
    place.register_by_ref(waker);
}

/// A producer that may wait for room.
struct Place<'a> {
    fifo: &'a Fifo,
    ticket: Option<u64>,
}

impl Place<'_> {
    fn poll(
        &mut self,
        words: [u64; 2],
        note: &impl Fn(u64),
        waker: &Waker,
    ) -> Poll<Result<u64, PushError>> {
        match self.fifo.push_noted(words, note) {
            Err(PushError::Full) => {}
            result => return Poll::Ready(result),
        }
        let before = self.fifo.room.lock().leave(&mut self.ticket, waker);
        drop(before);
        match self.fifo.push_noted(words, note) {
            Err(PushError::Full) => Poll::Pending,
            result => Poll::Ready(result),
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // In a child made by `fork` the lock is as it was, perhaps taken for good, and nobody looks at who waits.
        if let Some(ticket) = self.ticket
            && !fork::forked()
        {
            let waker = self.fifo.room.lock().forget(ticket);
            drop(waker);
        }
    }
}

#[cfg(all(test, not(wharf_loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn in_order_over_many_laps() {
        let fifo = Fifo::new(4);
        let mut next = 0;
        for lap in 0..50_u64 {
            for _ in 0..=lap % 4 {
                let position = fifo.push([next, next | 7 << 50]).expect("room");
                assert_eq!(position, next);
                next += 1;
            }
            for back in (0..=lap % 4).rev() {
                let number = next - 1 - back;
                assert_eq!(fifo.pop(), Some([number, number | 7 << 50]));
            }
            assert_eq!(fifo.pop(), None, "the slot's old words are of another lap");
        }
        (0..4).for_each(|number| assert!(fifo.push([number; 2]).is_ok()));
        assert_eq!(fifo.push([0; 2]), Err(PushError::Full));
        assert_eq!(fifo.len(), 4);
        fifo.close();
        assert_eq!(fifo.push([0; 2]), Err(PushError::Closed));
        for number in 0..4 {
            assert_eq!(fifo.poll_pop(Waker::noop()), Poll::Ready(Some([number; 2])));
        }
        assert_eq!(fifo.poll_pop(Waker::noop()), Poll::Ready(None));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn many_producers_wait_for_room_and_nothing_is_lost() {
        const EACH: u64 = 5000;
        let fifo = Arc::new(Fifo::new(8));
        for producer in 0..4_u64 {
            let fifo = Arc::clone(&fifo);
            tokio::spawn(async move {
                for number in 0..EACH {
                    let pushed = fifo.push_when_room([producer, number], |_| ());
                    pushed.await.expect("open");
                }
            });
        }
        let mut next = [0; 4];
        for _ in 0..4 * EACH {
            let words = poll_fn(|cx| fifo.poll_pop(cx.waker())).await;
            let [producer, number] = words.expect("open");
            assert_eq!(number, next[producer as usize]);
            next[producer as usize] += 1;
        }
        assert_eq!(fifo.room.lock().len(), 0);
    }
}

#[cfg(all(test, wharf_loom))]
mod models {
    use loom::{future::block_on, sync::Arc, thread};

    use super::*;

    fn consume(fifo: &Fifo) -> Option<[u64; 2]> {
        block_on(poll_fn(|cx| fifo.poll_pop(cx.waker())))
    }

    /// The consumer sleeps and is woken; words are never of two triggers.
    #[test]
    fn a_consumer_that_sleeps_is_woken() {
        loom::model(|| {
            let fifo = Arc::new(Fifo::new(2));
            let producer = {
                let fifo = Arc::clone(&fifo);
                thread::spawn(move || {
                    fifo.push([1, 1]).expect("room");
                    fifo.push([2, 2]).expect("room");
                })
            };
            assert_eq!(consume(&fifo), Some([1, 1]));
            assert_eq!(consume(&fifo), Some([2, 2]));
            producer.join().unwrap();
        });
    }

    #[test]
    fn two_producers() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let fifo = Arc::new(Fifo::new(2));
            let producers = [1, 2].map(|number| {
                let fifo = Arc::clone(&fifo);
                thread::spawn(move || fifo.push([number, number]).expect("room"))
            });
            let (one, two) = (consume(&fifo), consume(&fifo));
            let (one, two) = (one.expect("open"), two.expect("open"));
            assert!(one[0] == one[1] && two[0] == two[1] && one[0] + two[0] == 3);
            for producer in producers {
                producer.join().unwrap();
            }
        });
    }

    /// A producer that finds no room sleeps until there is some. One slot: every trigger is a lap.
    #[test]
    fn a_producer_that_sleeps_is_woken() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let fifo = Arc::new(Fifo::new(1));
            let producer = {
                let fifo = Arc::clone(&fifo);
                thread::spawn(move || {
                    for number in 1..=2 {
                        block_on(fifo.push_when_room([number; 2], |_| ())).expect("open");
                    }
                })
            };
            assert_eq!(consume(&fifo), Some([1, 1]));
            assert_eq!(consume(&fifo), Some([2, 2]));
            producer.join().unwrap();
        });
    }

    /// The same where the consumer gives places back two at a time.
    #[test]
    fn a_producer_is_woken_for_many_places() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let fifo = Arc::new(Fifo::new(4));
            assert_eq!(fifo.batch(), 2);
            (1..=4).for_each(|number| assert!(fifo.push([number; 2]).is_ok()));
            let producer = {
                let fifo = Arc::clone(&fifo);
                thread::spawn(move || {
                    block_on(fifo.push_when_room([5; 2], |_| ())).expect("open");
                })
            };
            for number in 1..=5 {
                assert_eq!(consume(&fifo), Some([number; 2]));
            }
            producer.join().unwrap();
        });
    }

    #[test]
    fn closing_wakes() {
        loom::model(|| {
            let fifo = Arc::new(Fifo::new(1));
            let closer = {
                let fifo = Arc::clone(&fifo);
                thread::spawn(move || fifo.close())
            };
            assert_eq!(consume(&fifo), None);
            closer.join().unwrap();
        });
    }
}
