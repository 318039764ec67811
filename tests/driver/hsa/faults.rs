//! What goes wrong: each call once, and devices.
//!
//! # Safety
//! Copies are between memory that outlives them, or that the test means to break; functions of the library are called with the signatures of the header.
#![allow(unsafe_code)]

use std::{os::unix::process::ExitStatusExt, ptr::NonNull, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{calls, control, copy_now, end, gpu, hsa, live, lock, on_gpu, wait};
use crate::{
    alone::{child_with, is_child},
    driver::hsa::{Fault, FaultKind, FreedCallback, Grain, SignalCallback, Status},
    error::{ErrorKind, Result},
    support::{again, block_until, this_test},
};

struct Nothing;

impl SignalCallback for Nothing {
    fn run(&self, _value: i64) {}
}

impl FreedCallback for Nothing {
    fn freed(&self) {}
}

type Asks = Box<dyn Fn() -> Result<()>>;

/// Everything that can be asked of the runtime, each by the function that it calls.
fn each_call() -> Vec<(&'static str, Asks)> {
    fn call(name: &'static str, run: impl Fn() -> Result<()> + 'static) -> (&'static str, Asks) {
        (name, Box::new(run))
    }
    let memory = || gpu(0).pool(Grain::Coarse)?.allocate(8192);
    vec![
        call("hsa_system_get_info", || hsa().has_dma_buf().map(drop)),
        call("hsa_agent_get_info", || gpu(0).name().map(drop)),
        call("hsa_agent_get_info", || gpu(0).pci_address().map(drop)),
        call("hsa_agent_get_info", || gpu(0).uuid().map(drop)),
        call("hsa_amd_agent_iterate_memory_pools", || {
            gpu(0).pools().map(drop)
        }),
        call("hsa_amd_memory_pool_get_info", || gpu(0).pools().map(drop)),
        call("hsa_amd_agent_memory_pool_get_info", || {
            gpu(0).has_large_bar().map(drop)
        }),
        call("hsa_amd_memory_pool_allocate", move || memory().map(drop)),
        call("hsa_amd_agents_allow_access", move || {
            memory()?.allow(&[gpu(1)])
        }),
        call("hsa_amd_memory_lock", || lock(&mut [0; 64]).map(drop)),
        call("hsa_amd_pointer_info", || hsa().inspect(4096).map(drop)),
        call("hsa_signal_create", || hsa().signal(1).map(drop)),
        call("hsa_amd_signal_async_handler", || {
            let signal = hsa().signal(0)?;
            signal.notify(1, Arc::new(Nothing))
        }),
        call("hsa_amd_memory_async_copy", move || {
            let memory = memory()?;
            let (to, from) = (memory.address(), memory.address() + 4096);
            copy_now(end(to, gpu(0)), end(from, gpu(0)), 4096).map(drop)
        }),
        call("hsa_amd_ipc_memory_create", move || {
            let memory = memory()?;
            hsa()
                .export_handle(memory.address(), memory.len())
                .map(drop)
        }),
        call("hsa_amd_ipc_memory_attach", move || {
            let memory = memory()?;
            let handle = hsa().export_handle(memory.address(), memory.len())?;
            hsa().attach(&handle, memory.len(), &[]).map(drop)
        }),
        call("hsa_amd_portable_export_dmabuf", move || {
            let memory = memory()?;
            hsa().export_dma_buf(memory.address(), 4096).map(drop)
        }),
        call("hsa_amd_interop_map_buffer", move || {
            use std::os::fd::AsFd;
            let memory = memory()?;
            let exported = hsa().export_dma_buf(memory.address(), 4096)?;
            hsa().map_dma_buf(exported.as_fd(), &[gpu(0)]).map(drop)
        }),
        call("hsa_amd_register_deallocation_callback", move || {
            let memory = memory()?;
            hsa()
                .watch_free(memory.address(), Arc::new(Nothing))
                .map(drop)
        }),
    ]
}

#[test]
fn each_call_fails_once_and_leaves_nothing() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    hsa().agents().expect("agents");
    for (function, call) in each_call() {
        for status in [
            Status::ERROR,
            Status::ERROR_OUT_OF_RESOURCES,
            Status(0x7777),
        ] {
            control(&format!("fault {function}@1={}", status.0));
            let error = call().expect_err(function);
            assert_eq!(Status::of(&error), Some(status), "{error}");
            assert!(error.to_string().starts_with(function), "{error}");
            assert_eq!(control("fault waiting"), "0");
            call().unwrap_or_else(|error| panic!("{function} again: {error}"));
        }
    }
    block_until("handlers", || live("handlers") == 0 && live("signals") == 0);
    for what in [
        "allocations",
        "locked",
        "attached",
        "mapped",
        "dmabufs",
        "notifiers",
        "bytes",
    ] {
        assert_eq!(live(what), 0, "{what}: {}", control("live"));
    }
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

#[test]
fn what_fails_while_it_is_undone_is_told_and_no_more() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    hsa().agents().expect("agents");
    let undone = [
        "hsa_amd_memory_pool_free",
        "hsa_amd_memory_unlock",
        "hsa_signal_destroy",
        "hsa_amd_ipc_memory_detach",
        "hsa_amd_portable_close_dmabuf",
        "hsa_amd_interop_unmap_buffer",
        "hsa_amd_deregister_deallocation_callback",
    ];
    for function in undone {
        control(&format!("fault {function}@1=4096"));
        for (_, call) in each_call() {
            call().expect("what is asked for is there");
        }
        assert_eq!(control("fault waiting"), "0", "{function} was not called");
    }
}

#[test]
fn initialising_that_failed_is_tried_again() {
    if !is_child() {
        return child_with(
            this_test!(),
            &[(
                "EMULATED_HSA_FAULTS",
                "hsa_init@1=4108 hsa_iterate_agents@1=4096",
            )],
        );
    }
    let error = hsa().agents().expect_err("the first fails");
    assert_eq!(Status::of(&error), Some(Status::ERROR_REFCOUNT_OVERFLOW));
    let error = hsa().agents().expect_err("the second too");
    assert_eq!(Status::of(&error), Some(Status::ERROR));
    assert_eq!(hsa().agents().expect("then not").len(), 3);
    assert_eq!(calls("hsa_init"), 2);
}

#[test]
fn a_copy_that_fails_makes_its_signal_negative() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let memory = on_gpu(0, 8192);
    let (to, from) = (
        end(memory.address(), gpu(0)),
        end(memory.address() + 4096, gpu(0)),
    );
    control("fault hsa_amd_memory_async_copy:0@1=late:7");
    assert_eq!(copy_now(to, from, 4096).expect("is taken"), -7);
    // What waits for it never begins.
    let (failed, never) = (
        hsa().signal(1).expect("a signal"),
        hsa().signal(1).expect("a signal"),
    );
    control("fault hsa_amd_memory_async_copy@1=late:1");
    // SAFETY: all lives until the end of the process.
    unsafe {
        hsa().copy(to, from, 4096, &[], &failed).expect("is taken");
        assert_eq!(wait(&failed), -1);
        hsa()
            .copy(to, from, 4096, &[&failed], &never)
            .expect("is taken");
    }
    assert_eq!(never.wait(1, Duration::from_millis(50)), 1);
    assert_eq!(control("misused"), "1");
    // Others go on.
    assert_eq!(copy_now(to, from, 4096).expect("is taken"), 0);
    // One that is never begun keeps its memory; the process ends.
    std::process::exit(0);
}

/// What was told of failures.
fn watch() -> (Arc<Mutex<Vec<Fault>>>, crate::driver::hsa::FaultWatch) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&told);
    let watch = hsa().watch_faults(move |fault: &Fault| list.lock().push(*fault));
    (told, watch.expect("watches"))
}

#[test]
fn the_hosts_address_of_locked_memory_is_a_fault() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let (told, _watch) = watch();
    let memory = on_gpu(0, 4096);
    let mut bytes = vec![1_u8; 4096];
    let host = bytes.as_ptr().expose_provenance() as u64;
    let _locked = lock(&mut bytes).expect("locks");
    let done = hsa().signal(1).expect("a signal");
    // SAFETY: wrong on purpose: the emulator finds it out.
    unsafe {
        hsa().copy(
            end(memory.address(), gpu(0)),
            end(host, gpu(0)),
            4096,
            &[],
            &done,
        )
    }
    .expect("is taken");
    block_until("the failure", || !told.lock().is_empty());
    let fault = told.lock()[0];
    assert_eq!(fault.agent, gpu(0).raw());
    assert_eq!(
        fault.kind,
        FaultKind::Memory {
            address: host & !4095,
            reasons: 1
        }
    );
    assert_eq!(fault.error().kind(), ErrorKind::DeviceLost);
    assert_eq!(hsa().fault_of(gpu(0).raw()), Some(fault));
    assert_eq!(hsa().fault_of(gpu(1).raw()), None);
    assert_eq!(
        done.wait(1, Duration::from_millis(20)),
        1,
        "it is never done"
    );
    // Neither is anything else of this device; the other goes on.
    let place = end(memory.address(), gpu(0));
    // SAFETY: within the allocation; it lives until the process ends.
    unsafe { hsa().copy(place, end(memory.address() + 8, gpu(0)), 8, &[], &done) }
        .expect("is taken");
    assert_eq!(done.wait(1, Duration::from_millis(20)), 1);
    let other = on_gpu(1, 4096);
    let place = |offset| end(other.address() + offset, gpu(1));
    assert_eq!(copy_now(place(0), place(8), 8).expect("copies"), 0);
}

#[test]
fn memory_that_an_agent_may_not_reach_is_a_fault() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_FAULT_REPORTS", "1")]);
    }
    let (told, _watch) = watch();
    let (mine, other) = (on_gpu(0, 4096), on_gpu(1, 4096));
    let done = copy_now(
        end(mine.address(), gpu(0)),
        end(other.address(), gpu(0)),
        4096,
    );
    assert!(done.expect("is taken") < 0);
    block_until("the failure", || told.lock().len() == 1);
    // Beyond an end, and freed.
    let past = copy_now(
        end(other.address(), gpu(1)),
        end(other.address() + 8, gpu(1)),
        4096,
    );
    assert!(past.expect("is taken") < 0);
    block_until("the failure", || told.lock().len() == 2);
    assert!(hsa().fault_of(gpu(1).raw()).is_some());
}

#[test]
fn a_device_that_hangs_is_told() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let (told, watching) = watch();
    let (_, dropped) = watch();
    drop(dropped);
    control("break 1");
    block_until("the failure", || !told.lock().is_empty());
    let fault = told.lock()[0];
    assert_eq!(
        (fault.agent, fault.kind),
        (gpu(1).raw(), FaultKind::Hardware)
    );
    assert_eq!(
        calls("hsa_amd_register_system_event_handler"),
        1,
        "once for all"
    );
    drop(watching);
}

#[test]
fn without_a_watcher_the_process_ends_as_before() {
    if is_child() {
        let (_, watching) = watch();
        drop(watching);
        let memory = on_gpu(0, 4096);
        let gone = end(memory.address() + (1 << 30), gpu(0));
        let done = hsa().signal(1).expect("a signal");
        // SAFETY: wrong on purpose.
        unsafe { hsa().copy(gone, end(memory.address(), gpu(0)), 8, &[], &done) }
            .expect("is taken");
        wait(&done);
        return;
    }
    let output = again(this_test!()).output().expect("a second process");
    assert_eq!(output.status.signal(), Some(6), "{output:?}");
}

#[test]
fn a_program_that_handles_failures_itself_is_left_alone() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_ONE_HANDLER", "1")]);
    }
    unsafe extern "C" fn theirs(_event: *const u8, _data: usize) -> u32 {
        0
    }
    hsa().initialise().expect("initialises");
    type Register =
        unsafe extern "C" fn(unsafe extern "C" fn(*const u8, usize) -> u32, usize) -> u32;
    // SAFETY: the name has this signature.
    let status = unsafe {
        let library = libloading::Library::new(super::library()).expect("loads");
        let call = library.get::<Register>("hsa_amd_register_system_event_handler");
        call.expect("exported")(theirs, 0)
    };
    assert_eq!(status, 0);
    for _ in 0..2 {
        let error = hsa().watch_faults(|_| {}).expect_err("taken");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(Status::of(&error), Some(Status::ERROR));
    }
    assert_eq!(
        calls("hsa_amd_register_system_event_handler"),
        2,
        "asked once"
    );
}

#[test]
fn locked_memory_that_has_gone_is_a_fault_and_no_crash() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_FAULT_REPORTS", "1")]);
    }
    let (told, _watch) = watch();
    let memory = on_gpu(0, 4096);
    // SAFETY: no fixed address; unmapped once, while it is locked: wrong on purpose.
    let locked = unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        let locked = hsa().lock(NonNull::new(at.cast()).expect("no null"), 4096, &[gpu(0)]);
        let locked = locked.expect("locks");
        assert_eq!(libc::munmap(at, 4096), 0);
        locked
    };
    let from = end(locked.agent_address(), gpu(0));
    assert!(copy_now(end(memory.address(), gpu(0)), from, 4096).expect("is taken") < 0);
    block_until("the failure", || told.lock().len() == 1);
}
