//! Peers that may not do everything: other users, processes that let nobody look inside, other process namespaces.
#![allow(unsafe_code)] // `unshare`, which has no safe face here.

use std::time::Duration;

use nix::{
    sys::prctl,
    unistd::{Gid, Uid, geteuid, setgid, setuid},
};
use wharf::{Context, Tag, Worker};

use crate::{
    common::{bytes, current_thread, expect_bytes, multi_thread},
    support::{Child, LIMIT, Logs, Parent, child, this_test, watchdog},
};

const NOBODY: u32 = 65_534;

fn become_nobody() {
    setgid(Gid::from_raw(NOBODY)).expect("root may");
    setuid(Uid::from_raw(NOBODY)).expect("root may");
}

/// Connects, exchanges messages, and says what is in use and what was warned of.
async fn connect(mut parent: Parent) {
    let logs = Logs::of_process();
    let address = parent.hear().await;
    let context = Context::builder().build().expect("a context");
    let worker = Worker::new(&context).expect("a worker");
    let endpoint = if address.contains(':') && address.len() < 64 {
        watchdog(LIMIT, worker.connect(address)).await
    } else {
        let address: wharf::WorkerAddress = address.parse().expect("an address");
        watchdog(LIMIT, worker.connect(address)).await
    };
    let endpoint = endpoint.expect("a connection");
    for length in [0, 8, 5_000, 300_000] {
        let tag = Tag(length as u64);
        endpoint
            .tag_send(tag, bytes(1, length))
            .await
            .expect("a send");
        let back = watchdog(LIMIT, worker.tag_recv(tag, vec![0; length])).await;
        expect_bytes(1, &back.expect("an answer").buffer);
    }
    parent.say(endpoint.transports().join(","));
    for warning in logs.warnings() {
        parent.say(warning);
    }
    parent.say("end of warnings");
    watchdog(LIMIT, endpoint.close()).await.expect("closed");
}

/// Accepts one connection and sends its messages back.
async fn serve(worker: &Worker, endpoint: &wharf::Endpoint) {
    for length in [0, 8, 5_000, 300_000] {
        let tag = Tag(length as u64);
        let received = watchdog(LIMIT, worker.tag_recv(tag, vec![0; length])).await;
        let received = received.expect("a message");
        endpoint
            .tag_send(tag, received.buffer)
            .await
            .expect("an answer");
    }
}

/// What the other process says of its connection: transports, warnings.
async fn hear(child: &mut Child) -> (String, Vec<String>) {
    let transports = child.hear().await;
    let mut warnings = Vec::new();
    loop {
        let line = child.hear().await;
        if line == "end of warnings" {
            return (transports, warnings);
        }
        warnings.push(line);
    }
}

/// This process listens, `child` connects in its own way. Returns what the child says, and what was warned of here.
async fn meet(mut child: Child, by_address: bool) -> (String, Vec<String>, Vec<String>) {
    let logs = Logs::of_this_thread();
    let context = Context::builder().build().expect("a context");
    let worker = Worker::new(&context).expect("a worker");
    let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
    let (transports, warnings) = if by_address {
        child.say(worker.address().expect("an address"));
        let received = watchdog(LIMIT, worker.tag_recv(Tag(0), Vec::new())).await;
        let from = received.expect("a message").from;
        let endpoint = worker.endpoint(from).expect("the endpoint it came from");
        endpoint
            .tag_send(Tag(0), Vec::new())
            .await
            .expect("an answer");
        for length in [8, 5_000, 300_000] {
            let tag = Tag(length as u64);
            let receive = worker.tag_recv(tag, vec![0; length]);
            let received = watchdog(LIMIT, receive).await.expect("a message");
            endpoint
                .tag_send(tag, received.buffer)
                .await
                .expect("an answer");
        }
        let heard = hear(&mut child).await;
        watchdog(LIMIT, endpoint.closed()).await;
        heard
    } else {
        child.say(listener.local_addr());
        let incoming = watchdog(LIMIT, listener.accept()).await.expect("a request");
        let endpoint = watchdog(LIMIT, incoming.accept()).await;
        let endpoint = endpoint.expect("the first request is the one that counts");
        serve(&worker, &endpoint).await;
        let heard = hear(&mut child).await;
        assert_eq!(heard.0, endpoint.transports().join(","));
        watchdog(LIMIT, endpoint.closed()).await;
        heard
    };
    child.finish();
    watchdog(LIMIT, worker.shutdown(Duration::from_secs(5)))
        .await
        .expect("a quiet end");
    (transports, warnings, logs.warnings())
}

#[track_caller]
fn expect_one(warnings: &[String], parts: &[&str]) {
    assert!(
        warnings.len() == 1 && parts.iter().all(|part| warnings[0].contains(part)),
        "expected one warning with {parts:?}, found {warnings:#?}"
    );
}

fn another_user(test: &str, by_address: bool) {
    assert!(
        geteuid().is_root(),
        "only root can start a process of another user"
    );
    let child = Child::start(test, "nobody", &[]);
    let (transports, theirs, ours) = current_thread().block_on(meet(child, by_address));
    assert_eq!(transports, "tcp");
    expect_one(&theirs, &["shared memory cannot be used", "user"]);
    assert!(ours.is_empty(), "said once, not here as well: {ours:#?}");
}

#[test]
#[ignore = "needs root: starts a process of another user"]
fn another_user_is_served_over_tcp() {
    if let Some(parent) = child("nobody") {
        become_nobody();
        multi_thread().block_on(connect(parent));
        return;
    }
    another_user(this_test!(), false);
}

#[test]
#[ignore = "needs root: starts a process of another user"]
fn another_user_with_an_address_is_served_over_tcp() {
    if let Some(parent) = child("nobody") {
        become_nobody();
        multi_thread().block_on(connect(parent));
        return;
    }
    another_user(this_test!(), true);
}

/// Two processes of a user without privileges, one of which lets nobody look inside: `cma` is left out, both say so once.
#[test]
fn without_ptrace_there_is_no_cma() {
    if let Some(parent) = child("listens") {
        if geteuid().is_root() {
            become_nobody();
        }
        prctl::set_dumpable(true).expect("one's own");
        current_thread().block_on(async {
            let logs = Logs::of_process();
            let context = Context::builder().build().expect("a context");
            let worker = Worker::new(&context).expect("a worker");
            let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
            parent.say(listener.local_addr());
            let incoming = watchdog(LIMIT, listener.accept()).await.expect("a request");
            let endpoint = watchdog(LIMIT, incoming.accept()).await;
            let endpoint = endpoint.expect("a connection");
            serve(&worker, &endpoint).await;
            watchdog(LIMIT, endpoint.closed()).await;
            for warning in logs.warnings() {
                parent.say(warning);
            }
            parent.say("end of warnings");
        });
        return;
    }
    if let Some(parent) = child("connects") {
        if geteuid().is_root() {
            become_nobody();
        }
        prctl::set_dumpable(false).expect("one's own");
        multi_thread().block_on(connect(parent));
        return;
    }
    let mut listens = Child::start(this_test!(), "listens", &[]);
    let mut connects = Child::start(this_test!(), "connects", &[]);
    current_thread().block_on(async {
        connects.say(listens.hear().await);
        let (transports, warnings) = hear(&mut connects).await;
        assert_eq!(transports, "shm");
        expect_one(&warnings, &["cma cannot be used"]);
        let mut warnings = Vec::new();
        loop {
            match listens.hear().await {
                line if line == "end of warnings" => break,
                line => warnings.push(line),
            }
        }
        expect_one(&warnings, &["cma cannot be used"]);
    });
    connects.finish();
    listens.finish();
}

/// In another process namespace the peer's id means nothing: memory is shared, but not read by process id.
#[test]
#[ignore = "needs root: makes a namespace"]
fn another_process_namespace_shares_memory() {
    if let Some(parent) = child("inner") {
        multi_thread().block_on(connect(parent));
        return;
    }
    if child_is_outer() {
        // SAFETY: the call takes a flag and touches no memory.
        let made = unsafe { libc::unshare(libc::CLONE_NEWPID) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        let status = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args([
                "--exact",
                this_test!(),
                "--nocapture",
                "--ignored",
                "--test-threads=1",
            ])
            .env("WHARFTEST_PART", "inner")
            .status()
            .expect("a process in a namespace of its own");
        assert!(status.success(), "{status}");
        return;
    }
    assert!(
        geteuid().is_root(),
        "only root can make a process namespace"
    );
    let child = Child::start(this_test!(), "outer", &[]);
    let (transports, theirs, _ours) = current_thread().block_on(meet(child, false));
    assert_eq!(transports, "shm");
    expect_one(&theirs, &["cma cannot be used"]);
}

/// Not by `child`, which would read the line that is for the process within.
fn child_is_outer() -> bool {
    std::env::var("WHARFTEST_PART").as_deref() == Ok("outer")
}
