//! Small copies by the processor, where the host reaches all of a device's memory; and none where it does not.

use wharf::{MemoryType, transport::accelerator::CopyEnd};

use crate::{
    alone::{child_with, is_child},
    fixture::{Bench, accelerator, calls, control, device_end, own, pattern},
    support::this_test,
};

#[test]
fn small_copies_are_the_processors() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_BAR", "1")]);
    }
    let mut bench = Bench::new();
    let device = bench.allocate(MemoryType::Rocm(0), 1 << 20);
    control("forget");
    // Ordinary memory is as good.
    let mut host = pattern(1, 40_000);
    let at = |bytes: &mut Vec<u8>, offset: usize| CopyEnd::Host {
        address: bytes.as_mut_ptr().wrapping_add(offset),
        pinned: false,
    };
    for length in [1, 7, 64, 255, 256, 4096, 16 << 10] {
        let from = at(&mut host, length);
        bench.copy(from, device.end(13), length).expect("stores");
        let mut back = vec![0; 256];
        let some = length.min(256);
        let to = at(&mut back, 0);
        bench.copy(device.end(13), to, some).expect("loads");
        assert!(back[..some] == host[length..length + some]);
    }
    assert_eq!(calls("hsa_amd_memory_async_copy"), 0);
    // Longer ones are the device's, and it sees what was stored.
    let mut pinned = bench.pinned(64 << 10);
    bench
        .copy(device.end(13), pinned.end(0), 16 << 10)
        .expect("copies");
    assert!(pinned.bytes()[..16 << 10] == host[16 << 10..32 << 10]);
    pinned.bytes_mut().copy_from_slice(&pattern(9, 64 << 10));
    bench
        .copy(pinned.end(0), device.end(0), 64 << 10)
        .expect("copies");
    let mut back = vec![0; 256];
    let to = at(&mut back, 0);
    bench.copy(device.end(1000), to, 256).expect("loads");
    assert!(back == pattern(9, 64 << 10)[1000..1256]);
    assert_eq!(calls("hsa_amd_memory_async_copy"), 2);
    assert_eq!(control("misused"), "0");
}

/// The processor does not reach into a device that failed.
#[test]
fn none_on_a_device_that_is_lost() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_BAR", "1")]);
    }
    let mut bench = Bench::new();
    let (device, pinned) = (bench.allocate(MemoryType::Rocm(0), 64), bench.pinned(64));
    bench.copy(pinned.end(0), device.end(0), 8).expect("stores");
    control("break 0");
    let error = bench.copy(pinned.end(0), device.end(0), 8);
    let error = error.expect_err("lost");
    assert_eq!(error.kind(), crate::error::ErrorKind::DeviceLost, "{error}");
}

/// What was not met, or was freed, is not touched by the processor.
#[test]
fn only_memory_that_is_known() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_BAR", "1")]);
    }
    let mut bench = Bench::new();
    let pinned = bench.pinned(64);
    let memory = own(0, 4096);
    let end = device_end(memory.address(), 0);
    control("forget");
    bench
        .copy(pinned.end(0), end, 64)
        .expect("the device's copy");
    assert_eq!(calls("hsa_amd_memory_async_copy"), 1);
    bench.copy(pinned.end(0), end, 64).expect("known now");
    assert_eq!(calls("hsa_amd_memory_async_copy"), 1);
    drop(memory);
    bench.copy(pinned.end(0), end, 64).expect_err("freed");
}

#[test]
fn none_with_a_small_bar_or_when_left_out() {
    for (bar, choose) in [("0", "yes"), ("1", "no")] {
        if !is_child() {
            let variables = [("EMULATED_HSA_BAR", bar), ("WHARFTEST_BAR", choose)];
            child_with(this_test!(), &variables);
            continue;
        }
        let choose = std::env::var("WHARFTEST_BAR").is_ok_and(|choose| choose == "yes");
        let mut bench = Bench::with(accelerator().large_bar(choose));
        let (device, pinned) = (bench.allocate(MemoryType::Rocm(0), 64), bench.pinned(64));
        control("forget");
        for _ in 0..5 {
            bench.copy(pinned.end(0), device.end(0), 8).expect("copies");
            bench.copy(device.end(0), pinned.end(0), 8).expect("copies");
        }
        assert_eq!(calls("hsa_amd_memory_async_copy"), 10);
        return;
    }
}
