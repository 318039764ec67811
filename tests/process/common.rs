//! Two processes with a connection between them, and bytes that can be told from others.

use std::{collections::HashSet, fs, future::Future, pin::Pin, time::Duration};

use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};
use wharf::{Context, ContextBuilder, Endpoint, ErrorKind, Listener, Mask, Tag, Worker};

pub(crate) use crate::support::pattern as bytes;
use crate::support::{Child, LIMIT, Parent, bytes::period, child, watchdog};

/// Over what the two talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Shm,
    ShmWithoutCma,
    ShmWithoutPidfd,
    Tcp,
    /// Each process has an RDMA device of its own.
    #[allow(dead_code, reason = "in the program for RDMA devices alone")]
    RcVerbs,
    /// Each has two, of which the second's are called so that they stand in the other order.
    #[allow(dead_code, reason = "in the program for RDMA devices alone")]
    TwoCables,
}

impl Path {
    /// What the second process is told, by its environment.
    fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            // The reader of a stream copies long buffers; for messages the limit is what shared memory has by itself.
            Self::Shm => &[("WHARF_TLS", "shm"), ("WHARF_RNDV_THRESH", "128K")],
            Self::ShmWithoutCma => &[
                ("WHARF_TLS", "shm"),
                ("WHARF_CMA", "n"),
                ("WHARF_RNDV_THRESH", "128K"),
            ],
            Self::ShmWithoutPidfd => &[
                ("WHARF_TLS", "shm"),
                ("WHARF_PIDFD", "n"),
                ("WHARF_RNDV_THRESH", "128K"),
            ],
            Self::Tcp => &[("WHARF_TLS", "tcp")],
            Self::RcVerbs => &[("WHARF_TLS", "rc_verbs"), ("WHARF_NET_DEVICES", "rxe1:1")],
            Self::TwoCables => &[
                ("WHARF_TLS", "rc_verbs"),
                ("WHARF_NET_DEVICES", "rxe1:1,rxa3:1"),
            ],
        }
    }

    /// The same, for the first process.
    pub(crate) fn context(self) -> Context {
        self.builder().build().expect("a context")
    }

    /// A second process knows it by its environment.
    pub(crate) fn told(self) -> Context {
        Context::builder().build().expect("a context")
    }

    pub(crate) fn builder(self) -> ContextBuilder {
        let builder = Context::builder();
        let builder = match self {
            Self::Tcp => builder.transports("tcp"),
            Self::RcVerbs => builder
                .transports("rc_verbs")
                .and_then(|builder| builder.net_devices("rxe0:1")),
            Self::TwoCables => builder
                .transports("rc_verbs")
                .and_then(|builder| builder.net_devices("rxe0:1,rxe2:1")),
            _ => builder.transports("shm"),
        };
        let builder = builder.expect("a transport");
        let builder = match self {
            Self::Tcp | Self::RcVerbs | Self::TwoCables => builder,
            _ => builder.rendezvous_threshold(128 << 10),
        };
        builder
            .cma(self != Self::ShmWithoutCma)
            .pidfd(self != Self::ShmWithoutPidfd)
    }

    pub(crate) fn transports(self) -> &'static [&'static str] {
        match self {
            Self::Shm | Self::ShmWithoutPidfd => &["shm", "cma"],
            Self::ShmWithoutCma => &["shm"],
            Self::Tcp => &["tcp"],
            Self::RcVerbs | Self::TwoCables => &["rc_verbs"],
        }
    }

    /// Where the first process listens.
    fn host(self) -> &'static str {
        match self {
            Self::RcVerbs | Self::TwoCables => "10.77.0.1:0",
            _ => "127.0.0.1:0",
        }
    }

    /// Demands that `kind` is how the end of the peer's process shows.
    #[track_caller]
    pub(crate) fn expect_death(self, kind: ErrorKind) {
        assert_eq!(kind, ErrorKind::PeerDied, "over {self:?}");
    }
}

/// The test's process.
pub(crate) struct First {
    test: &'static str,
    pub(crate) path: Path,
    pub(crate) context: Context,
    pub(crate) worker: Worker,
    pub(crate) listener: Listener,
}

impl First {
    pub(crate) async fn new(test: &'static str, path: Path, context: Context) -> Self {
        let worker = Worker::new(&context).expect("a worker");
        let listener = worker.listen(path.host()).await.expect("a listener");
        Self {
            test,
            path,
            context,
            worker,
            listener,
        }
    }

    /// Starts a second process in the given part, without a connection.
    pub(crate) fn start(&self, part: &str) -> Child {
        let mut child = Child::start(self.test, part, self.path.variables());
        child.say(self.listener.local_addr());
        child
    }

    /// Starts the second process, and waits until it is connected.
    pub(crate) async fn second(&mut self) -> (Child, Endpoint) {
        self.connected("second").await
    }

    async fn connected(&mut self, part: &str) -> (Child, Endpoint) {
        let child = self.start(part);
        let endpoint = watchdog(LIMIT, async {
            let incoming = self.listener.accept().await.expect("a request");
            incoming.accept().await.expect("a connection")
        })
        .await;
        assert_eq!(endpoint.transports(), self.path.transports());
        (child, endpoint)
    }

    /// Demands that this worker goes on working, with another process.
    pub(crate) async fn expect_works(&mut self) {
        let (child, endpoint) = self.connected("echo").await;
        for length in [0, 8, 5_000, 300_000] {
            let tag = Tag(0xec40_0000 + length as u64);
            endpoint
                .tag_send(tag, bytes(length as u64, length))
                .await
                .expect("a send");
            let back = watchdog(LIMIT, self.worker.tag_recv(tag, vec![0; length]));
            let back = back.await.expect("an answer");
            assert_eq!(back.len, length);
            expect_bytes(length as u64, &back.buffer);
        }
        endpoint.close().await.expect("closed");
        child.finish();
    }

    pub(crate) async fn receive(&self, tag: u64, room: usize) -> Vec<u8> {
        receive(&self.worker, tag, room).await
    }

    pub(crate) async fn finish(self) {
        watchdog(LIMIT, self.worker.shutdown(Duration::from_secs(10)))
            .await
            .expect("a quiet end");
    }
}

/// The process that was started.
pub(crate) struct Second {
    pub(crate) context: Context,
    pub(crate) worker: Worker,
    pub(crate) endpoint: Endpoint,
    pub(crate) parent: Parent,
}

impl Second {
    pub(crate) async fn new(mut parent: Parent, context: Context) -> Self {
        let address = parent.hear().await;
        let worker = Worker::new(&context).expect("a worker");
        let endpoint = watchdog(LIMIT, worker.connect(address))
            .await
            .expect("a connection");
        Self {
            context,
            worker,
            endpoint,
            parent,
        }
    }

    /// Sends every message back until the other end closes.
    pub(crate) async fn echo(self) {
        loop {
            let matched = tokio::select! {
                matched = self.worker.tag_matched(Tag(0)).mask(Mask(0)) => matched.expect("a message"),
                _ = self.endpoint.closed() => return,
            };
            let length = matched.info().len;
            let received = matched.recv(vec![0; length]).await;
            let received = received.expect("its bytes");
            self.endpoint
                .tag_send(received.tag, received.buffer)
                .await
                .expect("an answer");
        }
    }

    pub(crate) async fn receive(&self, tag: u64, room: usize) -> Vec<u8> {
        receive(&self.worker, tag, room).await
    }
}

async fn receive(worker: &Worker, tag: u64, room: usize) -> Vec<u8> {
    let received = watchdog(LIMIT, worker.tag_recv(Tag(tag), vec![0; room])).await;
    let mut received = received.expect("a message");
    received.buffer.truncate(received.len);
    received.buffer
}

pub(crate) fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

pub(crate) fn multi_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.pid().try_into().expect("a pid"));
    signal::kill(pid, signal).expect("the child is there");
}

/// `kill -9` from another thread, at a moment that has to do with nothing that either process does.
pub(crate) fn kill_after(child: &Child, delay: Duration) -> std::thread::JoinHandle<()> {
    let pid = Pid::from_raw(child.pid().try_into().expect("a pid"));
    std::thread::spawn(move || {
        std::thread::sleep(delay);
        signal::kill(pid, Signal::SIGKILL).expect("the child is there");
    })
}

/// The pieces of one period each of which the bytes of `seed` are made, from byte `offset` on.
fn pieces(seed: u64, offset: usize, length: usize) -> impl Iterator<Item = &'static [u8]> {
    let period = period(seed);
    let mut place = offset % period.len();
    let mut left = length;
    std::iter::from_fn(move || {
        let piece = &period[place..period.len().min(place + left)];
        place = 0;
        left -= piece.len();
        (!piece.is_empty()).then_some(piece)
    })
}

/// Demands that every byte is what `seed` makes.
#[track_caller]
pub(crate) fn expect_bytes(seed: u64, bytes: &[u8]) {
    expect_bytes_from(seed, 0, bytes);
}

/// The same for bytes from the middle.
#[track_caller]
pub(crate) fn expect_bytes_from(seed: u64, offset: usize, bytes: &[u8]) {
    let mut at = 0;
    for piece in pieces(seed, offset, bytes.len()) {
        if &bytes[at..at + piece.len()] != piece {
            let wrong = bytes[at..]
                .iter()
                .zip(piece)
                .position(|(found, right)| found != right);
            panic!(
                "byte {} of {} (seed {seed}) is wrong",
                at + wrong.unwrap_or(0),
                bytes.len()
            );
        }
        at += piece.len();
    }
}

/// What an end of a scenario does, in a box: what runs it is compiled once.
pub(crate) type Played = Pin<Box<dyn Future<Output = ()>>>;

/// The contexts of both ends: of this process, and of the second.
pub(crate) type Contexts = (fn(Path) -> Context, fn(Path) -> Context);

/// Plays the test `test`: `first` in this process, `second` in another, which is this program again.
pub(crate) fn play_at_both(
    test: &'static str,
    path: Path,
    contexts: Contexts,
    second: &dyn Fn(Second) -> Played,
    first: &dyn Fn(First) -> Played,
) {
    let other = |parent, context, act: &dyn Fn(Second) -> Played| {
        multi_thread().block_on(async { act(Second::new(parent, context).await).await });
    };
    if let Some(parent) = child("echo") {
        return other(parent, path.told(), &|end| Box::pin(end.echo()));
    }
    if let Some(parent) = child("second") {
        return other(parent, contexts.1(path), second);
    }
    let context = contexts.0(path);
    current_thread().block_on(watchdog(2 * LIMIT, async {
        first(First::new(test, path, context).await).await;
    }));
}

/// Plays a scenario: `first` in this process, `second` in another.
macro_rules! play {
    ($path:expr) => {
        $crate::common::play!(
            $path,
            $crate::common::Path::context,
            $crate::common::Path::told,
            second
        )
    };
    ($path:expr, $context:expr, $second:expr) => {
        $crate::common::play!($path, $context, $context, $second)
    };
    ($path:expr, $context:expr, $context_of_second:expr, $second:expr) => {
        $crate::common::play!($path, $context, $context_of_second, $second, first)
    };
    ($path:expr, $context:expr, $context_of_second:expr, $second:expr, $first:expr) => {
        $crate::common::play_at_both(
            $crate::support::this_test!(),
            $path,
            ($context, $context_of_second),
            &|end| Box::pin($second(end)),
            &|end| Box::pin($first(end)),
        )
    };
}

pub(crate) use {crate::paths::on_every_path, play};

/// The inodes of this process's sockets, as the tables in `/proc/net` have them.
#[allow(dead_code, reason = "not in the program for RDMA devices")]
pub(crate) fn own_sockets() -> HashSet<String> {
    let all = fs::read_dir("/proc/self/fd").expect("a mounted /proc");
    all.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok())
        .filter_map(|target| {
            let inode = target.to_str()?.strip_prefix("socket:[")?;
            Some(inode.strip_suffix(']')?.to_owned())
        })
        .collect()
}
