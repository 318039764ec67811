//! Copies and fills: many at once, refused ones, and those that reach a byte too far.

use std::ptr;

use super::api::*;
use crate::support::{block_until, this_test};

#[test]
fn many_copies_are_one_call() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    acquired();
    let stream = stream();
    let memory = malloc(4096);
    let (mut source, mut target) = (Host::mapped(4096), Host::mapped(4096));
    let wanted = pattern(2, 4096);
    source.bytes().copy_from_slice(&wanted);
    // The quarters in another order, the last of them in no bytes.
    let (from, to) = (source.address(), target.address());
    let there = (
        [from, from + 1024, 0],
        [1024, 3072, 0],
        [memory + 3072, memory, 0],
    );
    ok(synMemCopyAsyncMultiple(
        stream,
        there.0.as_ptr(),
        there.1.as_ptr(),
        there.2.as_ptr(),
        TO_DEVICE,
        3,
    ));
    ok(synStreamSynchronize(stream));
    ok(synMemCopyAsync(stream, memory, 4096, to, TO_HOST));
    ok(synStreamSynchronize(stream));
    assert_eq!(target.bytes()[..3072], wanted[1024..]);
    assert_eq!(target.bytes()[3072..], wanted[..1024]);
    // When one is refused, none is done.
    target.bytes().fill(0);
    ok(synMemsetD8Async(memory, 7, 4096, stream));
    ok(synStreamSynchronize(stream));
    let (sources, lens) = ([from, from], [16, 4097]);
    let status = synMemCopyAsyncMultiple(
        stream,
        sources.as_ptr(),
        lens.as_ptr(),
        [memory, memory].as_ptr(),
        TO_DEVICE,
        2,
    );
    assert_eq!(status, NOT_MAPPED);
    ok(synStreamQuery(stream));
    ok(synMemCopyAsync(stream, memory, 4096, to, TO_HOST));
    ok(synStreamSynchronize(stream));
    assert_eq!(target.bytes(), [7; 4096]);
    let one = [16_u64].as_ptr();
    for (from, len, to) in [
        (ptr::null(), one, one),
        (one, ptr::null(), one),
        (one, one, ptr::null()),
    ] {
        let status = synMemCopyAsyncMultiple(stream, from, len, to, WITHIN, 1);
        assert_eq!(status, INVALID_ARGUMENT);
    }
    // Nothing of nothing is nothing.
    ok(synMemCopyAsyncMultiple(stream, one, one, one, WITHIN, 0));
    ok(synHostUnmap(0, source.pointer()));
    ok(synHostUnmap(0, target.pointer()));
    ok(synDeviceFree(0, memory, 0));
    ok(synStreamDestroy(stream));
    released(&[]);
}

#[test]
fn fills_are_of_each_width() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    acquired();
    let stream = stream();
    let memory = malloc(64);
    let mut host = Host::mapped(4096);
    ok(synMemsetD8Async(memory, 9, 64, stream));
    ok(synMemsetD16Async(memory + 3, 0x0201, 5, stream));
    ok(synMemsetD32Async(memory + 20, 0xD4C3_B2A1, 3, stream));
    ok(synMemsetD8Async(memory + 63, 1, 1, stream));
    ok(synMemsetD32Async(memory + 63, 1, 0, stream));
    ok(synStreamSynchronize(stream));
    ok(synMemCopyAsync(stream, memory, 64, host.address(), TO_HOST));
    ok(synStreamSynchronize(stream));
    let mut wanted = [9; 64];
    wanted[3..13].copy_from_slice(&[1, 2].repeat(5));
    wanted[20..32].copy_from_slice(&[0xA1, 0xB2, 0xC3, 0xD4].repeat(3));
    wanted[63] = 1;
    assert_eq!(host.bytes()[..64], wanted);
    for refused in [
        synMemsetD8Async(memory, 0, 1 << 32, stream),
        synMemsetD16Async(memory, 0, 1 << 31, stream),
        synMemsetD32Async(memory, 0, 1 << 30, stream),
        synMemsetD32Async(memory, 0, usize::MAX / 4 + 2, stream),
        synMemsetD8Async(0, 0, 1, stream),
        synMemsetD8Async(memory, 0, 1, 0),
    ] {
        assert_eq!(refused, INVALID_ARGUMENT);
    }
    ok(synHostUnmap(0, host.pointer()));
    ok(synDeviceFree(0, memory, 0));
    ok(synStreamDestroy(stream));
    released(&[]);
}

#[test]
fn wrong_copies_are_refused_at_once() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    acquired();
    let stream = stream();
    let memory = malloc(4096);
    let (host, elsewhere) = (Host::mapped(8192), Host::new(4096));
    let at = host.address();
    let copy = |from, len, to, direction| synMemCopyAsync(stream, from, len, to, direction);
    for (status, refused) in [
        (NOT_MAPPED, copy(elsewhere.address(), 1, memory, TO_DEVICE)),
        (NOT_MAPPED, copy(memory, 1, elsewhere.address(), TO_HOST)),
        (NOT_MAPPED, copy(at + 1, 8192, memory, TO_DEVICE)),
        (NOT_MAPPED, copy(at - 1, 1, memory, TO_DEVICE)),
        (NOT_MAPPED, copy(at, 8193, memory, TO_DEVICE)),
        (NOT_MAPPED, copy(memory, 1, at + 8192, TO_HOST)),
        // The wrong way round.
        (NOT_MAPPED, copy(memory, 8, at, TO_DEVICE)),
        (NOT_MAPPED, copy(at, 8, memory, TO_HOST)),
        (INVALID_ARGUMENT, copy(0, 8, memory, TO_DEVICE)),
        (INVALID_ARGUMENT, copy(memory, 8, 0, TO_HOST)),
        (INVALID_ARGUMENT, copy(memory, 8, 0, WITHIN)),
        (INVALID_ARGUMENT, copy(memory, 8, memory, 3)),
        (INVALID_ARGUMENT, copy(memory, 8, memory, u32::MAX)),
        (INVALID_ARGUMENT, copy(memory, 1 << 32, memory, WITHIN)),
    ] {
        assert_eq!(refused, status);
    }
    let no_stream = synMemCopyAsync(0, memory, 8, memory + 8, WITHIN);
    assert_eq!(no_stream, INVALID_ARGUMENT);
    // No bytes are no copy, wherever they are.
    ok(copy(elsewhere.address(), 0, 0, TO_DEVICE));
    ok(synStreamQuery(stream));
    ok(synHostUnmap(0, host.pointer()));
    ok(synDeviceFree(0, memory, 0));
    ok(synStreamDestroy(stream));
    released(&[]);
}

/// Each is refused by the card itself, when its turn comes: the device is lost, and the program's mistake written down.
#[test]
fn a_byte_too_far_loses_the_device() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    ok(synInitialize());
    for way in 0..6 {
        let mut id = NO_ID;
        ok(synDeviceAcquire(&mut id, ptr::null()));
        control("forget");
        let (stream, event) = (stream(), event(0));
        // Allocations begin at multiples of 128 bytes: what lies between their ends and the next ones is nobody's.
        let (memory, host) = (malloc(1000), Host::mapped(4096));
        let at = host.address();
        let within = memory + 1000 - 8;
        let copy = |from, len, to, direction| ok(synMemCopyAsync(stream, from, len, to, direction));
        match way {
            0 => copy(at, 1001, memory, TO_DEVICE),
            1 => copy(within, 9, at, TO_HOST),
            2 => copy(memory, 9, within, WITHIN),
            3 => copy(memory - 1, 1, at, TO_HOST),
            4 => ok(synMemsetD16Async(within, 1, 5, stream)),
            // The host's memory is none of the device's.
            _ => copy(at, 8, memory, WITHIN),
        }
        ok(synEventRecord(event, stream));
        block_until("the loss", || synEventQuery(event) == DEVICE_RESET);
        for lost in [
            synStreamSynchronize(stream),
            synStreamDestroy(stream),
            synDeviceSynchronize(0),
            synDeviceMalloc(0, 8, 0, 0, &mut 0),
            synMemCopyAsync(stream, memory, 8, memory + 8, WITHIN),
        ] {
            assert_eq!(lost, DEVICE_RESET, "way {way}");
        }
        ok(synDeviceRelease(0));
        assert_eq!(control("live"), "devices 0");
        noticed(&["gone", "was released with"]);
    }
}
