//! Streams, events, words, host functions.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use super::api::*;

use crate::support::{block_at_rest, block_until};

static CALLED: AtomicU32 = AtomicU32::new(0);
static INNER: AtomicU32 = AtomicU32::new(0);
static STATUS: AtomicU32 = AtomicU32::new(u32::MAX);
static SKIPPED: AtomicU32 = AtomicU32::new(0);

extern "C" fn calls_back(data: *mut c_void) {
    let mut address = 0;
    INNER.store(cuMemAlloc_v2(&mut address, 8), SeqCst);
    CALLED.store(data.expose_provenance() as u32, SeqCst);
}

extern "C" fn is_told(_stream: u64, status: u32, _data: *mut c_void) {
    STATUS.store(status, SeqCst);
}

extern "C" fn is_skipped(_data: *mut c_void) {
    SKIPPED.store(1, SeqCst);
}

fn word<'a>(address: u64) -> &'a AtomicU64 {
    let bytes = bytes(address, 8).as_mut_ptr();
    word_at(bytes)
}

#[test]
fn host_functions_run_in_order_and_may_not_call_back() {
    let _ctx = Ctx::new(12);
    let stream = stream();
    ok(cuLaunchHostFunc(
        stream,
        calls_back,
        std::ptr::without_provenance_mut(42),
    ));
    ok(cuStreamSynchronize(stream));
    assert_eq!(CALLED.load(SeqCst), 42);
    assert_eq!(INNER.load(SeqCst), 800);
}

#[test]
fn on_error_host_functions_are_skipped_and_callbacks_are_told() {
    let _ctx = Ctx::new(12);
    let stream = stream();
    control(&format!("kernel {stream} 2000 break 719"));
    ok(cuLaunchHostFunc(stream, is_skipped, std::ptr::null_mut()));
    ok(cuStreamAddCallback(
        stream,
        is_told,
        std::ptr::null_mut(),
        0,
    ));
    block_until("the callback", || STATUS.load(SeqCst) == 719);
    assert_eq!(SKIPPED.load(SeqCst), 0);
    assert_eq!(cuStreamQuery(stream), 719);
}

#[test]
fn words_in_pinned_memory_come_after_the_copies_before_them() {
    let _ctx = Ctx::new(13);
    let (host, device, stream) = (pinned(1 << 20), alloc(1 << 20), stream());
    let flag = pinned(64);
    control(&format!("fill {device} {} 3", 1 << 20));
    for number in 1..20 {
        bytes(host, 1 << 20).fill(0);
        ok(cuMemcpyAsync(host, device, 1 << 20, stream));
        ok(cuStreamWriteValue64_v2(stream, flag, number, 0));
        block_until("the word", || word(flag).load(SeqCst) == number);
        assert_eq!(control(&format!("compare {host} {} 3", 1 << 20)), "same");
    }
    assert_eq!(
        cuStreamWriteValue64_v2(stream, flag + 4, 1, 0),
        1,
        "not aligned"
    );
    let mut managed = 0;
    ok(cuMemAllocManaged(&mut managed, 64, 1));
    assert_eq!(cuStreamWriteValue32_v2(stream, managed, 1, 0), 1);
}

#[test]
fn a_stream_waits_for_a_word() {
    let _ctx = Ctx::new(13);
    let (flag, device, stream) = (pinned(64), alloc(64), stream());
    // Cyclic: -1 comes before 1.
    word(flag).store(u64::MAX, SeqCst);
    ok(cuStreamWaitValue64_v2(stream, flag, 1, 0));
    ok(cuMemsetD8Async(device, 5, 64, stream));
    let waits = block_at_rest("the stream", Duration::from_millis(5), || {
        cuStreamQuery(stream)
    });
    assert_eq!(waits, 600);
    word(flag).store(1, SeqCst);
    ok(cuStreamSynchronize(stream));
    // The second half, by another stream, in device memory.
    let other = super::api::stream();
    ok(cuStreamWaitValue32_v2(stream, device, 0x77, 1));
    ok(cuStreamWriteValue32_v2(other, device, 0x77, 0));
    ok(cuStreamSynchronize(stream));
}

#[test]
fn an_event_orders_two_streams_and_tells_when() {
    let _ctx = Ctx::new(14);
    let (first, second, device) = (stream(), stream(), alloc(4096));
    let host = pinned(4096);
    let (mut start, mut end) = (0, 0);
    ok(cuEventCreate(&mut start, 0));
    ok(cuEventCreate(&mut end, 0));
    ok(cuEventQuery(start));
    ok(cuEventRecord(start, first));
    control(&format!("kernel {first} 20000 fill {device} 4096 5"));
    ok(cuEventRecord(end, first));
    assert_eq!(cuEventQuery(end), 600);
    ok(cuStreamWaitEvent(second, end, 0));
    ok(cuMemcpyAsync(host, device, 4096, second));
    ok(cuStreamSynchronize(second));
    assert_eq!(control(&format!("compare {host} 4096 5")), "same");
    let mut milliseconds = 0.0;
    ok(cuEventElapsedTime(&mut milliseconds, start, end));
    assert!(milliseconds >= 19.0, "{milliseconds}");
    ok(cuEventDestroy_v2(end));
    assert_eq!(cuEventQuery(end), 400);
    assert_eq!(cuEventDestroy_v2(end), 400);
}

/// Without the event the copy is early: the emulator shows what forgetting it does.
#[test]
fn without_an_event_a_copy_is_early() {
    let _ctx = Ctx::new(14);
    let (first, second, device, host) = (stream(), stream(), alloc(4096), pinned(4096));
    control(&format!("kernel {first} 100000 fill {device} 4096 6"));
    ok(cuMemcpyAsync(host, device, 4096, second));
    ok(cuStreamSynchronize(second));
    assert_ne!(control(&format!("compare {host} 4096 6")), "same");
    ok(cuStreamSynchronize(first));
}

#[test]
fn blocking_streams_and_the_default_one_wait_for_each_other() {
    let _ctx = Ctx::new(14);
    let (device, host) = (alloc(4096), pinned(4096));
    let mut blocking = 0;
    ok(cuStreamCreate(&mut blocking, 0));
    control(&format!("kernel {blocking} 20000 fill {device} 4096 7"));
    ok(cuMemcpyAsync(host, device, 4096, 0));
    ok(cuStreamSynchronize(0));
    assert_eq!(control(&format!("compare {host} 4096 7")), "same");
}

#[test]
fn a_stream_of_another_context_is_refused() {
    let _first = Ctx::new(15);
    let stream = stream();
    {
        let _second = Ctx::new(15);
        assert_eq!(cuStreamQuery(stream), 400);
        let event = event();
        assert_eq!(cuEventRecord(event, stream), 400);
    }
    ok(cuStreamDestroy_v2(stream));
    assert_eq!(cuStreamQuery(stream), 400);
}
