//! Loops that are not Tokio's: they arm a worker, sleep on its fd, and sleep through nothing.

use std::{
    future::Future,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    pin::pin,
    task::{Context as TaskContext, Poll, Waker},
    thread,
    time::Duration,
};

use futures::{FutureExt, select_biased};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout},
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
};
use tokio::runtime::{Builder, Runtime};
use wharf::{AmId, Arm, Mask, Tag, Worker};

use crate::fixture::{Pair, Side, Way};

/// Longer than anything takes that is not slept through.
const LONG: Duration = Duration::from_secs(20);
const MESSAGES: u64 = 24;

/// A way to sleep until an fd is readable. `false`: it never was.
trait Sleeper {
    fn waits(&mut self) -> bool;
}

struct ByPoll<'a>(BorrowedFd<'a>);

impl Sleeper for ByPoll<'_> {
    fn waits(&mut self) -> bool {
        let timeout = PollTimeout::try_from(LONG).expect("a timeout");
        let mut fds = [PollFd::new(self.0, PollFlags::POLLIN)];
        nix::poll::poll(&mut fds, timeout).expect("waited") == 1
    }
}

struct ByEpoll(Epoll);

impl ByEpoll {
    fn new(fd: BorrowedFd<'_>, how: EpollFlags) -> Self {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("an epoll");
        let event = EpollEvent::new(EpollFlags::EPOLLIN | how, 7);
        epoll.add(fd, event).expect("watched");
        Self(epoll)
    }
}

impl Sleeper for ByEpoll {
    fn waits(&mut self) -> bool {
        let mut events = [EpollEvent::empty()];
        let timeout = PollTimeout::try_from(LONG).expect("a timeout");
        self.0.wait(&mut events, timeout).expect("waited") == 1
    }
}

struct ByMio(mio::Poll, mio::Events);

impl ByMio {
    fn new(fd: BorrowedFd<'_>) -> Self {
        let poll = mio::Poll::new().expect("a poll");
        let raw = fd.as_raw_fd();
        let mut source = mio::unix::SourceFd(&raw);
        poll.registry()
            .register(&mut source, mio::Token(3), mio::Interest::READABLE)
            .expect("watched");
        Self(poll, mio::Events::with_capacity(4))
    }
}

impl Sleeper for ByMio {
    fn waits(&mut self) -> bool {
        self.0.poll(&mut self.1, Some(LONG)).expect("waited");
        !self.1.is_empty()
    }
}

struct ByAsyncIo<'a>(async_io::Async<BorrowedFd<'a>>);

impl Sleeper for ByAsyncIo<'_> {
    fn waits(&mut self) -> bool {
        async_io::block_on(async {
            let mut readable = pin!(self.0.readable().fuse());
            let mut timer = FutureExt::fuse(async_io::Timer::after(LONG));
            select_biased! {
                readable = readable => readable.is_ok(),
                _ = timer => false,
            }
        })
    }
}

fn sleepers(worker: &Worker) -> Vec<(&'static str, Box<dyn Sleeper + '_>)> {
    let fd = worker.as_fd();
    vec![
        ("poll(2)", Box::new(ByPoll(fd))),
        ("epoll", Box::new(ByEpoll::new(fd, EpollFlags::empty()))),
        (
            "epoll by edges",
            Box::new(ByEpoll::new(fd, EpollFlags::EPOLLET)),
        ),
        ("mio", Box::new(ByMio::new(fd))),
        (
            "async-io",
            Box::new(ByAsyncIo(async_io::Async::new(fd).expect("watched"))),
        ),
    ]
}

/// The documented loop.
fn until<T>(worker: &Worker, sleeper: &mut dyn Sleeper, mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        while worker.progress() > 0 {}
        if let Some(found) = look() {
            return found;
        }
        if worker.arm() == Arm::Armed {
            assert!(sleeper.waits(), "slept through what came");
        }
    }
}

fn message(number: u64) -> Vec<u8> {
    let length = match number % 4 {
        3 => 200_000,
        2 => 5_000,
        _ => 16,
    };
    vec![number as u8; length]
}

/// Sends now and then, by messages of both kinds in turn.
async fn send(side: &Side) {
    for number in 0..MESSAGES {
        // Long enough that the other end sleeps, or is about to.
        tokio::time::sleep(Duration::from_micros(number * 97 % 2500)).await;
        let bytes = message(number);
        let sent = match number % 2 {
            0 => side.endpoint.tag_send(Tag(number), bytes).await,
            _ => side.endpoint.am_send(AmId(1), "", bytes).await,
        };
        sent.expect("sent");
    }
}

fn receive(worker: &Worker, inbox: &mut wharf::AmInbox, sleeper: &mut dyn Sleeper) {
    let mut cx = TaskContext::from_waker(Waker::noop());
    for number in 0..MESSAGES {
        let wanted = message(number);
        let found = if number % 2 == 0 {
            let mut receive = pin!(worker.tag_recv(Tag(number), vec![0; wanted.len()]));
            let look = || match receive.as_mut().poll(&mut cx) {
                Poll::Ready(received) => Some(received.expect("a message").buffer),
                Poll::Pending => None,
            };
            until(worker, sleeper, look)
        } else {
            let message = until(worker, sleeper, || inbox.try_recv());
            let mut bytes = pin!(message.bytes());
            let look = || match bytes.as_mut().poll(&mut cx) {
                Poll::Ready(bytes) => Some(bytes.expect("a payload").to_vec()),
                Poll::Pending => None,
            };
            until(worker, sleeper, look)
        };
        assert!(found == wanted, "message {number}");
    }
}

/// Two ends, whose workers are of two runtimes.
fn pair(way: Way, own: &Runtime, peers: &Runtime) -> Pair {
    let context = way.context();
    if way == Way::Own {
        return own.block_on(Pair::of(&context, way));
    }
    let worker = |runtime: &Runtime| {
        let _runtime = runtime.enter();
        Worker::new(&context).expect("a worker")
    };
    let (here, there) = (worker(peers), worker(own));
    let (dialled, accepted) = own.block_on(async {
        let listener = there.listen("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr();
        let dialler = here.clone();
        let dialled = peers.spawn(async move { dialler.connect(address).await });
        let accepted = listener.accept().await.expect("a request").accept().await;
        (dialled.await.expect("no panic"), accepted)
    });
    let side = |worker, endpoint: wharf::Result<_>| Side {
        context: context.clone(),
        worker,
        endpoint: endpoint.expect("connected"),
    };
    Pair {
        here: side(here, dialled),
        there: side(there, accepted),
    }
}

/// One end in a loop of its own on this thread; `runtime` is its worker's.
fn play(way: Way, runtime: &Runtime) {
    let peers = running();
    let Pair { here, there } = pair(way, runtime, &peers);
    let inbox = there.worker.active_messages(AmId(1)).open();
    let mut inbox = inbox.expect("an inbox");
    for (name, mut sleeper) in sleepers(&there.worker) {
        eprintln!("{way:?}, {name}");
        thread::scope(|scope| {
            scope.spawn(|| peers.block_on(send(&here)));
            receive(&there.worker, &mut inbox, &mut *sleeper);
        });
    }
}

fn running() -> Runtime {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.expect("a runtime")
}

/// Nobody but the loop drives the worker.
fn alone(way: Way) {
    let runtime = Builder::new_current_thread().enable_all().build();
    play(way, &runtime.expect("a runtime"));
}

/// So does the worker's own task, which takes what comes before the loop sees it.
fn beside_a_runtime(way: Way) {
    play(way, &running());
}

macro_rules! each {
    ($($name:ident: $way:expr;)+) => {$(
        mod $name {
            use super::*;
            #[test]
            fn alone() {
                super::alone($way);
            }
            #[test]
            fn beside_a_runtime() {
                super::beside_a_runtime($way);
            }
        }
    )+};
}

each! {
    own: Way::Own;
    shm: Way::Shm;
    shm_without_cma: Way::ShmWithoutCma;
    tcp: Way::Tcp;
}

#[test]
fn what_others_took_is_not_slept_through() {
    let runtime = running();
    let Pair { here, there } = runtime.block_on(Way::Shm.pair());
    let worker = &there.worker;
    while worker.progress() > 0 {}
    // The message is taken by a future of the same worker after the loop has looked.
    let taken = runtime.block_on(async {
        let other = there.worker.tag_recv(Tag(5), vec![0; 8]).post();
        here.send(4, vec![1; 8]).await;
        here.send(5, vec![1; 8]).await;
        other.await
    });
    taken.expect("a message");
    assert_eq!(worker.arm(), Arm::Ready);
    assert!(worker.tag_probe(4, Mask::ALL).is_some());
}
