//! Which library is taken, what is said of one that is not there or not right, and who initialises.
//!
//! # Safety
//! Functions of the library are called with the signatures of the header; the fork is of a small process, and its child ends at once.
#![allow(unsafe_code)]

use std::{
    path::Path,
    time::{Duration, Instant},
};

use super::{calls, control, cpu, gpu, hsa, library, live};
use crate::{
    alone::{child_with, is_child},
    driver::hsa::{Access, Grain, Hsa, PointerKind, Status},
    error::ErrorKind,
    support::{emulated::without, table, this_test},
};

/// What is said of a library that must be refused.
fn refusal(path: &Path) -> String {
    let error = Hsa::load(Some(path)).expect_err("must be refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    error.to_string()
}

#[test]
fn a_missing_library_is_told_in_the_loaders_words() {
    assert_eq!(
        refusal(Path::new("/nowhere/libhsa-runtime64.so.1")),
        "the HSA runtime is not here: /nowhere/libhsa-runtime64.so.1: cannot open shared object file: No such file or directory"
    );
}

#[test]
fn another_library_is_no_runtime() {
    let text = refusal(Path::new("libm.so.6"));
    assert!(
        text.starts_with(
            "libm.so.6 is not an HSA runtime: it has no hsa_init, hsa_system_get_info, "
        ),
        "{text}"
    );
    assert!(
        text.ends_with(" more; that of ROCm 5.2.3 or newer is needed"),
        "{text}"
    );
}

#[test]
fn a_missing_function_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = without(&library(), &["hsa_amd_ipc_memory_attach"], folder.path()).expect("a copy");
    let text = refusal(&path);
    assert!(
        text.ends_with(
            "liblacking.so has no hsa_amd_ipc_memory_attach; that of ROCm 5.2.3 or newer is needed"
        ),
        "{text}"
    );
}

#[test]
fn the_variable_names_the_library() {
    if is_child() {
        let error = Hsa::load(None).expect_err("must be refused");
        assert!(
            error.to_string().contains("/named/by/variable.so: "),
            "{error}"
        );
        let given = refusal(Path::new("/given/by/program.so"));
        assert!(
            given.contains("/given/") && !given.contains("/named/"),
            "{given}"
        );
        return;
    }
    child_with(this_test!(), &[("WHARF_LIBHSA", "/named/by/variable.so")]);
}

#[test]
#[ignore = "needs a machine without a device of AMD's"]
fn without_a_device_nothing_is_loaded() {
    if !is_child() {
        // Empty is not set.
        return child_with(this_test!(), &[("WHARF_LIBHSA", "")]);
    }
    let error = Hsa::load(None).expect_err("no device");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(
        text.starts_with("the HSA runtime is not here: /dev/kfd: "),
        "{text}"
    );
    assert!(Hsa::resident(None).is_none());
}

#[test]
fn one_file_is_one_runtime() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let other = folder.path().join("other.so");
    std::os::unix::fs::symlink(library(), &other).expect("a link");
    let first = hsa();
    assert!(std::ptr::eq(first, Hsa::load(Some(&other)).expect("loads")));
    assert!(std::ptr::eq(
        first,
        Hsa::resident(Some(&other)).expect("is there")
    ));
    let functions = table::functions("hsa");
    let mut names: Vec<_> = functions.iter().map(|function| &function.name).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "functions are listed once");
    let program = Program::of_this_process();
    for function in &functions {
        assert!(
            program.has(&function.name),
            "the emulated one lacks it: {function:?}"
        );
    }
}

#[test]
fn loading_initialises_nothing_and_one_count_is_kept() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let hsa = hsa();
    let local = 0_u64;
    let at = (&raw const local).expose_provenance() as u64;
    assert!(!hsa.is_initialised() && !hsa.is_in_use());
    assert_eq!(
        hsa.inspect(at).expect("no error").kind,
        PointerKind::Unknown
    );
    assert_eq!(calls("hsa_init"), 0);
    // The program uses it, and ends that.
    let program = Program::of_this_process();
    program.call("hsa_init");
    assert!(!hsa.is_initialised() && hsa.is_in_use());
    program.call("hsa_shut_down");
    assert!(!hsa.is_in_use());
    // From the first use on there is one count of ours, whatever the program does.
    hsa.initialise().expect("done once");
    hsa.agents().expect("agents");
    assert_eq!((live("initialised"), calls("hsa_init")), (1, 2));
    program.call("hsa_init");
    program.call("hsa_shut_down");
    let signal = hsa.signal(1).expect("a signal");
    assert_eq!(signal.load(), 1);
    // A program that ends more than it began takes it all away; then nothing crashes in calls that can fail.
    program.call("hsa_shut_down");
    drop(signal);
    let error = hsa.signal(1).expect_err("was shut down");
    assert_eq!(Status::of(&error), Some(Status::ERROR_NOT_INITIALIZED));
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(
        hsa.inspect(at).expect("no error").kind,
        PointerKind::Unknown
    );
}

/// Calls that the program makes by itself.
struct Program(libloading::Library);

impl Program {
    fn of_this_process() -> Self {
        // SAFETY: the emulator runs nothing when it is loaded, and is loaded already.
        Self(unsafe { libloading::Library::new(library()) }.expect("loads"))
    }

    fn has(&self, name: &str) -> bool {
        // SAFETY: an address that is not called.
        unsafe { self.0.get::<*const ()>(name) }.is_ok()
    }

    fn call(&self, name: &str) {
        // SAFETY: only called for functions without arguments.
        unsafe {
            let call = self.0.get::<unsafe extern "C" fn() -> u32>(name);
            assert_eq!(call.expect("exported")(), 0, "{name}");
        }
    }
}

#[test]
fn without_the_kernels_driver_the_reason_is_told() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_KFD", "0")]);
    }
    let error = hsa().agents().expect_err("no device");
    assert_eq!(Status::of(&error), Some(Status::ERROR_OUT_OF_RESOURCES));
    if !Path::new("/dev/kfd").exists() {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(
            text.starts_with("hsa_init: out of memory, threads or other resources (HSA_STATUS_ERROR_OUT_OF_RESOURCES, 0x1008); there is no device: /dev/kfd: "),
            "{text}"
        );
    }
    // What failed is tried again.
    control("set kfd 1");
    assert_eq!(hsa().gpus().expect("devices").len(), 2);
}

#[test]
fn a_machine_without_devices_has_a_host() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_DEVICES", "0")]);
    }
    assert!(hsa().gpus().expect("agents").is_empty());
    assert_eq!(hsa().cpus().expect("agents").len(), 1);
}

#[test]
fn a_forked_child_is_told() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    hsa().initialise().expect("initialises");
    let signal = hsa().signal(1).expect("a signal");
    let memory = super::on_gpu(0, 4096);
    // SAFETY: the child takes no lock that another thread of this process holds, and leaves by `_exit`.
    let status = unsafe {
        match libc::fork() {
            0 => {
                let forked = |kind: Option<ErrorKind>| kind == Some(ErrorKind::Forked);
                let told = forked(hsa().initialise().err().map(|error| error.kind()))
                    && forked(
                        hsa()
                            .inspect(memory.address())
                            .err()
                            .map(|error| error.kind()),
                    )
                    && forked(hsa().signal(1).err().map(|error| error.kind()))
                    && !hsa().is_initialised()
                    && !hsa().is_in_use();
                // Drops that call nothing.
                drop((signal, memory));
                libc::_exit(i32::from(!told));
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
    assert_eq!(signal.load(), 1, "the parent goes on");
}

#[test]
fn statuses_have_names_and_kinds() {
    for (code, kind, name) in [
        (
            40,
            ErrorKind::InvalidArgument,
            "ERROR_INVALID_MEMORY_POOL, 0x28",
        ),
        (43, ErrorKind::DeviceLost, "ERROR_MEMORY_FAULT, 0x2b"),
        (0x1000, ErrorKind::Io, "ERROR, 0x1000"),
        (
            0x1001,
            ErrorKind::InvalidArgument,
            "ERROR_INVALID_ARGUMENT, 0x1001",
        ),
        (
            0x1003,
            ErrorKind::InvalidArgument,
            "ERROR_INVALID_ALLOCATION, 0x1003",
        ),
        (
            0x1008,
            ErrorKind::Exhausted,
            "ERROR_OUT_OF_RESOURCES, 0x1008",
        ),
        (0x100B, ErrorKind::Closed, "ERROR_NOT_INITIALIZED, 0x100b"),
    ] {
        let error = Status(code).check("hsa_call").expect_err("not success");
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(Status::of(&error), Some(Status(code)));
        let text = error.to_string();
        assert!(text.starts_with("hsa_call: "), "{text}");
        assert!(text.ends_with(&format!("(HSA_STATUS_{name})")), "{text}");
    }
    let error = Status(0x7777).check("hsa_call").expect_err("not success");
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::Io, "hsa_call: HSA status 0x7777")
    );
    assert!(Status(0).check("hsa_call").is_ok());
}

#[test]
fn agents_say_who_they_are() {
    let hsa = hsa();
    let gpus = hsa.gpus().expect("devices");
    assert_eq!((gpus.len(), hsa.cpus().expect("the host").len()), (2, 1));
    for gpu in &gpus {
        assert_eq!(gpu.name().expect("a name"), "gfx942");
        assert_eq!(gpu.product_name().expect("a name"), "Emulated Instinct");
    }
    let uuid = |index: usize| gpus[index].uuid().expect("an answer").expect("one");
    assert_eq!(uuid(0).len(), "GPU-".len() + 16);
    assert_ne!(uuid(0), uuid(1));
    assert_eq!(
        gpus[0].pci_address().expect("one").to_string(),
        "0000:11:00.0"
    );
    assert_eq!(
        gpus[1].pci_address().expect("one").to_string(),
        "0000:21:00.0"
    );
    assert_eq!(cpu().uuid().expect("an answer"), None);
}

#[test]
fn pools_say_what_they_are_and_who_reaches_them() {
    let count = |agent: crate::driver::hsa::Agent| agent.pools().expect("pools").len();
    // The local memory of a device's kernels is no pool for programs.
    assert_eq!((count(cpu()), count(gpu(0))), (3, 2));
    let own = gpu(0).pool(Grain::Coarse).expect("one");
    assert_eq!(own.size(), 16 << 30);
    assert_eq!(own.access(&gpu(0)).expect("an answer"), Access::Default);
    assert_eq!(own.access(&gpu(1)).expect("an answer"), Access::OnDemand);
    assert_eq!(own.access(&cpu()).expect("an answer"), Access::Never);
    let host = cpu().pool(Grain::Fine).expect("one");
    assert_eq!(host.access(&gpu(0)).expect("an answer"), Access::OnDemand);
    assert!(!gpu(0).has_large_bar().expect("an answer"));
}

/// Debian's own library.
#[test]
#[ignore = "needs AMD's HSA runtime, Debian's package libhsa-runtime64-1, and no device of theirs"]
fn the_real_runtime_without_a_device_says_so() {
    let hsa = Hsa::load(Some(Path::new("libhsa-runtime64.so.1")));
    let hsa = hsa.expect("the package libhsa-runtime64-1");
    assert!(!hsa.is_in_use(), "before anybody initialised it");
    assert_eq!(
        hsa.inspect(4096).expect("no error").kind,
        PointerKind::Unknown
    );
    eprintln!("{hsa:?}");
    let times = [(); 3].map(|()| {
        let start = Instant::now();
        hsa.gpus().expect_err("no device");
        start.elapsed()
    });
    let error = hsa.gpus().expect_err("no device");
    eprintln!("{error} ({times:?})");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(Status::of(&error), Some(Status::ERROR_OUT_OF_RESOURCES));
    assert!(
        error.to_string().contains("there is no device: /dev/kfd: "),
        "{error}"
    );
    assert!(!hsa.is_initialised() && !hsa.is_in_use());
    // It stays so, and can be asked again.
    assert_eq!(
        hsa.signal(1).expect_err("no device").kind(),
        ErrorKind::Unsupported
    );
    // The one bound of time that is promised: each asks the runtime anew. What is measured is 15 ms; a busy machine may take its time over one of them.
    assert!(
        times.iter().any(|time| *time < Duration::from_secs(1)),
        "{times:?}"
    );
}

#[test]
fn an_old_runtime_does_what_it_can() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_DMABUF_ASKED", "0")]);
    }
    const NEWER: &[&str] = &[
        "hsa_amd_portable_export_dmabuf",
        "hsa_amd_portable_close_dmabuf",
    ];
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = without(&library(), NEWER, folder.path()).expect("a copy");
    let old = Hsa::load(Some(&path)).expect("loads");
    assert!(!old.has_dma_buf().expect("an answer"));
    let gpu = old.gpus().expect("devices")[0];
    let memory = gpu
        .pool(Grain::Coarse)
        .expect("a pool")
        .allocate(8192)
        .expect("memory");
    let error = old
        .export_dma_buf(memory.address(), 8192)
        .expect_err("cannot")
        .to_string();
    assert!(
        error.contains("liblacking.so has no hsa_amd_portable_export_dmabuf")
            && error.ends_with(": a newer ROCm is needed"),
        "{error}"
    );
    let done = old.signal(1).expect("a signal");
    let (to, from) = (
        super::end(memory.address(), gpu),
        super::end(memory.address() + 4096, gpu),
    );
    // SAFETY: both lie in the allocation, which lives until the copy is done.
    unsafe {
        old.copy(to, from, 4096, &[], &done).expect("copies");
    }
    assert_eq!(super::wait(&done), 0);
    // One that exports, and cannot be asked whether the kernel does.
    assert!(hsa().has_dma_buf().expect("an answer"));
    control("set dmabuf_asked 1");
    assert!(hsa().has_dma_buf().expect("an answer"));
    control("set dmabuf 0");
    assert!(!hsa().has_dma_buf().expect("an answer"));
}
