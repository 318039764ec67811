//! GDRCopy's library: absent, wrong, and a made-up one that counts what is open.
//!
//! # Safety
//! Device memory is a buffer of the made-up library that is never freed.
#![allow(unsafe_code)]

use std::path::Path;

use crate::{
    driver::{cuda::DevicePtr, gdr::Gdr},
    error::ErrorKind,
    fake::Fakes,
};

#[test]
fn absence_is_told() {
    let error = Gdr::load(Some(Path::new("/nowhere/libgdrapi.so.2"))).expect_err("is not there");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error
            .to_string()
            .starts_with("GDRCopy is not here: /nowhere/libgdrapi.so.2: cannot open"),
        "{error}"
    );
    let error = Gdr::load(Some(Path::new("libm.so.6"))).expect_err("is another");
    assert!(
        error
            .to_string()
            .starts_with("libm.so.6 has no gdr_open, gdr_close, "),
        "{error}"
    );
}

/// A library whose device memory is one page of the host's, mapped from one GPU page before what was asked for on. Pins at 1 MiB and above
/// fail; `gdr_get_callback_flag` tells how many windows and sessions are open.
const SOURCE: &str = r#"
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};
static OPEN: AtomicI32 = AtomicI32::new(0);
static BASE: AtomicU64 = AtomicU64::new(0);
static MAPPED: AtomicU64 = AtomicU64::new(0);
const PAGE: u64 = 65536;
#[repr(C)] pub struct Mh(u64);
#[repr(C)] pub struct Info { va: u64, mapped: u64, page: u32, tm: u64, per_ms: u32, bits: u32, kind: u32 }
#[unsafe(no_mangle)] pub extern "C" fn gdr_open() -> usize { OPEN.fetch_add(1, SeqCst); 77 }
#[unsafe(no_mangle)] pub extern "C" fn gdr_close(g: usize) -> i32 { assert_eq!(g, 77); OPEN.fetch_sub(1, SeqCst); 0 }
#[unsafe(no_mangle)] pub extern "C" fn gdr_pin_buffer(_: usize, a: u64, n: usize, _: u64, _: u32, h: *mut Mh) -> i32 {
    assert!(a % PAGE == 0 && n as u64 % PAGE == 0 && n > 0);
    if a >= 1 << 20 { return 12; }
    BASE.store(a, SeqCst); OPEN.fetch_add(100, SeqCst);
    unsafe { *h = Mh(5) }; 0
}
#[unsafe(no_mangle)] pub extern "C" fn gdr_unpin_buffer(_: usize, h: Mh) -> i32 { assert_eq!(h.0, 5); OPEN.fetch_sub(100, SeqCst); 0 }
#[unsafe(no_mangle)] pub extern "C" fn gdr_get_callback_flag(_: usize, _: Mh, f: *mut i32) -> i32 { unsafe { *f = OPEN.load(SeqCst) }; 0 }
#[unsafe(no_mangle)] pub extern "C" fn gdr_get_info_v2(_: usize, _: Mh, i: *mut Info) -> i32 {
    unsafe { *i = Info { va: BASE.load(SeqCst) - PAGE, mapped: 3 * PAGE, page: PAGE as u32, tm: 0, per_ms: 0, bits: 3, kind: 1 } }; 0
}
#[unsafe(no_mangle)] pub extern "C" fn gdr_map(_: usize, _: Mh, va: *mut *mut u8, _: usize) -> i32 {
    if BASE.load(SeqCst) == 8 * PAGE { return 22; }
    let memory = vec![0_u8; 3 * PAGE as usize].leak().as_mut_ptr();
    MAPPED.store(memory as u64, SeqCst); OPEN.fetch_add(10_000, SeqCst);
    unsafe { *va = memory }; 0
}
#[unsafe(no_mangle)] pub extern "C" fn gdr_unmap(_: usize, _: Mh, va: *mut u8, _: usize) -> i32 {
    assert_eq!(va as u64, MAPPED.load(SeqCst)); OPEN.fetch_sub(10_000, SeqCst); 0
}
#[unsafe(no_mangle)] pub extern "C" fn gdr_copy_to_mapping(_: Mh, to: *mut u8, from: *const u8, n: usize) -> i32 {
    unsafe { std::ptr::copy_nonoverlapping(from, to, n) }; 0
}
#[unsafe(no_mangle)] pub extern "C" fn gdr_copy_from_mapping(_: Mh, to: *mut u8, from: *const u8, n: usize) -> i32 {
    unsafe { std::ptr::copy_nonoverlapping(from, to, n) }; 0
}
#[unsafe(no_mangle)] pub extern "C" fn gdr_runtime_get_version(a: *mut i32, b: *mut i32) { unsafe { *a = 2; *b = 6 } }
#[unsafe(no_mangle)] pub extern "C" fn open_things() -> i32 { OPEN.load(SeqCst) }
#[unsafe(no_mangle)] pub extern "C" fn byte_at(i: usize) -> u8 { unsafe { *(MAPPED.load(SeqCst) as *const u8).add(i) } }
"#;

const PAGE: u64 = 65536;

#[test]
fn a_window_is_mapped_used_and_undone() {
    window("gdrfake", SOURCE);
}

/// GDRCopy 2.0 to 2.3 have the older call alone, which writes 40 bytes.
#[test]
fn a_window_of_an_older_library() {
    let older = SOURCE
        .replace("gdr_get_info_v2", "gdr_get_info")
        .replace("bits: u32, kind: u32 }", "bits: u32 }")
        .replace("bits: 3, kind: 1 }", "bits: 3 }");
    assert!(!older.contains("kind"));
    window("gdrolder", &older);
}

#[test]
fn a_library_with_neither_call_is_none() {
    let fakes = Fakes::new();
    let path = fakes.compile(
        "gdrnone",
        &SOURCE.replace("gdr_get_info_v2", "gdr_get_other"),
    );
    let error = Gdr::load(Some(&path)).expect_err("lacks both");
    assert!(
        error
            .to_string()
            .contains("neither gdr_get_info_v2 nor gdr_get_info"),
        "{error}"
    );
}

fn window(name: &str, source: &str) {
    let fakes = Fakes::new();
    let path = fakes.compile(name, source);
    let gdr = Gdr::load(Some(&path)).expect("loads");
    assert_eq!(gdr.version(), (2, 6));
    // SAFETY: loading and calling functions of the source above.
    let (open, byte) = unsafe {
        let library = libloading::Library::new(&path).expect("is loaded");
        let open = *library
            .get::<extern "C" fn() -> i32>("open_things")
            .expect("there");
        let byte = *library
            .get::<extern "C" fn(usize) -> u8>("byte_at")
            .expect("there");
        (open, byte)
    };
    let session = gdr.open().expect("opens");
    let start = DevicePtr(3 * PAGE + 40);
    // SAFETY: the memory is the library's and stays.
    unsafe {
        let window = session.map(start, 100).expect("maps");
        assert_eq!((window.start(), window.len()), (start, 100));
        assert_eq!(open(), 10_101);
        window.write(8, b"wharf").expect("writes");
        // Mapped from one page earlier on.
        assert_eq!(byte(PAGE as usize + 48), b'w');
        let mut back = [0; 5];
        window.read(8, back.as_mut_ptr(), 5).expect("reads");
        assert_eq!(&back, b"wharf");
        for (offset, len) in [(96, 5), (101, 0), (usize::MAX, 2)] {
            let error = window
                .write(offset, &vec![0; len])
                .expect_err("leaves the window");
            assert_eq!(error.kind(), ErrorKind::OutOfBounds);
        }
        drop(window);
        assert_eq!(open(), 1);

        // Each failure undoes what was done before it.
        for (start, len, kind) in [
            (1 << 20, 64, ErrorKind::Exhausted),
            (8 * PAGE, 64, ErrorKind::Io),
            (0, 0, ErrorKind::InvalidArgument),
            (u64::MAX - 4, 64, ErrorKind::InvalidArgument),
            // Two pages more than the library says that it mapped.
            (4 * PAGE, 3 * PAGE as usize, ErrorKind::Io),
        ] {
            let error = session.map(DevicePtr(start), len).expect_err("must fail");
            assert_eq!(error.kind(), kind, "{start:#x} {len}: {error}");
            assert_eq!(open(), 1, "{error}");
        }
        // The last window keeps the session.
        let window = session.map(start, 1).expect("maps");
        drop(session);
        assert_eq!(open(), 10_101);
        drop(window);
        assert_eq!(open(), 0);
    }
}
