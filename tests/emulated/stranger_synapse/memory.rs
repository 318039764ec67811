//! Memory of the device, and of the host's: had, given back, and what is no memory to give back.

use std::ptr;

use super::api::*;
use crate::support::this_test;

#[test]
fn device_memory_is_had_and_given_back() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[("EMULATED_SYNAPSE_MEMORY", "65536")]);
    }
    acquired();
    let free = || {
        let (mut free, mut total) = (0, 0);
        ok(synDeviceGetMemoryInfo(0, &mut free, &mut total));
        assert_eq!(total, 65_536);
        free
    };
    let mut address = 5;
    assert_eq!(synDeviceMalloc(0, 0, 0, 0, &mut address), INVALID_ARGUMENT);
    assert_eq!(
        synDeviceMalloc(0, 8, 0, 0, ptr::null_mut()),
        INVALID_ARGUMENT
    );
    // "Should be zero."
    assert_eq!(synDeviceMalloc(0, 8, 0, 1, &mut address), FAIL);
    for len in [65_537, u64::MAX] {
        assert_eq!(
            synDeviceMalloc(0, len, 0, 0, &mut address),
            OUT_OF_DEVICE_MEMORY
        );
    }
    let all = malloc(65_536);
    assert_eq!(free(), 0);
    assert_eq!(
        synDeviceMalloc(0, 1, 0, 0, &mut address),
        OUT_OF_DEVICE_MEMORY
    );
    ok(synDeviceFree(0, all, 0));
    // A wish for an address is kept where it can be, and else is none.
    let wish = |wanted, len| {
        let mut address = 0;
        ok(synDeviceMalloc(0, len, wanted, 0, &mut address));
        assert!(address.is_multiple_of(128));
        address
    };
    assert_eq!(wish(all + 4096, 100), all + 4096);
    let others = [
        wish(all + 4096, 8),
        wish(all + 4096 - 128, 129),
        wish(all + 8000 + 1, 8),
        wish(all + 65_536, 8),
        wish(1, 8),
        wish(u64::MAX - 127, 8),
    ];
    assert_eq!(free(), 65_536 - 8 * 128);
    for (index, one) in others.iter().enumerate() {
        assert!((all..all + 65_536).contains(one) && *one != all + 4096);
        assert!(!others[..index].contains(one), "{one:#x} is had once");
    }
    assert_eq!(wish(all + 4096 + 128, 128), all + 4096 + 128);
    assert_eq!(synDeviceFree(0, all + 4096, 1), FAIL, "flags");
    for address in [all + 4096, all + 4096 + 128].iter().chain(&others) {
        ok(synDeviceFree(0, *address, 0));
    }
    assert_eq!(free(), 65_536);
    let large = malloc(1024);
    let inside = wish(large + 512, 8);
    assert!(!(large..large + 1024).contains(&inside), "{inside:#x}");
    ok(synDeviceFree(0, large, 0));
    ok(synDeviceFree(0, inside, 0));
    noticed(&[]);
    // What is not had is not given back.
    let one = malloc(256);
    for wrong in [one + 128, one - 1, 0] {
        assert_eq!(synDeviceFree(0, wrong, 0), FAIL);
    }
    ok(synDeviceFree(0, one, 0));
    assert_eq!(synDeviceFree(0, one, 0), FAIL, "twice");
    released(&["synDeviceFree"; 4]);
}

#[test]
fn new_device_memory_holds_anything() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    acquired();
    let (stream, mut host) = (stream(), Host::mapped(4096));
    for len in [1, 4096_u64] {
        let memory = malloc(len);
        host.bytes().fill(0);
        ok(synMemCopyAsync(
            stream,
            memory,
            len,
            host.address(),
            TO_HOST,
        ));
        ok(synStreamSynchronize(stream));
        let len = len as usize;
        assert!(host.bytes()[..len].iter().all(|byte| *byte != 0));
        ok(synMemsetD8Async(memory, 0, len, stream));
        ok(synStreamSynchronize(stream));
        ok(synDeviceFree(0, memory, 0));
    }
    ok(synHostUnmap(0, host.pointer()));
    ok(synStreamDestroy(stream));
    released(&[]);
}

#[test]
fn host_memory_of_either_kind_is_given_back_its_way() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    acquired();
    let mut start = ptr::null_mut();
    assert_eq!(synHostMalloc(0, 0, 0, &mut start), INVALID_ARGUMENT);
    assert_eq!(synHostMalloc(0, 8, 0, ptr::null_mut()), INVALID_ARGUMENT);
    assert_eq!(synHostMalloc(0, 8, 1, &mut start), FAIL);
    assert!(start.is_null());
    let mut pinned = Host::pinned(5000);
    // The program's own, to read and to write.
    pinned.bytes().copy_from_slice(&pattern(3, 5000));
    assert_eq!(pinned.bytes(), pattern(3, 5000));
    let own = Host::new(8192);
    for (len, start) in [
        (0, own.pointer()),
        (8, ptr::null()),
        (u64::MAX, own.pointer()),
    ] {
        assert_eq!(synHostMap(0, len, start), INVALID_ARGUMENT);
    }
    ok(synHostMap(0, 8192, own.pointer()));
    // Twice, a part of it, and what only begins or ends in it.
    for (at, len) in [(0, 8192), (0, 100), (4096, 4096), (8191, 2)] {
        let start = own.pointer().wrapping_byte_add(at);
        assert_eq!(synHostMap(0, len, start), INVALID_ARGUMENT, "{at}");
    }
    assert_eq!(synHostMap(0, 5000, pinned.pointer()), INVALID_ARGUMENT);
    // Constants cannot be pinned for writing.
    assert_eq!(synHostMap(0, 4, c"text".as_ptr().cast()), FAIL);
    assert_eq!(synHostFree(0, pinned.pointer(), 2), FAIL, "flags");
    noticed(&[]);
    // Each is given back its own way, by its start, once.
    for refused in [
        synHostFree(0, own.pointer(), 0),
        synHostUnmap(0, pinned.pointer()),
        synHostFree(0, pinned.pointer().wrapping_byte_add(1), 0),
        synHostUnmap(0, own.pointer().wrapping_byte_add(4096)),
        synHostFree(0, ptr::null(), 0),
        synHostUnmap(0, ptr::null()),
    ] {
        assert_eq!(refused, INVALID_ARGUMENT);
    }
    assert_eq!(pinned.bytes(), pattern(3, 5000), "it is there");
    ok(synHostFree(0, pinned.pointer(), 0));
    ok(synHostUnmap(0, own.pointer()));
    assert_eq!(synHostFree(0, pinned.pointer(), 0), INVALID_ARGUMENT);
    assert_eq!(synHostUnmap(0, own.pointer()), INVALID_ARGUMENT);
    let (free, unmap) = ("synHostFree", "synHostUnmap");
    released(&[free, unmap, free, unmap, free, unmap, free, unmap]);
}
