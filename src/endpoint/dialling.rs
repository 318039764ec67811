//! What a worker does with addresses that it dials, and what is left of workers.

use std::{net::TcpListener, sync::Arc, time::Duration};

use futures::StreamExt;

use super::Worker;
use crate::{
    Context,
    config::Progress,
    error::ErrorKind,
    protocol::WorkerAddress,
    sys::identity::identity,
    util::testing::run,
    worker::connect::{self, Destination},
};

fn context() -> Context {
    let builder = Context::builder().transports("tcp").expect("known");
    let builder = builder.connect_timeout(Duration::from_secs(6));
    builder.build().expect("a context")
}

#[test]
fn an_address_that_swallows_what_is_sent_leaves_time_for_the_next() {
    run(async {
        let context = context();
        let workers = [(); 2].map(|()| Worker::new(&context).expect("a worker"));
        // The system makes connections for them, and nobody says hello.
        let silent = [(); 4].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let listener = workers[1].listen("127.0.0.1:0").await.expect("listens");
        let bound = |silent: &TcpListener| silent.local_addr().expect("bound");
        let mut sockets: Vec<_> = silent.iter().map(bound).collect();
        sockets.push(listener.local_addr());
        let destination = Destination::Sockets(sockets, None);
        let (dialled, accepted) =
            tokio::join!(connect::connect(workers[0].shared(), destination), async {
                listener.accept().await.expect("a peer").accept().await
            });
        dialled.expect("the last answers");
        accepted.expect("connected");
    });
}

#[test]
fn a_worker_that_was_not_addressed_is_not_connected() {
    run(async {
        let context = context();
        let workers = [(); 3].map(|()| Worker::new(&context).expect("a worker"));
        let [there, gone] = [1, 2].map(|at| workers[at].address().expect("an address"));
        // The one that is gone was where another is now.
        let moved = WorkerAddress::new(
            gone.worker(),
            identity().clone(),
            None,
            there.sockets().to_vec(),
            there.transports().to_vec(),
            false,
        );
        let error = workers[0].connect(&moved.expect("short")).await;
        let error = error.map(drop).expect_err("another");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        workers[0].connect(&there).await.expect("connected");
    });
}

#[test]
fn who_has_answered_says_why_it_cannot_be_connected() {
    run(async {
        let worker = Worker::new(&context()).expect("a worker");
        let closes = TcpListener::bind("127.0.0.1:0").expect("a port");
        let nobody = TcpListener::bind("127.0.0.1:0").expect("a port");
        let sockets = [&nobody, &closes].map(|at| at.local_addr().expect("bound"));
        drop(nobody);
        let ends = std::thread::spawn(move || drop(closes.accept()));
        let destination = Destination::Sockets(sockets.to_vec(), None);
        let error = connect::connect(worker.shared(), destination).await;
        let error = error.expect_err("nobody");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        ends.join().expect("no panic");
    });
}

#[test]
fn a_listener_ends_with_its_worker() {
    run(async {
        let worker = Worker::new(&context()).expect("a worker");
        let mut listener = worker.listen("127.0.0.1:0").await.expect("listens");
        let waits = tokio::spawn(async move { (listener.next().await.is_none(), listener) });
        tokio::task::yield_now().await;
        worker
            .shutdown(Duration::from_secs(1))
            .await
            .expect("shut down");
        let (ended, mut listener) = waits.await.expect("no panic");
        assert!(ended && listener.next().await.is_none());
    });
}

/// A worker with a thread of its own, whose runtime ends with connections open.
#[test]
fn a_thread_ends_with_the_runtime_of_its_worker() {
    let builder = Context::builder().transports("tcp").expect("known");
    let context = builder.progress(Progress::Thread).build();
    let context = context.expect("a context");
    let mut left = Vec::new();
    run(async {
        let workers = [(); 2].map(|()| Worker::new(&context).expect("a worker"));
        let address = workers[1].address().expect("an address");
        let endpoint = workers[0].connect(&address).await.expect("connected");
        left.extend(workers.iter().map(|worker| Arc::downgrade(worker.shared())));
        drop((endpoint, workers));
    });
    let start = std::time::Instant::now();
    while left.iter().any(|shared| shared.strong_count() > 0) {
        assert!(start.elapsed() < Duration::from_secs(60), "it goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
}
