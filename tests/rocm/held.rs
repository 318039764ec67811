//! A program's own HIP streams behind copies.

use wharf::{BufferMut, MemoryType, transport::SendError};

use crate::{
    alone::is_child,
    bench,
    error::ErrorKind,
    fixture::{Bench, Memory, accelerator, block_until, control, pattern},
    hip::{Hip, alone, stream},
    support::{Looks, this_test},
};

const LEN: usize = 4096;
const STREAM: usize = 32;

/// An engine, with memory at both ends and copies of it that do not begin.
struct Held {
    hip: Hip,
    bench: Bench,
    device: Memory,
    pinned: Memory,
}

impl Held {
    fn new() -> Self {
        let hip = Hip::load();
        let bench = Bench::new();
        let (device, pinned) = (bench.allocate(MemoryType::Rocm(0), LEN), bench.pinned(LEN));
        control("hold 0");
        Self {
            hip,
            bench,
            device,
            pinned,
        }
    }

    fn begin(&mut self, tokens: impl IntoIterator<Item = u64>) {
        for token in tokens {
            let (from, to) = (self.pinned.end(0), self.device.end(0));
            self.bench.begin(from, to, 64, token).expect("begins");
        }
    }

    fn then(&mut self, number: usize, tokens: &[u64]) -> Result<(), SendError> {
        self.bench.engine.then(stream(number).into(), tokens)
    }

    fn refused(&mut self, number: usize, tokens: &[u64]) -> crate::error::Error {
        match self.then(number, tokens) {
            Err(SendError::Failed(error)) => error,
            other => panic!("{other:?}"),
        }
    }
}

/// By the runtime's own threads: nobody looks at the engine.
#[test]
fn a_stream_waits_for_its_copies_and_no_others() {
    for variables in [&[][..], &[("NO_SIGNALS", "1")]] {
        if !is_child() {
            alone(this_test!(), variables);
            continue;
        }
        let mut held = Held::new();
        for round in 0..20 {
            held.begin(1..=4);
            held.then(STREAM, &[1, 2]).expect("waits");
            held.then(STREAM + 16, &[2, 3, 77]).expect("waits");
            held.then(STREAM + 32, &[77]).expect("nothing to wait for");
            let holds = |held: &Held| [0, 16, 32].map(|more| held.hip.holds(STREAM + more));
            assert_eq!(holds(&held), [1, 1, 0], "round {round}");
            if round % 2 == 0 {
                control("release 0");
                block_until("both", || holds(&held) == [0; 3]);
                assert!(held.bench.sink.done.is_empty(), "nobody looked");
                // What was done and not reported yet is no more waited for than what was.
                held.then(STREAM, &[1]).expect("done");
                held.bench.drain(4);
                held.then(STREAM, &[1]).expect("reported");
                assert_eq!(held.hip.holds(STREAM), 0);
            }
            // One by one, in the device's order.
            while held.bench.sink.done.len() < 4 {
                control("step 0 1");
                held.bench.drain(1);
                let done = |token| held.bench.sink.done.iter().any(|(of, _)| *of == token);
                for (more, tokens) in [(0, [1, 2]), (16, [2, 3])] {
                    match tokens.into_iter().all(done) {
                        true => block_until("it", || held.hip.holds(STREAM + more) == 0),
                        false => assert_eq!(held.hip.holds(STREAM + more), 1),
                    }
                }
            }
            held.bench.sink.done.clear();
            control("hold 0");
        }
        assert_eq!(held.hip.words(), 2, "words are used again");
        assert_eq!(held.hip.last_error(), 0, "a program finds no error of ours");
        return;
    }
}

#[test]
fn streams_that_cannot_wait() {
    for variables in [&[][..], &[("NO_WAITS", "1")]] {
        if !is_child() {
            alone(this_test!(), variables);
            continue;
        }
        let mut held = Held::new();
        held.begin(1..=1);
        if variables_say("NO_WAITS") {
            let error = held.refused(STREAM, &[1]);
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert_eq!(held.hip.last_error(), 0, "a program finds no error of ours");
        } else {
            for (number, text) in [(998, "graph"), (999, "hipStreamWaitValue64")] {
                let error = held.refused(number, &[1]);
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                assert!(error.to_string().contains(text), "{error}");
                assert_eq!(held.hip.holds(number), 0);
            }
            // Held already when the runtime has no more handlers: it goes on, and the caller is told.
            control("fault hsa_amd_signal_async_handler@1=4104");
            let error = held.refused(STREAM, &[1]);
            assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
            assert_eq!(held.hip.holds(STREAM), 0, "it was let go on");
        }
        control("release 0");
        held.bench.drain(1);
        return;
    }
}

fn variables_say(name: &str) -> bool {
    std::env::var_os(name).is_some()
}

#[test]
fn no_stream_is_left_waiting() {
    if !is_child() {
        return alone(this_test!(), &[]);
    }
    // A copy that fails: its signal becomes negative.
    let mut held = Held::new();
    control("fault hsa_amd_memory_async_copy@1=late:7");
    held.begin(1..=2);
    held.then(STREAM, &[1, 2]).expect("waits");
    control("release 0");
    block_until("the stream", || held.hip.holds(STREAM) == 0);
    held.bench.drain(2);
    // The engine ends.
    control("hold 0");
    held.begin(3..=3);
    held.then(STREAM, &[3]).expect("waits");
    let releases = std::thread::spawn(|| {
        block_until("it waits", || control("live").contains("handlers"));
        control("release 0");
    });
    held.bench.quiesce();
    releases.join().expect("ends");
    let Held { hip, bench, .. } = held;
    drop(bench);
    block_until("the stream", || hip.holds(STREAM) == 0);
    // The device is lost, and no handler runs.
    let mut held = Held::new();
    held.begin(1..=2);
    held.then(STREAM, &[1]).expect("waits");
    assert_eq!(held.hip.holds(STREAM), 1);
    control("break 0");
    held.bench.drain(2);
    assert_eq!(held.hip.holds(STREAM), 0, "opened with the device's end");
}

/// The operation itself: it is queued while nothing moves, and not before its bytes are in the device's hands.
#[test]
fn a_copy_of_a_worker_is_queued() {
    if !is_child() {
        return alone(this_test!(), &[]);
    }
    let hip = Hip::load();
    bench::run(accelerator(), async |context, worker| {
        let memory = async || -> BufferMut {
            let memory = context.allocate_on(MemoryType::Rocm(0), LEN).await;
            memory.expect("memory")
        };
        let mut target = memory().await;
        for seed in 0..10 {
            control("hold 0");
            let wanted = pattern(seed, LEN);
            // Ordinary memory, which is locked first.
            let copy = worker.copy(wanted.clone(), target).then_on(stream(STREAM));
            let copy = copy.queued().await.expect("queued");
            assert_eq!(hip.holds(STREAM), 1, "the stream waits");
            control("release 0");
            block_until("the stream", || hip.holds(STREAM) == 0);
            let filled = copy.await.expect("copied").freeze();
            let back = worker.copy(filled.clone(), vec![0; LEN]).await;
            assert!(back.expect("copied") == wanted);
            target = filled.try_into_mut().expect("alone");
        }
        // Dropped once it is queued, and before.
        for looks in [0, 1, 100] {
            control("hold 0");
            let copy = worker.copy(pattern(1, LEN), memory().await);
            let mut queued = Box::pin(copy.then_on(stream(STREAM)).queued());
            let mut turns = Looks::new("turns");
            for _ in 0..looks {
                let over = std::future::poll_fn(|cx| {
                    std::task::Poll::Ready(queued.as_mut().poll(cx).is_ready())
                });
                if over.await {
                    break;
                }
                turns.again().await;
            }
            drop(queued);
            control("release 0");
            while worker.in_flight() > 0 {
                tokio::task::yield_now().await;
            }
            block_until("the stream", || hip.holds(STREAM) == 0);
        }
    });
    assert_eq!(hip.words(), 1);
}
