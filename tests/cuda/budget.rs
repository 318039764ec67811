//! Calls of the driver, as the emulator counts them.

use std::time::Instant;

use wharf::MemoryType;

use crate::{
    alone::{child_with, is_child},
    fixture::{Bench, calls, control, number},
    support::this_test,
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
        assert_eq!(calls("cuLaunchHostFunc"), 1);
        bench.engine.disarm();
        control("release");
        bench.drain(100);
        bench.sink.done.clear();
        assert_eq!(calls("cuLaunchHostFunc"), 1);
    }
}
