//! SCAL: absent, wrong, failing, and the emulated one on the device that the emulated Synapse acquires.
//!
//! # Safety
//! Unsafe is the fork of a small process alone, and a descriptor's borrow.
#![allow(unsafe_code)]

use std::{
    fs::File,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd},
    os::unix::fs::FileExt,
    path::Path,
};

use crate::{
    alone::{child_with, is_child},
    driver::{
        scal::{Code, GLOBAL_HBM, Scal, VARIABLE},
        synapse::{Choice, Device, Synapse},
    },
    error::ErrorKind,
    support::{emulated, open_fds, this_test},
};

fn scal() -> &'static Scal {
    Scal::load(Some(&emulated::scal())).expect("the emulated SCAL loads")
}

fn control(text: &str) -> String {
    emulated::control_of(&emulated::scal(), text)
}

fn device() -> Device {
    let synapse = Synapse::load(Some(&emulated::synapse())).expect("loads");
    synapse.acquire(Choice::Module(7)).expect("a device")
}

/// A descriptor of a card that this process has opened and nobody has set up, as the emulated libraries know it.
fn fresh_card() -> File {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("a mounted /proc");
    let (_, rest) = stat.rsplit_once(')').expect("a name");
    let start = rest.split_ascii_whitespace().nth(19).expect("a start");
    let start: u64 = start.parse().expect("a number");
    // SAFETY: the name lives through the call, and the new descriptor is nobody else's.
    let file =
        unsafe { File::from_raw_fd(libc::memfd_create(c"card".as_ptr(), libc::MFD_CLOEXEC)) };
    file.set_len(8192).expect("a size");
    let (base, len) = (0x1001_5000_0200_0000, 1 << 30);
    let process = u64::from(std::process::id());
    let words = [
        u64::from_le_bytes(*b"EMUGAUDI"),
        1,
        2,
        base,
        len,
        len,
        base - (32 << 20),
        process,
        start,
    ];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    file.write_all_at(&bytes, 4096).expect("written");
    file
}

#[test]
fn absence_is_told() {
    let error = Scal::load(Some(Path::new("/nowhere/libscal.so"))).expect_err("is not there");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error
            .to_string()
            .starts_with("SCAL is not here: /nowhere/libscal.so: cannot open"),
        "{error}"
    );
    let error = Scal::load(Some(Path::new("libm.so.6"))).expect_err("is another");
    assert!(
        error.to_string().starts_with(
            "libm.so.6 has no scal_get_handle_from_fd, scal_get_pool_handle_by_name, "
        ),
        "{error}"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let path = emulated::without(&emulated::scal(), &["scal_pool_get_infoV2"], folder.path());
    let error = Scal::load(Some(&path.expect("a copy"))).expect_err("lacks one");
    assert!(
        error
            .to_string()
            .ends_with("liblacking.so has no scal_pool_get_infoV2"),
        "{error}"
    );
}

#[test]
fn it_is_found_by_variable_or_where_it_is_loaded() {
    if !is_child() {
        child_with(this_test!(), &[]);
        return child_with(this_test!(), &[(VARIABLE, "/named/by/variable.so")]);
    }
    let error = Scal::load(None).expect_err("is not there");
    if std::env::var_os(VARIABLE).is_some() {
        assert!(
            error.to_string().contains("/named/by/variable.so: "),
            "{error}"
        );
        return;
    }
    assert!(
        error
            .to_string()
            .contains("/usr/lib/habanalabs/libscal.so: "),
        "{error}"
    );
    assert!(Scal::resident(None).is_none());
    // Somebody brings it.
    let there = scal();
    assert!(std::ptr::eq(there, Scal::resident(None).expect("is there")));
    assert!(std::ptr::eq(there, Scal::load(None).expect("is there")));
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
    assert_eq!(
        pool.offset_of(memory.address()),
        Some(memory.address() - pool.base)
    );
    assert_eq!(pool.offset_of(pool.base - 1), None);
    assert_eq!(pool.offset_of(pool.base + pool.total), None);
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
    // SAFETY: as above.
    let error = scal
        .take_over(unsafe { BorrowedFd::borrow_raw(info.fd) }, None)
        .expect_err("is set up");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(control("count scal_init"), "0");

    // When Synapse lets the device go, what was attached says so.
    drop(device);
    let error = handle.pool(GLOBAL_HBM).expect_err("has gone");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    drop(handle);
    assert_eq!(control("count scal_destroy"), "0", "it was not ours");
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

#[test]
fn taking_over_is_asked_for_and_undone() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let scal = scal();
    let card = fresh_card();
    let error = scal
        .attach(card.as_raw_fd())
        .expect_err("nobody has set it up");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(
        control("count scal_init"),
        "0",
        "attaching takes nothing over"
    );
    let handle = scal.take_over(card.as_fd(), None).expect("is set up");
    assert_eq!(handle.pool(GLOBAL_HBM).expect("a pool").total, 1 << 30);
    scal.attach(card.as_raw_fd()).expect("for everybody here");
    scal.take_over(card.as_fd(), None).expect_err("once");
    drop(handle);
    scal.attach(card.as_raw_fd()).expect_err("was taken down");
    let error = scal
        .take_over(card.as_fd(), Some(Path::new("a\0b")))
        .expect_err("no path");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let null = File::open("/dev/null").expect("a file");
    let error = scal.take_over(null.as_fd(), None).expect_err("no card");
    assert_eq!(Code::of(&error), Some(Code(-4)));
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
    // A library that cannot undo it is not asked to do it.
    let folder = tempfile::tempdir().expect("a folder");
    let path = emulated::without(&emulated::scal(), &["scal_destroy"], folder.path());
    let other = Scal::load(Some(&path.expect("a copy"))).expect("enough for attaching");
    let error = other.take_over(card.as_fd(), None).expect_err("cannot");
    assert!(
        error
            .to_string()
            .ends_with("liblacking.so has no scal_destroy"),
        "{error}"
    );
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
    let card = fresh_card();
    let scenario = || {
        let handle = scal().take_over(card.as_fd(), None)?;
        handle.pool(GLOBAL_HBM)?;
        scal().attach(card.as_raw_fd())?.pool(GLOBAL_HBM)
    };
    scenario().expect("no fault");
    for (name, _) in Scal::functions().filter(|(name, _)| *name != "scal_destroy") {
        for (code, kind) in [
            (5, ErrorKind::Exhausted),
            (7, ErrorKind::DeviceLost),
            (77, ErrorKind::Io),
        ] {
            // The first look for a handle only asks whether there is one already.
            let nth = if name == "scal_get_handle_from_fd" {
                2
            } else {
                1
            };
            control(&format!("fault {name}@{nth}={code}"));
            let error = scenario().expect_err("a fault");
            assert_eq!(
                (error.kind(), Code::of(&error)),
                (kind, Some(Code(-code))),
                "{error}"
            );
            assert!(error.to_string().starts_with(name), "{error}");
            scenario().expect("all is well again");
        }
    }
    assert_eq!(control("live"), "0");
    control("failing 6");
    let error = scal().attach(card.as_raw_fd()).expect_err("fails");
    assert!(
        error.to_string().ends_with("(SCAL_NOT_READY, -6)"),
        "{error}"
    );
    let error = scal().take_over(card.as_fd(), None).expect_err("fails");
    assert!(error.to_string().starts_with("scal_"), "{error}");
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
