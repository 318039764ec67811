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
    sync::Arc,
    task::{Context as TaskContext, Poll, Waker},
    time::Duration,
};

use futures::{FutureExt, Sink};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use wharf::{
    Access, Buffer, Endpoint, ErrorKind, Mask, OpError, Tag, Worker,
    channel::{
        Bootstrap, Communicator, DeviceChannel, MemoryChannel, PacketWidth, ProxyService,
        RegisteredMemory, Semaphore, Trigger, TriggerKind, bootstrap::MemoryBootstrap,
    },
    transport::cuda::CudaStream,
};

use crate::{common::Path, support::on_a_runtime};

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
    let listener = peer.listen("127.0.0.1:0").await.expect("a listener");
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
        // It ends if it hangs.
        nix::unistd::alarm::set(20);
        let asked = catch_unwind(AssertUnwindSafe(act));
        let code = match asked {
            Ok(answers) => {
                for (name, _) in answers.iter().filter(|(_, refused)| !refused) {
                    eprintln!("in the child: {name} is not refused");
                }
                let wrong = answers.iter().position(|(_, refused)| !refused);
                wrong.map_or(0, |at| at as i32 + 1)
            }
            Err(_) => 255,
        };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    assert!(pid > 0, "no child");
    let mut status = 0;
    // SAFETY: `status` is ours, and the child too.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
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
    let before = worker.tag_recv(Tag(70), vec![0; 8]).post();
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
            ("tag_recv", poll(worker.tag_recv(1, vec![0; 8]))),
            (
                "tag_recv, posted",
                poll(worker.tag_recv(1, vec![0; 8]).post()),
            ),
            ("tag_recv, posted before", poll(before)),
            ("tag_matched", poll(worker.tag_matched(71))),
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
    let taken = worker.tag_recv(71, vec![0; 4]).await.expect("the message");
    assert_eq!(taken.buffer, b"here");
    for length in [8, 5_000, 300_000] {
        let (sent, received) = tokio::join!(
            endpoint.tag_send(1, vec![5; length]),
            peer.tag_recv(1, vec![0; length]),
        );
        sent.expect("sent");
        assert_eq!(received.expect("received").buffer, vec![5; length]);
    }
    endpoint.flush().await.expect("flushed");
}

/// Two ranks of one process, and a memory channel between them with packets.
struct Ranks {
    ranks: [Communicator; 2],
    bootstrap: Arc<dyn Bootstrap>,
    memory: [RegisteredMemory; 2],
    here: MemoryChannel,
    there: MemoryChannel,
}

const AREA: usize = 64;
const WIDTH: PacketWidth = PacketWidth::Sixteen;

async fn ranks(path: Path) -> Ranks {
    let group = MemoryBootstrap::group(2).expect("a group");
    let group: Vec<Arc<dyn Bootstrap>> =
        group.into_iter().map(|rank| Arc::new(rank) as _).collect();
    let workers = [(); 2].map(|()| Worker::new(&path.context()).expect("a worker"));
    let (one, two) = tokio::join!(
        Communicator::new(group[0].clone(), &workers[0]),
        Communicator::new(group[1].clone(), &workers[1]),
    );
    let (one, two) = (one.expect("a rank"), two.expect("a rank"));
    let access = Access::READ | Access::WRITE;
    let memory = [
        one.register(vec![1; 4096], access).await.expect("memory"),
        two.register(vec![2; 4096], access).await.expect("memory"),
    ];
    let connect = async |rank: &Communicator, peer, memory| {
        let channel = MemoryChannel::connect(rank, peer, 1, memory).await;
        let channel = channel.expect("a channel");
        let channel = channel.with_packets(rank, 2, AREA).await;
        channel.expect("with packets")
    };
    let (here, there) = tokio::join!(connect(&one, 1, &memory[0]), connect(&two, 0, &memory[1]));
    Ranks {
        ranks: [one, two],
        bootstrap: group[0].clone(),
        memory,
        here,
        there,
    }
}

async fn channels_are_refused(path: Path) {
    let Ranks {
        ranks: [one, two],
        bootstrap,
        memory: [mine, theirs],
        here,
        there,
    } = &ranks(path).await;
    let proxy = ProxyService::new().expect("a proxy");
    let (semaphore, remote) = (here.semaphore(), here.remote());
    let port = proxy.channel(semaphore.clone(), remote.clone(), mine.clone());
    let port = port.expect("a channel");
    // There is no such device, so that a task of the host's does what is asked.
    // SAFETY: nothing is ever in the stream.
    let stream = unsafe { CudaStream::from_raw(std::ptr::null_mut(), 0) };
    let (device, far) = tokio::join!(
        DeviceChannel::connect(here, one, 3, stream, AREA),
        DeviceChannel::connect(there, two, 3, stream, AREA),
    );
    let (device, _far) = (device.expect("a channel"), far.expect("a channel"));
    assert!(device.reason().is_some());
    port.put_with_signal_and_flush(0, 0, 8).await.expect("put");
    there.wait().await.expect("signalled");
    there.signal().await.expect("signalled");
    while here.semaphore().pending() == 0 {
        tokio::task::yield_now().await;
    }
    let packets = there.put_packets(0, 0, 8, WIDTH, 7);
    packets.await.expect("packets");
    // Nothing is taken out while this task goes on, so one more waits for room.
    let trigger = Trigger {
        kind: TriggerKind::SIGNAL,
        ..port.trigger()
    };
    let mut asked = 1;
    while proxy.push(trigger).is_ok() {
        asked += 1;
    }
    let mut waits = pin!(port.signal());
    let mut cx = TaskContext::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    let memory = theirs.serialize().expect("a descriptor");

    in_a_child(|| {
        let waited = waits.as_mut().poll(&mut cx);
        let flushed = port.put_with_signal_and_flush(8, 8, 8);
        let added = [
            post(proxy.add_memory(mine.clone())),
            post(proxy.add_remote(remote.clone())),
            post(proxy.add_semaphore(semaphore.clone())),
            post(proxy.channel(semaphore.clone(), remote.clone(), mine.clone())),
        ];
        vec![
            (
                "port, waits for room",
                matches!(waited, Poll::Ready(waited) if waited.is_refused()),
            ),
            ("port, put", poll(port.put(8, 8, 8))),
            ("port, with signal", poll(port.put_with_signal(8, 8, 8))),
            ("port, and flush", poll(flushed)),
            ("port, signal", poll(port.signal())),
            ("port, flush", poll(port.flush())),
            ("port, wait", poll(port.wait())),
            ("proxy, push", post(proxy.push(trigger))),
            ("proxy, memory", added[0]),
            ("proxy, remote memory", added[1]),
            ("proxy, semaphore", added[2]),
            ("proxy, channel", added[3]),
            ("channel, put", poll(here.put(8, 8, 8))),
            ("channel, with signal", poll(here.put_with_signal(8, 8, 8))),
            ("channel, posted", post(here.post_put(8, 8, 8, true))),
            ("channel, get", poll(here.get(8, 8, 8))),
            ("channel, signal", poll(here.signal())),
            ("channel, wait", poll(here.wait())),
            ("channel, flush", poll(here.flush())),
            ("packets", poll(here.put_packets(0, 0, 8, WIDTH, 9))),
            ("unpack", poll(here.unpack_packets(0, 8, 8, WIDTH, 7))),
            ("semaphore, poll", !here.semaphore().poll()),
            ("semaphore, pending", here.semaphore().pending() == 0),
            ("rank, send", poll(one.send(1, 5, "no"))),
            ("rank, receive", poll(one.receive(1, 5))),
            ("rank, all_gather", poll(one.all_gather("no"))),
            ("rank, barrier", poll(one.barrier())),
            ("rank, endpoint", poll(one.endpoint(1))),
            ("rank, memory", poll(one.deserialize(&memory))),
            ("bootstrap, send", poll(bootstrap.send(1, 5, "no".into()))),
            ("bootstrap, receive", poll(bootstrap.receive(1, 5))),
            (
                "bootstrap, all_gather",
                poll(bootstrap.all_gather("no".into())),
            ),
            ("bootstrap, barrier", poll(bootstrap.barrier())),
            ("device, put", post(device.put(8, 8, 8))),
            ("device, with signal", post(device.put_with_signal(8, 8, 8))),
            ("device, signal", post(device.signal())),
            ("device, wait", post(device.wait(1))),
            (
                "device, packets",
                post(device.put_packets(0, 0, 8, WIDTH, 9)),
            ),
            (
                "device, unpack",
                post(device.unpack_packets(0, 0, 8, WIDTH, 9, 1)),
            ),
        ]
    });

    // The parent goes on as if nothing had happened.
    waits.await.expect("asked");
    port.flush().await.expect("flushed");
    for _ in 0..asked {
        there.wait().await.expect("signalled");
    }
    assert_eq!(there.semaphore().pending(), 0);
    let mut bytes = [0; 24];
    theirs.read_at(0, &mut bytes).expect("in bounds");
    assert_eq!(bytes[..8], [1; 8]);
    assert_eq!(bytes[8..], [2; 16]);
    assert!(here.semaphore().poll(), "a signal was taken");
    let unpacked = here.unpack_packets(0, 8, 8, WIDTH, 7);
    unpacked.await.expect("unpacked");
    let (sent, received) = tokio::join!(one.send(1, 5, "here"), two.receive(0, 5));
    sent.expect("sent");
    assert_eq!(received.expect("received"), "here");
    let (here, there) = tokio::join!(one.barrier(), two.barrier());
    here.and(there).expect("met");
}

#[test]
fn refused_over_shm() {
    on_a_runtime(refused_at_every_entrance(Path::Shm));
}

#[test]
fn refused_over_tcp() {
    on_a_runtime(refused_at_every_entrance(Path::Tcp));
}

#[test]
fn channels_are_refused_over_shm() {
    on_a_runtime(channels_are_refused(Path::Shm));
}

#[test]
fn channels_are_refused_over_tcp() {
    on_a_runtime(channels_are_refused(Path::Tcp));
}
