//! An error from each call of every function, one at a time: each ends in at most one clear error for what met it, everything that was begun is told
//! exactly once, and the next engine works.
//!
//! # Safety
//! The stream that is given to the engine outlives it.
#![allow(unsafe_code)]

use std::env;

use wharf::{
    MemoryType,
    memory::Advice,
    transport::{SendError, accelerator::Accelerator, cuda::CudaStream},
};

use crate::{
    alone::{child_with, is_child},
    domain::reset,
    error::ErrorKind,
    fixture::{Bench, DEVICE, Memory, OTHER, block_until, context, control, live},
    program::{CudaContext, Stream},
    struck::{MOST, Run, Vendor, names},
    support::{side_by_side, table, this_test},
};

/// CUDA, with a stream of the program's.
struct Cuda {
    stream: Stream,
    _context: CudaContext,
}

impl Cuda {
    fn new() -> Self {
        let own = context(0);
        let stream = own.enter().expect("enters").stream().expect("a stream");
        Self {
            stream,
            _context: own,
        }
    }

    fn handle(&self) -> CudaStream {
        let raw = std::ptr::with_exposed_provenance_mut(self.stream.raw() as usize);
        // SAFETY: the stream outlives the engine.
        unsafe { CudaStream::from_raw(raw, 0) }
    }
}

impl Vendor for Cuda {
    const KINDS: &[MemoryType] = &[
        MemoryType::HostPinned,
        DEVICE,
        OTHER,
        MemoryType::CudaManaged,
    ];
    const PAIRS: &[(usize, usize)] = &[(0, 1), (1, 0), (1, 2), (2, 0), (0, 3), (3, 1)];
    const COPIES: u64 = 2;
    const QUIET: &[&str] = &[
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
    const CODE: (&str, &str) = ("999", "999");

    fn of_memory(&self, run: &mut Run, accelerator: &dyn Accelerator, memory: &Memory) {
        let (domain, range) = (accelerator.domain(), memory.0.range());
        match memory.0.memory_type() {
            MemoryType::CudaManaged => drop(run.keep(domain.advise(range, Advice::WillNeed))),
            MemoryType::Cuda(_) => drop(run.keep(domain.export(range))),
            _ => {}
        }
    }

    fn more(&self, run: &mut Run, bench: &mut Bench, _: &[Option<Memory>]) {
        match bench.engine.after(self.handle().into(), 1000) {
            Ok(()) => run.began(1000),
            Err(SendError::Failed(error)) => run.errors.push(error),
            Err(SendError::Full) => panic!("full"),
        }
        run.settle(bench);
    }

    fn last(&self, run: &mut Run, bench: &mut Bench) {
        match bench.engine.then(self.handle().into(), &[2000, 2001, 2002]) {
            Ok(()) => {}
            Err(SendError::Failed(error)) => run.errors.push(error),
            Err(SendError::Full) => panic!("the device is open"),
        }
    }

    /// Streams cannot be held where words have failed or no device could be opened.
    fn is_refused(text: &str) -> bool {
        text.contains("wait for no words") || text.contains("no device is open")
    }
}

/// A part of the cases, in a process of its own. A device that does not answer when its words are tried is waited for for two seconds: the processes mostly wait.
struct Part(usize);

impl Part {
    const COUNT: usize = 5;
    const NAME: &str = "WHARFTEST_OF_CASES";

    /// This process's. `None`: the test is no part, and all parts have passed.
    fn of(test: &str) -> Option<Self> {
        if is_child() {
            let part = env::var(Self::NAME).expect("given");
            return Some(Self(part.parse().expect("a number")));
        }
        side_by_side(0..Self::COUNT, |part| {
            child_with(test, &[(Self::NAME, &part.to_string())]);
        });
        None
    }

    /// By the case alone: how many calls there are may differ from process to process.
    fn has(&self, name: &str, nth: u64) -> bool {
        let letters = name.bytes().map(usize::from).sum::<usize>();
        (letters + nth as usize) % Self::COUNT == self.0
    }
}

#[test]
fn each_call_of_every_function_may_fail() {
    let Some(part) = Part::of(this_test!()) else {
        return;
    };
    let cuda = Cuda::new();
    let run = cuda.everything();
    assert!(run.errors.is_empty(), "{:?}", run.errors);
    control("reset");
    cuda.everything();
    let counts = names();
    assert!(counts.len() > 25, "{counts:?}");
    let functions = table::functions("cuda").into_iter();
    let known: Vec<_> = functions.map(|function| function.name).collect();
    for (name, count) in &counts {
        assert!(known.contains(name), "{name}");
        if !part.has(name, 0) {
            continue;
        }
        let mut told = Cuda::is_quiet(name);
        // Memory of the run before is freed in a thread of its own, which may take the blow: its errors go to the log. Not each time.
        for round in 0..5 {
            if told && round > 0 {
                break;
            }
            told |= cuda.strike(name, *count, || ());
        }
        assert!(told, "nobody told that {name} failed");
    }
    control("reset");
    let run = cuda.everything();
    assert!(run.errors.is_empty(), "{:?}", run.errors);
    drop(cuda);
    // What faults of freeing left behind is all that may be left.
    block_until("the end", || live("contexts") <= 2);
    assert_eq!(control("misuses"), "");
}

#[test]
fn the_device_may_die_at_each_call() {
    let Some(part) = Part::of(this_test!()) else {
        return;
    };
    let counts = {
        let cuda = Cuda::new();
        cuda.everything();
        control("reset");
        cuda.everything();
        names()
    };
    for (name, count) in counts {
        for nth in (1..=count.min(MOST)).step_by(3) {
            if !part.has(&name, nth / 3) {
                continue;
            }
            for late in ["die", "late"] {
                let cuda = Cuda::new();
                control("reset");
                control(&format!("fault {name}:0@{nth}={late}:700"));
                let run = cuda.everything();
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
                drop(cuda);
                reset(0);
            }
        }
    }
    let cuda = Cuda::new();
    let run = cuda.everything();
    assert!(run.errors.is_empty(), "{:?}", run.errors);
}
