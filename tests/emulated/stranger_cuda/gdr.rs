#![allow(unsafe_code)]
//! The emulated GDRCopy over the emulated driver, by exported names.
//!
//! # Safety
//! Each function's type is written from the public header; the pointers that tests pass live through the call.

use std::{
    ffi::{CString, c_void},
    os::unix::process::ExitStatusExt,
    sync::OnceLock,
};

use super::{
    api::*,
    second::{self, Second},
};

fn library() -> *mut c_void {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let path = crate::support::emulated::gdr();
        let name = CString::new(path.to_str().expect("a path in UTF-8")).expect("no zero bytes");
        // SAFETY: a C string; the library's start does nothing.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{} does not load", path.display());
        library.expose_provenance()
    });
    std::ptr::with_exposed_provenance_mut(*library)
}

macro_rules! gdr {
    ($name:ident($($argument:expr => $type:ty),*) -> $result:ty) => {{
        // SAFETY: an open library and a C string.
        let address = unsafe { libc::dlsym(library(), concat!(stringify!($name), "\0").as_ptr().cast()) };
        assert!(!address.is_null(), concat!(stringify!($name), " is missing"));
        // SAFETY: the type is the public header's.
        let function: extern "C" fn($($type),*) -> $result = unsafe { std::mem::transmute(address) };
        function($($argument),*)
    }};
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Handle(u64);

const PAGE: u64 = 64 << 10;

fn open() -> usize {
    gdr!(gdr_open() -> usize)
}

fn close(session: usize) -> i32 {
    gdr!(gdr_close(session => usize) -> i32)
}

fn pin(session: usize, address: u64, len: u64) -> Result<Handle, i32> {
    let mut handle = Handle(0);
    match gdr!(gdr_pin_buffer(session => usize, address => u64, len as usize => usize, 0 => u64, 0 => u32, &raw mut handle => *mut Handle) -> i32)
    {
        0 => Ok(handle),
        code => Err(code),
    }
}

fn unpin(session: usize, handle: Handle) -> i32 {
    gdr!(gdr_unpin_buffer(session => usize, handle => Handle) -> i32)
}

fn map(session: usize, handle: Handle, len: u64) -> Result<u64, i32> {
    let mut at = 0_u64;
    match gdr!(gdr_map(session => usize, handle => Handle, &raw mut at => *mut u64, len as usize => usize) -> i32)
    {
        0 => Ok(at),
        code => Err(code),
    }
}

fn unmap(session: usize, handle: Handle, at: u64, len: u64) -> i32 {
    gdr!(gdr_unmap(session => usize, handle => Handle, at => u64, len as usize => usize) -> i32)
}

fn is_revoked(session: usize, handle: Handle) -> bool {
    let mut flag = 0_i32;
    ok(
        gdr!(gdr_get_callback_flag(session => usize, handle => Handle, &raw mut flag => *mut i32) -> i32)
            as u32,
    );
    flag != 0
}

fn store(handle: Handle, at: u64, bytes: &[u8]) -> i32 {
    gdr!(gdr_copy_to_mapping(handle => Handle, at => u64, bytes.as_ptr() => *const u8, bytes.len() => usize) -> i32)
}

fn load(handle: Handle, at: u64, bytes: &mut [u8]) -> i32 {
    gdr!(gdr_copy_from_mapping(handle => Handle, bytes.as_mut_ptr() => *mut u8, at => u64, bytes.len() => usize) -> i32)
}

/// Plays `part` in a process of its own, with these variables; how it ended.
fn alone(test: &str, variables: &[(&str, &str)]) -> std::process::ExitStatus {
    Second::start(test, "alone", variables).end()
}

#[test]
fn bytes_go_through_a_window_both_ways() {
    let _ctx = Ctx::new(12);
    let address = alloc(3 << 20);
    let session = open();
    let (from, len) = (address + 2 * PAGE, 4 * PAGE);
    let handle = pin(session, from, len).expect("pins");
    let at = map(session, handle, len).expect("maps");
    assert_eq!(store(handle, at + 5, b"wharf"), 0);
    control(&format!("fill {} 100 9", from + PAGE));
    let mut bytes = [0; 100];
    assert_eq!(load(handle, at + PAGE, &mut bytes), 0);
    assert_eq!(
        bytes[7],
        (16_u64.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
    );
    // The device sees it too.
    let mut host = [0_u8; 8];
    ok(cuMemcpyDtoH_v2(
        host.as_mut_ptr().expose_provenance() as u64,
        from + 5,
        5,
    ));
    assert_eq!(&host[..5], b"wharf");
    // Not beyond.
    assert_eq!(store(handle, at + len - 2, b"abc"), libc::EINVAL);
    assert_eq!(load(handle, at - 1, &mut bytes), libc::EINVAL);
    assert_eq!(unmap(session, handle, at, len), 0);
    assert_eq!(
        store(handle, at, b"a"),
        libc::EINVAL,
        "it is mapped no more"
    );
    assert_eq!(unpin(session, handle), 0);
    assert_eq!(close(session), 0);
    ok(cuMemFree_v2(address));
}

#[test]
fn what_is_pinned_and_mapped_follows_the_rules() {
    let _ctx = Ctx::new(12);
    let address = alloc(3 << 20);
    let session = open();
    for (at, len) in [
        (address + 4096, PAGE),
        (address, 4096),
        (address, 0),
        // The room of 3 MiB has 4.
        (address, 5 << 20),
        (u64::MAX - PAGE + 1, PAGE),
        (PAGE, PAGE),
    ] {
        assert_eq!(
            pin(session, at, len).err(),
            Some(libc::EINVAL),
            "{at:#x} {len:#x}"
        );
    }
    let mut managed = 0;
    ok(cuMemAllocManaged(&mut managed, 1 << 20, 1));
    assert_eq!(pin(session, managed, PAGE).err(), Some(libc::EINVAL));
    let host = vec![0_u8; 4 * PAGE as usize];
    let host = (host.as_ptr().expose_provenance() as u64).next_multiple_of(PAGE);
    assert_eq!(pin(session, host, PAGE).err(), Some(libc::EINVAL));

    let handle = pin(session, address, 2 * PAGE).expect("pins");
    assert_eq!(
        map(session, handle, PAGE).err(),
        Some(libc::EINVAL),
        "whole or not at all"
    );
    let at = map(session, handle, 2 * PAGE).expect("maps");
    assert_eq!(map(session, handle, 2 * PAGE).err(), Some(libc::EAGAIN));
    assert_eq!(unpin(session, handle), libc::EBUSY);
    assert_eq!(unmap(session, handle, at + 4096, 2 * PAGE), libc::EINVAL);
    assert_eq!(unmap(session, handle, at, PAGE), libc::EINVAL);
    let other = open();
    assert_eq!(unpin(other, handle), libc::EINVAL, "another session's");
    assert_eq!(close(other), 0);
    assert_eq!(close(other), libc::EINVAL);
    assert_eq!(unmap(session, handle, at, 2 * PAGE), 0);
    assert_eq!(unpin(session, handle), 0);
    assert_eq!(
        unpin(session, handle),
        libc::EINVAL,
        "handles are not used again"
    );
    assert_eq!(close(session), 0);
    ok(cuMemFree_v2(managed));
    ok(cuMemFree_v2(address));
}

#[test]
fn freeing_takes_the_pages_away() {
    let _ctx = Ctx::new(12);
    let session = open();
    let address = alloc(3 << 20);
    let handle = pin(session, address, PAGE).expect("pins");
    let at = map(session, handle, PAGE).expect("maps");
    assert!(!is_revoked(session, handle));
    ok(cuMemFree_v2(address));
    assert!(is_revoked(session, handle));
    // A load of what is not there is an error of the kernel's here.
    assert_eq!(vm_read(at), Some(libc::EFAULT));
    assert_eq!(map(session, handle, PAGE).err(), Some(libc::EINVAL));
    assert_eq!(pin(session, address, PAGE).err(), Some(libc::EINVAL));
    // It is undone all the same.
    assert_eq!(unmap(session, handle, at, PAGE), 0);
    assert_eq!(unpin(session, handle), 0);
    assert_eq!(close(session), 0);
}

/// In a process of its own for the journal: small memory shares pages, which stay while any of it lives.
#[test]
fn a_neighbour_keeps_the_pages() {
    const TEST: &str = "gdr::a_neighbour_keeps_the_pages";
    if !second::plays("alone") {
        assert!(alone(TEST, &[]).success());
        return;
    }
    let _ctx = Ctx::new(0);
    let (first, second) = (alloc(1000), alloc(1000));
    let base = first / PAGE * PAGE;
    assert_eq!(second / PAGE * PAGE, base);
    let session = open();
    let handle = pin(session, base, PAGE).expect("pins");
    let at = map(session, handle, PAGE).expect("maps");
    ok(cuMemFree_v2(first));
    assert!(!is_revoked(session, handle));
    assert_eq!(store(handle, at + (second - base), b"wharf"), 0);
    assert_eq!(control("misused"), "0");
    assert_eq!(store(handle, at + (first - base), b"wharf"), 0);
    assert_eq!(control("misused"), "1", "{}", control("misuses"));
    assert_eq!(close(session), 0);
    assert_eq!(control("misused"), "2", "closing left it pinned");
    assert_eq!(store(handle, at, b"a"), libc::EINVAL);
    assert_eq!(control("count gdr_copy_to_mapping"), "3");
}

#[test]
fn a_touch_of_freed_memory_ends_the_process() {
    const TEST: &str = "gdr::a_touch_of_freed_memory_ends_the_process";
    if !second::plays("alone") {
        let signal = alone(TEST, &[]).signal();
        assert!(
            matches!(signal, Some(libc::SIGSEGV | libc::SIGBUS)),
            "{signal:?}"
        );
        return;
    }
    let _ctx = Ctx::new(0);
    let session = open();
    let address = alloc(3 << 20);
    let handle = pin(session, address, PAGE).expect("pins");
    let at = map(session, handle, PAGE).expect("maps");
    ok(cuMemFree_v2(address));
    store(handle, at, b"wharf");
}

#[test]
fn bar1_ends_and_faults_strike() {
    const TEST: &str = "gdr::bar1_ends_and_faults_strike";
    if !second::plays("alone") {
        assert!(alone(TEST, &[("EMULATED_GDR_BAR1", "131072")]).success());
        return;
    }
    let _ctx = Ctx::new(0);
    let address = alloc(3 << 20);
    let session = open();
    let one = pin(session, address, PAGE).expect("pins");
    let two = pin(session, address, PAGE).expect("pins again");
    assert_eq!(pin(session, address, PAGE).err(), Some(libc::ENOMEM));
    assert_eq!(unpin(session, one), 0);
    control("fault gdr_pin_buffer@1=5");
    assert_eq!(pin(session, address, PAGE).err(), Some(5));
    let three = pin(session, address, PAGE).expect("pins");

    // SAFETY: the child calls only what does not allocate but for this library, and leaves at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = unpin(session, two);
        // SAFETY: ends this process alone.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: a child of ours, and a number.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(libc::WEXITSTATUS(status), libc::EACCES);

    assert_eq!(unpin(session, two), 0);
    assert_eq!(unpin(session, three), 0);
    assert_eq!(close(session), 0);
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

#[test]
fn the_kernels_part_may_be_absent() {
    const TEST: &str = "gdr::the_kernels_part_may_be_absent";
    if !second::plays("alone") {
        assert!(alone(TEST, &[("EMULATED_GDR_OPEN", "0")]).success());
        return;
    }
    assert_eq!(open(), 0);
}
