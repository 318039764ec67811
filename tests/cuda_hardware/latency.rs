#![allow(unsafe_code)]
//! T9 what the driver's calls cost; T10 how soon a small copy is known to be done, and what happens when the device fails.
//!
//! # Safety
//! Host functions get a pointer to a static or to what the test keeps until they have run.

use std::{
    ffi::c_void,
    os::fd::AsRawFd,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst},
    time::{Duration, Instant},
};

use nix::sys::eventfd::EventFd;
use wharf::{MemoryType, Progress, Worker};

use crate::{
    device::{self, Current, DEVICE, Kernels, filled, guarded, runtime, word},
    suite::{Case, Verdict},
    support::{Looks, Parent, block_until},
};

/// T9.
pub(crate) fn costs(case: &mut Case) -> Verdict {
    extern "C" fn nothing(_: *mut c_void) {}
    let count = case.pick(10_000, 200);
    let current = Current::enter();
    let raw = current.raw;
    let (stream, memory, host) = (current.stream(), current.alloc(4096), current.pinned(4096));
    let event = current.event(2);
    raw.ok(raw.cuEventRecord(event, stream));
    current.wait(stream);
    let mut time = |name: &str, call: &mut dyn FnMut() -> u32| {
        let start = Instant::now();
        for at in 0..count {
            raw.ok(call());
            // What was queued does not pile up.
            if at % 500 == 499 {
                current.wait(stream);
            }
        }
        let each = start.elapsed().as_nanos() as f64 / f64::from(count);
        current.wait(stream);
        case.figure(name, each, "ns");
    };
    time("push and pop a context", &mut || {
        raw.cuCtxPushCurrent_v2(current.context) | raw.cuCtxPopCurrent_v2(std::ptr::null_mut())
    });
    let mut values = [0_u64; 8];
    let places = values
        .each_mut()
        .map(|value| std::ptr::from_mut(value).cast::<c_void>());
    let attributes = [2, 8, 9, 1, 7, 11, 12, 10];
    for (name, many) in [
        ("2 attributes of an address", 2),
        ("8 attributes of an address", 8),
    ] {
        time(name, &mut || {
            raw.cuPointerGetAttributes(many, attributes.as_ptr(), places.as_ptr(), memory)
        });
    }
    time("one attribute of an address", &mut || {
        raw.pointer(7, memory).err().unwrap_or(0)
    });
    time("query an event", &mut || raw.cuEventQuery(event));
    time("record an event", &mut || raw.cuEventRecord(event, stream));
    time("write a word", &mut || {
        raw.cuStreamWriteValue64_v2(stream, host, 1, 0)
    });
    time("queue a host function", &mut || {
        raw.cuLaunchHostFunc(stream, nothing, std::ptr::null_mut())
    });
    time("queue a copy of 8 bytes to the device", &mut || {
        raw.cuMemcpyAsync(memory, host, 8, stream)
    });
    time("queue a copy of 8 bytes to the host", &mut || {
        raw.cuMemcpyAsync(host, memory, 8, stream)
    });
    let mut handle = crate::addresses::no_handle();
    let refused = raw.cuIpcGetMemHandle(&mut handle, memory);
    if refused == 0 {
        time("export a legacy handle", &mut || {
            raw.cuIpcGetMemHandle(&mut handle, memory)
        });
    } else {
        case.without("legacy handles", raw.name(refused));
    }
    raw.ok(raw.cuEventDestroy_v2(event));
    raw.ok(raw.cuStreamDestroy_v2(stream));
    current.free(memory);
    current.free_pinned(host);
    Verdict::Ran
}

/// The time of each of `count` runs, sorted.
fn times(count: usize, mut run: impl FnMut()) -> Vec<f64> {
    for _ in 0..count / 10 + 1 {
        run();
    }
    let each = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_nanos() as f64
    };
    let mut times: Vec<f64> = (0..count).map(each).collect();
    times.sort_by(f64::total_cmp);
    times
}

fn record(case: &mut Case, what: &str, times: &[f64]) -> f64 {
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    case.figure(format!("{what}: p50"), at(50), "ns");
    case.figure(format!("{what}: p99"), at(99), "ns");
    at(50)
}

/// Threads that keep processors busy until it is dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn start(count: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..count {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(SeqCst) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(stop)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// T10.
pub(crate) fn completion(case: &mut Case) -> Verdict {
    case.note(
        "GDRCopy",
        format_args!("{:?}", device::accelerator().gdr_copy()),
    );
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for busy in case.pick(&[0, processors - 1][..], &[0]) {
        let _busy = Busy::start(*busy);
        one_machine(case, &format!("{busy} busy threads, "));
    }
    failing(case);
    Verdict::Ran
}

fn one_machine(case: &mut Case, prefix: &str) {
    extern "C" fn sets(flag: *mut c_void) {
        // SAFETY: the static below.
        unsafe { &*flag.cast::<AtomicU64>() }.fetch_add(1, SeqCst);
    }
    extern "C" fn wakes(fd: *mut c_void) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: a number that is an eventfd of the test's, and 8 bytes.
        unsafe { libc::write(fd.addr() as i32, one.as_ptr().cast(), 8) };
    }
    static FLAG: AtomicU64 = AtomicU64::new(0);
    let count = case.pick(5_000, 50);
    let current = Current::enter();
    let raw = current.raw;
    let (stream, memory, host) = (current.stream(), current.alloc(4096), current.pinned(4096));
    let (done, event, blocking) = (word(host + 64), current.event(2), current.event(3));
    let fd = EventFd::new().expect("an eventfd");
    for (way, to, from) in [
        ("to the device", memory, host),
        ("to the host", host, memory),
    ] {
        let copy = || current.copy(to, from, 8, stream);
        let spinning = times(count, || {
            copy();
            raw.ok(raw.cuEventRecord(event, stream));
            while raw.cuEventQuery(event) == 600 {}
        });
        record(
            case,
            &format!("{prefix}8 bytes {way}: driver, event"),
            &spinning,
        );
        let by_query = times(count, || {
            copy();
            while raw.cuStreamQuery(stream) == 600 {}
        });
        let by_query = record(
            case,
            &format!("{prefix}8 bytes {way}: driver, stream"),
            &by_query,
        );
        let mut round = 0;
        let by_word = times(count, || {
            round += 1;
            copy();
            raw.ok(raw.cuStreamWriteValue64_v2(stream, host + 64, round, 0));
            while done.load(SeqCst) != round {}
        });
        done.store(0, SeqCst);
        let by_word = record(
            case,
            &format!("{prefix}8 bytes {way}: driver, word"),
            &by_word,
        );
        let called = times(count, || {
            let before = FLAG.load(SeqCst);
            copy();
            let flag = std::ptr::from_ref(&FLAG).cast_mut().cast();
            raw.ok(raw.cuLaunchHostFunc(stream, sets, flag));
            while FLAG.load(SeqCst) == before {}
        });
        record(
            case,
            &format!("{prefix}8 bytes {way}: driver, host function"),
            &called,
        );
        let woken = times(count, || {
            copy();
            let number = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
            raw.ok(raw.cuLaunchHostFunc(stream, wakes, number));
            fd.read().expect("woken");
        });
        record(
            case,
            &format!("{prefix}8 bytes {way}: driver, eventfd"),
            &woken,
        );
        let waited = times(count, || {
            copy();
            raw.ok(raw.cuEventRecord(blocking, stream));
            raw.ok(raw.cuEventSynchronize(blocking));
        });
        record(
            case,
            &format!("{prefix}8 bytes {way}: driver, blocking event"),
            &waited,
        );
        for (name, progress) in [
            ("polling", Progress::Busy),
            ("by events", Progress::EventDriven),
        ] {
            let by_wharf = by_wharf(progress, way == "to the device", count);
            let found = record(
                case,
                &format!("{prefix}8 bytes {way}: wharf, {name}"),
                &by_wharf,
            );
            let what = format!("{prefix}8 bytes {way}: wharf, {name}, beyond the driver's");
            case.figure(what, found - by_query.min(by_word), "ns");
        }
    }
    raw.ok(raw.cuEventDestroy_v2(event));
    raw.ok(raw.cuEventDestroy_v2(blocking));
    raw.ok(raw.cuStreamDestroy_v2(stream));
    current.free(memory);
    current.free_pinned(host);
}

fn by_wharf(progress: Progress, to_device: bool, count: usize) -> Vec<f64> {
    runtime().block_on(async {
        let context = device::context(progress);
        let worker = Worker::new(&context).expect("a worker");
        let host = MemoryType::HostPinned;
        let (from, to) = if to_device {
            (host, DEVICE)
        } else {
            (DEVICE, host)
        };
        let from = filled(&context, &worker, from, vec![1; 8]).await.freeze();
        let mut to = filled(&context, &worker, to, vec![0; 8]).await;
        let copies = async {
            let mut times = Vec::with_capacity(count);
            for round in 0..count + count / 10 {
                let start = Instant::now();
                to = worker.copy(from.clone(), to).await.expect("copied");
                if round >= count / 10 {
                    times.push(start.elapsed().as_nanos() as f64);
                }
            }
            times
        };
        // One guard for all: it starts a thread, which takes longer than such a copy.
        let mut times = guarded(copies).await;
        times.sort_by(f64::total_cmp);
        times
    })
}

/// A context that breaks, in a process of its own.
fn failing(case: &mut Case) {
    let mut child = case.child("T10 broken", &[]);
    let (said, wharf) = runtime().block_on(async { (child.hear().await, child.hear().await) });
    child.finish();
    case.note("the driver, when the context breaks", &said);
    case.note("wharf, when the context breaks", &wharf);
    assert!(said.starts_with("host function not called"), "{said}");
    assert!(wharf.starts_with("error"), "{wharf}");
}

/// A second process: a kernel writes where nothing is, with work of both behind it.
pub(crate) fn broken(parent: Parent) {
    static CALLED: AtomicBool = AtomicBool::new(false);
    static TOLD: AtomicU32 = AtomicU32::new(u32::MAX);
    extern "C" fn called(_: *mut c_void) {
        CALLED.store(true, SeqCst);
    }
    extern "C" fn told(_: u64, status: u32, _: *mut c_void) {
        TOLD.store(status, SeqCst);
    }
    let subject = crate::suite::subject().expect("as in the first process");
    let raw = subject.raw;
    let current = Current::enter();
    let kernels = Kernels::load(&current, subject.emulated);
    let stream = current.stream();
    runtime().block_on(async {
        let context = device::context(Progress::EventDriven);
        let worker = Worker::new(&context).expect("a worker");
        let memory = filled(&context, &worker, DEVICE, vec![0; 1 << 20]).await;
        kernels.break_it(stream);
        // Refused when the kernel was faster than these calls.
        let queued = raw.cuLaunchHostFunc(stream, called, std::ptr::null_mut());
        let added = raw.cuStreamAddCallback(stream, told, std::ptr::null_mut(), 0);
        block_until("the failure", || raw.cuStreamQuery(stream) != 600);
        if added == 0 {
            let (start, mut looks) = (Instant::now(), Looks::new("the callback"));
            while TOLD.load(SeqCst) == u32::MAX && start.elapsed() < Duration::from_secs(5) {
                looks.block();
            }
        }
        parent.say(format_args!(
            "host function {}called (queued: {queued}), callback told {} (queued: {added}), the stream says {}",
            if CALLED.load(SeqCst) { "" } else { "not " },
            TOLD.load(SeqCst),
            raw.name(raw.cuStreamQuery(stream)),
        ));
        match guarded(worker.copy(vec![1; 1 << 20], memory)).await {
            Ok(_) => parent.say("no error"),
            Err(error) => parent.say(format!("error: {error}").replace('\n', " ")),
        }
    });
    // What is left cannot be brought to rest.
    std::process::exit(0);
}
