//! Streams and events: what waits for what, what takes time, and handles that are none.

use std::ptr;

use super::api::*;
use crate::support::{block_until, this_test};

/// A stream fills memory, and others of it are to see the fill: only the event orders them.
#[test]
fn a_stream_waits_for_an_event() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    acquired();
    let (first, second) = (stream(), stream());
    let event = event(0);
    let memory = malloc(64);
    let seen = Host::mapped(4096);
    let back = |stream| ok(synMemCopyAsync(stream, memory, 64, seen.address(), TO_HOST));
    ok(synMemsetD8Async(memory, 1, 64, first));
    ok(synStreamSynchronize(first));
    // Without a wait the copy overtakes.
    control("hold 2");
    ok(synMemsetD8Async(memory, 2, 64, first));
    back(second);
    ok(synStreamSynchronize(second));
    assert_eq!(seen.first(), 1);
    // With one it comes after, and so does what is recorded behind it.
    ok(synEventRecord(event, first));
    ok(synStreamWaitEvent(second, event, 0));
    // What is given to the first stream later is not waited for, nor is a later record of the event.
    ok(synMemsetD8Async(memory + 32, 3, 32, first));
    ok(synEventRecord(event, first));
    back(second);
    assert_eq!(synStreamQuery(second), BUSY);
    assert_eq!(synEventQuery(event), BUSY);
    assert_eq!(seen.first(), 1);
    control("release");
    ok(synStreamSynchronize(second));
    assert_eq!(seen.first(), 2);
    ok(synEventSynchronize(event));
    ok(synStreamQuery(first));
    // An event may go before it is reached: who waits for it waits on.
    control("hold 2");
    ok(synMemsetD8Async(memory, 4, 64, first));
    ok(synEventRecord(event, first));
    ok(synStreamWaitEvent(second, event, 0));
    ok(synEventDestroy(event));
    back(second);
    assert_eq!(synStreamQuery(second), BUSY);
    control("release");
    ok(synDeviceSynchronize(0));
    assert_eq!(seen.first(), 4);
    ok(synHostUnmap(0, seen.pointer()));
    ok(synDeviceFree(0, memory, 0));
    ok(synStreamDestroy(first));
    ok(synStreamDestroy(second));
    released(&[]);
}

#[test]
fn a_stream_with_work_is_not_destroyed() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    acquired();
    let (first, second) = (stream(), stream());
    let event = event(0);
    let memory = malloc(64);
    control("hold all");
    ok(synMemsetD8Async(memory, 2, 64, first));
    ok(synEventRecord(event, first));
    ok(synStreamWaitEvent(second, event, 0));
    // To wait is work.
    for stream in [first, second] {
        assert_eq!(synStreamDestroy(stream), BUSY);
        assert_eq!(synStreamQuery(stream), BUSY, "it is there still");
    }
    control("release");
    for stream in [first, second] {
        ok(synStreamSynchronize(stream));
        ok(synStreamDestroy(stream));
    }
    // The event outlives its stream.
    ok(synEventQuery(event));
    ok(synEventSynchronize(event));
    ok(synEventDestroy(event));
    ok(synDeviceFree(0, memory, 0));
    released(&[]);
}

#[test]
fn events_take_times_when_asked_to() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    acquired();
    let stream = stream();
    let [start, end] = [COLLECT_TIME; 2].map(event);
    let plain = event(0);
    let memory = malloc(64);
    let mut nanos = 7;
    assert_eq!(
        synEventElapsedTime(&mut nanos, start, end),
        NOT_INITIALISED_OBJECT
    );
    ok(synEventRecord(start, stream));
    assert_eq!(
        synEventElapsedTime(&mut nanos, start, end),
        NOT_INITIALISED_OBJECT
    );
    control("hold 2");
    ok(synMemsetD8Async(memory, 2, 64, stream));
    ok(synEventRecord(end, stream));
    ok(synEventRecord(plain, stream));
    assert_eq!(synEventElapsedTime(&mut nanos, start, end), BUSY);
    assert_eq!(nanos, 7, "nothing is written");
    // The start is passed: alone it tells when.
    ok(synEventElapsedTime(&mut nanos, start, 0));
    let began = nanos;
    assert!(began > 0);
    // The end cannot come earlier than the card is let go on.
    control("set delay_us 0");
    let held = std::time::Instant::now();
    block_until("a while", || held.elapsed().as_millis() >= 5);
    control("release");
    ok(synEventSynchronize(end));
    ok(synEventElapsedTime(&mut nanos, start, end));
    let between = nanos;
    assert!(between >= 5_000_000, "{between}");
    ok(synEventElapsedTime(&mut nanos, end, 0));
    assert_eq!(nanos - began, between);
    ok(synEventElapsedTime(&mut nanos, end, end));
    assert_eq!(nanos, 0);
    for refused in [
        synEventElapsedTime(&mut nanos, plain, end),
        synEventElapsedTime(&mut nanos, start, plain),
        synEventElapsedTime(ptr::null_mut(), start, end),
    ] {
        assert_eq!(refused, INVALID_ARGUMENT);
    }
    for event in [start, end, plain] {
        ok(synEventDestroy(event));
    }
    assert_eq!(synEventElapsedTime(&mut nanos, start, end), FAIL);
    assert_eq!(synEventElapsedTime(&mut nanos, 0, 0), FAIL);
    ok(synDeviceFree(0, memory, 0));
    ok(synStreamDestroy(stream));
    released(&[]);
}

#[test]
fn handles_that_are_none_are_refused() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    acquired();
    let [live, gone] = [(); 2].map(|()| stream());
    let [mark, destroyed] = [0; 2].map(event);
    ok(synStreamDestroy(gone));
    ok(synEventDestroy(destroyed));
    // An event is no stream, nor a stream an event.
    for none in [0, gone, gone + 1, mark, usize::MAX] {
        for refused in [
            synStreamDestroy(none),
            synStreamQuery(none),
            synStreamSynchronize(none),
            synStreamWaitEvent(none, mark, 0),
            synEventRecord(mark, none),
            synMemsetD8Async(8, 0, 8, none),
            synMemCopyAsync(none, 8, 8, 8, WITHIN),
        ] {
            assert_eq!(refused, INVALID_ARGUMENT, "{none:#x}");
        }
    }
    for none in [0, destroyed, mark + 1, live] {
        for refused in [
            synEventQuery(none),
            synEventSynchronize(none),
            synEventRecord(none, live),
            synStreamWaitEvent(live, none, 0),
        ] {
            assert_eq!(refused, INVALID_EVENT, "{none:#x}");
        }
    }
    assert_eq!(synEventDestroy(destroyed), FAIL);
    assert_eq!(synEventDestroy(0), INVALID_ARGUMENT);
    // Flags that nobody knows, and results that nobody takes.
    let mut handle = 0;
    ok(synEventRecord(mark, live));
    for refused in [
        synStreamCreateGeneric(&mut handle, 0, 1),
        synStreamCreateGeneric(ptr::null_mut(), 0, 0),
        synEventCreate(&mut handle, 0, 2),
        synEventCreate(ptr::null_mut(), 0, 0),
        // "Must be 0"; and an event "of another stream".
        synStreamWaitEvent(live, mark, 1),
        synStreamWaitEvent(live, mark, 0),
    ] {
        assert_eq!(refused, INVALID_ARGUMENT);
    }
    assert_eq!(handle, 0);
    noticed(&[]);
    // What was never recorded is passed, says the header; a runtime of 2024 ends the process.
    let fresh = event(0);
    ok(synEventQuery(fresh));
    ok(synEventSynchronize(fresh));
    ok(synStreamWaitEvent(live, fresh, 0));
    ok(synStreamQuery(live));
    ok(synEventDestroy(fresh));
    ok(synEventDestroy(mark));
    ok(synStreamDestroy(live));
    released(&["never recorded"; 3]);
}
