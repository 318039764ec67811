//! What may be called when: before the start, without a device, after its release, after the end, and in a forked child.

use std::ptr;

use super::api::*;
use crate::support::{block_until, this_test};

/// Functions that need a device, with what they say without one.
fn without_device() -> Vec<(&'static str, i32, i32)> {
    let (mut id, mut one, mut two) = (0, 0, 0);
    let mut start = ptr::null_mut();
    let here = ptr::addr_of!(id).cast();
    let mut room = [0; 16];
    macro_rules! asked {
        ($($name:ident($($argument:expr),*) => $status:ident;)*) => {
            vec![$((stringify!($name), $name($($argument),*), $status)),*]
        };
    }
    let all = asked! {
        synDeviceRelease(0) => NO_DEVICE;
        synDeviceGetName(room.as_mut_ptr(), 16, 0) => NO_DEVICE;
        synDeviceGetPCIBusId(room.as_mut_ptr(), 16, 0) => FAIL;
        synDeviceGetInfoV2(0, &mut Info::default()) => FAIL;
        synDeviceGetMemoryInfo(0, &mut one, &mut two) => FAIL;
        synDeviceGetAttribute(&mut one, &attribute::DRAM_SIZE, 1, 0) => FAIL;
        synDeviceSynchronize(0) => FAIL;
        synDeviceMalloc(0, 8, 0, 0, &mut one) => FAIL;
        synDeviceFree(0, 1 << 60, 0) => FAIL;
        synHostMalloc(0, 8, 0, &mut start) => FAIL;
        synHostFree(0, here, 0) => FAIL;
        synHostMap(0, 4, here) => INVALID_ARGUMENT;
        synHostUnmap(0, here) => INVALID_ARGUMENT;
        synStreamCreateGeneric(&mut 0, 0, 0) => FAIL;
        synStreamDestroy(16) => FAIL;
        synStreamQuery(16) => FAIL;
        synStreamSynchronize(16) => FAIL;
        synStreamWaitEvent(16, 16, 0) => FAIL;
        synEventCreate(&mut 0, 0, 0) => FAIL;
        synEventDestroy(16) => FAIL;
        synEventRecord(16, 16) => FAIL;
        synEventQuery(16) => FAIL;
        synEventSynchronize(16) => FAIL;
        synEventElapsedTime(&mut one, 16, 16) => FAIL;
        synMemCopyAsync(16, 8, 8, 8, WITHIN) => FAIL;
        synMemCopyAsyncMultiple(16, &8, &8, &8, WITHIN, 1) => FAIL;
        synMemsetD8Async(8, 0, 8, 16) => FAIL;
        synMemsetD16Async(8, 0, 8, 16) => FAIL;
        synMemsetD32Async(8, 0, 8, 16) => FAIL;
    };
    id += 1;
    assert_eq!((id, one, two, start), (1, 0, 0, ptr::null_mut()));
    all
}

/// Functions that need no device.
fn with_a_start() -> Vec<(&'static str, i32)> {
    let (mut count, mut value) = (8, 0);
    let mut many = [0; 8];
    vec![
        ("count", synDeviceGetCount(&mut count)),
        (
            "of a type",
            synDeviceGetCountByDeviceType(&mut count, GAUDI2),
        ),
        ("types", synDeviceCount(many.as_mut_ptr())),
        ("modules", synDeviceGetModuleIDs(many.as_mut_ptr(), &mut 8)),
        (
            "a type's",
            synDeviceTypeGetAttribute(&mut value, &attribute::ALIGNMENT, 1, GAUDI2),
        ),
        (
            "a module's",
            synDeviceGetAttributeByModuleId(&mut value, &attribute::ALIGNMENT, 1, 7),
        ),
    ]
}

/// What each call says before the start and after the end.
fn nothing_works() {
    for (name, status, _) in without_device() {
        assert_eq!(status, UNINITIALISED, "{name}");
    }
    for (name, status) in with_a_start() {
        assert_eq!(status, UNINITIALISED, "{name}");
    }
    let mut id = 5;
    for refused in [
        synDeviceAcquire(&mut id, ptr::null()),
        synDeviceAcquireByModuleId(&mut id, 7),
        synDeviceAcquireByDeviceType(&mut id, ANY_TYPE),
        synDestroy(),
    ] {
        assert_eq!((refused, id), (UNINITIALISED, 5));
    }
}

#[test]
fn calls_have_their_time() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    nothing_works();
    for _ in 0..2 {
        ok(synInitialize());
        // Again is nothing.
        ok(synInitialize());
        let mut id = NO_ID;
        for _ in 0..2 {
            for (name, status, wanted) in without_device() {
                assert_eq!(status, wanted, "{name}");
            }
            for (name, status) in with_a_start() {
                assert_eq!(status, 0, "{name}");
            }
            ok(synDeviceAcquire(&mut id, ptr::null()));
            released(&[]);
        }
        ok(synDestroy());
        nothing_works();
    }
    noticed(&[]);
    assert_eq!(control("live"), "devices 0");
}

#[test]
fn a_second_start_is_told_to_who_asks() {
    if !crate::support::is_alone() {
        let variable = "HABANA_DISABLE_DOUBLE_SYN_INITIALIZE";
        alone(this_test!(), &[(variable, "0")]);
        return alone(this_test!(), &[(variable, "1")]);
    }
    let asks = std::env::var("HABANA_DISABLE_DOUBLE_SYN_INITIALIZE").as_deref() == Ok("1");
    for _ in 0..2 {
        ok(synInitialize());
        assert_eq!(synInitialize(), if asks { ALREADY_INITIALISED } else { 0 });
        acquired_without_start();
        released(&[]);
        ok(synDestroy());
    }
}

fn acquired_without_start() {
    let mut id = NO_ID;
    ok(synDeviceAcquire(&mut id, ptr::null()));
}

#[test]
fn the_end_takes_a_device_along() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    acquired();
    ok(synDestroy());
    noticed(&["synDestroy was called while a device was acquired"]);
    assert_eq!(control("live"), "devices 0");
    nothing_works();
    // The card is free.
    acquired();
    control("forget");
    released(&[]);
}

#[test]
fn a_forked_child_has_nothing() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    assert_eq!(forked(synInitialize), 0, "before the start it may start");
    acquired();
    let (stream, event) = (stream(), event(0));
    ok(synEventRecord(event, stream));
    let address = malloc(8);
    let calls: [&dyn Fn() -> i32; 8] = [
        &|| synInitialize(),
        &|| synDestroy(),
        &|| synDeviceGetCount(&mut 0),
        &|| synDeviceRelease(0),
        &|| synDeviceFree(0, address, 0),
        &|| synStreamQuery(stream),
        &|| synEventQuery(event),
        &|| synMemsetD8Async(address, 0, 8, stream),
    ];
    for call in calls {
        assert_eq!(forked(call), UNINITIALISED);
    }
    // The parent goes on.
    ok(synMemsetD8Async(address, 0, 8, stream));
    ok(synStreamSynchronize(stream));
    ok(synEventDestroy(event));
    ok(synStreamDestroy(stream));
    ok(synDeviceFree(0, address, 0));
    released(&[]);
}

/// One thread waits; another would let the device go.
#[test]
fn a_device_that_is_in_use_is_not_released() {
    if !crate::support::is_alone() {
        return alone(this_test!(), &[]);
    }
    acquired();
    let (stream, address) = (stream(), malloc(64));
    control("hold all");
    ok(synMemsetD8Async(address, 0, 64, stream));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| synStreamSynchronize(stream));
        block_until("the other thread's call", || control("inside") == "1");
        assert_eq!(synDeviceRelease(0), FAIL);
        assert_eq!(synStreamQuery(stream), BUSY, "all is as it was");
        control("release");
        ok(waits.join().expect("no panic"));
    });
    ok(synDeviceFree(0, address, 0));
    ok(synStreamDestroy(stream));
    released(&["to be released while another thread"]);
}
