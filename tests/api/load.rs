//! Many connections, and connections that do nothing.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use wharf::{Endpoint, Mask, Progress, Worker};

use crate::{
    fixture::{Way, run},
    support::{Child, child, this_test},
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

const MANY: usize = 1000;

fn many(way: Way) {
    let (soft, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)
        .expect("the limit");
    if hard < 12_000 {
        eprintln!(
            "skipped: {MANY} connections within one process need 12000 fds, the limit is {hard}"
        );
        return;
    }
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
        let mut listener = hub.listen("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr();
        let dial = async {
            let mut endpoints = Vec::new();
            for _ in 0..MANY {
                endpoints.push(other.connect(address).await.expect("connected"));
            }
            endpoints
        };
        let accept = async {
            let mut endpoints = Vec::new();
            for _ in 0..MANY {
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
                .tag_recv(index as u64, Mask::ALL, vec![0; 100])
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
        for index in 0..MANY {
            let received = other
                .tag_recv(index as u64, Mask::ALL, vec![0; 100_000])
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
fn thousand_endpoints_shm() {
    in_a_process(this_test!(), "many shm", || many(Way::Shm));
}

#[test]
fn thousand_endpoints_tcp() {
    in_a_process(this_test!(), "many tcp", || many(Way::Tcp));
}

/// Voluntary and other context switches, and ticks of CPU time, of all threads but this one.
fn activity() -> Vec<(String, u64, u64)> {
    let own = nix::unistd::gettid().to_string();
    let mut threads = Vec::new();
    for task in fs::read_dir("/proc/self/task")
        .expect("a mounted /proc")
        .flatten()
    {
        if task.file_name().to_string_lossy() == own {
            continue;
        }
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let switches = read("status")
            .lines()
            .filter_map(|line| {
                line.split_once("ctxt_switches:")?
                    .1
                    .trim()
                    .parse::<u64>()
                    .ok()
            })
            .sum();
        let stat = read("stat");
        let ticks = stat
            .rsplit(") ")
            .next()
            .unwrap_or_default()
            .split(' ')
            .skip(11)
            .take(2)
            .filter_map(|ticks| ticks.parse::<u64>().ok())
            .sum();
        threads.push((read("comm").trim().to_owned(), switches, ticks));
    }
    threads
}

/// Whether all other threads of the process wait.
fn all_asleep() -> bool {
    let own = nix::unistd::gettid().to_string();
    let tasks = fs::read_dir("/proc/self/task").expect("a mounted /proc");
    tasks
        .flatten()
        .filter(|task| task.file_name().to_string_lossy() != own)
        .all(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit(") ")
                .next()
                .is_some_and(|rest| rest.starts_with('S'))
        })
}

/// Sixteen connections on which messages went, and a receive that waits: no thread of the process runs for three seconds.
fn idle(progress: Progress) {
    let (ready, is_ready) = std::sync::mpsc::channel();
    // Its runtime goes with the process.
    thread::spawn(move || {
        run(async {
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
                            there.tag_recv(index, Mask::ALL, vec![0; size]),
                        );
                        sent.expect("sent");
                        received.expect("a message");
                    }
                    kept.push((here.clone(), dialled));
                    kept.push((there.clone(), accepted));
                }
                // One that waits for ever.
                tokio::spawn(async move {
                    let _ = here.tag_recv(99, Mask::ALL, vec![0; 8]).await;
                });
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
            ready.send(()).expect("somebody waits");
            std::future::pending::<()>().await;
        });
    });
    is_ready.recv_timeout(crate::support::LIMIT).expect("ready");
    // Until what was begun is over. A thread that is woken now and then is not asleep for three seconds, whenever they begin.
    let start = Instant::now();
    let mut last = activity();
    let before = loop {
        thread::sleep(Duration::from_millis(100));
        let now = activity();
        if now == last && all_asleep() {
            break now;
        }
        last = now;
        assert!(
            start.elapsed() < crate::support::LIMIT,
            "watchdog: {last:?}"
        );
    };
    thread::sleep(Duration::from_secs(3));
    assert_eq!(activity(), before, "threads with their switches and ticks");
}

#[test]
fn idle_adaptive() {
    in_a_process(this_test!(), "idle adaptive", || idle(Progress::Adaptive));
}

#[test]
fn idle_by_events() {
    in_a_process(this_test!(), "idle by events", || {
        idle(Progress::EventDriven)
    });
}

#[test]
fn idle_with_a_thread() {
    in_a_process(this_test!(), "idle with a thread", || {
        idle(Progress::Thread)
    });
}
