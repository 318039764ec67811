//! Many connections, and connections that do nothing.

use std::{
    thread,
    time::{Duration, Instant},
};

use wharf::{Endpoint, Progress, Worker};

use crate::{
    fixture::{Way, run},
    support::{Child, LIMIT, are_all, block_at_rest, child, other_threads, this_test},
};

/// Many endpoints need fds that the other tests of this process may be short of then, so each runs in a process of its own.
pub(crate) fn in_a_process(test: &str, part: &str, body: impl FnOnce()) {
    if let Some(parent) = child(part) {
        body();
        parent.say("done");
        return;
    }
    let mut child = Child::start(test, part, &[]);
    run(async { assert_eq!(child.hear().await, "done") });
    child.finish();
}

/// As many as there are file descriptors for, and no more.
const MANY: u64 = 1000;
/// What a connection within one process takes of them.
const FDS: u64 = 12;

fn many(way: Way) {
    let (soft, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)
        .expect("the limit");
    let many = MANY.min(hard / FDS) as usize;
    nix::sys::resource::setrlimit(
        nix::sys::resource::Resource::RLIMIT_NOFILE,
        soft.max(hard),
        hard,
    )
    .expect("up to the hard limit");
    run(async {
        let context = way.context();
        let hub = Worker::new(&context).expect("a worker");
        let other = Worker::new(&context).expect("a worker");
        let listener = hub.listen("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr();
        let dial = async {
            let mut endpoints = Vec::new();
            for _ in 0..many {
                endpoints.push(other.connect(address).await.expect("connected"));
            }
            endpoints
        };
        let accept = async {
            let mut endpoints = Vec::new();
            for _ in 0..many {
                endpoints.push(
                    listener
                        .accept()
                        .await
                        .expect("a request")
                        .await
                        .expect("accepted"),
                );
            }
            endpoints
        };
        let (dialled, accepted) = tokio::join!(dial, accept);
        for (index, endpoint) in dialled.iter().enumerate() {
            endpoint
                .tag_send(index as u64, vec![index as u8; 100])
                .await
                .expect("sent");
        }
        for (index, endpoint) in accepted.iter().enumerate().rev() {
            let received = hub
                .tag_recv(index as u64, vec![0; 100])
                .await
                .expect("a message");
            assert_eq!(received.buffer, vec![index as u8; 100]);
            assert_eq!(received.from, endpoint.id());
            // Not awaited: the other end receives later.
            drop(
                endpoint
                    .tag_send(index as u64, vec![1; 100_000])
                    .sync()
                    .post()
                    .expect("room"),
            );
        }
        for index in 0..many {
            let received = other
                .tag_recv(index as u64, vec![0; 100_000])
                .await
                .expect("a message");
            assert_eq!(received.len, 100_000);
        }
        hub.shutdown(Duration::from_secs(60))
            .await
            .expect("all closed");
        other
            .shutdown(Duration::from_secs(60))
            .await
            .expect("all closed");
    });
}

#[test]
fn many_endpoints_shm() {
    in_a_process(this_test!(), "many shm", || many(Way::Shm));
}

#[test]
fn many_endpoints_tcp() {
    in_a_process(this_test!(), "many tcp", || many(Way::Tcp));
}

/// Two workers and eight connections over shared memory and over TCP, on which messages went, and a receive that waits; until the process ends.
async fn kept(progress: Progress, ready: std::sync::mpsc::Sender<()>) {
    let mut kept: Vec<(Worker, Endpoint)> = Vec::new();
    for way in [Way::Shm, Way::Tcp] {
        let context = way.builder().progress(progress).build().expect("a context");
        let (here, there) = (
            Worker::new(&context).expect("a worker"),
            Worker::new(&context).expect("a worker"),
        );
        for index in 0..8 {
            let (dialled, accepted) = crate::fixture::connect(&here, &there).await;
            for size in [8, 5000, 200_000] {
                let (sent, received) = tokio::join!(
                    dialled.tag_send(index, vec![1; size]),
                    there.tag_recv(index, vec![0; size]),
                );
                sent.expect("sent");
                received.expect("a message");
            }
            kept.push((here.clone(), dialled));
            kept.push((there.clone(), accepted));
        }
        // One that waits for ever.
        tokio::spawn(async move {
            let _ = here.tag_recv(99, vec![0; 8]).await;
        });
    }
    ready.send(()).expect("somebody waits");
    std::future::pending::<()>().await;
}

/// No thread of a process runs for three seconds, in which workers wait in all three ways.
#[test]
fn idle() {
    in_a_process(this_test!(), "idle", || {
        for progress in [Progress::Adaptive, Progress::EventDriven, Progress::Thread] {
            let (ready, is_ready) = std::sync::mpsc::channel();
            // Its runtime goes with the process.
            thread::spawn(move || run(kept(progress, ready)));
            is_ready.recv_timeout(LIMIT).expect("ready");
        }
        // Until what was begun is over. A thread that is woken now and then is not asleep for three seconds, whenever they begin.
        let start = Instant::now();
        let before = loop {
            let last = block_at_rest("rest", Duration::from_millis(100), other_threads);
            if are_all(&last, 'S') {
                break last;
            }
            assert!(start.elapsed() < LIMIT, "watchdog: {last:?}");
        };
        // The time is what is measured.
        thread::sleep(Duration::from_secs(3));
        assert_eq!(
            other_threads(),
            before,
            "threads with their switches and ticks"
        );
    });
}
