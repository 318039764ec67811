//! Runtimes that end, or lack what a worker needs.

use std::{future::Future, sync::mpsc, time::Duration};

use async_io::block_on;
use tokio::{io::AsyncReadExt, runtime::Runtime};
use wharf::{
    Access, AmId, Context, Endpoint, Error, ErrorKind, RemoteRegion, StreamListener, Tag, Worker,
};

use crate::{
    expect,
    support::{LIMIT, on_a_runtime},
};

const ENDED: &str = "the worker's Tokio runtime has ended";

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// A worker, connected to another, and the runtime of both.
fn pair(transports: &str, thread: bool) -> (Runtime, [Worker; 2], Endpoint) {
    let runtime = runtime();
    let (workers, endpoint) = pair_on([&runtime; 2], transports, thread);
    (runtime, workers, endpoint)
}

/// A worker on the first runtime, connected to another on the second.
fn pair_on(runtimes: [&Runtime; 2], transports: &str, thread: bool) -> ([Worker; 2], Endpoint) {
    runtimes[0].block_on(async {
        let builder = Context::builder().transports(transports).expect("known");
        let builder = match thread {
            true => builder.progress(wharf::config::Progress::Thread),
            false => builder,
        };
        let context = builder.build().expect("a context");
        let workers = runtimes.map(|runtime| {
            let _within = runtime.enter();
            Worker::new(&context).expect("a worker")
        });
        let address = workers[1].address().expect("an address");
        let endpoint = workers[0].connect(&address).await.expect("connected");
        endpoint.tag_send(Tag(1), "hello").await.expect("sent");
        let receive = workers[1].tag_recv(Tag(1), vec![0; 5]);
        receive.await.expect("received");
        (workers, endpoint)
    })
}

/// On a thread of its own, outside of every runtime, and in good time.
fn on_a_bare_thread<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let result = block_on(future);
        // The test may have given up.
        let _ = done.send(result);
    });
    let result = ended.recv_timeout(LIMIT).expect("it hangs");
    thread.join().expect("no panic");
    result
}

#[track_caller]
fn ended(error: impl Into<Error>) {
    let error = error.into();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert!(error.to_string().contains(ENDED), "{error}");
}

/// Everything that can be asked of a worker, each of which fails at once.
async fn late(worker: Worker, endpoint: Endpoint, remote: RemoteRegion) {
    ended(endpoint.closed().await);
    ended(endpoint.tag_send(1, vec![0; 8]).await.expect_err("ended"));
    let long = endpoint.tag_send(1, vec![0; 3 << 20]);
    ended(
        long.deadline(Duration::from_millis(1))
            .await
            .expect_err("ended"),
    );
    ended(endpoint.am_send(AmId(1), "", "").await.expect_err("ended"));
    ended(endpoint.flush().await.expect_err("ended"));
    let put = endpoint.put(vec![0; 8], remote.clone());
    ended(put.await.expect_err("ended"));
    let get = endpoint.get(remote.clone(), vec![0; 8]);
    ended(get.await.expect_err("ended"));
    ended(remote.fetch_add(0, 1_u64).await.expect_err("ended"));
    ended(endpoint.ready().await.expect_err("ended"));
    ended(endpoint.fence().await.expect_err("ended"));
    ended(worker.fence().await.expect_err("ended"));
    ended(worker.flush().await.expect_err("ended"));
    let signal = endpoint.signal(&remote, 1);
    ended(signal.await.expect_err("ended"));
    let short = endpoint.tag_send_copy(1, &[0; 8]);
    ended(short.await.expect_err("ended"));
    let receive = endpoint.tag_recv(1, vec![0; 8]);
    ended(receive.await.expect_err("ended"));
    let accepted = endpoint.accept_stream().await;
    ended(accepted.map(drop).expect_err("ended"));
    ended(endpoint.stream().await.map(drop).expect_err("ended"));
    endpoint.close().await.expect("it is closed");
    let receive = worker.tag_recv(1, vec![0; 8]);
    ended(receive.await.expect_err("ended"));
    let receive = worker.tag_recv(1, vec![0; 8]).post();
    let receive = receive.deadline(Duration::from_millis(1));
    ended(receive.await.expect_err("ended"));
    ended(worker.tag_matched(1).await.map(drop).expect_err("ended"));
    ended(
        worker
            .copy(vec![0; 8], vec![0; 8])
            .await
            .expect_err("ended"),
    );
    ended(worker.connect("127.0.0.1:1").await.expect_err("ended"));
    ended(
        worker
            .listen("127.0.0.1:0")
            .await
            .map(drop)
            .expect_err("ended"),
    );
    ended(
        worker
            .active_messages(7)
            .open()
            .map(drop)
            .expect_err("ended"),
    );
    worker.shutdown(LIMIT).await.expect("nothing is left");
}

macro_rules! ends {
    ($($test:ident: $transports:literal, $thread:literal;)*) => {$(
        mod $test {
            use super::*;

            /// From a runtime of the caller's own, and from no runtime at all.
            #[test]
            fn late() {
                // The peer stays: else it might be the first whose end is heard of.
                let (runtime, stays) = (super::runtime(), super::runtime());
                let ([here, there], endpoint) = pair_on([&runtime, &stays], $transports, $thread);
                let exposed = there.context().expose(vec![0; 64], Access::READ | Access::WRITE);
                let region = runtime.block_on(exposed).expect("exposed");
                let remote = endpoint.import(&region.descriptor().expect("a descriptor"));
                let remote = remote.expect("the peer's");
                drop(runtime);
                let late = || super::late(here.clone(), endpoint.clone(), remote.clone());
                on_a_bare_thread(late());
                on_a_runtime(late());
                drop(stays);
                on_a_bare_thread(async move {
                    let receive = there.tag_recv(1, vec![0; 8]);
                    ended(receive.await.expect_err("ended"));
                });
            }

            #[test]
            fn under_way() {
                super::under_way($transports, $thread, |future| on_a_bare_thread(future));
            }

            #[test]
            fn under_way_on_another_runtime() {
                super::under_way($transports, $thread, |future| on_a_runtime(future));
            }
        }
    )*};
}

ends! {
    over_shared_memory: "shm", false;
    over_tcp: "tcp", false;
    to_oneself: "self,tcp", false;
    with_a_thread: "shm", true;
}

/// Waits of all kinds, which end when the runtime does.
fn under_way(
    transports: &str,
    thread: bool,
    run: fn(std::pin::Pin<Box<dyn Future<Output = ()> + Send>>),
) {
    // The peer stays: else it might be the first whose end is heard of.
    let (runtime, stays) = (runtime(), runtime());
    let ([here, there], endpoint) = pair_on([&runtime, &stays], transports, thread);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = silent.local_addr().map(|address| (silent, address));
    let (_silent, nobody) = silent.expect("bound");
    let listener = runtime.block_on(here.listen("127.0.0.1:0"));
    let listener = listener.expect("listens");
    let streams = runtime.block_on(here.listen("127.0.0.1:0"));
    let streams = StreamListener::new(streams.expect("listens"));
    let inbox = here.active_messages(9).open();
    let mut inbox = inbox.expect("opened");
    let made = runtime.block_on(async {
        let counter = here.counter().await.expect("a counter");
        (counter, endpoint.stream().await.expect("a stream"))
    });
    let (counter, mut stream) = made;
    let (begun, has_begun) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        run(Box::pin(async move {
            let day = Duration::from_secs(86_400);
            let long = || vec![0; 3 << 20];
            let receive = here.tag_recv(1, vec![0; 8]);
            let posted = here.tag_recv(1, vec![0; 8]).post();
            let limited = here.tag_recv(1, vec![0; 8]).deadline(day);
            let send = endpoint.tag_send(2, long());
            let sent = endpoint.tag_send(2, long()).deadline(day);
            let mut looks = std::pin::pin!(async {
                let matched = here.tag_matched(3);
                let own = endpoint.tag_recv(4, vec![0; 8]);
                let accepts_stream = endpoint.accept_stream();
                let (flush, flush_all) = (endpoint.flush(), here.flush());
                tokio::join!(
                    async { tokio::join!(receive, posted, limited, matched, send, sent) },
                    async { tokio::join!(own, accepts_stream, flush, flush_all, streams.accept()) },
                    async {
                        tokio::join!(
                            endpoint.closed(),
                            here.connect(nobody),
                            listener.accept(),
                            inbox.recv(),
                            counter.wait(1),
                            stream.read_u8(),
                        )
                    },
                )
            });
            let mut told = false;
            let ends = std::future::poll_fn(|cx| {
                let ends = looks.as_mut().poll(cx);
                if !std::mem::replace(&mut told, true) {
                    begun.send(()).expect("the test waits");
                }
                ends
            });
            let (
                (receive, posted, limited, matched, send, sent),
                (own, accepted, flush, flush_all, stream),
                (closed, connects, accepts, message, counted, read),
            ) = ends.await;
            assert!(message.is_none(), "it comes from nobody");
            ended(counted.map(drop).expect_err("ended"));
            ended(read.expect_err("ended"));
            ended(receive.expect_err("ended"));
            ended(posted.expect_err("ended"));
            ended(limited.expect_err("ended"));
            ended(matched.map(drop).expect_err("ended"));
            ended(send.expect_err("ended"));
            ended(sent.expect_err("ended"));
            ended(own.expect_err("ended"));
            ended(accepted.map(drop).expect_err("ended"));
            ended(flush.expect_err("ended"));
            ended(flush_all.expect_err("ended"));
            ended(stream.map(drop).expect_err("ended"));
            ended(closed);
            ended(connects.expect_err("ended"));
            ended(accepts.map(drop).expect_err("ended"));
        }));
    });
    has_begun.recv_timeout(LIMIT).expect("it begins");
    drop(runtime);
    thread.join().expect("no panic");
    drop((there, stays));
}

#[test]
fn a_connection_is_turned_down_outside_of_every_runtime() {
    let runtime = runtime();
    let (incoming, dials) = runtime.block_on(async {
        let (here, there) = (crate::worker("tcp"), crate::worker("tcp"));
        let listener = there.listen("127.0.0.1:0").await.expect("listens");
        let address = listener.local_addr();
        let dials = tokio::spawn(async move { here.connect(address).await.map(drop) });
        (listener.accept().await.expect("a request"), dials)
    });
    on_a_bare_thread(incoming.reject("not you"));
    let error = runtime.block_on(dials).expect("no panic");
    let error = error.expect_err("turned down");
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    assert!(error.to_string().contains("not you"), "{error}");
}

#[test]
fn a_worker_that_was_shut_down() {
    on_a_runtime(async {
        let worker = crate::worker("tcp");
        worker.shutdown(LIMIT).await.expect("shut down");
        let error = worker.connect("127.0.0.1:1").await.expect_err("shut down");
        expect(
            &error,
            ErrorKind::Closed,
            "connect: the worker was shut down",
        );
        let error = worker.listen("127.0.0.1:0").await.map(drop);
        let text = "listen: the worker was shut down";
        expect(&error.expect_err("shut down"), ErrorKind::Closed, text);
        let error = worker.address().expect_err("shut down");
        expect(
            &error,
            ErrorKind::Closed,
            "listen: the worker was shut down",
        );
    });
}

/// What a worker that goes on can do from outside of every runtime.
#[test]
fn outside_of_every_runtime() {
    let (_runtime, [here, there], _endpoint) = pair("shm,tcp", false);
    on_a_bare_thread(async move {
        let listener = there.listen("127.0.0.1:0").await.expect("listens");
        let address = listener.local_addr();
        let (connected, accepted) = futures::join!(here.connect(address), async {
            listener.accept().await.expect("a peer").accept().await
        });
        let (connected, _accepted) = (connected.expect("connected"), accepted.expect("accepted"));
        connected.tag_send(Tag(5), "hello").await.expect("sent");
        let refused = here.connect("localhost:1").await.expect_err("nobody");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
        here.shutdown(LIMIT).await.expect("shut down");
    });
}

/// What a worker that goes on can do from a runtime without timers and I/O, on its own thread and on another's.
#[test]
fn in_a_runtime_without_drivers() {
    let (_runtime, [here, there], endpoint) = pair("shm,tcp", false);
    let bare = tokio::runtime::Builder::new_current_thread();
    let bare = { bare }.build().expect("a runtime");
    bare.block_on(async move {
        let moment = Duration::from_millis(1);
        let receive = there.tag_recv(9, vec![0; 8]).deadline(moment);
        let error = receive.await.expect_err("nothing comes").into_parts().0;
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
        let listener = there.listen("127.0.0.1:0").await.expect("listens");
        let address = listener.local_addr();
        let (connected, accepted) = futures::join!(here.connect(address), async {
            listener.accept().await.expect("a peer").accept().await
        });
        let (connected, _accepted) = (connected.expect("connected"), accepted.expect("accepted"));
        connected.tag_send(Tag(5), "hello").await.expect("sent");
        let mut sent = endpoint.tag_send(Tag(6), vec![0; 3 << 20]).post();
        let sent = sent.as_mut().expect("room");
        let mut bars = sent.progress().every(moment);
        futures::StreamExt::next(&mut bars)
            .await
            .expect("it is under way");
        here.shutdown(moment).await.expect_err("nobody receives it");
    });
}

/// Tokio tells of it by a panic alone, which is printed.
#[test]
fn a_runtime_without_what_a_worker_needs() {
    let context = Context::builder().build().expect("a context");
    let error = Worker::new(&context).map(drop).expect_err("no runtime");
    let text = "a worker is made on a Tokio runtime: call this in its context";
    expect(&error, ErrorKind::InvalidArgument, text);
    let without_timers = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    let without_io = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    for (runtime, what) in [(without_timers, "timers"), (without_io, "I/O driver")] {
        let error = runtime
            .expect("a runtime")
            .block_on(async { Worker::new(&context).map(drop) });
        let text = format!("a worker needs the runtime's {what}: build it with `enable_all`");
        expect(
            &error.expect_err("it lacks them"),
            ErrorKind::InvalidArgument,
            &text,
        );
    }
}
