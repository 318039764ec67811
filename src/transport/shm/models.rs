#![allow(unsafe_code)]
//! Every interleaving of the ring and its two flags, checked by `loom` on a ring of two cells.
//!
//! # Safety
//! The ends keep the ring alive by the `Arc` beside them, and each model makes one producer and one consumer.

use std::ptr::NonNull;

use super::{
    cells::RingMemory,
    doorbell::{Flag, LEFT_OUT, before_the_look},
    layout::{Apart, CELLS, Cell, ConsumerLine, Content, MAX_INLINE, NEAR_CELLS, ProducerLine},
    ring::{Consumer, Producer, PushError, Waiting},
};
use crate::util::loom::{Arc, AtomicU64, Ordering, UnsafeCell, fence, thread};

/// A ring in ordinary memory. Only inline bodies are modelled: the area follows the same publication.
struct Ring {
    far: Vec<Cell>,
    near: Vec<Cell>,
    consumer: ConsumerLine,
    producer: ProducerLine,
}

impl Ring {
    fn new() -> Arc<Self> {
        let cell = || Cell {
            word: AtomicU64::new(0),
            content: UnsafeCell::new(Content {
                header: 0,
                body: [0; MAX_INLINE],
            }),
        };
        Arc::new(Self {
            far: (0..CELLS).map(|_| cell()).collect(),
            near: (0..2 * NEAR_CELLS).map(|_| cell()).collect(),
            consumer: ConsumerLine {
                head: AtomicU64::new(0),
                area_head: AtomicU64::new(0),
                parked: Apart(Flag::new()),
            },
            producer: ProducerLine {
                want_room: Flag::new(),
            },
        })
    }

    fn memory(&self) -> RingMemory {
        RingMemory {
            far: NonNull::from(&self.far[0]),
            near: NonNull::from(&self.near[0]),
            area: NonNull::dangling(),
            wide: NonNull::dangling(),
            near_area: NonNull::dangling(),
            consumer: NonNull::from(&self.consumer),
            producer: NonNull::from(&self.producer),
            // Nobody is answered: a model says itself when its sender turns.
            answers: NonNull::from(&self.consumer),
        }
    }

    fn producer(&self) -> Producer {
        // SAFETY: see the module's docs.
        unsafe { Producer::new(self.memory()) }
    }

    fn consumer(&self) -> Consumer {
        // SAFETY: see the module's docs.
        unsafe { Consumer::new(self.memory(), true) }
    }
}

fn take(consumer: &mut Consumer, number: u64) -> bool {
    let taken = consumer.take(|id, header, body, _| {
        assert_eq!(
            (u64::from(id), header, body),
            (number, number * 10, &[number as u8; 8][..])
        );
        Ok(())
    });
    taken.expect("an honest peer")
}

fn push(producer: &mut Producer, number: u64) -> Result<bool, PushError> {
    producer.push_inline(number as u8, number * 10, &[number as u8; 8], &[])
}

#[test]
fn messages_arrive_whole_and_in_order_over_the_wrap() {
    loom::model(|| {
        let ring = Ring::new();
        let sender = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let mut producer = ring.producer();
                for number in 0..CELLS + 1 {
                    while push(&mut producer, number).is_err() {
                        thread::yield_now();
                    }
                }
            })
        };
        let mut consumer = ring.consumer();
        for number in 0..CELLS + 1 {
            while !take(&mut consumer, number) {
                thread::yield_now();
            }
        }
        sender.join().expect("sender");
    });
}

/// To the near cells and back, by the sender's will or because they are full.
#[test]
fn messages_arrive_whole_and_in_order_over_both_sets_of_cells() {
    let mut model = loom::model::Builder::new();
    // Five make it eleven seconds.
    model.preemption_bound = model.preemption_bound.map(|bound| bound.min(3));
    model.check(|| {
        let ring = Ring::new();
        let sender = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let mut producer = ring.producer();
                for number in 0..3 {
                    if number == 0 {
                        producer.wish_to_turn();
                    }
                    while push(&mut producer, number).is_err() {
                        thread::yield_now();
                    }
                }
            })
        };
        let mut consumer = ring.consumer();
        for number in 0..3 {
            while !take(&mut consumer, number) {
                thread::yield_now();
            }
        }
        sender.join().expect("sender");
    });
}

#[test]
fn a_message_that_is_held_stays_until_it_is_let_go_of() {
    loom::model(|| {
        let ring = Ring::new();
        let (mut producer, mut consumer) = (ring.producer(), ring.consumer());
        for number in 0..CELLS {
            assert!(push(&mut producer, number).is_ok());
        }
        let mut held = None;
        let taken = consumer.take(|_, _, body, hold| {
            // SAFETY: let go of before the consumer is.
            held = unsafe { hold.take(body) };
            // SAFETY: as above.
            assert!(unsafe { hold.take(body) }.is_none(), "one at a time");
            Ok(())
        });
        assert!(taken.expect("an honest peer"));
        let held = held.expect("nobody else reads");
        let sender = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                while push(&mut producer, CELLS).is_err() {
                    thread::yield_now();
                }
                drop(ring);
            })
        };
        let reader = thread::spawn(move || assert_eq!(held.to_vec(), [0; 8]));
        // What comes behind it is taken all the same.
        for number in 1..CELLS {
            assert!(take(&mut consumer, number));
        }
        consumer.publish();
        reader.join().expect("reader");
        consumer.publish();
        sender.join().expect("sender");
        assert!(take(&mut consumer, CELLS));
    });
}

#[test]
fn a_receiver_that_parks_sees_the_message_or_is_rung() {
    loom::model(|| {
        let ring = Ring::new();
        let sender = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let mut producer = ring.producer();
                push(&mut producer, 0).expect("room")
            })
        };
        let consumer = {
            let mut consumer = ring.consumer();
            before_the_look(consumer.park());
            consumer
        };
        let sleeps = !consumer.has_message();
        let rung = sender.join().expect("sender");
        assert!(rung || !sleeps, "a lost wake-up");
        assert!(consumer.has_message());
    });
}

/// A receiver that is calm goes to sleep while the sender, which leaves its fence out, sends.
fn calm() {
    loom::model(|| {
        let ring = Ring::new();
        let mut consumer = ring.consumer();
        let mut producer = ring.producer();
        push(&mut producer, 0).expect("room");
        assert!(take(&mut consumer, 0));
        let sender = thread::spawn(move || push(&mut producer, 1).expect("room"));
        let calm = consumer.park();
        assert!(calm, "it has taken a message without a sleep");
        before_the_look(calm);
        let sleeps = !consumer.has_message();
        let rung = sender.join().expect("sender");
        assert!(rung || !sleeps, "a lost wake-up");
        drop(ring);
    });
}

#[test]
fn a_calm_receiver_sees_the_message_or_is_rung() {
    calm();
}

#[test]
#[should_panic(expected = "a lost wake-up")]
fn without_its_barrier_a_calm_receiver_misses_one() {
    LEFT_OUT.set(true);
    calm();
}

#[test]
fn a_receiver_that_parks_again_is_rung_again() {
    loom::model(|| {
        let ring = Ring::new();
        // Rings of the eventfd so far. An edge after the receiver cleared its readiness wakes it.
        let bell = Arc::new(AtomicU64::new(0));
        let sender = {
            let (ring, bell) = (Arc::clone(&ring), Arc::clone(&bell));
            thread::spawn(move || {
                let mut producer = ring.producer();
                for number in 0..2 {
                    if push(&mut producer, number).expect("room") {
                        bell.fetch_add(1, Ordering::AcqRel);
                    }
                }
            })
        };
        let mut consumer = ring.consumer();
        let mut taken = 0;
        let mut sleeps_since = None;
        for _ in 0..2 {
            let cleared = bell.load(Ordering::Acquire);
            consumer.unpark();
            while take(&mut consumer, taken) {
                taken += 1;
            }
            before_the_look(consumer.park());
            if !consumer.has_message() {
                sleeps_since = Some(cleared);
                // Asleep, unless something rings: only then it goes round again.
                if bell.load(Ordering::Acquire) == cleared {
                    break;
                }
            }
        }
        sender.join().expect("sender");
        if let Some(cleared) = sleeps_since
            && taken < 2
        {
            assert!(bell.load(Ordering::Acquire) > cleared, "a lost wake-up");
        }
    });
}

#[test]
fn a_sender_that_waits_for_room_sees_it_or_is_rung() {
    loom::model(|| {
        let ring = Ring::new();
        let mut producer = ring.producer();
        for number in 0..CELLS {
            push(&mut producer, number).expect("room");
        }
        let receiver = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let mut consumer = ring.consumer();
                assert!(take(&mut consumer, 0));
                let rings = consumer.room_is_wanted();
                // Going to sleep, as every receiver does in the end.
                before_the_look(consumer.park());
                consumer.room_is_wanted() || rings
            })
        };
        let sleeps = match push(&mut producer, CELLS) {
            Ok(_) => false,
            Err(PushError::Full { head }) => {
                // SAFETY: the ring outlives it.
                let waiting = unsafe { Waiting::new(ring.memory(), head) };
                waiting.want_room().raise();
                fence(Ordering::SeqCst);
                !waiting.has_room()
            }
            Err(PushError::Broken) => panic!("an honest peer"),
        };
        let rung = receiver.join().expect("receiver");
        assert!(rung || !sleeps, "a lost wake-up");
    });
}
