//! Memory that the program allocated by HSA's own functions, as buffers, as far as ROCm is like no other: `support/foreign.rs` has the rest.
//!
//! # Safety
//! What buffers are made of is kept by the test until they are gone.
#![allow(unsafe_code)]

use wharf::{Buffer, BufferMut, MemoryType};

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{calls, control, own},
    foreign_memory::{LEN, with_devices},
    program::{self, Allocation},
    support::this_test,
};

/// The runtime gives memory in multiples of this.
const PAGE: usize = 4096;

#[test]
fn its_type_is_found_by_its_address() {
    let wharf = with_devices();
    let (first, second) = (own(0, LEN), own(1, LEN));
    let pinned = program::on_host(LEN);
    let mut page = vec![7; LEN];
    let locked = program::lock(&mut page);
    let host = page.as_ptr().expose_provenance() as u64;
    for (what, at, len, wanted) in [
        ("a device's", first.address(), LEN, MemoryType::Rocm(0)),
        ("another's", second.address(), LEN, MemoryType::Rocm(1)),
        ("a part", second.address() + 77, 1000, MemoryType::Rocm(1)),
        (
            "the host's pool",
            pinned.address(),
            LEN,
            MemoryType::HostPinned,
        ),
        (
            "a part of that",
            pinned.address() + 8,
            64,
            MemoryType::HostPinned,
        ),
        ("locked, where the host has it", host, LEN, MemoryType::Host),
    ] {
        // SAFETY: kept to the end of the test; all of it is zeroed or written.
        let buffer = unsafe { Buffer::foreign(&wharf, at, len, ()) }.expect(what);
        assert_eq!(buffer.memory_type(), wanted, "{what}");
        assert_eq!(buffer.len(), len);
        assert_eq!(buffer.as_slice().is_some(), wanted.is_host_accessible());
        if at == host {
            assert_eq!(buffer.as_slice(), Some(&page[..]));
        }
    }
    let refused = |at, len| {
        // SAFETY: refused.
        let made = unsafe { BufferMut::foreign(&wharf, at, len, ()) };
        made.expect_err("not all of it is there").kind()
    };
    let argument = ErrorKind::InvalidArgument;
    assert_eq!(refused(first.address(), LEN + PAGE), argument);
    assert_eq!(refused(first.address() + 8, LEN + PAGE), argument);
    // Where devices have what was locked nobody else has anything.
    assert_eq!(refused(locked.agent_address, 64), ErrorKind::Unsupported);
    drop(locked);
}

#[test]
fn what_is_remembered_of_it_is_looked_up() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let wharf = with_devices();
    let memory = own(0, LEN);
    let buffer = || {
        // SAFETY: kept; all of it is zeroed.
        unsafe { Buffer::foreign(&wharf, memory.address(), LEN, ()) }.expect("found")
    };
    drop(buffer());
    let before = wharf.metrics().memory_types;
    control("forget");
    for _ in 0..10 {
        assert_eq!(buffer().memory_type(), MemoryType::Rocm(0));
    }
    let after = wharf.metrics().memory_types;
    assert_eq!((after.asked, after.hits), (before.asked, before.hits + 10));
    assert_eq!(calls("hsa_amd_pointer_info"), 0);
}

/// Freed by HSA's own function, and allocated there again on another device.
#[test]
fn what_was_one_devices_is_anothers() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_REUSE", "1")]);
    }
    let wharf = with_devices();
    let type_of = |memory: &Allocation| {
        // SAFETY: kept; all of it is zeroed.
        let buffer = unsafe { Buffer::foreign(&wharf, memory.address(), LEN, ()) };
        buffer.expect("found").memory_type()
    };
    let mut again = 0;
    let mut last = 0;
    for turn in 0..20 {
        let memory = own(turn % 2, LEN);
        again += u32::from(memory.address() == last);
        last = memory.address();
        assert_eq!(type_of(&memory), MemoryType::Rocm(turn % 2));
    }
    assert!(again > 10, "the addresses are used again: {again}");
}
