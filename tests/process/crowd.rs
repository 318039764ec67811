//! Who connects and says nothing, by the hundred: an honest peer gets in beside them.

use std::{
    fs,
    os::linux::net::SocketAddrExt,
    os::unix::net::{SocketAddr as UnixAddress, UnixStream},
    time::Duration,
};

use nix::{
    sys::resource::{Resource, setrlimit},
    unistd::{Gid, Uid, geteuid, setgid, setuid},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use wharf::{Listener, Tag, Worker};

use crate::{
    common::{Path, current_thread, multi_thread, own_sockets},
    support::{Child, LIMIT, Parent, child, this_test, watchdog},
};

const NOBODY: u32 = 65_534;

/// A listener that waits for its peers longer than any of them waits for it.
async fn patient(path: Path) -> (Worker, Listener) {
    let context = path.builder().handshake_timeout(2 * LIMIT).build();
    let worker = Worker::new(&context.expect("a context")).expect("a worker");
    let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
    (worker, listener)
}

/// One message from a worker that connects as anyone does.
async fn honest(path: Path, worker: &Worker, listener: Listener) {
    let here = Worker::new(&path.context()).expect("a worker");
    let (dialled, accepted) = tokio::join!(here.connect(listener.local_addr()), async {
        listener.accept().await.expect("a request").await
    });
    let (dialled, accepted) = (dialled.expect("let in"), accepted.expect("accepted"));
    dialled.tag_send(1, vec![7; 8]).await.expect("sent");
    let received = worker.tag_recv(Tag(1), vec![0; 8]).await;
    assert_eq!(received.expect("a message").from, accepted.id());
}

async fn silent(count: usize, listener: &Listener) -> Vec<TcpStream> {
    let mut silent = Vec::new();
    for _ in 0..count {
        let stream = TcpStream::connect(listener.local_addr()).await;
        silent.push(stream.expect("the system's queue takes it"));
    }
    silent
}

#[test]
fn silent_connections_keep_nobody_out() {
    multi_thread().block_on(watchdog(LIMIT, async {
        let (worker, listener) = patient(Path::Tcp).await;
        let _silent = silent(400, &listener).await;
        honest(Path::Tcp, &worker, listener).await;
    }));
}

async fn serve_with_few_fds(mut parent: Parent) {
    let (worker, listener) = patient(Path::Tcp).await;
    setrlimit(Resource::RLIMIT_NOFILE, 60, 60).expect("one's own");
    parent.say(listener.local_addr());
    let _accepted = listener.accept().await.expect("a request").await;
    let received = worker.tag_recv(Tag(1), vec![0; 8]).await;
    received.expect("a message");
    parent.hear().await;
}

/// Silent connections that hold all file descriptors of a process.
#[test]
fn silent_connections_hold_no_descriptors() {
    if let Some(parent) = child("serves") {
        multi_thread().block_on(serve_with_few_fds(parent));
        return;
    }
    let mut serves = Child::start(this_test!(), "serves", &[]);
    multi_thread().block_on(watchdog(LIMIT, async {
        let address = serves.hear().await;
        let mut silent = Vec::new();
        for _ in 0..300 {
            let stream = TcpStream::connect(&address).await;
            silent.push(stream.expect("the system's queue takes it"));
        }
        let here = Worker::new(&Path::Tcp.context()).expect("a worker");
        let dialled = here.connect(address.as_str()).await.expect("let in");
        dialled.tag_send(1, vec![7; 8]).await.expect("sent");
        serves.say("that is all");
    }));
    serves.finish();
}

/// A byte now and then is no progress.
#[test]
fn dripping_connections_keep_nobody_out() {
    multi_thread().block_on(watchdog(LIMIT, async {
        let (worker, listener) = patient(Path::Tcp).await;
        let dripping = silent(300, &listener).await;
        for mut stream in dripping {
            tokio::spawn(async move {
                // The length of what is never sent whole.
                let mut sent = stream.write_all(&5000_u32.to_le_bytes()).await;
                while sent.is_ok() {
                    // Often enough to look alive.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    sent = stream.write_all(&[0]).await;
                }
            });
        }
        honest(Path::Tcp, &worker, listener).await;
    }));
}

/// Those who are many because they are many: each waits its turn.
#[test]
fn a_crowd_is_let_in() {
    multi_thread().block_on(watchdog(LIMIT, async {
        let (worker, listener) = patient(Path::Tcp).await;
        let here = Worker::new(&Path::Tcp.context()).expect("a worker");
        let address = listener.local_addr();
        let dials = (0..300).map(|_| {
            let here = here.clone();
            tokio::spawn(async move { here.connect(address).await })
        });
        let dials: Vec<_> = dials.collect();
        let mut accepted = Vec::new();
        for _ in 0..dials.len() {
            let incoming = listener.accept().await.expect("a request");
            accepted.push(tokio::spawn(incoming.accept()));
        }
        for (dial, accept) in dials.into_iter().zip(accepted) {
            dial.await.expect("to its end").expect("let in");
            accept.await.expect("to its end").expect("accepted");
        }
        drop(worker);
    }));
}

/// The abstract names under which this process listens.
fn own_names() -> Vec<Vec<u8>> {
    let own = own_sockets();
    let table = fs::read_to_string("/proc/net/unix").expect("a mounted /proc");
    let names = table.lines().filter_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, _, _, _, inode, name] = columns[..] else {
            return None;
        };
        let name = name.strip_prefix("@wharf-").filter(|_| own.contains(inode));
        name.map(|name| format!("wharf-{name}").into_bytes())
    });
    names.collect()
}

async fn serve_alone(mut parent: Parent) {
    let context = Path::Shm.builder().handshake_timeout(2 * LIMIT).build();
    let worker = Worker::new(&context.expect("a context")).expect("a worker");
    let address = worker.address().expect("an address");
    let names = own_names();
    let [name] = &names[..] else {
        panic!("one place on this host: {names:?}");
    };
    parent.say(String::from_utf8(name.clone()).expect("text"));
    parent.say(address);
    let received = worker.tag_recv(Tag(1), vec![0; 8]).await;
    received.expect("a message");
    parent.hear().await;
}

/// Connects as another user, many times, and says how many of the connections were ended.
async fn crowd(mut parent: Parent) {
    setgid(Gid::from_raw(NOBODY)).expect("root may");
    setuid(Uid::from_raw(NOBODY)).expect("root may");
    let name = parent.hear().await;
    let address = UnixAddress::from_abstract_name(name).expect("a name");
    let mut all = Vec::new();
    for _ in 0..300 {
        // It blocks while the system's queue is full.
        all.push(UnixStream::connect_addr(&address).expect("somebody listens"));
    }
    parent.say("connected");
    let mut ended = 0;
    for stream in all {
        stream.set_nonblocking(true).expect("one's own");
        let mut stream = tokio::net::UnixStream::from_std(stream).expect("registered");
        let mut told = Vec::new();
        // A reset is an end as well.
        let _ = watchdog(LIMIT, stream.read_to_end(&mut told)).await;
        assert!(told.is_empty(), "a stranger was told {told:?}");
        ended += 1;
    }
    parent.say(ended);
}

/// Another user, who can never share memory with this one, is sent away at once.
#[test]
#[ignore = "needs root: starts a process of another user"]
fn another_user_takes_no_place() {
    if let Some(parent) = child("serves") {
        multi_thread().block_on(serve_alone(parent));
        return;
    }
    if let Some(parent) = child("nobody") {
        current_thread().block_on(crowd(parent));
        return;
    }
    assert!(
        geteuid().is_root(),
        "only root can start a process of another user"
    );
    let mut serves = Child::start(this_test!(), "serves", &[]);
    let mut nobody = Child::start(this_test!(), "nobody", &[]);
    current_thread().block_on(async {
        nobody.say(serves.hear().await);
        let address: wharf::WorkerAddress = serves.hear().await.parse().expect("an address");
        assert_eq!(nobody.hear().await, "connected");
        let here = Worker::new(&Path::Shm.context()).expect("a worker");
        let dialled = watchdog(LIMIT, here.connect(&address)).await;
        let dialled = dialled.expect("let in beside them");
        dialled.tag_send(1, vec![7; 8]).await.expect("sent");
        assert_eq!(nobody.hear().await, "300");
        serves.say("that is all");
    });
    nobody.finish();
    serves.finish();
}
