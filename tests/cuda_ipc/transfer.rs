//! Transfers between device memories of two processes, as a program makes them: in one copy where the memory can be opened, staged otherwise.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Runtime, time::timeout};
use wharf::{
    Access, BufferMut, Context, ContextBuilder, Descriptor, Endpoint, MemoryType, Tag, Worker,
    transport::cuda::CudaCopy,
};

use crate::{
    agent::{hex, runtime, unhex},
    api::control,
    support::{Child, LIMIT, Logs, Parent, child, emulated, pattern, this_test, until, watchdog},
};

const DEVICE: MemoryType = MemoryType::Cuda(0);
/// Above the length from which on a route is asked for, and not a round one.
const LENGTH: usize = 5_000_003;

struct End {
    context: Context,
    worker: Worker,
    endpoint: Endpoint,
}

impl End {
    fn builder() -> ContextBuilder {
        let accelerator = CudaCopy::with_library(emulated::cuda());
        Context::builder().accelerator(Arc::new(accelerator))
    }

    fn context() -> Context {
        Self::builder().build().expect("a context")
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
        Self::listen(|line| child.say(line)).await
    }

    /// Says where it listens, and takes the first who comes.
    async fn listen(say: impl FnOnce(String)) -> Self {
        Self::listen_with(Self::builder(), say).await
    }

    async fn listen_with(builder: ContextBuilder, say: impl FnOnce(String)) -> Self {
        let context = builder.build().expect("a context");
        let worker = Worker::new(&context).expect("a worker");
        let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
        say(listener.local_addr().to_string());
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

    async fn expect(&self, memory: BufferMut, seed: u64) {
        let length = memory.len();
        let copy = self.worker.copy(memory.freeze(), vec![0; length]);
        let bytes = watchdog(LIMIT, copy).await.expect("copied");
        assert!(bytes.as_slice() == pattern(seed, length), "bytes of {seed}");
    }

    /// The peer's half of a transfer of each kind: receives, sends, exposes.
    async fn answers(&self, parent: &mut Parent, rounds: u64) {
        for round in 0..rounds {
            let empty = self.memory(vec![0; LENGTH]).await;
            let got = self.worker.tag_recv(Tag(1), empty);
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

    async fn asks(&self, child: &mut Child, rounds: u64) {
        for round in 0..rounds {
            let source = self.memory(pattern(round, LENGTH)).await.freeze();
            let sent = self.endpoint.tag_send(Tag(1), source);
            watchdog(LIMIT, sent).await.expect("sent");

            let empty = self.memory(vec![0; LENGTH]).await;
            let got = self.worker.tag_recv(Tag(2), empty);
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

/// Copies of memory that the driver was asked for.
fn copies() -> u64 {
    let counts = control("counts");
    let copies = counts.lines().filter(|line| line.starts_with("cuMemcpy"));
    let numbers = copies.filter_map(|line| line.rsplit([' ', '=']).next()?.parse::<u64>().ok());
    numbers.sum()
}

fn count(name: &str) -> u64 {
    control(&format!("count {name}")).parse().expect("a number")
}

/// What this process copied from and to the host, in bytes of neither fragment nor message: nothing but what the test itself looks at.
fn second(mut parent: Parent, rounds: u64) {
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

fn between(test: &str, variables: &[(&str, &str)], rounds: u64) -> (u64, u64, String, Runtime) {
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
            let end = End::listen(|line| parent.say(line)).await;
            let empty = end.memory(vec![0; LENGTH]).await;
            let receive = end.worker.tag_recv(Tag(1), empty);
            let before = copies();
            let started = async {
                // It is asked for, and gets no further.
                until("a copy", || copies() > before).await;
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

/// Drops an operation, which cannot end yet, as soon as the other future has.
async fn dropped_by<T>(operation: impl Future<Output = T>, other: impl Future<Output = ()>) {
    watchdog(LIMIT, async {
        tokio::select! {
            _ = operation => panic!("it is held"),
            () = other => {}
        }
    })
    .await;
}

/// A get and a receive are given up while the peer's memory is being opened: the loan goes back, and the next ones work.
#[test]
fn what_is_dropped_while_it_opens_gives_the_loan_back() {
    if let Some(mut parent) = child("second") {
        return runtime().block_on(async {
            let end = End::connect(parent.hear().await).await;
            let descriptor = unhex(&parent.hear().await);
            let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
            let remote = end.endpoint.import(&descriptor).expect("the peer's");
            let held = async |number: &str| {
                until("the opening", || control("openings") == number).await;
            };
            let empty = end.memory(vec![0; LENGTH]).await;
            let get = end.endpoint.get(remote.clone(), empty);
            dropped_by(get, held("1")).await;
            // Another allocation, which is opened anew.
            let empty = end.memory(vec![0; LENGTH]).await;
            let receive = end.worker.tag_recv(Tag(1), empty);
            parent.say("receiving");
            dropped_by(receive, held("2")).await;
            control("set open_held 0");
            let empty = end.memory(vec![0; LENGTH]).await;
            let got = watchdog(LIMIT, end.endpoint.get(remote, empty)).await;
            end.expect(got.expect("got"), 1).await;
            parent.say("done");
            assert_eq!(parent.hear().await, "end");
        });
    }
    let variables = [("EMULATED_CUDA_OPEN_HELD", "1")];
    let mut child = Child::start(this_test!(), "second", &variables);
    runtime().block_on(async {
        let end = End::accept(&mut child).await;
        let memory = end.memory(pattern(1, LENGTH)).await;
        let source = end.memory(pattern(2, LENGTH)).await.freeze();
        let region = end.context.expose(memory, Access::READ).await;
        let region = region.expect("exposed");
        child.say(hex(&region.descriptor().expect("a descriptor").to_bytes()));
        assert_eq!(child.hear().await, "receiving");
        watchdog(LIMIT, end.endpoint.tag_send(Tag(1), source))
            .await
            .expect("fetched all the same");
        assert_eq!(child.hear().await, "done");
        let memory = watchdog(LIMIT, region.unexpose()).await;
        end.expect(memory, 1).await;
        assert_eq!(end.worker.in_flight(), 0);
        child.say("end");
    });
    child.finish();
}

/// Memory that is taken back while a peer copies out of it is given back when the peer is done.
#[test]
fn exposed_memory_comes_back_when_the_peer_is_done() {
    if let Some(mut parent) = child("second") {
        return runtime().block_on(async {
            let end = End::connect(parent.hear().await).await;
            let descriptor = unhex(&parent.hear().await);
            let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
            let remote = end.endpoint.import(&descriptor).expect("the peer's");
            let empty = end.memory(vec![0; LENGTH]).await;
            let before = copies();
            control("hold");
            let get = end.endpoint.get(remote.clone(), empty);
            let released = async {
                until("a copy", || copies() > before).await;
                parent.say("copying");
                assert_eq!(parent.hear().await, "waiting");
                control("release");
            };
            let both = async { tokio::join!(get, released) };
            let (got, ()) = watchdog(LIMIT, both).await;
            end.expect(got.expect("got"), 1).await;
            let empty = end.memory(vec![0; LENGTH]).await;
            let late = watchdog(LIMIT, end.endpoint.get(remote, empty)).await;
            let error = late.map(drop).expect_err("it is exposed no longer");
            assert_eq!(error.kind(), wharf::ErrorKind::StaleKey, "{error:?}");
            parent.say("done");
        });
    }
    let mut child = Child::start(this_test!(), "second", &[]);
    runtime().block_on(async {
        let end = End::accept(&mut child).await;
        let memory = end.memory(pattern(1, LENGTH)).await;
        let region = end.context.expose(memory, Access::READ).await;
        let region = region.expect("exposed");
        child.say(hex(&region.descriptor().expect("a descriptor").to_bytes()));
        assert_eq!(child.hear().await, "copying");
        let mut back = std::pin::pin!(region.unexpose());
        let early = timeout(Duration::from_millis(100), &mut back).await;
        assert!(early.is_err(), "the peer reads it still");
        child.say("waiting");
        let memory = watchdog(LIMIT, back).await;
        end.expect(memory, 1).await;
        assert_eq!(child.hear().await, "done");
    });
    child.finish();
}

/// The owner closes while the peer copies: it waits for the peer.
#[test]
fn closing_waits_for_what_is_lent() {
    if let Some(mut parent) = child("second") {
        return runtime().block_on(async {
            let end = End::connect(parent.hear().await).await;
            let empty = end.memory(vec![0; LENGTH]).await;
            let before = copies();
            control("hold");
            let receive = end.worker.tag_recv(Tag(1), empty);
            let released = async {
                until("a copy", || copies() > before).await;
                parent.say("copying");
                assert_eq!(parent.hear().await, "closing");
                control("release");
            };
            let both = async { tokio::join!(receive, released) };
            let (got, ()) = watchdog(LIMIT, both).await;
            end.expect(got.expect("a message").buffer, 1).await;
            parent.say("done");
        });
    }
    let mut child = Child::start(this_test!(), "second", &[]);
    runtime().block_on(async {
        let end = End::accept(&mut child).await;
        let source = end.memory(pattern(1, LENGTH)).await.freeze();
        let sent = end.endpoint.tag_send(Tag(1), source);
        let closed = async {
            assert_eq!(child.hear().await, "copying");
            let mut close = Box::pin(async { end.endpoint.clone().close().await });
            let early = timeout(Duration::from_millis(100), &mut close).await;
            assert!(early.is_err(), "the peer reads it still");
            child.say("closing");
            close.await
        };
        let both = async { tokio::join!(sent, closed) };
        let (sent, closed) = watchdog(LIMIT, both).await;
        sent.expect("sent");
        closed.expect("closed");
        assert_eq!(child.hear().await, "done");
    });
    child.finish();
}

/// From the second transfer on the owner asks its driver once, and the other side for nothing but the copy.
#[test]
fn a_known_way_costs_one_call() {
    const ROUNDS: usize = 10;
    if let Some(mut parent) = child("second") {
        return runtime().block_on(async {
            let end = End::connect(parent.hear().await).await;
            let memory = end.memory(pattern(1, LENGTH)).await;
            let region = end.context.expose(memory, Access::READ).await;
            let region = region.expect("exposed");
            parent.say(hex(&region.descriptor().expect("a descriptor").to_bytes()));
            assert_eq!(parent.hear().await, "known");
            control("forget");
            parent.say("go on");
            assert_eq!(parent.hear().await, "done");
            parent.say(control("counts").replace('\n', ","));
            assert_eq!(parent.hear().await, "end");
        });
    }
    if let Some(mut parent) = child("first") {
        return runtime().block_on(async {
            let end = End::listen(|line| parent.say(line)).await;
            let descriptor = unhex(&parent.hear().await);
            let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
            let remote = end.endpoint.import(&descriptor).expect("the peer's");
            let mut memory = end.memory(vec![0; LENGTH]).await;
            for round in 0..=ROUNDS {
                let get = end.endpoint.get(remote.clone(), memory);
                memory = watchdog(LIMIT, get).await.expect("got");
                if round == 0 {
                    parent.say("known");
                    assert_eq!(parent.hear().await, "go on");
                    control("forget");
                }
            }
            parent.say(control("counts").replace('\n', ","));
            end.expect(memory, 1).await;
            assert_eq!(parent.hear().await, "end");
        });
    }
    let mut first = Child::start(this_test!(), "first", &[]);
    let mut second = Child::start(this_test!(), "second", &[]);
    runtime().block_on(async {
        second.say(first.hear().await);
        first.say(second.hear().await);
        second.say(first.hear().await);
        first.say(second.hear().await);
        let copier = first.hear().await;
        second.say("done");
        let owner = second.hear().await;
        assert_eq!(
            owner.trim_end_matches(','),
            format!("cuPointerGetAttributes {ROUNDS}")
        );
        // Device to device, and nothing by the host.
        let copies = format!("cuMemcpyDtoDAsync_v2 {ROUNDS},");
        assert!(copier.contains(&copies), "{copier}");
        for other in [
            "DtoH",
            "HtoD",
            "cuIpc",
            "cuPointer",
            "cuDevice",
            "cuMemAlloc",
        ] {
            assert!(!copier.contains(other), "{copier}");
        }
        first.say("end");
        second.say("end");
    });
    first.finish();
    second.finish();
}

/// Where to stop in host memory is forbidden, what can be opened is copied, of any length, and what cannot is refused.
#[test]
fn without_staging() {
    if let Some(mut parent) = child("second") {
        return runtime().block_on(async {
            let end = End::connect(parent.hear().await).await;
            for length in [1, 1000, LENGTH] {
                let memory = end.memory(pattern(1, length)).await;
                let region = end.context.expose(memory, Access::READ).await;
                let region = region.expect("exposed");
                parent.say(hex(&region.descriptor().expect("a descriptor").to_bytes()));
                assert_eq!(parent.hear().await, "got");
            }
            let memory = end.memory(pattern(2, LENGTH)).await.freeze();
            let sent = watchdog(LIMIT, end.endpoint.tag_send(Tag(1), memory)).await;
            let error = sent.map(drop).expect_err("refused by the receiver");
            assert_eq!(error.kind(), wharf::ErrorKind::Unsupported, "{error:?}");
            parent.say("done");
            assert_eq!(parent.hear().await, "end");
        });
    }
    if let Some(mut parent) = child("first") {
        return runtime().block_on(async {
            let context = End::builder().forbid_staging();
            let end = End::listen_with(context, |line| parent.say(line)).await;
            for length in [1, 1000, LENGTH] {
                let descriptor = unhex(&parent.hear().await);
                let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
                let remote = end.endpoint.import(&descriptor).expect("the peer's");
                let room = end.context.allocate_on(DEVICE, length).await;
                let got = end.endpoint.get(remote, room.expect("memory"));
                let got = watchdog(LIMIT, got).await.expect("got");
                let host = end
                    .context
                    .allocate_on(MemoryType::HostPinned, length)
                    .await;
                let host = end.worker.copy(got.freeze(), host.expect("memory"));
                let host = watchdog(LIMIT, host).await.expect("copied");
                assert!(host.as_slice() == Some(&pattern(1, length)[..]), "{length}");
                parent.say("got");
            }
            let text = end
                .endpoint
                .explain(wharf::Operation::Get, DEVICE, DEVICE, LENGTH)
                .to_string();
            assert!(text.contains("opens"), "{text}");
            // From now on nothing can be opened.
            control("fault cuIpcOpenMemHandle_v2@1+=801");
            let room = end.context.allocate_on(DEVICE, LENGTH).await;
            let receive = end.worker.tag_recv(Tag(1), room.expect("memory"));
            let error = watchdog(LIMIT, receive).await.map(drop);
            let error = error.expect_err("it would be staged");
            assert_eq!(error.kind(), wharf::ErrorKind::Unsupported, "{error:?}");
            let text = end
                .endpoint
                .explain(wharf::Operation::Get, DEVICE, DEVICE, LENGTH)
                .to_string();
            assert!(
                text.contains("forbids") && text.contains("not one copy between devices"),
                "{text}"
            );
            assert_eq!(parent.hear().await, "end");
        });
    }
    let mut first = Child::start(this_test!(), "first", &[]);
    let mut second = Child::start(this_test!(), "second", &[]);
    runtime().block_on(async {
        second.say(first.hear().await);
        for _ in 0..3 {
            first.say(second.hear().await);
            second.say(first.hear().await);
        }
        assert_eq!(second.hear().await, "done");
        first.say("end");
        second.say("end");
    });
    first.finish();
    second.finish();
}
