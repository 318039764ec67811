//! A worker that parks: one handler for what is under way, no call meanwhile, and a ring when the device fails.

use std::time::Duration;

use wharf::MemoryType;

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{Bench, Parked, block_until, calls, control},
    support::this_test,
};

#[test]
fn nothing_is_called_while_parked_and_one_handler_wakes() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let mut parked = Parked::new(&mut bench);
    let (device, pinned) = (
        bench.allocate(MemoryType::Rocm(0), 4096),
        bench.pinned(4096),
    );
    bench.copy(pinned.end(0), device.end(0), 8).expect("copies");
    for round in 1..=20 {
        control("hold");
        for token in 0..10 {
            let (from, to) = (pinned.end(0), device.end(0));
            bench.begin(from, to, 8, token).expect("begins");
        }
        control("forget");
        assert!(bench.engine.arm(), "nothing is done yet");
        assert_eq!(calls("hsa_amd_memory_async_copy"), 10);
        assert_eq!(calls("hsa_amd_signal_async_handler"), 1, "round {round}");
        control("forget");
        // Three times as long as a timer of the engine's would wait.
        let pause = Duration::from_millis(if round == 1 { 300 } else { 5 });
        assert!(!parked.wakes_within(&mut bench, pause), "nothing is done");
        assert_eq!(control("calls"), "0", "{}", control("trace"));
        // To wake for another reason and park again asks nobody anything but whether it is done.
        bench.engine.disarm();
        assert_eq!(bench.engine.progress(16, &mut bench.sink), 0);
        assert!(bench.engine.arm());
        assert_eq!(calls("hsa_amd_signal_async_handler"), 0);
        control("release");
        parked.park(&mut bench);
        bench.drain(10);
        assert_eq!(calls("handler"), 1);
        // Whoever has it last destroys it: the handler's thread may be late.
        block_until("the end of the handler's signal", || {
            calls("hsa_signal_destroy") == 1
        });
        bench.sink.done.clear();
    }
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

#[test]
fn without_handlers_a_timer_looks() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let mut parked = Parked::new(&mut bench);
    let (device, pinned) = (
        bench.allocate(MemoryType::Rocm(0), 4096),
        bench.pinned(4096),
    );
    control("fault hsa_amd_signal_async_handler@1+=4104");
    for _ in 0..20 {
        bench
            .begin(pinned.end(0), device.end(0), 4096, 1)
            .expect("begins");
        parked.drain(&mut bench, 1);
    }
    assert!(bench.sink.done.iter().all(|(_, result)| result.is_ok()));
}

#[test]
fn a_device_that_fails_rings() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let mut parked = Parked::new(&mut bench);
    let (device, pinned) = (
        bench.allocate(MemoryType::Rocm(0), 4096),
        bench.pinned(4096),
    );
    control("hold");
    bench
        .begin(pinned.end(0), device.end(0), 8, 1)
        .expect("begins");
    assert!(bench.engine.arm());
    assert!(!parked.wakes_within(&mut bench, Duration::from_millis(20)));
    control("break 0");
    parked.park(&mut bench);
    bench.drain(1);
    let error = bench.sink.done[0].1.as_ref().expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
}
