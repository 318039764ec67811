//! Memory that is taken away under a copy: on a card it is a page fault sooner or later, or somebody else's bytes. The
//! emulator loses the device at once, and writes the mistake down.

use super::api::*;
use crate::support::this_test;

/// What is under way, and how its memory is taken away.
struct Way {
    name: &'static str,
    begin: fn(&Ends, stream: usize) -> i32,
    take: fn(&Ends) -> i32,
}

struct Ends {
    one: u64,
    other: u64,
    own: Host,
    pinned: Host,
}

const WAYS: [Way; 7] = [
    Way {
        name: "synDeviceFree",
        begin: |ends, stream| synMemCopyAsync(stream, ends.own.address(), 8, ends.one, TO_DEVICE),
        take: |ends| synDeviceFree(0, ends.one, 0),
    },
    Way {
        name: "synHostUnmap",
        begin: |ends, stream| synMemCopyAsync(stream, ends.own.address(), 8, ends.one, TO_DEVICE),
        take: |ends| synHostUnmap(0, ends.own.pointer()),
    },
    Way {
        name: "synHostFree",
        begin: |ends, stream| {
            synMemCopyAsync(stream, ends.one, 8, ends.pinned.address() + 4088, TO_HOST)
        },
        take: |ends| synHostFree(0, ends.pinned.pointer(), 0),
    },
    Way {
        name: "synDeviceFree",
        begin: |ends, stream| {
            synMemCopyAsync(stream, ends.one + 4095, 1, ends.own.address(), TO_HOST)
        },
        take: |ends| synDeviceFree(0, ends.one, 0),
    },
    Way {
        name: "synDeviceFree",
        begin: |ends, stream| synMemCopyAsync(stream, ends.one, 8, ends.other, WITHIN),
        take: |ends| synDeviceFree(0, ends.one, 0),
    },
    Way {
        name: "synDeviceFree",
        begin: |ends, stream| synMemCopyAsync(stream, ends.one, 8, ends.other, WITHIN),
        take: |ends| synDeviceFree(0, ends.other, 0),
    },
    Way {
        name: "synDeviceFree",
        begin: |ends, stream| synMemsetD8Async(ends.other, 1, 8, stream),
        take: |ends| synDeviceFree(0, ends.other, 0),
    },
];

#[test]
fn memory_of_a_copy_under_way_is_not_given_back() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    ok(synInitialize());
    for (number, way) in WAYS.iter().enumerate() {
        let mut id = NO_ID;
        ok(synDeviceAcquire(&mut id, std::ptr::null()));
        control("forget");
        control("hold all");
        let stream = stream();
        let ends = Ends {
            one: malloc(4096),
            other: malloc(4096),
            own: Host::mapped(4096),
            pinned: Host::pinned(4096),
        };
        ok((way.begin)(&ends, stream));
        // Memory that nothing uses may go meanwhile.
        let unused = malloc(4096);
        ok(synDeviceFree(0, unused, 0));
        noticed(&[]);
        assert_eq!((way.take)(&ends), DEVICE_RESET, "way {number}");
        assert_eq!(synStreamQuery(stream), DEVICE_RESET, "it is lost");
        noticed(&[way.name]);
        ok(synDeviceRelease(0));
        control("release");
    }
}

#[test]
fn memory_that_copies_are_done_with_is_given_back() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[("EMULATED_SYNAPSE_DELAY_US", "2000")]);
    }
    acquired();
    let stream = stream();
    let ends = Ends {
        one: malloc(4096),
        other: malloc(4096),
        own: Host::mapped(4096),
        pinned: Host::pinned(4096),
    };
    ok(synMemsetD8Async(ends.one, 6, 4096, stream));
    ok(synStreamSynchronize(stream));
    for way in &WAYS {
        ok((way.begin)(&ends, stream));
    }
    ok(synStreamSynchronize(stream));
    ok(synDeviceFree(0, ends.one, 0));
    ok(synDeviceFree(0, ends.other, 0));
    ok(synHostUnmap(0, ends.own.pointer()));
    ok(synHostFree(0, ends.pinned.pointer(), 0));
    ok(synStreamDestroy(stream));
    released(&[]);
}

#[test]
fn what_is_left_at_the_end_is_written_down() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    acquired();
    control("hold all");
    let (stream, memory, host) = (stream(), malloc(100), Host::pinned(100));
    let _ = (event(0), Host::mapped(100));
    ok(synMemCopyAsync(
        stream,
        host.address(),
        100,
        memory,
        TO_DEVICE,
    ));
    let left = "streams 1\nevents 1\nallocations 1\nmapped 1\npinned 1\nbytes 128";
    assert_eq!(control("live"), left);
    // A release takes all with it, done or not.
    ok(synDeviceRelease(0));
    noticed(&["released with"]);
    assert_eq!(control("live"), "devices 0");
    let mut id = NO_ID;
    ok(synDeviceAcquire(&mut id, std::ptr::null()));
    // Nothing of the device before is there.
    for (refused, status) in [
        (synStreamQuery(stream), INVALID_ARGUMENT),
        (synDeviceFree(0, memory, 0), FAIL),
        (synHostFree(0, host.pointer(), 0), INVALID_ARGUMENT),
    ] {
        assert_eq!(refused, status);
    }
    control("forget");
    released(&[]);
}
