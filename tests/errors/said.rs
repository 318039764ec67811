//! What an error says: what was tried, with whom, and why it failed.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use nix::{
    sys::resource::{Resource, getrlimit, setrlimit},
    unistd::{Gid, Uid, geteuid, setgid, setuid},
};
use wharf::{Context, ErrorKind, Worker};

use crate::{
    expect,
    support::{Child, LIMIT, child, on_a_runtime, this_test, watchdog},
    worker,
};

#[test]
fn nobody_listens_there() {
    on_a_runtime(async {
        let worker = worker("tcp");
        let error = worker.connect("127.0.0.1:1").await.expect_err("nobody");
        let text = "connect to 127.0.0.1:1: Connection refused (os error 111)";
        expect(&error, ErrorKind::ConnectionRefused, text);
        // The system's own error is at hand.
        let system = error.get_ref().and_then(|error| error.downcast_ref());
        let system: &std::io::Error = system.expect("the system's");
        assert_eq!(system.raw_os_error(), Some(111));
    });
}

#[test]
fn the_port_is_in_use() {
    on_a_runtime(async {
        let worker = worker("tcp");
        let first = worker.listen("127.0.0.1:0").await.expect("listens");
        let address = first.local_addr();
        let error = worker.listen(address).await.map(drop).expect_err("in use");
        let text = format!("listen: binding {address}: Address already in use (os error 98)");
        expect(&error, ErrorKind::AddrInUse, &text);
        let system = std::io::Error::from(error);
        assert_eq!(system.kind(), std::io::ErrorKind::AddrInUse);
    });
}

#[test]
fn the_name_does_not_resolve() {
    on_a_runtime(async {
        let worker = worker("tcp");
        let error = worker.connect("nobody.invalid:80").await;
        let text =
            "connect: looking up \"nobody.invalid:80\": failed to lookup address information: *";
        expect(
            &error.expect_err("no such name"),
            ErrorKind::Unreachable,
            text,
        );
        let error = worker.connect("nobody").await.expect_err("no port");
        let text = "connect: \"nobody\" is not host:port: invalid socket address";
        expect(&error, ErrorKind::InvalidArgument, text);
    });
}

/// Somebody at a port who answers with this, or nothing, and hangs up when the other has.
fn stranger(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut hello = [0; 16];
        stream.read_exact(&mut hello).expect("a hello");
        stream.write_all(answer).expect("written");
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    address
}

#[test]
fn what_answers_is_no_wharf() {
    on_a_runtime(async {
        let worker = worker("tcp");
        for answer in [
            &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..],
            b"SSH-2.0-OpenSSH_9.9\r\n",
            b"\x03\0\0\0abc",
        ] {
            let address = stranger(answer);
            let error = worker.connect(address).await.expect_err("no wharf");
            let text = format!("connect to {address}: what answers there is no wharf listener: *");
            expect(&error, ErrorKind::Protocol, &text);
        }
    });
}

#[test]
fn nobody_answers_or_accepts_in_time() {
    on_a_runtime(async {
        let worker = worker("tcp");
        let silent = stranger(b"");
        let listener = worker.listen("127.0.0.1:0").await.expect("listens");
        let address = listener.local_addr();
        let (error, other) = tokio::join!(worker.connect(silent), worker.connect(address));
        let text = format!("connect to {silent}: nobody answered within 2s");
        expect(
            &error.expect_err("nobody"),
            ErrorKind::DeadlineExceeded,
            &text,
        );
        let text = format!(
            "connect to {address}: a wharf listener is there, and nobody accepted the connection within 2s"
        );
        expect(
            &other.expect_err("nobody"),
            ErrorKind::DeadlineExceeded,
            &text,
        );
    });
}

#[test]
fn no_transport_in_common() {
    on_a_runtime(async {
        let (here, there) = (worker("self,shm"), worker("self,tcp"));
        let listener = there.listen("127.0.0.1:0").await.expect("listens");
        let address = listener.local_addr();
        let error = here.connect(address).await.expect_err("none in common");
        let text = format!(
            "connect to {address}: no transport in common: the listener has self, tcp; who dials has self, shm, cma; self: it leads to a worker itself*"
        );
        expect(&error, ErrorKind::Unreachable, &text);
        // What both have, and why it cannot be.
        let tls = worker("shm");
        let listener = tls.listen("127.0.0.1:0").await.expect("listens");
        let address = tls.address().expect("an address");
        let error = there.connect(&address).await.expect_err("none in common");
        let text = format!(
            "connect to worker {}: no path: that worker, on this host, has shm* and no address in the network; this one has self, tcp",
            tls.id()
        );
        expect(&error, ErrorKind::Unreachable, &text);
        drop(listener);
    });
}

/// Over its Unix socket, which errors name where no address is.
#[test]
fn a_worker_that_is_gone() {
    on_a_runtime(async {
        let gone = std::thread::spawn(|| {
            on_a_runtime(async {
                let there = worker("shm");
                (there.address().expect("an address"), there.id())
            })
        });
        let (address, id) = gone.join().expect("no panic");
        let here = worker("shm");
        let error = here.connect(&address).await.expect_err("it is gone");
        let text = format!(
            "connect to worker {id}: the worker's Unix socket (another network namespace, or the peer is gone): Connection refused (os error 111)"
        );
        expect(&error, ErrorKind::ConnectionRefused, &text);
    });
}

/// Both have it, and it is for processes of one user.
#[test]
#[ignore = "needs root: starts a process of another user"]
fn the_one_transport_in_common_is_refused() {
    const NOBODY: u32 = 65_534;
    if let Some(mut parent) = child("nobody") {
        setgid(Gid::from_raw(NOBODY)).expect("root may");
        setuid(Uid::from_raw(NOBODY)).expect("root may");
        return on_a_runtime(async {
            let address = parent.hear().await;
            let error = worker("shm").connect(&*address).await;
            let text = format!(
                "connect to {address}: the peer runs as user 0: shared memory is for processes of one user over shm"
            );
            expect(
                &error.expect_err("another user"),
                ErrorKind::PermissionDenied,
                &text,
            );
        });
    }
    assert!(
        geteuid().is_root(),
        "only root can start a process of another user"
    );
    let mut child = Child::start(this_test!(), "nobody", &[]);
    on_a_runtime(async {
        let worker = worker("shm");
        let listener = worker.listen("127.0.0.1:0").await.expect("listens");
        child.say(listener.local_addr());
        tokio::select! {
            peer = listener.accept() => panic!("{peer:?}"),
            ended = tokio::task::spawn_blocking(move || child.finish()) => ended.expect("passed"),
        }
    });
}

/// The other end has no descriptors left: it says so, with the system's number.
#[test]
fn the_other_end_has_too_many_files_open() {
    if let Some(parent) = child("full") {
        on_a_runtime(async {
            let context = Context::builder().build().expect("a context");
            let worker = Worker::new(&context).expect("a worker");
            let listener = worker.listen("127.0.0.1:0").await.expect("listens");
            let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("one's own");
            // None is left but for what is open.
            let fds = std::fs::read_dir("/proc/self/fd").expect("mounted").count() as u64;
            let mut kept = Vec::new();
            setrlimit(Resource::RLIMIT_NOFILE, fds + 8, most).expect("one's own");
            while let Ok(file) = std::fs::File::open("/dev/null") {
                kept.push(file);
            }
            parent.say(listener.local_addr());
            let mut parent = parent;
            parent.wait_for_death().await;
        });
        return;
    }
    let mut full = Child::start(this_test!(), "full", &[]);
    on_a_runtime(async {
        let builder = Context::builder().connect_timeout(Duration::from_secs(20));
        let worker = Worker::new(&builder.build().expect("a context")).expect("a worker");
        let address = full.hear().await;
        let error = watchdog(LIMIT, worker.connect(&*address)).await;
        let text = format!("connect to {address}: *Too many open files (os error 24)*");
        expect(&error.expect_err("no place"), ErrorKind::Exhausted, &text);
    });
    full.kill();
}
