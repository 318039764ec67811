//! Devices that go away under copies, as far as ROCm is like no other: `support/lost.rs` has the rest.

use wharf::{MemoryType, transport::accelerator::Accelerator as _};

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{Bench, accelerator, control, device_end, own},
    support::this_test,
};

/// What was never met may not be in reach of the other device, which is no reason to lose it.
#[test]
fn memory_out_of_reach_loses_no_device() {
    for peers in ["1", "0"] {
        if !is_child() {
            child_with(this_test!(), &[("EMULATED_HSA_PEERS", peers)]);
            continue;
        }
        let mut bench = Bench::new();
        let device = bench.allocate(MemoryType::Rocm(0), 4096);
        let far = own(1, 4096);
        let end = device_end(far.address(), 1);
        let peers = std::env::var("EMULATED_HSA_PEERS").expect("given") == "1";
        let before_met = bench.copy(device.end(0), end, 64);
        match peers {
            true => {
                let error = before_met.expect_err("not met");
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            }
            // Through the host, whence its own device reaches it.
            false => before_met.expect("copies"),
        }
        let range = wharf::memory::AddressRange::new(far.address(), 4096).expect("a range");
        let met = bench.domain.detect(range).expect("detects").expect("known");
        assert_eq!(met.memory_type, MemoryType::Rocm(1));
        bench.copy(device.end(0), end, 64).expect("copies");
        assert_eq!(bench.engine.stopped().0, if peers { 0 } else { 2 });
        let pinned = bench.pinned(64);
        bench.copy(end, pinned.end(0), 64).expect("its own device");
        return;
    }
}

#[test]
fn a_device_lost_under_copies_ends_it_and_nothing_else() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let accelerator = accelerator();
    let mut bench = Bench::with(accelerator.clone());
    let (device, far, pinned) = (
        bench.allocate(MemoryType::Rocm(0), 4096),
        bench.allocate(MemoryType::Rocm(1), 4096),
        bench.pinned(4096),
    );
    control("hold 0");
    for token in 0..20 {
        bench
            .begin(pinned.end(0), device.end(0), 64, token)
            .expect("begins");
    }
    bench.engine.flush();
    control("break 0");
    bench.drain(20);
    for (_, result) in bench.sink.done.drain(..) {
        let error = result.expect_err("lost");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        assert!(error.to_string().contains("rocm:0"), "{error}");
    }
    assert!(bench.sink.lost.is_none(), "the other is there");
    let error = bench
        .begin(pinned.end(0), device.end(0), 8, 1)
        .expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    bench
        .copy(pinned.end(0), far.end(0), 8)
        .expect("the other device goes on");
    // An engine that is opened later knows.
    let mut second = Bench::with(accelerator.clone());
    second
        .copy(pinned.end(0), far.end(0), 8)
        .expect("the other device goes on");
    let error = second
        .copy(pinned.end(0), device.end(0), 8)
        .expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    drop(second);
    control("break 1");
    // Told with the next copy: nobody asks while nothing is under way.
    let error = bench.copy(pinned.end(0), far.end(0), 8).expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    bench.engine.progress(8, &mut bench.sink);
    let error = bench.sink.lost.take().expect("told");
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    bench.quiesce();
}

/// A copy that the device could not make is that copy's alone.
#[test]
fn a_signal_that_becomes_negative_is_one_error() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let (device, pinned) = (
        bench.allocate(MemoryType::Rocm(0), 4096),
        bench.pinned(4096),
    );
    control("fault hsa_amd_memory_async_copy@3=late:7");
    for token in 0..8 {
        bench
            .begin(pinned.end(0), device.end(0), 64, token)
            .expect("begins");
    }
    bench.engine.flush();
    bench.drain(8);
    for (token, result) in bench.sink.done.drain(..) {
        match token {
            2 => {
                let error = result.expect_err("failed");
                assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                assert!(error.to_string().contains("-7"), "{error}");
            }
            _ => result.expect("copied"),
        }
    }
}

#[test]
fn an_accelerator_without_a_device_says_so() {
    if !is_child() {
        for variable in [("EMULATED_HSA_KFD", "0"), ("EMULATED_HSA_DEVICES", "0")] {
            child_with(this_test!(), &[variable]);
        }
        return;
    }
    let accelerator = accelerator();
    accelerator.probe().expect("the library is there");
    let error = accelerator.open().map(drop).expect_err("no device");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let error = accelerator.domain().allocate(MemoryType::Rocm(0), 8);
    let error = error.map(drop).expect_err("no device");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let none = wharf::transport::rocm::RocmCopy::with_library("/nowhere/libhsa.so");
    assert_eq!(
        none.probe().expect_err("none").kind(),
        ErrorKind::Unsupported
    );
}
