//! Calls of the driver, as the emulator counts them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use wharf::{Access, Buffer, BufferMut, Context, MemoryType, Progress, Worker};

use crate::{
    alone::{child_with, is_child},
    fixture::{Bench, accelerator, calls, control, number},
    support::{LIMIT, this_test, watchdog},
};

/// All calls.
fn total() -> u64 {
    number("calls")
}

#[test]
fn a_copy_costs_one_call_behind_it_and_polling_none() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let (device, other, pinned) = (
        bench.allocate(MemoryType::Cuda(0), 4096),
        bench.allocate(MemoryType::Cuda(1), 4096),
        bench.pinned(4096),
    );
    let ends = [
        (pinned.end(0), device.end(0), "cuMemcpyHtoDAsync_v2"),
        (device.end(0), pinned.end(0), "cuMemcpyDtoHAsync_v2"),
        (device.end(0), other.end(0), "cuMemcpyDtoDAsync_v2"),
    ];
    for (from, to, copy) in ends {
        // Opens what is not open yet.
        bench.copy(from, to, 8).expect("copies");
        control("reset");
        control("hold");
        bench.begin(from, to, 8, 1).expect("begins");
        assert_eq!(total(), 0, "a batch is handed over at its end");
        bench.engine.flush();
        for name in [
            "cuCtxPushCurrent_v2",
            copy,
            "cuStreamWriteValue64_v2",
            "cuCtxPopCurrent_v2",
        ] {
            assert_eq!(calls(name), 1, "{name}: {}", control("counts"));
        }
        assert_eq!(total(), 4, "{}", control("counts"));

        // Polling: none, but for a look after the stream ten times a second.
        let start = Instant::now();
        for _ in 0..20_000 {
            assert_eq!(bench.engine.progress(16, &mut bench.sink), 0);
        }
        bench.engine.flush();
        let looks = start.elapsed().as_millis() as u64 / 100;
        assert!(total() <= 4 + 3 * looks, "{}", control("counts"));
        control("reset");
        bench.drain(1);
        assert_eq!(total(), 0, "{}", control("counts"));
        bench.sink.done.clear();

        // A batch shares all but the copies themselves.
        for token in 0..32 {
            bench.begin(from, to, 8, token).expect("begins");
        }
        bench.engine.flush();
        assert_eq!(calls(copy), 32);
        assert_eq!(total(), 32 + 3, "{}", control("counts"));
        bench.drain(32);
        bench.sink.done.clear();
    }
    control("reset");
    for _ in 0..1000 {
        bench.engine.progress(16, &mut bench.sink);
        bench.engine.flush();
        assert!(bench.engine.arm());
        bench.engine.disarm();
    }
    assert_eq!(total(), 0, "an idle engine calls nothing");
}

#[test]
fn one_host_function_for_an_idle_transition() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let (device, pinned) = (
        bench.allocate(MemoryType::Cuda(0), 4096),
        bench.pinned(4096),
    );
    bench.copy(pinned.end(0), device.end(0), 8).expect("copies");
    for round in 0..3 {
        control("reset");
        control("hold");
        for token in 0..100 {
            bench
                .begin(pinned.end(0), device.end(0), 8, token)
                .expect("begins");
            if token % 10 == 9 {
                bench.engine.flush();
            }
        }
        assert_eq!(calls("cuLaunchHostFunc"), 0);
        let before = total();
        assert!(bench.engine.arm());
        assert_eq!(calls("cuLaunchHostFunc"), 1);
        assert_eq!(total() - before, 4, "{round}: {}", control("counts"));
        // Parked again for the same completion.
        for _ in 0..10 {
            bench.engine.disarm();
            assert_eq!(bench.engine.progress(16, &mut bench.sink), 0);
            assert!(bench.engine.arm());
        }
        assert_eq!(total() - before, 4, "asked once: {}", control("counts"));
        bench.engine.disarm();
        control("release");
        bench.drain(100);
        bench.sink.done.clear();
        assert_eq!(calls("cuLaunchHostFunc"), 1);
    }
}

/// What operations of a worker's may call, and how often.
struct Calls {
    since: Instant,
}

impl Calls {
    fn count() -> Self {
        control("reset");
        Self {
            since: Instant::now(),
        }
    }

    /// Each of so many operations made these copies: one call each, one behind each batch, the context entered and left around it. For each time that
    /// the worker went to sleep one host function, with the call that has it wait. Nothing polls, but for the look ten times a second.
    fn check(self, copies: &[(&str, u64)]) {
        let counts = control("counts");
        let all = copies.iter().map(|(_, count)| count).sum::<u64>();
        for (name, count) in copies {
            assert_eq!(calls(name), *count, "{counts}");
        }
        let words = calls("cuStreamWriteValue64_v2");
        assert!((1..=all).contains(&words), "{counts}");
        let asked = calls("cuLaunchHostFunc");
        assert!(asked <= all, "{counts}");
        assert_eq!(calls("cuStreamWaitValue64_v2"), asked, "{counts}");
        let entered = calls("cuCtxPushCurrent_v2");
        assert_eq!(calls("cuCtxPopCurrent_v2"), entered, "{counts}");
        // To hand over, and to ask, which may find that it is done meanwhile.
        assert!(entered <= words + all, "{counts}");
        let looks = self.since.elapsed().as_millis() as u64 / 100;
        let known = all + words + 2 * asked + 2 * entered;
        assert!(total() <= known + 3 * looks, "{counts}");
    }
}

#[test]
fn operations_of_a_worker_call_for_nothing_else() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_CUDA_DELAY_US", "200")]);
    }
    for progress in [Progress::Adaptive, Progress::EventDriven, Progress::Busy] {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(watchdog(LIMIT, operations(progress)));
    }
}

async fn operations(progress: Progress) {
    const COUNT: u64 = 50;
    const LEN: usize = 256 << 10;
    let builder = Context::builder().transports("self").expect("known");
    let builder = builder
        .progress(progress)
        .accelerator(Arc::new(accelerator()));
    let context = builder.build().expect("a context");
    let worker = Worker::new(&context).expect("a worker");
    let address = worker.address().expect("an address");
    let endpoint = worker.connect(&address).await.expect("oneself");
    let memory = async |memory_type| -> BufferMut {
        match memory_type {
            MemoryType::Host => vec![7; LEN].into(),
            _ => context.allocate_on(memory_type, LEN).await.expect("memory"),
        }
    };
    let exposed = memory(MemoryType::Cuda(0)).await;
    let region = context
        .expose(exposed, Access::READ | Access::WRITE)
        .await
        .expect("exposed");
    let remote = endpoint
        .import(&region.descriptor().expect("a descriptor"))
        .expect("its own");
    // Freeing calls the driver as well, a little later.
    let mut kept = Vec::new();
    for (other, into, out) in [
        (
            MemoryType::Host,
            "cuMemcpyHtoDAsync_v2",
            "cuMemcpyDtoHAsync_v2",
        ),
        (
            MemoryType::HostPinned,
            "cuMemcpyHtoDAsync_v2",
            "cuMemcpyDtoHAsync_v2",
        ),
        (
            MemoryType::Cuda(0),
            "cuMemcpyDtoDAsync_v2",
            "cuMemcpyDtoDAsync_v2",
        ),
    ] {
        let source: Buffer = memory(other).await.freeze();
        kept.push(source.clone());
        let mut room = memory(other).await;
        // Opens what is not open yet.
        endpoint
            .put(source.clone(), remote.clone())
            .await
            .expect("put");

        let counted = Calls::count();
        for _ in 0..COUNT {
            endpoint
                .put(source.clone(), remote.clone())
                .await
                .expect("put");
        }
        counted.check(&[(into, COUNT)]);

        let counted = Calls::count();
        for _ in 0..COUNT {
            room = endpoint.get(remote.clone(), room).await.expect("got");
        }
        counted.check(&[(out, COUNT)]);

        // Many at once share what is not the copies themselves.
        let counted = Calls::count();
        let puts = (0..COUNT).map(|_| endpoint.put(source.clone(), remote.clone()));
        for put in futures::future::join_all(puts).await {
            put.expect("put");
        }
        counted.check(&[(into, COUNT)]);
        kept.push(room.freeze());
    }
    // At rest nothing is called, for as long as this.
    control("reset");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(total(), 0, "{}", control("counts"));
    endpoint.close().await.expect("closed");
    drop(region);
    worker.shutdown(LIMIT).await.expect("ended");
}
