//! Two connected workers on one thread.

use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    task::{Context as TaskContext, Poll, Waker},
    time::Duration,
};

use wharf::{Context, Endpoint, Progress, Tag, Worker};

use crate::{
    guarded::{bytes, expect_bytes},
    support::{LIMIT, block_on},
};

/// Over what the two talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Own,
    Shm,
    ShmWithoutCma,
    Tcp,
}

impl Path {
    pub(crate) fn context(self) -> Context {
        let transports = match self {
            Self::Own => "self",
            Self::Tcp => "tcp",
            _ => "shm",
        };
        let builder = Context::builder()
            .transports(transports)
            .expect("a transport");
        let builder = match self {
            // The reader of a stream copies long buffers; for messages it is what shared memory does by itself.
            Self::Shm | Self::ShmWithoutCma => builder.rendezvous_threshold(128 << 10),
            _ => builder,
        };
        builder
            .cma(self != Self::ShmWithoutCma)
            .progress(Progress::EventDriven)
            .build()
            .expect("a context")
    }
}

/// Each side of the thresholds: inline, eager, fragments, rendezvous, chunks, shared copying.
pub(crate) const SIZES: [usize; 21] = [
    0, 1, 48, 49, 4_096, 4_097, 8_184, 8_185, 8_191, 8_192, 8_193, 32_768, 32_769, 65_536, 65_537,
    131_072, 131_073, 262_145, 524_289, 1_048_575, 1_048_577,
];

pub(crate) struct Sides {
    pub(crate) context: Context,
    other: Context,
    pub(crate) a: Worker,
    pub(crate) b: Worker,
    /// The endpoint of `a` to `b`.
    pub(crate) to_b: Endpoint,
    /// The endpoint of `b` to `a`.
    pub(crate) to_a: Endpoint,
    next: Cell<u64>,
}

impl Sides {
    pub(crate) async fn new(path: Path) -> Self {
        let context = path.context();
        let a = Worker::new(&context).expect("a worker");
        let next = Cell::new(1);
        if path == Path::Own {
            let address = a.address().expect("an address");
            let to_b = a.connect(&address).await.expect("a connection");
            return Self {
                b: a.clone(),
                to_a: to_b.clone(),
                other: context.clone(),
                context,
                a,
                to_b,
                next,
            };
        }
        let other = path.context();
        let b = Worker::new(&other).expect("a worker");
        let listener = b.listen("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr();
        let (to_b, to_a) = tokio::join!(a.connect(address), async {
            listener.accept().await.expect("a request").accept().await
        });
        Self {
            context,
            other,
            a,
            b,
            to_b: to_b.expect("a connection"),
            to_a: to_a.expect("a connection"),
            next,
        }
    }

    /// The context of `b`.
    pub(crate) fn b_context(&self) -> &Context {
        &self.other
    }

    /// A number that no case has had.
    pub(crate) fn fresh(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// Demands that messages still come through, both ways, and come right.
    pub(crate) async fn expect_works(&self) {
        for length in [8, 5_000, 200_000] {
            let seed = self.fresh();
            let tag = Tag(seed);
            let (sent, received) = tokio::join!(
                self.to_b.tag_send(tag, bytes(seed, length).to_vec()),
                self.b.tag_recv(tag, vec![0; length]),
            );
            sent.expect("a send");
            let received = received.expect("a message");
            assert_eq!(received.len, length);
            expect_bytes(seed, &received.buffer);
            let (sent, received) = tokio::join!(
                self.to_a.tag_send(tag, received.buffer),
                self.a.tag_recv(tag, vec![0; length]),
            );
            sent.expect("a send");
            expect_bytes(seed, &received.expect("a message").buffer);
        }
    }

    pub(crate) async fn shutdown(self) {
        for worker in [&self.a, &self.b] {
            // One says goodbye, the other may find the connection closed.
            worker
                .shutdown(Duration::from_secs(10))
                .await
                .expect("a quiet end");
        }
    }
}

/// What happens between two polls of a future.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Between {
    Nothing,
    /// The other worker makes progress once.
    Other,
    /// Both do, and the tasks of the runtime run.
    All,
}

pub(crate) const BETWEEN: [Between; 3] = [Between::Nothing, Between::Other, Between::All];

impl Between {
    pub(crate) async fn happen(self, own: &Worker, other: &Worker) {
        match self {
            Self::Nothing => {}
            Self::Other => {
                other.progress();
            }
            Self::All => {
                other.progress();
                own.progress();
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Polls a future `polls` times. Its output, if it ended.
pub(crate) async fn poll_some<F: Future>(
    mut future: Pin<&mut F>,
    polls: usize,
    between: Between,
    own: &Worker,
    other: &Worker,
) -> Option<F::Output> {
    for _ in 0..polls {
        // Nobody is woken: the future is never awaited.
        let mut cx = TaskContext::from_waker(Waker::noop());
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        between.happen(own, other).await;
    }
    None
}

/// Says which case it was, when it fails.
pub(crate) struct Case(pub(crate) String);

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in the case {}", self.0);
        }
    }
}

pub(crate) fn run(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    block_on(&runtime, 2 * LIMIT, test);
}

macro_rules! on_every_path {
    ($test:ident) => {
        mod $test {
            use crate::sides::{Path, run};
            #[test]
            fn own() {
                run(super::$test(Path::Own));
            }
            #[test]
            fn shm() {
                run(super::$test(Path::Shm));
            }
            #[test]
            fn shm_without_cma() {
                run(super::$test(Path::ShmWithoutCma));
            }
            #[test]
            fn tcp() {
                run(super::$test(Path::Tcp));
            }
        }
    };
}
pub(crate) use on_every_path;
