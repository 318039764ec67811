//! Transfers between device memories of two processes, as a program makes them: in one copy where the memory can be opened, staged otherwise.

use std::sync::Arc;

use tokio::runtime::Runtime;
use wharf::{
    Access, BufferMut, Context, Descriptor, Endpoint, Mask, MemoryType, Tag, Worker,
    transport::cuda::CudaCopy,
};

use crate::{
    agent::{hex, runtime, unhex},
    api::control,
    support::{Child, LIMIT, Logs, Parent, child, emulated, this_test, watchdog},
};

const DEVICE: MemoryType = MemoryType::Cuda(0);
/// Above the length from which on a route is asked for, and not a round one.
const LENGTH: usize = 5_000_003;

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| ((at * 31 + seed * 17) >> 3) as u8)
        .collect()
}

struct End {
    context: Context,
    worker: Worker,
    endpoint: Endpoint,
}

impl End {
    fn context() -> Context {
        Context::builder()
            .accelerator(Arc::new(CudaCopy::with_library(emulated::cuda())))
            .build()
            .expect("a context")
    }

    async fn connect(address: String) -> Self {
        let context = Self::context();
        let worker = Worker::new(&context).expect("a worker");
        let endpoint = watchdog(LIMIT, worker.connect(address)).await;
        Self {
            context,
            worker,
            endpoint: endpoint.expect("a connection"),
        }
    }

    async fn accept(child: &mut Child) -> Self {
        let context = Self::context();
        let worker = Worker::new(&context).expect("a worker");
        let mut listener = worker.listen("127.0.0.1:0").await.expect("a listener");
        child.say(listener.local_addr());
        let incoming = watchdog(LIMIT, listener.accept()).await.expect("a request");
        let endpoint = watchdog(LIMIT, incoming.accept()).await;
        Self {
            context,
            worker,
            endpoint: endpoint.expect("a connection"),
        }
    }

    async fn memory(&self, bytes: Vec<u8>) -> BufferMut {
        let memory = self.context.allocate_on(DEVICE, bytes.len()).await;
        let memory = memory.expect("memory");
        watchdog(LIMIT, self.worker.copy(bytes, memory))
            .await
            .expect("filled")
    }

    async fn expect(&self, memory: BufferMut, seed: usize) {
        let length = memory.len();
        let copy = self.worker.copy(memory.freeze(), vec![0; length]);
        let bytes = watchdog(LIMIT, copy).await.expect("copied");
        assert!(bytes.as_slice() == pattern(seed, length), "bytes of {seed}");
    }

    /// The peer's half of a transfer of each kind: receives, sends, exposes.
    async fn answers(&self, parent: &mut Parent, rounds: usize) {
        for round in 0..rounds {
            let empty = self.memory(vec![0; LENGTH]).await;
            let got = self.worker.tag_recv(Tag(1), Mask::ALL, empty);
            let got = watchdog(LIMIT, got).await.expect("a message");
            self.expect(got.buffer, round).await;

            let source = self.memory(pattern(round + 1, LENGTH)).await.freeze();
            let sent = self.endpoint.tag_send(Tag(2), source);
            watchdog(LIMIT, sent).await.expect("sent");

            let exposed = self.memory(pattern(round + 2, LENGTH)).await;
            let region = self
                .context
                .expose(exposed, Access::READ | Access::WRITE)
                .await
                .expect("exposed");
            let descriptor = region.descriptor().expect("a descriptor").to_bytes();
            parent.say(hex(&descriptor));
            assert_eq!(parent.hear().await, "put");
            let memory = watchdog(LIMIT, region.unexpose()).await;
            self.expect(memory, round + 3).await;
        }
    }

    async fn asks(&self, child: &mut Child, rounds: usize) {
        for round in 0..rounds {
            let source = self.memory(pattern(round, LENGTH)).await.freeze();
            let sent = self.endpoint.tag_send(Tag(1), source);
            watchdog(LIMIT, sent).await.expect("sent");

            let empty = self.memory(vec![0; LENGTH]).await;
            let got = self.worker.tag_recv(Tag(2), Mask::ALL, empty);
            let got = watchdog(LIMIT, got).await.expect("a message");
            self.expect(got.buffer, round + 1).await;

            let descriptor = unhex(&child.hear().await);
            let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
            let remote = self.endpoint.import(&descriptor).expect("the peer's");
            let empty = self.memory(vec![0; LENGTH]).await;
            let got = watchdog(LIMIT, self.endpoint.get(remote.clone(), empty)).await;
            self.expect(got.expect("got"), round + 2).await;
            // A part of it, at an odd place.
            let empty = self.memory(vec![0; 100_000]).await;
            let part = self.endpoint.get(remote.slice(4_001..104_001), empty);
            let part = watchdog(LIMIT, part).await.expect("got");
            let bytes = self.worker.copy(part.freeze(), vec![0; 100_000]);
            let bytes = watchdog(LIMIT, bytes).await.expect("copied");
            assert!(*bytes.as_slice() == pattern(round + 2, LENGTH)[4_001..104_001]);
            let source = self.memory(pattern(round + 3, LENGTH)).await.freeze();
            let put = watchdog(LIMIT, self.endpoint.put(source, remote)).await;
            put.expect("put");
            child.say("put");
        }
    }
}

fn count(name: &str) -> u64 {
    control(&format!("count {name}")).parse().expect("a number")
}

/// What this process copied from and to the host, in bytes of neither fragment nor message: nothing but what the test itself looks at.
fn second(mut parent: Parent, rounds: usize) {
    let logs = Logs::of_process();
    runtime().block_on(async {
        let end = End::connect(parent.hear().await).await;
        end.answers(&mut parent, rounds).await;
        parent.say(format_args!(
            "{} {}",
            count("cuIpcOpenMemHandle_v2"),
            count("cuIpcGetMemHandle")
        ));
        parent.say(logs.warnings().join("|").replace('\n', " "));
        assert_eq!(parent.hear().await, "end");
    });
}

fn between(test: &str, variables: &[(&str, &str)], rounds: usize) -> (u64, u64, String, Runtime) {
    let runtime = runtime();
    let mut child = Child::start(test, "second", variables);
    let heard = runtime.block_on(async {
        let end = End::accept(&mut child).await;
        assert!(
            end.endpoint.transports().contains(&"shm"),
            "{:?}",
            end.endpoint.transports()
        );
        end.asks(&mut child, rounds).await;
        let counts = child.hear().await;
        let warnings = child.hear().await;
        child.say("end");
        (counts, warnings)
    });
    child.finish();
    let (opens, exports) = heard.0.split_once(' ').expect("two numbers");
    let number = |word: &str| word.parse().expect("a number");
    (number(opens), number(exports), heard.1, runtime)
}

#[test]
fn device_memory_crosses_in_one_copy() {
    if let Some(parent) = child("second") {
        return second(parent, 3);
    }
    let (opens, exports, warnings, _) = between(this_test!(), &[], 3);
    // Each round the child receives once, is sent from, read and put to: it opened this side's memory, and its own was asked for.
    assert!(opens >= 3, "{opens}");
    assert!(exports >= 3, "{exports}");
    assert_eq!(warnings, "");
    assert!(count("cuIpcOpenMemHandle_v2") >= 3);
}

/// The peer's memory cannot be opened by the one: that is said once, and the bytes come all the same.
#[test]
fn what_cannot_be_opened_is_staged_and_said_once() {
    if let Some(parent) = child("second") {
        return second(parent, 2);
    }
    let variables = [("EMULATED_CUDA_FETCH", "3")];
    let (_, exports, warnings, _) = between(this_test!(), &variables, 2);
    assert!(exports >= 2, "{exports}");
    assert!(
        warnings.contains("cannot be opened") && !warnings.contains('|'),
        "{warnings}"
    );
}

/// The sender is killed while this side's engine copies out of its memory: the receive ends, and this side goes on.
#[test]
fn a_sender_that_is_killed_in_the_middle() {
    if let Some(mut parent) = child("second") {
        runtime().block_on(async {
            let end = End::connect(parent.hear().await).await;
            let source = end.memory(pattern(1, LENGTH)).await.freeze();
            let sent = end.endpoint.tag_send(Tag(1), source);
            parent.say("sending");
            let _ = sent.await;
            parent.wait_for_death().await;
        });
        return;
    }
    if let Some(mut parent) = child("first") {
        // In a process of its own, since it holds the device.
        runtime().block_on(async {
            let context = End::context();
            let worker = Worker::new(&context).expect("a worker");
            let mut listener = worker.listen("127.0.0.1:0").await.expect("a listener");
            parent.say(listener.local_addr());
            let incoming = watchdog(LIMIT, listener.accept()).await.expect("a request");
            let endpoint = watchdog(LIMIT, incoming.accept()).await;
            let end = End {
                context,
                worker,
                endpoint: endpoint.expect("a connection"),
            };
            let empty = end.memory(vec![0; LENGTH]).await;
            let receive = end.worker.tag_recv(Tag(1), Mask::ALL, empty);
            let started = async {
                while count("cuIpcOpenMemHandle_v2") == 0 {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
                // The copy is under way, or will be, and gets no further.
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                parent.say("copying");
                assert_eq!(parent.hear().await, "killed");
                control("release");
            };
            control("hold");
            let both = async { tokio::join!(receive, started) };
            let (received, ()) = watchdog(LIMIT, both).await;
            let error = received.map(drop).expect_err("its sender is gone");
            assert!(error.error().is_peer_failure(), "{error:?}");
            // Everything works on.
            let memory = end.memory(pattern(2, LENGTH)).await;
            end.expect(memory, 2).await;
            assert_eq!(control("misused"), "0");
            parent.say("done");
        });
        return;
    }
    let runtime = runtime();
    let mut first = Child::start(this_test!(), "first", &[]);
    let mut second = Child::start(this_test!(), "second", &[]);
    runtime.block_on(async {
        second.say(first.hear().await);
        assert_eq!(second.hear().await, "sending");
        assert_eq!(first.hear().await, "copying");
    });
    second.kill();
    first.say("killed");
    assert_eq!(runtime.block_on(first.hear()), "done");
    first.finish();
}
