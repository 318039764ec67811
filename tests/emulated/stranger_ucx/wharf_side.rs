//! The same operations by wharf, in processes of their own on the same emulator.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use wharf::{
    Access, Buffer, BufferMut, Context, Endpoint, MemoryType, Tag, Worker,
    transport::cuda::CudaCopy,
};

use super::programs::Journal;
use crate::support::{Child, LIMIT, Parent, child, emulated, watchdog};

/// As many operations are under way at once as `ucx_perftest` has.
const IN_FLIGHT: usize = 32;
/// Bytes in the targets of all of them: `ucx_perftest` has one for all, and the cache is to help both alike.
const TARGETS: usize = 2 << 20;
const DEVICE: MemoryType = MemoryType::Cuda(0);
const TAG: Tag = Tag(1);
const DONE: Tag = Tag(2);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// To a device, from memory of this type.
    Put(MemoryType),
    /// From a device, into memory of this type.
    Get(MemoryType),
    /// Tagged messages to a device, from memory of this type.
    Tag(MemoryType),
    /// Tagged messages from a device into ordinary memory.
    TagToHost,
}

/// How a child is told.
const WORDS: &[(&str, What)] = &[
    ("put", What::Put(MemoryType::Host)),
    ("put-pinned", What::Put(MemoryType::HostPinned)),
    ("put-device", What::Put(DEVICE)),
    ("get", What::Get(MemoryType::Host)),
    ("get-pinned", What::Get(MemoryType::HostPinned)),
    ("tag", What::Tag(MemoryType::Host)),
    ("tag-device", What::Tag(DEVICE)),
    ("tag-to-host", What::TagToHost),
];

/// Says to a child what it is to do; `None` when this process is no such child.
pub(crate) fn play() -> Option<()> {
    if let Some(mut parent) = child("alone") {
        run(&mut parent, async |parent, what, len, count| {
            alone(what, len, count).await;
            parent.say("done");
        });
        return Some(());
    }
    if let Some(mut parent) = child("receiver") {
        run(&mut parent, async |parent, what, len, count| {
            let (context, worker) = start("shm,cma");
            let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
            parent.say(listener.local_addr());
            let incoming = listener.accept().await.expect("a request");
            let endpoint = incoming.accept().await.expect("a connection");
            receive(&context, &worker, what, len, count).await;
            endpoint.tag_send(DONE, "").await.expect("sent");
            parent.say("done");
            endpoint.closed().await;
        });
        return Some(());
    }
    let mut parent = child("sender")?;
    run(&mut parent, async |parent, what, len, count| {
        let (context, worker) = start("shm,cma");
        let address = parent.hear().await;
        let endpoint = worker.connect(address.as_str()).await.expect("connects");
        send(&context, &endpoint, what, len, count).await;
        worker.tag_recv(DONE, Vec::new()).await.expect("received");
        endpoint.close().await.expect("closed");
        parent.say("done");
    });
    Some(())
}

/// Runs it in children; what the driver saw of each.
pub(crate) fn measure(
    test: &str,
    folder: &tempfile::TempDir,
    what: What,
    len: usize,
    count: usize,
) -> Vec<Journal> {
    let parts: &[&str] = match what {
        What::Put(_) | What::Get(_) => &["alone"],
        What::Tag(_) | What::TagToHost => &["receiver", "sender"],
    };
    let file = |part: &str| folder.path().join(part);
    let mut children: Vec<Child> = parts
        .iter()
        .map(|part| {
            let journal = file(part);
            let journal = journal.to_str().expect("a path in UTF-8");
            let variables = [
                ("EMULATED_CUDA_JOURNAL", journal),
                ("EMULATED_CUDA_DELAY_US", "0"),
            ];
            let mut child = Child::start(test, part, &variables);
            let what = WORDS.iter().find(|(_, known)| *known == what);
            let (what, _) = what.expect("one of them");
            child.say(format_args!("{what} {len} {count}"));
            child
        })
        .collect();
    runtime().block_on(async {
        if let [receiver, sender] = &mut children[..] {
            sender.say(receiver.hear().await);
        }
        for child in &mut children {
            assert_eq!(child.hear().await, "done");
        }
    });
    children.into_iter().for_each(Child::finish);
    parts
        .iter()
        .map(|part| Journal::read(&file(part)))
        .collect()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Hears what is to be done, and does it under a watchdog.
fn run(parent: &mut Parent, body: impl AsyncFnOnce(&mut Parent, What, usize, usize)) {
    runtime().block_on(watchdog(LIMIT, async move {
        let line = parent.hear().await;
        let words: Vec<&str> = line.split(' ').collect();
        let what = WORDS.iter().find(|(known, _)| *known == words[0]);
        let (_, what) = *what.expect("one of them");
        let number = |word: &str| word.parse().expect("a number");
        body(parent, what, number(words[1]), number(words[2])).await;
    }));
}

fn start(transports: &str) -> (Context, Worker) {
    let builder = Context::builder()
        .transports(transports)
        .expect("transports");
    let accelerator = Arc::new(CudaCopy::with_library(emulated::cuda()));
    let context = builder.accelerator(accelerator).build().expect("a context");
    let worker = Worker::new(&context).expect("a worker");
    (context, worker)
}

/// Memory of any type; the host's is ordinary memory of the program's own.
async fn memory(context: &Context, memory_type: MemoryType, len: usize) -> BufferMut {
    match memory_type {
        MemoryType::Host => vec![7; len].into(),
        _ => context.allocate_on(memory_type, len).await.expect("memory"),
    }
}

/// How many operations of this length are under way.
fn in_flight(len: usize) -> usize {
    (TARGETS / len).clamp(1, IN_FLIGHT)
}

/// Which operations one of those under way does.
fn turns(lane: usize, len: usize, count: usize) -> usize {
    (lane..count).step_by(in_flight(len)).count()
}

async fn alone(what: What, len: usize, count: usize) {
    let (context, worker) = start("self");
    let address = worker.address().expect("an address");
    let endpoint = worker.connect(&address).await.expect("connects");
    let target = memory(&context, DEVICE, len).await;
    let region = context
        .expose(target, Access::READ | Access::WRITE)
        .await
        .expect("exposed");
    let remote = endpoint
        .import(&region.descriptor().expect("a descriptor"))
        .expect("its own");
    let source = match what {
        What::Put(from) => memory(&context, from, len).await.freeze(),
        _ => Buffer::new(),
    };
    let lanes = (0..in_flight(len)).map(async |lane| {
        let mut room = match what {
            What::Get(to) => memory(&context, to, len).await,
            _ => BufferMut::from(Vec::new()),
        };
        for _ in 0..turns(lane, len, count) {
            if matches!(what, What::Get(_)) {
                room = endpoint.get(remote.clone(), room).await.expect("got");
            } else {
                endpoint
                    .put(source.clone(), remote.clone())
                    .await
                    .expect("put");
            }
        }
    });
    join_all(lanes).await;
    endpoint.close().await.expect("closed");
    worker
        .shutdown(Duration::from_secs(5))
        .await
        .expect("ended");
}

async fn receive(context: &Context, worker: &Worker, what: What, len: usize, count: usize) {
    let to = match what {
        What::TagToHost => MemoryType::Host,
        _ => DEVICE,
    };
    let lanes = (0..in_flight(len)).map(async |lane| {
        let mut room = memory(context, to, len).await;
        for _ in 0..turns(lane, len, count) {
            let got = worker.tag_recv(TAG, room).await.expect("a message");
            assert_eq!(got.len, len);
            room = got.buffer;
        }
    });
    join_all(lanes).await;
}

async fn send(context: &Context, endpoint: &Endpoint, what: What, len: usize, count: usize) {
    let from = match what {
        What::Tag(from) => from,
        _ => DEVICE,
    };
    let source = memory(context, from, len).await.freeze();
    let lanes = (0..in_flight(len)).map(async |lane| {
        let source = source.clone();
        for _ in 0..turns(lane, len, count) {
            endpoint.tag_send(TAG, source.clone()).await.expect("sent");
        }
    });
    join_all(lanes).await;
}
