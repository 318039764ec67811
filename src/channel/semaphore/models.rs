//! Every interleaving of signals, waits and dropped waits, checked by `loom`.
//!
//! The line is the real one. The counter is a model of what peers do to it in shared memory: add, then look whether somebody sleeps, and only
//! then send a message, which wakes.

use std::task::{Poll, Waker};

use loom::{
    future::block_on,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering, fence},
    },
    thread,
};

use super::line::Line;
use crate::memory::waiters::reached;

#[derive(Default)]
struct Sleeper {
    at_least: u64,
    waker: Option<Waker>,
}

struct Model {
    value: AtomicU64,
    sleepers: AtomicU64,
    /// Who waits for the value, as `memory/waiters.rs` holds them.
    left: Mutex<Vec<Sleeper>>,
    line: Mutex<Line>,
}

impl Model {
    fn new(waits: usize) -> Arc<Self> {
        Arc::new(Self {
            value: AtomicU64::new(0),
            sleepers: AtomicU64::new(0),
            left: Mutex::new((0..waits).map(|_| Sleeper::default()).collect()),
            line: Mutex::new(Line::default()),
        })
    }

    fn signal(&self) {
        self.value.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        // The message has come.
        let value = self.value.load(Ordering::SeqCst);
        let mut left = self.left.lock().unwrap();
        let woken: Vec<_> = left
            .iter_mut()
            .filter(|sleeper| reached(value, sleeper.at_least))
            .filter_map(|sleeper| sleeper.waker.take())
            .collect();
        drop(left);
        woken.into_iter().for_each(Waker::wake);
    }

    /// One poll of a wait.
    fn poll(&self, key: usize, number: &mut Option<u64>, waker: &Waker) -> Poll<()> {
        loop {
            let claimed = self
                .line
                .lock()
                .unwrap()
                .claim(number, self.value.load(Ordering::SeqCst));
            let Err(at_least) = claimed else {
                return Poll::Ready(());
            };
            let mut left = self.left.lock().unwrap();
            left[key] = Sleeper {
                at_least,
                waker: Some(waker.clone()),
            };
            self.sleepers.swap(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            drop(left);
            if reached(self.value.load(Ordering::SeqCst), at_least) {
                continue;
            }
            let number = number.expect("in the line");
            if self
                .line
                .lock()
                .unwrap()
                .leave_waker(number, at_least, waker)
            {
                return Poll::Pending;
            }
        }
    }

    fn wait(&self, key: usize) {
        let mut number = None;
        block_on(std::future::poll_fn(|cx| {
            self.poll(key, &mut number, cx.waker())
        }));
    }

    /// Polls once, and drops the wait. Whether it took a signal.
    fn give_up(&self, key: usize) -> bool {
        let mut number = None;
        if self.poll(key, &mut number, Waker::noop()).is_ready() {
            return true;
        }
        if let Some(number) = number {
            let moved = self.line.lock().unwrap().leave(number);
            moved.into_iter().for_each(Waker::wake);
        }
        false
    }
}

#[test]
fn no_signal_is_missed() {
    loom::model(|| {
        let model = Model::new(1);
        let peer = {
            let model = Arc::clone(&model);
            thread::spawn(move || model.signal())
        };
        model.wait(0);
        peer.join().unwrap();
        assert_eq!(model.line.lock().unwrap().pending(1), 0);
    });
}

#[test]
fn who_gives_up_takes_nothing_from_who_waits() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let model = Model::new(2);
        let other = {
            let model = Arc::clone(&model);
            thread::spawn(move || model.give_up(0))
        };
        let peer = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                model.signal();
                model.signal();
            })
        };
        model.wait(1);
        let took = other.join().unwrap();
        peer.join().unwrap();
        let line = model.line.lock().unwrap();
        assert_eq!(line.pending(2), if took { 0 } else { 1 });
    });
}
