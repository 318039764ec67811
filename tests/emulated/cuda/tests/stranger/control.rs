//! The test's hand: faults, counts, holds, leaks.

use std::time::{Duration, Instant};

use crate::{
    api::*,
    second::{self, Second},
};

/// In a process of its own: the plan and the counts are the driver's.
#[test]
fn faults_strike_and_calls_are_counted() {
    if !second::plays("faulty") {
        let mut second = Second::start(
            "control::faults_strike_and_calls_are_counted",
            "faulty",
            &[
                ("EMULATED_CUDA_FAULTS", "cuMemAlloc_v2@2=2"),
                ("EMULATED_CUDA_DEVICES", "2"),
            ],
        );
        assert_eq!(second.hear(), "done");
        assert!(second.end().success());
        return;
    }
    let _ctx = Ctx::new(0);
    let mut address = 0;
    ok(cuMemAlloc_v2(&mut address, 8));
    let mut other = 0;
    assert_eq!(cuMemAlloc_v2(&mut other, 8), 2);
    ok(cuMemAlloc_v2(&mut other, 8));
    assert_eq!(control("count cuMemAlloc_v2"), "3");
    assert!(control("trace").contains("cuMemAlloc_v2("));

    let stream = stream();
    control("fault cuStreamQuery@1=slow:20000");
    let start = Instant::now();
    ok(cuStreamQuery(stream));
    assert!(start.elapsed() >= Duration::from_millis(20));

    control("fault cuMemcpyAsync:1@1=999");
    ok(cuMemcpyAsync(address, other, 8, stream));
    {
        let _second = Ctx::new(1);
        assert_eq!(cuMemcpyAsync(address, other, 8, 0), 999);
    }
    assert_eq!(control("fault waiting"), "0");

    control("fault cuMemcpyAsync@1=late:719");
    ok(cuMemcpyAsync(address, other, 8, stream));
    assert_eq!(cuStreamSynchronize(stream), 719);
    drop(_ctx);

    let _ctx = Ctx::new(0);
    control("fault cuMemFree_v2@1=die:700");
    let address = alloc(8);
    assert_eq!(cuMemFree_v2(address), 700);
    assert_eq!(cuCtxSynchronize(), 700);
    drop(_ctx);

    let _ctx = Ctx::new(0);
    control("break 0 719");
    assert_eq!(cuCtxSynchronize(), 719);

    control("forget");
    assert_eq!(control("calls"), "0");
    for wrong in [
        "",
        "nonsense",
        "set nothing 1",
        "fault x",
        "hold 99",
        "count",
        "compare 1 x 2",
    ] {
        try_control(wrong).expect_err(wrong);
    }
    second::say("done");
}

#[test]
fn nothing_is_left_of_a_context() {
    if !second::plays("tidy") {
        let mut second = Second::start("control::nothing_is_left_of_a_context", "tidy", &[]);
        assert_eq!(second.hear(), "done");
        assert!(second.end().success());
        return;
    }
    ok(cuInit(0));
    let before = control("live");
    let maps = || {
        std::fs::read_to_string("/proc/self/maps")
            .expect("maps")
            .lines()
            .count()
    };
    let fds = || std::fs::read_dir("/proc/self/fd").expect("fds").count();
    let mut first = None;
    for _ in 0..20 {
        let ctx = Ctx::new(0);
        let stream = stream();
        let _ = (alloc(100), alloc(5 << 20), pinned(100), event());
        ok(cuMemsetD8Async(alloc(64), 1, 64, stream));
        drop(ctx);
        first.get_or_insert_with(|| (maps(), fds()));
    }
    assert_eq!(control("live"), before);
    let (_, first_fds) = first.expect("twenty rounds");
    assert!(
        fds() <= first_fds,
        "{} descriptors, {first_fds} after the first",
        fds()
    );
    second::say("done");
}

/// With the latency model, copies on one engine follow each other.
#[test]
fn engines_take_their_time() {
    if !second::plays("slow") {
        let mut second = Second::start(
            "control::engines_take_their_time",
            "slow",
            &[
                ("EMULATED_CUDA_BANDWIDTH_MBS", "1000"),
                ("EMULATED_CUDA_LATENCY_NS", "1000000"),
            ],
        );
        assert_eq!(second.hear(), "done");
        assert!(second.end().success());
        return;
    }
    let _ctx = Ctx::new(0);
    let (host, device) = (pinned(10 << 20), alloc(10 << 20));
    let start = Instant::now();
    let streams = [stream(), stream()];
    for stream in streams {
        ok(cuMemcpyAsync(device, host, 10 << 20, stream));
    }
    ok(cuCtxSynchronize());
    // Two times 10 MiB at 1 GB/s and 1 ms.
    let least = Duration::from_micros(2 * (10_485 + 1000));
    assert!(start.elapsed() >= least, "{:?}", start.elapsed());
    second::say("done");
}
