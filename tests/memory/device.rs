//! io_uring is the device that the oracle needs: it goes on using the pages that it pinned, whatever the program does to the mapping.
//!
//! # Safety
//! The memory is mapped by each test for itself, and no reference points to it.
#![allow(unsafe_code)]

use std::{io, ptr};

use wharf::{
    Access, ErrorKind,
    memory::{AddressRange, Registrar},
};

use crate::{script::map_at, uring::UringRegistrar};

const LENGTH: usize = 4 * 4096;

/// Registers pages full of `A`, changes their mapping, fills them with `B`: what the device reads then.
fn seen_after(change: impl FnOnce(usize) -> usize) -> u8 {
    let device = UringRegistrar::new(4);
    let base = map_at(0, LENGTH, false, 0).expect("memory");
    // SAFETY: mapped above.
    unsafe { ptr::write_bytes(base as *mut u8, b'A', LENGTH) };
    let range = AddressRange::new(base as u64, LENGTH as u64).expect("a range");
    let slot = device.register(range, Access::READ).expect("pinned");
    let base = change(base);
    // SAFETY: mapped above, or by the change.
    unsafe { ptr::write_bytes(base as *mut u8, b'B', LENGTH) };
    let bytes = device
        .read(&slot, range.start() + 100, 4096)
        .expect("a transfer");
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    device.deregister(slot, range).expect("unpinned");
    assert_eq!(device.held(4), 0);
    // SAFETY: mapped above, or by the change.
    assert_eq!(
        // SAFETY: the mapping is this test's own, made above, and nothing else uses it.
        unsafe { libc::munmap(base as *mut libc::c_void, LENGTH) },
        0
    );
    bytes[0]
}

#[test]
#[ignore = "needs io_uring: a container may refuse it"]
fn it_reads_what_is_written_now() {
    assert_eq!(seen_after(|base| base), b'B');
}

#[test]
#[ignore = "needs io_uring: a container may refuse it"]
fn it_keeps_discarded_pages() {
    let seen = seen_after(|base| {
        // SAFETY: the test's own pages.
        let done = unsafe { libc::madvise(base as *mut libc::c_void, LENGTH, libc::MADV_DONTNEED) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
        base
    });
    assert_eq!(seen, b'A');
}

#[test]
#[ignore = "needs io_uring: a container may refuse it"]
fn it_keeps_pages_that_others_took_the_place_of() {
    let seen = seen_after(|base| map_at(base, LENGTH, false, libc::MAP_FIXED).expect("memory"));
    assert_eq!(seen, b'A');
}

#[test]
#[ignore = "needs io_uring: a container may refuse it"]
fn it_writes_where_it_was_told_and_nowhere_else() {
    let device = UringRegistrar::new(1);
    let base = map_at(0, LENGTH, false, 0).expect("memory");
    let range = AddressRange::new(base as u64, LENGTH as u64).expect("a range");
    let slot = device.register(range, Access::WRITE).expect("pinned");
    // SAFETY: mapped above.
    unsafe { device.write(&slot, range.start() + 4090, b"across two pages") }.expect("a transfer");
    let outside = device.read(&slot, range.start() - 1, 2);
    assert!(outside.is_err(), "an address outside of the registration");
    // SAFETY: mapped above.
    let seen = unsafe { ptr::read((base + 4090) as *const [u8; 16]) };
    assert_eq!(&seen, b"across two pages");
    let full = device.register(range, Access::READ).expect_err("one slot");
    assert_eq!(full.kind(), ErrorKind::Exhausted);
    device.deregister(slot, range).expect("unpinned");
    // SAFETY: mapped above.
    assert_eq!(
        // SAFETY: the mapping is this test's own, made above, and nothing else uses it.
        unsafe { libc::munmap(base as *mut libc::c_void, LENGTH) },
        0
    );
    let gone = device
        .register(range, Access::READ)
        .expect_err("not mapped");
    assert_eq!(gone.kind(), ErrorKind::InvalidArgument);
    assert_eq!(device.held(1), 0);
}
