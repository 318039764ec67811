//! A runtime whose one thread is kept busy by both ends of a connection still looks at its timers in time, and at its tasks.

use std::{
    future::{Future, IntoFuture},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context as TaskContext, Wake, Waker},
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::{Progress, Tag};

use crate::fixture::{Pair, Way, run};

const SLEEPS: u32 = 20;
const SLEEP: Duration = Duration::from_millis(5);
/// Of one sleep, so that what the test's own work costs does not matter; a mean is to be far below.
const LATEST: Duration = Duration::from_millis(50);
/// 10 ms more than the sleeps themselves.
const MEAN: Duration = Duration::from_millis(15);

/// What this thread has computed: other processes' work is not in it.
fn computed() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .expect("the thread's clock")
        .into()
}

/// Sleeps beside what keeps the thread busy, one sleep after the other.
async fn sleeps(what: &str) {
    let mut all = Duration::ZERO;
    for number in 0..SLEEPS {
        let before = computed();
        tokio::time::sleep(SLEEP).await;
        let took = computed() - before;
        assert!(
            took < LATEST,
            "{what}: sleep {number} took {took:?} of work"
        );
        all += took;
    }
    let mean = all / SLEEPS;
    assert!(
        mean < MEAN,
        "{what}: a sleep of {SLEEP:?} took {mean:?} of work"
    );
}

/// Both ends in one task.
async fn joined(pair: &Pair, length: usize, rounds: &AtomicU64) {
    loop {
        for (from, to) in [(&pair.here, &pair.there), (&pair.there, &pair.here)] {
            let (sent, received) = tokio::join!(
                from.endpoint.tag_send(Tag(1), vec![1; length]),
                to.worker.tag_recv(Tag(1), vec![0; length]),
            );
            sent.expect("sent");
            assert_eq!(received.expect("received").len, length);
        }
        rounds.fetch_add(1, Relaxed);
    }
}

/// Beside each other, as a send that need not wait and a receive of what is there.
async fn in_turn(pair: &Pair, length: usize, rounds: &AtomicU64) {
    loop {
        for (from, to) in [(&pair.here, &pair.there), (&pair.there, &pair.here)] {
            let sent = from.endpoint.tag_send(Tag(2), vec![1; length]).await;
            sent.expect("sent");
            let received = to.worker.tag_recv(Tag(2), vec![0; length]).await;
            assert_eq!(received.expect("received").len, length);
        }
        rounds.fetch_add(1, Relaxed);
    }
}

/// A stream that answers, in another task.
async fn streamed(pair: &Pair, length: usize, rounds: &AtomicU64) {
    let (here, there) = tokio::join!(
        pair.here.endpoint.stream(),
        pair.there.endpoint.accept_stream()
    );
    let (mut here, mut there) = (here.expect("opened"), there.expect("accepted"));
    tokio::spawn(async move {
        let mut bytes = vec![0; length];
        while there.read_exact(&mut bytes).await.is_ok() {
            there.write_all(&bytes).await.expect("written");
        }
    });
    let mut bytes = vec![0; length];
    loop {
        here.write_all(&bytes).await.expect("written");
        here.read_exact(&mut bytes).await.expect("read");
        rounds.fetch_add(1, Relaxed);
    }
}

#[derive(Clone, Copy, Debug)]
enum Busy {
    Joined(usize),
    InTurn(usize),
    Streamed(usize),
}

fn timers_are_looked_at(way: Way) {
    for progress in [Progress::Adaptive, Progress::Busy, Progress::EventDriven] {
        for busy in [
            Busy::Joined(8),
            Busy::Joined(200_000),
            Busy::InTurn(8),
            Busy::InTurn(5_000),
            Busy::Streamed(64),
        ] {
            let what = format!("{way:?}, {progress:?}, {busy:?}");
            eprintln!("{what}");
            run(async {
                let context = way.builder().progress(progress).build();
                let pair = Pair::of(&context.expect("a context"), way).await;
                let rounds = Arc::new(AtomicU64::new(0));
                let counted = rounds.clone();
                let kept_busy = tokio::spawn(async move {
                    match busy {
                        Busy::Joined(length) => joined(&pair, length, &counted).await,
                        Busy::InTurn(length) => in_turn(&pair, length, &counted).await,
                        Busy::Streamed(length) => streamed(&pair, length, &counted).await,
                    }
                });
                sleeps(&what).await;
                assert!(
                    rounds.load(Relaxed) > 2,
                    "{what}: {} rounds beside it",
                    rounds.load(Relaxed)
                );
                kept_busy.abort();
            });
        }
    }
}

#[test]
fn beside_oneself() {
    timers_are_looked_at(Way::Own);
}

#[test]
fn beside_shm() {
    timers_are_looked_at(Way::Shm);
}

#[test]
fn beside_tcp() {
    timers_are_looked_at(Way::Tcp);
}

/// Notes that it was called.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// Who looks for its own message and finds that of another gives way to it, and does not go on looking.
#[test]
fn who_looks_gives_way_to_those_it_woke() {
    /// As long as the runtime's driver may wait, a millisecond, is how long it would look otherwise.
    const SHORT: Duration = Duration::from_micros(300);
    run(async {
        let context = Way::Shm.builder().progress(Progress::Spin(LATEST)).build();
        let pair = Pair::of(&context.expect("a context"), Way::Shm).await;
        let receive = |tag| pair.there.worker.tag_recv(tag, vec![0; 8]);
        let mut least = Duration::MAX;
        for _ in 0..SLEEPS {
            let (woken, other) = (Arc::new(Woken::default()), Arc::new(Woken::default()));
            let wakers = [woken.clone(), other].map(Waker::from);
            let [mut one, mut another] = wakers.each_ref().map(TaskContext::from_waker);
            let mut first = pin!(receive(Tag(1)).into_future());
            assert!(first.as_mut().poll(&mut one).is_pending());
            // The driver has its turn.
            tokio::time::sleep(SLEEP).await;
            woken.0.store(false, Relaxed);
            let sent = pair.here.endpoint.tag_send(Tag(1), vec![1; 8]).await;
            sent.expect("sent");
            let mut second = pin!(receive(Tag(2)).into_future());
            let before = computed();
            assert!(second.as_mut().poll(&mut another).is_pending());
            let took = computed() - before;
            assert!(woken.0.load(Relaxed), "the message was taken in");
            least = least.min(took);
            assert_eq!(first.await.expect("received").len, 8);
        }
        assert!(least < SHORT, "it looked for {least:?} at least");
    });
}

/// What a runtime blocks on is polled after its tasks and its driver. Messages that come behind the one that it waited for stay where they are until then,
/// and are received from there: nothing keeps them aside.
#[test]
fn whom_a_runtime_blocks_on_goes_first_when_woken() {
    const MESSAGES: u64 = 50;
    /// Fewer messages in all than those after which whoever receives looks at everything once, and puts what it finds aside.
    const ROUNDS: u64 = 1000 / MESSAGES;
    run(async {
        let pair = Pair::of(&Way::Shm.context(), Way::Shm).await;
        let receive = || pair.there.worker.tag_recv(Tag(1), vec![0; 8]);
        let aside = || pair.there.worker.metrics().held.unexpected_messages;
        for _ in 0..ROUNDS {
            let endpoint = pair.here.endpoint.clone();
            let sends = tokio::spawn(async move {
                for _ in 0..MESSAGES {
                    let sent = endpoint.tag_send(Tag(1), vec![1; 8]).await;
                    sent.expect("sent");
                }
            });
            assert_eq!(receive().await.expect("received").len, 8);
            assert_eq!(aside(), 0, "kept aside before they were asked for");
            for _ in 1..MESSAGES {
                assert_eq!(receive().await.expect("received").len, 8);
            }
            sends.await.expect("to its end");
        }
    });
}
