//! How connections end: by whom, in order or not, and with which words.

use std::time::Duration;

use wharf::{Access, Context, Descriptor, Endpoint, Error, ErrorKind, Tag, Worker};

use crate::{
    expect,
    support::{Child, LIMIT, child, on_a_runtime, this_test, watchdog},
};

/// Of memory that is read all the time: long enough to be in the middle of it.
const LONG: usize = 8 << 20;

/// What the other process does, told in one word.
async fn ends(mut parent: crate::support::Parent) {
    let context = Context::builder().build().expect("a context");
    let worker = Worker::new(&context).expect("a worker");
    let address = parent.hear().await;
    let endpoint = watchdog(LIMIT, worker.connect(address)).await;
    let endpoint = endpoint.expect("connected");
    let region = context.expose(vec![7; LONG], Access::READ).await;
    let region = region.expect("exposed");
    let descriptor = region.descriptor().expect("a descriptor").to_bytes();
    let told = endpoint.tag_send(Tag(3), descriptor).await;
    told.expect("told");
    match &*parent.hear().await {
        "close" => endpoint.close().await.expect("closed"),
        "close with" => {
            let reason = "done for today\n";
            endpoint.close_with(7, reason).await.expect("closed");
        }
        "close with much" => {
            let reason = "ä".repeat(500);
            endpoint
                .close_with(u32::MAX, &reason)
                .await
                .expect("closed");
        }
        "drop" => drop(endpoint),
        "shut down" => worker.shutdown(LIMIT).await.expect("shut down"),
        "drop the worker" => drop((worker, endpoint)),
        "abort" => endpoint.abort(),
        "exit" => std::process::exit(0),
        _ => {}
    }
    parent.wait_for_death().await;
}

/// What this process hears of the end: the same for who waited for it, for what was under way, and for what comes after.
async fn heard(end: &str, child: &mut Child, worker: &Worker) -> Error {
    let listener = worker.listen("127.0.0.1:0").await.expect("listens");
    child.say(listener.local_addr());
    let incoming = watchdog(LIMIT, listener.accept()).await.expect("a peer");
    let endpoint: Endpoint = incoming.accept().await.expect("accepted");
    // Nobody matches it.
    let send = endpoint.tag_send(Tag(1), vec![0; 3 << 20]).post();
    let send = send.expect("room");
    let told = watchdog(LIMIT, worker.tag_recv(Tag(3), vec![0; 4096])).await;
    let told = told.expect("told");
    let descriptor = Descriptor::from_bytes(told.bytes()).expect("a descriptor");
    let remote = endpoint.import(&descriptor).expect("its memory");
    let reads = tokio::spawn({
        let endpoint = endpoint.clone();
        async move {
            let mut buffer = vec![0; LONG];
            loop {
                match endpoint.get(&remote, buffer).await {
                    Ok(full) => buffer = full,
                    Err(error) => return Error::from(error),
                }
            }
        }
    });
    match end {
        "kill" => child.kill(),
        end => child.say(end),
    }
    let closed = watchdog(LIMIT, endpoint.closed()).await;
    let under_way = watchdog(LIMIT, send).await.expect_err("ended");
    let late = endpoint.tag_send(Tag(1), "late").await.expect_err("ended");
    let read = watchdog(LIMIT, reads).await.expect("no panic");
    assert_eq!(read.kind(), closed.kind(), "{read}");
    for error in [&under_way, &late] {
        assert_eq!(error.kind(), closed.kind(), "{error}");
        assert_eq!(error.to_string(), format!("tag send: {closed}"));
        assert_eq!(error.close_reason(), closed.close_reason());
    }
    // A worker goes on without it.
    let posted = worker.tag_recv(Tag(2), vec![0; 8]).post();
    assert_eq!(
        posted.cancel().await.expect_err("cancelled").kind(),
        ErrorKind::Canceled
    );
    closed
}

fn every_end(test: &str, transports: &str) {
    let long = "ä".repeat(127);
    let cases = [
        (
            "close",
            ErrorKind::ClosedByPeer,
            "the peer closed the connection (peer *",
            None,
        ),
        (
            "close with",
            ErrorKind::ClosedByPeer,
            "the peer closed the connection: code 7: done for today\\n (peer *",
            Some((7, "done for today\n")),
        ),
        (
            "close with much",
            ErrorKind::ClosedByPeer,
            "the peer closed the connection: code 4294967295: ääää*",
            Some((u32::MAX, &*long)),
        ),
        (
            "drop",
            ErrorKind::ClosedByPeer,
            "the peer dropped the connection's last handle (peer *",
            None,
        ),
        (
            "shut down",
            ErrorKind::ClosedByPeer,
            "the peer's worker was shut down (peer *",
            None,
        ),
        (
            "drop the worker",
            ErrorKind::ClosedByPeer,
            "the peer dropped the connection's last handle (peer *",
            None,
        ),
        (
            "abort",
            ErrorKind::AbortedByPeer,
            "the peer aborted the connection (peer *",
            None,
        ),
        (
            "kill",
            ErrorKind::PeerDied,
            "the peer's process has ended (peer *",
            None,
        ),
        // Without a word of wharf's.
        (
            "exit",
            ErrorKind::PeerDied,
            "the peer's process has ended (peer *",
            None,
        ),
    ];
    for (end, kind, text, reason) in cases {
        let mut child = Child::start(test, "ends", &[("WHARF_TLS", transports)]);
        on_a_runtime(async {
            let builder = Context::builder().transports(transports).expect("known");
            let context = builder.build().expect("a context");
            let worker = Worker::new(&context).expect("a worker");
            let error = heard(end, &mut child, &worker).await;
            expect(&error, kind, &format!("{text}*"));
            assert!(
                error.to_string().ends_with(&format!("over {transports}")),
                "{error}"
            );
            let told = error
                .close_reason()
                .map(|reason| (reason.code(), reason.text()));
            assert_eq!(told, reason, "{end}");
            assert_eq!(
                error.is_peer_failure(),
                kind != ErrorKind::ClosedByPeer,
                "{end}"
            );
            let ended = worker.shutdown(Duration::from_secs(10)).await;
            ended.expect("a quiet end");
        });
    }
}

macro_rules! over {
    ($($test:ident: $transports:literal,)*) => {$(
        #[test]
        fn $test() {
            if let Some(parent) = child("ends") {
                return on_a_runtime(ends(parent));
            }
            every_end(this_test!(), $transports);
        }
    )*};
}

over! {
    over_shared_memory: "shm",
    over_tcp: "tcp",
}
