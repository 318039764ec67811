//! Two processes on emulated devices of one network: all verbs, and a peer that is killed.

use wharf::{Access, Context, Descriptor, ErrorKind, MemoryType, Operation, Tag, Worker};

use crate::{
    bench::context,
    support::{Child, child, emulated, on_a_runtime as run, pattern, this_test},
};

const DESCRIPTOR: Tag = Tag(1);
const THERE: Tag = Tag(2);
const BACK: Tag = Tag(3);
const NEVER: Tag = Tag(4);

/// Of each of the ways in which messages go.
const LENGTHS: [usize; 5] = [0, 1, 4000, 100_000, 3_000_001];
const SHARED: usize = 1 << 20;
const HOST: MemoryType = MemoryType::Host;

fn bytes(length: usize, seed: usize) -> Vec<u8> {
    pattern(seed as u64, length)
}

fn worker() -> (Context, Worker) {
    let context = context("rc_verbs").expect("a context");
    let worker = Worker::new(&context).expect("a worker");
    (context, worker)
}

/// The one that is killed: gives messages back, and has memory that the other reads and writes.
async fn far(mut parent: crate::support::Parent) {
    let (context, worker) = worker();
    let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
    parent.say(listener.local_addr());
    let endpoint = listener.accept().await.expect("asked");
    let endpoint = endpoint.accept().await.expect("a peer");
    for length in LENGTHS {
        let received = worker.tag_recv(THERE, vec![0; length]).await;
        let received = received.expect("a message");
        let sent = endpoint.tag_send(BACK, received.buffer).await;
        sent.expect("taken");
    }
    let memory = context.expose(bytes(SHARED, 1), Access::READ | Access::WRITE);
    let region = memory.await.expect("exposed");
    let descriptor = region.descriptor().expect("its range").to_bytes();
    let sent = endpoint.tag_send(DESCRIPTOR, descriptor).await;
    sent.expect("taken");
    parent.wait_for_death().await;
}

async fn near(mut parent: crate::support::Parent) {
    let (_context, worker) = worker();
    let address = parent.hear().await;
    let endpoint = worker.connect(address.as_str()).await.expect("connects");
    for length in LENGTHS {
        let sent = bytes(length, 3);
        let send = endpoint.tag_send(THERE, sent.clone());
        let receive = worker.tag_recv(BACK, vec![0; length]);
        let (send, received) = tokio::join!(send, receive);
        send.expect("taken");
        assert!(received.expect("comes back").buffer == sent, "{length}");
    }
    let descriptor = worker.tag_recv(DESCRIPTOR, vec![0; 4096]).await;
    let descriptor = descriptor.expect("a message");
    let descriptor = &descriptor.buffer[..descriptor.len];
    let descriptor = Descriptor::from_bytes(descriptor).expect("a descriptor");
    let remote = endpoint.import(&descriptor).expect("its memory");
    // Nothing but the network devices moves these.
    for operation in [Operation::Put, Operation::Get] {
        let plan = endpoint.explain(operation, HOST, HOST, SHARED);
        assert!(plan.to_string().contains("rc_verbs"), "{plan}");
    }
    let got = endpoint.get(remote.clone(), vec![0; SHARED]).await;
    assert!(got.expect("read") == bytes(SHARED, 1), "altered");
    let put = endpoint.put(bytes(SHARED, 2), remote.clone()).await;
    put.expect("written");
    let got = endpoint.get(remote.clone(), vec![0; SHARED]).await;
    assert!(got.expect("read") == bytes(SHARED, 2), "altered");

    // What waits for the peer, and what moves bytes when it dies.
    let unheard = endpoint.tag_send(NEVER, bytes(8, 5)).sync();
    let traffic = async {
        loop {
            if let Err(error) = endpoint.put(bytes(SHARED, 4), remote.clone()).await {
                return error;
            }
        }
    };
    parent.say("kill");
    let (unheard, put, why) = tokio::join!(unheard, traffic, endpoint.closed());
    let unheard = unheard.expect_err("nobody receives it");
    for error in [unheard, put, why] {
        assert_eq!(error.kind(), ErrorKind::PeerDied, "{error}");
        let text = error.to_string();
        assert!(text.contains("the peer's process has ended"), "{text}");
        assert!(text.ends_with("over rc_verbs"), "{text}");
    }
}

#[test]
fn a_killed_peer_ends_all_that_waits_for_it() {
    if let Some(parent) = child("far") {
        return run(far(parent));
    }
    if let Some(parent) = child("near") {
        return run(near(parent));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let library = emulated::verbs();
    let variables = [
        ("WHARF_LIBIBVERBS", library.to_str().expect("UTF-8")),
        ("WHARF_LIBRDMACM", library.to_str().expect("UTF-8")),
        (
            "EMULATED_VERBS_FOLDER",
            folder.path().to_str().expect("UTF-8"),
        ),
    ];
    let start = |part| {
        let command = &["env", "-u", "RDMA_VM"];
        Child::start_by(command, this_test!(), part, &variables)
    };
    let (mut far, mut near) = (start("far"), start("near"));
    run(async {
        near.say(far.hear().await);
        assert_eq!(near.hear().await, "kill");
    });
    far.kill();
    near.finish();
}
