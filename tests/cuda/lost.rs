//! Bad input, and devices that go away under copies, as far as CUDA is like no other: `support/lost.rs` has the rest.
//!
//! # Safety
//! Freed memory is only named to the driver, which is what is tested.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use wharf::{MemoryType, Worker, transport::cuda::CudaStream};

use crate::{
    alone::{child_with, is_child},
    bench,
    domain::reset,
    error::ErrorKind,
    fixture::{
        Bench, DEVICE, accelerator, block_until, context, control, device_end, live, pinned_end,
    },
    support::{block_at_rest, this_test},
};

#[test]
fn the_driver_knows_whose_memory_is() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let (device, pinned) = (bench.allocate(DEVICE, 4096), bench.pinned(4096));
    // A device's memory said to be the host's moves all the same, by the driver; nothing of the host touches it.
    bench
        .copy(pinned_end(device.address()), pinned.end(0), 64)
        .expect_err("no end is a device's");
    let other = bench.allocate(MemoryType::Cuda(0), 4096);
    bench
        .copy(pinned_end(device.address()), other.end(0), 64)
        .expect("the driver knows better");
    // A wrong device is as good: the driver has one address space.
    bench
        .copy(device_end(device.address(), 1), pinned.end(0), 64)
        .expect("copies");
    assert!(bench.sink.lost.is_none());
}

#[test]
fn memory_freed_under_a_copy_ends_the_device_and_nothing_else() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_CUDA_FREE_WAITS", "0")]);
    }
    let mut bench = Bench::new();
    let pinned = bench.pinned(4096);
    let (other, far) = (
        bench.allocate(MemoryType::Cuda(0), 64),
        bench.allocate(MemoryType::Cuda(1), 64),
    );
    bench.copy(pinned.end(0), other.end(0), 8).expect("copies");
    bench.copy(pinned.end(0), far.end(0), 8).expect("copies");
    let own = context(0);
    let freed = own.enter().expect("enters").allocate(4096).expect("memory");
    control("hold 0");
    let end = device_end(freed.at(), 0);
    bench.begin(pinned.end(0), end, 4096, 1).expect("begins");
    bench
        .begin(pinned.end(0), other.end(0), 64, 2)
        .expect("begins");
    bench.engine.flush();
    drop(freed);
    control("release");
    bench.drain(2);
    for (_, result) in bench.sink.done.drain(..) {
        let error = result.expect_err("lost");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        assert!(error.to_string().contains("cuda:0"), "{error}");
    }
    bench
        .copy(pinned.end(0), far.end(0), 8)
        .expect("the other device goes on");
}

#[test]
fn a_context_destroyed_under_copies() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    for wait in [false, true] {
        let mut bench = Bench::new();
        let (device, pinned) = (
            bench.allocate(MemoryType::Cuda(0), 4096),
            bench.pinned(4096),
        );
        bench.copy(pinned.end(0), device.end(0), 8).expect("copies");
        let count = 20;
        for token in 0..count {
            bench
                .begin(pinned.end(0), device.end(0), 4096, token)
                .expect("begins");
            if wait {
                bench.engine.flush();
            }
        }
        // The driver lets end what is in its streams.
        reset(0);
        bench.engine.flush();
        bench.drain(count as usize);
        for (_, result) in bench.sink.done.drain(..) {
            match result {
                Ok(()) => assert!(wait, "nothing was in a stream"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}"),
            }
        }
        // The next one is told in any case.
        let after = bench
            .copy(pinned.end(0), device.end(0), 8)
            .expect_err("lost");
        assert_eq!(after.kind(), ErrorKind::DeviceLost, "{after}");
        assert!(
            pinned.bytes().iter().all(|byte| *byte == 0),
            "pinned memory stays"
        );
        drop((device, pinned));
        drop(bench);
    }
    // A new engine has a new context.
    let mut bench = Bench::new();
    let (device, pinned) = (bench.allocate(MemoryType::Cuda(0), 64), bench.pinned(64));
    bench
        .copy(pinned.end(0), device.end(0), 64)
        .expect("copies");
}

/// An error that does not say that the context is lost: the device may go on with what is in its streams, and has its pages.
#[test]
fn a_device_that_may_go_on_keeps_its_pages() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let (device, pinned) = (bench.allocate(DEVICE, 4096), bench.pinned(4096));
    bench.copy(pinned.end(0), device.end(0), 8).expect("copies");
    control("hold");
    for (token, fault) in [(1, ""), (2, "fault cuCtxPushCurrent_v2@1=999")] {
        if !fault.is_empty() {
            control(fault);
        }
        bench
            .begin(pinned.end(0), device.end(0), 4096, token)
            .expect("begins");
        bench.engine.flush();
    }
    bench.drain(2);
    for (_, told) in bench.sink.done.drain(..) {
        let error = told.expect_err("lost");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    }
    let before = live("registered");
    drop(pinned);
    // Nor does the end of the engine wait for it.
    drop(bench);
    block_at_rest("what is left", Duration::from_millis(50), || {
        control("live")
    });
    control("release");
    block_at_rest("what is left", Duration::from_millis(50), || {
        control("live")
    });
    assert_eq!(live("registered"), before);
    drop(device);
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

/// The old worker's addresses may be the new one's: it stays without the device.
#[test]
fn a_new_worker_after_a_reset() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    bench::run(accelerator(), async |context, old| {
        let memory = async || {
            let memory = context.allocate_on(DEVICE, 64).await;
            memory.expect("memory")
        };
        let kept = old.copy(vec![1; 64], memory().await).await.expect("copied");
        reset(0);
        for _ in 0..2 {
            let error = old.copy(vec![2; 64], memory().await).await;
            let (error, _) = error.expect_err("lost").into_parts();
            assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        }
        let new = Worker::new(&context).expect("a worker");
        let filled = new.copy(vec![3; 64], memory().await).await.expect("copied");
        let found = new.copy(filled.freeze(), vec![0; 64]).await;
        assert_eq!(found.expect("copied"), [3; 64]);
        drop(kept);
        let error = old.copy(vec![4; 64], memory().await).await;
        assert!(error.is_err(), "still without it");
    });
}

#[test]
fn nothing_is_left() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let before = crate::support::open_fds();
    for round in 0..5 {
        let mut bench = Bench::new();
        let (device, far) = (
            bench.allocate(MemoryType::Cuda(0), 4096),
            bench.allocate(MemoryType::Cuda(1), 4096),
        );
        let pinned = bench.pinned(4096);
        for token in 0..100 {
            bench
                .begin(pinned.end(0), device.end(0), 4096, token)
                .expect("begins");
            bench
                .begin(device.end(0), far.end(0), 4096, token)
                .expect("begins");
            bench.engine.flush();
        }
        match round % 3 {
            0 => bench.drain(200),
            // The worker ends with copies under way: they are waited for, reported, and nothing is taken any more.
            1 => {
                bench.quiesce();
                bench.drain(200);
                let error = bench
                    .begin(pinned.end(0), device.end(0), 8, 0)
                    .expect_err("closed");
                assert_eq!(error.kind(), ErrorKind::Closed);
            }
            _ => {}
        }
        drop(bench);
        drop((device, far, pinned));
        block_until("the end", || live("contexts") == 0);
        for what in [
            "streams",
            "events",
            "bytes",
            "allocations",
            "pinned",
            "registered",
        ] {
            assert_eq!(live(what), 0, "{what}");
        }
    }
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
    if before != crate::support::open_fds() {
        // The emulator's own threads and files go a little later.
        block_until("the fds", || crate::support::open_fds() <= before + 1);
    }
}

/// A stream of the program's that is blocked when the worker ends is no device that hangs: no memory but a page of the engine's own stays for it.
#[test]
fn a_stream_that_is_blocked_gives_no_device_up() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let own = context(0);
    let guard = own.enter().expect("enters");
    let (device, pinned) = (
        bench.allocate(MemoryType::Cuda(0), 4096),
        bench.pinned(4096),
    );
    bench
        .copy(pinned.end(0), device.end(0), 4096)
        .expect("copies");
    let word = guard.allocate_pinned(8).expect("memory");
    let stream = guard.stream().expect("a stream");
    stream.wait_value(&guard, word.at(), 1).expect("waits");
    // SAFETY: the stream outlives the engine's use of it.
    let handle = unsafe {
        CudaStream::from_raw(
            std::ptr::with_exposed_provenance_mut(stream.raw() as usize),
            0,
        )
    };
    for token in 0..7 {
        let after = bench.engine.after(handle.into(), token);
        assert!(after.is_ok(), "{after:?}");
    }
    bench
        .engine
        .quiesce(Instant::now() + Duration::from_millis(300));
    bench.drain(7);
    for (_, told) in bench.sink.done.drain(..) {
        let error = told.expect_err("never reached");
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
    // What is pinned, before and after, is given back once the driver can: it waits for the stream.
    let late = bench.pinned(4096);
    let before = live("registered");
    drop((pinned, late));
    let open = std::ptr::with_exposed_provenance_mut::<u64>(word.at() as usize);
    // SAFETY: eight aligned bytes that are accessed atomically alone.
    unsafe { std::sync::atomic::AtomicU64::from_ptr(open) }
        .store(1, std::sync::atomic::Ordering::SeqCst);
    block_until("both", || live("registered") + 2 <= before);
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

#[test]
fn out_of_memory_is_told() {
    if !is_child() {
        let memory = (8_u64 << 20).to_string();
        return child_with(this_test!(), &[("EMULATED_CUDA_MEMORY", memory.as_str())]);
    }
    let mut bench = Bench::new();
    let (device, pinned) = (bench.allocate(MemoryType::Cuda(0), 64), bench.pinned(64));
    for memory_type in [MemoryType::Cuda(0), MemoryType::CudaManaged] {
        let error = bench
            .domain
            .allocate(memory_type, 16 << 20)
            .expect_err("no room");
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        assert!(
            error.to_string().contains(&(16 << 20).to_string()),
            "{error}"
        );
    }
    bench
        .copy(pinned.end(0), device.end(0), 64)
        .expect("goes on");
}
