//! An error from each call of every function, one at a time: each ends in at most one clear error for what met it, everything that was begun is told
//! exactly once, and the next engine works.
//!
//! # Safety
//! The stream that is given to the engine outlives it.
#![allow(unsafe_code)]

use std::collections::BTreeSet;

use wharf::{
    MemoryType,
    memory::Advice,
    transport::{
        SendError,
        accelerator::{Accelerator as _, CopyEnd},
        cuda::CudaStream,
    },
};

use crate::{
    alone::{child_with, is_child},
    domain::reset,
    error::{Error, ErrorKind, Result},
    fixture::{Bench, Memory, Parked, Sink, accelerator, block_until, context, control, live},
    program::Stream,
    support::{Looks, table, this_test},
};

/// One of everything: what failed.
#[derive(Default)]
struct Run {
    errors: Vec<Error>,
    lost: Option<Error>,
}

impl Run {
    fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }
}

fn everything(stream: &Stream) -> Run {
    let mut run = Run::default();
    let accelerator = accelerator();
    let domain = accelerator.domain();
    let mut allocate = |memory_type| {
        let made = domain.allocate(memory_type, 4096).map(Memory);
        run.keep(made)
    };
    let memory = [
        allocate(MemoryType::HostPinned),
        allocate(MemoryType::Cuda(0)),
        allocate(MemoryType::Cuda(1)),
        allocate(MemoryType::CudaManaged),
    ];
    for memory in memory.iter().flatten() {
        let range = memory.0.range();
        run.keep(domain.detect(range));
        run.keep(domain.advise(range, Advice::WillNeed));
        if matches!(memory.0.memory_type(), MemoryType::Cuda(_)) {
            run.keep(domain.export(range));
        }
    }
    if let Some(engine) = run.keep(accelerator.open()) {
        let mut bench = Bench {
            accelerator,
            domain,
            engine,
            sink: Sink::default(),
        };
        engine_of(&mut bench, &memory, stream, &mut run);
        run.lost = bench.sink.lost.take();
    }
    run
}

fn engine_of(bench: &mut Bench, memory: &[Option<Memory>; 4], stream: &Stream, run: &mut Run) {
    let mut parked = Parked::new(bench);
    let mut begun = BTreeSet::new();
    let mut token = 0;
    let [pinned, near, far, managed] = memory;
    for (from, to) in [
        (pinned, near),
        (near, pinned),
        (near, far),
        (far, pinned),
        (pinned, managed),
        (managed, near),
    ]
    .repeat(2)
    {
        let (Some(from), Some(to)) = (from, to) else {
            continue;
        };
        let (from, to): (CopyEnd, CopyEnd) = (from.end(0), to.end(2048));
        for _ in 0..2 {
            token += 1;
            if run.keep(bench.begin(from, to, 2048, token)).is_some() {
                begun.insert(token);
            }
        }
        bench.engine.flush();
        if !begun.is_empty() && token % 4 == 0 && bench.engine.arm() {
            // Parks once; the rest is polled.
            parked.park(bench);
        }
        settle(bench, &mut begun, run);
    }
    // SAFETY: the stream outlives the engine.
    let handle = unsafe {
        let raw = std::ptr::with_exposed_provenance_mut(stream.raw() as usize);
        CudaStream::from_raw(raw, 0)
    };
    match bench.engine.after(handle.into(), 1000) {
        Ok(()) => {
            begun.insert(1000);
        }
        Err(SendError::Failed(error)) => run.errors.push(error),
        Err(SendError::Full) => panic!("full"),
    }
    settle(bench, &mut begun, run);
    // With copies under way to the end.
    if let (Some(from), Some(to)) = (pinned, near) {
        for token in 2000..2003 {
            if run
                .keep(bench.begin(from.end(0), to.end(0), 64, token))
                .is_some()
            {
                begun.insert(token);
            }
        }
    }
    match bench.engine.then(handle.into(), &[2000, 2001, 2002]) {
        Ok(()) => {}
        Err(SendError::Failed(error)) => run.errors.push(error),
        Err(SendError::Full) => panic!("the device is open"),
    }
    bench.engine.quiesce();
    settle(bench, &mut begun, run);
}

/// Polls until all that was begun was told, each once.
fn settle(bench: &mut Bench, begun: &mut BTreeSet<u64>, run: &mut Run) {
    let mut looks = Looks::new("the end of what was begun");
    while !begun.is_empty() {
        bench.engine.progress(16, &mut bench.sink);
        for (token, result) in bench.sink.done.drain(..) {
            assert!(begun.remove(&token), "{token} was told twice");
            if let Err(error) = result {
                assert_eq!(error.transport(), Some("cuda_copy"), "{error}");
                run.errors.push(error);
            }
        }
        looks.block();
    }
}

/// Calls that a run makes, by name.
fn names() -> Vec<(String, u64)> {
    let counts = control("counts");
    let line = |line: &str| {
        let (name, count) = line.split_once([' ', '='])?;
        Some((name.to_owned(), count.trim().parse().ok()?))
    };
    counts.lines().filter_map(line).collect()
}

/// The functions of which errors are only told to the log, or have a way round.
fn is_quiet(name: &str) -> bool {
    const QUIET: [&str; 21] = [
        "Free",
        "Destroy",
        "Pop",
        "Release",
        "Unregister",
        "cuStreamQuery",
        "cuEventQuery",
        "cuStreamWriteValue64_v2",
        "cuStreamWaitValue64_v2",
        "cuLaunchHostFunc",
        "cuDeviceCanAccessPeer",
        "cuCtxEnablePeerAccess",
        "cuDeviceGetAttribute",
        "cuDeviceGetCount",
        "cuDriverGetVersion",
        "cuMemRangeGetAttribute",
        "cuPointerGetAttribute",
        "cuMemHostRegister_v2",
        "cuMemHostGetDevicePointer_v2",
        "cuDevicePrimaryCtxGetState",
        "cuCtxPushCurrent_v2",
    ];
    QUIET.iter().any(|quiet| name.contains(quiet))
}

/// How many calls of one function are struck, one after the other.
const MOST: u64 = 12;

/// Fails each call of one function in turn. Whether anybody was told.
fn strike(name: &str, count: u64, stream: &Stream) -> bool {
    let mut told = false;
    for nth in 1..=count.min(MOST) {
        control("reset");
        control(&format!("fault {name}@{nth}=999"));
        let run = everything(stream);
        told |= !run.errors.is_empty();
        assert!(run.lost.is_none(), "{name}@{nth}: lost by {:?}", run.lost);
        // One cause: the call itself, and whatever was refused because what it was to make is not there.
        for error in &run.errors {
            let text = format!("{error:?}");
            // Streams cannot be held where words have failed or no device could be opened.
            let refused = error.kind() == ErrorKind::Unsupported
                && (text.contains("wait for no words") || text.contains("no device is open"));
            let own = text.contains(name) && text.contains("999");
            assert!(own || refused, "{name}@{nth}: {text}");
            assert_ne!(error.kind(), ErrorKind::DeviceLost, "{name}@{nth}: {text}");
        }
        assert!(run.errors.len() <= 8, "{name}@{nth}: {:?}", run.errors);
    }
    told
}

#[test]
fn each_call_of_every_function_may_fail() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let own = context(0);
    let stream = own.enter().expect("enters").stream().expect("a stream");
    let run = everything(&stream);
    assert!(run.errors.is_empty(), "{:?}", run.errors);
    control("reset");
    everything(&stream);
    let counts = names();
    assert!(counts.len() > 25, "{counts:?}");
    let functions = table::functions("cuda").into_iter();
    let known: Vec<_> = functions.map(|function| function.name).collect();
    for (name, count) in &counts {
        assert!(known.contains(name), "{name}");
        let mut told = is_quiet(name);
        // Memory of the run before is freed in a thread of its own, which may take the blow: its errors go to the log. Not each time.
        for round in 0..5 {
            if told && round > 0 {
                break;
            }
            told |= strike(name, *count, &stream);
        }
        assert!(told, "nobody told that {name} failed");
    }
    control("reset");
    let run = everything(&stream);
    assert!(run.errors.is_empty(), "{:?}", run.errors);
    drop((stream, own));
    // What faults of freeing left behind is all that may be left.
    block_until("the end", || live("contexts") <= 2);
    assert_eq!(control("misuses"), "");
}

#[test]
fn the_device_may_die_at_each_call() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let counts = {
        let own = context(0);
        let stream = own.enter().expect("enters").stream().expect("a stream");
        everything(&stream);
        control("reset");
        everything(&stream);
        names()
    };
    for (name, count) in counts {
        for nth in (1..=count.min(MOST)).step_by(3) {
            for late in ["die", "late"] {
                let own = context(0);
                let stream = own.enter().expect("enters").stream().expect("a stream");
                control("reset");
                control(&format!("fault {name}:0@{nth}={late}:700"));
                let run = everything(&stream);
                control("fault clear");
                for error in &run.errors {
                    let text = format!("{error:?}");
                    assert!(text.contains("700"), "{name}@{nth}={late}: {text}");
                    assert_eq!(
                        error.kind(),
                        ErrorKind::DeviceLost,
                        "{name}@{nth}={late}: {text}"
                    );
                }
                drop((stream, own));
                reset(0);
            }
        }
    }
    let own = context(0);
    let stream = own.enter().expect("enters").stream().expect("a stream");
    let run = everything(&stream);
    assert!(run.errors.is_empty(), "{:?}", run.errors);
}
