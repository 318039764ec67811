//! The same operations by wharf, in processes of their own on the same emulator.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use wharf::{
    Access, Buffer, BufferMut, Context, Endpoint, Mask, MemoryType, Tag, Worker,
    transport::cuda::CudaCopy,
};

use super::programs::Journal;
use crate::support::{Child, LIMIT, Parent, child, emulated, watchdog};

/// As many operations are under way at once as `ucx_perftest` has.
const IN_FLIGHT: usize = 32;
const DEVICE: MemoryType = MemoryType::Cuda(0);
const TAG: Tag = Tag(1);
const DONE: Tag = Tag(2);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Put,
    Get,
    /// Tagged messages to a device, from memory of this type.
    Tag(MemoryType),
}

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
        run(&mut parent, async |parent, _, len, count| {
            let (context, worker) = start("shm,cma");
            let mut listener = worker.listen("127.0.0.1:0").await.expect("a listener");
            parent.say(listener.local_addr());
            let incoming = listener.accept().await.expect("a request");
            let endpoint = incoming.accept().await.expect("a connection");
            receive(&context, &worker, len, count).await;
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
        worker
            .tag_recv(DONE, Mask::ALL, Vec::new())
            .await
            .expect("received");
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
        What::Put | What::Get => &["alone"],
        What::Tag(_) => &["receiver", "sender"],
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
            let what = match what {
                What::Put => "put",
                What::Get => "get",
                What::Tag(MemoryType::Host) => "host",
                What::Tag(_) => "device",
            };
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
        let what = match words[0] {
            "put" => What::Put,
            "get" => What::Get,
            "host" => What::Tag(MemoryType::Host),
            _ => What::Tag(DEVICE),
        };
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

async fn device(context: &Context, len: usize) -> BufferMut {
    context.allocate_on(DEVICE, len).await.expect("memory")
}

/// Which operations one of those under way does.
fn turns(lane: usize, count: usize) -> usize {
    (lane..count).step_by(IN_FLIGHT).count()
}

async fn alone(what: What, len: usize, count: usize) {
    let (context, worker) = start("self");
    let address = worker.address().expect("an address");
    let endpoint = worker.connect(&address).await.expect("connects");
    let memory = device(&context, len).await;
    let region = context
        .expose(memory, Access::READ | Access::WRITE)
        .await
        .expect("exposed");
    let remote = endpoint
        .import(&region.descriptor().expect("a descriptor"))
        .expect("its own");
    let source = Buffer::from(vec![7; len]);
    let lanes = (0..IN_FLIGHT).map(async |lane| {
        let mut room = vec![0; if what == What::Get { len } else { 0 }];
        for _ in 0..turns(lane, count) {
            if what == What::Get {
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

async fn receive(context: &Context, worker: &Worker, len: usize, count: usize) {
    let lanes = (0..IN_FLIGHT).map(async |lane| {
        let mut room = device(context, len).await;
        for _ in 0..turns(lane, count) {
            let got = worker
                .tag_recv(TAG, Mask::ALL, room)
                .await
                .expect("a message");
            assert_eq!(got.len, len);
            room = got.buffer;
        }
    });
    join_all(lanes).await;
}

async fn send(context: &Context, endpoint: &Endpoint, what: What, len: usize, count: usize) {
    let source = match what {
        What::Tag(MemoryType::Host) => Buffer::from(vec![7; len]),
        _ => device(context, len).await.freeze(),
    };
    let lanes = (0..IN_FLIGHT).map(async |lane| {
        let source = source.clone();
        for _ in 0..turns(lane, count) {
            endpoint.tag_send(TAG, source.clone()).await.expect("sent");
        }
    });
    join_all(lanes).await;
}
