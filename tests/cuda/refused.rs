//! Copies that no engine makes.

use wharf::MemoryType;

use crate::{
    error::ErrorKind,
    fixture::{Bench, device_end, pinned_end},
};

#[test]
fn what_no_engine_makes_is_refused() {
    let mut bench = Bench::new();
    let attributes = bench.engine.attributes();
    assert!(attributes.fragment <= attributes.max_copy && !attributes.takes_pageable(4096));
    let (device, pinned) = (bench.allocate(MemoryType::Cuda(0), 64), bench.pinned(64));
    let pageable = wharf::transport::accelerator::CopyEnd::Host {
        address: std::ptr::dangling_mut(),
        pinned: false,
    };
    let rocm = wharf::transport::accelerator::CopyEnd::Device {
        address: 4096,
        memory_type: MemoryType::Rocm(0),
    };
    for (from, to, length) in [
        (pinned.end(0), device.end(0), 0),
        (pinned.end(0), device.end(0), attributes.max_copy + 1),
        (pinned.end(0), pinned.end(32), 8),
        (device.end(0), rocm, 8),
        (pinned_end(0), device.end(0), 8),
        (device_end(u64::MAX - 3, 0), pinned.end(0), 8),
    ] {
        let error = bench.begin(from, to, length, 1).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    // No such device: told by the copy, as only the driver knows.
    let error = bench
        .copy(pinned.end(0), device_end(4096, 77), 8)
        .expect_err("none");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("cuda:77"), "{error}");
    // Ordinary memory is registered, if it is there.
    let error = bench.copy(pageable, device.end(0), 8);
    let error = error.expect_err("no memory");
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    // The engine goes on.
    bench
        .copy(pinned.end(0), device.end(0), 64)
        .expect("copies");
}
