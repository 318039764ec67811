//! Bad addresses, and a device that does not end its work.
//!
//! Used by `#[path = "../support/lost.rs"] mod given_up;`, in programs whose `fixture` names the vendor's memory and its emulator.

use std::time::{Duration, Instant};

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{Bench, COPIES, DEVICE, accelerator, block_until, control, device_end, own, pattern},
    support::{block_at_rest, this_test},
};

/// How long a device that hangs is waited for.
const HANGS: Duration = Duration::from_millis(300);

#[test]
fn addresses_that_are_not_what_they_are_said_to_be() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let (device, pinned) = (bench.allocate(DEVICE, 4096), bench.pinned(4096));
    bench.copy(pinned.end(0), device.end(0), 8).expect("copies");
    let host = vec![0_u8; 4096];
    let host = host.as_ptr() as u64;
    // Freed: by this program's own call.
    let freed = own(0, 4096);
    let gone = freed.address();
    bench
        .copy(pinned.end(0), device_end(gone, 0), 8)
        .expect("it is there");
    drop(freed);
    for (from, to) in [
        (device_end(host, 0), pinned.end(0)),
        (pinned.end(0), device_end(host, 0)),
        (device_end(host, 0), device.end(0)),
        (device_end(gone, 0), pinned.end(0)),
        (pinned.end(0), device_end(gone, 0)),
        (device.end(0), device_end(gone, 0)),
        // Past the end of an allocation.
        (device.end(4000), pinned.end(0)),
    ] {
        let error = bench
            .copy(from, to, 4096)
            .expect_err("not what it is said to be");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let text = error.to_string();
        assert!(COPIES.is_none_or(|call| text.contains(call)), "{error}");
    }
    bench
        .copy(pinned.end(0), device.end(0), 4096)
        .expect("the engine goes on");
    assert!(bench.sink.lost.is_none());
}

#[test]
fn a_device_that_hangs_is_given_up() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let (device, mut pinned) = (bench.allocate(DEVICE, 4096), bench.pinned(4096));
    bench.copy(pinned.end(0), device.end(0), 8).expect("copies");
    control("hold");
    pinned.bytes_mut().copy_from_slice(&pattern(3, 4096));
    bench
        .begin(pinned.end(0), device.end(0), 4096, 1)
        .expect("begins");
    bench.engine.flush();
    let start = Instant::now();
    bench.engine.quiesce(start + HANGS);
    assert!(start.elapsed() >= HANGS);
    bench.drain(1);
    let told = bench.sink.done.pop().expect("told").1;
    let error = told.expect_err("given up");
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    // What the device may still read is not freed, and the copy goes well when the device wakes up after all.
    let at = device.address();
    drop(pinned);
    let domain = bench.domain.clone();
    drop(bench);
    block_at_rest("what is left", Duration::from_millis(50), || {
        control("live")
    });
    control("release");
    block_until("the copy", || {
        control(&format!("digest {at} 4096")) == digest(&pattern(3, 4096))
    });
    drop((device, domain));
    let _ = accelerator();
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

/// As the emulators make it.
fn digest(bytes: &[u8]) -> String {
    let digest = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
            (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{digest:016x}")
}
