//! Copies that no engine makes, and those that it has a thread make.

use wharf::{
    MemoryType,
    transport::accelerator::{CopyEnd, Stop},
};

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{Bench, device_end, pattern, pinned_end},
    support::this_test,
};

#[test]
fn what_no_engine_makes_is_refused() {
    let mut bench = Bench::new();
    let attributes = bench.engine.attributes();
    assert!(attributes.fragment <= attributes.max_copy && attributes.takes_pageable(0));
    let (device, pinned) = (bench.allocate(MemoryType::Rocm(0), 64), bench.pinned(64));
    let of = |memory_type| CopyEnd::Device {
        address: 4096,
        memory_type,
    };
    for (from, to, length) in [
        // The runtime would take no bytes and never report it.
        (pinned.end(0), device.end(0), 0),
        (pinned.end(0), device.end(0), attributes.max_copy + 1),
        (pinned.end(0), pinned.end(32), 8),
        (device.end(0), of(MemoryType::Cuda(0)), 8),
        (device.end(0), of(MemoryType::RocmManaged), 8),
        (pinned_end(0), device.end(0), 8),
        (device_end(u64::MAX - 3, 0), pinned.end(0), 8),
    ] {
        let error = bench.begin(from, to, length, 1).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    // No such device: told by the copy, as only the runtime knows.
    let error = bench
        .copy(pinned.end(0), device_end(4096, 7), 8)
        .expect_err("none");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("rocm:7"), "{error}");
    bench
        .copy(pinned.end(0), device.end(0), 64)
        .expect("the engine goes on");
}

/// Neither reaches the other's memory: such copies go through the host, whole or in pieces, at any place, and are counted and foretold.
#[test]
fn devices_without_peer_access() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_PEERS", "0")]);
    }
    const LEN: usize = (5 << 20) + 3;
    let mut bench = Bench::new();
    let [mut near, mut far] =
        [0, 1].map(|device| bench.allocate(MemoryType::Rocm(device), LEN + 64));
    let data = pattern(7, LEN + 64);
    bench.put(&mut near, &data);
    let mut stopped = (0, 0);
    for length in [1, 63, 4097, 1 << 20, (1 << 20) + 1, LEN] {
        let around = pattern(length as u64, LEN + 64);
        bench.put(&mut far, &around);
        bench.copy(near.end(5), far.end(3), length).expect("copies");
        let got = bench.get(&far, LEN + 64);
        assert!(got[3..3 + length] == data[5..5 + length]);
        assert!(got[..3] == around[..3] && got[3 + length..] == around[3 + length..]);
        stopped = (stopped.0 + 1, stopped.1 + length as u64);
        assert_eq!(bench.engine.stopped(), stopped);
    }
    let (one, other) = (MemoryType::Rocm(0), MemoryType::Rocm(1));
    match bench.engine.stops(one, other, 64) {
        Some(Stop::Certain(why)) => {
            assert!(why.contains("rocm:0 has no peer access to rocm:1"), "{why}")
        }
        other => panic!("{other:?}"),
    }
    assert!(bench.engine.stops(one, one, 64).is_none());
    bench.unstaged = true;
    let error = bench
        .copy(near.end(0), far.end(0), 64)
        .expect_err("not through the host");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(bench.engine.stopped(), stopped);
    assert!(bench.sink.lost.is_none());
}
