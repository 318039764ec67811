//! A child made by `fork` has its parent's connections, and none of its operations: each is refused, and parent and peer go on as if nothing
//! had happened.
//!
//! # Safety
//! The child runs with one thread of the parent's and its locks as they were: it makes calls that are refused before they take one, and ends.
#![allow(unsafe_code)]

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    task::{Context as TaskContext, Poll, Waker},
    time::Duration,
};

use futures::{FutureExt, Sink};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use wharf::{Access, Buffer, Endpoint, ErrorKind, Mask, OpError, Tag, Worker, channel::Semaphore};

use crate::{
    common::Path,
    support::{LIMIT, watchdog},
};

/// Whether something ended as it should in a child.
trait Refused {
    fn is_refused(&self) -> bool;
}

impl<T> Refused for Result<T, wharf::Error> {
    fn is_refused(&self) -> bool {
        self.as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Forked)
    }
}

impl<T, B> Refused for Result<T, OpError<B>> {
    fn is_refused(&self) -> bool {
        self.as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Forked)
    }
}

impl<T> Refused for std::io::Result<T> {
    fn is_refused(&self) -> bool {
        let error = self.as_ref().err().and_then(|error| error.get_ref());
        let error = error.and_then(|error| error.downcast_ref::<wharf::Error>());
        error.is_some_and(|error| error.kind() == ErrorKind::Forked)
    }
}

/// Whether a future is refused at its first poll: a child has no runtime that would poll it again.
fn poll<T: Refused>(future: impl Future<Output = T>) -> bool {
    let mut cx = TaskContext::from_waker(Waker::noop());
    matches!(pin!(future).poll(&mut cx), Poll::Ready(result) if result.is_refused())
}

/// The same of a call that posts.
fn post<T: Refused>(result: T) -> bool {
    result.is_refused()
}

/// The parent's end of a connection, and what it has made.
struct Side {
    worker: Worker,
    endpoint: Endpoint,
    peer: Worker,
    back: Endpoint,
}

async fn connected(path: Path) -> Side {
    let (worker, peer) = (
        Worker::new(&path.context()).expect("a worker"),
        Worker::new(&path.context()).expect("a worker"),
    );
    let mut listener = peer.listen("127.0.0.1:0").await.expect("a listener");
    let address = listener.local_addr();
    let (endpoint, back) = tokio::join!(worker.connect(address), async {
        listener.accept().await.expect("a request").accept().await
    });
    let (endpoint, back) = (endpoint.expect("connected"), back.expect("accepted"));
    assert_eq!(endpoint.transports(), path.transports());
    Side {
        worker,
        endpoint,
        peer,
        back,
    }
}

/// What a child answers: 0, or the number of the first thing in the list that was not refused.
fn in_a_child(act: impl FnOnce() -> Vec<(&'static str, bool)>) {
    // SAFETY: the child makes calls that are refused before they take a lock, and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let asked = catch_unwind(AssertUnwindSafe(act));
        let code = match asked {
            Ok(answers) => {
                let wrong = answers.iter().position(|(_, refused)| !refused);
                if let Some(at) = wrong {
                    eprintln!("in the child: {} is not refused", answers[at].0);
                }
                wrong.map_or(0, |at| at as i32 + 1)
            }
            Err(_) => 255,
        };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    assert!(pid > 0, "no child");
    let begun = std::time::Instant::now();
    let mut status = 0;
    // SAFETY: `status` is ours, and the child too.
    while unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == 0 {
        if begun.elapsed() > Duration::from_secs(20) {
            // SAFETY: our own child.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            panic!("the child hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(libc::WIFEXITED(status), "the child ended by {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "which was not refused");
}

async fn refused_at_every_entrance(path: Path) {
    let side = connected(path).await;
    let Side {
        worker,
        endpoint,
        peer,
        back,
    } = &side;
    let region = peer
        .context()
        .expose(vec![0; 4096], Access::READ | Access::WRITE)
        .await
        .expect("exposed");
    let descriptor = region.descriptor().expect("a descriptor");
    let remote = endpoint.import(&descriptor).expect("imported");
    // So that the memory is mapped, where it can be.
    for _ in 0..20 {
        endpoint.put(vec![1; 8], remote.clone()).await.expect("put");
    }
    let counter = worker.counter().await.expect("a counter");
    let theirs = peer.counter().await.expect("a counter");
    let there = endpoint
        .import(&theirs.descriptor().expect("a descriptor"))
        .expect("imported");
    let own = worker.counter().await.expect("a counter");
    let semaphore = Semaphore::new(own, endpoint.clone(), there.clone()).expect("a semaphore");
    for _ in 0..100 {
        semaphore.signal().await.expect("signalled");
    }
    let (stream, _other) = tokio::join!(endpoint.stream(), back.accept_stream());
    let mut stream = stream.expect("a stream");
    let mut inbox = worker.active_messages(4).open().expect("an inbox");
    let mut sink = endpoint.am_sink(5);
    let before = worker.tag_recv(Tag(70), Mask::ALL, vec![0; 8]).post();
    // Something to probe for and to take.
    back.tag_send(Tag(71), "here").await.expect("sent");
    while worker.tag_probe(Tag(71), Mask::ALL).is_none() {
        tokio::task::yield_now().await;
    }

    in_a_child(|| {
        let long = || vec![2; 300_000];
        let mut cx = TaskContext::from_waker(Waker::noop());
        let sink_ready = Sink::<Buffer>::poll_ready(Pin::new(&mut sink), &mut cx);
        let sent = Sink::<Buffer>::start_send(Pin::new(&mut sink), Buffer::from(vec![1]));
        let mut room = [0; 8];
        let mut room = ReadBuf::new(&mut room);
        let read = Pin::new(&mut stream).poll_read(&mut cx, &mut room);
        let written = Pin::new(&mut stream).poll_write(&mut cx, b"no");
        let ended = endpoint.closed().now_or_never();
        vec![
            ("tag_send", poll(endpoint.tag_send(1, "no"))),
            ("tag_send, long", poll(endpoint.tag_send(1, long()))),
            ("tag_send, posted", post(endpoint.tag_send(1, "no").post())),
            ("tag_recv", poll(worker.tag_recv(1, Mask::ALL, vec![0; 8]))),
            (
                "tag_recv, posted",
                poll(worker.tag_recv(1, Mask::ALL, vec![0; 8]).post()),
            ),
            ("tag_recv, posted before", poll(before)),
            ("tag_matched", poll(worker.tag_matched(71, Mask::ALL))),
            ("tag_probe", worker.tag_probe(71, Mask::ALL).is_none()),
            ("tag_take", worker.tag_take(71, Mask::ALL).is_none()),
            ("am_send", poll(endpoint.am_send(1, "no", "no"))),
            (
                "am_send, posted",
                post(endpoint.am_send(1, "no", "no").post()),
            ),
            (
                "am_sink",
                matches!(sink_ready, Poll::Ready(ready) if ready.is_refused()),
            ),
            ("am_sink, start", sent.is_refused()),
            (
                "am inbox",
                inbox
                    .recv()
                    .now_or_never()
                    .is_some_and(|none| none.is_none()),
            ),
            ("am inbox, try", inbox.try_recv().is_none()),
            ("am inbox, another", post(worker.active_messages(6).open())),
            ("put", poll(endpoint.put("no", remote.clone()))),
            (
                "put, long",
                poll(endpoint.put(vec![2; 4096], remote.clone())),
            ),
            (
                "put, posted",
                post(endpoint.put("no", remote.clone()).post()),
            ),
            ("get", poll(endpoint.get(remote.clone(), vec![0; 8]))),
            (
                "get, posted",
                post(endpoint.get(remote.clone(), vec![0; 8]).post()),
            ),
            ("add", poll(remote.add(0, 1_u64))),
            ("fetch_add", poll(remote.fetch_add(0, 1_u64))),
            ("fetch_add, posted", post(remote.fetch_add(0, 1_u64).post())),
            ("signal", poll(endpoint.signal(&there, 1))),
            ("signal, posted", post(endpoint.signal(&there, 1).post())),
            ("counter", poll(counter.wait(1))),
            ("semaphore, signal", poll(semaphore.signal())),
            ("semaphore, wait", poll(semaphore.wait())),
            ("flush", poll(endpoint.flush())),
            ("fence", poll(endpoint.fence())),
            ("flush of all", poll(worker.flush())),
            ("fence of all", poll(worker.fence())),
            ("ready", poll(endpoint.ready())),
            ("copy", poll(worker.copy("no", vec![0; 8]))),
            ("copy, posted", poll(worker.copy("no", vec![0; 8]).post())),
            ("import", post(endpoint.import(&descriptor))),
            ("stream", poll(endpoint.stream())),
            ("accept_stream", poll(endpoint.accept_stream())),
            (
                "read",
                matches!(read, Poll::Ready(read) if read.is_refused()),
            ),
            (
                "write",
                matches!(written, Poll::Ready(written) if written.is_refused()),
            ),
            ("write_buffer", poll(stream.write_buffer("no"))),
            ("close", poll(endpoint.close())),
            (
                "closed",
                ended.is_some_and(|error| error.kind() == ErrorKind::Forked),
            ),
            ("shutdown", poll(worker.shutdown(Duration::from_secs(1)))),
            ("progress", worker.progress() == 0),
            ("in_flight", worker.in_flight() == 0),
        ]
    });

    // Nothing of it came to the peer, nor did the child take anything away.
    let mut bytes = [0; 4096];
    region.read_at(0, &mut bytes).expect("in bounds");
    assert_eq!(bytes[..8], [1; 8]);
    assert_eq!(bytes[8..], [0; 4088]);
    assert_eq!(theirs.value(), 100);
    assert_eq!(peer.tag_probe(1, Mask::ALL), None);
    let taken = worker
        .tag_recv(71, Mask::ALL, vec![0; 4])
        .await
        .expect("the message");
    assert_eq!(taken.buffer, b"here");
    for length in [8, 5_000, 300_000] {
        let (sent, received) = tokio::join!(
            endpoint.tag_send(1, vec![5; length]),
            peer.tag_recv(1, Mask::ALL, vec![0; length]),
        );
        sent.expect("sent");
        assert_eq!(received.expect("received").buffer, vec![5; length]);
    }
    endpoint.flush().await.expect("flushed");
}

fn run(path: Path) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(watchdog(LIMIT, refused_at_every_entrance(path)));
}

#[test]
fn refused_over_shm() {
    run(Path::Shm);
}

#[test]
fn refused_over_tcp() {
    run(Path::Tcp);
}
