//! Slower paths: taken where a better one cannot be, and said: once in a process for each reason, with what mends it.
#![allow(unsafe_code)] // `unshare`, which has no safe face here.

use std::time::Duration;

use nix::unistd::{Gid, Uid, geteuid, setgid, setuid};
use wharf::{Access, Context, Tag, Worker};

use crate::support::{
    Child, LIMIT, Logs, Parent, again, child, is_alone, on_a_runtime, passes, seccomp, this_test,
    watchdog,
};

/// Connections of a process that are made one after the other.
const TIMES: usize = 3;

/// Demands these warnings and no others, one line each with all its parts.
#[track_caller]
fn expect_warnings(warnings: &[String], expected: &[&[&str]]) {
    let is = |line: &String, parts: &[&str]| parts.iter().all(|part| line.contains(part));
    let right = expected.iter().all(|parts| {
        let lines = warnings.iter().filter(|line| is(line, parts));
        lines.count() == 1
    });
    assert!(
        right && warnings.len() == expected.len(),
        "expected {expected:#?}, found {warnings:#?}"
    );
}

/// Two workers of this process meet, each time with contexts of their own, and exchange what every verb needs.
async fn meet(transports: &str) {
    for _ in 0..TIMES {
        let context = Context::builder().build().expect("a context");
        let (here, there) = (Worker::new(&context), Worker::new(&context));
        let (here, there) = (here.expect("a worker"), there.expect("a worker"));
        let address = there.address().expect("an address");
        let endpoint = here.connect(&address).await.expect("connected");
        assert_eq!(endpoint.transports().join(","), transports);
        let mut memory = context.allocate(300_000).await.expect("memory");
        memory.fill(7);
        let buffer = context.allocate(300_000).await.expect("memory");
        let (sent, received) = tokio::join!(
            endpoint.tag_send(Tag(1), memory),
            there.tag_recv(Tag(1), buffer),
        );
        sent.expect("sent");
        let received = received.expect("received");
        assert!(received.buffer.iter().all(|byte| *byte == 7));
        let exposed = context.allocate(10_000).await.expect("memory");
        let region = context.expose(exposed, Access::READ | Access::WRITE).await;
        let region = region.expect("exposed");
        let remote = endpoint.import(&region.descriptor().expect("a descriptor"));
        let remote = remote.expect("the peer's");
        endpoint
            .put(vec![9; 8000], remote.slice(0..8000))
            .await
            .expect("put");
        let back = endpoint.get(remote.slice(7000..9000), vec![1; 2000]).await;
        assert_eq!(back.expect("got"), [vec![9; 1000], vec![0; 1000]].concat());
        drop((remote, region));
        here.shutdown(LIMIT).await.expect("shut down");
        there.shutdown(LIMIT).await.expect("shut down");
    }
}

/// Memory goes on being allocated, and messages go over TCP.
#[test]
fn without_memfd() {
    if !is_alone() {
        return passes(&mut again(this_test!()));
    }
    seccomp::refuse(&[libc::SYS_memfd_create], libc::EPERM);
    let logs = Logs::of_process();
    on_a_runtime(meet("tcp"));
    expect_warnings(
        &logs.warnings(),
        &[
            &[
                "transport shm is not available",
                "Operation not permitted",
                "remedy=\"allow memfd_create",
            ],
            &[
                "buffers are of memory that no peer maps",
                "remedy=\"allow memfd_create",
            ],
        ],
    );
}

#[test]
fn without_process_vm() {
    if !is_alone() {
        return passes(&mut again(this_test!()));
    }
    let calls = [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev];
    seccomp::refuse(&calls, libc::ENOSYS);
    let logs = Logs::of_process();
    on_a_runtime(meet("shm"));
    let parts = ["transport cma is not available", "remedy=\"allow it by"];
    expect_warnings(&logs.warnings(), &[&parts]);
}

/// What is legal in UCX's variables, and is not here: each is told once, and fails nothing.
#[test]
fn what_has_another_effect_in_variables_of_ucx() {
    const TOLD: [(&str, &str, &str); 9] = [
        (
            "UCX_TLS",
            "self,tcp,shm:aux",
            "no transport here needs another",
        ),
        ("UCX_RNDV_SCHEME", "rkey_ptr", "auto"),
        ("UCX_NET_DEVICES", "lo,mlx5_99:1", "mlx5_99:1"),
        ("UCX_IB_GID_INDEX", "300", "one is chosen"),
        ("UCX_KEEPALIVE_INTERVAL", "999999m", "a year here"),
        ("UCX_RCACHE_MAX_REGIONS", "0", "one is kept"),
        ("UCX_RC_TX_QUEUE_LEN", "4096", "32 to 1024"),
        ("UCX_RC_RETRY_COUNT", "9", "7"),
        ("UCX_RC_TIMEOUT", "0", "a device takes"),
    ];
    if !is_alone() {
        for scheme in ["get_ppln", "put_ppln", "rkey_ptr"] {
            let mut test = again(this_test!());
            test.envs(TOLD.map(|(name, value, _)| (name, value)));
            passes(test.env("UCX_RNDV_SCHEME", scheme));
        }
        return;
    }
    let scheme = std::env::var("UCX_RNDV_SCHEME").expect("set");
    let logs = Logs::of_process();
    for _ in 0..TIMES {
        Context::builder().build().expect("a context");
    }
    let told = TOLD.map(|(name, value, part)| match name {
        "UCX_RNDV_SCHEME" => [format!("{name}={scheme}"), part.to_owned()],
        _ => [format!("{name}={value}"), part.to_owned()],
    });
    let told = told
        .each_ref()
        .map(|parts| parts.each_ref().map(|part| &**part));
    let told: Vec<&[&str]> = told.iter().map(|parts| &parts[..]).collect();
    expect_warnings(&logs.warnings(), &told);
}

/// Turned off by the program: nothing is said of it.
#[test]
fn what_is_turned_off_is_not_missed() {
    let logs = Logs::of_this_thread();
    let context = Context::builder().cma(false).transports("shm,cma,tcp");
    context.expect("known").build().expect("a context");
    logs.expect_no_warning();
}

/// Connects so often, and says what is in use and what was warned of.
async fn connects(mut parent: Parent) {
    let logs = Logs::of_process();
    let address = parent.hear().await;
    for _ in 0..TIMES {
        let context = Context::builder().build().expect("a context");
        let worker = Worker::new(&context).expect("a worker");
        let endpoint = watchdog(LIMIT, worker.connect(&*address)).await;
        let endpoint = endpoint.expect("a connection");
        parent.say(endpoint.transports().join(","));
        endpoint.close().await.expect("closed");
    }
    for warning in logs.warnings() {
        parent.say(warning);
    }
    parent.say("end of warnings");
}

/// This process listens; with the transports of each connection, and what was warned of there.
fn listens(child: &mut Child) -> (Vec<String>, Vec<String>) {
    on_a_runtime(async {
        let context = Context::builder().build().expect("a context");
        let worker = Worker::new(&context).expect("a worker");
        let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
        child.say(listener.local_addr());
        let mut transports = Vec::new();
        for _ in 0..TIMES {
            let incoming = watchdog(LIMIT, listener.accept()).await.expect("a peer");
            let endpoint = watchdog(LIMIT, incoming.accept()).await.expect("accepted");
            transports.push(child.hear().await);
            watchdog(LIMIT, endpoint.closed()).await;
        }
        let mut warnings = Vec::new();
        loop {
            match child.hear().await {
                line if line == "end of warnings" => break,
                line => warnings.push(line),
            }
        }
        worker
            .shutdown(Duration::from_secs(10))
            .await
            .expect("a quiet end");
        (transports, warnings)
    })
}

fn needs_root() {
    assert!(
        geteuid().is_root(),
        "only root can be another user, or make a namespace"
    );
}

#[test]
#[ignore = "needs root: starts a process of another user"]
fn peers_of_another_user() {
    const NOBODY: u32 = 65_534;
    if let Some(parent) = child("nobody") {
        setgid(Gid::from_raw(NOBODY)).expect("root may");
        setuid(Uid::from_raw(NOBODY)).expect("root may");
        return on_a_runtime(connects(parent));
    }
    needs_root();
    let mut child = Child::start(this_test!(), "nobody", &[]);
    let (transports, warnings) = listens(&mut child);
    assert_eq!(transports, ["tcp"; TIMES]);
    let parts = [
        "shared memory cannot be used: falling back to tcp",
        "the peer runs as user 0",
        "remedy=\"let both processes run as one user",
    ];
    expect_warnings(&warnings, &[&parts]);
    child.finish();
}

#[test]
#[ignore = "needs root: makes a namespace"]
fn peers_of_another_process_namespace() {
    if let Some(parent) = child("inner") {
        return on_a_runtime(connects(parent));
    }
    if std::env::var("WHARFTEST_PART").as_deref() == Ok("outer") {
        // SAFETY: the call takes a flag and touches no memory.
        let made = unsafe { libc::unshare(libc::CLONE_NEWPID) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        let mut inner = again(this_test!());
        let inner = inner
            .env_remove("WHARFTEST_ALONE")
            .env("WHARFTEST_PART", "inner");
        assert!(inner.status().expect("a process").success());
        return;
    }
    needs_root();
    let mut child = Child::start(this_test!(), "outer", &[]);
    let (transports, warnings) = listens(&mut child);
    assert_eq!(transports, ["shm"; TIMES]);
    let parts = ["cma cannot be used", "namespace", "remedy=\"allow it by"];
    expect_warnings(&warnings, &[&parts]);
    child.finish();
}
