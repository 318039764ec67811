//! SCAL: absent, wrong, failing, and the emulated one on the device that the emulated Synapse acquires.
//!
//! # Safety
//! Unsafe is the fork of a small process alone, and a descriptor's borrow.
#![allow(unsafe_code)]

use std::{
    fs::File,
    os::fd::{AsRawFd, BorrowedFd},
    path::Path,
};

use crate::{
    alone::{child_with, is_child},
    driver::{
        scal::{Code, GLOBAL_HBM, Scal},
        synapse::{Device, Synapse},
    },
    error::ErrorKind,
    support::{emulated, open_fds, table, this_test},
};

fn scal() -> &'static Scal {
    // As Synapse does.
    emulated::bring(&emulated::scal());
    Scal::resident(Some(&emulated::scal())).expect("the emulated SCAL is there")
}

fn control(text: &str) -> String {
    emulated::control_of(&emulated::scal(), text)
}

fn device() -> Device {
    let synapse = Synapse::load(Some(&emulated::synapse())).expect("loads");
    synapse.acquire("0000:33:00.0").expect("a device")
}

#[test]
fn what_is_not_loaded_or_lacks_a_function_counts_as_none() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    assert!(Scal::resident(Some(Path::new("/nowhere/libscal.so"))).is_none());
    assert!(Scal::resident(Some(&emulated::scal())).is_none());
    // Somebody brings one; and then one that lacks a function.
    let there = scal();
    assert!(std::ptr::eq(there, Scal::resident(None).expect("is there")));
    let folder = tempfile::tempdir().expect("a folder");
    let path = emulated::without(&emulated::scal(), &["scal_pool_get_infoV2"], folder.path());
    let path = path.expect("a copy");
    emulated::bring(&path);
    assert!(Scal::resident(Some(&path)).is_none());
    assert_eq!(control("counts"), "");
}

#[test]
fn the_pool_is_the_one_that_synapse_allocates_in() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let scal = scal();
    let device = device();
    let info = device.info().expect("an answer");
    let handle = scal.attach(info.fd).expect("Synapse has set it up");
    let pool = handle.pool(GLOBAL_HBM).expect("the pool");
    assert_eq!(Some(pool.base), info.global_hbm_base);
    assert_eq!((pool.total, pool.free), (1 << 30, 1 << 30));
    assert!(
        pool.allocated_base < pool.base,
        "the offset of an export is not always 0"
    );
    let memory = device.allocate(4096).expect("memory");
    assert_eq!(
        handle.pool(GLOBAL_HBM).expect("the pool").free,
        (1 << 30) - 4096
    );
    drop(memory);

    let error = handle.pool("local_hbm").expect_err("no such pool");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(Code::of(&error), Some(Code(-11)));
    assert!(error.to_string().contains("\"local_hbm\""), "{error}");
    handle.pool("global\0hbm").expect_err("no name");

    // Neither a duplicate, nor another descriptor, nor one that is closed.
    // SAFETY: the device's descriptor is open.
    let duplicate = unsafe { BorrowedFd::borrow_raw(info.fd) }
        .try_clone_to_owned()
        .expect("a duplicate");
    let null = File::open("/dev/null").expect("a file");
    for fd in [duplicate.as_raw_fd(), null.as_raw_fd(), -1, 9999] {
        let error = scal.attach(fd).expect_err("is not set up");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(Code::of(&error), Some(Code(-1)));
        assert!(
            error.to_string().contains(&format!("descriptor {fd}: ")),
            "{error}"
        );
    }
    // When Synapse lets the device go, what was attached says so.
    drop(device);
    let error = handle.pool(GLOBAL_HBM).expect_err("has gone");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

#[test]
fn a_pool_that_cannot_be_is_refused() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let device = device();
    let handle = scal()
        .attach(device.info().expect("an answer").fd)
        .expect("is set up");
    for lie in [
        "3 0",
        "6 0",
        "6 18446744073709551615",
        "7 1073741825",
        "8 0",
        "8 1153290940547334145",
    ] {
        control("reset");
        control(&format!("lie {lie}"));
        let error = handle.pool(GLOBAL_HBM).expect_err(lie);
        assert_eq!(error.kind(), ErrorKind::Io, "{lie}");
        assert!(
            error
                .to_string()
                .starts_with("scal_pool_get_infoV2 answered what cannot be: "),
            "{error}"
        );
    }
    // Success, and nothing written.
    control("reset");
    control("fault scal_pool_get_infoV2@1=skip");
    assert_eq!(
        handle.pool(GLOBAL_HBM).expect_err("nothing").kind(),
        ErrorKind::Io
    );
    control("fault scal_get_handle_from_fd@1=skip");
    assert_eq!(
        handle.pool(GLOBAL_HBM).expect_err("nothing").kind(),
        ErrorKind::Io
    );
}

#[test]
fn each_call_may_fail() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let device = device();
    let fd = device.info().expect("an answer").fd;
    let scenario = || scal().attach(fd)?.pool(GLOBAL_HBM);
    scenario().expect("no fault");
    for table::Function { name, .. } in table::functions("scal") {
        for (code, kind) in [
            (5, ErrorKind::Exhausted),
            (7, ErrorKind::DeviceLost),
            (77, ErrorKind::Io),
        ] {
            control(&format!("fault {name}@1={code}"));
            let error = scenario().expect_err("a fault");
            assert_eq!(
                (error.kind(), Code::of(&error)),
                (kind, Some(Code(-code))),
                "{error}"
            );
            assert!(error.to_string().starts_with(&name), "{error}");
            scenario().expect("all is well again");
        }
    }
    control("failing 6");
    let error = scal().attach(fd).expect_err("fails");
    assert!(
        error.to_string().ends_with("(SCAL_NOT_READY, -6)"),
        "{error}"
    );
}

#[test]
fn descriptors_do_not_grow_and_a_fork_is_told() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let device = device();
    let fd = device.info().expect("an answer").fd;
    let handle = scal().attach(fd).expect("is set up");
    let fds = open_fds();
    for _ in 0..10_000 {
        handle.pool(GLOBAL_HBM).expect("the pool");
    }
    assert_eq!(open_fds(), fds);
    // SAFETY: the child takes no lock that another thread of this small process holds, and leaves by `_exit`.
    let status = unsafe {
        match libc::fork() {
            0 => {
                let kind = handle.pool(GLOBAL_HBM).err().map(|error| error.kind());
                let other = scal().attach(fd).err().map(|error| error.kind());
                let told = kind == Some(ErrorKind::Forked) && other == Some(ErrorKind::Unsupported);
                libc::_exit(i32::from(!told))
            }
            -1 => panic!("{}", std::io::Error::last_os_error()),
            pid => {
                let mut status = 0;
                assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
                status
            }
        }
    };
    assert_eq!(status, 0);
}
