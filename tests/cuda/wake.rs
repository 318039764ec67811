//! A worker that parks is woken: by the next completion, without host functions, and when the device dies.
//!
//! # Safety
//! The engine's stream and the word that it is made to wait for outlive the test's use of them.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use wharf::MemoryType;

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{Bench, Parked, calls, context, control, live},
    program::Stream,
    support::this_test,
};

#[test]
fn the_next_completion_wakes_not_the_last() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let mut parked = Parked::new(&mut bench);
    let (device, pinned) = (
        bench.allocate(MemoryType::Cuda(0), 4096),
        bench.pinned(4096),
    );
    control("reset");
    bench.copy(pinned.end(0), device.end(0), 8).expect("copies");
    let trace = control("trace");
    // Its last argument is the engine's stream.
    let line = trace
        .lines()
        .find(|line| line.contains("cuMemcpyHtoDAsync_v2"))
        .expect("called");
    let words: Vec<_> = line
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .collect();
    let name = words
        .iter()
        .position(|word| *word == "cuMemcpyHtoDAsync_v2")
        .expect("named");
    let stream = words[name + 4];
    let stream = match stream.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => stream.parse(),
    }
    .expect("a handle");
    let own = context(0);
    // The engine's stream, which lives as long as the engine.
    let stream = Stream::adopt(&own, stream);
    let word = own
        .enter()
        .expect("enters")
        .allocate_pinned(8)
        .expect("memory");
    let opens = |value| {
        // SAFETY: eight aligned bytes that are accessed atomically alone.
        unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(word.at() as usize)) }
            .store(value, Ordering::Release);
    };
    let gate = |at: u64, value| {
        let guard = own.enter().expect("enters");
        stream.wait_value(&guard, at, value).expect("waits");
    };
    for round in 1..20_u64 {
        for token in 0..3 {
            gate(word.at(), 3 * round + token);
            bench
                .begin(pinned.end(0), device.end(0), 8, token)
                .expect("begins");
            bench.engine.flush();
        }
        for token in 0..3 {
            assert!(bench.engine.arm(), "nothing has completed");
            opens(3 * round + token);
            let mut is_armed = true;
            loop {
                if is_armed {
                    parked.park(&mut bench);
                }
                if bench.engine.progress(64, &mut bench.sink) > 0 {
                    break;
                }
                // Woken late for the one before: this one may come between the look and this.
                is_armed = bench.engine.arm();
            }
            let (told, _) = bench.sink.done.pop().expect("told");
            assert!(
                told == token && bench.sink.done.is_empty(),
                "{told} {token}"
            );
        }
    }
    drop(bench);
}

#[test]
fn without_host_functions_it_is_looked_again() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let mut parked = Parked::new(&mut bench);
    let (device, pinned) = (
        bench.allocate(MemoryType::Cuda(0), 4096),
        bench.pinned(4096),
    );
    bench.copy(pinned.end(0), device.end(0), 8).expect("copies");
    for plan in [
        "fault cuLaunchHostFunc@1+=999",
        "fault cuStreamWaitValue64_v2@1+=999",
        // The word does not come, and the host function behind it does not run.
        "fault cuStreamWriteValue64_v2@1=skip",
    ] {
        control("reset");
        control(plan);
        bench
            .begin(pinned.end(0), device.end(0), 8, 1)
            .expect("begins");
        control("hold");
        bench.engine.flush();
        assert!(bench.engine.arm());
        control("release");
        parked.drain(&mut bench, 1);
        bench.sink.done.pop().expect("told").1.expect("copied");
    }
    control("reset");
    bench.copy(pinned.end(0), device.end(0), 8).expect("copies");
}

#[test]
fn a_device_that_dies_wakes_who_is_parked() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let mut parked = Parked::new(&mut bench);
    let (device, pinned) = (
        bench.allocate(MemoryType::Cuda(0), 4096),
        bench.pinned(4096),
    );
    bench.copy(pinned.end(0), device.end(0), 8).expect("copies");
    control("hold");
    for token in 0..5 {
        bench
            .begin(pinned.end(0), device.end(0), 8, token)
            .expect("begins");
        bench.engine.flush();
    }
    assert!(bench.engine.arm());
    let ran = calls("cuLaunchHostFunc");
    control("break 0 719");
    parked.drain(&mut bench, 5);
    assert_eq!(calls("cuLaunchHostFunc"), ran, "no new one was needed");
    for (index, (token, result)) in bench.sink.done.drain(..).enumerate() {
        assert_eq!(token, index as u64);
        let error = result.expect_err("lost");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    }
    let lost = bench.sink.lost.take().expect("the only device");
    assert!(lost.to_string().contains("719"), "{lost}");
    let error = bench
        .begin(pinned.end(0), device.end(0), 8, 9)
        .expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::DeviceLost);
    // And nothing is woken any more.
    assert!(bench.engine.arm());
    assert_eq!(bench.engine.progress(64, &mut bench.sink), 0);
    let _ = live("contexts");
}

#[test]
fn a_device_that_dies_is_seen_by_who_polls() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let (device, other, pinned) = (
        bench.allocate(MemoryType::Cuda(0), 4096),
        bench.allocate(MemoryType::Cuda(1), 4096),
        bench.pinned(4096),
    );
    bench.copy(pinned.end(0), device.end(0), 8).expect("copies");
    bench.copy(pinned.end(0), other.end(0), 8).expect("copies");
    control("hold 0");
    bench
        .begin(pinned.end(0), device.end(0), 8, 1)
        .expect("begins");
    bench.engine.flush();
    control("break 0 700");
    bench.drain(1);
    let error = bench.sink.done.pop().expect("told").1.expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    // The other device goes on, and so does the engine.
    assert!(bench.sink.lost.is_none());
    bench.copy(pinned.end(0), other.end(0), 8).expect("copies");
    for (from, to) in [
        (pinned.end(0), device.end(0)),
        (other.end(0), device.end(0)),
    ] {
        let error = bench.begin(from, to, 8, 2).expect_err("lost");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    }
    control("release");
}
