//! T1 the loader; T2 the device's attributes; T3 contexts and threads; T13 synchronous memory operations.

use std::{
    ffi::{CString, c_void},
    sync::atomic::{AtomicU32, Ordering::SeqCst},
};

use wharf::{Progress, Worker};

use crate::{
    device::{self, Current, DEVICE, guarded, pattern, read},
    raw,
    suite::{self, Case, Verdict},
    support::{Parent, table},
};

/// T1. All functions of the crate's table by the loader and by the driver's own search, at the version that brought them.
pub(crate) fn loader(case: &mut Case) -> Verdict {
    let raw = suite::raw();
    let mut version = 0;
    raw.ok(raw.cuDriverGetVersion(&mut version));
    let (mut found, mut other, mut absent) = (0, Vec::new(), Vec::new());
    for table::Function {
        name,
        since,
        required,
    } in table::functions("cuda")
    {
        let Some(exported) = raw.address(&name) else {
            assert!(!required, "{name} is required, and missing");
            absent.push(name);
            continue;
        };
        found += 1;
        let base =
            CString::new(name.trim_end_matches("_v2").trim_end_matches("_v3")).expect("no zero");
        let (mut at, mut status) = (std::ptr::null_mut(), 9);
        let since = i32::try_from(since).expect("a version").max(2000);
        match raw.cuGetProcAddress_v2(base.as_ptr(), &mut at, since, 0, &mut status) {
            0 if at.addr() == exported => {}
            0 => other.push(format!(
                "{name} at {since}: status {status}, another address"
            )),
            code => other.push(format!(
                "{name} at {since}: {}, status {status}",
                raw.name(code)
            )),
        }
    }
    let (mut at, mut status) = (std::ptr::null_mut(), 9);
    let too_high = raw.cuGetProcAddress_v2(
        c"cuMemAlloc".as_ptr(),
        &mut at,
        version + 1000,
        0,
        &mut status,
    );
    case.note("a version above the driver's", raw.name(too_high));
    case.note("found otherwise by the driver", other.join("; "));
    case.note("absent", absent.join(" "));
    case.figure("functions", f64::from(found), "functions");
    Verdict::Ran
}

/// T2. What the device says of itself.
pub(crate) fn attributes(case: &mut Case) -> Verdict {
    const ATTRIBUTES: &[(u32, &str)] = &[
        (33, "PCI bus"),
        (34, "PCI device"),
        (50, "PCI domain"),
        (40, "copy engines"),
        (41, "unified addressing"),
        (75, "compute capability, major"),
        (76, "compute capability, minor"),
        (83, "managed memory"),
        (91, "host pointers of registered memory"),
        (99, "registers host memory"),
        (102, "virtual memory"),
        (103, "by file descriptor"),
        (110, "GPUDirect RDMA with virtual memory"),
        (113, "registers read-only memory"),
        (115, "memory pools"),
        (116, "GPUDirect RDMA"),
        (117, "ways to flush its writes"),
        (118, "order of its writes"),
        (119, "handle types of pools"),
        (122, "64-bit words in streams"),
        (123, "waiting for NOR"),
        (124, "dma-buf"),
        (125, "events between processes"),
        (128, "fabric handles"),
        (146, "dma-buf of host memory"),
        (148, "of the newest"),
        (152, "mapped dma-buf"),
    ];
    let raw = suite::raw();
    for (attribute, name) in ATTRIBUTES {
        let mut value = 0;
        let text = match raw.cuDeviceGetAttribute(&mut value, *attribute, 0) {
            0 => value.to_string(),
            code => raw.name(code),
        };
        case.note(format!("{attribute} {name}"), text);
    }
    assert_eq!(raw.device(41), 1, "the crate counts on unified addressing");
    Verdict::Ran
}

/// T3. Calls before initialisation, without a context, from a task that changes threads, from a host function.
pub(crate) fn contexts(case: &mut Case) -> Verdict {
    static IN_CALLBACK: AtomicU32 = AtomicU32::new(raw::MISSING);
    extern "C" fn calls_back(_: *mut c_void) {
        IN_CALLBACK.store(suite::raw().cuMemAlloc_v2(&mut 0, 8), SeqCst);
    }
    let mut child = case.child("T3 uninitialised", &[]);
    let codes = device::runtime().block_on(child.hear());
    child.finish();
    case.note("before initialisation and without a context", codes);

    let current = Current::enter();
    let (raw, stream) = (current.raw, current.stream());
    raw.ok(raw.cuLaunchHostFunc(stream, calls_back, std::ptr::null_mut()));
    current.wait(stream);
    raw.ok(raw.cuStreamDestroy_v2(stream));
    case.note(
        "a call from a host function",
        raw.name(IN_CALLBACK.load(SeqCst)),
    );
    drop(current);

    // Tasks that wake up on other threads, none of which has a context when wharf is done with it.
    let threads = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime");
    threads.block_on(async {
        let context = device::context(Progress::Adaptive);
        let worker = Worker::new(&context).expect("a worker");
        let tasks = (0..16_u64).map(|seed| {
            let (context, worker) = (context.clone(), worker.clone());
            tokio::spawn(async move {
                for round in 0..8 {
                    let bytes = pattern(seed + round, 70_000);
                    let memory = device::filled(&context, &worker, DEVICE, bytes.clone()).await;
                    tokio::task::yield_now().await;
                    assert!(
                        read(&worker, memory).await == bytes,
                        "the bytes of task {seed}"
                    );
                    let mut here = 1;
                    let raw = suite::raw();
                    raw.ok(raw.cuCtxGetCurrent(&mut here));
                    assert_eq!(here, 0, "a context was left on a thread of the runtime");
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            guarded(task).await.expect("no panic");
        }
    });
    Verdict::Ran
}

/// A second process: nothing is initialised.
pub(crate) fn uninitialised(parent: Parent) {
    let raw = raw::load(&suite::library()).expect("as in the first process");
    let (mut number, mut word, mut len) = (0, 0, 0);
    let mut said = Vec::new();
    let mut say = |name: &str, code: u32| said.push(format!("{name} {code}"));
    say("count before", raw.cuDeviceGetCount(&mut number));
    say("allocate before", raw.cuMemAlloc_v2(&mut word, 8));
    say("current before", raw.cuCtxGetCurrent(&mut word));
    raw.ok(raw.cuInit(0));
    say("flags of init", raw.cuInit(1));
    say("device without", raw.cuCtxGetDevice(&mut number));
    say("allocate without", raw.cuMemAlloc_v2(&mut word, 8));
    say("host memory without", raw.cuMemHostAlloc(&mut word, 8, 0));
    say(
        "range without",
        raw.cuMemGetAddressRange_v2(&mut word, &mut len, 4096),
    );
    say("stream without", raw.cuStreamCreate(&mut word, 1));
    say("event without", raw.cuEventCreate(&mut word, 2));
    say("synchronize without", raw.cuCtxSynchronize());
    say("pop without", raw.cuCtxPopCurrent_v2(std::ptr::null_mut()));
    say("query of the default stream without", raw.cuStreamQuery(0));
    parent.say(said.join(", "));
}

/// T13. The attribute goes on and off, and the context keeps its flags.
pub(crate) fn sync_memops(case: &mut Case) -> Verdict {
    const SYNC_MEMOPS: u32 = 6;
    let current = Current::enter();
    let raw = current.raw;
    let (mut before, mut after) = (0, 0);
    let flags = raw.cuCtxGetFlags(&mut before);
    let at = current.alloc(4096);
    for value in [1_u32, 0, 1] {
        let code = raw.cuPointerSetAttribute((&raw const value).cast(), SYNC_MEMOPS, at);
        raw.ok(code);
        // The driver writes 4 bytes or 1; the word was 0.
        assert_eq!(raw.pointer(SYNC_MEMOPS, at), Ok(value.into()));
    }
    let value = 1_u32;
    let unknown = address_of_nothing();
    let code = raw.cuPointerSetAttribute((&raw const value).cast(), SYNC_MEMOPS, unknown);
    assert_ne!(code, 0, "host memory has no such attribute");
    case.note("on host memory", raw.name(code));
    current.free(at);
    if flags == 0 {
        raw.ok(raw.cuCtxGetFlags(&mut after));
        assert_eq!(before, after, "the context's flags");
        case.note("flags of the context", format_args!("{before:#x}"));
    } else {
        case.without("the context's flags", raw.name(flags));
    }
    Verdict::Ran
}

fn address_of_nothing() -> u64 {
    let bytes = [0_u8; 8];
    device::address(&bytes)
}
