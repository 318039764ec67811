//! Which library is taken, and what is said of one that is not there or not right.
//!
//! # Safety
//! Unsafe is the fork of a small process alone.
#![allow(unsafe_code)]

use std::path::Path;

use crate::{
    alone::{child_with, is_child},
    driver::cuda::{Cuda, Status},
    error::ErrorKind,
    fake::Fakes,
    support::{table, this_test},
};

/// What is said of a library that must be refused.
fn refusal(path: &Path) -> String {
    let error = Cuda::load(Some(path)).expect_err("must be refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    error.to_string()
}

#[test]
fn a_missing_library_is_told_in_the_loaders_words() {
    assert_eq!(
        refusal(Path::new("/nowhere/libcuda.so.1")),
        "the CUDA driver is not here: /nowhere/libcuda.so.1: cannot open shared object file: No such file or directory"
    );
}

#[test]
fn what_is_no_library_is_told_in_the_loaders_words() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let text = refusal(&file);
    assert!(text.contains("Cargo.toml: "), "{text}");
    assert_eq!(text.matches("Cargo.toml").count(), 1, "{text}");
    assert!(refusal(Path::new("/nul\0byte")).contains("/nul"));
}

#[test]
fn another_library_is_no_driver() {
    let text = refusal(Path::new("libm.so.6"));
    assert_eq!(
        text,
        "libm.so.6 is not a CUDA driver: it has no cuDriverGetVersion"
    );
}

#[test]
fn a_missing_function_is_named_with_its_version() {
    let fakes = Fakes::new();
    let path = fakes.driver("lacks", 12_010, &["cuIpcOpenMemHandle_v2"], "");
    let text = refusal(&path);
    assert!(
        text.ends_with("liblacks.so (CUDA 12.1) has no cuIpcOpenMemHandle_v2 (CUDA 11.0); a driver of CUDA 11.0 or newer is needed"),
        "{text}"
    );
}

#[test]
fn a_driver_that_is_too_old_is_told() {
    // Whatever it exports: what came after its version is not used.
    let fakes = Fakes::new();
    let path = fakes.driver("tooold", 10_020, &[], "");
    let text = refusal(&path);
    assert!(
        text.ends_with(
            "libtooold.so (CUDA 10.2) has no cuDevicePrimaryCtxRelease_v2 (CUDA 11.0), cuIpcOpenMemHandle_v2 (CUDA 11.0); a driver of CUDA 11.0 or newer is needed"
        ),
        "{text}"
    );
}

#[test]
fn the_functions_of_old_are_not_taken() {
    let fakes = Fakes::new();
    // The plain name is the function of CUDA 3 with 32-bit addresses.
    let old =
        "#[unsafe(no_mangle)] pub extern \"C\" fn cuMemAlloc() -> u32 { std::process::abort() }";
    let text = refusal(&fakes.driver("old", 12_000, &["cuMemAlloc_v2"], old));
    assert!(text.contains("has no cuMemAlloc_v2 (CUDA 3.2);"), "{text}");
}

#[test]
fn the_toolkits_stub_is_refused_with_a_remedy() {
    let fakes = Fakes::new();
    let stub = "#[unsafe(no_mangle)] pub extern \"C\" fn cuDriverGetVersion() -> u32 { 34 }";
    let path = fakes.driver("stub", 0, &["cuDriverGetVersion"], stub);
    let error = Cuda::load(Some(&path)).expect_err("must be refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(Status::of(&error), Some(Status::STUB_LIBRARY));
    assert!(error.to_string().contains("toolkit's stub"), "{error}");
    // One that tells its version, and says so only when it is to work.
    let later = "#[unsafe(no_mangle)] pub extern \"C\" fn cuInit() -> u32 { 34 }";
    let path = fakes.driver("laterstub", 12_000, &["cuInit"], later);
    let cuda = Cuda::load(Some(&path)).expect("loads");
    let error = cuda.initialise().expect_err("must be refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("WHARF_LIBCUDA"), "{error}");
    assert!(!cuda.is_initialised());
}

/// A driver that gives out functions by `cuGetProcAddress_v2`, and only when asked in the version that brought them.
const ASKED: &str = r#"
    extern "C" fn yes() -> u32 { 0 }
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn cuGetProcAddress_v2(
        name: *const std::ffi::c_char, to: *mut *mut (), version: i32, flags: u64, found: *mut u32,
    ) -> u32 {
        let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_str().unwrap();
        // Above the driver's own version it refuses.
        if version > 12000 { return 1; }
        let known = [("cuMemAlloc", 3020), ("cuStreamWaitEvent", 3020), ("cuStreamWriteValue64", 11070)];
        let right = flags == 0 && known.contains(&(name, version));
        unsafe {
            *to = if right { yes as *mut () } else { std::ptr::null_mut() };
            *found = u32::from(!right);
        }
        0
    }
"#;

#[test]
fn functions_that_are_not_exported_are_asked_for_in_their_own_version() {
    let fakes = Fakes::new();
    let hidden = ["cuMemAlloc_v2", "cuStreamWaitEvent"];
    let path = fakes.driver("asked", 12_000, &hidden, ASKED);
    let cuda = Cuda::load(Some(&path)).expect("all that is required is there");
    assert_eq!(cuda.version().to_string(), "12.0");
    let lacks =
        |cuda: &Cuda, name: &str| format!("{cuda:?}").contains(&format!("{name}: \"absent\""));
    assert!(lacks(cuda, "cuCtxGetId"), "{cuda:?}");
    assert!(!lacks(cuda, "cuStreamWriteValue64_v2"), "{cuda:?}");
    // Success with a null pointer is no function.
    let text = refusal(&fakes.driver("null", 12_000, &["cuMemAlloc_v2", "cuStreamQuery"], ASKED));
    assert!(text.contains("has no cuStreamQuery (CUDA 2.0);"), "{text}");
    // A driver that is older than the function is not asked.
    let path = fakes.driver("older", 11_040, &hidden, ASKED);
    let cuda = Cuda::load(Some(&path)).expect("all that is required is there");
    assert!(lacks(cuda, "cuStreamWriteValue64_v2"), "{cuda:?}");
}

#[test]
fn one_file_is_one_driver() {
    let fakes = Fakes::new();
    let path = fakes.driver("once", 12_000, &[], "");
    assert!(
        Cuda::resident(Some(&path)).is_none(),
        "asking loads nothing"
    );
    let first = Cuda::load(Some(&path)).expect("loads");
    let other = path.with_file_name("other.so");
    std::os::unix::fs::symlink(&path, &other).expect("a link");
    for path in [&path, &other] {
        assert!(std::ptr::eq(first, Cuda::load(Some(path)).expect("loads")));
        assert!(std::ptr::eq(
            first,
            Cuda::resident(Some(path)).expect("is there")
        ));
    }
}

#[test]
fn initialising_that_failed_is_tried_again() {
    let fakes = Fakes::new();
    let first_fails = r#"
        static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        #[unsafe(no_mangle)] pub extern "C" fn cuInit(flags: u32) -> u32 {
            match CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed) { 0 => 100, 1 => flags, _ => 999 }
        }
    "#;
    let path = fakes.driver("again", 12_000, &["cuInit"], first_fails);
    let cuda = Cuda::load(Some(&path)).expect("loads");
    let error = cuda.devices().expect_err("no device at first");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(Status::of(&error), Some(Status::NO_DEVICE));
    assert!(
        error
            .to_string()
            .starts_with("cuInit: the driver sees no device"),
        "{error}"
    );
    cuda.initialise().expect("the second time");
    cuda.initialise().expect("done once");
    assert!(cuda.is_initialised());
}

#[test]
fn the_variable_names_the_library() {
    if is_child() {
        let error = Cuda::load(None).expect_err("must be refused");
        assert!(
            error.to_string().contains("/named/by/variable.so: "),
            "{error}"
        );
        // What the program gives comes before it.
        let given = refusal(Path::new("/given/by/program.so"));
        assert!(
            given.contains("/given/") && !given.contains("/named/"),
            "{given}"
        );
        return;
    }
    child_with(this_test!(), &[("WHARF_LIBCUDA", "/named/by/variable.so")]);
}

#[test]
fn without_a_driver_nothing_is_loaded() {
    if !is_child() {
        child_with(this_test!(), &[]);
        // Empty is not set.
        child_with(this_test!(), &[("WHARF_LIBCUDA", "")]);
        return;
    }
    match Cuda::load(None) {
        Ok(cuda) => assert!(
            Path::new("/dev/nvidiactl").exists(),
            "{cuda:?} is no driver"
        ),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let text = error.to_string();
            let told = text.contains("/dev/nvidiactl: ") || text.contains("libcuda.so.1: ");
            assert!(
                told && text.starts_with("the CUDA driver is not here: "),
                "{text}"
            );
        }
    }
}

#[test]
fn a_forked_child_is_told() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let fakes = Fakes::new();
    let path = fakes.driver("forked", 12_000, &[], "");
    let cuda = Cuda::load(Some(&path)).expect("loads");
    // A child of a process that has not initialised it may.
    let before = in_fork(|| cuda.initialise().is_ok());
    cuda.initialise().expect("initialises");
    let device = cuda.device(0).expect("a device");
    let context = device.primary_context().expect("a context");
    let forked = |kind: Option<ErrorKind>| kind == Some(ErrorKind::Forked);
    let after = in_fork(|| {
        forked(cuda.initialise().err().map(|error| error.kind()))
            && forked(device.is_active().err().map(|error| error.kind()))
            && forked(context.enter().err().map(|error| error.kind()))
            && !cuda.is_initialised()
    });
    assert!(before && after, "before {before}, after {after}");
    assert!(context.enter().is_ok(), "the parent goes on");
}

/// What `check` says in a child made by `fork`.
fn in_fork(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `check`, which takes no lock that another thread of this small process holds, and leaves by `_exit`.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(i32::from(!check())),
            -1 => panic!("{}", std::io::Error::last_os_error()),
            pid => {
                let mut status = 0;
                assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
                status == 0
            }
        }
    }
}

#[test]
fn statuses_have_names_and_kinds() {
    for (code, kind, name) in [
        (1, ErrorKind::InvalidArgument, "INVALID_VALUE"),
        (2, ErrorKind::Exhausted, "OUT_OF_MEMORY"),
        (34, ErrorKind::Unsupported, "STUB_LIBRARY"),
        (100, ErrorKind::Unsupported, "NO_DEVICE"),
        (600, ErrorKind::WouldBlock, "NOT_READY"),
        (700, ErrorKind::DeviceLost, "ILLEGAL_ADDRESS"),
        (709, ErrorKind::DeviceLost, "CONTEXT_IS_DESTROYED"),
        (719, ErrorKind::DeviceLost, "LAUNCH_FAILED"),
        (800, ErrorKind::PermissionDenied, "NOT_PERMITTED"),
        (801, ErrorKind::Unsupported, "NOT_SUPPORTED"),
        (803, ErrorKind::Unsupported, "SYSTEM_DRIVER_MISMATCH"),
    ] {
        let error = Status(code).check("cuCall").expect_err("not success");
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(Status::of(&error), Some(Status(code)));
        let text = error.to_string();
        assert!(text.starts_with("cuCall: "), "{text}");
        assert!(
            text.ends_with(&format!("(CUDA_ERROR_{name}, {code})")),
            "{text}"
        );
    }
    // One that nobody knows survives.
    let error = Status(12_345).check("cuCall").expect_err("not success");
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::Io, "cuCall: CUDA error 12345")
    );
    assert!(Status(0).check("cuCall").is_ok());
}

#[test]
fn functions_are_listed_once() {
    let functions = table::functions("cuda").into_iter();
    let mut names: Vec<_> = functions.map(|function| function.name).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
}
