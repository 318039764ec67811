//! HIP, where the program has it: a library made on the spot that counts.
//!
//! # Safety
//! Functions of the library made here are called with the signatures that it declares, and its streams are numbers.
#![allow(unsafe_code)]

use crate::{driver::hip::Hip, error::ErrorKind, fake::Fakes};

/// Two devices; stream `s` is of device `s % 2` and is done after `s / 16` questions; stream 999 is none.
const SOURCE: &str = r#"
    use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst};
    static CURRENT: AtomicI32 = AtomicI32::new(0);
    static EVENTS: AtomicI32 = AtomicI32::new(0);
    static LEFT: AtomicUsize = AtomicUsize::new(0);
    #[unsafe(no_mangle)] pub extern "C" fn hipGetDevice(to: &mut i32) -> u32 { *to = CURRENT.load(SeqCst); 0 }
    #[unsafe(no_mangle)] pub extern "C" fn hipSetDevice(device: i32) -> u32 { CURRENT.store(device, SeqCst); 0 }
    #[unsafe(no_mangle)] pub extern "C" fn hipStreamGetDevice(stream: usize, to: &mut i32) -> u32 { *to = stream as i32 % 2; 0 }
    #[unsafe(no_mangle)] pub extern "C" fn hipEventCreateWithFlags(to: &mut usize, flags: u32) -> u32 {
        if flags != 2 { return 1; }
        EVENTS.fetch_add(1, SeqCst);
        *to = 0x1000 + CURRENT.load(SeqCst) as usize;
        0
    }
    #[unsafe(no_mangle)] pub extern "C" fn hipEventRecord(event: usize, stream: usize) -> u32 {
        if stream == 999 || event - 0x1000 != stream % 2 { return 400; }
        LEFT.store(stream / 16, SeqCst);
        0
    }
    #[unsafe(no_mangle)] pub extern "C" fn hipEventQuery(_event: usize) -> u32 {
        let left = LEFT.load(SeqCst);
        if left == 0 { return 0; }
        LEFT.store(left - 1, SeqCst);
        if left > 100 { 719 } else { 600 }
    }
    #[unsafe(no_mangle)] pub extern "C" fn hipEventDestroy(_event: usize) -> u32 { EVENTS.fetch_sub(1, SeqCst); 0 }
    #[unsafe(no_mangle)] pub extern "C" fn events() -> i32 { EVENTS.load(SeqCst) }
"#;

#[test]
fn a_place_in_a_programs_stream_is_reached_when_its_work_is_done() {
    let fakes = Fakes::new();
    let path = fakes.compile("hip", SOURCE);
    assert!(Hip::resident(Some(&path)).is_none(), "asking loads nothing");
    // SAFETY: the library above, which runs nothing when it is loaded.
    let library = unsafe { libloading::Library::new(&path) }.expect("loads");
    let number = |name: &str| {
        // SAFETY: the names have this signature.
        unsafe {
            library
                .get::<extern "C" fn() -> i32>(name)
                .expect("exported")()
        }
    };
    let hip = Hip::resident(Some(&path)).expect("is there");
    for stream in [0, 16, 17, 33] {
        // SAFETY: a stream of this library.
        let event = unsafe { hip.mark(stream) }.expect("marks, on the stream's device");
        let mut asked = 0;
        while !event.is_done().expect("an answer") {
            asked += 1;
        }
        assert_eq!(asked, stream / 16);
        let mut current = -1;
        // SAFETY: the name has this signature.
        let get = unsafe { library.get::<extern "C" fn(&mut i32) -> u32>("hipGetDevice") };
        get.expect("exported")(&mut current);
        assert_eq!(current, 0, "the program's device is current again");
        assert_eq!(number("events"), 1);
    }
    assert_eq!(number("events"), 0);
    // SAFETY: streams of this library; the last is none, which it tells.
    unsafe {
        let failed = hip.mark(16 * 101).expect("marks");
        assert_eq!(
            failed.is_done().expect_err("failed").kind(),
            ErrorKind::DeviceLost
        );
        drop(failed);
        assert_eq!(
            hip.mark(999).expect_err("no stream").kind(),
            ErrorKind::InvalidArgument
        );
    }
    assert_eq!(number("events"), 0, "nothing is left of what failed");
}

#[test]
fn a_library_that_is_not_hip_is_none() {
    assert!(Hip::resident(Some(std::path::Path::new("libc.so.6"))).is_none());
    assert!(Hip::resident(Some(std::path::Path::new("/nowhere/libamdhip64.so"))).is_none());
}
