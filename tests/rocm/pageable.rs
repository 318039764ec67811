//! Ordinary host memory: locked once through the registration cache, at another address for devices; staged where it cannot be locked.

use wharf::{MemoryType, transport::accelerator::CopyEnd};

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{Bench, Parked, block_until, calls, control, live, pattern},
    support::this_test,
};

const LEN: usize = 3_000_001;

fn end(bytes: &mut [u8], offset: usize) -> CopyEnd {
    CopyEnd::Host {
        address: bytes.as_mut_ptr().wrapping_add(offset),
        pinned: false,
    }
}

/// There and back, polled and parked.
fn round_trip(bench: &mut Bench, parked: &mut Parked, bytes: &mut [u8], back: &mut [u8]) {
    let device = bench.allocate(MemoryType::Rocm(1), LEN);
    let (from, to) = (end(bytes, 1), device.end(1));
    bench.copy(from, to, LEN - 1).expect("copies");
    let (from, to) = (device.end(1), end(back, 1));
    bench.begin(from, to, LEN - 1, 1).expect("begins");
    parked.drain(bench, 1);
    bench.sink.done.pop().expect("told").1.expect("copies");
    assert!(back[1..] == bytes[1..]);
}

#[test]
fn it_is_locked_once_and_unlocked_in_the_end() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let mut parked = Parked::new(&mut bench);
    let (mut bytes, mut back) = (pattern(1, LEN), vec![0; LEN]);
    for _ in 0..10 {
        round_trip(&mut bench, &mut parked, &mut bytes, &mut back);
        back.fill(0);
    }
    assert_eq!(calls("hsa_amd_memory_lock"), 2, "{}", control("trace"));
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
    drop((bytes, back, bench));
    block_until("the end", || live("locked") == 0);
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

#[test]
fn what_cannot_be_locked_is_staged() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let mut parked = Parked::new(&mut bench);
    let (mut bytes, mut back) = (pattern(2, LEN), vec![0; LEN]);
    control("fault hsa_amd_memory_lock@1+=4104");
    round_trip(&mut bench, &mut parked, &mut bytes, &mut back);
    assert_eq!(live("locked"), 0);
    // Staged pieces that fail are told, once.
    control("fault hsa_amd_memory_async_copy@1=4096");
    let device = bench.allocate(MemoryType::Rocm(0), LEN);
    let from = end(&mut bytes, 0);
    let error = bench.copy(from, device.end(0), LEN).expect_err("fails");
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    drop((device, bench));
    block_until("the end", || live("allocations") + live("signals") == 0);
}

#[test]
fn the_device_fails_while_it_is_staged() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let mut bytes = pattern(2, LEN);
    let device = bench.allocate(MemoryType::Rocm(0), LEN);
    control("fault hsa_amd_memory_lock@1+=4104");
    control("hold 0");
    let from = end(&mut bytes, 0);
    bench.begin(from, device.end(0), LEN, 1).expect("begins");
    block_until("the staged copy", || {
        bench.engine.flush();
        bench.engine.progress(1, &mut bench.sink);
        live("copies") > 0
    });
    control("break 0");
    bench.drain(1);
    let error = bench.sink.done[0].1.as_ref().expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    // Nobody touches it any more.
    drop(bytes);
    bench.quiesce();
}

/// Memory that goes away while its lock is kept is not taken for what comes after it.
#[test]
fn other_memory_at_the_same_address() {
    let mut bench = Bench::new();
    let mut device = bench.allocate(MemoryType::Rocm(0), 1 << 20);
    for round in 0..20 {
        let mut bytes = pattern(round, 1 << 20);
        let from = end(&mut bytes, 0);
        bench.copy(from, device.end(0), 1 << 20).expect("copies");
        let got = bench.get(&device, 1 << 20);
        assert!(got == bytes, "round {round}");
        bench.put(&mut device, &vec![0; 1 << 20]);
    }
}
